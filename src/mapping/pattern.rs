//! Regular expressions for the texts of a mapping file, for editors: what they refuse the reader refuses too.
//!
//! Parentheses nest, which no regular expression counts; they are checked to a depth, and what is deeper passes.

use super::choices;
/// A text of a grammar, as the JSON Schema tells it.
#[derive(Debug)]
pub(super) struct Pattern {
    /// What the schema calls it.
    pub(super) name: &'static str,
    /// What it is, for an author.
    pub(super) about: &'static str,
    /// What an editor says of a text that does not match.
    pub(super) wrong: &'static str,
    /// Makes the regular expression, of the syntax that ECMAScript and Rust share.
    pub(super) regex: fn() -> String,
}

/// The depth to which parentheses are checked.
const DEPTH: usize = 4;
/// As [`DEPTH`], for formulas, where a level stands twice in the one around it.
const FORMULA_DEPTH: usize = 2;
/// An axis's name; the boundary keeps a word from being read as two.
const WORD: &str = r"[A-Za-z][A-Za-z0-9_]*\b";
const LABELLED: &str = r"(?:[A-Za-z0-9_.-]+\s*:)?";

/// An axis's name.
pub(super) const AXIS: Pattern = Pattern {
    name: "axisName",
    about: "The name of an axis: letters, digits and `_`, a letter first.",
    wrong: "an axis name has letters, digits and `_`, and begins with a letter",
    regex: || "^[A-Za-z][A-Za-z0-9_]*$".into(),
};

/// Names of axes with spaces between them.
pub(super) const AXES: Pattern = Pattern {
    name: "axisNames",
    about: "Names of axes, slowest first, with spaces between them: `h d e`. A parameter of one number has none.",
    wrong: "write names of axes with spaces between them, such as `h d e`",
    regex: || r"^\s*(?:[A-Za-z][A-Za-z0-9_]*(?:\s+|$))*$".into(),
};

/// The axes of a parameter.
pub(super) const PARAM_AXES: Pattern = Pattern {
    name: "parameterAxes",
    about: "Names of axes, slowest first, with spaces between them: `h d`. In a matrix `|` stands between its outputs and its inputs, `h d | e`; axes of layers and experts before are a batch.",
    wrong: "write names of axes with spaces between them, such as `h d` or `h d | e`",
    regex: || {
        let word = "[A-Za-z][A-Za-z0-9_]*";
        format!(r"^\s*(?:{word}(?:\s+|$))*$|^\s*{word}(?:\s+{word})*\s+\|(?:\s+{word})+\s*$")
    },
};

/// A parameter's name, as labels write it.
pub(super) const LABEL: Pattern = Pattern {
    name: "parameterName",
    about: "The name of a parameter: letters, digits, `_`, `.` and `-`.",
    wrong: "a parameter's name has letters, digits, `_`, `.` and `-`",
    regex: || "^[A-Za-z0-9_.-]+$".into(),
};

/// What a tensor holds.
pub(super) const EXPRESSION: Pattern = Pattern {
    name: "expression",
    about: "The axes of a stored tensor, slowest first: `q: (h d) e`. `(a b)` is one stored axis composed of two, `(q: a + k: b)` one block after the other; a label says which parameter a block holds, `_:` is padding; `2` is an axis of that size.",
    wrong: "write a label and the tensor's axes, such as `q.weight: (h d) e` or `(q: h d + k: g d) e`",
    regex: || format!("^{}$", term(DEPTH)),
};

/// What an axis is composed of.
pub(super) const SUM: Pattern = Pattern {
    name: "axisDefinition",
    about: "What an axis is composed of: `g r` is a product, slowest first; `(c f) + u` is one part after the other.",
    wrong: "write names of axes, such as `g r` or `(c f) + u`",
    regex: || format!("^{}$", sum(DEPTH)),
};

/// A formula, where it is text.
pub(super) const FORMULA: Pattern = Pattern {
    name: "formula",
    about: "A formula of numbers, names of axes, `+ - * /`, parentheses and `sqrt(…)`: `1/sqrt(d)`.",
    wrong: "a formula has numbers, axis names, + - * /, parentheses and sqrt(…)",
    regex: || format!("^{}$", formula(FORMULA_DEPTH)),
};

/// A pattern for names of tensors.
pub(super) const TEMPLATE: Pattern = Pattern {
    name: "template",
    about: "The name of a stored tensor, `layers.{l}.q.weight`: `{l}` is an index along the axis `l`, `{l+4}` one with an offset, `{l:03}` with zeros before it, `{_l}` nothing, then `_1`, `_2`, `{l.count}` the axis's size, `{l.count-1}` its last index, `{*m}` a path of any length. `FILE::KEY` names the file too, which may lie in folders: `mp_rank_{t:02}/model.pt`.",
    wrong: "write a name with captures such as `{l}`, `{l+4}`, `{l:03}`, `{_l}`, `{l.count}` or `{*m}`, and text between them",
    regex: template,
};

