//! Wrong mappings: the built-in one with its expressions changed. Plan and read-back follow them faithfully and agree;
//! only what computes as the framework's source says can contradict.

use crate::kit::Folder;
use crate::model::{Filled, MODULES, Model, Sizes};
use crate::own;
use crate::score::{Caught, Line, names};

const BUILT_IN: &str = include_str!("../../mappings/attention.json");

const GROUPED: Sizes = Sizes { g: 2, r: 3, d: 8, u: 0, dv: 14, e: 7, o: 9 };
const GROUPED_12: Sizes = Sizes { d: 12, ..GROUPED };
const PLAIN: Sizes = Sizes { g: 6, r: 1, d: 8, u: 0, dv: 8, e: 7, o: 9 };
/// Every matrix of the whole module is square.
const SQUARE: Sizes = Sizes { g: 6, r: 1, d: 8, u: 0, dv: 8, e: 48, o: 48 };
/// Every matrix of one head is square.
const SQUARE_HEADS: Sizes = Sizes { g: 6, r: 1, d: 8, u: 0, dv: 8, e: 8, o: 8 };

/// Inputs as wide as real ones: what they add to q, k and v is many times a bias.
const WIDE: Sizes = Sizes { e: 1024, ..GROUPED };

/// One replacement in a layout's text; what is replaced must stand there once.
struct Edit {
    layout: &'static str,
    old: &'static str,
    new: &'static str,
}

const fn edit(layout: &'static str, old: &'static str, new: &'static str) -> Edit {
    Edit { layout, old, new }
}

pub(crate) struct Mutant {
    name: &'static str,
    pair: (&'static str, &'static str),
    sizes: Sizes,
    edits: &'static [Edit],
    /// Whether biases alone are wrong: where those of the file are zeros, random weights alone show it.
    biases_alone: bool,
    cast: Option<&'static str>,
}

impl Mutant {
    const fn cast(self, dtype: &'static str) -> Mutant {
        Mutant { cast: Some(dtype), ..self }
    }

    fn options(&self) -> Vec<String> {
        let cast = self.cast.iter().flat_map(|cast| ["--dtype".to_owned(), (*cast).to_owned()]);
        self.sizes.options().into_iter().chain(cast).collect()
    }
}

const fn mutant(
    name: &'static str,
    pair: (&'static str, &'static str),
    sizes: Sizes,
    edits: &'static [Edit],
) -> Mutant {
    Mutant { name, pair, sizes, edits, biases_alone: false, cast: None }
}

const fn of_biases(
    name: &'static str,
    pair: (&'static str, &'static str),
    sizes: Sizes,
    edits: &'static [Edit],
) -> Mutant {
    Mutant { name, pair, sizes, edits, biases_alone: true, cast: None }
}

const BLOCKS: &str = "(q.weight: h d + k.weight: g d + v.weight: g dv)";
const BLOCKS_BIAS: &str = "(q.bias: h d + k.bias: g d + v.bias: g dv)";
const GROUPS: &str = "(g (q.weight: r d + k.weight: d + v.weight: dv))";
const GROUPS_BIAS: &str = "(g (q.bias: r d + k.bias: d + v.bias: dv))";
const HEADS: &str = "(h (q.weight: d + k.weight: d + v.weight: dv))";
const HEADS_BIAS: &str = "(h (q.bias: d + k.bias: d + v.bias: dv))";
const META_AXES: &str = "\"axes\": { \"d\": \"(f c) + u\" },\n";
/// Gives a layout the rotary order that only llama-meta has; beside `tensors` it stands for the rest of the layout.
const INTERLEAVED: &str =
    "\"axes\": { \"d\": \"(f c) + u\" }, \"defaults\": { \"u\": \"0\" },\n      \"tensors\": {";
const TENSORS: &str = "\"tensors\": {";

