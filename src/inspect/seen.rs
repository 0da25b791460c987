//! A stored tensor seen element by element: which parameter, which head, through the naive reading of its expression.

use std::sync::Arc;

use super::sizes::deduce;
use crate::bind::{AxisSizes, Bound, ParamId, Reading};
use crate::mapping::key::Captures;
use crate::mapping::{Layout, Mapping, Rule};
use crate::notation::{AxisName, Expr, for_each_axis};
use crate::verify::naive::{Found, Reader, Sizes, Values};

/// The longest stored axis along which heads are looked for.
const LONGEST: u64 = 1 << 26;

/// A stored tensor and the reading of its expression.
pub struct Seen<'a> {
    reader: Reader<'a>,
    expr: &'a Expr,
    captures: &'a Captures,
    /// The sizes of each parameter that it holds, in the expression's order; open products are factored in any way that
    /// fits.
    sizes: Vec<(String, AxisSizes)>,
    /// Those of them that something tells.
    known: Vec<(String, AxisSizes)>,
}

/// What an element belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The parameter.
    pub param: String,
    /// The values of its declared axes, in canonical order; of axes that the tensor's place does not tell, 0.
    pub values: Values,
}

impl Element {
    /// Returns the head that it belongs to: the value of the parameter's axis of heads.
    pub(super) fn head(&self, mapping: &Mapping) -> Option<u64> {
        self.values.get(mapping.head_axis(&self.param)?).copied()
    }
}

impl<'a> Seen<'a> {
    /// Sees a tensor of a bound checkpoint.
    pub fn new(mapping: &'a Mapping, layout: &'a Layout, bound: &Bound, reading: &'a Reading) -> Seen<'a> {
        let rule = &layout.rules[reading.rule];
        let name = |id: ParamId| bound.params.get(id.index()).cloned().unwrap_or_default();
        let named = |all: &[(ParamId, Arc<AxisSizes>)]| {
            all.iter().map(|(id, sizes)| (name(*id), AxisSizes::clone(sizes))).collect()
        };
        let mut known: Vec<(String, AxisSizes)> = named(&reading.known);
        known.iter_mut().for_each(|(_, sizes)| deduce(mapping, layout, sizes));
        Seen { known, ..Seen::of(mapping, layout, rule, &reading.captures, named(&reading.sizes)) }
    }

    /// Sees a tensor of a rule whose parameters have these sizes.
    pub fn of(
        mapping: &'a Mapping,
        layout: &'a Layout,
        rule: &'a Rule,
        captures: &'a Captures,
        mut sizes: Vec<(String, AxisSizes)>,
    ) -> Seen<'a> {
        sizes.iter_mut().for_each(|(_, sizes)| deduce(mapping, layout, sizes));
        let known = sizes.clone();
        Seen { reader: Reader { mapping, layout }, expr: &rule.expr, captures, sizes, known }
    }

    /// Returns the sizes of a parameter's axes, open products factored in any way that fits.
    pub(super) fn sizes_of(&self, param: &str) -> Option<&AxisSizes> {
        self.sizes.iter().find(|(name, _)| name == param).map(|(_, sizes)| sizes)
    }

    /// Returns the sizes of a parameter's axes that something tells.
    pub fn known_sizes(&self, param: &str) -> Option<&AxisSizes> {
        self.known.iter().find(|(name, _)| name == param).map(|(_, sizes)| sizes)
    }

