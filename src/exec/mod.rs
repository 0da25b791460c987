//! Doing what a plan says: streamed, by several threads, in bounded memory.
//!
//! The output is cut into jobs that fit a thread's buffers: contiguous ranges that are assembled in memory and written
//! at once or, for large transposes, boxes whose rows are long in the source and in the target. Which thread does
//! which job changes nothing in the output.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::catalog::Catalog;
use crate::diag::{Collector, Diagnostic, Errors, ExecCode};
pub use crate::format::output::Placement;
use crate::parallel::queue;
use crate::plan::{Plan, Step, ValueOp};
use crate::progress::Progress;
use crate::read::ReadAt;

mod buffer;
mod cast;
mod check;
mod checksum;
mod convert;
mod copy;
mod gather;
mod jobs;
mod losses;
mod part;
pub mod publish;
mod rows;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use convert::{bf16_bits, f16_bits};
use jobs::{Job, Sizes};
pub(crate) use rows::Rows;
use worker::{Outcome, Worker};

/// Output files that are written at given places, by several threads at once.
pub trait WriteAt: Sync {
    /// Writes all bytes to that output file, from that byte on.
    ///
    /// # Errors
    /// Returns the system's error.
    fn write_all_at(&self, file: usize, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Returns whether all of a file is there already; [`execute_by_file`] leaves it alone then.
    fn is_whole(&self, _file: usize) -> bool {
        false
    }

    /// Takes note that all of a file is written, with what was rounded in it, for [`execute_by_file`]. A file in which
    /// values overflowed is none of them: that is an error in the end, when all such values are known.
    ///
    /// # Errors
    /// Returns what ends the execution.
    fn finished(&self, _file: usize, _rounded: &[Rounded]) -> Result<(), Errors> {
        Ok(())
    }
}

/// What an execution may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Threads, at least 1. There are fewer where the memory does not suffice for all.
    pub threads: usize,
    /// Bytes for the buffers of all threads together; 2 MiB are taken in any case, 3 MiB where values are converted.
    pub memory: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { threads: thread::available_parallelism().map_or(1, usize::from), memory: 64 << 20 }
    }
}

impl Limits {
    /// Sets the number of threads, at least 1.
    pub fn threads(mut self, threads: usize) -> Limits {
        self.threads = threads;
        self
    }

    /// Sets the bytes for the buffers of all threads together.
    pub fn memory(mut self, bytes: u64) -> Limits {
        self.memory = bytes;
        self
    }
}

/// What an execution did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecStats {
    /// Bytes read from the source: of all jobs, with gaps that were read along.
    pub bytes_read: u64,
    /// Bytes written to the output.
    pub bytes_written: u64,
    /// The target tensors in which conversion rounded values.
    pub rounded: Vec<Rounded>,
}

/// What rounding did to a target tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounded {
    /// Its name.
    pub key: String,
    /// The largest difference between a value before and after.
    pub error: f64,
    /// How many nonzero values became zero.
    pub underflows: u64,
}

/// The least that a buffer has in use; below that, reads are too small to be fast.
const LEAST_BUFFER: u64 = 1 << 20;

/// Executes a plan: checks what it requires of the weights and writes every byte of every target tensor.
///
/// `placements` says where each of [`Plan::targets`] begins. All requirements are checked before an error of theirs is
/// returned; what was written by then is to be thrown away.
///
/// # Errors
/// - `exec/convert-type`: a step would need a conversion that there is not
/// - `data/unequal`, `data/nonzero`: requirements that do not hold, all of them
/// - `exec/overflow`: values too large for the type that they were to be converted to
/// - `exec/read`, `exec/write`: the system refused
/// - `exec/cancelled`: `progress` said so
///
/// # Panics
/// Panics where there are not as many placements as targets, or where a plan reaches out of a target tensor.
pub fn execute(
    plan: &Plan,
    catalog: &Catalog,
    source: &dyn ReadAt,
    target: &dyn WriteAt,
    placements: &[Placement],
    limits: &Limits,
    progress: &dyn Progress,
) -> Result<ExecStats, Errors> {
    let (run, threads) = Run::new((plan, catalog), source, (target, placements), limits, progress);
    run.execute(threads)
}

