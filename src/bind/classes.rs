//! Instances whose sizes are all equal, which those of layers and experts are: what follows from the sizes is made once
//! for all of them.

use std::collections::{HashMap, hash_map::Entry};
use std::sync::Arc;

use super::ids::{AxisId, ParamId};
use super::lower::{Block, Instance, LowerError, lower};
use super::pair::{Node, Pair, Part, Side};
use super::sizes::{Solver, Var};
use super::unknowns::{Scopes, Unknowns};
use super::{AxisSizes, Indices};

/// A tensor's shape, its blocks, and the sizes of each of its rule's parameters for a second reading of the expressions.
#[derive(Clone, Debug)]
pub(crate) struct Lowered {
    pub(crate) shape: Vec<u64>,
    pub(crate) blocks: Arc<[Block]>,
    pub(crate) sizes: Vec<(ParamId, Arc<AxisSizes>)>,
    /// Those of them that are not a factoring of a product.
    pub(crate) known: Vec<(ParamId, Arc<AxisSizes>)>,
}

/// A class of scopes, by number.
type Class = u32;

/// All that expressions can ask of a scope.
#[derive(PartialEq, Eq, Hash)]
struct Known {
    /// By axis.
    sizes: Vec<Option<u64>>,
    /// By axis, open products factored.
    factored: Vec<Option<u64>>,
    /// Of the neighbours that stay together, by run.
    products: Vec<Option<u64>>,
}

/// What a lowering depends on.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    is_source: bool,
    rule: usize,
    classes: Vec<Class>,
    /// The indices in the name that tell no instances apart.
    inside: Indices,
}

pub(crate) struct Classes {
    /// With every open product factored in any way that contradicts nothing: both layouts keep such axes together, so no
    /// tensor tells one factoring from another.
    factored: Solver,
    /// The axes that stay neighbours.
    runs: Vec<Vec<AxisId>>,
    of: HashMap<Scopes, Class>,
    numbers: HashMap<Known, Class>,
    /// By class: sizes for a second reading of the expressions.
    sizes: Vec<Arc<AxisSizes>>,
    /// By class: those of them that are known.
    known: Vec<Arc<AxisSizes>>,
    lowered: HashMap<Key, Lowered>,
}

impl Classes {
    pub(crate) fn new(unknowns: &Unknowns<'_>) -> Classes {
        let mut factored = unknowns.solver.clone();
        factored.factor_products();
        Classes {
            factored,
            runs: unknowns.pair.runs(),
            of: HashMap::default(),
            numbers: HashMap::default(),
            sizes: Vec::new(),
            known: Vec::new(),
            lowered: HashMap::default(),
        }
    }

    /// Lowers a tensor, as [`lower`] does. Strides other than those of the shape are of one tensor alone.
    pub(crate) fn lower(
        &mut self,
        unknowns: &mut Unknowns<'_>,
        instance: &Instance<'_>,
        strides: Option<&[u64]>,
    ) -> Result<Lowered, LowerError> {
        let pair = unknowns.pair;
        let rule = &pair.rules(instance.side)[instance.rule];
        let classes: Vec<Class> =
            instance.scopes.iter().map(|&scopes| self.class(unknowns, scopes)).collect();
        let of = |all: &[Arc<AxisSizes>]| {
            let own = classes.iter().map(|&class| Arc::clone(&all[class as usize]));
            rule.params.iter().copied().zip(own).collect::<Vec<_>>()
        };
        let made = |unknowns: &mut Unknowns<'_>| {
            let (shape, blocks) = lower(unknowns, instance, strides)?;
            Ok(Lowered { shape, blocks: blocks.into(), sizes: of(&self.sizes), known: of(&self.known) })
        };
        if strides.is_some() {
            return made(unknowns);
        }
        let tells =
            |axis: &AxisId| rule.params.iter().all(|&param| pair.params[param].instance_axes.contains(axis));
        let key = Key {
            is_source: instance.side == Side::Source,
            rule: instance.rule,
            classes: classes.clone(),
            inside: instance.indices.iter().copied().filter(|(axis, _)| !tells(axis)).collect(),
        };
        Ok(match self.lowered.entry(key) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(place) => place.insert(made(unknowns)?).clone(),
        })
    }

    fn class(&mut self, unknowns: &Unknowns<'_>, scopes: Scopes) -> Class {
        let pair = unknowns.pair;
        let scopes = scopes.told_apart(pair);
        if let Some(&class) = self.of.get(&scopes) {
            return class;
        }
        let vars: Vec<Option<Var>> = pair.axes().map(|axis| unknowns.known_var(scopes, axis)).collect();
        let sizes: Vec<Option<u64>> = vars.iter().map(|var| unknowns.solver.value((*var)?)).collect();
        let product = |run: &Vec<AxisId>| {
            let vars: Option<Vec<Var>> = run.iter().map(|axis| vars[axis.index()]).collect();
            unknowns.solver.product(&vars?)
        };
        let known = Known {
            products: self.runs.iter().map(product).collect(),
            factored: vars.iter().map(|var| self.factored.value_of_known((*var)?)).collect(),
            sizes,
        };
        let next = self.sizes.len() as Class;
        let class = match self.numbers.entry(known) {
            Entry::Occupied(number) => *number.get(),
            Entry::Vacant(place) => {
                let completed = |values: &[Option<u64>]| {
                    let named = pair.names().zip(values);
                    let mut sizes: AxisSizes =
                        named.filter_map(|(name, size)| Some((name.to_owned(), (*size)?))).collect();
                    complete(pair, &mut sizes);
                    Arc::new(sizes)
                };
                self.sizes.push(completed(&place.key().factored));
                self.known.push(completed(&place.key().sizes));
                *place.insert(next)
            }
        };
        self.of.insert(scopes, class);
        class
    }
}

/// Adds the axes that no tensor mentions but whose parts have sizes: `h = g r`, `g = t gt` where both sides hold
/// `gt r`.
fn complete(pair: &Pair<'_>, sizes: &mut AxisSizes) {
    loop {
        let size = |name: &str| -> Option<u64> {
            let axis = pair.find(name)?;
            let sides = [Side::Source, Side::Target];
            let defined =
                sides.iter().flat_map(|&side| [pair.stored(side, axis), pair.canonical(side, axis)]);
            defined.flatten().find_map(|parts| length(pair, parts, sizes))
        };
        let open = pair.names().filter(|name| !sizes.contains_key(*name));
        let found: Vec<(String, u64)> =
            open.filter_map(|name| Some((name.to_owned(), size(name)?))).collect();
        if found.is_empty() {
            return;
        }
        sizes.extend(found);
    }
}

fn length(pair: &Pair<'_>, parts: &[Part], sizes: &AxisSizes) -> Option<u64> {
    let node = |node: &Node| match node {
        Node::One => Some(1),
        Node::Run(run) => run.iter().try_fold(1_u64, |product, &axis| {
            product.checked_mul(pair.fixed(axis).or_else(|| sizes.get(pair.name(axis)).copied())?)
        }),
        Node::Sum(parts) => length(pair, parts, sizes),
    };
    let part = |part: &Part| part.dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(node(dim)?));
    parts.iter().try_fold(0_u64, |sum, one| sum.checked_add(part(one)?))
}
