//! Output files: made in a folder of their own, and seen under their names only when all of them are complete.
//!
//! # What is guaranteed
//! - A source is never written to, and without `--force` neither is anything else that is there.
//! - Whenever a run ends (an error, a signal, a kill, a full disk), the destination is what it was before or the whole new
//!   output. A file and a new folder get their names by one rename. A folder that is there is exchanged with one that holds
//!   the output and hard links to its other files (`exchange.rs`), so that at every moment a reader finds the old
//!   checkpoint or the new one.
//! - What a killed run leaves is one folder, `.NAME.qkvconv-work` (`work.rs`). The next run to that destination first finishes
//!   a publication that had begun and then removes what else is there. That of a run which still lives is locked: a
//!   second run to the same destination is refused.
//! - With `--sync` all of this holds for a power failure too, in that every file is on the disk before it gets its name.
//!
//! # Where it ends
//! - A folder is not exchanged, and its files are set aside and put in place one after the other (`in_place.rs`), where it
//!   or the output has subfolders, access lists or another owner, where it is a mount or the program's current folder, where its parent
//!   may not be written to, and on systems and file systems without an exchange (all but Linux; some network file
//!   systems). For these moments a reader finds no checkpoint in it; a run that is killed in them leaves it so until the
//!   next run to that destination finishes the work.
//! - An exchanged folder is another folder of the same name: who holds the old one open, or is in it, keeps the old one.
//! - A file system without locks cannot tell a run that lives from one that was killed: what is left there is refused, and
//!   a person has to remove it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::diag::{Collector, Diagnostic, Errors, PublishCode};
use crate::format::FileSet;
use crate::format::output::{Companion, Content, OutputFile, OutputLayout};
use crate::positioned::{Handle, read_exact_at, write_all_at};
use crate::shown::{escaped, is_unshowable};

mod destination;
mod exchange;
mod guard;
mod in_place;
mod kept;
mod nested;
mod record;
mod recover;
mod replaced;
mod room;
mod system;
mod work;

pub use destination::{Destination, PublishOptions};
pub use guard::{Existing, Guard, Pending};
use kept::Whole;
pub use kept::{Fingerprint, Kept};
use record::Record;
pub(super) use system::LARGER_FILES;
pub use system::io_error;
use system::{
    Stamp, appeared, existing_folder, is_there, keep_attributes, name_error, no_link, parent, put,
    sync_folder,
};
use work::{Leave, Work};

/// A file in the making.
#[derive(Debug)]
struct Staged {
    file: Handle,
    /// Where it lies until it is published.
    path: PathBuf,
    /// In bytes.
    size: u64,
    /// The path that it will have.
    target: PathBuf,
    /// What an earlier run recorded of it, where that has finished it.
    whole: Option<Whole>,
}

impl Staged {
    /// Gives the file its size and writes what stands around the data.
    fn fill(&self, output: &OutputFile) -> Result<(), Errors> {
        let write = |error: io::Error| Errors::from(io_error(&self.target, "write it", &error));
        let file = self.file.file().map_err(write)?;
        // ext4 writes a file out when it is closed that was ever emptied: only one that holds something is.
        if file.metadata().map_err(write)?.len() > 0 {
            file.set_len(0).map_err(write)?;
        }
        file.set_len(output.size).map_err(write)?;
        output.pieces.iter().try_for_each(|(at, bytes)| write_all_at(&file, *at, bytes)).map_err(write)
    }
}

/// What there is at the destination.
#[derive(Clone, Debug)]
enum Place {
    /// A file is to be made, or replaced.
    File,
    /// A folder is to be made.
    New,
    /// A folder is there; its path without links.
    Folder(PathBuf),
}

/// Output files in the making. Dropping it removes all that is temporary; [`Staging::publish`] makes it
/// final.
#[derive(Debug)]
pub struct Staging {
    /// The files with tensors.
    files: Vec<Staged>,
    /// Files beside those with tensors.
    companions: Vec<Staged>,
    index: Option<Staged>,
    /// Whether a reader opens the index and not the files.
    is_opened_by_index: bool,
    destination: Destination,
    place: Place,
    /// The older checkpoint's index, which beside the new files would make a mix.
    old_index: Option<String>,
    /// The older checkpoint's files that the new one does not replace.
    old_files: Vec<String>,
    options: PublishOptions,
    /// Why nothing of an earlier run was kept.
    refused: Option<&'static str>,
    work: Work,
}

