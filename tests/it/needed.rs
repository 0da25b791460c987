//! What a checkpoint lacks: tensors that its config promises, that a target's readers cannot do without, and parameters
//! that are tied to others.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::kit::{Folder, Tensor, Tensors, mapping, of_shapes, read, xorshift};

const WIDTH: u64 = 60;
const HEADS: u64 = 6;
const GROUPS: u64 = 2;
const HEAD: u64 = 10;
const INNER: u64 = 71;
const WORDS: u64 = 101;

/// Random values of both signs.
pub(crate) fn random(shape: &[u64], next: &mut impl FnMut() -> u64) -> Tensor {
    let count = shape.iter().product::<u64>();
    Tensor::f32(shape, (0..count).map(|_| (next() >> 40) as f32 / (1 << 23) as f32 - 1.0))
}

/// A Llama of one layer in Hugging Face's names, without an output layer.
pub(crate) fn llama() -> Tensors {
    let mut next = xorshift();
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let shapes: Vec<(String, Vec<u64>)> = vec![
        ("model.embed_tokens.weight".into(), vec![WORDS, WIDTH]),
        ("model.norm.weight".into(), vec![WIDTH]),
        (layer("input_layernorm"), vec![WIDTH]),
        (layer("post_attention_layernorm"), vec![WIDTH]),
        (layer("self_attn.q_proj"), vec![HEADS * HEAD, WIDTH]),
        (layer("self_attn.k_proj"), vec![GROUPS * HEAD, WIDTH]),
        (layer("self_attn.v_proj"), vec![GROUPS * HEAD, WIDTH]),
        (layer("self_attn.o_proj"), vec![WIDTH, HEADS * HEAD]),
        (layer("mlp.gate_proj"), vec![INNER, WIDTH]),
        (layer("mlp.up_proj"), vec![INNER, WIDTH]),
        (layer("mlp.down_proj"), vec![WIDTH, INNER]),
    ];
    shapes.into_iter().map(|(name, shape)| (name, random(&shape, &mut next))).collect()
}

/// Its config, with these entries too.
pub(crate) fn config(more: &Value) -> String {
    let mut config = json!({
        "model_type": "llama", "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": HEAD,
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 1, "vocab_size": WORDS,
    });
    let more = more.as_object().expect("an object").clone();
    config.as_object_mut().expect("an object").extend(more);
    config.to_string()
}

fn folder(tensors: &Tensors, more: &Value) -> Folder {
    let folder = Folder::new();
    folder.tensors("in.safetensors", tensors);
    folder.put("config.json", config(more));
    folder
}

#[test]
fn a_target_that_needs_the_output_layer_gets_a_copy_of_the_embedding() {
    let folder = folder(&llama(), &json!({ "tie_word_embeddings": true }));
    let embedding = llama()["model.embed_tokens.weight"].clone();
    let turned = Tensor::f32(
        &[WIDTH, WORDS],
        (0..WIDTH * WORDS).map(|at| embedding.values()[(at % WORDS * WIDTH + at / WORDS) as usize]),
    );
    let targets = [
        ("litgpt", "lm_head.weight", &embedding),
        ("meta", "output.weight", &embedding),
        ("mistral-consolidated", "output.weight", &embedding),
        ("transformer-lens", "unembed.W_U", &turned),
        ("hf-flax", "lm_head/kernel", &turned),
    ];
    for (target, name, wanted) in targets {
        for dtype in [&[][..], &["--dtype", "bf16"]] {
            let mut more = vec!["--force"];
            more.extend(dtype);
            let run = folder.convert("llama/hf", &format!("llama/{target}"), &more).ok();
            assert!(!run.stderr.contains("bind/tied"), "the config says it: {}", run.stderr);
            let written = read(&folder.join("out.safetensors"));
            assert_eq!(written[name].shape, wanted.shape, "{target}");
            if dtype.is_empty() {
                assert_eq!(&written[name], wanted, "{target}");
            }
            let mut verify = vec!["verify", "--from", "llama/hf", "--to"];
            let to = format!("llama/{target}");
            verify.extend([to.as_str(), "in.safetensors", "out.safetensors"]);
            verify.extend(dtype);
            folder.run(&verify).ok();
        }
    }
    // llama.cpp takes the embedding where `output.weight` is missing; so does Hugging Face.
    for (target, name) in [("gguf", "output.weight"), ("mlx", "lm_head.weight")] {
        folder.convert("llama/hf", &format!("llama/{target}"), &["--force"]).ok();
        assert!(!read(&folder.join("out.safetensors")).contains_key(name), "{target}");
    }
}

