//! Digits that are one axis, and what the axes are called.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::express::{DigitAt, End, Model, Node, Rule, place};
use crate::mapping::role::AxisRole;

/// The rules of both sides, by group.
pub(super) type Rules = BTreeMap<(End, usize), Rule>;

/// An axis of the mapping to be written.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) name: String,
    /// A size that belongs to the layout and not to the model.
    pub(super) size: Option<u64>,
    /// Whether each parameter has a size of its own.
    pub(super) per_parameter: bool,
    /// The two axes that it is composed of.
    pub(super) is: Option<(String, String)>,
    /// The size in these checkpoints, where it is one.
    pub(super) here: Option<u64>,
    /// The entry of each side's config that tells it.
    pub(super) config: BTreeMap<End, String>,
    /// What it is, as the names in the checkpoints and the configs' entries say.
    pub(super) role: Option<AxisRole>,
}

/// The axes of all digits.
pub(super) struct Axes {
    pub(super) axes: Vec<Axis>,
    pub(super) first: Vec<usize>,
    pub(super) of: Vec<usize>,
    pub(super) lists: (usize, usize),
}

impl Axes {
    /// Returns the axis of a digit.
    pub(super) fn digit(&self, (block, digit): DigitAt) -> &Axis {
        &self.axes[self.of[self.first[block] + digit]]
    }

    /// Puts the name of a composed axis in the place of those that it is composed of.
    pub(super) fn composed(&self, mut names: Vec<String>) -> Vec<String> {
        for axis in &self.axes {
            let Some((outer, inner)) = &axis.is else { continue };
            let pair = |pair: &[String]| pair[0] == *outer && pair[1] == *inner;
            while let Some(at) = names.windows(2).position(pair) {
                names.splice(at..at + 2, [axis.name.clone()]);
            }
        }
        names
    }

    /// Returns the axis that a list counts.
    pub(super) fn list(&self, end: End, list: usize) -> &Axis {
        let base = match end {
            End::Source => self.lists.0,
            End::Target => self.lists.1,
        };
        &self.axes[self.of[base + list]]
    }
}

/// What is one axis.
pub(super) struct Union {
    pub(super) parent: Vec<usize>,
    /// The block of each digit; no two digits of one block are one axis.
    blocks: Vec<BTreeSet<usize>>,
}

impl Union {
    pub(super) fn root(&self, mut at: usize) -> usize {
        while self.parent[at] != at {
            at = self.parent[at];
        }
        at
    }

    /// Joins two; returns false where a parameter would have one axis twice.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return true;
        }
        if !self.blocks[a].is_disjoint(&self.blocks[b]) {
            return false;
        }
        let moved = std::mem::take(&mut self.blocks[b]);
        self.blocks[a].extend(moved);
        self.parent[b] = a;
        true
    }
}

/// The digits and lists of a model, as axes.
pub(super) struct Namer<'m, 'a> {
    pub(super) model: &'m Model<'a>,
    pub(super) rules: &'m Rules,
    pub(super) configs: &'m BTreeMap<End, Value>,
    pub(super) union: Union,
    pub(super) first: Vec<usize>,
    pub(super) lists: (usize, usize),
    /// Digits that share a size with others because tensors do not tell it otherwise.
    pub(super) tied: BTreeSet<usize>,
}

/// Names all axes; `None` where a parameter would have one axis twice.
pub(super) fn name(model: &Model<'_>, rules: &Rules, configs: &BTreeMap<End, Value>) -> Option<Axes> {
    let mut first = Vec::new();
    let mut count = 0;
    for block in &model.blocks {
        first.push(count);
        count += block.digits.len();
    }
    let lists = (count, count + model.source.names.lists.len());
    let total = lists.1 + model.target.names.lists.len();
    let mut blocks = vec![BTreeSet::new(); total];
    for (block, at) in model
        .blocks
        .iter()
        .zip(&first)
        .enumerate()
        .flat_map(|(number, (block, at))| (0..block.digits.len()).map(move |digit| (number, at + digit)))
    {
        blocks[at].insert(block);
    }
    let union = Union { parent: (0..total).collect(), blocks };
    let mut namer = Namer { model, rules, configs, union, first, lists, tied: BTreeSet::new() };
    namer.join_necessary()?;
    namer.join_alike();
    Some(namer.finish())
}

impl Namer<'_, '_> {
    fn id(&self, (block, digit): DigitAt) -> usize {
        self.first[block] + digit
    }

    fn list_id(&self, end: End, list: usize) -> usize {
        list + if end == End::Source { self.lists.0 } else { self.lists.1 }
    }