pub(crate) const MUTANTS: &[Mutant] = &[
    mutant(
        "labels q and k swapped",
        ("separate", "pytorch-fused"),
        PLAIN,
        &[edit("pytorch-fused", BLOCKS, "(k.weight: g d + q.weight: h d + v.weight: g dv)")],
    ),
    mutant(
        "labels q and k swapped, grouped",
        ("separate", "timm"),
        GROUPED,
        &[edit("timm", BLOCKS, "(k.weight: g d + q.weight: h d + v.weight: g dv)")],
    ),
    mutant(
        "labels k and v swapped",
        ("separate", "timm"),
        PLAIN,
        &[edit("timm", BLOCKS, "(q.weight: h d + v.weight: g dv + k.weight: g d)")],
    ),
    mutant(
        "order k v q in a Conv1D",
        ("separate", "conv1d"),
        PLAIN,
        &[edit("conv1d", BLOCKS, "(k.weight: g d + v.weight: g dv + q.weight: h d)")],
    ),
    mutant(
        "v before k in a group",
        ("separate", "megatron"),
        GROUPED,
        &[edit("megatron", GROUPS, "(g (q.weight: r d + v.weight: dv + k.weight: d))")],
    ),
    mutant(
        "v before k in a head",
        ("separate", "neox"),
        PLAIN,
        &[edit("neox", HEADS, "(h (q.weight: d + v.weight: dv + k.weight: d))")],
    ),
    mutant(
        "q and k exchanged between their tensors",
        ("pytorch-fused", "bert"),
        PLAIN,
        &[
            edit("bert", "q.weight: (h d) e", "Q"),
            edit("bert", "k.weight: (g d) e", "q.weight: (h d) e"),
            edit("bert", "Q", "k.weight: (g d) e"),
        ],
    ),
    mutant(
        "(d h) for q alone",
        ("pytorch-fused", "separate"),
        GROUPED,
        &[edit("separate", "q.weight: (h d) e", "q.weight: (d h) e")],
    ),
    mutant(
        "(d h) for k alone",
        ("megatron", "bert"),
        GROUPED,
        &[edit("bert", "k.weight: (g d) e", "k.weight: (d g) e")],
    ),
    mutant(
        "(dv g) for v alone",
        ("phi3", "separate"),
        GROUPED,
        &[edit("separate", "v.weight: (g dv) e", "v.weight: (dv g) e")],
    ),
    mutant(
        "(d h) for q, k, v, o and their biases",
        ("separate", "bert"),
        PLAIN,
        &[
            edit("bert", "q.weight: (h d) e", "q.weight: (d h) e"),
            edit("bert", "k.weight: (g d) e", "k.weight: (d g) e"),
            edit("bert", "v.weight: (g dv) e", "v.weight: (dv g) e"),
            edit("bert", "q.bias: (h d)", "q.bias: (d h)"),
            edit("bert", "k.bias: (g d)", "k.bias: (d g)"),
            edit("bert", "v.bias: (g dv)", "v.bias: (dv g)"),
            edit("bert", "o.weight: o (h dv)", "o.weight: o (dv h)"),
        ],
    ),
    mutant(
        "thirds for NeoX",
        ("separate", "neox"),
        PLAIN,
        &[
            edit("neox", HEADS, "(q.weight: h d + k.weight: g d + v.weight: g dv)"),
            edit("neox", HEADS_BIAS, "(q.bias: h d + k.bias: g d + v.bias: g dv)"),
        ],
    ),
    mutant(
        "thirds for NeoX, keys repeated",
        ("separate", "neox"),
        GROUPED,
        &[edit("neox", HEADS, "(q.weight: h d + k.weight: h d + v.weight: h dv)")],
    ),
    mutant(
        "heads for timm",
        ("neox", "timm"),
        PLAIN,
        &[
            edit("timm", BLOCKS, "(h (q.weight: d + k.weight: d + v.weight: dv))"),
            edit("timm", BLOCKS_BIAS, "(h (q.bias: d + k.bias: d + v.bias: dv))"),
        ],
    ),
    mutant(
        "groups for Phi-3",
        ("llama-hf", "phi3"),
        GROUPED,
        &[edit("phi3", BLOCKS, "(g (q.weight: r d + k.weight: d + v.weight: dv))")],
    ),
    mutant(
        "blocks for InternLM2, as the source",
        ("internlm2", "llama-hf"),
        GROUPED,
        &[edit("internlm2", GROUPS, "(q.weight: h d + k.weight: g d + v.weight: g dv)")],
    ),
    mutant(
        "h = r g",
        ("llama-hf", "bert"),
        GROUPED,
        &[edit("bert", TENSORS, "\"axes\": { \"h\": \"r g\" },\n      \"tensors\": {")],
    ),
    mutant(
        "(r g d) for q alone",
        ("megatron", "separate"),
        GROUPED,
        &[edit("separate", "q.weight: (h d) e", "q.weight: (r g d) e")],
    ),
    mutant(
        "(r g dv) for o alone",
        ("megatron", "separate"),
        GROUPED,
        &[edit("separate", "o.weight: o (h dv)", "o.weight: o (r g dv)")],
    ),
    mutant(
        "o (dv h)",
        ("separate", "bert"),
        GROUPED,
        &[edit("bert", "o.weight: o (h dv)", "o.weight: o (dv h)")],
    ),
    mutant(
        "(dv h) o in a flax kernel",
        ("separate", "flax"),
        SQUARE,
        &[edit("flax", "o.weight: h dv o", "o.weight: dv h o")],
    ),
    mutant(
        "e d h in a flax kernel",
        ("separate", "flax"),
        GROUPED,
        &[edit("flax", "q.weight: e h d", "q.weight: e d h")],
    ),
    // Rotary order.
    mutant(
        "Meta's rotary order forgotten",
        ("llama-hf", "llama-meta"),
        GROUPED,
        &[edit("llama-meta", META_AXES, "\n")],
    ),
    mutant(
        "Meta's rotary order forgotten, as the source",
        ("llama-meta", "llama-hf"),
        GROUPED_12,
        &[edit("llama-meta", META_AXES, "\n")],
    ),
    mutant(
        "rotary order (c f) written, 4 pairs",
        ("llama-hf", "llama-meta"),
        GROUPED,
        &[edit("llama-meta", META_AXES, "\n"), edit("llama-hf", TENSORS, INTERLEAVED)],
    ),
    mutant(
        "rotary order (c f) written, 6 pairs",
        ("llama-hf", "llama-meta"),
        GROUPED_12,
        &[edit("llama-meta", META_AXES, "\n"), edit("llama-hf", TENSORS, INTERLEAVED)],
    ),
    mutant(
        "rotary order on both sides",
        ("llama-hf", "llama-meta"),
        GROUPED_12,
        &[edit("llama-hf", TENSORS, INTERLEAVED)],
    ),
    mutant(
        "rotary order where nothing rotates, which no output shows",
        ("separate", "bert"),
        GROUPED,
        &[edit("bert", TENSORS, INTERLEAVED)],
    ),
    // Transposes that no shape shows.
    mutant(
        "Conv1D's square output as a linear layer's",
        ("separate", "conv1d"),
        SQUARE,
        &[edit("conv1d", "o.weight: (h dv) o", "o.weight: o (h dv)")],
    ),
    mutant(
        "Conv1D's square output as a linear layer's, as the source",
        ("conv1d", "separate"),
        SQUARE,
        &[edit("conv1d", "o.weight: (h dv) o", "o.weight: o (h dv)")],
    ),
    mutant(
        "a TensorFlow kernel as a linear layer's",
        ("separate", "tf"),
        SQUARE,
        &[edit("tf", "q.weight: e (h d)", "q.weight: (h d) e")],
    ),
    mutant(
        "a linear layer as a kernel",
        ("tf", "bert"),
        SQUARE,
        &[edit("bert", "v.weight: (g dv) e", "v.weight: e (g dv)")],
    ),
    mutant(
        "one head's matrix transposed",
        ("separate", "transformer-lens"),
        SQUARE_HEADS,
        &[edit("transformer-lens", "k.weight: g e d", "k.weight: g d e")],
    ),
    mutant(
        "one head's layer transposed",
        ("separate", "per-head"),
        SQUARE_HEADS,
        &[edit("per-head", "q.weight: d e", "q.weight: e d")],
    ),
    mutant(
        "one head's output transposed",
        ("separate", "per-head"),
        SQUARE_HEADS,
        &[edit("per-head", "o.weight: o dv", "o.weight: dv o")],
    ),
    // Biases alone.
    of_biases(
        "weights in Meta's rotary order and the q bias not",
        ("llama-hf", "llama-meta"),
        GROUPED,
        &[edit("llama-meta", "q.bias: (h d)", "q.bias: (h ((c f) + u))")],
    ),
    of_biases(
        "weights in Meta's rotary order and the k bias not",
        ("llama-hf", "llama-meta"),
        GROUPED_12,
        &[edit("llama-meta", "k.bias: (g d)", "k.bias: (g ((c f) + u))")],
    ),
    of_biases(
        "q bias (d h)",
        ("pytorch-fused", "separate"),
        GROUPED,
        &[edit("separate", "q.bias: (h d)", "q.bias: (d h)")],
    ),
    of_biases(
        "k bias (d g)",
        ("pytorch-fused", "bert"),
        GROUPED,
        &[edit("bert", "k.bias: (g d)", "k.bias: (d g)")],
    ),
    of_biases(
        "v bias (dv g)",
        ("megatron", "bert"),
        GROUPED,
        &[edit("bert", "v.bias: (g dv)", "v.bias: (dv g)")],
    ),
    of_biases(
        "a fused bias in another order than its weight",
        ("separate", "timm"),
        PLAIN,
        &[edit("timm", BLOCKS_BIAS, "(q.bias: h d + v.bias: g dv + k.bias: g d)")],
    ),
    of_biases(
        "a fused bias of separate weights in another order",
        ("separate", "pytorch-kdim"),
        PLAIN,
        &[edit("pytorch-kdim", BLOCKS_BIAS, "(k.bias: g d + q.bias: h d + v.bias: g dv)")],
    ),
    of_biases(
        "a bias in blocks, its weight in groups",
        ("separate", "megatron"),
        GROUPED,
        &[edit("megatron", GROUPS_BIAS, "(q.bias: h d + k.bias: g d + v.bias: g dv)")],
    ),
    of_biases(
        "a bias in thirds, its weight in heads",
        ("separate", "neox"),
        PLAIN,
        &[edit("neox", HEADS_BIAS, "(q.bias: h d + k.bias: g d + v.bias: g dv)")],
    ),
    of_biases(
        "q and output biases exchanged",
        ("conv1d", "bert"),
        SQUARE,
        &[
            edit("bert", "q.bias: (h d)", "Q"),
            edit("bert", "o.bias: o", "q.bias: (h d)"),
            edit("bert", "Q", "o.bias: o"),
        ],
    ),
    // A cast's tolerance must not be so wide that a wrong order passes.
    mutant(
        "labels k and v swapped, cast to bf16",
        ("separate", "timm"),
        PLAIN,
        &[edit("timm", BLOCKS, "(q.weight: h d + v.weight: g dv + k.weight: g d)")],
    )
    .cast("bf16"),
    mutant(
        "Meta's rotary order forgotten, cast to bf16",
        ("llama-hf", "llama-meta"),
        GROUPED,
        &[edit("llama-meta", META_AXES, "\n")],
    )
    .cast("bf16"),
    of_biases(
        "q bias (d h), cast to f16",
        ("pytorch-fused", "separate"),
        WIDE,
        &[edit("separate", "q.bias: (h d)", "q.bias: (d h)")],
    )
    .cast("f16"),
    of_biases(
        "v bias (dv g), cast to bf16",
        ("pytorch-fused", "separate"),
        WIDE,
        &[edit("separate", "v.bias: (g dv)", "v.bias: (dv g)")],
    )
    .cast("bf16"),
    mutant(
        "o (dv h), cast to bf16",
        ("separate", "bert"),
        GROUPED,
        &[edit("bert", "o.weight: o (h dv)", "o.weight: o (dv h)")],
    )
    .cast("bf16"),
    of_biases(
        "q and output biases exchanged, cast to bf16",
        ("conv1d", "bert"),
        SQUARE,
        &[
            edit("bert", "q.bias: (h d)", "Q"),
            edit("bert", "o.bias: o", "q.bias: (h d)"),
            edit("bert", "Q", "o.bias: o"),
        ],
    )
    .cast("bf16"),
];

