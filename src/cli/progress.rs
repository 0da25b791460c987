//! Progress on a terminal, and the wish to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use qkvconv::progress::Progress;

/// How a process ends that a signal stopped, as shells count it.
pub(super) const INTERRUPTED_CODE: i32 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes ctrl-c and a termination signal end the work cleanly, what is temporary removed; the second one ends the process
/// at once, and the next run to that destination removes what is temporary.
pub(crate) fn catch_interrupts() {
    // Without the handler a signal still ends the program; only the temporary file would stay.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            #[allow(clippy::exit, reason = "the work does not end when it is asked to")]
            std::process::exit(INTERRUPTED_CODE);
        }
    });
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
        bar.enable_steady_tick(Duration::from_millis(250));
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
