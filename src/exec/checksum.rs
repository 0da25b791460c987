//! Checksums of what was written, for the formats that store them.

use std::io;
use std::ops::Range;

use super::publish::{Staging, io_error};
use crate::diag::Errors;
use crate::format::output::{Checksum, OutputLayout, masked};
use crate::parallel::in_parallel;
use crate::progress::Progress;

/// How much is read at once, in bytes.
const CHUNK: u64 = 1 << 20;

impl Staging {
    /// Writes the checksums that a layout asks for into some of its files; the data must be there.
    ///
    /// # Errors
    /// Returns `publish/io` for what the system reports, and cancellation.
    pub fn seal(
        &self,
        layout: &OutputLayout,
        files: Range<usize>,
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<(), Errors> {
        let outputs = layout.files.iter().enumerate().take(files.end).skip(files.start);
        let all: Vec<(usize, &Checksum)> = outputs
            .flat_map(|(file, output)| output.checksums.iter().map(move |checksum| (file, checksum)))
            .collect();
        let one = |number: usize| {
            let (file, checksum) = all[number];
            self.seal_one(file, checksum).map_err(|error| {
                Errors::from(io_error(self.target(file), "write a checksum into it", &error))
            })
        };
        in_parallel(all.len(), threads, progress, &one).map(|_| ())
    }

    /// Writes the checksums that the index holds; all data and all other checksums must be there.
    ///
    /// # Errors
    /// As [`Staging::seal`].
    pub fn seal_index(
        &self,
        layout: &OutputLayout,
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<(), Errors> {
        let Some(index) = layout.index.as_ref().filter(|index| !index.own_sums.is_empty()) else {
            return Ok(());
        };
        let one = |number: usize| {
            let sum = &index.sums[number];
            let mut crc = 0;
            let read =
                self.each_chunk(sum.file, &sum.of, &mut |bytes| crc = crc32c::crc32c_append(crc, bytes));
            read.map_err(|error| {
                Errors::from(io_error(self.target(sum.file), "read it for a checksum", &error))
            })?;
            Ok(masked(crc))
        };
        let crcs = in_parallel(index.sums.len(), threads, progress, &one)?;
        let mut bytes = index.bytes.clone();
        for (sum, crc) in index.sums.iter().zip(crcs) {
            bytes[sum.at..sum.at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        for (of, at) in &index.own_sums {
            let crc = masked(crc32c::crc32c(&bytes[of.clone()]));
            bytes[*at..*at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        self.write_index(&bytes)
    }

    fn seal_one(&self, file: usize, checksum: &Checksum) -> io::Result<()> {
        let mut hasher = crc32fast::Hasher::new();
        self.each_chunk(file, &checksum.of, &mut |bytes| hasher.update(bytes))?;
        let sum = hasher.finalize().to_le_bytes();
        checksum.at.iter().try_for_each(|&place| self.write_all_at(file, place, &sum))
    }
    /// Reads a range of a file, so much at once.
    fn each_chunk(&self, file: usize, of: &Range<u64>, work: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = Vec::new();
        for at in of.clone().step_by(CHUNK as usize) {
            buffer.resize(CHUNK.min(of.end - at) as usize, 0);
            self.read_exact_at(file, at, &mut buffer)?;
            work(&buffer);
        }
        Ok(())
    }
}
