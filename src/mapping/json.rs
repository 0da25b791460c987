//! JSON with the place of every value.

use std::sync::Arc;

use indexmap::IndexMap;
use jsonc_parser::ast::{ObjectPropName, Value};
use jsonc_parser::common::{Range, Ranged};
use jsonc_parser::{CollectOptions, parse_to_ast};

use super::choices::Choice;
use super::field::Field;
use super::recover::{RULES, mended};
use crate::diag::{Collector, Diagnostic, MappingCode, nearest};
use crate::notation::Text;
use crate::span::{Source, Span};

/// The most unknown fields of one object that are told one by one.
const MOST_UNKNOWN: usize = 20;

/// A value and its place; for a string the place is the text between the quotes.
#[derive(Clone, Debug)]
pub(super) struct Json {
    pub(super) value: Kind,
    pub(super) span: Span,
}

/// Fields with the place of their names and whether the name stands letter by letter.
pub(super) type Entries = IndexMap<String, (Span, bool, Json)>;

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Number(f64),
    /// The text, and whether the source holds it letter by letter.
    String(String, bool),
    Array(Vec<Json>),
    Object(Entries),
}

/// Parses strict JSON; a duplicate field is an error. What is wrong is mended where that is possible, so that the rest
/// is read as well.
pub(super) fn parse(source: &Arc<Source>, errors: &mut Collector) -> Option<Json> {
    let text;
    let parsed = match parse_to_ast(&source.text, &CollectOptions::default(), &RULES) {
        Ok(parsed) => parsed,
        Err(_) => {
            text = mended(source, errors)?;
            parse_to_ast(&text, &CollectOptions::default(), &RULES).ok()?
        }
    };
    if parsed.value.is_none() {
        errors.push(
            Diagnostic::error(MappingCode::Json, "the file is empty")
                .rule(&Span::new(source, 0, 0))
                .expected("a mapping, `{ \"format\": 1, … }`")
                .found("nothing")
                .help("`qkvconv mapping new --from SRC` writes a file to start from"),
        );
    }
    Some(convert(source, parsed.value?, errors))
}

