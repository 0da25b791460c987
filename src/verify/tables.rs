//! For one tensor of one side: where each of its elements lies on the other side, as a table per stored axis.
//!
//! The tables are filled index by index by the naive reading. That the offset of an element is the sum of its axes'
//! entries holds for every layout whose axes do not share a parameter's axis unevenly; [`super::readback`] spot-checks
//! it with whole elements.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::naive::{Element, Found, Reader, Sizes, Values};
use crate::bind::{AxisSizes, Reading};
use crate::mapping::Rule;
use crate::notation::{Dim, DimKind, Label};

/// Indices of one stored axis that hold a parameter's elements of one tensor of the other side.
#[derive(Clone, Debug, Default)]
pub(super) struct Class {
    /// What they add to the indices in the other tensor's name, per axis of its template.
    pub(super) key: Vec<i64>,
    /// Per index: the index here, and what it adds to each index of the other tensor. Where a side stores the parts of
    /// an axis in another order, that may be less than nothing.
    pub(super) entries: Vec<(u64, Vec<i64>)>,
}

/// A parameter's elements in one tensor.
#[derive(Clone, Debug)]
pub(super) struct ParamTable {
    /// Where the tensor's first such element lies in the other tensor: its indices, and those of its name.
    pub(super) origin: Place,
    /// Per stored axis.
    pub(super) dims: Vec<Arc<DimTable>>,
}

impl ParamTable {
    /// Returns how many elements of the parameter the tensor holds.
    pub(super) fn elements(&self) -> u64 {
        self.dims.iter().map(|dim| dim.held).product()
    }

    /// Returns whether the other rule's tensors hold all of them.
    pub(super) fn is_whole(&self) -> bool {
        let found = |dim: &DimTable| dim.classes.iter().map(|class| class.entries.len() as u64).sum::<u64>();
        self.dims.iter().all(|dim| found(dim) == dim.held)
    }

    /// Returns the indices of each stored axis whose elements the other rule's tensors hold, in order.
    pub(super) fn indices(&self) -> Vec<Vec<u64>> {
        let of = |dim: &Arc<DimTable>| {
            let entries = dim.classes.iter().flat_map(|class| &class.entries);
            let mut indices: Vec<u64> = entries.map(|(index, _)| *index).collect();
            indices.sort_unstable();
            indices
        };
        self.dims.iter().map(of).collect()
    }
}

/// The indices of one stored axis that hold a parameter's elements.
#[derive(Clone, Debug, Default)]
pub(super) struct DimTable {
    /// Those whose elements lie in tensors of the other rule.
    pub(super) classes: Vec<Class>,
    /// How many there are, also those whose elements lie elsewhere.
    pub(super) held: u64,
}

/// A place on the other side: indices per stored axis, and per axis of the name's template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) indices: Vec<u64>,
    pub(super) key: Vec<u64>,
}

/// Makes tables for the tensors of one direction; equal ones are made once.
pub(super) struct Tables<'a> {
    pub(super) near: Reader<'a>,
    pub(super) far: Reader<'a>,
    cache: FxHashMap<CacheKey, Arc<DimTable>>,
}

/// Rule, far rule, parameter, dimension, sizes (by address of the shared map) and, where it matters, the name's indices.
type CacheKey = (usize, usize, String, usize, Vec<usize>, Vec<(String, u64)>);

