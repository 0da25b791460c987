//! What a checkpoint is: every known layout scored by names, shapes, config and what an earlier conversion recorded.
//!
//! Names are tried one of a kind at a time, so that a checkpoint of 100,000 tensors costs little more than one of 100.

use indexmap::IndexMap;

use crate::bind::{Allow, BindOptions, Bound, bind};
use crate::catalog::Catalog;
use crate::diag::{Diagnostic, Errors};
use crate::fold::pattern;
use crate::identity::Identity;
use crate::mapping::{Layout, Mapping, Unmapped};

/// How many names of one pattern are tried.
const SAMPLES: usize = 8;

/// A layout that explains some of a checkpoint's names.
#[derive(Debug)]
pub struct Candidate {
    /// The family.
    pub family: String,
    /// The layout.
    pub layout: String,
    /// Tensors that its rules hold, or that it ignores; of each kind of name only some were tried.
    pub matched: usize,
    /// All tensors.
    pub total: usize,
    /// Whether the family describes whole models, so that it has to explain every tensor.
    pub whole: bool,
    /// Whether the file records this layout.
    pub recorded: bool,
    /// What tells that a checkpoint has this layout where names and shapes do not, in words.
    pub told_by: Vec<String>,
    /// Why it does not fit, in words; `None` where it does.
    pub obstacle: Option<String>,
    /// Other layouts of the family that hold exactly the same in the same places: nothing in this checkpoint tells them
    /// apart, and nothing has to.
    pub same_as: Vec<String>,
    /// The checkpoint bound to it, where it fits and all sizes are known.
    pub bound: Option<Box<Bound>>,
    /// What is open where it fits and is not bound, in words: each size that nothing tells.
    pub open: Vec<String>,
}

impl Candidate {
    /// Returns `family/layout`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.family, self.layout)
    }

    /// Returns whether it explains the checkpoint.
    pub fn fits(&self) -> bool {
        self.obstacle.is_none()
    }
}

/// Scores all layouts and returns those that match any name: what fits first, then by how much they explain.
///
/// Where a whole model fits, families of single modules, which fit parts of many models, are no longer candidates.
/// `recorded` is what the checkpoint records of itself, unless the caller overrules it.
pub fn detect(
    mappings: &[Mapping],
    catalog: &Catalog,
    options: &BindOptions,
    recorded: Option<&Identity>,
) -> Vec<Candidate> {
    let mut kinds: IndexMap<String, Vec<usize>> = IndexMap::new();
    for (at, tensor) in catalog.tensors.iter().enumerate() {
        kinds.entry(pattern(&tensor.key)).or_default().push(at);
    }
    let mut candidates: Vec<Candidate> = Vec::new();
    for mapping in mappings {
        let mut of_family: Vec<Candidate> = mapping
            .layouts
            .values()
            .filter_map(|layout| score(mapping, layout, &kinds, catalog, options, recorded))
            .collect();
        unite(&mut of_family);
        candidates.append(&mut of_family);
    }
    if candidates.iter().any(|candidate| candidate.fits() && candidate.whole) {
        candidates.retain(|candidate| candidate.whole || candidate.recorded);
    }
    prefer_named(&mut candidates, mappings, options);
    candidates.sort_by_key(|candidate| {
        (!candidate.recorded, !candidate.fits(), !candidate.whole, candidate.total - candidate.matched)
    });
    candidates
}

/// Returns the one layout that a checkpoint has.
///
/// # Errors
/// Returns `detect/none` where nothing fits, and `detect/several` with what would tell them apart.
pub fn only<'a>(candidates: &'a [Candidate], catalog: &Catalog) -> Result<&'a Candidate, Errors> {
    let fitting: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.fits()).collect();
    match fitting[..] {
        [one] => Ok(one),
        [first, ..] if first.recorded => Ok(first),
        [] => {
            let diagnostic = Diagnostic::error("detect/none", "no known layout explains the checkpoint")
                .file(&catalog.path);
            let nearest: Vec<String> = candidates
                .iter()
                .take(3)
                .map(|candidate| {
                    let obstacle = candidate.obstacle.as_deref().unwrap_or_default();
                    let (matched, total) = (candidate.matched, candidate.total);
                    format!("{} ({matched} of {total} tensors; {obstacle})", candidate.name())
                })
                .collect();
            let diagnostic = match nearest.is_empty() {
                true => diagnostic.found("no rule of any layout matches a name"),
                false => diagnostic.found(format!("nearest: {}", nearest.join("; "))),
            };
            Err(diagnostic.help("name the layout with --from, or write a mapping file for it").into())
        }
        _ => {
            let names: Vec<String> = fitting.iter().map(|candidate| candidate.name()).collect();
            let message = "several layouts explain the checkpoint, and nothing in it tells them apart";
            let diagnostic = Diagnostic::error("detect/several", message).file(&catalog.path);
            let diagnostic = diagnostic.found(names.join(", ")).help(format!(
                "{}; say which with --from, as in --from {}",
                apart(&fitting).join("; "),
                names[0]
            ));
            Err(diagnostic.into())
        }
    }
}

