//! Progress on a terminal, and the wish to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use qkvconv::progress::Progress;

/// How a process ends that a signal stopped, as shells count it.
pub(super) const INTERRUPTED_CODE: i32 = 130;

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes ctrl-c and a termination signal end the work cleanly, what is temporary removed; the second one ends the process
/// at once, and the next run to that destination removes what is temporary.
#[cfg(unix)]
pub(crate) fn catch_interrupts() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::flag::{register, register_conditional_shutdown};
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal sets the flag after it was looked at. No thread is needed, which there may be none
        // of. Where this fails a signal still ends the program; only the temporary file would stay.
        let _ = register_conditional_shutdown(signal, INTERRUPTED_CODE, Arc::clone(&INTERRUPTED))
            .and_then(|_| register(signal, Arc::clone(&INTERRUPTED)));
    }
}

/// Makes ctrl-c end the work cleanly, what is temporary removed; the second one ends the process at once, and the next run
/// to that destination removes what is temporary.
#[cfg(not(unix))]
pub(crate) fn catch_interrupts() {
    // Without the handler a signal still ends the program; only the temporary file would stay.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            #[allow(clippy::exit, reason = "the work does not end when it is asked to")]
            std::process::exit(INTERRUPTED_CODE);
        }
    });
}

/// Makes a write beyond the largest size of a file (`ulimit -f`) fail with an error that can be told; by itself the signal
/// ends the process.
pub(super) fn survive_large_files() {
    #[cfg(unix)]
    {
        // A handler of any kind does: the write returns EFBIG then.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    }
}

/// A bar with bytes, rate and remaining time; hidden where there is no terminal.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new(bytes: u64, visible: bool) -> Bar {
        let target =
            if visible { ProgressDrawTarget::stderr_with_hz(20) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(bytes), target);
        let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Bar(bar)
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    fn cancelled(&self) -> bool {
        INTERRUPTED.load(Ordering::Relaxed)
    }
}
