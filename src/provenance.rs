//! What a checkpoint says of itself beside its tensors: config files, and what its own files hold.
//!
//! Sizes, conditions (`when`), the model's name, recognition and the written config all read these facts through one
//! lookup, [`Facts::get`], whose keys are paths: `text_config.num_attention_heads`, `general.architecture`,
//! `args.num_query_groups`. What a config says stands before what the files hold.
//!
//! ```
//! use qkvconv::provenance::{Document, Provenance};
//!
//! let config = serde_json::json!({ "model_type": "llava", "text_config": { "num_attention_heads": 6 } });
//! let provenance = Provenance::from(Document::config("config.json", config));
//! let parts = ["text_config".to_owned(), ".".to_owned()];
//! let facts = provenance.within(None, &parts);
//! let heads = facts.get("num_attention_heads").expect("it is told");
//! assert_eq!(heads.place(), "config.json `text_config.num_attention_heads`");
//! ```

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::catalog::Catalog;
use crate::diag::{Collector, ConfigCode, Diagnostic, Errors};
use crate::mapping::{Condition, Layout};
use crate::text::{self, Unread};

/// The config files of frameworks that are looked for beside every checkpoint.
const USUAL: [&str; 2] = ["config.json", "params.json"];

/// The largest config that is read if nothing else is said, in bytes; a config of a model of thousands of layers has less
/// than one megabyte.
const LARGEST: u64 = 64 << 20;

/// The part of a config that is the config itself, among the parts that a layout reads.
const WHOLE: &str = ".";

/// The entries that name the model: Hugging Face's configs, GGUF's metadata, diffusers' configs.
///
/// huggingface/transformers `src/transformers/configuration_utils.py`, ggml-org/llama.cpp `gguf-py/gguf/constants.py`,
/// huggingface/diffusers `src/diffusers/configuration_utils.py`.
const MODEL_KEYS: [&str; 3] = ["model_type", ARCHITECTURE, "_class_name"];

/// GGUF's entry that names the model.
const ARCHITECTURE: &str = "general.architecture";

/// Facts that stand in one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Where they stand, for messages: the name of a file.
    pub name: String,
    /// The facts.
    pub value: Value,
    /// Whether they describe the model, so that an entry that is missing takes the framework's default.
    is_config: bool,
    /// Whether it is a file of its own.
    is_file: bool,
    /// Where that file lies, where it was read from one.
    path: Option<PathBuf>,
}

impl Document {
    /// Makes the document of a config.
    pub fn config(name: &str, value: Value) -> Document {
        Document { name: name.to_owned(), value, is_config: true, is_file: true, path: None }
    }

    /// Makes the document of what a checkpoint's file holds beside tensors.
    ///
    /// GGUF's metadata describe the model, and so do the settings that a training script pickled (`args`,
    /// `hyper_parameters`); numbers alone (`epoch`) and free-form texts do not.
    fn inside(name: &str, value: &Value) -> Document {
        let entries = value.as_object();
        let settings = |entry: &Value| {
            entry.as_object().is_some_and(|inner| inner.values().any(|value| !value.is_object()))
        };
        let is_config =
            entries.is_some_and(|all| all.contains_key(ARCHITECTURE) || all.values().any(settings));
        Document { name: name.to_owned(), value: value.clone(), is_config, is_file: false, path: None }
    }