#[test]
fn an_output_layer_that_the_config_promises_must_be_there() {
    for (more, says) in [
        (json!({ "tie_word_embeddings": false }), "config.json `tie_word_embeddings` is false"),
        // transformers' default for this model.
        (json!({}), "`tie_word_embeddings` is missing in config.json"),
    ] {
        let folder = folder(&llama(), &more);
        for target in ["litgpt", "gguf", "meta", "hf"] {
            let run = folder.convert("llama/hf", &format!("llama/{target}"), &[]);
            run.fails(&["bind/missing", says, "lm_head.weight"]);
            assert!(!folder.join("out.safetensors").exists());
        }
    }
    // Nobody knows what another model takes where its config says nothing.
    let folder = folder(&llama(), &json!({ "model_type": "my-own" }));
    folder.convert("llama/hf", "llama/gguf", &[]).ok();
}

#[test]
fn a_copy_that_no_config_tells_of_is_told() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &llama());
    let sizes = ["--axis", "h=6", "--axis", "g=2", "--force"];
    let run = folder.convert("llama/hf", "llama/litgpt", &sizes).ok();
    assert!(run.stderr.contains("bind/tied"), "{}", run.stderr);
    // An output layer that the user leaves out is none that is tied.
    let mut untied = llama();
    untied.insert("lm_head.weight".into(), Tensor::index(&[WORDS, WIDTH], 7));
    folder.tensors("in.safetensors", &untied);
    let mut more = sizes.to_vec();
    more.extend(["--drop", "lm_head.weight"]);
    folder.convert("llama/hf", "llama/litgpt", &more).fails(&["`head.weight` is missing", "litgpt"]);
}

#[test]
fn a_base_model_has_no_output_layer_to_copy() {
    let base: Tensors = llama()
        .into_iter()
        .map(|(name, tensor)| (name.trim_start_matches("model.").to_owned(), tensor))
        .collect();
    let folder = folder(&base, &json!({ "tie_word_embeddings": true }));
    folder.convert("llama/hf-base", "llama/meta", &[]).fails(&["`head.weight` is missing", "meta"]);
    folder.convert("llama/hf-base", "llama/gguf", &[]).ok();
}

#[test]
fn the_way_back_demands_that_the_two_are_equal() {
    let folder = folder(&llama(), &json!({ "tie_word_embeddings": true }));
    folder.convert("llama/hf", "llama/litgpt", &[]).ok();
    let mut tensors = read(&folder.join("out.safetensors"));
    std::fs::remove_file(folder.join("out.safetensors")).expect("was there");
    folder.tensors("in.safetensors", &tensors);
    folder.convert("llama/litgpt", "llama/hf-base", &[]).ok();
    let back = read(&folder.join("out.safetensors"));
    assert_eq!(back["embed_tokens.weight"], llama()["model.embed_tokens.weight"]);
    assert_eq!(back.len(), llama().len());
    std::fs::remove_file(folder.join("out.safetensors")).expect("was there");
    tensors.insert("lm_head.weight".into(), Tensor::index(&[WORDS, WIDTH], 7));
    folder.tensors("in.safetensors", &tensors);
    folder.convert("llama/litgpt", "llama/hf-base", &[]).fails(&["lm_head.weight", "differ"]);
}

