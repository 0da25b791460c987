//! Comparison of two checkpoints by tensor name: what one has alone, what differs, and by how much.
//!
//! ```no_run
//! use qkvconv::diff::{DiffOptions, diff};
//! use qkvconv::format::{OpenOptions, open};
//! # struct Silent;
//! # impl qkvconv::progress::Progress for Silent {
//! #     fn advance(&self, _: u64) {}
//! #     fn cancelled(&self) -> bool { false }
//! # }
//!
//! let a = open("a.safetensors".as_ref(), &OpenOptions::default())?;
//! let b = open("folder-of-shards".as_ref(), &OpenOptions::default())?;
//! let report = diff(a.as_ref(), b.as_ref(), &DiffOptions::default(), &Silent)?;
//! assert!(report.equal());
//! # Ok::<(), qkvconv::diag::Errors>(())
//! ```
//!
//! Both sides are streamed in the order of the tensors' indices, however they lie in their files, by several threads, a few
//! MiB of each side per thread. The report follows from the input
//! alone, whatever the number of threads. [`DiffReport::lines`] and [`DiffReport::json`] put it in words.

use std::collections::HashSet;
use std::path::PathBuf;

use globset::GlobSet;

use crate::catalog::{Catalog, TensorMeta, row_major};
use crate::diag::{Collector, Diagnostic, DiffCode, Errors};
use crate::dtype::Dtype;
use crate::element::{Kind, kind};
use crate::format::Reader;
use crate::progress::Progress;

mod json;
mod run;
mod stats;
mod text;

pub use crate::element::Element;
pub use json::VERSION;

use run::{Measured, Pair};

/// What a caller may ask of a comparison.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiffOptions {
    /// Compare only tensors whose names match.
    pub only: Option<GlobSet>,
    /// Leave out tensors whose names match.
    pub drop: Option<GlobSet>,
    /// The largest absolute difference at which tensors of equal shape still count as equal, also between different
    /// floating-point or different integer types. NaNs must stand at the same places, and so must infinities.
    pub tolerance: Option<f64>,
    /// Threads, at least 1.
    pub threads: usize,
}

impl Default for DiffOptions {
    fn default() -> DiffOptions {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        DiffOptions { only: None, drop: None, tolerance: None, threads }
    }
}

impl DiffOptions {
    /// Compares only tensors whose names match.
    pub fn only(mut self, only: impl Into<Option<GlobSet>>) -> DiffOptions {
        self.only = only.into();
        self
    }

    /// Leaves out tensors whose names match.
    pub fn drop(mut self, drop: impl Into<Option<GlobSet>>) -> DiffOptions {
        self.drop = drop.into();
        self
    }

    /// Sets the largest absolute difference at which tensors still count as equal.
    pub fn tolerance(mut self, tolerance: impl Into<Option<f64>>) -> DiffOptions {
        self.tolerance = tolerance.into();
        self
    }

    /// Sets the number of threads, at least 1.
    pub fn threads(mut self, threads: usize) -> DiffOptions {
        self.threads = threads;
        self
    }

    fn takes(&self, key: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.is_match(key))
            && !self.drop.as_ref().is_some_and(|drop| drop.is_match(key))
    }
}

/// What two checkpoints differ in.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffReport {
    /// The checkpoints.
    pub sides: [Side; 2],
    /// The tensors that one side has alone.
    pub only: [Vec<Lone>; 2],
    /// The tensors that both have, in the order in which they lie in the first.
    pub tensors: Vec<TensorDiff>,
    /// What the free-form metadata differ in; this does not make checkpoints unequal.
    pub metadata: Vec<MetadataDiff>,
    /// The tolerance that was asked for.
    pub tolerance: Option<f64>,
}

impl DiffReport {
    /// Returns whether both have the same tensors, bit for bit or within the tolerance.
    pub fn equal(&self) -> bool {
        self.only.iter().all(Vec::is_empty)
            && self.tensors.iter().all(|tensor| tensor.verdict != Verdict::Differs)
    }

    /// Returns how many of the tensors that both have are of that verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.tensors.iter().filter(|tensor| tensor.verdict == verdict).count()
    }
}

/// One of the two checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// What the user named.
    pub path: PathBuf,
    /// How many tensors were looked at.
    pub tensors: usize,
    /// How many tensors the options leave out.
    pub left_out: usize,
    /// The bytes of the tensors that were looked at.
    pub bytes: u64,
}

/// What a header says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, slowest dimension first.
    pub shape: Vec<u64>,
}

/// A tensor that one side has alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lone {
    /// Its name.
    pub key: String,
    /// Its type and shape.
    pub stored: Stored,
}

/// How a tensor that both have compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Type, shape and every bit are the same.
    BitEqual,
    /// Not the same, but within the tolerance.
    Within,
    /// The type, the shape or the content differs.
    Differs,
}

