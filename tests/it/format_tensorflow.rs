//! TensorFlow checkpoints that TensorFlow wrote.

use std::path::{Path, PathBuf};

use qkvconv::format::{Format, OpenOptions, open};

use crate::kit::{Folder, Tensor, Tensors, assert_holds, read};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats/tensorflow").join(name)
}

fn holds(source: &str, expected: &str) {
    let expected = data(&format!("{expected}.expected.safetensors"));
    assert_holds(&data(source), &OpenOptions::default(), &expected);
}

/// Copies the files of a checkpoint into a folder.
fn copy(name: &str, to: &Folder) {
    for entry in std::fs::read_dir(data(name)).expect("a folder") {
        let entry = entry.expect("an entry");
        to.put(&entry.file_name().to_string_lossy(), std::fs::read(entry.path()).expect("readable"));
    }
}

#[test]
fn a_saver_gives_what_tensorflow_gives() {
    let prefix = "saver/model.ckpt-3";
    // By its prefix, its index, its data file and its folder.
    for source in [prefix, &format!("{prefix}.index"), &format!("{prefix}.data-00000-of-00001"), "saver"] {
        holds(source, "saver");
    }
    let reader = open(&data(prefix), &OpenOptions::default()).expect("opens");
    assert_eq!((reader.format(), &reader.catalog().path), (Format::TensorFlow, &data(prefix)));
    assert!(reader.catalog().warnings[0].message.contains("`types/text` (text)"));
}

#[test]
fn several_data_files_are_one_checkpoint() {
    holds("sharded", "sharded");
}

#[test]
fn objects_are_named_by_their_paths() {
    holds("objects", "objects");
    holds("layers", "layers");
}

#[test]
fn a_saved_model_is_read_by_its_variables() {
    holds("saved_model", "saved_model");
    holds("saved_model/variables/variables", "saved_model");
}

#[test]
fn slices_in_any_order_make_the_whole() {
    holds("grid", "grid");
}

#[test]
fn bytes_of_another_machine_are_turned_around() {
    holds("big", "big");
}

#[test]
fn a_root_is_a_path_of_objects() {
    let folder = Folder::new();
    let whole = read(&data("layers.expected.safetensors"));
    let root = "model/_functional/_operations/2";
    let part: Tensors = whole
        .into_iter()
        .filter_map(|(key, tensor)| Some((key.strip_prefix(&format!("{root}/"))?.to_owned(), tensor)))
        .collect();
    assert_eq!(part.len(), 2);
    let expected = folder.tensors("part.safetensors", &part);
    let options = OpenOptions::default().root(Some(root.to_owned()));
    assert_holds(&data("layers"), &options, &expected);
}

#[test]
fn two_checkpoints_that_hold_the_same_differ_in_nothing() {
    let folder = Folder::new();
    for name in ["saver", "sharded", "grid", "big"] {
        let expected = data(&format!("{name}.expected.safetensors"));
        let run = folder.run(&["diff", &data(name).to_string_lossy(), &expected.to_string_lossy()]).ok();
        assert!(run.stdout.contains("all tensors are bit-equal"), "{}", run.stdout);
    }
}

#[test]
fn damaged_data_stops_the_work_and_is_named() {
    let folder = Folder::new();
    copy("saver", &folder);
    let name = "model.ckpt-3.data-00000-of-00001";
    let mut bytes = std::fs::read(folder.join(name)).expect("readable");
    // Every byte of it belongs to a tensor.
    bytes[0] ^= 1;
    folder.put(name, &bytes);
    let expected = data("saver.expected.safetensors");
    let run = folder.run(&["diff", "model.ckpt-3", &expected.to_string_lossy()]);
    assert!(run.code != 0 && run.stderr.contains("is damaged"), "{run:?}");
    assert!(run.stderr.contains("the index says"), "{run:?}");
    folder.put(name, &bytes[..1000]);
    let run = folder.run(&["diff", "model.ckpt-3", &expected.to_string_lossy()]);
    assert!(run.code != 0 && run.stderr.contains("format/truncated"), "{run:?}");
}

#[test]
fn a_missing_data_file_is_named() {
    let folder = Folder::new();
    copy("sharded", &folder);
    std::fs::remove_file(folder.join("model.ckpt.data-00001-of-00002")).expect("removes");
    let expected = data("sharded.expected.safetensors");
    let run = folder.run(&["diff", ".", &expected.to_string_lossy()]);
    assert!(run.code != 0 && run.stderr.contains("format/missing-shard"), "{run:?}");
    assert!(run.stderr.contains("`model.ckpt.data-00001-of-00002`"), "{run:?}");
}

