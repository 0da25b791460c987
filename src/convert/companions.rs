//! The files beside the weights: carried over, or written anew where the target layout names sizes otherwise.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Conversion;
use super::config::{Config, WrittenConfig, serves};
use crate::bind::Bound;
use crate::catalog::Catalog;
use crate::diag::{Collector, ConvertCode, Diagnostic, Errors, FormatCode};
use crate::exec::publish::{Destination, io_error};
use crate::fold::fold_keys;
use crate::format::Format;
use crate::format::output::{Companion, Content};
use crate::mapping::select::Selection;
use crate::provenance::{Document, Provenance};

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
        all.model_type.clone_from(&written.model_type);
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

impl Conversion<'_> {
    /// Returns a warning where the destination's folder holds other files of weights, of which a reader may take one instead.
    pub fn other_weights(&self, destination: &Destination) -> Option<Diagnostic> {
        let Destination::Folder(folder) = destination else { return None };
        let is_output = |name: &str| self.layout.files.iter().any(|file| file.name == name);
        let entries =
            std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut others: Vec<String> =
            entries.filter(|name| Format::of_ending(Path::new(name)).is_some() && !is_output(name)).collect();
        others.sort_unstable();
        let (count, others) = (others.len(), fold_keys(others.iter().map(String::as_str)));
        let message =
            "the destination holds other files of weights; a reader of the folder may take one of them";
        let found = others.iter().take(8).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let warning = Diagnostic::warning(FormatCode::OtherWeights, message).file(folder).found(found);
        (count > 0).then(|| warning.help("write to an empty folder, or remove what is of another model"))
    }
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
            if !config.kept.is_empty() {
                lines.push(format!("{} keeps as they are: {}", config.name, config.kept.join(", ")));
            }
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
