//! What a tensor's name says of another one to which it belongs: `q_proj.weight_scale_inv` is the scale of
//! `q_proj.weight`.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::fold::pattern;
use crate::mapping::key::{Captures, Paths};
use crate::mapping::{Layout, Mapping};

/// In what way a tensor belongs to a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Attachment {
    /// What stored values are multiplied by.
    Scale,
    /// What is subtracted from stored values before they are scaled.
    ZeroPoint,
    /// A quantised form of the weight, or a table that it needs.
    Codes,
    /// The order or the groups of its inputs.
    Order,
    /// Which of its elements count.
    Mask,
    /// A low-rank or other addition to it.
    Adapter,
    /// What it is computed from.
    Original,
    /// An optimizer's state.
    Moments,
    /// A bias under a name of its own.
    Bias,
    /// A norm of queries or keys.
    Norm,
    /// A table along an axis whose order changes.
    Table,
    /// Anything else under the projection's own module.
    Part,
}

impl Attachment {
    /// Returns what such tensors are.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Attachment::Scale => "scales of weights",
            Attachment::ZeroPoint => "zero points of weights",
            Attachment::Codes => "quantised forms of weights",
            Attachment::Order => "orders or groups of weights' inputs",
            Attachment::Mask => "masks of weights",
            Attachment::Adapter => "adapters of weights",
            Attachment::Original => "tensors that weights are computed from",
            Attachment::Moments => "an optimizer's state of weights",
            Attachment::Bias => "biases of projections",
            Attachment::Norm => "norms of queries or keys",
            Attachment::Table => "tables along an axis whose order changes",
            Attachment::Part => "other tensors of projections",
        }
    }

    /// Returns what to do about one that no rule holds: what gives right weights, never what loses it.
    pub(crate) fn help(self) -> &'static str {
        match self {
            Attachment::Scale | Attachment::ZeroPoint | Attachment::Codes | Attachment::Order => {
                "the layout does not convert quantised or scaled weights: dequantise the checkpoint first, and convert that"
            }
            Attachment::Mask => {
                "apply the mask to its tensor first (`torch.nn.utils.prune.remove`, or multiply), and convert that"
            }
            Attachment::Adapter => {
                "merge the adapter into its weights first (PEFT's `merge_and_unload`), and convert that"
            }
            Attachment::Original => {
                "let the framework compute the weights first (`torch.nn.utils.parametrize.remove_parametrizations`, `remove_weight_norm`), and convert those"
            }
            Attachment::Moments => {
                "an optimizer's state is of no use beside converted weights: leave it out with --drop"
            }
            Attachment::Bias | Attachment::Norm | Attachment::Table | Attachment::Part => {
                "use a layout whose rules hold it, or add one in a mapping file of your own (`qkvconv mapping new`, `extends`)"
            }
        }
    }

    /// Whether such a tensor can stand where its weight is not stored at all.
    fn replaces_weight(self) -> bool {
        matches!(self, Attachment::Codes | Attachment::Order | Attachment::Adapter | Attachment::Original)
    }
}

/// What stands behind a weight's name, or its module's, and `.`, `/` or `_`. A word that ends in `_` may go on.
///
/// Names of: compressed-tensors and fine-grained FP8 (weight_scale, weight_scale_inv, weight_packed, weight_shape,
/// input_scale), GPTQ and AWQ (qweight, qzeros, scales, g_idx), bitsandbytes (SCB, absmax, quant_map, quant_state,
/// nested_…), MLX (scales, biases), MXFP4 (…_blocks, …_scales), PEFT, LyCORIS and Kohya (lora_…, base_layer, alpha),
/// PyTorch's parametrizations, pruning and weight norm, PyTorch's and TensorFlow's optimizers.
const WORDS: &[(&str, Attachment)] = &[
    ("scale", Attachment::Scale),
    ("scales", Attachment::Scale),
    ("input_scale", Attachment::Scale),
    ("output_scale", Attachment::Scale),
    ("scb", Attachment::Scale),
    ("scaling_factor", Attachment::Scale),
    ("zeros", Attachment::ZeroPoint),
    ("zero_point", Attachment::ZeroPoint),
    ("zero_points", Attachment::ZeroPoint),
    ("qzeros", Attachment::ZeroPoint),
    ("zp", Attachment::ZeroPoint),
    ("biases", Attachment::ZeroPoint),
    ("qweight", Attachment::Codes),
    ("packed", Attachment::Codes),
    ("shape", Attachment::Codes),
    ("blocks", Attachment::Codes),
    ("absmax", Attachment::Codes),
    ("nested_absmax", Attachment::Codes),
    ("quant_map", Attachment::Codes),
    ("nested_quant_map", Attachment::Codes),
    ("quant_state", Attachment::Codes),
    ("weight_format", Attachment::Codes),
    ("codebooks", Attachment::Codes),
    ("codes", Attachment::Codes),
    ("g_idx", Attachment::Order),
    ("perm", Attachment::Order),
    ("mask", Attachment::Mask),
    ("lora_", Attachment::Adapter),
    ("dora_scale", Attachment::Adapter),
    ("lokr_", Attachment::Adapter),
    ("hada_", Attachment::Adapter),
    ("ia3_", Attachment::Adapter),
    ("oft_", Attachment::Adapter),
    ("alpha", Attachment::Adapter),
    ("base_layer", Attachment::Original),
    ("original", Attachment::Original),
    ("original0", Attachment::Original),
    ("original1", Attachment::Original),
    ("orig", Attachment::Original),
    ("parametrizations", Attachment::Original),
    ("exp_avg", Attachment::Moments),
    ("exp_avg_sq", Attachment::Moments),
    ("max_exp_avg_sq", Attachment::Moments),
    ("momentum_buffer", Attachment::Moments),
    ("adam", Attachment::Moments),
    ("adam_m", Attachment::Moments),
    ("adam_v", Attachment::Moments),
    ("momentum", Attachment::Moments),
    ("exponentialmovingaverage", Attachment::Moments),
];

