//! Names of tensors: which numbers in them are indices.

use std::collections::{BTreeMap, BTreeSet};

/// A number in a name, and what stands before it since the number before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Number {
    /// The name up to the number, with `{}` for each earlier one: numbers with one prefix count the same things.
    prefix: String,
    text: String,
}

/// A tensor's name with its indices taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// The texts between the indices: one more than there are indices.
    pub(super) texts: Vec<String>,
    /// The list that each index counts, an index into [`Names::lists`].
    pub(super) lists: Vec<usize>,
    /// The indices, from 0.
    pub(super) indices: Vec<u64>,
}

impl Name {
    /// Returns what names of one template have in common.
    pub(super) fn skeleton(&self) -> String {
        self.texts.join("{}")
    }
}

/// A list of things that names count: layers, heads, experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List {
    /// The names up to the index, with `{}` for each earlier number.
    pub(super) prefix: String,
    /// The number of the first.
    pub(super) first: u64,
    /// How many there are.
    pub(super) count: u64,
    /// Digits of a number at least, filled up with zeros; 0 for none.
    pub(super) width: usize,
}

/// The names of a checkpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(super) names: Vec<Name>,
    pub(super) lists: Vec<List>,
}

/// Reads the names; `literal` are prefixes whose numbers are no indices.
pub(super) fn read(keys: &[&str], literal: &BTreeSet<String>) -> Names {
    let mut literal = literal.clone();
    // Stages of several lengths: each stage is a list of its own.
    loop {
        let ragged = ragged(keys, &literal);
        if ragged.is_subset(&literal) {
            return read_as(keys, &literal);
        }
        literal.extend(ragged);
    }
}

/// The prefix of the number before, and the numbers.
type Entries = (String, BTreeSet<String>);

/// Returns the prefixes of numbers behind which a list has other entries for each.
fn ragged(keys: &[&str], literal: &BTreeSet<String>) -> BTreeSet<String> {
    // Per prefix, per numbers before: the prefix of the last of those, and the entries.
    let mut entries: BTreeMap<String, BTreeMap<Vec<String>, Entries>> = BTreeMap::new();
    for key in keys {
        let (numbers, _) = numbers(key, literal);
        for (at, number) in numbers.iter().enumerate() {
            let before = numbers[..at].iter().filter(|number| !literal.contains(&number.prefix));
            let Some(last) = before.clone().next_back().map(|number| number.prefix.clone()) else { continue };
            if literal.contains(&number.prefix) {
                continue;
            }
            let outer = before.map(|number| number.text.clone()).collect();
            let of = entries
                .entry(number.prefix.clone())
                .or_default()
                .entry(outer)
                .or_insert((last, BTreeSet::new()));
            of.1.insert(number.text.clone());
        }
    }
    let mut found = BTreeSet::new();
    for lists in entries.values() {
        let mut all = lists.values();
        let Some((last, first)) = all.next() else { continue };
        // What looks like a list in each, only not of one length.
        let is_list = |of: &BTreeSet<String>| {
            let numbers: BTreeSet<u64> = of.iter().filter_map(|text| text.parse().ok()).collect();
            numbers.first() == Some(&0) && numbers.last() == Some(&(numbers.len() as u64 - 1))
        };
        if lists.values().any(|(_, other)| other != first) && lists.values().all(|(_, of)| is_list(of)) {
            found.insert(last.clone());
        }
    }
    found
}

fn read_as(keys: &[&str], literal: &BTreeSet<String>) -> Names {
    let numbered: Vec<(Vec<Number>, String)> = keys.iter().map(|key| numbers(key, literal)).collect();
    // Per prefix: the numbers as written, and for each whole skeleton those that it has.
    let mut seen: BTreeMap<&str, BTreeMap<&str, BTreeSet<u64>>> = BTreeMap::new();
    let mut written: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (numbers, skeleton) in &numbered {
        for number in numbers {
            let value = number.text.parse().unwrap_or(u64::MAX);
            seen.entry(&number.prefix).or_default().entry(skeleton).or_default().insert(value);
            written.entry(&number.prefix).or_default().insert(&number.text);
        }
    }
    let mut lists = Vec::new();
    let mut list_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (prefix, skeletons) in &seen {
        if literal.contains(*prefix) {
            continue;
        }
        if let Some(list) = list(prefix, skeletons, &written[prefix]) {
            list_of.insert(prefix, lists.len());
            lists.push(list);
        }
    }
    let name = |(key, (numbers, _)): (&&str, &(Vec<Number>, String))| {
        let mut name = Name { texts: vec![String::new()], lists: Vec::new(), indices: Vec::new() };
        let mut rest = *key;
        for number in numbers {
            let at = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let (before, behind) = rest.split_at(at);
            let behind = behind.get(number.text.len()..).unwrap_or_default();
            if let Some(last) = name.texts.last_mut() {
                last.push_str(before);
            }
            match list_of.get(number.prefix.as_str()) {
                Some(&list) => {
                    name.lists.push(list);
                    let value: u64 = number.text.parse().unwrap_or_default();
                    name.indices.push(value.saturating_sub(lists[list].first));
                    name.texts.push(String::new());
                }
                None => name.texts.iter_mut().last().into_iter().for_each(|last| last.push_str(&number.text)),
            }
            rest = behind;
        }
        name.texts.iter_mut().last().into_iter().for_each(|last| last.push_str(rest));
        name
    };
    Names { names: keys.iter().zip(&numbered).map(name).collect(), lists }
}

