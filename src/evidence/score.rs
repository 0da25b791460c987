//! The likelihoods: how much better an arrangement's groups of rows explain the weights than no groups do.

use std::collections::HashMap;

use indexmap::IndexMap;

use super::arrange::{Heads, Part, Place};
use super::regular::is_regular;
use crate::random::Random;

/// How often rows are shuffled for the control.
pub(super) const SHUFFLES: usize = 16;

/// Why numbers cannot be weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// Some are infinite, or no numbers.
    NotFinite,
    /// They follow a rule, as nothing trained does.
    Regular,
}

/// A fused tensor's numbers, made ready.
pub(super) struct Rows {
    /// Squares, each row scaled to a mean of one, row after row in stored order.
    squares: Vec<f32>,
    columns: usize,
    /// The rank of each row's norm.
    ranks: Vec<f64>,
}

impl Rows {
    /// Makes a matrix of so many columns ready.
    ///
    /// # Errors
    /// Returns why its numbers say nothing.
    pub(super) fn new(mut values: Vec<f32>, columns: usize) -> Result<Rows, Unfit> {
        if values.iter().any(|value| !value.is_finite()) {
            return Err(Unfit::NotFinite);
        }
        if is_regular(&values, columns) {
            return Err(Unfit::Regular);
        }
        let mut norms = Vec::with_capacity(values.len() / columns.max(1));
        for row in values.chunks_exact_mut(columns.max(1)) {
            let sum: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
            let mean = sum / columns as f64;
            // A row of zeros says nothing of the columns.
            row.iter_mut().for_each(|value| {
                *value = if mean > 0.0 { (f64::from(*value).powi(2) / mean) as f32 } else { 1.0 };
            });
            norms.push(mean.sqrt());
        }
        Ok(Rows { squares: values, columns, ranks: ranks(&norms) })
    }

    /// Returns the rank of each row's norm.
    pub(super) fn ranks(&self) -> &[f64] {
        &self.ranks
    }

    /// Returns the gain of giving each group of rows variances of its own per column, in nats.
    fn columns_gain(&self, labels: &[u8], shuffle: Option<&[u32]>) -> f64 {
        let mut sums = vec![0.0_f64; 4 * self.columns];
        let mut counts = [0.0_f64; 4];
        for (at, label) in labels.iter().enumerate() {
            let row = shuffle.map_or(at, |order| order[at] as usize);
            let (group, row) = (usize::from(*label), &self.squares[row * self.columns..][..self.columns]);
            counts[group] += 1.0;
            let sums = &mut sums[group * self.columns..][..self.columns];
            sums.iter_mut().zip(row).for_each(|(sum, square)| *sum += f64::from(*square));
        }
        let count: f64 = counts.iter().sum();
        let mut gain = 0.0;
        for column in 0..self.columns {
            let all: f64 = (0..4).map(|group| sums[group * self.columns + column]).sum();
            gain += log_likelihood(all, count);
            gain -= (0..4)
                .map(|group| log_likelihood(sums[group * self.columns + column], counts[group]))
                .sum::<f64>();
        }
        gain
    }
}

/// Returns minus the log-likelihood of that many normal numbers with that sum of squares, up to constants that cancel.
fn log_likelihood(sum: f64, count: f64) -> f64 {
    // Squares have a mean of one, so this floor is far below every column that is not dead.
    const FLOOR: f64 = 1e-6;
    if count > 0.0 { 0.5 * count * (sum / count + FLOOR).ln() } else { 0.0 }
}

/// Returns ranks between -1/2 and 1/2; norms that agree to a thousandth are equal, so that rounding has no order.
pub(super) fn ranks(norms: &[f64]) -> Vec<f64> {
    let mean = norms.iter().sum::<f64>() / norms.len().max(1) as f64;
    // Far below the mean all are equally dead.
    let step = |norm: &f64| ((norm + 1e-6 * mean).max(f64::MIN_POSITIVE).ln() * 1000.0).round() as i64;
    let mut order: Vec<(i64, usize)> =
        norms.iter().map(step).enumerate().map(|(at, step)| (step, at)).collect();
    order.sort_unstable();
    let mut ranks = vec![0.0; norms.len()];
    for tied in order.chunk_by(|first, second| first.0 == second.0) {
        let start = order.partition_point(|(step, _)| *step < tied[0].0);
        let rank = start as f64 + (tied.len() - 1) as f64 / 2.0;
        tied.iter().for_each(|(_, at)| ranks[*at] = (rank + 0.5) / norms.len() as f64 - 0.5);
    }
    ranks
}

