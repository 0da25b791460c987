//! `qkvconv mapping schema`

use clap::Args;
use qkvconv::mapping::schema::schema;

use crate::cli::Exit;
use crate::cli::ui::Ui;

/// What to do.
#[derive(Debug, Args)]
#[command(
    after_help = "Beside your mapping file, with `\"$schema\": \"mapping.schema.json\"` as its first entry, it makes an
editor such as VS Code complete fields and underline mistakes:

  qkvconv mapping schema > mapping.schema.json"
)]
pub(in crate::cli) struct SchemaArgs {}

/// Prints the schema.
pub(super) fn run(ui: &Ui, _args: &SchemaArgs) -> Exit {
    // A line of results ends by itself.
    ui.document(schema().trim_end());
    Exit::Done
}
