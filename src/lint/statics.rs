//! What can be told of a mapping from its text: parameters without a place, axes that nothing uses, names that two rules
//! match.

use std::collections::BTreeSet;

use super::overlap::common_name;
use super::{is_own, roles};
use crate::diag::{Diagnostic, LintCode};
use crate::mapping::arith::Formula;
use crate::mapping::forward::{Cut, Forward};
use crate::mapping::key::Piece;
use crate::mapping::{Axis, Layout, Mapping, Rule, exclude_each_other};
use crate::notation::{AxisName, Term, for_each_axis};

/// Checks the family, and those of its layouts that the file itself has.
pub(super) fn check(mapping: &Mapping, own: &[&Layout], found: &mut Vec<Diagnostic>) {
    check_lost_axes(mapping, found);
    for layout in own {
        check_params(mapping, layout, found);
        check_forwards(layout, found);
        check_names(layout, found);
    }
    check_unused(mapping, own, found);
    roles::check(mapping, found);
}

fn check_params(mapping: &Mapping, layout: &Layout, found: &mut Vec<Diagnostic>) {
    let required = mapping.params.iter().filter(|(_, param)| param.is_required());
    for (name, param) in required.filter(|(name, _)| !layout.holds(name)) {
        found.push(
            Diagnostic::error(
                LintCode::NoPlace,
                format!("the layout `{}` has no tensor for `{name}`", layout.name),
            )
            .rule(&layout.span)
            .related(&param.span, "it is required")
            .help("add a rule for it, or declare the parameter `optional` or `\"absent\": \"zeros\"`"),
        );
    }
}

/// A parameter whose tensors all have an index in their names that it has no axis for: copies that must be equal, of
/// what is likely one tensor for each index. A file's number does not count: files of a set hold copies.
fn check_lost_axes(mapping: &Mapping, found: &mut Vec<Diagnostic>) {
    for (name, param) in mapping.params.iter().filter(|(_, param)| is_own(mapping, &param.span)) {
        let holders = mapping.layouts.values().flat_map(|layout| {
            layout
                .rules
                .iter()
                .filter(|rule| rule.expr.params().contains(&name.as_str()))
                .map(move |rule| (layout, rule))
        });
        let holders: Vec<(&Layout, &Rule)> = holders.collect();
        let Some((layout, first)) = holders.first() else { continue };
        let indices = |rule: &Rule| -> BTreeSet<String> {
            let pieces = rule.template.key.iter();
            pieces
                .filter_map(|piece| match piece {
                    Piece::Axis { name, .. } => Some(name.to_string()),
                    _ => None,
                })
                .collect()
        };
        let own = with_parts(mapping, layout, param.axes.iter().cloned().collect());
        let in_all = |axis: &String| holders.iter().all(|(_, rule)| indices(rule).contains(axis));
        let lost: Vec<String> = indices(first)
            .into_iter()
            .filter(|axis| mapping.axes.contains_key(axis) && in_all(axis))
            .filter(|axis| with_parts(mapping, layout, BTreeSet::from([axis.clone()])).is_disjoint(&own))
            .collect();
        let [axis, ..] = &lost[..] else { continue };
        found.push(
            Diagnostic::error(
                LintCode::LostAxis,
                format!("every tensor of `{name}` has the index `{{{axis}}}` in its name, and `{name}` has no axis `{axis}`"),
            )
            .rule(&param.span)
            .related(&first.template.span, "one of its tensors")
            .expected(format!("`{axis} {}`", param.axes.join(" ")))
            .found(format!("`{}`: one value for all, whose copies must be equal", param.axes.join(" ")))
            .help(format!("add `{axis}` to the parameter's axes")),
        );
    }
}

/// Returns the axes with all that they are composed of.
fn with_parts(mapping: &Mapping, layout: &Layout, axes: BTreeSet<String>) -> BTreeSet<String> {
    let mut all = axes.clone();
    let mut open: Vec<String> = axes.into_iter().collect();
    while let Some(name) = open.pop() {
        let definitions = [mapping.axes.get(&name), layout.axes.get(&name)];
        for part in parts(definitions.into_iter().flatten()) {
            if all.insert(part.to_owned()) {
                open.push(part.to_owned());
            }
        }
    }
    all
}

fn check_forwards(layout: &Layout, found: &mut Vec<Diagnostic>) {
    for forward in layout.forwards.values() {
        // A bias that the framework has as an option need not be there.
        let projections = forward.all_projections();
        let norms = [&forward.q_norm, &forward.k_norm].into_iter().flatten();
        let weights = projections.map(|projection| &projection.weight);
        for template in weights.chain(norms.filter_map(|norm| norm.weight.as_ref())) {
            if layout.rules_of(template).is_empty() {
                found.push(
                    Diagnostic::error(
                        LintCode::ForwardTensor,
                        "`forward` names a tensor that no rule of the layout has",
                    )
                    .rule(&template.span)
                    .related(&layout.span, "the layout")
                    .help("write the name as the rule writes it"),
                );
            }
        }
    }
}

