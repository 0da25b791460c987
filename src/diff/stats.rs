//! What the elements of two tensors differ in, piece by piece.
//!
//! All but the sums of the cosine can be merged in any order; those are kept per chunk and added in the order of the
//! chunks, so that the result does not depend on who measured what.

use crate::dtype::Dtype;
use crate::element::{Kind, floats, int, kind, rank, spread};

/// How many elements are taken apart at once; a multiple of all blocks' elements, and what is taken apart stays in the fastest cache.
const BATCH: usize = 512;

/// What was found, apart from sums.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tally {
    /// How many elements differ.
    pub(super) differing: u64,
    /// The first that does, by its number, and both sides' bits.
    pub(super) first: Option<(u64, [u64; 2])>,
    /// The largest difference of finite elements.
    pub(super) max_abs: f64,
    /// The first element that differs by so much, unless that is 0.
    pub(super) max_abs_at: Option<u64>,
    /// The largest difference of finite elements, by the larger of their magnitudes.
    pub(super) max_rel: f64,
    /// The largest difference in steps of the type, NaN excluded.
    pub(super) max_ulp: u64,
    /// NaNs on both sides.
    pub(super) nans: [u64; 2],
    /// Infinities on both sides.
    pub(super) infinities: [u64; 2],
    /// Elements that are NaN or infinite on one side and something else on the other.
    pub(super) unmatched: u64,
}

impl Tally {
    /// Adds what was found elsewhere in the tensor.
    pub(super) fn add(&mut self, other: &Tally) {
        self.differing += other.differing;
        self.first = match (self.first, other.first) {
            (Some(first), Some(second)) => Some(if second.0 < first.0 { second } else { first }),
            (first, second) => first.or(second),
        };
        if let Some(at) = other.max_abs_at {
            self.see_abs(other.max_abs, at);
        }
        self.max_rel = self.max_rel.max(other.max_rel);
        self.max_ulp = self.max_ulp.max(other.max_ulp);
        for side in 0..2 {
            self.nans[side] += other.nans[side];
            self.infinities[side] += other.infinities[side];
        }
        self.unmatched += other.unmatched;
    }

    fn see_abs(&mut self, abs: f64, at: u64) {
        let earlier = self.max_abs_at.is_none_or(|other| at < other);
        if abs > self.max_abs || abs == self.max_abs && abs > 0.0 && earlier {
            (self.max_abs, self.max_abs_at) = (abs, Some(at));
        }
    }

    fn see_difference(&mut self, at: u64, bits: [u64; 2]) {
        self.differing += 1;
        if self.first.is_none_or(|(other, _)| at < other) {
            self.first = Some((at, bits));
        }
    }
}

/// Sums over the elements that are finite on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    /// Of the products.
    pub(super) product: f64,
    /// Of the squares on both sides.
    pub(super) squares: [f64; 2],
}

impl Sums {
    /// Adds the sums of the elements that follow.
    pub(super) fn add(&mut self, other: &Sums) {
        self.product += other.product;
        self.squares[0] += other.squares[0];
        self.squares[1] += other.squares[1];
    }

    /// Returns the cosine, unless a side is all zeros or the squares leave the range of a double.
    pub(super) fn cosine(&self) -> Option<f64> {
        let [a, b] = self.squares;
        let defined = a > 0.0 && b > 0.0 && a.is_finite() && b.is_finite();
        defined.then(|| (self.product / (a.sqrt() * b.sqrt())).clamp(-1.0, 1.0))
    }
}

/// Space for a batch of elements, taken apart.
pub(super) struct Measure {
    bits: [Vec<u64>; 2],
    values: [Vec<f64>; 2],
}

impl Measure {
    pub(super) fn new() -> Measure {
        let values = || vec![0.0; BATCH];
        Measure { bits: [vec![0; BATCH], vec![0; BATCH]], values: [values(), values()] }
    }

