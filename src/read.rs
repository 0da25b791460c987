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
