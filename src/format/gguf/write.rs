//! Laying out a GGUF file: metadata, the table of tensors, and where the data lies.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use super::{header, types};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;
use crate::format::layout::{FileLayout, OutputTensor};
use crate::format::member::Split;
use crate::format::store::OpenFile;

/// The metadata key of this program's own record.
const IDENTITY: &str = "qkvconv";
/// The most bytes of a name: GGML_MAX_NAME is 64 with a final zero (ggml-org/ggml, `include/ggml.h`).
const LONGEST_NAME: usize = 63;
/// The most dimensions (GGML_MAX_DIMS, the same file).
const MOST_DIMS: usize = 4;
/// The numbers of strings and of two integers among the types of metadata (ggml-org/ggml, `docs/gguf.md`).
const STRING: u32 = 8;
const UINT16: u32 = 2;
const INT32: u32 = 5;

/// Lays out one file, version 3, little-endian, the tensors in the order given.
///
/// The metadata is that of the template, byte for byte, with this program's own entry. Without a template no loader takes
/// the file as a model, which is said in a warning.
///
/// Of several files the first holds all metadata and the others only what says that they are parts, as the programs of
/// llama.cpp write and read them (ggml-org/llama.cpp, `tools/gguf-split/gguf-split.cpp`, `src/llama-model-loader.cpp`).
///
/// Refused are types that GGUF lacks, names of more than 63 bytes, more than 4 dimensions, tensors without elements (ggml
/// divides by their sizes), and rows that are no whole blocks.
pub(in crate::format) fn lay_out(
    tensors: &[OutputTensor<'_>],
    sizes: &[u64],
    metadata: &BTreeMap<String, String>,
    template: Option<&Path>,
    split: Option<Split>,
    out: &mut Collector,
) -> Result<FileLayout, Errors> {
    for tensor in tensors {
        check(tensor, out);
    }
    let is_first = split.is_none_or(|split| split.number == 0);
    let taken = match template {
        // The alignment is one of the first file's entries, so that in the others the usual one holds.
        _ if !is_first => Taken::default(),
        Some(path) => Taken::read(path)?,
        None => {
            let message = "the GGUF file has no metadata of a model (`general.architecture` and what follows from it), \
                           so that no loader of models takes it";
            let help = "give a GGUF file of the same model with --template: its metadata is taken over";
            out.push(Diagnostic::warning(FormatCode::NoTemplate, message).help(help));
            Taken::default()
        }
    };
    let own: Vec<(&String, &String)> =
        metadata.iter().filter(|(key, value)| is_first && taken.lacks(key, value)).collect();
    let parts = split.map_or(Vec::new(), entries);
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend(((taken.fields + own.len() + parts.len()) as u64).to_le_bytes());
    header.extend(&taken.bytes);
    for (key, value) in own {
        push_text(&mut header, key);
        header.extend(STRING.to_le_bytes());
        push_text(&mut header, value);
    }
    for (key, kind, value) in &parts {
        push_text(&mut header, key);
        header.extend(kind.to_le_bytes());
        header.extend(value);
    }
    let mut offsets = Vec::with_capacity(tensors.len());
    let mut end = Some(0_u64);
    for (tensor, size) in tensors.iter().zip(sizes) {
        push_text(&mut header, tensor.key);
        // Without dimensions it is a scalar to ggml (`src/gguf.cpp`) and to gguf-py.
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|size| header.extend(size.to_le_bytes()));
        header.extend(types::number(tensor.dtype).unwrap_or(0).to_le_bytes());
        let begin = end.unwrap_or(0);
        header.extend(begin.to_le_bytes());
        offsets.push(begin);
        end = end.and_then(|end| end.checked_add(*size)?.checked_next_multiple_of(taken.alignment));
    }
    let start = (header.len() as u64).next_multiple_of(taken.alignment);
    let Some(size) = end.and_then(|end| end.checked_add(start)) else {
        let message = "the size of all tensors overflows 64 bits";
        return Err(Diagnostic::error(FormatCode::ShapeOverflow, message).into());
    };
    offsets.iter_mut().for_each(|offset| *offset += start);
    // ggml reads the padding behind the last tensor too.
    Ok(FileLayout { pieces: vec![(0, header)], size, checksums: Vec::new(), offsets, beside: None })
}

