//! Where two blocks hold the same elements: the common refinement of two sets of loops along one coordinate.
//!
//! A coordinate of a block is `base + Σ index·weight`. Two layouts may factor an axis differently (heads by 2 shards on
//! one side, by 4 on the other; groups and heads; an axis cut in two): the meeting is found digit by digit, the heavier
//! digit taken apart to match the lighter, and value by value where the weights have no common multiple.

use crate::bind::{Coordinate, Digit};

/// A loop on which both blocks agree: (count, stride in the first, stride in the second).
pub(super) type SharedLoop = (u64, u64, u64);

/// A set of elements that both blocks hold: offsets in either, and common loops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Meeting {
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) loops: Vec<SharedLoop>,
}

impl Meeting {
    /// Returns the number of elements.
    pub(super) fn elements(&self) -> u64 {
        self.loops.iter().map(|(count, ..)| count).product()
    }
}

/// Returns the values that two coordinates share.
pub(super) fn meet(first: &Coordinate, second: &Coordinate) -> Vec<Meeting> {
    let mut found = Vec::new();
    let sorted = |coordinate: &Coordinate| {
        let mut digits: Vec<Digit> =
            coordinate.digits.iter().copied().filter(|digit| digit.count != 1).collect();
        digits.sort_by_key(|digit| digit.weight);
        digits
    };
    let (mut a, mut b) = (sorted(first), sorted(second));
    if a.iter().chain(&b).any(|digit| digit.count == 0) {
        return found;
    }
    walk(first.base, &mut a, second.base, &mut b, &Meeting::default(), &mut found);
    found
}

/// The heaviest digits stand last.
fn walk(
    first: u64,
    a: &mut Vec<Digit>,
    second: u64,
    b: &mut Vec<Digit>,
    so_far: &Meeting,
    found: &mut Vec<Meeting>,
) {
    let extent = |digits: &[Digit]| digits.iter().map(|digit| (digit.count - 1) * digit.weight).sum::<u64>();
    // Blocks that do not overlap at all have nothing to find.
    if first > second + extent(b) || second > first + extent(a) {
        return;
    }
    let (Some(&x), Some(&y)) = (a.last(), b.last()) else {
        return match (a.pop(), b.pop()) {
            (None, None) => found.push(so_far.clone()),
            (Some(digit), None) => {
                fix_first(digit, first, a, second, b, so_far, found);
                a.push(digit);
            }
            (None, digit) => {
                if let Some(digit) = digit {
                    fix_second(digit, first, a, second, b, so_far, found);
                    b.push(digit);
                }
            }
            (Some(_), Some(_)) => unreachable!("one of the two is empty"),
        };
    };
    if x.weight == y.weight {
        a.pop();
        b.pop();
        same_weight(x, first, a, y, second, b, so_far, found);
        a.push(x);
        b.push(y);
    } else if x.weight > y.weight {
        match split(y, x.weight).filter(|_| aligned(first, second, x.weight, &a[..a.len() - 1], b)) {
            Some(parts) => {
                b.pop();
                b.extend(parts);
                walk(first, a, second, b, so_far, found);
                b.truncate(b.len() - 2);
                b.push(y);
            }
            None => {
                a.pop();
                fix_first(x, first, a, second, b, so_far, found);
                a.push(x);
            }
        }
    } else {
        match split(x, y.weight).filter(|_| aligned(second, first, y.weight, &b[..b.len() - 1], a)) {
            Some(parts) => {
                a.pop();
                a.extend(parts);
                walk(first, a, second, b, so_far, found);
                a.truncate(a.len() - 2);
                a.push(x);
            }
            None => {
                b.pop();
                fix_second(y, first, a, second, b, so_far, found);
                b.push(y);
            }
        }
    }
}

/// Splits a digit at a heavier weight, lighter part first.
fn split(digit: Digit, weight: u64) -> Option<[Digit; 2]> {
    let inner = weight / digit.weight;
    let fits =
        weight.is_multiple_of(digit.weight) && digit.count > inner && digit.count.is_multiple_of(inner);
    fits.then(|| {
        [
            Digit { count: inner, ..digit },
            Digit { weight, count: digit.count / inner, stride: digit.stride * inner },
        ]
    })
}

/// Returns whether steps of `weight` cut both sets at the same places.
fn aligned(coarse: u64, fine: u64, weight: u64, rest: &[Digit], digits: &[Digit]) -> bool {
    let extent: u64 = rest.iter().map(|digit| (digit.count - 1) * digit.weight).sum();
    let below: u64 = digits[..digits.len() - 1].iter().map(|digit| (digit.count - 1) * digit.weight).sum();
    let lightest = digits.last().map_or(1, |digit| digit.weight);
    fine.is_multiple_of(weight) && coarse % weight + extent < weight && below < lightest
}

