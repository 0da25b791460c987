//! One attention module, computed as its framework says.

use candle_core::{D, DType, Device, Tensor};

use super::cut::{as_heads, cut_fused};
use super::norm::normalized;
use super::weights::{View, Weights, read, times, times_transposed};
use super::{ForwardError, Heads};
use crate::bind::AxisSizes;
use crate::mapping::arith::Formula;
use crate::mapping::forward::{
    Apply, Cut, Forward, Norm, Part, PartsBias, Product, Projection, RotaryStyle, Slot, stored_name,
};
use crate::mapping::key::{Captures, Template};

/// The positions of the tokens: none is 0, and no distance is the same twice, so that no rotation is hidden.
const POSITIONS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 13.0];
/// How many tokens there are.
pub(super) const TOKENS: usize = POSITIONS.len();
/// The base of the rotary frequencies; any but 1 tells pairs apart.
const BASE: f64 = 10_000.0;

/// One side's module.
pub(super) struct Module<'a> {
    pub(super) forward: &'a Forward,
    pub(super) weights: &'a dyn Weights,
    pub(super) captures: &'a Captures,
    pub(super) sizes: &'a AxisSizes,
}

/// What the module takes in.
pub(super) struct Inputs {
    /// Each input once.
    pub(super) tensors: Vec<Tensor>,
    /// Which of them q, k and v read.
    pub(super) of: [usize; 3],
}

/// What a module gives on the way and at the end.
pub(super) struct Outputs {
    /// [query heads, tokens, head size], rotary pairs half-split, before the rotation, scaled as the scores are: a side
    /// may hold that factor in its weights.
    pub(super) q: Tensor,
    /// [key/value heads, tokens, head size], likewise.
    pub(super) k: Tensor,
    /// [key/value heads, tokens, value head size].
    pub(super) v: Tensor,
    /// [query heads, tokens, tokens], rotated and scaled, before the softmax.
    pub(super) logits: Tensor,
    /// [tokens, output width], or the heads' outputs side by side where there is no output projection.
    pub(super) out: Tensor,
    /// [tokens, heads * value head size], what the output projection reads.
    pub(super) context: Tensor,
}

impl<'a> Module<'a> {
    fn size(&self, axis: &str) -> Option<u64> {
        self.sizes.get(self.forward.axis(axis)).copied()
    }

    /// Returns h, g, d and dv.
    pub(super) fn heads(&self) -> Result<Heads, ForwardError> {
        let size = |axis: &str| self.size(axis).ok_or_else(|| ForwardError::Open(axis.to_owned()));
        let g = match &self.forward.kv_heads {
            Some(formula) => self.formula(formula)? as u64,
            None => size("g")?,
        };
        let d = size("d")?;
        // Layouts that both store values as heads of `d` name no `dv`.
        Ok(Heads { h: size("h")?, g, d, dv: self.size("dv").unwrap_or(d) })
    }

