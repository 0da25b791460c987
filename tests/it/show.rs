//! `qkvconv mapping show`: layouts, families and the ways between layouts in words.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use qkvconv::bind::{AxisSizes, BindOptions, bind};
use qkvconv::catalog::{Catalog, TensorMeta, row_major};
use qkvconv::dtype::Dtype;
use qkvconv::explain::{Drawing, Route, family, layout};
use qkvconv::inspect::example;
use qkvconv::mapping::builtin;
use qkvconv::mapping::{Layout, Mapping};
use qkvconv::plan::{Step, StridedCopy, build};
use qkvconv::provenance::{Document, Provenance};
use serde_json::{Value, json};

use crate::families::model_files;
use crate::kit::Folder;

fn families() -> Vec<Mapping> {
    builtin::names().filter_map(builtin::family).collect()
}

fn route(mapping: &Mapping, source: &Layout, target: &Layout) -> Vec<String> {
    Route { mapping, source, target, sizes: &AxisSizes::new() }.lines()
}

#[test]
fn every_layout_is_explained() {
    let mut count = 0;
    for mapping in families() {
        let told = family(&mapping).join("\n");
        for name in mapping.axes.keys().chain(mapping.params.keys()).chain(mapping.layouts.keys()) {
            assert!(told.contains(name), "{}: {name}", mapping.family);
        }
        for own in mapping.layouts.values() {
            count += 1;
            let sizes = example(&mapping, &[own], &AxisSizes::new());
            let place = format!("{}/{}", mapping.family, own.name);
            for axis in mapping.axes.keys().chain(own.axes.keys()) {
                // A layout may fix one to nothing: heads of which all elements rotate.
                let fixed = mapping.axis(own, axis).and_then(|axis| axis.size);
                let size = sizes.get(axis).copied();
                assert!(size == fixed || size > Some(0), "{place}: {axis} {sizes:?}");
            }
            let drawing = Drawing { sizes: &sizes, most: (400, 24), colour: false };
            let told = layout(&mapping, own, &drawing);
            let all = told.join("\n");
            for rule in &own.rules {
                assert!(all.contains(&rule.template.to_string()), "{place}: {}", rule.template);
                assert!(all.contains(&rule.expr.to_string()), "{place}: {}", rule.expr);
            }
            for axis in own.config.values().flat_map(|entry| &entry.keys) {
                assert!(all.contains(axis.as_str()), "{place}: config {axis}");
            }
            for forward in own.forwards.values() {
                assert!(all.contains(&forward.citation), "{place}: forward");
                for template in forward.templates() {
                    assert!(all.contains(&template.to_string()), "{place}: {template}");
                }
            }
            let other = own.metadata.keys().chain(&own.models).chain(&own.config_file);
            for text in other.chain(own.when.iter().map(|condition| &condition.key)) {
                assert!(all.contains(text.as_str()), "{place}: {text}");
            }
            for template in &own.ignore {
                assert!(all.contains(&template.to_string()), "{place}: ignored {template}");
            }
            // Whatever has several heads is drawn.
            let several = |axis: &str| mapping.axes[axis].size != Some(1);
            let heads = |param: &str| mapping.head_axis(param).is_some_and(several);
            let in_shape = |rule: &qkvconv::mapping::Rule| {
                rule.expr.params().iter().any(|param| {
                    heads(param) && !rule.template.axes().any(|axis| mapping.head_axis(param) == Some(axis))
                })
            };
            if own.rules.iter().any(in_shape) {
                assert!(all.contains("drawn with"), "{place}\n{all}");
            }
        }
    }
    assert!(count >= 308, "{count} layouts");
}

