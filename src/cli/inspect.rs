//! `qkvconv inspect SRC`: what a checkpoint is and holds.
//!
//! The JSON's fields are stable; version 1, where later versions may add fields:
//!
//! | field | holds |
//! |---|---|
//! | `version` | the version of these fields |
//! | `path`, `format`, `files` | what was opened: its path, the format of its files, how many they are |
//! | `tensors`, `bytes` | how many tensors, and what they take in bytes |
//! | `dtypes` | per type of elements the number of tensors |
//! | `layout` | `family/layout`; null where none, or not one alone, explains the checkpoint |
//! | `candidates` | up to 20 layouts: `layout`, whether it `fits`, whether the file `recorded` it, tensors `matched`, layouts that are the `same_as` it here, the `obstacle` in words, what it is `told_by` beside names and shapes, the sizes that are `open` |
//! | `modules` | the paths of a family of single modules, folded; null for whole models |
//! | `sizes` | per axis: `axis`, `size`, and its `origin` in words; null without a layout |
//! | `kinds` | tensors of one rule and shape: `names` with indices folded, `count`, `dtype`, `shape`, `dims` (per stored axis `name` and what it `holds` in words), `groups` in words or null, `parts` |
//! | `unexplained` | names that no rule holds, folded |
//! | `tied` | groups of names that are one and the same place |
//!
//! Of a part: `param`; how many `heads`, or null; `rotary`, null or its `axis`, its `style` (`half`, `interleaved`, `other`)
//! and its `pairs`: for each element of a head as stored the number of its pair, null for one that does not rotate (all null
//! where a size is open).
//!
//! With `--tensor` the document is that tensor's: `version`, `layout`, `tensor`, `dtype`, `shape`, `dims` and `groups` as
//! above, and `parts`, each with `places`: per head its `head` and its `runs`. With `--head` too it is a list, for each layout
//! of the family: `layout`, `tensor`, `part`, `head`, `ranges` in words, `runs`. Runs are, per stored axis, a list of
//! `[first, behind the last, step]`.

use std::path::PathBuf;

use clap::Args;
use indicatif::HumanBytes;
use qkvconv::bind::{BindOptions, Bound, ParamId, SourceId};
use qkvconv::catalog::Catalog;
use qkvconv::claims::Standing;
use qkvconv::convert::ConvertOptions;
use qkvconv::detect::{Candidate, apart, nearly_whole};
use qkvconv::diag::{Collector, Errors};
use qkvconv::evidence::{Limits, examine};
use qkvconv::fold::fold_keys;
use qkvconv::format::Reader;
use qkvconv::identity::Identity;
use qkvconv::inspect::{Kind, Part, Picture, Seen, draw, kinds, runs};
use qkvconv::mapping::forward::RotaryStyle;
use qkvconv::mapping::select::read_files;
use qkvconv::mapping::{Layout, Mapping};
use qkvconv::recognise::recognise;
use serde_json::{Value, json};

mod tensor;

use super::Exit;
use super::args::{MappingFiles, OpenAllow, OpenArgs, axis_size};
use super::progress::{Bar, catch_interrupts};
use super::source::{globs, open_options, read_mappings};
use super::ui::Ui;

/// How many kinds of tensors that nothing explains are named.
const STRANGERS: usize = 12;

/// How many names of one kind of tensors, modules and groups of tied tensors are told; the JSON has all.
const MOST_NAMED: usize = 12;

