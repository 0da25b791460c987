//! What happens to each tensor between two layouts of a family, in words.

use super::order::{Order, Side};
use super::place::{Place, places};
use super::{condition, condition_words};
use crate::bind::AxisSizes;
use crate::mapping::{Layout, Mapping, Needed, Rule, Unmapped, exclude_each_other};

/// Two layouts of a family, and the sizes that are known; places are numbers where they say it.
pub struct Route<'a> {
    /// The family.
    pub mapping: &'a Mapping,
    /// The layout of the source.
    pub source: &'a Layout,
    /// The layout of the target.
    pub target: &'a Layout,
    /// Sizes of axes.
    pub sizes: &'a AxisSizes,
}

/// A rule's parameters, each with its places.
fn held(rule: &Rule) -> Vec<(&str, Vec<Place>)> {
    rule.expr.params().into_iter().map(|param| (param, places(&rule.expr, Some(param)))).collect()
}

impl Route<'_> {
    /// Tells it, one line for each part of a source tensor, then what the target has beside them.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for rule in &self.source.rules {
            for (param, places) in held(rule) {
                for place in places {
                    self.moved(rule, param, &place, &mut lines);
                }
            }
            for place in places(&rule.expr, None) {
                lines.push(format!("{}: padding, left out; it must be zero", self.name(rule, &place)));
            }
        }
        for rule in &self.target.rules {
            self.made(rule, &mut lines);
        }
        for template in &self.source.ignore {
            lines.push(format!("{template}: left out, ignored by the layout"));
        }
        lines.push(match self.mapping.unmapped {
            Unmapped::Keep => "all other tensors pass through, bytes and names untouched".to_owned(),
            Unmapped::Error => "any other tensor is an error".to_owned(),
        });
        lines
    }

    /// Tells where a part of a source tensor goes.
    fn moved(&self, rule: &Rule, param: &str, place: &Place, lines: &mut Vec<String>) {
        let from = self.name(rule, place);
        let mut notes = condition(&rule.when);
        // Another rule that holds the same parameter at the same time is a tied copy.
        let earlier = self.source.rules.iter().take_while(|other| !std::ptr::eq(*other, rule));
        let same = |other: &&Rule| {
            other.expr.params().contains(&param) && !exclude_each_other(&other.when, &rule.when)
        };
        if let Some(other) = earlier.into_iter().find(same).filter(|_| rule.optional) {
            notes.push_str(&format!("; a tied copy, it must equal {}", other.template));
        }
        let mut count = 0;
        for target in &self.target.rules {
            if exclude_each_other(&target.when, &rule.when) {
                continue;
            }
            for to in places(&target.expr, Some(param)) {
                count += 1;
                let order = Order {
                    mapping: self.mapping,
                    param,
                    source: Side { layout: self.source, template: &rule.template, place },
                    target: Side { layout: self.target, template: &target.template, place: &to },
                };
                let tied = if target.optional { ", a tied copy" } else { "" };
                lines.push(format!(
                    "{from} → {}, {}{}{tied}{}{notes}",
                    self.name(target, &to),
                    order.words(),
                    self.values(rule, target),
                    condition(&target.when)
                ));
            }
        }
        if count == 0 {
            let declared = self.mapping.params.get(param);
            let zeros = declared.is_some_and(|param| param.absent_zeros);
            let holds = |other: &&String| {
                self.target.rules.iter().any(|rule| rule.expr.params().contains(&other.as_str()))
            };
            let tied = declared.and_then(|param| param.tied.as_ref()).filter(holds);
            // As the binding has it: a config that promises the tensor says that it is no copy.
            let promised = matches!(rule.needed, Some(Needed::Where(_)));
            lines.push(match (tied, zeros) {
                (Some(other), _) => format!(
                    "{from}: {param} has no place in the target; it must equal {other} and is left out{}{notes}",
                    if promised { ", an error where the config unties the two" } else { "" }
                ),
                (None, true) => format!(
                    "{from}: {param} has no place in the target; it must be zeros and is left out{notes}"
                ),
                (None, false) => format!(
                    "{from}: {param} has no place in the target; where it is there that is an error{notes}"
                ),
            });
        }
    }

    /// Tells what a target tensor has beside what comes from the source.
    fn made(&self, rule: &Rule, lines: &mut Vec<String>) {
        let comes = |param: &str| self.source.holds(param);
        let held = held(rule);
        let some = held.iter().any(|(param, _)| comes(param));
        let notes = condition(&rule.when);
        for (param, places) in held.iter().filter(|(param, _)| !comes(param)) {
            let Some(declared) = self.mapping.params.get(*param) else { continue };
            for place in places {
                let to = self.name(rule, place);
                let is_needed = matches!(rule.needed, Some(Needed::Always));
                lines.push(match (declared.absent_zeros, declared.optional, some) {
                    (true, false, _) | (true, true, true) => format!("zeros → {to} ({param}){notes}"),
                    (false, true, _) if is_needed => {
                        format!("{to}: the source has no {param}, which is needed; that is an error{notes}")
                    }
                    (_, true, _) => format!("{to}: not written, the source has no {param}{notes}"),
                    (false, false, _) => {
                        format!("{to}: the source has no {param}; that is an error{notes}")
                    }
                });
            }
        }
        // A part that the source may lack beside parts that are there.
        for (param, places) in held.iter().filter(|(param, _)| comes(param) && held.len() > 1) {
            let zeros = self.mapping.params.get(*param).is_some_and(|param| param.absent_zeros);
            for place in places.iter().filter(|_| zeros) {
                lines.push(format!(
                    "zeros → {} where the source has no {param}{notes}",
                    self.name(rule, place)
                ));
            }
        }
        // A part that is tied to another where the source lacks it.
        for (param, places) in held.iter().filter(|(param, _)| comes(param) && rule.needed.is_some()) {
            for place in places {
                self.tied(rule, param, place, lines);
            }
        }
        for place in places(&rule.expr, None) {
            lines.push(format!("zeros → {}, padding{notes}", self.name(rule, &place)));
        }
        if held.iter().any(|(_, places)| places.iter().any(|place| place.is_diagonal())) {
            lines.push(format!("zeros → the rest of {}{notes}", rule.template));
        }
    }

    /// Tells of which tensors a target tensor is a copy where the source lacks its own parameter.
    fn tied(&self, rule: &Rule, param: &str, to: &Place, lines: &mut Vec<String>) {
        let Some(tied) = self.mapping.params.get(param).and_then(|param| param.tied.as_deref()) else {
            return;
        };
        let holders = self.source.rules.iter().filter(|source| !exclude_each_other(&source.when, &rule.when));
        for source in holders {
            for from in places(&source.expr, Some(tied)) {
                let order = Order {
                    mapping: self.mapping,
                    param: tied,
                    source: Side { layout: self.source, template: &source.template, place: &from },
                    target: Side { layout: self.target, template: &rule.template, place: to },
                };
                lines.push(format!(
                    "{} → {}, {}, where the source has no {param} and this is needed{}{}",
                    self.name(source, &from),
                    self.name(rule, to),
                    order.words(),
                    self.values(source, rule),
                    condition(&rule.when)
                ));
            }
        }
    }

    fn name(&self, rule: &Rule, place: &Place) -> String {
        let words = place.words(self.sizes);
        let gap = if words.is_empty() { "" } else { " " };
        format!("{}{gap}{words}", rule.template)
    }

    /// Tells how values change.
    fn values(&self, source: &Rule, target: &Rule) -> String {
        let text = |rule: &Rule| {
            let part = |formula: &Option<crate::mapping::arith::Formula>| {
                formula.as_ref().map(|formula| formula.span.text().trim_matches('"').to_owned())
            };
            (part(&rule.scale), part(&rule.offset))
        };
        if text(source) == text(target) {
            return String::new();
        }
        let stored = |rule: &Rule| match text(rule) {
            (None, None) => "parameter".to_owned(),
            (Some(scale), None) => format!("parameter × ({scale})"),
            (None, Some(offset)) => format!("parameter + ({offset})"),
            (Some(scale), Some(offset)) => format!("parameter × ({scale}) + ({offset})"),
        };
        format!(", values converted from {} to {}", stored(source), stored(target))
    }

    /// Tells what must hold of the configs.
    pub fn conditions(&self) -> Vec<String> {
        let of = |layout: &Layout| {
            let words = condition_words(&layout.when);
            words.map(|words| format!("{} holds where {words}", layout.name))
        };
        [self.source, self.target].into_iter().filter_map(of).collect()
    }
}
