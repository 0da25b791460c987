//! Names → templates: which numbers in names are indices along an axis.
//!
//! A number is an index where its neighbours hold the same: layers, experts, heads. The numbers of a torch `Sequential`,
//! whose entries are unlike, stay as they are.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::{IndexMap, IndexSet};

use super::Tensor;
use crate::fold::split;

/// Words before a number that say that it counts layers, so that a list of one is a list too.
pub(super) const LAYERS: &[&str] = &["layers", "layer", "h", "blocks", "block", "blk", "resblocks"];

/// The most numbers in a name that are taken for indices; real names have four.
const MOST_NUMBERS: usize = 8;

/// All tensors of one template.
#[derive(Debug)]
pub(super) struct Kind {
    /// Its template.
    pub(super) pieces: Vec<Piece>,
    /// The tensors, as places in the checkpoint's list, each with its indices along the template's lists.
    pub(super) members: Vec<(usize, Vec<u64>)>,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text that stands as it is.
    Text(String),
    /// An index along a list, a place in [`Folded::lists`].
    Index(usize),
}

/// Modules that are told apart by an index.
#[derive(Debug)]
pub(super) struct List {
    /// The words of the names before the index, the nearest last.
    pub(super) words: Vec<String>,
    /// The number of the first.
    pub(super) first: u64,
    /// Digits at least, filled up with zeros; 0 for none.
    pub(super) width: usize,
    /// All indices that any name has, from 0.
    pub(super) indices: BTreeSet<u64>,
}

/// All names of a checkpoint as templates.
#[derive(Debug, Default)]
pub(super) struct Folded {
    /// One for each template, in the order of the checkpoint.
    pub(super) kinds: Vec<Kind>,
    /// The lists, an outer one before those in it.
    pub(super) lists: Vec<List>,
}

impl Kind {
    /// Returns the lists along which it is enumerated, in the template's order.
    pub(super) fn lists(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Index(list) => Some(*list),
            Piece::Text(_) => None,
        })
    }

    /// Returns the lists of which some entries lack it: the places among its indices.
    pub(super) fn sparse(&self, lists: &[List]) -> Vec<usize> {
        let has_gaps = |at: usize, list: usize| {
            let mut rows: BTreeMap<Vec<u64>, BTreeSet<u64>> = BTreeMap::new();
            for (_, indices) in &self.members {
                let mut others = indices.clone();
                let index = others.remove(at);
                rows.entry(others).or_default().insert(index);
            }
            let all: BTreeSet<u64> = rows.values().flatten().copied().collect();
            all != lists[list].indices
                || rows.values().any(|row| !row.iter().copied().eq(0..row.len() as u64))
        };
        self.lists().enumerate().filter(|(at, list)| has_gaps(*at, *list)).map(|(at, _)| at).collect()
    }
}

/// A name on its way: what lies before the number `at` is read.
struct Entry<'a> {
    tensor: usize,
    shape: &'a [u64],
    texts: Vec<String>,
    numbers: Vec<&'a str>,
    at: usize,
    indices: Vec<u64>,
}

impl Entry<'_> {
    /// Returns what follows the number at hand, later numbers as they are, or each as one mark.
    fn behind(&self, with_numbers: bool) -> String {
        let mut text = String::new();
        for at in self.at + 1..self.texts.len() {
            text.push_str(&self.texts[at]);
            if let Some(number) = self.numbers.get(at) {
                text.push_str(if with_numbers { number } else { "\0" });
            }
        }
        text
    }
}

/// Makes templates of the names of a checkpoint.
pub(super) fn fold(tensors: &[Tensor]) -> Folded {
    let entry = |(tensor, of): (usize, &'_ Tensor)| -> (usize, Vec<String>, usize) {
        let (pattern, numbers) = split(&of.key);
        let texts: Vec<String> = pattern.split('\0').map(str::to_owned).collect();
        // A name that holds the mark itself, or more numbers than any, is taken as it is.
        match texts.len() == numbers.len() + 1 && numbers.len() <= MOST_NUMBERS {
            true => (tensor, texts, numbers.len()),
            false => (tensor, vec![of.key.clone()], 0),
        }
    };
    let entries = tensors.iter().enumerate().map(|(at, of)| {
        let (tensor, texts, count) = entry((at, of));
        let numbers = split(&of.key).1.into_iter().take(count).collect();
        Entry { tensor, shape: &of.shape, texts, numbers, at: 0, indices: Vec::new() }
    });
    let mut folded = Folded::default();
    folded.fold(entries.collect(), &[]);
    folded.kinds.sort_by_key(|kind| kind.members.first().map(|(tensor, _)| *tensor));
    folded
}

