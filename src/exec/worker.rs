//! One thread's work.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::ops::Range;

use super::buffer::Buffer;
use super::check::{self, Unmet};
use super::convert::Conversion;
use super::copy::{fill_zero, merged_targets, permute};
use super::gather::Gather;
use super::jobs::{CACHED, Job, check_loops, clip_steps, ranges, zero_loops};
use super::losses::Losses;
use super::part::{Part, clip, compacted, elements, is_run, walk};
use super::{Placement, Run};
use crate::catalog::{Catalog, ExtentId};
use crate::diag::{Diagnostic, Errors, ExecCode};
use crate::plan::{Check, Loop, Step, ValueOp, unit};

/// How many converted values are put in their places at a time: few enough to stay in the cache.
const CONVERTED: u64 = 1 << 13;

/// The bytes of a run that are read before they are converted.
const READ_RUN: u64 = 1 << 18;

/// What was done and found.
#[derive(Default)]
pub(super) struct Outcome {
    /// The error that ended the work.
    pub(super) failure: Option<Errors>,
    /// The requirements that do not hold.
    pub(super) unmet: BTreeMap<usize, Unmet>,
    /// What conversion lost, by target.
    pub(super) losses: BTreeMap<usize, Losses>,
    /// Bytes read.
    pub(super) bytes_read: u64,
    /// Bytes written.
    pub(super) bytes_written: u64,
}

impl Outcome {
    /// Adds what another thread did, or this one later.
    pub(super) fn add(&mut self, other: Outcome) {
        for (requirement, unmet) in other.unmet {
            self.add_unmet(requirement, unmet);
        }
        for (target, losses) in other.losses {
            self.losses.entry(target).or_default().add(losses);
        }
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.failure = self.failure.take().or(other.failure);
    }

    fn add_unmet(&mut self, requirement: usize, unmet: Unmet) {
        match self.unmet.get_mut(&requirement) {
            None => {
                self.unmet.insert(requirement, unmet);
            }
            Some(known) => {
                let count = known.count + unmet.count;
                if unmet.first < known.first {
                    *known = unmet;
                }
                known.count = count;
            }
        }
    }
}

/// A step of a tensor in a group.
struct Piece<'a> {
    /// The source tensor and where it is read first; `None` for zeros.
    source: Option<(ExtentId, u64)>,
    target: usize,
    step: &'a Step,
    /// Where the target begins in the buffer, in its units.
    place: u64,
}

/// A thread's buffers and what it did so far.
pub(super) struct Worker<'a> {
    run: &'a Run<'a>,
    assembler: Assembler<'a>,
    buffer: Buffer,
    /// What it did so far.
    pub(super) outcome: Outcome,
}

