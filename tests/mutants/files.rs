//! Wrong conversions of files: the target that a faulty program would have written, beside a right source.

use crate::kit::{Folder, Tensor, Tensors};
use crate::model::{Draft, Filled, MODULES, Model, Part, Row, Sizes, encoded, paired, unpaired};
use crate::score::{Caught, Line, names};

/// Sizes of which no two are equal, and grouped queries: nothing has the right shape by accident.
const GROUPED: Sizes = Sizes { g: 2, r: 3, d: 8, u: 0, dv: 14, e: 7, o: 9 };
/// The same with six rotary pairs, where the two orders are no inverses of each other.
const GROUPED_12: Sizes = Sizes { d: 12, ..GROUPED };
/// Four pairs rotate, the last four elements do not.
const PARTIAL: Sizes = Sizes { d: 12, u: 4, ..GROUPED };
/// Plain heads: a swap of q, k and v keeps all shapes.
const PLAIN: Sizes = Sizes { g: 6, r: 1, d: 8, u: 0, dv: 8, e: 7, o: 9 };
/// All matrices square: a transpose keeps all shapes.
const SQUARE: Sizes = Sizes { g: 6, r: 1, d: 8, u: 0, dv: 8, e: 48, o: 48 };

/// What is converted.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    sizes: Sizes,
    dtype: &'static str,
    filled: Filled,
    /// Of the type to which the conversion casts, if it does.
    cast: Option<&'static str>,
}

const fn pair(from: &'static str, to: &'static str, sizes: Sizes) -> Pair {
    Pair { from, to, sizes, dtype: "F32", filled: Filled::Random, cast: None }
}

impl Pair {
    const fn dtype(self, dtype: &'static str) -> Pair {
        Pair { dtype, ..self }
    }

    const fn odd(self) -> Pair {
        Pair { filled: Filled::Odd, ..self }
    }

    const fn without_key_bias(self) -> Pair {
        Pair { filled: Filled::NoKeyBias, ..self }
    }

    const fn cast(self, dtype: &'static str) -> Pair {
        Pair { cast: Some(dtype), ..self }
    }

    fn model(self) -> Model {
        Model::new(self.sizes, self.dtype, self.filled)
    }

    fn source(self, model: &Model) -> Tensors {
        let mut tensors = model.store(self.from);
        if self.filled == Filled::NoKeyBias {
            tensors.retain(|key, _| !key.ends_with("k_proj.bias"));
        }
        tensors
    }

    /// What a right conversion writes.
    fn right(self, model: &Model) -> Tensors {
        let mut tensors = model.store(self.to);
        if let Some(cast) = self.cast {
            tensors.values_mut().filter(|tensor| tensor.dtype == "F32").for_each(|tensor| {
                *tensor = Tensor::new(
                    cast,
                    &tensor.shape,
                    tensor.values().into_iter().flat_map(|v| encoded(v, cast)).collect(),
                );
            });
        }
        tensors
    }
}

const TO_TIMM: Pair = pair("separate", "timm", PLAIN);
const TO_NEOX: Pair = pair("separate", "neox", PLAIN);
const TO_BERT: Pair = pair("separate", "bert", GROUPED);
const TO_BERT_PLAIN: Pair = pair("separate", "bert", PLAIN);
const TO_BERT_SQUARE: Pair = pair("tf", "bert", SQUARE);
const TO_MEGATRON: Pair = pair("separate", "megatron", GROUPED);
const TO_PHI3: Pair = pair("internlm2", "phi3", GROUPED);
const TO_REPEATS: Pair = pair("megatron", "neox", GROUPED);
const TO_PER_HEAD: Pair = pair("pytorch-fused", "per-head", GROUPED);
const FROM_CONV1D: Pair = pair("conv1d", "separate", SQUARE);
const TO_META: Pair = pair("llama-hf", "llama-meta", GROUPED);
const TO_META_12: Pair = pair("llama-hf", "llama-meta", GROUPED_12);
const TO_META_PARTIAL: Pair = pair("llama-hf", "llama-meta", PARTIAL);
const TO_HF: Pair = pair("llama-meta", "llama-hf", GROUPED_12);

