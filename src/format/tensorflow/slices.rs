//! Variables that are saved in slices: the keys of the slices, and how the slices make up the whole.

use super::proto;

/// Returns the key of a slice (tensorflow/tensorflow, `tensorflow/core/util/saved_tensor_slice_util.cc`): a zero, the
/// name, the number of dimensions, and each dimension's start and length, where -1 stands for all of it.
pub(super) fn key(name: &str, slice: &proto::Slice) -> Vec<u8> {
    let mut key = vec![0];
    for byte in name.bytes() {
        key.push(byte);
        if byte == 0 {
            key.push(0xff);
        }
    }
    key.extend([0, 1]);
    match slice.extents.len() {
        0 => key.push(0),
        // The number's bytes, of which there is one: the shape has as many dimensions, 254 at most.
        rank => key.extend([1, rank as u8]),
    }
    for extent in &slice.extents {
        push_signed(&mut key, extent.start);
        push_signed(&mut key, extent.length.unwrap_or(-1));
    }
    key
}

/// Appends a number so that its bytes sort as it does (google/orderedcode; tensorflow/tensorflow,
/// `tensorflow/core/lib/strings/ordered_code.cc`).
///
/// Each byte adds seven bits; the sign takes one of all. The length stands in front: as many ones as there are bytes,
/// inverted where the number is negative.
fn push_signed(to: &mut Vec<u8>, value: i64) {
    let magnitude = if value < 0 { !value } else { value }.cast_unsigned();
    let length = (u64::BITS - magnitude.leading_zeros()) as usize / 7 + 1;
    // Two bytes of sign before the number, because the longest code has ten.
    let mut bytes = [if value < 0 { 0xff } else { 0 }; 10];
    bytes[2..].copy_from_slice(&value.to_be_bytes());
    let code = &mut bytes[10 - length..];
    // So many ones from the left as there are bytes.
    let header = (0xffff_u32 << (16 - length)) as u16;
    for (byte, mask) in code.iter_mut().zip(header.to_be_bytes()) {
        *byte ^= mask;
    }
    to.extend_from_slice(code);
}

/// A tensor cut along some of its dimensions into cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    /// The cuts of each dimension in order: where each begins and how long it is. There is at least one dimension.
    pub(super) cuts: Vec<Vec<(u64, u64)>>,
}

impl Grid {
    /// Makes a tensor that is in one piece; a scalar becomes one element along one dimension.
    pub(super) fn whole(shape: &[u64]) -> Grid {
        let shape = if shape.is_empty() { &[1] } else { shape };
        Grid { cuts: shape.iter().map(|&size| vec![(0, size)]).collect() }
    }

    /// Returns the grid that slices of a tensor make, and the number of the slice in each cell, row-major.
    ///
    /// Each slice has a range, start and length, for each dimension of the shape.
    ///
    /// # Errors
    /// Says in what way the slices do not cover the tensor exactly once, or not in the manner of a grid.
    pub(super) fn of(shape: &[u64], slices: &[Vec<(u64, u64)>]) -> Result<(Grid, Vec<usize>), String> {
        let mut cuts = Vec::with_capacity(shape.len());
        for (dim, &size) in shape.iter().enumerate() {
            let mut along: Vec<(u64, u64)> =
                slices.iter().filter_map(|ranges| ranges.get(dim)).copied().collect();
            along.sort_unstable();
            along.dedup();
            let mut end = 0;
            for &(start, length) in &along {
                if start != end {
                    let what = if start < end { "overlap" } else { "leave a gap" };
                    return Err(format!("the slices {what} along dimension {dim} at {}", start.min(end)));
                }
                end = start.saturating_add(length);
            }
            if end != size {
                return Err(format!("the slices end at {end} of {size} along dimension {dim}"));
            }
            cuts.push(along);
        }
        let count = cuts.iter().try_fold(1_usize, |count, along| count.checked_mul(along.len()));
        if count != Some(slices.len()) {
            let count = count.map_or("too many to count".to_owned(), |count| count.to_string());
            return Err(format!("{} slices do not make a grid of {count} cells", slices.len()));
        }
        let mut cells = vec![None; slices.len()];
        for (number, ranges) in slices.iter().enumerate() {
            let cell = ranges.iter().zip(&cuts).try_fold(0, |cell, (range, along)| {
                Some(cell * along.len() + along.binary_search(range).ok()?)
            });
            if let Some(cell) = cell.and_then(|cell| cells.get_mut(cell)) {
                *cell = Some(number);
            }
        }
        let cells: Option<Vec<usize>> = cells.into_iter().collect();
        let cells = cells.ok_or("a slice is there twice, and another is not")?;
        if cuts.is_empty() {
            return Ok((Grid::whole(shape), cells));
        }
        Ok((Grid { cuts }, cells))
    }

    /// Returns the last dimension that is cut, or the first where none is.
    pub(super) fn axis(&self) -> usize {
        self.cuts.iter().rposition(|along| along.len() > 1).unwrap_or(0)
    }

    /// Returns the size of a dimension.
    fn size(&self, dim: usize) -> u64 {
        let last = self.cuts.get(dim).and_then(|along| along.last());
        last.map_or(1, |(start, length)| start + length)
    }

