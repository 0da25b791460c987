//! Folders of torch.distributed.checkpoint that torch wrote (`data/formats/dcp/make.py`), and what is wrong with others.

use std::path::{Path, PathBuf};

use qkvconv::diag::Errors;
use qkvconv::format::{Format, OpenOptions, Reader, open};

use crate::kit::{Folder, assert_holds};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats/dcp").join(name)
}

fn options(root: &str) -> OpenOptions {
    OpenOptions::default().root(Some(root.to_owned()))
}

/// Copies a checkpoint into `dcp` of a new folder.
fn copy(name: &str) -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.join("dcp")).expect("a folder");
    for entry in std::fs::read_dir(data(name)).expect("a folder") {
        let entry = entry.expect("an entry");
        let file = format!("dcp/{}", entry.file_name().to_string_lossy());
        folder.put(&file, std::fs::read(entry.path()).expect("readable"));
    }
    folder
}

fn edit(folder: &Folder, name: &str, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(folder.join(name)).expect("readable");
    change(&mut bytes);
    folder.put(name, bytes);
}

/// Puts bytes of the same length in the place of others, wherever they stand.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let at: Vec<usize> = (0..=bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from)).collect();
    assert!(!at.is_empty(), "it is there");
    at.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to));
}

fn said(result: Result<Box<dyn Reader>, Errors>) -> String {
    format!("{:?}", result.err().expect("is refused").diagnostics())
}

#[test]
fn what_torch_wrote_is_what_torch_reads() {
    assert_holds(&data("grid"), &OpenOptions::default(), &data("grid.expected.safetensors"));
    assert_holds(&data("grid/.metadata"), &OpenOptions::default(), &data("grid.expected.safetensors"));
    assert_holds(&data("fsdp"), &options("/"), &data("fsdp.expected.safetensors"));
    let reader = open(&data("grid"), &OpenOptions::default()).expect("opens");
    let catalog = reader.catalog();
    assert_eq!((reader.format(), &catalog.warnings[..]), (Format::Dcp, &[][..]));
    let extents = |key: &str| catalog.tensors[catalog.find(key).expect("is there")].extents.len();
    assert_eq!(["a.rows", "a.columns", "a.middle", "a.short"].map(extents), [3, 3, 3, 2]);
    // A rank without rows has no part; what is whole is read where it lies.
    assert_eq!(["a.tied", "a.replicated", "a.plain", "a.number", "a.empty"].map(extents), [2, 0, 0, 0, 0]);
}

#[test]
fn the_weights_beside_an_optimizer_have_to_be_named() {
    let text = said(open(&data("fsdp"), &OpenOptions::default()));
    assert!(text.contains("ambiguous-root") && text.contains("--root model"), "{text}");
    let reader = open(&data("fsdp"), &options("model")).expect("opens");
    let mut keys: Vec<&str> = reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["wk", "wo", "wq", "wv"].map(|name| format!("layers.0.attention.{name}.weight")));
    let warning = &reader.catalog().warnings[0].message;
    assert!(
        warning.contains("`optim` (4 tensors)") && warning.contains("`run` (a pickled object)"),
        "{warning}"
    );
    let state = open(&data("fsdp"), &options("optim.state")).expect("opens");
    let at = state.catalog().find("layers.0.attention.wo.weight.momentum_buffer").expect("is there");
    assert_eq!(state.catalog().tensors[at].shape, [5, 8]);
}

/// A pair of layouts that cuts and joins the matrices.
const PAIR: [&str; 6] = ["--from", "attention/llama-meta", "--to", "attention/internlm2", "--axis", "d=2"];

#[test]
fn a_conversion_gives_what_one_file_gives() {
    let folder = copy("fsdp");
    folder.put("all.safetensors", std::fs::read(data("fsdp.expected.safetensors")).expect("readable"));
    let more = [
        "--only",
        "model.*",
        "--strip-prefix",
        "model.",
        "--allow",
        "mixed-prefix",
        "all.safetensors",
        "of_one.safetensors",
    ];
    folder.run(&[&PAIR[..], &more].concat()).ok();
    folder.run(&[&PAIR[..], &["--root", "model", "dcp", "of_parts.safetensors"]].concat()).ok();
    let same = folder.run(&["diff", "of_one.safetensors", "of_parts.safetensors"]).ok();
    assert!(same.stdout.contains("all tensors are bit-equal"), "{}", same.stdout);
}

#[test]
fn chunks_that_share_elements_have_to_agree() {
    let folder = copy("overlap");
    let convert = |to| folder.run(&[&PAIR[..], &["dcp", to]].concat());
    convert("out.safetensors").fails(&["layers.0.attention.wq.weight", "two stored copies", "differ"]);
    assert!(!folder.join("out.safetensors").exists());
    // Row 4 as the other chunk has it.
    edit(&folder, "dcp/__0_0.distcp", |bytes| {
        replace(bytes, &99_f32.to_le_bytes(), &20_f32.to_le_bytes());
    });
    assert_holds(&folder.join("dcp"), &OpenOptions::default(), &data("overlap.expected.safetensors"));
    convert("out.safetensors").ok();
}

