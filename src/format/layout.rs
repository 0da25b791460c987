//! What a new checkpoint is made of: its files, what stands around the data in them, and where each tensor lies. The formats
//! make it, `output` asks them to.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::member::Split;
use super::{Format, shown};
use crate::diag::{Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;

/// A tensor that will be written.
#[derive(Clone, Copy, Debug)]
pub struct OutputTensor<'a> {
    /// Its name.
    pub key: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, slowest dimension first.
    pub shape: &'a [u64],
}

/// A file that holds tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFile {
    /// Its name, `FOLDER/NAME` where it lies in a folder of the output.
    pub name: String,
    /// What stands around the data: bytes, and where they begin in the file.
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// The whole file's size in bytes.
    pub size: u64,
    /// What is written when the data is there.
    pub checksums: Vec<Checksum>,
}

/// A CRC-32 (ISO 3309, as in zip) of a range of the file, written as four little-endian bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// The bytes that it is of.
    pub of: Range<u64>,
    /// Where it is written.
    pub at: Vec<u64>,
}

/// A file beside those with tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Companion {
    /// Its name, without a folder.
    pub name: String,
    /// What it holds.
    pub content: Content,
}

/// What a companion holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// What this regular file holds, whose path has no links in it; at most so many bytes.
    Copy(PathBuf, u64),
}

/// The file that holds the others of a checkpoint together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputIndex {
    /// Its name, without a folder.
    pub name: String,
    /// All of its bytes; those of checksums are zeros until the data is there.
    pub bytes: Vec<u8>,
    /// Whether it is what a reader opens, who finds the data by it.
    pub is_opened: bool,
    /// Checksums of the data.
    pub sums: Vec<DataSum>,
    /// Ranges of its own bytes, each with the place of its checksum; they hold checksums of the data.
    pub own_sums: Vec<(Range<usize>, usize)>,
}

/// A masked CRC-32C (google/leveldb, `util/crc32c.h`) of data, written into the index as four little-endian bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSum {
    /// The file of the data, an index into [`OutputLayout::files`].
    pub file: usize,
    /// The bytes of that file.
    pub of: Range<u64>,
    /// Where it is written in the index.
    pub at: usize,
}

/// Masks a CRC-32C as it is stored: a checksum of bytes that hold checksums would be weak otherwise.
pub(crate) const fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its file, an index into [`OutputLayout::files`].
    pub file: usize,
    /// Where its first byte lies, in bytes from the start of the file.
    pub offset: u64,
}

/// A checkpoint that is ready to be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLayout {
    /// The format of the files.
    pub format: Format,
    /// The name of a checkpoint of one file, from which those of shards and of an index follow.
    pub single_name: String,
    /// The files that hold tensors, at least one.
    pub files: Vec<OutputFile>,
    /// The index; there is one where there are several files of a format that has one.
    pub index: Option<OutputIndex>,
    /// Each tensor's place, in the order in which the tensors were given.
    pub placements: Vec<Placement>,
    /// Files beside those with tensors: configs, vocabularies.
    pub companions: Vec<Companion>,
    /// What a reader of the output may miss in it.
    pub warnings: Vec<Diagnostic>,
}

/// What a format makes of the tensors of one file.
pub(super) struct FileLayout {
    /// As [`OutputFile::pieces`].
    pub(super) pieces: Vec<(u64, Vec<u8>)>,
    /// As [`OutputFile::size`].
    pub(super) size: u64,
    /// As [`OutputFile::checksums`].
    pub(super) checksums: Vec<Checksum>,
    /// Where each tensor begins, in the order in which the tensors were given.
    pub(super) offsets: Vec<u64>,
    /// What stands beside the file, of a format that keeps it apart from the data.
    pub(super) beside: Option<Beside>,
}

/// What a format keeps beside the file with the data.
pub(super) struct Beside {
    /// The name of the file with the data.
    pub(super) data_name: String,
    /// The index; its sums count the file with the data as the first.
    pub(super) index: OutputIndex,
    /// A file that names the checkpoint, and its bytes.
    pub(super) pointer: (String, Vec<u8>),
}

/// What one file is to hold.
pub(super) struct FileContents<'a> {
    /// The tensors, in their order.
    pub(super) tensors: &'a [OutputTensor<'a>],
    /// Their sizes in bytes.
    pub(super) sizes: &'a [u64],
    /// The name of a checkpoint of one file.
    pub(super) single_name: &'a str,
    /// What the checkpoint says of itself.
    pub(super) metadata: &'a BTreeMap<String, String>,
    /// A file of the format whose other content is taken over (`--template`).
    pub(super) template: Option<&'a Path>,
    /// Which of several numbered files it is.
    pub(super) split: Option<Split>,
}

/// Describes what cannot happen with strings and integers, but is an error in serde_json's terms.
pub(super) fn no_json(what: &str, error: &serde_json::Error) -> Errors {
    Diagnostic::error(
        FormatCode::NoJson,
        format!("cannot write {what} as JSON: {}", shown(&error.to_string())),
    )
    .into()
}
