//! Places in a grid → loops: which axes of the source a target axis steps through, and where one block ends.

use std::collections::{BTreeSet, HashMap};

/// What a cell of the grid holds: something that is alike along a block, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// Cells of one block have one label.
    pub(super) label: u32,
    /// The index in the source.
    pub(super) at: Vec<i64>,
}

/// A loop of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loop {
    pub(super) size: u64,
    /// The axis of the grid.
    pub(super) axis: usize,
    /// The step along it.
    pub(super) step: u64,
    /// The step along each axis of the source; at most one is not zero.
    pub(super) moves: Vec<i64>,
}

/// A part of a grid that is one nest of loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nest {
    /// The first cell's label.
    pub(super) label: u32,
    /// Its index in the source.
    pub(super) at: Vec<i64>,
    /// Its index in the grid.
    pub(super) start: Vec<u64>,
    /// The loops, by axis of the grid, outermost first.
    pub(super) loops: Vec<Loop>,
}

/// More blocks than any layout's tensor has.
const MOST: usize = 96;

/// The longest stretch of one label in which a seam is looked for.
const SEAM: usize = 1024;

/// How many cuts of a short stretch are compared.
const SEAM_TRIES: usize = 64;

/// Cells that may be looked at for each of the grid, and for a small one.
const WORK: (u64, u64) = (256, 4_000_000);

/// Labels with the steps that loops around them take.
#[derive(Default)]
struct Labels {
    known: HashMap<(u32, Vec<i64>), u32>,
    /// The label before, and the steps.
    made: Vec<(u32, Vec<i64>)>,
    first: u32,
    /// How many cells may still be looked at: what has no pattern is not looked for forever.
    work: u64,
}

impl Labels {
    fn of(&mut self, label: u32, moves: &[i64]) -> u32 {
        let next = self.first + self.made.len() as u32;
        let found = *self.known.entry((label, moves.to_vec())).or_insert(next);
        if found == next {
            self.made.push((label, moves.to_vec()));
        }
        found
    }

    /// Returns the label without loops, and the steps of the loops, outermost first.
    fn unwind(&self, mut label: u32) -> (u32, Vec<Vec<i64>>) {
        let mut moves = Vec::new();
        while let Some((before, step)) =
            label.checked_sub(self.first).and_then(|at| self.made.get(at as usize))
        {
            moves.push(step.clone());
            label = *before;
        }
        moves.reverse();
        (label, moves)
    }
}

type Row = Vec<Cell>;

/// A stretch of rows that loops around one row make.
struct Leaf {
    start: u64,
    /// Size and step, outermost first.
    loops: Vec<(u64, u64)>,
    row: Row,
}

/// Finds the blocks of a row-major grid; `None` where there is no pattern.
pub(super) fn nests(shape: &[u64], cells: Vec<Cell>) -> Option<Vec<Nest>> {
    let first = cells.iter().map(|cell| cell.label + 1).max().unwrap_or(0);
    let work = WORK.1 + WORK.0 * cells.len() as u64;
    let mut labels = Labels { first, work, ..Labels::default() };
    let mut found = Vec::new();
    let prefix = Prefix { start: Vec::new(), loops: Vec::new() };
    descend(shape, cells, prefix, &mut labels, &mut found)?;
    Some(found)
}

/// What the axes before have given.
#[derive(Clone)]
struct Prefix {
    start: Vec<u64>,
    /// Axis, size and step.
    loops: Vec<(usize, u64, u64)>,
}

fn descend(
    shape: &[u64],
    cells: Vec<Cell>,
    prefix: Prefix,
    labels: &mut Labels,
    found: &mut Vec<Nest>,
) -> Option<()> {
    let axis = prefix.start.len();
    let Some((&length, rest)) = shape.split_first() else {
        let cell = cells.into_iter().next()?;
        let (label, moves) = labels.unwind(cell.label);
        let loops = prefix.loops.iter().zip(moves);
        let loops = loops.map(|(&(axis, size, step), moves)| Loop { size, axis, step, moves }).collect();
        found.push(Nest { label, at: cell.at, start: prefix.start, loops });
        return (found.len() <= MOST).then_some(());
    };
    let width = rest.iter().product::<u64>() as usize;
    if length == 0 || width == 0 || cells.len() != length as usize * width {
        return None;
    }
    let rows: Vec<Row> = cells.chunks(width).map(<[Cell]>::to_vec).collect();
    for leaf in leaves(&rows, labels, 0)? {
        let mut inner = prefix.clone();
        inner.start.push(leaf.start);
        inner.loops.extend(leaf.loops.iter().map(|&(size, step)| (axis, size, step)));
        descend(rest, leaf.row, inner, labels, found)?;
    }
    Some(())
}

fn labels_of(row: &Row) -> impl Iterator<Item = u32> {
    row.iter().map(|cell| cell.label)
}

fn alike(a: &Row, b: &Row) -> bool {
    labels_of(a).eq(labels_of(b))
}

