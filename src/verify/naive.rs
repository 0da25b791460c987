//! A second, naive reading of the expressions: an index in a stored axis → values of axes, and values of axes → an
//! index. It walks the expression as written and knows nothing of lowering, plans or strides.

use std::collections::BTreeMap;

use crate::bind::AxisSizes;
use crate::mapping::{Layout, Mapping};
use crate::notation::{Dim, DimKind, Label, Term};

/// Values by axis name.
pub(crate) type Values = BTreeMap<String, u64>;

/// What was found for axes so far: one that stands in many definitions, each inside another, is looked at once.
type Memo<T> = BTreeMap<String, T>;

/// One side of a conversion, as the mapping file says it.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) mapping: &'a Mapping,
    pub(crate) layout: &'a Layout,
}

/// What stands at an index of one stored axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The innermost label on the way; `Some(None)` is padding.
    pub(crate) label: Option<Option<String>>,
    pub(crate) values: Values,
}

/// A tensor's sizes: of each parameter, and of what stands outside labels.
pub(crate) struct Sizes<'a> {
    pub(crate) outer: &'a AxisSizes,
    pub(crate) of: &'a dyn Fn(&str) -> Option<&'a AxisSizes>,
}

/// An element of a parameter, as the axes of the other side see it.
pub(crate) struct Element<'v> {
    /// The value of an axis that a tensor mentions.
    pub(crate) value: &'v dyn Fn(&str) -> Option<u64>,
    /// Whether an axis without a value is a part of the parameter's axes in which the element does not lie.
    pub(crate) elsewhere: &'v dyn Fn(&str) -> bool,
}

impl Element<'_> {
    /// Returns the index along an axis; an axis that the parameter lacks counts as 0. `None` where the element lies in
    /// another part than this axis.
    pub(crate) fn index(&self, axis: &str) -> Option<u64> {
        (self.value)(axis).or_else(|| (!(self.elsewhere)(axis)).then_some(0))
    }
}

