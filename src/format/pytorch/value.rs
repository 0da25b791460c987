//! What a pickle describes, as inert data: nothing here stands for a living Python object.
//!
//! Everything lies in one arena, so that shared and cyclic references cost nothing and nothing deep is ever dropped
//! recursively.

use std::sync::Arc;

use crate::diag::{Diagnostic, FormatCode};
use crate::format::store::Store;

/// The most memory in bytes that a pickle's values may take. A tensor takes about 1 KB.
const MOST_MEMORY: u64 = 128 << 20;

/// The longest string in bytes that is kept; of longer ones only the place is. Names of tensors are strings.
const LONGEST_TEXT: u64 = 1 << 20;

/// The same for bytes, which are the content of NumPy arrays for the most part.
const LONGEST_BYTES: u64 = 1 << 12;

/// The most bytes of strings longer than that: the content of arrays, in old protocols, must not take the place of names.
const MOST_LONG: u64 = 8 << 20;

/// The most bytes that are kept of all strings and bytes together.
const MOST_TEXT: u64 = 32 << 20;

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::format) enum Value {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer that fits.
    Int(i64),
    /// A larger integer, little-endian in two's complement: a place in the heap's text.
    Big(Span),
    /// A floating-point number.
    Float(f64),
    /// A string, which is UTF-8.
    Text(Span),
    /// Bytes, or a string that is not UTF-8.
    Bytes(Span),
    /// An integer of so many bytes, too long to be kept.
    Long(u32),
    /// An entry of the heap.
    Node(Id),
}

/// A place in the heap's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::format) struct Span {
    start: u32,
    length: u32,
}

/// An entry of the heap.
pub(in crate::format) type Id = u32;

/// What has parts, or more than one reference to it.
#[derive(Debug)]
pub(in crate::format) enum Node {
    /// A tuple.
    Tuple(Vec<Value>),
    /// A list.
    List(Vec<Value>),
    /// A set, a frozen one too.
    Set(Vec<Value>),
    /// A dictionary or a `collections.OrderedDict`; a key may stand several times, the last of them counts.
    Dict(Vec<(Value, Value)>),
    /// Something that the pickle names: a class or a function, which is neither looked up nor called.
    Global(Span, Span),
    /// A text or bytes that are too long to be kept: where they stand in the pickle's store, and how many bytes.
    Long {
        /// Where they begin.
        position: u64,
        /// How many bytes they have.
        length: u64,
    },
    /// Something that lies outside the pickle, such as a storage.
    Persistent(Value),
    /// What a class or a function would have made.
    Object(Box<Object>),
}

/// What a class or a function would have made, had it been called.
#[derive(Debug)]
pub(in crate::format) struct Object {
    /// The class or the function.
    pub(super) callable: Value,
    /// What it would have been called with: a tuple.
    pub(super) args: Value,
    /// What its state would have been set to.
    pub(in crate::format) state: Value,
    /// What would have been appended to it.
    pub(super) items: Vec<Value>,
    /// The entries that it would have been given.
    pub(super) entries: Vec<(Value, Value)>,
}

/// The values of one pickle.
#[derive(Debug)]
pub(in crate::format) struct Heap {
    nodes: Vec<Node>,
    text: Vec<u8>,
    spent: u64,
    /// The store in which the pickle stands.
    pub(super) source: Arc<dyn Store>,
}

/// The tuple of nothing, of which there is one.
const EMPTY: Id = 0;

impl Heap {
    /// Makes a heap for the values of a pickle in that store.
    pub(super) fn new(source: Arc<dyn Store>) -> Heap {
        Heap { nodes: vec![Node::Tuple(Vec::new())], text: Vec::new(), spent: 0, source }
    }

    /// Returns the tuple of nothing.
    pub(super) fn empty_tuple(&self) -> Value {
        Value::Node(EMPTY)
    }

