//! Tensors that pass through.

use super::direction::{FileBytes, system};
use super::{Difference, ReadBack};
use crate::bind::Bound;
use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Diagnostic, Errors};
use crate::format::Reader;
use crate::parallel::in_parallel;
use crate::progress::Progress;
use crate::verify::compare::{Agreement, Offsets, Outcome, Scratch, Stored, compare};

/// The most bytes, or converted elements, that are held of one side at once.
const CHUNK: u64 = 1 << 20;

/// What one tensor gave.
type KeptOutcome = Result<(u64, Option<Difference>), Errors>;

/// Tensors that pass through must have the same bytes, or after a cast the nearest values.
pub(super) fn kept(
    bound: &Bound,
    source: &dyn Reader,
    target: &dyn Reader,
    result: &mut ReadBack,
    threads: usize,
    progress: &dyn Progress,
) -> Result<(), Errors> {
    let one = |at: usize| {
        let (tensor, key) = &bound.kept[at];
        let from = &source.catalog().tensors[*tensor];
        let outcome = compare_kept(bound, (source, from), target, key, progress);
        progress.advance(from.bytes());
        outcome
    };
    for (elements, difference) in in_parallel(bound.kept.len(), threads, progress, &one)? {
        result.tensors += 1;
        result.elements += elements;
        result.differences.extend(difference);
    }
    Ok(())
}

fn compare_kept(
    bound: &Bound,
    (source, from): (&dyn Reader, &TensorMeta),
    target: &dyn Reader,
    key: &str,
    progress: &dyn Progress,
) -> KeptOutcome {
    let differs = |what: String, count: u64| {
        let (target, source) = (Some(key.to_owned()), Some(from.key.clone()));
        Some(Difference { target, source, count, ..Difference::new(what) })
    };
    let Some(to) = target.catalog().find(key).map(|index| &target.catalog().tensors[index]) else {
        return Ok((0, differs("the target lacks this tensor".into(), 0)));
    };
    let dtype = from.dtype.cast_to(bound.dtype);
    if to.shape != from.shape || to.dtype != dtype {
        let what = format!("expected {dtype} {:?}, found {} {:?}", from.shape, to.dtype, to.shape);
        return Ok((0, differs(what, 0)));
    }
    let elements = from.elements();
    let in_order = [from, to].iter().all(|meta| meta.strides == row_major(&meta.shape));
    if to.dtype != from.dtype || !in_order {
        let found = compare_elements((source, from), (target, to), in_order, progress)?;
        let difference = (found.differing > 0).then(|| differs("elements differ".into(), found.differing));
        return Ok((elements, difference.flatten()));
    }
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let total = from.bytes();
    for done in (0..total).step_by(CHUNK as usize) {
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
            return Ok((elements, differs("bytes of a tensor that passes through differ".into(), count)));
        }
    }
    Ok((elements, None))
}

/// Compares element by element, where types differ or a side does not lie in the order of its indices.
fn compare_elements(
    (source, from): (&dyn Reader, &TensorMeta),
    (target, to): (&dyn Reader, &TensorMeta),
    in_order: bool,
    progress: &dyn Progress,
) -> Result<Outcome, Errors> {
    let (near, far) =
        (FileBytes { reader: target, file: to.file }, FileBytes { reader: source, file: from.file });
    let near = Stored { bytes: &near, start: to.offset, dtype: to.dtype };
    let far = Stored { bytes: &far, start: from.offset, dtype: from.dtype };
    let agreement =
        if to.dtype == from.dtype { Agreement::Bits } else { Agreement::Value { scale: 1.0, offset: 0.0 } };
    // Size and strides of each axis; elements that lie in order are one axis.
    let strided = from.shape.iter().zip(to.strides.iter().zip(&from.strides));
    let axes: Vec<(u64, u64, u64)> = if in_order {
        vec![(from.elements(), 1, 1)]
    } else {
        strided.map(|(&size, (&near, &far))| (size, near, far)).collect()
    };
    // The longest is cut, so that a list of its offsets never grows with the tensor.
    let longest = (0..axes.len()).max_by_key(|&at| axes[at].0).unwrap_or(0);
    let length = axes.get(longest).map_or(0, |axis| axis.0);
    let step = (CHUNK / (from.elements() / length.max(1)).max(1)).max(1);
    let (mut found, mut scratch) = (Outcome::default(), Scratch::default());
    for start in (0..length).step_by(step as usize) {
        if progress.cancelled() {
            return Err(Diagnostic::error("exec/cancelled", "stopped while verifying").into());
        }
        let offsets = |(at, &(size, near, far)): (usize, &(u64, u64, u64))| -> Offsets {
            let range = if at == longest { start..size.min(start + step) } else { 0..size };
            range.map(|index| (index * near, index * far)).collect()
        };
        let dims: Vec<Offsets> = axes.iter().enumerate().map(offsets).collect();
        let part = compare(near, far, &dims, agreement, &mut scratch);
        found.add(part.map_err(|error| Errors::from(system(&error, &from.key)))?);
    }
    Ok(found)
}
