//! Shapes → axes: dimensions of one size are one axis, and the names of tensors say what some of them mean.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;

use super::Tensor;
use super::names::{Folded, Kind, LAYERS, List};
use super::roles::{Role, gives_last_axis, role};
use super::taken::Taken;

/// What dimensions have in common that are one axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Their size.
    Size(u64),
    /// What their first tensor's name says, and their size.
    Named(&'static str, u64),
    /// A size for each place in the lists.
    Varying(BTreeMap<Vec<u64>, u64>),
}

/// An axis of the draft.
#[derive(Debug)]
pub(super) struct Axis {
    /// Its name.
    pub(super) name: String,
    /// What it is, and its size here.
    pub(super) about: String,
}

/// All axes, and which dimension is which.
#[derive(Debug)]
pub(super) struct Axes {
    /// The axes; those of lists come first, in the order of the lists.
    pub(super) all: Vec<Axis>,
    /// For each kind of tensor its dimensions, as places in `all`; `None` for a dimension of size 1.
    pub(super) dims: Vec<Vec<Option<usize>>>,
    /// Kinds of tensors whose sizes differ from one layer to the next.
    pub(super) varying: Vec<usize>,
}

/// Names the axes of a checkpoint.
pub(super) fn axes(tensors: &[Tensor], folded: &Folded) -> Axes {
    let keys: Vec<Vec<Option<Key>>> = folded.kinds.iter().map(|kind| keys_of(tensors, kind)).collect();
    let names: Vec<&str> = folded
        .kinds
        .iter()
        .map(|kind| kind.members.first().map_or("", |(tensor, _)| tensors[*tensor].key.as_str()))
        .collect();
    let width = most_frequent(keys.iter().flatten().flatten(), &[]);
    let is_feed_forward = |at: &usize| role(names[*at]) == Some(Role::FeedForward) && keys[*at].len() == 2;
    let inner = (0..keys.len()).filter(is_feed_forward).flat_map(|at| keys[at].iter().flatten());
    let inner = most_frequent(inner, &width.iter().copied().collect::<Vec<_>>());
    let (keys, special) = named(keys, &names, width, inner);
    let mut namer = Namer {
        all: Vec::new(),
        taken: Taken::default(),
        places: IndexMap::new(),
        counts: BTreeMap::new(),
        width,
        inner,
    };
    for list in &folded.lists {
        namer.list(list);
    }
    for key in special {
        namer.place(&key, 0);
    }
    let dims = keys.iter().zip(&names).map(|(keys, name)| namer.dims(keys, gives_last_axis(name))).collect();
    let varies = |keys: &[Option<Key>]| keys.iter().flatten().any(|key| matches!(key, Key::Varying(_)));
    let varying = (0..keys.len()).filter(|at| varies(&keys[*at])).collect();
    Axes { all: namer.all, dims, varying }
}

/// Returns what each dimension of a kind of tensor is known by; `None` for size 1.
fn keys_of(tensors: &[Tensor], kind: &Kind) -> Vec<Option<Key>> {
    let rank = kind.members.first().map_or(0, |(tensor, _)| tensors[*tensor].shape.len());
    let key = |dim: usize| {
        let size = |tensor: &usize| tensors[*tensor].shape.get(dim).copied().unwrap_or(1);
        let sizes: BTreeSet<u64> = kind.members.iter().map(|(tensor, _)| size(tensor)).collect();
        match sizes.first() {
            Some(1) if sizes.len() == 1 => None,
            Some(&only) if sizes.len() == 1 => Some(Key::Size(only)),
            _ => {
                let sizes = kind.members.iter().map(|(tensor, indices)| (indices.clone(), size(tensor)));
                Some(Key::Varying(sizes.collect()))
            }
        }
    };
    (0..rank).map(key).collect()
}

/// Returns the size that most dimensions have, the largest of those.
fn most_frequent<'a>(keys: impl Iterator<Item = &'a Key>, but: &[u64]) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for key in keys {
        if let Key::Size(size) = key
            && !but.contains(size)
        {
            *counts.entry(*size).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(size, count)| (*count, *size)).map(|(size, _)| size)
}

