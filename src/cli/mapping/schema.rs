//! `qkvconv mapping schema`

use clap::Args;

use crate::cli::Exit;
use crate::cli::ui::Ui;

/// What to do.
#[derive(Debug, Args)]
pub(in crate::cli) struct SchemaArgs {}

/// Runs.
pub(super) fn run(ui: &Ui, args: &SchemaArgs) -> Exit {
    ui.say(&format!("{args:?}"));
    Exit::Usage
}
