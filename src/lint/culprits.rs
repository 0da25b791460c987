//! Which layout is wrong where attention that is computed from two of them differs.

use std::collections::{BTreeMap, BTreeSet};

use super::compute::{Attention, Computed, Located};
use super::pairs::{Outcome, Pairs, is_canonical, some};
use super::picture::draw;
use super::setting::Setting;
use super::trial::{Checkpoint, convert};
use super::{Finding, Report};
use crate::diag::{Diagnostic, LintCode};
use crate::mapping::Layout;

/// A pair whose computations differ.
struct Difference<'a> {
    /// The pair's number.
    at: usize,
    layouts: [&'a Layout; 2],
    computed: Computed,
}

/// Reports what was computed, and for each difference the layout that is wrong: the one that contradicts its own
/// canonical order, else the one that differs from most.
pub(super) fn report(pairs: &Pairs<'_>, outcomes: &[Outcome], report: &mut Report) {
    let mut compared: BTreeSet<(String, String)> = BTreeSet::new();
    let mut differences: BTreeMap<&str, Vec<Difference<'_>>> = BTreeMap::new();
    for (at, (layouts, outcome)) in pairs.all.iter().zip(outcomes).enumerate() {
        for (kind, computed) in &outcome.computed {
            if computed.is_wrong() {
                let difference = Difference { at, layouts: *layouts, computed: computed.clone() };
                differences.entry(kind).or_default().push(difference);
            }
            // A layout that is compared with itself is read in one way alone.
            if layouts[0].name != layouts[1].name && !matches!(computed, Computed::Absent) {
                compared.extend(layouts.iter().map(|layout| (layout.name.clone(), kind.clone())));
            }
        }
    }
    let name = |layout: &str, kind: &str| {
        if kind.is_empty() { layout.to_owned() } else { format!("{layout} ({kind})") }
    };
    for layout in report.layouts.clone() {
        let Some(declared) = pairs.mapping.layouts.get(&layout) else { continue };
        for kind in declared.forwards.keys() {
            if compared.contains(&(layout.clone(), kind.clone())) {
                report.computed.push(name(&layout, kind));
            } else {
                let why =
                    "no other layout computes it, and names do not tell which parameters are q, k, v and o";
                report.unchecked.push(format!("attention of `{}`: {why}", name(&layout, kind)));
            }
        }
    }
    for (kind, mut left) in differences {
        while let Some((culprit, sure)) = most_wrong(&left) {
            let mine =
                |difference: &Difference<'_>| difference.layouts.iter().any(|layout| layout.name == culprit);
            let (its, others): (Vec<_>, Vec<_>) = left.into_iter().partition(mine);
            left = others;
            report.findings.push(finding(pairs, kind, &culprit, sure, &its));
        }
    }
}

/// Returns the layout that is wrong, and whether that is sure.
fn most_wrong(left: &[Difference<'_>]) -> Option<(String, bool)> {
    let own = left.iter().find(|difference| difference.layouts.iter().any(|layout| is_canonical(layout)));
    if let Some(own) = own {
        let layout = own.layouts.iter().find(|layout| !is_canonical(layout))?;
        return Some((layout.name.clone(), true));
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for layout in left.iter().flat_map(|difference| difference.layouts) {
        *counts.entry(&layout.name).or_default() += 1;
    }
    let most = counts.values().max()?;
    let mut first = counts.iter().filter(|(_, count)| *count == most);
    let (name, _) = first.next()?;
    Some(((*name).to_owned(), first.next().is_none()))
}

fn finding(pairs: &Pairs<'_>, kind: &str, culprit: &str, sure: bool, its: &[Difference<'_>]) -> Finding {
    let ways: Vec<String> = its
        .iter()
        .map(|difference| format!("{} -> {}", difference.layouts[0].name, difference.layouts[1].name))
        .collect();
    // The clearest counter-example is against the canonical order.
    let clearest = its.iter().find(|difference| difference.layouts.iter().any(|layout| is_canonical(layout)));
    let Some(clearest) = clearest.or(its.first()) else {
        return Diagnostic::error(LintCode::Forward, "attention differs").into();
    };
    let wrong = usize::from(clearest.layouts[0].name != culprit);
    let (layout, other) = (clearest.layouts[wrong], clearest.layouts[1 - wrong]);
    let of = if kind.is_empty() { String::new() } else { format!(" `{kind}`") };
    let message = match (&clearest.computed, sure) {
        (Computed::Broken(why), _) => {
            format!("the attention{of} of `{culprit}` cannot be computed as `forward` says: {why}")
        }
        (_, true) => format!("the expressions of `{culprit}` contradict its `forward`{of}"),
        (_, false) => format!("`{culprit}` and `{}` do not compute the same attention{of}", other.name),
    };
    let mut diagnostic = Diagnostic::error(LintCode::Forward, message);
    let forward = layout.forwards.get(kind);
    let mut picture = Vec::new();
    let setting = pairs.setting(clearest.at);
    let located = setting.as_ref().and_then(|setting| smallest(pairs, setting, kind, wrong));
    if let Some((setting, sides, located)) = &located {
        let tensors = &sides[wrong].tensors;
        let place = |(at, flat): (usize, usize)| {
            let tensor = &tensors[at].tensor;
            format!("`{}` {:?}", tensor.key, tensor.index(flat as u64))
        };
        let stored = &tensors[located.found.0];
        let element = setting.name(&located.element);
        diagnostic = diagnostic.rule(&layout.rules[stored.tensor.rule].expr.span);
        diagnostic = diagnostic.found(format!("{element} at {}, by the expression", place(located.found)));
        diagnostic = diagnostic.expected(match located.expected {
            Some(expected) => format!("{element} at {}, where `forward` reads it", place(expected)),
            None => format!("{element} where `{}` computes with it", other.name),
        });
        let same = located.expected.filter(|(at, _)| *at == located.found.0).map(|(_, flat)| flat);
        picture = draw(setting, stored, located.found.1, same);
        if let Some((at, flat)) = located.expected.filter(|(at, _)| *at != located.found.0) {
            let there = draw(setting, &tensors[at], flat, None);
            picture.push("expected in".to_owned());
            picture.extend(there);
        }
    } else if let Computed::Differs(differences) = &clearest.computed {
        let parts: Vec<String> =
            differences.parts().iter().map(|(name, value)| format!("{name} {value:.1e}")).collect();
        diagnostic = diagnostic.found(format!("relative differences {}", parts.join(", ")));
    }
    if let Some(forward) = forward {
        diagnostic = match diagnostic.rule {
            Some(_) => diagnostic.related(&forward.span, "its `forward`"),
            None => diagnostic.rule(&forward.span),
        };
    }
    let diagnostic = diagnostic.help(format!("correct the one or the other; seen in {}", some(&ways)));
    Finding { diagnostic, picture }
}

/// Finds the smallest model on which the two still differ, and an element that shows it.
fn smallest<'a>(
    pairs: &Pairs<'a>,
    setting: &Setting<'a>,
    kind: &str,
    wrong: usize,
) -> Option<(Setting<'a>, [Checkpoint; 2], Located)> {
    let located = |setting: &Setting<'a>| {
        let sides = convert(setting).ok()?;
        let attention = Attention::new(setting, &sides, kind)?;
        let located =
            matches!(attention.compute(), Computed::Differs(_)).then(|| attention.locate(wrong))??;
        Some((sides, located))
    };
    let (setting, (sides, located)) = match pairs.smaller(setting, &located) {
        Some(found) => found,
        None => (setting.clone(), located(setting)?),
    };
    Some((setting, sides, located))
}
