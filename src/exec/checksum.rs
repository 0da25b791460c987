//! Checksums of what was written, for the formats that store them.

use std::io;
use std::ops::Range;

use super::publish::{Staging, io_error};
use crate::diag::Errors;
use crate::format::output::{Checksum, OutputLayout};
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

    fn seal_one(&self, file: usize, checksum: &Checksum) -> io::Result<()> {
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = Vec::new();
        let mut at = checksum.of.start;
        while at < checksum.of.end {
            let count = CHUNK.min(checksum.of.end - at);
            buffer.resize(count as usize, 0);
            self.read_exact_at(file, at, &mut buffer)?;
            hasher.update(&buffer);
            at += count;
        }
        let sum = hasher.finalize().to_le_bytes();
        checksum.at.iter().try_for_each(|&place| self.write_all_at(file, place, &sum))
    }
}