/// Zeros that the source repeats for every query head of a group are left out once, and only where all are zeros.
#[test]
fn repeated_zeros_are_left_out() {
    let folder = folder(&llama(), &json!({ "tie_word_embeddings": true }));
    folder.convert("llama/hf", "llama/transformer-lens-mha", &[]).ok();
    let mut tensors = read(&folder.join("out.safetensors"));
    std::fs::remove_file(folder.join("out.safetensors")).expect("was there");
    let groups = ["--axis", "g=2"];
    let bias = "blocks.0.attn.b_K".to_owned();
    assert_eq!(tensors[&bias], Tensor::f32(&[HEADS, HEAD], (0..HEADS * HEAD).map(|_| 0.0)));
    folder.tensors("in.safetensors", &tensors);
    folder.convert("llama/transformer-lens-mha", "llama/hf", &groups).ok();
    let mut back = read(&folder.join("out.safetensors"));
    std::fs::remove_file(folder.join("out.safetensors")).expect("was there");
    assert_eq!(back.remove("lm_head.weight"), Some(llama()["model.embed_tokens.weight"].clone()));
    assert_eq!(back, llama());

    // A value in the copy of the last head alone, and the same in all copies of a group.
    let faults = [(5, "copies of one parameter inside a tensor differ"), (3, "must be zeros")];
    for (first, wanted) in faults {
        let value = |at: u64| if at / HEAD >= first && at % HEAD == 7 { 0.5 } else { 0.0 };
        tensors.insert(bias.clone(), Tensor::f32(&[HEADS, HEAD], (0..HEADS * HEAD).map(value)));
        folder.tensors("in.safetensors", &tensors);
        let run = folder.convert("llama/transformer-lens-mha", "llama/hf", &groups);
        run.fails(&["blocks.0.attn.b_K", wanted]);
    }
}

fn needing(rule: Value) -> (Value, Value, Value) {
    (
        json!({ "l": "layers", "d": "rows", "e": "width" }),
        json!({ "w": "l d e", "b": { "axes": "l d", "optional": true, "absent": "zeros" },
                "p": { "axes": "d e", "optional": true }, "x": { "axes": "l d e", "optional": true } }),
        json!({
            "a": { "tensors": { "{l}.w": "w: d e", "{l}.b": "b: d", "p": "p: d e", "{l}.x": "x: d e" } },
            "b": { "tensors": { "layer.{l}.w": "w: d e", "layer.{l}.b": { "is": "b: d", "needed": "x" }, "layer.{l}.x": "x: d e",
                                "proj": rule } },
        }),
    )
}

#[test]
fn zeros_stand_beside_the_tensor_that_needs_them() {
    let folder = Folder::new();
    let (axes, params, layouts) = needing(json!("p: d e"));
    folder.put("m.json", mapping("m", axes, params, layouts));
    let tensors = of_shapes(&[("0.w", &[3, 4]), ("1.w", &[3, 4]), ("1.x", &[3, 4])]);
    // Layers differ: only the second has `x`.
    let (axes, mut params, layouts) = needing(json!("p: d e"));
    params["x"]["sparse"] = "l".into();
    params["b"]["sparse"] = "l".into();
    folder.put("m.json", mapping("m", axes, params, layouts));
    folder.tensors("in.safetensors", &tensors);
    folder.convert("m/a", "m/b", &["--mapping", "m.json"]).ok();
    let written = read(&folder.join("out.safetensors"));
    assert_eq!(written["layer.1.b"].values(), vec![0.0; 3]);
    assert!(!written.contains_key("layer.0.b") && written.len() == 4);
    folder.run(&["mapping", "check", "m.json"]).ok();
}

#[test]
fn what_a_target_needs_and_nothing_stands_for_is_refused() {
    let folder = Folder::new();
    let (axes, params, layouts) = needing(json!({ "is": "p: d e", "needed": true }));
    folder.put("m.json", mapping("m", axes, params, layouts));
    folder.tensors("in.safetensors", &of_shapes(&[("0.w", &[3, 4])]));
    folder
        .convert("m/a", "m/b", &["--mapping", "m.json"])
        .fails(&["`p` is missing, and readers of the layout `b` cannot do without it", "proj"]);
    folder.tensors("in.safetensors", &of_shapes(&[("layer.0.w", &[3, 4])]));
    folder.convert("m/b", "m/a", &["--mapping", "m.json"]).fails(&["`p` is missing", "proj"]);
    folder.tensors("in.safetensors", &of_shapes(&[("0.w", &[3, 4]), ("p", &[3, 4])]));
    folder.convert("m/a", "m/b", &["--mapping", "m.json"]).ok();
    folder.run(&["mapping", "check", "m.json"]).ok();
}