/// Returns the built-in mapping under another family's name, with those edits.
fn mutated(edits: &[Edit]) -> String {
    let mut text = BUILT_IN.replacen("\"family\": \"attention\"", "\"family\": \"attention-mutant\"", 1);
    assert!(text != BUILT_IN, "the family is renamed");
    for Edit { layout, old, new } in edits {
        let start = text.find(&format!("\n    \"{layout}\": {{")).expect("the layout is there");
        let length = text[start..].find("\n    }").expect("the layout ends");
        let section = &text[start..start + length];
        // What the framework does is what the mutant is held against; it must not change with the expressions.
        // So the places of weights are written out there, and are not those of the rules that are changed.
        let tensors = section.find("\"forward\"").expect("every layout says how it computes");
        assert!(section[tensors..].contains("\"weight\": "), "`forward` of {layout} names its tensors");
        assert_eq!(section[..tensors].matches(old).count(), 1, "`{old}` stands once in {layout}");
        let changed = section.replacen(old, new, 1);
        text.replace_range(start..start + length, &changed);
    }
    text
}

/// Converts in a folder of its own; nothing but the inputs may be left there where it fails.
fn convert(
    mapping: &str,
    pair: (&str, &str),
    axes: &[String],
    source: &crate::kit::Tensors,
) -> (crate::kit::Run, bool) {
    let folder = Folder::new();
    folder.put("mapping.json", mapping);
    folder.tensors("in.safetensors", source);
    let mut more: Vec<&str> = vec!["--mapping", "mapping.json"];
    more.extend(axes.iter().map(String::as_str));
    let run = folder.convert(pair.0, pair.1, &more);
    (run, folder.names() == ["in.safetensors", "mapping.json"])
}

