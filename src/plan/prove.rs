//! The proof of a plan, before a byte is written: every target element is written once, every source element is used
//! once or accounted for.
//!
//! It looks at offsets and loops alone and knows nothing of expressions, so it does not repeat a mistake that was made
//! in deriving them.

use std::collections::HashSet;

use smallvec::SmallVec;

use super::{Plan, Region, Step, unit};
use crate::catalog::{Catalog, ExtentId};
use crate::diag::{Collector, Diagnostic, Errors, PlanCode};
use crate::dtype::Dtype;

/// What was proved, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Target tensors of which each element is written once.
    pub targets: u64,
    /// Source tensors of which each element is used once, or accounted for.
    pub sources: u64,
}

/// Proves a plan.
///
/// # Errors
/// Returns each tensor that is not tiled. For a target that is a mistake of this program or a mapping whose blocks
/// overlap; for a source it is also a rule that reads only a part.
pub fn prove(plan: &Plan, catalog: &Catalog) -> Result<Proof, Errors> {
    let mut errors = Collector::default();
    let mut proof = Proof::default();
    // Per place: a whole tensor, and each extent of one that lies in several. Most are used by one step.
    let mut starts = Vec::with_capacity(catalog.tensors.len());
    let mut places = 0;
    for stored in &catalog.tensors {
        starts.push(places);
        places += 1 + stored.extents.len();
    }
    let slot = |id: ExtentId| starts[id.tensor] + id.extent.map_or(0, |extent| extent + 1);
    let mut used: Vec<SmallVec<[Region; 1]>> = vec![SmallVec::new(); places];
    for target in &plan.targets {
        let regions = target.steps.iter().map(|step| match step {
            Step::Copy(copy) => {
                let loops = copy.loops.iter().map(|l| (l.count, l.target_step)).collect();
                Region { offset: copy.target_offset, loops }
            }
            Step::Zero(region) => region.clone(),
        });
        if tiles(regions.collect(), units(target.dtype, target.elements())) {
            proof.targets += 1;
        } else {
            errors.push(fault("a target tensor is not written exactly once", &target.key));
        }
        for step in &target.steps {
            let Step::Copy(copy) = step else { continue };
            if copy.again {
                continue;
            }
            // A target that repeats reads the same elements again.
            let loops =
                copy.loops.iter().filter(|l| l.source_step > 0).map(|l| (l.count, l.source_step)).collect();
            used[slot(copy.source)].push(Region::new(copy.source_offset, loops));
        }
    }
    for unused in &plan.unused {
        // What a stride of zero repeats is there once.
        let loops = unused.region.loops.iter().copied().filter(|(_, step)| *step > 0).collect();
        used[slot(unused.source)].push(Region::new(unused.region.offset, loops));
    }
    let mut used = used.into_iter();
    for stored in &catalog.tensors {
        // What two steps read alike is used once.
        let mut next = || -> Vec<Region> {
            let used = used.next().unwrap_or_default();
            match used.len() {
                0 | 1 => used.into_vec(),
                _ => used.into_iter().collect::<HashSet<Region>>().into_iter().collect(),
            }
        };
        let whole = next();
        let is_used_once = if stored.extents.is_empty() {
            // A stored view is proved on its own elements, counted as they lie.
            tiles_shape(whole, stored.dtype, &stored.shape, &stored.strides)
        } else {
            // Replicas are accounted for; of the others each element is read in one extent.
            let parts: Vec<Vec<Region>> = stored.extents.iter().map(|_| next()).collect();
            whole.is_empty()
                && parts.into_iter().zip(&stored.extents).all(|(regions, extent)| {
                    tiles_shape(regions, stored.dtype, &extent.lengths, &extent.strides)
                })
        };
        if is_used_once {
            proof.sources += 1;
        } else {
            errors.push(fault("a source tensor is not used exactly once", &stored.key).file(&catalog.path));
        }
    }
    errors.finish(proof).map(|(proof, _)| proof)
}

fn fault(message: &str, key: &str) -> Diagnostic {
    Diagnostic::error(PlanCode::Unproved, message)
        .tensor(key)
        .expected("every element once")
        .found("elements that no step or more than one step holds")
        .help("the two layouts' rules overlap or leave a part out; `qkvconv mapping check FILE` tells where")
}

fn units(dtype: Dtype, elements: u64) -> u64 {
    dtype.byte_len(elements).unwrap_or(0) / unit(dtype)
}

fn tiles_shape(regions: Vec<Region>, dtype: Dtype, shape: &[u64], strides: &[u64]) -> bool {
    let total = units(dtype, shape.iter().product());
    if *strides == crate::catalog::row_major(shape) {
        return tiles(regions, total);
    }
    // Of a view only the number of elements is known to be right; its gaps belong to other tensors. Where it repeats
    // elements (a stride of zero), each counts once.
    let total = shape
        .iter()
        .zip(strides)
        .filter(|(_, stride)| **stride == 0)
        .fold(total, |n, (size, _)| n / size.max(&1));
    regions.iter().map(|region| region.loops.iter().map(|(count, _)| count).product::<u64>()).sum::<u64>()
        == total
}

/// Returns whether the regions hold each of `0..length` exactly once.
fn tiles(regions: Vec<Region>, length: u64) -> bool {
    // Unrolling a loop makes more regions; no real layout needs a fraction of this many.
    let mut budget = 1_u64 << 24;
    cover(regions, 0, length, &mut budget)
}

