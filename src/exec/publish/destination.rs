//! Where an output goes, and how.

use std::path::{Path, PathBuf};

use crate::format::Format;

/// Where the output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One file of that path.
    File(PathBuf),
    /// A folder, which is made where it is missing; its parent must exist.
    Folder(PathBuf),
}

impl Destination {
    /// Tells what the user means: a path that ends as the files of a format do and is no folder is a file, any other a
    /// folder.
    pub fn resolve(dst: &Path) -> Destination {
        if Format::of_ending(dst).is_some() && !dst.is_dir() && !ends_in_separator(dst) {
            Destination::File(dst.to_owned())
        } else {
            Destination::Folder(dst.to_owned())
        }
    }

    /// Returns whether it is a folder whatever its name ends in: one that is there, or is named with a separator behind it.
    pub(crate) fn is_plainly_folder(&self) -> bool {
        matches!(self, Destination::Folder(path) if path.is_dir() || ends_in_separator(path))
    }

    /// Returns the path that the user named.
    pub fn path(&self) -> &Path {
        match self {
            Destination::File(path) | Destination::Folder(path) => path,
        }
    }
}

fn ends_in_separator(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().last().is_some_and(|&b| b == b'/' || b == b'\\')
}

/// How to publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishOptions {
    /// Whether to replace what is there (`--force`).
    pub force: bool,
    /// Whether to wait until the files are on the disk, so that they survive a power failure.
    pub sync: bool,
    /// Whether to write also what is larger than the room that the file system tells (`--allow low-space`).
    pub low_space: bool,
}

impl PublishOptions {
    /// Sets whether to replace what is there.
    pub fn force(mut self, force: bool) -> PublishOptions {
        self.force = force;
        self
    }

    /// Sets whether to wait until the files are on the disk.
    pub fn sync(mut self, sync: bool) -> PublishOptions {
        self.sync = sync;
        self
    }

    /// Sets whether to write also what is larger than the room that the file system tells.
    pub fn low_space(mut self, allow: bool) -> PublishOptions {
        self.low_space = allow;
        self
    }
}