    /// Reads a config file of at most so many bytes, 64 MiB if nothing is said (`--max-config-size`).
    ///
    /// # Errors
    /// Returns a file that cannot be read, is too large, or is not JSON.
    pub fn read(path: &Path, largest: Option<u64>) -> Result<Document, Diagnostic> {
        let largest = largest.unwrap_or(LARGEST);
        let text = text::read(path, largest).map_err(|unread| match unread {
            Unread::Io(error) => {
                Diagnostic::error(ConfigCode::Read, format!("cannot read the config: {error}"))
                    .file(path)
                    .help("name another with --config")
            }
            Unread::TooLarge(size) => {
                let option = size.map_or("`--max-config-size` raises the limit".to_owned(), |size| {
                    format!("`--max-config-size {size}` reads this one")
                });
                let found =
                    size.map_or("more, without an end so far".to_owned(), |size| format!("{size} bytes"));
                Diagnostic::error(ConfigCode::Read, "the config is larger than any config of a model")
                    .file(path)
                    .expected(format!("at most {largest} bytes"))
                    .found(found)
                    .help(format!("name another with --config; {option}"))
            }
        })?;
        let value = serde_json::from_str(&text).map_err(|error| {
            Diagnostic::error(ConfigCode::Json, "the config is not JSON")
                .file(path)
                .found(error.to_string())
                .help("correct it, or name another with --config")
        })?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Ok(Document { path: Some(path.to_owned()), ..Document::config(&name, value) })
    }

    /// Returns an entry that is there and not null; dots reach into nested objects.
    pub fn get(&self, key: &str) -> Option<&Value> {
        entry(&self.value, key)
    }

    /// Returns the architecture that GGUF's metadata name.
    pub(crate) fn architecture(&self) -> Option<&str> {
        self.value.get(ARCHITECTURE)?.as_str()
    }

    /// Returns the file that it was read from.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns whether it is a file of its own beside the weights.
    pub(crate) fn is_file(&self) -> bool {
        self.is_file
    }
}

/// Returns an entry of an object that is there and not null; dots reach into nested objects.
fn entry<'v>(object: &'v Value, key: &str) -> Option<&'v Value> {
    let nested = || key.split('.').try_fold(object, |value, part| value.get(part));
    object.get(key).or_else(nested).filter(|value| !value.is_null())
}

/// Everything that a checkpoint says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Provenance {
    /// The config that the caller named.
    named: Option<Document>,
    /// The configs beside the checkpoint.
    beside: Vec<Document>,
    /// What its files hold.
    inside: Vec<Document>,
}

impl From<Document> for Provenance {
    fn from(config: Document) -> Provenance {
        Provenance { named: Some(config), ..Provenance::default() }
    }
}

impl Provenance {
    /// Reads the config that the caller names, or those beside the checkpoint: the usual ones, and those of the other
    /// names; each of at most so many bytes, as [`Document::read`] takes it.
    ///
    /// # Errors
    /// Returns every file that cannot be read or is not JSON.
    pub fn read<'n>(
        source: &Path,
        named: Option<&Path>,
        names: impl IntoIterator<Item = &'n str>,
        largest: Option<u64>,
    ) -> Result<Provenance, Errors> {
        let mut errors = Collector::default();
        let mut provenance = Provenance::default();
        for path in Provenance::files(source, named, names) {
            match Document::read(&path, largest) {
                Ok(document) if named.is_some() => provenance.named = Some(document),
                Ok(document) => provenance.beside.push(document),
                Err(error) => errors.push(error),
            }
        }
        errors.finish(provenance).map(|(provenance, _)| provenance)
    }

    /// Returns the files that [`Provenance::read`] reads.
    pub fn files<'n>(
        source: &Path,
        named: Option<&Path>,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Vec<PathBuf> {
        if let Some(path) = named {
            return vec![path.to_owned()];
        }
        let Some(folder) = (if source.is_dir() { Some(source) } else { source.parent() }) else {
            return Vec::new();
        };
        let mut all: Vec<&str> = Vec::new();
        for name in names.into_iter().chain(USUAL) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all.into_iter().map(|name| folder.join(name)).filter(|path| path.is_file()).collect()
    }

    /// Returns whether the caller has named a config.
    pub fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// Adds what a checkpoint's files hold beside tensors.
    pub fn add_inside(&mut self, catalog: &Catalog) {
        for (path, value) in &catalog.facts {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            self.inside.push(Document::inside(&name, value));
        }
    }

    /// Returns the facts as a layout's framework reads them.
    pub fn of<'a>(&'a self, layout: &'a Layout) -> Facts<'a> {
        self.within(Some(layout.config_file()), &layout.part)
    }

    /// Returns the facts with a framework's config file before the usual ones, in the first of the parts that is there
    /// (`.` is the config itself).
    pub fn within<'a>(&'a self, config_file: Option<&str>, parts: &'a [String]) -> Facts<'a> {
        let beside = |name: &str| self.beside.iter().find(|document| document.name == name);
        let usual = || USUAL.iter().find_map(|name| beside(name));
        let config = self.named.as_ref().or_else(|| config_file.and_then(beside)).or_else(usual);
        Facts { config, inside: &self.inside, parts }
    }
}

