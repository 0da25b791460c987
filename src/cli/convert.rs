//! `qkvconv --from A --to B SRC DST`: the conversion.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use indicatif::{BinaryBytes, HumanBytes};
use qkvconv::convert::{Checked, Conversion, Done, check_ending};
use qkvconv::diag::{Code, Collector, Diagnostic, Errors, PublishCode};
use qkvconv::evidence::Evidence;
use qkvconv::exec::Rounded;
use qkvconv::exec::publish::{Destination, Existing, Guard, Kept, Pending, PublishOptions};
use qkvconv::format::Format;
use qkvconv::plan::explain;
use qkvconv::provenance::Provenance;
use qkvconv::report::{Outcome, card, failed, failed_card, report};
use qkvconv::verify::forward::Differences;
use qkvconv::verify::readback::ReadBack;

use super::Exit;
use super::args::{Allowed, ConvertArgs, LayoutArgs, VerifyHow};
use super::progress::{Bar, catch_interrupts};
use super::source::{limits, resolve, select_layouts};
use super::ui::Ui;

/// Runs a conversion.
pub(super) fn run(ui: &Ui, args: &ConvertArgs) -> Exit {
    // clap has made sure that all four are there.
    let (Some(source), Some(destination)) = (&args.source, &args.destination) else { return Exit::Usage };
    let destination = Destination::resolve(destination);
    let mut guard = guard(&args.layouts, source);
    args.template.iter().for_each(|path| guard.reads("the template", path));
    guard.writes(&destination);
    let mut report = match open_report(&mut guard, args.report.as_deref(), args.force) {
        Ok(report) => report,
        Err(errors) => return ui.fail(&errors),
    };
    let done = convert(ui, args, source, &destination, (guard, &mut report));
    end(ui, report, done)
}

/// Takes note of what a run with these layouts reads.
pub(super) fn guard(args: &LayoutArgs, source: &Path) -> Guard {
    let mut guard = Guard::default();
    guard.reads("the source", source);
    // The layouts are not known yet; some have a config file of another name.
    let configs = Provenance::files(source, args.config.as_deref(), []);
    for path in args.files.mappings.iter().chain(&configs) {
        guard.reads("a mapping or a config", path);
    }
    guard
}

/// Makes the file of the report, before anything else is done.
pub(super) fn open_report(
    guard: &mut Guard,
    path: Option<&Path>,
    force: bool,
) -> Result<Option<Pending>, Errors> {
    let Some(path) = path else { return Ok(None) };
    if Format::of_ending(path).is_some() {
        let message = "cannot write the report: its name is one of weights";
        let help = "name a file that ends in `.json` or `.md`";
        return Err(Diagnostic::error(PublishCode::Name, message).file(path).help(help).into());
    }
    guard.open("the report", path, Existing::forced(force)).map(Some)
}

/// Makes sure that the report is none of the files that are read and written, when all of them are known.
pub(super) fn check_report(
    mut guard: Guard,
    conversion: &Conversion<'_>,
    report: &Option<Pending>,
) -> Result<(), Errors> {
    let Some(report) = report else { return Ok(()) };
    let (catalog, layout) = (conversion.reader.catalog(), &conversion.layout);
    catalog.files.iter().for_each(|path| guard.reads("the source", path));
    conversion.inputs.iter().for_each(|path| guard.reads("a mapping or a config", path));
    let files = layout.files.iter().map(|file| file.name.as_str());
    let files = files.chain(layout.companions.iter().map(|file| file.name.as_str()));
    guard.names(files.chain(layout.index.iter().map(|index| index.name.as_str())));
    guard.check_again(report)
}

/// Ends a run: with the verdict on what was checked, or with why it came to none, which is reported too.
pub(super) fn end(ui: &Ui, report: Option<Pending>, done: Result<Verdict, Errors>) -> Exit {
    match done {
        Ok(Ok(())) => Exit::Done,
        Ok(Err(differences)) => ui.fail(&differences),
        Err(errors) => ui.fail(&report_failure(report, errors)),
    }
}

