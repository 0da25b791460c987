//! HDF5 files and `.keras` archives that h5py, Keras and transformers wrote (`tests/data/formats/hdf5/make.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use qkvconv::dtype::Dtype;
use qkvconv::format::output::{OutputOptions, OutputTensor, lay_out};
use qkvconv::format::{Format, OpenOptions, Reader, open};

use crate::kit::{self, Folder, assert_holds};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats/hdf5").join(name)
}

fn holds(name: &str, root: Option<&str>) {
    let options = OpenOptions::default().root(root.map(str::to_owned));
    assert_holds(&fixture(name), &options, &fixture(&format!("{name}.expected.safetensors")));
}

fn opened(name: &str) -> Box<dyn Reader> {
    open(&fixture(name), &OpenOptions::default()).unwrap_or_else(|errors| panic!("{name}: {errors}"))
}

fn keys(reader: &dyn Reader) -> Vec<&str> {
    reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect()
}

/// Returns all texts of why a file does not open, or of what in it cannot be read.
fn refused(name: &str, options: &OpenOptions) -> String {
    format!("{:?}", kit::wrong(&open(&fixture(name), options)))
}

fn bytes(reader: &dyn Reader, key: &str) -> Vec<u8> {
    let tensor = &reader.catalog().tensors[reader.catalog().find(key).expect("is there")];
    let mut bytes = vec![0; tensor.bytes() as usize];
    reader.read_exact_at(tensor.file, tensor.offset, &mut bytes).expect("reads");
    bytes
}

#[test]
fn files_of_keras_and_transformers() {
    for name in ["keras3.weights.h5", "model.keras", "packed.keras", "tf_model.h5"] {
        holds(name, None);
    }
    holds("legacy.h5", Some("model_weights"));
    assert_eq!(opened("model.keras").format(), Format::Keras);
    let facts = opened("model.keras").catalog().facts.clone();
    assert!(facts[0].1["model_config"]["class_name"].is_string(), "{facts:?}");
    let bert = opened("tf_model.h5");
    let metadata = &bert.catalog().metadata;
    assert_eq!(metadata["backend"], "tensorflow");
}

