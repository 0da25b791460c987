//! The model that two layouts are tried on: which rules and parameters take part, in which modules, at which sizes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::bind::AxisSizes;
use crate::mapping::key::Captures;
use crate::mapping::{Condition, Layout, Mapping, Needed, Rule, exclude_each_other};
use crate::notation::{AxisName, for_each_axis};
use crate::provenance::{Document, Provenance};

/// Which of the parameters that may be missing are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Optional {
    /// All that both layouts hold.
    Present,
    /// None but those that stand in one tensor with a required one.
    Absent,
}

/// Two layouts and a model that both can hold.
#[derive(Clone, Debug)]
pub(super) struct Setting<'a> {
    pub(super) mapping: &'a Mapping,
    pub(super) layouts: [&'a Layout; 2],
    /// Per layout and rule: whether its tensors take part.
    pub(super) takes_part: [Vec<bool>; 2],
    /// The parameters whose values both layouts hold.
    pub(super) present: BTreeSet<String>,
    pub(super) config: BTreeMap<String, Value>,
    /// Sizes by axis.
    pub(super) sizes: AxisSizes,
    /// Sizes of the parameters that have some of their own.
    own_sizes: BTreeMap<String, AxisSizes>,
    /// Captured paths of each module.
    pub(super) modules: Vec<BTreeMap<String, Vec<String>>>,
    /// Paths that tell modules apart.
    free: BTreeSet<String>,
}

/// Returns the configs under which rules are to be tried: what the layouts demand, and for each condition of a rule
/// that does not hold then, that too.
pub(super) fn configs(layouts: [&Layout; 2]) -> Vec<BTreeMap<String, Value>> {
    let demanded = config_of(layouts[0].when.iter());
    let mut all = vec![demanded.clone()];
    for rule in layouts.iter().flat_map(|layout| &layout.rules) {
        let holds = |config: &BTreeMap<String, Value>| holds(&rule.when, config);
        if all.iter().any(holds) || exclude_each_other(&rule.when, &layouts[0].when) {
            continue;
        }
        let mut config = demanded.clone();
        config.extend(config_of(rule.when.iter()));
        all.push(config);
    }
    all
}

/// Returns a config that fulfils conditions: the first value that each allows.
fn config_of<'c>(conditions: impl Iterator<Item = &'c Condition>) -> BTreeMap<String, Value> {
    let first = |condition: &Condition| {
        let missing = condition.allowed.contains(&Value::Null);
        let value = condition.allowed.first().filter(|_| !missing)?;
        Some((condition.key.clone(), value.clone()))
    };
    conditions.filter_map(first).collect()
}

fn holds(conditions: &[Condition], config: &BTreeMap<String, Value>) -> bool {
    conditions.iter().all(|condition| condition.holds(config.get(&condition.key)))
}

impl<'a> Setting<'a> {
    /// Makes the model of two layouts; `None` where a parameter that must be there cannot be.
    pub(super) fn new(
        mapping: &'a Mapping,
        layouts: [&'a Layout; 2],
        config: BTreeMap<String, Value>,
        optional: Optional,
        sizes: AxisSizes,
    ) -> Option<Setting<'a>> {
        let mut setting = Setting {
            mapping,
            layouts,
            takes_part: layouts
                .map(|layout| layout.rules.iter().map(|rule| holds(&rule.when, &config)).collect()),
            present: BTreeSet::new(),
            config,
            sizes,
            own_sizes: BTreeMap::new(),
            modules: Vec::new(),
            free: BTreeSet::new(),
        };
        setting.choose(optional);
        let missing = |(name, param): (&String, &crate::mapping::Param)| {
            param.is_required() && !setting.present.contains(name)
        };
        if mapping.params.iter().any(missing) || setting.present.is_empty() || setting.lacks_needed() {
            return None;
        }
        setting.name_modules();
        setting.tell_sizes_apart();
        Some(setting)
    }

    /// Returns whether a parameter's values, or zeros in their place, can be in both layouts.
    fn has_place(&self, param: &str) -> bool {
        self.present.contains(param)
            || self.mapping.params.get(param).is_some_and(|declared| declared.absent_zeros)
    }

    /// Returns whether a layout's readers cannot do without a rule's tensor in this model.
    fn is_needed(&self, rule: &Rule) -> bool {
        self.is_needed_beside(rule, &self.present)
    }

