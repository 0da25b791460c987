//! Elements that no parameter of the other side holds: they must be zeros.

use std::io;

use super::Difference;
use super::direction::{Direction, FileBytes, Tensor, system};
use super::share::TensorOutcome;
use crate::diag::Errors;
use crate::verify::agreement::Agreement;
use crate::verify::compare::{Bytes, Offsets, Scratch, Stored, compare};
use crate::verify::equal::advance;
use crate::verify::naive::{Found, Sizes};
use crate::verify::tables::{Ids, outer_sizes};

/// A label, as [`Found::label`] has it, and the indices of an axis under it.
type Labelled = (Option<Option<String>>, Vec<u64>);

impl Direction<'_> {
    /// What no parameter of the other side holds must be zeros: padding, the rest of a block diagonal, a part that
    /// zeros stand for. Read whole, every element that is not among the parameters' counted.
    pub(super) fn zeros(
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
        let reading = Sizes { outer: sizes.outer(), of: &of };
        let current = outer_sizes(rule.expr.label.as_ref(), &sizes);
        let held = |param: &str| {
            tensor.present.iter().any(|other| other == param) && self.far.rules_of.contains_key(param)
        };
        // Per axis: the indices by label.
        let mut axes: Vec<Vec<Labelled>> = Vec::new();
        for dim in &rule.expr.dims {
            let mut groups: Vec<Labelled> = Vec::new();
            for index in 0..reading.length(dim, current).unwrap_or(0) {
                let mut found = Found::default();
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
            let chosen: Vec<&Labelled> =
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
                let elements = dims.iter().map(|dim| dim.len() as u64).product();
                if let Some(share) = outcome.pass(elements) {
                    let bytes = FileBytes { reader: self.near.reader, file: stored.file };
                    let near = Stored { bytes: &bytes, start: stored.offset, dtype: stored.dtype };
                    let far = Stored { bytes: &Zeros, start: 0, dtype: stored.dtype };
                    let found = compare(near, far, &dims, Agreement::Bits, &share.range, scratch)
                        .map_err(|error| Errors::from(system(&error, &stored.key)))?;
                    outcome.elements += found.elements;
                    if let Some((offset, _, bits, _)) = found.first {
                        let mut difference = Difference::new("elements that must be zero are not");
                        let index = stored.index_at(offset);
                        (difference.count, difference.bits) = (found.differing, Some((bits, 0)));
                        if self.from_target {
                            (difference.target, difference.target_index) = (Some(stored.key.clone()), index);
                        } else {
                            (difference.source, difference.source_index) = (Some(stored.key.clone()), index);
                        }
                        outcome.differences.push((share.before, difference));
                    }
                }
            }
            if !advance(&mut picks, |axis| axes[axis].len()) {
                return Ok(());
            }
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
