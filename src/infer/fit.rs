//! Blocks that fit each other: digits cut to common sizes, and what only one side has made a block of its own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::blocks::{Block, Digit};
use super::content::Elements;
use super::express::{End, Model, place, span, start};
use crate::catalog::row_major;

/// Whether something holds of an element: all elements, its place, its index along an axis, and the axis's stride.
type Holds<'a> = dyn Fn(&Elements, usize, u64, u64) -> bool + 'a;

impl Model<'_> {
    /// Cuts digits until those that stand on one axis of a tensor, or in tied parts, are of equal sizes.
    pub(super) fn refine(&mut self) {
        for _ in 0..64 {
            let mut cuts: Vec<(usize, usize, u64)> = Vec::new();
            for end in [End::Source, End::Target] {
                for group in self.groups(end) {
                    let blocks = match end {
                        // Tied parts too.
                        End::Source => (0..self.blocks.len())
                            .filter(|at| self.blocks[*at].source == Some(group))
                            .collect(),
                        End::Target => self.blocks_of(end, group),
                    };
                    for axis in 0..self.shape(end, group).len() {
                        self.cuts(end, axis, &blocks, &mut cuts);
                    }
                }
            }
            let Some(&(block, digit, inner)) = cuts.first() else { return };
            self.cut(block, digit, inner);
        }
    }

    fn cuts(&self, end: End, axis: usize, blocks: &[usize], cuts: &mut Vec<(usize, usize, u64)>) {
        for &block in blocks {
            let like = |other: &&usize| {
                span(&self.blocks[**other].digits, end, axis) == span(&self.blocks[block].digits, end, axis)
                    && start(&self.blocks[**other], end, axis) == start(&self.blocks[block], end, axis)
            };
            let steps: BTreeSet<u64> = blocks
                .iter()
                .filter(like)
                .flat_map(|other| &self.blocks[*other].digits)
                .filter_map(|digit| place(digit, end).filter(|(at, _)| *at == axis).map(|(_, step)| step))
                .collect();
            for (at, digit) in self.blocks[block].digits.iter().enumerate() {
                let Some((_, step)) = place(digit, end).filter(|(of, _)| *of == axis) else { continue };
                let cut = steps.iter().find(|cut| {
                    **cut > step
                        && **cut < step * digit.size
                        && cut.is_multiple_of(step)
                        && digit.size.is_multiple_of(**cut / step)
                });
                cuts.extend(cut.map(|cut| (block, at, cut / step)));
            }
        }
    }

    /// Cuts a digit in two, the inner one of that size.
    pub(super) fn cut(&mut self, block: usize, digit: usize, inner: u64) {
        let Some(whole) = self.blocks.get(block).and_then(|block| block.digits.get(digit)).copied() else {
            return;
        };
        let outward = |place: Option<(usize, u64)>| place.map(|(axis, step)| (axis, step * inner));
        let outer =
            Digit { size: whole.size / inner, target: outward(whole.target), source: outward(whole.source) };
        self.blocks[block].digits[digit] = Digit { size: inner, ..whole };
        self.blocks[block].digits.insert(digit, outer);
    }

    /// Gives target tensors of zeros, which have no source to tell their sizes, the axes of a tensor beside them.
    pub(super) fn lend_axes(&mut self) {
        for zeros in (0..self.blocks.len()).filter(|at| self.blocks[*at].source.is_none()).collect::<Vec<_>>()
        {
            let Some(group) = self.blocks[zeros].target else { continue };
            if self.blocks_of(End::Target, group).len() > 1 {
                continue;
            }
            let indices = self.target.groups[group].lists.len();
            let mut at = 0;
            while at < self.blocks[zeros].digits.len() {
                if self.blocks[zeros].digits[at].target.is_some_and(|(axis, _)| axis < indices) {
                    at += 1;
                    continue;
                }
                let size = self.blocks[zeros].digits[at].size;
                let lent = self.neighbours(group).into_iter().find_map(|block| {
                    let of = self.blocks[block].target?;
                    let slots = self.target.groups[of].lists.len();
                    let shape = &self.target_shapes[of];
                    let axis = (slots..shape.len()).find(|axis| {
                        shape[*axis] == size && self.tiles(block, End::Target, *axis, size).is_some()
                    })?;
                    Some((block, self.tiles(block, End::Target, axis, size)?))
                });
                let Some((block, digits)) = lent else {
                    self.open.push((zeros, at));
                    at += 1;
                    continue;
                };
                for (place, &digit) in digits.iter().enumerate() {
                    if place + 1 < digits.len() {
                        let rest = digits[place + 1..]
                            .iter()
                            .map(|at| self.blocks[block].digits[*at].size)
                            .product();
                        self.cut(zeros, at, rest);
                    }
                    self.lent.push(((block, digit), (zeros, at)));
                    at += 1;
                }
            }
        }
    }

    /// Returns the blocks of other target groups, those of names that are most alike first.
    fn neighbours(&self, group: usize) -> Vec<usize> {
        let own = &self.target.groups[group].skeleton;
        let alike = |block: &usize| {
            let other = self.blocks[*block].target.map_or("", |other| &self.target.groups[other].skeleton);
            own.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count()
        };
        let mut found: Vec<usize> =
            (0..self.blocks.len()).filter(|at| self.blocks[*at].source.is_some()).collect();
        found.retain(|block| {
            self.blocks[*block]
                .target
                .is_some_and(|other| self.target.groups[other].lists == self.target.groups[group].lists)
        });
        found.sort_by_key(|block| std::cmp::Reverse(alike(block)));
        found
    }

    /// Makes blocks of what source tensors hold and the target does not ask for: padding, and copies.
    pub(super) fn fill_gaps(&mut self) {
        for group in self.groups(End::Source) {
            let slots = self.source.groups[group].lists.len();
            let shape = self.source_shapes[group].clone();
            let blocks = self.blocks_of(End::Source, group);
            let whole =
                |block: usize, axis: usize| self.tiles(block, End::Source, axis, shape[axis]).is_some();
            let mut open =
                (slots..shape.len()).filter(|axis| blocks.iter().any(|block| !whole(*block, *axis)));
            if let (Some(axis), None) = (open.next(), open.next()) {
                drop(open);
                self.fill_axis(group, axis, shape[axis], blocks);
            }
        }
    }

    fn fill_axis(&mut self, group: usize, axis: usize, extent: u64, mut blocks: Vec<usize>) {
        blocks.sort_by_key(|block| start(&self.blocks[*block], End::Source, axis));
        let starts: Vec<u64> =
            blocks.iter().map(|block| start(&self.blocks[*block], End::Source, axis)).collect();
        let ends: Vec<u64> = blocks
            .iter()
            .zip(&starts)
            .map(|(block, start)| start + span(&self.blocks[*block].digits, End::Source, axis))
            .collect();
        if starts.iter().skip(1).zip(&ends).any(|(start, end)| start < end) {
            // Parts that lie one in the other are expressed as loops or not at all.
            return;
        }
        let mut gaps = Vec::new();
        for (at, &block) in blocks.iter().enumerate() {
            let next = starts.get(at + 1).copied().unwrap_or(extent);
            let length = next - starts[at];
            if self.tiles(block, End::Source, axis, ends[at] - starts[at]).is_none() {
                self.add_copies(group, block, axis, length);
            } else if ends[at] < next && self.are_zeros(group, axis, ends[at], next - ends[at]) {
                gaps.push((block, ends[at], next - ends[at]));
            } else if ends[at] < next {
                self.add_copies(group, block, axis, length);
            }
        }
        if let Some(first) = starts.first().filter(|start| **start > 0)
            && self.are_zeros(group, axis, 0, *first)
        {
            gaps.push((blocks[0], 0, *first));
        }
        for (near, begin, length) in gaps {
            let of = &self.blocks[near];
            let others = of.digits.iter().filter(|digit| digit.source.is_some_and(|(at, _)| at != axis));
            let mut digits: Vec<Digit> = others.map(|digit| Digit { target: None, ..*digit }).collect();
            if length > 1 {
                digits.push(Digit { size: length, target: None, source: Some((axis, 1)) });
            }
            let mut source_start = of.source_start.clone();
            source_start[axis] = begin;
            self.twin.push(self.blocks.len());
            self.blocks.push(Block {
                target: None,
                source: Some(group),
                target_start: Vec::new(),
                source_start,
                digits,
                tensors: None,
            });
        }
    }

    /// Adds digits that a block lacks on an axis: the source holds it several times.
    fn add_copies(&mut self, group: usize, block: usize, axis: usize, extent: u64) {
        let begin = start(&self.blocks[block], End::Source, axis);
        let mut own: Vec<(u64, u64)> = self.blocks[block]
            .digits
            .iter()
            .filter_map(|digit| {
                digit.source.filter(|(at, _)| *at == axis).map(|(_, step)| (step, digit.size))
            })
            .collect();
        own.sort_unstable();
        let mut step = 1;
        let mut copies = Vec::new();
        for (next, size) in own.into_iter().chain([(extent, 1)]) {
            if next > step && next.is_multiple_of(step) {
                copies.push(Digit { size: next / step, target: None, source: Some((axis, step)) });
            }
            step = next * size;
        }
        // The index of the first copy, for each index along the axis.
        let first = |at: u64| {
            let inside = at.checked_sub(begin).filter(|at| *at < extent)?;
            let over: u64 = copies
                .iter()
                .filter_map(|digit| Some(inside / digit.source?.1 % digit.size * digit.source?.1))
                .sum();
            (over > 0).then(|| at - over)
        };
        if self.is_same(group, axis, &first) {
            self.blocks[block].digits.extend(copies);
        }
    }

    fn are_zeros(&self, group: usize, axis: usize, begin: u64, length: u64) -> bool {
        self.every(group, axis, &|values, place, at, _| {
            !(begin..begin + length).contains(&at) || values.get(place) == Some(0)
        })
    }

    fn is_same(&self, group: usize, axis: usize, first: &dyn Fn(u64) -> Option<u64>) -> bool {
        self.every(group, axis, &|values, place, at, stride| match first(at) {
            Some(other) => values.get(place) == values.get(place - ((at - other) * stride) as usize),
            None => true,
        })
    }

    /// Returns whether something holds of every element of a source group: it is told all elements, the element's place,
    /// its index along an axis and the axis's stride.
    fn every(&self, group: usize, axis: usize, holds: &Holds<'_>) -> bool {
        let of = &self.source.groups[group];
        of.tensors.iter().all(|&tensor| {
            let meta = &self.content.tensors()[tensor];
            let Some(dim) = axis.checked_sub(of.lists.len()).filter(|dim| *dim < meta.shape.len()) else {
                return false;
            };
            let stride = row_major(&meta.shape)[dim];
            let Ok(values) = self.content.all(tensor, meta.dtype) else { return false };
            (0..values.len())
                .all(|place| holds(&values, place, place as u64 / stride % meta.shape[dim], stride))
        })
    }

    /// Cuts blocks that stand side by side with others of a part of their size, as query heads beside fewer key heads.
    pub(super) fn cut_sums(&mut self, configs: &BTreeMap<End, Value>) {
        for end in [End::Source, End::Target] {
            for group in self.groups(end) {
                let shape = self.shape(end, group).to_vec();
                let slots = self.side(end).groups[group].lists.len();
                for (axis, &extent) in shape.iter().enumerate().skip(slots) {
                    self.cut_axis(end, axis, &self.blocks_of(end, group), extent, configs);
                }
            }
        }
    }

    fn cut_axis(
        &mut self,
        end: End,
        axis: usize,
        blocks: &[usize],
        extent: u64,
        configs: &BTreeMap<End, Value>,
    ) {
        if blocks.iter().all(|block| self.tiles(*block, end, axis, extent).is_some()) {
            return;
        }
        let innermost = |block: &usize| {
            let digits = self.blocks[*block].digits.iter().enumerate();
            let own = digits.filter(|(_, digit)| place(digit, end).is_some_and(|(at, _)| at == axis));
            let (at, digit) = own.min_by_key(|(_, digit)| place(digit, end).map(|(_, step)| step))?;
            let around = self.blocks[*block]
                .digits
                .iter()
                .filter(|digit| place(digit, end).is_some_and(|(on, _)| on == axis));
            let all: u64 = around.map(|digit| digit.size).product();
            Some((*block, at, digit.size, all / digit.size))
        };
        let inner: Vec<(usize, usize, u64, u64)> = blocks.iter().filter_map(innermost).collect();
        let Some(least) = inner.iter().map(|(_, _, size, _)| *size).min() else { return };
        let count = |block: &usize| {
            let digits = self.blocks[*block].digits.iter();
            digits.filter(|digit| place(digit, end).is_some_and(|(at, _)| at == axis)).count()
        };
        // Parts that are cut in other ways already, as by a partial rotary order, are no heads beside heads.
        let alike = blocks.iter().all(|block| count(block) == count(&blocks[0]));
        if !alike || least < 2 || inner.iter().all(|(_, _, size, _)| *size == least) {
            return;
        }
        let heads = |count: u64| {
            configs.values().any(|config| super::roles::head_key(config, count, false).is_some())
        };
        // A size of heads that both counts of heads in the config agree on, else the smaller part itself.
        let width = (1..=least).find(|width| {
            inner.iter().all(|(_, _, size, outer)| size.is_multiple_of(*width) && heads(size / width * outer))
        });
        let width = width.unwrap_or(least);
        for (block, digit, size, _) in inner {
            if size > width && size.is_multiple_of(width) {
                self.cut(block, digit, width);
            }
        }
    }
}
