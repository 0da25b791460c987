//! The GGUF format (ggml-org/ggml, `docs/gguf.md`): typed metadata, a table of tensors, their data.

mod header;
mod read;
#[cfg(test)]
mod tests;
mod types;
mod write;

use super::spec::{Shards, Spec};

/// What the format is.
pub(super) const SPEC: Spec = Spec {
    name: "gguf",
    file_name: "model.gguf",
    endings: &["gguf"],
    // `split.no` and `split.count` have 16 bits (ggml-org/llama.cpp, `include/llama.h`, llama_split_path).
    shards: Shards::Numbered(u16::MAX as usize),
    is_it: |probe| Ok(probe.starts(b"GGUF")),
    may_be: Spec::NEVER,
    read: read::read,
    write: Some(|contents, out| {
        let (tensors, sizes, metadata) = (contents.tensors, contents.sizes, contents.metadata);
        write::lay_out(tensors, sizes, metadata, contents.template, contents.split, out)
    }),
    find: None,
};
