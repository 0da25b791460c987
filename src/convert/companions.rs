//! The files beside the weights: carried over, or written anew where the target layout names sizes otherwise.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::bind::Bound;
use crate::catalog::Catalog;
use crate::diag::{Collector, ConvertCode, Diagnostic, Errors, FormatCode};
use crate::exec::publish::io_error;
use crate::format::output::{Companion, Content};
use crate::mapping::ConfigEntry;
use crate::mapping::select::Selection;
use crate::mapping::setting::{Origin, Setting};
use crate::provenance::{Document, Facts, Provenance};

/// The endings of files that are carried over: configs, vocabularies, chat templates.
const ENDINGS: &[&str] = &["json", "jsonl", "txt", "model", "tiktoken", "jinja", "codes", "vocab"];

/// The most bytes of a file that is carried over, where nothing else is said.
const LARGEST: u64 = 256 << 20;

/// What is carried over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carry {
    /// The most bytes of one file (`--max-companion-size`).
    pub(super) largest: Option<u64>,
    /// Whether links may leave the source folder (`--allow outside-link`).
    pub(super) outside_links: bool,
}

/// The files that go beside the output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Companions {
    /// Their names and content.
    pub files: Vec<Companion>,
    /// The names of those that are carried over unchanged.
    pub carried: Vec<String>,
    /// The config that is written, where one is.
    pub config: Option<WrittenConfig>,
    /// What is not carried over although its name says that it belongs to the model, and why.
    pub left: Vec<Diagnostic>,
    /// What a config that goes to another layout unchanged says of the model.
    pub model_type: Option<String>,
}

/// A config in the target framework's terms.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenConfig {
    /// Its file's name.
    pub name: String,
    /// The entries that the mapping tells.
    pub told: Vec<String>,
    /// The target's entries, and those of the source's config, that the mapping cannot tell.
    pub untold: Vec<String>,
}

/// Collects the files that go beside the output in a folder: those of the source folder, or the config of a source that is
/// one file, and the target's config.
///
/// # Errors
/// Returns what the system refuses.
pub(super) fn companions(
    selection: &Selection,
    source: &Path,
    bound: &Bound,
    (provenance, catalog): (&Provenance, &Catalog),
    carry: Carry,
) -> Result<Companions, Errors> {
    let facts = provenance.of(selection.source());
    let (config, target) = (facts.config(), selection.target());
    let mut all = Companions::default();
    let mut found = Vec::new();
    if source.is_dir() {
        found = carried(source, carry, &is_companion, &mut all.left)?;
    } else if let Some(path) = config.and_then(Document::path).filter(|_| target.has_config_file()) {
        // Of what lies beside a file that is named alone, its config describes it; the rest may be another model's.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let is_it = |name: &str| path.file_name().is_some_and(|own| own == name);
        found = carried(folder, carry, &is_it, &mut all.left)?;
        // One that the caller has named may have any name; the target's framework looks for its own.
        if provenance.is_named() {
            found.iter_mut().for_each(|(name, _)| target.config_file().clone_into(name));
        }
    }
    if let Some(document) = facts.document()
        && target.has_config_file()
        && !target.config.is_empty()
        && config.is_none_or(|config| !serves(selection, bound, config))
    {
        let (text, written) = Config { selection, bound, facts, document, catalog }.write();
        found.retain(|(name, _)| source.is_dir() && *name != written.name && *name != document.name);
        all.files.push(Companion { name: written.name.clone(), content: Content::Bytes(text) });
        all.config = Some(written);
    }
    let other = selection.source().name != selection.target().name;
    let goes = |config: &Document| {
        found.iter().any(|(name, _)| *name == config.name || name == target.config_file())
    };
    if let Some(config) = config.filter(|config| other && all.config.is_none() && goes(config)) {
        all.model_type = config.get("model_type").and_then(Value::as_str).map(str::to_owned);
    }
    for (name, path) in found {
        all.carried.push(name.clone());
        let content = Content::Copy(path, carry.largest.unwrap_or(LARGEST));
        all.files.push(Companion { name, content });
    }
    Ok(all)
}

