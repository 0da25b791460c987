//! Publishing into a folder that cannot be exchanged: what is replaced is set aside, then the new files get their names,
//! the index last.
//!
//! In between a reader finds no index, so no checkpoint rather than a mix. A failure puts everything back; after a kill
//! the next run goes on from the record.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::nested::{self, flat};
use super::record::{Record, lost};
use super::system::{appeared, io_error, is_there, name_error, put, unless};
use super::work::{Leave, Work};
use super::{PublishOptions, sync_folder};
use crate::diag::{Collector, Errors};

/// Publishes what is in `new/`.
pub(super) fn publish(
    work: &mut Work,
    folder: &Path,
    record: &Record,
    options: PublishOptions,
) -> Result<(), Errors> {
    record.write(work, options)?;
    let leave = std::mem::replace(&mut work.leave, Leave::Everything);
    let mut made = Vec::new();
    if let Err(errors) = forward(work, folder, record, options.force, &mut made) {
        let mut out = Collector::default();
        out.extend(errors);
        match back(work, folder, record) {
            Ok(()) => {
                // What is not empty holds what others have put there.
                made.iter().rev().for_each(|folder| drop(fs::remove_dir(folder)));
                work.leave = leave;
            }
            // The record stays for the next run.
            Err(others) => out.extend(others),
        }
        return out.finish(()).map(|_| ());
    }
    let inner: BTreeSet<&str> = record.placed.iter().flat_map(|name| nested::folders_of(name)).collect();
    inner.into_iter().try_for_each(|inner| sync_folder(&folder.join(inner), options))?;
    sync_folder(folder, options)?;
    work.leave = leave;
    Ok(())
}

/// Does what is still to be done; the record can be thrown away then. Notes the folders that it makes.
pub(super) fn forward(
    work: &Work,
    folder: &Path,
    record: &Record,
    force: bool,
    folders: &mut Vec<PathBuf>,
) -> Result<(), Errors> {
    let (new, old) = (work.new_folder(), work.old_folder());
    let made = unless(fs::create_dir(&old), io::ErrorKind::AlreadyExists);
    made.map_err(|error| io_error(&old, "create it", &error))?;
    for name in &record.replaced {
        let (path, aside) = (folder.join(name), old.join(flat(name)));
        let is_new = record.placed.contains(name) && !is_there(&new.join(flat(name)));
        if let Some(path) = nested::in_the_way(folder, name) {
            return Err(appeared(&path).into());
        }
        if !is_new && is_there(&path) && !is_there(&aside) {
            // Someone has put another file there since.
            if !record.knows(name, &path) {
                return Err(lost(work));
            }
            fs::rename(&path, &aside)
                .map_err(|error| io_error(&path, "set this file of the old checkpoint aside", &error))?;
        }
    }
    for name in record.placed.iter().filter(|name| is_there(&new.join(flat(name)))) {
        let (path, made) = (folder.join(name), new.join(flat(name)));
        if !record.knows(name, &made) {
            return Err(lost(work));
        }
        nested::make_folders(folder, name, folders)?;
        put(&made, &path, force).map_err(|error| name_error(&path, &error))?;
    }
    Ok(())
}

/// Puts everything back, the old index last.
fn back(work: &Work, folder: &Path, record: &Record) -> Result<(), Errors> {
    let (new, old) = (work.new_folder(), work.old_folder());
    let fail =
        |path: &Path, error: &io::Error| Errors::from(io_error(path, "put the old checkpoint back", error));
    for name in record.placed.iter().rev().filter(|name| !is_there(&new.join(flat(name)))) {
        let path = folder.join(name);
        fs::rename(&path, new.join(flat(name))).map_err(|error| fail(&path, &error))?;
    }
    for name in record.replaced.iter().rev().filter(|name| is_there(&old.join(flat(name)))) {
        let path = folder.join(name);
        put(&old.join(flat(name)), &path, false).map_err(|error| fail(&path, &error))?;
    }
    Ok(())
}
