//! Where the bytes of a dataset are, checked before any of them is read.

use std::sync::Arc;

use hdf5_pure::{ChunkIndex, Dataset, Layout};

use super::region::Region;
use super::said;
use crate::diag::{Diagnostic, FormatCode};
use crate::dtype::Dtype;
use crate::format::shown;

/// The filters that the crate inverts: deflate, shuffle, fletcher32, scale-offset and LZF.
/// (HDF Group, "Registered Filter Plugins"; LZF is h5py's)
const FILTERS: &[u16] = &[1, 2, 3, 6, 32000];

/// The most that deflate can make of one byte (RFC 1951, 3.2.5: 258 bytes for two bits), and what is allowed besides,
/// for fill values, which take nothing in the file.
const DEFLATE_RATIO: u64 = 1032;
const FREE: u64 = 1 << 28;

/// How many bytes are decoded at a time, where the chunks allow it.
const BLOCK: u64 = 1 << 22;

/// The most memory that is taken for what must be decoded at once, where the caller does not say: as much as that, and so
/// many times the file's size. Weights hardly shrink when they are compressed, so that a chunk of weights is not larger.
const FREE_CHUNK: u64 = 1 << 28;
const CHUNK_RATIO: u64 = 4;

pub(super) const DAMAGED: &str = "the file is damaged or was not written whole; download or save it again";

/// Where a dataset's bytes are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// As they are, from that byte of the HDF5 file on.
    At(u64),
    /// In chunks, in the dataset's header or nowhere (fill values); read so many rows at a time.
    Decoded(Box<Dataset>, u64),
}

/// Returns the most bytes that can come out of a file, all datasets together.
pub(super) fn most_decoded(region: &Region) -> u64 {
    region.length().saturating_mul(DEFLATE_RATIO).saturating_add(FREE)
}

fn fail(message: String) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(FormatCode::Hdf5, message).help(DAMAGED))
}

fn cannot(message: String, help: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(FormatCode::Hdf5Storage, message).help(help))
}

/// Returns the bytes of elements, or `None` where they overflow.
fn bytes_of(shape: &[u64], dtype: Dtype) -> Option<u64> {
    let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
    elements.and_then(|elements| dtype.byte_len(elements))
}

/// Finds a dataset's bytes and checks that they are there; `None` for a dataset that has no elements on purpose.
pub(super) fn place(
    dataset: Dataset,
    dtype: Dtype,
    shape: &[u64],
    region: &Arc<Region>,
    max_chunk: Option<u64>,
) -> Result<Option<Place>, Box<Diagnostic>> {
    const ELSEWHERE: &str = "open it with h5py and save the arrays into one file";
    let layout = dataset.layout();
    let layout = layout.map_err(|error| fail(format!("its storage cannot be read: {}", said(&error))))?;
    let overflows = || fail(format!("the size of {shape:?} {dtype} overflows"));
    let bytes = bytes_of(shape, dtype).ok_or_else(overflows)?;
    let none = matches!(layout, Layout::Contiguous { size: 0, .. } | Layout::Compact { size: 0 });
    if shape.is_empty() && none {
        return Ok(None);
    }
    if bytes == 0 {
        return Ok(Some(Place::At(0)));
    }
    let (rows, row_bytes) = match shape {
        [] => (1, bytes),
        // No size is 0 here.
        [rows, ..] => (*rows, bytes / rows),
    };
    let most = most_decoded(region);
    let mut band = 1;
    match layout {
        Layout::Contiguous { address: Some(_), size } | Layout::Compact { size } if size < bytes => {
            return Err(fail(format!("{shape:?} {dtype} take {bytes} bytes, but it has {size}")));
        }
        Layout::Contiguous { address: Some(address), .. } => {
            let length = region.length();
            let outside =
                || fail(format!("its {bytes} bytes at {address} are not all in the file of {length} bytes"));
            region.place(address, bytes).ok_or_else(outside)?;
            return Ok(Some(Place::At(address)));
        }
        // Never written, or in other files: the crate refuses to read these.
        Layout::Contiguous { address: None, .. } => {
            dataset.read_raw_rows(0, 0).map_err(|error| {
                cannot(format!("its data are not in this file: {}", said(&error)), ELSEWHERE)
            })?;
        }
        Layout::Compact { .. } => {}
        Layout::Chunked { chunk_shape, index } => {
            // A chunk may reach beyond the dataset, and is decoded whole.
            let chunk = bytes_of(&chunk_shape, dtype).filter(|&bytes| bytes <= most);
            let chunk = chunk.ok_or_else(|| {
                let message = format!("chunks of {chunk_shape:?} {dtype} are more than the file could hold");
                let most = format!("at most {most} bytes for a file of {} bytes", region.length());
                Box::new(fail(message).expected(most))
            })?;
            at_once(chunk, &format!("a chunk of {chunk_shape:?} {dtype}"), region, max_chunk)?;
            chunked(&dataset, index, region)?;
            band = chunk_shape.first().copied().unwrap_or(1).max(1);
        }
        _ => {
            let message = "it is a virtual dataset: its data are in other datasets or files".to_owned();
            return Err(cannot(message, ELSEWHERE));
        }
    }
    // Whole bands of chunks, so that none is decoded twice.
    let block = (BLOCK / row_bytes / band).max(1).saturating_mul(band).min(rows);
    let block_bytes = block.saturating_mul(row_bytes);
    if block_bytes > most {
        return Err(fail(format!(
            "{block_bytes} of its bytes belong together, more than the file could hold"
        )));
    }
    if block_bytes > BLOCK {
        at_once(block_bytes, &format!("a band of {block} of its rows"), region, max_chunk)?;
    }
    Ok(Some(Place::Decoded(Box::new(dataset), block)))
}

