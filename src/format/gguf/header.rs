//! What stands before the data of a GGUF file: metadata and the table of tensors.

use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::diag::{Collector, Diagnostic, Errors};
use crate::format::store::{OpenFile, RangeReader};
use crate::format::{io_error, shown};

/// The metadata key of the alignment of the data in bytes (ggml-org/ggml, `docs/gguf.md`).
pub(super) const ALIGNMENT: &str = "general.alignment";
/// The alignment where nothing is said (the same text).
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
/// The metadata of one of several files: what all keys begin with, its number from 0, how many files and how many tensors
/// there are. (ggml-org/llama.cpp, `src/llama-arch.cpp`)
pub(super) const SPLIT: &str = "split.";
pub(super) const SPLIT_NUMBER: &str = "split.no";
pub(super) const SPLIT_COUNT: &str = "split.count";
pub(super) const SPLIT_TENSORS: &str = "split.tensors.count";
/// The most bytes of a metadata key (the same text).
pub(super) const LONGEST_KEY: u64 = 65_535;
/// The most bytes of a tensor's name that is read; ggml takes far fewer.
const LONGEST_NAME: u64 = 65_535;
/// The most dimensions that are read; ggml has 4, and the text says that this may change.
const MOST_DIMS: u32 = 8;
/// How deep arrays of metadata may be nested.
const DEEPEST: u32 = 8;
/// The most bytes of a string that becomes metadata of the catalog.
const LONGEST_TEXT: u64 = 1 << 20;

const DAMAGED: &str = "the file is damaged or was not written whole: fetch or write it again";

/// A metadata entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    /// Its key.
    pub(super) key: String,
    /// All of its bytes in the file: key, type and value.
    pub(super) bytes: Range<u64>,
    /// A number, truth value or string as text; `None` for an array, and for a string that is no text or very long.
    pub(super) text: Option<String>,
    /// The value, where it is a 32-bit unsigned integer.
    pub(super) word: Option<u32>,
}

/// An entry of the table of tensors, as it stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Info {
    /// Its name.
    pub(super) name: String,
    /// Its sizes, fastest dimension first.
    pub(super) sizes: Vec<u64>,
    /// The number of its type.
    pub(super) kind: u32,
    /// Where it begins in the data.
    pub(super) offset: u64,
}

/// All that stands before the data.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Header {
    /// Whether numbers and data are big-endian.
    pub(super) big_endian: bool,
    /// The metadata, in order.
    pub(super) fields: Vec<Field>,
    /// The tensors, in order.
    pub(super) infos: Vec<Info>,
    /// The alignment in bytes, a power of two.
    pub(super) alignment: u64,
    /// Where the data begins.
    pub(super) data_start: u64,
}

/// Reads what stands before the data; a key that stands twice goes to the collector.
///
/// # Errors
/// Returns `format/bad-header` and `format/truncated` for what cannot be read on from, and `format/version` for a version
/// that is not read.
pub(super) fn read(file: &Arc<OpenFile>, out: &mut Collector) -> Result<Header, Errors> {
    let mut input = Input {
        reader: BufReader::with_capacity(1 << 16, file.range(0, file.size)),
        path: &file.path,
        position: 0,
        end: file.size,
        big_endian: false,
    };
    if input.array::<4>("the magic")? != *b"GGUF" {
        return Err(input.bad("the file does not begin with `GGUF`").into());
    }
    input.version()?;
    // A tensor takes at least 24 bytes of the table, an entry of metadata 13.
    let tensors = input.count("tensors", 24)?;
    let entries = input.count("entries of metadata", 13)?;
    let mut keys: FxHashSet<String> = FxHashSet::default();
    let mut fields = Vec::new();
    for _ in 0..entries {
        let field = input.field()?;
        if !keys.insert(field.key.clone()) {
            let message = format!("the metadata holds `{}` twice", shown(&field.key));
            out.push(Diagnostic::error("format/duplicate-key", message).file(&file.path).help(DAMAGED));
        }
        fields.push(field);
    }
    let mut infos = Vec::new();
    for _ in 0..tensors {
        infos.push(input.info()?);
    }
    let alignment = match fields.iter().find(|field| field.key == ALIGNMENT) {
        None => DEFAULT_ALIGNMENT,
        Some(field) => match field.word {
            Some(word) if word.is_power_of_two() => u64::from(word),
            _ => {
                let message = format!("`{ALIGNMENT}` is no power of two in a 32-bit unsigned integer");
                let found = field.text.clone().unwrap_or_else(|| "an array".to_owned());
                return Err(input.bad(&message).found(shown(&found)).into());
            }
        },
    };
    // Both are far below 2⁶³: the position is in the file, the alignment below 2³².
    let data_start = input.position.next_multiple_of(alignment);
    Ok(Header { big_endian: input.big_endian, fields, infos, alignment, data_start })
}

