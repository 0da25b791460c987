//! Decodes a mapping file's JSON into the typed tree; every error is collected.

use std::sync::Arc;

use indexmap::IndexMap;

use super::arith::Formula;
use super::inherit::inherited;
use super::json::{Fields, Json, Kind, parse};
use super::key::Template;
use super::read_forward::forwards;
use super::{Axis, Condition, ConfigEntry, Default, Layout, Mapping, Param, Rule, Unmapped, builtin, check};
use crate::diag::{Collector, Diagnostic, Errors, nearest};
use crate::notation::{Text, is_axis_name, parse_expr, parse_sum};
use crate::span::{Source, Span};

/// Reads a mapping file's text. A file with `extends` is merged into the built-in family that it names.
///
/// # Errors
/// Returns everything that is wrong with the file, each with its line and column.
pub fn read(source: &Arc<Source>) -> Result<Mapping, Errors> {
    let mut errors = Collector::default();
    let mapping = parse(source, &mut errors).and_then(|json| decode(source, &json, &mut errors));
    if let Some(mapping) = &mapping
        && !errors.has_errors()
    {
        check::check(mapping, &mut errors);
    }
    if mapping.is_none() && !errors.has_errors() {
        errors.push(
            Diagnostic::error("mapping/json", "no mapping in this file").rule(&Span::new(source, 0, 0)),
        );
    }
    // Only a file without errors gets past `finish`, and that has a mapping.
    let (mapping, _warnings) = errors.finish(mapping)?;
    mapping.ok_or_else(|| Errors::from(Diagnostic::error("mapping/json", "no mapping in this file")))
}

const TOP: &[&str] =
    &["$schema", "format", "family", "extends", "about", "axes", "params", "anchors", "unmapped", "layouts"];

fn decode(source: &Arc<Source>, json: &Json, errors: &mut Collector) -> Option<Mapping> {
    let top = json.fields(TOP, errors);
    match top.get("format").map(|format| (&format.value, &format.span)) {
        Some((Kind::Number(1.0), _)) => {}
        Some((_, span)) => errors.push(
            Diagnostic::error("mapping/format", "a mapping format that this version does not know")
                .rule(span)
                .expected("1"),
        ),
        None => errors.push(
            Diagnostic::error("mapping/format", "the field `format` is missing")
                .rule(&json.span)
                .help("add `\"format\": 1`"),
        ),
    }
    let mut mapping = match top.get("extends") {
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
        },
    };
    if mapping.family.is_empty() {
        errors.push(Diagnostic::error("mapping/family", "the field `family` is missing").rule(&json.span));
    }
    if let Some(about) = top.get("about") {
        mapping.about = about.string(errors).unwrap_or_default().to_owned();
    }
    for (name, span, _, value) in top.entries("axes", errors) {
        let axis = axis(name, span, value, errors);
        insert(&mut mapping.axes, "axis", name, span, axis, |axis| &axis.span, errors);
    }
    for (name, span, _, value) in top.entries("params", errors) {
        let param = param(span, value, errors);
        insert(&mut mapping.params, "parameter", name, span, param, |param| &param.span, errors);
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
        mapping.unmapped = match unmapped.string(errors) {
            Some("keep") => Unmapped::Keep,
            Some("error") => Unmapped::Error,
            Some(_) => {
                errors.push(
                    Diagnostic::error("mapping/unmapped", "an unknown way with unmapped tensors")
                        .rule(&unmapped.span)
                        .expected("`keep` or `error`"),
                );
                Unmapped::Error
            }
            None => Unmapped::Error,
        };
    }
    let layouts = top.get("layouts").and_then(|layouts| layouts.object(errors));
    let extends = top.get("extends").map(|_| mapping.family.clone());
    let layouts = layouts.map(|layouts| inherited(layouts, extends.as_deref(), errors));
    for (name, (span, _, value)) in layouts.iter().flatten() {
        let layout = layout(name, span, value, errors);
        insert(&mut mapping.layouts, "layout", name, span, Some(layout), |layout| &layout.span, errors);
    }
    Some(mapping)
}

fn extended(source: &Arc<Source>, name: &Json, errors: &mut Collector) -> Option<Mapping> {
    let family = name.string(errors)?;
    let Some(mut base) = builtin::family(family) else {
        let error =
            Diagnostic::error("mapping/extends", format!("no built-in family `{family}`")).rule(&name.span);
        errors.push(error.help(match nearest(family, builtin::names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("built in: {}", builtin::names().collect::<Vec<_>>().join(", ")),
        }));
        return None;
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(base.source.text.as_bytes());
    hasher.update(source.text.as_bytes());
    base.hash = hasher.finalize().to_hex().to_string();
    base.source = Arc::clone(source);
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
            Diagnostic::error("mapping/duplicate", format!("the {what} `{name}` is there already"))
                .rule(span)
                .related(place(first), "first here")
                .help("give the new one another name"),
        );
    } else if let Some(value) = value {
        map.insert(name.to_owned(), value);
    }
}

