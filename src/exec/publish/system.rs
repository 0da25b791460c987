//! What the file system is asked for, and what its refusals are called.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::PublishOptions;
use crate::diag::{Diagnostic, Errors, PublishCode};

/// The way out where a file may not grow as large as it must.
pub(in crate::exec) const LARGER_FILES: &str = "raise the largest size of a file (`ulimit -f`), write to another file system, or write several files (`--max-shard-size`)";

/// Describes a failure of the file system while writing; `action` completes "cannot …".
pub fn io_error(path: &Path, action: &str, error: &io::Error) -> Diagnostic {
    let diagnostic =
        Diagnostic::error(PublishCode::Io, format!("cannot {action}: {error}")).file(&named(path));
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            diagnostic.help("free some space, or write to another disk")
        }
        io::ErrorKind::FileTooLarge => diagnostic.help(LARGER_FILES),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            diagnostic.help("write to a folder that you may write to")
        }
        _ => diagnostic,
    }
}

/// The folder in which Linux shows the open files of this process.
const HANDLES: &str = "/proc/self/fd";

/// Returns a path to a folder that leads through its handle, so that it stays this folder whatever is renamed in the
/// meantime; its own path where the system has no such paths.
pub(super) fn through(handle: &File, path: &Path) -> PathBuf {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let own = Path::new(HANDLES).join(handle.as_raw_fd().to_string());
        let same = |there: &fs::Metadata| handle.metadata().is_ok_and(|it| identity(&it) == identity(there));
        if fs::metadata(&own).is_ok_and(|there| same(&there)) {
            return own;
        }
    }
    let _ = handle;
    path.to_owned()
}

/// Returns the path that a person knows of one that leads through a handle.
pub(super) fn named(path: &Path) -> PathBuf {
    let Ok(rest) = path.strip_prefix(HANDLES) else { return path.to_owned() };
    let mut parts = rest.components();
    let Some(handle) = parts.next() else { return path.to_owned() };
    match fs::read_link(Path::new(HANDLES).join(handle)) {
        Ok(folder) => folder.join(parts.as_path()),
        Err(_) => path.to_owned(),
    }
}

/// Options that open no link under the last name of a path.
pub(super) fn no_link() -> fs::OpenOptions {
    let mut options = File::options();
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        // Nor is a pipe waited for.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    }
    options.read(true);
    options
}

/// Opens a folder, not through a link.
pub(super) fn open_folder(path: &Path) -> io::Result<File> {
    #[cfg(windows)]
    let folder = {
        use std::os::windows::fs::OpenOptionsExt;
        // FILE_FLAG_BACKUP_SEMANTICS opens folders, FILE_FLAG_OPEN_REPARSE_POINT no links.
        File::options().read(true).custom_flags(0x0200_0000 | 0x0020_0000).open(path)?
    };
    #[cfg(not(windows))]
    let folder = no_link().open(path)?;
    if !path.symlink_metadata()?.is_dir() || !folder.metadata()?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(folder)
}

/// Copies a regular file of at most so many bytes, piece by piece; returns its size.
pub(super) fn copy(from: &Path, mut to: &File, most: u64) -> io::Result<u64> {
    let file = no_link().open(from)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let copied = io::copy(&mut file.take(most.saturating_add(1)), &mut to)?;
    if copied > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it has grown beyond the limit"));
    }
    Ok(copied)
}

/// Returns whether a file belongs to the user who runs the program.
#[cfg(target_os = "linux")]
pub(super) fn is_own(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.uid() == rustix::process::geteuid().as_raw()
}

/// Returns whether a file belongs to the user who runs the program; the standard library cannot tell here.
#[cfg(not(target_os = "linux"))]
pub(super) fn is_own(_metadata: &fs::Metadata) -> bool {
    true
}

/// What nobody can know of a file or a folder before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    /// Device and inode, where the system tells them.
    place: Option<(u64, u64)>,
    /// When it was made, in nanoseconds since 1970, where the file system tells it.
    made: Option<u64>,
}

impl Stamp {
    /// Returns what tells this from every other.
    pub(super) fn of(metadata: &fs::Metadata) -> Stamp {
        let made = metadata.created().ok().and_then(|made| made.duration_since(std::time::UNIX_EPOCH).ok());
        Stamp { place: identity(metadata), made: made.and_then(|made| u64::try_from(made.as_nanos()).ok()) }
    }

    /// Returns that of the file or link with that name.
    pub(super) fn at(path: &Path) -> Option<Stamp> {
        path.symlink_metadata().ok().map(|there| Stamp::of(&there))
    }
}

/// Gives a file the mode of the one that it replaces and, as far as that is permitted, its owner and attributes.
#[cfg(target_os = "linux")]
pub(super) fn keep_attributes(new: &Path, old: &Path) {
    use std::os::unix::fs::MetadataExt;
    let Ok(there) = old.symlink_metadata() else { return };
    let Ok(own) = new.symlink_metadata() else { return };
    if !there.is_file() || !own.is_file() {
        return;
    }
    // None of this is worth an error: the content is what counts.
    if (there.uid(), there.gid()) != (own.uid(), own.gid()) {
        let owner = std::os::unix::fs::lchown(new, Some(there.uid()), Some(there.gid()));
        if owner.is_err() {
            let _ = std::os::unix::fs::lchown(new, None, Some(there.gid()));
        }
    }
    let mut names = vec![0_u8; 1 << 16];
    let length = rustix::fs::llistxattr(old, &mut names[..]).unwrap_or(0);
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; 1 << 16];
        if let Ok(length) = rustix::fs::lgetxattr(old, name, &mut value[..]) {
            let flags = rustix::fs::XattrFlags::empty();
            let _ = rustix::fs::lsetxattr(new, name, &value[..length], flags);
        }
    }
    if there.mode() != own.mode() {
        let _ = fs::set_permissions(new, there.permissions());
    }
}

