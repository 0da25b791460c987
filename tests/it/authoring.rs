//! What an author of a mapping file is told: each mistake with its place, what was expected, what was found, one help.
//!
//! `tests/data/authoring/messages.txt` holds every message as the tool prints it. With `QKVCONV_REWRITE=1` the test
//! writes what it otherwise demands.

use std::fmt::Write as _;

use crate::kit::{Folder, Run, rewrites, root};

/// The file in which mistakes are made.
const RIGHT: &str = r#"{
  "format": 1,
  "family": "tiny",
  "unmapped": "error",
  "axes": {
    "l": "layers",
    "h": { "is": "g r", "about": "query heads" },
    "g": "key/value heads",
    "r": "query heads of a group",
    "d": { "is": "(c f) + u", "about": "head size" },
    "c": { "size": 2 },
    "f": "rotary frequencies",
    "u": "elements that do not rotate",
    "e": { "per": "parameter", "about": "width" }
  },
  "params": {
    "q.weight": "l h d e",
    "k.weight": "l g d e",
    "v.weight": { "axes": "l g d e", "sparse": "l" },
    "q.bias": { "axes": "l h d", "optional": true, "absent": "zeros" }
  },
  "anchors": ["q.weight"],
  "layouts": {
    "separate": {
      "about": "one tensor each",
      "tensors": {
        "{*m}.{l}.q.weight": "q.weight: (h d) e",
        "{*m}.{l}.k.weight": "k.weight: (g d) e",
        "{*m}.{l}.v.weight": { "is": "v.weight: (g d) e", "scale": "1/sqrt(d)" },
        "{*m}.{l}.q.bias": "q.bias: (h d)"
      },
      "config": { "h": ["n_head", "heads"], "f": { "keys": ["rotary_dim"], "is": "value / 2", "absent": "d / 2" } },
      "defaults": { "u": "d - 2 * f" },
      "forward": {
        "source": "x",
        "q": { "weight": "{*m}.{l}.q.weight", "apply": "linear" },
        "k": { "weight": "{*m}.{l}.k.weight", "apply": "linear" },
        "v": { "weight": "{*m}.{l}.v.weight", "apply": "linear" },
        "rotary": "half", "scale": "1/sqrt(d)", "causal": true, "attends": "self"
      }
    },
    "fused": {
      "like": "separate",
      "tensors": {
        "{*m}.{l}.q.weight": null, "{*m}.{l}.k.weight": null, "{*m}.{l}.v.weight": null,
        "{*m}.{l}.qkv": "(q.weight: h d + k.weight: g d + v.weight: g d) e"
      },
      "forward": {
        "source": "x",
        "qkv": { "weight": "{*m}.{l}.qkv", "apply": "linear", "cut": "blocks", "order": "q k v" }
      }
    }
  }
}
"#;

