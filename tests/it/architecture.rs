//! The structure of the sources: who may import whom, how long a file may be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::kit::root;

/// Who may import what, by the first component behind `crate::`.
const IMPORTS: &[(&str, &[&str])] = &[
    ("text", &[]),
    ("span", &["text"]),
    ("dtype", &[]),
    ("element", &["dtype"]),
    ("fold", &[]),
    ("shown", &[]),
    ("diag", &["span", "fold", "shown"]),
    ("codes", &["diag"]),
    ("catalog", &["dtype", "diag"]),
    ("notation", &["span", "diag"]),
    ("progress", &[]),
    ("parallel", &["diag", "progress"]),
    ("mapping", &["notation", "parallel", "span", "diag"]),
    ("provenance", &["catalog", "diag", "mapping", "text"]),
    ("bind", &["mapping", "notation", "catalog", "dtype", "span", "diag", "fold", "provenance"]),
    ("plan", &["bind", "catalog", "dtype", "span", "diag", "fold"]),
    ("positioned", &[]),
    ("random", &[]),
    ("read", &[]),
    ("format", &["catalog", "dtype", "diag", "fold", "positioned", "read", "shown"]),
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
        &["bind", "catalog", "dtype", "fold", "mapping", "notation", "provenance", "read", "shown", "verify"],
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
            "element",
            "exec",
            "format",
            "mapping",
            "progress",
            "provenance",
            "random",
            "read",
            "span",
            "verify",
        ],
    ),
    ("explain", &["bind", "dtype", "inspect", "mapping", "notation", "shown"]),
    (
        "evidence",
        &[
            "bind", "catalog", "dtype", "diag", "element", "format", "mapping", "parallel", "progress",
            "random", "read",
        ],
    ),
];

/// Who may not import what.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("exec", &["bind", "mapping", "notation", "verify", "convert"]),
    // The check of a result shares no code with what made it.
    ("verify", &["plan", "exec", "convert"]),
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

/// Circles of files that are still there, by one file of each.
const CIRCLES: &[&str] = &["mapping::read"];

/// Returns the paths that a `use` tree names, such as `a::{b, c::d}`.
fn expanded(tree: &str, prefix: &[String], found: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let (path, group) = match tree.split_once('{') {
        Some((path, rest)) => (path, rest.strip_suffix('}')),
        None => (tree.split(" as ").next().unwrap_or_default(), None),
    };
    let parts = path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned);
    let path: Vec<String> = prefix.iter().cloned().chain(parts).collect();
    let Some(group) = group else { return found.push(path) };
    let (mut depth, mut from) = (0_i32, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !group[from..at].trim().is_empty() {
                    expanded(&group[from..at], &path, found);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// Returns all paths that a source names: in `use`, and in its code.
fn paths(code: &str) -> Vec<Vec<String>> {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut statements = code.split("use ");
    rest.push_str(statements.next().unwrap_or_default());
    for statement in statements {
        // Every other mention of the word is part of a name or a text.
        match statement.split_once(';') {
            Some((tree, behind)) if !tree.contains(['(', '"', '=']) => {
                expanded(&tree.replace('\n', " "), &[], &mut found);
                rest.push_str(behind);
            }
            _ => rest.push_str(statement),
        }
    }
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let inline = rest.split(|c: char| !is_path(c)).filter(|word| word.contains("::"));
    found.extend(inline.map(|word| word.split("::").map(str::to_owned).collect()));
    found
}

/// The files of the sources by their module paths, and which of them each names. A file and what lies in its folder
/// may name each other.
fn edges() -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let module = |path: &Path| -> Vec<String> {
        let path = path.strip_prefix("src").unwrap_or(path).with_extension("");
        let parts = path.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
        parts.filter(|part| part != "mod").collect()
    };
    let files: BTreeMap<Vec<String>, String> =
        all_sources().into_iter().map(|(path, text)| (module(&path), code(&text))).collect();
    let resolve = |from: &Vec<String>, path: &[String]| -> Option<Vec<String>> {
        let mut base = match path.first()?.as_str() {
            "crate" | "qkvconv" => Vec::new(),
            "self" | "super" => from.clone(),
            child => {
                let child: Vec<String> = from.iter().cloned().chain([child.to_owned()]).collect();
                files.contains_key(&child).then_some(())?;
                from.clone()
            }
        };
        let rooted = ["crate", "qkvconv", "self", "super"];
        for part in path {
            match part.as_str() {
                "super" => drop(base.pop()),
                part if rooted.contains(&part) => {}
                part => base.push(part.to_owned()),
            }
        }
        while !base.is_empty() && !files.contains_key(&base) {
            base.pop();
        }
        (!base.is_empty()).then_some(base)
    };
    let related = |one: &Vec<String>, other: &Vec<String>| one.starts_with(other) || other.starts_with(one);
    let named = |from: &Vec<String>, code: &String| {
        paths(code).iter().filter_map(|path| resolve(from, path)).filter(|to| !related(from, to)).collect()
    };
    files.iter().map(|(from, code)| (from.clone(), named(from, code))).collect()
}

#[test]
fn files_name_each_other_one_way() {
    let edges = edges();
    // What a file reaches; one that reaches itself is in a circle.
    let reached = |from: &Vec<String>| {
        let (mut found, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            open.extend(edges.get(next).into_iter().flatten().filter(|to| found.insert((*to).clone())));
        }
        found
    };
    let reached: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> =
        edges.keys().map(|from| (from, reached(from))).collect();
    let circle = |from: &Vec<String>| -> BTreeSet<String> {
        let back = |to: &&Vec<String>| reached.get(*to).is_some_and(|all| all.contains(from));
        reached[from].iter().filter(back).map(|to| to.join("::")).collect()
    };
    let circles: BTreeSet<BTreeSet<String>> =
        edges.keys().map(circle).filter(|circle| !circle.is_empty()).collect();
    let is_known = |circle: &&BTreeSet<String>| CIRCLES.iter().any(|known| circle.contains(*known));
    let (known, new): (Vec<_>, Vec<_>) = circles.iter().partition(is_known);
    assert!(new.is_empty(), "{new:#?}");
    assert_eq!(known.len(), CIRCLES.len(), "take out of CIRCLES what is none any more: {known:#?}");
}

#[test]
fn paths_are_found_in_use_and_in_code() {
    let mut found = paths("use a::{b, c::{d, e as f}};\nfn g() { h::i(); }");
    found.sort();
    let texts: Vec<String> = found.iter().map(|path| path.join("::")).collect();
    assert_eq!(texts, ["a::b", "a::c::d", "a::c::e", "h::i"]);
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
