//! An equation that cannot hold, traced back: rule → tensor → sizes and where they come from → the arithmetic.

use std::collections::{BTreeMap, HashMap, HashSet};

use indexmap::IndexMap;

use super::Binding;
use super::explain::{list, origin_in_any_module, shape};
use super::ids::AxisId;
use super::pair::Side;
use super::sizes::{self, Contradiction, Monomial, Origin, Polynomial, Side as Equal, Solver, Var};
use super::unknowns::{Fact, Unknowns};
use crate::diag::{BindCode, Diagnostic};
use crate::mapping::Rule;
use crate::notation::{Dim, DimKind, Term, for_each_axis};

/// `polynomial = number`, which does not hold.
pub(super) struct Equation<'a> {
    pub(super) origin: Origin,
    pub(super) polynomial: &'a Polynomial,
    pub(super) number: u64,
}

/// What is the same in all layers, and dear to find.
pub(super) struct Found {
    /// The dimensions of tensors that do not fit.
    unfit: HashSet<(usize, usize)>,
    /// What would fit, by the equation in words.
    fits: HashMap<String, Vec<String>>,
    /// An axis's unknown that has this size, in words.
    sized: HashMap<(AxisId, u64), Option<String>>,
}

impl Found {
    pub(super) fn new(unknowns: &Unknowns<'_>) -> Found {
        let unfit = |contradiction: &Contradiction| {
            let Contradiction::Equation { origin, .. } = contradiction else { return None };
            match unknowns.facts[*origin as usize] {
                Fact::Shape { tensor, dim, .. } => Some((tensor, dim)),
                _ => None,
            }
        };
        Found {
            unfit: unknowns.solver.contradictions.iter().filter_map(unfit).collect(),
            fits: HashMap::default(),
            sized: HashMap::default(),
        }
    }
}

/// Says what keeps an equation from holding, and what would fit.
pub(super) fn unsolved(
    binding: &Binding<'_>,
    unknowns: &Unknowns<'_>,
    equation: &Equation<'_>,
    found: &mut Found,
) -> Diagnostic {
    let Equation { origin, polynomial, number } = *equation;
    let trace = Trace { binding, unknowns, written: written(binding, &unknowns.facts[origin as usize]) };
    let vars = trace.vars(polynomial);
    let known: Vec<String> = vars.iter().filter_map(|&var| trace.known(var)).collect();
    let place = match &unknowns.facts[origin as usize] {
        Fact::Shape { rule, dim, .. } => format!("{rule} {dim}"),
        Fact::Definition { axis } => binding.pair.name(*axis).to_owned(),
        _ => origin.to_string(),
    };
    let fits = found
        .fits
        .entry(format!("{place}: {number} {}", known.join(", ")))
        .or_insert_with(|| trace.all_fitting(&vars, polynomial, number));
    let fitting = (!fits.is_empty()).then(|| format!("what would fit: {}", fits.join("; or ")));
    let otherwise =
        || "give the right sizes with --axis, or choose the layout that the checkpoint has".to_owned();
    let stated = known.join(", ");
    // Of one axis alone its size is all there is to say.
    let is_axis =
        matches!(&polynomial[..], [Monomial { factor: 1, vars }] if vars.len() == 1 && !stated.is_empty());
    let with = |left: String| match (is_axis, stated.is_empty()) {
        (true, _) => stated.clone(),
        (false, true) => left,
        (false, false) => format!("{left}, with {stated}"),
    };
    let (sum, why) = (trace.sum(polynomial), trace.why(polynomial, number));
    match &unknowns.facts[origin as usize] {
        Fact::Shape { tensor, rule, dim } => {
            let stored = &binding.catalog.tensors[*tensor];
            let rule = &binding.pair.layout(Side::Source).rules[*rule];
            let expr = &rule.expr.dims[*dim];
            let filled =
                if format!("{expr}") == sum { format!("`{expr}`") } else { format!("`{expr}` = {sum}") };
            let likely = trace
                .blocks_left_out(expr, polynomial, number)
                .or_else(|| trace.transposed(polynomial, *tensor, *dim, &found.unfit))
                .or_else(|| trace.padded(rule, *dim, polynomial, number));
            let help = [likely, fitting].into_iter().flatten().collect::<Vec<_>>().join("; ");
            Diagnostic::error(BindCode::Indivisible, format!("{number} does not fit `{expr}`: {why}"))
                .file(&binding.catalog.path)
                .tensor(&stored.key)
                .rule(&expr.span)
                .expected(with(filled))
                .found(format!("{number}, axis {dim} of {}", shape(&stored.shape)))
                .help(if help.is_empty() { otherwise() } else { help })
        }
        Fact::Definition { axis } => {
            let name = binding.pair.name(*axis);
            let declared = binding.pair.mapping.axes.get(name).map(|axis| &axis.span);
            let find = || {
                let all = (0..unknowns.axes.len() as u32).map(Var);
                let mine = all.filter(|var| unknowns.axes[var.0 as usize].0 == *axis);
                let mut sized = mine.filter(|&var| unknowns.solver.value(var) == Some(number));
                sized.find_map(|var| trace.known(var))
            };
            let own = found.sized.entry((*axis, number)).or_insert_with(find).clone();
            let message = format!("`{name}` = {number} does not fit its definition: {why}");
            let mut error = Diagnostic::error(BindCode::Indivisible, message)
                .file(&binding.catalog.path)
                .expected(with(format!("`{name}` = {sum}")))
                .found(own.unwrap_or_else(|| format!("`{name}` = {number}")))
                .help(fitting.unwrap_or_else(otherwise));
            if let Some(span) = declared {
                error = error.rule(span);
            }
            error
        }
        _ => Diagnostic::error(BindCode::Indivisible, format!("{number} does not fit: {why}"))
            .file(&binding.catalog.path)
            .expected(with(sum))
            .found(number.to_string())
            .help(fitting.unwrap_or_else(otherwise)),
    }
}

