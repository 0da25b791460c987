//! Bound blocks → copies.

use super::clip::clip;
use super::overlap::{Overlap, overlap};
use super::units::{check_in_units, cut_inside_block, region_in_units, target_in_units};
use super::{Check, Loop, Plan, Region, Requirement, Step, StridedCopy, TensorPlan, Unused, ValueOp, unit};
use crate::bind::{Affine, Allow, BindOptions, Block, Bound, Content, SourceId, TargetTensor};
use crate::catalog::{Catalog, ExtentContent, ExtentId, row_major};
use crate::diag::{Collector, Diagnostic, Errors, PlanCode};
use crate::dtype::Dtype;
use crate::span::Span;

/// A block of a source tensor that holds an instance.
#[derive(Clone, Copy)]
struct Place<'a> {
    source: SourceId,
    block: &'a Block,
}

/// Plans every target tensor.
///
/// # Errors
/// Returns target elements that no source tensor holds, and cuts inside a block of a type whose elements share bytes.
pub fn build(bound: &Bound, catalog: &Catalog, options: &BindOptions) -> Result<Plan, Errors> {
    let mut errors = Collector::default();
    let mut plan = Plan::default();
    let places = places(bound);
    let mut unique: Vec<Vec<Place<'_>>> = Vec::with_capacity(places.len());
    for places in &places {
        unique.push(tie(bound, catalog, places, &mut plan));
    }
    note_fillers(bound, options, &mut plan);
    let again = held_before(bound);
    for (target, again) in bound.targets.iter().zip(&again) {
        let mut steps: Vec<Step> = Vec::new();
        for (block, &again) in target.blocks.iter().zip(again) {
            let instance = match block.content {
                Content::Param(param) => target.instances.iter().find(|(other, _)| *other == param),
                Content::Zero | Content::Padding => None,
            };
            let Some((_, instance)) = instance else {
                steps.push(Step::Zero(region_of(block)));
                continue;
            };
            let before = steps.len();
            for place in &unique[*instance] {
                copies(bound, catalog, target, block, *place, again, &mut steps);
            }
            let covered: u64 = steps[before..]
                .iter()
                .map(|step| match step {
                    Step::Copy(copy) => copy.elements(),
                    Step::Zero(_) => 0,
                })
                .sum();
            if covered != block.elements() {
                errors.push(
                    Diagnostic::error(
                        PlanCode::Uncovered,
                        "no source tensor holds a part of this target tensor",
                    )
                    .file(&catalog.path)
                    .tensor(&target.key)
                    .rule(&target.rule)
                    .expected(format!("{} elements", block.elements()))
                    .found(format!("{covered}"))
                    .help("complete the checkpoint, or correct the source layout's rules"),
                );
            }
        }
        let module = target
            .instances
            .first()
            .map_or(String::new(), |(_, id)| bound.modules[bound.instances[*id].module].clone());
        let rule = Some(target.rule.clone());
        let (key, dtype, shape) = (target.key.clone(), target.dtype, target.shape.clone());
        plan.targets.push(TensorPlan { key, dtype, shape, module, steps, rule });
    }
    for (tensor, key) in &bound.kept {
        let cast = options.dtype.filter(|_| !bound.computed.contains(tensor));
        plan.targets.push(pass_through(catalog, *tensor, key, cast));
    }
    for dropped in &bound.dropped {
        let stored = &catalog.tensors[dropped.tensor];
        let region = whole(&stored.shape, &stored.strides);
        plan.unused.push(Unused {
            source: ExtentId::whole(dropped.tensor),
            region,
            reason: dropped.reason.text(),
        });
    }
    for &instance in &bound.unplaced {
        // What repeats it is accounted for already, as equal to it; all of it must be zeros.
        for place in &unique[instance] {
            let source = ExtentId::whole(bound.sources[place.source].tensor);
            let region = region_of(&Block { repeats: Vec::new(), ..place.block.clone() });
            plan.unused.push(Unused { source, region, reason: "zeros that the target leaves out" });
        }
        for place in &places[instance] {
            let source = &bound.sources[place.source];
            plan.requirements.push(Requirement {
                check: Check::Zero { source: ExtentId::whole(source.tensor), region: region_of(place.block) },
                meaning: "the target layout has no tensor for this parameter, which must be zeros to be left out",
                help: "choose a target layout that has it".into(),
                rule: Some(source.rule.clone()),
            });
        }
    }
    finish(&mut plan, catalog, &mut errors);
    errors.finish(plan).map(|(plan, _)| plan)
}

