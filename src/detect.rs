//! What a checkpoint is: every known layout scored by names, shapes, config and what an earlier conversion recorded.
//!
//! Names are tried one of a kind at a time, so that a checkpoint of 100,000 tensors costs little more than one of 100.

use std::ops::Range;

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::bind::{Allow, BindOptions, Bound, bind};
use crate::catalog::Catalog;
use crate::diag::{Diagnostic, Errors};
use crate::fold::pattern;
use crate::identity::Identity;
use crate::mapping::key::Template;
use crate::mapping::names::Names;
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

    /// Binds the checkpoint to the layout and notes what comes of it.
    fn bind(
        &mut self,
        mapping: &Mapping,
        layout: &Layout,
        catalog: &Catalog,
        options: &BindOptions,
        recorded: Option<&Identity>,
    ) {
        match try_binding(mapping, layout, catalog, options, recorded) {
            Ok(bound) => self.bound = Some(Box::new(bound)),
            Err(Unbound::Open(sizes)) => self.open = sizes,
            Err(Unbound::Obstacle(obstacle)) => self.obstacle = Some(obstacle),
        }
    }
}

/// A checkpoint whose layout is asked for, with the names that are tried.
#[derive(Debug)]
pub struct Detection<'a> {
    catalog: &'a Catalog,
    /// Of each kind of name some, kind by kind.
    names: Names<'a>,
    /// Of each kind of name how many tensors have it, and which of the names that are tried.
    kinds: Vec<(usize, Range<usize>)>,
}

impl<'a> Detection<'a> {
    /// Sorts the names of a checkpoint by kind and picks those that are tried.
    pub fn new(catalog: &'a Catalog) -> Detection<'a> {
        let mut by_pattern: IndexMap<String, Vec<usize>, FxBuildHasher> = IndexMap::default();
        for (at, tensor) in catalog.tensors.iter().enumerate() {
            by_pattern.entry(pattern(&tensor.key)).or_default().push(at);
        }
        let (mut names, mut kinds) = (Vec::new(), Vec::new());
        for tensors in by_pattern.values() {
            let samples = tensors.iter().step_by(tensors.len().div_ceil(SAMPLES));
            let first = names.len();
            names.extend(samples.map(|&at| catalog.tensors[at].key.as_str()));
            kinds.push((tensors.len(), first..names.len()));
        }
        Detection { catalog, names: Names::new(names), kinds }
    }

    /// Returns the names that are tried.
    pub fn names(&self) -> &Names<'a> {
        &self.names
    }

    /// Scores the layouts that are `wanted` and returns those that match any name: what fits first, then by how much
    /// they explain.
    ///
    /// Where a whole model fits, families of single modules, which fit parts of many models, are no longer candidates.
    /// `recorded` is what the checkpoint records of itself, unless the caller overrules it.
    pub fn candidates(
        &self,
        mappings: &[Mapping],
        wanted: &dyn Fn(&Mapping, &Layout) -> bool,
        options: &BindOptions,
        recorded: Option<&Identity>,
    ) -> Vec<Candidate> {
        let scored = mappings.iter().flat_map(|mapping| {
            let layouts = mapping.layouts.values().filter(|layout| wanted(mapping, layout));
            layouts.filter_map(move |layout| {
                Some((mapping, layout, self.score(mapping, layout, options, recorded)?))
            })
        });
        let mut scored: Vec<(&Mapping, &Layout, Candidate)> = scored.collect();
        let bind = |scored: &mut [(&Mapping, &Layout, Candidate)], whole: bool| {
            for (mapping, layout, candidate) in scored {
                if candidate.whole == whole && candidate.fits() {
                    candidate.bind(mapping, layout, self.catalog, options, recorded);
                }
            }
        };
        bind(&mut scored, true);
        if scored.iter().any(|(.., candidate)| candidate.fits() && candidate.whole) {
            scored.retain(|(.., candidate)| candidate.whole || candidate.recorded);
        }
        bind(&mut scored, false);
        let mut candidates: Vec<Candidate> = Vec::new();
        for mapping in mappings {
            let of_family = |scored: &mut (&Mapping, &Layout, Candidate)| std::ptr::eq(scored.0, mapping);
            candidates.extend(unite(scored.extract_if(.., of_family).map(|(.., candidate)| candidate)));
        }
        prefer_named(&mut candidates, mappings, options);
        candidates.sort_by_key(|candidate| {
            (!candidate.recorded, !candidate.fits(), !candidate.whole, candidate.total - candidate.matched)
        });
        candidates
    }

    /// Tries the names on a layout; `None` where its rules match none.
    fn score(
        &self,
        mapping: &Mapping,
        layout: &Layout,
        options: &BindOptions,
        recorded: Option<&Identity>,
    ) -> Option<Candidate> {
        let in_set = layout.is_file_set();
        let mut taken = vec![false; self.names.all().len()];
        let mut take = |template: &Template| {
            let mut found = false;
            for &at in self.names.near(template, in_set) {
                if !taken[at] {
                    let (file, key) = layout.split_name(self.names.all()[at]);
                    taken[at] = template.matches(file, key).is_some();
                    found |= taken[at];
                }
            }
            found
        };
        let (mut held, mut anchored) = (false, mapping.anchors.is_empty());
        for rule in &layout.rules {
            // A name that several rules match is the first one's.
            if take(&rule.template) {
                let params = rule.expr.params();
                anchored |= mapping.anchors.iter().any(|anchor| params.contains(&anchor.as_str()));
                held = true;
            }
        }
        if !held {
            return None;
        }
        for template in &layout.ignore {
            take(template);
        }
        let matched = self.kinds.iter().map(|(count, samples)| {
            let hits = taken[samples.clone()].iter().filter(|taken| **taken).count();
            count * hits / samples.len().max(1)
        });
        let name = format!("{}/{}", mapping.family, layout.name);
        let whole = mapping.unmapped == Unmapped::Error;
        let guard = options.config.as_ref().and_then(|config| {
            let broken = layout.when.iter().find(|condition| !condition.holds(config.get(&condition.key)))?;
            Some(format!("{} says another `{}`", config.name, broken.key))
        });
        let stranger = taken.iter().position(|taken| !taken).filter(|_| whole);
        let obstacle = match (guard, stranger) {
            (Some(guard), _) => Some(guard),
            (None, Some(at)) => Some(format!("no rule holds `{}`", self.names.all()[at])),
            (None, None) => (!anchored).then(|| "no attention module has such names".to_owned()),
        };
        Some(Candidate {
            family: mapping.family.clone(),
            layout: layout.name.clone(),
            matched: matched.sum(),
            total: self.catalog.tensors.len(),
            whole,
            recorded: recorded.is_some_and(|identity| identity.layout == name),
            told_by: told_by(layout),
            obstacle,
            same_as: Vec::new(),
            bound: None,
            open: Vec::new(),
        })
    }
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
fn unite(candidates: impl Iterator<Item = Candidate>) -> Vec<Candidate> {
    let mut kept: Vec<Candidate> = Vec::new();
    for mut candidate in candidates {
        let twin = kept.iter_mut().find(|other| other.fits() && candidate.fits() && same(other, &candidate));
        match twin {
            Some(twin) if candidate.recorded && !twin.recorded => {
                candidate.same_as = std::mem::take(&mut twin.same_as);
                candidate.same_as.push(twin.layout.clone());
                *twin = candidate;
            }
            Some(twin) => twin.same_as.push(candidate.layout),
            None => kept.push(candidate),
        }
    }
    kept
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
