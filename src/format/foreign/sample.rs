//! What can be looked at of a file that may be of another format.

use std::sync::Arc;

use crate::diag::Errors;
use crate::format::store::{OpenFile, Store};

/// A file with its first bytes.
pub(super) struct Sample<'a> {
    pub(super) file: &'a Arc<OpenFile>,
    pub(super) head: &'a [u8],
}

/// A field of a protocol buffer message. (protocolbuffers/protobuf, the encoding's specification)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Its number.
    pub(super) number: u64,
    /// 0 for an integer, 2 for bytes: texts and messages.
    pub(super) wire: u8,
}

impl Sample<'_> {
    /// Returns the fields of the message that the whole file is, without what is in them; `None` where it is no message.
    pub(super) fn fields(&self) -> Option<Vec<Field>> {
        // More than any model has; what a file of other content looks like ends long before.
        const MOST: usize = 1 << 16;
        let mut fields = Vec::new();
        let mut position = 0;
        while position < self.file.size {
            let (tag, behind) = self.varint(position)?;
            let field = Field { number: tag >> 3, wire: (tag & 7) as u8 };
            if field.number == 0 || field.number >= 1 << 29 || fields.len() == MOST {
                return None;
            }
            position = match field.wire {
                0 => self.varint(behind)?.1,
                1 => behind.checked_add(8)?,
                2 => {
                    let (length, start) = self.varint(behind)?;
                    start.checked_add(length)?
                }
                5 => behind.checked_add(4)?,
                _ => return None,
            };
            fields.push(field);
        }
        (position == self.file.size).then_some(fields)
    }

    /// Reads a number of 7 bits a byte, and where it ends.
    fn varint(&self, position: u64) -> Option<(u64, u64)> {
        let count = self.file.size.checked_sub(position)?.min(10) as usize;
        let mut bytes = [0; 10];
        let bytes = bytes.get_mut(..count)?;
        self.file.read_exact_at(position, bytes).ok()?;
        let length = bytes.iter().position(|byte| byte & 0x80 == 0)? + 1;
        let value = bytes
            .get(..length)?
            .iter()
            .rev()
            .try_fold(0_u64, |value, byte| value.checked_mul(128)?.checked_add(u64::from(byte & 0x7f)));
        Some((value?, position + length as u64))
    }

    /// Returns the first bytes of a file beside this one with another ending.
    pub(super) fn beside(&self, extension: &str) -> Option<Vec<u8>> {
        let other = OpenFile::open(&self.file.path.with_extension(extension)).ok()?;
        other.bytes(0, other.size.min(1024)).ok()
    }
}

/// The bytes of a tar header and of the blocks that data are padded to. (IEEE Std 1003.1, `pax`)
const BLOCK: u64 = 512;

/// Returns whether a file begins with a header of a tar archive: its sum is in it, in every variant of the format.
pub(super) fn is_tar(head: &[u8]) -> bool {
    let Some(header) = head.get(..BLOCK as usize) else { return false };
    let (Some(stated), Some(before), Some(behind)) =
        (header.get(148..156).and_then(octal), header.get(..148), header.get(156..))
    else {
        return false;
    };
    // The sum's own place counts as spaces.
    let sum: u64 = before.iter().chain(behind).map(|&byte| u64::from(byte)).sum::<u64>() + 8 * 32;
    header.first() != Some(&0) && sum == stated
}

/// Returns the names of the entries of a tar archive, as far as it goes on.
pub(super) fn tar_members(file: &Arc<OpenFile>) -> Result<Vec<String>, Errors> {
    const MOST: usize = 10_000;
    let mut names = Vec::new();
    let mut position = 0_u64;
    while position + BLOCK <= file.size && names.len() < MOST {
        let header = file.bytes(position, BLOCK)?;
        if !is_tar(&header) {
            break;
        }
        let name = header.get(..100).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        // `L`, `K`, `x` and `g` say more of the entry behind them.
        if !matches!(header.get(156), Some(b'L' | b'K' | b'x' | b'g')) {
            names.push(String::from_utf8_lossy(name).into_owned());
        }
        let size = header.get(124..136).and_then(size).unwrap_or(u64::MAX);
        let blocks = size.div_ceil(BLOCK).saturating_mul(BLOCK);
        position = position.saturating_add(BLOCK).saturating_add(blocks).min(file.size);
    }
    Ok(names)
}

/// Reads a size: octal digits, or a number in base 256 behind a set first bit (GNU tar).
fn size(bytes: &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    if first & 0x80 == 0 {
        return octal(bytes);
    }
    rest.iter().try_fold(u64::from(first & 0x7f), |value, &byte| {
        value.checked_mul(256)?.checked_add(u64::from(byte))
    })
}

fn octal(bytes: &[u8]) -> Option<u64> {
    let text = str::from_utf8(bytes).ok()?.trim_matches(['\0', ' ']);
    u64::from_str_radix(text, 8).ok()
}
