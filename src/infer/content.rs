//! What tensors hold: single values, and fingerprints of lines that do not depend on the order within a line.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use half::{bf16, f16};

use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Diagnostic, Errors, InferCode};
use crate::dtype::Dtype;
use crate::exec::{bf16_bits, f16_bits};
use crate::format::Reader;
use crate::random::Random;

/// The most bytes of a tensor that are kept in memory for lines across its rows.
const KEPT: u64 = 16 << 20;

/// Elements that are read at once.
const CHUNK: u64 = 1 << 20;

/// Returns whether tensors of that type can be compared element by element.
pub(super) fn is_plain(dtype: Dtype) -> bool {
    matches!(dtype.byte_width(), Some(1 | 2 | 4 | 8))
}

/// Turns stored bytes into the bits that the elements have in a type, rounded as a conversion does.
fn bits(bytes: &[u8], from: Dtype, to: Dtype, out: &mut Vec<u64>) {
    let width = from.byte_width().unwrap_or(1) as usize;
    let raw = bytes.chunks_exact(width).map(|bytes| {
        let mut value = [0; 8];
        value[..width].copy_from_slice(bytes);
        u64::from_le_bytes(value)
    });
    if from == to {
        out.extend(raw);
        return;
    }
    let value = |bits: u64| match from {
        Dtype::F64 => f64::from_bits(bits),
        Dtype::F32 => f64::from(f32::from_bits(bits as u32)),
        Dtype::F16 => f16::from_bits(bits as u16).to_f64(),
        _ => bf16::from_bits(bits as u16).to_f64(),
    };
    out.extend(raw.map(value).map(|value| match to {
        Dtype::F64 => value.to_bits(),
        Dtype::F32 => u64::from((value as f32).to_bits()),
        Dtype::F16 => u64::from(f16_bits(value)),
        _ => u64::from(bf16_bits(value)),
    }));
}

/// All elements of a tensor, as bits.
type Elements = Rc<Vec<u64>>;

/// A checkpoint's tensors, read as the elements of a given type.
pub(super) struct Content<'a> {
    reader: &'a dyn Reader,
    /// Small tensors that were read last.
    kept: RefCell<HashMap<(usize, Dtype), Elements>>,
}

impl<'a> Content<'a> {
    pub(super) fn new(reader: &'a dyn Reader) -> Content<'a> {
        Content { reader, kept: RefCell::default() }
    }

    pub(super) fn tensors(&self) -> &'a [TensorMeta] {
        &self.reader.catalog().tensors
    }

    fn bytes(&self, tensor: &TensorMeta, offset: u64, buffer: &mut [u8]) -> Result<(), Errors> {
        self.reader.read_exact_at(tensor.file, offset, buffer).map_err(|error| {
            let error = Diagnostic::error(InferCode::Read, format!("cannot read it: {error}"));
            error.tensor(tensor.key.clone()).into()
        })
    }

    /// Calls `chunk` with all elements, in order of the logical index.
    fn scan(&self, at: usize, to: Dtype, chunk: &mut dyn FnMut(&[u64])) -> Result<(), Errors> {
        let tensor = &self.tensors()[at];
        let width = tensor.dtype.byte_width().unwrap_or(1);
        let elements = tensor.elements();
        let mut values = Vec::new();
        if tensor.strides == row_major(&tensor.shape) {
            let mut buffer = Vec::new();
            let mut start = 0;
            while start < elements {
                let count = CHUNK.min(elements - start);
                buffer.resize((count * width) as usize, 0);
                self.bytes(tensor, tensor.offset + start * width, &mut buffer)?;
                values.clear();
                bits(&buffer, tensor.dtype, to, &mut values);
                chunk(&values);
                start += count;
            }
            return Ok(());
        }
        // A view with other strides: the storage that it spans is read as a whole.
        let span: u64 = tensor.shape.iter().zip(&tensor.strides).map(|(n, s)| n.saturating_sub(1) * s).sum();
        let mut buffer = vec![0; if elements == 0 { 0 } else { ((span + 1) * width) as usize }];
        self.bytes(tensor, tensor.offset, &mut buffer)?;
        let mut storage = Vec::new();
        bits(&buffer, tensor.dtype, to, &mut storage);
        let mut index = vec![0_u64; tensor.shape.len()];
        for _ in 0..elements {
            let place: u64 = index.iter().zip(&tensor.strides).map(|(i, s)| i * s).sum();
            values.push(storage.get(place as usize).copied().unwrap_or_default());
            advance(&mut index, &tensor.shape);
        }
        chunk(&values);
        Ok(())
    }

