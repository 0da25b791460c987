//! The unknown sizes of one conversion: which axis of which instance is which unknown, and what is said of it.

use std::collections::HashMap;
use std::sync::Arc;

use super::Indices;
use super::ids::{AxisId, ModuleId, ParamId};
use super::pair::{Label, Node, Pair, Part, Side};
use super::sizes::{Equation, Monomial, Origin, Polynomial, Side as Equal, Solver, Var};
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
    /// No other size fits all that is known.
    Only,
    /// One dimension of a stored tensor.
    Shape { tensor: usize, rule: usize, dim: usize },
    /// The indices in the names of stored tensors.
    Names { tensor: usize },
    /// An axis's definition.
    Definition { axis: AxisId },
}

/// Sizes that hold for every instance, by axis.
pub(crate) type Given = HashMap<AxisId, Vec<(u64, Fact)>>;

/// The definitions of an axis, each with where it comes from.
type Definitions = Arc<[(Origin, Vec<Part>)]>;

/// Where a parameter's instance has its sizes: most axes have one size for all parameters that have the same indices in
/// the same module, some have one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scopes {
    shared: u32,
    param: ParamId,
}

impl Scopes {
    pub(crate) fn param(self) -> ParamId {
        self.param
    }

    /// Returns the same for all parameters where no axis has a size for each of them.
    pub(crate) fn told_apart(self, pair: &Pair<'_>) -> Scopes {
        match pair.axes().any(|axis| pair.is_per_parameter(axis)) {
            true => self,
            false => Scopes { param: ParamId::new(0), ..self },
        }
    }
}

pub(crate) struct Unknowns<'a> {
    pub(crate) pair: &'a Pair<'a>,
    pub(crate) solver: Solver,
    pub(crate) facts: Vec<Fact>,
    given: Given,
    /// By module and the instance's indices.
    scopes: HashMap<(ModuleId, Indices), u32>,
    /// Per scope and axis, for all of its parameters.
    shared: Vec<Option<Var>>,
    /// Those that each parameter has for itself.
    own: HashMap<(Scopes, AxisId), Var>,
    /// The axis and the scopes of each unknown, by its number.
    pub(crate) axes: Vec<(AxisId, Scopes)>,
    definitions: HashMap<AxisId, Definitions>,
    /// Unknowns that a rule of the mapping made equal to another, and the rule.
    pub(crate) by_rule: HashMap<Var, Origin>,
}

impl<'a> Unknowns<'a> {
    pub(crate) fn new(pair: &'a Pair<'a>, given: Given) -> Unknowns<'a> {
        Unknowns {
            pair,
            solver: Solver::default(),
            facts: Vec::new(),
            given,
            scopes: HashMap::default(),
            shared: Vec::new(),
            own: HashMap::default(),
            axes: Vec::new(),
            definitions: HashMap::default(),
            by_rule: HashMap::default(),
        }
    }

    pub(crate) fn fact(&mut self, fact: Fact) -> Origin {
        self.facts.push(fact);
        (self.facts.len() - 1) as Origin
    }

    /// Returns the scopes of a parameter's instance.
    pub(crate) fn scopes(&mut self, module: ModuleId, param: ParamId, instance: Indices) -> Scopes {
        let next = self.scopes.len() as u32;
        let shared = *self.scopes.entry((module, instance)).or_insert(next);
        if shared == next {
            self.shared.resize(self.shared.len() + self.pair.axes().len(), None);
        }
        Scopes { shared, param }
    }

    fn shared_at(&self, scopes: Scopes, axis: AxisId) -> usize {
        scopes.shared as usize * self.pair.axes().len() + axis.index()
    }

    /// Returns the unknown size of an axis; what is known without shapes is stated when it is first asked for.
    pub(crate) fn var(&mut self, scopes: Scopes, axis: AxisId) -> Var {
        if let Some(var) = self.known_var(scopes, axis) {
            return var;
        }
        let var = self.solver.var();
        if self.pair.is_per_parameter(axis) {
            self.own.insert((scopes, axis), var);
        } else {
            let at = self.shared_at(scopes, axis);
            self.shared[at] = Some(var);
        }
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
        match self.pair.is_per_parameter(axis) {
            true => self.own.get(&(scopes, axis)).copied(),
            false => self.shared.get(self.shared_at(scopes, axis)).copied().flatten(),
        }
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

    /// States the length of a stored axis. One that is a single axis tells its size at once, and nothing where that is
    /// known.
    pub(crate) fn length(
        &mut self,
        node: &Node,
        outer: Scopes,
        of: &impl Fn(ParamId) -> Scopes,
        (length, fact): (u64, Fact),
    ) {
        if let Node::Run(run) = node
            && let [axis] = run[..]
        {
            let var = self.var(outer, axis);
            match self.solver.value(var) {
                Some(known) if known == length => return,
                None => {
                    let origin = self.fact(fact);
                    return self.solver.set(var, length, origin);
                }
                Some(_) => {}
            }
        }
        let polynomial = self.node(node, outer, of);
        let origin = self.fact(fact);
        self.solver.equation(Equation { polynomial, side: Equal::Number(length), origin });
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
