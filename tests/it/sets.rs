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

/// Megatron's folders of ranks: tensor and pipeline parallel, the last stage with the last norm and the output layer. Three
/// queries for each key/value head, heads that are not as many as elements of a head.
const MEGATRON: &str = r#"{ "format": 1, "family": "mcore",
  "axes": { "l": "layers", "h": { "is": "g r" }, "g": "kv heads", "r": "queries of one", "d": "head size", "e": "width",
            "f": "inner width", "v": "vocabulary", "t": "tensor ranks", "p": "stages", "lp": "layers of a stage",
            "gt": "kv heads of a rank", "ft": "inner width of a rank", "vt": "vocabulary of a rank" },
  "params": { "tok": "v e", "q": "l h d e", "k": "l g d e", "v": "l g d e", "o": "l e h d", "gate": "l f e",
              "up": "l f e", "norm": "e", "head": "v e" },
  "layouts": {
    "one": { "tensors": { "embedding": "tok: v e", "layers.{l}.qkv": "(g (q: r d + k: d + v: d)) e",
                          "layers.{l}.proj": "o: e (h d)", "layers.{l}.fc1": "(gate: f + up: f) e",
                          "final_norm": "norm: e", "output_layer": "head: v e" } },
    "ranks": { "axes": { "l": "p lp", "g": "t gt", "f": "t ft", "v": "t vt" }, "tensors": {
      "mp_rank_{t:02}_000/model_optim_rng.END::embedding": "tok: vt e",
      "mp_rank_{t:02}_{p:03}/model_optim_rng.END::layers.{lp}.qkv": "(gt (q: r d + k: d + v: d)) e",
      "mp_rank_{t:02}_{p:03}/model_optim_rng.END::layers.{lp}.proj": "o: e (gt r d)",
      "mp_rank_{t:02}_{p:03}/model_optim_rng.END::layers.{lp}.fc1": "(gate: ft + up: ft) e",
      "mp_rank_{t:02}_{p.count-1:03}/model_optim_rng.END::final_norm": "norm: e",
      "mp_rank_{t:02}_{p.count-1:03}/model_optim_rng.END::output_layer": "head: vt e" } } } }"#;

const KV: u64 = 4;
const QUERIES: u64 = 3;
const SIZE: u64 = 5;
const WIDTH: u64 = 7;
const INNER: u64 = 6;

fn random(shape: &[u64], numbers: &mut impl FnMut() -> u64) -> Tensor {
    let count = shape.iter().product::<u64>();
    Tensor::f32(shape, (0..count).map(|_| (numbers() >> 40) as f32 - 8_388_608.0).collect::<Vec<_>>())
}

fn megatron() -> Tensors {
    let mut numbers = crate::kit::xorshift();
    let mut tensors = Tensors::new();
    for (key, shape) in
        [("embedding", [8, WIDTH].as_slice()), ("final_norm", &[WIDTH]), ("output_layer", &[8, WIDTH])]
    {
        tensors.insert(key.to_owned(), random(shape, &mut numbers));
    }
    for layer in 0..4 {
        for (key, shape) in [
            ("qkv", [KV * (QUERIES + 2) * SIZE, WIDTH]),
            ("proj", [WIDTH, KV * QUERIES * SIZE]),
            ("fc1", [2 * INNER, WIDTH]),
        ] {
            tensors.insert(format!("layers.{layer}.{key}"), random(&shape, &mut numbers));
        }
    }
    tensors
}

/// Returns these rows of a matrix.
fn rows(tensor: &Tensor, rows: impl Iterator<Item = u64>) -> Tensor {
    let values = tensor.values();
    let width = tensor.shape[1];
    let rows: Vec<u64> = rows.collect();
    let of = |row: &u64| values[(row * width) as usize..((row + 1) * width) as usize].to_vec();
    Tensor::f32(&[rows.len() as u64, width], rows.iter().flat_map(of).collect::<Vec<_>>())
}

/// Returns these columns of a matrix.
fn columns(tensor: &Tensor, from: u64, to: u64) -> Tensor {
    let values = tensor.values();
    let width = tensor.shape[1] as usize;
    let rows = values.chunks(width).flat_map(|row| row[from as usize..to as usize].to_vec());
    Tensor::f32(&[tensor.shape[0], to - from], rows.collect::<Vec<_>>())
}

