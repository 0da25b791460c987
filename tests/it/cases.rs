//! Faults that people met when they converted checkpoints, each as a small input with what is right.
//!
//! `data/cases.json` holds the inputs and the values that are right; how this program is asked for them stands here, and
//! in `cases_formats.rs` for those about the formats of files.

use std::collections::BTreeMap;

use half::f16;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cases_formats as formats;
use crate::kit::{self, Folder, Run, Tensor, Tensors, mapping};

macro_rules! cases {
    ($($name:ident: $id:literal => $body:expr;)*) => {
        const TESTED: &[&str] = &[$($id),*];
        $(#[test] fn $name() { ($body)(&Case::load($id)) })*
    };
}

cases! {
    per_head_interleaved: "QKV-01" => qkv_01;
    order_is_the_rules: "QKV-03" => qkv_03;
    per_group: "QKV-04" => qkv_04;
    multi_query: "QKV-05" => qkv_05;
    ranks_are_an_axis: "QKV-08" => qkv_08;
    biases_move_too: "QKV-10" => qkv_10;
    gates_in_the_group: "QKV-12" => qkv_12;
    head_counts_are_not_guessed: "QKV-14" => qkv_14;
    widths_of_their_own: "QKV-16" => qkv_16;
    square_transposes: "TR-01" => tr_01;
    kernels_per_head: "TR-03" => tr_03;
    a_transpose_is_no_reshape: "TR-04" => tr_04;
    scanned_layers: "TR-05" => tr_05;
    convolutions: "TR-07" => tr_07;
    rotary_under_groups: "ROPE-01" => rope_01;
    rotary_both_ways: "ROPE-02" => rope_02;
    rotary_styles_are_reported: "ROPE-04" => rope_04;
    rotary_biases: "ROPE-05" => rope_05;
    no_key_bias_at_all: "KB-01" => kb_01;
    key_bias_of_zeros: "KB-02" => kb_02;
    a_lost_key_bias: "KB-03" => kb_03;
    whole_components_are_renamed: "KEY-01" => key_01;
    wrapper_prefixes: "KEY-02" => key_02;
    two_sources_for_one_target: "KEY-04" => key_04;
    masks_are_no_biases: "KEY-06" => key_06;
    nothing_matched: "KEY-08" => key_08;
    optimizer_slots: "KEY-09" => key_09;
    norms_with_an_offset: "KEY-15" => key_15;
    padded_rows: "KEY-16" => key_16;
    heads_wider_than_the_model: "KEY-17" => key_17;
    repeated_heads: "KEY-18" => key_18;
    lora_split: "LORA-01" => lora_01;
    lora_fused: "LORA-02" => lora_02;
    bits_survive: "DT-01" => dt_01;
    overflow_is_an_error: "DT-04" => dt_04;
    integers_are_not_cast: "DT-05" => dt_05;
    mixed_types: "DT-06" => dt_06;
    scales_move_with_rows: "DT-07" => dt_07;
    straddling_scales: "DT-08" => dt_08;
    parts_in_different_shards: "PERF-02" => perf_02;
    duplicate_header_keys: "SF-01" => sf_01;
    shape_beyond_the_data: "SF-02" => sf_02;
    bad_offsets: "SF-03" => sf_03;
    aliases_and_holes: "SF-05" => sf_05;
    not_safetensors: "SF-07" => sf_07;
    metadata: "SF-09" => sf_09;
    truncated: "SF-10" => sf_10;
    paths_that_escape: "SF-11" => sf_11;
    missing_shard: "SF-12" => sf_12;
    index_against_shards: "SF-13" => sf_13;
    interrupted_write: "SF-16" => sf_16;
    row_major_output: "ST-04" => st_04;
    empty_and_scalar: "ST-07" => st_07;
    tied_embeddings: "TIE-04" => tie_04;
    permuted_rows_compute_the_same: "ROPE-07" => rope_07;
    objects_beside_the_tensors: "KEY-12" => formats::key_12;
    hostile_pickles_and_archives: "KEY-13" => formats::key_13;
    strides_of_a_view: "ST-01" => formats::st_01;
    offsets_of_a_view: "ST-02" => formats::st_02;
    slice_of_a_large_storage: "ST-03" => formats::st_03;
    column_major_arrays: "ST-06" => formats::st_06;
    one_storage_of_two_names: "TIE-01" => formats::tie_01;
    disjoint_views_are_no_ties: "TIE-02" => formats::tie_02;
    void_is_named_by_the_user: "DT-02" => formats::dt_02;
    bfloat16_in_msgpack: "DT-03" => formats::dt_03;
    byte_order: "DT-13" => formats::dt_13;
    gguf_counts_from_the_last: "TR-06" => formats::tr_06;
    memory_is_bounded: "PERF-01" => formats::perf_01;
}

#[test]
fn every_case_is_tested() {
    let all: Vec<Value> = serde_json::from_str(include_str!("data/cases.json")).expect("JSON");
    for case in &all {
        let id = case["id"].as_str().expect("an id");
        assert!(TESTED.contains(&id), "{id} is not tested");
    }
    assert_eq!(all.len(), TESTED.len());
}

/// A case, its input written to a folder of its own.
pub(crate) struct Case {
    pub(crate) id: &'static str,
    pub(crate) input: Value,
    pub(crate) expected: Value,
    pub(crate) folder: Folder,
}

impl Case {
    pub(crate) fn load(id: &'static str) -> Case {
        let all: Vec<Value> = serde_json::from_str(include_str!("data/cases.json")).expect("JSON");
        let case = all.into_iter().find(|case| case["id"] == id).expect("a case of that name");
        let (input, expected) = (case["input"].clone(), case["expected"].clone());
        let case = Case { id, input, expected, folder: Folder::new() };
        let tensors = case.tensors();
        if !tensors.is_empty() {
            case.folder.tensors("in.safetensors", &tensors);
        }
        case
    }

    /// Returns the input's tensors that have values.
    pub(crate) fn tensors(&self) -> Tensors {
        let Some(tensors) = self.input.get("tensors").and_then(Value::as_object) else {
            return Tensors::new();
        };
        let has_values = |about: &Value| about.get("dtype").is_some();
        let tensors = tensors.iter().filter(|(_, about)| has_values(about));
        tensors.map(|(key, about)| (key.clone(), make(about))).collect()
    }

    pub(crate) fn mapping(&self, family: &str, axes: Value, params: Value, layouts: Value) {
        self.folder.put("m.json", mapping(family, axes, params, layouts));
    }

    /// Adds layouts to the built-in attention family.
    fn extend(&self, layouts: Value) {
        let text = json!({ "format": 1, "extends": "attention", "layouts": layouts }).to_string();
        self.folder.put("m.json", text);
    }

    fn convert(&self, from: &str, to: &str, more: &[&str]) -> Run {
        let mut args = vec!["--force"];
        if self.folder.join("m.json").exists() {
            args.extend(["--mapping", "m.json"]);
        }
        args.extend(more);
        self.folder.convert(from, to, &args)
    }

    pub(crate) fn output(&self) -> Tensors {
        kit::read(&self.folder.join("out.safetensors"))
    }

    /// Checks the output against the case; `name` turns the case's name of a tensor into the output's.
    pub(crate) fn check(&self, name: impl Fn(&str) -> String) {
        let output = self.output();
        for (key, about) in self.expected["tensors"].as_object().expect("tensors") {
            let made = output.get(&name(key)).unwrap_or_else(|| panic!("{}: no {key}: {output:?}", self.id));
            self.check_tensor(key, about, made);
        }
        let forbidden = self.expected.get("must_not_equal").and_then(Value::as_object);
        for (what, about) in forbidden.into_iter().flatten() {
            let wrong = about["sha256_le"].as_str().expect("a hash");
            assert!(output.values().all(|tensor| hash(tensor) != wrong), "{}: {what}", self.id);
        }
    }

    pub(crate) fn check_as_named(&self) {
        self.check(str::to_owned);
    }

    pub(crate) fn check_tensor(&self, key: &str, about: &Value, made: &Tensor) {
        let shape: Vec<u64> = serde_json::from_value(about["shape"].clone()).expect("a shape");
        assert_eq!((&made.shape, made.dtype.as_str()), (&shape, about["dtype"].as_str().expect("a type")));
        if let Some(values) = about["values"].as_array() {
            let bytes: Vec<u8> = values.iter().flat_map(|value| encode(&made.dtype, value)).collect();
            assert_eq!(made.bytes, bytes, "{}: {key}", self.id);
        }
        let wanted = about["sha256_le"].as_str().expect("a hash");
        // One hash of the list has lost a digit; the values beside it are whole.
        if wanted.len() == 64 {
            assert_eq!(hash(made), wanted, "{}: {key}", self.id);
        } else {
            assert!(about["values"].is_array(), "{}: {key}", self.id);
        }
    }

    /// Demands failure with the texts that the case names, at `place` in what is expected.
    #[track_caller]
    pub(crate) fn refused(&self, run: Run, place: &str) -> Run {
        let about = if place.is_empty() { &self.expected } else { &self.expected[place] };
        assert_eq!(about["status"], "error", "{}", self.id);
        let names: Vec<&str> =
            about["must_name"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert!(!self.folder.join("out.safetensors").exists(), "{}: nothing is written", self.id);
        run.fails(&names)
    }
}

fn hash(tensor: &Tensor) -> String {
    Sha256::digest(&tensor.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a value's little-endian bytes.
fn encode(dtype: &str, value: &Value) -> Vec<u8> {
    let number = || match value.as_str() {
        Some("inf") => f64::INFINITY,
        _ => value.as_f64().expect("a number"),
    };
    match dtype {
        "F32" => (number() as f32).to_le_bytes().to_vec(),
        "F16" => f16::from_f64(number()).to_le_bytes().to_vec(),
        "BF16" => half::bf16::from_f64(number()).to_le_bytes().to_vec(),
        "I64" => value.as_i64().expect("an integer").to_le_bytes().to_vec(),
        "U8" | "F8_E4M3" => vec![value.as_u64().expect("a byte") as u8],
        other => panic!("no encoding for {other}"),
    }
}

/// Makes a tensor as the case describes it.
fn make(about: &Value) -> Tensor {
    let dtype = about["dtype"].as_str().expect("a type");
    let shape: Vec<u64> =
        about["shape"].as_array().expect("a shape").iter().filter_map(Value::as_u64).collect();
    let count = shape.iter().product::<u64>();
    let bytes: Vec<u8> = if let Some(values) = about["values"].as_array() {
        values.iter().flat_map(|value| encode(dtype, value)).collect()
    } else if let Some(words) = about["words_hex"].as_array() {
        let word =
            |word: &Value| u16::from_str_radix(word.as_str().expect("a word"), 16).expect("hexadecimal");
        words.iter().flat_map(|text| word(text).to_le_bytes()).collect()
    } else if about["fill"]["kind"] == "index" {
        let base = about["fill"]["base"].as_u64().expect("a base");
        (0..count).flat_map(|at| encode(dtype, &json!(base + at))).collect()
    } else if about["fill"]["value"] == "row mod 120" {
        let columns = shape[1];
        (0..count).map(|at| (at / columns % 120) as u8).collect()
    } else {
        vec![0; count as usize * kit::width(dtype)]
    };
    Tensor::new(dtype, &shape, bytes)
}

/// Returns those rows of a tensor.
fn rows(tensor: &Tensor, rows: &Value) -> Vec<u8> {
    let length = tensor.bytes.len() / tensor.shape[0] as usize;
    let rows = rows.as_array().expect("rows").iter().map(|row| row.as_u64().expect("a row") as usize);
    rows.flat_map(|row| tensor.bytes[row * length..(row + 1) * length].to_vec()).collect()
}

fn qkv_01(case: &Case) {
    case.convert("neox", "separate", &["--axis", "h=4"]).ok();
    case.check_as_named();
    let input = &case.tensors()["h.0.attn.query_key_value.weight"];
    let q = "h.0.attn.q_proj.weight";
    assert_eq!(case.output()[q].bytes, rows(input, &case.expected["tensors"][q]["source_rows"]));
    // No layout is ever guessed.
    let run = case.folder.run(&["--to", "separate", "in.safetensors", "other.safetensors"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
}

fn qkv_03(case: &Case) {
    case.extend(json!({ "kvq": { "tensors": {
        "{*m}.qkv_proj.weight": "(k.weight: g d + v.weight: g dv + q.weight: h d) e",
        "{*m}.qkv_proj.bias": "(k.bias: g d + v.bias: g dv + q.bias: h d)",
    }, "defaults": { "g": "h", "dv": "d" } } }));
    case.convert("kvq", "separate", &["--axis", "h=2"]).ok();
    case.check_as_named();
    let back =
        ["--mapping", "m.json", "--from", "separate", "--to", "kvq", "out.safetensors", "back.safetensors"];
    case.folder.run(&[&back[..], &["--axis", "h=2"]].concat()).ok();
    assert_eq!(kit::read(&case.folder.join("back.safetensors")), case.tensors());
}

fn qkv_04(case: &Case) {
    case.extend(json!({ "plain": { "tensors": {
        "{*m}.wq.weight": "q.weight: (h d) e", "{*m}.wk.weight": "k.weight: (g d) e",
        "{*m}.wv.weight": "v.weight: (g dv) e",
    } } }));
    case.convert("internlm2", "plain", &["--axis", "h=4", "--axis", "g=2"]).ok();
    case.check_as_named();
    let back = [
        "--mapping",
        "m.json",
        "--from",
        "plain",
        "--to",
        "internlm2",
        "out.safetensors",
        "back.safetensors",
    ];
    // The file records its sizes, so nothing needs to be said twice.
    case.folder.run(&back).ok();
    assert_eq!(kit::read(&case.folder.join("back.safetensors")), case.tensors());
}

/// A family of three weights, fused in a tensor of that name or apart.
fn fused_family(case: &Case, fused: &str) {
    let axes = json!({ "h": "heads", "g": "groups", "d": "head size", "e": "width" });
    let params = json!({ "q": "h d e", "k": "g d e", "v": "g d e" });
    case.mapping(
        "fused",
        axes,
        params,
        json!({
            "fused": { "tensors": { fused: "(q: h d + k: g d + v: g d) e" }, "config": {
                "h": "num_heads", "g": "num_kv_heads", "d": "head_dim" } },
            "apart": { "tensors": { "q": "q: (h d) e", "k": "k: (g d) e", "v": "v: (g d) e" } },
        }),
    );
}

fn qkv_05(case: &Case) {
    fused_family(case, "transformer.h.0.self_attention.query_key_value.weight");
    let wrong = case.convert("fused", "apart", &["--axis", "h=5", "--axis", "g=5", "--axis", "d=2"]);
    let wrong = case.refused(wrong, "bad_config_variant");
    assert!(wrong.stderr.contains("`g` = 1"), "says what fits: {}", wrong.stderr);
    case.convert("fused", "apart", &["--axis", "h=5", "--axis", "g=1"]).ok();
    case.check_as_named();
}

fn qkv_08(case: &Case) {
    let axes =
        json!({ "h": { "is": "t s" }, "t": "ranks", "s": "heads of a rank", "d": "head size", "e": "width" });
    let params = json!({ "q": "h d e", "k": "h d e", "v": "h d e" });
    case.mapping(
        "ranks",
        axes,
        params,
        json!({
            "ranks": { "tensors": { "rank{t}:attn.qkv.weight": "(q: s d + k: s d + v: s d) e" } },
            "whole": { "tensors": { "attn.qkv.weight": "(q: h d + k: h d + v: h d) e" } },
        }),
    );
    case.convert("ranks", "whole", &["--axis", "h=4"]).ok();
    case.check_as_named();
}

fn qkv_10(case: &Case) {
    let axes = json!({ "d": "rows", "e": "width" });
    let params = json!({ "q": "d e", "k": "d e", "v": "d e" });
    case.mapping(
        "bare",
        axes,
        params,
        json!({
            "apart": { "tensors": { "{*m}.q_proj.weight": "q: d e", "{*m}.k_proj.weight": "k: d e",
                "{*m}.v_proj.weight": "v: d e" } },
            "fused": { "tensors": { "{*m}.qkv_proj.weight": "(q: d + k: d + v: d) e" } },
        }),
    );
    case.refused(case.convert("bare/apart", "bare/fused", &[]), "");
    case.convert("attention/separate", "phi3", &["--axis", "h=2"]).ok();
    let about = &case.expected["full_rule"]["tensors"];
    for (key, about) in about.as_object().expect("tensors") {
        case.check_tensor(key, about, &case.output()[key]);
    }
}

fn qkv_12(case: &Case) {
    let axes = json!({ "g": "groups", "r": "heads of a group", "d": "head size", "e": "width" });
    let params = json!({ "q": "g r d e", "gate": "g r d e", "k": "g d e", "v": "g d e" });
    case.mapping("gated", axes, params, json!({
        "megatron": { "tensors": {
            "decoder.{*m}.self_attention.linear_qgkv.weight": "(g (q: r d + gate: r d + k: d + v: d)) e" } },
        "hf": { "tensors": {
            "model.{*m}.self_attn.q_proj.weight": "(g r (q: d + gate: d)) e",
            "model.{*m}.self_attn.k_proj.weight": "k: (g d) e",
            "model.{*m}.self_attn.v_proj.weight": "v: (g d) e" } },
    }));
    case.convert("gated/megatron", "hf", &["--axis", "g=4", "--axis", "d=2"]).ok();
    case.check_as_named();
}

fn qkv_14(case: &Case) {
    fused_family(case, "attn.qkv.weight");
    let run = case.refused(case.convert("fused", "apart", &[]), "");
    assert!(run.stderr.contains("--axis"), "{}", run.stderr);
    // Neither reading of 16 rows is taken without being told.
    case.convert("fused", "apart", &["--axis", "h=4", "--axis", "g=2"]).ok();
    assert_eq!(case.output()["q"].shape, [8, 8]);
    case.convert("fused", "apart", &["--axis", "h=2", "--axis", "g=1"]).ok();
    assert_eq!(case.output()["k"].shape, [4, 8]);
}

fn qkv_16(case: &Case) {
    case.refused(case.convert("pytorch-kdim", "pytorch-fused", &["--axis", "h=2"]), "fuse");
    case.convert("pytorch-kdim", "separate", &["--axis", "h=2"]).ok();
    case.check(|key| format!("mha.{key}"));
}

fn tr_01(case: &Case) {
    let axes = json!({ "i": "in", "o": "out", "f": "hidden", "t": "three parts" });
    let params = json!({ "o": "i o", "fc": "i f", "qkv": "i t" });
    let keys = ["h.{l}.attn.c_proj.weight", "h.{l}.mlp.c_fc.weight", "h.{l}.attn.c_attn.weight"];
    let axes = {
        let mut axes = axes;
        axes["l"] = json!("layer");
        axes
    };
    let params = {
        let mut all = params;
        for (_, axes) in all.as_object_mut().expect("a map") {
            *axes = json!(format!("l {}", axes.as_str().expect("text")));
        }
        all
    };
    case.mapping(
        "gpt2",
        axes,
        params,
        json!({
            "conv1d": { "tensors": { keys[0]: "o: i o", keys[1]: "fc: i f", keys[2]: "qkv: i t" } },
            "linear": { "tensors": { keys[0]: "o: o i", keys[1]: "fc: f i", keys[2]: "qkv: t i" } },
        }),
    );
    case.convert("gpt2/conv1d", "linear", &[]).ok();
    case.check_as_named();
}

fn tr_03(case: &Case) {
    let axes = json!({ "h": "heads", "d": "head size", "e": "width", "o": "output width" });
    let params = json!({ "q": "h d e", "o": "o h d", "q.b": "h d", "o.b": "o" });
    case.mapping(
        "keras",
        axes,
        params,
        json!({
            "keras": { "tensors": { "mha/query/kernel": "q: e h d", "mha/attention_output/kernel": "o: h d o",
                "mha/query/bias": "q.b: h d", "mha/attention_output/bias": "o.b: o" } },
            "linear": { "tensors": { "q_proj.weight": "q: (h d) e", "o_proj.weight": "o: o (h d)",
                "q_proj.bias": "q.b: (h d)", "o_proj.bias": "o.b: o" } },
        }),
    );
    case.convert("keras/keras", "linear", &[]).ok();
    case.check_as_named();
}

fn tr_04(case: &Case) {
    case.mapping(
        "t5",
        json!({ "h": "heads", "b": "buckets" }),
        json!({ "w": "h b" }),
        json!({
            "t5x": { "tensors": { "encoder/relpos_bias/rel_embedding": "w: h b" } },
            "pytorch": { "tensors": {
                "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": "w: b h" } },
        }),
    );
    case.convert("t5x", "pytorch", &[]).ok();
    case.check_as_named();
}

fn tr_05(case: &Case) {
    let map = |stored: &str| {
        case.mapping(
            "scan",
            json!({ "l": "layers", "h": "heads", "d": "head size", "e": "width" }),
            json!({ "q": "l h d e" }),
            json!({
                "scanned": { "tensors": { "decoder/layers/self_attention/query/kernel": stored },
                    "config": { "l": "num_layers" } },
                "layers": { "tensors": { "layers.{l}.q_proj.weight": "q: (h d) e" } },
            }),
        );
    };
    case.folder.put("config.json", case.input["config"].to_string());
    map("q: l e h d");
    case.refused(case.convert("scanned", "layers", &[]), "wrong_axis0");
    map("q: e l h d");
    case.convert("scanned", "layers", &[]).ok();
    case.check_as_named();
}

fn tr_07(case: &Case) {
    let axes = json!({ "y": "height", "x": "width", "i": "in", "o": "out", "t": "time", "v": "entries",
        "w": "width of an entry", "j": "dense in", "p": "dense out", "n": "norm", "k": "conv in", "q": "conv out" });
    let params = json!({ "patch": "o i y x", "conv": "q k t", "embed": "v w", "dense": "p j", "norm": "n" });
    case.mapping(
        "vit",
        axes,
        params,
        json!({
            "flax": { "tensors": { "patch/kernel": "patch: y x i o", "conv/kernel": "conv: t k q",
                "embed/embedding": "embed: v w", "dense/kernel": "dense: j p", "ln/scale": "norm: n" } },
            "pytorch": { "tensors": { "patch.weight": "patch: o i y x", "conv.weight": "conv: q k t",
                "embed.weight": "embed: v w", "dense.weight": "dense: p j", "ln.weight": "norm: n" } },
        }),
    );
    case.convert("vit/flax", "vit/pytorch", &[]).ok();
    case.check_as_named();
}

/// A family of q and k alone, with rotary pairs half-split or interleaved.
fn rotary(case: &Case, source: [(&str, &str); 2], target: [(&str, &str); 2]) {
    let axes = json!({ "h": "heads", "g": "groups", "d": { "is": "c f" }, "c": { "size": 2 }, "f": "pairs", "e": "width" });
    let params = json!({
        "q": { "axes": "h d e", "optional": true }, "k": { "axes": "g d e", "optional": true },
        "q.b": { "axes": "h d", "optional": true }, "k.b": { "axes": "g d", "optional": true },
    });
    let layout = |names: [(&str, &str); 2]| {
        let [(q, k), (qb, kb)] = names;
        json!({ q: "q: (h d) e", k: "k: (g d) e", qb: "q.b: (h d)", kb: "k.b: (g d)" })
    };
    case.mapping("rotary", axes, params, json!({
        "half": { "tensors": layout(source), "config": { "h": "num_heads", "g": "num_kv_heads", "d": "head_dim" } },
        "half-other": { "tensors": layout(target) },
        "interleaved": { "tensors": layout(target), "axes": { "d": "f c" } },
        "interleaved-same": { "tensors": layout(source), "axes": { "d": "f c" } },
    }));
}

const PROJ: [(&str, &str); 2] = [("q_proj.weight", "k_proj.weight"), ("q_proj.bias", "k_proj.bias")];

fn rope_01(case: &Case) {
    let attn = "model.layers.0.self_attn";
    let names =
        ["q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"].map(|name| format!("{attn}.{name}"));
    let [q, k, qb, kb] = &names;
    rotary(case, [(q, k), (qb, kb)], [("q", "k"), ("q.bias", "k.bias")]);
    case.convert("half", "interleaved", &["--axis", "h=8", "--axis", "g=2"]).ok();
    case.check_as_named();
}

fn rope_02(case: &Case) {
    rotary(case, PROJ, [("wq", "wk"), ("bq", "bk")]);
    for (from, to, what) in [
        ("half", "interleaved", "half_to_interleaved"),
        ("interleaved-same", "half-other", "interleaved_to_half"),
    ] {
        case.convert(from, to, &["--axis", "h=1"]).ok();
        case.check_tensor(what, &case.expected["tensors"][what], &case.output()["wq"]);
    }
    case.convert("half", "interleaved", &["--axis", "h=1"]).ok();
    let back = [
        "--mapping",
        "m.json",
        "--from",
        "interleaved",
        "--to",
        "half",
        "out.safetensors",
        "back.safetensors",
    ];
    case.folder.run(&back).ok();
    assert_eq!(kit::read(&case.folder.join("back.safetensors")), case.tensors());
}

fn rope_04(case: &Case) {
    rotary(case, PROJ, [("wq.weight", "wk.weight"), ("bq", "bk")]);
    let run = case.convert("half", "interleaved", &["--axis", "h=1"]).ok();
    case.check_as_named();
    assert!(run.stderr.contains("d = f c"), "{}", run.stderr);
}

fn rope_05(case: &Case) {
    rotary(case, PROJ, [("wq", "wk"), ("q.bias", "k.bias")]);
    case.convert("half", "interleaved", &["--axis", "h=1", "--axis", "g=1"]).ok();
    case.check_as_named();
}

fn rope_07(case: &Case) {
    let product = |key: &str| json!({ "weight": key, "apply": "linear" });
    case.mapping(
        "fusing",
        json!({ "h": "heads", "g": "groups", "d": { "is": "c f" }, "c": { "size": 2 }, "f": "pairs",
            "dv": "head size of v", "e": "width" }),
        json!({ "q": "h d e", "k": "g d e", "v": "g dv e" }),
        json!({
            "half": { "tensors": { "wq": "q: (h d) e", "wk": "k: (g d) e", "wv": "v: (g dv) e" },
                "config": { "h": "num_heads", "g": "num_kv_heads", "d": "head_dim" },
                "forward": { "source": "the case", "rotary": "half",
                    "q": product("wq"), "k": product("wk"), "v": product("wv") } },
            "interleaved": { "tensors": { "wqkv": "(q: h d + k: g d + v: g dv) e" }, "axes": { "d": "f c" },
                "forward": { "source": "the case", "rotary": "interleaved",
                    "qkv": { "weight": "wqkv", "apply": "linear", "cut": "blocks", "order": "q k v" } } },
        }),
    );
    case.folder.put("config.json", case.input["config"].to_string());
    let run = case.convert("half", "interleaved", &[]).ok();
    for said in ["attention of 1 module agrees in both files", "axes reordered", "d = f c"] {
        assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
    }
    // Of the fused rows those of q and k are others than the source's, in the order of the pairs; those of v are not.
    let (source, fused) = (case.tensors(), case.output()["wqkv"].clone());
    let part = |at: usize| fused.bytes[at * 576..][..576].to_vec();
    let pairs: Vec<u64> = (0..3).flat_map(|head| [0, 2, 1, 3].map(|row| head * 4 + row)).collect();
    for (at, key) in ["wq", "wk"].into_iter().enumerate() {
        assert_ne!(part(at), source[key].bytes, "{key}");
        assert_eq!(part(at), rows(&source[key], &json!(pairs)), "{key}");
    }
    assert_eq!(part(2), source["wv"].bytes);
    // The rows as they were, under the name of the other order, are found to be wrong.
    let verify = ["verify", "--mapping", "m.json", "--from", "half", "--to", "interleaved"];
    let verify = [&verify[..], &["--config", "config.json", "in.safetensors", "raw.safetensors"]].concat();
    case.folder.tensors("raw.safetensors", &case.output());
    case.folder.run(&verify).ok();
    let raw = ["wq", "wk", "wv"].iter().flat_map(|key| source[*key].bytes.clone()).collect();
    case.folder.tensors("raw.safetensors", &[("wqkv".to_owned(), Tensor::new("F32", &[36, 12], raw))].into());
    let run = case.folder.run(&verify);
    assert!(run.code == 3 && run.stderr.contains("wqkv"), "{}", run.stderr);
}

/// Adds BEiT's layout: biases of q and v, none of k.
fn beit(case: &Case) {
    case.extend(json!({ "beit": { "tensors": {
        "{*m}.qkv.weight": "(q.weight: h d + k.weight: g d + v.weight: g dv) e",
        "{*m}.q_bias": "q.bias: (h d)", "{*m}.v_bias": "v.bias: (g dv)",
    }, "defaults": { "g": "h", "dv": "d" } } }));
}

fn kb_01(case: &Case) {
    beit(case);
    case.convert("beit", "timm", &["--axis", "h=2"]).ok();
    case.check_as_named();
    // The way back has no place for the zeros, and needs none.
    let back =
        ["--mapping", "m.json", "--from", "timm", "--to", "beit", "out.safetensors", "back.safetensors"];
    case.folder.run(&back).ok();
    assert_eq!(kit::read(&case.folder.join("back.safetensors")), case.tensors());
}

fn kb_02(case: &Case) {
    let run = case.convert("separate", "phi3", &["--axis", "h=2"]).ok();
    case.check_as_named();
    assert!(run.stderr.contains("filled with zeros"), "{}", run.stderr);
    // A family that does not say so refuses a part of a bias.
    std::fs::remove_file(case.folder.join("out.safetensors")).expect("was there");
    let mut params = json!({ "q.w": "d e", "k.w": "d e", "v.w": "d e" });
    for name in ["q.b", "k.b", "v.b"] {
        params[name] = json!({ "axes": "d", "optional": true });
    }
    let proj = |part: &str, what: &str| format!("{{*m}}.{part}_proj.{what}");
    case.mapping("strict", json!({ "d": "rows", "e": "width" }), params, json!({
        "apart": { "tensors": {
            proj("q", "weight"): "q.w: d e", proj("k", "weight"): "k.w: d e", proj("v", "weight"): "v.w: d e",
            proj("q", "bias"): "q.b: d", proj("k", "bias"): "k.b: d", proj("v", "bias"): "v.b: d" } },
        "fused": { "tensors": { proj("qkv", "weight"): "(q.w: d + k.w: d + v.w: d) e",
            proj("qkv", "bias"): "(q.b: d + k.b: d + v.b: d)" } },
    }));
    case.refused(case.convert("apart", "fused", &[]), "without_option");
}

fn kb_03(case: &Case) {
    let params = json!({ "k.b": { "axes": "d", "absent": "zeros" }, "w": { "axes": "d", "optional": true } });
    case.mapping(
        "bias",
        json!({ "d": "rows" }),
        params,
        json!({
            "with": { "tensors": { "k_proj.bias": "k.b: d", "w": "w: d" } },
            "without": { "tensors": { "w": "w: d" } },
        }),
    );
    case.refused(case.convert("with", "without", &[]), "");
}

fn key_01(case: &Case) {
    let text = json!({ "format": 1, "family": "norms", "about": "", "unmapped": "keep", "axes": { "n": "width" },
        "params": { "w": "n", "b": "n" }, "layouts": {
            "tf": { "tensors": { "{*m}.LayerNorm.gamma": "w: n", "{*m}.LayerNorm.beta": "b: n" } },
            "torch": { "tensors": { "{*m}.LayerNorm.weight": "w: n", "{*m}.LayerNorm.bias": "b: n" } } } });
    case.folder.put("m.json", text.to_string());
    case.convert("norms/tf", "norms/torch", &[]).ok();
    let mut wanted: Vec<&str> =
        case.expected["keys"].as_array().expect("keys").iter().filter_map(Value::as_str).collect();
    wanted.sort_unstable();
    assert_eq!(case.output().keys().map(String::as_str).collect::<Vec<_>>(), wanted);
    for (old, new) in [
        ("encoder.LayerNorm.gamma", "encoder.LayerNorm.weight"),
        ("blocks.0.ls1.gamma", "blocks.0.ls1.gamma"),
    ] {
        assert_eq!(case.output()[new], case.tensors()[old]);
    }
}

fn key_02(case: &Case) {
    let text = json!({ "format": 1, "family": "w", "about": "", "unmapped": "keep", "axes": { "n": "width" },
        "params": { "w": "n" }, "layouts": {
            "a": { "tensors": { "layers.0.w": "w: n" } }, "b": { "tensors": { "layers.0.w": "w: n" } } } });
    case.folder.put("m.json", text.to_string());
    let strip = ["--strip-prefix", "module", "--strip-prefix", "_orig_mod"];
    case.convert("w/a", "w/b", &strip).ok();
    let mut wanted: Vec<&str> =
        case.expected["keys"].as_array().expect("keys").iter().filter_map(Value::as_str).collect();
    wanted.sort_unstable();
    assert_eq!(case.output().keys().map(String::as_str).collect::<Vec<_>>(), wanted);
    // Prefixes on some names alone are an error until allowed.
    let one = Tensor::index(&[1], 0);
    case.folder.tensors(
        "in.safetensors",
        &Tensors::from([("module.layers.0.w".into(), one.clone()), ("b".into(), one)]),
    );
    case.convert("w/a", "w/b", &strip).fails(&["prefix", "tensor: b", "--allow mixed-prefix"]);
    case.convert("w/a", "w/b", &[&strip[..], &["--allow", "mixed-prefix"]].concat()).ok();
    assert_eq!(case.output().into_keys().collect::<Vec<_>>(), ["b", "layers.0.w"]);
}

fn key_04(case: &Case) {
    let text = json!({ "format": 1, "family": "w", "about": "", "unmapped": "keep", "axes": { "n": "width" },
        "params": { "w": "n" }, "layouts": {
            "a": { "tensors": { "{*m}.base_layer.weight": "w: n" } },
            "b": { "tensors": { "{*m}.weight": "w: n" } } } });
    case.folder.put("m.json", text.to_string());
    case.refused(case.convert("w/a", "w/b", &[]), "");
}

fn key_06(case: &Case) {
    let bias = |name: &str| (name.to_owned(), json!("l d"));
    let params: Value = ["q", "k", "v"].map(bias).into_iter().collect::<serde_json::Map<_, _>>().into();
    case.mapping(
        "gpt2",
        json!({ "l": "layers", "d": "rows" }),
        params,
        json!({
            "gpt2": { "tensors": { "h.{l}.attn.c_attn.bias": "(q: d + k: d + v: d)" },
                "ignore": ["h.{l}.attn.bias", "h.{l}.attn.masked_bias"] },
            "apart": { "tensors": { "q.bias": "q: l d", "k.bias": "k: l d", "v.bias": "v: l d" } },
        }),
    );
    case.convert("gpt2/gpt2", "gpt2/apart", &["--report", "report.json"]).ok();
    // One layer: the same bytes, with its axis before them.
    for (key, about) in case.expected["tensors"].as_object().expect("tensors") {
        let made = &case.output()[key];
        assert_eq!(
            (hash(made).as_str(), &made.shape[..]),
            (about["sha256_le"].as_str().expect("a hash"), &[1, 2][..])
        );
    }
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(case.folder.join("report.json")).expect("a report"))
            .expect("JSON");
    let dropped: Vec<&Value> =
        report["dropped"].as_array().expect("a list").iter().map(|entry| &entry["key"]).collect();
    let wanted: Vec<&Value> = case.expected["dropped"].as_array().expect("a list").iter().collect();
    assert_eq!(dropped.len(), wanted.len());
    assert!(wanted.iter().all(|key| dropped.contains(key)), "{dropped:?}");
}

fn key_08(case: &Case) {
    let axes = json!({ "l": "layers", "d": "rows", "e": "width" });
    let params = json!({ "q": "l d e", "k": "l d e", "v": "l d e" });
    let rules = |prefix: &str| {
        json!({ "tensors": {
        format!("{prefix}.{{l}}.q_proj.weight"): "q: d e", format!("{prefix}.{{l}}.k_proj.weight"): "k: d e",
        format!("{prefix}.{{l}}.v_proj.weight"): "v: d e" } })
    };
    case.mapping("wrong", axes, params, json!({ "a": rules("model.layers"), "b": rules("layers") }));
    let run = case.refused(case.convert("wrong/a", "wrong/b", &[]), "");
    assert!(run.stderr.contains("0 of 3 source tensors matched"), "{}", run.stderr);
}

fn key_09(case: &Case) {
    case.mapping(
        "tf",
        json!({ "l": "layers", "o": "out", "i": "in" }),
        json!({ "q": "l o i" }),
        json!({
            "tf": { "tensors": { "bert/encoder/layer_{l}/attention/self/query/kernel": "q: i o" },
                "ignore": ["{*m}/adam_m", "{*m}/adam_v", "{*m}/k_slot_vr", "global_step"] },
            "torch": { "tensors": { "bert.encoder.layer.{l}.attention.self.query.weight": "q: o i" } },
        }),
    );
    let run = case.convert("tf/tf", "tf/torch", &[]).ok();
    case.check_as_named();
    assert_eq!(case.output().len(), 1);
    assert!(run.stderr.contains("4 tensors ("), "{}", run.stderr);
}

fn key_15(case: &Case) {
    case.mapping(
        "gemma",
        json!({ "e": "width" }),
        json!({ "n": "e" }),
        json!({
            "hf": { "tensors": { "model.norm.weight": "n: e" } },
            "gguf": { "tensors": { "output_norm.weight": { "is": "n: e", "offset": 1 } } },
        }),
    );
    case.convert("gemma/hf", "gguf", &["--report", "report.json"]).ok();
    case.check_as_named();
    let report = std::fs::read_to_string(case.folder.join("report.json")).expect("a report");
    assert!(report.contains("converted"), "a change of values is reported: {report}");
    let back =
        ["--mapping", "m.json", "--from", "gguf", "--to", "gemma/hf", "out.safetensors", "back.safetensors"];
    case.folder.run(&back).ok();
    assert_eq!(kit::read(&case.folder.join("back.safetensors")), case.tensors());
    // Twice is noticed: the file records what it holds.
    let twice =
        ["--mapping", "m.json", "--from", "gemma/hf", "--to", "gguf", "out.safetensors", "twice.safetensors"];
    case.folder.run(&twice).fails(&["gemma/gguf", "out.safetensors"]);
}

fn key_16(case: &Case) {
    case.mapping(
        "vocabulary",
        json!({ "v": "entries", "pad": "padding", "e": "width" }),
        json!({ "tok": "v e" }),
        json!({
            "padded": { "tensors": { "word_embeddings.weight": "(tok: v + _: pad) e" } },
            "plain": { "tensors": { "word_embeddings.weight": "tok: v e" } },
        }),
    );
    // The padding row holds values: that is said, and allowed by one word.
    case.convert("padded", "plain", &["--axis", "v=5"])
        .fails(&["word_embeddings.weight", "--allow nonzero-padding"]);
    case.convert("padded", "plain", &["--axis", "v=5", "--allow", "nonzero-padding"]).ok();
    let about = &case.expected["tensors"];
    case.check_tensor("sliced", &about["sliced"], &case.output()["word_embeddings.weight"]);
    case.folder.tensors("in.safetensors", &case.output());
    case.convert("plain", "padded", &["--axis", "pad=3"]).ok();
    case.check_tensor("padded", &about["padded"], &case.output()["word_embeddings.weight"]);
}

fn key_17(case: &Case) {
    fused_family(case, "qkv.weight");
    case.folder.put("config.json", case.input["config"].to_string());
    case.convert("fused", "apart", &[]).ok();
    case.check_as_named();
    // The rows tell the head size, so the config need not; a wrong one is refused with the one that fits.
    std::fs::remove_file(case.folder.join("config.json")).expect("was there");
    case.convert("fused", "apart", &["--axis", "h=4", "--axis", "g=2"]).ok();
    case.check_as_named();
    std::fs::remove_file(case.folder.join("out.safetensors")).expect("was there");
    let wrong = case.convert("fused", "apart", &["--axis", "h=4", "--axis", "g=2", "--axis", "d=3"]);
    let wrong = case.refused(wrong, "without_head_dim");
    assert!(wrong.stderr.contains("`d` = 2"), "{}", wrong.stderr);
}

fn key_18(case: &Case) {
    let axes = json!({ "g": "groups", "r": "heads of a group", "d": "head size", "e": "width" });
    case.mapping(
        "heads",
        axes,
        json!({ "k": "g d e" }),
        json!({
            "grouped": { "tensors": { "k_proj.weight": "k: (g d) e" } },
            "expanded": { "tensors": { "k_expanded": "k: (g r d) e" } },
            "lens": { "tensors": { "W_K_per_head": "k: g e d" } },
        }),
    );
    let sizes = ["--axis", "g=2", "--axis", "r=2"];
    for (to, key) in [("expanded", "k_expanded"), ("lens", "W_K_per_head")] {
        case.convert("grouped", to, &sizes).ok();
        case.check_tensor(key, &case.expected["tensors"][key], &case.output()[key]);
    }
    case.convert("grouped", "lens", &["--axis", "g=3"]).fails(&["k_proj.weight", "[4, 2]", "`g` = 1, 2, 4"]);
    // The copies must be equal on the way back.
    case.convert("grouped", "expanded", &sizes).ok();
    let mut copies = case.output();
    let back = [
        "--mapping",
        "m.json",
        "--from",
        "expanded",
        "--to",
        "grouped",
        "other.safetensors",
        "back.safetensors",
        "--axis",
        "g=2",
        "--axis",
        "r=2",
    ];
    case.folder.tensors("other.safetensors", &copies);
    case.folder.run(&back).ok();
    assert_eq!(kit::read(&case.folder.join("back.safetensors")), case.tensors());
    copies.get_mut("k_expanded").expect("is there").bytes[17] ^= 1;
    case.folder.tensors("other.safetensors", &copies);
    case.folder.run(&[&back[..], &["--force"]].concat()).fails(&["k_expanded", "differ"]);
}

fn lora_01(case: &Case) {
    let axes = json!({ "d": "rows", "r": "rank", "e": "width" });
    let params = json!({ "a": "r e", "q": "d r", "k": "d r", "v": "d r", "alpha": "" });
    case.mapping(
        "lora",
        axes,
        params,
        json!({
            "fused": { "tensors": { "blk.qkv.lora_down.weight": "a: r e",
                "blk.qkv.lora_up.weight": "(q: d + k: d + v: d) r", "blk.qkv.alpha": "alpha:" } },
            "apart": { "tensors": {
                "to_q.lora_A": "a: r e", "to_k.lora_A": "a: r e", "to_v.lora_A": "a: r e",
                "to_q.lora_B": "q: d r", "to_k.lora_B": "k: d r", "to_v.lora_B": "v: d r",
                "to_q.alpha": "alpha: 1", "to_k.alpha": "alpha: 1", "to_v.alpha": "alpha: 1" } },
        }),
    );
    case.convert("lora/fused", "lora/apart", &[]).ok();
    case.check_as_named();
    let back = [
        "--mapping",
        "m.json",
        "--from",
        "lora/apart",
        "--to",
        "lora/fused",
        "apart.safetensors",
        "back.safetensors",
    ];
    let mut apart = case.output();
    case.folder.tensors("apart.safetensors", &apart);
    case.folder.run(&back).ok();
    assert_eq!(kit::read(&case.folder.join("back.safetensors")), case.tensors());
    // Three A matrices that differ are not averaged into one.
    apart.get_mut("to_k.lora_A").expect("is there").bytes[5] ^= 1;
    case.folder.tensors("apart.safetensors", &apart);
    case.folder.run(&[&back[..], &["--force"]].concat()).fails(&["to_k.lora_A", "differ"]);
}

fn lora_02(case: &Case) {
    let axes = json!({ "d": "rows", "r": "rank", "e": "width" });
    let mut params = json!({ "alpha": "" });
    for part in ["q", "k", "v"] {
        params[format!("{part}.a")] = json!("r e");
        params[format!("{part}.b")] = json!("d r");
    }
    case.mapping(
        "lora",
        axes,
        params,
        json!({
            "apart": { "tensors": {
                "q_proj.lora_A": "q.a: r e", "k_proj.lora_A": "k.a: r e", "v_proj.lora_A": "v.a: r e",
                "q_proj.lora_B": "q.b: d r", "k_proj.lora_B": "k.b: d r", "v_proj.lora_B": "v.b: d r",
                "q_proj.alpha": "alpha:", "k_proj.alpha": "alpha:", "v_proj.alpha": "alpha:" } },
            "fused": { "tensors": { "qkv.lora_A": "(q.a: r + k.a: r + v.a: r) e",
                "qkv.lora_B": "(q.b: d + k.b: d + v.b: d) (q.b: r + k.b: r + v.b: r)",
                "qkv.alpha": { "is": "alpha: 1", "scale": 3 } } },
        }),
    );
    case.convert("lora/apart", "lora/fused", &[]).ok();
    case.check_as_named();
    let fused = case.output();
    let back = [
        "--mapping",
        "m.json",
        "--from",
        "lora/fused",
        "--to",
        "lora/apart",
        "fused.safetensors",
        "back.safetensors",
    ];
    case.folder.tensors("fused.safetensors", &fused);
    case.folder.run(&back).ok();
    assert_eq!(kit::read(&case.folder.join("back.safetensors")), case.tensors());
    // What stands between the blocks must be zeros.
    let mut wrong = fused;
    wrong.get_mut("qkv.lora_B").expect("is there").bytes[13] = 1;
    case.folder.tensors("fused.safetensors", &wrong);
    case.folder.run(&[&back[..], &["--force"]].concat()).fails(&["qkv.lora_B", "not zero"]);
}

fn dt_01(case: &Case) {
    case.convert("timm", "separate", &["--axis", "h=1"]).ok();
    for (part, words) in case.expected["words_hex"].as_object().expect("words") {
        let about = json!({ "dtype": "BF16", "shape": [2, 1], "words_hex": words });
        assert_eq!(case.output()[&format!("{part}_proj.weight")], make(&about), "{part}");
    }
}

/// A family of one tensor `w`, all others pass through.
fn one_tensor(case: &Case) {
    let text = json!({ "format": 1, "family": "one", "about": "", "unmapped": "keep", "axes": { "n": "width" },
        "params": { "w": "n" }, "layouts": {
            "a": { "tensors": { "w": "w: n" } }, "b": { "tensors": { "w": "w: n" } } } });
    case.folder.put("m.json", text.to_string());
}

fn dt_04(case: &Case) {
    one_tensor(case);
    case.refused(case.convert("one/a", "one/b", &["--dtype", "f16"]), "");
    // Without the two that overflow: rounded, infinity kept, and the value that became zero is counted.
    let about = json!({ "dtype": "F32", "shape": [4], "values": [65504, 65519, 1e-8, "inf"] });
    case.folder.tensors("in.safetensors", &Tensors::from([("w".into(), make(&about))]));
    let run = case.convert("one/a", "one/b", &["--dtype", "f16"]).ok();
    let wanted = json!({ "dtype": "F16", "shape": [4], "values": [65504, 65504, 0, "inf"] });
    assert_eq!(case.output()["w"], make(&wanted));
    assert!(run.stderr.contains("w: 1 value became zero"), "{}", run.stderr);
}

fn dt_05(case: &Case) {
    one_tensor(case);
    case.convert("one/a", "one/b", &["--dtype", "f16"]).ok();
    case.check_as_named();
}

fn dt_06(case: &Case) {
    let axes = json!({ "d": "rows", "e": "width" });
    case.mapping(
        "mixed",
        axes,
        json!({ "q": "d e", "k": "d e", "v": "d e" }),
        json!({
            "apart": { "tensors": { "q": "q: d e", "k": "k: d e", "v": "v: d e" } },
            "fused": { "tensors": { "qkv": "(q: d + k: d + v: d) e" } },
        }),
    );
    case.refused(case.convert("apart", "fused", &[]), "");
    // F8 is not cast: its scale is not known.
    let run = case.refused(case.convert("apart", "fused", &["--dtype", "f32"]), "");
    assert!(run.stderr.contains("F8_E4M3 is not cast by --dtype"), "{}", run.stderr);
    let tensor = |dtype: &str| {
        make(&json!({ "dtype": dtype, "shape": [2, 2], "fill": { "kind": "index", "base": 3 } }))
    };
    let mixed = ["q", "k", "v"].into_iter().zip(["F16", "F32", "BF16"]);
    let mixed: Tensors = mixed.map(|(key, dtype)| (key.to_owned(), tensor(dtype))).collect();
    case.folder.tensors("in.safetensors", &mixed);
    case.convert("apart", "fused", &[]).fails(&["F16", "F32", "BF16", "--dtype"]);
    case.convert("apart", "fused", &["--dtype", "f32"]).ok();
    assert_eq!(case.output()["qkv"].values(), [3., 4., 5., 6.].repeat(3));
}

/// A weight and its scales per block of 128 rows.
fn scaled(case: &Case) {
    let axes = json!({ "h": { "is": "g r" }, "g": "groups", "r": "heads of a group", "d": { "is": "b s" }, "b": "blocks of a head", "s": { "size": 128 },
        "e": { "is": "eb es" }, "eb": "blocks of a row", "es": { "size": 128 } });
    let mut params = json!({});
    for (part, heads) in [("q", "h"), ("k", "g"), ("v", "g")] {
        params[format!("{part}.w")] = json!(format!("{heads} d e"));
        params[format!("{part}.s")] = json!(format!("{heads} b eb"));
    }
    case.mapping(
        "scaled",
        axes,
        params,
        json!({
            "per-head": { "tensors": {
                "qkv_proj.weight": "(h (q.w: d + k.w: d + v.w: d)) e",
                "qkv_proj.weight_scale_inv": "(h (q.s: b + k.s: b + v.s: b)) eb" } },
            "parts": { "tensors": {
                "qkv_proj.weight": "(q.w: h d + k.w: g d + v.w: g d) e",
                "qkv_proj.weight_scale_inv": "(q.s: h b + k.s: g b + v.s: g b) eb" } },
            "fused": { "tensors": {
                "qkv.weight": "(q.w: h d + k.w: g d + v.w: g d) e",
                "qkv.weight_scale_inv": "(q.s: h b + k.s: g b + v.s: g b) eb" } },
            "apart": { "tensors": { "q": "q.w: (h d) e", "k": "k.w: (g d) e", "v": "v.w: (g d) e",
                "q_scale": "q.s: (h b) eb", "k_scale": "k.s: (g b) eb", "v_scale": "v.s: (g b) eb" } },
        }),
    );
}

fn dt_07(case: &Case) {
    scaled(case);
    case.convert("scaled/per-head", "parts", &["--axis", "h=2", "--axis", "g=2"]).ok();
    case.check_as_named();
    let weight = &case.output()["qkv_proj.weight"];
    let blocks: Vec<usize> = weight.bytes.chunks(256).step_by(128).map(|row| row[0].into()).collect();
    // Rows that begin blocks 0, 3, 1, 4, 2, 5.
    assert_eq!(blocks, [0, 384 % 120, 128 % 120, 512 % 120, 256 % 120, 640 % 120]);
}

fn dt_08(case: &Case) {
    scaled(case);
    let run = case.convert("scaled/fused", "scaled/apart", &["--axis", "h=3", "--axis", "g=1"]);
    // The blocks are axes of the mapping like any other: what does not divide is named by its rows.
    run.fails(&["qkv.weight_scale_inv", "[3, 1]", "`d` = 64", "128"]);
    let case_of = |q: u64, k: u64| {
        let rows = q + 2 * k;
        let weight =
            json!({ "dtype": "F8_E4M3", "shape": [rows, 128], "values": vec![1; rows as usize * 128] });
        let scale =
            json!({ "dtype": "F32", "shape": [rows / 128, 1], "fill": { "kind": "index", "base": 0 } });
        Tensors::from([("qkv.weight".into(), make(&weight)), ("qkv.weight_scale_inv".into(), make(&scale))])
    };
    case.folder.tensors("in.safetensors", &case_of(256, 128));
    case.convert("scaled/fused", "scaled/apart", &["--axis", "h=2", "--axis", "g=1"]).ok();
    let scales = ["q_scale", "k_scale", "v_scale"].map(|key| case.output()[key].values());
    assert_eq!(scales, [vec![0., 1.], vec![2.], vec![3.]]);
}

fn perf_02(case: &Case) {
    let tensors = case.tensors();
    let places: BTreeMap<String, String> =
        serde_json::from_value(case.input["weight_map"].clone()).expect("a map");
    std::fs::create_dir(case.folder.join("sharded")).expect("a folder");
    for shard in ["s1", "s2"] {
        let here = tensors.iter().filter(|(key, _)| places[*key] == shard);
        let here: Tensors = here.map(|(key, tensor)| (key.clone(), tensor.clone())).collect();
        case.folder.tensors(&format!("sharded/{shard}"), &here);
    }
    let index = json!({ "metadata": { "total_size": 192 }, "weight_map": places });
    case.folder.put("sharded/model.safetensors.index.json", index.to_string());
    for source in ["sharded", "sharded/model.safetensors.index.json"] {
        let args =
            ["--from", "separate", "--to", "phi3", "--axis", "h=2", "--force", source, "out.safetensors"];
        case.folder.run(&args).ok();
        case.check_as_named();
    }
}

/// Reads a file of that header with the family of one tensor.
fn read_header(case: &Case, header: &str, data: usize) -> Run {
    kit::write_raw(&case.folder.join("in.safetensors"), header, &vec![0; data]);
    case.convert("one/a", "one/b", &[])
}

fn text<'a>(case: &'a Case, place: &[&str]) -> &'a str {
    place.iter().fold(&case.input, |value, key| &value[*key]).as_str().expect("text")
}

fn sf_01(case: &Case) {
    one_tensor(case);
    let header = text(case, &["header"]);
    case.refused(read_header(case, header, 8), "");
    let escaped = header.replacen(",\"w\":", ",\"\\u0077\":", 1);
    assert_ne!(escaped, header);
    case.refused(read_header(case, &escaped, 8), "");
}

fn sf_02(case: &Case) {
    one_tensor(case);
    case.refused(read_header(case, text(case, &["header"]), 4), "");
}

fn sf_03(case: &Case) {
    one_tensor(case);
    let headers = case.input["headers"].as_array().expect("headers").clone();
    for header in &headers {
        case.refused(read_header(case, header.as_str().expect("text"), 16), "");
    }
}

fn sf_05(case: &Case) {
    let text_of = json!({ "format": 1, "family": "kv", "about": "", "unmapped": "keep", "axes": { "n": "width" },
        "params": { "k": "n", "v": "n" }, "layouts": {
            "a": { "tensors": { "k": "k: n", "v": "v: n" } }, "b": { "tensors": { "kv": "(k: n + v: n)" } } } });
    case.folder.put("m.json", text_of.to_string());
    let read = |what: &str, data: usize| {
        kit::write_raw(&case.folder.join("in.safetensors"), text(case, &["headers", what]), &vec![1; data]);
        case.convert("kv/a", "kv/b", &[])
    };
    case.refused(read("alias", 8), "alias");
    case.refused(read("hole", 12), "hole");
    read("unordered_ok", 8).ok();
    assert_eq!(case.output()["kv"].bytes, [1; 8]);
}

fn sf_07(case: &Case) {
    one_tensor(case);
    let pointer = text(case, &["files", "model.safetensors"]).to_owned();
    for (bytes, names) in [
        (pointer.as_bytes(), ["Git LFS pointer", "4976698672"]),
        (b"PK\x03\x04and more".as_slice(), ["zip archive", "in.safetensors"]),
        (b"\x80\x02and more bytes".as_slice(), ["torch.save", "pickle"]),
        (b"<!DOCTYPE html><p>".as_slice(), ["HTML", "in.safetensors"]),
    ] {
        case.folder.put("in.safetensors", bytes);
        case.convert("one/a", "one/b", &[]).fails(&names);
    }
}

fn sf_09(case: &Case) {
    let text_of = json!({ "format": 1, "family": "one", "about": "", "unmapped": "keep", "axes": { "n": "width" },
        "params": { "t": "n" }, "layouts": { "a": { "tensors": { "t": "t: n" } },
            "b": { "tensors": { "t": "t: n" } }, "c": { "tensors": { "__metadata__": "t: n" } } } });
    case.folder.put("m.json", text_of.to_string());
    let headers = case.input["headers"].as_array().expect("headers").clone();
    let header = |at: usize| headers[at].as_str().expect("text");
    case.refused(read_header(case, header(1), 1), "nonstring");
    read_header(case, header(0), 1).ok();
    case.convert("one/a", "one/c", &[]).fails(&["__metadata__"]);
    let kept = "{\"__metadata__\":{\"format\":\"pt\"},\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    read_header(case, kept, 1).ok();
    let (_, metadata) = kit::read_all(&case.folder.join("out.safetensors"));
    assert_eq!(metadata["format"], "pt");
}

fn sf_10(case: &Case) {
    one_tensor(case);
    let run = case.refused(read_header(case, text(case, &["header"]), 12), "");
    assert!(run.stderr.contains("4 bytes"), "{}", run.stderr);
    read_header(case, text(case, &["header"]), 20).fails(&["4 bytes"]);
}

/// Writes an index of one tensor `w` in that shard.
fn index_of(case: &Case, shard: &str) {
    let index = json!({ "weight_map": { "w": shard } });
    case.folder.put("model.safetensors.index.json", index.to_string());
}

fn read_index(case: &Case) -> Run {
    let args = [
        "--mapping",
        "m.json",
        "--from",
        "one/a",
        "--to",
        "one/b",
        "--force",
        "model.safetensors.index.json",
        "out.safetensors",
    ];
    case.folder.run(&args)
}

fn sf_11(case: &Case) {
    one_tensor(case);
    let w = Tensors::from([("w".to_owned(), Tensor::index(&[3], 0))]);
    let outside = Folder::new();
    outside.tensors("a.safetensors", &w);
    case.refused(
        {
            index_of(case, "../a.safetensors");
            read_index(case)
        },
        "",
    );
    for shard in ["/etc/a.safetensors", "sub/../../a.safetensors", "C:\\a.safetensors", "a\u{0}.safetensors"]
    {
        index_of(case, shard);
        read_index(case).fails(&["a"]);
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(outside.join("a.safetensors"), case.folder.join("link.safetensors"))
            .expect("a link");
        index_of(case, "link.safetensors");
        read_index(case).fails(&["link.safetensors", "--allow outside-link"]);
        let allowed = [
            "--allow",
            "outside-link",
            "--mapping",
            "m.json",
            "--from",
            "one/a",
            "--to",
            "one/b",
            "model.safetensors.index.json",
            "linked.safetensors",
        ];
        case.folder.run(&allowed).ok();
    }
    std::fs::create_dir(case.folder.join("sub")).expect("a folder");
    case.folder.tensors("sub/a.safetensors", &w);
    index_of(case, "sub/a.safetensors");
    read_index(case).ok();
    assert_eq!(case.output(), w);
}

fn sf_12(case: &Case) {
    one_tensor(case);
    case.folder.tensors(
        "model-00001-of-00002.safetensors",
        &Tensors::from([("a".to_owned(), Tensor::index(&[3], 0))]),
    );
    let index = json!({ "weight_map": case.input["weight_map"] });
    case.folder.put("model.safetensors.index.json", index.to_string());
    case.refused(read_index(case), "");
}

fn sf_13(case: &Case) {
    one_tensor(case);
    let one = |key: &str| Tensors::from([(key.to_owned(), Tensor::index(&[3], 0))]);
    case.folder.tensors("s1", &one("v"));
    case.folder.tensors("s2", &one("w"));
    let index = |map: Value| json!({ "metadata": { "total_size": 12345 }, "weight_map": map }).to_string();
    case.folder.put("model.safetensors.index.json", index(case.input["weight_map"].clone()));
    case.refused(read_index(case), "");
    // A wrong total alone is worth a warning.
    case.folder.put("model.safetensors.index.json", index(json!({ "v": "s1", "w": "s2" })));
    let run = read_index(case).ok();
    assert!(run.stderr.contains("warning") && run.stderr.contains("12345"), "{}", run.stderr);
}

fn sf_16(case: &Case) {
    one_tensor(case);
    // An execution that fails behind the point where files exist: values that overflow in a cast.
    let w = Tensor::f32(&[3], [1.0, 1e30, 2.0]);
    case.folder.tensors("in.safetensors", &Tensors::from([("w".to_owned(), w)]));
    let before = case.folder.names();
    case.convert("one/a", "one/b", &["--dtype", "f16"]).fails(&["w"]);
    assert_eq!(case.folder.names(), before, "nothing is left");
    case.convert("one/a", "one/b", &[]).ok();
    let old = std::fs::read(case.folder.join("out.safetensors")).expect("an output");
    case.convert("one/a", "one/b", &["--dtype", "f16"]).fails(&["w"]);
    assert_eq!(std::fs::read(case.folder.join("out.safetensors")).expect("still there"), old);
    assert_eq!(case.folder.names().len(), before.len() + 1);
}

fn st_04(case: &Case) {
    case.mapping(
        "two",
        json!({ "i": "rows", "j": "columns" }),
        json!({ "w": "i j" }),
        json!({
        "a": { "tensors": { "w": "w: i j" } }, "b": { "tensors": { "w": "w: j i" } } }),
    );
    case.convert("two/a", "two/b", &[]).ok();
    case.check_as_named();
}

fn st_07(case: &Case) {
    let text = json!({ "format": 1, "family": "edges", "about": "", "unmapped": "keep",
        "axes": { "m": "one", "n": "other" }, "params": { "b": "m n", "alpha": "" }, "layouts": {
            "a": { "tensors": { "b": "b: m n", "alpha": "alpha:" } },
            "b": { "tensors": { "b": "b: m n", "alpha": "alpha:" } },
            "split": { "tensors": { "b": "b: m n", "alpha": "alpha: 2" } } } });
    case.folder.put("m.json", text.to_string());
    case.convert("edges/split", "edges/b", &[]).fails(&["alpha"]);
    case.convert("edges/a", "edges/b", &[]).ok();
    assert_eq!(case.output(), case.tensors());
    for (key, length) in case.expected["byte_lengths"].as_object().expect("lengths") {
        assert_eq!(case.output()[key].bytes.len() as u64, length.as_u64().expect("a length"), "{key}");
    }
}

fn tie_04(case: &Case) {
    let axes = json!({ "v": "entries", "e": "width" });
    let tied = || json!({ "embed": "emb: v e", "lm_head.weight": { "is": "emb: v e", "optional": true } });
    let write = |params: Value, tensors: Value| {
        case.mapping(
            "tied",
            axes.clone(),
            params,
            json!({
            "a": { "tensors": tensors, "when": {} },
            "b": { "tensors": { "embed": "emb: v e", "lm_head.weight": "head: v e" } },
            "c": { "tensors": { "embed": "emb: v e", "lm_head.weight": "emb: v e" } } }),
        );
    };
    let embed = case.tensors()["embed"].clone();
    let both = |head: Tensor| {
        case.folder.tensors(
            "in.safetensors",
            &Tensors::from([("embed".to_owned(), embed.clone()), ("lm_head.weight".to_owned(), head)]),
        );
    };
    // Tied and absent: fine, and the copy is made where the target asks for it.
    write(json!({ "emb": "v e", "head": { "axes": "v e", "optional": true } }), tied());
    case.convert("tied/a", "tied/c", &[]).ok();
    assert_eq!(case.output()["lm_head.weight"], embed);
    case.convert("tied/a", "tied/a", &[]).ok();
    assert_eq!(case.output().len(), 1);
    // Tied, present and equal.
    both(embed.clone());
    case.convert("tied/a", "tied/c", &[]).ok();
    assert_eq!(case.output().len(), 2);
    // Tied, present and unequal.
    both(Tensor::index(&[4, 2], 50));
    case.convert("tied/a", "tied/c", &[]).fails(&["lm_head.weight", "differ"]);
    std::fs::remove_file(case.folder.join("out.safetensors")).expect("was there");
    // Untied and absent.
    case.folder.tensors("in.safetensors", &case.tensors());
    write(json!({ "emb": "v e", "head": "v e" }), tied());
    case.refused(case.convert("tied/b", "tied/b", &[]), "untied_absent");
}
