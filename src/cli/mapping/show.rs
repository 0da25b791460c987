//! `qkvconv mapping show NAME`

use clap::Args;
use qkvconv::diag::{Diagnostic, Errors, nearest};
use qkvconv::mapping::select::all;
use qkvconv::mapping::{Axis, Layout, Mapping};

use crate::cli::Exit;
use crate::cli::args::MappingFiles;
use crate::cli::source::read_mappings;
use crate::cli::ui::Ui;

/// What to show.
#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    /// A layout, `family/layout` or bare, or a family.
    name: String,
    #[command(flatten)]
    files: MappingFiles,
}

/// Shows what a layout, or a whole family, stores.
pub(super) fn run(ui: &Ui, args: &ShowArgs) -> Exit {
    match read_mappings(&args.files)
        .and_then(|files| all(&files))
        .and_then(|mappings| show_in(ui, &args.name, &mappings))
    {
        Ok(()) => Exit::Done,
        Err(errors) => ui.fail(&errors),
    }
}

fn show_in(ui: &Ui, name: &str, mappings: &[Mapping]) -> Result<(), Errors> {
    let mut found = false;
    for mapping in mappings {
        if mapping.family == name {
            show_family(ui, mapping);
            found = true;
        }
        for layout in mapping.layouts.values() {
            if layout.name == name || format!("{}/{}", mapping.family, layout.name) == name {
                show_layout(ui, mapping, layout);
                found = true;
            }
        }
    }
    if found {
        return Ok(());
    }
    let known: Vec<&str> = mappings
        .iter()
        .flat_map(|mapping| mapping.layouts.keys().chain([&mapping.family]))
        .map(String::as_str)
        .collect();
    let error = Diagnostic::error("mapping/unknown-layout", format!("no layout or family `{name}`"));
    Err(match nearest(name, known) {
        Some(near) => error.help(format!("did you mean `{near}`? `qkvconv mapping list` shows all")),
        None => error.help("`qkvconv mapping list` shows all"),
    }
    .into())
}

fn show_family(ui: &Ui, mapping: &Mapping) {
    ui.result(&format!("{}: {}\n\naxes", mapping.family, mapping.about));
    for (name, axis) in &mapping.axes {
        ui.result(&format!("  {}", axis_line(name, axis)));
    }
    ui.result("\nparameters, in canonical order");
    for (name, param) in &mapping.params {
        let notes = match (param.absent_zeros, param.optional) {
            (true, true) => "  (optional; zeros where one side has none)",
            (true, false) => "  (zeros where one side has none)",
            (false, true) => "  (optional)",
            _ => "",
        };
        ui.result(&format!("  {name}: {}{notes}", param.axes.join(" ")));
    }
    ui.result("\nlayouts");
    for layout in mapping.layouts.values() {
        ui.result(&format!("  {}  {}", layout.name, layout.about));
    }
}

fn show_layout(ui: &Ui, mapping: &Mapping, layout: &Layout) {
    ui.result(&format!("{}/{}: {}", mapping.family, layout.name, layout.about));
    ui.result(&format!("source: {}\n\ntensors", layout.citation));
    let width = layout.rules.iter().map(|rule| rule.template.to_string().len()).max().unwrap_or(0);
    for rule in &layout.rules {
        let mut line = format!("  {:width$}  {}", rule.template.to_string(), rule.expr);
        if rule.optional {
            line.push_str("  (optional)");
        }
        for (what, formula) in [("scale", &rule.scale), ("offset", &rule.offset)] {
            if let Some(formula) = formula {
                line.push_str(&format!("  ({what} {})", formula.span.text()));
            }
        }
        ui.result(&line);
    }
    let used = |name: &&String| {
        layout.axes.contains_key(*name)
            || layout.rules.iter().any(|rule| mentions(mapping, layout, rule, name))
    };
    ui.result("\naxes");
    for name in mapping
        .axes
        .keys()
        .chain(layout.axes.keys().filter(|name| !mapping.axes.contains_key(*name)))
        .filter(used)
    {
        if let Some(axis) = mapping.axis(layout, name) {
            let about = mapping.axes.get(name).map_or("", |axis| &axis.about);
            let mut line = axis_line(name, axis);
            if axis.about.is_empty() && !about.is_empty() {
                line.push_str(&format!("  {about}"));
            }
            if let Some(entry) = layout.config.get(name) {
                line.push_str(&format!("  (config: {})", entry.keys.join(", ")));
            }
            ui.result(&format!("  {line}"));
        }
    }
    if !layout.ignore.is_empty() {
        let ignored: Vec<String> = layout.ignore.iter().map(ToString::to_string).collect();
        ui.result(&format!("\nignored: {}", ignored.join(", ")));
    }
}

/// Returns whether a rule names the axis, or one that is composed of it.
fn mentions(mapping: &Mapping, layout: &Layout, rule: &qkvconv::mapping::Rule, name: &str) -> bool {
    use qkvconv::notation::{AxisName, for_each_axis};
    let mut found = rule.template.axes().any(|axis| axis == name);
    for_each_axis(&rule.expr.dims, &mut |axis, _| {
        let AxisName::Named(axis) = axis else { return };
        found |= axis == name;
        let parts = mapping.axis(layout, axis).and_then(|axis| axis.is.as_ref());
        for term in parts.into_iter().flatten() {
            for_each_axis(&term.dims, &mut |inner, _| found |= inner == AxisName::Named(name));
        }
    });
    found
}

fn axis_line(name: &str, axis: &Axis) -> String {
    let mut line = name.to_owned();
    if let Some(is) = &axis.is {
        let terms: Vec<String> = is.iter().map(ToString::to_string).collect();
        line.push_str(&format!(" = {}", terms.join(" + ")));
    }
    if let Some(size) = axis.size {
        line.push_str(&format!(" = {size}"));
    }
    if !axis.about.is_empty() {
        line.push_str(&format!("  {}", axis.about));
    }
    if axis.per_parameter {
        line.push_str("  (each parameter has its own)");
    }
    line
}
