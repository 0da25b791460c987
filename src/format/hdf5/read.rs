//! Reading an HDF5 file: which of its datasets are the weights, and where their bytes are.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use hdf5_pure::Dataset;

use super::VARS;
use super::follow::Others;
use super::place::{DAMAGED, Place, most_decoded};
use super::region::Region;
use super::said;
use super::structure::Structure;
use super::walk::{Found, Tensor};
use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::format::part::Part;
use crate::format::root::{Content, Descent, Leaf, choose};
use crate::format::store::{Decode, OpenFile, Spool, Store, copy_swapped};
use crate::format::{Format, OpenOptions};

/// Reads the structures of an HDF5 file.
pub(in crate::format) fn read(
    file: &Arc<OpenFile>,
    options: &OpenOptions,
    out: &mut Collector,
) -> Result<Part, Errors> {
    let region = Region::new(Arc::clone(file) as Arc<dyn Store>, 0, file.size);
    read_region(Part::of(Format::Hdf5, file), 0, &region, options, out)
}

/// Returns whether a tensor is a single number, such as a step.
fn is_number(_name: &str, tensor: &Tensor) -> bool {
    tensor.as_ref().is_ok_and(|found| found.shape.is_empty())
}

/// Reads an HDF5 file in a region of the store of that index.
pub(super) fn read_region(
    mut part: Part,
    store: usize,
    region: &Arc<Region>,
    options: &OpenOptions,
    out: &mut Collector,
) -> Result<Part, Errors> {
    let Some(path) = part.files.first().map(|file| file.path.clone()) else { return Ok(part) };
    let fail = |message: String| Diagnostic::error(FormatCode::Hdf5, message).file(&path).help(DAMAGED);
    let unreadable = |what: String| Errors::from(fail(format!("the HDF5 file cannot be read: {what}")));
    let mut others = Others::new(options);
    let Structure { metadata, facts, ordered, mut leaves } =
        guard(|| others.structure(&path, region)).and_then(|found| found).map_err(unreadable)?;
    region.opened();
    part.metadata = metadata;
    part.facts = part.facts.or(facts);
    let keras3 = is_keras3(&leaves);
    if keras3 && options.root.is_none() {
        leave_out_optimizer(&mut leaves);
    }
    // Files that say themselves that the weights begin at the root have layers of any name there, `model` too.
    let descent = if keras3 || ordered { Descent::Asked } else { Descent::Alone(&is_number) };
    let chosen = choose(&path, leaves, "/", descent, options, out)?;
    let mut spool = Spool::new();
    let mut limit = most_decoded(region);
    let mut stores = vec![(Arc::clone(region), store)];
    for (file, region) in others.files {
        limit = limit.saturating_add(most_decoded(&region));
        stores.push((region, part.stores.len()));
        part.stores.push((part.files.len(), Arc::clone(&file) as Arc<dyn Store>));
        part.files.push(file);
    }
    let mut left = limit;
    let next = part.stores.len();
    for (key, tensor) in chosen {
        match tensor.map(|found| tensor_of(&key, found, (&stores, next), &mut spool, &mut left)) {
            Ok(Some(tensor)) => part.tensors.push(tensor),
            Ok(None) => {
                let message = format!(
                    "its bytes and those before it are more than the {limit} that a file of {} bytes could hold",
                    region.length()
                );
                out.push(fail(message).tensor(key));
            }
            Err(diagnostic) => part.refuse(key, *diagnostic, out),
        }
    }
    if !spool.is_empty() {
        part.add_store(Arc::new(spool));
    }
    Ok(part)
}

/// Runs what calls the crate. It checks what it reads and returns errors, but not everywhere: version 0.47.0 shifts by a
/// number of the file in `fixed_array.rs`, which is a panic in debug builds, and a damaged file must not end the program.
fn guard<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| "it holds a number that is out of all bounds".to_owned())
}

/// Returns whether it is a weights file of Keras 3: variables are in groups of that name.
fn is_keras3(leaves: &[Leaf<Tensor>]) -> bool {
    leaves.iter().any(|leaf| matches!(&leaf.path[..], [.., group, _] if group == VARS))
}

