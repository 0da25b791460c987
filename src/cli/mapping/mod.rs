//! `qkvconv mapping`: what helps to read and to write mapping files.

mod check;
mod draft;
mod fmt;
mod infer;
mod list;
mod schema;
mod show;

use clap::Subcommand;

use super::Exit;
use super::ui::Ui;

/// What to do with mapping files.
#[derive(Debug, Subcommand)]
pub(super) enum MappingCommand {
    /// Lists the families and layouts, all or those that hold a word.
    ///
    /// Example: qkvconv mapping list tf
    List(list::ListArgs),
    /// Shows what a layout stores.
    ///
    /// Example: qkvconv mapping show attention/megatron
    Show(show::ShowArgs),
    /// Checks a mapping file without any checkpoint.
    ///
    /// Example: qkvconv mapping check my-model.json
    Check(check::CheckArgs),
    /// Finds the rules from two checkpoints that hold the same weights.
    ///
    /// Example: qkvconv mapping infer a.safetensors b.safetensors
    Infer(Box<infer::InferArgs>),
    /// Writes a starting mapping file from the names of a checkpoint.
    ///
    /// Example: qkvconv mapping new --from model.safetensors
    New(draft::DraftArgs),
    /// Writes mapping files in their one form.
    ///
    /// Example: qkvconv mapping fmt my-model.json
    Fmt(fmt::FmtArgs),
    /// Prints the JSON Schema of mapping files.
    ///
    /// Example: qkvconv mapping schema
    Schema(schema::SchemaArgs),
}

impl MappingCommand {
    /// Returns whether it makes files.
    pub(super) fn writes(&self) -> bool {
        matches!(self, MappingCommand::Infer(_) | MappingCommand::New(_) | MappingCommand::Fmt(_))
    }
}

/// Runs a subcommand.
pub(super) fn run(ui: &Ui, command: &MappingCommand) -> Exit {
    match command {
        MappingCommand::List(args) => list::run(ui, args),
        MappingCommand::Show(args) => show::run(ui, args),
        MappingCommand::Check(args) => check::run(ui, args),
        MappingCommand::Infer(args) => infer::run(ui, args),
        MappingCommand::New(args) => draft::run(ui, args),
        MappingCommand::Fmt(args) => fmt::run(ui, args),
        MappingCommand::Schema(args) => schema::run(ui, args),
    }
}
