//! Decodes a mapping file's JSON into the typed tree; every error is collected.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;

use super::arith::Formula;
use super::fields::{
    ABSENT, AXIS, AXIS_ROLES, COMPUTED, CONFIG, LAYOUT, PARAM, PARAM_ROLES, PER, RULE, TOP, UNMAPPED, VALUES,
};
use super::inherit::inherited;
use super::json::{Fields, Json, Kind, parse};
use super::key::Template;
use super::read_forward::forwards;
use super::role::{AxisRole, ParamRole};
use super::{
    Axis, Computed, Condition, ConfigEntry, Default, Layout, Mapping, Needed, Param, Rule, Unmapped, Values,
    builtin, check,
};
use crate::diag::{Collector, Diagnostic, Errors, nearest};
use crate::notation::{Text, is_axis_name, parse_expr, parse_sum};
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
        .ok_or_else(|| Errors::from(Diagnostic::error("mapping/json", "no mapping in this file")))
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
            Diagnostic::error("mapping/format", "a mapping format that this version does not know")
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
            Param { axes, axis_spans, optional, absent_zeros, tied, sparse, role, span: span.clone() }
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
            Diagnostic::error("mapping/family", "a file has either `family` or `extends`")
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
        let error = Diagnostic::error("mapping/extends", format!("no built-in family `{family}`"))
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
            Diagnostic::error("mapping/duplicate", format!("the {what} `{name}` is there already"))
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