    fn tensor(
        &self,
        template: &Template,
        each: Option<(&str, u64)>,
    ) -> Result<Option<View<'a>>, ForwardError> {
        let mut captures = self.captures.clone();
        if let Some((axis, index)) = each {
            captures.indices.push((axis.into(), index));
            captures.indices.sort();
        }
        let name = stored_name(template, &captures).map_err(ForwardError::Name)?;
        let Some(meta) = self.weights.find(&name) else { return Ok(None) };
        let mut view = View::of(meta);
        if !view.dtype().is_computable() {
            return Err(ForwardError::Type(view.key(), view.dtype()));
        }
        for (axis, at) in &self.forward.stacked {
            let index = self.captures.index(axis).ok_or_else(|| ForwardError::Open(axis.clone()))?;
            let outside =
                || ForwardError::Shape(meta.key.clone(), format!("no slice {axis}={index} of axis {at}"));
            view = view.slice(*at, index).ok_or_else(outside)?;
        }
        Ok(Some(view))
    }

    fn required(&self, template: &Template, each: Option<(&str, u64)>) -> Result<View<'a>, ForwardError> {
        self.tensor(template, each)?.ok_or_else(|| ForwardError::Missing(template.to_string()))
    }

    /// Returns the input width of q, k and v.
    pub(super) fn widths(&self) -> Result<[u64; 3], ForwardError> {
        let mut widths = [0; 3];
        for product in &self.forward.products {
            let width = self.input_width(&product.projection)?;
            product.order.iter().for_each(|slot| widths[slot.part as usize] = width);
        }
        Ok(widths)
    }

    fn input_width(&self, projection: &Projection) -> Result<u64, ForwardError> {
        let tensor = self.required(&projection.weight, self.first_of(projection))?;
        let at = match projection.apply {
            Apply::Linear | Apply::Convolution => 1..2,
            Apply::Dense => 0..1,
            Apply::Einsum { before, summed } => before..before + summed,
        };
        let axes = tensor.shape.get(at).map(|axes| axes.iter().product());
        axes.ok_or_else(|| ForwardError::Shape(tensor.key(), "a matrix is needed".into()))
    }

    fn first_of<'p>(&self, projection: &'p Projection) -> Option<(&'p str, u64)> {
        projection.each.as_deref().map(|axis| (axis, 0))
    }

    /// Multiplies `x` [tokens, in] with a projection's weight; the result is [tokens, out], axes of an einsum flat.
    fn project(&self, projection: &Projection, x: &Tensor) -> Result<Tensor, ForwardError> {
        let Some(axis) = projection.each.as_deref() else {
            let y = self.multiply(&self.required(&projection.weight, None)?, &projection.apply, x)?;
            return self.add_bias(projection.bias.as_ref(), None, y);
        };
        let count = self.size(axis).ok_or_else(|| ForwardError::Open(axis.to_owned()))?;
        let mut parts = Vec::new();
        for index in 0..count {
            let weight = self.required(&projection.weight, Some((axis, index)))?;
            let y = self.multiply(&weight, &projection.apply, x)?;
            parts.push(self.add_bias(projection.bias.as_ref(), Some((axis, index)), y)?);
        }
        Ok(Tensor::cat(&parts, 1)?)
    }

    /// The output projection; with one weight per head the heads' outputs are added, and the bias once.
    fn project_out(&self, projection: &Projection, context: &Tensor) -> Result<Tensor, ForwardError> {
        let Some(axis) = projection.each.as_deref() else {
            let missing = self.input_width(projection)?.saturating_sub(context.dim(1)? as u64);
            if !projection.rest || missing == 0 {
                return self.project(projection, context);
            }
            // What the other inputs give is not attention's: they are zeros.
            let zeros = Tensor::zeros((TOKENS, missing as usize), DType::F64, &Device::Cpu)?;
            return self.project(projection, &Tensor::cat(&[context, &zeros], 1)?);
        };
        let count = self.size(axis).ok_or_else(|| ForwardError::Open(axis.to_owned()))?;
        let part = context.dim(1)? / (count as usize).max(1);
        let mut sum: Option<Tensor> = None;
        for index in 0..count {
            let weight = self.required(&projection.weight, Some((axis, index)))?;
            let head = context.narrow(1, index as usize * part, part)?.contiguous()?;
            let part = self.multiply(&weight, &projection.apply, &head)?;
            sum = Some(match sum {
                Some(sum) => (sum + part)?,
                None => part,
            });
        }
        let sum = sum.ok_or_else(|| ForwardError::Open(axis.to_owned()))?;
        // Added once to the sum.
        let each = projection.bias.as_ref().and_then(|bias| self.first_copy(bias));
        self.add_bias(projection.bias.as_ref(), each, sum)
    }

    /// Returns where to find a tensor of which each file of a set holds a copy: in the first; that they are equal is checked
    /// where they are read back.
    fn first_copy(&self, template: &Template) -> Option<(&'a str, u64)> {
        let files = template.file_axes();
        self.forward.each().into_iter().find(|axis| files.contains(axis)).map(|axis| (axis, 0))
    }

    fn multiply(&self, weight: &View<'_>, apply: &Apply, x: &Tensor) -> Result<Tensor, ForwardError> {
        let wrong = || {
            let wanted = format!(
                "shape {:?} cannot be multiplied with an input of width {:?}",
                weight.shape,
                x.dims()
            );
            ForwardError::Shape(weight.key(), wanted)
        };
        let flat = weight.clone().matrix();
        let (weight, shape) =
            if *apply == Apply::Convolution { (&flat, &flat.shape) } else { (weight, &weight.shape) };
        let product = |dims: &[u64]| dims.iter().product::<u64>();
        let width = x.dim(1)? as u64;
        match (apply, &shape[..]) {
            (Apply::Linear | Apply::Convolution, [out, input]) if *input == width => {
                times_transposed(self.weights, weight, x, (0, *out, *input))
            }
            (Apply::Dense, [input, out]) if *input == width => {
                times(self.weights, weight, x, (0, *input, *out))
            }
            (Apply::Einsum { before, summed }, _) if before + summed <= shape.len() => {
                let (lead, rest) = shape.split_at(*before);
                let (summed, rest) = rest.split_at(*summed);
                let (lead, input, out) = (product(lead), product(summed), product(rest));
                if input != width {
                    return Err(wrong());
                }
                let parts: Vec<Tensor> = (0..lead)
                    .map(|at| times(self.weights, weight, x, (at * input * out, input, out)))
                    .collect::<Result<_, _>>()?;
                Ok(Tensor::cat(&parts, 1)?)
            }
            _ => Err(wrong()),
        }
    }

    fn add_bias(
        &self,
        template: Option<&Template>,
        each: Option<(&str, u64)>,
        y: Tensor,
    ) -> Result<Tensor, ForwardError> {
        let Some(template) = template else { return Ok(y) };
        let Some(tensor) = self.tensor(template, each)? else { return Ok(y) };
        let values = read(self.weights, &tensor, 0, tensor.elements())?;
        let count = values.len();
        if count != y.dim(1)? {
            let wanted = format!("a bias of {} elements is needed, not {count}", y.dim(1)?);
            return Err(ForwardError::Shape(tensor.key(), wanted));
        }
        Ok(y.broadcast_add(&Tensor::from_vec(values, (1, count), &Device::Cpu)?)?)
    }

    /// Returns q, k and v as [heads, tokens, head size].
    fn parts(&self, inputs: &Inputs, heads: &Heads) -> Result<[Tensor; 3], ForwardError> {
        let mut found: [Option<Tensor>; 3] = [None, None, None];
        for Product { projection, cut, order } in &self.forward.products {
            for (at, input) in inputs.tensors.iter().enumerate() {
                // A product of several parts is computed from each part's input: cross-attention multiplies the rows
                // of q with one, those of k and v with another.
                let parts = order.iter().filter(|slot| !slot.other).map(|slot| slot.part);
                let reads: Vec<Part> = parts.filter(|part| inputs.of[*part as usize] == at).collect();
                if reads.is_empty() {
                    continue;
                }
                let flat = self.project(projection, input)?;
                let mut cut = self.cut(&flat, cut, order, heads, projection.rest)?;
                reads.into_iter().for_each(|part| found[part as usize] = cut[part as usize].take());
            }
        }
        for PartsBias { tensor, cut, order } in &self.forward.biases {
            let Some(stored) = self.tensor(tensor, None)? else { continue };
            let values = read(self.weights, &stored, 0, stored.elements())?;
            let flat = Tensor::from_vec(values, (1, stored.elements() as usize), &Device::Cpu)?;
            let biases = self.cut(&flat, cut, order, heads, false)?;
            for (part, bias) in found.iter_mut().zip(&biases) {
                if let (Some(part), Some(bias)) = (part, bias) {
                    *part = part.broadcast_add(bias)?;
                }
            }
        }
        match found {
            [Some(q), Some(k), Some(v)] => Ok([q, k, v]),
            _ => Err(ForwardError::Shape("the products".into(), "one of q, k and v comes from none".into())),
        }
    }

    /// Cuts [tokens, everything] into heads of each part.
    fn cut(
        &self,
        flat: &Tensor,
        cut: &Cut,
        order: &[Slot],
        heads: &Heads,
        rest: bool,
    ) -> Result<[Option<Tensor>; 3], ForwardError> {
        if let [Slot { part, .. }] = order
            && !rest
        {
            // One part alone is viewed as heads, however many: a layout may store copies.
            let mut found = [None, None, None];
            found[*part as usize] = Some(as_heads(flat, if *part == Part::V { heads.dv } else { heads.d })?);
            return Ok(found);
        }
        let (views, heads) = match cut {
            Cut::Blocks => (1, *heads),
            Cut::PerHead => (heads.h, Heads { g: heads.h, ..*heads }),
            Cut::PerGroup => (heads.g, *heads),
            Cut::Per(count) => (self.formula(count)? as u64, *heads),
        };
        cut_fused(flat, views, order, &heads, rest)
    }

    /// Computes the module.
    pub(super) fn run(&self, inputs: &Inputs, rotate: bool, causal: bool) -> Result<Outputs, ForwardError> {
        let heads = self.heads()?;
        let [mut q, mut k, v] = self.parts(inputs, &heads)?;
        for (part, norm) in [(&mut q, &self.forward.q_norm), (&mut k, &self.forward.k_norm)] {
            if let Some(norm) = norm {
                *part = self.normalize(part, norm)?;
            }
        }
        let (style, rotating) = self.rotation(&heads)?;
        let (q, k) = (half_split(&q, style, rotating)?, half_split(&k, style, rotating)?);
        let (turned_q, turned_k) =
            if rotate { (turned(&q, rotating)?, turned(&k, rotating)?) } else { (q.clone(), k.clone()) };
        let scale = match &self.forward.scale {
            Some(formula) => self.formula(formula)?,
            None => 1.0 / (heads.d as f64).sqrt(),
        };
        let all_k = repeated(&turned_k, heads.h)?;
        let all_v = repeated(&v, heads.h)?;
        let logits = (turned_q.contiguous()?.matmul(&all_k.transpose(1, 2)?.contiguous()?)? * scale)?;
        let context = softmax(&logits, causal)?.matmul(&all_v.contiguous()?)?;
        let context = context.transpose(0, 1)?.reshape((TOKENS, (heads.h * heads.dv) as usize))?;
        let out = self.output(&context)?;
        Ok(Outputs { q: (q * scale)?, k, v, logits, out, context })
    }

    /// Projects the heads' outputs; returns them as they are where there is no output projection.
    pub(super) fn output(&self, context: &Tensor) -> Result<Tensor, ForwardError> {
        match &self.forward.out {
            Some(projection) if self.tensor(&projection.weight, self.first_of(projection))?.is_some() => {
                let heads = self.heads()?;
                let by_head = context.reshape((TOKENS, heads.h as usize, heads.dv as usize))?;
                let context = if projection.mean { &by_head.mean(1)? } else { context };
                self.project_out(projection, context)
            }
            _ => Ok(context.clone()),
        }
    }

    fn formula(&self, formula: &Formula) -> Result<f64, ForwardError> {
        let open = || ForwardError::Open(formula.axes().join(", "));
        formula.eval(&|axis| self.size(axis)).filter(|value| value.is_finite()).ok_or_else(open)
    }

    fn normalize(&self, part: &Tensor, norm: &Norm) -> Result<Tensor, ForwardError> {
        let values = |template: &Option<Template>| -> Result<Option<Vec<f64>>, ForwardError> {
            let read_one = |template: &Template| self.tensor(template, self.first_copy(template));
            let stored = template.as_ref().map(read_one).transpose()?.flatten();
            stored.map(|stored| read(self.weights, &stored, 0, stored.elements())).transpose()
        };
        let (factors, addends) = (values(&norm.weight)?, values(&norm.bias)?);
        // Models of one layout may lack the norm.
        if norm.weight.is_some() && factors.is_none() {
            return Ok(part.clone());
        }
        normalized(part, norm, factors, addends)
    }

    /// Returns the rotary style and how many elements of a head rotate. A layout that declares none holds heads in the
    /// family's canonical order, half-split.
    fn rotation(&self, heads: &Heads) -> Result<(RotaryStyle, usize), ForwardError> {
        let Some(rotary) = &self.forward.rotary else { return Ok((RotaryStyle::Half, self.pairs(heads))) };
        let dims = match &rotary.dims {
            Some(formula) => self.formula(formula)? as usize,
            None => self.pairs(heads),
        };
        Ok((rotary.style, dims))
    }

    /// Elements that rotate where the layout does not say: as many as the other side's sizes tell, else all pairs.
    fn pairs(&self, heads: &Heads) -> usize {
        let told = self.size("f").map(|pairs| 2 * pairs).filter(|dims| *dims <= heads.d);
        told.unwrap_or(heads.d / 2 * 2) as usize
    }
}

