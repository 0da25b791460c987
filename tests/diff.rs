//! `qkvconv diff`, run as a program on checkpoints that are written here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use qkvconv::diff::{DiffOptions, DiffReport, diff, work};
use qkvconv::format::{OpenOptions, Reader, open};
use qkvconv::progress::Progress;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use tempfile::TempDir;

/// A tensor: name, type, shape, bytes.
type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn singles(key: &str, shape: &[usize], values: &[f32]) -> Tensor {
    (key.into(), Dtype::F32, shape.into(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn put(folder: &TempDir, name: &str, tensors: &[Tensor], metadata: &[(&str, &str)]) -> PathBuf {
    let views = tensors.iter().map(|(key, dtype, shape, bytes)| {
        (key, TensorView::new(*dtype, shape.clone(), bytes).expect("the bytes fit the shape"))
    });
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let path = folder.path().join(name);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    // safetensors 0.8 writes broken JSON for an empty map and no tensors.
    let metadata = (!metadata.is_empty()).then_some(metadata);
    std::fs::write(&path, safetensors::serialize(views, metadata).expect("serializable")).expect("written");
    path
}

struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    #[track_caller]
    fn ended(self, code: i32, texts: &[&str]) -> Run {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        for text in texts {
            let all = format!("{}{}", self.stdout, self.stderr);
            assert!(all.contains(text), "`{text}` is not in:\n{all}");
        }
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("JSON")
    }
}

fn run(a: &Path, b: &Path, more: &[&str]) -> Run {
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_qkvconv"))
        .arg("diff")
        .args([a, b])
        .args(more)
        .output()
        .expect("the program runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("a code");
    Run { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Four layers with a weight of 6 elements each.
fn layers() -> Vec<Tensor> {
    (0..4)
        .map(|layer| singles(&format!("layers.{layer}.w"), &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        .collect()
}

#[test]
fn equal_files() {
    let folder = TempDir::new().expect("a folder");
    let (a, b) = (put(&folder, "a", &layers(), &[]), put(&folder, "b", &layers(), &[]));
    let ended = run(&a, &b, &[]).ended(0, &["bit-equal: 4 tensors", "all tensors are bit-equal"]);
    assert_eq!(ended.stderr, "");
    assert!(!ended.stdout.contains("layers."));
    run(&a, &b, &["--all"]).ended(0, &["  layers.{0..3}.w (4)  F32 [2, 3]"]);
    assert_eq!(run(&a, &b, &["--quiet"]).ended(0, &[]).stdout, "");
    run(&a, &a, &[]).ended(0, &[]);
}

#[test]
fn one_element_changed() {
    let folder = TempDir::new().expect("a folder");
    let mut tensors = layers();
    let a = put(&folder, "a", &tensors, &[]);
    tensors[2] = singles("layers.2.w", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.5, 6.0]);
    let b = put(&folder, "b", &tensors, &[]);
    let texts = ["content differs: 1 tensor", "layers.2.w", "1 of 6", "5.000e-1", "[1, 1]: 5.0 | 5.5"];
    run(&a, &b, &[]).ended(3, &texts).ended(3, &["bit-equal: 3 tensors", "the checkpoints differ"]);
    let quiet = run(&a, &b, &["--quiet", "--json"]).ended(3, &[]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    run(&a, &b, &["--drop", "*.2.w"]).ended(0, &["3 tensors, 1 left out"]);
    run(&a, &b, &["--only", "layers.{0,2}.*"]).ended(3, &["bit-equal: 1 tensor"]);
}

#[test]
fn json_is_a_document() {
    let folder = TempDir::new().expect("a folder");
    let mut tensors = layers();
    let a = put(&folder, "a", &tensors, &[("note", "x"), ("same", "1")]);
    tensors[2] = singles("layers.2.w", &[2, 3], &[1.0, 2.0, 3.0, 4.0, f32::INFINITY, 6.5]);
    tensors.push(("u".into(), Dtype::U64, vec![1], u64::MAX.to_le_bytes().into()));
    let b = put(&folder, "b", &tensors, &[("same", "1"), ("more", "y")]);
    let json = run(&a, &b, &["--json"]).ended(3, &[]).json();
    assert_eq!((&json["version"], &json["equal"]), (&1.into(), &false.into()));
    assert_eq!(json["totals"]["bit_equal"], 3);
    assert_eq!(json["only_b"][0]["key"], "u");
    assert_eq!(json["tensors"].as_array().map(Vec::len), Some(1));
    let comparison = &json["tensors"][0]["comparison"];
    assert_eq!((&comparison["elements"], &comparison["differing"]), (&6.into(), &2.into()));
    assert_eq!(comparison["first"]["index"], serde_json::json!([1, 1]));
    assert_eq!(comparison["first"]["b"], serde_json::json!({ "bits": "0x7f800000", "value": "inf" }));
    let numbers = &comparison["numbers"];
    assert_eq!(numbers["max_abs"], 0.5);
    assert_eq!(numbers["max_abs_at"], serde_json::json!([1, 2]));
    assert_eq!(numbers["floats"]["infinities"], serde_json::json!({ "a": 0, "b": 1 }));
    assert_eq!(numbers["floats"]["unmatched"], 1);
    assert_eq!(json["metadata"][0], serde_json::json!({ "key": "more", "a": null, "b": "y" }));
    assert_eq!(json["metadata"].as_array().map(Vec::len), Some(2));
    let all = run(&a, &b, &["--json", "--all"]).ended(3, &[]).json();
    assert_eq!(all["tensors"].as_array().map(Vec::len), Some(4));
}

#[test]
fn tensors_of_one_side_alone_are_folded() {
    let folder = TempDir::new().expect("a folder");
    let mut tensors = layers();
    let a = put(&folder, "a", &tensors, &[]);
    tensors.truncate(1);
    tensors.push(singles("extra", &[1], &[1.0]));
    let b = put(&folder, "b", &tensors, &[]);
    let texts = ["only in A: 3 tensors", "layers.{1..3}.w (3)  F32 [2, 3]", "only in B: 1 tensor", "extra"];
    run(&a, &b, &[]).ended(3, &texts);
}

#[test]
fn shapes_and_types() {
    let folder = TempDir::new().expect("a folder");
    let bytes = |count| vec![0_u8; count];
    let a = [
        ("w".into(), Dtype::F32, vec![2, 3], bytes(24)),
        ("kind".into(), Dtype::F32, vec![2], bytes(8)),
        ("half".into(), Dtype::F16, vec![2], vec![0x00, 0x3c, 0x00, 0x40]),
    ];
    let b = [
        ("w".into(), Dtype::F32, vec![3, 2], bytes(24)),
        ("kind".into(), Dtype::I32, vec![2], bytes(8)),
        ("half".into(), Dtype::BF16, vec![2], vec![0x80, 0x3f, 0x01, 0x40]),
    ];
    let (a, b) = (put(&folder, "a", &a, &[]), put(&folder, "b", &b, &[]));
    let texts = [
        "shape or type differs: 2 tensors",
        "F32 [2, 3] | F32 [3, 2]",
        "F32 [2] | I32 [2]",
        "F16 | BF16",
        "1 of 2",
        "[1]: 2.0 | 2.015625",
        "no bits in common",
    ];
    run(&a, &b, &[]).ended(3, &texts);
    run(&a, &b, &["--only", "half", "--tolerance", "0.02"])
        .ended(0, &["within the tolerance of 2e-2: 1 tensor", "equal within the tolerance"]);
    run(&a, &b, &["--only", "half", "--tolerance", "0.01"]).ended(3, &["content differs"]);
}

#[test]
fn payloads_of_nans_are_bits() {
    let folder = TempDir::new().expect("a folder");
    let nan = |payload: u32| singles("w", &[1], &[f32::from_bits(0x7fc0_0000 | payload)]);
    let (a, b) = (put(&folder, "a", &[nan(0)], &[]), put(&folder, "b", &[nan(1)], &[]));
    run(&a, &b, &[]).ended(3, &["NaN (0x7fc00000) | NaN (0x7fc00001)", "NaN: 1 | 1"]);
    // As numbers they are one.
    run(&a, &b, &["--tolerance", "0"]).ended(0, &[]);
    let number = put(&folder, "c", &[singles("w", &[1], &[1.0])], &[]);
    run(&a, &number, &["--tolerance", "1e300"]).ended(3, &["1 NaN or infinite on one side"]);
}

#[test]
fn packed_types_are_compared_by_bits() {
    let folder = TempDir::new().expect("a folder");
    let four = |byte| [("w".to_owned(), Dtype::F4, vec![2, 2], vec![0x10, byte])];
    let (a, b) = (put(&folder, "a", &four(0x32), &[]), put(&folder, "b", &four(0x42), &[]));
    run(&a, &b, &[]).ended(3, &["1 of 4", "[1, 1]: 0x3 | 0x4", "the bits alone are compared"]);
    run(&a, &b, &["--tolerance", "100"]).ended(3, &[]);
}

#[test]
fn metadata_are_noted_and_do_not_count() {
    let folder = TempDir::new().expect("a folder");
    let a = put(&folder, "a", &layers(), &[("format", "pt")]);
    let b = put(&folder, "b", &layers(), &[]);
    run(&a, &b, &[]).ended(0, &["the metadata differ, which does not count", "format  \"pt\" | absent"]);
}

#[test]
fn shards_against_a_file() {
    let folder = TempDir::new().expect("a folder");
    let tensors = layers();
    let a = put(&folder, "a", &tensors, &[]);
    put(&folder, "s/model-00001-of-00002.safetensors", &tensors[..2], &[]);
    put(&folder, "s/model-00002-of-00002.safetensors", &tensors[2..], &[]);
    let map: serde_json::Map<String, Value> = tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| {
            (tensor.0.clone(), format!("model-0000{}-of-00002.safetensors", at / 2 + 1).into())
        })
        .collect();
    let index = folder.path().join("s/model.safetensors.index.json");
    let text = serde_json::json!({ "metadata": { "total_size": 96 }, "weight_map": map }).to_string();
    std::fs::write(&index, text).expect("written");
    for b in [folder.path().join("s"), index] {
        run(&a, &b, &[]).ended(0, &["bit-equal: 4 tensors"]);
        run(&b, &a, &[]).ended(0, &["bit-equal: 4 tensors"]);
    }
}

#[test]
fn failures_and_usage() {
    let folder = TempDir::new().expect("a folder");
    let a = put(&folder, "a", &layers(), &[]);
    let (nowhere, nothing) = (folder.path().join("nowhere"), folder.path().join("nothing"));
    run(&nowhere, &nothing, &[]).ended(1, &["nowhere", "nothing", "2 errors"]);
    run(&a, &a, &["--only", "x*"]).ended(1, &["no tensor is left to compare"]);
    run(&a, &a, &["--only", "[", "--drop", "{"]).ended(2, &["--only [", "--drop {"]);
    run(&a, &a, &["--tolerance", "-1"]).ended(2, &[]);
    run(&a, &a, &["--tolerance", "nan"]).ended(2, &["a number from 0"]);
    run(&a, &a, &["--threads", "0"]).ended(2, &[]);
}

#[test]
fn nothing_against_nothing_is_equal() {
    let folder = TempDir::new().expect("a folder");
    let empty = [("w".to_owned(), Dtype::F32, vec![0, 3], vec![])];
    let (a, b) = (put(&folder, "a", &empty, &[]), put(&folder, "b", &empty, &[]));
    run(&a, &b, &[]).ended(0, &["bit-equal: 1 tensor"]);
    let (a, b) = (put(&folder, "c", &[], &[]), put(&folder, "d", &[], &[]));
    run(&a, &b, &[]).ended(0, &["bit-equal: 0 tensors"]);
}

/// Counts, and cancels after so many bytes.
struct Watch(std::sync::atomic::AtomicU64, u64);

impl Progress for Watch {
    fn advance(&self, bytes: u64) {
        self.0.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Relaxed) >= self.1
    }
}

/// Two checkpoints of a tensor of several chunks each, with differences in the last chunk and in few others.
fn large(folder: &TempDir) -> (Box<dyn Reader>, Box<dyn Reader>) {
    let count = 5_500_000;
    let values: Vec<f32> = (0..count).map(|at: usize| (at as f32 * 0.731).sin()).collect();
    let mut other = values.clone();
    for at in [2_500_000, 2_600_123, count - 1] {
        other[at] += 0.25;
    }
    other[100_000] = f32::NAN;
    let mut early = values.clone();
    early[7] = 100.0;
    let shape = [count / 100, 100];
    let tensors = |w: &[f32], v: &[f32]| [singles("w", &shape, w), singles("v", &shape, v)];
    let a = put(folder, "a", &tensors(&values, &values), &[]);
    let b = put(folder, "b", &tensors(&other, &early), &[]);
    let opened = |path: &Path| open(path, &OpenOptions::default()).expect("opens");
    (opened(&a), opened(&b))
}

#[test]
fn threads_change_nothing() {
    let folder = TempDir::new().expect("a folder");
    let (a, b) = large(&folder);
    let compared = |threads| -> DiffReport {
        let options = DiffOptions::default().threads(threads);
        let watch = Watch(0.into(), u64::MAX);
        let report = diff(a.as_ref(), b.as_ref(), &options, &watch).expect("readable");
        assert_eq!(watch.0.into_inner(), work(a.as_ref(), b.as_ref(), &options));
        report
    };
    let first = compared(1);
    let of = |key: &str| {
        let tensor = first.tensors.iter().find(|tensor| tensor.key == key).expect("there");
        let comparison = tensor.comparison.clone().expect("it differs");
        let numbers = comparison.numbers.expect("numbers");
        (comparison.differing, comparison.first.expect("one").index, numbers.floats.expect("floats"))
    };
    let (differing, index, floats) = of("w");
    assert_eq!((differing, index, floats.nans, floats.unmatched), (4, vec![1000, 0], [0, 1], 1));
    // Three of 5.5 million differ by 0.25: hardly an angle. Were equal chunks left out, it would be much larger.
    let cosine = floats.cosine.expect("finite");
    assert!((1e-8..1e-7).contains(&(1.0 - cosine)), "{cosine:e}");
    assert_eq!(of("v").1, [0, 7]);
    for threads in [2, 3, 8] {
        assert_eq!(compared(threads), first);
        assert_eq!(compared(threads).json(true).to_string(), first.json(true).to_string());
    }
}

#[test]
fn it_can_be_cancelled() {
    let folder = TempDir::new().expect("a folder");
    let (a, b) = large(&folder);
    let watch = Watch(0.into(), 1);
    let errors = diff(a.as_ref(), b.as_ref(), &DiffOptions::default(), &watch).expect_err("cancelled");
    assert_eq!(errors.diagnostics()[0].code, "diff/cancelled");
}

// ---- Tensors that do not lie in the order of their indices ----

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats/pytorch").join(name)
}

/// Writes a NumPy array in Fortran's order, its first index fastest; `elements` are in the order of the indices.
fn put_fortran(folder: &TempDir, name: &str, descr: &str, shape: &[usize], elements: &[Vec<u8>]) -> PathBuf {
    let sizes: Vec<String> = shape.iter().map(|size| format!("{size},")).collect();
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': True, 'shape': ({}), }}", sizes.concat());
    while !(header.len() + 11).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    for place in 0..elements.len() {
        let (mut rest, mut number, mut step) = (place, 0, elements.len());
        for size in shape {
            step /= size;
            number += rest % size * step;
            rest /= size;
        }
        bytes.extend(&elements[number]);
    }
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("written");
    path
}

fn bytes_of_singles(values: &[f32]) -> Vec<Vec<u8>> {
    values.iter().map(|value| value.to_le_bytes().to_vec()).collect()
}

#[test]
fn views_are_compared_in_the_order_of_their_indices() {
    for name in ["views.pt", "views.legacy.pt"] {
        let (views, plain) = (fixture(name), fixture("views.expected.safetensors"));
        for (a, b) in [(&views, &plain), (&plain, &views), (&views, &views)] {
            run(a, b, &[]).ended(0, &["bit-equal: 32 tensors", "all tensors are bit-equal"]);
        }
    }
    let (views, plain) = (fixture("untyped.pt"), fixture("untyped.expected.safetensors"));
    run(&views, &plain, &[]).ended(0, &["bit-equal: 5 tensors"]);
}

/// Every view of the fixture, its last element changed: the element is found, wherever it lies.
#[test]
fn one_element_of_each_view_changed() {
    let folder = TempDir::new().expect("a folder");
    let bytes = std::fs::read(fixture("views.expected.safetensors")).expect("readable");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a file of the format");
    let changed: Vec<Tensor> = file
        .iter()
        .map(|(key, view)| {
            let mut bytes = view.data().to_vec();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
            (key.to_owned(), view.dtype(), view.shape().to_vec(), bytes)
        })
        .collect();
    let b = put(&folder, "b", &changed, &[]);
    let json = run(&fixture("views.pt"), &b, &["--json", "--all"]).ended(3, &[]).json();
    let tensors = json["tensors"].as_array().expect("a list");
    assert_eq!(tensors.len(), 32);
    for tensor in tensors {
        let shape: Vec<u64> = serde_json::from_value(tensor["a"]["shape"].clone()).expect("a shape");
        let comparison = &tensor["comparison"];
        if shape.contains(&0) {
            assert_eq!(comparison, &Value::Null, "{tensor}");
            continue;
        }
        let last: Vec<u64> = shape.iter().map(|size| size - 1).collect();
        assert_eq!((&comparison["differing"], &comparison["first"]["index"]), (&1.into(), &last.into()));
    }
}

#[test]
fn column_major_arrays() {
    let folder = TempDir::new().expect("a folder");
    let values: Vec<f32> = (0..30).map(|at| at as f32).collect();
    let shape = [2, 3, 5];
    let a = put_fortran(&folder, "a.npy", "<f4", &shape, &bytes_of_singles(&values));
    let b = put(&folder, "b", &[singles("a", &shape, &values)], &[]);
    run(&a, &b, &[]).ended(0, &["bit-equal: 1 tensor"]);
    let mut other = values.clone();
    other[17] += 0.5;
    let b = put(&folder, "b", &[singles("a", &shape, &other)], &[]);
    run(&a, &b, &[]).ended(3, &["1 of 30", "[1, 0, 2]: 17.0 | 17.5"]);
    run(&a, &b, &["--tolerance", "0.5"]).ended(0, &["within the tolerance"]);
    // Another type on either side, both in Fortran's order, and one of them alone.
    let doubles: Vec<Vec<u8>> = other.iter().map(|value| f64::from(*value).to_le_bytes().to_vec()).collect();
    std::fs::create_dir(folder.path().join("c")).expect("a folder");
    let c = put_fortran(&folder, "c/a.npy", "<f8", &shape, &doubles);
    for (first, second, text) in [(&a, &c, "17.0 | 17.5"), (&c, &a, "17.5 | 17.0")] {
        run(first, second, &["--tolerance", "0.5"]).ended(0, &[&format!("[1, 0, 2]: {text}")]);
        run(first, second, &["--tolerance", "0.4"]).ended(3, &["1 of 30"]);
    }
}

/// Several chunks of a wide transposed matrix: the report is that of the matrix in order, whatever the number of threads.
#[test]
fn large_transposed_matrices() {
    let folder = TempDir::new().expect("a folder");
    let shape = [1500, 2003];
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|at| (at as f32 * 0.731).sin()).collect();
    let mut other = values.clone();
    for at in [1_100_001, 2_900_123] {
        other[at] += 0.25;
    }
    let transposed = put_fortran(&folder, "a.npy", "<f4", &shape, &bytes_of_singles(&values));
    let transposed = open(&transposed, &OpenOptions::default()).expect("opens");
    let opened = |name: &str, values: &[f32]| {
        let path = put(&folder, name, &[singles("a", &shape, values)], &[]);
        open(&path, &OpenOptions::default()).expect("opens")
    };
    let (plain, b) = (opened("plain", &values), opened("b", &other));
    let compared = |a: &dyn Reader, b: &dyn Reader, threads| {
        let options = DiffOptions::default().threads(threads);
        let watch = Watch(0.into(), u64::MAX);
        let report = diff(a, b, &options, &watch).expect("readable");
        assert_eq!(watch.0.into_inner(), work(a, b, &options));
        report
    };
    let expected = compared(&*plain, &*b, 1);
    assert_eq!(expected.tensors[0].comparison.as_ref().map(|comparison| comparison.differing), Some(2));
    for threads in [1, 3] {
        assert_eq!(compared(&*transposed, &*b, threads).tensors, expected.tensors);
        assert!(compared(&*transposed, &*plain, threads).equal());
        assert!(compared(&*plain, &*transposed, threads).equal());
    }
}
