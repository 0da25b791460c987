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
        convert(&folder, &[name]).is_wrong_usage(&[
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
    convert(&folder, &["out.safetensors", "--format", "npz"]).is_wrong_usage(&[
        "usage/destination",
        "named as safetensors files are",
        "--format npz",
    ]);
    assert!(!folder.join("out.safetensors").exists());
    convert(&folder, &["out.npz", "--format", "npz"]).ok();
}
