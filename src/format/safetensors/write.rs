//! Where the tensors of a new checkpoint lie, and its headers' bytes; nothing is written here.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::header::{LIMIT, METADATA};
use crate::diag::{Collector, Diagnostic, Errors};
use crate::dtype::Dtype;
use crate::format::shards::{INDEX_NAME, SINGLE_NAME, index_bytes, shard_name};
use crate::format::shown;

/// A tensor that will be written.
#[derive(Clone, Copy, Debug)]
pub struct OutputTensor<'a> {
    /// Its name.
    pub key: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, slowest dimension first.
    pub shape: &'a [u64],
}

/// A file that holds tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFile {
    /// Its name, without a folder.
    pub name: String,
    /// What stands before the data: the 8-byte length and the JSON text, padded with spaces to a multiple of
    /// 8 bytes.
    pub header: Vec<u8>,
    /// The whole file's size in bytes, with the header.
    pub size: u64,
}

/// The index of a sharded checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputIndex {
    /// Its name, without a folder.
    pub name: String,
    /// All of its text.
    pub bytes: Vec<u8>,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its file, an index into [`OutputLayout::files`].
    pub file: usize,
    /// Where its first byte lies, in bytes from the start of the file.
    pub offset: u64,
}

/// A checkpoint that is ready to be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLayout {
    /// The files that hold tensors, at least one.
    pub files: Vec<OutputFile>,
    /// The index; there is one where there are several files.
    pub index: Option<OutputIndex>,
    /// Each tensor's place, in the order in which the tensors were given.
    pub placements: Vec<Placement>,
}

/// Lays out a checkpoint; the same tensors and metadata give the same bytes.
///
/// The tensors are cut into shards in the order given, each of at most `max_shard_size` bytes of tensor data;
/// a larger tensor has a shard of its own. Inside a file wider types come first, which aligns every tensor.
///
/// # Errors
/// Returns `format/reserved-name` for a tensor named `__metadata__`, `format/duplicate-key` for a name given
/// twice, `format/shape-overflow` and `format/sub-byte` for a tensor without a size in whole bytes, and
/// `format/header-too-large` for a header of more than 100,000,000 bytes, which no reader would accept.
pub fn lay_out(
    tensors: &[OutputTensor<'_>],
    metadata: &BTreeMap<String, String>,
    max_shard_size: Option<u64>,
) -> Result<OutputLayout, Errors> {
    lay_out_within(LIMIT, tensors, metadata, max_shard_size)
}

/// Does the work of [`lay_out`] for a given limit of a header's length.
fn lay_out_within(
    limit: u64,
    tensors: &[OutputTensor<'_>],
    metadata: &BTreeMap<String, String>,
    max_shard_size: Option<u64>,
) -> Result<OutputLayout, Errors> {
    let (sizes, total) = check(tensors)?;
    let shards = cut(&sizes, max_shard_size.unwrap_or(u64::MAX));
    let count = shards.len();
    let mut files = Vec::with_capacity(count);
    let mut placements = vec![Placement { file: 0, offset: 0 }; tensors.len()];
    let mut out = Collector::default();
    for (file, shard) in shards.into_iter().enumerate() {
        let name = if count == 1 { SINGLE_NAME.to_owned() } else { shard_name(file, count) };
        let mut order: Vec<usize> = shard.collect();
        order.sort_by_key(|&tensor| std::cmp::Reverse(tensors[tensor].dtype.bits()));
        let mut end = 0;
        let mut entries = Vec::with_capacity(order.len());
        for &tensor in &order {
            let begin = end;
            end += sizes[tensor];
            entries.push((tensors[tensor], [begin, end]));
            placements[tensor] = Placement { file, offset: begin };
        }
        let header = header_bytes(&HeaderText { metadata, entries: &entries })?;
        let length = header.len() as u64 - 8;
        if length > limit {
            let message =
                format!("the header of `{name}` would be {length} bytes long, over the limit of {limit}");
            let help = if count == 1 {
                "write several files with `--max-shard-size`"
            } else {
                "choose a smaller `--max-shard-size`"
            };
            out.push(Diagnostic::error("format/header-too-large", message).help(help));
        }
        for tensor in order {
            placements[tensor].offset += header.len() as u64;
        }
        files.push(OutputFile { name, size: header.len() as u64 + end, header });
    }
    out.finish(())?;
    let index = if count == 1 { None } else { Some(index(tensors, &placements, &files, total)?) };
    Ok(OutputLayout { files, index, placements })
}

/// Returns each tensor's size and their sum, in bytes.
fn check(tensors: &[OutputTensor<'_>]) -> Result<(Vec<u64>, u64), Errors> {
    let mut out = Collector::default();
    let mut seen = HashSet::with_capacity(tensors.len());
    let mut sizes = Vec::with_capacity(tensors.len());
    // Room for a header, so that no file's size can overflow.
    let mut total = Some(8 + LIMIT);
    for tensor in tensors {
        let mut fail = |code, message: String| out.push(Diagnostic::error(code, message).tensor(tensor.key));
        if tensor.key == METADATA {
            fail("format/reserved-name", "no tensor can be named `__metadata__` in safetensors".to_owned());
        }
        if !seen.insert(tensor.key) {
            fail("format/duplicate-key", "two tensors of the output have this name".to_owned());
        }
        let elements = tensor.shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1)));
        let elements = elements.map(|product| if tensor.shape.contains(&0) { 0 } else { product });
        let bits = elements.and_then(|elements| elements.checked_mul(tensor.dtype.bits()));
        let dtype = tensor.dtype;
        match bits {
            None => {
                fail("format/shape-overflow", format!("the size of {:?} {dtype} overflows", tensor.shape))
            }
            Some(bits) if !bits.is_multiple_of(8) => {
                fail(
                    "format/sub-byte",
                    format!("{:?} {dtype} take {bits} bits and end inside a byte", tensor.shape),
                );
            }
            Some(bits) => {
                total = total.and_then(|total| total.checked_add(bits / 8));
                sizes.push(bits / 8);
            }
        }
    }
    if total.is_none() {
        out.push(Diagnostic::error("format/shape-overflow", "the size of all tensors overflows 64 bits"));
    }
    let total = total.unwrap_or(0).saturating_sub(8 + LIMIT);
    out.finish((sizes, total)).map(|(value, _)| value)
}

