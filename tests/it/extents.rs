//! Tensors in boxes, in several files and in any order: what they convert to is what the same values in one piece convert to,
//! and everything that reads them agrees.

use std::io;
use std::path::Path;

use globset::GlobSet;
use proptest::prelude::*;
use qkvconv::bind::bind;
use qkvconv::catalog::{Catalog, Extent, TensorMeta, row_major};
use qkvconv::convert::ConvertOptions;
use qkvconv::diag::Errors;
use qkvconv::diff::{DiffOptions, diff};
use qkvconv::dtype::Dtype;
use qkvconv::evidence::{Limits, examine};
use qkvconv::format::{Format, OpenOptions, Reader, assembled, open};
use qkvconv::mapping::select::select;
use qkvconv::read::{ReadAt, read_memory};
use qkvconv::verify::readback::read_back;

use crate::kit::{self, Folder, Nobody, Tensor, Tensors, read, width, write};
use crate::strided::{Choices, LAYOUTS, convert, index, model, options};

/// Files in memory without tensors of their own.
struct Files {
    catalog: Catalog,
    files: Vec<Vec<u8>>,
}

impl ReadAt for Files {
    fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        read_memory(self.files.get(file).ok_or(io::ErrorKind::InvalidInput)?, offset, buffer)
    }
}

impl Reader for Files {
    fn format(&self) -> Format {
        Format::PyTorch
    }

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn unchanged(&self) -> Result<(), Errors> {
        Ok(())
    }
}

/// A checkpoint cut into boxes, before it is put together.
struct Cut {
    files: Vec<Vec<u8>>,
    tensors: Vec<TensorMeta>,
}

impl Cut {
    fn reader(&self, path: &Path) -> Result<Box<dyn Reader>, Errors> {
        let files = self.files.iter().enumerate();
        let named = files.map(|(at, file)| (path.join(format!("part-{at}")), file.len() as u64)).collect();
        let catalog = Catalog::new(path.to_owned(), named, Vec::new());
        assembled(Box::new(Files { catalog, files: self.files.clone() }), self.tensors.clone())
    }
}

/// A box: offsets and lengths.
type Cuboid = (Vec<u64>, Vec<u64>);

/// Cuts boxes at random places, so that some may be empty.
fn boxes(shape: &[u64], choices: &mut Choices) -> Vec<Cuboid> {
    let mut all: Vec<Cuboid> = vec![(vec![0; shape.len()], shape.to_vec())];
    for _ in 0..choices.below(6) {
        let at = choices.below(all.len() as u64) as usize;
        if shape.is_empty() {
            break;
        }
        let dim = choices.below(shape.len() as u64) as usize;
        let (offsets, lengths) = all.swap_remove(at);
        let cut = choices.below(lengths[dim] + 1);
        let (mut first, mut second) = ((offsets.clone(), lengths.clone()), (offsets, lengths));
        first.1[dim] = cut;
        second.0[dim] += cut;
        second.1[dim] -= cut;
        all.extend([first, second]);
    }
    // A copy of some box, and one of a box that reaches into others.
    if choices.below(2) == 0 {
        let at = choices.below(all.len() as u64) as usize;
        all.push(all[at].clone());
    }
    if choices.below(2) == 0 {
        let offsets: Vec<u64> = shape.iter().map(|size| choices.below(*size)).collect();
        let lengths =
            shape.iter().zip(&offsets).map(|(size, first)| 1 + choices.below(size - first)).collect();
        all.push((offsets, lengths));
    }
    for at in (1..all.len()).rev() {
        all.swap(at, choices.below(at as u64 + 1) as usize);
    }
    all
}

