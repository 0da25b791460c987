//! Writing a checkpoint: one data file, the index, and the file `checkpoint` that names it.
//! (tensorflow/tensorflow, `tensorflow/core/util/tensor_bundle/tensor_bundle.cc`; google/leveldb, `doc/table_format.md`)

use prost::Message;

use super::proto::{Dim, Entry, Header, Shape, TEXT, Version, number_of};
use super::{TABLE_MAGIC, graph, masked};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::format::layout::{Beside, DataSum, FileContents, FileLayout, OutputIndex, OutputTensor};

/// After how many bytes a block ends, as TensorFlow's tables have it (`tensorflow/core/lib/io/table_options.h`).
const BLOCK: usize = 262_144;

/// How many keys follow each other without what they share.
const RESTART: usize = 16;

/// The bytes that stand in an entry for its checksum, and how the field begins: the number 6, four bytes.
const SUM: [u8; 5] = [0x35, 0, 0, 0, 0];

/// Lays out the data file and what stands beside it.
///
/// # Errors
/// Types that TensorFlow does not have, an empty name, and more than 2^63 bytes are `format/cannot-hold`.
pub(super) fn lay_out(contents: &FileContents<'_>, out: &mut Collector) -> Result<FileLayout, Errors> {
    let (mut end, mut offsets) = (0_u64, Vec::with_capacity(contents.tensors.len()));
    let mut rows: Vec<Row> = Vec::with_capacity(contents.tensors.len() + 2);
    for (tensor, &size) in contents.tensors.iter().zip(contents.sizes) {
        offsets.push(end);
        match entry(tensor, end, size) {
            Ok(value) => rows.push(Row { key: tensor.key.into(), value, sum: Some(end..end + size) }),
            Err(diagnostic) => out.push(diagnostic.tensor(tensor.key)),
        }
        end += size;
    }
    let prefix = contents.single_name.strip_suffix(".index").unwrap_or(contents.single_name);
    let mut pieces = Vec::new();
    if let Some(graph) = graph::describe(contents.tensors.iter().map(|tensor| tensor.key)) {
        let (bytes, crc) = text(&graph.encode_to_vec());
        let (offset, size) = (whole(end)?, whole(bytes.len() as u64)?);
        let entry =
            Entry { dtype: TEXT, shape: Some(Shape::default()), offset, size, crc, ..Entry::default() };
        rows.push(Row { key: graph::KEY.into(), value: entry.encode_to_vec(), sum: None });
        let begin = end;
        end += bytes.len() as u64;
        pieces.push((begin, bytes));
    }
    let header = Header { shards: 1, endianness: 0, version: Some(Version { producer: 1, min_consumer: 0 }) };
    rows.push(Row { key: Vec::new(), value: header.encode_to_vec(), sum: None });
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    let index = OutputIndex { name: format!("{prefix}.index"), is_opened: true, ..table(&rows) };
    let names = format!("model_checkpoint_path: \"{prefix}\"\nall_model_checkpoint_paths: \"{prefix}\"\n");
    let pointer = ("checkpoint".to_owned(), names.into_bytes());
    let beside = Beside { data_name: format!("{prefix}.data-00000-of-00001"), index, pointer };
    Ok(FileLayout { pieces, size: end, checksums: Vec::new(), offsets, beside: Some(beside) })
}

/// A key of the index, its value, and the data of which the value holds the checksum, in its last four bytes.
struct Row {
    key: Vec<u8>,
    value: Vec<u8>,
    sum: Option<std::ops::Range<u64>>,
}

fn whole(number: u64) -> Result<i64, Errors> {
    let message = "the checkpoint would have more than 2^63 bytes, which TensorFlow cannot count";
    i64::try_from(number).map_err(|_| Diagnostic::error(FormatCode::CannotHold, message).into())
}