/// Lists where each instance is held.
fn places(bound: &Bound) -> Vec<Vec<Place<'_>>> {
    let mut places = vec![Vec::new(); bound.instances.len()];
    for (source, tensor) in (0..).map(SourceId::new).zip(&bound.sources) {
        for block in tensor.blocks.iter() {
            if let Content::Param(param) = block.content
                && let Some((_, instance)) = tensor.instances.iter().find(|(other, _)| *other == param)
            {
                places[*instance].push(Place { source, block });
            }
        }
    }
    places
}

/// Tells for each block of each target tensor whether blocks before it hold all its elements: the second of two tensors
/// that hold one parameter, or a copy under another index of the tensor's name.
fn held_before(bound: &Bound) -> Vec<Vec<bool>> {
    let mut again: Vec<Vec<bool>> = bound
        .targets
        .iter()
        .map(|target| target.blocks.iter().map(|block| block.is_copy).collect())
        .collect();
    let mut holders: Vec<Vec<(usize, usize)>> = vec![Vec::new(); bound.instances.len()];
    for (at, target) in bound.targets.iter().enumerate() {
        for (position, block) in target.blocks.iter().enumerate() {
            if let Content::Param(param) = block.content
                && !block.is_copy
                && let Some((_, instance)) = target.instances.iter().find(|(other, _)| *other == param)
            {
                holders[*instance].push((at, position));
            }
        }
    }
    let block = |(at, position): (usize, usize)| &bound.targets[at].blocks[position];
    for holders in holders {
        let total: u64 = holders.iter().map(|&place| values(block(place))).sum();
        if total <= span_of(&holders.iter().map(|&place| block(place)).collect::<Vec<_>>()) {
            continue;
        }
        let mut first: Vec<(usize, usize)> = Vec::new();
        for place in holders {
            let shared = first.iter().flat_map(|&other| overlaps(block(other), block(place)));
            let shared: u64 = shared.map(|overlap| overlap.elements()).sum();
            if shared > 0 && shared == values(block(place)) {
                again[place.0][place.1] = true;
            } else {
                first.push(place);
            }
        }
    }
    again
}

