//! What belongs to a converted weight and is held by no rule; and rules for some modules of a model alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use qkvconv::bind::{Allow, BindOptions, bind};
use qkvconv::catalog::{Catalog, TensorMeta, row_major};
use qkvconv::detect::{Detection, Question, names_to_try};
use qkvconv::dtype::Dtype;
use qkvconv::format::{OpenOptions, open};
use qkvconv::mapping::{Layout, Mapping, Unmapped, builtin};
use qkvconv::provenance::{Document, Provenance};
use serde_json::{Value, json};

use crate::families::model_files;
use crate::kit::{self, Folder, Run, Tensor, Tensors, read};

/// Two attention modules as `separate` or `llama-hf` stores them: 6 query heads, 2 key/value heads of 4, width 7.
fn attention(path: &str, out: &str) -> Vec<(String, Vec<u64>)> {
    let shapes = [("q_proj", [24, 7]), ("k_proj", [8, 7]), ("v_proj", [8, 7]), (out, [7, 24])];
    let of = |layer: u64| {
        shapes.map(|(name, shape)| (format!("{path}.{layer}.attn.{name}.weight"), shape.to_vec()))
    };
    (0..2).flat_map(of).collect()
}

/// Fills tensors from an xorshift.
fn random(list: Vec<(String, Vec<u64>)>) -> Tensors {
    let mut next = kit::xorshift();
    let mut value = || (next() >> 40) as f32 / 1e6 - 8.0;
    let mut fill = |shape: &[u64]| {
        let count = shape.iter().product::<u64>();
        Tensor::f32(shape, (0..count).map(|_| value()).collect::<Vec<_>>())
    };
    list.into_iter().map(|(key, shape)| (key, fill(&shape))).collect()
}

const SIZES: &[&str] = &["--axis", "h=6", "--axis", "g=2"];

/// Converts these tensors with the family `attention`.
fn convert(tensors: &Tensors, from: &str, to: &str, more: &[&str]) -> (Folder, Run) {
    let folder = Folder::new();
    folder.tensors("in.safetensors", tensors);
    let (from, to) = (format!("attention/{from}"), format!("attention/{to}"));
    let run = folder.convert(&from, &to, &[SIZES, &["--force"], more].concat());
    (folder, run)
}

#[test]
fn what_belongs_to_a_converted_weight_does_not_pass() {
    let attached: &[(&str, &[u64], &str)] = &[
        ("q_proj.weight_scale_inv", &[2, 1], "scales of weights"),
        ("k_proj.weight_scale", &[8, 1], "scales of weights"),
        ("v_proj.input_scale", &[1], "scales of weights"),
        ("q_proj.SCB", &[24], "scales of weights"),
        ("q_proj.weight_zero_point", &[2, 1], "zero points of weights"),
        ("q_proj.weight_packed", &[24, 1], "quantised forms of weights"),
        ("q_proj.weight.quant_state.bitsandbytes__nf4", &[5], "quantised forms of weights"),
        ("q_proj.weight.absmax", &[5], "quantised forms of weights"),
        ("v_proj.g_idx", &[7], "orders or groups of weights' inputs"),
        ("q_proj.weight_mask", &[24, 7], "masks of weights"),
        ("q_proj.lora_A.default.weight", &[3, 7], "adapters of weights"),
        ("q_proj.lora_B.default.weight", &[24, 3], "adapters of weights"),
        ("v_proj.alpha", &[1], "adapters of weights"),
        ("q_proj.weight_orig", &[24, 7], "tensors that weights are computed from"),
        ("q_proj.parametrizations.weight.original0", &[24, 1], "tensors that weights are computed from"),
        ("q_proj.weight.exp_avg", &[24, 7], "an optimizer's state of weights"),
        ("q_bias", &[24], "biases of projections"),
        ("q_proj.rescale.gain", &[24], "other tensors of projections"),
    ];
    for (name, shape, words) in attached {
        let mut list = attention("layers", "out_proj");
        list.extend((0..2).map(|layer| (format!("layers.{layer}.attn.{name}"), shape.to_vec())));
        let tensors = random(list);
        let (folder, run) = convert(&tensors, "separate", "pytorch-fused", &[]);
        assert_eq!(folder.names(), ["in.safetensors"], "{name}");
        let named = format!("layers.{{0..1}}.attn.{name} (2)");
        let run = run.fails(&["bind/left-behind", words, &named, "--allow left-behind", "in_proj_weight"]);
        assert_eq!(run.stderr.matches("error[").count(), 1, "{name}: {}", run.stderr);
        assert!(!run.stderr.contains("--allow unmatched"), "{name}: {}", run.stderr);
        // An optimizer's state alone may be left out without harm.
        assert_eq!(run.stderr.contains("--drop"), name.ends_with("exp_avg"), "{name}: {}", run.stderr);
        // The plan is not made, and what anybody else made of it does not verify.
        folder
            .convert("attention/separate", "attention/pytorch-fused", &[SIZES, &["--dry-run"]].concat())
            .fails(&["bind/left-behind"]);
        folder.tensors("other.safetensors", &tensors);
        let verify = [
            "verify",
            "--from",
            "attention/separate",
            "--to",
            "attention/pytorch-fused",
            "in.safetensors",
            "other.safetensors",
        ];
        folder.run(&[&verify[..], SIZES].concat()).fails(&["bind/left-behind"]);
        // The user's own decision.
        convert(&tensors, "separate", "pytorch-fused", &["--allow", "left-behind"]).1.ok();
        convert(&tensors, "separate", "pytorch-fused", &["--drop", &format!("*{name}")]).1.ok();
    }
}