/// Leaves out the state of the optimizer, which Keras 3 keeps beside the layers of a compiled model.
/// (keras-team/keras, `keras/src/trainers/trainer.py`: the attribute `optimizer` of every model)
fn leave_out_optimizer(leaves: &mut Vec<Leaf<Tensor>>) {
    let of_optimizer = |leaf: &Leaf<Tensor>| leaf.path.first().is_some_and(|name| name == "optimizer");
    let count = leaves.iter().filter(|leaf| of_optimizer(leaf)).count();
    if count > 0 && count < leaves.len() {
        leaves.retain(|leaf| !of_optimizer(leaf));
        let content = Content::Other(format!("the optimizer's state, {count} tensors"));
        leaves.push(Leaf { path: vec!["optimizer".to_owned()], content });
    }
}

/// Makes a tensor of what was found; `None` where more bytes would come out of the file than `left`.
fn tensor_of(
    key: &str,
    found: Found,
    (stores, spooled): (&[(Arc<Region>, usize)], usize),
    spool: &mut Spool,
    left: &mut u64,
) -> Option<TensorMeta> {
    let Found { dtype, shape, swap, place, region } = found;
    let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
    let length = elements.and_then(|elements| dtype.byte_len(elements))?;
    let mut decoded = |decode: Decode| {
        *left = left.checked_sub(length)?;
        Some((spooled, spool.push(length, decode)))
    };
    let (file, offset) = match place {
        Place::At(offset) if swap == 1 => {
            let (_, store) = stores.iter().find(|(other, _)| Arc::ptr_eq(other, &region))?;
            (*store, region.place(offset, length)?)
        }
        Place::At(offset) => {
            decoded(Box::new(move |to| copy_swapped(&mut region.reader(offset, length), to, swap)))?
        }
        Place::Decoded(dataset, rows) => {
            let count = shape.first().copied().unwrap_or(1);
            let dataset = Mutex::new(Some(dataset));
            decoded(Box::new(move |to| {
                // Taken, since it is decoded once and what it remembers of its chunks takes memory.
                let dataset = dataset.lock().unwrap_or_else(PoisonError::into_inner).take();
                decode(&*dataset.ok_or(io::ErrorKind::NotFound)?, count, rows, swap, to)
            }))?
        }
    };
    Some(TensorMeta {
        key: key.to_owned(),
        dtype,
        strides: row_major(&shape),
        shape,
        file,
        offset,
        extents: Vec::new(),
    })
}

