//! Decodes a mapping file's JSON into the typed tree: the file and its axes here, parameters and layouts in
//! [`super::read_param`] and [`super::read_layout`]; every error is collected.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;

use super::arith::Formula;
use super::choices::{AXIS_ROLES, PER, UNMAPPED};
use super::fields::{AXIS, TOP};
use super::inherit::inherited;
use super::json::{Fields, Json, Kind, parse};
use super::read_layout::layout;
use super::read_param::param;
use super::role::AxisRole;
use super::{Axis, Mapping, Param, Unmapped, builtin, check};
use crate::diag::{Collector, Diagnostic, Errors, MappingCode, nearest};
use crate::notation::{is_axis_name, parse_sum};
use crate::span::{Source, Span};

/// Reads a mapping file's text. A file with `extends` is merged into the built-in family that it names.
///
/// # Errors
/// Returns everything that is wrong with the file, each with its line and column.
pub fn read(source: &Arc<Source>) -> Result<Mapping, Errors> {
    read_and(source, check::check)
}

/// Reads a file that is built in: a test has made the checks that [`read`] makes.
pub(super) fn read_built_in(source: &Arc<Source>) -> Result<Mapping, Errors> {
    read_and(source, |_, _, _| {})
}

fn read_and(
    source: &Arc<Source>,
    check: impl Fn(&Mapping, &Unread, &mut Collector),
) -> Result<Mapping, Errors> {
    let mut errors = Collector::default();
    let read = parse(source, &mut errors).and_then(|json| decode(source, &json, &mut errors));
    if let Some((mapping, unread)) = &read {
        check(mapping, unread, &mut errors);
    }
    // A file without a mapping has told why.
    let (read, _warnings) = errors.finish(read).map_err(Errors::by_place)?;
    read.map(|(mapping, _)| mapping)
        .ok_or_else(|| Errors::from(Diagnostic::error(MappingCode::Json, "no mapping in this file")))
}

/// The parameters that are declared, but so that they cannot be read.
pub(super) type Unread = BTreeSet<String>;

fn decode(source: &Arc<Source>, json: &Json, errors: &mut Collector) -> Option<(Mapping, Unread)> {
    let top = json.fields(TOP, errors);
    json.object(&mut Collector::default())?;
    json.check_required(TOP, errors);
    if let Some(format) = top.get("format")
        && !matches!(format.value, Kind::Number(1.0))
    {
        errors.push(
            Diagnostic::error(MappingCode::Format, "a mapping format that this version does not know")
                .rule(&format.span)
                .expected("1")
                .found(format!("`{}`", format.span.text()))
                .help("write `\"format\": 1`, or take the version of qkvconv that the file was written for"),
        );
    }
    // Of a file that has both the family counts.
    let extends = top.get("extends").filter(|_| top.get("family").is_none());
    let mut mapping = match extends {
        Some(name) => extended(source, name, errors)?,
        None => Mapping {
            family: top.text("family", errors),
            about: String::new(),
            axes: IndexMap::new(),
            params: IndexMap::new(),
            anchors: Vec::new(),
            unmapped: Unmapped::Error,
            layouts: IndexMap::new(),
            source: Arc::clone(source),
            hash: blake3::hash(source.text.as_bytes()).to_hex().to_string(),
            roles: OnceLock::new(),
        },
    };
    check_family(json, top, errors);
    if let Some(about) = top.get("about") {
        mapping.about = about.string(errors).unwrap_or_default().to_owned();
    }
    for (name, span, _, value) in top.entries("axes", errors) {
        let axis = axis(name, span, value, errors);
        insert(&mut mapping.axes, "axis", name, span, axis, |axis| &axis.span, errors);
    }
    let mut unread = Unread::new();
    let mut known: BTreeSet<&str> =
        top.entries("params", &mut Collector::default()).map(|(name, ..)| name).collect();
    let before: Vec<String> = mapping.params.keys().cloned().collect();
    known.extend(before.iter().map(String::as_str));
    for (name, span, _, value) in top.entries("params", errors) {
        let param = param(name, span, value, &known, errors).unwrap_or_else(|| {
            unread.insert(name.to_owned());
            let (axes, axis_spans, sparse) = (Vec::new(), Vec::new(), Vec::new());
            let (optional, absent_zeros, tied, role) = (false, false, None, None);
            let (inputs_from, span) = (None, span.clone());
            Param { axes, axis_spans, inputs_from, optional, absent_zeros, tied, sparse, role, span }
        });
        insert(&mut mapping.params, "parameter", name, span, Some(param), |param| &param.span, errors);
    }
    if let Some(anchors) = top.get("anchors") {
        for anchor in anchors.strings(errors) {
            let name = anchor.string(errors).unwrap_or_default();
            if !mapping.params.contains_key(name) {
                errors.push(unknown_param(name, &anchor.span, &mapping));
            }
            mapping.anchors.push(name.to_owned());
        }
    }
    if let Some(unmapped) = top.get("unmapped") {
        mapping.unmapped = match unmapped.choice("unmapped", UNMAPPED, errors) {
            Some("keep") => Unmapped::Keep,
            _ => Unmapped::Error,
        };
    }
    let layouts = top.get("layouts").and_then(|layouts| layouts.object(errors));
    let extends = extends.map(|_| mapping.family.clone());
    let layouts = layouts.map(|layouts| inherited(layouts, extends.as_deref(), errors));
    for (name, (span, _, value)) in layouts.iter().flatten() {
        let layout = layout(name, span, value, errors);
        insert(&mut mapping.layouts, "layout", name, span, Some(layout), |layout| &layout.span, errors);
    }
    Some((mapping, unread))
}