#[test]
fn ties_in_a_mapping_are_checked() {
    let folder = Folder::new();
    let check = |params: Value| {
        let layouts = json!({ "a": { "tensors": { "t": "t: v e", "h": "h: v e" } } });
        folder.put("m.json", mapping("m", json!({ "v": "words", "e": "width" }), params, layouts));
        folder.run(&["mapping", "check", "m.json"])
    };
    let tied = |to: &str| json!({ "t": "v e", "h": { "axes": "v e", "optional": true, "tied": to } });
    check(tied("t")).ok();
    check(tied("tok")).fails(&["mapping/tied", "cannot be tied to `tok`"]);
    check(tied("h")).fails(&["mapping/tied"]);
    let mut turned = tied("t");
    turned["h"]["axes"] = "e v".into();
    check(turned).fails(&["mapping/tied", "`v e`"]);
}

/// The same weights as somebody else's conversion to bf16 has them: rounded to nearest even.
fn rounded(tensor: &Tensor) -> Tensor {
    let values = tensor.values();
    let bytes = values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect();
    Tensor::new("BF16", &tensor.shape, bytes)
}

fn litgpt() -> Tensors {
    let source = llama();
    let of = |name: &str| source[&format!("model.layers.0.{name}.weight")].clone();
    let rows = |names: [&str; 3]| {
        let parts = names.map(|name| of(&format!("self_attn.{name}_proj")));
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes.clone()).collect();
        Tensor::new("F32", &[(HEADS + 2 * GROUPS) * HEAD, WIDTH], bytes)
    };
    let embedding = &source["model.embed_tokens.weight"];
    let layer = |name: &str| format!("transformer.h.0.{name}.weight");
    BTreeMap::from([
        ("transformer.wte.weight".to_owned(), embedding.clone()),
        ("lm_head.weight".to_owned(), embedding.clone()),
        ("transformer.ln_f.weight".to_owned(), source["model.norm.weight"].clone()),
        (layer("norm_1"), of("input_layernorm")),
        (layer("norm_2"), of("post_attention_layernorm")),
        (layer("attn.qkv"), rows(["q", "k", "v"])),
        (layer("attn.proj"), of("self_attn.o_proj")),
        (layer("mlp.fc_1"), of("mlp.gate_proj")),
        (layer("mlp.fc_2"), of("mlp.up_proj")),
        (layer("mlp.proj"), of("mlp.down_proj")),
    ])
}

#[test]
fn a_cast_of_what_stands_twice_verifies() {
    let folder = folder(&llama(), &json!({ "tie_word_embeddings": true }));
    let cast: Tensors = litgpt().iter().map(|(name, tensor)| (name.clone(), rounded(tensor))).collect();
    folder.tensors("cast.safetensors", &cast);
    folder.tensors("plain.safetensors", &litgpt());
    let verify = |target: &str, more: &[&str]| {
        let mut args =
            vec!["verify", "--from", "llama/hf", "--to", "llama/litgpt-tied", "in.safetensors", target];
        args.extend(more);
        folder.run(&args)
    };
    verify("cast.safetensors", &["--dtype", "bf16"]).ok();
    verify("plain.safetensors", &[]).ok();
    folder.convert("llama/hf", "llama/litgpt-tied", &["--dtype", "bf16"]).ok();
    assert_eq!(read(&folder.join("out.safetensors")), cast);
    // The type says what is wrong; heads have nothing to do with it.
    let other = verify("cast.safetensors", &[]);
    assert_eq!(other.code, 3, "{}", other.stderr);
    assert!(other.stderr.contains("--dtype bf16") && !other.stderr.contains("heads"), "{}", other.stderr);
    // One bit in one of the two: what should be there is the rounded value.
    let mut wrong = cast.clone();
    let copy = wrong.get_mut("lm_head.weight").expect("is there");
    copy.bytes[7] ^= 1;
    let wanted = u16::from_le_bytes([cast["lm_head.weight"].bytes[6], cast["lm_head.weight"].bytes[7]]);
    folder.tensors("wrong.safetensors", &wrong);
    let run = verify("wrong.safetensors", &["--dtype", "bf16"]);
    assert_eq!(run.code, 3);
    assert!(run.stderr.contains(&format!("expected: {wanted:#x} (")), "{}", run.stderr);
}

