//! What a bound source layout says of the attention modules: which stored rows are queries, keys, values, which heads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexMap;

use super::Limits;
use super::arrange::{Heads, Part, Place};
use super::sample::{Matrix, Placed, spread};
use crate::bind::{AxisSizes, Block, Bound, Content, ModuleId, ParamId, SourceTensor};
use crate::catalog::Catalog;
use crate::mapping::role::{AttentionPart, ParamRole};

/// The most rows of one tensor, all layers of a stack together.
const MOST_ROWS: u64 = 1 << 22;

/// An attention module as the declared layout stores it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Where it is in the checkpoint.
    pub name: String,
    /// Its heads, where they are known.
    pub heads: Option<Heads>,
    /// The tensor that holds several of q, k and v, if one does.
    pub fused: Option<Placed>,
    /// The bias of the fused tensor.
    pub bias: Option<Placed>,
    /// Each part alone, its rows in canonical order (heads slowest; the output projection's are its inputs).
    pub parts: BTreeMap<Part, Alone>,
}

/// One part of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alone {
    /// Its matrix.
    pub matrix: Matrix,
    /// Whether its tensor holds it alone and is square, so that a transpose has the same shape.
    pub is_square: bool,
}

/// What a source layout declares of a checkpoint's attention modules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// The modules, in order of their tensors: of those that are alike as many as the limits leave, spread over all.
    pub modules: Vec<Module>,
    /// How many modules the limits leave out.
    pub left_out: usize,
    /// The names of tensors that cannot be weighed: copies, padding, heads in tensors of their own, quantised types.
    pub skipped: Vec<String>,
}

/// What tensors of one module have in common: the captured path and the name's indices.
type Name = (ModuleId, Vec<(Arc<str>, u64)>);

/// What a module is known by: beside the name which attention of the family it is, and the place in a stack.
type Id = (Name, usize, u64);

/// One parameter in one tensor.
struct Held {
    part: Part,
    is_bias: bool,
    heads: Option<Heads>,
    /// Per layer of the stack: rows as (offset, canonical index).
    layers: BTreeMap<u64, Vec<(u64, u32)>>,
    columns: Vec<u64>,
}

/// Returns what a bound checkpoint's layout declares of its attention modules.
pub fn declared(bound: &Bound, catalog: &Catalog, limits: &Limits) -> Declared {
    let mut declared = Declared::default();
    let names = picked(bound, catalog, limits, &mut declared.left_out);
    let mut order: Vec<Id> = Vec::new();
    let mut modules: HashMap<Id, Module> = HashMap::default();
    for source in &bound.sources {
        let Some(meta) = catalog.tensors.get(source.tensor) else { continue };
        let Some(name) = name(bound, source).filter(|name| names.contains(name)) else { continue };
        // It says nothing, and its other axes may be of any length.
        if meta.elements() == 0 {
            continue;
        }
        let mut by_attention: BTreeMap<usize, Vec<Held>> = BTreeMap::new();
        let mut whole = true;
        for (param, _) in &source.instances {
            let Some((part, declared)) = part(bound, *param) else { continue };
            // An output bias has no heads.
            if (part, declared.is_bias) == (Part::Output, true) {
                continue;
            }
            match held(source, *param, part, declared) {
                Some(held) if meta.dtype.is_computable() => {
                    by_attention.entry(declared.attention).or_default().push(held);
                }
                _ => whole = false,
            }
        }
        if !whole {
            declared.skipped.push(meta.key.clone());
            continue;
        }
        for (attention, held) in by_attention {
            let layers = held.iter().flat_map(|held| held.layers.keys().copied()).max().unwrap_or(0);
            for layer in 0..=layers {
                let id = (name.clone(), attention, layer);
                let found = modules.entry(id.clone()).or_insert_with(|| {
                    order.push(id);
                    Module { name: meta.key.clone(), ..Module::default() }
                });
                let is_square = source.instances.len() == 1
                    && matches!(meta.shape[..], [rows, columns] if rows == columns);
                add(found, source.tensor, &held, layer, is_square);
            }
        }
    }
    let found = order.into_iter().filter_map(|id| modules.remove(&id));
    declared.modules = found.filter(|module| !module.parts.is_empty()).collect();
    declared
}

