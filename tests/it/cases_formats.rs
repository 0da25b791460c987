//! The cases of `cases.rs` about files other than safetensors, made here by hand, and about memory.

use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::{Value, json};

use crate::cases::Case;
use crate::format_pytorch::{Pickle, View, archive, floats, legacy, views, with_namespace, zip};
use crate::kit::{self, Run, Tensor};

// ---- What the cases share ----

/// Writes a mapping that takes tensors of these names and ranks as they are; others pass through.
fn copies(case: &Case, tensors: &[(&str, usize)]) {
    let (mut axes, mut params, mut rules) = (json!({}), json!({}), json!({}));
    for (number, (key, rank)) in tensors.iter().enumerate() {
        let names: Vec<String> = (0..*rank).map(|axis| format!("t{number}x{axis}")).collect();
        names.iter().for_each(|name| axes[name] = json!("a size"));
        params[format!("p{number}")] = json!(names.join(" "));
        rules[*key] = json!(format!("p{number}: {}", names.join(" ")));
    }
    let layouts = json!({ "a": { "tensors": rules }, "b": { "tensors": rules } });
    let text = json!({ "format": 1, "family": "copies", "about": "", "unmapped": "keep", "axes": axes,
        "params": params, "layouts": layouts });
    case.folder.put("m.json", text.to_string());
}

/// Converts that file to out.safetensors.
fn convert(case: &Case, source: &str, more: &[&str]) -> Run {
    case.folder.run(&[&ARGS[..], more, &[source, "out.safetensors"]].concat())
}

const ARGS: [&str; 8] =
    ["--mapping", "m.json", "--from", "copies/a", "--to", "copies/b", "--force", "--report=report.json"];

fn report(case: &Case) -> Value {
    let text = std::fs::read_to_string(case.folder.join("report.json")).expect("a report");
    serde_json::from_str(&text).expect("JSON")
}

/// The texts that the case wants to see at that place of what is expected.
fn named<'a>(case: &'a Case, pointer: &str) -> Vec<&'a str> {
    let texts = case.expected.pointer(pointer).and_then(Value::as_array).expect("texts");
    texts.iter().filter_map(Value::as_str).collect()
}

/// The one array that the case describes, as a .npy file; `spaces` and the order of its header's entries are a writer's.
fn npy(about: &Value, spaces: &str, flag_first: bool) -> Vec<u8> {
    let data: Vec<u8> = match about["data_hex"].as_str() {
        Some(text) => bytes_of_hex(text),
        None => about["data"].as_array().expect("numbers").iter().flat_map(le_bytes).collect(),
    };
    let shape: Vec<u64> = serde_json::from_value(about["shape"].clone()).expect("a shape");
    let shape: String = shape.iter().map(|size| format!("{size},")).collect();
    let order = if about["fortran_order"] == true { "True" } else { "False" };
    let descr = about["descr"].as_str().expect("a type");
    let mut entries =
        [format!("'descr':{spaces}'{descr}'{spaces},"), format!("'fortran_order':{spaces}{order},")];
    if flag_first {
        entries.reverse();
    }
    array_file(&format!("{{{}{spaces}'shape': ({shape}){spaces}}}", entries.join(" ")), &data)
}

/// A .npy file of that header.
fn array_file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut header = header.to_owned();
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn le_bytes(number: &Value) -> [u8; 4] {
    (number.as_f64().expect("a number") as f32).to_le_bytes()
}

fn bytes_of_hex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The tensors of a case of views of one storage: offset, shape and strides.
type Described = Vec<(String, i64, Vec<i64>, Vec<i64>)>;

fn described(case: &Case) -> Described {
    let numbers = |value: &Value| serde_json::from_value::<Vec<i64>>(value.clone()).expect("numbers");
    let tensors = case.input["tensors"].as_object().expect("tensors").iter();
    tensors
        .map(|(key, about)| {
            let offset = about["offset"].as_i64().expect("a number");
            (key.clone(), offset, numbers(&about["shape"]), numbers(&about["stride"]))
        })
        .collect()
}

