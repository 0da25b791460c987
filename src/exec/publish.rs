//! Output files: filled under temporary names, and seen under their own only when all of them are complete.
//!
//! A run that fails or is dropped leaves what was there before. Shards are renamed before the index that
//! names them, so that a killed run leaves no index of a mix.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile, TempDir, TempPath};

use crate::diag::{Collector, Diagnostic, Errors};
use crate::format::output::{OutputFile, OutputLayout};
use crate::format::shards::{index_name, named_shards, single_name};
use crate::format::{Format, shown};
use crate::positioned::{read_exact_at, write_all_at};

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
        let ends_in_separator =
            dst.as_os_str().as_encoded_bytes().last().is_some_and(|&b| b == b'/' || b == b'\\');
        if Format::of_ending(dst).is_some() && !dst.is_dir() && !ends_in_separator {
            Destination::File(dst.to_owned())
        } else {
            Destination::Folder(dst.to_owned())
        }
    }

    /// Returns the path that the user named.
    pub fn path(&self) -> &Path {
        match self {
            Destination::File(path) | Destination::Folder(path) => path,
        }
    }
}

/// How to publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishOptions {
    /// Whether to replace what is there (`--force`).
    pub force: bool,
    /// Whether to wait until the files are on the disk, so that they survive a power failure.
    pub sync: bool,
}

/// A file under its temporary name; dropping it removes it.
#[derive(Debug)]
struct Staged {
    file: NamedTempFile,
    /// In bytes.
    size: u64,
    /// The path that it will have.
    target: PathBuf,
}

/// Output files in the making. Dropping it removes all that is temporary; [`Staging::publish`] makes it
/// final.
#[derive(Debug)]
pub struct Staging {
    files: Vec<Staged>,
    /// Files beside those with tensors.
    companions: Vec<Staged>,
    index: Option<Staged>,
    /// The folder that receives the files, or the parent of a new one.
    folder: PathBuf,
    /// The temporary folder and the path that it will have, where the destination is a new folder.
    new_folder: Option<(TempDir, PathBuf)>,
    /// An older index that must go before any file is replaced.
    old_index: Option<PathBuf>,
    /// Older files that must go once the new ones are there.
    old_files: Vec<PathBuf>,
    options: PublishOptions,
}

impl Staging {
    /// Makes the temporary files at their full size, with everything around the data written.
    ///
    /// Where the destination is a single file, that file's own name is used. `sources` are the files that are being
    /// read.
    ///
    /// # Errors
    /// Returns `publish/exists` for files that are there already without [`PublishOptions::force`],
    /// `publish/over-source` where a source would be replaced or removed, `publish/sharded` for several files
    /// and a destination of one, `publish/no-folder` for a missing parent, `publish/not-a-folder` for a file
    /// in the way, and `publish/io` for what the system reports.
    pub fn create(
        destination: &Destination,
        layout: &OutputLayout,
        sources: &[PathBuf],
        options: PublishOptions,
    ) -> Result<Staging, Errors> {
        let (files, index) = (&layout.files, &layout.index);
        let mut staging = match destination {
            Destination::File(path) => {
                if files.len() != 1 || index.is_some() {
                    let message =
                        format!("the output has {} files but the destination is a single one", files.len());
                    let help = "name a folder, or leave out `--max-shard-size`";
                    return Err(Diagnostic::error("publish/sharded", message).file(path).help(help).into());
                }
                Staging::empty(existing_folder(&parent(path))?, options)
            }
            Destination::Folder(path) if path.is_dir() => Staging::empty(path.clone(), options),
            Destination::Folder(path) => Staging::in_new_folder(path, options)?,
        };
        let targets: Vec<PathBuf> = match destination {
            Destination::File(path) => vec![path.clone()],
            Destination::Folder(path) => files.iter().map(|file| path.join(&file.name)).collect(),
        };
        let index = index.as_ref().map(|index| (destination.path().join(&index.name), &index.bytes));
        let companions: Vec<PathBuf> = match destination {
            Destination::File(_) => Vec::new(),
            Destination::Folder(path) => layout.companions.iter().map(|file| path.join(&file.name)).collect(),
        };
        let index_path = index.iter().map(|(path, _)| path);
        let outputs: Vec<&Path> =
            targets.iter().chain(&companions).chain(index_path).map(PathBuf::as_path).collect();
        if staging.new_folder.is_none() {
            if matches!(destination, Destination::Folder(_)) {
                staging.find_old(destination.path(), layout.format, &outputs);
            }
            staging.check_replaced(destination.path(), &outputs, sources)?;
        }
        for (target, file) in targets.into_iter().zip(files) {
            let staged = staging.stage_output(target, file)?;
            staging.files.push(staged);
        }
        for (target, file) in companions.into_iter().zip(&layout.companions) {
            let staged = staging.stage_output(target, file)?;
            staging.companions.push(staged);
        }
        if let Some((target, text)) = index {
            staging.index = Some(staging.stage(target, text.len() as u64, [(0, text.as_slice())])?);
        }
        Ok(staging)
    }

