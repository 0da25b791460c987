//! The structure of the sources: who may import whom, how long a file may be.

use std::path::{Path, PathBuf};

use crate::kit::root;

/// Who may import what, by the first component behind `crate::`.
const IMPORTS: &[(&str, &[&str])] = &[
    ("span", &[]),
    ("dtype", &[]),
    ("fold", &[]),
    ("shown", &[]),
    ("diag", &["span", "fold", "shown"]),
    ("codes", &["diag"]),
    ("catalog", &["dtype", "diag"]),
    ("notation", &["span", "diag"]),
    ("mapping", &["notation", "span", "diag"]),
    ("provenance", &["catalog", "diag", "mapping"]),
    ("bind", &["mapping", "notation", "catalog", "dtype", "span", "diag", "fold", "provenance"]),
    ("plan", &["bind", "catalog", "dtype", "span", "diag", "fold"]),
    ("positioned", &[]),
    ("random", &[]),
    ("format", &["catalog", "dtype", "diag", "fold", "positioned", "shown"]),
    ("identity", &["bind", "diag", "mapping"]),
    ("claims", &["diag", "mapping", "provenance"]),
    ("detect", &["bind", "catalog", "claims", "diag", "fold", "identity", "mapping"]),
    (
        "recognise",
        &[
            "bind",
            "claims",
            "convert",
            "detect",
            "diag",
            "format",
            "identity",
            "mapping",
            "provenance",
            "span",
        ],
    ),
    (
        "inspect",
        &["bind", "catalog", "dtype", "fold", "mapping", "notation", "provenance", "shown", "verify"],
    ),
    ("draft", &["catalog", "dtype", "diag", "fold", "mapping", "span"]),
    (
        "infer",
        &[
            "bind",
            "catalog",
            "convert",
            "diag",
            "dtype",
            "exec",
            "format",
            "mapping",
            "progress",
            "provenance",
            "random",
            "span",
            "verify",
        ],
    ),
    ("explain", &["bind", "dtype", "inspect", "mapping", "notation", "shown"]),
    (
        "evidence",
        &["bind", "catalog", "dtype", "diag", "format", "mapping", "parallel", "progress", "random"],
    ),
];

/// Who may not import what.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("exec", &["bind", "mapping", "notation", "verify", "convert"]),
    // The check of a result shares no code with what made it.
    ("verify", &["plan", "exec", "convert"]),
    ("progress", &["exec", "verify", "convert"]),
    ("convert", &["lint", "infer", "draft", "explain", "report"]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
    all.sort();
    all
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("readable");
        (path.strip_prefix(root()).expect("inside").to_owned(), text)
    };
    sources(&root().join("src")).into_iter().map(read).collect()
}

/// Returns a source without its unit tests, comments and documentation.
fn code(text: &str) -> String {
    let before_tests = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let lines = before_tests.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the modules that a source names behind `crate::`.
fn imports(text: &str) -> Vec<String> {
    let code = code(text);
    let behind = code.split("crate::").skip(1);
    let mut named: Vec<String> = behind
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect())
        .filter(|name: &String| !name.is_empty())
        .collect();
    named.sort();
    named.dedup();
    named
}

fn module(path: &Path) -> String {
    let mut components =
        path.components().skip(1).map(|part| part.as_os_str().to_string_lossy().into_owned());
    let first = components.next().expect("a file in src");
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    for (path, text) in all_sources() {
        let module = module(&path);
        let allowed = IMPORTS.iter().find(|(name, _)| *name == module).map(|(_, allowed)| *allowed);
        let forbidden = FORBIDDEN.iter().find(|(name, _)| *name == module).map_or(&[][..], |(_, list)| *list);
        for import in imports(&text).into_iter().filter(|import| *import != module) {
            let refused = allowed.is_some_and(|allowed| !allowed.contains(&import.as_str()));
            if refused || forbidden.contains(&import.as_str()) {
                wrong.push(format!("{} imports {import}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The check of a result may report its progress as the execution does, and shares nothing else with it.
#[test]
fn the_check_shares_no_code() {
    for (path, text) in all_sources().into_iter().filter(|(path, _)| module(path) == "verify") {
        let code = code(&text).replace("crate::exec::Progress", "");
        assert!(!code.contains("crate::exec") && !code.contains("bind::Block"), "{}", path.display());
    }
}

#[test]
fn the_library_knows_no_terminal() {
    for (path, text) in all_sources() {
        if path.starts_with("src/cli") || path == Path::new("src/main.rs") {
            continue;
        }
        for name in [
            "clap",
            "indicatif",
            "annotate_snippets",
            "ctrlc",
            "signal_hook",
            "println!",
            "eprintln!",
            "process::exit",
        ] {
            assert!(!code(&text).contains(name), "{} uses {name}", path.display());
        }
    }
}

#[test]
fn the_tool_sees_the_public_parts_alone() {
    for (path, text) in all_sources() {
        if path.starts_with("src/cli") || path == Path::new("src/main.rs") {
            let own = imports(&text);
            assert!(own.iter().all(|name| name == "cli"), "{}: {own:?}", path.display());
        }
    }
}

#[test]
fn a_file_holds_one_idea() {
    let length = |text: &str| text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text).lines().count();
    let long: Vec<String> = all_sources()
        .into_iter()
        .filter(|(_, text)| length(text) > 500)
        .map(|(path, text)| format!("{}: {} lines", path.display(), length(&text)))
        .collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn every_test_file_is_declared() {
    let main = std::fs::read_to_string(root().join("tests/it/main.rs")).expect("readable");
    for path in sources(&root().join("tests/it")) {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(name == "main" || main.contains(&format!("mod {name};")), "{name} is not declared");
    }
}

#[test]
fn every_built_in_mapping_is_read() {
    for entry in std::fs::read_dir(root().join("mappings")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name.ends_with(".schema.json") || !name.ends_with(".json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        let source = std::sync::Arc::new(qkvconv::span::Source { name: name.clone(), text });
        qkvconv::mapping::read(&source).unwrap_or_else(|errors| panic!("{name}: {errors}"));
        let family = name.trim_end_matches(".json");
        assert!(qkvconv::mapping::builtin::family(family).is_some(), "{name} is not built in");
    }
}
