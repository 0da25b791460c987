//! What a stored tensor holds, in words: `12 query heads × 64 head size, stacked by rows`.

use crate::bind::AxisSizes;
use crate::mapping::{Layout, Mapping};
use crate::notation::{Dim, DimKind, Expr, Term};

/// Describes each stored axis of a tensor, slowest first; sizes that are not known are left out.
pub fn describe(mapping: &Mapping, layout: &Layout, expr: &Expr, sizes: &AxisSizes) -> Vec<String> {
    let words = Words { mapping, layout, sizes };
    let label = expr.label.as_ref().and_then(|label| label.param.as_deref());
    expr.dims.iter().map(|dim| words.dim(dim, label)).collect()
}

/// Names the stored axes of a tensor with that many of them.
pub fn dim_names(rank: usize) -> Vec<String> {
    match rank {
        1 => vec!["elements".to_owned()],
        2 => vec!["rows".to_owned(), "columns".to_owned()],
        _ => (0..rank).map(|dim| format!("axis {dim}")).collect(),
    }
}

struct Words<'a> {
    mapping: &'a Mapping,
    layout: &'a Layout,
    sizes: &'a AxisSizes,
}

impl Words<'_> {
    fn dim(&self, dim: &Dim, outer: Option<&str>) -> String {
        match &dim.kind {
            DimKind::Axis(name) => self.axis(name),
            DimKind::Size(size) => size.to_string(),
            DimKind::Sum(terms) => {
                let parts: Vec<String> =
                    terms.iter().map(|term| self.term(term, terms.len() > 1, outer)).collect();
                parts.join(", then ")
            }
        }
    }

    fn term(&self, term: &Term, labelled: bool, outer: Option<&str>) -> String {
        let own = term.label.as_ref().map(|label| label.param.as_deref().unwrap_or("padding"));
        let factors: Vec<String> = term.dims.iter().map(|dim| self.factor(dim)).collect();
        let product = factors.join(" × ");
        match own.filter(|own| labelled && Some(*own) != outer) {
            Some(name) if product.is_empty() => name.to_owned(),
            Some(name) => format!("{name}: {product}"),
            None => product,
        }
    }

    /// Describes a factor of a composed axis; sums inside it stand in parentheses.
    fn factor(&self, dim: &Dim) -> String {
        match &dim.kind {
            DimKind::Sum(terms) if terms.len() > 1 => format!("({})", self.dim(dim, None)),
            _ => self.dim(dim, None),
        }
    }

    fn axis(&self, name: &str) -> String {
        let about =
            self.layout.axes.get(name).map(|axis| axis.about.as_str()).filter(|about| !about.is_empty());
        let about = about.or_else(|| self.mapping.axes.get(name).map(|axis| axis.about.as_str()));
        let about = about.filter(|about| !about.is_empty()).unwrap_or(name);
        // The first clause says what it is; the rest explains.
        let about = about.split([':', ';', ',']).next().unwrap_or(about);
        match self.sizes.get(name) {
            Some(size) => format!("{size} {about}"),
            None => format!("{about} (size not known)"),
        }
    }
}
