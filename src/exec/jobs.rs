//! Cutting a plan into jobs that fit a thread's buffers.

use std::convert::Infallible;
use std::ops::Range;

use super::Placement;
use super::copy::merged_targets;
use super::gather::Gather;
use super::part::{Part, clip, compacted, elements, is_run, merged, target_extent};
use crate::catalog::Catalog;
use crate::plan::{Check, Loop, Plan, Region, Step, TensorPlan, unit};

/// What a positioned write costs beside its bytes, in nanoseconds: much more than a read, for writers of one file
/// wait for each other.
const WRITE: f64 = 2500.0;

/// A size in bytes that the processor's caches hold, and the round places of an output file at which writes begin where
/// they can: the system then takes large pages for them.
pub(super) const CACHED: u64 = 1 << 20;

/// A piece of work for one thread.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Job {
    /// A range of the elements of a requirement, in its own order.
    Check {
        /// The requirement.
        requirement: usize,
        /// The elements.
        range: Range<u64>,
    },
    /// Whole target tensors that lie one after the other in one output file, written at once.
    Group {
        /// The targets.
        targets: Range<usize>,
    },
    /// A range of one output file, written at once: parts of the first and the last target in it and all between.
    Range {
        /// The targets.
        targets: Range<usize>,
        /// The bytes of the file.
        bytes: Range<u64>,
    },
    /// A part of one step whose rows are long in the source and in the target, written row by row.
    Box {
        /// The target.
        target: usize,
        /// The step.
        step: usize,
        /// Where the source is read first, in units.
        source_offset: u64,
        /// Where the target is written first, in units.
        target_offset: u64,
        /// The loops.
        loops: Vec<Loop>,
    },
}

impl Job {
    /// Returns a target that it writes, all of which are in one file; none for a check.
    pub(super) fn target(&self) -> Option<usize> {
        match self {
            Job::Check { .. } => None,
            Job::Group { targets } | Job::Range { targets, .. } => Some(targets.start),
            Job::Box { target, .. } => Some(*target),
        }
    }
}

/// The buffers of one thread, in bytes; at least 16 each, room for two elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// What is read to be permuted.
    pub(super) scratch: u64,
    /// What is assembled to be written.
    pub(super) target: u64,
    /// Values that wait for their conversion; 0 where none are converted.
    pub(super) values: u64,
}

/// Returns all jobs: the checks, then the writes in the order of the output.
pub(super) fn cut(plan: &Plan, catalog: &Catalog, placements: &[Placement], sizes: Sizes) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (requirement, stated) in plan.requirements.iter().enumerate() {
        let (tensor, count) = match &stated.check {
            Check::Equal { first, loops, .. } => (first.0.tensor, loops.iter().map(|l| l.0).product()),
            Check::Zero { source, region } => {
                (source.tensor, region.loops.iter().map(|l| l.0).product::<u64>())
            }
        };
        // Half a buffer for each of the two that are compared.
        let most = (sizes.target / 16 * 8 / unit(catalog.tensors[tensor].dtype)).max(1);
        jobs.extend(ranges(0..count, most).map(|range| Job::Check { requirement, range }));
    }
    let mut next = 0;
    while next < plan.targets.len() {
        let tensor = &plan.targets[next];
        let first = next;
        next += 1;
        if is_plain(tensor) {
            while next < plan.targets.len()
                && is_plain(&plan.targets[next])
                && follows(plan, placements, first..next)
            {
                next += 1;
            }
            cut_ranges(&mut jobs, plan, placements, first..next, CACHED.min(sizes.target));
            continue;
        }
        let mut length = tensor.bytes();
        if length > sizes.target {
            cut_large(&mut jobs, catalog, first, tensor, placements[first].offset, sizes);
            continue;
        }
        while next < plan.targets.len() && follows(plan, placements, first..next) {
            let bytes = plan.targets[next].bytes();
            let is_long = bytes > CACHED && is_plain(&plan.targets[next]);
            if is_long || length + bytes > sizes.target {
                break;
            }
            length += bytes;
            next += 1;
        }
        if length > 0 {
            jobs.push(Job::Group { targets: first..next });
        }
    }
    jobs
}

/// Returns whether the next target begins where these end, at a place that fits its elements in the file and in a buffer.
fn follows(plan: &Plan, placements: &[Placement], targets: Range<usize>) -> bool {
    let (first, before, here) =
        (&placements[targets.start], &placements[targets.end - 1], &placements[targets.end]);
    let (tensor, next) = (&plan.targets[targets.end - 1], &plan.targets[targets.end]);
    before.file == here.file
        && before.offset + tensor.bytes() == here.offset
        && before.offset.is_multiple_of(tensor.unit())
        && here.offset.is_multiple_of(next.unit())
        && (here.offset - first.offset).is_multiple_of(next.unit())
}

