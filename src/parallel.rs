//! The same work on many things, by several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::diag::{Diagnostic, Errors};
use crate::progress::Progress;

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
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
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
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    let done = results.into_iter().map(|(_, result)| result).collect::<Result<Vec<T>, Errors>>()?;
    if done.len() < count {
        return Err(Diagnostic::error("exec/cancelled", "stopped before the work was done").into());
    }
    Ok((done, states.into_inner().unwrap_or_else(PoisonError::into_inner)))
}
