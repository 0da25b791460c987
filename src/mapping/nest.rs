//! Rules under a common prefix: `"layers.{l}.": { "q.weight": … }` in `tensors` is a rule for `layers.{l}.q.weight`.

use super::json::{Entries, Json, Kind};
use crate::diag::{Collector, Diagnostic, MappingCode};

/// Returns whether the name of an entry of `tensors` is what names of several rules begin with: no tensor's name ends
/// so.
pub(super) fn is_prefix(name: &str) -> bool {
    name.ends_with(['.', '/']) || name.ends_with("::")
}

/// Returns a layout with whole names in its `tensors`.
pub(super) fn with_whole_names(layout: &Json, errors: &mut Collector) -> Json {
    let Kind::Object(fields) = &layout.value else { return layout.clone() };
    let mut fields = fields.clone();
    if let Some((.., Json { value: Kind::Object(tensors), .. })) = fields.get_mut("tensors") {
        let mut whole = Entries::new();
        collect("", tensors, &mut whole, errors);
        *tensors = whole;
    }
    Json { value: Kind::Object(fields), span: layout.span.clone() }
}

/// Adds the rules of a table to those with whole names. A prefix that is null stays, since it removes what `like` takes
/// over.
fn collect(prefix: &str, tensors: &Entries, whole: &mut Entries, errors: &mut Collector) {
    for (name, (span, verbatim, value)) in tensors {
        let full = format!("{prefix}{name}");
        match &value.value {
            Kind::Object(inner) if is_prefix(name) => {
                if inner.is_empty() {
                    let error = Diagnostic::error(MappingCode::Prefix, "a prefix without rules").rule(span);
                    let error = error.expected("rules whose names begin so").found("an empty object");
                    errors.push(error.help("remove it, or write the rules into it"));
                }
                collect(&full, inner, whole, errors);
                continue;
            }
            Kind::Null => {}
            _ if is_prefix(name) => {
                errors.push(
                    Diagnostic::error(
                        MappingCode::Prefix,
                        format!("`{name}` is a prefix, and no tensor's name"),
                    )
                    .rule(span)
                    .expected("an object with the rules whose names begin so")
                    .found(value.kind_name())
                    .help(format!("write the rest of the name, or `\"{name}\": {{ \"weight\": … }}`")),
                );
                continue;
            }
            Kind::Object(inner) if is_without_separator(inner) => {
                errors.push(
                    Diagnostic::error(MappingCode::Prefix, format!("`{name}` holds rules, and is no prefix"))
                        .rule(span)
                        .expected("a name that ends with `.`, `/` or `::`")
                        .found(format!("`{name}`"))
                        .help(format!("write `{name}.`; names are put together letter by letter")),
                );
                continue;
            }
            _ => {}
        }
        if let Some((first, ..)) = whole.get(&full) {
            errors.push(
                Diagnostic::error(MappingCode::Duplicate, format!("`{full}` stands twice"))
                    .rule(span)
                    .related(first, "first here")
                    .expected("each name once in a layout")
                    .found(format!("`{full}` a second time"))
                    .help("remove one of the two, or write a list of alternatives"),
            );
            continue;
        }
        whole.insert(full, (span.clone(), *verbatim, value.clone()));
    }
}

/// Returns whether an object is a table of rules under a name without a separator at its end: no field of a rule, and an
/// expression, or an object, in each entry.
fn is_without_separator(entries: &Entries) -> bool {
    let is_field = |name: &str| super::fields::RULE.fields.iter().any(|field| field.name == name);
    let holds = |value: &Json| match &value.value {
        Kind::String(text, _) => text.contains(':'),
        Kind::Object(inner) => inner.contains_key("is") || is_without_separator(inner),
        _ => false,
    };
    !entries.is_empty() && entries.iter().all(|(name, (.., value))| !is_field(name) && holds(value))
}