/// Cuts rows into as few stretches as loops can make of them.
fn leaves(rows: &[Row], labels: &mut Labels, depth: usize) -> Option<Vec<Leaf>> {
    if depth > 12 {
        return None;
    }
    if let [row] = rows {
        return Some(vec![Leaf { start: 0, loops: Vec::new(), row: row.clone() }]);
    }
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for at in 0..rows.len() {
        match runs.last_mut() {
            Some(run) if alike(&rows[run.start], &rows[at]) => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    let mut kinds: Vec<&Row> = Vec::new();
    for run in &runs {
        if kinds.len() <= MOST && !kinds.iter().any(|kind| alike(kind, &rows[run.start])) {
            kinds.push(&rows[run.start]);
        }
    }
    let least = kinds.len();
    let mut best = looped_leaves(rows, labels, depth, least);
    if best.as_ref().is_some_and(|best| best.len() <= least) {
        return best;
    }
    let cut = if runs.len() > 1 {
        (runs.len() <= MOST).then(|| concatenated(rows, &runs, labels, depth)).flatten()
    } else {
        seam(rows, labels, depth)
    };
    if let Some(cut) = cut
        && best.as_ref().is_none_or(|best| cut.len() <= best.len())
    {
        best = Some(cut);
    }
    best.filter(|best| best.len() <= MOST)
}

fn concatenated(
    rows: &[Row],
    runs: &[std::ops::Range<usize>],
    labels: &mut Labels,
    depth: usize,
) -> Option<Vec<Leaf>> {
    let mut all = Vec::new();
    for run in runs {
        let inner = leaves(&rows[run.clone()], labels, depth + 1)?;
        all.extend(inner.into_iter().map(|leaf| Leaf { start: leaf.start + run.start as u64, ..leaf }));
        if all.len() > MOST {
            return None;
        }
    }
    Some(all)
}

/// Cuts rows of one label where their pattern changes: the longest beginning that is one nest, and the rest.
fn seam(rows: &[Row], labels: &mut Labels, depth: usize) -> Option<Vec<Leaf>> {
    let moved = |at: usize| difference(&rows[at][0], &rows[at + 1][0]);
    // Rows that step evenly need no search: the pattern changes where the step does.
    let even = (1..rows.len() - 1).find(|&at| moved(at) != moved(0)).map_or(rows.len(), |at| at + 1);
    let longest = rows.len() - 1;
    let ends: Box<dyn Iterator<Item = usize>> = if rows.len() > SEAM {
        Box::new([even].into_iter().filter(move |&end| end <= longest))
    } else {
        Box::new((1..=longest).rev())
    };
    let mut best: Option<(usize, usize, Vec<Leaf>)> = None;
    let mut tried = 0;
    for end in ends {
        let head = if end == 1 {
            Some(vec![Leaf { start: 0, loops: Vec::new(), row: rows[0].clone() }])
        } else {
            looped_leaves(&rows[..end], labels, depth, 1)
        };
        let Some(head) = head.filter(|head| head.len() == 1) else { continue };
        tried += 1;
        if let Some(tail) = leaves(&rows[end..], labels, depth + 1) {
            let tail = tail.into_iter().map(|leaf| Leaf { start: leaf.start + end as u64, ..leaf });
            let whole: Vec<Leaf> = head.into_iter().chain(tail).collect();
            // Of as many parts those that are most alike: copies of three keys beside copies of three values.
            let shapes: BTreeSet<&[(u64, u64)]> = whole.iter().map(|leaf| &leaf.loops[..]).collect();
            let cost = (whole.len(), shapes.len());
            if best.as_ref().is_none_or(|(parts, shapes, _)| cost < (*parts, *shapes)) {
                best = Some((cost.0, cost.1, whole));
            }
        }
        let tries = if depth <= 1 && rows.len() <= 2 * SEAM_TRIES { SEAM_TRIES } else { 3 };
        if tried >= tries || best.as_ref().is_some_and(|(parts, ..)| *parts == 2) {
            break;
        }
    }
    best.map(|(.., leaves)| leaves)
}

fn difference(a: &Cell, b: &Cell) -> Vec<i64> {
    a.at.iter().zip(&b.at).map(|(a, b)| b - a).collect()
}

/// Takes an outermost loop off the rows, the largest that leads to fewest stretches.
fn looped_leaves(rows: &[Row], labels: &mut Labels, depth: usize, least: usize) -> Option<Vec<Leaf>> {
    let mut best: Option<Vec<Leaf>> = None;
    let mut tried = 0;
    for size in (2..=rows.len()).rev().filter(|size| rows.len().is_multiple_of(*size)) {
        let Some(inner) = looped(rows, size, labels) else { continue };
        let step = inner.len() as u64;
        tried += 1;
        if let Some(found) = leaves(&inner, labels, depth + 1) {
            let around = |leaf: Leaf| {
                let loops = std::iter::once((size as u64, step)).chain(leaf.loops).collect();
                Leaf { start: leaf.start, loops, row: leaf.row }
            };
            let found: Vec<Leaf> = found.into_iter().map(around).collect();
            if best.as_ref().is_none_or(|best| found.len() < best.len()) {
                best = Some(found);
            }
        }
        if tried >= 3 || best.as_ref().is_some_and(|best| best.len() <= least) {
            break;
        }
    }
    best
}

/// Returns the rows of one turn, if all turns of a loop are alike and go on evenly.
fn looped(rows: &[Row], size: usize, labels: &mut Labels) -> Option<Vec<Row>> {
    let inner = rows.len() / size;
    let even = |x: usize, y: usize| -> Option<Vec<i64>> {
        let (first, second) = (&rows[x][y], &rows[inner + x][y]);
        if first.label != second.label {
            return None;
        }
        let moves = difference(first, second);
        if moves.iter().any(|step| *step < 0) || moves.iter().filter(|step| **step != 0).count() > 1 {
            return None;
        }
        for turn in 2..size {
            let cell = &rows[turn * inner + x][y];
            let there = first.at.iter().zip(&moves).map(|(at, step)| at + step * turn as i64);
            if cell.label != first.label || !cell.at.iter().copied().eq(there) {
                return None;
            }
        }
        Some(moves)
    };
    let mut kinds: Vec<(u32, Vec<i64>)> = Vec::new();
    let mut before = 0;
    let mut result = Vec::with_capacity(inner);
    let mut seen: Vec<u32> = Vec::new();
    for (x, first) in rows.iter().enumerate().take(inner) {
        let mut row = Vec::with_capacity(first.len());
        labels.work = labels.work.checked_sub(size as u64 * first.len() as u64)?;
        for (y, cell) in first.iter().enumerate() {
            let moves = even(x, y)?;
            if !seen.contains(&cell.label) {
                seen.push(cell.label);
                before += 1;
            }
            if !kinds.iter().any(|(label, known)| *label == cell.label && *known == moves) {
                kinds.push((cell.label, moves.clone()));
                // Two turns always go on evenly somehow: what is no pattern has many steps.
                if kinds.len() > 4 * before + 4 {
                    return None;
                }
            }
            row.push(Cell { label: labels.of(cell.label, &moves), at: cell.at.clone() });
        }
        result.push(row);
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(list: &[(u32, i64)]) -> Vec<Cell> {
        list.iter().map(|&(label, at)| Cell { label, at: vec![at] }).collect()
    }

    type Shown = (u32, i64, Vec<(u64, u64, i64)>);

    fn shown(nests: &[Nest]) -> Vec<Shown> {
        let loops = |nest: &Nest| nest.loops.iter().map(|l| (l.size, l.step, l.moves[0])).collect();
        nests.iter().map(|nest| (nest.label, nest.at[0], loops(nest))).collect()
    }

    #[test]
    fn per_head_parts_are_found() {
        // (h 3) (q: d 5 + k: d 5), from q and k apart.
        let list: Vec<(u32, i64)> = (0..3)
            .flat_map(|h| (0..2).flat_map(move |part| (0..5).map(move |d| (part, h * 5 + d))))
            .collect();
        let found = nests(&[30], cells(&list)).expect("a pattern");
        assert_eq!(shown(&found), [(0, 0, vec![(3, 10, 5), (5, 1, 1)]), (1, 0, vec![(3, 10, 5), (5, 1, 1)])]);
    }

    #[test]
    fn groups_of_one_tensor_are_found() {
        // g 2 (q: r 3 d 5 + k: d 5), from q (g r d) and k (g d) in one tensor.
        let list: Vec<(u32, i64)> = (0..2)
            .flat_map(|g| {
                (0..15).map(move |q| (0, g * 15 + q)).chain((0..5).map(move |d| (0, 30 + g * 5 + d)))
            })
            .collect();
        let found = nests(&[40], cells(&list)).expect("a pattern");
        assert_eq!(
            shown(&found),
            [(0, 0, vec![(2, 20, 15), (15, 1, 1)]), (0, 30, vec![(2, 20, 5), (5, 1, 1)])]
        );
    }

    #[test]
    fn a_partial_rotary_order_is_found() {
        // h 3 ((f 4 c 2) + u 3), from ((c f) + u).
        let list: Vec<(u32, i64)> = (0..3)
            .flat_map(|h| {
                (0..4)
                    .flat_map(move |f| (0..2).map(move |c| (0, h * 11 + c * 4 + f)))
                    .chain((8..11).map(move |u| (0, h * 11 + u)))
            })
            .collect();
        let found = nests(&[33], cells(&list)).expect("a pattern");
        assert_eq!(
            shown(&found),
            [(0, 0, vec![(3, 11, 11), (4, 2, 1), (2, 1, 4)]), (0, 8, vec![(3, 11, 11), (3, 1, 1)])]
        );
    }

    #[test]
    fn what_has_no_pattern_is_none() {
        let list: Vec<(u32, i64)> = (0..400).map(|at: i64| (0, at * at * 7919 % 401)).collect();
        assert!(nests(&[400], cells(&list)).is_none());
    }
}