impl Staging {
    /// Makes the temporary files at their full size, with everything around the data written.
    ///
    /// Where the destination is a single file, that file's own name is used. `sources` are the files that are being
    /// read. With a fingerprint, finished files stay when the run does not come to its end, and those that an earlier run
    /// with the same fingerprint has left are not made again: see [`Staging::check_kept`]. `set` tells which files of the
    /// destination a reader of the output would take for a part of it.
    ///
    /// # Errors
    /// Returns `publish/exists` for files that are there already without [`PublishOptions::force`],
    /// `publish/over-source` where a source would be replaced or removed, `publish/sharded` for several files
    /// and a destination of one, `publish/no-folder` for a missing parent, `publish/not-a-folder` for a file
    /// in the way, `publish/busy` where another run writes to the destination, and `publish/io` for what the system
    /// reports.
    pub fn create(
        destination: &Destination,
        layout: &OutputLayout,
        sources: &[PathBuf],
        options: PublishOptions,
        resume: Option<&Fingerprint>,
        set: Option<&FileSet<'_>>,
    ) -> Result<Staging, Errors> {
        if let Destination::File(path) = destination
            && (layout.files.len() != 1 || layout.index.is_some())
        {
            let message =
                format!("the output has {} files but the destination is a single one", layout.files.len());
            let help = "name a folder, or leave out `--max-shard-size`";
            return Err(Diagnostic::error(PublishCode::Sharded, message).file(path).help(help).into());
        }
        check_name(destination.path())?;
        let all = layout.files.iter().map(|file| &file.name);
        let mut all = all.chain(layout.companions.iter().map(|file| &file.name));
        all.try_for_each(|name| Path::new(name).iter().try_for_each(|part| check_name(Path::new(part))))?;
        let ((place, mut work), mut out) = (open(destination)?, Collector::default());
        let folder = match &place {
            Place::Folder(folder) => Some(folder.as_path()),
            Place::File | Place::New => None,
        };
        if recover::finish(&mut work, folder, options)? {
            // Seen where this run ends in an error, such as that there is a checkpoint now.
            let message = "an interrupted publication was finished first; the folder holds its checkpoint";
            out.push(Diagnostic::warning(PublishCode::Finished, message).file(destination.path()));
        }
        if resume.is_some() {
            work.leave = Leave::Finished;
        }
        let mut staging = Staging {
            files: Vec::new(),
            companions: Vec::new(),
            index: None,
            is_opened_by_index: layout.index.as_ref().is_some_and(|index| index.is_opened),
            destination: destination.clone(),
            place,
            old_index: None,
            old_files: Vec::new(),
            options,
            refused: None,
            work,
        };
        staging.check_replaced(layout, sources, set, out)?;
        match resume {
            Some(fingerprint) => staging.refused = kept::begin(&staging.work, fingerprint)?,
            None => staging.work.begin_anew()?,
        }
        staging.check_room(layout)?;
        for file in &layout.files {
            let staged = staging.stage(file)?;
            staging.files.push(staged);
        }
        if matches!(destination, Destination::Folder(_)) {
            for companion in &layout.companions {
                let staged = staging.stage_companion(companion)?;
                staging.companions.push(staged);
            }
        }
        if let Some(index) = &layout.index {
            let pieces = vec![(0, index.bytes.clone())];
            let (name, size) = (index.name.clone(), index.bytes.len() as u64);
            let file = OutputFile { name, pieces, size, checksums: Vec::new() };
            staging.index = Some(staging.stage(&file)?);
        }
        if resume.is_some() {
            let all = staging.files.iter().chain(&staging.companions).chain(&staging.index);
            kept::remove_others(&staging.work, &all.map(|staged| &*staged.path).collect::<Vec<_>>())?;
        }
        Ok(staging)
    }

    /// Returns the path that an output will have.
    fn target_of(&self, name: &str) -> PathBuf {
        match &self.destination {
            Destination::File(path) => path.clone(),
            Destination::Folder(path) => path.join(name),
        }
    }

    /// Returns the name that an output has in the work folder.
    fn staged_name(&self, name: &str) -> OsString {
        match &self.destination {
            Destination::File(path) => path.file_name().unwrap_or_default().to_owned(),
            Destination::Folder(_) => nested::flat(name).into(),
        }
    }

    /// Makes one file, or opens the one that an earlier run has finished.
    fn stage(&self, output: &OutputFile) -> Result<Staged, Errors> {
        let target = self.target_of(&output.name);
        let name = self.staged_name(&output.name);
        let path = self.work.new_folder().join(&name);
        let whole = kept::whole(&self.work, &name, output.size);
        let file = match whole {
            Some(_) => no_link().write(true).open(&path),
            // What is there may be a link to a file of the destination.
            None if is_there(&path) => fs::remove_file(&path).and_then(|()| create_new(&path)),
            None => create_new(&path),
        };
        let file = file.and_then(|file| Handle::new(&path, file, true));
        let file = file.map_err(|error| io_error(&target, "create it", &error))?;
        let staged = Staged { file, path, size: output.size, target, whole };
        if staged.whole.is_none() {
            staged.fill(output)?;
        }
        Ok(staged)
    }