/// Weight norm (`weight_g`, `weight_v`) and spectral norm (`weight_u`), only behind a weight.
const BEHIND_WEIGHT: &[&str] = &["g", "u", "v"];

/// Returns every way to read a name as one that stands before a word of attachment, the longest such name first.
fn readings(name: &str) -> impl Iterator<Item = (&str, Attachment)> {
    let places = name.char_indices().rev().filter(|(_, c)| matches!(c, '.' | '/' | '_'));
    places.filter_map(|(at, _)| {
        let (before, behind) = (&name[..at], &name[at + 1..]);
        if before.ends_with("weight") && BEHIND_WEIGHT.contains(&behind) {
            return Some((before, Attachment::Original));
        }
        WORDS.iter().find(|(word, _)| begins_with(behind, word)).map(|(_, kind)| (before, *kind))
    })
}

fn begins_with(text: &str, word: &str) -> bool {
    let Some(head) = text.get(..word.len()).filter(|head| head.eq_ignore_ascii_case(word)) else {
        return false;
    };
    let next = text[head.len()..].chars().next();
    word.ends_with('_') || next.is_none_or(|c| matches!(c, '.' | '/' | '_' | ':'))
}

/// Returns a name without what TensorFlow's checkpoints by object, and its variables, put behind it.
fn bare(name: &str) -> &str {
    let name = name.strip_suffix("/.ATTRIBUTES/VARIABLE_VALUE").unwrap_or(name);
    name.strip_suffix(":0").unwrap_or(name)
}

/// Returns the module that a projection's tensor is alone in: `….q_proj` of `….q_proj.weight`.
pub(crate) fn own_module(name: &str) -> Option<&str> {
    let (module, leaf) = bare(name).rsplit_once(['.', '/'])?;
    let numbered = || module.strip_suffix("/vars").or_else(|| module.strip_suffix(".vars"));
    match leaf {
        "weight" | "bias" | "kernel" | "w" | "b" | "scale" | "gamma" | "beta" | "embedding"
        | "embeddings" => Some(module),
        _ if leaf.bytes().all(|c| c.is_ascii_digit()) => numbered(),
        _ => None,
    }
}

/// Returns what `weight` or `bias` stands behind: `….in_proj` of `….in_proj_weight`.
fn stem(name: &str) -> Option<&str> {
    let (stem, leaf) = bare(name).rsplit_once('_')?;
    matches!(leaf, "weight" | "bias" | "kernel").then_some(stem)
}

/// Returns a name's ancestors, the nearest first.
pub(crate) fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    name.char_indices().rev().filter(|(_, c)| matches!(c, '.' | '/')).map(|(at, _)| &name[..at])
}

/// What a tensor without a rule belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) kind: Attachment,
    /// The name of the weight.
    pub(crate) weight: String,
    /// The weight and what else stands in its module, by their numbers in [`Owners`]; none where no rule holds a tensor
    /// of the weight's name.
    pub(crate) owners: SmallVec<[usize; 2]>,
    /// The module's paths where there are no owners.
    pub(crate) paths: Paths,
}

impl Attached {
    /// Returns the weight's name with `*` for its indices, so that the same complaint about every layer is one.
    pub(crate) fn weight_pattern(&self) -> String {
        any_index(&self.weight)
    }
}