    /// Returns the number of elements in dimensions from `first` up to but without `end`.
    pub(super) fn elements(&self, first: usize, end: usize) -> u64 {
        (first..end).map(|dim| self.size(dim)).product()
    }

    /// Returns whether the cells' elements follow each other as the whole tensor's do.
    pub(super) fn is_contiguous(&self) -> bool {
        self.elements(0, self.cuts.len()) == 0 || self.elements(0, self.axis()) == 1
    }

    /// Returns the first of the cells that hold a row: the elements that agree in the dimensions before [`Grid::axis`].
    /// The others follow it.
    pub(super) fn cell_of_row(&self, row: u64) -> usize {
        let (mut rest, mut cell, mut step) = (row, 0, self.cuts[self.axis()].len());
        for (dim, along) in self.cuts.iter().enumerate().take(self.axis()).rev() {
            let at = rest % self.size(dim).max(1);
            rest /= self.size(dim).max(1);
            cell += step * along.partition_point(|(start, length)| start + length <= at);
            step *= along.len();
        }
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::slice;
    use super::*;

    #[test]
    fn numbers_in_keys_sort_as_they_do() {
        let code = |value: i64| {
            let mut bytes = Vec::new();
            push_signed(&mut bytes, value);
            bytes
        };
        // As the source's tables say.
        for (value, bytes) in [
            (0, &[0x80][..]),
            (-1, &[0x7f]),
            (63, &[0xbf]),
            (-64, &[0x40]),
            (64, &[0xc0, 0x40]),
            (-65, &[0x3f, 0xbf]),
            (8191, &[0xdf, 0xff]),
            (8192, &[0xe0, 0x20, 0]),
            (i64::MAX, &[0xff, 0xc0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            (i64::MIN, &[0, 0x3f, 0x80, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(code(value), bytes, "{value}");
        }
        let mut values: Vec<i64> =
            (0..63).flat_map(|bit| [1 << bit, (1 << bit) - 1, -(1 << bit), -(1 << bit) - 1]).collect();
        values.sort_unstable();
        values.dedup();
        assert!(values.is_sorted_by(|a, b| code(*a) < code(*b)));
    }

    #[test]
    fn keys_hold_the_name_and_the_ranges() {
        assert_eq!(key("a/b", &slice(&[])), b"\0a/b\0\x01\0");
        assert_eq!(key("a\0", &slice(&[(0, -1), (3, 70)])), b"\0a\0\xff\0\x01\x01\x02\x80\x7f\x83\xc0\x46");
    }

    #[test]
    fn cells_are_ordered_by_their_places() {
        let slices = [vec![(2, 1), (0, 5)], vec![(0, 2), (0, 5)]];
        let (grid, order) = Grid::of(&[3, 5], &slices).expect("a grid");
        assert_eq!((grid.axis(), grid.is_contiguous(), order), (0, true, vec![1, 0]));

        let slices = [vec![(0, 3), (2, 3)], vec![(0, 3), (0, 2)]];
        let (grid, order) = Grid::of(&[3, 5], &slices).expect("a grid");
        assert_eq!((grid.axis(), grid.is_contiguous(), order), (1, false, vec![1, 0]));

        let slices = [[2, 0], [0, 0], [2, 1], [0, 1]];
        let slices = slices.map(|[a, b]| vec![(a, 2 - a / 2), (b, 1 + 2 * b), (0, 2)]);
        let (grid, order) = Grid::of(&[3, 4, 2], &slices).expect("a grid");
        assert_eq!((grid.axis(), order), (1, vec![1, 3, 0, 2]));
        assert_eq!([0, 1, 2].map(|row| grid.cell_of_row(row)), [0, 0, 2]);
        assert_eq!((grid.elements(0, 1), grid.elements(2, 3)), (3, 2));

        let (grid, _) = Grid::of(&[1, 4], &[vec![(0, 1), (0, 3)], vec![(0, 1), (3, 1)]]).expect("a grid");
        assert!(grid.is_contiguous());
        let (grid, order) = Grid::of(&[], &[vec![]]).expect("a grid");
        assert_eq!((grid, order), (Grid::whole(&[]), vec![0]));
    }

    #[test]
    fn slices_that_are_no_grid_are_refused() {
        let refused = |slices: &[Vec<(u64, u64)>]| Grid::of(&[4, 3], slices).expect_err("is refused");
        assert!(
            refused(&[vec![(0, 2), (0, 3)], vec![(1, 3), (0, 3)]]).contains("overlap along dimension 0 at 1")
        );
        assert!(
            refused(&[vec![(0, 2), (0, 3)], vec![(3, 1), (0, 3)]]).contains("gap along dimension 0 at 2")
        );
        assert!(refused(&[vec![(0, 4), (0, 2)]]).contains("end at 2 of 3 along dimension 1"));
        assert!(refused(&[vec![(1, 3), (0, 3)]]).contains("gap along dimension 0 at 0"));
        let half = [vec![(0, 2), (0, 1)], vec![(2, 2), (1, 2)]];
        assert!(refused(&half).contains("2 slices do not make a grid of 4 cells"));
        let twice = [(0, 0), (0, 0), (2, 0), (2, 1)].map(|(a, b)| vec![(a, 2), (b, 1 + b)]);
        assert!(refused(&twice).contains("twice"));
    }
}
