//! Tensors that pass through.

use super::direction::{FileBytes, system};
use super::{Difference, ReadBack};
use crate::bind::Bound;
use crate::catalog::TensorMeta;
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
    if to.dtype != from.dtype {
        let (near, far) =
            (FileBytes { reader: target, file: to.file }, FileBytes { reader: source, file: from.file });
        let near = Stored { bytes: &near, start: to.offset, dtype: to.dtype };
        let far = Stored { bytes: &far, start: from.offset, dtype: from.dtype };
        let agreement = Agreement::Value { scale: 1.0, offset: 0.0 };
        let (mut found, mut scratch) = (Outcome::default(), Scratch::default());
        for start in (0..elements).step_by(CHUNK as usize) {
            let dims = [(start..elements.min(start + CHUNK)).map(|at| (at, at)).collect::<Offsets>()];
            let part = compare(near, far, &dims, agreement, &mut scratch);
            found.add(part.map_err(|error| Errors::from(system(&error, &from.key)))?);
        }
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
