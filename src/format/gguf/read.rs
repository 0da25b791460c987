//! Reading a GGUF file's header.

use std::sync::Arc;

use super::header::{self, Header, Info};
use super::types;
use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode, Severity};
use crate::dtype::Dtype;
use crate::format::facts;
use crate::format::member::{Membership, Split};
use crate::format::part::Part;
use crate::format::store::{OpenFile, Spool, copy_swapped};
use crate::format::{Format, OpenOptions};

const DAMAGED: &str = "the file is damaged or was not written whole: fetch or write it again";

/// A tensor whose place in the file is checked.
struct Placed {
    key: String,
    /// Its type, or in words why it is not known.
    dtype: Result<Dtype, String>,
    shape: Vec<u64>,
    /// From the start of the file.
    begin: u64,
    /// In bytes; of an unknown type all up to the next tensor.
    length: u64,
}

/// Reads a file's header; what is wrong with a tensor goes to the collector.
pub(in crate::format) fn read(
    file: &Arc<OpenFile>,
    _options: &OpenOptions,
    out: &mut Collector,
) -> Result<Part, Errors> {
    let header = header::read(file, out)?;
    let mut part = Part::of(Format::Gguf, file);
    // What a file of several says of its number among them holds no longer for the whole.
    let fields = header.fields.iter().filter(|field| !field.key.starts_with(header::SPLIT));
    let facts = header.fields.iter();
    part.facts = facts::of_entries(facts.filter_map(|field| Some((field.key.clone(), field.value.clone()?))));
    part.metadata = fields.filter_map(|field| Some((field.key.clone(), field.text.clone()?))).collect();
    part.member = split(&header);
    let fail = |code, message: String, key: &str| {
        Diagnostic::error(code, message).file(&file.path).tensor(key).help(DAMAGED)
    };
    let mut placed = Vec::with_capacity(header.infos.len());
    for info in &header.infos {
        match place(info, &header, file.size) {
            Ok(tensor) => placed.push(tensor),
            Err((code, message)) => out.push(fail(code, message, &info.name)),
        }
    }
    placed.sort_by_key(|tensor| (tensor.begin, tensor.length));
    bound_unknown(&mut placed, file.size);
    if placed.len() == header.infos.len() {
        check_order(&placed, &header, file.size, &fail, out);
    }
    let mut spool = Spool::new();
    let spool_index = part.stores.len();
    for tensor in placed {
        let (begin, length) = (tensor.begin, tensor.length);
        let dtype = match tensor.dtype {
            Ok(dtype) => dtype,
            Err(reason) => {
                let help = "make the file with a type that is read, or leave this tensor out (`--drop`)";
                let error = fail(FormatCode::UnknownDtype, reason, &tensor.key).help(help);
                part.refuse(tensor.key, error, out);
                continue;
            }
        };
        let (store, offset) = match (header.big_endian, dtype.byte_width()) {
            (false, _) | (true, Some(1)) => (0, begin),
            (true, Some(width)) => {
                let (source, width) = (Arc::clone(file), usize::try_from(width).unwrap_or(1));
                let decode = move |to: &mut dyn std::io::Write| {
                    copy_swapped(&mut source.range(begin, length), to, width)
                };
                (spool_index, spool.push(length, Box::new(decode)))
            }
            (true, None) => {
                let message = format!("quantised blocks of a big-endian file are not read: {dtype}");
                let help = "make the file little-endian with gguf-py's gguf_convert_endian.py";
                out.push(fail(FormatCode::BigEndian, message, &tensor.key).help(help));
                continue;
            }
        };
        let strides = row_major(&tensor.shape);
        let Placed { key, shape, .. } = tensor;
        part.tensors.push(TensorMeta {
            key,
            dtype,
            shape,
            strides,
            file: store,
            offset,
            extents: Vec::new(),
        });
    }
    if !spool.is_empty() {
        part.add_store(Arc::new(spool));
    }
    Ok(part)
}

/// Returns what a file says of the others that belong to it. The numbers are of whatever type a writer chose.
fn split(header: &Header) -> Option<Membership> {
    let number = |key: &str| {
        let field = header.fields.iter().find(|field| field.key == key)?;
        field.text.as_ref()?.parse::<u64>().ok()
    };
    let count = number(header::SPLIT_COUNT).filter(|count| *count > 1)?;
    let tensors = number(header::SPLIT_TENSORS);
    Some(Membership::Split(Split { number: number(header::SPLIT_NUMBER).unwrap_or(0), count, tensors }))
}