/// Returns what the rank of two by two holds: written by hand, of the form of one rank.
fn rank(tensors: &Tensors, t: u64, p: u64) -> Tensors {
    let half = |size: u64| t * size / 2..(t + 1) * size / 2;
    let mut own = Tensors::new();
    if p == 0 {
        own.insert("embedding".into(), rows(&tensors["embedding"], half(8)));
    } else {
        own.insert("final_norm".into(), tensors["final_norm"].clone());
        own.insert("output_layer".into(), rows(&tensors["output_layer"], half(8)));
    }
    for layer in 0..2 {
        let of = |key: &str| &tensors[&format!("layers.{}.{key}", 2 * p + layer)];
        let mut put = |key: &str, tensor| own.insert(format!("layers.{layer}.{key}"), tensor);
        put("qkv", rows(of("qkv"), half(KV * (QUERIES + 2) * SIZE)));
        let heads = half(KV * QUERIES * SIZE);
        put("proj", columns(of("proj"), heads.start, heads.end));
        put("fc1", rows(of("fc1"), half(INNER).chain(half(INNER).map(|row| INNER + row))));
    }
    own
}

/// Runs the binary with Megatron's mapping, of files with that ending.
fn ranks(folder: &Folder, ending: &str, more: &[&str]) -> crate::kit::Run {
    folder.put("mcore.json", MEGATRON.replace(".END", ending));
    let mapping = folder.join("mcore.json").display().to_string();
    folder.run(&[&["--mapping", &mapping], more].concat())
}

const FORTH: &[&str] =
    &["--from", "mcore/one", "--to", "mcore/ranks", "--axis", "g=4", "--axis", "d=5", "--axis", "t=2"];
const BACK: &[&str] = &["--from", "mcore/ranks", "--to", "mcore/one", "--axis", "d=5"];

/// Writes the ranks by hand.
fn put_ranks(folder: &Folder) -> String {
    for (t, p) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        std::fs::create_dir_all(folder.join(&format!("src/mp_rank_0{t}_00{p}"))).expect("a folder");
        folder.tensors(
            &format!("src/mp_rank_0{t}_00{p}/model_optim_rng.safetensors"),
            &rank(&megatron(), t, p),
        );
    }
    folder.join("src").display().to_string()
}

#[test]
fn ranks_in_folders_of_two_kinds_are_written_and_read() {
    let folder = Folder::new();
    let one = folder.tensors("one.safetensors", &megatron()).display().to_string();
    let out = folder.join("out").display().to_string();
    ranks(&folder, ".safetensors", &[FORTH, &["--axis", "p=2", &one, &out]].concat()).ok();
    for (t, p) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let written = read(&folder.join(&format!("out/mp_rank_0{t}_00{p}/model_optim_rng.safetensors")));
        assert_eq!(written, rank(&megatron(), t, p), "{t} {p}");
    }
    let source = put_ranks(&folder);
    let back = folder.join("back.safetensors").display().to_string();
    ranks(&folder, ".safetensors", &[BACK, &[&source, &back]].concat()).ok();
    assert_eq!(read(&folder.join("back.safetensors")), megatron());
    let seen = folder.run(&["inspect", "--mapping", "mcore.json", &source]).ok();
    assert!(seen.stdout.contains("4 files") && seen.stdout.contains("layout mcore/ranks"), "{}", seen.stdout);
    folder.run(&["mapping", "check", "mcore.json"]).ok();
    // Of another format, and with the ending left to it.
    for (ending, format) in [(".pt", "pytorch"), ("", "npz")] {
        let out = folder.join(&format!("out-{format}")).display().to_string();
        let back = folder.join(&format!("{format}.safetensors")).display().to_string();
        ranks(&folder, ending, &[FORTH, &["--axis", "p=2", "--format", format, &one, &out]].concat()).ok();
        ranks(&folder, ending, &["--from", "auto", "--to", "mcore/one", &out, &back]).ok();
        assert_eq!(read(&folder.join(&format!("{format}.safetensors"))), megatron());
    }
}

