//! Tensors that a layout's readers cannot do without: missing in the source, or to be made for the target.

use std::collections::HashSet;

use super::ids::{ModuleId, ParamId};
use super::options::Allow;
use super::pair::Side;
use super::unknowns::Unknowns;
use super::{Binding, Indices, OrderedSet, explain};
use crate::diag::{Collector, Diagnostic};
use crate::mapping::{Condition, Needed, Rule};
use crate::provenance::Facts;

/// Returns the conditions because of which the tensor must be there in every module: those of the config that hold, or
/// none where it always must.
pub(super) fn reason<'r>(rule: &'r Rule, facts: &Facts<'_>) -> Option<&'r [Condition]> {
    match rule.needed.as_ref()? {
        Needed::Always => Some(&[]),
        Needed::Where(any) => {
            any.iter().find(|conditions| facts.hold(conditions) == Some(true)).map(Vec::as_slice)
        }
        Needed::Beside(_) => None,
    }
}

impl<'a> Binding<'a> {
    /// Returns what the source says of itself, as the framework of one side reads it.
    pub(super) fn facts(&self, side: Side) -> Facts<'a> {
        self.options.provenance.of(self.pair.layout(side))
    }

    /// Returns the places of a module where a rule's tensors must be.
    fn needed_places(&self, side: Side, rule: usize, module: ModuleId) -> OrderedSet<Indices> {
        let held = &self.pair.layout(side).rules[rule];
        let params = &self.pair.rules(side)[rule].params;
        if let Some(Needed::Beside(other)) = &held.needed {
            let Some(other) = ParamId::find(self.pair.mapping, other) else {
                return OrderedSet::default();
            };
            let most = params.iter().max_by_key(|&&param| self.pair.params[param].instance_axes.len());
            let Some(&most) = most else { return OrderedSet::default() };
            let axes = self.pair.params[most].instance_axes.len();
            let beside = self.by_module(module, other).map(|values| self.instance_values(most, values));
            return beside.filter(|values| values.len() == axes).collect();
        }
        let is_needed = reason(held, &self.facts(side)).is_some()
            && params.iter().all(|&param| self.is_module_of(module, param));
        if is_needed { self.places(module, params) } else { OrderedSet::default() }
    }

    /// Returns the places of a module where a target tensor is made of zeros because its readers need it.
    pub(super) fn made_of_zeros(&self, rule: usize, module: ModuleId) -> OrderedSet<Indices> {
        let zeros = |&param: &ParamId| self.pair.mapping.params[param].absent_zeros;
        let holds =
            self.facts(Side::Target).hold(&self.pair.layout(Side::Target).rules[rule].when) == Some(true);
        match holds && self.pair.target_rules[rule].params.iter().all(zeros) {
            true => self.needed_places(Side::Target, rule, module),
            false => OrderedSet::default(),
        }
    }

    /// What the source's readers cannot do without must be there; so must what the target's cannot, or be made.
    pub(super) fn check_needed(&self, unknowns: &mut Unknowns<'_>, errors: &mut Collector) {
        if self.options.allows(Allow::Missing) {
            return;
        }
        let mut told: HashSet<(ParamId, ModuleId, Indices)> = HashSet::default();
        for side in [Side::Source, Side::Target] {
            for (at, rule) in self.pair.layout(side).rules.iter().enumerate() {
                if rule.needed.is_none() || self.facts(side).hold(&rule.when) != Some(true) {
                    continue;
                }
                for module in self.keys.module_ids() {
                    for place in self.needed_places(side, at, module) {
                        // A copy is needed though its parameter is held elsewhere.
                        let is_copy = side == Side::Source && rule.optional;
                        if is_copy && !self.is_held(at, module, &place) {
                            let param = self.pair.rules(side)[at].params[0];
                            errors.push(self.needs(side, rule, param, module, &place));
                            continue;
                        }
                        for &param in &self.pair.rules(side)[at].params {
                            let declared = &self.pair.mapping.params[param];
                            let values = self.instance_values(param, &place);
                            let scopes = unknowns.scopes(module, param, values.clone());
                            let is_made = side == Side::Target && declared.absent_zeros;
                            if declared.is_required() || is_made || self.instances.find(scopes).is_some() {
                                continue;
                            }
                            if told.insert((param, module, values.clone())) {
                                errors.push(self.needs(side, rule, param, module, &values));
                            }
                        }
                    }
                }
            }
        }
    }

    /// Returns whether the source has a tensor of that rule in that place.
    fn is_held(&self, rule: usize, module: ModuleId, place: &Indices) -> bool {
        self.held.iter().any(|held| {
            held.rule == rule
                && held.module == module
                && place.iter().all(|index| held.indices.contains(index))
        })
    }

    /// Says which tensor is missing, and what needs it.
    fn needs(
        &self,
        side: Side,
        rule: &Rule,
        param: ParamId,
        module: ModuleId,
        values: &Indices,
    ) -> Diagnostic {
        let layout = self.pair.layout(side);
        let name = param.name(self.pair.mapping);
        let mut error = match side {
            Side::Source => explain::missing_of(self, rule, param, module, values),
            Side::Target => explain::missing(self, param, module, values),
        };
        let facts = self.facts(side);
        let found = reason(rule, &facts).unwrap_or_default().iter().map(|condition| {
            match facts.get(&condition.key) {
                Some(fact) => format!("{} is {}", fact.place(), fact.value),
                None => {
                    format!("`{}` is missing in {}", condition.key, facts.describes().unwrap_or("the config"))
                }
            }
        });
        let mut found: Vec<String> = found.collect();
        if let Some(Needed::Beside(other)) = &rule.needed {
            found.push(format!("`{other}` is there"));
        }
        let found = if found.is_empty() { String::new() } else { format!(": {}", found.join(", ")) };
        error.message = match side {
            Side::Source => format!("`{name}` is missing{found}"),
            Side::Target => format!(
                "`{name}` is missing, and readers of the layout `{}` cannot do without it{found}",
                layout.name
            ),
        };
        if side == Side::Target {
            error = error.related(&rule.template.span, "the tensor that would be missing");
        }
        error.help = None;
        error.help(match (side, found.is_empty()) {
            (Side::Source, true) => "complete the checkpoint: another file of it holds the tensor",
            (Side::Source, false) => {
                "complete the checkpoint: another file of it holds the tensor; or correct the config, where it is that of another model"
            }
            (Side::Target, _) => "choose a target layout that does without it, or complete the source",
        })
    }
}
