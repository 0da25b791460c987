//! What the tests of this folder share: random layouts, files in memory.

use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::{Progress, WriteAt};
use crate::plan::Loop;
use crate::read::{ReadAt, read_memory};

/// Bytes that differ from their neighbours.
pub(super) fn units(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A shape and an order of its dimensions.
pub(super) fn permuted(dims: Range<usize>, most: u64) -> impl Strategy<Value = (Vec<u64>, Vec<usize>)> {
    prop::collection::vec(1..most, dims).prop_flat_map(|mut shape| {
        // Many dimensions are short, so that the whole stays small.
        while shape.iter().product::<u64>() > 20_000 {
            let longest = (0..shape.len()).max_by_key(|&dim| shape[dim]).unwrap_or(0);
            shape[longest] = shape[longest].div_ceil(3);
        }
        let order: Vec<usize> = (0..shape.len()).collect();
        (Just(shape), Just(order).prop_shuffle())
    })
}

/// The loops that copy a row-major tensor with its dimensions put in another order.
pub(super) fn permutation(shape: &[u64], order: &[usize]) -> Vec<Loop> {
    let strides = crate::catalog::row_major(shape);
    let permuted: Vec<u64> = order.iter().map(|&dim| shape[dim]).collect();
    let target = crate::catalog::row_major(&permuted);
    (0..order.len())
        .map(|at| Loop { count: permuted[at], source_step: strides[order[at]], target_step: target[at] })
        .filter(|l| l.count > 1)
        .collect()
}

/// Files in memory that can refuse.
#[derive(Default)]
pub(super) struct Files {
    pub(super) files: Vec<Mutex<Vec<u8>>>,
    /// Refuse accesses that reach this byte of any file.
    pub(super) broken_at: Option<(u64, io::ErrorKind)>,
}

impl Files {
    pub(super) fn new(files: Vec<Vec<u8>>) -> Files {
        Files { files: files.into_iter().map(Mutex::new).collect(), broken_at: None }
    }

    fn check(&self, offset: u64, length: usize) -> io::Result<()> {
        match self.broken_at {
            Some((byte, kind)) if (offset..offset + length as u64).contains(&byte) => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

impl ReadAt for Files {
    fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check(offset, buffer.len())?;
        read_memory(&self.files[file].lock().unwrap(), offset, buffer)
    }
}

impl WriteAt for Files {
    fn write_all_at(&self, file: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(offset, bytes.len())?;
        let mut file = self.files[file].lock().unwrap();
        file[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Counts, and cancels after so many bytes.
pub(super) struct Watch {
    pub(super) bytes: AtomicU64,
    pub(super) cancel_at: u64,
}

impl Watch {
    pub(super) fn new() -> Watch {
        Watch { bytes: AtomicU64::new(0), cancel_at: u64::MAX }
    }
}

impl Progress for Watch {
    fn advance(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.cancel_at
    }
}