/// A fact, and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact<'a> {
    /// What is told.
    pub value: &'a Value,
    document: &'a str,
    path: String,
}

impl Fact<'_> {
    /// Returns the entry's path in its document, with dots.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns where it stands, in words: `config.json` and the entry's path.
    pub fn place(&self) -> String {
        format!("{} `{}`", self.document, self.path)
    }
}

/// The facts as one layout's framework reads them.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    config: Option<&'a Document>,
    inside: &'a [Document],
    parts: &'a [String],
}

impl<'a> Facts<'a> {
    fn documents(&self) -> impl Iterator<Item = &'a Document> + use<'a> {
        self.config.into_iter().chain(self.inside)
    }

    /// Returns the object in which the layout's entries stand, and its path with a dot behind it.
    fn base(&self, document: &'a Document) -> (&'a Value, String) {
        for part in self.parts {
            if part == WHOLE {
                return (&document.value, String::new());
            }
            if let Some(value) = document.get(part).filter(|value| value.is_object()) {
                return (value, format!("{part}."));
            }
        }
        match self.parts {
            [] => (&document.value, String::new()),
            // None of the parts is there, and the whole is none of them: it speaks of another part of the model.
            _ => (&Value::Null, String::new()),
        }
    }

    /// Returns an entry that is there and not null.
    pub fn get(&self, key: &str) -> Option<Fact<'a>> {
        self.documents().find_map(|document| {
            let (base, prefix) = self.base(document);
            let value = entry(base, key)?;
            Some(Fact { value, document: &document.name, path: format!("{prefix}{key}") })
        })
    }

    /// Returns the first of several entries that is there and not null.
    pub fn first(&self, keys: &[String]) -> Option<Fact<'a>> {
        keys.iter().find_map(|key| self.get(key))
    }

    /// Returns the value of an entry that is there and not null.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.documents().find_map(|document| entry(self.base(document).0, key))
    }

    /// Says what stands under an entry, or that it is missing: `config.json`, the entry and its value.
    pub(crate) fn words(&self, key: &str) -> String {
        match self.get(key) {
            Some(fact) => format!("{} = {}", fact.place(), fact.value),
            None => format!("no `{key}` in {}", self.describes().unwrap_or("the config")),
        }
    }

    /// Returns the config file, where there is one.
    pub fn config(&self) -> Option<&'a Document> {
        self.config
    }

    /// Returns what describes the model, where something does: an entry that it lacks has the framework's default.
    pub fn document(&self) -> Option<&'a Document> {
        self.documents().find(|document| document.is_config)
    }

    /// Returns the name of what describes the model.
    pub fn describes(&self) -> Option<&'a str> {
        self.document().map(|document| document.name.as_str())
    }

    /// Returns whether conditions hold; `None` where one is about an entry that is missing and nothing describes the
    /// model.
    pub fn hold(&self, conditions: &[Condition]) -> Option<bool> {
        let mut known = true;
        for condition in conditions {
            match self.value(&condition.key) {
                None if self.describes().is_none() => known = false,
                value if !condition.holds(value) => return Some(false),
                _ => {}
            }
        }
        known.then_some(true)
    }

    /// Returns what the facts call the model, each name once: in the layout's own part, else in the whole. What a GGUF file
    /// says of itself counts alone: a config beside it may be another file's.
    pub fn models(&self) -> Vec<(&'a str, Fact<'a>)> {
        let whole = Facts { parts: &[], ..*self };
        let mut names: Vec<(&str, Fact<'_>)> = Vec::new();
        for document in self.documents() {
            let only = |facts: &Facts<'a>| Facts { config: Some(document), inside: &[], ..*facts };
            let named = |facts: Facts<'a>| {
                MODEL_KEYS.iter().find_map(|key| {
                    let fact = facts.get(key)?;
                    Some((fact.value.as_str()?, fact))
                })
            };
            let found = named(only(self)).or_else(|| named(only(&whole)));
            names.extend(found.filter(|(name, _)| !names.iter().any(|(other, _)| other == name)));
        }
        if names.iter().any(|(_, fact)| fact.path == ARCHITECTURE) {
            names.retain(|(_, fact)| fact.path == ARCHITECTURE);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_part_that_is_there_is_read_alone() {
        let nested =
            json!({ "model_type": "m", "heads": 9, "text_config": { "heads": 6, "model_type": "t" } });
        let provenance = Provenance::from(Document::config("config.json", nested));
        let place = |names: &[&str], key: &str| {
            let parts = parts(names);
            provenance.within(None, &parts).get(key).map(|fact| fact.place())
        };
        assert_eq!(place(&[], "heads").as_deref(), Some("config.json `heads`"));
        assert_eq!(
            place(&["x", "text_config", "."], "heads").as_deref(),
            Some("config.json `text_config.heads`")
        );
        assert_eq!(place(&["vision_config", "."], "heads").as_deref(), Some("config.json `heads`"));
        // Heads of the text are no heads of the vision tower.
        assert_eq!(place(&["vision_config"], "heads"), None);
        assert_eq!(place(&["text_config"], "text_config.heads"), None);
        assert_eq!(place(&[], "text_config.heads").as_deref(), Some("config.json `text_config.heads`"));
        let models = |names: &[&str]| -> Vec<String> {
            let parts = parts(names);
            let facts = provenance.within(None, &parts);
            facts.models().into_iter().map(|(name, _)| name.to_owned()).collect()
        };
        assert_eq!(models(&["text_config"]), ["t"]);
        assert_eq!(models(&["vision_config"]), ["m"]);
    }

    #[test]
    fn what_a_file_holds_stands_behind_the_config() {
        let mut catalog = Catalog::default();
        catalog.facts.push(("in/m.pt".into(), json!({ "args": { "heads": 4 }, "checkpoint_version": 2.0 })));
        catalog.facts.push(("in/n.pt".into(), json!({ "iteration": 7 })));
        let mut provenance = Provenance::default();
        provenance.add_inside(&catalog);
        let facts = provenance.within(None, &[]);
        assert_eq!(facts.get("args.heads").expect("told").place(), "m.pt `args.heads`");
        assert_eq!(facts.value("iteration"), Some(&json!(7)));
        assert_eq!(facts.describes(), Some("m.pt"));
        assert!(facts.config().is_none());
        provenance.named = Some(Document::config("config.json", json!({ "args": { "heads": 5 } })));
        assert_eq!(provenance.within(None, &[]).value("args.heads"), Some(&json!(5)));
    }

    #[test]
    fn a_gguf_file_knows_better_than_a_config_beside_it() {
        let mut catalog = Catalog::default();
        catalog.facts.push(("m.gguf".into(), json!({ "general.architecture": "qwen2" })));
        let mut provenance =
            Provenance::from(Document::config("config.json", json!({ "model_type": "llama" })));
        provenance.add_inside(&catalog);
        let models: Vec<&str> =
            provenance.within(None, &[]).models().into_iter().map(|(name, _)| name).collect();
        assert_eq!(models, ["qwen2"]);
    }

    #[test]
    fn numbers_alone_describe_no_model() {
        let mut catalog = Catalog::default();
        catalog.facts.push(("m.pt".into(), json!({ "epoch": 3 })));
        let mut provenance = Provenance::default();
        provenance.add_inside(&catalog);
        assert_eq!(provenance.within(None, &[]).describes(), None);
    }
}
