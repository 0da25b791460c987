//! Steps and regions of tensors that lie in several extents → those of single extents. A step then reads one extent.
//!
//! Blocks are lowered as if such a tensor lay row by row. The position of an element in that order is a coordinate: a loop of a
//! copy moves along it by its source step, a box by the strides of the rows. What both hold is their overlap.

use std::collections::{BTreeMap, HashSet};

use super::overlap::overlap;
use super::{Check, Loop, Plan, Region, Requirement, Step, StridedCopy, Unused};
use crate::bind::{Coordinate, Factor};
use crate::catalog::{Bounds, Catalog, ExtentId, TensorMeta, Tiling};
use crate::diag::Collector;

/// The part of some loops that lies in one extent.
struct Clipped {
    id: ExtentId,
    /// Where the extent is read first, in elements.
    offset: u64,
    /// How far the other side begins behind where it began.
    other: u64,
    /// The loops: (count, step in the extent, step on the other side).
    loops: Vec<(u64, u64, u64)>,
}

/// Which extents a plan's tensors are read from.
struct Extents<'a> {
    catalog: &'a Catalog,
    tilings: BTreeMap<usize, Tiling>,
}

/// Clips all of a plan to extents, and requires those that hold the same elements to be equal.
pub(super) fn clip(plan: &mut Plan, catalog: &Catalog, errors: &mut Collector) {
    let mut tilings = BTreeMap::new();
    for (tensor, meta) in catalog.tensors.iter().enumerate().filter(|(_, meta)| !meta.extents.is_empty()) {
        match meta.tiling() {
            Ok(tiling) => {
                tilings.insert(tensor, tiling);
            }
            Err(error) => errors.push(error.file(&catalog.path)),
        }
    }
    if tilings.is_empty() {
        return;
    }
    let extents = Extents { catalog, tilings };
    let mut copied = HashSet::new();
    for target in &mut plan.targets {
        let steps = std::mem::take(&mut target.steps);
        for step in steps {
            match step {
                Step::Copy(copy) => {
                    copied.insert(copy.source.tensor);
                    target.steps.extend(extents.copies(&copy).into_iter().map(Step::Copy));
                }
                Step::Zero(_) => target.steps.push(step),
            }
        }
    }
    plan.unused = std::mem::take(&mut plan.unused).into_iter().flat_map(|it| extents.unused(it)).collect();
    plan.requirements =
        std::mem::take(&mut plan.requirements).into_iter().flat_map(|it| extents.requirement(it)).collect();
    extents.replicas(plan, &copied);
}

