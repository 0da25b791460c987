//! The fields of `forward`, as [`super::fields`] has the others.

use super::choices::{ATTENDS, MODULE_AXES, NORM_KIND, NORM_OVER, ROTARY};
use super::field::{AXIS_NAMES, FORMULA, Field, Names, Object, TEMPLATE, Value, field, required};
use super::pattern;

const WEIGHT: Field = field(
    "weight",
    "The template of its weight; where it is left out, the tensor that holds the parameter, if its name says the same part.",
    TEMPLATE,
    "\"{*m}.qkv.weight\"",
);
const BIAS: Field = field(
    "bias",
    "The template of its bias, where it has one; without `weight` the tensor of the parameter.",
    TEMPLATE,
    "\"{*m}.qkv.bias\"",
);
const APPLIED: Field = field(
    "apply",
    "How the weight is applied, where not as the attention's `apply` says: `linear` (x Wᵀ + b), `dense` (x W + b), `convolution`, or an einsum over the token axis t, `einsum te,hed->thd`.",
    Value::Pattern(&pattern::APPLIED),
    "\"linear\"",
);
const APPLY_TEXT: Value = Value::Pattern(&pattern::APPLIED);
const EACH: Field = field(
    "each",
    "The axis along which there is one tensor for every head, or for every shard of heads.",
    Value::Pattern(&pattern::AXIS),
    "\"h\"",
);
const REST: Field = field(
    "rest",
    "Whether there is more behind: columns behind q, k and v, or what the output projection reads behind the heads.",
    Value::Flag,
    "true",
);
const CUT_FIELD: Field = required(
    "cut",
    "How the fused result is cut: `blocks`, `per head`, `per group`, or `per N` with the number of equal views.",
    Value::Pattern(&pattern::CUTS),
    "\"blocks\"",
);
const ORDER: Field = required(
    "order",
    "The parts in their order, `q k v`; `_q` is a part that another attention reads.",
    Value::Pattern(&pattern::ORDER),
    "\"q k v\"",
);

/// The fields of a product of one part.
pub(super) const PRODUCT: Object = Object { name: "product", fields: &[WEIGHT, BIAS, APPLIED, EACH, REST] };

/// The fields of a product of several parts.
pub(super) const FUSED: Object =
    Object { name: "fusedProduct", fields: &[WEIGHT, BIAS, APPLIED, CUT_FIELD, ORDER, EACH, REST] };

/// The fields of the output projection.
pub(super) const OUTPUT: Object = Object {
    name: "outputProjection",
    fields: &[
        WEIGHT,
        BIAS,
        APPLIED,
        EACH,
        REST,
        field("mean", "Whether it reads the mean over the heads, not all side by side.", Value::Flag, "true"),
    ],
};

/// The fields of a bias that is fused where the weights are not.
pub(super) const FUSED_BIAS: Object = Object {
    name: "fusedBias",
    fields: &[
        required("tensor", "The template of the bias.", TEMPLATE, "\"{*m}.qkv.bias\""),
        CUT_FIELD,
        ORDER,
    ],
};

/// The fields of biases that are separate where the weights are fused.
pub(super) const PART_BIASES: Object = Object {
    name: "partBiases",
    fields: &[
        field("q", "The template of the queries' bias.", TEMPLATE, "\"{*m}.q_bias\""),
        field("k", "The template of the keys' bias.", TEMPLATE, "\"{*m}.k_bias\""),
        field("v", "The template of the values' bias.", TEMPLATE, "\"{*m}.v_bias\""),
    ],
};

/// The fields of a norm of queries or keys.
pub(super) const NORM: Object = Object {
    name: "norm",
    fields: &[
        field(
            "weight",
            "The template of its factors; where it is left out, the tensor of the parameter `q_norm` or `k_norm`. There is none for `length`.",
            TEMPLATE,
            "\"{*m}.q_norm.weight\"",
        ),
        field("bias", "The template of what is added.", TEMPLATE, "\"{*m}.q_norm.bias\""),
        field("epsilon", "What is added to the mean square.", Value::Number(Some(1e-6)), "1e-6"),
        field(
            "kind",
            "What it divides by; `root mean square` where it is left out.",
            Value::Choice(NORM_KIND),
            "\"layer\"",
        ),
        field(
            "over",
            "What one vector is; `head` where it is left out.",
            Value::Choice(NORM_OVER),
            "\"all heads\"",
        ),
    ],
};

/// The fields of a rotation that is more than its style.
pub(super) const ROTATION: Object = Object {
    name: "rotation",
    fields: &[
        required("style", "Which elements of a head are a pair.", Value::Choice(ROTARY), "\"half\""),
        field(
            "dims",
            "How many elements of a head rotate, the first ones; all where it is left out.",
            Value::AnyOf(FORMULA),
            "\"2 * f\"",
        ),
    ],
};

