//! Decodes a layout's `forward` entry.

use indexmap::IndexMap;

use super::arith::Formula;
use super::forward::{
    Apply, Cut, Forward, Norm, NormKind, Part, PartsBias, Product, Projection, Rotary, RotaryStyle, Slot,
};
use super::json::{Fields, Json, Kind};
use super::key::Template;
use super::read::{collect, formula};
use crate::diag::{Collector, Diagnostic};
use crate::notation::Text;
use crate::span::Span;

const FIELDS: &[&str] = &[
    "source", "qkv", "kv", "q", "k", "v", "bias", "out", "q_norm", "k_norm", "rotary", "scale", "causal",
    "attends", "axes", "kv_heads", "stacked", "about",
];

/// Reads a layout's `forward`: one entry, or several with names, for a model with several kinds of attention.
pub(super) fn forwards(value: &Json, errors: &mut Collector) -> IndexMap<String, Forward> {
    let Kind::Object(entries) = &value.value else {
        value.wrong("an object", errors);
        return IndexMap::new();
    };
    if entries.keys().any(|name| FIELDS.contains(&name.as_str())) {
        return forward(value, errors).map(|forward| (String::new(), forward)).into_iter().collect();
    }
    let named =
        entries.iter().filter_map(|(name, (.., entry))| Some((name.clone(), forward(entry, errors)?)));
    named.collect()
}

fn forward(value: &Json, errors: &mut Collector) -> Option<Forward> {
    let fields = value.fields(FIELDS, errors);
    let products = products(value, fields, errors);
    let attends = match fields.get("attends").and_then(|value| Some((value, value.string(errors)?))) {
        None | Some((_, "self")) => false,
        Some((_, "cross")) => true,
        Some((value, _)) => {
            errors.push(one_of("attends", "`self` or `cross`", &value.span));
            false
        }
    };
    Some(Forward {
        citation: fields.text("source", errors),
        products: products?,
        biases: fields.get("bias").map(|value| biases(value, errors)).unwrap_or_default(),
        out: fields.get("out").and_then(|value| projection(value, &[], errors)),
        q_norm: fields.get("q_norm").and_then(|value| norm(value, errors)),
        k_norm: fields.get("k_norm").and_then(|value| norm(value, errors)),
        rotary: fields.get("rotary").and_then(|value| rotary(value, errors)),
        scale: fields.get("scale").and_then(|value| formula(value, errors)),
        causal: fields.flag("causal", errors),
        cross: attends,
        axes: fields
            .entries("axes", errors)
            .filter_map(|(name, span, _, axis)| module_axis(name, span, axis, errors))
            .collect(),
        kv_heads: fields.get("kv_heads").and_then(|value| formula(value, errors)),
        stacked: fields
            .entries("stacked", errors)
            .filter_map(|(axis, _, _, at)| stacked(axis, at, errors))
            .collect(),
        span: value.span.clone(),
    })
}

/// Reads the products of q, k and v: one of all, one of q and one of k and v, or one of each.
fn products(value: &Json, fields: Fields<'_>, errors: &mut Collector) -> Option<Vec<Product>> {
    let given: Vec<&str> =
        ["qkv", "kv", "q", "k", "v"].into_iter().filter(|name| fields.get(name).is_some()).collect();
    if !matches!(given[..], ["qkv"] | ["kv", "q"] | ["q", "k", "v"]) {
        let message = "a forward entry has either `qkv`, or `q` and `kv`, or `q`, `k` and `v`";
        errors.push(Diagnostic::error("mapping/forward", message).rule(&value.span));
        return None;
    }
    let read = |name: &str, errors: &mut Collector| {
        let value = fields.get(name)?;
        match single(name) {
            Some(part) => Some(Product {
                projection: projection(value, &[], errors)?,
                cut: Cut::Blocks,
                order: vec![own(part)],
            }),
            None => fused(value, name, errors),
        }
    };
    let all: Vec<Option<Product>> = given.iter().map(|name| read(name, errors)).collect();
    all.into_iter().collect()
}

