//! Flax's msgpack, on files that Flax wrote (`tests/data/formats/msgpack/make.py`).

use std::path::PathBuf;

use qkvconv::format::{OpenOptions, open};

use crate::kit::{Folder, Tensor, Tensors, assert_holds, read};

fn data(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data/formats/msgpack", name].iter().collect()
}

fn holds(name: &str, root: Option<&str>) {
    let options = OpenOptions::default().root(root.map(str::to_owned));
    assert_holds(&data(&format!("{name}.msgpack")), &options, &data(&format!("{name}.expected.safetensors")));
}

#[test]
fn parameters_and_all_types_are_read() {
    holds("params", None);
    holds("types", None);
}

#[test]
fn what_is_no_array_is_named() {
    let reader = open(&data("types.msgpack"), &OpenOptions::default()).expect("opens");
    let warnings = &reader.catalog().warnings;
    assert_eq!(warnings.iter().map(|warning| warning.code.as_str()).collect::<Vec<_>>(), ["format/skipped"]);
    for text in
        ["`step` (a number)", "`name` (a text)", "`words` (a list of 2 things)", "`complex` (a complex"]
    {
        assert!(warnings[0].message.contains(text), "{text}: {}", warnings[0].message);
    }
}

#[test]
fn the_weights_of_a_training_state_are_found_by_name() {
    holds("t5x", Some("optimizer/target"));
}

#[test]
fn chunks_are_one_array() {
    holds("chunked", None);
}

#[test]
fn dt_03_bfloat16_stays() {
    let folder = Folder::new();
    let bytes = b"\x81\xa6params\x81\xa3wte\x81\xa9embedding\xc7\x12\x01\x93\x91\x02\xa8bfloat16\xc4\x04\x80\x3f\x00\x40";
    let path = folder.put("m.msgpack", bytes);
    let reader = open(&path, &OpenOptions::default()).expect("opens");
    let tensor = &reader.catalog().tensors[0];
    assert_eq!(
        (tensor.key.as_str(), tensor.dtype.name(), &tensor.shape[..]),
        ("params/wte/embedding", "BF16", &[2][..])
    );
    let mut found = [0; 4];
    reader.read_exact_at(tensor.file, tensor.offset, &mut found).expect("reads");
    assert_eq!(found, [0x80, 0x3f, 0, 0x40]);
}

/// A layout whose names have slashes, so that maps are nested.
const MAPPING: &str = r#"{ "format": 1, "family": "t", "about": "a test's", "unmapped": "keep",
    "axes": { "h": "heads", "d": "size", "e": "model" }, "params": { "q": "h d e" },
    "layouts": {
        "torch": { "about": "one", "source": "a test", "tensors": { "{*m}.q.weight": "q: (h d) e" } },
        "flax": { "about": "two", "source": "a test", "tensors": { "{*m}/query/kernel": "q: e h d" } } } }"#;

#[test]
fn a_conversion_writes_nested_maps_and_reads_them_back() {
    let folder = Folder::new();
    folder.put("t.json", MAPPING);
    let kept = [
        ("other", Tensor::new("BF16", &[3], vec![1, 2, 3, 4, 5, 6])),
        ("empty", Tensor::new("F32", &[2, 0], Vec::new())),
        ("scalar", Tensor::new("F64", &[], vec![1, 2, 3, 4, 5, 6, 7, 8])),
        ("large/a", Tensor::index(&[129, 131], 5)),
        ("large/b", Tensor::new("U8", &[70_000], vec![7; 70_000])),
    ];
    let mut tensors: Tensors =
        kept.clone().into_iter().map(|(key, tensor)| (key.to_owned(), tensor)).collect();
    tensors.insert("a.0.q.weight".to_owned(), Tensor::index(&[6, 5], 0));
    tensors.insert("a.1.q.weight".to_owned(), Tensor::index(&[6, 5], 100));
    folder.tensors("in.safetensors", &tensors);
    let args = |from, to, source, target| {
        ["--mapping", "t.json", "--from", from, "--to", to, "--axis", "h=3", source, target]
    };
    folder.run(&args("t/torch", "t/flax", "in.safetensors", "out.msgpack")).ok();
    let bytes = std::fs::read(folder.join("out.msgpack")).expect("is there");
    let reader = open(&folder.join("out.msgpack"), &OpenOptions::default()).expect("opens");
    let tensor = &reader.catalog().tensors[reader.catalog().find("a/1/query/kernel").expect("is there")];
    let mut found = [0; 4 * 30];
    reader.read_exact_at(tensor.file, tensor.offset, &mut found).expect("reads");
    // e h d from (h d) e.
    let expected = Tensor::f32(&[5, 3, 2], (0..30).map(|at| (100 + at % 6 * 5 + at / 6) as f32));
    assert_eq!((&tensor.shape, &found[..]), (&expected.shape, &expected.bytes[..]));
    folder.run(&args("t/flax", "t/torch", "out.msgpack", "back.safetensors")).ok();
    assert_eq!(read(&folder.join("back.safetensors")), tensors);
    folder.run(&args("t/torch", "t/flax", "back.safetensors", "again.msgpack")).ok();
    assert!(bytes == std::fs::read(folder.join("again.msgpack")).expect("is there"));
}

#[test]
fn what_maps_cannot_hold_is_refused() {
    let folder = Folder::new();
    let tensors = [
        ("a", Tensor::index(&[2], 0)),
        ("a/b", Tensor::index(&[3], 0)),
        ("q.q.weight", Tensor::index(&[6, 5], 0)),
    ];
    folder.tensors("in.safetensors", &tensors.map(|(key, tensor)| (key.to_owned(), tensor)).into());
    folder.put("t.json", MAPPING);
    let args =
        ["--mapping", "t.json", "--from", "t/torch", "--to", "t/flax", "--axis", "h=3", "in.safetensors"];
    let run = folder.run(&[&args[..], &["out.msgpack"]].concat());
    run.fails(&["format/cannot-hold", "would be an array and a map of arrays", "a/b"]);
    assert_eq!(folder.names(), ["in.safetensors", "t.json"]);
}
