//! How much room an output needs.

use std::fs;

use super::{Staging, kept};
use crate::format::output::{Content, OutputFile, OutputLayout};

impl Staging {
    /// Returns the bytes that are to be written, without the files that an earlier run has finished. What is replaced stays
    /// until the new files are whole, so that its room does not count.
    pub(super) fn needed(&self, layout: &OutputLayout) -> u64 {
        let is_open =
            |file: &&OutputFile| kept::whole(&self.work, &self.staged_name(&file.name), file.size).is_none();
        let open = layout.files.iter().filter(is_open);
        let companions = layout.companions.iter().map(|companion| match &companion.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Copy(from, _) => fs::metadata(from).map_or(0, |metadata| metadata.len()),
        });
        open.map(|file| file.size).chain(companions).fold(0, u64::saturating_add)
    }
}
