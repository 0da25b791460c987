//! What a conversion records of itself in the output's metadata, and what a later one reads there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bind::Size;
use crate::diag::{Collector, Diagnostic, Errors, IdentityCode};
use crate::mapping::Mapping;

/// The metadata key.
const KEY: &str = "qkvconv";

/// The layout that a file holds, as the conversion that wrote it recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `family/layout`
    pub layout: String,
    /// Sizes that are the same in the whole checkpoint, by axis.
    pub sizes: BTreeMap<String, u64>,
    /// The paths of the modules that hold the layout, folded, where others were left as they were (`--modules`); empty:
    /// all that its rules match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
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
            modules: Vec::new(),
            mapping: mapping_hash.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Records that these modules alone hold the layout.
    pub fn only(mut self, modules: Vec<String>) -> Identity {
        self.modules = modules;
        self
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

    /// Checks that the record agrees with what the caller says: the layout with `option`, `--from` or `--to`, and sizes
    /// with `--axis`.
    ///
    /// # Errors
    /// Returns `identity/layout` where the file is recorded to hold another layout, else `identity/axis` for every axis
    /// that is recorded to have another size.
    pub fn check(
        &self,
        family: &str,
        layout: &str,
        option: &str,
        axes: &[(String, u64)],
    ) -> Result<(), Errors> {
        if self.layout == format!("{family}/{layout}") {
            return self.check_axes(axes);
        }
        Err(Diagnostic::error(
            IdentityCode::Layout,
            format!("the file records another layout than {option} says"),
        )
        .expected(format!("`{}`, as recorded by qkvconv {}", self.layout, self.version))
        .found(format!("{option} {layout}"))
        .help(format!("use {option} {}, or overrule the record with --trust-layout", self.layout))
        .into())
    }

    /// Checks that the record agrees with the sizes that the caller says.
    ///
    /// # Errors
    /// Returns `identity/axis` for every axis that is recorded to have another size.
    pub fn check_axes(&self, axes: &[(String, u64)]) -> Result<(), Errors> {
        let mut errors = Collector::default();
        for (axis, size) in axes {
            let Some(recorded) = self.sizes.get(axis).filter(|recorded| *recorded != size) else { continue };
            let message = format!("the file records another size of `{axis}` than --axis says");
            errors.push(
                Diagnostic::error(IdentityCode::Axis, message)
                    .expected(format!("`{axis}` = {recorded}, as recorded by qkvconv {}", self.version))
                    .found(format!("--axis {axis}={size}"))
                    .help(format!("leave --axis {axis} out, or overrule the record with --trust-layout")),
            );
        }
        errors.finish(()).map(|_| ())
    }

    /// Returns a warning where the layout comes from another mapping file, or from another version of it, than the one
    /// that is used now.
    pub fn changed(&self, mapping: &Mapping) -> Option<Diagnostic> {
        (self.mapping != mapping.hash).then(|| {
            let message = format!("`{}` may have changed since the file was written", self.layout);
            Diagnostic::warning(IdentityCode::Mapping, message)
                .expected(format!("the mapping whose BLAKE3 is {:.16}…, as recorded by qkvconv {}", self.mapping, self.version))
                .found(format!("{} ({:.16}…)", mapping.source.name, mapping.hash))
                .help("if the layout describes the same arrangement still, there is nothing to do; the output is read back either way")
        })
    }
}
