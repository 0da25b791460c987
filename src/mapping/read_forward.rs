//! Decodes a layout's `forward` entry.

use indexmap::IndexMap;

use super::Rule;
use super::arith::Formula;
use super::choices::{APPLY, ATTENDS, CUT, MODULE_AXES, NORM_KIND, NORM_OVER, ROTARY};
use super::field::Object;
use super::fields_forward::{FORWARD, FUSED, FUSED_BIAS, NORM, OUTPUT, PART_BIASES, PRODUCT, ROTATION};
use super::forward::{
    Apply, Cut, Forward, Norm, NormKind, Part, PartsBias, Product, Projection, Rotary, RotaryStyle, Slot,
};
use super::json::{Entries, Fields, Json, Kind, unknown_choice};
use super::key::{Piece, Template};
use super::own_place::Own;
use super::read::{collect, formula};
use crate::diag::{Collector, Diagnostic, MappingCode};
use crate::notation::Text;
use crate::span::Span;

/// The fields that an attention shares with its products.
const SHARED: &[&str] = &["weight", "bias", "apply"];

/// Reads a layout's `forward`: one entry, or several with names, for a model with several kinds of attention. What stands
/// beside those with names holds for each of them.
pub(super) fn forwards(value: &Json, rules: &[Rule], errors: &mut Collector) -> IndexMap<String, Forward> {
    let Kind::Object(entries) = &value.value else {
        value.wrong("an object", errors);
        return IndexMap::new();
    };
    let is_field = |name: &str| FORWARD.fields.iter().any(|field| field.name == name);
    // An entry of one attention has fields of its own; where no name is known and an entry holds none either, it is
    // one attention with a slip.
    let holds_fields = |value: &Json| match &value.value {
        Kind::Object(entry) => entry.keys().any(|name| is_field(name) && !SHARED.contains(&name.as_str())),
        _ => false,
    };
    let (common, named): (Entries, Entries) =
        entries.clone().into_iter().partition(|(name, (.., value))| is_field(name) || !holds_fields(value));
    if named.is_empty() {
        return forward(value, rules, errors).map(|forward| (String::new(), forward)).into_iter().collect();
    }
    let mut read = IndexMap::new();
    for (name, (.., entry)) in named {
        let mut fields = common.clone();
        if let Kind::Object(own) = entry.value {
            fields.extend(own);
        }
        let entry = Json { value: Kind::Object(fields), span: entry.span };
        read.extend(forward(&entry, rules, errors).map(|forward| (name, forward)));
    }
    read
}

fn forward(value: &Json, rules: &[Rule], errors: &mut Collector) -> Option<Forward> {
    let fields = value.fields(FORWARD.fields, errors);
    let own = Own { rules, prefix: fields.text("params", errors), has_biases: fields.get("bias").is_some() };
    let apply = fields.get("apply");
    let products = products(value, fields, &own, errors);
    let attends = fields.get("attends").and_then(|value| value.choice("attends", ATTENDS, errors));
    let forward = Forward {
        citation: fields.text("source", errors),
        products: products?,
        biases: fields.get("bias").map(|value| biases(value, errors)).unwrap_or_default(),
        out: match (fields.get("out"), apply) {
            (Some(value), _) if matches!(value.value, Kind::Null) => None,
            (Some(value), _) => projection(value, &OUTPUT, apply, (&own, &["o"]), errors),
            // Without its rule it is missing, unless the entry says that there is none.
            (None, Some(apply)) => projection(apply, &OUTPUT, None, (&own, &["o"]), errors),
            (None, None) => None,
        },
        q_norm: fields.get("q_norm").and_then(|value| norm(value, (&own, "q_norm"), errors)),
        k_norm: fields.get("k_norm").and_then(|value| norm(value, (&own, "k_norm"), errors)),
        rotary: fields.get("rotary").and_then(|value| rotary(value, errors)),
        scale: fields.get("scale").and_then(|value| formula(value, errors)),
        causal: fields.flag("causal", errors),
        cross: attends == Some("cross"),
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
    };
    counted_alike(&forward, errors);
    Some(forward)
}

