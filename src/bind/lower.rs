//! A tensor's expression with all sizes known → rectangular blocks on the parameters' canonical coordinates.

use super::ids::{AxisId, ParamId};
use super::pair::{Label, Node, Pair, Part, Side};
use super::sizes::Var;
use super::unknowns::{Scopes, Unknowns};

/// One loop along a coordinate: `count` values, `weight` apart in the coordinate, `stride` elements apart in the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    /// The distance between neighbours in the coordinate.
    pub weight: u64,
    /// How many.
    pub count: u64,
    /// The distance between neighbours in the stored tensor, in elements.
    pub stride: u64,
}

/// Which values of one coordinate a block holds: `base` plus a sum over the factors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coordinate {
    /// The smallest value.
    pub base: u64,
    /// The loops.
    pub factors: Vec<Factor>,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Elements of a parameter.
    Param(ParamId),
    /// Zeros between the blocks of a block diagonal.
    Zero,
    /// Padding.
    Padding,
}

/// A rectangular block of a stored tensor. The blocks of a tensor tile it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What it holds.
    pub content: Content,
    /// Where its first element lies, in elements.
    pub offset: u64,
    /// For a parameter: one entry per coordinate.
    pub coordinates: Vec<Coordinate>,
    /// Loops along axes that the parameter lacks, as (count, stride): copies of the same elements.
    pub repeats: Vec<(u64, u64)>,
    /// Whether the block repeats elements under other indices of the tensor's name.
    pub is_copy: bool,
}

impl Block {
    /// Returns the number of stored elements.
    pub fn elements(&self) -> u64 {
        let factors =
            self.coordinates.iter().flat_map(|coordinate| &coordinate.factors).map(|factor| factor.count);
        factors.chain(self.repeats.iter().map(|(count, _)| *count)).product()
    }
}

/// A block before its axes are placed.
#[derive(Clone, Debug)]
struct Raw {
    label: Result<Label, Clash>,
    offset: u64,
    runs: Vec<(Vec<AxisId>, u64, u64)>,
}

/// Two labels in the sums of two axes.
#[derive(Clone, Copy, Debug)]
struct Clash;

/// A tensor's instance: what its name captured.
pub(crate) struct Instance<'a> {
    pub(crate) side: Side,
    pub(crate) rule: usize,
    /// Indices of the name's axes.
    pub(crate) indices: &'a [(AxisId, u64)],
    /// The scopes of each of the rule's parameters, in the rule's order.
    pub(crate) scopes: &'a [Scopes],
}

/// Why a tensor cannot be lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LowerError {
    /// A size is open.
    Open(Var),
    /// A product of sizes is beyond what a file can hold.
    Overflow,
}

impl From<Var> for LowerError {
    fn from(var: Var) -> LowerError {
        LowerError::Open(var)
    }
}

/// Returns the tensor's shape and its blocks. `strides` are those of a stored tensor, in elements; one that is to be
/// written is row-major.
pub(crate) fn lower(
    unknowns: &mut Unknowns<'_>,
    instance: &Instance<'_>,
    strides: Option<&[u64]>,
) -> Result<(Vec<u64>, Vec<Block>), LowerError> {
    let pair = unknowns.pair;
    let rule = &pair.rules(instance.side)[instance.rule];
    let mut lowering = Lowering { unknowns, instance, params: &rule.params };
    let outer = instance.scopes[0];
    let mut shape = Vec::with_capacity(rule.dims.len());
    let mut blocks = vec![Raw { label: Ok(rule.label), offset: 0, runs: Vec::new() }];
    let mut dense = 1;
    for (dim, node) in rule.dims.iter().enumerate().rev() {
        let stride = strides.and_then(|strides| strides.get(dim).copied()).unwrap_or(dense);
        let (size, next) = lowering.node(node, stride, outer, &blocks)?;
        shape.push(size);
        blocks = next;
        dense = dense.checked_mul(size).ok_or(LowerError::Overflow)?;
    }
    shape.reverse();
    let mut placed = Vec::with_capacity(blocks.len());
    for raw in blocks {
        lowering.place(raw, &rule.key_axes, &mut placed)?;
    }
    placed.retain(|block| block.elements() > 0);
    Ok((shape, placed))
}

