//! What will be copied: bound checkpoint → [`Plan`].
//!
//! A plan is made from headers alone and proved before a byte is written: every element of every target tensor is
//! written once, every element of every source tensor is used once, or is declared a repeat, a tie or dropped.

mod build;
mod clip;
mod explain;
mod overlap;
pub mod prove;
mod units;

pub use build::build;
pub use explain::explain;
pub use prove::prove;

pub use crate::bind::Affine;
use crate::catalog::{ExtentId, row_major};
use crate::dtype::Dtype;
use crate::span::Span;

/// Everything that will happen, decided before the first weight is read.
///
/// ```
/// use qkvconv::plan::{Step, ValueOp};
/// use qkvconv::{Conversion, ConvertOptions, select};
///
/// let layouts = select("attention/pytorch-fused", "attention/separate", &[])?;
/// let source = "tests/data/digits".as_ref();
/// let conversion = Conversion::prepare(&layouts, source, &ConvertOptions::default())?;
/// let key = "encoder.layers.0.self_attn.k_proj.weight";
/// let target = conversion.plan.targets.iter().find(|target| target.key == key).expect("planned");
/// // The keys are the second of three equal parts: 60 rows of 60, copied at once.
/// let [Step::Copy(copy)] = &target.steps[..] else { panic!("one copy") };
/// assert_eq!((copy.source_offset, copy.elements(), copy.value), (60 * 60, 60 * 60, ValueOp::Bits));
/// # Ok::<(), qkvconv::Errors>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The target tensors, in the order in which the output holds them.
    pub targets: Vec<TensorPlan>,
    /// What must hold of the source's data; checked while the conversion runs, before anything is published.
    pub requirements: Vec<Requirement>,
    /// Source elements that are not copied, each with why; the proof counts them as used.
    pub unused: Vec<Unused>,
}

/// Source elements that are not copied.
#[derive(Clone, Debug)]
pub struct Unused {
    /// The source tensor's extent.
    pub source: ExtentId,
    /// Which of its elements.
    pub region: Region,
    /// Why.
    pub reason: &'static str,
}

/// How one target tensor is filled. The steps write every element exactly once.
#[derive(Clone, Debug)]
pub struct TensorPlan {
    /// Its name in the output.
    pub key: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, slowest dimension first.
    pub shape: Vec<u64>,
    /// The captured path of its module, with dots; empty for a tensor that passes through.
    pub module: String,
    /// The copies and fills, in ascending order of where they begin in the target.
    pub steps: Vec<Step>,
    /// The rule that made it; `None` for a tensor that passes through untouched.
    pub rule: Option<Span>,
}

impl TensorPlan {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        // Factors beside a zero may be of any size.
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Returns the bytes of one unit of the steps.
    pub fn unit(&self) -> u64 {
        unit(self.dtype)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.dtype.byte_len(self.elements()).unwrap_or(0)
    }

    /// Returns the row-major strides, in elements.
    pub fn strides(&self) -> Vec<u64> {
        row_major(&self.shape)
    }
}

/// Returns the bytes of one unit in which steps of a tensor of that type count: an element, or a byte for a type whose
/// elements share bytes.
pub fn unit(dtype: Dtype) -> u64 {
    dtype.byte_width().unwrap_or(1)
}

/// One part of filling a target tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Elements copied from a source tensor.
    Copy(StridedCopy),
    /// Elements set to zero bits.
    Zero(Region),
}

/// A strided copy between one source tensor and the target tensor.
///
/// All offsets and steps count *units*: elements, or bytes for a type whose elements share bytes (the planner refuses a
/// cut inside a block). The source's count from the first element of the extent as it is stored. Loops come
/// outermost first, sorted by descending target step; each target step is at least the extent of the loops inside it, so
/// the target positions of a copy ascend in loop order.
#[derive(Clone, Debug, PartialEq)]
pub struct StridedCopy {
    /// The source tensor and which of its extents.
    pub source: ExtentId,
    /// Where the source is read first.
    pub source_offset: u64,
    /// Where the target is written first.
    pub target_offset: u64,
    /// The loops; none for a single element.
    pub loops: Vec<Loop>,
    /// What happens to a value on the way.
    pub value: ValueOp,
    /// Whether these source elements are copied to another place too: a parameter that two target tensors hold.
    pub again: bool,
}

/// One loop of a strided copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// How many times, at least 2.
    pub count: u64,
    /// The distance between neighbours in the source, in units; 0 repeats.
    pub source_step: u64,
    /// The distance between neighbours in the target, in units.
    pub target_step: u64,
}

impl StridedCopy {
    /// Returns the number of units of the target that it writes.
    pub fn elements(&self) -> u64 {
        self.loops.iter().map(|l| l.count).product()
    }
}

/// What happens to a value on the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueOp {
    /// The bits are copied; every reversible conversion does only this.
    Bits,
    /// `target = source * scale + offset` of `affine` in f64, then rounded to the target's type.
    Convert {
        /// The source's element type.
        from: Dtype,
        /// The target's element type.
        to: Dtype,
        /// What is done to a source value, as if it were the parameter's.
        affine: Affine,
    },
}

/// A strided set of units of one tensor, which are elements, or bytes for a type whose elements share bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The first unit, counted from the first of the tensor.
    pub offset: u64,
    /// Loops as (count, step in units), outermost first, steps descending.
    pub loops: Vec<(u64, u64)>,
}

impl Region {
    /// Makes a region: loops in order, neighbours without a gap joined.
    pub(crate) fn new(offset: u64, mut loops: Vec<(u64, u64)>) -> Region {
        loops.retain(|(count, _)| *count != 1);
        loops.sort_by_key(|(_, step)| std::cmp::Reverse(*step));
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(loops.len());
        for (count, step) in loops {
            match joined.last_mut() {
                Some((outer, outer_step)) if *outer_step == count * step => {
                    (*outer, *outer_step) = (*outer * count, step);
                }
                _ => joined.push((count, step)),
            }
        }
        Region { offset, loops: joined }
    }
}

/// A statement about the source's data on which the plan rests.
#[derive(Clone, Debug)]
pub struct Requirement {
    /// What must hold.
    pub check: Check,
    /// What it means if it does not hold, one clause (`the copies of a repeated tensor differ`).
    pub meaning: &'static str,
    /// The one way to allow it, if there is one.
    pub help: String,
    /// The rule that states it.
    pub rule: Option<Span>,
}

/// What a requirement compares. Offsets and steps count units of the stored tensor.
#[derive(Clone, Debug)]
pub enum Check {
    /// Two regions of the source hold the same bits; loops are (count, first step, second step).
    Equal {
        /// The first source tensor and the offset in it.
        first: (ExtentId, u64),
        /// The second source tensor and the offset in it.
        second: (ExtentId, u64),
        /// The loops, outermost first.
        loops: Vec<(u64, u64, u64)>,
    },
    /// A region of a source tensor holds zeros (positive or negative).
    Zero {
        /// The source tensor's extent.
        source: ExtentId,
        /// The region.
        region: Region,
    },
}
