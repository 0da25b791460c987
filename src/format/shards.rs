//! Sharded checkpoints: an index, `*.index.json`, and the files that it names.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Number;

use super::json::{Json, repeated, without_mark};
use super::listing::names_in;
use super::names::{KERAS_INDEX_ENDING, is_index};
use super::part::{Part, PartsReader, assemble};
use super::safetensors::header::LIMIT;
use super::store::open_regular;
use super::{OpenOptions, foreign, io_error, open_part, shown, split};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::fold::fold_keys;

/// An index's content.
#[derive(Debug, Default)]
struct Index {
    /// The shards of each tensor: one; in Keras's index those of each group of variables, one or several.
    weight_map: BTreeMap<String, Vec<String>>,
    /// The bytes of all tensors, as far as the index says.
    total_size: Option<Number>,
}

impl Index {
    /// Returns the names of all shards, sorted, so that the files come in the order of their names.
    fn shards(&self) -> BTreeSet<&str> {
        self.weight_map.values().flatten().map(String::as_str).collect()
    }

    /// Returns the entry for a tensor: its own, or that of the group of Keras that it is in.
    fn entry(&self, key: &str) -> Option<&str> {
        let own = || self.weight_map.get_key_value(key);
        let group = || self.weight_map.get_key_value(&format!("/{}", key.rsplit_once('/')?.0));
        own().or_else(group).map(|(entry, _)| entry.as_str())
    }
}

/// Opens the shards that an index names; `source` is what the user named, the index or its folder.
pub(super) fn open_index(
    source: &Path,
    index_path: &Path,
    options: &OpenOptions,
) -> Result<PartsReader, Errors> {
    let mut out = Collector::default();
    let index = parse_index(&read_text(index_path)?, index_path, &mut out);
    let names = index.shards();
    let folder = index_path.parent().unwrap_or(Path::new(""));
    let paths = resolve(folder, index_path, &names, options, &mut out);
    let mut parts: Vec<Part> = Vec::new();
    if !out.has_errors() {
        parts.extend(paths.iter().filter_map(|path| open_part(path, options, &mut out)));
    }
    split::check(&parts, true, options, &mut out);
    if !out.has_errors() {
        let names: Vec<&str> = names.into_iter().collect();
        decide(&index, index_path, &names, &mut parts, &mut out);
        cross_check(&index, index_path, &names, &parts, options, &mut out);
        if options.root.is_none() {
            leave_out_optimizer(index_path, &mut parts, &mut out);
        }
    }
    assemble(source, parts, out)
}

/// Reads an index's text; the memory that it takes is a few times the text's length.
fn read_text(path: &Path) -> Result<String, Errors> {
    read_text_over(path, LIMIT)
}

/// Reads an index's text. One of more than `free` bytes is read where the files beside it are as large: it names what
/// stands in their headers, and so it is never the larger.
fn read_text_over(path: &Path, free: u64) -> Result<String, Errors> {
    let (file, metadata) = open_regular(path)?;
    if metadata.len() > free {
        let beside = size_beside(path);
        if metadata.len() - free > beside {
            let message = format!(
                "the index has {} bytes, more than the files beside it, which have {beside}",
                metadata.len()
            );
            let error = Diagnostic::error(FormatCode::BadIndex, message).file(path);
            return Err(error.help("put it beside the files that it names; finish the download").into());
        }
    }
    std::io::read_to_string(file).map_err(|error| io_error(path, "read the index", &error).into())
}

/// Returns the bytes of all files that lie beside an index, as the system tells them.
fn size_beside(path: &Path) -> u64 {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let others = names_in(folder).into_iter().map(|name| folder.join(name)).filter(|other| other != path);
    let sizes = others.filter_map(|other| std::fs::metadata(other).ok());
    sizes.filter(std::fs::Metadata::is_file).map(|file| file.len()).fold(0, u64::saturating_add)
}