/// Writes a dataset's elements, so many rows at a time.
fn decode(dataset: &Dataset, count: u64, rows: u64, swap: usize, to: &mut dyn Write) -> io::Result<()> {
    let mut row = 0_u64;
    while row < count {
        let bytes = guard(|| dataset.read_raw_rows(row, rows).map_err(|error| said(&error)));
        let bytes = bytes.and_then(|bytes| bytes);
        let mut bytes = bytes.map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
        if swap > 1 {
            bytes.chunks_mut(swap).for_each(<[u8]>::reverse);
        }
        to.write_all(&bytes)?;
        row = row.saturating_add(rows.max(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::dtype::Dtype;
    use crate::format::layout::OutputTensor;
    use crate::format::testing::*;

    /// Returns a file of these tensors whose data are zeros.
    fn file(tensors: &[(&str, &[u64])]) -> Vec<u8> {
        let tensors: Vec<OutputTensor<'_>> =
            tensors.iter().map(|(key, shape)| OutputTensor { key, dtype: Dtype::F32, shape }).collect();
        let sizes: Vec<u64> = tensors.iter().map(|tensor| tensor.shape.iter().product::<u64>() * 4).collect();
        let layout =
            super::super::write::lay_out(&tensors, &sizes, &BTreeMap::new(), &mut Collector::default());
        let layout = layout.expect("lays out");
        let mut bytes = layout.pieces[0].1.clone();
        bytes.resize(layout.size as usize, 0);
        bytes
    }

    fn opened(folder: &Path, bytes: &[u8]) -> Result<Box<dyn crate::format::Reader>, Errors> {
        open_plain(&put(folder, "a.h5", bytes))
    }

    /// Replaces the only place of these numbers.
    fn patch(bytes: &mut [u8], from: &[u64], to: &[u64]) {
        let raw = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let (from, to) = (raw(from), raw(to));
        let places: Vec<usize> =
            (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(&from)).collect();
        assert_eq!(places.len(), 1);
        bytes[places[0]..][..to.len()].copy_from_slice(&to);
    }

    #[test]
    fn a_file_that_ends_early_is_an_error_wherever_it_ends() {
        let folder = tempfile::tempdir().expect("folder");
        let whole = file(&[("a/b:0", &[3, 5]), ("a/c:0", &[7]), ("d", &[1])]);
        assert!(opened(folder.path(), &whole).is_ok());
        for length in 1..whole.len() {
            let result = opened(folder.path(), &whole[..length]);
            // Nothing but a few bytes of the signature is no HDF5 file at all.
            let code = if length < 8 { "format/" } else { "format/hdf5" };
            assert!(codes(&result).iter().all(|found| found.starts_with(code)), "{length}");
        }
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_before_they_are_used() {
        let folder = tempfile::tempdir().expect("folder");
        let whole = file(&[("a/w", &[3, 1009])]);
        let at = whole.len() as u64 - 3 * 1009 * 4;
        let size = 3 * 1009 * 4;
        for (from, to, said) in [
            (vec![3, 1009], vec![1 << 40, 1 << 40], "overflows"),
            (vec![3, 1009], vec![u64::MAX, 3], "overflows"),
            (vec![3, 1009], vec![4, 1009], "but it has 12108"),
            (vec![at, size], vec![at + 1, size], "not all in the file"),
            (vec![at, size], vec![u64::MAX - 5, size], "not all in the file"),
            // Never written, so that its bytes are fill values.
            (vec![at, size], vec![u64::MAX, size], ""),
        ] {
            let mut bytes = whole.clone();
            patch(&mut bytes, &from, &to);
            let result = opened(folder.path(), &bytes);
            if said.is_empty() {
                let reader = result.expect("opens");
                let mut data = vec![1; size as usize];
                reader.read_exact_at(1, 0, &mut data).expect("reads");
                assert!(data.iter().all(|byte| *byte == 0));
                patch(&mut bytes, &[3, 1009], &[1 << 40, 1009]);
                let text = text(&opened(folder.path(), &bytes));
                assert!(text.contains("could hold"), "{text}");
                patch(&mut bytes, &[1 << 40, 1009], &[1, 1 << 40]);
                assert!(super::tests::text(&opened(folder.path(), &bytes)).contains("could hold"));
            } else {
                assert!(text(&result).contains(said), "{}", text(&result));
            }
        }
    }

    #[test]
    fn a_small_tree_with_endless_paths_ends() {
        let folder = tempfile::tempdir().expect("folder");
        let mut bytes = file(&[("w", &[3])]);
        // The root's tree: its only place beside the superblock is the message that is read.
        let mut tree = u64::from_le_bytes(bytes[80..88].try_into().expect("eight bytes"));
        let message = (96..bytes.len() - 8).rev().find(|&at| bytes[at..].starts_with(&tree.to_le_bytes()));
        let message = message.expect("is there");
        for level in 1..=12_u8 {
            let next = bytes.len() as u64;
            bytes.extend_from_slice(b"TREE\0");
            bytes.extend_from_slice(&[level, 32, 0]);
            bytes.extend_from_slice(&[0xff; 16]);
            for _ in 0..32 {
                bytes.extend_from_slice(&8_u64.to_le_bytes());
                bytes.extend_from_slice(&tree.to_le_bytes());
            }
            bytes.extend_from_slice(&8_u64.to_le_bytes());
            tree = next;
        }
        bytes[message..message + 8].copy_from_slice(&tree.to_le_bytes());
        let text = text(&opened(folder.path(), &bytes));
        assert!(text.contains("circles"), "{text}");
    }

    #[test]
    fn many_groups_deep_and_wide_are_read() {
        let folder = tempfile::tempdir().expect("folder");
        let deep = vec!["g"; super::super::DEEPEST - 1].join("/") + "/w";
        let names: Vec<String> = (0..1500).map(|number| format!("wide/{number}/w")).collect();
        let mut tensors: Vec<(&str, &[u64])> = names.iter().map(|name| (name.as_str(), &[2][..])).collect();
        tensors.push((&deep, &[1]));
        let reader = opened(folder.path(), &file(&tensors)).expect("opens");
        let keys: Vec<&str> = reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
        let wanted: Vec<&str> = tensors.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, wanted);
    }
}
