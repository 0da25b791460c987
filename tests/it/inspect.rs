//! `qkvconv inspect` and `--from auto`.

use serde_json::Value;

use crate::kit::{self, Folder, Tensor, Tensors, mapping};

fn digits() -> String {
    kit::digits().display().to_string()
}

fn oracle(path: &str) -> String {
    format!("{}/tests/oracles/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn json(folder: &Folder, args: &[&str]) -> Value {
    serde_json::from_str(&folder.run(args).ok().stdout).expect("JSON")
}

#[test]
fn a_checkpoint_is_told_from_its_headers() {
    let folder = Folder::new();
    let said = folder.run(&["inspect", "--all", &digits()]).ok().stdout;
    for text in [
        "safetensors, 353.01 KiB in 43 tensors (43 F32)",
        "layout attention/pytorch-fused: 12 of 43 tensors",
        "h = 4  query heads, from config.json `num_attention_heads`",
        "encoder.layers.{0..2}.self_attn.in_proj_weight (3)  F32 [180, 60]",
        "rows: q.weight: 4 query heads × 15 head size",
        "k.weight head 3: rows 105..120, columns 0..60",
        "o.weight head 3: rows 0..60, columns 45..60",
        "held by no rule",
        "encoder.layers.{0..2}.linear1.bias (3)",
    ] {
        assert!(said.contains(text), "`{text}` is not in\n{said}");
    }
}

/// What fits a screen, and the command for what comes next, which works as it is pasted.
#[test]
fn a_summary_leads_to_a_conversion() {
    let folder = Folder::new();
    let tensors = crate::kit::read(std::path::Path::new(&digits()));
    folder.tensors("my model.safetensors", &tensors);
    folder.put("config.json", r#"{ "num_attention_heads": 4 }"#);
    let said = folder.run(&["inspect", "my model.safetensors"]).ok().stdout;
    assert!(said.lines().count() <= 24, "{said}");
    for text in [
        "layout attention/pytorch-fused: 12 of 43 tensors",
        "h = 4  query heads, from config.json",
        "  encoder.layers.{0..2}.self_attn.in_proj_weight (3) [180, 60]  rows: q.weight: 4 query heads",
        "4 kinds of tensors in all; --all tells each",
        "held by no rule: classifier.bias, classifier.weight, embed.bias, … and 12 more kinds",
        "other layouts of attention: pytorch-kdim, separate,",
    ] {
        assert!(said.contains(text), "`{text}` is not in\n{said}");
    }
    let command =
        said.lines().last().and_then(|line| line.trim().strip_prefix("qkvconv ")).expect("a command");
    let words: Vec<&str> = command.split('\'').collect();
    let [before, "my model.safetensors", after] = words[..] else { panic!("{command}") };
    let args: Vec<&str> =
        before.split_whitespace().chain(["my model.safetensors"]).chain(after.split_whitespace()).collect();
    folder.run(&args).ok();
    assert!(folder.join("out/model.safetensors").is_file());
}

#[test]
fn the_document_for_programs() {
    let folder = Folder::new();
    let found = json(&folder, &["inspect", "--json", &oracle("18_hf_llama_to_meta_llama/dst")]);
    assert_eq!((&found["format"], &found["layout"]), (&"pytorch".into(), &"llama/meta".into()));
    assert_eq!((&found["tensors"], &found["version"]), (&21.into(), &1.into()));
    let sizes = found["sizes"].as_array().expect("sizes");
    let size = |axis: &str| sizes.iter().find(|size| size["axis"] == axis).expect("is there")["size"].clone();
    assert_eq!((size("h"), size("g"), size("d")), (6.into(), 2.into(), 8.into()));
    assert_eq!(found["unexplained"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_head_is_found_in_every_layout_of_the_family() {
    let folder = Folder::new();
    let tensor = "encoder.layers.1.self_attn.in_proj_weight";
    let found =
        json(&folder, &["inspect", "--json", "--tensor", tensor, "--head", "2", "--part", "k", &digits()]);
    let place = |layout: &str| {
        let all = found.as_array().expect("a list");
        let entry = all.iter().find(|entry| entry["layout"] == layout).expect(layout);
        (entry["tensor"].as_str().expect("a name").to_owned(), entry["ranges"].clone())
    };
    // Three thirds of 60 rows, heads of 15.
    assert_eq!(
        place("attention/pytorch-fused"),
        (tensor.to_owned(), serde_json::json!(["90..105", "0..60"]))
    );
    // Of each head q, k and v: head 2 begins at row 90, its key 15 behind.
    let neox = (
        "encoder.layers.1.self_attn.query_key_value.weight".to_owned(),
        serde_json::json!(["105..120", "0..60"]),
    );
    assert_eq!(place("attention/neox"), neox);
    assert_eq!(place("attention/conv1d").1, serde_json::json!(["0..60", "90..105"]));
    assert_eq!(place("attention/transformer-lens").1, serde_json::json!(["2", "0..60", "0..15"]));
    assert_eq!(place("attention/per-head").0, "encoder.layers.1.self_attn.heads.2.k_proj.weight");
    folder.run(&["inspect", "--tensor", tensor, "--head", "4", &digits()]).fails(&["no head 4", tensor]);
    folder
        .run(&["inspect", "--tensor", tensor, "--part", "x", &digits()])
        .fails(&["no such part", "k.weight"]);
    folder.run(&["inspect", "--tensor", "nope", &digits()]).fails(&["no tensor of that name", "nope"]);
}

/// Interleaved rotary pairs: the canonical order is half-split, so a head's rows are the same, and k of two heads are two
/// runs of an interleaved tensor.
#[test]
fn pictures_are_drawn() {
    let folder = Folder::new();
    let tensor = "encoder.layers.0.self_attn.in_proj_weight";
    let args = ["inspect", "--tensor", tensor, "--svg", "a.svg", &digits()];
    let said = folder.run(&args).ok().stdout;
    let drawing: Vec<&str> =
        said.lines().map(str::trim).filter(|line| line.len() > 20 && !line.contains(' ')).collect();
    assert_eq!(drawing.len(), 24, "{said}");
    // 24 lines for 180 rows: the middle of each shows its element; thirds, four heads each, two lines a head.
    let expected: Vec<String> = ["q", "k", "v"]
        .iter()
        .flat_map(|part| (0..4).flat_map(move |head| [format!("{part}{head}"), format!("{part}{head}")]))
        .collect();
    let seen: Vec<String> = drawing.iter().map(|line| line[..2].to_owned()).collect();
    assert_eq!(seen, expected);
    let svg = std::fs::read_to_string(folder.join("a.svg")).expect("written");
    assert!(svg.starts_with("<svg") && svg.contains("k.weight head 3"), "{}", &svg[..200]);
    // What is there is replaced on request alone.
    folder.run(&args).fails(&["a.svg", "--force"]);
    folder.run(&[&args[..], &["--force"]].concat()).ok();
}

/// Sizes of the attention below: query heads, key/value heads, pairs that rotate, elements that do not, head size of v, width.
const SIZES: (u64, u64, u64, u64, u64, u64) = (6, 2, 3, 2, 5, 7);

/// What the canonical element of a part is: q of head `h`, element `d` of the head, column `e`.
fn value(part: &str, head: u64, d: u64, e: u64) -> f32 {
    let base = match part {
        "q" => 0,
        "k" => 10_000,
        _ => 20_000,
    };
    (base + (head * 8 + d) * 7 + e) as f32
}

/// A matrix of that many rows and columns, each element made by itself.
fn matrix(rows: u64, columns: u64, of: impl Fn(u64, u64) -> f32) -> Tensor {
    let of = &of;
    Tensor::f32(&[rows, columns], (0..rows).flat_map(|row| (0..columns).map(move |column| of(row, column))))
}

/// The same attention in six arrangements, each written out by hand: the layout, its tensors, and the names of those that
/// hold a head of q and of k.
fn arrangements() -> Vec<(&'static str, Tensors, &'static str, &'static str)> {
    let (h, g, f, u, dv, e) = SIZES;
    let (d, r) = (2 * f + u, h / g);
    let row = |row: u64, column: u64| {
        // q, k and v one after the other.
        match row {
            row if row < h * d => value("q", row / d, row % d, column),
            row if row < (h + g) * d => value("k", row / d - h, row % d, column),
            row => value("v", (row - (h + g) * d) / dv, (row - (h + g) * d) % dv, column),
        }
    };
    let part = |part: &'static str, heads: u64, size: u64| {
        matrix(heads * size, e, move |row, column| value(part, row / size, row % size, column))
    };
    // Element 2i and 2i + 1 of a stored head are i and i + f of the canonical one; the last ones stay.
    let woven = move |part: &'static str, heads: u64| {
        matrix(heads * d, e, move |row, column| {
            let at = row % d;
            let canonical = if at < 2 * f { at % 2 * f + at / 2 } else { at };
            value(part, row / d, canonical, column)
        })
    };
    let total = (h + g) * d + g * dv;
    let group = r * d + d + dv;
    let tensors = |list: Vec<(&str, Tensor)>| {
        list.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect::<Tensors>()
    };
    let mut heads = Tensors::new();
    for head in 0..h {
        let name = format!("a.heads.{head}.q_proj.weight");
        heads.insert(name, matrix(d, e, |row, column| value("q", head, row, column)));
    }
    for head in 0..g {
        let name = format!("a.heads.{head}.k_proj.weight");
        heads.insert(name, matrix(d, e, |row, column| value("k", head, row, column)));
        let name = format!("a.heads.{head}.v_proj.weight");
        heads.insert(name, matrix(dv, e, |row, column| value("v", head, row, column)));
    }
    vec![
        (
            "attention/separate",
            tensors(vec![
                ("a.q_proj.weight", part("q", h, d)),
                ("a.k_proj.weight", part("k", g, d)),
                ("a.v_proj.weight", part("v", g, dv)),
            ]),
            "a.q_proj.weight",
            "a.k_proj.weight",
        ),
        (
            "attention/pytorch-fused",
            tensors(vec![("a.in_proj_weight", matrix(total, e, row))]),
            "a.in_proj_weight",
            "a.in_proj_weight",
        ),
        (
            "attention/conv1d",
            tensors(vec![("a.c_attn.weight", matrix(e, total, |column, at| row(at, column)))]),
            "a.c_attn.weight",
            "a.c_attn.weight",
        ),
        (
            "attention/megatron",
            tensors(vec![(
                "a.linear_qkv.weight",
                matrix(g * group, e, move |row, column| {
                    let (of, at) = (row / group, row % group);
                    match at {
                        at if at < r * d => value("q", of * r + at / d, at % d, column),
                        at if at < r * d + d => value("k", of, at - r * d, column),
                        at => value("v", of, at - r * d - d, column),
                    }
                }),
            )]),
            "a.linear_qkv.weight",
            "a.linear_qkv.weight",
        ),
        (
            "attention/llama-meta",
            tensors(vec![
                ("a.wq.weight", woven("q", h)),
                ("a.wk.weight", woven("k", g)),
                ("a.wv.weight", part("v", g, dv)),
            ]),
            "a.wq.weight",
            "a.wk.weight",
        ),
        ("attention/per-head", heads, "a.heads.4.q_proj.weight", "a.heads.1.k_proj.weight"),
    ]
}

/// Reads an array as NumPy's format says: its type, its shape as written, its elements' bytes.
fn array(path: &std::path::Path) -> (String, String, Vec<u8>) {
    let bytes = std::fs::read(path).expect("written");
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert_eq!((10 + length) % 64, 0, "the elements are aligned");
    let header = std::str::from_utf8(&bytes[10..10 + length]).expect("text");
    let between = |start: &str, end: &str| {
        let rest = header.split_once(start).expect("is there").1;
        rest.split_once(end).expect("ends").0.to_owned()
    };
    assert!(header.contains("'fortran_order': False"), "{header}");
    (between("'descr': '", "'"), between("'shape': ", ", }"), bytes[10 + length..].to_vec())
}

const SHAPES: [&str; 12] =
    ["--axis", "h=6", "--axis", "g=2", "--axis", "f=3", "--axis", "u=2", "--axis", "dv=5", "--axis", "e=7"];

#[test]
fn a_head_is_the_same_out_of_every_layout() {
    let (_, _, f, u, _, e) = SIZES;
    let head = |part: &str, number: u64| -> Vec<u8> {
        let elements = (0..2 * f + u).flat_map(|d| (0..e).map(move |e| (d, e)));
        elements.flat_map(|(d, e)| value(part, number, d, e).to_le_bytes()).collect()
    };
    for (layout, tensors, q, k) in arrangements() {
        let folder = Folder::new();
        folder.tensors("in.safetensors", &tensors);
        for (part, number, tensor) in [("q", 4, q), ("k", 1, k)] {
            let (file, number_text) = (format!("{part}.npy"), number.to_string());
            let args =
                [
                    &[
                        "inspect",
                        "--from",
                        layout,
                        "--tensor",
                        tensor,
                        "--part",
                        part,
                        "--head",
                        &number_text,
                    ][..],
                    &["--save", &file, "in.safetensors"],
                    &SHAPES,
                ]
                .concat();
            let said = folder.run(&args).ok().stdout;
            let words = format!(
                "{file}: {part}.weight head {number}, F32 [d = 8, e = 7], axes in the canonical order"
            );
            assert!(said.contains(&words), "{layout}: {said}");
            let (descr, shape, bytes) = array(&folder.join(&file));
            assert_eq!((descr.as_str(), shape.as_str()), ("<f4", "(8, 7)"), "{layout} {part}");
            assert!(bytes == head(part, number), "{layout} {part}: other elements");
            let found = json(&folder, &[&args[..], &["--json", "--force"]].concat());
            assert!(found.as_array().is_some_and(|places| !places.is_empty()), "{found}");
        }
    }
}

#[test]
fn a_head_is_taken_out_of_every_format() {
    let folder = Folder::new();
    let (_, tensors, ..) = arrangements().swap_remove(0);
    folder.tensors("in.safetensors", &tensors);
    let save = |source: &str, tensor: &str, file: &str| {
        let args =
            ["inspect", "--from", "attention/separate", "--tensor", tensor, "--head", "3", "--save", file];
        folder.run(&[&args[..], &SHAPES, &[source]].concat()).ok();
        array(&folder.join(file))
    };
    let expected = save("in.safetensors", "a.q_proj.weight", "q.npy");
    for target in ["out.bin", "out.npz", "out.h5", "out.msgpack"] {
        let layout = ["--from", "attention/separate", "--to", "attention/separate"];
        folder.run(&[&layout[..], &SHAPES, &["in.safetensors", target]].concat()).ok();
        assert_eq!(save(target, "a.q_proj.weight", &format!("{target}.npy")), expected, "{target}");
    }
}

/// Layers stacked in one tensor are an axis of the head; a tensor that repeats keys gives one of the equal copies.
#[test]
fn a_head_of_stacked_layers_and_of_repeated_keys() {
    let folder = Folder::new();
    let text = mapping(
        "two",
        serde_json::json!({
            "l": "layers", "h": { "is": "g r", "about": "query heads" }, "g": "key/value heads", "r": "share",
            "d": "size", "e": "width",
        }),
        serde_json::json!({ "q": "l h d e", "k": "l g d e" }),
        serde_json::json!({ "stacked": { "tensors": { "q": "q: e l (h d)", "k": "k: l (h d) e" } } }),
    );
    folder.put("two.json", text);
    let (l, h, g, d, e) = (2, 6, 2, 5, 7);
    let of = |l: u64, head: u64, d: u64, e: u64| (((l * 10 + head) * 10 + d) * 10 + e) as f32;
    let all = |sizes: [u64; 4]| {
        (0..sizes.iter().product()).map(move |number: u64| {
            let mut rest = number;
            let mut index = [0; 4];
            for (at, size) in index.iter_mut().zip(sizes).rev() {
                *at = rest % size;
                rest /= size;
            }
            index
        })
    };
    let q = Tensor::f32(&[e, l, h * d], all([e, l, h, d]).map(|[e, l, h, d]| of(l, h, d, e)));
    let copies = |change: u64| {
        let at = move |[l, h, d, e]: [u64; 4]| of(l, h / 3, d, e) + if h == 4 { change as f32 } else { 0.0 };
        Tensor::f32(&[l, h * d, e], all([l, h, d, e]).map(at))
    };
    let tensors = |k: Tensor| Tensors::from([("q".to_owned(), q.clone()), ("k".to_owned(), k)]);
    folder.tensors("in.safetensors", &tensors(copies(0)));
    folder.tensors("uneven.safetensors", &tensors(copies(1)));
    let save = |source: &str, tensor: &str, head: u64| {
        let head = head.to_string();
        let args =
            ["inspect", "--mapping", "two.json", "--from", "stacked", "--axis", "h=6", "--axis", "g=2"];
        let more = ["--tensor", tensor, "--head", &head, "--save", "a.npy", "--force", source];
        folder.run(&[&args[..], &more].concat())
    };
    let bytes = |head: u64| -> Vec<u8> {
        all([l, d, e, 1]).flat_map(|[l, d, e, _]| of(l, head, d, e).to_le_bytes()).collect()
    };
    let said = save("in.safetensors", "q", 4).ok().stdout;
    assert!(said.contains("F32 [l = 2, d = 5, e = 7]"), "{said}");
    let (_, shape, found) = array(&folder.join("a.npy"));
    assert_eq!((shape.as_str(), found == bytes(4)), ("(2, 5, 7)", true));
    save("in.safetensors", "k", 1).ok();
    assert!(array(&folder.join("a.npy")).2 == bytes(1) && g == 2);
    let before = std::fs::read(folder.join("a.npy")).expect("there");
    save("uneven.safetensors", "k", 1).fails(&["copies of an element differ"]);
    assert_eq!(std::fs::read(folder.join("a.npy")).expect("still there"), before);
    save("uneven.safetensors", "k", 0).ok();
}

#[test]
fn a_head_is_never_half_written() {
    let folder = Folder::new();
    let (_, tensors, ..) = arrangements().swap_remove(1);
    folder.tensors("in.safetensors", &tensors);
    let halves = tensors.iter().map(|(key, tensor)| {
        let bytes = tensor.bytes.chunks(4).flat_map(|value| [value[2], value[3]]).collect();
        (key.clone(), Tensor::new("BF16", &tensor.shape, bytes))
    });
    folder.tensors("half.safetensors", &halves.collect());
    let run = |source: &str, part: &[&str], file: &str| {
        let args =
            ["inspect", "--from", "pytorch-fused", "--tensor", "a.in_proj_weight", "--head", "1", "--save"];
        folder.run(&[&args[..], &[file], part, &SHAPES, &[source]].concat())
    };
    let names = folder.names();
    run("in.safetensors", &[], "a.npy").fails(&["q.weight, k.weight, v.weight", "--part"]);
    // NumPy has no such type, as in a conversion.
    run("half.safetensors", &["--part", "q"], "a.npy").fails(&["NumPy has no type for BF16"]);
    run("in.safetensors", &["--part", "q"], "none/a.npy").fails(&["none"]);
    run("in.safetensors", &["--part", "q"], "in.safetensors").fails(&["in.safetensors"]);
    assert_eq!(folder.names(), names);
    run("in.safetensors", &["--part", "q"], "a.npy").ok();
    run("in.safetensors", &["--part", "k"], "a.npy").fails(&["a.npy", "--force"]);
    run("in.safetensors", &["--part", "k", "--force"], "a.npy").ok();
    assert_eq!(folder.names().len(), names.len() + 1);
}

/// What the frameworks' own files say: pairs as their rotation takes them, groups as their attention shares them.
#[test]
fn rotary_pairs_and_groups_are_told() {
    let folder = Folder::new();
    let interleaved = "rotary pairs interleaved: elements 2i and 2i + 1 of a head rotate together";
    let shared = "2 kv groups × 3 query heads: query heads 0..3 share the key and the value of kv head 0";
    let of_group = "2 kv groups × (3 query heads + k + v)";
    for (checkpoint, texts) in [
        (
            "18_hf_llama_to_meta_llama/src",
            vec![shared, "q.weight: rotary pairs half-split: element i of a head rotates with i + 4"],
        ),
        ("18_hf_llama_to_meta_llama/dst", vec![shared, interleaved, "one head of k.weight: 0 0 1 1 2 2 3 3"]),
        (
            "21_internlm2_to_hf_llama/src",
            vec![
                of_group,
                "q.weight, k.weight: rotary pairs half-split",
                "(the margin numbers the kv groups)",
            ],
        ),
        ("17b_hf_falcon40b_to_separate/src", vec![of_group, "element i of a head rotates with i + 5"]),
        (
            "43_hf_neox_partial_rope_to_gptj/src",
            vec![
                "rotates with i + 4; the last 8 of 16 do not rotate",
                "one head of q.weight: 0 1 2 3 | 0 1 2 3 | · × 8",
            ],
        ),
        (
            "43_hf_neox_partial_rope_to_gptj/dst",
            vec![
                "rotate together; the last 8 of 16 do not rotate",
                "one head of q.weight: 0 0 1 1 2 2 3 3 | · × 8",
            ],
        ),
        (
            "36_hf_codegen_to_gptj_bf16/src",
            vec!["q.weight, k.weight: rotary pairs interleaved", "0 0 1 1 2 2 3 3 | · ·"],
        ),
        (
            "34_hf_gemma_gqa_to_flax_gemma/dst",
            vec![shared, "q.weight head 3: axis 0 3, axis 1 0..40, axis 2 0..8"],
        ),
    ] {
        let said = folder.run(&["inspect", "--picture", &oracle(checkpoint)]).ok().stdout;
        for text in texts {
            assert!(said.contains(text), "{checkpoint}: `{text}` is not in\n{said}");
        }
    }
    // No rotation, nothing to say.
    let said = folder.run(&["inspect", "--picture", &digits()]).ok().stdout;
    assert!(!said.contains("rotary") && !said.contains("kv group"), "{said}");
}

/// A picture of groups: the margin numbers them, along rows and along columns.
#[test]
fn groups_are_drawn() {
    let folder = Folder::new();
    for (layout, tensors, q, _) in arrangements() {
        folder.tensors("in.safetensors", &tensors);
        let args =
            ["inspect", "--from", layout, "--tensor", q, "--svg", "a.svg", "--force", "in.safetensors"];
        let said = folder.run(&[&args[..], &SHAPES].concat()).ok().stdout;
        let svg = std::fs::read_to_string(folder.join("a.svg")).expect("written");
        let margin: String =
            said.lines().filter_map(|line| line.trim().split_once('│')).map(|(group, _)| group).collect();
        let frames = svg.matches("stroke=").count();
        match layout {
            "attention/separate" | "attention/llama-meta" => {
                assert_eq!((margin.as_str(), frames), ("000000000000111111111111", 2), "{said}");
            }
            // All of group 0, then all of group 1: the rows of q, k and v of one group are together.
            "attention/megatron" => {
                assert_eq!((margin.as_str(), frames), ("000000000000111111111111", 2), "{said}");
                assert!(svg.contains("k.weight head 1, kv group 1"), "{svg}");
            }
            // Thirds: the groups of q, then those of k, then those of v.
            "attention/pytorch-fused" => assert_eq!((margin.len(), frames), (24, 6), "{said}"),
            "attention/conv1d" => assert!(said.contains("00000000") && frames == 6, "{said}"),
            // One head: all of it is of its group.
            _ => assert_eq!((margin.as_str(), frames), ("11111111", 1), "{said}"),
        }
        let pairs = svg.matches("rotary pair").count();
        assert_eq!(pairs, if layout == "attention/llama-meta" { 6 } else { 0 }, "{layout}");
    }
}

#[test]
fn the_document_of_one_tensor() {
    let folder = Folder::new();
    let tensor = "model.layers.0.attention.wqkv.weight";
    let args = ["inspect", "--json", "--tensor", tensor, &oracle("21_internlm2_to_hf_llama/src")];
    let found = json(&folder, &args);
    assert_eq!((&found["version"], &found["layout"]), (&1.into(), &"llama/internlm2".into()));
    assert_eq!((&found["tensor"], &found["shape"]), (&tensor.into(), &serde_json::json!([80, 48])));
    assert_eq!(found["groups"], "2 kv groups × (3 query heads + k + v)");
    let parts = found["parts"].as_array().expect("parts");
    let part = |name: &str| parts.iter().find(|part| part["param"] == name).expect(name);
    assert_eq!(part("q.weight")["rotary"]["style"], "half");
    assert_eq!(part("q.weight")["rotary"]["pairs"], serde_json::json!([0, 1, 2, 3, 0, 1, 2, 3]));
    assert_eq!(part("v.weight")["rotary"], Value::Null);
    // Per group three query heads of 8 rows, a key, a value: head 4 is the second of the second group.
    let places = part("q.weight")["places"].as_array().expect("places");
    assert_eq!(places.len(), 6);
    assert_eq!(places[4], serde_json::json!({ "head": 4, "runs": [[[48, 56, 1]], [[0, 48, 1]]] }));
    assert_eq!(part("k.weight")["places"][1]["runs"][0], serde_json::json!([[64, 72, 1]]));
    // One head in all layouts, with runs for programs.
    let head = [&args[..], &["--head", "1", "--part", "v"]].concat();
    let found = json(&folder, &head);
    let own = found.as_array().expect("a list").iter().find(|entry| entry["layout"] == "llama/internlm2");
    assert_eq!(own.expect("its own")["runs"], serde_json::json!([[[72, 80, 1]], [[0, 48, 1]]]));
    assert_eq!(own.expect("its own")["ranges"], serde_json::json!(["72..80", "0..48"]));
}

#[test]
fn the_layout_of_the_source_is_found() {
    let folder = Folder::new();
    let run = folder
        .run(&["--from", "auto", "--to", "hf-flax", &oracle("07_hf_bert_to_tfbert_h5/src"), "out"])
        .ok();
    assert!(run.stderr.contains("--from auto: bert/hf"), "{}", run.stderr);
    // What a conversion recorded is read first.
    let run = folder.run(&["--from", "auto", "--to", "bert/hf", "out", "back.safetensors"]).ok();
    assert!(run.stderr.contains("--from auto: bert/hf-flax"), "{}", run.stderr);
}

/// Gemma and Llama have the same names; the config says which it is.
#[test]
fn the_config_names_the_model() {
    let folder = Folder::new();
    let found = json(&folder, &["inspect", "--json", &oracle("19_hf_llama_to_gguf/src")]);
    assert_eq!(found["layout"], "llama/hf");
    let found = json(&folder, &["inspect", "--json", &oracle("34_hf_gemma_gqa_to_flax_gemma/src")]);
    assert_eq!(found["layout"], "gemma/hf");
    // Without a config nothing tells them apart.
    std::fs::copy(oracle("19_hf_llama_to_gguf/src/model.safetensors"), folder.join("bare.safetensors"))
        .expect("a copy");
    let found = json(&folder, &["inspect", "--json", "--axis", "h=6", "--axis", "g=2", "bare.safetensors"]);
    assert_eq!(found["layout"], Value::Null);
}

#[test]
fn several_layouts_that_fit_are_a_question() {
    let folder = Folder::new();
    let text = mapping(
        "two",
        serde_json::json!({
            "h": { "role": "query heads" }, "d": { "role": "head size" }, "e": "width",
        }),
        serde_json::json!({ "q": "h d e", "k": "h d e" }),
        serde_json::json!({
            "blocks": { "tensors": { "qk": "(q: h d + k: h d) e" } },
            "turned": { "tensors": { "qk": "(k: h d + q: h d) e" } },
            "heads": { "tensors": { "qk": "(h (q: d + k: d)) e" } },
            "again": { "like": "heads", "about": "the same" },
        }),
    );
    folder.put("two.json", text);
    folder.tensors("in.safetensors", &Tensors::from([("qk".to_owned(), Tensor::index(&[48, 20], 0))]));
    let common = ["--mapping", "two.json", "--axis", "h=3"];
    let said = folder.run(&[&["inspect"][..], &common, &["in.safetensors"]].concat()).ok().stdout;
    assert!(
        said.contains("one of these") && said.contains("two/blocks") && said.contains("two/turned"),
        "{said}"
    );
    assert!(said.contains("two/again (the same here as heads)"), "{said}");
    folder
        .run(
            &[&["--from", "auto", "--to", "two/heads"][..], &common, &["in.safetensors", "out.safetensors"]]
                .concat(),
        )
        .fails(&[
            "two/again (1 of 1 tensors), two/blocks (1 of 1 tensors), two/turned (1",
            "--from two/again",
        ]);
    // With a name it is as ever, and the head lies where the layout says: k of head 1 in heads of q and k.
    let args = [
        &["inspect", "--from", "heads", "--tensor", "qk", "--head", "1", "--part", "k"][..],
        &common,
        &["in.safetensors"],
    ]
    .concat();
    let said = folder.run(&args).ok().stdout;
    assert!(said.contains("two/heads  k head 1: qk [24..32] [0..20]"), "{said}");
    assert!(said.contains("two/blocks  k head 1: qk [32..40] [0..20]"), "{said}");
    folder.tensors("other.safetensors", &Tensors::from([("x".to_owned(), Tensor::index(&[3], 0))]));
    folder
        .run(&[
            "--from",
            "auto",
            "--to",
            "two/heads",
            "--mapping",
            "two.json",
            "other.safetensors",
            "o.safetensors",
        ])
        .fails(&["no known layout explains", "other.safetensors"]);
}

#[test]
fn trained_weights_speak_for_their_layout() {
    let folder = Folder::new();
    let said = folder.run(&["inspect", "--evidence", &digits()]).ok().stdout;
    assert!(said.contains("the weights agree with the declared layout"), "{said}");
    // The same weights under names that say that heads are interleaved.
    let mut tensors = kit::read(&kit::digits());
    let renamed: Tensors = std::mem::take(&mut tensors)
        .into_iter()
        .map(|(key, tensor)| {
            let key = key.replace("in_proj_", "query_key_value.").replace("out_proj", "dense");
            (key, tensor)
        })
        .collect();
    folder.tensors("neox.safetensors", &renamed);
    let args = ["inspect", "--evidence", "--from", "attention/neox", "--axis", "h=4", "neox.safetensors"];
    let said = folder.run(&args).ok().stdout;
    // Three small modules are too few to contradict, and enough to say which would be better.
    let better = "(h (q + k + v)) is declared; (q + k + v) or (k + q + v) explains the fused q, k, v better by 161 nats";
    assert!(said.contains(better), "{said}");
}

/// What an earlier conversion recorded counts for one tensor as it does for the whole file.
#[test]
fn a_head_is_found_by_the_recorded_sizes() {
    let folder = Folder::new();
    let convert =
        ["--from", "attention/pytorch-fused", "--to", "attention/timm", "--axis", "h=4", "--verify", "none"];
    folder.run(&[&convert[..], &[&digits(), "timm.safetensors"]].concat()).ok();
    let args = ["inspect", "--tensor", "encoder.layers.1.self_attn.qkv.weight", "--head", "2", "--part", "k"];
    let said = folder.run(&[&args[..], &["timm.safetensors"]].concat()).ok().stdout;
    assert!(
        said.contains(
            "attention/timm  k.weight head 2: encoder.layers.1.self_attn.qkv.weight [90..105] [0..60]"
        ),
        "{said}"
    );
    assert!(said.contains("attention/pytorch-fused  k.weight head 2: "), "{said}");
}

/// Tensors of one rule and shape, in two types: each is told as it is.
#[test]
fn a_tensor_is_told_by_its_own_type() {
    let folder = Folder::new();
    let mut tensors = Tensors::new();
    for (module, dtype, width) in [("a", "F32", 4), ("b", "F16", 2)] {
        for (name, shape) in [("in_proj_weight", [36, 8]), ("out_proj.weight", [8, 12])] {
            let bytes = vec![0; (shape[0] * shape[1] * width) as usize];
            tensors.insert(format!("{module}.{name}"), Tensor::new(dtype, &shape, bytes));
        }
    }
    folder.tensors("two.safetensors", &tensors);
    for (key, dtype) in [("a.in_proj_weight", "F32"), ("b.in_proj_weight", "F16")] {
        let args = [
            "inspect",
            "--from",
            "attention/pytorch-fused",
            "--axis",
            "h=3",
            "--axis",
            "g=3",
            "--json",
            "--tensor",
            key,
        ];
        let found = json(&folder, &[&args[..], &["two.safetensors"]].concat());
        assert_eq!((&found["tensor"], &found["dtype"]), (&key.into(), &dtype.into()));
    }
}
