//! Files made by hand: what is read, what is refused, and what is written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::write::lay_out;
use crate::catalog::TensorMeta;
use crate::diag::{Collector, Diagnostic, Errors};
use crate::dtype::Dtype;
use crate::format::Reader;
use crate::format::layout::{FileLayout, OutputTensor};
use crate::format::testing::*;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A metadata entry: key, type, value.
fn field(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), value].concat()
}

/// An entry of the table: name, sizes with the fastest first, type, offset.
fn info(name: &str, sizes: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((sizes.len() as u32).to_le_bytes());
    sizes.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

fn file(fields: &[Vec<u8>], infos: &[Vec<u8>], data: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((infos.len() as u64).to_le_bytes());
    bytes.extend((fields.len() as u64).to_le_bytes());
    fields.iter().chain(infos).for_each(|part| bytes.extend(part));
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}

fn open_bytes(bytes: &[u8]) -> Result<Box<dyn Reader>, Errors> {
    let folder = tempfile::tempdir().expect("folder");
    open_plain(&put(folder.path(), "a.gguf", bytes))
}

fn small() -> Vec<u8> {
    let fields = [
        field("general.architecture", 8, &text("llama")),
        field(
            "a.list",
            9,
            &[&8_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &text("x"), &text("yz")].concat(),
        ),
        field("a.float", 6, &0.5_f32.to_le_bytes()),
    ];
    let infos = [info("w", &[3, 2], 0, 0), info("q", &[32], 8, 32), info("h", &[], 1, 96)];
    file(&fields, &infos, &[7; 98])
}

#[test]
fn tr_06_dimensions_are_listed_fastest_first() {
    let reader =
        open_bytes(&file(&[], &[info("blk.0.ffn_down.weight", &[3, 2], 0, 0)], &[0; 24])).expect("opens");
    let TensorMeta { shape, strides, offset, .. } = &reader.catalog().tensors[0];
    assert_eq!((&shape[..], &strides[..], offset % 32), (&[2, 3][..], &[3, 1][..], 0));
}

#[test]
fn a_small_file_is_read_and_no_part_of_it_is_missed() {
    let bytes = small();
    let reader = open_bytes(&bytes).expect("opens");
    let found: Vec<(&str, Dtype, &[u64])> =
        reader.catalog().tensors.iter().map(|t| (t.key.as_str(), t.dtype, &t.shape[..])).collect();
    assert_eq!(found, [("w", Dtype::F32, &[2, 3][..]), ("q", Dtype::Q8_0, &[32]), ("h", Dtype::F16, &[])]);
    assert_eq!((reader.catalog().metadata["a.float"].as_str(), reader.catalog().metadata.len()), ("0.5", 2));
    let [(_, facts)] = &reader.catalog().facts[..] else { panic!("facts of one file") };
    assert_eq!(facts["a.float"], 0.5);
    assert!(reader.catalog().warnings.is_empty());
    for length in 4..bytes.len() {
        assert!(open_bytes(&bytes[..length]).is_err(), "{length}");
    }
}

#[test]
fn no_changed_byte_makes_it_panic_or_read_past_the_end() {
    let good = small();
    for at in 4..good.len() - 98 {
        for change in [1, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= change;
            let Ok(reader) = open_bytes(&bytes) else { continue };
            for tensor in &reader.catalog().tensors {
                let mut buffer = vec![0; tensor.bytes() as usize];
                reader.read_exact_at(tensor.file, tensor.offset, &mut buffer).expect("checked when opened");
            }
        }
    }
}

#[test]
fn what_the_header_says_is_checked() {
    let one = |info: Vec<u8>, data: usize| file(&[], &[info], &vec![0; data]);
    let alignment = |kind, value: &[u8]| file(&[field("general.alignment", kind, value)], &[], &[]);
    let mut nested = Vec::new();
    for _ in 0..9 {
        nested.extend([&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat());
    }
    let endless = [&8_u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat();
    let mut version = small();
    version[4] = 1;
    let mut counts = small();
    counts[8..16].fill(0xff);
    for (bytes, code) in [
        (version, "format/version"),
        (counts, "format/truncated"),
        (one(info("w", &[3], 0, 0), 11), "format/truncated"),
        (one(info("w", &[3], 0, u64::MAX - 31), 12), "format/truncated"),
        (one(info("w", &[3], 0, 4), 64), "format/bad-offsets"),
        (one(info("w", &[3], 0, 32), 64), "format/hole"),
        (one(info("w", &[u64::MAX, 0, 3], 0, 0), 12), "format/shape-overflow"),
        (one(info("w", &[1 << 63], 0, 0), 12), "format/shape-overflow"),
        (one(info("w", &[33], 8, 0), 64), "format/bad-shape"),
        (one(info("w", &[], 8, 0), 64), "format/bad-shape"),
        (one(info("w", &[3], 4, 0), 64), "format/unknown-dtype"),
        (one(info("w", &[3], 999, 0), 64), "format/unknown-dtype"),
        (one(info("w", &[1; 9], 0, 0), 64), "format/bad-header"),
        (alignment(4, &48_u32.to_le_bytes()), "format/bad-header"),
        (alignment(4, &0_u32.to_le_bytes()), "format/bad-header"),
        (alignment(10, &32_u64.to_le_bytes()), "format/bad-header"),
        (file(&[field("a", 13, &[0; 8])], &[], &[]), "format/bad-header"),
        (file(&[field("a", 8, &u64::MAX.to_le_bytes())], &[], &[]), "format/truncated"),
        (file(&[field("a", 9, &nested)], &[], &[0; 64]), "format/bad-header"),
        (file(&[field("a", 9, &endless)], &[], &[]), "format/truncated"),
        (file(&[field("a.b", 7, &[1]), field("a.b", 7, &[0])], &[], &[]), "format/duplicate-key"),
        (file(&[], &[info("w", &[3], 0, 0), info("w", &[3], 0, 32)], &[0; 64]), "format/duplicate-key"),
        (file(&[], &[info("w", &[12], 0, 0), info("v", &[3], 0, 32)], &[0; 64]), "format/overlap"),
    ] {
        assert_eq!(codes(&open_bytes(&bytes)), [code], "{bytes:?}");
    }
}

#[test]
fn a_type_of_another_size_than_the_writer_had_is_noticed() {
    // As from a program in which the first type has larger blocks.
    let infos = [info("w", &[64], 42, 0), info("v", &[3], 0, 64)];
    assert_eq!(codes(&open_bytes(&file(&[], &infos, &[0; 76]))), ["format/hole"]);
    let reader = open_bytes(&file(&[], &infos[..1], &[0; 76])).expect("opens");
    assert_eq!(reader.catalog().warnings[0].code, "format/trailing-bytes");
}

#[test]
fn big_endian_numbers_are_swapped_by_their_width() {
    let swap = |bytes: &[u8]| bytes.iter().rev().copied().collect::<Vec<u8>>();
    let mut bytes = b"GGUF\0\0\0\x03".to_vec();
    bytes.extend(swap(&2_u64.to_le_bytes()));
    bytes.extend(swap(&1_u64.to_le_bytes()));
    let name = |name: &str| [&(name.len() as u64).to_be_bytes()[..], name.as_bytes()].concat();
    bytes.extend([&name("a.b")[..], &4_u32.to_be_bytes(), &258_u32.to_be_bytes()].concat());
    for (key, kind, offset) in [("h", 1_u32, 0_u64), ("b", 24, 32)] {
        bytes.extend([&name(key)[..], &1_u32.to_be_bytes(), &3_u64.to_be_bytes()].concat());
        bytes.extend([&kind.to_be_bytes()[..], &offset.to_be_bytes()].concat());
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend([1, 2, 3, 4, 5, 6]);
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend([1, 2, 3]);
    let reader = open_bytes(&bytes).expect("opens");
    assert_eq!(reader.catalog().metadata["a.b"], "258");
    let read = |key: &str| {
        let tensor = &reader.catalog().tensors[reader.catalog().find(key).expect("is there")];
        let mut buffer = vec![0; tensor.bytes() as usize];
        reader.read_exact_at(tensor.file, tensor.offset, &mut buffer).expect("reads");
        buffer
    };
    assert_eq!((read("h"), read("b")), (vec![2, 1, 4, 3, 6, 5], vec![1, 2, 3]));
}

fn tensor<'a>(key: &'a str, dtype: Dtype, shape: &'a [u64]) -> OutputTensor<'a> {
    OutputTensor { key, dtype, shape }
}

fn written(
    tensors: &[OutputTensor<'_>],
    metadata: &[(&str, &str)],
    template: Option<&Path>,
) -> Result<(FileLayout, Vec<Diagnostic>), Errors> {
    let sizes: Vec<u64> = tensors
        .iter()
        .map(|tensor| tensor.dtype.byte_len(tensor.shape.iter().product()).unwrap_or(u64::MAX / 2))
        .collect();
    let metadata: BTreeMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let mut out = Collector::default();
    let layout = lay_out(tensors, &sizes, &metadata, template, None, &mut out)?;
    out.finish(layout)
}

fn bytes_of(layout: &FileLayout) -> Vec<u8> {
    let mut bytes = layout.pieces[0].1.clone();
    bytes.resize(layout.size as usize, 0);
    bytes
}

#[test]
fn what_is_written_is_read_back() {
    let tensors = [
        tensor("b", Dtype::BF16, &[2, 3]),
        tensor("a", Dtype::Q4K, &[3, 512]),
        tensor("scalar", Dtype::F64, &[]),
        tensor("deep", Dtype::I8, &[2, 1, 3, 5]),
    ];
    let metadata = [
        ("qkvconv", "{\"layout\":\"a/b\"}"),
        ("format", "pt"),
        ("general.name", "ä model"),
        ("llama.block_count", "2"),
        ("tokenizer.ggml.add_bos_token", "true"),
        ("Not.a.key", "x"),
    ];
    let (layout, warnings) = written(&tensors, &metadata, None).expect("lays out");
    assert_eq!(
        warnings.iter().map(|warning| warning.code.as_str()).collect::<Vec<_>>(),
        ["format/no-template"]
    );
    assert!(warnings[0].help.as_ref().is_some_and(|help| help.contains("--template")));
    assert_eq!(layout.size % 32, 0);
    let reader = open_bytes(&bytes_of(&layout)).expect("opens");
    let catalog = reader.catalog();
    assert!(catalog.warnings.is_empty());
    for (tensor, (found, offset)) in tensors.iter().zip(catalog.tensors.iter().zip(&layout.offsets)) {
        assert_eq!(
            (tensor.key, tensor.dtype, tensor.shape),
            (found.key.as_str(), found.dtype, &found.shape[..])
        );
        assert_eq!((found.offset, offset % 32), (*offset, 0));
    }
    let kept: Vec<(&str, &str)> =
        catalog.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(kept, [("general.name", "ä model"), ("qkvconv", "{\"layout\":\"a/b\"}")]);
    let (again, _) = written(&tensors, &metadata, None).expect("lays out");
    assert_eq!((again.pieces, again.offsets), (layout.pieces, layout.offsets));
}

fn template(folder: &Path, fields: &[Vec<u8>]) -> PathBuf {
    put(folder, "template.gguf", &file(fields, &[info("w", &[3], 0, 0)], &[0; 12]))
}

#[test]
fn a_templates_entries_are_taken_byte_for_byte() {
    let folder = tempfile::tempdir().expect("folder");
    let odd =
        field("a.list", 9, &[&8_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &text("\u{fffd}")].concat());
    let fields = [
        field("general.architecture", 8, &text("llama")),
        field("split.count", 2, &3_u16.to_le_bytes()),
        odd.clone(),
        field("qkvconv", 8, &text("old")),
        field("general.alignment", 4, &256_u32.to_le_bytes()),
    ];
    // The template's own data need not be whole.
    let mut bytes = file(&fields, &[info("w", &[3], 0, 0)], &[]);
    bytes.truncate(bytes.len() - 1);
    let path = put(folder.path(), "template.gguf", &bytes);
    let metadata = [("qkvconv", "new"), ("general.architecture", "other"), ("general.alignment", "32")];
    let tensors = [tensor("a", Dtype::F32, &[3]), tensor("b", Dtype::F32, &[5])];
    let (layout, warnings) = written(&tensors, &metadata, Some(&path)).expect("lays out");
    assert!(warnings.is_empty());
    assert!(layout.offsets.iter().all(|offset| offset % 256 == 0) && layout.size % 256 == 0);
    let expected = [&fields[0][..], &odd, &fields[4], &field("qkvconv", 8, &text("new"))].concat();
    assert_eq!(layout.pieces[0].1[24..24 + expected.len()], expected);
    assert_eq!(layout.pieces[0].1[16], 4);
    let reader = open_bytes(&bytes_of(&layout)).expect("opens");
    assert_eq!(reader.catalog().metadata["qkvconv"], "new");
}

#[test]
fn a_template_must_be_a_gguf_file_of_the_right_byte_order() {
    let folder = tempfile::tempdir().expect("folder");
    let code =
        |path: &Path| written(&[], &[], Some(path)).err().map(|errors| errors.diagnostics()[0].code.as_str());
    let mut swapped = b"GGUF\0\0\0\x03".to_vec();
    swapped.resize(24, 0);
    assert_eq!(code(&put(folder.path(), "big", &swapped)), Some("format/big-endian"));
    assert_eq!(code(&put(folder.path(), "other", b"PK\x03\x04abcd")), Some("format/bad-header"));
    assert_eq!(code(&folder.path().join("none")), Some("format/io"));
    assert_eq!(code(&template(folder.path(), &[])), None);
}

#[test]
fn what_gguf_cannot_hold_is_refused_by_name() {
    let longest = "n".repeat(63);
    assert!(written(&[tensor(&longest, Dtype::F32, &[1, 2, 3, 4])], &[], None).is_ok());
    let too_long = "n".repeat(64);
    for (refused, said) in [
        (tensor(&too_long, Dtype::F32, &[1]), "64 bytes"),
        (tensor("a\0b", Dtype::F32, &[1]), "none of them zero"),
        (tensor("a", Dtype::F32, &[1, 1, 1, 1, 2]), "5 dimensions"),
        (tensor("a", Dtype::U8, &[1]), "no type for U8"),
        (tensor("a", Dtype::Bool, &[1]), "no type for BOOL"),
        (tensor("a", Dtype::F8E4M3, &[1]), "no type for F8_E4M3"),
        (tensor("a", Dtype::BF16, &[]), "BF16"),
        (tensor("a", Dtype::F32, &[3, 0]), "no elements"),
        (tensor("a", Dtype::Q8_0, &[32, 16]), "no whole blocks"),
    ] {
        let errors = written(&[refused], &[], None).err().expect("refused");
        let diagnostic = &errors.diagnostics()[0];
        assert_eq!(
            (diagnostic.code.as_str(), &diagnostic.tensors[..]),
            ("format/cannot-hold", &[refused.key.to_owned()][..])
        );
        assert!(diagnostic.message.contains(said) && diagnostic.help.is_some(), "{diagnostic:?}");
    }
    let large = [tensor("a", Dtype::F64, &[u64::MAX]); 3];
    let errors = written(&large, &[], None).err().expect("refused");
    assert_eq!(errors.diagnostics()[0].code, "format/shape-overflow");
}

/// One of several files, with one tensor of 32 bytes.
fn part(number: u16, count: u16, tensors: i32, key: &str) -> Vec<u8> {
    let fields = [
        field("split.no", 2, &number.to_le_bytes()),
        field("split.count", 2, &count.to_le_bytes()),
        field("split.tensors.count", 5, &tensors.to_le_bytes()),
    ];
    file(&fields, &[info(key, &[8], 0, 0)], &[number as u8; 32])
}

#[test]
fn the_parts_of_a_model_are_read_together_or_not_at_all() {
    let folder = tempfile::tempdir().expect("folder");
    let name = |number: u16| format!("a-0000{number}-of-00003.gguf");
    for number in 0..2 {
        put(folder.path(), &name(number + 1), &part(number, 3, 3, &format!("t{number}")));
    }
    for path in [folder.path().join(name(2)), folder.path().to_owned()] {
        let result = open_plain(&path);
        assert_eq!(codes(&result), ["format/missing-shard"]);
        assert!(super::super::testing::text(&result).contains("a-00003-of-00003.gguf"));
    }
    put(folder.path(), &name(3), &part(2, 3, 3, "t2"));
    for path in [folder.path().join(name(2)), folder.path().to_owned()] {
        let reader = open_plain(&path).expect("opens");
        let keys: Vec<&str> = reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
        assert_eq!((keys, reader.catalog().metadata.len()), (vec!["t0", "t1", "t2"], 0));
    }
    put(folder.path(), &name(3), &part(2, 3, 4, "t2"));
    put(folder.path(), &name(1), &part(0, 3, 4, "t0"));
    let result = open_plain(folder.path());
    assert!(super::super::testing::text(&result).contains("hold 3 tensors and say that they hold 4"));
    // Under another name it is still a part.
    let renamed = put(folder.path(), "renamed.gguf", &part(1, 3, 3, "t1"));
    let result = open_plain(&renamed);
    assert_eq!(codes(&result), ["format/missing-shard"]);
    assert!(super::super::testing::text(&result).contains("part 2 of 3"));
    let options = crate::format::OpenOptions { allow_incomplete: true, ..Default::default() };
    assert!(crate::format::open(&renamed, &options).is_ok());
    // A name that lies.
    let twice = tempfile::tempdir().expect("folder");
    for number in 1..3 {
        put(twice.path(), &format!("a-{number}-of-2.gguf"), &part(0, 2, 2, &format!("t{number}")));
    }
    assert_eq!(codes(&open_plain(twice.path())), ["format/missing-shard"]);
}

#[test]
fn the_first_of_several_files_holds_the_metadata() {
    use crate::format::output::{OutputOptions, lay_out};
    let folder = tempfile::tempdir().expect("folder");
    let alignment = field("general.alignment", 4, &256_u32.to_le_bytes());
    let path = template(folder.path(), &[field("general.architecture", 8, &text("llama")), alignment]);
    let tensors =
        [tensor("a", Dtype::F32, &[3]), tensor("b", Dtype::F32, &[5]), tensor("c", Dtype::BF16, &[2, 3])];
    let metadata = BTreeMap::from([("qkvconv".to_owned(), "new".to_owned())]);
    let options = OutputOptions {
        format: crate::format::Format::Gguf,
        name: None,
        max_shard_size: Some(20),
        template: Some(path),
    };
    let layout = lay_out(&tensors, &metadata, &options).expect("lays out");
    assert_eq!((layout.files.len(), layout.index.is_none()), (3, true));
    let out = tempfile::tempdir().expect("folder");
    for output in &layout.files {
        let mut bytes = output.pieces[0].1.clone();
        bytes.resize(output.size as usize, 0);
        put(out.path(), &output.name, &bytes);
    }
    let entries: Vec<u8> = layout.files.iter().map(|file| file.pieces[0].1[16]).collect();
    assert_eq!(entries, [6, 3, 3]);
    let reader = open_plain(&out.path().join("model-00002-of-00003.gguf")).expect("opens");
    let catalog = reader.catalog();
    let keys: Vec<&str> = catalog.tensors.iter().map(|tensor| tensor.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!(
        (catalog.metadata["general.architecture"].as_str(), catalog.metadata["qkvconv"].as_str()),
        ("llama", "new")
    );
    let offsets: Vec<u64> = layout.placements.iter().map(|place| place.offset % 256).collect();
    assert_eq!((offsets[0], catalog.warnings.len()), (0, 0));
}

#[test]
fn a_tensor_of_an_unknown_type_takes_all_up_to_the_next() {
    let with = |kind: u32, sizes: &[u64], last: u64| {
        open_bytes(&file(
            &[],
            &[info("w", &[3], 0, 0), info("x", sizes, kind, 32), info("y", &[3], 0, last)],
            &[5; 140],
        ))
    };
    let reader = with(999, &[7], 128).expect("opens");
    let catalog = reader.catalog();
    let keys: Vec<&str> = catalog.tensors.iter().map(|tensor| tensor.key.as_str()).collect();
    assert_eq!((keys, catalog.unread[0].0.as_str()), (vec!["w", "y"], "x"));
    assert!(catalog.unread[0].1.message.contains("999"), "{:?}", catalog.unread);
    let mut buffer = [0; 12];
    reader.read_exact_at(0, catalog.tensors[1].offset, &mut buffer).expect("reads");
    assert_eq!(buffer, [5; 12]);
    // It must have bytes of its own, and those that are known are checked as ever.
    assert!(text_of(&with(999, &[7], 32)).contains("format/overlap"));
    assert!(with(999, &[0], 32).is_ok());
    assert!(text_of(&with(999, &[7], 160)).contains("format/truncated"));
    // The last one takes what is left.
    let last = open_bytes(&file(&[], &[info("w", &[3], 0, 0), info("x", &[9], 4, 32)], &[5; 96]));
    assert_eq!(codes(&last), ["format/unknown-dtype"]);
}

fn text_of(result: &Result<Box<dyn Reader>, Errors>) -> String {
    format!("{:?}", result.as_ref().err().map(Errors::diagnostics))
}
