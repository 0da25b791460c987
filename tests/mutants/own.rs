//! Wrong conversions of what the built-in family lacks: scales, offsets, padding, block diagonals, ties. The mappings
//! are written here.

use serde_json::{Value, json};

use crate::kit::{Folder, Run, Tensor, Tensors, mapping};
use crate::score::{Caught, Line, names};

/// A mapping with a right conversion.
pub(crate) struct Fixture {
    mapping: fn() -> String,
    from: &'static str,
    to: &'static str,
    axes: &'static [&'static str],
    source: fn() -> Tensors,
    right: fn() -> Tensors,
}

pub(crate) struct Mutant {
    name: &'static str,
    fixture: &'static Fixture,
    fault: fn(&mut Tensors),
}

/// Numbers that are no multiples of each other.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| ((seed * 131 + at) as f32 * 0.7371).sin()).collect()
}

fn matrix(seed: usize, rows: u64, columns: u64) -> Tensor {
    Tensor::f32(&[rows, columns], numbers(seed, (rows * columns) as usize))
}

fn changed(tensor: &Tensor, value: impl Fn(f64) -> f64) -> Tensor {
    Tensor::f32(&tensor.shape, tensor.values().into_iter().map(|v| value(v.into()) as f32))
}

fn set(tensors: &mut Tensors, key: &str, element: usize, value: f32) {
    let tensor = tensors.get_mut(key).expect("is there");
    tensor.bytes[element * 4..][..4].copy_from_slice(&value.to_le_bytes());
}

/// An attention whose q holds the factor 1/sqrt(d) in one layout, as T5's does.
pub(crate) fn scaled_mapping() -> String {
    let layout = |scale: &str, q: Value, o: &str| {
        let projection = |part: &str| json!({ "weight": format!("{{*m}}.{part}"), "apply": "linear" });
        json!({
            "tensors": { "{*m}.q": q, "{*m}.k": "k: (g d) e", "{*m}.v": "v: (g dv) e", "{*m}.o": o },
            "forward": { "source": "written for this test", "q": projection("q"), "k": projection("k"),
                "v": projection("v"), "out": projection("o"), "rotary": "none", "scale": scale },
        })
    };
    mapping(
        "scaled",
        json!({ "h": { "is": "g r", "about": "heads" }, "g": "groups", "r": "heads of a group", "d": "head size",
            "dv": "head size of v", "e": "width", "o": "output width" }),
        json!({ "q": "h d e", "k": "g d e", "v": "g dv e", "o": "o h dv" }),
        json!({
            "plain": layout("1/sqrt(d)", json!("q: (h d) e"), "o: o (h dv)"),
            "folded": layout("1", json!({ "is": "q: (h d) e", "scale": "1/sqrt(d)" }), "o: o (h dv)"),
            // The forward entry says that q is folded, the rule does not.
            "forgotten": layout("1", json!("q: (h d) e"), "o: o (h dv)"),
            "squared": layout("1", json!({ "is": "q: (h d) e", "scale": "1/d" }), "o: o (h dv)"),
        // The scale is right and the output is not: the scale's tolerance must not hide that.
            "unordered": layout("1", json!({ "is": "q: (h d) e", "scale": "1/sqrt(d)" }), "o: o (dv h)"),
        }),
    )
}

pub(crate) const SCALED_AXES: [&str; 4] = ["h=4", "g=2", "d=9", "dv=5"];

pub(crate) fn scaled_source() -> Tensors {
    let parts = [("q", 36, 7), ("k", 18, 7), ("v", 10, 7), ("o", 11, 20)];
    let parts = parts.into_iter().enumerate();
    parts.map(|(at, (name, rows, columns))| (format!("m.{name}"), matrix(at, rows, columns))).collect()
}

fn scaled_right() -> Tensors {
    let mut tensors = scaled_source();
    tensors.insert("m.q".into(), changed(&tensors["m.q"], |value| value / 3.0));
    tensors
}

static SCALED: Fixture = Fixture {
    mapping: scaled_mapping,
    from: "scaled/plain",
    to: "scaled/folded",
    axes: &SCALED_AXES,
    source: scaled_source,
    right: scaled_right,
};