fn convert(source: &Arc<Source>, value: Value<'_>, errors: &mut Collector) -> Json {
    let whole = value.range();
    let mut span = Span::new(source, whole.start, whole.end);
    let value = match value {
        Value::NullKeyword(_) => Kind::Null,
        Value::BooleanLit(lit) => Kind::Bool(lit.value),
        Value::NumberLit(lit) => Kind::Number(lit.value.parse().unwrap_or(f64::NAN)),
        Value::StringLit(lit) => {
            check_quotes(source, whole, errors);
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
                check_quotes(source, range, errors);
                let (name, (at, verbatim)) = match property.name {
                    ObjectPropName::String(lit) => {
                        let name = lit.value.into_owned();
                        let place = inside(source, range, &name);
                        (name, place)
                    }
                    ObjectPropName::Word(word) => {
                        (word.value.to_owned(), (Span::new(source, range.start, range.end), true))
                    }
                };
                let value = convert(source, property.value, errors);
                if let Some((first, _, _)) = fields.get(&name) {
                    let first: &Span = first;
                    errors.push(
                        Diagnostic::error(MappingCode::Duplicate, format!("`{name}` stands twice"))
                            .rule(&at)
                            .related(first, "first here")
                            .expected("each name once in an object")
                            .found(format!("`{name}` a second time"))
                            .help("remove one of the two, or give one another name"),
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

/// Names and texts stand in double quotes.
fn check_quotes(source: &Arc<Source>, range: Range, errors: &mut Collector) {
    let raw = source.text.get(range.start..range.end).unwrap_or_default();
    if let Some(at) = raw.find('\n') {
        errors.push(
            Diagnostic::error(MappingCode::Json, "a text of more than one line")
                .rule(&Span::new(source, range.start, range.start + at))
                .expected("a `\"` at its end, on the same line")
                .found("the end of the line")
                .help("close the text with `\"`, or write `\\n` for a new line in it"),
        );
    }
    if !raw.starts_with('"') {
        let bare = raw.trim_matches('\'');
        errors.push(
            Diagnostic::error(MappingCode::Json, "names and texts stand in double quotes")
                .rule(&Span::new(source, range.start, range.end))
                .expected(format!("`\"{bare}\"`"))
                .found(format!("`{raw}`"))
                .help("put `\"` around it"),
        );
    }
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
    pub(super) fn kind_name(&self) -> &'static str {
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
        let found = match &self.value {
            Kind::Bool(_) | Kind::Number(_) => {
                format!("{}, `{}`", self.kind_name(), self.span.text())
            }
            Kind::String(text, _) if text.chars().count() <= 40 => format!("a string, `\"{text}\"`"),
            _ => self.kind_name().to_owned(),
        };
        let help = match &self.value {
            Kind::Null => {
                "null removes an entry that `like` takes over; elsewhere leave the entry out".to_owned()
            }
            Kind::Bool(_) | Kind::Number(_) if wanted.contains("string") => {
                format!("put it in quotes, `\"{}\"`", self.span.text())
            }
            Kind::String(text, _) if wanted.contains("`true`") || wanted.contains("number") => {
                match matches!(text.as_str(), "true" | "false") || text.parse::<f64>().is_ok() {
                    true => format!("write it without quotes, `{text}`"),
                    false => format!("write {wanted} without quotes"),
                }
            }
            _ => format!("write {wanted} here"),
        };
        let message = format!("expected {wanted}, found {}", self.kind_name());
        errors.push(
            Diagnostic::error(MappingCode::Type, message)
                .rule(&self.span)
                .expected(wanted)
                .found(found)
                .help(help),
        );
    }

    /// Returns the text that is one of a closed set of the field's.
    pub(super) fn choice(
        &self,
        field: &str,
        choices: &'static [Choice],
        errors: &mut Collector,
    ) -> Option<&'static str> {
        let text = self.string(errors)?;
        let found = choices.iter().map(|choice| choice.name).find(|name| *name == text);
        if found.is_none() {
            errors.push(unknown_choice(field, text, &self.span, choices, None));
        }
        found
    }

    /// Reports the fields that must be there and are not.
    pub(super) fn check_required(&self, known: &[Field], errors: &mut Collector) {
        let Kind::Object(entries) = &self.value else { return };
        let missing = known.iter().filter(|field| field.required && !entries.contains_key(field.name));
        missing.for_each(|field| errors.push(self.missing(field)));
    }

    /// Reports that a field which this object needs is missing.
    pub(super) fn needs(&self, name: &str, known: &[Field], errors: &mut Collector) {
        known.iter().filter(|field| field.name == name).for_each(|field| errors.push(self.missing(field)));
    }

    /// Says that a field is missing in the object.
    fn missing(&self, field: &Field) -> Diagnostic {
        let names: Vec<String> = match &self.value {
            Kind::Object(entries) => {
                let shown = entries.keys().take(MOST_UNKNOWN).map(|name| format!("`{name}`"));
                shown.chain((entries.len() > MOST_UNKNOWN).then(|| "…".to_owned())).collect()
            }
            _ => Vec::new(),
        };
        let found = if names.is_empty() { "no fields".into() } else { names.join(", ") };
        // Of an object its beginning: the whole may be long.
        let start = self.span.start;
        let end = start + self.span.text().chars().next().map_or(0, char::len_utf8);
        Diagnostic::error(MappingCode::MissingField, format!("the field `{}` is missing", field.name))
            .rule(&Span::new(&self.span.source, start, end))
            .expected(format!("`{}`: {}", field.name, first_sentence(field.about)))
            .found(found)
            .help(format!("add `\"{}\": {}`", field.name, field.example))
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
    pub(super) fn object(&self, errors: &mut Collector) -> Option<&Entries> {
        match &self.value {
            Kind::Object(fields) => Some(fields),
            _ => {
                self.wrong("an object", errors);
                None
            }
        }
    }

    /// Returns an object's fields after reporting those that are not `known`.
    pub(super) fn fields(&self, known: &[Field], errors: &mut Collector) -> Fields<'_> {
        let fields = self.object(errors);
        let unknown =
            fields.into_iter().flatten().filter(|(name, _)| known.iter().all(|field| field.name != *name));
        let unknown: Vec<(&String, &Span)> = unknown.map(|(name, (span, ..))| (name, span)).collect();
        for (name, span) in unknown.iter().take(MOST_UNKNOWN) {
            errors.push(unknown_field(name, span, known));
        }
        // Another kind of file, such as a vocabulary, has hundreds of thousands.
        if let Some((_, span)) = unknown.get(MOST_UNKNOWN) {
            let names: Vec<String> = known.iter().map(|field| format!("`{}`", field.name)).collect();
            errors.push(
                Diagnostic::error(MappingCode::UnknownField, "more unknown fields than are told one by one")
                    .rule(span)
                    .expected(format!("one of {}", names.join(", ")))
                    .found(format!("{} more here", unknown.len() - MOST_UNKNOWN))
                    .help("is this a mapping file? its fields are these"),
            );
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

fn unknown_field(name: &str, span: &Span, known: &[Field]) -> Diagnostic {
    let names = known.iter().map(|field| field.name);
    let near = nearest(name, names.clone()).and_then(|near| known.iter().find(|field| field.name == near));
    Diagnostic::error(MappingCode::UnknownField, format!("unknown field `{name}`"))
        .rule(span)
        .expected(format!("one of {}", names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")))
        .found(format!("`{name}`"))
        .help(match near {
            Some(near) => format!("did you mean `{}`? {}", near.name, first_sentence(near.about)),
            None if known.iter().any(|field| field.name == "about") => {
                "remove it; notes for readers stand in `about`".into()
            }
            None => "remove it".into(),
        })
}

/// Says that a text is none of a closed set; `more` is what else may stand there.
pub(super) fn unknown_choice(
    field: &str,
    text: &str,
    span: &Span,
    choices: &[Choice],
    more: Option<&str>,
) -> Diagnostic {
    let names = choices.iter().map(|choice| choice.name);
    let quoted: Vec<String> = names.clone().map(|name| format!("`{name}`")).collect();
    let known = [&quoted[..], &more.map(str::to_owned).into_iter().collect::<Vec<_>>()].concat().join(", ");
    let near = nearest(text, names).and_then(|near| choices.iter().find(|choice| choice.name == near));
    Diagnostic::error(MappingCode::UnknownValue, format!("an unknown value of `{field}`"))
        .rule(span)
        .expected(if choices.len() == 1 && more.is_none() {
            known.clone()
        } else {
            format!("one of {known}")
        })
        .found(format!("`{text}`"))
        .help(match (near, choices) {
            (Some(near), _) => format!("did you mean `{}`? {}", near.name, near.about),
            (None, choices) => {
                let meant = choices.iter().map(|choice| format!("`{}`: {}", choice.name, choice.about));
                meant.collect::<Vec<_>>().join(" ")
            }
        })
}

fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.')
}

/// An object's fields.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(Option<&'a Entries>);

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
