//! Axis sizes as unknowns, and the equations that shapes state about them.
//!
//! A shape states that a sum of products is a number: `(h d + g d + g dv) = 96`. Equations are reduced by what is known
//! until each is a single product; a product of one unknown gives its size, a product of several is remembered whole,
//! so that a split in thirds needs no head count. Nothing is ever tried out or assumed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// An unknown: the size of one axis in one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Var(pub(crate) u32);

/// A product of unknowns with a factor; the unknowns are sorted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Monomial {
    pub(crate) factor: u64,
    pub(crate) vars: Vec<Var>,
}

/// A sum of products.
pub(crate) type Polynomial = Vec<Monomial>;

/// Where a fact about sizes comes from, an index into a list of the caller's.
pub(crate) type Origin = u32;

/// What a polynomial is equal to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Side {
    /// A number that a shape or an option gives.
    Number(u64),
    /// Another unknown, for an axis that is defined by others.
    Var(Var),
}

/// `polynomial = side`
#[derive(Clone, Debug)]
pub(crate) struct Equation {
    pub(crate) polynomial: Polynomial,
    pub(crate) side: Side,
    pub(crate) origin: Origin,
}

/// An equation that cannot hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contradiction {
    /// Two facts give one unknown two sizes.
    Values { var: Var, first: (u64, Origin), second: (u64, Origin) },
    /// What is known of an equation does not fit.
    Equation { origin: Origin, polynomial: Polynomial, number: u64 },
}

/// The unknowns and what is known of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Solver {
    parents: Vec<u32>,
    pub(super) values: Vec<Option<(u64, Origin)>>,
    /// Products of several unknowns; the keys are sorted roots (see [`Solver::refresh`]).
    pub(super) products: BTreeMap<Vec<Var>, (u64, Origin)>,
    pub(super) equations: Vec<Equation>,
    /// Equations seen, so that a thousand equal shapes cost as much as one.
    seen: HashSet<(Polynomial, Side)>,
    pub(crate) contradictions: Vec<Contradiction>,
}

impl Solver {
    pub(crate) fn var(&mut self) -> Var {
        self.parents.push(self.parents.len() as u32);
        self.values.push(None);
        Var(self.parents.len() as u32 - 1)
    }

    /// Returns the unknown that stands for all that are equal to it.
    pub(crate) fn root(&self, mut var: Var) -> Var {
        while self.parents[var.0 as usize] != var.0 {
            var = Var(self.parents[var.0 as usize]);
        }
        var
    }

    pub(crate) fn value(&self, var: Var) -> Option<u64> {
        self.values[self.root(var).0 as usize].map(|(value, _)| value)
    }

    /// As [`Solver::value`], for an unknown that may have been made after this solver was copied.
    pub(crate) fn value_of_known(&self, var: Var) -> Option<u64> {
        ((var.0 as usize) < self.parents.len()).then(|| self.value(var))?
    }

    pub(crate) fn origin(&self, var: Var) -> Option<Origin> {
        self.values[self.root(var).0 as usize].map(|(_, origin)| origin)
    }

    pub(crate) fn set(&mut self, var: Var, value: u64, origin: Origin) {
        let var = self.root(var);
        match self.values[var.0 as usize] {
            None => self.values[var.0 as usize] = Some((value, origin)),
            Some((other, _)) if other == value => {}
            Some(first) => {
                self.contradictions.push(Contradiction::Values { var, first, second: (value, origin) });
            }
        }
    }

    /// States that two unknowns are one.
    pub(crate) fn unify(&mut self, first: Var, second: Var) {
        let (first, second) = (self.root(first), self.root(second));
        if first == second {
            return;
        }
        let (keep, merge) = (first.min(second), first.max(second));
        self.parents[merge.0 as usize] = keep.0;
        if let Some((value, origin)) = self.values[merge.0 as usize] {
            self.set(keep, value, origin);
        }
    }

