//! Bad inputs: each must be refused with a message that says what is wrong, where, and what to do.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::kit::{self, Folder, Run, Tensor, borrowed, mapping, of_shapes};

/// Converts these tensors.
fn convert(list: &[(&str, &[u64])], from: &str, to: &str, more: &[&str]) -> (Folder, Run) {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(list));
    let run = folder.convert(from, to, more);
    if run.code != 0 {
        assert!(folder.names().iter().all(|name| name == "in.safetensors"), "{:?}", folder.names());
    }
    (folder, run)
}

fn separate(layer: u64) -> Vec<(String, Vec<u64>)> {
    ["q", "k", "v"].map(|part| (format!("layers.{layer}.attn.{part}_proj.weight"), vec![12, 6])).to_vec()
}

#[test]
fn an_open_axis_lists_what_fits() {
    let list: Vec<_> = (0..3).flat_map(separate).collect();
    let (_, run) = convert(&borrowed(&list), "separate", "per-head", &[]);
    run.fails(&[
        "bind/open-size",
        "the size of `h` is open (query heads)",
        "in.safetensors",
        "1, 2, 3, 4, 6, 12",
        "--axis h=N",
        "num_attention_heads",
        "mappings/attention.json:",
    ]);
}

#[test]
fn rows_that_do_not_divide() {
    let fused: &[(&str, &[u64])] = &[("a.in_proj_weight", &[13, 6])];
    let (_, run) = convert(fused, "pytorch-fused", "separate", &[]);
    run.fails(&[
        "bind/indivisible",
        "13 does not fit",
        "a.in_proj_weight",
        "[13, 6]",
        "mappings/attention.json:",
    ]);
    let heads: &[(&str, &[u64])] = &[("a.in_proj_weight", &[36, 6])];
    let (_, run) = convert(heads, "pytorch-fused", "per-head", &["--axis", "h=5"]);
    run.fails(&["bind/indivisible", "a.in_proj_weight", "`h` = 5 (--axis)", "`h` = 1, 2, 3, 4, 6, 12"]);
}

#[test]
fn a_missing_part() {
    let list: &[(&str, &[u64])] =
        &[("a.q_proj.weight", &[6, 6]), ("a.v_proj.weight", &[6, 6]), ("a.k_prj.weight", &[6, 6])];
    let (_, run) = convert(list, "separate", "timm", &["--axis", "h=2"]);
    run.fails(&[
        "bind/missing",
        "`k.weight` is missing",
        "a.k_proj.weight",
        "the nearest name is `a.k_prj.weight`",
        "complete the checkpoint",
    ]);
}

#[test]
fn a_gap_between_layers() {
    let list: Vec<_> = [0, 1, 3].into_iter().flat_map(separate).collect();
    let (folder, run) = convert(&borrowed(&list), "separate", "timm", &["--axis", "h=2"]);
    run.fails(&["bind/index-gap", "number 2 is missing", "layers.2.attn", "0, 1, 3", "--allow index-gap"]);
    folder.convert("separate", "timm", &["--axis", "h=2", "--allow", "index-gap"]).ok();
}

#[test]
fn a_gap_between_heads() {
    let list: &[(&str, &[u64])] = &[
        ("a.heads.0.q_proj.weight", &[4, 6]),
        ("a.heads.2.q_proj.weight", &[4, 6]),
        ("a.heads.0.k_proj.weight", &[4, 6]),
        ("a.heads.0.v_proj.weight", &[4, 6]),
    ];
    let (_, run) = convert(list, "per-head", "separate", &[]);
    run.fails(&["bind/index-gap", "a.heads.1.q_proj.weight", "`h` from 0 to 2", "2 of 3"]);
}

