//! Tensors that content does not tell apart: ties, and constants such as fresh biases and norms.

use std::collections::{BTreeMap, BTreeSet};

use super::blocks::{Block, Digit, Side, Solved};
use super::content::advance;
use super::matching::{Found, Matcher, similarity};
use crate::diag::Errors;

/// Gives each of several like source tensors the target tensor whose name is most like its own.
pub(super) fn part_twins(matcher: &Matcher<'_>, found: &mut [Found]) {
    let mut holders: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, one) in found.iter().enumerate() {
        let tensors = one.tensors();
        if tensors.len() == 1 {
            tensors.into_iter().for_each(|source| holders.entry(source).or_default().push(at));
        }
    }
    let mut claimed: BTreeSet<usize> = holders.keys().copied().collect();
    for (source, targets) in holders.iter().filter(|(_, targets)| targets.len() > 1) {
        let twins: Vec<usize> = matcher
            .twins(targets[0], &found[targets[0]])
            .into_iter()
            .filter(|twin| !claimed.contains(twin))
            .collect();
        let mut left = targets.clone();
        for twin in twins.into_iter().take(targets.len() - 1) {
            let gain =
                |at: &usize| matcher.similarity(*at, twin) as i64 - matcher.similarity(*at, *source) as i64;
            let Some(best) = left.iter().copied().max_by_key(gain) else { break };
            found[best] = matcher.find_in(best, &found[best], twin);
            claimed.insert(twin);
            left.retain(|at| *at != best);
        }
    }
}

/// Constant target groups by what stands for them.
#[derive(Debug, Default)]
pub(super) struct Constants {
    /// What was matched by the pattern of the tensors beside it, or by name.
    pub(super) solved: BTreeMap<usize, Solved>,
    /// What could be several source groups.
    pub(super) ambiguous: BTreeMap<usize, String>,
    /// Target groups that were matched by name alone.
    pub(super) by_name: Vec<usize>,
}

/// Matches target groups whose elements are all the same: the content says nothing, so the blocks of the weight beside
/// decide, else the one name that is most alike both ways.
pub(super) fn match_constants(
    matcher: &Matcher<'_>,
    (source, target): (&Side, &Side),
    constant: &BTreeSet<usize>,
    solved: &BTreeMap<usize, Solved>,
) -> Constants {
    let mut result = Constants::default();
    let mut claimed: BTreeSet<usize> =
        solved.values().flat_map(|solved| &solved.blocks).filter_map(|block| block.source).collect();
    let pairing = Pairing { matcher, source, target };
    for &group in constant {
        let value = |other: usize| pairing.is_constant(group, other);
        if let Some(found) = pairing
            .beside(group, solved, &|other| !claimed.contains(&other) && value(other))
            .into_iter()
            .next()
        {
            claimed.extend(found.blocks.iter().filter_map(|block| block.source));
            result.solved.insert(group, found);
        }
    }
    loop {
        let open: Vec<usize> =
            constant.iter().copied().filter(|group| !result.solved.contains_key(group)).collect();
        let mut pairs: Vec<(u64, usize, usize)> = Vec::new();
        for &group in &open {
            let others = (0..source.groups.len()).filter(|other| !claimed.contains(other));
            pairs.extend(others.filter_map(|other| Some((pairing.by_name(group, other)?, group, other))));
        }
        result.ambiguous.clear();
        // The best pair that is better than all others of either.
        let unique = |&(score, group, other): &(u64, usize, usize)| {
            pairs.iter().all(|&(s, g, o)| (g, o) == (group, other) || (g != group && o != other) || s < score)
        };
        let best = pairs.iter().filter(|pair| unique(pair)).max().copied();
        let Some((_, group, other)) = best else {
            for &(_, group, _) in &pairs {
                let names: Vec<&str> = pairs
                    .iter()
                    .filter(|pair| pair.1 == group)
                    .map(|pair| source.groups[pair.2].skeleton.as_str())
                    .collect();
                let why = format!(
                    "ambiguous: all its elements are the same, and so are those of {}",
                    names.join(", ")
                );
                result.ambiguous.insert(group, why);
            }
            return result;
        };
        claimed.insert(other);
        result.by_name.push(group);
        result.solved.insert(group, pairing.as_it_is(group, other));
    }
}

