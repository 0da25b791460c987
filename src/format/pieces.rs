//! Files that are one part of a checkpoint: which others belong to them, and whether all of them are there.

use std::path::{Path, PathBuf};

use super::listing::names_in;
use super::shards::{self, IndexOf};
use super::{OpenOptions, shown};
use crate::diag::{Diagnostic, Errors, FormatCode};

/// A name of one of several files, `STEM-00001-of-00003ENDING`.
#[derive(Debug, PartialEq, Eq)]
struct Numbered<'a> {
    /// All before the number.
    stem: &'a str,
    number: u64,
    /// How many digits the number has.
    width: usize,
    count: u64,
    /// All behind the number.
    rest: &'a str,
}

impl Numbered<'_> {
    fn parse(name: &str) -> Option<Numbered<'_>> {
        let (before, behind) = name.rsplit_once("-of-")?;
        let is_digit = |c: &char| c.is_ascii_digit();
        let width = before.chars().rev().take_while(is_digit).count();
        let digits = behind.chars().take_while(is_digit).count();
        let (stem, number) = before.split_at_checked(before.len().checked_sub(width)?)?;
        let count = behind.get(..digits)?.parse().ok()?;
        let is_sound = stem.ends_with(['-', '_', '.']) && behind.get(digits..)?.starts_with('.');
        let rest = name.get(before.len()..)?;
        is_sound.then_some(Numbered { stem, number: number.parse().ok()?, width, count, rest })
    }

    /// Whether another name is of the same set.
    fn is_with(&self, other: &Numbered<'_>) -> bool {
        (self.stem, self.width, self.rest) == (other.stem, other.width, other.rest)
    }

    /// Returns the names of the whole set, where `others` are those that are there. They count from 1, or from 0 where
    /// there is such a number.
    fn all(&self, others: &[String]) -> Vec<String> {
        let name = |number: u64| format!("{}{number:02$}{}", self.stem, self.rest, self.width);
        let first = u64::from(self.number != 0 && !others.contains(&name(0)));
        (first..first + self.count).map(name).collect()
    }
}

/// The most files of one checkpoint; more is a number that happens to stand in a name.
const MOST: u64 = 100_000;

/// Returns whether a file's name is that of one of several, `STEM-00001-of-00003ENDING`, with that stem and ending.
pub(crate) fn is_shard_of(name: &str, stem: &str, ending: &str) -> bool {
    let found = Numbered::parse(name);
    found.is_some_and(|found| found.stem.strip_suffix('-') == Some(stem) && found.rest.ends_with(ending))
}

/// Returns the names with only the first of each set of numbered files, `STEM-00001-of-00003ENDING`.
pub(super) fn one_of_each_set<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let mut kept: Vec<&str> = Vec::new();
    for &name in names {
        let number = Numbered::parse(name).filter(|number| number.count > 1);
        let is_with = |other: &&str| {
            let other = Numbered::parse(other);
            matches!((&number, &other), (Some(number), Some(other)) if number.is_with(other))
        };
        if !kept.iter().any(is_with) {
            kept.push(name);
        }
    }
    kept
}

/// How a file that was named is read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// By itself.
    Alone,
    /// By the index that names it and nothing else.
    Index(PathBuf),
    /// Together with the others of its set, in the order of their numbers.
    With(Vec<PathBuf>),
}