/// Pairs whose right conversions must pass, those of the mutants among them.
pub(crate) const PAIRS: &[Pair] = &[
    TO_TIMM,
    TO_NEOX,
    TO_BERT,
    TO_BERT_PLAIN,
    TO_BERT_SQUARE,
    TO_MEGATRON,
    TO_PHI3,
    TO_REPEATS,
    TO_PER_HEAD,
    FROM_CONV1D,
    TO_META,
    TO_META_12,
    TO_META_PARTIAL,
    TO_HF,
    TO_TIMM.without_key_bias(),
    pair("neox", "megatron", GROUPED),
    TO_BERT.odd(),
    TO_BERT.odd().cast("BF16"),
    TO_BERT.odd().cast("F16"),
    TO_MEGATRON.dtype("F16"),
    TO_MEGATRON.dtype("BF16"),
    pair("neox", "tf", GROUPED),
    pair("per-head", "conv1d", GROUPED),
    pair("megatron", "pytorch-fused", PLAIN),
];

/// A fault.
enum Fault {
    /// In what is put where.
    Order(fn(&mut Draft<'_>)),
    /// In the bytes, the types or the names.
    Stored(fn(&mut Tensors)),
    /// In the source, of which the target is the conversion of another one.
    Source(fn(&mut Tensors)),
}
use Fault::{Order, Source, Stored};

/// The parts that must find it; read-back finds all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    ReadBack,
    Both,
}
use Expected::{Both, ReadBack};

pub(crate) struct Mutant {
    name: &'static str,
    pair: Pair,
    expected: Expected,
    fault: Fault,
}

const fn mutant(name: &'static str, pair: Pair, expected: Expected, fault: Fault) -> Mutant {
    Mutant { name, pair, expected, fault }
}

fn swapped(row: Row, a: Part, b: Part) -> Row {
    let part = if row.0 == a {
        b
    } else if row.0 == b {
        a
    } else {
        row.0
    };
    (part, row.1, row.2)
}

/// Rows of q alone, at another head.
fn other_head(row: Row, other: impl Fn(usize) -> usize) -> Row {
    if row.0 == Part::Q { (row.0, other(row.1), row.2) } else { row }
}

/// Rows of q and k, at another element.
fn turned(row: Row, other: impl Fn(usize) -> usize) -> Row {
    if row.0 == Part::V { row } else { (row.0, row.1, other(row.2)) }
}

/// The elements of a head's three parts side by side, as Megatron's first format had them.
fn element_first(sizes: Sizes) -> Vec<Row> {
    let heads = (0..sizes.h()).flat_map(|head| (0..sizes.d).map(move |element| (head, element)));
    heads.flat_map(|(head, element)| [Part::Q, Part::K, Part::V].map(|part| (part, head, element))).collect()
}

fn key(module: usize, name: &str) -> String {
    format!("{}.{name}", MODULES[module])
}

fn of<'t>(tensors: &'t mut Tensors, module: usize, name: &str) -> &'t mut Tensor {
    tensors.get_mut(&key(module, name)).expect("the layout has it")
}

/// Flips bits of one element of a 4-byte type.
fn flip(tensor: &mut Tensor, element: usize, bits: u32) {
    let bytes = &mut tensor.bytes[element * 4..][..4];
    let flipped = u32::from_le_bytes(bytes.try_into().expect("four bytes")) ^ bits;
    bytes.copy_from_slice(&flipped.to_le_bytes());
}

/// Rounds all values through another type and back.
fn rounded(tensors: &mut Tensors, through: fn(f32) -> f32) {
    for tensor in tensors.values_mut().filter(|tensor| tensor.dtype == "F32") {
        *tensor = Tensor::f32(&tensor.shape, tensor.values().into_iter().map(through));
    }
}

/// The bytes of one row of a matrix.
fn row_bytes(tensor: &Tensor) -> usize {
    tensor.bytes.len() / tensor.shape[0] as usize
}

