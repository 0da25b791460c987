//! What torch.distributed.checkpoint writes with PyTorch's pickles: a bare pickle that lists what there is, and tensors that
//! were saved one by one.

use std::sync::Arc;

use super::archive;
use super::element;
use super::input::Input;
use super::pickle;
use super::place::{Storages, place};
use super::rebuild::{Described, described};
use super::value::{Heap, Value};
use crate::catalog::TensorMeta;
use crate::diag::{Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;
use crate::format::store::{OpenFile, Store};

/// Reads a file that is one pickle and nothing else.
///
/// # Errors
/// As [`pickle::run`].
pub(in crate::format) fn values(file: &Arc<OpenFile>) -> Result<(Heap, Value), Errors> {
    let store = Arc::clone(file) as Arc<dyn Store>;
    pickle::run(&mut Input::new(store, 0, file.size)).map_err(|error| error.file(&file.path).into())
}

/// Returns the type of elements of that name in `torch`, where it can be held.
pub(in crate::format) fn dtype_of(name: &str) -> Option<Dtype> {
    element::of_dtype(name)?.dtype
}

/// Reads an archive that is one tensor: its place is in the archive where its file is 0, else in the store beside it.
///
/// # Errors
/// Returns what is wrong with the archive, the pickle and the tensor.
pub(in crate::format) fn item(
    file: &Arc<OpenFile>,
    key: &str,
) -> Result<(TensorMeta, Option<Arc<dyn Store>>), Errors> {
    let (heap, value, mut archive) = archive::open(file)?;
    let tensor = described(&heap, value).and_then(|found| match found {
        Described::Stored(raw) => place(key, raw, &mut archive),
        Described::Array(..) => {
            Err(Diagnostic::error(FormatCode::UnsupportedTensor, "it is a NumPy array, no tensor of PyTorch"))
        }
    });
    let tensor = tensor.map_err(|error| Errors::from(error.file(&file.path)))?;
    Ok((tensor, archive.take_store()))
}
