//! What names say: where the heads are likely, which axis is the vocabulary. Words for a reader, never a rule.

/// What a tensor's name says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The query projection.
    Query,
    /// The key projection.
    Key,
    /// The value projection.
    Value,
    /// Query, key and value in one.
    Fused,
    /// Key and value in one.
    KeyValue,
    /// The projection behind the heads.
    Output,
    /// One row for each token of a vocabulary.
    Tokens,
    /// One row for each position.
    Positions,
    /// One row for each kind of segment.
    Segments,
    /// A part of the feed-forward layer.
    FeedForward,
}

const QUERY: &[&str] = &[
    "q_proj",
    "query",
    "wq",
    "to_q",
    "q_lin",
    "linear_q",
    "query_proj",
    "q_linear",
    "w_q",
    "query_dense",
    "query_layer",
];
const KEY: &[&str] = &[
    "k_proj",
    "key",
    "wk",
    "to_k",
    "k_lin",
    "linear_k",
    "key_proj",
    "k_linear",
    "w_k",
    "key_dense",
    "key_layer",
];
const VALUE: &[&str] = &[
    "v_proj",
    "value",
    "wv",
    "to_v",
    "v_lin",
    "linear_v",
    "value_proj",
    "v_linear",
    "w_v",
    "value_dense",
    "value_layer",
];
const FUSED: &[&str] = &[
    "in_proj_weight",
    "in_proj_bias",
    "in_proj",
    "c_attn",
    "qkv",
    "qkv_proj",
    "wqkv",
    "to_qkv",
    "w_pack",
    "query_key_value",
    "linear_qkv",
];
const KEY_VALUE: &[&str] = &["kv", "kv_proj", "to_kv", "key_value", "c_kv", "linear_kv"];
const OUTPUT: &[&str] =
    &["out_proj", "o_proj", "wo", "to_out", "out_lin", "w_o", "output_dense", "linear_out"];
/// Names of the output projection that mean it only in an attention module.
const OUTPUT_THERE: &[&str] = &["proj", "c_proj", "dense", "o", "out"];
const FEED_FORWARD: &[&str] = &[
    "mlp",
    "ffn",
    "ff",
    "feed_forward",
    "feedforward",
    "intermediate",
    "fc1",
    "fc2",
    "linear1",
    "linear2",
    "lin1",
    "lin2",
    "c_fc",
    "up_proj",
    "gate_proj",
    "down_proj",
    "w1",
    "w2",
    "w3",
    "wi",
    "experts",
];
const POSITIONS: &[&str] = &["position", "pos_emb", "wpe", "positional"];
const SEGMENTS: &[&str] = &["token_type", "segment_emb", "type_emb"];
/// Rows of what is no vocabulary.
const NO_TOKENS: &[&str] = &["patch", "time", "rel", "norm", "rotary"];

/// Returns the segments of a name, without what says that it is a weight or a bias.
fn modules(name: &str) -> Vec<String> {
    let segments = name.split(['.', '/']).map(|segment| segment.split(':').next().unwrap_or(segment));
    let mut modules: Vec<String> = segments.map(str::to_lowercase).collect();
    if modules.len() > 1
        && modules.last().is_some_and(|last| {
            matches!(last.as_str(), "weight" | "bias" | "kernel" | "w" | "b" | "embedding" | "embeddings")
        })
    {
        modules.pop();
    }
    modules
}

/// Returns what a name says, where it says anything.
pub(super) fn role(name: &str) -> Option<Role> {
    let modules = modules(name);
    let last = modules.last()?.as_str();
    let path = modules.join(".");
    let is = |words: &[&str]| words.contains(&last);
    let holds = |words: &[&str]| words.iter().any(|word| path.contains(word));
    let in_attention = holds(&["attn", "attention"]);
    let letter = |letter: &str| in_attention && last == letter;
    if is(QUERY) || letter("q") {
        return Some(Role::Query);
    } else if is(KEY) || letter("k") {
        return Some(Role::Key);
    } else if is(VALUE) || letter("v") {
        return Some(Role::Value);
    } else if is(FUSED) {
        return Some(Role::Fused);
    } else if is(KEY_VALUE) {
        return Some(Role::KeyValue);
    } else if is(OUTPUT) || in_attention && is(OUTPUT_THERE) {
        return Some(Role::Output);
    }
    let embeds = last.contains("emb") || matches!(last, "wte" | "wpe" | "shared");
    if holds(POSITIONS) {
        Some(Role::Positions)
    } else if holds(SEGMENTS) {
        Some(Role::Segments)
    } else if embeds && !holds(NO_TOKENS) {
        Some(Role::Tokens)
    } else if modules.iter().any(|module| FEED_FORWARD.contains(&module.as_str())) {
        Some(Role::FeedForward)
    } else {
        None
    }
}

