//! Files made by hand: what is read, what is refused, and what is written.

use std::collections::BTreeMap;

use super::write::lay_out;
use crate::diag::{Collector, Diagnostic, Errors};
use crate::dtype::Dtype;
use crate::format::layout::{FileLayout, OutputTensor};
use crate::format::testing::*;
use crate::format::{OpenOptions, Reader, open};

fn text(text: &str) -> Vec<u8> {
    [&[0xd9, text.len() as u8][..], text.as_bytes()].concat()
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = vec![0xde];
    bytes.extend((entries.len() as u16).to_be_bytes());
    entries.iter().for_each(|(name, value)| bytes.extend([text(name), value.clone()].concat()));
    bytes
}

fn extension(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[0xc8][..], &(payload.len() as u16).to_be_bytes(), &[kind], payload].concat()
}

fn array(shape: &[u8], name: &str, data: &[u8]) -> Vec<u8> {
    let payload =
        [&[0x93, 0x90 + shape.len() as u8][..], shape, &text(name), &[0xc4, data.len() as u8], data].concat();
    extension(1, &payload)
}

fn open_bytes(bytes: &[u8], root: Option<&str>) -> Result<Box<dyn Reader>, Errors> {
    let folder = tempfile::tempdir().expect("folder");
    let options = OpenOptions { root: root.map(str::to_owned), ..OpenOptions::default() };
    open(&put(folder.path(), "a.msgpack", bytes), &options)
}

fn keys(bytes: &[u8]) -> Vec<String> {
    let reader = open_bytes(bytes, None).expect("opens");
    reader.catalog().tensors.iter().map(|tensor| tensor.key.clone()).collect()
}

fn skipped(bytes: &[u8]) -> String {
    let reader = open_bytes(bytes, None).expect("opens");
    reader.catalog().warnings.iter().map(|warning| warning.message.clone()).collect()
}

