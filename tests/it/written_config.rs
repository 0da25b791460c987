//! The config that is written for the target's framework: what a GGUF file says of itself, and what a config says beside sizes.

use std::path::Path;

use serde_json::{Value, json};

use crate::kit::{Folder, Tensor, Tensors, mapping, root};

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("readable")).expect("JSON")
}

/// What llama.cpp's converter wrote of a model is what transformers wrote of it.
#[test]
fn a_gguf_file_gets_the_config_of_its_target() {
    let folder = Folder::new();
    let pair = root().join("tests/oracles/19_hf_llama_to_gguf");
    let source = pair.join("dst/model.gguf");
    let source = source.to_str().expect("text");
    let run = folder.run(&["--from", "llama/gguf", "--to", "llama/hf", source, "out/"]).ok();
    let (written, theirs) =
        (json_of(&folder.join("out/config.json")), json_of(&pair.join("src/config.json")));
    let same = [
        "architectures",
        "bos_token_id",
        "eos_token_id",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "model_type",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "tie_word_embeddings",
        "vocab_size",
    ];
    for key in same {
        assert_eq!(written[key], theirs[key], "{key}");
    }
    assert_eq!(written["rope_theta"].as_f64(), theirs["rope_parameters"]["rope_theta"].as_f64());
    // The width over the heads is what its reader takes by itself.
    assert_eq!(written.as_object().map(|entries| entries.len()), Some(same.len() + 1), "{written}");
    assert!(!run.stderr.contains("not told"), "{}", run.stderr);

    // GGUF's own metadata is no file beside it.
    folder.run(&["--from", "llama/hf", "--to", "llama/gguf", "out", "back/"]).ok();
    assert_eq!(json_of(&folder.join("back/config.json")), written);
}

fn family() -> String {
    let settings = |prefix: &str, more: Value| {
        let mut all = json!({
            "epsilon": format!("{prefix}eps"),
            "base": { "keys": [format!("{prefix}theta")], "absent": 10000.5 },
            "steps": { "keys": format!("{prefix}steps"), "absent": 8 },
        });
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        all
    };
    mapping(
        "pair",
        json!({ "d": "rows", "e": "width" }),
        json!({ "q": "d e", "b": { "axes": "d", "optional": true }, "t": { "axes": "d e", "optional": true } }),
        json!({
            "ours": {
                "tensors": { "q": "q: d e", "b": "b: d", "t": "t: d e" },
                "config": { "d": "rows", "e": "width" },
                "settings": settings("", json!({
                    "kind": { "keys": "kind", "usual": "plain" },
                    "again": { "keys": "same_as_rows", "size": "d" },
                    "window": "window"
                }))
            },
            "theirs": {
                "tensors": { "Q": "q: e d", "B": "b: d", "T": "t: e d" },
                "config": { "d": "n.rows", "e": "dim" },
                "config_file": "params.json",
                "settings": settings("their.", json!({
                    "kind": { "keys": "their.kind", "absent": null },
                    "name": { "keys": ["model_type"], "is": "theirs" },
                    "biased": { "keys": "bias", "holds": "b" },
                    "tied": { "keys": "tie", "lacks": "t" },
                    "size": { "keys": "rows_again", "size": "d" },
                    "scale": "scale"
                }))
            }
        }),
    )
}

fn written(config: &Value) -> (Value, String) {
    let folder = Folder::new();
    folder.put("family.json", family());
    std::fs::create_dir(folder.join("src")).expect("a folder");
    let tensors = Tensors::from([
        ("q".to_owned(), Tensor::index(&[5, 7], 0)),
        ("b".to_owned(), Tensor::index(&[5], 40)),
    ]);
    folder.tensors("src/model.safetensors", &tensors);
    folder.put("src/config.json", config.to_string());
    let args = ["--mapping", "family.json", "--from", "ours", "--to", "theirs", "src", "out"];
    let run = folder.run(&args).ok();
    (json_of(&folder.join("out/params.json")), run.stderr)
}