fn axis(name: &str, span: &Span, value: &Json, errors: &mut Collector) -> Option<Axis> {
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

fn check_axis_name(name: &str, span: &Span, errors: &mut Collector) {
    if !is_axis_name(name) {
        let usable: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
        errors.push(
            Diagnostic::error("mapping/axis-name", format!("`{name}` is no axis name"))
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

fn param(
    name: &str,
    span: &Span,
    value: &Json,
    known: &BTreeSet<&str>,
    errors: &mut Collector,
) -> Option<Param> {
    if !is_label(name) {
        errors.push(
            Diagnostic::error("mapping/param-name", format!("no label can name the parameter `{name}`"))
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
    let (axes, axis_spans) = param_axes(axes.text(errors)?, errors)?;
    if let Some(other) = sparse.iter().find(|axis| !axes.contains(axis)) {
        errors.push(
            Diagnostic::error("mapping/sparse", format!("the parameter has no axis `{other}` to be sparse"))
                .rule(sparse_span.unwrap_or(span))
                .expected(format!("one of {}", axes.join(", ")))
                .found(format!("`{other}`"))
                .help("name axes of the parameter that stand in the names of its tensors"),
        );
    }
    Some(Param { axes, axis_spans, optional, absent_zeros, tied, sparse, role, span: span.clone() })
}

/// Reads the name of the parameter that another one equals where it is missing.
fn tied_to(name: &str, tied: &Json, known: &BTreeSet<&str>, errors: &mut Collector) -> Option<String> {
    let other = tied.string(errors)?;
    if other != name && known.contains(other) {
        return Some(other.to_owned());
    }
    let names = known.iter().copied().filter(|known| *known != name);
    let error = Diagnostic::error("mapping/tied", format!("`{name}` cannot be tied to `{other}`"))
        .rule(&tied.span)
        .expected(declared(names.clone()))
        .found(format!("`{other}`"));
    errors.push(match nearest(other, names) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error.help("name the parameter whose values it has where it is missing"),
    });
    None
}

/// Reads the axes of a parameter, each with its place.
fn param_axes(text: Text<'_>, errors: &mut Collector) -> Option<(Vec<String>, Vec<Span>)> {
    if text.text.contains([',', '(', ')', '+']) {
        let spaced = text.text.replace([',', '(', ')', '+'], " ");
        let spaced: Vec<&str> = spaced.split_whitespace().collect();
        errors.push(
            Diagnostic::error(
                "mapping/param",
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
    let mut named = true;
    for word in text.text.split_whitespace() {
        let start = at + text.text.get(at..).and_then(|rest| rest.find(word)).unwrap_or(0);
        at = start + word.len();
        let span = text.at(start, at);
        check_axis_name(word, &span, errors);
        named &= is_axis_name(word);
        axes.push(word.to_owned());
        spans.push(span);
    }
    named.then_some((axes, spans))
}

/// Returns whether a label can name that parameter.
fn is_label(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    !name.is_empty() && name != "_" && name.bytes().all(fits)
}

fn layout(name: &str, span: &Span, value: &Json, errors: &mut Collector) -> Layout {
    let fields = value.fields(LAYOUT.fields, errors);
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
        computed: Vec::new(),
        paths: fields
            .entries("paths", errors)
            .filter_map(|(name, _, _, value)| Some((name.to_owned(), path(value.string(errors)?))))
            .collect(),
        when: conditions(fields, errors),
        metadata: fields
            .entries("metadata", errors)
            .filter_map(|(name, _, _, value)| Some((name.to_owned(), value.string(errors)?.to_owned())))
            .collect(),
        part: texts(fields, "part", errors),
        models: texts(fields, "models", errors),
        forwards: fields.get("forward").map(|value| forwards(value, errors)).unwrap_or_default(),
        span: span.clone(),
    };
    for (name, span, _, value) in fields.entries("axes", errors) {
        let axis = match value.text(&mut Collector::default()) {
            // In a layout a bare string restates the axis: `"d": "(f c) + u"`.
            Some(text) => collect(parse_sum(text), errors).map(|is| Axis { is: Some(is), ..Axis::at(span) }),
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
    for (name, span, verbatim, value) in fields.entries("computed", errors) {
        layout.computed.extend(computed(Text { text: name, span, verbatim }, value, errors));
    }
    layout
}

fn computed(name: Text<'_>, value: &Json, errors: &mut Collector) -> Option<Computed> {
    let fields = value.fields(COMPUTED.fields, errors);
    value.check_required(COMPUTED.fields, errors);
    let values = match fields.get("values")?.choice("values", VALUES, errors)? {
        "llama3 factors" => Values::Llama3,
        "longrope long factors" => Values::LongRopeLong,
        _ => Values::LongRopeShort,
    };
    let axis = fields.get("axis")?.string(errors)?.to_owned();
    Some(Computed {
        span: name.span.clone(),
        template: collect(Template::parse(name), errors)?,
        values,
        axis,
    })
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
    let error = error.rule(&name.span).expected("a name that ends in `.json`, without a folder");
    errors.push(
        error.found(format!("`{text}`")).help("write the name of the file beside the weights, `params.json`"),
    );
    None
}

fn rule(name: Text<'_>, value: &Json, errors: &mut Collector) -> Option<Rule> {
    let template = collect(Template::parse(name), errors);
    let (text, fields) = match &value.value {
        Kind::String(..) => (value.text(errors), None),
        Kind::Object(_) => {
            let fields = value.fields(RULE.fields, errors);
            value.check_required(RULE.fields, errors);
            (fields.get("is").and_then(|is| is.text(errors)), Some(fields))
        }
        _ => {
            value.wrong("a string with an expression, or an object with `is`", errors);
            (None, None)
        }
    };
    let expr = text.and_then(|text| collect(parse_expr(text), errors));
    let mut factor =
        |name| fields.and_then(|fields| fields.get(name)).and_then(|value| formula(value, errors));
    let (scale, offset) = (factor("scale"), factor("offset"));
    let optional = fields.is_some_and(|fields| fields.flag("optional", errors));
    let when = fields.map(|fields| conditions(fields, errors)).unwrap_or_default();
    let needed = fields.and_then(|fields| fields.get("needed")).and_then(|value| needed(value, errors));
    Some(Rule { template: template?, expr: expr?, optional, scale, offset, when, needed })
}

/// Reads where a tensor must be there: `true`, a parameter's name, a condition on the config, or a list of these.
fn needed(value: &Json, errors: &mut Collector) -> Option<Needed> {
    let mut all = |json: &Json| -> Vec<Condition> {
        let entries = json.object(errors).into_iter().flatten();
        entries.map(|(key, (span, _, value))| condition(key, span, value)).collect()
    };
    match &value.value {
        Kind::Bool(needed) => needed.then_some(Needed::Always),
        Kind::String(param, _) => Some(Needed::Beside(param.clone())),
        Kind::Object(_) => Some(Needed::Where(vec![all(value)])),
        Kind::Array(items) => Some(Needed::Where(items.iter().map(all).collect())),
        _ => {
            value.wrong("`true`, a parameter's name, or an object of config entries", errors);
            None
        }
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

fn config_entry(span: &Span, value: &Json, errors: &mut Collector) -> Option<ConfigEntry> {
    let (keys, is, absent) = match &value.value {
        Kind::Object(_) => {
            let fields = value.fields(CONFIG.fields, errors);
            let mut part = |name| fields.get(name).and_then(|value| formula(value, errors));
            (fields.get("keys"), part("is"), part("absent"))
        }
        _ => (Some(value), None, None),
    };
    let keys = keys.map(|keys| keys.strings(errors)).unwrap_or_default();
    let keys = keys.into_iter().filter_map(|key| key.string(errors).map(str::to_owned)).collect();
    Some(ConfigEntry { keys, is, absent, span: span.clone() })
}

/// Reads a field that is a text or a list of texts.
fn texts(fields: Fields<'_>, name: &str, errors: &mut Collector) -> Vec<String> {
    let texts = fields.get(name).map(|value| value.strings(errors)).unwrap_or_default();
    texts.into_iter().filter_map(|text| text.string(errors).map(str::to_owned)).collect()
}

fn conditions(fields: Fields<'_>, errors: &mut Collector) -> Vec<Condition> {
    fields.entries("when", errors).map(|(key, span, _, value)| condition(key, span, value)).collect()
}

fn condition(key: &str, span: &Span, value: &Json) -> Condition {
    let allowed = match &value.value {
        Kind::Array(items) => items.iter().map(Json::plain).collect(),
        _ => vec![value.plain()],
    };
    Condition { key: key.to_owned(), allowed, span: span.clone() }
}

pub(super) fn collect<T>(result: Result<T, Diagnostic>, errors: &mut Collector) -> Option<T> {
    result.map_err(|error| errors.push(error)).ok()
}

/// Says that no parameter has that name.
pub(super) fn unknown_param(name: &str, span: &Span, mapping: &Mapping) -> Diagnostic {
    let error = Diagnostic::error("mapping/unknown-param", format!("no parameter `{name}` in the family"));
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
