//! Which lines of the source a target tensor holds, by content.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::content::{Content, Lines, is_plain, line_index};
use crate::catalog::TensorMeta;
use crate::diag::Errors;
use crate::dtype::Dtype;

/// The most elements of source tensors that are looked up one by one.
const SINGLE: u64 = 1 << 22;

/// A line of a source tensor, or one element of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LineAt {
    tensor: u32,
    axis: u8,
    line: u64,
}

/// The source's lines by fingerprint.
#[derive(Default)]
pub(super) struct Table {
    by_print: HashMap<u64, u32>,
    groups: Vec<Vec<LineAt>>,
}

/// What a line of a target tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// Nothing in the source is like it.
    Unknown,
    /// All elements have this value.
    Constant(u64),
    /// The lines of that group.
    Group(u32),
}

/// Where a line, or an element, of a target tensor lies in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Unknown,
    Zeros,
    /// The source tensor, the axis of the line in it (`None` for an element), and its index.
    At {
        tensor: usize,
        axis: Option<usize>,
        index: Vec<u64>,
    },
}

/// A target tensor, as lines of the source.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The axis along which the lines go; `None` where single elements were looked up.
    pub(super) axis: Option<usize>,
    /// By the index over the other axes, row-major.
    pub(super) places: Vec<Place>,
}

impl Found {
    /// Returns how many of all places are known.
    pub(super) fn known(&self) -> (usize, usize) {
        (self.places.iter().filter(|place| **place != Place::Unknown).count(), self.places.len())
    }

    /// Returns the source tensors that it needs.
    pub(super) fn tensors(&self) -> BTreeSet<usize> {
        self.places
            .iter()
            .filter_map(|place| match place {
                Place::At { tensor, .. } => Some(*tensor),
                _ => None,
            })
            .collect()
    }
}

/// Both checkpoints and what of them is known.
pub(super) struct Matcher<'a> {
    pub(super) source: Content<'a>,
    pub(super) target: Content<'a>,
    table: Table,
    /// Per target tensor, per axis.
    cells: Vec<Vec<(usize, Vec<Cell>)>>,
    /// The value of source tensors whose elements are all the same, as elements of a type.
    source_constants: HashMap<(usize, Dtype), u64>,
    /// The value of target tensors whose elements are all the same.
    target_constants: Vec<Option<u64>>,
}

