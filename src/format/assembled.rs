//! A checkpoint whose tensors lie in boxes, possibly of several files, put together: each is read row by row as if it lay so.

use std::io;

use super::{Format, Reader};
use crate::catalog::{Catalog, Extent, ExtentContent, TensorMeta};
use crate::diag::Errors;
use crate::read::ReadAt;

/// A reader whose last file is made of the extents of tensors, as they are read.
struct Assembled {
    inner: Box<dyn Reader>,
    catalog: Catalog,
    /// Which file of the catalog is put together.
    file: usize,
    /// The tensors in it, in order: an index into the catalog, and where it begins.
    begins: Vec<(usize, u64)>,
    end: u64,
}

/// Returns a reader that has `tensors` besides those of `reader`: the extents of each lie in files of `reader`. What reads a
/// tensor by its file and offset gets its elements row by row; a plan reads the extents themselves.
///
/// # Errors
/// Returns `catalog/extent` and `catalog/missing` for extents that do not fit or that leave out a part of their tensor.
pub fn assembled(reader: Box<dyn Reader>, tensors: Vec<TensorMeta>) -> Result<Box<dyn Reader>, Errors> {
    let inner = reader.catalog();
    let file = inner.files.len();
    let mut all = inner.tensors.clone();
    let (mut begins, mut end) = (Vec::with_capacity(tensors.len()), 0);
    for mut tensor in tensors.into_iter().filter(|tensor| !tensor.extents.is_empty()) {
        (tensor.file, tensor.offset) = (file, end);
        begins.push((all.len(), end));
        // Elements of any type are aligned.
        end += tensor.bytes().next_multiple_of(8);
        all.push(tensor);
    }
    let mut files: Vec<_> = inner.files.iter().cloned().zip(inner.file_sizes.iter().copied()).collect();
    files.push((inner.path.clone(), end));
    let mut catalog = Catalog::new(inner.path.clone(), files, all);
    catalog.check_extents()?;
    catalog.metadata.clone_from(&inner.metadata);
    catalog.unread.clone_from(&inner.unread);
    catalog.facts.clone_from(&inner.facts);
    catalog.warnings.clone_from(&inner.warnings);
    Ok(Box::new(Assembled { inner: reader, catalog, file, begins, end }))
}

impl ReadAt for Assembled {
    fn read_exact_at(&self, file: usize, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        if file != self.file {
            return self.inner.read_exact_at(file, offset, buffer);
        }
        let after = offset.checked_add(buffer.len() as u64).filter(|after| *after <= self.end);
        after.ok_or(io::ErrorKind::UnexpectedEof)?;
        while !buffer.is_empty() {
            let at = self.begins.partition_point(|(_, begin)| *begin <= offset).saturating_sub(1);
            let (tensor, begin) = self.begins[at];
            let tensor = &self.catalog.tensors[tensor];
            let inside = offset - begin;
            let next = self.begins.get(at + 1).map_or(self.end, |(_, next)| *next);
            // What stands between two tensors is zeros.
            let gap = inside >= tensor.bytes();
            let left = if gap { next - offset } else { tensor.bytes() - inside };
            let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let (now, later) = buffer.split_at_mut(count);
            if gap {
                now.fill(0)
            } else {
                self.rows(tensor, inside, now)?
            }
            (buffer, offset) = (later, offset + count as u64);
        }
        Ok(())
    }
}

impl Reader for Assembled {
    fn format(&self) -> Format {
        self.inner.format()
    }

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn unchanged(&self) -> Result<(), Errors> {
        self.inner.unchanged()
    }

    fn stamps(&self) -> Vec<String> {
        let mut hasher = blake3::Hasher::new();
        for (tensor, _) in &self.begins {
            hasher.update(format!("{:?}", self.catalog.tensors[*tensor]).as_bytes());
        }
        let mut stamps = self.inner.stamps();
        stamps.push(format!("assembled {}", hasher.finalize().to_hex()));
        stamps
    }
}

