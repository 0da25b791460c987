//! Read-back: every element of both checkpoints, compared through the naive reading of the expressions.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use super::compare::{Agreement, Bytes, Offsets, Outcome, Scratch, Stored, compare};
use super::naive::Reader as Naive;
use super::tables::{Class, Ids, ParamTable, Tables};
use crate::bind::{AxisSizes, Bound, Reading};
use crate::catalog::{Catalog, TensorMeta};
use crate::diag::{Diagnostic, Errors};
use crate::exec::Progress;
use crate::format::Reader;
use crate::mapping::select::Selection;

/// A tensor that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What is wrong, one clause.
    pub what: String,
    /// The tensor in the target, if it concerns one.
    pub target: Option<String>,
    /// The tensor in the source, if it concerns one.
    pub source: Option<String>,
    /// The index in the target tensor.
    pub target_index: Vec<u64>,
    /// The index in the source tensor.
    pub source_index: Vec<u64>,
    /// The parameter.
    pub param: Option<String>,
    /// The differing elements.
    pub count: u64,
    /// The bits in the target and in the source.
    pub bits: Option<(u64, u64)>,
}

impl Difference {
    fn new(what: impl Into<String>) -> Difference {
        Difference {
            what: what.into(),
            target: None,
            source: None,
            target_index: Vec::new(),
            source_index: Vec::new(),
            param: None,
            count: 0,
            bits: None,
        }
    }
}

impl Difference {
    fn diagnostic(&self) -> Diagnostic {
        let of = self.param.as_ref().map_or(String::new(), |param| format!(" of `{param}`"));
        let count = if self.count > 0 { format!(" ({} elements)", self.count) } else { String::new() };
        let mut error = Diagnostic::error("verify/differs", format!("{}{of}{count}", self.what));
        error.tensors = self.target.iter().chain(&self.source).cloned().collect();
        if let Some((target, source)) = self.bits {
            let place = |key: &Option<String>, index: &[u64]| match key {
                Some(key) => format!("`{key}` {index:?}"),
                None => "zero".to_owned(),
            };
            error = error
                .expected(format!("{source:#x}, as at {}", place(&self.source, &self.source_index)))
                .found(format!("{target:#x} at {}", place(&self.target, &self.target_index)));
        }
        error
    }
}

/// What was compared, and what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadBack {
    /// Target tensors compared.
    pub tensors: u64,
    /// Elements compared.
    pub elements: u64,
    /// Everything that differs, in order of the target's names.
    pub differences: Vec<Difference>,
}

impl ReadBack {
    /// Returns whether nothing differs.
    pub fn agrees(&self) -> bool {
        self.differences.is_empty()
    }

    /// Returns the differences as errors of code `verify/differs`.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.differences.iter().map(Difference::diagnostic).collect()
    }
}

/// One tensor that a rule holds.
struct Tensor<'a> {
    /// In its side's catalog.
    index: usize,
    reading: &'a Reading,
    affine: (f64, f64),
    sizes: Vec<(String, Arc<AxisSizes>)>,
    /// Parameters that are there; a rule's others are zeros.
    present: Vec<String>,
}

/// One side of the comparison.
struct Side<'a> {
    naive: Naive<'a>,
    reader: &'a dyn Reader,
    tensors: Vec<Tensor<'a>>,
    by_name: FxHashMap<(usize, Vec<(String, Vec<String>)>, Vec<(String, u64)>), usize>,
}

impl Side<'_> {
    fn catalog(&self) -> &Catalog {
        self.reader.catalog()
    }
}

/// A tensor's bytes in its file.
struct FileBytes<'a> {
    reader: &'a dyn Reader,
    file: usize,
}

impl Bytes for FileBytes<'_> {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact_at(self.file, offset, buffer)
    }
}

