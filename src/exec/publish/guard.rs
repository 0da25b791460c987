//! The paths that a run writes beside its checkpoint: reports, pictures, arrays, mapping files.
//!
//! Whatever an option says, nothing that the run reads is ever written, nor one path twice, nor a file that is there
//! without `--force`, and no link is followed. Files are compared by what they are, not by their names. The file is made
//! as a temporary one before the work begins, so that one that cannot be written is told before anything is done, and
//! gets its name by one rename when it is whole.

use std::fs;
use std::path::{Path, PathBuf};

use super::system::{
    appeared, existing_folder, io_error, is_same, is_there, keep_attributes, name_error, parent, put,
};
use super::work::Work;
use super::{Destination, check_name};
use crate::diag::{Diagnostic, Errors, PublishCode};
use crate::format::shards::named_shards;

/// What a run reads and writes, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    reads: Vec<(&'static str, PathBuf)>,
    writes: Vec<(&'static str, PathBuf)>,
    /// The folder that the checkpoint is written to.
    folder: Option<PathBuf>,
}

/// What becomes of a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced.
    Replaced,
    /// It is an error; what to do then.
    Kept(&'static str),
}

impl Existing {
    /// Returns what `--force` says of it.
    pub fn forced(force: bool) -> Existing {
        match force {
            true => Existing::Replaced,
            false => Existing::Kept("give `--force` to replace it, or write to another file"),
        }
    }
}

/// A file in the making; dropping it removes what is temporary.
#[derive(Debug)]
pub struct Pending {
    what: &'static str,
    target: PathBuf,
    existing: Existing,
    work: Work,
}

impl Guard {
    /// Takes note of what the run reads: a file, a folder whose files it may read, an index or a prefix.
    pub fn reads(&mut self, what: &'static str, path: &Path) {
        self.reads.push((what, path.to_owned()));
        if path.extension().is_some_and(|ending| ending == "json") {
            let folder = parent(path);
            let shards = named_shards(path).into_iter().map(|shard| (what, folder.join(shard)));
            self.reads.extend(shards);
        }
    }

    /// Takes note of where the checkpoint is written.
    pub fn writes(&mut self, destination: &Destination) {
        self.writes.push(("the output", destination.path().to_owned()));
        if let Destination::Folder(folder) = destination {
            self.folder = Some(folder.clone());
        }
    }