/// A file has a family of its own, or extends one.
fn check_family(json: &Json, top: Fields<'_>, errors: &mut Collector) {
    match (top.get("family"), top.get("extends")) {
        (None, None) => json.needs("family", TOP, errors),
        (Some(family), Some(extends)) => errors.push(
            Diagnostic::error(MappingCode::Family, "a file has either `family` or `extends`")
                .rule(&family.span)
                .related(&extends.span, "the family that it extends")
                .expected("one of the two")
                .found("both")
                .help("remove `family`: the layouts belong to the family that is extended"),
        ),
        _ => {}
    }
}

fn extended(source: &Arc<Source>, name: &Json, errors: &mut Collector) -> Option<Mapping> {
    let family = name.string(errors)?;
    let Some(mut base) = builtin::family(family) else {
        let error = Diagnostic::error(MappingCode::Extends, format!("no built-in family `{family}`"))
            .rule(&name.span)
            .expected(format!("one of {}", builtin::names().collect::<Vec<_>>().join(", ")))
            .found(format!("`{family}`"));
        errors.push(error.help(match nearest(family, builtin::names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "a family of your own has `family`, not `extends`".into(),
        }));
        return None;
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(base.source.text.as_bytes());
    hasher.update(source.text.as_bytes());
    base.hash = hasher.finalize().to_hex().to_string();
    base.source = Arc::clone(source);
    base.roles = OnceLock::new();
    Some(base)
}

fn insert<T>(
    map: &mut IndexMap<String, T>,
    what: &str,
    name: &str,
    span: &Span,
    value: Option<T>,
    place: impl Fn(&T) -> &Span,
    errors: &mut Collector,
) {
    if let Some(first) = map.get(name) {
        errors.push(
            Diagnostic::error(MappingCode::Duplicate, format!("the {what} `{name}` is there already"))
                .rule(span)
                .related(place(first), "first here")
                .expected("a name that the family does not have yet")
                .found(format!("`{name}`, which it has"))
                .help("remove it, or give the new one another name"),
        );
    } else if let Some(value) = value {
        map.insert(name.to_owned(), value);
    }
}

pub(super) fn axis(name: &str, span: &Span, value: &Json, errors: &mut Collector) -> Option<Axis> {
    check_axis_name(name, span, errors);
    let mut axis = Axis::at(span);
    if let Kind::String(about, _) = &value.value {
        axis.about.clone_from(about);
        return Some(axis);
    }
    if !matches!(value.value, Kind::Object(_)) {
        value.wrong("a string with what the axis means, or an object", errors);
        return Some(axis);
    }
    let fields = value.fields(AXIS.fields, errors);
    axis.about = fields.text("about", errors);
    if let Some(text) = fields.get("is").and_then(|is| is.text(errors)) {
        axis.is = collect(parse_sum(text), errors);
    }
    if let Some(size) = fields.get("size") {
        match size.value {
            Kind::Number(value) if value.fract() == 0.0 && (0.0..1e15).contains(&value) => {
                axis.size = Some(value as u64)
            }
            _ => size.wrong("a whole number", errors),
        }
    }
    if let Some(per) = fields.get("per") {
        axis.per_parameter = per.choice("per", PER, errors) == Some("parameter");
    }
    if let Some(role) = fields.get("role") {
        axis.role = role.choice("role", AXIS_ROLES, errors).and_then(AxisRole::parse);
    }
    Some(axis)
}

pub(super) fn check_axis_name(name: &str, span: &Span, errors: &mut Collector) {
    if !is_axis_name(name) {
        let usable: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
        errors.push(
            Diagnostic::error(MappingCode::AxisName, format!("`{name}` is no axis name"))
                .rule(span)
                .expected("letters, digits and `_`, a letter first")
                .found(format!("`{name}`"))
                .help(match is_axis_name(&usable) {
                    true => format!("call it `{usable}`"),
                    false => "call it by a letter, `h`, and say in its text what it means".into(),
                }),
        );
    }
}

pub(super) fn formula(value: &Json, errors: &mut Collector) -> Option<Formula> {
    match value.value {
        Kind::Number(number) => Some(Formula::number(number, &value.span)),
        Kind::String(..) => value.text(errors).and_then(|text| collect(Formula::parse(text), errors)),
        _ => {
            value.wrong("a number, or a string with a formula", errors);
            None
        }
    }
}

pub(super) fn collect<T>(result: Result<T, Diagnostic>, errors: &mut Collector) -> Option<T> {
    result.map_err(|error| errors.push(error)).ok()
}

/// Says that no parameter has that name.
pub(super) fn unknown_param(name: &str, span: &Span, mapping: &Mapping) -> Diagnostic {
    let error = Diagnostic::error(MappingCode::UnknownParam, format!("no parameter `{name}` in the family"));
    let known = mapping.params.keys().map(String::as_str);
    error.rule(span).expected(declared(known.clone())).found(format!("`{name}`")).help(
        match nearest(name, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "declare it under `params`, with its axes in canonical order".into(),
        },
    )
}

/// Lists the names that could have stood, as many as a reader takes in.
pub(super) fn declared<'a>(known: impl Iterator<Item = &'a str> + Clone) -> String {
    const MOST: usize = 12;
    let count = known.clone().count();
    let shown: Vec<String> = known.take(MOST).map(|name| format!("`{name}`")).collect();
    match count {
        0 => "a name that is declared; none is".into(),
        1 => shown.join(""),
        2..=MOST => format!("one of {}", shown.join(", ")),
        _ => format!("one of {}, … ({count})", shown.join(", ")),
    }
}
