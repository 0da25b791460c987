//! Reading a `.keras` archive: a zip archive with a model's configuration and an HDF5 file of its weights.
//! (keras-team/keras, `keras/src/saving/saving_lib.py`)

use std::sync::Arc;

use serde_json::Value;

use super::read::read_region;
use super::region::Region;
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::format::facts;
use crate::format::part::Part;
use crate::format::store::{OpenFile, Spool, Store};
use crate::format::zip::read::{Entry, bytes, entries, extract};
use crate::format::{Format, OpenOptions, shown};

/// The entry that holds the weights.
const WEIGHTS: &str = "model.weights.h5";

/// The most bytes of a text that says what the model is.
const MOST_TEXT: u64 = 1 << 20;

/// Reads the structures of the weights in a `.keras` archive. The archive stores them as they are, unless another
/// program packed it again; they are unpacked into a temporary file then.
///
/// # Errors
/// Returns `format/keras` where it cannot be told which entry holds the weights.
pub(in crate::format) fn read_keras(
    file: &Arc<OpenFile>,
    options: &OpenOptions,
    out: &mut Collector,
) -> Result<Part, Errors> {
    let entries = entries(file)?;
    let entry = weights(&entries).ok_or_else(|| {
        let diagnostic = Diagnostic::error(FormatCode::Keras, "the archive holds no one file of weights");
        let names: Vec<String> = entries.iter().take(8).map(|entry| shown(&entry.name)).collect();
        let help = "save the model again as `model.keras`, or unpack it and name the file of weights";
        diagnostic.file(&file.path).expected(WEIGHTS).found(names.join(", ")).help(help)
    })?;
    if let Some(method) = &entry.unread {
        let message = format!("its weights are compressed with {method}, which is not read");
        let help = "unpack the archive and name the file of weights";
        return Err(Diagnostic::error(FormatCode::Keras, message).file(&file.path).help(help).into());
    }
    let mut part = Part::of(Format::Keras, file);
    part.facts = facts(file, &entries);
    if !entry.deflated {
        let region = Region::new(Arc::clone(file) as Arc<dyn Store>, entry.start, entry.size);
        return read_region(part, 0, &region, options, out);
    }
    let mut spool = Spool::new();
    let (archive, packed) = (Arc::clone(file), entry.clone());
    spool.push(entry.size, Box::new(move |to| extract(&archive, &packed, to)));
    let unpacked: Arc<dyn Store> = Arc::new(spool);
    let store = part.add_store(Arc::clone(&unpacked));
    let region = Region::new(unpacked, 0, entry.size);
    read_region(part, store, &region, options, out)
}

/// Returns what the archive says of its model, as the attribute of an HDF5 file of a whole model does: `model_config`, and
/// what stands in its metadata (the version of Keras).
fn facts(file: &Arc<OpenFile>, entries: &[Entry]) -> Option<Value> {
    let read = |name: &str| {
        let entry = entries.iter().find(|entry| entry.name == name)?;
        // A text that cannot be read says nothing; the weights do not depend on it.
        let text = String::from_utf8(bytes(file, entry, MOST_TEXT).ok()?).ok()?;
        facts::parsed(&text)
    };
    let config = read("config.json").map(|config| ("model_config".to_owned(), config));
    let metadata = match read("metadata.json") {
        Some(Value::Object(entries)) => entries,
        _ => serde_json::Map::new(),
    };
    facts::of_entries(config.into_iter().chain(metadata))
}

/// Returns the entry of the weights: the one of that name, or the only one that could be.
fn weights(entries: &[Entry]) -> Option<&Entry> {
    if let Some(entry) = entries.iter().find(|entry| entry.name == WEIGHTS) {
        return Some(entry);
    }
    let mut others = entries.iter().filter(|entry| entry.name.ends_with(".weights.h5"));
    others.next().filter(|_| others.next().is_none())
}
