//! The mapping files as a library: README's table of them, and the shape of their text.
//!
//! With `QKVCONV_REWRITE=1` these tests write what they otherwise demand.

use std::path::Path;

use qkvconv::mapping::{Mapping, Unmapped, builtin};
use serde_json::Value;

use crate::kit::{rewrites, root};

const BEGIN: &str = "<!-- written by tests/it/library.rs: begin -->\n";
const END: &str = "<!-- written by tests/it/library.rs: end -->\n";

/// Demands that a file holds this text, or writes it. Returns what is wrong.
fn demand(path: &Path, found: &str, wanted: &str) -> Option<String> {
    if found == wanted {
        return None;
    }
    if rewrites() {
        std::fs::write(path, wanted).expect("writable");
        return None;
    }
    let line = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    let line = line.map_or_else(|| found.lines().count(), |line| line + 1);
    Some(format!("{}:{line}", path.display()))
}

/// The file formats in which checkpoints of a layout usually come; names of layouts say it.
fn formats(layout: &str) -> &'static [&'static str] {
    let has = |parts: &[&str]| parts.iter().any(|part| layout.contains(part));
    if has(&["gguf"]) {
        &["GGUF"]
    } else if has(&["npz"]) || layout == "marian" {
        &["npz"]
    } else if has(&["keras", "hf-tf", "tf-einsum-h5"]) {
        &["HDF5"]
    } else if layout == "tf" || has(&["tf1", "tf2", "tf-einsum", "mesh-tf"]) {
        &["TensorFlow"]
    } else if has(&["flax", "t5x"]) {
        &["msgpack"]
    } else if layout.starts_with("mlx") {
        &["safetensors", "npz"]
    } else if layout == "trtllm" {
        &["safetensors"]
    } else {
        &["safetensors", "PyTorch"]
    }
}

/// README's row of a family.
fn row(family: &Mapping) -> String {
    let layouts: Vec<String> = family
        .layouts
        .values()
        .map(|layout| format!("`{}`{}", layout.name, if layout.forwards.is_empty() { "°" } else { "" }))
        .collect();
    let all = ["safetensors", "PyTorch", "msgpack", "HDF5", "TensorFlow", "npz", "GGUF"];
    let comes = |format: &&str| family.layouts.keys().any(|layout| formats(layout).contains(format));
    let formats: Vec<&str> = all.into_iter().filter(comes).collect();
    let whole = if family.unmapped == Unmapped::Keep { "modules" } else { "whole model" };
    let count = family.params.len();
    format!("| `{}` | {whole}, {count} | {} | {} |\n", family.family, layouts.join(", "), formats.join(", "))
}

fn table() -> String {
    let mut table =
        "| family | describes, parameters | layouts | usual formats |\n|---|---|---|---|\n".to_owned();
    table.extend(builtin::names().map(|name| row(&builtin::family(name).expect("a built-in family"))));
    table
}

#[test]
fn the_readme_lists_every_layout() {
    let path = root().join("README.md");
    let text = std::fs::read_to_string(&path).expect("readable");
    let (before, rest) = text.split_once(BEGIN).expect("the table's beginning is marked");
    let (_, after) = rest.split_once(END).expect("the table's end is marked");
    let wanted = format!("{before}{BEGIN}{}{END}{after}", table());
    let wrong = demand(&path, &text, &wanted);
    assert!(wrong.is_none(), "{}: run with QKVCONV_REWRITE=1", wrong.unwrap_or_default());
}

/// Splits a line of a `tensors` block, `"name": value` and perhaps a comma; `None` for one of another shape.
fn rule(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("        \"")?;
    let name = &rest[..rest.find('"')?];
    let value = rest[name.len() + 1..].strip_prefix(':')?.trim();
    let json: Value = serde_json::from_str(value.strip_suffix(',').unwrap_or(value)).ok()?;
    let shape = json.is_string() || json.is_null() || json.is_object() || json.is_array();
    (shape && !name.contains('\\')).then_some((name, value))
}

