//! `qkvconv inspect SRC`: what a checkpoint is and holds.

use std::path::PathBuf;

use clap::Args;
use qkvconv::bind::{BindOptions, Bound, ParamId, SourceId};
use qkvconv::catalog::Catalog;
use qkvconv::convert::ConvertOptions;
use qkvconv::detect::Candidate;
use qkvconv::diag::{Collector, Errors};
use qkvconv::evidence::{Limits, examine};
use qkvconv::fold::fold_keys;
use qkvconv::format::Reader;
use qkvconv::identity::Identity;
use qkvconv::inspect::{Kind, Picture, Seen, draw, kinds};
use qkvconv::mapping::select::read_files;
use qkvconv::mapping::{Layout, Mapping};
use qkvconv::recognise::recognise;

mod json;
mod tensor;
mod text;

use super::Exit;
use super::args::{MappingFiles, OpenAllow, OpenArgs, axis_size};
use super::progress::{Bar, catch_interrupts};
use super::source::{globs, open_options, read_mappings};
use super::ui::Ui;
use text::Detail;

/// How many names of one kind of tensors, modules and groups of tied tensors are told; the JSON has all.
const MOST_NAMED: usize = 12;

/// What to look at.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qkvconv inspect model.safetensors
  qkvconv inspect --tensor encoder.layers.0.self_attn.in_proj_weight --head 3 --part k --axis h=4 model.safetensors
  qkvconv inspect --tensor h.0.attn.c_attn.weight --part q --head 3 --save head.npy pytorch_model.bin
  qkvconv inspect --json pytorch_model.bin | jq .layout")]
pub(super) struct InspectArgs {
    /// The checkpoint: a file in any of the formats, an index, a prefix or a folder.
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// The layout, where it is known; without it every layout is tried.
    ///
    /// Example: --from attention/pytorch-fused
    #[arg(long, value_name = "LAYOUT")]
    from: Option<String>,

    #[command(flatten)]
    files: MappingFiles,

    #[command(flatten)]
    open: OpenArgs,

    /// The size of an axis; may be given several times.
    ///
    /// Example: --axis h=12
    #[arg(long = "axis", value_name = "AXIS=SIZE", value_parser = axis_size)]
    axes: Vec<(String, u64)>,

    /// A component that begins every name, to be removed; may be given several times.
    ///
    /// Example: --strip-prefix module
    #[arg(long, value_name = "PREFIX")]
    strip_prefix: Vec<String>,

    /// Leave out the tensors whose names match; may be given several times.
    ///
    /// Example: --drop 'classifier.*'
    #[arg(long, value_name = "GLOB")]
    drop: Vec<String>,

    /// The config; without it config.json or params.json beside the checkpoint is read.
    ///
    /// Example: --config config.json
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Look at one tensor: what it holds, with a picture.
    ///
    /// Example: --tensor h.0.attn.c_attn.weight
    #[arg(long, value_name = "KEY")]
    tensor: Option<String>,

    /// Of that tensor, one head: where it lies, here and in the other layouts of the family.
    ///
    /// Example: --head 3
    #[arg(long, value_name = "N", requires = "tensor")]
    head: Option<u64>,

    /// Of that tensor, one part, where it holds several.
    ///
    /// Example: --part k
    #[arg(long, value_name = "PART", requires = "tensor")]
    part: Option<String>,

    /// Write the elements of --head, in the family's canonical order, as a NumPy array.
    ///
    /// Example: --save head.npy
    #[arg(long, value_name = "FILE", requires = "head")]
    save: Option<PathBuf>,

    /// Replace the file of --save or --svg.
    #[arg(long)]
    force: bool,

    /// Tell every kind of tensor: what its rows and columns hold, and where the last head of each part lies.
    #[arg(long)]
    all: bool,

    /// Draw every kind of tensor that holds heads.
    #[arg(long)]
    picture: bool,

    /// Write the picture of --tensor as SVG.
    ///
    /// Example: --svg in_proj.svg
    #[arg(long, value_name = "FILE", requires = "tensor")]
    svg: Option<PathBuf>,

    /// Weigh what the numbers themselves say for or against the layout; reads a bounded sample.
    #[arg(long, conflicts_with_all = ["tensor", "json"])]
    evidence: bool,

    /// Let --axis overrule the sizes that the file records, and look for other layouts.
    #[arg(long)]
    trust_layout: bool,

    /// Print a JSON document, whose fields are stable: format, tensors, layout, sizes, kinds, …; of --tensor what it holds and
    /// where.
    #[arg(long)]
    json: bool,

    /// Allow what is an error otherwise.
    ///
    /// Example: --allow outside-link
    #[arg(long, value_name = "WHAT")]
    allow: Vec<OpenAllow>,
}

impl InspectArgs {
    /// Returns whether it makes files.
    pub(super) fn writes(&self) -> bool {
        self.save.is_some() || self.svg.is_some()
    }
}

/// Inspects.
pub(super) fn run(ui: &Ui, args: &InspectArgs) -> Exit {
    match inspect(ui, args) {
        Ok(()) => Exit::Done,
        Err(errors) => ui.fail(&errors),
    }
}

/// Everything that is looked at.
struct Look<'a> {
    reader: &'a dyn Reader,
    catalog: &'a Catalog,
    candidates: &'a [Candidate],
    /// The layout that explains the checkpoint, where there is one.
    fit: Option<(&'a Candidate, &'a Mapping, &'a Layout)>,
}

