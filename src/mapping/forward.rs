//! The `forward` entry of a layout: how the framework itself computes attention from the stored tensors, in the
//! framework's terms and written from its source. It is never derived from the layout's expressions, so that one can
//! contradict the other.

use super::arith::Formula;
use super::key::Template;
use crate::span::Span;

/// A framework's attention.
#[derive(Clone, Debug)]
pub struct Forward {
    /// Where the framework's code says so.
    pub citation: String,
    /// How q, k and v come about.
    pub projections: Projections,
    /// A bias that is stored fused although the weights are not.
    pub bias: Option<FusedBias>,
    /// The output projection.
    pub out: Option<Projection>,
    /// Root-mean-square norm of each query head, before the rotation.
    pub q_norm: Option<Norm>,
    /// The same of each key head.
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

/// How q, k and v come about.
#[derive(Clone, Debug)]
pub enum Projections {
    /// One product, cut afterwards.
    Fused {
        /// The product.
        projection: Projection,
        /// How its result is cut.
        cut: Cut,
        /// The order of the parts.
        order: [Part; 3],
    },
    /// Three products.
    Separate {
        /// Of q, k and v.
        projections: Box<[Projection; 3]>,
    },
}

/// A bias of all three projections in one tensor.
#[derive(Clone, Debug)]
pub struct FusedBias {
    /// The tensor.
    pub tensor: Template,
    /// How it is cut.
    pub cut: Cut,
    /// The order of the parts.
    pub order: [Part; 3],
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of one part, then all of the next.
    Blocks,
    /// Viewed as heads; each head cut in its parts.
    PerHead,
    /// Viewed as key/value heads; each cut in its query heads, its key and its value.
    PerGroup,
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
    /// The axis along which there is one weight per head.
    pub each: Option<String>,
}

/// How a weight is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Apply {
    /// `x Wᵀ + b`, the weight [out, in].
    Linear,
    /// `x W + b`, the weight [in, out].
    Dense,
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
    /// Parses `linear`, `dense` or `einsum te,ehd->thd`.
    pub fn parse(text: &str) -> Option<Apply> {
        match text {
            "linear" => return Some(Apply::Linear),
            "dense" => return Some(Apply::Dense),
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

/// A root-mean-square norm over a head.
#[derive(Clone, Debug)]
pub struct Norm {
    /// The factors, one per element of a head.
    pub weight: Template,
    /// Added to the mean square.
    pub epsilon: f64,
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

impl Forward {
    /// Returns all templates of stored tensors.
    pub fn templates(&self) -> Vec<&Template> {
        let mut all: Vec<&Template> = Vec::new();
        for projection in self.all_projections() {
            all.push(&projection.weight);
            all.extend(&projection.bias);
        }
        all.extend(self.bias.iter().map(|bias| &bias.tensor));
        all.extend([&self.q_norm, &self.k_norm].into_iter().flatten().map(|norm| &norm.weight));
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
        self.all_projections().into_iter().filter_map(|projection| projection.each.as_deref()).collect()
    }

    fn all_projections(&self) -> Vec<&Projection> {
        let projections = match &self.projections {
            Projections::Fused { projection, .. } => std::slice::from_ref(projection),
            Projections::Separate { projections } => projections.as_slice(),
        };
        projections.iter().chain(&self.out).collect()
    }
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
