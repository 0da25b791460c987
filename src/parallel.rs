//! The same work on many things, by several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Builder};

use crate::diag::{Diagnostic, Errors, ExecCode};
use crate::progress::Progress;

/// Does the same work on this thread and on others, so many in all; on fewer where the system has no more threads to give.
/// `stack` is the size of their stacks in bytes, if not the usual one.
pub(crate) fn with_threads<T: Send>(
    threads: usize,
    stack: Option<usize>,
    work: &(dyn Fn() -> T + Sync),
) -> Vec<T> {
    thread::scope(|scope| {
        let mut others = Vec::new();
        for _ in 1..threads {
            let builder = stack.map_or_else(Builder::new, |stack| Builder::new().stack_size(stack));
            let Ok(other) = builder.spawn_scoped(scope, work) else { break };
            others.push(other);
        }
        let mut all = vec![work()];
        for other in others {
            match other.join() {
                Ok(part) => all.push(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

/// Does `one` for every number below `count`, each thread with a state of its own; they are returned. The numbers are begun
/// in their order.
///
/// # Errors
/// Returns the first failure by number that was met, after which no further work is begun, and `cancelled` where the work
/// was stopped before a number.
pub(crate) fn queue<S: Send>(
    count: usize,
    threads: usize,
    (progress, cancelled): (&dyn Progress, &(dyn Fn() -> Errors + Sync)),
    state: &(dyn Fn() -> S + Sync),
    one: &(dyn Fn(&mut S, usize) -> Result<(), Errors> + Sync),
) -> Result<Vec<S>, Errors> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let ended = with_threads(threads.min(count), None, &|| {
        let (mut mine, mut failure) = (state(), None);
        while !stop.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                break;
            }
            let done = if progress.cancelled() { Err(cancelled()) } else { one(&mut mine, at) };
            if let Err(errors) = done {
                failure = Some((at, errors));
                stop.store(true, Ordering::Relaxed);
            }
        }
        (mine, failure)
    });
    let (states, failures): (Vec<S>, Vec<_>) = ended.into_iter().unzip();
    match failures.into_iter().flatten().min_by_key(|(at, _)| *at) {
        Some((_, errors)) => Err(errors),
        None => Ok(states),
    }
}

/// Does `one` for every number below `count`; the results are in order.
///
/// # Errors
/// Returns the first failure by number that was met, after which no further work is begun, and cancellation.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    threads: usize,
    progress: &dyn Progress,
    one: &(dyn Fn(usize) -> Result<T, Errors> + Sync),
) -> Result<Vec<T>, Errors> {
    in_parallel_with(count, threads, progress, &|| (), &|(), at| one(at)).map(|(results, _)| results)
}

/// As [`in_parallel`], with a state for each thread, which is returned too.
///
/// # Errors
/// As [`in_parallel`].
pub(crate) fn in_parallel_with<S: Send, T: Send>(
    count: usize,
    threads: usize,
    progress: &dyn Progress,
    state: &(dyn Fn() -> S + Sync),
    one: &(dyn Fn(&mut S, usize) -> Result<T, Errors> + Sync),
) -> Result<(Vec<T>, Vec<S>), Errors> {
    let cancelled = || Diagnostic::error(ExecCode::Cancelled, "stopped before the work was done").into();
    let keep = |(mine, results): &mut (S, Vec<(usize, T)>), at: usize| {
        results.push((at, one(mine, at)?));
        Ok(())
    };
    let ended = queue(count, threads, (progress, &cancelled), &|| (state(), Vec::new()), &keep)?;
    let (states, results): (Vec<S>, Vec<_>) = ended.into_iter().unzip();
    let mut results: Vec<(usize, T)> = results.into_iter().flatten().collect();
    results.sort_by_key(|(at, _)| *at);
    Ok((results.into_iter().map(|(_, result)| result).collect(), states))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_thread_to_be_had_the_work_is_done_on_this_one() {
        let done = AtomicUsize::new(0);
        // No system has room for such a stack.
        let parts = with_threads(8, Some(1 << 60), &|| done.fetch_add(1, Ordering::Relaxed));
        assert_eq!((parts.len(), done.load(Ordering::Relaxed)), (1, 1));
        assert_eq!(with_threads(3, None, &|| 7), [7, 7, 7]);
    }

    fn failure(at: usize) -> Errors {
        Diagnostic::error(ExecCode::Read, format!("number {at}")).into()
    }

    #[test]
    fn each_number_is_done_once_and_results_are_in_order() {
        for threads in [1, 3, 200] {
            let results = in_parallel(100, threads, &(), &|at| Ok(at * 2)).expect("nothing fails");
            assert_eq!(results, (0..100).map(|at| at * 2).collect::<Vec<_>>());
            let (_, states) = in_parallel_with(100, threads, &(), &|| 0, &|count, _| {
                *count += 1;
                Ok(())
            })
            .expect("nothing fails");
            assert_eq!(states.iter().sum::<usize>(), 100);
        }
        assert_eq!(in_parallel(0, 4, &(), &|at| Ok(at)).expect("nothing is done"), [] as [usize; 0]);
    }

    #[test]
    fn the_first_failure_ends_the_work() {
        let begun = AtomicUsize::new(0);
        let one = |at: usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            if at >= 3 { Err(failure(at)) } else { Ok(()) }
        };
        for threads in [1, 4] {
            begun.store(0, Ordering::Relaxed);
            let errors = in_parallel(1000, threads, &(), &one).expect_err("fails");
            assert_eq!(errors.diagnostics()[0].message, "number 3");
            assert!(begun.load(Ordering::Relaxed) <= 3 + threads);
        }
    }

    /// Stops after so many pieces of work.
    struct Stops(AtomicUsize);

    impl Progress for Stops {
        fn advance(&self, _bytes: u64) {}

        fn cancelled(&self) -> bool {
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
        }
    }

    #[test]
    fn cancelled_work_is_no_result() {
        for threads in [1, 4] {
            let done = AtomicUsize::new(0);
            let one = |_| Ok(done.fetch_add(1, Ordering::Relaxed));
            let errors = in_parallel(50, threads, &Stops(AtomicUsize::new(7)), &one).expect_err("stopped");
            assert!(errors.has(ExecCode::Cancelled));
            assert_eq!(done.load(Ordering::Relaxed), 7);
            // Nothing was left to stop.
            assert!(in_parallel(7, threads, &Stops(AtomicUsize::new(7)), &|at| Ok(at)).is_ok());
        }
    }
}
