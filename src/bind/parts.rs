//! Whether what the target needs is there, of one type, under one name, and whether all that is there has a place.

use std::collections::HashMap;

use super::ids::InstanceId;
use super::options::Allow;
use super::pair::Side;
use super::target::Group;
use super::{Binding, TargetTensor, explain};
use crate::diag::{BindCode, Collector, Diagnostic};
use crate::dtype::Dtype;

impl Binding<'_> {
    /// Checks that a target tensor's parts are there and of one type; `None` where it is not written.
    pub(super) fn check_parts(&self, group: &Group, errors: &mut Collector) -> Option<Dtype> {
        let prepared = &self.pair.target_rules[group.rule];
        let span = &self.pair.layout(Side::Target).rules[group.rule].template.span;
        let mut missing = false;
        for (&param, instance) in prepared.params.iter().zip(&group.instances) {
            let (name, declared) = self.pair.mapping.params.get_index(param.index())?;
            if instance.is_some() || declared.absent_zeros {
                continue;
            }
            missing = true;
            if !self.options.allows(Allow::Missing) && declared.optional {
                let values = self.instance_values(param, &group.values);
                errors.push(
                    explain::missing(self, param, group.module, &values)
                        .related(span, format!("needs `{name}` beside the parts that are there"))
                        .help("use a target layout that stores the parts apart"),
                );
            }
        }
        if missing {
            return None;
        }
        let tensors = group.instances.iter().flatten().flat_map(|&id| &self.instances.tensors[id]);
        let mut dtypes: Vec<(usize, Dtype)> =
            tensors.map(|&tensor| (tensor, self.catalog.tensors[tensor].dtype)).collect();
        let first = match dtypes.first() {
            Some((_, first)) => *first,
            None => self.neighbours_dtype(group)?,
        };
        let cast = |dtype: Dtype| dtype.cast_to(self.options.dtype);
        if dtypes.iter().any(|(_, dtype)| cast(*dtype) != cast(first)) {
            dtypes.sort_unstable_by_key(|(tensor, _)| *tensor);
            dtypes.dedup();
            let fixed = dtypes.iter().find(|(_, dtype)| dtype.cast_to(Some(Dtype::F32)) != Dtype::F32);
            let help = match fixed {
                None => "cast all floating-point tensors with --dtype".to_owned(),
                Some((_, dtype)) => {
                    format!("{dtype} is not cast by --dtype: choose a layout that stores the parts apart")
                }
            };
            let listed = dtypes
                .iter()
                .map(|(tensor, dtype)| format!("{}: {dtype}", self.catalog.tensors[*tensor].key));
            errors.push(
                Diagnostic::error(BindCode::MixedDtype, "tensors of different types cannot be stored in one")
                    .file(&self.catalog.path)
                    .tensor(&self.catalog.tensors[dtypes[0].0].key)
                    .rule(span)
                    .expected("one type")
                    .found(listed.collect::<Vec<_>>().join(", "))
                    .help(help),
            );
            return None;
        }
        Some(cast(first))
    }

    /// Returns the type of most elements beside a tensor that is made of zeros.
    fn neighbours_dtype(&self, group: &Group) -> Option<Dtype> {
        let beside = self.instances.all.iter().enumerate().filter(|(_, (module, _, values))| {
            *module == group.module && group.values.iter().all(|index| values.contains(index))
        });
        let mut elements: Vec<(Dtype, u64)> = Vec::new();
        for &tensor in beside.flat_map(|(id, _)| &self.instances.tensors[id]) {
            let stored = &self.catalog.tensors[tensor];
            let count = stored.shape.iter().product::<u64>();
            match elements.iter_mut().find(|(dtype, _)| *dtype == stored.dtype) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => elements.push((stored.dtype, count)),
            }
        }
        // The first of equals, so that the order of the names decides and nothing else.
        let most = elements.iter().map(|(_, sum)| *sum).max()?;
        elements.iter().find(|(_, sum)| *sum == most).map(|(dtype, _)| *dtype)
    }

    /// Tensors that pass through, each with its name in the output.
    pub(super) fn kept(
        &self,
        targets: &[TargetTensor],
        by_key: &HashMap<&str, usize>,
        errors: &mut Collector,
    ) -> Vec<(usize, String)> {
        let mut kept = Vec::with_capacity(self.keys.kept.len());
        let mut names: HashMap<String, usize> = HashMap::default();
        for (tensor, name) in &self.keys.kept {
            let stored = &self.catalog.tensors[*tensor];
            let sets = (self.pair.source.is_file_set(), self.pair.target.is_file_set());
            let key = match (name.split_once("::").filter(|_| sets.0), sets.1) {
                (Some((file, key)), true) => format!("{file}::{}{key}", self.options.add_prefix),
                (Some((_, key)), false) => format!("{}{key}", self.options.add_prefix),
                (None, false) => format!("{}{name}", self.options.add_prefix),
                (None, true) => {
                    errors.push(
                        Diagnostic::error(
                            BindCode::NoFile,
                            "nothing says in which file of the set this tensor belongs",
                        )
                        .file(&self.catalog.path)
                        .tensor(&stored.key)
                        .rule(&self.pair.target.span)
                        .help("add a rule for it in a mapping file of your own; --drop leaves out what the model does not need"),
                    );
                    continue;
                }
            };
            let collision = |other: &str| {
                Diagnostic::error(BindCode::Collision, "two source tensors would have one name in the output")
                    .file(&self.catalog.path)
                    .tensor(&stored.key)
                    .found(format!("`{key}` also comes from {other}"))
                    .help("the checkpoint seems to hold one weight twice: leave out with --drop the one that its model does not read")
            };
            if let Some(&at) = by_key.get(key.as_str()) {
                let target = &targets[at];
                let from = target.instances.first().map(|(_, id)| self.instances.tensors[*id][0]);
                let from = from.map_or("a rule", |tensor| self.catalog.tensors[tensor].key.as_str());
                errors.push(collision(&format!("`{from}`")).related(&target.rule, "the rule that makes it"));
            } else if let Some(other) = names.insert(key.clone(), *tensor) {
                errors.push(collision(&format!("`{}`", self.catalog.tensors[other].key)));
            }
            kept.push((*tensor, key));
        }
        kept
    }

    /// Parameters for which the target has no tensor: zeros may be dropped, anything else has no place.
    pub(super) fn unplaced(&self, errors: &mut Collector) -> Vec<InstanceId> {
        let layout = self.pair.layout(Side::Target);
        let facts = self.options.provenance.of(layout);
        let mut unplaced = Vec::new();
        for (instance, (_, param, _)) in (0..).map(InstanceId::new).zip(&self.instances.all) {
            let Some((name, declared)) = self.pair.mapping.params.get_index(param.index()) else { continue };
            let has_place = layout.rules.iter().any(|rule| {
                facts.hold(&rule.when) != Some(false) && rule.expr.params().contains(&name.as_str())
            });
            if has_place {
                continue;
            }
            if declared.absent_zeros {
                unplaced.push(instance);
                continue;
            }
            for &tensor in &self.instances.tensors[instance] {
                errors.push(
                    explain::no_place(layout, name)
                    .file(&self.catalog.path)
                    .tensor(&self.catalog.tensors[tensor].key)
                    .help("choose a target layout that has it; --drop leaves out only what is not used there, such as the head of another task"),
                );
            }
        }
        unplaced
    }
}
