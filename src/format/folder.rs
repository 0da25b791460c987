//! Finding the checkpoint in a folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::names::{index_name, is_index};
use super::pieces::one_of_each_set;
use super::shards;
use super::sniff::{self, Content};
use super::store::OpenFile;
use super::{FileSet, Format, OpenOptions, foreign, io_error, shown};
use crate::diag::{Diagnostic, Errors, FormatCode};

/// The most entries that are looked at to find the files of a set.
const MOST_ENTRIES: usize = 100_000;

/// The names that are looked for first, each a checkpoint of one file or an index: what the transformers library loads of a
/// folder, in its order (huggingface/transformers, `src/transformers/modeling_utils.py`,
/// `_get_resolved_checkpoint_files`): one file before an index, safetensors before all others.
fn usual_names() -> impl Iterator<Item = String> {
    let formats = Format::ALL.iter().filter(|format| format.has_index());
    formats.flat_map(|format| [format.single_name().to_owned(), index_name(format.single_name())])
}

/// Returns the checkpoint of a format that keeps its data in several files, where the folder holds one.
fn found_in(folder: &Path) -> Result<Option<PathBuf>, Errors> {
    for find in Format::ALL.iter().filter_map(|format| format.spec().find.as_ref()) {
        if let Some(path) = (find.in_folder)(folder)? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// What trainers leave beside the weights, in formats of weights.
fn is_training_state(name: &str) -> bool {
    matches!(name, "training_args.bin" | "optimizer.pt" | "optimizer.bin" | "scheduler.pt" | "scheduler.bin")
        // NVIDIA/Megatron-LM, `megatron/training/checkpointing.py`
        || name == "distrib_optim.pt"
        || name.starts_with("rng_state")
        || name.starts_with("random_states")
}

/// Returns the file of a folder that stands for its checkpoint: an index, or the only file with weights.
pub(super) fn checkpoint_in(folder: &Path, options: &OpenOptions) -> Result<PathBuf, Errors> {
    let names = names_in(folder)?;
    let has = |name: &str| names.iter().any(|other| other == name);
    let indexes: Vec<&str> = names.iter().map(String::as_str).filter(|name| is_index(name)).collect();
    let safetensors = one_of_each_set(&ending_in(&names, ".safetensors"));
    let name = if let Some(name) = usual_names().find(|name| has(name)) {
        name
    } else if let [index] = indexes[..] {
        index.to_owned()
    } else if indexes.len() > 1 {
        return Err(ambiguous(folder, "indexes", &indexes));
    } else if let [file] = safetensors[..] {
        file.to_owned()
    } else if safetensors.len() > 1
        && found_in(folder)?.is_none()
        && let Some(diagnostic) = foreign::of_parts(folder)
    {
        return Err(diagnostic.into());
    } else if safetensors.len() > 1 {
        return Err(ambiguous(folder, "safetensors files and no index", &safetensors));
    } else if let Some(path) = found_in(folder)? {
        return Ok(path);
    } else if let Some(diagnostic) = foreign::of_parts(folder) {
        return Err(diagnostic.into());
    } else {
        let found = one_of_each_set(&checkpoints(folder, &names));
        match &found[..] {
            [name] => (*name).to_owned(),
            [] => return Err(nothing(folder, &names).into()),
            several => return Err(ambiguous(folder, "files with weights", several)),
        }
    };
    let path = folder.join(&name);
    // An index may be a link anywhere: its text names files, and those are checked on their own.
    if !is_index(&name) {
        shards::check_link(folder, &path, &name, options)?;
    }
    Ok(path)
}

/// Returns what is to be said of the files with weights in a folder that were not among those that were read; `chosen` is
/// the file or the index that stands for the folder.
pub(super) fn unread(folder: &Path, chosen: &Path, read: &[PathBuf]) -> Option<Diagnostic> {
    let names = names_in(folder).ok()?;
    let is_read = |name: &str| {
        let path = folder.join(name);
        path == chosen || read.contains(&path)
    };
    let candidates: Vec<String> = names.into_iter().filter(|name| !is_read(name)).collect();
    let others = checkpoints(folder, &candidates);
    if others.is_empty() {
        return None;
    }
    let name = chosen.file_name().unwrap_or(chosen.as_os_str()).to_string_lossy();
    let message = format!("read: `{}`; not read: {}", shown(&name), list(&others));
    let help = "name the file instead of the folder where another is meant";
    Some(Diagnostic::warning(FormatCode::OtherWeights, message).file(folder).help(help))
}

/// Returns the files of a set by name, `FOLDER/NAME` for one in a folder.
pub(super) fn files_of(
    folder: &Path,
    set: &FileSet<'_>,
    options: &OpenOptions,
) -> Result<Vec<(String, PathBuf)>, Errors> {
    let names = names_below(folder, set.depths)?;
    // A file that the layout names is opened whatever is in it: a rank that is damaged is not to be passed over.
    let (mut files, others): (Vec<String>, Vec<String>) =
        names.iter().cloned().partition(|name| (set.is_named)(name) && !folder.join(name).is_dir());
    files.extend(checkpoints(folder, &others).into_iter().map(str::to_owned));
    files.sort_unstable();
    if files.is_empty() {
        return Err(nothing(folder, &names_in(folder)?).into());
    }
    let checked = |name: String| {
        let path = folder.join(&name);
        shards::check_link(folder, &path, &name, options)?;
        Ok((name, path))
    };
    files.into_iter().map(checked).collect()
}

/// Returns the names of a folder's files that belong to a set by their names.
pub(super) fn named_in(folder: &Path, set: &FileSet<'_>) -> Result<Vec<String>, Errors> {
    let mut names = names_below(folder, set.depths)?;
    names.retain(|name| (set.is_named)(name) && !folder.join(name).is_dir());
    Ok(names)
}

/// Returns the names of a folder's visible entries that lie in so many folders inside it, sorted, as `FOLDER/NAME`.
fn names_below(folder: &Path, depths: &BTreeSet<usize>) -> Result<Vec<String>, Errors> {
    let deepest = depths.last().copied().unwrap_or(0);
    let mut found = Vec::new();
    let mut level = vec![String::new()];
    for depth in 0..=deepest {
        let mut below = Vec::new();
        for inner in &level {
            for name in names_in(&folder.join(inner))? {
                below.push(if inner.is_empty() { name } else { format!("{inner}/{name}") });
            }
        }
        if found.len() + below.len() > MOST_ENTRIES {
            let message = format!("the folder and those in it hold more than {MOST_ENTRIES} entries");
            let help = "name the folder that holds the files of the checkpoint and nothing else";
            return Err(Diagnostic::error(FormatCode::AmbiguousFolder, message)
                .file(folder)
                .help(help)
                .into());
        }
        if depths.contains(&depth) {
            found.extend(below.iter().cloned());
        }
        level = if depth < deepest { below } else { Vec::new() };
        level.retain(|name| folder.join(name).is_dir());
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns the names of the files that are checkpoints by their content.
fn checkpoints<'a>(folder: &Path, names: &'a [String]) -> Vec<&'a str> {
    let holds_weights = |name: &&str| {
        let Ok(file) = OpenFile::open(&folder.join(name)) else { return false };
        match sniff::sniff(&file, &OpenOptions::default()) {
            // Nothing known counts as safetensors, so the name must say so too.
            Ok(Content::Checkpoint(Format::Safetensors)) => name.ends_with(".safetensors"),
            Ok(Content::Checkpoint(_)) => true,
            Ok(Content::Json | Content::Foreign(_)) | Err(_) => false,
        }
    };
    let is_state = |name: &str| is_training_state(name.rsplit('/').next().unwrap_or(name));
    names.iter().map(String::as_str).filter(|name| !is_state(name)).filter(holds_weights).collect()
}

fn ambiguous(folder: &Path, kind: &str, several: &[&str]) -> Errors {
    let message = format!("the folder holds {} {kind}: {}", several.len(), list(several));
    let help = "name one of the files instead of the folder";
    Diagnostic::error(FormatCode::AmbiguousFolder, message).file(folder).help(help).into()
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

/// Says what is there instead of a checkpoint: files that are not read, and what lies in the folders of the folder.
fn nothing(folder: &Path, names: &[String]) -> Diagnostic {
    const MOST: usize = 4;
    if let Some(diagnostic) = foreign::of_folder(folder) {
        return diagnostic;
    }
    let mut found: Vec<(&String, Box<Diagnostic>)> = Vec::new();
    for name in names {
        let Ok(file) = OpenFile::open(&folder.join(name)) else { continue };
        if let Ok(Content::Foreign(diagnostic)) = sniff::sniff(&file, &OpenOptions::default())
            && diagnostic.code != FormatCode::Unknown
            && found.len() < MOST
        {
            found.push((name, diagnostic));
        }
    }
    let below = foreign::weights_below(folder);
    let message = "the folder holds no file with weights that is read, and no index";
    let diagnostic = Diagnostic::error(FormatCode::NoCheckpoint, message).file(folder);
    match &found[..] {
        _ if !below.is_empty() => diagnostic
            .found(foreign::listed(&below))
            .help("name the folder that holds the weights, or one of these"),
        [] => diagnostic.help("name the folder that holds the weights, or a file"),
        [(_, first), ..] => {
            let texts: Vec<String> =
                found.iter().map(|(name, told)| format!("`{}`: {}", shown(name), told.message)).collect();
            let help = first.help.clone().unwrap_or_default();
            diagnostic.found(texts.join("; ")).help(help)
        }
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
        put(folder.path(), "notes.bin", b"abc");
        assert_eq!(codes(&open_plain(folder.path())), ["format/no-checkpoint"]);
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

    #[test]
    fn a_folder_is_read_in_the_order_of_the_transformers_library() {
        let folder = tempfile::tempdir().expect("folder");
        let keys = || {
            let reader = open_plain(folder.path()).expect("opens");
            let catalog = reader.catalog();
            let said: Vec<String> = catalog.warnings.iter().map(|warning| warning.message.clone()).collect();
            (catalog.tensors[0].key.clone(), said)
        };
        // From the last to the first; what is there already is named.
        put(folder.path(), "stray.safetensors", &one("stray"));
        assert_eq!(keys(), ("stray".to_owned(), vec![]));
        put(folder.path(), "a-00001.bin", &one("index"));
        put(folder.path(), "pytorch_model.bin.index.json", br#"{"weight_map": {"index": "a-00001.bin"}}"#);
        assert_eq!(keys().0, "index");
        put(folder.path(), "pytorch_model.bin", &one("bin"));
        let said = "read: `pytorch_model.bin`; not read: `stray.safetensors`";
        assert_eq!(keys(), ("bin".to_owned(), vec![said.to_owned()]));
        put(folder.path(), "b-00001.safetensors", &one("indexed"));
        let index = br#"{"weight_map": {"indexed": "b-00001.safetensors"}}"#;
        put(folder.path(), "model.safetensors.index.json", index);
        assert_eq!(keys().0, "indexed");
        put(folder.path(), "model.safetensors", &one("whole"));
        let said = "read: `model.safetensors`; not read: `b-00001.safetensors`, `stray.safetensors`";
        assert_eq!(keys(), ("whole".to_owned(), vec![said.to_owned()]));
        // What a trainer leaves beside is no other checkpoint.
        std::fs::remove_file(folder.path().join("stray.safetensors")).expect("removes");
        std::fs::remove_file(folder.path().join("b-00001.safetensors")).expect("removes");
        put(folder.path(), "optimizer.pt", &one("o"));
        assert_eq!(keys(), ("whole".to_owned(), vec![]));
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
        let options = super::OpenOptions { allow_outside_links: true, ..Default::default() };
        assert!(super::super::open(folder.path(), &options).is_ok());
    }
}