impl Extents<'_> {
    /// Returns the parts of loops over a tensor that lie in each of its extents; `loops` are (count, step in the tensor,
    /// step on the other side).
    fn parts(&self, id: ExtentId, offset: u64, loops: &[(u64, u64, u64)]) -> Option<Vec<Clipped>> {
        let tiling = self.tilings.get(&id.tensor)?;
        let meta = &self.catalog.tensors[id.tensor];
        let (moving, repeating): (Vec<_>, Vec<_>) = loops.iter().copied().partition(|(_, step, _)| *step > 0);
        let factors = moving.iter().map(|&(count, weight, stride)| Factor { weight, count, stride });
        let positions = Coordinate { base: offset, factors: factors.collect() };
        let mut parts = Vec::new();
        for (extent, bounds) in &tiling.pieces {
            let start = start_of(meta, *extent, bounds);
            for shared in overlap(&positions, &in_rows(meta, *extent, bounds)) {
                let loops = shared.loops.iter().map(|&(count, other, step)| (count, step, other));
                parts.push(Clipped {
                    id: ExtentId { tensor: id.tensor, extent: Some(*extent) },
                    offset: start + shared.second,
                    other: shared.first,
                    loops: loops.chain(repeating.iter().copied()).collect(),
                });
            }
        }
        Some(parts)
    }

    fn copies(&self, copy: &StridedCopy) -> Vec<StridedCopy> {
        let loops: Vec<_> = copy.loops.iter().map(|l| (l.count, l.source_step, l.target_step)).collect();
        let Some(parts) = self.parts(copy.source, copy.source_offset, &loops) else {
            return vec![copy.clone()];
        };
        let one = |part: Clipped| {
            let loops = part.loops.into_iter();
            let loops =
                loops.map(|(count, source_step, target_step)| Loop { count, source_step, target_step });
            StridedCopy {
                source: part.id,
                source_offset: part.offset,
                target_offset: copy.target_offset + part.other,
                loops: loops.collect(),
                ..copy.clone()
            }
        };
        parts.into_iter().map(one).collect()
    }

    fn regions(&self, source: ExtentId, region: &Region) -> Vec<(ExtentId, Region)> {
        let loops: Vec<_> = region.loops.iter().map(|&(count, step)| (count, step, 0)).collect();
        let Some(parts) = self.parts(source, region.offset, &loops) else {
            return vec![(source, region.clone())];
        };
        let one = |part: Clipped| {
            let loops = part.loops.iter().map(|&(count, step, _)| (count, step)).collect();
            (part.id, Region::new(part.offset, loops))
        };
        parts.into_iter().map(one).collect()
    }

    fn unused(&self, unused: Unused) -> Vec<Unused> {
        let regions = self.regions(unused.source, &unused.region).into_iter();
        regions.map(|(source, region)| Unused { source, region, reason: unused.reason }).collect()
    }

    fn requirement(&self, stated: Requirement) -> Vec<Requirement> {
        let checks: Vec<Check> = match &stated.check {
            Check::Zero { source, region } => {
                let regions = self.regions(*source, region).into_iter();
                regions.map(|(source, region)| Check::Zero { source, region }).collect()
            }
            Check::Equal { first, second, loops } => self.equal(*first, *second, loops),
        };
        checks.into_iter().map(|check| Requirement { check, ..stated.clone() }).collect()
    }

    /// Clips the first side, and what is left of each part to the second.
    fn equal(
        &self,
        first: (ExtentId, u64),
        second: (ExtentId, u64),
        loops: &[(u64, u64, u64)],
    ) -> Vec<Check> {
        let whole = || vec![Clipped { id: first.0, offset: first.1, other: 0, loops: loops.to_vec() }];
        let mut checks = Vec::new();
        for near in self.parts(first.0, first.1, loops).unwrap_or_else(whole) {
            let begin = second.1 + near.other;
            let turned: Vec<_> = near.loops.iter().map(|&(count, a, b)| (count, b, a)).collect();
            match self.parts(second.0, begin, &turned) {
                None => {
                    let (first, second) = ((near.id, near.offset), (second.0, begin));
                    checks.push(Check::Equal { first, second, loops: near.loops });
                }
                Some(parts) => checks.extend(parts.into_iter().map(|far| Check::Equal {
                    first: (near.id, near.offset + far.other),
                    second: (far.id, far.offset),
                    loops: far.loops.iter().map(|&(count, b, a)| (count, a, b)).collect(),
                })),
            }
        }
        checks
    }

    /// Extents that hold the same elements must be equal where the tensor is used; one is read, and the others are
    /// accounted for.
    fn replicas(&self, plan: &mut Plan, copied: &HashSet<usize>) {
        for (&tensor, tiling) in &self.tilings {
            let meta = &self.catalog.tensors[tensor];
            for (first, second, bounds) in &tiling.replicas {
                let id = |extent| ExtentId { tensor, extent: Some(extent) };
                let strides = |extent: usize| meta.extents[extent].strides.iter().copied();
                let second_start = start_of(meta, *second, bounds);
                let loops = bounds.lengths.iter().copied().zip(strides(*second)).collect();
                let region = Region::new(second_start, loops);
                plan.unused.push(Unused { source: id(*second), region, reason: "equal to another extent" });
                if !copied.contains(&tensor) {
                    continue;
                }
                let loops = bounds.lengths.iter().zip(strides(*first)).zip(strides(*second));
                let loops = loops.map(|((&count, a), b)| (count, a, b)).filter(|(count, ..)| *count != 1);
                plan.requirements.push(Requirement {
                    check: Check::Equal {
                        first: (id(*first), start_of(meta, *first, bounds)),
                        second: (id(*second), second_start),
                        loops: loops.collect(),
                    },
                    meaning: "two stored copies of a part of a tensor differ",
                    help: "the checkpoint is damaged, or its files are of different moments: save it again"
                        .into(),
                    rule: None,
                });
            }
        }
    }
}

/// Returns where the first element of a box lies in an extent that holds it, in elements.
fn start_of(meta: &TensorMeta, extent: usize, bounds: &Bounds) -> u64 {
    let extent = &meta.extents[extent];
    let inside = bounds.offsets.iter().zip(&extent.offsets).map(|(index, first)| index - first);
    inside.zip(&extent.strides).map(|(index, stride)| index * stride).sum()
}

/// Returns a box's positions in the order of the tensor's rows, with the strides that the extent has.
fn in_rows(meta: &TensorMeta, extent: usize, bounds: &Bounds) -> Coordinate {
    // The strides of such a tensor are those of its rows.
    let base = bounds.offsets.iter().zip(&meta.strides).map(|(index, stride)| index * stride).sum();
    let dims = bounds.lengths.iter().zip(&meta.strides).zip(&meta.extents[extent].strides);
    let factors = dims.map(|((&count, &weight), &stride)| Factor { weight, count, stride });
    Coordinate { base, factors: factors.collect() }
}
