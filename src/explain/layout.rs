//! A layout in words and pictures.

use super::family::param_line;
use super::forward::forward;
use super::{axis_line, condition, condition_words, formula};
use crate::bind::AxisSizes;
use crate::dtype::Dtype;
use crate::inspect::{Kind, Seen, describe, dim_names, draw, group_words, part};
use crate::mapping::key::Captures;
use crate::mapping::{Layout, Mapping, Needed, Rule};
use crate::notation::{AxisName, for_each_axis};
use crate::shown::escaped_lines;

/// How a layout is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Drawing<'a> {
    /// The sizes of all axes.
    pub sizes: &'a AxisSizes,
    /// The most rows and columns of a picture, in cells.
    pub most: (usize, usize),
    /// Whether pictures have colours.
    pub colour: bool,
}

/// Tells of a layout: each rule in words and as a picture, then everything else that the mapping says of it. All text is
/// escaped; a picture may have colours, which are escapes.
pub fn layout(mapping: &Mapping, layout: &Layout, drawing: &Drawing<'_>) -> Vec<String> {
    let text = |line: String| escaped_lines(&line).into_owned();
    let mut lines = vec![
        format!("{}/{}: {}", mapping.family, layout.name, layout.about),
        format!("source: {}", layout.citation),
    ];
    lines.extend(condition_words(&layout.when).map(|words| format!("holds where {words}")));
    lines.extend([String::new(), "tensors".to_owned()]);
    let width = layout.rules.iter().map(|rule| rule.template.to_string().chars().count()).max().unwrap_or(0);
    let mut drawn = Vec::new();
    let mut rules = Vec::new();
    for rule in &layout.rules {
        rules.push(text(rule_line(rule, width)));
        let (words, picture) = picture(mapping, layout, rule, drawing);
        if !picture.is_empty() {
            drawn.extend(rule_axes(mapping, layout, rule));
        }
        let inner = words.into_iter().map(text).chain(picture);
        rules.extend(inner.map(|line| format!("      {line}")));
    }
    let named = |name: &&String| drawn.contains(name);
    let sizes: Vec<String> = drawing
        .sizes
        .iter()
        .filter(|(name, _)| named(name))
        .map(|(name, size)| format!("{name} = {size}"))
        .collect();
    if !sizes.is_empty() {
        lines.insert(
            lines.len().min(3),
            format!("drawn with {}; other sizes with --axis\n", sizes.join(", ")),
        );
    }
    let before = lines.len();
    lines.extend([String::new(), "axes".to_owned()]);
    lines.extend(axes(mapping, layout).into_iter().map(|line| format!("  {line}")));
    let held = mapping.params.iter().filter(|(name, _)| layout.holds(name));
    let special: Vec<String> = held
        .filter(|(_, param)| {
            param.optional || param.absent_zeros || param.tied.is_some() || !param.sparse.is_empty()
        })
        .map(|(name, param)| format!("  {}", param_line(name, param)))
        .collect();
    if !special.is_empty() {
        lines.extend([String::new(), "parameters that may be missing".to_owned()]);
        lines.extend(special);
    }
    let missing: Vec<&str> =
        mapping.params.keys().map(String::as_str).filter(|name| !layout.holds(name)).collect();
    if !missing.is_empty() {
        lines.extend([String::new(), format!("not held: {}", missing.join(", "))]);
    }
    lines.extend(rest(layout));
    for (name, computed) in &layout.forwards {
        lines.push(String::new());
        lines.extend(forward(name, computed));
    }
    let mut lines: Vec<String> = lines.into_iter().map(text).collect();
    lines.splice(before..before, rules);
    lines
}

fn rule_line(rule: &Rule, width: usize) -> String {
    let mut line = format!("  {:width$}  {}", rule.template.to_string(), rule.expr);
    if rule.optional {
        line.push_str("  (a tied copy, may be missing)");
    }
    line.push_str(&needed(rule));
    for (what, value) in [("×", &rule.scale), ("+", &rule.offset)] {
        if let Some(value) = value {
            line.push_str(&format!("  (stored {what} {})", formula(value)));
        }
    }
    line.push_str(&condition(&rule.when));
    line
}

/// Tells where readers cannot do without a rule's tensor.
fn needed(rule: &Rule) -> String {
    match &rule.needed {
        None => String::new(),
        Some(Needed::Always) => "  (needed)".to_owned(),
        Some(Needed::Beside(param)) => format!("  (needed beside {param})"),
        Some(Needed::Where(any)) => {
            let any = any.iter().filter_map(|conditions| condition_words(conditions));
            format!("  (needed where {})", any.collect::<Vec<_>>().join(", or "))
        }
    }
}

