//! What trained, structured and random weights say of a declared layout.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use qkvconv::bind::{BindOptions, bind};
use qkvconv::catalog::{Catalog, TensorMeta, row_major};
use qkvconv::dtype::Dtype;
use qkvconv::evidence::{Arrangement, Decision, Evidence, Heads, Limits, Part, declared, examine};
use qkvconv::format::Format;
use qkvconv::mapping::select::{Selection, select};
use qkvconv::span::Source;

use crate::kit::{self, Memory, Nobody, read};

/// A matrix as rows.
type Grid = Vec<Vec<f32>>;

fn turned(grid: &Grid) -> Grid {
    (0..grid[0].len()).map(|column| grid.iter().map(|row| row[column]).collect()).collect()
}

fn store(dtype: Dtype, tensors: &BTreeMap<String, Grid>) -> Memory {
    let (mut metas, mut data) = (Vec::new(), Vec::new());
    for (key, grid) in tensors {
        let offset = data.len() as u64;
        for value in grid.iter().flatten() {
            match dtype {
                Dtype::F64 => data.extend(f64::from(*value).to_le_bytes()),
                Dtype::F16 => data.extend(half::f16::from_f32(*value).to_le_bytes()),
                Dtype::BF16 => data.extend(half::bf16::from_f32(*value).to_le_bytes()),
                _ => data.extend(value.to_le_bytes()),
            }
        }
        let shape = match grid[..] {
            [ref bias] => vec![bias.len() as u64],
            _ => vec![grid.len() as u64, grid[0].len() as u64],
        };
        let strides = row_major(&shape);
        metas.push(TensorMeta {
            key: key.clone(),
            dtype,
            shape,
            strides,
            file: 0,
            offset,
            extents: Vec::new(),
        });
    }
    let files = vec![(PathBuf::from("memory"), data.len() as u64)];
    let catalog = Catalog::new("memory".into(), files, metas);
    Memory { format: Format::Safetensors, catalog, bytes: data }
}

fn weigh(layouts: &Selection, reader: &Memory, axes: &[(&str, u64)]) -> Evidence {
    let axes = axes.iter().map(|(name, size)| ((*name).to_owned(), *size));
    let options = BindOptions::default().axes(axes);
    let mapping = layouts.mapping();
    let bound = bind(mapping, layouts.source(), layouts.target(), &reader.catalog, &options)
        .unwrap_or_else(|errors| panic!("{errors}"));
    examine(reader, &bound, &Limits::default(), &Nobody).expect("readable")
}

/// Evenly distributed numbers.
struct Random(u64);

impl Random {
    fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.even()).ln()).sqrt() * (std::f64::consts::TAU * self.even()).cos()
    }
}

/// One module's parts, rows heads slowest; of o its inputs.
struct Parts {
    grids: BTreeMap<Part, Grid>,
    heads: Heads,
}

/// Weights with the traces of training: each part weighs the inputs in its own way, each head has a size of its own,
/// and the norms of q and k, of v and o, go together.
fn trained(heads: Heads, width: usize, strength: f64, random: &mut Random) -> Parts {
    let mut grids = BTreeMap::new();
    let mut norms: BTreeMap<(bool, u64), f64> = BTreeMap::new();
    for part in [Part::Query, Part::Key, Part::Value, Part::Output] {
        let inputs: Vec<f64> = (0..width).map(|_| (strength * random.normal()).exp()).collect();
        let size = heads.rows(part) / heads.of(part);
        let repeats = heads.of(part) / heads.g;
        let grid = (0..heads.rows(part)).map(|row| {
            let (group, element) = (row / size / repeats, row % size);
            let pair = (matches!(part, Part::Query | Part::Key), group * size + element);
            let head = 2.0 * f64::from(u8::from(group % 2 == 0));
            let norm = *norms.entry(pair).or_insert_with(|| (strength * (head + random.normal())).exp());
            inputs.iter().map(|input| (input * norm * random.normal() / 8.0) as f32).collect()
        });
        grids.insert(part, grid.collect());
    }
    Parts { grids, heads }
}