/// Checks that so many bytes, which are decoded at once, may be in memory.
fn at_once(bytes: u64, what: &str, region: &Region, max_chunk: Option<u64>) -> Result<(), Box<Diagnostic>> {
    let own = || region.length().saturating_mul(CHUNK_RATIO).saturating_add(FREE_CHUNK);
    let most = max_chunk.unwrap_or_else(own);
    if bytes <= most {
        return Ok(());
    }
    let message = "more of it is compressed together than may be in memory at once".to_owned();
    let diagnostic = Diagnostic::error(FormatCode::ChunkSize, message);
    let diagnostic =
        diagnostic.expected(format!("at most {most} bytes for a file of {} bytes", region.length()));
    let help = format!("if you trust the file, `--max-chunk-size {bytes}` reads it with that much memory");
    Err(Box::new(diagnostic.found(format!("{what}, {bytes} bytes")).help(help)))
}

/// Checks that the chunks of a dataset can be decoded and lie in the file.
fn chunked(dataset: &Dataset, index: ChunkIndex, region: &Arc<Region>) -> Result<(), Box<Diagnostic>> {
    const REPACK: &str = "save it without that: `h5repack -f NONE -l CONTI FILE NEW`";
    if index == ChunkIndex::BTreeV2 {
        let message =
            "its chunks are listed in a version 2 B-tree (two unlimited dimensions), which is not read";
        return Err(cannot(message.to_owned(), REPACK));
    }
    if let Some(filter) = dataset.filter_pipeline().iter().find(|filter| !FILTERS.contains(&filter.id)) {
        let name = filter.name.as_deref().map_or(String::new(), |name| format!(" `{}`", shown(name)));
        let message =
            format!("its chunks are compressed by the filter {}{name}, which is not read", filter.id);
        return Err(cannot(message, REPACK));
    }
    let chunks = dataset.chunks();
    let chunks = chunks.map_err(|error| fail(format!("its chunks cannot be found: {}", said(&error))))?;
    for chunk in &chunks {
        let (size, address, length) = (chunk.storage_size, chunk.address, region.length());
        let outside =
            || fail(format!("a chunk of {size} bytes at {address} is not all in the file of {length} bytes"));
        region.place(address, size).ok_or_else(outside)?;
    }
    Ok(())
}