fn transpose(tensor: &mut Tensor) {
    let [rows, columns] = tensor.shape[..] else { panic!("{tensor:?} is no matrix") };
    let width = tensor.bytes.len() / (rows * columns) as usize;
    let element = |at: u64| tensor.bytes[at as usize * width..][..width].to_vec();
    let places = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    let bytes = places.flat_map(element).collect();
    *tensor = Tensor::new(&tensor.dtype, &[columns, rows], bytes);
}

/// Exchanges two tensors' contents.
fn exchange(tensors: &mut Tensors, a: &str, b: &str) {
    let (first, second) = (tensors[a].clone(), tensors[b].clone());
    tensors.insert(a.to_owned(), second);
    tensors.insert(b.to_owned(), first);
}

const ONE_ULP: u32 = 1;
const SIGN: u32 = 1 << 31;

pub(crate) const MUTANTS: &[Mutant] = &[
    // Which projection.
    mutant(
        "q and k swapped",
        TO_TIMM,
        Both,
        Order(|d| d.remap(|_| true, |r, _| swapped(r, Part::Q, Part::K))),
    ),
    mutant(
        "k and v swapped",
        TO_TIMM,
        Both,
        Order(|d| d.remap(|_| true, |r, _| swapped(r, Part::K, Part::V))),
    ),
    mutant(
        "k and v swapped within groups",
        pair("separate", "megatron", PLAIN),
        Both,
        Order(|d| d.remap(|_| true, |r, _| swapped(r, Part::K, Part::V))),
    ),
    mutant(
        "order k v q, as metaseq has it",
        TO_TIMM,
        Both,
        Order(|d| d.reorder(|_| true, |s| [Part::K, Part::V, Part::Q].map(|part| s.rows(part)).concat())),
    ),
    // Which cut.
    mutant("thirds where heads alternate", TO_NEOX, Both, Order(|d| d.reorder(|_| true, Sizes::blocks))),
    mutant(
        "heads alternate where thirds are",
        TO_TIMM,
        Both,
        Order(|d| d.reorder(|_| true, Sizes::per_head)),
    ),
    mutant("groups where blocks are", TO_PHI3, Both, Order(|d| d.reorder(|_| true, Sizes::per_group))),
    mutant("blocks where groups are", TO_MEGATRON, Both, Order(|d| d.reorder(|_| true, Sizes::blocks))),
    mutant(
        "the bias alone in blocks where groups are",
        TO_MEGATRON,
        Both,
        Order(|d| d.reorder(crate::model::Piece::is_bias, Sizes::blocks)),
    ),
    mutant(
        "(h d 3), the first Megatron format",
        TO_NEOX,
        Both,
        Order(|d| d.reorder(|_| true, element_first)),
    ),
    mutant(
        "values before keys within a head",
        TO_NEOX,
        Both,
        Order(|d| d.remap(|_| true, |r, _| swapped(r, Part::K, Part::V))),
    ),
    // Which head.
    mutant(
        "query heads tiled, (r g) instead of (g r)",
        TO_MEGATRON,
        Both,
        Order(|d| d.remap(|_| true, |r, s| other_head(r, |h| h % s.r * s.g + h / s.r))),
    ),
    mutant(
        "query heads and output columns tiled",
        TO_BERT,
        Both,
        Order(|d| {
            d.remap(|_| true, |r, s| other_head(r, |h| h % s.r * s.g + h / s.r));
            d.columns(|(h, i), s| (h % s.r * s.g + h / s.r, i));
        }),
    ),
    mutant(
        "heads reversed in q, k, v and o, which no output shows",
        TO_BERT_PLAIN,
        Both,
        Order(|d| {
            d.remap(|_| true, |(part, head, i), s| (part, s.h() - 1 - head, i));
            d.columns(|(head, i), s| (s.h() - 1 - head, i));
        }),
    ),
    mutant(
        "query heads off by one",
        TO_PER_HEAD,
        Both,
        Order(|d| d.remap(|_| true, |r, s| other_head(r, |h| (h + 1) % s.h()))),
    ),
    mutant(
        "one query head is its neighbour",
        TO_PHI3,
        Both,
        Order(|d| d.remap(|_| true, |r, _| other_head(r, |h| if h == 4 { 3 } else { h }))),
    ),
    mutant(
        "two per-head tensors exchanged",
        TO_PER_HEAD,
        Both,
        Stored(|t| exchange(t, &key(1, "heads.2.q_proj.weight"), &key(1, "heads.3.q_proj.weight"))),
    ),
    mutant(
        "key heads exchanged",
        TO_PER_HEAD,
        Both,
        Order(|d| {
            d.remap(|_| true, |(part, head, i), _| (part, if part == Part::K { 1 - head } else { head }, i));
        }),
    ),
    mutant(
        "output columns reversed by head",
        TO_BERT,
        Both,
        Order(|d| d.columns(|(h, i), s| (s.h() - 1 - h, i))),
    ),
    mutant(
        "output columns (dv h) instead of (h dv)",
        TO_BERT,
        Both,
        Order(|d| {
            d.columns(|(h, i), s| {
                let at = h * s.dv + i;
                (at % s.h(), at / s.h())
            });
        }),
    ),
    mutant(
        "query rows (d h) instead of (h d)",
        TO_BERT,
        Both,
        Order(|d| {
            d.remap(
                |_| true,
                |(part, head, i), s| {
                    let at = head * s.d + i;
                    if part == Part::Q { (part, at % s.h(), at / s.h()) } else { (part, head, i) }
                },
            );
        }),
    ),
    mutant(
        "elements of q and k reversed, which no output shows",
        TO_BERT,
        Both,
        Order(|d| d.remap(|_| true, |r, s| turned(r, |i| s.d - 1 - i))),
    ),
    mutant(
        "k and v repeated from the wrong group",
        TO_REPEATS,
        Both,
        Order(|d| {
            // The rows' order is by query head; the copies are of group h % g instead of h / r.
            d.reorder(
                |_| true,
                |s| {
                    let window = 2 * s.d + s.dv;
                    let row = |(at, (part, head, i)): (usize, Row)| match part {
                        Part::Q => (part, head, i),
                        _ => (part, at / window % s.g, i),
                    };
                    s.per_head().into_iter().enumerate().map(row).collect()
                },
            );
        }),
    ),
    mutant(
        "one copy of a repeated key is another's",
        TO_REPEATS,
        Both,
        Stored(|t| {
            let tensor = of(t, 1, "query_key_value.weight");
            let (row, window) = (row_bytes(tensor), 2 * GROUPED.d + GROUPED.dv);
            // The key of head 1 gets that of head 4, which is the other group's.
            let from = (4 * window + GROUPED.d) * row;
            let to = (window + GROUPED.d) * row;
            tensor.bytes.copy_within(from..from + GROUPED.d * row, to);
        }),
    ),
    mutant(
        "the source's copies of a key differ",
        pair("neox", "megatron", GROUPED),
        Both,
        Source(|t| {
            // The key bias of head 1, which head 0 holds as well.
            let element = (2 * GROUPED.d + GROUPED.dv) + GROUPED.d + 3;
            flip(of(t, 0, "query_key_value.bias"), element, SIGN);
        }),
    ),
    // Rotary order.
    mutant(
        "rotary order kept",
        TO_META,
        Both,
        Order(|d| d.remap(|_| true, |r, s| turned(r, |i| unpaired(i, s.d)))),
    ),
    mutant(
        "rotary order inverted, 4 pairs",
        TO_META,
        Both,
        // Twice back: once to half-split, once more as the way back does.
        Order(|d| d.remap(|_| true, |r, s| turned(r, |i| unpaired(unpaired(i, s.d), s.d)))),
    ),
    mutant(
        "rotary order inverted, 6 pairs",
        TO_META_12,
        Both,
        Order(|d| d.remap(|_| true, |r, s| turned(r, |i| unpaired(unpaired(i, s.d), s.d)))),
    ),
    mutant(
        "rotary order inverted on the way back",
        TO_HF,
        Both,
        Order(|d| d.remap(|_| true, |r, s| turned(r, |i| paired(paired(i, s.d), s.d)))),
    ),
    mutant(
        "rotary order made twice",
        TO_META_12,
        Both,
        Order(|d| d.remap(|_| true, |r, s| turned(r, |i| paired(i, s.d)))),
    ),
    mutant(
        "keys permuted with the number of query heads",
        TO_META_12,
        Both,
        Order(|d| {
            d.remap(
                |_| true,
                |(part, head, i), s| {
                    if part != Part::K {
                        return (part, head, i);
                    }
                    // The rows seen as h heads, each of them smaller.
                    let (at, size) = (head * s.d + unpaired(i, s.d), s.g * s.d / s.h());
                    let place = at / size * size + paired(at % size, size);
                    (part, place / s.d, place % s.d)
                },
            );
        }),
    ),
    mutant(
        "values permuted like keys",
        TO_META,
        Both,
        Order(|d| {
            let value = |(part, head, i): Row, s: Sizes| {
                (part, head, if part == Part::V { paired(i, s.dv) } else { i })
            };
            d.remap(|_| true, value);
        }),
    ),
    mutant(
        "weights permuted and biases not",
        TO_META,
        Both,
        Order(|d| d.remap(crate::model::Piece::is_bias, |r, s| turned(r, |i| unpaired(i, s.d)))),
    ),
    mutant(
        "half of the heads permuted",
        TO_META,
        Both,
        Order(|d| {
            d.remap(
                |_| true,
                |r, s| if r.1 < s.heads(r.0) / 2 { r } else { turned(r, |i| unpaired(i, s.d)) },
            );
        }),
    ),
    mutant(
        "queries permuted and keys not",
        TO_META_12,
        Both,
        Order(|d| {
            d.remap(|_| true, |r, s| if r.0 == Part::K { turned(r, |i| unpaired(i, s.d)) } else { r });
        }),
    ),
    mutant(
        "all elements permuted though four do not rotate",
        TO_META_PARTIAL,
        Both,
        Order(|d| {
            d.remap(|_| true, |r, s| turned(r, |i| paired(unpaired(i, s.d - s.u), s.d)));
        }),
    ),
    mutant(
        "the last elements rotate instead of the first",
        TO_META_PARTIAL,
        Both,
        Order(|d| {
            let last = |place: usize, s: Sizes| {
                if place < s.u { place } else { s.u + paired(place - s.u, s.d - s.u) }
            };
            d.remap(|_| true, |r, s| turned(r, |i| last(unpaired(i, s.d - s.u), s)));
        }),
    ),
    // Biases.
    mutant(
        "key bias where the source has none",
        TO_TIMM.without_key_bias(),
        Both,
        Stored(|t| {
            let element = PLAIN.h() * PLAIN.d + 9;
            flip(of(t, 1, "qkv.bias"), element, 0.25_f32.to_bits());
        }),
    ),
    mutant(
        "value bias in the place of the missing key bias",
        TO_TIMM.without_key_bias(),
        Both,
        Order(|d| d.remap(crate::model::Piece::is_bias, |r, _| swapped(r, Part::K, Part::V))),
    ),
    mutant(
        "key bias lost",
        TO_BERT,
        Both,
        Stored(|t| (0..2).for_each(|module| of(t, module, "self.key.bias").bytes.fill(0))),
    ),
    mutant(
        "q and v biases swapped",
        TO_BERT_PLAIN,
        Both,
        Stored(|t| exchange(t, &key(0, "self.query.bias"), &key(0, "self.value.bias"))),
    ),
    mutant(
        "q and k biases swapped in a fused bias",
        TO_TIMM,
        Both,
        Order(|d| d.remap(crate::model::Piece::is_bias, |r, _| swapped(r, Part::Q, Part::K))),
    ),
    mutant(
        "biases of the two layers exchanged",
        TO_BERT,
        Both,
        Order(|d| {
            d.pieces.iter_mut().filter(|piece| piece.is_bias()).for_each(|piece| piece.module ^= 1);
        }),
    ),
    mutant("output bias lost", TO_MEGATRON, Both, Stored(|t| of(t, 1, "linear_proj.bias").bytes.fill(0))),
    // Transposes that the shape does not show.
    mutant(
        "square output projection not transposed",
        FROM_CONV1D,
        Both,
        Stored(|t| (0..2).for_each(|module| transpose(of(t, module, "out_proj.weight")))),
    ),
    mutant(
        "square query kernel not transposed",
        TO_BERT_SQUARE,
        Both,
        Stored(|t| transpose(of(t, 1, "self.query.weight"))),
    ),
    mutant(
        "square output projection transposed",
        TO_BERT_SQUARE,
        Both,
        Stored(|t| transpose(of(t, 0, "output.dense.weight"))),
    ),
    // One element.
    mutant(
        "first element's sign",
        TO_MEGATRON,
        Both,
        Stored(|t| flip(of(t, 0, "linear_qkv.weight"), 0, SIGN)),
    ),
    mutant("middle element's sign", TO_PHI3, Both, Stored(|t| flip(of(t, 1, "qkv_proj.weight"), 403, SIGN))),
    mutant(
        "last element's sign",
        TO_BERT,
        Both,
        Stored(|t| {
            let tensor = of(t, 1, "output.dense.weight");
            flip(tensor, tensor.bytes.len() / 4 - 1, SIGN);
        }),
    ),
    mutant(
        "one unit in the last place",
        TO_MEGATRON,
        Both,
        Stored(|t| flip(of(t, 1, "linear_qkv.weight"), 77, ONE_ULP)),
    ),
    mutant(
        "one unit in the last place of a bias",
        TO_PER_HEAD,
        Both,
        Stored(|t| flip(of(t, 0, "heads.1.k_proj.bias"), 3, ONE_ULP)),
    ),
    mutant(
        "sign of a zero",
        TO_BERT.odd(),
        ReadBack,
        Stored(|t| flip(of(t, 0, "self.query.weight"), 0, SIGN)),
    ),
    mutant(
        "payload of a NaN",
        TO_BERT.odd(),
        ReadBack,
        Stored(|t| flip(of(t, 1, "self.value.weight"), 0, 1 << 4)),
    ),
    // Rows and layers.
    mutant(
        "last row dropped, zeros in its place",
        TO_BERT,
        Both,
        Stored(|t| {
            let tensor = of(t, 0, "self.value.weight");
            let (length, row) = (tensor.bytes.len(), row_bytes(tensor));
            tensor.bytes[length - row..].fill(0);
        }),
    ),
    mutant(
        "rows shifted by one",
        TO_PHI3,
        Both,
        Stored(|t| {
            let tensor = of(t, 0, "qkv_proj.weight");
            let row = row_bytes(tensor);
            tensor.bytes.rotate_right(row);
        }),
    ),
    mutant(
        "columns shifted by one",
        TO_BERT,
        Both,
        Stored(|t| {
            let tensor = of(t, 1, "self.key.weight");
            let row = row_bytes(tensor);
            tensor.bytes.chunks_mut(row).for_each(|row| row.rotate_left(4));
        }),
    ),
    mutant(
        "the two layers exchanged",
        TO_MEGATRON,
        Both,
        Order(|d| d.pieces.iter_mut().for_each(|piece| piece.module ^= 1)),
    ),
    mutant(
        "both layers are the first",
        TO_META,
        Both,
        Order(|d| d.pieces.iter_mut().for_each(|piece| piece.module = 0)),
    ),
    // Types.
    mutant(
        "rounded through bf16",
        TO_MEGATRON,
        Both,
        Stored(|t| rounded(t, |value| half::bf16::from_f32(value).to_f32())),
    ),
    mutant(
        "rounded through f16",
        TO_BERT,
        Both,
        Stored(|t| rounded(t, |value| half::f16::from_f32(value).to_f32())),
    ),
    mutant(
        "f16 rounded through bf16",
        TO_MEGATRON.dtype("F16"),
        Both,
        Stored(|t| {
            for element in of(t, 0, "linear_qkv.weight").bytes.chunks_mut(2) {
                let value = half::f16::from_le_bytes([element[0], element[1]]);
                let value = half::f16::from_f32(half::bf16::from_f32(value.to_f32()).to_f32());
                element.copy_from_slice(&value.to_le_bytes());
            }
        }),
    ),
    mutant(
        "bf16 bits said to be f16",
        TO_MEGATRON.dtype("BF16"),
        // Another type is told as such; attention is not computed from it.
        ReadBack,
        Stored(|t| of(t, 1, "linear_qkv.weight").dtype = "F16".into()),
    ),
    mutant(
        "bytes of an element reversed",
        TO_MEGATRON.dtype("BF16"),
        Both,
        Stored(|t| of(t, 0, "linear_proj.weight").bytes.chunks_mut(2).for_each(<[u8]>::reverse)),
    ),
    mutant(
        "widened to f64",
        TO_BERT,
        ReadBack,
        Stored(|t| {
            let tensor = of(t, 0, "self.query.weight");
            let bytes = tensor.values().into_iter().flat_map(|value| encoded(value, "F64")).collect();
            *tensor = Tensor::new("F64", &tensor.shape, bytes);
        }),
    ),
    mutant(
        "a cast truncates instead of rounding",
        TO_BERT.cast("BF16"),
        ReadBack,
        Stored(|t| {
            // What a right cast made is one step too far from zero wherever it was rounded up.
            let exact = TO_BERT.model().store("bert");
            for (key, tensor) in t.iter_mut().filter(|(_, tensor)| tensor.dtype == "BF16") {
                tensor.bytes =
                    exact[key].bytes.chunks(4).flat_map(|element| [element[2], element[3]]).collect();
            }
        }),
    ),
    mutant(
        "a cast loses the sign of a zero",
        TO_BERT.odd().cast("BF16"),
        ReadBack,
        Stored(|t| of(t, 0, "self.query.weight").bytes[1] ^= 0x80),
    ),
    mutant(
        "a cast flushes a value to zero",
        TO_BERT.cast("F16"),
        Both,
        Stored(|t| of(t, 0, "self.query.weight").bytes[..2].fill(0)),
    ),
    // What passes through, names and shapes.
    mutant(
        "a byte of a tensor that passes through",
        TO_MEGATRON,
        ReadBack,
        Stored(|t| t.get_mut("head.weight").expect("is there").bytes[7] ^= 1),
    ),
    mutant(
        "a tensor that passes through is missing",
        TO_MEGATRON,
        ReadBack,
        Stored(|t| drop(t.remove("head.weight"))),
    ),
    mutant(
        "a tensor that passes through has another shape",
        TO_META,
        ReadBack,
        Stored(|t| t.get_mut("head.weight").expect("is there").shape = vec![2, 3]),
    ),
    mutant(
        "a tensor that passes through was cast to bf16",
        TO_BERT,
        ReadBack,
        Stored(|t| {
            let tensor = t.get_mut("norm.weight").expect("is there");
            let bytes = tensor.values().into_iter().flat_map(|value| encoded(value, "BF16")).collect();
            *tensor = Tensor::new("BF16", &[5], bytes);
        }),
    ),
    mutant(
        "an extra tensor",
        TO_META,
        ReadBack,
        Stored(|t| drop(t.insert(key(0, "rotary.inv_freq"), Tensor::f32(&[2], [1.0, 0.5])))),
    ),
    mutant(
        "a source tensor left over",
        TO_META,
        ReadBack,
        Stored(|t| drop(t.insert(key(0, "q_proj.weight"), t[&key(0, "wq.weight")].clone()))),
    ),
    mutant("a target tensor is missing", TO_META, Both, Stored(|t| drop(t.remove(&key(1, "wk.weight"))))),
    mutant("a target bias is missing", TO_META, Both, Stored(|t| drop(t.remove(&key(0, "wk.bias"))))),
    mutant(
        "a target tensor has another name",
        TO_META,
        Both,
        Stored(|t| {
            let tensor = t.remove(&key(1, "wq.weight")).expect("is there");
            t.insert(key(1, "wq.weights"), tensor);
        }),
    ),
    mutant("axes of a shape exchanged", TO_META, Both, Stored(|t| of(t, 0, "wo.weight").shape.reverse())),
    mutant(
        "a flat shape",
        TO_META,
        Both,
        Stored(|t| {
            let tensor = of(t, 0, "wv.weight");
            tensor.shape = vec![tensor.shape.iter().product()];
        }),
    ),
    mutant("a unit axis added", TO_BERT, Both, Stored(|t| of(t, 1, "self.key.weight").shape.insert(0, 1))),
];