/// Two rules for one name, and rules that no config makes hold.
fn check_names(layout: &Layout, found: &mut Vec<Diagnostic>) {
    for (at, rule) in layout.rules.iter().enumerate() {
        if exclude_each_other(&rule.when, &layout.when) {
            found.push(
                Diagnostic::warning(
                    LintCode::Never,
                    "this rule never holds: the layout's own `when` excludes it",
                )
                .rule(&rule.template.span)
                .related(&layout.span, "the layout"),
            );
        }
        for other in &layout.rules[..at] {
            let (a, b) = (&rule.template, &other.template);
            let alternatives = a.file == b.file && a.key == b.key;
            if alternatives || exclude_each_other(&rule.when, &other.when) || a.is_within(b) || b.is_within(a)
            {
                continue;
            }
            if let Some(name) = common_name(a, b) {
                found.push(
                    Diagnostic::warning(LintCode::Ambiguous, "two rules match some names, and neither is the more special")
                        .rule(&a.span)
                        .related(&b.span, "the other one")
                        .found(format!("such as `{name}`"))
                        .help("a checkpoint with such a name is refused; make one of the two templates more specific"),
                );
            }
        }
    }
}

/// Axes and parameters that nothing uses.
fn check_unused(mapping: &Mapping, own: &[&Layout], found: &mut Vec<Diagnostic>) {
    let mut shared: BTreeSet<&str> = BTreeSet::new();
    for layout in mapping.layouts.values() {
        shared.extend(used_in(layout));
    }
    shared.extend(mapping.params.values().flat_map(|param| param.axes.iter().map(String::as_str)));
    shared.extend(parts(mapping.axes.values()));
    for (name, axis) in &mapping.axes {
        if is_own(mapping, &axis.span) && !shared.contains(name.as_str()) {
            found.push(
                Diagnostic::warning(LintCode::UnusedAxis, format!("nothing uses the axis `{name}`"))
                    .rule(&axis.span),
            );
        }
    }
    for layout in own {
        let mut used: BTreeSet<&str> = used_in(layout);
        used.extend(mapping.params.values().flat_map(|param| param.axes.iter().map(String::as_str)));
        used.extend(parts(mapping.axes.values()));
        for (name, axis) in layout.axes.iter().filter(|(name, _)| !used.contains(name.as_str())) {
            found.push(
                Diagnostic::warning(
                    LintCode::UnusedAxis,
                    format!("nothing in the layout uses its axis `{name}`"),
                )
                .rule(&axis.span),
            );
        }
    }
    for (name, param) in &mapping.params {
        let is_held = mapping.layouts.values().any(|layout| layout.holds(name));
        if is_own(mapping, &param.span) && !is_held {
            found.push(
                Diagnostic::warning(LintCode::UnusedParam, format!("no layout holds the parameter `{name}`"))
                    .rule(&param.span),
            );
        }
    }
}

fn parts<'a>(axes: impl Iterator<Item = &'a Axis>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for term in axes.flat_map(|axis| axis.is.iter().flatten()) {
        named(term, &mut names);
    }
    names
}

fn named<'a>(term: &'a Term, names: &mut BTreeSet<&'a str>) {
    for_each_axis(&term.dims, &mut |axis, _| {
        if let AxisName::Named(name) = axis {
            names.insert(name);
        }
    });
}

/// Returns the axes that a layout's rules, definitions and formulas name.
fn used_in(layout: &Layout) -> BTreeSet<&str> {
    let mut names = parts(layout.axes.values());
    let mut formulas: Vec<&Formula> = Vec::new();
    for rule in &layout.rules {
        names.extend(rule.template.axes().chain(rule.template.counts()));
        for_each_axis(&rule.expr.dims, &mut |axis, _| {
            if let AxisName::Named(name) = axis {
                names.insert(name);
            }
        });
        formulas.extend(rule.scale.iter().chain(&rule.offset));
    }
    formulas.extend(layout.defaults.values().map(|default| &default.value));
    formulas.extend(layout.config.values().flat_map(|entry| entry.is.iter().chain(&entry.absent)));
    for forward in layout.forwards.values() {
        names.extend(["h", "g", "d", "dv"].map(|axis| forward.axis(axis)));
        formulas.extend(formulas_of(forward));
    }
    names.extend(formulas.into_iter().flat_map(Formula::axes));
    names
}

fn formulas_of(forward: &Forward) -> Vec<&Formula> {
    let cuts = forward
        .products
        .iter()
        .map(|product| &product.cut)
        .chain(forward.biases.iter().map(|bias| &bias.cut));
    let per = cuts.filter_map(|cut| match cut {
        Cut::Per(formula) => Some(formula),
        Cut::Blocks | Cut::PerHead | Cut::PerGroup => None,
    });
    let dims = forward.rotary.iter().filter_map(|rotary| rotary.dims.as_ref());
    per.chain(dims).chain(&forward.scale).chain(&forward.kv_heads).collect()
}