/// Gives a file the permissions of the one that it replaces.
#[cfg(not(target_os = "linux"))]
pub(super) fn keep_attributes(new: &Path, old: &Path) {
    if let Ok(there) = old.symlink_metadata()
        && there.is_file()
    {
        let _ = fs::set_permissions(new, there.permissions());
    }
}

/// Describes why a file or folder did not get its name.
pub(super) fn name_error(path: &Path, error: &io::Error) -> Diagnostic {
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory => {
            appeared(path)
        }
        _ => io_error(path, "rename the finished output to it", error),
    }
}

/// Describes a file that was not there when the conversion began.
pub(super) fn appeared(path: &Path) -> Diagnostic {
    exists(path, "it appeared while the conversion ran")
}

/// Describes a file that is in the way, and that may be replaced.
pub(super) fn exists(path: &Path, message: impl Into<String>) -> Diagnostic {
    let diagnostic = Diagnostic::error(PublishCode::Exists, message).file(path);
    diagnostic.help("give `--force` to replace it, or write to another place")
}

/// Gives a file its name in one step. What has the name already is replaced, or is the error
/// [`io::ErrorKind::AlreadyExists`].
pub(super) fn put(from: &Path, to: &Path, replace: bool) -> io::Result<()> {
    if replace {
        return fs::rename(from, to);
    }
    match rename_new(from, to) {
        // A file system without such a rename.
        Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        result => result,
    }
}

#[cfg(target_os = "linux")]
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    rename_with(from, to, rustix::fs::RenameFlags::NOREPLACE)
}

#[cfg(not(target_os = "linux"))]
fn rename_new(_from: &Path, _to: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Exchanges what two names stand for, in one step.
#[cfg(target_os = "linux")]
pub(super) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    rename_with(one, other, rustix::fs::RenameFlags::EXCHANGE)
}

/// Exchanges what two names stand for, in one step.
#[cfg(not(target_os = "linux"))]
pub(super) fn exchange(_one: &Path, _other: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
fn rename_with(from: &Path, to: &Path, flags: rustix::fs::RenameFlags) -> io::Result<()> {
    use rustix::fs::{CWD, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, flags)?)
}

/// Returns whether a folder has access lists or attributes of its own, which a new folder would lack.
#[cfg(target_os = "linux")]
pub(super) fn has_attributes(folder: &Path) -> bool {
    let mut names = vec![0_u8; 4096];
    let length = match rustix::fs::listxattr(folder, &mut names[..]) {
        Ok(length) => length,
        // A file system without attributes.
        Err(error) => return error != rustix::io::Errno::NOTSUP,
    };
    // The system gives this one to every file.
    names[..length].split(|&byte| byte == 0).any(|name| !name.is_empty() && name != b"security.selinux")
}

/// Returns whether a folder has access lists or attributes of its own, which a new folder would lack.
#[cfg(not(target_os = "linux"))]
pub(super) fn has_attributes(_folder: &Path) -> bool {
    true
}

/// Returns the folder that holds a path.
pub(super) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        // Only `/` and the like have none, and they exist.
        parent => parent.unwrap_or(path).to_owned(),
    }
}

pub(super) fn existing_folder(folder: &Path) -> Result<PathBuf, Errors> {
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(folder.to_owned()),
        Ok(_) => Err(Diagnostic::error(PublishCode::NotAFolder, "it is not a folder").file(folder).into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let diagnostic =
                Diagnostic::error(PublishCode::NoFolder, "the folder for the output does not exist");
            Err(diagnostic.file(folder).help("create it first").into())
        }
        Err(error) => Err(io_error(folder, "look at the folder", &error).into()),
    }
}

/// Returns whether something has that name, be it a dangling link.
pub(super) fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Returns whether two paths lead to one file, through links of any kind.
#[cfg(unix)]
pub(super) fn is_same(first: &Path, second: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().as_ref().and_then(identity);
    identity(first).is_some_and(|first| Some(first) == identity(second))
}

/// Returns whether two paths lead to one file, through symbolic links.
#[cfg(not(unix))]
pub(super) fn is_same(first: &Path, second: &Path) -> bool {
    first.canonicalize().is_ok_and(|first| second.canonicalize().is_ok_and(|second| first == second))
}

/// Returns what tells a file from every other, whatever its name: device and inode.
#[cfg(unix)]
pub(super) fn identity(metadata: &fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

/// Returns what tells a file from every other, whatever its name; the standard library has nothing of the kind here.
#[cfg(not(unix))]
pub(super) fn identity(_metadata: &fs::Metadata) -> Option<(u64, u64)> {
    None
}

/// Takes an error of that kind for success.
pub(super) fn unless(done: io::Result<()>, kind: io::ErrorKind) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != kind => Err(error),
        _ => Ok(()),
    }
}

/// Waits until the names in a folder are on the disk, where that is asked for.
pub(super) fn sync_folder(folder: &Path, options: PublishOptions) -> Result<(), Errors> {
    // Windows opens no folder as a file, and writes names through its journal.
    if !options.sync || cfg!(windows) {
        return Ok(());
    }
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| io_error(folder, "write the folder to the disk", &error).into())
}
