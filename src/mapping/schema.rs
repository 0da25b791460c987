//! The JSON Schema of mapping files, made of the fields that the reader knows.
//!
//! Draft 7, which editors complete best; `enumDescriptions` and `patternErrorMessage` are what VS Code adds to it.

use serde_json::{Map, Value as Json, json};

use super::choices::Choice;
use super::field::{Field, Names, Object, Value};
use super::fields::{AXIS, COMPUTED, CONFIG, LAYOUT, PARAM, RULE, TOP};
use super::fields_forward::{FORWARD, FUSED, FUSED_BIAS, NORM, OUTPUT, PART_BIASES, PRODUCT, ROTATION};
use super::pattern::{self, Pattern};
use super::setting::SETTING;

/// All objects that have a name.
const OBJECTS: &[&Object] = &[
    &AXIS,
    &PARAM,
    &LAYOUT,
    &RULE,
    &CONFIG,
    &COMPUTED,
    &SETTING,
    &FORWARD,
    &PRODUCT,
    &FUSED,
    &OUTPUT,
    &FUSED_BIAS,
    &PART_BIASES,
    &NORM,
    &ROTATION,
];

/// What the schema calls the rules of a layout, which stand in one another.
const RULES: &str = "rules";

/// Returns the JSON Schema as text, each line indented by two spaces a level.
///
/// ```
/// let schema = qkvconv::mapping::schema::schema();
/// assert!(schema.contains("\"$schema\": \"http://json-schema.org/draft-07/schema#\""));
/// ```
pub fn schema() -> String {
    let mut definitions = Map::new();
    for object in OBJECTS {
        definitions.insert(object.name.to_owned(), fields(object.fields));
    }
    for pattern in pattern::ALL {
        definitions.insert(pattern.name.to_owned(), text(pattern));
    }
    definitions.extend(LAYOUT.fields.iter().find_map(|field| match &field.value {
        Value::Rules(rule) => Some((RULES.to_owned(), rules(rule))),
        _ => None,
    }));
    let mut all = fields(TOP);
    all["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    all["title"] = "A mapping file of qkvconv".into();
    all["description"] = "Names the parameters of a model family once, and says for each layout which stored tensor holds them.".into();
    all["oneOf"] = json!([{ "required": ["family"] }, { "required": ["extends"] }]);
    all["definitions"] = definitions.into();
    format!("{all:#}\n")
}

/// An object of known fields and no others.
fn fields(fields: &[Field]) -> Json {
    let mut properties = Map::new();
    for field in fields {
        let mut schema = value(&field.value);
        if field.removable {
            schema = json!({ "anyOf": [schema, value(&Value::Null)] });
        }
        schema["description"] = field.about.into();
        // An example that leaves something out is for people.
        if let Ok(example) = serde_json::from_str::<Json>(field.example) {
            schema["examples"] = json!([example]);
        }
        properties.insert(field.name.to_owned(), schema);
    }
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let required: Vec<&str> = fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn value(value: &Value) -> Json {
    match value {
        Value::Text => json!({ "type": "string" }),
        Value::Pattern(pattern) => reference(pattern.name),
        Value::Choice(choices) => one_of(choices),
        Value::Flag => json!({ "type": "boolean", "default": false }),
        Value::Whole => json!({ "type": "integer", "minimum": 0 }),
        Value::Exactly(number) => json!({ "const": number, "default": number }),
        Value::Number(None) => json!({ "type": "number" }),
        Value::Number(Some(default)) => json!({ "type": "number", "default": default }),
        Value::Null => json!({ "type": "null", "description": "Removes what `like` would take over." }),
        Value::Json => json!({}),
        Value::List(items) => json!({ "type": "array", "items": self::value(items) }),
        Value::Object(object) => reference(object.name),
        Value::Entries(names, each) => entries(names, self::value(each)),
        // The definition of that name.
        Value::Rules(_) => reference(RULES),
        Value::AnyOf(values) => json!({ "anyOf": values.iter().map(self::value).collect::<Vec<_>>() }),
        Value::Forwards(object) => {
            // What is no field is an attention with a name.
            let mut schema = fields(object.fields);
            schema["additionalProperties"] = reference(object.name);
            schema
        }
    }
}

/// An object of freely named entries.
fn entries(names: &Names, each: Json) -> Json {
    let mut schema = json!({ "type": "object", "additionalProperties": each });
    match names {
        Names::Any => {}
        Names::Pattern(pattern) => schema["propertyNames"] = reference(pattern.name),
        Names::Choice(choices) => schema["propertyNames"] = one_of(choices),
    }
    schema
}

/// Rules by name, or under a prefix.
fn rules(rule: &Value) -> Json {
    let mut schema = entries(&Names::Pattern(&pattern::TEMPLATE), value(rule));
    schema["patternProperties"] =
        json!({ "([./]|::)$": { "anyOf": [reference(RULES), value(&Value::Null)] } });
    schema
}

fn one_of(choices: &[Choice]) -> Json {
    let (names, abouts): (Vec<&str>, Vec<&str>) =
        choices.iter().map(|choice| (choice.name, choice.about)).unzip();
    json!({ "enum": names, "enumDescriptions": abouts })
}

fn text(pattern: &Pattern) -> Json {
    json!({
        "type": "string",
        "pattern": (pattern.regex)(),
        "description": pattern.about,
        "patternErrorMessage": pattern.wrong,
    })
}

/// In draft 7 what stands beside a reference does not count; editors show the description beside it all the same.
fn reference(name: &str) -> Json {
    json!({ "$ref": format!("#/definitions/{name}") })
}
