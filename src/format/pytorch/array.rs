//! NumPy's arrays and numbers in a pickle, whose elements stand in the pickle itself.
//!
//! Source: numpy/numpy, numpy/_core/src/multiarray/methods.c (`array_reduce`, `array_setstate`), scalartypes.c.src
//! (`gentype_reduce`), descriptor.c (`arraydescr_reduce`) and numpy/_core/numeric.py (`_frombuffer`).

use std::io::{self, Write};
use std::sync::Arc;

use super::archive::Swapper;
use super::element;
use super::value::{Heap, Node, Object, Value};
use crate::catalog::row_major;
use crate::diag::{Diagnostic, FormatCode};
use crate::dtype::Dtype;
use crate::format::numpy::Kind;
use crate::format::store::{Decode, Store};
use crate::format::{OpenOptions, shown};

/// The bytes that are read at once.
const BLOCK: u64 = 1 << 16;

/// An array, as the pickle describes it.
#[derive(Clone, Debug)]
pub(super) struct Array {
    /// The type of its elements.
    kind: Kind,
    /// Its shape.
    pub(super) shape: Vec<u64>,
    /// Whether the first dimension changes fastest.
    fortran: bool,
    /// Where its bytes are.
    bytes: Bytes,
}

/// Where an array's bytes are.
#[derive(Clone, Debug)]
enum Bytes {
    /// In the heap, copied.
    Kept(Arc<[u8]>),
    /// In the pickle: the position, the length there, and whether each byte is the character of that number, in UTF-8.
    Outside(u64, u64, bool),
    /// There are none: Python objects, whose kind says so.
    None,
}

/// An array that can be read.
pub(super) struct Placed {
    pub(super) dtype: Dtype,
    pub(super) strides: Vec<u64>,
    /// The bytes of its elements.
    pub(super) length: u64,
    /// Writes them.
    pub(super) decode: Decode,
}

/// How an array is made.
enum Made {
    /// `_reconstruct(class, shape, type)`, with a state of version, shape, type, order and bytes.
    State,
    /// `_frombuffer(bytes, type, shape, order)`.
    Buffer,
    /// `scalar(type, bytes)`.
    Scalar,
}

fn made(heap: &Heap, object: &Object) -> Option<Made> {
    match heap.global(object.callable)? {
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Some(Made::State),
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Some(Made::Buffer),
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Some(Made::Scalar),
        _ => None,
    }
}

/// Returns whether an object is an array or a number of NumPy that could be a tensor; texts, dates and records are not.
pub(super) fn is_array(heap: &Heap, object: &Object) -> bool {
    made(heap, object).is_some()
        // One that is damaged is no less a tensor.
        && !parts(heap, object).is_ok_and(|parts| matches!(kind(heap, parts.dtype), Some(Kind::Other(_))))
}

/// The parts of a description.
struct Parts {
    dtype: Value,
    shape: Vec<u64>,
    fortran: bool,
    bytes: Value,
}

fn parts(heap: &Heap, object: &Object) -> Result<Parts, Diagnostic> {
    let args = heap.sequence(object.args).unwrap_or_default();
    let (dtype, shape, fortran, bytes) = match (made(heap, object), args) {
        (Some(Made::Scalar), [dtype, bytes]) => (*dtype, None, false, *bytes),
        (Some(Made::Buffer), [bytes, dtype, shape, order]) => {
            (*dtype, Some(*shape), heap.str(*order) == Some("F"), *bytes)
        }
        (Some(Made::State), _) => match heap.sequence(object.state) {
            Some([_version, shape, dtype, fortran, bytes]) => {
                let fortran = matches!(fortran, Value::Bool(true) | Value::Int(1));
                (*dtype, Some(*shape), fortran, *bytes)
            }
            _ => return Err(bad("the state of a NumPy array has not five parts")),
        },
        _ => return Err(bad("a NumPy array is made of other arguments")),
    };
    let size = |value: &Value| match value {
        Value::Int(size) => u64::try_from(*size).ok(),
        _ => None,
    };
    let shape = match shape {
        None => Some(Vec::new()),
        Some(shape) => heap.sequence(shape).and_then(|sizes| sizes.iter().map(size).collect()),
    };
    let shape = shape.ok_or_else(|| bad("the sizes of a NumPy array are no natural numbers"))?;
    Ok(Parts { dtype, shape, fortran, bytes })
}