/// Returns what a tensor has in common with the others of its module, if it holds parts of an attention module.
fn name(bound: &Bound, source: &SourceTensor) -> Option<Name> {
    source.instances.iter().find(|(param, _)| part(bound, *param).is_some())?;
    let (_, instance) = source.instances.first()?;
    Some((bound.instances.get(instance.index())?.module, source.reading.captures.indices.clone()))
}

/// Picks modules before anything is made of them: tables of rows of all layers of a large model would be large too.
fn picked(bound: &Bound, catalog: &Catalog, limits: &Limits, left_out: &mut usize) -> HashSet<Name> {
    let mut kinds: IndexMap<Name, Vec<(usize, &[u64])>> = IndexMap::new();
    for source in &bound.sources {
        if let (Some(name), Some(meta)) = (name(bound, source), catalog.tensors.get(source.tensor)) {
            kinds.entry(name).or_default().push((source.reading.rule, &meta.shape));
        }
    }
    let mut alike: IndexMap<Vec<(usize, &[u64])>, Vec<Name>> = IndexMap::new();
    for (name, mut kind) in kinds {
        kind.sort_unstable();
        alike.entry(kind).or_default().push(name);
    }
    let mut names = HashSet::default();
    for list in alike.into_values() {
        let some = spread(&list, limits.modules);
        *left_out += list.len() - some.len();
        names.extend(some);
    }
    names
}

/// Returns which part of which attention a parameter is.
fn part(bound: &Bound, param: ParamId) -> Option<(Part, &AttentionPart)> {
    let declared = bound.parts.get(param.index())?.as_ref()?;
    let part = match declared.role {
        ParamRole::Q => Part::Query,
        ParamRole::K => Part::Key,
        ParamRole::V => Part::Value,
        ParamRole::O => Part::Output,
        _ => return None,
    };
    Some((part, declared))
}

/// Reads one parameter's blocks in a tensor; `None` where they do not hold it whole.
fn held(source: &SourceTensor, param: ParamId, part: Part, declared: &AttentionPart) -> Option<Held> {
    let is_bias = declared.is_bias;
    let own = |all: &[(ParamId, Arc<AxisSizes>)]| {
        let sizes = all.iter().find(|(other, _)| *other == param).map(|(_, sizes)| Arc::clone(sizes));
        sizes.and_then(|sizes| factors(declared, &sizes))
    };
    let heads = own(&source.reading.known).filter(|heads| heads.g > 0 && heads.h.is_multiple_of(heads.g));
    // What is known of a product alone: any factors that fit make it.
    let rows = own(&source.reading.sizes).map(|heads| heads.rows(part));
    let blocks: Vec<&Block> =
        source.blocks.iter().filter(|block| block.content == Content::Param(param)).collect();
    // Where an axis that a parameter lacks has size 1 (`h` of k, without groups), nothing is copied.
    let only_params = source.blocks.iter().all(|block| {
        let is_copied = block.is_copy || block.repeats.iter().any(|(count, _)| *count > 1);
        matches!(block.content, Content::Param(_)) && !is_copied
    });
    let count = blocks.first()?.coordinates.len();
    if !only_params {
        return None;
    }
    let lengths: Vec<u64> = (0..count).map(|at| length(&blocks, at)).collect();
    let (is_row, is_column) = axes(part, is_bias, &lengths, rows)?;
    let per_layer: u64 = (0..count).filter(|at| is_row(*at)).map(|at| lengths[at]).product();
    let mut all: BTreeMap<u64, Vec<(u64, u32)>> = BTreeMap::new();
    let mut columns: Option<Vec<u64>> = None;
    for block in blocks {
        let (mut rows, mut own) = (vec![(block.offset, 0)], vec![(0, 0)]);
        for (at, coordinate) in block.coordinates.iter().enumerate() {
            let list = if is_column(at) { &mut own } else { &mut rows };
            list.iter_mut().for_each(|(_, index)| *index = *index * lengths[at] + coordinate.base);
            for factor in &coordinate.factors {
                if (list.len() as u64).saturating_mul(factor.count) > MOST_ROWS {
                    return None;
                }
                *list = list
                    .iter()
                    .flat_map(|(offset, index)| {
                        (0..factor.count)
                            .map(move |i| (offset + i * factor.stride, index + i * factor.weight))
                    })
                    .collect();
            }
        }
        own.sort_unstable_by_key(|(_, index)| *index);
        let own: Vec<u64> = own.into_iter().map(|(offset, _)| offset).collect();
        if *columns.get_or_insert_with(|| own.clone()) != own {
            return None;
        }
        for (offset, index) in rows {
            all.entry(index / per_layer.max(1))
                .or_default()
                .push((offset, (index % per_layer.max(1)) as u32));
        }
    }
    let whole = all.values().all(|rows| rows.len() as u64 == per_layer);
    whole.then_some(Held { part, is_bias, heads, layers: all, columns: columns? })
}