struct Lowering<'u, 'p, 'i> {
    unknowns: &'u mut Unknowns<'p>,
    instance: &'i Instance<'i>,
    params: &'i [ParamId],
}

impl<'p> Lowering<'_, 'p, '_> {
    fn pair(&self) -> &'p Pair<'p> {
        self.unknowns.pair
    }

    fn scopes(&self, param: ParamId) -> Scopes {
        let at = self.params.iter().position(|&other| other == param).unwrap_or(0);
        self.instance.scopes[at]
    }

    /// Puts one dimension before `blocks`; returns its length and the blocks.
    fn node(
        &mut self,
        node: &Node,
        stride: u64,
        outer: Scopes,
        blocks: &[Raw],
    ) -> Result<(u64, Vec<Raw>), LowerError> {
        match node {
            Node::One => Ok((1, blocks.to_vec())),
            Node::Run(run) => {
                let size = self.unknowns.size(outer, run)?;
                let mut blocks = blocks.to_vec();
                blocks.iter_mut().for_each(|block| block.runs.push((run.clone(), size, stride)));
                Ok((size, blocks))
            }
            Node::Sum(parts) => {
                let mut all = Vec::new();
                let mut length = 0_u64;
                for part in parts {
                    let (size, part_blocks) = self.part(part, stride, outer, blocks)?;
                    let start = length.checked_mul(stride).ok_or(LowerError::Overflow)?;
                    all.extend(
                        part_blocks.into_iter().map(|block| Raw { offset: block.offset + start, ..block }),
                    );
                    length = length.checked_add(size).ok_or(LowerError::Overflow)?;
                }
                Ok((length, all))
            }
        }
    }

    fn part(
        &mut self,
        part: &Part,
        stride: u64,
        outer: Scopes,
        blocks: &[Raw],
    ) -> Result<(u64, Vec<Raw>), LowerError> {
        let scopes = match part.label {
            Label::Param(param) => self.scopes(param),
            Label::None | Label::Padding => outer,
        };
        let mut blocks = blocks.to_vec();
        blocks.iter_mut().for_each(|block| block.label = join(block.label, part.label));
        let mut size = 1_u64;
        for node in part.dims.iter().rev() {
            let inner = stride.checked_mul(size).ok_or(LowerError::Overflow)?;
            let (length, next) = self.node(node, inner, scopes, &blocks)?;
            blocks = next;
            size = size.checked_mul(length).ok_or(LowerError::Overflow)?;
        }
        Ok((size, blocks))
    }

    /// Turns a raw block into placed ones: several where an axis is a sum, `(c f) + u`.
    fn place(&mut self, raw: Raw, key_axes: &[AxisId], placed: &mut Vec<Block>) -> Result<(), LowerError> {
        let param = match raw.label {
            Ok(Label::Param(param)) => param,
            Err(Clash) | Ok(Label::Padding | Label::None) => {
                let content = if raw.label.is_ok() { Content::Padding } else { Content::Zero };
                let repeats = raw.runs.into_iter().map(|(_, size, stride)| (size, stride)).collect();
                let coordinates = Vec::new();
                placed.push(Block { content, offset: raw.offset, coordinates, repeats, is_copy: false });
                return Ok(());
            }
        };
        let count = self.pair().params[param].coordinates.len();
        let mut blocks = vec![Block {
            content: Content::Param(param),
            offset: raw.offset,
            coordinates: vec![Coordinate::default(); count],
            repeats: Vec::new(),
            is_copy: false,
        }];
        for (run, size, stride) in raw.runs {
            blocks = self.place_run(param, &run, size, stride, &blocks)?;
        }
        for &axis in key_axes {
            let index =
                self.instance.indices.iter().find(|(name, _)| *name == axis).map_or(0, |(_, index)| *index);
            if !self.pair().params[param].instance_axes.contains(&axis) {
                blocks.iter_mut().try_for_each(|block| self.place_index(param, axis, index, block))?;
            }
        }
        placed.extend(blocks);
        Ok(())
    }

