//! The fields of a mapping file, each once: the names that the reader knows, and what the JSON Schema says of them.

use super::choices::{ABSENT, AXIS_ROLES, PARAM_ROLES, PER, UNMAPPED, VALUES};
use super::field::{AXIS_NAMES, FORMULA, Field, Names, Object, TEMPLATE, Value, field, removable, required};
use super::fields_forward::FORWARD;

const STRINGS: &[Value] = &[Value::Text, Value::List(&Value::Text)];
/// The fields of a mapping file.
pub(super) const TOP: &[Field] = &[
    field(
        "$schema",
        "The JSON Schema of mapping files, for editors; `qkvconv mapping schema` prints it.",
        Value::Text,
        "\"mapping.schema.json\"",
    ),
    required("format", "The version of this format: 1.", Value::Exactly(1), "1"),
    field(
        "family",
        "The name of the model family. A file has either this or `extends`.",
        Value::Text,
        "\"my-model\"",
    ),
    field(
        "extends",
        "The built-in family to which this file adds layouts; its axes and parameters are there already.",
        Value::Text,
        "\"attention\"",
    ),
    field("about", "What the family is, for a reader.", Value::Text, "\"one attention module\""),
    field(
        "axes",
        "Every index of a shape or of a name, by name: what it means as text, or an object with its definition.",
        Value::Entries(AXIS_NAMES, &Value::AnyOf(&[Value::Text, Value::Object(&AXIS)])),
        "{ \"h\": \"heads\" }",
    ),
    field(
        "params",
        "The parameters of the family: the axes of each in canonical order, slowest first.",
        Value::Entries(
            Names::Pattern(&super::pattern::LABEL),
            &Value::AnyOf(&[Value::Pattern(&super::pattern::PARAM_AXES), Value::Object(&PARAM)]),
        ),
        "{ \"q.weight\": \"h d e\" }",
    ),
    field(
        "anchors",
        "Parameters of which a module has at least one; other modules with such names pass through.",
        Value::AnyOf(STRINGS),
        "[\"q.weight\"]",
    ),
    field(
        "unmapped",
        "What happens to tensors that no rule matches; `error` where it is left out.",
        Value::Choice(UNMAPPED),
        "\"keep\"",
    ),
    required(
        "layouts",
        "The layouts in which checkpoints hold the parameters, by name.",
        Value::Entries(Names::Any, &Value::Object(&LAYOUT)),
        "{ \"separate\": { \"tensors\": { … } } }",
    ),
];

/// The fields of an axis.
pub(super) const AXIS: Object = Object {
    name: "axis",
    fields: &[
        field(
            "is",
            "What it is composed of: `g r` is a product, slowest first, `(c f) + u` one after the other. In a layout it restates the stored order.",
            Value::Pattern(&super::pattern::SUM),
            "\"g r\"",
        ),
        field("size", "Its size, where it is the same in every model.", Value::Whole, "2"),
        field(
            "per",
            "What has one size of it: a `module` (where it is left out) or a `parameter`.",
            Value::Choice(PER),
            "\"parameter\"",
        ),
        field(
            "role",
            "What it is, for all that has to find heads, head sizes and rotary pairs; `about` and the axis's name tell nothing.",
            Value::Choice(AXIS_ROLES),
            "\"query heads\"",
        ),
        field("about", "What it means, for a reader and in error messages.", Value::Text, "\"heads\""),
    ],
};

/// The fields of a parameter.
pub(super) const PARAM: Object = Object {
    name: "parameter",
    fields: &[
        required(
            "axes",
            "Its axes in canonical order, slowest first, with spaces between them. In a matrix `|` stands between its outputs and its inputs; axes of layers and experts before are a batch.",
            Value::Pattern(&super::pattern::PARAM_AXES),
            "\"h d | e\"",
        ),
        field("optional", "Whether both sides may lack it.", Value::Flag, "true"),
        field(
            "absent",
            "What stands for it where one side has no tensor for it.",
            Value::Choice(ABSENT),
            "\"zeros\"",
        ),
        field(
            "tied",
            "The parameter whose values it has where a checkpoint holds no tensor for it: an output layer tied to the embedding. A target that needs it gets a copy; where a target has no tensor for it, the two must be equal.",
            Value::Pattern(&super::pattern::LABEL),
            "\"tok.weight\"",
        ),
        field(
            "sparse",
            "Those of its axes whose indices in names may have gaps: layers of which only some have it.",
            Value::Pattern(&super::pattern::AXES),
            "\"l\"",
        ),
        field(
            "role",
            "What it is, where no layout's `forward` names a tensor that holds it alone.",
            Value::Choice(PARAM_ROLES),
            "\"q\"",
        ),
        field("about", "What it is, for a reader.", Value::Text, "\"query projection\""),
    ],
};

