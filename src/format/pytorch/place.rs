//! From tensors as a pickle describes them to ranges of the file, checked against the storages.

use std::sync::Arc;

use super::storage::{Raw, StorageId};
use crate::catalog::TensorMeta;
use crate::diag::{Diagnostic, FormatCode};
use crate::format::shown;
use crate::format::store::Store;

/// Where a storage's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// An index into the part's stores.
    pub(super) store: usize,
    /// Where they begin, in bytes.
    pub(super) start: u64,
}

/// Where storages lie in a file.
pub(super) trait Storages {
    /// Returns a storage's place; it holds the [`StorageId::count`] elements that its id says. Where the file is in another
    /// byte order, groups of `swapped` bytes are turned around.
    ///
    /// # Errors
    /// Returns what is wrong with the storage; the message names no tensor.
    fn find(&mut self, id: &StorageId, swapped: u64) -> Result<Place, Diagnostic>;

    /// Takes the store behind the file's own, where places in it were returned.
    fn take_store(&mut self) -> Option<Arc<dyn Store>> {
        None
    }
}

/// What to do about a file that contradicts itself.
pub(super) const DAMAGED: &str = "download or save the file again";

/// Checks a tensor and finds its bytes.
///
/// # Errors
/// Returns `format/unsupported-tensor` for a type that cannot be held, `format/shape-overflow`, `format/view-out-of-storage`,
/// and what is wrong with the storage; none of them names the file or the tensor.
pub(super) fn place(key: &str, raw: Raw, storages: &mut dyn Storages) -> Result<TensorMeta, Diagnostic> {
    let Raw { storage, element, offset, shape, strides } = raw;
    let Some(dtype) = element.dtype else {
        let message = format!("its elements are of the type `torch.{}`, which cannot be held", element.name);
        let help = "load it in Python, convert it to another type and save it again";
        return Err(Diagnostic::error(FormatCode::UnsupportedTensor, message).help(help));
    };
    // Strides grow past a zero too, so a zero must not hide the overflow of the other sizes.
    let product = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1)));
    if product.and_then(|product| dtype.byte_len(product)).is_none_or(|bytes| i64::try_from(bytes).is_err()) {
        let message = "the size of its elements overflows 63 bits";
        return Err(Diagnostic::error(FormatCode::ShapeOverflow, message).found(sizes(&shape)).help(DAMAGED));
    }
    let is_empty = shape.contains(&0);
    let (first, available) = window(&storage, element.width)?;
    if !is_empty {
        let reach = shape.iter().zip(&strides).try_fold(offset, |reach, (&size, &stride)| {
            (size - 1).checked_mul(stride).and_then(|step| reach.checked_add(step))
        });
        let needed = reach.and_then(|reach| reach.checked_add(1));
        if needed.is_none_or(|needed| needed > available) {
            let needed = needed.map_or("more than can be counted".to_owned(), |needed| needed.to_string());
            let message = format!(
                "it reaches past the end of its storage: from element {offset} on it needs {needed} elements, the storage \
                 has {available}"
            );
            let found = format!("shape {}, strides {}, offset {offset}", sizes(&shape), sizes(&strides));
            return Err(Diagnostic::error(FormatCode::ViewOutOfStorage, message).found(found).help(DAMAGED));
        }
    }
    let place = if is_empty && storage.count == 0 {
        // There may be nothing at all in the file for an empty storage.
        Place { store: 0, start: 0 }
    } else {
        storages.find(&storage, element.swapped())?
    };
    // The window and the reach lie inside the storage, whose place was checked.
    let inside = if is_empty { 0 } else { first + offset * element.width };
    Ok(TensorMeta {
        key: key.to_owned(),
        dtype,
        shape,
        strides,
        file: place.store,
        offset: place.start + inside,
        extents: Vec::new(),
    })
}

/// Returns where the part of a storage that is meant begins, in bytes, and how many elements of `width` bytes it has.
fn window(storage: &StorageId, width: u64) -> Result<(u64, u64), Diagnostic> {
    let whole =
        storage.count.checked_mul(storage.element.width).filter(|&bytes| i64::try_from(bytes).is_ok());
    let Some(whole) = whole else {
        let message = format!("the size of its storage `{}` overflows 63 bits", shown(&storage.key));
        return Err(Diagnostic::error(FormatCode::ShapeOverflow, message).help(DAMAGED));
    };
    let Some((offset, count)) = storage.view else { return Ok((0, whole / width)) };
    let begin = offset.checked_mul(storage.element.width);
    let length = count.checked_mul(storage.element.width);
    match (begin, length) {
        (Some(begin), Some(length)) if begin.checked_add(length).is_some_and(|end| end <= whole) => {
            Ok((begin, length / width))
        }
        _ => {
            let message = format!(
                "the part of its storage `{}` reaches past the end: from element {offset} on it has {count}, the storage \
                 has {}",
                shown(&storage.key),
                storage.count
            );
            Err(Diagnostic::error(FormatCode::ViewOutOfStorage, message).help(DAMAGED))
        }
    }
}

/// Returns numbers for a message, of many only the first.
fn sizes(numbers: &[u64]) -> String {
    let mut texts: Vec<String> = numbers.iter().take(16).map(u64::to_string).collect();
    if numbers.len() > texts.len() {
        texts.push("…".to_owned());
    }
    format!("[{}]", texts.join(", "))
}
