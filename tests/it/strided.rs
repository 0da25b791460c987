//! Source tensors in any order and with any strides: what they convert to is what the same values stored row by row convert
//! to, and every check agrees.

use std::path::Path;

use globset::{Glob, GlobSet};
use proptest::prelude::*;
use qkvconv::bind::{Allow, BindOptions, Tied, bind};
use qkvconv::catalog::{Catalog, TensorMeta};
use qkvconv::convert::{Attention, Companions, Conversion, ConvertOptions, Verify};
use qkvconv::diag::Errors;
use qkvconv::dtype::Dtype;
use qkvconv::exec::Limits;
use qkvconv::exec::publish::{Destination, PublishOptions};
use qkvconv::format::output::{OutputOptions, OutputTensor, lay_out};
use qkvconv::format::{Format, Reader};
use qkvconv::mapping::select::select;
use qkvconv::plan::{build, prove};
use serde_json::json;

use crate::kit::{self, Folder, Memory, Nobody, Tensor, Tensors, read, width, write};

/// Numbers from a seed.
pub(crate) struct Choices(pub(crate) u64);

impl Choices {
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }
}

/// Returns the index of an element, given its number row by row.
pub(crate) fn index(shape: &[u64], mut number: u64) -> Vec<u64> {
    let mut index: Vec<u64> = shape
        .iter()
        .rev()
        .map(|size| {
            let at = number % size;
            number /= size;
            at
        })
        .collect();
    index.reverse();
    index
}

/// Stores tensors with their dimensions in any order, with gaps and, where they repeat along a dimension, without a stride.
fn stored(tensors: &Tensors, path: &Path, choices: &mut Choices) -> Memory {
    let (mut metas, mut bytes) = (Vec::new(), vec![0xee; 3]);
    for (key, tensor) in tensors {
        let width = width(&tensor.dtype);
        let element = |at: &[u64]| {
            let number = at.iter().zip(&tensor.shape).fold(0, |sum, (at, size)| sum * size + at) as usize;
            &tensor.bytes[number * width..(number + 1) * width]
        };
        let count = tensor.shape.iter().product::<u64>();
        let repeats = |dim: usize| {
            (0..count).all(|number| {
                let mut at = index(&tensor.shape, number);
                let here = element(&at);
                at[dim] = 0;
                here == element(&at)
            })
        };
        let mut order: Vec<usize> = (0..tensor.shape.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, choices.below(at as u64 + 1) as usize);
        }
        let mut strides = vec![0; order.len()];
        let mut step = 1 + choices.below(2);
        for &dim in &order {
            if tensor.shape[dim] > 1 && repeats(dim) {
                continue;
            }
            strides[dim] = step;
            step *= tensor.shape[dim] + choices.below(3);
        }
        // As readers leave them: a dimension of one element has the stride of a tensor in order.
        for dim in (0..order.len()).rev().filter(|&dim| tensor.shape[dim] == 1) {
            strides[dim] = strides.get(dim + 1).map_or(1, |stride| stride * tensor.shape[dim + 1]);
        }
        let offset = bytes.len();
        let place =
            |at: &[u64]| at.iter().zip(&strides).map(|(at, stride)| at * stride).sum::<u64>() as usize;
        let last: Vec<u64> = tensor.shape.iter().map(|size| size - 1).collect();
        bytes.resize(offset + (place(&last) + 1) * width, 0xee);
        for number in 0..count {
            let at = index(&tensor.shape, number);
            let start = offset + place(&at) * width;
            bytes[start..start + width].copy_from_slice(element(&at));
        }
        let dtype = Dtype::from_name(&tensor.dtype).expect("a type");
        let (key, shape) = (key.clone(), tensor.shape.clone());
        metas.push(TensorMeta {
            key,
            dtype,
            shape,
            strides,
            file: 0,
            offset: offset as u64,
            extents: Vec::new(),
        });
    }
    let files = vec![(path.to_owned(), bytes.len() as u64)];
    Memory { format: Format::PyTorch, catalog: Catalog::new(path.to_owned(), files, metas), bytes }
}

/// Converts a checkpoint in memory, with every check; returns what was computed.
pub(crate) fn convert(
    (from, to): (&str, &str),
    reader: Box<dyn Reader>,
    destination: &Path,
    options: &BindOptions,
) -> Result<Attention, Errors> {
    let source = reader.catalog();
    let selection = select(&format!("attention/{from}"), &format!("attention/{to}"), &[])?;
    let bound = bind(selection.mapping(), selection.source(), selection.target(), source, options)?;
    let plan = build(&bound, source, options)?;
    let proof = prove(&plan, source)?;
    let tensors: Vec<OutputTensor<'_>> = plan
        .targets
        .iter()
        .map(|target| OutputTensor { key: &target.key, dtype: target.dtype, shape: &target.shape })
        .collect();
    let output =
        OutputOptions { format: Format::Safetensors, name: None, max_shard_size: None, template: None };
    let layout = lay_out(&tensors, &source.metadata, &output)?;
    let companions = Companions::default();
    let (selection, warnings) = (&selection, Vec::new());
    let (trust_layout, resume) = (true, false);
    let conversion = Conversion {
        selection,
        reader,
        bound,
        plan,
        proof,
        layout,
        companions,
        warnings,
        trust_layout,
        resume,
        inputs: Vec::new(),
    };
    let publish = PublishOptions::default().force(true);
    let destination = Destination::resolve(destination);
    let limits = Limits::default().threads(2);
    let done = conversion.run(&destination, publish, Verify::Full, &limits, &Nobody)?;
    done.verdict()?;
    Ok(done.checked.and_then(|checked| checked.attention).expect("computed"))
}