/// Returns the names of a folder's files that are wanted and carried over, sorted, and where they lie without links.
fn carried(
    folder: &Path,
    carry: Carry,
    wanted: &dyn Fn(&str) -> bool,
    left: &mut Vec<Diagnostic>,
) -> Result<Vec<(String, PathBuf)>, Errors> {
    let fail = |error| Errors::from(io_error(folder, "list the folder", &error));
    let root = folder.canonicalize().map_err(fail)?;
    let largest = carry.largest.unwrap_or(LARGEST);
    let mut found = Vec::new();
    let mut errors = Collector::default();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        if !wanted(&name.to_string_lossy()) {
            continue;
        }
        let path = entry.path();
        let mut leave = |why: String| {
            let warning = Diagnostic::warning(ConvertCode::Companion, format!("not carried over: {why}"));
            left.push(warning.file(&path));
        };
        let Some(name) = name.to_str() else {
            leave("its name is not UTF-8".to_owned());
            continue;
        };
        let (real, data) = match path.canonicalize().and_then(|real| Ok((real.clone(), real.metadata()?))) {
            Ok(both) => both,
            Err(error) => {
                leave(error.to_string());
                continue;
            }
        };
        if data.is_dir() {
            continue;
        }
        // As the rule of weights has it (`format::shards`), but for the links that every snapshot is made of.
        if !real.starts_with(&root) && !carry.outside_links && !is_blob(&root, &real) {
            let message = "a file beside the weights is a symbolic link that leaves the folder";
            let help = "if you trust the link, give `--allow outside-link`; else remove it";
            let found = format!("`{}`", real.display());
            errors
                .push(Diagnostic::error(FormatCode::PathEscape, message).file(&path).found(found).help(help));
        } else if !data.is_file() {
            leave("it is no regular file".to_owned());
        } else if data.len() > largest {
            let size = data.len();
            leave(format!(
                "it has {size} bytes, more than {largest}; `--max-companion-size {size}` takes it along"
            ));
        } else {
            found.push((name.to_owned(), real));
        }
    }
    found.sort_unstable();
    errors.finish(found).map(|(found, _)| found)
}

/// Returns whether a file is one of the content that a snapshot of the Hugging Face hub's cache links to:
/// `snapshots/REVISION/FILE` is a link to `../../blobs/HASH` (huggingface/huggingface_hub,
/// `src/huggingface_hub/file_download.py`).
fn is_blob(snapshot: &Path, real: &Path) -> bool {
    let Some(snapshots) = snapshot.parent().filter(|parent| parent.ends_with("snapshots")) else {
        return false;
    };
    let is_hash = |name: &str| name.len() >= 40 && name.bytes().all(|b| b.is_ascii_hexdigit());
    let blobs = snapshots.parent().map(|repository| repository.join("blobs"));
    blobs.as_deref() == real.parent() && real.file_name().and_then(|name| name.to_str()).is_some_and(is_hash)
}

fn is_companion(name: &str) -> bool {
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let trainer = name.starts_with("trainer_") || name.starts_with("training_") || name == "all_results.json";
    let known =
        ENDINGS.contains(&ending) || name.starts_with("LICENSE") || name.starts_with("tokenizer.model");
    known && !name.starts_with('.') && !name.ends_with(".index.json") && !trainer
}

/// Returns whether the source's config tells the target layout's sizes, and so serves it as it is.
fn serves(selection: &Selection, bound: &Bound, config: &Document) -> bool {
    let (source, target) = (selection.source(), selection.target());
    if target.config.is_empty() {
        return true;
    }
    let same_file = source.config_file() == target.config_file();
    let guards = target.when.iter().all(|condition| condition.holds(config.get(&condition.key)));
    let sizes = target.config.iter().all(|(axis, entry)| {
        let known = size_of(bound, axis);
        let value = entry.keys.iter().find_map(|key| config.get(key)?.as_f64());
        let told = value.and_then(|value| entry.size(value, &|name| size_of(bound, name)));
        let absent = entry.absent.as_ref().filter(|_| value.is_none());
        let taken = absent.and_then(|absent| absent.eval_size(&|name| size_of(bound, name)));
        // What no side tells is missing in both.
        known.is_none() || told.or(taken) == known
    });
    same_file && guards && sizes
}

