//! The file of PyTorch 0.1.10 to 1.5: five pickles, and the storages one after the other.
//!
//! Source: pytorch/pytorch, torch/serialization.py (`_legacy_save`, `_legacy_load`) and torch/csrc/generic/serialization.cpp
//! (`writeFileRaw`): the count of elements before each storage is little-endian, in old versions in the order of the
//! machine; the elements are little-endian on every machine.

use std::collections::HashMap;
use std::sync::Arc;

use super::MOST_PICKLE;
use super::input::{Input, unread};
use super::pickle;
use super::place::{DAMAGED, Place, Storages};
use super::rebuild::storage_id;
use super::storage::StorageId;
use super::value::{Heap, Node, Value};
use crate::diag::{Diagnostic, FormatCode};
use crate::format::shown;
use crate::format::store::{OpenFile, Store};

/// 0x1950a86a20f9469cfc6c, little-endian.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// The version of the file's structure.
const VERSION: i64 = 1001;

/// The bytes within which the pickle of the magic number ends, in every protocol.
const MAGIC_END: u64 = 64;

/// Where each storage begins, and its bytes.
type Places = HashMap<String, (u64, u64)>;

/// Reads the pickles and finds the storages.
///
/// # Errors
/// Returns `format/not-pytorch` for another pickle, and what is wrong with the pickles and the storages.
pub(super) fn open(file: &Arc<OpenFile>) -> Result<(Heap, Value, Legacy), Diagnostic> {
    let store = || Arc::clone(file) as Arc<dyn Store>;
    let mut first = Input::new(store(), 0, file.size.min(MAGIC_END));
    let is_ours = pickle::run(&mut first)
        .is_ok_and(|(heap, value)| matches!(value, Value::Big(span) if heap.bytes(span) == MAGIC));
    if !is_ours {
        let message = "it is a Python pickle, but none that torch.save wrote";
        let help = "load it in Python and save the tensors with torch.save or safetensors";
        return Err(Diagnostic::error(FormatCode::NotPytorch, message).help(help));
    }
    let mut input = Input::new(store(), first.position(), file.size.min(MOST_PICKLE));
    let (_, version) = pickle::run(&mut input)?;
    if version != Value::Int(VERSION) {
        let message = "the version of the file's structure is not known";
        let diagnostic = Diagnostic::error(FormatCode::BadPickle, message).expected(VERSION.to_string());
        return Err(diagnostic.help("load it in Python and save it again"));
    }
    let (machine, information) = pickle::run(&mut input)?;
    let is_big = machine.get(information, "little_endian") == Some(Value::Bool(false));
    let (heap, value) = pickle::run(&mut input)?;
    let (names, keys) = pickle::run(&mut input)?;
    let (places, end) = storages(file, input.position(), &heap, (&names, keys), is_big)?;
    Ok((heap, value, Legacy { places, rest: file.size - end }))
}

/// Where the storages lie, each behind the one before it, and where the last ends.
fn storages(
    file: &Arc<OpenFile>,
    mut position: u64,
    heap: &Heap,
    (names, keys): (&Heap, Value),
    is_big: bool,
) -> Result<(Places, u64), Diagnostic> {
    let mut ids: HashMap<String, StorageId> = HashMap::new();
    let persistent = heap.nodes().iter().zip(0..).filter(|(node, _)| matches!(node, Node::Persistent(_)));
    for id in persistent.filter_map(|(_, id)| storage_id(heap, Value::Node(id)).ok()) {
        ids.entry(id.key.clone()).or_insert(id);
    }
    let keys = names.sequence(keys).ok_or_else(|| {
        Diagnostic::error(FormatCode::BadPickle, "the names of the storages are no list").help(DAMAGED)
    })?;
    let mut places = Places::with_capacity(keys.len());
    for key in keys {
        let key = match *key {
            Value::Int(key) => key.to_string(),
            key => names.str(key).map(str::to_owned).unwrap_or_default(),
        };
        let id = ids.get(&key).ok_or_else(|| {
            let message =
                format!("the file holds a storage `{}`, but does not say of which type", shown(&key));
            Diagnostic::error(FormatCode::BadStorage, message).help(DAMAGED)
        })?;
        let found = count(file, position, is_big, id)?;
        // The count was read from before the end of the file.
        let start = position + 8;
        let bytes = found.checked_mul(id.element.width).filter(|&bytes| bytes <= file.size - start);
        let Some(bytes) = bytes else {
            let message = format!(
                "the file ends at byte {}, inside the storage `{}` of {found} elements at byte {start}",
                file.size,
                shown(&key)
            );
            return Err(Diagnostic::error(FormatCode::Truncated, message).help(DAMAGED));
        };
        if places.insert(key.clone(), (start, bytes)).is_some() {
            let message = format!("the file holds the storage `{}` twice", shown(&key));
            return Err(Diagnostic::error(FormatCode::BadStorage, message).help(DAMAGED));
        }
        position = start + bytes;
    }
    Ok((places, position))
}

/// Reads the count of elements before a storage.
fn count(file: &Arc<OpenFile>, position: u64, is_big: bool, id: &StorageId) -> Result<u64, Diagnostic> {
    let mut bytes = [0; 8];
    if position.checked_add(8).is_none_or(|end| end > file.size) {
        let message = format!("the file ends at byte {} before the storage `{}`", file.size, shown(&id.key));
        return Err(Diagnostic::error(FormatCode::Truncated, message).help(DAMAGED));
    }
    file.read_exact_at(position, &mut bytes).map_err(|error| unread(&error))?;
    let little = u64::from_le_bytes(bytes);
    let big = u64::from_be_bytes(bytes);
    Ok(if is_big && little != id.count && big == id.count { big } else { little })
}

/// The storages of such a file.
#[derive(Debug)]
pub(super) struct Legacy {
    places: Places,
    /// The bytes behind the last.
    rest: u64,
}

impl Legacy {
    /// Warns of bytes behind the last storage, which PyTorch reads over.
    pub(super) fn warning(&self) -> Option<Diagnostic> {
        let message = format!("{} bytes follow the last storage and are not read", self.rest);
        (self.rest > 0).then(|| Diagnostic::warning(FormatCode::TrailingBytes, message))
    }
}

impl Storages for Legacy {
    fn find(&mut self, id: &StorageId, _swapped: u64) -> Result<Place, Diagnostic> {
        let Some(&(start, found)) = self.places.get(&id.key) else {
            let message = format!("its storage `{}` is not in the file", shown(&id.key));
            return Err(Diagnostic::error(FormatCode::BadStorage, message).help(DAMAGED));
        };
        let stated = id.count.checked_mul(id.element.width);
        if stated != Some(found) {
            let message = format!("its storage `{}` has another size than the pickle says", shown(&id.key));
            let expected = format!("{} elements of {} bytes", id.count, id.element.width);
            let diagnostic = Diagnostic::error(FormatCode::BadStorage, message).expected(expected);
            return Err(diagnostic.found(format!("{found} bytes")).help(DAMAGED));
        }
        Ok(Place { store: 0, start })
    }
}