    /// Returns an axis on which the places of a parameter's heads depend and whose size nothing tells.
    pub fn open_axis(&self, param: &str) -> Option<&'a str> {
        let (mapping, layout) = (self.reader.mapping, self.reader.layout);
        let none = AxisSizes::new();
        let known = self.known_sizes(param).unwrap_or(&none);
        let mut axes: Vec<&'a str> = mapping.params.get(param)?.axes.iter().map(String::as_str).collect();
        // Of an axis whose order the layout restates, its parts too.
        let mut at = 0;
        while let Some(axis) = axes.get(at) {
            let restated = layout.axes.get(*axis).and_then(|axis| axis.is.as_deref());
            for term in restated.into_iter().flatten() {
                for_each_axis(&term.dims, &mut |inner, _| {
                    if let AxisName::Named(inner) = inner
                        && !axes.contains(&inner)
                    {
                        axes.push(inner);
                    }
                });
            }
            at += 1;
        }
        let is_open = |axis: &&str| !known.contains_key(*axis) && self.captures.index(axis).is_none();
        axes.into_iter().find(is_open)
    }

    /// Returns the names of the parameters.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.sizes.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the mapping.
    pub fn mapping(&self) -> &'a Mapping {
        self.reader.mapping
    }

    /// Returns the layout.
    pub fn layout(&self) -> &'a Layout {
        self.reader.layout
    }

    /// Returns the expression.
    pub fn expr(&self) -> &'a Expr {
        self.expr
    }

    /// Returns what the tensor's name captured.
    pub(super) fn captures(&self) -> &'a Captures {
        self.captures
    }

    fn outer(&self) -> Option<&AxisSizes> {
        let label = self.expr.label.as_ref().and_then(|label| label.param.as_deref());
        let labelled = label.and_then(|param| self.sizes_of(param));
        labelled.or_else(|| self.sizes.first().map(|(_, sizes)| sizes))
    }

    /// Returns the shape that the sizes give; `None` where one is open.
    pub fn shape(&self) -> Option<Vec<u64>> {
        let outer = self.outer()?;
        let of = |param: &str| self.sizes_of(param);
        let sizes = Sizes { outer, of: &of };
        self.expr.dims.iter().map(|dim| sizes.length(dim, outer)).collect()
    }

    /// Reads what stands at an index of one stored axis.
    pub(super) fn decode(&self, dim: usize, index: u64) -> Option<Found> {
        let outer = self.outer()?;
        let of = |param: &str| self.sizes_of(param);
        let sizes = Sizes { outer, of: &of };
        let mut found = Found::default();
        sizes.decode(self.expr.dims.get(dim)?, index, outer, &mut found)?;
        Some(found)
    }

    /// Returns the head that an element belongs to; `None` where the size that tells it is open.
    pub fn head_of(&self, element: &Element) -> Option<u64> {
        match self.open_axis(&element.param) {
            None => element.head(self.reader.mapping),
            Some(_) => None,
        }
    }

    /// Returns the group of query heads that an element belongs to, those that share one key/value head; of a key or value
    /// its head.
    pub(super) fn group_of(&self, element: &Element) -> Option<u64> {
        let mapping = self.reader.mapping;
        let (head, axis) = (self.head_of(element)?, mapping.head_axis(&element.param)?);
        let sizes = self.known_sizes(&element.param)?;
        match mapping.group_axis(axis) {
            Some(group) => Some(head / (sizes.get(axis)? / sizes.get(group)?.max(&1)).max(1)),
            // Keys and values: the axis is that of the groups.
            None => mapping.axes.keys().any(|heads| mapping.group_axis(heads) == Some(axis)).then_some(head),
        }
    }

    /// Returns what the element at these indices belongs to; `None` for padding and zeros.
    pub fn element(&self, indices: &[u64]) -> Option<Element> {
        let found: Option<Vec<Found>> =
            indices.iter().enumerate().map(|(dim, index)| self.decode(dim, *index)).collect();
        self.combine(found?.iter())
    }

    pub(super) fn combine<'f>(&self, found: impl Iterator<Item = &'f Found>) -> Option<Element> {
        let mut label = self.expr.label.as_ref().map(|label| label.param.clone());
        let mut values = Values::new();
        for (axis, index) in &self.captures.indices {
            values.insert(axis.to_string(), *index);
        }
        for part in found {
            match (&label, &part.label) {
                // Unlike labels of two axes: the zeros of a block diagonal.
                (Some(one), Some(other)) if one != other && self.expr.label.is_none() => return None,
                (_, Some(other)) => label = Some(other.clone()),
                (_, None) => {}
            }
            values.extend(part.values.iter().map(|(axis, value)| (axis.clone(), *value)));
        }
        let param = label.flatten()?;
        let values = self.reader.declared(&param, &values, self.sizes_of(&param)?)?;
        Some(Element { param, values })
    }

    /// Returns the indices along each stored axis at which a head of a parameter lies; `None` where it is not in the
    /// tensor, and where a size that tells it is open.
    pub fn head(&self, shape: &[u64], param: &str, head: u64) -> Option<Vec<Vec<u64>>> {
        // A tensor without elements holds no head, however long its other axes are.
        if self.open_axis(param).is_some() || shape.iter().any(|size| *size == 0 || *size > LONGEST) {
            return None;
        }
        let mapping = self.reader.mapping;
        // What stands at the witness, but for one axis. Indices are read one by one: tables of a long axis would be large.
        let mut witness: Vec<Found> =
            (0..shape.len()).map(|dim| self.decode(dim, 0)).collect::<Option<_>>()?;
        let at = |witness: &[Found], dim: usize, other: &Found| {
            let found = witness.iter().enumerate().map(|(own, found)| if own == dim { other } else { found });
            self.combine(found).map(|element| (element.head(mapping), element.param))
        };
        // From the first element along one axis to the parameter, then along one to the head.
        for goal in [None, Some(head)] {
            let mut step = None;
            'axes: for (dim, size) in shape.iter().enumerate() {
                for index in 0..*size {
                    let other = self.decode(dim, index)?;
                    let (seen, name) = at(&witness, dim, &other).unzip();
                    if name.is_some_and(|name| name == param)
                        && goal.is_none_or(|goal| seen.flatten() == Some(goal))
                    {
                        step = Some((dim, other));
                        break 'axes;
                    }
                }
            }
            let (dim, found) = step?;
            witness[dim] = found;
        }
        let along = |(dim, size): (usize, &u64)| {
            let mut hits = Vec::new();
            for index in 0..*size {
                if at(&witness, dim, &self.decode(dim, index)?) == Some((Some(head), param.to_owned())) {
                    hits.push(index);
                }
            }
            Some(hits)
        };
        shape.iter().enumerate().map(along).collect()
    }
}