    fn empty(folder: PathBuf, options: PublishOptions) -> Staging {
        let (files, companions, old_files) = (Vec::new(), Vec::new(), Vec::new());
        Staging {
            files,
            companions,
            index: None,
            folder,
            new_folder: None,
            old_index: None,
            old_files,
            options,
        }
    }

    fn in_new_folder(path: &Path, options: PublishOptions) -> Result<Staging, Errors> {
        if path.symlink_metadata().is_ok() {
            let diagnostic =
                Diagnostic::error("publish/not-a-folder", "it is there already and is not a folder");
            let help = "name a folder, or a file that ends in `.safetensors`";
            return Err(diagnostic.file(path).help(help).into());
        }
        let folder = existing_folder(&parent(path))?;
        let temporary = builder(&prefix(path), 0o777)
            .tempdir_in(&folder)
            .map_err(|error| io_error(&folder, "create a folder in it", &error))?;
        let mut staging = Staging::empty(folder, options);
        staging.new_folder = Some((temporary, path.to_owned()));
        Ok(staging)
    }

    /// Finds the older checkpoint of a folder, which beside the new one would make a mix.
    fn find_old(&mut self, folder: &Path, format: Format, outputs: &[&Path]) {
        let mut old = BTreeSet::new();
        let index = folder.join(index_name(format));
        if is_there(&index) {
            // Sound names only, and plain ones: this is about removing files.
            let names = named_shards(&index).into_iter();
            let ending = Path::new(single_name(format)).extension();
            old.extend(names.filter(|name| !name.contains('/') && Path::new(name).extension() == ending));
            self.old_index = Some(index);
        }
        old.insert(single_name(format).to_owned());
        let paths = old.into_iter().map(|name| folder.join(name));
        self.old_files = paths.filter(|path| is_there(path) && !outputs.contains(&path.as_path())).collect();
    }

    /// Refuses to touch what is not to be touched.
    fn check_replaced(
        &self,
        destination: &Path,
        outputs: &[&Path],
        sources: &[PathBuf],
    ) -> Result<(), Errors> {
        let mut out = Collector::default();
        let touched: BTreeSet<&Path> = outputs
            .iter()
            .copied()
            .chain(self.old_index.as_deref())
            .chain(self.old_files.iter().map(PathBuf::as_path))
            .filter(|path| is_there(path))
            .collect();
        for &path in &touched {
            if let Some(source) = sources.iter().find(|source| is_same(path, source)) {
                let message = if path == source {
                    "a source file would be replaced or removed".to_owned()
                } else {
                    format!("it is the source file `{}` under another name", shown(&source.to_string_lossy()))
                };
                let diagnostic = Diagnostic::error("publish/over-source", message).file(path);
                out.push(diagnostic.help("write to another folder"));
            } else if path.is_dir() {
                out.push(Diagnostic::error("publish/exists", "a folder is in the way").file(path));
            } else if !self.options.force {
                let name = shown(&path.file_name().unwrap_or_default().to_string_lossy());
                let message = if outputs.contains(&path) {
                    format!("`{name}` exists already")
                } else {
                    format!("`{name}` exists already, of a checkpoint that would mix with the new one")
                };
                let diagnostic = Diagnostic::error("publish/exists", message).file(path);
                out.push(diagnostic.help("give `--force` to replace it, or write to another place"));
            }
        }
        if let Some(source) = sources.iter().find(|source| source.is_dir() && is_same(destination, source)) {
            let diagnostic = Diagnostic::error("publish/over-source", "the destination is the source folder");
            out.push(diagnostic.file(source).help("write to another folder"));
        }
        out.finish(()).map(|_| ())
    }

