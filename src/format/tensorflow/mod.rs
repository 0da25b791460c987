//! tensorflow files.

use std::sync::Arc;

use super::OpenOptions;
use super::part::Part;
use super::store::OpenFile;
use crate::diag::{Collector, Diagnostic, Errors};

/// Reads the file's header.
pub(super) fn read(
    file: &Arc<OpenFile>,
    _options: &OpenOptions,
    _out: &mut Collector,
) -> Result<Part, Errors> {
    Err(Diagnostic::error("format/unread", "not read yet").file(&file.path).into())
}

/// The last bytes of a table file, such as a checkpoint's index (google/leveldb, `doc/table_format.md`).
pub(super) const TABLE_MAGIC: [u8; 8] = [0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb];

/// Returns the index file of a checkpoint that is given by its prefix.
pub(super) fn index_of_prefix(_path: &std::path::Path) -> Option<std::path::PathBuf> {
    None
}

/// Returns the index file of the checkpoint that a folder holds, where it holds one.
pub(super) fn latest_in(_folder: &std::path::Path) -> Option<std::path::PathBuf> {
    None
}
