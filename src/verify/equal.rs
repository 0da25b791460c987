//! Whether two buffers hold the same elements in the orders that their places tell: nothing else, and fast.

/// The side of a block of elements that lie in other orders on the two sides: so many lines of the cache are in use.
const BLOCK: usize = 32;

/// Compares all elements, those that are neighbours on one side next to each other.
pub(super) fn equal<T: bytemuck::Pod + PartialEq>(
    (near, far): (&[u8], &[u8]),
    near_places: &[Vec<u64>],
    far_places: &[Vec<u64>],
) -> bool {
    let (near, far): (&[T], &[T]) = (whole(near), whole(far));
    let rank = near_places.len();
    // The axes along which each side's elements lie nearest to each other.
    let nearest = |places: &[Vec<u64>]| {
        let step = |at: &usize| places[*at].get(1).map_or(u64::MAX, |second| second.abs_diff(places[*at][0]));
        (0..rank).rev().min_by_key(step)
    };
    let (Some(rows), Some(columns)) = (nearest(near_places), nearest(far_places)) else {
        return near[0] == far[0];
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
    let runs = rows == columns && is_run(&near_places[rows]) && is_run(&far_places[rows]);
    loop {
        let base = |places: &[Vec<u64>]| -> usize {
            outer.iter().zip(&turn).map(|(at, turn): (&usize, &usize)| places[*at][*turn] as usize).sum()
        };
        let (near, far) = (&near[base(near_places)..], &far[base(far_places)..]);
        let same = if runs {
            near[near_rows[0]..][..near_rows.len()] == far[far_rows[0]..][..far_rows.len()]
        } else {
            equal_plane((near, far), (&near_rows, &far_rows), (&near_columns, &far_columns))
        };
        if !same {
            return false;
        }
        if !advance(&mut turn, |at| near_places[outer[at]].len()) {
            return true;
        }
    }
}

/// Compares a plane block by block: what is read of a line of the cache is used before the line is lost.
fn equal_plane<T: Copy + PartialEq>(
    (near, far): (&[T], &[T]),
    rows: (&[usize], &[usize]),
    columns: (&[usize], &[usize]),
) -> bool {
    columns.0.chunks(BLOCK).zip(columns.1.chunks(BLOCK)).all(|columns| {
        rows.0.chunks(BLOCK).zip(rows.1.chunks(BLOCK)).all(|rows| {
            columns.0.iter().zip(columns.1).all(|(near_column, far_column)| {
                let (near, far) = (&near[*near_column..], &far[*far_column..]);
                rows.0.iter().zip(rows.1).fold(true, |same, (a, b)| same & (near[*a] == far[*b]))
            })
        })
    })
}

/// Steps to the next of all combinations, the last position fastest; returns whether there is one.
pub(super) fn advance(picks: &mut [usize], count: impl Fn(usize) -> usize) -> bool {
    let Some(at) = (0..picks.len()).rev().find(|at| picks[*at] + 1 < count(*at)) else { return false };
    picks[at] += 1;
    picks[at + 1..].fill(0);
    true
}

/// Returns the whole elements of a buffer.
pub(super) fn whole<T: bytemuck::Pod>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(&bytes[..bytes.len() / size_of::<T>() * size_of::<T>()])
}

/// Returns whether places are neighbours.
pub(super) fn is_run(places: &[u64]) -> bool {
    places.windows(2).all(|pair| pair[1] == pair[0] + 1)
}
