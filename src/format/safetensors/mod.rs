//! The safetensors format (huggingface/safetensors, `README.md`): the length of a header, the header, the data.

pub(super) mod header;
mod read;
mod write;

use super::spec::{Shards, Spec};

/// What the format is.
pub(super) const SPEC: Spec = Spec {
    name: "safetensors",
    file_name: "model.safetensors",
    endings: &["safetensors"],
    shards: Shards::Index,
    is_it: |probe| Ok(looks_like(probe.head)),
    may_be: |probe| {
        let is_named = probe.file.path.extension().is_some_and(|ending| ending == "safetensors");
        // The second: a header over the limit.
        is_named && probe.head.len() < 9 || probe.head.get(8) == Some(&b'{')
    },
    read: |file, _, out| read::read(file, out),
    write: Some(|contents, out| write::lay_out(contents.tensors, contents.sizes, contents.metadata, out)),
    find: None,
};

/// Returns whether a file begins as these do.
pub(super) fn looks_like(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<8>() else { return false };
    rest.first() == Some(&b'{') && u64::from_le_bytes(*length) <= header::LIMIT
}
