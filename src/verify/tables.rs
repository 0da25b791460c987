//! For one tensor of one side: where each of its elements lies on the other side, as a table per stored axis.
//!
//! The tables are filled index by index by the naive reading. That the offset of an element is the sum of its axes'
//! entries holds for every layout whose axes do not share a parameter's axis unevenly; [`super::readback`] spot-checks
//! it with whole elements.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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
    pub(super) entries: Entries,
}

/// Indices and what each adds, as they were read one by one; those that go on as they began are kept as a run, so that
/// the axis of a vocabulary takes no more memory than that of a head.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    runs: Vec<Run>,
    length: u64,
}

/// Neighbouring indices, each of which adds `step` more than the one before.
#[derive(Clone, Debug)]
struct Run {
    first: u64,
    count: u64,
    added: Vec<i64>,
    step: Vec<i64>,
}

impl Run {
    fn at(&self, place: u64) -> (u64, impl Iterator<Item = i64>) {
        let grown = move |(added, step): (&i64, &i64)| added + step * place.cast_signed();
        (self.first + place, self.added.iter().zip(&self.step).map(grown))
    }
}

impl Entries {
    fn push(&mut self, index: u64, added: Vec<i64>) {
        self.length += 1;
        match self.runs.last_mut().filter(|run| run.first + run.count == index) {
            Some(run) if run.count == 1 => {
                run.step = added.iter().zip(&run.added).map(|(now, before)| now - before).collect();
                run.count = 2;
            }
            Some(run) if run.at(run.count).1.eq(added.iter().copied()) => run.count += 1,
            _ => {
                let step = vec![0; added.len()];
                self.runs.push(Run { first: index, count: 1, added, step });
            }
        }
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// Calls `visit` with each index and what it adds, in order.
    pub(super) fn for_each(&self, mut visit: impl FnMut(u64, &mut dyn Iterator<Item = i64>)) {
        for run in &self.runs {
            for place in 0..run.count {
                let (index, mut added) = run.at(place);
                visit(index, &mut added);
            }
        }
    }
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
        let found = |dim: &DimTable| dim.classes.iter().map(|class| class.entries.len()).sum::<u64>();
        self.dims.iter().all(|dim| found(dim) == dim.held)
    }

    /// Returns the indices of each stored axis whose elements the other rule's tensors hold, in order.
    pub(super) fn indices(&self) -> Vec<Vec<u64>> {
        let of = |dim: &Arc<DimTable>| {
            let mut indices: Vec<u64> = Vec::new();
            dim.classes.iter().for_each(|class| class.entries.for_each(|index, _| indices.push(index)));
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

/// Makes tables for the tensors of one direction; equal ones are made once, for all threads.
pub(super) struct Tables<'a> {
    pub(super) near: Reader<'a>,
    pub(super) far: Reader<'a>,
    made: Mutex<HashMap<CacheKey, Arc<Slot>>>,
}

/// A table that a thread makes, or has made: `None` where there is none.
type Slot = OnceLock<Option<Arc<DimTable>>>;

/// Rule, far rule, parameter, dimension, sizes (by address of the shared map) and, where it matters, the name's indices.
type CacheKey = (usize, usize, String, usize, Vec<usize>, Vec<(Arc<str>, u64)>);

impl<'a> Tables<'a> {
    pub(super) fn new(near: Reader<'a>, far: Reader<'a>) -> Tables<'a> {
        Tables { near, far, made: Mutex::default() }
    }

    /// Makes the table of one parameter in one tensor, against one rule of the other side; `None` where tensors of
    /// that rule hold none of the elements.
    pub(super) fn param(
        &self,
        reading: &Reading,
        param: &str,
        far_rule: usize,
        id: &Ids<'_>,
    ) -> Option<ParamTable> {
        let rule = &self.near.layout.rules[reading.rule];
        let far = &self.far.layout.rules[far_rule];
        let own = id.sizes(param)?;
        let base: Values = reading.captures.by_axis();
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
            let slot = {
                let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(made.entry(key).or_default())
            };
            // Whoever needs one that another thread is making waits for it: that takes less than making it again.
            let table = slot.get_or_init(|| {
                let start = if shared { base.clone() } else { Values::new() };
                self.classes(param, rule, dim, &start, far, id).map(Arc::new)
            });
            dims.push(Arc::clone(table.as_ref()?));
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
            let entry = added(&place.indices, &origin.indices);
            match table.classes.iter_mut().rev().find(|class| class.key == key) {
                Some(class) => class.entries.push(index, entry),
                None => {
                    let mut entries = Entries::default();
                    entries.push(index, entry);
                    table.classes.push(Class { key, entries });
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_as_they_went_in() {
        // Pairs from halves, an index left out, a step that changes, and one entry alone.
        let pairs = (0..40_u64).map(|at| (at, vec![(at as i64 / 2) + 20 * (at as i64 % 2), 3]));
        let rest =
            [(44, vec![-9, 0]), (45, vec![-7, 0]), (46, vec![-5, 0]), (47, vec![0, 1]), (60, vec![1, 1])];
        let line = (100..1000_u64).map(|at| (at, vec![5 * at as i64, -2]));
        let all: Vec<(u64, Vec<i64>)> = pairs.chain(rest).chain(line).collect();
        let mut entries = Entries::default();
        all.iter().for_each(|(index, added)| entries.push(*index, added.clone()));
        let mut found = Vec::new();
        entries.for_each(|index, added| found.push((index, added.collect::<Vec<_>>())));
        assert_eq!((entries.len(), found), (all.len() as u64, all));
        assert!(entries.runs.len() < 50, "{}", entries.runs.len());
    }
}
