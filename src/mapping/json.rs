//! JSON with the place of every value.

use std::sync::Arc;

use indexmap::IndexMap;
use jsonc_parser::ast::{ObjectPropName, Value};
use jsonc_parser::common::{Range, Ranged};
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use crate::diag::{Collector, Diagnostic, nearest};
use crate::notation::Text;
use crate::span::{Source, Span};

/// A value and its place; for a string the place is the text between the quotes.
#[derive(Clone, Debug)]
pub(super) struct Json {
    pub(super) value: Kind,
    pub(super) span: Span,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Number(f64),
    /// The text, and whether the source holds it letter by letter.
    String(String, bool),
    Array(Vec<Json>),
    /// Fields with the place of their names and whether the name stands letter by letter.
    Object(IndexMap<String, (Span, bool, Json)>),
}

/// Parses strict JSON; a duplicate field is an error.
pub(super) fn parse(source: &Arc<Source>, errors: &mut Collector) -> Option<Json> {
    let strict = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let span = |range: Range| Span::new(source, range.start, range.end.max(range.start));
    match parse_to_ast(&source.text, &CollectOptions::default(), &strict) {
        Ok(result) => match result.value {
            Some(value) => Some(convert(source, value, errors)),
            None => {
                errors.push(
                    Diagnostic::error("mapping/json", "the file is empty").rule(&Span::new(source, 0, 0)),
                );
                None
            }
        },
        Err(error) => {
            let message = format!("not JSON: {}", error.kind().to_string().to_lowercase());
            errors.push(Diagnostic::error("mapping/json", message).rule(&span(error.range())));
            None
        }
    }
}

fn convert(source: &Arc<Source>, value: Value<'_>, errors: &mut Collector) -> Json {
    let whole = value.range();
    let mut span = Span::new(source, whole.start, whole.end);
    let value = match value {
        Value::NullKeyword(_) => Kind::Null,
        Value::BooleanLit(lit) => Kind::Bool(lit.value),
        Value::NumberLit(lit) => Kind::Number(lit.value.parse().unwrap_or(f64::NAN)),
        Value::StringLit(lit) => {
            let (inner, verbatim) = inside(source, whole, &lit.value);
            span = inner;
            Kind::String(lit.value.into_owned(), verbatim)
        }
        Value::Array(array) => {
            Kind::Array(array.elements.into_iter().map(|element| convert(source, element, errors)).collect())
        }
        Value::Object(object) => {
            let mut fields = IndexMap::new();
            for property in object.properties {
                let range = property.name.range();
                let name = match property.name {
                    ObjectPropName::String(lit) => lit.value.into_owned(),
                    ObjectPropName::Word(word) => word.value.to_owned(),
                };
                let (at, verbatim) = inside(source, range, &name);
                let value = convert(source, property.value, errors);
                if let Some((first, _, _)) = fields.get(&name) {
                    let (first, _): (&Span, ()) = (first, ());
                    errors.push(
                        Diagnostic::error("mapping/duplicate", format!("`{name}` stands twice"))
                            .rule(&at)
                            .related(first, "first here")
                            .help("remove one of the two"),
                    );
                    continue;
                }
                fields.insert(name, (at, verbatim, value));
            }
            Kind::Object(fields)
        }
    };
    Json { value, span }
}

/// Returns the place between the quotes, and whether it holds `text` letter by letter.
fn inside(source: &Arc<Source>, quoted: Range, text: &str) -> (Span, bool) {
    let (start, end) = (quoted.start + 1, quoted.end.saturating_sub(1).max(quoted.start + 1));
    match source.text.get(start..end) {
        Some(raw) => (Span::new(source, start, end), raw == text),
        None => (Span::new(source, quoted.start, quoted.end), false),
    }
}

