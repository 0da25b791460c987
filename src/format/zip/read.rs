//! The entries of a zip archive, and where their bytes lie.
//!
//! The structures are those of PKWARE's `APPNOTE.TXT`, sections 4.3 and 4.5. What two programs could read in two ways is
//! an error: a central directory and a local header that disagree, a name that stands twice, data that overlap.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::Arc;

use flate2::read::DeflateDecoder;

use super::end::{DAMAGED, Fields, directory, fail};
use super::{CENTRAL, END, LOCAL, ZIP64};
use crate::diag::{Collector, Diagnostic, Errors};
use crate::format::store::OpenFile;
use crate::format::{foreign, shown};

/// The most that deflate can make of one byte: 258 bytes for two bits (RFC 1951, 3.2.5).
const DEFLATE_RATIO: u64 = 1032;

/// How many entries may be wrong before the rest is not looked at.
const MOST_WRONG: usize = 20;

/// One entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::format) struct Entry {
    /// Its name, with the folders inside the archive.
    pub(in crate::format) name: String,
    /// Where its bytes begin in the file, compressed or not.
    pub(in crate::format) start: u64,
    /// The bytes that it takes in the file.
    pub(in crate::format) stored: u64,
    /// The bytes that it has.
    pub(in crate::format) size: u64,
    /// Whether it is compressed; its bytes lie in the file as they are otherwise.
    pub(in crate::format) deflated: bool,
    /// The method by which it is compressed, where that is none that is read.
    pub(in crate::format) unread: Option<String>,
    /// The CRC-32 of the bytes that it has.
    pub(in crate::format) crc: u32,
}

/// Returns the entries of an archive in the order of its directory.
///
/// Each entry's bytes lie inside the file, before the directory and apart from those of all others.
///
/// # Errors
/// Returns `format/zip` for everything that is wrong: no directory, counts and sizes beyond the file, an encrypted entry,
/// an archive of several disks, a name that stands twice, local headers that
/// say something else than the directory, and entries that overlap.
pub(in crate::format) fn entries(file: &Arc<OpenFile>) -> Result<Vec<Entry>, Errors> {
    let directory = directory(file)?;
    let bytes = file.bytes(directory.start, directory.size)?;
    let mut fields = Fields(&bytes);
    let mut out = Collector::default();
    let mut wrong = 0;
    let mut names = HashSet::new();
    let mut spans = Vec::new();
    let mut entries = Vec::new();
    for number in 0..directory.count {
        let Some(header) = Header::central(&mut fields) else {
            let message = format!("the zip archive's directory ends inside entry {number}");
            let diagnostic = fail(file, message).expected(format!("{} entries", directory.count));
            out.push(diagnostic.help(DAMAGED));
            break;
        };
        match entry(file, &header, directory.start) {
            Ok((span, entry)) => {
                if !names.insert(entry.name.clone()) {
                    let name = shown(&entry.name);
                    let message = format!("two entries of the zip archive are named `{name}`");
                    out.push(
                        fail(file, message).help("save the file again: readers disagree about which counts"),
                    );
                    wrong += 1;
                }
                spans.push((span, entries.len()));
                entries.push(entry);
            }
            Err(diagnostic) => {
                out.push(*diagnostic);
                wrong += 1;
            }
        }
        if wrong >= MOST_WRONG {
            break;
        }
    }
    if wrong == 0 && !out.has_errors() && !fields.0.is_empty() {
        let message = format!("the zip archive's directory has {} bytes too many", fields.0.len());
        out.push(fail(file, message).help(DAMAGED));
    }
    check_apart(file, &mut spans, &entries, &mut out);
    if !out.has_errors() && !is_one(file, &spans, directory.start)? {
        out.push(foreign::SEVERAL_ARCHIVES.error(&file.path));
    }
    out.finish(entries).map(|(entries, _)| entries)
}

/// Returns the comment of an archive, empty where it has none.
///
/// # Errors
/// Returns `format/zip` where the archive has no directory.
pub(in crate::format) fn comment(file: &Arc<OpenFile>) -> Result<Vec<u8>, Errors> {
    directory(file).map(|directory| directory.comment)
}

