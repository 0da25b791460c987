//! Target tensors of one template → blocks: nests of loops that step through a target and a source tensor together.

use std::collections::{BTreeMap, BTreeSet};

use super::content::line_index;
use super::matching::{Found, Matcher, Place};
use super::names::Names;
use super::nest::{Cell, Nest, nests};
use crate::diag::Errors;

/// The tensors of a side whose names differ in indices alone.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The text of the template, `{}` for each index.
    pub(super) skeleton: String,
    /// The lists that the indices count.
    pub(super) lists: Vec<usize>,
    /// The tensors.
    pub(super) tensors: Vec<usize>,
}

/// A checkpoint's names, in groups.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    pub(super) names: Names,
    pub(super) groups: Vec<Group>,
    /// The group of each tensor.
    pub(super) of: Vec<usize>,
}

impl Side {
    pub(super) fn new(names: Names) -> Side {
        let mut side = Side::default();
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for (at, name) in names.names.iter().enumerate() {
            let skeleton = name.skeleton();
            let group = *known.entry(skeleton.clone()).or_insert(side.groups.len());
            if group == side.groups.len() {
                side.groups.push(Group { skeleton, lists: name.lists.clone(), tensors: Vec::new() });
            }
            side.groups[group].tensors.push(at);
            side.of.push(group);
        }
        Side { names, ..side }
    }

    fn indices(&self, tensor: usize) -> &[u64] {
        &self.names.names[tensor].indices
    }
}

/// A digit that a target index and a source index have in common. Axes of a group are its name's indices, then the stored
/// axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digit {
    pub(super) size: u64,
    /// Axis and step in the target; `None` where the source repeats what the target has once.
    pub(super) target: Option<(usize, u64)>,
    /// Axis and step in the source; `None` where the target repeats, and for zeros.
    pub(super) source: Option<(usize, u64)>,
}

/// A part of a target group that is a part of a source group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// `None` for what the source has as padding, or again.
    pub(super) target: Option<usize>,
    /// `None` for zeros.
    pub(super) source: Option<usize>,
    pub(super) target_start: Vec<u64>,
    pub(super) source_start: Vec<u64>,
    pub(super) digits: Vec<Digit>,
    /// A target and a source tensor in which it was found.
    pub(super) tensors: Option<(usize, usize)>,
}

/// A target group that is explained.
#[derive(Clone, Debug)]
pub(super) struct Solved {
    /// The blocks of one instance; the others have the same with other sizes.
    pub(super) blocks: Vec<Block>,
    /// Per source group: indices of the target's name and of the source's that are one.
    pub(super) shared: Vec<(usize, usize, usize)>,
}

/// Why a target group is not explained.
#[derive(Clone, Debug)]
pub(super) struct Unsolved {
    pub(super) why: String,
    /// Prefixes whose numbers may be no indices, on the target's and the source's side.
    pub(super) doubtful: (BTreeSet<String>, BTreeSet<String>),
}

/// Solves one target group; `found` are its tensors in the order of the group.
pub(super) fn solve(
    matcher: &Matcher<'_>,
    target: &Side,
    source: &Side,
    group: usize,
    found: &[&Found],
) -> Result<Result<Solved, Unsolved>, Errors> {
    let (known, all) =
        found.iter().map(|found| found.known()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let solver = Solver { matcher, target, source, group, found };
    if known < all {
        let percent = 100.0 * known as f64 / all.max(1) as f64;
        let what = if found.iter().any(|found| found.axis.is_some()) { "rows" } else { "elements" };
        let why = format!("{percent:.0} % of its {what} were found in the source");
        // What is not in the source cannot be helped by reading names otherwise.
        return Ok(Err(Unsolved { why, doubtful: Default::default() }));
    }
    solver.run()
}

struct Solver<'a, 'b> {
    matcher: &'a Matcher<'b>,
    target: &'a Side,
    source: &'a Side,
    group: usize,
    found: &'a [&'a Found],
}

impl Solver<'_, '_> {
    fn run(&self) -> Result<Result<Solved, Unsolved>, Errors> {
        let shared = self.shared();
        let own = &self.target.groups[self.group];
        let instance: BTreeSet<usize> = shared.iter().map(|(_, slot, _)| *slot).collect();
        let free: Vec<usize> = (0..own.lists.len()).filter(|slot| !instance.contains(slot)).collect();
        let mut instances: BTreeMap<Vec<u64>, Vec<usize>> = BTreeMap::new();
        for (at, &tensor) in own.tensors.iter().enumerate() {
            let indices = self.target.indices(tensor);
            instances.entry(instance.iter().map(|&slot| indices[slot]).collect()).or_default().push(at);
        }
        let mut solved: Option<Vec<Block>> = None;
        for members in instances.values() {
            let blocks = match self.instance(members, &free)? {
                Ok(blocks) => blocks,
                Err(why) => return Ok(Err(self.unsolved(why, &free, &shared))),
            };
            match &solved {
                // One with more digits tells more: the others have sizes at which they fall together.
                Some(other) if digits(other) >= digits(&blocks) => {}
                _ => solved = Some(blocks),
            }
        }
        let Some(blocks) = solved else {
            return Ok(Err(self.unsolved("it has no tensors".into(), &free, &shared)));
        };
        Ok(Ok(Solved { blocks, shared }))
    }

