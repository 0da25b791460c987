//! Numbers in names that are sizes of axes: `layer_{l.count+3}`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Binding;
use super::ids::{AxisId, ModuleId};
use super::pair::Side;
use super::unknowns::Unknowns;
use crate::diag::{BindCode, Collector, Diagnostic};
use crate::mapping::Rule;

impl Binding<'_> {
    /// Returns the sizes that stand in the names of a target rule, by axis; `None` where one is unknown, which is
    /// reported.
    pub(super) fn counts(
        &self,
        unknowns: &Unknowns<'_>,
        rule: &Rule,
        errors: &mut Collector,
    ) -> Option<Vec<(Arc<str>, u64)>> {
        let mut counts = BTreeMap::new();
        for name in rule.template.counts() {
            let found = self.sizes_of(unknowns, name);
            let Some(&size) = found.first().filter(|_| found.len() == 1) else {
                let sizes: Vec<String> = found.iter().map(u64::to_string).collect();
                errors.push(
                    Diagnostic::error(BindCode::Count, format!("a name needs the size of `{name}`"))
                        .file(&self.catalog.path)
                        .rule(&rule.template.span)
                        .expected("one size")
                        .found(if sizes.is_empty() { "none".to_owned() } else { sizes.join(" and ") }),
                );
                return None;
            };
            counts.insert(name.into(), size);
        }
        Some(counts.into_iter().collect())
    }

    /// A size that a source name tells must be what the rest of the checkpoint says.
    pub(super) fn check_counts(&self, unknowns: &Unknowns<'_>, errors: &mut Collector) {
        for matched in &self.keys.matched {
            for (name, told) in &matched.captures.counts {
                let found = self.sizes_of(unknowns, name);
                if found.is_empty() || found.contains(told) {
                    continue;
                }
                let sizes: Vec<String> = found.iter().map(u64::to_string).collect();
                errors.push(
                    Diagnostic::error(BindCode::Count, format!("a name tells another size of `{name}`"))
                        .file(&self.catalog.path)
                        .tensor(&self.catalog.tensors[matched.tensor].key)
                        .rule(&self.pair.layout(Side::Source).rules[matched.rule].template.span)
                        .expected(sizes.join(" or "))
                        .found(told.to_string())
                        .help("complete the checkpoint: a shard may be missing"),
                );
            }
        }
    }

    /// Returns the sizes of an axis: where names enumerate it the highest index and one, elsewhere what was solved.
    fn sizes_of(&self, unknowns: &Unknowns<'_>, name: &str) -> BTreeSet<u64> {
        let Some(axis) = self.pair.find(name) else { return BTreeSet::new() };
        let mut enumerated: BTreeMap<ModuleId, u64> = BTreeMap::new();
        for (module, _, values) in &self.instances.all {
            let index = |(of, index): &(AxisId, u64)| (*of == axis).then_some(index.saturating_add(1));
            if let Some(count) = values.iter().find_map(index) {
                let most = enumerated.entry(*module).or_default();
                *most = count.max(*most);
            }
        }
        enumerated.into_values().chain(unknowns.sizes_of(axis)).collect()
    }
}
