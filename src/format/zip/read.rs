//! The entries of a zip archive, and where their bytes lie.

use std::io::{self, Write};
use std::sync::Arc;

use crate::diag::{Diagnostic, Errors};
use crate::format::store::OpenFile;

/// One entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::format) struct Entry {
    /// Its name, with the folders inside the archive.
    pub(in crate::format) name: String,
    /// Where its bytes begin in the file, compressed or not.
    pub(in crate::format) start: u64,
    /// The bytes that it takes in the file.
    pub(in crate::format) stored: u64,
    /// The bytes that it has.
    pub(in crate::format) size: u64,
    /// Whether it is compressed; its bytes lie in the file as they are otherwise.
    pub(in crate::format) deflated: bool,
}

/// Returns the entries of an archive in the order of its directory.
pub(in crate::format) fn entries(file: &Arc<OpenFile>) -> Result<Vec<Entry>, Errors> {
    Err(Diagnostic::error("format/unread", "zip archives are not read yet").file(&file.path).into())
}

/// Writes an entry's bytes as they are when nothing is compressed, at most [`Entry::size`].
pub(in crate::format) fn extract(
    _file: &Arc<OpenFile>,
    _entry: &Entry,
    _to: &mut dyn Write,
) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
