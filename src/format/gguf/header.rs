//! What stands before the data of a GGUF file: metadata and the table of tensors.

use std::collections::HashSet;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Number, Value};

use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::format::facts::LONGEST_LIST;
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

/// The types of metadata that are told apart by more than their width (`gguf_metadata_value_type`, the same text).
const WORD: u32 = 4;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const F64: u32 = 12;

/// A metadata entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    /// Its key.
    pub(super) key: String,
    /// All of its bytes in the file: key, type and value.
    pub(super) bytes: Range<u64>,
    /// A number, truth value or string as text; `None` for an array, and for a string that is no text or very long.
    pub(super) text: Option<String>,
    /// The same as JSON, an array of a few items too.
    pub(super) value: Option<Value>,
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
    let mut keys: HashSet<String> = HashSet::default();
    let mut fields = Vec::new();
    for _ in 0..entries {
        let field = input.field()?;
        if !keys.insert(field.key.clone()) {
            let message = format!("the metadata holds `{}` twice", shown(&field.key));
            out.push(Diagnostic::error(FormatCode::DuplicateKey, message).file(&file.path).help(DAMAGED));
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

/// Returns a metadata value of that type as JSON; the decimal digits of a number are those that tell it from others of its
/// own precision. JSON has no infinity.
fn json(kind: u32, text: &str) -> Option<Value> {
    match kind {
        STRING => Some(text.into()),
        BOOL => Some((text == "true").into()),
        F32 | F64 => text.parse().ok().and_then(Number::from_f64).map(Value::Number),
        _ => text.parse().ok().map(Value::Number),
    }
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
        Diagnostic::error(FormatCode::BadHeader, message).file(self.path).help(DAMAGED)
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
        Err(Diagnostic::error(FormatCode::Truncated, message).file(self.path).help(DAMAGED).into())
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
                Err(Diagnostic::error(FormatCode::Version, message).file(self.path).help(help).into())
            }
        }
    }

    /// Reads a number of things of which each takes at least that many bytes of the file.
    fn count(&mut self, things: &str, least: u64) -> Result<u64, Errors> {
        let count = self.u64(&format!("the number of {things}"))?;
        let left = self.end - self.position;
        if count > left / least {
            let message = format!("the header speaks of {count} {things}, the file ends after {left} bytes");
            return Err(Diagnostic::error(FormatCode::Truncated, message)
                .file(self.path)
                .help(DAMAGED)
                .into());
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
        let (text, value) = if kind == ARRAY {
            (None, self.items(&what, 1)?)
        } else {
            let text = self.scalar(kind, &what)?;
            let value = text.as_deref().and_then(|text| json(kind, text));
            (text, value)
        };
        let word = text.as_deref().filter(|_| kind == WORD).and_then(|text| text.parse().ok());
        Ok(Field { key, bytes: start..self.position, text, value, word })
    }

    /// Reads a number, a truth value or a string as text; nothing for a string that is no text or very long.
    fn scalar(&mut self, kind: u32, what: &str) -> Result<Option<String>, Errors> {
        Ok(Some(match kind {
            // The numbers are those of `gguf_metadata_value_type` (ggml-org/ggml, `docs/gguf.md`).
            0 => u8::from_le_bytes(self.array(what)?).to_string(),
            1 => i8::from_le_bytes(self.array(what)?).to_string(),
            2 => self.u16(what)?.to_string(),
            3 => self.u16(what)?.cast_signed().to_string(),
            WORD => self.u32(what)?.to_string(),
            5 => self.u32(what)?.cast_signed().to_string(),
            F32 => f32::from_bits(self.u32(what)?).to_string(),
            BOOL => (self.array::<1>(what)? != [0]).to_string(),
            STRING => {
                let length = self.u64(what)?;
                if length <= LONGEST_TEXT {
                    return Ok(String::from_utf8(self.bytes(length, what)?).ok());
                }
                self.skip(length, what)?;
                return Ok(None);
            }
            10 => self.u64(what)?.to_string(),
            11 => self.u64(what)?.cast_signed().to_string(),
            F64 => f64::from_bits(self.u64(what)?).to_string(),
            other => {
                return Err(self.bad(&format!("{what} is of the type {other}, which is not known")).into());
            }
        }))
    }

    fn u16(&mut self, what: &str) -> Result<u16, Errors> {
        let bytes = self.array(what)?;
        Ok(if self.big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    /// Reads an array's type, count and elements; of a long one nothing is kept.
    fn items(&mut self, what: &str, depth: u32) -> Result<Option<Value>, Errors> {
        if depth > DEEPEST {
            return Err(self.bad(&format!("{what} nests arrays more than {DEEPEST} deep")).into());
        }
        let kind = self.u32(what)?;
        let count = self.u64(what)?;
        let width: u64 = match kind {
            0 | 1 | BOOL => 1,
            2 | 3 => 2,
            WORD | 5 | F32 => 4,
            // Each takes at least the bytes of its length.
            STRING | ARRAY | 10 | 11 | F64 => 8,
            other => {
                return Err(self
                    .bad(&format!("{what} is an array of the type {other}, which is not known"))
                    .into());
            }
        };
        let length = count.saturating_mul(width);
        self.has(length, what)?;
        let is_kept = count <= LONGEST_LIST as u64;
        if !is_kept && !matches!(kind, STRING | ARRAY) {
            self.skip(length, what)?;
            return Ok(None);
        }
        let mut items = Vec::new();
        for _ in 0..count {
            let item = if kind == ARRAY {
                self.items(what, depth + 1)?
            } else if is_kept {
                self.scalar(kind, what)?.and_then(|text| json(kind, &text))
            } else {
                let length = self.u64(what)?;
                self.skip(length, what)?;
                None
            };
            if is_kept {
                items.push(item.unwrap_or(Value::Null));
            }
        }
        Ok(is_kept.then_some(Value::Array(items)))
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
