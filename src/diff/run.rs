//! Reading both sides, by several threads, in bounded memory.
//!
//! The content is cut into chunks of a fixed number of elements. Equal chunks cost no more than the comparison of their
//! bytes; only once a tensor is known to differ are they measured, for its cosine and its NaNs, those that went by
//! before in a second pass. What is measured per chunk is the same either way, and sums are added in the order of the
//! chunks, so neither the threads nor the pass shows in the result.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::stats::{Measure, Sums, Tally};
use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Diagnostic, DiffCode, Errors};
use crate::dtype::Dtype;
use crate::element::{Kind, kind};
use crate::exec::Rows;
use crate::format::Reader;
use crate::parallel::queue;
use crate::progress::Progress;

/// The bytes of the wider side's elements in a chunk.
const CHUNK: u64 = 4 << 20;
/// The most bytes that are held beside a chunk of a strided tensor, to pick from: the gaps between its elements included.
const SCRATCH: u64 = 8 << 20;

/// What was found in a tensor that is not bit-equal.
pub(super) type Measured = (Tally, Sums);

/// Two tensors whose contents are compared.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// Where they stand in the catalogs.
    pub(super) tensors: [usize; 2],
    dtypes: [Dtype; 2],
    elements: u64,
    per_chunk: u64,
    /// Which sides do not lie in the order of their indices.
    strided: [bool; 2],
}

impl Pair {
    /// Makes a pair of tensors of one shape.
    pub(super) fn new(tensors: [usize; 2], metas: [&TensorMeta; 2]) -> Pair {
        let dtypes = metas.map(|meta| meta.dtype);
        let wider = dtypes[0].bits().max(dtypes[1].bits());
        // A multiple of 256: elements that share bytes end with their block.
        let most = (CHUNK * 8 / wider) & !255;
        // No format gives strides to a type whose elements share bytes.
        let strided =
            metas.map(|meta| meta.dtype.byte_width().is_some() && meta.strides != row_major(&meta.shape));
        let packed = dtypes.iter().any(|dtype| dtype.byte_width().is_none());
        let row = if packed { 1 } else { row(&metas[0].shape, most) };
        Pair { tensors, dtypes, elements: metas[0].elements(), per_chunk: most / row * row, strided }
    }

    /// Returns the bytes of both sides.
    pub(super) fn bytes(&self) -> u64 {
        self.dtypes.iter().filter_map(|dtype| dtype.byte_len(self.elements)).sum()
    }

    fn chunks(&self) -> u64 {
        // A tensor of no elements has a chunk too, so that every pair is looked at.
        self.elements.div_ceil(self.per_chunk).max(1)
    }

    fn same_type(&self) -> bool {
        self.dtypes[0] == self.dtypes[1]
    }
}

/// Returns the elements of the most dimensions, from the last on, that are at most `most`. Of a transposed tensor each piece of
/// such a row is a read of its own, so that chunks end where rows do, however the tensors lie.
fn row(shape: &[u64], most: u64) -> u64 {
    let mut row = 1_u64;
    for size in shape.iter().rev() {
        match row.checked_mul(*size) {
            Some(longer) if (1..=most).contains(&longer) => row = longer,
            _ => break,
        }
    }
    row
}

/// Compares the contents; `None` stands for bit-equal tensors.
pub(super) fn run(
    readers: [&dyn Reader; 2],
    pairs: &[Pair],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Option<Measured>>, Errors> {
    let mut starts = Vec::with_capacity(pairs.len());
    let mut jobs = 0;
    for pair in pairs {
        starts.push(jobs);
        jobs += pair.chunks();
    }
    // Elements of different types have no bits in common.
    let unequal = pairs.iter().map(|pair| AtomicBool::new(!pair.same_type())).collect();
    let run = Run { readers, pairs, starts, unequal, progress };
    let mut found = run.pass(threads, jobs, |worker, job| worker.compare(job))?;
    let mut passed: Vec<u64> =
        found.iter_mut().flat_map(|worker| std::mem::take(&mut worker.passed)).collect();
    passed.retain(|&job| run.is_unequal(run.pair_of(job)));
    passed.sort_unstable();
    let again = |worker: &mut Worker<'_>, at: u64| worker.measure_equal(passed[at as usize]);
    found.extend(run.pass(threads, passed.len() as u64, again)?);
    Ok(run.conclude(found))
}

/// A comparison, as all threads see it.
struct Run<'a> {
    readers: [&'a dyn Reader; 2],
    pairs: &'a [Pair],
    /// The number of each pair's first chunk.
    starts: Vec<u64>,
    /// The pairs that are known not to be bit-equal.
    unequal: Vec<AtomicBool>,
    progress: &'a dyn Progress,
}

impl Run<'_> {
    fn pair_of(&self, job: u64) -> usize {
        self.starts.partition_point(|&start| start <= job) - 1
    }

    fn is_unequal(&self, pair: usize) -> bool {
        self.unequal[pair].load(Ordering::Relaxed)
    }

    /// Does that many jobs, in their order but for the threads.
    fn pass<'a>(
        &'a self,
        threads: usize,
        jobs: u64,
        perform: impl Fn(&mut Worker<'a>, u64) -> Result<(), Errors> + Sync,
    ) -> Result<Vec<Worker<'a>>, Errors> {
        let watched = (self.progress, &cancelled as &(dyn Fn() -> Errors + Sync));
        let one = |worker: &mut Worker<'a>, job: usize| perform(worker, job as u64);
        let mut workers = queue(jobs as usize, threads, watched, &|| Worker::new(self), &one)?;
        workers.iter_mut().for_each(Worker::free);
        Ok(workers)
    }

    fn conclude(&self, found: Vec<Worker<'_>>) -> Vec<Option<Measured>> {
        let mut measured: Vec<Option<Measured>> =
            (0..self.pairs.len()).map(|pair| self.is_unequal(pair).then(Measured::default)).collect();
        let mut sums = Vec::new();
        for worker in found {
            for (pair, tally) in &worker.tallies {
                if let Some((whole, _)) = &mut measured[*pair] {
                    whole.add(tally);
                }
            }
            sums.extend(worker.sums);
        }
        sums.sort_unstable_by_key(|(job, _)| *job);
        for (job, part) in &sums {
            if let Some((_, whole)) = &mut measured[self.pair_of(*job)] {
                whole.add(part);
            }
        }
        measured
    }
}