/// The fields of a layout.
pub(super) const LAYOUT: Object = Object {
    name: "layout",
    fields: &[
        field(
            "like",
            "The layout of this family of which everything is taken over but `about`. Entries of `tensors`, `axes`, `config`, `settings`, `defaults`, `when`, `metadata` and `paths` replace those of the same name; null removes.",
            Value::Text,
            "\"separate\"",
        ),
        field(
            "strip",
            "What the names that `like` takes over begin with and this layout's do not, in `tensors`, `ignore`, `computed` and `forward`. A name that does not begin so needs an entry of its own, which null can be.",
            Value::Pattern(&super::pattern::PREFIX),
            "\"model.\"",
        ),
        field(
            "add",
            "What this layout's names begin with and those that `like` takes over do not; after `strip`.",
            Value::Pattern(&super::pattern::PREFIX),
            "\"bert.\"",
        ),
        field("about", "What the layout is, for a reader.", Value::Text, "\"as torch stores it\""),
        removable(
            "source",
            "Where the framework's code says so: repository and file.",
            Value::Text,
            "\"owner/repository path/to/file.py\"",
        ),
        removable(
            "axes",
            "Axes that this layout restates in its stored order (a text is the order: `(f c) + u`) or has alone.",
            Value::Entries(
                AXIS_NAMES,
                &Value::AnyOf(&[Value::Pattern(&super::pattern::SUM), Value::Object(&AXIS), Value::Null]),
            ),
            "{ \"d\": \"(f c) + u\" }",
        ),
        removable(
            "tensors",
            "The stored tensors: a template for names, and the expression of what such a tensor holds. A name that ends with `.`, `/` or `::` is a prefix: the names in its object begin with it.",
            Value::Rules(&Value::AnyOf(&[
                Value::Pattern(&super::pattern::EXPRESSION),
                Value::Object(&RULE),
                Value::List(&Value::AnyOf(&[
                    Value::Pattern(&super::pattern::EXPRESSION),
                    Value::Object(&RULE),
                ])),
                Value::Null,
            ])),
            "{ \"layers.{l}.q.weight\": \"q.weight: (h d) e\" }",
        ),
        removable(
            "config",
            "Where a config file tells the size of an axis: a name in it, several of which the first that is there counts, or an object. Dots reach into nested objects.",
            Value::Entries(
                AXIS_NAMES,
                &Value::AnyOf(&[Value::Text, Value::List(&Value::Text), Value::Object(&CONFIG), Value::Null]),
            ),
            "{ \"h\": \"num_attention_heads\" }",
        ),
        super::setting::FIELD,
        removable(
            "file",
            "The file in which the framework looks for the weights in a folder, `tf_model.h5`; its ending says the format. Without it a folder gets `model.safetensors`.",
            Value::Pattern(&super::pattern::FILE),
            "\"tf_model.h5\"",
        ),
        removable(
            "config_file",
            "The name of the framework's config file, where it is not `config.json`; `none` where the files of weights say it themselves.",
            Value::Pattern(&super::pattern::CONFIG_FILE),
            "\"params.json\"",
        ),
        removable(
            "defaults",
            "Sizes that the framework fixes, over other axes; used where nothing else tells them.",
            Value::Entries(AXIS_NAMES, &Value::AnyOf(&[FORMULA_TEXT, FORMULA_NUMBER, Value::Null])),
            "{ \"dv\": \"d\" }",
        ),
        removable(
            "ignore",
            "Templates of stored tensors that are no parameters, such as buffers; they are dropped and reported.",
            Value::AnyOf(&[TEMPLATE, Value::List(&TEMPLATE)]),
            "[\"{*m}.position_ids\"]",
        ),
        removable(
            "computed",
            "Stored tensors that follow from the config and not from weights. They are dropped when they are read, and computed from the source's config when they are written.",
            Value::Entries(Names::Any, &Value::Object(&COMPUTED)),
            "{ \"rope_freqs.weight\": { \"values\": \"llama3 factors\", \"axis\": \"f2\" } }",
        ),
        removable(
            "when",
            "What must hold of the config: a name in it and the value, or a list of values; null also stands for a missing entry.",
            Value::Entries(Names::Any, &Value::Json),
            "{ \"multi_query\": true }",
        ),
        removable(
            "metadata",
            "What the layout's readers demand in the file's metadata.",
            Value::Entries(Names::Any, &Value::AnyOf(&[Value::Text, Value::Null])),
            "{ \"format\": \"pt\" }",
        ),
        removable(
            "paths",
            "What a captured path is where the other side does not capture it; dots part its segments.",
            Value::Entries(AXIS_NAMES, &Value::AnyOf(&[Value::Text, Value::Null])),
            "{ \"m\": \"model.text\" }",
        ),
        removable(
            "part",
            "The part of a config in which the entries of `config` and `when` stand, as `text_config`; of several the first that is there, `.` is the config itself.",
            Value::AnyOf(STRINGS),
            "[\"text_config\", \".\"]",
        ),
        removable(
            "models",
            "What a checkpoint calls its models: `model_type` in a config, `general.architecture` in GGUF. A model that only another layout lists is refused.",
            Value::AnyOf(STRINGS),
            "[\"bert\"]",
        ),
        removable(
            "forward",
            "How the framework computes attention, written from its source and never from the expressions: one entry, or one with a name for each kind of attention; what stands beside those with names holds for each.",
            Value::Forwards(&FORWARD),
            "{ \"source\": \"…\", \"qkv\": { … }, \"out\": { … } }",
        ),
    ],
};