    pub(crate) fn equation(&mut self, equation: Equation) {
        if self.seen.insert((equation.polynomial.clone(), equation.side.clone())) {
            self.equations.push(equation);
        }
    }

    /// Returns the product of the unknowns, where it is known.
    pub(crate) fn product(&self, vars: &[Var]) -> Option<u64> {
        let monomial = self.reduce(&Monomial { factor: 1, vars: vars.to_vec() })?;
        monomial.vars.is_empty().then_some(monomial.factor)
    }

    /// Returns the value of a sum of products, where all of it is known.
    pub(crate) fn sum(&self, polynomial: &Polynomial) -> Option<u64> {
        let term = |monomial: &Monomial| self.product(&monomial.vars)?.checked_mul(monomial.factor);
        polynomial.iter().try_fold(0_u64, |sum, monomial| sum.checked_add(term(monomial)?))
    }

    /// Returns an unknown that keeps the product from being known.
    pub(crate) fn open(&self, vars: &[Var]) -> Option<Var> {
        vars.iter().map(|&var| self.root(var)).find(|&var| self.value(var).is_none())
    }

    /// Puts in what is known; `None` on overflow.
    pub(crate) fn reduce(&self, monomial: &Monomial) -> Option<Monomial> {
        let mut factor = monomial.factor;
        let mut vars = Vec::with_capacity(monomial.vars.len());
        for &var in &monomial.vars {
            match self.value(var) {
                Some(value) => factor = factor.checked_mul(value)?,
                None => vars.push(self.root(var)),
            }
        }
        vars.sort_unstable();
        if vars.len() > 1 {
            for subset in subsets(&vars) {
                if let Some((value, _)) = self.products.get(&subset) {
                    factor = factor.checked_mul(*value)?;
                    return self.reduce(&Monomial { factor, vars: without(&vars, &subset) });
                }
            }
        }
        Some(Monomial { factor, vars })
    }

    /// Draws every conclusion; returns whether anything new was learnt.
    pub(crate) fn solve(&mut self) -> bool {
        let mut learnt = false;
        let mut open: Vec<Equation> = std::mem::take(&mut self.equations);
        loop {
            open.extend(self.refresh());
            let mut progress = false;
            open.retain(|equation| match self.step(equation) {
                Step::Done => {
                    progress = true;
                    false
                }
                Step::Learnt => {
                    progress = true;
                    learnt = true;
                    false
                }
                Step::Open => true,
            });
            if !progress {
                // What follows from a contradiction would be found again and again.
                if !self.contradictions.is_empty() {
                    break;
                }
                let found = self.eliminate(&open);
                if found.is_empty() {
                    break;
                }
                open.extend(found);
            }
        }
        self.equations = open;
        learnt
    }

    /// Takes multiples of open equations from each other until some hold a single product: `3 h d + f = 168` and
    /// `h d + f = 120` tell `f`.
    fn eliminate(&self, open: &[Equation]) -> Vec<Equation> {
        let mut rows: Vec<Row> = Vec::new();
        let mut pivots: HashMap<Vec<Var>, usize> = HashMap::default();
        let mut holders: HashMap<Vec<Var>, BTreeSet<usize>> = HashMap::default();
        for equation in open {
            let Some(mut row) = self.row(equation) else { continue };
            while let Some((product, pivot)) =
                row.terms.keys().find_map(|product| Some((product.clone(), *pivots.get(product)?)))
            {
                let Some(less) = row.less(&rows[pivot], &product) else { return Vec::new() };
                row = less;
            }
            let Some(product) = row.terms.keys().next().cloned() else { continue };
            let at = rows.len();
            for holder in holders.get(&product).cloned().unwrap_or_default() {
                let Some(less) = rows[holder].less(&row, &product) else { return Vec::new() };
                for gone in rows[holder].terms.keys().filter(|product| !less.terms.contains_key(*product)) {
                    holders.entry(gone.clone()).or_default().remove(&holder);
                }
                for held in less.terms.keys() {
                    holders.entry(held.clone()).or_default().insert(holder);
                }
                rows[holder] = less;
            }
            for held in row.terms.keys() {
                holders.entry(held.clone()).or_default().insert(at);
            }
            pivots.insert(product, at);
            rows.push(row);
        }
        rows.iter().filter_map(Row::single).collect()
    }