fn parse_index(text: &str, path: &Path, out: &mut Collector) -> Index {
    let mut index = Index::default();
    let fail = |message: String| Diagnostic::error(FormatCode::BadIndex, message).file(path);
    let no_index = "name the index of a sharded checkpoint, a safetensors file or a folder";
    let fields = match Json::parse_map(without_mark(text)) {
        Ok(fields) => fields,
        Err(problem) => {
            out.push(fail(format!("the index {problem}")).help(no_index));
            return index;
        }
    };
    let twice = |place: &str, key: &str| {
        Diagnostic::error(FormatCode::DuplicateKey, format!("{place} holds `{}` twice", shown(key)))
            .file(path)
    };
    for key in repeated(&fields) {
        out.push(twice("the index", key));
    }
    let find = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    match find("weight_map") {
        Some(Json::Map(entries)) => {
            for key in repeated(entries) {
                out.push(twice("the index's `weight_map`", key).tensor(key));
            }
            for (key, value) in entries {
                let shards: Option<Vec<String>> = match value {
                    Json::Text(shard) => Some(vec![shard.to_string()]),
                    Json::List(shards) => shards
                        .iter()
                        .map(
                            |shard| {
                                if let Json::Text(shard) = shard { Some(shard.to_string()) } else { None }
                            },
                        )
                        .collect(),
                    _ => None,
                };
                if let Some(shards) = shards {
                    index.weight_map.insert(key.to_string(), shards);
                } else {
                    let diagnostic = fail("the index's `weight_map` names no file for it".to_owned());
                    out.push(diagnostic.tensor(&**key).expected("a string").found(value.brief()));
                }
            }
        }
        Some(other) => {
            out.push(fail("the index's `weight_map` is not a map".to_owned()).found(other.brief()))
        }
        None => {
            let known = foreign::of_json(path, fields.iter().map(|(key, _)| &**key));
            let unknown =
                || fail("the JSON text has no `weight_map`, so it is no index".to_owned()).help(no_index);
            out.push(known.unwrap_or_else(unknown));
        }
    }
    if let Some(Json::Map(metadata)) = find("metadata")
        && let Some((_, Json::Number(number))) = metadata.iter().find(|(key, _)| key == "total_size")
    {
        index.total_size = Some(number.clone());
    }
    index
}

/// Returns the shards' paths, in order; shards outside the folder and missing ones are reported.
fn resolve(
    folder: &Path,
    index_path: &Path,
    names: &BTreeSet<&str>,
    options: &OpenOptions,
    out: &mut Collector,
) -> Vec<PathBuf> {
    let mut paths = Vec::with_capacity(names.len());
    let mut missing = Vec::new();
    for &name in names {
        if let Some(problem) = name_problem(name) {
            let message = format!("the index names the shard `{}`, which {problem}", shown(name));
            let diagnostic = Diagnostic::error(FormatCode::PathEscape, message).file(index_path);
            out.push(
                diagnostic.expected("a file below the index's folder").help("do not trust this checkpoint"),
            );
            continue;
        }
        let path = folder.join(name);
        if !path.exists() {
            missing.push(name);
        } else if let Err(errors) = check_link(folder, &path, name, options) {
            out.extend(errors);
        }
        paths.push(path);
    }
    if !missing.is_empty() {
        let message = format!(
            "{} of the {} shards that the index names do not exist: {}",
            missing.len(),
            names.len(),
            self::missing(&missing)
        );
        let diagnostic = Diagnostic::error(FormatCode::MissingShard, message).file(index_path);
        out.push(diagnostic.help("finish the download"));
    }
    paths
}

/// Returns the names of files that are not there, for a message.
pub(super) fn missing(names: &[&str]) -> String {
    const MOST: usize = 40;
    let folded = fold_keys(names.iter().copied());
    let list = folded.iter().take(MOST).map(|name| format!("`{}`", shown(name)));
    let more = folded.len().checked_sub(MOST).filter(|more| *more > 0);
    list.chain(more.map(|more| format!("… and {more} more"))).collect::<Vec<_>>().join(", ")
}

