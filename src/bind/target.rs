//! The target's tensors: which there are, in which modules and instances, and what is missing for them.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::ids::{AxisId, InstanceId, ModuleId, ParamId};
use super::needed;
use super::options::Allow;
use super::pair::Side;
use super::unknowns::{Scopes, Unknowns};
use super::{Binding, Indices, OrderedMap, OrderedSet, explain};
use crate::diag::Collector;

/// The tensors of one target rule in one module and instance; the other axes of its name are enumerated later.
pub(super) struct Group {
    pub(super) rule: usize,
    pub(super) module: ModuleId,
    pub(super) values: Indices,
    pub(super) scopes: SmallVec<[Scopes; 3]>,
    /// Per parameter of the rule, where the source has it.
    pub(super) instances: SmallVec<[Option<InstanceId>; 3]>,
}

impl Binding<'_> {
    /// Finds what the target will hold, and what is missing for it.
    pub(super) fn target_groups(&self, unknowns: &mut Unknowns<'_>, errors: &mut Collector) -> Vec<Group> {
        self.check_required(unknowns, errors);
        self.check_needed(unknowns, errors);
        let layout = self.pair.layout(Side::Target);
        let facts = self.options.provenance.of(layout);
        let mut groups = Vec::new();
        for (rule, prepared) in self.pair.target_rules.iter().enumerate() {
            if self.is_spare_copy(rule) || facts.hold(&layout.rules[rule].when) == Some(false) {
                continue;
            }
            for module in self.keys.module_ids() {
                let mut tuples = self.tuples(module, &prepared.params);
                let always = self.is_demanded(rule, module);
                if always {
                    tuples.extend(self.places(module, &prepared.params));
                }
                let made = self.made_of_zeros(rule, module);
                let zeros = always || !made.is_empty();
                tuples.extend(made);
                for values in tuples {
                    let scopes: SmallVec<[Scopes; 3]> = prepared
                        .params
                        .iter()
                        .map(|&param| unknowns.scopes(module, param, self.instance_values(param, &values)))
                        .collect();
                    let instances: SmallVec<[Option<InstanceId>; 3]> =
                        scopes.iter().map(|&scopes| self.instances.find(scopes)).collect();
                    if instances.iter().all(Option::is_none) && !zeros {
                        continue;
                    }
                    unknowns.share(&prepared.dims, &scopes);
                    // Asking for the sizes states what is known of the target's own axes.
                    let of =
                        |param| scopes[prepared.params.iter().position(|&other| other == param).unwrap_or(0)];
                    for node in &prepared.dims {
                        unknowns.node(node, scopes[0], &of);
                    }
                    // An axis of the name has one size for all that the tensor holds.
                    for &axis in &prepared.key_axes {
                        let var = unknowns.var(scopes[0], axis);
                        for &other in &scopes[1..] {
                            let other = unknowns.var(other, axis);
                            unknowns.solver.unify(var, other);
                        }
                    }
                    groups.push(Group { rule, module, values, scopes, instances });
                }
            }
        }
        groups
    }

    /// Returns whether the rule is an optional copy of what another rule of the target holds.
    fn is_spare_copy(&self, rule: usize) -> bool {
        let rules = &self.pair.layout(Side::Target).rules;
        let held_elsewhere = |param: &ParamId| {
            self.pair
                .target_rules
                .iter()
                .zip(rules)
                .any(|(other, rule)| !rule.optional && other.params.contains(param))
        };
        let is_needed = needed::reason(&rules[rule], &self.facts(Side::Target)).is_some();
        rules[rule].optional && !is_needed && self.pair.target_rules[rule].params.iter().all(held_elsewhere)
    }

    /// Returns whether the target always has the rule's tensors in that module, made of zeros where the source lacks them.
    fn is_demanded(&self, rule: usize, module: ModuleId) -> bool {
        let layout = self.pair.layout(Side::Target);
        let always = |&param: &ParamId| {
            self.pair
                .mapping
                .params
                .get_index(param.index())
                .is_some_and(|(_, p)| p.absent_zeros && !p.optional)
        };
        let params = &self.pair.target_rules[rule].params;
        !layout.rules[rule].optional && params.iter().all(always) && self.keys.writes_in(layout, rule, module)
    }

    /// Returns whether a module's captured paths are those under which a parameter is found.
    pub(super) fn is_module_of(&self, module: ModuleId, param: ParamId) -> bool {
        let captured = &self.keys.modules[module];
        captured.iter().map(|(name, _)| &**name).eq(self.pair.paths_of(param))
    }

    /// Returns the instance indices under which the module has anything that stands beside these parameters.
    pub(super) fn places(&self, module: ModuleId, params: &[ParamId]) -> OrderedSet<Indices> {
        let most = params.iter().max_by_key(|&&param| self.pair.params[param].instance_axes.len());
        let Some(&most) = most else { return OrderedSet::default() };
        let axes = &self.pair.params[most].instance_axes;
        let has_them =
            |&param: &ParamId| axes.iter().all(|axis| self.pair.params[param].instance_axes.contains(axis));
        let beside = (0..self.pair.params.len()).map(ParamId::new).filter(has_them);
        let values = beside.flat_map(|param| self.by_module(module, param));
        values.map(|values| self.instance_values(most, values)).collect()
    }

    /// Returns the instance indices under which any of the parameters is there, joined over the parameters: where one
    /// has an instance per layer and another one per expert, each layer with each expert.
    fn tuples(&self, module: ModuleId, params: &[ParamId]) -> OrderedSet<Indices> {
        let mut kinds: OrderedMap<&[AxisId], OrderedSet<&Indices>> = OrderedMap::default();
        for &param in params {
            let found = kinds.entry(self.pair.params[param].instance_axes.as_slice()).or_default();
            found.extend(self.by_module(module, param));
        }
        kinds.retain(|_, found| !found.is_empty());
        kinds.sort_by(|a, _, b, _| b.len().cmp(&a.len()));
        let mut kinds = kinds.into_iter();
        let Some((axes, found)) = kinds.next() else { return OrderedSet::default() };
        let mut joined: OrderedSet<Indices> = found.into_iter().cloned().collect();
        let mut known = axes.to_vec();
        for (axes, found) in kinds {
            if axes.iter().all(|axis| known.contains(axis)) {
                // Under an index that the others do not have, there is still this one.
                let here: HashSet<Indices> = joined.iter().map(|values| with_axes(values, axes)).collect();
                joined.extend(found.into_iter().filter(|values| !here.contains(*values)).cloned());
                continue;
            }
            let mut next = OrderedSet::default();
            for values in &joined {
                for other in &found {
                    let differs =
                        |(axis, index): &&(AxisId, u64)| values.iter().any(|(a, i)| a == axis && i != index);
                    if !other.iter().any(|value| differs(&value)) {
                        let mut both = values.clone();
                        both.extend(other.iter().copied().filter(|value| !values.contains(value)));
                        both.sort_unstable();
                        next.insert(both);
                    }
                }
            }
            known.extend(axes);
            joined = next;
        }
        joined
    }

    pub(super) fn by_module(&self, module: ModuleId, param: ParamId) -> impl Iterator<Item = &Indices> {
        let ids = self.instances.by_module.get(&(module, param)).map(Vec::as_slice).unwrap_or_default();
        ids.iter().map(|&id| &self.instances.all[id].2)
    }

    /// Every required parameter must be there in every module, and in every layer where others of the layer are.
    fn check_required(&self, unknowns: &mut Unknowns<'_>, errors: &mut Collector) {
        if self.options.allows(Allow::Missing) {
            return;
        }
        let mapping = self.pair.mapping;
        // Parameters with the same axes are wanted in the same places.
        let mut places: HashMap<&[AxisId], OrderedSet<(ModuleId, Indices)>> = HashMap::default();
        for (param, (name, declared)) in (0..).map(ParamId::new).zip(&mapping.params) {
            if !declared.is_required() {
                continue;
            }
            if !self.pair.layout(Side::Source).holds(name) {
                let layout = self.pair.layout(Side::Source);
                errors.push(
                    explain::no_place(layout, name)
                    .help("choose a source layout that has it, or declare it optional in the mapping file where models lack it"),
                );
                continue;
            }
            let axes = &self.pair.params[param].instance_axes;
            let all = places.entry(axes).or_insert_with(|| {
                let has_them = |other: ParamId| {
                    axes.iter().all(|axis| self.pair.params[other].instance_axes.contains(axis))
                };
                let beside = self.instances.all.iter().filter(|(_, other, _)| has_them(*other));
                beside.map(|(module, _, values)| (*module, self.instance_values(param, values))).collect()
            });
            let is_module: Vec<bool> =
                self.keys.module_ids().map(|module| self.is_module_of(module, param)).collect();
            let mut wanted: Vec<&(ModuleId, Indices)> =
                all.iter().filter(|(module, _)| is_module[*module]).collect();
            // One without a path has no module to be missed in where all else is under paths.
            let first;
            if wanted.is_empty() && axes.is_empty() && self.pair.paths_of(param).is_empty() {
                first = self.instances.all.first().map(|(module, ..)| (*module, Indices::new()));
                wanted.extend(&first);
            }
            for (module, values) in wanted {
                let scopes = unknowns.scopes(*module, param, values.clone());
                if self.instances.find(scopes).is_none() {
                    errors.push(explain::missing(self, param, *module, values));
                }
            }
        }
    }
}

/// Returns the indices of those axes alone.
fn with_axes(values: &[(AxisId, u64)], axes: &[AxisId]) -> Indices {
    values.iter().filter(|(axis, _)| axes.contains(axis)).copied().collect()
}
