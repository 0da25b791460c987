//! `qkvconv verify --from A --to B SRC DST`: checks a conversion that anything made.

use std::path::Path;
use std::time::Instant;

use qkvconv::convert::{Conversion, Verify, open_as};
use qkvconv::diag::{Diagnostic, Errors};
use qkvconv::format::OpenOptions;
use qkvconv::identity::Identity;
use qkvconv::provenance::Provenance;
use qkvconv::report::Outcome;
use qkvconv::verify::config::config_differences;

use super::Exit;
use super::args::VerifyArgs;
use super::convert::{Verdict, end, say_checked, write_report};
use super::progress::{Bar, catch_interrupts};
use super::source::{limits, resolve, select_layouts};
use super::ui::Ui;

/// Verifies.
pub(super) fn run(ui: &Ui, args: &VerifyArgs) -> Exit {
    let (Some(source), Some(destination)) = (&args.source, &args.destination) else { return Exit::Usage };
    let done = verify(ui, args, source, destination);
    end(ui, args.report.as_deref(), done)
}

fn verify(ui: &Ui, args: &VerifyArgs, source: &Path, destination: &Path) -> Result<Verdict, Errors> {
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
    write_report(args.report.as_deref(), &conversion, outcome, start)?;
    let verdict = checked.verdict();
    if verdict.is_ok() {
        say_checked(ui, &checked);
    }
    Ok(verdict)
}

/// Compares the config beside the target, under the name that the target's framework gives it, with the weights.
fn config_beside(conversion: &Conversion<'_>, destination: &Path) -> Result<Vec<Diagnostic>, Errors> {
    let folder = if destination.is_dir() { Some(destination) } else { destination.parent() };
    let target = conversion.selection.target();
    let Some(path) = folder.map(|folder| folder.join(target.config_file())).filter(|path| path.is_file())
    else {
        return Ok(Vec::new());
    };
    let beside = Provenance::read(destination, Some(&path), [])?;
    let target = conversion.bound.target_layout.as_ref().unwrap_or(target);
    Ok(config_differences(target, &conversion.bound, &beside, &path))
}
