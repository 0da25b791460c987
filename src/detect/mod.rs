//! What a checkpoint is: every known layout scored by names, shapes, config and what an earlier conversion recorded.
//!
//! Names are tried one of a kind at a time, so that a checkpoint of 100,000 tensors costs little more than one of 100.

mod prefer;
mod tell;

use std::ops::Range;

use indexmap::IndexMap;

use crate::bind::{Allow, BindOptions, Bound, Owners, bind, names_for_rules};
use crate::catalog::Catalog;
use crate::claims::{Claims, Standing};
use crate::diag::{BindCode, Collector};
use crate::fold::pattern;
use crate::identity::Identity;
use crate::mapping::key::Template;
use crate::mapping::names::Names;
use crate::mapping::{Layout, Mapping, Unmapped};
use prefer::{prefer_listed, prefer_most, prefer_special, unite};
use tell::told_by;
pub use tell::{apart, nearly_whole, only};

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
    /// Tensors that its rules hold.
    pub held: usize,
    /// Names that no rule holds, of each kind some.
    pub unexplained: Vec<String>,
    /// What the checkpoint's name for its model says of the layout.
    pub standing: Standing,
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
    /// Of the names that are tried, which its rules hold.
    taken: Vec<bool>,
    /// Whether any of the unexplained tensors belongs to a weight that it explains: a scale, an adapter.
    has_attached: bool,
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

    /// Says how much of the checkpoint it explains: `12 of 15 tensors`.
    pub fn coverage(&self) -> String {
        format!("{} of {} tensors", self.matched, self.total)
    }

    /// Returns patterns of the tensors that it does not explain, where it is a whole model's and explains all but a few
    /// kinds; none of them may belong to a weight that it does explain.
    fn all_but_few(&self) -> Option<Vec<String>> {
        const FEW: usize = 4;
        let is_other = matches!(self.standing, Standing::Elsewhere(_));
        let most = self.whole && explains_most(self.matched, self.total) && !self.has_attached && !is_other;
        let mut rest: Vec<String> =
            self.unexplained.iter().map(|name| pattern(name).replace('\0', "*")).collect();
        rest.sort();
        rest.dedup();
        (most && rest.len() <= FEW).then_some(rest)
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

/// What decides which layouts are asked, and how.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// The families; those of the user's files first.
    pub mappings: &'a [Mapping],
    /// Which of their layouts count.
    pub wanted: &'a dyn Fn(&Mapping, &Layout) -> bool,
    /// How the checkpoint is bound.
    pub options: &'a BindOptions,
    /// What the checkpoint records of itself, unless the caller overrules it.
    pub recorded: Option<&'a Identity>,
    /// Whether the caller vouches for a layout, whatever the checkpoint calls its model.
    pub trust_layout: bool,
}

/// A checkpoint whose layout is asked for, with the names that are tried.
#[derive(Debug)]
pub struct Detection<'a> {
    catalog: &'a Catalog,
    /// Of each kind of name some, kind by kind.
    names: Names<'a>,
    /// The tensor of each name.
    tensors: Vec<usize>,
    /// Of each kind of name how many tensors have it, and which of the names that are tried.
    kinds: Vec<(usize, Range<usize>)>,
    /// All tensors that are not left out.
    total: usize,
}

/// The names of a checkpoint's tensors as rules see them: prefixes stripped, and `None` for what is left out.
pub fn names_to_try(catalog: &Catalog, options: &BindOptions) -> Vec<Option<String>> {
    let names = names_for_rules(None, catalog, options, &mut Collector::default());
    let kept = |key: &str| {
        !options.drop.as_ref().is_some_and(|globs| globs.is_match(key))
            && options.only.as_ref().is_none_or(|globs| globs.is_match(key))
    };
    let named = catalog.tensors.iter().zip(names);
    named.map(|(tensor, name)| Some(name).filter(|_| kept(&tensor.key))).collect()
}

impl<'a> Detection<'a> {
    /// Sorts the names of a checkpoint by kind and picks those that are tried; `names` is what [`names_to_try`] returns.
    pub fn new(catalog: &'a Catalog, names: &'a [Option<String>]) -> Detection<'a> {
        let mut by_pattern: IndexMap<String, Vec<usize>> = IndexMap::default();
        for (at, name) in names.iter().enumerate() {
            if let Some(name) = name {
                by_pattern.entry(pattern(name)).or_default().push(at);
            }
        }
        let (mut picked, mut tensors, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        for members in by_pattern.values() {
            let first = picked.len();
            for &at in members.iter().step_by(members.len().div_ceil(SAMPLES)) {
                picked.extend(names[at].as_deref());
                tensors.push(at);
            }
            kinds.push((members.len(), first..picked.len()));
        }
        let total = names.iter().flatten().count();
        Detection { catalog, names: Names::new(picked), tensors, kinds, total }
    }

