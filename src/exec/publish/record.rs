//! The record of a publication that has begun, by which the next run can finish it.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::system::{Stamp, io_error, is_own, is_there, named, no_link, sync_folder, unless};
use super::work::Work;
use super::{PublishOptions, nested};
use crate::diag::{Diagnostic, Errors, PublishCode};

/// What a publication into a folder replaces and puts there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The names of what goes, `FOLDER/NAME` in a folder inside, the index first: a reader finds nothing rather than a mix.
    pub(super) replaced: Vec<String>,
    /// The names of what comes, the index last.
    pub(super) placed: Vec<String>,
    /// Device and inode of the new folder, where two folders are exchanged.
    pub(super) exchanged: Option<(u64, u64)>,
    /// What tells the files that go, and the files that come, from any other of their names.
    pub(super) stamps: Vec<(String, Stamp)>,
}

/// What is written in a work folder, with what tells that folder from every other.
#[derive(Serialize, Deserialize)]
struct Noted<T> {
    of: Stamp,
    holds: T,
}

impl Record {
    /// Writes it; from here on the next run finishes what this one does not.
    pub(super) fn write(&self, work: &Work, options: PublishOptions) -> Result<(), Errors> {
        write_json(work, &work.publication(), self, options.sync)?;
        sync_folder(work.path(), options)
    }

    /// Removes it, if there is one.
    pub(super) fn remove(work: &Work) -> io::Result<()> {
        unless(fs::remove_file(work.publication()), io::ErrorKind::NotFound)
    }

    pub(super) fn read(work: &Work) -> Result<Option<Record>, Errors> {
        let path = work.publication();
        if !is_there(&path) {
            return Ok(None);
        }
        let record: Option<Record> = read_json(work, &path);
        // It names files that will be removed: plain names alone.
        let plain =
            |record: &Record| record.replaced.iter().chain(&record.placed).all(|name| nested::is_plain(name));
        match record.filter(plain) {
            Some(record) => Ok(Some(record)),
            None => {
                let message = "the record of an interrupted publication cannot be read";
                let help = "look at the folder that it lies in, then remove that folder";
                Err(Diagnostic::error(PublishCode::Record, message).file(&named(&path)).help(help).into())
            }
        }
    }

    /// Returns whether a file is one that the publication noted under that name.
    pub(super) fn knows(&self, name: &str, path: &Path) -> bool {
        let there = Stamp::at(path);
        self.stamps.iter().any(|(known, stamp)| known == name && Some(*stamp) == there)
    }
}

/// Describes a publication whose folders are not where they were.
pub(super) fn lost(work: &Work) -> Errors {
    let message = "an interrupted publication cannot be finished, for its folder is another now";
    let help =
        "this holds the old checkpoint, the new one, or a part of either; take what you need and remove it";
    Diagnostic::error(PublishCode::Record, message).file(work.path()).help(help).into()
}

/// Reads a small JSON file of a work folder; `None` where it was not written for that very folder.
pub(super) fn read_json<T: DeserializeOwned>(work: &Work, path: &Path) -> Option<T> {
    let file = no_link().open(path).ok()?;
    if !file.metadata().is_ok_and(|there| there.is_file() && is_own(&there)) {
        return None;
    }
    let noted: Noted<T> = serde_json::from_reader(io::BufReader::new(file)).ok()?;
    (noted.of == work.stamp).then_some(noted.holds)
}

/// Writes a small JSON file of a work folder in one step.
pub(super) fn write_json(work: &Work, path: &Path, value: &impl Serialize, sync: bool) -> Result<(), Errors> {
    let temporary = path.with_extension("tmp");
    let write = || -> io::Result<()> {
        unless(fs::remove_file(&temporary), io::ErrorKind::NotFound)?;
        let mut file = no_link().write(true).create_new(true).open(&temporary)?;
        file.write_all(&serde_json::to_vec(&Noted { of: work.stamp, holds: value })?)?;
        if sync {
            file.sync_all()?;
        }
        fs::rename(&temporary, path)
    };
    write().map_err(|error| io_error(path, "write it", &error).into())
}
