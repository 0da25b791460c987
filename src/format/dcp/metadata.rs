//! The list of a checkpoint, `.metadata`: which tensors there are, in which chunks, and where each chunk is stored.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::diag::{Diagnostic, FormatCode};
use crate::dtype::Dtype;
use crate::format::pytorch::{Heap, Value, dtype_of};
use crate::format::shown;

/// What to do about a list that contradicts itself.
pub(super) const DAMAGED: &str = "copy the checkpoint again, or save it again";

/// The most dimensions of a tensor.
const MOST_DIMS: usize = 32;

/// The most bytes that the names on the way to all tensors may take: shared references could make any number of them.
const MOST_NAMES: usize = 48 << 20;

/// What the list says. Names are those of its pickle, so that a name that stands often takes memory once.
pub(super) struct Metadata<'h> {
    heap: &'h Heap,
    /// The version, which old lists lack.
    pub(super) version: Option<&'h str>,
    /// The tensors and the pickled objects beside them.
    pub(super) entries: IndexMap<&'h str, Entry<'h>>,
    /// Where each chunk is stored, by the tensor's name and the index of its first element.
    stored: HashMap<(&'h str, Vec<u64>), Stored<'h>>,
    /// The names on the way to an entry.
    paths: HashMap<&'h str, Vec<String>>,
}

/// An entry of the state dict.
#[derive(Clone, Copy)]
pub(super) enum Entry<'h> {
    /// A tensor.
    Tensor(Listed<'h>),
    /// A pickled object.
    Object,
}

/// A tensor as the list has it.
#[derive(Clone, Copy)]
pub(super) struct Listed<'h> {
    /// Its name in the list.
    pub(super) name: &'h str,
    properties: Value,
    size: Value,
    chunks: &'h [Value],
}

/// A tensor's shape and chunks.
pub(super) struct Tensor<'h> {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    chunks: &'h [Value],
}

/// A box of a tensor: the index of its first element, and its lengths.
pub(super) type Chunk = (Vec<u64>, Vec<u64>);

/// Where a chunk is stored.
#[derive(Clone, Copy)]
pub(super) struct Stored<'h> {
    /// The file, relative to the folder.
    pub(super) file: &'h str,
    /// Where it begins, in bytes.
    pub(super) offset: u64,
    /// Its bytes.
    pub(super) length: u64,
    /// What its bytes went through, such as a compression.
    pub(super) transforms: &'h [Value],
}

fn bad(what: &str) -> Diagnostic {
    Diagnostic::error(FormatCode::BadHeader, format!("the list of the checkpoint is damaged: {what}"))
        .help(DAMAGED)
}

/// Returns whether a value is of one of torch's classes, in whichever of its modules that has been.
fn is_of(heap: &Heap, value: Value, class: &str) -> bool {
    let object = heap.object(value);
    let named = object.and_then(|object| heap.global(heap.class(object)));
    named.is_some_and(|(module, name)| name == class && module.starts_with("torch.distributed."))
}

/// Returns an attribute of an object.
fn attribute(heap: &Heap, value: Value, name: &str) -> Option<Value> {
    heap.get(heap.object(value)?.state, name)
}