impl<'a> Matcher<'a> {
    /// Reads both checkpoints once.
    pub(super) fn new(source: Content<'a>, target: Content<'a>) -> Result<Matcher<'a>, Errors> {
        let wanted: BTreeSet<Dtype> = target.tensors().iter().map(|tensor| tensor.dtype).collect();
        let mut table = Table::default();
        let mut source_constants = HashMap::default();
        for (at, tensor) in source.tensors().iter().enumerate().filter(|(_, tensor)| is_usable(tensor)) {
            for &dtype in &wanted {
                if dtype == tensor.dtype || (dtype.is_computable() && tensor.dtype.is_computable()) {
                    let lines = source.lines(at, dtype)?;
                    lines.iter().for_each(|lines| table.add(at, lines));
                    if let Some(value) = lines.first().and_then(Lines::value) {
                        source_constants.insert((at, dtype), value);
                    }
                }
            }
        }
        let (mut cells, mut target_constants) = (Vec::new(), Vec::new());
        for (at, tensor) in target.tensors().iter().enumerate() {
            let lines = if is_usable(tensor) { target.lines(at, tensor.dtype)? } else { Vec::new() };
            target_constants.push(lines.first().and_then(Lines::value));
            cells.push(lines.iter().map(|lines| (lines.axis, table.look_up(lines))).collect());
        }
        Ok(Matcher { source, target, table, cells, source_constants, target_constants })
    }

    /// Returns the value that all elements of target tensors have, if it is one.
    pub(super) fn target_constant(&self, tensors: &[usize]) -> Option<u64> {
        let value = self.target_constants[*tensors.first()?]?;
        tensors.iter().all(|at| self.target_constants[*at] == Some(value)).then_some(value)
    }

    /// Returns whether all elements of source tensors have that value, as elements of the target tensor's type.
    pub(super) fn is_source_constant(&self, tensors: &[usize], value: u64, target: usize) -> bool {
        let dtype = self.target.tensors()[target].dtype;
        tensors.iter().all(|at| self.source_constants.get(&(*at, dtype)) == Some(&value))
    }

    /// Finds the lines of target tensors that have one template and should be alike.
    pub(super) fn find(&self, tensors: &[usize]) -> Vec<Found> {
        let axes: BTreeSet<usize> =
            tensors.iter().flat_map(|&at| self.cells[at].iter().map(|(axis, _)| *axis)).collect();
        let best = axes.into_iter().max_by_key(|&axis| {
            let cells = tensors.iter().flat_map(|&at| self.cells[at].iter().filter(|cells| cells.0 == axis));
            let (mut known, mut all, mut clear) = (0_usize, 0_usize, 0_usize);
            for cell in cells.flat_map(|(_, cells)| cells) {
                all += 1;
                known += usize::from(*cell != Cell::Unknown);
                clear += usize::from(
                    matches!(cell, Cell::Group(group) if self.table.groups[*group as usize].len() == 1),
                );
            }
            // All lines before most, unique ones before others, then the longest lines.
            (
                known == all && clear > 0,
                known * 1000 / all.max(1),
                clear * 1000 / all.max(1),
                std::cmp::Reverse(all),
            )
        });
        tensors.iter().map(|&at| self.resolve(at, best, None)).collect()
    }

    /// Finds the lines of a target tensor anew, all in that source tensor.
    pub(super) fn find_in(&self, at: usize, found: &Found, source: usize) -> Found {
        self.resolve(at, found.axis, Some(source))
    }

    /// Returns the other source tensors that hold every line of a target tensor which lies in one source tensor.
    pub(super) fn twins(&self, at: usize, found: &Found) -> Vec<usize> {
        let cells = self.cells[at].iter().find(|cells| Some(cells.0) == found.axis);
        let mut common: Option<BTreeSet<usize>> = None;
        for cell in cells.iter().flat_map(|(_, cells)| cells) {
            let Cell::Group(group) = cell else { return Vec::new() };
            let here: BTreeSet<usize> =
                self.table.groups[*group as usize].iter().map(|found| found.tensor as usize).collect();
            common = Some(match common {
                None => here,
                Some(common) => common.intersection(&here).copied().collect(),
            });
            if common.as_ref().is_some_and(|common| common.len() < 2) {
                return Vec::new();
            }
        }
        let own = found.tensors();
        common.unwrap_or_default().into_iter().filter(|tensor| !own.contains(tensor)).collect()
    }

    fn resolve(&self, at: usize, axis: Option<usize>, only: Option<usize>) -> Found {
        let cells = self.cells[at].iter().find(|cells| Some(cells.0) == axis);
        let Some((axis, cells)) = cells else { return Found { axis: None, places: vec![Place::Unknown] } };
        let groups = cells.iter().map(|cell| match cell {
            Cell::Group(group) => Some(&self.table.groups[*group as usize][..]),
            _ => None,
        });
        // One that is asked for goes before all others.
        let alike = |tensor| if only == Some(tensor) { u64::MAX } else { self.similarity(at, tensor) };
        let chosen = choose(groups.collect(), &alike, self.source.tensors());
        let place = |(cell, chosen): (&Cell, Option<LineAt>)| match (cell, chosen) {
            (_, Some(found)) => Place::At {
                tensor: found.tensor as usize,
                axis: Some(found.axis as usize),
                index: line_index(
                    &self.source.tensors()[found.tensor as usize].shape,
                    found.axis as usize,
                    found.line,
                ),
            },
            (Cell::Constant(0), _) => Place::Zeros,
            _ => Place::Unknown,
        };
        Found { axis: Some(*axis), places: cells.iter().zip(chosen).map(place).collect() }
    }

    /// Looks the elements of a target tensor up one by one in those source tensors.
    pub(super) fn find_elements(&self, at: usize, among: &[usize]) -> Result<Option<Found>, Errors> {
        let tensor = &self.target.tensors()[at];
        let sum =
            |tensors: &[usize]| tensors.iter().map(|&at| self.source.tensors()[at].elements()).sum::<u64>();
        if !is_usable(tensor) || tensor.elements() > SINGLE / 4 {
            return Ok(None);
        }
        let fits = |&&source: &&usize| {
            let other = &self.source.tensors()[source];
            is_usable(other)
                && (other.dtype == tensor.dtype
                    || (other.dtype.is_computable() && tensor.dtype.is_computable()))
                && other.elements() <= SINGLE / 4
        };
        let among: Vec<usize> = among.iter().filter(fits).copied().collect();
        if sum(&among) > SINGLE {
            return Ok(None);
        }
        let wanted = self.target.all(at, tensor.dtype)?;
        let mut counts: HashMap<u64, u64> = HashMap::default();
        wanted.iter().for_each(|value| *counts.entry(value).or_default() += 1);
        let mut by_value: HashMap<u64, Vec<LineAt>> = HashMap::default();
        for &source in &among {
            let values = self.source.all(source, tensor.dtype)?;
            // One holds the other: all that is shared must be the whole of one of them.
            let mut own: HashMap<u64, u64> = HashMap::default();
            values.iter().for_each(|value| *own.entry(value).or_default() += 1);
            let inside = own.keys().all(|value| counts.contains_key(value));
            let around = counts.keys().all(|value| *value == 0 || own.contains_key(value));
            let shared = own.keys().filter(|value| **value != 0 && counts.contains_key(value)).count();
            if !(inside || around || shared * 8 > own.len().min(counts.len())) || shared == 0 {
                continue;
            }
            for (place, value) in values.iter().enumerate().filter(|(_, value)| counts.contains_key(value)) {
                let found = LineAt { tensor: source as u32, axis: u8::MAX, line: place as u64 };
                by_value.entry(value).or_default().push(found);
            }
        }
        let groups = wanted.iter().map(|value| by_value.get(&value).map(Vec::as_slice)).collect();
        let chosen = choose(groups, &|tensor| self.similarity(at, tensor), self.source.tensors());
        let places = wanted.iter().zip(chosen).map(|(value, chosen)| match chosen {
            Some(found) => {
                let shape = &self.source.tensors()[found.tensor as usize].shape;
                let index = line_index(shape, usize::MAX, found.line);
                Place::At { tensor: found.tensor as usize, axis: None, index }
            }
            None if value == 0 => Place::Zeros,
            None => Place::Unknown,
        });
        Ok(Some(Found { axis: None, places: places.collect() }))
    }

    /// Returns how alike the names of a target and a source tensor are, up to 1000.
    pub(super) fn similarity(&self, target: usize, source: usize) -> u64 {
        similarity(&self.target.tensors()[target].key, &self.source.tensors()[source].key)
    }

    /// Returns the order of the elements along lines: for each index along the target's axis the index along the source's.
    pub(super) fn alignment(
        &self,
        pairs: &[(usize, u64, usize, u64)],
        (target_axis, source_axis): (usize, usize),
    ) -> Result<Option<Vec<u64>>, Errors> {
        let mut candidates: Option<Vec<Vec<u64>>> = None;
        for &(target, target_line, source, source_line) in pairs {
            let dtype = self.target.tensors()[target].dtype;
            let wanted = self.target.line(target, dtype, target_axis, target_line)?;
            let found = self.source.line(source, dtype, source_axis, source_line)?;
            if wanted == found && candidates.is_none() {
                // Order that is the same in one line is, or later lines contradict it.
                return self.same_order(pairs, target_axis, source_axis, wanted.len() as u64);
            }
            let mut places: HashMap<u64, Vec<u64>> = HashMap::default();
            found
                .iter()
                .enumerate()
                .for_each(|(at, &value)| places.entry(value).or_default().push(at as u64));
            let here: Option<Vec<Vec<u64>>> = wanted.iter().map(|value| places.get(value).cloned()).collect();
            let Some(here) = here else { return Ok(None) };
            candidates = Some(match candidates {
                None => here,
                Some(before) => before
                    .into_iter()
                    .zip(here)
                    .map(|(before, here)| before.into_iter().filter(|at| here.contains(at)).collect())
                    .collect(),
            });
        }
        let Some(candidates) = candidates else { return Ok(None) };
        let mut used = HashSet::new();
        let mut order = Vec::with_capacity(candidates.len());
        for places in &candidates {
            let next = order.last().map(|last| last + 1);
            let free = |at: &&u64| !used.contains(*at);
            let chosen = places.iter().filter(free).find(|at| Some(**at) == next);
            let Some(&chosen) = chosen.or_else(|| places.iter().find(free)) else { return Ok(None) };
            used.insert(chosen);
            order.push(chosen);
        }
        Ok(Some(order))
    }

    fn same_order(
        &self,
        pairs: &[(usize, u64, usize, u64)],
        target_axis: usize,
        source_axis: usize,
        length: u64,
    ) -> Result<Option<Vec<u64>>, Errors> {
        for &(target, target_line, source, source_line) in &pairs[1..] {
            let dtype = self.target.tensors()[target].dtype;
            let wanted = self.target.line(target, dtype, target_axis, target_line)?;
            if wanted != self.source.line(source, dtype, source_axis, source_line)? {
                return self.alignment(&pairs[1..], (target_axis, source_axis));
            }
        }
        Ok(Some((0..length).collect()))
    }
}