    /// Joins what is written once in an expression, and what is one index of names on both sides.
    fn join_necessary(&mut self) -> Option<()> {
        for ((end, group), rule) in self.rules {
            for (slot, digits) in rule.slots.iter().enumerate() {
                let list = self.list_id(*end, self.model.side(*end).groups[*group].lists[slot]);
                for digit in digits {
                    self.union.join(list, self.id(*digit)).then_some(())?;
                }
            }
            for nodes in &rule.axes {
                self.join_nodes(nodes)?;
            }
        }
        for &(source, own, other, target) in &self.model.shared {
            let a = self.list_id(End::Source, self.model.source.groups[source].lists[other]);
            let b = self.list_id(End::Target, self.model.target.groups[target].lists[own]);
            self.union.join(a, b).then_some(())?;
        }
        for (from, to) in &self.model.lent {
            let (from, to) = (self.id(*from), self.id(*to));
            self.union.join(from, to).then_some(())?;
            // The size is one for both parameters.
            self.tied.insert(from);
        }
        for digit in &self.model.open {
            let id = self.id(*digit);
            self.tied.insert(id);
        }
        for (block, &twin) in self.model.twin.iter().enumerate().filter(|(block, twin)| block != *twin) {
            for (at, digit) in self.model.blocks[block].digits.iter().enumerate() {
                let same = self.model.blocks[twin].digits.iter().position(|other| {
                    other.source.is_some() && other.source == digit.source && other.size == digit.size
                });
                if let Some(same) = same {
                    self.union.join(self.id((twin, same)), self.id((block, at))).then_some(())?;
                }
            }
        }
        Some(())
    }

    fn join_nodes(&mut self, nodes: &[Node]) -> Option<()> {
        for node in nodes {
            match node {
                Node::Digit(all) => {
                    for digit in all {
                        self.union.join(self.id(all[0]), self.id(*digit)).then_some(())?;
                    }
                }
                Node::Sum(terms) => {
                    for term in terms {
                        self.join_nodes(&term.nodes)?;
                    }
                }
            }
        }
        Some(())
    }

    /// Joins axes of one size where nothing but a size that they share tells them: blocks of one sum, and what is cut
    /// alike in the same layers.
    fn join_alike(&mut self) {
        let rules: Vec<&Rule> = self.rules.values().collect();
        for rule in &rules {
            rule.axes.iter().for_each(|nodes| self.join_terms(nodes));
        }
        let mut known: BTreeMap<(u64, Vec<usize>, bool, bool), usize> = BTreeMap::new();
        for block in 0..self.model.blocks.len() {
            let context = self.context(block);
            for digit in 0..self.model.blocks[block].digits.len() {
                let id = self.id((block, digit));
                if self.is_whole((block, digit)) && !self.tied.contains(&id) {
                    continue;
                }
                let size = self.model.blocks[block].digits[digit].size;
                // Heads are not their size, whatever the numbers.
                let turned = self.turned((block, digit)).is_some();
                let key = (size, context.clone(), self.is_outer((block, digit)), turned);
                match known.get(&key) {
                    Some(&other) => _ = self.union.join(other, id),
                    None => _ = known.insert(key, id),
                }
            }
        }
    }

    fn join_terms(&mut self, nodes: &[Node]) {
        let Some(terms) = nodes.iter().find_map(|node| match node {
            Node::Sum(terms) => Some(terms),
            Node::Digit(_) => None,
        }) else {
            return;
        };
        let digits = |nodes: &[Node]| -> Vec<DigitAt> {
            nodes
                .iter()
                .rev()
                .map_while(|node| match node {
                    Node::Digit(all) => all.first().copied(),
                    Node::Sum(_) => None,
                })
                .collect()
        };
        let size = |(block, digit): DigitAt| self.model.blocks[block].digits[digit].size;
        for (at, term) in terms.iter().enumerate() {
            let own = digits(&term.nodes);
            let ids: Vec<usize> = own.iter().map(|digit| self.id(*digit)).collect();
            self.tied.extend(ids);
            for other in &terms[..at] {
                for (a, b) in digits(&other.nodes).into_iter().zip(&own) {
                    if size(a) != size(*b) {
                        break;
                    }
                    let (a, b) = (self.id(a), self.id(*b));
                    self.union.join(a, b);
                }
            }
        }
        terms.iter().for_each(|term| self.join_terms(&term.nodes));
    }

    /// Returns the lists that count the instances of a block.
    fn context(&self, block: usize) -> Vec<usize> {
        let of = &self.model.blocks[block];
        let (end, group) = match (of.target, of.source) {
            (Some(target), _) => (End::Target, target),
            (None, Some(source)) => (End::Source, source),
            (None, None) => return Vec::new(),
        };
        let lists = &self.model.side(end).groups[group].lists;
        let shared = (0..lists.len()).filter(|slot| self.model.is_shared(end, group, *slot));
        shared.map(|slot| self.union.root(self.list_id(end, lists[slot]))).collect()
    }

    /// Returns whether a digit is all of a stored axis on both sides.
    pub(super) fn is_whole(&self, (block, digit): DigitAt) -> bool {
        let of = &self.model.blocks[block];
        (of.target.is_none() || self.is_whole_on(End::Target, (block, digit)))
            && (of.source.is_none() || self.is_whole_on(End::Source, (block, digit)))
    }

    pub(super) fn is_whole_on(&self, end: End, (block, digit): DigitAt) -> bool {
        let of = &self.model.blocks[block];
        let group = if end == End::Source { of.source } else { of.target };
        let (Some(group), Some((axis, step))) = (group, place(&of.digits[digit], end)) else { return false };
        let slots = self.model.side(end).groups[group].lists.len();
        axis >= slots && step == 1 && self.model.shape(end, group)[axis] == of.digits[digit].size
    }
}
