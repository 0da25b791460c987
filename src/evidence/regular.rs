//! Numbers that follow a rule, as nothing trained does: ramps, tables of sines, constants, repeated rows, few values.
//!
//! The control of `evidence` is the same rows in random order, which stands for "no layout" only where rows without a
//! layout would be exchangeable. Those of a ramp are not: each follows from its neighbours, so that every order but their
//! own looks worse, whatever the layout says. Such numbers are recognised by what makes them so:
//!
//! - *Predictable.* Along rows or along columns an element is, up to half of the variance, a linear function of the
//!   [`ORDER`] before it, in most lines. That holds for ramps, polynomials, sines, and for what is periodic or constant;
//!   between the neighbours of trained weights there is no such relation.
//! - *Of low rank.* Three rows span all others but for a hundredth of their squares.
//! - *Few.* There are fewer magnitudes than [`FEW`], most elements are one value, or most rows occur several times.

use std::collections::{HashMap, HashSet};

/// How many elements before one predict it.
const ORDER: usize = 3;

/// Fewer magnitudes than this are integers or flags, not weights: one binade of bf16 alone has 128.
const FEW: usize = 64;

/// The most lines that are looked at, along either axis.
const LINES: usize = 48;

/// Returns whether the numbers of a matrix follow a rule.
pub(super) fn is_regular(values: &[f32], columns: usize) -> bool {
    let rows = values.len() / columns.max(1);
    if rows == 0 {
        return true;
    }
    let row =
        |at: usize| values[at * columns..(at + 1) * columns].iter().map(|value| f64::from(*value)).collect();
    let column = |at: usize| (0..rows).map(|row| f64::from(values[row * columns + at])).collect();
    let along_rows: Vec<Vec<f64>> = spread(rows).map(row).collect();
    let along_columns: Vec<Vec<f64>> = spread(columns).map(column).collect();
    is_few(values, columns)
        || is_predictable(&along_rows)
        || is_predictable(&along_columns)
        || is_low_rank(along_rows)
}

/// Picks lines, spread over all.
fn spread(count: usize) -> impl Iterator<Item = usize> {
    let some = count.min(LINES);
    (0..some).map(move |at| at * count / some)
}

fn is_few(values: &[f32], columns: usize) -> bool {
    let mut magnitudes: HashMap<u32, usize> = HashMap::default();
    for value in values {
        *magnitudes.entry(value.abs().to_bits()).or_default() += 1;
    }
    // A small matrix has few values of any kind; there most of them occur once.
    let few = magnitudes.len() < FEW.min(values.len() / 2);
    let most = magnitudes.values().max().copied().unwrap_or(0);
    let distinct: HashSet<Vec<u32>> =
        values.chunks_exact(columns).map(|row| row.iter().map(|value| value.to_bits()).collect()).collect();
    few || 4 * most > 3 * values.len() || 4 * distinct.len() <= values.len() / columns
}

/// Returns whether most lines are predictable from the elements before.
fn is_predictable(lines: &[Vec<f64>]) -> bool {
    let mut shares: Vec<f64> = lines.iter().filter_map(|line| explained(line)).collect();
    shares.sort_unstable_by(f64::total_cmp);
    shares.get(shares.len() / 2).is_some_and(|median| *median > 0.5)
}

/// Returns the share of a line's variance that a linear function of the elements before explains, less what as many free
/// numbers explain by chance; `None` for a line that is too short.
fn explained(line: &[f64]) -> Option<f64> {
    const FREE: usize = ORDER + 1;
    let count = line.len().checked_sub(ORDER).filter(|count| *count >= 3 * FREE)?;
    let largest = line.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    if largest <= 0.0 {
        return Some(1.0);
    }
    let line: Vec<f64> = line.iter().map(|value| value / largest).collect();
    let targets = &line[ORDER..];
    let mean = targets.iter().sum::<f64>() / count as f64;
    let total: f64 = targets.iter().map(|value| (value - mean).powi(2)).sum();
    if total <= 1e-12 * count as f64 {
        return Some(1.0);
    }
    // Each regressor is made orthogonal to those before it, and its part taken out of what is to be explained.
    let mut rest: Vec<f64> = targets.to_vec();
    let mut basis: Vec<Vec<f64>> = Vec::new();
    let before = (1..=ORDER).map(|lag| line[ORDER - lag..line.len() - lag].to_vec());
    for mut regressor in [vec![1.0; count]].into_iter().chain(before) {
        let whole = dot(&regressor, &regressor);
        for _ in 0..2 {
            basis.iter().for_each(|other| take_out(&mut regressor, other));
        }
        if dot(&regressor, &regressor) > 1e-14 * whole {
            take_out(&mut rest, &regressor);
            basis.push(regressor);
        }
    }
    let left = dot(&rest, &rest) / (count - FREE) as f64;
    Some(1.0 - left / (total / (count - 1) as f64))
}

