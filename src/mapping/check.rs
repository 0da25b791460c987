//! What can be wrong with a mapping before any checkpoint is seen.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use super::read::unknown_param;
use super::{Axis, Layout, Mapping, Rule, exclude_each_other};
use crate::diag::{Collector, Diagnostic, nearest};
use crate::notation::{AxisName, Dim, DimKind, Label, Term, for_each_axis};
use crate::span::Span;

/// Checks names, labels and captures; every error is collected.
pub(super) fn check(mapping: &Mapping, errors: &mut Collector) {
    for (name, axis) in &mapping.axes {
        check_axis(mapping, None, name, axis, errors);
    }
    for (name, param) in &mapping.params {
        for axis in &param.axes {
            if !mapping.axes.contains_key(axis) {
                errors.push(unknown_axis(axis, &param.span, mapping, None));
            }
        }
        let mut seen = param.axes.clone();
        seen.sort();
        seen.dedup();
        if seen.len() < param.axes.len() {
            let message = format!("the parameter `{name}` has one axis twice");
            errors.push(Diagnostic::error("mapping/repeated-axis", message).rule(&param.span));
        }
    }
    for layout in mapping.layouts.values() {
        check_layout(mapping, layout, errors);
    }
    check_paths(mapping, errors);
}

fn check_layout(mapping: &Mapping, layout: &Layout, errors: &mut Collector) {
    for (name, axis) in &layout.axes {
        check_axis(mapping, Some(layout), name, axis, errors);
    }
    for rule in &layout.rules {
        check_rule(mapping, layout, rule, errors);
    }
    for (axis, entry) in &layout.config {
        let is = entry.is.iter().flat_map(|formula| formula.axes()).filter(|name| *name != "value");
        let absent = entry.absent.iter().flat_map(|formula| formula.axes());
        for name in is.chain(absent).chain([axis.as_str()]) {
            if mapping.axis(layout, name).is_none() {
                errors.push(unknown_axis(name, &entry.span, mapping, Some(layout)));
            }
        }
    }
    for (axis, default) in &layout.defaults {
        for name in default.value.axes().into_iter().chain([axis.as_str()]) {
            if mapping.axis(layout, name).is_none() {
                errors.push(unknown_axis(name, &default.span, mapping, Some(layout)));
            }
        }
    }
    for (first, rule) in layout.rules.iter().enumerate() {
        for other in &layout.rules[..first] {
            if rule.template.file == other.template.file
                && rule.template.key == other.template.key
                && !exclude_each_other(&rule.when, &other.when)
            {
                errors.push(
                    Diagnostic::error("mapping/duplicate", "two rules for the same names")
                        .rule(&rule.expr.span)
                        .related(&other.expr.span, "first here")
                        .help("alternatives need a `when` each, of which only one can hold"),
                );
            }
        }
    }
}

fn check_axis(mapping: &Mapping, layout: Option<&Layout>, name: &str, axis: &Axis, errors: &mut Collector) {
    for term in axis.is.iter().flatten() {
        for_each_axis(&term.dims, &mut |mention, span| {
            if let AxisName::Named(inner) = mention
                && find(mapping, layout, inner).is_none()
            {
                errors.push(unknown_axis(inner, span, mapping, layout));
            }
        });
        if let Some(label) = first_label(term) {
            errors.push(
                Diagnostic::error("mapping/label", "an axis definition has no labels")
                    .rule(&label.span)
                    .help("labels name parameters; they stand in the layouts' tensors"),
            );
        }
    }
    if reaches(mapping, layout, name, axis, &mut Vec::new()) {
        let message = format!("the axis `{name}` is defined by itself");
        errors.push(Diagnostic::error("mapping/cycle", message).rule(&axis.span));
    }
}

fn find<'a>(mapping: &'a Mapping, layout: Option<&'a Layout>, name: &str) -> Option<&'a Axis> {
    layout.and_then(|layout| layout.axes.get(name)).or_else(|| mapping.axes.get(name))
}

/// Returns whether the definition of `axis` leads back to `name`.
fn reaches(
    mapping: &Mapping,
    layout: Option<&Layout>,
    name: &str,
    axis: &Axis,
    seen: &mut Vec<String>,
) -> bool {
    let mut found = false;
    for term in axis.is.iter().flatten() {
        for_each_axis(&term.dims, &mut |mention, _| {
            let AxisName::Named(inner) = mention else { return };
            if found || inner == name {
                found = true;
            } else if !seen.iter().any(|other| other == inner) {
                seen.push(inner.to_owned());
                found = find(mapping, layout, inner)
                    .is_some_and(|next| reaches(mapping, layout, name, next, seen));
            }
        });
    }
    found
}

fn first_label(term: &Term) -> Option<&Label> {
    if let Some(label) = &term.label {
        return Some(label);
    }
    term.dims.iter().find_map(|dim| match &dim.kind {
        DimKind::Sum(terms) => terms.iter().find_map(first_label),
        _ => None,
    })
}