/// Cuts the tensors into shards; there is at least one shard, and no empty one beside others.
fn cut(sizes: &[u64], max_shard_size: u64) -> Vec<Range<usize>> {
    let mut shards = Vec::new();
    let mut start = 0;
    let mut filled = 0_u64;
    for (tensor, &size) in sizes.iter().enumerate() {
        if tensor > start && filled + size > max_shard_size {
            shards.push(start..tensor);
            start = tensor;
            filled = 0;
        }
        filled += size;
    }
    shards.push(start..sizes.len());
    shards
}

fn index(
    tensors: &[OutputTensor<'_>],
    placements: &[Placement],
    files: &[OutputFile],
    total: u64,
) -> Result<OutputIndex, Errors> {
    let weight_map =
        tensors.iter().zip(placements).map(|(t, place)| (t.key, files[place.file].name.as_str()));
    let bytes = index_bytes(total, weight_map.collect()).map_err(|error| no_json("the index", &error))?;
    Ok(OutputIndex { name: INDEX_NAME.to_owned(), bytes })
}

/// A header's JSON text. The entries are written in the order of their offsets, the metadata sorted, so that
/// the bytes depend on nothing else; the reference writer keeps the metadata in a `HashMap` and its bytes
/// vary.
struct HeaderText<'a> {
    metadata: &'a BTreeMap<String, String>,
    entries: &'a [(OutputTensor<'a>, [u64; 2])],
}

#[derive(serde::Serialize)]
struct EntryText<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    data_offsets: [u64; 2],
}

impl Serialize for HeaderText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for &(tensor, data_offsets) in self.entries {
            let entry = EntryText { dtype: tensor.dtype.name(), shape: tensor.shape, data_offsets };
            map.serialize_entry(tensor.key, &entry)?;
        }
        map.end()
    }
}