struct Trace<'a, 'b> {
    binding: &'a Binding<'b>,
    unknowns: &'a Unknowns<'b>,
    /// The axes of what the equation is about: of each block, and of all blocks, in the order of the mapping file.
    written: Vec<Vec<String>>,
}

/// Lists the axes of a rule's stored axis or of a definition as they are written: of each block, then of all together.
fn written(binding: &Binding<'_>, fact: &Fact) -> Vec<Vec<String>> {
    let mut lists = Vec::new();
    match fact {
        Fact::Shape { rule, dim, .. } => {
            let dims = &binding.pair.layout(Side::Source).rules[*rule].expr.dims;
            dims.get(*dim).into_iter().for_each(|dim| blocks(std::slice::from_ref(dim), &mut lists));
        }
        Fact::Definition { axis } => {
            let is =
                binding.pair.mapping.axes.get(binding.pair.name(*axis)).and_then(|axis| axis.is.as_ref());
            is.into_iter().flatten().for_each(|term| blocks(&term.dims, &mut lists));
        }
        _ => {}
    }
    lists.sort_by_key(Vec::len);
    lists.push(lists.iter().flatten().cloned().collect());
    lists
}

fn blocks(dims: &[Dim], lists: &mut Vec<Vec<String>>) {
    let mut all = Vec::new();
    for_each_axis(dims, &mut |axis, _| all.push(axis.to_string()));
    lists.push(all);
    for dim in dims {
        if let DimKind::Sum(terms) = &dim.kind {
            terms.iter().for_each(|term| blocks(&term.dims, lists));
        }
    }
}

impl Trace<'_, '_> {
    fn name(&self, var: Var) -> &str {
        self.binding.pair.name(self.unknowns.axes[var.0 as usize].0)
    }

    fn vars(&self, polynomial: &Polynomial) -> Vec<Var> {
        let mut vars: Vec<Var> =
            polynomial.iter().flat_map(|monomial| monomial.vars.iter().copied()).collect();
        vars.sort_unstable();
        vars.dedup();
        self.in_order(&vars)
    }