    /// Counts memory that is taken, and refuses where it is too much.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), Diagnostic> {
        self.spent = self.spent.saturating_add(bytes);
        if self.spent <= MOST_MEMORY {
            return Ok(());
        }
        let message = format!("what the pickle describes takes over {MOST_MEMORY} bytes without the tensors");
        let help = "load it in Python and save the state dict alone";
        Err(Diagnostic::error(FormatCode::PickleTooLarge, message).help(help))
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, node: Node) -> Result<Value, Diagnostic> {
        let inside = match &node {
            Node::Tuple(items) | Node::List(items) | Node::Set(items) => items.len() as u64 * 16,
            Node::Dict(entries) => entries.len() as u64 * 32,
            Node::Object(_) => size_of::<Object>() as u64 + 16,
            Node::Global(..) | Node::Persistent(_) | Node::Long { .. } => 0,
        };
        self.charge(inside + 2 * size_of::<Node>() as u64)?;
        // The memory that is charged keeps the count far below 32 bits.
        let id = self.nodes.len() as Id;
        self.nodes.push(node);
        Ok(Value::Node(id))
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns an entry.
    pub(super) fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(id) => self.nodes.get(id as usize),
            _ => None,
        }
    }

    /// Returns an entry that is to be changed.
    pub(super) fn node_mut(&mut self, value: Value) -> Option<&mut Node> {
        match value {
            Value::Node(id) => self.nodes.get_mut(id as usize),
            _ => None,
        }
    }

    /// Returns all entries.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns whether a string or bytes of that length are kept.
    pub(super) fn keeps(&self, length: u64, is_text: bool) -> bool {
        let longest = if is_text { LONGEST_TEXT } else { LONGEST_BYTES };
        let most = if length > LONGEST_BYTES { MOST_LONG } else { MOST_TEXT };
        length <= longest && self.text.len() as u64 + length <= most
    }

    /// Keeps bytes; [`Heap::keeps`] was asked, or they are the name of a global, which the pickle's size bounds.
    pub(super) fn keep(&mut self, bytes: &[u8]) -> Result<Span, Diagnostic> {
        // Twice, for what a growing vector may hold in reserve. The memory that is charged fits into 32 bits.
        self.charge(2 * bytes.len() as u64)?;
        let span = Span { start: self.text.len() as u32, length: bytes.len() as u32 };
        self.text.extend_from_slice(bytes);
        Ok(span)
    }

    /// Returns what was kept.
    pub(super) fn bytes(&self, span: Span) -> &[u8] {
        let start = span.start as usize;
        self.text.get(start..start.saturating_add(span.length as usize)).unwrap_or_default()
    }

    /// Returns a string.
    pub(in crate::format) fn str(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(span) | Value::Bytes(span) => str::from_utf8(self.bytes(span)).ok(),
            _ => None,
        }
    }

    /// Returns an object.
    pub(in crate::format) fn object(&self, value: Value) -> Option<&Object> {
        match self.node(value)? {
            Node::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Returns the items of a tuple or a list, a `torch.Size` too.
    pub(in crate::format) fn sequence(&self, value: Value) -> Option<&[Value]> {
        let value = match self.object(value) {
            Some(object) if self.is_global(object.callable, "torch.Size") => {
                *self.sequence_of_node(object.args)?.first().unwrap_or(&object.args)
            }
            _ => value,
        };
        self.sequence_of_node(value)
    }

    fn sequence_of_node(&self, value: Value) -> Option<&[Value]> {
        match self.node(value)? {
            Node::Tuple(items) | Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the entries of a dictionary.
    pub(in crate::format) fn entries(&self, value: Value) -> Option<&[(Value, Value)]> {
        match self.node(value)? {
            Node::Dict(entries) => Some(entries),
            _ => None,
        }
    }

    /// Returns what a dictionary holds under a string.
    pub(in crate::format) fn get(&self, value: Value, key: &str) -> Option<Value> {
        let entries = self.entries(value)?;
        entries.iter().rev().find(|(name, _)| self.str(*name) == Some(key)).map(|(_, value)| *value)
    }

    /// Returns the module and the name of a class or a function.
    pub(in crate::format) fn global(&self, value: Value) -> Option<(&str, &str)> {
        match self.node(value)? {
            Node::Global(module, name) => {
                Some((str::from_utf8(self.bytes(*module)).ok()?, str::from_utf8(self.bytes(*name)).ok()?))
            }
            _ => None,
        }
    }

    /// Returns whether it is the class or the function of that name, `module.name`.
    pub(super) fn is_global(&self, value: Value, path: &str) -> bool {
        self.global(value).is_some_and(|(module, name)| {
            path.strip_prefix(module).and_then(|rest| rest.strip_prefix('.')) == Some(name)
        })
    }

    /// Returns whether a value is the function `getattr`.
    pub(super) fn is_getattr(&self, value: Value) -> bool {
        matches!(self.global(value), Some(("builtins" | "__builtin__", "getattr")))
    }

    /// Returns the class of an object: what was called, or the class that a constructor of copyreg was given.
    pub(in crate::format) fn class(&self, object: &Object) -> Value {
        // (class, base, state): CPython, Lib/copyreg.py.
        let is_wrapped = ["copyreg", "copy_reg"].iter().any(|module| {
            self.global(object.callable).is_some_and(|(other, name)| {
                other == *module && matches!(name, "_reconstructor" | "__newobj__" | "__newobj_ex__")
            })
        });
        let class = match self.sequence(object.args) {
            Some([class, ..]) if is_wrapped => *class,
            _ => object.callable,
        };
        // ("module", class, file, source): pytorch/pytorch, torch/serialization.py, `_legacy_save`.
        match self.node(class) {
            Some(Node::Persistent(id)) => match self.sequence(*id) {
                Some([kind, inner, ..]) if self.str(*kind) == Some("module") => *inner,
                _ => class,
            },
            _ => class,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_small() {
        assert_eq!((size_of::<Value>(), size_of::<Node>()), (16, 32));
    }

    #[test]
    fn memory_is_bounded() {
        let mut heap = Heap::new(Arc::new(super::super::input::Memory(Vec::new())));
        let error = (0..10_000_000).find_map(|_| heap.add(Node::List(Vec::new())).err()).expect("refuses");
        assert_eq!(error.code, "format/pickle-too-large");
        assert!(heap.nodes.len() < 3_000_000);
    }
}