/// Returns what the type of an array's elements is: `dtype(code, …)` with a state of version, order, ….
fn kind(heap: &Heap, dtype: Value) -> Option<Kind> {
    let object = heap.object(dtype)?;
    if heap.global(object.callable) != Some(("numpy", "dtype")) {
        return None;
    }
    let code = *heap.sequence(object.args)?.first()?;
    let state = heap.sequence(object.state).unwrap_or_default();
    // Version, order, subarray, names, fields, ….
    if state.iter().skip(2).take(3).any(|part| *part != Value::None) {
        return Some(Kind::Other("a structured array".to_owned()));
    }
    let order = state.get(1).and_then(|order| heap.str(*order)).unwrap_or("=");
    match heap.str(code) {
        Some(code) => Some(Kind::of_text(&format!("{order}{code}"))),
        // A type that another package adds, such as ml_dtypes' bfloat16.
        None => {
            let (_, name) = heap.global(code)?;
            let element = element::of_dtype(name).and_then(|element| Some((element.dtype?, element)));
            Some(match element {
                Some((dtype, element)) => {
                    let width = usize::try_from(element.swapped()).ok();
                    Kind::Known { dtype, swapped: width.filter(|&width| order == ">" && width > 1) }
                }
                None => Kind::Unheld(name.to_owned()),
            })
        }
    }
}

/// Reads an array's description.
///
/// # Errors
/// Returns `format/bad-tensor` for one that NumPy does not write; it names no tensor.
pub(super) fn array(heap: &Heap, object: &Object) -> Result<Array, Diagnostic> {
    let Parts { dtype, shape, fortran, bytes } = parts(heap, object)?;
    let kind = kind(heap, dtype).ok_or_else(|| bad("the type of a NumPy array is none of NumPy's"))?;
    let bytes = match kind {
        Kind::Known { .. } | Kind::Void { .. } => self::bytes(heap, bytes)?,
        Kind::Unheld(_) | Kind::Object | Kind::Other(_) => Bytes::None,
    };
    Ok(Array { kind, shape, fortran, bytes })
}

/// Finds bytes: as they are, or as protocols below 3 write them, `_codecs.encode(text, "latin1")`.
fn bytes(heap: &Heap, value: Value) -> Result<Bytes, Diagnostic> {
    let no_bytes = || bad("the elements of a NumPy array are no bytes");
    if let Some(object) = heap.object(value) {
        let args = heap.sequence(object.args).unwrap_or_default();
        return match (heap.global(object.callable), args) {
            (Some(("_codecs", "encode")), [text, ..]) => match (heap.node(*text), heap.str(*text)) {
                (Some(Node::Long { position, length }), _) => Ok(Bytes::Outside(*position, *length, true)),
                (_, Some(text)) => {
                    let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
                    bytes.map(|bytes| Bytes::Kept(bytes.into())).ok_or_else(no_bytes)
                }
                _ => Err(no_bytes()),
            },
            (Some(("builtins" | "__builtin__", "bytes" | "bytearray")), []) => Ok(Bytes::Kept([].into())),
            (Some(("builtins" | "__builtin__", "bytes" | "bytearray")), [inner])
                if heap.object(*inner).is_none() =>
            {
                bytes(heap, *inner)
            }
            _ => Err(no_bytes()),
        };
    }
    match value {
        Value::Text(span) | Value::Bytes(span) => Ok(Bytes::Kept(heap.bytes(span).into())),
        _ => match heap.node(value) {
            Some(Node::Long { position, length }) => Ok(Bytes::Outside(*position, *length, false)),
            _ => Err(no_bytes()),
        },
    }
}

