//! `qkvconv mapping show NAME [OTHER]`: a layout in words and pictures, a family, or the way between two layouts.

use std::path::PathBuf;

use clap::Args;
use qkvconv::bind::AxisSizes;
use qkvconv::diag::{BindCode, Collector, Diagnostic, Errors, MappingCode, nearest};
use qkvconv::explain::{Drawing, Route, family, layout};
use qkvconv::inspect::{deduce, example, of_config};
use qkvconv::mapping::select::{all, select};
use qkvconv::mapping::{Layout, Mapping};
use qkvconv::provenance::{Document, Provenance};
use qkvconv::shown::escaped_lines;

use crate::cli::Exit;
use crate::cli::args::{MappingFiles, axis_size, byte_size};
use crate::cli::source::read_mappings;
use crate::cli::ui::Ui;

/// The most rows of a picture; equal ones are drawn once.
const MOST_ROWS: usize = 400;

/// What to show.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qkvconv mapping show attention
  qkvconv mapping show attention/megatron --axis g=4 --axis r=2
  qkvconv mapping show pytorch-fused separate --axis h=12 --axis d=64 --axis g=12 --axis dv=64")]
pub(in crate::cli) struct ShowArgs {
    /// A layout, `family/layout` or bare, or a family.
    name: String,

    /// Another layout of the family: what happens to each tensor on the way to it.
    ///
    /// Example: mapping show bert/hf bert/google
    #[arg(value_name = "OTHER")]
    other: Option<String>,

    /// The size of an axis; may be given several times.
    ///
    /// Example: --axis h=12
    #[arg(long = "axis", value_name = "AXIS=SIZE", value_parser = axis_size)]
    axes: Vec<(String, u64)>,

    /// A config of the (first) layout, for the sizes that it tells.
    ///
    /// Example: --config config.json
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The most bytes of a config that is read; without it 64MiB.
    ///
    /// Example: --max-config-size 1GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    max_config_size: Option<u64>,

    #[command(flatten)]
    files: MappingFiles,
}

/// Shows what a layout, or a whole family, stores, or the way between two layouts.
pub(super) fn run(ui: &Ui, args: &ShowArgs) -> Exit {
    let shown = match &args.other {
        Some(other) => way(args, other).map(|lines| lines.iter().for_each(|line| ui.result(line))),
        // With pictures among them, which may be coloured.
        None => one(ui, args).map(|lines| lines.iter().for_each(|line| ui.drawing(line))),
    };
    match shown {
        Ok(()) => Exit::Done,
        Err(errors) => ui.fail(&errors),
    }
}

/// Returns the sizes that are given, and what follows from them.
fn sizes(args: &ShowArgs, mapping: &Mapping, layouts: &[&Layout]) -> Result<AxisSizes, Errors> {
    let mut errors = Collector::default();
    let mut sizes = AxisSizes::new();
    for (axis, size) in &args.axes {
        let own = |layout: &&Layout| layout.axes.contains_key(axis);
        if !mapping.axes.contains_key(axis) && !layouts.iter().any(own) {
            let message = format!("--axis {axis}={size}: {} has no such axis", mapping.family);
            let known = mapping.axes.keys().chain(layouts.iter().flat_map(|layout| layout.axes.keys()));
            let known: Vec<&str> = known.map(String::as_str).collect();
            errors.push(
                Diagnostic::error(BindCode::UnknownAxis, message)
                    .help(format!("its axes are {}", known.join(", "))),
            );
        }
        sizes.insert(axis.clone(), *size);
    }
    if let (Some(path), Some(layout)) = (&args.config, layouts.first()) {
        match Document::read(path, args.max_config_size) {
            Ok(config) => of_config(layout, &Provenance::from(config).of(layout), &mut sizes),
            Err(error) => errors.push(error),
        }
    }
    errors.finish(sizes).map(|(sizes, _)| sizes)
}

/// Tells of the layouts and families of a name; all text is escaped.
fn one(ui: &Ui, args: &ShowArgs) -> Result<Vec<String>, Errors> {
    let mappings = all(&read_mappings(&args.files)?)?;
    let mut lines = Vec::new();
    let mut part = |more: Vec<String>| {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(more);
    };
    let mut found = false;
    for mapping in &mappings {
        if mapping.family == args.name {
            part(family(mapping).iter().map(|line| escaped_lines(line).into_owned()).collect());
            found = true;
        }
        for own in mapping.layouts.values() {
            if own.name == args.name || format!("{}/{}", mapping.family, own.name) == args.name {
                let given = sizes(args, mapping, &[own])?;
                let sizes = example(mapping, &[own], &given);
                let columns = (ui.width().saturating_sub(14) / 2).clamp(8, 24);
                let drawing = Drawing { sizes: &sizes, most: (MOST_ROWS, columns), colour: ui.is_coloured() };
                part(layout(mapping, own, &drawing));
                found = true;
            }
        }
    }
    if found {
        return Ok(lines);
    }
    let known: Vec<&str> = mappings
        .iter()
        .flat_map(|mapping| mapping.layouts.keys().chain([&mapping.family]))
        .map(String::as_str)
        .collect();
    let error = Diagnostic::error(MappingCode::UnknownLayout, format!("no layout or family `{}`", args.name));
    Err(match nearest(&args.name, known) {
        Some(near) => error.help(format!("did you mean `{near}`? `qkvconv mapping list` shows all")),
        None => error.help("`qkvconv mapping list` shows all"),
    }
    .into())
}

fn way(args: &ShowArgs, other: &str) -> Result<Vec<String>, Errors> {
    let selection = select(&args.name, other, &read_mappings(&args.files)?)?;
    let (mapping, source, target) = (selection.mapping(), selection.source(), selection.target());
    let mut sizes = sizes(args, mapping, &[source, target])?;
    // Without any size the words keep the axes' names.
    if !sizes.is_empty() {
        deduce(mapping, source, &mut sizes);
        deduce(mapping, target, &mut sizes);
    }
    let route = Route { mapping, source, target, sizes: &sizes };
    let mut lines = vec![
        format!("{0}/{1} → {0}/{2}", mapping.family, source.name, target.name),
        format!("{}: {}", source.name, source.about),
        format!("{}: {}", target.name, target.about),
    ];
    lines.extend(route.conditions());
    lines.push(String::new());
    lines.extend(route.lines());
    Ok(lines)
}