/// Returns what would tell fitting layouts apart, in words: at least one line.
pub fn apart(fitting: &[&Candidate]) -> Vec<String> {
    let mut lines = Vec::new();
    for candidate in fitting {
        let own = |text: &&String| !fitting.iter().all(|other| other.told_by.contains(*text));
        let told: Vec<&str> = candidate.told_by.iter().filter(own).map(String::as_str).collect();
        if !told.is_empty() {
            lines.push(format!("{} is told by {}", candidate.name(), told.join(" and ")));
        }
    }
    let bare: Vec<String> = fitting
        .iter()
        .filter(|candidate| candidate.told_by.is_empty())
        .map(|candidate| format!("`qkvconv inspect --evidence --from {}`", candidate.name()))
        .collect();
    if lines.len() < 2 && !bare.is_empty() {
        lines.push(format!(
            "they name and shape all tensors alike; trained weights may tell: compare {}",
            bare.join(" and ")
        ));
    }
    if lines.is_empty() {
        lines.push("no config tells them apart".to_owned());
    }
    lines
}

/// Returns what tells a layout beside names and shapes.
fn told_by(layout: &Layout) -> Vec<String> {
    let mut told = Vec::new();
    if !layout.models.is_empty() {
        let models: Vec<String> = layout.models.iter().map(|name| format!("`{name}`")).collect();
        told.push(format!("a config whose `model_type` is {}", models.join(" or ")));
    }
    for condition in &layout.when {
        told.push(format!("a config whose `{}` is {}", condition.key, condition.allowed_words()));
    }
    told
}

/// Where the config names the model and a fitting layout says that its models are called so, the others do not fit.
fn prefer_named(candidates: &mut [Candidate], mappings: &[Mapping], options: &BindOptions) {
    let model = options.config.as_ref().and_then(|config| config.get("model_type")?.as_str());
    let Some(model) = model else { return };
    let names = |candidate: &Candidate| {
        let mapping = mappings.iter().find(|mapping| mapping.family == candidate.family);
        let layouts = std::iter::once(&candidate.layout).chain(&candidate.same_as);
        let mut models =
            layouts.filter_map(|name| mapping?.layouts.get(name)).flat_map(|layout| &layout.models);
        models.any(|name| name == model)
    };
    if !candidates.iter().any(|candidate| candidate.fits() && names(candidate)) {
        return;
    }
    for candidate in candidates.iter_mut().filter(|candidate| candidate.fits()) {
        if !names(candidate) {
            candidate.obstacle = Some(format!("the config says that the model is a `{model}`"));
        }
    }
}