#[test]
fn two_keys_for_one_target() {
    let list: &[(&str, &[u64])] = &[
        ("a.q_proj.weight", &[6, 6]),
        ("a.k_proj.weight", &[6, 6]),
        ("a.v_proj.weight", &[6, 6]),
        ("a.qkv.weight", &[18, 6]),
    ];
    let (_, run) = convert(list, "separate", "timm", &["--axis", "h=2"]);
    run.fails(&["bind/collision", "tensor: a.qkv.weight", "a.q_proj.weight", "--drop"]);
}

/// Reads a mapping file of that text with any source.
fn read_mapping(text: &str) -> Run {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&[("w", &[2])]));
    folder.put("m.json", text);
    folder.convert("x/a", "x/b", &["--mapping", "m.json"])
}

#[test]
fn a_typo_in_a_label_has_its_place() {
    let text = r#"{
  "format": 1, "family": "x", "axes": { "n": "width", "d": "rows" }, "params": { "query": "d n", "key": "d n" },
  "layouts": {
    "a": { "tensors": { "w": "(query: d + kye: d) n" } },
    "b": { "tensors": { "q": "query: d n", "k": "key: d n" } }
  }
}"#;
    let run =
        read_mapping(text).fails(&["mapping/unknown-param", "no parameter `kye`", "did you mean `key`?"]);
    let column = text.lines().nth(3).and_then(|line| line.find("kye")).expect("is there") + 1;
    assert!(run.stderr.contains(&format!("m.json:4:{column}")), "{}", run.stderr);
    assert!(run.stderr.contains("^^^"), "{}", run.stderr);
}

#[test]
fn all_errors_of_a_mapping_file_are_told() {
    let run = read_mapping(
        r#"{
  "format": 2, "family": "x", "axes": { "n": "width", "m": { "is": "m n" } }, "params": { "w": "n nn" },
  "colour": "red",
  "layouts": {
    "a": { "tensors": { "w.{l}": "w: n", "v": "w: (n", "u.{": "w: n" } },
    "b": { "tensors": { "w": "w: n + n" }, "defaults": { "n": "sqrt(" } }
  }
}"#,
    );
    let run = run.fails(&["format", "colour", "never closed", "`+` outside", "formula"]);
    assert!(run.stderr.matches("error[").count() >= 6, "{}", run.stderr);
    // What names and labels mean is looked at once the text can be read.
    let run = read_mapping(
        r#"{ "format": 1, "family": "x", "axes": { "n": "width", "m": { "is": "m n" } }, "params": { "w": "n nn" },
  "layouts": { "a": { "tensors": { "w.{l}": "w: n", "v": "n", "u": "(w: n + n)" } }, "b": { "tensors": {} } } }"#,
    );
    run.fails(&["`nn`", "`l`", "defined by itself", "nothing says which parameter", "5 errors"]);
}

#[test]
fn text_that_is_no_mapping() {
    for text in
        ["", "{", "[]", "null", "{\"format\": 1}", "{\"format\": 1, \"extends\": \"attenton\"}", "\u{feff}{}"]
    {
        let run = read_mapping(text).fails(&["m.json"]);
        assert!(run.stderr.contains("error["), "{text}: {}", run.stderr);
    }
    read_mapping("{\"format\": 1, \"extends\": \"attenton\"}").fails(&["did you mean `attention`?"]);
}

#[test]
fn a_truncated_file() {
    let folder = Folder::new();
    let path = folder.tensors("in.safetensors", &of_shapes(&borrowed(&separate(0))));
    let whole = std::fs::read(&path).expect("is there");
    for length in [0, 1, 7, 8, 9, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).expect("writable");
        folder.convert("separate", "timm", &["--axis", "h=2"]).fails(&["in.safetensors"]);
    }
    assert_eq!(folder.names(), ["in.safetensors"]);
}

