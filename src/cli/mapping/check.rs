//! `qkvconv mapping check FILE`

use clap::Args;

use crate::cli::Exit;
use crate::cli::ui::Ui;

/// What to do.
#[derive(Debug, Args)]
pub(in crate::cli) struct CheckArgs {
    /// The mapping file.
    #[arg(value_name = "FILE")]
    file: std::path::PathBuf,
}

/// Runs.
pub(super) fn run(ui: &Ui, args: &CheckArgs) -> Exit {
    ui.say(&format!("{args:?}"));
    Exit::Usage
}