    fn place_run(
        &mut self,
        param: ParamId,
        run: &[AxisId],
        size: u64,
        stride: u64,
        blocks: &[Block],
    ) -> Result<Vec<Block>, LowerError> {
        let pieces = match run {
            [axis] => self.pieces(param, *axis)?,
            // Joined axes are a coordinate of their own.
            _ => vec![Piece { start: 0, closed: vec![Closed { run: run.to_vec(), count: size, stride: 1 }] }],
        };
        let mut all = Vec::with_capacity(blocks.len() * pieces.len());
        for block in blocks {
            for piece in &pieces {
                let mut block = block.clone();
                block.offset += piece.start * stride;
                for closed in &piece.closed {
                    let place = self.locate(param, &closed.run)?;
                    match place {
                        Some((coordinate, weight, base)) => {
                            let target = &mut block.coordinates[coordinate];
                            target.base += base;
                            target.factors.push(Factor {
                                weight,
                                count: closed.count,
                                stride: closed.stride * stride,
                            });
                        }
                        None => block.repeats.push((closed.count, closed.stride * stride)),
                    }
                }
                all.push(block);
            }
        }
        Ok(all)
    }

    /// Fixes an axis of the tensor's name at an index.
    fn place_index(
        &mut self,
        param: ParamId,
        axis: AxisId,
        index: u64,
        block: &mut Block,
    ) -> Result<(), LowerError> {
        let pieces = self.pieces(param, axis)?;
        let index_of = |piece: &Piece, closed: &Closed| {
            (index.saturating_sub(piece.start) / closed.stride.max(1)).checked_rem(closed.count).unwrap_or(0)
        };
        let composed = |piece: &Piece| -> u64 {
            piece.start
                + piece.closed.iter().map(|closed| index_of(piece, closed) * closed.stride).sum::<u64>()
        };
        let Some(piece) = pieces.iter().find(|piece| composed(piece) == index) else { return Ok(()) };
        for closed in &piece.closed {
            let value = index_of(piece, closed);
            match self.locate(param, &closed.run)? {
                Some((coordinate, weight, base)) => {
                    block.coordinates[coordinate].base += base + value * weight
                }
                None => block.is_copy |= value > 0,
            }
        }
        Ok(())
    }

    /// Takes an axis apart in its stored order, (definitions are not joined: a run of them is one axis) as far as the layout restates it or the parameter lacks it.
    fn pieces(&mut self, param: ParamId, axis: AxisId) -> Result<Vec<Piece>, LowerError> {
        let side = self.instance.side;
        let pair = self.pair();
        let apart = pair.is_restated(side, axis) || pair.coordinate(side, param, axis).is_none();
        let Some(parts) = pair.stored(side, axis).filter(|_| apart) else {
            let count = self.unknowns.size(self.scopes(param), &[axis])?;
            return Ok(vec![Piece { start: 0, closed: vec![Closed { run: vec![axis], count, stride: 1 }] }]);
        };
        let mut pieces = Vec::new();
        let mut start = 0;
        for part in parts {
            let (length, part_pieces) = self.part_pieces(param, part)?;
            pieces.extend(part_pieces.into_iter().map(|piece| Piece { start: piece.start + start, ..piece }));
            start += length;
        }
        Ok(pieces)
    }

    fn part_pieces(&mut self, param: ParamId, part: &Part) -> Result<(u64, Vec<Piece>), LowerError> {
        let mut pieces = vec![Piece { start: 0, closed: Vec::new() }];
        let mut length = 1_u64;
        for node in part.dims.iter().rev() {
            let mut inner = Vec::new();
            let size = match node {
                Node::One => continue,
                Node::Run(run) => {
                    inner = self.pieces(param, run[0])?;
                    self.unknowns.size(self.scopes(param), &run[..1])?
                }
                Node::Sum(parts) => {
                    let mut start = 0;
                    for part in parts {
                        let (size, part_pieces) = self.part_pieces(param, part)?;
                        inner.extend(part_pieces.into_iter().map(|p| Piece { start: p.start + start, ..p }));
                        start += size;
                    }
                    start
                }
            };
            pieces = inner
                .iter()
                .flat_map(|outer| pieces.iter().map(move |piece| (outer, piece)))
                .map(|(outer, piece)| Piece {
                    start: outer.start * length + piece.start,
                    closed: outer
                        .closed
                        .iter()
                        .map(|closed| Closed { stride: closed.stride * length, ..closed.clone() })
                        .chain(piece.closed.iter().cloned())
                        .collect(),
                })
                .collect();
            length = length.checked_mul(size).ok_or(LowerError::Overflow)?;
        }
        Ok((length, pieces))
    }