fn score(
    mapping: &Mapping,
    layout: &Layout,
    kinds: &IndexMap<String, Vec<usize>>,
    catalog: &Catalog,
    options: &BindOptions,
    recorded: Option<&Identity>,
) -> Option<Candidate> {
    let mut matched = 0;
    let mut anchored = mapping.anchors.is_empty();
    let mut held = 0;
    let mut stranger = None;
    for tensors in kinds.values() {
        let step = tensors.len().div_ceil(SAMPLES);
        let samples: Vec<usize> = tensors.iter().copied().step_by(step).collect();
        let mut hits = 0;
        for &tensor in &samples {
            let name = catalog.tensors[tensor].key.as_str();
            let (file, key) = layout.split_name(name);
            let rule = layout.rules.iter().find(|rule| rule.template.matches(file, key).is_some());
            if let Some(rule) = rule {
                let params = rule.expr.params();
                anchored |= mapping.anchors.iter().any(|anchor| params.contains(&anchor.as_str()));
                hits += 1;
                held += 1;
            } else if layout.ignore.iter().any(|template| template.matches(file, key).is_some()) {
                hits += 1;
            } else {
                stranger.get_or_insert(name);
            }
        }
        matched += tensors.len() * hits / samples.len().max(1);
    }
    if held == 0 {
        return None;
    }
    let name = format!("{}/{}", mapping.family, layout.name);
    let mut candidate = Candidate {
        family: mapping.family.clone(),
        layout: layout.name.clone(),
        matched,
        total: catalog.tensors.len(),
        whole: mapping.unmapped == Unmapped::Error,
        recorded: recorded.is_some_and(|identity| identity.layout == name),
        told_by: told_by(layout),
        obstacle: None,
        same_as: Vec::new(),
        bound: None,
        open: Vec::new(),
    };
    let guard = options.config.as_ref().and_then(|config| {
        let broken = layout.when.iter().find(|condition| !condition.holds(config.get(&condition.key)))?;
        Some(format!("{} says another `{}`", config.name, broken.key))
    });
    candidate.obstacle = match (guard, stranger) {
        (Some(guard), _) => Some(guard),
        (None, Some(stranger)) if candidate.whole => Some(format!("no rule holds `{stranger}`")),
        (None, _) if !anchored => Some("no attention module has such names".to_owned()),
        (None, _) => match try_binding(mapping, layout, catalog, options, recorded) {
            Ok(bound) => {
                candidate.bound = Some(Box::new(bound));
                None
            }
            Err(Unbound::Open(sizes)) => {
                candidate.open = sizes;
                None
            }
            Err(Unbound::Obstacle(obstacle)) => Some(obstacle),
        },
    };
    Some(candidate)
}

/// Why a checkpoint is not bound.
enum Unbound {
    /// It contradicts the layout.
    Obstacle(String),
    /// Sizes that nothing tells: a question to the user, not a contradiction.
    Open(Vec<String>),
}

/// Binds the checkpoint to the layout, as source and as target.
fn try_binding(
    mapping: &Mapping,
    layout: &Layout,
    catalog: &Catalog,
    options: &BindOptions,
    recorded: Option<&Identity>,
) -> Result<Bound, Unbound> {
    let mut options = options.clone();
    options.allow.push(Allow::MissingConfig);
    if let Some(identity) = recorded {
        options.recorded = identity.sizes.clone().into_iter().collect();
    }
    bind(mapping, layout, layout, catalog, &options).map_err(|errors| {
        let all = errors.diagnostics();
        match all.iter().find(|diagnostic| diagnostic.code != "bind/open-size") {
            Some(real) => {
                let tensor = real.tensors.first().map(|tensor| format!(" (`{tensor}`)")).unwrap_or_default();
                Unbound::Obstacle(format!("{}{tensor}", real.message))
            }
            None => Unbound::Open(all.iter().map(|diagnostic| diagnostic.message.clone()).collect()),
        }
    })
}

/// Makes one candidate of the fitting layouts of a family that hold the same in the same places.
fn unite(candidates: &mut Vec<Candidate>) {
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in candidates.drain(..) {
        let twin = kept.iter_mut().find(|other| other.fits() && candidate.fits() && same(other, &candidate));
        match twin {
            Some(twin) if candidate.recorded && !twin.recorded => {
                let mut candidate = candidate;
                candidate.same_as = std::mem::take(&mut twin.same_as);
                candidate.same_as.push(twin.layout.clone());
                *twin = candidate;
            }
            Some(twin) => twin.same_as.push(candidate.layout),
            None => kept.push(candidate),
        }
    }
    *candidates = kept;
}

fn same(a: &Candidate, b: &Candidate) -> bool {
    let (Some(a), Some(b)) = (&a.bound, &b.bound) else { return false };
    let instance = |bound: &Bound, at: usize| {
        let info = &bound.instances[at];
        (info.param, bound.modules[info.module].clone())
    };
    a.sources.len() == b.sources.len()
        && a.sources.iter().zip(&b.sources).all(|(x, y)| {
            x.tensor == y.tensor
                && x.affine == y.affine
                && x.blocks == y.blocks
                && x.instances.len() == y.instances.len()
                && x.instances.iter().zip(&y.instances).all(|(i, j)| instance(a, i.1) == instance(b, j.1))
        })
}