/// Writes in.pt and in.bin, the archive and the file of before it, with these views of a storage of 0, 1, 2, ….
fn write_views(case: &Case, count: usize, tensors: &Described) -> [&'static str; 2] {
    let tensors: Vec<View<'_>> = tensors
        .iter()
        .map(|(key, offset, shape, strides)| (&key[..], *offset, &shape[..], &strides[..]))
        .collect();
    let (signed, storage) = (count as i64, floats(count));
    case.folder.put("in.pt", archive(&views(signed, &tensors, false), &storage));
    let pickle = views(signed, &tensors, true);
    case.folder.put("in.bin", legacy(&pickle, (count as u64).to_le_bytes(), &storage, true));
    ["in.pt", "in.bin"]
}

// ---- Pickles ----

pub(crate) fn key_12(case: &Case) {
    copies(case, &[("w", 1)]);
    let storage: Vec<u8> = [1_f32, 2.0, 9.0, 9.0].into_iter().flat_map(f32::to_le_bytes).collect();
    case.folder.put("in.pt", archive(&with_namespace(), &storage));
    let run = case.refused(convert(case, "in.pt", &[]), "no_root");
    run.fails(&["in.pt", "--root model"]);
    let run = convert(case, "in.pt", &["--root", "model"]).ok();
    case.check_as_named();
    assert_eq!(case.output().len(), 1);
    for skipped in named(case, "/skipped") {
        assert!(run.stderr.contains(&format!("tensor: {skipped}")), "{skipped}: {}", run.stderr);
    }
    assert_eq!(report(case)["warnings"][0]["tensors"], case.expected["skipped"]);
}

pub(crate) fn key_13(case: &Case) {
    copies(case, &[("w", 1)]);
    let pickle = |count: i64| views(count, &[("w", 0, &[4], &[1])], false);
    let good = archive(&pickle(4), &floats(4));
    case.folder.put("in.pt", &good);
    convert(case, "in.pt", &[]).ok();
    std::fs::remove_file(case.folder.join("out.safetensors")).expect("was there");

    let call = |module: &str, name: &str| {
        let call = Pickle::new().global(module, name).text("touch harm").op(b"\x85R0");
        archive(&call.op(&pickle(4)[2..]).stop(), &floats(4))
    };
    let memo = Pickle::new().op(b"Nr\xff\xff\xff\x7f0").op(&pickle(4)[2..]).stop();
    let twice = zip(&[
        ("archive/data.pkl", &pickle(4)),
        ("archive/data/0", &floats(4)),
        ("archive/data.pkl", &pickle(4)),
    ]);
    let two = zip(&[("a/data.pkl", &pickle(4)), ("b/data.pkl", &pickle(4)), ("a/data/0", &floats(4))]);
    let flags = |both: bool| {
        let mut bytes = good.clone();
        let headers =
            |bytes: &[u8], mark: &[u8]| bytes.windows(4).position(|at| at == mark).expect("a header");
        let (local, central) = (headers(&bytes, b"PK\x03\x04"), headers(&bytes, b"PK\x01\x02"));
        bytes[local + 6] |= 1;
        bytes[central + 8] |= u8::from(both);
        bytes
    };
    let (system, eval) = (named(case, "/must_name")[0], "builtins.eval");
    for (name, bytes, said) in [
        ("system.pt", call("posix", "system"), &["format/unsafe-pickle", system][..]),
        ("eval.pt", call("builtins", "eval"), &["format/unsafe-pickle", eval]),
        ("memo.pt", archive(&memo, &floats(4)), &["format/bad-pickle", "2147483647"]),
        ("bomb.pt", bomb(&pickle(4), 16, 256 << 20), &["a/data/0", "more bytes"]),
        (
            "more.pt",
            bomb(&pickle(4), 1 << 20, 1 << 20),
            &["format/bad-storage", "tensor: w", "1048576 bytes"],
        ),
        ("less.pt", bomb(&pickle(1 << 28), 1 << 30, 1 << 20), &["format/zip", "a/data/0", "1073741824"]),
        ("twice.pt", twice, &["format/zip", "archive/data.pkl"]),
        ("two.pt", two, &["format/zip", "`a/data.pkl`, `b/data.pkl`"]),
        ("encrypted.pt", flags(true), &["format/zip", "a/data.pkl", "encrypted"]),
        ("flags.pt", flags(false), &["format/zip", "a/data.pkl"]),
        ("objects.npz", objects(), &["format/object-array", "tensor: w", "|O"]),
    ] {
        case.folder.put(name, bytes);
        let before = case.folder.names();
        let start = Instant::now();
        let (run, peak) = measured(case, &[&ARGS[..], &[name, "out.safetensors"]].concat());
        run.fails(&[name]).fails(said);
        assert!(peak < 200 << 20, "{name}: {peak} bytes");
        assert!(start.elapsed() < Duration::from_secs(10), "{name}: {:?}", start.elapsed());
        assert_eq!(case.folder.names(), before, "{name}: nothing is written, nothing was called");
    }
}

