//! Parameters that one side holds and the other does not, because they are tied to another: an output layer that is the
//! embedding.
//!
//! One that the source lacks and the target's readers need is written as a copy of the other; one that the target has no
//! tensor for is read as the other, so that the two must be equal. Either way a rule's label is exchanged before anything
//! is bound, and all that follows, the proof and the reading back included, sees one parameter with two tensors.

use super::names::names_for_rules;
use super::needed::reason;
use super::options::{Allow, BindOptions};
use crate::catalog::Catalog;
use crate::diag::{BindCode, Collector, Diagnostic};
use crate::mapping::{Layout, Mapping, Needed, Rule};
use crate::notation::{Dim, DimKind, Label};
use crate::provenance::Facts;

/// The two layouts, where a label of them was exchanged, and what to tell of it.
#[derive(Default)]
pub(super) struct Ties {
    pub(super) source: Option<Layout>,
    pub(super) target: Option<Layout>,
    pub(super) warnings: Vec<Diagnostic>,
}

/// Finds the parameters that stand for another one in this conversion.
pub(super) fn settle(
    mapping: &Mapping,
    source: &Layout,
    target: &Layout,
    catalog: &Catalog,
    options: &BindOptions,
) -> Ties {
    let facts = options.provenance.of(source);
    let mut ties = Ties::default();
    let mut names: Option<Vec<String>> = None;
    for (param, declared) in &mapping.params {
        let Some(other) = &declared.tied else { continue };
        let counts = |rule: &&Rule| facts.hold(&rule.when) != Some(false);
        let holding = |layout: &'_ Layout, param: &str| -> usize {
            layout.rules.iter().filter(counts).filter(|rule| rule.expr.params().contains(&param)).count()
        };
        let own =
            || source.rules.iter().filter(counts).filter(|rule| rule.expr.params().contains(&param.as_str()));
        if options.allows(Allow::Missing) {
            continue;
        }
        // A source that lacks what its readers need is incomplete; one whose config promises it holds two parameters.
        let needed = || own().filter_map(|rule| reason(rule, &facts));
        let (is_needed, is_untied) = (needed().next().is_some(), needed().any(|config| !config.is_empty()));
        // What a checkpoint of that layout never holds may be anything, unless the layout holds the other twice.
        let is_tied = !is_needed && (own().next().is_some() || holding(source, other) > 1);
        let there = options.provenance.of(target);
        let wanted =
            |rule: &Rule| rule.expr.params().contains(&param.as_str()) && reason(rule, &there).is_some();
        let is_wanted = is_tied && target.rules.iter().filter(counts).any(wanted);
        let has_no_place =
            !is_untied && holding(target, param) == 0 && holding(target, other) > 0 && own().next().is_some();
        if !is_wanted && !has_no_place {
            continue;
        }
        let names = names.get_or_insert_with(|| {
            names_for_rules(Some(source), catalog, options, &mut Collector::default())
        });
        let is_there = names.iter().any(|name| {
            let (file, key) = source.split_name(name);
            own().any(|rule| rule.template.matches(file, key).is_some())
        });
        if is_there && has_no_place {
            let layout = ties.source.get_or_insert_with(|| source.clone());
            layout.rules.iter_mut().for_each(|rule| exchange(rule, param, other));
        } else if !is_there && is_wanted {
            let layout = ties.target.get_or_insert_with(|| target.clone());
            let rules = layout.rules.iter_mut().zip(&target.rules).filter(|(_, rule)| wanted(rule));
            for (rule, _) in rules {
                exchange(rule, param, other);
                rule.optional = false;
            }
            if !is_told(own(), &facts) && own().next().is_some() {
                let warning = Diagnostic::warning(
                    BindCode::Tied,
                    format!("`{param}` is not in the source: the target gets a copy of `{other}`"),
                );
                ties.warnings.push(
                    warning.file(&catalog.path).help(
                        "right where the model ties the two; its config, given with --config, would tell",
                    ),
                );
            }
        }
    }
    ties
}

/// Returns whether the config says that a parameter is not one of its own: an entry that would say so says otherwise.
fn is_told<'r>(mut rules: impl Iterator<Item = &'r Rule>, facts: &Facts<'_>) -> bool {
    rules.any(|rule| match &rule.needed {
        Some(Needed::Where(any)) => any.iter().any(|conditions| match &conditions[..] {
            [only] => facts.value(&only.key).is_some_and(|value| !only.holds(Some(value))),
            _ => false,
        }),
        _ => false,
    })
}

/// Labels what a rule holds of one parameter as the other.
fn exchange(rule: &mut Rule, param: &str, other: &str) {
    let rename = &|label: &mut Label| {
        if label.param.as_deref() == Some(param) {
            label.param = Some(other.to_owned());
        }
    };
    rule.expr.label.iter_mut().for_each(rename);
    in_dims(&mut rule.expr.dims, rename);
}

fn in_dims(dims: &mut [Dim], rename: &impl Fn(&mut Label)) {
    for dim in dims {
        if let DimKind::Sum(terms) = &mut dim.kind {
            for term in terms {
                term.label.iter_mut().for_each(rename);
                in_dims(&mut term.dims, rename);
            }
        }
    }
}