    /// Returns the coordinate that holds the axes, their weight in it and what they add to its base.
    fn locate(&mut self, param: ParamId, run: &[AxisId]) -> Result<Option<(usize, u64, u64)>, LowerError> {
        let pair = self.pair();
        let groups = &pair.params[param].coordinates;
        if let Some(at) = groups.iter().position(|group| group == run) {
            return Ok(Some((at, 1, 0)));
        }
        let [axis] = run else { return Ok(None) };
        let Some(at) = pair.coordinate(self.instance.side, param, *axis) else { return Ok(None) };
        let [outer] = groups[at][..] else { return Ok(None) };
        let (weight, base) = self.inside(param, outer, *axis)?;
        Ok(Some((at, weight, base)))
    }

    /// Returns the weight and the base of `inner` within `outer`, which holds it, in canonical order.
    fn inside(&mut self, param: ParamId, outer: AxisId, inner: AxisId) -> Result<(u64, u64), LowerError> {
        if outer == inner {
            return Ok((1, 0));
        }
        let parts = self.pair().canonical(self.instance.side, outer).unwrap_or_default();
        self.inside_parts(param, parts, inner).map(|found| found.unwrap_or((1, 0)))
    }

    fn inside_parts(
        &mut self,
        param: ParamId,
        parts: &[Part],
        inner: AxisId,
    ) -> Result<Option<(u64, u64)>, LowerError> {
        let mut start = 0;
        for part in parts {
            let mut weight = 1;
            let mut found = None;
            for node in part.dims.iter().rev() {
                let here = match node {
                    Node::One => None,
                    Node::Run(run) => {
                        let side = self.instance.side;
                        let holder =
                            run.iter().copied().find(|&axis| self.pair().contains(side, axis, inner));
                        holder.map(|axis| self.inside(param, axis, inner)).transpose()?
                    }
                    Node::Sum(parts) => self.inside_parts(param, parts, inner)?,
                };
                if let Some((inner_weight, base)) = here {
                    found = Some((inner_weight * weight, base * weight + start));
                    break;
                }
                weight *= self.length(param, node)?;
            }
            if found.is_some() {
                return Ok(found);
            }
            // Only what stands before the axis moves it; a later part's size may stay open.
            start += self.part_length(param, part)?;
        }
        Ok(None)
    }

    fn length(&mut self, param: ParamId, node: &Node) -> Result<u64, LowerError> {
        match node {
            Node::One => Ok(1),
            Node::Run(run) => Ok(self.unknowns.size(self.scopes(param), run)?),
            Node::Sum(parts) => parts.iter().map(|part| self.part_length(param, part)).sum(),
        }
    }

    fn part_length(&mut self, param: ParamId, part: &Part) -> Result<u64, LowerError> {
        part.dims.iter().map(|node| self.length(param, node)).product()
    }
}

/// A part of an axis: where it begins, and the axes it is composed of, with strides along the axis.
#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    closed: Vec<Closed>,
}

/// An axis that is not taken apart.
#[derive(Clone, Debug)]
struct Closed {
    run: Vec<AxisId>,
    count: u64,
    stride: u64,
}

fn join(outer: Result<Label, Clash>, inner: Label) -> Result<Label, Clash> {
    match (outer?, inner) {
        (outer, Label::None) => Ok(outer),
        (Label::None, inner) => Ok(inner),
        (Label::Padding, _) | (_, Label::Padding) => Ok(Label::Padding),
        (outer, inner) if outer == inner => Ok(inner),
        _ => Err(Clash),
    }
}