/// An archive whose storage is compressed zeros: as many as it says, and as many as there are.
fn bomb(pickle: &[u8], said: u32, zeros: u64) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    std::io::copy(&mut std::io::repeat(0).take(zeros), &mut encoder).expect("compresses");
    let mut bytes = zip(&[("a/data.pkl", pickle), ("a/data/0", &encoder.finish().expect("compresses"))]);
    // The last local and the last central header are the storage's; the method and the fields behind it are patched.
    for (mark, method) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
        let at = bytes.windows(4).rposition(|part| part == mark).expect("a header") + method;
        bytes[at] = 8;
        bytes[at + 14..][..4].copy_from_slice(&said.to_le_bytes());
    }
    bytes
}

/// An archive of an array of objects: a pickle.
fn objects() -> Vec<u8> {
    let header = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }";
    let pickle = Pickle::new().global("posix", "system").text("touch harm").op(b"\x85R").stop();
    zip(&[("w.npy", &array_file(header, &pickle))])
}

/// Runs the binary, and looks on at the most memory that it has used, in bytes, where the system tells it.
///
/// The last look may miss what comes right before the end: too little is seen at worst, never too much. A limit of the
/// address space would count what threads reserve and never use.
fn measured(case: &Case, args: &[&str]) -> (Run, u64) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_qkvconv"))
        .current_dir(case.folder.path())
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().expect("a child").is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = kib.map_or(peak, |kib| kib << 10);
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().expect("ended");
    let code = output.status.code();
    (Run::of(output, code), peak)
}

pub(crate) fn st_01(case: &Case) {
    copies(case, &[("conv.weight", 4)]);
    for source in write_views(case, 24, &described(case)) {
        convert(case, source, &[]).ok();
        case.check_as_named();
    }
}

pub(crate) fn st_02(case: &Case) {
    copies(case, &[("a", 2), ("b", 2), ("c", 2)]);
    let mut tensors = described(case);
    // Past the end first: nothing is written then.
    tensors[0].1 = 10;
    for source in write_views(case, 20, &tensors) {
        let run = case.refused(convert(case, source, &[]), "bad_offset");
        run.fails(&["view-out-of-storage", source, "tensor: a"]);
    }
    for source in write_views(case, 20, &described(case)) {
        convert(case, source, &[]).ok();
        case.check_as_named();
    }
}

pub(crate) fn st_03(case: &Case) {
    copies(case, &[("w", 1)]);
    let count = case.input["storage"]["numel"].as_u64().expect("a number") as usize;
    for source in write_views(case, count, &described(case)) {
        convert(case, source, &[]).ok();
        // `kit::read` demands that the data end with the last tensor.
        let written = &case.output()["w"];
        assert_eq!(Some(written.bytes.len() as u64), case.expected["data_section_bytes"].as_u64());
        assert_eq!(written.bytes, floats(1000));
    }
}

