//! The end of a zip archive, where reading begins: where the central directory lies (`APPNOTE.TXT`, 4.3.14 to 4.3.16).

use std::sync::Arc;

use super::{END, END64, LOCATOR, SIGNATURE};
use crate::diag::{Diagnostic, Errors, FormatCode};
use crate::format::foreign;
use crate::format::store::OpenFile;

/// What to do about an archive that does not add up.
pub(super) const DAMAGED: &str = "the file is damaged or cut short: download or save it again";

/// Starts an error about an archive.
pub(super) fn fail(file: &OpenFile, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(FormatCode::Zip, message).file(&file.path)
}

/// Reads little-endian fields one after another; `None` where the bytes end.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Where the central directory lies.
pub(super) struct Directory {
    /// Where it begins in the file.
    pub(super) start: u64,
    /// Its bytes.
    pub(super) size: u64,
    /// The entries in it.
    pub(super) count: u64,
    /// The comment of the archive.
    pub(super) comment: Vec<u8>,
}

/// The fields of an end record, 32-bit or 64-bit.
#[derive(Clone, Copy)]
struct EndRecord {
    disk: u32,
    directory_disk: u32,
    count_here: u64,
    count: u64,
    size: u64,
    start: u64,
}

impl EndRecord {
    fn parse(bytes: &[u8]) -> Option<EndRecord> {
        let mut fields = Fields(bytes);
        fields.u32().filter(|&signature| signature == END)?;
        Some(EndRecord {
            disk: fields.u16()?.into(),
            directory_disk: fields.u16()?.into(),
            count_here: fields.u16()?.into(),
            count: fields.u16()?.into(),
            size: fields.u32()?.into(),
            start: fields.u32()?.into(),
        })
    }

    fn parse64(bytes: &[u8]) -> Option<EndRecord> {
        let mut fields = Fields(bytes);
        fields.u32().filter(|&signature| signature == END64)?;
        // The size of the record and two versions.
        fields.bytes(12)?;
        Some(EndRecord {
            disk: fields.u32()?,
            directory_disk: fields.u32()?,
            count_here: fields.u64()?,
            count: fields.u64()?,
            size: fields.u64()?,
            start: fields.u64()?,
        })
    }

    /// Whether each field that is not full says the same as the 64-bit record.
    fn agrees_with(&self, wide: &EndRecord) -> bool {
        let agree = |narrow: u64, full: u64, wide: u64| narrow == full || narrow == wide;
        let (short, long) = (u64::from(u16::MAX), u64::from(u32::MAX));
        agree(self.disk.into(), short, wide.disk.into())
            && agree(self.directory_disk.into(), short, wide.directory_disk.into())
            && agree(self.count_here, short, wide.count_here)
            && agree(self.count, short, wide.count)
            && agree(self.size, long, wide.size)
            && agree(self.start, long, wide.start)
    }
}

/// The bytes of an end record without its comment.
const END_BYTES: u64 = 22;
/// The bytes of a zip64 locator.
const LOCATOR_BYTES: u64 = 20;
/// The bytes of a zip64 end record without its extensible data.
const END64_BYTES: u64 = 56;
/// The fixed bytes of a central header.
const CENTRAL_BYTES: u64 = 46;

/// Finds the central directory, which lies in the file and is long enough for its entries.
///
/// # Errors
/// Returns `format/zip` where there is none, where its end can be read in two ways, and for a part of several disks.
pub(super) fn directory(file: &Arc<OpenFile>) -> Result<Directory, Errors> {
    let tail_length = file.size.min(END_BYTES + u64::from(u16::MAX));
    let tail_start = file.size - tail_length;
    let tail = file.bytes(tail_start, tail_length)?;
    // A record whose comment ends with the file.
    let mut found = (0..tail.len()).rev().filter_map(|at| {
        let bytes = tail.get(at..)?;
        let record = EndRecord::parse(bytes)?;
        let (head, comment) = bytes.split_at_checked(END_BYTES as usize)?;
        let length = Fields(head.get(20..)?).u16()?;
        (comment.len() == usize::from(length)).then(|| (tail_start + at as u64, record, comment.to_vec()))
    });
    let Some((mut end, mut record, comment)) = found.next() else {
        let message =
            "it begins as a zip archive, but the archive's directory, which stands at the end, is not there";
        return Err(fail(file, message).help(DAMAGED).into());
    };
    if found.next().is_some() {
        let message = "the zip archive ends in two ways: one end of a directory is in the comment of another";
        return Err(fail(file, message).help("pack it again without the comment").into());
    }
    if let Some(at) = locator(file, end)? {
        let wide = match at.checked_add(END64_BYTES + LOCATOR_BYTES).filter(|&behind| behind <= end) {
            Some(_) => EndRecord::parse64(&file.bytes(at, END64_BYTES)?),
            None => None,
        };
        let Some(wide) = wide.filter(|wide| record.agrees_with(wide)) else {
            let message = "the zip archive's two end records (zip64) do not agree";
            return Err(fail(file, message).help(DAMAGED).into());
        };
        (end, record) = (at, wide);
    }
    if (record.disk, record.directory_disk) != (0, 0) || record.count_here != record.count {
        let message = "it is one part of a zip archive of several disks";
        return Err(fail(file, message).help("join the parts, as with `zip -s 0 IN --out OUT`").into());
    }
    let inside = record.start.checked_add(record.size).is_some_and(|behind| behind <= end);
    if !inside || record.count > record.size / CENTRAL_BYTES {
        let message = format!(
            "the zip archive's directory would have {} entries in {} bytes at {}",
            record.count, record.size, record.start
        );
        return Err(fail(file, message)
            .expected(format!("a directory that ends before {end}"))
            .help(DAMAGED)
            .into());
    }
    // What follows the directory is its signature at most; places are counted from the start of the archive, so bytes that
    // are too many are another archive before this one.
    let behind = record.start + record.size;
    let is_signed = behind + 4 <= end && file.bytes(behind, 4)? == SIGNATURE.to_le_bytes();
    if behind < end && !is_signed {
        return Err(foreign::SEVERAL_ARCHIVES.error(&file.path).into());
    }
    Ok(Directory { start: record.start, size: record.size, count: record.count, comment })
}

/// Returns where the zip64 end record lies, if the locator before the end record says that there is one.
fn locator(file: &Arc<OpenFile>, end: u64) -> Result<Option<u64>, Errors> {
    let Some(at) = end.checked_sub(LOCATOR_BYTES) else { return Ok(None) };
    let bytes = file.bytes(at, LOCATOR_BYTES)?;
    let mut fields = Fields(&bytes);
    if fields.u32() != Some(LOCATOR) {
        return Ok(None);
    }
    // The disk comes first; the record itself says its disk again.
    fields.u32();
    Ok(fields.u64())
}
