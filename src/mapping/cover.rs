//! Whether what a rule stores of a parameter has all of the parameter's axes, each once.
//!
//! An axis that the parameter lacks is no mistake by itself: it is a repeat, of which copies are written.

use std::collections::{BTreeMap, BTreeSet};

use super::read::Unread;
use super::{Layout, Mapping, Param, Rule};
use crate::diag::{Collector, Diagnostic, MappingCode};
use crate::notation::{AxisName, Dim, DimKind, Label, Term, for_each_axis, for_each_label};
use crate::span::Span;

/// Checks each parameter of each rule of a layout.
pub(super) fn check(mapping: &Mapping, layout: &Layout, unread: &Unread, errors: &mut Collector) {
    let axes = Axes { mapping, layout };
    for rule in &layout.rules {
        for name in rule.expr.params() {
            if let Some(param) = mapping.params.get(name).filter(|_| !unread.contains(name)) {
                check_param(&axes, rule, name, param, errors);
            }
        }
    }
}

fn check_param(axes: &Axes<'_>, rule: &Rule, name: &str, param: &Param, errors: &mut Collector) {
    let mut stored = Stored { param: name, axes: Vec::new(), ends: Vec::new(), place: None, blocks: 0 };
    let label = rule.expr.label.as_ref();
    for dim in &rule.expr.dims {
        stored.dims(std::slice::from_ref(dim), label);
        stored.ends.push(stored.axes.len());
    }
    let named = || rule.template.axes().chain(stored.axes.iter().map(|(axis, _)| axis.as_str()));
    // A label inside another holds nothing, and a name that nobody declares has been told: what it stands for is not
    // known.
    let held = stored.place.is_some() || label.is_some_and(|label| stored.is(label));
    if !held || named().chain(param.axes.iter().map(String::as_str)).any(|axis| !axes.is_known(axis)) {
        return;
    }
    let present: BTreeSet<String> = named().map(str::to_owned).collect();
    let inside = axes.with_parts(present);
    let missing: Vec<String> = param
        .axes
        .iter()
        .filter(|axis| !axes.is_covered(axis, &inside, &mut BTreeMap::new()))
        .map(|axis| format!("`{axis}`"))
        .collect();
    let canonical = param.axes.join(" ");
    let place = stored.place.as_ref().unwrap_or(&rule.expr.span);
    let complain = |code: MappingCode, message: String| {
        let why = format!("declared with the axes `{canonical}`");
        Diagnostic::error(code, message).rule(place).related(&param.span, why)
    };
    if !missing.is_empty() {
        let found: Vec<String> = named().map(|axis| format!("`{axis}`")).collect();
        let missing = missing.join(", ");
        errors.push(
            complain(MappingCode::MissingAxis, format!("`{name}` is stored without {missing}"))
                .expected(format!("all of `{canonical}`, in the expression or in the tensor's name"))
                .found(if found.is_empty() { "no axes".into() } else { found.join(", ") })
                .help(format!("add {missing} where the tensor has it, or correct the axes under `params`")),
        );
    }
    // An axis that the parameter lacks is a repeat, also where it stands twice; in one stored axis nothing stands twice.
    let own = axes.with_parts(param.axes.iter().cloned().collect());
    let mut seen = BTreeSet::new();
    let mut mine = stored.axes.iter().filter(|(axis, _)| own.contains(axis));
    let again = mine.find(|(axis, _)| !seen.insert(axis)).or_else(|| stored.twice_in_one());
    if stored.blocks < 2
        && let Some((twice, span)) = again
    {
        errors.push(
            complain(MappingCode::RepeatedAxis, format!("`{name}` is stored with `{twice}` twice"))
                .rule(span)
                .expected("each axis once")
                .found(format!("`{twice}` a second time"))
                .help("remove it, or declare a second axis of the same size"),
        );
    }
}

/// The axes under which an expression holds one parameter.
struct Stored<'a> {
    param: &'a str,
    axes: Vec<(String, Span)>,
    /// For each stored axis, where its axes end among them.
    ends: Vec<usize>,
    /// The first block that holds it.
    place: Option<Span>,
    /// Blocks that hold it, and blocks inside those.
    blocks: usize,
}