pub(crate) fn tie_01(case: &Case) {
    let pair = named(case, "/tied/0");
    let [kept, other] = pair[..] else { panic!("two names") };
    // A conversion needs a tensor that its mapping knows; the pair itself is unknown to it and passes through.
    let mut tensors = described(case);
    tensors.sort_by_key(|tensor| tensor.0 != kept);
    tensors.push(("known".to_owned(), 8, vec![2], vec![1]));
    copies(case, &[("known", 1)]);
    for source in write_views(case, 10, &tensors) {
        convert(case, source, &[]).ok();
        case.check_as_named();
        let (output, metadata) = kit::read_all(&case.folder.join("out.safetensors"));
        assert_eq!(output.keys().collect::<Vec<_>>(), ["known", kept]);
        assert_eq!(metadata.get(other).map(String::as_str), Some(kept), "the metadata say where it is");
        assert_eq!(report(case)["tied"], case.expected["tied"]);
        assert_eq!(report(case)["dropped"][0]["key"], other);

        convert(case, source, &["--tied", "duplicate"]).ok();
        let output = case.output();
        assert_eq!((output.len(), &output[kept]), (3, &output[other]));
        case.check_as_named();
        assert_eq!(report(case)["tied"], case.expected["tied"]);
    }
    // Where the mapping says that they are one, the target has the names that its layout asks for.
    let layouts = json!({
        "both": { "tensors": { kept: "emb: v e", other: { "is": "emb: v e", "optional": true } } },
        "one": { "tensors": { kept: "emb: v e" } },
        "other": { "tensors": { other: "emb: v e" } },
    });
    case.mapping("tied", json!({ "v": "entries", "e": "width" }), json!({ "emb": "v e" }), layouts);
    for source in write_views(case, 8, &described(case)) {
        for (to, keys) in [("one", &[kept][..]), ("other", &[other])] {
            let args =
                ["--mapping", "m.json", "--from", "tied/both", "--to", to, "--force", "--report=report.json"];
            case.folder.run(&[&args[..], &[source, "out.safetensors"]].concat()).ok();
            assert_eq!(case.output().keys().collect::<Vec<_>>(), keys, "{to}");
            case.check(|_| keys[0].to_owned());
            assert_eq!(report(case)["tied"][0].as_array().map(Vec::len), Some(2));
        }
    }
}

pub(crate) fn tie_02(case: &Case) {
    copies(case, &[("a", 2)]);
    for source in write_views(case, 16, &described(case)) {
        let run = convert(case, source, &[]).ok();
        case.check_as_named();
        assert_eq!(case.output().values().map(|tensor| tensor.bytes.len()).sum::<usize>(), 64);
        assert_eq!(report(case)["tied"], case.expected["tied"]);
        assert!(!run.stderr.contains("warning"), "{}", run.stderr);
    }
    // Views that overlap in part are copied apart, and that is said.
    let mut tensors = described(case);
    tensors[1].1 = 6;
    for source in write_views(case, 16, &tensors) {
        let run = convert(case, source, &[]).ok();
        assert_eq!(case.output()["b"], Tensor::index(&[4, 2], 6));
        assert_eq!(report(case)["tied"], json!([]));
        for said in ["format/overlapping-views", "`a` and `b`"] {
            assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
        }
    }
}

// ---- Arrays ----

pub(crate) fn st_06(case: &Case) {
    copies(case, &[("encoder_Wq", 2)]);
    for spaces in ["", " ", "   "] {
        for flag_first in [false, true] {
            let array = npy(&case.input["npy"], spaces, flag_first);
            case.folder.put("in.npz", zip(&[("encoder_Wq.npy", &array)]));
            convert(case, "in.npz", &[]).ok();
            case.check_as_named();
        }
    }
    // The same bytes are another array where the flag is not set.
    let mut about = case.input["npy"].clone();
    about["fortran_order"] = json!(false);
    case.folder.put("in.npz", zip(&[("encoder_Wq.npy", &npy(&about, " ", false))]));
    convert(case, "in.npz", &[]).ok();
    assert_eq!(case.output()["encoder_Wq"].values(), [0., 3., 1., 4., 2., 5.]);
}

