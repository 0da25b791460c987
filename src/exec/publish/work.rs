//! The folder in which an output is made: `.NAME.qkvconv-work`, one for each destination.
//!
//! | entry | holds |
//! |---|---|
//! | `lock` | a note of the folder's inode and birth; it is locked while a run lives, so what no lock protects was left by one that was killed |
//! | `new/` | the output's files under their final names |
//! | `old/` | what an interrupted publication has set aside, see [`super::in_place`] |
//! | `publication.json` | the publication that has begun, see [`super::record`] |
//! | `plan.json`, `done/` | what `--resume` needs, see [`super::kept`] |
//!
//! It lies beside the destination: a file system renames only within itself. For a folder that is a mount, or whose
//! parent may not be written to, it lies inside.
//!
//! What lies at a destination is data, and may be anyone's: a repository that was cloned can hold such a folder with
//! records and links. It is believed only where it belongs to the user and its lock notes the inode and the birth of this
//! very folder, which nobody can know who did not make it here; the records note them too. All else is refused and left as
//! it is. It is used through its handle, so that no other folder can be put in its place while a run lives.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::system::{
    Stamp, identity, io_error, is_own, is_there, no_link, open_folder, parent, through, unless,
};
use crate::diag::{Diagnostic, Errors, PublishCode};

/// The name of the file that is locked.
const LOCK: &str = "lock";

/// How often the lock is tried for when others remove it in the same moments.
const TRIES: usize = 100;

/// The most characters of a destination's name in ours; names have a limit.
const NAME: usize = 50;

/// What stays when a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// Nothing.
    Nothing,
    /// The files that are finished, for a later run with `--resume`.
    Finished,
    /// All: a publication has begun that is to be finished.
    Everything,
}

/// The folder, locked; dropping it removes what is not to stay.
#[derive(Debug)]
pub(super) struct Work {
    /// As a person knows it.
    path: PathBuf,
    /// Through its handle.
    real: PathBuf,
    /// What tells this folder from every other.
    pub(super) stamp: Stamp,
    /// Kept open, for `real`.
    _folder: File,
    /// Kept open: closing it gives the lock back.
    _lock: File,
    /// What stays.
    pub(super) leave: Leave,
}

/// Why there is no folder to work in.
enum Refused {
    /// It cannot be made.
    System(io::Error),
    /// Another reason.
    Other(Errors),
}

impl Refused {
    fn errors(self, path: &Path) -> Errors {
        match self {
            Refused::System(error) => io_error(&parent(path), "create a folder in it", &error).into(),
            Refused::Other(errors) => errors,
        }
    }
}

impl Work {
    /// Opens the folder for a file or a folder that is to be made.
    pub(super) fn beside(target: &Path) -> Result<Work, Errors> {
        let path = parent(target).join(name(target, "work"));
        Work::at(&path).map_err(|refused| refused.errors(&path))
    }

    /// Opens the folder for a file in a folder that is not to be touched meanwhile: it lies beside that folder.
    pub(super) fn outside(folder: &Path, target: &Path) -> Result<Work, Errors> {
        let path = parent(folder).join(name(target, "work"));
        Work::at(&path).map_err(|refused| refused.errors(&path))
    }

    /// Opens the folder for a folder that is there, whose path has no links in it.
    pub(super) fn of_folder(folder: &Path) -> Result<Work, Errors> {
        let inside = folder.join(name(folder, "work"));
        if !is_there(&inside)
            && let Some(path) = folder.parent().map(|parent| parent.join(name(folder, "work")))
        {
            match Work::at(&path) {
                Ok(work) if work.reaches(folder)? => return Ok(work),
                Err(Refused::Other(errors)) => return Err(errors),
                // It may only be written into, or is a file system of its own.
                Ok(_) | Err(Refused::System(_)) => {}
            }
        }
        Work::at(&inside).map_err(|refused| refused.errors(&inside))
    }

    /// Returns whether files can be renamed from here into a folder; makes `new/` by that.
    fn reaches(&self, folder: &Path) -> Result<bool, Errors> {
        if is_there(&self.new_folder()) {
            return Ok(true);
        }
        let probe = folder.join(name(folder, "new"));
        // One that a killed run has left is empty; what holds anything is none of ours.
        if is_there(&probe) && fs::remove_dir(&probe).is_err() {
            return Err(foreign(&probe, "it is no empty folder"));
        }
        fs::create_dir(&probe).map_err(|error| io_error(folder, "create a folder in it", &error))?;
        let renamed = fs::rename(&probe, self.new_folder());
        if renamed.is_err() {
            let removed = fs::remove_dir(&probe);
            removed.map_err(|error| io_error(&probe, "remove it", &error))?;
        }
        Ok(renamed.is_ok())
    }

