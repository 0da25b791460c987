//! What can be wrong with a mapping before any checkpoint is seen.

use std::collections::{BTreeSet, HashMap};

use indexmap::IndexMap;

use super::read::{Unread, declared, unknown_param};
use super::{Axis, Layout, Mapping, Needed, Rule, bounds, cover, exclude_each_other};
use crate::diag::{Collector, Diagnostic, MappingCode, nearest};
use crate::notation::{AxisName, Dim, DimKind, Label, Term, for_each_axis};
use crate::span::Span;

/// Checks names, labels, axes and captures; every error is collected. What could not be read was told, and is not
/// looked at.
pub(super) fn check(mapping: &Mapping, unread: &Unread, errors: &mut Collector) {
    if !bounds::check(mapping, errors) {
        return;
    }
    let complete = !errors.has_errors();
    for (name, axis) in &mapping.axes {
        check_axis(mapping, None, name, axis, errors);
    }
    for (name, param) in &mapping.params {
        let axes = || param.axes.iter().zip(&param.axis_spans);
        for (axis, span) in axes().filter(|(axis, _)| !mapping.axes.contains_key(*axis)) {
            errors.push(unknown_axis(axis, span, mapping, None));
        }
        let mut seen = BTreeSet::new();
        if let Some((twice, span)) = axes().find(|(axis, _)| !seen.insert(*axis)) {
            errors.push(
                Diagnostic::error(
                    MappingCode::RepeatedAxis,
                    format!("the parameter `{name}` has one axis twice"),
                )
                .rule(span)
                .expected("each axis once")
                .found(format!("`{twice}` twice in `{}`", param.axes.join(" ")))
                .help("declare a second axis of the same size, `e2`, and name both"),
            );
        }
    }
    check_ties(mapping, unread, errors);
    for layout in mapping.layouts.values() {
        check_layout(mapping, layout, errors);
        // Names that nobody knows were told; an axis more or less would be their echo.
        cover::check(mapping, layout, unread, errors);
    }
    // A rule that could not be read captures nothing.
    if complete {
        check_paths(mapping, errors);
    }
}

/// Parameters that stand for each other have the same axes, and neither stands for a third.
fn check_ties(mapping: &Mapping, unread: &Unread, errors: &mut Collector) {
    for (name, param) in mapping.params.iter().filter(|(name, _)| !unread.contains(*name)) {
        let Some(tied) = &param.tied else { continue };
        let Some(other) = mapping.params.get(tied).filter(|_| !unread.contains(tied)) else { continue };
        let complain = |found: String, help: &str| {
            Diagnostic::error(MappingCode::Tied, format!("`{name}` cannot be tied to `{tied}`"))
                .rule(&param.span)
                .related(&other.span, format!("`{tied}`"))
                .expected(format!("a parameter with the axes `{}`, tied to no other", param.axes.join(" ")))
                .found(found)
                .help(help)
        };
        if other.axes != param.axes {
            errors.push(complain(
                format!("`{}`", other.axes.join(" ")),
                "the two hold the same values: write the same axes in the same order",
            ));
        } else if let Some(third) = &other.tied {
            errors.push(complain(
                format!("`{tied}`, which is tied to `{third}`"),
                "tie both to the one that is always there",
            ));
        }
    }
}