fn own(part: Part) -> Slot {
    Slot { part, other: false }
}

fn single(name: &str) -> Option<Part> {
    match name {
        "q" => Some(Part::Q),
        "k" => Some(Part::K),
        "v" => Some(Part::V),
        _ => None,
    }
}

/// Reads what the family calls one of the module's axes.
fn module_axis(name: &str, span: &Span, axis: &Json, errors: &mut Collector) -> Option<(String, String)> {
    if !["h", "g", "d", "dv", "f"].contains(&name) {
        errors.push(one_of("axes", "`h`, `g`, `d`, `dv` or `f`", span));
    }
    Some((name.to_owned(), axis.string(errors)?.to_owned()))
}

fn stacked(axis: &str, at: &Json, errors: &mut Collector) -> Option<(String, usize)> {
    match at.value {
        Kind::Number(value) if value.fract() == 0.0 && (0.0..8.0).contains(&value) => {
            Some((axis.to_owned(), value as usize))
        }
        _ => {
            at.wrong("the axis's place in each tensor, from 0", errors);
            None
        }
    }
}

fn one_of(field: &str, known: &str, span: &Span) -> Diagnostic {
    Diagnostic::error("mapping/forward", format!("an unknown value of `{field}`")).rule(span).expected(known)
}

fn template(fields: Fields<'_>, name: &str, errors: &mut Collector) -> Option<Template> {
    let text = fields.get(name)?.text(errors)?;
    collect(Template::parse(text), errors)
}

fn required(fields: Fields<'_>, name: &str, value: &Json, errors: &mut Collector) -> Option<Template> {
    if fields.get(name).is_none() {
        errors.push(
            Diagnostic::error("mapping/forward", format!("the field `{name}` is missing")).rule(&value.span),
        );
    }
    template(fields, name, errors)
}

fn projection(value: &Json, more: &[&str], errors: &mut Collector) -> Option<Projection> {
    let known = [&["weight", "bias", "apply", "each", "rest", "mean"], more].concat();
    let fields = value.fields(&known, errors);
    let weight = required(fields, "weight", value, errors);
    let apply = match fields.get("apply") {
        Some(text) => {
            let apply = Apply::parse(text.string(errors)?);
            if apply.is_none() {
                let known = "`linear` (x W^T + b), `dense` (x W + b), `convolution` or an einsum such as `einsum te,ehd->thd`";
                errors.push(one_of("apply", known, &text.span));
            }
            apply
        }
        None => {
            errors
                .push(Diagnostic::error("mapping/forward", "the field `apply` is missing").rule(&value.span));
            None
        }
    };
    let bias = template(fields, "bias", errors);
    let each = fields.get("each").and_then(|each| each.string(errors)).map(str::to_owned);
    let (rest, mean) = (fields.flag("rest", errors), fields.flag("mean", errors));
    Some(Projection { weight: weight?, bias, apply: apply?, each, rest, mean })
}

/// Reads a product of the parts whose names are the letters of `parts`.
fn fused(value: &Json, parts: &str, errors: &mut Collector) -> Option<Product> {
    let projection = projection(value, &["cut", "order"], errors);
    let (cut, order) = cut_and_order(value, parts, errors);
    Some(Product { projection: projection?, cut: cut?, order: order? })
}

/// Reads one bias of all three parts, or one of each part that has one.
fn biases(value: &Json, errors: &mut Collector) -> Vec<PartsBias> {
    let parts: &[&str] = &["q", "k", "v"];
    let by_part =
        matches!(&value.value, Kind::Object(entries) if parts.iter().any(|part| entries.contains_key(*part)));
    let fields = value.fields(if by_part { parts } else { &["tensor", "cut", "order"] }, errors);
    if by_part {
        let bias = |name: &&str| {
            let tensor = template(fields, name, errors)?;
            Some(PartsBias { tensor, cut: Cut::Blocks, order: vec![own(single(name)?)] })
        };
        return parts.iter().filter_map(bias).collect();
    }
    let tensor = required(fields, "tensor", value, errors);
    let (cut, order) = cut_and_order(value, "qkv", errors);
    match (tensor, cut, order) {
        (Some(tensor), Some(cut), Some(order)) => vec![PartsBias { tensor, cut, order }],
        _ => Vec::new(),
    }
}

