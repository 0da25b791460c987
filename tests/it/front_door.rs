//! What somebody meets first: the examples, the codes of errors and `explain`, tensors read without writing a file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use qkvconv::codes;
use qkvconv::diag::{Code, Stage};
use qkvconv::{BindOptions, Conversion, ConvertOptions, Dtype, Limits, select};

use crate::kit::{Folder, names, of_shapes, read, root, write};

/// Runs a program of `examples/`. Plain `cargo test` builds them; `cargo test --test it` does not.
fn example(name: &str, args: &[&Path]) -> Output {
    let folder = Path::new(env!("CARGO_BIN_EXE_qkvconv")).parent().expect("a folder");
    let program = folder.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(program.is_file(), "{} is not built: `cargo build --examples`", program.display());
    // Nothing rests on the folder in which a program is started.
    let scratch = Folder::new();
    let output = Command::new(program).current_dir(scratch.path()).args(args).output().expect("it runs");
    assert_eq!(scratch.names(), [""; 0], "{name} leaves nothing behind");
    output
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn the_examples_run_without_arguments() {
    for (name, wanted) in [
        (
            "convert_folder",
            &["the source is attention/pytorch-fused", "43 tensors become 118", "wrote model.safetensors"][..],
        ),
        (
            "inspect_heads",
            &[
                "encoder.layers.2.self_attn.in_proj_weight k.weight head 1: [75..90] [0..60]",
                "o.weight head 3",
            ],
        ),
        (
            "verify_two",
            &["90370 elements of 55 tensors agree", "error[verify/differs]", "layers.1.self_attn.k_proj"],
        ),
        (
            "own_mapping",
            &["encoder.layers.0.self_attn.qv.weight [120, 60]", "43 tensors went there and back"],
        ),
        ("read_other_layout", &["heads.2.k_proj.weight F32 [15, 60]", "begins with ["]),
    ] {
        let text = said(&example(name, &[]));
        for wanted in wanted {
            assert!(text.contains(wanted), "`{wanted}` is not in what {name} says:\n{text}");
        }
    }
    let programs = std::fs::read_dir(root().join("examples")).expect("a folder").count();
    assert_eq!(programs, 5, "each program is run here");
}

#[test]
fn the_examples_take_paths() {
    let folder = Folder::new();
    let digits = root().join("tests/data/digits");
    let (target, from, to) = (folder.join("out"), Path::new("auto"), Path::new("attention/separate"));
    said(&example("convert_folder", &[&digits, &target, from, to]));
    assert_eq!(folder.names(), ["out"]);
    // As the command line does: the config beside the source goes along.
    assert_eq!(names(&target), ["config.json", "model.safetensors"]);
    let fused = Path::new("attention/pytorch-fused");
    let text = said(&example("verify_two", &[&digits, &target, fused, to]));
    assert!(text.contains("attention of 3 modules agrees"), "{text}");
    let text = said(&example("inspect_heads", &[&target]));
    assert!(
        text.contains("attention/separate") && text.contains("q_proj.weight q.weight head 3: [45..60]"),
        "{text}"
    );
    let text = said(&example("read_other_layout", &[&target, to, fused]));
    assert!(text.contains("encoder.layers.0.self_attn.in_proj_weight F32 [180, 60]"), "{text}");
    let missing = example("verify_two", &[&digits, &folder.join("nothing"), fused, to]);
    assert!(!missing.status.success());
}

#[test]
fn a_tensor_in_memory_is_the_one_that_a_conversion_writes() {
    let folder = Folder::new();
    let digits = root().join("tests/data/digits");
    for (to, dtype) in [("per-head", None), ("conv1d", Some(Dtype::BF16))] {
        let layouts = select("attention/pytorch-fused", &format!("attention/{to}"), &[]).expect("layouts");
        let options = ConvertOptions::default().bind(BindOptions::default().dtype(dtype));
        let conversion = Conversion::prepare(&layouts, &digits, &options).expect("prepared");
        let name = format!("{to}.safetensors");
        let cast: &[&str] = if dtype.is_some() { &["--dtype", "bf16"] } else { &[] };
        let (from, to) = (layouts.source().name.as_str(), layouts.target().name.as_str());
        let digits = digits.to_string_lossy();
        folder.run(&[&["--from", from, "--to", to, &digits, &name], cast].concat()).ok();
        let written = read(&folder.join(&name));
        assert_eq!(written.len(), conversion.plan.targets.len());
        for (key, tensor) in &written {
            let bytes = conversion.tensor(key, &Limits::default(), &()).expect("read");
            assert!(bytes == tensor.bytes, "{key} of {name}");
        }
        let missing = conversion.tensor("encoder.layers.0.self_attn.q_porj.weight", &Limits::default(), &());
        assert_eq!(missing.expect_err("no such tensor").diagnostics()[0].code, "convert/no-tensor");
    }
}

#[test]
fn a_tensor_in_memory_is_held_to_what_the_plan_requires() {
    // One key and value for two heads, stored once for each, and not alike.
    let folder = Folder::new();
    let path = folder.join("m.safetensors");
    let tensors = of_shapes(&[("m.query_key_value.weight", &[2 * 9, 5]), ("m.dense.weight", &[7, 6])]);
    write(&path, &tensors, &[]);
    let layouts = select("attention/neox", "attention/separate", &[]).expect("layouts");
    let bind = BindOptions::default().axis("h", 2).axis("g", 1);
    let conversion =
        Conversion::prepare(&layouts, &path, &ConvertOptions::default().bind(bind)).expect("prepared");
    let read = |key: &str| conversion.tensor(key, &Limits::default(), &());
    let unequal = read("m.k_proj.weight").expect_err("the copies differ");
    assert_eq!(unequal.diagnostics()[0].code, "data/unequal", "{unequal:?}");
    // Nothing is asked of a tensor that it is not made of.
    assert_eq!(read("m.out_proj.weight").expect("read").len(), 7 * 6 * 4);
}

/// Returns the sources without the table of codes, tests and comments.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if !name.ends_with(".rs") || name.contains("test") || path.ends_with("diag/code.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("readable");
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let text = lines.collect::<Vec<_>>().join("\n");
            found.push((path, text));
        }
    }
    found
}

