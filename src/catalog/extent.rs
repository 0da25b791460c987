//! Tensors that lie in several places: each a box of the tensor, in a file of its own or not, or filled with one value.

use std::collections::HashMap;

use super::{Catalog, TensorMeta, row_major};
use crate::diag::{CatalogCode, Collector, Diagnostic, Errors};
use crate::dtype::Dtype;

/// A box of a tensor and where its elements are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The index of its first element in the tensor.
    pub offsets: Vec<u64>,
    /// How many indices it takes along each dimension.
    pub lengths: Vec<u64>,
    /// The distance between neighbours along each dimension, in elements, as the box is stored.
    pub strides: Vec<u64>,
    /// What holds the elements.
    pub content: ExtentContent,
}

/// What holds the elements of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentContent {
    /// A file.
    Stored {
        /// The file, an index into [`Catalog::files`].
        file: usize,
        /// Where its first element begins, in bytes from the start of the file.
        offset: u64,
    },
    /// Nothing: each element has these bits, in the lowest places. No type whose elements share bytes can be so.
    Fill(u64),
}

impl Extent {
    /// Makes an extent whose elements lie row by row in a file.
    pub fn stored(offsets: Vec<u64>, lengths: Vec<u64>, file: usize, offset: u64) -> Extent {
        let strides = row_major(&lengths);
        Extent { offsets, lengths, strides, content: ExtentContent::Stored { file, offset } }
    }

    /// Makes an extent all of whose elements have the same bits.
    pub fn fill(offsets: Vec<u64>, lengths: Vec<u64>, bits: u64) -> Extent {
        let strides = row_major(&lengths);
        Extent { offsets, lengths, strides, content: ExtentContent::Fill(bits) }
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        if self.lengths.contains(&0) { 0 } else { self.lengths.iter().product() }
    }

    fn bounds(&self) -> Bounds {
        Bounds { offsets: self.offsets.clone(), lengths: self.lengths.clone() }
    }
}

/// Names an extent of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId {
    /// The tensor, an index into [`Catalog::tensors`].
    pub tensor: usize,
    /// The extent, an index into [`TensorMeta::extents`]; `None` for all of the tensor, as its own file and offset say.
    pub extent: Option<usize>,
}

impl ExtentId {
    /// Names all of a tensor.
    pub fn whole(tensor: usize) -> ExtentId {
        ExtentId { tensor, extent: None }
    }
}

/// An extent as it is stored, or a whole tensor.
#[derive(Clone, Copy, Debug)]
pub struct Place<'c> {
    /// The type of its elements.
    pub dtype: Dtype,
    /// How many indices it takes along each dimension.
    pub lengths: &'c [u64],
    /// The distance between neighbours along each dimension, in elements.
    pub strides: &'c [u64],
    /// What holds the elements.
    pub content: ExtentContent,
}

impl Catalog {
    /// Returns where the elements of an extent are.
    pub fn place(&self, id: ExtentId) -> Place<'_> {
        let meta = &self.tensors[id.tensor];
        match id.extent.and_then(|extent| meta.extents.get(extent)) {
            Some(extent) => Place {
                dtype: meta.dtype,
                lengths: &extent.lengths,
                strides: &extent.strides,
                content: extent.content,
            },
            None => Place {
                dtype: meta.dtype,
                lengths: &meta.shape,
                strides: &meta.strides,
                content: ExtentContent::Stored { file: meta.file, offset: meta.offset },
            },
        }
    }

    /// Returns the index in its tensor of the element that lies so many elements behind the first of an extent.
    pub(crate) fn index_at(&self, id: ExtentId, element: u64) -> Vec<u64> {
        let place = self.place(id);
        let mut index = super::index_at(place.lengths, place.strides, element);
        if let Some(extent) = id.extent.and_then(|extent| self.tensors[id.tensor].extents.get(extent)) {
            index.iter_mut().zip(&extent.offsets).for_each(|(index, first)| *index += first);
        }
        index
    }

    /// Checks that the extents of every tensor cover it, and lie in it.
    ///
    /// # Errors
    /// Returns `catalog/extent` for an extent that does not fit its tensor and `catalog/missing` for a tensor of which a
    /// part is missing, with the boxes.
    pub fn check_extents(&self) -> Result<(), Errors> {
        let mut errors = Collector::default();
        for meta in self.tensors.iter().filter(|meta| !meta.extents.is_empty()) {
            if let Err(error) = meta.tiling() {
                errors.push(error.file(&self.path));
            }
        }
        errors.finish(()).map(|_| ())
    }
}

/// A box of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bounds {
    /// The index of its first element.
    pub offsets: Vec<u64>,
    /// How many indices it takes along each dimension.
    pub lengths: Vec<u64>,
}

impl Bounds {
    fn elements(&self) -> u64 {
        self.lengths.iter().product()
    }

    fn end(&self, dim: usize) -> u64 {
        self.offsets[dim] + self.lengths[dim]
    }

