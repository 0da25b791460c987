//! Tensors that pass through.

use std::ops::Range;

use super::direction::{FileBytes, system};
use super::{Difference, ReadBack, other_type};
use crate::bind::Bound;
use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Diagnostic, Errors, ExecCode};
use crate::format::Reader;
use crate::parallel::in_parallel_with;
use crate::progress::Progress;
use crate::verify::agreement::Agreement;
use crate::verify::compare::{Offsets, Scratch, Stored, compare};

/// The most bytes that are held of one side at once.
const CHUNK: u64 = 1 << 18;
/// The most elements that are compared at once where types or orders differ.
const STRETCH: u64 = 1 << 20;
/// The chunks or stretches that a thread takes of a tensor: large ones are shared.
const TAKEN: u64 = 64;
/// The length of the rows in which elements that lie in order are compared.
const ROW: u64 = 1 << 10;

/// A thread's buffers.
#[derive(Default)]
struct Buffers {
    source: Vec<u8>,
    target: Vec<u8>,
    scratch: Scratch,
}

/// Tensors that pass through must have the same bytes, or after a cast the nearest values.
pub(super) fn kept(
    bound: &Bound,
    source: &dyn Reader,
    target: &dyn Reader,
    result: &mut ReadBack,
    threads: usize,
    progress: &dyn Progress,
) -> Result<(), Errors> {
    let pairs: Vec<Result<Pair<'_>, Unlike>> =
        bound.kept.iter().map(|(tensor, key)| Pair::new(bound, (source, *tensor), (target, key))).collect();
    let pieces: Vec<(usize, Range<u64>)> = pairs
        .iter()
        .enumerate()
        .flat_map(|(at, pair)| {
            let count = pair.as_ref().map_or(0, Pair::parts);
            (0..count.max(1)).step_by(TAKEN as usize).map(move |first| (at, first..count.min(first + TAKEN)))
        })
        .collect();
    let one = |buffers: &mut Buffers, number: usize| {
        let (at, parts) = &pieces[number];
        let Ok(pair) = &pairs[*at] else { return Ok(0) };
        let differing = pair.differing(parts, buffers, progress);
        let bytes =
            |part: u64| u128::from(pair.from.bytes()) * u128::from(part) / u128::from(pair.parts().max(1));
        progress.advance((bytes(parts.end) - bytes(parts.start)) as u64);
        differing
    };
    let (found, _) = in_parallel_with(pieces.len(), threads, progress, &Buffers::default, &one)?;
    let mut counts = vec![0; pairs.len()];
    for ((at, _), differing) in pieces.iter().zip(found) {
        counts[*at] += differing;
    }
    for ((pair, count), (tensor, key)) in pairs.iter().zip(counts).zip(&bound.kept) {
        result.tensors += 1;
        let (what, help) = match pair {
            Ok(pair) => {
                result.elements += pair.from.elements();
                match pair.way {
                    _ if count == 0 => continue,
                    Way::Bytes => ("bytes of a tensor that passes through differ".to_owned(), None),
                    Way::Order | Way::Strides => ("elements differ".to_owned(), None),
                }
            }
            Err((what, help)) => {
                result.other_types |= help.is_some();
                (what.clone(), help.clone())
            }
        };
        let source = Some(source.catalog().tensors[*tensor].key.clone());
        result.differences.push(Difference {
            target: Some(key.clone()),
            source,
            count,
            help,
            ..Difference::new(what)
        });
    }
    Ok(())
}

/// What is wrong with a target's tensor where nothing can be compared, and what to do about it.
type Unlike = (String, Option<String>);

/// How a tensor is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// All bytes are the same.
    Bytes,
    /// Types differ, and both sides lie in the order of their indices.
    Order,
    /// A side does not.
    Strides,
}

/// A tensor that passes through, on both sides.
struct Pair<'a> {
    way: Way,
    source: &'a dyn Reader,
    from: &'a TensorMeta,
    target: &'a dyn Reader,
    to: &'a TensorMeta,
}

