//! PyTorch's files: what PyTorch wrote (`data/formats/pytorch/make.py`), the faults that people met, and files made to harm.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use qkvconv::diag::{Diagnostic, Errors};
use qkvconv::dtype::Dtype;
use qkvconv::format::{OpenOptions, Reader, open};
use serde_json::{Value, json};

use crate::kit::{self, Folder, assert_holds};
use crate::stored::elements;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats/pytorch").join(name)
}

fn options(root: &str) -> OpenOptions {
    OpenOptions::default().root(Some(root.to_owned()))
}

/// The bytes of a tensor, row by row.
fn bytes_of(reader: &dyn Reader, key: &str) -> Vec<u8> {
    let tensor = &reader.catalog().tensors[reader.catalog().find(key).expect("the tensor is there")];
    elements(reader, tensor)
}

fn warnings(reader: &dyn Reader) -> Vec<&Diagnostic> {
    reader.catalog().warnings.iter().collect()
}

// ---- What PyTorch wrote ----

#[test]
fn every_view_and_type_is_read_from_both_kinds_of_file() {
    for name in ["views.pt", "views.legacy.pt"] {
        assert_holds(&fixture(name), &OpenOptions::default(), &fixture("views.expected.safetensors"));
        let reader = open(&fixture(name), &OpenOptions::default()).expect("opens");
        // Nothing is copied, and views that share nothing are no cause for a warning.
        assert_eq!((warnings(&*reader), reader.catalog().files.len()), (Vec::new(), 1), "{name}");
        let place = |key: &str| {
            let tensor = &reader.catalog().tensors[reader.catalog().find(key).expect("is there")];
            (tensor.offset, tensor.strides.clone())
        };
        assert_eq!(place("tied.embed"), place("tied.head"), "{name}");
        assert_eq!((place("transposed").1, place("expanded").1), (vec![1, 5], vec![1, 0]), "{name}");
        assert_eq!(place("flat.b").0 - place("flat.a").0, 48, "{name}");
    }
    for name in ["untyped.pt", "untyped.legacy.pt"] {
        assert_holds(&fixture(name), &OpenOptions::default(), &fixture("untyped.expected.safetensors"));
    }
}

#[test]
fn rare_types_are_read() {
    let reader = open(&fixture("exotic.pt"), &OpenOptions::default()).expect("opens");
    for (key, dtype) in [
        ("float8_e4m3fnuz", Dtype::F8E4M3Fnuz),
        ("float8_e5m2fnuz", Dtype::F8E5M2Fnuz),
        ("float8_e8m0fnu", Dtype::F8E8M0),
    ] {
        let tensor = &reader.catalog().tensors[reader.catalog().find(key).expect("is there")];
        assert_eq!((tensor.dtype, &tensor.shape[..]), (dtype, &[3, 2][..]));
        assert_eq!(bytes_of(&*reader, key), [1, 4, 2, 5, 3, 6]);
    }
    let complex: Vec<u8> = [1_f32, 2.0, 3.0, -4.0].into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(bytes_of(&*reader, "complex64"), complex);
}

#[test]
fn a_training_checkpoint_is_read_and_says_what_is_left_aside() {
    for name in ["training.pt", "training.legacy.pt"] {
        let expected = fixture("training.expected.safetensors");
        assert_holds(&fixture(name), &options("state_dict"), &expected);
        let reader = open(&fixture(name), &options("state_dict")).expect("opens");
        let [warning] = warnings(&*reader)[..] else { panic!("one warning") };
        for said in [
            "`epoch` (a number)",
            "`args` (an object of the class argparse.Namespace)",
            "`best` (1 tensor)",
            "`history` (1 tensor)",
            "`names` (a set)",
            "`losses` (a list of 2 items)",
            "`optimizer` (15 tensors)",
        ] {
            assert!(warning.message.contains(said), "{said}: {}", warning.message);
        }
        let text = text(&open(&fixture(name), &OpenOptions::default()));
        assert!(text.contains("ambiguous-root") && text.contains("`optimizer`"), "{text}");
        let state = open(&fixture(name), &options("optimizer.state")).expect("opens");
        let index = state.catalog().find("0.exp_avg").expect("is there");
        assert_eq!(state.catalog().tensors[index].shape, [5, 3]);
    }
}

#[test]
fn a_whole_module_is_read_as_its_state_dict() {
    for name in ["module.pt", "module.protocol1.pt", "module.legacy.pt"] {
        assert_holds(&fixture(name), &OpenOptions::default(), &fixture("module.expected.safetensors"));
        assert!(warnings(&*open(&fixture(name), &OpenOptions::default()).expect("opens")).is_empty());
    }
    assert_holds(&fixture("script.pt"), &OpenOptions::default(), &fixture("script.expected.safetensors"));
}

#[test]
fn other_contents_protocols_and_containers_are_read() {
    for name in ["list", "bare"] {
        let expected = fixture(&format!("{name}.expected.safetensors"));
        assert_holds(&fixture(&format!("{name}.pt")), &OpenOptions::default(), &expected);
    }
    for name in ["protocol1.pt", "protocol3.pt", "protocol4.pt", "protocol5.pt", "protocol4.legacy.pt"] {
        assert_holds(&fixture(name), &OpenOptions::default(), &fixture("protocol.expected.safetensors"));
    }
    let index = fixture("sharded/pytorch_model.bin.index.json");
    assert_holds(&index, &OpenOptions::default(), &fixture("sharded.expected.safetensors"));
    let folder = fixture("sharded");
    assert_holds(&folder, &OpenOptions::default(), &fixture("sharded.expected.safetensors"));
}

#[test]
fn compressed_and_big_endian_archives_are_read() {
    for name in ["deflated", "big_endian"] {
        let expected = fixture(&format!("{name}.expected.safetensors"));
        assert_holds(&fixture(&format!("{name}.pt")), &OpenOptions::default(), &expected);
        let reader = open(&fixture(&format!("{name}.pt")), &OpenOptions::default()).expect("opens");
        assert_eq!(reader.catalog().files.len(), 2, "they do not lie in the file as they are");
    }
}