#[test]
#[cfg(unix)]
fn a_read_only_folder() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&borrowed(&separate(0))));
    let closed = folder.join("closed");
    std::fs::create_dir(&closed).expect("a folder");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).expect("allowed");
    // Root may write everywhere.
    if std::fs::write(closed.join("try"), "").is_err() {
        let args = [
            "--from",
            "separate",
            "--to",
            "timm",
            "--axis",
            "h=2",
            "in.safetensors",
            "closed/out.safetensors",
        ];
        folder.run(&args).fails(&["closed", "denied"]);
    }
    let inside = [
        "--from",
        "separate",
        "--to",
        "timm",
        "--axis",
        "h=2",
        "in.safetensors",
        "in.safetensors/out.safetensors",
    ];
    folder.run(&inside).fails(&["in.safetensors"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&borrowed(&separate(0))));
    // No device is a place for a report, and that is told before anything is converted.
    if std::path::Path::new("/dev/full").exists() {
        let run = folder.convert("separate", "timm", &["--axis", "h=2", "--report", "/dev/full"]);
        run.fails(&["/dev/full"]);
        assert_eq!(folder.names(), ["in.safetensors"]);
    }
}

#[test]
fn a_source_that_is_not_there() {
    let folder = Folder::new();
    folder.convert("separate", "timm", &[]).fails(&["in.safetensors", "cannot open it"]);
    folder.run(&["--from", "separate", "--to", "timm", "--mapping", "no.json", "a", "b"]).fails(&["no.json"]);
    folder.run(&["--from", "separate", "--to", "timm", ".", "b"]).fails(&["file: ."]);
}

#[test]
fn a_key_of_ten_thousand_characters() {
    let long = "x".repeat(10_000);
    let mut list = of_shapes(&borrowed(&separate(0)));
    list.insert(long.clone(), Tensor::index(&[2], 0));
    let deep = format!("{}attn.q_proj.bias", "y.".repeat(5_000));
    list.insert(deep, Tensor::index(&[3], 0));
    let folder = Folder::new();
    folder.tensors("in.safetensors", &list);
    folder.convert("separate", "timm", &["--axis", "h=2"]).ok();
    assert_eq!(kit::read(&folder.join("out.safetensors"))[&long], list[&long]);
    // In a message it is shortened.
    let path = format!("{}attn.q_proj.weight", "y.".repeat(5_000));
    list.insert(path, Tensor::index(&[3], 0));
    folder.tensors("in.safetensors", &list);
    let run = folder
        .convert("separate", "timm", &["--axis", "h=2", "--force"])
        .fails(&["another number of axes", "characters"]);
    assert!(run.stderr.len() < 6_000, "{} bytes", run.stderr.len());
}

#[test]
fn empty_and_odd_shapes() {
    // Passing through.
    let mut list = separate(0);
    list.push(("extra".into(), vec![0, 4]));
    list.push(("scalar".into(), vec![]));
    let (folder, run) = convert(&borrowed(&list), "separate", "timm", &["--axis", "h=2"]);
    run.ok();
    let made = kit::read(&folder.join("out.safetensors"));
    assert_eq!((&made["extra"].shape, &made["scalar"].shape), (&vec![0, 4], &vec![]));
    // In a rule: no rows, or no columns.
    for shape in [[0_u64, 4], [12, 0], [0, 0]] {
        let list: Vec<_> = separate(0).into_iter().map(|(key, _)| (key, shape.to_vec())).collect();
        let (folder, run) = convert(&borrowed(&list), "separate", "timm", &["--axis", "h=2"]);
        if run.code == 0 {
            let made = kit::read(&folder.join("out.safetensors"));
            assert_eq!(made["layers.0.attn.qkv.weight"].shape, [3 * shape[0], shape[1]]);
            folder.run(&["--from", "timm", "--to", "separate", "out.safetensors", "back.safetensors"]).ok();
            assert_eq!(kit::read(&folder.join("back.safetensors")), of_shapes(&borrowed(&list)));
        } else {
            run.fails(&["layers.0.attn"]);
        }
        let (_, run) = convert(&borrowed(&list), "separate", "per-head", &["--axis", "h=2"]);
        assert!(run.code < 2, "{}", run.stderr);
    }
    // A scalar where rows are due.
    let (_, run) = convert(&[("a.q_proj.weight", &[])], "separate", "timm", &["--axis", "h=2"]);
    run.fails(&["bind/rank", "a.q_proj.weight", "2 axes: `q.weight: (h d) e`", "0 axes: []"]);
}