/// Returns the metadata of one of several files: keys, types and values.
fn entries(split: Split) -> Vec<(&'static str, u32, Vec<u8>)> {
    // Types as gguf-split writes them; the number of files was checked.
    let short = |number: u64| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes().to_vec();
    let tensors = i32::try_from(split.tensors.unwrap_or(0)).unwrap_or(i32::MAX).to_le_bytes().to_vec();
    vec![
        (header::SPLIT_NUMBER, UINT16, short(split.number)),
        (header::SPLIT_COUNT, UINT16, short(split.count)),
        (header::SPLIT_TENSORS, INT32, tensors),
    ]
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Refuses what GGUF, or every reader of it, cannot hold.
fn check(tensor: &OutputTensor<'_>, out: &mut Collector) {
    let mut fail = |message: String, help: &str| {
        out.push(Diagnostic::error(FormatCode::CannotHold, message).tensor(tensor.key).help(help));
    };
    let OutputTensor { key, dtype, shape } = *tensor;
    let (elements, _) = dtype.block();
    if types::number(dtype).is_none() {
        let message =
            format!("GGUF has no type for {dtype}; it has {} and quantised ones", types::plain_names());
        fail(message, "choose another format");
    } else if dtype == Dtype::BF16 && shape.is_empty() {
        fail("gguf-py reads no BF16 tensor without dimensions".to_owned(), "cast with --dtype f32");
    } else if dtype.is_quantised() && !shape.last().is_some_and(|row| row.is_multiple_of(elements)) {
        let message = format!("rows of {shape:?} are no whole blocks of {elements} elements ({dtype})");
        fail(message, "choose a layout that leaves its fastest axis whole");
    }
    if key.len() > LONGEST_NAME || key.contains('\0') {
        let message =
            format!("its name has {} bytes; GGUF takes {LONGEST_NAME}, none of them zero", key.len());
        fail(message, "choose a layout with the names of llama.cpp, such as `blk.0.attn_q.weight`");
    }
    if shape.len() > MOST_DIMS {
        let message = format!("it has {} dimensions; GGUF takes {MOST_DIMS}", shape.len());
        fail(message, "choose a layout with fewer dimensions, or another format");
    }
    if shape.contains(&0) {
        fail(format!("its shape {shape:?} has no elements"), "choose another format");
    }
}

/// What is taken over from a template.
struct Taken {
    /// The entries of its metadata, as they stand there.
    bytes: Vec<u8>,
    fields: usize,
    keys: HashSet<String>,
    alignment: u64,
}

impl Default for Taken {
    fn default() -> Taken {
        let keys = HashSet::default();
        Taken { bytes: Vec::new(), fields: 0, keys, alignment: header::DEFAULT_ALIGNMENT }
    }
}

impl Taken {
    fn read(path: &Path) -> Result<Taken, Errors> {
        let file = OpenFile::open(path)?;
        let mut out = Collector::default();
        let header = header::read(&file, &mut out)?;
        out.finish(())?;
        if header.big_endian {
            let message = "the template is a big-endian file";
            let diagnostic = Diagnostic::error(FormatCode::BigEndian, message).file(path);
            return Err(diagnostic.help("give a little-endian one with --template").into());
        }
        let mut taken = Taken { alignment: header.alignment, ..Taken::default() };
        // This program's entry is written anew, and what the template was a part of says nothing of the output.
        let fields = header.fields.iter();
        for field in fields.filter(|field| field.key != IDENTITY && !field.key.starts_with(header::SPLIT)) {
            let length = field.bytes.end - field.bytes.start;
            taken.bytes.extend(file.bytes(field.bytes.start, length)?);
            taken.fields += 1;
            taken.keys.insert(field.key.clone());
        }
        Ok(taken)
    }

    /// Returns whether an entry of the output's metadata is to be written as a string: this program's own, and what has
    /// a key of GGUF's kind and is not in the template. What reads as a number or truth value is left out, for its type
    /// is not known and loaders take no string for it.
    fn lacks(&self, key: &str, value: &str) -> bool {
        if key == IDENTITY {
            return true;
        }
        let segment = |segment: &str| {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            !segment.is_empty() && segment.chars().all(fits)
        };
        let is_typed = value.parse::<f64>().is_ok() || matches!(value, "true" | "false");
        let is_key =
            key.contains('.') && key.split('.').all(segment) && key.len() as u64 <= header::LONGEST_KEY;
        is_key && !is_typed && !key.starts_with(header::SPLIT) && !self.keys.contains(key)
    }
}