fn verify(folder: &Folder, pair: Pair, source: &Tensors, target: &Tensors) -> crate::kit::Run {
    folder.tensors("source.safetensors", source);
    folder.tensors("target.safetensors", target);
    let layout = |name: &str| format!("attention/{name}");
    let mut args: Vec<String> =
        ["verify", "--from", &layout(pair.from), "--to", &layout(pair.to)].map(str::to_owned).to_vec();
    args.extend(pair.sizes.options());
    args.extend(pair.cast.iter().flat_map(|cast| ["--dtype".to_owned(), cast.to_lowercase()]));
    args.extend(["source.safetensors".to_owned(), "target.safetensors".to_owned()]);
    folder.run(&args)
}

/// Returns what is wrong where the right conversion of a pair does not pass.
pub(crate) fn passes(pair: Pair) -> Option<String> {
    let model = pair.model();
    let run = verify(&Folder::new(), pair, &pair.source(&model), &pair.right(&model));
    // Passing must not come from not having looked.
    let looked = ["attention of 2 modules agrees", "the same on random weights"];
    let passed = run.code == 0 && looked.iter().all(|text| run.stderr.contains(text));
    (!passed).then(|| format!("{} -> {}: exit code {}\n{}", pair.from, pair.to, run.code, run.stderr))
}

