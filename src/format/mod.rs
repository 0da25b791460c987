//! Checkpoint files: recognising them, reading their headers and laying out new ones.
//!
//! Opening reads headers only. Everything that the headers say is checked before any of it is used, and what
//! is wrong is reported together; a [`Reader`] can therefore be trusted to describe ranges that exist.
//!
//! Each format has a folder: `read` turns a file into a `part::Part`, `write` lays out a new file. What follows is the
//! same for all of them: `part` makes one checkpoint of parts, `shards` reads an index, [`output`] cuts shards.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;
use crate::read::ReadAt;
use crate::shown::escaped;

mod assembled;
mod dcp;
mod facts;
mod folder;
mod foreign;
mod gguf;
mod hdf5;
mod json;
mod layout;
mod listing;
mod member;
mod msgpack;
pub(crate) mod names;
mod numpy;
pub mod output;
mod part;
pub(crate) mod pieces;
mod pytorch;
mod registry;
mod root;
mod safetensors;
pub(crate) mod shards;
mod sniff;
mod spec;
mod split;
mod store;
mod tensorflow;
mod zip;

pub use assembled::assembled;
use part::{Part, PartsReader};
use pieces::Whole;
use sniff::Content;
use store::OpenFile;

/// A file format of checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Format {
    /// Hugging Face safetensors.
    #[default]
    Safetensors,
    /// PyTorch's pickles: the zip archive, and the file before it.
    PyTorch,
    /// A NumPy archive of arrays.
    Npz,
    /// One NumPy array.
    Npy,
    /// HDF5, as Keras and the TensorFlow models of Hugging Face write it.
    Hdf5,
    /// A `.keras` archive, which holds an HDF5 file.
    Keras,
    /// A TensorFlow checkpoint: an index and data files.
    TensorFlow,
    /// Flax's msgpack.
    Msgpack,
    /// GGUF, the format of llama.cpp.
    Gguf,
    /// A folder of torch.distributed.checkpoint: `.metadata`, and files with parts of tensors.
    Dcp,
}

/// What is allowed and known while opening a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Whether a file that an index or a folder names may be a symbolic link that leaves the folder, as in
    /// the cache of huggingface_hub (`--allow outside-link`).
    pub allow_outside_links: bool,
    /// The container that holds the weights, of a file that nests them (`--root`): names joined by `.` or `/`.
    pub root: Option<String>,
    /// What raw bytes without a type are (`--void-as`): at most one type of each width.
    pub void_as: Vec<Dtype>,
    /// Whether a file that is a part of a checkpoint is read without the others (`--allow incomplete`).
    pub allow_incomplete: bool,
    /// The most bytes of a config beside the checkpoint; `None` for 64 MiB (`--max-config-size`).
    pub max_config: Option<u64>,
    /// The most bytes of memory for one compressed chunk; `None` for 256 MiB and four times the file's size
    /// (`--max-chunk-size`).
    pub max_chunk: Option<u64>,
}

impl OpenOptions {
    /// Sets whether links may leave the folder (`--allow outside-link`).
    pub fn allow_outside_links(mut self, allow: bool) -> OpenOptions {
        self.allow_outside_links = allow;
        self
    }

    /// Names the container that holds the weights (`--root`).
    pub fn root(mut self, root: impl Into<Option<String>>) -> OpenOptions {
        self.root = root.into();
        self
    }

    /// Sets what raw bytes without a type are (`--void-as`).
    pub fn void_as(mut self, dtypes: impl IntoIterator<Item = Dtype>) -> OpenOptions {
        self.void_as = dtypes.into_iter().collect();
        self
    }

    /// Sets whether a part of a checkpoint is read without the others (`--allow incomplete`).
    pub fn allow_incomplete(mut self, allow: bool) -> OpenOptions {
        self.allow_incomplete = allow;
        self
    }

    /// Sets the most bytes of a config beside the checkpoint (`--max-config-size`).
    pub fn max_config(mut self, bytes: impl Into<Option<u64>>) -> OpenOptions {
        self.max_config = bytes.into();
        self
    }

    /// Sets the most bytes of memory for one compressed chunk (`--max-chunk-size`).
    pub fn max_chunk(mut self, bytes: impl Into<Option<u64>>) -> OpenOptions {
        self.max_chunk = bytes.into();
        self
    }
}

/// An open checkpoint: its headers, and its data on request.
pub trait Reader: ReadAt {
    /// Returns the format of its files.
    fn format(&self) -> Format;

    /// Returns what the headers say.
    fn catalog(&self) -> &Catalog;

    /// Checks that the files are still those that were opened, by their sizes and modification times.
    ///
    /// # Errors
    /// Returns `format/changed` for every file that changed.
    fn unchanged(&self) -> Result<(), Errors>;