/// Returns the size of an axis, where the whole checkpoint has one.
fn size_of(bound: &Bound, axis: &str) -> Option<u64> {
    let mut sizes = bound.sizes.iter().filter(|size| size.axis == axis).map(|size| size.value);
    let first = sizes.next()?;
    sizes.all(|size| size == first).then_some(first)
}

/// The config that is written for the target's framework: from the bound sizes, and from what describes the source.
struct Config<'a> {
    selection: &'a Selection,
    bound: &'a Bound,
    facts: Facts<'a>,
    /// What describes the source.
    document: &'a Document,
    catalog: &'a Catalog,
}

impl<'a> Config<'a> {
    fn write(&self) -> (Vec<u8>, WrittenConfig) {
        let target = self.selection.target();
        let mut entries = Map::new();
        let (mut told, mut untold) = (Vec::new(), Vec::new());
        for (name, setting) in &target.settings {
            let Some(key) = setting.keys.first() else { continue };
            match self.value(name, setting).filter(|value| setting.usual.as_ref() != Some(value)) {
                Some(value) => {
                    put(&mut entries, key, value);
                    told.push(key.clone());
                }
                None if setting.absent.is_none() && setting.usual.is_none() => {
                    untold.push(format!("`{key}` ({name}) of {}", target.config_file()));
                }
                None => {}
            }
        }
        for (axis, entry) in &target.config {
            let Some(key) = entry.keys.first() else { continue };
            // What the framework takes by itself is not written: some read no such entry.
            let size = self.size(axis);
            let taken = entry.absent.as_ref().and_then(|absent| absent.eval_size(&|name| self.size(name)));
            if size.is_some() && taken == size {
                continue;
            }
            // One entry cannot tell two axes that differ, such as the sides of a patch.
            let agrees = target.config.iter().all(|(other, twin)| {
                twin.keys.first() != Some(key)
                    || self.entry(other, twin).is_none_or(|it| Some(it) == self.entry(axis, entry))
            });
            match self.entry(axis, entry).filter(|_| agrees) {
                Some(value) => {
                    put(&mut entries, key, value);
                    told.push(key.clone());
                }
                None => untold.push(format!("`{key}` ({axis}) of {}", target.config_file())),
            }
        }
        for condition in &target.when {
            if let Some(value) = condition.allowed.iter().find(|value| !value.is_null()) {
                put(&mut entries, &condition.key, value.clone());
                told.push(condition.key.clone());
            }
        }
        untold.extend(self.unused().map(|key| format!("`{key}` of {}", self.document.name)));
        // Tensors that say what a config says elsewhere: the scaling of rotary frequencies.
        let computed = &self.selection.source().computed;
        let is_computed = |key: &str| computed.iter().any(|it| it.template.matches("", key).is_some());
        let dropped =
            self.bound.dropped.iter().map(|dropped| self.catalog.tensors[dropped.tensor].key.as_str());
        untold.extend(
            dropped.filter(|key| is_computed(key)).map(|key| format!("what the tensor `{key}` says")),
        );
        let text = serde_json::to_string_pretty(&Value::Object(entries)).unwrap_or_default() + "\n";
        (text.into_bytes(), WrittenConfig { name: target.config_file().to_owned(), told, untold })
    }

    fn size(&self, axis: &str) -> Option<u64> {
        size_of(self.bound, axis)
    }

    /// Returns what an entry for a size says.
    fn entry(&self, axis: &str, entry: &ConfigEntry) -> Option<Value> {
        entry.value_for(self.size(axis)?, &|name| self.size(name)).and_then(number)
    }

    /// Returns the value of a setting of the target.
    fn value(&self, name: &str, setting: &Setting) -> Option<Value> {
        match &setting.origin {
            Origin::Fixed(value) => Some(value.clone()),
            Origin::Size(axis) => self.size(axis).map(Value::from),
            Origin::Holds(param) => Some(self.holds(param).into()),
            Origin::Lacks(param) => Some((!self.holds(param)).into()),
            Origin::Carried => {
                let source = self.selection.source().settings.get(name)?;
                let told = self.facts.first(&source.keys).map(|fact| fact.value.clone());
                let usual = |value: &Value| source.usual.as_ref() == Some(value);
                let value = told.or_else(|| source.absent.clone());
                let value = value.filter(|value| !value.is_null() && !usual(value))?;
                // GGUF has one type of numbers for all entries of a kind; a framework that takes a whole one refuses 8.0.
                let wants_whole = setting.absent.as_ref().is_some_and(Value::is_i64);
                Some(if wants_whole { value.as_f64().and_then(number).unwrap_or(value) } else { value })
            }
        }
    }