    fn stage_output(&self, target: PathBuf, file: &OutputFile) -> Result<Staged, Errors> {
        let pieces = file.pieces.iter().map(|(offset, bytes)| (*offset, bytes.as_slice()));
        self.stage(target, file.size, pieces)
    }

    /// Makes one temporary file.
    fn stage<'b>(
        &self,
        target: PathBuf,
        size: u64,
        pieces: impl IntoIterator<Item = (u64, &'b [u8])>,
    ) -> Result<Staged, Errors> {
        let fail = |error: io::Error| Errors::from(io_error(&target, "create it", &error));
        let file = if let Some((folder, _)) = &self.new_folder {
            let path = folder.path().join(target.file_name().unwrap_or_default());
            let file = File::create_new(&path).map_err(fail)?;
            NamedTempFile::from_parts(file, TempPath::try_from_path(path).map_err(fail)?)
        } else {
            builder(&prefix(&target), 0o666).tempfile_in(&self.folder).map_err(fail)?
        };
        let write = |error: io::Error| Errors::from(io_error(&target, "write it", &error));
        file.as_file().set_len(size).map_err(write)?;
        for (offset, bytes) in pieces {
            write_all_at(file.as_file(), offset, bytes).map_err(write)?;
        }
        Ok(Staged { file, size, target })
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
        write_all_at(staged.file.as_file(), offset, bytes)
    }

    /// Reads bytes of a file back, counted as in [`Staging::write_all_at`].
    pub(super) fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let staged = self.files.get(file).ok_or(io::ErrorKind::InvalidInput)?;
        read_exact_at(staged.file.as_file(), offset, buffer)
    }

    /// Returns the path that a file will have.
    pub(super) fn target(&self, file: usize) -> &Path {
        self.files.get(file).map_or(&self.folder, |staged| &staged.target)
    }

    /// Returns the files' temporary paths, for reading them back before they are published.
    pub fn temporary_paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(|staged| staged.file.path().to_owned()).collect()
    }

    /// Gives the files their names and returns these, the index last.
    ///
    /// # Errors
    /// Returns `publish/exists` for a file that appeared in the meantime, without [`PublishOptions::force`],
    /// and `publish/io` for what the system reports. What this run made is removed then.
    pub fn publish(mut self) -> Result<Vec<PathBuf>, Errors> {
        if self.options.sync {
            for staged in self.files.iter().chain(&self.companions).chain(&self.index) {
                let synced = staged.file.as_file().sync_all();
                synced.map_err(|error| io_error(&staged.target, "write it to the disk", &error))?;
            }
        }
        let targets: Vec<PathBuf> =
            self.files.iter().chain(&self.index).map(|staged| staged.target.clone()).collect();
        if let Some((temporary, path)) = self.new_folder.take() {
            self.publish_folder(temporary, &path)?;
            return Ok(targets);
        }
        if let Some(index) = &self.old_index {
            remove(index)?;
            sync_folder(&self.folder, self.options)?;
        }
        let mut done = Vec::new();
        let published = self.publish_files(&mut done);
        if published.is_err() {
            // A part of a checkpoint is of no use; the error says why it is not there.
            for path in done {
                let _ = fs::remove_file(path);
            }
        }
        published.map(|()| targets)
    }

    /// Renames the temporary folder; an empty folder that appeared in the meantime is replaced on Unix.
    fn publish_folder(&mut self, mut temporary: TempDir, path: &Path) -> Result<(), Errors> {
        sync_folder(temporary.path(), self.options)?;
        // Windows renames no folder with open files in it.
        for staged in self.files.drain(..).chain(self.companions.drain(..)).chain(self.index.take()) {
            let kept = staged.file.into_temp_path().keep();
            kept.map_err(|error| io_error(&staged.target, "keep it", &error.error))?;
        }
        fs::rename(temporary.path(), path).map_err(|error| name_error(path, &error))?;
        temporary.disable_cleanup(true);
        sync_folder(&self.folder, self.options)
    }

    fn publish_files(&mut self, done: &mut Vec<PathBuf>) -> Result<(), Errors> {
        for staged in self.files.drain(..).chain(self.companions.drain(..)) {
            persist(staged, self.options, done)?;
        }
        if let Some(index) = self.index.take() {
            sync_folder(&self.folder, self.options)?;
            persist(index, self.options, done)?;
        }
        // From here on the new checkpoint is whole and stays, even where an old file does not go.
        done.clear();
        sync_folder(&self.folder, self.options)?;
        for path in &self.old_files {
            remove(path)?;
        }
        sync_folder(&self.folder, self.options)
    }
}