#[test]
fn an_empty_checkpoint() {
    let (_, run) = convert(&[], "separate", "timm", &[]);
    run.fails(&["0 of 0", "empty", "in.safetensors"]);
}

#[test]
fn a_tensor_of_another_rank() {
    let (_, run) = convert(&[("a.q_proj.weight", &[6, 6, 1])], "separate", "timm", &["--axis", "h=2"]);
    run.fails(&["bind/rank", "2 axes", "3 axes: [6, 6, 1]", "a.q_proj.weight", "mappings/attention.json:"]);
}

#[test]
fn types_that_differ_inside_one_tensor() {
    let folder = Folder::new();
    let mut list = of_shapes(&borrowed(&separate(0)));
    list.insert("layers.0.attn.k_proj.weight".into(), Tensor::new("F16", &[12, 6], vec![0; 144]));
    folder.tensors("in.safetensors", &list);
    folder.convert("separate", "timm", &["--axis", "h=2"]).fails(&[
        "bind/mixed-dtype",
        "F16",
        "F32",
        "--dtype",
    ]);
}

#[test]
fn facts_that_disagree() {
    let list: Vec<_> = (0..2).flat_map(separate).collect();
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&borrowed(&list)));
    folder.put("config.json", r#"{"num_attention_heads": 4}"#);
    let run = folder.convert("separate", "per-head", &["--axis", "h=3"]);
    run.fails(&[
        "bind/size-conflict",
        "`h` cannot have two sizes",
        "`h` = 3 (--axis)",
        "config.json `num_attention_heads`",
    ]);
    folder.put("config.json", r#"{"num_attention_heads": "four"}"#);
    folder.convert("separate", "per-head", &[]).fails(&["num_attention_heads", "a whole number", "\"four\""]);
    folder.convert("separate", "per-head", &["--axis", "heads=3"]).fails(&["no axis `heads`"]);
}

#[test]
fn everything_wrong_is_told_at_once() {
    let mut list: Vec<_> = [0, 1, 3].into_iter().flat_map(separate).collect();
    list.retain(|(key, _)| key != "layers.1.attn.v_proj.weight");
    list.push(("layers.1.attn.q_proj.bias".into(), vec![4, 4]));
    list.push(("layers.0.attn.qkv.weight".into(), vec![3, 3]));
    let (_, run) = convert(&borrowed(&list), "separate", "timm", &["--axis", "h=3", "--axis", "zz=1"]);
    let run = run.fails(&[
        "bind/index-gap",
        "layers.2",
        "`v.weight` is missing",
        "layers.1.attn.v_proj.weight",
        "bind/rank",
        "layers.1.attn.q_proj.bias",
        "no axis `zz`",
        "bind/collision",
        "layers.0.attn.qkv.weight",
    ]);
    assert!(run.stderr.contains("6 errors; nothing was written"), "{}", run.stderr);
}

#[test]
fn equal_errors_are_folded() {
    let list: Vec<_> = (0..32).flat_map(separate).filter(|(key, _)| !key.contains("k_proj")).collect();
    let (_, run) = convert(&borrowed(&list), "separate", "timm", &["--axis", "h=3"]);
    let run = run.fails(&["layers.{0..31}.attn.k_proj.weight (32)"]);
    assert!(run.stderr.lines().count() < 20, "{}", run.stderr);
}

#[test]
fn equal_conflicts_are_folded() {
    let part = |(part, width): (&str, u64), layer| {
        (format!("layers.{layer}.attn.{part}_proj.weight"), vec![12, width])
    };
    let parts = [("q", 6), ("k", 7), ("v", 6)];
    let list: Vec<_> = (0..32).flat_map(|layer| parts.map(|it| part(it, layer))).collect();
    let (_, run) = convert(&borrowed(&list), "separate", "timm", &["--axis", "h=3"]);
    let run =
        run.fails(&["`e` cannot have two sizes", "layers.{0..31}.attn.k_proj.weight (32)", "2 errors;"]);
    assert!(run.stderr.contains("{*m}.k_proj.weight` [12, 7]"), "{}", run.stderr);
    let (_, run) = convert(&borrowed(&list), "separate", "per-head", &["--axis", "h=5"]);
    run.fails(&["layers.{0..31}.attn.q_proj.weight (32)", "`h` = 1, 2, 3, 4, 6, 12"]);
}

#[test]
fn names_that_cannot_be_written() {
    let list: &[(&str, &[u64])] =
        &[("a/b.q_proj.weight", &[6, 6]), ("a/b.k_proj.weight", &[6, 6]), ("a/b.v_proj.weight", &[6, 6])];
    let (_, run) = convert(list, "separate", "flax", &["--axis", "h=2"]);
    run.fails(&["bind/name", "a/b", "/"]);
}

#[test]
fn hostile_numbers_are_no_panics() {
    let list = separate(0);
    for axis in ["h=18446744073709551615", "h=4611686018427387904", "d=18446744073709551615", "e=0"] {
        let (_, run) = convert(
            &borrowed(&list),
            "separate",
            "per-head",
            &["--axis", axis, "--axis", "g=18446744073709551615"],
        );
        assert!(run.code == 1 || run.code == 2, "{axis}: {}", run.stderr);
    }
    // A shape of no elements and huge sizes.
    let folder = Folder::new();
    let huge = 1_u64 << 40;
    for shape in [vec![huge, 0], vec![0, huge], vec![huge, huge, 0], vec![u64::MAX, 0]] {
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [0, 0] });
        let rule = |part: &str| format!("a.{part}_proj.weight");
        let header = json!({ rule("q"): entry, rule("k"): entry, rule("v"): entry, "other": entry });
        kit::write_raw(&folder.join("in.safetensors"), &header.to_string(), &[]);
        for to in ["timm", "per-head", "separate", "flax", "neox"] {
            let run = folder.convert("separate", to, &["--axis", "h=4", "--force", "--dry-run"]);
            assert!(run.code < 2, "{shape:?} {to}: {}", run.stderr);
        }
    }
    // Indices beyond any list.
    for index in ["18446744073709551615", "18446744073709551616", "99999999999", "007"] {
        let key = |part: &str| format!("layers.{index}.heads.{index}.{part}_proj.weight");
        let list = ["q", "k", "v"].map(|part| (key(part), vec![2, 3])).to_vec();
        let (_, run) = convert(&borrowed(&list), "per-head", "separate", &[]);
        assert_eq!(run.code, 1, "{index}: {}", run.stderr);
    }
}

