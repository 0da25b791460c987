//! The Markdown card: what a person pastes into a model card or a CI summary.

use std::fmt::Write;

use super::Outcome;
use crate::convert::Conversion;
use crate::diag::Errors;
use crate::fold::fold_keys;
use crate::shown::{escaped, markdown};

/// Makes the card of a run that failed: its errors.
pub fn failed_card(errors: &Errors) -> String {
    let mut text = format!("## Not converted by qkvconv {}\n\n", env!("CARGO_PKG_VERSION"));
    for error in errors.diagnostics() {
        let _ = writeln!(text, "- {}: {}", error.code, markdown(&error.message));
        for tensor in error.folded_tensors() {
            let _ = writeln!(text, "  - {}", code(&tensor));
        }
    }
    text
}

/// Makes the card.
pub fn card(conversion: &Conversion<'_>, outcome: Outcome<'_>) -> String {
    let mapping = conversion.selection.mapping();
    let (source, target) = (conversion.selection.source(), conversion.selection.target());
    let mut text = format!("## Converted with qkvconv {}\n\n", env!("CARGO_PKG_VERSION"));
    let mut row = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let value = if name == "---" { value } else { markdown(&value) };
        let _ = writeln!(text, "| {name} | {value} |");
    };
    row("layout", format!("{0}/{1} → {0}/{2}", mapping.family, source.name, target.name));
    row("---", "---".into());
    row("mapping", format!("{} (BLAKE3 {:.16}…)", mapping.source.name, mapping.hash));
    let sizes = conversion.bound.sizes.iter().map(|size| format!("{} = {}", size.axis, size.value));
    row("sizes", sizes.collect::<Vec<_>>().join(", "));
    row(
        "tensors",
        format!(
            "{} made from {}, {} passed through, {} left out",
            conversion.bound.targets.len(),
            conversion.bound.sources.len(),
            conversion.bound.kept.len(),
            conversion.bound.dropped.len()
        ),
    );
    let named = |paths: Vec<&str>| fold_keys(paths.into_iter().filter(|path| !path.is_empty())).join(", ");
    let converted = named(conversion.bound.converted_modules());
    if !converted.is_empty() {
        row("modules", converted);
    }
    let left = named(conversion.bound.left.iter().map(String::as_str).collect());
    if !left.is_empty() {
        row("left as they are", left);
    }
    row("bytes", conversion.bytes().to_string());
    row(
        "proved",
        format!(
            "each element of {} source tensors used once, of {} target tensors written once",
            conversion.proof.sources, conversion.proof.targets
        ),
    );
    match outcome.checked {
        None => row("verified", "no".into()),
        Some(checked) => {
            let read_back = &checked.read_back;
            row("read back", format!("{} elements of {} tensors", read_back.elements, read_back.tensors));
            if let Some(attention) = &checked.attention {
                let both = [
                    (attention.modules, "modules of both files", &attention.files),
                    (attention.random_modules, "module shapes with random weights", &attention.random),
                ];
                for (count, what, found) in both {
                    let value =
                        format!("{count} {what}, largest relative difference {:.1e}", found.largest());
                    row("attention computed", value);
                }
                for (why, _) in &attention.abstained {
                    row("not computed", why.clone());
                }
            }
            if let Some(evidence) = &checked.evidence {
                row("evidence", evidence.verdict());
            }
            let differences = checked.differences();
            row(
                "verdict",
                if differences.is_empty() {
                    "agrees".into()
                } else {
                    format!("{} differences", differences.len())
                },
            );
            for difference in differences.iter().take(10) {
                row("differs", format!("{}: {}", difference.message, difference.folded_tensors().join(", ")));
            }
        }
    }
    row("written", if outcome.written { "yes".into() } else { "no".into() });
    text
}

/// Returns a name as code, which ends at no backtick of its own.
fn code(name: &str) -> String {
    match name.contains('`') {
        true => markdown(name),
        false => format!("`{}`", escaped(name)),
    }
}
