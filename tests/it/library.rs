//! The mapping files as a library: README's table of them, and the shape of their text.
//!
//! With `QKVCONV_REWRITE=1` these tests write what they otherwise demand.

use std::path::Path;
use std::sync::Arc;

use qkvconv::mapping::print::print;
use qkvconv::mapping::{Mapping, Unmapped, builtin};
use qkvconv::span::Source;
use serde_json::Value;

use crate::kit::{Folder, rewrites, root};

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

#[test]
fn mapping_files_have_the_form_of_mapping_fmt() {
    let mut wrong = Vec::new();
    for name in builtin::names() {
        let path = root().join(format!("mappings/{name}.json"));
        let text = std::fs::read_to_string(&path).expect("readable");
        let source = Arc::new(Source { name: path.display().to_string(), text });
        let wanted = print(&source).expect("it is JSON");
        wrong.extend(demand(&path, &source.text, &wanted));
    }
    assert!(wrong.is_empty(), "run qkvconv mapping fmt, or with QKVCONV_REWRITE=1: {wrong:#?}");
}

#[test]
fn mapping_fmt_writes_the_form_and_nothing_else() {
    let folder = Folder::new();
    let text = std::fs::read_to_string(root().join("mappings/gpt2.json")).expect("readable");
    let squeezed = serde_json::from_str::<Value>(&text).expect("it is JSON").to_string();
    folder.put("other.json", &squeezed);
    folder.put("form.json", &text);
    folder.put("broken.json", "{ \"format\": 1, }");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("readable");

    let checked = folder.run(&["mapping", "fmt", "--check", "form.json", "other.json"]);
    assert_eq!((checked.code, checked.stdout.as_str()), (3, "other.json\n"));
    assert_eq!(read("other.json"), squeezed);

    // One that is no JSON is told, and then none is written.
    let refused = folder.run(&["mapping", "fmt", "other.json", "broken.json"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("mapping/json") && refused.stderr.contains("broken.json"), "{refused:?}");
    assert_eq!(read("other.json"), squeezed);

    folder.run(&["mapping", "fmt", "form.json", "other.json"]).ok();
    assert_eq!(read("form.json"), text);
    assert_eq!(serde_json::from_str::<Value>(&read("other.json")).expect("it is JSON").to_string(), squeezed);
    folder.run(&["mapping", "fmt", "--check", "form.json", "other.json"]).ok();
}

#[test]
fn the_readme_justifies_every_dependency() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let readme = std::fs::read_to_string(root().join("README.md")).expect("a README");
    let table = |name: &str| manifest.split(&format!("[{name}]\n")).nth(1).expect(name).split("\n[").next();
    let named = |text: &str| -> std::collections::BTreeSet<String> {
        text.lines().filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect()
    };
    let tables = [
        "dependencies",
        "target.'cfg(target_os = \"linux\")'.dependencies",
        "target.'cfg(unix)'.dependencies",
        "target.'cfg(not(unix))'.dependencies",
    ];
    let wanted: std::collections::BTreeSet<String> =
        tables.into_iter().flat_map(|name| named(table(name).expect("a table"))).collect();
    let section = readme.split("## Dependencies\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows =
        section.expect("a section").lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let given: std::collections::BTreeSet<String> =
        rows.flat_map(|cell| cell.split(", ").map(|name| name.trim_matches('`').to_owned())).collect();
    assert_eq!(given, wanted);
}