impl Parts {
    fn fused(&self, chunks: u64, order: [Part; 3]) -> Grid {
        let sizes: Vec<(Part, u64)> =
            Part::FUSED.into_iter().map(|part| (part, self.heads.rows(part))).collect();
        let places = Arrangement { chunks, order: order.to_vec() }.places(&sizes).expect("divides");
        places.into_iter().map(|(part, row)| self.grids[&part][row as usize].clone()).collect()
    }

    /// The module as torch names it, fused in that way.
    fn torch(&self, chunks: u64, order: [Part; 3]) -> BTreeMap<String, Grid> {
        let o = turned(&self.grids[&Part::Output]);
        [("in_proj_weight".to_owned(), self.fused(chunks, order)), ("out_proj.weight".to_owned(), o)].into()
    }
}

fn layers(count: usize, one: impl FnMut(usize) -> BTreeMap<String, Grid>) -> BTreeMap<String, Grid> {
    let named = |(layer, tensors): (usize, BTreeMap<String, Grid>)| {
        tensors.into_iter().map(move |(key, grid)| (format!("l.{layer}.{key}"), grid))
    };
    (0..count).map(one).enumerate().flat_map(named).collect()
}

const QKV: [Part; 3] = Part::FUSED;
const KVQ: [Part; 3] = [Part::Key, Part::Value, Part::Query];
const QVK: [Part; 3] = [Part::Query, Part::Value, Part::Key];

/// No two sizes alike.
const GROUPED: Heads = Heads { h: 6, g: 3, d: 10, dv: 7 };
const PLAIN: Heads = Heads { h: 5, g: 5, d: 8, dv: 8 };