/// A tensor that both have.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDiff {
    /// Its name.
    pub key: String,
    /// What the headers say of it.
    pub stored: [Stored; 2],
    /// How it compares.
    pub verdict: Verdict,
    /// By how much it differs; `None` where it is bit-equal, and where shapes or kinds of type differ.
    pub comparison: Option<Comparison>,
}

/// What the content of two tensors of equal shape differs in.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// How many elements there are.
    pub elements: u64,
    /// How many differ: in their bits, or in their values where the types differ (two NaNs are the same there).
    pub differing: u64,
    /// The first of these, in row-major order.
    pub first: Option<FirstDifference>,
    /// Whether elements were compared bit by bit; types that differ are compared as numbers.
    pub bitwise: bool,
    /// What the numbers differ in; `None` for types whose bits alone are compared (F4, F6, F8_E8M0, C64,
    /// quantised types).
    pub numbers: Option<Numbers>,
}

/// The first place where two tensors differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstDifference {
    /// The index in the shape.
    pub index: Vec<u64>,
    /// What stands there.
    pub elements: [Element; 2],
}

/// What the numbers of two tensors differ in.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// The largest absolute difference of elements that are finite on both sides. For integers it is found exactly
    /// and then rounded to a double.
    pub max_abs: f64,
    /// The index of the first element that differs by so much, unless that is 0.
    pub max_abs_at: Option<Vec<u64>>,
    /// What only floating-point types have.
    pub floats: Option<Floats>,
}

/// What floating-point numbers differ in.
#[derive(Clone, Debug, PartialEq)]
pub struct Floats {
    /// The largest difference of finite elements, divided by the larger of the two magnitudes: from 0 to 2.
    pub max_rel: f64,
    /// The largest number of steps between elements that are no NaN, where the types are equal. Both zeros are one
    /// value, and infinity is one step from the largest number.
    pub max_ulp: Option<u64>,
    /// The cosine of the angle between the tensors as vectors, over the elements that are finite on both sides; `None`
    /// where a side is zero or the squares' sum is out of a double's range.
    pub cosine: Option<f64>,
    /// How many elements of each side are NaN.
    pub nans: [u64; 2],
    /// How many elements of each side are infinite.
    pub infinities: [u64; 2],
    /// How many elements are NaN or infinite on one side and something else on the other.
    pub unmatched: u64,
}

/// A difference of the free-form metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataDiff {
    /// The name.
    pub key: String,
    /// What each side has.
    pub values: [Option<String>; 2],
}

/// Compares two checkpoints; `progress` hears of the bytes of both sides, [`work`] in total.
///
/// # Errors
/// - `diff/nothing`: the options leave out all tensors of both sides
/// - `diff/read`: the system refused
/// - `diff/cancelled`: `progress` said so
/// - `format/changed`: a file was written to meanwhile
/// - `format/…`: a tensor of a kind that is not read is among those that are to be compared
pub fn diff(
    a: &dyn Reader,
    b: &dyn Reader,
    options: &DiffOptions,
    progress: &dyn Progress,
) -> Result<DiffReport, Errors> {
    let catalogs = [a.catalog(), b.catalog()];
    let sides = catalogs.map(|catalog| side(catalog, options));
    if sides.iter().all(|side| side.tensors == 0) && sides.iter().any(|side| side.left_out > 0) {
        let diagnostic = Diagnostic::error(DiffCode::Nothing, "no tensor is left to compare");
        return Err(diagnostic.help("look at the patterns of --only and --drop").into());
    }
    // Whether they agree cannot be told.
    let needed = catalogs.iter().flat_map(|catalog| &catalog.unread).filter(|(key, _)| options.takes(key));
    let mut unread = Collector::default();
    needed.for_each(|(_, reason)| unread.push(reason.clone()));
    unread.finish(())?;
    let pairs = pairs(catalogs, options);
    let measured = run::run([a, b], &pairs, options.threads, progress)?;
    a.unchanged()?;
    b.unchanged()?;
    let measured: Vec<Option<&Measured>> = {
        let mut all = vec![None; catalogs[0].tensors.len()];
        pairs.iter().zip(&measured).for_each(|(pair, measured)| all[pair.tensors[0]] = measured.as_ref());
        all
    };
    let tensors = shared(catalogs, options)
        .map(|at| {
            let metas = [&catalogs[0].tensors[at[0]], &catalogs[1].tensors[at[1]]];
            tensor(metas, measured[at[0]], options.tolerance)
        })
        .collect();
    Ok(DiffReport {
        only: [lone(catalogs[0], catalogs[1], options), lone(catalogs[1], catalogs[0], options)],
        sides,
        tensors,
        metadata: metadata(catalogs),
        tolerance: options.tolerance,
    })
}

/// Returns the bytes of both sides that a comparison reads.
///
/// Where a tensor turns out to differ, parts of it are read a second time; they are not counted again.
pub fn work(a: &dyn Reader, b: &dyn Reader, options: &DiffOptions) -> u64 {
    pairs([a.catalog(), b.catalog()], options).iter().map(Pair::bytes).sum()
}

