//! Ranges of data files, each checked against the checksum that the index gives for it.

use std::io::{self, Read};
use std::sync::{Arc, OnceLock};

use super::masked;
use crate::format::shown;
use crate::format::store::{OpenFile, Store};

/// Ranges of data files, one behind the other; each is checked, whole, before the first byte of it is given out.
///
/// Opening a checkpoint reads no data, so that is the time to find out that a file is damaged. Whoever else wants bytes
/// of the same range waits for the check.
#[derive(Debug, Default)]
pub(super) struct Checked {
    ranges: Vec<Checkable>,
    end: u64,
}

/// A range of a data file.
#[derive(Debug)]
pub(super) struct Range {
    /// The data file.
    pub(super) file: Arc<OpenFile>,
    /// Where it begins in the file, in bytes.
    pub(super) offset: u64,
    /// Its bytes; the file holds them all.
    pub(super) length: u64,
    /// The masked CRC-32C.
    pub(super) crc: u32,
    /// The tensor that it belongs to, for a message.
    pub(super) key: Arc<str>,
}

#[derive(Debug)]
struct Checkable {
    begin: u64,
    range: Range,
    checked: OnceLock<Result<(), String>>,
}

impl Checked {
    /// Adds a range behind those before and returns where it begins here; the sum of all lengths fits into 63 bits.
    pub(super) fn push(&mut self, range: Range) -> u64 {
        let begin = self.end;
        // A range without bytes would stand in the way of the search for the range at a place.
        if range.length > 0 {
            self.end += range.length;
            self.ranges.push(Checkable { begin, range, checked: OnceLock::new() });
        }
        begin
    }

    /// Returns whether there are any bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns a stream of the bytes between two places.
    pub(super) fn stream(&self, begin: u64, end: u64) -> impl Read + '_ {
        Stream { checked: self, position: begin, end }
    }
}

impl Store for Checked {
    fn read_exact_at(&self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        let mut at = self.ranges.partition_point(|range| range.begin <= offset).saturating_sub(1);
        while !buffer.is_empty() {
            let Some(Checkable { begin, range, checked }) = self.ranges.get(at) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let inside = offset.saturating_sub(*begin);
            let left = range.length.saturating_sub(inside);
            let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let (now, later) = buffer.split_at_mut(count);
            if count > 0 {
                let result = checked.get_or_init(|| range.check().map_err(|error| error.to_string()));
                result.clone().map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))?;
                range.file.read_exact_at(range.offset + inside, now)?;
            }
            (buffer, offset, at) = (later, offset + count as u64, at + 1);
        }
        Ok(())
    }
}

impl Range {
    fn check(&self) -> io::Result<()> {
        let mut crc = 0;
        let mut buffer = vec![0; self.length.min(1 << 20) as usize];
        let mut done = 0;
        while done < self.length {
            let count = (self.length - done).min(buffer.len() as u64);
            let now = &mut buffer[..count as usize];
            self.file.read_exact_at(self.offset + done, now)?;
            crc = crc32c::crc32c_append(crc, now);
            done += count;
        }
        let (found, said) = (masked(crc), self.crc);
        if found == said {
            return Ok(());
        }
        let (key, file) = (shown(&self.key), shown(&self.file.path.to_string_lossy()));
        let place = format!("{} bytes at {} of {file}", self.length, self.offset);
        let sums = format!("have the checksum {found:08x}, and the index says {said:08x}");
        let message = format!("the data of `{key}` is damaged: {place} {sums}");
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}

struct Stream<'a> {
    checked: &'a Checked,
    position: u64,
    end: u64,
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_sub(self.position);
        let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        self.checked.read_exact_at(self.position, &mut buffer[..count])?;
        self.position += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(bytes: &[u8], ranges: &[(u64, u64, u32)]) -> (tempfile::TempDir, Checked) {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a.data");
        std::fs::write(&path, bytes).expect("file");
        let file = OpenFile::open(&path).expect("opens");
        let mut checked = Checked::default();
        for &(offset, length, crc) in ranges {
            checked.push(Range { file: Arc::clone(&file), offset, length, crc, key: "layer/kernel".into() });
        }
        (folder, checked)
    }

    fn crc(bytes: &[u8]) -> u32 {
        masked(crc32c::crc32c(bytes))
    }

    #[test]
    fn ranges_follow_each_other_whatever_their_order_in_the_file() {
        let bytes: Vec<u8> = (0..10).collect();
        let ranges = [(6, 4, crc(&bytes[6..])), (3, 0, 0), (5, 3, crc(&bytes[5..8]))];
        let (_folder, checked) = checked(&bytes, &ranges);
        let mut buffer = [0; 4];
        checked.read_exact_at(2, &mut buffer).expect("reads");
        assert_eq!(buffer, [8, 9, 5, 6]);
        let mut all = Vec::new();
        checked.stream(1, 6).read_to_end(&mut all).expect("reads");
        assert_eq!(all, [7, 8, 9, 5, 6]);
        for offset in [4, 7, 8, u64::MAX - 9] {
            let error = checked.read_exact_at(offset, &mut buffer).expect_err("too far");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{offset}");
        }
    }

    #[test]
    fn damage_anywhere_in_a_range_is_found_before_any_of_it_is_given_out() {
        let mut bytes = vec![7; 3 << 20];
        let ranges = [(0, 4, crc(&bytes[..4])), (4, (3 << 20) - 4, crc(&bytes[4..]))];
        bytes[(2 << 20) + 5] ^= 1;
        let (_folder, checked) = checked(&bytes, &ranges);
        let mut buffer = [0; 2];
        checked.read_exact_at(1, &mut buffer).expect("is sound");
        for _ in 0..2 {
            let error = checked.read_exact_at(4, &mut buffer).expect_err("is damaged");
            let text = error.to_string();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            let sums = [crc(&bytes[4..]), ranges[1].2].map(|crc| format!("{crc:08x}"));
            assert!(text.contains("`layer/kernel`") && sums.iter().all(|sum| text.contains(sum)), "{text}");
        }
    }

    #[test]
    fn many_readers_share_one_check() {
        let bytes = vec![3; 1 << 20];
        let (_folder, checked) = checked(&bytes, &[(0, 1 << 20, crc(&bytes))]);
        std::thread::scope(|scope| {
            for number in 0..8 {
                let checked = &checked;
                scope.spawn(move || {
                    let mut buffer = [0; 16];
                    checked.read_exact_at(number * 1000, &mut buffer).expect("reads");
                    assert_eq!(buffer, [3; 16]);
                });
            }
        });
        assert_eq!(checked.ranges[0].checked.get(), Some(&Ok(())));
    }
}
