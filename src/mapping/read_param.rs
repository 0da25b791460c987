//! Decodes the parameters of a mapping file.

use std::collections::BTreeSet;

use super::Param;
use super::choices::{ABSENT, PARAM_ROLES};
use super::fields::PARAM;
use super::json::{Json, Kind};
use super::read::{check_axis_name, declared};
use super::role::ParamRole;
use crate::diag::{Collector, Diagnostic, MappingCode, nearest};
use crate::notation::{Text, is_axis_name};
use crate::span::Span;

pub(super) fn param(
    name: &str,
    span: &Span,
    value: &Json,
    known: &BTreeSet<&str>,
    errors: &mut Collector,
) -> Option<Param> {
    if !is_label(name) {
        errors.push(
            Diagnostic::error(MappingCode::ParamName, format!("no label can name the parameter `{name}`"))
                .rule(span)
                .expected("letters, digits, `_`, `.` and `-`; `_` alone is padding")
                .found(format!("`{name}`"))
                .help("give it another name, such as `q.weight`"),
        );
    }
    let mut role = None;
    let (axes, optional, absent_zeros, tied, sparse, sparse_span) = match &value.value {
        Kind::Object(_) => {
            let fields = value.fields(PARAM.fields, errors);
            let absent = fields.get("absent");
            if let Some(absent) = absent {
                absent.choice("absent", ABSENT, errors);
            }
            value.check_required(PARAM.fields, errors);
            if let Some(given) = fields.get("role") {
                role = given.choice("role", PARAM_ROLES, errors).and_then(ParamRole::parse);
            }
            let sparse: Vec<String> =
                fields.text("sparse", errors).split_whitespace().map(str::to_owned).collect();
            let optional = fields.flag("optional", errors);
            let sparse_span = fields.get("sparse").map(|sparse| &sparse.span);
            let tied = fields.get("tied").and_then(|tied| tied_to(name, tied, known, errors));
            (fields.get("axes")?, optional, absent.is_some(), tied, sparse, sparse_span)
        }
        Kind::String(..) => (value, false, false, None, Vec::new(), None),
        _ => {
            value.wrong("a string with the parameter's axes, or an object", errors);
            return None;
        }
    };
    let (axes, axis_spans, inputs_from) = param_axes(axes.text(errors)?, errors)?;
    if let Some(other) = sparse.iter().find(|axis| !axes.contains(axis)) {
        errors.push(
            Diagnostic::error(
                MappingCode::Sparse,
                format!("the parameter has no axis `{other}` to be sparse"),
            )
            .rule(sparse_span.unwrap_or(span))
            .expected(format!("one of {}", axes.join(", ")))
            .found(format!("`{other}`"))
            .help("name axes of the parameter that stand in the names of its tensors"),
        );
    }
    let span = span.clone();
    Some(Param { axes, axis_spans, inputs_from, optional, absent_zeros, tied, sparse, role, span })
}

/// Reads the name of the parameter that another one equals where it is missing.
fn tied_to(name: &str, tied: &Json, known: &BTreeSet<&str>, errors: &mut Collector) -> Option<String> {
    let other = tied.string(errors)?;
    if other != name && known.contains(other) {
        return Some(other.to_owned());
    }
    let names = known.iter().copied().filter(|known| *known != name);
    let error = Diagnostic::error(MappingCode::Tied, format!("`{name}` cannot be tied to `{other}`"))
        .rule(&tied.span)
        .expected(declared(names.clone()))
        .found(format!("`{other}`"));
    errors.push(match nearest(other, names) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error.help("name the parameter whose values it has where it is missing"),
    });
    None
}

/// Reads the axes of a parameter, each with its place, and how many stand before the `|` of a matrix.
fn param_axes(text: Text<'_>, errors: &mut Collector) -> Option<(Vec<String>, Vec<Span>, Option<usize>)> {
    if text.text.contains([',', '(', ')', '+']) {
        let spaced = text.text.replace([',', '(', ')', '+'], " ");
        let spaced: Vec<&str> = spaced.split_whitespace().collect();
        errors.push(
            Diagnostic::error(
                MappingCode::Param,
                "the axes of a parameter have spaces between them and nothing else",
            )
            .rule(text.span)
            .expected("names of axes, slowest first")
            .found(format!("`{}`", text.text))
            .help(format!("write `{}`; how a tensor composes them stands in its rule", spaced.join(" "))),
        );
        return None;
    }
    let (mut axes, mut spans, mut at) = (Vec::new(), Vec::new(), 0);
    let (mut named, mut inputs_from) = (true, None);
    let wrong_bar = |span: &Span, found: &str, errors: &mut Collector| {
        let message = "`|` parts the outputs of a matrix from its inputs";
        let error = Diagnostic::error(MappingCode::Param, message).rule(span);
        let error =
            error.expected("axes before it, axes behind it, and no other `|`").found(found.to_owned());
        errors.push(error.help("write the outputs, `|` and the inputs, `h d | e`; a vector has no `|`"));
    };
    for word in text.text.split_whitespace() {
        let start = at + text.text.get(at..).and_then(|rest| rest.find(word)).unwrap_or(0);
        at = start + word.len();
        let span = text.at(start, at);
        if word == "|" {
            if inputs_from.is_some() || axes.is_empty() {
                let found = if inputs_from.is_some() { "a second `|`" } else { "nothing before it" };
                wrong_bar(&span, found, errors);
                return None;
            }
            inputs_from = Some(axes.len());
            continue;
        }
        check_axis_name(word, &span, errors);
        named &= is_axis_name(word);
        axes.push(word.to_owned());
        spans.push(span);
    }
    if inputs_from == Some(axes.len()) {
        wrong_bar(text.span, "nothing behind it", errors);
        return None;
    }
    named.then_some((axes, spans, inputs_from))
}

/// Returns whether a label can name that parameter.
fn is_label(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    !name.is_empty() && name != "_" && name.bytes().all(fits)
}
