//! The sorted string table that an index is (google/leveldb, `doc/table_format.md`).
//!
//! A footer of 48 bytes points at the index block, which points at the data blocks; each block is followed by its
//! compression and its checksum. Keys leave out what they share with the key before.

use std::path::Path;

use super::{DAMAGED, masked};
use crate::diag::{Diagnostic, Errors, FormatCode};
use crate::format::store::OpenFile;

/// The last bytes of a table file, such as a checkpoint's index (google/leveldb, `doc/table_format.md`).
pub(in crate::format) const TABLE_MAGIC: [u8; 8] = [0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb];

/// The footer's bytes: two handles, filled up to 40 bytes, and the magic number.
const FOOTER: u64 = 48;

/// What follows each block: the compression in one byte and the checksum in four.
const TRAILER: u64 = 5;

/// The longest block in bytes, compressed or not; TensorFlow begins a new one after 256 KiB.
const LONGEST: u64 = 64 << 20;

/// A key and its value.
pub(super) type Entry = (Vec<u8>, Vec<u8>);

/// Returns all entries of a table, in the order of their keys, which is strict.
///
/// # Errors
/// Returns `format/bad-index` for a table that is damaged, and what the system reports.
pub(super) fn entries(file: &OpenFile) -> Result<Vec<Entry>, Errors> {
    let bad = |message: String| Errors::from(bad_index(&file.path, message));
    let footer = match file.size.checked_sub(FOOTER) {
        Some(start) => file.bytes(start, FOOTER)?,
        None => return Err(bad(format!("it has {} bytes and no footer", file.size))),
    };
    let Some(handles) = footer.strip_suffix(&TABLE_MAGIC) else {
        return Err(bad("it does not end as a table does".to_owned()));
    };
    let mut handles = Cursor(handles);
    // The first handle is that of a block about the table, which TensorFlow leaves empty.
    let index = handles.handle().and_then(|_| handles.handle());
    let index = block(file, index.ok_or_else(|| bad("its footer holds no handles".to_owned()))?)?;
    let mut blocks = Vec::new();
    let mut end = 0;
    parse(&index, |_, value| {
        let handle = Cursor(value).handle().ok_or("a handle is cut short")?;
        // Else a small file could name one block any number of times.
        if handle.0 < end {
            return Err("blocks overlap, or are not in order".to_owned());
        }
        end = handle.0.saturating_add(handle.1);
        blocks.push(handle);
        Ok(())
    })
    .map_err(&bad)?;
    let mut entries: Vec<Entry> = Vec::new();
    // Shared beginnings of keys let few bytes stand for many.
    let mut left = (16_u64 << 20).saturating_add(file.size.saturating_mul(32));
    for handle in blocks {
        let block = block(file, handle)?;
        parse(&block, |key, value| {
            if entries.last().is_some_and(|(last, _)| last.as_slice() >= key) {
                return Err("its keys are not in order".to_owned());
            }
            let cost = (key.len() + value.len() + size_of::<Entry>()) as u64;
            left = left.checked_sub(cost).ok_or("its keys are absurdly long for its size")?;
            entries.push((key.to_owned(), value.to_owned()));
            Ok(())
        })
        .map_err(&bad)?;
    }
    Ok(entries)
}

/// Says that an index is damaged.
pub(super) fn bad_index(path: &Path, message: impl std::fmt::Display) -> Diagnostic {
    let message = format!("the checkpoint's index is damaged: {message}");
    Diagnostic::error(FormatCode::BadIndex, message).file(path).help(DAMAGED)
}

/// Reads a block, checks it and returns its content.
fn block(file: &OpenFile, (offset, size): (u64, u64)) -> Result<Vec<u8>, Errors> {
    let bad = |message: String| Errors::from(bad_index(&file.path, message));
    let room = file.size.saturating_sub(FOOTER + TRAILER);
    if offset.checked_add(size).is_none_or(|end| end > room) {
        return Err(bad(format!("a block of {size} bytes at {offset} does not fit into the file")));
    }
    if size > LONGEST {
        return Err(bad(format!("a block has {size} bytes, over the limit of {LONGEST}")));
    }
    let mut bytes = file.bytes(offset, size + TRAILER)?;
    let stored = bytes.split_last_chunk::<4>().map(|(_, crc)| u32::from_le_bytes(*crc));
    bytes.truncate(bytes.len().saturating_sub(4));
    let computed = masked(crc32c::crc32c(&bytes));
    if stored != Some(computed) {
        let stored = stored.unwrap_or_default();
        let message =
            format!("the block at {offset} has the checksum {computed:08x}, and {stored:08x} is said");
        return Err(bad(message));
    }
    match bytes.pop() {
        Some(0) => Ok(bytes),
        Some(1) => decompress(&bytes).map_err(|problem| bad(format!("the block at {offset} {problem}"))),
        other => {
            let number = other.unwrap_or_default();
            Err(bad(format!("the block at {offset} has the compression {number}, which is not known")))
        }
    }
}