impl super::WriteAt for Staging {
    fn write_all_at(&self, file: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Staging::write_all_at(self, file, offset, bytes)
    }
}

/// Describes a failure of the file system while writing; `action` completes "cannot …".
pub fn io_error(path: &Path, action: &str, error: &io::Error) -> Diagnostic {
    let diagnostic = Diagnostic::error("publish/io", format!("cannot {action}: {error}")).file(path);
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            diagnostic.help("free some space, or write to another disk")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            diagnostic.help("write to a folder that you may write to")
        }
        _ => diagnostic,
    }
}

fn persist(staged: Staged, options: PublishOptions, done: &mut Vec<PathBuf>) -> Result<(), Errors> {
    let (file, path) = (staged.file, staged.target);
    let result = if options.force { file.persist(&path) } else { file.persist_noclobber(&path) };
    result.map_err(|error| name_error(&path, &error.error))?;
    done.push(path);
    Ok(())
}

/// Describes why a file or folder did not get its name.
fn name_error(path: &Path, error: &io::Error) -> Diagnostic {
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory => {
            let diagnostic = Diagnostic::error("publish/exists", "it appeared while the conversion ran");
            diagnostic.file(path).help("give `--force` to replace it, or write to another place")
        }
        _ => io_error(path, "rename the finished output to it", error),
    }
}

fn remove(path: &Path) -> Result<(), Errors> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error(path, "remove this file of the old checkpoint", &error).into())
        }
        _ => Ok(()),
    }
}

/// Returns the folder that holds a path.
fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        // Only `/` and the like have none, and they exist.
        parent => parent.unwrap_or(path).to_owned(),
    }
}

fn existing_folder(folder: &Path) -> Result<PathBuf, Errors> {
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(folder.to_owned()),
        Ok(_) => Err(Diagnostic::error("publish/not-a-folder", "it is not a folder").file(folder).into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let diagnostic =
                Diagnostic::error("publish/no-folder", "the folder for the output does not exist");
            Err(diagnostic.file(folder).help("create it first").into())
        }
        Err(error) => Err(io_error(folder, "look at the folder", &error).into()),
    }
}

/// Returns how the temporary name for a path begins; of a long name only a part, for names have a limit.
fn prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name: String = name.chars().take(50).collect();
    format!(".{name}.qkvconv-")
}

