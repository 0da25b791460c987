//! Lengths as sums of products of axes: `h·d + 2·g·d`, or a number where all sizes are known.

use std::fmt::Write as _;

use crate::bind::AxisSizes;
use crate::notation::{Dim, DimKind, Term};

/// A length: a sum of products, each a number and axes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent(Vec<(u64, Vec<String>)>);

impl Extent {
    /// Returns the length 1.
    pub(super) fn one() -> Extent {
        Extent(vec![(1, Vec::new())])
    }

    /// Returns the length of a stored axis.
    pub(super) fn of_dim(dim: &Dim) -> Extent {
        match &dim.kind {
            DimKind::Axis(name) => Extent(vec![(1, vec![name.clone()])]),
            DimKind::Size(size) => Extent(vec![(*size, Vec::new())]),
            DimKind::Sum(terms) => {
                terms.iter().fold(Extent::default(), |sum, term| sum.plus(&Extent::of_term(term)))
            }
        }
    }

    /// Returns the length of a block.
    pub(super) fn of_term(term: &Term) -> Extent {
        Extent::of_dims(&term.dims)
    }

    /// Returns the length of axes composed into one.
    pub(super) fn of_dims(dims: &[Dim]) -> Extent {
        dims.iter().fold(Extent::one(), |product, dim| product.times(&Extent::of_dim(dim)))
    }

    /// Adds a length.
    pub(super) fn plus(&self, other: &Extent) -> Extent {
        let mut sum = self.clone();
        for (count, axes) in &other.0 {
            match sum.0.iter_mut().find(|(_, own)| own == axes) {
                Some((own, _)) => *own = own.saturating_add(*count),
                None => sum.0.push((*count, axes.clone())),
            }
        }
        sum
    }

    /// Multiplies with a length.
    pub(super) fn times(&self, other: &Extent) -> Extent {
        let mut product = Extent::default();
        for (count, axes) in &self.0 {
            for (more, inner) in &other.0 {
                let axes = [axes.as_slice(), inner.as_slice()].concat();
                product = product.plus(&Extent(vec![(count.saturating_mul(*more), axes)]));
            }
        }
        product
    }

    /// Writes it: the number where the sizes of all its axes are known, else the axes.
    pub(super) fn text(&self, sizes: &AxisSizes) -> String {
        let number = self.0.iter().try_fold(0_u64, |sum, (count, axes)| {
            let product =
                axes.iter().try_fold(*count, |product, axis| product.checked_mul(*sizes.get(axis)?))?;
            sum.checked_add(product)
        });
        if let Some(number) = number {
            return number.to_string();
        }
        let mut text = String::new();
        for (at, (count, axes)) in self.0.iter().enumerate() {
            let plus = if at == 0 { "" } else { " + " };
            let factor = match (count, axes.is_empty()) {
                (count, true) => count.to_string(),
                (1, false) => String::new(),
                (count, false) => format!("{count}·"),
            };
            let _ = write!(text, "{plus}{factor}{}", axes.join("·"));
        }
        text
    }
}