impl<'a> Sizes<'a> {
    fn under(&self, label: Option<&Label>, current: &'a AxisSizes) -> Option<&'a AxisSizes> {
        match label {
            None => Some(current),
            Some(label) => match &label.param {
                Some(param) => (self.of)(param),
                None => Some(self.outer),
            },
        }
    }

    /// Returns the length of one dimension.
    pub(crate) fn length(&self, dim: &Dim, current: &'a AxisSizes) -> Option<u64> {
        match &dim.kind {
            DimKind::Axis(name) => current.get(name).copied(),
            DimKind::Size(size) => Some(*size),
            DimKind::Sum(terms) => terms.iter().map(|term| self.term_length(term, current)).sum(),
        }
    }

    fn term_length(&self, term: &Term, current: &'a AxisSizes) -> Option<u64> {
        let sizes = self.under(term.label.as_ref(), current)?;
        term.dims.iter().map(|dim| self.length(dim, sizes)).product()
    }

    /// Reads what stands at `index` of a dimension.
    pub(crate) fn decode(
        &self,
        dim: &Dim,
        index: u64,
        current: &'a AxisSizes,
        found: &mut Found,
    ) -> Option<()> {
        match &dim.kind {
            DimKind::Axis(name) => {
                found.values.insert(name.clone(), index);
            }
            DimKind::Size(1) => {}
            DimKind::Size(size) => {
                found.values.insert(size.to_string(), index);
            }
            DimKind::Sum(terms) => {
                let mut start = 0;
                for term in terms {
                    let length = self.term_length(term, current)?;
                    if index < start + length {
                        return self.decode_term(term, index - start, current, found);
                    }
                    start += length;
                }
                return None;
            }
        }
        Some(())
    }

    fn decode_term(&self, term: &Term, index: u64, current: &'a AxisSizes, found: &mut Found) -> Option<()> {
        if let Some(label) = &term.label {
            found.label = Some(label.param.clone());
        }
        let sizes = self.under(term.label.as_ref(), current)?;
        let mut rest = index;
        for dim in term.dims.iter().rev() {
            let length = self.length(dim, sizes)?;
            self.decode(dim, rest % length, sizes, found)?;
            rest /= length;
        }
        Some(())
    }

    /// Finds the index in a dimension at which a parameter has an element; `None` where the dimension does not hold it.
    pub(crate) fn encode(
        &self,
        dim: &Dim,
        param: &str,
        current: &'a AxisSizes,
        element: &Element<'_>,
    ) -> Option<u64> {
        match &dim.kind {
            DimKind::Axis(name) => element.index(name),
            DimKind::Size(1) => Some(0),
            DimKind::Size(size) => element.index(&size.to_string()),
            DimKind::Sum(terms) => {
                let mut start = 0;
                for term in terms {
                    if is_the_term(term, terms, param, element.value) {
                        return Some(start + self.encode_term(term, param, current, element)?);
                    }
                    start += self.term_length(term, current)?;
                }
                None
            }
        }
    }

    fn encode_term(
        &self,
        term: &Term,
        param: &str,
        current: &'a AxisSizes,
        element: &Element<'_>,
    ) -> Option<u64> {
        let sizes = self.under(term.label.as_ref(), current)?;
        let mut index = 0;
        for dim in &term.dims {
            index = index * self.length(dim, sizes)? + self.encode(dim, param, sizes, element)?;
        }
        Some(index)
    }
}

/// Returns whether a parameter's element with those values stands in that term of a sum.
fn is_the_term(term: &Term, terms: &[Term], param: &str, value: &dyn Fn(&str) -> Option<u64>) -> bool {
    if terms.len() == 1 {
        return true;
    }
    let mut labels = Vec::new();
    labels_of(term, &mut labels);
    if labels.is_empty() {
        // Without labels the parts of an axis stand here: `(c f) + u`; the element has values in one of them.
        return axes_of(std::slice::from_ref(term)).iter().all(|axis| value(axis).is_some());
    }
    labels.iter().any(|label| label.as_deref() == Some(param))
}

fn labels_of(term: &Term, labels: &mut Vec<Option<String>>) {
    labels.extend(term.label.iter().map(|label| label.param.clone()));
    for dim in &term.dims {
        if let DimKind::Sum(terms) = &dim.kind {
            terms.iter().for_each(|term| labels_of(term, labels));
        }
    }
}

/// Returns the axes that stand in a definition, in order.
fn axes_of(terms: &[Term]) -> Vec<String> {
    let mut axes = Vec::new();
    for dim in terms.iter().flat_map(|term| &term.dims) {
        match &dim.kind {
            DimKind::Axis(name) => axes.push(name.clone()),
            DimKind::Size(1) => {}
            DimKind::Size(size) => axes.push(size.to_string()),
            DimKind::Sum(terms) => axes.extend(axes_of(terms)),
        }
    }
    axes
}

impl<'a> Reader<'a> {
    /// The definition in the layout's stored order.
    fn stored(&self, axis: &str) -> Option<&'a [Term]> {
        let own = self.layout.axes.get(axis).and_then(|axis| axis.is.as_deref());
        own.or_else(|| self.mapping.axes.get(axis)?.is.as_deref())
    }

