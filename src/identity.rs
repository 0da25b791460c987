//! What a conversion records of itself in the output's metadata, and what a later one reads there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bind::Size;
use crate::diag::{Diagnostic, Errors};

/// The metadata key.
const KEY: &str = "qkvconv";

/// The layout that a file holds, as the conversion that wrote it recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `family/layout`
    pub layout: String,
    /// Sizes that are the same in the whole checkpoint, by axis.
    pub sizes: BTreeMap<String, u64>,
    /// BLAKE3 of the mapping file.
    pub mapping: String,
    /// The version of this program.
    pub version: String,
}

impl Identity {
    /// Makes the record of a conversion's output.
    pub fn new(family: &str, layout: &str, mapping_hash: &str, sizes: &[Size]) -> Identity {
        let same = |size: &&Size| sizes.iter().filter(|other| other.axis == size.axis).count() == 1;
        Identity {
            layout: format!("{family}/{layout}"),
            sizes: sizes.iter().filter(same).map(|size| (size.axis.clone(), size.value)).collect(),
            mapping: mapping_hash.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Reads the record, if there is one that can be read.
    pub fn read(metadata: &BTreeMap<String, String>) -> Option<Identity> {
        serde_json::from_str(metadata.get(KEY)?).ok()
    }

    /// Puts the record into a file's metadata.
    pub fn write(&self, metadata: &mut BTreeMap<String, String>) {
        // Strings and numbers alone: nothing that could fail to serialize.
        metadata.insert(KEY.to_owned(), serde_json::to_string(self).unwrap_or_default());
    }

    /// Checks that the record agrees with what the caller says with `option`, `--from` or `--to`.
    ///
    /// # Errors
    /// Returns `identity/layout` where the file is recorded to hold another layout.
    pub fn check(&self, family: &str, layout: &str, option: &str) -> Result<(), Errors> {
        if self.layout == format!("{family}/{layout}") {
            return Ok(());
        }
        Err(Diagnostic::error(
            "identity/layout",
            format!("the file records another layout than {option} says"),
        )
        .expected(format!("`{}`, as recorded by qkvconv {}", self.layout, self.version))
        .found(format!("{option} {layout}"))
        .help(format!("use {option} {}, or overrule the record with --trust-layout", self.layout))
        .into())
    }
}
