//! The JSON Schema of mapping files: made of the fields that the reader knows, true of all built-in files, and no
//! kinder to mistakes than it must be.
//!
//! With `QKVCONV_REWRITE=1` the first test writes `mappings/mapping.schema.json`. The validator here knows the keywords
//! that the schema uses and no others.

use std::sync::Arc;

use assert_cmd::Command;
use qkvconv::mapping::schema::schema;
use qkvconv::span::Source;
use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use serde_json::Value;

use crate::kit::{rewrites, root};

/// What an editor makes of a pattern: letters, spaces and word boundaries are those of ASCII.
fn matches(pattern: &str, text: &str) -> bool {
    let syntax = syntax::Config::new().unicode(false).utf8(false);
    let regex =
        Regex::builder().syntax(syntax).build(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
    regex.is_match(text)
}

/// Keywords that only tell something.
const TOLD: &[&str] = &[
    "$schema",
    "title",
    "description",
    "default",
    "examples",
    "enumDescriptions",
    "patternErrorMessage",
    "definitions",
    "then",
    "else",
];

/// The schemas of names that match a pattern.
fn patterns(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["patternProperties"].as_object().into_iter().flatten()
}

struct Schema {
    root: Value,
}

impl Schema {
    fn new() -> Schema {
        Schema { root: serde_json::from_str(&schema()).expect("JSON") }
    }

    /// Returns where a value is not of the schema, or nothing.
    fn check(&self, value: &Value) -> Option<String> {
        self.at(&self.root, value, "")
    }

    fn at(&self, schema: &Value, value: &Value, place: &str) -> Option<String> {
        if let Some(reference) = schema["$ref"].as_str() {
            // In draft 7 nothing counts beside a reference.
            let name = reference.strip_prefix("#/definitions/").expect("a definition");
            let definition = &self.root["definitions"][name];
            assert!(definition.is_object(), "{reference} is defined");
            return self.at(definition, value, place);
        }
        let keywords = schema.as_object().expect("a schema");
        keywords.iter().find_map(|(keyword, wanted)| self.keyword(schema, keyword, wanted, value, place))
    }

    fn keyword(
        &self,
        schema: &Value,
        keyword: &str,
        wanted: &Value,
        value: &Value,
        place: &str,
    ) -> Option<String> {
        let fails = |fails: bool| fails.then(|| format!("{place}: {keyword}"));
        let fits = |schema: &Value| self.at(schema, value, place).is_none();
        let list = || wanted.as_array().expect("a list");
        let entries = || value.as_object().into_iter().flatten();
        match keyword {
            "type" => fails(match wanted.as_str().expect("a type") {
                "object" => !value.is_object(),
                "array" => !value.is_array(),
                "string" => !value.is_string(),
                "boolean" => !value.is_boolean(),
                "number" => !value.is_number(),
                "integer" => !value.as_f64().is_some_and(|value| value.fract() == 0.0),
                "null" => !value.is_null(),
                other => panic!("no type {other}"),
            }),
            "const" => fails(value.as_f64() != wanted.as_f64()),
            "enum" => fails(!list().contains(value)),
            "minimum" => {
                fails(value.as_f64().is_some_and(|value| value < wanted.as_f64().expect("a number")))
            }
            "minProperties" => fails(
                value.as_object().is_some_and(|o| (o.len() as u64) < wanted.as_u64().expect("a number")),
            ),
            "pattern" => {
                fails(value.as_str().is_some_and(|text| !matches(wanted.as_str().expect("a pattern"), text)))
            }
            "required" => list().iter().find_map(|name| {
                let name = name.as_str().expect("a name");
                (value.is_object() && value.get(name).is_none()).then(|| format!("{place}: lacks {name}"))
            }),
            "properties" => entries().find_map(|(name, value)| {
                wanted.get(name).and_then(|schema| self.at(schema, value, &format!("{place}/{name}")))
            }),
            "additionalProperties" => entries().find_map(|(name, value)| {
                let place = format!("{place}/{name}");
                match wanted {
                    _ if schema["properties"].get(name).is_some() => None,
                    _ if patterns(schema).any(|(pattern, _)| matches(pattern, name)) => None,
                    Value::Bool(false) => Some(format!("{place}: not known")),
                    schema => self.at(schema, value, &place),
                }
            }),
            "patternProperties" => entries().find_map(|(name, value)| {
                let mut wanted = patterns(schema).filter(|(pattern, _)| matches(pattern, name));
                wanted.find_map(|(_, schema)| self.at(schema, value, &format!("{place}/{name}")))
            }),
            "propertyNames" => entries().find_map(|(name, _)| {
                self.at(wanted, &Value::from(name.as_str()), &format!("{place}/{name}"))
            }),
            "items" => value
                .as_array()
                .into_iter()
                .flatten()
                .find_map(|item| self.at(wanted, item, &format!("{place}[]"))),
            "anyOf" => fails(!list().iter().any(fits)),
            "oneOf" => fails(list().iter().filter(|schema| fits(schema)).count() != 1),
            "not" => fails(fits(wanted)),
            "if" => self.at(&schema[if fits(wanted) { "then" } else { "else" }], value, place),
            told => {
                assert!(TOLD.contains(&told), "the validator does not know `{told}`");
                None
            }
        }
    }
}

#[test]
fn the_committed_schema_is_the_one_that_is_printed() {
    let path = root().join("mappings/mapping.schema.json");
    if rewrites() {
        std::fs::write(&path, schema()).expect("writable");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == schema(), "{}: run with QKVCONV_REWRITE=1", path.display());
    let printed =
        Command::cargo_bin("qkvconv").expect("is built").args(["mapping", "schema"]).output().expect("runs");
    assert!(printed.status.success());
    assert_eq!(String::from_utf8(printed.stdout).expect("text"), committed);
}

#[test]
fn every_field_is_described() {
    fn visit(value: &Value, place: &str, fields: &mut usize) {
        if let Some(properties) = value["properties"].as_object() {
            for (name, schema) in properties {
                let about = schema["description"].as_str().unwrap_or_default();
                assert!(about.ends_with('.') && about.len() > 10, "{place}/{name}: {about}");
                *fields += 1;
            }
        }
        for (name, value) in value.as_object().into_iter().flatten() {
            visit(value, &format!("{place}/{name}"), fields);
        }
    }
    let mut fields = 0;
    visit(&Schema::new().root, "", &mut fields);
    assert!(fields > 75, "{fields} fields");
}

#[test]
fn every_built_in_file_is_of_the_schema() {
    let schema = Schema::new();
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("mappings")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if !name.ends_with(".json") || name.ends_with(".schema.json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(schema.check(&value), None, "{name}");
        assert_eq!(value["$schema"], "mapping.schema.json", "{name}: editors find the schema beside it");
        count += 1;
    }
    assert!(count >= 54, "{count} files");
}

/// A file with one of everything, which both accept.
const WHOLE: &str = r#"{
  "$schema": "mapping.schema.json", "format": 1, "family": "x", "about": "…", "unmapped": "keep", "anchors": ["q"],
  "axes": { "l": "layers", "h": { "is": "g r", "about": "heads" }, "g": "key/value heads", "r": "queries of a group",
    "d": { "is": "(c f) + u" }, "c": { "size": 2 }, "f": "frequencies", "u": "the rest",
    "e": { "per": "parameter" }, "n": "rows" },
  "params": { "q": "l h d e", "k": { "axes": "l g d e", "optional": true, "sparse": "l" },
    "v": { "axes": "l g d e", "absent": "zeros", "about": "values" } },
  "layouts": {
    "a": { "about": "…", "source": "repository, file", "config_file": "params.json", "models": "x", "when": { "b": [true, null] },
      "axes": { "d": "(f c) + u" }, "metadata": { "format": "pt" }, "paths": { "m": "model.text" }, "ignore": "{*m}.ids",
      "tensors": { "{*m}.{l}.qkv": "(q: h d + k: g d + v: g d) e" },
      "config": { "h": "heads", "g": ["kv", "heads"], "n": { "keys": ["rows"], "is": "value / 2", "absent": "h" } },
      "defaults": { "e": 64, "u": "d - 2 * f" },
      "forward": { "source": "…", "about": "…", "causal": true, "attends": "self", "scale": "1/sqrt(d)", "kv_heads": "g",
        "axes": { "h": "h" }, "stacked": { "l": 0 }, "rotary": { "style": "half", "dims": "2 * f" },
        "qkv": { "weight": "{*m}.{l}.qkv", "apply": "linear", "cut": "blocks", "order": "q k v", "rest": true },
        "bias": { "q": "{*m}.q_bias" }, "q_norm": { "weight": "{*m}.q_norm", "kind": "layer", "over": "head", "epsilon": 1e-6 },
        "out": { "weight": "{*m}.{l}.out", "bias": "{*m}.{l}.b", "apply": "einsum thd,hdo->to", "each": "h", "mean": true } } },
    "b": { "like": "a", "when": null, "tensors": { "{*m}.{l}.qkv": null,
        "{*m}.q_{l:03}": { "is": "q: (h d) e", "scale": 2, "offset": "1 / 4", "optional": true, "about": "…" },
        "{*m}.k{_l}": [{ "is": "k: g d e", "when": { "t": true } }, { "is": "k: e g d", "when": { "t": false } }],
        "f_{l.count+1:02}::{*m}.{l}.v": "v: g ((2 f) + u) e" },
      "forward": { "self": { "q": { "weight": "{*m}.q", "apply": "dense" }, "kv": { "weight": "kv", "apply": "convolution", "cut": "per 2 * g", "order": "k v" } } } },
    "c": { "like": "b", "strip": "{*m}.", "add": "net/{*m}.", "tensors": { "f_{l.count+1:02}::": null }, "forward": null }
  }
}"#;

