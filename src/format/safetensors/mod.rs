//! The safetensors format (huggingface/safetensors, `README.md`): the length of a header, the header, the data.

pub(super) mod header;
pub(super) mod read;
pub(super) mod write;
