//! Replacing a folder in one step: the new one, with what else the old one holds, and the old one exchange their names.
//!
//! Other files of the folder go along as hard links, so that nothing is copied and each is in both folders until the old
//! one is removed. A folder cannot be in two; where there is one, the files are put in place one after the other.

use std::fs;
use std::io;
use std::path::Path;

use super::record::{Record, lost};
use super::system::{exchange, has_attributes, identity, io_error, is_there};
use super::work::{Leave, Work};
use super::{PublishOptions, sync_folder};
use crate::diag::Errors;

/// Publishes what is in `new/` by exchanging it with the folder; returns whether that was possible, else nothing is
/// changed.
pub(super) fn publish(
    work: &mut Work,
    folder: &Path,
    record: &Record,
    options: PublishOptions,
) -> Result<bool, Errors> {
    let new = work.new_folder();
    if work.is_inside(folder) || is_entered(folder) {
        return Ok(false);
    }
    let mut linked = Vec::new();
    let prepared = prepare(folder, &new, record, &mut linked);
    let Some(own) = prepared else {
        return undo(&linked, &new).map(|()| false);
    };
    let record = Record { exchanged: Some(own), ..record.clone() };
    sync_folder(&new, options)?;
    record.write(work, options)?;
    let leave = std::mem::replace(&mut work.leave, Leave::Everything);
    if exchange(&new, folder).is_err() {
        work.leave = leave;
        Record::remove(work).map_err(|error| io_error(folder, "publish into it", &error))?;
        return undo(&linked, &new).map(|()| false);
    }
    if let Some(parent) = folder.parent() {
        sync_folder(parent, options)?;
    }
    settle(work, folder, &record)?;
    work.leave = leave;
    Ok(true)
}

/// Makes the new folder hold all that is to stay; returns its identity, or nothing where that is not possible.
fn prepare(
    folder: &Path,
    new: &Path,
    record: &Record,
    linked: &mut Vec<std::ffi::OsString>,
) -> Option<(u64, u64)> {
    let (old_data, new_data) = (fs::metadata(folder).ok()?, fs::metadata(new).ok()?);
    if !is_alike(&old_data, &new_data) || has_attributes(folder) || has_attributes(new) {
        return None;
    }
    for entry in fs::read_dir(folder).ok()? {
        let entry = entry.ok()?;
        let name = entry.file_name();
        if record.replaced.iter().any(|replaced| **replaced == *name) {
            continue;
        }
        if entry.file_type().ok()?.is_dir() {
            return None;
        }
        fs::hard_link(entry.path(), new.join(&name)).ok()?;
        linked.push(name);
    }
    fs::set_permissions(new, old_data.permissions()).ok()?;
    identity(&new_data)
}

/// Removes the links again.
fn undo(linked: &[std::ffi::OsString], new: &Path) -> Result<(), Errors> {
    for name in linked {
        let path = new.join(name);
        fs::remove_file(&path).map_err(|error| io_error(&path, "remove this link", &error))?;
    }
    Ok(())
}

/// Returns whether the new folder has the owner of the old one; only the mode can be given to it.
#[cfg(unix)]
fn is_alike(old: &fs::Metadata, new: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (old.uid(), old.gid()) == (new.uid(), new.gid())
}

/// Folders are not exchanged here.
#[cfg(not(unix))]
fn is_alike(_old: &fs::Metadata, _new: &fs::Metadata) -> bool {
    false
}

/// Returns whether the program was started inside the folder: whoever did so would stand in the old one.
fn is_entered(folder: &Path) -> bool {
    std::env::current_dir().map_or(true, |current| current.starts_with(folder))
}

/// Finishes an exchange that an earlier run has begun; returns whether the folders had been exchanged.
pub(super) fn finish(work: &Work, folder: &Path, record: &Record, new: (u64, u64)) -> Result<bool, Errors> {
    let own = |path: &Path| fs::metadata(path).ok().as_ref().and_then(identity);
    if own(folder) == Some(new) {
        settle(work, folder, record)?;
        return Ok(true);
    }
    let made = work.new_folder();
    let fail = |error: io::Error| Errors::from(io_error(&made, "remove a link in it", &error));
    if own(&made) != Some(new) {
        return Err(lost(work));
    }
    // The old folder is in its place still; what that run has made may be of use, but not the links.
    for entry in fs::read_dir(&made).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if !record.placed.iter().any(|name| **name == *entry.file_name()) {
            fs::remove_file(entry.path()).map_err(fail)?;
        }
    }
    Ok(false)
}

/// Removes from the old folder, which is `new/` now, what is replaced and what is in the folder too; all else came after
/// the links were made and moves to the folder.
fn settle(work: &Work, folder: &Path, record: &Record) -> Result<(), Errors> {
    let old = work.new_folder();
    let fail = |error: io::Error| Errors::from(io_error(&old, "remove the folder that was replaced", &error));
    let entries = match fs::read_dir(&old) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(fail)?,
    };
    for entry in entries {
        let entry = entry.map_err(fail)?;
        let (path, target) = (entry.path(), folder.join(entry.file_name()));
        let named = |names: &[String]| names.iter().any(|name| **name == *entry.file_name());
        if named(&record.replaced) || named(&record.placed) || is_linked(&path, &target) {
            fs::remove_file(&path).map_err(fail)?;
        } else {
            fs::rename(&path, &target).map_err(fail)?;
        }
    }
    fs::remove_dir(&old).map_err(fail)
}

/// Returns whether both names are of one file, or of one link.
fn is_linked(one: &Path, other: &Path) -> bool {
    let own = |path: &Path| path.symlink_metadata().ok().as_ref().and_then(identity);
    is_there(other) && own(one).is_some_and(|one| Some(one) == own(other))
}
