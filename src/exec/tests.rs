//! Whole executions against a reference that copies element by element.

use std::sync::atomic::Ordering;
use std::{io, path::PathBuf};

use proptest::prelude::*;

use super::testing::{Files, Watch, permutation, permuted, units};
use super::*;
use crate::catalog::{ExtentId, TensorMeta, row_major};
use crate::dtype::Dtype;
use crate::plan::{Affine, Check, Loop, Region, Requirement, StridedCopy, TensorPlan, unit};

const DTYPES: [Dtype; 5] = [Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::F64, Dtype::F4];

/// A checkpoint and a plan under construction.
#[derive(Default)]
struct Case {
    plan: Plan,
    tensors: Vec<TensorMeta>,
    /// The end of each source file.
    source_ends: [u64; 2],
    placements: Vec<Placement>,
    target_ends: [u64; 2],
}

fn copy_of(source: usize, source_offset: u64, loops: Vec<Loop>, value: ValueOp) -> StridedCopy {
    let source = ExtentId::whole(source);
    StridedCopy { source, source_offset, target_offset: 0, loops, value, again: false }
}

impl Case {
    /// Adds a source tensor whose shape counts units.
    fn source(&mut self, dtype: Dtype, unit_shape: &[u64]) -> usize {
        let mut shape = unit_shape.to_vec();
        if dtype == Dtype::F4 {
            match shape.last_mut() {
                Some(last) => *last *= 2,
                None => shape.push(2),
            }
        }
        let file = self.tensors.len() % 2;
        let strides = row_major(&shape);
        let key = format!("s{}", self.tensors.len());
        let (offset, extents) = (self.source_ends[file], Vec::new());
        let meta = TensorMeta { key, dtype, shape, strides, file, offset, extents };
        self.source_ends[file] += meta.bytes();
        self.tensors.push(meta);
        self.tensors.len() - 1
    }

    fn target(&mut self, dtype: Dtype, unit_shape: &[u64], steps: Vec<Step>, file: usize, gap: u64) {
        let mut shape = unit_shape.to_vec();
        if dtype == Dtype::F4 {
            match shape.last_mut() {
                Some(last) => *last *= 2,
                None => shape.push(2),
            }
        }
        let key = format!("t{}", self.plan.targets.len());
        let tensor = TensorPlan { key, dtype, shape, module: String::new(), steps, rule: None };
        let offset = self.target_ends[file] + gap;
        self.placements.push(Placement { file, offset });
        self.target_ends[file] = offset + tensor.bytes();
        self.plan.targets.push(tensor);
    }

    fn catalog(&self) -> Catalog {
        let files = self.source_ends.iter().map(|&end| (PathBuf::from("source"), end)).collect();
        Catalog::new(PathBuf::from("source"), files, self.tensors.clone())
    }

    fn sources(&self) -> Files {
        Files::new(self.source_ends.iter().map(|&end| units(end as usize)).collect())
    }

    fn empty_targets(&self) -> Files {
        Files::new(self.target_ends.iter().map(|&end| vec![0xEE; end as usize]).collect())
    }

    fn run(
        &self,
        sizes: Sizes,
        threads: usize,
        from: &Files,
        to: &Files,
        watch: &Watch,
    ) -> Result<ExecStats, Errors> {
        let catalog = self.catalog();
        let (plan, placements) = (&self.plan, &self.placements[..]);
        Run { plan, catalog: &catalog, source: from, target: to, placements, progress: watch, sizes }
            .execute(threads)
    }

