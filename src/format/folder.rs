//! Finding the checkpoint in a folder.

use std::path::{Path, PathBuf};

use super::{OpenOptions, io_error, shards, shown};
use crate::diag::{Diagnostic, Errors};

/// Returns the file of a folder that stands for its checkpoint: an index, or the only safetensors file.
pub(super) fn checkpoint_in(folder: &Path, options: &OpenOptions) -> Result<PathBuf, Errors> {
    let names = names_in(folder)?;
    let indexes = ending_in(&names, shards::INDEX_ENDING);
    let files = ending_in(&names, ".safetensors");
    let name = match (&indexes[..], &files[..]) {
        (indexes, _) if indexes.contains(&shards::INDEX_NAME) => shards::INDEX_NAME,
        ([index], _) => index,
        ([], [file]) => file,
        ([], []) => return Err(nothing(folder, &names).into()),
        ([], several) | (several, _) => {
            let kind = if indexes.is_empty() { "safetensors files and no index" } else { "indexes" };
            let message = format!("the folder holds {} {kind}: {}", several.len(), list(several));
            let help = "name one of the files instead of the folder";
            return Err(Diagnostic::error("format/ambiguous-folder", message).file(folder).help(help).into());
        }
    };
    let path = folder.join(name);
    // An index may be a link anywhere: its text names files, and those are checked on their own.
    if indexes.is_empty() {
        shards::check_link(folder, &path, name, options)?;
    }
    Ok(path)
}

/// Returns all safetensors files of a folder, by name.
pub(super) fn files_of(folder: &Path, options: &OpenOptions) -> Result<Vec<(String, PathBuf)>, Errors> {
    let names = names_in(folder)?;
    let files = ending_in(&names, ".safetensors");
    if files.is_empty() {
        return Err(nothing(folder, &names).into());
    }
    files
        .into_iter()
        .map(|name| {
            let path = folder.join(name);
            shards::check_link(folder, &path, name, options)?;
            Ok((name.to_owned(), path))
        })
        .collect()
}

/// Returns the names of a folder's visible entries, sorted.
fn names_in(folder: &Path) -> Result<Vec<String>, Errors> {
    let fail = |error| io_error(folder, "list the folder", &error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        if let Ok(name) = entry.map_err(fail)?.file_name().into_string()
            // `._model.safetensors` is what macOS leaves beside a file on foreign disks.
            && !name.starts_with('.')
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn ending_in<'a>(names: &'a [String], ending: &str) -> Vec<&'a str> {
    names.iter().map(String::as_str).filter(|name| name.ends_with(ending)).collect()
}

fn list(names: &[&str]) -> String {
    const MOST: usize = 20;
    let mut shown_names: Vec<String> =
        names.iter().take(MOST).map(|name| format!("`{}`", shown(name))).collect();
    if names.len() > MOST {
        shown_names.push(format!("and {} more", names.len() - MOST));
    }
    shown_names.join(", ")
}

fn nothing(folder: &Path, names: &[String]) -> Diagnostic {
    let others: Vec<&str> = [".bin", ".pt", ".pth", ".ckpt", ".h5", ".npz", ".gguf"]
        .iter()
        .flat_map(|end| ending_in(names, end))
        .collect();
    let diagnostic =
        Diagnostic::error("format/no-checkpoint", "the folder holds no safetensors file and no index")
            .file(folder);
    if others.is_empty() {
        diagnostic.help("name the folder that holds the weights, or a file")
    } else {
        diagnostic.found(list(&others)).help("save the weights with safetensors first, or name a file")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;

    fn one(key: &str) -> Vec<u8> {
        file_bytes(&format!(r#"{{"{key}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#), 1)
    }

    #[test]
    fn the_only_file_is_the_checkpoint() {
        let folder = tempfile::tempdir().expect("folder");
        assert_eq!(codes(&open_plain(folder.path())), ["format/no-checkpoint"]);
        put(folder.path(), "pytorch_model.bin", b"PK");
        assert!(text(&open_plain(folder.path())).contains("`pytorch_model.bin`"));
        put(folder.path(), "a.safetensors", &one("a"));
        put(folder.path(), "._a.safetensors", b"junk");
        let reader = open_plain(folder.path()).expect("opens");
        assert_eq!((reader.catalog().tensors.len(), reader.catalog().path.as_path()), (1, folder.path()));
    }

    #[test]
    fn several_files_need_an_index() {
        let folder = tempfile::tempdir().expect("folder");
        put(folder.path(), "a.safetensors", &one("a"));
        put(folder.path(), "b.safetensors", &one("b"));
        let result = open_plain(folder.path());
        assert_eq!(codes(&result), ["format/ambiguous-folder"]);
        assert!(text(&result).contains("`a.safetensors`, `b.safetensors`"));

        put(folder.path(), "x.safetensors.index.json", br#"{"weight_map": {"a": "a.safetensors"}}"#);
        assert_eq!(open_plain(folder.path()).expect("opens").catalog().tensors.len(), 1);
        put(folder.path(), "y.safetensors.index.json", br#"{"weight_map": {"b": "b.safetensors"}}"#);
        assert_eq!(codes(&open_plain(folder.path())), ["format/ambiguous-folder"]);
        let both = br#"{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}"#;
        put(folder.path(), "model.safetensors.index.json", both);
        assert_eq!(open_plain(folder.path()).expect("opens").catalog().tensors.len(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn a_linked_file_outside_the_folder_needs_leave() {
        let outside = tempfile::tempdir().expect("folder");
        let folder = tempfile::tempdir().expect("folder");
        let target = put(outside.path(), "blob", &one("a"));
        std::os::unix::fs::symlink(target, folder.path().join("model.safetensors")).expect("link");
        let result = open_plain(folder.path());
        assert_eq!(codes(&result), ["format/path-escape"]);
        assert!(text(&result).contains("--allow outside-link"));
        let options = super::OpenOptions { allow_outside_links: true };
        assert!(super::super::open(folder.path(), &options).is_ok());
    }
}
