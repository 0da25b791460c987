//! Forward: both sides' attention, computed as each layout's framework computes it, on the same input.
//!
//! A layout's `forward` entry says in the framework's terms what the expressions say in axes, and was written from the
//! framework's source; a wrong expression contradicts it. Compared are q, k and v per head, the logits and the output:
//! the output alone hides a lost key bias and permutations that q and k share.

mod cut;
mod module;
mod norm;
mod pool;
mod weights;

use std::io;

use candle_core::{Device, Tensor};

use crate::bind::AxisSizes;
use crate::dtype::Dtype;
use crate::mapping::forward::Forward;
use crate::mapping::key::Captures;
use crate::random::Random;
use module::{Inputs, Module, TOKENS, repeated};
pub use weights::Weights;

/// Sizes of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) h: u64,
    pub(crate) g: u64,
    pub(crate) d: u64,
    pub(crate) dv: u64,
}

/// Why a module could not be computed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ForwardError {
    /// The size of an axis is not known.
    Open(String),
    /// The forward entry names a tensor that is not there.
    Missing(String),
    /// A name cannot be written.
    Name(String),
    /// A tensor of a type that nothing is computed with.
    Type(String, Dtype),
    /// A tensor whose shape is not what the forward entry says.
    Shape(String, String),
    /// The system refused.
    Read(String, io::Error),
    /// The arithmetic failed.
    Compute(candle_core::Error),
}

impl From<candle_core::Error> for ForwardError {
    fn from(error: candle_core::Error) -> ForwardError {
        ForwardError::Compute(error)
    }
}

impl std::fmt::Display for ForwardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ForwardError::Open(axis) => write!(f, "the size of `{axis}` is not known"),
            ForwardError::Missing(name) => write!(f, "`{name}` is not there"),
            ForwardError::Name(message) => f.write_str(message),
            ForwardError::Type(key, dtype) => write!(f, "`{key}` is {dtype}, with which nothing is computed"),
            ForwardError::Shape(key, wanted) => write!(f, "`{key}`: {wanted}"),
            ForwardError::Read(key, error) => write!(f, "`{key}`: {error}"),
            ForwardError::Compute(error) => write!(f, "{error}"),
        }
    }
}

impl ForwardError {
    /// Returns whether it is for lack of knowledge, not because something is wrong.
    pub fn is_abstention(&self) -> bool {
        matches!(self, ForwardError::Open(_) | ForwardError::Type(..))
    }
}

/// One side of a comparison.
#[derive(Clone, Copy)]
pub struct ForwardSide<'a> {
    /// The framework's computation.
    pub forward: &'a Forward,
    /// The stored tensors.
    pub weights: &'a dyn Weights,
}

/// The largest differences between two computations, each relative to the largest value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Differences {
    /// Of the queries.
    pub q: f64,
    /// Of the keys.
    pub k: f64,
    /// Of the values.
    pub v: f64,
    /// Of the attention logits.
    pub logits: f64,
    /// Of the output.
    pub out: f64,
    /// Of both output projections of the same heads' outputs: no softmax lies between a rounding and this.
    pub projection: f64,
    /// The largest absolute difference of all.
    pub absolute: f64,
    /// The head that differs most in q, k or v.
    pub head: usize,
}

impl Differences {
    /// Returns the largest relative difference.
    pub fn largest(&self) -> f64 {
        // NaN, where only one side has it, must not be lost in a maximum.
        [self.q, self.k, self.v, self.logits, self.out, self.projection]
            .into_iter()
            .fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
    }

