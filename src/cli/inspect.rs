//! `qkvconv inspect SRC`: what a checkpoint is and holds.

use std::path::PathBuf;

use clap::Args;
use indicatif::HumanBytes;
use qkvconv::bind::{BindOptions, Bound, bind};
use qkvconv::catalog::Catalog;
use qkvconv::convert::ConvertOptions;
use qkvconv::detect::{Candidate, apart, only};
use qkvconv::diag::{Diagnostic, Errors};
use qkvconv::evidence::{Limits, examine};
use qkvconv::fold::fold_keys;
use qkvconv::format::Reader;
use qkvconv::inspect::{Kind, Picture, Seen, draw, kinds, letter, ranges};
use qkvconv::mapping::select::all;
use qkvconv::mapping::{Layout, Mapping};
use serde_json::{Value, json};

use super::Exit;
use super::args::{MappingFiles, OpenArgs, axis_size};
use super::progress::{Bar, catch_interrupts};
use super::source::{config, open_options, read_mappings, recognise};
use super::ui::Ui;

/// How many kinds of tensors that nothing explains are named.
const STRANGERS: usize = 12;

/// What to look at.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qkvconv inspect model.safetensors
  qkvconv inspect --tensor encoder.layers.0.self_attn.in_proj_weight --head 3 --part k --axis h=4 model.safetensors
  qkvconv inspect --json pytorch_model.bin | jq .layout")]
pub(super) struct InspectArgs {
    /// The checkpoint: a file in any of the formats, an index, a prefix or a folder.
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// The layout, where it is known; without it every layout is tried. Example: --from attention/pytorch-fused
    #[arg(long, value_name = "LAYOUT")]
    from: Option<String>,

    #[command(flatten)]
    files: MappingFiles,

    #[command(flatten)]
    open: OpenArgs,

    /// The size of an axis; may be given several times. Example: --axis h=12
    #[arg(long = "axis", value_name = "AXIS=SIZE", value_parser = axis_size)]
    axes: Vec<(String, u64)>,

    /// The config; without it config.json or params.json beside the checkpoint is read. Example: --config config.json
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Look at one tensor: what it holds, with a picture. Example: --tensor h.0.attn.c_attn.weight
    #[arg(long, value_name = "KEY")]
    tensor: Option<String>,

    /// Of that tensor, one head: where it lies, here and in the other layouts of the family. Example: --head 3
    #[arg(long, value_name = "N", requires = "tensor")]
    head: Option<u64>,

    /// Of that tensor, one part, where it holds several. Example: --part k
    #[arg(long, value_name = "PART", requires = "tensor")]
    part: Option<String>,

    /// Draw every kind of tensor that holds heads. Example: --picture
    #[arg(long)]
    picture: bool,

    /// Write the picture of --tensor as SVG. Example: --svg in_proj.svg
    #[arg(long, value_name = "FILE", requires = "tensor")]
    svg: Option<PathBuf>,

    /// Weigh what the numbers themselves say for or against the layout; reads a bounded sample. Example: --evidence
    #[arg(long, conflicts_with_all = ["tensor", "json"])]
    evidence: bool,

    /// Let --axis overrule the sizes that the file records, and look for other layouts. Example: --trust-layout
    #[arg(long)]
    trust_layout: bool,

    /// Print a JSON document: format, tensors, bytes, dtypes, layout, candidates, sizes, kinds, unexplained, tied. Example: --json
    #[arg(long)]
    json: bool,

