//! A plan for a reader: each target tensor with what it is made of, indices folded.

use std::fmt;

use indexmap::{IndexMap, IndexSet};

use super::{Plan, Step, TensorPlan, ValueOp, unit};
use crate::catalog::Catalog;
use crate::dtype::Dtype;
use crate::fold::{fold_keys, pattern};

/// The most names of sources that are shown of one group.
const MOST_SOURCES: usize = 8;

/// Describes a plan in lines, tensors that are made alike folded into one.
pub fn explain(plan: &Plan, catalog: &Catalog) -> Vec<String> {
    let mut groups: IndexMap<(Dtype, &[u64], Action), Vec<&TensorPlan>> = IndexMap::new();
    for target in &plan.targets {
        let action = Action::of(target, catalog);
        groups.entry((target.dtype, &target.shape, action)).or_default().push(target);
    }
    let mut lines = Vec::new();
    for ((dtype, shape, action), members) in groups {
        let shape = shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let mut by_name: IndexMap<String, (Vec<&str>, IndexSet<&str>)> = IndexMap::new();
        for target in members {
            let (keys, sources) = by_name.entry(pattern(&target.key)).or_default();
            keys.push(&target.key);
            sources.extend(target.steps.iter().filter_map(|step| match step {
                Step::Copy(copy) => Some(catalog.tensors[copy.source.tensor].key.as_str()),
                Step::Zero(_) => None,
            }));
        }
        for (keys, sources) in by_name.into_values() {
            for key in fold_keys(keys) {
                lines.push(format!("{key}  {dtype} [{shape}]  {action}"));
            }
            let sources = fold_keys(sources);
            lines.extend(sources.iter().take(MOST_SOURCES).map(|source| format!("    from {source}")));
            if let Some(more) = sources.len().checked_sub(MOST_SOURCES).filter(|&more| more > 0) {
                lines.push(format!("    and from {more} more"));
            }
        }
    }
    lines
}

/// How a target tensor is made, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Action {
    copies: usize,
    zeros: usize,
    converts: usize,
    /// The shortest run of neighbours that are copied together.
    run: u64,
    /// Whether a whole source tensor is taken over in its order.
    whole: bool,
    /// Whether runs count bytes.
    in_bytes: bool,
}

impl Action {
    fn of(target: &TensorPlan, catalog: &Catalog) -> Action {
        let in_bytes = target.dtype.byte_width().is_none();
        let mut action = Action { copies: 0, zeros: 0, converts: 0, run: u64::MAX, whole: false, in_bytes };
        for step in &target.steps {
            let Step::Copy(copy) = step else {
                action.zeros += 1;
                continue;
            };
            action.copies += 1;
            action.converts += usize::from(copy.value != ValueOp::Bits);
            let inner = copy.loops.last().filter(|l| l.source_step == 1 && l.target_step == 1);
            action.run = action.run.min(inner.map_or(1, |l| l.count));
            let source = &catalog.tensors[copy.source.tensor];
            action.whole |= copy.loops.len() <= 1
                && copy.elements() * unit(source.dtype) == source.bytes()
                && copy.elements() * target.unit() == target.bytes();
        }
        action
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Action { copies, zeros, converts, run, whole, in_bytes } = self;
        if whole && converts == 0 {
            f.write_str("unchanged")?;
        } else if copies == 0 {
            f.write_str("zeros")?;
        } else {
            let what = if copies == 1 { "strided copy" } else { "strided copies" };
            write!(f, "{copies} {what}, runs of {run} {}", if in_bytes { "bytes" } else { "elements" })?;
        }
        if converts > 0 {
            f.write_str(", values converted")?;
        }
        if zeros > 0 && copies > 0 {
            f.write_str(", the rest zeros")?;
        }
        Ok(())
    }
}