/// Stores tensors in boxes over three files, each box with its dimensions in any order and with gaps; a box of one value
/// may be a fill.
fn cut(tensors: &Tensors, choices: &mut Choices) -> Cut {
    let mut files = vec![vec![0xee; 3], vec![0xee; 5], Vec::new()];
    let mut metas = Vec::new();
    for (key, tensor) in tensors {
        let width = width(&tensor.dtype);
        let strides = row_major(&tensor.shape);
        let element = |at: &[u64]| {
            let number = at.iter().zip(&strides).map(|(at, stride)| at * stride).sum::<u64>() as usize;
            &tensor.bytes[number * width..(number + 1) * width]
        };
        let mut extents = Vec::new();
        for (offsets, lengths) in boxes(&tensor.shape, choices) {
            let count: u64 = lengths.iter().product();
            let inside = |number: u64| index(&lengths, number);
            let absolute =
                |at: &[u64]| at.iter().zip(&offsets).map(|(at, first)| at + first).collect::<Vec<u64>>();
            let all: Vec<Vec<u64>> = (0..count).map(inside).collect();
            let is_one = all.windows(2).all(|two| element(&absolute(&two[0])) == element(&absolute(&two[1])));
            if count > 0 && is_one && choices.below(2) == 0 {
                let mut bits = [0; 8];
                bits[..width].copy_from_slice(element(&absolute(&all[0])));
                extents.push(Extent::fill(offsets, lengths, u64::from_le_bytes(bits)));
                continue;
            }
            let mut order: Vec<usize> = (0..lengths.len()).collect();
            if choices.below(2) == 0 {
                for at in (1..order.len()).rev() {
                    order.swap(at, choices.below(at as u64 + 1) as usize);
                }
            } else {
                order.reverse();
            }
            let mut steps = vec![0; lengths.len()];
            let mut step = 1;
            for &dim in &order {
                steps[dim] = step;
                step *= lengths[dim].max(1) + choices.below(2);
            }
            let file = choices.below(3) as usize;
            let start = files[file].len();
            let mut placed = Extent::stored(offsets.clone(), lengths.clone(), file, start as u64);
            for at in &all {
                let place = at.iter().zip(&steps).map(|(at, step)| at * step).sum::<u64>() as usize;
                let from = start + place * width;
                let end = files[file].len().max(from + width);
                files[file].resize(end, 0xee);
                files[file][from..from + width].copy_from_slice(element(&absolute(at)));
            }
            placed.strides = steps;
            extents.push(placed);
        }
        let dtype = Dtype::from_name(&tensor.dtype).expect("a type");
        metas.push(TensorMeta::in_extents(key.clone(), dtype, tensor.shape.clone(), extents));
    }
    for at in (1..metas.len()).rev() {
        metas.swap(at, choices.below(at as u64 + 1) as usize);
    }
    Cut { files, tensors: metas }
}