fn read(text: &str) -> Result<(), String> {
    let source = Arc::new(Source { name: "m.json".into(), text: text.into() });
    qkvconv::mapping::read(&source).map(|_| ()).map_err(|errors| errors.to_string())
}

#[test]
fn a_file_with_everything_is_accepted() {
    assert_eq!(Schema::new().check(&serde_json::from_str(WHOLE).expect("JSON")), None);
    assert_eq!(read(WHOLE), Ok(()));
}

/// Files that both refuse: what is replaced in [`WHOLE`], and by what.
const BROKEN: &[(&str, &str)] = &[
    (r#""format": 1, "#, ""),
    (r#""format": 1"#, r#""format": 2"#),
    (r#""format": 1"#, r#""format": "1""#),
    (r#""family": "x", "#, ""),
    (r#""family": "x""#, r#""family": 3"#),
    (r#""family": "x""#, r#""family": "x", "extends": "attention""#),
    (r#""unmapped": "keep""#, r#""unmapped": "kep""#),
    (r#""about": "…", "unmapped""#, r#""abuot": "…", "unmapped""#),
    (r#""anchors": ["q"]"#, r#""anchors": [1]"#),
    (r#""l": "layers""#, r#""l": 12"#),
    (r#""l": "layers""#, r#""1l": "layers""#),
    (r#""is": "g r""#, r#""is": "g * r""#),
    (r#""is": "g r""#, r#""iz": "g r""#),
    (r#"{ "size": 2 }"#, r#"{ "size": "2" }"#),
    (r#"{ "size": 2 }"#, r#"{ "size": 2.5 }"#),
    (r#"{ "per": "parameter" }"#, r#"{ "per": "tensor" }"#),
    (r#""q": "l h d e""#, r#""q": "l, h, d, e""#),
    (r#""q": "l h d e""#, r#""q": ["l", "h"]"#),
    (r#""q": "l h d e""#, r#""q q": "l h d e""#),
    (r#""axes": "l g d e", "optional": true"#, r#""optional": true"#),
    (r#""optional": true, "sparse""#, r#""optional": "yes", "sparse""#),
    (r#""absent": "zeros""#, r#""absent": "ones""#),
    (r#""strip": "{*m}.""#, r#""strip": "{*m}""#),
    (r#""strip": "{*m}.""#, r#""strip": 1"#),
    (r#""add": "net/{*m}.""#, r#""add": "net:""#),
    (r#""config_file": "params.json""#, r#""config_file": "a/params.json""#),
    (r#""d": "(f c) + u""#, r#""d": "(f c + u""#),
    (r#""format": "pt""#, r#""format": 1"#),
    (r#"(q: h d + k: g d + v: g d) e"#, r#"q: h d + k: g d"#),
    (r#"(q: h d + k: g d + v: g d) e"#, r#"(q: h d + k: g d + v: g d e"#),
    (r#"(q: h d + k: g d + v: g d) e"#, r#"(q: h d, k: g d, v: g d) e"#),
    (r#"(q: h d + k: g d + v: g d) e"#, r#"(q: h*d + k: g d + v: g d) e"#),
    (r#"(q: h d + k: g d + v: g d) e"#, r#"(q: 2h d + k: g d + v: g d) e"#),
    (r#""{*m}.{l}.qkv": "(q"#, r#""{*m}.{l.qkv": "(q"#),
    (r#""{*m}.{l}.qkv": "(q"#, r#""{*m}.{l}{h}.qkv": "(q"#),
    (r#""{*m}.{l}.qkv": "(q"#, r#""{*m}_{l}.qkv": "(q"#),
    (r#""{*m}.{l}.qkv": "(q"#, r#""{*m}.{l:3}.qkv": "(q"#),
    (r#""keys": ["rows"]"#, r#""key": ["rows"]"#),
    (r#""is": "value / 2""#, r#""is": "value / ""#),
    (r#""e": 64, "u": "d - 2 * f""#, r#""e": true"#),
    (r#""u": "d - 2 * f""#, r#""u": "d - 2f""#),
    (r#""causal": true"#, r#""causal": "true""#),
    (r#""attends": "self""#, r#""attends": "both""#),
    (r#""style": "half""#, r#""style": "halves""#),
    (r#""apply": "linear", "cut""#, r#""apply": 1, "cut""#),
    (r#""apply": "linear", "cut""#, r#""apply": "lineal", "cut""#),
    (r#""cut": "blocks""#, r#""cut": "thirds""#),
    (r#""order": "q k v""#, r#""order": "q, k, v""#),
    (r#""order": "q k v", "rest": true"#, r#""order": "q k v", "mean": true"#),
    (r#""kind": "layer""#, r#""kind": "rms""#),
    (r#""over": "head""#, r#""over": "heads""#),
    (r#""epsilon": 1e-6"#, r#""epsilon": "1e-6""#),
    (r#""axes": { "h": "h" }"#, r#""axes": { "heads": "h" }"#),
    (r#""stacked": { "l": 0 }"#, r#""stacked": { "l": "0" }"#),
    (r#"{ "is": "q: (h d) e", "scale": 2,"#, r#"{ "scale": 2,"#),
    (r#""scale": 2"#, r#""scale": [2]"#),
    (r#""bias": { "q": "{*m}.q_bias" }"#, r#""bias": { "q": "{*m}.q_bias", "tensor": "b" }"#),
    (r#""forward": { "self": { "q""#, r#""forward": { "self": { "qq""#),
];

/// Files that the reader alone refuses, with why a schema cannot.
const BEYOND_A_SCHEMA: &[(&str, &str, &str)] = &[
    ("names that other places declare", r#"q: (h d) e"#, r#"qq: (h d) e"#),
    ("names that other places declare", r#""is": "g r""#, r#""is": "g rr""#),
    ("names that other places declare", r#""like": "a""#, r#""like": "aa""#),
    ("axes of a parameter against those of its tensors", r#"q: (h d) e"#, r#"q: h d"#),
    ("what the attention says for all its products", r#""apply": "linear", "cut""#, r#""cut""#),
    ("which parts a product has, once each", r#""order": "q k v""#, r#""order": "q k""#),
    ("which products stand together", r#""qkv": { "weight""#, r#""kv": { "weight""#),
    (
        "a null that takes nothing away",
        r#""when": null, "tensors": { "{*m}.{l}.qkv": null"#,
        r#""tensors": { "{*m}.{l}.q": null"#,
    ),
    ("labels: which blocks have one", r#"k: g d + v: g d) e"#, r#"g d + v: g d) e"#),
    ("blocks of a sum without axes", r#"k: g d + v: g d) e"#, r#"k: g d + ) e"#),
    ("names that two rules share", r#""when": { "t": false }"#, r#""when": { "t": true }"#),
    ("definitions that lead back", r#""g": "key/value heads""#, r#""g": { "is": "h" }"#),
    ("the axes of an einsum", r#"einsum thd,hdo->to"#, r#"einsum thd,hdo->ot"#),
];

fn replaced(find: &str, instead: &str) -> String {
    assert_eq!(WHOLE.matches(find).count(), 1, "{find}");
    WHOLE.replacen(find, instead, 1)
}

#[test]
fn broken_files_are_refused_by_both() {
    let schema = Schema::new();
    let mut kind = Vec::new();
    for (find, instead) in BROKEN {
        let text = replaced(find, instead);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{instead}: {error}"));
        if schema.check(&value).is_none() {
            kind.push(format!("the schema accepts {instead}"));
        }
        if read(&text).is_ok() {
            kind.push(format!("the reader accepts {instead}"));
        }
    }
    assert!(kind.is_empty(), "{kind:#?}");
}

#[test]
fn what_a_schema_cannot_say_the_reader_refuses() {
    let schema = Schema::new();
    for (why, find, instead) in BEYOND_A_SCHEMA {
        let text = replaced(find, instead);
        assert!(read(&text).is_err(), "{instead}");
        let value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(schema.check(&value), None, "{why}: {instead} belongs to BROKEN");
    }
}

#[test]
fn deep_parentheses_and_long_texts_pass() {
    let nested =
        |depth: usize| replaced("q: (h d) e", &format!("q: {}h d{} e", "(".repeat(depth), ")".repeat(depth)));
    let schema = Schema::new();
    for depth in [2, 5, 9, 20] {
        let text = nested(depth);
        assert_eq!(schema.check(&serde_json::from_str(&text).expect("JSON")), None, "{depth}");
        assert_eq!(read(&text), Ok(()), "{depth}");
    }
}