fn qualified((from, to): (&str, &str)) -> (String, String) {
    (format!("attention-mutant/{from}"), format!("attention-mutant/{to}"))
}

/// Returns what is wrong where the renamed mapping without edits does not convert a mutant's model.
pub(crate) fn passes(mutant: &Mutant) -> Option<String> {
    let (from, to) = qualified(mutant.pair);
    for filled in [Filled::Random, Filled::ZeroBiases] {
        let source = Model::new(mutant.sizes, "F32", filled).store(mutant.pair.0);
        let (run, _) = convert(&mutated(&[]), (&from, &to), &mutant.options(), &source);
        // Passing must not come from not having looked.
        let looked = ["attention of 2 modules agrees", "the same on random weights"];
        if run.code != 0 || !looked.iter().all(|text| run.stderr.contains(text)) {
            return Some(format!("{from} -> {to}: exit code {}\n{}", run.code, run.stderr));
        }
    }
    None
}

/// Tries a mutant, on weights as trained ones are and on a file whose biases are zeros.
pub(crate) fn run((mutant, filled): &(&Mutant, Filled)) -> Line {
    let (from, to) = qualified(mutant.pair);
    let source = Model::new(mutant.sizes, "F32", *filled).store(mutant.pair.0);
    let (run, clean) = convert(&mutated(mutant.edits), (&from, &to), &mutant.options(), &source);
    let caught = Caught::by(&run);
    // What a cast rounds off may hide a fault in trained weights; random weights can be such as it does not change.
    let tolerated = mutant.cast.is_some();
    let unseen_in_files = mutant.biases_alone && *filled == Filled::ZeroBiases;
    let problem = if run.code != 3 {
        Some(format!("the exit code is {}", run.code))
    } else if !clean {
        Some("something was written".into())
    } else if caught.read_back {
        Some("read-back saw it, so the plan did not follow the expression".into())
    } else if !tolerated && caught.files == unseen_in_files {
        Some(format!("the files' weights should {}show it", if unseen_in_files { "not " } else { "" }))
    } else if !caught.random {
        Some("random weights did not show it".into())
    } else if !MODULES.iter().take(if caught.files { 2 } else { 1 }).all(|module| names(&run, module)) {
        Some("no diagnostic names the modules".into())
    } else {
        None
    };
    let biases = if *filled == Filled::ZeroBiases { ", biases zero" } else { "" };
    Line {
        name: format!("{} ({} -> {}{biases})", mutant.name, mutant.pair.0, mutant.pair.1),
        expected: if unseen_in_files || tolerated { "forward, random weights" } else { "forward" },
        caught: caught.names(),
        escaped: problem.map(|problem| format!("{problem}\n{}", run.stderr)),
    }
}

/// A scale that the expression forgets or doubles although the framework computes with it, and a fault beside one.
pub(crate) const SCALES: [&str; 3] = ["forgotten", "squared", "unordered"];

/// Tries the mapping of the scale.
pub(crate) fn scale(layout: &&str) -> Line {
    let to = format!("scaled/{layout}");
    let axes: Vec<String> =
        own::SCALED_AXES.iter().flat_map(|axis| ["--axis".to_owned(), (*axis).to_owned()]).collect();
    let (run, clean) = convert(&own::scaled_mapping(), ("scaled/plain", &to), &axes, &own::scaled_source());
    let caught = Caught::by(&run);
    let found = run.code == 3 && clean && !caught.read_back && caught.forward();
    Line {
        name: format!("{layout} in an expression with a scale (scaled/plain -> {to})"),
        expected: "forward",
        caught: caught.names(),
        escaped: (!found).then(|| format!("exit code {}\n{}", run.code, run.stderr)),
    }
}