fn inspect(ui: &Ui, args: &InspectArgs) -> Result<(), Errors> {
    let own = read_files(&read_mappings(&args.files)?)?;
    let mut errors = Collector::default();
    let drop = globs("--drop", &args.drop, &mut errors);
    errors.finish(())?;
    let bind =
        BindOptions::default().axes(args.axes.clone()).strip_prefix(args.strip_prefix.clone()).drop(drop);
    let wanted = |mapping: &Mapping, layout: &Layout| {
        let named =
            |name: &String| *name == layout.name || *name == format!("{}/{}", mapping.family, layout.name);
        args.from.as_ref().is_none_or(named)
    };
    let open = open_options(&args.open, &args.allow);
    let trust_layout = args.trust_layout;
    let looking = ConvertOptions::default()
        .open(open)
        .bind(bind)
        .config(args.config.clone())
        .trust_layout(trust_layout);
    let found = recognise(&own, &wanted, &args.source, &looking)?;
    let (reader, catalog) = (found.reader.as_ref(), found.reader.catalog());
    let recorded = Identity::read(&catalog.metadata).filter(|_| !trust_layout);
    let recorded = recorded.map(|identity| identity.sizes).unwrap_or_default();
    let options = looking.bind.recorded(recorded).provenance(found.provenance.clone());
    let fit = found.layout().ok();
    let look = Look { reader, catalog, candidates: &found.candidates, fit };
    ui.warn(&catalog.warnings);
    match &args.tensor {
        Some(key) => look.tensor(ui, args, key, &options),
        None if args.json => {
            ui.document(&format!("{:#}", look.json()));
            Ok(())
        }
        None => {
            let detail = match (args.picture, args.all) {
                (true, _) => Detail::Pictures,
                (false, true) => Detail::All,
                (false, false) => Detail::Summary,
            };
            let source = args.source.display().to_string();
            look.lines(detail, ui.width(), &source).iter().for_each(|line| ui.result(line));
            if args.evidence { look.evidence(ui) } else { Ok(()) }
        }
    }
}

impl Look<'_> {
    fn bound(&self) -> Option<&Bound> {
        self.fit.and_then(|(candidate, ..)| candidate.bound.as_deref())
    }

    fn kinds(&self) -> Vec<Kind> {
        match (self.fit, self.bound()) {
            (Some((_, mapping, layout)), Some(bound)) => kinds(mapping, layout, bound, self.catalog),
            _ => Vec::new(),
        }
    }

    /// Returns where the modules of a family of single modules are; `None` for whole models.
    fn modules(&self) -> Option<Vec<String>> {
        let (_, mapping, _) = self.fit.filter(|(candidate, ..)| !candidate.whole)?;
        let bound = self.bound()?;
        let anchors = &mapping.anchors;
        let is_anchor = |param: ParamId| anchors.is_empty() || anchors.contains(&bound.params[param]);
        let mut paths: Vec<String> = bound
            .instances
            .iter()
            .filter(|instance| is_anchor(instance.param))
            .map(|instance| bound.modules[instance.module].clone())
            .collect();
        paths.dedup();
        paths.sort();
        paths.dedup();
        Some(fold_keys(paths.iter().map(String::as_str)))
    }

    /// Returns the names that no rule holds.
    fn unexplained(&self) -> Vec<String> {
        let Some(bound) = self.bound() else { return Vec::new() };
        fold_keys(bound.kept.iter().map(|(tensor, _)| self.catalog.tensors[*tensor].key.as_str()))
    }

    fn ties(&self) -> Vec<Vec<&str>> {
        let names =
            |group: Vec<usize>| group.into_iter().map(|at| self.catalog.tensors[at].key.as_str()).collect();
        self.catalog.ties().into_iter().map(names).collect()
    }

    fn dtypes(&self) -> Vec<(String, usize)> {
        let mut counts: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
        for tensor in &self.catalog.tensors {
            *counts.entry(tensor.dtype.to_string()).or_default() += 1;
        }
        counts.into_iter().collect()
    }

    fn bytes(&self) -> u64 {
        self.catalog.tensors.iter().map(|tensor| tensor.bytes()).sum()
    }

    fn files(&self) -> usize {
        // Tensors that lie in several parts are read from what stands for the folder.
        let files = self.catalog.files.iter().filter(|path| !path.is_dir());
        files.collect::<std::collections::BTreeSet<_>>().len()
    }

    fn picture(&self, source: SourceId, most: (usize, usize)) -> Option<Picture> {
        let (_, mapping, layout) = self.fit?;
        let bound = self.bound()?;
        let source = bound.sources.get(source.index())?;
        let seen = Seen::new(mapping, layout, bound, &source.reading);
        Some(draw(&seen, &self.catalog.tensors[source.tensor].shape, most))
    }

    fn drawing(&self, source: SourceId, width: usize, colour: bool) -> Vec<String> {
        // Two characters a cell, and the margins.
        let most = (24, (width.saturating_sub(10) / 2).clamp(8, 48));
        self.picture(source, most).map(|picture| picture.lines(colour)).unwrap_or_default()
    }

    /// Prints what the weights say of the layout that was found or named.
    fn evidence(&self, ui: &Ui) -> Result<(), Errors> {
        let Some(bound) = self.bound() else {
            ui.result("evidence: none without one layout whose sizes are known; name it with --from, sizes with --axis");
            return Ok(());
        };
        catch_interrupts();
        let bar = Bar::new(0, false);
        let found = examine(self.reader, bound, &Limits::default(), &bar)?;
        ui.result("evidence");
        found.lines().iter().for_each(|line| ui.result(&format!("  {line}")));
        Ok(())
    }
}