#[test]
fn a_rank_that_is_missing_or_damaged_is_named() {
    let folder = Folder::new();
    let source = put_ranks(&folder);
    let out = folder.join("out.safetensors").display().to_string();
    let convert = || ranks(&folder, ".safetensors", &[BACK, &[&source, &out]].concat());
    for name in ["mp_rank_01_001", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_00_000"] {
        std::fs::rename(folder.join(&format!("src/{name}")), folder.join("away")).expect("moves");
        convert().fails(&["bind/index-gap", "files of the set are missing", name]);
        std::fs::rename(folder.join("away"), folder.join(&format!("src/{name}"))).expect("moves");
    }
    // All ranks of the last index, which an option (or a config) counts.
    for name in ["mp_rank_01_000", "mp_rank_01_001"] {
        std::fs::rename(folder.join(&format!("src/{name}")), folder.join(name)).expect("moves");
    }
    let counted = ranks(&folder, ".safetensors", &[BACK, &["--axis", "t=2", &source, &out]].concat());
    counted.fails(&[
        "bind/size-conflict",
        "the names of",
        "the last of the numbered names or files may be missing",
    ]);
    for name in ["mp_rank_01_000", "mp_rank_01_001"] {
        std::fs::rename(folder.join(name), folder.join(&format!("src/{name}"))).expect("moves");
    }
    // The last of the ranks, of which nothing else would speak.
    folder.put("src/mp_rank_01_001/model_optim_rng.safetensors", "");
    folder.put("src/mp_rank_01_000/model_optim_rng.safetensors", "");
    convert().fails(&["format/empty", "mp_rank_01_000", "mp_rank_01_001"]);
    assert!(!folder.join("out.safetensors").exists());
}

#[test]
fn what_lies_in_the_folders_of_ranks_stays_and_no_link_is_followed() {
    let folder = Folder::new();
    let one = folder.tensors("one.safetensors", &megatron()).display().to_string();
    let out = folder.join("out").display().to_string();
    let convert = |more: &[&str]| {
        ranks(&folder, ".safetensors", &[FORTH, more, &["--axis", "p=2", &one, &out]].concat())
    };
    std::fs::create_dir_all(folder.join("out/mp_rank_01_000")).expect("a folder");
    folder.put("out/mp_rank_01_000/notes.txt", "mine");
    convert(&[]).ok();
    convert(&[]).fails(&["publish/exists", "mp_rank_01_001"]);
    folder.put("out/mp_rank_01_001/model_optim_rng.safetensors", "old");
    convert(&["--force"]).ok();
    assert_eq!(std::fs::read(folder.join("out/mp_rank_01_000/notes.txt")).expect("is there"), b"mine");
    let written = read(&folder.join("out/mp_rank_01_001/model_optim_rng.safetensors"));
    assert_eq!(written, rank(&megatron(), 1, 1));
    convert(&["--force", "--resume"]).ok();
    #[cfg(unix)]
    {
        std::fs::remove_dir_all(folder.join("out/mp_rank_00_001")).expect("is there");
        std::fs::create_dir(folder.join("elsewhere")).expect("a folder");
        std::os::unix::fs::symlink(folder.join("elsewhere"), folder.join("out/mp_rank_00_001"))
            .expect("a link");
        convert(&["--force"]).fails(&["publish/exists", "mp_rank_00_001", "a file or a link is in the way"]);
        assert_eq!(std::fs::read_dir(folder.join("elsewhere")).expect("a folder").count(), 0);
    }
}

#[test]
fn more_ranks_of_an_older_set_are_no_part_of_the_new_one() {
    let folder = Folder::new();
    let one = folder.tensors("one.safetensors", &model()).display().to_string();
    let out = folder.join("set").display().to_string();
    let convert = |mapping: &str, ranks: &str, more: &[&str]| {
        let axis = format!("t={ranks}");
        folder.put("ranks.json", mapping);
        let mapping = folder.join("ranks.json").display().to_string();
        let fixed =
            ["--mapping", &mapping, "--from", "tp/one", "--to", "tp/ranks", "--axis", "h=6", "--axis"];
        folder.run(&[&fixed[..], &[&axis, &one, &out], more].concat())
    };
    let nested = MAPPING.replace("rank{t:02}.", "rank{t:02}/model.");
    for (mapping, name) in [(MAPPING, "rank0N.safetensors"), (&nested, "rank0N/model.safetensors")] {
        let rank = |number: usize| format!("set/{}", name.replace('N', &number.to_string()));
        convert(mapping, "6", &[]).ok();
        for number in 0..2 {
            std::fs::remove_file(folder.join(&rank(number))).expect("is there");
        }
        folder.put("set/notes.txt", "mine");
        // Nothing that is written is there, and beside it the others would be ranks of the new checkpoint.
        let refused = convert(mapping, "2", &[]);
        refused.fails(&["publish/exists", "would mix", &name.replace('N', "2"), &name.replace('N', "5")]);
        assert!(!folder.join(&rank(0)).exists());
        convert(mapping, "2", &["--force"]).ok();
        let there: Vec<bool> = (0..6).map(|number| folder.join(&rank(number)).exists()).collect();
        assert_eq!(there, [true, true, false, false, false, false]);
        assert_eq!(std::fs::read(folder.join("set/notes.txt")).expect("is there"), b"mine");
        let back = folder.join("back.safetensors").display().to_string();
        let mapping = folder.join("ranks.json").display().to_string();
        let args = ["--mapping", &mapping, "--from", "tp/ranks", "--to", "tp/one", &out, &back, "--force"];
        folder.run(&args).ok();
        assert_eq!(read(&folder.join("back.safetensors")), model());
        std::fs::remove_dir_all(folder.join("set")).expect("is there");
    }
}

