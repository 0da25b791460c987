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
use super::args::MappingFiles;
use super::ui::Ui;

/// What to do with mapping files.
#[derive(Debug, Subcommand)]
pub(super) enum MappingCommand {
    /// Lists all families and layouts; example: qkvconv mapping list
    List(MappingFiles),
    /// Shows what a layout stores; example: qkvconv mapping show attention/megatron
    Show(show::ShowArgs),
    /// Checks a mapping file without any checkpoint; example: qkvconv mapping check my-model.json
    Check(check::CheckArgs),
    /// Finds the rules from two checkpoints that hold the same weights; example: qkvconv mapping infer a.safetensors b.safetensors
    Infer(Box<infer::InferArgs>),
    /// Writes a starting mapping file from the names of a checkpoint; example: qkvconv mapping new --from model.safetensors
    New(draft::DraftArgs),
    /// Writes mapping files in their one form; example: qkvconv mapping fmt my-model.json
    Fmt(fmt::FmtArgs),
    /// Prints the JSON Schema of mapping files; example: qkvconv mapping schema
    Schema(schema::SchemaArgs),
}

/// Runs a subcommand.
pub(super) fn run(ui: &Ui, command: &MappingCommand) -> Exit {
    match command {
        MappingCommand::List(files) => list::run(ui, files),
        MappingCommand::Show(args) => show::run(ui, args),
        MappingCommand::Check(args) => check::run(ui, args),
        MappingCommand::Infer(args) => infer::run(ui, args),
        MappingCommand::New(args) => draft::run(ui, args),
        MappingCommand::Fmt(args) => fmt::run(ui, args),
        MappingCommand::Schema(args) => schema::run(ui, args),
    }
}