    /// Takes note of the names that the checkpoint has in its folder.
    pub fn names<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        if let Some(folder) = &self.folder {
            self.writes.extend(names.map(|name| ("the output", folder.join(name))));
        }
    }

    /// Makes a file that is to be written; `what` names it in messages.
    ///
    /// # Errors
    /// Returns `publish/over-source` for a path that the run reads, `publish/twice` for one that it writes anyway,
    /// `publish/exists` for a file that is there already and is not to be replaced, `publish/not-a-file` for anything there
    /// that is no regular file, such as a link or a device, `publish/name` for a name with control characters,
    /// `publish/no-folder` for a missing folder, `publish/busy` where another run writes it, and
    /// `publish/io` for what the system reports.
    pub fn open(&mut self, what: &'static str, target: &Path, existing: Existing) -> Result<Pending, Errors> {
        self.check(what, target, existing)?;
        let folder = parent(target);
        let work = match &self.folder {
            // The output's folder is made, or exchanged with another, while the run lasts.
            Some(own) if place(own) == place(&folder) || is_same(own, &folder) => {
                existing_folder(&parent(own))?;
                Work::outside(&own.canonicalize().unwrap_or_else(|_| own.clone()), target)?
            }
            _ => {
                existing_folder(&folder)?;
                Work::beside(target)?
            }
        };
        work.begin_anew()?;
        let made = fs::File::create_new(work.new_folder().join(TEMPORARY));
        made.map_err(|error| io_error(target, &format!("write {what}"), &error))?;
        self.writes.push((what, target.to_owned()));
        Ok(Pending { what, target: target.to_owned(), existing, work })
    }

    /// Looks again at a file that is to be written, where more is known of what the run reads and writes.
    ///
    /// # Errors
    /// As [`Guard::open`].
    pub fn check_again(&self, pending: &Pending) -> Result<(), Errors> {
        let mut others = self.clone();
        others.writes.retain(|(what, path)| (*what, path) != (pending.what, &pending.target));
        others.check(pending.what, &pending.target, pending.existing)
    }

    /// Tells whether a path may be written; returns `publish/over-source` for a path that the run reads, `publish/twice` for one that it writes anyway,
    /// `publish/exists` for a file that is there already without `--force`, `publish/not-a-file` for anything there that
    /// is no regular file, such as a link or a device, and `publish/name` for a name with control characters.
    fn check(&self, what: &str, target: &Path, existing: Existing) -> Result<(), Errors> {
        let fail = |code: PublishCode, message: String| Diagnostic::error(code, message).file(target);
        check_name(target)?;
        if let Some((read, _)) = self.reads.iter().find(|(_, read)| is_of(target, read)) {
            let message = format!("{what} would be written over {read}");
            return Err(fail(PublishCode::OverSource, message).help("write to another file").into());
        }
        let is_one = |other: &Path| place(target) == place(other) || is_same(target, other);
        if let Some((other, _)) = self.writes.iter().find(|(_, path)| is_one(path)) {
            let message = format!("{what} would be written over {other} of the same run");
            return Err(fail(PublishCode::Twice, message).help("write to another file").into());
        }
        match (target.symlink_metadata(), existing) {
            (Ok(there), _) if !there.is_file() => {
                let kind = if there.is_symlink() { "a symbolic link" } else { "no regular file" };
                let message = format!("cannot write {what}: it is there already and is {kind}");
                Err(fail(PublishCode::NotAFile, message).help("write to a file of another name").into())
            }
            (Ok(_), Existing::Kept(help)) => {
                let message = format!("cannot write {what}: the file exists already");
                Err(fail(PublishCode::Exists, message).help(help).into())
            }
            _ => Ok(()),
        }
    }
}

/// The name that a file has until it is published.
const TEMPORARY: &str = "file";

impl Pending {
    /// Writes all of the file and gives it its name.
    ///
    /// # Errors
    /// Returns `publish/exists` for a file that appeared in the meantime and is not to be replaced, and `publish/io` for
    /// what the system reports.
    pub fn publish(self, text: &[u8]) -> Result<(), Errors> {
        let path = self.work.new_folder().join(TEMPORARY);
        let written = fs::write(&path, text);
        written.map_err(|error| io_error(&self.target, &format!("write {}", self.what), &error))?;
        let replace = self.existing == Existing::Replaced;
        match self.target.symlink_metadata() {
            Ok(there) if !replace || !there.is_file() => return Err(appeared(&self.target).into()),
            Ok(_) => keep_attributes(&path, &self.target),
            Err(_) => {}
        }
        put(&path, &self.target, replace).map_err(|error| name_error(&self.target, &error).into())
    }

    /// Returns the path that it will have.
    pub fn target(&self) -> &Path {
        &self.target
    }
}

/// Returns what tells a name from every other, whether there is anything of that name or not: its folder without links,
/// and the name.
fn place(path: &Path) -> (PathBuf, std::ffi::OsString) {
    let folder = parent(path);
    let name = path.file_name().unwrap_or_default();
    // These systems take letters of both cases for one.
    let name = match cfg!(any(windows, target_os = "macos")) {
        true => name.to_ascii_lowercase(),
        false => name.to_owned(),
    };
    (folder.canonicalize().unwrap_or(folder), name)
}