/// Executes a plan as [`execute`] does, one output file after the other; [`WriteAt::is_whole`] says which are left out, and
/// [`WriteAt::finished`] is called for each of the others.
///
/// # Errors
/// As [`execute`], and what [`WriteAt::finished`] returns.
///
/// # Panics
/// As [`execute`].
pub fn execute_by_file(
    plan: &Plan,
    catalog: &Catalog,
    source: &dyn ReadAt,
    target: &dyn WriteAt,
    placements: &[Placement],
    limits: &Limits,
    progress: &dyn Progress,
) -> Result<ExecStats, Errors> {
    let (run, threads) = Run::new((plan, catalog), source, (target, placements), limits, progress);
    run.execute_by_file(threads)
}

fn is_conversion(step: &Step) -> bool {
    matches!(step, Step::Copy(copy) if copy.value != ValueOp::Bits)
}

/// One execution, as all threads see it.
struct Run<'a> {
    plan: &'a Plan,
    catalog: &'a Catalog,
    source: &'a dyn ReadAt,
    target: &'a dyn WriteAt,
    placements: &'a [Placement],
    progress: &'a dyn Progress,
    sizes: Sizes,
}

impl<'a> Run<'a> {
    /// Returns the execution and how many threads it has memory for.
    fn new(
        (plan, catalog): (&'a Plan, &'a Catalog),
        source: &'a dyn ReadAt,
        (target, placements): (&'a dyn WriteAt, &'a [Placement]),
        limits: &Limits,
        progress: &'a dyn Progress,
    ) -> (Run<'a>, usize) {
        let converts = plan.targets.iter().flat_map(|tensor| &tensor.steps).any(is_conversion);
        let buffers = if converts { 3 } else { 2 };
        let threads = (limits.threads as u64).min(limits.memory / (buffers * LEAST_BUFFER)).max(1);
        let buffer = (limits.memory / threads / buffers).max(LEAST_BUFFER) / 8 * 8;
        let sizes = Sizes { scratch: buffer, target: buffer, values: if converts { buffer } else { 0 } };
        (Run { plan, catalog, source, target, placements, progress, sizes }, threads as usize)
    }
}

