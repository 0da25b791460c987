//! Sizes that nothing tells and that can be one number alone.

use std::collections::{BTreeSet, HashMap};

use super::Binding;
use super::pair::Side;
use super::sizes::{Polynomial, Side as Equal, Solver, Var};
use super::unknowns::{Fact, Unknowns};
use crate::mapping::forward::Forward;

/// What a framework demands of sizes beside the shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Demand {
    /// Pairs turn: the head size is even.
    Even(Var),
    /// So many query heads share each key/value head: the second divides the first.
    Divides(Var, Var),
}

impl Demand {
    fn vars(self) -> [Var; 2] {
        match self {
            Demand::Even(var) => [var, var],
            Demand::Divides(many, few) => [many, few],
        }
    }

    /// Returns whether it holds as far as the sizes are known.
    fn holds(self, solver: &Solver) -> bool {
        match self.vars().map(|var| solver.value(var)) {
            [Some(many), Some(few)] => match self {
                Demand::Even(_) => many.is_multiple_of(2),
                Demand::Divides(..) => few > 0 && many.is_multiple_of(few),
            },
            _ => true,
        }
    }
}

/// What is said of unknowns that have to do with each other, by numbers of their own.
type Said = (Vec<(Polynomial, Equal)>, Vec<Demand>);

impl Binding<'_> {
    /// Takes the sizes of which one alone fits the shapes, the definitions of axes and what the framework computes.
    pub(super) fn take_only_values(&self, unknowns: &mut Unknowns<'_>) {
        unknowns.solver.solve();
        if !unknowns.solver.contradictions.is_empty() {
            return;
        }
        let demands = self.demands(unknowns);
        // Layers are mostly alike: one of a kind is tried.
        let mut alike: HashMap<Said, Vec<Option<u64>>> = HashMap::default();
        let mut found: Vec<(Var, u64)> = Vec::new();
        for (roots, said) in unknowns.solver.apart() {
            let (small, names) = unknowns.solver.of_these(&roots, &said);
            let renamed = |demand: &Demand| {
                let name = |var: Var| names.get(&unknowns.solver.root(var)).copied();
                Some(match *demand {
                    Demand::Even(var) => Demand::Even(name(var)?),
                    Demand::Divides(many, few) => Demand::Divides(name(many)?, name(few)?),
                })
            };
            let own: BTreeSet<Demand> = demands.iter().filter_map(renamed).collect();
            let own: Vec<Demand> = own.into_iter().collect();
            let mut equations = small.all_said();
            equations.sort();
            let values = alike
                .entry((equations, own.clone()))
                .or_insert_with(|| only_values(small, names.len(), &own));
            found
                .extend(roots.iter().zip(values.iter()).filter_map(|(root, value)| Some((*root, (*value)?))));
        }
        for (root, value) in found {
            let origin = unknowns.fact(Fact::Only);
            unknowns.solver.set(root, value, origin);
        }
        unknowns.solver.solve();
    }

    /// Collects what the source's framework demands, of all that has sizes.
    fn demands(&self, unknowns: &Unknowns<'_>) -> Vec<Demand> {
        let forwards: Vec<&Forward> = self.pair.layout(Side::Source).forwards.values().collect();
        let mut demands = Vec::new();
        for (number, &(axis, scopes)) in unknowns.axes.iter().enumerate() {
            let (name, var) = (self.pair.name(axis), Var(number as u32));
            for forward in &forwards {
                let turns = forward.rotary.as_ref().is_some_and(|rotary| rotary.dims.is_none());
                if turns && forward.axis("d") == name {
                    demands.push(Demand::Even(var));
                }
                let few = self.pair.find(forward.axis("g")).filter(|_| forward.axis("h") == name);
                if let Some(few) = few.and_then(|axis| unknowns.known_var(scopes, axis)) {
                    demands.push(Demand::Divides(var, few));
                }
            }
        }
        demands
    }
}

/// Returns the only size of each unknown, where it has one; what is found helps to find the others.
fn only_values(mut solver: Solver, count: usize, demands: &[Demand]) -> Vec<Option<u64>> {
    let vars: Vec<Var> = (0..count as u32).map(Var).collect();
    let holds = |solver: &Solver| demands.iter().all(|demand| demand.holds(solver));
    loop {
        let open = vars.iter().filter(|var| solver.value(**var).is_none());
        let found = open.filter_map(|&var| Some((var, solver.only_value(var, &holds)?))).next();
        let Some((var, value)) = found else { break };
        solver.set(var, value, 0);
        solver.solve();
    }
    vars.iter().map(|&var| solver.value(var)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sizes::{Equation, Monomial};
    use super::*;

    fn product(factor: u64, vars: &[Var], number: u64) -> Equation {
        Equation {
            polynomial: vec![Monomial { factor, vars: vars.to_vec() }],
            side: Equal::Number(number),
            origin: 0,
        }
    }

    #[test]
    fn one_size_alone_fits() {
        let mut solver = Solver::default();
        let [h, g, d, f] = std::array::from_fn(|_| solver.var());
        solver.equation(product(1, &[h, d], 6));
        solver.equation(product(1, &[g, d], 2));
        solver.equation(Equation {
            polynomial: vec![Monomial { factor: 2, vars: vec![f] }],
            side: Equal::Var(d),
            origin: 0,
        });
        solver.solve();
        // The head size is even and divides 2.
        assert_eq!(only_values(solver, 4, &[]), [Some(3), Some(1), Some(2), Some(1)]);
    }

    #[test]
    fn what_the_framework_computes_counts_too() {
        let heads = || {
            let mut solver = Solver::default();
            let [h, d] = std::array::from_fn(|_| solver.var());
            solver.equation(product(1, &[h, d], 2));
            solver.solve();
            (solver, d)
        };
        let (solver, d) = heads();
        assert_eq!(only_values(solver.clone(), 2, &[]), [None, None]);
        assert_eq!(only_values(solver, 2, &[Demand::Even(d)]), [Some(1), Some(2)]);
        // Of groups of 2 query heads there are 1 or 2.
        let mut solver = Solver::default();
        let [h, g] = std::array::from_fn(|_| solver.var());
        solver.equation(product(1, &[h, g], 6));
        solver.solve();
        assert_eq!(only_values(solver, 2, &[Demand::Divides(h, g)]), [Some(6), Some(1)]);
    }

    /// A part of a sum may be empty, so that a size of 1 is not the only one.
    #[test]
    fn an_empty_part_is_a_size_too() {
        let mut solver = Solver::default();
        let [f, u] = std::array::from_fn(|_| solver.var());
        let polynomial = vec![Monomial { factor: 2, vars: vec![f] }, Monomial { factor: 1, vars: vec![u] }];
        solver.equation(Equation { polynomial, side: Equal::Number(2), origin: 0 });
        solver.solve();
        assert_eq!(only_values(solver, 2, &[]), [None, None]);
    }
}
