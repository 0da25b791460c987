//! The end of binding: every tensor of both sides lowered to blocks, the target's names enumerated.

use std::collections::HashMap;

use super::classes::{Classes, Lowered};
use super::ids::{AxisId, InstanceId, ModuleId, ParamId, SourceId};
use super::keys::path_text;
use super::lower::{Instance, LowerError};
use super::pair::Side;
use super::target::Group;
use super::unknowns::{Scopes, Unknowns};
use super::{Binding, Bound, InstanceInfo, Reading, SourceTensor, TargetTensor, attention_parts, explain};
use crate::catalog::row_major;
use crate::diag::{BindCode, Collector, Diagnostic};
use crate::mapping::key::Captures;
use crate::mapping::{Affine, Rule};

/// The most tensors that are written, several times as many as models of thousands of experts have.
const MOST_TARGETS: u64 = 1 << 20;

impl Binding<'_> {
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
        let mut by_key = HashMap::default();
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
                    Diagnostic::error(BindCode::Collision, "two rules give one target tensor")
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
            .map(|(module, param, _)| InstanceInfo { param: *param, module: *module, sources: Vec::new() })
            .collect();
        for (at, source) in sources.iter().enumerate() {
            for (_, instance) in &source.instances {
                instances[*instance].sources.push(SourceId::new(at));
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

    fn captures(&self, module: ModuleId, indices: &[(AxisId, u64)]) -> Captures {
        let paths = self.keys.modules[module].clone();
        let mut captures = Captures { paths, ..Captures::default() };
        captures.indices =
            indices.iter().map(|(axis, index)| (self.pair.shared_name(*axis), *index)).collect();
        captures.indices.sort();
        captures
    }

    fn affine(&self, unknowns: &Unknowns<'_>, rule: &Rule, scopes: Scopes, errors: &mut Collector) -> Affine {
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
                            BindCode::Formula,
                            "the formula has no value: an axis in it has no size",
                        )
                        .rule(&formula.span)
                        .help(format!("give it with --axis: {}", formula.axes().join(", "))),
                    );
                    plain
                }
            }
        };
        let affine = Affine { scale: value(&rule.scale, 1.0), offset: value(&rule.offset, 0.0) };
        if affine.scale == 0.0 {
            errors.push(
                Diagnostic::error(BindCode::Formula, "a scale of zero loses the values")
                    .rule(&rule.expr.span),
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
        let instances: Vec<(ParamId, InstanceId)> = prepared
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
                    BindCode::TooMany,
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
            let Some(factor) = (0..counter.len()).rev().find(|&factor| counter[factor] + 1 < sizes[factor])
            else {
                return Ok(());
            };
            counter[factor] += 1;
            counter[factor + 1..].fill(0);
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
                        BindCode::FileName,
                        format!("`{file}` cannot be the name of an output file"),
                    )
                    .rule(&rule.template.span)
                    .expected("plain names with `/` between them, none of which begins with a dot"),
                );
                None
            }
            Err(message) => {
                let module = self.keys.modules[group.module].iter().flat_map(|(_, path)| path.iter());
                errors.push(
                    Diagnostic::error(BindCode::Name, message)
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

/// Returns whether an output file may have that name, plain names with `/` between them: it must stay in its folder.
fn is_file_name(name: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.contains(['\\', ':'])
            && !part.contains(char::is_control)
    };
    name.split('/').all(is_plain)
}