/// The file from its start, with a position that stays inside it.
struct Input<'a> {
    reader: BufReader<RangeReader>,
    path: &'a Path,
    position: u64,
    end: u64,
    big_endian: bool,
}

impl Input<'_> {
    fn bad(&self, message: &str) -> Diagnostic {
        Diagnostic::error("format/bad-header", message).file(self.path).help(DAMAGED)
    }

    /// Makes sure that so many bytes are left.
    fn has(&self, length: u64, what: &str) -> Result<(), Errors> {
        let left = self.end - self.position;
        if length <= left {
            return Ok(());
        }
        let message = format!(
            "the file ends inside {what}: {length} bytes from {} on are needed, {left} are there",
            self.position
        );
        Err(Diagnostic::error("format/truncated", message).file(self.path).help(DAMAGED).into())
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Errors> {
        self.has(N as u64, what)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|error| io_error(self.path, "read its header", &error))?;
        self.position += N as u64;
        Ok(bytes)
    }

    /// Reads bytes; `length` was bounded by the caller.
    fn bytes(&mut self, length: u64, what: &str) -> Result<Vec<u8>, Errors> {
        self.has(length, what)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.reader.read_exact(&mut bytes).map_err(|error| io_error(self.path, "read its header", &error))?;
        self.position += length;
        Ok(bytes)
    }

    fn skip(&mut self, length: u64, what: &str) -> Result<(), Errors> {
        self.has(length, what)?;
        // A length inside a file fits.
        let by = i64::try_from(length).unwrap_or(0);
        self.reader.seek_relative(by).map_err(|error| io_error(self.path, "read its header", &error))?;
        self.position += length;
        Ok(())
    }

    fn u32(&mut self, what: &str) -> Result<u32, Errors> {
        let bytes = self.array(what)?;
        Ok(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn u64(&mut self, what: &str) -> Result<u64, Errors> {
        let bytes = self.array(what)?;
        Ok(if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }

    /// Reads the version and learns the byte order from it: a big-endian file's low half is zero
    /// (ggml-org/ggml, `src/gguf.cpp`).
    fn version(&mut self) -> Result<(), Errors> {
        let bytes = self.array("the version")?;
        let little = u32::from_le_bytes(bytes);
        self.big_endian = little & 0xffff == 0;
        match if self.big_endian { u32::from_be_bytes(bytes) } else { little } {
            2 | 3 => Ok(()),
            version => {
                let message = format!("it is of GGUF version {version}; versions 2 and 3 are read");
                let help = "convert it with the tools of llama.cpp";
                Err(Diagnostic::error("format/version", message).file(self.path).help(help).into())
            }
        }
    }

    /// Reads a number of things of which each takes at least that many bytes of the file.
    fn count(&mut self, things: &str, least: u64) -> Result<u64, Errors> {
        let count = self.u64(&format!("the number of {things}"))?;
        let left = self.end - self.position;
        if count > left / least {
            let message = format!("the header speaks of {count} {things}, the file ends after {left} bytes");
            return Err(Diagnostic::error("format/truncated", message).file(self.path).help(DAMAGED).into());
        }
        Ok(count)
    }

    fn text(&mut self, longest: u64, what: &str) -> Result<String, Errors> {
        let length = self.u64(what)?;
        if length > longest {
            let message = format!("{what} has {length} bytes, over the limit of {longest}");
            return Err(self.bad(&message).into());
        }
        let bytes = self.bytes(length, what)?;
        String::from_utf8(bytes).map_err(|error| {
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            self.bad(&format!("{what} is no UTF-8 text")).found(shown(&text)).into()
        })
    }

    fn field(&mut self) -> Result<Field, Errors> {
        let start = self.position;
        let key = self.text(LONGEST_KEY, "a key of the metadata")?;
        let what = format!("the metadata entry `{}`", shown(&key));
        let kind = self.u32(&what)?;
        let mut word = None;
        let text = match kind {
            // The numbers are those of `gguf_metadata_value_type` (ggml-org/ggml, `docs/gguf.md`).
            0 => Some(u8::from_le_bytes(self.array(&what)?).to_string()),
            1 => Some(i8::from_le_bytes(self.array(&what)?).to_string()),
            2 => Some(self.u16(&what)?.to_string()),
            3 => Some(self.u16(&what)?.cast_signed().to_string()),
            4 => {
                let value = self.u32(&what)?;
                word = Some(value);
                Some(value.to_string())
            }
            5 => Some(self.u32(&what)?.cast_signed().to_string()),
            6 => Some(f32::from_bits(self.u32(&what)?).to_string()),
            7 => Some((self.array::<1>(&what)? != [0]).to_string()),
            8 => {
                let length = self.u64(&what)?;
                if length <= LONGEST_TEXT {
                    String::from_utf8(self.bytes(length, &what)?).ok()
                } else {
                    self.skip(length, &what)?;
                    None
                }
            }
            9 => {
                self.skip_array(&what, 1)?;
                None
            }
            10 => Some(self.u64(&what)?.to_string()),
            11 => Some(self.u64(&what)?.cast_signed().to_string()),
            12 => Some(f64::from_bits(self.u64(&what)?).to_string()),
            other => {
                return Err(self.bad(&format!("{what} is of the type {other}, which is not known")).into());
            }
        };
        Ok(Field { key, bytes: start..self.position, text, word })
    }

    fn u16(&mut self, what: &str) -> Result<u16, Errors> {
        let bytes = self.array(what)?;
        Ok(if self.big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    /// Passes over an array's type, count and elements.
    fn skip_array(&mut self, what: &str, depth: u32) -> Result<(), Errors> {
        if depth > DEEPEST {
            return Err(self.bad(&format!("{what} nests arrays more than {DEEPEST} deep")).into());
        }
        let kind = self.u32(what)?;
        let count = self.u64(what)?;
        let width: u64 = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 | 9 => {
                // Each takes at least the bytes of its length.
                self.has(count.saturating_mul(8), what)?;
                for _ in 0..count {
                    if kind == 9 {
                        self.skip_array(what, depth + 1)?;
                    } else {
                        let length = self.u64(what)?;
                        self.skip(length, what)?;
                    }
                }
                return Ok(());
            }
            other => {
                return Err(self
                    .bad(&format!("{what} is an array of the type {other}, which is not known"))
                    .into());
            }
        };
        self.skip(count.saturating_mul(width), what)
    }

    fn info(&mut self) -> Result<Info, Errors> {
        let name = self.text(LONGEST_NAME, "a tensor's name")?;
        let what = format!("the entry of the tensor `{}`", shown(&name));
        let dims = self.u32(&what)?;
        if dims > MOST_DIMS {
            let message = format!("a tensor has {dims} dimensions, over the limit of {MOST_DIMS}");
            return Err(self.bad(&message).tensor(name).into());
        }
        let sizes = (0..dims).map(|_| self.u64(&what)).collect::<Result<Vec<u64>, Errors>>()?;
        let kind = self.u32(&what)?;
        let offset = self.u64(&what)?;
        Ok(Info { name, sizes, kind, offset })
    }
}