/// Returns the entry of a tensor, which ends in room for the checksum.
fn entry(tensor: &OutputTensor<'_>, offset: u64, size: u64) -> Result<Vec<u8>, Diagnostic> {
    let cannot = |message: String, help: &str| Diagnostic::error(FormatCode::CannotHold, message).help(help);
    if tensor.key.is_empty() {
        return Err(cannot(
            "TensorFlow has no tensor without a name".to_owned(),
            "give it a prefix with --add-prefix",
        ));
    }
    let Some(dtype) = number_of(tensor.dtype) else {
        let message = format!("TensorFlow has no type for {}", tensor.dtype);
        return Err(cannot(
            message,
            "cast with `--dtype`, leave the tensor out with `--drop`, or choose another `--format`",
        ));
    };
    let number = |number: u64| i64::try_from(number);
    let dim = |&size: &u64| number(size).map(|size| Dim { size });
    let dims: Result<Vec<Dim>, _> = tensor.shape.iter().map(dim).collect();
    let (Ok(dims), Ok(offset), Ok(size)) = (dims, number(offset), number(size)) else {
        let message = "a size or place of the tensor is over 2^63".to_owned();
        return Err(cannot(message, "choose another `--format`"));
    };
    let shape = Some(Shape { dims, unknown_rank: false });
    // A checksum of zero is left out by the encoder, so that the field always stands behind.
    let mut value = Entry { dtype, shape, offset, size, ..Entry::default() }.encode_to_vec();
    value.extend(SUM);
    Ok(value)
}

/// Returns a tensor that is one text, as it lies in the data file, and its checksum.
fn text(text: &[u8]) -> (Vec<u8>, u32) {
    let mut bytes = Vec::with_capacity(text.len() + 14);
    prost::encoding::encode_varint(text.len() as u64, &mut bytes);
    // The checksum counts a length as a number of four bytes, of eight where it does not fit.
    let crc = match u32::try_from(text.len()) {
        Ok(length) => crc32c::crc32c(&length.to_le_bytes()),
        Err(_) => crc32c::crc32c(&(text.len() as u64).to_le_bytes()),
    };
    let lengths = masked(crc).to_le_bytes();
    bytes.extend(lengths);
    bytes.extend(text);
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &lengths), text);
    (bytes, masked(crc))
}

/// A block of a table: keys without what they share with the key before.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    last: Vec<u8>,
    count: usize,
}

impl Block {
    /// Adds a key and its value.
    fn push(&mut self, key: &[u8], value: &[u8]) {
        let mut shared = 0;
        if self.count.is_multiple_of(RESTART) {
            self.restarts.push(self.bytes.len() as u32);
        } else {
            shared = self.last.iter().zip(key).take_while(|(a, b)| a == b).count();
        }
        let own = key.get(shared..).unwrap_or_default();
        for length in [shared, own.len(), value.len()] {
            prost::encoding::encode_varint(length as u64, &mut self.bytes);
        }
        self.bytes.extend(own);
        self.bytes.extend(value);
        self.last.clear();
        self.last.extend(key);
        self.count += 1;
    }

    fn finish(mut self) -> Vec<u8> {
        if self.restarts.is_empty() {
            self.restarts.push(0);
        }
        self.bytes.extend(self.restarts.iter().flat_map(|at| at.to_le_bytes()));
        self.bytes.extend((self.restarts.len() as u32).to_le_bytes());
        self.bytes
    }
}

/// Adds a block to a table with room for its checksum, and returns its handle.
fn add(index: &mut OutputIndex, block: Block) -> Vec<u8> {
    let (begin, bytes) = (index.bytes.len(), block.finish());
    let mut handle = Vec::new();
    prost::encoding::encode_varint(begin as u64, &mut handle);
    prost::encoding::encode_varint(bytes.len() as u64, &mut handle);
    index.bytes.extend(bytes);
    // Not compressed.
    index.bytes.push(0);
    let end = index.bytes.len();
    index.own_sums.push((begin..end, end));
    index.bytes.extend([0; 4]);
    handle
}

/// Makes the table of these rows, which are in order.
fn table(rows: &[Row]) -> OutputIndex {
    let (mut index, mut handles) = (OutputIndex::default(), Block::default());
    let mut block = Block::default();
    for (at, row) in rows.iter().enumerate() {
        block.push(&row.key, &row.value);
        if let Some(of) = row.sum.clone() {
            index.sums.push(DataSum { file: 0, of, at: index.bytes.len() + block.bytes.len() - 4 });
        }
        if block.bytes.len() >= BLOCK || at + 1 == rows.len() {
            let handle = add(&mut index, std::mem::take(&mut block));
            handles.push(&row.key, &handle);
        }
    }
    let meta = add(&mut index, Block::default());
    let own = add(&mut index, handles);
    let mut footer = [meta, own].concat();
    footer.resize(40, 0);
    index.bytes.extend(footer);
    index.bytes.extend(TABLE_MAGIC);
    index
}