/// Returns why a shard's name cannot be one, completing "which …".
pub(crate) fn name_problem(name: &str) -> Option<&'static str> {
    let bytes = name.as_bytes();
    if name.is_empty() {
        Some("is empty")
    } else if name.contains('\0') {
        Some("has a zero byte")
    } else if name.contains('\\') {
        Some("has a backslash")
    } else if name.starts_with('/') {
        Some("is absolute")
    } else if bytes.len() > 1 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':' {
        Some("begins with a drive letter")
    } else if name.split('/').any(|segment| segment == "..") {
        Some("leaves the folder by `..`")
    } else {
        None
    }
}

/// Refuses a file that is a link out of its folder, unless that is allowed.
pub(super) fn check_link(
    folder: &Path,
    path: &Path,
    name: &str,
    options: &OpenOptions,
) -> Result<(), Errors> {
    if options.allow_outside_links {
        return Ok(());
    }
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let root = folder.canonicalize().map_err(|error| io_error(folder, "resolve the folder", &error))?;
    let target = path.canonicalize().map_err(|error| io_error(path, "resolve it", &error))?;
    if target.starts_with(&root) {
        return Ok(());
    }
    let message = format!("`{}` is a symbolic link that leaves the folder", shown(name));
    let diagnostic = Diagnostic::error(FormatCode::PathEscape, message).file(path);
    let diagnostic = diagnostic.found(format!("`{}`", shown(&target.to_string_lossy())));
    Err(diagnostic
        .help("if you trust the link, as in the cache of huggingface_hub, give `--allow outside-link`")
        .into())
}

/// Takes tensors out of shards where the index names another that holds them too, as readers that follow the index do;
/// `names` and `parts` go together.
fn decide(index: &Index, index_path: &Path, names: &[&str], parts: &mut [Part], out: &mut Collector) {
    let is_home = |key: &str, name: &str| {
        index.weight_map.get(key).is_some_and(|shards| shards.iter().any(|shard| shard == name))
    };
    let at_home: HashSet<String> = names
        .iter()
        .zip(&*parts)
        .flat_map(|(&name, part)| part.tensors.iter().filter(move |tensor| is_home(&tensor.key, name)))
        .map(|tensor| tensor.key.clone())
        .collect();
    for (&name, part) in names.iter().zip(parts) {
        part.tensors.retain(|tensor| {
            let is_elsewhere = !is_home(&tensor.key, name) && at_home.contains(&tensor.key);
            if is_elsewhere {
                let homes = index.weight_map.get(&tensor.key).into_iter().flatten();
                let homes: Vec<String> = homes.map(|home| format!("`{}`", shown(home))).collect();
                let message = format!("`{}` holds it too; the index says {}", shown(name), homes.join(", "));
                let warning = Diagnostic::warning(FormatCode::IndexDecides, message).file(index_path);
                out.push(warning.tensor(&tensor.key));
            }
            !is_elsewhere
        });
    }
}