    /// Returns what tells the open files from others, and from themselves after a change, as far as that shows without
    /// reading them; nothing where there are no files.
    fn stamps(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Opens a checkpoint: a file, the index of a sharded checkpoint, the prefix of a TensorFlow checkpoint, or a folder
/// that holds one of these.
///
/// What a file is follows from its content, never from its name. A file that is one of several, by its name or by what is
/// in it, is read with the others, or not at all.
///
/// # Errors
/// Returns everything that is wrong with the headers or the index (`format/…`).
pub fn open(path: &Path, options: &OpenOptions) -> Result<Box<dyn Reader>, Errors> {
    let mut finds = Format::ALL.iter().filter_map(|format| format.spec().find.as_ref());
    let named = finds.find_map(|find| (find.named)(path)).unwrap_or_else(|| path.to_owned());
    let is_folder = std::fs::metadata(&named).map_err(|error| not_there(path, &error))?.is_dir();
    let file = if is_folder { folder::checkpoint_in(&named, options)? } else { named.clone() };
    let mut reader = if sniff::is_json_file(&file)? {
        shards::open_index(path, &file, options)?
    } else {
        match pieces::whole(&file, options)? {
            Whole::Alone => open_as_one(path, std::slice::from_ref(&file), options)?,
            Whole::Index(index) => shards::open_index(path, &index, options)?,
            Whole::With(files) => open_as_one(path, &files, options)?,
        }
    };
    if is_folder {
        reader.catalog.warnings.extend(folder::unread(&named, &file, &reader.catalog.files));
    }
    reader.whole()
}

/// Opens files as one checkpoint without an index; `path` stands in messages for all of them.
///
/// # Errors
/// Returns everything that is wrong with the headers, and `format/duplicate-key` for a tensor in two files.
pub fn open_files(path: &Path, files: &[PathBuf], options: &OpenOptions) -> Result<Box<dyn Reader>, Errors> {
    open_as_one(path, files, options)?.whole()
}

/// Says that nothing can be opened there; what looks like a repository of a hub has to be fetched first.
fn not_there(path: &Path, error: &io::Error) -> Diagnostic {
    let diagnostic = io_error(path, "open it", error);
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    match &parts[..] {
        [owner, name] if is_missing && !Path::new(owner).exists() && Format::of_ending(path).is_none() => {
            let fetch = format!(
                "`hf download {owner}/{name} --local-dir {name}` fetches it from the Hugging Face hub"
            );
            diagnostic.help(format!("if it is a model's name there: {fetch}, then name the folder `{name}`"))
        }
        _ => diagnostic,
    }
}

fn open_as_one(path: &Path, files: &[PathBuf], options: &OpenOptions) -> Result<PartsReader, Errors> {
    let mut collector = Collector::default();
    let parts: Vec<Part> = files.iter().filter_map(|file| open_part(file, options, &mut collector)).collect();
    split::check(&parts, false, options, &mut collector);
    part::assemble(path, parts, collector)
}

/// Opens files as a set whose names count: each is given the name that it goes by, and the key of a tensor
/// is `NAME::KEY`, so that files may hold tensors of one name (tensor-parallel shards).
///
/// # Errors
/// Returns everything that is wrong with the headers.
pub fn open_set(
    path: &Path,
    files: &[(String, PathBuf)],
    options: &OpenOptions,
) -> Result<Box<dyn Reader>, Errors> {
    let mut collector = Collector::default();
    let parts = files.iter().filter_map(|(name, file)| {
        let mut part = open_part(file, options, &mut collector)?;
        let tensors = part.tensors.iter_mut().chain(&mut part.in_extents);
        tensors.for_each(|tensor| tensor.key = format!("{name}::{}", tensor.key));
        for (key, reason) in &mut part.unread {
            *key = format!("{name}::{key}");
            reason.tensors = vec![key.clone()];
        }
        Some(part)
    });
    let parts: Vec<Part> = parts.collect();
    split::check(&parts, false, options, &mut collector);
    part::assemble(path, parts, collector)?.whole()
}

/// Where the files of a set lie.
pub struct FileSet<'a> {
    /// In how many folders, one inside the other; 0 is the folder of the set itself.
    pub depths: &'a BTreeSet<usize>,
    /// Tells whether a file belongs to the set by its name, `FOLDER/NAME`, whatever is in it.
    pub is_named: &'a dyn Fn(&str) -> bool,
}

impl fmt::Debug for FileSet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSet").field("depths", &self.depths).finish_non_exhaustive()
    }
}

/// Returns the files of a set with their names, for [`open_set`]: those with weights, and those that are named.
///
/// # Errors
/// Returns what the system refuses, links that leave the folder, and a folder without any such file.
pub fn files_of(
    folder: &Path,
    set: &FileSet<'_>,
    options: &OpenOptions,
) -> Result<Vec<(String, PathBuf)>, Errors> {
    folder::files_of(folder, set, options)
}

