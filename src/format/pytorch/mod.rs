//! Files that `torch.save` writes: a pickle that describes tensors, and storages that hold their elements.
//!
//! [`pickle`] runs the pickle's program and makes inert values of it ([`value`]); [`rebuild`] and [`walk`] find the tensors
//! among them; [`place`] checks each against its storage, which lies in an [`archive`] or in a [`legacy`] file.

mod archive;
mod array;
mod element;
mod escape;
mod facts;
mod input;
mod item;
mod legacy;
mod overlap;
mod pickle;
mod place;
mod rebuild;
mod storage;
mod unsafe_names;
mod value;
mod walk;
mod write;

use std::collections::HashMap;
use std::sync::Arc;

use super::part::Part;
use super::root::{Descent, choose};
use super::spec::{Shards, Spec};
use super::store::{OpenFile, Spool};
use super::{Format, OpenOptions};
use crate::catalog::TensorMeta;
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use array::Placed;
pub(super) use item::{dtype_of, item, values};
use place::Storages;
use rebuild::Described;
pub(super) use value::{Heap, Value};

/// What the format is.
pub(super) const SPEC: Spec = Spec {
    name: "pytorch",
    file_name: "pytorch_model.bin",
    endings: &["bin", "pt", "pth", "ckpt"],
    shards: Shards::Index,
    is_it: |probe| {
        let is_archive = probe.has_entry(|name| name == "data.pkl" || name.ends_with("/data.pkl"));
        Ok(is_archive || matches!(probe.head[..], [0x80, 2..=5, ..]))
    },
    may_be: Spec::NEVER,
    read,
    write: Some(|contents, out| write::lay_out(contents.tensors, contents.sizes, contents.metadata, out)),
    find: None,
};

/// The most bytes that the pickles together may have. They may hold the elements of NumPy arrays, which are passed over; the
/// number of instructions and the memory that values take are bounded by themselves.
const MOST_PICKLE: u64 = 64 << 30;

/// Stands for the store of NumPy arrays until it is known which it is.
const ARRAYS: usize = usize::MAX;

/// Reads a file's header: the pickle, and where the storages lie. No storage is read.
///
/// # Errors
/// Returns what is wrong with the file as a whole; what is wrong with single tensors goes to the collector.
fn read(file: &Arc<OpenFile>, options: &OpenOptions, out: &mut Collector) -> Result<Part, Errors> {
    let of_file = |diagnostic: Diagnostic| Errors::from(diagnostic.file(&file.path));
    // "PK": no pickle of the file before the archive begins so.
    if file.bytes(0, file.size.min(2))? == b"PK" {
        let (heap, value, mut archive) = archive::open(file)?;
        let mut part = tensors(file, (&heap, value), &mut archive, options, out)?;
        part.metadata = archive.metadata()?;
        return Ok(part);
    }
    let (heap, value, mut legacy) = legacy::open(file).map_err(of_file)?;
    if let Some(warning) = legacy.warning() {
        out.push(warning.file(&file.path));
    }
    tensors(file, (&heap, value), &mut legacy, options, out)
}

/// Returns whether a tensor that stands beside containers is no weight: a single number, such as a loss, the state of a
/// random generator, or a NumPy array beside tensors of PyTorch.
fn is_aside(name: &str, found: &walk::Found) -> bool {
    let name = name.to_ascii_lowercase();
    let is_random =
        ["rng", "random", "seed"].iter().any(|word| name.split(['_', '.', '-']).any(|part| part == *word));
    is_random
        || found.as_ref().is_ok_and(|found| found.shape().is_empty() || matches!(found, Described::Array(..)))
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
    let chosen = choose(&file.path, leaves, ".", Descent::Nested(&is_aside), options, out)?;
    let mut part = Part::of(Format::PyTorch, file);
    part.facts = facts::facts(heap, value);
    let (mut arrays, mut places) = (Spool::new(), HashMap::new());
    for (key, found) in chosen {
        let tensor = found.and_then(|found| match found {
            Described::Stored(raw) => place::place(&key, raw, storages),
            Described::Array(Value::Node(id), array) => {
                let placed = array.place(options, &heap.source)?;
                let Placed { dtype, strides, length, decode } = placed;
                // One array under two names is one.
                let offset = *places.entry(id).or_insert_with(|| arrays.push(length, decode));
                let (key, shape) = (key.clone(), array.shape);
                Ok(TensorMeta { key, dtype, shape, strides, file: ARRAYS, offset, extents: Vec::new() })
            }
            Described::Array(..) => Err(Diagnostic::error(FormatCode::BadTensor, "it is no array")),
        });
        match tensor {
            Ok(tensor) => part.tensors.push(tensor),
            Err(diagnostic) => part.refuse(key, diagnostic, out),
        }
    }
    if let Some(store) = storages.take_store() {
        part.add_store(store);
    }
    if !arrays.is_empty() {
        let store = part.add_store(Arc::new(arrays));
        part.tensors.iter_mut().filter(|tensor| tensor.file == ARRAYS).for_each(|tensor| tensor.file = store);
    }
    part.tensors.sort_by_key(|tensor| (tensor.file, tensor.offset));
    overlap::warn(&file.path, &part.tensors, out);
    Ok(part)
}