fn cut_and_order(value: &Json, parts: &str, errors: &mut Collector) -> (Option<Cut>, Option<Vec<Slot>>) {
    let Kind::Object(entries) = &value.value else { return (None, None) };
    let mut text = |name: &str| match entries.get(name) {
        Some((_, _, value)) => value.string(errors).map(|text| (text.to_owned(), value.span.clone())),
        None => {
            errors.push(
                Diagnostic::error("mapping/forward", format!("the field `{name}` is missing"))
                    .rule(&value.span),
            );
            None
        }
    };
    let (cut, order) = (text("cut"), text("order"));
    let cut = cut.and_then(|(text, span)| {
        let cut = match text.as_str() {
            "blocks" => Some(Cut::Blocks),
            "per head" => Some(Cut::PerHead),
            "per group" => Some(Cut::PerGroup),
            other => other.strip_prefix("per ").and_then(|count| {
                let text = Text { text: count, span: &span, verbatim: false };
                Formula::parse(text).ok().map(Cut::Per)
            }),
        };
        if cut.is_none() {
            let known = "`blocks`, `per head`, `per group`, or `per N` with the number of views, `per 4`";
            errors.push(one_of("cut", known, &span));
        }
        cut
    });
    let order = order.and_then(|(text, span)| {
        let slot = |name: &str| match name.strip_prefix('_') {
            Some(name) => Some(Slot { part: single(name)?, other: true }),
            None => single(name).map(own),
        };
        let slots: Option<Vec<Slot>> = text.split_whitespace().map(slot).collect();
        let mut sorted: Vec<&str> = text.split_whitespace().filter(|name| !name.starts_with('_')).collect();
        sorted.sort_unstable();
        let mut wanted: Vec<&str> = parts.split("").filter(|name| !name.is_empty()).collect();
        let example = wanted.join(" ");
        wanted.sort_unstable();
        if sorted != wanted || slots.is_none() {
            errors.push(one_of("order", &format!("its parts in any order, `{example}`"), &span));
            return None;
        }
        slots
    });
    (cut, order)
}

fn norm(value: &Json, errors: &mut Collector) -> Option<Norm> {
    let fields = value.fields(&["weight", "bias", "epsilon", "kind", "over"], errors);
    let mut choice = |name: &str, known: &[&str]| {
        let Some(value) = fields.get(name) else { return Some(0) };
        let text = value.string(errors)?;
        let found = known.iter().position(|known| *known == text);
        if found.is_none() {
            errors.push(one_of(name, &format!("`{}`", known.join("`, `")), &value.span));
        }
        found
    };
    let kind = match choice("kind", &["root mean square", "layer", "length"])? {
        0 => NormKind::RootMeanSquare,
        1 => NormKind::Layer,
        _ => NormKind::Length,
    };
    let together = choice("over", &["head", "all heads"])? == 1;
    let weight =
        if kind == NormKind::Length { None } else { Some(required(fields, "weight", value, errors)?) };
    let bias = template(fields, "bias", errors);
    let epsilon = match fields.get("epsilon").map(|value| (&value.value, value)) {
        None => 1e-6,
        Some((Kind::Number(number), _)) => *number,
        Some((_, value)) => {
            value.wrong("a number", errors);
            1e-6
        }
    };
    Some(Norm { kind, weight, bias, epsilon, together })
}

