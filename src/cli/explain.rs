//! `qkvconv explain CODE`: what a code of an error or warning means, and what to do.

use clap::Args;
use qkvconv::codes::{all, find};
use qkvconv::diag::{Code, Diagnostic, UsageCode};

use super::Exit;
use super::ui::Ui;

/// What is explained.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The code as an error shows it, such as bind/open-size; without it all codes are listed
    #[arg(value_name = "CODE")]
    code: Option<String>,
}

/// Explains a code, or lists all.
pub(super) fn run(ui: &Ui, args: &ExplainArgs) -> Exit {
    let Some(asked) = &args.code else {
        let widest = all().map(|one| one.code.as_str().len()).max().unwrap_or(0);
        all().for_each(|one| ui.result(&format!("{:widest$}  {}", one.code, one.title)));
        return Exit::Done;
    };
    // As it is copied from a message, `error[bind/open-size]`.
    let code = asked.trim_start_matches("error").trim_start_matches("warning");
    let code = code.trim_matches(|c: char| matches!(c, '[' | ']' | ':' | '`') || c.is_whitespace());
    let known = match code.parse::<Code>() {
        Ok(code) => find(code),
        Err(unknown) => {
            let help = match unknown.nearest {
                Some(near) => format!("did you mean `{near}`? `qkvconv explain` lists all"),
                None => "`qkvconv explain` lists all".to_owned(),
            };
            return ui.fail(&Diagnostic::error(UsageCode::Code, unknown.to_string()).help(help).into());
        }
    };
    // A test holds that every code is documented.
    let Some(known) = known else { return Exit::Failed };
    ui.result(&format!("{}: {}", known.code, known.title));
    if !known.about.is_empty() {
        ui.result(&format!("\n{}", known.about));
    }
    ui.result(&format!("\nWhat to do: {}", known.remedy));
    Exit::Done
}
