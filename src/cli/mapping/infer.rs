//! `qkvconv mapping infer SRC DST`

use clap::Args;

use crate::cli::Exit;
use crate::cli::ui::Ui;

/// What to do.
#[derive(Debug, Args)]
pub(in crate::cli) struct InferArgs {
    /// The checkpoint in the one layout.
    #[arg(value_name = "SRC")]
    source: std::path::PathBuf,

    /// The checkpoint in the other.
    #[arg(value_name = "DST")]
    destination: std::path::PathBuf,
}

/// Runs.
pub(super) fn run(ui: &Ui, args: &InferArgs) -> Exit {
    ui.say(&format!("{args:?}"));
    Exit::Usage
}
