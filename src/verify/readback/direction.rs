//! The comparison seen from one side: each of its tensors against whatever holds its elements on the other.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::Difference;
use super::share::{TensorOutcome, joined, shares};
use crate::bind::{AxisSizes, Reading};
use crate::catalog::{Catalog, TensorMeta};
use crate::diag::{Diagnostic, Errors, VerifyCode};
use crate::format::Reader;
use crate::mapping::Affine;
use crate::mapping::key::Captures;
use crate::parallel::in_parallel_with;
use crate::progress::Progress;
use crate::verify::agreement::{Agreement, value};
use crate::verify::compare::{Bytes, Offsets, Outcome, Scratch, Stored, compare};
use crate::verify::equal::advance;
use crate::verify::naive::{Found, Reader as Naive, Sizes};
use crate::verify::tables::{Class, Ids, ParamTable, Tables, outer_sizes};

/// One tensor that a rule holds.
pub(super) struct Tensor<'a> {
    /// In its side's catalog.
    pub(super) index: usize,
    pub(super) reading: &'a Reading,
    pub(super) affine: Affine,
    pub(super) sizes: Vec<(String, Arc<AxisSizes>)>,
    /// Parameters that are there; a rule's others are zeros.
    pub(super) present: Vec<String>,
}

/// One side of the comparison.
pub(super) struct Side<'a> {
    pub(super) naive: Naive<'a>,
    pub(super) reader: &'a dyn Reader,
    pub(super) tensors: Vec<Tensor<'a>>,
    pub(super) by_name: HashMap<(usize, Captures), usize>,
    /// The rules that hold each parameter.
    pub(super) rules_of: HashMap<&'a str, Vec<usize>>,
}

impl Side<'_> {
    pub(super) fn catalog(&self) -> &Catalog {
        self.reader.catalog()
    }
}

/// A tensor's bytes in its file.
pub(super) struct FileBytes<'a> {
    pub(super) reader: &'a dyn Reader,
    pub(super) file: usize,
}

impl Bytes for FileBytes<'_> {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact_at(self.file, offset, buffer)
    }
}

pub(super) fn side<'a>(naive: Naive<'a>, reader: &'a dyn Reader, tensors: Vec<Tensor<'a>>) -> Side<'a> {
    let by_name = tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| ((tensor.reading.rule, tensor.reading.captures.clone()), at))
        .collect();
    let mut rules_of: HashMap<&str, Vec<usize>> = HashMap::default();
    for (at, rule) in naive.layout.rules.iter().enumerate() {
        for param in rule.expr.params() {
            rules_of.entry(param).or_default().push(at);
        }
    }
    Side { naive, reader, tensors, by_name, rules_of }
}

/// Elements of the far side that were compared, by tensor.
pub(super) type Visited = HashMap<usize, u64>;

/// What a thread holds from one tensor to the next.
#[derive(Default)]
struct Work {
    scratch: Scratch,
    visited: Visited,
    /// The axes of the elements that were compared last, by tensor and by the elements of it before them: the next share of
    /// a tensor asks for them again.
    axes: Option<((usize, u64), Vec<Offsets>)>,
}

/// The comparison seen from one side.
pub(super) struct Direction<'a> {
    pub(super) near: &'a Side<'a>,
    pub(super) far: &'a Side<'a>,
    /// Whether the near side is the target.
    pub(super) from_target: bool,
}

impl<'a> Direction<'a> {
    /// Compares those tensors of the near side, in parallel, large ones by several threads; the result is in their order.
    pub(super) fn run(
        &self,
        tensors: &[usize],
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<(Vec<TensorOutcome>, Visited), Errors> {
        let tables = Tables::new(self.near.naive, self.far.naive);
        let shares = shares(tensors.iter().map(|at| self.meta(*at)));
        let one = |work: &mut Work, number: usize| {
            let share = &shares[number];
            let outcome = self.tensor(tensors[share.tensor], &share.range, &tables, work);
            if self.from_target {
                progress.advance(share.bytes);
            }
            outcome
        };
        let (parts, states) = in_parallel_with(shares.len(), threads, progress, &Work::default, &one)?;
        let mut visited = Visited::default();
        for (tensor, elements) in states.into_iter().flat_map(|work| work.visited) {
            *visited.entry(tensor).or_default() += elements;
        }
        Ok((joined(&shares, parts), visited))
    }

    pub(super) fn meta(&self, at: usize) -> &'a TensorMeta {
        &self.near.catalog().tensors[self.near.tensors[at].index]
    }

