//! The same work on many things, by several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::diag::{Diagnostic, Errors};
use crate::progress::Progress;

/// Does `one` for every number below `count`; the results are in order.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    threads: usize,
    progress: &dyn Progress,
    one: &(dyn Fn(usize) -> T + Sync),
) -> Result<Vec<T>, Errors> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || progress.cancelled() {
                        break;
                    }
                    let result = one(at);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if results.len() < count {
        return Err(Diagnostic::error("exec/cancelled", "stopped while verifying").into());
    }
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}