/// What the checks of a conversion that is reported have found.
pub(super) type Verdict = Result<(), Errors>;

fn convert(
    ui: &Ui,
    args: &ConvertArgs,
    source: &Path,
    destination: &Destination,
    (guard, report): (Guard, &mut Option<Pending>),
) -> Result<Verdict, Errors> {
    let start = Instant::now();
    let selection = select_layouts(ui, &args.layouts, source)?;
    check_ending(selection.target(), destination)?;
    let options = resolve(&args.layouts)?
        .format(args.format.map(|format| format.0))
        .max_shard_size(args.max_shard_size)
        .template(args.template.clone())
        .max_companion(args.max_companion_size)
        .resume(args.resume)
        .for_destination(destination)?;
    let conversion = Conversion::prepare(&selection, source, &options)?;
    check_report(guard, &conversion, report)?;
    ui.warn(&conversion.warnings);
    conversion.other_weights(destination).iter().for_each(|warning| ui.warn(std::slice::from_ref(warning)));
    // Before the work, so that a wrong layout or size is seen while it can be stopped.
    announce(ui, &conversion);
    if args.dry_run {
        catch_interrupts();
        let weighed = match args.verify {
            VerifyHow::None => None,
            _ => conversion.weigh(limits(&args.layouts).threads, &Bar::new(0, false))?,
        };
        for line in explain(&conversion.plan, conversion.reader.catalog()) {
            ui.result(&line);
        }
        weighed.iter().for_each(|evidence| say_weighed(ui, evidence));
        ui.say(&format!("{} would be written; dry run, nothing was", HumanBytes(conversion.bytes())));
        write_report(report.take(), &conversion, Outcome::default(), start)?;
    } else {
        catch_interrupts();
        // What is read back counts as much as what is written.
        let passes = if matches!(args.verify, VerifyHow::None) { 1 } else { 2 };
        let bar = Bar::new(passes * conversion.bytes(), ui.shows_progress());
        let publish = PublishOptions::default()
            .force(args.force)
            .sync(args.sync)
            .low_space(args.layouts.allow.contains(&Allowed::LowSpace));
        let done = conversion.run(destination, publish, args.verify.into(), &limits(&args.layouts), &bar);
        bar.finish();
        let done = done?;
        let written = !done.files.is_empty();
        let outcome = Outcome { checked: done.checked.as_ref(), written, rounded: &done.stats.rounded };
        write_report(report.take(), &conversion, outcome, start)?;
        let verdict = done.verdict();
        if verdict.is_err() {
            return Ok(verdict);
        }
        say_kept(ui, &conversion, done.kept.as_ref());
        done.checked.iter().for_each(|checked| say_checked(ui, checked));
        say_rounded(ui, &done.stats.rounded);
        ui.say(&format!("{} written", BinaryBytes(done.stats.bytes_written)));
        ui.say(&format!("wrote {} in {:.1?}", files_of(&done), start.elapsed()));
    }
    // The process ends here, and to give a plan of 200,000 tensors back piece by piece takes a while.
    std::mem::forget(conversion);
    Ok(Ok(()))
}

fn files_of(done: &Done) -> String {
    match &done.files[..] {
        [file] => file.display().to_string(),
        files => {
            let last = files.last().map_or_else(String::new, |file| file.display().to_string());
            format!("{} files, the last {last}", files.len())
        }
    }
}

/// Writes the report, as Markdown where its name ends in .md.
pub(super) fn write_report(
    report_file: Option<Pending>,
    conversion: &Conversion<'_>,
    outcome: Outcome<'_>,
    start: Instant,
) -> Result<(), Errors> {
    let Some(file) = report_file else { return Ok(()) };
    let text = match is_card(file.target()) {
        true => card(conversion, outcome),
        false => format!("{:#}\n", report(conversion, outcome, start.elapsed())),
    };
    file.publish(text.as_bytes())
}