/// Returns whether three of some lines span them all but for a hundredth; lines count alike, whatever their lengths.
fn is_low_rank(mut lines: Vec<Vec<f64>>) -> bool {
    const RANK: usize = 3;
    lines.retain_mut(|line| {
        let norm = dot(line, line).sqrt();
        line.iter_mut().for_each(|value| *value /= norm.max(f64::MIN_POSITIVE));
        norm > 0.0
    });
    if lines.len() < 4 * RANK || lines[0].len() < 4 * RANK {
        return false;
    }
    let whole = lines.len() as f64;
    for _ in 0..RANK {
        let longest =
            lines.iter().max_by(|a, b| dot(a, a).total_cmp(&dot(b, b))).cloned().unwrap_or_default();
        lines.iter_mut().for_each(|line| take_out(line, &longest));
    }
    lines.iter().map(|line| dot(line, line)).sum::<f64>() < 0.01 * whole
}

/// Takes out of a vector what lies along another.
fn take_out(vector: &mut [f64], other: &[f64]) {
    let length = dot(other, other);
    if length > 0.0 {
        let along = dot(vector, other) / length;
        vector.iter_mut().zip(other).for_each(|(value, other)| *value -= along * other);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn fill(rows: usize, columns: usize, of: impl Fn(usize, usize) -> f64) -> Vec<f32> {
        (0..rows * columns).map(|at| of(at / columns, at % columns) as f32).collect()
    }

    #[test]
    fn rules_are_seen_and_chance_is_not() {
        for (rows, columns) in [(128, 128), (96, 40), (40, 96), (24, 24), (360, 30)] {
            let flat = |row: usize, column: usize| (row * columns + column) as f64;
            type Fill<'a> = (&'a str, Box<dyn Fn(usize, usize) -> f64 + 'a>);
            let fills: Vec<Fill<'_>> = vec![
                ("ramp", Box::new(flat)),
                ("ramp down the columns", Box::new(|row, column| (column * rows + row) as f64)),
                (
                    "from -1 to 1",
                    Box::new(|row, column| flat(row, column) / (rows * columns) as f64 * 2.0 - 1.0),
                ),
                ("squares", Box::new(|row, column| flat(row, column).powi(2))),
                ("roots", Box::new(|row, column| flat(row, column).sqrt())),
                (
                    "sines",
                    Box::new(|row, column| (row as f64 / 100_f64.powf(column as f64 / columns as f64)).sin()),
                ),
                ("sines of a ramp", Box::new(|row, column| flat(row, column).sin())),
                ("row numbers", Box::new(|row, _| row as f64)),
                ("column numbers", Box::new(|_, column| column as f64)),
                ("modulo 7", Box::new(|row, column| flat(row, column) % 7.0)),
                ("modulo 1000", Box::new(|row, column| flat(row, column) % 1000.0)),
                ("identity", Box::new(|row, column| f64::from(u8::from(row == column)))),
                (
                    "scaled diagonal",
                    Box::new(|row, column| if row == column { 1.0 + flat(row, 0) } else { 0.0 }),
                ),
                (
                    "a product",
                    Box::new(|row, column| ((row * row) as f64).sin() * ((3 * column * column) as f64).cos()),
                ),
                ("one row", Box::new(|_, column| ((column * column) as f64).sin())),
                ("five rows", Box::new(|row, column| ((row % 5 * 977 + column * column) as f64).sin())),
                ("constant", Box::new(|_, _| 0.25)),
            ];
            for (name, of) in fills {
                assert!(is_regular(&fill(rows, columns, of), columns), "{name} of {rows} x {columns}");
            }
            for seed in 0..50 {
                let mut random = Random(seed);
                let mut even = || (random.bits() >> 11) as f64 / (1_u64 << 53) as f64 - 0.5;
                let inputs: Vec<f64> = (0..columns).map(|_| (3.0 * even()).exp()).collect();
                let norms: Vec<f64> = (0..rows).map(|_| (3.0 * even()).exp()).collect();
                let mut weights = Vec::new();
                for norm in &norms {
                    let row = inputs.iter().map(|input| half::bf16::from_f64(norm * input * even()).to_f32());
                    weights.extend(row.collect::<Vec<f32>>());
                }
                assert!(!is_regular(&weights, columns), "random {seed}, {rows} x {columns}");
            }
        }
    }
}