/// Refuses an attention whose weights lie in layers that their names count differently: one of them is another layer's.
fn counted_alike(forward: &Forward, errors: &mut Collector) {
    let projections = forward.products.iter().map(|product| &product.projection).chain(&forward.out);
    let weights: Vec<&Template> = projections.map(|projection| &projection.weight).collect();
    let number_of = |weight: &Template, axis: &str| {
        weight.pieces().find_map(|piece| match piece {
            Piece::Axis { name, offset, .. } if **name == *axis => Some(*offset),
            _ => None,
        })
    };
    let Some((first, others)) = weights.split_first() else { return };
    for other in others {
        for axis in other.axes() {
            let (own, its) = (number_of(first, axis), number_of(other, axis));
            if let (Some(own), Some(its)) = (own, its)
                && own != its
            {
                let message = format!("the weights of one attention are counted differently along `{axis}`");
                errors.push(
                    Diagnostic::error(MappingCode::Forward, message)
                        .rule(&forward.span)
                        .expected(format!("one number in both: `{first}`"))
                        .found(format!("`{other}`"))
                        .help("correct the template of the rule; a tensor of another layer is no part of this attention"),
                );
            }
        }
    }
}

/// Reads the products of q, k and v: one of all, one of q and one of k and v, or one of each.
fn products(
    value: &Json,
    fields: Fields<'_>,
    own_place: &Own<'_>,
    errors: &mut Collector,
) -> Option<Vec<Product>> {
    let mut given: Vec<&str> =
        ["qkv", "kv", "q", "k", "v"].into_iter().filter(|name| fields.get(name).is_some()).collect();
    let apply = fields.get("apply");
    // With a way to apply all weights those of q, k and v are separate unless another entry says otherwise.
    if apply.is_some() && given.is_empty() {
        given = vec!["q", "k", "v"];
    } else if apply.is_some() && given == ["kv"] {
        given.push("q");
    }
    if !matches!(given[..], ["qkv"] | ["kv", "q"] | ["q", "k", "v"]) {
        let message = "a forward entry has either `qkv`, or `q` and `kv`, or `q`, `k` and `v`";
        let start = value.span.start;
        let end = start + value.span.text().chars().next().map_or(0, char::len_utf8);
        let found: Vec<String> = given.iter().map(|name| format!("`{name}`")).collect();
        errors.push(
            Diagnostic::error(MappingCode::Forward, message)
                .rule(&Span::new(&value.span.source, start, end))
                .expected("the products that queries, keys and values come from")
                .found(if found.is_empty() { "none of them".into() } else { found.join(", ") })
                .help("write one entry for each product that the framework computes, and no others"),
        );
        return None;
    }
    let read = |name: &str, errors: &mut Collector| {
        let (value, apply) = match fields.get(name) {
            Some(value) => (value, apply),
            None => (apply?, None),
        };
        match single(name) {
            Some(part) => Some(Product {
                projection: projection(value, &PRODUCT, apply, (own_place, &[name]), errors)?,
                cut: Cut::Blocks,
                order: vec![own(part)],
            }),
            None => fused(value, name, apply, own_place, errors),
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
    if MODULE_AXES.iter().all(|known| known.name != name) {
        errors.push(unknown_choice("axes", name, span, MODULE_AXES, None));
    }
    Some((name.to_owned(), axis.string(errors)?.to_owned()))
}

fn stacked(axis: &str, at: &Json, errors: &mut Collector) -> Option<(String, usize)> {
    match at.value {
        Kind::Number(value) if value.fract() == 0.0 && (0.0..8.0).contains(&value) => {
            Some((axis.to_owned(), value as usize))
        }
        _ => {
            at.wrong("a whole number, the axis's place in each tensor from 0", errors);
            None
        }
    }
}

fn template(fields: Fields<'_>, name: &str, errors: &mut Collector) -> Option<Template> {
    let text = fields.get(name)?.text(errors)?;
    collect(Template::parse(text), errors)
}

/// Reads a product of these parts. A text is how it is applied; `apply` is what holds where it does not say so.
fn projection(
    value: &Json,
    object: &Object,
    apply: Option<&Json>,
    (own, parts): (&Own<'_>, &[&str]),
    errors: &mut Collector,
) -> Option<Projection> {
    let places = |errors: &mut Collector| {
        let weight = own.weight(parts, &value.span, errors);
        let bias = weight.as_ref().and_then(|_| own.bias(parts, &value.span, errors));
        weight.map(|weight| (weight, bias))
    };
    if let Kind::String(..) = &value.value {
        let apply = read_apply(value, errors);
        let (weight, bias) = places(errors)?;
        return Some(Projection { weight, bias, apply: apply?, each: None, rest: false, mean: false });
    }
    let fields = value.fields(object.fields, errors);
    let apply = fields.get("apply").or(apply);
    if apply.is_none() {
        value.needs("apply", object.fields, errors);
    }
    let apply = apply.and_then(|apply| read_apply(apply, errors));
    let (weight, bias) = match fields.get("weight") {
        Some(_) => (template(fields, "weight", errors), template(fields, "bias", errors)),
        None => match (places(errors), fields.get("bias")) {
            (Some((weight, _)), Some(_)) => (Some(weight), template(fields, "bias", errors)),
            (Some((weight, bias)), None) => (Some(weight), bias),
            (None, _) => (None, None),
        },
    };
    let each = fields.get("each").and_then(|each| each.string(errors)).map(str::to_owned);
    let (rest, mean) = (fields.flag("rest", errors), fields.flag("mean", errors));
    Some(Projection { weight: weight?, bias, apply: apply?, each, rest, mean })
}

fn read_apply(value: &Json, errors: &mut Collector) -> Option<Apply> {
    let text = value.string(errors)?;
    let apply = Apply::parse(text);
    if apply.is_none() {
        let einsum = "an einsum such as `einsum te,hed->thd`";
        errors.push(unknown_choice("apply", text, &value.span, APPLY, Some(einsum)));
    }
    apply
}

/// Reads a product of the parts whose names are the letters of `parts`.
fn fused(
    value: &Json,
    parts: &str,
    apply: Option<&Json>,
    own: &Own<'_>,
    errors: &mut Collector,
) -> Option<Product> {
    let letters: Vec<&str> = parts.split("").filter(|name| !name.is_empty()).collect();
    let projection = projection(value, &FUSED, apply, (own, &letters), errors);
    value.check_required(FUSED.fields, errors);
    let (cut, order) = cut_and_order(value, parts, errors);
    Some(Product { projection: projection?, cut: cut?, order: order? })
}

/// Reads one bias of all three parts, or one of each part that has one.
fn biases(value: &Json, errors: &mut Collector) -> Vec<PartsBias> {
    let parts: &[&str] = &["q", "k", "v"];
    let by_part =
        matches!(&value.value, Kind::Object(entries) if parts.iter().any(|part| entries.contains_key(*part)));
    let object = if by_part { &PART_BIASES } else { &FUSED_BIAS };
    let fields = value.fields(object.fields, errors);
    if by_part {
        let bias = |name: &&str| {
            let tensor = template(fields, name, errors)?;
            Some(PartsBias { tensor, cut: Cut::Blocks, order: vec![own(single(name)?)] })
        };
        return parts.iter().filter_map(bias).collect();
    }
    value.check_required(object.fields, errors);
    let tensor = template(fields, "tensor", errors);
    let (cut, order) = cut_and_order(value, "qkv", errors);
    match (tensor, cut, order) {
        (Some(tensor), Some(cut), Some(order)) => vec![PartsBias { tensor, cut, order }],
        _ => Vec::new(),
    }
}

fn cut_and_order(value: &Json, parts: &str, errors: &mut Collector) -> (Option<Cut>, Option<Vec<Slot>>) {
    let Kind::Object(entries) = &value.value else { return (None, None) };
    let mut text = |name: &str| entries.get(name).and_then(|(.., value)| value.text(errors));
    let (cut, order) = (text("cut"), text("order"));
    (cut.and_then(|text| self::cut(text, errors)), order.and_then(|text| self::order(text, parts, errors)))
}

fn cut(text: Text<'_>, errors: &mut Collector) -> Option<Cut> {
    match text.text {
        "blocks" => return Some(Cut::Blocks),
        "per head" => return Some(Cut::PerHead),
        "per group" => return Some(Cut::PerGroup),
        _ => {}
    }
    if let Some(count) = text.text.strip_prefix("per ") {
        let start = text.text.len() - count.len();
        let span = text.at(start, text.text.len());
        // A name alone is a slip of `per head`; a formula says how many.
        let formula =
            collect(Formula::parse(Text { text: count, span: &span, verbatim: text.verbatim }), errors);
        return formula.map(Cut::Per);
    }
    let more = "`per N` with the number of equal views, `per 4`";
    errors.push(unknown_choice("cut", text.text, text.span, CUT, Some(more)));
    None
}

fn order(text: Text<'_>, parts: &str, errors: &mut Collector) -> Option<Vec<Slot>> {
    let slot = |name: &str| match name.strip_prefix('_') {
        Some(name) => Some(Slot { part: single(name)?, other: true }),
        None => single(name).map(own),
    };
    let slots: Option<Vec<Slot>> = text.text.split_whitespace().map(slot).collect();
    let mut sorted: Vec<&str> = text.text.split_whitespace().filter(|name| !name.starts_with('_')).collect();
    sorted.sort_unstable();
    let mut wanted: Vec<&str> = parts.split("").filter(|name| !name.is_empty()).collect();
    let example = wanted.join(" ");
    wanted.sort_unstable();
    if sorted == wanted && slots.is_some() {
        return slots;
    }
    errors.push(
        Diagnostic::error(MappingCode::Forward, "an unknown value of `order`")
            .rule(text.span)
            .expected(format!("its parts, each once, in any order: `{example}`"))
            .found(format!("`{}`", text.text))
            .help("put spaces between the parts; `_q` is a part that another attention reads"),
    );
    None
}

/// Reads a norm. A text is its kind.
fn norm(value: &Json, (own, name): (&Own<'_>, &str), errors: &mut Collector) -> Option<Norm> {
    let kind_of = |text: Option<&str>| match text {
        Some("layer") => NormKind::Layer,
        Some("length") => NormKind::Length,
        _ => NormKind::RootMeanSquare,
    };
    let places = |kind: NormKind, errors: &mut Collector| {
        if kind == NormKind::Length {
            return Some((None, None));
        }
        let weight = own.weight(&[name], &value.span, errors)?;
        Some((Some(weight), own.bias(&[name], &value.span, errors)))
    };
    if let Kind::String(..) = &value.value {
        let kind = kind_of(Some(value.choice(name, NORM_KIND, errors)?));
        let (weight, bias) = places(kind, errors)?;
        return Some(Norm { kind, weight, bias, epsilon: 1e-6, together: false });
    }
    let fields = value.fields(NORM.fields, errors);
    let mut choice = |name: &str, known| match fields.get(name) {
        Some(value) => value.choice(name, known, errors).map(Some),
        None => Some(None),
    };
    let kind = kind_of(choice("kind", NORM_KIND)?);
    let together = choice("over", NORM_OVER)? == Some("all heads");
    let (weight, bias) = match fields.get("weight") {
        Some(_) if kind != NormKind::Length => {
            (Some(template(fields, "weight", errors)?), template(fields, "bias", errors))
        }
        _ => places(kind, errors)?,
    };
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
        Kind::Object(_) => {
            let fields = value.fields(ROTATION.fields, errors);
            value.check_required(ROTATION.fields, errors);
            let dims = fields.get("dims").and_then(|value| formula(value, errors));
            (fields.get("style")?, dims)
        }
        _ => (value, None),
    };
    match style.choice("rotary", ROTARY, errors)? {
        "half" => Some(Rotary { style: RotaryStyle::Half, dims }),
        "interleaved" => Some(Rotary { style: RotaryStyle::Interleaved, dims }),
        _ => None,
    }
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
        let found = forwards(&json, &[], &mut errors);
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
