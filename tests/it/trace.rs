//! A rule that fails on a checkpoint is traced back to what somebody said: rule, tensor, sizes, the arithmetic.

use serde_json::{Value, json};

use crate::kit::{Folder, borrowed, of_shapes};

/// Converts a checkpoint of these shapes and returns the messages without the excerpts of mapping files, each with the
/// file of its rule.
fn told(list: &[(&str, &[u64])], config: &Value, from: &str, to: &str, more: &[&str]) -> Vec<String> {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(list));
    folder.put("config.json", config.to_string());
    let run = folder.convert(from, to, more);
    assert_eq!(run.code, 1, "{}", run.stderr);
    let mut lines = Vec::new();
    for line in run.stderr.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("--> ") {
            // Lines move with every edit of a mapping file.
            lines.push(format!("--> {}", place.split(':').next().unwrap_or_default()));
        } else if line.starts_with("error[") || (line.starts_with("= ") && !line.starts_with("= file: ")) {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// The shapes of one module's q, k and v.
fn separate(q: [u64; 2], k: [u64; 2], v: [u64; 2]) -> [(&'static str, Vec<u64>); 3] {
    [("a.q_proj.weight", q.to_vec()), ("a.k_proj.weight", k.to_vec()), ("a.v_proj.weight", v.to_vec())]
}

#[test]
fn a_wrong_number_of_heads() {
    let list = separate([70, 51], [70, 51], [70, 51]);
    let told = told(&borrowed(&list), &json!({ "num_attention_heads": 12 }), "separate", "per-head", &[]);
    assert_eq!(
        told,
        [
            "error[bind/indivisible]: 70 does not fit `(h d)`: 12 does not divide 70",
            "--> mappings/attention.json",
            "= tensor: a.q_proj.weight",
            "= expected: `(h d)` = 12 · d, with `h` = 12 (config.json `num_attention_heads`)",
            "= found: 70, axis 0 of [70, 51]",
            "= help: what would fit: `h` = 1, 2, 5, 7, 10, 14, 35, 70",
        ]
    );
}

#[test]
fn key_value_heads_that_do_not_divide() {
    let list = separate([96, 51], [40, 51], [40, 51]);
    let config = json!({ "num_attention_heads": 12, "num_key_value_heads": 5 });
    let told = told(&borrowed(&list), &config, "separate", "per-head", &[]);
    assert_eq!(
        told,
        [
            "error[bind/indivisible]: `h` = 12 does not fit its definition: 5 does not divide 12",
            "--> mappings/attention.json",
            "= expected: `h` = 5 · r, with `g` = 5 (config.json `num_key_value_heads`)",
            "= found: `h` = 12 (config.json `num_attention_heads`)",
            "= help: what would fit: `g` = 1, 2, 3, 4, 6, 12",
        ]
    );
}

#[test]
fn a_head_size_that_the_rows_contradict() {
    let list = separate([60, 51], [60, 51], [60, 51]);
    let config = json!({ "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16 });
    let told = told(&borrowed(&list), &config, "separate", "per-head", &[]);
    let of = |part: &str, heads: &str, from: &str| {
        [
            format!("error[bind/indivisible]: 60 does not fit `({heads} d)`: it is 4 · 16 = 64"),
            "--> mappings/attention.json".into(),
            format!("= tensor: a.{part}_proj.weight"),
            format!(
                "= expected: `({heads} d)` = 4 · 16, with `{heads}` = 4 (config.json `{from}`), `d` = 16 (config.json `head_dim`)"
            ),
            "= found: 60, axis 0 of [60, 51]".into(),
            // 16 divides into no number of heads.
            "= help: what would fit: `d` = 15".into(),
        ]
    };
    let wanted = [of("k", "g", "num_key_value_heads"), of("q", "h", "num_attention_heads")].concat();
    assert_eq!(told, wanted);
}

#[test]
fn dimensions_that_are_exchanged() {
    let list = separate([51, 70], [70, 51], [70, 51]);
    let told = told(&borrowed(&list), &json!({ "num_attention_heads": 10 }), "separate", "per-head", &[]);
    assert_eq!(
        told,
        [
            "error[bind/indivisible]: 51 does not fit `(h d)`: 10 does not divide 51",
            "--> mappings/attention.json",
            "= tensor: a.q_proj.weight",
            "= expected: `(h d)` = 10 · d, with `h` = 10 (config.json `num_attention_heads`)",
            "= found: 51, axis 0 of [51, 70]",
            "= help: axis 1, 70, would fit: if the tensor is stored transposed, another layout describes it; what would fit: `h` = 1, 3, 17, 51",
        ]
    );
}

#[test]
fn a_part_that_is_left_out_of_a_fused_tensor() {
    let list: &[(&str, &[u64])] = &[("a.in_proj_weight", &[180, 51]), ("a.in_proj_bias", &[60])];
    let sizes = ["--axis", "d=15", "--axis", "dv=15", "--axis", "g=4"];
    let told = told(list, &json!({ "num_attention_heads": 4 }), "pytorch-fused", "per-head", &sizes);
    assert_eq!(
        told,
        [
            "error[bind/indivisible]: 60 does not fit `(q.bias: h d + k.bias: g d + v.bias: g dv)`: it is 4 · 15 + 4 · 15 + 4 · 15 = 180",
            "--> mappings/attention.json",
            "= tensor: a.in_proj_bias",
            "= expected: `(q.bias: h d + k.bias: g d + v.bias: g dv)` = 4 · 15 + 4 · 15 + 4 · 15, with `h` = 4 (config.json `num_attention_heads`), `d` = 15 (--axis), `g` = 4 (--axis), `dv` = 15 (--axis)",
            "= found: 60, axis 0 of [60]",
            "= help: `q.bias` alone would take 60: `k.bias` and `v.bias` may be left out of this tensor",
        ]
    );
}

#[test]
fn two_sources_of_a_size() {
    let list = separate([60, 51], [60, 51], [60, 51]);
    let told = told(
        &borrowed(&list),
        &json!({ "num_attention_heads": 4 }),
        "separate",
        "per-head",
        &["--axis", "h=5"],
    );
    assert_eq!(
        told,
        [
            "error[bind/size-conflict]: `h` cannot have two sizes",
            "= expected: `h` = 5 (--axis)",
            "= found: `h` = 4 (config.json `num_attention_heads`)",
            "= help: the two must agree: correct the option or the config, or choose layouts that store them apart",
        ]
    );
}

/// A GPT-2 of one layer: 12 heads of 4, width 48.
fn gpt2(vocabulary: u64, output: u64, fc: [u64; 2]) -> Vec<(&'static str, Vec<u64>)> {
    vec![
        ("transformer.wte.weight", vec![vocabulary, 48]),
        ("transformer.wpe.weight", vec![7, 48]),
        ("transformer.h.0.ln_1.weight", vec![48]),
        ("transformer.h.0.ln_1.bias", vec![48]),
        ("transformer.h.0.attn.c_attn.weight", vec![48, 144]),
        ("transformer.h.0.attn.c_attn.bias", vec![144]),
        ("transformer.h.0.attn.c_proj.weight", vec![48, 48]),
        ("transformer.h.0.attn.c_proj.bias", vec![48]),
        ("transformer.h.0.ln_2.weight", vec![48]),
        ("transformer.h.0.ln_2.bias", vec![48]),
        ("transformer.h.0.mlp.c_fc.weight", fc.to_vec()),
        ("transformer.h.0.mlp.c_fc.bias", vec![190]),
        ("transformer.h.0.mlp.c_proj.weight", vec![190, 48]),
        ("transformer.h.0.mlp.c_proj.bias", vec![48]),
        ("transformer.ln_f.weight", vec![48]),
        ("transformer.ln_f.bias", vec![48]),
        ("lm_head.weight", vec![output, 48]),
    ]
}

#[test]
fn a_padded_vocabulary_and_a_transposed_weight() {
    let config = json!({ "n_head": 12, "vocab_size": 100, "tie_word_embeddings": false });
    let list = gpt2(100, 128, [48, 190]);
    let messages = told(&borrowed(&list), &config, "gpt2/hf", "gpt2/nanogpt", &[]).join("\n");
    for part in ["128 does not fit `v`: it is 100", "lm_head.weight", "the last 28 are padding", "`v` = 128"]
    {
        assert!(messages.contains(part), "{part}: {messages}");
    }
    let list = gpt2(100, 100, [190, 48]);
    let messages = told(&borrowed(&list), &config, "gpt2/hf", "gpt2/nanogpt", &[]).join("\n");
    for part in
        ["transformer.h.0.mlp.c_fc.weight", "axis 1, 48, would fit: if the tensor is stored transposed"]
    {
        assert!(messages.contains(part), "{part}: {messages}");
    }
}
