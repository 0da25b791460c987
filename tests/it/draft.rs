//! `qkvconv mapping new`: a draft is right for the checkpoint that it was made from, whatever that is.

use std::path::Path;

use qkvconv::bind::BindOptions;
use qkvconv::convert::ConvertOptions;
use qkvconv::draft::{Names, draft, from_list};
use qkvconv::format::OpenOptions;

use crate::families::model_files;
use crate::kit::{Folder, Tensor, Tensors, assert_holds, convert, numbered, read, root, width};

/// Drafts from a checkpoint there, converts it to itself with the draft, and returns the draft.
fn identity(folder: &Folder, source: &str) -> String {
    let drafted =
        folder.run(&["mapping", "new", "--from", source, "--output", "draft.json", "--family", "f"]).ok();
    assert!(drafted.stdout.is_empty(), "{}", drafted.stdout);
    let layouts = ["--mapping", "draft.json", "--from", "f/original", "--to", "f/original"];
    folder.run(&[&layouts[..], &[source, "same.safetensors"]].concat()).ok();
    std::fs::read_to_string(folder.join("draft.json")).expect("readable")
}

#[test]
fn every_family_s_models_convert_to_themselves() {
    let folder = Folder::new();
    let mut models = 0;
    for (name, text) in model_files() {
        let model: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let list = from_list(&model["tensors"].to_string()).expect("a list");
        let fill = |(at, tensor): (usize, &qkvconv::draft::Tensor)| {
            let count = tensor.shape.iter().product::<u64>() as usize * width(tensor.dtype.name());
            let bytes = (0..count).map(|byte| (byte * 31 + at * 7) as u8).collect();
            (tensor.key.clone(), Tensor::new(tensor.dtype.name(), &tensor.shape, bytes))
        };
        let model: Tensors = list.iter().enumerate().map(fill).collect();
        let source = folder.tensors("in.safetensors", &model);
        let names = Names { family: "f".into(), layout: "original".into(), source: "in.safetensors".into() };
        let drafted = draft(&list, &[], &names).unwrap_or_else(|errors| panic!("{name}: {errors}"));
        let target = folder.join("out.safetensors");
        let options = ConvertOptions::default().bind(BindOptions::default());
        convert(Some(&drafted.text), ("f/original", "f/original"), &source, &target, &options)
            .unwrap_or_else(|errors| panic!("{name}: {errors}"));
        assert!(read(&target) == model, "{name}");
        models += 1;
    }
    assert!(models > 100, "{models} models");
}

#[test]
fn every_format_is_drafted_from() {
    let oracles = root().join("tests/oracles");
    for (source, kind) in [
        ("03_torch_mha_to_keras_weights_h5/dst", "hdf5"),
        ("04_torch_mha_to_flax_msgpack/dst", "msgpack"),
        ("08_hf_bert_to_google_tf1_ckpt/dst", "tensorflow"),
        ("19_hf_llama_to_gguf/dst", "gguf"),
        ("27_augreg_npz_to_timm/src", "npz"),
        ("42_bin_nested_strided_tied_bf16/src", "pytorch"),
    ] {
        let folder = Folder::new();
        let source = oracles.join(source);
        assert!(source.exists(), "{kind}: {}", source.display());
        let text = identity(&folder, &source.display().to_string());
        assert!(text.contains("\"layouts\""), "{kind}");
        let expected = folder.join("same.safetensors");
        assert_holds(&source, &OpenOptions::default(), &expected);
    }
}

#[test]
fn layers_of_different_widths_and_with_gaps() {
    let folder = Folder::new();
    let model = numbered(&[
        ("emb.weight", &[11, 6]),
        ("h.0.attn.qkv.weight", &[36, 6]),
        ("h.1.attn.qkv.weight", &[18, 6]),
        ("h.2.attn.qkv.weight", &[18, 6]),
        ("h.0.norm.weight", &[6]),
        ("h.1.norm.weight", &[6]),
        ("h.2.norm.weight", &[6]),
        ("h.0.norm.bias", &[6]),
        ("h.2.norm.bias", &[6]),
        ("h.1.experts.0.up.weight", &[10, 6]),
        ("h.1.experts.1.up.weight", &[10, 6]),
        ("out.0.weight", &[6, 6]),
        ("out.2.weight", &[3, 6]),
        ("scalar", &[]),
        ("one", &[1]),
        ("none", &[0, 6]),
        ("e.0.table", &[12, 6]),
        ("e.1.table", &[12, 6]),
    ]);
    folder.tensors("in.safetensors", &model);
    let text = identity(&folder, "in.safetensors");
    assert_eq!(read(&folder.join("same.safetensors")), model);
    for line in [
        r#""axes": "l w e2", "about": "3 x F32 [18, 6] … [36, 6]; by its name query, key and value in one"#,
        r#""axes": "l e2", "about": "3 x F32 [6]""#,
        r#""axes": "l e2", "optional": true, "sparse": "l", "about": "2 x F32 [6]""#,
        r#""axes": "l x f e2", "optional": true, "sparse": "l", "about": "2 x F32 [10, 6]""#,
        r#""h.{l}.experts.{x}.up.weight": "experts.up.weight: f e2""#,
        r#"emb.weight: v e2""#,
        r#"out.0.weight: e2_2 e2""#,
        r#"out.2.weight: n3 e2""#,
        r#"scalar:""#,
        r#"one: 1""#,
        r#"none: n0 e2""#,
        // The letter of the width is taken by a list.
        r#"table: n12 e2""#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn tied_tensors_are_said_to_be() {
    let source = root().join("tests/oracles/42_bin_nested_strided_tied_bf16/src").display().to_string();
    let drafted = Folder::new().run(&["mapping", "new", "--from", &source]).ok();
    assert!(drafted.stdout.contains("tied here with"), "{}", drafted.stdout);
}

#[test]
fn a_list_of_names_is_enough() {
    let folder = Folder::new();
    folder.put(
        "tiny.json",
        r#"{"l.0.w": {"dtype": "BF16", "shape": [3, 5]}, "l.1.w": {"dtype": "BF16", "shape": [3, 5]}}"#,
    );
    let drafted =
        folder.run(&["mapping", "new", "--from", "tiny.json", "--layout", "mine", "--output", "d.json"]).ok();
    for said in [
        "wrote d.json: 2 tensors of tiny.json as tiny/mine",
        "next:",
        "mapping show tiny/mine --mapping d.json",
    ] {
        assert!(drafted.stderr.contains(said), "{}", drafted.stderr);
    }
    let shown = folder.run(&["mapping", "show", "tiny/mine", "--mapping", "d.json"]).ok();
    assert!(shown.stdout.contains("l.{l}.w"), "{}", shown.stdout);
    // What was edited is not lost.
    let again = folder.run(&["mapping", "new", "--from", "tiny.json", "--output", "d.json"]);
    again.fails(&["publish/exists", "d.json"]);
}

#[test]
fn a_name_that_no_template_can_have_is_refused() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &numbered(&[("a.{l}", &[3]), ("b::c", &[3]), ("d", &[3])]));
    let drafted = folder.run(&["mapping", "new", "--from", "in.safetensors"]);
    drafted.fails(&["draft/name", "a.{l}", "b::c"]);
    folder.put("none.json", "{}");
    folder.run(&["mapping", "new", "--from", "none.json"]).fails(&["draft/empty"]);
    let named = folder.run(&["mapping", "new", "--from", "in.safetensors", "--family", "a/b"]);
    assert_eq!((named.code, named.stderr.contains("usage/name")), (2, true), "{}", named.stderr);
    assert!(Path::new(&folder.join("in.safetensors")).exists());
}