    /// Makes a file beside those with tensors.
    fn stage_companion(&self, companion: &Companion) -> Result<Staged, Errors> {
        let name = companion.name.clone();
        let file =
            |pieces: Vec<(u64, Vec<u8>)>, size| OutputFile { name, pieces, size, checksums: Vec::new() };
        match &companion.content {
            Content::Bytes(bytes) => self.stage(&file(vec![(0, bytes.clone())], bytes.len() as u64)),
            Content::Copy(from, most) => {
                let mut staged = self.stage(&file(Vec::new(), 0))?;
                let copied = staged.file.file().and_then(|file| system::copy(from, &file, *most));
                staged.size = copied.map_err(|error| io_error(from, "carry it over", &error))?;
                Ok(staged)
            }
        }
    }

    /// Writes bytes `offset` bytes into a file, counted as in [`Staging::create`]; any number of threads may
    /// do so.
    ///
    /// # Errors
    /// Returns what the system reports, and [`io::ErrorKind::InvalidInput`] for a place outside the file.
    pub fn write_all_at(&self, file: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let staged = self.files.get(file);
        let inside =
            |staged: &&Staged| offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= staged.size);
        let Some(staged) = staged.filter(inside) else {
            let message = format!("{} bytes at {offset} lie outside file {file} of the output", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        write_all_at(&*staged.file.file()?, offset, bytes)
    }

    /// Reads bytes of a file back, counted as in [`Staging::write_all_at`].
    pub(super) fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let staged = self.files.get(file).ok_or(io::ErrorKind::InvalidInput)?;
        read_exact_at(&*staged.file.file()?, offset, buffer)
    }

    /// Returns the path that a file will have.
    pub(super) fn target(&self, file: usize) -> &Path {
        self.files.get(file).map_or(self.destination.path(), |staged| &staged.target)
    }

    /// Writes the index anew, with the checksums in it.
    pub(super) fn write_index(&self, bytes: &[u8]) -> Result<(), Errors> {
        let Some(staged) = &self.index else { return Ok(()) };
        let written = staged.file.file().and_then(|file| write_all_at(&file, 0, bytes));
        written.map_err(|error| io_error(&staged.target, "write it", &error).into())
    }

    /// Returns the temporary paths of what a reader opens, for reading it back before it is published: the files, or the
    /// index that leads to them.
    pub fn temporary_paths(&self) -> Vec<PathBuf> {
        let index = self.index.iter().filter(|_| self.is_opened_by_index);
        let files = self.files.iter().filter(|_| !self.is_opened_by_index);
        index.chain(files).map(|staged| system::named(&staged.path)).collect()
    }

    /// Throws everything away, also what [`Staging::finished`] has recorded.
    pub fn discard(mut self) {
        self.work.leave = Leave::Nothing;
    }

    /// Gives the files their names and returns these, the index last.
    ///
    /// # Errors
    /// Returns `publish/exists` for a file that appeared in the meantime, without [`PublishOptions::force`],
    /// and `publish/io` for what the system reports. The destination is what it was before then.
    pub fn publish(mut self) -> Result<Vec<PathBuf>, Errors> {
        if self.options.sync {
            for staged in self.files.iter().chain(&self.companions).chain(&self.index) {
                let synced = staged.file.file().and_then(|file| file.sync_all());
                synced.map_err(|error| io_error(&staged.target, "write it to the disk", &error))?;
            }
            sync_folder(&self.work.new_folder(), self.options)?;
        }
        let targets: Vec<PathBuf> =
            self.files.iter().chain(&self.index).map(|staged| staged.target.clone()).collect();
        // Closed: Windows renames no folder with open files in it.
        let files = self.files.drain(..).chain(self.companions.drain(..)).chain(self.index.take());
        let mut placed: Vec<(PathBuf, PathBuf)> = files.map(|staged| (staged.path, staged.target)).collect();
        if self.options.force {
            placed.iter().for_each(|(path, target)| keep_attributes(path, target));
        }
        let path = self.destination.path().to_owned();
        match self.place.clone() {
            Place::File => self.put_one(&placed, &parent(&path))?,
            Place::New => {
                self.nest(&mut placed, &path)?;
                // An empty folder that appeared in the meantime is replaced on Unix.
                let renamed = fs::rename(self.work.new_folder(), &path);
                renamed.map_err(|error| name_error(&path, &error))?;
                sync_folder(&parent(&path), self.options)?;
            }
            Place::Folder(folder) => self.publish_into(&folder, &placed)?,
        }
        self.work.leave = Leave::Nothing;
        Ok(targets)
    }

