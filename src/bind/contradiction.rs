//! Facts about sizes that do not fit together, told.

use super::explain::{at_origin, origin_in_any_module};
use super::sizes::{Contradiction, Origin};
use super::unknowns::Unknowns;
use super::{Binding, trace};
use crate::diag::{BindCode, Collector, Diagnostic};

/// Facts about sizes that do not fit together.
pub(super) fn contradictions(binding: &Binding<'_>, unknowns: &Unknowns<'_>, errors: &mut Collector) {
    let mut found = trace::Found::new(unknowns);
    for contradiction in &unknowns.solver.contradictions {
        match contradiction {
            Contradiction::Values { var, first, second } => {
                let axis = binding.pair.name(unknowns.axes[var.0 as usize].0);
                let mut error = Diagnostic::error(BindCode::SizeConflict, format!("`{axis}` cannot have two sizes"))
                    .file(&binding.catalog.path)
                    .expected(format!("`{axis}` = {}", value(binding, unknowns, *first)))
                    .found(format!("`{axis}` = {}", value(binding, unknowns, *second)))
                    .help("the two must agree: correct the option or the config, or choose layouts that store them apart");
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

fn value(binding: &Binding<'_>, unknowns: &Unknowns<'_>, (value, origin): (u64, Origin)) -> String {
    format!("{value} ({})", origin_in_any_module(binding, unknowns, origin))
}
