//! Models of two attention modules, and what each layout stores of them: lists of rows that are put together here,
//! never by the library.

use crate::kit::{Tensor, Tensors};

/// One of the three projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Q,
    K,
    V,
}

/// A row of a projection: which projection, which head of it, which element of the head, rotary pairs half-split.
pub(crate) type Row = (Part, usize, usize);

/// The names of the modules.
pub(crate) const MODULES: [&str; 2] = ["enc.layers.0.attn", "enc.layers.1.attn"];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) g: usize,
    pub(crate) r: usize,
    pub(crate) d: usize,
    /// Of these, the elements that do not rotate: the last ones of a head.
    pub(crate) u: usize,
    pub(crate) dv: usize,
    pub(crate) e: usize,
    pub(crate) o: usize,
}

impl Sizes {
    pub(crate) fn h(self) -> usize {
        self.g * self.r
    }

    pub(crate) fn heads(self, part: Part) -> usize {
        if part == Part::Q { self.h() } else { self.g }
    }

    pub(crate) fn size(self, part: Part) -> usize {
        if part == Part::V { self.dv } else { self.d }
    }

    /// The options that tell the sizes; a fused tensor's shape alone does not.
    pub(crate) fn options(self) -> Vec<String> {
        let axes = [("h", self.h()), ("g", self.g), ("d", self.d), ("dv", self.dv), ("u", self.u)];
        // Where all elements rotate, the layouts say so themselves.
        let given = axes.iter().filter(|(axis, size)| *axis != "u" || *size > 0);
        given.flat_map(|(axis, size)| ["--axis".to_owned(), format!("{axis}={size}")]).collect()
    }

    /// All rows of one projection, one head after the other.
    pub(crate) fn rows(self, part: Part) -> Vec<Row> {
        let heads = 0..self.heads(part);
        heads.flat_map(|head| (0..self.size(part)).map(move |element| (part, head, element))).collect()
    }

    /// All queries, all keys, all values.
    pub(crate) fn blocks(self) -> Vec<Row> {
        [Part::Q, Part::K, Part::V].into_iter().flat_map(|part| self.rows(part)).collect()
    }

    fn head(self, part: Part, head: usize) -> Vec<Row> {
        (0..self.size(part)).map(|element| (part, head, element)).collect()
    }

    /// Each query head with the key and the value that it reads.
    pub(crate) fn per_head(self) -> Vec<Row> {
        let of = |head: usize| {
            let group = head / self.r;
            [self.head(Part::Q, head), self.head(Part::K, group), self.head(Part::V, group)].concat()
        };
        (0..self.h()).flat_map(of).collect()
    }

    /// Each group's query heads, its key and its value.
    pub(crate) fn per_group(self) -> Vec<Row> {
        let of = |group: usize| {
            let mut rows: Vec<Row> =
                (0..self.r).flat_map(|at| self.head(Part::Q, group * self.r + at)).collect();
            rows.extend(self.head(Part::K, group));
            rows.extend(self.head(Part::V, group));
            rows
        };
        (0..self.g).flat_map(of).collect()
    }

    /// The columns of the output projection, one head after the other.
    pub(crate) fn columns(self) -> Vec<(usize, usize)> {
        (0..self.h()).flat_map(|head| (0..self.dv).map(move |element| (head, element))).collect()
    }
}

/// The half-split element that stands at a place where pairs are neighbours; `size` elements rotate.
pub(crate) fn paired(place: usize, size: usize) -> usize {
    if place < size { place % 2 * (size / 2) + place / 2 } else { place }
}

/// The place, where pairs are neighbours, of a half-split element; `size` elements rotate.
pub(crate) fn unpaired(element: usize, size: usize) -> usize {
    if element < size { element % (size / 2) * 2 + element / (size / 2) } else { element }
}

/// The weights of one module.
#[derive(Clone)]
struct Module {
    /// Of q, k and v, [heads, size, e].
    weights: [Vec<f32>; 3],
    /// [heads, size]
    biases: [Vec<f32>; 3],
    /// [o, h, dv]
    out: Vec<f32>,
    out_bias: Vec<f32>,
}

