//! Every pair of the attention family's layouts, against tensors that loops of this file put together by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;
use qkvconv::bind::BindOptions;
use qkvconv::convert::ConvertOptions;

use crate::kit::{self, Folder, Tensor, Tensors};

const LAYOUTS: [&str; 16] = [
    "pytorch-fused",
    "pytorch-kdim",
    "separate",
    "per-head",
    "timm",
    "bert",
    "conv1d",
    "tf",
    "flax",
    "transformer-lens",
    "neox",
    "megatron",
    "phi3",
    "internlm2",
    "llama-meta",
    "llama-hf",
];

/// Layouts that store one fused weight.
const FUSED: [&str; 7] = ["pytorch-fused", "timm", "conv1d", "neox", "megatron", "phi3", "internlm2"];

/// Layouts that store one fused bias: a missing k bias is zeros there.
const FUSED_BIAS: [&str; 8] =
    ["pytorch-fused", "pytorch-kdim", "timm", "conv1d", "neox", "megatron", "phi3", "internlm2"];

#[derive(Clone, Copy, Debug)]
struct Sizes {
    g: usize,
    r: usize,
    d: usize,
    dv: usize,
    /// Input widths of q, k and v.
    e: [usize; 3],
    o: usize,
}

impl Sizes {
    fn h(self) -> usize {
        self.g * self.r
    }
}

/// Which biases a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Biases {
    All,
    None,
    /// q, v and o have one, k has not.
    NotK,
    /// As a layout with fused biases holds that: k has one of zeros.
    ZeroK,
}

/// The canonical arrays of one module. Each element is some bytes.
struct Module {
    sizes: Sizes,
    dtype: &'static str,
    biases: Biases,
    seed: u64,
}

