//! The closed sets of texts in a mapping file's fields.

/// One text of a closed set.
#[derive(Debug)]
pub(super) struct Choice {
    /// The text.
    pub(super) name: &'static str,
    /// What it means.
    pub(super) about: &'static str,
}

/// Makes a text of a closed set.
pub(super) const fn choice(name: &'static str, about: &'static str) -> Choice {
    Choice { name, about }
}

/// What happens to tensors that no rule matches.
pub(super) const UNMAPPED: &[Choice] = &[
    choice("keep", "They pass through, name and bytes as they are: the family describes modules of a model."),
    choice("error", "They are an error: the family describes a whole model."),
];
/// What an axis has one size for.
pub(super) const PER: &[Choice] = &[
    choice("module", "One size in a module, or in a layer."),
    choice("parameter", "Each parameter has a size of its own, as the input widths of q, k and v."),
];
/// What an axis is.
pub(super) const AXIS_ROLES: &[Choice] = &[
    choice("layers", "Layers, or blocks."),
    choice("experts", "Experts of a mixture."),
    choice("query heads", "Query heads; where keys and values have as many, theirs too."),
    choice("kv heads", "Key/value heads."),
    choice("queries per kv head", "Query heads that share one key/value head."),
    choice("head size", "The elements of a head of q and k."),
    choice("value head size", "The elements of a head of v, where they have an axis of their own."),
    choice("rotated", "The elements of a head that turn, where their pairs have no axes."),
    choice("rotary halves", "The two elements of a rotary pair."),
    choice("rotary pairs", "The rotary pairs of a head: its frequencies."),
    choice("unrotated", "The elements of a head that do not turn."),
    choice("width", "The width of the model."),
    choice("inner width", "The width inside a feed-forward layer."),
    choice("vocabulary", "Tokens of the vocabulary."),
    choice("positions", "Positions."),
    choice("classes", "Classes of a classifier."),
];
/// What a parameter is.
pub(super) const PARAM_ROLES: &[Choice] = &[
    choice("q", "The projection of queries, or its bias."),
    choice("k", "The projection of keys, or its bias."),
    choice("v", "The projection of values, or its bias."),
    choice("o", "The output projection of attention, or its bias."),
    choice("q norm", "The norm of queries."),
    choice("k norm", "The norm of keys."),
    choice("gate", "The gate of a feed-forward layer."),
    choice("up", "The projection up of a feed-forward layer."),
    choice("down", "The projection down of a feed-forward layer."),
    choice("router", "The router to experts."),
    choice("embedding", "The embedding of tokens."),
    choice("output", "The output layer over tokens."),
    choice("norm", "Another norm."),
];
/// What stands for a parameter that one side lacks.
pub(super) const ABSENT: &[Choice] =
    &[choice("zeros", "Zeros: a missing bias. On the way back zeros are demanded.")];

/// What a computed tensor holds.
pub(super) const VALUES: &[Choice] = &[
    choice(
        "llama3 factors",
        "By what each rotary frequency is divided, where the config's rotary scaling is of type llama3.",
    ),
    choice(
        "longrope long factors",
        "The list `long_factor`, where the config's rotary scaling is of type longrope.",
    ),
    choice(
        "longrope short factors",
        "The list `short_factor`, where the config's rotary scaling is of type longrope.",
    ),
];

/// How scores are rotated by position.
pub(super) const ROTARY: &[Choice] = &[
    choice("none", "The module rotates nothing itself."),
    choice("half", "Elements i and i + n/2 of a head are a pair."),
    choice("interleaved", "Elements 2i and 2i + 1 of a head are a pair."),
];

/// What keys and values are computed from.
pub(super) const ATTENDS: &[Choice] = &[
    choice("self", "Keys and values read the same input as the queries."),
    choice("cross", "Keys and values read another input than the queries."),
];

/// What a norm divides by.
pub(super) const NORM_KIND: &[Choice] = &[
    choice("root mean square", "The root of the mean square."),
    choice("layer", "The standard deviation, after the mean is subtracted."),
    choice("length", "The length of the vector; there is no weight."),
];

/// What one vector of a norm is.
pub(super) const NORM_OVER: &[Choice] = &[
    choice("head", "Each head is a vector of its own."),
    choice("all heads", "All heads of a token are one vector."),
];

/// Ways to apply a weight, beside the einsums.
pub(super) const APPLY: &[Choice] = &[
    choice("linear", "x Wᵀ + b, the weight is [out, in]."),
    choice("dense", "x W + b, the weight is [in, out]."),
    choice("convolution", "As linear, with axes of size 1 behind."),
];

/// Ways to cut a fused result, beside `per N`.
pub(super) const CUT: &[Choice] = &[
    choice("blocks", "All of one part, then all of the next."),
    choice("per head", "Viewed as heads; each head is cut in its parts."),
    choice("per group", "Viewed as key/value heads; each is cut in its query heads, its key and its value."),
];

/// The axes that the reference attention computes with.
pub(super) const MODULE_AXES: &[Choice] = &[
    choice("h", "Query heads."),
    choice("g", "Key/value heads."),
    choice("d", "Head size of q and k."),
    choice("dv", "Head size of v."),
    choice("f", "Rotary frequencies."),
];