impl<'a> Worker<'a> {
    /// Makes the buffers.
    pub(super) fn new(run: &'a Run<'a>) -> Worker<'a> {
        let gather = Gather::new(run.catalog, run.source, run.sizes.scratch);
        Worker {
            run,
            assembler: Assembler {
                gather,
                catalog: run.catalog,
                before: Buffer::new(run.sizes.values),
                before_bytes: run.sizes.values,
                after: Buffer::new(if run.sizes.values > 0 { CONVERTED * 8 } else { 0 }),
            },
            buffer: Buffer::new(run.sizes.target),
            outcome: Outcome::default(),
        }
    }

    /// Returns what was done.
    pub(super) fn finish(mut self) -> Outcome {
        self.outcome.bytes_read = self.assembler.gather.bytes_read;
        self.outcome
    }

    /// Does one job.
    pub(super) fn perform(&mut self, job: &Job) -> Result<(), Errors> {
        match job {
            Job::Check { requirement, range } => self.check(*requirement, range),
            Job::Group { targets } => self.group(targets),
            Job::Range { targets, bytes } => self.file_range(targets, bytes),
            Job::Box { target, step, source_offset, target_offset, loops } => {
                let part = Part { source_offset: *source_offset, target_offset: *target_offset, loops };
                self.write_box(*target, *step, part)
            }
        }
    }

    /// Assembles whole tensors, in the order of the source: what is read of a tensor serves all of them.
    fn group(&mut self, targets: &Range<usize>) -> Result<(), Errors> {
        let mut length = 0;
        let mut pieces: Vec<Piece<'_>> = Vec::new();
        let mut wanted: HashMap<ExtentId, u64> = HashMap::default();
        for target in targets.clone() {
            let tensor = &self.run.plan.targets[target];
            let place = length / tensor.unit();
            for step in &tensor.steps {
                let source = match step {
                    Step::Copy(copy) => {
                        *wanted.entry(copy.source).or_default() += elements(&copy.loops);
                        Some((copy.source, copy.source_offset))
                    }
                    Step::Zero(_) => None,
                };
                pieces.push(Piece { source, target, step, place });
            }
            length += tensor.bytes();
        }
        pieces.sort_by_key(|piece| piece.source);
        for piece in pieces {
            let of_source = |(source, _)| Some((source, *wanted.get(&source)?));
            self.assembler.gather.want(piece.source.and_then(of_source));
            self.assemble_step(&piece)?;
        }
        self.assembler.gather.want(None);
        self.write(targets.start, self.run.placements[targets.start].offset, 0..length)
    }

    fn assemble_step(&mut self, piece: &Piece<'_>) -> Result<(), Errors> {
        let unit = self.run.plan.targets[piece.target].unit();
        let zeros;
        let part = match piece.step {
            Step::Copy(copy) => Part {
                source_offset: copy.source_offset,
                target_offset: copy.target_offset + piece.place,
                loops: &copy.loops,
            },
            Step::Zero(region) => {
                zeros = zero_loops(region);
                Part { source_offset: 0, target_offset: region.offset + piece.place, loops: &zeros }
            }
        };
        let losses = self.assembler.place(piece.step, part, unit, self.buffer.bytes_mut())?;
        self.lose(piece.target, losses);
        Ok(())
    }

    /// Assembles what lies in a range of an output file.
    fn file_range(&mut self, targets: &Range<usize>, bytes: &Range<u64>) -> Result<(), Errors> {
        for target in targets.clone() {
            let tensor = &self.run.plan.targets[target];
            let unit = tensor.unit();
            let offset = self.run.placements[target].offset;
            let start = bytes.start.saturating_sub(offset) / unit;
            let end = (bytes.end - offset).min(tensor.bytes()) / unit;
            let place = offset.saturating_sub(bytes.start) / unit;
            let mut losses = Losses::default();
            clip_steps(tensor, &(start..end), |step, part| {
                let part = Part { target_offset: part.target_offset - start + place, ..part };
                losses.add(self.assembler.place(step, part, unit, self.buffer.bytes_mut())?);
                Ok::<(), Errors>(())
            })?;
            self.lose(target, losses);
        }
        self.write(targets.start, bytes.start, 0..bytes.end - bytes.start)
    }

    fn lose(&mut self, target: usize, losses: Losses) {
        if losses != Losses::default() {
            self.outcome.losses.entry(target).or_default().add(losses);
        }
    }

    fn write_box(&mut self, target: usize, step: usize, part: Part<'_>) -> Result<(), Errors> {
        let tensor = &self.run.plan.targets[target];
        let unit = tensor.unit();
        let compact = compacted(part.loops);
        let compact = Part { target_offset: 0, loops: &compact, ..part };
        let losses = self.assembler.place(&tensor.steps[step], compact, unit, self.buffer.bytes_mut())?;
        self.lose(target, losses);
        let (run, rows) = merged_targets(part.loops);
        let offset = self.run.placements[target].offset;
        let mut from = 0;
        walk(&rows, 0, part.target_offset, &mut |_, to| {
            self.write(target, offset + to * unit, from..from + run * unit)?;
            from += run * unit;
            Ok(())
        })
    }

    /// Writes a range of the buffer to a byte of a target's file, up to one round place of it at a time: while one thread
    /// writes, the system keeps all others from the file.
    fn write(&mut self, target: usize, offset: u64, range: Range<u64>) -> Result<(), Errors> {
        let Placement { file, .. } = self.run.placements[target];
        let (mut from, mut place) = (range.start, offset);
        while from < range.end {
            let length = (CACHED - place % CACHED).min(range.end - from);
            let bytes = &self.buffer.bytes()[from as usize..(from + length) as usize];
            self.run.target.write_all_at(file, place, bytes).map_err(|error| {
                let message = match error.kind() {
                    io::ErrorKind::StorageFull => {
                        format!("cannot write the output, the disk is full: {error}")
                    }
                    io::ErrorKind::QuotaExceeded => {
                        format!("cannot write the output, the quota is used up: {error}")
                    }
                    io::ErrorKind::FileTooLarge => {
                        format!("cannot write the output, a file may not grow so large: {error}")
                    }
                    _ => format!("cannot write the output: {error}"),
                };
                let diagnostic =
                    Diagnostic::error(ExecCode::Write, message).tensor(&self.run.plan.targets[target].key);
                match error.kind() {
                    io::ErrorKind::FileTooLarge => diagnostic.help(super::publish::LARGER_FILES),
                    _ => diagnostic,
                }
            })?;
            (from, place) = (from + length, place + length);
        }
        let length = range.end - range.start;
        self.outcome.bytes_written += length;
        self.run.progress.advance(length);
        Ok(())
    }

    fn check(&mut self, requirement: usize, range: &Range<u64>) -> Result<(), Errors> {
        let stated = &self.run.plan.requirements[requirement];
        if check::unlike(stated, self.run.catalog).is_some() {
            return Ok(());
        }
        let unmet = match &stated.check {
            Check::Equal { first, second, loops } => {
                let width = unit(self.run.catalog.tensors[first.0.tensor].dtype);
                let length = ((range.end - range.start) * width) as usize;
                // The second half begins at a multiple of 8, as the alignment of elements needs.
                let half = length.div_ceil(8) * 8;
                let (a, b) = self.buffer.bytes_mut().split_at_mut(half);
                let gather = &mut self.assembler.gather;
                read_side(gather, *first, &check_loops(loops.iter().map(|l| (l.0, l.1))), range, a)?;
                read_side(gather, *second, &check_loops(loops.iter().map(|l| (l.0, l.2))), range, b)?;
                check::compare(&a[..length], Some(&b[..length]), width as usize, 0, range.start)
            }
            Check::Zero { source, region } => {
                let dtype = self.run.catalog.tensors[source.tensor].dtype;
                let length = ((range.end - range.start) * unit(dtype)) as usize;
                let side = (*source, region.offset);
                let loops = check_loops(region.loops.iter().copied());
                read_side(&mut self.assembler.gather, side, &loops, range, self.buffer.bytes_mut())?;
                let bytes = &self.buffer.bytes()[..length];
                check::compare(bytes, None, unit(dtype) as usize, check::zero_signs(dtype), range.start)
            }
        };
        if let Some(unmet) = unmet {
            self.outcome.add_unmet(requirement, unmet);
        }
        Ok(())
    }
}

