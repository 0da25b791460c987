//! `strip` and `add`: the names that a layout takes over by `like` lose and gain a prefix.

use super::field::{TEMPLATE, Value};
use super::fields::LAYOUT;
use super::json::{Entries, Json, Kind};
use super::nest::is_prefix;
use super::read::declared;
use crate::diag::{Collector, Diagnostic, MappingCode, nearest};
use crate::span::Span;

/// The fields that say so.
const FIELDS: &[&str] = &["strip", "add"];

/// The fields beside `tensors` that hold names of tensors; a layout that has one of its own takes none over.
const NAMING: &[&str] = &["ignore", "computed", "forward"];

/// Returns what a layout takes over, with the names as its `strip` and `add` say. Names without the prefix stay where the
/// layout has an entry for them, and are an error otherwise.
pub(super) fn renamed(taken: &Entries, own: &Entries, errors: &mut Collector) -> Entries {
    let mut taken = taken.clone();
    let strip = prefix(own, "strip", errors);
    let add = prefix(own, "add", errors);
    if strip.is_none() && add.is_none() {
        return taken;
    }
    let mut names = Names {
        strip: strip.map_or("", |(text, _)| text),
        add: add.map_or("", |(text, _)| text),
        seen: Vec::new(),
        left: Vec::new(),
    };
    let own_rules = own.get("tensors").map(|(.., tensors)| &tensors.value);
    if let Some((.., Json { value: Kind::Object(tensors), .. })) = taken.get_mut("tensors") {
        let stays = |name: &str| match own_rules {
            Some(Kind::Object(rules)) => rules.iter().any(|(rule, (.., value))| {
                rule == name || is_prefix(rule) && matches!(value.value, Kind::Null) && name.starts_with(rule)
            }),
            _ => false,
        };
        names.keys(tensors, "tensors", stays);
    }
    for field in LAYOUT.fields.iter().filter(|field| NAMING.contains(&field.name)) {
        let Some((.., value)) = taken.get_mut(field.name) else { continue };
        if own.contains_key(field.name) {
            continue;
        }
        match &mut value.value {
            Kind::Object(computed) if field.name == "computed" => names.keys(computed, "computed", |_| false),
            _ => {
                names.texts(value, &field.value, field.name);
            }
        }
    }
    if let Some((strip, span)) = strip {
        names.report(strip, span, errors);
    }
    taken
}

/// Says that a layout without `like` has names to change; returns whether it has.
pub(super) fn without_like(own: &Entries, errors: &mut Collector) -> bool {
    let mut any = false;
    for (field, (span, ..)) in own.iter().filter(|(name, _)| FIELDS.contains(&name.as_str())) {
        any = true;
        errors.push(
            Diagnostic::error(MappingCode::Like, format!("`{field}` without `like`"))
                .rule(span)
                .expected("`like` beside it, with the layout whose names it changes")
                .found("a layout that takes nothing over")
                .help(format!("name a layout in `like`, or remove `{field}`")),
        );
    }
    any
}

/// Returns the prefix that a field holds, and its place.
fn prefix<'a>(own: &'a Entries, field: &str, errors: &mut Collector) -> Option<(&'a str, &'a Span)> {
    let value = &own.get(field)?.2;
    let text = value.string(errors)?;
    if is_prefix(text) {
        return Some((text, &value.span));
    }
    errors.push(
        Diagnostic::error(MappingCode::Like, format!("`{text}` is no prefix"))
            .rule(&value.span)
            .expected("a text that ends with `.`, `/` or `::`")
            .found(format!("`{text}`"))
            .help(format!(
                "write `\"{field}\": \"{text}.\"`; names are cut and put together letter by letter"
            )),
    );
    None
}

/// The names of a layout, as they become another one's.
struct Names<'a> {
    strip: &'a str,
    add: &'a str,
    /// All of them.
    seen: Vec<String>,
    /// Those without the prefix, and the field that holds them.
    left: Vec<(String, &'static str)>,
}