    /// Allow what is an error otherwise. Example: --allow outside-link
    #[arg(long, value_name = "WHAT", value_parser = ["outside-link"])]
    allow: Vec<String>,
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
    let mappings = all(&read_mappings(&args.files)?)?;
    let mut errors = qkvconv::diag::Collector::default();
    let config = config(args.config.as_deref(), &args.source, "config.json", &mut errors);
    errors.finish(())?;
    let options = BindOptions { axes: args.axes.clone(), config, ..BindOptions::default() };
    let mut chosen = mappings.clone();
    if let Some(wanted) = &args.from {
        for Mapping { family, layouts, .. } in &mut chosen {
            layouts.retain(|name, _| wanted == name || *wanted == format!("{family}/{name}"));
        }
    }
    let open = open_options(&args.open, !args.allow.is_empty());
    let trust_layout = args.trust_layout;
    let looking = ConvertOptions { open, bind: options.clone(), trust_layout, ..ConvertOptions::default() };
    let (reader, candidates) = recognise(&chosen, &args.source, &looking)?;
    let catalog = reader.catalog();
    let fit = only(&candidates, catalog).ok().and_then(|candidate| {
        let mapping = mappings.iter().find(|mapping| mapping.family == candidate.family)?;
        Some((candidate, mapping, mapping.layouts.get(&candidate.layout)?))
    });
    let look = Look { reader: reader.as_ref(), catalog, candidates: &candidates, fit };
    ui.warn(&catalog.warnings);
    match &args.tensor {
        Some(key) => look.tensor(ui, args, key, &options),
        None if args.json => {
            ui.result(&format!("{:#}", look.json()));
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
        for group in self.ties() {
            lines.push(format!("tied: {}", group.join(" = ")));
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
        match (self.fit, &fitting[..]) {
            (Some((candidate, ..)), _) => vec![format!("layout {}", describe(candidate))],
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
        }
    }

    fn kind_lines(&self, pictures: bool, width: usize) -> Vec<String> {
        let mut lines = Vec::new();
        let kinds = self.kinds();
        if !kinds.is_empty() {
            lines.push("tensors".to_owned());
        }
        for kind in &kinds {
            lines.push(format!("  {}  {} {:?}", kind.names.join(", "), kind.dtype, kind.shape));
            lines.extend(kind_words(kind).into_iter().map(|line| format!("      {line}")));
            if pictures && kind.parts.iter().any(|part| part.head.is_some()) {
                lines.extend(
                    self.drawing(kind.example, width, false).into_iter().map(|line| format!("      {line}")),
                );
            }
        }
        lines
    }

    fn picture(&self, source: usize, most: (usize, usize)) -> Option<Picture> {
        let (_, mapping, layout) = self.fit?;
        let bound = self.bound()?;
        let source = bound.sources.get(source)?;
        let seen = Seen::new(mapping, layout, bound, &source.reading);
        Some(draw(mapping, &seen, &self.catalog.tensors[source.tensor].shape, most))
    }

    fn drawing(&self, source: usize, width: usize, colour: bool) -> Vec<String> {
        let most = (24, (width.saturating_sub(8) / 2).clamp(8, 48));
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
            "sizes": self.bound().map(|bound| {
                bound.sizes.iter().map(|size| json!({ "axis": size.axis, "size": size.value, "origin": size.origin }))
                    .collect::<Vec<_>>()
            }),
            "kinds": self.kinds().iter().map(kind_json).collect::<Vec<_>>(),
            "unexplained": self.unexplained(),
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

    /// Looks at one tensor.
    fn tensor(&self, ui: &Ui, args: &InspectArgs, key: &str, options: &BindOptions) -> Result<(), Errors> {
        let fail = |message: String| {
            Errors::from(Diagnostic::error("inspect/tensor", message).file(&self.catalog.path).tensor(key))
        };
        let Some(at) = self.catalog.find(key) else {
            return Err(fail("there is no tensor of that name".to_owned()));
        };
        let tensor = &self.catalog.tensors[at];
        let (candidate, mapping, _) = match self.fit {
            Some(fit) => fit,
            None => {
                return Err(only(self.candidates, self.catalog)
                    .err()
                    .unwrap_or_else(|| fail("nothing explains it".to_owned())));
            }
        };
        let Some(bound) = &candidate.bound else {
            return Err(fail(format!("{}: give it with --axis or --config", candidate.open.join("; "))));
        };
        let Some(number) = bound.sources.iter().position(|source| source.tensor == at) else {
            return Err(fail(format!("no rule of {} holds it", candidate.name())));
        };
        let source = &bound.sources[number];
        let params: Vec<&str> =
            source.instances.iter().map(|(param, _)| bound.params[*param].as_str()).collect();
        let chosen: Vec<&str> = match &args.part {
            None => params.clone(),
            Some(part) => params
                .iter()
                .copied()
                .filter(|param| param == part || letter(param).to_string() == *part)
                .collect(),
        };
        if chosen.is_empty() {
            return Err(fail(format!("it has no such part; it holds {}", params.join(", "))));
        }
        let Some(head) = args.head else {
            let kind = self.kinds().into_iter().find(|kind| {
                bound.sources[kind.example].reading.rule == source.reading.rule && kind.shape == tensor.shape
            });
            ui.result(&format!("{key}  {} {:?}  {}", tensor.dtype, tensor.shape, candidate.name()));
            kind.iter().flat_map(kind_words).for_each(|line| ui.result(&format!("  {line}")));
            self.drawing(number, ui.width(), ui.is_coloured())
                .iter()
                .for_each(|line| ui.result(&format!("  {line}")));
            return self.svg(args, number, key);
        };
        let mut found = Vec::new();
        for layout in mapping.layouts.values() {
            found.extend(in_layout(
                mapping,
                layout,
                self,
                (candidate, source.tensor),
                &chosen,
                head,
                options,
            ));
        }
        if found.is_empty() {
            return Err(fail(format!("it has no head {head}")));
        }
        if args.json {
            let entry = |(layout, key, param, place): &Found| {
                let ranges: Vec<String> = place.iter().map(|indices| ranges(indices)).collect();
                json!({ "layout": layout, "tensor": key, "part": param, "head": head, "ranges": ranges })
            };
            ui.result(&format!("{:#}", Value::Array(found.iter().map(entry).collect())));
        } else {
            for (layout, key, param, place) in &found {
                let ranges: Vec<String> =
                    place.iter().map(|indices| format!("[{}]", ranges(indices))).collect();
                ui.result(&format!("{layout}  {param} head {head}: {key} {}", ranges.join(" ")));
            }
        }
        self.svg(args, number, key)
    }

    fn svg(&self, args: &InspectArgs, source: usize, key: &str) -> Result<(), Errors> {
        let (Some(path), Some(picture)) = (&args.svg, self.picture(source, (48, 64))) else { return Ok(()) };
        std::fs::write(path, picture.svg(key))
            .map_err(|error| qkvconv::exec::publish::io_error(path, "write the picture", &error).into())
    }
}

/// A layout, a tensor's name, a parameter, and where the head lies.
type Found = (String, String, String, Vec<Vec<u64>>);

/// Finds a head of some parameters in another layout of the family.
fn in_layout(
    mapping: &Mapping,
    layout: &Layout,
    look: &Look<'_>,
    (candidate, tensor): (&Candidate, usize),
    params: &[&str],
    head: u64,
    options: &BindOptions,
) -> Vec<Found> {
    let Some(own) = mapping.layouts.get(&candidate.layout) else { return Vec::new() };
    let mut options = options.clone();
    options.allow.push(qkvconv::bind::Allow::MissingConfig);
    let Ok(bound) = bind(mapping, own, layout, look.catalog, &options) else { return Vec::new() };
    let Some(source) = bound.sources.iter().find(|source| source.tensor == tensor) else { return Vec::new() };
    let mut found = Vec::new();
    for target in &bound.targets {
        for (param, instance) in &target.instances {
            let name = bound.params[*param].as_str();
            // Of the same layer and module alone.
            if !params.contains(&name) || !source.instances.contains(&(*param, *instance)) {
                continue;
            }
            let seen = Seen::new(mapping, layout, &bound, &target.reading);
            if let Some(place) = seen.head(&target.shape, name, head) {
                found.push((
                    format!("{}/{}", mapping.family, layout.name),
                    target.key.clone(),
                    name.to_owned(),
                    place,
                ));
            }
        }
    }
    found
}

/// Tells what a kind of tensor holds.
fn kind_words(kind: &Kind) -> Vec<String> {
    let dims: Vec<String> = kind.dims.iter().map(|(name, words)| format!("{name}: {words}")).collect();
    let mut lines = vec![dims.join("; ")];
    for part in &kind.parts {
        if let Some((head, place)) = &part.head {
            let places: Vec<String> = kind
                .dims
                .iter()
                .zip(place)
                .map(|((name, _), indices)| format!("{name} {}", ranges(indices)))
                .collect();
            lines.push(format!("{} head {head}: {}", part.param, places.join(", ")));
        }
    }
    lines
}

fn kind_json(kind: &Kind) -> Value {
    json!({
        "names": kind.names, "count": kind.count, "dtype": kind.dtype.name(), "shape": kind.shape,
        "dims": kind.dims.iter().map(|(name, words)| json!({ "name": name, "holds": words })).collect::<Vec<_>>(),
        "parts": kind.parts.iter().map(|part| json!({ "param": part.param, "heads": part.heads })).collect::<Vec<_>>(),
    })
}