/// Finds elements that are held more than once: repeats inside a tensor, and tied tensors. The first is read, the
/// others must be equal.
fn tie<'a>(bound: &'a Bound, catalog: &Catalog, places: &[Place<'a>], plan: &mut Plan) -> Vec<Place<'a>> {
    let mut unique: Vec<Place<'a>> = Vec::new();
    // Blocks that are no copies by their names come first.
    let mut ordered: Vec<Place<'a>> = places.to_vec();
    ordered.sort_by_key(|place| place.block.is_copy);
    let total: u64 = ordered.iter().map(|place| values(place.block)).sum();
    let distinct = span_of(&ordered.iter().map(|place| place.block).collect::<Vec<_>>());
    for place in ordered {
        let tensor = &bound.sources[place.source];
        repeats(ExtentId::whole(tensor.tensor), place.block, &tensor.rule, plan);
        let mut shared = 0;
        if total > distinct || place.block.is_copy {
            for first in &unique {
                for overlap in overlaps(first.block, place.block) {
                    shared += overlap.elements();
                    let first_tensor = bound.sources[first.source].tensor;
                    plan.requirements.push(Requirement {
                        check: Check::Equal {
                            first: (ExtentId::whole(first_tensor), first.block.offset + overlap.first),
                            second: (ExtentId::whole(tensor.tensor), place.block.offset + overlap.second),
                            loops: overlap.loops,
                        },
                        meaning: "two tensors that hold one parameter differ",
                        help: format!(
                            "the layout takes `{}` and `{}` for one: choose a source layout that keeps the two apart",
                            catalog.tensors[first_tensor].key, catalog.tensors[tensor.tensor].key
                        ),
                        rule: Some(tensor.rule.clone()),
                    });
                }
            }
        }
        if shared > 0 && shared == values(place.block) {
            let mut block = place.block.clone();
            block.repeats.clear();
            let region = region_of(&block);
            plan.unused.push(Unused {
                source: ExtentId::whole(tensor.tensor),
                region,
                reason: "equal to another tensor",
            });
        } else {
            unique.push(place);
        }
    }
    unique
}

/// Returns the elements of the parameter that a block holds, repeats counted once.
fn values(block: &Block) -> u64 {
    block.coordinates.iter().flat_map(|coordinate| &coordinate.factors).map(|factor| factor.count).product()
}

/// Returns the number of values between the lowest and the highest of each coordinate, over all blocks.
fn span_of(blocks: &[&Block]) -> u64 {
    let count = blocks.first().map_or(0, |block| block.coordinates.len());
    (0..count)
        .map(|at| {
            let ends = blocks.iter().map(|block| {
                let coordinate = &block.coordinates[at];
                coordinate.base
                    + coordinate.factors.iter().map(|d| d.count.saturating_sub(1) * d.weight).sum::<u64>()
                    + 1
            });
            ends.max().unwrap_or(1)
        })
        .fold(1, u64::saturating_mul)
}

/// Copies of the same elements inside one tensor must be equal.
fn repeats(tensor: ExtentId, block: &Block, rule: &Span, plan: &mut Plan) {
    for (at, &(count, stride)) in block.repeats.iter().enumerate() {
        if count < 2 {
            continue;
        }
        // The repeats behind this one are at their first copy; those before it run.
        let factors = block.coordinates.iter().flat_map(|coordinate| &coordinate.factors);
        let others: Vec<(u64, u64)> = factors
            .map(|factor| (factor.count, factor.stride))
            .chain(block.repeats[..at].iter().copied())
            .collect();
        let equal = std::iter::once((count - 1, 0, stride))
            .chain(others.iter().map(|&(count, step)| (count, step, step)))
            .filter(|(count, ..)| *count != 1)
            .collect();
        let copies = std::iter::once((count - 1, stride)).chain(others).collect();
        let offset = block.offset + stride;
        plan.requirements.push(Requirement {
            check: Check::Equal { first: (tensor, block.offset), second: (tensor, offset), loops: equal },
            meaning: "copies of one parameter inside a tensor differ",
            help: "the source layout says that this axis repeats the same values; choose the layout that the checkpoint has"
                .into(),
            rule: Some(rule.clone()),
        });
        plan.unused.push(Unused {
            source: tensor,
            region: Region::new(offset, copies),
            reason: "equal to the first copy",
        });
    }
}

/// What lies between a block diagonal's blocks must be zeros, and padding is left out.
fn note_fillers(bound: &Bound, options: &BindOptions, plan: &mut Plan) {
    for source in &bound.sources {
        for block in source.blocks.iter() {
            let (meaning, help, reason) = match block.content {
                Content::Param(_) => continue,
                Content::Zero => {
                    let help = "choose the layout that the checkpoint has";
                    (
                        "a block between the blocks of a block diagonal is not zero",
                        help,
                        "zeros of a block diagonal",
                    )
                }
                Content::Padding => {
                    let help = "the padding holds values: the sizes or the layout may be others; `--allow nonzero-padding` drops values that no model reads";
                    ("padding is not zero", help, "padding")
                }
            };
            let region = region_of(block);
            plan.unused.push(Unused {
                source: ExtentId::whole(source.tensor),
                region: region.clone(),
                reason,
            });
            if block.content == Content::Padding && options.allows(Allow::NonzeroPadding) {
                continue;
            }
            let rule = Some(source.rule.clone());
            let check = Check::Zero { source: ExtentId::whole(source.tensor), region };
            plan.requirements.push(Requirement { check, meaning, help: help.into(), rule });
        }
    }
}

fn copies(
    bound: &Bound,
    catalog: &Catalog,
    target: &TargetTensor,
    block: &Block,
    place: Place<'_>,
    again: bool,
    steps: &mut Vec<Step>,
) {
    let tensor = &bound.sources[place.source];
    let stored = &catalog.tensors[tensor.tensor];
    let value = value_op(stored.dtype, tensor.affine, target.dtype, target.affine);
    for overlap in overlaps(place.block, block) {
        let mut loops: Vec<Loop> = overlap
            .loops
            .iter()
            .map(|&(count, source_step, target_step)| Loop { count, source_step, target_step })
            .collect();
        loops.extend(
            block.repeats.iter().filter(|(count, _)| *count > 1).map(|&(count, target_step)| Loop {
                count,
                source_step: 0,
                target_step,
            }),
        );
        steps.push(Step::Copy(StridedCopy {
            source: ExtentId::whole(tensor.tensor),
            source_offset: place.block.offset + overlap.first,
            target_offset: block.offset + overlap.second,
            loops,
            value,
            again,
        }));
    }
}

/// Returns what happens to a value between two tensors.
fn value_op(from: Dtype, stored: Affine, to: Dtype, wanted: Affine) -> ValueOp {
    if from == to && stored == wanted {
        return ValueOp::Bits;
    }
    ValueOp::Convert { from, to, affine: Affine::between(stored, wanted) }
}

/// Returns what two blocks of one parameter share.
fn overlaps(first: &Block, second: &Block) -> Vec<Overlap> {
    let mut all = vec![Overlap::default()];
    for (a, b) in first.coordinates.iter().zip(&second.coordinates) {
        let here = overlap(a, b);
        all = all
            .iter()
            .flat_map(|outer| {
                here.iter().map(move |inner| Overlap {
                    first: outer.first + inner.first,
                    second: outer.second + inner.second,
                    loops: outer.loops.iter().chain(&inner.loops).copied().collect(),
                })
            })
            .collect();
    }
    all
}

fn region_of(block: &Block) -> Region {
    let factors = block.coordinates.iter().flat_map(|coordinate| &coordinate.factors);
    let loops = factors.map(|factor| (factor.count, factor.stride)).chain(block.repeats.iter().copied());
    Region::new(block.offset, loops.collect())
}

fn whole(shape: &[u64], strides: &[u64]) -> Region {
    Region::new(0, shape.iter().copied().zip(strides.iter().copied()).collect())
}

/// A tensor that no rule holds keeps its bytes.
fn pass_through(catalog: &Catalog, tensor: usize, key: &str, cast: Option<Dtype>) -> TensorPlan {
    let stored = &catalog.tensors[tensor];
    let dtype = stored.dtype.cast_to(cast);
    let targets = row_major(&stored.shape);
    let loops = stored.shape.iter().zip(&stored.strides).zip(targets);
    let loops = loops.map(|((&count, &source_step), target_step)| Loop { count, source_step, target_step });
    let copy = StridedCopy {
        source: ExtentId::whole(tensor),
        source_offset: 0,
        target_offset: 0,
        loops: loops.collect(),
        value: value_op(stored.dtype, Affine::IDENTITY, dtype, Affine::IDENTITY),
        again: false,
    };
    let steps = if stored.elements() == 0 { Vec::new() } else { vec![Step::Copy(copy)] };
    TensorPlan {
        key: key.to_owned(),
        dtype,
        shape: stored.shape.clone(),
        module: String::new(),
        steps,
        rule: None,
    }
}

/// Clips to extents, sorts and joins loops, turns elements that share bytes into bytes, and orders the targets as the sources lie.
fn finish(plan: &mut Plan, catalog: &Catalog, errors: &mut Collector) {
    clip(plan, catalog, errors);
    for target in &mut plan.targets {
        for step in &mut target.steps {
            if let Step::Copy(copy) = step {
                copy.loops = joined(&copy.loops);
            }
        }
        target.steps.sort_by_key(|step| match step {
            Step::Copy(copy) => copy.target_offset,
            Step::Zero(region) => region.offset,
        });
        if target_in_units(target).is_err() {
            errors.push(cut_inside_block(&target.key, target.dtype, target.rule.as_ref()));
        }
    }
    for unused in &mut plan.unused {
        let stored = &catalog.tensors[unused.source.tensor];
        if region_in_units(&mut unused.region, stored.dtype).is_err() {
            errors.push(cut_inside_block(&stored.key, stored.dtype, None));
        }
    }
    for requirement in &mut plan.requirements {
        check_in_units(requirement, catalog, errors);
    }
    let position = |target: &TensorPlan| {
        let first = target.steps.iter().find_map(|step| match step {
            Step::Copy(copy) => {
                let place = catalog.place(copy.source);
                match place.content {
                    ExtentContent::Stored { file, offset } => {
                        Some((file, offset + copy.source_offset * unit(place.dtype)))
                    }
                    ExtentContent::Fill(_) => None,
                }
            }
            Step::Zero(_) => None,
        });
        first.unwrap_or((usize::MAX, 0))
    };
    plan.targets.sort_by(|a, b| (position(a), &a.key).cmp(&(position(b), &b.key)));
}

/// Puts loops in order of the target and makes one of neighbours that are contiguous on both sides.
fn joined(loops: &[Loop]) -> Vec<Loop> {
    let mut sorted: Vec<Loop> = loops.iter().copied().filter(|l| l.count != 1).collect();
    sorted.sort_by_key(|l| std::cmp::Reverse(l.target_step));
    let mut joined: Vec<Loop> = Vec::with_capacity(sorted.len());
    for inner in sorted {
        match joined.last_mut() {
            Some(outer)
                if outer.source_step == inner.count * inner.source_step
                    && outer.target_step == inner.count * inner.target_step =>
            {
                *outer = Loop { count: outer.count * inner.count, ..inner };
            }
            _ => joined.push(inner),
        }
    }
    joined
}