#[allow(clippy::too_many_arguments)]
fn same_weight(
    x: Digit,
    first: u64,
    a: &mut Vec<Digit>,
    y: Digit,
    second: u64,
    b: &mut Vec<Digit>,
    so_far: &Meeting,
    found: &mut Vec<Meeting>,
) {
    let weight = x.weight;
    let extent = |digits: &[Digit]| digits.iter().map(|digit| (digit.count - 1) * digit.weight).sum::<u64>();
    let inside = first % weight + extent(a) < weight && second % weight + extent(b) < weight;
    if !inside {
        fix_first(x, first, a, second, &mut [b.as_slice(), &[y]].concat(), so_far, found);
        return;
    }
    // The indices at which both stand on the same multiple of the weight.
    let (low, high) = (first / weight, second / weight);
    let start = low.max(high);
    let end = (low + x.count).min(high + y.count);
    if start >= end {
        return;
    }
    let mut next = so_far.clone();
    next.first += (start - low) * x.stride;
    next.second += (start - high) * y.stride;
    if end - start > 1 {
        next.loops.push((end - start, x.stride, y.stride));
    }
    walk(first % weight, a, second % weight, b, &next, found);
}

fn fix_first(
    digit: Digit,
    first: u64,
    a: &mut Vec<Digit>,
    second: u64,
    b: &mut Vec<Digit>,
    so_far: &Meeting,
    found: &mut Vec<Meeting>,
) {
    for index in 0..digit.count {
        let next = Meeting { first: so_far.first + index * digit.stride, ..so_far.clone() };
        walk(first + index * digit.weight, a, second, b, &next, found);
    }
}

fn fix_second(
    digit: Digit,
    first: u64,
    a: &mut Vec<Digit>,
    second: u64,
    b: &mut Vec<Digit>,
    so_far: &Meeting,
    found: &mut Vec<Meeting>,
) {
    for index in 0..digit.count {
        let next = Meeting { second: so_far.second + index * digit.stride, ..so_far.clone() };
        walk(first, a, second + index * digit.weight, b, &next, found);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Lists value → offset.
    fn values(coordinate: &Coordinate) -> BTreeMap<u64, u64> {
        let mut all = vec![(coordinate.base, 0)];
        for digit in &coordinate.digits {
            all = all
                .iter()
                .flat_map(|(value, offset)| {
                    (0..digit.count).map(move |i| (value + i * digit.weight, offset + i * digit.stride))
                })
                .collect();
        }
        all.into_iter().collect()
    }

    fn pairs(meetings: &[Meeting]) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for meeting in meetings {
            let mut offsets = vec![(meeting.first, meeting.second)];
            for (count, a, b) in &meeting.loops {
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
            let mut digits = Vec::new();
            let (mut weight, mut stride) = (1, 1);
            for count in counts {
                digits.push(Digit { weight, count, stride: stride * 7 });
                weight *= count;
                stride *= count;
            }
            if drop && digits.len() > 1 {
                digits.remove(0);
            }
            Coordinate { base, digits }
        })
    }

    proptest! {
        #[test]
        fn a_meeting_is_the_intersection(first in coordinate(), second in coordinate()) {
            let (a, b) = (values(&first), values(&second));
            let mut expected: Vec<(u64, u64)> =
                a.iter().filter_map(|(value, offset)| Some((*offset, *b.get(value)?))).collect();
            expected.sort_unstable();
            prop_assert_eq!(pairs(&meet(&first, &second)), expected);
        }
    }

    #[test]
    fn two_shards_meet_four() {
        let two = Coordinate { base: 6, digits: vec![Digit { weight: 1, count: 6, stride: 1 }] };
        let four = Coordinate { base: 9, digits: vec![Digit { weight: 1, count: 3, stride: 1 }] };
        assert_eq!(meet(&two, &four), [Meeting { first: 3, second: 0, loops: vec![(3, 1, 1)] }]);
    }

    #[test]
    fn groups_meet_heads_in_one_loop_each() {
        let heads = Coordinate { base: 0, digits: vec![Digit { weight: 1, count: 12, stride: 5 }] };
        let grouped = Coordinate {
            base: 0,
            digits: vec![Digit { weight: 4, count: 3, stride: 30 }, Digit { weight: 1, count: 4, stride: 5 }],
        };
        assert_eq!(
            meet(&heads, &grouped),
            [Meeting { first: 0, second: 0, loops: vec![(3, 20, 30), (4, 5, 5)] }]
        );
    }
}
