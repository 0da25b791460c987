//! Every stored tensor to its rule.

use globset::GlobSet;
use std::collections::{BTreeSet, HashMap, HashSet};

use indexmap::IndexMap;
use smallvec::SmallVec;

use super::attachment::Owners;
use super::ids::{ModuleId, ParamId};
use super::names::names_for_rules;
use super::options::{Allow, BindOptions, Tied};
use super::pair::Pair;
use super::unmatched::{
    condition_of_rule, nearest_rule, nothing_matched, unheld, unmatched_attachment, unmatched_tensor,
};
use super::{DropReason, Dropped};
use crate::catalog::Catalog;
use crate::diag::{BindCode, Collector, Diagnostic};
use crate::fold::{fold_keys, pattern};
use crate::mapping::key::{Captures, Paths, Template};
use crate::mapping::{Layout, Mapping, Unmapped};

/// A stored tensor and the rule that matches it.
#[derive(Clone, Debug)]
pub(crate) struct Matched {
    pub(crate) tensor: usize,
    pub(crate) rule: usize,
    /// The module, an index into [`Keys::modules`].
    pub(crate) module: ModuleId,
    pub(crate) captures: Captures,
}

/// All names of a checkpoint, sorted out.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) matched: Vec<Matched>,
    /// Captured paths of each module.
    pub(crate) modules: Vec<Paths>,
    /// Tensors that pass through, with their new names.
    pub(crate) kept: Vec<(usize, String)>,
    /// Those among [`Keys::kept`] that both layouts compute from the config.
    pub(crate) computed: Vec<(usize, String)>,
    pub(crate) dropped: Vec<Dropped>,
    /// Tensors that are left out because another one that is kept is the same, which stands second.
    pub(crate) tied: Vec<(usize, usize)>,
    /// The name of each tensor as rules see it.
    pub(crate) names: Vec<String>,
    /// The modules that `--modules` leaves as they are.
    pub(crate) left: Vec<String>,
}

impl Keys {
    /// Returns the ids of all modules.
    pub(super) fn module_ids(&self) -> impl Iterator<Item = ModuleId> + use<> {
        (0..self.modules.len()).map(ModuleId::new)
    }

    /// Returns the tensors that rules hold, each with its name, for what may belong to them; their numbers are those of
    /// [`Keys::matched`].
    pub(crate) fn owners<'a>(&'a self, pair: &Pair<'a>) -> Owners<'a> {
        owners(pair.mapping, pair.source, &self.matched, &self.names)
    }
}

fn owners<'a>(
    mapping: &'a Mapping,
    layout: &'a Layout,
    matched: &[Matched],
    names: &'a [String],
) -> Owners<'a> {
    let mut owners = Owners::new(mapping, layout);
    matched.iter().for_each(|matched| owners.add(&names[matched.tensor], &matched.captures));
    owners
}

/// Writes a module's captured paths, with dots.
pub(crate) fn path_text(paths: &Paths) -> String {
    segments(paths).join(".")
}

/// Returns the segments of a module's captured paths.
pub(crate) fn segments(paths: &Paths) -> Vec<&str> {
    paths.iter().flat_map(|(_, segments)| segments.iter()).map(String::as_str).collect()
}

