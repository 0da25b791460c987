//! Parts of strided copies: clipping to a range of the target, merging of loops.

use std::ops::Range;

use crate::plan::Loop;

/// A part of a strided copy, all numbers in units as in [`crate::plan::StridedCopy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    /// Where the source is read first.
    pub(super) source_offset: u64,
    /// Where the target is written first.
    pub(super) target_offset: u64,
    /// The loops, outermost first.
    pub(super) loops: &'a [Loop],
}

impl Part<'_> {
    /// Returns the number of target elements.
    pub(super) fn elements(&self) -> u64 {
        elements(self.loops)
    }
}

/// Returns the number of elements that loops visit.
pub(super) fn elements(loops: &[Loop]) -> u64 {
    loops.iter().map(|l| l.count).product()
}

/// Returns the distance from the first to behind the last target element.
pub(super) fn target_extent(loops: &[Loop]) -> u64 {
    1 + loops.iter().map(|l| (l.count - 1) * l.target_step).sum::<u64>()
}

/// Returns whether the loops are a single run on both sides.
pub(super) fn is_run(loops: &[Loop]) -> bool {
    matches!(merged(loops)[..], [] | [Loop { source_step: 1, target_step: 1, .. }])
}

/// Returns the loops with neighbours that are one loop on both sides merged, and without loops of one turn.
pub(super) fn merged(loops: &[Loop]) -> Vec<Loop> {
    let mut merged: Vec<Loop> = Vec::with_capacity(loops.len());
    for &inner in loops.iter().filter(|l| l.count != 1) {
        match merged.last_mut() {
            Some(outer)
                if outer.source_step == inner.count * inner.source_step
                    && outer.target_step == inner.count * inner.target_step =>
            {
                *outer = Loop { count: outer.count * inner.count, ..inner };
            }
            _ => merged.push(inner),
        }
    }
    merged
}

/// Returns the loops with target steps that leave no gaps: the elements in loop order, one after the other.
pub(super) fn compacted(loops: &[Loop]) -> Vec<Loop> {
    let mut compacted = loops.to_vec();
    let mut step = 1;
    for l in compacted.iter_mut().rev() {
        l.target_step = step;
        step *= l.count;
    }
    compacted
}

/// Calls `visit` with the source and the target offset of every turn of the loops, the last loop fastest.
pub(super) fn walk<E>(
    loops: &[Loop],
    source: u64,
    target: u64,
    visit: &mut impl FnMut(u64, u64) -> Result<(), E>,
) -> Result<(), E> {
    let [outer, inner @ ..] = loops else { return visit(source, target) };
    for turn in 0..outer.count {
        walk(inner, source + turn * outer.source_step, target + turn * outer.target_step, visit)?;
    }
    Ok(())
}

/// Calls `visit` with parts that together are the part of a copy which lies in a range of the target.
///
/// The target steps of the loops must nest (each at least the extent of the loops inside it), as a plan's do: at each
/// level a range then holds the end of one turn, whole turns and the beginning of another, so there are at most two
/// parts for each loop and one more.
pub(super) fn clip<E>(
    part: Part<'_>,
    range: &Range<u64>,
    visit: &mut impl FnMut(Part<'_>) -> Result<(), E>,
) -> Result<(), E> {
    clip_level(&mut part.loops.to_vec(), part.source_offset, part.target_offset, range, visit)
}

/// `loops` is scratch: its first count changes and is restored.
fn clip_level<E>(
    loops: &mut [Loop],
    source: u64,
    target: u64,
    range: &Range<u64>,
    visit: &mut impl FnMut(Part<'_>) -> Result<(), E>,
) -> Result<(), E> {
    if target >= range.end || target + target_extent(loops) <= range.start {
        return Ok(());
    }
    let Some(&Loop { count, source_step, target_step }) = loops.first() else {
        return visit(Part { source_offset: source, target_offset: target, loops });
    };
    let inner = target_extent(&loops[1..]);
    // The turns that touch the range, and those of them that lie in it whole.
    let first = (range.start + 1).saturating_sub(target + inner).div_ceil(target_step);
    let last = (range.end - target).div_ceil(target_step).min(count);
    let whole_first = range.start.saturating_sub(target).div_ceil(target_step);
    let whole_last = ((range.end + target_step).saturating_sub(target + inner) / target_step).min(count);
    let at = |turn: u64| (source + turn * source_step, target + turn * target_step);
    if whole_first >= whole_last {
        for turn in first..last {
            let (source, target) = at(turn);
            clip_level(&mut loops[1..], source, target, range, visit)?;
        }
        return Ok(());
    }
    for turn in (first..whole_first).chain(whole_last..last) {
        let (source, target) = at(turn);
        clip_level(&mut loops[1..], source, target, range, visit)?;
    }
    let (source_offset, target_offset) = at(whole_first);
    loops[0].count = whole_last - whole_first;
    let whole = if loops[0].count == 1 { &loops[1..] } else { &loops[..] };
    let result = visit(Part { source_offset, target_offset, loops: whole });
    loops[0].count = count;
    result
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn visited(part: Part<'_>) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let Ok(()) = walk(part.loops, part.source_offset, part.target_offset, &mut |s, t| {
            all.push((t, s));
            Ok::<(), Infallible>(())
        });
        all
    }

    proptest! {
        #[test]
        fn clipping_keeps_exactly_the_range(
            counts in prop::collection::vec((2_u64..6, 0_u64..9, 0_u64..4), 0..5),
            offset in 0_u64..20, start in 0_u64..400, length in 1_u64..400,
        ) {
            let mut loops = Vec::new();
            let mut extent = 1;
            for &(count, source_step, gap) in &counts {
                let target_step = extent + gap;
                loops.insert(0, Loop { count, source_step, target_step });
                extent += (count - 1) * target_step;
            }
            let part = Part { source_offset: 5, target_offset: offset, loops: &loops };
            let range = start..start + length;
            let expected: Vec<_> = visited(part).into_iter().filter(|(t, _)| range.contains(t)).collect();
            let mut found = Vec::new();
            let mut parts = 0;
            let Ok(()) = clip(part, &range, &mut |part| {
                parts += 1;
                found.extend(visited(part));
                Ok::<(), Infallible>(())
            });
            found.sort_unstable();
            prop_assert_eq!(found, expected);
            prop_assert!(parts <= 2 * loops.len() + 1);
        }

        #[test]
        fn merging_changes_nothing(counts in prop::collection::vec((1_u64..5, 0_u64..3), 0..5)) {
            let mut loops: Vec<Loop> = Vec::new();
            let (mut source_step, mut target_step) = (1, 1);
            for &(count, gap) in &counts {
                loops.insert(0, Loop { count, source_step, target_step });
                source_step *= count + gap % 2;
                target_step *= count + gap / 2;
            }
            let merged = merged(&loops);
            let part = |loops| Part { source_offset: 1, target_offset: 2, loops };
            prop_assert_eq!(visited(part(&merged)), visited(part(&loops)));
            prop_assert!(merged.len() <= loops.len());
        }
    }
}