/// Returns how sources name a code: `BindCode::OpenSize` for `bind/open-size`.
fn name_in_sources(code: Code) -> String {
    let (stage, kind) = code.as_str().split_once('/').expect("two parts");
    let camel = |text: &str| -> String {
        text.split('-').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
    };
    format!("{}Code::{}", camel(stage), camel(kind))
}

#[test]
fn every_code_is_documented_once_and_none_is_stale() {
    let documented: Vec<Code> = codes::all().map(|one| one.code).collect();
    assert_eq!(documented, Code::ALL, "src/codes.md has an entry of each code, in alphabetical order");
    // Whole names alone: `FormatCode::Zip` is not made by what makes `FormatCode::ZipMethod`.
    let is_part = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let sources = sources();
    // A path may lead to it.
    let last_two = |path: &'_ str| -> String {
        let mut parts = path.rsplit("::");
        let (last, before) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        format!("{before}::{last}")
    };
    let used: BTreeSet<String> =
        sources.iter().flat_map(|(_, text)| text.split(is_part)).map(last_two).collect();
    let stale: Vec<&Code> =
        Code::ALL.iter().filter(|code| !used.contains(&name_in_sources(**code))).collect();
    assert!(stale.is_empty(), "nothing makes {stale:?}: take them out of the table and of src/codes.md");
    // What is decided by a text is not seen by the compiler when the code goes.
    for (path, text) in &sources {
        let texts = text.split('"').filter(|piece| Code::ALL.iter().any(|code| *code == **piece));
        assert_eq!(texts.collect::<Vec<_>>(), [""; 0], "{}: name the code by its type", path.display());
    }
    let stages: Vec<&str> = include_str!("../../src/codes.md")
        .lines()
        .filter_map(|line| line.strip_prefix("## ")?.split(':').next())
        .collect();
    assert_eq!(stages, Stage::ALL.iter().map(|stage| stage.as_str()).collect::<Vec<_>>());
    for one in codes::all() {
        let is_sentence = |text: &str| text.ends_with('.') || text.ends_with('`');
        assert!(!one.title.is_empty() && !one.title.ends_with('.'), "{}: a title", one.code);
        assert!(one.about.is_empty() || one.about.ends_with('.'), "{}: {}", one.code, one.about);
        assert!(is_sentence(one.remedy), "{}: what to do", one.code);
        assert!(!one.about.contains('#') && !one.remedy.contains("*What"), "{}: one entry", one.code);
    }
    let headings = include_str!("../../src/codes.md").lines().filter(|line| line.starts_with("### ")).count();
    assert_eq!(headings, documented.len(), "every heading is an entry");
}

#[test]
fn a_code_is_explained() {
    let folder = Folder::new();
    let run = folder.run(&["explain", "bind/open-size"]).ok();
    for text in [
        "bind/open-size: the size of an axis is open",
        "Nothing is guessed",
        "What to do: give the size with",
    ] {
        assert!(run.stdout.contains(text), "{}", run.stdout);
    }
    // As it stands in a message.
    assert_eq!(folder.run(&["explain", "error[bind/open-size]"]).ok().stdout, run.stdout);
    let all = folder.run(&["explain"]).ok().stdout;
    assert_eq!(all.lines().count(), codes::all().count());
    assert!(all.contains("verify/differs  "), "{all}");
    for (asked, near) in [("bind/open-sise", "bind/open-size"), ("open-size", "bind/open-size")] {
        let run = folder.run(&["explain", asked]);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
        assert!(run.stderr.contains(&format!("did you mean `{near}`?")), "{}", run.stderr);
    }
    let run = folder.run(&["explain", "zzzzzzzz\u{1b}"]);
    assert!(run.code == 2 && !run.stderr.contains("did you mean") && !run.stderr.contains('\u{1b}'));
}

#[test]
fn the_readme_names_the_oldest_rust() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let version = manifest.split("rust-version = \"").nth(1).and_then(|rest| rest.split('"').next());
    let wanted = format!("Rust {} or newer", version.expect("a version"));
    let readme = std::fs::read_to_string(root().join("README.md")).expect("a README");
    assert!(readme.contains(&wanted), "`{wanted}` is not in README.md");
}
