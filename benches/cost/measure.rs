//! Runs of the tool, and copies of files to hold them against.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What one run took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// From the start to the end.
    pub(crate) wall: Duration,
    /// Of all threads, in the program and in the system; counted in hundredths of a second.
    pub(crate) cpu: Duration,
    /// The most anonymous memory (RssAnon) that was seen, in bytes.
    pub(crate) anonymous: u64,
}

impl Taken {
    /// Returns the less of each: what else ran on the machine only adds.
    pub(crate) fn least(self, other: Taken) -> Taken {
        Taken {
            wall: self.wall.min(other.wall),
            cpu: self.cpu.min(other.cpu),
            // Seen from time to time, so the larger is nearer to the truth.
            anonymous: self.anonymous.max(other.anonymous),
        }
    }
}

/// Runs the tool; its exit status must be `status`.
pub(crate) fn run<S: AsRef<OsStr>>(folder: &Path, arguments: &[S], status: i32) -> Taken {
    let log = folder.join("stderr");
    let before = cpu();
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_qkvconv"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).expect("a log"))
        .spawn()
        .expect("the tool starts");
    let (ended, anonymous) = (AtomicBool::new(false), AtomicU64::new(0));
    let status_file = format!("/proc/{}/status", child.id());
    let ended_with = thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                anonymous.fetch_max(anonymous_of(&status_file), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        let ended_with = child.wait().expect("the tool ends");
        ended.store(true, Ordering::Relaxed);
        ended_with
    });
    let wall = start.elapsed();
    if ended_with.code() != Some(status) {
        let arguments: Vec<_> = arguments.iter().map(|one| one.as_ref().to_string_lossy()).collect();
        let said = fs::read_to_string(&log).unwrap_or_default();
        panic!("{} ended with {ended_with}:\n{said}", arguments.join(" "));
    }
    Taken { wall, cpu: cpu() - before, anonymous: anonymous.into_inner() }
}

/// Returns the anonymous memory of a process, in bytes; 0 when it has ended.
fn anonymous_of(status_file: &str) -> u64 {
    let Ok(text) = fs::read_to_string(status_file) else { return 0 };
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).map_or(0, |kib: u64| kib << 10)
}

/// Returns the processor time of this process and of all its children that have ended (proc(5), `utime` to `cstime` of
/// /proc/self/stat, in clock ticks, of which Linux has 100 a second for programs).
fn cpu() -> Duration {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = behind_name.split_whitespace().skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

/// Copies a file as `cp` does, by the system's own means with one thread.
pub(crate) fn copy(from: &Path, to: &Path) -> Taken {
    let before = cpu();
    let start = Instant::now();
    fs::copy(from, to).expect("is copied");
    Taken { wall: start.elapsed(), cpu: cpu() - before, anonymous: 0 }
}

/// Copies a file with two threads that read and write 1 MiB at a time.
pub(crate) fn copy_by_two(from: &Path, to: &Path) -> Taken {
    const CHUNK: u64 = 1 << 20;
    let before = cpu();
    let start = Instant::now();
    let (from, to) = (File::open(from).expect("opens"), File::create(to).expect("is made"));
    let length = from.metadata().expect("metadata").len();
    to.set_len(length).expect("has room");
    let next = AtomicU64::new(0);
    let work = || {
        let mut buffer = vec![0; CHUNK as usize];
        loop {
            let at = next.fetch_add(CHUNK, Ordering::Relaxed);
            if at >= length {
                break;
            }
            let chunk = &mut buffer[..CHUNK.min(length - at) as usize];
            from.read_exact_at(chunk, at).expect("reads");
            to.write_all_at(chunk, at).expect("writes");
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    Taken { wall: start.elapsed(), cpu: cpu() - before, anonymous: 0 }
}
