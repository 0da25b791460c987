//! What axes are called: by what names count, by entries of a config, by where they stand.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::axes::{Axes, Axis, Namer};
use super::express::{DigitAt, End, place};
use crate::mapping::role::AxisRole;

impl Namer<'_, '_> {
    /// Names all axes.
    pub(super) fn finish(self) -> Axes {
        let total = self.union.parent.len();
        let mut classes: BTreeMap<usize, usize> = BTreeMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut of = Vec::with_capacity(total);
        for at in 0..total {
            let class = *classes.entry(self.union.root(at)).or_insert(members.len());
            if class == members.len() {
                members.push(Vec::new());
            }
            members[class].push(at);
            of.push(class);
        }
        let mut names = Names { taken: BTreeSet::new(), axes: vec![None; members.len()] };
        for (class, members) in members.iter().enumerate() {
            self.name_list(class, members, &mut names);
        }
        for (class, members) in members.iter().enumerate() {
            self.name_shared(class, members, &mut names);
        }
        self.name_rest(&members, &of, &mut names);
        let composed = self.compose(&of, &mut names);
        let axes = names
            .axes
            .into_iter()
            .chain(composed.map(Some))
            .map(|axis| axis.unwrap_or_else(|| plain("z")))
            .collect();
        Axes { axes, first: self.first, of, lists: self.lists }
    }

    /// Returns the heads that are groups of heads: two axes, one inside the other, whose sizes the config has the product of.
    fn compose(&self, of: &[usize], names: &mut Names) -> Option<Axis> {
        for (block, first) in self.model.blocks.iter().zip(&self.first) {
            for (at, outer) in block.digits.iter().enumerate() {
                for (inner_at, inner) in block.digits.iter().enumerate() {
                    let beside = |a: Option<(usize, u64)>, b: Option<(usize, u64)>| matches!((a, b), (Some(a), Some(b)) if a.0 == b.0 && a.1 == b.1 * inner.size);
                    if !beside(outer.target, inner.target) && !beside(outer.source, inner.source) {
                        continue;
                    }
                    let (Some(a), Some(b)) = (&names.axes[of[first + at]], &names.axes[of[first + inner_at]])
                    else {
                        continue;
                    };
                    let (Some(m), Some(n)) = (a.here, b.here) else { continue };
                    if b.per_parameter
                        || b.size.is_some()
                        || !b.config.is_empty()
                        || a.per_parameter
                        || a.size.is_some()
                    {
                        continue;
                    }
                    let keys = |(end, config): (&End, &Value)| Some((*end, head_key(config, m * n, false)?));
                    let config: BTreeMap<End, String> = self.configs.iter().filter_map(keys).collect();
                    if config.is_empty() {
                        continue;
                    }
                    let is = Some((a.name.clone(), b.name.clone()));
                    // Heads that stand undivided elsewhere are the same.
                    let known = names
                        .axes
                        .iter_mut()
                        .flatten()
                        .find(|axis| axis.config == config && axis.here == Some(m * n));
                    if let Some(known) = known {
                        known.is = is;
                        return None;
                    }
                    let axis = Axis {
                        is,
                        config,
                        here: Some(m * n),
                        role: Some(AxisRole::QueryHeads),
                        ..plain("h")
                    };
                    names.axes.push(None);
                    names.set(names.axes.len() - 1, axis);
                    return names.axes.pop().flatten();
                }
            }
        }
        None
    }

    fn digit_of(&self, id: usize) -> Option<DigitAt> {
        if id >= self.lists.0 {
            return None;
        }
        let block = self.first.partition_point(|first| *first <= id) - 1;
        // Blocks without digits begin where the next one does.
        (0..=block)
            .rev()
            .find(|block| {
                id < self.first[*block] + self.model.blocks[*block].digits.len() && id >= self.first[*block]
            })
            .map(|block| (block, id - self.first[block]))
    }

    fn here(&self, members: &[usize]) -> Option<u64> {
        let mut sizes: BTreeSet<u64> = members
            .iter()
            .filter_map(|id| self.digit_of(*id))
            .map(|(block, digit)| self.model.blocks[block].digits[digit].size)
            .collect();
        for &id in members.iter().filter(|id| **id >= self.lists.0) {
            let list = match id.checked_sub(self.lists.1) {
                Some(list) => &self.model.target.names.lists[list],
                None => &self.model.source.names.lists[id - self.lists.0],
            };
            sizes.insert(list.count);
        }
        if sizes.len() == 1 { sizes.pop_first() } else { None }
    }

