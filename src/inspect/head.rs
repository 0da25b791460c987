//! One head of a parameter taken out of a stored tensor, in the family's canonical order.

use std::collections::BTreeSet;
use std::io;

use super::seen::Seen;
use crate::catalog::TensorMeta;
use crate::read::{ReadAt, Stored};
use crate::verify::naive::Found;

/// The most elements of a head that is taken out.
const MOST: u64 = 1 << 26;

/// Where a head's elements lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its axes in canonical order; the axis of heads and those that the tensor's name tells are left out.
    pub axes: Vec<String>,
    /// Their sizes.
    pub shape: Vec<u64>,
    /// For each element, row-major, its number in the stored tensor, row-major too.
    pub places: Vec<u64>,
    /// Further places of elements that are stored several times, as (element, number in the stored tensor).
    pub copies: Vec<(usize, u64)>,
    /// The shape of the stored tensor.
    stored: Vec<u64>,
}

/// Finds all elements of a head, each seen by itself through the naive reading.
///
/// # Errors
/// Returns in words why they cannot be taken out.
pub fn elements(seen: &Seen<'_>, shape: &[u64], param: &str, head: u64) -> Result<Head, String> {
    let place = seen.head(shape, param, head).ok_or_else(|| format!("it has no head {head} of {param}"))?;
    let count = place.iter().try_fold(1_u64, |count, indices| count.checked_mul(indices.len() as u64));
    let count = count.filter(|count| *count <= MOST).ok_or("the head is too large to be taken out")?;
    let axes = &seen.mapping().params.get(param).ok_or("it is no parameter")?.axes;
    let heads = seen.mapping().head_axis(param);
    // What the name tells is the same for all elements.
    let named = |axis: &str| seen.captures().index(axis).is_some();
    let kept: Vec<&String> =
        axes.iter().filter(|axis| Some(axis.as_str()) != heads && !named(axis)).collect();
    let tables: Vec<Vec<Found>> = place
        .iter()
        .enumerate()
        .map(|(dim, indices)| indices.iter().map(|index| seen.decode(dim, *index)).collect::<Option<_>>())
        .collect::<Option<_>>()
        .ok_or("a size is open: give it with --axis or --config")?;
    // Per element the values of its axes, and its number in the stored tensor.
    let mut values: Vec<u64> = Vec::with_capacity(count as usize * kept.len());
    let mut numbers: Vec<u64> = Vec::with_capacity(count as usize);
    for at in Steps::new(&place) {
        let found = at.iter().zip(&tables).map(|(step, table)| &table[*step]);
        let element = seen.combine(found).filter(|element| element.param == param);
        let element = element.filter(|element| element.head(seen.mapping()) == Some(head));
        let element = element.ok_or("its elements are no block of the tensor")?;
        values.extend(kept.iter().map(|axis| element.values.get(axis.as_str()).copied().unwrap_or(0)));
        let indices = at.iter().zip(&place).map(|(step, indices)| indices[*step]);
        numbers.push(indices.zip(shape).fold(0, |number, (index, size)| number * size + index));
    }
    // A shard holds a part of an axis: its values, close together.
    let sets: Vec<Vec<u64>> = (0..kept.len())
        .map(|axis| {
            let own = values.iter().skip(axis).step_by(kept.len());
            own.copied().collect::<BTreeSet<u64>>().into_iter().collect()
        })
        .collect();
    let sizes: Vec<u64> = sets.iter().map(|set| set.len() as u64).collect();
    const OPEN: &str = "the order of its elements is open: give the sizes of their axes with --axis";
    let total = sizes.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
    let total = total.filter(|total| *total <= count).ok_or(OPEN)?;
    let mut places: Vec<Option<u64>> = vec![None; total as usize];
    let mut copies = Vec::new();
    for (element, number) in numbers.into_iter().enumerate() {
        let value = values.iter().skip(element * kept.len());
        let own = value
            .zip(&sets)
            .fold(0, |own, (value, set)| own * set.len() + set.binary_search(value).unwrap_or(0));
        match &mut places[own] {
            Some(_) => copies.push((own, number)),
            empty => *empty = Some(number),
        }
    }
    let places = places.into_iter().collect::<Option<Vec<_>>>().ok_or(OPEN)?;
    // Copies lie along an axis that the parameter lacks; elements without an order of their own look like copies too.
    let full = |axis: &str| seen.sizes_of(param).and_then(|sizes| sizes.get(axis)).copied().unwrap_or(1);
    let unordered = kept.iter().zip(&sizes).any(|(axis, size)| *size == 1 && full(axis) > 1);
    if unordered && !copies.is_empty() {
        return Err(OPEN.to_owned());
    }
    let axes = kept.into_iter().cloned().collect();
    Ok(Head { axes, shape: sizes, places, copies, stored: shape.to_vec() })
}

/// Counts through a block, its last axis fastest.
struct Steps {
    lengths: Vec<usize>,
    next: Option<Vec<usize>>,
}

impl Steps {
    fn new(place: &[Vec<u64>]) -> Steps {
        let lengths: Vec<usize> = place.iter().map(Vec::len).collect();
        let next = (!lengths.contains(&0)).then(|| vec![0; lengths.len()]);
        Steps { lengths, next }
    }
}

impl Iterator for Steps {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let current = self.next.clone()?;
        let mut following = current.clone();
        let step = (0..following.len()).rev().find(|dim| {
            following[*dim] += 1;
            if following[*dim] < self.lengths[*dim] {
                return true;
            }
            following[*dim] = 0;
            false
        });
        self.next = step.map(|_| following);
        Some(current)
    }
}

impl Head {
    /// Reads its elements, row-major, each of so many bytes.
    ///
    /// # Errors
    /// Returns what reading reports, and [`io::ErrorKind::InvalidData`] where stored copies of an element differ.
    pub fn read(&self, tensor: &TensorMeta, width: u64, source: &dyn ReadAt) -> io::Result<Vec<u8>> {
        let stored = Stored { file: tensor.file, offset: tensor.offset, width };
        let offset = |number: u64| {
            let mut rest = number;
            let mut elements = 0;
            for (size, stride) in self.stored.iter().zip(&tensor.strides).rev() {
                elements += rest % size * stride;
                rest /= size;
            }
            elements
        };
        let width = width as usize;
        let mut bytes = vec![0; self.places.len() * width];
        // In the order of the file, neighbours at once.
        let mut order: Vec<(u64, usize)> =
            self.places.iter().enumerate().map(|(number, place)| (offset(*place), number)).collect();
        order.sort_unstable();
        stored.pick(source, order.iter().map(|(offset, _)| *offset), |at, element| {
            bytes[order[at].1 * width..][..width].copy_from_slice(element);
        })?;
        let mut differ = false;
        stored.pick(source, self.copies.iter().map(|(_, place)| offset(*place)), |at, element| {
            differ |= bytes[self.copies[at].0 * width..][..width] != *element;
        })?;
        if differ {
            let message = "the stored copies of an element differ";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(bytes)
    }
}