/// What a model's weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// Normally distributed, all of them.
    Random,
    /// The same with biases of zeros, as files may have them.
    ZeroBiases,
    /// Random with a zero as the first q weight of module 0 and a NaN with a payload as the first v weight of module 1.
    Odd,
    /// Random, and no k bias: zeros in a fused bias, no tensor where k has one of its own.
    NoKeyBias,
}

/// Two modules and two tensors that belong to neither.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) sizes: Sizes,
    pub(crate) dtype: &'static str,
    modules: [Module; 2],
}

struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        // PCG's multiplier; the high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64 + 0.5) / f64::from(1_u32 << 31)
    }

    fn normal(&mut self) -> f32 {
        ((-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    fn many(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }
}

impl Model {
    pub(crate) fn new(sizes: Sizes, dtype: &'static str, filled: Filled) -> Model {
        let module = |seed: u64| {
            let mut random = Random(seed);
            let parts = [Part::Q, Part::K, Part::V];
            let rows = parts.map(|part| sizes.heads(part) * sizes.size(part));
            let mut module = Module {
                weights: rows.map(|rows| random.many(rows * sizes.e)),
                biases: rows.map(|rows| random.many(rows)),
                out: random.many(sizes.o * sizes.h() * sizes.dv),
                out_bias: random.many(sizes.o),
            };
            if filled == Filled::ZeroBiases {
                module.biases.iter_mut().for_each(|bias| bias.fill(0.0));
                module.out_bias.fill(0.0);
            }
            module
        };
        let mut modules = [module(11), module(23)];
        if filled == Filled::NoKeyBias {
            modules.iter_mut().for_each(|module| module.biases[1].fill(0.0));
        }
        if filled == Filled::Odd {
            modules[0].weights[0][0] = 0.0;
            modules[1].weights[2][0] = f32::from_bits(0x7fc0_1234);
        }
        Model { sizes, dtype, modules }
    }

    /// Drafts the model in a layout.
    pub(crate) fn draft(&self, layout: &str) -> Draft<'_> {
        let pieces = (0..MODULES.len()).flat_map(|module| {
            pieces(layout, self.sizes).into_iter().map(move |(name, content)| Piece { name, module, content })
        });
        let pieces: Vec<Piece> = pieces.collect();
        Draft { model: self, keys: pieces.iter().map(Piece::key).collect(), pieces }
    }

    /// Stores the model in a layout.
    pub(crate) fn store(&self, layout: &str) -> Tensors {
        self.draft(layout).store()
    }
}

/// What a tensor holds of its module.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Rows of projections, [rows, e], or [e, rows] where `transposed`.
    Weight { rows: Vec<Row>, transposed: bool },
    /// Biases of such rows.
    Bias(Vec<Row>),
    /// Columns of the output projection, [o, columns], or [columns, o] where `transposed`.
    Out { columns: Vec<(usize, usize)>, transposed: bool },
    /// The output's bias.
    OutBias,
}

/// One tensor of a draft.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Its name in the module.
    pub(crate) name: String,
    /// The module whose weights it holds.
    pub(crate) module: usize,
    pub(crate) content: Content,
}

impl Piece {
    fn key(&self) -> String {
        let name = format!("{}.{}", MODULES[self.module], self.name);
        if self.name.contains('/') { name.replace('.', "/") } else { name }
    }

    /// The rows of projections that it holds, if it holds such.
    pub(crate) fn rows(&mut self) -> Option<&mut Vec<Row>> {
        match &mut self.content {
            Content::Weight { rows, .. } | Content::Bias(rows) => Some(rows),
            _ => None,
        }
    }

    pub(crate) fn is_bias(&self) -> bool {
        matches!(self.content, Content::Bias(_) | Content::OutBias)
    }
}

/// A model in a layout before its bytes are written: the right thing until a mutant changes it.
pub(crate) struct Draft<'m> {
    model: &'m Model,
    /// The tensors' names, which stay whatever the pieces come to hold.
    keys: Vec<String>,
    pub(crate) pieces: Vec<Piece>,
}

