//! Read-back: every element of both checkpoints, compared through the naive reading of the expressions.

mod direction;
mod kept;
mod share;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::naive::Reader as Naive;
use crate::bind::{AxisSizes, Bound};
use crate::diag::{Diagnostic, Errors};
use crate::format::Reader;
use crate::mapping::select::Selection;
use crate::progress::Progress;
use direction::{Direction, Tensor, side};
use kept::kept;
use share::TensorOutcome;

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
    /// The index in the parameter, by its axes in canonical order.
    pub param_index: Vec<(String, u64)>,
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
            param_index: Vec::new(),
            count: 0,
            bits: None,
        }
    }
}

impl Difference {
    fn diagnostic(&self) -> Diagnostic {
        let of = self.param.as_ref().map_or(String::new(), |param| format!(" of `{param}`"));
        let index =
            self.param_index.iter().map(|(axis, index)| format!("{axis}={index}")).collect::<Vec<_>>();
        let index =
            if index.is_empty() { String::new() } else { format!(", the first at {}", index.join(" ")) };
        let count = if self.count > 0 { format!(" ({} elements)", self.count) } else { String::new() };
        let mut error = Diagnostic::error("verify/differs", format!("{}{of}{count}{index}", self.what));
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
    fn add(&mut self, outcomes: Vec<TensorOutcome>) {
        for outcome in outcomes {
            self.elements += outcome.elements;
            self.differences.extend(outcome.differences.into_iter().map(|(_, difference)| difference));
        }
    }

    /// Returns whether nothing differs.
    pub fn agrees(&self) -> bool {
        self.differences.is_empty()
    }

    /// Returns the differences as errors of code `verify/differs`.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.differences.iter().map(Difference::diagnostic).collect()
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
    for (key, reason) in &target.catalog().unread {
        let target = Some(key.clone());
        result.differences.push(Difference { target, ..Difference::new(reason.message.clone()) });
    }
    let mapping = selection.mapping();
    let near = side(Naive { mapping, layout: selection.target() }, target, targets);
    let far = side(Naive { mapping, layout: selection.source() }, source, sources.collect());
    let forward = Direction { near: &near, far: &far, from_target: true };
    let all: Vec<usize> = (0..near.tensors.len()).collect();
    let (outcomes, visited) = forward.run(&all, threads, progress)?;
    result.tensors += outcomes.len() as u64;
    result.add(outcomes);
    // Source elements that the target did not ask for: ties, repeats, padding, or a loss. Read from the source's side.
    let unasked: Vec<usize> = (0..far.tensors.len())
        .filter(|at| {
            let asked = visited.get(&far.tensors[*at].index).copied().unwrap_or(0);
            asked != far.catalog().tensors[far.tensors[*at].index].elements()
        })
        .collect();
    let back = Direction { near: &far, far: &near, from_target: false };
    result.add(back.run(&unasked, threads, progress)?.0);
    kept(bound, source, target, &mut result, threads, progress)?;
    result.differences.sort_by(|a, b| (&a.target, &a.source).cmp(&(&b.target, &b.source)));
    Ok(result)
}
