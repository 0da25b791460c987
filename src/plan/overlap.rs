//! Where two blocks hold the same elements: the values that two coordinates share, as loops on which both agree.
//!
//! A coordinate takes the values `base + Σ index·weight`, one factor for each index, and says with a stride how far each
//! factor moves in the stored tensor. Two layouts may factor an axis differently: heads and groups of heads, an axis cut
//! into shards at other places, a box of a tensor that lies in several files. The shared values are found factor by factor,
//! the heaviest first, in one of three steps:
//!
//! 1. *Equal weights*: if all that lies below stays below the weight on both sides, both factors walk in step over the
//!    multiples that they share: a loop.
//! 2. *One is heavier, and the lighter side's factor splits at its weight*: the lighter factor becomes two.
//! 3. *Neither*: the heavier factor is taken apart index by index.
//!
//! An example: 12 heads in a row against 3 groups of 4 heads, groups 30 elements apart and heads 5:
//!
//! | side | factors (count, weight, stride) |
//! |---|---|
//! | heads | (12, 1, 5) |
//! | groups | (3, 4, 30), (4, 1, 5) |
//!
//! The heaviest weights are 1 and 4. 12 heads split at 4 (step 2): (3, 4, 20), (4, 1, 5). Weights are equal now (step 1): a
//! loop of 3 that moves 20 elements in the first tensor and 30 in the second, and inside it one of 4 that moves 5 in both.
//! With the second side's base at 4 (the first group is missing), the loop of 3 would be one of 2 from index 1 of the heads:
//! the offset in the first tensor is 20.

use smallvec::SmallVec;

use crate::bind::{Coordinate, Factor};

/// A loop on which both blocks agree: (count, stride in the first, stride in the second).
pub(super) type SharedLoop = (u64, u64, u64);

/// A set of elements that both blocks hold: offsets in either, and common loops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Overlap {
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) loops: Vec<SharedLoop>,
}

impl Overlap {
    /// Returns the number of elements.
    pub(super) fn elements(&self) -> u64 {
        self.loops.iter().map(|(count, ..)| count).product()
    }
}

/// Returns the values that two coordinates share.
pub(super) fn overlap(first: &Coordinate, second: &Coordinate) -> Vec<Overlap> {
    let mut found = Vec::new();
    if let (Some(first), Some(second)) = (Rest::of(first), Rest::of(second)) {
        refine(&first, &second, &[], &mut found);
    }
    found
}

/// What is left of a coordinate when its heaviest factors have been dealt with.
#[derive(Clone)]
struct Rest {
    /// The smallest value.
    value: u64,
    /// Where it lies in the stored tensor.
    offset: u64,
    /// The factors, the heaviest last.
    factors: SmallVec<[Factor; 4]>,
}

impl Rest {
    /// Sorts the factors; `None` where there are no values.
    fn of(coordinate: &Coordinate) -> Option<Rest> {
        let mut factors: SmallVec<[Factor; 4]> =
            coordinate.factors.iter().copied().filter(|factor| factor.count != 1).collect();
        factors.sort_by_key(|factor| factor.weight);
        let is_empty = factors.iter().any(|factor| factor.count == 0);
        (!is_empty).then_some(Rest { value: coordinate.base, offset: 0, factors })
    }

    fn heaviest(&self) -> Option<Factor> {
        self.factors.last().copied()
    }

    /// Returns how far the values reach beyond the smallest, over all factors or all but the heaviest.
    fn reach(&self) -> u64 {
        reach(&self.factors)
    }

    fn reach_below_heaviest(&self) -> u64 {
        self.factors.split_last().map_or(0, |(_, lighter)| reach(lighter))
    }

    /// Returns whether all factors but the heaviest stay between two multiples of the weight.
    fn stays_below(&self, weight: u64) -> bool {
        self.value % weight + self.reach_below_heaviest() < weight
    }

    /// Returns the rest with the heaviest factor at one index.
    fn at(&self, index: u64) -> Rest {
        let mut rest = self.clone();
        if let Some(factor) = rest.factors.pop() {
            rest.value += index * factor.weight;
            rest.offset += index * factor.stride;
        }
        rest
    }

    /// Returns the rest with the heaviest factor split at a weight that is a multiple of its own. The heavier part then
    /// moves in multiples of that weight, from one of them on.
    fn split(&self, weight: u64) -> Option<Rest> {
        let factor = self.heaviest()?;
        let inner = weight / factor.weight;
        let splits = weight.is_multiple_of(factor.weight)
            && factor.count > inner
            && factor.count.is_multiple_of(inner)
            && self.value.is_multiple_of(weight)
            && self.reach_below_heaviest() < factor.weight;
        splits.then(|| {
            let mut rest = self.clone();
            rest.factors.pop();
            rest.factors.push(Factor { count: inner, ..factor });
            let (count, stride) = (factor.count / inner, factor.stride * inner);
            rest.factors.push(Factor { weight, count, stride });
            rest
        })
    }
}

fn reach(factors: &[Factor]) -> u64 {
    factors.iter().map(|factor| (factor.count - 1) * factor.weight).sum()
}