impl Folded {
    /// Folds names that begin with the same pieces.
    fn fold(&mut self, entries: Vec<Entry<'_>>, pieces: &[Piece]) {
        let mut groups: IndexMap<(String, bool), Vec<Entry<'_>>> = IndexMap::new();
        for entry in entries {
            let ends = entry.at == entry.numbers.len();
            groups.entry((entry.texts[entry.at].clone(), ends)).or_default().push(entry);
        }
        for ((text, ends), group) in groups {
            let pieces = with_text(pieces, &text);
            if ends {
                let members = group.into_iter().map(|entry| (entry.tensor, entry.indices)).collect();
                self.kinds.push(Kind { pieces, members });
            } else if let Some(list) = list_of(&pieces, &group) {
                self.fold_list(list, group, pieces);
            } else {
                let mut apart: IndexMap<&str, Vec<Entry<'_>>> = IndexMap::new();
                for mut entry in group {
                    let number = entry.numbers[entry.at];
                    entry.at += 1;
                    apart.entry(number).or_default().push(entry);
                }
                for (number, group) in apart {
                    self.fold(group, &with_text(&pieces, number));
                }
            }
        }
    }

    fn fold_list(&mut self, list: List, mut group: Vec<Entry<'_>>, mut pieces: Vec<Piece>) {
        for entry in &mut group {
            let number: u64 = entry.numbers[entry.at].parse().unwrap_or(list.first);
            entry.indices.push(number - list.first);
            entry.at += 1;
        }
        pieces.push(Piece::Index(self.lists.len()));
        self.lists.push(list);
        self.fold(group, &pieces);
    }
}

fn with_text(pieces: &[Piece], text: &str) -> Vec<Piece> {
    let mut pieces = pieces.to_vec();
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Text(before)) => before.push_str(text),
        _ => pieces.push(Piece::Text(text.to_owned())),
    }
    pieces
}

