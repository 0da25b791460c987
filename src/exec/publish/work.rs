//! The folder in which an output is made: `.NAME.qkvconv-work`, one for each destination.
//!
//! | entry | holds |
//! |---|---|
//! | `lock` | nothing; it is locked while a run lives, so what no lock protects was left by one that was killed |
//! | `new/` | the output's files under their final names |
//! | `old/` | what an interrupted publication has set aside, see [`super::in_place`] |
//! | `publication.json` | the publication that has begun, see [`super::record`] |
//! | `plan.json`, `done/` | what `--resume` needs, see [`super::kept`] |
//!
//! It lies beside the destination: a file system renames only within itself. For a folder that is a mount, or whose
//! parent may not be written to, it lies inside.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::kept;
use super::record::Record;
use super::system::{identity, io_error, is_there, parent, unless};
use crate::diag::{Diagnostic, Errors};

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
    path: PathBuf,
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
        let made = unless(fs::create_dir(&probe), io::ErrorKind::AlreadyExists);
        made.map_err(|error| io_error(folder, "create a folder in it", &error))?;
        let renamed = fs::rename(&probe, self.new_folder());
        if renamed.is_err() {
            let removed = fs::remove_dir(&probe);
            removed.map_err(|error| io_error(&probe, "remove it", &error))?;
        }
        Ok(renamed.is_ok())
    }

    fn at(path: &Path) -> Result<Work, Refused> {
        for _ in 0..TRIES {
            let made = match fs::create_dir(path) {
                Ok(()) => true,
                // Not through a link: what is in here will be removed.
                Err(_) if path.symlink_metadata().is_ok_and(|there| there.is_dir()) => false,
                Err(error) => return Err(Refused::System(error)),
            };
            let place = path.join(LOCK);
            let lock = match File::options().create(true).truncate(false).write(true).open(&place) {
                Ok(lock) => lock,
                // A run that ended removed the folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    let _ = fs::remove_dir(path);
                    return Err(Refused::Other(io_error(&place, "create it", &error).into()));
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
                    return Err(Refused::Other(diagnostic.help(help).into()));
                }
            }
            // A run that ended may have removed the very file that is locked now.
            let own = lock.metadata().ok().as_ref().and_then(identity);
            if fs::metadata(&place).is_ok_and(|there| identity(&there) == own) {
                return Ok(Work { path: path.to_owned(), _lock: lock, leave: Leave::Nothing });
            }
        }
        let diagnostic = Diagnostic::error("publish/busy", "another run is writing to this destination");
        Err(Refused::Other(diagnostic.file(path).help("wait for it, or write to another place").into()))
    }

    /// Returns the path of the folder itself.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of an entry.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the folder that holds the output's files.
    pub(super) fn new_folder(&self) -> PathBuf {
        self.join("new")
    }

    /// Returns the folder that holds what was set aside.
    pub(super) fn old_folder(&self) -> PathBuf {
        self.join("old")
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
        Record::remove(self)?;
        kept::forget(self)?;
        for entry in fs::read_dir(&self.path)? {
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

impl Drop for Work {
    fn drop(&mut self) {
        // What cannot be removed now is found by the next run.
        let _ = match self.leave {
            Leave::Nothing => self.clear(),
            Leave::Finished if kept::remove_unfinished(self) == 0 => self.clear(),
            Leave::Finished | Leave::Everything => Ok(()),
        };
        let _ = fs::remove_file(self.join(LOCK));
        let _ = fs::remove_dir(&self.path);
    }
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
        assert_eq!(refused.diagnostics()[0].code, "publish/io");
        assert!(precious.join("new/file").exists());
    }
}