fn axis(name: &str, span: &Span, value: &Json, errors: &mut Collector) -> Option<Axis> {
    if !is_axis_name(name) {
        errors.push(
            Diagnostic::error("mapping/axis-name", format!("`{name}` is no axis name"))
                .rule(span)
                .help("an axis name has letters, digits and `_`, and begins with a letter"),
        );
    }
    let mut axis =
        Axis { is: None, size: None, per_parameter: false, about: String::new(), span: span.clone() };
    if let Kind::String(about, _) = &value.value {
        axis.about.clone_from(about);
        return Some(axis);
    }
    let fields = value.fields(&["is", "size", "per", "about"], errors);
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
        match per.string(errors) {
            Some("parameter") => axis.per_parameter = true,
            Some("module") | None => {}
            Some(_) => errors.push(
                Diagnostic::error("mapping/axis", "an axis has one size per `parameter` or per `module`")
                    .rule(&per.span),
            ),
        }
    }
    Some(axis)
}

fn param(span: &Span, value: &Json, errors: &mut Collector) -> Option<Param> {
    let (axes, optional, absent_zeros, sparse) = match &value.value {
        Kind::String(..) => (value, false, false, Vec::new()),
        _ => {
            let fields = value.fields(&["axes", "optional", "absent", "sparse", "about"], errors);
            let absent = fields.get("absent");
            if let Some(absent) = absent
                && absent.string(errors).is_some_and(|text| text != "zeros")
            {
                errors.push(
                    Diagnostic::error(
                        "mapping/absent",
                        "a parameter that is absent can stand for `zeros` only",
                    )
                    .rule(&absent.span)
                    .expected("`zeros`"),
                );
            }
            let Some(axes) = fields.get("axes") else {
                errors.push(Diagnostic::error("mapping/param", "the field `axes` is missing").rule(span));
                return None;
            };
            let sparse = fields.text("sparse", errors).split_whitespace().map(str::to_owned).collect();
            (axes, fields.flag("optional", errors), absent.is_some(), sparse)
        }
    };
    let axes: Vec<String> = axes.string(errors)?.split_whitespace().map(str::to_owned).collect();
    if let Some(other) = sparse.iter().find(|axis| !axes.contains(axis)) {
        errors.push(
            Diagnostic::error("mapping/sparse", format!("the parameter has no axis `{other}` to be sparse"))
                .rule(span)
                .expected(format!("one of {}", axes.join(", "))),
        );
    }
    Some(Param { axes, optional, absent_zeros, sparse, span: span.clone() })
}

const LAYOUT: &[&str] = &[
    "models",
    "like",
    "about",
    "source",
    "axes",
    "tensors",
    "config",
    "config_file",
    "defaults",
    "ignore",
    "when",
    "metadata",
    "paths",
    "forward",
];

fn layout(name: &str, span: &Span, value: &Json, errors: &mut Collector) -> Layout {
    let fields = value.fields(LAYOUT, errors);
    let mut layout = Layout {
        name: name.to_owned(),
        about: fields.text("about", errors),
        citation: fields.text("source", errors),
        axes: IndexMap::new(),
        rules: Vec::new(),
        config: IndexMap::new(),
        config_file: fields.get("config_file").and_then(|name| config_file(name, errors)),
        defaults: IndexMap::new(),
        ignore: Vec::new(),
        paths: fields
            .entries("paths", errors)
            .filter_map(|(name, _, _, value)| Some((name.to_owned(), path(value.string(errors)?))))
            .collect(),
        when: conditions(fields, errors),
        metadata: fields
            .entries("metadata", errors)
            .filter_map(|(name, _, _, value)| Some((name.to_owned(), value.string(errors)?.to_owned())))
            .collect(),
        models: fields
            .get("models")
            .map(|models| models.strings(errors))
            .unwrap_or_default()
            .into_iter()
            .filter_map(|model| model.string(errors).map(str::to_owned))
            .collect(),
        forwards: fields.get("forward").map(|value| forwards(value, errors)).unwrap_or_default(),
        span: span.clone(),
    };
    for (name, span, _, value) in fields.entries("axes", errors) {
        let axis = match value.text(&mut Collector::default()) {
            // In a layout a bare string restates the axis: `"d": "(f c) + u"`.
            Some(text) => collect(parse_sum(text), errors).map(|is| Axis {
                is: Some(is),
                size: None,
                per_parameter: false,
                about: String::new(),
                span: span.clone(),
            }),
            None => axis(name, span, value, errors),
        };
        layout.axes.extend(axis.map(|axis| (name.to_owned(), axis)));
    }
    for (name, span, verbatim, value) in fields.entries("tensors", errors) {
        let name = Text { text: name, span, verbatim };
        match &value.value {
            // Alternatives, told apart by their conditions.
            Kind::Array(items) => {
                layout.rules.extend(items.iter().filter_map(|item| rule(name, item, errors)));
            }
            _ => layout.rules.extend(rule(name, value, errors)),
        }
    }
    for (name, span, _, value) in fields.entries("config", errors) {
        if let Some(entry) = config_entry(span, value, errors) {
            layout.config.insert(name.to_owned(), entry);
        }
    }
    for (name, span, _, value) in fields.entries("defaults", errors) {
        if let Some(value) = formula(value, errors) {
            layout.defaults.insert(name.to_owned(), Default { value, span: span.clone() });
        }
    }
    for item in fields.get("ignore").map(|ignore| ignore.strings(errors)).unwrap_or_default() {
        layout.ignore.extend(item.text(errors).and_then(|text| collect(Template::parse(text), errors)));
    }
    layout
}