/// A mistake in words, what is replaced in [`RIGHT`], and by what.
const MISTAKES: &[(&str, &str, &str)] = &[
    // JSON
    ("a comma behind the last entry", r#""u": "d - 2 * f" }"#, r#""u": "d - 2 * f", }"#),
    ("a comma forgotten", "\"family\": \"tiny\",\n", "\"family\": \"tiny\"\n"),
    ("two commas", r#""family": "tiny","#, r#""family": "tiny",,"#),
    ("two commas in a list", r#""anchors": ["q.weight"]"#, r#""anchors": ["q.weight",, "k.weight"]"#),
    ("a comment", r#""format": 1,"#, r#""format": 1, // the version"#),
    ("a word of Python", r#""causal": true"#, r#""causal": True"#),
    ("quotes forgotten around a name", r#""about": "one tensor each""#, r#"about: "one tensor each""#),
    ("single quotes", r#""about": "one tensor each""#, r#""about": 'one tensor each'"#),
    ("quotes forgotten around a text", r#""rotary": "half""#, r#""rotary": half"#),
    ("a colon forgotten", r#""family": "tiny""#, r#""family" "tiny""#),
    ("a text that is never closed", r#""family": "tiny","#, r#""family": "tiny,"#),
    ("a brace forgotten", r#""defaults": { "u": "d - 2 * f" },"#, r#""defaults": { "u": "d - 2 * f","#),
    ("a brace too many", "  \"anchors\": [\"q.weight\"],\n", "  \"anchors\": [\"q.weight\"] },\n"),
    ("an unknown escape", r#""family": "tiny""#, r#""family": "ti\qny""#),
    // fields and types
    ("a field misspelt", r#""anchors": ["q.weight"]"#, r#""anchor": ["q.weight"]"#),
    ("a field of no meaning", r#""about": "one tensor each""#, r#""colour": "one tensor each""#),
    ("the format left out", "\"format\": 1,\n", "\n"),
    ("an unknown format", r#""format": 1"#, r#""format": 3"#),
    ("the family left out", r#""family": "tiny","#, ""),
    (
        "a family and one that is extended",
        r#""family": "tiny","#,
        r#""family": "tiny", "extends": "attention","#,
    ),
    ("an unknown family to extend", r#""family": "tiny","#, r#""extends": "atention","#),
    ("a number where text is due", r#""l": "layers""#, r#""l": 12"#),
    ("text where a number is due", r#"{ "size": 2 }"#, r#"{ "size": "2" }"#),
    ("text where a truth value is due", r#""optional": true"#, r#""optional": "true""#),
    ("a list where text is due", r#""k.weight": "l g d e""#, r#""k.weight": ["l", "g", "d", "e"]"#),
    ("null without `like`", r#""about": "one tensor each""#, r#""about": null"#),
    ("an unknown value", r#""unmapped": "error""#, r#""unmapped": "errors""#),
    ("an unknown value that resembles none", r#""unmapped": "error""#, r#""unmapped": "drop""#),
    ("a name twice", "\"l\": \"layers\",\n", "\"l\": \"layers\", \"l\": \"more layers\",\n"),
    ("one template twice", "\"{*m}.{l}.q.bias\":", "\"{*m}.{l}.q.weight\":"),
    (
        "two rules for one name",
        r#""{*m}.{l}.q.bias": "q.bias: (h d)""#,
        r#""{*m}.{l}.q.bias": ["q.bias: (h d)", "q.bias: h d"]"#,
    ),
    (
        "a rule without an expression",
        r#"{ "is": "v.weight: (g d) e", "scale": "1/sqrt(d)" }"#,
        r#"{ "scale": "1/sqrt(d)" }"#,
    ),
    (
        "a config file in a folder",
        r#""about": "one tensor each""#,
        r#""about": "one tensor each", "config_file": "hf/config.json""#,
    ),
    // axes and parameters
    (
        "an axis's name with a hyphen",
        r#""u": "elements that do not rotate""#,
        r#""no-rope": "elements that do not rotate""#,
    ),
    ("an axis that nobody declares, in a parameter", r#""k.weight": "l g d e""#, r#""k.weight": "l g d ee""#),
    ("an axis twice in a parameter", r#""k.weight": "l g d e""#, r#""k.weight": "l g g e""#),
    ("commas between axes", r#""k.weight": "l g d e""#, r#""k.weight": "l, g, d, e""#),
    ("an axis that is defined by itself", r#""g": "key/value heads""#, r#""g": { "is": "h r" }"#),
    ("a label in a definition", r#""is": "g r""#, r#""is": "q.weight: g r""#),
    ("a parameter's name with a space", r#""q.bias": {"#, r#""q bias": {"#),
    ("a sparse axis that the parameter lacks", r#""sparse": "l""#, r#""sparse": "h""#),
    ("an unknown anchor", r#""anchors": ["q.weight"]"#, r#""anchors": ["q.wieght"]"#),
    ("an unknown word for absent", r#""absent": "zeros""#, r#""absent": "zero""#),
    // expressions
    ("a `(` that is never closed", r#""q.weight: (h d) e""#, r#""q.weight: (h d e""#),
    ("a `)` too many", r#""q.weight: (h d) e""#, r#""q.weight: (h d)) e""#),
    (
        "a `+` without parentheses",
        r#"(q.weight: h d + k.weight: g d + v.weight: g d) e"#,
        r#"q.weight: h d + k.weight: g d"#,
    ),
    ("a product written with `*`", r#""q.weight: (h d) e""#, r#""q.weight: (h * d) e""#),
    ("axes with commas", r#""q.weight: (h d) e""#, r#""q.weight: (h d), e""#),
    ("square brackets", r#""q.weight: (h d) e""#, r#""q.weight: [h d] e""#),
    ("an axis that nobody declares", r#""q.weight: (h d) e""#, r#""q.weight: (h dd) e""#),
    ("a parameter that nobody declares", r#""q.weight: (h d) e""#, r#""q.wieght: (h d) e""#),
    ("a label left out", r#""q.weight: (h d) e""#, r#""(h d) e""#),
    ("a parameter without a colon", r#""q.weight: (h d) e""#, r#""q.weight (h d) e""#),
    ("a label left out in a sum", r#"+ v.weight: g d) e"#, r#"+ g d) e"#),
    ("a label behind axes", r#""q.weight: (h d) e""#, r#""(h d) q.weight: e""#),
    ("an empty block", r#"+ v.weight: g d) e"#, r#"+ ) e"#),
    ("a size and a name in one word", r#""q.weight: (h d) e""#, r#""q.weight: (2h d) e""#),
    ("a size of 0", r#""q.weight: (h d) e""#, r#""q.weight: (h d) e 0""#),
    ("a label inside another", r#"+ v.weight: g d) e"#, r#"+ v.weight: g (q.bias: d)) e"#),
    ("an axis of the parameter missing", r#""q.weight: (h d) e""#, r#""q.weight: (h d)""#),
    ("an axis missing in one block", r#"+ v.weight: g d) e"#, r#"+ v.weight: g) e"#),
    ("an axis twice", r#""q.weight: (h d) e""#, r#""q.weight: (h d) e d""#),
    (
        "an index in the expression only, which the other layout has in its names",
        r#""{*m}.{l}.q.weight": "q"#,
        r#""{*m}.q.weight": "q"#,
    ),
    ("braces in an expression", r#""q.weight: (h d) e""#, r#""q.weight: {l} (h d) e""#),
    // templates
    ("a capture that is never closed", r#""{*m}.{l}.q.bias""#, r#""{*m}.{l.q.bias""#),
    ("an axis captured that nobody declares", r#""{*m}.{l}.q.bias""#, r#""{*m}.{layer}.q.bias""#),
    ("two captures side by side", r#""{*m}.{l}.q.bias""#, r#""{*m}.{l}{h}.q.bias""#),
    ("an offset that is no number", r#""{*m}.{l}.q.bias""#, r#""{*m}.{l+x}.q.bias""#),
    ("a negative offset", r#""{*m}.{l}.q.bias""#, r#""{*m}.{l-1}.q.bias""#),
    ("a width as Python writes it", r#""{*m}.{l}.q.bias""#, r#""{*m}.{l:02d}.q.bias""#),
    ("a path beside a letter", r#""{*m}.{l}.q.bias""#, r#""{*m}_{l}.q.bias""#),
    ("another path than elsewhere", r#""{*m}.{l}.qkv": "(q"#, r#""{*p}.{l}.qkv": "(q"#),
    // formulas
    ("a power", r#""scale": "1/sqrt(d)" }"#, r#""scale": "d^2" }"#),
    ("a factor without an operator", r#""u": "d - 2 * f""#, r#""u": "d - 2f""#),
    ("an operand left out", r#""u": "d - 2 * f""#, r#""u": "d - ""#),
    ("a root without parentheses", r#""scale": "1/sqrt(d)" }"#, r#""scale": "1/sqrt d" }"#),
    ("an axis in a formula that nobody declares", r#""u": "d - 2 * f""#, r#""u": "d - 2 * ff""#),
    ("an axis of the config that nobody declares", r#""config": { "h""#, r#""config": { "heads""#),
    ("outputs of a matrix without inputs", r#""k.weight": "l g d e""#, r#""k.weight": "l g d e |""#),
    ("inputs of a matrix without outputs", r#""k.weight": "l g d e""#, r#""k.weight": "| l g d e""#),
    ("two bars in a matrix", r#""k.weight": "l g d e""#, r#""k.weight": "l g | d | e""#),
    ("an axis on both sides of a matrix", r#""k.weight": "l g d e""#, r#""k.weight": "l g d | d e""#),
    // like and forward
    ("an unknown layout to take over", r#""like": "separate""#, r#""like": "seperate""#),
    ("a prefix that no name has", r#""like": "separate""#, r#""like": "separate", "strip": "model.""#),
    ("a prefix without its end", r#""like": "separate""#, r#""like": "separate", "add": "model""#),
    ("a prefix to strip from nothing", r#""like": "separate","#, r#""strip": "{*m}.","#),
    ("a layout that takes itself over", r#""like": "separate""#, r#""like": "fused""#),
    ("nothing to remove", r#""{*m}.{l}.q.weight": null"#, r#""{*m}.{l}.q.wieght": null"#),
    ("nothing under a prefix to remove", r#""{*m}.{l}.q.weight": null"#, r#""{*m}.q.": null"#),
    (
        "a prefix that holds no rules",
        r#""{*m}.{l}.k.weight": "k.weight: (g d) e""#,
        r#""{*m}.{l}.k.": "k.weight: (g d) e""#,
    ),
    (
        "a prefix without its separator",
        r#""{*m}.{l}.k.weight": "k.weight: (g d) e""#,
        r#""{*m}.{l}.k": { "weight": "k.weight: (g d) e" }"#,
    ),
    (
        "a capture under a prefix that is never closed",
        r#""{*m}.{l}.k.weight": "k.weight: (g d) e""#,
        r#""{*m}.": { "{l.k.weight": "k.weight: (g d) e" }"#,
    ),
    (
        "one name under two prefixes",
        r#""{*m}.{l}.k.weight": "k.weight: (g d) e""#,
        r#""{*m}.": { "{l}.k.weight": "k.weight: (g d) e", "{l}.q.weight": "q.weight: (h d) e" }"#,
    ),
    (
        "parameters of other names than forward looks for",
        r#""q": { "weight": "{*m}.{l}.q.weight", "apply": "linear" }"#,
        r#""params": "q.", "q": { "apply": "linear" }"#,
    ),
    (
        "weights of q and k exchanged, and no place in forward",
        r#""{*m}.{l}.q.weight": "q.weight: (h d) e",
        "{*m}.{l}.k.weight": "k.weight: (g d) e",
        "{*m}.{l}.v.weight": { "is": "v.weight: (g d) e", "scale": "1/sqrt(d)" },
        "{*m}.{l}.q.bias": "q.bias: (h d)"
      },
      "config": { "h": ["n_head", "heads"], "f": { "keys": ["rotary_dim"], "is": "value / 2", "absent": "d / 2" } },
      "defaults": { "u": "d - 2 * f" },
      "forward": {
        "source": "x",
        "q": { "weight": "{*m}.{l}.q.weight", "apply": "linear" },
        "k": { "weight": "{*m}.{l}.k.weight", "apply": "linear" },
        "v": { "weight": "{*m}.{l}.v.weight", "apply": "linear" },"#,
        r#""{*m}.{l}.k.weight": "q.weight: (h d) e",
        "{*m}.{l}.q.weight": "k.weight: (g d) e",
        "{*m}.{l}.v.weight": { "is": "v.weight: (g d) e", "scale": "1/sqrt(d)" },
        "{*m}.{l}.q.bias": "q.bias: (h d)"
      },
      "config": { "h": ["n_head", "heads"], "f": { "keys": ["rotary_dim"], "is": "value / 2", "absent": "d / 2" } },
      "defaults": { "u": "d - 2 * f" },
      "forward": {
        "source": "x", "apply": "linear","#,
    ),
    (
        "no way to apply a weight",
        r#""qkv": { "weight": "{*m}.{l}.qkv", "apply": "linear", "#,
        r#""qkv": { "weight": "{*m}.{l}.qkv", "#,
    ),
    ("an unknown role in forward", r#""q": { "weight""#, r#""query": { "weight""#),
    (
        "an unknown way to apply",
        r#""qkv": { "weight": "{*m}.{l}.qkv", "apply": "linear""#,
        r#""qkv": { "weight": "{*m}.{l}.qkv", "apply": "matmul""#,
    ),
    ("an unknown cut", r#""cut": "blocks""#, r#""cut": "block""#),
    ("a part left out in the order", r#""order": "q k v""#, r#""order": "q k""#),
    ("the cut left out", r#""cut": "blocks", "#, ""),
    ("an unknown rotation", r#""rotary": "half""#, r#""rotary": "neox""#),
    ("a field of another object", r#""cut": "blocks""#, r#""cut": "blocks", "mean": true"#),
    ("an escape before the mistake", r#""q.weight: (h d) e""#, r#""\u0071.weight: (h d\u0064) e""#),
];

fn read(text: &str) -> Run {
    let folder = Folder::new();
    folder.put("m.json", text);
    folder.run(&["mapping", "show", "tiny/separate", "--mapping", "m.json"])
}

/// Makes each mistake in a file of its own and returns what one run says of each.
fn told() -> Vec<String> {
    let folder = Folder::new();
    let mut args = vec!["mapping".to_owned(), "show".into(), "tiny".into()];
    for (at, (what, find, instead)) in MISTAKES.iter().enumerate() {
        assert_eq!(RIGHT.matches(find).count(), 1, "{what}: {find}");
        folder.put(&format!("{at:03}.json"), RIGHT.replacen(find, instead, 1));
        args.extend(["--mapping".into(), format!("{at:03}.json")]);
    }
    let run = folder.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(run.code, 1, "{}", run.stderr);
    let mut told = vec![String::new(); MISTAKES.len()];
    for error in run.stderr.split("error[").skip(1) {
        let error = error.split("\n\n").next().unwrap_or(error);
        let at = error.split("--> ").nth(1).and_then(|place| place.get(..3)?.parse::<usize>().ok());
        let at = at.unwrap_or_else(|| panic!("an error without a place: {error}"));
        let _ = write!(told[at], "error[{}\n\n", error.replace(&format!("{at:03}.json"), "m.json"));
    }
    told
}

#[test]
fn every_mistake_is_told_with_its_place_and_a_help() {
    read(RIGHT).ok();
    let (mut all, mut poor) = (String::new(), Vec::new());
    for ((what, ..), told) in MISTAKES.iter().zip(told()) {
        let _ = write!(all, "## {what}\n\n{told}");
        let complete = |error: &str| {
            [" --> m.json:", "= expected: ", "= found: ", "= help: "].iter().all(|part| error.contains(part))
        };
        let mut errors = told.split("error[").skip(1).peekable();
        if errors.peek().is_none() || !errors.all(complete) {
            poor.push(format!("{what}: {told}"));
        }
    }
    let path = root().join("tests/data/authoring/messages.txt");
    if rewrites() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, &all).expect("writable");
    }
    assert!(poor.is_empty(), "{}", poor.join("\n"));
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = known.lines().zip(all.lines()).position(|(known, now)| known != now);
    let line = differs.unwrap_or(0) + 1;
    assert!(known == all, "{}:{line}: run with QKVCONV_REWRITE=1 and read what changed", path.display());
}

/// Everything that is wrong is told in one run, also behind what is no JSON, and of several files.
#[test]
fn one_run_tells_all() {
    let folder = Folder::new();
    let mut text = RIGHT.to_owned();
    for (find, instead) in [
        (r#""u": "d - 2 * f" }"#, r#""u": "d - 2 * ff", }"#),
        ("\"family\": \"tiny\",\n", "\"family\": \"tiny\"\n"),
        (r#""causal": true"#, r#""causal": True"#),
        (r#""q.weight: (h d) e""#, r#""q.weight: (h d) e )""#),
        (r#""cut": "blocks""#, r#""cut": "block""#),
    ] {
        assert_eq!(text.matches(find).count(), 1, "{find}");
        text = text.replacen(find, instead, 1);
    }
    folder.put("a.json", text);
    folder.put("b.json", RIGHT.replacen("(h d) e", "(h d)", 1));
    let files = ["--mapping", "a.json", "--mapping", "b.json"];
    let run = folder.run(&[&["mapping", "show", "tiny"][..], &files[..]].concat());
    let run = run.fails(&[
        "a `,` behind the last entry",
        "a `,` is missing between two entries",
        "a word without quotes",
        "no axis `ff`",
        "this `)` closes nothing",
        "an unknown value of `cut`",
        "b.json:",
        "`q.weight` is stored without `e`",
        "7 errors",
    ]);
    // As one reads the file.
    let places: Vec<usize> = run
        .stderr
        .lines()
        .filter_map(|line| line.trim().strip_prefix("--> a.json:")?.split(':').next()?.parse().ok())
        .collect();
    assert!(places.is_sorted() && places.len() == 6, "{places:?}");
}

/// A file on one line is shown around the place, and escapes before it do not move the caret.
#[test]
fn excerpts_of_long_lines() {
    let line =
        RIGHT.replace('\n', " ").replacen("\"q.weight: (h d) e\"", "\"\\u0071.weight: (h d\\u0064) e\"", 1);
    let run = read(&line).fails(&["no axis `dd`"]);
    let column = line.find("d\\u0064").expect("is there") + 1;
    assert!(run.stderr.contains(&format!("m.json:1:{column}")), "{}", run.stderr);
    let shown: Vec<&str> = run.stderr.lines().collect();
    let caret = shown.iter().position(|line| line.contains("^^^^^^^")).expect("a caret");
    let at = shown[caret].chars().take_while(|c| *c != '^').count();
    let under: String = shown[caret - 1].chars().skip(at).take(7).collect();
    assert_eq!(under, "d\\u0064", "{}", run.stderr);
    assert!(shown.iter().all(|line| line.chars().count() < 140 && line.trim() != ":::"), "{}", run.stderr);
}

/// An error without a place has no empty frame.
#[test]
fn errors_without_a_place() {
    let run = Folder::new().run(&["mapping", "show", "nobody"]).fails(&["no layout or family `nobody`"]);
    assert!(run.stderr.lines().all(|line| line.trim() != "|"), "{}", run.stderr);
}