#[test]
fn the_parts_of_big_endian_complex_numbers_stay_in_place() {
    let pickle = Pickle::new().op(b"}").text("a").global("torch._utils", "_rebuild_tensor_v2").op(b"(");
    let pickle = pickle.storage("ComplexFloatStorage", "0", 2, b"").int(1).ints(&[1]).ints(&[1]);
    let pickle = pickle.op(b"\x89").global("collections", "OrderedDict").op(b")RtRs").stop();
    let storage: Vec<u8> = (0..4).flat_map(|number| (number as f32).to_be_bytes()).collect();
    let bytes = zip(&[("a/data.pkl", &pickle), ("a/byteorder", b"big"), ("a/data/0", &storage)]);
    assert_eq!(bytes_of(&*open_bytes(&bytes).expect("opens"), "a"), floats(4)[8..]);
}

#[test]
fn kinds_that_are_not_read_are_named() {
    let reader = open(&fixture("refused.pt"), &OpenOptions::default()).expect("opens");
    let catalog = reader.catalog();
    for (key, said) in [
        ("sparse", "a sparse tensor"),
        ("csr", "a sparse tensor"),
        ("quantised", "a quantised tensor"),
        ("meta", "meta device"),
        ("nested", "a nested tensor"),
        ("complex128", "`torch.complex128`"),
        ("parameter", "`torch.complex128`"),
        ("conjugated", "conjugated"),
        ("negated", "negated"),
    ] {
        let found =
            catalog.unread.iter().find(|(name, _)| name == key).unwrap_or_else(|| panic!("{key} is named"));
        assert!(found.1.message.contains(said), "{key}: {}", found.1.message);
        assert!(catalog.warnings.iter().any(|warning| warning.tensors.iter().any(|tensor| tensor == key)));
    }
    let read: Vec<&str> = catalog.tensors.iter().map(|tensor| tensor.key.as_str()).collect();
    assert_eq!(read, ["good"]);
}

#[test]
fn a_tensor_that_is_not_read_is_an_error_where_it_is_needed() {
    let file = fixture("refused.pt");
    let file = file.to_str().expect("UTF-8");
    let folder = Folder::new();
    folder.run(&["diff", file, file]).fails(&["format/unsupported-tensor", "tensor: quantised", "csr"]);
    folder.run(&["diff", "--only", "good", file, file]).ok();
    let layouts = json!({ "a": { "tensors": { "good": "w: r" } }, "b": { "tensors": { "w": "w: r" } } });
    folder.put("m.json", kit::mapping("f", json!({ "r": "rows" }), json!({ "w": "r" }), layouts));
    let args = ["--mapping", "m.json", "--from", "f/a", "--to", "f/b", file, "out.safetensors"];
    folder.run(&args).fails(&["format/unsupported-tensor", "tensor: quantised"]);
    folder.run(&[&args[..], &["--only", "g*"]].concat()).ok();
    let others = "{sparse,csr,quantised,meta,nested,complex128,parameter,conjugated,negated}";
    folder.run(&[&args[..], &["--drop", others, "--force"]].concat()).ok();
    assert_eq!(kit::read(&folder.join("out.safetensors"))["w"].values().len(), 2);
}

// ---- Files made by hand ----

/// A pickle's program.
#[derive(Clone)]
pub(crate) struct Pickle(Vec<u8>);

impl Pickle {
    pub(crate) fn new() -> Pickle {
        Pickle(vec![0x80, 2])
    }

    pub(crate) fn op(mut self, bytes: &[u8]) -> Pickle {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(self, text: &str) -> Pickle {
        self.op(b"X").op(&(text.len() as u32).to_le_bytes()).op(text.as_bytes())
    }

    pub(crate) fn int(self, number: i64) -> Pickle {
        self.op(&[0x8a, 8]).op(&number.to_le_bytes())
    }

    pub(crate) fn ints(self, numbers: &[i64]) -> Pickle {
        numbers.iter().fold(self.op(b"("), |pickle, number| pickle.int(*number)).op(b"t")
    }

    pub(crate) fn global(self, module: &str, name: &str) -> Pickle {
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }

    /// The persistent id of a storage; `view` is what legacy files add.
    fn storage(self, class: &str, key: &str, count: i64, view: &[u8]) -> Pickle {
        let pickle = self.op(b"(").text("storage").global("torch", class).text(key).text("cpu").int(count);
        pickle.op(view).op(b"tQ")
    }

    /// A tensor of single precision in storage 0 of so many elements, by the oldest function or the usual one.
    fn tensor(self, count: i64, (offset, shape, strides): (i64, &[i64], &[i64]), old: bool) -> Pickle {
        let view = if old { &b"N"[..] } else { b"" };
        let function = if old { "_rebuild_tensor" } else { "_rebuild_tensor_v2" };
        let pickle = self.global("torch._utils", function).op(b"(").storage("FloatStorage", "0", count, view);
        let pickle = pickle.int(offset).ints(shape).ints(strides);
        if old {
            pickle.op(b"tR")
        } else {
            pickle.op(b"\x89").global("collections", "OrderedDict").op(b")RtR")
        }
    }

    pub(crate) fn stop(self) -> Vec<u8> {
        self.op(b".").0
    }
}

pub(crate) type View<'a> = (&'a str, i64, &'a [i64], &'a [i64]);

/// The pickle of tensors in one storage.
pub(crate) fn views(count: i64, views: &[View<'_>], old: bool) -> Vec<u8> {
    let mut pickle = Pickle::new().op(b"}(");
    for (key, offset, shape, strides) in views {
        pickle = pickle.text(key).tensor(count, (*offset, shape, strides), old);
    }
    pickle.op(b"u").stop()
}

/// A zip archive of stored entries.
pub(crate) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let offset = bytes.len() as u32;
        let mut fields = vec![20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0];
        fields.extend(crc32fast::hash(data).to_le_bytes());
        fields.extend((data.len() as u32).to_le_bytes().repeat(2));
        fields.extend((name.len() as u16).to_le_bytes());
        fields.extend([0, 0]);
        bytes.extend([b"PK\x03\x04", &fields[..], name.as_bytes(), data].concat());
        directory.extend(
            [&b"PK\x01\x02\x14\0"[..], &fields, &[0; 10], &offset.to_le_bytes(), name.as_bytes()].concat(),
        );
    }
    let (count, start) = ((entries.len() as u16).to_le_bytes(), bytes.len() as u32);
    let sizes = [(directory.len() as u32).to_le_bytes(), start.to_le_bytes()].concat();
    bytes.extend(directory);
    bytes.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &sizes, &[0, 0]].concat());
    bytes
}

