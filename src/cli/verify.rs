//! `qkvconv verify --from A --to B SRC DST`: checks a conversion that anything made.

use std::path::Path;
use std::time::Instant;

use qkvconv::convert::{Verification, VerifyOptions};
use qkvconv::diag::Errors;
use qkvconv::exec::publish::{Guard, Pending};
use qkvconv::report::Outcome;

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
    let options = VerifyOptions::default().source(resolve(&args.layouts)?).target_root(args.to_root.clone());
    let verification = Verification::prepare(&selection, source, destination, &options)?;
    let Verification { conversion, target, config, .. } = &verification;
    config.iter().for_each(|path| guard.reads("the config beside it", path));
    target.catalog().files.iter().for_each(|path| guard.reads("the checkpoint that is verified", path));
    check_report(guard, conversion, report)?;
    ui.warn(&conversion.warnings);
    catch_interrupts();
    let bar = Bar::new(conversion.bytes(), ui.shows_progress());
    let result = verification.run(&limits(&args.layouts), &bar);
    bar.finish();
    let checked = result?;
    let outcome = Outcome { checked: Some(&checked), ..Outcome::default() };
    write_report(report.take(), conversion, outcome, start)?;
    let verdict = checked.verdict();
    if verdict.is_ok() {
        say_checked(ui, &checked);
    }
    Ok(verdict)
}