/// How many kinds of tensors are told; the JSON has all.
const MOST_KINDS: usize = 400;

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
            look.lines(args.picture, ui.width()).iter().for_each(|line| ui.result(line));
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
        let files: std::collections::BTreeSet<_> = self.catalog.files.iter().collect();
        files.len()
    }

    fn lines(&self, pictures: bool, width: usize) -> Vec<String> {
        let dtypes: Vec<String> =
            self.dtypes().iter().map(|(dtype, count)| format!("{count} {dtype}")).collect();
        let mut lines = vec![format!(
            "{}: {}, {} in {} tensors ({})",
            self.catalog.path.display(),
            self.reader.format(),
            HumanBytes(self.bytes()),
            self.catalog.tensors.len(),
            dtypes.join(", ")
        )];
        if self.files() > 1 {
            lines.push(format!("{} files", self.files()));
        }
        lines.extend(self.layout_lines());
        if let Some(modules) = self.modules() {
            lines.push(format!("modules: {}", some_of(&modules)));
        }
        if let Some(bound) = self.bound() {
            lines.push("sizes".to_owned());
            for size in &bound.sizes {
                let about = self
                    .fit
                    .and_then(|(_, mapping, _)| mapping.axes.get(&size.axis))
                    .map_or("", |axis| &axis.about);
                lines.push(format!("  {} = {}  {about}, from {}", size.axis, size.value, size.origin));
            }
        }
        lines.extend(self.kind_lines(pictures, width));
        let strangers = self.unexplained();
        if !strangers.is_empty() {
            lines.push("explained by no rule".to_owned());
            lines.extend(strangers.iter().take(STRANGERS).map(|name| format!("  {name}")));
            if strangers.len() > STRANGERS {
                lines.push(format!("  … and {} more kinds", strangers.len() - STRANGERS));
            }
        }
        let ties = self.ties();
        lines.extend(ties.iter().take(MOST_NAMED).map(|group| format!("tied: {}", group.join(" = "))));
        if ties.len() > MOST_NAMED {
            lines.push(format!("tied: … and {} more groups; --json names all", ties.len() - MOST_NAMED));
        }
        lines
    }

    fn layout_lines(&self) -> Vec<String> {
        let describe = |candidate: &Candidate| {
            let mut text = candidate.name();
            if !candidate.same_as.is_empty() {
                text.push_str(&format!(" (the same here as {})", candidate.same_as.join(", ")));
            }
            if candidate.recorded {
                text.push_str(", as the file records");
            }
            if candidate.bound.is_none() && candidate.fits() {
                text.push_str(&format!("; {}: give it with --axis or --config", candidate.open.join("; ")));
            }
            format!("{text}: {} of {} tensors", candidate.matched, candidate.total)
        };
        let fitting: Vec<&Candidate> = self.candidates.iter().filter(|candidate| candidate.fits()).collect();
        let unknown = fitting.iter().find_map(|candidate| match &candidate.standing {
            Standing::Unknown { model, place } => Some(format!("{place} = `{model}`, which no layout lists")),
            _ => None,
        });
        let mut lines = match (self.fit, &fitting[..]) {
            (Some((candidate, ..)), _) => {
                let mut lines = vec![format!("layout {}", describe(candidate))];
                if let Some((other, rest)) = nearly_whole(self.candidates).filter(|_| !candidate.whole) {
                    lines.push(format!("  {} explains all but {}", other.name(), rest.join(", ")));
                }
                lines
            }
            (None, []) => {
                let mut lines = vec!["layout: none that is known".to_owned()];
                for candidate in self.candidates.iter().take(3) {
                    let obstacle = candidate.obstacle.as_deref().unwrap_or_default();
                    lines.push(format!("  nearest {}; {obstacle}", describe(candidate)));
                }
                lines
            }
            (None, several) => {
                let mut lines = vec!["layout: one of these; say which with --from".to_owned()];
                lines.extend(several.iter().map(|candidate| format!("  {}", describe(candidate))));
                lines.extend(apart(several));
                lines
            }
        };
        lines.extend(unknown);
        lines
    }

    fn kind_lines(&self, pictures: bool, width: usize) -> Vec<String> {
        let mut lines = Vec::new();
        let kinds = self.kinds();
        if !kinds.is_empty() {
            lines.push("tensors".to_owned());
        }
        for kind in kinds.iter().take(MOST_KINDS) {
            lines.push(format!("  {}  {} {:?}", some_of(&kind.names), kind.dtype, kind.shape));
            lines.extend(kind.words().into_iter().map(|line| format!("      {line}")));
            let has_picture = pictures && kind.parts.iter().any(|part| part.head.is_some());
            if let Some(example) = kind.example.filter(|_| has_picture) {
                lines.extend(
                    self.drawing(example, width, false).into_iter().map(|line| format!("      {line}")),
                );
            }
        }
        if kinds.len() > MOST_KINDS {
            lines.push(format!("  … and {} more kinds; --json tells all", kinds.len() - MOST_KINDS));
        }
        lines
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

    fn json(&self) -> Value {
        let candidate = |candidate: &Candidate| {
            json!({
                "layout": candidate.name(), "fits": candidate.fits(), "recorded": candidate.recorded,
                "matched": candidate.matched, "same_as": candidate.same_as, "obstacle": candidate.obstacle,
                "told_by": candidate.told_by, "open": candidate.open,
            })
        };
        json!({
            "version": 1,
            "path": self.catalog.path.display().to_string(),
            "format": self.reader.format().name(),
            "files": self.files(),
            "tensors": self.catalog.tensors.len(),
            "bytes": self.bytes(),
            "dtypes": self.dtypes().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "layout": self.fit.map(|(candidate, ..)| candidate.name()),
            "candidates": self.candidates.iter().take(20).map(candidate).collect::<Vec<_>>(),
            "modules": self.modules(),
            "sizes": self.bound().map(|bound| {
                bound.sizes.iter().map(|size| json!({ "axis": size.axis, "size": size.value, "origin": size.origin }))
                    .collect::<Vec<_>>()
            }),
            "kinds": self.kinds().iter().map(kind_json).collect::<Vec<_>>(),
            "unexplained": self.unexplained(),
            "unread": self.catalog.unread.iter().map(|(name, reason)| {
                let mut value = json!(reason);
                value["name"] = json!(name);
                value
            }).collect::<Vec<_>>(),
            "tied": self.ties(),
        })
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

/// Lists names, of very many the first.
fn some_of(names: &[String]) -> String {
    match names.len().checked_sub(MOST_NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{}, … and {more} more; --json names all", names[..MOST_NAMED].join(", ")),
    }
}

fn kind_json(kind: &Kind) -> Value {
    json!({
        "names": kind.names, "count": kind.count, "dtype": kind.dtype.name(), "shape": kind.shape,
        "dims": kind.dims.iter().map(|(name, words)| json!({ "name": name, "holds": words })).collect::<Vec<_>>(),
        "groups": kind.groups,
        "parts": kind.parts.iter().map(part_json).collect::<Vec<_>>(),
    })
}

fn part_json(part: &Part) -> Value {
    json!({
        "param": part.param, "heads": part.heads,
        "rotary": part.rotary.as_ref().map(|rotary| {
            json!({
                "axis": rotary.axis,
                "style": match rotary.style {
                    Some(RotaryStyle::Half) => "half",
                    Some(RotaryStyle::Interleaved) => "interleaved",
                    None => "other",
                },
                "pairs": rotary.pairs,
            })
        }),
    })
}

/// Returns indices along each stored axis as runs: first, behind the last, step.
fn runs_json(place: &[Vec<u64>]) -> Value {
    let along = |indices: &Vec<u64>| json!(runs(indices));
    place.iter().map(along).collect()
}