/// Cuts ascending indices into runs of equal steps: first, behind the last, step.
pub fn runs(indices: &[u64]) -> Vec<(u64, u64, u64)> {
    let mut all = Vec::new();
    let mut rest = indices;
    while let Some(first) = rest.first() {
        let step = rest.get(1).map_or(1, |second| second - first);
        let length = 1 + rest.windows(2).take_while(|pair| pair[1] - pair[0] == step).count();
        // A lone index before a longer run of another step stands by itself.
        let length = if length == 2 && step > 1 { 1 } else { length };
        all.push((*first, rest[length - 1] + 1, if length == 1 { 1 } else { step }));
        rest = &rest[length..];
    }
    all
}

/// Writes indices as ranges: `48..64`, `1..16 in steps of 2`.
pub fn ranges(indices: &[u64]) -> String {
    const MOST: usize = 4;
    let all = runs(indices);
    let text = |(first, end, step): &(u64, u64, u64)| match (end - first, step) {
        (1, _) => first.to_string(),
        (_, 1) => format!("{first}..{end}"),
        _ => format!("{first}..{end} in steps of {step}"),
    };
    let mut texts: Vec<String> = all.iter().take(MOST).map(text).collect();
    if all.len() > MOST {
        texts.push(format!("… ({} runs)", all.len()));
    }
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_become_ranges() {
        assert_eq!(ranges(&[48, 49, 50, 51]), "48..52");
        assert_eq!(ranges(&[1, 3, 5, 7]), "1..8 in steps of 2");
        assert_eq!(ranges(&[4, 5, 12, 13]), "4..6, 12..14");
        assert_eq!(ranges(&[7]), "7");
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[0, 9, 11, 20, 24, 90]), "0, 9, 11, 20, … (6 runs)");
    }
}