/// A norm stored as its difference from one, as Gemma's is.
static OFFSET: Fixture = Fixture {
    mapping: || {
        let centred = json!({ "is": "n: e", "offset": -1 });
        mapping(
            "norms",
            json!({ "e": "width" }),
            json!({ "n": "e" }),
            json!({ "plain": { "tensors": { "norm.weight": "n: e" } },
                "centred": { "tensors": { "norm.weight": centred } } }),
        )
    },
    from: "norms/plain",
    to: "norms/centred",
    axes: &[],
    source: || Tensors::from([("norm.weight".into(), Tensor::f32(&[9], numbers(5, 9)))]),
    right: || {
        let plain = Tensor::f32(&[9], numbers(5, 9));
        Tensors::from([("norm.weight".into(), changed(&plain, |value| value - 1.0))])
    },
};

/// A vocabulary padded to a round number.
static PADDED: Fixture = Fixture {
    mapping: || {
        mapping(
            "vocabulary",
            json!({ "v": "entries", "pad": "padding", "e": "width" }),
            json!({ "tok": "v e" }),
            json!({ "plain": { "tensors": { "embed": "tok: v e" } },
                "padded": { "tensors": { "embed": "(tok: v + _: pad) e" } } }),
        )
    },
    from: "vocabulary/plain",
    to: "vocabulary/padded",
    axes: &["pad=3"],
    source: || Tensors::from([("embed".into(), matrix(6, 5, 4))]),
    right: || {
        let values = matrix(6, 5, 4).values().into_iter().chain([0.0; 12]);
        Tensors::from([("embed".into(), Tensor::f32(&[8, 4], values))])
    },
};

/// Two adapters fused to a block diagonal.
static DIAGONAL: Fixture = Fixture {
    mapping: || {
        mapping(
            "adapters",
            json!({ "d": { "per": "parameter", "about": "rows" }, "r": { "per": "parameter", "about": "rank" } }),
            json!({ "q": "d r", "k": "d r" }),
            json!({ "apart": { "tensors": { "q.up": "q: d r", "k.up": "k: d r" } },
                "fused": { "tensors": { "qk.up": "(q: d + k: d) (q: r + k: r)" } } }),
        )
    },
    from: "adapters/apart",
    to: "adapters/fused",
    axes: &[],
    source: || Tensors::from([("q.up".into(), matrix(7, 4, 2)), ("k.up".into(), matrix(8, 5, 3))]),
    right: || {
        let (q, k) = (numbers(7, 8), numbers(8, 15));
        let mut values = Vec::new();
        for row in 0..4 {
            values.extend([q[2 * row], q[2 * row + 1], 0.0, 0.0, 0.0]);
        }
        for row in 0..5 {
            values.extend([0.0, 0.0, k[3 * row], k[3 * row + 1], k[3 * row + 2]]);
        }
        Tensors::from([("qk.up".into(), Tensor::f32(&[9, 5], values))])
    },
};

/// One parameter in two tensors.
static TIED: Fixture = Fixture {
    mapping: || {
        mapping(
            "tied",
            json!({ "v": "entries", "e": "width" }),
            json!({ "tok": "v e" }),
            json!({ "once": { "tensors": { "embed": "tok: v e" } },
                "twice": { "tensors": { "embed": "tok: v e", "head": "tok: e v" } } }),
        )
    },
    from: "tied/once",
    to: "tied/twice",
    axes: &[],
    source: || Tensors::from([("embed".into(), matrix(9, 3, 4))]),
    right: || {
        let values = numbers(9, 12);
        let head = (0..12).map(|at| values[at % 3 * 4 + at / 3]);
        Tensors::from([("embed".into(), matrix(9, 3, 4)), ("head".into(), Tensor::f32(&[4, 3], head))])
    },
};

/// The way back from two tensors to one: what the one holds must be in both.
static UNTIED: Fixture =
    Fixture { from: "tied/twice", to: "tied/once", source: TIED.right, right: TIED.source, ..TIED };

pub(crate) static FIXTURES: [&Fixture; 6] = [&SCALED, &OFFSET, &PADDED, &DIAGONAL, &TIED, &UNTIED];

pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "scale omitted",
        fixture: &SCALED,
        fault: |t| drop(t.insert("m.q".into(), scaled_source().remove("m.q").expect("is there"))),
    },
    Mutant {
        name: "scale applied twice",
        fixture: &SCALED,
        fault: |t| drop(t.insert("m.q".into(), changed(&t["m.q"], |value| value / 3.0))),
    },
    Mutant {
        name: "k scaled too",
        fixture: &SCALED,
        fault: |t| drop(t.insert("m.k".into(), changed(&t["m.k"], |value| value / 3.0))),
    },
    Mutant {
        name: "norm offset omitted",
        fixture: &OFFSET,
        fault: |t| drop(t.insert("norm.weight".into(), changed(&t["norm.weight"], |value| value + 1.0))),
    },
    Mutant {
        name: "norm offset the other way",
        fixture: &OFFSET,
        fault: |t| drop(t.insert("norm.weight".into(), changed(&t["norm.weight"], |value| value + 2.0))),
    },
    Mutant { name: "padding not zero", fixture: &PADDED, fault: |t| set(t, "embed", 27, 1e-30) },
    Mutant { name: "padding of negative zeros", fixture: &PADDED, fault: |t| set(t, "embed", 31, -0.0) },
    Mutant {
        name: "padding before the rows",
        fixture: &PADDED,
        fault: |t| t.get_mut("embed").expect("is there").bytes.rotate_right(3 * 16),
    },
    Mutant {
        name: "block diagonal with a value between",
        fixture: &DIAGONAL,
        fault: |t| set(t, "qk.up", 3, 0.5),
    },
    Mutant {
        name: "block diagonal with blocks exchanged",
        fixture: &DIAGONAL,
        fault: |t| {
            // Each row one block to the other side: the first rows begin with the second's zeros.
            let tensor = t.get_mut("qk.up").expect("is there");
            tensor.bytes.chunks_mut(20).take(4).for_each(|row| row.rotate_right(12));
        },
    },
    Mutant {
        name: "second of two tied tensors differs",
        fixture: &TIED,
        fault: |t| set(t, "head", 5, 0.125),
    },
    Mutant {
        name: "both of two tied tensors differ",
        fixture: &TIED,
        fault: |t| {
            set(t, "embed", 5, 0.125);
            set(t, "head", 4, 0.125);
        },
    },
    Mutant {
        name: "one tensor that was tied differs",
        fixture: &UNTIED,
        fault: |t| set(t, "embed", 11, 0.125),
    },
];

fn verify(fixture: &Fixture, target: &Tensors) -> Run {
    let folder = Folder::new();
    folder.put("mapping.json", (fixture.mapping)());
    folder.tensors("source.safetensors", &(fixture.source)());
    folder.tensors("target.safetensors", target);
    let mut args = vec!["verify", "--mapping", "mapping.json", "--from", fixture.from, "--to", fixture.to];
    args.extend(fixture.axes.iter().flat_map(|axis| ["--axis", axis]));
    args.extend(["source.safetensors", "target.safetensors"]);
    folder.run(&args)
}

/// Returns what is wrong where the right conversion does not pass.
pub(crate) fn passes(fixture: &Fixture) -> Option<String> {
    let run = verify(fixture, &(fixture.right)());
    let message = || format!("{} -> {}: exit code {}\n{}", fixture.from, fixture.to, run.code, run.stderr);
    (run.code != 0).then(message)
}

/// Tries a mutant.
pub(crate) fn run(mutant: &Mutant) -> Line {
    let Mutant { name, fixture, fault } = mutant;
    let right = (fixture.right)();
    let mut wrong = right.clone();
    fault(&mut wrong);
    assert!(wrong != right, "`{name}` changes nothing");
    let run = verify(fixture, &wrong);
    let caught = Caught::by(&run);
    let unnamed: Vec<&String> =
        right.keys().filter(|key| right[*key] != wrong[*key] && !names(&run, key)).collect();
    let problem = if run.code != 3 {
        Some(format!("the exit code is {}", run.code))
    } else if !caught.read_back {
        Some("read-back did not see it".into())
    } else if !unnamed.is_empty() {
        Some(format!("no diagnostic names {unnamed:?}"))
    } else {
        None
    };
    Line {
        name: format!("{name} ({} -> {})", fixture.from, fixture.to),
        expected: "read-back",
        caught: caught.names(),
        escaped: problem.map(|problem| format!("{problem}\n{}", run.stderr)),
    }
}