    /// Returns the box that both hold; `None` where they share nothing.
    fn shared(&self, other: &Bounds) -> Option<Bounds> {
        let mut shared = self.clone();
        for dim in 0..self.lengths.len() {
            shared.offsets[dim] = self.offsets[dim].max(other.offsets[dim]);
            let end = self.end(dim).min(other.end(dim));
            shared.lengths[dim] = end.checked_sub(shared.offsets[dim]).filter(|length| *length > 0)?;
        }
        Some(shared)
    }

    /// Returns boxes that together hold what is left when a box inside this one is taken away.
    fn without(&self, inner: &Bounds) -> Vec<Bounds> {
        let mut left = Vec::new();
        let mut rest = self.clone();
        for dim in 0..self.lengths.len() {
            let (start, end) = (inner.offsets[dim], inner.end(dim));
            if start > rest.offsets[dim] {
                let mut before = rest.clone();
                before.lengths[dim] = start - rest.offsets[dim];
                left.push(before);
            }
            if rest.end(dim) > end {
                let mut behind = rest.clone();
                (behind.offsets[dim], behind.lengths[dim]) = (end, rest.end(dim) - end);
                left.push(behind);
            }
            (rest.offsets[dim], rest.lengths[dim]) = (start, end - start);
        }
        left
    }

    /// Writes the box as ranges of indices, `[0..4, 6..8]`.
    fn shown(&self) -> String {
        let ranges = self.offsets.iter().zip(&self.lengths);
        let ranges: Vec<String> = ranges.map(|(from, length)| format!("{from}..{}", from + length)).collect();
        format!("[{}]", ranges.join(", "))
    }
}

/// Which extent each element of a tensor is read from.
#[derive(Clone, Debug, Default)]
pub struct Tiling {
    /// Boxes that hold each element of the tensor once, and the extent that each is read from.
    pub pieces: Vec<(usize, Bounds)>,
    /// Boxes that a second extent holds too: the extent that is read, the other, and the box.
    pub replicas: Vec<(usize, usize, Bounds)>,
}

/// The most missing boxes that a message lists.
const MOST_SHOWN: usize = 8;

impl TensorMeta {
    /// Makes a tensor that lies in extents. Its place in a file, as readers of whole tensors see it, is to be set by what
    /// assembles it; until then there is none.
    pub fn in_extents(key: String, dtype: Dtype, shape: Vec<u64>, extents: Vec<Extent>) -> TensorMeta {
        let strides = row_major(&shape);
        TensorMeta { key, dtype, shape, strides, file: usize::MAX, offset: 0, extents }
    }

    /// Returns which extent each element is read from; no pieces for a tensor that lies in one place.
    ///
    /// # Errors
    /// Returns an extent that does not fit, or the boxes that no extent holds.
    pub fn tiling(&self) -> Result<Tiling, Diagnostic> {
        let mut tiling = Tiling::default();
        if self.extents.is_empty() {
            return Ok(tiling);
        }
        for extent in &self.extents {
            self.check_extent(extent)?;
        }
        // By their first index: two that share elements are then near each other.
        let mut order: Vec<usize> =
            (0..self.extents.len()).filter(|&at| self.extents[at].elements() > 0).collect();
        order.sort_by_key(|&at| (&self.extents[at].offsets, at));
        let mut known: HashMap<Bounds, Vec<(usize, Bounds)>> = HashMap::default();
        // The pieces that reach beyond the first index of what follows.
        let mut open: Vec<(usize, Bounds)> = Vec::new();
        for at in order {
            let bounds = self.extents[at].bounds();
            if let Some(owners) = known.get(&bounds) {
                let replicas = owners.iter().map(|(owner, piece)| (*owner, at, piece.clone()));
                tiling.replicas.extend(replicas);
                continue;
            }
            if let Some(&first) = bounds.offsets.first() {
                open.retain(|(_, piece)| piece.end(0) > first);
            }
            let (mut mine, mut owners) = (vec![bounds.clone()], Vec::new());
            for (owner, piece) in &open {
                let Some(shared) = bounds.shared(piece) else { continue };
                mine = mine
                    .into_iter()
                    .flat_map(|part| match part.shared(&shared) {
                        Some(inner) => part.without(&inner),
                        None => vec![part],
                    })
                    .collect();
                tiling.replicas.push((*owner, at, shared.clone()));
                owners.push((*owner, shared));
            }
            let mine = mine.into_iter().map(|part| (at, part));
            owners.extend(mine.clone());
            open.extend(mine.clone());
            tiling.pieces.extend(mine);
            known.insert(bounds, owners);
        }
        let held: u64 = tiling.pieces.iter().map(|(_, piece)| piece.elements()).sum();
        if held == self.elements() {
            return Ok(tiling);
        }
        Err(self.missing(&tiling, held))
    }

