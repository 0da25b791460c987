//! Large tensors in shares, so that several threads compare one of them and find what one thread finds.

use std::ops::Range;

use super::Difference;
use crate::catalog::TensorMeta;

/// The elements of a share: so many that what is made for each share costs little beside reading them.
pub(super) const SHARE: u64 = 1 << 24;

/// A part of one tensor's comparison.
pub(super) struct Share {
    /// The tensor, by its place in the list.
    pub(super) tensor: usize,
    /// Which of its elements, counted as they are compared.
    pub(super) range: Range<u64>,
    /// The bytes that they take in it.
    pub(super) bytes: u64,
}

/// Returns the shares of all tensors, at least one of each.
pub(super) fn shares<'t>(tensors: impl Iterator<Item = &'t TensorMeta>) -> Vec<Share> {
    let of = |(tensor, meta): (usize, &TensorMeta)| {
        let (elements, bytes) = (meta.elements(), meta.bytes());
        let count = elements.div_ceil(SHARE).max(1);
        let up_to = move |number: u64| if number < count { bytes / count * number } else { bytes };
        (0..count).map(move |number| {
            // Nothing that is compared is left out, however it counts.
            let end = if number + 1 < count { (number + 1) * SHARE } else { u64::MAX };
            Share { tensor, range: number * SHARE..end, bytes: up_to(number + 1) - up_to(number) }
        })
    };
    tensors.enumerate().flat_map(of).collect()
}

/// Elements of a tensor that are compared together, and a share of them.
pub(super) struct Passed {
    /// The elements of the tensor that were passed before.
    pub(super) before: u64,
    /// Which of these elements are in the share, counted from the first of them.
    pub(super) range: Range<u64>,
}

/// What a share of a tensor gave, or the whole tensor.
pub(super) struct TensorOutcome {
    share: Range<u64>,
    /// The elements that were passed so far, whether or not they are in the share.
    pub(super) passed: u64,
    /// The elements that were compared.
    pub(super) elements: u64,
    /// What differs; each with the number of elements before those that were compared together.
    pub(super) differences: Vec<(u64, Difference)>,
}

impl TensorOutcome {
    pub(super) fn new(share: Range<u64>) -> TensorOutcome {
        TensorOutcome { share, passed: 0, elements: 0, differences: Vec::new() }
    }

    /// Passes so many elements; `None` where none of them is in the share.
    pub(super) fn pass(&mut self, elements: u64) -> Option<Passed> {
        let before = self.passed;
        self.passed += elements;
        let in_share = elements > 0 && before < self.share.end && self.passed > self.share.start;
        let range = self.share.start.saturating_sub(before)..self.share.end - before.min(self.share.end);
        in_share.then_some(Passed { before, range })
    }

    /// Takes note of what every share finds: only the first one does.
    pub(super) fn once(&mut self, difference: Difference) {
        if self.share.start == 0 {
            self.differences.push((self.passed, difference));
        }
    }

    /// Adds the share that follows: elements that are compared together differ once.
    fn add(&mut self, next: TensorOutcome) {
        self.elements += next.elements;
        for (before, found) in next.differences {
            let alike = |(at, known): &&mut (u64, Difference)| *at == before && known.what == found.what;
            match self.differences.iter_mut().find(alike) {
                Some((_, known)) => known.count += found.count,
                None => self.differences.push((before, found)),
            }
        }
    }
}

/// Joins the shares of each tensor.
pub(super) fn joined(shares: &[Share], parts: Vec<TensorOutcome>) -> Vec<TensorOutcome> {
    let mut whole: Vec<TensorOutcome> = Vec::new();
    for (share, part) in shares.iter().zip(parts) {
        match whole.last_mut().filter(|_| share.range.start > 0) {
            Some(tensor) => tensor.add(part),
            None => whole.push(part),
        }
    }
    // As one thread meets them: by what is compared, not by share.
    whole.iter_mut().for_each(|tensor| tensor.differences.sort_by_key(|(before, _)| *before));
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn tensor(shape: &[u64]) -> TensorMeta {
        let strides = crate::catalog::row_major(shape);
        TensorMeta {
            key: "w".into(),
            dtype: Dtype::BF16,
            shape: shape.to_vec(),
            strides,
            file: 0,
            offset: 0,
            extents: Vec::new(),
        }
    }

    #[test]
    fn shares_are_all_of_each_tensor() {
        let metas = [tensor(&[3, 5]), tensor(&[0, 7]), tensor(&[2 * SHARE + 1]), tensor(&[SHARE])];
        let found = shares(metas.iter());
        assert_eq!(found.iter().map(|share| share.tensor).collect::<Vec<_>>(), [0, 1, 2, 2, 2, 3]);
        for (at, meta) in metas.iter().enumerate() {
            let of: Vec<&Share> = found.iter().filter(|share| share.tensor == at).collect();
            assert_eq!(of.iter().map(|share| share.bytes).sum::<u64>(), meta.bytes());
            assert_eq!((of[0].range.start, of[of.len() - 1].range.end), (0, u64::MAX));
            assert!(of.windows(2).all(|pair| pair[0].range.end == pair[1].range.start));
        }
    }

    #[test]
    fn only_what_a_share_meets_is_compared() {
        let mut outcome = TensorOutcome::new(10..30);
        let mut pass = |elements| outcome.pass(elements).map(|passed| (passed.before, passed.range));
        // Elements 0 to 9, none, 10 to 14, none, 15 to 39, 40 to 41.
        let found = [10, 0, 5, 0, 25, 2].map(&mut pass);
        assert_eq!(found, [None, None, Some((10, 0..20)), None, Some((15, 0..15)), None]);
        assert_eq!(outcome.passed, 42);
    }

    #[test]
    fn what_several_shares_find_of_the_same_elements_is_one_difference() {
        let difference = |what: &str, count| Difference { count, ..Difference::new(what) };
        let part = |start: u64, found: Vec<(u64, Difference)>| {
            let mut part = TensorOutcome::new(start..start + SHARE);
            (part.elements, part.differences) = (5, found);
            part.once(difference("missing", 0));
            part
        };
        let (x, y) = ("elements differ", "elements that must be zero are not");
        let parts = vec![
            part(0, vec![(7, difference(x, 2))]),
            part(SHARE, vec![(7, difference(x, 3)), (9, difference(y, 1))]),
            part(0, vec![(7, difference(x, 1))]),
        ];
        let list = [tensor(&[SHARE + 1]), tensor(&[1])];
        let whole = joined(&shares(list.iter()), parts);
        let counts = |outcome: &TensorOutcome| -> Vec<(u64, String, u64)> {
            let list = outcome.differences.iter();
            list.map(|(before, found)| (*before, found.what.clone(), found.count)).collect()
        };
        let missing = || (0, "missing".to_owned(), 0);
        assert_eq!(counts(&whole[0]), [missing(), (7, x.to_owned(), 5), (9, y.to_owned(), 1)]);
        assert_eq!(counts(&whole[1]), [missing(), (7, x.to_owned(), 1)]);
        assert_eq!((whole[0].elements, whole[1].elements), (10, 5));
    }
}