/// Takes the snappy compression away; a problem completes "the block …".
fn decompress(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let failed = |error: snap::Error| format!("cannot be decompressed: {error}");
    let size = snap::raw::decompress_len(bytes).map_err(failed)? as u64;
    // Three bytes make 64 at most (google/snappy, `format_description.txt`).
    if size > LONGEST || size > (bytes.len() as u64).saturating_mul(64) {
        return Err(format!("would have {size} bytes when it is decompressed, too many"));
    }
    snap::raw::Decoder::new().decompress_vec(bytes).map_err(failed)
}

/// Gives the entries of a block to `each`, in order.
fn parse(block: &[u8], mut each: impl FnMut(&[u8], &[u8]) -> Result<(), String>) -> Result<(), String> {
    // At the end stand the places of keys that share nothing, for a search, and their number.
    let split = block.split_last_chunk::<4>().and_then(|(front, count)| {
        let places = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(4)?;
        front.split_at_checked(front.len().checked_sub(places)?)
    });
    let mut rest = Cursor(split.ok_or("a block has no room for its restarts")?.0);
    let mut key = Vec::new();
    while !rest.0.is_empty() {
        let (value, shared, unshared) = rest.entry().ok_or("an entry is cut short")?;
        if usize::try_from(shared).map_or(true, |shared| shared > key.len()) {
            return Err("a key shares more than the key before has".to_owned());
        }
        key.truncate(shared as usize);
        key.extend_from_slice(unshared);
        each(&key, value)?;
    }
    Ok(())
}

