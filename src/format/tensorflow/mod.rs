//! TensorFlow checkpoints (TensorBundle): an index, `PREFIX.index`, and data files, `PREFIX.data-00000-of-00001`.
//!
//! The index is a sorted table of names ([`table`]); each value says where a tensor lies ([`proto`]). A variable may be
//! saved in slices ([`slices`]). The data is checked against the index's checksums when it is read ([`checked`]).

mod bundle;
mod checked;
mod find;
mod interleave;
mod proto;
mod slices;
mod table;
#[cfg(test)]
mod testing;

pub(super) use bundle::read;
pub(super) use find::{index_of_prefix, latest_in};
pub(super) use table::TABLE_MAGIC;

/// What to do about a file that contradicts itself.
const DAMAGED: &str = "copy or download the checkpoint again, or save it again";

/// Returns a CRC-32C as it is stored (google/leveldb, `util/crc32c.h`): a checksum of bytes that hold checksums would
/// be weak otherwise.
const fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}