#[test]
fn every_pair_is_explained() {
    for mapping in families() {
        for source in mapping.layouts.values() {
            for target in mapping.layouts.values() {
                let lines = route(&mapping, source, target);
                let way = format!("{}: {} → {}", mapping.family, source.name, target.name);
                for rule in &source.rules {
                    let name = rule.template.to_string();
                    assert!(lines.iter().any(|line| line.starts_with(&name)), "{way}: {name}");
                }
                for rule in &target.rules {
                    let name = rule.template.to_string();
                    let made = |line: &String| line.contains(&format!("→ {name}")) || line.starts_with(&name);
                    assert!(lines.iter().any(made), "{way}: {name} is not made\n{}", lines.join("\n"));
                }
                if std::ptr::eq(source, target) {
                    // Every tensor goes to itself; a tied one goes to another name too.
                    for (from, to) in lines.iter().filter_map(|line| line.split_once(" → ")) {
                        let stays = to.strip_prefix(from).is_none_or(|rest| rest.starts_with(", unchanged"));
                        assert!(stays, "{way}: {from} → {to}");
                    }
                }
            }
        }
    }
}

/// A model of `tests/families`: names, types and shapes as a framework has them.
struct Model {
    name: String,
    mapping: Mapping,
    layout: String,
    layouts: Vec<String>,
    catalog: Catalog,
    options: BindOptions,
}

fn models() -> Vec<Model> {
    let read = |(name, text): (String, String)| {
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
        let mut at = 0;
        let tensors = tensors.map(|tensor| {
            let tensor = TensorMeta { offset: at, ..tensor };
            at += tensor.bytes();
            tensor
        });
        let tensors: Vec<TensorMeta> = tensors.collect();
        let files = vec![(PathBuf::from("model.safetensors"), at)];
        let axes: BTreeMap<String, u64> = serde_json::from_value(model["axes"].clone()).unwrap_or_default();
        let config =
            (!model["config"].is_null()).then(|| Document::config("config.json", model["config"].clone()));
        let provenance = config.map(Provenance::from).unwrap_or_default();
        Model {
            name,
            mapping: builtin::family(model["mapping"].as_str().expect("a family")).expect("built in"),
            layout: model["layout"].as_str().expect("a layout").to_owned(),
            layouts: serde_json::from_value(model["layouts"].clone()).expect("layouts"),
            catalog: Catalog::new("model.safetensors".into(), files, tensors),
            options: BindOptions::default().axes(axes).provenance(provenance),
        }
    };
    model_files().into_iter().map(read).collect()
}

/// Returns whether a copy takes the elements in the order in which the source holds them.
fn keeps_order(copy: &StridedCopy) -> bool {
    let steps: Vec<u64> = copy.loops.iter().map(|l| l.source_step).filter(|step| *step > 0).collect();
    steps.is_sorted_by(|a, b| a >= b)
}

/// Returns whether all copies between two tensors together take the elements in the order in which the source holds them.
fn all_keep_order(copies: &[(&str, &StridedCopy)]) -> bool {
    let mut tensors: BTreeMap<(&str, usize), Vec<(u64, u64)>> = BTreeMap::new();
    for (target, copy) in copies {
        let mut places = vec![(copy.target_offset, copy.source_offset)];
        for l in &copy.loops {
            let step = |(to, from): &(u64, u64)| {
                let (to, from) = (*to, *from);
                (0..l.count).map(move |at| (to + at * l.target_step, from + at * l.source_step))
            };
            places = places.iter().flat_map(step).collect();
        }
        tensors.entry((target, copy.source.tensor)).or_default().extend(places);
    }
    tensors.into_values().all(|mut places| {
        places.sort_unstable();
        places.is_sorted_by_key(|(_, from)| *from)
    })
}