/// Writes a name with `*` for its indices; of one that no screen holds, its ends.
pub(crate) fn any_index(name: &str) -> String {
    const MOST: usize = 200;
    let text = pattern(name).replace('\0', "*");
    if text.chars().count() <= MOST {
        return text;
    }
    let begin: String = text.chars().take(MOST / 2).collect();
    let end: Vec<char> = text.chars().rev().take(MOST / 2).collect();
    format!("{begin}…{}", end.into_iter().rev().collect::<String>())
}

/// The tensors that rules hold, by all names under which others may belong to them.
pub(crate) struct Owners<'a> {
    mapping: &'a Mapping,
    layout: &'a Layout,
    names: HashMap<&'a str, SmallVec<[usize; 2]>>,
    modules: HashMap<&'a str, SmallVec<[usize; 2]>>,
    /// The full name of each.
    full: Vec<&'a str>,
}

impl<'a> Owners<'a> {
    pub(crate) fn new(mapping: &'a Mapping, layout: &'a Layout) -> Owners<'a> {
        let (names, modules) = (HashMap::default(), HashMap::default());
        Owners { mapping, layout, names, modules, full: Vec::new() }
    }

    /// Adds the tensor of the next number.
    pub(crate) fn add(&mut self, name: &'a str, captures: &Captures) {
        let number = self.full.len();
        self.full.push(name);
        let mut known = |stem: &'a str| self.names.entry(stem).or_default().push(number);
        known(name);
        if bare(name) != name {
            known(bare(name));
        }
        stem(name).into_iter().for_each(&mut known);
        // Where a rule captures all of the module's name, it is whatever module has a weight, with others in it.
        let captured = |module: &str| {
            let mut paths = captures.paths.iter().map(|(_, segments)| segments);
            paths.any(|segments| [".", "/"].iter().any(|separator| segments.join(separator) == module))
        };
        if let Some(module) = own_module(name).filter(|module| !captured(module)) {
            known(module);
            self.modules.entry(module).or_default().push(number);
        }
    }

    /// Returns what a tensor without a rule belongs to.
    pub(crate) fn of(&self, name: &str) -> Option<Attached> {
        let here = |kind, owners: &SmallVec<[usize; 2]>| {
            // A module's weight tells more than its bias.
            let weight =
                owners.iter().map(|&owner| self.full[owner]).max_by_key(|name| !name.ends_with("bias"));
            let (weight, paths) = (weight.unwrap_or_default().to_owned(), Paths::new());
            Attached { kind, weight, owners: owners.clone(), paths }
        };
        let by_word = readings(name).find_map(|(stem, kind)| Some(here(kind, self.names.get(stem)?)));
        // `in_proj_bias` beside `in_proj_weight`.
        let bias = || {
            let bias = stem(name).filter(|_| bare(name).ends_with("_bias"))?;
            Some(here(Attachment::Bias, self.names.get(bias)?))
        };
        by_word
            .or_else(bias)
            .or_else(|| {
                let (module, owners) =
                    ancestors(name).find_map(|module| Some((module, self.modules.get(module)?)))?;
                let kind = readings(name).find(|(stem, _)| stem.len() >= module.len());
                Some(here(kind.map_or(Attachment::Part, |(_, kind)| kind), owners))
            })
            .or_else(|| self.without_weight(name))
    }

    /// Returns the weight that a rule would hold if it were stored plainly: `q_proj.weight` of `q_proj.qweight`.
    fn without_weight(&self, name: &str) -> Option<Attached> {
        readings(name).filter(|(_, kind)| *kind != Attachment::Moments).find_map(|(stem, kind)| {
            let separator = if stem.contains('/') { '/' } else { '.' };
            let plain = ["weight", "kernel", "w"].map(|leaf| format!("{stem}{separator}{leaf}"));
            let plain = plain.into_iter().filter(|_| kind.replaces_weight());
            let mut names = std::iter::once(stem.to_owned()).chain(plain);
            let found = names.find_map(|weight| self.paths_of_weight(&weight).map(|paths| (weight, paths)));
            let (weight, paths) = found?;
            Some(Attached { kind, weight, owners: SmallVec::new(), paths })
        })
    }

    /// Returns the module's paths where a rule would hold a weight of that name, in a module that is one of the family's.
    fn paths_of_weight(&self, name: &str) -> Option<Paths> {
        let (file, key) = self.layout.split_name(name);
        let anchors = &self.mapping.anchors;
        let mut weights = self.layout.rules.iter().filter(|rule| {
            let params = rule.expr.params();
            let anchored =
                anchors.is_empty() || anchors.iter().any(|anchor| params.contains(&anchor.as_str()));
            anchored && rule.expr.dims.len() > 1
        });
        weights.find_map(|rule| Some(rule.template.matches(file, key)?.paths))
    }
}