impl Names<'_> {
    fn rename(&mut self, name: &str, field: &'static str) -> Option<String> {
        self.seen.push(name.to_owned());
        match name.strip_prefix(self.strip) {
            Some(rest) if !rest.is_empty() => Some(format!("{}{rest}", self.add)),
            _ => {
                self.left.push((name.to_owned(), field));
                None
            }
        }
    }

    /// Renames the entries of an object but those that stay.
    fn keys(&mut self, entries: &mut Entries, field: &'static str, stays: impl Fn(&str) -> bool) {
        let mut new = Entries::new();
        for (name, (span, verbatim, value)) in std::mem::take(entries) {
            match self.strip.is_empty() || name.starts_with(self.strip) || !stays(&name) {
                // The text at that place is another one now.
                true => new.extend(self.rename(&name, field).map(|name| (name, (span, false, value)))),
                false => {
                    self.seen.push(name.clone());
                    new.insert(name, (span, verbatim, value));
                }
            }
        }
        *entries = new;
    }

    /// Renames the templates of a value, where the table of fields has them; returns whether it has one.
    fn texts(&mut self, json: &mut Json, shape: &Value, field: &'static str) -> bool {
        match (shape, &mut json.value) {
            (Value::Pattern(_), Kind::String(text, verbatim)) if is_template(shape) => {
                if let Some(new) = self.rename(text, field) {
                    (*text, *verbatim) = (new, false);
                }
                true
            }
            (Value::AnyOf(shapes), _) => shapes.iter().any(|shape| self.texts(json, shape, field)),
            (Value::List(shape), Kind::Array(items)) => {
                items.iter_mut().fold(false, |any, item| self.texts(item, shape, field) | any)
            }
            (Value::Object(object) | Value::Forwards(object), Kind::Object(entries)) => {
                let mut any = false;
                for (name, (.., value)) in entries {
                    any |= match object.fields.iter().find(|field| field.name == name) {
                        Some(known) => self.texts(value, &known.value, field),
                        // What is no field of an attention is an attention with a name.
                        None if matches!(shape, Value::Forwards(_)) => {
                            self.texts(value, &Value::Object(object), field)
                        }
                        None => false,
                    };
                }
                any
            }
            _ => false,
        }
    }

    fn report(&self, strip: &str, span: &Span, errors: &mut Collector) {
        let Some((first, field)) = self.left.first() else { return };
        if self.seen.iter().all(|name| !name.starts_with(strip)) {
            let prefixes = self
                .seen
                .iter()
                .flat_map(|name| name.match_indices(['.', '/']).filter_map(|(at, _)| name.get(..=at)));
            let error = Diagnostic::error(MappingCode::Like, format!("no name begins with `{strip}`"));
            let error = error.rule(span).expected("what names of the layout in `like` begin with");
            let error = error.found(format!("`{strip}`"));
            errors.push(match nearest(strip, prefixes) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help(format!("one of its names is `{first}`")),
            });
            return;
        }
        let help = match *field {
            "tensors" => {
                format!("write `\"{first}\": null` in `tensors` to leave it out, or its rule to keep it")
            }
            field => format!("write the `{field}` of this layout; then none is taken over"),
        };
        let left = self.left.iter().map(|(name, _)| name.as_str());
        errors.push(
            Diagnostic::error(MappingCode::Like, format!("names that do not begin with `{strip}`"))
                .rule(span)
                .expected(format!("all names that are taken over begin with `{strip}`"))
                .found(declared(left))
                .help(help),
        );
    }
}

