//! A plan for a reader: each target tensor with what it is made of, indices folded.

use indexmap::IndexMap;

use super::{Plan, Step, TensorPlan, ValueOp, unit};
use crate::catalog::Catalog;
use crate::fold::{fold_keys, pattern};

/// A target tensor's name and those of its sources.
type Made<'a> = (&'a str, Vec<&'a str>);

/// Describes a plan in lines, tensors that are made alike folded into one.
pub fn explain(plan: &Plan, catalog: &Catalog) -> Vec<String> {
    let mut groups: IndexMap<(String, String), Vec<Made<'_>>> = IndexMap::new();
    for target in &plan.targets {
        let sources = target.steps.iter().filter_map(|step| match step {
            Step::Copy(copy) => Some(catalog.tensors[copy.source].key.as_str()),
            Step::Zero(_) => None,
        });
        let mut names: Vec<&str> = Vec::new();
        for name in sources {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let shape = target.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        groups
            .entry((format!("{} [{shape}]", target.dtype), action(target, catalog)))
            .or_default()
            .push((&target.key, names));
    }
    let mut lines = Vec::new();
    for ((kind, action), members) in groups {
        let mut by_name: IndexMap<String, (Vec<&str>, Vec<&str>)> = IndexMap::new();
        for (key, sources) in members {
            let entry = by_name.entry(pattern(key)).or_default();
            entry.0.push(key);
            entry.1.extend(sources);
        }
        for (keys, sources) in by_name.into_values() {
            let mut distinct = Vec::new();
            let mut seen = rustc_hash::FxHashSet::default();
            distinct.extend(sources.into_iter().filter(|source| seen.insert(*source)));
            for key in fold_keys(keys.iter().copied()) {
                lines.push(format!("{key}  {kind}  {action}"));
            }
            for source in fold_keys(distinct.iter().copied()).iter().take(8) {
                lines.push(format!("    from {source}"));
            }
        }
    }
    lines
}

fn action(target: &TensorPlan, catalog: &Catalog) -> String {
    let (mut copies, mut zeros, mut converts) = (0, 0, 0);
    let mut runs = u64::MAX;
    let mut whole = false;
    for step in &target.steps {
        match step {
            Step::Zero(_) => zeros += 1,
            Step::Copy(copy) => {
                copies += 1;
                converts += u64::from(copy.value != ValueOp::Bits);
                let run = copy
                    .loops
                    .last()
                    .filter(|l| l.source_step == 1 && l.target_step == 1)
                    .map_or(1, |l| l.count);
                runs = runs.min(run);
                let source = &catalog.tensors[copy.source];
                whole |= copy.loops.len() <= 1
                    && copy.elements() * unit(source.dtype) == source.bytes()
                    && copy.elements() * target.unit() == target.bytes();
            }
        }
    }
    let mut text = if whole && converts == 0 {
        "unchanged".to_owned()
    } else if copies == 0 {
        "zeros".to_owned()
    } else {
        format!(
            "{copies} {}, runs of {runs} {}",
            if copies == 1 { "strided copy" } else { "strided copies" },
            if target.dtype.byte_width().is_some() { "elements" } else { "bytes" }
        )
    };
    if converts > 0 {
        text.push_str(", values converted");
    }
    if zeros > 0 && copies > 0 {
        text.push_str(", the rest zeros");
    }
    text
}