fn is_card(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "md")
}

/// Writes the errors of a run that came to no result as its report; returns them, and why that cannot be written.
fn report_failure(report: Option<Pending>, errors: Errors) -> Errors {
    let Some(file) = report else { return errors };
    // Not over what only now is known to be read or written.
    let misplaced = |error: &Diagnostic| {
        matches!(error.code, Code::Publish(PublishCode::OverSource | PublishCode::Twice))
            && error.file.as_deref() == Some(file.target())
    };
    if errors.diagnostics().iter().any(misplaced) {
        return errors;
    }
    let text = match is_card(file.target()) {
        true => failed_card(&errors),
        false => format!("{:#}\n", failed(&errors)),
    };
    let Err(more) = file.publish(text.as_bytes()) else { return errors };
    let mut all = Collector::default();
    all.extend(errors);
    all.extend(more.clone());
    all.finish(()).err().unwrap_or(more)
}

/// Says what was checked.
pub(super) fn say_checked(ui: &Ui, checked: &Checked) {
    let ReadBack { elements, tensors, .. } = checked.read_back;
    ui.say(&format!("read back: {elements} elements of {tensors} tensors agree"));
    checked.evidence.iter().for_each(|evidence| say_weighed(ui, evidence));
    let Some(attention) = &checked.attention else { return };
    let parts = |differences: &Differences| {
        differences.parts().map(|(name, value)| format!("{name} {value:.1e}")).join(", ")
    };
    if attention.modules > 0 {
        let modules = attention.modules;
        ui.say(&format!(
            "computed: attention of {modules} {} agrees in both files, largest relative differences {}",
            plural(modules as usize, "module"),
            parts(&attention.files)
        ));
    }
    if attention.random_modules > 0 {
        ui.say(&format!("computed: the same on random weights, {}", parts(&attention.random)));
    }
    for (why, modules) in &attention.abstained {
        let count = if *modules > 0 {
            format!(" ({modules} {})", plural(*modules as usize, "module"))
        } else {
            String::new()
        };
        ui.say(&format!("not computed: {why}{count}"));
    }
}

/// Says in a line what the weights say of the source layout.
fn say_weighed(ui: &Ui, evidence: &Evidence) {
    ui.say(&format!("evidence: {}", evidence.verdict()));
}

/// Says what was there of an interrupted run.
fn say_kept(ui: &Ui, conversion: &Conversion<'_>, kept: Option<&Kept>) {
    let Some(kept) = kept else { return };
    let all = conversion.layout.files.len();
    if let Some(why) = kept.refused {
        ui.say(&format!("--resume: what was kept is not used, {why}; all was written anew"));
    } else if kept.files > 0 {
        let (files, size) = (kept.files, BinaryBytes(kept.bytes));
        ui.say(&format!("--resume: kept {files} of {all} files of an interrupted run, {size}"));
    }
}

/// Says in a few lines what will be done.
fn announce(ui: &Ui, conversion: &Conversion<'_>) {
    let mapping = conversion.selection.mapping();
    let (source, target) = (conversion.selection.source(), conversion.selection.target());
    ui.say(&format!("{}: {} -> {}", mapping.family, source.name, target.name));
    let sizes = &conversion.bound.sizes;
    if !sizes.is_empty() {
        ui.say("sizes:");
    }
    for size in sizes {
        ui.say(&format!("  {} = {}  from {}", size.axis, size.value, size.origin));
    }
    let held = conversion.bound.sources.len();
    let made = conversion.bound.targets.len();
    let converted = conversion.bound.converted_modules();
    let modules = converted.len();
    let kept = conversion.bound.kept.len();
    ui.say(&format!(
        "{held} {} of {modules} {} -> {made} {}",
        plural(held, "tensor"),
        plural(modules, "module"),
        plural(made, "tensor")
    ));
    // A model without paths of modules is one module, and has no name.
    say_names(ui, "  ", converted.into_iter().filter(|path| !path.is_empty()));
    if !conversion.bound.left.is_empty() {
        ui.say("left as they are by --modules:");
        say_names(ui, "  ", conversion.bound.left.iter().map(String::as_str));
    }
    if kept > 0 {
        ui.say(&format!("{kept} other {} passed through unchanged", plural(kept, "tensor")));
    }
    say_dropped(ui, conversion);
    for note in rearranged(conversion).into_iter().chain(conversion.companions.lines()) {
        ui.say(&note);
    }
    ui.say(&format!(
        "proved: each element of {} source tensors is used once, each of {} target tensors written once",
        conversion.proof.sources, conversion.proof.targets
    ));
}

