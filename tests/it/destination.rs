//! What a destination is by its name: a file of a format, a folder, or a mistake.

use crate::kit::Folder;

const PAIR: &[&str] = &["--from", "attention/pytorch-fused", "--to", "attention/separate", "--axis", "h=4"];

fn convert(folder: &Folder, more: &[&str]) -> crate::kit::Run {
    let source = crate::kit::root().join("tests/data/digits/model.safetensors").display().to_string();
    folder.run(&[PAIR, &[&source], more].concat())
}

#[test]
fn a_name_that_ends_as_files_of_no_written_format_is_refused() {
    let folder = Folder::new();
    for name in ["out.onnx", "out.pb", "out.mlmodel", "out.nemo", "out.zip", "out.npy", "out.v2"] {
        convert(&folder, &[name]).wrong_usage(&[
            "usage/destination",
            name,
            ".safetensors",
            "put `/` behind it",
        ]);
        assert!(!folder.join(name).exists(), "{name}");
    }
}

#[test]
fn versions_in_a_name_and_what_is_plainly_a_folder_are_folders() {
    let folder = Folder::new();
    std::fs::create_dir(folder.join("there.onnx")).expect("a folder");
    let names: &[&[&str]] = &[
        &["Llama-3.1-8B"],
        &["plain"],
        &["out.v2/"],
        &["there.onnx"],
        &["other.v2", "--format", "safetensors"],
    ];
    for name in names {
        convert(&folder, name).ok();
        assert!(folder.join(name[0]).join("model.safetensors").is_file(), "{name:?}");
    }
}

#[test]
fn a_name_and_a_format_that_contradict_each_other_are_refused() {
    let folder = Folder::new();
    convert(&folder, &["out.safetensors", "--format", "npz"]).wrong_usage(&[
        "usage/destination",
        "named as safetensors files are",
        "--format npz",
    ]);
    assert!(!folder.join("out.safetensors").exists());
    convert(&folder, &["out.npz", "--format", "npz"]).ok();
}

/// A folder holds what the target's framework looks for there.
#[test]
fn a_folder_gets_the_file_of_the_targets_framework() {
    let oracle = |name: &str| crate::kit::root().join("tests/oracles").join(name).display().to_string();
    let (bert, llama) = (oracle("07_hf_bert_to_tfbert_h5/src"), oracle("18_hf_llama_to_meta_llama/src"));
    let folder = Folder::new();
    for (source, from, to, file, format) in [
        (&bert, "bert/hf", "bert/hf-tf", "tf_model.h5", "hdf5"),
        (&bert, "bert/hf", "bert/hf-flax", "flax_model.msgpack", "msgpack"),
        (&bert, "bert/hf", "bert/google-tf1", "model.ckpt.index", "tensorflow"),
        (&bert, "bert/hf", "bert/keras-hub", "model.weights.h5", "hdf5"),
        (&llama, "llama/hf", "llama/meta", "consolidated.00.pth", "pytorch"),
        (&llama, "llama/hf", "llama/gguf", "model.gguf", "gguf"),
        (&llama, "llama/hf", "llama/transformer-lens", "model.safetensors", "safetensors"),
    ] {
        let out = to.replace('/', "-");
        folder.run(&["--from", from, "--to", to, source, &out]).ok();
        assert!(folder.join(&out).join(file).is_file(), "{to}: {:?}", crate::kit::names(&folder.join(&out)));
        let seen = folder.run(&["inspect", "--json", &out]).ok().stdout;
        let seen: serde_json::Value = serde_json::from_str(&seen).expect("JSON");
        assert_eq!(seen["format"], format, "{to}");
        // A format that is asked for counts more.
        let plain = format!("{out}-plain");
        folder.run(&["--from", from, "--to", to, "--format", "safetensors", source, &plain]).ok();
        assert!(folder.join(&plain).join("model.safetensors").is_file(), "{to}");
    }
    // Shards and the index are called after it.
    let pair = ["--from", "llama/hf", "--to", "llama/meta", "--max-shard-size", "30kB"];
    folder.run(&[&pair[..], &[&llama, "shards"]].concat()).ok();
    assert!(folder.join("shards/consolidated.00.pth.index.json").is_file());
    folder.run(&["verify", "--from", "llama/hf", "--to", "llama/meta", &llama, "shards"]).ok();
    // A smaller one in its place leaves nothing of them behind.
    folder.run(&["--force", "--from", "llama/hf", "--to", "llama/meta", &llama, "shards"]).ok();
    let left = crate::kit::names(&folder.join("shards"));
    assert!(
        left.contains(&"consolidated.00.pth".to_owned()) && !left.iter().any(|name| name.contains("-of-")),
        "{left:?}"
    );
    // Beside the weights of another model a reader may take those.
    std::fs::create_dir(folder.join("other")).expect("a folder");
    std::fs::copy(
        std::path::Path::new(&llama).join("model.safetensors"),
        folder.join("other/model.safetensors"),
    )
    .expect("copies");
    let beside = folder.run(&["--from", "bert/hf", "--to", "bert/hf-tf", &bert, "other"]).ok().stderr;
    assert!(
        beside.contains("format/other-weights") && beside.contains("found: `model.safetensors`"),
        "{beside}"
    );
    let ckpt = folder.run(&["--from", "bert/hf", "--to", "bert/google-tf1", &bert, "out.ckpt"]);
    ckpt.wrong_usage(&["usage/destination", "TensorFlow checkpoint", "name a folder"]);
}