/// Returns whether the last axis of a matrix of that name is what it gives, as Keras and Flax store theirs.
pub(super) fn gives_last_axis(name: &str) -> bool {
    let last = name.rsplit(['.', '/']).next().unwrap_or(name);
    last.split(':').next() == Some("kernel")
}

/// Returns what to write instead once the heads are known. `outer` are the axes of the lists before the parameter's own,
/// `l ` or nothing.
pub(super) fn suggestion(role: Role, name: &str, shape: &[u64], outer: &str) -> Option<String> {
    let (what, param, row) = match role {
        Role::Query => ("the query", "h d", "(h d)"),
        Role::Key => ("the key", "g d", "(g d)"),
        Role::Value => ("the value", "g dv", "(g dv)"),
        Role::Output => ("the projection behind the heads", "h dv", "(h dv)"),
        Role::Fused => {
            let third = "(q: h d + k: g d + v: g dv)";
            let (matrix, each) =
                (place(name, shape, third)?, place(name, shape, "(h (q: d + k: d + v: dv))")?);
            return Some(format!(
                "by its name query, key and value in one; where they are parameters of their own, `{third}` stands for \
                 one after the other, here `{matrix}`, and `{each}` for head by head: names do not tell which"
            ));
        }
        Role::KeyValue => {
            let matrix = place(name, shape, "(k: g d + v: g dv)")?;
            return Some(format!(
                "by its name key and value in one; where they are parameters of their own, perhaps `{matrix}`"
            ));
        }
        _ => return None,
    };
    let is_output = role == Role::Output;
    let (axes, stored) = match (shape.len(), is_output) {
        (1, true) => return None,
        (1, false) => (format!("{outer}{param}"), row.to_owned()),
        (2, true) => (format!("{outer}e {param}"), heads_in(name, row)),
        (2, false) => (format!("{outer}{param} e"), place(name, shape, row)?),
        (3, true) => (format!("{outer}e {param}"), format!("{param} e` or `e {param}")),
        (3, false) => (format!("{outer}{param} e"), format!("e {param}` or `{param} e")),
        _ => return None,
    };
    Some(format!("by its name {what}: with heads `{axes}`, here `{stored}`"))
}

/// Returns a vector or a matrix that gives these rows. Only fused ones have more rows than columns for certain; a query
/// may well be narrower than the model.
fn place(name: &str, shape: &[u64], row: &str) -> Option<String> {
    let (by_row, by_column) = (format!("{row} e"), format!("e {row}"));
    let is_fused = row.contains('+');
    match *shape {
        [_] => Some(row.to_owned()),
        [_, _] if gives_last_axis(name) => Some(by_column),
        [rows, columns] if is_fused && rows > columns => Some(by_row),
        [rows, columns] if is_fused && rows < columns => Some(by_column),
        [_, _] => Some(format!("{by_row}` or, transposed, `{by_column}")),
        _ => None,
    }
}

/// Returns a matrix that takes these columns.
fn heads_in(name: &str, row: &str) -> String {
    let (by_row, by_column) = (format!("{row} e"), format!("e {row}"));
    if gives_last_axis(name) { by_row } else { format!("{by_column}` or, transposed, `{by_row}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_hold() {
        for (name, wanted) in [
            ("encoder.layer.0.attention.self.query.weight", Some(Role::Query)),
            ("decoder.block.1.layer.0.SelfAttention.q.weight", Some(Role::Query)),
            ("h.3.attn.c_attn.bias", Some(Role::Fused)),
            ("h.3.attn.c_proj.weight", Some(Role::Output)),
            ("h.3.mlp.c_proj.weight", Some(Role::FeedForward)),
            ("encoder/layer_0/attention/self/value/kernel:0", Some(Role::Value)),
            ("layers.0.self_attn.in_proj_weight", Some(Role::Fused)),
            ("embeddings.word_embeddings.weight", Some(Role::Tokens)),
            ("embeddings.position_embeddings.weight", Some(Role::Positions)),
            ("embeddings.patch_embeddings.projection.weight", None),
            ("encoder.layer.0.attention.output.LayerNorm.weight", None),
            ("k.weight", None),
        ] {
            assert_eq!(role(name), wanted, "{name}");
        }
    }

    #[test]
    fn a_transposed_matrix_is_seen_where_its_sizes_differ() {
        let of = |name, shape: &[u64]| suggestion(Role::Fused, name, shape, "l ").expect("a suggestion");
        assert!(of("c_attn.weight", &[6, 18]).contains("`e (q: h d + k: g d + v: g dv)`"));
        assert!(of("qkv.weight", &[18, 6]).contains("`(q: h d + k: g d + v: g dv) e`"));
        let query = |name, shape: &[u64]| suggestion(Role::Query, name, shape, "l ").expect("a suggestion");
        assert!(query("query.weight", &[6, 6]).contains("`(h d) e` or, transposed, `e (h d)`"));
        assert!(query("query/kernel", &[6, 6]).ends_with("here `e (h d)`"));
    }
}