/// Aligns the values within each `tensors` block of a mapping file's text and changes nothing else; the numbers of lines
/// that are not one tensor are an error.
fn aligned(text: &str) -> Result<String, Vec<usize>> {
    let (mut done, mut wrong) = (String::with_capacity(text.len()), Vec::new());
    let mut block: Option<Vec<(&str, &str)>> = None;
    for (number, line) in text.lines().enumerate() {
        let ends = line == "      }" || line == "      },";
        match &mut block {
            Some(rules) if !ends => match rule(line) {
                Some(rule) => rules.push(rule),
                None => wrong.push(number + 1),
            },
            _ => {
                let rules = block.take().unwrap_or_default();
                let width = rules.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
                for (name, value) in rules {
                    let gap = " ".repeat(width - name.chars().count());
                    done.extend(["        \"", name, "\": ", &gap, value, "\n"]);
                }
                done.extend([line, "\n"]);
                if line == "      \"tensors\": {" {
                    block = Some(Vec::new());
                } else if line.contains("\"tensors\":") {
                    wrong.push(number + 1);
                }
            }
        }
    }
    if block.is_some() {
        wrong.push(text.lines().count());
    }
    if wrong.is_empty() { Ok(done) } else { Err(wrong) }
}

#[test]
fn mapping_files_hold_one_aligned_line_a_tensor() {
    let mut wrong = Vec::new();
    for name in builtin::names() {
        let path = root().join(format!("mappings/{name}.json"));
        let text = std::fs::read_to_string(&path).expect("readable");
        match aligned(&text) {
            Ok(wanted) => wrong.extend(demand(&path, &text, &wanted)),
            Err(lines) => wrong.push(format!("{}: not one tensor a line: {lines:?}", path.display())),
        }
    }
    assert!(wrong.is_empty(), "run with QKVCONV_REWRITE=1: {wrong:#?}");
}

#[test]
fn alignment_moves_values_alone() {
    let text = r#"{
  "layouts": {
    "a": {
      "about":   "left as it is",
      "tensors": {
        "{l}.long": "x: \" a",
        "é":    { "is": "y: b", "optional": true },
        "b":null
      },
      "config": { "h":   "n" }
    }
  }
}
"#;
    let wanted = r#"{
  "layouts": {
    "a": {
      "about":   "left as it is",
      "tensors": {
        "{l}.long": "x: \" a",
        "é":        { "is": "y: b", "optional": true },
        "b":        null
      },
      "config": { "h":   "n" }
    }
  }
}
"#;
    assert_eq!(aligned(text).as_deref(), Ok(wanted));
    assert_eq!(aligned(wanted).as_deref(), Ok(wanted));
    assert_eq!(aligned(&text.replace("null", "null, \"c\": null")), Err(vec![8]));
    assert_eq!(aligned(&text.replace("\"b\":null", "")), Err(vec![8]));
    assert_eq!(aligned(&text.replace("\"tensors\": {\n", "\"tensors\": { ")), Err(vec![5]));
}

#[test]
fn the_readme_justifies_every_dependency() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let readme = std::fs::read_to_string(root().join("README.md")).expect("a README");
    let table = |name: &str| manifest.split(&format!("[{name}]\n")).nth(1).expect(name).split("\n[").next();
    let named = |text: &str| -> std::collections::BTreeSet<String> {
        text.lines().filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect()
    };
    let tables = ["dependencies", "target.'cfg(target_os = \"linux\")'.dependencies"];
    let wanted: std::collections::BTreeSet<String> =
        tables.into_iter().flat_map(|name| named(table(name).expect("a table"))).collect();
    let section = readme.split("## Dependencies\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows =
        section.expect("a section").lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let given: std::collections::BTreeSet<String> =
        rows.flat_map(|cell| cell.split(", ").map(|name| name.trim_matches('`').to_owned())).collect();
    assert_eq!(given, wanted);
}
