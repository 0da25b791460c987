//! `qkvconv inspect` and `--from auto`.

use serde_json::Value;

use crate::kit::{Folder, Tensor, Tensors, mapping};

fn digits() -> String {
    format!("{}/tests/data/digits/model.safetensors", env!("CARGO_MANIFEST_DIR"))
}

fn oracle(path: &str) -> String {
    format!("{}/tests/oracles/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn json(folder: &Folder, args: &[&str]) -> Value {
    serde_json::from_str(&folder.run(args).ok().stdout).expect("JSON")
}

#[test]
fn a_checkpoint_is_told_from_its_headers() {
    let folder = Folder::new();
    let said = folder.run(&["inspect", &digits()]).ok().stdout;
    for text in [
        "safetensors, 353.01 KiB in 43 tensors (43 F32)",
        "layout attention/pytorch-fused: 12 of 43 tensors",
        "h = 4  query heads, from config.json `num_attention_heads`",
        "encoder.layers.{0..2}.self_attn.in_proj_weight (3)  F32 [180, 60]",
        "rows: q.weight: 4 query heads × 15 head size",
        "k.weight head 3: rows 105..120, columns 0..60",
        "o.weight head 3: rows 0..60, columns 45..60",
        "explained by no rule",
        "encoder.layers.{0..2}.linear1.bias (3)",
    ] {
        assert!(said.contains(text), "`{text}` is not in\n{said}");
    }
}

#[test]
fn the_document_for_programs() {
    let folder = Folder::new();
    let found = json(&folder, &["inspect", "--json", &oracle("18_hf_llama_to_meta_llama/dst")]);
    assert_eq!((&found["format"], &found["layout"]), (&"pytorch".into(), &"llama/meta".into()));
    assert_eq!((&found["tensors"], &found["version"]), (&21.into(), &1.into()));
    let sizes = found["sizes"].as_array().expect("sizes");
    let size = |axis: &str| sizes.iter().find(|size| size["axis"] == axis).expect("is there")["size"].clone();
    assert_eq!((size("h"), size("g"), size("d")), (6.into(), 2.into(), 8.into()));
    assert_eq!(found["unexplained"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_head_is_found_in_every_layout_of_the_family() {
    let folder = Folder::new();
    let tensor = "encoder.layers.1.self_attn.in_proj_weight";
    let found =
        json(&folder, &["inspect", "--json", "--tensor", tensor, "--head", "2", "--part", "k", &digits()]);
    let place = |layout: &str| {
        let all = found.as_array().expect("a list");
        let entry = all.iter().find(|entry| entry["layout"] == layout).expect(layout);
        (entry["tensor"].as_str().expect("a name").to_owned(), entry["ranges"].clone())
    };
    // Three thirds of 60 rows, heads of 15.
    assert_eq!(
        place("attention/pytorch-fused"),
        (tensor.to_owned(), serde_json::json!(["90..105", "0..60"]))
    );
    // Of each head q, k and v: head 2 begins at row 90, its key 15 behind.
    let neox = (
        "encoder.layers.1.self_attn.query_key_value.weight".to_owned(),
        serde_json::json!(["105..120", "0..60"]),
    );
    assert_eq!(place("attention/neox"), neox);
    assert_eq!(place("attention/conv1d").1, serde_json::json!(["0..60", "90..105"]));
    assert_eq!(place("attention/transformer-lens").1, serde_json::json!(["2", "0..60", "0..15"]));
    assert_eq!(place("attention/per-head").0, "encoder.layers.1.self_attn.heads.2.k_proj.weight");
    folder.run(&["inspect", "--tensor", tensor, "--head", "4", &digits()]).fails(&["no head 4", tensor]);
    folder
        .run(&["inspect", "--tensor", tensor, "--part", "x", &digits()])
        .fails(&["no such part", "k.weight"]);
    folder.run(&["inspect", "--tensor", "nope", &digits()]).fails(&["no tensor of that name", "nope"]);
}

/// Interleaved rotary pairs: the canonical order is half-split, so a head's rows are the same, and k of two heads are two
/// runs of an interleaved tensor.
#[test]
fn pictures_are_drawn() {
    let folder = Folder::new();
    let tensor = "encoder.layers.0.self_attn.in_proj_weight";
    let args = ["inspect", "--tensor", tensor, "--svg", "a.svg", &digits()];
    let said = folder.run(&args).ok().stdout;
    let drawing: Vec<&str> =
        said.lines().map(str::trim).filter(|line| line.len() > 20 && !line.contains(' ')).collect();
    assert_eq!(drawing.len(), 24, "{said}");
    // 24 lines for 180 rows: the middle of each shows its element; thirds, four heads each, two lines a head.
    let expected: Vec<String> = ["q", "k", "v"]
        .iter()
        .flat_map(|part| (0..4).flat_map(move |head| [format!("{part}{head}"), format!("{part}{head}")]))
        .collect();
    let seen: Vec<String> = drawing.iter().map(|line| line[..2].to_owned()).collect();
    assert_eq!(seen, expected);
    let svg = std::fs::read_to_string(folder.join("a.svg")).expect("written");
    assert!(svg.starts_with("<svg") && svg.contains("k.weight head 3"), "{}", &svg[..200]);
}

#[test]
fn the_layout_of_the_source_is_found() {
    let folder = Folder::new();
    let run = folder
        .run(&["--from", "auto", "--to", "hf-flax", &oracle("07_hf_bert_to_tfbert_h5/src"), "out"])
        .ok();
    assert!(run.stderr.contains("--from auto: bert/hf"), "{}", run.stderr);
    // What a conversion recorded is read first.
    let run = folder.run(&["--from", "auto", "--to", "bert/hf", "out", "back.safetensors"]).ok();
    assert!(run.stderr.contains("--from auto: bert/hf-flax"), "{}", run.stderr);
}

/// Gemma and Llama have the same names; the config says which it is.
#[test]
fn the_config_names_the_model() {
    let folder = Folder::new();
    let found = json(&folder, &["inspect", "--json", &oracle("19_hf_llama_to_gguf/src")]);
    assert_eq!(found["layout"], "llama/hf");
    let found = json(&folder, &["inspect", "--json", &oracle("34_hf_gemma_gqa_to_flax_gemma/src")]);
    assert_eq!(found["layout"], "gemma/hf");
    // Without a config nothing tells them apart.
    std::fs::copy(oracle("19_hf_llama_to_gguf/src/model.safetensors"), folder.join("bare.safetensors"))
        .expect("a copy");
    let found = json(&folder, &["inspect", "--json", "--axis", "h=6", "--axis", "g=2", "bare.safetensors"]);
    assert_eq!(found["layout"], Value::Null);
}

#[test]
fn several_layouts_that_fit_are_a_question() {
    let folder = Folder::new();
    let text = mapping(
        "two",
        serde_json::json!({ "h": "heads", "d": "size", "e": "width" }),
        serde_json::json!({ "q": "h d e", "k": "h d e" }),
        serde_json::json!({
            "blocks": { "tensors": { "qk": "(q: h d + k: h d) e" } },
            "turned": { "tensors": { "qk": "(k: h d + q: h d) e" } },
            "heads": { "tensors": { "qk": "(h (q: d + k: d)) e" } },
            "again": { "like": "heads", "about": "the same" },
        }),
    );
    folder.put("two.json", text);
    folder.tensors("in.safetensors", &Tensors::from([("qk".to_owned(), Tensor::index(&[48, 20], 0))]));
    let common = ["--mapping", "two.json", "--axis", "h=3"];
    let said = folder.run(&[&["inspect"][..], &common, &["in.safetensors"]].concat()).ok().stdout;
    assert!(
        said.contains("one of these") && said.contains("two/blocks") && said.contains("two/turned"),
        "{said}"
    );
    assert!(said.contains("two/again (the same here as heads)"), "{said}");
    folder
        .run(
            &[&["--from", "auto", "--to", "two/heads"][..], &common, &["in.safetensors", "out.safetensors"]]
                .concat(),
        )
        .fails(&["two/again, two/blocks, two/turned", "--from two/again"]);
    // With a name it is as ever, and the head lies where the layout says: k of head 1 in heads of q and k.
    let args = [
        &["inspect", "--from", "heads", "--tensor", "qk", "--head", "1", "--part", "k"][..],
        &common,
        &["in.safetensors"],
    ]
    .concat();
    let said = folder.run(&args).ok().stdout;
    assert!(said.contains("two/heads  k head 1: qk [24..32] [0..20]"), "{said}");
    assert!(said.contains("two/blocks  k head 1: qk [32..40] [0..20]"), "{said}");
    folder.tensors("other.safetensors", &Tensors::from([("x".to_owned(), Tensor::index(&[3], 0))]));
    folder
        .run(&[
            "--from",
            "auto",
            "--to",
            "two/heads",
            "--mapping",
            "two.json",
            "other.safetensors",
            "o.safetensors",
        ])
        .fails(&["no known layout explains", "other.safetensors"]);
}

#[test]
fn trained_weights_speak_for_their_layout() {
    let folder = Folder::new();
    let said = folder.run(&["inspect", "--evidence", &digits()]).ok().stdout;
    assert!(said.contains("the weights agree with the declared layout"), "{said}");
    // The same weights under names that say that heads are interleaved.
    let mut tensors = crate::kit::read(std::path::Path::new(&digits()));
    let renamed: Tensors = std::mem::take(&mut tensors)
        .into_iter()
        .map(|(key, tensor)| {
            let key = key.replace("in_proj_", "query_key_value.").replace("out_proj", "dense");
            (key, tensor)
        })
        .collect();
    folder.tensors("neox.safetensors", &renamed);
    let args = ["inspect", "--evidence", "--from", "attention/neox", "--axis", "h=4", "neox.safetensors"];
    let said = folder.run(&args).ok().stdout;
    // Three small modules are too few to contradict, and enough to say which would be better.
    let better = "(h (q + k + v)) is declared; (q + k + v) or (k + q + v) explains the fused q, k, v better by 161 nats";
    assert!(said.contains(better), "{said}");
}