/// Returns the words of a template's texts.
fn words_of(pieces: &[Piece]) -> Vec<String> {
    let texts = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text.as_str()),
        Piece::Index(_) => None,
    });
    let words = texts.flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric()));
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// Returns the list that the numbers at hand are indices of, if they are: entries that are numbered one after the other
/// and hold the same things.
fn list_of(pieces: &[Piece], group: &[Entry<'_>]) -> Option<List> {
    let texts: BTreeSet<&str> = group.iter().map(|entry| entry.numbers[entry.at]).collect();
    let numbers: Option<BTreeSet<u64>> = texts.iter().map(|text| text.parse().ok()).collect();
    let numbers = numbers?;
    let (first, last) = (*numbers.first()?, *numbers.last()?);
    let filled = texts.iter().any(|text| text.len() > 1 && text.starts_with('0'));
    let width = if filled { texts.iter().map(|text| text.len()).min()? } else { 0 };
    // Offsets and widths are as large as templates have them.
    if width > 18 || first > u64::from(u32::MAX) {
        return None;
    }
    let written = |text: &&str| text.parse().is_ok_and(|number: u64| format!("{number:0width$}") == *text);
    if !texts.iter().all(written) {
        return None;
    }
    let words = words_of(pieces);
    let counts_layers = words.last().is_some_and(|word| LAYERS.contains(&word.as_str()));
    let is_outer = !pieces.iter().any(|piece| matches!(piece, Piece::Index(_)));
    let dense = last - first == numbers.len() as u64 - 1;
    // Few layers may be like the first: experts in all the others, attention in every fourth.
    let least = if counts_layers && is_outer && numbers.len() > 2 { 0 } else { 3 };
    let alike = alike(group, least)?;
    let is_list = match numbers.len() {
        1 => first == 0 && counts_layers && is_outer,
        count => alike == Alike::Shapes && (dense || count > 2) || dense && alike == Alike::Names,
    };
    let indices = numbers.into_iter().map(|number| number - first).collect();
    is_list.then_some(List { words, first, width, indices })
}

/// How entries of a list are alike.
#[derive(PartialEq)]
enum Alike {
    /// What has one name in them has one shape.
    Shapes,
    /// They are whole modules of the same names, whose widths differ.
    Names,
}

/// Returns how entries with different numbers are alike; `None` where they are not: where nothing is common to all, or less
/// than one part in `least` of what there is.
fn alike(group: &[Entry<'_>], least: usize) -> Option<Alike> {
    let mut patterns: IndexMap<&str, BTreeSet<String>> = IndexMap::new();
    let mut shapes: IndexMap<String, IndexSet<&[u64]>> = IndexMap::new();
    for entry in group {
        patterns.entry(entry.numbers[entry.at]).or_default().insert(entry.behind(false));
        shapes.entry(entry.behind(true)).or_default().insert(entry.shape);
    }
    let all: BTreeSet<&String> = patterns.values().flatten().collect();
    let shared = all.iter().filter(|pattern| patterns.values().all(|have| have.contains(**pattern))).count();
    if shared == 0 || least > 0 && shared * least < all.len() {
        return None;
    }
    let differ = |shapes: &IndexSet<&[u64]>| shapes.len() > 1;
    let rank = |shape: &&[u64]| shape.len();
    if shapes.values().any(|shapes| shapes.iter().map(rank).collect::<BTreeSet<_>>().len() > 1) {
        return None;
    }
    match shapes.iter().filter(|(_, shapes)| differ(shapes)).map(|(behind, _)| behind).next() {
        None => Some(Alike::Shapes),
        // `.weight` alone is a layer of a chain, whose widths follow each other.
        Some(_) => {
            let is_module = |behind: &String| behind.matches(['.', '/']).count() > 1;
            shapes.keys().any(is_module).then_some(Alike::Names)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn templates(names: &[(&str, &[u64])]) -> Vec<String> {
        let tensors: Vec<Tensor> = names
            .iter()
            .map(|(key, shape)| Tensor { key: (*key).into(), dtype: Dtype::F32, shape: shape.to_vec() })
            .collect();
        let folded = fold(&tensors);
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Index(list) => {
                let List { first, width, .. } = &folded.lists[*list];
                format!("<{list}+{first}:{width}>")
            }
        };
        let template = |kind: &Kind| {
            let sparse: Vec<String> = kind.sparse(&folded.lists).iter().map(usize::to_string).collect();
            format!("{}{}", kind.pieces.iter().map(piece).collect::<String>(), sparse.concat())
        };
        folded.kinds.iter().map(template).collect()
    }

    #[test]
    fn layers_are_a_list_and_parts_of_a_sequence_are_not() {
        let names: &[(&str, &[u64])] = &[
            ("layers.0.mlp.0.weight", &[5, 3]),
            ("layers.0.mlp.2.weight", &[3, 5]),
            ("layers.1.mlp.0.weight", &[5, 3]),
            ("layers.1.mlp.2.weight", &[3, 5]),
        ];
        assert_eq!(templates(names), ["layers.<0+0:0>.mlp.0.weight", "layers.<0+0:0>.mlp.2.weight"]);
        // A norm behind a linear layer, and a chain of linear layers.
        let names: &[(&str, &[u64])] = &[("n.0.weight", &[5, 3]), ("n.1.weight", &[5])];
        assert_eq!(templates(names), ["n.0.weight", "n.1.weight"]);
        let names: &[(&str, &[u64])] = &[("n.0.weight", &[5, 3]), ("n.1.weight", &[7, 5])];
        assert_eq!(templates(names), ["n.0.weight", "n.1.weight"]);
    }

    #[test]
    fn numbers_are_written_as_they_were() {
        let names: &[(&str, &[u64])] = &[("layer_01/w", &[3]), ("layer_02/w", &[3]), ("w:0", &[3])];
        assert_eq!(templates(names), ["layer_<0+1:2>/w", "w:0"]);
        let names: &[(&str, &[u64])] = &[("layer_1/w", &[3]), ("layer_02/w", &[3])];
        assert_eq!(templates(names), ["layer_1/w", "layer_02/w"]);
        let zeros = "0".repeat(70_000);
        let (first, second) = (format!("l.{zeros}"), format!("l.{zeros}1"));
        assert_eq!(templates(&[(&first, &[3]), (&second, &[3])]), [first, second]);
    }

    #[test]
    fn what_some_layers_lack_is_sparse() {
        let names: &[(&str, &[u64])] = &[
            ("h.0.norm.weight", &[3]),
            ("h.1.norm.weight", &[3]),
            ("h.2.norm.weight", &[3]),
            ("h.1.experts.0.up", &[5, 3]),
            ("h.1.experts.1.up", &[5, 3]),
            ("h.2.experts.0.up", &[5, 3]),
            ("h.2.experts.1.up", &[5, 3]),
            ("h.2.experts.2.up", &[5, 3]),
        ];
        assert_eq!(templates(names), ["h.<0+0:0>.norm.weight", "h.<0+0:0>.experts.<1+0:0>.up0"]);
        // Little is common to all layers, and they are layers all the same; parts of one layer are not.
        let names: &[(&str, &[u64])] = &[
            ("h.0.norm", &[3]),
            ("h.1.norm", &[3]),
            ("h.2.norm", &[3]),
            ("h.2.a", &[3]),
            ("h.2.b", &[3]),
            ("h.2.c", &[3]),
        ];
        let wanted = ["h.<0+0:0>.norm", "h.<0+0:0>.a0", "h.<0+0:0>.b0", "h.<0+0:0>.c0"];
        assert_eq!(templates(names), wanted);
        let names: &[(&str, &[u64])] = &[
            ("layer.0.norm", &[3]),
            ("layer.1.norm", &[3]),
            ("layer.0.q", &[3]),
            ("layer.0.k", &[3]),
            ("layer.1.up", &[3]),
        ];
        assert_eq!(templates(names)[0], "layer.0.norm");
    }
}
