//! `qkvconv mapping check`: what it finds in a mapping file without a checkpoint, and against names and shapes.

use std::sync::{Arc, Mutex};

use qkvconv::lint::{Report, check};
use qkvconv::mapping::builtin;
use qkvconv::span::Source;
use serde_json::{Value, json};

use crate::kit::{Folder, Nobody, Tensor, Tensors, mapping, two_at_a_time};

fn checked(name: &str, text: &str) -> Result<Report, qkvconv::diag::Errors> {
    let source = Arc::new(Source { name: name.into(), text: text.into() });
    check(&source, 1, &Nobody)
}

fn codes(report: &Report) -> Vec<&'static str> {
    report.findings.iter().map(|finding| finding.diagnostic.code.as_str()).collect()
}

fn builtin_text(family: &str) -> String {
    let path = format!("{}/mappings/{family}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("readable")
}

/// Attention in two layouts, one of them fused; heads, key/value heads and head sizes that differ.
fn attention(fused: &str, forward: Option<&Value>) -> String {
    let mut layout = json!({ "tensors": { "l.{l}.qkv": fused, "l.{l}.out": "o.weight: e (h dv)" } });
    if let Some(forward) = forward {
        layout["forward"] = forward.clone();
    }
    mapping(
        "mine",
        json!({
            "l": "layers", "h": { "is": "g r", "role": "query heads" }, "g": { "role": "kv heads" },
            "r": "query heads of each", "d": { "is": "(c f) + u" }, "c": { "size": 2, "role": "rotary halves" },
            "f": "", "u": "", "dv": "", "e": "width",
        }),
        json!({
            "q.weight": { "axes": "l h d e", "role": "q" }, "k.weight": { "axes": "l g d e", "role": "k" },
            "v.weight": { "axes": "l g dv e", "role": "v" }, "o.weight": { "axes": "l e h dv", "role": "o" },
        }),
        json!({ "fused": layout }),
    )
}

fn fused_forward(cut: &str, rotary: &Value) -> Value {
    json!({
        "source": "a test's",
        "qkv": { "weight": "l.{l}.qkv", "apply": "linear", "cut": cut, "order": "q k v" },
        "out": { "weight": "l.{l}.out", "apply": "linear" },
        "rotary": rotary,
    })
}

#[test]
fn every_built_in_file_is_right() {
    let wrong = Mutex::new(Vec::new());
    // The largest first, so that both threads end together.
    let mut families: Vec<&str> = builtin::names().collect();
    families.sort_by_key(|name| std::cmp::Reverse(builtin_text(name).len()));
    two_at_a_time(families, &|family| {
        let report = checked(family, &builtin_text(family)).expect("it can be read");
        let errors = report
            .findings
            .iter()
            .filter(|finding| finding.diagnostic.severity == qkvconv::diag::Severity::Error);
        let errors = errors.map(|finding| format!("{family}: {:?}", finding.diagnostic));
        wrong.lock().expect("not poisoned").extend(errors);
        assert!(report.pairs >= report.layouts.len().pow(2) / 2, "{family}: {:?}", report.unchecked);
        println!("{family}: {} pairs, {} models; {:?}", report.pairs, report.models, report.unchecked);
    });
    let wrong = wrong.into_inner().expect("not poisoned");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_layout_alone_is_held_against_its_own_forward() {
    let rotary = json!({ "style": "half", "dims": "2 * f" });
    let blocks = "(q.weight: h d + k.weight: g d + v.weight: g dv) e";
    let right = checked("m", &attention(blocks, Some(&fused_forward("blocks", &rotary)))).expect("reads");
    assert!(right.is_right(), "{:?}", right.findings);
    assert_eq!((right.pairs, right.computed.as_slice()), (3, &["fused".to_owned()][..]));

    for (what, fused, cut, rotary) in [
        ("q and k exchanged", "(k.weight: g d + q.weight: h d + v.weight: g dv) e", "blocks", &rotary),
        (
            "heads and head size exchanged",
            "(q.weight: d h + k.weight: g d + v.weight: g dv) e",
            "blocks",
            &rotary,
        ),
        ("groups, read as blocks", "(g (q.weight: r d + k.weight: d + v.weight: dv)) e", "blocks", &rotary),
        ("blocks, read as groups", blocks, "per group", &rotary),
        ("transposed", "e (q.weight: h d + k.weight: g d + v.weight: g dv)", "blocks", &rotary),
    ] {
        let report = checked("m", &attention(fused, Some(&fused_forward(cut, rotary)))).expect("reads");
        assert_eq!(codes(&report), ["lint/forward"], "{what}: {:?}", report.findings);
        let found = &report.findings[0];
        if !found.diagnostic.message.contains("cannot be computed") {
            assert!(!found.picture.is_empty(), "{what}");
        }
    }
    // Without `forward` nothing contradicts a consistent exchange, and the report says so.
    let silent = checked("m", &attention("(k.weight: g d + q.weight: h d + v.weight: g dv) e", None));
    let silent = silent.expect("reads");
    assert!(silent.is_right());
    assert_eq!(silent.unchecked, ["`fused` does not say how it computes (`forward`)"]);
}

/// What only the order of a fused tensor tells cannot be held against that order: the role is asked for.
#[test]
fn a_fused_tensor_alone_is_asked_for_roles() {
    let blocks = "(q.weight: h d + k.weight: g d + v.weight: g dv) e";
    let rotary = json!({ "style": "half", "dims": "2 * f" });
    let text = attention(blocks, Some(&fused_forward("blocks", &rotary)));
    let mut text: Value = serde_json::from_str(&text).expect("JSON");
    for param in text["params"].as_object_mut().expect("a map").values_mut() {
        *param = param["axes"].clone();
    }
    text["axes"]["c"] = json!({ "size": 2 });
    let report = checked("m", &text.to_string()).expect("reads");
    assert!(report.is_right(), "{:?}", report.findings);
    assert_eq!(codes(&report), ["lint/role"; 4], "{:?}", report.findings);
    let words: Vec<String> =
        report.findings.iter().map(|finding| format!("{:?}", finding.diagnostic)).collect();
    for expected in ["`q.weight` is q", "`k.weight` is k", "`v.weight` is v", "`c` stands in a head"] {
        assert!(words.iter().any(|words| words.contains(expected)), "{expected}: {words:?}");
    }
}

/// The picture shows where an element is by the expression, and where `forward` reads it.
#[test]
fn the_counter_example_is_a_picture() {
    let folder = Folder::new();
    let fused = "(q.weight: d h + k.weight: g d + v.weight: g dv) e";
    folder.put("m.json", attention(fused, Some(&fused_forward("blocks", &json!("none")))));
    let run = folder.run(&["mapping", "check", "m.json"]);
    run_fails_with_picture(&run.stdout);
    run.fails(&[
        "lint/forward",
        "the expressions of `fused` contradict its `forward`",
        "where `forward` reads it",
        "by the expression",
        "its `forward`",
    ]);
}

fn run_fails_with_picture(stdout: &str) {
    let rows: Vec<&str> = stdout.lines().filter(|line| line.contains("row ")).collect();
    assert!(rows.iter().any(|row| row.contains("[q")), "{stdout}");
    assert!(rows.iter().any(|row| row.contains("<q")), "{stdout}");
}

/// Where three layouts say how they compute and one is wrong, that one is named though all are compared.
#[test]
fn the_wrong_layout_is_named() {
    let text = builtin_text("bloom");
    let right = "(h (q.weight: d + k.weight: d + v.weight: dv)) e";
    assert!(text.contains(right), "the file changed");
    let report =
        checked("bloom", &text.replacen(right, "(h (k.weight: d + q.weight: d + v.weight: dv)) e", 1));
    let report = report.expect("reads");
    let messages: Vec<&str> =
        report.findings.iter().map(|finding| finding.diagnostic.message.as_str()).collect();
    // `hf` and those that take it over.
    assert!(messages.iter().all(|message| message.contains("hf")), "{messages:?}");
    assert!(messages[0].starts_with("the expressions of `hf` contradict"), "{messages:?}");
}

/// What the text alone tells.
#[test]
fn mistakes_of_the_text_are_found() {
    let file = |params: Value, layouts: Value| {
        mapping("mine", json!({ "l": "layers", "h": "heads", "d": "size", "e": "width" }), params, layouts)
    };
    let params = json!({ "q": "l h d e", "k": { "axes": "l h d e", "optional": true } });
    for (code, layouts) in [
        ("lint/no-place", json!({ "a": { "tensors": { "l.{l}.k": "k: (h d) e" } } })),
        ("lint/same-name", json!({ "a": { "tensors": { "q.{l}": "q: (h d) e", "q.{h}": "k: l d e" } } })),
    ] {
        let report = checked("m", &file(params.clone(), layouts)).expect("reads");
        assert!(codes(&report).contains(&code), "{code}: {:?}", report.findings);
        assert!(!report.is_right(), "{code}");
    }
    let with = |expression: &str| {
        checked("m", &file(params.clone(), json!({ "a": { "tensors": { "l.{l}.q": expression } } })))
    };
    assert!(
        with("q: l (h d) e").is_ok_and(|report| !report.is_right()),
        "layers in the name and in the shape"
    );
    assert!(with("q: d e").is_err(), "heads nowhere");
    for (code, axes, layouts) in [
        ("lint/unused-axis", json!({ "z": "nothing" }), json!({ "l.{l}.q": "q: (h d) e" })),
        ("lint/unused-param", json!({}), json!({ "l.{l}.q": "q: (h d) e" })),
        ("lint/ambiguous", json!({}), json!({ "a.{*m}.{l}.q": "q: (h d) e", "{*m}.b.{l}.q": "k: (h d) e" })),
    ] {
        let mut text: Value =
            serde_json::from_str(&file(params.clone(), json!({ "a": { "tensors": layouts } })))
                .expect("JSON");
        for (name, axis) in axes.as_object().expect("a map") {
            text["axes"][name] = axis.clone();
        }
        let report = checked("m", &text.to_string()).expect("reads");
        assert!(codes(&report).contains(&code), "{code}: {:?}", report.findings);
    }
    let shown = checked(
        "m",
        &file(
            json!({ "q": "l h d e" }),
            json!({
                "a": { "tensors": { "l.{l}.q": "q: (h d) e" }, "when": { "x": true } },
                "b": { "tensors": { "l.{l}.q": "q: e (h d)" } },
            }),
        ),
    );
    let shown = shown.expect("reads");
    assert!(shown.is_right() && shown.findings.is_empty(), "{:?}", shown.findings);
    // Two layouts with each other and themselves, and both with the canonical order.
    assert_eq!((shown.pairs, shown.models), (8, 8));
}

#[test]
fn a_file_that_extends_a_family_is_tried_with_its_layouts() {
    let folder = Folder::new();
    let layout = |k: &str| {
        json!({
            "format": 1, "extends": "olmo2", "layouts": { "mine": { "like": "hf", "about": "mine", "tensors": {
                "model.layers.{l}.self_attn.k_proj.weight": k,
            } } },
        })
        .to_string()
    };
    folder.put("right.json", layout("k.weight: (g d) e"));
    folder.put("wrong.json", layout("k.weight: (d g) e"));
    let run = folder.run(&["mapping", "check", "right.json"]).ok();
    assert!(run.stdout.contains("1 layout and 2 of the built-in family: mine"), "{}", run.stdout);
    folder.run(&["mapping", "check", "wrong.json"]).fails(&["the expressions of `mine` contradict"]);
    let run = folder.run(&["mapping", "check", "--json", "wrong.json"]);
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!((run.code, &report["right"], &report["family"]), (1, &json!(false), &json!("olmo2")));
    assert_eq!(report["findings"][0]["code"], "lint/forward");
    assert_eq!(report["findings"][0]["place"]["text"], "k.weight: (d g) e");
}

/// Names and shapes of a small model, in each form that needs no weights.
#[test]
fn a_layout_is_held_against_names_and_shapes() {
    let folder = Folder::new();
    let file = mapping(
        "mine",
        json!({ "l": "layers", "h": "heads", "d": "size", "e": "width" }),
        json!({ "q": "l h d e", "b": { "axes": "l h d", "optional": true } }),
        json!({
            "flat": { "tensors": { "l.{l}.q_proj.weight": "q: (h d) e", "l.{l}.q_proj.bias": "b: (h d)" } },
            "heads": { "tensors": { "l.{l}.q.weight": "q: h d e", "l.{l}.q.bias": "b: h d" } },
        }),
    );
    folder.put("m.json", file);
    folder.put("short.json", r#"{"l.0.q.weight": [3, 5, 7], "l.1.q.weight": [3, 5, 7]}"#);
    folder.put("long.json", r#"{"__metadata__": {}, "l.0.q.weight": {"dtype": "BF16", "shape": [3, 5, 7]}}"#);
    let mut tensors = Tensors::new();
    for layer in 0..2 {
        tensors.insert(format!("l.{layer}.q.weight"), Tensor::new("F32", &[3, 5, 7], vec![0; 420]));
    }
    let whole = folder.tensors("whole.safetensors", &tensors);
    let bytes = std::fs::read(whole).expect("readable");
    folder.put("head.safetensors", &bytes[..bytes.len() - 800]);
    for source in ["short.json", "long.json", "whole.safetensors", "head.safetensors"] {
        let run = folder.run(&["mapping", "check", "--against", source, "m.json"]).ok();
        assert!(run.stdout.starts_with("mine/heads: "), "{source}: {}", run.stdout);
        assert!(run.stdout.contains("h=3 d=5 e=7"), "{source}: {}", run.stdout);
        assert!(run.stdout.contains("(optional)"), "{source}: {}", run.stdout);
    }
    folder.put("slip.json", r#"{"l.0.q_prj.weight": [15, 7], "l.q_proj.bias": [15], "x": [2]}"#);
    let run = folder.run(&["mapping", "check", "--layout", "flat", "--against", "slip.json", "m.json"]);
    for text in [
        "MISSING",
        "`q_prj` stands where the rule has `q_proj`",
        "the index `{l}` is missing",
        "no rule has a name like it",
    ] {
        assert!(run.stdout.contains(text), "`{text}` is not in:\n{}", run.stdout);
    }
    run.fails(&["lint/no-match", "lint/no-rule", "nearest rule is `l.{l}.q_proj.weight`"]);
    folder.put("rank.json", r#"{"l.0.q_proj.weight": [3, 5, 7]}"#);
    folder
        .run(&["mapping", "check", "--layout", "flat", "--against", "rank.json", "m.json"])
        .fails(&["bind/rank"]);
    folder.put("config.json", "{}");
    let open = folder.put("open.json", r#"{"l.0.q_proj.weight": [15, 7]}"#);
    let open = open.to_string_lossy();
    let run = folder.run(&["mapping", "check", "--axis", "h=3", "--against", &open, "--json", "m.json"]).ok();
    let found: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!((&found["layout"], &found["rules"][1]["sizes"]["d"]), (&json!("mine/flat"), &json!(5)));
    folder.put("bad.json", r#"{"a": "b"}"#);
    folder.run(&["mapping", "check", "--against", "bad.json", "m.json"]).fails(&["lint/list"]);
    folder
        .run(&["mapping", "check", "--against", "open.json", "--layout", "falt", "m.json"])
        .fails(&["did you mean `flat`"]);
}

/// What is done to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mutation {
    SwapLabels,
    SwapAxes,
    Transpose,
    Drop,
    Offset,
    Rotary,
}

const MUTATIONS: [Mutation; 6] = [
    Mutation::SwapLabels,
    Mutation::SwapAxes,
    Mutation::Transpose,
    Mutation::Drop,
    Mutation::Offset,
    Mutation::Rotary,
];

/// Splits an expression into its stored axes.
fn dims(expression: &str) -> Vec<String> {
    let (mut depth, mut all, mut one) = (0, Vec::new(), String::new());
    for c in expression.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if c == ' ' && depth == 0 {
            all.push(std::mem::take(&mut one));
        } else {
            one.push(c);
        }
    }
    all.push(one);
    all
}

/// Exchanges the first two neighbouring axes of one composed axis, or of a block.
fn axes_swapped(expression: &str) -> Option<String> {
    let words: Vec<&str> = expression.split(' ').collect();
    let is_axis = |word: &str| {
        let name = word.trim_matches(['(', ')']);
        !name.is_empty() && name != "1" && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    let inner = |at: &usize| {
        let (a, b) = (words[*at], words[at + 1]);
        is_axis(a)
            && is_axis(b)
            && !a.ends_with(')')
            && !b.starts_with('(')
            && (a.starts_with('(') || b.ends_with(')') || words[at.saturating_sub(1)].ends_with(':'))
    };
    let at = (0..words.len() - 1).find(inner)?;
    let name = |word: &str| word.trim_matches(['(', ')']).to_owned();
    let mut swapped: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    swapped[at] = words[at].replace(&name(words[at]), &name(words[at + 1]));
    swapped[at + 1] = words[at + 1].replace(&name(words[at + 1]), &name(words[at]));
    Some(swapped.join(" "))
}

/// Applies a mutation to a rule of a layout; `None` where it does not apply.
fn mutated(family: &Value, layout: &str, key: &str, mutation: Mutation) -> Option<Value> {
    let mut mutant = family.clone();
    let rule = family["layouts"][layout]["tensors"][key].as_str()?;
    let target = &mut mutant["layouts"][layout];
    match mutation {
        Mutation::SwapLabels => {
            let labels: Vec<&str> = rule.split(['(', ' ']).filter(|word| word.ends_with(':')).collect();
            let [a, b, ..] = labels[..] else { return None };
            let text = rule.replace(a, "\u{1}").replace(b, a).replace('\u{1}', b);
            target["tensors"][key] = json!(text);
        }
        Mutation::SwapAxes => target["tensors"][key] = json!(axes_swapped(rule)?),
        Mutation::Transpose => {
            let all = dims(rule);
            let label = usize::from(all[0].ends_with(':'));
            let (head, axes) = all.split_at(label);
            let reversed: Vec<String> = head.iter().chain(axes.iter().rev()).cloned().collect();
            (axes.len() > 1).then_some(())?;
            target["tensors"][key] = json!(reversed.join(" "));
        }
        Mutation::Drop => {
            target["tensors"].as_object_mut()?.remove(key)?;
        }
        Mutation::Offset => {
            let moved = key.replacen("{l}", "{l+1}", 1);
            (moved != key).then_some(())?;
            let value = target["tensors"].as_object_mut()?.remove(key)?;
            target["tensors"][moved] = value;
        }
        Mutation::Rotary => {
            let axes = target["axes"].as_object_mut()?;
            let restated =
                ["d", "rot"].into_iter().find(|axis| axes.get(*axis).is_some_and(Value::is_string))?;
            axes.remove(restated);
        }
    }
    Some(mutant)
}

/// Mutants that change nothing: the query heads of a key/value head are one alone, so that their order is none.
const EQUAL: &[&str] = &[
    "gptj/codegen transformer.h.{l}.attn.qkv_proj.weight SwapAxes",
    "bloom/megatron layer_{l+3:02}-model_{t:02}-model_states.pt::self_attention.dense.weight SwapAxes",
];

/// Wrong expressions of attention contradict `forward`. What is wrong alike in the expression and in all that could
/// contradict it, and outside attention, only a checkpoint shows: `--against` and a conversion's own check.
#[test]
fn mutants_of_attention_are_caught() {
    const FAMILIES: &[&str] = &[
        "bloom",
        "chameleon",
        "gemma",
        "gptj",
        "mixtral",
        "moonvit",
        "opt",
        "phi",
        "qwen-vl-vision",
        "stable-audio-3",
        "unet-attention",
    ];
    let mut mutants = Vec::new();
    for name in FAMILIES {
        let mut family: Value = serde_json::from_str(&builtin_text(name)).expect("JSON");
        crate::kit::with_whole_names(&mut family);
        let read = qkvconv::mapping::builtin::family(name).expect("a built-in family");
        let layouts = family["layouts"].as_object().expect("a map");
        for (layout, entry) in layouts.iter().filter(|(_, entry)| entry.get("forward").is_some()).take(3) {
            let forwards = read.layouts[layout].forwards.values();
            let products = forwards.flat_map(|f| f.products.iter().map(|p| &p.projection).chain(&f.out));
            let weights: Vec<String> = products.map(|product| product.weight.to_string()).collect();
            let rules: Vec<&String> =
                entry["tensors"].as_object().into_iter().flatten().map(|(key, _)| key).collect();
            let of_attention = |key: &&&String| weights.contains(key);
            for mutation in MUTATIONS {
                let applied =
                    |key: &&String| Some(((*key).clone(), mutated(&family, layout, key, mutation)?));
                let Some((key, mutant)) = rules.iter().filter(of_attention).find_map(applied) else {
                    continue;
                };
                mutants.push((format!("{name}/{layout} {key} {mutation:?}"), mutation, mutant.to_string()));
            }
        }
    }
    let results: Mutex<Vec<(Mutation, String, bool)>> = Mutex::default();
    two_at_a_time(mutants, &|(what, mutation, text)| {
        let caught = checked("m", &text).map_or(true, |report| !report.is_right());
        results.lock().expect("not poisoned").push((mutation, what, caught));
    });
    let results = results.into_inner().expect("not poisoned");
    for mutation in MUTATIONS {
        let of =
            |caught: bool| results.iter().filter(|(other, _, c)| *other == mutation && *c == caught).count();
        println!("{mutation:?}: {} caught, {} not", of(true), of(false));
    }
    let is_equal = |what: &str| EQUAL.contains(&what);
    let missed = results.iter().filter(|(_, what, caught)| !caught && !is_equal(what));
    let missed: Vec<&str> = missed.map(|(_, what, _)| what.as_str()).collect();
    assert!(results.len() > 80, "{}", results.len());
    assert!(missed.is_empty(), "{missed:#?}");
}
