//! Walking a file from marker to marker: what it holds and where, with the bytes of arrays passed over.

use std::collections::HashSet;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use rmp::Marker;

use super::{ARRAY, COMPLEX, DEEPEST, SCALAR, types};
use crate::diag::{Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;
use crate::format::store::{OpenFile, RangeReader};
use crate::format::{io_error, shown};

/// The most bytes that the names on the way to all leaves may take; a deep tree repeats them.
const LONGEST_NAMES: usize = 100_000_000;
/// The most bytes of one name.
pub(super) const LONGEST_NAME: u64 = 65_535;
/// The most dimensions, NumPy's limit (numpy/numpy, `numpy/_core/include/numpy/ndarraytypes.h`, NPY_MAXDIMS).
const MOST_DIMS: u64 = 64;

const DAMAGED: &str = "the file is damaged or was not written whole: fetch or write it again";

/// An array, or what is wrong with it.
pub(super) type Found = Result<Array, Box<Diagnostic>>;

/// An array as it lies in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Array {
    /// The type of its elements.
    pub(super) dtype: Dtype,
    /// Its shape.
    pub(super) shape: Vec<u64>,
    /// Where its bytes begin.
    pub(super) begin: u64,
    /// How many there are.
    pub(super) length: u64,
}

/// Something at the end of a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// An array.
    Array(Found),
    /// A whole number that is not negative.
    Number(u64),
    /// Anything else, in words.
    Other(String),
}

/// Returns everything at the ends of all paths, in the order of the file.
///
/// # Errors
/// Returns `format/bad-header`, `format/truncated`, `format/duplicate-key` and `format/trailing-bytes` for what cannot be
/// read on from.
pub(super) fn walk(file: &Arc<OpenFile>) -> Result<Vec<(Vec<String>, Value)>, Errors> {
    let reader = BufReader::with_capacity(1 << 16, file.range(0, file.size));
    let mut walk = Walk {
        input: Input { reader, path: &file.path, position: 0, end: file.size },
        open: Vec::new(),
        path: Vec::new(),
        leaves: Vec::new(),
        names: 0,
    };
    walk.all()?;
    Ok(walk.leaves)
}

/// A map or a list that is not at its end.
struct Open {
    /// The entries that follow.
    left: u64,
    kind: Kind,
}

enum Kind {
    /// The names that were seen.
    Map(HashSet<String>),
    List {
        /// How many things it has.
        count: u64,
        /// How many leaves there were before it, and whether an array is among those since.
        leaves: usize,
        has_array: bool,
    },
}

struct Walk<'a> {
    input: Input<'a>,
    open: Vec<Open>,
    /// The names of the entries that are being read, one for each open map or list.
    path: Vec<String>,
    leaves: Vec<(Vec<String>, Value)>,
    names: usize,
}