/// Returns an entry's bytes as a stream; its end is an error where the length or the CRC-32 is another than the
/// directory says.
pub(in crate::format) fn reader(file: &Arc<OpenFile>, entry: &Entry) -> EntryReader {
    let range = file.range(entry.start, entry.stored);
    let inner: Box<dyn Read + Send> = match &entry.unread {
        Some(method) => Box::new(Unread(method.clone())),
        None if entry.deflated => Box::new(DeflateDecoder::new(range)),
        None => Box::new(range),
    };
    EntryReader {
        inner,
        left: entry.size,
        hasher: crc32fast::Hasher::new(),
        crc: entry.crc,
        name: entry.name.clone(),
    }
}

/// Writes an entry's bytes as they are when nothing is compressed, exactly [`Entry::size`], in constant memory.
///
/// # Errors
/// Returns [`io::ErrorKind::InvalidData`] where more bytes come out or their CRC-32 is another,
/// [`io::ErrorKind::UnexpectedEof`] where fewer do, and what the system or the decoder reports.
pub(in crate::format) fn extract(file: &Arc<OpenFile>, entry: &Entry, to: &mut dyn Write) -> io::Result<()> {
    io::copy(&mut reader(file, entry), to).map(|_| ())
}

/// Reads a whole entry into memory, if it has at most `limit` bytes.
///
/// # Errors
/// Returns `format/zip` where it is larger, and what [`extract`] finds wrong.
pub(in crate::format) fn bytes(file: &Arc<OpenFile>, entry: &Entry, limit: u64) -> Result<Vec<u8>, Errors> {
    if entry.size > limit {
        let message = format!("the entry `{}` has {} bytes", shown(&entry.name), entry.size);
        return Err(fail(file, message).expected(format!("at most {limit}")).into());
    }
    let mut bytes = Vec::new();
    extract(file, entry, &mut bytes)
        .map_err(|error| fail(file, format!("cannot read the entry `{}`: {error}", shown(&entry.name))))?;
    Ok(bytes)
}

/// Stands for the bytes of an entry that is compressed by that method.
struct Unread(String);

impl Read for Unread {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        let message = format!("it is compressed with {}; stored and deflated entries are read", self.0);
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}

/// An entry's bytes as they are when nothing is compressed.
pub(in crate::format) struct EntryReader {
    inner: Box<dyn Read + Send>,
    left: u64,
    hasher: crc32fast::Hasher,
    crc: u32,
    name: String,
}

impl EntryReader {
    fn end(&mut self) -> io::Result<usize> {
        let wrong = |message| Err(io::Error::new(io::ErrorKind::InvalidData, message));
        if self.inner.read(&mut [0])? > 0 {
            return wrong(format!(
                "more bytes come out of `{}` than the zip archive says",
                shown(&self.name)
            ));
        }
        let found = self.hasher.clone().finalize();
        if found != self.crc {
            let (name, said) = (shown(&self.name), self.crc);
            return wrong(format!(
                "`{name}` is damaged: its CRC-32 is {found:08x}, the zip archive says {said:08x}"
            ));
        }
        Ok(0)
    }
}

impl Read for EntryReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            return self.end();
        }
        let most = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let buffer = buffer.get_mut(..most).unwrap_or_default();
        let count = self.inner.read(buffer)?;
        if count == 0 {
            let message = format!("`{}` ends {} bytes early", shown(&self.name), self.left);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        self.hasher.update(buffer.get(..count).unwrap_or_default());
        self.left -= count as u64;
        Ok(count)
    }
}

/// The fixed bytes of a local header.
const LOCAL_BYTES: u64 = 30;

/// A central or a local header.
#[derive(Debug)]
struct Header<'a> {
    flags: u16,
    method: u16,
    crc: u32,
    stored: u64,
    size: u64,
    name: &'a [u8],
    disk: u32,
    local: u64,
}

