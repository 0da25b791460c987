//! Strided copies within memory, blocked for the caches.

use std::convert::Infallible;

use bytemuck::Pod;

use super::part::{Part, merged, walk};
use crate::plan::Loop;

/// Copies a part from one buffer to another; offsets and steps count units from the start of each buffer.
///
/// # Panics
/// Panics where the part reaches out of a buffer, or where a buffer is not aligned to the unit.
pub(super) fn permute(unit: u64, source: &[u8], target: &mut [u8], part: Part<'_>) {
    let mut strided = Strided {
        source_offset: part.source_offset,
        target_offset: part.target_offset,
        loops: merged(part.loops),
    };
    match strided.widen(unit) {
        1 => strided.copy::<u8, 32>(source, target),
        2 => strided.copy::<u16, 32>(source, target),
        4 => strided.copy::<u32, 16>(source, target),
        8 => strided.copy::<u64, 8>(source, target),
        other => unreachable!("units have 1, 2, 4 or 8 bytes, not {other}"),
    }
}

/// Sets the target elements of a part to zero; its source side is ignored.
pub(super) fn fill_zero(unit: u64, target: &mut [u8], part: Part<'_>) {
    let loops: Vec<Loop> = part.loops.iter().map(|l| Loop { source_step: 0, ..*l }).collect();
    let (run, outer) = merged_targets(&loops);
    each(&outer, 0, part.target_offset, &mut |_, at| {
        target[(at * unit) as usize..((at + run) * unit) as usize].fill(0);
    });
}

/// Writes the same bits to every unit of a part.
pub(super) fn fill(bits: u64, unit: u64, target: &mut [u8], part: Part<'_>) {
    let loops: Vec<Loop> = part.loops.iter().map(|l| Loop { source_step: 0, ..*l }).collect();
    let (run, outer) = merged_targets(&loops);
    let bits = bits.to_le_bytes();
    each(&outer, 0, part.target_offset, &mut |_, at| {
        let run = &mut target[(at * unit) as usize..((at + run) * unit) as usize];
        run.chunks_exact_mut(unit as usize).for_each(|unit| unit.copy_from_slice(&bits[..unit.len()]));
    });
}

/// Returns the length of the runs that a part leaves in the target, and the loops over the runs.
pub(super) fn merged_targets(loops: &[Loop]) -> (u64, Vec<Loop>) {
    let mut run = 1;
    let mut outer = loops.to_vec();
    while let Some(&inner) = outer.last()
        && inner.target_step == run
    {
        run *= inner.count;
        outer.pop();
    }
    (run, outer)
}

/// [`walk`] for visits that do not fail.
fn each(loops: &[Loop], source: u64, target: u64, visit: &mut impl FnMut(u64, u64)) {
    let Ok(()) = walk(loops, source, target, &mut |source, target| {
        visit(source, target);
        Ok::<(), Infallible>(())
    });
}

struct Strided {
    source_offset: u64,
    target_offset: u64,
    loops: Vec<Loop>,
}

impl Strided {
    /// Takes neighbours that stay neighbours as one wider element, so that pairs of halves move as one word; returns
    /// the new unit.
    fn widen(&mut self, mut unit: u64) -> u64 {
        let Some(run) = self.loops.iter().position(|l| l.source_step == 1 && l.target_step == 1) else {
            return unit;
        };
        while unit < 8
            && self.source_offset.is_multiple_of(2)
            && self.target_offset.is_multiple_of(2)
            && self.loops.iter().enumerate().all(|(at, l)| {
                if at == run {
                    l.count.is_multiple_of(2)
                } else {
                    l.source_step.is_multiple_of(2) && l.target_step.is_multiple_of(2)
                }
            })
        {
            unit *= 2;
            self.source_offset /= 2;
            self.target_offset /= 2;
            for (at, l) in self.loops.iter_mut().enumerate() {
                if at == run {
                    l.count /= 2;
                } else {
                    l.source_step /= 2;
                    l.target_step /= 2;
                }
            }
        }
        if self.loops[run].count == 1 {
            self.loops.remove(run);
        }
        unit
    }

    /// Copies with the widened element type; `B` is the side of a block that just fills cache lines.
    fn copy<T: Pod, const B: usize>(&self, source: &[u8], target: &mut [u8]) {
        let source: &[T] = whole_units(source);
        let whole = target.len() / size_of::<T>() * size_of::<T>();
        let target: &mut [T] = bytemuck::cast_slice_mut(&mut target[..whole]);
        let mut outer = self.loops.clone();
        if let Some(run) = outer.iter().position(|l| l.source_step == 1 && l.target_step == 1) {
            let run = outer.remove(run).count as usize;
            each(&outer, self.source_offset, self.target_offset, &mut |s, t| {
                target[t as usize..][..run].copy_from_slice(&source[s as usize..][..run]);
            });
            return;
        }
        let (rows, columns) = Axis::choose(&mut outer);
        if rows.count.min(columns.count) < 8 {
            self.lines(source, target);
            return;
        }
        let contiguous = rows.target_contiguous() && columns.source_contiguous();
        let mut tables = (Table::default(), Table::default());
        each(&outer, self.source_offset, self.target_offset, &mut |s, t| {
            let (source, target) = (&source[s as usize..], &mut target[t as usize..]);
            for column in (0..columns.count).step_by(PLANE) {
                columns.fill(column, &mut tables.1);
                for row in (0..rows.count).step_by(PLANE) {
                    rows.fill(row, &mut tables.0);
                    if contiguous {
                        plane::<T, B>(source, target, &tables.0, &tables.1);
                    } else {
                        gapped_plane(source, target, &tables.0, &tables.1, B);
                    }
                }
            }
        });
    }