/// Bytes that are yet to be read.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// Takes a number of up to 64 bits, seven in each byte, the lowest first.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let low = u64::from(byte & 0x7f);
            if low << shift >> shift != low {
                return None;
            }
            value |= low << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes a block's place and its size in bytes.
    fn handle(&mut self) -> Option<(u64, u64)> {
        Some((self.varint()?, self.varint()?))
    }

    /// Takes an entry: its value, how much its key shares with the key before, and the rest of the key.
    fn entry(&mut self) -> Option<(&'a [u8], u64, &'a [u8])> {
        let (shared, unshared, length) = (self.varint()?, self.varint()?, self.varint()?);
        let unshared = self.take(unshared)?;
        Some((self.take(length)?, shared, unshared))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Table, block, entry, handle, table};
    use super::*;
    use crate::format::testing::put;

    fn read(bytes: &[u8]) -> Result<Vec<Entry>, String> {
        let folder = tempfile::tempdir().expect("folder");
        let file = OpenFile::open(&put(folder.path(), "a.index", bytes)).expect("opens");
        entries(&file).map_err(|errors| errors.to_string())
    }

    fn some(count: usize) -> Vec<Entry> {
        let entry = |at: usize| (format!("layer_{at:03}/kernel").into_bytes(), vec![at as u8; at % 7]);
        let mut entries: Vec<Entry> = (0..count).map(entry).collect();
        entries.insert(0, (Vec::new(), b"header".to_vec()));
        entries
    }

    #[test]
    fn entries_come_out_as_they_went_in() {
        for (count, in_block, compressed) in [(0, 1, false), (30, 100, false), (30, 7, true), (30, 1, true)] {
            let entries = some(count);
            assert_eq!(
                read(&table(&entries, in_block, compressed)),
                Ok(entries),
                "{count} {in_block} {compressed}"
            );
        }
        assert_eq!(read(&Table::default().finish(&[])), Ok(Vec::new()));
    }

    #[test]
    fn a_table_that_is_cut_short_anywhere_is_refused() {
        let whole = table(&some(9), 4, true);
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length}");
            // The same with a footer that is sound: the handles lead nowhere then.
            let cut = length.saturating_sub(FOOTER as usize);
            let moved = [&whole[..cut], &whole[whole.len() - FOOTER as usize..]].concat();
            assert!(moved.len() == whole.len() || read(&moved).is_err(), "{length}");
        }
    }

    #[test]
    fn a_wrong_bit_anywhere_is_found_or_means_nothing() {
        let entries = some(9);
        let whole = table(&entries, 4, true);
        let mut found = 0;
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 1 << (at % 8);
            match read(&wrong) {
                Ok(read) => assert_eq!(read, entries, "{at}"),
                Err(_) => found += 1,
            }
        }
        // All but the block about the table and what fills the footer up.
        assert!(found >= whole.len() - 60, "{found} of {}", whole.len());
    }

    /// Returns what is said of a table whose only data block is this.
    fn of_block(block: &[u8], compression: u8) -> String {
        let mut table = Table::default();
        let handle = table.add(block, compression);
        read(&table.finish(&[handle])).expect_err("is refused")
    }

    #[test]
    fn absurd_numbers_are_refused() {
        let with_restarts = |body: &[u8], count: u32| [body, &count.to_le_bytes()].concat();
        for (bytes, said) in [
            (vec![], "no room"),
            (vec![0; 3], "no room"),
            (with_restarts(&[0; 8], 3), "no room"),
            (with_restarts(&[0; 8], u32::MAX), "no room"),
            (with_restarts(&[0x80; 12], 0), "cut short"),
            (with_restarts(&[0xff; 30], 0), "cut short"),
            (with_restarts(&entry(0, b"abc", b"value")[..9], 0), "cut short"),
            (with_restarts(&[0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0], 0), "cut short"),
            (with_restarts(&[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0], 0), "cut short"),
            (with_restarts(&[entry(0, b"abc", b""), entry(4, b"d", b"")].concat(), 0), "shares more"),
            (with_restarts(&entry(u64::MAX, b"", b""), 0), "shares more"),
            (with_restarts(&[entry(0, b"b", b""), entry(0, b"a", b"")].concat(), 0), "not in order"),
            (with_restarts(&[entry(0, b"b", b""), entry(1, b"", b"")].concat(), 0), "not in order"),
        ] {
            let text = of_block(&bytes, 0);
            assert!(text.contains(said), "{text}: {bytes:?}");
        }
    }

    #[test]
    fn few_bytes_do_not_become_many() {
        let long = entry(0, &vec![b'a'; 1 << 20], b"");
        let more: Vec<u8> = (0..40_000_u32).flat_map(|at| entry(1 << 20, &at.to_be_bytes(), b"")).collect();
        let text = of_block(&[&long, &more, &[0; 4][..]].concat(), 0);
        assert!(text.contains("absurdly long"), "{text}");

        let bomb = |size: u64| {
            let mut bytes = Vec::new();
            super::super::testing::varint(&mut bytes, size);
            bytes
        };
        for size in [u64::from(u32::MAX), (64 << 20) + 1, 1 << 20] {
            let text = of_block(&bomb(size), 1);
            assert!(text.contains("too many"), "{text}");
        }
        assert!(of_block(&bomb(u64::MAX), 1).contains("cannot be decompressed"));
        assert!(of_block(&[3, 0xff, 0xff], 1).contains("cannot be decompressed"));
        assert!(of_block(&block(&[]), 2).contains("compression 2"));

        // One block under many names.
        let mut table = Table::default();
        let handle = table.add(&block(&some(3)), 0);
        let text = read(&table.finish(&[handle.clone(), handle])).expect_err("is refused");
        assert!(text.contains("blocks overlap"), "{text}");
    }

    #[test]
    fn handles_that_lead_nowhere_are_refused() {
        for (offset, size) in [(0, 1 << 40), (1 << 40, 1), (u64::MAX, u64::MAX), (0, u64::MAX - 4), (50, 0)] {
            let text = read(&Table::default().finish(&[handle(offset, size)])).expect_err("is refused");
            assert!(text.contains("does not fit") || text.contains("checksum"), "{text}");
            let footer = [handle(0, 0), handle(offset, size)].concat();
            assert!(read(&Table::default().footer(&footer)).is_err(), "{offset} {size}");
        }
        assert!(read(&Table::default().footer(&[0xff; 40])).expect_err("is refused").contains("no handles"));
        assert!(read(&Table::default().finish(&[vec![0x80]])).expect_err("is refused").contains("cut short"));
    }
}