/// What names of several tensors begin with.
pub(super) const PREFIX: Pattern = Pattern {
    name: "prefix",
    about: "What the names of several tensors begin with: it ends with `.`, `/` or `::`.",
    wrong: "a prefix ends with `.`, `/` or `::`",
    regex: || r"^.*(?:[./]|::)$".into(),
};

/// The name of a config file.
pub(super) const CONFIG_FILE: Pattern = Pattern {
    name: "configFile",
    about: "A name that ends in `.json`, without a folder, or `none`.",
    wrong: "write a name that ends in `.json`, without a folder, or `none`",
    regex: || r"^(none|[^./\\][^/\\]*\.json)$".into(),
};

/// The name of a file of weights.
pub(super) const FILE: Pattern = Pattern {
    name: "file",
    about: "A name with an ending, without a folder.",
    wrong: "write a name with its ending, without a folder: `tf_model.h5`",
    regex: || r"^[^./\\][^/\\]*\.[a-z0-9]+$".into(),
};

/// How a weight is applied.
pub(super) const APPLIED: Pattern = Pattern {
    name: "apply",
    about: "`linear` (x Wᵀ + b), `dense` (x W + b), `convolution` (linear with axes of size 1 behind), or an einsum over the token axis t.",
    wrong: "write `linear`, `dense`, `convolution` or an einsum such as `einsum te,hed->thd`",
    regex: || format!("^(?:{}|einsum [a-z]+,[a-z]+->[a-z]+)$", names(choices::APPLY)),
};

/// How a fused result is cut.
pub(super) const CUTS: Pattern = Pattern {
    name: "cut",
    about: "`blocks` (thirds, or h d / g d / g dv), `per head`, `per group`, or `per N` with the number of equal views: `per 4`, `per h * d`.",
    wrong: "write `blocks`, `per head`, `per group` or `per N` with the number of views",
    regex: || format!("^(?:{}|per {})$", names(choices::CUT), formula(1)),
};

/// The order of parts.
pub(super) const ORDER: Pattern = Pattern {
    name: "order",
    about: "The parts in their order, with spaces between them: `q k v`. `_q` is a part that another attention reads.",
    wrong: "write the parts in their order, such as `q k v`",
    regex: || r"^\s*_?[qkv](?:\s+_?[qkv])*\s*$".into(),
};

/// All patterns.
pub(super) const ALL: &[&Pattern] = &[
    &AXIS,
    &AXES,
    &PARAM_AXES,
    &LABEL,
    &EXPRESSION,
    &SUM,
    &FORMULA,
    &TEMPLATE,
    &PREFIX,
    &CONFIG_FILE,
    &FILE,
    &APPLIED,
    &CUTS,
    &ORDER,
];

/// The texts of a closed set that are patterns as they stand.
fn names(choices: &[choices::Choice]) -> String {
    choices.iter().map(|choice| choice.name).collect::<Vec<_>>().join("|")
}

/// A block: a label and its axes.
fn term(depth: usize) -> String {
    format!(r"\s*{LABELLED}(?:\s|{})*", dim(depth))
}

/// Blocks with `+` between them. A `+` stands among the axes, so that each level stands once and the whole grows with
/// the depth, not with its power; an empty block passes.
fn sum(depth: usize) -> String {
    format!(r"\s*{LABELLED}(?:\s|\+\s*{LABELLED}|{})*", dim(depth))
}

fn dim(depth: usize) -> String {
    let inner = match depth.checked_sub(1) {
        Some(depth) => sum(depth),
        None => r"[A-Za-z0-9_.:+()\s-]*".to_owned(),
    };
    format!(r"{WORD}|[1-9][0-9]*\b|\({inner}\)")
}

fn formula(depth: usize) -> String {
    let inner = match depth.checked_sub(1) {
        Some(depth) => formula(depth),
        None => r"[A-Za-z0-9_.+*/()\s-]*".to_owned(),
    };
    let factor = format!(r"[-\s]*(?:[0-9]+\.?[0-9]*|\.[0-9]+|{WORD}|(?:sqrt\s*)?\({inner}\))");
    format!(r"{factor}(?:\s*[-+*/]{factor})*\s*")
}

fn template() -> String {
    let name = "[A-Za-z][A-Za-z0-9_]*";
    let number =
        format!(r"\{{(?:_{name}|{name}(?:\.count-[0-9]+|(?:\.count)?(?:\+[0-9]+)?)(?::0[0-9]{{1,2}})?)\}}");
    let path = format!(r"\{{\*{name}\}}");
    // Text stands between two captures, and a separator behind a path.
    format!(
        r"^(?:[^{{}}]|{number}[^{{}}]|(?:{number})?{path}[^{{}}A-Za-z0-9_])*(?:{number}|(?:{number})?{path})?$"
    )
}