fn side(catalog: &Catalog, options: &DiffOptions) -> Side {
    let taken: Vec<&TensorMeta> = catalog.tensors.iter().filter(|meta| options.takes(&meta.key)).collect();
    Side {
        path: catalog.path.clone(),
        tensors: taken.len(),
        left_out: catalog.tensors.len() - taken.len(),
        bytes: taken.iter().map(|meta| meta.bytes()).sum(),
    }
}

/// Returns the indices of the tensors that both have.
fn shared<'a>(
    [a, b]: [&'a Catalog; 2],
    options: &'a DiffOptions,
) -> impl Iterator<Item = [usize; 2]> + use<'a> {
    let taken = a.tensors.iter().enumerate().filter(|(_, meta)| options.takes(&meta.key));
    taken.filter_map(|(at, meta)| Some([at, b.find(&meta.key)?]))
}

/// Returns the tensors whose content can be compared.
fn pairs(catalogs: [&Catalog; 2], options: &DiffOptions) -> Vec<Pair> {
    shared(catalogs, options)
        .filter_map(|at| {
            let [a, b] = [&catalogs[0].tensors[at[0]], &catalogs[1].tensors[at[1]]];
            let kinds = [kind(a.dtype), kind(b.dtype)];
            let comparable = a.dtype == b.dtype || kinds[0] == kinds[1] && kinds[0] != Kind::Bits;
            (comparable && a.shape == b.shape).then(|| Pair::new(at, [a, b]))
        })
        .collect()
}

fn stored(meta: &TensorMeta) -> Stored {
    Stored { dtype: meta.dtype, shape: meta.shape.clone() }
}

fn lone(here: &Catalog, there: &Catalog, options: &DiffOptions) -> Vec<Lone> {
    let alone = |meta: &&TensorMeta| options.takes(&meta.key) && there.find(&meta.key).is_none();
    let lone = |meta: &TensorMeta| Lone { key: meta.key.clone(), stored: stored(meta) };
    here.tensors.iter().filter(alone).map(lone).collect()
}

fn tensor(metas: [&TensorMeta; 2], measured: Option<&Measured>, tolerance: Option<f64>) -> TensorDiff {
    let comparison = measured.map(|measured| comparison(metas, measured));
    let [a, b] = metas;
    let within = |comparison: &Comparison| match (&comparison.numbers, tolerance) {
        (Some(numbers), Some(tolerance)) => {
            numbers.max_abs <= tolerance && numbers.floats.as_ref().is_none_or(|floats| floats.unmatched == 0)
        }
        _ => false,
    };
    let verdict = match &comparison {
        None if a.dtype == b.dtype && a.shape == b.shape => Verdict::BitEqual,
        Some(comparison) if within(comparison) => Verdict::Within,
        _ => Verdict::Differs,
    };
    TensorDiff { key: a.key.clone(), stored: metas.map(stored), verdict, comparison }
}

fn comparison([a, b]: [&TensorMeta; 2], (tally, sums): &Measured) -> Comparison {
    let bitwise = a.dtype == b.dtype;
    let numbers = |kind| Numbers {
        max_abs: tally.max_abs,
        max_abs_at: tally.max_abs_at.map(|at| index(&a.shape, at)),
        floats: (kind == Kind::Float).then(|| Floats {
            max_rel: tally.max_rel,
            max_ulp: bitwise.then_some(tally.max_ulp),
            cosine: sums.cosine(),
            nans: tally.nans,
            infinities: tally.infinities,
            unmatched: tally.unmatched,
        }),
    };
    let first = tally.first.map(|(at, bits)| FirstDifference {
        index: index(&a.shape, at),
        elements: [Element { dtype: a.dtype, bits: bits[0] }, Element { dtype: b.dtype, bits: bits[1] }],
    });
    let kind = kind(a.dtype);
    Comparison {
        elements: a.elements(),
        differing: tally.differing,
        first,
        bitwise,
        numbers: (kind != Kind::Bits).then(|| numbers(kind)),
    }
}

/// Returns the index of an element by its number.
fn index(shape: &[u64], number: u64) -> Vec<u64> {
    let strides = row_major(shape);
    shape.iter().zip(strides).map(|(size, stride)| number / stride % size).collect()
}

fn metadata([a, b]: [&Catalog; 2]) -> Vec<MetadataDiff> {
    let keys: Vec<&String> = a.metadata.keys().chain(b.metadata.keys()).collect();
    let mut seen = HashSet::new();
    let mut differences: Vec<MetadataDiff> = keys
        .into_iter()
        .filter(|key| seen.insert(*key) && a.metadata.get(*key) != b.metadata.get(*key))
        .map(|key| MetadataDiff {
            key: key.clone(),
            values: [a.metadata.get(key).cloned(), b.metadata.get(key).cloned()],
        })
        .collect();
    differences.sort_by(|a, b| a.key.cmp(&b.key));
    differences
}