#[test]
fn hostile_mappings_are_no_panics() {
    let axes =
        || json!({ "n": "width", "m": { "is": "n 18446744073709551615" }, "big": { "size": 1e14 as u64 } });
    let exprs = [
        "w: n 18446744073709551615",
        "w: (n 18446744073709551615 18446744073709551615)",
        "(w: n + _: 18446744073709551615)",
        "(w: n + _: big big big)",
        "(w: n big big big big big)",
        "w: m",
        "(w: n + _: 18446744073709551615 + _: 18446744073709551615)",
        "w: 1 1 1 1 n",
    ];
    for expr in exprs {
        for (source, target) in [(expr, "w: n"), ("w: n", expr)] {
            let folder = Folder::new();
            folder.tensors("in.safetensors", &of_shapes(&[("w", &[5])]));
            folder.put(
                "m.json",
                mapping(
                    "x",
                    axes(),
                    json!({ "w": "n" }),
                    json!({
                "a": { "tensors": { "w": source } }, "b": { "tensors": { "w": target } } }),
                ),
            );
            let run = folder.convert("x/a", "x/b", &["--mapping", "m.json"]);
            assert!(run.code < 2, "{source} -> {target}: {}", run.stderr);
        }
        for key in ["w.{n}", "w.{n+4294967295}", "w.{n:018}"] {
            let folder = Folder::new();
            folder.tensors("in.safetensors", &of_shapes(&[("w", &[5])]));
            folder.put(
                "m.json",
                mapping(
                    "x",
                    axes(),
                    json!({ "w": "n" }),
                    json!({
                "a": { "tensors": { "w": "w: n" } }, "b": { "tensors": { key: expr.replace('n', "1") } } }),
                ),
            );
            let run = folder.convert("x/a", "x/b", &["--mapping", "m.json"]);
            assert!(run.code < 2, "{key} {expr}: {}", run.stderr);
        }
    }
    // A sum of many terms, and deep nesting.
    let mut wide = String::from("(w: n");
    for _ in 0..2_000 {
        let _ = write!(wide, " + _: 1");
    }
    wide.push(')');
    for expr in [wide, format!("{}w: n{}", "(".repeat(5_000), ")".repeat(5_000))] {
        let folder = Folder::new();
        folder.tensors("in.safetensors", &of_shapes(&[("w", &[2_005])]));
        folder.put(
            "m.json",
            mapping(
                "x",
                axes(),
                json!({ "w": "n" }),
                json!({
            "a": { "tensors": { "w": expr } }, "b": { "tensors": { "w": "w: n" } } }),
            ),
        );
        let run = folder.convert("x/a", "x/b", &["--mapping", "m.json", "--allow", "nonzero-padding"]);
        assert!(run.code < 2, "{}", &run.stderr[..run.stderr.len().min(2_000)]);
    }
}