#[test]
fn the_config_beside_the_target_says_the_same() {
    let folder = folder(&llama(), &json!({ "tie_word_embeddings": true }));
    std::fs::create_dir(folder.join("out")).expect("writable");
    let mut tensors = llama();
    // A buffer that the layout's readers ignore is no difference.
    let buffer = "model.layers.0.self_attn.rotary_emb.inv_freq";
    tensors.insert(buffer.into(), Tensor::index(&[HEAD / 2], 3));
    folder.tensors("out/model.safetensors", &tensors);
    let verify =
        || folder.run(&["verify", "--from", "llama/hf", "--to", "llama/hf", "in.safetensors", "out"]);
    verify().ok();
    folder.put("out/config.json", config(&json!({ "tie_word_embeddings": true })));
    verify().ok();
    folder.put("out/config.json", config(&json!({ "num_attention_heads": 12 })));
    let run = verify();
    assert_eq!(run.code, 3, "{}", run.stderr);
    for text in ["`num_attention_heads` = 6", "`num_attention_heads` = 12"] {
        assert!(run.stderr.contains(text), "{}", run.stderr);
    }
}

#[test]
fn eight_bit_weights_with_scales_are_not_cast() {
    let folder = Folder::new();
    let (axes, params) = (json!({ "d": "rows", "e": "width" }), json!({ "w": "d e" }));
    let text = |unmapped: &str| {
        json!({ "format": 1, "family": "m", "unmapped": unmapped, "axes": axes, "params": params,
                "layouts": { "a": { "tensors": { "w.weight": "w: d e" } }, "b": { "tensors": { "x.weight": "w: e d" } } } })
        .to_string()
    };
    folder.put("m.json", text("keep"));
    let weight = Tensor::new("F8_E4M3", &[3, 4], (0..12).collect());
    let convert = |beside: Option<&str>| {
        let mut tensors = Tensors::from([("w.weight".to_owned(), weight.clone())]);
        tensors.extend(beside.map(|name| (name.to_owned(), Tensor::index(&[1], 1))));
        folder.tensors("in.safetensors", &tensors);
        folder.convert("m/a", "m/b", &["--mapping", "m.json", "--dtype", "bf16", "--force"])
    };
    for scale in ["w.weight_scale_inv", "w.weight_scale", "w.scale"] {
        convert(Some(scale)).fails(&["bind/scaled-cast", scale, "dequantise"]);
    }
    let run = convert(None).ok();
    assert!(run.stderr.contains("F8_E4M3 stays as it is"), "{}", run.stderr);
    assert_eq!(read(&folder.join("out.safetensors"))["x.weight"].dtype, "F8_E4M3");
}