/// Tensors of several types, with so many names that the index has several blocks.
fn many() -> Tensors {
    let mut numbers = crate::kit::xorshift();
    let mut tensors = Tensors::new();
    let mut add = |name: String, dtype: &str, shape: &[u64]| {
        let count = shape.iter().product::<u64>() as usize * crate::kit::width(dtype);
        let bytes = (0..count).map(|_| numbers() as u8 & 0x3f).collect();
        tensors.insert(name, Tensor { dtype: dtype.to_owned(), shape: shape.to_vec(), bytes });
    };
    for layer in 0..2 {
        let module = format!("encoder/layer_{layer}/attention");
        for name in ["query", "key", "value"] {
            add(format!("{module}/self/{name}/kernel"), "F32", &[6, 10]);
            add(format!("{module}/self/{name}/bias"), "F32", &[10]);
        }
        add(format!("{module}/output/dense/kernel"), "F32", &[10, 6]);
        add(format!("{module}/output/dense/bias"), "F32", &[6]);
    }
    for (dtype, shape) in
        [("BF16", &[3, 5][..]), ("F16", &[7]), ("I64", &[]), ("BOOL", &[5]), ("U8", &[0, 3])]
    {
        add(format!("other/{dtype}"), dtype, shape);
    }
    for number in 0..3000 {
        add(format!("{:0>5}/{}", number * 7_919 % 100_003, "name".repeat(50)), "U8", &[3]);
    }
    tensors
}

#[test]
fn a_checkpoint_is_written_and_read_again() {
    let folder = Folder::new();
    folder.tensors("source.safetensors", &many());
    let pair = ["--from", "attention/tf", "--to", "attention/tf", "--axis", "h=2"];
    folder.run(&[&pair[..], &["--format", "tensorflow", "source.safetensors", "out"]].concat()).ok();
    assert_eq!(
        crate::kit::names(&folder.join("out")),
        ["checkpoint", "model.ckpt.data-00000-of-00001", "model.ckpt.index"]
    );
    let index = std::fs::metadata(folder.join("out/model.ckpt.index")).expect("is there").len();
    assert!(index > 2 * 262_144, "several blocks: {index} bytes");
    // By its folder, its prefix and its index; `diff` reads every value, and each checksum with it.
    for source in ["out", "out/model.ckpt", "out/model.ckpt.index"] {
        let same = folder.run(&["diff", "source.safetensors", source]).ok();
        assert!(same.stdout.contains("all tensors are bit-equal"), "{}", same.stdout);
    }
    // A byte of the data is found by its checksum.
    let data = folder.join("out/model.ckpt.data-00000-of-00001");
    let mut bytes = std::fs::read(&data).expect("readable");
    bytes[100] ^= 1;
    std::fs::write(&data, bytes).expect("writable");
    folder.run(&["diff", "source.safetensors", "out"]).fails(&["the data of `", "is damaged"]);
}

#[test]
fn names_of_objects_are_described() {
    let folder = Folder::new();
    let source = crate::kit::root().join("tests/data/digits/model.safetensors").display().to_string();
    let to = |layout: &str, out: &str| {
        let pair = ["--from", "attention/pytorch-fused", "--to", layout, "--axis", "h=4"];
        folder
            .run(&[&pair[..], &["--format", "tensorflow", "--only", "*self_attn*", &source, out]].concat())
            .ok();
        open(&folder.join(out), &OpenOptions::default()).expect("opens").catalog().warnings.clone()
    };
    let warnings = to("attention/tf-einsum", "objects");
    assert!(warnings[0].message.contains("`_CHECKPOINTABLE_OBJECT_GRAPH` (text)"), "{warnings:?}");
    assert!(to("attention/tf", "names").is_empty());
}

#[test]
fn a_checkpoint_is_a_folder() {
    let folder = Folder::new();
    folder.tensors("source.safetensors", &many());
    let pair = ["--from", "attention/tf", "--to", "attention/tf", "--axis", "h=2"];
    let run = |more: &[&str]| folder.run(&[&pair[..], &["source.safetensors"], more].concat());
    run(&["out.index"]).wrong_usage(&["usage/destination", "several files", "--format tensorflow"]);
    run(&["--format", "tensorflow", "out.pt"]).wrong_usage(&["usage/destination", "several files"]);
    run(&["--format", "tensorflow", "--dtype", "bf16", "--resume", "out"]).ok();
    assert!(folder.join("out/checkpoint").is_file());
}
