//! What the files of a checkpoint are called, by format.

use super::Format;

/// What an index's name ends in.
const INDEX_ENDING: &str = ".index.json";
/// What the name of Keras's index ends in. (keras-team/keras, `keras/src/saving/saving_lib.py`: ShardedH5IOStore)
pub(super) const KERAS_INDEX_ENDING: &str = ".weights.json";

/// Returns whether a file's name is that of an index.
pub(super) fn is_index(name: &str) -> bool {
    name.ends_with(INDEX_ENDING) || name.ends_with(KERAS_INDEX_ENDING)
}

impl Format {
    /// Returns the name and the ending of a checkpoint of one file, as the transformers library looks for it
    /// (huggingface/transformers, `src/transformers/utils/__init__.py`) where it does.
    const fn name_and_ending(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Format::Safetensors => ("model", ".safetensors", "model.safetensors"),
            Format::PyTorch => ("pytorch_model", ".bin", "pytorch_model.bin"),
            Format::Npz => ("model", ".npz", "model.npz"),
            Format::Npy => ("model", ".npy", "model.npy"),
            Format::Hdf5 => ("tf_model", ".h5", "tf_model.h5"),
            Format::Keras => ("model", ".keras", "model.keras"),
            Format::TensorFlow => ("model", ".index", "model.index"),
            Format::Msgpack => ("flax_model", ".msgpack", "flax_model.msgpack"),
            Format::Gguf => ("model", ".gguf", "model.gguf"),
        }
    }

    /// Returns the ending of its files.
    pub(super) const fn ending(self) -> &'static str {
        self.name_and_ending().1
    }

    /// Returns whether checkpoints of the format can be cut into several files.
    pub const fn has_shards(self) -> bool {
        self.has_index() || matches!(self, Format::Gguf)
    }

    /// Returns whether the several files of a checkpoint have an index.
    pub const fn has_index(self) -> bool {
        matches!(self, Format::Safetensors | Format::PyTorch | Format::Hdf5 | Format::Msgpack)
    }
}

/// Returns the name of an index.
pub(crate) fn index_name(format: Format) -> String {
    format!("{}{INDEX_ENDING}", single_name(format))
}

/// Returns the name of a checkpoint of one file.
pub(crate) const fn single_name(format: Format) -> &'static str {
    format.name_and_ending().2
}

/// Returns the name of a shard; `position` counts from 0.
pub(super) fn shard_name(format: Format, position: usize, count: usize) -> String {
    let (name, ending, _) = format.name_and_ending();
    format!("{name}-{:05}-of-{count:05}{ending}", position + 1)
}
