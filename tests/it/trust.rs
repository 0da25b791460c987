//! What a conversion believes of its source: what the file records, and what the weights themselves say.

use serde_json::Value;

use crate::kit::{self, Folder, Tensor, Tensors, read};

fn digits() -> Tensors {
    read(&kit::digits())
}

/// Puts the rows of every fused weight and bias in another order.
fn shuffled(order: impl Fn(usize) -> usize) -> Tensors {
    let mut tensors = digits();
    for (key, tensor) in &mut tensors {
        if !key.contains("in_proj_") {
            continue;
        }
        let rows = tensor.shape[0] as usize;
        let values = tensor.values();
        let width = values.len() / rows;
        let moved = (0..rows).flat_map(|at| values[order(at) * width..][..width].to_vec());
        *tensor = Tensor::f32(&tensor.shape, moved.collect::<Vec<_>>());
    }
    tensors
}

/// As GPT-NeoX stores it: q, k and v of one of four heads after the other, 15 rows each.
fn per_head(at: usize) -> usize {
    at / 15 % 3 * 60 + at / 45 * 15 + at % 15
}

const CONVERT: [&str; 6] =
    ["--from", "attention/pytorch-fused", "--to", "attention/separate", "--axis", "h=4"];

fn with(more: &[&str]) -> Vec<String> {
    CONVERT.iter().chain(more).map(|text| (*text).to_owned()).collect()
}

#[test]
fn weights_that_contradict_the_layout_stop_a_conversion() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &shuffled(per_head));
    let stop = |more: &[&str]| {
        let run = folder.run(&with(more)).fails(&["evidence/contradicts", "--trust-layout"]);
        assert_eq!(folder.names(), ["in.safetensors"]);
        run
    };
    let run = stop(&["in.safetensors", "out.safetensors"]);
    for text in [
        "file: in.safetensors",
        "tensor: encoder.layers.0.self_attn.in_proj_weight",
        "expected: the fused q, k, v as (q + k + v), as attention/pytorch-fused declares it",
        "found: (h (q + k + v)) or (h (k + q + v)) explains them better by",
        "inspect --evidence --from attention/pytorch-fused",
    ] {
        assert!(run.stderr.contains(text), "`{text}` is not in\n{}", run.stderr);
    }
    stop(&["--dry-run", "in.safetensors", "out.safetensors"]);
    stop(&["--verify", "readback", "in.safetensors", "out.safetensors"]);

    folder.run(&with(&["--trust-layout", "in.safetensors", "out.safetensors"])).ok();
    let run =
        folder.run(&[&["verify".to_owned()], &with(&["in.safetensors", "out.safetensors"])[..]].concat());
    run.fails(&["evidence/contradicts"]);
    folder
        .run(
            &[&["verify".to_owned()], &with(&["--trust-layout", "in.safetensors", "out.safetensors"])[..]]
                .concat(),
        )
        .ok();
    folder.run(&with(&["--verify", "none", "in.safetensors", "unchecked.safetensors"])).ok();
    assert_eq!(read(&folder.join("out.safetensors")), read(&folder.join("unchecked.safetensors")));
}

#[test]
fn weights_that_agree_or_abstain_are_reported() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &digits());
    let report = |more: &[&str]| -> (String, Value) {
        let run = folder.run(&with(
            &[more, &["--force", "--report", "r.json", "in.safetensors", "out.safetensors"]].concat(),
        ));
        let text = std::fs::read_to_string(folder.join("r.json")).expect("a report");
        (run.ok().stderr, serde_json::from_str(&text).expect("JSON"))
    };
    let (said, document) = report(&[]);
    assert!(said.contains("evidence: the weights agree with the declared layout"), "{said}");
    let evidence = &document["verification"]["evidence"];
    assert_eq!(evidence["verdict"], "the weights agree with the declared layout");
    let fused = &evidence["questions"][0];
    assert_eq!((&fused["weighed"], &fused["declared"]), (&3.into(), &"(q + k + v)".into()));
    let (_, document) = report(&["--trust-layout"]);
    assert_eq!(document["verification"]["evidence"], Value::Null);

    // An order without any trace: a stride of 77 meets all 180 rows.
    folder.tensors("in.safetensors", &shuffled(|at| at * 77 % 180));
    let (said, _) = report(&[]);
    assert!(said.contains("evidence: the weights tell nothing"), "{said}");
}

#[test]
fn a_recorded_size_is_believed_in_every_format() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &digits());
    for name in ["a.safetensors", "a.bin", "a.npz", "a.h5", "a.gguf"] {
        folder.run(&with(&["in.safetensors", name])).ok();
        let back = |more: &[&str]| {
            let common =
                ["--from", "attention/separate", "--to", "pytorch-fused", "--force", name, "b.safetensors"];
            folder.run(&[&common[..], more].concat())
        };
        back(&[]).ok();
        let run = back(&["--axis", "h=6", "--axis", "d=15", "--axis", "e=30"]);
        let run = run.fails(&["identity/axis", name, "`h` = 4, as recorded", "--axis h=6", "--trust-layout"]);
        assert!(run.stderr.contains("`e` = 60") && run.stderr.contains("2 errors"), "{}", run.stderr);
        back(&["--axis", "h=6", "--trust-layout"]).ok();
        let auto =
            ["--from", "auto", "--to", "attention/pytorch-fused", "--axis", "h=6", name, "c.safetensors"];
        folder.run(&auto).fails(&["identity/axis", "`h` = 4, as recorded"]);
        let inspect = ["inspect", "--from", "attention/separate", "--axis", "h=6", name];
        folder.run(&inspect).fails(&["identity/axis", "`h` = 4, as recorded"]);
        let said = folder.run(&[&inspect[..], &["--trust-layout"]].concat()).ok().stdout;
        assert!(said.contains("h = 6"), "{said}");
    }
}

#[test]
fn another_mapping_file_than_the_recorded_one_is_told() {
    let folder = Folder::new();
    let text = |about: &str| {
        crate::kit::mapping(
            "toy",
            serde_json::json!({ "h": about, "d": "size", "e": "width" }),
            serde_json::json!({ "q": "h d e" }),
            serde_json::json!({
                "rows": { "tensors": { "q": "(h d) e" } },
                "heads": { "tensors": { "q.{h}": "q: d e" } },
            }),
        )
        .replace("\"q\":\"(h d) e\"", "\"q\":\"q: (h d) e\"")
    };
    folder.put("toy.json", text("heads"));
    folder.tensors("in.safetensors", &Tensors::from([("q".to_owned(), Tensor::index(&[15, 8], 0))]));
    let common = ["--mapping", "toy.json", "--force"];
    let run = |args: &[&str]| folder.run(&[args, &common].concat()).ok().stderr;
    let forth =
        run(&["--from", "toy/rows", "--to", "toy/heads", "--axis", "h=3", "in.safetensors", "a.safetensors"]);
    assert!(!forth.contains("identity/mapping"), "{forth}");
    let back = ["--from", "toy/heads", "--to", "toy/rows", "a.safetensors", "b.safetensors"];
    assert!(!run(&back).contains("identity/mapping"));
    folder.put("toy.json", text("query heads"));
    let said = run(&back);
    assert!(
        said.contains("warning[identity/mapping]") && said.contains("`toy/heads` may have changed"),
        "{said}"
    );
    assert_eq!(read(&folder.join("b.safetensors")), read(&folder.join("in.safetensors")));
}