pub(crate) fn sort_out(
    pair: &Pair<'_>,
    catalog: &Catalog,
    options: &BindOptions,
    errors: &mut Collector,
) -> Keys {
    let (mapping, layout) = (pair.mapping, pair.source);
    let mut keys = Keys::default();
    let mut modules: IndexMap<Paths, ModuleId> = IndexMap::new();
    let mut unmatched: Vec<(usize, String)> = Vec::new();
    let names = names_for_rules(Some(layout), catalog, options, errors);
    let facts = options.provenance.of(layout);
    let active: Vec<bool> = layout.rules.iter().map(|rule| facts.hold(&rule.when).unwrap_or(true)).collect();
    let uncaptured: Vec<_> = (0..layout.rules.len()).map(|rule| uncaptured(pair, rule)).collect();
    for (tensor, name) in names.iter().enumerate() {
        let stored = &catalog.tensors[tensor];
        if options.drop.as_ref().is_some_and(|globs| globs.is_match(&stored.key)) {
            keys.dropped.push(Dropped { tensor, reason: DropReason::Drop, rule: None });
            continue;
        }
        if options.only.as_ref().is_some_and(|globs| !globs.is_match(&stored.key)) {
            keys.dropped.push(Dropped { tensor, reason: DropReason::NotOnly, rule: None });
            continue;
        }
        // A tensor of a set of files goes by `FILE::KEY`.
        let (file, key) = layout.split_name(name);
        if is_flat(key) {
            errors.push(flat(catalog, tensor));
            continue;
        }
        let found = layout
            .rules
            .iter()
            .enumerate()
            .filter(|(rule, _)| active[*rule])
            .filter_map(|(rule, held)| held.template.matches(file, key).map(|captures| (rule, captures)));
        let mut found: SmallVec<[(usize, Captures); 1]> = found.collect();
        let candidates: SmallVec<[usize; 1]> = found.iter().map(|(rule, _)| *rule).collect();
        let special = layout.most_special(&candidates);
        let best = found.get_mut(special.unwrap_or(0));
        let Some((rule, mut captures)) = best.map(|(rule, captures)| (*rule, std::mem::take(captures)))
        else {
            // What both sides compute from one config goes along.
            let is_computed = |layout: &Layout| {
                layout.computed.iter().any(|computed| computed.template.matches(file, key).is_some())
            };
            if is_computed(layout) && is_computed(pair.target) {
                keys.computed.push((tensor, name.clone()));
                continue;
            }
            match layout.ignore.iter().find(|template| template.matches(file, key).is_some()) {
                Some(ignored) => {
                    let rule = Some(ignored.span.clone());
                    keys.dropped.push(Dropped { tensor, reason: DropReason::Ignored, rule });
                }
                None => unmatched.push((tensor, name.clone())),
            }
            continue;
        };
        if let Some((other, _)) = found.iter().find(|(other, _)| *other != rule)
            && special.is_none()
        {
            let same = layout.rules[*other].template.key == layout.rules[rule].template.key;
            errors.push(
                Diagnostic::error(BindCode::Ambiguous, "two rules match one tensor")
                    .file(&catalog.path)
                    .tensor(&stored.key)
                    .rule(&layout.rules[rule].template.span)
                    .related(&layout.rules[*other].template.span, "this one matches too")
                    .help(match same {
                        true => "the config tells which of the two holds: put it beside the checkpoint, or give it with --config",
                        false => "make one of the two templates more specific",
                    }),
            );
        }
        for (path, segments) in &uncaptured[rule] {
            captures.bind_path(path, segments);
        }
        let next = ModuleId::new(modules.len());
        let module = *modules.entry(captures.paths.clone()).or_insert(next);
        keys.matched.push(Matched { tensor, rule, module, captures });
    }
    refuse_unread(layout, catalog, options, errors);
    drop_unanchored(mapping, layout, modules.len(), &mut keys, &mut unmatched, &names);
    keys.modules = modules.into_keys().collect();
    let left = leave_modules(layout, catalog, options, &names, &mut keys, errors);
    if keys.matched.is_empty() && !left.is_empty() {
        errors.push(
            Diagnostic::error(BindCode::Modules, "--modules leaves nothing to convert")
                .file(&catalog.path)
                .found(format!("all modules are left as they are: {}", listed(&keys.left)))
                .help("name the modules whose tensors are to be converted"),
        );
    } else if keys.matched.is_empty() {
        let unheld = unheld(layout, &active, &names);
        nothing_matched(mapping, layout, catalog, (&names, unheld), &facts, &keys.dropped, errors);
    } else if mapping.unmapped == Unmapped::Error && !options.allows(Allow::Unmatched) {
        // Names that differ in their numbers alone are as near to the same rule.
        let mut near: HashMap<String, Option<&Template>> = HashMap::default();
        let owners = owners(mapping, layout, &keys.matched, &names);
        for (tensor, name) in &unmatched {
            let attached = owners.of(name);
            let mut near = || *near.entry(pattern(name)).or_insert_with(|| nearest_rule(layout, name));
            errors.push(match (attached, unheld(layout, &active, std::slice::from_ref(name))) {
                (_, Some(rule)) => condition_of_rule(layout, rule, &facts)
                    .file(&catalog.path)
                    .tensor(&catalog.tensors[*tensor].key),
                (Some(attached), None) => unmatched_attachment(layout, catalog, *tensor, &attached),
                (None, None) => unmatched_tensor(layout, catalog, *tensor, near()),
            });
        }
    }
    unmatched.extend(left);
    unmatched.sort_unstable();
    keys.kept = unmatched;
    keys.names = names;
    keys.kept.extend(keys.computed.iter().cloned());
    if options.tied == Tied::KeepOne {
        drop_tied(catalog, &mut keys);
    }
    keys
}