    fn check_extent(&self, extent: &Extent) -> Result<(), Diagnostic> {
        let rank = self.shape.len();
        let (block, _) = self.dtype.block();
        let is_in_blocks = match (extent.offsets.last(), extent.lengths.last(), extent.strides.last()) {
            (Some(offset), Some(length), Some(stride)) => {
                let outer = &extent.strides[..extent.strides.len() - 1];
                block == 1
                    || offset.is_multiple_of(block)
                        && length.is_multiple_of(block)
                        && *stride == 1
                        && outer.iter().all(|stride| stride.is_multiple_of(block))
            }
            _ => block == 1,
        };
        let fits = extent.offsets.len() == rank
            && extent.lengths.len() == rank
            && extent.strides.len() == rank
            && (0..rank).all(|dim| {
                let end = extent.offsets[dim].checked_add(extent.lengths[dim]);
                end.is_some_and(|end| end <= self.shape[dim])
            });
        let can_fill = block == 1 || matches!(extent.content, ExtentContent::Stored { .. });
        if fits && is_in_blocks && can_fill {
            return Ok(());
        }
        let shown = format!("offsets {:?}, lengths {:?}", extent.offsets, extent.lengths);
        let message = "a stored part of a tensor does not fit it";
        Err(Diagnostic::error(CatalogCode::Extent, message)
            .tensor(&self.key)
            .expected(format!("a box in the shape {:?}, of whole blocks of {block} elements", self.shape))
            .found(shown)
            .help("download or save the checkpoint again"))
    }

    fn missing(&self, tiling: &Tiling, held: u64) -> Diagnostic {
        let all = Bounds { offsets: vec![0; self.shape.len()], lengths: self.shape.clone() };
        let mut missing = vec![all];
        for (_, piece) in &tiling.pieces {
            let left = missing.into_iter().flat_map(|part| match part.shared(piece) {
                Some(inner) => part.without(&inner),
                None => vec![part],
            });
            missing = left.collect();
        }
        missing.sort();
        let mut shown: Vec<String> = missing.iter().take(MOST_SHOWN).map(Bounds::shown).collect();
        if missing.len() > MOST_SHOWN {
            shown.push(format!("{} more", missing.len() - MOST_SHOWN));
        }
        Diagnostic::error(CatalogCode::Missing, "a part of the tensor is in none of the files")
            .tensor(&self.key)
            .expected(format!("{} elements", self.elements()))
            .found(format!("{held}; missing: {}", shown.join(", ")))
            .help("complete the checkpoint: a file is missing")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tensor(shape: &[u64], extents: Vec<Extent>) -> TensorMeta {
        TensorMeta::in_extents("w".into(), Dtype::F32, shape.to_vec(), extents)
    }

    #[test]
    fn what_is_missing_is_named() {
        let part = |offsets: [u64; 2], lengths: [u64; 2]| Extent::fill(offsets.into(), lengths.into(), 0);
        let all = tensor(&[4, 6], vec![part([0, 0], [4, 2]), part([0, 2], [3, 4])]);
        let error = all.tiling().expect_err("lacks a part");
        assert_eq!(error.code, "catalog/missing");
        assert!(format!("{error:?}").contains("20; missing: [3..4, 2..6]"), "{error:?}");
        let error = tensor(&[4, 6], vec![part([0, 3], [4, 4])]).tiling().expect_err("reaches out");
        assert_eq!(error.code, "catalog/extent");
    }

    proptest! {
        /// Any boxes: each element that one of them holds is in one piece, and once in a replica for each further box.
        #[test]
        fn a_tiling_counts_every_element(
            boxes in prop::collection::vec(((0_u64..4, 1_u64..5), (0_u64..5, 1_u64..6)), 1..7),
        ) {
            let (rows, columns) = (5, 7);
            let mut extents: Vec<Extent> = boxes
                .iter()
                .map(|((row, height), (column, width))| {
                    let lengths = vec![*height.min(&(rows - row)), *width.min(&(columns - column))];
                    Extent::fill(vec![*row, *column], lengths, 0)
                })
                .collect();
            // All of it at last, so that nothing is missing.
            extents.push(Extent::fill(vec![0, 0], vec![rows, columns], 0));
            let tiling = tensor(&[rows, columns], extents.clone()).tiling().expect("is whole");
            let holds = |offsets: &[u64], lengths: &[u64], at: [u64; 2]| {
                (0..2).all(|dim| (offsets[dim]..offsets[dim] + lengths[dim]).contains(&at[dim]))
            };
            for at in (0..rows).flat_map(|row| (0..columns).map(move |column| [row, column])) {
                let mut held: Vec<usize> = (0..extents.len())
                    .filter(|&extent| holds(&extents[extent].offsets, &extents[extent].lengths, at))
                    .collect();
                let in_piece = tiling.pieces.iter().filter(|(_, b)| holds(&b.offsets, &b.lengths, at));
                let owners: Vec<usize> = in_piece.map(|(owner, _)| *owner).collect();
                prop_assert_eq!(owners.len(), 1);
                held.retain(|extent| *extent != owners[0]);
                let in_replicas = tiling.replicas.iter().filter(|(_, _, b)| holds(&b.offsets, &b.lengths, at));
                let mut others: Vec<usize> = Vec::new();
                for (owner, other, _) in in_replicas {
                    prop_assert_eq!(*owner, owners[0]);
                    others.push(*other);
                }
                others.sort_unstable();
                prop_assert_eq!(others, held);
            }
        }
    }
}