    fn is_needed_beside(&self, rule: &Rule, present: &BTreeSet<String>) -> bool {
        match &rule.needed {
            None => false,
            Some(Needed::Always) => true,
            Some(Needed::Where(any)) => any.iter().any(|conditions| holds(conditions, &self.config)),
            Some(Needed::Beside(param)) => present.contains(param),
        }
    }

    /// Returns whether the model lacks a tensor that one of the layouts needs.
    fn lacks_needed(&self) -> bool {
        let rules = (0..2).flat_map(|side| self.layouts[side].rules.iter().zip(&self.takes_part[side]));
        rules
            .into_iter()
            .any(|(rule, takes_part)| !takes_part && holds(&rule.when, &self.config) && self.is_needed(rule))
    }

    /// Returns whether a target always has a parameter, made of zeros where the source has none.
    fn is_demanded(&self, param: &str) -> bool {
        self.mapping.params.get(param).is_some_and(|param| param.absent_zeros && !param.optional)
    }

    /// Returns the parameters that are required, those that stand in one tensor of the source with one of them, and those
    /// that either layout's readers need beside them.
    fn required_and_beside(&self) -> BTreeSet<String> {
        let required = self.mapping.params.iter().filter(|(_, param)| !param.optional);
        let mut all: BTreeSet<String> = required.map(|(name, _)| name.clone()).collect();
        loop {
            let before = all.len();
            let rules = self.layouts[0].rules.iter().zip(&self.takes_part[0]);
            for (rule, _) in rules.filter(|(rule, takes_part)| **takes_part && !rule.optional) {
                let params = rule.expr.params();
                if params.iter().any(|param| all.contains(*param)) {
                    all.extend(params.into_iter().map(str::to_owned));
                }
            }
            for rule in self.layouts.iter().flat_map(|layout| &layout.rules) {
                let is_needed = self.is_needed_beside(rule, &all) && holds(&rule.when, &self.config);
                let params = rule.expr.params();
                let zeros =
                    |param: &&str| self.mapping.params.get(*param).is_some_and(|param| param.absent_zeros);
                if is_needed && !params.iter().all(zeros) {
                    all.extend(params.into_iter().map(str::to_owned));
                }
            }
            if all.len() == before {
                return all;
            }
        }
    }

