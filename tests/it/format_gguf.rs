//! GGUF, on files that gguf-py wrote (`tests/data/formats/gguf/make.py`).

use std::path::PathBuf;

use qkvconv::diag::Errors;
use qkvconv::format::{OpenOptions, Reader, open};

use crate::kit::{Folder, Tensor, assert_holds, names, read};

fn data(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data/formats/gguf", name].iter().collect()
}

fn opened(name: &str) -> Box<dyn Reader> {
    open(&data(name), &OpenOptions::default()).expect("opens")
}

/// A tensor's type, shape and bytes.
fn stored(reader: &dyn Reader, key: &str) -> (&'static str, Vec<u64>, Vec<u8>) {
    let at = reader.catalog().find(key).unwrap_or_else(|| panic!("no {key}"));
    let tensor = &reader.catalog().tensors[at];
    let mut bytes = vec![0; tensor.bytes() as usize];
    reader.read_exact_at(tensor.file, tensor.offset, &mut bytes).expect("reads");
    (tensor.dtype.name(), tensor.shape.clone(), bytes)
}

#[test]
fn plain_types_are_read_from_both_versions_and_both_byte_orders() {
    for name in ["plain", "version2", "big-endian"] {
        let expected = data(&format!("{name}.expected.safetensors"));
        assert_holds(&data(&format!("{name}.gguf")), &OpenOptions::default(), &expected);
    }
}

#[test]
fn scalars_of_the_metadata_are_kept_as_text() {
    for name in ["plain.gguf", "version2.gguf", "big-endian.gguf"] {
        let reader = opened(name);
        let metadata = &reader.catalog().metadata;
        for (key, text) in [
            ("general.architecture", "llama"),
            ("general.alignment", "64"),
            ("llama.block_count", "2"),
            ("test.u8", "200"),
            ("test.i8", "-100"),
            ("test.u16", "60000"),
            ("test.i16", "-30000"),
            ("test.i32", "-2000000000"),
            ("test.f32", "0.15625"),
            ("test.bool", "true"),
            ("test.u64", "9223372036854775809"),
            ("test.i64", "-4611686018427387904"),
            ("qkvconv", "any text: \"ä\n\""),
        ] {
            assert_eq!(metadata.get(key).map(String::as_str), Some(text), "{key} of {name}");
        }
        let double = metadata["test.f64"].parse::<f64>();
        assert_eq!(double, Ok(-2.5e-300));
        assert!(!metadata.contains_key("tokenizer.ggml.tokens") && !metadata.contains_key("test.nested"));
    }
}

#[test]
fn quantised_blocks_are_read_as_they_lie() {
    let reader = opened("quantised.gguf");
    let expected = read(&data("quantised.expected.safetensors"));
    assert_eq!(reader.catalog().tensors.len(), expected.len());
    for (key, dtype, shape) in [
        ("blk.0.attn_q.weight", "Q8_0", &[6, 64][..]),
        ("blk.0.attn_output.weight", "Q4_0", &[3, 96]),
        ("blk.0.ffn_up.weight", "Q4_K", &[5, 512]),
        ("blk.0.ffn_down.weight", "IQ1_M", &[3, 256]),
        ("blk.0.ffn_gate.weight", "MXFP4", &[3, 96]),
        ("blk.0.ffn_norm.weight", "Q1_0", &[1, 128]),
        ("blk.0.attn_norm.weight", "F32", &[64]),
    ] {
        assert_eq!(stored(&*reader, key), (dtype, shape.to_vec(), expected[key].bytes.clone()), "{key}");
    }
}

/// Layouts that rename, that fuse rows, and that cut rows.
const MAPPING: &str = r#"{ "format": 1, "family": "t", "about": "a test's", "unmapped": "keep",
    "axes": { "h": "heads", "g": "key and value heads", "d": "size", "e": "model" },
    "params": { "q": "h d e", "k": "g d e", "v": "g d e", "o": "r s" },
    "layouts": {
        "llama-cpp": { "about": "three", "source": "a test", "tensors": {
            "blk.{n}.attn_q.weight": "q: (h d) e", "blk.{n}.attn_k.weight": "k: (g d) e",
            "blk.{n}.attn_v.weight": "v: (g d) e", "blk.{n}.attn_output.weight": "o: r s" } },
        "renamed": { "about": "other names", "source": "a test", "tensors": {
            "l.{n}.wq": "q: (h d) e", "l.{n}.wk": "k: (g d) e", "l.{n}.wv": "v: (g d) e", "l.{n}.wo": "o: r s" } },
        "fused": { "about": "one", "source": "a test", "tensors": {
            "blk.{n}.attn_qkv.weight": "(q: h d + k: g d + v: g d) e", "blk.{n}.attn_output.weight": "o: r s" } },
        "transposed": { "about": "columns", "source": "a test", "tensors": {
            "l.{n}.wq": "q: e h d", "l.{n}.wk": "k: (g d) e", "l.{n}.wv": "v: (g d) e", "l.{n}.wo": "o: r s" } } } }"#;

