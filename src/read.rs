//! Bytes that are read at given places, by any number of threads at once: of one store or of numbered files, on a disk, in
//! memory or made as they are asked for.

use std::io;

/// Numbered files that are read at given places, such as those of a checkpoint.
///
/// The position is part of the call, so any number of threads may read at once.
pub trait ReadAt: Send + Sync {
    /// Fills `buffer` with the bytes that begin `offset` bytes into a file, an index into
    /// [`Catalog::files`](crate::catalog::Catalog::files).
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::UnexpectedEof`] where the file ends before the buffer is full,
    /// [`io::ErrorKind::InvalidInput`] or [`io::ErrorKind::UnexpectedEof`] for a file that is not there, and what the
    /// system reports.
    fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Fills `buffer` with the bytes of a file in memory that begin `offset` bytes into it.
///
/// # Errors
/// Returns [`io::ErrorKind::UnexpectedEof`] where there are too few.
pub fn read_memory(bytes: &[u8], offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    let start = usize::try_from(offset).ok();
    let part = start.and_then(|start| bytes.get(start..)?.get(..buffer.len()));
    buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

/// Elements that lie this far apart or less are read together.
const GAP: u64 = 64;

/// The most elements that are read at once, those between the wanted ones included.
const SPAN: u64 = 1 << 18;

/// Elements of one width in a file, each at a number of elements behind the first.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// The file, as [`ReadAt`] counts.
    pub file: usize,
    /// Where the first element begins, in bytes.
    pub offset: u64,
    /// The bytes of an element.
    pub width: u64,
}

impl Stored {
    /// Reads the elements at these offsets, in their order, in bounded memory: `take` is given the number of each in that
    /// order and its bytes. Those that follow each other in the file share a read.
    ///
    /// # Errors
    /// Returns what [`ReadAt::read_exact_at`] returns.
    pub fn pick(
        &self,
        source: &dyn ReadAt,
        offsets: impl IntoIterator<Item = u64>,
        mut take: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        let mut span: Vec<u64> = Vec::new();
        let mut bytes = Vec::new();
        let mut done = 0;
        let mut flush = |span: &mut Vec<u64>, done: &mut usize| -> io::Result<()> {
            let (Some(&first), Some(&last)) = (span.first(), span.last()) else { return Ok(()) };
            bytes.resize(((last - first + 1) * self.width) as usize, 0);
            source.read_exact_at(self.file, self.offset + first * self.width, &mut bytes)?;
            for offset in span.drain(..) {
                let at = ((offset - first) * self.width) as usize;
                take(*done, &bytes[at..at + self.width as usize]);
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
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::*;

    /// Notes the length of every read.
    struct Noted(Vec<u8>, Mutex<Vec<usize>>);

    impl ReadAt for Noted {
        fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            assert_eq!(file, 5);
            self.1.lock().expect("no panic").push(buffer.len());
            read_memory(&self.0, offset, buffer)
        }
    }

    #[test]
    fn a_file_in_memory_ends_where_it_ends() {
        let mut two = [0; 2];
        read_memory(&[1, 2, 3], 1, &mut two).expect("reads");
        assert_eq!(two, [2, 3]);
        for offset in [2, 3, 4, u64::MAX] {
            let error = read_memory(&[1, 2, 3], offset, &mut two).expect_err("too far");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{offset}");
        }
    }

    proptest! {
        /// Any order, with repetitions, neighbours and gaps; the file ends with the last element.
        #[test]
        fn picked_elements_come_in_the_order_of_their_offsets(
            runs in prop::collection::vec((0_u64..4000, 1_u64..9, 0_u64..90), 0..20), width in 1_u64..9,
        ) {
            let offsets: Vec<u64> =
                runs.iter().flat_map(|&(start, count, step)| (0..count).map(move |at| start + at * step)).collect();
            let end = offsets.iter().max().map_or(0, |last| last + 1);
            let bytes: Vec<u8> = (0..3 + end * width).map(|at| (at * 7 + at / 251) as u8).collect();
            let source = Noted(bytes, Mutex::default());
            let mut found = Vec::new();
            let stored = Stored { file: 5, offset: 3, width };
            stored.pick(&source, offsets.iter().copied(), |at, bytes| found.push((at, bytes.to_vec()))).expect("reads");
            let element = |&offset: &u64| source.0[(3 + offset * width) as usize..][..width as usize].to_vec();
            let expected: Vec<(usize, Vec<u8>)> = offsets.iter().map(element).enumerate().collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn neighbours_share_a_read_of_bounded_length() {
        let count = 2 * SPAN + 100;
        let source = Noted(vec![7; 2 * count as usize], Mutex::default());
        let stored = Stored { file: 5, offset: 0, width: 2 };
        let mut taken = 0;
        stored.pick(&source, 0..count, |_, _| taken += 1).expect("reads");
        assert_eq!(taken, count);
        let lengths = source.1.lock().expect("no panic").clone();
        assert_eq!(lengths, [2 * SPAN as usize, 2 * SPAN as usize, 200]);
    }
}
