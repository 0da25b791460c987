//! Where one head of a parameter lies in a stored tensor.

use crate::bind::{Block, Content};

/// Indices along one stored axis: `start`, `start + step`, … in runs of `length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first index of each run.
    pub starts: Vec<u64>,
    /// How many indices a run has.
    pub length: u64,
    /// The distance between neighbours of a run.
    pub step: u64,
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MOST: usize = 4;
        let run = |start: u64| match self.step {
            _ if self.length == 1 => start.to_string(),
            1 => format!("{start}..{}", start + self.length),
            step => format!("{start}..{} in steps of {step}", start + (self.length - 1) * step + 1),
        };
        let mut runs: Vec<String> = self.starts.iter().take(MOST).map(|start| run(*start)).collect();
        if self.starts.len() > MOST {
            runs.push(format!("… ({} runs)", self.starts.len()));
        }
        f.write_str(&runs.join(", "))
    }
}

/// Where elements lie in a stored tensor: for each stored axis the indices, all combined with all.
pub type Place = Vec<Range>;

/// Returns where the elements of a block lie whose coordinate of `axis` (its position among the parameter's axes) has
/// that value, in a tensor of that shape; `None` where the block has none or holds another thing than `param`.
///
/// Blocks count in row-major elements of the shape; a strided source has the same indices.
pub fn place(
    block: &Block,
    shape: &[u64],
    strides: &[u64],
    param: usize,
    fixed: Option<(usize, u64)>,
) -> Option<Place> {
    if block.content != Content::Param(param) {
        return None;
    }
    let mut offset = block.offset;
    let mut loops: Vec<(u64, u64)> = block.repeats.clone();
    for (at, coordinate) in block.coordinates.iter().enumerate() {
        match fixed.filter(|(axis, _)| *axis == at) {
            None => loops.extend(coordinate.digits.iter().map(|digit| (digit.count, digit.stride))),
            Some((_, value)) => {
                let mut rest = value.checked_sub(coordinate.base)?;
                let mut digits = coordinate.digits.clone();
                digits.sort_by_key(|digit| std::cmp::Reverse(digit.weight));
                for digit in digits.iter().filter(|digit| digit.count > 1) {
                    let turn = (rest / digit.weight.max(1)).min(digit.count - 1);
                    rest -= turn * digit.weight;
                    offset += turn * digit.stride;
                }
                if rest > 0 {
                    return None;
                }
            }
        }
    }
    let mut ranges = Vec::with_capacity(shape.len());
    for (dim, (&size, &stride)) in shape.iter().zip(strides).enumerate() {
        let first = if stride == 0 { 0 } else { offset / stride % size.max(1) };
        // A loop belongs to the axis along whose stride it steps and inside of which it stays.
        let inside = |step: u64, count: u64| {
            let own = stride > 0 && step.is_multiple_of(stride) && (count - 1) * step < size * stride;
            let finer = (0..shape.len()).any(|other| {
                other != dim
                    && strides[other] > stride
                    && step.is_multiple_of(strides[other])
                    && shape[other] > 1
            });
            own && !finer
        };
        let mut steps: Vec<(u64, u64)> = loops
            .iter()
            .filter(|(count, step)| *count > 1 && inside(*step, *count))
            .map(|(count, step)| (*count, step / stride.max(1)))
            .collect();
        steps.sort_by_key(|(_, step)| *step);
        ranges.push(range(first, &steps));
    }
    Some(ranges)
}

/// Makes a range of loops, ascending by step: those that continue each other are one run.
fn range(first: u64, steps: &[(u64, u64)]) -> Range {
    let (mut length, step) = steps.first().map_or((1, 1), |(count, step)| (*count, *step));
    let mut rest = steps.get(1..).unwrap_or_default();
    while let Some(((count, next), behind)) = rest.split_first() {
        if *next != length * step {
            break;
        }
        length *= count;
        rest = behind;
    }
    let mut starts = vec![first];
    for (count, step) in rest {
        starts = starts.iter().flat_map(|start| (0..*count).map(move |turn| start + turn * step)).collect();
    }
    starts.sort_unstable();
    Range { starts, length, step }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::{Coordinate, Digit};

    fn digit(weight: u64, count: u64, stride: u64) -> Digit {
        Digit { weight, count, stride }
    }

    /// `(h (q: d + k: d)) e` with 3 heads of 4 and a width of 5: k of head 2 is rows 20..24.
    #[test]
    fn a_head_of_an_interleaved_tensor() {
        let coordinate = |digits: Vec<Digit>| Coordinate { base: 0, digits };
        let block = Block {
            content: Content::Param(1),
            offset: 4 * 5,
            coordinates: vec![
                coordinate(vec![digit(1, 3, 8 * 5)]),
                coordinate(vec![digit(1, 4, 5)]),
                coordinate(vec![digit(1, 5, 1)]),
            ],
            repeats: Vec::new(),
            is_copy: false,
        };
        let found = place(&block, &[24, 5], &[5, 1], 1, Some((0, 2))).expect("is there");
        assert_eq!((found[0].to_string(), found[1].to_string()), ("20..24".to_owned(), "0..5".to_owned()));
        let all = place(&block, &[24, 5], &[5, 1], 1, None).expect("is there");
        assert_eq!(all[0].to_string(), "4..8, 12..16, 20..24");
        assert_eq!(place(&block, &[24, 5], &[5, 1], 0, None), None);
        assert_eq!(place(&block, &[24, 5], &[5, 1], 1, Some((0, 3))), None);
    }

    /// Interleaved rotary pairs: of `(f c)` the first elements of the pairs are every second row.
    #[test]
    fn steps_are_told() {
        assert_eq!(range(6, &[(4, 2)]).to_string(), "6..13 in steps of 2");
        assert_eq!(range(0, &[(4, 1), (3, 4)]).to_string(), "0..12");
    }
}
