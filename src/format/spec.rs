//! What a format is, in one value: each folder of a format exports its own, and `registry` lists them. Everything that the
//! rest of this folder decides by the format follows from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::OpenOptions;
use super::layout::{FileContents, FileLayout};
use super::part::Part;
use super::store::OpenFile;
use super::zip::read::Entry;
use crate::diag::{Collector, Errors};

/// Reads the header of a file of the format; what is wrong with single tensors goes to the collector.
type Read = fn(&Arc<OpenFile>, &OpenOptions, &mut Collector) -> Result<Part, Errors>;

/// Lays out a new file of the format.
type Write = fn(&FileContents<'_>, &mut Collector) -> Result<FileLayout, Errors>;

/// What the rest of this folder knows of a format.
pub(super) struct Spec {
    /// Its name, as `--format` takes it.
    pub(super) name: &'static str,
    /// The name of a checkpoint of one file, as the framework looks for it where it does
    /// (huggingface/transformers, `src/transformers/utils/__init__.py`); it has the first of the endings.
    pub(super) file_name: &'static str,
    /// What the names of its files end in, without the dot.
    pub(super) endings: &'static [&'static str],
    /// Whether and how a checkpoint is cut into several files.
    pub(super) shards: Shards,
    /// Returns whether a file is of the format.
    pub(super) is_it: fn(&Probe<'_>) -> Result<bool, Errors>,
    /// Returns whether a file that is of no known format was to be one of this, so that what is wrong with it is said.
    pub(super) may_be: fn(&Probe<'_>) -> bool,
    /// Reads a file.
    pub(super) read: Read,
    /// Writes a file, where the format is written.
    pub(super) write: Option<Write>,
    /// Finds a checkpoint whose files do not stand for it: of a format that keeps its data in several files.
    pub(super) find: Option<Find>,
}

/// How a checkpoint of several files that are no shards is found.
pub(super) struct Find {
    /// Returns the file to open for a path that is none, such as the common beginning of the files' names.
    pub(super) named: fn(&Path) -> Option<PathBuf>,
    /// Returns the file to open of a folder.
    pub(super) in_folder: fn(&Path) -> Result<Option<PathBuf>, Errors>,
}

/// The several files of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shards {
    /// There is one file.
    None,
    /// The data is one file, and an index beside it is what is opened.
    Apart,
    /// An index names them (`*.index.json`).
    Index,
    /// Each holds its number and how many there are, at most so many.
    Numbered(usize),
}

/// A file of which the format is to be told.
pub(super) struct Probe<'a> {
    /// The file.
    pub(super) file: &'a Arc<OpenFile>,
    /// Its first bytes.
    pub(super) head: &'a [u8],
    /// Its entries, where it is a zip archive.
    pub(super) entries: Option<&'a [Entry]>,
}

impl Probe<'_> {
    /// Returns whether the file begins so.
    pub(super) fn starts(&self, magic: &[u8]) -> bool {
        self.head.starts_with(magic)
    }

    /// Returns whether the file is a zip archive with an entry of such a name.
    pub(super) fn has_entry(&self, test: impl Fn(&str) -> bool) -> bool {
        self.entries.is_some_and(|entries| entries.iter().any(|entry| test(&entry.name)))
    }
}

impl Spec {
    /// For a format whose damaged files are of no known format.
    pub(super) const NEVER: fn(&Probe<'_>) -> bool = |_| false;
}
