//! Checkpoints of very many tensors: what is said of them stays short, and what it leaves out is told on request.

use serde_json::Value;

use crate::kit::{Folder, Run, borrowed, mapping, of_shapes};

type Shapes = Vec<(String, Vec<u64>)>;

const LAYERS: u64 = 12;
const EXPERTS: u64 = 20;

/// A Mixtral with many small experts, as its layout `hf-v4` names them: 3 query heads of 4, one for keys and values.
fn experts() -> Shapes {
    let (width, inner) = (8, 6);
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![10, width])];
    for layer in 0..LAYERS {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}.weight");
        all.extend([
            (name("input_layernorm"), vec![width]),
            (name("self_attn.q_proj"), vec![12, width]),
            (name("self_attn.k_proj"), vec![4, width]),
            (name("self_attn.v_proj"), vec![4, width]),
            (name("self_attn.o_proj"), vec![width, 12]),
            (name("post_attention_layernorm"), vec![width]),
            (name("block_sparse_moe.gate"), vec![EXPERTS, width]),
        ]);
        for expert in 0..EXPERTS {
            let name = |rest: &str| name(&format!("block_sparse_moe.experts.{expert}.{rest}"));
            all.extend([
                (name("w1"), vec![inner, width]),
                (name("w3"), vec![inner, width]),
                (name("w2"), vec![width, inner]),
            ]);
        }
    }
    all.extend([
        ("model.norm.weight".to_owned(), vec![width]),
        ("lm_head.weight".to_owned(), vec![10, width]),
    ]);
    all
}

fn convert(list: &Shapes) -> (Folder, Run) {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&borrowed(list)));
    let more = ["--axis", "h=3", "--report", "report.json"];
    let run = folder.convert("mixtral/hf-v4", "mixtral/consolidated", &more);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert_eq!(folder.names(), ["in.safetensors", "report.json"]);
    (folder, run)
}

/// Demands that a failure is told in few lines, with every kind of fault, and returns its report's errors.
fn told_in_short((folder, run): (Folder, Run), codes: &[&str]) -> Vec<Value> {
    let lines = run.stderr.lines().count();
    assert!(lines < 160, "{lines} lines:\n{}", run.stderr);
    let text = std::fs::read_to_string(folder.join("report.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&report["version"], &report["written"]), (&1.into(), &false.into()));
    let errors = report["errors"].as_array().expect("a list").clone();
    let mut found: Vec<&str> = errors.iter().map(|error| error["code"].as_str().expect("a text")).collect();
    assert!(run.stderr.contains(&format!("qkvconv: {} error", found.len())), "{}", run.stderr);
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, codes);
    for code in codes {
        assert!(run.stderr.contains(&format!("error[{code}]")), "{code} is not in:\n{}", run.stderr);
    }
    errors
}

fn tensors<'e>(errors: &'e [Value], code: &str) -> Vec<&'e str> {
    let named = errors.iter().filter(|error| error["code"] == code);
    let mut all: Vec<&str> = named
        .flat_map(|error| error["tensors"].as_array().expect("a list"))
        .map(|tensor| tensor.as_str().expect("a name"))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn names_that_nothing_matches_are_told_kind_by_kind() {
    let list: Shapes =
        experts().into_iter().map(|(name, shape)| (name.replace("model.", "modell."), shape)).collect();
    let (folder, run) = convert(&list);
    for text in [
        "= tensor: modell.embed_tokens.weight",
        "= also: modell.layers.{0..11}.input_layernorm.weight (12); the nearest rule is `model.layers.{l}.input_layernorm.weight`",
        "= also: … and ",
        "error[bind/missing]: `tok.weight` is missing",
        "nothing was written; --report FILE tells each with all its tensors",
    ] {
        assert!(run.stderr.contains(text), "`{text}` is not in:\n{}", run.stderr);
    }
    let errors = told_in_short((folder, run), &["bind/missing", "bind/unmatched"]);
    let mut unmatched: Vec<&str> =
        list.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "lm_head.weight").collect();
    unmatched.sort_unstable();
    assert_eq!(tensors(&errors, "bind/unmatched"), unmatched);
}