/// Compares a converted checkpoint with its source.
///
/// # Errors
/// Returns what the system refuses, and cancellation. What differs is no error but part of the result.
pub fn read_back(
    selection: &Selection,
    bound: &Bound,
    source: &dyn Reader,
    target: &dyn Reader,
    threads: usize,
    progress: &dyn Progress,
) -> Result<ReadBack, Errors> {
    let mut result = ReadBack::default();
    let names = |sizes: &[(usize, Arc<AxisSizes>)]| -> Vec<(String, Arc<AxisSizes>)> {
        sizes.iter().map(|(param, sizes)| (bound.params[*param].clone(), Arc::clone(sizes))).collect()
    };
    let present = |instances: &[(usize, usize)]| -> Vec<String> {
        instances.iter().map(|(param, _)| bound.params[*param].clone()).collect()
    };
    let sources = bound.sources.iter().map(|tensor| Tensor {
        index: tensor.tensor,
        reading: &tensor.reading,
        affine: tensor.affine,
        sizes: names(&tensor.reading.sizes),
        present: present(&tensor.instances),
    });
    let mut targets = Vec::with_capacity(bound.targets.len());
    let mut expected: BTreeSet<&str> = BTreeSet::new();
    for tensor in &bound.targets {
        expected.insert(&tensor.key);
        let Some(index) = target.catalog().find(&tensor.key) else {
            let target = Some(tensor.key.clone());
            result.differences.push(Difference { target, ..Difference::new("the target lacks this tensor") });
            continue;
        };
        let stored = &target.catalog().tensors[index];
        if stored.shape != tensor.shape || stored.dtype != tensor.dtype {
            let what = format!(
                "expected {} {:?}, found {} {:?}",
                tensor.dtype, tensor.shape, stored.dtype, stored.shape
            );
            result.differences.push(Difference { target: Some(tensor.key.clone()), ..Difference::new(what) });
            continue;
        }
        targets.push(Tensor {
            index,
            reading: &tensor.reading,
            affine: tensor.affine,
            sizes: names(&tensor.reading.sizes),
            present: present(&tensor.instances),
        });
    }
    expected.extend(bound.kept.iter().map(|(_, key)| key.as_str()));
    for stored in &target.catalog().tensors {
        if !expected.contains(stored.key.as_str()) {
            let target = Some(stored.key.clone());
            result
                .differences
                .push(Difference { target, ..Difference::new("nothing in the source gives this tensor") });
        }
    }
    let mapping = selection.mapping();
    let near = side(Naive { mapping, layout: selection.target() }, target, targets);
    let far = side(Naive { mapping, layout: selection.source() }, source, sources.collect());
    let forward = Direction { near: &near, far: &far, from_target: true };
    let (outcomes, visited) = forward.run(threads, progress)?;
    for outcome in outcomes {
        result.tensors += 1;
        result.elements += outcome.elements;
        result.differences.extend(outcome.differences);
    }
    // Source elements that the target did not ask for: ties, repeats, padding, or a loss. Read from the source's side.
    let unasked: Vec<usize> = (0..far.tensors.len())
        .filter(|at| {
            let asked = visited.get(&far.tensors[*at].index).copied().unwrap_or(0);
            asked != far.catalog().tensors[far.tensors[*at].index].elements()
        })
        .collect();
    let back = Direction { near: &far, far: &near, from_target: false };
    let mut tables = Tables::new(far.naive, near.naive);
    let mut scratch = Scratch::default();
    for at in unasked {
        let outcome = back.tensor(at, &mut tables, &mut scratch, &mut FxHashMap::default())?;
        result.elements += outcome.elements;
        result.differences.extend(outcome.differences);
    }
    kept(bound, source, target, &mut result, progress)?;
    result.differences.sort_by(|a, b| (&a.target, &a.source).cmp(&(&b.target, &b.source)));
    Ok(result)
}

fn side<'a>(naive: Naive<'a>, reader: &'a dyn Reader, tensors: Vec<Tensor<'a>>) -> Side<'a> {
    let by_name = tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| {
            let captures = &tensor.reading.captures;
            ((tensor.reading.rule, captures.paths.clone(), captures.indices.clone()), at)
        })
        .collect();
    Side { naive, reader, tensors, by_name }
}

/// What one tensor gave.
#[derive(Default)]
struct TensorOutcome {
    elements: u64,
    differences: Vec<Difference>,
}

/// Elements of the far side that were compared, by tensor.
type Visited = FxHashMap<usize, u64>;

/// The comparison seen from one side.
struct Direction<'a> {
    near: &'a Side<'a>,
    far: &'a Side<'a>,
    /// Whether the near side is the target.
    from_target: bool,
}