    /// Copies along the longest loop of those that are nearest to contiguous: for planes too thin for blocks.
    fn lines<T: Pod>(&self, source: &[T], target: &mut [T]) {
        let mut outer = self.loops.clone();
        let near = |l: &Loop| l.source_step.min(l.target_step) <= 8;
        let longest = (0..outer.len()).max_by_key(|&at| (near(&outer[at]), outer[at].count));
        let Some(longest) = longest else {
            target[self.target_offset as usize] = source[self.source_offset as usize];
            return;
        };
        let line = outer.remove(longest);
        let (source_step, target_step) = (line.source_step as usize, line.target_step as usize);
        let (source_extent, target_extent) =
            ((line.count as usize - 1) * source_step + 1, (line.count as usize - 1) * target_step + 1);
        each(&outer, self.source_offset, self.target_offset, &mut |s, t| {
            let source = &source[s as usize..][..source_extent];
            let target = &mut target[t as usize..][..target_extent];
            match (source_step, target_step) {
                (0, _) => target.iter_mut().step_by(target_step).for_each(|to| *to = source[0]),
                (2, 1) => target.iter_mut().zip(source.chunks(2)).for_each(|(to, pair)| *to = pair[0]),
                (_, 1) => target
                    .iter_mut()
                    .zip(source.iter().step_by(source_step))
                    .for_each(|(to, from)| *to = *from),
                (1, _) => {
                    target.iter_mut().step_by(target_step).zip(source).for_each(|(to, from)| *to = *from)
                }
                _ => {
                    let from = source.iter().step_by(source_step);
                    target.iter_mut().step_by(target_step).zip(from).for_each(|(to, from)| *to = *from);
                }
            }
        });
    }
}

fn whole_units<T: Pod>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(&bytes[..bytes.len() / size_of::<T>() * size_of::<T>()])
}

/// The side of a plane in elements: its rows lie on so few pages that the TLB holds them.
const PLANE: usize = 256;

/// One or more loops walked as one axis of a plane, innermost first.
struct Axis {
    count: u64,
    loops: Vec<Loop>,
}

/// The offsets of neighbouring positions of an axis.
#[derive(Default)]
struct Table {
    source: Vec<usize>,
    target: Vec<usize>,
}

impl Axis {
    /// Takes from `loops` those along which the target is contiguous (rows of a block are read for each) and those
    /// along which the source is contiguous (columns).
    fn choose(loops: &mut Vec<Loop>) -> (Axis, Axis) {
        let mut rows = Axis { count: 1, loops: Vec::new() };
        let mut columns = Axis { count: 1, loops: Vec::new() };
        rows.take(loops, |l| l.target_step);
        columns.take(loops, |l| l.source_step);
        // A short loop is walked together with its neighbour: `(f 2) e` to `e (2 f)` has source runs of 2 f.
        while columns.count < 64 && columns.take_next(loops, |l| l.source_step)
            || rows.count < 64 && rows.take_next(loops, |l| l.target_step)
        {}
        (rows, columns)
    }

    /// Takes the loop of the smallest step that moves.
    fn take(&mut self, loops: &mut Vec<Loop>, step: impl Fn(&Loop) -> u64) {
        let nearest = (0..loops.len()).filter(|&at| step(&loops[at]) != 0).min_by_key(|&at| step(&loops[at]));
        if let Some(nearest) = nearest {
            let taken = loops.remove(nearest);
            self.count *= taken.count;
            self.loops.push(taken);
        }
    }

    /// Takes the loop that goes on where this axis ends.
    fn take_next(&mut self, loops: &mut Vec<Loop>, step: impl Fn(&Loop) -> u64) -> bool {
        let Some(end) = self.loops.last().map(|last| last.count * step(last)) else { return false };
        let Some(next) = loops.iter().position(|l| step(l) == end && end != 0) else { return false };
        let taken = loops.remove(next);
        self.count *= taken.count;
        self.loops.push(taken);
        true
    }

    fn source_contiguous(&self) -> bool {
        self.loops.first().is_some_and(|l| l.source_step == 1)
    }

    fn target_contiguous(&self) -> bool {
        self.loops.first().is_some_and(|l| l.target_step == 1)
    }

