//! `qkvconv mapping infer SRC DST`

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use qkvconv::diag::{Diagnostic, Errors, InferCode, UsageCode};
use qkvconv::exec::Limits;
use qkvconv::exec::publish::{Existing, Guard};
use qkvconv::fold::fold_keys;
use qkvconv::infer::{Inferred, Side, infer, merge};
use qkvconv::provenance::Provenance;

use crate::cli::Exit;
use crate::cli::args::{OpenAllow, OpenArgs};
use crate::cli::progress::{Bar, catch_interrupts};
use crate::cli::source::{open_options, read_mapping};
use crate::cli::ui::Ui;

/// What to infer from, and where to write it.
#[derive(Debug, Args)]
pub(in crate::cli) struct InferArgs {
    /// The checkpoint in the one layout.
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// The checkpoint with the same weights in the other.
    #[arg(value_name = "DST")]
    destination: PathBuf,

    /// Write the mapping file there instead of to stdout.
    ///
    /// Example: --output my-model.json
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Add axes, parameters and both layouts to a mapping file; its text stays as it is.
    ///
    /// Example: --into my-model.json
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    into: Option<PathBuf>,

    /// The family's name; without it the output's file name says.
    ///
    /// Example: --family my-model
    #[arg(long, value_name = "NAME")]
    family: Option<String>,

    /// What the layout of SRC is to be called.
    ///
    /// Example: --source-layout trainer
    #[arg(long, value_name = "NAME", default_value = "source")]
    source_layout: String,

    /// What the layout of DST is to be called.
    ///
    /// Example: --target-layout hf
    #[arg(long, value_name = "NAME", default_value = "target")]
    target_layout: String,

    #[command(flatten)]
    open: OpenArgs,

    /// Allow what is an error otherwise.
    ///
    /// Example: --allow outside-link
    #[arg(long, value_name = "WHAT")]
    allow: Vec<OpenAllow>,

    /// The container that holds the weights in DST, as --root says it of SRC.
    ///
    /// Example: --to-root model
    #[arg(long, value_name = "NAME", help_heading = "Source")]
    to_root: Option<String>,

    /// The config of SRC; without it config.json or params.json beside it is read.
    ///
    /// Example: --config config.json
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    config: Option<PathBuf>,

    /// The config of DST.
    ///
    /// Example: --to-config other/config.json
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    to_config: Option<PathBuf>,
}

/// Infers a mapping.
pub(super) fn run(ui: &Ui, args: &InferArgs) -> Exit {
    match infer_from(ui, args) {
        Ok(exit) => exit,
        Err(errors) => ui.fail(&errors),
    }
}

fn infer_from(ui: &Ui, args: &InferArgs) -> Result<Exit, Errors> {
    let start = Instant::now();
    let named = args
        .output
        .as_deref()
        .or(args.into.as_deref())
        .and_then(Path::file_stem)
        .map(|stem| stem.to_string_lossy().into_owned());
    let family = args.family.clone().or(named).unwrap_or_else(|| "inferred".to_owned());
    if args.source_layout == args.target_layout {
        let error = Diagnostic::error(UsageCode::Layouts, "both layouts have one name");
        return Err(error.help("give --source-layout and --target-layout names that differ").into());
    }
    let side = |path: &Path, root: &Option<String>, named: &Option<PathBuf>, layout: &str| {
        let provenance = Provenance::read(path, named.as_deref(), [], args.open.max_config_size)?;
        Ok::<Side, Errors>(Side {
            path: path.to_owned(),
            open: open_options(&OpenArgs { root: root.clone(), ..args.open.clone() }, &args.allow),
            config: provenance.within(None, &[]).config().cloned(),
            layout: layout.to_owned(),
        })
    };
    let source = side(&args.source, &args.open.root, &args.config, &args.source_layout)?;
    let target = side(&args.destination, &args.to_root, &args.to_config, &args.target_layout)?;
    let mut guard = Guard::default();
    for (what, path, config) in
        [("SRC", &args.source, &args.config), ("DST", &args.destination, &args.to_config)]
    {
        guard.reads(what, path);
        let configs = Provenance::files(path, config.as_deref(), []);
        configs.iter().for_each(|path| guard.reads("a config", path));
    }
    const ANOTHER: Existing =
        Existing::Kept("name another file, or add the layouts to this one with `--into`");
    let (output, before) = match (&args.output, &args.into) {
        (Some(path), _) => (Some(guard.open("the mapping", path, ANOTHER)?), None),
        (None, Some(path)) => {
            let text = read_mapping(path)?.text.clone();
            (Some(guard.open("the mapping", path, Existing::Replaced)?), Some(text))
        }
        (None, None) => (None, None),
    };
    catch_interrupts();
    let bar = Bar::new(0, false);
    let inferred = infer(&family, &source, &target, &Limits::default(), &bar)?;
    for unexplained in &inferred.unexplained {
        for name in fold_keys(unexplained.tensors.iter().map(String::as_str)) {
            ui.say(&format!("not explained: {name}: {}", unexplained.why));
        }
    }
    if inferred.text.is_empty() {
        return Err(Diagnostic::error(InferCode::Nothing, "no mapping was found").into());
    }
    let text = match &before {
        Some(before) => merge(before, &inferred.parts)?,
        None => inferred.text.clone(),
    };
    match output {
        Some(output) => output.publish(text.as_bytes())?,
        None => ui.document(text.trim_end()),
    }
    summarize(ui, args, &family, &inferred);
    ui.say(&format!("{:.1?}", start.elapsed()));
    Ok(if inferred.unexplained.is_empty() { Exit::Done } else { Exit::Differs })
}

fn summarize(ui: &Ui, args: &InferArgs, family: &str, inferred: &Inferred) {
    for name in fold_keys(inferred.unused.iter().map(String::as_str)) {
        ui.say(&format!("not in the target, ignored: {name}"));
    }
    for note in &inferred.notes {
        ui.say(note);
    }
    ui.say(&format!(
        "checked: {} elements of {} tensors agree with the source, read through the mapping",
        inferred.elements, inferred.tensors
    ));
    let file =
        args.output.as_ref().or(args.into.as_ref()).map_or("FILE".into(), |path| path.display().to_string());
    let told = |axes: &[(String, u64)]| {
        axes.iter().map(|(axis, size)| format!(" --axis {axis}={size}")).collect::<String>()
    };
    let cast =
        inferred.dtype.map_or(String::new(), |to| format!(" --dtype {}", to.name().to_ascii_lowercase()));
    let (source, target) = (&args.source_layout, &args.target_layout);
    ui.say(&format!(
        "there: qkvconv --mapping {file} --from {family}/{source} --to {family}/{target}{}{cast} SRC DST",
        told(&inferred.open[0])
    ));
    ui.say(&format!(
        "back:  qkvconv --mapping {file} --from {family}/{target} --to {family}/{source}{} DST SRC",
        told(&inferred.open[1])
    ));
}