impl Json {
    fn kind_name(&self) -> &'static str {
        match &self.value {
            Kind::Null => "null",
            Kind::Bool(_) => "a truth value",
            Kind::Number(_) => "a number",
            Kind::String(..) => "a string",
            Kind::Array(_) => "a list",
            Kind::Object(_) => "an object",
        }
    }

    /// Reports that the value is of another kind than wanted.
    pub(super) fn wrong(&self, wanted: &str, errors: &mut Collector) {
        errors.push(
            Diagnostic::error("mapping/type", format!("expected {wanted}, found {}", self.kind_name()))
                .rule(&self.span)
                .expected(wanted),
        );
    }

    pub(super) fn string(&self, errors: &mut Collector) -> Option<&str> {
        match &self.value {
            Kind::String(text, _) => Some(text),
            _ => {
                self.wrong("a string", errors);
                None
            }
        }
    }

    /// Returns a string as text to parse, with its place.
    pub(super) fn text(&self, errors: &mut Collector) -> Option<Text<'_>> {
        match &self.value {
            Kind::String(text, verbatim) => Some(Text { text, span: &self.span, verbatim: *verbatim }),
            _ => {
                self.wrong("a string", errors);
                None
            }
        }
    }

    pub(super) fn bool(&self, errors: &mut Collector) -> Option<bool> {
        match self.value {
            Kind::Bool(value) => Some(value),
            _ => {
                self.wrong("`true` or `false`", errors);
                None
            }
        }
    }

    /// Returns a string's or a list of strings' items.
    pub(super) fn strings(&self, errors: &mut Collector) -> Vec<&Json> {
        match &self.value {
            Kind::String(..) => vec![self],
            Kind::Array(items) => items.iter().filter(|item| item.string(errors).is_some()).collect(),
            _ => {
                self.wrong("a string or a list of strings", errors);
                Vec::new()
            }
        }
    }

    /// Returns an object's fields.
    pub(super) fn object(&self, errors: &mut Collector) -> Option<&IndexMap<String, (Span, bool, Json)>> {
        match &self.value {
            Kind::Object(fields) => Some(fields),
            _ => {
                self.wrong("an object", errors);
                None
            }
        }
    }

    /// Returns an object's fields after reporting those that are not `known`.
    pub(super) fn fields(&self, known: &[&str], errors: &mut Collector) -> Fields<'_> {
        let fields = self.object(errors);
        for (name, (span, _, _)) in fields.into_iter().flatten() {
            if !known.contains(&name.as_str()) {
                let error =
                    Diagnostic::error("mapping/unknown-field", format!("unknown field `{name}`")).rule(span);
                errors.push(error.help(match nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("known here: {}", known.join(", ")),
                }));
            }
        }
        Fields(fields)
    }

    /// Returns the value as plain JSON.
    pub(super) fn plain(&self) -> serde_json::Value {
        match &self.value {
            Kind::Null => serde_json::Value::Null,
            Kind::Bool(value) => (*value).into(),
            Kind::Number(value) if value.fract() == 0.0 && value.abs() < 9e15 => (*value as i64).into(),
            Kind::Number(value) => (*value).into(),
            Kind::String(text, _) => text.as_str().into(),
            Kind::Array(items) => items.iter().map(Json::plain).collect(),
            Kind::Object(fields) => serde_json::Value::Object(
                fields.iter().map(|(name, (.., value))| (name.clone(), value.plain())).collect(),
            ),
        }
    }
}

/// An object's fields.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(Option<&'a IndexMap<String, (Span, bool, Json)>>);

impl<'a> Fields<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a Json> {
        self.0?.get(name).map(|(.., value)| value)
    }

    /// Returns the text of a field that is a string; empty where it is missing.
    pub(super) fn text(&self, name: &str, errors: &mut Collector) -> String {
        self.get(name).and_then(|value| value.string(errors)).unwrap_or_default().to_owned()
    }

    /// Returns a truth value; false where it is missing.
    pub(super) fn flag(&self, name: &str, errors: &mut Collector) -> bool {
        self.get(name).and_then(|value| value.bool(errors)).unwrap_or(false)
    }

    /// Returns the fields of a field that is an object; none where it is missing.
    pub(super) fn entries(
        &self,
        name: &str,
        errors: &mut Collector,
    ) -> impl Iterator<Item = (&'a str, &'a Span, bool, &'a Json)> + use<'a> {
        let fields = self.get(name).and_then(|value| value.object(errors));
        fields
            .into_iter()
            .flatten()
            .map(|(name, (span, verbatim, value))| (name.as_str(), span, *verbatim, value))
    }
}