/// Tells how a file is read so that a checkpoint is read whole.
///
/// # Errors
/// Returns `format/one-shard` where an index beside it names other files too, and `format/missing-shard` where its name
/// speaks of others and not all of them are there.
pub(super) fn whole(path: &Path, options: &OpenOptions) -> Result<Whole, Errors> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(Whole::Alone) };
    if options.allow_incomplete {
        return Ok(Whole::Alone);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names = names_in(folder);
    let alone = "to read this file by itself, give `--allow incomplete`";
    match shards::index_of(folder, &names, name) {
        Some(IndexOf { path: index, others: 0 }) => return Ok(Whole::Index(index)),
        Some(IndexOf { path: index, others }) => {
            let index_name = shown(&index.file_name().unwrap_or_default().to_string_lossy());
            let message = format!(
                "it is one of the {} files of the checkpoint that `{index_name}` beside it describes",
                others + 1
            );
            let help =
                format!("name the index or the folder, `{}`; {alone}", shown(&folder.to_string_lossy()));
            return Err(Diagnostic::error(FormatCode::OneShard, message).file(path).help(help).into());
        }
        None => {}
    }
    let Some(number) = Numbered::parse(name).filter(|number| (2..=MOST).contains(&number.count)) else {
        return Ok(Whole::Alone);
    };
    let all = number.all(&names);
    let missing: Vec<&str> =
        all.iter().map(String::as_str).filter(|name| !names.iter().any(|other| other == name)).collect();
    if !missing.is_empty() {
        let message = format!(
            "its name says that it is one of {} files, and {} of them are not beside it",
            number.count,
            missing.len()
        );
        let diagnostic =
            Diagnostic::error(FormatCode::MissingShard, message).file(path).found(shards::missing(&missing));
        return Err(diagnostic.help(format!("fetch them too; {alone}")).into());
    }
    let mut paths = Vec::with_capacity(all.len());
    for name in &all {
        let other = folder.join(name);
        if other.as_path() != path {
            shards::check_link(folder, &other, name, options)?;
        }
        paths.push(other);
    }
    Ok(Whole::With(paths))
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn numbers_in_names() {
        let parsed = |name| {
            Numbered::parse(name).map(|n| (n.stem.to_owned(), n.number, n.width, n.count, n.rest.to_owned()))
        };
        assert_eq!(
            parsed("model-00001-of-00003.safetensors"),
            Some(("model-".into(), 1, 5, 3, "-of-00003.safetensors".into()))
        );
        assert_eq!(parsed("m.fp16-2-of-3.bin"), Some(("m.fp16-".into(), 2, 1, 3, "-of-3.bin".into())));
        for name in [
            "model.safetensors",
            "best-of-3.bin",
            "a-1-of-.bin",
            "a-1-of-3",
            "a-99999999999999999999-of-3.bin",
            "x1-of-3.bin",
        ] {
            assert_eq!(parsed(name), None, "{name}");
        }
        let all = Numbered::parse("a-2-of-3.bin").expect("a number");
        assert_eq!(all.all(&[]), ["a-1-of-3.bin", "a-2-of-3.bin", "a-3-of-3.bin"]);
        assert_eq!(all.all(&["a-0-of-3.bin".to_owned()]), ["a-0-of-3.bin", "a-1-of-3.bin", "a-2-of-3.bin"]);
        let names = ["a-1-of-2.bin", "a-2-of-2.bin", "b-1-of-2.bin", "c.bin", "a-1-of-1.bin"];
        assert_eq!(one_of_each_set(&names), ["a-1-of-2.bin", "b-1-of-2.bin", "c.bin", "a-1-of-1.bin"]);
        assert!(is_shard_of("model-00001-of-00002.gguf", "model", ".gguf"));
        assert!(!is_shard_of("model-x-00001-of-00002.gguf", "model", ".gguf"));
    }

    fn one(key: &str, metadata: &str) -> Vec<u8> {
        file_bytes(&format!(r#"{{{metadata}"{key}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#), 1)
    }

    #[test]
    fn numbered_files_are_read_together_or_not_at_all() {
        let folder = tempfile::tempdir().expect("folder");
        let second = put(folder.path(), "model-00002-of-00003.safetensors", &one("b", ""));
        put(folder.path(), "model-00003-of-00003.safetensors", &one("c", ""));
        for path in [second.as_path(), folder.path()] {
            let result = open_plain(path);
            assert_eq!(codes(&result), ["format/missing-shard"]);
            assert!(text(&result).contains("`model-00001-of-00003.safetensors`"), "{}", text(&result));
        }
        let options = OpenOptions { allow_incomplete: true, ..OpenOptions::default() };
        let reader = super::super::open(&second, &options).expect("opens");
        assert_eq!(reader.catalog().tensors.len(), 1);
        put(folder.path(), "model-00001-of-00003.safetensors", &one("a", ""));
        for path in [second.as_path(), folder.path()] {
            let reader = open_plain(path).expect("opens");
            let keys: Vec<&str> = reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
            assert_eq!((keys, reader.catalog().path.as_path()), (vec!["a", "b", "c"], path));
        }
    }

    #[test]
    fn a_file_of_an_index_is_not_read_alone() {
        let folder = tempfile::tempdir().expect("folder");
        let first = put(folder.path(), "first.safetensors", &one("a", ""));
        put(folder.path(), "second.safetensors", &one("b", ""));
        let other = put(folder.path(), "other.safetensors", &one("c", ""));
        put(folder.path(), "broken.index.json", b"first.safetensors");
        let index = br#"{"weight_map": {"a": "first.safetensors", "b": "second.safetensors"}}"#;
        put(folder.path(), "model.safetensors.index.json", index);
        let result = open_plain(&first);
        assert_eq!(codes(&result), ["format/one-shard"]);
        let text = text(&result);
        assert!(text.contains("`model.safetensors.index.json`") && text.contains("2 files"), "{text}");
        assert!(text.contains("--allow incomplete"), "{text}");
        assert!(open_plain(&other).is_ok());
        let options = OpenOptions { allow_incomplete: true, ..OpenOptions::default() };
        assert!(super::super::open(&first, &options).is_ok());
        // Of one file alone the index says no more than the file.
        put(folder.path(), "model.safetensors.index.json", br#"{"weight_map": {"a": "first.safetensors"}}"#);
        assert_eq!(open_plain(&first).expect("opens").catalog().tensors.len(), 1);
    }

    #[test]
    fn slices_of_tensors_are_not_taken_for_tensors() {
        let folder = tempfile::tempdir().expect("folder");
        let info = |offset: u64| {
            let info = format!(r#"{{\"w\": {{\"saved_offsets\": [{offset}]}}}}"#);
            format!(r#""__metadata__":{{"DCP_SHARDING_INFO":"{info}","DCP_VERSION":"1.0","format":"pt"}},"#)
        };
        let first = put(folder.path(), "shard-00001-model-00001-of-00001.safetensors", &one("w", &info(0)));
        let second = put(folder.path(), "shard-00002-model-00001-of-00001.safetensors", &one("w", &info(1)));
        for path in [&first, &second, &folder.path().to_owned()] {
            assert_eq!(codes(&open_plain(path)), ["format/slices"]);
        }
        let options = OpenOptions { allow_incomplete: true, ..OpenOptions::default() };
        assert!(super::super::open(&second, &options).is_ok());
        let whole = tempfile::tempdir().expect("folder");
        let file = put(whole.path(), "model-00001-of-00001.safetensors", &one("w", &info(0)));
        assert_eq!(codes(&open_plain(&file)), ["format/slices"]);
        let index = br#"{"weight_map": {"w": "model-00001-of-00001.safetensors"}}"#;
        put(whole.path(), "model.safetensors.index.json", index);
        for path in [file.as_path(), whole.path()] {
            let reader = open_plain(path).expect("opens");
            assert_eq!(reader.catalog().metadata.keys().collect::<Vec<_>>(), ["format"]);
        }
        put(whole.path(), "model-00001-of-00001.safetensors", &one("w", &info(1)));
        assert_eq!(codes(&open_plain(whole.path())), ["format/slices"]);
    }
}