fn mapping() -> String {
    MAPPING.replace(
        "\"e\": \"model\"",
        "\"e\": \"model\", \"r\": \"rows\", \"s\": \"columns\", \"n\": \"layer\"",
    )
}

fn convert<'a>(to: &'a str, source: &'a str, target: &'a str) -> Vec<&'a str> {
    let layouts = ["--mapping", "t.json", "--from", "t/llama-cpp", "--to", to];
    [&layouts[..], &["--axis", "d=2", source, target]].concat()
}

fn quantised() -> Folder {
    let folder = Folder::new();
    folder.put("t.json", mapping());
    folder.put("in.gguf", std::fs::read(data("quantised.gguf")).expect("is there"));
    folder
}

#[test]
fn quantised_tensors_are_renamed_fused_and_come_back_unchanged() {
    let folder = quantised();
    folder.run(&convert("t/renamed", "in.gguf", "renamed.gguf")).ok();
    let expected = read(&data("quantised.expected.safetensors"));
    let reader = open(&folder.join("renamed.gguf"), &OpenOptions::default()).expect("opens");
    for (key, from) in [("l.0.wq", "attn_q"), ("l.0.wk", "attn_k"), ("l.0.wo", "attn_output")] {
        assert_eq!(stored(&*reader, key).2, expected[&format!("blk.0.{from}.weight")].bytes, "{key}");
    }
    assert_eq!(stored(&*reader, "blk.0.ffn_up.weight").2, expected["blk.0.ffn_up.weight"].bytes);
    let metadata = &reader.catalog().metadata;
    assert_eq!(
        (metadata["general.architecture"].as_str(), metadata["general.description"].as_str()),
        ("test", "rows of blocks")
    );
    assert!(metadata["qkvconv"].contains("t/renamed"));

    folder.run(&convert("t/fused", "in.gguf", "fused.gguf")).ok();
    let reader = open(&folder.join("fused.gguf"), &OpenOptions::default()).expect("opens");
    let rows =
        ["attn_q", "attn_k", "attn_v"].map(|name| expected[&format!("blk.0.{name}.weight")].bytes.clone());
    assert_eq!(stored(&*reader, "blk.0.attn_qkv.weight"), ("Q8_0", vec![10, 64], rows.concat()));

    let args =
        ["--mapping", "t.json", "--from", "t/fused", "--to", "t/llama-cpp", "--axis", "d=2", "--axis", "g=1"];
    folder.run(&[&args[..], &["fused.gguf", "back.gguf"]].concat()).ok();
    let diff = folder.run(&["diff", "in.gguf", "back.gguf"]).ok();
    assert!(diff.stdout.contains("bit-equal") || diff.stdout.contains("equal"), "{}", diff.stdout);
}

#[test]
fn a_cut_through_blocks_is_refused() {
    let folder = quantised();
    folder.run(&convert("t/transposed", "in.gguf", "out.gguf")).fails(&[
        "plan/cut-block",
        "Q8_0",
        "32 elements",
        "l.0.wq",
    ]);
    assert_eq!(folder.names(), ["in.gguf", "t.json"]);
}

#[test]
fn other_formats_refuse_quantised_types() {
    let folder = quantised();
    let run = folder.run(&convert("t/renamed", "in.gguf", "out.safetensors"));
    run.fails(&["format/cannot-hold", "Q8_0", "--format gguf"]);
    folder.run(&convert("t/renamed", "in.gguf", "out.msgpack")).fails(&["format/cannot-hold", "Q8_0"]);
}

#[test]
fn a_cast_leaves_quantised_types_alone() {
    let folder = quantised();
    let mut args = convert("t/renamed", "in.gguf", "out.gguf");
    args.extend(["--dtype", "f16"]);
    folder.run(&args).ok();
    let reader = open(&folder.join("out.gguf"), &OpenOptions::default()).expect("opens");
    assert_eq!(stored(&*reader, "l.0.wq").0, "Q8_0");
    assert_eq!(stored(&*reader, "blk.0.attn_norm.weight").0, "F16");
}

