//! What a config says beside sizes: epsilons, rotary bases, the model's name, by names that the layouts of a family share.

use serde_json::Value as Plain;

use super::field::{Field, Object, Value, field, required};
use super::json::{Json, Kind};
use super::{Layout, Mapping};
use crate::diag::{Collector, Diagnostic, MappingCode};
use crate::span::Span;

/// An entry of a framework's config that is no size.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its names in the config; the first that is there and not null counts, and the first is written.
    pub keys: Vec<String>,
    /// Where its value comes from, if not from the other layout's setting of the same name.
    pub origin: Origin,
    /// What the framework takes where the config has none of the names; null for nothing. `None`: it takes nothing, and
    /// an author must be told that it is missing.
    pub absent: Option<Plain>,
    /// The value that says no more than a missing entry.
    pub usual: Option<Plain>,
    /// Where it stands.
    pub span: Span,
}

/// Where the value of a setting comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// From the other layout's setting of the same name.
    Carried,
    /// It is the same in every checkpoint of the layout.
    Fixed(Plain),
    /// The size of an axis.
    Size(String),
    /// Whether the checkpoint holds a parameter.
    Holds(String),
    /// Whether the checkpoint lacks a parameter.
    Lacks(String),
}

/// The fields of a setting.
pub(super) const SETTING: Object = Object {
    name: "setting",
    fields: &[
        required(
            "keys",
            "Names in the config; the first that is there and not null counts. Dots reach into nested objects.",
            Value::AnyOf(&[Value::Text, Value::List(&Value::Text)]),
            "[\"rope_theta\"]",
        ),
        field("is", "The value that every checkpoint of the layout has.", Value::Json, "\"llama\""),
        field("size", "The axis whose size it repeats.", Value::Pattern(&super::pattern::AXIS), "\"d\""),
        field(
            "holds",
            "The parameter of which it says, with true or false, whether the checkpoint holds a tensor of it.",
            Value::Pattern(&super::pattern::LABEL),
            "\"q.bias\"",
        ),
        field(
            "lacks",
            "The parameter of which it says, with true or false, whether the checkpoint has no tensor of it.",
            Value::Pattern(&super::pattern::LABEL),
            "\"head.weight\"",
        ),
        field(
            "absent",
            "What the framework takes where the config has none of the names; null where that does no harm.",
            Value::Json,
            "10000.0",
        ),
        field("usual", "The value that says no more than a missing entry.", Value::Json, "\"none\""),
    ],
};

/// The field of a layout that holds them.
pub(super) const FIELD: Field = super::field::removable(
    "settings",
    "What the config says beside sizes, by names that the layouts of a family share: a name in it, several of which the first that is there counts, or an object. The config that is written for another layout gets its own entry of the same name.",
    Value::Entries(
        super::field::Names::Any,
        &Value::AnyOf(&[Value::Text, Value::List(&Value::Text), Value::Object(&SETTING), Value::Null]),
    ),
    "{ \"theta\": \"rope_theta\" }",
);

/// Reads a setting.
pub(super) fn setting(span: &Span, value: &Json, errors: &mut Collector) -> Option<Setting> {
    let texts = |value: &Json, errors: &mut Collector| -> Vec<String> {
        let texts = value.strings(errors).into_iter();
        texts.filter_map(|key| key.string(errors).map(str::to_owned)).collect()
    };
    let Kind::Object(_) = &value.value else {
        let (origin, absent, usual) = (Origin::Carried, None, None);
        return Some(Setting { keys: texts(value, errors), origin, absent, usual, span: span.clone() });
    };
    let fields = value.fields(SETTING.fields, errors);
    value.check_required(SETTING.fields, errors);
    let mut origins: Vec<Origin> = fields.get("is").map(|is| Origin::Fixed(is.plain())).into_iter().collect();
    for (name, origin) in
        [("size", Origin::Size as fn(String) -> Origin), ("holds", Origin::Holds), ("lacks", Origin::Lacks)]
    {
        let text = fields.get(name).and_then(|text| text.string(errors));
        origins.extend(text.map(|text| origin(text.to_owned())));
    }
    if origins.len() > 1 {
        let error = Diagnostic::error(MappingCode::Setting, "a setting's value cannot come from two places");
        let error = error.rule(span).expected("one of `is`, `size`, `holds` and `lacks` at most");
        errors.push(error.help("leave out all but one"));
    }
    Some(Setting {
        keys: fields.get("keys").map(|keys| texts(keys, errors)).unwrap_or_default(),
        origin: origins.pop().unwrap_or(Origin::Carried),
        absent: fields.get("absent").map(Json::plain),
        usual: fields.get("usual").map(Json::plain),
        span: span.clone(),
    })
}

/// Checks that what a layout's settings name is declared.
pub(super) fn check(mapping: &Mapping, layout: &Layout, errors: &mut Collector) {
    for setting in layout.settings.values() {
        let (what, name, known) = match &setting.origin {
            Origin::Size(axis) => ("axis", axis, mapping.axis(layout, axis).is_some()),
            Origin::Holds(param) | Origin::Lacks(param) => {
                ("parameter", param, mapping.params.contains_key(param))
            }
            Origin::Carried | Origin::Fixed(_) => continue,
        };
        if !known {
            let error =
                Diagnostic::error(MappingCode::Setting, format!("`{name}` is no {what} of this family"));
            let error = error.rule(&setting.span).expected(format!("a declared {what}"));
            errors.push(error.found(format!("`{name}`")).help("correct the name, or declare it"));
        }
    }
}