impl Module {
    /// The bytes of one element: random, some of them NaNs with a payload.
    fn element(&self, which: u64, at: [usize; 3]) -> Vec<u8> {
        let mut state = self.seed ^ which << 48;
        for index in at {
            state = (state ^ index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
        state = (state ^ state >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mut bytes = state.to_le_bytes()[..kit::width(self.dtype)].to_vec();
        if state.is_multiple_of(7) && self.dtype == "F32" {
            bytes = (0x7F80_0001 | state as u32 & 0x803F_FFFF).to_le_bytes().to_vec();
        }
        bytes
    }

    fn q(&self, h: usize, d: usize, e: usize) -> Vec<u8> {
        self.element(1, [h, d, e])
    }

    fn k(&self, g: usize, d: usize, e: usize) -> Vec<u8> {
        self.element(2, [g, d, e])
    }

    fn v(&self, g: usize, d: usize, e: usize) -> Vec<u8> {
        self.element(3, [g, d, e])
    }

    fn o(&self, o: usize, h: usize, d: usize) -> Vec<u8> {
        self.element(4, [o, h, d])
    }

    fn qb(&self, h: usize, d: usize) -> Vec<u8> {
        self.element(5, [h, d, 0])
    }

    fn kb(&self, g: usize, d: usize) -> Vec<u8> {
        if self.biases == Biases::All { self.element(6, [g, d, 0]) } else { vec![0; kit::width(self.dtype)] }
    }

    fn vb(&self, g: usize, d: usize) -> Vec<u8> {
        self.element(7, [g, d, 0])
    }

    fn ob(&self, o: usize) -> Vec<u8> {
        self.element(8, [o, 0, 0])
    }

    fn one(&self, shape: [usize; 1], at: impl Fn(usize) -> Vec<u8>) -> Tensor {
        self.make(&shape, (0..shape[0]).flat_map(at).collect())
    }

    fn two(&self, shape: [usize; 2], at: impl Fn(usize, usize) -> Vec<u8>) -> Tensor {
        let mut bytes = Vec::new();
        for i in 0..shape[0] {
            for j in 0..shape[1] {
                bytes.extend(at(i, j));
            }
        }
        self.make(&shape, bytes)
    }

    fn three(&self, shape: [usize; 3], at: impl Fn(usize, usize, usize) -> Vec<u8>) -> Tensor {
        let mut bytes = Vec::new();
        for i in 0..shape[0] {
            for j in 0..shape[1] {
                for k in 0..shape[2] {
                    bytes.extend(at(i, j, k));
                }
            }
        }
        self.make(&shape, bytes)
    }

    fn make(&self, shape: &[usize], bytes: Vec<u8>) -> Tensor {
        Tensor::new(self.dtype, &shape.iter().map(|&size| size as u64).collect::<Vec<_>>(), bytes)
    }

    /// A row of `[q | k | v]`, all heads of each: element `e` of the weight, or of the bias for `None`.
    fn thirds(&self, row: usize, e: Option<usize>) -> Vec<u8> {
        let Sizes { g, d, dv, .. } = self.sizes;
        let (q, k) = (self.sizes.h() * d, g * d);
        if row < q {
            e.map_or_else(|| self.qb(row / d, row % d), |e| self.q(row / d, row % d, e))
        } else if row < q + k {
            let row = row - q;
            e.map_or_else(|| self.kb(row / d, row % d), |e| self.k(row / d, row % d, e))
        } else {
            let row = row - q - k;
            e.map_or_else(|| self.vb(row / dv, row % dv), |e| self.v(row / dv, row % dv, e))
        }
    }

    /// A row of one query head after the other, each with its key and value.
    fn per_head(&self, row: usize, e: Option<usize>) -> Vec<u8> {
        let Sizes { r, d, dv, .. } = self.sizes;
        let (head, row) = (row / (2 * d + dv), row % (2 * d + dv));
        if row < d {
            e.map_or_else(|| self.qb(head, row), |e| self.q(head, row, e))
        } else if row < 2 * d {
            e.map_or_else(|| self.kb(head / r, row - d), |e| self.k(head / r, row - d, e))
        } else {
            e.map_or_else(|| self.vb(head / r, row - 2 * d), |e| self.v(head / r, row - 2 * d, e))
        }
    }

    /// A row of one group after the other: its query heads, its key, its value.
    fn per_group(&self, row: usize, e: Option<usize>) -> Vec<u8> {
        let Sizes { r, d, dv, .. } = self.sizes;
        let length = (r + 1) * d + dv;
        let (group, row) = (row / length, row % length);
        if row < r * d {
            let head = group * r + row / d;
            e.map_or_else(|| self.qb(head, row % d), |e| self.q(head, row % d, e))
        } else if row < (r + 1) * d {
            e.map_or_else(|| self.kb(group, row - r * d), |e| self.k(group, row - r * d, e))
        } else {
            let row = row - (r + 1) * d;
            e.map_or_else(|| self.vb(group, row), |e| self.v(group, row, e))
        }
    }

    /// Stores the module in a layout; names come without the module's path.
    fn store(&self, layout: &str) -> Vec<(String, Tensor)> {
        let Sizes { g, d, dv, e: [eq, ek, ev], o, .. } = self.sizes;
        let h = self.sizes.h();
        let biased = self.biases != Biases::None;
        let k_biased = matches!(self.biases, Biases::All | Biases::ZeroK);
        let mut all: Vec<(String, Tensor)> = Vec::new();
        let mut put = |name: &str, tensor: Tensor| all.push((name.to_owned(), tensor));
        let linear =
            |heads: usize, size: usize, width: usize, at: &dyn Fn(usize, usize, usize) -> Vec<u8>| {
                self.two([heads * size, width], |row, e| at(row / size, row % size, e))
            };
        let flat = |heads: usize, size: usize, at: &dyn Fn(usize, usize) -> Vec<u8>| {
            self.one([heads * size], |row| at(row / size, row % size))
        };
        // Rows of a rotary head in the order in which pairs are neighbours.
        let pairs = |row: usize| row % 2 * (d / 2) + row / 2;
        let fused_rows = h * d + g * d + g * dv;
        match layout {
            "pytorch-fused" | "timm" | "phi3" => {
                let (weight, bias) = match layout {
                    "pytorch-fused" => ("in_proj_weight", "in_proj_bias"),
                    "timm" => ("qkv.weight", "qkv.bias"),
                    _ => ("qkv_proj.weight", "qkv_proj.bias"),
                };
                put(weight, self.two([fused_rows, eq], |row, e| self.thirds(row, Some(e))));
                if biased {
                    put(bias, self.one([fused_rows], |row| self.thirds(row, None)));
                }
            }
            "conv1d" => {
                put("c_attn.weight", self.two([eq, fused_rows], |e, row| self.thirds(row, Some(e))));
                if biased {
                    put("c_attn.bias", self.one([fused_rows], |row| self.thirds(row, None)));
                }
            }
            "neox" => {
                let rows = h * (2 * d + dv);
                put("query_key_value.weight", self.two([rows, eq], |row, e| self.per_head(row, Some(e))));
                if biased {
                    put("query_key_value.bias", self.one([rows], |row| self.per_head(row, None)));
                }
            }
            "megatron" | "internlm2" => {
                let (weight, bias) = match layout {
                    "megatron" => ("linear_qkv.weight", "linear_qkv.bias"),
                    _ => ("wqkv.weight", "wqkv.bias"),
                };
                put(weight, self.two([fused_rows, eq], |row, e| self.per_group(row, Some(e))));
                if biased {
                    put(bias, self.one([fused_rows], |row| self.per_group(row, None)));
                }
            }
            "pytorch-kdim" => {
                put("q_proj_weight", linear(h, d, eq, &|h, d, e| self.q(h, d, e)));
                put("k_proj_weight", linear(g, d, ek, &|g, d, e| self.k(g, d, e)));
                put("v_proj_weight", linear(g, dv, ev, &|g, d, e| self.v(g, d, e)));
                if biased {
                    put("in_proj_bias", self.one([fused_rows], |row| self.thirds(row, None)));
                }
            }
            "separate" | "bert" | "llama-hf" | "llama-meta" => {
                let [q, k, v] = match layout {
                    "bert" => ["self.query", "self.key", "self.value"],
                    "llama-meta" => ["wq", "wk", "wv"],
                    _ => ["q_proj", "k_proj", "v_proj"],
                };
                let row = |row: usize| if layout == "llama-meta" { pairs(row) } else { row };
                put(&format!("{q}.weight"), linear(h, d, eq, &|h, d, e| self.q(h, row(d), e)));
                put(&format!("{k}.weight"), linear(g, d, ek, &|g, d, e| self.k(g, row(d), e)));
                put(&format!("{v}.weight"), linear(g, dv, ev, &|g, d, e| self.v(g, d, e)));
                if biased {
                    put(&format!("{q}.bias"), flat(h, d, &|h, d| self.qb(h, row(d))));
                    put(&format!("{v}.bias"), flat(g, dv, &|g, d| self.vb(g, d)));
                }
                if k_biased {
                    put(&format!("{k}.bias"), flat(g, d, &|g, d| self.kb(g, row(d))));
                }
            }
            "tf" => {
                put("self/query/kernel", self.two([eq, h * d], |e, row| self.q(row / d, row % d, e)));
                put("self/key/kernel", self.two([ek, g * d], |e, row| self.k(row / d, row % d, e)));
                put("self/value/kernel", self.two([ev, g * dv], |e, row| self.v(row / dv, row % dv, e)));
                if biased {
                    put("self/query/bias", flat(h, d, &|h, d| self.qb(h, d)));
                    put("self/value/bias", flat(g, dv, &|g, d| self.vb(g, d)));
                }
                if k_biased {
                    put("self/key/bias", flat(g, d, &|g, d| self.kb(g, d)));
                }
            }
            "flax" => {
                put("query/kernel", self.three([eq, h, d], |e, h, d| self.q(h, d, e)));
                put("key/kernel", self.three([ek, g, d], |e, g, d| self.k(g, d, e)));
                put("value/kernel", self.three([ev, g, dv], |e, g, d| self.v(g, d, e)));
                if biased {
                    put("query/bias", self.two([h, d], |h, d| self.qb(h, d)));
                    put("value/bias", self.two([g, dv], |g, d| self.vb(g, d)));
                }
                if k_biased {
                    put("key/bias", self.two([g, d], |g, d| self.kb(g, d)));
                }
            }
            "transformer-lens" => {
                put("W_Q", self.three([h, eq, d], |h, e, d| self.q(h, d, e)));
                put("W_K", self.three([g, ek, d], |g, e, d| self.k(g, d, e)));
                put("W_V", self.three([g, ev, dv], |g, e, d| self.v(g, d, e)));
                if biased {
                    put("b_Q", self.two([h, d], |h, d| self.qb(h, d)));
                    put("b_V", self.two([g, dv], |g, d| self.vb(g, d)));
                }
                if k_biased {
                    put("b_K", self.two([g, d], |g, d| self.kb(g, d)));
                }
            }
            "per-head" => {
                for head in 0..h {
                    put(&format!("heads.{head}.q_proj.weight"), self.two([d, eq], |d, e| self.q(head, d, e)));
                    put(
                        &format!("heads.{head}.out_proj.weight"),
                        self.two([o, dv], |o, d| self.o(o, head, d)),
                    );
                    if biased {
                        put(&format!("heads.{head}.q_proj.bias"), self.one([d], |d| self.qb(head, d)));
                    }
                }
                for group in 0..g {
                    put(
                        &format!("heads.{group}.k_proj.weight"),
                        self.two([d, ek], |d, e| self.k(group, d, e)),
                    );
                    put(
                        &format!("heads.{group}.v_proj.weight"),
                        self.two([dv, ev], |d, e| self.v(group, d, e)),
                    );
                    if biased {
                        put(&format!("heads.{group}.v_proj.bias"), self.one([dv], |d| self.vb(group, d)));
                    }
                    if k_biased {
                        put(&format!("heads.{group}.k_proj.bias"), self.one([d], |d| self.kb(group, d)));
                    }
                }
            }
            other => panic!("no layout {other}"),
        }
        let output = || self.two([o, h * dv], |o, column| self.o(o, column / dv, column % dv));
        let dense = || self.two([h * dv, o], |row, o| self.o(o, row / dv, row % dv));
        let heads = || self.three([h, dv, o], |h, d, o| self.o(o, h, d));
        match layout {
            "pytorch-fused" | "pytorch-kdim" | "separate" => put("out_proj.weight", output()),
            "per-head" => {}
            "timm" => put("proj.weight", output()),
            "bert" => put("output.dense.weight", output()),
            "conv1d" => put("c_proj.weight", dense()),
            "tf" => put("output/dense/kernel", dense()),
            "flax" => put("out/kernel", heads()),
            "transformer-lens" => put("W_O", heads()),
            "neox" => put("dense.weight", output()),
            "megatron" => put("linear_proj.weight", output()),
            "internlm2" | "llama-meta" => put("wo.weight", output()),
            _ => put("o_proj.weight", output()),
        }
        if biased {
            let name = match layout {
                "timm" => "proj.bias",
                "bert" => "output.dense.bias",
                "conv1d" => "c_proj.bias",
                "tf" => "output/dense/bias",
                "flax" => "out/bias",
                "transformer-lens" => "b_O",
                "neox" => "dense.bias",
                "megatron" => "linear_proj.bias",
                "internlm2" | "llama-meta" => "wo.bias",
                "phi3" | "llama-hf" => "o_proj.bias",
                _ => "out_proj.bias",
            };
            put(name, self.one([o], |o| self.ob(o)));
        }
        all
    }
}

/// A model of two modules, and a tensor that belongs to neither.
fn model(layout: &str, sizes: Sizes, dtype: &'static str, biases: Biases) -> Tensors {
    let mut tensors = Tensors::new();
    for (module, seed) in [("enc.layers.0.attn", 11), ("enc.layers.1.attn", 23)] {
        // Segments are joined by what follows the path in the layout's names; all of flax's and TensorFlow's are slashes.
        let slashes = ["flax", "tf"].contains(&layout);
        let path = if slashes { module.replace('.', "/") } else { module.to_owned() };
        let separator = if slashes { "/" } else { "." };
        let stored = Module { sizes, dtype, biases, seed }.store(layout);
        tensors.extend(stored.into_iter().map(|(name, tensor)| (format!("{path}{separator}{name}"), tensor)));
    }
    tensors.insert("head.weight".to_owned(), Tensor::new("I16", &[3, 2], (0..12).collect()));
    tensors
}

fn options(sizes: Sizes) -> ConvertOptions {
    let axes = [("h", sizes.h()), ("g", sizes.g), ("d", sizes.d), ("dv", sizes.dv)];
    let axes = axes.map(|(axis, size)| (axis.to_owned(), size as u64)).to_vec();
    ConvertOptions::default().bind(BindOptions::default().axes(axes))
}

/// Converts each layout to each and back.
fn all_pairs(sizes: Sizes, dtype: &'static str, biases: Biases) {
    let folder = Folder::new();
    let options = options(sizes);
    for from in LAYOUTS {
        // A fused bias holds zeros where k has no bias of its own.
        let fused = FUSED_BIAS.contains(&from);
        let held = if biases == Biases::NotK && fused { Biases::ZeroK } else { biases };
        let source = model(from, sizes, dtype, held);
        let path = folder.tensors("a.safetensors", &source);
        for to in LAYOUTS {
            let made = folder.join("b.safetensors");
            let done = kit::convert(None, (from, to), &path, &made, &options);
            done.unwrap_or_else(|errors| panic!("{from} -> {to}: {errors}"));
            let passed =
                if biases == Biases::NotK && FUSED_BIAS.contains(&to) { Biases::ZeroK } else { held };
            same(&kit::read(&made), &model(to, sizes, dtype, passed), &format!("{from} -> {to}"));
            let back = folder.join("c.safetensors");
            let done = kit::convert(None, (to, from), &made, &back, &options);
            done.unwrap_or_else(|errors| panic!("{to} -> {from}: {errors}"));
            same(&kit::read(&back), &model(from, sizes, dtype, passed), &format!("{from} -> {to} -> {from}"));
        }
    }
}

fn same(made: &Tensors, wanted: &Tensors, what: &str) {
    let names = |tensors: &Tensors| tensors.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(made), names(wanted), "{what}");
    let differ: BTreeMap<&String, (&Tensor, &Tensor)> = made
        .iter()
        .filter(|(key, tensor)| wanted[*key] != **tensor)
        .map(|(key, t)| (key, (t, &wanted[key])))
        .collect();
    assert!(differ.is_empty(), "{what}: {differ:?}");
}

const GROUPED: Sizes = Sizes { g: 2, r: 3, d: 10, dv: 14, e: [7, 7, 7], o: 9 };

#[test]
fn all_pairs_of_grouped_queries() {
    all_pairs(GROUPED, "F32", Biases::All);
}

#[test]
fn all_pairs_without_biases() {
    all_pairs(GROUPED, "F16", Biases::None);
}

#[test]
fn all_pairs_without_a_key_bias() {
    all_pairs(GROUPED, "U8", Biases::NotK);
}

#[test]
fn all_pairs_of_one_group() {
    all_pairs(Sizes { g: 1, r: 5, d: 6, dv: 6, e: [11, 11, 11], o: 7 }, "F16", Biases::All);
}

#[test]
fn all_pairs_of_plain_heads() {
    all_pairs(Sizes { g: 3, r: 1, d: 6, dv: 6, e: [11, 11, 11], o: 5 }, "F32", Biases::NotK);
}

#[test]
fn widths_of_their_own_cannot_be_fused() {
    let sizes = Sizes { e: [7, 11, 13], ..GROUPED };
    let folder = Folder::new();
    let apart = LAYOUTS.iter().filter(|layout| !FUSED.contains(layout));
    for &from in apart {
        let path = folder.tensors("a.safetensors", &model(from, sizes, "F32", Biases::All));
        for to in LAYOUTS {
            let made = folder.join("b.safetensors");
            let done = kit::convert(None, (from, to), &path, &made, &options(sizes));
            if !FUSED.contains(&to) {
                done.unwrap_or_else(|errors| panic!("{from} -> {to}: {errors}"));
                same(&kit::read(&made), &model(to, sizes, "F32", Biases::All), &format!("{from} -> {to}"));
                continue;
            }
            let errors = done.expect_err("three widths in one tensor");
            for error in errors.diagnostics() {
                assert_eq!(
                    (error.code.as_str(), error.message.as_str()),
                    ("bind/size-conflict", "`e` cannot have two sizes")
                );
                assert!(error.help.is_some() && !error.tensors.is_empty(), "{from} -> {to}: {error:?}");
            }
            let text = format!("{:?}", errors.diagnostics());
            assert!(
                ["7 (", "11 (", "13 ("].iter().all(|width| text.contains(width)),
                "{from} -> {to}: {text}"
            );
        }
    }
}

#[test]
fn an_odd_head_has_no_rotary_pairs() {
    let sizes = Sizes { d: 5, dv: 5, ..GROUPED };
    let folder = Folder::new();
    let path = folder.tensors("a.safetensors", &model("separate", sizes, "F32", Biases::None));
    let made = folder.join("b.safetensors");
    let errors = kit::convert(None, ("separate", "llama-meta"), &path, &made, &options(sizes));
    let errors = errors.expect_err("five elements are no pairs");
    assert_eq!(errors.diagnostics()[0].code, "bind/indivisible");
}

#[test]
fn repeated_heads_that_differ_are_not_one() {
    let folder = Folder::new();
    let mut tensors = model("neox", GROUPED, "F32", Biases::None);
    let fused = tensors.get_mut("enc.layers.1.attn.query_key_value.weight").expect("is there");
    // A byte of the key rows of the second query head of the first group.
    let row = (2 * 10 + 14) + 10 + 3;
    fused.bytes[(row * 7 + 2) * 4] ^= 1;
    let path = folder.tensors("a.safetensors", &tensors);
    let errors =
        kit::convert(None, ("neox", "separate"), &path, &folder.join("b.safetensors"), &options(GROUPED));
    let errors = errors.expect_err("the copies differ");
    assert_eq!(errors.diagnostics()[0].code, "data/unequal");
    assert!(errors.to_string().contains("enc.layers.1.attn.query_key_value.weight"), "{errors}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sizes_go_there_and_back(
        (g, r, half, dv) in (1_usize..4, 1_usize..4, 1_usize..4, 1_usize..6),
        (e, o) in (1_usize..9, 1_usize..9),
        (from, to) in (0_usize..16, 0_usize..16),
    ) {
        let sizes = Sizes { g, r, d: 2 * half, dv, e: [e; 3], o };
        let folder = Folder::new();
        let (from, to) = (LAYOUTS[from], LAYOUTS[to]);
        let path = folder.tensors("a.safetensors", &model(from, sizes, "F32", Biases::All));
        let made = folder.join("b.safetensors");
        let done = kit::convert(None, (from, to), &path, &made, &options(sizes));
        prop_assert!(done.is_ok(), "{from} -> {to} {sizes:?}: {done:?}");
        prop_assert_eq!(kit::read(&made), model(to, sizes, "F32", Biases::All), "{} -> {} {:?}", from, to, sizes);
    }
}
