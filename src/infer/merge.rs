//! Inferred layouts → the text of a mapping file that is there already: what it holds stays as it is written.

use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::Parts;
use crate::diag::{Diagnostic, Errors, InferCode};
use crate::mapping::print::quoted;

/// Adds axes, parameters and layouts to the text of a mapping file.
///
/// # Errors
/// Returns what is no mapping file, and a parameter, a layout or another axis of a name that is to be added.
pub fn merge(text: &str, parts: &Parts) -> Result<String, Errors> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default())
        .map_err(|error| Diagnostic::error(InferCode::Into, format!("it is no mapping file: {error}")))?;
    let Some(Value::Object(top)) = &parsed.value else {
        return Err(Diagnostic::error(InferCode::Into, "it is no mapping file: no object").into());
    };
    let layouts = parts.layouts.iter().map(|layout| (layout.name.clone(), layout.text.clone())).collect();
    let sections = [("axes", &parts.axes), ("params", &parts.params), ("layouts", &layouts)];
    let mut edits: Vec<(usize, String)> = Vec::new();
    for (section, entries) in sections {
        let known = top.properties.iter().find(|prop| prop.name.as_str() == section).map(|prop| &prop.value);
        let Some(Value::Object(known)) = known else {
            let written = written(entries);
            let text = format!("\n  {}: {{\n{written}\n  }}", quoted(section));
            edits.push(insertion(top, &text));
            continue;
        };
        let mut added: Vec<(String, String)> = Vec::new();
        for (name, value) in entries {
            match known.properties.iter().find(|prop| prop.name.as_str() == name) {
                None => added.push((name.clone(), value.clone())),
                Some(prop) if section == "axes" && same(text, prop, value) => {}
                Some(_) => return Err(taken(section, name).into()),
            }
        }
        if !added.is_empty() {
            let lines = format!("\n{}", written(&added));
            edits.push(insertion(known, &lines));
        }
    }
    let mut result = text.to_owned();
    // From the end, so that places before stay; of one place the later section first.
    edits.sort_by_key(|(at, _)| *at);
    for (at, text) in edits.into_iter().rev() {
        result.insert_str(at, &text);
    }
    Ok(result)
}

fn taken(section: &str, name: &str) -> Diagnostic {
    let what = section.trim_end_matches('s');
    let what = if what == "axe" {
        "axis"
    } else if what == "param" {
        "parameter"
    } else {
        what
    };
    Diagnostic::error(InferCode::Into, format!("the file has the {what} `{name}` already")).help(
        "give other names, --source-layout and --target-layout, or write a file of its own with --output",
    )
}

fn same(text: &str, prop: &ObjectProp<'_>, value: &str) -> bool {
    let range = prop.value.range();
    let known = text
        .get(range.start..range.end)
        .and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    known.is_some() && known == serde_json::from_str(value).ok()
}

fn written(entries: &[(String, String)]) -> String {
    let lines = entries.iter().map(|(name, value)| format!("    {}: {value}", quoted(name)));
    lines.collect::<Vec<_>>().join(",\n")
}

/// Returns where a text goes that is added to an object, and the text with its comma.
fn insertion(object: &Object<'_>, text: &str) -> (usize, String) {
    match object.properties.last() {
        Some(last) => (last.range.end, format!(",{text}")),
        None => (object.range.start + 1, format!("{text}\n  ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::LayoutText;
    use super::*;

    fn parts() -> Parts {
        let entry = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Parts {
            axes: vec![entry("l", "\"layers\""), entry("e", "\"width\"")],
            params: vec![entry("norm", "\"l e\"")],
            layouts: vec![LayoutText {
                name: "mine".into(),
                text: "{ \"tensors\": { \"norm.{l}\": \"norm: e\" } }".into(),
            }],
        }
    }

    #[test]
    fn what_is_there_stays() {
        let text = "{\n  \"format\":   1,\n  \"family\": \"f\",\n  \"axes\": { \"l\": \"layers\" },\n  \"params\": {},\n  \"layouts\": {\n    \"old\": { \"tensors\": {} }\n  }\n}\n";
        let merged = merge(text, &parts()).expect("merges");
        for expected in [
            "\"format\":   1,",
            "{ \"l\": \"layers\",\n    \"e\": \"width\" }",
            "\"norm\": \"l e\"",
            "\"old\": { \"tensors\": {} },\n    \"mine\": {",
        ] {
            assert!(merged.contains(expected), "{expected}: {merged}");
        }
        assert!(
            parse_to_ast(&merged, &CollectOptions::default(), &ParseOptions::default()).is_ok(),
            "{merged}"
        );
    }

    #[test]
    fn a_name_that_is_taken_is_an_error() {
        let text = "{ \"axes\": { \"e\": \"other\" } }";
        let errors = merge(text, &parts()).expect_err("another axis");
        assert!(errors.to_string().contains("the axis `e`"), "{errors}");
    }
}