#[test]
fn what_a_config_says_beside_sizes_is_carried() {
    let told = json!({ "rows": 5, "width": 7, "eps": 1e-5, "theta": 500000.0, "steps": 6.0, "kind": "plain", "same_as_rows": 5 });
    let (config, said) = written(&told);
    let same = json!({ "model_type": "theirs", "bias": true, "tie": true, "rows_again": 5, "n": { "rows": 5 }, "dim": 7 });
    let with = |their: Value| {
        let mut all = same.clone();
        all["their"] = their;
        all
    };
    // A whole number where the framework takes one.
    assert_eq!(config, with(json!({ "eps": 1e-5, "theta": 500000.0, "steps": 6 })));
    assert!(said.contains("not told: `scale` (scale) of params.json\n"), "{said}");

    // What the source's framework takes where its config says nothing; what the target has no word for is told.
    let odd = json!({ "rows": 5, "width": 7, "kind": "ring", "same_as_rows": 4, "window": 3, "other": 1 });
    let (config, said) = written(&odd);
    assert_eq!(config, with(json!({ "theta": 10000.5, "steps": 8, "kind": "ring" })));
    let missing =
        ["`eps` (epsilon)", "`scale` (scale)", "`same_as_rows` of config.json", "`window` of", "`other` of"];
    let missing = missing.map(|name| {
        if name.starts_with("`eps`") { name.replace("`eps`", "`their.eps`") } else { name.to_owned() }
    });
    for name in missing {
        assert!(said.contains(&name), "{name}: {said}");
    }
}

#[test]
fn settings_name_what_is_declared() {
    let folder = Folder::new();
    let check = |setting: Value| {
        let layouts = json!({ "a": { "tensors": { "q": "q: d" }, "settings": { "s": setting } } });
        folder.put("m.json", mapping("m", json!({ "d": "rows" }), json!({ "q": "d" }), layouts));
        folder.run(&["mapping", "check", "m.json"])
    };
    check(json!({ "keys": "s", "size": "d" })).ok();
    check(json!({ "keys": "s", "size": "x" })).fails(&["mapping/setting", "`x` is no axis"]);
    check(json!({ "keys": "s", "holds": "p" })).fails(&["mapping/setting", "`p` is no parameter"]);
    check(json!({ "keys": "s", "lacks": "p" })).fails(&["mapping/setting", "`p` is no parameter"]);
    check(json!({ "keys": "s", "is": 1, "size": "d" })).fails(&["mapping/setting", "two places"]);
    check(json!({ "size": "d" })).fails(&["keys"]);
}

/// A module family knows a few entries of a model's config; the others stay.
#[test]
fn what_the_mapping_has_no_word_for_stays_under_its_name() {
    let folder = Folder::new();
    folder.put(
        "family.json",
        mapping(
            "pair",
            json!({ "d": "rows", "e": "width" }),
            json!({ "q": "d e" }),
            json!({
                "ours": {
                    "tensors": { "q": "q: d e" },
                    "part": ["text_config", "."],
                    "config": { "d": "rows", "e": "width" },
                    "settings": { "epsilon": "eps", "window": "window" }
                },
                "theirs": {
                    "tensors": { "Q": "q: e d" },
                    "config": { "d": "n.rows", "e": "width" },
                    "settings": { "epsilon": "norm.eps" }
                }
            }),
        ),
    );
    std::fs::create_dir(folder.join("src")).expect("a folder");
    folder.tensors("src/model.safetensors", &Tensors::from([("q".to_owned(), Tensor::index(&[5, 7], 0))]));
    let convert = |config: Value| {
        folder.put("src/config.json", config.to_string());
        let args = ["--mapping", "family.json", "--from", "ours", "--to", "theirs", "--force", "src", "out"];
        let said = folder.run(&args).ok().stderr;
        assert!(!said.contains("not told"), "{said}");
        (json_of(&folder.join("out/config.json")), said)
    };
    let flat = json!({ "model_type": "mine", "rows": 5, "width": 7, "eps": 1e-5, "window": 3, "n": { "layers": 2 } });
    let (config, said) = convert(flat);
    let wanted = json!({
        "model_type": "mine", "n": { "rows": 5, "layers": 2 }, "width": 7, "norm": { "eps": 1e-5 }, "window": 3
    });
    assert_eq!(config, wanted);
    assert!(said.contains("config.json keeps as they are: model_type, window\n"), "{said}");
    assert!(said.contains("still says that it is a `mine`"), "{said}");
    let nested = json!({
        "model_type": "outer", "vision": { "rows": 9 },
        "text_config": { "rows": 5, "width": 7, "eps": 1e-5, "act": "gelu" }
    });
    let (config, _) = convert(nested);
    let wanted = json!({
        "model_type": "outer", "vision": { "rows": 9 }, "text_config": { "act": "gelu" },
        "n": { "rows": 5 }, "width": 7, "norm": { "eps": 1e-5 }
    });
    assert_eq!(config, wanted);
}
