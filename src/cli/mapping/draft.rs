//! `qkvconv mapping new --from SRC`: a starting mapping file.

use std::path::{Path, PathBuf};

use clap::Args;
use qkvconv::diag::{Diagnostic, Errors, UsageCode};
use qkvconv::draft::{Draft, Names, draft, from_list, listed};
use qkvconv::exec::publish::{Existing, Guard};
use qkvconv::format::open;
use qkvconv::span::Source;

use crate::cli::Exit;
use crate::cli::args::{OpenAllow, OpenArgs};
use crate::cli::source::open_options;
use crate::cli::ui::Ui;

/// Names of checkpoints that say nothing of the model; the folder's name then does.
const USUAL: &[&str] = &["model", "pytorch_model", "tf_model", "flax_model", "weights", "checkpoint"];

/// What to draft.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qkvconv mapping new --from model.safetensors --output my-model.json
  qkvconv mapping new --from names.json        where names.json is {\"name\": {\"dtype\": \"F32\", \"shape\": [3, 5]}}")]
pub(in crate::cli) struct DraftArgs {
    /// The checkpoint, in any of the formats, or a JSON list of names and shapes; only its headers are read.
    #[arg(long, value_name = "SRC")]
    from: PathBuf,

    /// Where to write the mapping file; without it, it is printed.
    ///
    /// Example: --output my-model.json
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// What to call the family; without it, as the checkpoint is called.
    ///
    /// Example: --family my-model
    #[arg(long, value_name = "NAME")]
    family: Option<String>,

    /// What to call the layout of the checkpoint.
    ///
    /// Example: --layout hf
    #[arg(long, value_name = "NAME", default_value = "original")]
    layout: String,

    #[command(flatten)]
    open: OpenArgs,

    /// Allow what is an error otherwise.
    ///
    /// Example: --allow outside-link
    #[arg(long, value_name = "WHAT")]
    allow: Vec<OpenAllow>,
}

/// Writes the draft.
pub(super) fn run(ui: &Ui, args: &DraftArgs) -> Exit {
    match make(ui, args) {
        Ok(()) => Exit::Done,
        Err(errors) => ui.fail(&errors),
    }
}

fn make(ui: &Ui, args: &DraftArgs) -> Result<(), Errors> {
    let mut guard = Guard::default();
    guard.reads("the checkpoint", &args.from);
    let existing = Existing::Kept("name another file");
    let output = args.output.as_deref().map(|path| guard.open("the draft", path, existing)).transpose()?;
    let (tensors, ties) = match list(&args.from) {
        Some(tensors) => (tensors, Vec::new()),
        None => {
            let reader = open(&args.from, &open_options(&args.open, &args.allow))?;
            ui.warn(&reader.catalog().warnings);
            listed(reader.catalog())
        }
    };
    let family = args.family.clone().unwrap_or_else(|| family_of(&args.from));
    for (option, name) in [("--family", &family), ("--layout", &args.layout)] {
        if name.is_empty() || name.contains('/') {
            let error = Diagnostic::error(UsageCode::Name, format!("{option} {name}: no usable name"));
            return Err(error.expected("a name without `/`: layouts are written family/layout").into());
        }
    }
    let source = args.from.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let names = Names { family, layout: args.layout.clone(), source };
    let draft = draft(&tensors, &ties, &names)?;
    let Some(output) = output else {
        ui.document(draft.text.trim_end());
        return Ok(());
    };
    let path = output.target().to_owned();
    output.publish(draft.text.as_bytes())?;
    say_next(ui, &path, &draft, &names, tensors.len());
    Ok(())
}

/// Reads a JSON list of names and shapes, where it is one.
fn list(path: &Path) -> Option<Vec<qkvconv::draft::Tensor>> {
    // Anything else may be large: only headers of it are read.
    path.extension().filter(|ending| *ending == "json")?;
    from_list(&Source::read(path).ok()?.text)
}

/// Returns a name for the family: the checkpoint's, or its folder's where that says nothing.
fn family_of(source: &Path) -> String {
    let named = |path: Option<&Path>| {
        let stem = path?.file_stem()?.to_string_lossy().to_lowercase();
        let word: String =
            stem.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }).collect();
        Some(word.trim_matches('-').to_owned()).filter(|word| !word.is_empty())
    };
    let own = named(Some(source)).filter(|name| !USUAL.contains(&name.as_str()));
    own.or_else(|| named(source.parent())).unwrap_or_else(|| "my-model".into())
}

/// Says what was written and what to do with it.
fn say_next(ui: &Ui, path: &Path, draft: &Draft, names: &Names, tensors: usize) {
    let file = path.display();
    let Names { family, layout, source } = names;
    ui.say(&format!("wrote {file}: {tensors} tensors of {source} as {family}/{layout}"));
    for note in &draft.notes {
        ui.say(&format!("note: {note}"));
    }
    ui.say("next:");
    ui.say("  1. name the axes in `axes`, and cut those that hold heads as `about` in `params` suggests");
    ui.say("  2. write the other layout under `layouts`: the same parameters, its own names and expressions");
    ui.say(&format!(
        "  qkvconv mapping show {family}/{layout} --mapping {file}    prints what was understood"
    ));
}
