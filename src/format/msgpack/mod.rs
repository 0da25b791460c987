//! Flax's msgpack (google/flax, `flax/serialization.py`): nested maps whose leaves are arrays, each an extension of type 1
//! that holds the shape, the name of the type and the bytes.

mod chunked;
mod read;
#[cfg(test)]
mod tests;
mod types;
mod walk;
mod write;

use super::spec::{Shards, Spec};

/// What the format is.
pub(super) const SPEC: Spec = Spec {
    name: "msgpack",
    file_name: "flax_model.msgpack",
    endings: &["msgpack"],
    shards: Shards::Index,
    // A map, and as its first key a text.
    is_it: |probe| {
        Ok(matches!(probe.head[..], [0x81..=0x8f, 0xa0..=0xbf | 0xd9..=0xdb, ..] | [0xde | 0xdf, ..]))
    },
    may_be: Spec::NEVER,
    read: read::read,
    write: Some(|contents, out| write::lay_out(contents.tensors, contents.sizes, contents.metadata, out)),
    find: None,
};

/// The extension type of an array (`_MsgpackExtType` in google/flax, `flax/serialization.py`).
const ARRAY: i8 = 1;
/// That of a Python complex number.
const COMPLEX: i8 = 2;
/// That of a NumPy scalar, which is stored as an array without dimensions.
const SCALAR: i8 = 3;
/// How deep maps and lists may be nested.
const DEEPEST: usize = 128;