const FORMULA_TEXT: Value = Value::Pattern(&super::pattern::FORMULA);
const FORMULA_NUMBER: Value = Value::Number(None);

const WHEN: Field = field(
    "when",
    "What must hold of the config for the rule to count: a name in it and the value, or a list of values.",
    Value::Entries(Names::Any, &Value::Json),
    "{ \"tie_word_embeddings\": true }",
);

/// The fields of a rule.
pub(super) const RULE: Object = Object {
    name: "rule",
    fields: &[
        required(
            "is",
            "What the tensor holds: a label and its axes, slowest first; `(a b)` is one stored axis, `(x: a + y: b)` one block after the other.",
            Value::Pattern(&super::pattern::EXPRESSION),
            "\"q.weight: (h d) e\"",
        ),
        field(
            "optional",
            "Whether the tensor may be missing though its parameters are there: a tied copy.",
            Value::Flag,
            "true",
        ),
        field("scale", "stored = parameter * scale + offset.", Value::AnyOf(FORMULA), "\"1/sqrt(d)\""),
        field("offset", "stored = parameter * scale + offset.", Value::AnyOf(FORMULA), "1"),
        WHEN,
        field(
            "needed",
            "Where the layout's readers cannot do without the tensor: `true`, the name of a parameter beside which it must be there, or what the config says then. A source without it is incomplete; a target gets zeros or a copy where the parameter says so, else it is an error.",
            Value::AnyOf(&[
                Value::Flag,
                Value::Pattern(&super::pattern::LABEL),
                Value::Entries(Names::Any, &Value::Json),
                Value::List(&Value::Entries(Names::Any, &Value::Json)),
            ]),
            "{ \"tie_word_embeddings\": false }",
        ),
        field("about", "Why it is so, for a reader.", Value::Text, "\"tied to the embedding\""),
    ],
};

/// The fields of a computed tensor.
pub(super) const COMPUTED: Object = Object {
    name: "computed",
    fields: &[
        required("values", "What it holds.", Value::Choice(VALUES), "\"llama3 factors\""),
        required(
            "axis",
            "The axis of rotary pairs that it has.",
            Value::Pattern(&super::pattern::AXIS),
            "\"f2\"",
        ),
    ],
};

/// The fields of a config entry.
pub(super) const CONFIG: Object = Object {
    name: "configEntry",
    fields: &[
        field(
            "keys",
            "Names in the config; the first that is there and not null counts. Dots reach into nested objects.",
            Value::AnyOf(STRINGS),
            "[\"num_attention_heads\"]",
        ),
        field(
            "is",
            "The size over the entry's `value` and other axes, where it is not the entry itself.",
            Value::AnyOf(FORMULA),
            "\"value / 2\"",
        ),
        field(
            "absent",
            "What the framework takes where the config has none of the names, over other axes.",
            Value::AnyOf(FORMULA),
            "\"h\"",
        ),
    ],
};