#[test]
fn faults_of_half_of_the_tensors_are_told_by_rule() {
    let wrong = |(at, (name, shape)): (usize, (String, Vec<u64>))| {
        (if at % 2 == 1 { name.replace(".experts.", ".expert.") } else { name }, shape)
    };
    let list: Shapes = experts().into_iter().enumerate().map(wrong).collect();
    let (folder, run) = convert(&list);
    let folded = "= tensor: model.layers.{0,2,4,6,8,10}.block_sparse_moe.expert.{0,2,…,18}.w3.weight (60)";
    assert!(run.stderr.contains(folded), "{}", run.stderr);
    let errors = told_in_short((folder, run), &["bind/index-gap", "bind/missing", "bind/unmatched"]);
    let mut unmatched: Vec<&str> =
        list.iter().map(|(name, _)| name.as_str()).filter(|name| name.contains(".expert.")).collect();
    unmatched.sort_unstable();
    assert_eq!(unmatched.len() as u64, LAYERS * EXPERTS * 3 / 2);
    assert_eq!(tensors(&errors, "bind/unmatched"), unmatched);
}

#[test]
fn gaps_and_second_spellings_are_told_by_rule() {
    let is_odd = |name: &str| {
        let number = name.split(".experts.").nth(1).and_then(|rest| rest.split('.').next());
        number.is_some_and(|number| number.ends_with(['1', '3', '5', '7', '9']))
    };
    let gaps = experts().into_iter().filter(|(name, _)| !is_odd(name)).collect();
    let errors = told_in_short(convert(&gaps), &["bind/index-gap"]);
    let missing = tensors(&errors, "bind/index-gap");
    assert!(missing.iter().all(|name| is_odd(name)), "{missing:?}");
    // The last of them, 19, is one that nothing asks for.
    assert_eq!(missing.len() as u64, LAYERS * (EXPERTS / 2 - 1) * 3);

    let again = |(name, shape): (String, Vec<u64>)| {
        let other = name.replace(".experts.", ".experts.0");
        let twice = if other == name { vec![] } else { vec![(other, shape.clone())] };
        [twice, vec![(name, shape)]].concat()
    };
    let twice = experts().into_iter().flat_map(again).collect();
    let errors = told_in_short(convert(&twice), &["bind/unmatched"]);
    let unmatched = tensors(&errors, "bind/unmatched");
    assert!(unmatched.iter().all(|name| name.contains(".experts.0")), "{unmatched:?}");
    assert_eq!(unmatched.len() as u64, LAYERS * EXPERTS * 3);
}

#[test]
fn wrong_shapes_are_told_by_rule() {
    let longer = |(at, (name, mut shape)): (usize, (String, Vec<u64>))| {
        shape[0] += at as u64 % 5;
        (name, shape)
    };
    let list: Shapes = experts().into_iter().enumerate().map(longer).collect();
    let (folder, run) = convert(&list);
    for text in ["more of this kind at other places", "does not fit `f`: it is ", "; mappings/mixtral.json:"]
    {
        assert!(run.stderr.contains(text), "`{text}` is not in:\n{}", run.stderr);
    }
    told_in_short((folder, run), &["bind/indivisible"]);
}

