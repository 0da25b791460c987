//! The target's tensors: which there are, what they hold, and the end of binding.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::classes::{Classes, Lowered};
use super::keys::path_text;
use super::lower::{Instance, LowerError};
use super::needed;
use super::options::Allow;
use super::pair::{AxisId, ParamId, Side};
use super::unknowns::{Scopes, Unknowns};
use super::{
    Binding, Bound, Indices, InstanceInfo, OrderedMap, OrderedSet, Reading, SourceTensor, TargetTensor,
    attention_parts, explain,
};
use crate::catalog::row_major;
use crate::diag::{Collector, Diagnostic};
use crate::mapping::Rule;
use crate::mapping::key::Captures;

/// The most tensors that are written, several times as many as models of thousands of experts have.
const MOST_TARGETS: u64 = 1 << 20;

/// The tensors of one target rule in one module and instance; the other axes of its name are enumerated later.
pub(super) struct Group {
    pub(super) rule: usize,
    pub(super) module: u32,
    pub(super) values: Indices,
    pub(super) scopes: SmallVec<[Scopes; 3]>,
    /// Per parameter of the rule, where the source has it.
    pub(super) instances: SmallVec<[Option<usize>; 3]>,
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
            for module in 0..self.keys.modules.len() as u32 {
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
                    let instances: SmallVec<[Option<usize>; 3]> =
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
    fn is_demanded(&self, rule: usize, module: u32) -> bool {
        let layout = self.pair.layout(Side::Target);
        let always = |&param: &ParamId| {
            self.pair.mapping.params.get_index(param).is_some_and(|(_, p)| p.absent_zeros && !p.optional)
        };
        let params = &self.pair.target_rules[rule].params;
        !layout.rules[rule].optional && params.iter().all(always) && self.keys.writes_in(layout, rule, module)
    }

    /// Returns whether a module's captured paths are those under which a parameter is found.
    pub(super) fn is_module_of(&self, module: u32, param: ParamId) -> bool {
        let captured = &self.keys.modules[module as usize];
        captured.iter().map(|(name, _)| &**name).eq(self.pair.paths_of(param))
    }

    /// Returns the instance indices under which the module has anything that stands beside these parameters.
    pub(super) fn places(&self, module: u32, params: &[ParamId]) -> OrderedSet<Indices> {
        let most = params.iter().max_by_key(|&&param| self.pair.params[param].instance_axes.len());
        let Some(&most) = most else { return OrderedSet::default() };
        let axes = &self.pair.params[most].instance_axes;
        let has_them =
            |&param: &ParamId| axes.iter().all(|axis| self.pair.params[param].instance_axes.contains(axis));
        let beside = (0..self.pair.params.len()).filter(has_them);
        let values = beside.flat_map(|param| self.by_module(module, param));
        values.map(|values| self.instance_values(most, values)).collect()
    }

    /// Returns the instance indices under which any of the parameters is there, joined over the parameters: where one
    /// has an instance per layer and another one per expert, each layer with each expert.
    fn tuples(&self, module: u32, params: &[ParamId]) -> OrderedSet<Indices> {
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
                let here: FxHashSet<Indices> = joined.iter().map(|values| with_axes(values, axes)).collect();
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

    pub(super) fn by_module(&self, module: u32, param: ParamId) -> impl Iterator<Item = &Indices> {
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
        let mut places: FxHashMap<&[AxisId], OrderedSet<(u32, Indices)>> = FxHashMap::default();
        for (param, (name, declared)) in mapping.params.iter().enumerate() {
            if !declared.is_required() {
                continue;
            }
            if !self.pair.layout(Side::Source).holds(name) {
                let layout = self.pair.layout(Side::Source);
                errors.push(
                    Diagnostic::error(
                        "bind/no-place",
                        format!("the layout `{}` has no tensor for `{name}`", layout.name),
                    )
                    .rule(&layout.span)
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
                (0..self.keys.modules.len() as u32).map(|module| self.is_module_of(module, param)).collect();
            let mut wanted: Vec<&(u32, Indices)> =
                all.iter().filter(|(module, _)| is_module[*module as usize]).collect();
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

    /// Lowers everything and enumerates the target's names.
    pub(super) fn finish(
        self,
        unknowns: &mut Unknowns<'_>,
        groups: &[Group],
        mut errors: Collector,
    ) -> (Bound, Collector) {
        let mut classes = Classes::new(unknowns);
        let mut sources = Vec::with_capacity(self.held.len());
        let mut open = explain::Open::default();
        let failed = errors.has_errors();
        for held in &self.held {
            let instance = Instance {
                side: Side::Source,
                rule: held.rule,
                indices: &held.indices,
                scopes: &held.scopes,
            };
            let stored = &self.catalog.tensors[held.tensor];
            let strides = (stored.strides != row_major(&stored.shape)).then_some(&stored.strides[..]);
            match classes.lower(unknowns, &instance, strides) {
                Ok(Lowered { blocks, sizes, known, .. }) => {
                    let rule = &self.pair.layout(Side::Source).rules[held.rule];
                    let affine = self.affine(unknowns, rule, held.scopes[0], &mut errors);
                    let params = &self.pair.source_rules[held.rule].params;
                    let instances = params.iter().copied().zip(held.instances.iter().copied()).collect();
                    let rule = rule.template.span.clone();
                    let captures = self.captures(held.module, &held.indices);
                    let reading = Reading { rule: held.rule, captures, sizes, known };
                    sources.push(SourceTensor {
                        tensor: held.tensor,
                        rule,
                        reading,
                        blocks,
                        instances,
                        affine,
                    });
                }
                Err(error) => {
                    open.add(&self, unknowns, error, Side::Source, held.rule, &stored.key);
                }
            }
        }
        let mut targets = Vec::new();
        let mut by_key = FxHashMap::default();
        for group in groups {
            if let Err(error) = self.enumerate(unknowns, group, &mut classes, &mut targets, &mut errors) {
                let rule = &self.pair.layout(Side::Target).rules[group.rule];
                open.add(&self, unknowns, error, Side::Target, group.rule, &rule.template.to_string());
            }
        }
        // A contradiction leaves sizes open; the contradiction alone is what is wrong then.
        if !failed {
            open.report(&self, unknowns, &mut errors);
        }
        for (at, target) in targets.iter().enumerate() {
            if let Some(first) = by_key.insert(target.key.as_str(), at) {
                let first: &TargetTensor = &targets[first];
                errors.push(
                    Diagnostic::error("bind/collision", "two rules give one target tensor")
                        .tensor(&target.key)
                        .rule(&target.rule)
                        .related(&first.rule, "the other rule"),
                );
            }
        }
        let kept = self.kept(&targets, &by_key, &mut errors);
        let unplaced = self.unplaced(&mut errors);
        self.check_left_behind(&sources, &targets, &mut errors);
        let mut instances: Vec<InstanceInfo> = self
            .instances
            .all
            .iter()
            .map(|(module, param, _)| InstanceInfo {
                param: *param,
                module: *module as usize,
                sources: Vec::new(),
            })
            .collect();
        for (at, source) in sources.iter().enumerate() {
            for (_, instance) in &source.instances {
                instances[*instance].sources.push(at);
            }
        }
        let modules = self.keys.modules.iter().map(path_text);
        let bound = Bound {
            targets,
            kept,
            computed: self.keys.computed.iter().map(|(tensor, _)| *tensor).collect(),
            unplaced,
            params: self.pair.mapping.params.keys().cloned().collect(),
            parts: attention_parts(self.pair.mapping),
            sizes: explain::sizes(&self, unknowns),
            dtype: self.options.dtype,
            warnings: Vec::new(),
            modules: modules.collect(),
            left: self.keys.left,
            source_layout: None,
            target_layout: None,
            instances,
            sources,
            dropped: self.keys.dropped,
            tied: self.keys.tied,
        };
        (bound, errors)
    }

    fn captures(&self, module: u32, indices: &[(AxisId, u64)]) -> Captures {
        let paths = self.keys.modules[module as usize].clone();
        let mut captures = Captures { paths, ..Captures::default() };
        captures.indices =
            indices.iter().map(|(axis, index)| (self.pair.shared_name(*axis), *index)).collect();
        captures.indices.sort();
        captures
    }

    fn affine(
        &self,
        unknowns: &Unknowns<'_>,
        rule: &Rule,
        scopes: Scopes,
        errors: &mut Collector,
    ) -> (f64, f64) {
        let mut value = |formula: &Option<crate::mapping::arith::Formula>, plain: f64| {
            let Some(formula) = formula else { return plain };
            let size = |name: &str| {
                let axis = self.pair.find(name)?;
                self.pair.fixed(axis).or_else(|| unknowns.solver.value(unknowns.known_var(scopes, axis)?))
            };
            match formula.eval(&size).filter(|value| value.is_finite()) {
                Some(value) => value,
                None => {
                    errors.push(
                        Diagnostic::error(
                            "bind/formula",
                            "the formula has no value: an axis in it has no size",
                        )
                        .rule(&formula.span)
                        .help(format!("give it with --axis: {}", formula.axes().join(", "))),
                    );
                    plain
                }
            }
        };
        let affine = (value(&rule.scale, 1.0), value(&rule.offset, 0.0));
        if affine.0 == 0.0 {
            errors.push(
                Diagnostic::error("bind/formula", "a scale of zero loses the values").rule(&rule.expr.span),
            );
        }
        affine
    }

    fn enumerate(
        &self,
        unknowns: &mut Unknowns<'_>,
        group: &Group,
        classes: &mut Classes,
        targets: &mut Vec<TargetTensor>,
        errors: &mut Collector,
    ) -> Result<(), LowerError> {
        let prepared = &self.pair.target_rules[group.rule];
        let rule = &self.pair.layout(Side::Target).rules[group.rule];
        let Some(dtype) = self.check_parts(group, errors) else { return Ok(()) };
        let free: Vec<AxisId> = prepared
            .key_axes
            .iter()
            .copied()
            .filter(|axis| !group.values.iter().any(|(fixed, _)| fixed == axis))
            .collect();
        let sizes = free
            .iter()
            .map(|&axis| unknowns.size(group.scopes[0], &[axis]))
            .collect::<Result<Vec<u64>, _>>()?;
        let affine = self.affine(unknowns, rule, group.scopes[0], errors);
        let Some(counts) = self.counts(unknowns, rule, errors) else { return Ok(()) };
        let instances: Vec<(usize, usize)> = prepared
            .params
            .iter()
            .zip(&group.instances)
            .filter_map(|(&param, instance)| Some((param, (*instance)?)))
            .collect();
        let mut counter = vec![0_u64; free.len()];
        if sizes.contains(&0) {
            return Ok(());
        }
        // A shape with a 0 in it can give an axis any size, and takes no bytes.
        let count = sizes.iter().fold(1_u64, |count, size| count.saturating_mul(*size));
        if count.saturating_add(targets.len() as u64) > MOST_TARGETS {
            let axes =
                free.iter().zip(&sizes).map(|(&axis, size)| format!("{} = {size}", self.pair.name(axis)));
            errors.push(
                Diagnostic::error(
                    "bind/too-many",
                    "the output would have more tensors than any checkpoint has",
                )
                .file(&self.catalog.path)
                .rule(&rule.template.span)
                .expected(format!("{MOST_TARGETS} tensors at most"))
                .found(axes.collect::<Vec<_>>().join(", "))
                .help("correct the shapes in the source, or the sizes that are given"),
            );
            return Ok(());
        }
        loop {
            let mut indices = group.values.clone();
            indices.extend(free.iter().copied().zip(counter.iter().copied()));
            indices.sort_unstable();
            let instance =
                Instance { side: Side::Target, rule: group.rule, indices: &indices, scopes: &group.scopes };
            let lowered = classes.lower(unknowns, &instance, None)?;
            let captures = self.captures(group.module, &indices);
            let named = Captures { counts: counts.clone(), ..captures.clone() };
            if let Some(key) = self.print(rule, group, &named, errors) {
                let Lowered { shape, blocks, sizes, known } = lowered;
                let (rule, instances) = (rule.template.span.clone(), instances.clone());
                let reading = Reading { rule: group.rule, captures, sizes, known };
                targets.push(TargetTensor { key, dtype, shape, rule, reading, blocks, instances, affine });
            }
            // The last axis of the name runs fastest.
            let Some(digit) = (0..counter.len()).rev().find(|&digit| counter[digit] + 1 < sizes[digit])
            else {
                return Ok(());
            };
            counter[digit] += 1;
            counter[digit + 1..].fill(0);
        }
    }

    fn print(
        &self,
        rule: &Rule,
        group: &Group,
        captures: &Captures,
        errors: &mut Collector,
    ) -> Option<String> {
        match rule.template.print(captures) {
            Ok((None, key)) => Some(format!("{}{key}", self.options.add_prefix)),
            Ok((Some(file), key)) if is_file_name(&file) => {
                Some(format!("{file}::{}{key}", self.options.add_prefix))
            }
            Ok((Some(file), _)) => {
                errors.push(
                    Diagnostic::error(
                        "bind/file-name",
                        format!("`{file}` cannot be the name of an output file"),
                    )
                    .rule(&rule.template.span)
                    .expected("a plain name, without a folder"),
                );
                None
            }
            Err(message) => {
                let module =
                    self.keys.modules[group.module as usize].iter().flat_map(|(_, path)| path.iter());
                errors.push(
                    Diagnostic::error("bind/name", message)
                        .file(&self.catalog.path)
                        .tensor(module.cloned().collect::<Vec<_>>().join("."))
                        .rule(&rule.template.span)
                        .help("rename the tensor in the source, or use a layout with another separator"),
                );
                None
            }
        }
    }
}

/// Returns the indices of those axes alone.
fn with_axes(values: &[(AxisId, u64)], axes: &[AxisId]) -> Indices {
    values.iter().filter(|(axis, _)| axes.contains(axis)).copied().collect()
}

/// Returns whether an output file may have that name: it must stay in its folder.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}