impl<'a> Direction<'a> {
    /// Compares all tensors of the near side, in parallel; the result is in their order.
    fn run(&self, threads: usize, progress: &dyn Progress) -> Result<(Vec<TensorOutcome>, Visited), Errors> {
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<(usize, TensorOutcome)>> = Mutex::new(Vec::new());
        let visited: Mutex<Visited> = Mutex::new(Visited::default());
        let failure: Mutex<Option<Errors>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let mut tables = Tables::new(self.near.naive, self.far.naive);
                    let (mut scratch, mut mine) = (Scratch::default(), Visited::default());
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= self.near.tensors.len() || lock(&failure).is_some() {
                            break;
                        }
                        if progress.cancelled() {
                            *lock(&failure) =
                                Some(Diagnostic::error("exec/cancelled", "stopped while verifying").into());
                            break;
                        }
                        match self.tensor(at, &mut tables, &mut scratch, &mut mine) {
                            Ok(outcome) => lock(&results).push((at, outcome)),
                            Err(error) => *lock(&failure) = Some(error),
                        }
                        progress.advance(self.near.catalog().tensors[self.near.tensors[at].index].bytes());
                    }
                    let mut all = lock(&visited);
                    mine.into_iter()
                        .for_each(|(tensor, elements)| *all.entry(tensor).or_default() += elements);
                });
            }
        });
        if let Some(errors) = lock(&failure).take() {
            return Err(errors);
        }
        let mut results = std::mem::take(&mut *lock(&results));
        results.sort_by_key(|(at, _)| *at);
        let visited = std::mem::take(&mut *lock(&visited));
        Ok((results.into_iter().map(|(_, outcome)| outcome).collect(), visited))
    }

    fn meta(&self, at: usize) -> &'a TensorMeta {
        &self.near.catalog().tensors[self.near.tensors[at].index]
    }

    /// Compares one tensor of the near side with whatever holds its elements on the far side.
    fn tensor(
        &self,
        at: usize,
        tables: &mut Tables<'a>,
        scratch: &mut Scratch,
        visited: &mut Visited,
    ) -> Result<TensorOutcome, Errors> {
        let tensor = &self.near.tensors[at];
        let stored = self.meta(at);
        let mut outcome = TensorOutcome::default();
        for param in &tensor.present {
            self.param(at, param, tables, scratch, visited, &mut outcome)?;
        }
        if outcome.elements != stored.elements() {
            self.zeros(at, tensor, scratch, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// Compares one parameter's elements of a tensor.
    fn param(
        &self,
        at: usize,
        param: &str,
        tables: &mut Tables<'a>,
        scratch: &mut Scratch,
        visited: &mut Visited,
        outcome: &mut TensorOutcome,
    ) -> Result<(), Errors> {
        let tensor = &self.near.tensors[at];
        let found = self
            .far
            .naive
            .layout
            .rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| rule.expr.params().contains(&param));
        for (far_rule, rule) in found {
            let Some(sample) = self.sample(tensor, far_rule) else { continue };
            let ids = Ids { all: &tensor.sizes, far: &self.far.tensors[sample].sizes };
            let Some(table) = tables.param(tensor.reading, param, far_rule, &ids) else {
                outcome.differences.push(self.unread(at, param));
                return Ok(());
            };
            let axes: Vec<String> = rule.template.axes().map(str::to_owned).collect();
            let mut picks = vec![0; table.dims.len()];
            while let Some(classes) = pick(&table, &picks) {
                let far = self.far_tensor(tensor, &table, &classes, far_rule, &axes);
                match far {
                    Some(far) => self.boxed(at, param, far, &table, &classes, scratch, visited, outcome)?,
                    None => outcome.differences.push(self.unread(at, param)),
                }
                if !advance(&table, &mut picks) {
                    break;
                }
            }
            return Ok(());
        }
        // The other side has no tensor for the parameter: it must be zeros, which the caller looks at.
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
        let mut indices: Vec<(String, u64)> =
            axes.iter().map(|axis| ((*axis).to_owned(), captures.index(axis).unwrap_or(0))).collect();
        indices.sort();
        let find = |indices: &[(String, u64)]| {
            self.far.by_name.get(&(far_rule, captures.paths.clone(), indices.to_vec())).copied()
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
        let mut indices: Vec<(String, u64)> = axes
            .iter()
            .enumerate()
            .map(|(at, axis)| {
                let added: i64 = classes.iter().map(|class| class.key[at]).sum();
                (axis.clone(), table.origin.key[at].wrapping_add_signed(added))
            })
            .collect();
        indices.sort();
        self.far.by_name.get(&(far_rule, tensor.reading.captures.paths.clone(), indices)).copied()
    }

    /// Compares the elements that one choice of classes gives.
    #[allow(clippy::too_many_arguments)]
    fn boxed(
        &self,
        at: usize,
        param: &str,
        far: usize,
        table: &ParamTable,
        classes: &[&Class],
        scratch: &mut Scratch,
        visited: &mut Visited,
        outcome: &mut TensorOutcome,
    ) -> Result<(), Errors> {
        let near_meta = self.meta(at);
        let far_index = self.far.tensors[far].index;
        let far_meta = &self.far.catalog().tensors[far_index];
        let strides = &far_meta.strides;
        let origin: u64 =
            table.origin.indices.iter().zip(strides).map(|(index, stride)| index * stride).sum();
        let moved = |added: &[i64]| -> i64 {
            added.iter().zip(strides).map(|(index, stride)| index * stride.cast_signed()).sum()
        };
        let mut start = origin;
        let mut dims: Vec<Offsets> = classes
            .iter()
            .zip(&near_meta.strides)
            .map(|(class, stride)| {
                // Offsets count from the lowest.
                let lowest = class.entries.iter().map(|(_, added)| moved(added)).min().unwrap_or(0);
                start = start.wrapping_add_signed(lowest);
                let entry =
                    |(index, added): &(u64, Vec<i64>)| (index * stride, moved(added).abs_diff(lowest));
                class.entries.iter().map(entry).collect()
            })
            .collect();
        match dims.first_mut() {
            Some(first) => first.iter_mut().for_each(|(_, far)| *far += start),
            // A scalar here may be any element there.
            None => dims.push(vec![(0, start)]),
        }
        let near_bytes = FileBytes { reader: self.near.reader, file: near_meta.file };
        let far_bytes = FileBytes { reader: self.far.reader, file: far_meta.file };
        let (a, b) = (self.near.tensors[at].affine, self.far.tensors[far].affine);
        let agreement = if near_meta.dtype == far_meta.dtype && a == b {
            Agreement::Bits
        } else {
            let scale = a.0 / b.0;
            Agreement::Value { scale, offset: a.1 - b.1 * scale }
        };
        let near_stored = Stored { bytes: &near_bytes, start: near_meta.offset, dtype: near_meta.dtype };
        let far_stored = Stored { bytes: &far_bytes, start: far_meta.offset, dtype: far_meta.dtype };
        let found = compare(near_stored, far_stored, &dims, agreement, scratch)
            .map_err(|error| read_error(self.near, self.far, near_meta, far_meta, &error))?;
        outcome.elements += found.elements;
        *visited.entry(far_index).or_default() += found.elements;
        if let Some(difference) = self.difference(near_meta, far_meta, param, &found) {
            outcome.differences.push(difference);
        }
        Ok(())
    }

    fn difference(
        &self,
        near: &TensorMeta,
        far: &TensorMeta,
        param: &str,
        found: &Outcome,
    ) -> Option<Difference> {
        let (near_offset, far_offset, near_bits, far_bits) = found.first?;
        let near_side = (near.key.clone(), index_of(near, near_offset), near_bits);
        let far_side = (far.key.clone(), index_of(far, far_offset), far_bits);
        let (target, source) = if self.from_target { (near_side, far_side) } else { (far_side, near_side) };
        Some(Difference {
            what: "elements differ".into(),
            target: Some(target.0),
            source: Some(source.0),
            target_index: target.1,
            source_index: source.1,
            param: Some(param.to_owned()),
            count: found.differing,
            bits: Some((target.2, source.2)),
        })
    }

    /// What no parameter of the other side holds must be zeros: padding, the rest of a block diagonal, a part that
    /// zeros stand for. Read whole, every element that is not among the parameters' counted.
    fn zeros(
        &self,
        at: usize,
        tensor: &Tensor<'_>,
        scratch: &mut Scratch,
        outcome: &mut TensorOutcome,
    ) -> Result<(), Errors> {
        let stored = self.meta(at);
        let rule = &self.near.naive.layout.rules[tensor.reading.rule];
        let sizes = Ids { all: &tensor.sizes, far: &[] };
        let of = |name: &str| sizes.sizes(name);
        let reading = super::naive::Sizes { outer: sizes.outer(), of: &of };
        let current = super::tables::outer_sizes(rule.expr.label.as_ref(), &sizes);
        let held = |param: &str| {
            tensor.present.iter().any(|other| other == param)
                && self.far.naive.layout.rules.iter().any(|rule| rule.expr.params().contains(&param))
        };
        // Per axis: the indices by label.
        let mut axes: Vec<Vec<(Option<Option<String>>, Vec<u64>)>> = Vec::new();
        for dim in &rule.expr.dims {
            let mut groups: Vec<(Option<Option<String>>, Vec<u64>)> = Vec::new();
            for index in 0..reading.length(dim, current).unwrap_or(0) {
                let mut found = super::naive::Found::default();
                let Some(()) = reading.decode(dim, index, current, &mut found) else { continue };
                match groups.iter_mut().find(|(label, _)| *label == found.label) {
                    Some((_, indices)) => indices.push(index),
                    None => groups.push((found.label, vec![index])),
                }
            }
            axes.push(groups);
        }
        let whole = rule.expr.label.as_ref().map(|label| label.param.clone());
        let mut picks = vec![0; axes.len()];
        loop {
            let chosen: Vec<&(Option<Option<String>>, Vec<u64>)> =
                picks.iter().zip(&axes).filter_map(|(pick, groups)| groups.get(*pick)).collect();
            if chosen.len() < axes.len() {
                return Ok(());
            }
            let mut labels: Vec<Option<String>> =
                chosen.iter().filter_map(|(label, _)| label.clone()).collect();
            labels.extend(whole.clone());
            labels.sort();
            labels.dedup();
            let param = match &labels[..] {
                [Some(param)] => held(param),
                _ => false,
            };
            // Padding that the target leaves out may hold anything that the caller allowed; the binding checked that.
            let skipped = !self.from_target && labels.contains(&None);
            if !param && !skipped {
                let dims: Vec<Offsets> = chosen
                    .iter()
                    .zip(&stored.strides)
                    .map(|((_, indices), stride)| indices.iter().map(|index| (index * stride, 0)).collect())
                    .collect();
                let bytes = FileBytes { reader: self.near.reader, file: stored.file };
                let near = Stored { bytes: &bytes, start: stored.offset, dtype: stored.dtype };
                let far = Stored { bytes: &Zeros, start: 0, dtype: stored.dtype };
                let found = compare(near, far, &dims, Agreement::Bits, scratch)
                    .map_err(|error| Errors::from(system(&error, &stored.key)))?;
                outcome.elements += found.elements;
                if let Some((offset, _, bits, _)) = found.first {
                    let mut difference = Difference::new("elements that must be zero are not");
                    let index = index_of(stored, offset);
                    (difference.count, difference.bits) = (found.differing, Some((bits, 0)));
                    if self.from_target {
                        (difference.target, difference.target_index) = (Some(stored.key.clone()), index);
                    } else {
                        (difference.source, difference.source_index) = (Some(stored.key.clone()), index);
                    }
                    outcome.differences.push(difference);
                }
            }
            let Some(axis) = (0..picks.len()).rev().find(|axis| picks[*axis] + 1 < axes[*axis].len()) else {
                return Ok(());
            };
            picks[axis] += 1;
            picks[axis + 1..].fill(0);
        }
    }
}

/// Nothing but zeros.
struct Zeros;

impl Bytes for Zeros {
    fn read(&self, _: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.fill(0);
        Ok(())
    }
}

fn pick<'t>(table: &'t ParamTable, picks: &[usize]) -> Option<Vec<&'t Class>> {
    table.dims.iter().zip(picks).map(|(classes, pick)| classes.get(*pick)).collect()
}