struct Pairing<'a, 'b> {
    matcher: &'a Matcher<'b>,
    source: &'a Side,
    target: &'a Side,
}

impl Pairing<'_, '_> {
    fn stored(&self, group: usize) -> &[u64] {
        &self.matcher.target.tensors()[self.target.groups[group].tensors[0]].shape
    }

    fn is_constant(&self, group: usize, other: usize) -> bool {
        let tensors = &self.target.groups[group].tensors;
        let value = self.matcher.target_constant(tensors);
        value.is_some_and(|value| {
            self.matcher.is_source_constant(&self.source.groups[other].tensors, value, tensors[0])
        })
    }

    /// Returns how alike the names of two groups are that hold the same, one tensor for each of the other.
    fn by_name(&self, group: usize, other: usize) -> Option<u64> {
        let (own, theirs) = (&self.target.groups[group], &self.source.groups[other]);
        let shape = &self.matcher.source.tensors()[theirs.tensors[0]].shape;
        let same = own.tensors.len() == theirs.tensors.len()
            && own.lists.len() == theirs.lists.len()
            && own.tensors.iter().zip(&theirs.tensors).all(|(a, b)| {
                self.target.names.names[*a].indices == self.source.names.names[*b].indices
                    && self.matcher.target.tensors()[*a].shape == self.matcher.source.tensors()[*b].shape
            });
        let score = similarity(&own.skeleton, &theirs.skeleton);
        (same && shape.iter().filter(|n| **n > 1).count() <= 1 && score > 0 && self.is_constant(group, other))
            .then_some(score)
    }

    fn as_it_is(&self, group: usize, other: usize) -> Solved {
        let lists = self.target.groups[group].lists.len();
        let shape = self.stored(group);
        let digits = shape.iter().enumerate().filter(|(_, size)| **size > 1).map(|(dim, &size)| Digit {
            size,
            target: Some((lists + dim, 1)),
            source: Some((lists + dim, 1)),
        });
        let block = Block {
            target: Some(group),
            source: Some(other),
            target_start: vec![0; lists + shape.len()],
            source_start: vec![0; lists + shape.len()],
            digits: digits.collect(),
            tensors: Some((self.target.groups[group].tensors[0], self.source.groups[other].tensors[0])),
        };
        Solved { blocks: vec![block], shared: (0..lists).map(|slot| (other, slot, slot)).collect() }
    }

    /// Returns what a tensor's blocks are if they go with those of a weight beside it, along the axes that have its sizes.
    fn beside(
        &self,
        group: usize,
        solved: &BTreeMap<usize, Solved>,
        fits: &dyn Fn(usize) -> bool,
    ) -> Vec<Solved> {
        let mut found = Vec::new();
        let own = &self.target.groups[group];
        let shape = self.stored(group);
        let long: Vec<usize> = (0..shape.len()).filter(|dim| shape[*dim] > 1).collect();
        // A vector tells of another one only where the two are all there is, as of a norm.
        let siblings = self.target.groups.iter().filter(|of| parent(&of.skeleton) == parent(&own.skeleton));
        let pair = siblings.count() == 2;
        let mut candidates: Vec<(&usize, &Solved)> = solved
            .iter()
            .filter(|(other, _)| {
                parent(&self.target.groups[**other].skeleton) == parent(&own.skeleton)
                    && self.target.groups[**other].lists == own.lists
                    && self.rank(**other) >= long.len() + usize::from(!pair)
            })
            .collect();
        candidates.sort_by_key(|(other, _)| {
            std::cmp::Reverse(similarity(&self.target.groups[**other].skeleton, &own.skeleton))
        });
        for (&weight, weights) in candidates {
            for axes in self.axes_like(&long, group, weight) {
                let blocks = weights.blocks.iter().map(|block| self.row(group, &axes, block, fits));
                let Some(mut blocks) = blocks.collect::<Option<Vec<Block>>>() else { continue };
                let shared = weights.shared.iter().flat_map(|&(of, slot, other)| {
                    let pairs = weights
                        .blocks
                        .iter()
                        .zip(&blocks)
                        .filter(move |(weight, _)| weight.source == Some(of));
                    pairs.filter_map(move |(_, block)| Some((block.source?, slot, other)))
                });
                let shared: BTreeSet<(usize, usize, usize)> = shared.collect();
                blocks.dedup();
                found.push(Solved { shared: shared.into_iter().collect(), blocks });
            }
        }
        found
    }