/// Returns the segments of a path that is written with dots.
fn path(text: &str) -> Vec<String> {
    text.split('.').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

/// Reads the name of a config file; it stands beside the weights and nowhere else.
fn config_file(name: &Json, errors: &mut Collector) -> Option<String> {
    let text = name.string(errors)?;
    if text.ends_with(".json") && !text.contains(['/', '\\']) && !text.starts_with('.') {
        return Some(text.to_owned());
    }
    let error = Diagnostic::error("mapping/config-file", format!("`{text}` is no name of a config file"));
    errors.push(error.rule(&name.span).expected("a name that ends in `.json`, without a folder"));
    None
}

fn rule(name: Text<'_>, value: &Json, errors: &mut Collector) -> Option<Rule> {
    let template = collect(Template::parse(name), errors);
    let (text, fields) = match &value.value {
        Kind::String(..) => (value.text(errors), None),
        _ => {
            let fields = value.fields(&["is", "optional", "scale", "offset", "when", "about"], errors);
            if fields.get("is").is_none() {
                errors.push(Diagnostic::error("mapping/rule", "the field `is` is missing").rule(&value.span));
            }
            (fields.get("is").and_then(|is| is.text(errors)), Some(fields))
        }
    };
    let expr = text.and_then(|text| collect(parse_expr(text), errors));
    let mut factor =
        |name| fields.and_then(|fields| fields.get(name)).and_then(|value| formula(value, errors));
    let (scale, offset) = (factor("scale"), factor("offset"));
    let optional = fields.is_some_and(|fields| fields.flag("optional", errors));
    let when = fields.map(|fields| conditions(fields, errors)).unwrap_or_default();
    Some(Rule { template: template?, expr: expr?, optional, scale, offset, when })
}

pub(super) fn formula(value: &Json, errors: &mut Collector) -> Option<Formula> {
    match value.value {
        Kind::Number(number) => Some(Formula::number(number, &value.span)),
        _ => value.text(errors).and_then(|text| collect(Formula::parse(text), errors)),
    }
}

fn config_entry(span: &Span, value: &Json, errors: &mut Collector) -> Option<ConfigEntry> {
    let (keys, is, absent) = match &value.value {
        Kind::Object(_) => {
            let fields = value.fields(&["keys", "is", "absent"], errors);
            let mut part = |name| fields.get(name).and_then(|value| formula(value, errors));
            (fields.get("keys"), part("is"), part("absent"))
        }
        _ => (Some(value), None, None),
    };
    let keys = keys.map(|keys| keys.strings(errors)).unwrap_or_default();
    let keys = keys.into_iter().filter_map(|key| key.string(errors).map(str::to_owned)).collect();
    Some(ConfigEntry { keys, is, absent, span: span.clone() })
}

fn conditions(fields: Fields<'_>, errors: &mut Collector) -> Vec<Condition> {
    let entries = fields.entries("when", errors);
    entries
        .map(|(key, span, _, value)| Condition {
            key: key.to_owned(),
            allowed: match &value.value {
                Kind::Array(items) => items.iter().map(Json::plain).collect(),
                _ => vec![value.plain()],
            },
            span: span.clone(),
        })
        .collect()
}

pub(super) fn collect<T>(result: Result<T, Diagnostic>, errors: &mut Collector) -> Option<T> {
    result.map_err(|error| errors.push(error)).ok()
}

/// Says that no parameter has that name.
pub(super) fn unknown_param(name: &str, span: &Span, mapping: &Mapping) -> Diagnostic {
    let error = Diagnostic::error("mapping/unknown-param", format!("no parameter `{name}` in the family"));
    let known = mapping.params.keys().map(String::as_str);
    error.rule(span).help(match nearest(name, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("declare it under `params`; declared: {}", known.collect::<Vec<_>>().join(", ")),
    })
}