/// Tries a mutant.
pub(crate) fn run(mutant: &Mutant) -> Line {
    let Mutant { name, pair, expected, fault } = mutant;
    let model = pair.model();
    let (source, right) = (pair.source(&model), pair.right(&model));
    let (mut given, mut wrong) = (source.clone(), right.clone());
    match fault {
        Order(fault) => {
            let mut draft = model.draft(pair.to);
            fault(&mut draft);
            wrong = draft.store();
        }
        Stored(fault) => fault(&mut wrong),
        Source(fault) => fault(&mut given),
    }
    let run = verify(&Folder::new(), *pair, &given, &wrong);
    let caught = Caught::by(&run);
    // Each tensor that is not what it should be, also those that are missing or too many.
    let changed: Vec<&String> = [(&source, &given), (&right, &wrong)]
        .into_iter()
        .flat_map(|(right, wrong)| {
            right.keys().chain(wrong.keys()).filter(|key| right.get(*key) != wrong.get(*key))
        })
        .collect();
    assert!(!changed.is_empty(), "`{name}` changes nothing");
    let unnamed: Vec<&String> = changed.into_iter().filter(|key| !names(&run, key)).collect();
    let problem = if run.code != 3 {
        Some(format!("the exit code is {}", run.code))
    } else if !caught.read_back {
        Some("read-back did not see it".into())
    } else if *expected == Both && !caught.files {
        Some("the computation did not see it".into())
    } else if !unnamed.is_empty() {
        Some(format!("no diagnostic names {unnamed:?}"))
    } else {
        None
    };
    Line {
        name: format!("{name} ({} -> {})", pair.from, pair.to),
        expected: if *expected == Both { "read-back, forward" } else { "read-back" },
        caught: caught.names(),
        escaped: problem.map(|problem| format!("{problem}\n{}", run.stderr)),
    }
}