#[test]
fn names_of_other_formats_are_followed() {
    for (from, to, tensors) in [
        (
            "pytorch-fused",
            "separate",
            &[("a.in_proj_weight", &[40, 7][..]), ("a.in_proj_weight_scale", &[40])][..],
        ),
        ("pytorch-fused", "separate", &[("in_proj_weight", &[40, 7]), ("in_proj_weight_mask", &[40, 7])]),
        (
            "phi3",
            "llama-hf",
            &[
                ("a.qkv_proj.weight", &[40, 7]),
                ("a.o_proj.weight", &[7, 24]),
                ("a.qkv_proj.weight_scale", &[40, 1]),
            ],
        ),
        (
            "timm",
            "separate",
            &[("a.qkv.weight", &[40, 7]), ("a.qkv.bias", &[40]), ("a.qkv.bias_mask", &[40])],
        ),
        (
            "conv1d",
            "separate",
            &[("h.0.attn.c_attn.weight", &[7, 40]), ("h.0.attn.c_attn.weight_scale", &[40])],
        ),
        (
            "flax",
            "separate",
            &[
                ("a/query/kernel", &[7, 6, 4]),
                ("a/key/kernel", &[7, 2, 4]),
                ("a/value/kernel", &[7, 2, 4]),
                ("a/query/kernel_scale", &[6, 4]),
            ],
        ),
        (
            "keras-gqa",
            "llama-hf",
            &[
                ("a/_query_dense/vars/0", &[7, 6, 4]),
                ("a/_key_dense/vars/0", &[7, 2, 4]),
                ("a/_value_dense/vars/0", &[7, 2, 4]),
                ("a/_query_dense/vars/2", &[7, 3]),
            ],
        ),
    ] {
        let tensors =
            random(tensors.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect());
        let (_, run) = convert(&tensors, from, to, &[]);
        run.fails(&["bind/left-behind"]);
    }
}

#[test]
fn what_stays_keeps_what_belongs_to_it() {
    // The output projection is the same tensor in both layouts; the others become one.
    let mut list = attention("layers", "o_proj");
    list.push(("layers.0.attn.o_proj.weight_scale".to_owned(), vec![7, 1]));
    convert(&random(list.clone()), "llama-hf", "phi3", &[]).1.ok();
    // Under another name it does not find its scale.
    convert(&random(list), "llama-hf", "internlm2", &[])
        .1
        .fails(&["bind/left-behind", "is renamed to `layers.*.attn.wo.weight`"]);
}