    /// Returns whether the output has a tensor for a parameter.
    fn holds(&self, param: &str) -> bool {
        let rules = &self.selection.target().rules;
        let of = |rule: usize| rules.get(rule).is_some_and(|rule| rule.expr.params().contains(&param));
        self.bound.targets.iter().any(|target| of(target.reading.rule))
    }

    /// Returns the entries of the source's description that neither its layout nor the target's reads.
    ///
    /// Of GGUF's metadata those under the architecture's name alone are the model's own: the others describe the file and
    /// the vocabulary. A pickle's settings describe a training run.
    fn unused(&self) -> impl Iterator<Item = &'a str> {
        let (source, target) = (self.selection.source(), self.selection.target());
        let (document, facts, bound) = (self.document, self.facts, self.bound);
        let own = document.architecture().map(|name| format!("{name}."));
        let is_model = move |key: &str| match &own {
            Some(prefix) => key.starts_with(prefix.as_str()),
            None => document.is_file(),
        };
        let root = |key: &'a str| key.split('.').next().unwrap_or(key);
        let covers =
            move |keys: &'a [String], key: &str| keys.iter().any(|known| known == key || root(known) == key);
        let says_nothing = move |setting: &Setting| {
            let value = facts.first(&setting.keys).map(|fact| fact.value);
            let size = match &setting.origin {
                Origin::Size(axis) => size_of(bound, axis).map(Value::from),
                _ => None,
            };
            value.is_none() || value == setting.usual.as_ref() || value == size.as_ref()
        };
        let used = move |key: &str| {
            source.config.values().any(|entry| covers(&entry.keys, key))
                || source.when.iter().any(|condition| covers(std::slice::from_ref(&condition.key), key))
                || {
                    let mut covering =
                        source.settings.iter().filter(|(_, setting)| covers(&setting.keys, key)).peekable();
                    let told = |(name, setting): (&String, &Setting)| {
                        target.settings.contains_key(name) || says_nothing(setting)
                    };
                    covering.peek().is_some() && covering.all(told)
                }
        };
        let keys = document.value.as_object().into_iter().flat_map(|object| object.keys());
        keys.map(String::as_str).filter(move |key| is_model(key) && !used(key))
    }
}

/// Puts a value under a key whose dots reach into nested objects.
fn put(entries: &mut Map<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            entries.insert(key.to_owned(), value);
        }
        Some((first, rest)) => {
            let nested = entries.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(nested) = nested {
                put(nested, rest, value);
            }
        }
    }
}

/// Returns a number as JSON, whole where it is whole.
fn number(value: f64) -> Option<Value> {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Some((value as i64).into());
    }
    serde_json::Number::from_f64(value).map(Value::Number)
}

/// Says what goes beside the output, for the one who runs the conversion.
impl Companions {
    /// Returns a line for each thing to say.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.carried.is_empty() {
            lines.push(format!("carried over unchanged: {}", self.carried.join(", ")));
        }
        if let Some(model) = &self.model_type {
            lines.push(format!("config.json still says that it is a `{model}`"));
        }
        if let Some(config) = &self.config {
            let told = if config.told.is_empty() { "nothing".to_owned() } else { config.told.join(", ") };
            lines.push(format!("{} written anew, with {told}", config.name));
        }
        lines
    }

    /// Returns a warning where the config that is written lacks something.
    pub(super) fn warning(&self, source: &Path) -> Option<Diagnostic> {
        let config = self.config.as_ref().filter(|config| !config.untold.is_empty())?;
        let message = format!("{} is written as far as the mapping tells", config.name);
        let diagnostic = Diagnostic::warning(ConvertCode::Config, message).file(source);
        Some(
            diagnostic
                .found(format!("not told: {}", config.untold.join(", ")))
                .help("add what is missing by hand"),
        )
    }
}