/// Every plan of the models says what the words say: from which tensor to which, and whether the order stays.
#[test]
fn the_words_agree_with_the_plans() {
    let mut wrong = BTreeSet::new();
    let (mut plans, mut kept, mut changed) = (0, 0, 0);
    for model in models() {
        let mapping = &model.mapping;
        let source = &mapping.layouts[&model.layout];
        for name in model.layouts.iter().filter(|name| **name != model.layout) {
            let target = &mapping.layouts[name];
            let way = format!("{}: {} → {name}", model.name, model.layout);
            let mut options = model.options.clone();
            let ends = [source, target];
            options.axes.retain(|(axis, _)| {
                mapping.axes.contains_key(axis) || ends.iter().any(|layout| layout.axes.contains_key(axis))
            });
            let bound = bind(mapping, source, target, &model.catalog, &options);
            let bound = bound.unwrap_or_else(|errors| panic!("{way}: {errors}"));
            let plan =
                build(&bound, &model.catalog, &options).unwrap_or_else(|errors| panic!("{way}: {errors}"));
            plans += 1;
            let lines = route(mapping, source, target);
            let mut copies: BTreeMap<(String, String), Vec<(&str, &StridedCopy)>> = BTreeMap::new();
            for tensor in &plan.targets {
                let Some(made) = bound.targets.iter().find(|made| made.key == tensor.key) else { continue };
                let to = target.rules[made.reading.rule].template.to_string();
                for step in &tensor.steps {
                    let Step::Copy(copy) = step else { continue };
                    let from = bound.sources.iter().find(|from| from.tensor == copy.source.tensor);
                    let from = from.expect("a source with a rule").reading.rule;
                    let from = source.rules[from].template.to_string();
                    copies.entry((from, to.clone())).or_default().push((tensor.key.as_str(), copy));
                }
            }
            for ((from, to), copies) in copies {
                let is_name = |text: &str, name: &str| {
                    text.strip_prefix(name)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',']))
                };
                let told: Vec<&str> = lines
                    .iter()
                    .filter_map(|line| line.split_once(" → "))
                    .filter(|(left, right)| is_name(left, &from) && is_name(right, &to))
                    .map(|(_, right)| right)
                    .collect();
                if told.is_empty() {
                    wrong.insert(format!("{way}: {from} → {to} is not told"));
                    continue;
                }
                let stays = |words: &&str| {
                    !["reordered", "transposed", "cut anew"].iter().any(|what| words.contains(what))
                };
                if told.iter().all(stays) {
                    kept += 1;
                    if !copies.iter().all(|(_, copy)| keeps_order(copy)) {
                        wrong.insert(format!("{way}: {from} → {to} changes the order: {told:?}"));
                    }
                } else if !told.iter().any(stays) {
                    changed += 1;
                    // A weight of one column has no other order than its transpose.
                    let wide = |key: usize| {
                        model.catalog.tensors[key].shape.iter().filter(|size| **size > 1).count() > 1
                    };
                    if copies.iter().any(|(_, copy)| wide(copy.source.tensor)) && all_keep_order(&copies) {
                        wrong.insert(format!("{way}: {from} → {to} keeps the order: {told:?}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {plans}: {wrong:#?}", wrong.len());
    assert!(plans > 200 && kept > 4000 && changed > 500, "{plans} plans, {kept} kept, {changed} changed");
}

/// Runs `mapping show A B` and returns the lines behind the heading.
fn shown(args: &[&str]) -> Vec<String> {
    let folder = Folder::new();
    let said = folder.run(&[&["mapping", "show"], args].concat()).ok().stdout;
    let (_, lines) = said.split_once("\n\n").expect("a heading");
    lines.lines().map(str::to_owned).collect()
}

/// Asserts that a way has these lines, in this order, perhaps among others.
#[track_caller]
fn has(args: &[&str], expected: &[&str]) {
    let lines = shown(args);
    let mut rest = lines.iter();
    for line in expected {
        assert!(rest.any(|found| found == line), "`{line}` is not, or not here, in\n{}", lines.join("\n"));
    }
}

#[test]
fn fused_to_separate_with_names_and_with_numbers() {
    let expected = [
        "{*m}.in_proj_weight rows 0..h·d → {*m}.q_proj.weight, unchanged order",
        "{*m}.in_proj_weight rows h·d..h·d + g·d → {*m}.k_proj.weight, unchanged order",
        "{*m}.in_proj_weight rows h·d + g·d..h·d + g·d + g·dv → {*m}.v_proj.weight, unchanged order",
        "{*m}.in_proj_bias elements 0..h·d → {*m}.q_proj.bias, unchanged order",
        "{*m}.in_proj_bias elements h·d..h·d + g·d → {*m}.k_proj.bias, unchanged order",
        "{*m}.in_proj_bias elements h·d + g·d..h·d + g·d + g·dv → {*m}.v_proj.bias, unchanged order",
        "{*m}.out_proj.weight → {*m}.out_proj.weight, unchanged",
        "{*m}.out_proj.bias → {*m}.out_proj.bias, unchanged",
        "all other tensors pass through, bytes and names untouched",
    ];
    assert_eq!(shown(&["pytorch-fused", "attention/separate"]), expected);
    let sizes = ["--axis", "h=12", "--axis", "g=4", "--axis", "d=64", "--axis", "dv=32"];
    has(
        &[&["pytorch-fused", "attention/separate"][..], &sizes].concat(),
        &[
            "{*m}.in_proj_weight rows 0..768 → {*m}.q_proj.weight, unchanged order",
            "{*m}.in_proj_weight rows 768..1024 → {*m}.k_proj.weight, unchanged order",
            "{*m}.in_proj_weight rows 1024..1152 → {*m}.v_proj.weight, unchanged order",
        ],
    );
    let folder = Folder::new();
    folder.put("config.json", r#"{ "num_attention_heads": 12, "num_key_value_heads": 4 }"#);
    let args = ["mapping", "show", "attention/megatron", "attention/separate", "--config", "config.json"];
    let said = folder.run(&[&args[..], &["--axis", "d=64", "--axis", "dv=32"]].concat()).ok().stdout;
    assert!(said.contains("in each of 4 blocks of 288 rows, rows 192..256 → {*m}.k_proj.weight"), "{said}");
}

#[test]
fn fused_to_one_tensor_per_head() {
    has(
        &["pytorch-fused", "attention/per-head"],
        &[
            "{*m}.in_proj_weight rows 0..h·d → {*m}.heads.{h}.q_proj.weight, one tensor for each h, unchanged order",
            "{*m}.in_proj_weight rows h·d..h·d + g·d → {*m}.heads.{g}.k_proj.weight, one tensor for each g, unchanged order",
            "{*m}.out_proj.weight → {*m}.heads.{h}.out_proj.weight, one tensor for each h, unchanged order",
        ],
    );
    has(
        &["attention/per-head", "pytorch-fused"],
        &[
            "{*m}.heads.{h}.q_proj.weight → {*m}.in_proj_weight rows 0..h·d, one block for each h along rows, unchanged order",
            "{*m}.heads.{h}.out_proj.weight → {*m}.out_proj.weight, one block for each h along columns, unchanged order",
        ],
    );
}

#[test]
fn per_group_to_separate_and_to_heads_of_copies() {
    has(
        &["attention/megatron", "attention/separate"],
        &[
            "{*m}.linear_qkv.weight in each of g blocks of r·d + d + dv rows, rows 0..r·d → {*m}.q_proj.weight, unchanged order",
            "{*m}.linear_qkv.weight in each of g blocks of r·d + d + dv rows, rows r·d..r·d + d → {*m}.k_proj.weight, unchanged order",
            "{*m}.linear_qkv.weight in each of g blocks of r·d + d + dv rows, rows r·d + d..r·d + d + dv → {*m}.v_proj.weight, unchanged order",
        ],
    );
    has(
        &["attention/separate", "attention/neox"],
        &[
            "{*m}.q_proj.weight → {*m}.query_key_value.weight in each of h blocks of 2·d + dv rows, rows 0..d, unchanged order",
            "{*m}.k_proj.weight → {*m}.query_key_value.weight in each of h blocks of 2·d + dv rows, rows d..2·d, unchanged order, copied for each r",
        ],
    );
    has(
        &["bloom/hf", "bloom/transformer-lens"],
        &[
            "transformer.h.{l}.self_attention.query_key_value.weight in each of h blocks of 2·d + dv rows, rows d..2·d → blocks.{l}.attn.W_K, axes reordered from [(g d), e] to [g, e, d], the copies for each r must be equal, one is taken",
        ],
    );
}

#[test]
fn transposed() {
    has(
        &["attention/conv1d", "attention/separate"],
        &[
            "{*m}.c_attn.weight columns h·d..h·d + g·d → {*m}.k_proj.weight, transposed",
            "{*m}.c_attn.bias elements h·d..h·d + g·d → {*m}.k_proj.bias, unchanged order",
            "{*m}.c_proj.weight → {*m}.out_proj.weight, transposed",
        ],
    );
    has(
        &["attention/timm", "attention/flax"],
        &[
            "{*m}.qkv.weight rows 0..h·d → {*m}/query/kernel, transposed, shape [(h d), e] → [e, h, d]",
            "{*m}.qkv.bias elements 0..h·d → {*m}/query/bias, unchanged order, shape [(h d)] → [h, d]",
            "{*m}.proj.bias → {*m}/out/bias, renamed only",
        ],
    );
}

#[test]
fn rotary_pairs_reordered() {
    has(
        &["llama/hf", "llama/meta"],
        &[
            "model.embed_tokens.weight → tok_embeddings.weight, renamed only",
            "model.layers.{l}.self_attn.q_proj.weight → layers.{l}.attention.wq.weight, each head reordered from half-split to interleaved rotary pairs",
            "model.layers.{l}.self_attn.v_proj.weight → layers.{l}.attention.wv.weight, renamed only",
            "model.layers.{l}.self_attn.rotary_emb.inv_freq: left out, ignored by the layout",
            "any other tensor is an error",
        ],
    );
    has(
        &["attention/llama-meta", "attention/megatron"],
        &[
            "{*m}.wq.weight → {*m}.linear_qkv.weight in each of g blocks of r·d + d + dv rows, rows 0..r·d, each head reordered from interleaved to half-split rotary pairs",
        ],
    );
    // Not a rotation: two parts of an axis change places.
    has(
        &["diffusion/sd3", "diffusion/sd3-diffusers"],
        &[
            "model.diffusion_model.joint_blocks.{l}.context_block.adaLN_modulation.1.bias → transformer_blocks.{l}.norm1_context.linear.bias, each mc reordered from (ms + mr) to (mr + ms)",
            "model.diffusion_model.final_layer.adaLN_modulation.1.weight rows 0..e → norm_out.linear.weight rows e..2·e, unchanged order",
        ],
    );
}

#[test]
fn layers_and_experts_stacked() {
    has(
        &["siglip/bigvision-npz", "siglip/bigvision-npz-scan"],
        &[
            "params/img/Transformer/encoderblock_{l}/MultiHeadDotProductAttention_0/query/kernel → params/img/Transformer/encoderblock/MultiHeadDotProductAttention_0/query/kernel, l stacked along axis 0, unchanged order",
        ],
    );
    has(
        &["deepseek/hf", "deepseek/mlx"],
        &[
            "model.layers.{l}.mlp.experts.{x}.up_proj.weight → model.layers.{l}.mlp.switch_mlp.up_proj.weight, x stacked along axis 0, unchanged order",
        ],
    );
    has(
        &["llama/hf", "llama/meta-parallel"],
        &[
            "model.layers.{l}.input_layernorm.weight → consolidated.{t:02}.pth::layers.{l}.attention_norm.weight, renamed only, copied for each t",
            "model.layers.{l}.self_attn.o_proj.weight → consolidated.{t:02}.pth::layers.{l}.attention.wo.weight, one tensor for each t, unchanged order",
        ],
    );
}

#[test]
fn zeros_made_and_demanded() {
    let key = "blocks.{l}.attn.qkv.bias elements h·d..h·d + g·d";
    has(
        &["beit/timm", "beit/timm-vit"],
        &[
            "blocks.{l}.attn.q_bias → blocks.{l}.attn.qkv.bias elements 0..h·d, unchanged order",
            "blocks.{l}.attn.v_bias → blocks.{l}.attn.qkv.bias elements h·d + g·d..h·d + g·d + g·dv, unchanged order",
            &format!("zeros → {key} (k.bias)"),
        ],
    );
    has(
        &["beit/timm-vit", "beit/timm"],
        &[&format!("{key}: k.bias has no place in the target; it must be zeros and is left out")],
    );
}

#[test]
fn tied_copies() {
    has(
        &["bloom/hf", "bloom/transformer-lens"],
        &[
            "transformer.word_embeddings.weight → embed.W_E, renamed only",
            "transformer.word_embeddings.weight → unembed.W_U, transposed",
            "lm_head.weight → embed.W_E, renamed only; a tied copy, it must equal transformer.word_embeddings.weight",
            "zeros → unembed.b_U (head.bias)",
        ],
    );
    // A parameter of its own that a checkpoint may lack: as the conversion makes and demands it.
    has(
        &["llama/hf", "llama/litgpt"],
        &[
            "model.embed_tokens.weight → lm_head.weight, renamed only, where the source has no head.weight and this is needed",
        ],
    );
    has(
        &["llama/litgpt", "llama/hf-base"],
        &["lm_head.weight: head.weight has no place in the target; it must equal tok.weight and is left out"],
    );
    has(
        &["llama/hf", "llama/hf-base"],
        &[
            "lm_head.weight: head.weight has no place in the target; it must equal tok.weight and is left out, an error where the config unties the two",
        ],
    );
}

#[test]
fn a_layout_is_drawn_with_the_sizes_that_are_given() {
    let folder = Folder::new();
    let run = |args: &[&str]| folder.run(&[&["mapping", "show"], args].concat());
    let said =
        run(&["attention/megatron", "--axis", "h=4", "--axis", "g=2", "--axis", "d=3", "--axis", "dv=2"]);
    let said = said.ok().stdout;
    for text in [
        "d = 3, dv = 2, e = ",
        "g = 2, h = 4, ",
        "r = 2",
        "2 kv groups × (2 query heads + k + v)",
        "q.weight head 3: rows 14..17",
        "      0│q0q0",
        "  × 3\n",
        "parameters that may be missing",
        "k.bias: g d  (optional; zeros fill its part of a fused tensor)",
        "  q, k, v: x · {*m}.linear_qkv.weightᵀ + {*m}.linear_qkv.bias, of each key/value head one after the other",
        "  scores × 1/sqrt(d)",
        "(config: num_query_groups, num_key_value_heads; without it h)",
    ] {
        assert!(said.contains(text), "`{text}` is not in\n{said}");
    }
    let said = run(&["attention/llama-meta"]).ok().stdout;
    assert!(
        said.contains("one head of q.weight: 0 0 1 1 | ·")
            && said.contains("interleaved pairs, the first 2 * f"),
        "{said}"
    );
    let said = run(&["beit/unilm"]).ok().stdout;
    assert!(said.contains("drawn with"), "{said}");
    run(&["attention/megatron", "--axis", "zz=4"]).fails(&["no such axis", "its axes are h, g"]);
    run(&["pytorch-fused", "bert/hf"]).fails(&["different families"]);
    run(&["pytorch-fusd"]).fails(&["did you mean `pytorch-fused`"]);
}

/// Colours are escapes; those of a mapping file's text are none.
#[test]
fn only_pictures_have_colours() {
    let text = json!({
        "format": 1,
        "family": "toy",
        "about": "a\u{1b}[8m",
        "axes": { "h": { "about": "heads\u{1b}[8m", "role": "query heads" }, "d": "head size", "e": "width" },
        "params": { "q": "h d e" },
        "layouts": { "own": {
            "about": "b\u{1b}[2J",
            "source": "c\u{1b}[8m\nd",
            "tensors": { "w\u{9b}.weight": "q: (h d) e" },
        } },
    });
    let source = qkvconv::span::Source { name: "toy.json".to_owned(), text: text.to_string() };
    let mapping = qkvconv::mapping::read(&std::sync::Arc::new(source)).expect("a mapping");
    let own = &mapping.layouts["own"];
    let sizes = example(&mapping, &[own], &AxisSizes::new());
    for colour in [false, true] {
        let told = layout(&mapping, own, &Drawing { sizes: &sizes, most: (400, 24), colour }).join("\n");
        assert_eq!(told.contains("\u{1b}[48;5;"), colour, "{told:?}");
        let rest = told.replace("\u{1b}[48;5;", "").replace("\u{1b}[0m", "");
        assert!(!rest.contains(|c: char| c != '\n' && c.is_control()), "{rest:?}");
        assert!(rest.contains("b\\u{1b}[2J") && rest.contains("heads\\u{1b}[8m"), "{rest:?}");
    }
}