    /// Fills a table with the offsets of the positions from `start`, at most [`PLANE`].
    fn fill(&self, start: u64, table: &mut Table) {
        table.source.clear();
        table.target.clear();
        for position in start..self.count.min(start + PLANE as u64) {
            let (mut rest, mut source, mut target) = (position, 0, 0);
            for l in &self.loops {
                source += rest % l.count * l.source_step;
                target += rest % l.count * l.target_step;
                rest /= l.count;
            }
            table.source.push(source as usize);
            table.target.push(target as usize);
        }
    }
}

/// Transposes a plane whose rows are contiguous in the source and whose columns are contiguous in the target.
///
/// A block of `B` x `B` goes through a local array, so that each cache line of the source and of the target is
/// touched once: rows a power of two apart fall into the same cache set and would evict each other.
fn plane<T: Pod, const B: usize>(source: &[T], target: &mut [T], rows: &Table, columns: &Table) {
    let whole_rows = rows.source.len() / B * B;
    let whole_columns = columns.source.len() / B * B;
    let (first_row, first_column) = (rows.target[0], columns.source[0]);
    let mut block = [[T::zeroed(); B]; B];
    for column in (0..whole_columns).step_by(B) {
        for row in (0..whole_rows).step_by(B) {
            for (line, from) in block.iter_mut().zip(&rows.source[row..row + B]) {
                line.copy_from_slice(&source[from + first_column + column..][..B]);
            }
            for (at, to) in columns.target[column..column + B].iter().enumerate() {
                let line = &mut target[to + first_row + row..][..B];
                for (to, from) in line.iter_mut().zip(&block) {
                    *to = from[at];
                }
            }
        }
    }
    let rest = Plane { rows, columns, block: B };
    rest.copy(source, target, whole_rows..rows.source.len(), 0..columns.source.len());
    rest.copy(source, target, 0..whole_rows, whole_columns..columns.source.len());
}

/// Copies a plane element by element, in blocks.
fn gapped_plane<T: Pod>(source: &[T], target: &mut [T], rows: &Table, columns: &Table, block: usize) {
    let plane = Plane { rows, columns, block };
    plane.copy(source, target, 0..rows.source.len(), 0..columns.source.len());
}

struct Plane<'a> {
    rows: &'a Table,
    columns: &'a Table,
    block: usize,
}

impl Plane<'_> {
    fn copy<T: Pod>(
        &self,
        source: &[T],
        target: &mut [T],
        rows: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
    ) {
        for first_column in columns.clone().step_by(self.block) {
            for first_row in rows.clone().step_by(self.block) {
                for column in first_column..columns.end.min(first_column + self.block) {
                    let (from, to) = (self.columns.source[column], self.columns.target[column]);
                    for row in first_row..rows.end.min(first_row + self.block) {
                        target[to + self.rows.target[row]] = source[from + self.rows.source[row]];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exec::buffer::Buffer;
    use crate::exec::testing::{permuted, units};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn any_permutation_copies_every_element(
            (shape, order) in permuted(1..5, 40), width in 0_u32..4, source_offset in 0_u64..3, target_offset in 0_u64..3,
        ) {
            check(1 << width, source_offset, target_offset, &crate::exec::testing::permutation(&shape, &order));
        }

        #[test]
        fn gaps_and_repeats_are_kept(
            counts in prop::collection::vec(2_u64..20, 1..4), steps in prop::collection::vec((0_u64..5, 1_u64..4), 4),
            width in 0_u32..4,
        ) {
            let mut loops = Vec::new();
            let mut extent = 1;
            for (&count, &(source_step, gap)) in counts.iter().zip(&steps).rev() {
                let target_step = extent * gap;
                loops.insert(0, Loop { count, source_step, target_step });
                extent += (count - 1) * target_step;
            }
            check(1 << width, 1, 2, &loops);
        }
    }

    fn check(unit: u64, source_offset: u64, target_offset: u64, loops: &[Loop]) {
        let source_extent =
            source_offset + 1 + loops.iter().map(|l| (l.count - 1) * l.source_step).sum::<u64>();
        let target_extent = target_offset + crate::exec::part::target_extent(loops);
        let mut source = Buffer::new(source_extent * unit);
        let random = units(source.bytes().len());
        source.bytes_mut().copy_from_slice(&random);
        let mut target = Buffer::new(target_extent * unit);
        target.bytes_mut().fill(0xEE);
        let mut expected = target.bytes().to_vec();
        each(loops, source_offset, target_offset, &mut |s, t| {
            let (s, t, unit) = ((s * unit) as usize, (t * unit) as usize, unit as usize);
            expected[t..t + unit].copy_from_slice(&source.bytes()[s..s + unit]);
        });
        permute(unit, source.bytes(), target.bytes_mut(), Part { source_offset, target_offset, loops });
        assert!(target.bytes() == expected, "{unit} {source_offset} {target_offset} {loops:?}");
    }
}
