//! What belongs to a converted weight and is held by no rule: its scale, its mask, the norm of its heads. To pass it
//! through beside the weight's old name, or in the weight's old order, would give a wrong model without a word.

use std::collections::{BTreeSet, HashMap, HashSet};

use indexmap::{IndexMap, IndexSet};
use smallvec::SmallVec;

use super::attachment::{
    Attached, Attachment, ancestors, any_index, is_apart_from_queries_and_keys, is_projection_bias,
    is_query_key_norm, own_module,
};
use super::ids::{AxisId, InstanceId, ModuleId, ParamId};
use super::keys::{listed, path_text, segments};
use super::options::Allow;
use super::pair::Side;
use super::{Binding, SourceTensor, TargetTensor};
use crate::catalog::row_major;
use crate::diag::{BindCode, Collector, Diagnostic};
use crate::dtype::Dtype;
use crate::fold::pattern;
use crate::mapping::Unmapped;

/// How far below a projection's module its norms and tables stand: `attn.norm.query_norm.scale`.
const DEPTH: usize = 3;

/// How many weights an error names.
const MOST_NAMED: usize = 8;

/// What the conversion makes of the source tensors.
struct Fates<'a> {
    binding: &'a Binding<'a>,
    sources: &'a [SourceTensor],
    targets: &'a [TargetTensor],
    /// By tensor of the catalog.
    by_tensor: HashMap<usize, usize>,
    /// By instance, the targets that hold it.
    by_instance: HashMap<InstanceId, SmallVec<[usize; 2]>>,
    /// All names of the source.
    names: HashSet<&'a str>,
}

impl Fates<'_> {
    /// Says what becomes of a tensor; `None` where it stays as it is, under its own name.
    fn of(&self, tensor: usize) -> Option<String> {
        let source = &self.sources[*self.by_tensor.get(&tensor)?];
        let mut made: SmallVec<[usize; 4]> = source
            .instances
            .iter()
            .flat_map(|(_, instance)| self.by_instance.get(instance).into_iter().flatten().copied())
            .collect();
        made.sort_unstable();
        made.dedup();
        let name = any_index(&self.binding.keys.names[tensor]);
        let names: IndexSet<String> =
            made.iter().map(|&target| format!("`{}`", any_index(&self.targets[target].key))).collect();
        let names = names.into_iter().take(4).collect::<Vec<_>>().join(", ");
        let [only] = made[..] else {
            return Some(match made.is_empty() {
                true => format!("`{name}` has no place in the target"),
                false => format!("`{name}` is split over {names}"),
            });
        };
        let target = &self.targets[only];
        if target.instances.len() > source.instances.len() {
            return Some(format!("`{name}` becomes a part of {names}"));
        }
        let stored = &self.binding.catalog.tensors[tensor];
        let same = target.blocks == source.blocks
            && target.shape == stored.shape
            && target.affine == source.affine
            && stored.strides == row_major(&stored.shape);
        let renamed =
            target.key != format!("{}{}", self.binding.options.add_prefix, self.binding.keys.names[tensor]);
        match (same, renamed) {
            (true, false) => None,
            (true, true) => Some(format!("`{name}` is renamed to {names}")),
            (false, _) => Some(format!("`{name}` is rearranged in {names}")),
        }
    }
}

/// A module of projections: what of them has its order changed, and along which axes.
#[derive(Default)]
struct Home {
    /// Projections of q, k and v, by tensor of the catalog.
    projections: Vec<usize>,
    /// Axes whose order changes: the name, the size in this module, and each tensor that has it.
    moved: BTreeSet<(String, u64, usize)>,
}

/// Tensors of one kind that would be left behind.
#[derive(Default)]
struct Found {
    tensors: Vec<String>,
    /// What they belong to, and what becomes of that.
    owners: IndexSet<String>,
}

