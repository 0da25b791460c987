//! `qkvconv diff A B`: what two checkpoints differ in.

use std::path::PathBuf;

use clap::Args;
use qkvconv::diag::{Collector, Errors};
use qkvconv::diff::{DiffOptions, DiffReport, diff, work};
use qkvconv::format::{OpenOptions, Reader, open};

use super::Exit;
use super::args::{OpenAllow, OpenArgs};
use super::progress::{Bar, catch_interrupts};
use super::source::{globs, open_options};
use super::ui::Ui;

/// The comparison.
#[derive(Debug, Args)]
#[command(after_help = "Tensors are matched by name. Metadata are compared too, but only noted.

Exit codes: 0 equal, 1 failed, 2 usage, 3 they differ, 130 interrupted.

Examples:
  qkvconv diff model.safetensors converted/
  qkvconv diff --tolerance 1e-2 --drop '*.bias' model.safetensors model-bf16.safetensors
  qkvconv diff --json a.safetensors b/model.safetensors.index.json | jq .totals")]
pub(super) struct DiffArgs {
    /// One checkpoint: a safetensors file, a sharded checkpoint's index or its folder.
    #[arg(value_name = "A")]
    a: PathBuf,

    /// The other.
    ///
    /// Example: qkvconv diff a.safetensors folder/
    #[arg(value_name = "B")]
    b: PathBuf,

    #[command(flatten)]
    open: OpenArgs,

    /// The container that holds the weights in B, as --root says it of A.
    ///
    /// Example: --to-root model
    #[arg(long, value_name = "NAME")]
    to_root: Option<String>,

    /// Compare only tensors whose names match; may be given several times.
    ///
    /// Example: --only 'encoder.**'
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,

    /// Leave out tensors whose names match; may be given several times.
    ///
    /// Example: --drop '*.rotary_emb.inv_freq'
    #[arg(long, value_name = "GLOB")]
    drop: Vec<String>,

    /// Count tensors as equal whose elements differ by at most so much, also between different types.
    ///
    /// Example: --tolerance 1e-5
    #[arg(long, value_name = "ABS", value_parser = tolerance)]
    tolerance: Option<f64>,

    /// Name the bit-equal tensors too, not only their number.
    ///
    /// Example: --all
    #[arg(long)]
    all: bool,

    /// Print a JSON document instead of a table.
    #[arg(long)]
    json: bool,

    /// Allow what is an error otherwise.
    ///
    /// Example: --allow outside-link
    #[arg(long, value_name = "WHAT")]
    allow: Vec<OpenAllow>,

    /// How many threads to use; the result does not depend on it.
    ///
    /// Example: --threads 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    /// Print errors alone; the exit code tells the result.
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// Runs a comparison.
pub(super) fn run(ui: &Ui, args: &DiffArgs) -> Exit {
    match compare(ui, args) {
        Ok(report) => {
            if !args.quiet {
                show(ui, args, &report);
            }
            if report.equal() { Exit::Done } else { Exit::Differs }
        }
        Err(errors) => ui.fail(&errors),
    }
}

fn compare(ui: &Ui, args: &DiffArgs) -> Result<DiffReport, Errors> {
    let options = options(args)?;
    let open_options = open_options(&args.open, &args.allow);
    let (a, b) = open_both(args, &open_options)?;
    for reader in [&a, &b] {
        ui.warn(&reader.catalog().warnings);
    }
    catch_interrupts();
    let bar = Bar::new(work(a.as_ref(), b.as_ref(), &options), ui.shows_progress());
    let report = diff(a.as_ref(), b.as_ref(), &options, &bar);
    bar.finish();
    report
}

fn options(args: &DiffArgs) -> Result<DiffOptions, Errors> {
    let mut errors = Collector::default();
    let mut options = DiffOptions::default()
        .only(globs("--only", &args.only, &mut errors))
        .drop(globs("--drop", &args.drop, &mut errors))
        .tolerance(args.tolerance);
    if let Some(threads) = args.threads {
        options.threads = threads.into();
    }
    errors.finish(options).map(|(options, _)| options)
}

/// The two checkpoints.
type Both = (Box<dyn Reader>, Box<dyn Reader>);

/// Opens both, so that what is wrong with either is said at once.
fn open_both(args: &DiffArgs, options: &OpenOptions) -> Result<Both, Errors> {
    let mut errors = Collector::default();
    let mut open_one = |path, options| open(path, options).map_err(|failure| errors.extend(failure)).ok();
    let of_b = options.clone().clone().root(args.to_root.clone());
    let opened = (open_one(&args.a, options), open_one(&args.b, &of_b));
    let (opened, _) = errors.finish(opened)?;
    match opened {
        (Some(a), Some(b)) => Ok((a, b)),
        _ => unreachable!("a checkpoint that does not open says why"),
    }
}

fn show(ui: &Ui, args: &DiffArgs, report: &DiffReport) {
    if args.json {
        ui.document(&format!("{:#}", report.json(args.all)));
    } else {
        report.lines(args.all).iter().for_each(|line| ui.result(line));
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if value >= 0.0 && f64::is_finite(value) => Ok(value),
        _ => Err("a tolerance is a number from 0, such as 1e-5".to_owned()),
    }
}
