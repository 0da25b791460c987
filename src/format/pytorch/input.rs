//! The bytes of pickles, one after the other, of which the end is not known beforehand.

use std::sync::Arc;

use crate::diag::{Diagnostic, FormatCode};
use crate::format::store::Store;
use crate::read::read_memory;

/// The bytes that are read at once.
const BLOCK: u64 = 1 << 16;

/// Describes bytes that the system refuses; the file is named by whoever reads it.
pub(super) fn unread(error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(FormatCode::Io, format!("cannot read it: {error}"))
}

/// Bytes that are read in order.
#[derive(Debug)]
pub(super) struct Input {
    store: Arc<dyn Store>,
    /// Where `buffer` begins.
    base: u64,
    end: u64,
    buffer: Vec<u8>,
    at: usize,
}

impl Input {
    /// Reads a range of a store.
    pub(super) fn new(store: Arc<dyn Store>, start: u64, end: u64) -> Input {
        Input { store, base: start, end, buffer: Vec::new(), at: 0 }
    }

    /// Returns the store in which the bytes lie.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// Returns where the next byte lies.
    pub(super) fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Moves to a byte.
    pub(super) fn seek(&mut self, position: u64) {
        let inside = position.checked_sub(self.base).and_then(|inside| usize::try_from(inside).ok());
        if let Some(inside) = inside.filter(|&inside| inside <= self.buffer.len()) {
            self.at = inside;
        } else {
            (self.base, self.at) = (position, 0);
            self.buffer.clear();
        }
    }

    /// Returns the bytes that are left.
    pub(super) fn left(&self) -> u64 {
        self.end.saturating_sub(self.position())
    }

    fn fill(&mut self) -> Result<(), Diagnostic> {
        self.base = self.position();
        self.at = 0;
        self.buffer.clear();
        let count = self.end.saturating_sub(self.base).min(BLOCK);
        if count == 0 {
            return Err(self.ends());
        }
        // At most BLOCK.
        self.buffer.resize(count as usize, 0);
        let read = self.store.read_exact_at(self.base, &mut self.buffer);
        read.map_err(|error| {
            self.buffer.clear();
            unread(&error)
        })
    }

    fn ends(&self) -> Diagnostic {
        let message = format!("the pickle breaks off at byte {}", self.end);
        Diagnostic::error(FormatCode::Truncated, message).help("download or save the file again")
    }

    /// Reads one byte.
    pub(super) fn byte(&mut self) -> Result<u8, Diagnostic> {
        if self.at == self.buffer.len() {
            self.fill()?;
        }
        let byte = self.buffer.get(self.at).copied().ok_or_else(|| self.ends())?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads so many bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Diagnostic> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    /// Reads that many bytes into a vector; the length is checked against what is left before anything is allocated.
    pub(super) fn take(&mut self, length: u64, into: &mut Vec<u8>) -> Result<(), Diagnostic> {
        self.check(length)?;
        into.clear();
        let mut left = length;
        while left > 0 {
            if self.at == self.buffer.len() {
                self.fill()?;
            }
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            let count = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
            into.extend_from_slice(&rest[..count]);
            self.at += count;
            left -= count as u64;
        }
        Ok(())
    }

    /// Passes over that many bytes.
    pub(super) fn skip(&mut self, length: u64) -> Result<(), Diagnostic> {
        self.check(length)?;
        self.seek(self.position() + length);
        Ok(())
    }

    fn check(&self, length: u64) -> Result<(), Diagnostic> {
        if length > self.left() { Err(self.ends()) } else { Ok(()) }
    }

    /// Reads a line of at most that many bytes, without its end.
    pub(super) fn line(&mut self, longest: usize, into: &mut Vec<u8>) -> Result<(), Diagnostic> {
        into.clear();
        loop {
            match self.byte()? {
                b'\n' => return Ok(()),
                byte => into.push(byte),
            }
            if into.len() > longest {
                let message =
                    format!("the pickle has a line of over {longest} bytes at byte {}", self.position());
                return Err(Diagnostic::error(FormatCode::BadPickle, message));
            }
        }
    }
}

/// Bytes in memory.
#[derive(Debug)]
pub(super) struct Memory(pub(super) Vec<u8>);

impl Store for Memory {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        read_memory(&self.0, offset, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(length: usize) -> Input {
        let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        Input::new(Arc::new(Memory(bytes)), 0, length as u64)
    }

    #[test]
    fn reading_passes_from_block_to_block() {
        let mut input = input(200_000);
        let mut bytes = Vec::new();
        input.take(70_000, &mut bytes).expect("reads");
        assert_eq!((bytes.len(), bytes[69_999]), (70_000, (69_999 % 251) as u8));
        assert_eq!(input.array::<2>().expect("reads"), [(70_000 % 251) as u8, (70_001 % 251) as u8]);
        input.skip(100_000).expect("skips");
        assert_eq!((input.byte().expect("reads"), input.position()), ((170_002 % 251) as u8, 170_003));
        input.seek(65_536);
        assert_eq!(input.byte().expect("reads"), (65_536 % 251) as u8);
        assert_eq!(input.skip(134_464).expect_err("too far").code, "format/truncated");
        input.skip(134_463).expect("to the end");
        assert_eq!(input.byte().expect_err("ends").code, "format/truncated");
    }
}