    fn unsolved(&self, why: String, free: &[usize], shared: &[(usize, usize, usize)]) -> Unsolved {
        let own = &self.target.groups[self.group];
        let prefix = |side: &Side, list: usize| side.names.lists[list].prefix.clone();
        let targets = free.iter().map(|&slot| prefix(self.target, own.lists[slot])).collect();
        let mut sources = BTreeSet::new();
        for group in self.source_groups() {
            for (slot, &list) in self.source.groups[group].lists.iter().enumerate() {
                if !shared.iter().any(|(of, _, other)| *of == group && *other == slot) {
                    sources.insert(prefix(self.source, list));
                }
            }
        }
        Unsolved { why, doubtful: (targets, sources) }
    }

    fn source_groups(&self) -> BTreeSet<usize> {
        self.found.iter().flat_map(|found| found.tensors()).map(|tensor| self.source.of[tensor]).collect()
    }

    /// Returns the indices in the target's names that are always those in the names of the source tensors they come from:
    /// source group, index of the target's name, index of the source's.
    fn shared(&self) -> Vec<(usize, usize, usize)> {
        let own = &self.target.groups[self.group];
        let groups = self.source_groups();
        let mut shared = Vec::new();
        for slot in 0..own.lists.len() {
            let mut pairs = Vec::new();
            for &group in &groups {
                let fits = |other: &usize| {
                    let used = shared.iter().any(|(of, _, taken)| *of == group && taken == other);
                    !used && self.always_equal(slot, group, *other)
                };
                if let Some(other) = (0..self.source.groups[group].lists.len()).find(fits) {
                    pairs.push((group, slot, other));
                }
            }
            if pairs.len() == groups.len() {
                shared.extend(pairs);
            }
        }
        shared
    }

    fn always_equal(&self, slot: usize, group: usize, other: usize) -> bool {
        let own = &self.target.groups[self.group];
        own.tensors.iter().zip(self.found).all(|(&tensor, found)| {
            let index = self.target.indices(tensor)[slot];
            let of_group = |source: &usize| self.source.of[*source] == group;
            found
                .tensors()
                .iter()
                .filter(|source| of_group(source))
                .all(|&source| self.source.indices(source)[other] == index)
        })
    }

