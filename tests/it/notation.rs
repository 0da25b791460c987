//! Rules of the mapping notation, each with the smallest family that needs it.

use crate::kit::{Folder, Run, numbered, read};

/// Converts between two layouts of a family that is written here.
fn run(folder: &Folder, mapping: &str, (from, to): (&str, &str), files: [&str; 2], more: &[&str]) -> Run {
    folder.put("f.json", mapping);
    let path = |name: &str| folder.join(name).display().to_string();
    let (mapping, source, target) = (path("f.json"), path(files[0]), path(files[1]));
    let (from, to) = (format!("f/{from}"), format!("f/{to}"));
    let fixed = ["--mapping", &mapping, "--from", &from, "--to", &to, &source, &target];
    folder.run(&[&fixed[..], more].concat())
}

fn names(folder: &Folder, file: &str) -> Vec<String> {
    read(&folder.join(file)).keys().cloned().collect()
}

const SPARSE: &str = r#"{ "format": 1, "family": "f",
  "axes": { "l": "layers", "x": "experts", "e": "width", "f": "inner width" },
  "params": { "norm": "l e", "up": { "axes": "l x f e", "optional": true, "sparse": "l" } },
  "layouts": {
    "apart":   { "tensors": { "layers.{l}.norm": "norm: e", "layers.{l}.experts.{x}.up": "up: f e" } },
    "experts": { "tensors": { "blk.{l}.norm": "norm: e", "blk.{l}.up": "up: x e f" } },
    "stacked": { "tensors": { "norm": "norm: l e", "up": "up: l x f e" } } } }"#;

#[test]
fn some_layers_only_have_a_sparse_parameter() {
    let folder = Folder::new();
    let model = numbered(&[
        ("layers.0.norm", &[3]),
        ("layers.1.norm", &[3]),
        ("layers.2.norm", &[3]),
        ("layers.3.norm", &[3]),
        ("layers.1.experts.0.up", &[5, 3]),
        ("layers.1.experts.1.up", &[5, 3]),
        ("layers.3.experts.0.up", &[5, 3]),
        ("layers.3.experts.1.up", &[5, 3]),
    ]);
    folder.tensors("in.safetensors", &model);
    run(&folder, SPARSE, ("apart", "experts"), ["in.safetensors", "to.safetensors"], &[]).ok();
    let there = names(&folder, "to.safetensors");
    assert_eq!(there, ["blk.0.norm", "blk.1.norm", "blk.1.up", "blk.2.norm", "blk.3.norm", "blk.3.up"]);
    run(&folder, SPARSE, ("experts", "apart"), ["to.safetensors", "back.safetensors"], &[]).ok();
    assert_eq!(read(&folder.join("back.safetensors")), model);
    // One tensor cannot hold layers that are not there.
    let stacked = run(&folder, SPARSE, ("apart", "stacked"), ["in.safetensors", "no.safetensors"], &[]);
    stacked.fails(&["bind/index-gap", "layers.{0,2}.experts.{0..1}.up"]);
}

#[test]
fn what_is_not_sparse_has_no_gaps() {
    for gone in ["layers.1.norm", "layers.3.experts.0.up"] {
        let folder = Folder::new();
        let mut model = numbered(&[
            ("layers.0.norm", &[3]),
            ("layers.1.norm", &[3]),
            ("layers.2.norm", &[3]),
            ("layers.3.norm", &[3]),
            ("layers.3.experts.0.up", &[5, 3]),
            ("layers.3.experts.1.up", &[5, 3]),
        ]);
        model.remove(gone);
        folder.tensors("in.safetensors", &model);
        let failed = run(&folder, SPARSE, ("apart", "experts"), ["in.safetensors", "to.safetensors"], &[]);
        failed.fails(&["bind/index-gap", gone]);
    }
}

const COUNT: &str = r#"{ "format": 1, "family": "f", "axes": { "l": "layers", "e": "width" },
  "params": { "w": "l e", "norm": "e" },
  "layouts": {
    "apart":    { "tensors": { "layers.{l}.w": "w: e", "norm": "norm: e" } },
    "stacked":  { "tensors": { "w": "w: l e", "norm": "norm: e" } },
    "numbered": { "tensors": { "layer_{l+2:02}.w": "w: e", "layer_{l.count+3:02}.norm": "norm: e" } } } }"#;