    /// Compares a share of a tensor of the near side with whatever holds its elements on the far side.
    fn tensor(
        &self,
        at: usize,
        share: &Range<u64>,
        tables: &Tables<'a>,
        work: &mut Work,
    ) -> Result<TensorOutcome, Errors> {
        let tensor = &self.near.tensors[at];
        let mut outcome = TensorOutcome::new(share.clone());
        // Where there is nothing to compare, the other axes may be of any length.
        if self.meta(at).elements() == 0 {
            return Ok(outcome);
        }
        for param in &tensor.present {
            self.param(at, param, tables, work, &mut outcome)?;
        }
        if outcome.passed != self.meta(at).elements() {
            self.zeros(at, tensor, &mut work.scratch, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// Compares one parameter's elements of a tensor.
    fn param(
        &self,
        at: usize,
        param: &str,
        tables: &Tables<'a>,
        work: &mut Work,
        outcome: &mut TensorOutcome,
    ) -> Result<(), Errors> {
        let tensor = &self.near.tensors[at];
        let found = self.far.rules_of.get(param).into_iter().flatten();
        // The parts that rules hold of it, and how many elements there are.
        let (mut parts, mut held): (Vec<Vec<Vec<u64>>>, _) = (Vec::new(), None);
        let before = outcome.passed;
        for &far_rule in found {
            let rule = &self.far.naive.layout.rules[far_rule];
            let Some(sample) = self.sample(tensor, far_rule) else { continue };
            let ids = Ids { all: &tensor.sizes, far: &self.far.tensors[sample].sizes };
            let Some(table) = tables.param(tensor.reading, param, far_rule, &ids) else {
                held = held.or(Some(u64::MAX));
                continue;
            };
            held = Some(table.elements());
            let whole = table.is_whole();
            if !whole {
                let part = table.indices();
                let overlaps = |other: &Vec<Vec<u64>>| {
                    let meet =
                        |(a, b): (&Vec<u64>, &Vec<u64>)| a.iter().any(|at| b.binary_search(at).is_ok());
                    other.iter().zip(&part).all(meet)
                };
                // A copy of a part is looked at from the other side.
                if parts.iter().any(overlaps) {
                    continue;
                }
                parts.push(part);
            }
            let axes: Vec<String> = rule.template.axes().map(str::to_owned).collect();
            let mut picks = vec![0; table.dims.len()];
            while let Some(classes) = pick(&table, &picks) {
                let far = self.far_tensor(tensor, &table, &classes, far_rule, &axes);
                match far {
                    Some(far) => {
                        let chosen = Chosen { far, table: &table, classes: &classes };
                        self.boxed(at, param, &chosen, work, outcome)?;
                    }
                    None => {
                        outcome.once(self.unread(at, param));
                        return Ok(());
                    }
                }
                if !advance(&mut picks, |at| table.dims[at].classes.len()) {
                    break;
                }
            }
            if whole {
                return Ok(());
            }
        }
        // Where the other side has no tensor for the parameter, it must be zeros, which the caller looks at.
        if held.is_some_and(|held| outcome.passed - before < held) {
            outcome.once(self.unread(at, param));
        }
        Ok(())
    }

    fn unread(&self, at: usize, param: &str) -> Difference {
        let key = Some(self.meta(at).key.clone());
        let mut difference = Difference::new("the other side has no tensor for these elements");
        difference.param = Some(param.to_owned());
        if self.from_target {
            difference.target = key
        } else {
            difference.source = key
        }
        difference
    }

    /// Finds a tensor of a far rule in the same module, whose sizes are those of the near tensor's neighbours.
    fn sample(&self, tensor: &Tensor<'_>, far_rule: usize) -> Option<usize> {
        let captures = &tensor.reading.captures;
        let axes: Vec<&str> = self.far.naive.layout.rules[far_rule].template.axes().collect();
        let mut indices: Vec<(Arc<str>, u64)> =
            axes.iter().map(|axis| ((*axis).into(), captures.index(axis).unwrap_or(0))).collect();
        indices.sort();
        let find = |indices: &[(Arc<str>, u64)]| {
            let captures =
                Captures { paths: captures.paths.clone(), indices: indices.to_vec(), counts: Vec::new() };
            self.far.by_name.get(&(far_rule, captures)).copied()
        };
        find(&indices).or_else(|| {
            // A name's index may be beyond the other side's (heads against groups): the first will do.
            indices.iter_mut().for_each(|(_, index)| *index = 0);
            find(&indices)
        })
    }

    fn far_tensor(
        &self,
        tensor: &Tensor<'_>,
        table: &ParamTable,
        classes: &[&Class],
        far_rule: usize,
        axes: &[String],
    ) -> Option<usize> {
        let mut indices: Vec<(Arc<str>, u64)> = axes
            .iter()
            .enumerate()
            .map(|(at, axis)| {
                let added: i64 = classes.iter().map(|class| class.key[at]).sum();
                (axis.as_str().into(), table.origin.key[at].wrapping_add_signed(added))
            })
            .collect();
        indices.sort();
        let paths = tensor.reading.captures.paths.clone();
        let captures = Captures { paths, indices, counts: Vec::new() };
        self.far.by_name.get(&(far_rule, captures)).copied()
    }

    /// Compares the elements that one choice of classes gives.
    fn boxed(
        &self,
        at: usize,
        param: &str,
        chosen: &Chosen<'_>,
        work: &mut Work,
        outcome: &mut TensorOutcome,
    ) -> Result<(), Errors> {
        let Some(share) = outcome.pass(chosen.elements()) else { return Ok(()) };
        let near_meta = self.meta(at);
        let far_index = self.far.tensors[chosen.far].index;
        let far_meta = &self.far.catalog().tensors[far_index];
        let name = (at, share.before);
        let dims = match work.axes.take() {
            Some((known, dims)) if known == name => dims,
            _ => chosen.axes(near_meta, far_meta),
        };
        let near_bytes = FileBytes { reader: self.near.reader, file: near_meta.file };
        let far_bytes = FileBytes { reader: self.far.reader, file: far_meta.file };
        let (a, b) = (self.near.tensors[at].affine, self.far.tensors[chosen.far].affine);
        // The target is what was rounded, from whichever side it is seen.
        let (target, source) = if self.from_target { (a, b) } else { (b, a) };
        let scale = target.scale / source.scale;
        let offset = target.offset - source.offset * scale;
        let agreement = match self.from_target {
            _ if near_meta.dtype == far_meta.dtype && a == b => Agreement::Bits,
            true => Agreement::Value { scale, offset },
            false => Agreement::ValueThere { scale, offset },
        };
        let near_stored = Stored { bytes: &near_bytes, start: near_meta.offset, dtype: near_meta.dtype };
        let far_stored = Stored { bytes: &far_bytes, start: far_meta.offset, dtype: far_meta.dtype };
        let found = compare(near_stored, far_stored, &dims, agreement, &share.range, &mut work.scratch)
            .map_err(|error| read_error(self.near, self.far, near_meta, far_meta, &error))?;
        work.axes = Some((name, dims));
        outcome.elements += found.elements;
        *work.visited.entry(far_index).or_default() += found.elements;
        if let Some(difference) = self.difference(at, far_meta, param, agreement, &found) {
            outcome.differences.push((share.before, difference));
        }
        Ok(())
    }

    fn difference(
        &self,
        at: usize,
        far: &TensorMeta,
        param: &str,
        agreement: Agreement,
        found: &Outcome,
    ) -> Option<Difference> {
        let (near_offset, far_offset, near_bits, far_bits) = found.first?;
        let near = self.meta(at);
        let param_index = self.param_index(at, param, &near.index_at(near_offset)).unwrap_or_default();
        let near_side = (near.key.clone(), near.index_at(near_offset), near_bits);
        let far_side = (far.key.clone(), far.index_at(far_offset), far_bits);
        let types = if self.from_target { (near.dtype, far.dtype) } else { (far.dtype, near.dtype) };
        let (target, source) = if self.from_target { (near_side, far_side) } else { (far_side, near_side) };
        let wanted = agreement.wanted(types, source.2).unwrap_or(source.2);
        let values = value(target.2, types.0).zip(value(wanted, types.0));
        Some(Difference {
            what: "elements differ".into(),
            target: Some(target.0),
            source: Some(source.0),
            target_index: target.1,
            source_index: source.1,
            param: Some(param.to_owned()),
            param_index,
            count: found.differing,
            bits: Some((target.2, wanted)),
            values,
            help: None,
        })
    }

    /// Returns the index in the parameter of an element of a tensor, by its axes in canonical order.
    fn param_index(&self, at: usize, param: &str, index: &[u64]) -> Option<Vec<(String, u64)>> {
        let tensor = &self.near.tensors[at];
        let rule = &self.near.naive.layout.rules[tensor.reading.rule];
        let ids = Ids { all: &tensor.sizes, far: &[] };
        let of = |name: &str| ids.sizes(name);
        let sizes = Sizes { outer: ids.outer(), of: &of };
        let current = outer_sizes(rule.expr.label.as_ref(), &ids);
        let mut found = Found { label: None, values: tensor.reading.captures.by_axis() };
        for (dim, index) in rule.expr.dims.iter().zip(index) {
            sizes.decode(dim, *index, current, &mut found)?;
        }
        let declared = self.near.naive.declared(param, &found.values, ids.sizes(param)?)?;
        let axes = &self.near.naive.mapping.params.get(param)?.axes;
        Some(axes.iter().filter_map(|axis| Some((axis.clone(), *declared.get(axis)?))).collect())
    }
}

/// The elements that one choice of classes gives.
struct Chosen<'a> {
    /// The tensor of the far side that holds them.
    far: usize,
    table: &'a ParamTable,
    classes: &'a [&'a Class],
}

impl Chosen<'_> {
    fn elements(&self) -> u64 {
        self.classes.iter().map(|class| class.entries.len()).product()
    }

