//! Arrays that NumPy itself wrote, and archives that are written for it.

use std::path::{Path, PathBuf};

use qkvconv::dtype::Dtype;
use qkvconv::format::{OpenOptions, open};

use crate::kit::{self, Folder, Tensor, Tensors, assert_holds, read_all, write};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats/numpy").join(name)
}

#[test]
fn archives_hold_what_numpy_loads() {
    let expected = fixture("plain.expected.safetensors");
    assert_holds(&fixture("plain.npz"), &OpenOptions::default(), &expected);
    assert_holds(&fixture("compressed.npz"), &OpenOptions::default(), &expected);
}

#[test]
fn single_arrays_hold_what_numpy_loads() {
    for name in ["one", "version2", "version3"] {
        let expected = fixture(&format!("{name}.expected.safetensors"));
        assert_holds(&fixture(&format!("{name}.npy")), &OpenOptions::default(), &expected);
    }
}

#[test]
fn arrays_as_they_lie_are_read_in_place() {
    let reader = open(&fixture("plain.npz"), &OpenOptions::default()).expect("opens");
    for tensor in &reader.catalog().tensors {
        let swapped = tensor.key.contains("big") && tensor.dtype.bits() > 8;
        assert_eq!(tensor.file, usize::from(swapped), "{}", tensor.key);
    }
    let find = |key: &str| &reader.catalog().tensors[reader.catalog().find(key).expect("is there")];
    assert_eq!(find("columns.f4").strides, [1, 2, 6]);
    assert_eq!(find("big columns.f4").strides, [1, 5]);
}

#[test]
fn bfloat16_and_float8_are_named_by_the_user() {
    let void_as = vec![Dtype::BF16, Dtype::F8E4M3];
    let options = OpenOptions::default().void_as(void_as);
    assert_holds(&fixture("half.npz"), &options, &fixture("half.expected.safetensors"));
    let text = format!("{:?}", kit::wrong(&open(&fixture("half.npz"), &OpenOptions::default())));
    for said in ["`<V2`", "`<V1`", "--void-as bf16", "--void-as f8-e4m3", "tensor: w", "tensor: columns"] {
        assert!(text.contains(said), "`{said}` is not in {text}");
    }
}

#[test]
fn what_cannot_be_read_is_listed_for_programs_too() {
    let found = Folder::new().run(&["inspect", "--json", fixture("half.npz").to_str().expect("UTF-8")]).ok();
    let found: serde_json::Value = serde_json::from_str(&found.stdout).expect("JSON");
    let names: Vec<&str> = found["unread"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|entry| entry["name"].as_str())
        .collect();
    assert_eq!(names, ["w", "columns", "scale"]);
    assert_eq!(found["unread"][0]["code"], "format/opaque-dtype");
}

#[test]
fn what_is_no_tensor_is_told_and_objects_are_refused() {
    let options = OpenOptions::default();
    assert_holds(&fixture("mixed.npz"), &options, &fixture("mixed.expected.safetensors"));
    let reader = open(&fixture("mixed.npz"), &options).expect("opens");
    assert_eq!(reader.catalog().warnings[0].tensors, ["names", "raw", "when", "table"]);
    let wrong = kit::wrong(&open(&fixture("object.npz"), &options));
    let [diagnostic] = &wrong[..] else { panic!("one error") };
    assert_eq!(
        (diagnostic.code.as_str(), &diagnostic.tensors[..]),
        ("format/object-array", &["config".to_owned()][..])
    );
}

fn model() -> Tensors {
    let mut tensors = Tensors::new();
    for (number, name) in ["q_proj", "k_proj", "v_proj", "out_proj"].into_iter().enumerate() {
        tensors.insert(format!("a.{name}.weight"), Tensor::index(&[12, 12], 200 * number as u64));
        tensors.insert(format!("a.{name}.bias"), Tensor::index(&[12], 1000 * number as u64));
    }
    tensors.insert("größe/x.日本".to_owned(), Tensor::index(&[2, 3, 5], 7));
    tensors.insert("half".to_owned(), Tensor::new("F16", &[3], vec![1, 2, 3, 4, 5, 6]));
    tensors.insert("empty".to_owned(), Tensor::new("I64", &[0, 3], Vec::new()));
    tensors.insert("count".to_owned(), Tensor::new("I64", &[], vec![9, 0, 0, 0, 0, 0, 0, 1]));
    tensors.insert("mask".to_owned(), Tensor::new("BOOL", &[1, 3], vec![1, 0, 1]));
    tensors
}

const LAYOUT: &str = "attention/separate";

fn converted(folder: &Folder, source: &str, destination: &str) -> crate::kit::Run {
    let args = ["--from", LAYOUT, "--to", LAYOUT, "--allow", "unmatched", "--verify", "none"];
    folder.run(&[&args[..], &[source, destination]].concat())
}

#[test]
fn an_archive_comes_back_as_it_was() {
    let folder = Folder::new();
    write(&folder.join("in.safetensors"), &model(), &[("who", "\"me\" ä")]);
    converted(&folder, "in.safetensors", "out.npz").ok();
    assert_holds(&folder.join("out.npz"), &OpenOptions::default(), &folder.join("in.safetensors"));
    converted(&folder, "out.npz", "back.safetensors").ok();
    let (tensors, metadata) = read_all(&folder.join("back.safetensors"));
    assert_eq!((tensors, metadata["who"].as_str()), (model(), "\"me\" ä"));
    // The same source gives the same bytes.
    converted(&folder, "in.safetensors", "again.npz").ok();
    let bytes = |name: &str| std::fs::read(folder.join(name)).expect("readable");
    assert!(bytes("out.npz") == bytes("again.npz"));
}

#[test]
fn checksums_are_right_in_every_written_archive() {
    let folder = Folder::new();
    write(&folder.join("in.safetensors"), &model(), &[]);
    for name in ["out.npz", "out.bin"] {
        converted(&folder, "in.safetensors", name).ok();
        let bytes = std::fs::read(folder.join(name)).expect("readable");
        let number = |at: usize, width: usize| {
            bytes[at..at + width].iter().rev().fold(0_usize, |value, byte| value << 8 | usize::from(*byte))
        };
        let mut found = 0;
        // Local headers lie one behind the other, from the start of the file.
        let mut at = 0;
        while bytes[at..].starts_with(b"PK\x03\x04") {
            let (crc, size) = (number(at + 14, 4), number(at + 22, 4));
            let start = at + 30 + number(at + 26, 2) + number(at + 28, 2);
            assert_eq!((start % 64, number(at + 18, 4)), (0, size));
            assert_eq!(crc32(&bytes[start..start + size]), crc as u32, "{name}, the entry at {at}");
            at = start + size;
            found += 1;
        }
        assert!(found >= model().len() && bytes[at..].starts_with(b"PK\x01\x02"), "{found}");
    }
}

/// The CRC-32 of ISO 3309, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

#[test]
fn what_numpy_cannot_hold_is_refused() {
    let folder = Folder::new();
    let mut tensors = model();
    tensors.insert("low".to_owned(), Tensor::new("BF16", &[1], vec![0x80, 0x3f]));
    write(&folder.join("in.safetensors"), &tensors, &[]);
    converted(&folder, "in.safetensors", "out.npz").fails(&[
        "format/cannot-hold",
        "low",
        "BF16",
        "--dtype f32",
    ]);
    assert_eq!(folder.names(), ["in.safetensors"]);
}