#[test]
fn a_name_holds_the_number_of_layers() {
    let folder = Folder::new();
    let model = numbered(&[("layers.0.w", &[3]), ("layers.1.w", &[3]), ("layers.2.w", &[3]), ("norm", &[3])]);
    folder.tensors("in.safetensors", &model);
    run(&folder, COUNT, ("apart", "numbered"), ["in.safetensors", "to.safetensors"], &[]).ok();
    assert_eq!(names(&folder, "to.safetensors"), ["layer_02.w", "layer_03.w", "layer_04.w", "layer_06.norm"]);
    run(&folder, COUNT, ("numbered", "stacked"), ["to.safetensors", "stacked.safetensors"], &[]).ok();
    run(&folder, COUNT, ("stacked", "numbered"), ["stacked.safetensors", "again.safetensors"], &[]).ok();
    assert_eq!(read(&folder.join("again.safetensors")), read(&folder.join("to.safetensors")));
    run(&folder, COUNT, ("numbered", "apart"), ["again.safetensors", "back.safetensors"], &[]).ok();
    assert_eq!(read(&folder.join("back.safetensors")), model);
}

#[test]
fn a_number_of_layers_that_is_another_is_refused() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &numbered(&[("layer_02.w", &[3]), ("layer_06.norm", &[3])]));
    for to in ["apart", "stacked"] {
        let failed = run(&folder, COUNT, ("numbered", to), ["in.safetensors", "to.safetensors"], &[]);
        failed.fails(&["bind/count", "layer_06.norm", "another size of `l`", "expected: 1", "found: 3"]);
    }
}

const SPECIAL: &str = r#"{ "format": 1, "family": "f", "axes": { "l": "layers", "e": "width" },
  "params": { "norm": { "axes": "e", "optional": true }, "inner": { "axes": "e", "optional": true } },
  "layouts": {
    "one": { "tensors": { "{*m}.norm": "norm: e", "{*m}.encoder.norm": "inner: e" } },
    "two": { "tensors": { "{*m}/n": "norm: e", "{*m}/i": "inner: e" } },
    "odd": { "tensors": { "a.{*m}.norm": "norm: e", "{*m}.b.norm": "inner: e" } } } }"#;

#[test]
fn the_more_special_of_two_templates_holds() {
    let folder = Folder::new();
    let model = numbered(&[("x.norm", &[3]), ("x.encoder.norm", &[3])]);
    folder.tensors("in.safetensors", &model);
    run(&folder, SPECIAL, ("one", "two"), ["in.safetensors", "to.safetensors"], &[]).ok();
    let there = read(&folder.join("to.safetensors"));
    assert_eq!((&there["x/n"], &there["x/i"]), (&model["x.norm"], &model["x.encoder.norm"]));
    run(&folder, SPECIAL, ("two", "one"), ["to.safetensors", "back.safetensors"], &[]).ok();
    assert_eq!(read(&folder.join("back.safetensors")), model);
    // Neither is the more special.
    folder.tensors("odd.safetensors", &numbered(&[("a.x.b.norm", &[3])]));
    let failed = run(&folder, SPECIAL, ("odd", "two"), ["odd.safetensors", "no.safetensors"], &[]);
    failed.fails(&["bind/ambiguous", "a.x.b.norm"]);
}

const TIED: &str = r#"{ "format": 1, "family": "f", "axes": { "v": "vocabulary", "e": "width" },
  "params": { "tok": "v e", "head": { "axes": "v e", "optional": true } },
  "layouts": {
    "hf": { "tensors": {
      "embed": "tok: v e",
      "lm_head": [ { "is": "tok: v e", "when": { "tied": true } }, { "is": "head: v e", "when": { "tied": [false, null] } } ] } },
    "parts": { "tensors": { "t": "tok: v e", "h": "head: v e" } } } }"#;

