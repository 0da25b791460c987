//! Decodes a layout's `forward` entry.

use indexmap::IndexMap;

use super::forward::{
    Apply, Cut, Forward, FusedBias, Norm, Part, Projection, Projections, Rotary, RotaryStyle,
};
use super::json::{Fields, Json, Kind};
use super::key::Template;
use super::read::{collect, formula};
use crate::diag::{Collector, Diagnostic};
use crate::span::Span;

const FIELDS: &[&str] = &[
    "source", "qkv", "q", "k", "v", "bias", "out", "q_norm", "k_norm", "rotary", "scale", "causal",
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
    let parts: Vec<&Json> = ["q", "k", "v"].iter().filter_map(|name| fields.get(name)).collect();
    let projections = match (fields.get("qkv"), &parts[..]) {
        (Some(fused), []) => fused_projection(fused, errors),
        (None, [q, k, v]) => {
            let all = [q, k, v].map(|part| projection(part, &[], errors));
            let [Some(q), Some(k), Some(v)] = all else { return None };
            Some(Projections::Separate { projections: Box::new([q, k, v]) })
        }
        _ => {
            errors.push(
                Diagnostic::error("mapping/forward", "a forward entry has either `qkv`, or `q`, `k` and `v`")
                    .rule(&value.span),
            );
            None
        }
    };
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
        projections: projections?,
        bias: fields.get("bias").and_then(|value| fused_bias(value, errors)),
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
    let known = [&["weight", "bias", "apply", "each"], more].concat();
    let fields = value.fields(&known, errors);
    let weight = required(fields, "weight", value, errors);
    let apply = match fields.get("apply") {
        Some(text) => {
            let apply = Apply::parse(text.string(errors)?);
            if apply.is_none() {
                let known =
                    "`linear` (x W^T + b), `dense` (x W + b) or an einsum such as `einsum te,ehd->thd`";
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
    Some(Projection { weight: weight?, bias, apply: apply?, each })
}

fn fused_projection(value: &Json, errors: &mut Collector) -> Option<Projections> {
    let projection = projection(value, &["cut", "order"], errors);
    let (cut, order) = cut_and_order(value, errors);
    Some(Projections::Fused { projection: projection?, cut: cut?, order: order? })
}

fn fused_bias(value: &Json, errors: &mut Collector) -> Option<FusedBias> {
    let fields = value.fields(&["tensor", "cut", "order"], errors);
    let tensor = required(fields, "tensor", value, errors);
    let (cut, order) = cut_and_order(value, errors);
    Some(FusedBias { tensor: tensor?, cut: cut?, order: order? })
}

fn cut_and_order(value: &Json, errors: &mut Collector) -> (Option<Cut>, Option<[Part; 3]>) {
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
    let cut = cut.and_then(|(text, span)| match text.as_str() {
        "blocks" => Some(Cut::Blocks),
        "per head" => Some(Cut::PerHead),
        "per group" => Some(Cut::PerGroup),
        _ => {
            errors.push(one_of("cut", "`blocks`, `per head` or `per group`", &span));
            None
        }
    });
    let order = order.and_then(|(text, span)| {
        let parts: Vec<Part> = text
            .split_whitespace()
            .filter_map(|part| match part {
                "q" => Some(Part::Q),
                "k" => Some(Part::K),
                "v" => Some(Part::V),
                _ => None,
            })
            .collect();
        match parts[..] {
            [a, b, c] if a != b && b != c && a != c => Some([a, b, c]),
            _ => {
                errors.push(one_of("order", "q, k and v in any order, `q k v`", &span));
                None
            }
        }
    });
    (cut, order)
}

fn norm(value: &Json, errors: &mut Collector) -> Option<Norm> {
    let fields = value.fields(&["weight", "epsilon"], errors);
    let weight = required(fields, "weight", value, errors);
    let epsilon = match fields.get("epsilon").map(|value| (&value.value, value)) {
        None => 1e-6,
        Some((Kind::Number(number), _)) => *number,
        Some((_, value)) => {
            value.wrong("a number", errors);
            1e-6
        }
    };
    Some(Norm { weight: weight?, epsilon })
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
