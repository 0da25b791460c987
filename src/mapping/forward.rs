//! The `forward` entry of a layout: how the framework itself computes attention from the stored tensors, in the
//! framework's terms and written from its source. It is never derived from the layout's expressions, so that one can
//! contradict the other.

use super::arith::Formula;
use super::key::{Captures, Template};
use crate::span::Span;

/// A framework's attention.
#[derive(Clone, Debug)]
pub struct Forward {
    /// Where the framework's code says so.
    pub citation: String,
    /// The products that q, k and v come from: one, two or three.
    pub products: Vec<Product>,
    /// Biases that are fused where the weights are not, or separate where they are fused.
    pub biases: Vec<PartsBias>,
    /// The output projection.
    pub out: Option<Projection>,
    /// The norm of the queries, before the rotation.
    pub q_norm: Option<Norm>,
    /// The norm of the keys.
    pub k_norm: Option<Norm>,
    /// The rotation; `None` where the module rotates nothing itself.
    pub rotary: Option<Rotary>,
    /// The factor of the scores; without it 1/sqrt(d).
    pub scale: Option<Formula>,
    /// Whether a token sees only those before it, and itself.
    pub causal: bool,
    /// Whether k and v read another input than q.
    pub cross: bool,
    /// How many key/value heads the framework computes with, where these are not the family's `g`: a framework without
    /// grouped heads has one for each query head.
    pub kv_heads: Option<Formula>,
    /// What the family calls its heads and their sizes, where not `h`, `g`, `d` and `dv`: a second tower has its own.
    pub axes: Vec<(String, String)>,
    /// Axes of layers that are stacked in the tensors, and where they stand in each: the framework computes with one
    /// slice at a time.
    pub stacked: Vec<(String, usize)>,
    /// Where it stands.
    pub span: Span,
}

/// One product, and what it is cut in.
#[derive(Clone, Debug)]
pub struct Product {
    /// The product.
    pub projection: Projection,
    /// How its result is cut.
    pub cut: Cut,
    /// Its parts in their order.
    pub order: Vec<Slot>,
}

/// A bias that is added to the parts, not to a product.
#[derive(Clone, Debug)]
pub struct PartsBias {
    /// The tensor.
    pub tensor: Template,
    /// How it is cut.
    pub cut: Cut,
    /// Its parts in their order.
    pub order: Vec<Slot>,
}

/// A place in a fused result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What stands there.
    pub part: Part,
    /// Whether it is another attention's: differential attention has two q and two k in one product.
    pub other: bool,
}

/// One of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
}

/// How a fused result is cut.
#[derive(Clone, Debug)]
pub enum Cut {
    /// All of one part, then all of the next.
    Blocks,
    /// Viewed as heads; each head cut in its parts.
    PerHead,
    /// Viewed as key/value heads; each cut in its query heads, its key and its value.
    PerGroup,
    /// Viewed as so many equal blocks; each cut in its share of every part.
    Per(Formula),
}

/// A product with a stored weight.
#[derive(Clone, Debug)]
pub struct Projection {
    /// The weight; with `each`, one per head.
    pub weight: Template,
    /// The bias, where there is one.
    pub bias: Option<Template>,
    /// How they are applied.
    pub apply: Apply,
    /// The axis along which there is one weight per head, or per shard of heads.
    pub each: Option<String>,
    /// Whether the tensor has more behind: columns of a product that are not attention's, or rows of the output
    /// projection that read something else beside the heads.
    pub rest: bool,
    /// Whether the output projection reads the mean over the heads, not all side by side.
    pub mean: bool,
}

/// How a weight is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Apply {
    /// `x Wᵀ + b`, the weight [out, in].
    Linear,
    /// `x W + b`, the weight [in, out].
    Dense,
    /// A convolution of width 1, the weight [out, in, 1] or with more such axes.
    Convolution,
    /// `einsum("te,hed->thd", x, W) + b`: how many axes of the weight stand before those that are summed, how many are
    /// summed.
    Einsum {
        /// Axes of the weight before the summed ones.
        before: usize,
        /// Axes that are summed.
        summed: usize,
    },
}

