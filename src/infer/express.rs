//! Blocks → expressions: what each group of tensors holds, on either side.

use std::collections::BTreeSet;

use super::blocks::{Block, Digit, Side, Solved};
use super::content::Content;

/// One of the two checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Source,
    Target,
}

/// A digit of a block.
pub(super) type DigitAt = (usize, usize);

/// A part of a stored axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Digits that are one axis, of each block around.
    Digit(Vec<DigitAt>),
    Sum(Vec<Term>),
}

/// A block of a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) nodes: Vec<Node>,
    /// The block, where it is one alone.
    pub(super) block: Option<usize>,
}

/// What a group of tensors holds.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// The blocks, each parameter once.
    pub(super) blocks: Vec<usize>,
    /// For each index of the name the digits that it is; empty where both sides have it.
    pub(super) slots: Vec<Vec<DigitAt>>,
    /// For each stored axis what it is composed of.
    pub(super) axes: Vec<Vec<Node>>,
}

/// Everything that was solved.
pub(super) struct Model<'a> {
    /// The source's elements.
    pub(super) content: &'a Content<'a>,
    pub(super) source: &'a Side,
    pub(super) target: &'a Side,
    /// The shape of a tensor of each group in which blocks were found, its indices first.
    pub(super) source_shapes: Vec<Vec<u64>>,
    pub(super) target_shapes: Vec<Vec<u64>>,
    pub(super) blocks: Vec<Block>,
    /// For each block the first that is the same part of the source.
    pub(super) twin: Vec<usize>,
    /// Source group, index of the target's name, index of the source's, target group.
    pub(super) shared: BTreeSet<(usize, usize, usize, usize)>,
    /// Digits whose axes digits of zeros take over.
    pub(super) lent: Vec<(DigitAt, DigitAt)>,
    /// Digits of zeros whose size no other tensor tells.
    pub(super) open: Vec<DigitAt>,
}

/// Why a group has no expression.
#[derive(Clone, Debug)]
pub(super) struct Inexpressible {
    pub(super) end: End,
    pub(super) group: usize,
    pub(super) why: String,
    /// An index of its names that may be none.
    pub(super) slot: Option<usize>,
}

