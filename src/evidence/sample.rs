//! Reading a bounded sample of a stored matrix as numbers.

use std::io;

use super::arrange::Place;
use crate::element::Element;
use crate::format::Reader;
use crate::read::Stored;

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
    let stored =
        Stored { file: tensor.file, offset: tensor.offset, width: tensor.dtype.byte_width().unwrap_or(1) };
    let number = |bytes: &[u8]| {
        let number = Some(Element::stored(tensor.dtype, bytes)).filter(|_| tensor.dtype.is_computable());
        number.and_then(Element::float).map_or(f32::NAN, |value| value as f32)
    };
    // Neighbours in the file are taken one after the other, whichever axis they follow.
    if step(rows) < step(columns) {
        let offsets = columns.iter().flat_map(|column| rows.iter().map(move |row| row + column));
        let width = rows.len();
        stored.pick(reader, offsets, |at, bytes| {
            values[at % width * columns.len() + at / width] = number(bytes);
        })?;
    } else {
        let offsets = rows.iter().flat_map(|row| columns.iter().map(move |column| row + column));
        stored.pick(reader, offsets, |at, bytes| values[at] = number(bytes))?;
    }
    Ok(values)
}

fn step(offsets: &[u64]) -> u64 {
    match offsets {
        [first, second, ..] => first.abs_diff(*second),
        _ => u64::MAX,
    }
}