    /// Returns all elements of a tensor; small ones are kept for the next time.
    pub(super) fn all(&self, at: usize, to: Dtype) -> Result<Elements, Errors> {
        if let Some(values) = self.kept.borrow().get(&(at, to)) {
            return Ok(Rc::clone(values));
        }
        let mut values = Vec::new();
        self.scan(at, to, &mut |chunk| values.extend_from_slice(chunk))?;
        let values = Rc::new(values);
        let mut kept = self.kept.borrow_mut();
        if kept.values().map(|values| values.len() as u64 * 8).sum::<u64>() > 4 * KEPT {
            kept.clear();
        }
        kept.insert((at, to), Rc::clone(&values));
        Ok(values)
    }

    /// Returns the elements along an axis.
    pub(super) fn line(&self, at: usize, to: Dtype, axis: usize, line: u64) -> Result<Vec<u64>, Errors> {
        let tensor = &self.tensors()[at];
        let strides = row_major(&tensor.shape);
        let first: u64 = line_index(&tensor.shape, axis, line).iter().zip(&strides).map(|(i, s)| i * s).sum();
        let (count, step) =
            (tensor.shape.get(axis).copied().unwrap_or(1), strides.get(axis).copied().unwrap_or(1));
        let width = tensor.dtype.byte_width().unwrap_or(1);
        let plain = tensor.strides == strides;
        if !plain || (step > 1 && tensor.elements() * width <= KEPT) {
            let all = self.all(at, to)?;
            let place = |index: u64| all.get((first + index * step) as usize).copied().unwrap_or_default();
            return Ok((0..count).map(place).collect());
        }
        let mut values = Vec::new();
        if step == 1 {
            let mut buffer = vec![0; (count * width) as usize];
            self.bytes(tensor, tensor.offset + first * width, &mut buffer)?;
            bits(&buffer, tensor.dtype, to, &mut values);
        } else {
            let mut buffer = vec![0; width as usize];
            for index in 0..count {
                self.bytes(tensor, tensor.offset + (first + index * step) * width, &mut buffer)?;
                bits(&buffer, tensor.dtype, to, &mut values);
            }
        }
        Ok(values)
    }

    /// Returns the fingerprints of all lines along each axis; none for axes along which lines are too short to tell much.
    pub(super) fn lines(&self, at: usize, to: Dtype) -> Result<Vec<Lines>, Errors> {
        let shape = &self.tensors()[at].shape;
        let elements: u64 = shape.iter().product();
        let wanted = |&axis: &usize| {
            let count = elements / shape[axis].max(1);
            shape[axis] > 1 && (count <= 1 << 12 || shape[axis] >= 8)
        };
        let mut axes: Vec<usize> = (0..shape.len()).filter(wanted).collect();
        if axes.is_empty() {
            // A single value is a line of one.
            axes.extend(shape.len().checked_sub(1));
        }
        let mut found: Vec<Lines> =
            axes.iter().map(|&axis| Lines::new(axis, elements / shape[axis].max(1))).collect();
        let last = shape.last().copied().unwrap_or(1).max(1);
        let strides = row_major(shape);
        if shape.is_empty() {
            found.push(Lines::new(0, 1));
        }
        let mut place = 0_u64;
        self.scan(at, to, &mut |values| {
            let mut rest = values;
            while !rest.is_empty() {
                // A part of a row: all axes but the last stay.
                let column = place % last;
                let length = rest.len().min((last - column) as usize);
                let (part, behind) = rest.split_at(length);
                for lines in &mut found {
                    lines.add(part, place, shape, &strides, last);
                }
                place += length as u64;
                rest = behind;
            }
        })?;
        for lines in &mut found {
            lines.finish(shape.get(lines.axis).copied().unwrap_or(1), to);
        }
        Ok(found)
    }
}