/// Says names, folded, in a few lines.
fn say_names<'a>(ui: &Ui, indent: &str, names: impl Iterator<Item = &'a str>) {
    const MOST: usize = 8;
    let folded = qkvconv::fold::fold_keys(names);
    for name in folded.iter().take(MOST) {
        ui.say(&format!("{indent}{name}"));
    }
    if let Some(more) = folded.len().checked_sub(MOST).filter(|&more| more > 0) {
        ui.say(&format!("{indent}… and {more} more kinds of names"));
    }
}

/// Says what is left out, and why.
fn say_dropped(ui: &Ui, conversion: &Conversion<'_>) {
    const MOST: usize = 5;
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for dropped in &conversion.bound.dropped {
        let key = conversion.reader.catalog().tensors[dropped.tensor].key.as_str();
        reasons.entry(dropped.reason.text()).or_default().push(key);
    }
    for (reason, keys) in reasons {
        let count = keys.len();
        let mut names = qkvconv::fold::fold_keys(keys);
        if names.len() > MOST {
            names.truncate(MOST);
            names.push("…".to_owned());
        }
        ui.say(&format!("left out, {reason}: {count} {} ({})", plural(count, "tensor"), names.join(", ")));
    }
}

/// Says what a cast lost.
fn say_rounded(ui: &Ui, rounded: &[Rounded]) {
    if let Some(worst) = rounded.iter().max_by(|a, b| a.error.total_cmp(&b.error)) {
        let tensors = plural(rounded.len(), "tensor");
        let (count, error, key) = (rounded.len(), worst.error, &worst.key);
        ui.say(&format!("rounded in {count} {tensors}; the largest error is {error:.3e}, in {key}"));
    }
    for Rounded { key, underflows, .. } in rounded.iter().filter(|tensor| tensor.underflows > 0) {
        let values = plural(usize::try_from(*underflows).unwrap_or(usize::MAX), "value");
        ui.say(&format!("{key}: {underflows} {values} became zero in the cast"));
    }
}

/// Says what a reader must know beyond names: zeros made, restated axes.
fn rearranged(conversion: &Conversion<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let made: Vec<&str> = conversion
        .bound
        .targets
        .iter()
        .filter(|target| {
            target.blocks.iter().any(|block| match block.content {
                qkvconv::bind::Content::Param(param) => {
                    !target.instances.iter().any(|(other, _)| *other == param)
                }
                _ => false,
            })
        })
        .map(|target| target.key.as_str())
        .collect();
    for key in qkvconv::fold::fold_keys(made) {
        notes.push(format!("filled with zeros, in part: {key}"));
    }
    let axes = |layout: &qkvconv::mapping::Layout| -> Vec<String> {
        layout
            .axes
            .iter()
            .filter_map(|(name, axis)| {
                axis.is.as_ref().map(|is| {
                    let terms: Vec<String> = is.iter().map(ToString::to_string).collect();
                    format!("{name} = {}", terms.join(" + "))
                })
            })
            .collect()
    };
    let (source, target) = (axes(conversion.selection.source()), axes(conversion.selection.target()));
    if source != target {
        let text =
            |axes: &[String]| if axes.is_empty() { "the family's order".to_owned() } else { axes.join(", ") };
        notes.push(format!("axes reordered: {} -> {}", text(&source), text(&target)));
    }
    notes
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}