    /// Returns the name and the value of each part.
    pub fn parts(&self) -> [(&'static str, f64); 5] {
        [("q", self.q), ("k", self.k), ("v", self.v), ("logits", self.logits), ("output", self.out)]
    }

    /// Keeps the larger of each.
    pub fn widen(&mut self, other: &Differences) {
        if other.largest() > self.largest() {
            self.head = other.head;
        }
        for (mine, theirs) in [
            (&mut self.q, other.q),
            (&mut self.k, other.k),
            (&mut self.v, other.v),
            (&mut self.logits, other.logits),
            (&mut self.out, other.out),
            (&mut self.projection, other.projection),
            (&mut self.absolute, other.absolute),
        ] {
            if theirs > *mine || theirs.is_nan() {
                *mine = theirs;
            }
        }
    }
}

/// Computes one module from both sides and compares.
///
/// # Errors
/// Returns why one of the two could not be computed.
pub fn compare_module(
    source: ForwardSide<'_>,
    target: ForwardSide<'_>,
    captures: &Captures,
    sizes: &AxisSizes,
    seed: u64,
) -> Result<Differences, ForwardError> {
    pool::ensure();
    let a = Module { forward: source.forward, weights: source.weights, captures, sizes };
    let b = Module { forward: target.forward, weights: target.weights, captures, sizes };
    let widths = a.widths()?;
    let inputs = inputs(widths, source.forward.cross || target.forward.cross, seed)?;
    // A side that declares no rotation leaves it to the model around it: it is computed with the other's.
    let rotate = source.forward.rotary.is_some() || target.forward.rotary.is_some();
    let causal = source.forward.causal || target.forward.causal;
    let heads = a.heads()?;
    let second = b;
    let (a, b) = (a.run(&inputs, rotate, causal)?, second.run(&inputs, rotate, causal)?);
    let projected = second.output(&a.context)?;
    let mut found = Differences::default();
    // A side that stores a shared key/value head several times has more of them.
    let (ak, bk) = (repeated(&a.k, heads.h)?, repeated(&b.k, heads.h)?);
    let (av, bv) = (repeated(&a.v, heads.h)?, repeated(&b.v, heads.h)?);
    let mut worst = 0.0;
    for (mine, x, y) in [
        (&mut found.q, &a.q, &b.q),
        (&mut found.k, &ak, &bk),
        (&mut found.v, &av, &bv),
        (&mut found.logits, &a.logits, &b.logits),
        (&mut found.out, &a.out, &b.out),
        (&mut found.projection, &a.out, &projected),
    ] {
        let (relative, absolute, at) = difference(x, y)?;
        *mine = relative;
        if x.rank() == 3 && relative > worst {
            worst = relative;
            found.head = at / (x.elem_count() / x.dim(0)?).max(1);
        }
        if absolute > found.absolute || absolute.is_nan() {
            found.absolute = absolute;
        }
    }
    Ok(found)
}

/// Returns the largest difference relative to the largest value, the largest absolute one, and where it is.
fn difference(x: &Tensor, y: &Tensor) -> Result<(f64, f64, usize), ForwardError> {
    if x.dims() != y.dims() {
        let message = format!("{:?} on one side, {:?} on the other", x.dims(), y.dims());
        return Err(ForwardError::Shape("the results".into(), message));
    }
    let (x, y) = (x.flatten_all()?.to_vec1::<f64>()?, y.flatten_all()?.to_vec1::<f64>()?);
    let scale = x.iter().chain(&y).filter(|value| value.is_finite()).fold(0.0_f64, |a, b| a.max(b.abs()));
    let (mut absolute, mut at) = (0.0_f64, 0);
    for (place, (a, b)) in x.iter().zip(&y).enumerate() {
        // Weights with NaN or infinities give the same on both sides.
        if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) {
            continue;
        }
        let here = (a - b).abs();
        if here > absolute || here.is_nan() {
            (absolute, at) = (here, place);
        }
    }
    Ok((if scale > 0.0 { absolute / scale } else { absolute }, absolute, at))
}

/// Makes the same input for both sides: self-attention reads one, cross-attention and differing widths several.
fn inputs(widths: [u64; 3], cross: bool, seed: u64) -> Result<Inputs, ForwardError> {
    let mut random = Random(seed);
    let mut make = |width: u64| -> Result<Tensor, ForwardError> {
        let values: Vec<f64> = (0..TOKENS * width as usize).map(|_| random.normal()).collect();
        Ok(Tensor::from_vec(values, (TOKENS, width as usize), &Device::Cpu)?)
    };
    let mut inputs = Inputs { tensors: vec![make(widths[0])?], of: [0; 3] };
    if cross || widths[1] != widths[0] {
        inputs.of[1] = inputs.tensors.len();
        inputs.tensors.push(make(widths[1])?);
    }
    inputs.of[2] = inputs.of[1];
    if widths[2] != widths[1] {
        inputs.of[2] = inputs.tensors.len();
        inputs.tensors.push(make(widths[2])?);
    }
    Ok(inputs)
}
