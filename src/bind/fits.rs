//! Which sizes would fit where one is open: what is said of an unknown, apart from all that has nothing to do with it.

use std::collections::{BTreeMap, BTreeSet};

use super::sizes::{Equation, Monomial, Polynomial, Side, Solver, Var};

impl Solver {
    /// Returns the open unknowns that stand with that one in what is known, and with these, and so on.
    pub(crate) fn related(&self, var: Var) -> BTreeSet<Var> {
        let mut groups: Vec<BTreeSet<Var>> = self.products.keys().map(|vars| self.roots(vars)).collect();
        for equation in &self.equations {
            let vars = equation.polynomial.iter().flat_map(|monomial| &monomial.vars);
            let side = match &equation.side {
                Side::Var(var) => Some(var),
                Side::Number(_) => None,
            };
            groups.push(self.roots(vars.chain(side)));
        }
        let mut related = BTreeSet::from([self.root(var)]);
        loop {
            let before = related.len();
            groups.retain(|group| {
                let meets = !group.is_disjoint(&related);
                if meets {
                    related.extend(group);
                }
                !meets
            });
            if related.len() == before {
                return related;
            }
        }
    }

    fn roots<'v>(&self, vars: impl IntoIterator<Item = &'v Var>) -> BTreeSet<Var> {
        vars.into_iter().map(|&var| self.root(var)).filter(|&var| self.value(var).is_none()).collect()
    }

    /// Returns the sizes from 1 to `limit` of that unknown which contradict nothing.
    pub(crate) fn candidates(&self, var: Var, limit: u64) -> Vec<u64> {
        // A large checkpoint has unknowns by the thousand, and each size is tried with a copy.
        let (small, var) = self.around(var);
        let fits = |value: &u64| {
            let mut trial = small.clone();
            trial.set(var, *value, 0);
            trial.solve();
            trial.contradictions.is_empty()
        };
        (1..=limit).filter(fits).collect()
    }

    /// Returns a solver of what is related to that unknown alone, and the unknown in it.
    fn around(&self, var: Var) -> (Solver, Var) {
        let mut small = Solver::default();
        let mut renamed: BTreeMap<Var, Var> = BTreeMap::new();
        for root in self.related(var) {
            let fresh = small.var();
            small.values[fresh.0 as usize] = self.values[root.0 as usize];
            renamed.insert(root, fresh);
        }
        for (vars, (number, origin)) in &self.products {
            let polynomial = vec![Monomial { factor: 1, vars: vars.clone() }];
            if let Some(polynomial) = self.renamed(&polynomial, &renamed) {
                small.equation(Equation { polynomial, side: Side::Number(*number), origin: *origin });
            }
        }
        for equation in &self.equations {
            let side = match equation.side {
                Side::Var(var) => match self.value(var) {
                    Some(number) => Some(Side::Number(number)),
                    None => renamed.get(&self.root(var)).map(|var| Side::Var(*var)),
                },
                Side::Number(number) => Some(Side::Number(number)),
            };
            if let (Some(polynomial), Some(side)) = (self.renamed(&equation.polynomial, &renamed), side) {
                small.equation(Equation { polynomial, side, origin: equation.origin });
            }
        }
        (small, renamed[&self.root(var)])
    }

    /// Puts in what is known and names the other unknowns anew; `None` where one has no new name.
    fn renamed(&self, polynomial: &Polynomial, names: &BTreeMap<Var, Var>) -> Option<Polynomial> {
        let monomial = |monomial: &Monomial| {
            let mut factor = monomial.factor;
            let mut vars = Vec::with_capacity(monomial.vars.len());
            for &var in &monomial.vars {
                match (names.get(&self.root(var)), self.value(var)) {
                    (Some(name), _) => vars.push(*name),
                    (None, Some(value)) => factor = factor.checked_mul(value)?,
                    (None, None) => return None,
                }
            }
            vars.sort_unstable();
            Some(Monomial { factor, vars })
        };
        polynomial.iter().map(monomial).collect()
    }
}
