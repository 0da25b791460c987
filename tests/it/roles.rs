//! Roles: what is found by them does not depend on any text, and what nothing tells is not made up.

use std::sync::Arc;

use qkvconv::bind::AxisSizes;
use qkvconv::inspect::{Seen, draw, example, part};
use qkvconv::lint;
use qkvconv::mapping::key::Captures;
use qkvconv::mapping::role::ParamRole;
use qkvconv::mapping::{Layout, Mapping, Rule, builtin, read};
use qkvconv::span::Source;
use serde_json::{Value, json};

use crate::kit::{Folder, Nobody, Tensor, Tensors, borrowed, mapping, of_shapes};

/// Replaces what is written for readers: every `about`, and every axis that is a text alone. The order of the file stays.
fn without_words(text: &str) -> String {
    let (mut number, mut in_axes) = (0, false);
    // Replaces the string that begins behind a place.
    let mut replace = |line: &str, at: usize| {
        let start = at + line[at..].find('"').expect("a string");
        let quoted = line[start + 1..].char_indices().scan(false, |escaped, (at, c)| {
            let ends = c == '"' && !*escaped;
            *escaped = c == '\\' && !*escaped;
            Some((at, ends))
        });
        let length = quoted.into_iter().find(|(_, ends)| *ends).expect("its end").0;
        number += 1;
        let words = format!("Kopfzahl {number}: all heads; key/value head size of v that rotate, layers");
        format!("{}{words}{}", &line[..=start], &line[start + 1 + length..])
    };
    let lines = text.lines().map(|line| {
        let mut line = line.to_owned();
        if line == "  \"axes\": {" {
            in_axes = true;
        } else if line.starts_with("  }") {
            in_axes = false;
        }
        let mut from = 0;
        while let Some(at) = line[from..].find("\"about\":") {
            from += at + "\"about\":".len();
            line = replace(&line, from);
        }
        let value = line.find(':').map(|at| at + 1);
        match value.filter(|at| in_axes && line[*at..].trim_start().starts_with('"')) {
            Some(at) => replace(&line, at),
            None => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn parse(name: &str, text: String) -> Mapping {
    read(&Arc::new(Source { name: name.into(), text })).unwrap_or_else(|errors| panic!("{errors}"))
}

/// What `inspect` and pictures say of a rule's tensor but for words.
fn seen(mapping: &Mapping, layout: &Layout, rule: &Rule, sizes: &AxisSizes) -> String {
    let captures = Captures {
        indices: rule.template.axes().map(|axis| (axis.into(), 0)).collect(),
        ..Captures::default()
    };
    let params = rule.expr.params();
    let own = params.iter().map(|param| ((*param).to_owned(), sizes.clone())).collect();
    let seen = Seen::of(mapping, layout, rule, &captures, own);
    let Some(shape) = seen.shape() else { return String::new() };
    let parts: Vec<_> = params.iter().map(|param| part(&seen, param, &shape)).collect();
    format!("{shape:?} {parts:?} {:?}", draw(&seen, &shape, (40, 24)))
}

#[test]
fn no_text_decides_anything() {
    for family in builtin::names() {
        let original = builtin::family(family).expect("is there");
        let rewritten = parse(family, without_words(&original.source.text));
        assert_eq!(format!("{:?}", original.roles()), format!("{:?}", rewritten.roles()), "{family}");
        for (layout, other) in original.layouts.values().zip(rewritten.layouts.values()) {
            let sizes = example(&original, &[layout], &AxisSizes::new());
            assert_eq!(sizes, example(&rewritten, &[other], &AxisSizes::new()), "{family}/{}", layout.name);
            for (rule, same) in layout.rules.iter().zip(&other.rules) {
                let name = || format!("{family}/{}: {}", layout.name, rule.template);
                assert_eq!(
                    seen(&original, layout, rule, &sizes),
                    seen(&rewritten, other, same, &sizes),
                    "{}",
                    name()
                );
            }
        }
    }
}

#[test]
fn no_text_decides_what_check_finds() {
    for family in ["tft", "moonvit"] {
        let original = builtin::family(family).expect("is there");
        let report = |text: String| {
            let source = Arc::new(Source { name: family.into(), text });
            let report = lint::check(&source, 2, &Nobody).unwrap_or_else(|errors| panic!("{errors}"));
            format!(
                "{:?} {:?} {:?} {}",
                report.sizes,
                report.computed,
                report.unchecked,
                report.findings.len()
            )
        };
        let text = original.source.text.clone();
        assert_eq!(report(without_words(&text)), report(text), "{family}");
    }
}

#[test]
fn no_text_decides_what_inspect_says() {
    let folder = Folder::new();
    for (family, checkpoint) in [
        ("llama", "18_hf_llama_to_meta_llama/dst"),
        ("llama", "21_internlm2_to_hf_llama/src"),
        ("gpt-neox", "43_hf_neox_partial_rope_to_gptj/src"),
    ] {
        let original = builtin::family(family).expect("is there");
        folder.put("other.json", without_words(&original.source.text));
        let path = format!("{}/tests/oracles/{checkpoint}", env!("CARGO_MANIFEST_DIR"));
        let told = |more: &[&str]| -> Value {
            let args = [&["inspect", "--json", &path][..], more].concat();
            let mut found: Value = serde_json::from_str(&folder.run(&args).ok().stdout).expect("JSON");
            for kind in found["kinds"].as_array_mut().expect("kinds") {
                kind["dims"] = Value::Null;
            }
            for size in found["sizes"].as_array_mut().expect("sizes") {
                // A rule's place has the name of its file.
                let origin = size["origin"].as_str().expect("an origin");
                size["origin"] = origin.replace(&format!("mappings/{family}.json"), "other.json").into();
            }
            found
        };
        let (first, second) = (told(&[]), told(&["--mapping", "other.json"]));
        for field in ["layout", "sizes", "kinds", "unexplained"] {
            assert_eq!(first[field], second[field], "{checkpoint}: {field}");
        }
        let parts =
            first["kinds"].as_array().expect("kinds").iter().flat_map(|kind| kind["parts"].as_array());
        assert!(
            parts.flatten().any(|part| [3, 4, 6].iter().any(|heads| part["heads"] == *heads)),
            "{checkpoint}"
        );
    }
}

/// What `forward` names as q, k, v and output projection has that role, and so `mapping check` can hold expressions against
/// `forward` in the canonical order.
#[test]
fn built_in_attention_has_roles() {
    let mut wrong = Vec::new();
    for family in builtin::names() {
        let mapping = builtin::family(family).expect("is there");
        let roles = mapping.roles();
        for (name, param) in &mapping.params {
            let stem = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".bias")).unwrap_or(name);
            let expected = match stem.rsplit('.').next() {
                Some("q") => ParamRole::Q,
                Some("k") => ParamRole::K,
                Some("v") => ParamRole::V,
                Some("o") => ParamRole::O,
                _ => continue,
            };
            let has_heads =
                param.axes.iter().any(|axis| roles.axis(axis).is_some_and(|role| role.is_heads()));
            let known = roles.param(name);
            let is_right = known.is_some_and(|known| {
                known.role == expected && known.is_told && known.is_bias == name.ends_with(".bias")
            });
            // The mask decoder of SAM has its heads in no axis.
            if !is_right && (has_heads || known.is_some()) {
                wrong.push(format!("{family} {name}: {known:?}"));
            }
        }
        for (name, axis) in &mapping.axes {
            if let (Some(given), Some(found)) = (axis.role, roles.axis(name)) {
                assert_eq!(given, found, "{family} {name}");
            } else if roles.axis(name).is_some_and(|role| role.is_heads() || role.is_head_size()) {
                wrong.push(format!("{family}: the axis {name} has no role in the file"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The width of SAM's mask decoder is all heads together: nothing says how many.
#[test]
fn a_width_is_no_head() {
    let folder = Folder::new();
    let shapes: Vec<(String, Vec<u64>)> =
        ["q", "k", "v"].iter().map(|part| (format!("decoder.{part}"), vec![18, 5])).collect();
    folder.tensors("in.safetensors", &of_shapes(&borrowed(&shapes)));
    let text = mapping(
        "sam-like",
        json!({ "s": "width of its self-attention, all heads", "c": { "role": "width", "about": "heads" } }),
        json!({ "q": "s c", "k": "s c", "v": "s c" }),
        json!({ "one": { "tensors": { "decoder.q": "q: s c", "decoder.k": "k: s c", "decoder.v": "v: s c" } } }),
    );
    folder.put("m.json", text);
    let inspect = |more: &[&str]| {
        let args = ["inspect", "--mapping", "m.json", "--from", "sam-like/one", "in.safetensors"];
        folder.run(&[&args[..], more].concat())
    };
    let found: Value = serde_json::from_str(&inspect(&["--json"]).ok().stdout).expect("JSON");
    for kind in found["kinds"].as_array().expect("kinds") {
        assert_eq!(kind["parts"][0]["heads"], Value::Null, "{kind}");
    }
    let names = folder.names();
    let save = ["--tensor", "decoder.q", "--head", "1", "--save", "a.npy"];
    inspect(&save).fails(&["no axis of `q` is one of heads", "query heads", "`s c`"]);
    assert_eq!(folder.names(), names);
    // The built-in file too.
    let sam = builtin::family("sam").expect("is there");
    for (name, param) in &sam.params {
        let in_decoder = name.starts_with("decoder.") || name.starts_with("final.");
        assert!(!in_decoder || sam.head_axis(name).is_none(), "{name}: {:?}", param.axes);
    }
    assert_eq!((sam.head_axis("q.weight"), sam.head_axis("k.weight")), (Some("h"), Some("g")));
}

/// A fused tensor in thirds needs no number of heads to be converted; to point at a head it is needed.
#[test]
fn an_open_number_of_heads_is_not_made_up() {
    let folder = Folder::new();
    folder.tensors(
        "in.safetensors",
        &of_shapes(&[("a.in_proj_weight", &[36, 7]), ("a.out_proj.weight", &[7, 12])]),
    );
    let text = mapping(
        "thirds",
        json!({ "h": { "role": "query heads", "about": "Köpfe" }, "d": { "role": "head size" }, "e": "width" }),
        json!({ "q": "h d e", "k": "h d e", "v": "h d e", "o": "e h d" }),
        json!({ "fused": {
            "tensors": { "a.in_proj_weight": "(q: h d + k: h d + v: h d) e", "a.out_proj.weight": "o: e (h d)" },
            "config": { "h": "n_heads" },
        } }),
    );
    folder.put("m.json", text);
    let inspect = |more: &[&str]| {
        let args = ["inspect", "--mapping", "m.json", "--from", "thirds/fused", "in.safetensors"];
        folder.run(&[&args[..], more].concat())
    };
    let found: Value = serde_json::from_str(&inspect(&["--json"]).ok().stdout).expect("JSON");
    assert_eq!(found["kinds"].as_array().map(Vec::len), Some(2), "{found}");
    for kind in found["kinds"].as_array().expect("kinds") {
        for part in kind["parts"].as_array().expect("parts") {
            assert_eq!(part["heads"], Value::Null, "{kind}");
        }
    }
    let said = inspect(&["--picture"]).ok().stdout;
    assert!(!said.contains(" head 3") && said.contains("(size not known)"), "{said}");
    let open = ["--tensor", "a.in_proj_weight", "--part", "k", "--head", "2"];
    let help = ["the size of `h` is open (Köpfe)", "--axis h=N", "`n_heads`"];
    inspect(&open).fails(&help);
    let names = folder.names();
    inspect(&[&open[..], &["--save", "a.npy"]].concat()).fails(&help);
    assert_eq!(folder.names(), names);
    let said = inspect(&[&open[..], &["--axis", "h=3"]].concat()).ok().stdout;
    assert!(said.contains("a.in_proj_weight [20..24] [0..7]"), "{said}");
}

/// With pairs of 2 elements a head of 2 rows can be one head of 2 alone.
#[test]
fn a_size_that_can_be_one_number_alone_is_taken() {
    let folder = Folder::new();
    let text = mapping(
        "small",
        json!({
            "h": { "role": "query heads" }, "d": { "is": "c f", "role": "head size" },
            "c": { "size": 2, "role": "rotary halves" }, "f": { "role": "rotary pairs" }, "e": "width",
        }),
        json!({ "q": "h d e" }),
        json!({
            "half": { "tensors": { "q": "q: (h d) e" } },
            "apart": { "axes": { "d": "f c" }, "tensors": { "q": "q: h d e" } },
        }),
    );
    folder.put("m.json", text);
    folder.tensors("in.safetensors", &of_shapes(&[("q", &[2, 7])]));
    folder.tensors("more.safetensors", &of_shapes(&[("q", &[4, 7])]));
    let said =
        folder.run(&["inspect", "--mapping", "m.json", "--from", "half", "in.safetensors"]).ok().stdout;
    assert!(said.contains("d = 2") && said.contains("from the only value that fits"), "{said}");
    let convert = ["--mapping", "m.json", "--from", "half", "--to", "apart"];
    folder.run(&[&convert[..], &["in.safetensors", "out.safetensors"]].concat()).ok();
    let tensors: Tensors = crate::kit::read(&folder.join("out.safetensors"));
    let shape = |tensor: &Tensor| tensor.shape.clone();
    assert_eq!(shape(&tensors["q"]), [1, 2, 7]);
    // Two sizes fit: none is taken.
    folder
        .run(&[&convert[..], &["more.safetensors", "out2.safetensors"]].concat())
        .fails(&["the size of `d` is open", "2, 4"]);
}