fn check_layout(mapping: &Mapping, layout: &Layout, errors: &mut Collector) {
    for (name, axis) in &layout.axes {
        check_axis(mapping, Some(layout), name, axis, errors);
    }
    for computed in layout.computed.iter().filter(|computed| mapping.axis(layout, &computed.axis).is_none()) {
        errors.push(unknown_axis(&computed.axis, &computed.span, mapping, Some(layout)));
    }
    for rule in &layout.rules {
        check_rule(mapping, layout, rule, errors);
    }
    for (axis, entry) in &layout.config {
        let formulas = entry.is.iter().chain(&entry.absent);
        let named = formulas.flat_map(|formula| formula.axes().into_iter().map(|name| (name, &formula.span)));
        for (name, span) in named.filter(|(name, _)| *name != "value").chain([(axis.as_str(), &entry.span)]) {
            if mapping.axis(layout, name).is_none() {
                errors.push(unknown_axis(name, span, mapping, Some(layout)));
            }
        }
    }
    super::setting::check(mapping, layout, errors);
    for (axis, default) in &layout.defaults {
        let named = default.value.axes().into_iter().map(|name| (name, &default.value.span));
        for (name, span) in named.chain([(axis.as_str(), &default.span)]) {
            if mapping.axis(layout, name).is_none() {
                errors.push(unknown_axis(name, span, mapping, Some(layout)));
            }
        }
    }
    let mut by_names: HashMap<_, Vec<&Rule>> = HashMap::default();
    for rule in &layout.rules {
        let before = by_names.entry((&rule.template.file, &rule.template.key)).or_default();
        if let Some(other) = before.iter().find(|other| !exclude_each_other(&rule.when, &other.when)) {
            errors.push(
                Diagnostic::error(MappingCode::Duplicate, "two rules for the same names")
                    .rule(&rule.expr.span)
                    .related(&other.expr.span, "first here")
                    .expected("one rule for a name, or several of which one at most can hold")
                    .found(format!("`{}` twice", rule.template))
                    .help("alternatives need a `when` each, of which only one can hold"),
            );
        }
        before.push(rule);
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
                Diagnostic::error(MappingCode::Label, "an axis definition has no labels")
                    .rule(&label.span)
                    .expected("axes alone, `(c f) + u`")
                    .found(format!("the label `{label}:`"))
                    .help("labels name parameters; they stand in the layouts' tensors"),
            );
        }
    }
    if reaches(mapping, layout, name, axis, &mut Vec::new()) {
        let message = format!("the axis `{name}` is defined by itself");
        let is: Vec<String> = axis.is.iter().flatten().map(ToString::to_string).collect();
        errors.push(
            Diagnostic::error(MappingCode::Cycle, message)
                .rule(&axis.span)
                .expected("axes that are not composed of it")
                .found(format!("`{name}` = `{}`, which leads back to `{name}`", is.join(" + ")))
                .help("give one of the axes no definition; its size comes from the config, the shapes or --axis"),
        );
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

/// Returns the place of the capture of an axis in a template, or the whole of it.
fn capture_of(template: &Span, axis: &str) -> Span {
    let text = template.text();
    let place = |prefix: &str| {
        let at = text.find(&format!("{prefix}{axis}"))? + prefix.len();
        Some(Span::new(&template.source, template.start + at, template.start + at + axis.len()))
    };
    place("{").or_else(|| place("{_")).unwrap_or_else(|| template.clone())
}

fn check_rule(mapping: &Mapping, layout: &Layout, rule: &Rule, errors: &mut Collector) {
    for axis in rule.template.axes().chain(rule.template.counts()) {
        if mapping.axis(layout, axis).is_none() {
            errors.push(unknown_axis(axis, &capture_of(&rule.template.span, axis), mapping, Some(layout)));
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
    if let Some(Needed::Beside(param)) = &rule.needed
        && !mapping.params.contains_key(param)
    {
        errors.push(unknown_param(param, &rule.template.span, mapping));
    }
    check_labels(rule, errors);
}

/// Every block of a tensor must say which parameter it holds, once.
fn check_labels(rule: &Rule, errors: &mut Collector) {
    let outer = rule.expr.label.as_ref();
    nested_labels(&rule.expr.dims, outer, errors);
    if outer.is_none() && rule.expr.params().is_empty() {
        errors.push(
            Diagnostic::error(MappingCode::Unlabelled, "nothing says which parameter this tensor holds")
                .rule(&rule.expr.span)
                .expected("a label: a parameter's name and `:`")
                .found(format!("`{}`", rule.expr))
                .help("begin it with the parameter's name, `q.weight: h d e`"),
        );
    }
    for dim in &rule.expr.dims {
        let DimKind::Sum(terms) = &dim.kind else { continue };
        let labelled = terms.iter().filter(|term| has_label(term)).count();
        if labelled > 0
            && let Some(bare) = terms.iter().find(|term| !has_label(term))
        {
            errors.push(
                Diagnostic::error(MappingCode::Unlabelled, "nothing says which parameter this block holds")
                    .rule(&bare.span)
                    .expected("a label before its axes, as the other blocks have one")
                    .found(format!("`{bare}`"))
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
                        MappingCode::Label,
                        format!("the label `{inner}` stands inside `{outer}`"),
                    )
                    .rule(&inner.span)
                    .related(&outer.span, "the label around it")
                    .expected("axes of the parameter that the outer label names")
                    .found(format!("the label `{inner}:`"))
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
                let captured: BTreeSet<&str> =
                    layout.rules.iter().flat_map(|rule| rule.template.paths()).collect();
                errors.push(
                    Diagnostic::error(MappingCode::Captures, message)
                        .rule(&layout.span)
                        .expected(declared(captured.iter().copied()))
                        .found(format!("`{name}` under `paths`"))
                        .help("remove it, or capture the path in a template"),
                );
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
                            MappingCode::Captures,
                            format!("`{param}` is captured under other paths elsewhere"),
                        )
                        .rule(&rule.template.span)
                        .related(span, "elsewhere")
                        .expected(format!("the same paths: {}", paths_text(&other.paths)))
                        .found(paths_text(&captured.paths))
                        .help("capture the same path in all templates of a parameter, or give the layout a value for it under `paths`"),
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

/// Writes captured paths, `{*m}`.
fn paths_text(paths: &BTreeSet<&str>) -> String {
    match paths.is_empty() {
        true => "no path".into(),
        false => paths.iter().map(|path| format!("`{{*{path}}}`")).collect::<Vec<_>>().join(", "),
    }
}

fn unknown_axis(name: &str, span: &Span, mapping: &Mapping, layout: Option<&Layout>) -> Diagnostic {
    let known = layout.into_iter().flat_map(|layout| layout.axes.keys()).chain(mapping.axes.keys());
    let known = known.map(String::as_str);
    let error = Diagnostic::error(MappingCode::UnknownAxis, format!("no axis `{name}`"))
        .rule(span)
        .expected(declared(known.clone()))
        .found(format!("`{name}`"));
    if mapping.params.contains_key(name) {
        return error.help(format!("`{name}` is a parameter; a label ends with `:`, `{name}: …`"));
    }
    error.help(match nearest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "declare it under `axes`, with what it means".into(),
    })
}