/// A module of six query heads for two key heads, 4 and 5 wide, of input 7 and output 9. Where `flat`, a weight or bias
/// repeats along some of its dimensions.
pub(crate) fn model(choices: &mut Choices, flat: bool) -> Tensors {
    let mut tensors = Tensors::new();
    let shapes: &[(&str, &[u64])] = &[
        ("a.q_proj.weight", &[24, 7]),
        ("a.k_proj.weight", &[8, 7]),
        ("a.v_proj.weight", &[10, 7]),
        ("a.q_proj.bias", &[24]),
        ("a.k_proj.bias", &[8]),
        ("a.v_proj.bias", &[10]),
        ("a.out_proj.weight", &[9, 30]),
        ("a.out_proj.bias", &[9]),
        ("table", &[2, 3, 5]),
        ("dropped", &[3, 4]),
        ("one", &[1, 4, 1]),
    ];
    for (key, shape) in shapes {
        let constant: Vec<bool> = shape.iter().map(|_| flat && choices.below(2) == 0).collect();
        let base = choices.below(100) as f32;
        let value = |number: u64| {
            let at = index(shape, number);
            let steps = at.iter().zip(*shape).zip(&constant);
            let number =
                steps.fold(0, |sum, ((at, size), constant)| sum * size + if *constant { 0 } else { *at });
            base + number as f32 / 8.0
        };
        tensors.insert((*key).to_owned(), Tensor::f32(shape, (0..shape.iter().product::<u64>()).map(value)));
    }
    tensors
}

pub(crate) const LAYOUTS: [&str; 8] =
    ["separate", "pytorch-fused", "conv1d", "flax", "per-head", "transformer-lens", "megatron", "llama-meta"];

pub(crate) fn options(dtype: Option<Dtype>) -> BindOptions {
    let axes = [("h", 6), ("g", 2), ("d", 4), ("dv", 5), ("u", 0)];
    let glob = Glob::new("dropped").expect("a pattern");
    BindOptions::default()
        .axes(axes.map(|(axis, size)| (axis.to_owned(), size)).to_vec())
        .allow(vec![Allow::Unmatched])
        .drop(Some(GlobSet::builder().add(glob).build().expect("a set")))
        .dtype(dtype)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn strides_change_nothing(
        seed in any::<u64>(), from in 0_usize..8, to in 0_usize..8, flat in any::<bool>(), cast in 0_usize..3,
    ) {
        let (from, to) = (LAYOUTS[from], LAYOUTS[to]);
        let dtype = [None, Some(Dtype::F64), Some(Dtype::BF16)][cast];
        let mut choices = Choices(seed);
        let folder = Folder::new();
        let model = model(&mut choices, flat);
        write(&folder.join("model.safetensors"), &model, &[]);
        let plain = |pair, source: &str, target: &str, bind: BindOptions| {
            let options = ConvertOptions::default().bind(bind).trust_layout(true);
            let pair: (&str, &str) = pair;
            kit::convert(None, pair, &folder.join(source), &folder.join(target), &options)
        };
        // The source as its layout has it, with what a rule takes, what passes through and what is dropped.
        let keep = options(None).drop(None::<GlobSet>);
        plain(("separate", from), "model.safetensors", "source.safetensors", keep).expect("converts");
        plain((from, to), "source.safetensors", "expected.safetensors", options(dtype)).expect("converts");
        let source = stored(&read(&folder.join("source.safetensors")), &folder.join("source.safetensors"), &mut choices);
        let strides: Vec<_> = source.catalog.tensors.iter().map(|t| (t.key.clone(), t.strides.clone())).collect();
        let result = convert((from, to), Box::new(source), &folder.join("found.safetensors"), &options(dtype));
        prop_assert!(result.is_ok(), "{} to {}: {}\n{:?}", from, to, result.unwrap_err(), strides);
        let attention = result.expect("converts");
        prop_assert!(attention.modules > 0 && attention.random_modules > 0, "{:?}", attention.abstained);
        prop_assert_eq!(read(&folder.join("found.safetensors")), read(&folder.join("expected.safetensors")), "{:?}", strides);
    }
}

/// What PyTorch itself wrote: rules that transpose and join its views, and the others passing through.
#[test]
fn views_of_pytorch_convert_as_their_values_do() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats/pytorch");
    let mapping = kit::mapping(
        "views",
        json!({ "a": "primitive", "b": "primitive", "c": "primitive" }),
        json!({ "w": "a b", "v": "b c" }),
        json!({
            "x": { "tensors": { "transposed": "w: a b", "expanded": "v: b c" } },
            "y": { "tensors": { "joined": "b (w: a + v: c)" } },
        }),
    );
    let bind = BindOptions::default().allow(vec![Allow::Unmatched]).tied(Tied::Duplicate);
    let options = ConvertOptions::default().bind(bind);
    let folder = Folder::new();
    let converted = |source: &str| {
        let target = folder.join("out.safetensors");
        let done = kit::convert(Some(&mapping), ("x", "y"), &fixtures.join(source), &target, &options);
        done.unwrap_or_else(|errors| panic!("{source}: {errors}"));
        read(&target)
    };
    let expected = converted("views.expected.safetensors");
    assert_eq!(expected["joined"].shape, [3, 9]);
    for source in ["views.pt", "views.legacy.pt"] {
        assert_eq!(converted(source), expected, "{source}");
    }
}