    /// Returns the offsets of the axes' indices in the two tensors.
    fn axes(&self, near: &TensorMeta, far: &TensorMeta) -> Vec<Offsets> {
        let strides = &far.strides;
        let origin: u64 =
            self.table.origin.indices.iter().zip(strides).map(|(index, stride)| index * stride).sum();
        let moved = |added: &mut dyn Iterator<Item = i64>| -> i64 {
            added.zip(strides).map(|(index, stride)| index * stride.cast_signed()).sum()
        };
        let mut start = origin;
        let mut dims: Vec<Offsets> = Vec::with_capacity(self.classes.len());
        for (class, stride) in self.classes.iter().zip(&near.strides) {
            // Offsets count from the lowest.
            let mut lowest = i64::MAX;
            class.entries.for_each(|_, added| lowest = lowest.min(moved(added)));
            let mut dim = Offsets::with_capacity(class.entries.len() as usize);
            class.entries.for_each(|index, added| dim.push((index * stride, moved(added).abs_diff(lowest))));
            start = start.wrapping_add_signed(if dim.is_empty() { 0 } else { lowest });
            dims.push(dim);
        }
        match dims.first_mut() {
            Some(first) => first.iter_mut().for_each(|(_, far)| *far += start),
            // A scalar here may be any element there.
            None => dims.push(vec![(0, start)]),
        }
        dims
    }
}

fn pick<'t>(table: &'t ParamTable, picks: &[usize]) -> Option<Vec<&'t Class>> {
    table.dims.iter().zip(picks).map(|(dim, pick)| dim.classes.get(*pick)).collect()
}

pub(super) fn system(error: &io::Error, key: &str) -> Diagnostic {
    Diagnostic::error(VerifyCode::Read, format!("cannot read back: {error}")).tensor(key)
}

fn read_error(near: &Side<'_>, far: &Side<'_>, a: &TensorMeta, b: &TensorMeta, error: &io::Error) -> Errors {
    let files = [&near.catalog().files[a.file], &far.catalog().files[b.file]];
    let found = files.map(|path| path.display().to_string()).join(" or ");
    system(error, &a.key).tensor(&b.key).found(format!("while reading {found}")).into()
}