impl Run<'_> {
    /// Refuses what cannot be, and cuts the work into jobs.
    fn begin(&self) -> Result<Vec<Job>, Errors> {
        assert_eq!(self.plan.targets.len(), self.placements.len(), "each target has a place");
        self.refuse()?;
        Ok(jobs::cut(self.plan, self.catalog, self.placements, self.sizes))
    }

    fn execute(&self, threads: usize) -> Result<ExecStats, Errors> {
        self.conclude(self.perform(&self.begin()?, threads))
    }

    fn execute_by_file(&self, threads: usize) -> Result<ExecStats, Errors> {
        let mut checks = Vec::new();
        let mut files: BTreeMap<usize, Vec<Job>> = BTreeMap::new();
        // Files with nothing but empty tensors are finished too.
        files.extend(self.placements.iter().map(|place| (place.file, Vec::new())));
        for job in self.begin()? {
            match job.target() {
                None => checks.push(job),
                Some(target) => files.entry(self.placements[target].file).or_default().push(job),
            }
        }
        let mut outcome = self.perform(&checks, threads);
        let unlike = |requirement| check::unlike(requirement, self.catalog).is_some();
        let unmet = !outcome.unmet.is_empty() || self.plan.requirements.iter().any(unlike);
        for (file, jobs) in files {
            if unmet || outcome.failure.is_some() {
                break;
            }
            if self.target.is_whole(file) {
                continue;
            }
            let part = self.perform(&jobs, threads);
            let whole = part.failure.is_none() && part.losses.values().all(|losses| losses.overflows == 0);
            let rounded = self.rounded(&part);
            outcome.add(part);
            if whole {
                self.target.finished(file, &rounded)?;
            }
        }
        self.conclude(outcome)
    }

    fn perform(&self, jobs: &[Job], threads: usize) -> Outcome {
        let unlike = |requirement| check::unlike(requirement, self.catalog).is_some();
        let unmet = AtomicBool::new(self.plan.requirements.iter().any(unlike));
        let one = |worker: &mut Worker<'_>, number: usize| {
            let job = &jobs[number];
            if unmet.load(Ordering::Relaxed) && !matches!(job, Job::Check { .. }) {
                // Nothing will be published; only the other requirements matter still.
                return Ok(());
            }
            worker.perform(job)?;
            unmet.fetch_or(!worker.outcome.unmet.is_empty(), Ordering::Relaxed);
            Ok(())
        };
        let watched = (self.progress, &cancelled as &(dyn Fn() -> Errors + Sync));
        let workers = match queue(jobs.len(), threads, watched, &|| Worker::new(self), &one) {
            Ok(workers) => workers,
            Err(errors) => return Outcome { failure: Some(errors), ..Outcome::default() },
        };
        let mut outcome = Outcome::default();
        workers.into_iter().for_each(|worker| outcome.add(worker.finish()));
        outcome
    }

    /// Refuses what the planner should not have let through.
    fn refuse(&self) -> Result<(), Errors> {
        let mut collector = Collector::default();
        for tensor in &self.plan.targets {
            for step in &tensor.steps {
                let Step::Copy(copy) = step else { continue };
                let stored = &self.catalog.tensors[copy.source.tensor];
                let possible = match copy.value {
                    ValueOp::Bits => stored.dtype.block() == tensor.dtype.block(),
                    ValueOp::Convert { from, to, .. } => {
                        from == stored.dtype
                            && to == tensor.dtype
                            && from.is_computable()
                            && to.is_computable()
                    }
                };
                if !possible {
                    let message =
                        format!("cannot turn elements of type {} into {}", stored.dtype, tensor.dtype);
                    collector.push(
                        Diagnostic::error(ExecCode::ConvertType, message)
                            .tensor(&tensor.key)
                            .expected("F64, F32, F16 or BF16 on both sides"),
                    );
                }
            }
        }
        collector.finish(()).map(|_| ())
    }

    fn conclude(&self, outcome: Outcome) -> Result<ExecStats, Errors> {
        if let Some(errors) = outcome.failure {
            return Err(errors);
        }
        let mut collector = Collector::default();
        for (&requirement, unmet) in &outcome.unmet {
            collector.push(check::diagnostic(&self.plan.requirements[requirement], unmet, self.catalog));
        }
        for requirement in &self.plan.requirements {
            if let Some(diagnostic) = check::unlike(requirement, self.catalog) {
                collector.push(diagnostic);
            }
        }
        // Where a requirement fails, values were converted only in part.
        if !collector.has_errors() {
            for (&target, losses) in outcome.losses.iter().filter(|(_, losses)| losses.overflows > 0) {
                collector.push(overflow(&self.plan.targets[target], losses));
            }
        }
        let rounded = self.rounded(&outcome);
        let stats =
            ExecStats { bytes_read: outcome.bytes_read, bytes_written: outcome.bytes_written, rounded };
        collector.finish(stats).map(|(stats, _)| stats)
    }

    /// Returns what conversion rounded, in the order of the targets.
    fn rounded(&self, outcome: &Outcome) -> Vec<Rounded> {
        let rounded = outcome.losses.iter().filter(|(_, losses)| losses.error > 0.0);
        let of = |(&target, losses): (&usize, &losses::Losses)| Rounded {
            key: self.plan.targets[target].key.clone(),
            error: losses.error,
            underflows: losses.underflows,
        };
        rounded.map(of).collect()
    }
}

fn overflow(tensor: &crate::plan::TensorPlan, losses: &losses::Losses) -> Diagnostic {
    let diagnostic = Diagnostic::error(
        ExecCode::Overflow,
        format!("finite values would become infinite as {}", tensor.dtype),
    )
    .tensor(&tensor.key)
    .found(format!("{} such values, the largest of magnitude {:e}", losses.overflows, losses.largest))
    .help("convert to a type with a wider range (BF16, F32)");
    match &tensor.rule {
        Some(rule) => diagnostic.rule(rule),
        None => diagnostic,
    }
}

fn cancelled() -> Errors {
    Diagnostic::error(ExecCode::Cancelled, "cancelled before all weights were written").into()
}