    /// The definition in canonical order: the family's, unless the layout has other parts than it.
    fn canonical(&self, axis: &str) -> Option<&'a [Term]> {
        let own = self.layout.axes.get(axis).and_then(|axis| axis.is.as_deref());
        let family = self.mapping.axes.get(axis).and_then(|axis| axis.is.as_deref());
        match (own, family) {
            (Some(own), Some(family)) => {
                let (mut a, mut b) = (axes_of(own), axes_of(family));
                a.sort();
                b.sort();
                Some(if a == b { family } else { own })
            }
            (own, family) => own.or(family),
        }
    }

    /// Returns whether the layout has the axis, or anything that it is composed of, in an order or in parts of its own.
    fn restates(&self, axis: &str) -> bool {
        self.layout.axes.get(axis).is_some_and(|axis| axis.is.is_some())
            || self.stored(axis).is_some_and(|terms| axes_of(terms).iter().any(|inner| self.restates(inner)))
    }

    /// From the values that a tensor's index gives in stored order to the values of a parameter's declared axes, in
    /// canonical order. An axis that nothing gives is at 0.
    pub(crate) fn declared(&self, param: &str, found: &Values, sizes: &AxisSizes) -> Option<Values> {
        let mut known = Values::new();
        for (axis, value) in found {
            self.take_apart(axis, *value, sizes, &mut known);
        }
        let axes = &self.mapping.params.get(param)?.axes;
        let mut memo = Memo::new();
        axes.iter()
            .map(|axis| Some((axis.clone(), self.compose(axis, &known, sizes, &mut memo)?.unwrap_or(0))))
            .collect()
    }

    /// Notes an axis's value and those of what it is composed of, in stored order.
    fn take_apart(&self, axis: &str, value: u64, sizes: &AxisSizes, known: &mut Values) {
        // A restated axis's stored index is not its canonical value; its parts tell that.
        if !self.restates(axis) {
            known.insert(axis.to_owned(), value);
        }
        let Some(terms) = self.stored(axis) else { return };
        if let Some(parts) = decode_definition(terms, value, sizes) {
            for (part, value) in parts {
                self.take_apart(&part, value, sizes, known);
            }
        }
    }

    /// Returns an axis's canonical value from what is known; `Some(None)` where nothing of it is.
    fn compose(
        &self,
        axis: &str,
        known: &Values,
        sizes: &AxisSizes,
        memo: &mut Memo<Option<Option<u64>>>,
    ) -> Option<Option<u64>> {
        if let Some(value) = known.get(axis) {
            return Some(Some(*value));
        }
        if let Some(value) = memo.get(axis) {
            return *value;
        }
        let value = self.compose_anew(axis, known, sizes, memo);
        memo.insert(axis.to_owned(), value);
        value
    }

    fn compose_anew(
        &self,
        axis: &str,
        known: &Values,
        sizes: &AxisSizes,
        memo: &mut Memo<Option<Option<u64>>>,
    ) -> Option<Option<u64>> {
        let Some(terms) = self.canonical(axis) else { return Some(None) };
        let mut start = 0;
        for term in terms {
            if self.composes_some(term, known, sizes, memo) {
                return Some(Some(start + self.compose_term(term, known, sizes, memo)?));
            }
            start += match definition_length(std::slice::from_ref(term), sizes) {
                Some(length) => length,
                None => return Some(None),
            };
        }
        Some(None)
    }

    fn composes_some(
        &self,
        term: &Term,
        known: &Values,
        sizes: &AxisSizes,
        memo: &mut Memo<Option<Option<u64>>>,
    ) -> bool {
        axes_of(std::slice::from_ref(term))
            .iter()
            .any(|inner| matches!(self.compose(inner, known, sizes, memo), Some(Some(_))))
    }

    fn compose_term(
        &self,
        term: &Term,
        known: &Values,
        sizes: &AxisSizes,
        memo: &mut Memo<Option<Option<u64>>>,
    ) -> Option<u64> {
        let mut value = 0;
        for dim in &term.dims {
            let (length, index) = match &dim.kind {
                DimKind::Size(1) => continue,
                DimKind::Size(size) => {
                    (*size, self.compose(&size.to_string(), known, sizes, memo)?.unwrap_or(0))
                }
                DimKind::Axis(name) => {
                    (*sizes.get(name)?, self.compose(name, known, sizes, memo)?.unwrap_or(0))
                }
                DimKind::Sum(terms) => {
                    let length = definition_length(terms, sizes)?;
                    let mut start = 0;
                    let mut index = 0;
                    for term in terms {
                        if self.composes_some(term, known, sizes, memo) {
                            index = start + self.compose_term(term, known, sizes, memo)?;
                        }
                        start += definition_length(std::slice::from_ref(term), sizes)?;
                    }
                    (length, index)
                }
            };
            value = value * length + index;
        }
        Some(value)
    }

    /// From the values of a parameter's declared axes to the value of any axis that a tensor of this layout mentions,
    /// in stored order; `None` for an axis that the parameter lacks.
    pub(crate) fn mentioned(&self, axis: &str, declared: &Values, sizes: &AxisSizes) -> Option<u64> {
        let mut known = Values::new();
        for (axis, value) in declared {
            self.take_apart_canonically(axis, *value, sizes, &mut known);
        }
        self.restate(axis, &known, sizes, &mut Memo::new())
    }

    fn take_apart_canonically(&self, axis: &str, value: u64, sizes: &AxisSizes, known: &mut Values) {
        known.insert(axis.to_owned(), value);
        let Some(terms) = self.canonical(axis) else { return };
        if let Some(parts) = decode_definition(terms, value, sizes) {
            for (part, value) in parts {
                self.take_apart_canonically(&part, value, sizes, known);
            }
        }
    }

    fn restate(
        &self,
        axis: &str,
        known: &Values,
        sizes: &AxisSizes,
        memo: &mut Memo<Option<u64>>,
    ) -> Option<u64> {
        if let Some(value) = memo.get(axis) {
            return *value;
        }
        let value = match known.get(axis) {
            Some(value) if !self.restates(axis) => Some(*value),
            _ => self.restate_anew(axis, known, sizes, memo),
        };
        memo.insert(axis.to_owned(), value);
        value
    }

    fn restate_anew(
        &self,
        axis: &str,
        known: &Values,
        sizes: &AxisSizes,
        memo: &mut Memo<Option<u64>>,
    ) -> Option<u64> {
        let terms = self.stored(axis)?;
        let mut start = 0;
        for term in terms {
            let axes = axes_of(std::slice::from_ref(term));
            let told = axes.iter().filter(|inner| self.restate(inner, known, sizes, memo).is_some()).count();
            if told == axes.len() || (terms.len() == 1 && told > 0) {
                return Some(start + self.restate_term(term, known, sizes, memo)?);
            }
            start += definition_length(std::slice::from_ref(term), sizes)?;
        }
        None
    }

    fn restate_term(
        &self,
        term: &Term,
        known: &Values,
        sizes: &AxisSizes,
        memo: &mut Memo<Option<u64>>,
    ) -> Option<u64> {
        let mut value = 0;
        for dim in &term.dims {
            let (length, index) = match &dim.kind {
                DimKind::Size(1) => continue,
                DimKind::Size(size) => {
                    (*size, self.restate(&size.to_string(), known, sizes, memo).unwrap_or(0))
                }
                DimKind::Axis(name) => {
                    (*sizes.get(name)?, self.restate(name, known, sizes, memo).unwrap_or(0))
                }
                DimKind::Sum(terms) => {
                    let mut start = 0;
                    let mut index = 0;
                    for term in terms {
                        let axes = axes_of(std::slice::from_ref(term));
                        if axes.iter().all(|inner| self.restate(inner, known, sizes, memo).is_some()) {
                            index = start + self.restate_term(term, known, sizes, memo)?;
                        }
                        start += definition_length(std::slice::from_ref(term), sizes)?;
                    }
                    (start, index)
                }
            };
            value = value * length + index;
        }
        Some(value)
    }
}

