//! The kinds of tensors of a bound checkpoint: those of one rule and shape, told once.

use indexmap::IndexMap;

use super::rotary::{Rotary, rotary};
use super::seen::{Seen, ranges};
use super::words::{describe, dim_names, group_words};
use crate::bind::{AxisSizes, Bound, SourceId, SourceTensor};
use crate::catalog::Catalog;
use crate::dtype::Dtype;
use crate::fold::fold_keys;
use crate::mapping::{Layout, Mapping};

/// Tensors that hold the same of different layers or modules.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Their names, indices folded.
    pub names: Vec<String>,
    /// How many.
    pub count: usize,
    /// The type of their elements.
    pub dtype: Dtype,
    /// Their shape.
    pub shape: Vec<u64>,
    /// For each stored axis its name and what it holds, in words.
    pub dims: Vec<(String, String)>,
    /// The groups of query heads that share a key and a value, in words, where there are any.
    pub groups: Option<String>,
    /// What they hold.
    pub parts: Vec<Part>,
    /// One of them, where they are of a checkpoint and not a layout's alone.
    pub example: Option<SourceId>,
}

/// A parameter in a tensor.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its name.
    pub param: String,
    /// How many heads it has, where it has any.
    pub heads: Option<u64>,
    /// One head, and the indices along each stored axis at which it lies.
    pub head: Option<(u64, Vec<Vec<u64>>)>,
    /// Which elements of a head are rotary pairs.
    pub rotary: Option<Rotary>,
}

impl Kind {
    /// Tells what they hold, in lines.
    pub fn words(&self) -> Vec<String> {
        let dims: Vec<String> = self.dims.iter().map(|(name, words)| format!("{name}: {words}")).collect();
        let mut lines = vec![dims.join("; ")];
        lines.extend(self.groups.clone());
        for part in &self.parts {
            if let Some((head, place)) = &part.head {
                let places: Vec<String> = self
                    .dims
                    .iter()
                    .zip(place)
                    .map(|((name, _), indices)| format!("{name} {}", ranges(indices)))
                    .collect();
                lines.push(format!("{} head {head}: {}", part.param, places.join(", ")));
            }
        }
        // Parameters that rotate alike are told together.
        let mut turning: Vec<(String, Vec<&str>)> = Vec::new();
        for part in &self.parts {
            let Some(rotary) = &part.rotary else { continue };
            let words = rotary.words();
            match turning.iter_mut().find(|(other, _)| *other == words) {
                Some((_, params)) => params.push(&part.param),
                None => turning.push((words, vec![&part.param])),
            }
        }
        lines.extend(turning.into_iter().map(|(words, params)| format!("{}: {words}", params.join(", "))));
        lines
    }
}

/// Returns the kinds of tensors that a checkpoint's layout explains, in the order of the rules.
pub fn kinds(mapping: &Mapping, layout: &Layout, bound: &Bound, catalog: &Catalog) -> Vec<Kind> {
    let mut groups: IndexMap<(usize, Dtype, Vec<u64>), Vec<SourceId>> = IndexMap::new();
    for (at, source) in (0..).map(SourceId::new).zip(&bound.sources) {
        let tensor = &catalog.tensors[source.tensor];
        groups.entry((source.reading.rule, tensor.dtype, tensor.shape.clone())).or_default().push(at);
    }
    groups.sort_by_cached_key(|(rule, ..), _| *rule);
    groups.into_values().map(|members| kind(mapping, layout, bound, catalog, &members)).collect()
}

/// Tells of tensors of one rule, type and shape by the first of them.
pub fn kind(
    mapping: &Mapping,
    layout: &Layout,
    bound: &Bound,
    catalog: &Catalog,
    members: &[SourceId],
) -> Kind {
    let example = members[0];
    let source = &bound.sources[example];
    let tensor = &catalog.tensors[source.tensor];
    let sizes = known_sizes(source);
    let expr = &layout.rules[source.reading.rule].expr;
    let words = describe(mapping, layout, expr, &sizes);
    let keys = members.iter().map(|at| catalog.tensors[bound.sources[*at].tensor].key.as_str());
    Kind {
        names: fold_keys(keys),
        count: members.len(),
        dtype: tensor.dtype,
        dims: dim_names(tensor.shape.len()).into_iter().zip(words).collect(),
        groups: group_words(mapping, layout, expr, &sizes),
        parts: parts(mapping, layout, bound, source, &tensor.shape),
        shape: tensor.shape.clone(),
        example: Some(example),
    }
}

/// Returns the sizes of the axes of a tensor's parameters that something tells.
fn known_sizes(source: &SourceTensor) -> AxisSizes {
    source
        .reading
        .known
        .iter()
        .flat_map(|(_, sizes)| sizes.iter())
        .map(|(axis, size)| (axis.clone(), *size))
        .collect()
}

fn parts(
    mapping: &Mapping,
    layout: &Layout,
    bound: &Bound,
    source: &SourceTensor,
    shape: &[u64],
) -> Vec<Part> {
    let seen = Seen::new(mapping, layout, bound, &source.reading);
    source.instances.iter().map(|(param, _)| part(&seen, &bound.params[*param], shape)).collect()
}

/// Tells of a parameter in a tensor of that shape.
pub fn part(seen: &Seen<'_>, param: &str, shape: &[u64]) -> Part {
    let (mapping, layout) = (seen.mapping(), seen.layout());
    let none = AxisSizes::new();
    let sizes = seen.known_sizes(param).unwrap_or(&none);
    let heads = mapping.head_axis(param).and_then(|axis| sizes.get(axis).copied());
    let head = heads.filter(|heads| *heads > 1).map(|heads| heads.min(4) - 1);
    let head = head.and_then(|head| Some((head, seen.head(shape, param, head)?)));
    Part { param: param.to_owned(), heads, head, rotary: rotary(mapping, layout, param, sizes) }
}