fn small() -> Vec<u8> {
    map(&[
        ("a", map(&[("w", array(&[2, 1], "float32", &[1, 2, 3, 4, 5, 6, 7, 8])), ("n", vec![0xcd, 1, 2])])),
        ("list", vec![0x93, 1, 0xc0, 0xa1, b'x']),
        ("half", vec![0xcb, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("b", array(&[], "bool", &[1])),
    ])
}

#[test]
fn a_small_file_is_read_and_no_part_of_it_is_missed() {
    let bytes = small();
    let reader = open_bytes(&bytes, None).expect("opens");
    let found: Vec<(&str, Dtype, &[u64])> =
        reader.catalog().tensors.iter().map(|t| (t.key.as_str(), t.dtype, &t.shape[..])).collect();
    assert_eq!(found, [("a/w", Dtype::F32, &[2, 1][..]), ("b", Dtype::Bool, &[])]);
    let mut buffer = [0; 8];
    reader.read_exact_at(0, reader.catalog().tensors[0].offset, &mut buffer).expect("reads");
    assert_eq!(buffer, [1, 2, 3, 4, 5, 6, 7, 8]);
    let said = "not read: `a/n` (a number), `list` (a list of 3 things), `half` (a number)";
    assert_eq!(skipped(&bytes), said);
    for length in 2..bytes.len() {
        assert!(open_bytes(&bytes[..length], None).is_err(), "{length}");
    }
    let longer = [&bytes[..], &[0xc0]].concat();
    assert_eq!(codes(&open_bytes(&longer, None)), ["format/trailing-bytes"]);
}

#[test]
fn no_changed_byte_makes_it_panic_or_read_past_the_end() {
    let good = small();
    for at in 0..good.len() {
        for change in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut bytes = good.clone();
            bytes[at] ^= change;
            let Ok(reader) = open_bytes(&bytes, None) else { continue };
            for tensor in &reader.catalog().tensors {
                let mut buffer = vec![0; tensor.bytes() as usize];
                reader.read_exact_at(tensor.file, tensor.offset, &mut buffer).expect("checked when opened");
            }
        }
    }
}

#[test]
fn lists_are_looked_into_where_they_hold_arrays() {
    let one = || array(&[1], "uint8", &[5]);
    let list = [&[0x93, 7][..], &[0x91], &one(), &map(&[("deep", one())])].concat();
    assert_eq!(keys(&map(&[("l", list)])), ["l/1/0", "l/2/deep"]);
    let plain =
        map(&[("l", [&[0x92][..], &map(&[("a", vec![0xc0]), ("b", vec![0x92, 1, 2])]), &[0x90]].concat())]);
    assert_eq!(skipped(&plain), "not read: `l` (a list of 2 things)");
}

#[test]
fn keys_are_texts_or_whole_numbers_and_none_stands_twice() {
    let one = array(&[1], "uint8", &[5]);
    let with = |key: &[u8]| [&[0xde, 0, 1][..], key, &one].concat();
    assert_eq!(
        (keys(&with(&[7])), keys(&with(&[0xcd, 1, 0]))),
        (vec!["7".to_owned()], vec!["256".to_owned()])
    );
    for key in [&[0xc3][..], &[0xff], &[0xc4, 1, b'a'], &[0xd9, 1, 0xff], &[0x90]] {
        assert_eq!(codes(&open_bytes(&with(key), None)), ["format/bad-header"], "{key:?}");
    }
    let twice = map(&[("a", map(&[("w", one.clone()), ("w", one.clone())]))]);
    assert_eq!(codes(&open_bytes(&twice, None)), ["format/duplicate-key"]);
    // The same name by two ways.
    let two_ways = map(&[("a/w", one.clone()), ("a", map(&[("w", one)]))]);
    assert_eq!(codes(&open_bytes(&two_ways, None)), ["format/duplicate-key"]);
}

#[test]
fn counts_depth_and_names_are_bounded() {
    for bytes in [
        vec![0xdf, 0xff, 0xff, 0xff, 0xff],
        map(&[("a", vec![0xdd, 0xff, 0xff, 0xff, 0xff])]),
        map(&[("a", vec![0xdb, 0xff, 0xff, 0xff, 0xff])]),
        map(&[("a", vec![0xc9, 0xff, 0xff, 0xff, 0xff, 1])]),
    ] {
        assert_eq!(codes(&open_bytes(&bytes, None)), ["format/truncated"], "{bytes:?}");
    }
    let nested = |depth: usize| {
        let mut bytes: Vec<u8> = [0xde, 0, 1, 0xd9, 1, b'a'].repeat(depth);
        bytes.extend(array(&[1], "uint8", &[5]));
        open_bytes(&bytes, None)
    };
    assert!(nested(128).is_ok());
    assert_eq!(codes(&nested(129)), ["format/bad-header"]);
    // A name of 60 KB on the way to each of 2000 leaves.
    let mut bytes = vec![0xde, 0, 1, 0xda];
    bytes.extend(60_000_u16.to_be_bytes());
    bytes.extend([b'n'; 60_000]);
    let leaves: Vec<String> = (0..2000).map(|leaf| leaf.to_string()).collect();
    let leaves: Vec<(&str, Vec<u8>)> = leaves.iter().map(|leaf| (leaf.as_str(), vec![0xc0])).collect();
    bytes.extend(map(&leaves));
    assert_eq!(codes(&open_bytes(&bytes, None)), ["format/header-too-large"]);
    // A list has one leaf, however many empty lists and numbers it has.
    let mut bytes = vec![0xde, 0, 1, 0xd9, 1, b'a', 0xdd, 0, 0x10, 0, 0];
    bytes.resize(bytes.len() + (1 << 20), 0x90);
    assert_eq!(skipped(&bytes), "not read: `a` (a list of 1048576 things)");
}

#[test]
fn an_array_is_checked_before_it_is_used() {
    let payload = |bytes: &[u8]| extension(1, bytes);
    for (value, code) in [
        (array(&[3], "float32", &[0; 11]), "format/size-mismatch"),
        (array(&[3], "int4", &[0; 3]), "format/unknown-dtype"),
        (array(&[3], "object", &[0; 3]), "format/unknown-dtype"),
        (payload(&[0x92, 0x90, 0xa4]), "format/bad-header"),
        (payload(&[]), "format/bad-header"),
        (payload(&[0x93, 0x91, 0xff, 0xa4, b'b', b'o', b'o', b'l', 0xc4, 1, 0]), "format/bad-header"),
        // The data ends before the extension, or behind it.
        (payload(&[0x93, 0x91, 1, 0xa4, b'b', b'o', b'o', b'l', 0xc4, 1, 0, 0]), "format/bad-header"),
        (payload(&[0x93, 0x91, 1, 0xa4, b'b', b'o', b'o', b'l', 0xc4, 2, 0]), "format/bad-header"),
        (payload(&[0x93, 0xdd, 0xff, 0xff, 0xff, 0xff]), "format/bad-header"),
    ] {
        let bytes = map(&[("a", value), ("b", array(&[1], "uint8", &[5])), ("c", vec![0xc0])]);
        let result = open_bytes(&bytes, None);
        let found: Vec<Diagnostic> = match &result {
            Err(errors) => errors.diagnostics().to_vec(),
            Ok(reader) => reader.catalog().unread.iter().map(|(_, reason)| reason.clone()).collect(),
        };
        let errors: Vec<_> = found.iter().filter(|diagnostic| diagnostic.code != "format/skipped").collect();
        assert_eq!(
            (errors.len(), errors[0].code.as_str(), &errors[0].tensors[..]),
            (1, code, &["a".to_owned()][..]),
            "{bytes:?}"
        );
    }
    let huge = [&[0x93, 0x92][..], &[0xcf; 1], &[0xff; 8], &[2], &text("uint8"), &[0xc4, 0]].concat();
    assert_eq!(codes(&open_bytes(&map(&[("a", extension(1, &huge))]), None)), ["format/shape-overflow"]);
}

#[test]
fn what_lies_beside_the_root_is_not_looked_at() {
    let bytes = map(&[
        ("target", map(&[("w", array(&[1], "uint8", &[5]))])),
        ("state", map(&[("w", array(&[1], "int4", &[5]))])),
    ]);
    assert_eq!(codes(&open_bytes(&bytes, None)), ["format/ambiguous-root"]);
    assert_eq!(codes(&open_bytes(&bytes, Some("state"))), ["format/unknown-dtype"]);
    let reader = open_bytes(&bytes, Some("target")).expect("opens");
    assert_eq!(reader.catalog().tensors[0].key, "w");
}

fn chunked(shape: &[(&str, Vec<u8>)], chunks: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let parts = [("chunks", map(chunks)), ("shape", map(shape)), ("__msgpack_chunked_array__", vec![0xc3])];
    map(&[("a", map(&[("w", map(&parts)), ("v", array(&[1], "uint8", &[9]))]))])
}

#[test]
fn chunks_are_joined_whatever_the_order_of_the_entries() {
    let chunk = |data: &[u8]| array(&[data.len() as u8 / 2], "int16", data);
    let (first, second) = (chunk(&[1, 2, 3, 4, 5, 6, 7, 8]), chunk(&[9, 10, 11, 12]));
    let shape = [("0", vec![2]), ("1", vec![3])];
    let bytes = chunked(&shape, &[("1", second.clone()), ("0", first.clone())]);
    let reader = open_bytes(&bytes, None).expect("opens");
    let catalog = reader.catalog();
    assert_eq!((catalog.tensors.len(), catalog.warnings.len()), (2, 0));
    let tensor = &catalog.tensors[catalog.find("a/w").expect("is there")];
    assert_eq!((tensor.dtype, &tensor.shape[..]), (Dtype::I16, &[2, 3][..]));
    let mut buffer = [0; 12];
    reader.read_exact_at(tensor.file, tensor.offset, &mut buffer).expect("reads");
    assert_eq!(buffer, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);

    let float = array(&[1], "float32", &[0; 4]);
    for (shape, chunks) in [
        (&[("0", vec![7])][..], vec![("0", first.clone()), ("1", second.clone())]),
        (&shape, vec![("0", first.clone()), ("2", second.clone())]),
        (&shape[1..], vec![("0", second.clone())]),
        (&[("0", vec![6])], vec![("0", first.clone()), ("1", float)]),
        (&[("0", vec![0])], vec![]),
        (&[("0", vec![0xc0])], vec![("0", first.clone())]),
        (&[("0", vec![4])], vec![("0", array(&[2, 2], "int16", &[0; 8]))]),
    ] {
        assert_eq!(codes(&open_bytes(&chunked(shape, &chunks), None)), ["format/bad-entry"], "{shape:?}");
    }
}

fn written(tensors: &[OutputTensor<'_>], sizes: &[u64]) -> Result<FileLayout, Errors> {
    let mut out = Collector::default();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let layout = lay_out(tensors, sizes, &metadata, &mut out)?;
    out.finish(layout).map(|(layout, _)| layout)
}

fn tensor<'a>(key: &'a str, dtype: Dtype, shape: &'a [u64]) -> OutputTensor<'a> {
    OutputTensor { key, dtype, shape }
}

#[test]
fn what_is_written_is_read_back_at_every_form_of_a_length() {
    // Around the lengths at which markers change: the parts around the data take 12 bytes and more.
    let sizes: Vec<[u64; 1]> = (0..24).chain(225..275).chain(65_500..65_545).map(|size| [size]).collect();
    let names: Vec<String> =
        (0..sizes.len()).map(|at| format!("n{}/{}", at % 7, "x".repeat(at % 40))).collect();
    let unique: Vec<String> = names.iter().enumerate().map(|(at, name)| format!("{name}/{at}")).collect();
    let tensors: Vec<OutputTensor<'_>> =
        unique.iter().zip(&sizes).map(|(key, shape)| tensor(key, Dtype::U8, shape)).collect();
    let lengths: Vec<u64> = sizes.iter().map(|size| size[0]).collect();
    let layout = written(&tensors, &lengths).expect("lays out");
    let mut bytes = vec![0; layout.size as usize];
    for (offset, piece) in &layout.pieces {
        bytes[*offset as usize..][..piece.len()].copy_from_slice(piece);
    }
    let reader = open_bytes(&bytes, None).expect("opens");
    assert_eq!((reader.catalog().tensors.len(), reader.catalog().warnings.len()), (tensors.len(), 0));
    for (tensor, offset) in tensors.iter().zip(&layout.offsets) {
        let found = &reader.catalog().tensors[reader.catalog().find(tensor.key).expect("is there")];
        assert_eq!((found.dtype, &found.shape[..], found.offset), (tensor.dtype, tensor.shape, *offset));
    }
    let again = written(&tensors, &lengths).expect("lays out");
    assert_eq!((again.pieces, again.offsets), (layout.pieces, layout.offsets));
    let empty = written(&[], &[]).expect("lays out");
    assert_eq!((empty.pieces, empty.size), (vec![(0, vec![0x80])], 1));
}

#[test]
fn what_flax_cannot_hold_is_refused_by_name() {
    let deep = ["a"; 129].join("/");
    let fits = ["a"; 128].join("/");
    assert!(written(&[tensor(&fits, Dtype::U8, &[1])], &[1]).is_ok());
    // The list, the shape, the name and the marker of the bytes take 18 bytes, the extension's type one.
    let most = u64::from(u32::MAX) - 19;
    assert!(written(&[tensor("a", Dtype::U8, &[most])], &[most]).is_ok());
    for (tensors, said) in [
        (&[tensor("a", Dtype::U8, &[most + 1])][..], "4 GiB"),
        (&[tensor("a", Dtype::U8, &[1 << 33])], "4 GiB"),
        (&[tensor(&deep, Dtype::U8, &[1])], "129 parts"),
        (&[tensor("a", Dtype::F4, &[2])], "no type for F4"),
        (&[tensor("a", Dtype::Q8_0, &[32])], "no type for Q8_0"),
        (&[tensor("a/b", Dtype::U8, &[1]), tensor("a", Dtype::U8, &[1])], "`a` would be"),
        (&[tensor("a", Dtype::U8, &[1]), tensor("a/b/c", Dtype::U8, &[1])], "`a` would be"),
    ] {
        let sizes: Vec<u64> = tensors.iter().map(|t| t.dtype.byte_len(t.shape[0]).expect("whole")).collect();
        let errors = written(tensors, &sizes).err().expect("refused");
        let diagnostic = &errors.diagnostics()[0];
        assert_eq!((diagnostic.code.as_str(), errors.diagnostics().len()), ("format/cannot-hold", 1));
        assert!(diagnostic.message.contains(said) && diagnostic.help.is_some(), "{diagnostic:?}");
    }
}