pub(crate) fn dt_02(case: &Case) {
    copies(case, &[("arr", 1)]);
    case.folder.put("in.npz", zip(&[("arr.npy", &npy(&case.input["npy"], " ", false))]));
    let run = case.refused(convert(case, "in.npz", &[]), "without_flag");
    run.fails(&["format/opaque-dtype", "in.npz", "tensor: arr", "--void-as bf16"]);
    // A type of another width does not answer.
    convert(case, "in.npz", &["--void-as", "f8-e4m3"]).fails(&["--void-as bf16"]);
    convert(case, "in.npz", &["--void-as", "bf16"]).ok();
    case.check_as_named();
    // 8-bit floats likewise, by the name that the message says.
    let about = json!({ "descr": "|V1", "shape": [3], "data_hex": "387e08" });
    case.folder.put("in.npz", zip(&[("arr.npy", &npy(&about, " ", false))]));
    convert(case, "in.npz", &["--void-as", "bf16"]).fails(&["|V1", "--void-as f8-e4m3"]);
    for (dtype, stored) in [("f8-e4m3", "F8_E4M3"), ("f8-e5m2", "F8_E5M2")] {
        convert(case, "in.npz", &["--void-as", dtype]).ok();
        assert_eq!(case.output()["arr"], Tensor::new(stored, &[3], vec![0x38, 0x7e, 0x08]));
    }
}

pub(crate) fn dt_13(case: &Case) {
    let array = npy(&case.input["npy"], " ", false);
    copies(case, &[("arr", 1)]);
    case.folder.put("in.npz", zip(&[("arr.npy", &array)]));
    case.folder.put("arr.npy", &array);
    let big: Vec<u8> = [1_f32, 2.0].into_iter().flat_map(f32::to_be_bytes).collect();
    let gguf = gguf(true, ("arr", &[2], 0), &big);
    case.folder.put("in.gguf", &gguf);
    let pickle = views(2, &[("arr", 0, &[2], &[1])], false);
    let entries = [("a/data.pkl", &pickle[..]), ("a/byteorder", b"big"), ("a/data/0", &big)];
    case.folder.put("in.pt", zip(&entries));
    for source in ["in.npz", "arr.npy", "in.gguf", "in.pt"] {
        convert(case, source, &[]).ok();
        case.check_as_named();
    }
    // bfloat16 is two bytes and swapped once: 1 and -3.
    let bytes = bytes_of_hex("3f80c040");
    let two = Tensor::new("BF16", &[2], bytes_of_hex("803f40c0"));
    let gguf = self::gguf(true, ("arr", &[2], 30), &bytes);
    case.folder.put("in.gguf", &gguf);
    convert(case, "in.gguf", &[]).ok();
    assert_eq!(case.output()["arr"], two);
    let class = b"FloatStorage";
    let at = pickle.windows(class.len()).position(|part| part == class).expect("a class");
    let pickle = [&pickle[..at], b"BFloat16Storage", &pickle[at + class.len()..]].concat();
    case.folder.put("in.pt", zip(&[("a/data.pkl", &pickle), ("a/byteorder", b"big"), ("a/data/0", &bytes)]));
    convert(case, "in.pt", &[]).ok();
    assert_eq!(case.output()["arr"], two);
    // HDF5's big-endian types, as h5py wrote them.
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats/hdf5");
    copies(case, &[("big/f4", 2)]);
    case.folder.put("in.h5", std::fs::read(data.join("storage.h5")).expect("is there"));
    convert(case, "in.h5", &[]).ok();
    let wanted = kit::read(&data.join("storage.h5.expected.safetensors"));
    for key in ["big/f2", "big/f4", "big/f8", "big/i2", "big/u8"] {
        assert_eq!(case.output()[key], wanted[key], "{key}");
    }
    // A big-endian file of blocks is refused, not read wrong.
    let blocks = self::gguf(true, ("arr", &[32], 8), &[0; 34]);
    copies(case, &[("arr", 1)]);
    case.folder.put("in.gguf", &blocks);
    convert(case, "in.gguf", &[]).fails(&["format/big-endian", "in.gguf", "tensor: arr"]);
}

