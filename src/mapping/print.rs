//! Mapping files in their one form: `qkvconv mapping fmt`, and what every writer of mapping files uses.
//!
//! - The file, each layout, `axes`, `params` and `tensors` have one entry a line; those of the last three are each one
//!   line, with the values in a column. Rules under a prefix are one line where they fit, otherwise a table of their own.
//! - Any other object or list is one line where it fits 120 columns. Where it does not, an object has one field a
//!   line, those of `config` and `settings` with the values in a column, and a list fills lines.
//!
//! Texts and numbers stay letter by letter as they are written, and fields keep their order.

use std::sync::Arc;

use jsonc_parser::ast::{Object, ObjectProp, ObjectPropName, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, parse_to_ast};

use super::json;
use super::nest::is_prefix;
use super::recover::RULES;
use crate::diag::{Collector, Errors};
use crate::span::Source;

/// How many columns a line of several values may have.
const WIDTH: usize = 120;

/// How many columns each level is indented by.
const STEP: usize = 2;

/// A part of a mapping file that is written in a way of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// The whole file.
    File,
    /// `axes`, `params` or `tensors`.
    Table,
    /// `layouts`.
    Layouts,
    /// One of them.
    Layout,
    /// A table that is one line where it fits: `config`, `settings`.
    Columns,
    /// Anything else.
    Field,
}

impl Section {
    /// Returns what the field of that name is.
    fn field(self, name: &str) -> Section {
        match (self, name) {
            (Section::File, "axes" | "params") | (Section::Layout, "tensors") => Section::Table,
            (Section::File, "layouts") => Section::Layouts,
            (Section::Layouts, _) => Section::Layout,
            (Section::Layout, "config" | "settings") => Section::Columns,
            _ => Section::Field,
        }
    }
}

/// Returns the text of a mapping file in its one form, with a line break at its end.
///
/// # Errors
/// Returns what is no JSON, and names that stand twice; nothing else of a mapping is checked.
///
/// ```
/// use std::sync::Arc;
/// use qkvconv::mapping::print::print;
/// use qkvconv::span::Source;
///
/// let text = r#"{"format":1,"axes":{"e":"width","h":{"size":2}}}"#.to_owned();
/// let printed = print(&Arc::new(Source { name: "m.json".to_owned(), text }))?;
/// assert_eq!(printed, r#"{
///   "format": 1,
///   "axes": {
///     "e": "width",
///     "h": { "size": 2 }
///   }
/// }
/// "#);
/// # Ok::<(), qkvconv::diag::Errors>(())
/// ```
pub fn print(source: &Arc<Source>) -> Result<String, Errors> {
    let mut errors = Collector::default();
    let parsed = json::parse(source, &mut errors);
    errors.finish(parsed)?;
    // What has no mistakes is parsed again as it stands.
    Ok(section(&source.text, Section::File, 0) + "\n")
}

/// Returns the text of a section, which is JSON, in its one form; its first line is not indented, the others by `indent` more
/// than their depth. What is no JSON stays as it is.
pub(crate) fn section(text: &str, section: Section, indent: usize) -> String {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &RULES);
    match parsed.ok().and_then(|parsed| parsed.value) {
        Some(value) => Printer { text }.value(&value, section, indent),
        None => text.to_owned(),
    }
}

/// Returns a JSON text.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns an object of values that are JSON, in their order, for [`section`].
pub(crate) fn object(fields: impl Iterator<Item = (String, String)>) -> String {
    let fields: Vec<String> = fields.map(|(name, value)| format!("{}:{value}", quoted(&name))).collect();
    format!("{{{}}}", fields.join(","))
}

struct Printer<'a> {
    text: &'a str,
}