/// The fingerprints of a tensor's lines along one axis.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub(super) axis: usize,
    /// By the index over the other axes, row-major.
    pub(super) prints: Vec<u64>,
    first: Vec<u64>,
    /// The value of lines whose elements are all the same.
    pub(super) constant: Vec<Option<u64>>,
}

impl Lines {
    fn new(axis: usize, count: u64) -> Lines {
        let (prints, first) = (vec![0; count as usize], vec![0; count as usize]);
        Lines { axis, prints, first, constant: Vec::new() }
    }

    fn add(&mut self, part: &[u64], place: u64, shape: &[u64], strides: &[u64], last: u64) {
        if self.axis + 1 >= shape.len() {
            let line = (place / last) as usize;
            if place.is_multiple_of(last) {
                self.first[line] = part[0];
            }
            let sum = part.iter().fold(0_u64, |sum, &value| sum.wrapping_add(mixed(value)));
            self.prints[line] = self.prints[line].wrapping_add(sum);
            return;
        }
        let stride = strides[self.axis];
        let index = place / stride % shape[self.axis];
        let line = (place / (stride * shape[self.axis]) * stride + place % stride) as usize;
        for (offset, &value) in part.iter().enumerate() {
            self.prints[line + offset] = self.prints[line + offset].wrapping_add(mixed(value));
        }
        if index == 0 {
            self.first[line..line + part.len()].copy_from_slice(part);
        }
    }

    /// Returns the value of all elements, if it is one.
    pub(super) fn value(&self) -> Option<u64> {
        let first = self.constant.first().copied().flatten();
        first.filter(|_| self.constant.iter().all(|value| *value == first))
    }

    fn finish(&mut self, length: u64, dtype: Dtype) {
        let constant =
            |(print, first): (&u64, &u64)| (*print == mixed(*first).wrapping_mul(length)).then_some(*first);
        self.constant = self.prints.iter().zip(&self.first).map(constant).collect();
        self.first = Vec::new();
        let salt = mixed(length ^ ((dtype as u64) << 48));
        self.prints.iter_mut().for_each(|print| *print = mixed(print.wrapping_add(salt)));
    }
}

/// Spreads the bits of a value, so that sums of few values are not equal by chance.
#[inline]
fn mixed(value: u64) -> u64 {
    Random(value).bits()
}

/// Returns the index of a line's first element.
pub(super) fn line_index(shape: &[u64], axis: usize, line: u64) -> Vec<u64> {
    let mut index = vec![0; shape.len()];
    let mut rest = line;
    for dim in (0..shape.len()).rev().filter(|&dim| dim != axis) {
        index[dim] = rest % shape[dim].max(1);
        rest /= shape[dim].max(1);
    }
    index
}

/// Steps to the next index, row-major.
pub(super) fn advance(index: &mut [u64], shape: &[u64]) {
    for dim in (0..shape.len()).rev() {
        index[dim] += 1;
        if index[dim] < shape[dim] {
            return;
        }
        index[dim] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Just above a tie: by way of f32 it would become the tie, and go to the even one below.
    #[test]
    fn a_value_is_rounded_once() {
        for (to, place, expected) in [(Dtype::F16, 11, 0x3c01), (Dtype::BF16, 8, 0x3f81)] {
            let value = 1.0 + 2_f64.powi(-place) + 2_f64.powi(-40);
            let mut out = Vec::new();
            bits(&value.to_le_bytes(), Dtype::F64, to, &mut out);
            assert_eq!(out, [expected], "{to}");
        }
    }
}
