//! Arrays that Flax cuts into chunks, since an extension has at most 4 GiB.
//!
//! `_chunk` in google/flax, `flax/serialization.py` makes a map of `__msgpack_chunked_array__`, which is true, of `shape`,
//! a map from "0", "1", … to the sizes, and of `chunks`, a map from "0", "1", … to the flat pieces.

use std::path::Path;

use indexmap::IndexMap;

use super::walk::{Array, Found, Value};
use crate::diag::{Diagnostic, FormatCode};

const MARK: &str = "__msgpack_chunked_array__";

/// An array that lies in the file as a whole or in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// As a whole.
    Whole(Array),
    /// As pieces of that many bytes in all; the array's own place is the first one's.
    Pieces(Array, Vec<(u64, u64)>),
}

/// Something at the end of a path, chunks joined.
pub(super) enum Joined {
    /// An array, or what is wrong with it.
    Array(Result<Stored, Box<Diagnostic>>),
    /// Anything else, in words.
    Other(String),
}

/// What was found of a chunked array.
#[derive(Default)]
struct Parts {
    shape: IndexMap<String, u64>,
    chunks: IndexMap<String, Found>,
    others: usize,
}

/// Joins the chunks of arrays; everything stays in the order of the file.
pub(super) fn join(leaves: Vec<(Vec<String>, Value)>, file: &Path) -> Vec<(Vec<String>, Joined)> {
    // The path of each chunked array, with what belongs to it.
    let mut cut: IndexMap<Vec<String>, Parts> = IndexMap::new();
    for (path, _) in &leaves {
        if let Some((last, above)) = path.split_last()
            && last == MARK
        {
            cut.insert(above.to_vec(), Parts::default());
        }
    }
    let mut joined: Vec<(Vec<String>, Option<Joined>)> = Vec::with_capacity(leaves.len());
    for (path, value) in leaves {
        // Its parts lie one or two names below it.
        let owner = [1, 2].into_iter().find_map(|depth| {
            let (above, below) = path.split_at_checked(path.len().checked_sub(depth)?)?;
            cut.get_index_of(above).map(|owner| (owner, below.to_vec()))
        });
        let Some((owner, below)) = owner else {
            let value = match value {
                Value::Array(found) => Joined::Array(found.map(Stored::Whole)),
                Value::Number(_) => Joined::Other("a number".to_owned()),
                Value::Other(what) => Joined::Other(what),
            };
            joined.push((path, Some(value)));
            continue;
        };
        let Some((above, parts)) = cut.get_index_mut(owner) else { continue };
        match (&below[..], value) {
            ([mark], _) if mark == MARK => joined.push((above.clone(), None)),
            ([part, at], Value::Number(size)) if part == "shape" => {
                parts.shape.insert(at.clone(), size);
            }
            ([part, at], Value::Array(found)) if part == "chunks" => {
                parts.chunks.insert(at.clone(), found);
            }
            _ => parts.others += 1,
        }
    }
    joined
        .into_iter()
        .map(|(path, value)| {
            let value = value.unwrap_or_else(|| {
                let parts = cut.swap_remove(&path).unwrap_or_default();
                Joined::Array(stored(parts, &path.join("/"), file))
            });
            (path, value)
        })
        .collect()
}

/// Makes one array of the chunks.
fn stored(parts: Parts, path: &str, file: &Path) -> Result<Stored, Box<Diagnostic>> {
    let fail = |message: String| {
        let diagnostic = Diagnostic::error(FormatCode::BadEntry, message).file(file).tensor(path);
        Box::new(diagnostic.help("the file is damaged: fetch or write it again"))
    };
    if parts.others > 0 {
        return Err(fail("the chunked array holds something else than a shape and chunks".to_owned()));
    }
    let shape =
        in_order(parts.shape).ok_or_else(|| fail("a size of the chunked array is missing".to_owned()))?;
    let chunks = in_order(parts.chunks).ok_or_else(|| fail("a chunk of the array is missing".to_owned()))?;
    let chunks = chunks.into_iter().collect::<Result<Vec<Array>, _>>()?;
    let Some(first) = chunks.first() else {
        return Err(fail("the chunked array has no chunks".to_owned()));
    };
    let dtype = first.dtype;
    if let Some(other) = chunks.iter().find(|chunk| chunk.dtype != dtype || chunk.shape.len() != 1) {
        let message = format!(
            "its chunks are not all flat arrays of one type: {dtype}, {} {:?}",
            other.dtype, other.shape
        );
        return Err(fail(message));
    }
    let product = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1)));
    let elements = product.map(|product| if shape.contains(&0) { 0 } else { product });
    // The chunks lie in the file without overlap, so that their sum cannot overflow.
    let length: u64 = chunks.iter().map(|chunk| chunk.length).sum();
    if elements.and_then(|elements| dtype.byte_len(elements)) != Some(length) {
        return Err(fail(format!(
            "its chunks have {length} bytes in all, which its shape {shape:?} has not ({dtype})"
        )));
    }
    let pieces = chunks.iter().map(|chunk| (chunk.begin, chunk.length)).collect();
    Ok(Stored::Pieces(Array { dtype, shape, begin: first.begin, length }, pieces))
}

/// Returns the values of "0", "1", … in order, if none is missing.
fn in_order<T>(mut parts: IndexMap<String, T>) -> Option<Vec<T>> {
    (0..parts.len()).map(|at| parts.swap_remove(&at.to_string())).collect()
}
