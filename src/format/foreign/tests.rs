//! A sample of each kind.

use std::path::Path;

use super::super::testing::*;
use super::*;

/// A protocol buffer message of these fields: a number, and bytes or an integer.
fn message(fields: &[(u64, Option<&[u8]>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let put = |mut value: u64, bytes: &mut Vec<u8>| {
        while value >= 128 {
            bytes.push((value & 127) as u8 | 128);
            value >>= 7;
        }
        bytes.push(value as u8);
    };
    for (number, content) in fields {
        put(number << 3 | if content.is_some() { 2 } else { 0 }, &mut bytes);
        match content {
            Some(content) => {
                put(content.len() as u64, &mut bytes);
                bytes.extend(*content);
            }
            None => bytes.push(7),
        }
    }
    bytes
}

/// A tar archive with these entries, each of 3 bytes.
fn tar(names: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(b"00000000003");
        header[148..156].fill(b' ');
        header[156] = b'0';
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        bytes.extend(header);
        bytes.extend(b"abc");
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// A zip archive with these empty entries.
fn zip(names: &[&str]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for name in names {
        let begin = bytes.len() as u32;
        let lengths = [(name.len() as u16).to_le_bytes(), [0; 2]].concat();
        bytes.extend([&b"PK\x03\x04\x14\0"[..], &[0; 20], &lengths, name.as_bytes()].concat());
        let places = [&[0; 10][..], &begin.to_le_bytes()].concat();
        directory
            .extend([&b"PK\x01\x02\x14\0\x14\0"[..], &[0; 20], &lengths, &places, name.as_bytes()].concat());
    }
    let count = (names.len() as u16).to_le_bytes();
    let place = [(directory.len() as u32).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
    bytes.extend(directory);
    bytes.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &place, &[0; 2]].concat());
    bytes
}

fn framed(start: &[u8]) -> Vec<u8> {
    [start, &[1; 40]].concat()
}

fn said(path: &Path) -> String {
    let result = open_plain(path);
    let errors = result.err().expect("is not read");
    let [diagnostic] = errors.diagnostics() else { panic!("{:?}", errors.diagnostics()) };
    assert!(diagnostic.help.is_some(), "{diagnostic:?}");
    diagnostic.message.clone()
}

/// Name, content, and a part of what is said.
fn files() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let node = message(&[(1, Some(b"w")), (2, Some(b"Const"))]);
    let ctranslate2 =
        [&6_u32.to_le_bytes()[..], &16_u16.to_le_bytes(), b"TransformerSpec\0", &[3; 60]].concat();
    vec![
        ("model.safetensors", Vec::new(), "empty file"),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n".to_vec(),
            "12 bytes",
        ),
        ("model.bin", b"\n <!DOCTYPE html><html>".to_vec(), "HTML page"),
        ("model.bin", b"Entry not found".to_vec(), "error message of a server"),
        ("__0_0.distcp", zip(&["archive/data.pkl"]), "parts of tensors"),
        ("bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt", zip(&["archive/data.pkl"]), "DeepSpeed ZeRO"),
        ("metadata.json", br#"{"sharded_backend": "torch_dist"}"#.to_vec(), "Megatron-Core"),
        ("_METADATA", br#"{"tree_metadata": {}}"#.to_vec(), "Orbax"),
        ("manifest.ocdbt", framed(b"\x0c\xdb\x3a\x2a"), "Orbax"),
        (".zarray", br#"{"zarr_format": 2}"#.to_vec(), "zarr"),
        ("a.nemo", tar(&["./model_config.yaml", "./model_weights.ckpt"]), "NeMo"),
        ("a.tar", tar(&["sys_info", "pickle", "storages", "tensors"]), "before version 0.1.10"),
        ("a.tar", tar(&["model/weights.bin"]), "a tar archive"),
        (
            "a.pt2",
            zip(&["a/archive_format", "a/models/model.json", "a/data/weights/weight_0"]),
            "torch.export",
        ),
        ("a.pt2", zip(&["serialized_exported_program.json", "version"]), "torch.export"),
        ("a.pt.gz", framed(b"\x1f\x8b\x08"), "gzip"),
        ("a.pt.bz2", framed(b"BZh91AY&SY"), "bzip2"),
        ("a.pt.xz", framed(b"\xfd7zXZ\0"), "xz file"),
        ("a.zst", framed(b"\x28\xb5\x2f\xfd"), "Zstandard"),
        ("a.lz4", framed(b"\x04\x22\x4d\x18"), "LZ4"),
        ("a.7z", framed(b"7z\xbc\xaf\x27\x1c"), "7-Zip"),
        ("a.rar", framed(b"Rar!\x1a\x07\0"), "RAR"),
        ("ggml-tiny.bin", framed(b"lmgg"), "before GGUF"),
        ("ggml-model.bin", framed(b"tjgg\x03\0\0\0"), "before GGUF"),
        ("ggml-adapter-model.bin", framed(b"algg"), "LoRA"),
        ("model.bin", framed(b"24ka"), "llama2.c"),
        ("a.tflite", framed(b"\x1c\0\0\0TFL3"), "TensorFlow Lite"),
        ("a.pte", framed(b"\x1c\0\0\0ET12"), "ExecuTorch"),
        ("rank0.engine", framed(b"ftrt"), "TensorRT"),
        ("rank0.engine", framed(b"\x01"), "TensorRT"),
        ("a.params", framed(b"\x12\x01\0\0\0\0\0\0"), "MXNet"),
        ("model.bin", ctranslate2, "CTranslate2"),
        ("net.xml", b"<?xml version=\"1.0\"?>\n<net name=\"a\" version=\"11\">".to_vec(), "OpenVINO"),
        (
            "a.onnx",
            message(&[(1, None), (2, Some(b"pytorch")), (7, Some(b"g")), (8, Some(&[16, 17]))]),
            "ONNX",
        ),
        ("a.mlmodel", message(&[(1, None), (2, Some(b"d")), (502, Some(b"x"))]), "Core ML"),
        ("saved_model.pb", message(&[(1, None), (2, Some(&node))]), "SavedModel"),
        ("a.ckpt.meta", message(&[(1, Some(b"i")), (2, Some(&node)), (3, Some(b"s"))]), "`.meta`"),
        ("frozen.pb", message(&[(1, Some(&node)), (1, Some(&node)), (4, Some(&[8, 1]))]), "TensorFlow graph"),
        ("checkpoint", b"model_checkpoint_path: \"a\"\n".to_vec(), "list of a folder"),
        ("a.data-00000-of-00001", vec![0; 64], "data file of a TensorFlow checkpoint"),
        ("model.json", br#"{"modelTopology": {}, "weightsManifest": []}"#.to_vec(), "TensorFlow.js"),
        ("config.json", br#"{"model_type": "llama"}"#.to_vec(), "configuration"),
        ("a.parquet", framed(b"PAR1"), "Parquet"),
        ("a.pdf", framed(b"%PDF-1.7"), "document"),
        ("a.llamafile", framed(b"\x7fELF"), "program"),
        ("a.bin", b"abcdefghijkl".to_vec(), "none of the formats"),
        ("a.bin", vec![0; 4096], "none of the formats"),
    ]
}

/// The names in a folder, and a part of what is said; folders end in `/`.
const FOLDERS: &[(&[&str], &str)] = &[
    (&["__0_0.distcp"], "`.metadata`, which is written last"),
    (&[".metadata", "__0_0.distcp", "common.pt", "metadata.json"], "torch_dist"),
    (
        &["shard-00001-model-00001-of-00001.safetensors", "shard-00002-model-00001-of-00001.safetensors"],
        "slice",
    ),
    (&["zero_pp_rank_0_mp_rank_00_model_states.pt"], "DeepSpeed"),
    (&["latest", "global_step5/mp_rank_00_model_states.pt"], "DeepSpeed"),
    (&["latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"], "Megatron"),
    (&["mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"], "Megatron"),
    (&["_METADATA", "manifest.ocdbt", "d/0"], "Orbax"),
    (&[".zgroup", "w/.zarray", "w/0.0"], "zarr"),
    (&["Manifest.json", "Data/com.apple.CoreML/model.mlmodel"], "Core ML"),
    (&["saved_model.pb", "assets/a"], "SavedModel"),
    (&["openvino_model.xml", "openvino_model.bin"], "OpenVINO"),
    (&["model.json", "group1-shard1of1.bin"], "TensorFlow.js"),
    (&["default/_METADATA", "default/d/0"], "no file with weights"),
];

#[test]
fn every_kind_of_file_is_told_and_helped() {
    let samples = files();
    for (name, bytes, wanted) in &samples {
        let folder = tempfile::tempdir().expect("folder");
        let message = said(&put(folder.path(), name, bytes));
        assert!(message.contains(wanted), "{name}: {message}");
        assert!(!message.contains("header would be"), "{name}: {message}");
    }
}

#[test]
fn every_kind_of_folder_is_told_and_helped() {
    for (names, wanted) in FOLDERS {
        let folder = tempfile::tempdir().expect("folder");
        for name in *names {
            put(folder.path(), name, b"\x01\x02");
        }
        let message = said(folder.path());
        assert!(message.contains(wanted), "{names:?}: {message}");
    }
}

#[test]
fn every_kind_has_a_sample() {
    let samples = files();
    let told: Vec<&str> =
        samples.iter().map(|(_, _, said)| *said).chain(FOLDERS.iter().map(|(_, said)| *said)).collect();
    for kind in table::KINDS {
        assert!(
            told.iter()
                .any(|said| kind.error(Path::new("")).message.contains(said)
                    || kind.code == FormatCode::GitLfs),
            "{}",
            kind.is
        );
    }
}

#[test]
fn a_folder_names_what_lies_below() {
    let folder = tempfile::tempdir().expect("folder");
    put(folder.path(), "latest_checkpointed_iteration.txt", b"100");
    put(folder.path(), "iter_0000100/mp_rank_01/model_optim_rng.pt", b"");
    put(folder.path(), "iter_0000100/mp_rank_00/model_optim_rng.pt", b"");
    let text = text(&open_plain(folder.path()));
    assert!(text.contains("a folder of Megatron's checkpoints") && text.contains("`iter_0000100`"), "{text}");
    let ranks = super::super::testing::text(&open_plain(&folder.path().join("iter_0000100")));
    assert!(
        ranks.contains("format/rank-folders")
            && ranks.contains("`mp_rank_00/model_optim_rng.pt`, `mp_rank_01/"),
        "{ranks}"
    );
    put(folder.path(), "d/common.pt", b"\x80\x02}.");
    put(folder.path(), "d/metadata.json", b"{}");
    let common = super::super::testing::text(&open_plain(&folder.path().join("d/common.pt")));
    assert!(common.contains("torch_dist") && common.contains("format/not-read"), "{common}");
    let outer = tempfile::tempdir().expect("folder");
    put(outer.path(), "step_5/model/.metadata", b"");
    put(outer.path(), "step_5/model/__0_0.distcp", b"");
    put(outer.path(), "hf/model.safetensors", b"");
    let text = super::super::testing::text(&open_plain(outer.path()));
    assert!(text.contains("`hf/model.safetensors`, `step_5/model`"), "{text}");
}

#[test]
fn weights_beside_other_formats_are_read() {
    let folder = tempfile::tempdir().expect("folder");
    put(folder.path(), "latest", b"global_step5");
    put(folder.path(), "global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", b"");
    let header = r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    put(folder.path(), "model.safetensors", &file_bytes(header, 1));
    assert!(open_plain(folder.path()).is_ok());
}

#[test]
fn patterns() {
    for (pattern, name, is) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("*.distcp", "__0_0.distcp", true),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-c", false),
        ("ab*ba", "aba", false),
        ("*", "", true),
    ] {
        assert_eq!(fits(pattern, name), is, "{pattern} {name}");
    }
}
