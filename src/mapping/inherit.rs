//! `like`: a layout that takes over another one's entries and says what differs.

use super::builtin;
use super::json::{Entries, Json, Kind, parse};
use super::nest::{is_prefix, with_whole_names};
use super::read::declared;
use super::rename::{self, renamed};
use crate::diag::{Collector, Diagnostic, MappingCode, nearest};
use crate::span::Span;

/// The fields of a layout that are taken over entry by entry; the others are taken over whole.
const BY_ENTRY: &[&str] = &["axes", "tensors", "config", "settings", "defaults", "when", "metadata", "paths"];

/// The fields that speak of one layout alone and are never taken over.
const OWN: &[&str] = &["like", "strip", "add", "about"];

/// Returns the layouts of a file with everything that they take over by `like`; `extends` is the built-in family whose
/// layouts can be taken over too.
///
/// An entry that is `null` removes what would be taken over.
pub(super) fn inherited(layouts: &Entries, extends: Option<&str>, errors: &mut Collector) -> Entries {
    let base = extends.and_then(builtin::source).and_then(|source| parse(&source, &mut Collector::default()));
    let base = base.as_ref().and_then(|json| match &json.value {
        Kind::Object(top) => Some(&top.get("layouts")?.2),
        _ => None,
    });
    let base = match base.map(|layouts| &layouts.value) {
        Some(Kind::Object(layouts)) => whole_names(layouts, &mut Collector::default()),
        _ => Entries::new(),
    };
    let layouts = &whole_names(layouts, errors);
    let all = Layouts { own: layouts, base: &base };
    let mut result = Entries::new();
    for (name, (span, verbatim, value)) in layouts {
        let value = all.complete(name, value, &mut vec![name.clone()], errors);
        result.insert(name.clone(), (span.clone(), *verbatim, value));
    }
    result
}

fn whole_names(layouts: &Entries, errors: &mut Collector) -> Entries {
    let whole = |(name, (span, verbatim, value)): (&String, &(Span, bool, Json))| {
        (name.clone(), (span.clone(), *verbatim, with_whole_names(value, errors)))
    };
    layouts.iter().map(whole).collect()
}

/// The layouts that can be taken over.
struct Layouts<'a> {
    own: &'a Entries,
    base: &'a Entries,
}

impl Layouts<'_> {
    /// Returns a layout with what it takes over; `way` holds the layouts that are being completed.
    fn complete(&self, name: &str, layout: &Json, way: &mut Vec<String>, errors: &mut Collector) -> Json {
        let Kind::Object(fields) = &layout.value else { return layout.clone() };
        // What would be removed is not known where there is nothing to take over.
        let alone = || Json { value: Kind::Object(without_nulls(fields)), span: layout.span.clone() };
        let Some((.., like)) = fields.get("like") else {
            return match rename::without_like(fields, errors) {
                true => alone(),
                false => layout.clone(),
            };
        };
        let Some(wanted) = like.string(errors) else { return alone() };
        let fail = |message: String| {
            Diagnostic::error(MappingCode::Like, message).rule(&like.span).found(format!("`{wanted}`"))
        };
        let Some((.., parent)) = self.own.get(wanted).or_else(|| self.base.get(wanted)) else {
            let names = self.own.keys().chain(self.base.keys()).map(String::as_str);
            let names = names.filter(|other| *other != name);
            let error = fail(format!("there is no layout `{wanted}` in this family"));
            let error = error.expected(declared(names.clone()));
            errors.push(match nearest(wanted, names) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help("name a layout of this file, or of the family that it extends"),
            });
            return alone();
        };
        if way.iter().any(|other| other == wanted) {
            let error = fail(format!("the layout takes itself over: {} -> {wanted}", way.join(" -> ")));
            let error = error.expected("a layout that stands alone in the end");
            errors.push(error.help("write out the tensors of one of these layouts, without `like`"));
            return alone();
        }
        way.push(wanted.to_owned());
        let parent = self.complete(wanted, parent, way, errors);
        way.pop();
        let Kind::Object(taken) = &parent.value else { return layout.clone() };
        Json {
            value: Kind::Object(merge(&renamed(taken, fields, errors), fields, errors)),
            span: layout.span.clone(),
        }
    }
}