    /// Puts unknowns in the order in which the smallest block that has all of them names them.
    fn in_order(&self, vars: &[Var]) -> Vec<Var> {
        let place = |list: &[String], var: Var| list.iter().position(|name| name == self.name(var));
        let whole = |list: &&Vec<String>| vars.iter().all(|&var| place(list, var).is_some());
        let mut vars = vars.to_vec();
        if let Some(list) = self.written.iter().find(whole) {
            vars.sort_by_key(|&var| place(list, var));
        }
        vars
    }

    /// Writes the size of an unknown and where it comes from, where it has one.
    fn known(&self, var: Var) -> Option<String> {
        let value = self.unknowns.solver.value(var)?;
        let origin = origin_in_any_module(self.binding, self.unknowns, self.unknowns.solver.origin(var)?);
        Some(format!("`{}` = {value} ({origin})", self.name(var)))
    }

    /// Writes the sum with what is known put in, `12 · d`.
    fn sum(&self, polynomial: &Polynomial) -> String {
        let terms: Vec<String> = polynomial.iter().map(|monomial| self.product(monomial)).collect();
        if terms.is_empty() { "0".into() } else { terms.join(" + ") }
    }

    fn product(&self, monomial: &Monomial) -> String {
        let solver = &self.unknowns.solver;
        let each: Vec<String> = self
            .in_order(&monomial.vars)
            .into_iter()
            .map(|var| solver.value(var).map_or_else(|| self.name(var).to_owned(), |value| value.to_string()))
            .collect();
        let factor = (monomial.factor != 1 || each.is_empty()).then(|| monomial.factor.to_string());
        factor.into_iter().chain(each).collect::<Vec<_>>().join(" · ")
    }

    /// Says in numbers why the sum is not the number.
    fn why(&self, polynomial: &Polynomial, number: u64) -> String {
        let (mut known, mut open): (u64, BTreeMap<Vec<Var>, u64>) = (0, BTreeMap::new());
        for monomial in polynomial {
            let Some(reduced) = self.unknowns.solver.reduce(monomial) else {
                return "it is more than any file can hold".into();
            };
            let place =
                if reduced.vars.is_empty() { &mut known } else { open.entry(reduced.vars).or_default() };
            *place = place.saturating_add(reduced.factor);
        }
        let open: Vec<u64> = open.into_values().collect();
        let rest = number.saturating_sub(known);
        match open[..] {
            [] if self.sum(polynomial) == known.to_string() => format!("it is {known}"),
            [] => format!("it is {} = {known}", self.sum(polynomial)),
            _ if known > number => format!("it is {known} at least"),
            [factor] if factor > 0 && !rest.is_multiple_of(factor) => {
                format!("{factor} does not divide {rest}")
            }
            _ => "no whole numbers do".into(),
        }
    }

    /// Says which sizes of the unknowns that somebody gave would fit, one at a time.
    fn all_fitting(&self, vars: &[Var], polynomial: &Polynomial, number: u64) -> Vec<String> {
        let is_given = |var: &&Var| {
            let origin =
                self.unknowns.solver.origin(**var).map(|origin| &self.unknowns.facts[origin as usize]);
            matches!(origin, Some(Fact::Option | Fact::Config { .. } | Fact::Recorded | Fact::Rule { .. }))
        };
        let fitting = |&var: &Var| {
            let fitting = fitting(self.unknowns, var, vars, polynomial, number);
            (!fitting.is_empty()).then(|| format!("`{}` = {}", self.name(var), list(&fitting)))
        };
        vars.iter().filter(is_given).filter_map(fitting).collect()
    }

