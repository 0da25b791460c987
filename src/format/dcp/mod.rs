//! Folders of torch.distributed.checkpoint: `.metadata`, a pickle that lists tensors and their chunks, and `*.distcp` files, in
//! which each chunk is an archive of `torch.save`.
//!
//! [`metadata`] reads the list; [`read`] finds the chunks. Source: pytorch/pytorch, torch/distributed/checkpoint/metadata.py
//! and filesystem.py.

mod metadata;
mod read;

use std::path::{Path, PathBuf};

use super::spec::{Find, Probe, Shards, Spec};
use super::store::OpenFile;
use crate::diag::Errors;

/// The name of the list. It is written last, so that a folder without it was never finished.
const LIST: &str = ".metadata";

/// The module of the list's classes. Its name stands at the beginning of the list.
const MODULE: &[u8] = b"torch.distributed.checkpoint.metadata";

/// How many bytes are looked at to tell a list.
const HEAD: u64 = 256;

/// What the format is.
pub(super) const SPEC: Spec = Spec {
    name: "dcp",
    file_name: LIST,
    endings: &["metadata"],
    shards: Shards::Apart,
    // A damaged list is no file of `torch.save`, which would say of other things that they are wrong.
    is_it: |probe| Ok(is_list(probe.head) || is_named(probe) && matches!(probe.head, [0x80, 2..=5, ..])),
    may_be: is_named,
    read: read::read,
    write: None,
    find: Some(Find { named: |_| None, in_folder }),
};

fn is_named(probe: &Probe<'_>) -> bool {
    probe.file.path.file_name().is_some_and(|name| name == LIST)
}

fn is_list(head: &[u8]) -> bool {
    matches!(head, [0x80, 2..=5, ..]) && head.windows(MODULE.len()).any(|bytes| bytes == MODULE)
}

/// Returns the list of a folder that is such a checkpoint; another program's `.metadata` is none.
fn in_folder(folder: &Path) -> Result<Option<PathBuf>, Errors> {
    let path = folder.join(LIST);
    // Megatron-Core keeps such files too, and half of what they mean in `common.pt`.
    if !path.is_file() || folder.join("common.pt").exists() {
        return Ok(None);
    }
    let file = OpenFile::open(&path)?;
    let head = file.bytes(0, HEAD.min(file.size))?;
    let is_beside_parts = || super::listing::names_in(folder).iter().any(|name| name.ends_with(".distcp"));
    Ok((is_list(&head) || is_beside_parts()).then_some(path))
}
