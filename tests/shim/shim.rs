//! Faults on demand, for `tests/it/interrupt.rs`: a library that is loaded before libc and stands before its calls.
//!
//! `QKVCONV_FAULT` is `ACTION:N:CALLS`, and at the N-th of the calls named (with commas; N from 1) the action happens, once:
//!
//! | action | does |
//! |---|---|
//! | `signalS` | sends the process that signal and goes on with the call, if the process still can |
//! | `errorE` | the call fails with that error |
//! | `cut` | cuts the file of `QKVCONV_FAULT_FILE` to 10 bytes and goes on with the call |

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn getpid() -> c_int;
    fn kill(process: c_int, signal: c_int) -> c_int;
    fn truncate(path: *const c_char, length: c_long) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// The next library in the order of loading, as libc names it.
const NEXT: *mut c_void = -1_isize as *mut c_void;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns the error that a call is to fail with, if any.
fn fault(call: &[u8]) -> Option<c_int> {
    // SAFETY: the environment is not changed while the program runs.
    let text = unsafe { text(getenv(c"QKVCONV_FAULT".as_ptr()))? };
    let mut parts = text.splitn(3, |&byte| byte == b':');
    let (action, number, calls) = (parts.next()?, parts.next()?, parts.next()?);
    if !calls.split(|&byte| byte == b',').any(|name| name == call) {
        return None;
    }
    if COUNT.fetch_add(1, Ordering::SeqCst) + 1 != value(number)? {
        return None;
    }
    if let Some(error) = action.strip_prefix(b"error") {
        return value(error).map(|error| error as c_int);
    }
    // SAFETY: calls that take no memory of ours, but for a path that ends in a zero.
    unsafe {
        match action.strip_prefix(b"signal") {
            Some(signal) => kill(getpid(), value(signal)? as c_int),
            None => truncate(getenv(c"QKVCONV_FAULT_FILE".as_ptr()), 10),
        };
    }
    None
}

fn value(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// SAFETY: the pointer is null or to a text that ends in a zero and stays.
unsafe fn text(pointer: *const c_char) -> Option<&'static [u8]> {
    // SAFETY: as above.
    (!pointer.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(pointer).to_bytes() })
}

/// Defines a call that fails on demand and else does what libc's does.
macro_rules! before {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty, if $counts:expr) => {
        /// Stands before libc's function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            if $counts && let Some(error) = fault(stringify!($name).as_bytes()) {
                // SAFETY: libc gives each thread its place for the error.
                unsafe { *__errno_location() = error };
                return -1;
            }
            // SAFETY: libc's function has this signature.
            unsafe {
                let next = dlsym(NEXT, concat!(stringify!($name), "\0").as_ptr().cast());
                let next: unsafe extern "C" fn($($type),*) -> $result = std::mem::transmute(next);
                next($($argument),*)
            }
        }
    };
}

/// The flag of a file that is to be made.
const CREATE: c_int = 0o100;

before!(open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if flags & CREATE != 0);
before!(read(file: c_int, buffer: *mut c_void, count: usize) -> isize, if true);
before!(pread64(file: c_int, buffer: *mut c_void, count: usize, offset: i64) -> isize, if true);
// What is said to a person is none of the output.
before!(write(file: c_int, buffer: *const c_void, count: usize) -> isize, if file > 2);
before!(pwrite64(file: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize, if true);
before!(ftruncate64(file: c_int, length: i64) -> c_int, if true);
before!(fsync(file: c_int) -> c_int, if true);
before!(rename(from: *const c_char, to: *const c_char) -> c_int, if true);
before!(linkat(from: c_int, path: *const c_char, to: c_int, name: *const c_char, flags: c_int) -> c_int, if true);
before!(unlink(path: *const c_char) -> c_int, if true);
before!(unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int, if true);
before!(mkdir(path: *const c_char, mode: c_uint) -> c_int, if true);
before!(rmdir(path: *const c_char) -> c_int, if true);
before!(chmod(path: *const c_char, mode: c_uint) -> c_int, if true);