/// Adds what two rests share, inside the loops that were found for the heavier factors.
fn refine(first: &Rest, second: &Rest, loops: &[SharedLoop], found: &mut Vec<Overlap>) {
    if first.value > second.value + second.reach() || second.value > first.value + first.reach() {
        return;
    }
    let (x, y) = match (first.heaviest(), second.heaviest()) {
        (Some(x), Some(y)) => (x, y),
        (Some(x), None) => return take_first_apart(x, first, second, loops, found),
        (None, Some(y)) => return take_second_apart(y, first, second, loops, found),
        (None, None) => {
            let (first, second) = (first.offset, second.offset);
            return found.push(Overlap { first, second, loops: loops.to_vec() });
        }
    };
    if x.weight == y.weight && first.stays_below(x.weight) && second.stays_below(x.weight) {
        return walk_in_step((x, first), (y, second), loops, found);
    }
    if x.weight > y.weight
        && first.stays_below(x.weight)
        && let Some(split) = second.split(x.weight)
    {
        return refine(first, &split, loops, found);
    }
    if y.weight > x.weight
        && second.stays_below(y.weight)
        && let Some(split) = first.split(y.weight)
    {
        return refine(&split, second, loops, found);
    }
    if x.weight >= y.weight {
        take_first_apart(x, first, second, loops, found);
    } else {
        take_second_apart(y, first, second, loops, found);
    }
}

/// Both heaviest factors have one weight: they share the multiples of it at which both stand.
fn walk_in_step(
    (x, first): (Factor, &Rest),
    (y, second): (Factor, &Rest),
    loops: &[SharedLoop],
    found: &mut Vec<Overlap>,
) {
    let weight = x.weight;
    let (low, high) = (first.value / weight, second.value / weight);
    let start = low.max(high);
    let end = (low + x.count).min(high + y.count);
    if start >= end {
        return;
    }
    // What is left is counted from the multiple on.
    let inside = |rest: &Rest, index: u64| {
        let at = rest.at(index);
        Rest { value: rest.value % weight, ..at }
    };
    let (first, second) = (inside(first, start - low), inside(second, start - high));
    if end - start == 1 {
        return refine(&first, &second, loops, found);
    }
    let loops = [loops, &[(end - start, x.stride, y.stride)]].concat();
    refine(&first, &second, &loops, found);
}

fn take_first_apart(
    factor: Factor,
    first: &Rest,
    second: &Rest,
    loops: &[SharedLoop],
    found: &mut Vec<Overlap>,
) {
    (0..factor.count).for_each(|index| refine(&first.at(index), second, loops, found));
}

fn take_second_apart(
    factor: Factor,
    first: &Rest,
    second: &Rest,
    loops: &[SharedLoop],
    found: &mut Vec<Overlap>,
) {
    (0..factor.count).for_each(|index| refine(first, &second.at(index), loops, found));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Lists value → offset.
    fn values(coordinate: &Coordinate) -> BTreeMap<u64, u64> {
        let mut all = vec![(coordinate.base, 0)];
        for factor in &coordinate.factors {
            all = all
                .iter()
                .flat_map(|(value, offset)| {
                    (0..factor.count).map(move |i| (value + i * factor.weight, offset + i * factor.stride))
                })
                .collect();
        }
        all.into_iter().collect()
    }

    fn pairs(overlaps: &[Overlap]) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for overlap in overlaps {
            let mut offsets = vec![(overlap.first, overlap.second)];
            for (count, a, b) in &overlap.loops {
                offsets = offsets
                    .iter()
                    .flat_map(|(x, y)| (0..*count).map(move |i| (x + i * a, y + i * b)))
                    .collect();
            }
            all.extend(offsets);
        }
        all.sort_unstable();
        all
    }

    /// A mixed-radix range in an order of its own, some of it cut off: what layouts make of an axis.
    fn coordinate() -> impl Strategy<Value = Coordinate> {
        (prop::collection::vec(1_u64..5, 1..4), 0_u64..6, any::<bool>()).prop_map(|(counts, base, drop)| {
            let mut factors = Vec::new();
            let (mut weight, mut stride) = (1, 1);
            for count in counts {
                factors.push(Factor { weight, count, stride: stride * 7 });
                weight *= count;
                stride *= count;
            }
            if drop && factors.len() > 1 {
                factors.remove(0);
            }
            Coordinate { base, factors }
        })
    }

    proptest! {
        #[test]
        fn an_overlap_is_the_intersection(first in coordinate(), second in coordinate()) {
            let (a, b) = (values(&first), values(&second));
            let mut expected: Vec<(u64, u64)> =
                a.iter().filter_map(|(value, offset)| Some((*offset, *b.get(value)?))).collect();
            expected.sort_unstable();
            prop_assert_eq!(pairs(&overlap(&first, &second)), expected);
        }
    }

    #[test]
    fn two_shards_share_the_end_of_one() {
        let two = Coordinate { base: 6, factors: vec![Factor { weight: 1, count: 6, stride: 1 }] };
        let four = Coordinate { base: 9, factors: vec![Factor { weight: 1, count: 3, stride: 1 }] };
        assert_eq!(overlap(&two, &four), [Overlap { first: 3, second: 0, loops: vec![(3, 1, 1)] }]);
    }

    #[test]
    fn groups_and_heads_share_one_loop_each() {
        let heads = Coordinate { base: 0, factors: vec![Factor { weight: 1, count: 12, stride: 5 }] };
        let grouped = Coordinate {
            base: 0,
            factors: vec![
                Factor { weight: 4, count: 3, stride: 30 },
                Factor { weight: 1, count: 4, stride: 5 },
            ],
        };
        assert_eq!(
            overlap(&heads, &grouped),
            [Overlap { first: 0, second: 0, loops: vec![(3, 20, 30), (4, 5, 5)] }]
        );
    }
}