pub(crate) fn floats(count: usize) -> Vec<u8> {
    (0..count).flat_map(|number| (number as f32).to_le_bytes()).collect()
}

pub(crate) fn archive(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    zip(&[("a/data.pkl", pickle), ("a/byteorder", b"little"), ("a/data/0", storage), ("a/version", b"3\n")])
}

const MAGIC: &[u8] = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";

fn legacy_head(little_endian: bool) -> Vec<u8> {
    let truth: &[u8] = if little_endian { b"\x88" } else { b"\x89" };
    let information =
        Pickle::new().op(b"}(").text("protocol_version").int(1001).text("little_endian").op(truth);
    [MAGIC, &Pickle::new().int(1001).stop(), &information.op(b"u").stop()].concat()
}

/// A file of before the archive with one storage.
pub(crate) fn legacy(pickle: &[u8], count: [u8; 8], storage: &[u8], little_endian: bool) -> Vec<u8> {
    let keys = Pickle::new().op(b"](").text("0").op(b"e").stop();
    [&legacy_head(little_endian), pickle, &keys, &count, storage].concat()
}

fn opened(bytes: &[u8], options: &OpenOptions) -> Result<Box<dyn Reader>, Errors> {
    let folder = Folder::new();
    let path = folder.put("a.pt", bytes);
    open(&path, options)
}

fn open_bytes(bytes: &[u8]) -> Result<Box<dyn Reader>, Errors> {
    opened(bytes, &OpenOptions::default())
}

fn text(result: &Result<Box<dyn Reader>, Errors>) -> String {
    format!("{:?}", result.as_ref().err().expect("does not open").diagnostics())
}