    /// Gives files their folders in the new folder, which becomes the destination.
    fn nest(&self, placed: &mut [(PathBuf, PathBuf)], folder: &Path) -> Result<(), Errors> {
        let new = self.work.new_folder();
        let mut made = Vec::new();
        for (path, target) in placed {
            let name = name_in(folder, target);
            if nested::is_nested(&name) {
                nested::make_folders(&new, &name, &mut made)?;
                let nested = new.join(&name);
                fs::rename(&*path, &nested).map_err(|error| name_error(target, &error))?;
                *path = nested;
            }
        }
        made.iter().chain(made.first().map(|_| &new)).try_for_each(|folder| sync_folder(folder, self.options))
    }

    /// Publishes by a single rename.
    fn put_one(&self, placed: &[(PathBuf, PathBuf)], folder: &Path) -> Result<(), Errors> {
        for (path, target) in placed {
            put(path, target, self.options.force).map_err(|error| name_error(target, &error))?;
        }
        sync_folder(folder, self.options)
    }

    /// Publishes into a folder that was there before.
    fn publish_into(&mut self, folder: &Path, placed: &[(PathBuf, PathBuf)]) -> Result<(), Errors> {
        let old: Vec<String> = self.old_index.iter().chain(&self.old_files).cloned().collect();
        let base = self.destination.path();
        let placed_names: Vec<String> = placed.iter().map(|(_, target)| name_in(base, target)).collect();
        let is_nested = placed_names.iter().chain(&old).any(|name| nested::is_nested(name));
        if placed.len() == 1 && old.is_empty() && !is_nested {
            return self.put_one(placed, folder);
        }
        let mut replaced = old;
        for (name, (_, target)) in placed_names.iter().zip(placed) {
            let Ok(there) = folder.join(name).symlink_metadata() else { continue };
            if there.is_dir() || !self.options.force && !replaced.contains(name) {
                return Err(appeared(target).into());
            }
            if !replaced.contains(name) {
                replaced.push(name.clone());
            }
        }
        let new = self.work.new_folder();
        let there = replaced.iter().map(|name| (name, folder.join(name)));
        let made = placed_names.iter().map(|name| (name, new.join(nested::flat(name))));
        let stamped = there.chain(made).filter_map(|(name, path)| Some((name.clone(), Stamp::at(&path)?)));
        let stamps = stamped.collect();
        let record = Record { replaced, placed: placed_names, exchanged: None, stamps };
        if is_nested || !exchange::publish(&mut self.work, folder, &record, self.options)? {
            in_place::publish(&mut self.work, folder, &record, self.options)?;
        }
        Ok(())
    }
}

/// Refuses to make a file whose name a terminal would take for more than a name.
fn check_name(path: &Path) -> Result<(), Errors> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !name.chars().any(is_unshowable) {
        return Ok(());
    }
    let message = format!("the name `{}` has control characters, so it is not written", escaped(&name));
    Err(Diagnostic::error(PublishCode::Name, message).help("write to a file of another name").into())
}

/// Returns the name of an output in its folder, `FOLDER/NAME` where it lies in one there.
fn name_in(folder: &Path, target: &Path) -> String {
    let parts = target.strip_prefix(folder).unwrap_or(target).iter();
    parts.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}

fn create_new(path: &Path) -> io::Result<File> {
    no_link().write(true).create_new(true).open(path)
}

/// Looks at the destination, and opens the folder to work in.
fn open(destination: &Destination) -> Result<(Place, Work), Errors> {
    match destination {
        Destination::File(path) => {
            existing_folder(&parent(path))?;
            Ok((Place::File, Work::beside(path)?))
        }
        Destination::Folder(path) if path.is_dir() => {
            let real = path.canonicalize().map_err(|error| io_error(path, "look at the folder", &error))?;
            let work = Work::of_folder(&real)?;
            Ok((Place::Folder(real), work))
        }
        Destination::Folder(path) => {
            if is_there(path) {
                let error =
                    Diagnostic::error(PublishCode::NotAFolder, "it is there already and is no folder");
                let help = "name a folder, or a file that ends in `.safetensors`";
                return Err(error.file(path).help(help).into());
            }
            existing_folder(&parent(path))?;
            Ok((Place::New, Work::beside(path)?))
        }
    }
}

impl super::WriteAt for Staging {
    fn write_all_at(&self, file: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Staging::write_all_at(self, file, offset, bytes)
    }
}

#[cfg(test)]
mod tests;
