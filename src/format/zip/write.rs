//! Laying out a zip archive of stored entries.
//!
//! The same entries give the same bytes: every entry is dated 1980-01-01, the first day that the format knows.

use std::ops::Range;

use super::{CENTRAL, END, END64, LOCAL, LOCATOR, ZIP64};
use crate::format::layout::Checksum;

/// Where the bytes of an entry begin: at a multiple of this, so that they can be mapped into memory as elements.
const ALIGNMENT: u64 = 64;

/// The id of the extra field that fills the space before aligned bytes; PyTorch uses the same (pytorch/pytorch,
/// `caffe2/serialize/inline_container.cc`, `getPadding`).
const PADDING: u16 = u16::from_le_bytes(*b"FB");

/// The flag that a name is UTF-8.
const UTF8: u16 = 1 << 11;

/// The system that a name is from, in the upper byte; without it some readers convert names from MS-DOS's characters.
const UNIX: u16 = 3 << 8;

/// 1980-01-01 in the date format of MS-DOS; the time before it is 0.
const DATE: u16 = 1 << 5 | 1;

/// The longest comment of an archive, in bytes.
pub(in crate::format) const LONGEST_COMMENT: usize = u16::MAX as usize;

/// An entry that will be written: some bytes, and behind them room for a tensor's.
#[derive(Clone, Debug)]
pub(in crate::format) struct NewEntry {
    /// Its name, with the folders inside the archive.
    pub(in crate::format) name: String,
    /// The bytes that it begins with.
    pub(in crate::format) head: Vec<u8>,
    /// How many bytes follow that are written later.
    pub(in crate::format) hole: u64,
}

/// An archive's layout.
#[derive(Debug)]
pub(in crate::format) struct Archive {
    /// The bytes around the holes, and where they begin.
    pub(in crate::format) pieces: Vec<(u64, Vec<u8>)>,
    /// The size of the whole, in bytes.
    pub(in crate::format) size: u64,
    /// The CRC-32 of the entries that have holes.
    pub(in crate::format) checksums: Vec<Checksum>,
    /// Where each entry's hole begins, also where it has no bytes.
    pub(in crate::format) holes: Vec<u64>,
}

/// The longest name of an entry, in bytes.
pub(in crate::format) const LONGEST_NAME: usize = u16::MAX as usize;

/// Lays out an archive with a comment of at most [`LONGEST_COMMENT`] bytes; names have at most [`LONGEST_NAME`].
///
/// Each entry's first byte lies at a multiple of 64; where the head's length is such a multiple, so does the hole. Fields
/// of 64 bits are used only where those of 32 are too narrow.
pub(in crate::format) fn lay_out(entries: Vec<NewEntry>, comment: &[u8]) -> Archive {
    let mut bytes = Pieces::default();
    let mut archive = Archive {
        pieces: Vec::new(),
        size: 0,
        checksums: Vec::new(),
        holes: Vec::with_capacity(entries.len()),
    };
    let mut placed = Vec::with_capacity(entries.len());
    for entry in entries {
        let NewEntry { name, head, hole } = entry;
        let size = head.len() as u64 + hole;
        let crc = if hole == 0 { crc32fast::hash(&head) } else { 0 };
        let entry = Placed { name, crc, size, local: bytes.end() };
        bytes.put(&entry.local_header());
        let start = bytes.end();
        bytes.put(&head);
        archive.holes.push(bytes.end());
        bytes.skip(hole);
        placed.push((entry, (hole > 0).then_some(start..bytes.end())));
    }
    let start = bytes.end();
    for (entry, of) in &placed {
        let at = bytes.end();
        bytes.put(&entry.central_header());
        if let Some(of) = of {
            let at = vec![entry.local + 14, at + 16];
            archive.checksums.push(Checksum { of: of.clone(), at });
        }
    }
    let directory = start..bytes.end();
    bytes.put(&end(placed.len() as u64, directory, comment));
    archive.size = bytes.end();
    archive.pieces = bytes.done;
    archive
}

/// Bytes that follow each other, with holes between them.
#[derive(Default)]
struct Pieces {
    done: Vec<(u64, Vec<u8>)>,
    end: u64,
    /// Whether the last piece ends here.
    open: bool,
}

impl Pieces {
    fn end(&self) -> u64 {
        self.end
    }

    fn put(&mut self, bytes: &[u8]) {
        match self.done.last_mut() {
            Some((_, last)) if self.open => last.extend_from_slice(bytes),
            _ => self.done.push((self.end, bytes.to_vec())),
        }
        (self.open, self.end) = (true, self.end + bytes.len() as u64);
    }

    fn skip(&mut self, count: u64) {
        (self.open, self.end) = (self.open && count == 0, self.end + count);
    }
}

/// An entry whose place is known.
struct Placed {
    name: String,
    /// 0 where it is written later.
    crc: u32,
    size: u64,
    local: u64,
}

