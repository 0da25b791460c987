//! `qkvconv mapping new --from SRC`

use clap::Args;

use crate::cli::Exit;
use crate::cli::ui::Ui;

/// What to do.
#[derive(Debug, Args)]
pub(in crate::cli) struct DraftArgs {
    /// The checkpoint.
    #[arg(long, value_name = "SRC")]
    from: std::path::PathBuf,
}

/// Runs.
pub(super) fn run(ui: &Ui, args: &DraftArgs) -> Exit {
    ui.say(&format!("{args:?}"));
    Exit::Usage
}
