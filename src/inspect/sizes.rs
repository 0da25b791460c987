//! Sizes of axes: those that follow from others by definitions, and small ones for an example.

use crate::bind::AxisSizes;
use crate::mapping::role::AxisRole;
use crate::mapping::{Layout, Mapping};
use crate::notation::{AxisName, Dim, DimKind, Term, for_each_axis};
use crate::provenance::Facts;

/// Adds every size that follows from the known ones: fixed sizes, and definitions of which one part is open.
pub fn deduce(mapping: &Mapping, layout: &Layout, sizes: &mut AxisSizes) {
    for (name, axis) in mapping.axes.iter().chain(&layout.axes) {
        if let Some(size) = axis.size {
            sizes.entry(name.clone()).or_insert(size);
        }
    }
    loop {
        let before = sizes.len();
        for (name, axis) in mapping.axes.iter().chain(&layout.axes) {
            let Some(terms) = &axis.is else { continue };
            match (sizes.get(name).copied(), length(terms, sizes)) {
                (None, Some(size)) => drop(sizes.insert(name.clone(), size)),
                (Some(total), None) => solve_sum(terms, total, sizes),
                _ => {}
            }
        }
        if sizes.len() == before {
            return;
        }
    }
}

/// Returns the length of a concatenation; `None` where a size is open or beyond 64 bits.
pub(crate) fn length(terms: &[Term], sizes: &AxisSizes) -> Option<u64> {
    terms.iter().try_fold(0_u64, |sum, term| sum.checked_add(product(&term.dims, sizes)?))
}

/// Returns the product of stored axes; `None` where a size is open or beyond 64 bits.
pub(crate) fn product(dims: &[Dim], sizes: &AxisSizes) -> Option<u64> {
    dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(of_dim(dim, sizes)?))
}

fn of_dim(dim: &Dim, sizes: &AxisSizes) -> Option<u64> {
    match &dim.kind {
        DimKind::Axis(name) => sizes.get(name).copied(),
        DimKind::Size(size) => Some(*size),
        DimKind::Sum(terms) => length(terms, sizes),
    }
}

/// Finds the one open size of a concatenation of that length.
fn solve_sum(terms: &[Term], total: u64, sizes: &mut AxisSizes) {
    let open: Vec<&Term> = terms.iter().filter(|term| product(&term.dims, sizes).is_none()).collect();
    let [term] = open[..] else { return };
    let known: u64 = terms.iter().filter_map(|term| product(&term.dims, sizes)).sum();
    let Some(rest) = total.checked_sub(known) else { return };
    let open: Vec<&Dim> = term.dims.iter().filter(|dim| of_dim(dim, sizes).is_none()).collect();
    let [dim] = open[..] else { return };
    let others: u64 = term.dims.iter().filter_map(|dim| of_dim(dim, sizes)).product();
    if others == 0 || !rest.is_multiple_of(others) {
        return;
    }
    match &dim.kind {
        DimKind::Axis(name) => drop(sizes.insert(name.clone(), rest / others)),
        DimKind::Sum(terms) => solve_sum(terms, rest / others, sizes),
        DimKind::Size(_) => {}
    }
}

/// Returns the sizes that a config tells through a layout's table, beside those that are given.
pub fn of_config(layout: &Layout, facts: &Facts<'_>, sizes: &mut AxisSizes) {
    // A formula may need a size that a later entry tells.
    for _ in 0..2 {
        for (axis, entry) in &layout.config {
            let told = facts.first(&entry.keys).and_then(|fact| fact.value.as_f64());
            let known = |name: &str| sizes.get(name).copied();
            let absent = || entry.absent.as_ref()?.eval_size(&known);
            if let Some(size) = told.map_or_else(absent, |value| entry.size(value, &known)) {
                sizes.entry(axis.clone()).or_insert(size);
            }
        }
    }
}

/// Sizes of an example, for axes in order of appearance: small, and unlike one another as far as they go.
const SMALL: &[u64] = &[7, 11, 9, 13, 10, 15, 14, 17];