/// Ranks of the norms of parts that stand in other tensors, each in canonical order and centred within its heads.
pub(super) type Others = HashMap<Part, Vec<f64>>;

/// What is known of a module beyond its fused tensor.
pub(super) struct Context {
    pub(super) heads: Option<Heads>,
    pub(super) others: Others,
}

impl Context {
    /// Returns the gain of giving each head of each part a norm of its own, and that of tying the norms of pairs that
    /// training ties, in nats.
    fn norms_gain(&self, ranks: &[f64], places: &[Place], shuffle: Option<&[u32]>) -> (f64, f64) {
        let Some(heads) = self.heads else { return (0.0, 0.0) };
        // In an order: sums of floats depend on it.
        let mut parts: IndexMap<Part, Vec<f64>> = IndexMap::new();
        for (at, (part, index)) in places.iter().enumerate() {
            let rank = ranks[shuffle.map_or(at, |order| order[at] as usize)];
            let list = parts.entry(*part).or_insert_with(|| vec![0.0; heads.rows(*part) as usize]);
            if let Some(slot) = list.get_mut(*index as usize) {
                *slot = rank;
            }
        }
        let mean = ranks.iter().sum::<f64>() / ranks.len().max(1) as f64;
        let total: f64 = ranks.iter().map(|rank| (rank - mean).powi(2)).sum();
        let mut within = 0.0;
        for (part, list) in &mut parts {
            within += center(list, heads.of(*part));
        }
        let found = |part| parts.get(&part).or_else(|| self.others.get(&part));
        let pair = |many: Part, few: Part| match (found(many), found(few)) {
            (Some(many), Some(few)) => tie(&merged(many, heads), few),
            _ => 0.0,
        };
        let ties = pair(Part::Query, Part::Key) + pair(Part::Output, Part::Value);
        (split_gain(ranks.len(), total, within), ties)
    }
}

/// Returns the gain of groups with means of their own, from the sums of squares about the common mean and within them.
fn split_gain(count: usize, total: f64, within: f64) -> f64 {
    if total <= 1e-9 { 0.0 } else { 0.5 * count as f64 * (total / within.max(1e-3 * total)).ln() }
}

/// Takes each head's mean away; returns the sum of squares that is left.
pub(super) fn center(list: &mut [f64], heads: u64) -> f64 {
    let size = (list.len() / heads.max(1) as usize).max(1);
    let mut left = 0.0;
    for head in list.chunks_mut(size) {
        let mean = head.iter().sum::<f64>() / head.len() as f64;
        head.iter_mut().for_each(|rank| *rank -= mean);
        left += head.iter().map(|rank| rank * rank).sum::<f64>();
    }
    left
}

/// Merges the query heads of each group, element by element.
fn merged(list: &[f64], heads: Heads) -> Vec<f64> {
    let (groups, size) = (heads.g.max(1) as usize, list.len() / heads.h.max(1) as usize);
    let repeats = (heads.h as usize / groups).max(1);
    let one = |at: usize| {
        let (group, element) = (at / size, at % size);
        (0..repeats).filter_map(|r| list.get((group * repeats + r) * size + element)).sum::<f64>()
    };
    (0..groups * size).map(one).collect()
}

/// Returns the gain of tying two lists that are centred, where they rise and fall together.
fn tie(first: &[f64], second: &[f64]) -> f64 {
    let squares = |list: &[f64]| list.iter().map(|value| value * value).sum::<f64>();
    let norm = (squares(first) * squares(second)).sqrt();
    if first.len() != second.len() || norm <= 1e-9 {
        return 0.0;
    }
    let correlation = first.iter().zip(second).map(|(a, b)| a * b).sum::<f64>() / norm;
    -0.5 * first.len() as f64 * (1.0 - correlation.clamp(0.0, 0.999).powi(2)).ln()
}

/// The scores of all candidates for one module, in nats above the control's mean.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) scores: Vec<f64>,
    /// The variance of the control.
    pub(super) variance: f64,
    /// Its variance where candidates group the rows alike, so that all but the gain of ties cancels.
    pub(super) ties_variance: f64,
}