/// Returns the length and the text of a header.
fn header_bytes(text: &HeaderText<'_>) -> Result<Vec<u8>, Errors> {
    let mut bytes = vec![0; 8];
    serde_json::to_writer(&mut bytes, text).map_err(|error| no_json("the header", &error))?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    let length = bytes.len() as u64 - 8;
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// Describes what cannot happen with strings and integers, but is an error in serde_json's terms.
fn no_json(what: &str, error: &serde_json::Error) -> Errors {
    Diagnostic::error("format/no-json", format!("cannot write {what} as JSON: {}", shown(&error.to_string())))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::*;

    fn tensor<'a>(key: &'a str, dtype: Dtype, shape: &'a [u64]) -> OutputTensor<'a> {
        OutputTensor { key, dtype, shape }
    }

    fn plain(tensors: &[OutputTensor<'_>], max: Option<u64>) -> Result<OutputLayout, Errors> {
        lay_out(tensors, &BTreeMap::new(), max)
    }

    fn code(result: Result<OutputLayout, Errors>) -> &'static str {
        result.expect_err("refused").diagnostics()[0].code
    }

    /// Parses a header as the reference implementation does.
    fn reference(file: &OutputFile) -> ::safetensors::tensor::Metadata {
        let metadata: ::safetensors::tensor::Metadata =
            serde_json::from_slice(&file.header[8..]).expect("a valid header");
        assert_eq!(metadata.data_len() as u64 + file.header.len() as u64, file.size);
        assert_eq!(
            u64::from_le_bytes(file.header[..8].try_into().expect("8 bytes")) + 8,
            file.header.len() as u64
        );
        assert!(file.header.len().is_multiple_of(8));
        metadata
    }

    #[test]
    fn wider_types_come_first_and_the_reference_agrees() {
        let tensors = [
            tensor("a", Dtype::F4, &[4]),
            tensor("b", Dtype::BF16, &[3]),
            tensor("c \"q\" ä\n", Dtype::F32, &[2, 2]),
            tensor("d", Dtype::I64, &[]),
            tensor("e", Dtype::BF16, &[0, 7]),
        ];
        let metadata = BTreeMap::from([("z".to_owned(), "1".to_owned()), ("a".to_owned(), "2".to_owned())]);
        let layout = lay_out(&tensors, &metadata, None).expect("lays out");
        assert_eq!((layout.files[0].name.as_str(), &layout.index), ("model.safetensors", &None));
        let parsed = reference(&layout.files[0]);
        assert_eq!(parsed.metadata().as_ref().map(|metadata| metadata.len()), Some(2));
        assert_eq!(parsed.offset_keys(), ["d", "c \"q\" ä\n", "b", "e", "a"]);
        let start = layout.files[0].header.len() as u64;
        let offsets: Vec<u64> = layout.placements.iter().map(|place| place.offset - start).collect();
        assert_eq!(offsets, [30, 24, 8, 0, 30]);
        for (tensor, place) in tensors.iter().zip(&layout.placements) {
            let info = parsed.info(tensor.key).expect("is there");
            assert_eq!(info.data_offsets.0 as u64 + start, place.offset);
        }
        assert_eq!(lay_out(&tensors, &metadata, None), Ok(layout));
    }

    #[test]
    fn shards_are_cut_in_the_given_order_and_open_again() {
        let tensors = [
            tensor("c", Dtype::U8, &[3]),
            tensor("b", Dtype::U8, &[3]),
            tensor("big", Dtype::U8, &[100]),
            tensor("a", Dtype::U8, &[4]),
            tensor("f", Dtype::F32, &[1]),
        ];
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let layout = lay_out(&tensors, &metadata, Some(8)).expect("lays out");
        let files: Vec<usize> = layout.placements.iter().map(|place| place.file).collect();
        assert_eq!(files, [0, 0, 1, 2, 2]);
        assert_eq!(layout.files[2].name, "model-00003-of-00003.safetensors");
        layout.files.iter().for_each(|file| drop(reference(file)));

        let folder = tempfile::tempdir().expect("folder");
        for file in &layout.files {
            let mut bytes = file.header.clone();
            bytes.resize(file.size as usize, 0);
            put(folder.path(), &file.name, &bytes);
        }
        let index = layout.index.expect("has an index");
        assert!(index.bytes.starts_with(b"{\n  \"metadata\": {\n    \"total_size\": 114\n"));
        put(folder.path(), &index.name, &index.bytes);
        let reader = open_plain(folder.path()).expect("opens");
        let catalog = reader.catalog();
        assert_eq!((catalog.tensors.len(), &catalog.warnings, &catalog.metadata), (5, &vec![], &metadata));
        for (tensor, place) in tensors.iter().zip(&layout.placements) {
            let found = &catalog.tensors[catalog.find(tensor.key).expect("is there")];
            assert_eq!((found.file, found.offset), (place.file, place.offset));
        }
    }

    #[test]
    fn one_shard_needs_no_index() {
        let tensors = [tensor("a", Dtype::U8, &[4]), tensor("b", Dtype::U8, &[4])];
        assert!(plain(&tensors, Some(8)).expect("lays out").index.is_none());
        assert!(plain(&tensors, Some(7)).expect("lays out").index.is_some());
        assert!(plain(&tensors[..1], Some(1)).expect("lays out").index.is_none());
        let empty = plain(&[], Some(1)).expect("lays out");
        assert_eq!(
            (empty.files[0].header.as_slice(), empty.files[0].size),
            (&b"\x08\0\0\0\0\0\0\0{}      "[..], 16)
        );
    }

    #[test]
    fn what_no_reader_could_read_is_refused() {
        assert_eq!(code(plain(&[tensor("__metadata__", Dtype::U8, &[1])], None)), "format/reserved-name");
        let twice = [tensor("a", Dtype::U8, &[1]), tensor("a", Dtype::U8, &[1])];
        assert_eq!(code(plain(&twice, Some(1))), "format/duplicate-key");
        assert_eq!(code(plain(&[tensor("a", Dtype::F4, &[3])], None)), "format/sub-byte");
        assert_eq!(code(plain(&[tensor("a", Dtype::F64, &[u64::MAX])], None)), "format/shape-overflow");
        let wide = [tensor("a", Dtype::U8, &[u64::MAX / 2]), tensor("b", Dtype::U8, &[u64::MAX / 2])];
        assert_eq!(code(plain(&wide, Some(1))), "format/shape-overflow");
    }

    #[test]
    fn a_header_over_the_limit_is_refused_with_advice() {
        let tensors = [tensor("a", Dtype::U8, &[4]), tensor("b", Dtype::U8, &[4])];
        let refused = |max| {
            let errors = lay_out_within(60, &tensors, &BTreeMap::new(), max).expect_err("refused");
            let diagnostic = errors.diagnostics()[0].clone();
            (diagnostic.code, diagnostic.help.expect("has help"))
        };
        assert_eq!(refused(None).0, "format/header-too-large");
        assert!(refused(None).1.contains("--max-shard-size"));
        assert!(lay_out_within(60, &tensors, &BTreeMap::new(), Some(4)).is_ok());
    }
}