    fn name_list(&self, class: usize, members: &[usize], names: &mut Names) {
        let prefixes =
            members.iter().filter(|id| **id >= self.lists.0).map(|&id| match id.checked_sub(self.lists.1) {
                Some(list) => self.model.target.names.lists[list].prefix.as_str(),
                None => self.model.source.names.lists[id - self.lists.0].prefix.as_str(),
            });
        let last_words: Vec<String> = prefixes
            .map(|prefix| prefix.rsplit("{}").next().unwrap_or(prefix).to_ascii_lowercase())
            .collect();
        if last_words.is_empty() {
            return;
        }
        let has = |word: &str| last_words.iter().any(|text| text.contains(word));
        let (name, role) = match () {
            () if has("expert") => ("x", AxisRole::Experts),
            () if has("head") => ("h", AxisRole::QueryHeads),
            () => ("l", AxisRole::Layers),
        };
        let role = Some(role).filter(|_| has("layer") || has("block") || name != "l");
        let here = self.here(members);
        names.set(class, Axis { here, role, ..plain(name) });
    }

    fn name_shared(&self, class: usize, members: &[usize], names: &mut Names) {
        let digits: Vec<DigitAt> = members.iter().filter_map(|id| self.digit_of(*id)).collect();
        let is_tied = members.iter().any(|id| self.tied.contains(id));
        if names.axes[class].is_some()
            || digits.is_empty()
            || (!is_tied && digits.iter().all(|digit| self.is_whole(*digit)))
        {
            return;
        }
        let here = self.here(members);
        let turned = digits.iter().find_map(|digit| self.turned(*digit));
        // What a rotary order exchanges lies inside a head.
        let rotary = turned.is_some_and(|(_, innermost)| innermost);
        let config = here.filter(|_| !rotary).map(|size| self.config_of(size, members)).unwrap_or_default();
        let outer = digits.iter().any(|digit| self.is_outer(*digit));
        let word = |text: &str| config.values().any(|key| key.to_ascii_lowercase().contains(text));
        let mut axis = match here {
            Some(size)
                if config.is_empty()
                    && turned.is_some_and(|(other, _)| size == 2 || size == 3 && other != 2) =>
            {
                Axis { size: Some(size), ..plain("c") }
            }
            _ if word("kv") || word("key_value") => Axis { role: Some(AxisRole::KvHeads), ..plain("g") },
            _ if word("head") && !word("dim") => Axis { role: Some(AxisRole::QueryHeads), ..plain("h") },
            _ if word("dim") => Axis { role: Some(AxisRole::HeadSize), ..plain("d") },
            _ if rotary => plain("f"),
            _ if digits.iter().any(|digit| self.is_inside(*digit)) && outer => plain("r"),
            _ if outer => plain("h"),
            _ if digits.iter().any(|digit| {
                self.is_whole_on(End::Source, *digit) || self.is_whole_on(End::Target, *digit)
            }) =>
            {
                plain("n")
            }
            _ => plain("d"),
        };
        axis.here = here;
        axis.config = config;
        names.set(class, axis);
    }

    /// Returns the one entry of each config that has that value and is named for heads.
    fn config_of(&self, size: u64, members: &[usize]) -> BTreeMap<End, String> {
        let digits: Vec<DigitAt> = members.iter().filter_map(|id| self.digit_of(*id)).collect();
        let outer = digits.iter().any(|digit| self.is_outer(*digit));
        let mut found = BTreeMap::new();
        for (end, config) in self.configs {
            found.extend(head_key(config, size, !outer).map(|key| (*end, key)));
        }
        found
    }

    /// Returns whether something stands around a digit on its axis, on either side.
    fn is_inside(&self, (block, digit): DigitAt) -> bool {
        let of = &self.model.blocks[block];
        [End::Source, End::Target].into_iter().any(|end| {
            let Some((axis, step)) = place(&of.digits[digit], end) else { return false };
            of.digits
                .iter()
                .any(|other| place(other, end).is_some_and(|(at, outer)| at == axis && outer > step))
        })
    }