impl Assembled {
    /// Reads bytes of a tensor whose elements stand row by row, from that byte of it on.
    ///
    /// An element's place follows from its index: the first extent whose box holds that, and the strides in it. As far as an
    /// extent goes on along the last dimension, neighbours come from it too. A type whose elements share bytes is counted in
    /// blocks, which stand along the last dimension.
    fn rows(&self, tensor: &TensorMeta, from: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (block, width) = tensor.dtype.block();
        let last = tensor.shape.len().saturating_sub(1);
        let blocks = |dim: usize, count: u64| if dim == last { count / block } else { count };
        let mut at = from;
        let mut done = 0;
        while done < buffer.len() {
            let mut rest = at / width;
            let mut index = vec![0; tensor.shape.len()];
            for dim in (0..tensor.shape.len()).rev() {
                let size = blocks(dim, tensor.shape[dim]);
                (index[dim], rest) = (rest % size, rest / size);
            }
            let holds = |extent: &&Extent| {
                (0..index.len()).all(|dim| {
                    let first = blocks(dim, extent.offsets[dim]);
                    (first..first + blocks(dim, extent.lengths[dim])).contains(&index[dim])
                })
            };
            let extent = tensor.extents.iter().find(holds).ok_or(io::ErrorKind::UnexpectedEof)?;
            let mut place = 0;
            for (dim, index) in index.iter().enumerate() {
                let step =
                    if dim == last || block == 1 { extent.strides[dim] } else { extent.strides[dim] / block };
                place += (index - blocks(dim, extent.offsets[dim])) * step;
            }
            // As many bytes as follow each other here and there.
            let run = match (index.last(), extent.strides.last()) {
                (Some(index), Some(1)) => blocks(last, extent.offsets[last] + extent.lengths[last]) - index,
                _ => 1,
            };
            let skipped = at % width;
            let count = usize::try_from(run * width - skipped).unwrap_or(usize::MAX).min(buffer.len() - done);
            let part = &mut buffer[done..done + count];
            match extent.content {
                ExtentContent::Stored { file, offset } => {
                    self.inner.read_exact_at(file, offset + place * width + skipped, part)?;
                }
                ExtentContent::Fill(bits) => {
                    let bits = bits.to_le_bytes();
                    let byte = |number: usize| bits[(number + skipped as usize) % width as usize];
                    part.iter_mut().enumerate().for_each(|(number, to)| *to = byte(number));
                }
            }
            (at, done) = (at + count as u64, done + count);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::dtype::Dtype;
    use crate::format::{OpenOptions, open_files};

    /// Blocks of 32 elements in 34 bytes, cut along both dimensions, in the order of no row; any range of bytes.
    #[test]
    fn quantised_blocks_stand_row_by_row() {
        let bytes: Vec<u8> = (0..4 * 3 * 34).map(|at| (at * 7 % 251) as u8).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.npy");
        // A header of 128 bytes, the boxes behind it.
        let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        let shape = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", bytes.len());
        writeln!(header, "{shape:<117}").expect("in memory");
        let block = |row: usize, column: usize| &bytes[(row * 3 + column) * 34..][..34];
        let right: Vec<u8> =
            (0..4).flat_map(|row| [block(row, 1), block(row, 2)]).flatten().copied().collect();
        let left: Vec<u8> = (0..4).flat_map(|row| block(row, 0)).copied().collect();
        std::fs::write(&path, [&header[..], &right, &left].concat()).expect("a file");
        let inner = open_files(&path, std::slice::from_ref(&path), &OpenOptions::default()).expect("opens");
        let extents = vec![
            Extent::stored(vec![0, 32], vec![4, 64], 0, 128),
            Extent::stored(vec![0, 0], vec![4, 32], 0, 128 + right.len() as u64),
        ];
        let tensor = TensorMeta::in_extents("w".into(), Dtype::Q8_0, vec![4, 96], extents);
        let small = TensorMeta::in_extents(
            "fill".into(),
            Dtype::F16,
            vec![3],
            vec![Extent::fill(vec![0], vec![3], 0x3c01)],
        );
        let reader = assembled(inner, vec![tensor, small]).expect("is whole");
        let catalog = reader.catalog();
        let tensor = &catalog.tensors[catalog.find("w").expect("it is there")];
        for (from, length) in [(0, bytes.len()), (5, 100), (33, 36), (101, 1)] {
            let mut found = vec![0; length];
            reader.read_exact_at(tensor.file, tensor.offset + from as u64, &mut found).expect("reads");
            assert_eq!(found, bytes[from..from + length]);
        }
        let fill = &catalog.tensors[catalog.find("fill").expect("it is there")];
        let mut found = [0; 5];
        reader.read_exact_at(fill.file, fill.offset + 1, &mut found).expect("reads");
        assert_eq!(found, [0x3c, 1, 0x3c, 1, 0x3c]);
        let beyond = reader.read_exact_at(fill.file, fill.offset + 4, &mut found);
        assert_eq!(beyond.map_err(|error| error.kind()), Err(io::ErrorKind::UnexpectedEof));
        let cut = Extent::stored(vec![0, 16], vec![4, 80], 0, 128);
        let cut = TensorMeta::in_extents("w".into(), Dtype::Q8_0, vec![4, 96], vec![cut]);
        assert_eq!(cut.tiling().expect_err("cuts a block").code, "catalog/extent");
    }
}
