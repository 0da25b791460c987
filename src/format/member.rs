//! What a file itself says of others that belong to it.

/// What a file itself says of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    /// It is one of several GGUF files (`split.*`).
    Split(Split),
    /// It was written by torch.distributed.checkpoint and may hold slices of its tensors (`DCP_SHARDING_INFO`); whether one
    /// of them begins elsewhere than the tensor does.
    Slices {
        /// Whether an offset is other than 0.
        displaced: bool,
    },
}

/// The place of a GGUF file among several. (ggml-org/llama.cpp, `tools/gguf-split/gguf-split.cpp`)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Its number from 0 (`split.no`).
    pub(crate) number: u64,
    /// How many there are (`split.count`), at least 2.
    pub(crate) count: u64,
    /// The tensors of all together (`split.tensors.count`).
    pub(crate) tensors: Option<u64>,
}