/// Gives the dimensions that names speak of keys of their own; those of the same size elsewhere follow where they can mean
/// nothing else. Returns these keys too, in the order in which they are to be listed.
fn named(
    mut keys: Vec<Vec<Option<Key>>>,
    names: &[&str],
    width: Option<u64>,
    inner: Option<u64>,
) -> (Vec<Vec<Option<Key>>>, Vec<Key>) {
    let mut found: BTreeMap<(&'static str, u64), Key> = BTreeMap::new();
    for (keys, name) in keys.iter_mut().zip(names) {
        let axis = match role(name) {
            Some(Role::Tokens) => "v",
            Some(Role::Positions) => "t",
            Some(Role::Segments) => "s",
            _ => continue,
        };
        // A table: one axis beside the width.
        let mut sizes = keys.iter_mut().flatten();
        let (Some(rows), Some(Key::Size(_)), None) = (sizes.next(), sizes.next(), sizes.next()) else {
            continue;
        };
        if let Key::Size(size) = *rows {
            *rows = Key::Named(axis, size);
            found.insert((axis, size), rows.clone());
        }
    }
    for key in keys.iter_mut().flatten().flatten() {
        let Key::Size(size) = *key else { continue };
        let mut same = found.keys().filter(|(_, other)| *other == size);
        if let (Some((axis, _)), None) = (same.next(), same.next())
            && ![width, inner].contains(&Some(size))
        {
            *key = Key::Named(axis, size);
        }
    }
    let mut special: Vec<Key> = [width, inner].into_iter().flatten().map(Key::Size).collect();
    let mut tables: Vec<Key> = found.into_values().collect();
    tables.sort_by_key(|key| matches!(key, Key::Named(axis, _) if *axis != "v"));
    special.extend(tables);
    (keys, special)
}

/// Hands out names.
struct Namer {
    all: Vec<Axis>,
    taken: Taken,
    /// The axis of each key, and how often a tensor has it already.
    places: IndexMap<(Key, usize), usize>,
    /// Lists by how many entries they have.
    counts: BTreeMap<u64, usize>,
    width: Option<u64>,
    inner: Option<u64>,
}

impl Namer {
    fn add(&mut self, wanted: &str, about: String) -> usize {
        let joint = if wanted.ends_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
        let name = self.taken.give(wanted, joint);
        self.all.push(Axis { name, about });
        self.all.len() - 1
    }

    fn list(&mut self, list: &List) {
        let word = list.words.last().map_or("index", String::as_str);
        let (short, meaning) = match word {
            word if LAYERS.contains(&word) => ("l", "layers"),
            "experts" | "expert" => ("x", "experts"),
            "heads" | "head" => ("h", "heads"),
            word => (word, word),
        };
        let wanted = match short.starts_with(|c: char| c.is_ascii_alphabetic()) {
            true => short.to_owned(),
            false => format!("i{short}"),
        };
        // A second list of layers is called by what tells it from the first.
        let other = list.words.iter().rev().skip(1).find(|word| !LAYERS.contains(&word.as_str()));
        let (wanted, of) = match other {
            _ if !self.taken.has(&wanted) => (wanted, String::new()),
            Some(other) => (format!("{wanted}_{other}"), format!(" of {other}")),
            None => (word.to_owned(), String::new()),
        };
        let count = list.indices.len();
        let place = self.add(&wanted, format!("{meaning}{of} ({count} here)"));
        self.counts.entry(count as u64).or_insert(place);
    }

    /// Returns the axis of a key that a tensor has `before` times already.
    fn place(&mut self, key: &Key, before: usize) -> usize {
        if let Some(place) = self.places.get(&(key.clone(), before)) {
            return *place;
        }
        let place = if before > 0 {
            let first = self.place(key, 0);
            let first = self.all[first].name.clone();
            let about = format!("as many as {first}, where one tensor has that size twice");
            self.add(&first, about)
        } else {
            match key {
                Key::Named("v", size) => self.add("v", format!("vocabulary ({size} here)")),
                Key::Named("t", size) => self.add("t", format!("positions ({size} here)")),
                Key::Named(axis, size) => self.add(axis, format!("kinds of segments ({size} here)")),
                Key::Size(size) if self.width == Some(*size) => {
                    self.add("e", format!("the size that most tensors share, likely the width ({size} here)"))
                }
                Key::Size(size) if self.inner == Some(*size) => {
                    self.add("f", format!("width of the feed-forward layer ({size} here)"))
                }
                Key::Size(size) => {
                    let width = self.width.filter(|width| *width > 0 && size % width == 0 && size > width);
                    let times = width.and_then(|width| {
                        let axis = self.places.get(&(Key::Size(width), 0))?;
                        Some(format!(", {} x {}", size / width, self.all[*axis].name))
                    });
                    let list =
                        self.counts.get(size).map(|list| format!(", as many as {}", self.all[*list].name));
                    let hints = [times, list].into_iter().flatten().collect::<String>();
                    self.add(&format!("n{size}"), format!("{size} here{hints}"))
                }
                Key::Varying(sizes) => {
                    let (least, most) = (sizes.values().min(), sizes.values().max());
                    let range = format!("{} to {}", least.unwrap_or(&0), most.unwrap_or(&0));
                    self.add("w", format!("a width of each layer's own ({range} here)"))
                }
            }
        };
        self.places.insert((key.clone(), before), place);
        place
    }

    /// Returns the axes of a tensor. Of a size that it has twice, the axis that a matrix gives is the second one.
    fn dims(&mut self, keys: &[Option<Key>], gives_last: bool) -> Vec<Option<usize>> {
        let mut dims = vec![None; keys.len()];
        let order: Vec<usize> =
            if gives_last { (0..keys.len()).collect() } else { (0..keys.len()).rev().collect() };
        let mut seen: Vec<&Key> = Vec::new();
        for at in order {
            if let Some(key) = &keys[at] {
                let before = seen.iter().filter(|other| **other == key).count();
                seen.push(key);
                dims[at] = Some(self.place(key, before));
            }
        }
        dims
    }
}
