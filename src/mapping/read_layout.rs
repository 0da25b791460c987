//! Decodes the layouts of a mapping file: their rules, what a config tells of them, their conditions.

use indexmap::IndexMap;

use super::choices::VALUES;
use super::fields::{COMPUTED, CONFIG, LAYOUT, RULE};
use super::json::{Fields, Json, Kind};
use super::key::Template;
use super::read::{axis, collect, formula};
use super::read_forward::forwards;
use super::setting::setting;
use super::{Axis, Computed, Condition, ConfigEntry, Default, Layout, NO_CONFIG, Needed, Rule, Values};
use crate::diag::{Collector, Diagnostic, MappingCode};
use crate::notation::{Text, parse_expr, parse_sum};
use crate::span::Span;

pub(super) fn layout(name: &str, span: &Span, value: &Json, errors: &mut Collector) -> Layout {
    let fields = value.fields(LAYOUT.fields, errors);
    let mut layout = Layout {
        name: name.to_owned(),
        about: fields.text("about", errors),
        citation: fields.text("source", errors),
        axes: IndexMap::new(),
        rules: Vec::new(),
        config: IndexMap::new(),
        settings: IndexMap::new(),
        file: fields.get("file").and_then(|name| weights_file(name, errors)),
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
        forwards: IndexMap::new(),
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
    if let Some(value) = fields.get("forward") {
        layout.forwards = forwards(value, &layout.rules, errors);
    }
    for (name, span, _, value) in fields.entries("config", errors) {
        if let Some(entry) = config_entry(span, value, errors) {
            layout.config.insert(name.to_owned(), entry);
        }
    }
    for (name, span, _, value) in fields.entries("settings", errors) {
        layout.settings.extend(setting(span, value, errors).map(|setting| (name.to_owned(), setting)));
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

/// Reads the name of a file of weights.
fn weights_file(name: &Json, errors: &mut Collector) -> Option<String> {
    let text = name.string(errors)?;
    let ending = text.rsplit_once('.').map_or("", |(_, ending)| ending);
    let is_ending =
        !ending.is_empty() && ending.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if is_ending && !text.contains(['/', '\\']) && !text.starts_with('.') {
        return Some(text.to_owned());
    }
    let error = Diagnostic::error(MappingCode::File, format!("`{text}` is no name of a file of weights"));
    let error = error.rule(&name.span).expected("a name with an ending, without a folder");
    errors.push(
        error.found(format!("`{text}`")).help("write the name that the framework looks for, `tf_model.h5`"),
    );
    None
}

/// Reads the name of a config file; it stands beside the weights and nowhere else.
fn config_file(name: &Json, errors: &mut Collector) -> Option<String> {
    let text = name.string(errors)?;
    if text == NO_CONFIG {
        return Some(text.to_owned());
    }
    if text.ends_with(".json") && !text.contains(['/', '\\']) && !text.starts_with('.') {
        return Some(text.to_owned());
    }
    let error = Diagnostic::error(MappingCode::ConfigFile, format!("`{text}` is no name of a config file"));
    let error = error.rule(&name.span).expected("a name that ends in `.json`, without a folder, or `none`");
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
