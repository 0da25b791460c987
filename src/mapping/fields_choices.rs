//! The closed sets of texts in a mapping file's fields, but for those of `forward`: [`super::fields_forward`] has these.

use super::fields::{Choice, choice};

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