impl Draft<'_> {
    pub(crate) fn sizes(&self) -> Sizes {
        self.model.sizes
    }

    /// Puts another row in place of each, in the pieces that are chosen.
    pub(crate) fn remap(&mut self, chosen: impl Fn(&Piece) -> bool, other: impl Fn(Row, Sizes) -> Row) {
        let sizes = self.sizes();
        for piece in self.pieces.iter_mut().filter(|piece| chosen(piece)) {
            if let Some(rows) = piece.rows() {
                rows.iter_mut().for_each(|row| *row = other(*row, sizes));
            }
        }
    }

    /// Puts another list of rows in the pieces that are chosen.
    pub(crate) fn reorder(&mut self, chosen: impl Fn(&Piece) -> bool, rows: impl Fn(Sizes) -> Vec<Row>) {
        let sizes = self.sizes();
        for piece in self.pieces.iter_mut().filter(|piece| chosen(piece)) {
            if let Some(held) = piece.rows() {
                *held = rows(sizes);
            }
        }
    }

    /// Puts another column of the output projection in place of each.
    pub(crate) fn columns(&mut self, other: impl Fn((usize, usize), Sizes) -> (usize, usize)) {
        let sizes = self.sizes();
        for piece in &mut self.pieces {
            if let Content::Out { columns, .. } = &mut piece.content {
                columns.iter_mut().for_each(|column| *column = other(*column, sizes));
            }
        }
    }

    pub(crate) fn store(&self) -> Tensors {
        let mut tensors: Tensors =
            self.keys.iter().cloned().zip(self.pieces.iter().map(|piece| self.tensor(piece))).collect();
        tensors.insert("head.weight".into(), Tensor::new("I16", &[3, 2], (0..12).collect()));
        // Not a number of which bf16 or f16 holds all digits.
        tensors.insert("norm.weight".into(), Tensor::f32(&[5], (1..6).map(|at| at as f32 / 7.0)));
        tensors
    }

    fn tensor(&self, piece: &Piece) -> Tensor {
        let Model { sizes, dtype, modules } = self.model;
        let Sizes { e, o, dv, .. } = *sizes;
        let module = &modules[piece.module];
        let place = |(part, head, element): Row| head * sizes.size(part) + element;
        let (shape, values) = match &piece.content {
            Content::Weight { rows, transposed } => {
                let weight = |row: Row, e_at: usize| module.weights[row.0 as usize][place(row) * e + e_at];
                table(rows.len(), e, *transposed, |row, column| weight(rows[row], column))
            }
            Content::Bias(rows) => {
                let values = rows.iter().map(|row| module.biases[row.0 as usize][place(*row)]);
                (vec![rows.len()], values.collect())
            }
            Content::Out { columns, transposed } => table(o, columns.len(), *transposed, |row, column| {
                let (head, element) = columns[column];
                module.out[(row * sizes.h() + head) * dv + element]
            }),
            Content::OutBias => (vec![o], module.out_bias.clone()),
        };
        let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
        Tensor::new(dtype, &shape, values.into_iter().flat_map(|value| encoded(value, dtype)).collect())
    }
}

fn table(
    rows: usize,
    columns: usize,
    transposed: bool,
    at: impl Fn(usize, usize) -> f32,
) -> (Vec<usize>, Vec<f32>) {
    let shape = if transposed { [columns, rows] } else { [rows, columns] };
    let cell = |i: usize, j: usize| if transposed { at(j, i) } else { at(i, j) };
    let values = (0..shape[0]).flat_map(|i| (0..shape[1]).map(move |j| (i, j))).map(|(i, j)| cell(i, j));
    (shape.to_vec(), values.collect())
}

/// The bytes of a value, rounded to nearest.
pub(crate) fn encoded(value: f32, dtype: &str) -> Vec<u8> {
    match dtype {
        "F64" => f64::from(value).to_le_bytes().to_vec(),
        "F32" => value.to_le_bytes().to_vec(),
        "F16" => half::f16::from_f32(value).to_le_bytes().to_vec(),
        "BF16" => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        other => panic!("the models have no {other}"),
    }
}