/// The parts of a component of a name: `q`, `norm` of `q_norm`.
fn tokens(component: &str) -> impl Iterator<Item = String> {
    component.split(['_', '-']).map(str::to_ascii_lowercase)
}

fn has_token(name: &str, words: &[&str]) -> bool {
    name.split(['.', '/']).any(|component| tokens(component).any(|token| words.contains(&token.as_str())))
}

/// Returns whether a name is that of a norm of queries or keys: `q_norm`, `key_layernorm`, `norm_q`, `ln_k`.
pub(crate) fn is_query_key_norm(name: &str) -> bool {
    const NORMS: &[&str] = &["norm", "norms", "layernorm", "rmsnorm", "ln", "normalization"];
    const PARTS: &[&str] = &["q", "k", "qk", "query", "key", "queries", "keys"];
    name.split(['.', '/']).any(|component| has_token(component, NORMS) && has_token(component, PARTS))
}

/// Returns whether a name is that of values, of the output, of tables that are computed from positions alone, or of
/// vectors of which products alone are used, in any order (DiffLlama's `lambda_q1`).
pub(crate) fn is_apart_from_queries_and_keys(name: &str) -> bool {
    const APART: &[&str] = &[
        "v", "value", "values", "o", "out", "output", "rotary", "rope", "freq", "freqs", "cos", "sin",
        "lambda", "mlp", "ffn",
    ];
    has_token(name, APART)
}

/// Returns whether a name is that of a bias of q, k or v under a name of its own: `q_bias`, `v_bias`.
pub(crate) fn is_projection_bias(leaf: &str) -> bool {
    matches!(leaf, "q_bias" | "k_bias" | "v_bias" | "qkv_bias" | "query_bias" | "key_bias" | "value_bias")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_behind_a_whole_name() {
        for (name, stem, kind) in [
            ("a.q_proj.weight_scale_inv", "a.q_proj.weight", Attachment::Scale),
            ("a.in_proj_weight_scale", "a.in_proj_weight", Attachment::Scale),
            ("a.qkv.bias_mask", "a.qkv.bias", Attachment::Mask),
            ("a.q_proj.lora_A.default.weight", "a.q_proj", Attachment::Adapter),
            ("a.q_proj.weight.quant_state.bitsandbytes__nf4", "a.q_proj.weight", Attachment::Codes),
            ("a.q_proj.SCB", "a.q_proj", Attachment::Scale),
            ("a.q_proj.g_idx", "a.q_proj", Attachment::Order),
            ("a.q_proj.weight_g", "a.q_proj.weight", Attachment::Original),
            ("a/query/kernel/adam_m", "a/query/kernel", Attachment::Moments),
            (
                "a.qkv.parametrizations.weight.original0",
                "a.qkv.parametrizations.weight",
                Attachment::Original,
            ),
        ] {
            assert_eq!(readings(name).next(), Some((stem, kind)), "{name}");
        }
        for name in [
            "attention.output.LayerNorm.weight",
            "rotary_emb.inv_freq",
            "attn.relative_position_index",
            "SelfAttention.relative_attention_bias.weight",
            "attn.rel_pos_h",
            "attn.masked_bias",
            "self.pos_key_proj.weight",
            "attn.rescaled.weight",
        ] {
            assert_eq!(readings(name).next(), None, "{name}");
        }
    }

    #[test]
    fn own_modules() {
        for (name, module) in [
            ("a.q_proj.weight", Some("a.q_proj")),
            ("a/query/kernel", Some("a/query")),
            ("a/query_dense/vars/0", Some("a/query_dense")),
            ("a/query/kernel/.ATTRIBUTES/VARIABLE_VALUE", Some("a/query")),
            ("a/query/kernel:0", Some("a/query")),
            ("a.in_proj_weight", None),
            ("a.linears.0", None),
        ] {
            assert_eq!(own_module(name), module, "{name}");
        }
    }

    #[test]
    fn norms_of_queries_and_keys_have_many_names() {
        for name in [
            "q_norm.weight",
            "k_layernorm.weight",
            "norm_q.weight",
            "query_layer_norm.scale",
            "blk.0.attn_q_norm",
            "ln_k.bias",
        ] {
            assert!(is_query_key_norm(name), "{name}");
        }
        for name in ["input_layernorm.weight", "norm.weight", "v_norm.weight", "query.norm.weight"] {
            assert!(!is_query_key_norm(name), "{name}");
        }
    }
}
