//! Small sizes for all axes at which two layouts can meet: what the mapping says of them holds, and no two axes of a
//! tensor are alike by accident.

use std::collections::BTreeMap;

use crate::bind::AxisSizes;
use crate::inspect::length;
use crate::mapping::arith::Formula;
use crate::mapping::{Layout, Mapping};
use crate::notation::{AxisName, Term, for_each_axis};
use crate::random::Random;

/// How many choices are tried, and how many that hold are compared.
const TRIES: usize = 2_000;
const ENOUGH: usize = 120;

/// Sizes from which is chosen; those behind are for axes of names too, which multiply the tensors.
const WIDE: &[u64] = &[7, 9, 5, 4, 6, 2, 3, 2, 3, 1];
const NAMED: &[u64] = &[3, 2, 3, 2, 1];
/// The same for the smallest counter-example.
const SMALL: &[u64] = &[2, 3, 1, 2];

/// What two layouts say of the sizes of their axes.
#[derive(Debug)]
pub(super) struct Equations<'a> {
    names: Vec<&'a str>,
    definitions: BTreeMap<&'a str, Vec<&'a [Term]>>,
    fixed: BTreeMap<&'a str, u64>,
    /// What a framework fixes: an equation where it can be one.
    defaults: Vec<(&'a str, &'a Formula)>,
    /// Query heads and key/value heads of a `forward` entry, and the head size of which pairs rotate.
    heads: Vec<(&'a str, &'a str)>,
    rotated: Vec<(&'a str, Option<&'a Formula>)>,
    /// Axes that enumerate names.
    named: Vec<&'a str>,
    /// Axes that stand in one tensor.
    together: Vec<Vec<&'a str>>,
}

impl<'a> Equations<'a> {
    /// Collects what a family and its two layouts say.
    pub(super) fn new(mapping: &'a Mapping, layouts: [&'a Layout; 2]) -> Equations<'a> {
        let mut equations = Equations {
            names: Vec::new(),
            definitions: BTreeMap::new(),
            fixed: BTreeMap::new(),
            defaults: Vec::new(),
            heads: Vec::new(),
            rotated: Vec::new(),
            named: Vec::new(),
            together: Vec::new(),
        };
        let own = layouts.iter().flat_map(|layout| &layout.axes);
        for (name, axis) in mapping.axes.iter().chain(own) {
            if !equations.names.contains(&name.as_str()) {
                equations.names.push(name);
            }
            if let Some(terms) = &axis.is {
                equations.definitions.entry(name).or_default().push(terms);
            }
            equations.fixed.extend(axis.size.map(|size| (name.as_str(), size)));
        }
        for layout in layouts {
            let defaults = layout.defaults.iter();
            equations.defaults.extend(defaults.map(|(name, default)| (name.as_str(), &default.value)));
            for rule in &layout.rules {
                equations.named.extend(rule.template.axes());
                let mut axes = Vec::new();
                for_each_axis(&rule.expr.dims, &mut |axis, _| {
                    if let AxisName::Named(name) = axis
                        && !axes.contains(&name)
                    {
                        axes.push(name);
                    }
                });
                equations.together.push(axes);
            }
            for forward in layout.forwards.values() {
                equations.heads.push((forward.axis("h"), forward.axis("g")));
                if let Some(rotary) = &forward.rotary {
                    equations.rotated.push((forward.axis("d"), rotary.dims.as_ref()));
                }
            }
        }
        equations
    }

    /// Returns what tells these equations from others, for remembering their solution.
    pub(super) fn signature(&self) -> String {
        let terms = |terms: &[Term]| terms.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
        let mut parts: Vec<String> = Vec::new();
        for (name, definitions) in &self.definitions {
            parts.extend(definitions.iter().map(|definition| format!("{name}={}", terms(definition))));
        }
        parts.extend(self.fixed.iter().map(|(name, size)| format!("{name}={size}")));
        parts.extend(self.defaults.iter().map(|(name, formula)| format!("{name}:{}", formula.span.text())));
        let dims = |dims: &Option<&Formula>| dims.map_or(String::new(), |dims| dims.span.text().to_owned());
        parts.extend(self.rotated.iter().map(|(name, formula)| format!("{name}~{}", dims(formula))));
        parts.extend(self.heads.iter().map(|(h, g)| format!("{h}/{g}")));
        parts.extend(self.names.iter().map(|name| (*name).to_owned()));
        parts.extend(self.named.iter().map(|name| format!("{{{name}}}")));
        parts.sort();
        parts.dedup();
        parts.join(";")
    }

    /// Chooses sizes; `None` where none were found at which both layouts can hold a model.
    pub(super) fn solve(&self, seed: u64, small: bool) -> Option<AxisSizes> {
        // What a framework fixes holds only as long as nothing else is told: as much of it holds as can.
        let without = (0..self.defaults.len()).map(|at| vec![at]);
        let all = (0..self.defaults.len()).collect();
        let mut given_up = std::iter::once(Vec::new()).chain(without).chain([all]);
        given_up.find_map(|given_up| self.search(seed, small, &given_up))
    }

    fn search(&self, seed: u64, small: bool, given_up: &[usize]) -> Option<AxisSizes> {
        let kept = self.defaults.iter().enumerate().filter(|(at, _)| !given_up.contains(at));
        let defaults: Vec<(&str, &Formula)> = kept.map(|(_, default)| *default).collect();
        let mut random = Random(seed);
        let mut best: Option<(i64, AxisSizes)> = None;
        let mut held = 0;
        for _ in 0..TRIES {
            let sizes = AxisSizes::new();
            let mut choice =
                Choice { equations: self, sizes, random: &mut random, small, defaults: &defaults };
            let Some(()) = choice.all() else { continue };
            let sizes = choice.sizes;
            held += 1;
            let score = self.score(&sizes, small);
            if best.as_ref().is_none_or(|(other, _)| score > *other) {
                best = Some((score, sizes));
            }
            if held == ENOUGH || small {
                break;
            }
        }
        best.map(|(_, sizes)| sizes)
    }

    /// Counts against a choice: axes of one tensor that are alike, axes of size 1, and tensors of many elements.
    fn score(&self, sizes: &AxisSizes, small: bool) -> i64 {
        if small {
            return 0;
        }
        let size = |name: &&str| sizes.get(*name).copied().unwrap_or(1);
        let mut score = 0;
        for axes in &self.together {
            let known: Vec<u64> = axes.iter().map(size).collect();
            let alike = known.iter().enumerate().filter(|(at, size)| known[..*at].contains(size)).count();
            let elements = known.iter().fold(1_u64, |product, size| product.saturating_mul(*size));
            score -= 40 * alike as i64 + (elements / 400).min(1_000) as i64;
        }
        for (h, g) in &self.heads {
            let (h, g) = (size(h), size(g));
            // One key/value head, as many as query heads, or as many groups as heads in each hide a mistake.
            score -= 60 * (i64::from(g == 1) + i64::from(g == h) + i64::from(g * g == h));
        }
        score - 30 * sizes.values().filter(|size| **size < 2).count() as i64
    }
}

