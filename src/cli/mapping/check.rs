//! `qkvconv mapping check FILE`

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use qkvconv::bind::BindOptions;
use qkvconv::catalog::Catalog;
use qkvconv::diag::{Collector, Diagnostic, Errors, LintCode, MappingCode, UsageCode, nearest};
use qkvconv::exec::Limits;
use qkvconv::exec::publish::io_error;
use qkvconv::format::open;
use qkvconv::lint::against::{Coverage, Need, cover, listed};
use qkvconv::lint::{Report, check};
use qkvconv::mapping::{Mapping, read};
use qkvconv::provenance::Provenance;
use qkvconv::span::Source;
use serde_json::Value;

use crate::cli::Exit;
use crate::cli::args::{OpenAllow, OpenArgs, axis_size};
use crate::cli::progress::{Bar, catch_interrupts};
use crate::cli::source::{open_options, read_mapping};
use crate::cli::ui::Ui;

/// The most bytes of a JSON list or of a header that are read.
const LONGEST_LIST: u64 = 100_000_000;

/// What to check.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --against, every layout is tried with every other of the family on small models.

Examples:
  qkvconv mapping check my-model.json another.json
  qkvconv mapping check --against model.safetensors --layout hf my-model.json
  qkvconv mapping check --against names.json my-model.json   where names.json is {\"NAME\": [2, 3]}"
)]
pub(in crate::cli) struct CheckArgs {
    /// The mapping files; with --against one.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Hold a layout against the names and shapes of a checkpoint: SRC in any format, a safetensors file of which only the
    /// header is there, or JSON of names and shapes.
    ///
    /// Example: --against model.safetensors
    #[arg(long, value_name = "SRC")]
    against: Option<PathBuf>,

    /// The layout; without it all are tried and the best is shown.
    ///
    /// Example: --layout hf
    #[arg(long, value_name = "NAME", requires = "against")]
    layout: Option<String>,

    #[command(flatten)]
    open: OpenArgs,

    /// Allow what is an error otherwise.
    ///
    /// Example: --allow outside-link
    #[arg(long, value_name = "WHAT", requires = "against")]
    allow: Vec<OpenAllow>,

    /// The size of an axis; may be given several times.
    ///
    /// Example: --axis h=12
    #[arg(long = "axis", value_name = "AXIS=SIZE", value_parser = axis_size, requires = "against")]
    axes: Vec<(String, u64)>,

    /// The config; without it config.json or params.json beside SRC is read.
    ///
    /// Example: --config config.json
    #[arg(long, value_name = "FILE", requires = "against")]
    config: Option<PathBuf>,

    /// Threads.
    ///
    /// Example: --threads 2
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,

    /// Print a JSON document.
    ///
    /// Example: --json
    #[arg(long)]
    json: bool,
}

/// Checks all files, each for itself.
pub(super) fn run(ui: &Ui, args: &CheckArgs) -> Exit {
    catch_interrupts();
    match check_all(ui, args) {
        Ok(()) => Exit::Done,
        Err(errors) => ui.fail(&errors),
    }
}

fn check_all(ui: &Ui, args: &CheckArgs) -> Result<(), Errors> {
    let mut errors = Collector::default();
    if let Some(checkpoint) = &args.against {
        let [file] = &args.files[..] else {
            let error = Diagnostic::error(
                UsageCode::Against,
                "--against holds one mapping file against a checkpoint",
            );
            let error = error.found(format!("{} mapping files", args.files.len()));
            return Err(error.help("name one of them").into());
        };
        return check_against(ui, args, &read_mapping(file)?, checkpoint);
    }
    let mut documents = Vec::new();
    for file in &args.files {
        let done = read_mapping(file).and_then(|source| check_file(ui, args, &source, &mut documents));
        if let Err(other) = done {
            errors.extend(other);
        }
    }
    // One file gives one document, several a list of them.
    match &documents[..] {
        [] => {}
        [document] if args.files.len() == 1 => ui.document(&format!("{document:#}")),
        all => ui.document(&format!("{:#}", Value::Array(all.to_vec()))),
    }
    errors.finish(()).map(|_| ())
}

/// Checks a file; with --json the report joins `documents`.
fn check_file(
    ui: &Ui,
    args: &CheckArgs,
    source: &Arc<Source>,
    documents: &mut Vec<Value>,
) -> Result<(), Errors> {
    let threads = args.threads.map_or(Limits::default().threads, Into::into);
    let bar = Bar::new(0, false);
    let report = match check(source, threads, &bar) {
        Ok(report) => report,
        Err(errors) => {
            // A text that cannot be read is an answer too.
            if args.json {
                let mut report = Report::default();
                report.findings.extend(errors.diagnostics().iter().cloned().map(Into::into));
                documents.push(report.json());
            }
            return Err(errors);
        }
    };
    if args.json {
        documents.push(report.json());
    } else {
        summary(&report).iter().for_each(|line| ui.result(line));
    }
    let mut errors = Collector::default();
    report.findings.into_iter().for_each(|finding| errors.push(finding.diagnostic));
    let ((), warnings) = errors.finish(())?;
    ui.warn(&warnings);
    Ok(())
}