#[test]
fn the_report_of_a_failure_may_be_a_card() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&[("a.in_proj_weight", &[13, 6])]));
    folder.put("report.md", "old");
    let run = folder.convert("pytorch-fused", "separate", &["--force", "--report", "report.md"]);
    run.fails(&["bind/indivisible"]);
    let card = std::fs::read_to_string(folder.join("report.md")).expect("a card");
    assert!(
        card.contains("- bind/indivisible: 13 does not fit") && card.contains("`a.in_proj_weight`"),
        "{card}"
    );
    // A report that cannot be written is told before anything is done.
    let run = folder.convert("pytorch-fused", "separate", &["--report", "no/report.json"]);
    run.fails(&["publish/no-folder", "1 error"]);
    let verify = ["verify", "--from", "pytorch-fused", "--to", "separate", "--report", "v.json"];
    folder.run(&[&verify[..], &["in.safetensors", "in.safetensors"]].concat()).fails(&["bind/indivisible"]);
    let text = std::fs::read_to_string(folder.join("v.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["errors"][0]["code"], "bind/indivisible");
}

#[test]
fn few_faults_of_a_kind_are_told_whole() {
    let folder = Folder::new();
    let list: &[(&str, &[u64])] = &[("k.a.w", &[2]), ("k.b.w", &[3]), ("k.c.w", &[5]), ("d", &[2])];
    folder.tensors("in.safetensors", &of_shapes(list));
    let tensors = |prefix: &str| {
        let rules = ["a: e", "b: f", "c: g"].map(|rule| (format!("{prefix}.{}.w", &rule[..1]), rule));
        let rules = rules.into_iter().chain([("d".to_owned(), "d: e")]);
        serde_json::json!({ "tensors": rules.collect::<std::collections::BTreeMap<_, _>>() })
    };
    let layouts = serde_json::json!({ "one": tensors("l"), "two": tensors("m") });
    let axes = serde_json::json!({ "e": "width", "f": "second width", "g": "third width" });
    let param = |axis: &str| serde_json::json!({ "axes": axis, "optional": true });
    let params = serde_json::json!({ "a": param("e"), "b": param("f"), "c": param("g"), "d": param("e") });
    folder.put("m.json", mapping("m", axes, params, layouts));
    let run = folder.convert("m/one", "m/two", &["--mapping", "m.json"]);
    let run = run.fails(&[
        "the nearest rule is `l.a.w`",
        "the nearest rule is `l.b.w`",
        "the nearest rule is `l.c.w`",
    ]);
    assert_eq!(run.stderr.matches("error[bind/unmatched]").count(), 3, "{}", run.stderr);
    assert!(!run.stderr.contains("= also") && !run.stderr.contains("--report"), "{}", run.stderr);
}

#[test]
fn modules_whose_names_do_not_fold_are_counted() {
    let folder = Folder::new();
    let word = |at: u64| ["a", "b", "c", "d", "e"][at as usize % 5].repeat(1 + at as usize / 5);
    let module = |at: u64| {
        let name = |rest: &str| format!("tower.{}.attn.{rest}", word(at));
        [(name("in_proj_weight"), vec![36, 10]), (name("out_proj.weight"), vec![10, 12])]
    };
    let list: Shapes = (0..60).flat_map(module).collect();
    folder.tensors("in.safetensors", &of_shapes(&borrowed(&list)));
    let arguments =
        ["inspect", "--all", "--from", "attention/pytorch-fused", "--axis", "h=3", "in.safetensors"];
    let said = folder.run(&arguments).ok().stdout;
    assert!(said.contains("modules: tower.a.attn, tower.aa.attn"), "{said}");
    assert_eq!(said.matches("… and 48 more; --json names all").count(), 3, "{said}");
    assert!(said.lines().all(|line| line.len() < 1000), "{said}");
    let json = folder.run(&[&arguments[..], &["--json"]].concat()).ok().stdout;
    let found: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(found["modules"].as_array().map(Vec::len), Some(60));
    assert_eq!(found["kinds"][0]["names"].as_array().map(Vec::len), Some(60));
}

#[test]
fn many_tensors_are_told_as_few_are() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &of_shapes(&borrowed(&experts())));
    let said = folder.run(&["inspect", "--all", "--axis", "h=3", "in.safetensors"]).ok().stdout;
    for text in [
        "layout mixtral/hf-v4: 807 of 807 tensors",
        "x = 20  experts",
        "model.layers.{0..11}.block_sparse_moe.experts.{0..19}.w2.weight (240)  F32 [8, 6]",
    ] {
        assert!(said.contains(text), "`{text}` is not in:\n{said}");
    }
    // Families of single modules hold its attention too; they are not even tried.
    let json = folder.run(&["inspect", "--json", "--axis", "h=3", "in.safetensors"]).ok().stdout;
    let found: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&found["candidates"][0]["layout"], &found["candidates"][0]["fits"]),
        (&"mixtral/hf-v4".into(), &true.into())
    );
    let candidates = found["candidates"].as_array().expect("a list");
    assert!(candidates.iter().all(|one| !one["layout"].as_str().expect("a name").starts_with("attention/")));
}