impl Apply {
    /// Parses `linear`, `dense`, `convolution` or `einsum te,ehd->thd`.
    pub fn parse(text: &str) -> Option<Apply> {
        match text {
            "linear" => return Some(Apply::Linear),
            "dense" => return Some(Apply::Dense),
            "convolution" => return Some(Apply::Convolution),
            _ => {}
        }
        let (operands, result) = text.strip_prefix("einsum ")?.split_once("->")?;
        let (input, weight) = operands.split_once(',')?;
        let summed: String =
            weight.chars().filter(|axis| input.contains(*axis) && !result.contains(*axis)).collect();
        let before = weight.find(&summed)?;
        let rest: String = weight.chars().filter(|axis| !summed.contains(*axis)).collect();
        let token = input.strip_suffix(summed.as_str())?;
        let letters = weight.chars().chain(input.chars()).all(|axis| axis.is_ascii_lowercase());
        let plain = token.len() == 1 && result == format!("{token}{rest}") && !summed.is_empty() && letters;
        plain.then_some(Apply::Einsum { before, summed: summed.len() })
    }
}

/// A norm of queries or keys.
#[derive(Clone, Debug)]
pub struct Norm {
    /// What is divided by.
    pub kind: NormKind,
    /// The factors: one per element of a head, or of all heads.
    pub weight: Option<Template>,
    /// What is added, likewise.
    pub bias: Option<Template>,
    /// Added to the mean square.
    pub epsilon: f64,
    /// Whether all heads of a token are one vector.
    pub together: bool,
}

/// What a norm divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// The root of the mean square.
    RootMeanSquare,
    /// The standard deviation, the mean subtracted.
    Layer,
    /// The length.
    Length,
}

/// A rotation of pairs by position.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// Which elements are a pair.
    pub style: RotaryStyle,
    /// How many elements of a head rotate, the first ones; without it all.
    pub dims: Option<Formula>,
}

/// Which elements of a head are a rotary pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryStyle {
    /// i and i + n/2.
    Half,
    /// 2i and 2i + 1.
    Interleaved,
}

impl RotaryStyle {
    /// Returns what the field calls it.
    pub const fn words(self) -> &'static str {
        match self {
            RotaryStyle::Half => "half-split",
            RotaryStyle::Interleaved => "interleaved",
        }
    }
}

impl Forward {
    /// Returns all templates of stored tensors.
    pub fn templates(&self) -> Vec<&Template> {
        let mut all: Vec<&Template> = Vec::new();
        for projection in self.all_projections() {
            all.push(&projection.weight);
            all.extend(&projection.bias);
        }
        all.extend(self.biases.iter().map(|bias| &bias.tensor));
        let norms = [&self.q_norm, &self.k_norm].into_iter().flatten();
        all.extend(norms.flat_map(|norm| norm.weight.iter().chain(&norm.bias)));
        all
    }

    /// Returns the axes that tell its modules apart: those in names, less those along which there is one weight per head,
    /// and the stacked ones.
    pub fn module_axes(&self) -> Vec<&str> {
        let named = self.templates().into_iter().flat_map(|template| template.axes());
        let each = self.each();
        let mut axes: Vec<&str> = named.filter(|axis| !each.contains(axis)).collect();
        axes.extend(self.stacked.iter().map(|(axis, _)| axis.as_str()));
        axes.sort_unstable();
        axes.dedup();
        axes
    }

    /// Returns what the family calls an axis that this module has.
    pub fn axis<'a>(&'a self, name: &'a str) -> &'a str {
        self.axes.iter().find(|(own, _)| own == name).map_or(name, |(_, family)| family)
    }

    /// Returns the axes along which there is one weight per head.
    pub fn each(&self) -> Vec<&str> {
        self.all_projections().filter_map(|projection| projection.each.as_deref()).collect()
    }

    /// Returns the projections of q, k and v, and that of the output.
    pub(crate) fn all_projections(&self) -> impl Iterator<Item = &Projection> {
        self.products.iter().map(|product| &product.projection).chain(&self.out)
    }
}

/// Writes the name of a stored tensor, `FILE::KEY` where the template names the file: shards hold the same keys.
///
/// # Errors
/// Returns what cannot be written.
pub fn stored_name(template: &Template, captures: &Captures) -> Result<String, String> {
    Ok(match template.print(captures)? {
        (Some(file), key) => format!("{file}::{key}"),
        (None, key) => key,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn einsums_of_projections() {
        for (text, before, summed) in
            [("te,ehd->thd", 0, 1), ("te,hed->thd", 1, 1), ("thd,hdo->to", 0, 2), ("te,eo->to", 0, 1)]
        {
            assert_eq!(
                Apply::parse(&format!("einsum {text}")),
                Some(Apply::Einsum { before, summed }),
                "{text}"
            );
        }
        for text in ["einsum te,ehd->tdh", "einsum te,oe", "einsum te,hd->thd", "matmul", "einsum tE,Eo->to"]
        {
            assert_eq!(Apply::parse(text), None, "{text}");
        }
    }
}