/// Returns the names of a folder's files that belong to a set by their names, `FOLDER/NAME`.
///
/// # Errors
/// Returns what the system refuses.
pub(crate) fn named_in(folder: &Path, set: &FileSet<'_>) -> Result<Vec<String>, Errors> {
    folder::named_in(folder, set)
}

/// Opens a file and reads its header; what is wrong goes to the collector.
fn open_part(path: &Path, options: &OpenOptions, out: &mut Collector) -> Option<Part> {
    let part = OpenFile::open(path).and_then(|file| read_part(&file, options, out));
    part.map_err(|errors| out.extend(errors)).ok()
}

fn read_part(file: &Arc<OpenFile>, options: &OpenOptions, out: &mut Collector) -> Result<Part, Errors> {
    match sniff::sniff(file, options)? {
        Content::Checkpoint(format) => (format.spec().read)(file, options, out),
        Content::Foreign(diagnostic) => Err((*diagnostic).into()),
        Content::Json => {
            let message = "it is a JSON text, not a checkpoint";
            Err(Diagnostic::error(FormatCode::BadHeader, message).file(&file.path).into())
        }
    }
}

/// Describes a failure of the file system; `action` completes "cannot …".
fn io_error(path: &Path, action: &str, error: &io::Error) -> Diagnostic {
    Diagnostic::error(FormatCode::Io, format!("cannot {action}: {error}")).file(path)
}

/// Returns a name fit for a message: control characters escaped, the middle of a long name left out.
///
/// A header may hold names of megabytes or with terminal escapes in them.
pub(crate) fn shown(name: &str) -> String {
    const ENDS: usize = 58;
    let length = name.chars().count();
    if length <= 120 {
        return escaped(name).into_owned();
    }
    let head: String = name.chars().take(ENDS).collect();
    let tail: String = name.chars().skip(length - ENDS).collect();
    format!("{}…{}", escaped(&head), escaped(&tail))
}

/// Helpers for the tests of this folder.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Returns the bytes of a safetensors file with that header and zeros for data.
    pub(crate) fn file_bytes(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    /// Writes a file of the folder and returns its path.
    pub(crate) fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().expect("has a parent")).expect("folder");
        std::fs::write(&path, bytes).expect("file");
        path
    }

    /// Opens with the default options.
    pub(crate) fn open_plain(path: &Path) -> Result<Box<dyn Reader>, Errors> {
        open(path, &OpenOptions::default())
    }

    /// Returns what is wrong: why it does not open, or what of it cannot be read.
    fn wrong(result: &Result<Box<dyn Reader>, Errors>) -> Vec<&Diagnostic> {
        match result {
            Err(errors) => errors.diagnostics().iter().collect(),
            Ok(reader) => {
                let unread = &reader.catalog().unread;
                assert!(!unread.is_empty(), "it opens");
                unread.iter().map(|(_, reason)| reason).collect()
            }
        }
    }

    /// Returns the codes of what is wrong.
    pub(crate) fn codes(result: &Result<Box<dyn Reader>, Errors>) -> Vec<&'static str> {
        wrong(result).into_iter().map(|diagnostic| diagnostic.code.as_str()).collect()
    }

    /// Returns all texts of what is wrong in one.
    pub(crate) fn text(result: &Result<Box<dyn Reader>, Errors>) -> String {
        format!("{:?}", wrong(result))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    #[test]
    fn long_and_odd_names_are_shortened_in_messages_only() {
        assert_eq!(shown("a.weight"), "a.weight");
        assert_eq!(shown("a\u{1b}[31m"), "a\\u{1b}[31m");
        let shortened = shown(&"ä".repeat(1000));
        assert_eq!(shortened.chars().count(), 117);
    }

    #[test]
    fn a_long_key_stays_whole_in_the_catalog_and_in_the_diagnostic() {
        let folder = tempfile::tempdir().expect("folder");
        let key = "k".repeat(1_000_000);
        let header = format!(r#"{{"{key}":{{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}}}"#);
        let path = put(folder.path(), "a", &file_bytes(&header, 8));
        let errors = open_plain(&path).err().expect("does not open");
        let diagnostic = &errors.diagnostics()[0];
        assert_eq!((diagnostic.tensors[0].len(), diagnostic.message.len() < 500), (1_000_000, true));
    }

    #[test]
    fn a_missing_source_is_an_error_with_the_systems_words() {
        let result = open_plain(Path::new("/nonexistent/model.safetensors"));
        assert_eq!(codes(&result), ["format/io"]);
        assert!(text(&result).contains("cannot open it: "));
    }
}
