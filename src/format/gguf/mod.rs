//! The GGUF format (ggml-org/ggml, `docs/gguf.md`): typed metadata, a table of tensors, their data.

mod header;
mod read;
#[cfg(test)]
mod tests;
mod types;
pub(super) mod write;

pub(super) use read::read;
