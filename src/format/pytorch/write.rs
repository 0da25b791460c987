//! Laying out a file.

use std::collections::BTreeMap;

use crate::diag::{Collector, Diagnostic, Errors};
use crate::format::output::{FileLayout, OutputTensor};

/// Lays out one file.
pub(in crate::format) fn lay_out(
    _tensors: &[OutputTensor<'_>],
    _sizes: &[u64],
    _metadata: &BTreeMap<String, String>,
    _out: &mut Collector,
) -> Result<FileLayout, Errors> {
    Err(Diagnostic::error("format/unwritten", "not written yet").into())
}
