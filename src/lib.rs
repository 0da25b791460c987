//! Rewrites transformer checkpoints from one weight layout to another, and proves that nothing was mixed.
//!
//! A layout is data: a [mapping file](mapping) names the parameters of a model family once and says for each layout, in
//! an [axis notation](notation), which stored tensor holds them. Reading one layout and writing another is then one
//! operation for every pair.
//!
//! | stage | module | what it does |
//! |---|---|---|
//! | read | [`mapping`], [`notation`] | mapping text → typed tree with source spans |
//! | open | [`mod@format`] | checkpoint headers → [`catalog::Catalog`] |
//! | bind | [`mod@bind`] | every name to its rule, every axis to its size |
//! | plan | [`plan`] | strided copies per target tensor |
//! | prove | [`plan::prove()`] | each source element used once, each target element written once |
//! | execute | [`exec`] | streamed, parallel, in bounded memory |
//! | weigh | [`evidence`] | whether trained weights agree with the declared source layout |
//! | verify | [`verify`] | a second reading of the expressions, attention computed from both files |
//! | recognise | [`provenance`], [`claims`], [`detect`], [`mod@recognise`] | what a checkpoint says of itself, which layout it has |
//! | explain | [`inspect`], [`mod@explain`] | where heads lie, layouts in words |
//! | author | [`draft`], [`infer`], [`lint`] | mapping files begun, found from contents, checked |
//!
//! Everything up to the proof works on headers alone, and all errors are collected ([`diag`]) before a byte is
//! written. [`Conversion`] goes the whole way, from a checkpoint (a file or a folder in any [`Format`]) to another one
//! that is checked:
//!
//! ```
//! use std::path::Path;
//!
//! use qkvconv::{Conversion, ConvertOptions, Destination, Limits, PublishOptions, Verification, Verify};
//! use qkvconv::{VerifyOptions, select_for};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A folder with a checkpoint and its config: a transformer encoder with one fused q, k, v matrix for each layer.
//! let source = Path::new("tests/data/digits");
//! # let scratch = tempfile::tempdir()?;
//! # let folder = scratch.path().join("per-head");
//! # let folder = folder.as_path();
//! let destination = Destination::resolve(folder);
//! let options = ConvertOptions::default().for_destination(&destination)?;
//!
//! // Two layouts of one family; `auto` is the one that explains the source's names, shapes and config.
//! let layouts = select_for("auto", "attention/per-head", &[], source, &options)?;
//! assert_eq!(layouts.found.as_deref(), Some("attention/pytorch-fused"));
//!
//! // Bound, planned and proved from headers: each source element is used once, each target element written once.
//! let conversion = Conversion::prepare(&layouts.selection, source, &options)?;
//! assert_eq!(conversion.bound.sizes[0].axis, "h");
//! assert_eq!(conversion.plan.targets.len(), 118);
//! assert_eq!((conversion.proof.sources, conversion.proof.targets), (43, 118));
//!
//! // Written under temporary names, read back, computed with, and published where it agrees. `&()` watches nothing.
//! let (limits, publish) = (Limits::default(), PublishOptions::default());
//! let done = conversion.run(&destination, publish, Verify::Full, &limits, &())?;
//! done.verdict()?;
//! println!("wrote {:?}", done.files);
//!
//! // Any two checkpoints can be held against each other later, whatever has converted them.
//! let verification =
//!     Verification::prepare(&layouts.selection, source, folder, &VerifyOptions::default())?;
//! let checked = verification.run(&limits, &())?;
//! assert_eq!((checked.read_back.tensors, checked.read_back.elements), (118, 90370));
//! checked.verdict()?;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/` has five programs: a folder is converted, heads are inspected, two checkpoints verified, a mapping of
//! one's own used, tensors read in another layout without writing a file.
//!
//! | first met | |
//! |---|---|
//! | [`select`], [`select_for`] → [`Selection`] | the two layouts of a conversion, by name or recognised |
//! | [`Conversion`], [`ConvertOptions`] | what will be done, proved; then [`Conversion::run`] or [`Conversion::tensor`] |
//! | [`Verification`], [`VerifyOptions`] | two checkpoints that are to hold the same |
//! | [`recognise()`] → [`Recognised`] | what a checkpoint is |
//! | [`open`] → [`Reader`], [`Catalog`] | names, types, shapes and bytes of a checkpoint, as it is |
//! | [`read_mapping`] → [`Mapping`], [`Layout`] | a family and its layouts |
//! | [`Errors`], [`Diagnostic`], [`Code`] | everything that is wrong, as data; [`codes`] documents each code |
//! | [`Progress`] | who watches, and may stop the work; `()` does neither |
//!
//! The library never prints and never exits. What only the command line needs (clap, indicatif, ctrlc,
//! annotate-snippets) comes with the default feature `cli`; `default-features = false` leaves it out.

pub mod bind;
pub mod catalog;
pub mod claims;
pub mod codes;
pub mod convert;
pub mod detect;
pub mod diag;
pub mod diff;
pub mod draft;
pub mod dtype;
mod element;
pub mod evidence;
pub mod exec;
pub mod explain;
pub mod fold;
pub mod format;
pub mod identity;
pub mod infer;
pub mod inspect;
pub mod lint;
pub mod mapping;
pub mod notation;
mod parallel;
pub mod plan;
mod positioned;
pub mod progress;
pub mod provenance;
mod random;
pub mod read;
pub mod recognise;
pub mod report;
pub mod shown;
pub mod span;
mod text;
pub mod verify;

pub use bind::{Allow, BindOptions, Bound, Modules, Tied};
pub use catalog::{Catalog, TensorMeta};
pub use convert::{Checked, Conversion, ConvertOptions, Done, Verification, Verify, VerifyOptions};
pub use diag::{Class, Code, Diagnostic, Errors, Severity};
pub use dtype::Dtype;
pub use exec::Limits;
pub use exec::publish::{Destination, PublishOptions};
pub use format::{Format, OpenOptions, Reader, open};
pub use mapping::select::{Selection, select};
pub use mapping::{Layout, Mapping, read as read_mapping};
pub use plan::Plan;
pub use plan::prove::Proof;
pub use progress::Progress;
pub use provenance::Provenance;
pub use recognise::{Recognised, Selected, recognise, select_for};
pub use span::{Source, Span};