/// Returns whether a path is what the run reads, or one of its files.
fn is_of(target: &Path, read: &Path) -> bool {
    if place(target) == place(read) || is_same(target, read) {
        return true;
    }
    if !is_there(target) {
        return false;
    }
    if read.is_dir() {
        let inside = |folder: PathBuf| target.canonicalize().is_ok_and(|target| target.starts_with(folder));
        return read.canonicalize().is_ok_and(inside);
    }
    // The prefix of several files.
    let (own, other) = (place(target), place(read));
    let begins = own.1.as_encoded_bytes().starts_with(other.1.as_encoded_bytes());
    !read.exists() && own.0 == other.0 && begins
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes<T>(result: Result<T, Errors>) -> Vec<&'static str> {
        let errors = result.err().expect("refused");
        errors.diagnostics().iter().map(|diagnostic| diagnostic.code.as_str()).collect()
    }

    #[test]
    fn a_path_is_compared_by_what_it_is() {
        let base = tempfile::tempdir().expect("folder");
        let at = |name: &str| base.path().join(name);
        for folder in ["src", "out"] {
            fs::create_dir(at(folder)).expect("folder");
        }
        for name in ["source", "mapping.json", "src/config.json", "there", "p.index", "p.data-0"] {
            fs::write(at(name), "precious").expect("writes");
        }
        fs::hard_link(at("source"), at("hard")).expect("links");
        let mut guard = Guard::default();
        for (what, name) in [
            ("the source", "source"),
            ("the source", "src"),
            ("the source", "p"),
            ("a mapping", "mapping.json"),
        ] {
            guard.reads(what, &at(name));
        }
        guard.writes(&Destination::Folder(at("out")));
        guard.names(["model.safetensors"].into_iter());
        for name in [
            "source",
            "hard",
            "src/../source",
            "src/config.json",
            "src",
            "p.index",
            "p.data-0",
            "mapping.json",
        ] {
            assert_eq!(
                codes(guard.open("it", &at(name), Existing::Replaced)),
                ["publish/over-source"],
                "{name}"
            );
        }
        for name in ["out", "out/model.safetensors", "src/../out/model.safetensors"] {
            assert_eq!(codes(guard.open("it", &at(name), Existing::Replaced)), ["publish/twice"], "{name}");
        }
        assert_eq!(codes(guard.open("it", &at("there"), Existing::forced(false))), ["publish/exists"]);
        assert_eq!(codes(guard.open("it", &at("no/new"), Existing::forced(false))), ["publish/no-folder"]);
        assert_eq!(codes(guard.open("it", &at("a\u{1b}b"), Existing::forced(false))), ["publish/name"]);
        let pending = guard.open("it", &at("new"), Existing::forced(false)).expect("opens");
        assert_eq!(codes(guard.open("that", &at("src/../new"), Existing::Replaced)), ["publish/twice"]);
        guard.check_again(&pending).expect("as before");
        fs::write(at("new"), "theirs").expect("writes");
        assert_eq!(codes(pending.publish(b"text")), ["publish/exists"]);
        assert_eq!(fs::read(at("new")).expect("reads"), b"theirs");
        guard.open("x", &at("there"), Existing::Replaced).expect("opens").publish(b"text").expect("writes");
        assert_eq!(fs::read(at("there")).expect("reads"), b"text");
        guard
            .open("x", &at("out/r.json"), Existing::Replaced)
            .expect("opens")
            .publish(b"text")
            .expect("writes");
        let left = fs::read_dir(base.path()).expect("folder").flatten();
        let left = left.filter(|entry| entry.file_name().to_string_lossy().contains("qkvconv"));
        assert_eq!(left.count(), 0);
        for name in ["source", "mapping.json", "src/config.json"] {
            assert_eq!(fs::read(at(name)).expect("reads"), b"precious");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_are_not_written() {
        let base = tempfile::tempdir().expect("folder");
        let at = |name: &str| base.path().join(name);
        fs::write(at("precious"), "theirs").expect("writes");
        std::os::unix::fs::symlink("precious", at("link")).expect("links");
        std::os::unix::fs::symlink("nowhere", at("dangling")).expect("links");
        for path in [at("link"), at("dangling"), "/dev/null".into(), base.path().into()] {
            assert_eq!(
                codes(Guard::default().open("it", &path, Existing::Replaced)),
                ["publish/not-a-file"],
                "{path:?}"
            );
        }
        assert_eq!(fs::read(at("precious")).expect("reads"), b"theirs");
    }
}
