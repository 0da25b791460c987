//! What an axis or a parameter can be.

use super::forward::Part;

/// What an axis is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AxisRole {
    /// Layers, or blocks.
    Layers,
    /// Experts of a mixture.
    Experts,
    /// Query heads.
    QueryHeads,
    /// Key/value heads.
    KvHeads,
    /// Query heads that share one key/value head.
    QueriesPerKvHead,
    /// The elements of a head of q and k.
    HeadSize,
    /// The elements of a head of v.
    ValueHeadSize,
    /// The elements of a head that turn, the two of each pair and all pairs together.
    Rotated,
    /// The two elements of a rotary pair.
    RotaryHalves,
    /// The rotary pairs of a head: its frequencies.
    RotaryPairs,
    /// The elements of a head that do not turn.
    Unrotated,
    /// The width of the model.
    Width,
    /// The width inside a feed-forward layer.
    InnerWidth,
    /// Tokens of the vocabulary.
    Vocabulary,
    /// Positions.
    Positions,
    /// Classes of a classifier.
    Classes,
}

impl AxisRole {
    /// All roles.
    pub const ALL: [AxisRole; 16] = [
        AxisRole::Layers,
        AxisRole::Experts,
        AxisRole::QueryHeads,
        AxisRole::KvHeads,
        AxisRole::QueriesPerKvHead,
        AxisRole::HeadSize,
        AxisRole::ValueHeadSize,
        AxisRole::Rotated,
        AxisRole::RotaryHalves,
        AxisRole::RotaryPairs,
        AxisRole::Unrotated,
        AxisRole::Width,
        AxisRole::InnerWidth,
        AxisRole::Vocabulary,
        AxisRole::Positions,
        AxisRole::Classes,
    ];

    /// Returns the role's name in a mapping file.
    pub const fn name(self) -> &'static str {
        match self {
            AxisRole::Layers => "layers",
            AxisRole::Experts => "experts",
            AxisRole::QueryHeads => "query heads",
            AxisRole::KvHeads => "kv heads",
            AxisRole::QueriesPerKvHead => "queries per kv head",
            AxisRole::HeadSize => "head size",
            AxisRole::ValueHeadSize => "value head size",
            AxisRole::Rotated => "rotated",
            AxisRole::RotaryHalves => "rotary halves",
            AxisRole::RotaryPairs => "rotary pairs",
            AxisRole::Unrotated => "unrotated",
            AxisRole::Width => "width",
            AxisRole::InnerWidth => "inner width",
            AxisRole::Vocabulary => "vocabulary",
            AxisRole::Positions => "positions",
            AxisRole::Classes => "classes",
        }
    }

    /// Returns the role of that name.
    pub fn parse(name: &str) -> Option<AxisRole> {
        AxisRole::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns whether it counts heads.
    pub const fn is_heads(self) -> bool {
        matches!(self, AxisRole::QueryHeads | AxisRole::KvHeads)
    }

    /// Returns whether it is the elements of a head.
    pub const fn is_head_size(self) -> bool {
        matches!(self, AxisRole::HeadSize | AxisRole::ValueHeadSize)
    }
}

/// What a parameter is. A weight and its bias have the same role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ParamRole {
    /// The projection of queries.
    Q,
    /// The projection of keys.
    K,
    /// The projection of values.
    V,
    /// The output projection of attention.
    O,
    /// The norm of queries.
    QNorm,
    /// The norm of keys.
    KNorm,
    /// The gate of a feed-forward layer.
    Gate,
    /// The projection up of a feed-forward layer.
    Up,
    /// The projection down of a feed-forward layer.
    Down,
    /// The router to experts.
    Router,
    /// The embedding of tokens.
    Embedding,
    /// The output layer over tokens.
    Output,
    /// Another norm.
    Norm,
}

impl ParamRole {
    /// All roles.
    pub const ALL: [ParamRole; 13] = [
        ParamRole::Q,
        ParamRole::K,
        ParamRole::V,
        ParamRole::O,
        ParamRole::QNorm,
        ParamRole::KNorm,
        ParamRole::Gate,
        ParamRole::Up,
        ParamRole::Down,
        ParamRole::Router,
        ParamRole::Embedding,
        ParamRole::Output,
        ParamRole::Norm,
    ];

    /// Returns the role's name in a mapping file.
    pub const fn name(self) -> &'static str {
        match self {
            ParamRole::Q => "q",
            ParamRole::K => "k",
            ParamRole::V => "v",
            ParamRole::O => "o",
            ParamRole::QNorm => "q norm",
            ParamRole::KNorm => "k norm",
            ParamRole::Gate => "gate",
            ParamRole::Up => "up",
            ParamRole::Down => "down",
            ParamRole::Router => "router",
            ParamRole::Embedding => "embedding",
            ParamRole::Output => "output",
            ParamRole::Norm => "norm",
        }
    }

    /// Returns the role of that name.
    pub fn parse(name: &str) -> Option<ParamRole> {
        ParamRole::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns whether it is a projection of attention.
    pub const fn is_projection(self) -> bool {
        matches!(self, ParamRole::Q | ParamRole::K | ParamRole::V | ParamRole::O)
    }
}

impl From<Part> for ParamRole {
    fn from(part: Part) -> ParamRole {
        match part {
            Part::Q => ParamRole::Q,
            Part::K => ParamRole::K,
            Part::V => ParamRole::V,
        }
    }
}

/// What a parameter is, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its role.
    pub role: ParamRole,
    /// Whether it is added and not multiplied with.
    pub is_bias: bool,
    /// Whether it is known without the order of the parts in a fused tensor's expression: the file gives the role, or
    /// `forward` names a tensor that holds this parameter alone. What holds an expression against `forward` goes by these
    /// alone.
    pub is_told: bool,
}

/// A projection of attention, or its bias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionPart {
    /// Which one.
    pub role: ParamRole,
    /// Whether it is added and not multiplied with.
    pub is_bias: bool,
    /// The attention that it is a part of: the same number for all of its parts.
    pub attention: usize,
    /// The axes of that attention's query heads, key/value heads, head size and head size of v, as far as they are known:
    /// without groups the second is the first, without a size of their own for values the fourth is the third.
    pub axes: Option<[String; 4]>,
}

#[cfg(test)]
mod tests {
    use super::super::choices::{AXIS_ROLES, PARAM_ROLES};
    use super::*;

    #[test]
    fn every_role_has_its_name_in_the_file() {
        let axes: Vec<&str> = AXIS_ROLES.iter().map(|choice| choice.name).collect();
        assert_eq!(axes, AxisRole::ALL.map(AxisRole::name));
        let params: Vec<&str> = PARAM_ROLES.iter().map(|choice| choice.name).collect();
        assert_eq!(params, ParamRole::ALL.map(ParamRole::name));
        assert!(axes.iter().all(|name| AxisRole::parse(name).is_some_and(|role| role.name() == *name)));
        assert!(params.iter().all(|name| ParamRole::parse(name).is_some_and(|role| role.name() == *name)));
    }
}