impl Keys {
    /// Returns whether the names of a target's rule are names in a module: of its paths, those that any of the target's
    /// templates captures are the ones that this rule's does. What the source captures besides does not count.
    pub(super) fn writes_in(&self, target: &Layout, rule: usize, module: ModuleId) -> bool {
        let wanted: Vec<&str> = target.rules[rule].template.paths().collect();
        let captured =
            |name: &str| target.rules.iter().any(|rule| rule.template.paths().any(|path| path == name));
        let paths = &self.modules[module];
        wanted.iter().all(|name| paths.iter().any(|(path, _)| **path == **name))
            && paths.iter().all(|(path, _)| wanted.contains(&&**path) || !captured(path))
    }
}

/// Returns the paths that the target captures for a source rule's parameters and the source does not, each as the
/// target says that it is. A parameter that the target has no tensor for is in the module of those beside it.
fn uncaptured(pair: &Pair<'_>, rule: usize) -> Paths {
    let captured: Vec<&str> = pair.source.rules[rule].template.paths().collect();
    let params = &pair.source_rules[rule].params;
    let held = |param: &ParamId| pair.target_rules.iter().any(|rule| rule.params.contains(param));
    let alone = !captured.is_empty() && !params.iter().all(held);
    let beside = pair.target.paths.keys().filter(|_| alone).map(String::as_str);
    let wanted: BTreeSet<&str> =
        params.iter().flat_map(|&param| pair.paths_of(param)).chain(beside).collect();
    let wanted = wanted.into_iter().filter(|path| !captured.contains(path));
    wanted.filter_map(|path| Some((path.into(), pair.target.paths.get(path)?.as_slice().into()))).collect()
}

/// Takes the modules that `--modules` leaves as they are out of those that are converted; returns their tensors.
fn leave_modules(
    layout: &Layout,
    catalog: &Catalog,
    options: &BindOptions,
    names: &[String],
    keys: &mut Keys,
    errors: &mut Collector,
) -> Vec<(usize, String)> {
    if options.modules.is_empty() {
        return Vec::new();
    }
    let error = |message: String| {
        Diagnostic::error(BindCode::Modules, message).file(&catalog.path).rule(&layout.span)
    };
    let held: HashSet<ModuleId> = keys.matched.iter().map(|matched| matched.module).collect();
    let all: Vec<(ModuleId, Paths)> = (0..)
        .map(ModuleId::new)
        .zip(std::mem::take(&mut keys.modules))
        .filter(|(module, _)| held.contains(module))
        .collect();
    if !all.is_empty() && all.iter().all(|(_, paths)| paths.is_empty()) {
        let message = format!("--modules does not apply to the layout `{}`", layout.name);
        errors.push(
            error(message)
                .found("its rules name every tensor and capture no path of a module (`{*m}`)")
                .help("leave --modules out"),
        );
    }
    let paths: Vec<Vec<&str>> = all.iter().map(|(_, paths)| segments(paths)).collect();
    for glob in options.modules.idle(&paths) {
        let texts: Vec<String> = paths.iter().map(|path| path.join(".")).collect();
        errors.push(
            error(format!("--modules '{glob}' matches no module"))
                .expected(format!("one of the modules that the rules find: {}", listed(&texts)))
                .help("`*` stands for any text, also with dots in it; the path is what stands before the rules' names"),
        );
    }
    let mut numbers: HashMap<ModuleId, ModuleId> = HashMap::default();
    for (module, paths) in all {
        if options.modules.takes(&segments(&paths)) {
            numbers.insert(module, ModuleId::new(keys.modules.len()));
            keys.modules.push(paths);
        } else {
            keys.left.push(path_text(&paths));
        }
    }
    let mut left = Vec::new();
    keys.matched.retain_mut(|matched| match numbers.get(&matched.module) {
        Some(&module) => {
            matched.module = module;
            true
        }
        None => {
            left.push((matched.tensor, names[matched.tensor].clone()));
            false
        }
    });
    left
}

