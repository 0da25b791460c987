//! Every ordered pair of layouts, each on several models.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use indexmap::IndexMap;

use super::canonical::NAME;
use super::compute::{Attention, Computed};
use super::picture::draw;
use super::setting::{Optional, Setting, configs};
use super::sizes::Equations;
use super::trial::{Failure, Misplaced, convert};
use super::{Finding, Report};
use crate::bind::AxisSizes;
use crate::diag::{Code, Diagnostic, Errors, LintCode};
use crate::mapping::{Layout, Mapping};
use crate::parallel::in_parallel;
use crate::progress::Progress;

/// How many choices of small sizes are tried for a counter-example.
pub(super) const SMALLER: u64 = 40;

/// The pairs of a file.
pub(super) struct Pairs<'a> {
    pub(super) mapping: &'a Mapping,
    pub(super) all: Vec<[&'a Layout; 2]>,
    /// For each pair the sizes of its models; `None` where none fit both layouts.
    sizes: Vec<Option<AxisSizes>>,
}

/// What became of a pair.
#[derive(Default)]
pub(super) struct Outcome {
    models: usize,
    sizes: AxisSizes,
    findings: Vec<Finding>,
    /// Why it could not be tried.
    untried: Option<String>,
    /// What each kind of attention came to.
    pub(super) computed: BTreeMap<String, Computed>,
}

impl<'a> Pairs<'a> {
    /// Lists all pairs in which a layout of the file stands, and each such layout with the canonical order.
    pub(super) fn new(
        mapping: &'a Mapping,
        own: &[&'a Layout],
        canonical: &'a BTreeMap<&str, Layout>,
    ) -> Pairs<'a> {
        let is_own = |layout: &Layout| own.iter().any(|other| other.name == layout.name);
        let mut all = Vec::new();
        for from in mapping.layouts.values() {
            let to = mapping.layouts.values().filter(|to| is_own(from) || is_own(to));
            all.extend(to.map(|to| [from, to]));
        }
        for layout in own {
            if let Some(canonical) = canonical.get(layout.name.as_str()) {
                all.extend([[*layout, canonical], [canonical, *layout]]);
            }
        }
        // Most pairs of a family say the same of their sizes.
        let mut known: HashMap<String, Option<AxisSizes>> = HashMap::default();
        let sizes = all.iter().map(|layouts| {
            let equations = Equations::new(mapping, *layouts);
            known.entry(equations.signature()).or_insert_with(|| equations.solve(7, false)).clone()
        });
        let sizes = sizes.collect();
        Pairs { mapping, all, sizes }
    }

    /// Tries all.
    ///
    /// # Errors
    /// Returns cancellation.
    pub(super) fn run(&self, threads: usize, progress: &dyn Progress) -> Result<Vec<Outcome>, Errors> {
        in_parallel(self.all.len(), threads, progress, &|at| Ok(self.one(at)))
    }

