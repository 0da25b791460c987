//! Putting a tensor together that does not lie in its files in the order and with the bytes that it has.

use std::io::{self, BufReader, Read, Write};

use super::checked::Checked;
use super::slices::Grid;

/// A tensor in cells, or in the other byte order, or both.
#[derive(Debug)]
pub(super) struct Interleave {
    /// How it is cut.
    pub(super) grid: Grid,
    /// The bytes of the cells.
    pub(super) bytes: Checked,
    /// Where each cell begins and ends in the bytes, row-major.
    pub(super) cells: Vec<(u64, u64)>,
    /// The bytes of an element.
    pub(super) width: u64,
    /// The bytes that are reversed together, 1 where none are.
    pub(super) swapped: usize,
}

impl Interleave {
    /// Writes the whole tensor, row-major and little-endian.
    ///
    /// # Errors
    /// Returns what reading and writing report.
    pub(super) fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        // Each cell is itself read from its beginning to its end, whatever the rows are cut into.
        let share = ((16 << 20) / self.cells.len().max(1)).clamp(1 << 9, 1 << 18);
        let reader = |&(begin, end): &(u64, u64)| {
            let capacity = usize::try_from(end - begin).map_or(share, |length| length.min(share));
            BufReader::with_capacity(capacity, self.bytes.stream(begin, end))
        };
        let mut cells: Vec<_> = self.cells.iter().map(reader).collect();
        let axis = self.grid.axis();
        let unit = self.grid.elements(axis + 1, self.grid.cuts.len()) * self.width;
        let mut buffer = vec![0; 1 << 16];
        for row in 0..self.grid.elements(0, axis) {
            let first = self.grid.cell_of_row(row);
            for (cell, (_, length)) in cells.iter_mut().skip(first).zip(&self.grid.cuts[axis]) {
                self.copy(cell, length * unit, &mut buffer, to)?;
            }
        }
        Ok(())
    }

    fn copy(
        &self,
        from: &mut impl Read,
        mut left: u64,
        buffer: &mut [u8],
        to: &mut dyn Write,
    ) -> io::Result<()> {
        while left > 0 {
            // The buffer's length is a multiple of every width.
            let count = left.min(buffer.len() as u64) as usize;
            let now = &mut buffer[..count];
            from.read_exact(now)?;
            if self.swapped > 1 {
                now.chunks_exact_mut(self.swapped).for_each(<[u8]>::reverse);
            }
            to.write_all(now)?;
            left -= count as u64;
        }
        Ok(())
    }
}
