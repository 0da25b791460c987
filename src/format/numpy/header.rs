//! The header of an array: its type, its shape and the order of its elements.
//!
//! The format is that of numpy/numpy, `doc/neps/nep-0001-npy-format.rst`, versions 1.0, 2.0 and 3.0.

use std::io::{self, Read};

use super::literal::Literal;
use crate::catalog::row_major;
use crate::dtype::Dtype;
use crate::format::shown;

/// What every array begins with.
pub(super) const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header that is read, in bytes; NumPy itself refuses those over 10,000 unless it is told to trust them.
const LONGEST: u64 = 1 << 20;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The type of the elements.
    pub(super) kind: Kind,
    /// The shape, slowest dimension first.
    pub(super) shape: Vec<u64>,
    /// Whether the first dimension changes fastest.
    pub(super) fortran: bool,
    /// Where the elements begin, in bytes from the start.
    pub(super) start: u64,
}

/// The type of an array's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::format) enum Kind {
    /// One that has a name; `swapped` is the width in bytes of what is stored big-endian.
    Known { dtype: Dtype, swapped: Option<usize> },
    /// Raw bytes of that width, and how the header writes it.
    Void { width: u64, descr: String },
    /// Numbers of a type that is not held, as the header writes it.
    Unheld(String),
    /// Pickled Python objects.
    Object,
    /// No tensor: what it is, in words.
    Other(String),
}

impl Header {
    /// Reads the header of an array of `size` bytes; a message completes "the array …".
    ///
    /// # Errors
    /// Returns what is wrong with it, in words.
    pub(super) fn read(from: &mut dyn Read, size: u64) -> Result<Header, String> {
        let mut start = [0; 8];
        fill(from, &mut start)?;
        let [magic @ .., major, minor] = start;
        if &magic != MAGIC {
            return Err("does not begin as a NumPy array".to_owned());
        }
        let wide = match (major, minor) {
            (1, 0) => false,
            (2 | 3, 0) => true,
            _ => {
                return Err(format!(
                    "is of version {major}.{minor} of the format; 1.0, 2.0 and 3.0 are known"
                ));
            }
        };
        let mut length = [0; 4];
        let (used, before) = if wide { (&mut length[..], 12) } else { (&mut length[..2], 10) };
        fill(from, used)?;
        let length = u64::from(u32::from_le_bytes(length));
        if length > LONGEST || length > size.saturating_sub(before) {
            return Err(format!(
                "has a header of {length} bytes, more than it has or than the {LONGEST} that are read"
            ));
        }
        let mut text = Vec::new();
        from.take(length).read_to_end(&mut text).map_err(|error| unreadable(&error))?;
        if text.len() as u64 != length {
            return Err("ends inside its header".to_owned());
        }
        // Before version 3.0 the text is Latin-1, whose bytes are the first characters of Unicode.
        let text = if major == 3 {
            String::from_utf8(text).map_err(|_| "has a header that is not UTF-8".to_owned())?
        } else {
            text.into_iter().map(char::from).collect()
        };
        Header::parse(&text, before + length).ok_or_else(|| {
            format!(
                "has a header that is not a dict of descr, fortran_order and shape: `{}`",
                shown(text.trim())
            )
        })
    }

    fn parse(text: &str, start: u64) -> Option<Header> {
        let Literal::Dict(mut entries) = Literal::parse(text)? else { return None };
        // The order is free, but nothing may stand twice and nothing else may stand there.
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        if names != ["descr", "fortran_order", "shape"] {
            return None;
        }
        let mut values = entries.into_iter().map(|(_, value)| value);
        let (descr, fortran, shape) = (values.next()?, values.next()?, values.next()?);
        let (Literal::Bool(fortran), Literal::Many(shape)) = (fortran, shape) else { return None };
        let size = |item| if let Literal::Int(size) = item { Some(size) } else { None };
        let shape = shape.into_iter().map(size).collect::<Option<Vec<u64>>>()?;
        Some(Header { kind: Kind::of(&descr)?, shape, fortran, start })
    }

    /// Returns the bytes that the elements take at that width, or `None` where the count overflows.
    pub(super) fn bytes(&self, width: u64) -> Option<u64> {
        // Sizes of 0 are left out at first, so that no stride can overflow either.
        let product = self.shape.iter().try_fold(width, |product, &size| product.checked_mul(size.max(1)))?;
        Some(if self.shape.contains(&0) { 0 } else { product })
    }

    /// Returns the distances between neighbours in elements; [`Header::bytes`] has said that they do not overflow.
    pub(super) fn strides(&self) -> Vec<u64> {
        if !self.fortran {
            return row_major(&self.shape);
        }
        let reversed: Vec<u64> = self.shape.iter().rev().copied().collect();
        row_major(&reversed).into_iter().rev().collect()
    }
}

impl Kind {
    fn of(descr: &Literal) -> Option<Kind> {
        match descr {
            Literal::Text(text) => Some(Kind::of_text(text)),
            Literal::Many(_) => Some(Kind::Other("a structured array".to_owned())),
            _ => None,
        }
    }

    /// Returns what a type string says: byte order, kind, width.
    pub(in crate::format) fn of_text(text: &str) -> Kind {
        let big = text.starts_with('>');
        let bare = text.trim_start_matches(['<', '>', '=', '|']);
        let (letter, digits) = bare.split_at_checked(1).unwrap_or((bare, ""));
        let width: Option<u64> = digits.parse().ok();
        let dtype = match bare {
            "b1" => Dtype::Bool,
            "u1" => Dtype::U8,
            "i1" => Dtype::I8,
            "u2" => Dtype::U16,
            "i2" => Dtype::I16,
            "f2" => Dtype::F16,
            "u4" => Dtype::U32,
            "i4" => Dtype::I32,
            "f4" => Dtype::F32,
            "u8" => Dtype::U64,
            "i8" => Dtype::I64,
            "f8" => Dtype::F64,
            "c8" => Dtype::C64,
            _ => {
                let what = match (letter, width) {
                    ("O", _) => return Kind::Object,
                    // ml_dtypes gives 8-bit floats this name, which NumPy itself does not know.
                    ("f", Some(1)) => return Kind::Void { width: 1, descr: text.to_owned() },
                    ("V", Some(width @ (1 | 2))) => return Kind::Void { width, descr: text.to_owned() },
                    ("V", _) => format!("raw bytes, `{}`", shown(text)),
                    ("U", _) => "text".to_owned(),
                    ("S" | "a", _) => "byte strings".to_owned(),
                    ("M" | "m", _) => "dates".to_owned(),
                    _ => return Kind::Unheld(text.to_owned()),
                };
                return Kind::Other(what);
            }
        };
        // Both halves of a complex number are swapped by themselves.
        let element = if dtype == Dtype::C64 { 4 } else { (dtype.bits() / 8) as usize };
        Kind::Known { dtype, swapped: (big && element > 1).then_some(element) }
    }
}

fn fill(from: &mut dyn Read, buffer: &mut [u8]) -> Result<(), String> {
    from.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "ends inside its header".to_owned(),
        _ => unreadable(&error),
    })
}

fn unreadable(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}