    /// The output by element-wise copying, `convert` for the steps that convert.
    fn expected(&self, convert: impl Fn(&[u8]) -> Vec<u8>) -> Vec<Vec<u8>> {
        let source: Vec<Vec<u8>> =
            self.sources().files.into_iter().map(|file| file.into_inner().unwrap()).collect();
        let mut out: Vec<Vec<u8>> = self.target_ends.iter().map(|&end| vec![0xEE; end as usize]).collect();
        for (tensor, place) in self.plan.targets.iter().zip(&self.placements) {
            for step in &tensor.steps {
                let (copy, loops) = match step {
                    Step::Copy(copy) => (Some(copy), copy.loops.clone()),
                    Step::Zero(region) => (None, jobs::zero_loops(region)),
                };
                for number in 0..loops.iter().map(|l| l.count).product::<u64>() {
                    let (mut rest, mut from, mut to) = (number, 0, 0);
                    for l in loops.iter().rev() {
                        from += rest % l.count * l.source_step;
                        to += rest % l.count * l.target_step;
                        rest /= l.count;
                    }
                    let first = match step {
                        Step::Copy(copy) => copy.target_offset,
                        Step::Zero(region) => region.offset,
                    };
                    let to = (place.offset + (first + to) * tensor.unit()) as usize;
                    let bytes = match copy {
                        None => vec![0; tensor.unit() as usize],
                        Some(copy) => {
                            let meta = &self.tensors[copy.source.tensor];
                            let from =
                                (meta.offset + (copy.source_offset + from) * unit(meta.dtype)) as usize;
                            let bytes = &source[meta.file][from..][..unit(meta.dtype) as usize];
                            if copy.value == ValueOp::Bits { bytes.to_vec() } else { convert(bytes) }
                        }
                    };
                    out[place.file][to..][..bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
        out
    }
}

/// How one target is made: a permuted shape whose target dimension `axis` is cut into segments.
#[derive(Clone, Debug)]
struct Recipe {
    dtype: Dtype,
    shape: Vec<u64>,
    order: Vec<usize>,
    axis: usize,
    /// Length, what fills it, how much the source goes on before and after.
    segments: Vec<(u64, Filling, u64)>,
    file: usize,
    gap: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Filling {
    Own,
    Slice,
    Repeat,
    Zero,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let filling =
        prop_oneof![Just(Filling::Own), Just(Filling::Slice), Just(Filling::Repeat), Just(Filling::Zero)];
    let segments = prop::collection::vec((1_u64..9, filling, 0_u64..4), 1..4);
    let dtype = prop::sample::select(&DTYPES[..]);
    (dtype, permuted(0..5, 24), 0_usize..4, segments, 0_usize..2, prop::sample::select(vec![0_u64, 0, 0, 3]))
        .prop_map(|(dtype, (shape, order), axis, segments, file, gap)| Recipe {
            dtype,
            shape,
            order,
            axis,
            segments,
            file,
            gap,
        })
}

fn add(case: &mut Case, recipe: &Recipe) {
    let Recipe { dtype, shape, order, segments, .. } = recipe;
    if shape.is_empty() {
        let source = case.source(*dtype, &[]);
        let copy = copy_of(source, 0, vec![], ValueOp::Bits);
        case.target(*dtype, &[], vec![Step::Copy(copy)], recipe.file, recipe.gap);
        return;
    }
    let axis = recipe.axis % shape.len();
    let mut target_shape: Vec<u64> = order.iter().map(|&dim| shape[dim]).collect();
    target_shape[axis] = segments.iter().map(|segment| segment.0).sum();
    let target_strides = row_major(&target_shape);
    let mut steps = Vec::new();
    let mut start = 0;
    for &(length, filling, more) in segments {
        let mut source_shape = shape.clone();
        source_shape[order[axis]] = if filling == Filling::Slice { length + more + 1 } else { length };
        let strides = row_major(&source_shape);
        let loops: Vec<Loop> = (0..shape.len())
            .map(|at| {
                let count = if at == axis { length } else { target_shape[at] };
                let repeats = filling == Filling::Repeat && at != axis;
                let source_step = if repeats { 0 } else { strides[order[at]] };
                Loop { count, source_step, target_step: target_strides[at] }
            })
            .filter(|l| l.count > 1)
            .collect();
        let target_offset = start * target_strides[axis];
        start += length;
        if filling == Filling::Zero {
            let loops = loops.iter().map(|l| (l.count, l.target_step)).collect();
            steps.push(Step::Zero(Region { offset: target_offset, loops }));
            continue;
        }
        let source = case.source(*dtype, &source_shape);
        let source_offset = if filling == Filling::Slice { more * strides[order[axis]] } else { 0 };
        let value = ValueOp::Bits;
        steps.push(Step::Copy(StridedCopy {
            source: ExtentId::whole(source),
            source_offset,
            target_offset,
            loops,
            value,
            again: false,
        }));
    }
    case.target(*dtype, &target_shape, steps, recipe.file, recipe.gap);
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let size = || prop::sample::select(vec![16_u64, 24, 64, 512, 4096, 1 << 16, 1 << 20]);
    (size(), size(), size()).prop_map(|(scratch, target, values)| Sizes { scratch, target, values })
}

fn contents(files: Files) -> Vec<Vec<u8>> {
    files.files.into_iter().map(|file| file.into_inner().unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn every_plan_writes_what_the_reference_writes(recipes in prop::collection::vec(recipe(), 1..5), sizes in sizes()) {
        let mut case = Case::default();
        for recipe in &recipes {
            add(&mut case, recipe);
        }
        let expected = case.expected(<[u8]>::to_vec);
        for threads in [1, 2, 5] {
            let (targets, watch) = (case.empty_targets(), Watch::new());
            let stats = case.run(sizes, threads, &case.sources(), &targets, &watch).expect("executes");
            prop_assert!(contents(targets) == expected, "{threads} threads differ");
            let bytes: u64 = case.plan.targets.iter().map(TensorPlan::bytes).sum();
            prop_assert_eq!((stats.bytes_written, watch.bytes.load(Ordering::Relaxed)), (bytes, bytes));
        }
    }

    #[test]
    fn boxes_write_what_the_reference_writes(recipes in prop::collection::vec(recipe(), 1..4), sizes in sizes()) {
        let mut case = Case::default();
        for recipe in &recipes {
            add(&mut case, recipe);
        }
        let targets = case.empty_targets();
        let boxes = |(at, tensor): (usize, &TensorPlan)| {
            jobs::cut_boxes(at, tensor, sizes.target.min(sizes.scratch) / tensor.unit())
        };
        let jobs: Vec<Job> = case.plan.targets.iter().enumerate().flat_map(boxes).collect();
        let (catalog, sources, watch) = (case.catalog(), case.sources(), Watch::new());
        let (plan, placements) = (&case.plan, &case.placements[..]);
        let run = Run { plan, catalog: &catalog, source: &sources, target: &targets, placements, progress: &watch, sizes };
        run.conclude(run.perform(&jobs, 2)).expect("executes");
        prop_assert!(contents(targets) == case.expected(<[u8]>::to_vec));
    }

    #[test]
    fn conversion_happens_in_place((shape, order) in permuted(1..4, 30), sizes in sizes()) {
        let mut case = Case::default();
        let target_shape: Vec<u64> = order.iter().map(|&dim| shape[dim]).collect();
        let source = case.source(Dtype::BF16, &shape);
        let value = ValueOp::Convert { from: Dtype::BF16, to: Dtype::F64, affine: Affine { scale: 0.5, offset: 1.0 } };
        let loops = permutation(&shape, &order);
        let copy = copy_of(source, 0, loops, value);
        case.target(Dtype::F64, &target_shape, vec![Step::Copy(copy)], 0, 0);
        let expected = case.expected(|bytes| {
            let value = half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64() * 0.5 + 1.0;
            value.to_le_bytes().to_vec()
        });
        let targets = case.empty_targets();
        case.run(sizes, 2, &case.sources(), &targets, &Watch::new()).expect("executes");
        prop_assert!(contents(targets) == expected);
    }

    #[test]
    fn checks_find_the_first_difference(
        (shape, order) in permuted(1..4, 12), planted in prop::collection::btree_set(0_u64..500, 0..4), sizes in sizes(),
    ) {
        let mut case = Case::default();
        let target_shape: Vec<u64> = order.iter().map(|&dim| shape[dim]).collect();
        let (first, second) = (case.source(Dtype::F32, &shape), case.source(Dtype::F32, &target_shape));
        let loops = permutation(&shape, &order);
        let sources = case.sources();
        let planted: Vec<u64> = planted.into_iter().filter(|&at| at < shape.iter().product()).collect();
        {
            let from = sources.files[0].lock().unwrap();
            let mut to = sources.files[1].lock().unwrap();
            each_index(&loops, |number, s, t| {
                let bytes = &from[4 * s..4 * s + 4];
                to[4 * t..4 * t + 4].copy_from_slice(bytes);
                to[4 * t] ^= u8::from(planted.contains(&number));
            });
        }
        let loops = loops.iter().map(|l| (l.count, l.source_step, l.target_step)).collect();
        let check = Check::Equal { first: (ExtentId::whole(first), 0), second: (ExtentId::whole(second), 0), loops };
        case.plan.requirements.push(Requirement { check, meaning: "they differ", help: "help".into(), rule: None });
        let result = case.run(sizes, 2, &sources, &case.empty_targets(), &Watch::new());
        let Some(&at) = planted.first() else {
            prop_assert!(result.is_ok());
            return Ok(());
        };
        let errors = result.expect_err("differs");
        let diagnostic = &errors.diagnostics()[0];
        let index: Vec<u64> =
            row_major(&target_shape).iter().zip(&target_shape).map(|(step, n)| at / step % n).collect();
        let found = diagnostic.found.as_deref().unwrap_or_default();
        let total = shape.iter().product::<u64>();
        prop_assert_eq!((diagnostic.code.as_str(), &diagnostic.tensors[..]), ("data/unequal", &["s0".to_owned(), "s1".into()][..]));
        prop_assert!(found.contains(&format!(", {index:?} is 0x")), "{found} {index:?}");
        prop_assert!(found.ends_with(&format!("; {} of {total} elements differ", planted.len())), "{found}");
    }
}

fn each_index(loops: &[Loop], mut visit: impl FnMut(u64, usize, usize)) {
    let mut number = 0;
    let _ = part::walk(loops, 0, 0, &mut |s, t| {
        visit(number, s as usize, t as usize);
        number += 1;
        Ok::<(), ()>(())
    });
}

const SMALL: Sizes = Sizes { scratch: 512, target: 512, values: 512 };

/// A case of one tensor of that many elements, copied as it is.
fn plain(from: Dtype, to: Dtype, elements: u64) -> Case {
    let mut case = Case::default();
    let source = case.source(from, &[elements]);
    let value =
        if from == to { ValueOp::Bits } else { ValueOp::Convert { from, to, affine: Affine::IDENTITY } };
    let loops = vec![Loop { count: elements, source_step: 1, target_step: 1 }];
    let copy = copy_of(source, 0, loops, value);
    case.target(to, &[elements], vec![Step::Copy(copy)], 0, 0);
    case
}

fn code(result: Result<ExecStats, Errors>) -> (&'static str, Vec<String>, String) {
    let errors = result.expect_err("fails");
    let diagnostic = &errors.diagnostics()[0];
    (diagnostic.code.as_str(), diagnostic.tensors.clone(), diagnostic.message.clone())
}

#[test]
fn a_failing_read_names_the_tensor_and_stops() {
    let case = plain(Dtype::F32, Dtype::F32, 1000);
    let mut sources = case.sources();
    sources.broken_at = Some((2000, io::ErrorKind::UnexpectedEof));
    for threads in [1, 2, 5] {
        let found = code(case.run(SMALL, threads, &sources, &case.empty_targets(), &Watch::new()));
        assert_eq!((found.0, found.1), ("exec/read", vec!["s0".to_owned()]));
    }
}

#[test]
fn a_full_disk_is_called_so() {
    let case = plain(Dtype::F32, Dtype::F32, 1000);
    let mut targets = case.empty_targets();
    targets.broken_at = Some((2000, io::ErrorKind::StorageFull));
    let found = code(case.run(SMALL, 2, &case.sources(), &targets, &Watch::new()));
    assert_eq!((found.0, found.1), ("exec/write", vec!["t0".to_owned()]));
    assert!(found.2.contains("the disk is full"), "{}", found.2);
}

#[test]
fn cancelling_stops_before_the_next_job() {
    let case = plain(Dtype::F32, Dtype::F32, 1000);
    let watch = Watch { cancel_at: 1000, ..Watch::new() };
    let found = code(case.run(SMALL, 1, &case.sources(), &case.empty_targets(), &watch));
    assert_eq!(found.0, "exec/cancelled");
    assert_eq!(watch.bytes.load(Ordering::Relaxed), 1024);
}

#[test]
fn overflow_is_an_error_and_underflow_is_counted() {
    let case = plain(Dtype::F64, Dtype::F16, 1000);
    let sources = case.sources();
    let mut values = vec![1.0_f64; 1000];
    values[7] = 1e-30;
    sources.files[0].lock().unwrap().copy_from_slice(bytemuck::cast_slice(&values));
    let stats = case.run(SMALL, 2, &sources, &case.empty_targets(), &Watch::new()).expect("executes");
    assert_eq!(stats.rounded, [Rounded { key: "t0".to_owned(), error: 1e-30, underflows: 1 }]);
    values[3] = f64::INFINITY;
    values[500] = -1e6;
    values[900] = 1e5;
    sources.files[0].lock().unwrap().copy_from_slice(bytemuck::cast_slice(&values));
    let errors = case.run(SMALL, 2, &sources, &case.empty_targets(), &Watch::new()).expect_err("overflows");
    let diagnostic = &errors.diagnostics()[0];
    assert_eq!(diagnostic.code, "exec/overflow");
    assert_eq!(diagnostic.found.as_deref(), Some("2 such values, the largest of magnitude 1e6"));
}

#[test]
fn integers_are_not_converted() {
    let found = code(plain(Dtype::U8, Dtype::F32, 4).run(
        SMALL,
        1,
        &Files::default(),
        &Files::default(),
        &Watch::new(),
    ));
    assert_eq!(found.0, "exec/convert-type");
}

#[test]
fn all_failing_requirements_are_reported() {
    let mut case = plain(Dtype::F32, Dtype::F32, 1000);
    let sources = case.sources();
    let mut values = vec![-0.0_f32; 1000];
    values[250] = 1.5;
    values[300] = 2.0;
    sources.files[0].lock().unwrap().copy_from_slice(bytemuck::cast_slice(&values));
    let zero = |offset, count, meaning| {
        let check =
            Check::Zero { source: ExtentId::whole(0), region: Region { offset, loops: vec![(count, 1)] } };
        Requirement { check, meaning, help: String::new(), rule: None }
    };
    case.plan.requirements = vec![zero(0, 250, "a"), zero(0, 500, "b"), zero(260, 700, "c")];
    let errors = case.run(SMALL, 2, &sources, &case.empty_targets(), &Watch::new()).expect_err("not zero");
    let found: Vec<_> =
        errors.diagnostics().iter().map(|d| (d.code.as_str(), &d.message[..], d.found.as_deref())).collect();
    assert_eq!(
        found,
        [
            ("data/nonzero", "b", Some("[250] is 0x3fc00000 (1.5); 2 of 500 elements are not zero")),
            ("data/nonzero", "c", Some("[300] is 0x40000000 (2.0); 1 of 700 elements are not zero")),
        ]
    );
}

fn moved(source: usize, source_offset: u64, loops: Vec<Loop>) -> Step {
    let value = ValueOp::Bits;
    Step::Copy(copy_of(source, source_offset, loops, value))
}

#[test]
fn many_small_tensors_become_few_writes() {
    let mut case = Case::default();
    for _ in 0..100 {
        let source = case.source(Dtype::F32, &[4]);
        let loops = vec![Loop { count: 4, source_step: 1, target_step: 1 }];
        case.target(Dtype::F32, &[4], vec![moved(source, 0, loops)], 0, 0);
    }
    assert_eq!(jobs::cut(&case.plan, &case.catalog(), &case.placements, SMALL).len(), 4);
}

/// Heads whose columns lie side by side in one matrix: read once, not in pieces of a row for each head.
#[test]
fn what_several_tensors_take_of_one_is_read_once() {
    let (rows, heads, size) = (600, 12, 10);
    let mut case = Case::default();
    let whole = case.source(Dtype::F32, &[rows, heads * size]);
    let other = case.source(Dtype::F32, &[heads * size]);
    for head in 0..heads {
        let run = Loop { count: size, source_step: 1, target_step: 1 };
        let columns = vec![Loop { count: rows, source_step: heads * size, target_step: size }, run];
        case.target(Dtype::F32, &[rows, size], vec![moved(whole, head * size, columns)], 0, 0);
        case.target(Dtype::F32, &[size], vec![moved(other, head * size, vec![run])], 0, 0);
    }
    let targets = case.empty_targets();
    let sizes = Sizes { scratch: 1 << 20, target: 1 << 20, values: 0 };
    let stats = case.run(sizes, 1, &case.sources(), &targets, &Watch::new()).expect("executes");
    assert_eq!(stats.bytes_read, 4 * (rows + 1) * heads * size);
    assert!(contents(targets) == case.expected(<[u8]>::to_vec));
}

#[test]
fn a_large_transpose_is_cut_into_boxes() {
    let mut case = Case::default();
    let source = case.source(Dtype::F32, &[4000, 3000]);
    let loops = permutation(&[4000, 3000], &[1, 0]);
    case.target(Dtype::F32, &[3000, 4000], vec![moved(source, 0, loops)], 0, 0);
    let sizes = Sizes { scratch: 1 << 20, target: 1 << 20, values: 0 };
    let jobs = jobs::cut(&case.plan, &case.catalog(), &case.placements, sizes);
    let Job::Box { loops, .. } = &jobs[0] else { panic!("{:?}", jobs[0]) };
    assert!(loops.iter().all(|l| l.count >= 128 && l.count <= 1024), "{loops:?}");
}

#[test]
fn the_limits_bound_the_threads() {
    let case = plain(Dtype::F32, Dtype::F32, 1 << 20);
    let (targets, sources) = (case.empty_targets(), case.sources());
    let limits = Limits { threads: 64, memory: 0 };
    let stats =
        execute(&case.plan, &case.catalog(), &sources, &targets, &case.placements, &limits, &Watch::new());
    assert_eq!(stats.expect("executes").bytes_written, 4 << 20);
    assert!(contents(targets)[0] == units(4 << 20));
}