    /// Returns an equation with everything known taken to its right side.
    fn row(&self, equation: &Equation) -> Option<Row> {
        let number = match equation.side {
            Side::Number(number) => number,
            Side::Var(var) => self.value(var)?,
        };
        let mut row = Row { terms: BTreeMap::new(), number: number.into(), origin: equation.origin };
        for monomial in &equation.polynomial {
            let reduced = self.reduce(monomial)?;
            if reduced.vars.is_empty() {
                row.number -= i128::from(reduced.factor);
            } else {
                *row.terms.entry(reduced.vars).or_default() += i128::from(reduced.factor);
            }
        }
        row.terms.retain(|_, factor| *factor != 0);
        Some(row)
    }

    /// Turns products of which a part became known into equations again, and keys the others by their roots.
    fn refresh(&mut self) -> Vec<Equation> {
        let mut equations = Vec::new();
        for (vars, (number, origin)) in std::mem::take(&mut self.products) {
            let mut roots: Vec<Var> = vars.iter().map(|&var| self.root(var)).collect();
            roots.sort_unstable();
            if roots.iter().any(|&var| self.value(var).is_some()) || self.products.contains_key(&roots) {
                let polynomial = vec![Monomial { factor: 1, vars: roots }];
                equations.push(Equation { polynomial, side: Side::Number(number), origin });
            } else {
                self.products.insert(roots, (number, origin));
            }
        }
        equations
    }

    fn step(&mut self, equation: &Equation) -> Step {
        let mut number = match equation.side {
            Side::Number(number) => Some(number),
            Side::Var(var) => self.value(var),
        };
        let mut open: Vec<Monomial> = Vec::new();
        let mut known = 0_u64;
        for monomial in &equation.polynomial {
            let Some(reduced) = self.reduce(monomial) else { return self.contradict(equation, number) };
            if reduced.vars.is_empty() || reduced.factor == 0 {
                let Some(sum) = known.checked_add(reduced.factor) else {
                    return self.contradict(equation, number);
                };
                known = sum;
            } else if let Some(same) = open.iter_mut().find(|other| other.vars == reduced.vars) {
                let Some(sum) = same.factor.checked_add(reduced.factor) else {
                    return self.contradict(equation, number);
                };
                same.factor = sum;
            } else {
                open.push(reduced);
            }
        }
        // An axis that is defined by others and stands in none of them is learnt from them.
        if number.is_none()
            && let (Side::Var(var), true) = (&equation.side, open.is_empty())
        {
            self.set(*var, known, equation.origin);
            return Step::Learnt;
        }
        let Some(total) = number.take() else { return Step::Open };
        let Some(rest) = total.checked_sub(known) else { return self.contradict(equation, Some(total)) };
        match &open[..] {
            [] if rest == 0 => Step::Done,
            [] => self.contradict(equation, Some(total)),
            [monomial] if !rest.is_multiple_of(monomial.factor) => self.contradict(equation, Some(total)),
            [monomial] => {
                let value = rest / monomial.factor;
                match &monomial.vars[..] {
                    [var] => self.set(*var, value, equation.origin),
                    _ => {
                        self.products.insert(monomial.vars.clone(), (value, equation.origin));
                    }
                }
                Step::Learnt
            }
            _ => Step::Open,
        }
    }

