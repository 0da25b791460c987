//! HDF5 files (HDF Group, "HDF5 File Format Specification Version 3.0"), as Keras, the TensorFlow models of Hugging Face
//! and h5py write them, and the `.keras` archives that hold one.
//!
//! The crate `hdf5-pure` reads the structures; where contiguous data lies is taken from it, and what is chunked or
//! compressed is decoded by it. New files are laid out here, in the old structures that h5py writes too by default.

mod dtype;
mod follow;
mod image;
mod keras;
mod links;
mod place;
mod read;
mod region;
mod structure;
mod walk;
mod write;

use super::spec::{Shards, Spec};
use super::store::OpenFile;
use crate::diag::Errors;

/// What the format is.
pub(super) const SPEC: Spec = Spec {
    name: "hdf5",
    file_name: "tf_model.h5",
    endings: &["h5", "hdf5"],
    shards: Shards::Index,
    is_it: |probe| Ok(superblock(probe.file)?.is_some()),
    may_be: Spec::NEVER,
    read: read::read,
    write: Some(|contents, out| write::lay_out(contents.tensors, contents.sizes, contents.metadata, out)),
    find: None,
};

/// What an archive of Keras is.
pub(super) const KERAS: Spec = Spec {
    name: "keras",
    file_name: "model.keras",
    endings: &["keras"],
    shards: Shards::None,
    is_it: |probe| Ok(probe.has_entry(|name| name.ends_with(".weights.h5"))),
    may_be: Spec::NEVER,
    read: keras::read_keras,
    write: None,
    find: None,
};

/// What an HDF5 file begins with, at its start or behind a user block of 512, 1024, 2048, … bytes.
/// (HDF Group, "HDF5 File Format Specification Version 3.0", II.A)
const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// Returns where the HDF5 file begins in a file, if it is one.
fn superblock(file: &OpenFile) -> Result<Option<u64>, Errors> {
    let mut at = 0;
    while file.size.checked_sub(8).is_some_and(|last| at <= last) {
        if file.bytes(at, 8)? == SIGNATURE {
            return Ok(Some(at));
        }
        at = if at == 0 { 512 } else { at.saturating_mul(2) };
    }
    Ok(None)
}

/// How many groups may stand inside each other, in files that are read and written; it ends walks in circles.
const DEEPEST: usize = 128;

/// The attributes that hold the names of the layers and of their weights, in order.
/// (keras-team/keras, `keras/src/legacy/saving/legacy_h5_format.py`)
const LAYER_NAMES: &str = "layer_names";
const WEIGHT_NAMES: &str = "weight_names";

/// The group of variables in the weights files of Keras 3. (keras-team/keras, `keras/src/saving/saving_lib.py`)
const VARS: &str = "vars";

/// The attribute by which Keras 3 tells what opaque bytes are, in the same file.
const DTYPE: &str = "dtype";

/// Returns the name of one of the attributes into which Keras cuts one that is too large: `layer_names0`, `layer_names1`, ….
fn numbered(name: &str, number: usize) -> String {
    format!("{name}{number}")
}

/// Returns an error of the crate in words that fit a message.
fn said(error: &hdf5_pure::Error) -> String {
    crate::format::shown(&error.to_string())
}
