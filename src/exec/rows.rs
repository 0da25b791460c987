//! A stored tensor's elements in the order of its indices, however they lie in its file.

use std::ops::Range;

use super::gather::Gather;
use super::jobs::check_loops;
use super::part::merged;
use super::worker::read_side;
use crate::catalog::{Catalog, ExtentId};
use crate::diag::Errors;
use crate::read::ReadAt;

/// Reads tensors of any strides row by row, in bounded memory.
pub(crate) struct Rows<'a> {
    catalog: &'a Catalog,
    gather: Gather<'a>,
}

impl<'a> Rows<'a> {
    /// Makes one that holds up to `scratch` bytes beside what it fills, as soon as it needs them; at least 8.
    pub(crate) fn new(catalog: &'a Catalog, source: &'a dyn ReadAt, scratch: u64) -> Rows<'a> {
        Rows { catalog, gather: Gather::new(catalog, source, scratch) }
    }

    /// Fills `target` with those elements of a tensor, counted in row-major order.
    ///
    /// # Errors
    /// Returns `exec/read` where the system refuses.
    ///
    /// # Panics
    /// Panics where `target` is shorter than the elements or not aligned to one of them, and where the range reaches out
    /// of the tensor. A type whose elements share bytes is read by its bytes, not here.
    pub(crate) fn read(
        &mut self,
        tensor: usize,
        range: &Range<u64>,
        target: &mut [u8],
    ) -> Result<(), Errors> {
        let meta = &self.catalog.tensors[tensor];
        let dims = meta.shape.iter().zip(&meta.strides).filter(|(count, _)| **count != 1);
        let loops = merged(&check_loops(dims.map(|(&count, &step)| (count, step))));
        read_side(&mut self.gather, (ExtentId::whole(tensor), 0), &loops, range, target)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use proptest::prelude::*;

    use super::*;
    use crate::catalog::TensorMeta;
    use crate::dtype::Dtype;
    use crate::exec::buffer::Buffer;
    use crate::exec::testing::units;
    use crate::read::read_memory;

    struct Bytes(Vec<u8>);

    impl ReadAt for Bytes {
        fn read_exact_at(&self, _: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            read_memory(&self.0, offset, buffer)
        }
    }

    proptest! {
        /// Any strides, zero and overlapping ones too, and any range; the file ends with the tensor's last element.
        #[test]
        fn elements_come_in_the_order_of_their_indices(
            dims in prop::collection::vec((1_u64..12, 0_u64..40), 0..4), width in 0_u32..4, scratch in 8_u64..2000,
            ends in (0.0..1.0, 0.0..1.0),
        ) {
            let dtype = [Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::I64][width as usize];
            let width = 1_u64 << width;
            let (shape, strides): (Vec<u64>, Vec<u64>) = dims.iter().copied().unzip();
            let reach = 1 + dims.iter().map(|(size, stride)| (size - 1) * stride).sum::<u64>();
            let file = Bytes(units(3 + (reach * width) as usize));
            let meta = TensorMeta { key: "w".into(), dtype, shape, strides, file: 0, offset: 3, extents: Vec::new() };
            let count = meta.elements();
            let at = |part: f64| ((count + 1) as f64 * part) as u64;
            let range = at(ends.0).min(at(ends.1))..at(ends.0).max(at(ends.1));
            let mut expected = Vec::new();
            for number in range.clone() {
                let (mut rest, mut place) = (number, 0);
                for (size, stride) in dims.iter().rev() {
                    place += rest % size * stride;
                    rest /= size;
                }
                let start = (3 + place * width) as usize;
                expected.extend_from_slice(&file.0[start..start + width as usize]);
            }
            let catalog = Catalog::new("a".into(), vec![("a".into(), 0)], vec![meta]);
            let mut buffer = Buffer::new(expected.len() as u64);
            let mut rows = Rows::new(&catalog, &file, scratch);
            prop_assert!(rows.read(0, &range, buffer.bytes_mut()).is_ok());
            prop_assert_eq!(&buffer.bytes()[..expected.len()], &expected[..]);
        }
    }
}
