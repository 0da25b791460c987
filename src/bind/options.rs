//! What a caller may ask of a binding beyond the two layouts.

use globset::{Glob, GlobMatcher, GlobSet};

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
    /// What belongs to a converted weight and is held by no rule passes through untouched.
    LeftBehind,
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
        (Allow::LeftBehind, "left-behind"),
    ];

    /// Returns what is allowed, in a few words.
    pub const fn about(self) -> &'static str {
        match self {
            Allow::Unmatched => "tensors that no rule matches pass through untouched",
            Allow::IndexGap => "numbers in names (layers, heads, files) may be missing",
            Allow::Missing => "parameters may be missing; target tensors that need them are left out",
            Allow::NonzeroPadding => "padding that is not zero is dropped",
            Allow::MixedPrefix => "some names may lack the prefix that is stripped",
            Allow::MissingConfig => "without a config its conditions are taken to hold",
            Allow::LeftBehind => "scales, norms and the like of a converted weight stay as they are",
        }
    }
}

/// What becomes of tied tensors that pass through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tied {
    /// One is kept; the report and the metadata name the others.
    #[default]
    KeepOne,
    /// Each is written.
    Duplicate,
}

/// Which modules the rules take (`--modules`): those whose path matches one of the globs, or any where there is none, and
/// none of the globs behind a `!`. A path is what the templates capture, its segments joined by dots or by slashes.
#[derive(Clone, Debug, Default)]
pub struct Modules {
    taken: Vec<GlobMatcher>,
    left: Vec<GlobMatcher>,
    /// Whether all are taken by choice.
    all: bool,
}

impl Modules {
    /// Adds a glob; `!` before it leaves out what it matches. `text` is as the caller wrote it.
    pub fn add(&mut self, text: &str, glob: &Glob) {
        let list = if text.starts_with('!') { &mut self.left } else { &mut self.taken };
        list.push(glob.compile_matcher());
    }

    /// Returns the choice of all modules, which is one that was made.
    pub fn all() -> Modules {
        Modules { all: true, ..Modules::default() }
    }

    /// Returns whether somebody has said which modules are meant.
    pub fn is_chosen(&self) -> bool {
        self.all || !self.is_empty()
    }

    /// Returns whether there is no glob.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.left.is_empty()
    }

    /// Returns whether the rules take a module of that path.
    pub fn takes(&self, segments: &[&str]) -> bool {
        let matched = |globs: &[GlobMatcher]| globs.iter().any(|glob| matches(glob, segments));
        (self.taken.is_empty() || matched(&self.taken)) && !matched(&self.left)
    }

    /// Returns the globs that match none of the modules, as they are written behind `--modules`.
    pub fn idle(&self, modules: &[Vec<&str>]) -> Vec<String> {
        let idle = |globs: &[GlobMatcher], sign: &str| -> Vec<String> {
            let unmatched = globs.iter().filter(|glob| !modules.iter().any(|path| matches(glob, path)));
            unmatched.map(|glob| format!("{sign}{}", glob.glob().glob())).collect()
        };
        [idle(&self.taken, ""), idle(&self.left, "!")].concat()
    }
}

fn matches(glob: &GlobMatcher, segments: &[&str]) -> bool {
    [".", "/"].iter().any(|separator| glob.is_match(segments.join(separator)))
}

/// What a caller may ask of a binding beyond the two layouts.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
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
    /// The modules that the rules take; the tensors of others pass through untouched.
    pub modules: Modules,
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
    /// Adds the size of an axis, `--axis h=12`.
    pub fn axis(mut self, name: impl Into<String>, size: u64) -> BindOptions {
        self.axes.push((name.into(), size));
        self
    }

    /// Sets the sizes of axes.
    pub fn axes(mut self, axes: impl IntoIterator<Item = (String, u64)>) -> BindOptions {
        self.axes = axes.into_iter().collect();
        self
    }

    /// Sets what the source says of itself.
    pub fn provenance(mut self, provenance: Provenance) -> BindOptions {
        self.provenance = provenance;
        self
    }

    /// Sets the sizes that an earlier conversion recorded in the file.
    pub fn recorded(mut self, sizes: impl IntoIterator<Item = (String, u64)>) -> BindOptions {
        self.recorded = sizes.into_iter().collect();
        self
    }

    /// Takes only tensors that match (`--only`).
    pub fn only(mut self, only: impl Into<Option<GlobSet>>) -> BindOptions {
        self.only = only.into();
        self
    }

    /// Leaves out tensors that match (`--drop`).
    pub fn drop(mut self, drop: impl Into<Option<GlobSet>>) -> BindOptions {
        self.drop = drop.into();
        self
    }

    /// Sets the modules that the rules take (`--modules`).
    pub fn modules(mut self, modules: Modules) -> BindOptions {
        self.modules = modules;
        self
    }

    /// Sets the leading components to remove from names (`--strip-prefix`).
    pub fn strip_prefix(mut self, prefixes: impl IntoIterator<Item = String>) -> BindOptions {
        self.strip_prefix = prefixes.into_iter().collect();
        self
    }

    /// Sets what goes before every name of the output (`--add-prefix`).
    pub fn add_prefix(mut self, prefix: impl Into<String>) -> BindOptions {
        self.add_prefix = prefix.into();
        self
    }

    /// Sets what becomes of tied tensors that pass through (`--tied`).
    pub fn tied(mut self, tied: Tied) -> BindOptions {
        self.tied = tied;
        self
    }

    /// Allows what is an error otherwise (`--allow`).
    pub fn allow(mut self, allow: impl IntoIterator<Item = Allow>) -> BindOptions {
        self.allow.extend(allow);
        self
    }

    /// Sets the type to which all floating-point tensors are cast (`--dtype`).
    pub fn dtype(mut self, dtype: impl Into<Option<crate::dtype::Dtype>>) -> BindOptions {
        self.dtype = dtype.into();
        self
    }

    /// Returns whether that is allowed.
    pub fn allows(&self, allow: Allow) -> bool {
        self.allow.contains(&allow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(globs: &[&str]) -> Modules {
        let mut modules = Modules::default();
        for text in globs {
            modules.add(text, &Glob::new(text.trim_start_matches('!')).expect("a glob"));
        }
        modules
    }

    #[test]
    fn modules_are_taken_by_their_paths() {
        let text = ["text", "0", "attn"];
        let vision = ["vision", "0", "attn"];
        for (globs, takes) in [
            (&[][..], (true, true)),
            (&["*"], (true, true)),
            (&["text.*"], (true, false)),
            (&["text/*"], (true, false)),
            (&["!vision.*"], (true, false)),
            (&["*attn", "!text.0.*"], (false, true)),
            (&["vision.*", "text.*"], (true, true)),
        ] {
            let modules = modules(globs);
            assert_eq!((modules.takes(&text), modules.takes(&vision)), takes, "{globs:?}");
        }
        let idle = modules(&["text.*", "audio.*", "!cross.*"]).idle(&[text.to_vec(), vision.to_vec()]);
        assert_eq!(idle, ["audio.*", "!cross.*"]);
    }
}