fn merge(taken: &Entries, own: &Entries, errors: &mut Collector) -> Entries {
    let mut merged: Entries =
        taken.iter().filter(|(name, _)| !OWN.contains(&name.as_str())).map(cloned).collect();
    for (name, (span, verbatim, value)) in own {
        let value = match (merged.get(name).map(|(.., taken)| &taken.value), &value.value) {
            (Some(_), Kind::Null) => {
                merged.shift_remove(name);
                continue;
            }
            (Some(Kind::Object(taken)), Kind::Object(entries)) if BY_ENTRY.contains(&name.as_str()) => Json {
                value: Kind::Object(override_entries(taken, entries, errors)),
                span: value.span.clone(),
            },
            _ => value.clone(),
        };
        merged.insert(name.clone(), (span.clone(), *verbatim, value));
    }
    merged
}

fn override_entries(taken: &Entries, own: &Entries, errors: &mut Collector) -> Entries {
    let mut merged: Entries = taken.iter().map(cloned).collect();
    for (name, (span, verbatim, value)) in own {
        if !matches!(value.value, Kind::Null) {
            merged.insert(name.clone(), (span.clone(), *verbatim, value.clone()));
        } else if !remove(&mut merged, name) {
            let error = Diagnostic::error(MappingCode::Like, format!("there is no `{name}` to remove"))
                .rule(span)
                .expected(declared(taken.keys().map(String::as_str)))
                .found(format!("`{name}`"));
            errors.push(match nearest(name, taken.keys().map(String::as_str)) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help("remove this line"),
            });
        }
    }
    merged
}

/// Removes an entry, or all that begin with a prefix; returns whether there was one.
fn remove(entries: &mut Entries, name: &str) -> bool {
    let before = entries.len();
    match is_prefix(name) {
        true => entries.retain(|entry, _| !entry.starts_with(name)),
        false => {
            entries.shift_remove(name);
        }
    }
    entries.len() < before
}

/// Returns the entries that are something, and of those that are objects likewise.
fn without_nulls(entries: &Entries) -> Entries {
    let kept = entries.iter().filter(|(_, (.., value))| !matches!(value.value, Kind::Null));
    kept.map(|(name, (span, verbatim, value))| {
        let value = match &value.value {
            Kind::Object(inner) if BY_ENTRY.contains(&name.as_str()) => {
                Json { value: Kind::Object(without_nulls(inner)), span: value.span.clone() }
            }
            _ => value.clone(),
        };
        (name.clone(), (span.clone(), *verbatim, value))
    })
    .collect()
}

fn cloned((name, entry): (&String, &(Span, bool, Json))) -> (String, (Span, bool, Json)) {
    (name.clone(), entry.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::mapping::{Mapping, read};
    use crate::span::Source;

    fn mapping(layouts: &str) -> Result<Mapping, String> {
        let text = format!(
            r#"{{"format": 1, "family": "f", "axes": {{"e": "width"}}, "params": {{"a": "e", "b": "e"}},
                "layouts": {{{layouts}}}}}"#
        );
        read(&Arc::new(Source { name: "f.json".into(), text }))
            .map_err(|errors| format!("{:?}", errors.diagnostics()))
    }

    fn keys(mapping: &Mapping, layout: &str) -> Vec<String> {
        mapping.layouts[layout].rules.iter().map(|rule| rule.template.to_string()).collect()
    }

    const ONE: &str = r#""one": {"about": "first", "source": "repo", "config": {"e": "width"}, "ignore": ["x"],
        "tensors": {"a": "a: e", "b": "b: e"}}"#;

    #[test]
    fn entries_are_taken_over_replaced_and_removed() {
        let read = mapping(&format!(
            r#""three": {{"like": "two", "about": "third"}}, {ONE},
               "two": {{"like": "one", "about": "second", "tensors": {{"b": null, "c": "b: e"}}, "ignore": null}}"#
        ))
        .expect("reads");
        assert_eq!(keys(&read, "two"), ["a", "c"]);
        assert_eq!(keys(&read, "three"), ["a", "c"]);
        let two = &read.layouts["two"];
        assert_eq!((two.about.as_str(), two.citation.as_str(), two.ignore.len()), ("second", "repo", 0));
        assert_eq!(two.config.len(), 1);
        assert_eq!(read.layouts["one"].ignore.len(), 1);
    }

    #[test]
    fn what_cannot_be_taken_over_is_named() {
        let fails = |layouts: &str, said: &str| {
            let text = mapping(layouts).expect_err("fails");
            assert!(text.contains(said), "{text}");
        };
        fails(&format!(r#"{ONE}, "two": {{"like": "ane"}}"#), "did you mean `one`?");
        fails(r#""one": {"like": "two"}, "two": {"like": "one"}"#, "one -> two -> one");
        fails(&format!(r#"{ONE}, "two": {{"like": "one", "tensors": {{"bb": null}}}}"#), "no `bb` to remove");
    }
}