impl Walk<'_> {
    fn all(&mut self) -> Result<(), Errors> {
        let top = self.input.marker()?;
        if !matches!(top, Marker::FixMap(_) | Marker::Map16 | Marker::Map32) {
            return Err(self.input.bad("the file is no map of names").found(format!("{top:?}")).into());
        }
        self.value(top)?;
        while let Some(open) = self.open.last_mut() {
            let Some(left) = open.left.checked_sub(1) else {
                self.close()?;
                continue;
            };
            open.left = left;
            let name = match &mut open.kind {
                Kind::Map(_) => None,
                Kind::List { count, .. } => Some((*count - left - 1).to_string()),
            };
            let name = match name {
                Some(name) => name,
                None => self.name()?,
            };
            self.path.push(name);
            let depth = self.open.len();
            let marker = self.input.marker()?;
            self.value(marker)?;
            if self.open.len() == depth {
                self.path.pop();
            }
        }
        let left = self.input.end - self.input.position;
        if left > 0 {
            let message = format!("{left} bytes follow the end of the map");
            let diagnostic = Diagnostic::error(FormatCode::TrailingBytes, message).file(self.input.path);
            return Err(diagnostic.help(DAMAGED).into());
        }
        Ok(())
    }

    /// Ends the innermost map or list.
    fn close(&mut self) -> Result<(), Errors> {
        if let Some(Open { kind: Kind::List { count, leaves, has_array: false }, .. }) = self.open.pop() {
            self.leaves.truncate(leaves);
            self.leaf(Value::Other(format!("a list of {count} things")))?;
        }
        self.path.pop();
        Ok(())
    }

    /// Reads the name of a map's next entry.
    fn name(&mut self) -> Result<String, Errors> {
        let marker = self.input.marker()?;
        let name = match self.input.whole(marker)? {
            Some(number) => number.to_string(),
            None => match self.input.text_length(marker)? {
                Some(length) => self.input.text(length, LONGEST_NAME, "a name")?,
                None => {
                    let message = "a map has a key that is neither a text nor a whole number";
                    return Err(self
                        .input
                        .bad(message)
                        .found(format!("{marker:?} in `{}`", self.shown()))
                        .into());
                }
            },
        };
        if let Some(Open { kind: Kind::Map(seen), .. }) = self.open.last_mut()
            && !seen.insert(name.clone())
        {
            let message = format!("a map holds `{}` twice", shown(&name));
            let diagnostic = Diagnostic::error(FormatCode::DuplicateKey, message).file(self.input.path);
            return Err(diagnostic.found(format!("in `{}`", self.shown())).help(DAMAGED).into());
        }
        Ok(name)
    }

    fn shown(&self) -> String {
        shown(&self.path.join("/"))
    }

    fn leaf(&mut self, value: Value) -> Result<(), Errors> {
        if matches!(value, Value::Array(_)) {
            for open in &mut self.open {
                if let Kind::List { has_array, .. } = &mut open.kind {
                    *has_array = true;
                }
            }
        } else if matches!(self.open.last(), Some(Open { kind: Kind::List { .. }, .. })) {
            // The list stands for it.
            return Ok(());
        }
        self.names += self.path.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>();
        if self.names > LONGEST_NAMES {
            let message = format!("the names of its arrays take more than {LONGEST_NAMES} bytes");
            return Err(Diagnostic::error(FormatCode::HeaderTooLarge, message).file(self.input.path).into());
        }
        self.leaves.push((self.path.clone(), value));
        Ok(())
    }

    /// Reads what a marker begins: opens a map or a list, adds a leaf for anything else.
    fn value(&mut self, marker: Marker) -> Result<(), Errors> {
        if let Some(number) = self.input.whole(marker)? {
            return self.leaf(Value::Number(number));
        }
        if let Some(length) = self.input.text_length(marker)? {
            self.input.skip(length)?;
            return self.leaf(Value::Other("a text".to_owned()));
        }
        if let Some(length) = self.input.bytes_length(marker)? {
            self.input.skip(length)?;
            return self.leaf(Value::Other(format!("{length} bytes")));
        }
        if let Some(length) = self.input.extension_length(marker)? {
            return self.extension(length);
        }
        let other = match marker {
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                let left = match marker {
                    Marker::FixMap(count) => u64::from(count),
                    Marker::Map16 => self.input.number(2)?,
                    _ => self.input.number(4)?,
                };
                return self.open(left, 2, Kind::Map(HashSet::default()));
            }
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                let count = self.input.list_length(marker)?;
                let kind = Kind::List { count, leaves: self.leaves.len(), has_array: false };
                return self.open(count, 1, kind);
            }
            Marker::Null => "nothing",
            Marker::True | Marker::False => "a truth value",
            Marker::F32 | Marker::F64 => {
                self.input.skip(if marker == Marker::F32 { 4 } else { 8 })?;
                "a number"
            }
            Marker::FixNeg(_) => "a number",
            Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => {
                self.input.skip(match marker {
                    Marker::I8 => 1,
                    Marker::I16 => 2,
                    Marker::I32 => 4,
                    _ => 8,
                })?;
                "a number"
            }
            _ => {
                let message = format!("the byte before {} begins nothing in msgpack", self.input.position);
                return Err(self.input.bad(&message).into());
            }
        };
        self.leaf(Value::Other(other.to_owned()))
    }

    fn open(&mut self, left: u64, least: u64, kind: Kind) -> Result<(), Errors> {
        if self.open.len() >= DEEPEST {
            return Err(self.input.bad(&format!("maps are nested more than {DEEPEST} deep")).into());
        }
        self.input.has(left.saturating_mul(least))?;
        self.open.push(Open { left, kind });
        Ok(())
    }

    fn extension(&mut self, length: u64) -> Result<(), Errors> {
        let kind = self.input.array::<1>()?[0].cast_signed();
        self.input.has(length)?;
        let end = self.input.position + length;
        let value = match kind {
            ARRAY | SCALAR => {
                let path = self.path.join("/");
                Value::Array(self.input.packed_array(end, &path)?)
            }
            COMPLEX => Value::Other("a complex number".to_owned()),
            other => Value::Other(format!("an extension of type {other}")),
        };
        self.input.skip(end - self.input.position)?;
        self.leaf(value)
    }
}