/// A Llama of 4 layers in the names of transformers: 12 query heads, 4 key/value heads of 10 elements.
fn llama() -> Tensors {
    let mut numbers = crate::kit::xorshift();
    let mut tensors = Tensors::new();
    for (key, shape) in
        [("model.embed_tokens", [8, WIDTH].as_slice()), ("model.norm", &[WIDTH]), ("lm_head", &[8, WIDTH])]
    {
        tensors.insert(format!("{key}.weight"), random(shape, &mut numbers));
    }
    for layer in 0..4 {
        for (key, shape) in [
            ("self_attn.q_proj", [120, WIDTH].as_slice()),
            ("self_attn.k_proj", &[40, WIDTH]),
            ("self_attn.v_proj", &[40, WIDTH]),
            ("self_attn.o_proj", &[WIDTH, 120]),
            ("mlp.gate_proj", &[12, WIDTH]),
            ("mlp.up_proj", &[12, WIDTH]),
            ("mlp.down_proj", &[WIDTH, 12]),
            ("input_layernorm", &[WIDTH]),
            ("post_attention_layernorm", &[WIDTH]),
        ] {
            tensors.insert(format!("model.layers.{layer}.{key}.weight"), random(shape, &mut numbers));
        }
    }
    tensors
}

/// Returns what a rank of two of Megatron holds of a layer, written by hand.
fn megatron_layer(tensors: &Tensors, t: u64, layer: u64) -> Tensors {
    let of = |key: &str| &tensors[&format!("model.layers.{layer}.{key}.weight")];
    let join = |parts: &[Tensor]| {
        let values: Vec<f32> = parts.iter().flat_map(Tensor::values).collect();
        Tensor::f32(&[parts.iter().map(|part| part.shape[0]).sum(), WIDTH], values)
    };
    let group = |group: u64| {
        let part = |key: &str, size: u64| rows(of(key), group * size..(group + 1) * size);
        join(&[part("self_attn.q_proj", 30), part("self_attn.k_proj", 10), part("self_attn.v_proj", 10)])
    };
    let half = |key: &str| rows(of(key), t * 6..(t + 1) * 6);
    Tensors::from([
        ("self_attention.linear_qkv.weight".to_owned(), join(&[group(2 * t), group(2 * t + 1)])),
        (
            "self_attention.linear_proj.weight".to_owned(),
            columns(of("self_attn.o_proj"), t * 60, (t + 1) * 60),
        ),
        ("mlp.linear_fc1.weight".to_owned(), join(&[half("mlp.gate_proj"), half("mlp.up_proj")])),
        ("mlp.linear_fc2.weight".to_owned(), columns(of("mlp.down_proj"), t * 6, (t + 1) * 6)),
        ("input_layernorm.weight".to_owned(), of("input_layernorm").clone()),
        ("pre_mlp_layernorm.weight".to_owned(), of("post_attention_layernorm").clone()),
    ])
}

