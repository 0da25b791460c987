//! Tables and checkpoints for the tests of this folder, made by hand.

use std::path::PathBuf;

use prost::Message;

use super::{TABLE_MAGIC, masked, proto};
use crate::format::testing::put;

/// Appends a number, seven bits in each byte.
pub(super) fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Returns a handle of a block.
pub(super) fn handle(offset: u64, size: u64) -> Vec<u8> {
    let mut handle = Vec::new();
    varint(&mut handle, offset);
    varint(&mut handle, size);
    handle
}

/// Returns an entry of a block.
pub(super) fn entry(shared: u64, unshared: &[u8], value: &[u8]) -> Vec<u8> {
    let mut entry = Vec::new();
    for number in [shared, unshared.len() as u64, value.len() as u64] {
        varint(&mut entry, number);
    }
    [&entry, unshared, value].concat()
}

/// Returns a block of these entries, where every fourth key is whole.
pub(super) fn block(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let (mut block, mut restarts, mut last): (_, Vec<u32>, &[u8]) = (Vec::new(), Vec::new(), &[]);
    for (number, (key, value)) in entries.iter().enumerate() {
        let mut shared = last.iter().zip(key).take_while(|(a, b)| a == b).count();
        if number % 4 == 0 {
            restarts.push(block.len() as u32);
            shared = 0;
        }
        block.extend(entry(shared as u64, &key[shared..], value));
        last = key;
    }
    block.extend(restarts.iter().flat_map(|at| at.to_le_bytes()));
    block.extend((restarts.len() as u32).to_le_bytes());
    block
}

/// A file that blocks are added to.
#[derive(Default)]
pub(super) struct Table(pub(super) Vec<u8>);

impl Table {
    /// Adds a block with its compression and its checksum, and returns its handle.
    pub(super) fn add(&mut self, block: &[u8], compression: u8) -> Vec<u8> {
        let handle = handle(self.0.len() as u64, block.len() as u64);
        let begin = self.0.len();
        self.0.extend_from_slice(block);
        self.0.push(compression);
        let crc = masked(crc32c::crc32c(&self.0[begin..]));
        self.0.extend(crc.to_le_bytes());
        handle
    }

    /// Adds the index of the data blocks, and the footer.
    pub(super) fn finish(mut self, handles: &[Vec<u8>]) -> Vec<u8> {
        let meta = self.add(&block(&[]), 0);
        let named: Vec<_> =
            handles.iter().enumerate().map(|(at, handle)| (vec![at as u8], handle.clone())).collect();
        let index = self.add(&block(&named), 0);
        self.footer(&[meta, index].concat())
    }

    /// Adds the footer.
    pub(super) fn footer(mut self, handles: &[u8]) -> Vec<u8> {
        let mut handles = handles.to_vec();
        handles.resize(40, 0);
        self.0.extend(handles);
        self.0.extend(TABLE_MAGIC);
        self.0
    }
}

/// Returns a table of these entries, so many in a block.
pub(super) fn table(entries: &[(Vec<u8>, Vec<u8>)], in_block: usize, compressed: bool) -> Vec<u8> {
    let mut table = Table::default();
    let mut handles = Vec::new();
    for chunk in entries.chunks(in_block) {
        let mut block = block(chunk);
        if compressed {
            block = snap::raw::Encoder::new().compress_vec(&block).expect("compresses");
        }
        handles.push(table.add(&block, u8::from(compressed)));
    }
    table.finish(&handles)
}

/// A checkpoint that is made in a temporary folder.
pub(super) struct Bundle {
    pub(super) folder: tempfile::TempDir,
    pub(super) header: proto::Header,
    pub(super) entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// The data files.
    pub(super) data: Vec<Vec<u8>>,
}

impl Bundle {
    /// Makes one without tensors, with that many data files.
    pub(super) fn new(shards: i32) -> Bundle {
        let header = proto::Header { shards, endianness: 0, version: None };
        let folder = tempfile::tempdir().expect("folder");
        Bundle { folder, header, entries: Vec::new(), data: vec![Vec::new(); shards as usize] }
    }

    /// Appends bytes to a data file and returns an entry for them.
    pub(super) fn place(&mut self, shard: usize, dtype: i32, dims: &[i64], bytes: &[u8]) -> proto::Entry {
        let offset = self.data[shard].len() as i64;
        self.data[shard].extend_from_slice(bytes);
        proto::Entry {
            dtype,
            shape: Some(shape(dims)),
            shard: shard as i32,
            offset,
            size: bytes.len() as i64,
            crc: masked(crc32c::crc32c(bytes)),
            slices: Vec::new(),
        }
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, key: impl Into<Vec<u8>>, entry: &proto::Entry) {
        self.entries.push((key.into(), entry.encode_to_vec()));
    }

    /// Adds a tensor of bytes.
    pub(super) fn bytes(&mut self, shard: usize, key: &str, bytes: &[u8]) {
        let entry = self.place(shard, 4, &[bytes.len() as i64], bytes);
        self.add(key, &entry);
    }

    /// Writes the files and returns the index's path.
    pub(super) fn write(&mut self) -> PathBuf {
        let mut entries = self.entries.clone();
        entries.push((Vec::new(), self.header.encode_to_vec()));
        entries.sort();
        for (shard, bytes) in self.data.iter().enumerate() {
            put(self.folder.path(), &format!("m.data-{shard:05}-of-{:05}", self.header.shards), bytes);
        }
        put(self.folder.path(), "m.index", &table(&entries, 3, false))
    }
}

/// Returns a shape.
pub(super) fn shape(dims: &[i64]) -> proto::Shape {
    let dims = dims.iter().map(|&size| proto::Dim { size }).collect();
    proto::Shape { dims, unknown_rank: false }
}

/// Returns a slice; a length of -1 stands for all of the dimension.
pub(super) fn slice(extents: &[(i64, i64)]) -> proto::Slice {
    let extents = extents
        .iter()
        .map(|&(start, length)| proto::Extent { start, length: (length != -1).then_some(length) });
    proto::Slice { extents: extents.collect() }
}