impl Array {
    /// Checks an array and tells how it is read.
    ///
    /// # Errors
    /// Returns `format/unsupported-tensor` for elements that cannot be held, `format/shape-overflow`, and
    /// `format/bad-tensor` where there are more or fewer bytes than its shape says; none of them names the tensor.
    pub(super) fn place(&self, options: &OpenOptions, source: &Arc<dyn Store>) -> Result<Placed, Diagnostic> {
        let unsupported = |what: &str, help: &str| {
            let message = format!("it is a NumPy array of {what}");
            Err(Diagnostic::error(FormatCode::UnsupportedTensor, message).help(help))
        };
        let (dtype, swapped) = match &self.kind {
            Kind::Known { dtype, swapped } => (*dtype, *swapped),
            Kind::Void { width, descr } => {
                let mut named = options.void_as.iter().copied();
                match named.find(|dtype| dtype.byte_width() == Some(*width)) {
                    Some(dtype) => (dtype, None),
                    None => {
                        let what = format!("raw bytes without a type (`{}`)", shown(descr));
                        return unsupported(&what, "say what they are, such as `--void-as bf16`");
                    }
                }
            }
            Kind::Object => {
                return unsupported("Python objects", "save it again with elements of a number type");
            }
            Kind::Unheld(descr) | Kind::Other(descr) => {
                let what = format!("a type that cannot be held, `{}`", shown(descr));
                return unsupported(&what, "save it again with another type, as with `array.astype('f4')`");
            }
        };
        let width = dtype.byte_width().unwrap_or(1);
        let product = self.shape.iter().try_fold(width, |product, &size| product.checked_mul(size.max(1)));
        let Some(product) = product.filter(|&product| i64::try_from(product).is_ok()) else {
            return Err(Diagnostic::error(
                FormatCode::ShapeOverflow,
                "the size of its elements overflows 63 bits",
            ));
        };
        let length = if self.shape.contains(&0) { 0 } else { product };
        let strides = if self.fortran {
            let reversed: Vec<u64> = self.shape.iter().rev().copied().collect();
            row_major(&reversed).into_iter().rev().collect()
        } else {
            row_major(&self.shape)
        };
        let fits = match &self.bytes {
            Bytes::Kept(bytes) => bytes.len() as u64 == length,
            Bytes::Outside(_, found, false) => *found == length,
            // Each byte takes one or two.
            Bytes::Outside(_, found, true) => (found.div_ceil(2)..=*found).contains(&length),
            Bytes::None => false,
        };
        if !fits {
            return Err(bad("a NumPy array has another number of bytes than its shape says"));
        }
        let (bytes, source) = (self.bytes.clone(), Arc::clone(source));
        let decode = move |to: &mut dyn Write| {
            let mut swapper = Swapper::new(to, swapped.unwrap_or(1));
            match &bytes {
                Bytes::Kept(bytes) => swapper.write_all(bytes)?,
                Bytes::Outside(position, length, is_text) => {
                    copy(&*source, *position, *length, *is_text, &mut swapper)?;
                }
                Bytes::None => {}
            }
            swapper.end()
        };
        Ok(Placed { dtype, strides, length, decode: Box::new(decode) })
    }
}

/// Copies a range of a store; of a text each character becomes the byte of its number.
fn copy(source: &dyn Store, position: u64, length: u64, is_text: bool, to: &mut dyn Write) -> io::Result<()> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a NumPy array's text holds no bytes");
    let (mut at, end, mut lead) = (position, position.saturating_add(length), None);
    let (mut buffer, mut decoded) = (Vec::new(), Vec::new());
    while at < end {
        let count = (end - at).min(BLOCK);
        // At most BLOCK.
        buffer.resize(count as usize, 0);
        source.read_exact_at(at, &mut buffer)?;
        at += count;
        if !is_text {
            to.write_all(&buffer)?;
            continue;
        }
        decoded.clear();
        for &byte in &buffer {
            match (lead.take(), byte) {
                (None, 0..=0x7f) => decoded.push(byte),
                // U+0080 to U+00FF are the bytes C2 and C3, each with one that follows.
                (None, 0xc2 | 0xc3) => lead = Some(byte),
                (Some(first), 0x80..=0xbf) => decoded.push((first << 6) | (byte & 0x3f)),
                _ => return Err(wrong()),
            }
        }
        to.write_all(&decoded)?;
    }
    if lead.is_some() { Err(wrong()) } else { Ok(()) }
}

fn bad(problem: &str) -> Diagnostic {
    let message = format!("the tensor's description is damaged: {problem}");
    Diagnostic::error(FormatCode::BadTensor, message).help("download or save the file again")
}