/// Tells what a rule's tensor holds in words, and draws it where it holds heads.
fn picture(
    mapping: &Mapping,
    layout: &Layout,
    rule: &Rule,
    drawing: &Drawing<'_>,
) -> (Vec<String>, Vec<String>) {
    // An index in the name is one of those that it runs through: the first.
    let captures = Captures {
        indices: rule.template.axes().map(|axis| (axis.into(), 0)).collect(),
        ..Captures::default()
    };
    let params = rule.expr.params();
    let sizes = params.iter().map(|param| ((*param).to_owned(), drawing.sizes.clone())).collect();
    let seen = Seen::of(mapping, layout, rule, &captures, sizes);
    let Some(shape) = seen.shape() else { return Default::default() };
    let kind = Kind {
        names: vec![rule.template.to_string()],
        count: 1,
        dtype: Dtype::F32,
        dims: dim_names(shape.len())
            .into_iter()
            .zip(describe(mapping, layout, &rule.expr, drawing.sizes))
            .collect(),
        groups: group_words(mapping, layout, &rule.expr, drawing.sizes),
        parts: params.iter().map(|param| part(&seen, param, &shape)).collect(),
        shape: shape.clone(),
        example: None,
    };
    let has_picture = kind.parts.iter().any(|part| part.head.is_some());
    let picture =
        if has_picture { draw(&seen, &shape, drawing.most).lines(drawing.colour) } else { Vec::new() };
    (kind.words(), folded(picture))
}

/// Draws a run of equal lines once, with how many they are.
fn folded(lines: Vec<String>) -> Vec<String> {
    let fold = |run: &[String]| match run {
        [one] => one.clone(),
        _ => format!("{}  × {}", run[0], run.len()),
    };
    lines.chunk_by(|a, b| a == b).map(fold).collect()
}

/// Lists the axes that a rule names, and those that they are composed of.
fn rule_axes(mapping: &Mapping, layout: &Layout, rule: &Rule) -> Vec<String> {
    let mut all: Vec<String> = rule.template.axes().map(str::to_owned).collect();
    for_each_axis(&rule.expr.dims, &mut |axis, _| {
        if let AxisName::Named(axis) = axis {
            all.push(axis.to_owned());
        }
    });
    let mut at = 0;
    while at < all.len() {
        let parts = mapping.axis(layout, &all[at]).and_then(|axis| axis.is.as_ref());
        for term in parts.into_iter().flatten() {
            for_each_axis(&term.dims, &mut |inner, _| {
                if let AxisName::Named(inner) = inner
                    && !all.iter().any(|known| known == inner)
                {
                    all.push(inner.to_owned());
                }
            });
        }
        at += 1;
    }
    all
}

/// Tells of the axes that the layout uses, and where their sizes come from.
fn axes(mapping: &Mapping, layout: &Layout) -> Vec<String> {
    let used: Vec<String> = layout.rules.iter().flat_map(|rule| rule_axes(mapping, layout, rule)).collect();
    let own = layout.axes.keys().filter(|name| !mapping.axes.contains_key(*name));
    let mut lines = Vec::new();
    for name in mapping.axes.keys().chain(own) {
        let is_told =
            used.contains(name) || layout.axes.contains_key(name) || layout.config.contains_key(name);
        if !is_told {
            continue;
        }
        let Some(axis) = mapping.axis(layout, name) else { continue };
        let family = mapping.axes.get(name);
        let mut line = axis_line(name, axis);
        if axis.about.is_empty()
            && let Some(about) = family.map(|axis| &axis.about).filter(|about| !about.is_empty())
        {
            line.push_str(&format!("  {about}"));
        }
        if let Some(entry) = layout.config.get(name) {
            line.push_str(&format!("  (config: {}", entry.keys.join(", ")));
            line.extend(entry.is.iter().map(|is| format!("; the size is {}", formula(is))));
            line.extend(entry.absent.iter().map(|absent| format!("; without it {}", formula(absent))));
            line.push(')');
        }
        if let Some(fixed) = layout.defaults.get(name) {
            line.push_str(&format!("  ({} where nothing tells it)", formula(&fixed.value)));
        }
        lines.push(line);
    }
    lines
}

/// Tells what else the mapping says of a layout.
fn rest(layout: &Layout) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(file) = &layout.file {
        lines.push(format!("a folder holds it as {file}"));
    }
    if let Some(file) = &layout.config_file {
        lines.push(format!("config file: {file}"));
    }
    if !layout.settings.is_empty() {
        let settings =
            layout.settings.iter().map(|(name, setting)| format!("{name} ({})", setting.keys.join(", ")));
        lines.push(format!("its config says beside sizes: {}", settings.collect::<Vec<_>>().join(", ")));
    }
    if !layout.models.is_empty() {
        lines.push(format!("its models are called {}", layout.models.join(", ")));
    }
    for (path, segments) in &layout.paths {
        lines
            .push(format!("{{*{path}}} is `{}` where the other layout does not name it", segments.join(".")));
    }
    for (key, value) in &layout.metadata {
        lines.push(format!("metadata: {key} = {value}"));
    }
    if !layout.ignore.is_empty() {
        let ignored: Vec<String> = layout.ignore.iter().map(ToString::to_string).collect();
        lines.push(format!("ignored: {}", ignored.join(", ")));
    }
    if !layout.computed.is_empty() {
        let computed: Vec<String> =
            layout.computed.iter().map(|computed| computed.template.to_string()).collect();
        lines.push(format!("computed from the config: {}", computed.join(", ")));
    }
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
}