/// Cuts targets that follow one another at round places of their file.
fn cut_ranges(jobs: &mut Vec<Job>, plan: &Plan, placements: &[Placement], targets: Range<usize>, most: u64) {
    // A multiple of every element's size.
    let most = most / 16 * 16;
    let end = |target: usize| placements[target].offset + plan.targets[target].bytes();
    let (mut from, mut first) = (placements[targets.start].offset, targets.start);
    while from < end(targets.end - 1) {
        let round = (from / most + 1) * most;
        let mut last = first;
        while last + 1 < targets.end && end(last) < round {
            last += 1;
        }
        let mut to = end(last);
        if to > round {
            let (offset, unit) = (placements[last].offset, plan.targets[last].unit());
            // Of a target that lies at no place of its elements' size a few bytes may be left before the round place.
            to = (offset + (round - offset) / unit * unit).max(from + unit);
        }
        jobs.push(Job::Range { targets: first..last + 1, bytes: from..to });
        (from, first) = (to, last);
        while first + 1 < targets.end && end(first) <= from {
            first += 1;
        }
    }
}

/// Returns whether each step of a tensor is a single run: then a few tensors at a time are as quick as many, while those
/// that take parts of one source tensor share what is read of it.
fn is_plain(tensor: &TensorPlan) -> bool {
    tensor.steps.iter().all(|step| match step {
        Step::Copy(copy) => is_run(&copy.loops),
        Step::Zero(_) => true,
    })
}

/// Returns a range in pieces of at most `most`.
pub(super) fn ranges(whole: Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = whole;
    (0..(end - start).div_ceil(most))
        .map(move |piece| start + piece * most..end.min(start + (piece + 1) * most))
}

/// Cuts a tensor that is larger than the buffer: into tiles, or into boxes where those cost less.
fn cut_large(
    jobs: &mut Vec<Job>,
    catalog: &Catalog,
    target: usize,
    tensor: &TensorPlan,
    offset: u64,
    sizes: Sizes,
) {
    let units = tensor.bytes() / tensor.unit();
    let most = sizes.target / tensor.unit();
    // Where long runs are copied, small tiles are as few calls as large ones and stay in the cache.
    let cached = most.min(CACHED / tensor.unit());
    let (large_cost, small_cost) =
        (tiles_cost(catalog, tensor, most, sizes), tiles_cost(catalog, tensor, cached, sizes));
    let (most_of_tile, tile_cost) =
        if small_cost <= 1.05 * large_cost { (cached, small_cost) } else { (most, large_cost) };
    let source_unit = |step: &Step| match step {
        Step::Copy(copy) => unit(catalog.tensors[copy.source.tensor].dtype),
        Step::Zero(_) => 1,
    };
    let widest = tensor.steps.iter().map(source_unit).max().unwrap_or(1);
    let boxes = cut_boxes(target, tensor, most.min(sizes.scratch / widest));
    let box_cost = |job: &Job| {
        let Job::Box { step, source_offset, target_offset, loops, .. } = job else { return 0.0 };
        let writes = elements(&merged_targets(loops).1) as f64 * WRITE;
        let Step::Copy(copy) = &tensor.steps[*step] else { return writes };
        let part = Part { source_offset: *source_offset, target_offset: *target_offset, loops };
        writes + Gather::estimate(catalog, sizes.scratch, copy.source, part)
    };
    if boxes.iter().map(box_cost).sum::<f64>() < 0.9 * tile_cost {
        jobs.extend(boxes);
    } else {
        let place = |units: u64| offset + units * tensor.unit();
        jobs.extend(ranges(0..units, most_of_tile).map(|range| Job::Range {
            targets: target..target + 1,
            bytes: place(range.start)..place(range.end),
        }));
    }
}

/// Estimates the nanoseconds that all tiles of that many units take, by the one in the middle.
fn tiles_cost(catalog: &Catalog, tensor: &TensorPlan, most: u64, sizes: Sizes) -> f64 {
    let tiles = (tensor.bytes() / tensor.unit()).div_ceil(most);
    let middle = tiles / 2 * most..(tiles / 2 + 1) * most;
    let mut cost = WRITE;
    let Ok(()) = clip_steps(tensor, &middle, |step, part| {
        if let Step::Copy(copy) = step {
            cost += Gather::estimate(catalog, sizes.scratch, copy.source, part);
        }
        Ok::<(), Infallible>(())
    });
    cost * tiles as f64
}

