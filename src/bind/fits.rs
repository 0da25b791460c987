//! Which sizes would fit where some are open: what is said of an unknown, apart from all that has nothing to do with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

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

    /// Returns the one size of an unknown at which nothing contradicts what is known; `None` where there are several, and
    /// where no product of a known size bounds them: only its divisors can be tried, all of them.
    pub(super) fn only_value(&self, var: Var, holds: &impl Fn(&Solver) -> bool) -> Option<u64> {
        let root = self.root(var);
        // In a product of a known size it is a divisor.
        let products =
            self.products.iter().filter(|(vars, _)| vars.iter().any(|&other| self.root(other) == root));
        let most = products.map(|(_, (number, _))| *number).filter(|number| *number > 0).min()?;
        let fits = |value: &u64| {
            let mut trial = self.clone();
            trial.set(root, *value, 0);
            trial.solve();
            trial.contradictions.is_empty() && holds(&trial)
        };
        let small = (1..=most.isqrt()).filter(|divisor| most.is_multiple_of(*divisor));
        let mut all = small.flat_map(|divisor| [divisor, most / divisor]).filter(fits);
        let only = all.next()?;
        all.all(|other| other == only).then_some(only)
    }

    /// Returns a solver of what is related to that unknown alone, and the unknown in it.
    fn around(&self, var: Var) -> (Solver, Var) {
        let related = self.related(var);
        let renamed: BTreeMap<Var, Var> = related.iter().zip((0..).map(Var)).map(|(a, b)| (*a, b)).collect();
        let mut small = Solver::default();
        for root in related {
            let fresh = small.var();
            small.values[fresh.0 as usize] = self.values[root.0 as usize];
        }
        for equation in self.said() {
            if let Some(equation) = self.renamed_equation(&equation, &renamed) {
                small.equation(equation);
            }
        }
        (small, renamed[&self.root(var)])
    }

    /// Returns all that is said of open unknowns, products among it.
    fn said(&self) -> impl Iterator<Item = Equation> {
        let products = self.products.iter().map(|(vars, (number, origin))| {
            let polynomial = vec![Monomial { factor: 1, vars: vars.clone() }];
            Equation { polynomial, side: Side::Number(*number), origin: *origin }
        });
        products.chain(self.equations.iter().cloned())
    }

    fn renamed_equation(&self, equation: &Equation, names: &BTreeMap<Var, Var>) -> Option<Equation> {
        let side = match equation.side {
            Side::Var(var) => match self.value(var) {
                Some(number) => Side::Number(number),
                None => Side::Var(*names.get(&self.root(var))?),
            },
            Side::Number(number) => Side::Number(number),
        };
        let polynomial = self.renamed(&equation.polynomial, names)?;
        Some(Equation { polynomial, side, origin: equation.origin })
    }

    /// Factors the products that are known as a whole in some way that contradicts nothing; where there is none, they
    /// stay as they are.
    pub(crate) fn factor_products(&mut self) {
        // Layers have nothing to do with each other and are mostly alike: one of a kind is factored.
        let mut alike: HashMap<Vec<(Polynomial, Side)>, Vec<Option<u64>>> = HashMap::default();
        let mut found: Vec<(Var, u64)> = Vec::new();
        for (roots, said) in self.apart() {
            let names: BTreeMap<Var, Var> = roots.iter().zip((0..).map(Var)).map(|(a, b)| (*a, b)).collect();
            let mut said: Vec<(Polynomial, Side)> = said
                .iter()
                .filter_map(|equation| self.renamed_equation(equation, &names))
                .map(|equation| (equation.polynomial, equation.side))
                .collect();
            said.sort();
            let values = alike.entry(said).or_insert_with_key(|said| {
                let mut small = Solver::default();
                let vars: Vec<Var> = roots.iter().map(|_| small.var()).collect();
                for (polynomial, side) in said.clone() {
                    small.equation(Equation { polynomial, side, origin: 0 });
                }
                small.solve();
                small.factor_these();
                vars.iter().map(|&var| small.value(var)).collect()
            });
            found.extend(roots.iter().zip(values).filter_map(|(root, value)| Some((*root, (*value)?))));
        }
        for (root, value) in found {
            self.set(root, value, 0);
        }
        self.solve();
    }

    /// Returns all that is said of open unknowns, as what can be compared.
    pub(super) fn all_said(&self) -> Vec<(Polynomial, Side)> {
        self.said().map(|equation| (equation.polynomial, equation.side)).collect()
    }

    /// Makes a solver of some open unknowns and what is said of them; `names` tells what each is called in it.
    pub(super) fn of_these(&self, roots: &BTreeSet<Var>, said: &[Equation]) -> (Solver, BTreeMap<Var, Var>) {
        let names: BTreeMap<Var, Var> = roots.iter().zip((0..).map(Var)).map(|(a, b)| (*a, b)).collect();
        let mut small = Solver::default();
        for _ in roots {
            small.var();
        }
        for equation in said.iter().filter_map(|equation| self.renamed_equation(equation, &names)) {
            small.equation(equation);
        }
        small.solve();
        (small, names)
    }

    /// Returns the open unknowns in sets that have nothing to do with each other, each with all that is said of it.
    pub(super) fn apart(&self) -> Vec<(BTreeSet<Var>, Vec<Equation>)> {
        let mut sets: Vec<(BTreeSet<Var>, Vec<Equation>)> = Vec::new();
        let mut places: HashMap<Var, usize> = HashMap::default();
        for equation in self.said() {
            let vars = equation.polynomial.iter().flat_map(|monomial| &monomial.vars);
            let side = match &equation.side {
                Side::Var(var) => Some(var),
                Side::Number(_) => None,
            };
            let roots = self.roots(vars.chain(side));
            let mut met: Vec<usize> = roots.iter().filter_map(|root| places.get(root).copied()).collect();
            met.sort_unstable();
            met.dedup();
            let Some((&place, others)) = met.split_first() else {
                if !roots.is_empty() {
                    places.extend(roots.iter().map(|root| (*root, sets.len())));
                    sets.push((roots, vec![equation]));
                }
                continue;
            };
            let mut joined = (roots, vec![equation]);
            for &other in others {
                let (roots, said) = std::mem::take(&mut sets[other]);
                joined.0.extend(roots);
                joined.1.extend(said);
            }
            places.extend(joined.0.iter().map(|root| (*root, place)));
            sets[place].0.extend(joined.0);
            sets[place].1.extend(joined.1);
        }
        sets.retain(|(roots, _)| !roots.is_empty());
        sets
    }

    fn factor_these(&mut self) {
        while let Some((var, value)) = self.some_factor() {
            self.set(var, value, 0);
            self.solve();
        }
    }

    /// Returns an unknown of a product and a size that fits it. An axis of many products is tried first, and at the
    /// smallest sizes: what it divides then leaves the others whole.
    fn some_factor(&self) -> Option<(Var, u64)> {
        let mut counts: BTreeMap<Var, usize> = BTreeMap::new();
        for var in self.products.keys().flatten().map(|&var| self.root(var)) {
            if self.value(var).is_none() {
                *counts.entry(var).or_default() += 1;
            }
        }
        let mut vars: Vec<(Var, usize)> = counts.into_iter().collect();
        vars.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let fits = |var: Var, value: u64| {
            let mut trial = self.clone();
            trial.contradictions.clear();
            trial.set(var, value, 0);
            trial.solve();
            trial.contradictions.is_empty()
        };
        // Beyond a few unknowns, all of the first layer's, the search would only repeat itself.
        vars.into_iter()
            .take(8)
            .find_map(|(var, _)| (1..=8).find(|&value| fits(var, value)).map(|value| (var, value)))
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