fn advance(table: &ParamTable, picks: &mut [usize]) -> bool {
    let Some(at) = (0..picks.len()).rev().find(|at| picks[*at] + 1 < table.dims[*at].len()) else {
        return false;
    };
    picks[at] += 1;
    picks[at + 1..].fill(0);
    true
}

/// Tensors that pass through must have the same bytes.
fn kept(
    bound: &Bound,
    source: &dyn Reader,
    target: &dyn Reader,
    result: &mut ReadBack,
    progress: &dyn Progress,
) -> Result<(), Errors> {
    const CHUNK: u64 = 1 << 20;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for (tensor, key) in &bound.kept {
        let from = &source.catalog().tensors[*tensor];
        let here =
            Difference { target: Some(key.clone()), source: Some(from.key.clone()), ..Difference::new("") };
        let Some(to) = target.catalog().find(key).map(|index| &target.catalog().tensors[index]) else {
            result.differences.push(Difference { what: "the target lacks this tensor".into(), ..here });
            continue;
        };
        result.tensors += 1;
        if to.shape != from.shape || to.dtype != from.dtype {
            // A cast was asked for; its values are compared by the caller's tolerance below.
            if to.shape != from.shape || super::compare::value(0, to.dtype).is_none() {
                let what =
                    format!("expected {} {:?}, found {} {:?}", from.dtype, from.shape, to.dtype, to.shape);
                result.differences.push(Difference { what, ..here });
                continue;
            }
            let near = FileBytes { reader: target, file: to.file };
            let far = FileBytes { reader: source, file: from.file };
            let near = Stored { bytes: &near, start: to.offset, dtype: to.dtype };
            let far = Stored { bytes: &far, start: from.offset, dtype: from.dtype };
            let agreement = Agreement::Value { scale: 1.0, offset: 0.0 };
            let (mut found, mut scratch) = (Outcome::default(), Scratch::default());
            for start in (0..from.elements()).step_by(CHUNK as usize) {
                let dims =
                    [(start..from.elements().min(start + CHUNK)).map(|at| (at, at)).collect::<Offsets>()];
                let part = compare(near, far, &dims, agreement, &mut scratch);
                found.add(part.map_err(|error| Errors::from(system(&error, &from.key)))?);
            }
            result.elements += found.elements;
            if found.differing > 0 {
                result.differences.push(Difference {
                    what: "elements differ".into(),
                    count: found.differing,
                    ..here
                });
            }
            continue;
        }
        let total = from.bytes();
        let mut done = 0;
        while done < total {
            if progress.cancelled() {
                return Err(Diagnostic::error("exec/cancelled", "stopped while verifying").into());
            }
            let length = CHUNK.min(total - done) as usize;
            a.resize(length, 0);
            b.resize(length, 0);
            source
                .read_exact_at(from.file, from.offset + done, &mut a)
                .and_then(|()| target.read_exact_at(to.file, to.offset + done, &mut b))
                .map_err(|error| Errors::from(system(&error, &from.key)))?;
            if a != b {
                let count = a.iter().zip(&b).filter(|(a, b)| a != b).count() as u64;
                let what = "bytes of a tensor that passes through differ".into();
                result.differences.push(Difference { what, count, ..here.clone() });
                break;
            }
            done += length as u64;
        }
        progress.advance(total);
        result.elements += from.elements();
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panicked ends the scope with its panic; the value is not used then.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn index_of(tensor: &TensorMeta, offset: u64) -> Vec<u64> {
    let mut rest = offset;
    tensor
        .strides
        .iter()
        .zip(&tensor.shape)
        .map(|(stride, size)| {
            let index = (rest / stride.max(&1)) % size.max(&1);
            rest -= index * stride;
            index
        })
        .collect()
}

fn system(error: &io::Error, key: &str) -> Diagnostic {
    Diagnostic::error("verify/read", format!("cannot read back: {error}")).tensor(key)
}

fn read_error(near: &Side<'_>, far: &Side<'_>, a: &TensorMeta, b: &TensorMeta, error: &io::Error) -> Errors {
    let files = [&near.catalog().files[a.file], &far.catalog().files[b.file]];
    let found = files.map(|path| path.display().to_string()).join(" or ");
    system(error, &a.key).tensor(&b.key).found(format!("while reading {found}")).into()
}