fn cover(mut regions: Vec<Region>, start: u64, length: u64, budget: &mut u64) -> bool {
    let count = |region: &Region| region.loops.iter().map(|(count, _)| *count).product::<u64>();
    regions.retain(|region| count(region) > 0);
    let total: u64 = regions.iter().map(count).sum();
    if total != length {
        return false;
    }
    if length == 0 {
        return true;
    }
    *budget = budget.saturating_sub(regions.len() as u64);
    if *budget == 0 {
        return false;
    }
    regions.sort_by_key(|region| region.offset);
    if regions[0].offset != start {
        return false;
    }
    let end = |region: &Region| {
        region.offset + region.loops.iter().map(|(count, step)| (count - 1) * step).sum::<u64>() + 1
    };
    if let [only] = &regions[..] {
        // As many elements as places, between the first and the last place: dense, since steps nest.
        return end(only) == start + length && nests(only);
    }
    // All regions under one outer loop: the window that it repeats must be tiled.
    if let Some(&(outer_count, outer_step)) = regions[0].loops.first()
        && regions.iter().all(|region| region.loops.first() == Some(&(outer_count, outer_step)))
        && outer_count.checked_mul(outer_step) == Some(length)
    {
        let window: Vec<Region> = regions
            .iter()
            .map(|region| Region { offset: region.offset, loops: region.loops[1..].to_vec() })
            .collect();
        if window.iter().all(|region| end(region) <= start + outer_step) {
            return cover(window, start, outer_step, budget);
        }
    }
    // Groups of regions that do not reach into each other must each tile their stretch.
    let mut groups: Vec<Vec<Region>> = Vec::new();
    let mut reach = start;
    for region in regions {
        let region_end = end(&region);
        match groups.last_mut() {
            Some(group) if region.offset < reach => group.push(region),
            _ => groups.push(vec![region]),
        }
        reach = reach.max(region_end);
    }
    if groups.len() > 1 {
        let starts: Vec<u64> = groups.iter().map(|group| group[0].offset).collect();
        let ends = starts[1..].iter().copied().chain([start + length]);
        return groups
            .into_iter()
            .zip(starts.iter().zip(ends))
            .all(|(group, (&from, to))| cover(group, from, to - from, budget));
    }
    // One group whose outer loops differ: take the longest apart.
    let Some(group) = groups.pop() else { return false };
    let longest =
        group.iter().map(|region| region.loops.first().map_or(0, |(_, step)| *step)).max().unwrap_or(0);
    if longest == 0 {
        return false;
    }
    let mut apart = Vec::new();
    for region in group {
        match region.loops.split_first() {
            Some((&(count, step), inner)) if step == longest => {
                if count > *budget {
                    return false;
                }
                apart.extend(
                    (0..count).map(|i| Region { offset: region.offset + i * step, loops: inner.to_vec() }),
                );
            }
            _ => apart.push(region),
        }
    }
    cover(apart, start, length, budget)
}

/// Returns whether each loop steps over the whole of those inside it.
fn nests(region: &Region) -> bool {
    let mut extent = 1;
    region.loops.iter().rev().all(|(count, step)| {
        let fits = *step >= extent;
        extent += (count - 1) * step;
        fits
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region(offset: u64, loops: &[(u64, u64)]) -> Region {
        Region { offset, loops: loops.to_vec() }
    }

    #[test]
    fn interleaved_groups_tile() {
        // (g (q: 3 + k: 1 + v: 2)) with g = 4
        let regions = vec![region(0, &[(4, 6), (3, 1)]), region(3, &[(4, 6)]), region(4, &[(4, 6), (2, 1)])];
        assert!(tiles(regions, 24));
    }

    #[test]
    fn a_gap_an_overlap_and_a_swap_do_not() {
        assert!(!tiles(vec![region(0, &[(4, 6), (3, 1)]), region(3, &[(4, 6), (2, 1)])], 24));
        assert!(!tiles(vec![region(0, &[(4, 6), (3, 1)]), region(2, &[(4, 6), (3, 1)])], 24));
        assert!(!tiles(vec![region(0, &[(12, 1)]), region(11, &[(12, 1)])], 24));
        assert!(!tiles(vec![region(0, &[(2, 1), (12, 1)])], 24));
        assert!(!tiles(vec![], 1));
        assert!(tiles(vec![], 0));
    }

    #[test]
    fn unequal_loops_are_taken_apart() {
        let regions = vec![region(0, &[(2, 4), (2, 1)]), region(2, &[(2, 1)]), region(6, &[(2, 1)])];
        assert!(tiles(regions, 8));
    }

    proptest! {
        /// Any set of small regions is judged as counting every place judges it.
        #[test]
        fn the_proof_agrees_with_counting(
            parts in prop::collection::vec((0_u64..12, prop::collection::vec((2_u64..4, 1_u64..7), 0..3)), 1..5),
            length in 1_u64..14,
        ) {
            let regions: Vec<Region> = parts
                .into_iter()
                .map(|(offset, loops)| Region::new(offset, loops))
                .collect();
            let mut places = Vec::new();
            for region in &regions {
                let mut all = vec![region.offset];
                for (count, step) in &region.loops {
                    all = all.iter().flat_map(|place| (0..*count).map(move |i| place + i * step)).collect();
                }
                places.extend(all);
            }
            places.sort_unstable();
            let exact = places == (0..length).collect::<Vec<_>>();
            // The planner's loops nest; for loops that do not, "no" is a safe answer.
            let proved = tiles(regions.clone(), length);
            prop_assert!(!proved || exact, "{regions:?}");
            if regions.iter().all(nests) {
                prop_assert_eq!(proved, exact, "{:?}", regions);
            }
        }
    }
}
