//! The unknown sizes of one conversion: which axis of which instance is which unknown, and what is said of it.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::pair::{AxisId, Label, Node, Pair, ParamId, Part, Side};
use super::sizes::{Equation, Monomial, Origin, Polynomial, Side as Equal, Solver, Var};
use super::{AxisSizes, Tuples};
use crate::span::Span;

/// Where a fact about sizes comes from.
#[derive(Clone, Debug)]
pub(crate) enum Fact {
    /// `--axis h=12`
    Option,
    /// An entry of the config file.
    Config { key: String },
    /// What an earlier conversion recorded in the file.
    Recorded,
    /// The mapping fixes it.
    Fixed,
    /// The framework's rule for what the config leaves out, or for what the layout fixes.
    Rule { span: Span },
    /// One dimension of a stored tensor.
    Shape { tensor: usize, rule: usize, dim: usize },
    /// The indices in the names of stored tensors.
    Names { tensor: usize },
    /// An axis's definition.
    Definition { axis: AxisId },
}

/// Sizes that hold for every instance, by axis.
pub(crate) type Given = FxHashMap<AxisId, Vec<(u64, Fact)>>;

/// The definitions of an axis, each with where it comes from.
type Definitions = Arc<[(Origin, Vec<Part>)]>;

/// The two scopes of a parameter's instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scopes {
    shared: u32,
    own: u32,
}

pub(crate) struct Unknowns<'a> {
    pub(crate) pair: &'a Pair<'a>,
    pub(crate) solver: Solver,
    pub(crate) facts: Vec<Fact>,
    given: Given,
    tuples: Tuples,
    /// By module, parameter (or what all share) and the number of the instance's indices.
    scopes: FxHashMap<(u32, Option<ParamId>, u32), u32>,
    vars: FxHashMap<(u32, AxisId), Var>,
    /// The axis and the scopes of each unknown, by its number.
    pub(crate) axes: Vec<(AxisId, Scopes)>,
    definitions: FxHashMap<AxisId, Definitions>,
    /// Unknowns that a rule of the mapping made equal to another, and the rule.
    pub(crate) by_rule: FxHashMap<Var, Origin>,
}

impl<'a> Unknowns<'a> {
    pub(crate) fn new(pair: &'a Pair<'a>, given: Given) -> Unknowns<'a> {
        Unknowns {
            pair,
            solver: Solver::default(),
            facts: Vec::new(),
            given,
            tuples: Tuples::default(),
            scopes: FxHashMap::default(),
            vars: FxHashMap::default(),
            axes: Vec::new(),
            definitions: FxHashMap::default(),
            by_rule: FxHashMap::default(),
        }
    }

    pub(crate) fn fact(&mut self, fact: Fact) -> Origin {
        self.facts.push(fact);
        (self.facts.len() - 1) as Origin
    }

    /// Returns the scopes of a parameter's instance.
    pub(crate) fn scopes(&mut self, module: u32, param: ParamId, instance: &[(AxisId, u64)]) -> Scopes {
        let instance = self.tuples.number(instance);
        let mut intern = |param: Option<ParamId>| {
            let next = self.scopes.len() as u32;
            *self.scopes.entry((module, param, instance)).or_insert(next)
        };
        Scopes { shared: intern(None), own: intern(Some(param)) }
    }

    /// Returns the unknown size of an axis; what is known without shapes is stated when it is first asked for.
    pub(crate) fn var(&mut self, scopes: Scopes, axis: AxisId) -> Var {
        let scope = if self.pair.is_per_parameter(axis) { scopes.own } else { scopes.shared };
        if let Some(&var) = self.vars.get(&(scope, axis)) {
            return var;
        }
        let var = self.solver.var();
        self.vars.insert((scope, axis), var);
        self.axes.push((axis, scopes));
        if let Some(size) = self.pair.fixed(axis) {
            let origin = self.fact(Fact::Fixed);
            self.solver.set(var, size, origin);
        }
        let given = std::mem::take(&mut self.given);
        for (value, fact) in given.get(&axis).into_iter().flatten() {
            let origin = self.fact(fact.clone());
            self.solver.set(var, *value, origin);
        }
        self.given = given;
        for (origin, parts) in self.definitions_of(axis).iter() {
            let polynomial = self.parts(parts, scopes, &|_| scopes);
            self.solver.equation(Equation { polynomial, side: Equal::Var(var), origin: *origin });
        }
        var
    }

    /// Returns the definitions of an axis: the family's, and each layout's where it has others.
    fn definitions_of(&mut self, axis: AxisId) -> Definitions {
        if let Some(known) = self.definitions.get(&axis) {
            return Arc::clone(known);
        }
        let mut all: Vec<Vec<Part>> = Vec::new();
        for side in [Side::Source, Side::Target] {
            for parts in [self.pair.stored(side, axis), self.pair.canonical(side, axis)].into_iter().flatten()
            {
                if !all.iter().any(|other| other == parts) {
                    all.push(parts.to_vec());
                }
            }
        }
        let made: Definitions =
            all.into_iter().map(|parts| (self.fact(Fact::Definition { axis }), parts)).collect();
        self.definitions.insert(axis, Arc::clone(&made));
        made
    }

    /// Returns the known sizes of an axis, wherever it has one.
    pub(crate) fn sizes_of(&self, axis: AxisId) -> impl Iterator<Item = u64> {
        let mine = self.axes.iter().enumerate().filter(move |(_, (other, _))| *other == axis);
        mine.filter_map(|(var, _)| self.solver.value(Var(var as u32)))
    }

    /// Returns the unknown, where the axis was asked for before.
    pub(crate) fn known_var(&self, scopes: Scopes, axis: AxisId) -> Option<Var> {
        let scope = if self.pair.is_per_parameter(axis) { scopes.own } else { scopes.shared };
        self.vars.get(&(scope, axis)).copied()
    }

    /// Returns the size of neighbouring axes together.
    ///
    /// # Errors
    /// Returns an unknown that keeps it from being known.
    pub(crate) fn size(&mut self, scopes: Scopes, run: &[AxisId]) -> Result<u64, Var> {
        let vars: Vec<Var> = run.iter().map(|&axis| self.var(scopes, axis)).collect();
        match self.solver.product(&vars) {
            Some(size) => Ok(size),
            None => Err(self.solver.open(&vars).unwrap_or(vars[0])),
        }
    }

    /// Returns the length of one stored axis as a polynomial. `outer` is the scopes of what stands outside labels.
    pub(crate) fn node(&mut self, node: &Node, outer: Scopes, of: &impl Fn(ParamId) -> Scopes) -> Polynomial {
        match node {
            Node::One => vec![Monomial { factor: 1, vars: Vec::new() }],
            Node::Run(run) => {
                let mut vars: Vec<Var> = run.iter().map(|&axis| self.var(outer, axis)).collect();
                vars.sort_unstable();
                vec![Monomial { factor: 1, vars }]
            }
            Node::Sum(parts) => self.parts(parts, outer, of),
        }
    }

    fn parts(&mut self, parts: &[Part], outer: Scopes, of: &impl Fn(ParamId) -> Scopes) -> Polynomial {
        let mut sum = Vec::new();
        for part in parts {
            let scopes = match part.label {
                Label::Param(param) => of(param),
                Label::None | Label::Padding => outer,
            };
            let mut product = vec![Monomial { factor: 1, vars: Vec::new() }];
            for node in &part.dims {
                let factor = self.node(node, scopes, of);
                product = multiply(&product, &factor);
            }
            sum.extend(product);
        }
        sum
    }

    /// States that what stands outside labels has one size for all parameters of the tensor.
    pub(crate) fn share(&mut self, dims: &[Node], params: &[Scopes]) {
        let Some((&first, others)) = params.split_first() else { return };
        if others.is_empty() {
            return;
        }
        let mut axes = Vec::new();
        unlabelled(dims, &mut axes);
        for axis in axes {
            let var = self.var(first, axis);
            for &other in others {
                let other = self.var(other, axis);
                self.solver.unify(var, other);
            }
        }
    }
}

