//! Stored tensors as f64, a stretch at a time.

use std::io;

use candle_core::{Device, Tensor};

use super::ForwardError;
use crate::catalog::TensorMeta;
use crate::dtype::Dtype;

/// The most elements that are held as f64 at once.
const STRETCH: u64 = 1 << 18;

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

/// Returns whether a type can be computed with.
pub(super) fn is_computable(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Reads elements `start..start + count`.
pub(super) fn read(
    weights: &dyn Weights,
    tensor: &TensorMeta,
    start: u64,
    count: u64,
) -> Result<Vec<f64>, ForwardError> {
    let width = tensor.dtype.byte_width().unwrap_or(1);
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
    tensor: &TensorMeta,
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
    tensor: &TensorMeta,
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
    sum.ok_or_else(|| ForwardError::Shape(tensor.key.clone(), "a matrix without rows".into()))
}

fn matrix(
    weights: &dyn Weights,
    tensor: &TensorMeta,
    start: u64,
    rows: u64,
    columns: u64,
) -> Result<Tensor, ForwardError> {
    let values = read(weights, tensor, start, rows * columns)?;
    Ok(Tensor::from_vec(values, (rows as usize, columns as usize), &Device::Cpu)?)
}