#[test]
fn a_transformed_chunk_is_no_tensor() {
    let reader = open(&data("transformed"), &OpenOptions::default()).expect("opens");
    let [(key, reason)] = &reader.catalog().unread[..] else { panic!("one is not read") };
    assert_eq!((key.as_str(), reason.code.as_str()), ("w", "format/unsupported-tensor"));
    assert!(reason.message.contains("`stream.zstd`"), "{}", reason.message);
}

#[test]
fn chunks_in_safetensors_are_told() {
    let text = said(open(&data("as_safetensors"), &OpenOptions::default()));
    assert!(text.contains("format/not-read") && text.contains("SerializationFormat.SAFETENSORS"), "{text}");
}

#[test]
fn a_missing_file_is_named_with_its_tensors() {
    let folder = copy("grid");
    std::fs::remove_file(folder.join("dcp/__1_0.distcp")).expect("removes");
    let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
    assert!(text.contains("format/missing-shard") && text.contains("__1_0.distcp"), "{text}");
    assert!(text.contains("a.rows") && text.contains("a.columns") && !text.contains("a.empty"), "{text}");
}

#[test]
fn a_folder_without_its_list_was_never_finished() {
    let folder = copy("grid");
    std::fs::rename(folder.join("dcp/.metadata"), folder.join("dcp/.metadata.tmp")).expect("renames");
    let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
    assert!(
        text.contains("format/missing-shard") && text.contains("`.metadata`, which is written last"),
        "{text}"
    );
    let text = said(open(&data("grid/__0_0.distcp"), &OpenOptions::default()));
    assert!(text.contains("name the folder"), "{text}");
}

#[test]
fn a_file_that_was_cut_is_named() {
    let folder = copy("grid");
    edit(&folder, "dcp/__2_0.distcp", |bytes| bytes.truncate(bytes.len() - 700));
    let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
    assert!(text.contains("format/truncated") && text.contains("__2_0.distcp"), "{text}");
    edit(&folder, "dcp/.metadata", |bytes| bytes.truncate(bytes.len() / 2));
    let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
    assert!(text.contains("format/truncated") && text.contains(".metadata"), "{text}");
}

#[test]
fn files_outside_the_folder_are_not_opened() {
    let folder = copy("grid");
    for name in [b"/tmp/x.distcp", b"../__.distcp_"] {
        edit(&folder, "dcp/.metadata", |bytes| {
            let known = bytes.windows(12).position(|bytes| bytes == b"__1_0.distcp");
            // A name that is one byte longer takes the place of the name and its length.
            let at = known
                .unwrap_or_else(|| bytes.windows(13).position(|b| b == b"/tmp/x.distcp").expect("named"));
            let length = if known.is_some() { 12 } else { 13 };
            bytes[at - 1] = 13;
            bytes.splice(at..at + length, name.iter().copied());
        });
        let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
        assert!(text.contains("format/path-escape"), "{text}");
    }
    #[cfg(unix)]
    {
        let folder = copy("grid");
        std::fs::rename(folder.join("dcp/__1_0.distcp"), folder.join("outside")).expect("renames");
        std::os::unix::fs::symlink(folder.join("outside"), folder.join("dcp/__1_0.distcp")).expect("links");
        let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
        assert!(text.contains("format/path-escape") && text.contains("outside-link"), "{text}");
        let allowed = OpenOptions::default().allow_outside_links(true);
        assert_holds(&folder.join("dcp"), &allowed, &data("grid.expected.safetensors"));
    }
}

#[test]
fn a_list_that_would_run_something_is_refused() {
    let folder = copy("grid");
    let harm = b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x94\x8c\x02os\x94\x8c\x06system\x94\x93\x8c\x02ls\x94\x85R.";
    folder.put("dcp/.metadata", harm);
    let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
    assert!(text.contains("format/unsafe-pickle"), "{text}");
    folder.put("dcp/.metadata", b"\x80\x04}.");
    let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
    assert!(text.contains("format/bad-header") && text.contains("no `Metadata`"), "{text}");
}

#[test]
fn a_list_that_contradicts_the_chunks_is_refused() {
    let folder = copy("grid");
    edit(&folder, "dcp/.metadata", |bytes| {
        let at = bytes.windows(9).position(|bytes| bytes == b"\x08bfloat16").expect("the type is named");
        bytes.splice(at..at + 9, *b"\x07float16");
    });
    let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
    assert!(text.contains("format/bad-tensor") && text.contains("a.bf16"), "{text}");
    assert!(text.contains("F16 [2, 3]") && text.contains("BF16 [2, 3]"), "{text}");
    let folder = copy("grid");
    edit(&folder, "dcp/.metadata", |bytes| replace(bytes, b"sizes", b"sizez"));
    let text = said(open(&folder.join("dcp"), &OpenOptions::default()));
    assert!(text.contains("format/bad-header"), "{text}");
}