    /// Leaves out what one of the two layouts cannot hold, until what is left is whole in both.
    fn choose(&mut self, optional: Optional) {
        let together = self.required_and_beside();
        let is_wanted = |param: &str| match optional {
            Optional::Present => true,
            Optional::Absent => together.contains(param),
        };
        for (layout, takes_part) in self.layouts.iter().zip(&mut self.takes_part) {
            for (rule, takes_part) in layout.rules.iter().zip(takes_part) {
                let wanted = rule.expr.params().iter().any(|param| is_wanted(param));
                *takes_part &= wanted && (optional == Optional::Present || !rule.optional);
            }
        }
        loop {
            let held = |side: usize| -> BTreeSet<&str> {
                let rules = self.layouts[side].rules.iter().zip(&self.takes_part[side]);
                rules
                    .filter(|(_, takes_part)| **takes_part)
                    .flat_map(|(rule, _)| rule.expr.params())
                    .collect()
            };
            let (first, second) = (held(0), held(1));
            self.present = first.intersection(&second).map(|name| (*name).to_owned()).collect();
            let mut changed = false;
            for side in 0..2 {
                for at in 0..self.layouts[side].rules.len() {
                    let params = self.layouts[side].rules[at].expr.params();
                    let whole = params.iter().all(|param| self.has_place(param));
                    let filled = params.iter().any(|param| self.present.contains(*param));
                    // A tensor of zeros alone: one that the target always has, or that a source may have.
                    let zeros = !filled
                        && whole
                        && match side {
                            0 => optional == Optional::Present,
                            _ => {
                                let rule = &self.layouts[side].rules[at];
                                !rule.optional && params.iter().all(|param| self.is_demanded(param))
                                    || self.is_needed(rule)
                            }
                        };
                    if self.takes_part[side][at] && !(whole && (filled || zeros)) {
                        self.takes_part[side][at] = false;
                        changed = true;
                    }
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// Gives each captured path two values, or the one that a layout says where the other does not capture it.
    fn name_modules(&mut self) {
        let captured = |side: usize, param: &str| -> BTreeSet<&'a str> {
            let layout: &'a Layout = self.layouts[side];
            let rules = layout.rules.iter().filter(|rule| rule.expr.params().contains(&param));
            rules.flat_map(|rule| rule.template.paths()).collect()
        };
        let (mut free, mut fixed) = (BTreeSet::new(), BTreeMap::new());
        for param in self.mapping.params.keys() {
            let sides = [captured(0, param), captured(1, param)];
            for (side, other) in [(0, 1), (1, 0)] {
                for path in &sides[side] {
                    free.insert((*path).to_owned());
                    if !sides[other].contains(path) && self.layouts[other].holds(param) {
                        let value = self.layouts[side].paths.get(*path).cloned();
                        fixed.insert((*path).to_owned(), value.unwrap_or_default());
                    }
                }
            }
        }
        free.retain(|path| !fixed.contains_key(path));
        let count = if free.is_empty() { 1 } else { 2 };
        for module in 0..count {
            let mut paths = fixed.clone();
            for (at, path) in free.iter().enumerate() {
                let mut segments = vec![format!("part{at}")];
                segments.extend((module > 0).then(|| "1".to_owned()));
                paths.insert(path.clone(), segments);
            }
            self.modules.push(paths);
        }
        self.free = free;
    }

    /// Gives each parameter another size of an axis of which each has its own, where no tensor holds two of them.
    fn tell_sizes_apart(&mut self) {
        let is_own = |layout: &Layout, name: &str| {
            self.mapping.axis(layout, name).is_some_and(|axis| axis.per_parameter)
        };
        let mut groups: Vec<(String, Vec<BTreeSet<String>>)> = Vec::new();
        for layout in self.layouts {
            for rule in &layout.rules {
                let mut axes = BTreeSet::new();
                for_each_axis(&rule.expr.dims, &mut |axis, _| {
                    if let AxisName::Named(name) = axis
                        && is_own(layout, name)
                    {
                        axes.insert(name.to_owned());
                    }
                });
                let params: BTreeSet<String> = rule.expr.params().into_iter().map(str::to_owned).collect();
                for axis in axes {
                    let at = groups.iter().position(|(name, _)| *name == axis).unwrap_or_else(|| {
                        groups.push((axis, Vec::new()));
                        groups.len() - 1
                    });
                    let sets = &mut groups[at].1;
                    let mut joined = params.clone();
                    sets.retain(|set| {
                        let meets = !set.is_disjoint(&joined);
                        if meets {
                            joined.extend(set.iter().cloned());
                        }
                        !meets
                    });
                    sets.push(joined);
                }
            }
        }
        for (axis, sets) in groups {
            let Some(size) = self.sizes.get(&axis).copied() else { continue };
            for (at, set) in sets.iter().enumerate() {
                for param in set {
                    let own = self.own_sizes.entry(param.clone()).or_insert_with(|| self.sizes.clone());
                    own.insert(axis.clone(), size + at as u64 % 3);
                }
            }
        }
    }

    /// Returns the sizes of a parameter's axes.
    pub(super) fn sizes_of(&self, param: &str) -> &AxisSizes {
        self.own_sizes.get(param).unwrap_or(&self.sizes)
    }

    /// Returns the sizes that hold for the whole model, as `--axis` gives them.
    pub(super) fn told(&self) -> Vec<(String, u64)> {
        let own = |name: &str| {
            let declared =
                [self.mapping.axes.get(name), self.layouts[0].axes.get(name), self.layouts[1].axes.get(name)];
            declared.into_iter().flatten().any(|axis| axis.per_parameter)
        };
        let whole = self.sizes.iter().filter(|(name, _)| !own(name));
        whole.map(|(name, size)| (name.clone(), *size)).collect()
    }

    /// Returns the config, where anything depends on one, as what a checkpoint says of itself.
    pub(super) fn provenance(&self) -> Provenance {
        let value: Map<String, Value> = self.config.clone().into_iter().collect();
        Document::config("the config", Value::Object(value)).into()
    }

    /// Returns whether the two modules have a parameter each, or one in common.
    pub(super) fn is_per_module<'p>(&self, mut paths: impl Iterator<Item = &'p str>) -> bool {
        paths.any(|path| self.free.contains(path))
    }

    /// Returns the captured paths of a module that a template has.
    pub(super) fn paths(&self, module: usize, names: &[&str]) -> Captures {
        let mut captures = Captures::default();
        for (path, segments) in &self.modules[module] {
            if names.contains(&path.as_str()) {
                captures.bind_path(&path.as_str().into(), &segments.as_slice().into());
            }
        }
        captures
    }
}