impl Stored<'_> {
    /// Returns an axis that stands twice in one stored axis.
    fn twice_in_one(&self) -> Option<&(String, Span)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).find_map(|(start, &end)| {
            let mut seen = BTreeSet::new();
            self.axes[start..end].iter().find(|(axis, _)| !seen.insert(axis))
        })
    }

    fn is(&self, label: &Label) -> bool {
        label.param.as_deref() == Some(self.param)
    }

    /// Collects the axes of dims that stand beside the parameter's block or in it; `label` is the one around them.
    fn dims(&mut self, dims: &[Dim], label: Option<&Label>) {
        for dim in dims {
            match &dim.kind {
                DimKind::Sum(terms) => {
                    self.blocks += usize::from(terms.len() > 1);
                    // A block that lacks its label has been told; it may be anyone's.
                    let labelled = terms.iter().any(|term| term.label.is_some());
                    let known = terms.iter().filter(|term| !labelled || term.label.is_some());
                    known.for_each(|term| self.term(term, label));
                }
                _ => for_each_axis(std::slice::from_ref(dim), &mut |axis, span| self.add(axis, span)),
            }
        }
    }

    fn term(&mut self, term: &Term, outer: Option<&Label>) {
        // A label inside another is an error of its own.
        let label = outer.or(term.label.as_ref());
        let mine = label.is_some_and(|label| self.is(label));
        // What another parameter's block holds says nothing of this one.
        if !mine && (label.is_some() || !may_hold(&term.dims, self.param)) {
            return;
        }
        if mine && term.label.is_some() {
            self.place.get_or_insert_with(|| term.span.clone());
        }
        self.dims(&term.dims, label);
    }

    fn add(&mut self, axis: AxisName<'_>, span: &Span) {
        self.axes.push((axis.to_string(), span.clone()));
    }
}

/// Returns whether axes without a label around them are beside the parameter: no label stands in them, or its own does.
fn may_hold(dims: &[Dim], param: &str) -> bool {
    let mut labels = Vec::new();
    for_each_label(dims, &mut |label| labels.push(label.param.as_deref() == Some(param)));
    labels.is_empty() || labels.contains(&true)
}

/// What the family and a layout say of axes.
struct Axes<'a> {
    mapping: &'a Mapping,
    layout: &'a Layout,
}

impl Axes<'_> {
    fn is_known(&self, name: &str) -> bool {
        name.parse::<u64>().is_ok() || self.mapping.axis(self.layout, name).is_some()
    }

    fn size(&self, name: &str) -> Option<u64> {
        name.parse().ok().or_else(|| self.mapping.axis(self.layout, name)?.size)
    }

    /// Returns the definitions of an axis, the layout's and the family's: of each block the axes that it names.
    fn definitions(&self, name: &str) -> Vec<Vec<Vec<String>>> {
        let all = [self.layout.axes.get(name), self.mapping.axes.get(name)].into_iter().flatten();
        all.filter_map(|axis| axis.is.as_ref()).map(|terms| terms.iter().map(axes_of).collect()).collect()
    }

    /// Returns the axes and all that they are composed of.
    fn with_parts(&self, axes: BTreeSet<String>) -> BTreeSet<String> {
        let mut all = axes.clone();
        let mut open: Vec<String> = axes.into_iter().collect();
        while let Some(axis) = open.pop() {
            for part in self.definitions(&axis).into_iter().flatten().flatten() {
                if all.insert(part.clone()) {
                    open.push(part);
                }
            }
        }
        all
    }

    /// Returns whether the axis is there, or all of one of the blocks that it is composed of. `known` holds the axes
    /// that were looked at: definitions name each other in more ways than can be gone through.
    fn is_covered(&self, axis: &str, present: &BTreeSet<String>, known: &mut BTreeMap<String, bool>) -> bool {
        if present.contains(axis) || self.size(axis) == Some(1) {
            return true;
        }
        if let Some(&covered) = known.get(axis) {
            return covered;
        }
        // Of a definition that leads back to itself nothing follows.
        known.insert(axis.to_owned(), false);
        let definitions = self.definitions(axis);
        let mut blocks = definitions.iter().flatten();
        let covered = blocks.any(|block| block.iter().all(|part| self.is_covered(part, present, known)));
        known.insert(axis.to_owned(), covered);
        covered
    }
}

fn axes_of(term: &Term) -> Vec<String> {
    let mut axes = Vec::new();
    for_each_axis(&term.dims, &mut |axis, _| axes.push(axis.to_string()));
    axes
}
