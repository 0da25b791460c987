//! What the files of a checkpoint are called, by format.

/// What an index's name ends in.
const INDEX_ENDING: &str = ".index.json";
/// What the name of Keras's index ends in. (keras-team/keras, `keras/src/saving/saving_lib.py`: ShardedH5IOStore)
pub(super) const KERAS_INDEX_ENDING: &str = ".weights.json";

/// Returns whether a file's name is that of an index.
pub(super) fn is_index(name: &str) -> bool {
    name.ends_with(INDEX_ENDING) || name.ends_with(KERAS_INDEX_ENDING)
}

/// Returns the name of the index of a checkpoint whose one file would have that name.
pub(crate) fn index_name(single: &str) -> String {
    format!("{single}{INDEX_ENDING}")
}

/// Returns the name of a shard of a checkpoint whose one file would have that name; `position` counts from 0.
pub(super) fn shard_name(single: &str, position: usize, count: usize) -> String {
    let (name, ending) = single.rsplit_once('.').unwrap_or((single, ""));
    format!("{name}-{:05}-of-{count:05}.{ending}", position + 1)
}