/// Sizes for a second reading of the expressions. A product whose factors are open is factored in any way that
/// contradicts nothing: both layouts keep such axes together, so no tensor tells one factoring from another.
pub(crate) struct ReadingSizes {
    solver: Solver,
    cache: FxHashMap<Scopes, Arc<AxisSizes>>,
    /// The same sizes under many scopes, those of layers and experts, are made once; a reader then knows them again by
    /// their address. The key has the size of each axis, by number.
    made: FxHashMap<Vec<Option<u64>>, Arc<AxisSizes>>,
}

impl ReadingSizes {
    pub(crate) fn new(unknowns: &Unknowns<'_>) -> ReadingSizes {
        let mut solver = unknowns.solver.clone();
        solver.factor_products();
        ReadingSizes { solver, cache: FxHashMap::default(), made: FxHashMap::default() }
    }

    /// Returns the sizes of each parameter's instance.
    pub(crate) fn of_all(
        &mut self,
        unknowns: &Unknowns<'_>,
        params: &[ParamId],
        scopes: &[Scopes],
    ) -> Vec<(ParamId, Arc<AxisSizes>)> {
        params.iter().zip(scopes).map(|(&param, &scopes)| (param, self.of(unknowns, scopes))).collect()
    }

    fn of(&mut self, unknowns: &Unknowns<'_>, scopes: Scopes) -> Arc<AxisSizes> {
        let solver = &self.solver;
        let made = self.cache.entry(scopes).or_insert_with(|| {
            let size = |axis| solver.value_of_known(unknowns.known_var(scopes, axis)?);
            let known: Vec<Option<u64>> = unknowns.pair.axes().map(size).collect();
            let make = |known: &[Option<u64>]| {
                let named = unknowns.pair.names().zip(known);
                let mut sizes: AxisSizes =
                    named.filter_map(|(name, size)| Some((name.to_owned(), (*size)?))).collect();
                complete(unknowns.pair, &mut sizes);
                Arc::new(sizes)
            };
            match self.made.get(&known) {
                Some(made) => Arc::clone(made),
                None => {
                    let made = make(&known);
                    self.made.insert(known, Arc::clone(&made));
                    made
                }
            }
        });
        Arc::clone(made)
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

fn unlabelled(dims: &[Node], axes: &mut Vec<AxisId>) {
    for node in dims {
        match node {
            Node::One => {}
            Node::Run(run) => axes.extend(run),
            Node::Sum(parts) => {
                parts
                    .iter()
                    .filter(|part| part.label == Label::None)
                    .for_each(|part| unlabelled(&part.dims, axes));
            }
        }
    }
}

fn multiply(left: &Polynomial, right: &Polynomial) -> Polynomial {
    let mut product = Vec::with_capacity(left.len() * right.len());
    for a in left {
        for b in right {
            let mut vars: Vec<Var> = a.vars.iter().chain(&b.vars).copied().collect();
            vars.sort_unstable();
            // A factor is a literal of the mapping; a product of those that overflows fits no tensor.
            product.push(Monomial { factor: a.factor.saturating_mul(b.factor), vars });
        }
    }
    product
}
