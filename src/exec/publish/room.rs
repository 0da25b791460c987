//! How much room an output needs.

use std::fs;
use std::path::Path;

use super::{Staging, kept};
use crate::diag::{Diagnostic, Errors, PublishCode};
use crate::format::output::{Content, OutputFile, OutputLayout};

impl Staging {
    /// Makes sure that the output fits into its file system, unless the caller knows better.
    pub(super) fn check_room(&self, layout: &OutputLayout) -> Result<(), Errors> {
        if self.options.low_space {
            return Ok(());
        }
        check_space(free_space(&self.work.new_folder()), self.destination.path(), self.needed(layout))
    }

    /// Returns the bytes that are to be written, without the files that an earlier run has finished. What is replaced stays
    /// until the new files are whole, so that its room does not count.
    fn needed(&self, layout: &OutputLayout) -> u64 {
        let is_open =
            |file: &&OutputFile| kept::whole(&self.work, &self.staged_name(&file.name), file.size).is_none();
        let open = layout.files.iter().filter(is_open);
        let companions = layout.companions.iter().map(|companion| match &companion.content {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Copy(from, _) => fs::metadata(from).map_or(0, |metadata| metadata.len()),
        });
        open.map(|file| file.size).chain(companions).fold(0, u64::saturating_add)
    }
}

/// Makes sure that so many bytes fit into the free space, before any of them is written; `destination` is what the user
/// knows of it.
///
/// Where the file system does not tell its room, or keeps less than it is given, the writes themselves will tell.
fn check_space(free: Option<u64>, destination: &Path, needed: u64) -> Result<(), Errors> {
    match free {
        Some(free) if needed > free => {
            let message = "the output does not fit: the file system has not as much room";
            Err(Diagnostic::error(PublishCode::Space, message)
                .file(destination)
                .expected(format!("{needed} bytes free, the size of the output"))
                .found(format!("{free} bytes free"))
                .help("free some space, or write to another disk; if the file system has more room than it tells, `--allow low-space` writes there")
                .into())
        }
        _ => Ok(()),
    }
}

/// Returns how many bytes the user may write to the file system of a folder.
#[cfg(target_os = "linux")]
fn free_space(folder: &Path) -> Option<u64> {
    /// File systems that may compress or share what is written (linux, `include/uapi/linux/magic.h`; openzfs/zfs,
    /// `include/sys/zfs_vfsops_os.h`; koverstreet/bcachefs).
    const SHRINK: [u64; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];
    let told = rustix::fs::statfs(folder).ok()?;
    #[allow(clippy::unnecessary_cast, reason = "the types differ between processors")]
    let (kind, block) = (told.f_type as u64 & 0xffff_ffff, u64::try_from(told.f_frsize).ok()?);
    // One that has no blocks at all does not count them.
    (told.f_blocks > 0 && block > 0 && !SHRINK.contains(&kind)).then(|| told.f_bavail.saturating_mul(block))
}

/// Returns how many bytes the user may write to the file system of a folder; the standard library cannot tell here.
#[cfg(not(target_os = "linux"))]
fn free_space(_folder: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_larger_than_the_free_space_is_refused() {
        let check = |free, needed| check_space(free, Path::new("out"), needed);
        assert!(check(Some(10), 10).is_ok() && check(None, u64::MAX).is_ok());
        let errors = check(Some(10), 11).expect_err("too large");
        let [error] = errors.diagnostics() else { panic!("{errors}") };
        assert_eq!((error.code.as_str(), error.file.as_deref()), ("publish/space", Some(Path::new("out"))));
        let text = format!("{error:?}");
        for part in ["11 bytes free", "10 bytes free", "--allow low-space"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_without_blocks_tells_no_room() {
        assert_eq!(free_space(Path::new("/proc")), None);
        assert_eq!(free_space(Path::new("/nowhere/at/all")), None);
    }
}