impl Binding<'_> {
    /// Reports the tensors that would pass through although they belong to a weight that does not stay as it is.
    pub(super) fn check_left_behind(
        &self,
        sources: &[SourceTensor],
        targets: &[TargetTensor],
        errors: &mut Collector,
    ) {
        // Where every tensor must have a rule, those that have none are errors already.
        let reported =
            self.pair.mapping.unmapped == Unmapped::Error && !self.options.allows(Allow::Unmatched);
        if self.keys.kept.is_empty() || reported || self.options.allows(Allow::LeftBehind) {
            return;
        }
        let mut by_instance: HashMap<InstanceId, SmallVec<[usize; 2]>> = HashMap::default();
        for (at, target) in targets.iter().enumerate() {
            for (_, instance) in &target.instances {
                by_instance.entry(*instance).or_default().push(at);
            }
        }
        let by_tensor = sources.iter().enumerate().map(|(at, source)| (source.tensor, at)).collect();
        let names = self.keys.names.iter().map(String::as_str).collect();
        let fates = Fates { binding: self, sources, targets, by_tensor, by_instance, names };
        let owners = self.keys.owners(self.pair);
        let homes = self.homes(sources);
        let mut found: IndexMap<Attachment, Found> = IndexMap::new();
        let tied = self.keys.tied.iter().map(|(tensor, _)| *tensor);
        for tensor in self.keys.kept.iter().map(|(tensor, _)| *tensor).chain(tied) {
            let name = &self.keys.names[tensor];
            let (kind, belongs) = match owners.of(name) {
                Some(attached) => match self.owner_of(&attached, &fates) {
                    Some(owner) => (attached.kind, vec![owner]),
                    None => continue,
                },
                None => match self.beside(tensor, &homes, &fates) {
                    Some(beside) => beside,
                    None => continue,
                },
            };
            let found = found.entry(kind).or_default();
            found.tensors.push(self.catalog.tensors[tensor].key.clone());
            found.owners.extend(belongs);
        }
        for (kind, found) in found {
            errors.push(self.left_behind(kind, found));
        }
    }

    /// Says what a tensor's weight is and what becomes of it; `None` where the weight stays.
    fn owner_of(&self, attached: &Attached, fates: &Fates<'_>) -> Option<String> {
        if attached.owners.is_empty() {
            // The weight is stored in another form, and its module would be left as it is where others are converted:
            // that is what `--modules` is for.
            let stays = std::ptr::eq(self.pair.source, self.pair.target)
                || fates.names.contains(attached.weight.as_str())
                || !self.options.modules.takes(&segments(&attached.paths));
            return (!stays).then(|| {
                format!("`{}` is not there in itself, and would not be converted", attached.weight_pattern())
            });
        }
        let tensors = attached.owners.iter().map(|&owner| self.keys.matched[owner].tensor);
        let weight = tensors.clone().filter(|&tensor| self.keys.names[tensor] == attached.weight);
        weight.chain(tensors).find_map(|tensor| fates.of(tensor))
    }

    /// Lists the modules in which projections stand, by their names.
    fn homes(&self, sources: &[SourceTensor]) -> HashMap<String, Home> {
        let moved = self.pair.moved_axes();
        let mut homes: HashMap<String, Home> = HashMap::default();
        for source in sources {
            let name = &self.keys.names[source.tensor];
            let paths = &source.reading.captures.paths;
            let mut places: HashSet<String> = HashSet::default();
            // With the separators that the name has.
            let path = path_text(paths).replace('/', ".");
            if let Some(captured) = name.get(..path.len()).filter(|text| text.replace('/', ".") == path) {
                places.insert(captured.to_owned());
            }
            let module = own_module(name).unwrap_or(name);
            places.insert(module.rsplit_once(['.', '/']).map_or("", |(home, _)| home).to_owned());
            let mut axes: Vec<(String, u64)> = Vec::new();
            for (param, sizes) in &source.reading.sizes {
                let held = self.moved_axes_of(*param, &moved);
                let sized = held.filter_map(|axis| Some((axis.to_owned(), *sizes.get(axis)?)));
                axes.extend(sized.filter(|(_, size)| *size > 1));
            }
            for place in places {
                let home = homes.entry(place).or_default();
                home.projections.push(source.tensor);
                home.moved.extend(axes.iter().cloned().map(|(axis, size)| (axis, size, source.tensor)));
            }
        }
        homes
    }

    /// Returns a parameter's axes whose order changes.
    fn moved_axes_of<'s>(&'s self, param: ParamId, moved: &'s [AxisId]) -> impl Iterator<Item = &'s str> {
        let axes = self.pair.mapping.params[param].axes.iter().map(String::as_str);
        axes.filter(move |name| {
            let outer = self.pair.find(name);
            outer.is_some_and(|outer| {
                moved.iter().any(|&inner| self.pair.contains(Side::Source, outer, inner))
            })
        })
    }

    /// Tells a norm, a table or a bias beside a projection: what it is, and what becomes of the projections.
    fn beside(
        &self,
        tensor: usize,
        homes: &HashMap<String, Home>,
        fates: &Fates<'_>,
    ) -> Option<(Attachment, Vec<String>)> {
        let name = self.keys.names[tensor].as_str();
        let stored = &self.catalog.tensors[tensor];
        for (depth, place) in ancestors(name).chain([""]).take(DEPTH).enumerate() {
            let Some(home) = homes.get(place) else { continue };
            let rest = name[place.len()..].trim_start_matches(['.', '/']);
            if depth == 0 && is_projection_bias(rest) {
                let owners: Vec<String> =
                    home.projections.iter().filter_map(|&tensor| fates.of(tensor)).collect();
                if !owners.is_empty() {
                    return Some((Attachment::Bias, owners));
                }
            }
            let is_float = stored.dtype.cast_to(Some(Dtype::F32)) == Dtype::F32;
            if !is_float || is_apart_from_queries_and_keys(rest) {
                continue;
            }
            let elements = stored.elements();
            let kind = |size: u64| match is_query_key_norm(rest) {
                true if elements.is_multiple_of(size) => Some(Attachment::Norm),
                false if stored.shape.contains(&size) => Some(Attachment::Table),
                _ => None,
            };
            let hit = home.moved.iter().find_map(|(axis, size, _)| Some((kind(*size)?, axis, size)));
            let Some((kind, axis, size)) = hit else { continue };
            let alike = home.moved.iter().filter(|(other, length, _)| (other, length) == (axis, size));
            let text = |owner: &usize| {
                let owner = any_index(&self.keys.names[*owner]);
                format!("the {size} elements along `{axis}` of `{owner}` change their order")
            };
            return Some((kind, alike.map(|(_, _, owner)| text(owner)).collect()));
        }
        None
    }

    fn left_behind(&self, kind: Attachment, found: Found) -> Diagnostic {
        let mut owners: Vec<String> = found.owners.iter().take(MOST_NAMED).cloned().collect();
        if found.owners.len() > MOST_NAMED {
            owners.push("…".to_owned());
        }
        let mut error = Diagnostic::error(
            BindCode::LeftBehind,
            format!("{} would be left behind: no rule holds them", kind.words()),
        )
        .file(&self.catalog.path)
        .rule(&self.pair.layout(Side::Source).span)
        .expected("nothing without a rule that belongs to a tensor which is converted")
        .found(owners.join("; "))
        .help(format!(
            "{}; `--allow left-behind` passes them through as they are, at the risk that they no longer fit",
            kind.help()
        ));
        error.tensors = found.tensors;
        error
    }

    /// The order within a head (rotary pairs) is not to be seen in weights, and modules of several kinds need not share
    /// it: a vision tower or a cross attention beside a text tower mostly rotates nothing.
    pub(super) fn check_kinds_of_modules(&self, errors: &mut Collector) {
        let moved = self.pair.moved_axes();
        if moved.is_empty() || self.options.modules.is_chosen() {
            return;
        }
        let mut kinds: IndexMap<String, IndexSet<ModuleId>> = IndexMap::new();
        let mut axes: IndexSet<&str> = IndexSet::new();
        for held in &self.held {
            let params = &self.pair.source_rules[held.rule].params;
            let mut restated = params.iter().flat_map(|&param| self.moved_axes_of(param, &moved)).peekable();
            if restated.peek().is_some() {
                axes.extend(restated);
                let text = path_text(&self.keys.modules[held.module]);
                kinds.entry(pattern(&text)).or_default().insert(held.module);
            }
        }
        if kinds.len() < 2 {
            return;
        }
        let modules: Vec<String> =
            kinds.values().flatten().map(|&module| path_text(&self.keys.modules[module])).collect();
        let axes: Vec<String> = axes.iter().map(|axis| format!("`{axis}`")).collect();
        errors.push(
            Diagnostic::error(
                BindCode::Modules,
                format!("modules of several kinds would change their order along {}, which weights cannot show", axes.join(" and ")),
            )
            .file(&self.catalog.path)
            .expected(format!("modules that all hold it as `{}` says", self.pair.layout(Side::Source).name))
            .found(listed(&modules))
            .help(format!(
                "say which do, and the others pass through as they are: --modules '{}'; --modules '*' takes all of them",
                modules.first().map_or_else(String::new, |path| any_index(path))
            )),
        );
    }
}
