//! The threads of the arithmetic, where the system has any.

use std::error::Error;
use std::sync::OnceLock;

/// Makes sure that the arithmetic of this thread finds threads to use: it takes those of rayon for granted and panics
/// where the system gives none. Then this thread alone does it.
pub(super) fn ensure() {
    static REFUSED: OnceLock<bool> = OnceLock::new();
    let refused = REFUSED.get_or_init(|| {
        // A refusal of the system has a source; that there are such threads already is an error without one.
        rayon::ThreadPoolBuilder::new().build_global().is_err_and(|error| error.source().is_some())
    });
    if *refused {
        // Fails where this thread has done so before.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    }
}