    fn contradict(&mut self, equation: &Equation, number: Option<u64>) -> Step {
        self.contradictions.push(Contradiction::Equation {
            origin: equation.origin,
            polynomial: equation.polynomial.clone(),
            number: number.unwrap_or(u64::MAX),
        });
        Step::Done
    }
}

enum Step {
    Done,
    Learnt,
    Open,
}

/// A linear equation whose unknowns are products of sizes.
#[derive(Clone, Debug)]
struct Row {
    terms: BTreeMap<Vec<Var>, i128>,
    number: i128,
    origin: Origin,
}

impl Row {
    /// Returns the row without that product, by means of another row that holds it; `None` on overflow.
    fn less(&self, other: &Row, product: &[Var]) -> Option<Row> {
        let (mine, theirs) = (*self.terms.get(product)?, *other.terms.get(product)?);
        let divisor = gcd(mine, theirs);
        let (mine, theirs) = (mine / divisor, theirs / divisor);
        let combine = |a: i128, b: i128| a.checked_mul(theirs)?.checked_sub(b.checked_mul(mine)?);
        let mut row = Row { number: combine(self.number, other.number)?, ..self.clone() };
        for (held, factor) in &mut row.terms {
            *factor = combine(*factor, other.terms.get(held).copied().unwrap_or_default())?;
        }
        for (held, factor) in other.terms.iter().filter(|(held, _)| !self.terms.contains_key(*held)) {
            row.terms.insert(held.clone(), combine(0, *factor)?);
        }
        row.terms.retain(|_, factor| *factor != 0);
        let divisor = row.terms.values().fold(row.number, |divisor, factor| gcd(divisor, *factor));
        row.terms.values_mut().chain([&mut row.number]).for_each(|value| *value /= divisor.max(1));
        Some(row)
    }