/// What a layout stores of a module.
fn pieces(layout: &str, sizes: Sizes) -> Vec<(String, Content)> {
    let fused = |weight: &str, bias: &str, rows: Vec<Row>, transposed: bool| {
        vec![
            (weight.to_owned(), Content::Weight { rows: rows.clone(), transposed }),
            (bias.to_owned(), Content::Bias(rows)),
        ]
    };
    // Pairs are neighbours in q and k, for which alone a rotation is declared.
    let neighbours = |(part, head, place): Row| match part {
        Part::V => (part, head, place),
        _ => (part, head, paired(place, sizes.d - sizes.u)),
    };
    let three = |names: [&str; 3], weight: &str, bias: &str, transposed: bool| {
        let of = |(name, part): (&str, Part)| {
            let mut rows = sizes.rows(part);
            if layout == "llama-meta" {
                rows = rows.into_iter().map(neighbours).collect();
            }
            fused(&format!("{name}{weight}"), &format!("{name}{bias}"), rows, transposed)
        };
        names.into_iter().zip([Part::Q, Part::K, Part::V]).flat_map(of).collect::<Vec<_>>()
    };
    let mut all = match layout {
        "pytorch-fused" => fused("in_proj_weight", "in_proj_bias", sizes.blocks(), false),
        "timm" => fused("qkv.weight", "qkv.bias", sizes.blocks(), false),
        "phi3" => fused("qkv_proj.weight", "qkv_proj.bias", sizes.blocks(), false),
        "conv1d" => fused("c_attn.weight", "c_attn.bias", sizes.blocks(), true),
        "neox" => fused("query_key_value.weight", "query_key_value.bias", sizes.per_head(), false),
        "megatron" => fused("linear_qkv.weight", "linear_qkv.bias", sizes.per_group(), false),
        "internlm2" => fused("wqkv.weight", "wqkv.bias", sizes.per_group(), false),
        "separate" | "llama-hf" => three(["q_proj", "k_proj", "v_proj"], ".weight", ".bias", false),
        "llama-meta" => three(["wq", "wk", "wv"], ".weight", ".bias", false),
        "bert" => three(["self.query", "self.key", "self.value"], ".weight", ".bias", false),
        "tf" => three(["self/query", "self/key", "self/value"], "/kernel", "/bias", true),
        "per-head" => {
            let mut all = Vec::new();
            for (part, name) in [(Part::Q, "q_proj"), (Part::K, "k_proj"), (Part::V, "v_proj")] {
                for head in 0..sizes.heads(part) {
                    let name = format!("heads.{head}.{name}");
                    let rows = sizes.head(part, head);
                    all.extend(fused(&format!("{name}.weight"), &format!("{name}.bias"), rows, false));
                }
            }
            for head in 0..sizes.h() {
                let columns = (0..sizes.dv).map(|element| (head, element)).collect();
                let content = Content::Out { columns, transposed: false };
                all.push((format!("heads.{head}.out_proj.weight"), content));
            }
            all.push(("out_proj.bias".into(), Content::OutBias));
            return all;
        }
        other => panic!("the models are not stored as {other}"),
    };
    let (out, bias, transposed) = match layout {
        "timm" => ("proj.weight", "proj.bias", false),
        "phi3" | "llama-hf" => ("o_proj.weight", "o_proj.bias", false),
        "conv1d" => ("c_proj.weight", "c_proj.bias", true),
        "neox" => ("dense.weight", "dense.bias", false),
        "megatron" => ("linear_proj.weight", "linear_proj.bias", false),
        "internlm2" | "llama-meta" => ("wo.weight", "wo.bias", false),
        "bert" => ("output.dense.weight", "output.dense.bias", false),
        "tf" => ("output/dense/kernel", "output/dense/bias", true),
        _ => ("out_proj.weight", "out_proj.bias", false),
    };
    all.push((out.to_owned(), Content::Out { columns: sizes.columns(), transposed }));
    all.push((bias.to_owned(), Content::OutBias));
    all
}
