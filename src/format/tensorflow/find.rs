//! Finding the index of a checkpoint that is named by its prefix, by a data file or by its folder.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::TABLE_MAGIC;
use crate::diag::{Diagnostic, Errors, FormatCode};
use crate::format::foreign::listed;
use crate::format::shards::name_problem;
use crate::format::shown;
use crate::format::store::{OpenFile, Store};

/// Returns the index file of a checkpoint that is given by its prefix, which is no file, or by one of its data files,
/// whose content does not tell what they are.
pub(in crate::format) fn index_of_prefix(path: &Path) -> Option<PathBuf> {
    let index = match path.extension() {
        Some(extension) if is_data(extension) => path.with_extension("index"),
        _ if path.exists() => return None,
        _ => with_index(path)?,
    };
    index.is_file().then_some(index)
}

/// Returns the index file of the checkpoint that a folder holds, where it holds one: what its `checkpoint` file names
/// as the latest, or the only index there, or the only one among the `variables` of a SavedModel.
///
/// # Errors
/// Returns `format/no-latest` where the `checkpoint` file names one that is not there.
pub(in crate::format) fn latest_in(folder: &Path) -> Result<Option<PathBuf>, Errors> {
    let mut indexes = indexes_in(folder);
    if let Some(named) = named_latest(folder) {
        return match in_folder(folder, &named) {
            Some(index) => Ok(Some(index)),
            None => Err(not_there(folder, &named, &indexes).into()),
        };
    }
    if indexes.is_empty() {
        indexes = indexes_in(&folder.join("variables"));
    }
    let index = indexes.pop();
    Ok(index.filter(|_| indexes.is_empty()))
}

/// Says that the latest checkpoint is not there; `indexes` are those of others.
fn not_there(folder: &Path, named: &[u8], indexes: &[PathBuf]) -> Diagnostic {
    let named = shown(&String::from_utf8_lossy(named));
    let message = format!(
        "its file `checkpoint` names `{named}` as the latest checkpoint, and that is not in the folder"
    );
    let diagnostic = Diagnostic::error(FormatCode::NoLatest, message).file(folder);
    let mut others: Vec<String> =
        indexes.iter().filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
    others.sort_unstable();
    if others.is_empty() {
        return diagnostic.help("fetch the files of that checkpoint too, or name another folder");
    }
    let diagnostic = diagnostic.found(listed(&others));
    diagnostic
        .help("fetch the files of that checkpoint too; or, if another one is meant, name it by its prefix")
}

/// Returns whether that is how the name of a data file ends, `data-00000-of-00001`.
fn is_data(extension: &OsStr) -> bool {
    let numbers = extension.to_str().and_then(|text| text.strip_prefix("data-")?.split_once("-of-"));
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(number, count)| is_number(number) && is_number(count))
}

fn with_index(prefix: &Path) -> Option<PathBuf> {
    let mut name = prefix.file_name()?.to_owned();
    name.push(".index");
    Some(prefix.with_file_name(name))
}

/// Returns the prefix that the folder's `checkpoint` file names as that of the latest checkpoint, if it is such a file.
fn named_latest(folder: &Path) -> Option<Vec<u8>> {
    let file = OpenFile::open(&folder.join("checkpoint")).ok()?;
    // It goes on with all checkpoints that are kept; the latest comes first.
    let text = file.bytes(0, file.size.min(1 << 16)).ok()?;
    let line =
        text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"model_checkpoint_path:"))?;
    // What is no text in quotes stands for itself in a message.
    Some(unquoted(line.trim_ascii()).unwrap_or_else(|| line.trim_ascii().to_vec()))
}

/// Returns the index of a checkpoint by its prefix, or the checkpoint itself where it is one of version 1, if it is in the
/// folder.
fn in_folder(folder: &Path, prefix: &[u8]) -> Option<PathBuf> {
    let prefix = str::from_utf8(prefix).ok()?;
    // An absolute path is that of the machine where it was trained: the folder has been moved as a whole.
    let name = if name_problem(prefix).is_none() { prefix } else { prefix.rsplit('/').next()? };
    if name_problem(name).is_some() {
        return None;
    }
    // A `.` for a name would be the folder itself, and its index beside it.
    let prefix = folder.join(name);
    let index = with_index(&prefix)?;
    let all = [index, prefix];
    all.into_iter().find(|path| path.starts_with(folder) && path != folder && path.is_file())
}

/// Returns the bytes that stand between quotes in a text message (protocolbuffers/protobuf, the text format's
/// specification), where letters beyond ASCII are written in octal.
fn unquoted(text: &[u8]) -> Option<Vec<u8>> {
    let (quote, rest) = text.split_first().filter(|(quote, _)| matches!(quote, b'"' | b'\''))?;
    let mut bytes = rest.iter().copied().peekable();
    let mut value = Vec::new();
    loop {
        let byte = bytes.next()?;
        if byte == *quote {
            return Some(value);
        }
        if byte != b'\\' {
            value.push(byte);
            continue;
        }
        match bytes.next()? {
            first @ b'0'..=b'7' => {
                let mut number = u32::from(first - b'0');
                for _ in 0..2 {
                    let Some(digit) = bytes.next_if(|byte| matches!(byte, b'0'..=b'7')) else { break };
                    number = number * 8 + u32::from(digit - b'0');
                }
                value.push(u8::try_from(number).ok()?);
            }
            other @ (b'\\' | b'"' | b'\'' | b'?') => value.push(other),
            _ => return None,
        }
    }
}