/// Puts rotary pairs in half-split order: of (2i, 2i + 1) to (i, i + n/2).
fn half_split(part: &Tensor, style: RotaryStyle, rotating: usize) -> Result<Tensor, ForwardError> {
    if style == RotaryStyle::Half || rotating == 0 {
        return Ok(part.clone());
    }
    let (heads, tokens, size) = part.dims3()?;
    let pairs = part.narrow(2, 0, rotating)?.contiguous()?.reshape((heads, tokens, rotating / 2, 2))?;
    let halves = pairs.transpose(2, 3)?.contiguous()?.reshape((heads, tokens, rotating))?;
    Ok(Tensor::cat(&[halves, part.narrow(2, rotating, size - rotating)?], 2)?)
}

/// Rotates half-split pairs by position.
fn turned(part: &Tensor, rotating: usize) -> Result<Tensor, ForwardError> {
    let (_, _, size) = part.dims3()?;
    let half = rotating / 2;
    if half == 0 {
        return Ok(part.clone());
    }
    let angle = |pair: usize, position: f64| position * BASE.powf(-2.0 * pair as f64 / rotating as f64);
    let table = |of: &dyn Fn(f64) -> f64| {
        let values: Vec<f64> = POSITIONS
            .iter()
            .flat_map(|&position| (0..half).map(move |pair| of(angle(pair, position))))
            .collect();
        Tensor::from_vec(values, (1, TOKENS, half), &Device::Cpu)
    };
    let (sin, cos) = (table(&f64::sin)?, table(&f64::cos)?);
    let (a, b) = (part.narrow(2, 0, half)?.contiguous()?, part.narrow(2, half, half)?.contiguous()?);
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    Ok(Tensor::cat(&[first, second, part.narrow(2, rotating, size - rotating)?.contiguous()?], 2)?)
}