#[test]
fn every_storage_of_old_and_new_files() {
    for name in ["storage.h5", "latest.h5"] {
        holds(name, None);
        let catalog = opened(name);
        let metadata = &catalog.catalog().metadata;
        assert_eq!(
            (metadata["qkvconv"].as_str(), metadata["format"].as_str()),
            (r#"{"layout":"a/b"}"#, "tf")
        );
        let skipped = format!("{:?}", catalog.catalog().warnings);
        for said in ["`other/text` (text", "`other/records` (records)", "`other/null` (nothing"] {
            assert!(skipped.contains(said), "{said}: {skipped}");
        }
    }
}

#[test]
fn data_that_lie_there_as_they_are_are_read_in_place() {
    for name in ["model.keras", "keras3.weights.h5", "tf_model.h5"] {
        assert!(opened(name).catalog().tensors.iter().all(|tensor| tensor.file == 0), "{name}");
    }
    let storage = opened("storage.h5");
    let catalog = storage.catalog();
    let in_place = |key: &str| catalog.tensors[catalog.find(key).expect(key)].file == 0;
    assert!(
        in_place("plain/f32") && in_place("plain/bf16") && in_place("odd/scalar") && in_place("odd/empty")
    );
    assert!(
        !in_place("big/f4")
            && !in_place("chunks/gzip")
            && !in_place("odd/compact")
            && !in_place("odd/filled")
    );
}

#[test]
fn layers_and_weights_come_in_the_order_of_the_attributes() {
    let options = OpenOptions::default().root(Some("model_weights".to_owned()));
    let legacy = open(&fixture("legacy.h5"), &options).expect("opens");
    assert_eq!(
        keys(&*legacy),
        ["second/second/kernel", "second/second/bias", "first/first/kernel", "first/first/bias"]
    );
    let bert = opened("tf_model.h5");
    assert_eq!(keys(&*bert)[0], "bert/tf_bert_model/bert/embeddings/word_embeddings/weight:0");
}

#[test]
fn the_optimizer_of_a_model_is_no_weight() {
    let text = refused("legacy.h5", &OpenOptions::default());
    assert!(text.contains("format/ambiguous-root") && text.contains("--root model_weights"), "{text}");
    let model = opened("model.keras");
    let warnings = format!("{:?}", model.catalog().warnings);
    assert!(warnings.contains("`optimizer` (the optimizer's state, 2 tensors)"), "{warnings}");
    let options = OpenOptions::default().root(Some("optimizer".to_owned()));
    assert_eq!(open(&fixture("model.keras"), &options).expect("opens").catalog().tensors.len(), 2);
}

#[test]
fn complex_numbers_and_bytes_without_a_type() {
    let wanted: Vec<u8> = [1.0_f32, 2.0, 3.0, -4.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let complex = opened("complex.h5");
    for key in ["little", "big"] {
        assert_eq!((complex.catalog().tensors[0].dtype, bytes(&*complex, key)), (Dtype::C64, wanted.clone()));
    }
    let text = refused("opaque.h5", &OpenOptions::default());
    for said in ["format/opaque-dtype", "tensor: bf16", "--void-as bf16", "tensor: f8", "--void-as f8-e4m3"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let options = |void_as: &[Dtype]| OpenOptions::default().void_as(void_as.to_vec());
    assert!(!refused("opaque.h5", &options(&[Dtype::BF16])).contains("tensor: bf16"));
    let opaque = open(&fixture("opaque.h5"), &options(&[Dtype::F8E4M3, Dtype::BF16])).expect("opens");
    assert_eq!(bytes(&*opaque, "bf16"), [0x80, 0x3f, 0x20, 0xc0]);
    assert_eq!(bytes(&*opaque, "f8"), [0x38, 0x30, 0xc0]);
}

#[test]
fn what_is_not_in_the_file_or_not_understood_is_named() {
    for (name, said) in [
        ("external.h5", "not in this file"),
        ("virtual.h5", "virtual dataset"),
        ("nbit.h5", "the filter 5"),
        ("two_unlimited.h5", "version 2 B-tree"),
        ("circle.h5", "does one contain itself?"),
    ] {
        let text = refused(name, &OpenOptions::default());
        assert!(text.contains(said), "{name}: {text}");
        assert!(name == "circle.h5" || text.contains("tensor: w"), "{text}");
    }
}

/// Writes all tensors of a checkpoint into an HDF5 file of that path, as the program lays it out.
fn rewrite(reader: &dyn Reader, metadata: &BTreeMap<String, String>, to: &Path) {
    let tensors = &reader.catalog().tensors;
    let outputs: Vec<OutputTensor<'_>> = tensors
        .iter()
        .map(|tensor| OutputTensor { key: &tensor.key, dtype: tensor.dtype, shape: &tensor.shape })
        .collect();
    let options = OutputOptions { format: Format::Hdf5, name: None, max_shard_size: None, template: None };
    let layout = lay_out(&outputs, metadata, &options).unwrap_or_else(|errors| panic!("{errors}"));
    let file = &layout.files[0];
    let mut all = vec![0; file.size as usize];
    for (offset, bytes) in &file.pieces {
        all[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    for (tensor, place) in tensors.iter().zip(&layout.placements) {
        let data = bytes(reader, &tensor.key);
        all[place.offset as usize..][..data.len()].copy_from_slice(&data);
    }
    std::fs::write(to, all).expect("writable");
}

#[test]
fn what_is_written_is_read_again_in_order() {
    let folder = Folder::new();
    let metadata = BTreeMap::from([("qkvconv".to_owned(), r#"{"layout":"ä/b"}"#.to_owned())]);
    for name in ["keras3.weights.h5", "tf_model.h5"] {
        let source = opened(name);
        let path = folder.join(name);
        rewrite(&*source, &metadata, &path);
        assert_holds(&path, &OpenOptions::default(), &fixture(&format!("{name}.expected.safetensors")));
        let written = open(&path, &OpenOptions::default()).expect("opens");
        assert_eq!(written.catalog().metadata["qkvconv"], metadata["qkvconv"]);
        assert_eq!(keys(&*written), keys(&*source));
        assert!(written.catalog().tensors.iter().all(|tensor| tensor.offset.is_multiple_of(64)));
        let second = folder.join("again.h5");
        rewrite(&*written, &metadata, &second);
        assert_eq!(std::fs::read(&path).expect("file"), std::fs::read(&second).expect("file"));
    }
}

/// Opens a file and reads all of its tensors, up to 64 MiB each; whatever it holds, this must come to an end.
fn exhaust(path: &Path) -> bool {
    let options = OpenOptions::default().void_as(vec![Dtype::BF16, Dtype::F8E4M3]);
    let Ok(reader) = open(path, &options) else { return false };
    for tensor in &reader.catalog().tensors {
        let mut buffer = vec![0; tensor.bytes().min(1 << 26) as usize];
        let _ = reader.read_exact_at(tensor.file, tensor.offset, &mut buffer);
    }
    true
}

/// Damaged files: bits, bytes and addresses changed at places that a fixed sequence gives.
#[test]
fn damaged_files_come_to_an_end() {
    let folder = Folder::new();
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut opens, mut fails) = (0, 0);
    for name in ["storage.h5", "latest.h5", "keras3.weights.h5", "legacy.h5", "circle.h5", "packed.keras"] {
        let bytes = std::fs::read(fixture(name)).expect("file");
        for _ in 0..80 {
            let mut damaged = bytes.clone();
            for _ in 0..=next(3) {
                let at = next(damaged.len());
                let end = (at + 8).min(damaged.len());
                match next(4) {
                    0 => damaged[at] ^= 1 << next(8),
                    1 => damaged[at] = [0, 1, 0x7f, 0x80, 0xff][next(5)],
                    2 => damaged[at..end].fill([0, 1, 0x7f, 0xff][next(4)]),
                    _ => damaged.truncate(at.max(8)),
                }
            }
            if exhaust(&folder.put("damaged", &damaged)) { opens += 1 } else { fails += 1 }
        }
    }
    assert!(opens > 50 && fails > 50, "{opens} open, {fails} do not");
}

#[test]
fn links_are_followed() {
    // Soft links of the old kind, whose entries have no address.
    holds("links.h5", None);
    let name = "links_latest.h5";
    holds(name, None);
    let reader = opened(name);
    let catalog = reader.catalog();
    let files: Vec<&str> = catalog.files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    assert_eq!(files, [name, "links_other.h5"]);
    // Both names are one place: they are tied.
    let place = |key: &str| &catalog.tensors[catalog.find(key).expect(key)];
    assert_eq!(place("tied").offset, place("attn/q/kernel").offset);
}

#[test]
fn a_link_that_leads_nowhere_is_an_error() {
    let text = refused("links_nowhere.h5", &OpenOptions::default());
    for said in [
        "`/none`, and nothing with data is there",
        "do they lead to themselves",
        "`none.h5`, which is not there",
        "`/none` in the file `links_other.h5`",
        "leaves the folder by `..`",
        "--allow outside-link",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!text.contains("tensors: [\"w\"]"), "{text}");
    let options = OpenOptions::default().allow_outside_links(true);
    assert!(!refused("links_nowhere.h5", &options).contains("leaves the folder"));
}

#[test]
fn a_file_behind_a_user_block_is_read() {
    for name in ["userblock_512.h5", "userblock_4096.h5"] {
        holds(name, None);
    }
}