impl Placed {
    /// Returns the version that is needed, times ten, of a reader: 4.5 has zip64.
    fn version(&self) -> u16 {
        if is_wide(self.size) || is_wide(self.local) { 45 } else { 20 }
    }

    /// Appends what both headers have from the flags on, before the lengths of the extra field and the comment.
    fn put_common(&self, bytes: &mut Vec<u8>) {
        let flags = if self.name.is_ascii() { 0 } else { UTF8 };
        let (method, time) = (0, 0);
        put16(bytes, &[self.version(), flags, method, time, DATE]);
        put32(bytes, &[self.crc, narrow(self.size), narrow(self.size)]);
        put16(bytes, &[narrow16(self.name.len() as u64)]);
    }

    fn local_header(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(192);
        put32(&mut bytes, &[LOCAL]);
        self.put_common(&mut bytes);
        let extra = bytes.len();
        put16(&mut bytes, &[0]);
        bytes.extend_from_slice(self.name.as_bytes());
        let begin = bytes.len();
        if is_wide(self.size) {
            put16(&mut bytes, &[ZIP64, 16]);
            put64(&mut bytes, &[self.size, self.size]);
        }
        let end = self.local + bytes.len() as u64 + 4;
        let fill = end.next_multiple_of(ALIGNMENT) - end;
        put16(&mut bytes, &[PADDING, narrow16(fill)]);
        bytes.resize(bytes.len() + fill as usize, 0);
        let length = narrow16((bytes.len() - begin) as u64).to_le_bytes();
        bytes.splice(extra..extra + 2, length);
        bytes
    }

    fn central_header(&self) -> Vec<u8> {
        let mut wide = Vec::new();
        if is_wide(self.size) {
            put64(&mut wide, &[self.size, self.size]);
        }
        if is_wide(self.local) {
            put64(&mut wide, &[self.local]);
        }
        let mut bytes = Vec::with_capacity(96);
        put32(&mut bytes, &[CENTRAL]);
        put16(&mut bytes, &[UNIX | self.version()]);
        self.put_common(&mut bytes);
        let extra = if wide.is_empty() { 0 } else { wide.len() + 4 };
        let (comment, disk, internal) = (0, 0, 0);
        put16(&mut bytes, &[narrow16(extra as u64), comment, disk, internal]);
        let external = 0;
        put32(&mut bytes, &[external, narrow(self.local)]);
        bytes.extend_from_slice(self.name.as_bytes());
        if !wide.is_empty() {
            put16(&mut bytes, &[ZIP64, narrow16(wide.len() as u64)]);
            bytes.extend_from_slice(&wide);
        }
        bytes
    }
}

/// Returns the records behind the central directory.
fn end(count: u64, directory: Range<u64>, comment: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let size = directory.end - directory.start;
    if count >= u64::from(u16::MAX) || is_wide(size) || is_wide(directory.start) {
        put32(&mut bytes, &[END64]);
        // The record's size does not count this field and the signature.
        put64(&mut bytes, &[44]);
        put16(&mut bytes, &[45, 45]);
        put32(&mut bytes, &[0, 0]);
        put64(&mut bytes, &[count, count, size, directory.start]);
        put32(&mut bytes, &[LOCATOR, 0]);
        put64(&mut bytes, &[directory.end]);
        put32(&mut bytes, &[1]);
    }
    put32(&mut bytes, &[END]);
    put16(&mut bytes, &[0, 0, narrow16(count), narrow16(count)]);
    put32(&mut bytes, &[narrow(size), narrow(directory.start)]);
    let comment = comment.get(..comment.len().min(LONGEST_COMMENT)).unwrap_or_default();
    put16(&mut bytes, &[narrow16(comment.len() as u64)]);
    bytes.extend_from_slice(comment);
    bytes
}