/// Returns the indexes of checkpoints in a folder; none where it cannot be listed.
fn indexes_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_visible = |path: &PathBuf| {
        path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."))
            && path.extension().is_some_and(|extension| extension == "index")
    };
    entries.map(|entry| entry.path()).filter(is_visible).filter(|path| is_table(path)).collect()
}

fn is_table(path: &Path) -> bool {
    let Ok(file) = OpenFile::open(path) else { return false };
    let mut end = [0; TABLE_MAGIC.len()];
    let start = file.size.checked_sub(end.len() as u64);
    start.is_some_and(|start| file.read_exact_at(start, &mut end).is_ok()) && end == TABLE_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::put;

    #[test]
    fn a_prefix_and_a_data_file_lead_to_the_index() {
        let folder = tempfile::tempdir().expect("folder");
        let index = put(folder.path(), "model.ckpt-3.index", b"");
        let data = put(folder.path(), "model.ckpt-3.data-00000-of-00002", b"");
        let prefix = folder.path().join("model.ckpt-3");
        assert_eq!(index_of_prefix(&prefix), Some(index.clone()));
        assert_eq!(index_of_prefix(&data), Some(index.clone()));
        assert_eq!(
            index_of_prefix(&prefix.with_extension("ckpt-3.data-00001-of-00002")),
            Some(index.clone())
        );
        assert_eq!(index_of_prefix(&index), None);
        assert_eq!(index_of_prefix(&folder.path().join("model.ckpt-4")), None);
        let other = put(folder.path(), "model.ckpt-3.data-of", b"");
        assert_eq!(index_of_prefix(&other), None);
        // What is there is what is meant.
        put(folder.path(), "model.ckpt-3", b"");
        assert_eq!(index_of_prefix(&prefix), None);
        assert_eq!(index_of_prefix(Path::new("")), None);
        assert_eq!(index_of_prefix(Path::new("..")), None);
    }

    #[test]
    fn the_checkpoint_file_says_which_is_the_latest() {
        let outer = tempfile::tempdir().expect("folder");
        put(outer.path(), "outside.index", &TABLE_MAGIC);
        put(outer.path(), "inside.index", &TABLE_MAGIC);
        let folder = &outer.path().join("inside");
        assert_eq!(latest(folder), Ok(None));
        let one = put(folder, "a-1.index", &TABLE_MAGIC);
        put(folder, "notes.index", b"no table");
        put(folder, "._a-1.index", &TABLE_MAGIC);
        assert_eq!(latest(folder), Ok(Some(one.clone())));
        let two = put(folder, "a-2.index", &TABLE_MAGIC);
        assert_eq!(latest(folder), Ok(None));
        let umlaut = put(folder, "ü.index", &TABLE_MAGIC);
        for (text, found) in [
            ("model_checkpoint_path: \"a-2\"\nall_model_checkpoint_paths: \"a-1\"\n", Some(&two)),
            ("model_checkpoint_path: \"/another/folder/a-1\"\n", Some(&one)),
            ("model_checkpoint_path: '\\303\\274'", Some(&umlaut)),
            ("model_checkpoint_path: \"../outside\"\n", None),
            ("model_checkpoint_path: \"..\"\n", None),
            ("model_checkpoint_path: \".\"\n", None),
            ("model_checkpoint_path: \"/a/\"\n", None),
            ("model_checkpoint_path: \"\"\n", None),
            ("model_checkpoint_path: \"a-2\n", None),
            ("model_checkpoint_path: \"a\\777\"", None),
            ("model_checkpoint_path: \"a-3\"", None),
        ] {
            put(folder, "checkpoint", text.as_bytes());
            let wanted = found.map_or(Err("format/no-latest"), |path| Ok(Some(path.clone())));
            assert_eq!(latest(folder), wanted, "{text}");
        }
        put(folder, "checkpoint", b"model_checkpoint_path: \"a-3\"");
        let errors = latest_in(folder).expect_err("is not there");
        let text = format!("{:?}", errors.diagnostics());
        assert!(text.contains("`a-3`") && text.contains("`a-1`, `a-2`"), "{text}");
        // Another file of that name.
        put(folder, "checkpoint", b"\x81");
        assert_eq!(latest(folder), Ok(None));
    }

    fn latest(folder: &Path) -> Result<Option<PathBuf>, &'static str> {
        latest_in(folder).map_err(|errors| errors.diagnostics()[0].code.as_str())
    }

    #[test]
    fn a_saved_model_keeps_its_checkpoint_among_the_variables() {
        let folder = tempfile::tempdir().expect("folder");
        let index = put(folder.path(), "variables/variables.index", &TABLE_MAGIC);
        assert_eq!(latest(folder.path()), Ok(Some(index)));
        put(folder.path(), "variables/other.index", &TABLE_MAGIC);
        assert_eq!(latest(folder.path()), Ok(None));
    }
}
