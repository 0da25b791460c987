//! msgpack files.

pub(super) mod write;

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