impl Table {
    fn add(&mut self, tensor: usize, lines: &Lines) {
        for (line, (print, constant)) in lines.prints.iter().zip(&lines.constant).enumerate() {
            if constant.is_some() && *constant == Some(0) {
                continue;
            }
            let group = *self.by_print.entry(*print).or_insert(self.groups.len() as u32);
            if group as usize == self.groups.len() {
                self.groups.push(Vec::new());
            }
            let found = LineAt { tensor: tensor as u32, axis: lines.axis as u8, line: line as u64 };
            let group = &mut self.groups[group as usize];
            if !group.contains(&found) && group.len() < 256 {
                group.push(found);
            }
        }
    }

    fn look_up(&self, lines: &Lines) -> Vec<Cell> {
        let of = |(print, constant): (&u64, &Option<u64>)| match (self.by_print.get(print), constant) {
            (_, Some(0)) => Cell::Constant(0),
            (Some(group), _) => Cell::Group(*group),
            (None, Some(value)) => Cell::Constant(*value),
            (None, None) => Cell::Unknown,
        };
        lines.prints.iter().zip(&lines.constant).map(of).collect()
    }
}

/// Chooses one of several like lines for each place: in the tensor that has most of them, then in the one whose name is
/// most alike, and there the one that goes on as before.
fn choose(
    groups: Vec<Option<&[LineAt]>>,
    similarity: &dyn Fn(usize) -> u64,
    tensors: &[TensorMeta],
) -> Vec<Option<LineAt>> {
    let mut votes: HashMap<(u32, u8), u64> = HashMap::default();
    for group in groups.iter().flatten() {
        let mut here: Vec<(u32, u8)> = group.iter().map(|found| (found.tensor, found.axis)).collect();
        here.sort_unstable();
        here.dedup();
        here.into_iter().for_each(|found| *votes.entry(found).or_default() += 1);
    }
    // A tensor that is held as a whole goes before one that merely has such values too.
    let rank: HashMap<(u32, u8), (u64, u64, u64)> = votes
        .iter()
        .map(|(&(tensor, axis), &votes)| {
            let elements = tensors[tensor as usize].elements();
            let all = match tensors[tensor as usize].shape.get(axis as usize) {
                Some(&length) => elements / length.max(1),
                None => elements,
            };
            let share = (votes * 100 / all.max(1)).min(100);
            ((tensor, axis), (share, votes, similarity(tensor as usize)))
        })
        .collect();
    let mut last: Option<(LineAt, i64)> = None;
    let mut chosen = Vec::with_capacity(groups.len());
    for group in groups {
        let best = group.and_then(|group| {
            group.iter().max_by_key(|found| {
                let goes_on = last.map(|(last, step)| {
                    let same = (last.tensor, last.axis) == (found.tensor, found.axis);
                    let moved = found.line as i64 - last.line as i64;
                    (same && moved == step, same && moved == 1)
                });
                let (share, votes, alike) =
                    rank.get(&(found.tensor, found.axis)).copied().unwrap_or_default();
                (share, goes_on, votes, alike, std::cmp::Reverse(found.line))
            })
        });
        if let (Some(best), Some((before, _))) = (best, last) {
            last = Some((*best, best.line as i64 - before.line as i64));
        } else if let Some(best) = best {
            last = Some((*best, 1));
        }
        chosen.push(best.copied());
    }
    chosen
}

fn is_usable(tensor: &TensorMeta) -> bool {
    is_plain(tensor.dtype) && tensor.elements() > 0
}

/// Returns how many words two names share, up to 1000.
pub(super) fn similarity(a: &str, b: &str) -> u64 {
    let words = |name: &str| -> Vec<String> {
        let parts = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
        parts.map(str::to_ascii_lowercase).collect()
    };
    let (a, mut b) = (words(a), words(b));
    let all = (a.len() + b.len()) as u64;
    let mut shared = 0;
    for word in &a {
        if let Some(at) = b.iter().position(|other| other == word) {
            b.remove(at);
            shared += 2000;
        } else if let Some(at) = b.iter().position(|other| other.starts_with(word) || word.starts_with(other))
        {
            b.remove(at);
            shared += 1000;
        }
    }
    shared / all.max(1)
}