/// Tells axes by their place.
type AxisTest = Box<dyn Fn(usize) -> bool>;

/// Tells which coordinates are rows and which are columns; those before are layers of a stack.
fn axes(part: Part, is_bias: bool, lengths: &[u64], rows: Option<u64>) -> Option<(AxisTest, AxisTest)> {
    let end = match (part, is_bias) {
        (Part::Output, true) => return None,
        (Part::Output, false) | (_, true) => lengths.len(),
        (_, false) => lengths.len().checked_sub(1)?,
    };
    // The last axes whose sizes multiply to the known rows; without them everything that can be.
    let floor = usize::from(part == Part::Output);
    let start = match rows {
        Some(rows) => {
            (floor..end).rev().find(|start| lengths[*start..end].iter().product::<u64>() == rows)?
        }
        None => floor,
    };
    let column = match (part, is_bias) {
        (Part::Output, _) => start.checked_sub(1),
        (_, false) => Some(end),
        (_, true) => None,
    };
    Some((Box::new(move |at| (start..end).contains(&at)), Box::new(move |at| Some(at) == column)))
}

/// Returns the length of a parameter's coordinate.
fn length(blocks: &[&Block], at: usize) -> u64 {
    let last = |block: &&Block| {
        block.coordinates.get(at).map_or(0, |coordinate| {
            coordinate.base
                + coordinate
                    .factors
                    .iter()
                    .map(|factor| factor.count.saturating_sub(1) * factor.weight)
                    .sum::<u64>()
        })
    };
    blocks.iter().map(last).max().unwrap_or(0) + 1
}

/// Returns the sizes of an attention's heads.
fn factors(declared: &AttentionPart, sizes: &AxisSizes) -> Option<Heads> {
    let [h, g, d, dv] = declared.axes.as_ref()?;
    let (h, d) = (*sizes.get(h)?, *sizes.get(d)?);
    let g = sizes.get(g).copied().unwrap_or(h);
    Some(Heads { h, g, d, dv: sizes.get(dv).copied().unwrap_or(d) })
}

/// Adds what a tensor holds of one layer.
fn add(module: &mut Module, tensor: usize, held: &[Held], layer: u64, is_square: bool) {
    for held in held.iter().filter(|held| !held.is_bias) {
        module.heads = module.heads.or(held.heads);
        let Some(rows) = held.layers.get(&layer) else { continue };
        let mut rows = rows.clone();
        rows.sort_unstable_by_key(|(_, index)| *index);
        let rows = rows.into_iter().map(|(offset, _)| offset).collect();
        let matrix = Matrix { tensor, rows, columns: held.columns.clone() };
        module.parts.insert(held.part, Alone { matrix, is_square });
    }
    for is_bias in [false, true] {
        let fused: Vec<&Held> =
            held.iter().filter(|held| held.is_bias == is_bias && held.part != Part::Output).collect();
        let Some(first) = fused.first() else { continue };
        if fused.len() < 2 || fused.iter().any(|held| held.columns != first.columns) {
            continue;
        }
        let mut rows: Vec<(u64, Place)> = Vec::new();
        for held in &fused {
            let layer = held.layers.get(&layer).into_iter().flatten();
            rows.extend(layer.map(|(offset, index)| (*offset, (held.part, *index))));
        }
        rows.sort_unstable();
        let (rows, places) = rows.into_iter().unzip();
        let placed = Placed { matrix: Matrix { tensor, rows, columns: first.columns.clone() }, places };
        if is_bias {
            module.bias = Some(placed);
        } else {
            module.fused = Some(placed);
        }
    }
}