/// A checkpoint of a layout, with what a rule takes, what passes through and what is dropped.
fn source(from: &str, flat: bool, choices: &mut Choices, folder: &Folder) -> Tensors {
    write(&folder.join("model.safetensors"), &model(choices, flat), &[]);
    let keep = ConvertOptions::default().bind(options(None).drop(None::<GlobSet>)).trust_layout(true);
    let (plain, target) = (folder.join("model.safetensors"), folder.join("source.safetensors"));
    kit::convert(None, ("separate", from), &plain, &target, &keep).expect("converts");
    read(&target)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Conversion with every check, reading back, comparing and weighing.
    #[test]
    fn boxes_change_nothing(
        seed in any::<u64>(), from in 0_usize..8, to in 0_usize..8, flat in any::<bool>(), cast in 0_usize..3,
    ) {
        let (from, to) = (LAYOUTS[from], LAYOUTS[to]);
        let dtype = [None, Some(Dtype::F64), Some(Dtype::BF16)][cast];
        let mut choices = Choices(seed);
        let folder = Folder::new();
        let tensors = source(from, flat, &mut choices, &folder);
        let plain = ConvertOptions::default().bind(options(dtype)).trust_layout(true);
        let (whole, expected) = (folder.join("source.safetensors"), folder.join("expected.safetensors"));
        kit::convert(None, (from, to), &whole, &expected, &plain).expect("converts");
        let cut = cut(&tensors, &mut choices);
        let described = format!("{from} to {to}: {:?}", cut.tensors);
        let reader = || cut.reader(&whole).expect("is whole");
        let found = folder.join("found.safetensors");
        let result = convert((from, to), reader(), &found, &options(dtype));
        prop_assert!(result.is_ok(), "{}\n{}", result.unwrap_err(), described);
        prop_assert!(result.expect("converts").modules > 0);
        prop_assert_eq!(read(&found), read(&expected), "{}", described);

        let one_piece = open(&whole, &OpenOptions::default()).expect("opens");
        let boxed = reader();
        let report = diff(one_piece.as_ref(), boxed.as_ref(), &DiffOptions::default(), &Nobody).expect("reads");
        prop_assert!(report.equal(), "{}", described);

        let selection = select(&format!("attention/{from}"), &format!("attention/{to}"), &[]).expect("layouts");
        let bound = |reader: &dyn Reader| {
            let (mapping, options) = (selection.mapping(), options(dtype));
            bind(mapping, selection.source(), selection.target(), reader.catalog(), &options).expect("fits")
        };
        let weighed = |reader: &dyn Reader| {
            let mut found = examine(reader, &bound(reader), &Limits::default(), &Nobody).expect("readable");
            // In the order of the files.
            found.skipped.sort();
            found
        };
        prop_assert_eq!(weighed(one_piece.as_ref()), weighed(boxed.as_ref()));

        // One wrong element of the target, wherever it is.
        let mut tensors = read(&found);
        let keys: Vec<String> = tensors.keys().cloned().collect();
        let tensor = tensors.get_mut(&keys[choices.below(keys.len() as u64) as usize]).expect("it is there");
        let byte = choices.below(tensor.bytes.len() as u64) as usize;
        tensor.bytes[byte] ^= 0x41;
        write(&found, &tensors, &[]);
        let target = open(&found, &OpenOptions::default()).expect("opens");
        let checked = read_back(&selection, &bound(boxed.as_ref()), boxed.as_ref(), target.as_ref(), 2, &Nobody);
        prop_assert!(!checked.expect("reads").agrees(), "{}", described);
    }

    /// A box that is missing is named, and the conversion does not begin.
    #[test]
    fn a_missing_box_is_an_error(seed in any::<u64>(), from in 0_usize..8) {
        let mut choices = Choices(seed);
        let folder = Folder::new();
        let tensors = source(LAYOUTS[from], false, &mut choices, &folder);
        let mut cut = cut(&tensors, &mut choices);
        let at = choices.below(cut.tensors.len() as u64) as usize;
        let tensor = &mut cut.tensors[at];
        let lost = tensor.extents.remove(choices.below(tensor.extents.len() as u64) as usize);
        let holds = |extent: &Extent, at: &[u64]| {
            let ends = extent.offsets.iter().zip(&extent.lengths).map(|(first, length)| first + length);
            at.iter().zip(&extent.offsets).zip(ends).all(|((at, first), end)| (*first..end).contains(at))
        };
        let count: u64 = tensor.shape.iter().product();
        let is_whole = (0..count).map(|number| index(&tensor.shape, number)).all(|at| {
            tensor.extents.iter().any(|extent| holds(extent, &at))
        });
        let key = tensor.key.clone();
        // Nothing is left of a tensor whose only box is lost.
        if tensor.extents.is_empty() {
            return Ok(());
        }
        match cut.reader(folder.path()) {
            Ok(_) => prop_assert!(is_whole, "{lost:?}"),
            Err(errors) => {
                prop_assert!(!is_whole, "{}", errors);
                let error = &errors.diagnostics()[0];
                prop_assert_eq!((error.code.as_str(), &error.tensors), ("catalog/missing", &vec![key]));
            }
        }
    }
}

/// Two boxes that should hold the same elements and do not.
#[test]
fn replicas_that_differ_stop_the_conversion() {
    let folder = Folder::new();
    let mut choices = Choices(3);
    let mut tensors = source("separate", false, &mut choices, &folder);
    let key = "a.k_proj.weight";
    let Tensor { shape, bytes: first, .. } = tensors.remove(key).expect("it is there");
    let mut cut = cut(&tensors, &mut choices);
    let (rows, columns) = (shape[0], shape[1]);
    let half: Vec<u8> = first[..first.len() / 2].to_vec();
    let starts: Vec<u64> = cut.files.iter().map(|file| file.len() as u64).collect();
    cut.files[0].extend(first);
    cut.files[1].extend(half);
    let extents = vec![
        Extent::stored(vec![0, 0], shape.clone(), 0, starts[0]),
        Extent::stored(vec![0, 0], vec![rows / 2, columns], 1, starts[1]),
    ];
    cut.tensors.push(TensorMeta::in_extents(key.into(), Dtype::F32, shape, extents));
    let target = folder.join("found.safetensors");
    let run = |cut: &Cut| {
        let reader = cut.reader(&folder.join("source.safetensors")).expect("is whole");
        convert(("separate", "pytorch-fused"), reader, &target, &options(None))
    };
    run(&cut).expect("equal replicas convert");
    // The element [2, 3] of the second box.
    let at = (starts[1] + (2 * columns + 3) * 4) as usize;
    cut.files[1][at] ^= 1;
    let errors = run(&cut).expect_err("they differ");
    let error = &errors.diagnostics()[0];
    assert_eq!((error.code.as_str(), &error.tensors[0][..]), ("data/unequal", key));
    assert!(error.found.as_ref().is_some_and(|found| found.contains("[2, 3] is")), "{errors}");
}