    /// Returns the equation that the row is where it holds one product.
    fn single(&self) -> Option<Equation> {
        let (vars, factor) = self.terms.iter().next().filter(|_| self.terms.len() == 1)?;
        let sign = factor.signum();
        let (factor, number) = (u64::try_from(factor * sign).ok()?, u64::try_from(self.number * sign).ok()?);
        let polynomial = vec![Monomial { factor, vars: vars.clone() }];
        Some(Equation { polynomial, side: Side::Number(number), origin: self.origin })
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

/// Returns the parts of `vars` with two unknowns or more, the longest first.
fn subsets(vars: &[Var]) -> Vec<Vec<Var>> {
    // Real products have up to four unknowns; of a longer one only the whole is looked up.
    if vars.len() > 6 {
        return vec![vars.to_vec()];
    }
    let pick = |mask: u32| (0..vars.len()).filter(|at| mask & (1 << at) != 0).map(|at| vars[at]).collect();
    let mut masks: Vec<u32> = (0..1 << vars.len()).filter(|mask: &u32| mask.count_ones() > 1).collect();
    masks.sort_by_key(|mask| std::cmp::Reverse(mask.count_ones()));
    masks.into_iter().map(pick).collect()
}

/// Returns `vars` less `part`, which is in it.
fn without(vars: &[Var], part: &[Var]) -> Vec<Var> {
    let mut rest = vars.to_vec();
    for var in part {
        if let Some(at) = rest.iter().position(|other| other == var) {
            rest.remove(at);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(factor: u64, vars: &[Var]) -> Monomial {
        Monomial { factor, vars: vars.to_vec() }
    }

    fn number(polynomial: Polynomial, number: u64) -> Equation {
        Equation { polynomial, side: Side::Number(number), origin: 7 }
    }

    #[test]
    fn thirds_need_no_head_count() {
        let mut solver = Solver::default();
        let [h, g, d, dv] = std::array::from_fn(|_| solver.var());
        solver.equation(number(vec![term(1, &[h, d]), term(1, &[g, d]), term(1, &[g, dv])], 180));
        assert!(!solver.solve());
        solver.unify(g, h);
        solver.unify(dv, d);
        assert!(solver.solve());
        assert_eq!(
            (solver.product(&[h, d]), solver.product(&[g, dv]), solver.value(h)),
            (Some(60), Some(60), None)
        );
        assert_eq!(solver.candidates(h, 60), [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]);
        solver.set(h, 4, 1);
        solver.solve();
        assert_eq!((solver.product(&[h, d]), solver.value(d)), (Some(60), Some(15)));
    }

    #[test]
    fn grouped_heads_follow_from_two_shapes() {
        let mut solver = Solver::default();
        let [h, g, d, dv] = std::array::from_fn(|_| solver.var());
        solver.equation(number(vec![term(1, &[h, d])], 64));
        solver.equation(number(vec![term(1, &[g, d])], 16));
        solver.equation(number(vec![term(1, &[g, dv])], 24));
        solver.set(h, 8, 0);
        solver.solve();
        assert_eq!([d, g, dv].map(|var| solver.value(var)), [Some(8), Some(2), Some(12)]);
    }

    #[test]
    fn rows_that_do_not_divide_are_a_contradiction() {
        let mut solver = Solver::default();
        let [h, d] = std::array::from_fn(|_| solver.var());
        solver.equation(number(vec![term(1, &[h, d])], 64));
        solver.set(h, 7, 0);
        solver.solve();
        assert!(matches!(solver.contradictions[..], [Contradiction::Equation { origin: 7, number: 64, .. }]));
    }

    #[test]
    fn a_definition_works_both_ways() {
        let mut solver = Solver::default();
        let [h, g, r] = std::array::from_fn(|_| solver.var());
        solver.equation(Equation { polynomial: vec![term(1, &[g, r])], side: Side::Var(h), origin: 0 });
        solver.set(g, 2, 0);
        solver.set(r, 3, 0);
        solver.solve();
        assert_eq!(solver.value(h), Some(6));
    }

    #[test]
    fn two_sums_of_the_same_products_are_told_apart() {
        let mut solver = Solver::default();
        let [h, d, f, e] = std::array::from_fn(|_| solver.var());
        solver.equation(number(vec![term(3, &[h, d]), term(1, &[f])], 168));
        assert!(!solver.solve());
        solver.equation(number(vec![term(1, &[h, d]), term(1, &[f]), term(1, &[e])], 144));
        assert!(!solver.solve());
        solver.set(e, 24, 0);
        assert!(solver.solve());
        assert_eq!((solver.product(&[h, d]), solver.value(f)), (Some(24), Some(96)));
        assert!(solver.contradictions.is_empty());
    }

    #[test]
    fn a_system_without_whole_numbers_is_a_contradiction() {
        let mut solver = Solver::default();
        let [a, b] = std::array::from_fn(|_| solver.var());
        solver.equation(number(vec![term(1, &[a]), term(1, &[b])], 10));
        solver.equation(number(vec![term(1, &[a]), term(3, &[b])], 15));
        solver.solve();
        assert!(!solver.contradictions.is_empty());
    }

    #[test]
    fn products_are_factored_without_a_contradiction() {
        let mut solver = Solver::default();
        let [h, g, d] = std::array::from_fn(|_| solver.var());
        solver.equation(number(vec![term(1, &[h, d])], 64));
        solver.equation(number(vec![term(1, &[g, d])], 16));
        solver.solve();
        solver.factor_products();
        assert_eq!([h, g, d].map(|var| solver.value(var)), [Some(64), Some(16), Some(1)]);
        assert!(solver.contradictions.is_empty());
    }

    #[test]
    fn nothing_overflows() {
        let mut solver = Solver::default();
        let [a, b] = std::array::from_fn(|_| solver.var());
        solver.set(a, u64::MAX, 0);
        solver.set(b, u64::MAX, 0);
        solver.equation(number(vec![term(1, &[a, b])], 1));
        solver.solve();
        assert_eq!(solver.contradictions.len(), 1);
    }
}
