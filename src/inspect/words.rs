//! What a stored tensor holds, in words: `12 query heads × 64 head size, stacked by rows`.

use super::sizes::deduce;
use crate::bind::AxisSizes;
use crate::mapping::role::AxisRole;
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

/// Tells how query heads share keys and values: `3 kv groups × (5 query heads + k + v)`; `None` where they do not, or where
/// the tensor holds no query heads.
pub fn group_words(mapping: &Mapping, layout: &Layout, expr: &Expr, sizes: &AxisSizes) -> Option<String> {
    let mut sizes = sizes.clone();
    deduce(mapping, layout, &mut sizes);
    let params = expr.params();
    let heads = params.iter().find_map(|param| {
        let heads = mapping.head_axis(param)?;
        Some((heads, mapping.group_axis(heads)?))
    });
    let (heads, group) = heads?;
    let (all, count) = (*sizes.get(heads)?, *sizes.get(group)?);
    let each = all.checked_div(count).filter(|each| *each > 1)?;
    let s = |count: u64| if count == 1 { "" } else { "s" };
    if let Some(terms) = expr.dims.iter().find_map(|dim| per_group(dim, group)) {
        let part = |term: &Term| {
            let name = term.label.as_ref().and_then(|label| label.param.as_deref());
            match name {
                Some(name) if mapping.head_axis(name) == Some(heads) => format!("{each} query heads"),
                Some(name) => super::letter(mapping, name).to_string(),
                None => "padding".to_owned(),
            }
        };
        let parts: Vec<String> = terms.iter().map(part).collect();
        return Some(format!("{count} kv group{} × ({})", s(count), parts.join(" + ")));
    }
    Some(format!(
        "{count} kv group{} × {each} query heads: query heads 0..{each} share the key and the value of kv head 0",
        s(count)
    ))
}

/// Returns the parts that each group is stored with, where the groups stand outside of them: `g (q: r d + k: d + v: dv)`.
fn per_group<'a>(dim: &'a Dim, group: &str) -> Option<&'a [Term]> {
    let DimKind::Sum(terms) = &dim.kind else { return None };
    terms.iter().find_map(|term| {
        let is_group = |dim: &Dim| matches!(&dim.kind, DimKind::Axis(name) if name == group);
        let at = term.dims.iter().position(is_group)?;
        term.dims[at + 1..].iter().find_map(|dim| match &dim.kind {
            DimKind::Sum(parts) if parts.len() > 1 => Some(parts.as_slice()),
            _ => None,
        })
    })
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
        let role = || self.mapping.axis_role(self.layout, name).map(AxisRole::name);
        let about = about.filter(|about| !about.is_empty()).or_else(role).unwrap_or(name);
        // The first clause says what it is; the rest explains.
        let about = about.split([':', ';', ',']).next().unwrap_or(about);
        match self.sizes.get(name) {
            Some(size) => format!("{size} {about}"),
            None => format!("{about} (size not known)"),
        }
    }
}