#[test]
fn a_weight_in_another_form_is_not_skipped() {
    // One layer is quantised, the other is not: to convert that one alone would be silent about the rest.
    let mut tensors = random(attention("layers", "out_proj"));
    for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
        let stored = tensors.remove(&format!("layers.1.attn.{name}.weight")).expect("there");
        tensors.insert(format!("layers.1.attn.{name}.qweight"), stored);
    }
    let (_, run) = convert(&tensors, "separate", "pytorch-fused", &["--allow", "index-gap"]);
    run.fails(&["bind/left-behind", "layers.1.attn.q_proj.qweight", "is not there in itself", "dequantise"]);
    // Where the module is half there, the missing part says what it is stored as.
    let stored = tensors.remove("layers.0.attn.k_proj.weight").expect("there");
    tensors.insert("layers.0.attn.k_proj.qweight".to_owned(), stored);
    let (_, run) = convert(&tensors, "separate", "pytorch-fused", &[]);
    let run = run.fails(&["bind/missing", "k_proj.qweight` is there", "dequantise"]);
    assert!(!run.stderr.contains("--allow missing"), "{}", run.stderr);
}

#[test]
fn norms_of_heads_follow_their_order() {
    let with = |extra: &[(&str, &[u64])]| {
        let mut list = attention("layers", "o_proj");
        list.extend(extra.iter().map(|(name, shape)| (format!("layers.0.{name}"), shape.to_vec())));
        random(list)
    };
    let turned: &[(&str, &[u64])] = &[
        ("attn.q_norm.weight", &[4]),
        ("attn.k_layernorm.weight", &[4]),
        ("attn.norm.query_norm.scale", &[4]),
        ("attn.q_norm.weight", &[24]),
        ("attn.pos_bias_u", &[6, 4]),
        ("attn.relative_key_table", &[9, 4]),
    ];
    for (name, shape) in turned {
        let tensors = with(&[(name, shape)]);
        let (_, run) = convert(&tensors, "llama-hf", "llama-meta", &["--axis", "f=2"]);
        run.fails(&["bind/left-behind", name, "the 4 elements along `d`", "--allow left-behind"]);
        // Without another order within the heads they stay right.
        convert(&tensors, "llama-hf", "phi3", &[]).1.ok();
    }
    let still: &[(&str, &[u64])] = &[
        ("attn.rotary_emb.inv_freq", &[2]),
        ("attn.rotary_emb.cos_cached", &[9, 4]),
        ("attn.v_norm.weight", &[4]),
        ("attn.inner_attn_ln.weight", &[24]),
        ("attn.bias", &[1, 1, 9, 9]),
        ("input_layernorm.weight", &[7]),
        ("mlp.gate_proj.weight", &[11, 7]),
    ];
    convert(&with(still), "llama-hf", "llama-meta", &["--axis", "f=2"]).1.ok();
}