/// Starts a temporary file or folder with the permissions of any new one; the crate's default would let only
/// the owner read it.
fn builder(prefix: &str, mode: u32) -> Builder<'_, 'static> {
    let mut builder = Builder::new();
    builder.prefix(prefix).suffix(".tmp");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    builder
}

/// Returns whether something has that name, be it a dangling link.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Returns whether two paths lead to one file, through links of any kind.
#[cfg(unix)]
fn is_same(first: &Path, second: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    identity(first).is_some_and(|first| Some(first) == identity(second))
}

/// Returns whether two paths lead to one file, through symbolic links.
#[cfg(not(unix))]
fn is_same(first: &Path, second: &Path) -> bool {
    first.canonicalize().is_ok_and(|first| second.canonicalize().is_ok_and(|second| first == second))
}

/// Waits until the names in a folder are on the disk, where that is asked for.
fn sync_folder(folder: &Path, options: PublishOptions) -> Result<(), Errors> {
    // Windows opens no folder as a file, and writes names through its journal.
    if !options.sync || cfg!(windows) {
        return Ok(());
    }
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| io_error(folder, "write the folder to the disk", &error).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::output::OutputIndex;

    const FORCE: PublishOptions = PublishOptions { force: true, sync: true };
    const PLAIN: PublishOptions = PublishOptions { force: false, sync: false };
    const INDEX_NAME: &str = "model.safetensors.index.json";
    const SINGLE_NAME: &str = "model.safetensors";
    const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

    fn layout(files: &[(&str, u64, &[u8])], index: Option<&[u8]>) -> OutputLayout {
        let file = |&(name, size, head): &(&str, u64, &[u8])| OutputFile {
            name: name.to_owned(),
            pieces: vec![(0, head.to_vec())],
            size,
            checksums: Vec::new(),
        };
        let index = index.map(|text| OutputIndex { name: INDEX_NAME.to_owned(), bytes: text.to_vec() });
        let files = files.iter().map(file).collect();
        OutputLayout {
            format: Format::Safetensors,
            files,
            index,
            placements: Vec::new(),
            companions: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn one() -> OutputLayout {
        layout(&[(SINGLE_NAME, 6, b"head")], None)
    }

    fn two() -> OutputLayout {
        layout(&[(SHARDS[0], 2, b"1"), (SHARDS[1], 2, b"2")], Some(br#"{"weight_map":{"a":"new"}}"#))
    }

    /// Returns the names in a folder, sorted.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    fn codes<T>(result: Result<T, Errors>) -> Vec<&'static str> {
        let errors = result.err().expect("refused");
        errors.diagnostics().iter().map(|diagnostic| diagnostic.code).collect()
    }

    fn old_sharded(folder: &Path) {
        let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"old.safetensors",
            "c":"../outside.safetensors","d":"config.json"}}"#;
        fs::write(folder.join(INDEX_NAME), index).expect("writes");
        for name in
            ["model-00001-of-00002.safetensors", "old.safetensors", "config.json", "../outside.safetensors"]
        {
            fs::write(folder.join(name), "old").expect("writes");
        }
    }

    #[test]
    fn the_ending_tells_a_file_from_a_folder() {
        let base = tempfile::tempdir().expect("folder");
        let path = base.path().join("a.safetensors");
        assert_eq!(Destination::resolve(&path), Destination::File(path.clone()));
        assert!(matches!(Destination::resolve(Path::new("out/")), Destination::Folder(_)));
        assert!(matches!(Destination::resolve(Path::new("a.safetensors/")), Destination::Folder(_)));
        fs::create_dir(&path).expect("folder");
        assert_eq!(Destination::resolve(&path), Destination::Folder(path));
    }

    #[test]
    fn a_file_appears_when_it_is_published() {
        let base = tempfile::tempdir().expect("folder");
        let path = base.path().join("a.safetensors");
        let destination = Destination::resolve(&path);
        drop(Staging::create(&destination, &one(), &[], PLAIN).expect("stages"));
        assert!(names(base.path()).is_empty());

        let staging = Staging::create(&destination, &one(), &[], PLAIN).expect("stages");
        assert!(names(base.path())[0].starts_with(".a.safetensors.qkvconv-"));
        assert_eq!(fs::read(&staging.temporary_paths()[0]).expect("reads"), b"head\0\0");
        std::thread::scope(|scope| {
            for at in [4_u64, 5] {
                let staging = &staging;
                scope.spawn(move || staging.write_all_at(0, at, &[at as u8]).expect("writes"));
            }
        });
        for (file, offset) in [(0, 6), (0, u64::MAX), (1, 0)] {
            let error = staging.write_all_at(file, offset, b"x").expect_err("outside");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(staging.publish(), Ok(vec![path.clone()]));
        assert_eq!(
            (fs::read(&path).expect("reads").as_slice(), names(base.path()).len()),
            (&b"head\x04\x05"[..], 1)
        );

        let errors = Staging::create(&destination, &one(), &[], PLAIN).expect_err("exists");
        assert!(format!("{errors:?}").contains("--force") && errors.to_string().contains("`a.safetensors`"));
        Staging::create(&destination, &one(), &[], FORCE).expect("stages").publish().expect("replaces");
        assert_eq!(fs::read(&path).expect("reads"), b"head\0\0");
        assert_eq!(codes(Staging::create(&destination, &two(), &[], FORCE)), ["publish/sharded"]);
    }

    #[test]
    fn a_new_folder_appears_whole() {
        let base = tempfile::tempdir().expect("folder");
        let path = base.path().join("out");
        let destination = Destination::resolve(&path);
        let staging = Staging::create(&destination, &two(), &[], PLAIN).expect("stages");
        assert!(!path.exists());
        drop(staging);
        assert!(names(base.path()).is_empty());
        let paths =
            Staging::create(&destination, &two(), &[], FORCE).expect("stages").publish().expect("works");
        assert_eq!(paths[2], path.join(INDEX_NAME));
        assert_eq!((names(&path).len(), names(base.path())), (3, vec!["out".to_owned()]));

        let race = Destination::resolve(&base.path().join("race"));
        let staging = Staging::create(&race, &one(), &[], PLAIN).expect("stages");
        fs::create_dir(race.path()).expect("folder");
        fs::write(race.path().join("theirs"), "").expect("writes");
        assert_eq!(codes(staging.publish()), ["publish/exists"]);
        assert_eq!(names(base.path()), ["out", "race"]);
    }

    #[cfg(unix)]
    #[test]
    fn files_and_folders_have_the_usual_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().expect("folder");
        let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode();
        let (plain_file, plain_folder) = (base.path().join("f"), base.path().join("d"));
        fs::write(&plain_file, "").expect("writes");
        fs::create_dir(&plain_folder).expect("folder");
        for folder in ["d", "new"] {
            let path = base.path().join(folder);
            let staging = Staging::create(&Destination::resolve(&path), &one(), &[], PLAIN).expect("stages");
            let published = staging.publish().expect("works");
            assert_eq!((mode(&published[0]), mode(&path)), (mode(&plain_file), mode(&plain_folder)));
        }
    }

    #[test]
    fn an_old_checkpoint_is_replaced_whole_or_not_at_all() {
        let base = tempfile::tempdir().expect("folder");
        let path = base.path().join("out");
        fs::create_dir(&path).expect("folder");
        old_sharded(&path);
        let destination = Destination::resolve(&path);
        // Neither file is an output of this run, but beside it they would be a mix.
        let refused = Staging::create(&destination, &one(), &[], PLAIN);
        assert_eq!(codes(refused), ["publish/exists"; 3]);
        assert_eq!(codes(Staging::create(&destination, &two(), &[], PLAIN)), ["publish/exists"; 3]);

        drop(Staging::create(&destination, &one(), &[], FORCE).expect("stages"));
        assert_eq!(names(&path).len(), 4);
        Staging::create(&destination, &two(), &[], FORCE).expect("stages").publish().expect("works");
        assert_eq!(names(&path), ["config.json", SHARDS[0], SHARDS[1], INDEX_NAME]);
        assert_eq!(fs::read(path.join(SHARDS[0])).expect("reads"), b"1\0");

        old_sharded(&path);
        Staging::create(&destination, &one(), &[], FORCE).expect("stages").publish().expect("works");
        assert_eq!(names(&path), ["config.json", "model-00002-of-00002.safetensors", SINGLE_NAME]);
        fs::remove_file(path.join("model-00002-of-00002.safetensors")).expect("removes");
        Staging::create(&destination, &two(), &[], FORCE).expect("stages").publish().expect("works");
        assert_eq!(names(&path), ["config.json", SHARDS[0], SHARDS[1], INDEX_NAME]);
        assert!(base.path().join("outside.safetensors").exists());
    }

    #[test]
    fn a_file_that_appears_in_the_meantime_is_kept() {
        let base = tempfile::tempdir().expect("folder");
        let destination = Destination::resolve(base.path());
        let staging = Staging::create(&destination, &two(), &[], PLAIN).expect("stages");
        fs::write(base.path().join(SHARDS[1]), "theirs").expect("writes");
        assert_eq!(codes(staging.publish()), ["publish/exists"]);
        assert_eq!(names(base.path()), [SHARDS[1]]);
        assert_eq!(fs::read(base.path().join(SHARDS[1])).expect("reads"), b"theirs");
    }

    #[test]
    fn a_source_is_never_replaced() {
        let base = tempfile::tempdir().expect("folder");
        let source = base.path().join("source.safetensors");
        fs::write(&source, "source").expect("writes");
        let refused = |path: &Path, sources: &[PathBuf]| {
            assert_eq!(
                codes(Staging::create(&Destination::resolve(path), &one(), sources, FORCE)),
                ["publish/over-source"]
            );
        };
        refused(&source, std::slice::from_ref(&source));
        let hard = base.path().join("hard.safetensors");
        fs::hard_link(&source, &hard).expect("links");
        refused(&hard, std::slice::from_ref(&source));
        #[cfg(unix)]
        {
            let soft = base.path().join("soft.safetensors");
            std::os::unix::fs::symlink(&source, &soft).expect("links");
            refused(&soft, std::slice::from_ref(&source));
        }
        let folder = base.path().join("folder");
        fs::create_dir(&folder).expect("folder");
        fs::hard_link(&source, folder.join(SINGLE_NAME)).expect("links");
        refused(&folder, std::slice::from_ref(&source));

        // The outputs have other names, but the old index and its shards would go.
        let sharded = base.path().join("sharded");
        fs::create_dir(&sharded).expect("folder");
        old_sharded(&sharded);
        refused(&sharded, &[sharded.join("old.safetensors")]);
        refused(&sharded, std::slice::from_ref(&sharded));
        assert_eq!(names(&sharded).len(), 4);
    }

    #[test]
    fn what_cannot_be_written_is_told_before_anything_is() {
        let base = tempfile::tempdir().expect("folder");
        let stage = |name: &str| {
            codes(Staging::create(&Destination::resolve(&base.path().join(name)), &one(), &[], PLAIN))
        };
        assert_eq!(stage("no/a.safetensors"), ["publish/no-folder"]);
        assert_eq!(stage("no/out"), ["publish/no-folder"]);
        fs::write(base.path().join("file"), "").expect("writes");
        assert_eq!(stage("file"), ["publish/not-a-folder"]);
        assert_eq!(stage("file/out"), ["publish/not-a-folder"]);
        let full = io_error(Path::new("a"), "write it", &io::ErrorKind::StorageFull.into());
        assert_eq!((full.code, full.help.is_some()), ("publish/io", true));
    }
}
