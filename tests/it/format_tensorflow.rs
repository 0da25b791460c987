//! TensorFlow checkpoints that TensorFlow wrote.

use std::path::{Path, PathBuf};

use qkvconv::format::{Format, OpenOptions, open};

use crate::kit::{Folder, Tensors, assert_holds, read};

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