fn is_template(shape: &Value) -> bool {
    matches!((shape, &TEMPLATE), (Value::Pattern(one), Value::Pattern(template)) if one.name == template.name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::mapping::{Layout, Mapping, read};
    use crate::span::Source;

    /// A whole model: attention under `model.layers.{l}.`, an output layer beside it.
    const WHOLE: &str = r#""whole": {
        "source": "repository", "ignore": "model.ids",
        "computed": { "model.freqs": { "values": "llama3 factors", "axis": "d" } },
        "tensors": {
            "model.": { "layers.{l}.qkv": "(q: h d + k: h d + v: h d) e", "layers.{l}.o": "o: e (h d)", "tok": "tok: v e" },
            "head": "head: v e"
        },
        "forward": {
            "source": "repository", "apply": "linear",
            "self": { "qkv": { "weight": "model.layers.{l}.qkv", "cut": "blocks", "order": "q k v" },
                "out": { "weight": "model.layers.{l}.o" }, "q_norm": { "weight": "model.n" }, "bias": { "q": "model.b" } }
        }
    }"#;

    fn mapping(layouts: &str) -> Result<Mapping, String> {
        let text = format!(
            r#"{{"format": 1, "family": "f", "axes": {{"l": "layers", "h": "heads", "d": "head size", "e": "width", "v": "rows"}},
                "params": {{"q": "l h d e", "k": "l h d e", "v": "l h d e", "o": "l e h d", "tok": "v e",
                    "head": {{"axes": "v e", "optional": true}}}},
                "layouts": {{{WHOLE}, {layouts}}}}}"#
        );
        read(&Arc::new(Source { name: "f.json".into(), text }))
            .map_err(|errors| format!("{:?}", errors.diagnostics()))
    }

    /// Returns all names of tensors that a layout has: of its rules, and elsewhere.
    fn names(layout: &Layout) -> (Vec<String>, Vec<String>) {
        let mut others: Vec<String> = layout.ignore.iter().map(ToString::to_string).collect();
        others.extend(layout.computed.iter().map(|computed| computed.template.to_string()));
        for forward in layout.forwards.values() {
            others.extend(forward.products.iter().map(|product| product.projection.weight.to_string()));
            others.extend(forward.out.iter().map(|out| out.weight.to_string()));
            others.extend(forward.biases.iter().map(|bias| bias.tensor.to_string()));
            let norm = forward.q_norm.as_ref().and_then(|norm| norm.weight.as_ref());
            others.extend(norm.map(ToString::to_string));
        }
        (layout.rules.iter().map(|rule| rule.template.to_string()).collect(), others)
    }

    #[test]
    fn all_names_lose_and_gain_prefixes() {
        let read = mapping(
            r#""base": { "like": "whole", "strip": "model.", "tensors": { "head": null } },
               "deeper": { "like": "base", "add": "net.text/" },
               "other": { "like": "whole", "strip": "model.", "add": "net.", "tensors": { "head": "head: e v", "net.tok": null,
                   "net.tok2": "tok: e v" } }"#,
        )
        .expect("reads");
        let expected = |prefix: &str, rules: &[&str]| {
            let whole = |name: &&str| name.replace('$', prefix);
            let others = ["$ids", "$freqs", "$layers.{l}.qkv", "$layers.{l}.o", "$b", "$n"];
            (rules.iter().map(whole).collect(), others.iter().map(whole).collect())
        };
        let of = |layout: &str| names(&read.layouts[layout]);
        assert_eq!(of("base"), expected("", &["$layers.{l}.qkv", "$layers.{l}.o", "$tok"]));
        assert_eq!(of("deeper"), expected("net.text/", &["$layers.{l}.qkv", "$layers.{l}.o", "$tok"]));
        assert_eq!(of("other"), expected("net.", &["$layers.{l}.qkv", "$layers.{l}.o", "head", "$tok2"]));
    }

    #[test]
    fn a_prefix_that_does_not_fit_is_told() {
        let fails = |layout: &str, said: &[&str]| {
            let text = mapping(&format!(r#""two": {{ {layout} }}"#)).expect_err("fails");
            assert!(said.iter().all(|said| text.contains(said)), "{text}");
        };
        let like = |rest: &str| format!(r#""like": "whole", {rest}"#);
        fails(&like(r#""strip": "model.""#), &["do not begin with `model.`", "`head`", "null"]);
        fails(&like(r#""strip": "modle.", "tensors": { "head": null }"#), &["did you mean `model.`?"]);
        fails(
            &like(r#""strip": "model", "tensors": { "head": null }"#),
            &["`model` is no prefix", "\"model.\""],
        );
        fails(&like(r#""add": "net""#), &["`net` is no prefix"]);
        fails(
            &like(r#""strip": "model.layers.{l}.", "tensors": { "head": null, "model.tok": null }"#),
            &["`model.ids`", "write the `ignore` of this layout"],
        );
        fails(r#""add": "net.", "tensors": { "tok": "tok: v e" }"#, &["`add` without `like`"]);
    }
}