    /// Returns whether something stands inside a digit on its axis, on either side.
    pub(super) fn is_outer(&self, (block, digit): DigitAt) -> bool {
        let of = &self.model.blocks[block];
        [End::Source, End::Target].into_iter().any(|end| {
            let Some((axis, step)) = place(&of.digits[digit], end) else { return false };
            step > 1
                || of
                    .digits
                    .iter()
                    .any(|other| place(other, end).is_some_and(|(at, inner)| at == axis && inner < step))
        })
    }

    /// Returns the size of the digit on the same axis with which a digit changes places, and whether nothing lies inside
    /// the two.
    pub(super) fn turned(&self, (block, digit): DigitAt) -> Option<(u64, bool)> {
        let of = &self.model.blocks[block];
        let own = of.digits[digit];
        let (Some((target, step)), Some((source, from))) = (own.target, own.source) else { return None };
        let other = of.digits.iter().find(|other| match (other.target, other.source) {
            (Some((a, other_step)), Some((b, other_from))) => {
                a == target && b == source && (other_step < step) != (other_from < from)
            }
            _ => false,
        });
        let other = other?;
        let innermost = |a: u64, b: Option<(usize, u64)>| a == 1 || b.is_some_and(|(_, step)| step == 1);
        Some((other.size, innermost(step, other.target) && innermost(from, other.source)))
    }

    /// Names axes that are whole stored axes: each parameter has its own sizes, so names only have to differ in a parameter.
    fn name_rest(&self, members: &[Vec<usize>], of: &[usize], names: &mut Names) {
        let mut meets: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (block, first) in self.model.blocks.iter().zip(&self.first) {
            let classes: BTreeSet<usize> = (0..block.digits.len()).map(|digit| of[first + digit]).collect();
            for class in &classes {
                meets.entry(*class).or_default().extend(classes.iter().copied());
            }
        }
        let pool = ["a", "b", "i", "j", "k", "m", "o", "p", "q", "r", "s", "t"];
        let own: Vec<String> =
            pool.iter().map(|name| (*name).to_owned()).filter(|name| !names.taken.contains(name)).collect();
        for (class, ids) in members.iter().enumerate() {
            if names.axes[class].is_some() || ids.iter().all(|id| self.digit_of(*id).is_none()) {
                continue;
            }
            let near: BTreeSet<String> = meets
                .get(&class)
                .into_iter()
                .flatten()
                .filter_map(|other| names.axes[*other].as_ref().map(|axis| axis.name.clone()))
                .collect();
            let name =
                own.iter().find(|name| !near.contains(*name)).cloned().unwrap_or_else(|| format!("a{class}"));
            names.axes[class] = Some(Axis { name, per_parameter: true, ..plain("") });
        }
    }
}

/// Returns the one entry of a config that has that value and is named for heads: their number, or their size.
pub(super) fn head_key(config: &Value, value: u64, is_width: bool) -> Option<String> {
    let mut keys: Vec<&String> = Vec::new();
    for (key, entry) in config.as_object().into_iter().flatten() {
        let name = key.to_ascii_lowercase();
        let names_heads = name.contains("head") || name.contains("num_query_groups");
        let names_width = name.contains("dim") || name.contains("size");
        if entry.as_u64() == Some(value) && names_heads && names_width == is_width {
            keys.push(key);
        }
    }
    // Where every head has its own key and value, both counts are the same: the heads' own entry counts.
    if keys.len() > 1 {
        keys.retain(|key| !key.contains("kv") && !key.contains("key_value"));
    }
    if let [key] = keys[..] { Some(key.clone()) } else { None }
}

fn plain(name: &str) -> Axis {
    Axis {
        name: name.to_owned(),
        size: None,
        per_parameter: false,
        is: None,
        here: None,
        config: BTreeMap::new(),
        role: None,
    }
}

/// The names that are given.
struct Names {
    taken: BTreeSet<String>,
    axes: Vec<Option<Axis>>,
}

impl Names {
    /// Gives a class its name, with a number where another one has it.
    fn set(&mut self, class: usize, axis: Axis) {
        let name = (1..)
            .map(|number| if number == 1 { axis.name.clone() } else { format!("{}{number}", axis.name) })
            .find(|name| !self.taken.contains(name));
        let name = name.unwrap_or_default();
        self.taken.insert(name.clone());
        self.axes[class] = Some(Axis { name, ..axis });
    }
}