    /// Returns how many axes of a group's tensors are longer than one.
    fn rank(&self, group: usize) -> usize {
        self.stored(group).iter().filter(|size| **size > 1).count()
    }

    /// Returns the ways in which a tensor's axes can be axes of a weight, in their order: pairs of axes of the groups.
    fn axes_like(&self, long: &[usize], group: usize, weight: usize) -> Vec<Vec<(usize, usize)>> {
        let lists = self.target.groups[group].lists.len();
        let (shape, stored) = (self.stored(group), self.stored(weight));
        let mut ways: Vec<Vec<(usize, usize)>> = vec![Vec::new()];
        for &dim in long {
            let mut longer = Vec::new();
            for way in &ways {
                let first = way.last().map_or(0, |(_, axis)| axis - lists + 1);
                let like = (first..stored.len()).filter(|axis| stored[*axis] == shape[dim]);
                longer.extend(like.map(|axis| {
                    let mut way = way.clone();
                    way.push((lists + dim, lists + axis));
                    way
                }));
            }
            ways = longer;
        }
        ways
    }

    /// Returns whether every element of a group's tensors is what its blocks say.
    fn holds(&self, group: usize, solved: &Solved) -> Result<bool, Errors> {
        let own = &self.target.groups[group];
        let shape = self.stored(group);
        let lists = own.lists.len();
        for &tensor in &own.tensors {
            let meta = &self.matcher.target.tensors()[tensor];
            let indices = &self.target.names.names[tensor].indices;
            if meta.shape != shape {
                return Ok(false);
            }
            let wanted = self.matcher.target.all(tensor, meta.dtype)?;
            for block in &solved.blocks {
                let Some(of) = block.source else { return Ok(false) };
                let theirs = &self.source.groups[of];
                let sizes: Vec<u64> = block.digits.iter().map(|digit| digit.size).collect();
                let mut count = vec![0; sizes.len()];
                for _ in 0..sizes.iter().product::<u64>() {
                    let (mut there, mut here) = (block.source_start.clone(), block.target_start.clone());
                    for (digit, at) in block.digits.iter().zip(&count) {
                        digit.target.into_iter().for_each(|(axis, step)| here[axis] += at * step);
                        digit.source.into_iter().for_each(|(axis, step)| there[axis] += at * step);
                    }
                    for &(group, slot, other) in &solved.shared {
                        if group == of {
                            (here[slot], there[other]) = (indices[slot], indices[slot]);
                        }
                    }
                    advance(&mut count, &sizes);
                    if here[..lists] != indices[..] {
                        continue;
                    }
                    let named = |at: &&usize| {
                        self.source.names.names[**at].indices[..] == there[..theirs.lists.len()]
                    };
                    let Some(&source) = theirs.tensors.iter().find(named) else { return Ok(false) };
                    let place = |shape: &[u64], index: &[u64]| {
                        shape.iter().zip(index).fold(0, |sum, (n, at)| sum * n + at)
                    };
                    let values = self.matcher.source.all(source, meta.dtype)?;
                    let stored = &self.matcher.source.tensors()[source].shape;
                    let found = values.get(place(stored, &there[theirs.lists.len()..]) as usize);
                    if found.is_none() || found != wanted.get(place(shape, &here[lists..]) as usize) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Returns the block that goes with some axes of a weight's block.
    fn row(
        &self,
        group: usize,
        axes: &[(usize, usize)],
        weight: &Block,
        usable: &dyn Fn(usize) -> bool,
    ) -> Option<Block> {
        let lists = self.target.groups[group].lists.len();
        let of = weight.source?;
        let theirs = &self.source.groups[of];
        let slots = theirs.lists.len();
        let mut digits = Vec::new();
        let mut along = BTreeSet::new();
        for digit in &weight.digits {
            let (at, step) = digit.target?;
            let own = axes.iter().find(|(_, axis)| *axis == at).map(|(own, _)| *own);
            let Some(at) = own.or((at < lists).then_some(at)) else { continue };
            along.extend(digit.source.map(|(axis, _)| axis).filter(|axis| *axis >= slots));
            digits.push(Digit { target: Some((at, step)), ..*digit });
        }
        let stored = &self.matcher.source.tensors()[weight.tensors?.1].shape;
        let sizes: Vec<u64> = along.iter().map(|axis| stored[axis - slots]).collect();
        let long = |other: usize| -> Vec<(usize, u64)> {
            let shape = &self.matcher.source.tensors()[self.source.groups[other].tensors[0]].shape;
            shape.iter().copied().enumerate().filter(|(_, size)| *size > 1).collect()
        };
        let fits = |other: &usize| {
            let near = &self.source.groups[*other];
            usable(*other)
                && parent(&near.skeleton) == parent(&theirs.skeleton)
                && near.lists == theirs.lists
                && long(*other).iter().map(|(_, size)| *size).eq(sizes.iter().copied())
        };
        // Of several the one whose name goes with the weight's as this one's does with its own.
        let own = &self.target.groups[group].skeleton;
        let mut fitting: Vec<(u64, usize)> = (0..self.source.groups.len())
            .filter(fits)
            .map(|other| {
                let name = &self.source.groups[other].skeleton;
                (similarity(name, &theirs.skeleton) + similarity(name, own), other)
            })
            .collect();
        fitting.sort_unstable();
        let (score, other) = fitting.pop()?;
        if fitting.last().is_some_and(|(next, _)| *next == score) {
            return None;
        }
        let places: BTreeMap<usize, usize> =
            along.iter().copied().zip(long(other).into_iter().map(|(dim, _)| slots + dim)).collect();
        let shape = &self.matcher.source.tensors()[self.source.groups[other].tensors[0]].shape;
        let mut target_start = vec![0; lists + self.stored(group).len()];
        target_start[..lists].copy_from_slice(&weight.target_start[..lists]);
        axes.iter().for_each(|(own, axis)| target_start[*own] = weight.target_start[*axis]);
        let mut source_start = vec![0; slots + shape.len()];
        source_start[..slots].copy_from_slice(&weight.source_start[..slots]);
        places.iter().for_each(|(axis, there)| source_start[*there] = weight.source_start[*axis]);
        let moved = |digit: Digit| Digit {
            source: digit.source.map(|(axis, step)| (places.get(&axis).copied().unwrap_or(axis), step)),
            ..digit
        };
        Some(Block {
            target: Some(group),
            source: Some(other),
            target_start,
            source_start,
            digits: digits.into_iter().map(moved).collect(),
            tensors: Some((self.target.groups[group].tensors[0], self.source.groups[other].tensors[0])),
        })
    }
}

/// Explains a vector by the weight beside it, where every element agrees.
pub(super) fn beside(
    matcher: &Matcher<'_>,
    (source, target): (&Side, &Side),
    group: usize,
    solved: &BTreeMap<usize, Solved>,
) -> Result<Option<Solved>, Errors> {
    let pairing = Pairing { matcher, source, target };
    for found in pairing.beside(group, solved, &|_| true) {
        if pairing.holds(group, &found)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns a template without its last part.
fn parent(skeleton: &str) -> &str {
    skeleton.rfind(['.', '/']).map_or("", |at| &skeleton[..at])
}