/// Finds a tensor's type, shape and place; the error is a code and what is wrong.
fn place(info: &Info, header: &Header, file_size: u64) -> Result<Placed, (FormatCode, String)> {
    let dtype = types::dtype(info.kind);
    // The file lists the fastest dimension first.
    let shape: Vec<u64> = info.sizes.iter().rev().copied().collect();
    // Strides grow past a zero too, so a zero must not hide the overflow of the other sizes.
    let product = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1)));
    let overflow = || (FormatCode::ShapeOverflow, format!("the size of {shape:?} overflows 64 bits"));
    let product = product.ok_or_else(overflow)?;
    let elements = if shape.contains(&0) { 0 } else { product };
    let length = match &dtype {
        Ok(dtype) => {
            let (of_block, _) = dtype.block();
            let row = shape.last().copied().unwrap_or(1);
            if !row.is_multiple_of(of_block) {
                let message =
                    format!("its rows have {row} elements, no whole blocks of {of_block} ({dtype})");
                return Err((FormatCode::BadShape, message));
            }
            dtype.byte_len(elements).ok_or_else(overflow)?
        }
        Err(_) => 0,
    };
    if !info.offset.is_multiple_of(header.alignment) {
        let message =
            format!("its offset {} is no multiple of the alignment {}", info.offset, header.alignment);
        return Err((FormatCode::BadOffsets, message));
    }
    let begin = header.data_start.checked_add(info.offset);
    let Some((begin, _)) =
        begin.and_then(|begin| Some((begin, begin.checked_add(length).filter(|&end| end <= file_size)?)))
    else {
        let message = format!(
            "its {length} bytes at {} of the data that begins at {} reach past the end of the file at {file_size}",
            info.offset, header.data_start
        );
        return Err((FormatCode::Truncated, message));
    };
    Ok(Placed { key: info.name.clone(), dtype, shape, begin, length })
}

/// Gives tensors of an unknown type, whose bytes cannot be counted, all up to the next tensor; the tensors are sorted.
fn bound_unknown(placed: &mut [Placed], file_size: u64) {
    let mut next = file_size;
    for tensor in placed.iter_mut().rev() {
        if tensor.dtype.is_err() {
            tensor.length = next - tensor.begin;
        }
        next = tensor.begin;
    }
}

/// Refuses tensors that overlap or have more than padding between them, as ggml does (ggml-org/ggml, `src/gguf.cpp`):
/// both mean that a type has another size in the program that wrote the file.
fn check_order(
    placed: &[Placed],
    header: &Header,
    file_size: u64,
    fail: &dyn Fn(FormatCode, String, &str) -> Diagnostic,
    out: &mut Collector,
) {
    let mut end = header.data_start;
    let mut before: Option<&Placed> = None;
    for tensor in placed {
        let expected = end.checked_next_multiple_of(header.alignment).unwrap_or(u64::MAX);
        let name = before.map_or("the header".to_owned(), |before| {
            let dtype = before.dtype.as_ref().map_or("of an unknown type", |dtype| dtype.name());
            format!("`{}` ({dtype} {:?})", crate::format::shown(&before.key), before.shape)
        });
        if tensor.dtype.is_err() && tensor.length == 0 && !tensor.shape.contains(&0) {
            let message = "the next tensor begins where it begins".to_owned();
            out.push(fail(FormatCode::Overlap, message, &tensor.key));
        } else if tensor.begin < end {
            let message = format!("its data begins {} bytes inside {name}", end - tensor.begin);
            out.push(fail(FormatCode::Overlap, message, &tensor.key));
        } else if tensor.begin > expected {
            let message =
                format!("{} bytes between {name} and this tensor belong to none", tensor.begin - end);
            out.push(fail(FormatCode::Hole, message, &tensor.key));
        }
        end = end.max(tensor.begin + tensor.length);
        before = Some(tensor);
    }
    let expected = end.checked_next_multiple_of(header.alignment).unwrap_or(u64::MAX);
    if let Some(last) = before
        && file_size > expected
    {
        let message = format!("{} bytes follow the last tensor and belong to none", file_size - end);
        let error = fail(FormatCode::TrailingBytes, message, &last.key);
        out.push(Diagnostic { severity: Severity::Warning, help: None, ..error });
    }
}
