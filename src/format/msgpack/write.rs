//! Laying out a Flax msgpack file: nested maps of arrays.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use super::walk::LONGEST_NAME;
use super::{ARRAY, DEEPEST, types};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::format::layout::{FileLayout, OutputTensor};
use crate::format::shown;

/// A map, or the tensor of that index.
enum Node<'a> {
    Map(IndexMap<&'a str, Node<'a>>),
    Tensor(usize),
}

/// Lays out one file: names cut at `/` become nested maps, in the order in which they first appear.
///
/// The format has no place for metadata. Refused are packed and quantised types, arrays of 4 GiB and more (an extension's
/// length has 32 bits), names that are a tensor and a part of another tensor's name, names of more than 128 parts, and parts of more than 65,535
/// bytes.
pub(in crate::format) fn lay_out(
    tensors: &[OutputTensor<'_>],
    sizes: &[u64],
    _metadata: &BTreeMap<String, String>,
    out: &mut Collector,
) -> Result<FileLayout, Errors> {
    let mut top = IndexMap::new();
    for (at, tensor) in tensors.iter().enumerate() {
        insert(&mut top, tensor, at, out);
    }
    let mut writer = Writer {
        tensors,
        sizes,
        offsets: vec![0; tensors.len()],
        pieces: Vec::new(),
        start: 0,
        now: Vec::new(),
    };
    writer.map(&top, out);
    let size = writer.start + writer.now.len() as u64;
    if !writer.now.is_empty() {
        writer.pieces.push((writer.start, writer.now));
    }
    Ok(FileLayout {
        pieces: writer.pieces,
        size,
        checksums: Vec::new(),
        offsets: writer.offsets,
        beside: None,
    })
}

fn cannot(tensor: &OutputTensor<'_>, message: String, help: &str) -> Diagnostic {
    Diagnostic::error(FormatCode::CannotHold, message).tensor(tensor.key).help(help)
}

/// Puts a tensor where its name leads.
fn insert<'a>(
    top: &mut IndexMap<&'a str, Node<'a>>,
    tensor: &OutputTensor<'a>,
    at: usize,
    out: &mut Collector,
) {
    let names: Vec<&str> = tensor.key.split('/').collect();
    if names.len() > DEEPEST {
        let message = format!("its name has {} parts; at most {DEEPEST} maps are nested", names.len());
        out.push(cannot(tensor, message, "choose a layout with shorter names"));
        return;
    }
    if let Some(long) = names.iter().find(|name| name.len() as u64 > LONGEST_NAME) {
        let message = format!("a part of its name has {} bytes; at most {LONGEST_NAME} are read", long.len());
        out.push(cannot(tensor, message, "choose a layout with shorter names"));
        return;
    }
    let mut map = top;
    for (depth, name) in names.iter().enumerate() {
        let is_last = depth + 1 == names.len();
        let clash = match map.get(name) {
            Some(Node::Tensor(_)) => true,
            Some(Node::Map(_)) => is_last,
            None => false,
        };
        if clash {
            let both = shown(&names[..=depth].join("/"));
            let message =
                format!("`{both}` would be an array and a map of arrays, which nested maps cannot be");
            out.push(cannot(tensor, message, "rename one of them, or choose another format"));
            return;
        }
        if is_last {
            map.insert(name, Node::Tensor(at));
            return;
        }
        match map.entry(name).or_insert_with(|| Node::Map(IndexMap::new())) {
            Node::Map(inner) => map = inner,
            Node::Tensor(_) => return,
        }
    }
}

struct Writer<'a> {
    tensors: &'a [OutputTensor<'a>],
    sizes: &'a [u64],
    offsets: Vec<u64>,
    pieces: Vec<(u64, Vec<u8>)>,
    /// Where the bytes that are being made begin in the file.
    start: u64,
    now: Vec<u8>,
}

impl Writer<'_> {
    /// Writes a map; its depth is bounded by [`insert`].
    fn map(&mut self, map: &IndexMap<&str, Node<'_>>, out: &mut Collector) {
        let Ok(count) = u32::try_from(map.len()) else {
            out.push(Diagnostic::error(FormatCode::CannotHold, "a map has more than 4,294,967,295 names"));
            return;
        };
        push_map(&mut self.now, count);
        for (name, node) in map {
            // A name is in memory as a whole, and no key has 4 GiB.
            push_text(&mut self.now, name);
            match node {
                Node::Map(inner) => self.map(inner, out),
                Node::Tensor(at) => self.tensor(*at, out),
            }
        }
    }

    fn tensor(&mut self, at: usize, out: &mut Collector) {
        let (tensor, size) = (self.tensors[at], self.sizes[at]);
        let Some(name) = types::name(tensor.dtype) else {
            let message = format!("Flax's msgpack has no type for {}", tensor.dtype);
            out.push(cannot(&tensor, message, "choose another format"));
            return;
        };
        let mut head = vec![0x93];
        let rank = u32::try_from(tensor.shape.len()).unwrap_or(u32::MAX);
        push_list(&mut head, rank);
        tensor.shape.iter().for_each(|&size| push_number(&mut head, size));
        push_text(&mut head, name);
        let data = u32::try_from(size).ok();
        if let Some(data) = data {
            push_bytes(&mut head, data);
        }
        let whole = data.and_then(|data| data.checked_add(u32::try_from(head.len()).ok()?));
        // Readers count the byte of the type in 32 bits too (msgpack/msgpack-python, `msgpack/unpack_template.h`).
        let whole = whole.filter(|whole| *whole < u32::MAX);
        let Some(whole) = whole else {
            let message = format!("it has {size} bytes; an array takes less than 4 GiB in msgpack");
            let help = "make it smaller with `--dtype bf16`, or choose another format";
            out.push(cannot(&tensor, message, help));
            return;
        };
        push_extension(&mut self.now, whole, ARRAY);
        self.now.extend(head);
        let now = std::mem::take(&mut self.now);
        let offset = self.start + now.len() as u64;
        self.pieces.push((self.start, now));
        self.offsets[at] = offset;
        self.start = offset + size;
    }
}

// Writing into memory does not fail, so there is nothing to do with what these return.

fn push_map(bytes: &mut Vec<u8>, count: u32) {
    drop(rmp::encode::write_map_len(bytes, count));
}

fn push_list(bytes: &mut Vec<u8>, count: u32) {
    drop(rmp::encode::write_array_len(bytes, count));
}

fn push_number(bytes: &mut Vec<u8>, number: u64) {
    drop(rmp::encode::write_uint(bytes, number));
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    drop(rmp::encode::write_str(bytes, text));
}

fn push_bytes(bytes: &mut Vec<u8>, length: u32) {
    drop(rmp::encode::write_bin_len(bytes, length));
}

fn push_extension(bytes: &mut Vec<u8>, length: u32, kind: i8) {
    drop(rmp::encode::write_ext_meta(bytes, length, kind));
}