impl<'a> Model<'a> {
    pub(super) fn new(
        content: &'a Content<'a>,
        (source, target): (&'a Side, &'a Side),
        (source_shapes, target_shapes): (Vec<Vec<u64>>, Vec<Vec<u64>>),
        solved: impl IntoIterator<Item = (usize, Solved)>,
    ) -> Model<'a> {
        let mut model = Model {
            content,
            source,
            target,
            source_shapes,
            target_shapes,
            blocks: Vec::new(),
            twin: Vec::new(),
            shared: BTreeSet::new(),
            lent: Vec::new(),
            open: Vec::new(),
        };
        for (group, solved) in solved {
            model.blocks.extend(solved.blocks);
            model.shared.extend(solved.shared.into_iter().map(|(of, own, other)| (of, own, other, group)));
        }
        model.find_twins();
        model
    }

    fn find_twins(&mut self) {
        let region = |block: &Block| -> Option<(usize, Vec<u64>, Vec<u64>)> {
            let spans = (0..block.source_start.len()).map(|axis| span(&block.digits, End::Source, axis));
            Some((block.source?, block.source_start.clone(), spans.collect()))
        };
        let regions: Vec<_> = self.blocks.iter().map(region).collect();
        self.twin = (0..self.blocks.len())
            .map(|at| match &regions[at] {
                Some(_) => regions.iter().position(|other| *other == regions[at]).unwrap_or(at),
                None => at,
            })
            .collect();
    }

    pub(super) fn shape(&self, end: End, group: usize) -> &[u64] {
        match end {
            End::Source => &self.source_shapes[group],
            End::Target => &self.target_shapes[group],
        }
    }

    pub(super) fn side(&self, end: End) -> &Side {
        match end {
            End::Source => self.source,
            End::Target => self.target,
        }
    }

    /// Returns the blocks of a group; of those that are the same part of the source the first.
    pub(super) fn blocks_of(&self, end: End, group: usize) -> Vec<usize> {
        let of = |at: &usize| match end {
            End::Source => self.blocks[*at].source == Some(group) && self.twin[*at] == *at,
            End::Target => self.blocks[*at].target == Some(group),
        };
        (0..self.blocks.len()).filter(of).collect()
    }

    /// Returns whether a block stands for nothing but zeros beside other parts of its tensor.
    pub(super) fn is_padding(&self, block: usize) -> bool {
        let of = &self.blocks[block];
        match (of.source, of.target) {
            (Some(_), Some(_)) => false,
            // Zeros that fill a tensor stand for a parameter that the source lacks.
            (None, Some(target)) => {
                self.blocks_of(End::Target, target).iter().any(|at| self.blocks[*at].source.is_some())
            }
            _ => true,
        }
    }

    /// Returns the groups that blocks are of.
    pub(super) fn groups(&self, end: End) -> BTreeSet<usize> {
        let of = |block: &Block| match end {
            End::Source => block.source,
            End::Target => block.target,
        };
        self.blocks.iter().filter_map(of).collect()
    }

    /// Returns whether an index of a group's names is one of the other side's names too.
    pub(super) fn is_shared(&self, end: End, group: usize, slot: usize) -> bool {
        self.shared.iter().any(|(source, own, other, target)| match end {
            End::Source => (*source, *other) == (group, slot),
            End::Target => (*target, *own) == (group, slot),
        })
    }

    /// Expresses a group.
    pub(super) fn rule(&self, end: End, group: usize) -> Result<Rule, Inexpressible> {
        let fail = |why: String, slot| Inexpressible { end, group, why, slot };
        let blocks = self.blocks_of(end, group);
        let shape = self.shape(end, group);
        let slots = self.side(end).groups[group].lists.len();
        let mut rule = Rule { blocks: blocks.clone(), slots: Vec::new(), axes: Vec::new() };
        let is_whole = |block: usize, axis: usize| {
            start(&self.blocks[block], end, axis) == 0 && self.tiles(block, end, axis, shape[axis]).is_some()
        };
        for (slot, &count) in shape.iter().enumerate().take(slots) {
            if self.is_shared(end, group, slot) {
                rule.slots.push(Vec::new());
                continue;
            }
            let one = |block: &usize| {
                let digits = self.tiles(*block, end, slot, count)?;
                (digits.len() == 1 && is_whole(*block, slot)).then(|| (*block, digits[0]))
            };
            let Some(digits) = blocks.iter().map(one).collect() else {
                return Err(fail("a number in its name is no index".into(), Some(slot)));
            };
            rule.slots.push(digits);
        }
        let summed: Vec<usize> =
            (slots..shape.len()).filter(|axis| blocks.iter().any(|block| !is_whole(*block, *axis))).collect();
        if summed.len() > 1 {
            return Err(fail("its parts lie side by side along two axes".into(), None));
        }
        if summed.is_empty() && blocks.len() != 1 {
            return Err(fail("several parts are one and the same place".into(), None));
        }
        for (axis, &extent) in shape.iter().enumerate().skip(slots) {
            if summed.contains(&axis) {
                let parts = blocks.iter().map(|&block| Part::new(self, block, end, axis)).collect();
                match compose(parts, 0, extent) {
                    Ok(nodes) => rule.axes.push(nodes),
                    Err(why) => {
                        return Err(fail(why, (0..slots).find(|slot| !self.is_shared(end, group, *slot))));
                    }
                }
                continue;
            }
            let mut nodes: Vec<Node> = Vec::new();
            for &block in &blocks {
                let digits = self.tiles(block, end, axis, extent).unwrap_or_default();
                if nodes.is_empty() {
                    nodes = digits.iter().map(|_| Node::Digit(Vec::new())).collect();
                }
                if nodes.len() != digits.len() {
                    return Err(fail("its parts have other axes each".into(), None));
                }
                for (node, digit) in nodes.iter_mut().zip(digits) {
                    if let Node::Digit(all) = node {
                        all.push((block, digit));
                    }
                }
            }
            rule.axes.push(nodes);
        }
        Ok(rule)
    }

    /// Returns the digits of a block along an axis, slowest first, if they step through all of `extent`.
    pub(super) fn tiles(&self, block: usize, end: End, axis: usize, extent: u64) -> Option<Vec<usize>> {
        let part = Part::new(self, block, end, axis);
        let mut rest = extent;
        for &(_, size, step) in &part.digits {
            if size * step != rest {
                return None;
            }
            rest = step;
        }
        (rest == 1).then(|| part.digits.iter().map(|(at, ..)| *at).collect())
    }
}