/// Returns the numbers of a name and its skeleton; numbers that are no indices stand in prefixes as they are.
fn numbers(key: &str, literal: &BTreeSet<String>) -> (Vec<Number>, String) {
    let (mut found, mut prefix, mut rest) = (Vec::new(), String::new(), key);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        prefix.push_str(&rest[..at]);
        let length = rest[at..].bytes().take_while(u8::is_ascii_digit).count();
        let text = &rest[at..at + length];
        found.push(Number { prefix: prefix.clone(), text: text.to_owned() });
        let written = if literal.contains(&prefix) { text } else { "{}" };
        prefix.push_str(written);
        rest = &rest[at + length..];
    }
    prefix.push_str(rest);
    (found, prefix)
}

/// Returns the list that the numbers behind a prefix count, if they look like one: without gaps, and most names that
/// have such a number have several.
fn list(prefix: &str, skeletons: &BTreeMap<&str, BTreeSet<u64>>, written: &BTreeSet<&str>) -> Option<List> {
    let all: BTreeSet<u64> = skeletons.values().flatten().copied().collect();
    let (first, last) = (*all.first()?, *all.last()?);
    let count = all.len() as u64;
    let several = skeletons.values().filter(|numbers| numbers.len() > 1).count();
    let stands_alone = prefix.ends_with(['.', '/', ':']) || prefix.is_empty();
    let is_first = !prefix.contains("{}");
    let glued = prefix.ends_with(|c: char| c.is_ascii_alphabetic());
    let usual = if stands_alone {
        first <= 1 || count >= 3
    } else {
        // `layer_3` counts layers; `linear1` and `wi_0` are names.
        is_first && (first == 0 || count >= 3) && first <= 1 && !(glued && count < 2)
    };
    if count < 2 || last.checked_sub(first)? != count - 1 || 2 * several < skeletons.len() || !usual {
        return None;
    }
    let widths: BTreeSet<usize> = written.iter().map(|text| text.len()).collect();
    let padded = written.iter().any(|text| text.len() > 1 && text.starts_with('0'));
    let width = if padded { *widths.first()? } else { 0 };
    Some(List { prefix: prefix.to_owned(), first, count, width })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(keys: &[&str]) -> (Vec<String>, Vec<Vec<u64>>) {
        let names = read(keys, &BTreeSet::new()).names;
        (names.iter().map(Name::skeleton).collect(), names.iter().map(|name| name.indices.clone()).collect())
    }

    #[test]
    fn layers_and_heads_are_counted() {
        let (skeletons, indices) =
            read_all(&["l.0.h.0.q", "l.0.h.1.q", "l.0.h.2.q", "l.1.h.0.q", "l.1.h.1.q", "l.1.h.2.q"]);
        assert!(skeletons.iter().all(|skeleton| skeleton == "l.{}.h.{}.q"), "{skeletons:?}");
        assert_eq!(indices[5], [1, 2]);
    }

    #[test]
    fn numbers_that_are_names_stay() {
        let keys = ["layer_0/fc1/w", "layer_0/fc2/w", "layer_1/fc1/w", "layer_1/fc2/w", "seq.0.a", "seq.2.a"];
        let (skeletons, _) = read_all(&keys);
        assert_eq!(skeletons[0], "layer_{}/fc1/w");
        assert_eq!(skeletons[3], "layer_{}/fc2/w");
        assert_eq!(skeletons[4], "seq.0.a");
    }

    #[test]
    fn a_list_may_begin_with_one_and_have_zeros() {
        let names = read(&["block01.w", "block02.w", "block03.w"], &BTreeSet::new());
        assert_eq!((names.lists[0].first, names.lists[0].width, names.lists[0].count), (1, 2, 3));
    }
}
