//! `qkvconv completions SHELL` and `qkvconv man FOLDER`, both made of the command line's own definition.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Command};
use clap_complete::Shell;
use qkvconv::diag::Errors;
use qkvconv::exec::publish::io_error;
use qkvconv::mapping::select::all;

use super::Exit;
use super::ui::Ui;

/// What is completed.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Where man pages go.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The folder; it is made where it is missing, and pages in it are replaced.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Options that take a layout.
const LAYOUTS: [&str; 2] = ["from", "to"];

/// Prints the completions of a shell, with the names of the built-in layouts.
pub(super) fn completions(ui: &Ui, args: &CompletionsArgs, command: Command) -> Exit {
    let mut names = vec!["auto".to_owned()];
    match all(&[]) {
        Ok(mappings) => names.extend(mappings.iter().flat_map(|mapping| {
            mapping.layouts.keys().map(move |layout| format!("{}/{layout}", mapping.family))
        })),
        Err(errors) => return ui.fail(&errors),
    }
    let mut command = with_layouts(command, &names);
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "qkvconv", &mut script);
    ui.document(String::from_utf8_lossy(&script).trim_end());
    Exit::Done
}

/// Gives the options that take a layout their values, in all subcommands.
fn with_layouts(mut command: Command, names: &[String]) -> Command {
    for option in LAYOUTS {
        if command.get_arguments().any(|argument| argument.get_id() == option) {
            let values = PossibleValuesParser::new(names.to_vec());
            command = command.mut_arg(option, |argument| argument.value_parser(values));
        }
    }
    let inner: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    inner
        .iter()
        .fold(command, |command, name| command.mut_subcommand(name, |inner| with_layouts(inner, names)))
}

/// Writes the man pages.
pub(super) fn man(ui: &Ui, args: &ManArgs, command: Command) -> Exit {
    let fail =
        |error: &std::io::Error| Errors::from(io_error(&args.folder, "write the man pages into it", error));
    let written = std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(command.version(env!("CARGO_PKG_VERSION")), &args.folder));
    match written {
        Ok(()) => Exit::Done,
        Err(error) => ui.fail(&fail(&error)),
    }
}
