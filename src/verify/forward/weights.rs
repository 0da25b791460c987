//! Stored tensors as f64, a stretch at a time.

use std::io;

use candle_core::{Device, Tensor};

use super::ForwardError;
use crate::catalog::{TensorMeta, row_major};
use crate::dtype::Dtype;

/// The most elements that are held as f64 at once.
const STRETCH: u64 = 1 << 18;
/// The most elements that are read at once to pick the scattered ones of a stretch.
const HULL: u64 = 1 << 23;
/// How far apart elements may lie that are read at once where not all are: a read costs about as much as these.
const GAP: u64 = 256;

/// The stored tensors of one side.
pub trait Weights: Sync {
    /// Returns the tensor of that name, as the layout's templates write it.
    fn find(&self, name: &str) -> Option<&TensorMeta>;

    /// Reads a tensor's bytes, from that byte of it on.
    ///
    /// # Errors
    /// Returns the system's error.
    fn read(&self, tensor: &TensorMeta, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// A stored tensor, or a slice of one.
#[derive(Clone, Debug)]
pub(super) struct View<'a> {
    meta: &'a TensorMeta,
    /// The first element, counted as the strides are.
    first: u64,
    pub(super) shape: Vec<u64>,
    strides: Vec<u64>,
}

impl<'a> View<'a> {
    pub(super) fn of(meta: &'a TensorMeta) -> View<'a> {
        View { meta, first: 0, shape: meta.shape.clone(), strides: meta.strides.clone() }
    }

    /// Returns the slice at one index of a dimension, without that dimension.
    pub(super) fn slice(mut self, dim: usize, index: u64) -> Option<View<'a>> {
        if self.shape.get(dim).is_none_or(|size| index >= *size) {
            return None;
        }
        self.shape.remove(dim);
        self.first += index * self.strides.remove(dim);
        Some(self)
    }

    /// Returns a matrix without the axes of size 1 behind it.
    pub(super) fn matrix(mut self) -> View<'a> {
        while self.shape.len() > 2 && self.shape.last() == Some(&1) {
            self.shape.pop();
            self.strides.pop();
        }
        self
    }

    pub(super) fn key(&self) -> String {
        self.meta.key.clone()
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.meta.dtype
    }

    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Returns where an element lies, given its number in row-major order.
    fn place(&self, number: u64) -> u64 {
        let mut rest = number;
        let mut place = self.first;
        for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
            place += rest % size * stride;
            rest /= size;
        }
        place
    }
}

/// Reads elements `start..start + count`, counted in row-major order.
pub(super) fn read(
    weights: &dyn Weights,
    view: &View<'_>,
    start: u64,
    count: u64,
) -> Result<Vec<f64>, ForwardError> {
    if view.strides == row_major(&view.shape) {
        return read_run(weights, view.meta, view.first + start, count);
    }
    let places: Vec<u64> = (start..start + count).map(|number| view.place(number)).collect();
    let (Some(&low), Some(&high)) = (places.iter().min(), places.iter().max()) else { return Ok(Vec::new()) };
    if high - low < HULL {
        let hull = read_run(weights, view.meta, low, high - low + 1)?;
        return Ok(places.into_iter().map(|place| hull[(place - low) as usize]).collect());
    }
    read_scattered(weights, view, &places)
}

/// Reads elements that lie far apart: those that are near each other in one read.
fn read_scattered(weights: &dyn Weights, view: &View<'_>, places: &[u64]) -> Result<Vec<f64>, ForwardError> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_unstable_by_key(|at| places[*at]);
    let mut values = vec![0.0; places.len()];
    let mut rest = &order[..];
    while let Some(&first) = rest.first() {
        let low = places[first];
        let mut last = low;
        let near = |at: &&usize| {
            let place = places[**at];
            let is_near = place - last <= GAP && place - low < HULL;
            last = if is_near { place } else { last };
            is_near
        };
        let (run, behind) = rest.split_at(rest.iter().take_while(near).count());
        let high = run.last().map_or(low, |at| places[*at]);
        let read = read_run(weights, view.meta, low, high - low + 1)?;
        run.iter().for_each(|at| values[*at] = read[(places[*at] - low) as usize]);
        rest = behind;
    }
    Ok(values)
}

/// Reads elements that lie side by side.
fn read_run(
    weights: &dyn Weights,
    tensor: &TensorMeta,
    start: u64,
    count: u64,
) -> Result<Vec<f64>, ForwardError> {
    let Some(width) = tensor.dtype.byte_width() else {
        return Err(ForwardError::Type(tensor.key.clone(), tensor.dtype));
    };
    let mut bytes = vec![0; (count * width) as usize];
    weights
        .read(tensor, start * width, &mut bytes)
        .map_err(|error| ForwardError::Read(tensor.key.clone(), error))?;
    Ok(match tensor.dtype {
        Dtype::F64 => decode(&bytes, f64::from_le_bytes),
        Dtype::F32 => decode(&bytes, |bits| f32::from_le_bytes(bits).into()),
        Dtype::F16 => decode(&bytes, |bits| half::f16::from_le_bytes(bits).into()),
        Dtype::BF16 => decode(&bytes, |bits| half::bf16::from_le_bytes(bits).into()),
        other => return Err(ForwardError::Type(tensor.key.clone(), other)),
    })
}

fn decode<const WIDTH: usize>(bytes: &[u8], value: impl Fn([u8; WIDTH]) -> f64) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bits| value(*bits)).collect()
}

/// Multiplies `x` [tokens, in] with the transpose of a stored matrix [out, in], a stretch of rows at a time.
pub(super) fn times_transposed(
    weights: &dyn Weights,
    tensor: &View<'_>,
    x: &Tensor,
    (start, rows, columns): (u64, u64, u64),
) -> Result<Tensor, ForwardError> {
    let step = (STRETCH / columns.max(1)).max(1);
    let mut parts = Vec::new();
    for row in (0..rows).step_by(step as usize) {
        let count = step.min(rows - row);
        let stretch = matrix(weights, tensor, start + row * columns, count, columns)?;
        parts.push(x.matmul(&stretch.t()?)?);
    }
    Ok(Tensor::cat(&parts, 1)?)
}

/// Multiplies `x` [tokens, in] with a stored matrix [in, out], a stretch of rows at a time.
pub(super) fn times(
    weights: &dyn Weights,
    tensor: &View<'_>,
    x: &Tensor,
    (start, rows, columns): (u64, u64, u64),
) -> Result<Tensor, ForwardError> {
    let step = (STRETCH / columns.max(1)).max(1);
    let mut sum: Option<Tensor> = None;
    for row in (0..rows).step_by(step as usize) {
        let count = step.min(rows - row);
        let stretch = matrix(weights, tensor, start + row * columns, count, columns)?;
        let part = x.narrow(1, row as usize, count as usize)?.contiguous()?.matmul(&stretch)?;
        sum = Some(match sum {
            Some(sum) => (sum + part)?,
            None => part,
        });
    }
    sum.ok_or_else(|| ForwardError::Shape(tensor.key(), "a matrix without rows".into()))
}

fn matrix(
    weights: &dyn Weights,
    tensor: &View<'_>,
    start: u64,
    rows: u64,
    columns: u64,
) -> Result<Tensor, ForwardError> {
    let values = read(weights, tensor, start, rows * columns)?;
    Ok(Tensor::from_vec(values, (rows as usize, columns as usize), &Device::Cpu)?)
}