#[test]
fn alternatives_are_told_apart_by_the_config() {
    let folder = Folder::new();
    let two = numbered(&[("embed", &[5, 3]), ("lm_head", &[5, 3])]);
    let mut tied = two.clone();
    tied.insert("lm_head".into(), two["embed"].clone());
    let (tied_config, config) = (folder.put("tied.json", r#"{"tied": true}"#), folder.put("config.x", "{}"));
    let [tied_config, config] = [tied_config, config].map(|path| path.display().to_string());
    folder.tensors("in.safetensors", &tied);
    let more = ["--config", &tied_config];
    run(&folder, TIED, ("hf", "parts"), ["in.safetensors", "tied.safetensors"], &more).ok();
    assert_eq!(names(&folder, "tied.safetensors"), ["t"]);
    folder.tensors("in.safetensors", &two);
    run(&folder, TIED, ("hf", "parts"), ["in.safetensors", "to.safetensors"], &["--config", &config]).ok();
    assert_eq!(names(&folder, "to.safetensors"), ["h", "t"]);
    // Without a config nothing tells which it is.
    let failed = run(&folder, TIED, ("hf", "parts"), ["in.safetensors", "no.safetensors"], &[]);
    failed.fails(&["bind/ambiguous", "lm_head", "--config"]);
    let both = TIED.replace("[false, null]", "[false, true]");
    let failed = run(&folder, &both, ("hf", "parts"), ["in.safetensors", "no.safetensors"], &[]);
    failed.fails(&["mapping/duplicate", "two rules for the same names"]);
}

const PATHS: &str = r#"{ "format": 1, "family": "f", "axes": { "l": "layers", "e": "width", "v": "vocabulary" },
  "params": { "tok": "v e", "w": "l e", "head": "v e" },
  "layouts": {
    "hf":    { "paths": { "m": "model.text" },
               "tensors": { "{*m}.embed": "tok: v e", "{*m}.layers.{l}.w": "w: e", "lm_head": "head: v e" } },
    "plain": { "tensors": { "tok": "tok: v e", "blk.{l}.w": "w: e", "output": "head: v e" } } } }"#;

#[test]
fn a_path_that_the_other_side_lacks_has_a_value() {
    let folder = Folder::new();
    let model = numbered(&[("tok", &[5, 3]), ("blk.0.w", &[3]), ("blk.1.w", &[3]), ("output", &[5, 3])]);
    folder.tensors("in.safetensors", &model);
    run(&folder, PATHS, ("plain", "hf"), ["in.safetensors", "to.safetensors"], &[]).ok();
    let wanted = ["lm_head", "model.text.embed", "model.text.layers.0.w", "model.text.layers.1.w"];
    assert_eq!(names(&folder, "to.safetensors"), wanted);
    run(&folder, PATHS, ("hf", "plain"), ["to.safetensors", "back.safetensors"], &[]).ok();
    assert_eq!(read(&folder.join("back.safetensors")), model);
    // Without the value it is an error of the mapping, as a value that nothing captures is.
    let without = PATHS.replace(r#""paths": { "m": "model.text" },"#, "");
    let failed = run(&folder, &without, ("plain", "hf"), ["in.safetensors", "no.safetensors"], &[]);
    failed.fails(&["mapping/captures", "under other paths elsewhere"]);
    let unused = PATHS.replace(r#"{ "m": "#, r#"{ "n": "#);
    let failed = run(&folder, &unused, ("plain", "hf"), ["in.safetensors", "no.safetensors"], &[]);
    failed.fails(&["mapping/captures", "captures `{*n}`"]);
}

#[test]
fn a_parameter_without_a_path_is_missed_once() {
    let folder = Folder::new();
    let model = numbered(&[
        ("a.embed", &[5, 3]),
        ("a.layers.0.w", &[3]),
        ("b.embed", &[5, 3]),
        ("b.layers.0.w", &[3]),
        ("lm_head", &[5, 3]),
    ]);
    // Two modules and one head: the head is not demanded in the modules.
    let other = PATHS.replace(
        r#""plain": { "tensors": { "tok": "tok: v e", "blk.{l}.w": "w: e", "output": "head: v e" } }"#,
        r#""other": { "tensors": { "{*m}/e": "tok: v e", "{*m}/{l}/w": "w: e", "output": "head: v e" } }"#,
    );
    folder.tensors("in.safetensors", &model);
    run(&folder, &other, ("hf", "other"), ["in.safetensors", "to.safetensors"], &[]).ok();
    let wanted = ["a/0/w", "a/e", "b/0/w", "b/e", "output"];
    assert_eq!(names(&folder, "to.safetensors"), wanted);
    for (gone, named) in [("lm_head", "`head` is missing"), ("b.embed", "`tok` is missing")] {
        let mut less = model.clone();
        less.remove(gone);
        folder.tensors("in.safetensors", &less);
        let failed = run(&folder, &other, ("hf", "other"), ["in.safetensors", "no.safetensors"], &[]);
        failed.fails(&["bind/missing", named, gone]);
    }
}

const SPLIT: &str = r#"{ "format": 1, "family": "f",
  "axes": { "l": { "is": "first + later" }, "first": { "size": 1 }, "later": "layers but the first", "e": "width" },
  "params": { "w": "l e" },
  "layouts": {
    "split": { "tensors": { "first.w": "w: (first e)", "later.{later}.w": "w: e" } },
    "apart": { "tensors": { "all.{l}.w": "w: e" } },
    "whole": { "tensors": { "w": "w: e l" } } } }"#;

#[test]
fn tensors_that_hold_a_part_of_an_axis() {
    let folder = Folder::new();
    let model = numbered(&[("first.w", &[3]), ("later.0.w", &[3]), ("later.1.w", &[3])]);
    folder.tensors("in.safetensors", &model);
    run(&folder, SPLIT, ("split", "whole"), ["in.safetensors", "to.safetensors"], &[]).ok();
    assert_eq!(read(&folder.join("to.safetensors"))["w"].shape, [3, 3]);
    run(&folder, SPLIT, ("whole", "split"), ["to.safetensors", "back.safetensors"], &[]).ok();
    assert_eq!(read(&folder.join("back.safetensors")), model);
}