/// Cuts each step of a tensor into boxes of at most `most` elements.
pub(super) fn cut_boxes(target: usize, tensor: &TensorPlan, most: u64) -> Vec<Job> {
    let mut boxes = Vec::new();
    for (step, filled) in tensor.steps.iter().enumerate() {
        let (source_offset, target_offset, loops) = match filled {
            Step::Copy(copy) => (copy.source_offset, copy.target_offset, merged(&copy.loops)),
            Step::Zero(region) => (0, region.offset, merged(&zero_loops(region))),
        };
        let sides = box_sides(&loops, most);
        // All boxes, those along the target's innermost loop next to each other.
        let mut counter = vec![0; loops.len()];
        loop {
            let mut part = (source_offset, target_offset, loops.clone());
            for (at, l) in loops.iter().enumerate() {
                let start = counter[at] * sides[at];
                part.0 += start * l.source_step;
                part.1 += start * l.target_step;
                part.2[at].count = sides[at].min(l.count - start);
            }
            let (source_offset, target_offset, loops_of_box) = part;
            boxes.push(Job::Box { target, step, source_offset, target_offset, loops: merged(&loops_of_box) });
            let Some(turned) =
                (0..loops.len()).rev().find(|&at| (counter[at] + 1) * sides[at] < loops[at].count)
            else {
                break;
            };
            counter[turned] += 1;
            counter[turned + 1..].fill(0);
        }
    }
    boxes
}

/// Returns the loops of a region as a copy's.
pub(super) fn zero_loops(region: &Region) -> Vec<Loop> {
    region.loops.iter().map(|&(count, target_step)| Loop { count, source_step: 0, target_step }).collect()
}

/// Returns for each loop how many turns a box takes: at most `most` elements, with long rows in the source and in the
/// target.
fn box_sides(loops: &[Loop], most: u64) -> Vec<u64> {
    let mut sides = vec![1_u64; loops.len()];
    let mut by_source: Vec<usize> = (0..loops.len()).filter(|&at| loops[at].source_step != 0).collect();
    by_source.sort_by_key(|&at| loops[at].source_step);
    let by_target: Vec<usize> = (0..loops.len()).rev().collect();
    loop {
        let unfinished = |order: &[usize]| order.iter().copied().find(|&at| sides[at] < loops[at].count);
        let row = |order: &[usize]| {
            let whole = order.iter().take_while(|&&at| sides[at] == loops[at].count);
            whole.map(|&at| sides[at]).product::<u64>() * unfinished(order).map_or(1, |at| sides[at])
        };
        // A write costs more than a read, so the target's rows are to be longer.
        let source_first = 4 * row(&by_source) <= row(&by_target);
        let grown = if source_first {
            unfinished(&by_source).or_else(|| unfinished(&by_target))
        } else {
            unfinished(&by_target)
        };
        let Some(grown) = grown else { break };
        let others: u64 = sides.iter().product::<u64>() / sides[grown];
        let side = (sides[grown] * 2).min(loops[grown].count).min(most / others);
        if side <= sides[grown] {
            break;
        }
        sides[grown] = side;
    }
    // Boxes of about the same size instead of a thin last one.
    for (side, l) in sides.iter_mut().zip(loops) {
        *side = l.count.div_ceil(l.count.div_ceil(*side));
    }
    sides
}

/// Calls `visit` with the parts of a tensor's steps that lie in a range of it.
pub(super) fn clip_steps<E>(
    tensor: &TensorPlan,
    range: &Range<u64>,
    mut visit: impl FnMut(&Step, Part<'_>) -> Result<(), E>,
) -> Result<(), E> {
    for step in &tensor.steps {
        let zeros;
        let part = match step {
            Step::Copy(copy) => Part {
                source_offset: copy.source_offset,
                target_offset: copy.target_offset,
                loops: &copy.loops,
            },
            Step::Zero(region) => {
                zeros = zero_loops(region);
                Part { source_offset: 0, target_offset: region.offset, loops: &zeros }
            }
        };
        // The steps ascend.
        if part.target_offset >= range.end {
            break;
        }
        if part.target_offset + target_extent(part.loops) > range.start {
            clip(part, range, &mut |part| visit(step, part))?;
        }
    }
    Ok(())
}

/// Returns the loops of a requirement as a copy of one of its sides into consecutive elements.
pub(super) fn check_loops(loops: impl Iterator<Item = (u64, u64)>) -> Vec<Loop> {
    compacted(
        &loops.map(|(count, source_step)| Loop { count, source_step, target_step: 0 }).collect::<Vec<_>>(),
    )
}
