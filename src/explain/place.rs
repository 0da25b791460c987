//! Where a parameter lies in a stored tensor, read off the expression: `rows h·d..h·d + g·d`.

use super::extent::Extent;
use crate::bind::AxisSizes;
use crate::inspect::dim_names;
use crate::notation::{Dim, DimKind, Expr, Label, Term};

/// Where a parameter lies in a stored tensor.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Along each stored axis.
    pub(super) dims: Vec<Along>,
}

/// Where a parameter lies along one stored axis.
#[derive(Clone, Debug, Default)]
pub(super) struct Along {
    /// The blocks in which it lies, outermost first; none where it takes the whole axis.
    blocks: Vec<Block>,
    /// The axes of the parameter along it, slowest first.
    pub(super) axes: Vec<String>,
}

/// A block of a concatenation.
#[derive(Clone, Debug)]
struct Block {
    /// How often the concatenation is repeated: `g` of `(g (q + k))`.
    count: Extent,
    /// The length of the concatenation.
    whole: Extent,
    start: Extent,
    length: Extent,
}

/// Returns the places of a parameter, or of the padding, in an expression.
pub(super) fn places(expr: &Expr, param: Option<&str>) -> Vec<Place> {
    let is_outer = expr.label.as_ref().map(|label| label.param.as_deref());
    let mut found = vec![Place { dims: Vec::new() }];
    let mut labelled = false;
    for dim in &expr.dims {
        let along = match has_label(dim, None) {
            true => {
                labelled = true;
                inside(dim, param)
            }
            false => vec![Along { blocks: Vec::new(), axes: names(std::slice::from_ref(dim)) }],
        };
        found = found
            .iter()
            .flat_map(|place| {
                along.iter().map(|along| {
                    let mut place = place.clone();
                    place.dims.push(along.clone());
                    place
                })
            })
            .collect();
    }
    if labelled || is_outer == Some(param) { found } else { Vec::new() }
}

/// Returns whether a label stands inside; of that name, where one is given.
fn has_label(dim: &Dim, wanted: Option<Option<&str>>) -> bool {
    let DimKind::Sum(terms) = &dim.kind else { return false };
    terms.iter().any(|term| {
        term.label.as_ref().is_some_and(|label| is(label, wanted))
            || term.dims.iter().any(|dim| has_label(dim, wanted))
    })
}

fn is(label: &Label, wanted: Option<Option<&str>>) -> bool {
    wanted.is_none_or(|wanted| label.param.as_deref() == wanted)
}

/// Finds a label inside a stored axis.
fn inside(dim: &Dim, param: Option<&str>) -> Vec<Along> {
    let DimKind::Sum(terms) = &dim.kind else { return Vec::new() };
    let whole = Extent::of_dim(dim);
    let mut start = Extent::default();
    let mut found = Vec::new();
    for term in terms {
        let length = Extent::of_term(term);
        let outer = (terms.len() > 1).then(|| Block {
            count: Extent::one(),
            whole: whole.clone(),
            start: start.clone(),
            length: length.clone(),
        });
        for mut along in in_term(term, param) {
            along.blocks.splice(0..0, outer.clone());
            found.push(along);
        }
        start = start.plus(&length);
    }
    found
}

fn in_term(term: &Term, param: Option<&str>) -> Vec<Along> {
    if term.label.as_ref().is_some_and(|label| is(label, Some(param))) {
        return vec![Along { blocks: Vec::new(), axes: names(&term.dims) }];
    }
    let Some(at) = term.dims.iter().position(|dim| has_label(dim, Some(param))) else { return Vec::new() };
    let (before, behind) = (&term.dims[..at], &term.dims[at + 1..]);
    let (count, step) = (Extent::of_dims(before), Extent::of_dims(behind));
    let mut found = inside(&term.dims[at], param);
    for along in &mut found {
        for block in &mut along.blocks {
            block.whole = block.whole.times(&step);
            block.start = block.start.times(&step);
            block.length = block.length.times(&step);
        }
        if let Some(first) = along.blocks.first_mut() {
            first.count = count.times(&first.count);
        }
        along.axes = [names(before), std::mem::take(&mut along.axes), names(behind)].concat();
    }
    found
}

/// Lists the axes of a composed axis, slowest first; one of size 1 is none.
fn names(dims: &[Dim]) -> Vec<String> {
    let mut all = Vec::new();
    for dim in dims {
        match &dim.kind {
            DimKind::Axis(name) => all.push(name.clone()),
            DimKind::Size(1) => {}
            DimKind::Size(size) => all.push(size.to_string()),
            DimKind::Sum(terms) => match &terms[..] {
                [term] => all.extend(names(&term.dims)),
                _ => all.push(dim.to_string()),
            },
        }
    }
    all
}

impl Place {
    /// Returns whether it is the whole tensor.
    pub(super) fn is_whole(&self) -> bool {
        self.dims.iter().all(|along| along.blocks.is_empty())
    }

    /// Returns whether it is a block of two stored axes, with zeros beside it.
    pub(super) fn is_diagonal(&self) -> bool {
        self.dims.iter().filter(|along| !along.blocks.is_empty()).count() > 1
    }

    /// Tells the place in words; nothing for the whole tensor.
    pub(super) fn words(&self, sizes: &AxisSizes) -> String {
        let mut parts = Vec::new();
        for (along, name) in self.dims.iter().zip(dim_names(self.dims.len())) {
            // `rows 0..4` reads well, `axis 0 0..4` does not.
            let (unit, along_axis) = match name.starts_with("axis ") {
                true => (String::new(), format!(" along {name}")),
                false => (format!("{name} "), String::new()),
            };
            for block in &along.blocks {
                let (start, end) = (block.start.text(sizes), block.start.plus(&block.length).text(sizes));
                let range = format!("{unit}{start}..{end}{along_axis}");
                parts.push(match block.count == Extent::one() {
                    true => range,
                    false => format!(
                        "in each of {} blocks of {} {}, {range}",
                        block.count.text(sizes),
                        block.whole.text(sizes),
                        if unit.is_empty() { "indices" } else { unit.trim_end() },
                    ),
                });
            }
        }
        parts.join(", ")
    }
}