/// The file from its start, with a position that stays inside it.
struct Input<'a> {
    reader: BufReader<RangeReader>,
    path: &'a Path,
    position: u64,
    end: u64,
}

impl Input<'_> {
    fn bad(&self, message: &str) -> Diagnostic {
        Diagnostic::error(FormatCode::BadHeader, message).file(self.path).help(DAMAGED)
    }

    /// Makes sure that so many bytes are left.
    fn has(&self, length: u64) -> Result<(), Errors> {
        let left = self.end - self.position;
        if length <= left {
            return Ok(());
        }
        let message =
            format!("the file ends too early: {length} bytes from {} on, {left} are there", self.position);
        Err(Diagnostic::error(FormatCode::Truncated, message).file(self.path).help(DAMAGED).into())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errors> {
        self.has(N as u64)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|error| io_error(self.path, "read it", &error))?;
        self.position += N as u64;
        Ok(bytes)
    }

    fn skip(&mut self, length: u64) -> Result<(), Errors> {
        self.has(length)?;
        // A length inside a file fits.
        let by = i64::try_from(length).unwrap_or(0);
        self.reader.seek_relative(by).map_err(|error| io_error(self.path, "read it", &error))?;
        self.position += length;
        Ok(())
    }

    fn marker(&mut self) -> Result<Marker, Errors> {
        Ok(Marker::from_u8(self.array::<1>()?[0]))
    }

    /// Reads a big-endian number of 1, 2, 4 or 8 bytes.
    fn number(&mut self, width: u8) -> Result<u64, Errors> {
        Ok(match width {
            1 => u64::from(self.array::<1>()?[0]),
            2 => u64::from(u16::from_be_bytes(self.array()?)),
            4 => u64::from(u32::from_be_bytes(self.array()?)),
            _ => u64::from_be_bytes(self.array()?),
        })
    }

    /// Reads the number that the marker begins, if it is whole and not negative.
    fn whole(&mut self, marker: Marker) -> Result<Option<u64>, Errors> {
        Ok(Some(match marker {
            Marker::FixPos(number) => u64::from(number),
            Marker::U8 => self.number(1)?,
            Marker::U16 => self.number(2)?,
            Marker::U32 => self.number(4)?,
            Marker::U64 => self.number(8)?,
            _ => return Ok(None),
        }))
    }

    /// Reads the length of the text that the marker begins, if it is one.
    fn text_length(&mut self, marker: Marker) -> Result<Option<u64>, Errors> {
        Ok(Some(match marker {
            Marker::FixStr(length) => u64::from(length),
            Marker::Str8 => self.number(1)?,
            Marker::Str16 => self.number(2)?,
            Marker::Str32 => self.number(4)?,
            _ => return Ok(None),
        }))
    }

    /// Reads the length of the bytes that the marker begins, if it is bytes.
    fn bytes_length(&mut self, marker: Marker) -> Result<Option<u64>, Errors> {
        Ok(Some(match marker {
            Marker::Bin8 => self.number(1)?,
            Marker::Bin16 => self.number(2)?,
            Marker::Bin32 => self.number(4)?,
            _ => return Ok(None),
        }))
    }

    /// Reads the length of the extension that the marker begins, if it is one; its type follows.
    fn extension_length(&mut self, marker: Marker) -> Result<Option<u64>, Errors> {
        Ok(Some(match marker {
            Marker::FixExt1 => 1,
            Marker::FixExt2 => 2,
            Marker::FixExt4 => 4,
            Marker::FixExt8 => 8,
            Marker::FixExt16 => 16,
            Marker::Ext8 => self.number(1)?,
            Marker::Ext16 => self.number(2)?,
            Marker::Ext32 => self.number(4)?,
            _ => return Ok(None),
        }))
    }

    /// Reads the length of the list that the marker begins; 0 for anything else.
    fn list_length(&mut self, marker: Marker) -> Result<u64, Errors> {
        match marker {
            Marker::FixArray(count) => Ok(u64::from(count)),
            Marker::Array16 => self.number(2),
            Marker::Array32 => self.number(4),
            _ => Ok(0),
        }
    }

    fn text(&mut self, length: u64, longest: u64, what: &str) -> Result<String, Errors> {
        if length > longest {
            let message = format!("{what} has {length} bytes, over the limit of {longest}");
            return Err(self.bad(&message).into());
        }
        self.has(length)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.reader.read_exact(&mut bytes).map_err(|error| io_error(self.path, "read it", &error))?;
        self.position += length;
        String::from_utf8(bytes).map_err(|error| {
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            self.bad(&format!("{what} is no UTF-8 text")).found(shown(&text)).into()
        })
    }

    /// Reads the list (shape, name of the type, bytes) of an array that ends at `end`, up to the bytes.
    fn packed_array(&mut self, end: u64, path: &str) -> Result<Found, Errors> {
        // What lies in the extension must not reach out of it.
        let file_end = std::mem::replace(&mut self.end, end);
        let read = self.array_parts();
        self.end = file_end;
        let (shape, name, length) = match read {
            Ok(parts) => parts,
            Err(errors) => {
                let text = errors.to_string();
                let message = "the array is not a list of its shape, the name of its type and its bytes";
                return Ok(Err(Box::new(self.bad(message).tensor(path).found(shown(&text)))));
            }
        };
        let fail = |code, message: String| {
            Ok(Err(Box::new(Diagnostic::error(code, message).file(self.path).tensor(path).help(DAMAGED))))
        };
        let Some(dtype) = types::dtype(&name) else {
            let message = format!("the type `{}` is not read", shown(&name));
            let diagnostic =
                Diagnostic::error(FormatCode::UnknownDtype, message).file(self.path).tensor(path);
            let help = "cast the array in Python and save it again";
            return Ok(Err(Box::new(diagnostic.expected(format!("one of {}", types::names())).help(help))));
        };
        // Strides grow past a zero too, so a zero must not hide the overflow of the other sizes.
        let product = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1)));
        let Some(product) = product else {
            return fail(
                FormatCode::ShapeOverflow,
                format!("the number of elements of {shape:?} overflows 64 bits"),
            );
        };
        let elements = if shape.contains(&0) { 0 } else { product };
        match dtype.byte_len(elements) {
            Some(needed) if needed == length => Ok(Ok(Array { dtype, shape, begin: end - length, length })),
            Some(needed) => fail(
                FormatCode::SizeMismatch,
                format!("it has {length} bytes, but its shape {shape:?} and type {dtype} need {needed}"),
            ),
            None => {
                fail(FormatCode::ShapeOverflow, format!("the size of {shape:?} {dtype} overflows 64 bits"))
            }
        }
    }

    /// Reads an array's shape, the name of its type and the length of its bytes, which must end where the input ends.
    fn array_parts(&mut self) -> Result<(Vec<u64>, String, u64), Errors> {
        if self.marker()? != Marker::FixArray(3) {
            return Err(self.bad("it is no list of three").into());
        }
        let marker = self.marker()?;
        let dims = self.list_length(marker)?;
        if !matches!(marker, Marker::FixArray(_) | Marker::Array16 | Marker::Array32) || dims > MOST_DIMS {
            return Err(self.bad("its shape is no list of sizes").into());
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            let marker = self.marker()?;
            match self.whole(marker)? {
                Some(size) => shape.push(size),
                None => return Err(self.bad("its shape holds something else than a size").into()),
            }
        }
        let marker = self.marker()?;
        let length = match self.text_length(marker)? {
            Some(length) => Some(length),
            None => self.bytes_length(marker)?,
        };
        let Some(length) = length else { return Err(self.bad("its type is no name").into()) };
        let name = self.text(length, 64, "its type")?;
        let marker = self.marker()?;
        // Before msgpack had a type for bytes they were written as a text.
        let length = match self.bytes_length(marker)? {
            Some(length) => Some(length),
            None => self.text_length(marker)?,
        };
        match length {
            Some(length) if length == self.end - self.position => Ok((shape, name, length)),
            Some(length) => {
                let left = self.end - self.position;
                Err(self.bad(&format!("it has {length} bytes of data in a place for {left}")).into())
            }
            None => Err(self.bad("its data is no bytes").into()),
        }
    }
}