fn counted(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// Says what was checked, and draws what is wrong.
fn summary(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in report.findings.iter().filter(|finding| !finding.picture.is_empty()) {
        lines.push(format!("{}:", finding.diagnostic.message));
        lines.extend(finding.picture.iter().map(|line| format!("  {line}")));
        lines.push(String::new());
    }
    let others = match report.others {
        0 => String::new(),
        others => format!(" and {others} of the built-in family"),
    };
    lines.push(format!(
        "{}: {}{others}: {}",
        report.family,
        counted(report.layouts.len(), "layout"),
        report.layouts.join(", ")
    ));
    let sizes: Vec<String> = report.sizes.iter().map(|(axis, size)| format!("{axis}={size}")).collect();
    lines.push(format!(
        "{}, with the canonical order among them, on {}; sizes such as {}",
        counted(report.pairs, "ordered pair"),
        counted(report.models, "model"),
        sizes.join(" ")
    ));
    if report.is_right() {
        lines.push(
            "each is a bijection: every element comes to the place that both expressions give it".to_owned(),
        );
    }
    if !report.computed.is_empty() {
        let agrees = if report.is_right() { "`forward` agrees in" } else { "`forward` was computed of" };
        let which = match report.computed == report.layouts {
            true => "all of them".to_owned(),
            false => format!("{}: {}", report.computed.len(), report.computed.join(", ")),
        };
        lines.push(format!("{agrees} {which}"));
    }
    lines.extend(report.unchecked.iter().map(|what| format!("not checked: {what}")));
    lines
}

fn check_against(ui: &Ui, args: &CheckArgs, source: &Arc<Source>, checkpoint: &Path) -> Result<(), Errors> {
    let mapping = read(source)?;
    let chosen = chosen(&mapping, args.layout.as_deref())?;
    let catalog = names_of(args, checkpoint)?;
    let config_files = chosen.iter().map(|layout| layout.config_file());
    let mut provenance =
        Provenance::read(checkpoint, args.config.as_deref(), config_files, args.open.max_config_size)?;
    provenance.add_inside(&catalog);
    let mut coverages: Vec<Coverage> = Vec::new();
    for layout in chosen {
        let options = BindOptions::default().axes(args.axes.clone()).provenance(provenance.clone());
        coverages.push(cover(&mapping, layout, &catalog, &options));
    }
    coverages.sort_by_key(Coverage::rank);
    let Some(best) = coverages.first() else { return Ok(()) };
    if args.json {
        ui.document(&format!("{:#}", best.json()));
    } else {
        table(best).iter().for_each(|line| ui.result(line));
        let others: Vec<&str> =
            coverages[1..].iter().filter(|other| other.fits()).map(|other| other.layout.as_str()).collect();
        if best.fits() && !others.is_empty() {
            ui.result(&format!("these fit too: {}", others.join(", ")));
        }
    }
    if best.fits() { Ok(()) } else { misfit(best, &catalog) }
}

/// Fails with all that keeps a layout from explaining a checkpoint.
fn misfit(coverage: &Coverage, catalog: &Catalog) -> Result<(), Errors> {
    let mut errors = Collector::default();
    let error = |code: LintCode, message: String| Diagnostic::error(code, message).file(&catalog.path);
    for rule in coverage.missing() {
        let message = format!("nothing matches the rule `{}`, whose parameters are required", rule.template);
        errors.push(error(LintCode::NoMatch, message).rule(&rule.span));
    }
    for stranger in coverage.strangers.iter().filter(|_| !coverage.keeps) {
        let mut found = error(LintCode::NoRule, "no rule matches".to_owned()).tensor(&stranger.names);
        found = found.found(stranger.why.clone());
        errors.push(match &stranger.nearest {
            Some(nearest) => found.help(format!("the nearest rule is `{nearest}`")),
            None => found.help("add a rule, or name it under `ignore`"),
        });
    }
    coverage.errors.iter().for_each(|other| errors.push(other.clone()));
    if !errors.has_errors() {
        errors.push(error(LintCode::NoMatch, format!("`{}` has no rule for any name", coverage.layout)));
    }
    errors.finish(()).map(|_| ())
}

fn chosen<'m>(mapping: &'m Mapping, name: Option<&str>) -> Result<Vec<&'m qkvconv::mapping::Layout>, Errors> {
    let Some(name) = name else { return Ok(mapping.layouts.values().collect()) };
    let bare = name.strip_prefix(&format!("{}/", mapping.family)).unwrap_or(name);
    let found: Vec<_> = mapping.layouts.get(bare).into_iter().collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let error = Diagnostic::error(MappingCode::UnknownLayout, format!("--layout {name}: no such layout"));
    let near = nearest(bare, mapping.layouts.keys().map(String::as_str));
    Err(match near {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error
            .help(format!("the file has {}", mapping.layouts.keys().cloned().collect::<Vec<_>>().join(", "))),
    }
    .into())
}