impl<'a> Tables<'a> {
    pub(super) fn new(near: Reader<'a>, far: Reader<'a>) -> Tables<'a> {
        Tables { near, far, cache: FxHashMap::default() }
    }

    /// Makes the table of one parameter in one tensor, against one rule of the other side; `None` where tensors of
    /// that rule hold none of the elements.
    pub(super) fn param(
        &mut self,
        reading: &Reading,
        param: &str,
        far_rule: usize,
        id: &Ids<'_>,
    ) -> Option<ParamTable> {
        let rule = &self.near.layout.rules[reading.rule];
        let far = &self.far.layout.rules[far_rule];
        let own = id.sizes(param)?;
        let base: Values = reading.captures.indices.iter().cloned().collect();
        let named = |axis: &str| {
            base.keys().any(|name| self.near.related(axis, name))
                && !rule.expr.dims.iter().any(|dim| self.touches(axis, dim))
        };
        let origin = self.place(param, &base, own, far, id, &named)?;
        let mut dims = Vec::with_capacity(rule.expr.dims.len());
        for (at, dim) in rule.expr.dims.iter().enumerate() {
            let shared = self.shares_axis(param, dim, &base);
            let addresses =
                id.all.iter().chain(id.far).map(|(_, sizes)| Arc::as_ptr(sizes) as usize).collect();
            let indices = if shared { reading.captures.indices.clone() } else { Vec::new() };
            let key = (reading.rule, far_rule, param.to_owned(), at, addresses, indices);
            if let Some(made) = self.cache.get(&key) {
                dims.push(Arc::clone(made));
                continue;
            }
            let start = if shared { base.clone() } else { Values::new() };
            let made = Arc::new(self.classes(param, rule, dim, &start, far, id)?);
            self.cache.insert(key, Arc::clone(&made));
            dims.push(made);
        }
        Some(ParamTable { origin, dims })
    }

    #[allow(clippy::too_many_arguments)]
    fn classes(
        &self,
        param: &str,
        rule: &Rule,
        dim: &Dim,
        base: &Values,
        far: &Rule,
        id: &Ids<'_>,
    ) -> Option<DimTable> {
        let own = id.sizes(param)?;
        let origin = self.place(param, base, own, far, id, &|_| false)?;
        let of = |name: &str| id.sizes(name);
        let sizes = Sizes { outer: id.outer(), of: &of };
        let current = outer_sizes(rule.expr.label.as_ref(), id);
        let length = sizes.length(dim, current)?;
        let mut table = DimTable::default();
        for index in 0..length {
            let mut found = Found::default();
            sizes.decode(dim, index, current, &mut found)?;
            match &found.label {
                Some(Some(label)) if label != param => continue,
                Some(None) => continue,
                _ => {}
            }
            let mut values = base.clone();
            values.extend(found.values);
            table.held += 1;
            let Some(place) = self.place(param, &values, own, far, id, &|axis| self.touches(axis, dim))
            else {
                continue;
            };
            let added = |here: &[u64], there: &[u64]| -> Vec<i64> {
                here.iter().zip(there).map(|(here, there)| here.wrapping_sub(*there).cast_signed()).collect()
            };
            let key = added(&place.key, &origin.key);
            let entry = (index, added(&place.indices, &origin.indices));
            match table.classes.iter_mut().rev().find(|class| class.key == key) {
                Some(class) => class.entries.push(entry),
                None => table.classes.push(Class { key, entries: vec![entry] }),
            }
        }
        Some(table)
    }

    /// Finds where the element of a parameter lies on the other side, from the values that its place here gives; `None`
    /// where the other rule's tensors hold another part of one of those of its axes that `told` says are known here.
    fn place(
        &self,
        param: &str,
        values: &Values,
        sizes: &AxisSizes,
        far: &Rule,
        id: &Ids<'_>,
        told: &dyn Fn(&str) -> bool,
    ) -> Option<Place> {
        let declared = self.near.declared(param, values, sizes)?;
        let value = |axis: &str| self.far.mentioned(axis, &declared, sizes);
        let elsewhere = |axis: &str| declared.keys().any(|own| self.far.reaches(own, axis) && told(own));
        let element = Element { value: &value, elsewhere: &elsewhere };
        let key = far.template.axes().map(|axis| element.index(axis)).collect::<Option<_>>()?;
        let of = |name: &str| id.far.iter().find(|(other, _)| other == name).map(|(_, sizes)| &**sizes);
        let outer = id.far.first().map(|(_, sizes)| &**sizes)?;
        let reading = Sizes { outer, of: &of };
        let current = match far.expr.label.as_ref().and_then(|label| label.param.as_deref()) {
            Some(name) => of(name)?,
            None => outer,
        };
        let indices = far.expr.dims.iter().map(|dim| reading.encode(dim, param, current, &element));
        Some(Place { indices: indices.collect::<Option<_>>()?, key })
    }

    /// Returns whether a dimension and the tensor's name both hold parts of one axis of the parameter.
    fn shares_axis(&self, param: &str, dim: &Dim, base: &Values) -> bool {
        let declared =
            self.near.mapping.params.get(param).map(|param| param.axes.as_slice()).unwrap_or_default();
        declared
            .iter()
            .any(|axis| self.touches(axis, dim) && base.keys().any(|name| self.near.related(axis, name)))
    }

    /// Returns whether a dimension holds an axis, or parts of it.
    fn touches(&self, axis: &str, dim: &Dim) -> bool {
        let mut names = Vec::new();
        names_of(dim, &mut names);
        names.iter().any(|name| self.near.related(axis, name))
    }
}

fn names_of(dim: &Dim, names: &mut Vec<String>) {
    match &dim.kind {
        DimKind::Axis(name) => names.push(name.clone()),
        DimKind::Size(size) => names.push(size.to_string()),
        DimKind::Sum(terms) => terms.iter().flat_map(|term| &term.dims).for_each(|dim| names_of(dim, names)),
    }
}

/// Returns the sizes that hold outside inner labels.
pub(super) fn outer_sizes<'a>(label: Option<&Label>, id: &Ids<'a>) -> &'a AxisSizes {
    label.and_then(|label| id.sizes(label.param.as_deref()?)).unwrap_or_else(|| id.outer())
}

/// The sizes of a tensor's parameters, and of those of the other side's rules.
pub(super) struct Ids<'a> {
    pub(super) all: &'a [(String, Arc<AxisSizes>)],
    /// Those of the other tensor's parameters.
    pub(super) far: &'a [(String, Arc<AxisSizes>)],
}

impl<'a> Ids<'a> {
    pub(super) fn sizes(&self, param: &str) -> Option<&'a AxisSizes> {
        self.all.iter().find(|(name, _)| name == param).map(|(_, sizes)| &**sizes)
    }

    pub(super) fn outer(&self) -> &'a AxisSizes {
        &self.all[0].1
    }
}