/// Demands an error with these texts, fast.
#[track_caller]
fn refused(bytes: &[u8], said: &[&str]) {
    let start = Instant::now();
    let text = text(&open_bytes(bytes));
    for said in said {
        assert!(text.contains(said), "`{said}` is not in {}", &text[..text.len().min(2000)]);
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// Both kinds of file with the same tensors in one storage of 0, 1, 2, …
fn both(count: usize, tensors: &[View<'_>]) -> [Vec<u8>; 2] {
    let (signed, storage) = (count as i64, floats(count));
    let old = legacy(&views(signed, tensors, true), (count as u64).to_le_bytes(), &storage, true);
    [archive(&views(signed, tensors, false), &storage), old]
}

// ---- Faults that people met (data/cases.json) ----

fn case(id: &str) -> Value {
    let all: Vec<Value> = serde_json::from_str(include_str!("data/cases.json")).expect("JSON");
    all.into_iter().find(|case| case["id"] == id).expect("a case of that name")
}

/// The offset, the shape and the strides of each tensor.
type Described = BTreeMap<String, (i64, Vec<i64>, Vec<i64>)>;

/// The tensors of a case, and the elements of their storage.
fn tensors_of(case: &Value) -> (usize, Described) {
    let storage = &case["input"]["storage"];
    let count = match storage["values"].as_str() {
        Some(range) => {
            range.split("..").nth(1).and_then(|last| last.parse::<usize>().ok()).expect("a range") + 1
        }
        None => storage["numel"].as_u64().expect("a number") as usize,
    };
    let numbers = |value: &Value| serde_json::from_value::<Vec<i64>>(value.clone()).expect("numbers");
    let tensors = case["input"]["tensors"].as_object().expect("tensors").iter().map(|(key, about)| {
        (
            key.clone(),
            (
                about["offset"].as_i64().expect("a number"),
                numbers(&about["shape"]),
                numbers(&about["stride"]),
            ),
        )
    });
    (count, tensors.collect())
}

#[test]
fn strides_offsets_and_ties_are_those_of_the_cases() {
    for id in ["ST-01", "ST-02", "TIE-01", "TIE-02"] {
        let case = case(id);
        let (count, tensors) = tensors_of(&case);
        let views: Vec<View<'_>> =
            tensors.iter().map(|(key, (o, s, t))| (key.as_str(), *o, &s[..], &t[..])).collect();
        for bytes in both(count, &views) {
            let folder = Folder::new();
            let reader = open(&folder.put("a.pt", &bytes), &OpenOptions::default()).expect("opens");
            for (key, expected) in case["expected"]["tensors"].as_object().expect("tensors") {
                let values: Vec<f32> = serde_json::from_value(expected["values"].clone()).expect("numbers");
                let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
                assert_eq!(bytes_of(&*reader, key), bytes, "{id} {key}");
            }
            assert_eq!(reader.catalog().tensors.len(), views.len(), "{id}: none is dropped");
            if id == "TIE-01" {
                let tensors = &reader.catalog().tensors;
                assert_eq!(
                    (tensors[0].offset, &tensors[0].strides),
                    (tensors[1].offset, &tensors[1].strides)
                );
            }
            let overlaps = warnings(&*reader).len();
            // In ST-02 c lies over both of the others, which lie behind each other.
            assert_eq!(overlaps, if id == "ST-02" { 2 } else { 0 }, "{id} {:?}", warnings(&*reader));
        }
    }
}

#[test]
fn a_view_past_the_end_of_its_storage_is_refused() {
    let case = case("ST-02");
    let named = case["expected"]["bad_offset"]["must_name"].as_array().expect("texts").iter();
    let mut said: Vec<&str> = named.filter_map(Value::as_str).collect();
    said.extend(["view-out-of-storage", "tensor: a"]);
    for bytes in both(20, &[("a", 10, &[3, 4], &[4, 1])]) {
        refused(&bytes, &said);
    }
    for (offset, shape, strides) in [
        (0, &[21][..], &[1][..]),
        (20, &[][..], &[][..]),
        (0, &[2], &[i64::MAX]),
        (i64::MAX, &[2], &[1]),
        (0, &[3, 3], &[i64::MAX, i64::MAX]),
        (1, &[2, 5], &[15, 1]),
    ] {
        for bytes in both(20, &[("a", offset, shape, strides)]) {
            refused(&bytes, &["view-out-of-storage"]);
        }
    }
    for bytes in both(20, &[("a", 19, &[], &[]), ("b", 0, &[2, 5], &[15, 1]), ("c", 0, &[7, 0], &[99, 1])]) {
        assert!(open_bytes(&bytes).is_ok());
    }
}

#[test]
fn a_slice_of_a_large_storage_is_written_alone() {
    let case = case("ST-03");
    let (count, tensors) = tensors_of(&case);
    let views: Vec<View<'_>> =
        tensors.iter().map(|(key, (o, s, t))| (key.as_str(), *o, &s[..], &t[..])).collect();
    let layout = json!({ "tensors": { "w": "w: n" } });
    for bytes in both(count, &views) {
        let folder = Folder::new();
        folder.put("in.pt", &bytes);
        let mapping = kit::mapping(
            "w",
            json!({ "n": "width" }),
            json!({ "w": "n" }),
            json!({ "a": layout, "b": layout }),
        );
        folder.put("m.json", mapping);
        folder.run(&["--mapping", "m.json", "--from", "w/a", "--to", "w/b", "in.pt", "out.safetensors"]).ok();
        let written = &kit::read(&folder.join("out.safetensors"))["w"];
        assert_eq!(Some(written.bytes.len() as u64), case["expected"]["data_section_bytes"].as_u64());
        assert_eq!(written.bytes, floats(1000));
    }
}

#[test]
fn views_that_share_a_part_are_named() {
    for bytes in both(20, &[("a", 0, &[8], &[1]), ("b", 6, &[8], &[1]), ("c", 14, &[6], &[1])]) {
        let reader = open_bytes(&bytes).expect("opens");
        let [warning] = warnings(&*reader)[..] else { panic!("one warning") };
        assert_eq!(
            (warning.code.as_str(), &warning.tensors[..]),
            ("format/overlapping-views", &["a".into(), "b".into()][..])
        );
        assert!(warning.message.contains("`a` and `b`"), "{}", warning.message);
    }
    // The columns of one matrix lie between each other and share nothing.
    let columns: &[View<'_>] =
        &[("q", 0, &[5, 1], &[4, 1]), ("k", 1, &[5, 1], &[4, 1]), ("v", 2, &[5, 2], &[4, 1])];
    for bytes in both(20, columns) {
        assert!(warnings(&*open_bytes(&bytes).expect("opens")).is_empty());
    }
}

/// What KEY-12 describes.
pub(crate) fn with_namespace() -> Vec<u8> {
    let pickle = Pickle::new().op(b"}(").text("args").global("argparse", "Namespace").op(b")\x81}");
    let pickle = pickle.text("lr").op(b"G\x3f\xb9\x99\x99\x99\x99\x99\x9asb");
    let pickle = pickle.text("epoch").global("numpy.core.multiarray", "scalar").global("numpy", "dtype");
    let pickle = pickle
        .text("f8")
        .op(b"\x89\x88\x87R(K\x03")
        .text("<")
        .op(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb");
    let pickle =
        pickle.global("_codecs", "encode").text("\0\0\0\0\0\0\u{8}@").text("latin1").op(b"\x86R\x86R");
    let pickle = pickle.text("model").op(b"}").text("w").tensor(4, (0, &[2], &[1]), false).op(b"s");
    let pickle = pickle.text("optimizer").op(b"}").text("state").op(b"}K\0}").text("exp_avg");
    pickle.tensor(4, (2, &[2], &[1]), false).op(b"sssu").stop()
}

#[test]
fn objects_beside_the_tensors_are_passed_over() {
    let case = case("KEY-12");
    let storage: Vec<u8> = [1_f32, 2.0, 9.0, 9.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let bytes = archive(&with_namespace(), &storage);
    let folder = Folder::new();
    let path = folder.put("a.pt", &bytes);
    let reader = open(&path, &options("model")).expect("opens");
    assert_eq!((reader.catalog().tensors.len(), bytes_of(&*reader, "w")), (1, storage[..8].to_vec()));
    let [warning] = warnings(&*reader)[..] else { panic!("one warning") };
    let skipped = case["expected"]["skipped"].as_array().expect("names").iter().filter_map(Value::as_str);
    assert_eq!(warning.tensors, skipped.collect::<Vec<_>>());
    assert!(warning.message.contains("an object of the class argparse.Namespace"), "{}", warning.message);
    let text = text(&open(&path, &OpenOptions::default()));
    for said in ["ambiguous-root", "`model`", "`optimizer`", "--root model"] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn what_stands_beside_the_tensors_is_kept_as_facts_whatever_container_is_read() {
    let pickle = Pickle::new().op(b"}(").text("checkpoint_version").op(b"G@\x08\0\0\0\0\0\0");
    // A namespace with a list, a type, a member of an enumeration and a long list, which is no fact.
    let pickle = pickle.text("args").global("argparse", "Namespace").op(b")\x81}(");
    let pickle =
        pickle.text("num_query_groups").op(b"K\x03").text("names").op(b"](").text("q").text("k").op(b"e");
    let pickle = pickle.text("dtype").global("torch", "bfloat16");
    let pickle = pickle.text("kind").global("megatron", "ModelType").op(b"K\x02\x85R");
    let pickle = pickle.text("long").op(b"](").op(&[b'N'; 300]).op(b"eub");
    let pickle = pickle.text("optimizer").op(b"}(").text("param_groups").op(b"]").text("state").op(b"}K\0}");
    let pickle = pickle.text("step").op(b"K\x05s").text("m").tensor(2, (0, &[2], &[1]), false).op(b"ssu");
    let pickle = pickle.text("model").op(b"}").text("w").tensor(2, (0, &[2], &[1]), false).op(b"s");
    let reader = opened(&archive(&pickle.op(b"u").stop(), &floats(2)), &options("model")).expect("opens");
    let [(_, facts)] = &reader.catalog().facts[..] else { panic!("facts of one file") };
    let expected = serde_json::json!({
        "checkpoint_version": 3.0,
        "args": { "num_query_groups": 3, "names": ["q", "k"], "dtype": "torch.bfloat16", "kind": 2 },
        "optimizer": { "param_groups": [] },
    });
    assert_eq!(*facts, expected);
}

#[test]
fn facts_of_shared_and_endless_containers_end() {
    // Each list holds the one before it twice; the last holds itself.
    let mut pickle = Pickle::new().op(b"]q\x00(K\x01K\x02e");
    for at in 0..60_u8 {
        pickle = pickle.op(&[b']', b'q', at + 1, b'(', b'h', at, b'h', at, b'e']);
    }
    let pickle = pickle.op(b"h\x3cq\xf0a").op(b"q\xf1}(").text("a").op(b"h\xf1").text("n").op(b"K\x07");
    let pickle = pickle.text("w").tensor(2, (0, &[2], &[1]), false).op(b"u").stop();
    let reader = opened(&archive(&pickle, &floats(2)), &OpenOptions::default()).expect("opens");
    assert_eq!(reader.catalog().facts[0].1["n"], 7);
}

// ---- Files made to harm (KEY-13) ----

#[test]
fn calls_that_do_harm_are_named_and_not_made() {
    let call = |pickle: Pickle| pickle.text("touch harm").op(b"\x85R").stop();
    for (module, name) in
        [("posix", "system"), ("os", "popen"), ("builtins", "eval"), ("__builtin__", "getattr")]
    {
        let said = format!("`{module}.{name}`");
        let pickle = call(Pickle::new().global(module, name));
        refused(&archive(&pickle, &[]), &["format/unsafe-pickle", &said]);
        refused(&[&legacy_head(true), &pickle[..]].concat(), &["format/unsafe-pickle", &said]);
        let stacked = call(Pickle::new().text(module).text(name).op(b"\x93"));
        refused(&archive(&stacked, &[]), &["format/unsafe-pickle", &said]);
        let made = Pickle::new().global(module, name).op(b")\x81").stop();
        refused(&archive(&made, &[]), &["format/unsafe-pickle", &said]);
        let instance = Pickle::new().op(format!("(i{module}\n{name}\n").as_bytes()).stop();
        refused(&archive(&instance, &[]), &["format/unsafe-pickle", &said]);
        let object = Pickle::new().op(b"(").global(module, name).op(b"o").stop();
        refused(&archive(&object, &[]), &["format/unsafe-pickle", &said]);
        // Thrown away before the end, beside tensors.
        let hidden =
            Pickle::new().global(module, name).op(b")R0").op(&views(4, &[("a", 0, &[4], &[1])], false)[2..]);
        refused(&archive(&hidden.0, &floats(4)), &["format/unsafe-pickle", &said]);
    }
    let unknown = Pickle::new().op(b"}(").text("x").global("nobody.knows", "this").op(b")R");
    let unknown = unknown.text("a").tensor(4, (0, &[4], &[1]), false).op(b"u").stop();
    let reader = open_bytes(&archive(&unknown, &floats(4))).expect("opens");
    assert!(warnings(&*reader)[0].message.contains("an object of the class nobody.knows.this"));
}

#[test]
fn programs_that_would_take_all_memory_are_refused() {
    let bad = |program: &[u8], said: &str| refused(&archive(&Pickle::new().op(program).0, &[]), &[said]);
    bad(b"Nr\xff\xff\xff\x7f.", "2147483647");
    bad(b"Np2147483647\n.", "2147483647");
    bad(b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "format/truncated");
    bad(b"X\xff\xff\xff\x7f.", "format/truncated");
    bad(b"\x8b\xff\xff\xff\x7f.", "format/truncated");
    bad(b"\x8b\xff\xff\xff\xff.", "negative");
    bad(b"h\x05.", "recalls 5");
    bad(b"\x82\x01.", "extension");
    bad(b"\x97.", "outside");
    bad(b"\x80\x07.", "protocol 7");
    bad(b"\xff.", "0xff");
    bad(b"0.", "not there");
    bad(b"(N\x85.", "format/no-tensors");
    bad(b"(\x85.", "not there");
    bad(b"t.", "mark");
    bad(b"Na.", "not there");
    bad(b"NNa.", "no list");
    bad(b"NNNs.", "no dictionary");
    bad(b"}(Nu.", "no value");
    bad(b"", "format/truncated");
    bad(&[&vec![b']'; 3_000_000][..], b"."].concat(), "format/bad-pickle");
    bad(&[&b"]0".repeat(3_000_000)[..], b"."].concat(), "format/pickle-too-large");
    bad(&[&vec![b'('; 3_000_000][..], b"."].concat(), "too many marks");
    bad(&b"N0".repeat(20_000_000), "instructions");
    bad(&[&b"N\x94"[..], &vec![0x94; 10_000_000], b"."].concat(), "format/pickle-too-large");
}

#[test]
fn nesting_and_shared_references_have_bounds() {
    let tensor = |pickle: Pickle| pickle.tensor(4, (0, &[4], &[1]), false);
    let nested = |depth: usize| {
        let pickle = (0..depth).fold(Pickle::new(), |pickle, _| pickle.op(b"]"));
        tensor(pickle).op(&vec![b'a'; depth]).stop()
    };
    assert!(open_bytes(&archive(&nested(100), &floats(4))).is_ok());
    for depth in [131, 100_000] {
        refused(&archive(&nested(depth), &floats(4)), &["format/nested-too-deep"]);
    }
    refused(
        &archive(&Pickle::new().op(b"N").op(&[0x85; 1_000_000]).stop(), &[]),
        &["format/nested-too-deep"],
    );
    // Each level holds the one below twice: 2^60 tensors in a few hundred bytes.
    let mut pickle = tensor(Pickle::new());
    for _ in 0..60 {
        pickle = pickle.op(b"2\x86");
    }
    refused(&archive(&pickle.stop(), &floats(4)), &["format/pickle-too-large"]);
    // The deepest were found first, so that each was near the top when it was looked at.
    let mut pickle = tensor(Pickle::new().op(b"](")).op(b"\x85q\0");
    for level in 0..200_u8 {
        pickle = pickle.op(&[b'h', level, 0x85, b'q', level + 1]);
    }
    refused(&archive(&pickle.op(b"e").stop(), &floats(4)), &["format/nested-too-deep"]);
    // A list in itself, beside a tensor.
    let cycle = tensor(Pickle::new().op(b"]q\0(h\0")).op(b"e").stop();
    let reader = open_bytes(&archive(&cycle, &floats(4))).expect("opens");
    assert_eq!(reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect::<Vec<_>>(), ["1"]);
    let alone = Pickle::new().op(b"]q\0h\0a").stop();
    refused(&archive(&alone, &[]), &["format/no-tensors"]);
    // Many entries that are no tensors are not listed one by one.
    let mut pickle = tensor(Pickle::new().op(b"]("));
    pickle.0.extend(vec![b'N'; 500_000]);
    let reader = open_bytes(&archive(&pickle.op(b"e").stop(), &floats(4))).expect("opens");
    assert!(warnings(&*reader)[0].tensors.len() <= 200, "{}", warnings(&*reader)[0].tensors.len());
}

#[test]
fn storages_are_checked_against_the_file() {
    let one = |count: i64| views(count, &[("a", 0, &[2], &[1])], false);
    refused(
        &archive(&one(5), &floats(4)),
        &["format/bad-storage", "5 elements of 4 bytes", "16 bytes", "tensor: a"],
    );
    refused(&archive(&one(3), &floats(4)), &["format/bad-storage"]);
    refused(&archive(&one(i64::MAX), &floats(4)), &["format/shape-overflow"]);
    refused(&zip(&[("a/data.pkl", &one(4))]), &["format/bad-storage", "`0` is not in the archive"]);
    let two = zip(&[("a/data.pkl", &one(4)), ("b/data.pkl", &one(4)), ("a/data/0", &floats(4))]);
    refused(&two, &["format/zip", "`a/data.pkl`, `b/data.pkl`"]);
    let twice = zip(&[("a/data.pkl", &one(4)), ("a/data.pkl", &one(4)), ("a/data/0", &floats(4))]);
    refused(&twice, &["format/zip"]);
    let order = zip(&[("a/data.pkl", &one(4)), ("a/byteorder", b"middle"), ("a/data/0", &floats(4))]);
    refused(&order, &["byte order", "`middle`"]);
    for (shape, strides) in
        [(&[i64::MAX, 4][..], &[0, 0][..]), (&[1 << 40, 1 << 40, 0], &[0, 0, 0]), (&[i64::MAX], &[0])]
    {
        for bytes in both(4, &[("a", 0, shape, strides)]) {
            refused(&bytes, &["format/shape-overflow"]);
        }
    }
    for (shape, strides, said) in
        [(&[-1][..], &[1][..], "natural"), (&[2], &[-1], "natural"), (&[2, 2], &[1], "2 sizes and 1 strides")]
    {
        for bytes in both(4, &[("a", 0, shape, strides)]) {
            refused(&bytes, &["format/bad-tensor", said]);
        }
    }
}

#[test]
fn files_before_the_archive_are_checked_to_their_end() {
    let pickle = views(4, &[("a", 1, &[3], &[1])], true);
    let good = legacy(&pickle, 4_u64.to_le_bytes(), &floats(4), true);
    assert!(open_bytes(&good).is_ok());
    for length in 0..good.len() {
        assert!(open_bytes(&good[..length]).is_err(), "{length}");
    }
    // PyTorch reads over what follows.
    let reader = open_bytes(&[&good[..], b"more"].concat()).expect("opens");
    assert!(warnings(&*reader)[0].message.starts_with("4 bytes follow"));
    refused(&legacy(&pickle, 5_u64.to_le_bytes(), &floats(5), true), &["format/bad-storage", "4 elements"]);
    refused(&legacy(&pickle, u64::MAX.to_le_bytes(), &floats(4), true), &["format/truncated"]);
    refused(&Pickle::new().op(b"}.").0, &["format/not-pytorch", "none that torch.save wrote"]);
    refused(MAGIC, &["format/truncated"]);
    refused(&[MAGIC, &Pickle::new().int(1002).stop()].concat(), &["1001"]);
    // Old versions wrote the count in the machine's order, but always little-endian elements.
    let big = legacy(&pickle, 4_u64.to_be_bytes(), &floats(4), false);
    let folder = Folder::new();
    let reader = open(&folder.put("a.pt", &big), &OpenOptions::default()).expect("opens");
    assert_eq!(bytes_of(&*reader, "a"), floats(4)[4..]);
}

#[test]
fn views_of_storages_are_read_as_old_versions_wrote_them() {
    // (key of the view, its first element, its elements)
    let view = Pickle(Vec::new()).op(b"(").text("1").int(3).int(4).op(b"t").0;
    let tensor = |offset: i64, size: i64, view: &[u8]| {
        let pickle = Pickle::new().op(b"}").text("a").global("torch._utils", "_rebuild_tensor").op(b"(");
        let pickle = pickle.storage("FloatStorage", "0", 9, view).int(offset).ints(&[size]).ints(&[1]);
        legacy(&pickle.op(b"tRs").stop(), 9_u64.to_le_bytes(), &floats(9), true)
    };
    let folder = Folder::new();
    let path = folder.put("a.pt", tensor(1, 3, &view));
    let reader = open(&path, &OpenOptions::default()).expect("opens");
    assert_eq!(bytes_of(&*reader, "a"), floats(9)[16..28]);
    refused(&tensor(1, 4, &view), &["view-out-of-storage", "needs 5", "has 4"]);
    let view = Pickle(Vec::new()).op(b"(").text("1").int(6).int(4).op(b"t").0;
    refused(&tensor(0, 1, &view), &["view-out-of-storage", "has 9"]);
}

#[test]
fn archives_cut_anywhere_or_changed_anywhere_do_not_panic() {
    let good = archive(&with_namespace(), &floats(4));
    assert!(opened(&good, &options("model")).is_ok());
    for length in 0..good.len() {
        assert!(opened(&good[..length], &options("model")).is_err(), "{length}");
    }
    let old = legacy(&views(4, &[("a", 1, &[3], &[1])], true), 4_u64.to_le_bytes(), &floats(4), true);
    let folder = Folder::new();
    for bytes in [&good, &old] {
        for at in 0..bytes.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                if let Ok(reader) = open(&folder.put("a.pt", &bytes), &OpenOptions::default()) {
                    for tensor in &reader.catalog().tensors {
                        bytes_of(&*reader, &tensor.key);
                    }
                }
            }
        }
    }
}

/// How a pickle writes bytes: as bytes, or as the protocols before them do.
#[derive(Clone, Copy)]
enum Write {
    Bytes,
    Latin1,
}

impl Pickle {
    fn bytes(self, bytes: &[u8], how: Write) -> Pickle {
        match how {
            Write::Bytes => self.op(b"B").op(&(bytes.len() as u32).to_le_bytes()).op(bytes),
            Write::Latin1 => {
                let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
                self.global("_codecs", "encode").text(&text).text("latin1").op(b"\x86R")
            }
        }
    }

    fn dtype(self, code: &str, order: &str) -> Pickle {
        let pickle = self.global("numpy", "dtype").text(code).op(b"\x89\x88\x87R(K\x03").text(order);
        pickle.op(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb")
    }

    /// A NumPy array as `array.__reduce__` gives it.
    fn array(
        self,
        (code, order): (&str, &str),
        shape: &[i64],
        fortran: bool,
        bytes: &[u8],
        how: Write,
    ) -> Pickle {
        let pickle = self.global("numpy._core.multiarray", "_reconstruct").global("numpy", "ndarray");
        let pickle = pickle.ints(&[0]).bytes(b"b", how).op(b"\x87R(K\x01").ints(shape).dtype(code, order);
        pickle.op(if fortran { b"\x88" } else { b"\x89" }).bytes(bytes, how).op(b"tb")
    }
}

#[test]
fn numpy_arrays_and_numbers_in_a_pickle_are_tensors() {
    let random = |count: usize, seed: u64| -> Vec<u8> {
        let mut next = kit::xorshift();
        let _ = (0..seed).map(|_| next()).last();
        (0..count).map(|_| next() as u8).collect()
    };
    // Longer than what is kept of a pickle, as bytes and as text, so that it is read where it stands.
    let (long, text) = (random(3 * 1009 * 8, 1), random(5 * 70_001 * 4, 2));
    let (small, big) = (random(2 * 3 * 8, 3), random(3 * 2, 4));
    for zipped in [true, false] {
        for how in [Write::Bytes, Write::Latin1] {
            let pickle =
                Pickle::new().op(b"}(").text("long").array(("f8", "<"), &[3, 1009], false, &long, how);
            let pickle = pickle.text("text").array(("f4", "<"), &[5, 70_001], false, &text, how);
            let pickle = pickle.text("columns").array(("i8", "<"), &[2, 3], true, &small, how);
            let pickle = pickle.text("big").array(("u2", ">"), &[3], false, &big, how);
            let pickle = pickle.text("empty").array(("f4", "<"), &[0, 7], false, &[], how);
            let number = pickle.text("number").global("numpy.core.multiarray", "scalar").dtype("f8", "<");
            let pickle = number.bytes(&1.5_f64.to_le_bytes(), how).op(b"\x86R");
            let pickle = pickle.text("buffer").global("numpy.core.numeric", "_frombuffer").op(b"(");
            let pickle =
                pickle.bytes(&small, Write::Bytes).dtype("f4", "<").ints(&[3, 4]).text("F").op(b"tR");
            let pickle = pickle.text("mine").global("numpy._core.multiarray", "_reconstruct");
            let pickle =
                pickle.global("numpy", "ndarray").ints(&[0]).bytes(b"b", how).op(b"\x87R(K\x01").ints(&[3]);
            let pickle =
                pickle.global("numpy", "dtype").global("ml_dtypes", "bfloat16").op(b"\x89\x88\x87R(K\x03");
            let pickle = pickle.text("<").op(b"NNNK\x02K\x02K@tb\x89").bytes(&big, how).op(b"tb");
            // Beside a tensor of PyTorch; text is no tensor.
            let pickle = pickle.text("w").tensor(4, (0, &[4], &[1]), false);
            let pickle =
                pickle.text("words").array(("U1", "<"), &[1], false, b"a\0\0\0", how).op(b"u").stop();
            let bytes = if zipped {
                archive(&pickle, &floats(4))
            } else {
                legacy(&pickle, 4_u64.to_le_bytes(), &floats(4), true)
            };
            let folder = Folder::new();
            let reader = open(&folder.put("a.pt", bytes), &OpenOptions::default()).expect("opens");
            let expect = |key: &str, dtype: Dtype, shape: &[u64], bytes: &[u8]| {
                let catalog = reader.catalog();
                let tensor = &catalog.tensors[catalog.find(key).unwrap_or_else(|| panic!("{key} is there"))];
                assert_eq!((tensor.dtype, &tensor.shape[..]), (dtype, shape), "{key}");
                assert!(bytes_of(&*reader, key) == bytes, "{key}: other bytes");
            };
            expect("long", Dtype::F64, &[3, 1009], &long);
            expect("text", Dtype::F32, &[5, 70_001], &text);
            // Column by column in the file.
            let columns = |rows: usize, columns: usize, width: usize| -> Vec<u8> {
                let at = (0..rows).flat_map(|row| (0..columns).map(move |column| column * rows + row));
                at.flat_map(|at| small[at * width..][..width].to_vec()).collect()
            };
            expect("columns", Dtype::I64, &[2, 3], &columns(2, 3, 8));
            expect("buffer", Dtype::F32, &[3, 4], &columns(3, 4, 4));
            expect("big", Dtype::U16, &[3], &[big[1], big[0], big[3], big[2], big[5], big[4]]);
            expect("empty", Dtype::F32, &[0, 7], &[]);
            expect("number", Dtype::F64, &[], &1.5_f64.to_le_bytes());
            expect("mine", Dtype::BF16, &[3], &big);
            expect("w", Dtype::F32, &[4], &floats(4));
            assert_eq!(reader.catalog().tensors.len(), 9);
            assert!(
                warnings(&*reader).iter().any(|warning| warning.message.contains("`words` (a NumPy array)"))
            );
        }
    }
}

#[test]
fn numpy_arrays_that_cannot_be_are_refused() {
    let one = |pickle: fn(Pickle) -> Pickle| {
        let pickle = pickle(Pickle::new().op(b"}(").text("a"));
        open_bytes(&archive(&pickle.op(b"u").stop(), &[]))
    };
    for (result, said) in [
        (
            one(|pickle| pickle.array(("f4", "<"), &[3], false, &[0; 8], Write::Bytes)),
            "another number of bytes",
        ),
        (one(|pickle| pickle.array(("f4", "<"), &[1 << 40, 1 << 40], false, &[], Write::Bytes)), "overflows"),
        (one(|pickle| pickle.array(("f4", "<"), &[-1], false, &[], Write::Bytes)), "no natural numbers"),
    ] {
        assert!(text(&result).contains(said), "{}", text(&result));
    }
    let unread = one(|pickle| pickle.array(("O8", "|"), &[1], false, b"x", Write::Bytes)).expect("opens");
    assert!(unread.catalog().unread[0].1.message.contains("Python objects"));
    // A text of characters that are no bytes.
    let text = Pickle::new().op(b"}(").text("a").global("numpy._core.multiarray", "scalar").dtype("f4", "<");
    let text = text.global("_codecs", "encode").text("\u{100}abc").text("latin1").op(b"\x86R\x86Ru").stop();
    refused(&archive(&text, &[]), &["no bytes"]);
}

#[test]
fn methods_of_objects_are_values_that_nothing_may_call() {
    let method = |pickle: Pickle| {
        let pickle = pickle.global("builtins", "getattr").global("mynet", "Net").op(b")\x81");
        pickle.text("forward").op(b"\x86R")
    };
    let held = method(Pickle::new().op(b"}(").text("run")).text("w").tensor(4, (0, &[4], &[1]), false);
    let reader = open_bytes(&archive(&held.op(b"u").stop(), &floats(4))).expect("opens");
    assert_eq!(reader.catalog().tensors[0].key, "w");
    assert!(warnings(&*reader)[0].message.contains("`run` (a method of an object)"));
    let called = method(Pickle::new()).op(b")R").stop();
    refused(&archive(&called, &[]), &["format/unsafe-pickle"]);
    // A class in a class, as protocols below 4 name it, may be made; a function in a module of a module may not.
    let of = |module: &str, name: &str, attribute: &str| {
        Pickle::new().global("__builtin__", "getattr").global(module, name).text(attribute).op(b"\x86R")
    };
    let nested = of("mynet", "Net", "Config").op(b")\x81").stop();
    refused(&archive(&nested, &[]), &["format/no-tensors", "mynet.Net.Config"]);
    for (module, name, attribute) in [
        ("torch", "os", "system"),
        ("mynet", "Net", "__subclasses__"),
        ("builtins", "eval", "x"),
        ("os", "path", "x"),
    ] {
        refused(&archive(&of(module, name, attribute).stop(), &[]), &["format/unsafe-pickle"]);
    }
    let twice = Pickle::new().global("builtins", "getattr");
    let twice = method(twice).text("os").op(b"\x86R").stop();
    refused(&archive(&twice, &[]), &["format/unsafe-pickle"]);
}

#[test]
fn keys_that_are_no_text_do_not_block_the_rest() {
    let pickle = Pickle::new().op(b"}(").text("callbacks").op(b"}(").global("lightning", "Checkpoint");
    let pickle = pickle.op(b"}").text("best").tensor(4, (0, &[], &[]), false).op(b"s");
    let pickle = pickle.global("lightning", "Stopping").op(b"}").text("best").tensor(4, (1, &[], &[]), false);
    let pickle = pickle.op(b"su").text("state_dict").op(b"}").text("w").tensor(4, (0, &[4], &[1]), false);
    let bytes = archive(&pickle.op(b"su").stop(), &floats(4));
    let keys = |root: &str| -> Vec<String> {
        let reader = opened(&bytes, &options(root)).expect("opens");
        reader.catalog().tensors.iter().map(|tensor| tensor.key.clone()).collect()
    };
    assert_eq!(keys("state_dict"), ["w"]);
    assert_eq!(keys("callbacks"), ["<lightning.Checkpoint 1>.best", "<lightning.Stopping 2>.best"]);
}

#[test]
fn keys_of_all_kinds_become_names() {
    let pickle = Pickle::new().op(b"}(K\x07").tensor(4, (0, &[1], &[1]), false);
    let pickle = pickle.op(b"K\x01K\x02\x86").tensor(4, (1, &[1], &[1]), false);
    let pickle = pickle.text("a.b").tensor(4, (2, &[1], &[1]), false);
    // The last of two entries of one key counts.
    let pickle = pickle.text("a.b").tensor(4, (3, &[1], &[1]), false).op(b"u").stop();
    let reader = open_bytes(&archive(&pickle, &floats(4))).expect("opens");
    let keys: Vec<&str> = reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
    assert_eq!(keys, ["7", "(1, 2)", "a.b"]);
    let same = Pickle::new().op(b"}(K\x07").tensor(4, (0, &[1], &[1]), false).text("7");
    let same = same.tensor(4, (1, &[1], &[1]), false).op(b"u").stop();
    refused(&archive(&same, &floats(4)), &["format/duplicate-key"]);
}
