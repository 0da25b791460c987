//! The bytes of an HDF5 file, which may be a part of another file, for the crate that reads the structures.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hdf5_pure::{FormatError, Source};

use crate::format::store::Store;

/// What a read costs besides its bytes, and what is allowed in any file.
const COST: u64 = 64;
const FREE: u64 = 1 << 26;

/// How often a file's size may be read before its structures are taken to refer to each other in circles. In that measure
/// a file of 20,000 small datasets is read 3 times with the old structures and 8 times with the new ones.
const TIMES: u64 = 64;

/// A range of a store that holds an HDF5 file.
#[derive(Debug)]
pub(super) struct Region {
    store: Arc<dyn Store>,
    start: u64,
    length: u64,
    /// What may still be read while the file is opened. The structures can refer to one another, so that a small file
    /// makes an endless tree; no reader that follows it comes back.
    left: AtomicU64,
    /// Where the crate reads the address of an object that a soft link of the old kind does not have, and what it reads
    /// there: the address of [`NOTHING`], behind the end of the file.
    hidden: OnceLock<(Vec<u64>, Vec<u8>)>,
}

/// The header of an object that is neither group nor dataset: version 1, one message that says nothing.
const NOTHING: [u8; 64] = {
    let mut header = [0; 64];
    (header[0], header[2], header[4], header[8], header[18]) = (1, 1, 1, 48, 40);
    header
};

impl Region {
    /// Makes a region; the caller has checked that it lies inside the store.
    pub(super) fn new(store: Arc<dyn Store>, start: u64, length: u64) -> Arc<Region> {
        let left = AtomicU64::new(length.saturating_mul(TIMES).saturating_add(FREE));
        Arc::new(Region { store, start, length, left, hidden: OnceLock::new() })
    }

    /// Returns the size of the HDF5 file in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Returns where a range of the HDF5 file begins in the store, if the range lies inside.
    pub(super) fn place(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        if end <= self.length { self.start.checked_add(offset) } else { None }
    }

    /// Allows any number of reads from now on: the structures have been walked once and came to an end.
    pub(super) fn opened(&self) {
        self.left.store(u64::MAX, Ordering::Relaxed);
    }

    /// Hides the soft links whose addresses stand at these places, from the start of the file, from the crate, which would
    /// follow them nowhere. Addresses have so many bytes and count from the base.
    pub(super) fn hide(&self, places: Vec<u64>, base: u64, width: usize) {
        if !places.is_empty() {
            let address = self.length.saturating_sub(base).to_le_bytes();
            let _ = self.hidden.set((places, address.get(..width).unwrap_or(&address).to_vec()));
        }
    }

    /// Returns a reader of a range.
    pub(super) fn reader(self: &Arc<Region>, offset: u64, length: u64) -> RegionReader {
        RegionReader { region: Arc::clone(self), position: offset, left: length }
    }

    fn spend(&self, length: usize) -> bool {
        let cost = (length as u64).saturating_add(COST);
        let take = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(cost) };
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// The region as the crate takes it.
pub(super) struct Structures(pub(super) Arc<Region>);

impl Source for Structures {
    fn len(&self) -> u64 {
        self.0.length + if self.0.hidden.get().is_some() { NOTHING.len() as u64 } else { 0 }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FormatError> {
        let region = &self.0;
        let Some((hidden, address)) = region.hidden.get() else { return self.read(offset, buffer) };
        // What lies behind the end is the header of nothing.
        let inside =
            usize::try_from(region.length.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let (real, behind) = buffer.split_at_mut(inside);
        if !real.is_empty() || behind.is_empty() {
            self.read(offset, real)?;
        }
        let start = usize::try_from(offset.saturating_sub(region.length)).unwrap_or(usize::MAX);
        let nothing = NOTHING.get(start..).and_then(|rest| rest.get(..behind.len()));
        let available = usize::try_from(self.len()).unwrap_or(usize::MAX);
        let short = FormatError::UnexpectedEof { expected: available.saturating_add(1), available };
        behind.copy_from_slice(nothing.ok_or(short)?);
        for place in hidden {
            for (at, byte) in (*place..).zip(address) {
                let at = at.checked_sub(offset).and_then(|at| usize::try_from(at).ok());
                if let Some(target) = at.and_then(|at| real.get_mut(at)) {
                    *target = *byte;
                }
            }
        }
        Ok(())
    }
}

impl Structures {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FormatError> {
        let region = &self.0;
        let Some(place) = region.place(offset, buffer.len() as u64) else {
            let end = offset.saturating_add(buffer.len() as u64);
            let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(FormatError::UnexpectedEof { expected: size(end), available: size(region.length) });
        };
        if !region.spend(buffer.len()) {
            return Err(FormatError::Source("its structures refer to each other in circles".to_owned()));
        }
        region.store.read_exact_at(place, buffer).map_err(|error| FormatError::Source(error.to_string()))
    }
}

/// A range of a region as a stream.
pub(super) struct RegionReader {
    region: Arc<Region>,
    position: u64,
    left: u64,
}

impl Read for RegionReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let place = self.region.place(self.position, count as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        let buffer = buffer.get_mut(..count).ok_or(io::ErrorKind::InvalidInput)?;
        self.region.store.read_exact_at(place, buffer)?;
        self.position += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}
