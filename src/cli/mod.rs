//! The command line: arguments, subcommands and exit codes.

mod args;
mod complete;
mod convert;
mod diff;
mod explain;
mod faults;
mod inspect;
mod mapping;
mod progress;
mod source;
mod ui;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use args::{Colour, ConvertArgs, VerifyArgs};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use qkvconv::diag::Class;
use qkvconv::diag::nearest;
use ui::Ui;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done and verified.
    Done,
    /// The two sides differ.
    Differs,
    /// Something is wrong with the checkpoint, the mapping or the machine.
    Failed,
    /// The command line is wrong.
    Usage,
    /// Stopped by a signal, as shells count it.
    Interrupted,
}

impl From<Class> for Exit {
    fn from(class: Class) -> Exit {
        match class {
            Class::Usage => Exit::Usage,
            Class::Differs => Exit::Differs,
            Class::Cancelled => Exit::Interrupted,
            // A class of a later version of the library is a failure too.
            _ => Exit::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Differs => 3,
            Exit::Interrupted => 130,
        })
    }
}

/// Rewrites transformer checkpoints from one weight layout to another, and proves that nothing was mixed.
#[derive(Debug, Parser)]
#[command(
    name = "qkvconv",
    version,
    about,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 does not verify or differs, 130 interrupted.

Example:
  qkvconv --from pytorch-fused --to per-head model.safetensors out.safetensors"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    convert: ConvertArgs,

    /// Whether errors and pictures are coloured.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        env = "QKVCONV_COLOR",
        hide_env_values = true,
        hide_short_help = true
    )]
    color: Colour,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Converts, as without a subcommand.
    ///
    /// Example: qkvconv convert --from pytorch-fused --to per-head model.safetensors out.safetensors
    Convert(Box<ConvertArgs>),
    /// Checks a conversion that anything made: does DST hold what SRC holds, in the other layout?
    #[command(after_help = "Example:
  qkvconv verify --from llama-hf --to llama-meta hf/ consolidated.safetensors")]
    Verify(VerifyArgs),
    /// Lists and explains layouts, and helps to write mapping files.
    #[command(subcommand)]
    Mapping(mapping::MappingCommand),
    /// Tells what a checkpoint is and holds: layout, sizes, where the heads lie.
    ///
    /// Example: qkvconv inspect model.safetensors
    Inspect(inspect::InspectArgs),
    /// Compares two checkpoints by tensor name.
    ///
    /// Example: qkvconv diff a.safetensors b/
    Diff(diff::DiffArgs),
    /// Prints the completions of a shell.
    ///
    /// Example: qkvconv completions bash > ~/.local/share/bash-completion/completions/qkvconv
    Completions(complete::CompletionsArgs),
    /// Writes the man pages into a folder.
    ///
    /// Example: qkvconv man ~/.local/share/man/man1
    Man(complete::ManArgs),
    /// Explains the code of an error or warning, or lists all codes.
    ///
    /// Example: qkvconv explain bind/open-size
    Explain(explain::ExplainArgs),
}

/// What somebody sees who gives no arguments.
const FIRST_STEPS: &str = "what a checkpoint is:   qkvconv inspect model/
to another layout:      qkvconv --from auto --to llama/meta model/ out/
all layouts, the help:  qkvconv mapping list, qkvconv --help";

/// Returns the subcommand that the first word is near to, where it is neither one nor a file.
fn meant_command() -> Option<String> {
    let word = std::env::args().nth(1).filter(|word| !word.starts_with('-'))?;
    let names: Vec<String> =
        Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let is_known = names.contains(&word) || std::path::Path::new(&word).exists();
    if is_known { None } else { nearest(&word, names.iter().map(String::as_str)).map(str::to_owned) }
}

/// Runs the program.
pub(crate) fn run() -> ExitCode {
    progress::survive_large_files();
    if std::env::args_os().len() <= 1 {
        let _ = writeln!(std::io::stderr().lock(), "{FIRST_STEPS}");
        return Exit::Usage.into();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let shown = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                    let ui = Ui::new(Colour::Auto);
                    ui.wrote(shown);
                    ui.end(Exit::Done)
                }
                kind => {
                    if let Some(command) =
                        meant_command().filter(|_| kind == ErrorKind::MissingRequiredArgument)
                    {
                        let _ =
                            writeln!(std::io::stderr().lock(), "\n  tip: did you mean `qkvconv {command}`?");
                    }
                    Exit::Usage
                }
            }
            .into();
        }
    };
    let quiet = match &cli.command {
        Some(Command::Convert(args)) => args.quiet,
        Some(Command::Verify(args)) => args.quiet,
        Some(Command::Diff(args)) => args.quiet,
        _ => cli.convert.quiet,
    };
    let has_report = matches!(cli.command, None | Some(Command::Convert(_) | Command::Verify(_)));
    let writes = match &cli.command {
        None | Some(Command::Convert(_)) => true,
        Some(Command::Mapping(command)) => command.writes(),
        Some(Command::Inspect(args)) => args.writes(),
        _ => has_report,
    };
    let ui = Ui::new(cli.color).quiet(quiet).has_report(has_report).writes(writes);
    let exit = match &cli.command {
        Some(Command::Convert(args)) => convert::run(&ui, args),
        Some(Command::Mapping(command)) => mapping::run(&ui, command),
        Some(Command::Verify(args)) => verify::run(&ui, args),
        Some(Command::Diff(args)) => diff::run(&ui, args),
        Some(Command::Explain(args)) => explain::run(&ui, args),
        Some(Command::Inspect(args)) => inspect::run(&ui, args),
        Some(Command::Completions(args)) => complete::completions(&ui, args, Cli::command()),
        Some(Command::Man(args)) => complete::man(&ui, args, Cli::command()),
        None => convert::run(&ui, &cli.convert),
    };
    ui.end(exit).into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