#[test]
fn scaled_rotary_frequencies_go_into_a_gguf() {
    let scaling = json!({ "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 16 });
    // The oldest form has `type`, and the base beside it.
    let mut old = scaling.clone();
    let old_entries = old.as_object_mut().expect("an object");
    old_entries.remove("rope_type");
    old_entries.remove("rope_theta");
    old_entries.insert("type".into(), "llama3".into());
    let tied = |more: Value| {
        let mut all = json!({ "tie_word_embeddings": true });
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        all
    };
    // Waves of 6.3, 39.6, 250, 1577 and 9950 positions: one short, all others longer than the 16 that were trained.
    for more in [json!({ "rope_parameters": scaling }), json!({ "rope_scaling": old, "rope_theta": 10000.0 })]
    {
        for dtype in [&[][..], &["--dtype", "bf16"]] {
            let folder = folder(&llama(), &tied(more.clone()));
            folder.convert("llama/hf", "llama/gguf", dtype).ok();
            let written = read(&folder.join("out.safetensors"));
            let factors = &written["rope_freqs.weight"];
            assert_eq!((factors.dtype.as_str(), &factors.shape), ("F32", &vec![HEAD / 2]));
            let found = factors.values();
            assert_eq!(&found[1..], &[8.0; 4]);
            // 16 / 6.283 lies between 1 and 4: smooth is 0.515494.
            assert!((found[0] - 1.0 / ((1.0 - 0.515_494) / 8.0 + 0.515_494)).abs() < 1e-4, "{found:?}");
            let mut verify = vec![
                "verify",
                "--from",
                "llama/hf",
                "--to",
                "llama/gguf",
                "in.safetensors",
                "out.safetensors",
            ];
            verify.extend(dtype);
            folder.run(&verify).ok();
            let mut wrong = written.clone();
            wrong.get_mut("rope_freqs.weight").expect("is there").bytes[5] ^= 1;
            folder.tensors("out.safetensors", &wrong);
            let run = folder.run(&verify);
            assert_eq!(run.code, 3, "{}", run.stderr);
            assert!(run.stderr.contains("rope_freqs.weight"), "{}", run.stderr);
            // From GGUF to GGUF they go along; elsewhere the config says it.
            folder.tensors("in.safetensors", &written);
            folder.put("config.json", "{}");
            let sizes = ["--axis", "h=6", "--axis", "g=2", "--force"];
            folder.convert("llama/gguf", "llama/gguf", &sizes).ok();
            assert_eq!(read(&folder.join("out.safetensors"))["rope_freqs.weight"], *factors);
            folder.convert("llama/gguf", "llama/hf", &sizes).ok();
            assert!(!read(&folder.join("out.safetensors")).contains_key("rope_freqs.weight"));
        }
    }
    let folder = folder(
        &llama(),
        &tied(json!({ "rope_scaling": { "type": "longrope", "long_factor": [1, 2, 3, 4, 5.5],
                                                                  "short_factor": [1, 1, 1, 1, 1] } })),
    );
    folder.convert("llama/hf", "llama/gguf", &[]).ok();
    let written = read(&folder.join("out.safetensors"));
    assert_eq!(written["rope_factors_long.weight"].values(), [1.0, 2.0, 3.0, 4.0, 5.5]);
    assert_eq!(written["rope_factors_short.weight"].values(), [1.0; 5]);
    assert!(!written.contains_key("rope_freqs.weight"));
    // What is missing is named.
    std::fs::remove_file(folder.join("out.safetensors")).expect("was there");
    let short = json!({ "rope_scaling": { "type": "longrope", "long_factor": [1, 2], "short_factor": [1, 1, 1, 1, 1] } });
    folder.put("config.json", config(&tied(short)));
    folder.convert("llama/hf", "llama/gguf", &[]).fails(&[
        "rope_scaling.long_factor",
        "5 numbers",
        "2 numbers",
    ]);
    folder.put(
        "config.json",
        config(&tied(json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0 } }))),
    );
    folder.convert("llama/hf", "llama/gguf", &[]).fails(&["lacks `"]);
    // Other layouts need none of it.
    folder.convert("llama/hf", "llama/meta", &[]).ok();
}

/// A family's model with other entries in its config and without some of its tensors.
fn model(name: &str, more: &Value, without: &[&str]) -> Folder {
    let folder = Folder::new();
    let (_, text) =
        crate::families::model_files().into_iter().find(|(file, _)| file == name).expect("a model");
    let model: Value = serde_json::from_str(&text).expect("JSON");
    let tensors = model["tensors"].as_object().expect("tensors").iter();
    let kept = tensors.filter(|(key, _)| !without.contains(&key.as_str()));
    let mut next = xorshift();
    let tensors: Tensors = kept
        .map(|(key, meta)| {
            let shape: Vec<u64> = serde_json::from_value(meta["shape"].clone()).expect("a shape");
            (key.clone(), random(&shape, &mut next))
        })
        .collect();
    folder.tensors("in.safetensors", &tensors);
    let mut config = model["config"].clone();
    config.as_object_mut().expect("a config").extend(more.as_object().expect("an object").clone());
    folder.put("config.json", config.to_string());
    folder
}