    /// Returns the names that are tried.
    pub fn names(&self) -> &Names<'a> {
        &self.names
    }

    /// Scores the layouts that are wanted and returns those that match any name: what fits first, then by how much they
    /// explain.
    ///
    /// Where a whole model fits, families of single modules, which fit parts of many models, are no longer candidates;
    /// of the others those fit that explain the most tensors. What the checkpoint calls its model decides among layouts
    /// that explain the same.
    pub fn candidates(&self, question: &Question<'_>) -> Vec<Candidate> {
        let mappings = question.mappings;
        let claims = &Claims::new(mappings);
        let scored = mappings.iter().flat_map(|mapping| {
            let layouts = mapping.layouts.values().filter(|layout| (question.wanted)(mapping, layout));
            layouts.filter_map(move |layout| {
                Some((mapping, layout, self.score(mapping, layout, question, claims)?))
            })
        });
        let mut scored: Vec<(&Mapping, &Layout, Candidate)> = scored.collect();
        let bind = |scored: &mut [(&Mapping, &Layout, Candidate)], whole: bool| {
            for (mapping, layout, candidate) in scored {
                if candidate.whole == whole && candidate.fits() {
                    candidate.bind(mapping, layout, self.catalog, question.options, question.recorded);
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
            let mut family: Vec<Candidate> =
                scored.extract_if(.., of_family).map(|(.., candidate)| candidate).collect();
            prefer_special(&mut family, mapping);
            candidates.extend(unite(family.into_iter()));
        }
        prefer_most(&mut candidates, &self.tensors);
        prefer_listed(&mut candidates);
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
        question: &Question<'_>,
        claims: &Claims<'_>,
    ) -> Option<Candidate> {
        let in_set = layout.is_file_set();
        let mut taken = vec![false; self.names.all().len()];
        let take = |taken: &mut [bool], template: &Template| {
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
        let (mut any, mut anchored) = (false, mapping.anchors.is_empty());
        for rule in &layout.rules {
            // A name that several rules match is the first one's.
            if take(&mut taken, &rule.template) {
                let params = rule.expr.params();
                anchored |= mapping.anchors.iter().any(|anchor| params.contains(&anchor.as_str()));
                any = true;
            }
        }
        if !any {
            return None;
        }
        let held = taken.clone();
        for template in &layout.ignore {
            take(&mut taken, template);
        }
        let name = format!("{}/{}", mapping.family, layout.name);
        let whole = mapping.unmapped == Unmapped::Error;
        let facts = question.options.provenance.of(layout);
        let broken = layout.when.iter().find(|one| facts.hold(std::slice::from_ref(one)) == Some(false));
        let guard = broken.map(|broken| match facts.get(&broken.key) {
            Some(fact) => format!("{} is {}", fact.place(), fact.value),
            None => format!("{} has no `{}`", facts.describes().unwrap_or("the config"), broken.key),
        });
        let standing = claims.standing(&mapping.family, layout, &facts);
        let recorded = question.recorded.is_some_and(|identity| identity.layout == name);
        let claimed = match &standing {
            Standing::Elsewhere(claim) if !recorded && !question.trust_layout => Some(claim.words()),
            _ => None,
        };
        let strangers: Vec<usize> = (0..taken.len()).filter(|at| !taken[*at]).collect();
        let stranger = strangers.first().filter(|_| whole);
        let stranger = stranger.map(|&at| format!("no rule holds `{}`", self.names.all()[at]));
        let unanchored = || (!anchored).then(|| "no attention module has such names".to_owned());
        let partial = || {
            let lacks = !whole && !self.holds_attention(layout, &held);
            lacks.then(|| {
                "no attention module is whole: its queries, keys or values have no such names".to_owned()
            })
        };
        let matched = self.count(&taken);
        let has_attached = explains_most(matched, self.total) && {
            let mut owners = Owners::new(mapping, layout);
            for at in (0..held.len()).filter(|at| held[*at]) {
                let name = self.names.all()[at];
                let (file, key) = layout.split_name(name);
                let captures = layout.rules.iter().find_map(|rule| rule.template.matches(file, key));
                captures.iter().for_each(|captures| owners.add(name, captures));
            }
            strangers.iter().any(|&at| owners.of(self.names.all()[at]).is_some())
        };
        let obstacle = guard.or(claimed).or(stranger).or_else(unanchored).or_else(partial);
        Some(Candidate {
            family: mapping.family.clone(),
            layout: layout.name.clone(),
            matched,
            held: self.count(&held),
            unexplained: strangers.iter().map(|&at| self.names.all()[at].to_owned()).collect(),
            standing,
            total: self.total,
            whole,
            recorded,
            told_by: told_by(layout),
            obstacle,
            same_as: Vec::new(),
            taken: held,
            has_attached,
            bound: None,
            open: Vec::new(),
        })
    }

    /// Returns how many tensors have names of the kinds that are taken.
    fn count(&self, taken: &[bool]) -> usize {
        let of_kind = |(count, samples): &(usize, Range<usize>)| {
            let hits = taken[samples.clone()].iter().filter(|taken| **taken).count();
            count * hits / samples.len().max(1)
        };
        self.kinds.iter().map(of_kind).sum()
    }

    /// Returns whether all products of an attention have their weights among the names that are held; a layout that does
    /// not say how it computes has no products to ask for.
    fn holds_attention(&self, layout: &Layout, held: &[bool]) -> bool {
        let has = |template: &Template| {
            let near = self.names.near(template, layout.is_file_set());
            near.iter().filter(|&&at| held[at]).any(|&at| {
                let (file, key) = layout.split_name(self.names.all()[at]);
                template.matches(file, key).is_some()
            })
        };
        layout.forwards.is_empty()
            || layout
                .forwards
                .values()
                .any(|forward| forward.products.iter().all(|product| has(&product.projection.weight)))
    }
}

/// Returns whether all but a few tensors are explained.
fn explains_most(matched: usize, total: usize) -> bool {
    matched < total && matched * 10 >= total * 8
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
        match all.iter().find(|diagnostic| diagnostic.code != BindCode::OpenSize) {
            Some(real) => {
                let tensor = real.tensors.first().map(|tensor| format!(" (`{tensor}`)")).unwrap_or_default();
                Unbound::Obstacle(format!("{}{tensor}", real.message))
            }
            None => Unbound::Open(all.iter().map(|diagnostic| diagnostic.message.clone()).collect()),
        }
    })
}