/// Returns where a digit is on a side.
pub(super) fn place(digit: &Digit, end: End) -> Option<(usize, u64)> {
    match end {
        End::Source => digit.source,
        End::Target => digit.target,
    }
}

pub(super) fn start(block: &Block, end: End, axis: usize) -> u64 {
    let start = match end {
        End::Source => &block.source_start,
        End::Target => &block.target_start,
    };
    start.get(axis).copied().unwrap_or_default()
}

/// Returns how far digits reach along an axis.
pub(super) fn span(digits: &[Digit], end: End, axis: usize) -> u64 {
    let places = digits.iter().filter_map(|digit| place(digit, end).map(|(at, step)| (at, step, digit.size)));
    1 + places.filter(|(at, ..)| *at == axis).map(|(_, step, size)| (size - 1) * step).sum::<u64>()
}

/// A block along one axis.
#[derive(Clone, Debug)]
struct Part {
    block: usize,
    start: u64,
    /// Number, size and step, slowest first.
    digits: Vec<(usize, u64, u64)>,
}

impl Part {
    fn new(model: &Model<'_>, block: usize, end: End, axis: usize) -> Part {
        let all = model.blocks[block].digits.iter().enumerate();
        let mut digits: Vec<(usize, u64, u64)> = all
            .filter_map(|(at, digit)| {
                place(digit, end).filter(|(of, _)| *of == axis).map(|(_, step)| (at, digit.size, step))
            })
            .collect();
        digits.sort_by_key(|(_, _, step)| std::cmp::Reverse(*step));
        Part { block, start: start(&model.blocks[block], end, axis), digits }
    }

    fn end(&self) -> u64 {
        self.start + 1 + self.digits.iter().map(|(_, size, step)| (size - 1) * step).sum::<u64>()
    }
}

/// Composes parts that fill `extent` places from `base`.
fn compose(mut parts: Vec<Part>, base: u64, extent: u64) -> Result<Vec<Node>, String> {
    if let [part] = &parts[..] {
        let mut rest = extent;
        for &(_, size, step) in &part.digits {
            if size * step != rest {
                return Err("some of it is in no other tensor".into());
            }
            rest = step;
        }
        if rest != 1 || part.start != base {
            return Err("some of it is in no other tensor".into());
        }
        return Ok(part.digits.iter().map(|(digit, ..)| Node::Digit(vec![(part.block, *digit)])).collect());
    }
    let outer = parts.first().and_then(|part| part.digits.first()).map(|(_, size, step)| (*size, *step));
    if let Some((size, step)) = outer
        && size * step == extent
        && parts.iter().all(|part| part.digits.first().is_some_and(|(_, n, s)| (*n, *s) == (size, step)))
    {
        let digits = parts.iter_mut().map(|part| (part.block, part.digits.remove(0).0)).collect();
        let mut nodes = vec![Node::Digit(digits)];
        nodes.extend(compose(parts, base, step)?);
        return Ok(nodes);
    }
    parts.sort_by_key(|part| part.start);
    let mut clusters: Vec<(u64, u64, Vec<Part>)> = Vec::new();
    for part in parts {
        match clusters.last_mut() {
            Some((_, end, cluster)) if part.start < *end => {
                *end = (*end).max(part.end());
                cluster.push(part);
            }
            _ => clusters.push((part.start, part.end(), vec![part])),
        }
    }
    if clusters.len() < 2 {
        return Err("its parts overlap".into());
    }
    let mut terms = Vec::new();
    let mut position = base;
    for (start, end, cluster) in clusters {
        if start != position {
            return Err("some of it is in no other tensor".into());
        }
        position = end;
        let block = if let [part] = &cluster[..] { Some(part.block) } else { None };
        terms.push(Term { nodes: compose(cluster, start, end - start)?, block });
    }
    if position != base + extent {
        return Err("some of it is in no other tensor".into());
    }
    Ok(vec![Node::Sum(terms)])
}