#[test]
fn a_condition_on_the_config_is_checked() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&[("w", &[2, 3])]));
    folder.put(
        "m.json",
        mapping(
            "x",
            json!({ "n": "rows", "m": "columns" }),
            json!({ "w": "n m" }),
            json!({
        "a": { "tensors": { "w": "w: n m" }, "when": { "new_decoder_architecture": true } },
        "b": { "tensors": { "w": "w: m n" } } }),
        ),
    );
    let args = ["--mapping", "m.json"];
    folder.convert("x/a", "x/b", &args).fails(&[
        "new_decoder_architecture",
        "--config",
        "--allow missing-config",
        "m.json:1:",
    ]);
    folder.put("config.json", r#"{"new_decoder_architecture": false}"#);
    folder
        .convert("x/a", "x/b", &args)
        .fails(&["`new_decoder_architecture` = true", "`new_decoder_architecture` = false"]);
    folder.put("config.json", r#"{"new_decoder_architecture": true}"#);
    folder.convert("x/a", "x/b", &args).ok();
}

#[test]
fn values_that_should_be_zeros() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&[("w", &[6])]));
    let values = |padding: u64| {
        json!({ "a": { "tensors": { "w": format!("(w: n + _: {padding})") } },
        "b": { "tensors": { "w": "w: n" } } })
    };
    folder.put("m.json", mapping("x", json!({ "n": "rows" }), json!({ "w": "n" }), values(2)));
    folder.convert("x/a", "x/b", &["--mapping", "m.json"]).fails(&[
        "padding is not zero",
        "tensor: w",
        "m.json:1:",
    ]);
    assert_eq!(folder.names(), ["in.safetensors", "m.json"]);
    let report: Value = {
        let args = ["--mapping", "m.json", "--allow", "nonzero-padding", "--report", "r.json"];
        folder.convert("x/a", "x/b", &args).ok();
        serde_json::from_slice(&std::fs::read(folder.join("r.json")).expect("a report")).expect("JSON")
    };
    assert_eq!(report["unused"][0]["elements"], 2);
}
