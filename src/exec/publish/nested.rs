//! Output files that lie in folders of the output, `mp_rank_00/model_optim_rng.pt`.
//!
//! In the folder in which an output is made each file lies flat, its path written as one name. Only where it is published
//! do its folders come to be, and never through a link.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::system::{appeared, io_error};
use crate::diag::Errors;

/// Returns the name that a file goes by in the folder in which it is made.
pub(super) fn flat(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

/// Returns whether a file lies in a folder of the output.
pub(super) fn is_nested(name: &str) -> bool {
    name.contains('/')
}

/// Returns whether a name is a path of plain names, which cannot lead out of a folder.
pub(super) fn is_plain(name: &str) -> bool {
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
    !name.is_empty()
        && Path::new(name).components().all(is_name)
        && name.split('/').all(|part| !part.is_empty() && part != ".")
}

/// Returns the folders that a file needs inside another, the outermost first.
pub(super) fn folders_of(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('/').map(|(at, _)| &name[..at])
}

/// Returns what stands in the way of a file's folders, if anything: a file, or a link.
pub(super) fn in_the_way(folder: &Path, name: &str) -> Option<PathBuf> {
    let paths = folders_of(name).map(|inner| folder.join(inner));
    paths.into_iter().find(|path| path.symlink_metadata().is_ok_and(|there| !there.is_dir()))
}

/// Makes the folders that a file needs and that are not there; notes those that were made.
pub(super) fn make_folders(folder: &Path, name: &str, made: &mut Vec<PathBuf>) -> Result<(), Errors> {
    if let Some(path) = in_the_way(folder, name) {
        return Err(appeared(&path).into());
    }
    for inner in folders_of(name) {
        let path = folder.join(inner);
        match fs::create_dir(&path) {
            Ok(()) => made.push(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error(&path, "create it", &error).into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_plain_names_and_go_by_one_name_each() {
        for name in ["a", "a/b.pt", "mp_rank_00/model_optim_rng.pt", "%2F"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/./b"] {
            assert!(!is_plain(name), "{name}");
        }
        assert_eq!(flat("a/b.pt"), "a%2Fb.pt");
        assert_ne!(flat("a/b"), flat("a%2Fb"));
        assert_eq!(folders_of("a/b/c").collect::<Vec<_>>(), ["a", "a/b"]);
    }
}