fn axes(heads: Heads) -> [(&'static str, u64); 4] {
    [("h", heads.h), ("g", heads.g), ("d", heads.d), ("dv", heads.dv)]
}

fn contradiction(evidence: &Evidence) -> &str {
    match &evidence.decision {
        Decision::Contradicts { better, .. } => better,
        other => panic!("{other:?}\n{}", evidence.lines().join("\n")),
    }
}

#[test]
fn every_arrangement_is_told_from_every_other() {
    let layouts = select("pytorch-fused", "transformer-lens", &[]).expect("layouts");
    for (heads, all) in [(GROUPED, &[1, 3][..]), (PLAIN, &[1, 2, 5, 8, 40])] {
        let mut random = Random(3);
        for (chunks, order) in all.iter().flat_map(|chunks| [QKV, KVQ, QVK].map(|order| (*chunks, order))) {
            let tensors = layers(3, |_| trained(heads, 34, 0.6, &mut random).torch(chunks, order));
            let evidence = weigh(&layouts, &store(Dtype::F32, &tensors), &axes(heads));
            let sizes: Vec<(Part, u64)> = QKV.into_iter().map(|part| (part, heads.rows(part))).collect();
            let name = Arrangement { chunks, order: order.to_vec() }.describe(&sizes, Some(heads));
            if (chunks, order) == (1, QKV) {
                assert_eq!(evidence.decision, Decision::Agrees, "{}", evidence.lines().join("\n"));
            } else {
                let better = contradiction(&evidence);
                assert!(better.split(" or ").any(|other| other == name), "{name} is not in {better}");
            }
        }
    }
}

#[test]
fn all_types_and_both_axes_are_read() {
    let layouts = [("timm", false), ("megatron", false), ("conv1d", true)];
    for ((layout, is_turned), dtype) in layouts
        .into_iter()
        .flat_map(|layout| [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16].map(|d| (layout, d)))
    {
        let selection =
            select(&format!("attention/{layout}"), "attention/transformer-lens", &[]).expect("layouts");
        let names = match layout {
            "timm" => ["qkv.weight", "proj.weight"],
            "megatron" => ["linear_qkv.weight", "linear_proj.weight"],
            _ => ["c_attn.weight", "c_proj.weight"],
        };
        for right in [true, false] {
            let chunks = if right == (layout == "megatron") { GROUPED.g } else { 1 };
            let mut random = Random(7);
            let tensors = layers(3, |_| {
                let parts = trained(GROUPED, 34, 0.6, &mut random);
                let (fused, o) = (parts.fused(chunks, QKV), parts.grids[&Part::Output].clone());
                let grids = if is_turned { [turned(&fused), o] } else { [fused, turned(&o)] };
                names.map(str::to_owned).into_iter().zip(grids).collect()
            });
            let evidence = weigh(&selection, &store(dtype, &tensors), &axes(GROUPED));
            if right {
                assert_eq!(evidence.decision, Decision::Agrees, "{}", evidence.lines().join("\n"));
            } else {
                let expected = if layout == "megatron" { "(q + k + v)" } else { "(g (q + k + v))" };
                assert_eq!(contradiction(&evidence), expected);
            }
        }
    }
}

/// GPT-NeoX writes `h` for the heads of k and v too, which is a repeat that copies nothing.
#[test]
fn a_fusion_per_head_is_weighed() {
    let layouts = select("attention/neox", "attention/transformer-lens", &[]).expect("layouts");
    let mut random = Random(4);
    for chunks in [1, PLAIN.h] {
        let tensors = layers(3, |_| {
            let parts = trained(PLAIN, 34, 0.6, &mut random);
            [
                ("query_key_value.weight".to_owned(), parts.fused(chunks, QKV)),
                ("dense.weight".to_owned(), turned(&parts.grids[&Part::Output])),
            ]
            .into()
        });
        let evidence = weigh(&layouts, &store(Dtype::F32, &tensors), &axes(PLAIN));
        match chunks {
            1 => assert_eq!(contradiction(&evidence), "(q + k + v) or (k + q + v)"),
            _ => assert_eq!(evidence.decision, Decision::Agrees, "{}", evidence.lines().join("\n")),
        }
    }
}

#[test]
fn a_transposed_square_is_seen() {
    let heads = Heads { h: 4, g: 4, d: 12, dv: 12 };
    let layouts = select("attention/separate", "attention/transformer-lens", &[]).expect("layouts");
    for wrong in [None, Some(Part::Query), Some(Part::Output)] {
        let mut random = Random(11);
        let tensors = layers(8, |_| {
            let parts = trained(heads, 48, 0.8, &mut random);
            let name = |part: Part| match part {
                Part::Output => "out_proj.weight".to_owned(),
                part => format!("{}_proj.weight", part.letter()),
            };
            let stored = |part: Part| {
                let grid = &parts.grids[&part];
                // The output projection's rows are its outputs.
                if (part == Part::Output) == (wrong == Some(part)) { grid.clone() } else { turned(grid) }
            };
            parts.grids.keys().map(|part| (name(*part), stored(*part))).collect()
        });
        let evidence = weigh(&layouts, &store(Dtype::F32, &tensors), &axes(heads));
        match wrong {
            None => assert_eq!(evidence.decision, Decision::Agrees, "{}", evidence.lines().join("\n")),
            Some(_) => assert!(contradiction(&evidence).contains("transposed")),
        }
    }
}

#[test]
fn layers_of_a_stack_are_modules_of_their_own() {
    let text = crate::kit::mapping(
        "stacked",
        serde_json::json!({
            "l": "layers", "h": { "is": "g r", "role": "query heads" }, "g": { "role": "kv heads" }, "r": "share",
            "d": { "role": "head size" }, "dv": { "role": "value head size" }, "e": "width",
        }),
        serde_json::json!({
            "q.weight": { "axes": "l h d e", "role": "q" }, "k.weight": { "axes": "l g d e", "role": "k" },
            "v.weight": { "axes": "l g dv e", "role": "v" },
        }),
        serde_json::json!({
            "fused": { "tensors": { "qkv": "l (q.weight: h d + k.weight: g d + v.weight: g dv) e" } },
            "grouped": { "tensors": { "l.{l}.qkv": "(g (q.weight: r d + k.weight: d + v.weight: dv)) e" } }
        }),
    );
    let source = Arc::new(Source { name: "stacked.json".into(), text });
    let layouts = select("fused", "grouped", &[source]).expect("layouts");
    let mut random = Random(5);
    let rows: Grid = (0..4).flat_map(|_| trained(GROUPED, 34, 0.6, &mut random).fused(3, QKV)).collect();
    let mut reader = store(Dtype::F32, &[("qkv".to_owned(), rows)].into());
    let (count, width) = (reader.catalog.tensors[0].shape[0] / 4, 34);
    reader.catalog.tensors[0].shape = vec![4, count, width];
    reader.catalog.tensors[0].strides = row_major(&[4, count, width]);
    let evidence = weigh(&layouts, &reader, &axes(GROUPED));
    assert_eq!((evidence.questions[0].weighed, contradiction(&evidence)), (4, "(g (q + k + v))"));
}

/// Makes rows that are orthogonal and of one length.
fn orthogonal(rows: usize, random: &mut Random) -> Grid {
    let mut done: Vec<Vec<f64>> = Vec::new();
    for _ in 0..rows {
        let mut row: Vec<f64> = (0..rows).map(|_| random.normal()).collect();
        for other in &done {
            let along: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
            row.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
        }
        let norm = row.iter().map(|value| value * value).sum::<f64>().sqrt();
        row.iter_mut().for_each(|value| *value /= norm);
        done.push(row);
    }
    done.into_iter().map(|row| row.into_iter().map(|value| value as f32).collect()).collect()
}

/// Fresh modules, as frameworks begin training: the parts alike or on scales of their own, the biases zeros.
#[test]
fn untrained_weights_never_contradict() {
    let heads = Heads { h: 4, g: 4, d: 6, dv: 6 };
    let layouts = select("pytorch-fused", "transformer-lens", &[]).expect("layouts");
    let mut random = Random(1);
    for seed in 0..60 {
        for kind in ["normal", "uniform", "orthogonal", "scales", "zeros", "equal"] {
            let mut part = |scale: f64| -> Grid {
                let mut draw = |kind: &str| match kind {
                    "uniform" => (random.even() - 0.5) as f32,
                    "zeros" => 0.0,
                    "equal" => 0.25,
                    _ => (scale * random.normal()) as f32,
                };
                match kind {
                    "orthogonal" => orthogonal(24, &mut random),
                    kind => (0..24).map(|_| (0..24).map(|_| draw(kind)).collect()).collect(),
                }
            };
            let scale = if kind == "scales" { [0.1, 1.0, 3.0] } else { [1.0; 3] };
            let tensors = layers(1 + seed % 5, |_| {
                let fused = scale.into_iter().flat_map(&mut part).collect();
                [
                    ("in_proj_weight".to_owned(), fused),
                    ("in_proj_bias".to_owned(), vec![vec![0.0; 72]]),
                    ("out_proj.weight".to_owned(), part(1.0)),
                ]
                .into()
            });
            let evidence = weigh(&layouts, &store(Dtype::F32, &tensors), &axes(heads));
            let lines = evidence.lines().join("\n");
            let is_quiet = match evidence.decision {
                Decision::Contradicts { .. } => false,
                Decision::Abstains(_) => true,
                // Scales of their own are an order that can be seen.
                Decision::Agrees => kind == "scales",
            };
            assert!(is_quiet, "{kind} {seed}\n{lines}");
        }
    }
}

/// Each follows a rule, so that its rows have an order that no layout gave them.
#[test]
fn regular_numbers_say_nothing() {
    type Fill = fn(f64, f64, f64) -> f64;
    let fills: [(&str, Fill); 10] = [
        ("ramp", |row, column, columns| row * columns + column),
        ("ramp of columns", |row, column, _| column * 1000.0 + row),
        ("between -1 and 1", |row, column, columns| (row * columns + column) / 1e4 - 1.0),
        ("rows", |row, _, _| row),
        ("columns", |_, column, _| column + 1.0),
        ("sines", |row, column, columns| (row / 1000_f64.powf(column / columns)).sin()),
        ("modulo 7", |row, column, columns| (row * columns + column) % 7.0),
        ("modulo 1001", |row, column, columns| (row * columns + column) % 1001.0),
        ("identity", |row, column, _| f64::from(u8::from(row == column))),
        ("one row", |_, column, _| (column * column).sin()),
    ];
    let sizes = [
        (Heads { h: 8, g: 8, d: 16, dv: 16 }, 128),
        (Heads { h: 6, g: 3, d: 10, dv: 7 }, 34),
        (Heads { h: 4, g: 4, d: 6, dv: 6 }, 24),
    ];
    for (heads, width) in sizes {
        for (name, of) in fills {
            for is_fused in [true, false] {
                let grid = |rows: u64, columns: usize| -> Grid {
                    let row = |row: u64| {
                        (0..columns)
                            .map(|column| of(row as f64, column as f64, columns as f64) as f32)
                            .collect()
                    };
                    (0..rows).map(row).collect()
                };
                let output =
                    ("out_proj.weight".to_owned(), grid(width as u64, heads.rows(Part::Output) as usize));
                let rows = |part: Part| heads.rows(part);
                let mut tensors: BTreeMap<String, Grid> = [output].into();
                if is_fused {
                    let all = Part::FUSED.into_iter().map(rows).sum();
                    tensors.insert("in_proj_weight".into(), grid(all, width));
                } else {
                    let part =
                        |part: Part| (format!("{}_proj.weight", part.letter()), grid(rows(part), width));
                    tensors.extend(Part::FUSED.into_iter().map(part));
                }
                let layout = if is_fused { "attention/pytorch-fused" } else { "attention/separate" };
                let layouts = select(layout, "attention/transformer-lens", &[]).expect("layouts");
                let evidence = weigh(&layouts, &store(Dtype::F32, &tensors), &axes(heads));
                let Decision::Abstains(why) = &evidence.decision else {
                    panic!("{name}, {width}: {}", evidence.lines().join("\n"))
                };
                assert!(why.contains("follow a rule"), "{name}, {width}: {why}");
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_left_out() {
    let layouts = select("pytorch-fused", "transformer-lens", &[]).expect("layouts");
    let mut random = Random(2);
    let mut tensors = layers(3, |_| trained(GROUPED, 34, 0.6, &mut random).torch(3, QKV));
    tensors.get_mut("l.1.in_proj_weight").expect("there")[4][5] = f32::NAN;
    let evidence = weigh(&layouts, &store(Dtype::F32, &tensors), &axes(GROUPED));
    assert_eq!((evidence.questions[0].weighed, evidence.questions[0].modules), (2, 3));
    assert_eq!(contradiction(&evidence), "(g (q + k + v))");
}

#[test]
fn a_bias_of_next_to_nothing_is_a_hint() {
    let layouts = select("pytorch-fused", "transformer-lens", &[]).expect("layouts");
    let mut random = Random(2);
    for (silent, hint) in
        [(QKV[0], "of what is declared q is next to nothing"), (QKV[1], "of k is next to nothing")]
    {
        let tensors = layers(2, |_| {
            let parts = trained(GROUPED, 34, 0.6, &mut random);
            let one = |part: Part| vec![if part == silent { 1e-4 } else { 0.1 }; parts.grids[&part].len()];
            let bias: Vec<f32> = QKV.into_iter().flat_map(one).collect();
            let mut tensors = parts.torch(1, QKV);
            tensors.insert("in_proj_bias".to_owned(), vec![bias]);
            tensors
        });
        let evidence = weigh(&layouts, &store(Dtype::BF16, &tensors), &axes(GROUPED));
        // A hint is no contradiction.
        assert_eq!(evidence.decision, Decision::Agrees);
        assert!(evidence.lines()[1].contains(hint), "{:?}", evidence.lines());
    }
}

#[test]
fn many_modules_and_wide_ones_are_sampled() {
    let layouts = select("pytorch-fused", "transformer-lens", &[]).expect("layouts");
    let mut random = Random(2);
    let tensors = layers(7, |_| trained(GROUPED, 90, 0.6, &mut random).torch(3, QKV));
    let reader = store(Dtype::F32, &tensors);
    let options =
        BindOptions::default().axes(axes(GROUPED).map(|(name, size)| (name.to_owned(), size)).to_vec());
    let bound = bind(layouts.mapping(), layouts.source(), layouts.target(), &reader.catalog, &options)
        .expect("binds");
    // 111 rows, of each 40 elements.
    let limits = Limits::default().modules(3).elements(111 * 41).threads(2);
    let evidence = examine(&reader, &bound, &limits, &Nobody).expect("readable");
    assert_eq!((evidence.questions[0].sample, evidence.left_out), ((111, 40, 90), 4));
    assert_eq!(contradiction(&evidence), "(g (q + k + v))");
    let again = examine(&reader, &bound, &limits.threads(1), &Nobody).expect("readable");
    assert_eq!(again, evidence);
}

#[test]
fn unknown_heads_leave_the_grouping() {
    let layouts = select("pytorch-fused", "timm", &[]).expect("layouts");
    let mut random = Random(2);
    let tensors = layers(3, |_| trained(PLAIN, 34, 0.6, &mut random).torch(5, QKV));
    let reader = store(Dtype::F32, &tensors);
    let bound =
        bind(layouts.mapping(), layouts.source(), layouts.target(), &reader.catalog, &BindOptions::default())
            .expect("binds");
    let found = declared(&bound, &reader.catalog, &Limits::default());
    assert!(found.skipped.is_empty() && found.modules.iter().all(|module| module.heads.is_none()));
    // Which group is q, k or v stays open.
    let evidence = weigh(&layouts, &reader, &[]);
    assert_eq!(contradiction(&evidence).split(" or ").count(), 6);
    assert!(contradiction(&evidence).starts_with("(5 (q + k + v))"));
}

#[test]
fn the_trained_digits_agree_and_contradict() {
    let stored = read(&kit::digits());
    let grids = |order: &dyn Fn(usize) -> usize| -> BTreeMap<String, Grid> {
        let attention = stored.iter().filter(|(key, _)| key.contains("self_attn"));
        attention
            .map(|(key, tensor)| {
                let width = *tensor.shape.last().expect("a dimension") as usize;
                let grid: Grid = tensor.values().chunks(width).map(<[f32]>::to_vec).collect();
                let moved = key.contains("in_proj_weight");
                let rows = (0..grid.len()).map(|at| grid[if moved { order(at) } else { at }].clone());
                (key.clone(), rows.collect())
            })
            .collect()
    };
    let layouts = select("pytorch-fused", "per-head", &[]).expect("layouts");
    let evidence = weigh(&layouts, &store(Dtype::F32, &grids(&|at| at)), &[("h", 4)]);
    assert_eq!(evidence.decision, Decision::Agrees, "{}", evidence.lines().join("\n"));
    assert!(evidence.skipped.is_empty(), "{:?}", evidence.skipped);
    // As GPT-NeoX stores it: q, k and v of one head after the other, 15 rows each.
    let per_head = |at: usize| at / 15 % 3 * 60 + at / 45 * 15 + at % 15;
    let evidence = weigh(&layouts, &store(Dtype::F32, &grids(&per_head)), &[("h", 4)]);
    let Decision::Contradicts { declared, better, margin } = &evidence.decision else {
        panic!("{}", evidence.lines().join("\n"))
    };
    assert_eq!(declared, "the fused q, k, v as (q + k + v)");
    assert_eq!(better, "(h (q + k + v)) or (h (k + q + v))");
    assert!(*margin > 150.0, "{margin}");
}
