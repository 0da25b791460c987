//! `qkvconv verify --from A --to B SRC DST`: checks a conversion that anything made.

use std::path::{Path, PathBuf};
use std::time::Instant;

use qkvconv::convert::{Conversion, Verify, open_as};
use qkvconv::diag::{Diagnostic, Errors};
use qkvconv::exec::publish::{Guard, Pending};
use qkvconv::format::OpenOptions;
use qkvconv::identity::Identity;
use qkvconv::mapping::Layout;
use qkvconv::provenance::Provenance;
use qkvconv::report::Outcome;
use qkvconv::verify::config::config_differences;

use super::Exit;
use super::args::VerifyArgs;
use super::convert::{Verdict, check_report, end, guard, open_report, say_checked, write_report};
use super::progress::{Bar, catch_interrupts};
use super::source::{limits, resolve, select_layouts};
use super::ui::Ui;

/// Verifies.
pub(super) fn run(ui: &Ui, args: &VerifyArgs) -> Exit {
    let (Some(source), Some(destination)) = (&args.source, &args.destination) else { return Exit::Usage };
    let mut guard = guard(&args.layouts, source);
    guard.reads("the checkpoint that is verified", destination);
    let mut report = match open_report(&mut guard, args.report.as_deref(), args.force) {
        Ok(report) => report,
        Err(errors) => return ui.fail(&errors),
    };
    let done = verify(ui, args, source, destination, (guard, &mut report));
    end(ui, report, done)
}

fn verify(
    ui: &Ui,
    args: &VerifyArgs,
    source: &Path,
    destination: &Path,
    (mut guard, report): (Guard, &mut Option<Pending>),
) -> Result<Verdict, Errors> {
    let start = Instant::now();
    let selection = select_layouts(ui, &args.layouts, source)?;
    let mut options = resolve(&args.layouts)?;
    let open = OpenOptions { root: args.to_root.clone(), ..options.open.clone() };
    let target = open_as(selection.target(), destination, &open)?;
    if target.format().is_written() {
        // What another format cannot hold is no fault of this target.
        options.format = Some(target.format());
    }
    let conversion = Conversion::prepare(&selection, source, &options)?;
    let config = config_path(selection.target(), destination);
    config.iter().for_each(|path| guard.reads("the config beside it", path));
    target.catalog().files.iter().for_each(|path| guard.reads("the checkpoint that is verified", path));
    check_report(guard, &conversion, report)?;
    if let Some(identity) = Identity::read(&target.catalog().metadata)
        && !options.trust_layout
    {
        let agrees = identity.check(&selection.mapping().family, &selection.target().name, "--to", &[]);
        agrees.map_err(|errors| errors.in_file("identity/", destination))?;
    }
    ui.warn(&conversion.warnings);
    catch_interrupts();
    let bar = Bar::new(conversion.bytes(), ui.shows_progress());
    let result = conversion.check(target.as_ref(), Verify::Full, &limits(&args.layouts), &bar);
    bar.finish();
    let mut checked = result?;
    checked.config = config_beside(&conversion, destination)?;
    let outcome = Outcome { checked: Some(&checked), ..Outcome::default() };
    write_report(report.take(), &conversion, outcome, start)?;
    let verdict = checked.verdict();
    if verdict.is_ok() {
        say_checked(ui, &checked);
    }
    Ok(verdict)
}

/// Compares the config beside the target, under the name that the target's framework gives it, with the weights.
fn config_beside(conversion: &Conversion<'_>, destination: &Path) -> Result<Vec<Diagnostic>, Errors> {
    let target = conversion.selection.target();
    let Some(path) = config_path(target, destination) else { return Ok(Vec::new()) };
    let beside = Provenance::read(destination, Some(&path), [])?;
    let target = conversion.bound.target_layout.as_ref().unwrap_or(target);
    Ok(config_differences(target, &conversion.bound, &beside, &path))
}

/// Returns where the config of a layout's framework lies beside a checkpoint, if it is there.
fn config_path(layout: &Layout, checkpoint: &Path) -> Option<PathBuf> {
    let folder = if checkpoint.is_dir() { checkpoint } else { checkpoint.parent()? };
    Some(folder.join(layout.config_file())).filter(|path| path.is_file())
}