    /// Returns the models on which a pair is tried.
    fn settings(&self, layouts: [&'a Layout; 2], sizes: &AxisSizes) -> Vec<Setting<'a>> {
        let mut settings: Vec<Setting<'a>> = Vec::new();
        for config in configs(layouts) {
            for optional in [Optional::Present, Optional::Absent] {
                let made = Setting::new(self.mapping, layouts, config.clone(), optional, sizes.clone());
                let is_new =
                    |made: &Setting<'a>| settings.iter().all(|known| known.takes_part != made.takes_part);
                settings.extend(made.filter(is_new));
            }
        }
        settings
    }

    fn one(&self, at: usize) -> Outcome {
        let mut outcome = Outcome::default();
        let layouts = self.all[at];
        let Some(sizes) = &self.sizes[at] else {
            outcome.untried = Some("no sizes fit both layouts".to_owned());
            return outcome;
        };
        let settings = self.settings(layouts, sizes);
        if settings.is_empty() {
            outcome.untried =
                Some("they have no model in common: one lacks what the other requires".to_owned());
        }
        outcome.sizes.clone_from(sizes);
        for setting in settings {
            outcome.models += 1;
            match convert(&setting) {
                Ok(sides) => {
                    for kind in layouts[0].forwards.keys() {
                        let Some(attention) = Attention::new(&setting, &sides, kind) else { continue };
                        let computed = attention.compute();
                        let known = outcome.computed.entry(kind.clone()).or_insert(Computed::Absent);
                        if matches!(known, Computed::Absent) || computed.is_wrong() {
                            *known = computed;
                        }
                    }
                }
                Err(Failure::Refused(errors)) => {
                    outcome.findings.extend(errors.into_iter().map(Finding::from))
                }
                Err(Failure::Misplaced(misplaced)) => {
                    let smaller = self.smaller(&setting, &|setting| match convert(setting) {
                        Err(Failure::Misplaced(misplaced)) => Some(*misplaced),
                        _ => None,
                    });
                    outcome.findings.push(match &smaller {
                        Some((setting, misplaced)) => misplaced_finding(setting, misplaced),
                        None => misplaced_finding(&setting, &misplaced),
                    });
                }
            }
        }
        outcome
    }

    /// Finds the smallest model on which something still fails.
    pub(super) fn smaller<T>(
        &self,
        setting: &Setting<'a>,
        fails: &dyn Fn(&Setting<'a>) -> Option<T>,
    ) -> Option<(Setting<'a>, T)> {
        let equations = Equations::new(self.mapping, setting.layouts);
        let mut best: Option<(u64, Setting<'a>, T)> = None;
        for seed in 0..SMALLER {
            let Some(sizes) = equations.solve(seed, true) else { continue };
            let weight: u64 = sizes.values().sum();
            if best.as_ref().is_some_and(|(least, ..)| *least <= weight) {
                continue;
            }
            let config = setting.config.clone();
            let Some(made) = Setting::new(self.mapping, setting.layouts, config, Optional::Present, sizes)
            else {
                continue;
            };
            if let Some(failure) = fails(&made) {
                best = Some((weight, made, failure));
            }
        }
        best.map(|(_, setting, failure)| (setting, failure))
    }

    /// Makes the model of a pair on which attention is computed again.
    pub(super) fn setting(&self, at: usize) -> Option<Setting<'a>> {
        self.settings(self.all[at], self.sizes[at].as_ref()?).into_iter().next()
    }

    /// Sums up what became of the pairs, but for attention.
    pub(super) fn report(&self, outcomes: &[Outcome], report: &mut Report) {
        let mut merged: IndexMap<(Code, String, String), (Finding, Vec<String>)> = IndexMap::new();
        let mut untried: IndexMap<&str, Vec<String>> = IndexMap::new();
        for ([from, to], outcome) in self.all.iter().zip(outcomes) {
            let way = format!("{} -> {}", from.name, to.name);
            report.models += outcome.models;
            match &outcome.untried {
                None => report.pairs += 1,
                Some(why) => untried.entry(why).or_default().push(way.clone()),
            }
            if report.sizes.is_empty() && from.name != to.name {
                report.sizes.clone_from(&outcome.sizes);
            }
            for finding in &outcome.findings {
                let found = &finding.diagnostic;
                let place = found.rule.as_ref().map(|span| span.place()).unwrap_or_default();
                let key = (found.code, found.message.clone(), place);
                let ways = &mut merged.entry(key).or_insert_with(|| (finding.clone(), Vec::new())).1;
                if !ways.contains(&way) {
                    ways.push(way.clone());
                }
            }
        }
        if report.sizes.is_empty() {
            report.sizes = outcomes.first().map(|outcome| outcome.sizes.clone()).unwrap_or_default();
        }
        for (mut finding, ways) in merged.into_values() {
            let help = finding.diagnostic.help.take().map_or(String::new(), |help| format!("; {help}"));
            finding.diagnostic.file = None;
            finding.diagnostic.help = Some(format!("seen in {}{help}", some(&ways)));
            report.findings.push(finding);
        }
        let untried = untried.into_iter().map(|(why, ways)| format!("{}: {why}", some(&ways)));
        report.unchecked.extend(untried);
        let mut without: BTreeSet<String> = BTreeSet::new();
        for layout in &report.layouts {
            let with_forward =
                self.mapping.layouts.get(layout).is_some_and(|layout| !layout.forwards.is_empty());
            if !with_forward {
                without.insert(format!("`{layout}` does not say how it computes (`forward`)"));
            }
        }
        report.unchecked.extend(without);
    }
}

/// Writes the first of a list, and how many more there are.
pub(super) fn some(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        [one, rest @ ..] => format!("{one} and {} more pairs", rest.len()),
    }
}

fn misplaced_finding(setting: &Setting<'_>, misplaced: &Misplaced) -> Finding {
    let Misplaced { stored, at } = misplaced;
    let [from, to] = setting.layouts;
    let rule = &to.rules[stored.tensor.rule];
    let wanted = stored.places[*at].map_or("zero".to_owned(), |place| setting.name(&place));
    let found = stored.values[*at];
    let found =
        found_name(setting, found, stored).unwrap_or_else(|| format!("a value of no element: {found}"));
    let index = stored.tensor.index(*at as u64);
    let diagnostic = Diagnostic::error(
        LintCode::Misplaced,
        format!(
            "from `{}` to `{}` an element goes to another place than the expressions say",
            from.name, to.name
        ),
    )
    .rule(&rule.expr.span)
    .tensor(&stored.tensor.key)
    .expected(format!("{wanted} at {index:?}"))
    .found(found);
    Finding { diagnostic, picture: draw(setting, stored, *at, None) }
}

/// Finds the element of a tensor's parameters that has a value.
fn found_name(setting: &Setting<'_>, value: f64, stored: &super::trial::Stored) -> Option<String> {
    let place = stored.places.iter().flatten().find(|place| setting.value(place) == value)?;
    Some(setting.name(place))
}

/// Returns whether a layout is the canonical order of another.
pub(super) fn is_canonical(layout: &Layout) -> bool {
    layout.name == NAME
}
