//! `qkvconv mapping new`: a starting mapping file from the names and shapes of a checkpoint.
//!
//! The draft is right as far as headers tell: a checkpoint converts from its layout to itself, bit for bit. What only a
//! person knows (what an axis means, where the heads lie, how the other layout names things) it leaves to be written, and
//! says where; what names merely suggest stands in `about`.

mod axes;
mod names;
mod params;
mod roles;
mod taken;
mod text;

use std::sync::Arc;

use serde::Deserialize;

use crate::catalog::Catalog;
use crate::diag::{Collector, Diagnostic, DraftCode, Errors};
use crate::dtype::Dtype;
use crate::mapping::read;
use crate::span::Source;

/// A tensor, as far as its header tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in the checkpoint.
    pub key: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, slowest dimension first.
    pub shape: Vec<u64>,
}

/// What the draft is called.
#[derive(Clone, Debug)]
pub struct Names {
    /// The family.
    pub family: String,
    /// The layout of the checkpoint.
    pub layout: String,
    /// What was read, for the file's `about`.
    pub source: String,
}

/// A starting mapping file.
#[derive(Debug)]
pub struct Draft {
    /// The file's text.
    pub text: String,
    /// What is worth knowing before it is edited, a sentence each.
    pub notes: Vec<String>,
}

/// Returns the tensors of a catalog, and which of them are one.
pub fn listed(catalog: &Catalog) -> (Vec<Tensor>, Vec<Vec<usize>>) {
    let tensor = |tensor: &crate::catalog::TensorMeta| Tensor {
        key: tensor.key.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
    };
    (catalog.tensors.iter().map(tensor).collect(), catalog.ties())
}

/// A tensor in a list of names and shapes.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
}

/// Reads a list of names and shapes, `{"name": {"dtype": "F32", "shape": [3, 5]}}`, types by the names of safetensors.
/// Returns `None` for a text that is no such list.
pub fn from_list(text: &str) -> Option<Vec<Tensor>> {
    let serde_json::Value::Object(entries) = serde_json::from_str(text).ok()? else { return None };
    let tensor = |(key, entry): (String, serde_json::Value)| {
        let Entry { dtype, shape } = serde_json::from_value(entry).ok()?;
        Some(Tensor { key, dtype: Dtype::from_name(&dtype)?, shape })
    };
    entries.into_iter().map(tensor).collect()
}

/// Writes a draft; `ties` are groups of tensors that are one, as places in the list.
///
/// # Errors
/// Returns names that no template can be written for, and a checkpoint without tensors.
pub fn draft(tensors: &[Tensor], ties: &[Vec<usize>], names: &Names) -> Result<Draft, Errors> {
    let mut errors = Collector::default();
    for tensor in tensors {
        if tensor.key.is_empty() || tensor.key.contains(['{', '}']) || tensor.key.contains("::") {
            errors.push(
                Diagnostic::error(DraftCode::Name, "no template can be written for this name")
                    .tensor(&tensor.key)
                    .expected("a name that is not empty, without `{`, `}` and `::`"),
            );
        }
    }
    if tensors.is_empty() {
        errors.push(Diagnostic::error(DraftCode::Empty, "the checkpoint has no tensors"));
    }
    errors.finish(())?;
    let folded = names::fold(tensors);
    let axes = axes::axes(tensors, &folded);
    let params = params::params(tensors, ties, &folded, &axes);
    let draft = text::text(tensors, names, &folded, &axes, &params);
    // What is handed out is a mapping file.
    read(&Arc::new(Source { name: "the draft".into(), text: draft.text.clone() }))?;
    Ok(draft)
}