impl Printer<'_> {
    fn value(&self, value: &Value<'_>, section: Section, indent: usize) -> String {
        match (value, section) {
            (Value::Object(object), Section::Table) => self.table(object, indent),
            (Value::Object(object), Section::File | Section::Layouts | Section::Layout) => {
                self.block(object, section, indent)
            }
            _ => self.line(value),
        }
    }

    /// Writes a value in one line.
    fn line(&self, value: &Value<'_>) -> String {
        match value {
            Value::Object(object) if object.properties.is_empty() => "{}".to_owned(),
            Value::Object(object) => {
                let field =
                    |field: &ObjectProp<'_>| format!("{}: {}", self.name(field), self.line(&field.value));
                let fields: Vec<String> = object.properties.iter().map(field).collect();
                format!("{{ {} }}", fields.join(", "))
            }
            Value::Array(array) => {
                let elements: Vec<String> = array.elements.iter().map(|element| self.line(element)).collect();
                format!("[{}]", elements.join(", "))
            }
            _ => self.raw(value).to_owned(),
        }
    }

    /// Writes one field a line.
    fn block(&self, object: &Object<'_>, section: Section, indent: usize) -> String {
        let inner = indent + STEP;
        lines(
            indent,
            object.properties.iter().map(|field| {
                let name = self.name(field);
                let of = section.field(&self.bare(field));
                let before = inner + name.chars().count() + 2;
                let value = match of {
                    Section::Field | Section::Columns => self.field(&field.value, of, before, inner),
                    of => self.value(&field.value, of, inner),
                };
                format!("{name}: {value}")
            }),
        )
    }

    /// Writes one entry a line, each value in one line, in a column. What stands under a prefix is a table of its own where
    /// it does not fit a line.
    fn table(&self, object: &Object<'_>, indent: usize) -> String {
        let entry = |field: &ObjectProp<'_>| {
            let name = self.name(field) + ":";
            let inner = match &field.value {
                Value::Object(inner) if is_prefix(&self.bare(field)) => Some(inner),
                _ => None,
            };
            let before = indent + STEP + name.chars().count() + 1;
            let fits = |line: &str| before + line.chars().count() < WIDTH;
            match inner {
                Some(inner) if self.holds_prefix(inner) || !fits(&self.line(&field.value)) => {
                    (name, false, self.table(inner, indent + STEP))
                }
                _ => (name, inner.is_none(), self.line(&field.value)),
            }
        };
        let entries: Vec<(String, bool, String)> = object.properties.iter().map(entry).collect();
        let in_column = entries.iter().filter(|(_, in_column, _)| *in_column);
        let width = in_column.map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        lines(
            indent,
            entries.iter().map(|(name, in_column, value)| {
                let length = name.chars().count();
                let gap = " ".repeat(if *in_column { width - length } else { 0 });
                format!("{name}{gap} {value}")
            }),
        )
    }

    fn holds_prefix(&self, object: &Object<'_>) -> bool {
        object.properties.iter().any(|field| is_prefix(&self.bare(field)))
    }

    /// Writes a value that begins in column `before`: in one line where it fits.
    fn field(&self, value: &Value<'_>, section: Section, before: usize, indent: usize) -> String {
        let line = self.line(value);
        // A comma may follow.
        if before + line.chars().count() < WIDTH {
            return line;
        }
        match value {
            Value::Object(object) if section == Section::Columns => self.table(object, indent),
            Value::Object(object) if !object.properties.is_empty() => lines(
                indent,
                object
                    .properties
                    .iter()
                    .map(|field| format!("{}: {}", self.name(field), self.line(&field.value))),
            ),
            Value::Array(array) if array.elements.len() > 1 => {
                let pad = " ".repeat(indent + STEP);
                let mut text = String::from("[");
                let mut column = WIDTH;
                for (at, element) in array.elements.iter().enumerate() {
                    let comma = if at + 1 < array.elements.len() { "," } else { "" };
                    let element = self.line(element) + comma;
                    let length = element.chars().count() + 1;
                    if column + length > WIDTH {
                        text += &format!("\n{pad}{element}");
                        column = pad.len() + length;
                    } else {
                        text += &format!(" {element}");
                        column += length;
                    }
                }
                text + &format!("\n{}]", " ".repeat(indent))
            }
            _ => line,
        }
    }

    /// Returns a field's name in double quotes, as it is written.
    fn name(&self, field: &ObjectProp<'_>) -> String {
        let range = field.name.range();
        self.text.get(range.start..range.end).unwrap_or_default().to_owned()
    }

    fn bare(&self, field: &ObjectProp<'_>) -> String {
        match &field.name {
            ObjectPropName::String(name) => name.value.clone().into_owned(),
            ObjectPropName::Word(word) => word.value.to_owned(),
        }
    }

    fn raw(&self, value: &Value<'_>) -> &str {
        let range = value.range();
        self.text.get(range.start..range.end).unwrap_or_default()
    }
}

/// Writes an object of these fields.
fn lines(indent: usize, fields: impl Iterator<Item = String>) -> String {
    let pad = " ".repeat(indent + STEP);
    let fields: Vec<String> = fields.map(|field| format!("{pad}{field}")).collect();
    match fields.is_empty() {
        true => "{}".to_owned(),
        false => format!("{{\n{}\n{}}}", fields.join(",\n"), " ".repeat(indent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Result<String, Errors> {
        print(&Arc::new(Source { name: "m.json".to_owned(), text: text.to_owned() }))
    }

    #[test]
    fn the_form_stays_as_it_is_and_so_do_letters() {
        let models: Vec<String> = (0..30).map(|number| format!("\"model-{number}\"")).collect();
        let long = "x".repeat(130);
        let text = format!(
            r#"{{"layouts":{{"a":{{"about":"{long}","models":[{}],"tensors":{{"é":"w: e","lon\u0067":{{"is":"v","when":[1.50,-2e3]}},"n":null}},
            "config":{{"e":"n"}},"forward":{{"source":"{long}","q":{{"apply":"linear"}}}},"ignore":[]}}}},"axes":{{}}}}"#,
            models.join(",")
        );
        let once = printed(&text).expect("is JSON");
        let expected = format!(
            r#"{{
  "layouts": {{
    "a": {{
      "about": "{long}",
      "models": [
        "model-0", "model-1", "model-2", "model-3", "model-4", "model-5", "model-6", "model-7", "model-8", "model-9",
        "model-10", "model-11", "model-12", "model-13", "model-14", "model-15", "model-16", "model-17", "model-18",
        "model-19", "model-20", "model-21", "model-22", "model-23", "model-24", "model-25", "model-26", "model-27",
        "model-28", "model-29"
      ],
      "tensors": {{
        "é":         "w: e",
        "lon\u0067": {{ "is": "v", "when": [1.50, -2e3] }},
        "n":         null
      }},
      "config": {{ "e": "n" }},
      "forward": {{
        "source": "{long}",
        "q": {{ "apply": "linear" }}
      }},
      "ignore": []
    }}
  }},
  "axes": {{}}
}}
"#
        );
        assert_eq!(once, expected);
        assert_eq!(printed(&once).expect("is JSON"), once);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for (text, code) in [
            ("{", "mapping/json"),
            ("", "mapping/json"),
            (r#"{"a": 1, "a": 2}"#, "mapping/duplicate"),
            ("{'a': 1}", "mapping/json"),
        ] {
            let errors = printed(text).expect_err(text);
            assert!(
                errors.diagnostics().iter().any(|diagnostic| diagnostic.code == code),
                "{text}: {errors}"
            );
        }
    }
}