fn check_rule(mapping: &Mapping, layout: &Layout, rule: &Rule, errors: &mut Collector) {
    for axis in rule.template.axes().chain(rule.template.counts()) {
        if mapping.axis(layout, axis).is_none() {
            errors.push(unknown_axis(axis, &rule.template.span, mapping, Some(layout)));
        }
    }
    for_each_axis(&rule.expr.dims, &mut |mention, span| {
        if let AxisName::Named(name) = mention
            && mapping.axis(layout, name).is_none()
        {
            errors.push(unknown_axis(name, span, mapping, Some(layout)));
        }
    });
    rule.expr.for_each_label(&mut |label| {
        if let Some(name) = &label.param
            && !mapping.params.contains_key(name)
        {
            errors.push(unknown_param(name, &label.span, mapping));
        }
    });
    check_labels(rule, errors);
}

/// Every block of a tensor must say which parameter it holds, once.
fn check_labels(rule: &Rule, errors: &mut Collector) {
    let outer = rule.expr.label.as_ref();
    nested_labels(&rule.expr.dims, outer, errors);
    if outer.is_none() && rule.expr.params().is_empty() {
        errors.push(
            Diagnostic::error("mapping/unlabelled", "nothing says which parameter this tensor holds")
                .rule(&rule.expr.span)
                .help("begin it with a label, `q.weight: h d e`"),
        );
    }
    for dim in &rule.expr.dims {
        let DimKind::Sum(terms) = &dim.kind else { continue };
        let labelled = terms.iter().filter(|term| has_label(term)).count();
        if labelled > 0
            && let Some(bare) = terms.iter().find(|term| !has_label(term))
        {
            errors.push(
                Diagnostic::error("mapping/unlabelled", "nothing says which parameter this block holds")
                    .rule(&bare.span)
                    .help("label every block of the sum; `_:` is padding"),
            );
        }
    }
}

fn has_label(term: &Term) -> bool {
    first_label(term).is_some()
}

fn nested_labels(dims: &[Dim], outer: Option<&Label>, errors: &mut Collector) {
    for dim in dims {
        let DimKind::Sum(terms) = &dim.kind else { continue };
        for term in terms {
            if let (Some(outer), Some(inner)) = (outer, &term.label) {
                errors.push(
                    Diagnostic::error(
                        "mapping/label",
                        format!("the label `{inner}` stands inside `{outer}`"),
                    )
                    .rule(&inner.span)
                    .related(&outer.span, "the label around it")
                    .help("a block holds one parameter; remove one of the two labels"),
                );
            }
            nested_labels(&term.dims, term.label.as_ref().or(outer), errors);
        }
    }
}

/// A parameter is found under the same captured paths in all its tensors, but for paths that the layout which captures
/// them has a value for.
fn check_paths(mapping: &Mapping, errors: &mut Collector) {
    let mut places: IndexMap<&str, Vec<(Captured<'_>, &Span)>> = IndexMap::new();
    for layout in mapping.layouts.values() {
        for name in layout.paths.keys() {
            if !layout.rules.iter().any(|rule| rule.template.paths().any(|path| path == name)) {
                let message = format!("no template of the layout captures `{{*{name}}}`");
                errors.push(Diagnostic::error("mapping/captures", message).rule(&layout.span));
            }
        }
        for rule in &layout.rules {
            let (paths, given) = (rule.template.paths().collect(), layout.paths.keys().map(String::as_str));
            let captured = Captured { layout: &layout.name, paths, given: given.collect() };
            for param in rule.expr.params() {
                let known = places.entry(param).or_default();
                if let Some((other, span)) = known.iter().find(|(other, _)| !captured.fits(other)) {
                    errors.push(
                        Diagnostic::error(
                            "mapping/captures",
                            format!("`{param}` is captured under other paths elsewhere"),
                        )
                        .rule(&rule.template.span)
                        .related(span, "elsewhere")
                        .expected(format!("the paths {:?}", other.paths))
                        .found(format!("{:?}", captured.paths)),
                    );
                } else if known.iter().all(|(other, _)| *other != captured) {
                    known.push((captured.clone(), &rule.template.span));
                }
            }
        }
    }
}

/// The paths that a rule captures, and those for which its layout has a value.
#[derive(Clone, PartialEq)]
struct Captured<'a> {
    layout: &'a str,
    paths: BTreeSet<&'a str>,
    given: BTreeSet<&'a str>,
}

impl Captured<'_> {
    fn fits(&self, other: &Captured<'_>) -> bool {
        self.is_covered_by(other) && other.is_covered_by(self)
    }

    fn is_covered_by(&self, other: &Captured<'_>) -> bool {
        let given = |path: &&str| self.layout != other.layout && self.given.contains(path);
        self.paths.iter().all(|path| other.paths.contains(path) || given(path))
    }
}

fn unknown_axis(name: &str, span: &Span, mapping: &Mapping, layout: Option<&Layout>) -> Diagnostic {
    let known = layout.into_iter().flat_map(|layout| layout.axes.keys()).chain(mapping.axes.keys());
    let known = known.map(String::as_str);
    let error = Diagnostic::error("mapping/unknown-axis", format!("no axis `{name}`")).rule(span);
    error.help(match nearest(name, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("declare it under `axes`; declared: {}", known.collect::<Vec<_>>().join(", ")),
    })
}
