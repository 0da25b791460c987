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

/// Returns the name of an index.
pub(crate) fn index_name(format: Format) -> String {
    format!("{}{INDEX_ENDING}", format.single_name())
}

/// Returns the name of a shard; `position` counts from 0.
pub(super) fn shard_name(format: Format, position: usize, count: usize) -> String {
    let ending = format.ending();
    let name = format.single_name().strip_suffix(ending).unwrap_or_default();
    format!("{name}-{:05}-of-{count:05}{ending}", position + 1)
}
