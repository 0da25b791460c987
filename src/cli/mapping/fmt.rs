//! `qkvconv mapping fmt`

use std::path::{Path, PathBuf};

use clap::Args;
use qkvconv::diag::{Collector, Errors};
use qkvconv::exec::publish::{Existing, Guard};
use qkvconv::mapping::print::print;

use crate::cli::Exit;
use crate::cli::source::read_mapping;
use crate::cli::ui::Ui;

/// What to do.
#[derive(Debug, Args)]
#[command(
    after_help = "One entry a line, values in a column; what fits 120 columns is one line. Nothing but spaces and line breaks changes.
With --check nothing is written; files that are not in this form are listed, and the exit code is 3."
)]
pub(in crate::cli) struct FmtArgs {
    /// Mapping files.
    ///
    /// Example: my-model.json
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Only tell which files are not in this form.
    #[arg(long)]
    check: bool,
}

/// Writes files in their one form.
pub(super) fn run(ui: &Ui, args: &FmtArgs) -> Exit {
    let mut errors = Collector::default();
    let mut others = Vec::new();
    for path in &args.files {
        match changed(path) {
            Ok(Some(text)) => others.push((path, text)),
            Ok(None) => {}
            Err(wrong) => errors.extend(wrong),
        }
    }
    // All files are read before any is written.
    let written = errors.finish(()).and_then(|_| match args.check {
        true => Ok(()),
        false => others.iter().try_for_each(|(path, text)| write(path, text)),
    });
    if let Err(errors) = written {
        return ui.fail(&errors);
    }
    for (path, _) in &others {
        match args.check {
            true => ui.result(&path.display().to_string()),
            false => ui.say(&format!("formatted {}", path.display())),
        }
    }
    if args.check && !others.is_empty() {
        ui.say("`qkvconv mapping fmt` writes these in their one form");
        return Exit::Differs;
    }
    Exit::Done
}

/// Returns the text that a file is to have, where it has another.
fn changed(path: &Path) -> Result<Option<String>, Errors> {
    let source = read_mapping(path)?;
    let printed = print(&source)?;
    Ok((printed != source.text).then_some(printed))
}

fn write(path: &Path, text: &str) -> Result<(), Errors> {
    Guard::default().open("the mapping", path, Existing::Replaced)?.publish(text.as_bytes())
}