/// Weighs arrangements of a fused tensor's rows.
///
/// The control is the same rows in random order: a matrix of the same shape whose rows have no place. All arrangements
/// of the same sizes are alike on it, so one of them tells the mean and the variance of all.
pub(super) fn arrangements(rows: &Rows, context: &Context, candidates: &[Vec<Place>], seed: u64) -> Tally {
    let mut known: HashMap<Vec<u8>, f64> = HashMap::default();
    let raw: Vec<f64> = candidates
        .iter()
        .map(|places| {
            let labels = labels(places);
            let gain = *known.entry(labels).or_insert_with_key(|labels| rows.columns_gain(labels, None));
            let (heads, ties) = context.norms_gain(&rows.ranks, places, None);
            gain + heads + ties
        })
        .collect();
    let Some(places) = candidates.first() else { return Tally::default() };
    let labels = labels(places);
    control(raw, rows.ranks.len(), seed, |order| {
        let (heads, ties) = context.norms_gain(&rows.ranks, places, Some(order));
        (rows.columns_gain(&labels, Some(order)) + heads, ties)
    })
}

/// One reading of a matrix's axis as heads.
pub(super) struct HeadReading {
    /// The ranks of the norms along the axis.
    pub(super) ranks: Vec<f64>,
    /// Whether heads run fastest.
    pub(super) exchanged: bool,
}

/// Weighs readings of one matrix's axes as heads; `partner` holds the ranks of the values' norms for the output
/// projection.
pub(super) fn heads(
    readings: &[HeadReading],
    part: Part,
    heads: Heads,
    partner: Option<&[f64]>,
    seed: u64,
) -> Tally {
    let mut tally = Tally::default();
    for (at, reading) in readings.iter().enumerate() {
        let gain = |order: Option<&[u32]>| {
            let count = reading.ranks.len();
            let (number, size) =
                (heads.of(part) as usize, (heads.rows(part) / heads.of(part).max(1)) as usize);
            let place = |index: usize| {
                if reading.exchanged { index % size.max(1) * number + index / size.max(1) } else { index }
            };
            let rank = |index: usize| {
                let stored = place(index);
                reading.ranks[order.map_or(stored, |order| order[stored] as usize)]
            };
            let mut list: Vec<f64> = (0..count).map(rank).collect();
            let total = center(&mut list.clone(), 1);
            let within = center(&mut list, heads.of(part));
            let tied = partner.map_or(0.0, |values| {
                let mut values = values.to_vec();
                center(&mut values, heads.g);
                tie(&merged(&list, heads), &values)
            });
            split_gain(count, total, within) + tied
        };
        let one = control(vec![gain(None)], reading.ranks.len(), seed ^ at as u64, |order| {
            (0.0, gain(Some(order)))
        });
        tally.scores.extend(one.scores);
        // The difference of two readings varies as both do.
        tally.variance = tally.variance.max(one.variance);
        tally.ties_variance = tally.variance;
    }
    tally
}

/// Takes the control's mean from raw scores; `one` returns the gains of groups and of ties on rows in that order.
fn control(mut scores: Vec<f64>, rows: usize, seed: u64, one: impl Fn(&[u32]) -> (f64, f64)) -> Tally {
    let mut random = Random(seed);
    let mut order: Vec<u32> = (0..rows as u32).collect();
    let shuffled: Vec<(f64, f64)> = (0..SHUFFLES)
        .map(|_| {
            shuffle(&mut random, &mut order);
            one(&order)
        })
        .collect();
    let (mean, variance) = moments(shuffled.iter().map(|(groups, ties)| groups + ties));
    let (_, ties_variance) = moments(shuffled.iter().map(|(_, ties)| *ties));
    scores.iter_mut().for_each(|score| *score -= mean);
    Tally { scores, variance, ties_variance }
}

fn moments(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let mean = values.clone().sum::<f64>() / SHUFFLES as f64;
    (mean, values.map(|value| (value - mean).powi(2)).sum::<f64>() / (SHUFFLES - 1) as f64)
}

/// Numbers groups in order of appearance: which of them is q says nothing here.
pub(super) fn labels(places: &[Place]) -> Vec<u8> {
    let mut seen: Vec<Part> = Vec::new();
    let label = |(part, _): &Place| match seen.iter().position(|other| other == part) {
        Some(at) => at as u8,
        None => {
            seen.push(*part);
            (seen.len() - 1) as u8
        }
    };
    places.iter().map(label).collect()
}

fn shuffle(random: &mut Random, order: &mut [u32]) {
    for at in (1..order.len()).rev() {
        order.swap(at, (random.bits() % (at as u64 + 1)) as usize);
    }
}
