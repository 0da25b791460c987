//! TensorFlow checkpoints (TensorBundle): an index, `PREFIX.index`, and data files, `PREFIX.data-00000-of-00001`.
//!
//! The index is a sorted table of names ([`table`]); each value says where a tensor lies ([`proto`]). A variable may be
//! saved in slices ([`slices`]). The data is checked against the index's checksums when it is read ([`checked`]).
//! A new checkpoint has one data file ([`write`]); where names are those of objects it describes them ([`graph`]).

mod bundle;
mod checked;
mod find;
mod graph;
mod interleave;
mod proto;
mod slices;
mod table;
#[cfg(test)]
mod testing;
mod write;

use super::io_error;
use super::layout::masked;
use super::spec::{Find, Shards, Spec};
use super::store::Store;
pub(super) use table::TABLE_MAGIC;

/// What the format is.
pub(super) const SPEC: Spec = Spec {
    name: "tensorflow",
    file_name: "model.ckpt.index",
    endings: &["index"],
    shards: Shards::Apart,
    is_it: |probe| {
        let Some(start) = probe.file.size.checked_sub(8) else { return Ok(false) };
        let mut end = [0; 8];
        let read = probe.file.read_exact_at(start, &mut end);
        read.map_err(|error| io_error(&probe.file.path, "read it", &error))?;
        Ok(end == TABLE_MAGIC)
    },
    // Without its last bytes a table is nothing; a name tells then at least what is damaged.
    may_be: |probe| probe.file.path.extension().is_some_and(|ending| ending == "index"),
    read: bundle::read,
    write: Some(write::lay_out),
    find: Some(Find { named: find::index_of_prefix, in_folder: find::latest_in }),
};

/// What to do about a file that contradicts itself.
const DAMAGED: &str = "copy or download the checkpoint again, or save it again";