/// Reads a range of one side's elements, in the requirement's order.
pub(super) fn read_side(
    gather: &mut Gather<'_>,
    (tensor, source_offset): (ExtentId, u64),
    loops: &[Loop],
    range: &Range<u64>,
    target: &mut [u8],
) -> Result<(), Errors> {
    clip(Part { source_offset, target_offset: 0, loops }, range, &mut |part| {
        let part = Part { target_offset: part.target_offset - range.start, ..part };
        gather.gather(tensor, part, target)
    })
}

/// Puts parts of steps into a buffer.
struct Assembler<'a> {
    gather: Gather<'a>,
    catalog: &'a Catalog,
    /// Values before conversion, in the order of the target.
    before: Buffer,
    before_bytes: u64,
    /// Values after conversion, [`CONVERTED`] of them.
    after: Buffer,
}

impl Assembler<'_> {
    fn place(&mut self, step: &Step, part: Part<'_>, unit: u64, target: &mut [u8]) -> Result<Losses, Errors> {
        match step {
            Step::Zero(_) => fill_zero(unit, target, part),
            Step::Copy(copy) => match copy.value {
                ValueOp::Bits => self.gather.gather(copy.source, part, target)?,
                ValueOp::Convert { from, to, affine } => {
                    let conversion = Conversion { from, to, scale: affine.scale, offset: affine.offset };
                    return self.convert(copy.source, conversion, part, target);
                }
            },
        }
        Ok(Losses::default())
    }

    /// Reads values in the order of the target, converts them and puts them in their places.
    fn convert(
        &mut self,
        tensor: ExtentId,
        conversion: Conversion,
        part: Part<'_>,
        target: &mut [u8],
    ) -> Result<Losses, Errors> {
        let to = conversion.to;
        let (from_unit, to_unit) = (unit(self.catalog.tensors[tensor.tensor].dtype), unit(to));
        let reading = compacted(part.loops);
        // From the converted values to the target, with the sides exchanged: it is the compact side that is clipped.
        let placing: Vec<Loop> =
            part.loops.iter().zip(&reading).map(|(l, r)| Loop { source_step: l.target_step, ..*r }).collect();
        let placing = Part { source_offset: part.target_offset, target_offset: 0, loops: &placing };
        let mut losses = Losses::default();
        // Where the source is one run, small reads cost no more and stay in the cache.
        let most = if is_run(&reading) { self.before_bytes.min(READ_RUN) } else { self.before_bytes };
        for read in ranges(0..part.elements(), (most / from_unit).max(1)) {
            let side = (tensor, part.source_offset);
            read_side(&mut self.gather, side, &reading, &read, self.before.bytes_mut())?;
            for range in ranges(read.clone(), CONVERTED) {
                let values = (range.start - read.start) * from_unit..(range.end - read.start) * from_unit;
                let values = &self.before.bytes()[values.start as usize..values.end as usize];
                let converted = &mut self.after.bytes_mut()[..((range.end - range.start) * to_unit) as usize];
                losses.add(conversion.convert(values, converted));
                let Ok(()) = clip(placing, &range, &mut |clipped| {
                    let exchanged =
                        |l: &Loop| Loop { source_step: l.target_step, target_step: l.source_step, ..*l };
                    let loops: Vec<Loop> = clipped.loops.iter().map(exchanged).collect();
                    let source_offset = clipped.target_offset - range.start;
                    let placed = Part { source_offset, target_offset: clipped.source_offset, loops: &loops };
                    permute(to_unit, self.after.bytes(), target, placed);
                    Ok::<(), Infallible>(())
                });
            }
        }
        Ok(losses)
    }
}