/// Returns a size for each axis of a family in some of its layouts: the given ones, what follows from them, and for what
/// stays open small sizes that differ from one another.
pub fn example(mapping: &Mapping, layouts: &[&Layout], given: &AxisSizes) -> AxisSizes {
    let mut sizes = given.clone();
    let all = |sizes: &mut AxisSizes| layouts.iter().for_each(|layout| deduce(mapping, layout, sizes));
    all(&mut sizes);
    let names = mapping.axes.iter().chain(layouts.iter().flat_map(|layout| &layout.axes));
    let role = |name: &String| {
        let own = layouts.iter().find_map(|layout| mapping.axis_role(layout, name));
        own.or_else(|| mapping.roles().axis(name))
    };
    let names: Vec<(&String, Option<AxisRole>)> = names.map(|(name, _)| (name, role(name))).collect();
    // What was given tells the rest as the framework does; an example of the tool's own is to show all differences.
    if !given.is_empty() {
        for layout in layouts {
            for (axis, fixed) in &layout.defaults {
                let known = |name: &str| sizes.get(name).copied();
                if let (false, Some(size)) = (sizes.contains_key(axis), fixed.value.eval_size(&known)) {
                    sizes.insert(axis.clone(), size);
                    all(&mut sizes);
                }
            }
        }
    }
    let mut next = SMALL.iter().cycle();
    let mut literals: Vec<u64> = Vec::new();
    for rule in layouts.iter().flat_map(|layout| &layout.rules) {
        for_each_axis(&rule.expr.dims, &mut |axis, _| match axis {
            AxisName::Literal(size) => literals.push(size),
            AxisName::Named(_) => {}
        });
    }
    // Parts first, so that what is composed of them follows.
    let composed = |name: &str| {
        let own = layouts.iter().filter_map(|layout| layout.axes.get(name)).chain(mapping.axes.get(name));
        own.into_iter().any(|axis| axis.is.is_some())
    };
    for (name, role) in names.iter().filter(|(name, _)| !composed(name)) {
        if sizes.contains_key(*name) {
            continue;
        }
        let size = fitting(mapping, layouts, name, &sizes).unwrap_or_else(|| {
            let used = |size: &u64| sizes.values().any(|other| other == size) || literals.contains(size);
            let wanted: &[u64] = match role {
                Some(AxisRole::QueriesPerKvHead) => &[3],
                Some(AxisRole::KvHeads | AxisRole::RotaryPairs) => &[2],
                Some(AxisRole::Unrotated) => &[1],
                Some(AxisRole::QueryHeads) => &[4, 6, 8],
                Some(AxisRole::ValueHeadSize) => &[6, 5, 3],
                Some(AxisRole::HeadSize) => &[4, 8, 10],
                Some(AxisRole::Rotated) => &[4],
                Some(AxisRole::Layers) => &[3, 2],
                _ => &[],
            };
            let free = wanted.iter().chain(SMALL).find(|size| !used(size)).copied();
            wanted
                .first()
                .copied()
                .filter(|_| wanted.len() == 1)
                .or(free)
                .or(next.next().copied())
                .unwrap_or(2)
        });
        sizes.insert((*name).clone(), size);
        all(&mut sizes);
    }
    for (name, _) in names {
        if !sizes.contains_key(name) {
            sizes.insert(name.clone(), 2);
            all(&mut sizes);
        }
    }
    sizes
}

/// Returns a size of a part that divides, or fits into, what is given of the whole; `None` where nothing is.
fn fitting(mapping: &Mapping, layouts: &[&Layout], part: &str, sizes: &AxisSizes) -> Option<u64> {
    let own = layouts.iter().flat_map(|layout| &layout.axes);
    for (name, axis) in own.chain(&mapping.axes) {
        let (Some(terms), Some(total)) = (&axis.is, sizes.get(name)) else { continue };
        let mut inside = false;
        for term in terms {
            for_each_axis(&term.dims, &mut |axis, _| inside |= axis == AxisName::Named(part));
        }
        if !inside {
            continue;
        }
        // Of a sum of open parts the later ones are empty; of a product the first is the whole, the others 1.
        return Some(match terms.split_first() {
            Some((first, [])) => {
                let known = first.dims.iter().filter_map(|dim| of_dim(dim, sizes)).product::<u64>().max(1);
                let mut open = first.dims.iter().filter(|dim| of_dim(dim, sizes).is_none());
                let is_first =
                    open.next().is_some_and(|dim| matches!(&dim.kind, DimKind::Axis(name) if name == part));
                if is_first { total / known } else { 1 }
            }
            Some((first, _)) => {
                let known = first.dims.iter().filter_map(|dim| of_dim(dim, sizes)).product::<u64>().max(1);
                let mut inside = false;
                for_each_axis(&first.dims, &mut |axis, _| inside |= axis == AxisName::Named(part));
                if inside { total / known } else { 0 }
            }
            None => 0,
        });
    }
    None
}