/// Compares an index with what its shards hold; `names` and `parts` go together.
fn cross_check(
    index: &Index,
    index_path: &Path,
    names: &[&str],
    parts: &[Part],
    options: &OpenOptions,
    out: &mut Collector,
) {
    let mut homes: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut total = 0_u64;
    for (&name, part) in names.iter().zip(parts) {
        for entry in &part.tensors {
            let listed = index.entry(&entry.key);
            homes.entry(listed.unwrap_or(&entry.key)).or_default().push(name);
            total = total.saturating_add(entry.bytes());
            if listed.is_none() {
                let message = format!("`{}` holds a tensor that the index does not list", shown(name));
                let diagnostic = Diagnostic::warning(FormatCode::NotIndexed, message).file(index_path);
                out.push(diagnostic.tensor(&entry.key).help("it is read all the same"));
            }
        }
        // What is there and is not read has its place too.
        for (key, _) in &part.unread {
            homes.entry(index.entry(key).unwrap_or(key)).or_default().push(name);
        }
    }
    let is_at_home = |key: &str, shard: &str| homes.get(key).is_some_and(|shards| shards.contains(&shard));
    let lost: Vec<(&str, &str)> = index
        .weight_map
        .iter()
        .flat_map(|(key, shards)| shards.iter().map(|shard| (key.as_str(), shard.as_str())))
        .filter(|(key, shard)| !is_at_home(key, shard))
        // The state of Keras's optimizer is left out where it stands beside layers.
        .filter(|(key, _)| !key.starts_with("/optimizer/"))
        .collect();
    let strays = if lost.is_empty() { HashMap::new() } else { strays(index_path, names, &lost, options) };
    for (key, shard) in lost {
        let place = homes.get(key).map(|shards| shards[0]).or_else(|| strays.get(key).map(String::as_str));
        let place =
            place.map_or("no other file has it".to_owned(), |place| format!("it is in `{}`", shown(place)));
        let message = format!("the index places it in `{}`, which does not hold it; {place}", shown(shard));
        let diagnostic = Diagnostic::error(FormatCode::IndexTensorNotInShard, message).file(index_path);
        out.push(diagnostic.tensor(key).help("correct the index, or fetch the checkpoint again"));
    }
    // The optimizer's state counts there and may have been left out.
    let has_optimizer = index.weight_map.keys().any(|key| key.starts_with("/optimizer/"));
    let is_counted = !has_optimizer && parts.iter().all(|part| part.unread.is_empty());
    if let Some(stated) = &index.total_size
        && is_counted
        && stated.as_u64() != Some(total)
        && stated.as_f64() != Some(total as f64)
    {
        let message = format!("the index says that the tensors have {stated} bytes, they have {total}");
        out.push(Diagnostic::warning(FormatCode::TotalSize, message).file(index_path));
    }
}

/// Looks for lost tensors in the folder's other safetensors files; the answer serves a message only.
fn strays(
    index_path: &Path,
    names: &[&str],
    lost: &[(&str, &str)],
    options: &OpenOptions,
) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let wanted: HashSet<&str> = lost.iter().map(|(key, _)| *key).collect();
    let folder =
        index_path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut others: Vec<(String, PathBuf)> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            entry.ok().and_then(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        })
        .filter(|(name, _)| !names.contains(&name.as_str()))
        .collect();
    others.sort();
    for (name, path) in others {
        if check_link(folder, &path, &name, options).is_err() {
            continue;
        }
        // Its own faults are none of this checkpoint's.
        let Some(part) = open_part(&path, options, &mut Collector::default()) else { continue };
        for entry in part.tensors {
            if wanted.contains(entry.key.as_str()) {
                found.entry(entry.key).or_insert_with(|| name.clone());
            }
        }
    }
    found
}

/// Returns the text of an index; `weight_map` gives each tensor's shard.
pub(super) fn index_bytes(total_size: u64, weight_map: BTreeMap<&str, &str>) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Metadata {
        total_size: u64,
    }
    #[derive(Serialize)]
    struct Text<'a> {
        metadata: Metadata,
        weight_map: BTreeMap<&'a str, &'a str>,
    }
    let mut bytes = serde_json::to_vec_pretty(&Text { metadata: Metadata { total_size }, weight_map })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Returns the files that an index names, or none where it is no index; for replacing an older checkpoint.
pub(crate) fn named_shards(index_path: &Path) -> BTreeSet<String> {
    let Ok(text) = read_text(index_path) else { return BTreeSet::new() };
    let index = parse_index(&text, index_path, &mut Collector::default());
    index.weight_map.into_values().flatten().filter(|name| name_problem(name).is_none()).collect()
}

/// An index that names a file.
pub(super) struct IndexOf {
    /// Its path.
    pub(super) path: PathBuf,
    /// How many other files it names.
    pub(super) others: usize,
}