/// Repeats key/value heads until there is one for each query head: query head i reads head i / r.
pub(super) fn repeated(part: &Tensor, h: u64) -> Result<Tensor, ForwardError> {
    let (heads, tokens, size) = part.dims3()?;
    let times = (h as usize).checked_div(heads).filter(|times| times * heads == h as usize);
    let Some(times) = times else {
        return Err(ForwardError::Shape(
            "k or v".into(),
            format!("{heads} heads cannot serve {h} query heads"),
        ));
    };
    let wide = part.unsqueeze(1)?.broadcast_as((heads, times, tokens, size))?.contiguous()?;
    Ok(wide.reshape((h as usize, tokens, size))?)
}

fn softmax(logits: &Tensor, causal: bool) -> Result<Tensor, ForwardError> {
    let masked = if causal {
        let mask: Vec<f64> = (0..TOKENS)
            .flat_map(|row| (0..TOKENS).map(move |column| if column > row { f64::NEG_INFINITY } else { 0.0 }))
            .collect();
        logits.broadcast_add(&Tensor::from_vec(mask, (1, TOKENS, TOKENS), &Device::Cpu)?)?
    } else {
        logits.clone()
    };
    let exponents = masked.broadcast_sub(&masked.max_keepdim(D::Minus1)?)?.exp()?;
    Ok(exponents.broadcast_div(&exponents.sum_keepdim(D::Minus1)?)?)
}