    /// Of a fused axis as long as some of its blocks alone: which are not there.
    fn blocks_left_out(&self, expr: &Dim, polynomial: &Polynomial, number: u64) -> Option<String> {
        const MOST: usize = 8;
        let DimKind::Sum(terms) = &expr.kind else { return None };
        // A block that is a sum itself stands for several products.
        if terms.len() != polynomial.len() || !(2..=MOST).contains(&terms.len()) {
            return None;
        }
        let solver = &self.unknowns.solver;
        let sizes: Option<Vec<u64>> = polynomial
            .iter()
            .map(|monomial| {
                solver.reduce(monomial).filter(|reduced| reduced.vars.is_empty()).map(|it| it.factor)
            })
            .collect();
        let sizes = sizes?;
        let chosen = |set: u32| (0..sizes.len()).filter(move |at| set >> at & 1 == 1);
        let sum = |set: u32| chosen(set).try_fold(0_u64, |sum, at| sum.checked_add(*sizes.get(at)?));
        // The fullest sets first: what lacks one block rather than two.
        let all = 1_u32 << sizes.len();
        let mut sets: Vec<u32> = (1..all - 1).filter(|&set| sum(set) == Some(number)).collect();
        sets.sort_by_key(|set| std::cmp::Reverse(set.count_ones()));
        let set = *sets.first()?;
        let names = |set: u32| -> String {
            let label =
                |term: &Term| term.label.as_ref().map_or_else(|| term.to_string(), ToString::to_string);
            let names = chosen(set).filter_map(|at| terms.get(at)).map(|term| format!("`{}`", label(term)));
            names.collect::<Vec<_>>().join(" and ")
        };
        let missing = names(all - 1 - set);
        Some(format!("{} alone would take {number}: {missing} may be left out of this tensor", names(set)))
    }

    /// Of an axis whose size another axis of the tensor could have, which does not fit either: it may be transposed.
    fn transposed(
        &self,
        polynomial: &Polynomial,
        tensor: usize,
        dim: usize,
        unfit: &HashSet<(usize, usize)>,
    ) -> Option<String> {
        let shape = &self.binding.catalog.tensors[tensor].shape;
        let solver = &self.unknowns.solver;
        let fits = |size: u64| match (solver.sum(polynomial), &polynomial[..]) {
            (Some(wanted), _) => size == wanted,
            // A head size that is open: any number of rows that divides into the heads.
            (None, [monomial]) => {
                solver.reduce(monomial).is_some_and(|it| size.is_multiple_of(it.factor.max(1)))
            }
            _ => false,
        };
        let is_open = solver.sum(polynomial).is_none();
        let other = (0..shape.len()).find(|&other| {
            other != dim
                && shape.get(other).is_some_and(|&size| fits(size))
                && (is_open || unfit.contains(&(tensor, other)))
        })?;
        let size = shape.get(other)?;
        Some(format!(
            "axis {other}, {size}, would fit: if the tensor is stored transposed, another layout describes it"
        ))
    }

    /// Of one axis that is longer than its size: it may be padded.
    fn padded(&self, rule: &Rule, dim: usize, polynomial: &Polynomial, number: u64) -> Option<String> {
        let (Some(label), DimKind::Axis(name)) = (&rule.expr.label, &rule.expr.dims.get(dim)?.kind) else {
            return None;
        };
        let wanted = self.unknowns.solver.sum(polynomial)?;
        let more = number.checked_sub(wanted)?;
        Some(format!(
            "if the last {more} are padding, a layout of your own says so, `({label}: {name} + _: pad)`"
        ))
    }
}

/// Returns the sizes of one unknown with which the equation could hold, the other sizes as they are.
fn fitting(
    unknowns: &Unknowns<'_>,
    var: Var,
    vars: &[Var],
    polynomial: &Polynomial,
    number: u64,
) -> Vec<u64> {
    let mut solver = Solver::default();
    let mut renamed: IndexMap<Var, Var> = IndexMap::new();
    for &other in vars {
        let root = unknowns.solver.root(other);
        let fresh = *renamed.entry(root).or_insert_with(|| solver.var());
        if let Some(value) = unknowns.solver.value(root).filter(|_| root != unknowns.solver.root(var)) {
            solver.set(fresh, value, 0);
        }
    }
    let mut polynomial = polynomial.clone();
    for monomial in &mut polynomial {
        for var in &mut monomial.vars {
            *var = renamed[&unknowns.solver.root(*var)];
        }
        monomial.vars.sort_unstable();
    }
    solver.equation(sizes::Equation { polynomial, side: Equal::Number(number), origin: 0 });
    solver.candidates(renamed[&unknowns.solver.root(var)], number.min(4096))
}