    /// Measures elements whose first has the number `start`.
    pub(super) fn unequal(
        &mut self,
        dtypes: [Dtype; 2],
        start: u64,
        sides: [&[u8]; 2],
        tally: &mut Tally,
    ) -> Sums {
        if dtypes[0].is_quantised() {
            compare_blocks(dtypes[0], start, sides, tally);
            return Sums::default();
        }
        let step = |dtype: Dtype| BATCH * dtype.bits() as usize / 8;
        let same = dtypes[0] == dtypes[1];
        let mut sums = Sums::default();
        let batches = sides[0].chunks(step(dtypes[0])).zip(sides[1].chunks(step(dtypes[1])));
        for (number, (a, b)) in batches.enumerate() {
            let start = start + (number * BATCH) as u64;
            if same && a == b {
                sums.add(&self.equal(dtypes[0], a, tally));
                continue;
            }
            let count = a.len() * 8 / dtypes[0].bits() as usize;
            spread(dtypes[0], a, &mut self.bits[0][..count]);
            spread(dtypes[1], b, &mut self.bits[1][..count]);
            if same {
                self.compare_bits(start, count, tally);
            }
            match kind(dtypes[0]) {
                Kind::Float => sums.add(&self.compare_floats(dtypes, start, count, tally)),
                Kind::Int => self.compare_ints(dtypes, start, count, tally),
                Kind::Bits => {}
            }
        }
        sums
    }

    /// Measures elements that are the same on both sides.
    pub(super) fn equal(&mut self, dtype: Dtype, bytes: &[u8], tally: &mut Tally) -> Sums {
        let mut sums = Sums::default();
        if kind(dtype) != Kind::Float {
            return sums;
        }
        for bytes in bytes.chunks(BATCH * dtype.bits() as usize / 8) {
            let count = bytes.len() * 8 / dtype.bits() as usize;
            let (bits, values) = (&mut self.bits[0][..count], &mut self.values[0][..count]);
            spread(dtype, bytes, bits);
            floats(dtype, bits, values);
            let (nans, infinities) = specials(values);
            for side in 0..2 {
                tally.nans[side] += nans;
                tally.infinities[side] += infinities;
            }
            if nans + infinities > 0 {
                values.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0);
            }
            let squares = product(values, values);
            sums.add(&Sums { product: squares, squares: [squares; 2] });
        }
        sums
    }

    fn compare_bits(&self, start: u64, count: usize, tally: &mut Tally) {
        let [a, b] = self.bits.each_ref().map(|bits| &bits[..count]);
        let differing = a.iter().zip(b).filter(|(a, b)| a != b).count() as u64;
        if differing == 0 {
            return;
        }
        if let Some(at) = (0..count).find(|&at| a[at] != b[at]) {
            tally.see_difference(start + at as u64, [a[at], b[at]]);
            tally.differing += differing - 1;
        }
    }

    fn compare_floats(&mut self, dtypes: [Dtype; 2], start: u64, count: usize, tally: &mut Tally) -> Sums {
        let [a_bits, b_bits] = self.bits.each_mut().map(|bits| &mut bits[..count]);
        let [a, b] = self.values.each_mut().map(|values| &mut values[..count]);
        floats(dtypes[0], a_bits, a);
        floats(dtypes[1], b_bits, b);
        if dtypes[0] != dtypes[1] {
            for at in 0..count {
                // Zeros of different sign differ here as they do between equal types; the NaNs of two types do not.
                if a[at].to_bits() != b[at].to_bits() && !(a[at].is_nan() && b[at].is_nan()) {
                    tally.see_difference(start + at as u64, [a_bits[at], b_bits[at]]);
                }
            }
        }
        let found = [specials(a), specials(b)];
        for (side, (nans, infinities)) in found.into_iter().enumerate() {
            tally.nans[side] += nans;
            tally.infinities[side] += infinities;
        }
        if found != [(0, 0); 2] {
            for at in 0..count {
                if a[at].is_finite() && b[at].is_finite() {
                    continue;
                }
                let both_nan = a[at].is_nan() && b[at].is_nan();
                tally.unmatched += u64::from(a[at] != b[at] && !both_nan);
                if a[at].is_nan() || b[at].is_nan() {
                    // No distance.
                    b_bits[at] = a_bits[at];
                }
                (a[at], b[at]) = (0.0, 0.0);
            }
        }
        let (abs, rel) = farthest(a, b);
        if abs > tally.max_abs
            && let Some(at) = (0..count).find(|&at| (a[at] - b[at]).abs() == abs)
        {
            tally.see_abs(abs, start + at as u64);
        }
        tally.max_rel = tally.max_rel.max(rel);
        if dtypes[0] == dtypes[1] {
            let ulps = a_bits.iter().zip(b_bits.iter());
            let ulps = ulps.map(|(&a, &b)| rank(dtypes[0], a).abs_diff(rank(dtypes[0], b)));
            tally.max_ulp = tally.max_ulp.max(ulps.fold(0, u64::max));
        }
        Sums { product: product(a, b), squares: [product(a, a), product(b, b)] }
    }

    fn compare_ints(&self, dtypes: [Dtype; 2], start: u64, count: usize, tally: &mut Tally) {
        for at in 0..count {
            let bits = [self.bits[0][at], self.bits[1][at]];
            let distance = int(dtypes[0], bits[0]).abs_diff(int(dtypes[1], bits[1]));
            if distance != 0 {
                if dtypes[0] != dtypes[1] {
                    tally.see_difference(start + at as u64, bits);
                }
                tally.see_abs(distance as f64, start + at as u64);
            }
        }
    }
}