fn natural(value: Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

/// Returns a `torch.Size`.
fn size(heap: &Heap, value: Option<Value>) -> Option<Vec<u64>> {
    let items = heap.sequence(value?).filter(|items| items.len() <= MOST_DIMS)?;
    items.iter().map(|item| natural(*item)).collect()
}

impl<'h> Metadata<'h> {
    /// Reads what a pickle has made.
    ///
    /// # Errors
    /// Returns `format/bad-header` for values that are no such list.
    pub(super) fn new(heap: &'h Heap, root: Value) -> Result<Metadata<'h>, Diagnostic> {
        let entries_of = |name: &str| {
            let table = attribute(heap, root, name).and_then(|table| heap.entries(table));
            table.ok_or_else(|| bad(&format!("it has no `{name}`")))
        };
        if !is_of(heap, root, "Metadata") {
            return Err(bad("it is no `Metadata`"));
        }
        let mut entries = IndexMap::new();
        for (name, value) in entries_of("state_dict_metadata")? {
            let name = heap.str(*name).ok_or_else(|| bad("a name is no string"))?;
            entries.insert(name, entry(heap, name, *value)?);
        }
        let mut stored = HashMap::new();
        for (key, value) in entries_of("storage_data")? {
            let name = attribute(heap, *key, "fqn").and_then(|name| heap.str(name));
            let name = name.ok_or_else(|| bad("an entry of `storage_data` has no name"))?;
            let offset = match attribute(heap, *key, "offset") {
                // A pickled object, which is not read.
                None | Some(Value::None) => continue,
                offset => size(heap, offset)
                    .ok_or_else(|| bad(&format!("the offset of a chunk of `{}` is none", shown(name))))?,
            };
            let place = place(heap, *value).ok_or_else(|| {
                bad(&format!("where a chunk of `{}` is stored is no `_StorageInfo`", shown(name)))
            })?;
            stored.insert((name, offset), place);
        }
        let paths = paths(heap, attribute(heap, root, "planner_data"));
        let version = attribute(heap, root, "version").and_then(|version| heap.str(version));
        Ok(Metadata { heap, version, entries, stored, paths })
    }

    /// Returns the names on the way to an entry through the nested containers that were saved.
    pub(super) fn path(&self, name: &str) -> Vec<String> {
        self.paths.get(name).cloned().unwrap_or_else(|| vec![name.to_owned()])
    }

    /// Returns the files that hold chunks, with the number of chunks.
    pub(super) fn files(&self) -> (usize, usize) {
        let files: std::collections::HashSet<&str> = self.stored.values().map(|place| place.file).collect();
        (files.len(), self.stored.len())
    }

    /// Returns where a chunk is stored.
    pub(super) fn stored(&self, name: &'h str, offsets: &[u64]) -> Option<Stored<'h>> {
        self.stored.get(&(name, offsets.to_vec())).copied()
    }

    /// Reads the description of a tensor.
    ///
    /// # Errors
    /// Returns `format/unsupported-tensor` for a type that cannot be held, `format/shape-overflow`, and
    /// `format/bad-header`.
    pub(super) fn tensor(&self, listed: &Listed<'h>) -> Result<Tensor<'h>, Diagnostic> {
        let heap = self.heap;
        let state = heap.object(listed.properties).and_then(|object| heap.sequence(object.state));
        let name = match state.and_then(|state| heap.global(*state.first()?)) {
            Some(("torch", name)) => name,
            _ => return Err(bad("a tensor's type is no type of torch")),
        };
        let dtype = dtype_of(name).ok_or_else(|| {
            let message =
                format!("its elements are of the type `torch.{}`, which cannot be held", shown(name));
            let help = "load it in Python, convert it to another type and save it again";
            Diagnostic::error(FormatCode::UnsupportedTensor, message).help(help)
        })?;
        let shape = size(heap, Some(listed.size)).ok_or_else(|| bad("a tensor's size is none"))?;
        let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1)));
        let bytes = elements.and_then(|elements| dtype.byte_len(elements));
        if bytes.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            let message = "the size of its elements overflows 63 bits";
            return Err(Diagnostic::error(FormatCode::ShapeOverflow, message).help(DAMAGED));
        }
        Ok(Tensor { dtype, shape, chunks: listed.chunks })
    }

    /// Returns the chunks of a tensor that hold elements, each box once.
    ///
    /// # Errors
    /// Returns `format/bad-header` for a chunk that is none.
    pub(super) fn chunks(&self, tensor: &Tensor<'_>) -> Result<Vec<Chunk>, Diagnostic> {
        let mut chunks = IndexMap::new();
        for chunk in tensor.chunks {
            let part = |name| size(self.heap, attribute(self.heap, *chunk, name));
            let (offsets, lengths) = part("offsets")
                .zip(part("sizes"))
                .filter(|(offsets, lengths)| [offsets.len(), lengths.len()] == [tensor.shape.len(); 2])
                .ok_or_else(|| bad("a chunk has no box of its tensor's dimensions"))?;
            // A rank whose share is empty writes a chunk without elements.
            if !lengths.contains(&0) {
                chunks.insert((offsets, lengths), ());
            }
        }
        Ok(chunks.into_keys().collect())
    }
}

fn entry<'h>(heap: &'h Heap, name: &'h str, value: Value) -> Result<Entry<'h>, Diagnostic> {
    if is_of(heap, value, "BytesStorageMetadata") {
        return Ok(Entry::Object);
    }
    let part = |part| attribute(heap, value, part);
    let chunks = part("chunks").and_then(|chunks| heap.sequence(chunks));
    match (part("properties"), part("size"), chunks) {
        (Some(properties), Some(size), Some(chunks)) if is_of(heap, value, "TensorStorageMetadata") => {
            Ok(Entry::Tensor(Listed { name, properties, size, chunks }))
        }
        _ => Err(bad(&format!("`{}` is neither a tensor nor an object", shown(name)))),
    }
}

fn place(heap: &Heap, value: Value) -> Option<Stored<'_>> {
    let part = |name| attribute(heap, value, name);
    let transforms = match part("transform_descriptors") {
        None | Some(Value::None) => &[],
        Some(transforms) => heap.sequence(transforms)?,
    };
    Some(Stored {
        file: heap.str(part("relative_path")?)?,
        offset: natural(part("offset")?)?,
        length: natural(part("length")?)?,
        transforms,
    })
}

/// Returns the names on the way to each entry, as the planner has kept them; of what another planner kept, nothing.
fn paths(heap: &Heap, planner: Option<Value>) -> HashMap<&str, Vec<String>> {
    let mut paths = HashMap::new();
    let mut left = MOST_NAMES;
    for (name, value) in planner.and_then(|planner| heap.entries(planner)).unwrap_or_default() {
        let (Some(name), Some(parts)) = (heap.str(*name), heap.sequence(*value)) else { continue };
        // The parts make the name, so that their length is known.
        let Some(rest) = left.checked_sub(2 * name.len() + 24 * parts.len()) else { break };
        let mut path: Vec<String> = Vec::new();
        let mut length = 0;
        for part in parts {
            let text = match *part {
                Value::Int(number) => number.to_string(),
                part => match heap.str(part) {
                    Some(text) => text.to_owned(),
                    None => break,
                },
            };
            length += text.len() + 1;
            if length > name.len() + 1 {
                break;
            }
            path.push(text);
        }
        if path.join(".") == name {
            left = rest;
            paths.insert(name, path);
        }
    }
    paths
}

/// Names what the bytes of a chunk went through.
pub(super) fn transforms(metadata: &Metadata<'_>, stored: &Stored<'_>) -> String {
    let names = stored.transforms.iter().take(4).map(|name| metadata.heap.str(*name).unwrap_or("?"));
    names.map(|name| format!("`{}`", shown(name))).collect::<Vec<_>>().join(", ")
}