/// Whether a value needs a field of 64 bits; a full field of 32 says that there is one.
fn is_wide(value: u64) -> bool {
    value >= u64::from(u32::MAX)
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn narrow16(value: u64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

fn put16(bytes: &mut Vec<u8>, values: &[u16]) {
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
}

fn put32(bytes: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
}

fn put64(bytes: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;
    use crate::format::store::OpenFile;
    use crate::format::zip::read::{Entry, bytes, comment, entries};
    use crate::positioned::write_all_at;

    fn entry(name: &str, head: &[u8], hole: u64) -> NewEntry {
        NewEntry { name: name.to_owned(), head: head.to_vec(), hole }
    }

    /// Writes an archive with nothing in its holes, which take no space on disk.
    fn written(archive: &Archive) -> (tempfile::TempDir, Arc<OpenFile>) {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a");
        let file = std::fs::File::create_new(&path).expect("file");
        file.set_len(archive.size).expect("grows");
        let mut end = 0;
        for (at, piece) in &archive.pieces {
            assert!(*at >= end, "the pieces do not overlap");
            write_all_at(&file, *at, piece).expect("writes");
            end = at + piece.len() as u64;
        }
        assert_eq!(end, archive.size);
        (folder, OpenFile::open(&path).expect("opens"))
    }

    fn check(all: Vec<NewEntry>, text: &[u8]) -> (Archive, Vec<Entry>) {
        let archive = lay_out(all.clone(), text);
        let (_folder, file) = written(&archive);
        let found = entries(&file).expect("reads");
        assert_eq!((found.len(), comment(&file).expect("reads")), (all.len(), text.to_vec()));
        for ((made, found), hole) in all.iter().zip(&found).zip(&archive.holes) {
            assert_eq!((&found.name, found.deflated), (&made.name, false));
            assert_eq!((found.start % 64, found.size), (0, made.head.len() as u64 + made.hole));
            assert_eq!(*hole, found.start + made.head.len() as u64);
            if made.hole == 0 {
                // The CRC-32 is checked here.
                assert_eq!(bytes(&file, found, u64::MAX).expect("reads"), made.head);
            }
        }
        (archive, found)
    }

    #[test]
    fn what_is_laid_out_is_read_again() {
        let all = vec![
            entry("archive/data.pkl", b"pickle", 0),
            entry("ä/日本.npy", &[1; 64], 100),
            entry("empty", b"", 0),
            entry("hole", b"", 1),
        ];
        let (archive, found) = check(all.clone(), b"{}");
        let sums: Vec<Range<u64>> = archive.checksums.iter().map(|sum| sum.of.clone()).collect();
        assert_eq!(sums, [1, 3].map(|at| found[at].start..found[at].start + found[at].size));
        assert_eq!(archive.pieces, lay_out(all, b"{}").pieces);
        check(Vec::new(), b"");
    }

    #[test]
    fn checksums_are_written_into_both_headers() {
        let archive = lay_out(vec![entry("a", b"12", 0), entry("b", b"head", 5)], b"");
        let [sum] = &archive.checksums[..] else { panic!("one hole") };
        let mut whole = vec![0; archive.size as usize];
        for (at, piece) in &archive.pieces {
            whole[*at as usize..][..piece.len()].copy_from_slice(piece);
        }
        (&mut whole[archive.holes[1] as usize..][..5]).write_all(b" tail").expect("fits");
        let crc = crc32fast::hash(&whole[sum.of.start as usize..sum.of.end as usize]);
        assert_eq!(crc, crc32fast::hash(b"head tail"));
        for &at in &sum.at {
            assert_eq!(whole[at as usize..][..4], [0; 4]);
            whole[at as usize..][..4].copy_from_slice(&crc.to_le_bytes());
        }
        let folder = tempfile::tempdir().expect("folder");
        let file = OpenFile::open(&crate::format::testing::put(folder.path(), "a", &whole)).expect("opens");
        let found = entries(&file).expect("reads");
        assert_eq!(bytes(&file, &found[1], 9).expect("reads"), b"head tail");
    }

    // Elsewhere the holes of a file may take space on disk.
    #[cfg(unix)]
    #[test]
    fn entries_beyond_four_gibibytes_and_of_more_than_that() {
        let all = vec![
            entry("big", b"x", 5 << 30),
            entry("full", b"", u64::from(u32::MAX)),
            entry("almost", b"", u64::from(u32::MAX) - 1),
            entry("small", b"123", 0),
        ];
        let (archive, found) = check(all, b"");
        assert!(found[1].start > 5 << 30 && archive.size > 13 << 30);
        let last = &archive.pieces.last().expect("a piece").1;
        let wide =
            |signature: u32| last.windows(4).filter(|bytes| **bytes == signature.to_le_bytes()).count();
        assert_eq!((wide(END64), wide(LOCATOR), wide(END)), (1, 1, 1));
    }

    #[test]
    fn more_entries_than_two_bytes_can_count() {
        for count in [65534, 65535, 70000] {
            let all = (0..count).map(|number| entry(&number.to_string(), b"", 0)).collect();
            let (archive, _) = check(all, b"");
            let last = &archive.pieces.last().expect("a piece").1;
            let wide = last.windows(4).any(|bytes| bytes == END64.to_le_bytes());
            assert_eq!(wide, count >= 65535);
        }
    }

    #[test]
    fn end_records_that_disagree_are_refused() {
        let archive = lay_out((0..65535).map(|number| entry(&number.to_string(), b"", 0)).collect(), b"");
        let mut whole = archive.pieces[0].1.clone();
        let end = whole.len() - 22;
        let folder = tempfile::tempdir().expect("folder");
        for (at, value, fine) in [(12, 0xff, false), (8, 0xfe, false), (12, whole[end + 12], true)] {
            let before = whole[end + at];
            whole[end + at] = value;
            let file =
                OpenFile::open(&crate::format::testing::put(folder.path(), "a", &whole)).expect("opens");
            assert_eq!(entries(&file).is_ok(), fine, "{at}");
            whole[end + at] = before;
        }
    }
}
