//! The command-line tool: a thin face on the library.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