/// The fields of one attention.
pub(super) const FORWARD: Object = Object {
    name: "forward",
    fields: &[
        field(
            "source",
            "Where the framework's code says so: repository and file, and what it does there.",
            Value::Text,
            "\"owner/repository path/to/file.py\"",
        ),
        field(
            "apply",
            "How all weights are applied, where a product does not say otherwise. Then products that are not written are those of q, k and v, each by itself, and of the output, where the layout has a tensor for it.",
            APPLY_TEXT,
            "\"linear\"",
        ),
        field(
            "params",
            "What the names of its parameters begin with: `enc.` where they are `enc.q.weight` and so on. Only products without `weight` look for them.",
            Value::Text,
            "\"enc.\"",
        ),
        field(
            "qkv",
            "One product of queries, keys and values. An attention has `qkv`, or `q` and `kv`, or `q`, `k` and `v`.",
            Value::Object(&FUSED),
            "{ \"weight\": \"{*m}.qkv.weight\", \"apply\": \"linear\", \"cut\": \"blocks\", \"order\": \"q k v\" }",
        ),
        field(
            "kv",
            "One product of keys and values.",
            Value::Object(&FUSED),
            "{ \"weight\": \"{*m}.kv.weight\", \"apply\": \"linear\", \"cut\": \"blocks\", \"order\": \"k v\" }",
        ),
        field(
            "q",
            "The product of the queries.",
            Value::AnyOf(&[APPLY_TEXT, Value::Object(&PRODUCT)]),
            "{ \"weight\": \"{*m}.q.weight\", \"apply\": \"linear\" }",
        ),
        field(
            "k",
            "The product of the keys.",
            Value::AnyOf(&[APPLY_TEXT, Value::Object(&PRODUCT)]),
            "{ \"weight\": \"{*m}.k.weight\", \"apply\": \"linear\" }",
        ),
        field(
            "v",
            "The product of the values.",
            Value::AnyOf(&[APPLY_TEXT, Value::Object(&PRODUCT)]),
            "{ \"weight\": \"{*m}.v.weight\", \"apply\": \"linear\" }",
        ),
        field(
            "bias",
            "A fused bias of separate weights, or separate biases of a fused weight.",
            Value::AnyOf(&[Value::Object(&FUSED_BIAS), Value::Object(&PART_BIASES)]),
            "{ \"q\": \"{*m}.q_bias\", \"v\": \"{*m}.v_bias\" }",
        ),
        field(
            "out",
            "The output projection.",
            Value::AnyOf(&[APPLY_TEXT, Value::Object(&OUTPUT), Value::Null]),
            "{ \"weight\": \"{*m}.proj.weight\", \"apply\": \"linear\" }",
        ),
        field(
            "q_norm",
            "The norm of the queries, before the rotation.",
            Value::AnyOf(&[Value::Choice(NORM_KIND), Value::Object(&NORM)]),
            "{ \"weight\": \"{*m}.q_norm.weight\" }",
        ),
        field(
            "k_norm",
            "The norm of the keys, before the rotation.",
            Value::AnyOf(&[Value::Choice(NORM_KIND), Value::Object(&NORM)]),
            "{ \"weight\": \"{*m}.k_norm.weight\" }",
        ),
        field(
            "rotary",
            "The rotation of queries and keys by position.",
            Value::AnyOf(&[Value::Choice(ROTARY), Value::Object(&ROTATION)]),
            "\"half\"",
        ),
        field(
            "scale",
            "The factor of the scores; 1/sqrt(d) where it is left out.",
            Value::AnyOf(FORMULA),
            "\"1/sqrt(d)\"",
        ),
        field("causal", "Whether a token sees only itself and those before it.", Value::Flag, "true"),
        field(
            "attends",
            "What keys and values are computed from; `self` where it is left out.",
            Value::Choice(ATTENDS),
            "\"cross\"",
        ),
        field(
            "axes",
            "What the family calls the heads of this attention, where not `h`, `g`, `d` and `dv`.",
            Value::Entries(Names::Choice(MODULE_AXES), &Value::Pattern(&pattern::AXIS)),
            "{ \"h\": \"ht\", \"d\": \"dt\" }",
        ),
        field(
            "kv_heads",
            "How many key/value heads the framework computes with, where it is not `g`.",
            Value::AnyOf(FORMULA),
            "\"h\"",
        ),
        field(
            "stacked",
            "Axes of layers that are stacked in the tensors, and their place in each, from 0.",
            Value::Entries(AXIS_NAMES, &Value::Whole),
            "{ \"l\": 0 }",
        ),
        field("about", "What is odd about it, for a reader.", Value::Text, "\"…\""),
    ],
};
