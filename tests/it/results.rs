//! Results that cannot be written, and `mapping check` on several files.

use serde_json::{Value, json};

use crate::kit::{Folder, mapping, of_shapes};

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    use std::process::{Command, Stdio};

    let folder = Folder::new();
    folder.tensors("a.safetensors", &of_shapes(&[("q.in_proj_weight", &[36, 12])]));
    folder.put("m.json", sound());
    let commands: [&[&str]; 10] = [
        &["--help"],
        &["--version"],
        &["mapping", "list"],
        &["mapping", "show", "attention/pytorch-fused"],
        &["mapping", "schema"],
        &["mapping", "check", "m.json"],
        &["mapping", "new", "--from", "a.safetensors"],
        &["inspect", "a.safetensors"],
        &["diff", "a.safetensors", "a.safetensors"],
        &["--from", "pytorch-fused", "--to", "separate", "--dry-run", "a.safetensors", "out"],
    ];
    for args in commands {
        let run = |stdout: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_qkvconv"));
            command.current_dir(folder.path()).args(args).stdout(stdout).stderr(Stdio::piped());
            command.spawn().expect("starts")
        };
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("there is one");
        let output = run(full.into()).wait_with_output().expect("ends");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("cannot write the result"), "{args:?}: {stderr}");
        // A reader that went away is no failure.
        let mut child = run(Stdio::piped());
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("ends");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        let whole = run(Stdio::piped()).wait_with_output().expect("ends");
        assert_eq!(output.status.code(), whole.status.code(), "{args:?}: {stderr}");
        assert!(!stderr.contains("cannot write"), "{args:?}: {stderr}");
    }
}

/// Two layouts of which one fuses a parameter that zeros may stand for.
fn sound() -> String {
    mapping(
        "m",
        json!({ "l": "layers", "d": "rows", "e": "width" }),
        json!({ "q": "l d e", "v": { "axes": "l d e", "optional": true, "absent": "zeros" } }),
        json!({ "apart": { "tensors": { "{l}.q": "q: d e", "{l}.v": "v: d e" } },
                "fused": { "tensors": { "{l}.qv": "(q: d + v: d) e" } } }),
    )
}

fn family(axes: Value, params: Value, layouts: Value) -> String {
    mapping("n", axes, params, layouts)
}

#[test]
fn many_files_are_checked_each_for_itself() {
    let folder = Folder::new();
    folder.put("sound.json", sound());
    // The same with layers of which only some have `v`.
    let mut sparse: Value = serde_json::from_str(&sound()).expect("JSON");
    sparse["params"]["v"] = json!({ "axes": "l d e", "sparse": "l", "optional": true });
    folder.put("sparse.json", sparse.to_string());
    let axes = json!({ "l": "layers", "e": "width" });
    let layouts = json!({ "a": { "tensors": { "{l}.w": "w: e" } } });
    folder.put("broken.json", family(axes, json!({ "w": "l e x" }), layouts));
    let run = folder.run(&["mapping", "check", "sound.json", "sparse.json"]).ok();
    assert_eq!(run.stdout.matches("m: 2 layouts: apart, fused").count(), 2, "{}", run.stdout);
    let run = folder.run(&["mapping", "check", "broken.json", "sound.json"]).fails(&["broken.json:1"]);
    assert!(run.stdout.contains("m: 2 layouts"), "{}", run.stdout);
    let run = folder.run(&["mapping", "check", "--json", "sound.json", "broken.json"]);
    assert_eq!(run.code, 1);
    let reports: Vec<Value> = serde_json::from_str(&run.stdout).expect("a list");
    assert_eq!(
        reports.iter().map(|report| report["right"].as_bool()).collect::<Vec<_>>(),
        [Some(true), Some(false)]
    );
    let run = folder.run(&["mapping", "check", "--json", "sound.json"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&run.stdout).expect("one report")["right"], true);
}

#[test]
fn a_parameter_that_lost_its_layers_is_found() {
    let folder = Folder::new();
    let axes = json!({ "l": "layers", "t": "files", "h": { "is": "g r" }, "g": "groups", "r": "heads of one", "e": "width" });
    let check = |params: Value, layouts: Value| {
        folder.put("n.json", family(axes.clone(), params, layouts));
        folder.run(&["mapping", "check", "n.json"])
    };
    let both = |key: &str| {
        json!({ "a": { "tensors": { format!("{{l}}.{key}"): "n: e", "{l}.w": "w: e" } },
                                   "b": { "tensors": { "x.{l}.n": "n: e", "w": "w: l e" } } })
    };
    check(json!({ "n": "e", "w": "l e" }), both("n")).fails(&[
        "lint/lost-axis",
        "`n` has no axis `l`",
        "n.json:1",
    ]);
    check(json!({ "n": "l e", "w": "l e" }), both("n")).ok();
    // Copies in files, and copies of a group's for each of its heads, are meant.
    let files = json!({ "a": { "tensors": { "rank{t}.safetensors::n": "n: e", "rank{t}.safetensors::k.{h}": "k: e" } } });
    check(json!({ "n": "e", "k": "g e" }), files).ok();
    // A rule that drops the axis.
    let dropped = json!({ "a": { "tensors": { "w": "w: e" } } });
    check(json!({ "w": "l e" }), dropped).fails(&["mapping/missing-axis", "without `l`"]);
}

#[test]
fn an_axis_stands_once_in_a_stored_axis() {
    let folder = Folder::new();
    let axes =
        json!({ "h": { "is": "g r" }, "g": "groups", "r": "heads of one", "d": "head size", "e": "width" });
    for (params, rule) in [
        (json!({ "k": "h d e" }), "k: (h d h) e"),
        // Of a repeated axis as well.
        (json!({ "k": "g d e" }), "k: (h d h) e"),
        (json!({ "k": "g d e" }), "k: g d (r e r)"),
    ] {
        folder.put("n.json", family(axes.clone(), params, json!({ "a": { "tensors": { "k": rule } } })));
        folder.run(&["mapping", "check", "n.json"]).fails(&["mapping/repeated-axis", "twice"]);
    }
}

#[test]
fn the_conversion_has_a_name_too() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&[("q.in_proj_weight", &[36, 12])]));
    let args =
        ["convert", "--from", "pytorch-fused", "--to", "separate", "in.safetensors", "out.safetensors"];
    folder.run(&args).ok();
    assert!(folder.join("out.safetensors").exists());
}