/// A GGUF file of one tensor: its name, its sizes from the last axis to the first, and the number of its type.
fn gguf(big_endian: bool, (key, sizes, dtype): (&str, &[u64], u32), data: &[u8]) -> Vec<u8> {
    let (mut bytes, word) =
        (b"GGUF".to_vec(), |word: u32| if big_endian { word.to_be_bytes() } else { word.to_le_bytes() });
    let long = |word: u64| if big_endian { word.to_be_bytes() } else { word.to_le_bytes() };
    bytes.extend(word(3));
    bytes.extend([long(1), long(0), long(key.len() as u64)].concat());
    bytes.extend(key.as_bytes());
    bytes.extend(word(sizes.len() as u32));
    sizes.iter().for_each(|size| bytes.extend(long(*size)));
    bytes.extend(word(dtype));
    bytes.extend(long(0));
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes
}

pub(crate) fn tr_06(case: &Case) {
    let key = "blk.0.ffn_down.weight";
    copies(case, &[(key, 2)]);
    let sizes: Vec<u64> = serde_json::from_value(case.input["config"]["ne"].clone()).expect("sizes");
    let source = &case.tensors()[key];
    for big_endian in [false, true] {
        let order = if big_endian { f32::to_be_bytes } else { f32::to_le_bytes };
        let data: Vec<u8> = source.values().into_iter().flat_map(order).collect();
        case.folder.put("in.gguf", gguf(big_endian, (key, &sizes, 0), &data));
        convert(case, "in.gguf", &[]).ok();
        case.check_as_named();
    }
    // And back: the sizes are turned around, the bytes are not.
    let args =
        ["--mapping", "m.json", "--from", "copies/b", "--to", "copies/a", "out.safetensors", "back.gguf"];
    case.folder.run(&args).ok();
    let bytes = std::fs::read(case.folder.join("back.gguf")).expect("was written");
    let sizes: Vec<u8> = [3_u64, 2].into_iter().flat_map(u64::to_le_bytes).collect();
    let header = [key.as_bytes(), &2_u32.to_le_bytes(), &sizes].concat();
    assert!(bytes.windows(header.len()).any(|part| part == header));
    assert!(bytes.windows(source.bytes.len()).any(|part| part == source.bytes));
}

pub(crate) fn dt_03(case: &Case) {
    let leaf = &case.input["leaf"];
    let path = leaf["path"].as_str().expect("a path");
    copies(case, &[(path, 1)]);
    let text = |text: &str| [&[0xa0 | text.len() as u8], text.as_bytes()].concat();
    // Maps of one entry each, and within them an extension of type 1: (shape, name of the type, bytes).
    let data = bytes_of_hex(leaf["data_hex"].as_str().expect("bytes"));
    let dtype = text(leaf["dtype"].as_str().expect("a type"));
    let payload = [&[0x93, 0x91, 2], &dtype[..], &[0xc4, data.len() as u8], &data].concat();
    let mut bytes: Vec<u8> = path.split('/').flat_map(|name| [vec![0x81], text(name)].concat()).collect();
    bytes.extend([0xc7, payload.len() as u8, 1]);
    bytes.extend(payload);
    case.folder.put("in.msgpack", bytes);
    convert(case, "in.msgpack", &[]).ok();
    // The maps are joined by slashes, as Flax's own `flatten_dict` does.
    case.check(|key| key.replace('.', "/"));
}