impl<'a> Header<'a> {
    /// Reads the next header of the central directory.
    fn central(fields: &mut Fields<'a>) -> Option<Header<'a>> {
        fields.u32().filter(|&signature| signature == CENTRAL)?;
        fields.bytes(4)?;
        let (flags, method) = (fields.u16()?, fields.u16()?);
        fields.bytes(4)?;
        let (crc, stored, size) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (name, extra, comment) = (fields.u16()?, fields.u16()?, fields.u16()?);
        let disk = fields.u16()?;
        fields.bytes(6)?;
        let local = fields.u32()?;
        let name = fields.bytes(name.into())?;
        let extra = fields.bytes(extra.into())?;
        fields.bytes(comment.into())?;
        let mut wide = Fields(zip64_field(extra));
        let size = widen(size, &mut wide)?;
        let stored = widen(stored, &mut wide)?;
        let local = widen(local, &mut wide)?;
        let disk = if disk == u16::MAX { wide.u32()? } else { disk.into() };
        Some(Header { flags, method, crc, stored, size, name, disk, local })
    }

    /// Reads a local header; what its position says is not in it.
    fn local(fixed: &[u8], rest: &'a [u8]) -> Option<Header<'a>> {
        let mut fields = Fields(fixed);
        fields.u32().filter(|&signature| signature == LOCAL)?;
        fields.bytes(2)?;
        let (flags, method) = (fields.u16()?, fields.u16()?);
        fields.bytes(4)?;
        let (crc, stored, size) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (name, extra) = rest.split_at_checked(fields.u16()?.into())?;
        let mut wide = Fields(zip64_field(extra));
        // Sizes that follow behind the data need not be here.
        let follows = flags & FOLLOWS != 0;
        let size = widen(size, &mut wide).or(follows.then_some(0))?;
        let stored = widen(stored, &mut wide).or(follows.then_some(0))?;
        Some(Header { flags, method, crc, stored, size, name, disk: 0, local: 0 })
    }
}

/// The flags of encryption: plain, strong, and that of the directory.
const ENCRYPTED: u16 = 1 | 1 << 6 | 1 << 13;
/// The flag that sizes and CRC-32 follow behind the data.
const FOLLOWS: u16 = 1 << 3;

/// Returns the content of the zip64 extra field, empty where there is none.
fn zip64_field(extra: &[u8]) -> &[u8] {
    let mut fields = Fields(extra);
    while let (Some(id), Some(length)) = (fields.u16(), fields.u16()) {
        match fields.bytes(length.into()) {
            Some(content) if id == ZIP64 => return content,
            Some(_) => {}
            None => break,
        }
    }
    &[]
}

/// Returns the value of a 32-bit field, or that of the next zip64 field where it is full.
fn widen(value: u32, wide: &mut Fields<'_>) -> Option<u64> {
    if value == u32::MAX { wide.u64() } else { Some(value.into()) }
}

/// Checks an entry and its local header; returns the range that both take, and the entry.
fn entry(
    file: &Arc<OpenFile>,
    central: &Header<'_>,
    limit: u64,
) -> Result<((u64, u64), Entry), Box<Diagnostic>> {
    let name = decode_name(central.name);
    let wrong = |what: String| {
        Box::new(fail(file, format!("the entry `{}` of the zip archive {what}", shown(&name))))
    };
    let damaged = |what: String| Box::new(wrong(what).help(DAMAGED));
    if name.contains('\0') {
        return Err(wrong("has a NUL character in its name".to_owned()));
    }
    if central.disk != 0 {
        return Err(wrong("lies on another disk".to_owned()));
    }
    let beyond = || damaged(format!("would begin at {}, but the data end at {limit}", central.local));
    let behind =
        central.local.checked_add(LOCAL_BYTES).filter(|&behind| behind <= limit).ok_or_else(beyond)?;
    let read = |start, length| {
        let bytes = file.bytes(start, length);
        bytes.map_err(|errors| {
            Box::new(errors.diagnostics().first().cloned().unwrap_or_else(|| fail(file, "unreadable")))
        })
    };
    let fixed = read(central.local, LOCAL_BYTES)?;
    let no_header = || damaged(format!("has no local header at {}", central.local));
    if Fields(&fixed).u32() != Some(LOCAL) {
        return Err(no_header());
    }
    let mut lengths = Fields(fixed.get(26..).unwrap_or_default());
    let rest = u64::from(lengths.u16().unwrap_or(0)) + u64::from(lengths.u16().unwrap_or(0));
    let start = behind.checked_add(rest).filter(|&start| start <= limit).ok_or_else(beyond)?;
    let rest = read(behind, rest)?;
    let local = Header::local(&fixed, &rest).ok_or_else(no_header)?;
    if (central.flags | local.flags) & ENCRYPTED != 0 {
        return Err(Box::new(
            wrong("is encrypted".to_owned()).help("unpack it with the password and pack it again without"),
        ));
    }
    if !agree(central, &local) {
        let said = |header: &Header<'_>| {
            let (name, method) = (shown(&decode_name(header.name)), header.method);
            format!(
                "`{name}`, method {method}, {} of {} bytes, CRC-32 {:08x}",
                header.stored, header.size, header.crc
            )
        };
        let diagnostic = damaged("is another in the directory than in its local header".to_owned());
        return Err(Box::new(diagnostic.expected(said(central)).found(said(&local))));
    }
    let (deflated, unread) = match central.method {
        0 => (false, None),
        8 => (true, None),
        other => (true, Some(method_name(other))),
    };
    let end = start.checked_add(central.stored).filter(|&end| end <= limit);
    let Some(end) = end else {
        return Err(damaged(format!(
            "would take {} bytes at {start}, but the data end at {limit}",
            central.stored
        )));
    };
    let possible = if deflated { central.stored.saturating_mul(DEFLATE_RATIO) } else { central.stored };
    if unread.is_none() && central.size > possible || (!deflated && central.size != central.stored) {
        let (size, stored) = (central.size, central.stored);
        return Err(damaged(format!(
            "would have {size} bytes in {stored} bytes of the file, which is not possible"
        )));
    }
    let (stored, size, crc) = (central.stored, central.size, central.crc);
    let entry = Entry { name, start, stored, size, deflated, unread, crc };
    Ok(((central.local, end), entry))
}

/// Whether the directory and the local header say the same.
fn agree(central: &Header<'_>, local: &Header<'_>) -> bool {
    let follows = local.flags & FOLLOWS != 0;
    let sizes = (central.crc, central.stored, central.size) == (local.crc, local.stored, local.size);
    central.name == local.name && central.method == local.method && (follows || sizes)
}

/// Checks that no two entries share bytes.
fn check_apart(
    file: &Arc<OpenFile>,
    spans: &mut [((u64, u64), usize)],
    entries: &[Entry],
    out: &mut Collector,
) {
    spans.sort_unstable();
    let name = |at: usize| entries.get(at).map(|entry| shown(&entry.name)).unwrap_or_default();
    for pair in spans.windows(2) {
        if let [((_, end), first), ((start, _), second)] = *pair
            && end > start
        {
            let message =
                format!("the entries `{}` and `{}` of the zip archive overlap", name(first), name(second));
            out.push(fail(file, message).help(DAMAGED));
            return;
        }
    }
}

/// Returns whether what is in none of the entries is no other archive: nothing before the first entry, and no end of a
/// directory between two.
fn is_one(file: &Arc<OpenFile>, spans: &[((u64, u64), usize)], directory: u64) -> Result<bool, Errors> {
    if spans.first().is_some_and(|((start, _), _)| *start > 0) {
        return Ok(false);
    }
    let starts = spans.iter().skip(1).map(|((start, _), _)| *start).chain([directory]);
    for (((_, end), _), next) in spans.iter().zip(starts) {
        // Sizes that follow the data take 24 bytes; an end with a comment this many.
        let length = next.saturating_sub(*end).min(MOST_END);
        if length > 24 {
            let bytes = file.bytes(next - length, length)?;
            if bytes.windows(4).any(|bytes| bytes == END.to_le_bytes()) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The most bytes of the end of an archive: the record and its comment.
const MOST_END: u64 = 22 + 65_535;

/// Returns what a compression method is called (`APPNOTE.TXT`, 4.4.5).
fn method_name(method: u16) -> String {
    let name = match method {
        1 => "shrink",
        2..=5 => "reduce",
        6 => "implode",
        9 => "Deflate64",
        12 => "bzip2",
        14 => "LZMA",
        93 => "Zstandard",
        95 => "XZ",
        98 => "PPMd",
        99 => "AES encryption",
        _ => return format!("method {method}"),
    };
    format!("{name} (method {method})")
}

/// The upper half of code page 437, in which names are that are not UTF-8 (`APPNOTE.TXT`, appendix D).
const CP437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// Returns a name as text: UTF-8 where it is that, with or without the flag that says so.
fn decode_name(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(name) => name.to_owned(),
        Err(_) => {
            let high = |byte: u8| CP437.chars().nth(usize::from(byte & 0x7f)).unwrap_or('\u{fffd}');
            bytes.iter().map(|&byte| if byte.is_ascii() { char::from(byte) } else { high(byte) }).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::format::testing::put;

    /// An entry as it is written here, by hand.
    #[derive(Clone)]
    struct Made {
        name: Vec<u8>,
        flags: u16,
        method: u16,
        crc: u32,
        size: u32,
        stored: Vec<u8>,
    }

    fn stored(name: &str, bytes: &[u8]) -> Made {
        let (name, crc, size) = (name.as_bytes().to_vec(), crc32fast::hash(bytes), bytes.len() as u32);
        Made { name, flags: 0, method: 0, crc, size, stored: bytes.to_vec() }
    }

    fn deflated(name: &str, bytes: &[u8]) -> Made {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).expect("compresses");
        let packed = encoder.finish().expect("compresses");
        Made { method: 8, stored: packed, ..stored(name, bytes) }
    }

    fn le(fields: &[(u64, usize)]) -> Vec<u8> {
        fields.iter().flat_map(|&(value, width)| value.to_le_bytes()[..width].to_vec()).collect()
    }

    fn common(made: &Made) -> Vec<u8> {
        let sizes = [(u64::from(made.crc), 4), (made.stored.len() as u64, 4), (u64::from(made.size), 4)];
        let [crc, packed, size] = sizes;
        let name = (made.name.len() as u64, 2);
        le(&[
            (20, 2),
            (u64::from(made.flags), 2),
            (u64::from(made.method), 2),
            (0, 4),
            crc,
            packed,
            size,
            name,
        ])
    }

    fn local(made: &Made) -> Vec<u8> {
        [&le(&[(LOCAL.into(), 4)])[..], &common(made), &le(&[(0, 2)]), &made.name, &made.stored].concat()
    }

    fn central(made: &Made, at: usize) -> Vec<u8> {
        let rest = le(&[(0, 2), (0, 2), (0, 2), (0, 6), (at as u64, 4)]);
        [&le(&[(CENTRAL.into(), 4), (20, 2)])[..], &common(made), &rest, &made.name].concat()
    }

    fn ended(mut bytes: Vec<u8>, centrals: &[Vec<u8>], comment: &[u8]) -> Vec<u8> {
        let (start, count, directory) = (bytes.len() as u64, centrals.len() as u64, centrals.concat());
        let size = (directory.len() as u64, 4);
        bytes.extend_from_slice(&directory);
        let length = (comment.len() as u64, 2);
        bytes.extend(le(&[(END.into(), 4), (0, 4), (count, 2), (count, 2), size, (start, 4), length]));
        bytes.extend_from_slice(comment);
        bytes
    }

    fn archive(all: &[Made]) -> Vec<u8> {
        let (mut bytes, mut centrals) = (Vec::new(), Vec::new());
        for made in all {
            centrals.push(central(made, bytes.len()));
            bytes.extend(local(made));
        }
        ended(bytes, &centrals, b"")
    }

    fn opened(bytes: &[u8]) -> (tempfile::TempDir, Arc<OpenFile>) {
        let folder = tempfile::tempdir().expect("folder");
        let path = put(folder.path(), "a.zip", bytes);
        let file = OpenFile::open(&path).expect("opens");
        (folder, file)
    }

    fn read(bytes: &[u8]) -> Result<Vec<Entry>, Errors> {
        entries(&opened(bytes).1)
    }

    #[track_caller]
    fn refused(bytes: &[u8], said: &str) {
        let errors = read(bytes).expect_err(said);
        let text = format!("{:?}", errors.diagnostics());
        assert!(text.contains(said), "`{said}` is not in {text}");
        assert!(errors.diagnostics().iter().all(|diagnostic| diagnostic.code == "format/zip"), "{text}");
    }

    fn two() -> Vec<u8> {
        archive(&[stored("a/b.npy", b"hello"), deflated("c", &[7; 5000])])
    }

    fn extracted(file: &Arc<OpenFile>, entry: &Entry) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        extract(file, entry, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn entries_are_found_and_extracted() {
        let (_folder, file) = opened(&two());
        let all = entries(&file).expect("reads");
        let found: Vec<(&str, u64, u64, bool)> =
            all.iter().map(|entry| (entry.name.as_str(), entry.start, entry.size, entry.deflated)).collect();
        assert_eq!(found, [("a/b.npy", 37, 5, false), ("c", 73, 5000, true)]);
        assert_eq!(file.bytes(all[0].start, 5).expect("reads"), b"hello");
        assert_eq!(extracted(&file, &all[0]).expect("reads"), b"hello");
        assert_eq!(extracted(&file, &all[1]).expect("reads"), [7; 5000]);
        assert_eq!(bytes(&file, &all[0], 5).expect("reads"), b"hello");
        assert!(bytes(&file, &all[0], 4).is_err());
        assert_eq!(read(&archive(&[])), Ok(Vec::new()));
    }

    #[test]
    fn the_comment_may_hold_anything() {
        let made = stored("a", b"1");
        let with = |text: &[u8]| ended(local(&made), &[central(&made, 0)], text);
        for text in [&b"short"[..], &[b'x'; 65535], b"", b"PK\x05\x06"] {
            let (_folder, file) = opened(&with(text));
            let found = (entries(&file).expect("reads").len(), comment(&file).expect("reads"));
            assert_eq!(found, (1, text.to_vec()));
        }
        refused(&with(&archive(&[])), "ends in two ways");
        refused(&[two(), vec![0]].concat(), "is not there");
    }

    #[test]
    fn what_is_read_is_what_was_packed() {
        let one = |change: &dyn Fn(&mut Entry)| {
            let (_folder, file) = opened(&two());
            let mut all = entries(&file).expect("reads");
            all.iter_mut().for_each(change);
            let errors: Vec<String> =
                all.iter().map(|entry| extracted(&file, entry).expect_err("fails").to_string()).collect();
            errors
        };
        for (change, said) in [
            (&(|entry: &mut Entry| entry.crc ^= 1) as &dyn Fn(&mut Entry), "is damaged"),
            (&|entry| entry.size -= 1, "more bytes come out of"),
            (&|entry| entry.size += 1, "ends 1 bytes early"),
        ] {
            let errors = one(change);
            assert!(errors.iter().all(|error| error.contains(said)), "{errors:?}");
        }
        let errors = one(&|entry| entry.stored -= 1);
        assert_eq!(errors.len(), 2, "{errors:?}");
    }

    #[test]
    fn key_13_what_two_readers_could_read_in_two_ways() {
        let pickle = stored("archive/data.pkl", b"one");
        refused(
            &archive(&[pickle.clone(), stored("archive/data.pkl", b"two")]),
            "are named `archive/data.pkl`",
        );
        let flagged = Made { flags: 1, ..pickle.clone() };
        refused(
            &archive(std::slice::from_ref(&flagged)),
            "`archive/data.pkl` of the zip archive is encrypted",
        );
        // Only in one of the two headers.
        refused(&ended(local(&flagged), &[central(&pickle, 0)], b""), "is encrypted");
        refused(&ended(local(&pickle), &[central(&flagged, 0)], b""), "is encrypted");
        let bomb = Made { size: 10_000, ..deflated("archive/data/0", &[0; 5]) };
        refused(&archive(&[bomb]), "which is not possible");
        refused(&archive(&[Made { size: 4, ..pickle.clone() }]), "which is not possible");
        for other in [
            Made { name: b"archive/data.pkL".to_vec(), ..pickle.clone() },
            Made { crc: 1, ..pickle.clone() },
            Made { size: 2, ..pickle.clone() },
            Made { method: 8, ..pickle.clone() },
            Made { stored: b"on".to_vec(), ..pickle.clone() },
        ] {
            refused(&ended(local(&pickle), &[central(&other, 0)], b""), "another in the directory");
        }
    }

    #[test]
    fn entries_do_not_share_bytes() {
        let inner = stored("inner", b"1");
        let outer = stored("outer", &local(&inner));
        let at = local(&outer).len() - local(&inner).len();
        let bytes = ended(local(&outer), &[central(&outer, 0), central(&inner, at)], b"");
        refused(&bytes, "`outer` and `inner` of the zip archive overlap");
        assert!(read(&ended(local(&outer), &[central(&outer, 0)], b"")).is_ok());
        // Data that reach into the directory.
        let long = Made { stored: b"12345678".to_vec(), size: 8, ..inner.clone() };
        let short = local(&long)[..local(&long).len() - 4].to_vec();
        refused(&ended(short, &[central(&long, 0)], b""), "would take 8 bytes at 35, but the data end at 39");
        refused(&ended(local(&inner), &[central(&inner, 7)], b""), "would begin at 7");
        refused(&ended(local(&inner), &[central(&inner, 1)], b""), "no local header at 1");
    }

    #[test]
    fn several_archives_in_one_file_are_not_one() {
        let several = |bytes: &[u8]| {
            let errors = read(bytes).expect_err("is refused");
            let codes: Vec<&str> =
                errors.diagnostics().iter().map(|diagnostic| diagnostic.code.as_str()).collect();
            assert_eq!(codes, ["format/several-archives"]);
        };
        let one = archive(&[stored("data.pkl", b"ab")]);
        let other = archive(&[stored("data.pkl", b"cd")]);
        // Of one length, so that the places of the last fit the first.
        several(&[&one[..], &other].concat());
        several(&[&one[..], &other, &one].concat());
        // With the places of the whole file, as `zip -A` writes them.
        let last = stored("data.pkl", b"cd");
        let moved = [&one[..], &local(&last)].concat();
        several(&ended(moved, &[central(&last, one.len())], b""));
        let first = stored("a", b"ab");
        let both = [&local(&first)[..], &one, &local(&last)].concat();
        let at = both.len() - local(&last).len();
        several(&ended(both, &[central(&first, 0), central(&last, at)], b""));
        // An archive that is an entry is data.
        assert!(read(&archive(&[stored("a.zip", &one), stored("b", b"x")])).is_ok());
    }

    #[test]
    fn sizes_may_follow_the_data() {
        let made = Made { flags: FOLLOWS, ..stored("a", b"12") };
        let empty = Made { crc: 0, size: 0, ..made.clone() };
        let mut first = local(&empty);
        first[18..22].fill(0);
        let bytes = ended(first.clone(), &[central(&made, 0)], b"");
        assert_eq!(read(&bytes).expect("reads")[0].size, 2);
        first[6..8].fill(0);
        refused(&ended(first, &[central(&made, 0)], b""), "another in the directory");
    }

    #[test]
    fn the_directory_is_checked_before_it_is_read() {
        let end = two().len() - 22;
        let patched = |at: usize, bytes: &[u8]| {
            let mut all = two();
            all[end + at..end + at + bytes.len()].copy_from_slice(bytes);
            all
        };
        refused(&patched(4, &[1]), "several disks");
        refused(&patched(8, &[1]), "several disks");
        refused(&patched(8, &[0xff, 0xff, 0xff, 0xff]), "would have 65535 entries");
        refused(&patched(8, &[3, 0, 3, 0]), "would have 3 entries");
        refused(&patched(8, &[1, 0, 1, 0]), "has 47 bytes too many");
        refused(&patched(12, &[0xff; 4]), "would have 2 entries in 4294967295 bytes");
        refused(&patched(16, &[0xff; 4]), "at 4294967295");
        refused(&patched(0, &[0]), "is not there");
    }

    #[test]
    fn odd_names() {
        let named = |name: &[u8]| read(&archive(&[Made { name: name.to_vec(), ..stored("", b"1") }]));
        assert_eq!(named("ä/日本".as_bytes()).expect("reads")[0].name, "ä/日本");
        assert_eq!(named(b"\x84\xff\x80").expect("reads")[0].name, "ä\u{a0}Ç");
        assert_eq!(CP437.chars().count(), 128);
        let errors = named(b"a\x1b[31m\0").expect_err("refused");
        let message = &errors.diagnostics()[0].message;
        assert!(message.contains("a\\u{1b}[31m") && message.contains("NUL"), "{message}");
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_refused() {
        let whole = two();
        for length in 0..whole.len() {
            let (_folder, file) = opened(&whole[..length]);
            assert!(entries(&file).is_err(), "{length}");
        }
    }

    #[test]
    fn no_changed_byte_leads_out_of_the_file() {
        let whole = two();
        let folder = tempfile::tempdir().expect("folder");
        for at in 0..whole.len() {
            for change in [0xff, 0x01, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                let file = OpenFile::open(&put(folder.path(), "a", &bytes)).expect("opens");
                for entry in entries(&file).unwrap_or_default() {
                    assert!(entry.start + entry.stored <= file.size);
                    let _ = extracted(&file, &entry);
                }
            }
        }
    }

    #[test]
    fn many_wrong_entries_are_not_all_told() {
        let all: Vec<Made> = (0..1000).map(|n| Made { size: 4, ..stored(&n.to_string(), b"1") }).collect();
        let errors = read(&archive(&all)).expect_err("refused");
        assert_eq!(errors.diagnostics().len(), MOST_WRONG);
        assert_eq!(errors.diagnostics()[0].file.as_deref().and_then(Path::file_name), Some("a.zip".as_ref()));
    }
}
