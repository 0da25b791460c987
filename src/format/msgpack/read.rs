//! Reading a Flax msgpack file.

use std::sync::Arc;

use super::chunked::{Joined, Stored, join};
use super::walk::walk;
use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Collector, Errors};
use crate::format::part::Part;
use crate::format::root::{Content, Descent, Leaf, choose};
use crate::format::store::{OpenFile, Pieces};
use crate::format::{Format, OpenOptions};

/// Reads where a file's arrays lie; what is wrong with one goes to the collector.
pub(in crate::format) fn read(
    file: &Arc<OpenFile>,
    options: &OpenOptions,
    out: &mut Collector,
) -> Result<Part, Errors> {
    let leaves = join(walk(file)?, &file.path).into_iter().map(|(path, value)| Leaf {
        path,
        content: match value {
            Joined::Array(found) => Content::Tensor(found),
            Joined::Other(what) => Content::Other(what),
        },
    });
    let chosen = choose(&file.path, leaves.collect(), "/", Descent::Trained, options, out)?;
    let mut part = Part::of(Format::Msgpack, file);
    let mut pieces = Pieces::new(file);
    let joined = part.stores.len();
    for (key, found) in chosen {
        let (array, store, offset) = match found {
            Ok(Stored::Whole(array)) => {
                let begin = array.begin;
                (array, 0, begin)
            }
            Ok(Stored::Pieces(array, places)) => {
                let starts: Vec<u64> =
                    places.into_iter().map(|(offset, length)| pieces.push(offset, length)).collect();
                (array, joined, starts.first().copied().unwrap_or(0))
            }
            // Arrays beside the root are not looked at.
            Err(diagnostic) => {
                part.refuse(key, *diagnostic, out);
                continue;
            }
        };
        let strides = row_major(&array.shape);
        let (dtype, shape) = (array.dtype, array.shape);
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
    if part.tensors.iter().any(|tensor| tensor.file == joined) {
        part.add_store(Arc::new(pieces));
    }
    Ok(part)
}
