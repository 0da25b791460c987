//! The safetensors format: an 8-byte little-endian length, a JSON header of that length, then the data.
//!
//! The checks are those of the reference implementation (huggingface/safetensors,
//! `safetensors/src/tensor.rs`) and more: that one takes a repeated key where both entries are equal.

pub(crate) mod header;
pub(crate) mod read;
pub mod write;