/// Compares quantised blocks: where two differ all of their elements do, for each depends on the block's scales.
fn compare_blocks(dtype: Dtype, start: u64, [a, b]: [&[u8]; 2], tally: &mut Tally) {
    let (elements, bytes) = dtype.block();
    for (number, (a, b)) in a.chunks(bytes as usize).zip(b.chunks(bytes as usize)).enumerate() {
        if let Some((a, b)) = a.iter().zip(b).find(|(a, b)| a != b) {
            tally.see_difference(start + number as u64 * elements, [u64::from(*a), u64::from(*b)]);
            tally.differing += elements - 1;
        }
    }
}

/// Counts NaNs and infinities.
fn specials(values: &[f64]) -> (u64, u64) {
    let others: u64 = values.iter().map(|value| u64::from(!value.is_finite())).sum();
    if others == 0 {
        return (0, 0);
    }
    let nans: u64 = values.iter().map(|value| u64::from(value.is_nan())).sum();
    (nans, others - nans)
}

/// Eight sums side by side, so that the loop becomes vector instructions; the order of additions is fixed.
fn product(a: &[f64], b: &[f64]) -> f64 {
    let (a_eights, a_rest) = a.as_chunks::<8>();
    let (b_eights, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in a_eights.iter().zip(b_eights) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}

/// Returns the largest absolute and relative differences of finite numbers.
fn farthest(a: &[f64], b: &[f64]) -> (f64, f64) {
    let mut abs = [0.0; 8];
    let mut rel = [0.0; 8];
    let mut see = |lane: usize, a: f64, b: f64| {
        let distance = (a - b).abs();
        let larger = if a.abs() > b.abs() { a.abs() } else { b.abs() };
        // Comparisons, not `max`: they leave out 0 / 0, and one instruction does it.
        let relative = distance / larger;
        abs[lane] = if distance > abs[lane] { distance } else { abs[lane] };
        rel[lane] = if relative > rel[lane] { relative } else { rel[lane] };
    };
    let (a_eights, a_rest) = a.as_chunks::<8>();
    let (b_eights, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_eights.iter().zip(b_eights) {
        for lane in 0..8 {
            see(lane, a[lane], b[lane]);
        }
    }
    for (lane, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
        see(lane, a, b);
    }
    let abs = abs.into_iter().fold(0.0, f64::max);
    if abs.is_infinite() {
        // Doubles near the end of their range: halves do not overflow.
        let halves = a.iter().zip(b).map(|(a, b)| (a / 2.0 - b / 2.0).abs() / (a.abs().max(b.abs()) / 2.0));
        return (abs, halves.fold(0.0, f64::max));
    }
    (abs, rel.into_iter().fold(0.0, f64::max))
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