/// The class that saved a model says whether it has an output layer of its own: a bare T5Model has none.
#[test]
fn an_output_layer_is_missing_where_the_class_has_one() {
    let class =
        |name: &str| json!({ "model_type": "t5", "architectures": [name], "tie_word_embeddings": false });
    for target in ["hf-flax", "t5x", "hf"] {
        let folder = model("t5", &class("T5ForConditionalGeneration"), &["lm_head.weight"]);
        folder
            .convert("t5/hf", &format!("t5/{target}"), &[])
            .fails(&["`head.weight` is missing", "lm_head.weight"]);
        let folder = model("t5", &class("T5Model"), &["lm_head.weight"]);
        folder.convert("t5/hf", &format!("t5/{target}"), &[]).ok();
    }
}

/// A GPT-NeoX that ties its output layer stores none; Hugging Face reads it, and LitGPT does not.
#[test]
fn a_tied_gpt_neox_is_whole() {
    let tied = json!({ "tie_word_embeddings": true });
    let folder = model("gpt-neox", &tied, &["embed_out.weight"]);
    folder.convert("gpt-neox/hf", "gpt-neox/hf", &[]).ok();
    assert!(!read(&folder.join("out.safetensors")).contains_key("embed_out.weight"));
    for (target, name) in [("litgpt", "lm_head.weight"), ("gguf", "output.weight")] {
        folder.convert("gpt-neox/hf", &format!("gpt-neox/{target}"), &["--force"]).ok();
        let source = read(&folder.join("in.safetensors"));
        assert_eq!(
            read(&folder.join("out.safetensors"))[name],
            source["gpt_neox.embed_in.weight"],
            "{target}"
        );
    }
    let untied = json!({ "tie_word_embeddings": false });
    let folder = model("gpt-neox", &untied, &["embed_out.weight"]);
    folder
        .convert("gpt-neox/hf", "gpt-neox/litgpt", &[])
        .fails(&["`head.weight` is missing", "embed_out.weight"]);
}

/// A decoder alone has its embedding under the decoder: its class reads no `model.shared.weight`.
#[test]
fn a_decoder_alone_keeps_its_embedding_where_it_is_read() {
    let text =
        std::fs::read_to_string(crate::kit::root().join("tests/families/bart.json")).expect("readable");
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    let names: Vec<&str> =
        whole["tensors"].as_object().expect("tensors").keys().map(String::as_str).collect();
    let others: Vec<&str> = names.into_iter().filter(|name| !name.starts_with("model.decoder.")).collect();
    let folder = model("bart", &json!({ "is_encoder_decoder": false }), &others);
    let mut tensors = read(&folder.join("in.safetensors"));
    let width = tensors["model.decoder.layernorm_embedding.weight"].shape[0];
    let mut next = xorshift();
    tensors.insert("model.decoder.embed_tokens.weight".into(), random(&[61, width], &mut next));
    folder.tensors("in.safetensors", &tensors);
    folder.convert("bart/hf", "bart/hf", &[]).ok();
    assert_eq!(read(&folder.join("out.safetensors")), tensors);
    // TrOCR's config does not say that it is a decoder alone; its class does.
    let config = std::fs::read_to_string(folder.join("config.json")).expect("readable");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["model_type"] = "trocr".into();
    config.as_object_mut().expect("an object").remove("is_encoder_decoder");
    folder.put("config.json", config.to_string());
    folder.convert("bart/hf-trocr", "bart/hf-trocr", &["--force"]).ok();
    assert_eq!(read(&folder.join("out.safetensors")), tensors);
}
