//! The same work on many things, by several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
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
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<(usize, Result<T, Errors>)>> = Mutex::new(Vec::with_capacity(count));
    let states: Mutex<Vec<S>> = Mutex::new(Vec::new());
    with_threads(threads.min(count), None, &|| {
        let mut mine = state();
        while !failed.load(Ordering::Relaxed) && !progress.cancelled() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                break;
            }
            let result = one(&mut mine, at);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
        states.lock().unwrap_or_else(PoisonError::into_inner).push(mine);
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    let done = results.into_iter().map(|(_, result)| result).collect::<Result<Vec<T>, Errors>>()?;
    if done.len() < count {
        return Err(Diagnostic::error(ExecCode::Cancelled, "stopped before the work was done").into());
    }
    Ok((done, states.into_inner().unwrap_or_else(PoisonError::into_inner)))
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
}