#[test]
fn a_draft_of_names_that_are_all_different_is_a_mapping() {
    let folder = Folder::new();
    let word =
        |at: u64| -> String { at.to_string().bytes().map(|digit| char::from(b'a' + digit - b'0')).collect() };
    let list: Shapes = (0..3000).map(|at| (format!("net.{}.w", word(at)), vec![2 + at % 3, 7])).collect();
    folder.tensors("in.safetensors", &of_shapes(&borrowed(&list)));
    folder.run(&["mapping", "new", "--from", "in.safetensors", "--family", "f", "--output", "m.json"]).ok();
    let text = std::fs::read_to_string(folder.join("m.json")).expect("a mapping");
    assert_eq!(text.matches("\"net.").count(), 3000);
    // Of two rules for the same names each pair is told, whatever stands between them.
    let one = "\"net.jj.w\"";
    let at = text.rfind(one).expect("is there");
    let (before, rule) = text.split_at(at);
    let line = rule.lines().next().expect("a line");
    let expression = line.split_once(':').expect("a rule").1.trim().trim_end_matches(',');
    let doubled = format!(
        "{before}\"net.jj.w\": [{expression}, {expression}]{}",
        &rule[line.trim_end_matches(',').len()..]
    );
    folder.put("m.json", doubled);
    folder.run(&["mapping", "check", "m.json"]).fails(&["mapping/duplicate", "`net.jj.w` twice"]);
}

#[test]
fn a_header_over_the_limit_is_refused_before_anything_is_written() {
    let folder = Folder::new();
    let list: Shapes =
        (0..26).flat_map(|l| (0..20).map(move |x| (format!("m.{l}.{x}.w"), vec![2, 3]))).collect();
    folder.tensors("in.safetensors", &of_shapes(&borrowed(&list)));
    // 520 names of 200,000 bytes.
    let long = format!("{}.m.{{l}}.{{x}}.w", "p".repeat(200_000));
    let axes = serde_json::json!({ "l": "layers", "x": "experts", "e": "width", "f": "inner width" });
    let layouts = serde_json::json!({
        "short": { "tensors": { "m.{l}.{x}.w": "a: e f" } },
        "long": { "tensors": { long: "a: e f" } },
    });
    folder.put("m.json", mapping("m", axes, serde_json::json!({ "a": "l x e f" }), layouts));
    let before = folder.names();
    let arguments = ["--mapping", "m.json", "--from", "m/short", "--to", "m/long", "in.safetensors"];
    let run = |more: &[&str]| folder.run(&[&arguments[..], more].concat());
    let mut advice = String::new();
    for destination in ["out.safetensors", "out"] {
        let failed = run(&[destination]).fails(&[
            "format/header-too-large",
            "over the limit of 100000000",
            "write more files into a folder, with `--max-shard-size ",
        ]);
        assert_eq!(folder.names(), before);
        let behind = failed.stderr.split("`--max-shard-size ").nth(1).expect("the advice");
        advice = behind.split('`').next().expect("a number").to_owned();
    }
    // The advice is right.
    run(&["out", "--max-shard-size", &advice, "--verify", "readback"]).ok();
    assert!(folder.join("out/model.safetensors.index.json").is_file());
}