#[test]
fn a_changed_block_is_found_by_verify_and_diff() {
    let folder = quantised();
    for (to, target, key) in
        [("t/fused", "fused.gguf", "blk.0.attn_qkv.weight"), ("t/renamed", "renamed.gguf", "l.0.wo")]
    {
        folder.run(&convert(to, "in.gguf", target)).ok();
        let mut verify = vec!["verify"];
        verify.extend(convert(to, "in.gguf", target));
        folder.run(&verify).ok();
        let reader = open(&folder.join(target), &OpenOptions::default()).expect("opens");
        let tensor = reader.catalog().find(key).expect("is there");
        let (offset, length) =
            (reader.catalog().tensors[tensor].offset, reader.catalog().tensors[tensor].bytes());
        drop(reader);
        let good = std::fs::read(folder.join(target)).expect("is there");
        // Every byte counts: scales as well as values.
        for at in [0, 1, 2, length / 2, length - 1] {
            let mut bytes = good.clone();
            bytes[(offset + at) as usize] ^= 1;
            folder.put(target, &bytes);
            let run = folder.run(&verify);
            assert_eq!((run.code, run.stderr.contains(key)), (3, true), "byte {at}: {}", run.stderr);
        }
        folder.put("good.gguf", &good);
        let run = folder.run(&["diff", "good.gguf", target]);
        assert!(run.code != 0 && run.stdout.contains("32"), "{} {}", run.stdout, run.stderr);
    }
}

fn errors(path: &str, folder: &Folder) -> Errors {
    open(&folder.join(path), &OpenOptions::default()).err().expect("does not open")
}

#[test]
fn a_quantised_big_endian_file_is_refused() {
    let folder = Folder::new();
    let mut bytes = b"GGUF\0\0\0\x03".to_vec();
    bytes.extend(1_u64.to_be_bytes());
    bytes.extend(0_u64.to_be_bytes());
    bytes.extend(1_u64.to_be_bytes());
    bytes.push(b'w');
    bytes.extend(1_u32.to_be_bytes());
    bytes.extend(32_u64.to_be_bytes());
    bytes.extend(8_u32.to_be_bytes());
    bytes.extend(0_u64.to_be_bytes());
    bytes.resize(64 + 34, 0);
    folder.put("big.gguf", &bytes);
    let found = errors("big.gguf", &folder);
    assert_eq!(found.diagnostics()[0].code, "format/big-endian");
}

#[test]
fn a_template_gives_the_metadata() {
    let folder = Folder::new();
    folder.put("t.json", mapping());
    let tensors = [
        ("blk.0.attn_q.weight", Tensor::index(&[6, 5], 0)),
        ("blk.0.attn_k.weight", Tensor::index(&[2, 5], 0)),
        ("blk.0.attn_v.weight", Tensor::index(&[2, 5], 0)),
        ("blk.0.attn_output.weight", Tensor::index(&[3, 7], 0)),
    ];
    folder.tensors("in.safetensors", &tensors.map(|(key, tensor)| (key.to_owned(), tensor)).into());
    folder.put("template.gguf", std::fs::read(data("plain.gguf")).expect("is there"));
    let mut args = convert("t/renamed", "in.safetensors", "out.gguf");
    args.extend(["--template", "template.gguf"]);
    folder.run(&args).ok();
    let (out, template) = (folder.join("out.gguf"), opened("plain.gguf"));
    let reader = open(&out, &OpenOptions::default()).expect("opens");
    for (key, value) in template.catalog().metadata.iter().filter(|(key, _)| *key != "qkvconv") {
        assert_eq!(reader.catalog().metadata.get(key), Some(value), "{key}");
    }
    assert!(reader.catalog().metadata["qkvconv"].contains("t/renamed"));
    assert!(reader.catalog().tensors.iter().all(|tensor| tensor.offset.is_multiple_of(64)));
    assert_eq!(stored(&*reader, "l.0.wo").2, Tensor::index(&[3, 7], 0).bytes);
    // The arrays go along as they are.
    let bytes = std::fs::read(&out).expect("is there");
    let part = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(part(&bytes, b"tokenizer.ggml.tokens\x09\0\0\0\x08\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0a"));

    args.truncate(args.len() - 1);
    args.push("in.safetensors");
    folder.run(&[&args[..], &["--force"]].concat()).fails(&["GGUF"]);
}

