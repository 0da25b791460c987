//! What tensors hold: single values, and fingerprints of lines that do not depend on the order within a line.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::catalog::{Catalog, TensorMeta, row_major};
use crate::diag::{Diagnostic, Errors, InferCode};
use crate::dtype::Dtype;
use crate::element::{floats, spread};
use crate::exec::{Rows, bf16_bits, f16_bits};
use crate::format::Reader;
use crate::random::Random;
use crate::read::Stored;

/// The most bytes of a tensor that are kept in memory for lines across its rows.
const KEPT: u64 = 16 << 20;

/// Elements that are read at once.
const CHUNK: u64 = 1 << 18;

/// The most bytes that are held beside a chunk of a strided tensor, to pick from: the gaps between its elements included.
const SCRATCH: u64 = 8 << 20;

/// Returns whether tensors of that type can be compared element by element.
pub(super) fn is_plain(dtype: Dtype) -> bool {
    matches!(dtype.byte_width(), Some(1 | 2 | 4 | 8))
}

/// Turns stored bytes into the bits that the elements have in a type, rounded as a conversion does.
fn bits(bytes: &[u8], from: Dtype, to: Dtype, out: &mut Vec<u64>) {
    let (first, width) = (out.len(), from.byte_width().unwrap_or(1) as usize);
    out.resize(first + bytes.len() / width, 0);
    let out = &mut out[first..];
    spread(from, bytes, out);
    if from == to {
        return;
    }
    let mut values = vec![0.0; out.len()];
    floats(from, out, &mut values);
    for (bits, value) in out.iter_mut().zip(values) {
        *bits = match to {
            Dtype::F64 => value.to_bits(),
            Dtype::F32 => u64::from((value as f32).to_bits()),
            Dtype::F16 => u64::from(f16_bits(value)),
            _ => u64::from(bf16_bits(value)),
        };
    }
}

/// All elements of a tensor as bits of a type, row-major, each in as many bytes as the type has.
pub(super) struct Elements {
    dtype: Dtype,
    width: usize,
    bytes: Vec<u8>,
}

impl Elements {
    fn new(dtype: Dtype, count: u64) -> Elements {
        let width = dtype.byte_width().unwrap_or(1) as usize;
        Elements { dtype, width, bytes: Vec::with_capacity(count as usize * width) }
    }

    fn extend(&mut self, values: &[u64]) {
        values.iter().for_each(|value| self.bytes.extend_from_slice(&value.to_le_bytes()[..self.width]));
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    /// Returns an element by its number.
    pub(super) fn get(&self, place: usize) -> Option<u64> {
        let bytes = self.bytes.get(place.checked_mul(self.width)?..)?.get(..self.width)?;
        let mut bits = [0];
        spread(self.dtype, bytes, &mut bits);
        Some(bits[0])
    }

    /// Returns all, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len()).filter_map(|place| self.get(place))
    }
}

/// A checkpoint's tensors, read as the elements of a given type.
pub(super) struct Content<'a> {
    reader: &'a dyn Reader,
    /// Small tensors that were read last.
    kept: RefCell<HashMap<(usize, Dtype), Rc<Elements>>>,
}

impl<'a> Content<'a> {
    pub(super) fn new(reader: &'a dyn Reader) -> Content<'a> {
        Content { reader, kept: RefCell::default() }
    }

    pub(super) fn tensors(&self) -> &'a [TensorMeta] {
        &self.catalog().tensors
    }

    fn catalog(&self) -> &'a Catalog {
        self.reader.catalog()
    }

    /// Calls `chunk` with all elements, in order of the logical index, however they lie.
    fn scan(&self, at: usize, to: Dtype, chunk: &mut dyn FnMut(&[u64])) -> Result<(), Errors> {
        let tensor = &self.tensors()[at];
        let width = tensor.dtype.byte_width().unwrap_or(1);
        let elements = tensor.elements();
        let mut rows = Rows::new(self.catalog(), self.reader, SCRATCH);
        // Words, so that the bytes are aligned for every type.
        let mut words = vec![0_u64; (CHUNK.min(elements) * width).div_ceil(8) as usize];
        let (mut values, mut start) = (Vec::new(), 0);
        while start < elements {
            let count = CHUNK.min(elements - start);
            let buffer = &mut bytemuck::cast_slice_mut(&mut words)[..(count * width) as usize];
            let read = rows.read(at, &(start..start + count), buffer);
            read.map_err(|errors| errors.with_code(InferCode::Read))?;
            values.clear();
            bits(buffer, tensor.dtype, to, &mut values);
            chunk(&values);
            start += count;
        }
        Ok(())
    }

    /// Returns all elements of a tensor; small ones are kept for the next time.
    pub(super) fn all(&self, at: usize, to: Dtype) -> Result<Rc<Elements>, Errors> {
        if let Some(values) = self.kept.borrow().get(&(at, to)) {
            return Ok(Rc::clone(values));
        }
        let mut values = Elements::new(to, self.tensors()[at].elements());
        self.scan(at, to, &mut |chunk| values.extend(chunk))?;
        let values = Rc::new(values);
        let mut kept = self.kept.borrow_mut();
        if kept.values().map(|values| values.bytes.len() as u64).sum::<u64>() > 4 * KEPT {
            kept.clear();
        }
        kept.insert((at, to), Rc::clone(&values));
        Ok(values)
    }

    /// Returns the elements along an axis.
    pub(super) fn line(&self, at: usize, to: Dtype, axis: usize, line: u64) -> Result<Vec<u64>, Errors> {
        let tensor = &self.tensors()[at];
        let index = line_index(&tensor.shape, axis, line);
        let place = |strides: &[u64]| index.iter().zip(strides).map(|(i, s)| i * s).sum::<u64>();
        let (count, step) =
            (tensor.shape.get(axis).copied().unwrap_or(1), tensor.strides.get(axis).copied().unwrap_or(1));
        let width = tensor.dtype.byte_width().unwrap_or(1);
        if step > 1 && tensor.elements() * width <= KEPT {
            let all = self.all(at, to)?;
            let strides = row_major(&tensor.shape);
            let (first, step) = (place(&strides), strides.get(axis).copied().unwrap_or(1));
            let value = |index: u64| all.get((first + index * step) as usize).unwrap_or_default();
            return Ok((0..count).map(value).collect());
        }
        let (first, mut found) = (place(&tensor.strides), Vec::new());
        let stored = Stored { file: tensor.file, offset: tensor.offset, width };
        let offsets = (0..count).map(|index| first + index * step);
        let read = stored.pick(self.reader, offsets, |_, bytes| found.extend_from_slice(bytes));
        read.map_err(|error| {
            let error = Diagnostic::error(InferCode::Read, format!("cannot read the weights: {error}"));
            error.file(&self.catalog().files[tensor.file]).tensor(&tensor.key)
        })?;
        let mut values = Vec::new();
        bits(&found, tensor.dtype, to, &mut values);
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