/// Returns the index in a folder that names the file `shard` in it, of several the one that names the fewest others.
pub(super) fn index_of(folder: &Path, names: &[String], shard: &str) -> Option<IndexOf> {
    let indexes = names.iter().filter(|name| is_index(name)).filter_map(|name| {
        let path = folder.join(name);
        // Most indexes speak of other files, which shows without reading them as JSON.
        let text = read_text(&path).ok().filter(|text| !shard.is_ascii() || text.contains(shard))?;
        let index = parse_index(&text, &path, &mut Collector::default());
        let shards = index.shards();
        shards.contains(shard).then(|| IndexOf { path, others: shards.len() - 1 })
    });
    indexes.min_by_key(|index| index.others)
}

/// Leaves out the state of the optimizer, which Keras keeps beside the layers; a file that holds nothing else is not
/// recognised as such by itself.
fn leave_out_optimizer(index_path: &Path, parts: &mut [Part], out: &mut Collector) {
    if !index_path.to_string_lossy().ends_with(KERAS_INDEX_ENDING) {
        return;
    }
    let of_optimizer = |key: &str| key.starts_with("optimizer/");
    let all = parts.iter().flat_map(|part| &part.tensors);
    if all.clone().all(|tensor| of_optimizer(&tensor.key)) {
        return;
    }
    let count = all.filter(|tensor| of_optimizer(&tensor.key)).count();
    if count > 0 {
        parts.iter_mut().for_each(|part| part.tensors.retain(|tensor| !of_optimizer(&tensor.key)));
        let message = format!("not read: `optimizer` (the optimizer's state, {count} tensors)");
        out.push(Diagnostic::warning(FormatCode::Skipped, message).file(index_path).tensor("optimizer"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::format::Reader;

    fn shard(keys: &[&str], metadata: &str) -> Vec<u8> {
        let mut header = format!(r#"{{"__metadata__":{{"m":"{metadata}"}}"#);
        for (at, key) in keys.iter().enumerate() {
            let end = at + 1;
            header.push_str(&format!(r#","{key}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{end}]}}"#));
        }
        header.push('}');
        file_bytes(&header, keys.len())
    }

    fn index(folder: &Path, text: &str) -> PathBuf {
        put(folder, "model.safetensors.index.json", text.as_bytes())
    }

    fn warnings(reader: &dyn Reader) -> Vec<&'static str> {
        reader.catalog().warnings.iter().map(|warning| warning.code.as_str()).collect()
    }

    #[test]
    fn shards_open_as_one_checkpoint_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().expect("folder");
        put(folder.path(), "2.safetensors", &shard(&["b"], "x"));
        put(folder.path(), "sub/1.safetensors", &shard(&["c", "a"], "x"));
        let path = index(
            folder.path(),
            r#"{"metadata":{"total_size":3.0},"weight_map":{"a":"sub/1.safetensors","b":"2.safetensors","c":"sub/1.safetensors"}}"#,
        );
        for source in [path.as_path(), folder.path()] {
            let reader = open_plain(source).expect("opens");
            let keys: Vec<&str> = reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
            assert_eq!((keys, warnings(&*reader)), (vec!["b", "c", "a"], vec![]));
            assert_eq!(reader.catalog().path, source);
            assert_eq!(reader.catalog().metadata["m"], "x");
        }
    }

    #[test]
    fn sf_11_shards_stay_in_the_folder() {
        let folder = tempfile::tempdir().expect("folder");
        let inner = folder.path().join("inner");
        put(folder.path(), "a.safetensors", &shard(&["w"], ""));
        put(&inner, "sub/a.safetensors", &shard(&["w"], ""));
        for name in [
            "../a.safetensors",
            "/etc/a.safetensors",
            "sub/../../a.safetensors",
            r"C:\\a",
            "C:a",
            r"a\u0000",
            "",
        ] {
            let path = index(&inner, &format!(r#"{{"weight_map":{{"w":"{name}"}}}}"#));
            let result = open_plain(&path);
            assert_eq!(codes(&result), ["format/path-escape"], "{name}");
            assert!(text(&result).contains(&shown(name)) || name.contains('\\'), "{name}");
        }
        assert!(open_plain(&index(&inner, r#"{"weight_map":{"w":"sub/a.safetensors"}}"#)).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn sf_11_links_out_of_the_folder_need_leave() {
        let folder = tempfile::tempdir().expect("folder");
        let inner = folder.path().join("inner");
        put(folder.path(), "blob", &shard(&["w"], ""));
        put(&inner, "real", &shard(&["v"], ""));
        std::os::unix::fs::symlink("../blob", inner.join("out.safetensors")).expect("link");
        std::os::unix::fs::symlink("real", inner.join("in.safetensors")).expect("link");
        let path = index(&inner, r#"{"weight_map":{"w":"out.safetensors","v":"in.safetensors"}}"#);
        let result = open_plain(&path);
        assert_eq!(codes(&result), ["format/path-escape"]);
        assert!(
            text(&result).contains("--allow outside-link") && text(&result).contains("`out.safetensors`")
        );
        assert!(
            super::super::open(&path, &OpenOptions { allow_outside_links: true, ..OpenOptions::default() })
                .is_ok()
        );
    }

    #[test]
    fn sf_12_all_missing_shards_are_listed() {
        let folder = tempfile::tempdir().expect("folder");
        put(folder.path(), "model-00001-of-00002.safetensors", &shard(&["a"], ""));
        let path = index(
            folder.path(),
            r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#,
        );
        let result = open_plain(&path);
        assert_eq!(codes(&result), ["format/missing-shard"]);
        assert!(
            text(&result).contains("1 of the 2 shards")
                && text(&result).contains("model-00002-of-00002.safetensors")
        );
    }

    #[test]
    fn sf_13_the_index_is_compared_with_the_shards() {
        let folder = tempfile::tempdir().expect("folder");
        put(folder.path(), "s1", &shard(&["v", "u"], "1"));
        put(folder.path(), "s2", &shard(&["w"], "2"));
        let path = index(
            folder.path(),
            r#"{"metadata":{"total_size":12345},"weight_map":{"v":"s1","w":"s1","x":"s1"}}"#,
        );
        let result = open_plain(&path);
        let expected = [
            "format/not-indexed",
            "format/index-tensor-not-in-shard",
            "format/index-tensor-not-in-shard",
            "format/total-size",
        ];
        assert_eq!(codes(&result), expected);
        assert!(text(&result).contains("`s1`, which does not hold it; it is in `s2`"));
        assert!(text(&result).contains("no other file has it") && text(&result).contains("12345"));

        let path = index(folder.path(), r#"{"weight_map":{"v":"s1","w":"s2"}}"#);
        let reader = open_plain(&path).expect("opens");
        assert_eq!(warnings(&*reader), ["format/not-indexed", "format/metadata-conflict"]);
        assert_eq!((reader.catalog().tensors.len(), reader.catalog().metadata["m"].as_str()), (3, "1"));

        // Of a tensor that two shards hold, the one that the index names counts.
        put(folder.path(), "s2", &shard(&["w", "v"], "1"));
        let reader = open_plain(&path).expect("opens");
        assert_eq!(warnings(&*reader), ["format/index-decides", "format/not-indexed"]);
        let v = &reader.catalog().tensors[reader.catalog().find("v").expect("is there")];
        assert_eq!((reader.catalog().tensors.len(), v.file), (3, 0));
        // One that it does not name is a question.
        put(folder.path(), "s2", &shard(&["w", "u"], "1"));
        let result = open_plain(&path);
        assert!(codes(&result).contains(&"format/duplicate-key"));
        assert!(text(&result).contains("`s1` and `s2`"));
    }

    #[test]
    fn a_byte_order_mark_before_the_index_is_passed_over() {
        let folder = tempfile::tempdir().expect("folder");
        put(folder.path(), "s1", &shard(&["v"], "1"));
        let text = "\u{feff}{\"weight_map\":{\"v\":\"s1\"}}";
        assert_eq!(open_plain(&index(folder.path(), text)).expect("opens").catalog().tensors.len(), 1);
    }

    #[test]
    fn an_index_is_checked_too() {
        let folder = tempfile::tempdir().expect("folder");
        put(folder.path(), "s", &shard(&["a"], ""));
        for (text, code) in [
            (r#"{"weight_map":{"a":"s","\u0061":"s"}}"#, "format/duplicate-key"),
            (r#"{"weight_map":{"a":"s"},"weight_map":{"a":"s"}}"#, "format/duplicate-key"),
            (r#"{"weight_map":{"a":1}}"#, "format/bad-index"),
            (r#"{"weight_map":[]}"#, "format/bad-index"),
            (r#"{"model_type":"llama"}"#, "format/no-weights"),
            (r#"{"other":"text"}"#, "format/bad-index"),
            (r#"{"weight_map":"#, "format/bad-index"),
        ] {
            assert!(codes(&open_plain(&index(folder.path(), text))).contains(&code), "{text}");
        }
        put(folder.path(), "s", b"PK\x03\x04");
        let result = open_plain(&index(folder.path(), r#"{"weight_map":{"a":"s"}}"#));
        assert_eq!(codes(&result), ["format/zip"]);
    }

    #[test]
    fn a_large_index_is_read_beside_files_as_large() {
        let folder = tempfile::tempdir().expect("folder");
        let text = r#"{"weight_map": {"a": "a.safetensors"}}"#;
        let path = put(folder.path(), "x.safetensors.index.json", text.as_bytes());
        let read = |free: usize| read_text_over(&path, free as u64);
        assert_eq!(read(text.len()).expect("within"), text);
        let errors = read(text.len() - 1).expect_err("nothing is beside it");
        assert!(errors.to_string().contains("more than the files beside it"), "{errors}");
        put(folder.path(), "a.safetensors", &[0; 3]);
        assert_eq!(read(text.len() - 3).expect("as large"), text);
        assert!(read(text.len() - 4).is_err());
    }

    #[test]
    fn the_index_of_keras_names_the_files_of_groups() {
        let folder = tempfile::tempdir().expect("folder");
        put(folder.path(), "m_00000.weights.h5", &shard(&["layers/a/vars/0", "layers/b/vars/0"], ""));
        put(folder.path(), "m_00001.weights.h5", &shard(&["layers/b/vars/1", "optimizer/vars/0"], ""));
        let path = put(
            folder.path(),
            "m.weights.json",
            br#"{"metadata":{"total_size":99.0},"weight_map":{"/layers/a/vars":["m_00000.weights.h5"],
                "/layers/b/vars":["m_00000.weights.h5","m_00001.weights.h5"],"/optimizer/vars":"m_00001.weights.h5"}}"#,
        );
        for source in [path.as_path(), folder.path()] {
            let reader = open_plain(source).expect("opens");
            let keys: Vec<&str> = reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
            assert_eq!(keys, ["layers/a/vars/0", "layers/b/vars/0", "layers/b/vars/1"]);
            assert_eq!(warnings(&*reader), ["format/skipped"]);
        }
        assert_eq!(codes(&open_plain(&folder.path().join("m_00001.weights.h5"))), ["format/one-shard"]);
        put(folder.path(), "m_00001.weights.h5", &shard(&["optimizer/vars/0"], ""));
        let result = open_plain(&path);
        assert_eq!(codes(&result), ["format/index-tensor-not-in-shard", "format/skipped"]);
        std::fs::remove_file(folder.path().join("m_00001.weights.h5")).expect("removes");
        assert_eq!(codes(&open_plain(folder.path())), ["format/missing-shard"]);
    }
}