#[test]
fn an_unmatched_tensor_that_belongs_to_a_weight_is_not_to_be_passed_through() {
    let folder = Folder::new();
    let shapes: &[(&str, &[u64])] = &[
        ("model.embed_tokens.weight", &[11, 8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.q_proj.weight_scale_inv", &[1, 1]),
        ("model.layers.0.self_attn.q_proj.g_idx", &[8]),
        ("model.layers.0.mlp.gate_proj.weight", &[12, 8]),
        ("model.layers.0.mlp.up_proj.weight", &[12, 8]),
        ("model.layers.0.mlp.down_proj.weight", &[8, 12]),
        ("model.layers.0.mlp.down_proj.weight_mask", &[8, 12]),
        ("model.layers.0.mlp.up_proj.lora_A.weight", &[2, 8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.norm.weight", &[8]),
        ("lm_head.weight", &[11, 8]),
    ];
    let tensors = random(shapes.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect());
    folder.tensors("in.safetensors", &tensors);
    let run = folder.convert("llama/hf", "llama/phi3", &["--axis", "h=2"]);
    let run = run.fails(&[
        "no rule matches scales of weights",
        "it belongs to `model.layers.*.self_attn.q_proj.weight`",
        "dequantise the checkpoint first",
        "no rule matches masks of weights",
        "apply the mask",
        "no rule matches adapters of weights",
        "merge the adapter",
    ]);
    for text in ["--drop", "--allow unmatched"] {
        assert!(!run.stderr.contains(text), "{text}: {}", run.stderr);
    }
    // Who passes them through by that flag meets the other error.
    let run = folder.convert("llama/hf", "llama/phi3", &["--axis", "h=2", "--allow", "unmatched"]);
    run.fails(&["bind/left-behind", "becomes a part of `model.layers.*.self_attn.qkv_proj.weight`"]);
    let both = ["--axis", "h=2", "--allow", "unmatched", "--allow", "left-behind"];
    folder.convert("llama/hf", "llama/phi3", &both).ok();
}

/// A text tower, a cross attention and a vision tower.
fn towers() -> Tensors {
    let mut list = attention("text.layers", "o_proj");
    list.extend(attention("vision.layers", "o_proj"));
    let renamed = |(name, shape): (String, Vec<u64>)| (name.replace("attn", "cross"), shape);
    list.extend(
        attention("text.layers", "o_proj").into_iter().filter(|(name, _)| name.contains(".1.")).map(renamed),
    );
    random(list)
}

/// Turns the rows of each head from half-split to interleaved order, by hand.
fn interleaved(tensor: &Tensor, heads: usize) -> Tensor {
    let values = tensor.values();
    let (width, size) = (tensor.shape[1] as usize, tensor.shape[0] as usize / heads);
    let row = |row: usize| {
        let (head, at) = (row / size, row % size);
        let from = head * size + at / 2 + at % 2 * size / 2;
        values[from * width..(from + 1) * width].to_vec()
    };
    Tensor::f32(&tensor.shape, (0..heads * size).flat_map(row))
}

#[test]
fn modules_of_several_kinds_are_not_turned_without_a_word() {
    let tensors = towers();
    let more = ["--axis", "f=2"];
    let (_, run) = convert(&tensors, "llama-hf", "llama-meta", &more);
    run.fails(&[
        "bind/modules",
        "modules of several kinds",
        "text.layers.{0..1}.attn (2)",
        "vision.layers.{0..1}.attn (2)",
        "text.layers.1.cross",
        "--modules '*'",
    ]);
    // Whose order does not change may be of as many kinds as they are.
    convert(&tensors, "llama-hf", "phi3", &[]).1.ok();
    let (folder, run) =
        convert(&tensors, "llama-hf", "llama-meta", &[&more[..], &["--modules", "*"]].concat());
    run.ok();
    assert!(read(&folder.join("out.safetensors")).keys().all(|name| !name.contains("_proj")));
}

#[test]
fn only_some_modules_are_converted() {
    let tensors = towers();
    let modules = ["--axis", "f=2", "--modules", "text.*", "--modules", "!*.cross"];
    let (folder, run) =
        convert(&tensors, "llama-hf", "llama-meta", &[&modules[..], &["--report", "r.json"]].concat());
    let run = run.ok();
    for text in [
        "8 tensors of 2 modules -> 8 tensors",
        "  text.layers.{0..1}.attn (2)",
        "left as they are by --modules:",
        "  vision.layers.{0..1}.attn (2)",
        "  text.layers.1.cross",
        "12 other tensors passed through unchanged",
    ] {
        assert!(run.stderr.contains(text), "{text}: {}", run.stderr);
    }
    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.join("r.json")).expect("a report")).expect("JSON");
    assert_eq!(report["modules"]["converted"], json!(["text.layers.{0..1}.attn (2)"]));
    assert_eq!(report["modules"]["left"], json!(["text.layers.1.cross", "vision.layers.{0..1}.attn (2)"]));
    let out = read(&folder.join("out.safetensors"));
    let mut wanted = tensors.clone();
    for (name, to, heads) in
        [("q_proj", "wq", Some(6)), ("k_proj", "wk", Some(2)), ("v_proj", "wv", None), ("o_proj", "wo", None)]
    {
        for layer in 0..2 {
            let stored = wanted.remove(&format!("text.layers.{layer}.attn.{name}.weight")).expect("there");
            let turned = heads.map_or(stored.clone(), |heads| interleaved(&stored, heads));
            wanted.insert(format!("text.layers.{layer}.attn.{to}.weight"), turned);
        }
    }
    assert_eq!(out, wanted);
    // The file records which modules it speaks of.
    let (_, metadata) = kit::read_all(&folder.join("out.safetensors"));
    let record: Value = serde_json::from_str(&metadata["qkvconv"]).expect("JSON");
    assert_eq!(record["modules"], json!(["text.layers.{0..1}.attn (2)"]));
    // What belongs to a weight that is left as it is stays with it, in whatever form the weight is.
    let mut quantised = tensors.clone();
    quantised.insert("vision.layers.0.attn.q_proj.weight_scale".to_owned(), Tensor::index(&[24, 1], 1));
    quantised.insert("vision.layers.2.attn.q_proj.qweight".to_owned(), Tensor::index(&[24, 1], 1));
    convert(&quantised, "llama-hf", "llama-meta", &modules).1.ok();
    // The same option verifies it, and without it there is another expectation.
    let verify = [
        "verify",
        "--from",
        "attention/llama-hf",
        "--to",
        "attention/llama-meta",
        "in.safetensors",
        "out.safetensors",
    ];
    folder.run(&[&verify[..], SIZES, &modules].concat()).ok();
    assert_eq!(folder.run(&[&verify[..], SIZES, &["--axis", "f=2", "--modules", "text.*"]].concat()).code, 3);
    let dry = folder.convert(
        "attention/llama-hf",
        "attention/llama-meta",
        &[SIZES, &modules, &["--dry-run", "--force"]].concat(),
    );
    assert!(dry.ok().stderr.contains("left as they are by --modules:"));
}

#[test]
fn a_glob_of_modules_that_means_none_is_refused() {
    let tensors = towers();
    for (glob, text) in [
        ("audio.*", "--modules 'audio.*' matches no module"),
        ("!text.layers.*.crossattn", "--modules '!text.layers.*.crossattn' matches no module"),
        ("!*", "leaves nothing to convert"),
    ] {
        let (_, run) = convert(&tensors, "llama-hf", "llama-meta", &["--axis", "f=2", "--modules", glob]);
        run.fails(&["bind/modules", text, "vision.layers.{0..1}.attn (2)"]);
    }
    let (_, run) = convert(&tensors, "llama-hf", "llama-meta", &["--modules", "[a"]);
    assert!(run.stderr.contains("usage/glob"), "{}", run.stderr);
    let folder = Folder::new();
    folder.tensors("in.safetensors", &random(vec![("wte".to_owned(), vec![5, 7])]));
    folder.put(
        "m.json",
        kit::mapping(
            "w",
            json!({ "e": "width", "v": "words" }),
            json!({ "tok": "v e" }),
            json!({
                "a": { "about": "a", "source": "a test", "tensors": { "wte": "tok: v e" } },
                "b": { "about": "b", "source": "a test", "tensors": { "embed": "tok: e v" } },
            }),
        ),
    );
    folder
        .convert("w/a", "w/b", &["--mapping", "m.json", "--modules", "*"])
        .fails(&["--modules does not apply to the layout `a`"]);
}

#[test]
fn what_a_module_is_that_does_not_fit_may_be_left_as_it_is() {
    let mut tensors = random(attention("layers", "out_proj"));
    tensors.insert("conv.q_proj.weight".to_owned(), Tensor::index(&[24, 7, 1], 3));
    let (_, run) = convert(&tensors, "separate", "pytorch-fused", &[]);
    let run = run.fails(&["bind/rank", "--modules '!conv'"]);
    assert!(!run.stderr.contains("--drop"), "{}", run.stderr);
    convert(&tensors, "separate", "pytorch-fused", &["--modules", "!conv"]).1.ok();
}

/// A checkpoint of which no weight has anything attached.
struct Plain {
    name: String,
    catalog: Catalog,
    options: BindOptions,
}

fn plain_models() -> Vec<Plain> {
    let family = |(name, text): (String, String)| {
        let model: Value = serde_json::from_str(&text).expect("JSON");
        let tensors = model["tensors"].as_object().expect("tensors").iter().map(|(key, meta)| {
            let shape: Vec<u64> = serde_json::from_value(meta["shape"].clone()).expect("a shape");
            let dtype = Dtype::from_name(meta["dtype"].as_str().expect("a type")).expect("known");
            TensorMeta {
                key: key.clone(),
                dtype,
                strides: row_major(&shape),
                shape,
                file: 0,
                offset: 0,
                extents: Vec::new(),
            }
        });
        let axes: BTreeMap<String, u64> = serde_json::from_value(model["axes"].clone()).unwrap_or_default();
        let config =
            (!model["config"].is_null()).then(|| Document::config("config.json", model["config"].clone()));
        let provenance = config.map(Provenance::from).unwrap_or_default();
        let files = vec![(PathBuf::from("model.safetensors"), 0)];
        let catalog = Catalog::new("model.safetensors".into(), files, tensors.collect());
        Plain { name, catalog, options: BindOptions::default().axes(axes).provenance(provenance) }
    };
    let mut models: Vec<Plain> = model_files().into_iter().map(family).collect();
    let folder = kit::root().join("tests/oracles");
    for name in kit::names(&folder) {
        for side in ["src", "dst"] {
            let path = folder.join(&name).join(side);
            if !path.is_dir() {
                continue;
            }
            let roots = [None, Some("model"), Some("state_dict"), Some("params"), Some("optimizer/target")];
            let opened = roots.iter().find_map(|root| {
                let options = OpenOptions::default().root(root.map(str::to_owned));
                open(&crate::stored::only_file(path.clone()), &options).ok()
            });
            let reader = opened.unwrap_or_else(|| panic!("{name}/{side} is not read"));
            let text = std::fs::read_to_string(path.join("config.json")).ok();
            let config = text.map(|text| serde_json::from_str(&text).expect("JSON"));
            let config = config.map(|value| Document::config("config.json", value));
            let provenance = config.map(Provenance::from).unwrap_or_default();
            let catalog = reader.catalog().clone();
            models.push(Plain {
                name: format!("{name}/{side}"),
                catalog,
                options: BindOptions::default().provenance(provenance),
            });
        }
    }
    models
}

#[test]
fn no_alarm_where_nothing_is_attached() {
    let families: Vec<Mapping> = builtin::names()
        .filter_map(builtin::family)
        .filter(|mapping| mapping.unmapped == Unmapped::Keep)
        .collect();
    let (mut bound, mut alarms, mut raised) = (0, BTreeSet::new(), BTreeMap::<(&str, &str), usize>::new());
    for Plain { name, catalog, mut options } in plain_models() {
        options.allow = vec![Allow::MissingConfig, Allow::IndexGap];
        let names = names_to_try(&catalog, &options);
        let detection = Detection::new(&catalog, &names);
        // Each layout for itself, whatever another one explains and the config says of the model.
        let alone = |mapping: &Mapping, layout: &Layout| {
            let wanted = |_: &Mapping, other: &Layout| other.name == layout.name;
            detection.candidates(&Question {
                mappings: std::slice::from_ref(mapping),
                wanted: &wanted,
                options: &options,
                recorded: None,
                trust_layout: true,
            })
        };
        for mapping in &families {
            for candidate in mapping.layouts.values().flat_map(|layout| alone(mapping, layout)) {
                let Some(source) = candidate.fits().then(|| &mapping.layouts[&candidate.layout]) else {
                    continue;
                };
                for target in mapping.layouts.values() {
                    let Err(errors) = bind(mapping, source, target, &catalog, &options) else {
                        bound += 1;
                        continue;
                    };
                    let left = errors.diagnostics().iter().filter(|error| error.code == "bind/left-behind");
                    for key in left.flat_map(|error| &error.tensors) {
                        let layout = candidate.name();
                        let known = |(of, end): &(&str, &str)| layout.starts_with(of) && key.ends_with(end);
                        match ATTACHED.iter().find(|entry| known(entry)) {
                            Some(entry) => *raised.entry(*entry).or_default() += 1,
                            None => {
                                alarms.insert(format!("{name} as {layout} to {}: {key}", target.name));
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(alarms.is_empty(), "{alarms:#?}");
    assert!(bound > 1000, "{bound} conversions were bound");
    // An entry that raises nothing any more would hide the next false alarm of its name.
    let silent: Vec<_> = ATTACHED.iter().filter(|entry| !raised.contains_key(*entry)).collect();
    assert!(silent.is_empty(), "{silent:?} of {raised:?}");
}

/// What is attached after all, by the layouts that take a model of another layout for theirs: norms of heads and SAM's
/// tables where the target has another rotary order, and biases for which these layouts have no rule.
const ATTACHED: &[(&str, &str)] = &[
    ("attention/", "_norm.weight"),
    ("attention/tf", "/adam_m"),
    ("attention/tf", "/adam_v"),
    ("attention/timm", "ln_k.weight"),
    ("attention/timm", "ln_q.weight"),
    ("attention/timm", "_norm.scale"),
    ("attention/timm", "attn.rel_pos_h"),
    ("attention/timm", "attn.rel_pos_w"),
    ("attention/llama-meta", "_normalization.weight"),
    ("attention/llama-meta", "_normalization.bias"),
    ("attention/mimi", "out_proj.bias"),
    ("attention/mimi", "in_proj_bias"),
    ("blip-vision/lavis", "attn.qkv.bias"),
    ("", ".q_bias"),
    ("", ".v_bias"),
];
