//! One parameter for each kind of tensor: its name, its axes and what a reader should know of it.

use std::collections::{BTreeMap, BTreeSet};

use super::Tensor;
use super::axes::Axes;
use super::names::{Folded, Kind, Piece};
use super::roles::{role, suggestion};
use super::taken::Taken;
use crate::dtype::Dtype;

/// A parameter of the draft.
#[derive(Debug)]
pub(super) struct Param {
    /// Its name.
    pub(super) name: String,
    /// Its axes, those of the lists first.
    pub(super) axes: Vec<String>,
    /// Those of the lists of which some entries lack it.
    pub(super) sparse: Vec<String>,
    /// Its types and shapes here, and what its name suggests.
    pub(super) about: String,
    /// Whether its name suggests something.
    pub(super) suggests: bool,
}

/// Makes the parameters, one for each kind of tensor.
pub(super) fn params(tensors: &[Tensor], ties: &[Vec<usize>], folded: &Folded, axes: &Axes) -> Vec<Param> {
    let (names, tied) = (names(folded), tied(ties, folded));
    let param = |(at, kind): (usize, &Kind)| {
        let list = |list: usize| axes.all[list].name.clone();
        let lists: Vec<String> = kind.lists().map(list).collect();
        let sparse = kind.sparse(&folded.lists);
        let sparse = sparse.into_iter().filter_map(|place| lists.get(place).cloned()).collect();
        let outer: String = lists.iter().map(|list| format!("{list} ")).collect();
        let own = axes.dims[at].iter().flatten().map(|axis| axes.all[*axis].name.clone());
        let mut about = facts(tensors, kind);
        let first = kind.members.first().map(|(tensor, _)| &tensors[*tensor]);
        let suggested =
            first.and_then(|tensor| suggestion(role(&tensor.key)?, &tensor.key, &tensor.shape, &outer));
        let suggests = suggested.is_some();
        about.extend(suggested);
        let others = tied.get(&at).into_iter().flatten().map(|other| names[*other].as_str());
        let others: Vec<&str> = others.collect();
        if !others.is_empty() {
            let others = others.join(", ");
            about
                .push(format!("tied here with {others}: one parameter would do, its second rule `optional`"));
        }
        Param {
            name: names[at].clone(),
            axes: lists.iter().cloned().chain(own).collect(),
            sparse,
            about: about.join("; "),
            suggests,
        }
    };
    folded.kinds.iter().enumerate().map(param).collect()
}

/// Says how many tensors there are, of which types and shapes.
fn facts(tensors: &[Tensor], kind: &Kind) -> Vec<String> {
    let of = || kind.members.iter().map(|(tensor, _)| &tensors[*tensor]);
    let types: BTreeSet<&str> = of().map(|tensor| tensor.dtype.name()).collect();
    let shapes: BTreeSet<&[u64]> = of().map(|tensor| tensor.shape.as_slice()).collect();
    let types = types.into_iter().collect::<Vec<_>>().join(" and ");
    let times = if kind.members.len() > 1 { format!("{} x ", kind.members.len()) } else { String::new() };
    let shape = match (shapes.first(), shapes.last()) {
        (Some(one), Some(other)) if one != other => format!("{one:?} … {other:?}"),
        (Some(one), _) => format!("{one:?}"),
        _ => String::new(),
    };
    let mut facts = vec![format!("{times}{types} {shape}")];
    if of().all(|tensor| is_integer(tensor.dtype)) {
        facts.push("whole numbers: if it is a buffer, move its template to `ignore`".into());
    }
    facts
}

fn is_integer(dtype: Dtype) -> bool {
    matches!(
        dtype,
        Dtype::Bool
            | Dtype::U8
            | Dtype::I8
            | Dtype::U16
            | Dtype::I16
            | Dtype::U32
            | Dtype::I32
            | Dtype::U64
            | Dtype::I64
    )
}

/// Returns for each kind of tensor the other kinds whose tensors are the very same bytes of the file.
fn tied(ties: &[Vec<usize>], folded: &Folded) -> BTreeMap<usize, BTreeSet<usize>> {
    let members = folded.kinds.iter().enumerate();
    let kind_of: BTreeMap<usize, usize> =
        members.flat_map(|(at, kind)| kind.members.iter().map(move |(tensor, _)| (*tensor, at))).collect();
    let mut tied: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for group in ties {
        let kinds: BTreeSet<usize> = group.iter().filter_map(|tensor| kind_of.get(tensor).copied()).collect();
        for one in &kinds {
            tied.entry(*one).or_default().extend(kinds.iter().filter(|other| *other != one));
        }
    }
    tied
}

/// Names each kind of tensor: what follows the first index, or what follows the path that all names share; the whole name
/// where that would name two.
fn names(folded: &Folded) -> Vec<String> {
    let whole: Vec<Vec<String>> = folded.kinds.iter().map(|kind| segments(&kind.pieces)).collect();
    let shared = shared_path(&whole);
    let short = |kind: &Kind, whole: &Vec<String>| {
        let index = kind.pieces.iter().position(|piece| matches!(piece, Piece::Index(_)));
        let behind = match index {
            Some(at) => segments(&kind.pieces[at + 1..]),
            None => whole[shared..].to_vec(),
        };
        // `weight` alone would say nothing.
        if behind.len() < 2 { whole[whole.len().saturating_sub(3)..].join(".") } else { behind.join(".") }
    };
    let mut names: Vec<String> =
        folded.kinds.iter().zip(&whole).map(|(kind, whole)| short(kind, whole)).collect();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    names.iter().for_each(|name| *counts.entry(name.clone()).or_default() += 1);
    for (name, whole) in names.iter_mut().zip(&whole) {
        if counts.get(name).is_some_and(|count| *count > 1) {
            *name = whole.join(".");
        }
    }
    let mut taken = Taken::default();
    names.iter().map(|name| taken.give(name, "-")).collect()
}

/// Returns the segments of a template, as a label may hold them, without indices.
fn segments(pieces: &[Piece]) -> Vec<String> {
    let texts = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text.as_str()),
        Piece::Index(_) => None,
    });
    let segments = texts.flat_map(|text| text.split(['.', '/']));
    let letter = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '-' };
    let word = |segment: &str| -> String {
        // TensorFlow numbers the outputs of an operation; a variable is always the first.
        let segment = segment.strip_suffix(":0").unwrap_or(segment);
        segment.trim_matches('_').chars().map(letter).collect()
    };
    let segments: Vec<String> = segments.map(word).filter(|segment| !segment.is_empty()).collect();
    if segments.is_empty() { vec!["tensor".into()] } else { segments }
}

/// Returns how many leading segments all names share.
fn shared_path(names: &[Vec<String>]) -> usize {
    let Some((first, others)) = names.split_first() else { return 0 };
    let shares = |at: &usize| others.iter().all(|other| other.len() > at + 1 && other[*at] == first[*at]);
    let most = first.len().saturating_sub(1);
    if others.is_empty() { 0 } else { (0..most).take_while(shares).count() }
}