fn cancelled() -> Errors {
    Diagnostic::error(DiffCode::Cancelled, "cancelled before all tensors were compared").into()
}

/// One thread's buffers and what it found.
struct Worker<'a> {
    run: &'a Run<'a>,
    /// Words, so that the bytes are aligned for every type.
    buffers: [Vec<u64>; 2],
    /// For the tensors of either side that do not lie in the order of their indices.
    rows: [Option<Rows<'a>>; 2],
    measure: Measure,
    tallies: HashMap<usize, Tally>,
    sums: Vec<(u64, Sums)>,
    /// Equal chunks that were not measured.
    passed: Vec<u64>,
}

impl<'a> Worker<'a> {
    fn new(run: &'a Run<'a>) -> Worker<'a> {
        Worker {
            run,
            buffers: [Vec::new(), Vec::new()],
            rows: [None, None],
            measure: Measure::new(),
            tallies: HashMap::default(),
            sums: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// Gives the buffers back.
    fn free(&mut self) {
        self.buffers = [Vec::new(), Vec::new()];
        self.rows = [None, None];
    }

    /// Compares a chunk.
    fn compare(&mut self, job: u64) -> Result<(), Errors> {
        let number = self.run.pair_of(job);
        let pair = &self.run.pairs[number];
        let start = (job - self.run.starts[number]) * pair.per_chunk;
        let lengths = [self.read(number, start, 0)?, self.read(number, start, 1)?];
        let sides = [bytes(&self.buffers[0], lengths[0]), bytes(&self.buffers[1], lengths[1])];
        if pair.same_type() && sides[0] == sides[1] {
            if kind(pair.dtypes[0]) == Kind::Float {
                if self.run.is_unequal(number) {
                    let tally = self.tallies.entry(number).or_default();
                    self.sums.push((job, self.measure.equal(pair.dtypes[0], sides[0], tally)));
                } else {
                    self.passed.push(job);
                }
            }
        } else {
            self.run.unequal[number].store(true, Ordering::Relaxed);
            let tally = self.tallies.entry(number).or_default();
            self.sums.push((job, self.measure.unequal(pair.dtypes, start, sides, tally)));
        }
        self.run.progress.advance((lengths[0] + lengths[1]) as u64);
        Ok(())
    }

    /// Measures a chunk that is known to be equal.
    fn measure_equal(&mut self, job: u64) -> Result<(), Errors> {
        let number = self.run.pair_of(job);
        let pair = &self.run.pairs[number];
        let start = (job - self.run.starts[number]) * pair.per_chunk;
        let length = self.read(number, start, 0)?;
        let tally = self.tallies.entry(number).or_default();
        self.sums.push((job, self.measure.equal(pair.dtypes[0], bytes(&self.buffers[0], length), tally)));
        Ok(())
    }

    /// Reads the chunk of one side that begins with that element and returns its length in bytes.
    fn read(&mut self, number: usize, start: u64, side: usize) -> Result<usize, Errors> {
        let pair = &self.run.pairs[number];
        let reader = self.run.readers[side];
        let meta = &reader.catalog().tensors[pair.tensors[side]];
        let bytes = |elements| pair.dtypes[side].byte_len(elements).unwrap_or(0);
        let count = pair.per_chunk.min(pair.elements - start);
        let length = bytes(count) as usize;
        let words = &mut self.buffers[side];
        if words.len() < length.div_ceil(8) {
            words.resize(length.div_ceil(8), 0);
        }
        let buffer = &mut bytemuck::cast_slice_mut(words)[..length];
        if pair.strided[side] {
            let rows = self.rows[side].get_or_insert_with(|| Rows::new(reader.catalog(), reader, SCRATCH));
            let read = rows.read(pair.tensors[side], &(start..start + count), buffer);
            read.map_err(|errors| errors.with_code(DiffCode::Read))?;
            return Ok(length);
        }
        let read = reader.read_exact_at(meta.file, meta.offset + bytes(start), buffer);
        read.map_err(|error| self.refused(side, number, &error))?;
        Ok(length)
    }

    fn refused(&self, side: usize, number: usize, error: &io::Error) -> Errors {
        let catalog = self.run.readers[side].catalog();
        let meta = &catalog.tensors[self.run.pairs[number].tensors[side]];
        let diagnostic = Diagnostic::error(DiffCode::Read, format!("cannot read the tensor: {error}"));
        diagnostic.file(&catalog.files[meta.file]).tensor(&meta.key).into()
    }
}

/// Returns the first bytes of a buffer.
fn bytes(words: &[u64], length: usize) -> &[u8] {
    &bytemuck::cast_slice(words)[..length]
}