// ---- Memory ----

/// How much smaller than in the case the tensors are: 256 MiB in all.
const SMALLER: u64 = 32;
/// Half of that. The case's own bound is not made smaller with it: buffers do not grow and shrink with the tensors.
const MEMORY: u64 = 128 << 20;

pub(crate) fn perf_01(case: &Case) {
    let number = |key: &str| case.input[key].as_u64().expect("a number");
    let (count, columns) = (number("tensors_count"), 2048);
    let rows = number("tensor_bytes") / SMALLER / 4 / columns;
    let (half, shape) = (count / 2, [rows, columns]);
    case.mapping(
        "large",
        json!({ "n": "number", "r": "rows", "s": "columns" }),
        json!({ "kept": "n r s", "turned": "n r s" }),
        json!({
            "a": { "tensors": { "kept.{n}": "kept: r s", "turned.{n}": "turned: r s" } },
            "b": { "tensors": { "layers.{n}.kept": "kept: r s", "layers.{n}.turned": "turned: s r" } },
        }),
    );
    // In the last row, one element says which tensor it is; all others are holes in the file, and read as zeros.
    let marked = (rows - 1) * columns + 5;
    let mut places = json!({});
    for (shard, key) in [("s1", "kept"), ("s2", "turned")] {
        let mut header = json!({});
        for at in 0..half {
            let name = format!("{key}.{at}");
            let (begin, bytes) = (at * rows * columns * 4, rows * columns * 4);
            header[&name] = json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, begin + bytes] });
            places[name] = json!(shard);
        }
        kit::write_raw(&case.folder.join(shard), &header.to_string(), &[]);
        let mut file =
            std::fs::OpenOptions::new().write(true).open(case.folder.join(shard)).expect("is there");
        let data = file.metadata().expect("has a size").len();
        file.set_len(data + half * rows * columns * 4).expect("grows");
        for at in 0..half {
            file.seek(SeekFrom::Start(data + (at * rows * columns + marked) * 4)).expect("seeks");
            file.write_all(&mark(key, at)).expect("writes");
        }
    }
    let index = json!({ "metadata": { "total_size": count * rows * columns * 4 }, "weight_map": places });
    case.folder.put("model.safetensors.index.json", index.to_string());
    let args = ["--mapping", "m.json", "--from", "large/a", "--to", "b", "--threads", "2"];
    let files = ["model.safetensors.index.json", "out.safetensors"];
    let (run, peak) = measured(case, &[&args[..], &files].concat());
    run.ok();
    assert!(peak < MEMORY, "{peak} bytes");
    assert!(peak > 0 || !cfg!(target_os = "linux"), "nothing was measured");

    let mut file = std::fs::File::open(case.folder.join("out.safetensors")).expect("was written");
    let mut length = [0; 8];
    file.read_exact(&mut length).expect("reads");
    let mut header = vec![0; u64::from_le_bytes(length) as usize];
    file.read_exact(&mut header).expect("reads");
    let data = 8 + header.len() as u64;
    let header: Value = serde_json::from_slice(&header).expect("JSON");
    for at in 0..half {
        for (key, shape, element) in
            [("kept", shape, marked), ("turned", [columns, rows], 5 * rows + rows - 1)]
        {
            let entry = &header[format!("layers.{at}.{key}")];
            assert_eq!(entry["shape"], json!(shape));
            let begin = entry["data_offsets"][0].as_u64().expect("a number");
            file.seek(SeekFrom::Start(data + begin + (element - 1) * 4)).expect("seeks");
            let mut found = [0; 12];
            file.read_exact(&mut found).expect("reads");
            assert_eq!(found[..], [&[0; 4][..], &mark(key, at), &[0; 4]].concat()[..], "{key} {at}");
        }
    }
}

fn mark(key: &str, at: u64) -> [u8; 4] {
    (at as f32 + if key == "kept" { 1.0 } else { 101.0 }).to_le_bytes()
}
