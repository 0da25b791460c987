//! Sizes that are known without shapes: from the command line, the config and the file's own record.

use super::Binding;
use super::options::BindOptions;
use super::pair::{Pair, Side};
use super::sizes::Var;
use super::unknowns::{Fact, Given, Unknowns};
use crate::diag::{BindCode, Collector, Diagnostic, nearest};
use crate::mapping::arith::Formula;
use crate::span::Span;

/// Collects the sizes that hold for every instance, in order of precedence.
pub(crate) fn given(pair: &Pair<'_>, options: &BindOptions, errors: &mut Collector) -> Given {
    let mut given = Given::default();
    for (name, size) in &options.axes {
        match pair.find(name) {
            Some(axis) => given.entry(axis).or_default().push((*size, Fact::Option)),
            None => {
                let known: Vec<&str> = pair.mapping.axes.keys().map(String::as_str).collect();
                let error = Diagnostic::error(
                    BindCode::UnknownAxis,
                    format!("--axis {name}={size}: no axis `{name}`"),
                );
                errors.push(error.help(match nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the family has {}", known.join(", ")),
                }));
            }
        }
    }
    let facts = options.provenance.of(pair.source);
    for (name, entry) in &pair.source.config {
        let Some(axis) = pair.find(name) else { continue };
        let Some(told) = facts.first(&entry.keys) else { continue };
        let value = told.value;
        let size = match &entry.is {
            None => value.as_u64(),
            // What needs other sizes is computed when the shapes have told them.
            Some(formula) if formula.axes().iter().any(|name| *name != "value") && value.is_number() => {
                continue;
            }
            Some(formula) => {
                value.as_f64().and_then(|number| formula.clone().with("value", number).eval_size(&|_| None))
            }
        };
        match size {
            Some(size) => {
                let fact = Fact::Config { key: told.place() };
                given.entry(axis).or_default().push((size, fact));
            }
            None => errors.push(
                Diagnostic::error(BindCode::ConfigValue, format!("{} is no size for `{name}`", told.place()))
                    .rule(&entry.span)
                    .expected("a whole number")
                    .found(value.to_string())
                    .help(format!("correct it, or give the size with --axis {name}=N")),
            ),
        }
    }
    for (name, size) in &options.recorded {
        if let Some(axis) = pair.find(name) {
            given.entry(axis).or_default().push((*size, Fact::Recorded));
        }
    }
    given
}

impl Binding<'_> {
    /// Applies, one by one, the rules for sizes that nothing else tells: what the framework takes for a missing config
    /// entry, and what a layout fixes.
    pub(super) fn apply_rules(&self, unknowns: &mut Unknowns<'_>) {
        let source = self.pair.layout(Side::Source);
        let target = self.pair.layout(Side::Target);
        let facts = self.options.provenance.of(source);
        // A config that has none of the layout's entries speaks of another part of the model.
        let described = facts.describes().is_some()
            && source.config.values().any(|entry| facts.first(&entry.keys).is_some());
        let absent = source.config.iter().filter(|_| described);
        let absent = absent.filter_map(|(name, entry)| Some((name, entry.absent.as_ref()?, &entry.span)));
        let fixed = source.defaults.iter().chain(&target.defaults);
        let fixed = fixed.map(|(name, default)| (name, &default.value, &default.span));
        let rules: Vec<(&String, &Formula, &Span)> = absent.chain(fixed).collect();
        unknowns.solver.solve();
        self.apply_config_formulas(unknowns);
        for (name, formula, span) in rules {
            let Some(axis) = self.pair.find(name) else { continue };
            let open: Vec<usize> = (0..unknowns.axes.len())
                .filter(|&var| {
                    unknowns.axes[var].0 == axis && unknowns.solver.value(Var(var as u32)).is_none()
                })
                .collect();
            for number in open {
                let var = Var(number as u32);
                if unknowns.solver.value(var).is_some() {
                    continue;
                }
                let scopes = unknowns.axes[number].1;
                let other = formula.as_axis().and_then(|name| self.pair.find(name));
                if let Some(other) = other.map(|axis| unknowns.var(scopes, axis)) {
                    unknowns.solver.unify(var, other);
                    let origin = unknowns.fact(Fact::Rule { span: span.clone() });
                    unknowns.by_rule.insert(var, origin);
                    continue;
                }
                let size = formula.eval_size(&|name| {
                    let axis = self.pair.find(name)?;
                    unknowns.solver.value(unknowns.known_var(scopes, axis)?)
                });
                if let Some(size) = size {
                    let origin = unknowns.fact(Fact::Rule { span: span.clone() });
                    unknowns.solver.set(var, size, origin);
                }
            }
            unknowns.solver.solve();
        }
    }

    /// Applies the config's entries that are sizes together with other sizes only: a share of the head size.
    fn apply_config_formulas(&self, unknowns: &mut Unknowns<'_>) {
        let facts = self.options.provenance.of(self.pair.source);
        for (name, entry) in &self.pair.layout(Side::Source).config {
            let Some(axis) = self.pair.find(name) else { continue };
            let found = facts.first(&entry.keys);
            let (Some(formula), Some(told)) = (&entry.is, found) else { continue };
            let Some(number) = told.value.as_f64() else { continue };
            let formula = formula.clone().with("value", number);
            let vars: Vec<usize> =
                (0..unknowns.axes.len()).filter(|&var| unknowns.axes[var].0 == axis).collect();
            for var in vars {
                let scopes = unknowns.axes[var].1;
                let size = formula.eval_size(&|name| {
                    let axis = self.pair.find(name)?;
                    unknowns.solver.value(unknowns.known_var(scopes, axis)?)
                });
                if let Some(size) = size {
                    let origin = unknowns.fact(Fact::Config { key: told.place() });
                    unknowns.solver.set(Var(var as u32), size, origin);
                }
            }
            unknowns.solver.solve();
        }
    }
}
