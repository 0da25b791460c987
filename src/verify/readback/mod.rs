//! Read-back: every element of both checkpoints, compared through the naive reading of the expressions.

mod direction;
mod kept;
mod share;
mod zeros;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::naive::Reader as Naive;
use crate::bind::{AxisSizes, Bound, InstanceId, ParamId};
use crate::diag::{Diagnostic, Errors, VerifyCode};
use crate::dtype::Dtype;
use crate::format::Reader;
use crate::mapping::select::Selection;
use crate::progress::Progress;
use direction::{Direction, Tensor, side};
use kept::kept;
use share::TensorOutcome;

/// A tensor that is not what it should be.
#[derive(Clone, Debug, PartialEq)]
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
    /// The bits in the target, and those that should be there: the source's after its shift and cast.
    pub bits: Option<(u64, u64)>,
    /// The two as numbers, for types that have values.
    pub values: Option<(f64, f64)>,
    /// What to do about it.
    pub help: Option<String>,
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
            values: None,
            help: None,
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
        let mut error = Diagnostic::error(VerifyCode::Differs, format!("{}{of}{count}{index}", self.what));
        error.help.clone_from(&self.help);
        error.tensors = self.target.iter().chain(&self.source).cloned().collect();
        if let Some((target, wanted)) = self.bits {
            let (found, expected) = self.values.unzip();
            let number = |value: Option<f64>| value.map_or(String::new(), |value| format!(" ({value:?})"));
            let place = |key: &Option<String>, index: &[u64]| match key {
                Some(key) => format!("`{key}` {index:?}"),
                None => "zero".to_owned(),
            };
            error = error
                .expected(format!(
                    "{wanted:#x}{}, from {}",
                    number(expected),
                    place(&self.source, &self.source_index)
                ))
                .found(format!(
                    "{target:#x}{} at {}",
                    number(found),
                    place(&self.target, &self.target_index)
                ));
        }
        error
    }
}

/// What was compared, and what differs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadBack {
    /// Target tensors compared.
    pub tensors: u64,
    /// Elements compared.
    pub elements: u64,
    /// Everything that differs, in order of the target's names.
    pub differences: Vec<Difference>,
    /// Whether tensors of the right shape have another type, so that nothing can be told of their values.
    pub other_types: bool,
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

/// Says how a target of another type can be verified: as what `--dtype` makes of the source.
fn other_type(expected: Dtype, found: Dtype) -> Option<String> {
    (expected.is_computable() && found.is_computable()).then(|| {
        format!("where it was converted with a cast, verify with `--dtype {}`", found.name().to_lowercase())
    })
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
    let names = |sizes: &[(ParamId, Arc<AxisSizes>)]| -> Vec<(String, Arc<AxisSizes>)> {
        sizes.iter().map(|(param, sizes)| (bound.params[*param].clone(), Arc::clone(sizes))).collect()
    };
    let present = |instances: &[(ParamId, InstanceId)]| -> Vec<String> {
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
            result.other_types |= stored.shape == tensor.shape;
            let help =
                (stored.shape == tensor.shape).then(|| other_type(tensor.dtype, stored.dtype)).flatten();
            result.differences.push(Difference {
                target: Some(tensor.key.clone()),
                help,
                ..Difference::new(what)
            });
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
    let target_layout = bound.target_layout.as_ref().unwrap_or(selection.target());
    // What the layout's readers ignore, as it is dropped from a source; what is computed they read.
    let is_ignored = |key: &str| {
        let (file, key) = target_layout.split_name(key);
        let is_computed =
            target_layout.computed.iter().any(|computed| computed.template.matches(file, key).is_some());
        !is_computed && target_layout.ignore.iter().any(|template| template.matches(file, key).is_some())
    };
    for stored in &target.catalog().tensors {
        if !expected.contains(stored.key.as_str()) && !is_ignored(&stored.key) {
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
    let near = side(Naive { mapping, layout: target_layout }, target, targets);
    let far = side(
        Naive { mapping, layout: bound.source_layout.as_ref().unwrap_or(selection.source()) },
        source,
        sources.collect(),
    );
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
