//! Reading and writing a file at given places, by any number of threads at once; and files that are open only while they
//! are used, since a system opens so many at once and a checkpoint may have more.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

/// Fills the buffer from that byte of a file on; the file's own position plays no part.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

/// Fills the buffer from that byte of a file on; the file's own position plays no part.
#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !buffer.is_empty() {
        match file.seek_read(buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                offset += count as u64;
                buffer = &mut buffer[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all bytes from that byte of a file on; the file's own position plays no part.
#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Writes all bytes from that byte of a file on; the file's own position plays no part.
#[cfg(windows)]
pub(crate) fn write_all_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                offset += count as u64;
                bytes = &bytes[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A file of which the handle is given back when many others are open, and which is opened again when it is needed.
#[derive(Debug)]
pub(crate) struct Handle(Arc<Slot>);

#[derive(Debug)]
struct Slot {
    path: PathBuf,
    writes: bool,
    seen: Seen,
    file: Mutex<Option<Arc<File>>>,
}

/// What tells that a path still leads to the same file.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Device and inode, where the system tells them.
    place: Option<(u64, u64)>,
    /// Size and time of change of a file that is only read.
    content: Option<(u64, Option<SystemTime>)>,
}

impl Seen {
    fn of(metadata: &Metadata, writes: bool) -> Seen {
        #[cfg(unix)]
        let place = {
            use std::os::unix::fs::MetadataExt;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let place = None;
        Seen { place, content: (!writes).then(|| (metadata.len(), metadata.modified().ok())) }
    }
}

/// The files that are open, those opened first in front.
static HELD: Mutex<VecDeque<Weak<Slot>>> = Mutex::new(VecDeque::new());

/// Returns how many files are open at once, beside the few that are always: a part of what the system allows.
fn most() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        #[cfg(target_os = "linux")]
        let allowed =
            rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        #[cfg(not(target_os = "linux"))]
        let allowed = 256;
        usize::try_from(allowed / 4).unwrap_or(usize::MAX).clamp(4, 512)
    })
}

impl Handle {
    /// Takes a file that was opened under that path.
    ///
    /// # Errors
    /// Returns what the system reports.
    pub(crate) fn new(path: &Path, file: File, writes: bool) -> io::Result<Handle> {
        let seen = Seen::of(&file.metadata()?, writes);
        let slot = Slot { path: path.to_owned(), writes, seen, file: Mutex::new(Some(Arc::new(file))) };
        let handle = Handle(Arc::new(slot));
        handle.hold();
        Ok(handle)
    }

    /// Returns the open file.
    ///
    /// # Errors
    /// Returns what the system reports where it is opened again, and an error where another file, or another content, is
    /// there by now.
    pub(crate) fn file(&self) -> io::Result<Arc<File>> {
        let slot = &*self.0;
        let mut held = slot.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*held {
            return Ok(Arc::clone(file));
        }
        let replaced =
            || io::Error::other("another file is there, or its content changed, since it was opened");
        // A pipe that took its place would be waited for.
        if !std::fs::metadata(&slot.path)?.is_file() {
            return Err(replaced());
        }
        let file = File::options().read(true).write(slot.writes).open(&slot.path)?;
        if Seen::of(&file.metadata()?, slot.writes) != slot.seen {
            return Err(replaced());
        }
        let file = Arc::new(file);
        *held = Some(Arc::clone(&file));
        drop(held);
        self.hold();
        Ok(file)
    }

    /// Notes that the file is open, and closes others where there are too many.
    fn hold(&self) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        held.push_back(Arc::downgrade(&self.0));
        if held.len() <= most() {
            return;
        }
        held.retain(|slot| slot.strong_count() > 0);
        for _ in most()..held.len() {
            let Some(slot) = held.pop_front() else { break };
            let Some(open) = slot.upgrade() else { continue };
            match open.file.try_lock() {
                // Who uses it holds it still, for this one call.
                Ok(mut file) => *file = None,
                // It is being opened again at this moment.
                Err(_) => held.push_back(slot),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open(handle: &Handle) -> bool {
        handle.0.file.lock().expect("no panic").is_some()
    }

    #[test]
    fn files_beyond_the_most_are_closed_and_opened_again() {
        let folder = tempfile::tempdir().expect("folder");
        let count = most() + 9;
        let handles: Vec<Handle> = (0..count)
            .map(|number| {
                let path = folder.path().join(number.to_string());
                std::fs::write(&path, number.to_string()).expect("writes");
                Handle::new(&path, File::open(&path).expect("opens"), false).expect("takes it")
            })
            .collect();
        let open = handles.iter().filter(|handle| is_open(handle)).count();
        assert!(open <= most(), "{open} of {count} are open");
        for (number, handle) in handles.iter().enumerate() {
            let wanted = number.to_string();
            let mut found = vec![0; wanted.len()];
            read_exact_at(&handle.file().expect("opens"), 0, &mut found).expect("reads");
            assert_eq!(found, wanted.as_bytes());
        }
        // Other tests may have opened files in the meantime: at least those here are closed that others pushed out.
        let closed = handles.iter().position(|handle| !is_open(handle)).expect("one is closed");
        let path = folder.path().join(closed.to_string());
        std::fs::remove_file(&path).expect("removes");
        std::fs::write(&path, "another").expect("writes");
        let error = handles[closed].file().expect_err("is another file");
        assert!(error.to_string().contains("another file"), "{error}");
    }
}
