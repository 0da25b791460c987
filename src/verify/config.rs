//! The config beside a target checkpoint: whether it says of the model what the weights say.

use std::path::Path;

use crate::bind::Bound;
use crate::diag::{Diagnostic, VerifyCode};
use crate::mapping::Layout;
use crate::provenance::Provenance;

/// Returns each size that the config beside the target gives and that is not the one with which the checkpoint was bound:
/// a reader would cut the weights otherwise. Errors of code `verify/differs`.
pub fn config_differences(
    target: &Layout,
    bound: &Bound,
    provenance: &Provenance,
    path: &Path,
) -> Vec<Diagnostic> {
    let facts = provenance.of(target);
    let sizes = |axis: &str| -> Option<u64> {
        let mut values = bound.sizes.iter().filter(|size| size.axis == axis).map(|size| size.value);
        // Of several sizes none is the model's.
        values.next().filter(|_| values.next().is_none())
    };
    let mut differences = Vec::new();
    for (axis, entry) in &target.config {
        let Some(wanted) = sizes(axis) else { continue };
        let Some(fact) = facts.first(&entry.keys) else { continue };
        let (place, value) = (fact.place(), fact.value);
        let found = value.as_f64().and_then(|value| entry.size(value, &sizes));
        let told = match (value.as_f64(), found) {
            (_, Some(found)) if found == wanted => continue,
            (Some(_), Some(found)) => format!("{place} = {value}, so that `{axis}` = {found}"),
            (Some(_), None) => format!("{place} = {value}, of which `{axis}` cannot be made"),
            // A list has a size for each layer.
            (None, _) => continue,
        };
        let expected = match entry.value_for(wanted, &sizes) {
            Some(value) => format!("{place} = {value}, so that `{axis}` = {wanted}"),
            None => format!("`{axis}` = {wanted}"),
        };
        let message = "the config beside the target says otherwise than its weights";
        differences.push(
            Diagnostic::error(VerifyCode::Differs, message)
                .file(path)
                .rule(&entry.span)
                .expected(expected)
                .found(told)
                .help("the config is another model's, or the conversion was made with other sizes"),
        );
    }
    differences
}
