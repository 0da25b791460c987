//! Runs of the program on mutants, and what is kept of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kit::Run;

/// Texts that only read-back writes.
const READ_BACK: [&str; 5] = [
    "elements differ",
    "elements that must be zero are not",
    "bytes of a tensor that passes through differ",
    "the target lacks this tensor",
    "nothing in the source gives this tensor",
];
/// The beginning of what read-back writes of a wrong type or shape.
const READ_BACK_SHAPE: &str = "error[verify/differs]: expected ";
/// What the computation of both files writes.
pub(crate) const FILES: &str = "attention computed from the two files differs";
/// What the computation with random weights writes.
pub(crate) const RANDOM: &str = "attention computed from random weights put through the plan differs";
/// What it writes where a tensor is missing or has a wrong shape.
const NOT_COMPUTED: &str = "the module cannot be computed as its layout says";

/// The parts of the verification that found a mutant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caught {
    pub(crate) read_back: bool,
    pub(crate) files: bool,
    pub(crate) random: bool,
}

impl Caught {
    pub(crate) fn by(run: &Run) -> Caught {
        let says = |text: &str| run.stderr.contains(text);
        Caught {
            read_back: READ_BACK.iter().any(|text| says(text)) || says(READ_BACK_SHAPE),
            files: says(FILES) || says(NOT_COMPUTED),
            random: says(RANDOM),
        }
    }

    pub(crate) fn forward(self) -> bool {
        self.files || self.random
    }

    pub(crate) fn names(self) -> String {
        let parts = [(self.read_back, "read-back"), (self.files, "files"), (self.random, "random weights")];
        let names: Vec<&str> = parts.iter().filter(|(caught, _)| *caught).map(|(_, name)| *name).collect();
        if names.is_empty() { "nothing".into() } else { names.join(", ") }
    }
}

/// The line of one mutant.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) expected: &'static str,
    pub(crate) caught: String,
    /// Why the mutant does not count as caught as it should be.
    pub(crate) escaped: Option<String>,
}

/// Tries all mutants on two threads; the lines are in the mutants' order.
pub(crate) fn all<M: Sync>(mutants: &[M], run: impl Fn(&M) -> Line + Sync) -> Vec<Line> {
    let next = AtomicUsize::new(0);
    let lines = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((at, mutant)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    mutants.get(at).map(|mutant| (at, mutant))
                } {
                    let line = run(mutant);
                    lines.lock().expect("no thread panicked").push((at, line));
                }
            });
        }
    });
    let mut lines = lines.into_inner().expect("no thread panicked");
    lines.sort_by_key(|(at, _)| *at);
    lines.into_iter().map(|(_, line)| line).collect()
}

/// Returns whether a diagnostic of the run names the tensor, alone or folded with others as `layers.{0..1}.w (2)`.
pub(crate) fn names(run: &Run, key: &str) -> bool {
    let written = run.stderr.lines().filter_map(|line| line.split_once("= tensor: ").map(|(_, name)| name));
    let mut written = written.map(|name| name.split_once(" (").map_or(name, |(name, _)| name));
    written.any(|pattern| matches(pattern, key))
}

fn matches(pattern: &str, key: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('{') else { return pattern == key };
    let Some((numbers, after)) = rest.split_once('}') else { return false };
    let Some(rest) = key.strip_prefix(before) else { return false };
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let Ok(number) = rest[..digits].parse::<u64>() else { return false };
    let among = numbers.split(',').any(|range| {
        let (first, last) = range.split_once("..").unwrap_or((range, range));
        let bounds = [first, last].map(str::parse::<u64>);
        matches!(bounds, [Ok(first), Ok(last)] if (first..=last).contains(&number))
    });
    among && matches(after, &rest[digits..])
}
