//! The names of stored tensors as rules see them: without the wrappers of frameworks and the prefixes that are to be
//! stripped.

use super::options::{Allow, BindOptions};
use crate::catalog::Catalog;
use crate::diag::{BindCode, Collector, Diagnostic};
use crate::mapping::Layout;

/// Returns the names of all tensors as rules see them: without the wrappers of frameworks, which is said, unless the layout
/// itself names one; and the prefixes that are asked for removed component by component, as often as they stand there, and
/// from all names or none.
pub(crate) fn names_for_rules(
    layout: Option<&Layout>,
    catalog: &Catalog,
    options: &BindOptions,
    errors: &mut Collector,
) -> Vec<String> {
    let unwrapped = catalog
        .unwrapped()
        .filter(|unwrapped| !layout.is_some_and(|layout| layout.names_any(&unwrapped.wrappers())));
    let name_of = |at: usize| match unwrapped {
        Some(unwrapped) => &unwrapped.names[at],
        None => &catalog.tensors[at].key,
    };
    if let Some(unwrapped) = unwrapped {
        let taken = unwrapped.taken.iter().map(|(name, count)| format!("`{name}.` of {count}"));
        let message = format!(
            "of {} names, wrappers were taken out: {}",
            catalog.tensors.len(),
            taken.collect::<Vec<_>>().join(", ")
        );
        errors.push(Diagnostic::warning(BindCode::Wrappers, message).file(&catalog.path));
    }
    // A prefix that is a wrapper is gone already.
    let asked = options.strip_prefix.iter().map(|prefix| match unwrapped {
        Some(unwrapped) => unwrapped.prefix(prefix.trim_end_matches(['.', '/'])),
        None => prefix.clone(),
    });
    let asked: Vec<String> = asked.filter(|prefix| !prefix.is_empty()).collect();
    let strip = |key: &str| {
        let mut rest = key;
        while let Some(shorter) = asked.iter().find_map(|prefix| {
            let behind = rest.strip_prefix(prefix.trim_end_matches(['.', '/']))?;
            behind.strip_prefix(['.', '/']).filter(|behind| !behind.is_empty())
        }) {
            rest = shorter;
        }
        rest.to_owned()
    };
    let names: Vec<String> = (0..catalog.tensors.len()).map(|at| strip(name_of(at))).collect();
    if asked.is_empty() {
        return names;
    }
    let bare: Vec<&str> = catalog
        .tensors
        .iter()
        .zip(&names)
        .enumerate()
        .filter(|(at, (_, name))| name_of(*at) == *name)
        .map(|(_, (tensor, _))| tensor.key.as_str())
        .collect();
    let mixed = bare.len() < names.len() && options.allows(Allow::MixedPrefix);
    if !bare.is_empty() && !mixed {
        let mut error =
            Diagnostic::error(BindCode::Prefix, "tensors without the prefix that is to be stripped")
                .file(&catalog.path)
                .expected(format!("every name to begin with {}", options.strip_prefix.join(" or ")))
                .found(format!("{} of {} names do not", bare.len(), names.len()))
                .help("leave --strip-prefix out, or allow it with `--allow mixed-prefix`");
        error.tensors = bare.iter().map(|&key| key.to_owned()).collect();
        errors.push(error);
    }
    names
}
