//! Sets of files whose names carry an axis: `rank{t:02}.safetensors::layers.{l}.qkv`.

use crate::kit::{Folder, Tensor, Tensors, read};

const MAPPING: &str = r#"{ "format": 1, "family": "tp",
  "axes": { "l": "layers", "t": "shards", "h": "heads", "ht": "heads of a shard", "d": "head size",
            "e": { "per": "parameter" }, "o": "output width" },
  "params": { "q": "l h d e", "k": "l h d e", "v": "l h d e", "out": "l o h d", "norm": "l e" },
  "layouts": {
    "one": { "tensors": { "layers.{l}.qkv": "(q: h d + k: h d + v: h d) e", "layers.{l}.o": "out: o (h d)",
                          "layers.{l}.norm": "norm: e" } },
    "ranks": { "axes": { "h": "t ht" },
               "tensors": { "rank{t:02}.safetensors::layers.{l}.qkv": "(q: ht d + k: ht d + v: ht d) e",
                            "rank{t:02}.safetensors::layers.{l}.o": "out: o (ht d)",
                            "rank{t:02}.safetensors::layers.{l}.norm": "norm: e" } } } }"#;

fn model() -> Tensors {
    let mut tensors = Tensors::new();
    for layer in 0..2 {
        tensors.insert(format!("layers.{layer}.qkv"), Tensor::index(&[3 * 6 * 5, 7], layer * 10_000));
        tensors.insert(format!("layers.{layer}.o"), Tensor::index(&[9, 30], layer * 10_000 + 5_000));
        tensors.insert(format!("layers.{layer}.norm"), Tensor::index(&[7], layer * 10_000 + 9_000));
    }
    tensors
}

fn run(folder: &Folder, from: &str, to: &str, more: &[&str]) -> crate::kit::Run {
    folder.put("tp.json", MAPPING);
    let mapping = folder.join("tp.json").display().to_string();
    let fixed = ["--mapping", &mapping, "--from", from, "--to", to];
    folder.run(&[&fixed[..], more].concat())
}

#[test]
fn ranks_are_cut_part_by_part_and_merged_again() {
    let folder = Folder::new();
    let one = folder.tensors("one.safetensors", &model()).display().to_string();
    for ranks in ["2", "3"] {
        let axis = format!("t={ranks}");
        let set = folder.join(&format!("set{ranks}")).display().to_string();
        run(&folder, "tp/one", "tp/ranks", &["--axis", "h=6", "--axis", &axis, &one, &set]).ok();
        let heads = 6 / ranks.parse::<usize>().expect("a number");
        let second = read(&folder.join(&format!("set{ranks}/rank01.safetensors")));
        // q, k and v of the second rank's heads, not a plain cut of the fused tensor.
        let rows: Vec<f32> = second["layers.1.qkv"].values().into_iter().step_by(7).collect();
        let wanted: Vec<f32> = (0..3)
            .flat_map(|part| (0..heads * 5).map(move |row| part * 30 + heads * 5 + row))
            .map(|row| (10_000 + row * 7) as f32)
            .collect();
        assert_eq!(rows, wanted);
        assert_eq!(second["layers.1.norm"], model()["layers.1.norm"], "each rank holds the whole norm");
        let back = folder.join(&format!("back{ranks}.safetensors"));
        run(&folder, "tp/ranks", "tp/one", &[&set, &back.display().to_string()]).ok();
        assert_eq!(read(&back), model());
    }
}

#[test]
fn ranks_that_disagree_about_a_shared_tensor_are_refused() {
    let folder = Folder::new();
    let one = folder.tensors("one.safetensors", &model()).display().to_string();
    let set = folder.join("set").display().to_string();
    run(&folder, "tp/one", "tp/ranks", &["--axis", "h=6", "--axis", "t=2", &one, &set]).ok();
    let mut second = read(&folder.join("set/rank01.safetensors"));
    second.insert("layers.0.norm".into(), Tensor::index(&[7], 1));
    folder.tensors("set/rank01.safetensors", &second);
    let back = folder.join("back.safetensors").display().to_string();
    let failed = run(&folder, "tp/ranks", "tp/one", &[&set, &back]);
    failed.fails(&[
        "data/unequal",
        "rank01.safetensors::layers.0.norm",
        "two tensors that hold one parameter differ",
    ]);
}

#[test]
fn a_missing_rank_is_named() {
    let folder = Folder::new();
    let one = folder.tensors("one.safetensors", &model()).display().to_string();
    let set = folder.join("set").display().to_string();
    run(&folder, "tp/one", "tp/ranks", &["--axis", "h=6", "--axis", "t=3", &one, &set]).ok();
    std::fs::remove_file(folder.join("set/rank01.safetensors")).expect("is there");
    let back = folder.join("back.safetensors").display().to_string();
    run(&folder, "tp/ranks", "tp/one", &[&set, &back]).fails(&["bind/index-gap", "rank01"]);
}

#[test]
fn the_ending_may_be_left_to_the_format() {
    let folder = Folder::new();
    let one = folder.tensors("one.safetensors", &model()).display().to_string();
    folder.put("tp.json", MAPPING.replace("rank{t:02}.safetensors::", "rank{t:02}::"));
    let mapping = folder.join("tp.json").display().to_string();
    for (format, ending) in [("safetensors", "safetensors"), ("pytorch", "bin"), ("npz", "npz")] {
        let convert = |more: &[&str]| folder.run(&[&["--mapping", &mapping], more].concat());
        let forth = ["--from", "tp/one", "--to", "tp/ranks", "--axis", "h=6", "--axis", "t=2"];
        let set = folder.join(&format!("set-{format}")).display().to_string();
        convert(&[&forth[..], &["--format", format, &one, &set]].concat()).ok();
        assert!(folder.join(&format!("set-{format}/rank01.{ending}")).is_file(), "{:?}", folder.names());
        folder.run(&[&["verify", "--mapping", &mapping], &forth[..], &[&one, &set]].concat()).ok();
        let back = folder.join(&format!("{format}.safetensors")).display().to_string();
        convert(&["--from", "auto", "--to", "tp/one", &set, &back]).ok();
        assert_eq!(read(&folder.join(&format!("{format}.safetensors"))), model());
    }
}
