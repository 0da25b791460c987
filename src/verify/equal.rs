//! Whether the elements of two buffers agree in the orders that their places tell: nothing else, and fast.

use bytemuck::Pod;

use super::agreement::Agree;

/// The side of a plane whose lines lie on so few pages that the processor finds all of them at once.
const PLANE: usize = 256;
/// The side of a block of elements whose places are no neighbours: so many lines of the cache are in use.
const GAPPED: usize = 32;

/// Compares all elements, those that are neighbours on one side next to each other.
pub(super) fn equal<A: Agree>(
    agree: A,
    (near, far): (&[A::Near], &[A::Far]),
    near_places: &[Vec<u64>],
    far_places: &[Vec<u64>],
) -> bool {
    let rank = near_places.len();
    // The axes along which each side's elements lie nearest to each other.
    let nearest = |places: &[Vec<u64>]| {
        let step = |at: &usize| places[*at].get(1).map_or(u64::MAX, |second| second.abs_diff(places[*at][0]));
        (0..rank).rev().min_by_key(step)
    };
    let (Some(rows), Some(columns)) = (nearest(near_places), nearest(far_places)) else {
        return agree.pair(near[0], far[0]);
    };
    let outer: Vec<usize> = (0..rank).filter(|at| *at != rows && *at != columns).collect();
    let mut turn = vec![0; outer.len()];
    let table = |places: &[Vec<u64>], at: usize| -> Vec<usize> {
        places[at].iter().map(|place| *place as usize).collect()
    };
    let (near_rows, far_rows) = (table(near_places, rows), table(far_places, rows));
    // Where both sides have the same nearest axis, there are rows alone.
    let (near_columns, far_columns) = match rows == columns {
        true => (vec![0], vec![0]),
        false => (table(near_places, columns), table(far_places, columns)),
    };
    let near_run = is_run(&near_places[rows]);
    let runs = rows == columns && near_run && is_run(&far_places[rows]);
    let turned = rows != columns && near_run && is_run(&far_places[columns]);
    loop {
        let base = |places: &[Vec<u64>]| -> usize {
            outer.iter().zip(&turn).map(|(at, turn): (&usize, &usize)| places[*at][*turn] as usize).sum()
        };
        let plane = Plane { near: &near[base(near_places)..], far: &far[base(far_places)..] };
        let (rows, columns) = ((&near_rows[..], &far_rows[..]), (&near_columns[..], &far_columns[..]));
        let same = if runs {
            agree.runs(
                &plane.near[near_rows[0]..][..near_rows.len()],
                &plane.far[far_rows[0]..][..far_rows.len()],
            )
        } else if turned {
            plane.turned(agree, rows, columns)
        } else {
            plane.gapped(agree, rows, columns)
        };
        if !same {
            return false;
        }
        if !advance(&mut turn, |at| near_places[outer[at]].len()) {
            return true;
        }
    }
}

/// The places of an axis's elements in the near and in the far buffer.
type Places<'a> = (&'a [usize], &'a [usize]);

/// Elements along two axes: the rows are those that lie nearest to each other on the near side, the columns on the far side.
struct Plane<'a, N, F> {
    near: &'a [N],
    far: &'a [F],
}

impl<N: Pod, F: Pod> Plane<'_, N, F> {
    /// Compares where rows are neighbours in the near buffer and columns in the far one, plane by plane.
    fn turned<A: Agree<Near = N, Far = F>>(&self, agree: A, rows: Places<'_>, columns: Places<'_>) -> bool {
        chunks(columns, PLANE).all(|columns| {
            chunks(rows, PLANE).all(|rows| match size_of::<F>() {
                // A line of the far side's block fills a line of the cache.
                1 | 2 => self.blocks::<A, 32>(agree, rows, columns),
                4 => self.blocks::<A, 16>(agree, rows, columns),
                _ => self.blocks::<A, 8>(agree, rows, columns),
            })
        })
    }

    /// Compares a plane by blocks of `B` x `B`. Each goes through a local array: lines a power of two apart fall into the
    /// same set of the cache and would push each other out.
    fn blocks<A: Agree<Near = N, Far = F>, const B: usize>(
        &self,
        agree: A,
        rows: Places<'_>,
        columns: Places<'_>,
    ) -> bool {
        let (first_row, first_column) = (rows.0[0], columns.1[0]);
        let whole = (rows.0.len() / B * B, columns.0.len() / B * B);
        let mut lines = [[F::zeroed(); B]; B];
        let mut turned = [F::zeroed(); B];
        for column in (0..whole.1).step_by(B) {
            for row in (0..whole.0).step_by(B) {
                for (line, from) in lines.iter_mut().zip(&rows.1[row..row + B]) {
                    line.copy_from_slice(&self.far[from + first_column + column..][..B]);
                }
                let mut same = true;
                for (at, to) in columns.0[column..column + B].iter().enumerate() {
                    for (to, line) in turned.iter_mut().zip(&lines) {
                        *to = line[at];
                    }
                    let near = &self.near[to + first_row + row..][..B];
                    same &= near.iter().zip(&turned).fold(true, |same, (a, b)| same & agree.pair(*a, *b));
                }
                if !same {
                    return false;
                }
            }
        }
        let (last_rows, last_columns) = (split(rows, whole.0).1, split(columns, whole.1).1);
        self.gapped(agree, last_rows, columns) && self.gapped(agree, split(rows, whole.0).0, last_columns)
    }

    /// Compares block by block, element by element: what is read of a line of the cache is used before the line is lost.
    fn gapped<A: Agree<Near = N, Far = F>>(&self, agree: A, rows: Places<'_>, columns: Places<'_>) -> bool {
        chunks(columns, GAPPED).all(|columns| {
            chunks(rows, GAPPED).all(|rows| {
                columns.0.iter().zip(columns.1).all(|(near_column, far_column)| {
                    let (near, far) = (&self.near[*near_column..], &self.far[*far_column..]);
                    rows.0.iter().zip(rows.1).fold(true, |same, (a, b)| same & agree.pair(near[*a], far[*b]))
                })
            })
        })
    }
}

/// Returns an axis's places before and behind one of them.
fn split(places: Places<'_>, at: usize) -> (Places<'_>, Places<'_>) {
    let ((near, near_rest), (far, far_rest)) = (places.0.split_at(at), places.1.split_at(at));
    ((near, far), (near_rest, far_rest))
}

/// Returns an axis's places in stretches.
fn chunks(places: Places<'_>, length: usize) -> impl Iterator<Item = Places<'_>> {
    places.0.chunks(length).zip(places.1.chunks(length))
}

/// Steps to the next of all combinations, the last position fastest; returns whether there is one.
pub(super) fn advance(picks: &mut [usize], count: impl Fn(usize) -> usize) -> bool {
    let Some(at) = (0..picks.len()).rev().find(|at| picks[*at] + 1 < count(*at)) else { return false };
    picks[at] += 1;
    picks[at + 1..].fill(0);
    true
}

/// Returns the whole elements of a buffer.
pub(super) fn whole<T: Pod>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(&bytes[..bytes.len() / size_of::<T>() * size_of::<T>()])
}

/// Returns whether places are neighbours.
pub(super) fn is_run(places: &[u64]) -> bool {
    places.windows(2).all(|pair| pair[1] == pair[0] + 1)
}