fn rotary(value: &Json, errors: &mut Collector) -> Option<Rotary> {
    let (style, dims) = match &value.value {
        Kind::String(..) => (value, None),
        _ => {
            let fields = value.fields(&["style", "dims"], errors);
            let dims = fields.get("dims").and_then(|value| formula(value, errors));
            (fields.get("style")?, dims)
        }
    };
    let style = match style.string(errors)? {
        "half" => RotaryStyle::Half,
        "interleaved" => RotaryStyle::Interleaved,
        "none" => return None,
        _ => {
            errors.push(one_of(
                "rotary",
                "`none`, `half` (i and i + n/2) or `interleaved` (2i and 2i + 1)",
                &style.span,
            ));
            return None;
        }
    };
    Some(Rotary { style, dims })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::json::parse;
    use crate::span::Source;
    use std::sync::Arc;

    /// Reads a forward entry; what is wrong with it, or how many products it has.
    fn read(text: &str) -> Result<usize, String> {
        let mut errors = Collector::default();
        let source = Arc::new(Source { name: "forward".into(), text: text.to_owned() });
        let json = parse(&source, &mut errors).expect("JSON");
        let found = forwards(&json, &mut errors);
        let count = found.values().map(|forward| forward.products.len()).sum();
        errors.finish(count).map(|(count, _)| count).map_err(|errors| errors.to_string())
    }

    #[test]
    fn products() {
        let kv = |fields: &str| {
            format!(
                r#"{{ "source": "s", "q": {{ "weight": "q", "apply": "linear" }}, "kv": {{ "weight": "kv", "apply": "linear", {fields} }} }}"#
            )
        };
        assert_eq!(read(&kv(r#""cut": "blocks", "order": "v k""#)), Ok(2));
        assert_eq!(read(&kv(r#""cut": "per h * d", "order": "_q k _v v", "rest": true"#)), Ok(2));
        for wrong in [
            r#""cut": "blocks", "order": "q k v""#,
            r#""cut": "blocks", "order": "k""#,
            r#""cut": "blocks", "order": "k v v""#,
            r#""cut": "blocks", "order": "kv""#,
            r#""cut": "blocks", "order": "k v _o""#,
            r#""cut": "per", "order": "k v""#,
            r#""cut": "per h *", "order": "k v""#,
            r#""order": "k v""#,
        ] {
            assert!(read(&kv(wrong)).is_err(), "{wrong}");
        }
        let parts = |names: &[&str]| {
            let all = names.iter().map(|name| format!(r#""{name}": {{ "weight": "w", "apply": "dense" }}"#));
            format!(r#"{{ "source": "s", {} }}"#, all.collect::<Vec<_>>().join(", "))
        };
        assert_eq!(read(&parts(&["q", "k", "v"])), Ok(3));
        for wrong in [&["q", "k"][..], &["kv", "k", "v"], &["q", "k", "v", "kv"], &["kv"]] {
            assert!(read(&parts(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn norms_and_biases() {
        let with = |more: &str| {
            format!(
                r#"{{ "source": "s", "qkv": {{ "weight": "w", "apply": "convolution", "cut": "per head", "order": "q k v" }}, {more} }}"#
            )
        };
        for right in [
            r#""bias": { "q": "a", "v": "b" }"#,
            r#""bias": { "tensor": "a", "cut": "blocks", "order": "q k v" }"#,
            r#""q_norm": { "kind": "layer", "weight": "a", "bias": "b", "over": "all heads" }"#,
            r#""k_norm": { "kind": "length" }"#,
        ] {
            assert_eq!(read(&with(right)), Ok(1), "{right}");
        }
        for wrong in [
            r#""bias": { "cut": "blocks", "order": "q k v" }"#,
            r#""bias": { "o": "a" }"#,
            r#""bias": { "q": "a", "tensor": "b" }"#,
            r#""q_norm": { "kind": "layer" }"#,
            r#""q_norm": { "kind": "rms", "weight": "a" }"#,
            r#""q_norm": { "weight": "a", "over": "tokens" }"#,
        ] {
            assert!(read(&with(wrong)).is_err(), "{wrong}");
        }
    }
}