#[test]
fn megatrons_ranks_and_stages_hold_their_share() {
    let folder = Folder::new();
    folder.tensors("hf.safetensors", &llama());
    let convert = |from: &str, to: &str, paths: [&str; 2], more: &[&str]| {
        let heads = ["--trust-layout", "--axis", "h=12", "--axis", "g=4", "--axis", "d=10"];
        folder.run(&[&["--from", from, "--to", to], &heads[..], &paths, more].concat()).ok()
    };
    convert("llama/hf", "llama/megatron-tp", ["hf.safetensors", "tp2"], &["--axis", "t=2"]);
    let stages = ["--axis", "t=2", "--axis", "p=2"];
    convert("llama/hf", "llama/megatron-tp-pp", ["hf.safetensors", "tp2pp2"], &stages);
    let tensors = llama();
    for t in 0..2 {
        let all = pickled(&folder.join(&format!("tp2/mp_rank_0{t}/model_optim_rng.pt")));
        let half = |key: &str| rows(&tensors[key], t * 4..(t + 1) * 4);
        let mut expected = Tensors::from([
            ("embedding.word_embeddings.weight".to_owned(), half("model.embed_tokens.weight")),
            ("output_layer.weight".to_owned(), half("lm_head.weight")),
            ("decoder.final_layernorm.weight".to_owned(), tensors["model.norm.weight"].clone()),
        ]);
        for p in 0..2 {
            let own = pickled(&folder.join(&format!("tp2pp2/mp_rank_0{t}_00{p}/model_optim_rng.pt")));
            let mut stage = Tensors::new();
            for layer in 0..2 {
                for (key, tensor) in megatron_layer(&tensors, t, 2 * p + layer) {
                    expected.insert(format!("decoder.layers.{}.{key}", 2 * p + layer), tensor.clone());
                    stage.insert(format!("decoder.layers.{layer}.{key}"), tensor);
                }
            }
            // The first stage has the embedding, the last one what follows the layers.
            let outer = |key: &String| !key.contains(".layers.") && key.starts_with("embedding") == (p == 0);
            let outer = expected.iter().filter(|(key, _)| outer(key));
            stage.extend(outer.map(|(key, tensor)| (key.clone(), tensor.clone())));
            assert_eq!(own, stage, "{t} {p}");
        }
        assert_eq!(all, expected, "{t}");
    }
    convert("llama/megatron-tp", "llama/hf", ["tp2", "one.safetensors"], &[]);
    convert("llama/hf", "llama/megatron-tp", ["one.safetensors", "tp4"], &["--axis", "t=4"]);
    convert("llama/megatron-tp", "llama/hf", ["tp4", "four.safetensors"], &[]);
    convert("llama/megatron-tp-pp", "llama/hf", ["tp2pp2", "stages.safetensors"], &[]);
    for name in ["one", "four", "stages"] {
        assert_eq!(read(&folder.join(&format!("{name}.safetensors"))), tensors, "{name}");
    }
    // Biases that the source lacks are zeros in each layer, whatever the stages.
    convert("llama/megatron-tp-pp", "llama/hf-bias", ["tp2pp2", "bias.safetensors"], &[]);
    let zeros = read(&folder.join("bias.safetensors"));
    for layer in 0..4 {
        let bias = &zeros[&format!("model.layers.{layer}.self_attn.k_proj.bias")];
        assert_eq!(*bias, Tensor::f32(&[40], vec![0.0; 40]));
    }
}

/// Reads a file of PyTorch's.
fn pickled(path: &std::path::Path) -> Tensors {
    let reader = qkvconv::format::open(path, &qkvconv::format::OpenOptions::default()).expect("opens");
    let read = |tensor: &qkvconv::catalog::TensorMeta| {
        let bytes = crate::stored::elements(reader.as_ref(), tensor);
        (tensor.key.clone(), Tensor::new("F32", &tensor.shape, bytes))
    };
    reader.catalog().tensors.iter().map(read).collect()
}

#[test]
fn an_entry_of_an_unknown_type_is_left_out_where_it_is_not_wanted() {
    let folder = Folder::new();
    let header = r#"{"attn.q_proj.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},
        "attn.k_proj.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]},
        "attn.v_proj.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[32,48]},
        "odd":{"dtype":"F7_NEW","shape":[4],"data_offsets":[48,52]}}"#;
    let mut data: Vec<u8> = (0..12).flat_map(|value| (value as f32).to_le_bytes()).collect();
    data.extend([1, 2, 3, 4]);
    crate::kit::write_raw(&folder.join("in.safetensors"), header, &data);
    let convert = |more: &[&str]| {
        let args = ["--from", "attention/separate", "--to", "attention/pytorch-fused", "--axis", "h=1"];
        folder.run(&[&args[..], &["--force", "in.safetensors", "out.safetensors"], more].concat())
    };
    convert(&[]).fails(&["odd", "F7_NEW"]);
    assert!(!folder.join("out.safetensors").exists());
    for more in [["--drop", "odd"], ["--only", "attn.*"]] {
        convert(&more).ok();
        let fused = (0..12).map(|value| value as f32);
        let expected = Tensors::from([("attn.in_proj_weight".to_owned(), Tensor::f32(&[6, 2], fused))]);
        assert_eq!(read(&folder.join("out.safetensors")), expected, "{more:?}");
    }
}
