//! Two checkpoints that hold the same weights → a mapping between their layouts.
//!
//! [`infer`] finds which lines of which source tensors a target tensor holds, by fingerprints that do not depend on the
//! order within a line (`matching`), reads loops out of the places (`nest`), makes blocks of them that target and
//! source have in common (`blocks`), and expresses both sides with the blocks as parameters (`express`, `axes`,
//! `roles`, `write`). What comes out is checked like any conversion: every element of the target is read through the mapping.

mod alike;
mod axes;
mod blocks;
mod check;
mod content;
mod express;
mod fit;
mod matching;
mod merge;
mod names;
mod nest;
mod roles;
mod solve;
mod write;

use std::path::PathBuf;

use crate::dtype::Dtype;
use crate::format::OpenOptions;
use crate::provenance::Document;

pub use check::infer;
pub use merge::merge;

/// A checkpoint to infer from.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// The checkpoint.
    pub path: PathBuf,
    /// How it is opened.
    pub open: OpenOptions,
    /// The config beside it.
    pub config: Option<Document>,
    /// What its layout is to be called.
    pub layout: String,
}

/// A layout, as text.
#[derive(Clone, Debug)]
pub struct LayoutText {
    /// Its name.
    pub name: String,
    /// The object, its inner lines indented by four spaces and more.
    pub text: String,
}

/// The entries of a mapping file, as names and JSON texts.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// The axes.
    pub axes: Vec<(String, String)>,
    /// The parameters.
    pub params: Vec<(String, String)>,
    /// The layouts.
    pub layouts: Vec<LayoutText>,
}

/// A tensor, or tensors of one template, that no rule holds.
#[derive(Clone, Debug)]
pub struct Unexplained {
    /// The names.
    pub tensors: Vec<String>,
    /// Why, and how far it came.
    pub why: String,
}

/// What was inferred.
#[derive(Clone, Debug, Default)]
pub struct Inferred {
    /// The mapping file.
    pub text: String,
    /// What the file is made of, to be [merged](merge) into another.
    pub parts: Parts,
    /// How many target tensors its rules give.
    pub tensors: u64,
    /// How many of their elements were compared with the source through the mapping.
    pub elements: u64,
    /// Target tensors without a rule.
    pub unexplained: Vec<Unexplained>,
    /// Source tensors that the target does not hold; the source's layout ignores them.
    pub unused: Vec<String>,
    /// Sizes that neither shapes nor a config tell: `--axis` has to, on the way there and on the way back.
    pub open: [Vec<(String, u64)>; 2],
    /// The type to which all floating-point tensors have to be cast on the way to the target.
    pub dtype: Option<Dtype>,
    /// What a reader of the mapping should know.
    pub notes: Vec<String>,
}

/// The types of the parts that [`Inferred`] is made from.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) text: String,
    pub(crate) parts: Parts,
    /// Sizes of axes that shapes may not tell.
    pub(crate) sizes: Vec<(String, u64)>,
    pub(crate) unexplained: Vec<Unexplained>,
    pub(crate) unused: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// Source tensors, and the target tensors that have parts of them.
    pub(crate) uses: Vec<(Vec<String>, Vec<String>)>,
}