    fn at(path: &Path) -> Result<Work, Refused> {
        let other = |errors: Errors| Refused::Other(errors);
        for _ in 0..TRIES {
            let made = match make(path) {
                Ok(()) => true,
                Err(_) if is_there(path) => false,
                Err(error) => return Err(Refused::System(error)),
            };
            let folder = match open_folder(path) {
                Ok(folder) => folder,
                // A run that ended removed the folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // Not through a link: what is in here will be removed.
                Err(_) if !path.symlink_metadata().is_ok_and(|there| there.is_dir()) => {
                    return Err(other(foreign(path, "it is no folder")));
                }
                Err(_) => return Err(other(foreign(path, "it cannot be opened"))),
            };
            let there = folder.metadata().map_err(Refused::System)?;
            if !is_own(&there) {
                return Err(other(foreign(path, "it belongs to another user")));
            }
            let (real, stamp) = (through(&folder, path), Stamp::of(&there));
            let place = real.join(LOCK);
            let (lock, locked_first) = match no_link().write(true).create_new(true).open(&place) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    (no_link().write(true).open(&place), false)
                }
                made => (made, true),
            };
            let mut lock = match lock {
                Ok(lock) => lock,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) if place.symlink_metadata().is_ok_and(|there| !there.is_file()) => {
                    return Err(other(foreign(path, "its lock is no file")));
                }
                Err(error) => {
                    if made {
                        let _ = fs::remove_dir(path);
                    }
                    return Err(other(io_error(&place, "create it", &error).into()));
                }
            };
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => break,
                // A file system without locks: who made the folder goes on.
                Err(TryLockError::Error(_)) if made => {}
                Err(TryLockError::Error(error)) => {
                    let diagnostic = io_error(&place, "lock it", &error);
                    let help = format!("if no other run writes to it, remove `{}`", path.display());
                    return Err(other(diagnostic.help(help).into()));
                }
            }
            // A run that ended may have removed the very file that is locked now.
            let own = lock.metadata().map_err(Refused::System)?;
            if !place.symlink_metadata().is_ok_and(|there| identity(&there) == identity(&own)) {
                continue;
            }
            if let Some(why) = odd(&real, &mut lock, &stamp) {
                // It stays as it was found.
                if locked_first {
                    let _ = fs::remove_file(&place);
                }
                return Err(other(foreign(path, why)));
            }
            let leave = Leave::Nothing;
            let work = Work { path: path.to_owned(), real, stamp, _folder: folder, _lock: lock, leave };
            work.note().map_err(|error| other(io_error(&place, "write it", &error).into()))?;
            return Ok(work);
        }
        let diagnostic = Diagnostic::error(PublishCode::Busy, "another run is writing to this destination");
        Err(other(diagnostic.file(path).help("wait for it, or write to another place").into()))
    }

    /// Notes in the lock which folder this is, unless it says so already.
    fn note(&self) -> io::Result<()> {
        let mut lock = &self._lock;
        if lock.metadata()?.len() > 0 {
            return Ok(());
        }
        lock.write_all(&serde_json::to_vec(&self.stamp)?)
    }

    /// Returns the path of the folder itself.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of an entry.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.real.join(name)
    }

    /// Returns the folder that holds the output's files.
    pub(super) fn new_folder(&self) -> PathBuf {
        self.join("new")
    }

    /// Returns the folder that holds what was set aside.
    pub(super) fn old_folder(&self) -> PathBuf {
        self.join("old")
    }

    /// Returns the path of the record of a publication that has begun.
    pub(super) fn publication(&self) -> PathBuf {
        self.join("publication.json")
    }

    /// Returns the path of what says of which conversion the finished files are.
    pub(super) fn plan(&self) -> PathBuf {
        self.join("plan.json")
    }

    /// Returns the folder of the notes on finished files.
    pub(super) fn done_folder(&self) -> PathBuf {
        self.join("done")
    }

    /// Returns the path of the note that an output file is finished.
    pub(super) fn done(&self, name: &str) -> PathBuf {
        self.done_folder().join(format!("{name}.json"))
    }

    /// Returns whether it lies inside that folder.
    pub(super) fn is_inside(&self, folder: &Path) -> bool {
        self.path.starts_with(folder)
    }

    /// Removes everything but the lock, and makes an empty `new/`.
    pub(super) fn begin_anew(&self) -> Result<(), Errors> {
        self.clear().map_err(|error| io_error(&self.path, "remove what a run has left here", &error))?;
        let made = fs::create_dir(self.new_folder());
        made.map_err(|error| io_error(&self.path, "create a folder in it", &error).into())
    }

    /// Removes everything but the lock: first what says what the rest is.
    fn clear(&self) -> io::Result<()> {
        for gone in [
            fs::remove_file(self.publication()),
            fs::remove_file(self.plan()),
            fs::remove_dir_all(self.done_folder()),
        ] {
            unless(gone, io::ErrorKind::NotFound)?;
        }
        for entry in fs::read_dir(&self.real)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else if entry.file_name() != LOCK {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Work {
    /// Removes the output files that are not finished, and returns how many are.
    fn remove_unfinished(&self) -> usize {
        let mut finished = 0;
        for entry in fs::read_dir(self.new_folder()).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| is_there(&self.done(name))) {
                finished += 1;
            } else {
                // What cannot be removed is written over by the next run.
                let _ = fs::remove_file(entry.path());
            }
        }
        finished
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let is_to_go = match self.leave {
            Leave::Nothing => true,
            Leave::Finished => self.remove_unfinished() == 0,
            Leave::Everything => false,
        };
        // What cannot be removed now is found by the next run, which believes it by its lock.
        if !is_to_go || self.clear().is_err() {
            return;
        }
        let _ = fs::remove_file(self.join(LOCK));
        let _ = fs::remove_dir(&self.path);
    }
}

