//! What a caller may ask of a binding beyond the two layouts.

use globset::GlobSet;

use crate::provenance::Provenance;

/// Something that is an error unless it is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allow {
    /// A tensor that no rule matches passes through untouched.
    Unmatched,
    /// The indices of a list are not 0, 1, 2, ….
    IndexGap,
    /// A parameter that the family requires is missing; target tensors that need it are left out.
    Missing,
    /// Padding that is not zero is dropped.
    NonzeroPadding,
    /// Some tensors lack the prefix that is to be stripped.
    MixedPrefix,
    /// A condition on the config is taken to hold where there is no config.
    MissingConfig,
}

impl Allow {
    /// Every kind with its name on the command line.
    pub const ALL: &[(Allow, &str)] = &[
        (Allow::Unmatched, "unmatched"),
        (Allow::IndexGap, "index-gap"),
        (Allow::Missing, "missing"),
        (Allow::NonzeroPadding, "nonzero-padding"),
        (Allow::MixedPrefix, "mixed-prefix"),
        (Allow::MissingConfig, "missing-config"),
    ];
}

/// What becomes of tied tensors that pass through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tied {
    /// One is kept; the report and the metadata name the others.
    #[default]
    KeepOne,
    /// Each is written.
    Duplicate,
}

/// What a caller may ask of a binding beyond the two layouts.
#[derive(Clone, Debug, Default)]
pub struct BindOptions {
    /// Sizes from the command line, `--axis h=12`.
    pub axes: Vec<(String, u64)>,
    /// What the source says of itself: its config, and what its files hold beside tensors.
    pub provenance: Provenance,
    /// Sizes that an earlier conversion recorded in the file.
    pub recorded: Vec<(String, u64)>,
    /// Only tensors that match are taken.
    pub only: Option<GlobSet>,
    /// Tensors that match are left out.
    pub drop: Option<GlobSet>,
    /// Leading components to remove from names, as often as they stand there, in any order.
    pub strip_prefix: Vec<String>,
    /// What goes before every name of the output.
    pub add_prefix: String,
    /// What becomes of tied tensors that pass through (`--tied`).
    pub tied: Tied,
    /// What is allowed.
    pub allow: Vec<Allow>,
    /// The type to which all floating-point tensors are cast.
    pub dtype: Option<crate::dtype::Dtype>,
}

impl BindOptions {
    /// Returns whether that is allowed.
    pub fn allows(&self, allow: Allow) -> bool {
        self.allow.contains(&allow)
    }
}