/// Reads an axis's value along its definition; `None` where a size of a part is open.
fn decode_definition(terms: &[Term], value: u64, sizes: &AxisSizes) -> Option<Values> {
    let of = |_: &str| None;
    let sizes = Sizes { outer: sizes, of: &of };
    let mut start = 0;
    for term in terms {
        let length = definition_length(std::slice::from_ref(term), sizes.outer)?;
        if value < start + length {
            let mut found = Found::default();
            sizes.decode_term(term, value - start, sizes.outer, &mut found)?;
            return Some(found.values);
        }
        start += length;
    }
    None
}

fn definition_length(terms: &[Term], sizes: &AxisSizes) -> Option<u64> {
    let of = |_: &str| None;
    let reading = Sizes { outer: sizes, of: &of };
    terms.iter().map(|term| reading.term_length(term, sizes)).sum()
}

impl Reader<'_> {
    /// Returns whether one of the two axes is, or is composed of, the other.
    pub(crate) fn related(&self, first: &str, second: &str) -> bool {
        self.reaches(first, second) || self.reaches(second, first)
    }

    /// Returns whether an axis is, or is composed of, the other.
    pub(crate) fn reaches(&self, outer: &str, inner: &str) -> bool {
        outer == inner
            || [self.stored(outer), self.canonical(outer)]
                .into_iter()
                .flatten()
                .any(|terms| axes_of(terms).iter().any(|axis| self.reaches(axis, inner)))
    }
}