/// Makes the folder, for the user alone.
fn make(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Returns why a folder is none that a run of this user has left here, if so.
fn odd(folder: &Path, lock: &mut File, stamp: &Stamp) -> Option<&'static str> {
    /// A note is much shorter.
    const LONGEST_NOTE: u64 = 1000;
    let is_file = |there: &fs::Metadata| there.is_file() && is_own(there);
    let mut note = Vec::new();
    let read = Read::by_ref(lock).take(LONGEST_NOTE).read_to_end(&mut note);
    if read.is_err() || !lock.metadata().is_ok_and(|there| is_file(&there)) {
        return Some("its lock cannot be read");
    }
    let noted: Option<Stamp> = serde_json::from_slice(&note).ok();
    let Ok(entries) = fs::read_dir(folder) else { return Some("it cannot be listed") };
    for entry in entries {
        let Ok(entry) = entry else { return Some("it cannot be listed") };
        let name = entry.file_name();
        if name == LOCK {
            continue;
        }
        if note.is_empty() {
            return Some("its lock notes nothing, and it holds more");
        }
        let Ok(there) = entry.metadata() else { return Some("an entry cannot be looked at") };
        let fits = match name.to_str() {
            Some("new" | "old" | "done") => there.is_dir() && is_own(&there),
            _ => is_file(&there),
        };
        if !fits {
            return Some("it holds what no run makes there: a link, or another user's file");
        }
    }
    (!note.is_empty() && noted != Some(*stamp))
        .then_some("its lock notes another folder, so it was not made here")
}

/// Describes a folder under our name that is not ours, or no longer as a run has left it.
fn foreign(path: &Path, why: &str) -> Errors {
    let message = "what lies where a run would work was not left there by a run of yours";
    let help =
        "nothing in it was used or changed; look at what it holds and remove it, or write to another place";
    Diagnostic::error(PublishCode::Foreign, message).file(path).found(why).help(help).into()
}

/// Returns the name of an entry of ours for a destination; two destinations never have the same.
fn name(target: &Path, what: &str) -> String {
    let whole = target.file_name().unwrap_or(OsStr::new("root"));
    let short = match whole.to_str() {
        Some(name) if name.chars().count() <= NAME => name.to_owned(),
        _ => {
            let start: String = whole.to_string_lossy().chars().take(NAME).collect();
            let hash = blake3::hash(whole.as_encoded_bytes()).to_hex();
            format!("{start}~{}", &hash[..8])
        }
    };
    format!(".{short}.qkvconv-{what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_where_destinations_do() {
        let long = |end: &str| format!("{}{end}", "ä".repeat(60));
        let names = ["out", "out.qkvconv-work", &long("1"), &long("2"), "model.safetensors"];
        for (at, one) in names.iter().enumerate() {
            let own = name(Path::new(one), "work");
            assert!(own.len() < 250 && own.starts_with('.') && own.contains(".qkvconv-"), "{own}");
            assert!(names[..at].iter().all(|other| name(Path::new(other), "work") != own), "{own}");
        }
    }

    #[test]
    fn one_run_at_a_time() {
        let base = tempfile::tempdir().expect("folder");
        let target = base.path().join("out");
        let work = Work::beside(&target).expect("opens");
        let refused = Work::beside(&target).expect_err("busy");
        assert_eq!(refused.diagnostics()[0].code, "publish/busy");
        Work::beside(&base.path().join("other")).expect("another destination is free");
        drop(work);
        Work::beside(&target).expect("free again");
        assert_eq!(fs::read_dir(base.path()).expect("folder").count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_no_folder_to_work_in() {
        let base = tempfile::tempdir().expect("folder");
        let precious = base.path().join("precious");
        fs::create_dir_all(precious.join("new")).expect("folder");
        fs::write(precious.join("new/file"), "theirs").expect("writes");
        std::os::unix::fs::symlink(&precious, base.path().join(".out.qkvconv-work")).expect("links");
        let refused = Work::beside(&base.path().join("out")).expect_err("refused");
        assert_eq!(refused.diagnostics()[0].code, "publish/foreign");
        assert!(precious.join("new/file").exists());
    }
}