/// Reads a checkpoint's names and shapes.
fn names_of(args: &CheckArgs, path: &Path) -> Result<Catalog, Errors> {
    if let Some(catalog) = list_of(path)? {
        return Ok(catalog);
    }
    Ok(open(path, &open_options(&args.open, &args.allow))?.catalog().clone())
}

/// Reads a JSON list of names and shapes, or the header of a safetensors file whose data is not there.
fn list_of(path: &Path) -> Result<Option<Catalog>, Errors> {
    let fail = |error: std::io::Error| Errors::from(io_error(path, "read it", &error));
    if !path.is_file() {
        return Ok(None);
    }
    let mut file = File::open(path).map_err(fail)?;
    let size = file.metadata().map_err(fail)?.len();
    let mut head = Vec::new();
    file.by_ref().take(9).read_to_end(&mut head).map_err(fail)?;
    let mut rest = |length: u64| {
        let mut text = Vec::new();
        file.by_ref().take(length).read_to_end(&mut text).map(|_| text)
    };
    if head.trim_ascii_start().first() == Some(&b'{') && size <= LONGEST_LIST {
        let mut text = head.clone();
        text.extend(rest(size).map_err(fail)?);
        // The index of a sharded checkpoint is JSON too.
        let is_index =
            serde_json::from_slice::<Value>(&text).is_ok_and(|value| value.get("weight_map").is_some());
        return if is_index { Ok(None) } else { listed(path, &text).map(|(catalog, _)| Some(catalog)) };
    }
    let Some((length, b"{")) = head.split_first_chunk::<8>() else { return Ok(None) };
    let length = u64::from_le_bytes(*length);
    if length == 0 || length > LONGEST_LIST || length + 8 > size {
        return Ok(None);
    }
    let mut text = b"{".to_vec();
    text.extend(rest(length - 1).map_err(fail)?);
    // A file that is whole is opened as any other.
    Ok(listed(path, &text).ok().filter(|(_, bytes)| 8 + length + bytes > size).map(|(catalog, _)| catalog))
}

/// Writes what each rule matches, and the names without a rule.
fn table(coverage: &Coverage) -> Vec<String> {
    let matched: usize = coverage.rules.iter().map(|rule| rule.matched).sum();
    let mut lines =
        vec![format!("{}: {matched} of {} tensors have a rule", coverage.layout, coverage.tensors)];
    let width = coverage.rules.iter().map(|rule| rule.template.chars().count()).max().unwrap_or(0).min(60);
    for rule in &coverage.rules {
        let sizes: Vec<String> = rule.sizes.iter().map(|(axis, size)| format!("{axis}={size}")).collect();
        let note = match (rule.need, rule.matched) {
            (Need::Required, 0) => "  MISSING",
            (Need::Required, _) => "",
            (Need::Optional, _) => "  (optional)",
            (Need::Alternative, _) => "  (another rule holds it)",
            (Need::Off, _) => "  (not with this config)",
        };
        let line = format!(
            "  {:width$}  {:>5}  {}  {}{note}",
            rule.template,
            rule.matched,
            rule.expr,
            sizes.join(" ")
        );
        lines.push(line.trim_end().to_owned());
    }
    if coverage.ignored > 0 {
        lines.push(format!("  ignored by the layout: {}", coverage.ignored));
    }
    if !coverage.strangers.is_empty() {
        lines.push(match coverage.keeps {
            true => "without a rule; they pass through".to_owned(),
            false => "without a rule".to_owned(),
        });
    }
    for stranger in &coverage.strangers {
        lines.push(format!("  {}", stranger.names));
        if coverage.keeps {
            continue;
        }
        lines.push(match &stranger.nearest {
            Some(nearest) => format!("      nearest `{nearest}`: {}", stranger.why),
            None => format!("      {}", stranger.why),
        });
    }
    for open in &coverage.open {
        lines.push(format!("open: {}", open.message));
        lines.extend(open.help.iter().map(|help| format!("      {help}")));
    }
    lines
}