/// Writes paths of modules, those that differ in numbers alone as one.
pub(crate) fn listed<T: AsRef<str>>(paths: &[T]) -> String {
    const MOST: usize = 12;
    let mut folded = fold_keys(paths.iter().map(AsRef::as_ref));
    if folded.len() > MOST {
        folded.truncate(MOST);
        folded.push("…".to_owned());
    }
    folded.join(", ")
}

/// Of tied tensors that pass through, only the first is kept: the file says that they are one.
fn drop_tied(catalog: &Catalog, keys: &mut Keys) {
    let passing: HashSet<usize> = keys.kept.iter().map(|(tensor, _)| *tensor).collect();
    let mut gone: HashSet<usize> = HashSet::default();
    for mut group in catalog.ties() {
        group.retain(|tensor| passing.contains(tensor));
        let [first, others @ ..] = &group[..] else { continue };
        for &tensor in others {
            gone.insert(tensor);
            keys.tied.push((tensor, *first));
            keys.dropped.push(Dropped { tensor, reason: DropReason::Tied, rule: None });
        }
    }
    keys.kept.retain(|(tensor, _)| !gone.contains(tensor));
}

/// A module without any of the family's anchors is another module whose tensors happen to have such names
/// (`mlp.c_proj` beside `attn.c_proj`); it passes through.
fn drop_unanchored(
    mapping: &Mapping,
    layout: &Layout,
    modules: usize,
    keys: &mut Keys,
    unmatched: &mut Vec<(usize, String)>,
    names: &[String],
) {
    if mapping.anchors.is_empty() {
        return;
    }
    let mut anchored = vec![false; modules];
    for matched in &keys.matched {
        let params = layout.rules[matched.rule].expr.params();
        anchored[matched.module] |= mapping.anchors.iter().any(|anchor| params.contains(&anchor.as_str()));
    }
    keys.matched.retain(|matched| {
        let keep = anchored[matched.module];
        if !keep {
            unmatched.push((matched.tensor, names[matched.tensor].clone()));
        }
        keep
    });
    unmatched.sort_unstable();
}

/// Returns whether a tensor is the flat parameter of a sharded module: `_flat_param` (pytorch/pytorch,
/// `torch/distributed/fsdp/_flat_param.py`), `flat_param`, `flat_param_0` (facebookresearch/fairscale,
/// `fairscale/nn/misc/flatten_params_wrapper.py`).
fn is_flat(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let last = last.strip_prefix('_').unwrap_or(last);
    let rest = last.strip_prefix("flat_param");
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('_').is_some_and(|n| n.parse::<u32>().is_ok())
    })
}

fn flat(catalog: &Catalog, tensor: usize) -> Diagnostic {
    let message =
        "it is the flat parameter of a sharded module (FSDP): one rank's part of many parameters in a row";
    Diagnostic::error(BindCode::FlatParameter, message)
        .file(&catalog.path)
        .tensor(&catalog.tensors[tensor].key)
        .help(
            "put the ranks together first: load the checkpoint into the FSDP model and save its full state dict \
             (`StateDictType.FULL_STATE_DICT`)",
        )
}

/// A tensor that cannot be read is an error where the conversion would take it.
fn refuse_unread(layout: &Layout, catalog: &Catalog, options: &BindOptions, errors: &mut Collector) {
    let matches = |globs: &Option<GlobSet>, key: &str| globs.as_ref().map(|globs| globs.is_match(key));
    for (key, reason) in &catalog.unread {
        let (file, name) = layout.split_name(key);
        let is_ignored = || layout.ignore.iter().any(|template| template.matches(file, name).is_some());
        if matches(&options.drop, key) != Some(true)
            && matches(&options.only, key) != Some(false)
            && !is_ignored()
        {
            errors.push(reason.clone());
        }
    }
}