    /// Solves the tensors that differ in free indices alone.
    fn instance(&self, members: &[usize], free: &[usize]) -> Result<Result<Vec<Block>, String>, Errors> {
        let own = &self.target.groups[self.group];
        let mut members = members.to_vec();
        let place = |member: &usize| -> Vec<u64> {
            free.iter().map(|&slot| self.target.indices(own.tensors[*member])[slot]).collect()
        };
        members.sort_by_key(place);
        let first = &self.matcher.target.tensors()[own.tensors[members[0]]];
        let counts: Vec<u64> = (0..free.len())
            .map(|at| members.iter().map(|member| place(member)[at]).collect::<BTreeSet<_>>().len() as u64)
            .collect();
        let same = members
            .iter()
            .all(|member| self.matcher.target.tensors()[own.tensors[*member]].shape == first.shape);
        let whole = counts.iter().product::<u64>() == members.len() as u64
            && members
                .iter()
                .all(|member| place(member).iter().zip(&counts).all(|(index, count)| index < count));
        let axis = self.found[members[0]].axis;
        if !same || !whole || members.iter().any(|member| self.found[*member].axis != axis) {
            return Ok(Err("tensors of one name have several shapes or gaps".into()));
        }
        let stored: Vec<usize> = (0..first.shape.len()).filter(|dim| Some(*dim) != axis).collect();
        let shape: Vec<u64> =
            counts.iter().copied().chain(stored.iter().map(|&dim| first.shape[dim])).collect();
        let mut labels: Vec<Option<(usize, Option<usize>)>> = vec![None];
        let mut cells = Vec::new();
        for place in members.iter().flat_map(|&member| &self.found[member].places) {
            let (label, at) = match place {
                Place::At { tensor, axis, index } => {
                    let label = Some((self.source.of[*tensor], *axis));
                    let indices = self.source.indices(*tensor).iter();
                    (label, indices.chain(index).map(|&at| at as i64).collect())
                }
                Place::Zeros | Place::Unknown => (None, Vec::new()),
            };
            let known = labels.iter().position(|known| *known == label);
            let label = known.unwrap_or_else(|| {
                labels.push(label);
                labels.len() - 1
            });
            cells.push(Cell { label: label as u32, at });
        }
        // Axes of the grid as axes of the group.
        let slots = own.lists.len();
        let axes: Vec<usize> = free.iter().copied().chain(stored.iter().map(|dim| slots + dim)).collect();
        let Some(found) = nests(&shape, cells) else {
            return Ok(Err("all rows were found, but in no order that loops make".into()));
        };
        let mut orders: BTreeMap<u32, Vec<Nest>> = BTreeMap::new();
        if let Some(axis) = axis {
            for nest in &found {
                let Some(label) = labels[nest.label as usize].filter(|_| !orders.contains_key(&nest.label))
                else {
                    continue;
                };
                match self.order(&members, label, axis)? {
                    Some(order) => orders.insert(nest.label, order),
                    None => {
                        return Ok(Err(
                            "all rows were found, but their elements in no order that loops make".into(),
                        ));
                    }
                };
            }
        }
        let mut blocks = Vec::new();
        for nest in &found {
            let label = labels[nest.label as usize];
            let mut start = vec![0; slots + first.shape.len()];
            axes.iter().zip(&nest.start).for_each(|(&axis, &at)| start[axis] = at);
            let digits = nest.loops.iter().map(|of| Digit {
                size: of.size,
                target: Some((axes[of.axis], of.step)),
                source: of.moves.iter().position(|step| *step != 0).map(|at| (at, of.moves[at] as u64)),
            });
            let mut block = Block {
                target: Some(self.group),
                source: label.map(|(group, _)| group),
                target_start: start,
                source_start: nest.at.iter().map(|&at| at as u64).collect(),
                digits: digits.collect(),
                tensors: label.and_then(|label| self.example(&members, label)),
            };
            let Some(axis) = axis else {
                blocks.push(block);
                continue;
            };
            let Some((group, source_axis)) = label else {
                let size = first.shape.get(axis).copied().unwrap_or(1);
                block.digits.push(Digit { size, target: Some((slots + axis, 1)), source: None });
                blocks.push(block);
                continue;
            };
            let source_axis = self.source.groups[group].lists.len() + source_axis.unwrap_or_default();
            for order in &orders[&nest.label] {
                let mut part = block.clone();
                if let (Some(target), Some(source)) =
                    (part.target_start.get_mut(slots + axis), part.source_start.get_mut(source_axis))
                {
                    (*target, *source) = (order.start[0], order.at[0] as u64);
                }
                part.digits.extend(order.loops.iter().map(|of| Digit {
                    size: of.size,
                    target: Some((slots + axis, of.step)),
                    source: Some((source_axis, of.moves[0] as u64)).filter(|(_, step)| *step > 0),
                }));
                blocks.push(part);
            }
        }
        blocks.iter_mut().for_each(|block| block.digits.retain(|digit| digit.size > 1));
        Ok(Ok(blocks))
    }

    /// Returns a target tensor and the source tensor of a label that is a part of it.
    fn example(&self, members: &[usize], (group, _): (usize, Option<usize>)) -> Option<(usize, usize)> {
        members.iter().find_map(|&member| {
            let source =
                self.found[member].tensors().into_iter().find(|source| self.source.of[*source] == group)?;
            Some((self.target.groups[self.group].tensors[member], source))
        })
    }

    /// Returns the order of the elements along the lines that come from one source group.
    fn order(
        &self,
        members: &[usize],
        (group, source_axis): (usize, Option<usize>),
        axis: usize,
    ) -> Result<Option<Vec<Nest>>, Errors> {
        let own = &self.target.groups[self.group];
        let mut pairs = Vec::new();
        'all: for &member in members {
            let places = &self.found[member].places;
            // Lines apart, so that what repeats in neighbours does not count.
            let step = (places.len() / 3).max(1);
            let of_group = |place: &Place| matches!(place, Place::At { tensor, axis, .. } if self.source.of[*tensor] == group && *axis == source_axis);
            let lines: Vec<usize> = (0..places.len()).filter(|at| of_group(&places[*at])).collect();
            for &line in lines.iter().step_by(step.min(lines.len().max(1))) {
                if let Place::At { tensor, axis: Some(axis), index } = &places[line] {
                    let shape = &self.matcher.source.tensors()[*tensor].shape;
                    pairs.push((own.tensors[member], line as u64, *tensor, line_of(shape, *axis, index)));
                }
                if pairs.len() >= 4 {
                    break 'all;
                }
            }
        }
        let Some(order) = self.matcher.alignment(&pairs, (axis, source_axis.unwrap_or_default()))? else {
            return Ok(None);
        };
        let cells = order.iter().map(|&at| Cell { label: 0, at: vec![at as i64] }).collect();
        Ok(nests(&[order.len() as u64], cells))
    }
}

fn digits(blocks: &[Block]) -> usize {
    blocks.iter().map(|block| block.digits.len() + 1).sum()
}

/// Returns the number of the line through an index.
fn line_of(shape: &[u64], axis: usize, index: &[u64]) -> u64 {
    let others = (0..shape.len()).filter(|&dim| dim != axis);
    let line = others.fold(0, |line, dim| line * shape[dim] + index[dim]);
    debug_assert_eq!(line_index(shape, axis, line), {
        let mut index = index.to_vec();
        index.iter_mut().skip(axis).take(1).for_each(|at| *at = 0);
        index
    });
    line
}
