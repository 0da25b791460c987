//! Reading a bounded sample of a stored matrix as numbers.

use std::io;

use super::arrange::Place;
use crate::catalog::TensorMeta;
use crate::dtype::Dtype;
use crate::format::Reader;

/// Elements that lie this far apart or less are read together.
const GAP: u64 = 64;

/// The most elements that are read at once.
const SPAN: u64 = 1 << 18;

/// A matrix inside a stored tensor: the element of a row and a column lies at the sum of their offsets, counted in
/// elements from the tensor's first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    /// The tensor, an index into [`crate::catalog::Catalog::tensors`].
    pub tensor: usize,
    /// The offset of each row: of the axis that is cut into parts and heads, in stored order.
    pub rows: Vec<u64>,
    /// The offset of each column: of the other axis.
    pub columns: Vec<u64>,
}

impl Matrix {
    /// Returns the matrix with rows and columns exchanged.
    pub(super) fn transposed(&self) -> Matrix {
        Matrix { tensor: self.tensor, rows: self.columns.clone(), columns: self.rows.clone() }
    }

    /// Returns all rows with as many columns as the bound on elements leaves, in four runs spread over all.
    pub(super) fn sampled(&self, elements: usize) -> Matrix {
        const RUNS: usize = 4;
        let most = (elements / self.rows.len().max(1)).max(RUNS);
        if most >= self.columns.len() {
            return self.clone();
        }
        let (run, step) = (most / RUNS, self.columns.len() / RUNS);
        let columns = (0..RUNS).flat_map(|at| self.columns[at * step..at * step + run].iter().copied());
        Matrix { columns: columns.collect(), ..self.clone() }
    }
}

/// A fused tensor's matrix, and what the declared layout says of each of its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The matrix, rows in stored order.
    pub matrix: Matrix,
    /// What each row holds.
    pub places: Vec<Place>,
}

/// Picks at most so many, spread over all.
pub(super) fn spread<T: Clone>(list: &[T], most: usize) -> Vec<T> {
    let count = list.len().min(most.max(1));
    (0..count).map(|at| list[at * list.len() / count.max(1)].clone()).collect()
}

/// Reads a matrix, row after row.
pub(super) fn read(reader: &dyn Reader, matrix: &Matrix) -> io::Result<Vec<f32>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let tensor = reader.catalog().tensors.get(matrix.tensor).ok_or_else(invalid)?;
    let (rows, columns) = (&matrix.rows, &matrix.columns);
    let mut values = vec![0.0; rows.len() * columns.len()];
    // Neighbours in the file are taken one after the other, whichever axis they follow.
    if step(rows) < step(columns) {
        let offsets = columns.iter().flat_map(|column| rows.iter().map(move |row| row + column));
        let width = rows.len();
        gather(reader, tensor, offsets, |at, value| {
            values[at % width * columns.len() + at / width] = value;
        })?;
    } else {
        let offsets = rows.iter().flat_map(|row| columns.iter().map(move |column| row + column));
        gather(reader, tensor, offsets, |at, value| values[at] = value)?;
    }
    Ok(values)
}

fn step(offsets: &[u64]) -> u64 {
    match offsets {
        [first, second, ..] => first.abs_diff(*second),
        _ => u64::MAX,
    }
}

/// Reads the elements at these offsets in their order; neighbours share a read.
fn gather(
    reader: &dyn Reader,
    tensor: &TensorMeta,
    offsets: impl Iterator<Item = u64>,
    mut take: impl FnMut(usize, f32),
) -> io::Result<()> {
    let mut span: Vec<u64> = Vec::new();
    let mut bytes = Vec::new();
    let mut done = 0;
    let mut flush = |span: &mut Vec<u64>, done: &mut usize| -> io::Result<()> {
        let (Some(&first), Some(&last)) = (span.first(), span.last()) else { return Ok(()) };
        let width = tensor.dtype.byte_width().unwrap_or(1);
        bytes.resize(((last - first + 1) * width) as usize, 0);
        reader.read_exact_at(tensor.file, tensor.offset + first * width, &mut bytes)?;
        for offset in span.drain(..) {
            let at = ((offset - first) * width) as usize;
            take(*done, number(tensor.dtype, &bytes[at..at + width as usize]));
            *done += 1;
        }
        Ok(())
    };
    for offset in offsets {
        let joins = match (span.first(), span.last()) {
            (Some(&first), Some(&last)) => offset > last && offset - last <= GAP && offset - first < SPAN,
            _ => true,
        };
        if !joins {
            flush(&mut span, &mut done)?;
        }
        span.push(offset);
    }
    flush(&mut span, &mut done)
}

fn number(dtype: Dtype, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (Dtype::F64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
        (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (Dtype::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
        (Dtype::BF16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
        _ => f32::NAN,
    }
}
