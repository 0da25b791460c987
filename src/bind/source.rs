//! What the source's names and shapes say.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::ids::{AxisId, ModuleId, ParamId};
use super::options::Allow;
use super::pair::Side;
use super::unknowns::{Fact, Unknowns};
use super::{Binding, Held, Indices, OrderedMap, explain};
use crate::diag::{BindCode, Collector, Diagnostic};

/// Tensors whose names differ in one axis alone: rule, module, the axis and the other indices.
type List = (usize, ModuleId, AxisId, Indices);

impl Binding<'_> {
    /// Reads every matched tensor: its instances, and an equation per stored axis.
    pub(super) fn read_sources(&mut self, unknowns: &mut Unknowns<'_>, errors: &mut Collector) {
        let mut lists: OrderedMap<List, BTreeMap<u64, usize>> = OrderedMap::default();
        for at in 0..self.keys.matched.len() {
            let matched = &self.keys.matched[at];
            let (tensor, rule, module) = (matched.tensor, matched.rule, matched.module);
            let mut indices: Indices = matched
                .captures
                .indices
                .iter()
                .filter_map(|(name, index)| Some((self.pair.find(name)?, *index)))
                .collect();
            indices.sort_unstable();
            let prepared = &self.pair.source_rules[rule];
            let (mut scopes, mut instances) = (SmallVec::new(), SmallVec::new());
            for &param in &prepared.params {
                let values = self.instance_values(param, &indices);
                let of = unknowns.scopes(module, param, values.clone());
                scopes.push(of);
                instances.push(self.instances.add(of, module, values, tensor));
            }
            for position in 0..indices.len() {
                let mut others = indices.clone();
                let (axis, index) = others.remove(position);
                lists.entry((rule, module, axis, others)).or_default().insert(index, tensor);
            }
            let stored = &self.catalog.tensors[tensor];
            if stored.shape.len() != prepared.dims.len() {
                errors.push(explain::rank(self, tensor, rule, module));
                continue;
            }
            unknowns.share(&prepared.dims, &scopes);
            let of = |param: ParamId| {
                scopes[prepared.params.iter().position(|&other| other == param).unwrap_or(0)]
            };
            for (dim, node) in prepared.dims.iter().enumerate() {
                let fact = Fact::Shape { tensor, rule, dim };
                unknowns.length(node, scopes[0], &of, (stored.shape[dim], fact));
            }
            self.held.push(Held { tensor, rule, module, indices, scopes, instances });
        }
        self.check_lists(&lists, unknowns, errors);
    }

    /// Returns the indices that tell a parameter's instances apart.
    pub(super) fn instance_values(&self, param: ParamId, indices: &[(AxisId, u64)]) -> Indices {
        let axes = &self.pair.params[param].instance_axes;
        indices.iter().filter(|(axis, _)| axes.contains(axis)).copied().collect()
    }

    /// Indices in names must be 0, 1, 2, …; for an axis that names enumerate they are its size.
    fn check_lists(
        &self,
        lists: &OrderedMap<List, BTreeMap<u64, usize>>,
        unknowns: &mut Unknowns<'_>,
        errors: &mut Collector,
    ) {
        for ((rule, module, axis, others), indices) in lists {
            let Some((&last, &tensor)) = indices.last_key_value() else { continue };
            // A number that is as large as numbers get leaves a gap in any list.
            let count = last.saturating_add(1);
            let gap = count != indices.len() as u64;
            let sparse = self.is_sparse(*rule, *axis);
            if gap && !sparse && !self.options.allows(Allow::IndexGap) {
                errors.push(explain::index_gap(self, *rule, *module, *axis, others, indices));
            }
            let prepared = &self.pair.source_rules[*rule];
            let name = self.pair.name(*axis);
            for &param in &prepared.params {
                let values = self.instance_values(param, others);
                let scopes = unknowns.scopes(*module, param, values);
                if !self.pair.params[param].instance_axes.contains(axis) {
                    let var = unknowns.var(scopes, *axis);
                    let origin = unknowns.fact(Fact::Names { tensor });
                    unknowns.solver.set(var, count, origin);
                } else if let Some((given, origin)) = given_size(self, name)
                    && given != count
                    && !(sparse && count < given)
                    && !self.options.allows(Allow::IndexGap)
                {
                    errors.push(
                        Diagnostic::error(
                            BindCode::IndexCount,
                            format!("a list of tensors does not have `{name}` entries"),
                        )
                        .file(&self.catalog.path)
                        .tensor(&self.catalog.tensors[tensor].key)
                        .rule(&self.pair.layout(Side::Source).rules[*rule].template.span)
                        .expected(format!("{given} ({origin})"))
                        .found(count.to_string())
                        .help("complete the checkpoint, or correct the size; if its model has so few, `--allow index-gap` converts them"),
                    );
                }
            }
        }
    }
}

impl Binding<'_> {
    /// Returns whether the rule's tensors may skip indices of an axis. Where one side stacks them, none may be missing.
    fn is_sparse(&self, rule: usize, axis: AxisId) -> bool {
        let name = self.pair.name(axis);
        let sparse = |&param: &ParamId| {
            self.pair.mapping.params[param].sparse.iter().any(|other| other == name)
                && self.pair.params[param].instance_axes.contains(&axis)
        };
        self.pair.source_rules[rule].params.iter().all(sparse)
    }
}

/// Returns the size of an axis of instances that the command line, the config or the record gives.
fn given_size(binding: &Binding<'_>, name: &str) -> Option<(u64, String)> {
    let options = binding.options;
    if let Some((_, size)) = options.axes.iter().find(|(axis, _)| axis == name) {
        return Some((*size, format!("--axis {name}={size}")));
    }
    let entry = binding.pair.layout(Side::Source).config.get(name).filter(|entry| entry.is.is_none())?;
    let fact = options.provenance.of(binding.pair.source).first(&entry.keys)?;
    Some((fact.value.as_u64()?, fact.place()))
}