/// One choice of sizes.
struct Choice<'e, 'a> {
    equations: &'e Equations<'a>,
    sizes: AxisSizes,
    random: &'e mut Random,
    small: bool,
    /// What the frameworks fix.
    defaults: &'e [(&'a str, &'a Formula)],
}

impl<'a> Choice<'_, 'a> {
    fn all(&mut self) -> Option<()> {
        let equations = self.equations;
        for name in &equations.names {
            self.size(name, &mut Vec::new())?;
        }
        let known = |sizes: &AxisSizes, name: &str| sizes.get(name).copied();
        for (name, definitions) in &equations.definitions {
            for definition in definitions {
                let size = length(definition, &self.sizes)?;
                // Only a part of an axis may be empty.
                (size > 0 && known(&self.sizes, name) == Some(size)).then_some(())?;
            }
        }
        for (name, formula) in self.defaults {
            let size = formula.eval_size(&|axis| known(&self.sizes, axis))?;
            (known(&self.sizes, name) == Some(size)).then_some(())?;
        }
        for (h, g) in &equations.heads {
            if let (Some(h), Some(g)) = (known(&self.sizes, h), known(&self.sizes, g)) {
                (g > 0 && h % g == 0).then_some(())?;
            }
        }
        for (d, dims) in &equations.rotated {
            let Some(d) = known(&self.sizes, d) else { continue };
            let dims = match dims {
                Some(dims) => dims.eval_size(&|axis| known(&self.sizes, axis))?,
                None => d,
            };
            (dims <= d && dims % 2 == 0).then_some(())?;
        }
        Some(())
    }

    /// Returns the size of an axis: fixed, composed, what a framework fixes, or any.
    fn size(&mut self, name: &'a str, asked: &mut Vec<&'a str>) -> Option<u64> {
        if let Some(size) = self.sizes.get(name) {
            return Some(*size);
        }
        if asked.contains(&name) {
            return None;
        }
        asked.push(name);
        let size = self.found(name, asked);
        asked.pop();
        self.sizes.extend(size.map(|size| (name.to_owned(), size)));
        size
    }

    fn found(&mut self, name: &'a str, asked: &mut Vec<&'a str>) -> Option<u64> {
        let equations = self.equations;
        let default = self.defaults.iter().find(|(axis, _)| *axis == name);
        if let Some(size) = equations.fixed.get(name) {
            Some(*size)
        } else if let Some(definition) = equations.definitions.get(name).and_then(|all| all.first()) {
            let mut parts = Vec::new();
            for term in *definition {
                for_each_axis(&term.dims, &mut |axis, _| {
                    if let AxisName::Named(part) = axis {
                        parts.push(part);
                    }
                });
            }
            for part in parts {
                self.size(part, asked);
            }
            length(definition, &self.sizes)
        } else {
            let told = default.and_then(|(_, formula)| {
                for axis in formula.axes() {
                    self.size(axis, asked);
                }
                formula.eval_size(&|axis| self.sizes.get(axis).copied())
            });
            told.or_else(|| Some(self.any(name)))
        }
    }

    fn any(&mut self, name: &str) -> u64 {
        let pool = match (self.small, self.equations.named.contains(&name)) {
            (true, _) => SMALL,
            (false, true) => NAMED,
            (false, false) => WIDE,
        };
        pool[(self.random.bits() % pool.len() as u64) as usize]
    }
}