impl<'a> Pair<'a> {
    /// Returns what is wrong with the target's tensor where nothing can be compared.
    fn new(
        bound: &Bound,
        (source, tensor): (&'a dyn Reader, usize),
        (target, key): (&'a dyn Reader, &str),
    ) -> Result<Pair<'a>, Unlike> {
        let from = &source.catalog().tensors[tensor];
        let Some(to) = target.catalog().find(key).map(|index| &target.catalog().tensors[index]) else {
            return Err(("the target lacks this tensor".into(), None));
        };
        let dtype = from.dtype.cast_to(bound.dtype.filter(|_| !bound.computed.contains(&tensor)));
        if to.shape != from.shape || to.dtype != dtype {
            let what = format!("expected {dtype} {:?}, found {} {:?}", from.shape, to.dtype, to.shape);
            let help = (to.shape == from.shape).then(|| other_type(dtype, to.dtype)).flatten();
            return Err((what, help));
        }
        let in_order = [from, to].iter().all(|meta| meta.strides == row_major(&meta.shape));
        let way = match in_order {
            true if to.dtype == from.dtype => Way::Bytes,
            true => Way::Order,
            false => Way::Strides,
        };
        Ok(Pair { way, source, from, target, to })
    }

    /// Returns how many chunks or stretches it has.
    fn parts(&self) -> u64 {
        match self.way {
            Way::Bytes => self.from.bytes().div_ceil(CHUNK),
            Way::Order => self.from.elements().div_ceil(STRETCH),
            Way::Strides => {
                let (_, length, step) = self.cut();
                length.div_ceil(step)
            }
        }
    }

    /// Returns the longest axis, its length and how much of it a stretch takes: a list of its offsets never grows with the
    /// tensor.
    fn cut(&self) -> (usize, u64, u64) {
        let shape = &self.from.shape;
        let longest = (0..shape.len()).max_by_key(|&at| shape[at]).unwrap_or(0);
        let length = shape.get(longest).copied().unwrap_or(1);
        (longest, length, (STRETCH / (self.from.elements() / length.max(1)).max(1)).max(1))
    }

    /// Returns how many elements differ in those chunks or stretches; of a type whose elements share bytes, how many bytes.
    fn differing(
        &self,
        parts: &Range<u64>,
        buffers: &mut Buffers,
        progress: &dyn Progress,
    ) -> Result<u64, Errors> {
        let mut differing = 0;
        for part in parts.clone() {
            if progress.cancelled() {
                return Err(Diagnostic::error(ExecCode::Cancelled, "stopped while verifying").into());
            }
            if self.way == Way::Bytes {
                differing += self.bytes(part * CHUNK, buffers)?;
                continue;
            }
            for axes in self.axes(part) {
                differing += self.elements(&axes, &mut buffers.scratch)?;
            }
        }
        Ok(differing)
    }

    fn bytes(&self, from: u64, buffers: &mut Buffers) -> Result<u64, Errors> {
        let length = CHUNK.min(self.from.bytes() - from) as usize;
        buffers.source.resize(length, 0);
        buffers.target.resize(length, 0);
        let (source, target) = (&mut buffers.source[..], &mut buffers.target[..]);
        self.source
            .read_exact_at(self.from.file, self.from.offset + from, source)
            .and_then(|()| self.target.read_exact_at(self.to.file, self.to.offset + from, target))
            .map_err(|error| Errors::from(system(&error, &self.from.key)))?;
        if source == target {
            return Ok(0);
        }
        let width = self.from.dtype.byte_width().unwrap_or(1) as usize;
        Ok(source.chunks(width).zip(target.chunks(width)).filter(|(a, b)| a != b).count() as u64)
    }

    /// Returns the axes of a stretch: offsets in the target and in the source.
    fn axes(&self, part: u64) -> Vec<Vec<Offsets>> {
        if self.way == Way::Order {
            let (start, end) = (part * STRETCH, self.from.elements().min((part + 1) * STRETCH));
            let line = |from: u64, count: u64, step: u64| -> Offsets {
                (0..count).map(|at| (from + at * step, from + at * step)).collect()
            };
            let rows = (end - start) / ROW;
            let rest = start + rows * ROW;
            return vec![vec![line(start, rows, ROW), line(0, ROW, 1)], vec![line(rest, end - rest, 1)]];
        }
        let (longest, length, step) = self.cut();
        let strides = self.to.strides.iter().zip(&self.from.strides);
        let offsets = |(at, (&size, (near, far))): (usize, (&u64, (&u64, &u64)))| -> Offsets {
            let range = if at == longest { part * step..length.min((part + 1) * step) } else { 0..size };
            range.map(|index| (index * near, index * far)).collect()
        };
        vec![self.from.shape.iter().zip(strides).enumerate().map(offsets).collect()]
    }

    fn elements(&self, axes: &[Offsets], scratch: &mut Scratch) -> Result<u64, Errors> {
        let (to, from) = (self.to, self.from);
        let (near, far) = (
            FileBytes { reader: self.target, file: to.file },
            FileBytes { reader: self.source, file: from.file },
        );
        let near = Stored { bytes: &near, start: to.offset, dtype: to.dtype };
        let far = Stored { bytes: &far, start: from.offset, dtype: from.dtype };
        let agreement = if to.dtype == from.dtype {
            Agreement::Bits
        } else {
            Agreement::Value { scale: 1.0, offset: 0.0 }
        };
        let found = compare(near, far, axes, agreement, &(0..u64::MAX), scratch);
        Ok(found.map_err(|error| Errors::from(system(&error, &from.key)))?.differing)
    }
}
