//! Files that `torch.save` writes: a pickle that describes tensors, and storages that hold their elements.
//!
//! [`pickle`] runs the pickle's program and makes inert values of it ([`value`]); [`rebuild`] and [`walk`] find the tensors
//! among them; [`place`] checks each against its storage, which lies in an [`archive`] or in a [`legacy`] file.

mod archive;
mod element;
mod facts;
mod input;
mod legacy;
mod overlap;
mod pickle;
mod place;
mod rebuild;
mod unsafe_names;
mod value;
mod walk;
pub(super) mod write;

use std::sync::Arc;

use super::part::Part;
use super::root::{Descent, choose};
use super::store::OpenFile;
use super::{Format, OpenOptions};
use crate::diag::{Collector, Diagnostic, Errors};
use place::Storages;
use value::{Heap, Value};

/// Reads a file's header: the pickle, and where the storages lie. No storage is read.
///
/// # Errors
/// Returns what is wrong with the file as a whole; what is wrong with single tensors goes to the collector.
pub(super) fn read(file: &Arc<OpenFile>, options: &OpenOptions, out: &mut Collector) -> Result<Part, Errors> {
    let of_file = |diagnostic: Diagnostic| Errors::from(diagnostic.file(&file.path));
    // "PK": no pickle of the file before the archive begins so.
    if file.bytes(0, file.size.min(2))? == b"PK" {
        let (heap, value, mut archive) = archive::open(file)?;
        let mut part = tensors(file, (&heap, value), &mut archive, options, out)?;
        part.metadata = archive.metadata()?;
        drop(heap);
        if let Some(store) = archive.into_store() {
            part.add_store(store);
        }
        return Ok(part);
    }
    let (heap, value, mut legacy) = legacy::open(file).map_err(of_file)?;
    if let Some(warning) = legacy.warning() {
        out.push(warning.file(&file.path));
    }
    tensors(file, (&heap, value), &mut legacy, options, out)
}

/// Returns whether a tensor is a single number, such as a loss.
fn is_number(found: &walk::Found) -> bool {
    found.as_ref().is_ok_and(|raw| raw.shape.is_empty())
}

/// Finds the tensors that are the weights and places them.
fn tensors(
    file: &Arc<OpenFile>,
    (heap, value): (&Heap, Value),
    storages: &mut dyn Storages,
    options: &OpenOptions,
    out: &mut Collector,
) -> Result<Part, Errors> {
    let leaves = walk::leaves(heap, value).map_err(|diagnostic| Errors::from(diagnostic.file(&file.path)))?;
    let chosen = choose(&file.path, leaves, ".", Descent::Alone(&is_number), options, out)?;
    let mut part = Part::of(Format::PyTorch, file);
    part.facts = facts::facts(heap, value);
    for (key, found) in chosen {
        match found.and_then(|raw| place::place(&key, raw, storages)) {
            Ok(tensor) => part.tensors.push(tensor),
            Err(diagnostic) => out.push(diagnostic.file(&file.path).tensor(key)),
        }
    }
    part.tensors.sort_by_key(|tensor| (tensor.file, tensor.offset));
    overlap::warn(&file.path, &part.tensors, out);
    Ok(part)
}