#[test]
fn candle_reads_what_is_written() {
    let folder = quantised();
    let mut args = convert("t/fused", "in.gguf", "out.gguf");
    // candle knows none of these.
    args.extend(["--drop", "*.ffn_down.*", "--drop", "*.ffn_gate.*", "--drop", "*.ffn_norm.*"]);
    folder.run(&args).ok();
    let mut file = std::fs::File::open(folder.join("out.gguf")).expect("is there");
    let content = candle_core::quantized::gguf_file::Content::read(&mut file).expect("candle reads it");
    let reader = open(&folder.join("out.gguf"), &OpenOptions::default()).expect("opens");
    assert_eq!((content.tensor_infos.len(), content.metadata.len()), (4, 3));
    for key in
        ["blk.0.attn_qkv.weight", "blk.0.attn_output.weight", "blk.0.ffn_up.weight", "blk.0.attn_norm.weight"]
    {
        let tensor = content.tensor(&mut file, key, &candle_core::Device::Cpu).expect("candle reads it");
        let (dtype, shape, bytes) = stored(&*reader, key);
        assert_eq!(tensor.shape().dims().iter().map(|&size| size as u64).collect::<Vec<_>>(), shape, "{key}");
        assert_eq!(
            format!("{:?}", tensor.dtype()).replace("4K", "4_K").replace("80", "8_0").replace("40", "4_0"),
            dtype
        );
        assert_eq!(tensor.data().expect("has bytes")[..], bytes[..], "{key}");
    }
}

#[test]
fn plans_and_reports_count_elements_of_blocks() {
    let folder = quantised();
    let mut args = convert("t/renamed", "in.gguf", "out.gguf");
    args.extend(["--drop", "*.ffn_up.*", "--report", "r.json", "--dry-run"]);
    let run = folder.run(&args).ok();
    let line = run.stdout.lines().find(|line| line.contains("l.0.wq")).expect("is there");
    assert!(line.contains("unchanged"), "{line}");
    let report = std::fs::read_to_string(folder.join("r.json")).expect("is there");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["unused"][0]["elements"], 5 * 512, "{report:#}");
}

#[test]
fn a_model_in_several_files_is_written_and_read() {
    let folder = quantised();
    folder.run(&convert("t/renamed", "in.gguf", "one.gguf")).ok();
    let mut args = convert("t/renamed", "in.gguf", "out");
    args.extend(["--format", "gguf", "--max-shard-size", "400B"]);
    folder.run(&args).ok();
    let parts = names(&folder.join("out"));
    let count = parts.len();
    assert!(count > 2, "{parts:?}");
    assert_eq!(parts[1], format!("model-00002-of-{count:05}.gguf"));
    let part = format!("out/{}", parts[1]);
    for source in ["out", &part] {
        let diff = folder.run(&["diff", "--json", "one.gguf", source]).ok();
        assert!(diff.stdout.contains("\"bit_equal\"") || diff.stdout.contains("equal"), "{}", diff.stdout);
    }
    let mut verify = vec!["verify"];
    verify.extend(convert("t/renamed", "in.gguf", "out"));
    folder.run(&verify).ok();
    // Fewer parts under other names: the old ones go.
    let smaller = args.iter().map(|arg| if *arg == "400B" { "2KB" } else { arg });
    let smaller: Vec<&str> = smaller.chain(["--force"]).collect();
    folder.run(&args).fails(&["publish/exists"]);
    folder.run(&smaller).ok();
    let fewer = names(&folder.join("out"));
    assert!(
        fewer.len() < count
            && fewer.iter().all(|name| name.ends_with(&format!("-of-{:05}.gguf", fewer.len()))),
        "{fewer:?}"
    );
    folder.run(&["diff", "one.gguf", "out"]).ok();
    // Without one of them nothing is read.
    std::fs::remove_file(folder.join("out").join(&fewer[0])).expect("removes");
    let rest = format!("out/{}", fewer[1]);
    for source in ["out", &rest] {
        for args in [
            vec!["inspect", source],
            vec!["diff", "one.gguf", source],
            vec!["mapping", "new", "--from", source],
            convert("t/renamed", source, "again.gguf"),
            [vec!["verify"], convert("t/renamed", "in.gguf", source)].concat(),
        ] {
            folder.run(&args).fails(&["format/missing-shard", &fewer[0]]);
        }
    }
    for args in [vec!["inspect", &rest], vec!["mapping", "new", "--from", &rest]] {
        folder.run(&[args, vec!["--allow", "incomplete"]].concat()).ok();
    }
}
