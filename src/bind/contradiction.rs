//! Facts about sizes that do not fit together, told.

use super::explain::{at_origin, origin_in_any_module};
use super::sizes::{Contradiction, Origin};
use super::unknowns::{Fact, Unknowns};
use super::{Binding, trace};
use crate::diag::{BindCode, Collector, Diagnostic};

/// Facts about sizes that do not fit together.
pub(super) fn contradictions(binding: &Binding<'_>, unknowns: &Unknowns<'_>, errors: &mut Collector) {
    let mut found = trace::Found::new(unknowns);
    for contradiction in &unknowns.solver.contradictions {
        match contradiction {
            Contradiction::Values { var, first, second } => {
                let axis = binding.pair.name(unknowns.axes[var.0 as usize].0);
                let mut error =
                    Diagnostic::error(BindCode::SizeConflict, format!("`{axis}` cannot have two sizes"))
                        .file(&binding.catalog.path)
                        .expected(format!("`{axis}` = {}", value(binding, unknowns, *first)))
                        .found(format!("`{axis}` = {}", value(binding, unknowns, *second)))
                        .help(remedy(unknowns, *first, *second));
                for (_, origin) in [first, second] {
                    error = at_origin(binding, unknowns, error, *origin);
                }
                errors.push(error);
            }
            Contradiction::Equation { origin, polynomial, number } => {
                let equation = trace::Equation { origin: *origin, polynomial, number: *number };
                errors.push(trace::unsolved(binding, unknowns, &equation, &mut found));
            }
        }
    }
}

/// Names that count fewer than something else says may come from a checkpoint without its last files.
fn remedy(unknowns: &Unknowns<'_>, first: (u64, Origin), second: (u64, Origin)) -> &'static str {
    let (fewer, more) = if first.0 < second.0 { (first, second) } else { (second, first) };
    let by_names = |origin: Origin| matches!(unknowns.facts[origin as usize], Fact::Names { .. });
    if by_names(fewer.1) && !by_names(more.1) {
        "the last of the numbered names or files may be missing: complete the checkpoint, or correct the option or the config where they tell the larger number"
    } else {
        "the two must agree: correct the option or the config, or choose layouts that store them apart"
    }
}

fn value(binding: &Binding<'_>, unknowns: &Unknowns<'_>, (value, origin): (u64, Origin)) -> String {
    format!("{value} ({})", origin_in_any_module(binding, unknowns, origin))
}
