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
//! | recognise | [`provenance`], [`claims`], [`detect`], [`recognise`] | what a checkpoint says of itself, which layout it has |
//! | explain | [`inspect`], [`mod@explain`] | where heads lie, layouts in words |
//! | author | [`draft`], [`infer`], [`lint`] | mapping files begun, found from contents, checked |
//!
//! Everything up to the proof works on headers alone, and all errors are collected ([`diag`]) before a byte is
//! written. [`convert`] goes the whole way:
//!
//! ```no_run
//! use qkvconv::convert::{Conversion, ConvertOptions};
//! use qkvconv::mapping::select::select;
//!
//! let layouts = select("pytorch-fused", "per-head", &[])?;
//! let conversion = Conversion::prepare(&layouts, "model.safetensors".as_ref(), &ConvertOptions::default())?;
//! println!("{} tensors will be written", conversion.plan.targets.len());
//! # Ok::<(), qkvconv::diag::Errors>(())
//! ```
//!
//! The library never prints and never exits.

pub mod bind;
pub mod catalog;
pub mod claims;
pub mod convert;
pub mod detect;
pub mod diag;
pub mod diff;
pub mod draft;
pub mod dtype;
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
pub mod recognise;
pub mod report;
pub mod shown;
pub mod span;
pub mod verify;
