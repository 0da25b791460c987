//! Tensors that pass through.

use super::direction::{FileBytes, system};
use super::{Difference, ReadBack};
use crate::bind::Bound;
use crate::diag::{Diagnostic, Errors};
use crate::format::Reader;
use crate::progress::Progress;
use crate::verify::compare::{Agreement, Offsets, Outcome, Scratch, Stored, compare};

/// Tensors that pass through must have the same bytes.
pub(super) fn kept(
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
        let dtype = from.dtype.cast_to(bound.dtype);
        if to.shape != from.shape || to.dtype != dtype {
            let what = format!("expected {dtype} {:?}, found {} {:?}", from.shape, to.dtype, to.shape);
            result.differences.push(Difference { what, ..here });
            continue;
        }
        if to.dtype != from.dtype {
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
