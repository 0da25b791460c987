//! What one file of a checkpoint gives, whatever its format, and a checkpoint made of such parts.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::assembled::assembled;
use super::member::Membership;
use super::store::{OpenFile, Store};
use super::{Format, Reader, shown};
use crate::catalog::{Catalog, ExtentContent, TensorMeta, row_major};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode, Severity};
use crate::read::ReadAt;

/// The codes of tensors that are sound and of a kind that is not read.
const UNREAD: &[FormatCode] = &[
    FormatCode::UnsupportedTensor,
    FormatCode::UnsupportedDtype,
    FormatCode::Hdf5Storage,
    FormatCode::ZipMethod,
    FormatCode::UnknownDtype,
    FormatCode::ObjectArray,
    FormatCode::OpaqueDtype,
];

/// One file of a checkpoint, or the files that its format keeps together: open, with its header checked.
#[derive(Debug)]
pub(crate) struct Part {
    /// What it is.
    pub(crate) format: Format,
    /// All files that are read, at least one; the first is the one that was named.
    pub(crate) files: Vec<Arc<OpenFile>>,
    /// Where bytes are read, with the index in [`Part::files`] of the file that they come from.
    pub(crate) stores: Vec<(usize, Arc<dyn Store>)>,
    /// The tensors; [`TensorMeta::file`] is an index into [`Part::stores`] here.
    pub(crate) tensors: Vec<TensorMeta>,
    /// The tensors that lie in extents, each of which has its file in [`Part::stores`].
    pub(crate) in_extents: Vec<TensorMeta>,
    /// The free-form metadata.
    pub(crate) metadata: BTreeMap<String, String>,
    /// What stands among the tensors and cannot be read; see [`Catalog::unread`].
    pub(crate) unread: Vec<(String, Diagnostic)>,
    /// What else the file says of itself, as a tree of JSON; see [`Catalog::facts`].
    pub(crate) facts: Option<serde_json::Value>,
    /// What it says of other files that belong to it.
    pub(crate) member: Option<Membership>,
}

impl Part {
    /// Makes a part of one file whose tensors are read where they lie, as store 0.
    pub(crate) fn of(format: Format, file: &Arc<OpenFile>) -> Part {
        let stores: Vec<(usize, Arc<dyn Store>)> = vec![(0, Arc::clone(file) as Arc<dyn Store>)];
        let files = vec![Arc::clone(file)];
        Part {
            format,
            files,
            stores,
            tensors: Vec::new(),
            in_extents: Vec::new(),
            metadata: BTreeMap::new(),
            unread: Vec::new(),
            facts: None,
            member: None,
        }
    }

    /// Adds a store of the first file's bytes and returns its index.
    pub(crate) fn add_store(&mut self, store: Arc<dyn Store>) -> usize {
        self.stores.push((0, store));
        self.stores.len() - 1
    }

    /// Reports what is wrong with one tensor: one of a kind that is not read is an error only where it is needed, a damaged
    /// one is always.
    pub(crate) fn refuse(&mut self, key: String, diagnostic: Diagnostic, out: &mut Collector) {
        let diagnostic = if diagnostic.file.is_none() { diagnostic.file(self.path()) } else { diagnostic };
        let diagnostic = if diagnostic.tensors.is_empty() { diagnostic.tensor(&key) } else { diagnostic };
        if UNREAD.iter().any(|code| diagnostic.code == *code) {
            self.unread.push((key, diagnostic));
        } else {
            out.push(diagnostic);
        }
    }

    /// Returns the path of the file that was named.
    pub(super) fn path(&self) -> &Path {
        &self.files[0].path
    }
}

/// A checkpoint of one or more parts.
#[derive(Debug)]
pub(crate) struct PartsReader {
    format: Format,
    pub(crate) catalog: Catalog,
    /// The tensors that lie in extents, which the catalog lacks.
    in_extents: Vec<TensorMeta>,
    files: Vec<Arc<OpenFile>>,
    stores: Vec<Arc<dyn Store>>,
}

/// Makes one checkpoint of parts; `source` is what the user named.
pub(crate) fn assemble(source: &Path, parts: Vec<Part>, mut out: Collector) -> Result<PartsReader, Errors> {
    check_distinct(&parts, &mut out);
    let metadata = merge_metadata(&parts, &mut out);
    for (_, reason) in parts.iter().flat_map(|part| &part.unread) {
        let mut warning = reason.clone();
        warning.severity = Severity::Warning;
        out.push(warning);
    }
    let ((), warnings) = out.finish(())?;
    let format = parts.first().map_or(Format::Safetensors, |part| part.format);
    let (mut files, mut stores, mut named, mut tensors) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut in_extents, mut unread, mut facts) = (Vec::new(), Vec::new(), Vec::new());
    for mut part in parts {
        unread.append(&mut part.unread);
        facts.extend(part.facts.take().map(|said| (part.path().to_owned(), said)));
        let first = stores.len();
        for (file, store) in part.stores {
            named.push((part.files[file].path.clone(), part.files[file].size));
            stores.push(store);
        }
        files.extend(part.files);
        for mut tensor in part.in_extents {
            tensor.extents.iter_mut().for_each(|extent| match &mut extent.content {
                ExtentContent::Stored { file, .. } => *file += first,
                ExtentContent::Fill(_) => {}
            });
            in_extents.push(tensor);
        }
        tensors.extend(part.tensors.into_iter().map(|mut tensor| {
            tensor.file += first;
            straighten(&mut tensor);
            tensor
        }));
    }
    let mut catalog = Catalog::new(source.to_owned(), named, tensors);
    catalog.metadata = metadata;
    catalog.unread = unread;
    catalog.facts = facts;
    catalog.warnings = warnings;
    Ok(PartsReader { format, catalog, in_extents, files, stores })
}

impl PartsReader {
    /// Returns the checkpoint with its tensors that lie in extents put together.
    ///
    /// # Errors
    /// As [`assembled`].
    pub(super) fn whole(mut self) -> Result<Box<dyn Reader>, Errors> {
        let in_extents = std::mem::take(&mut self.in_extents);
        if in_extents.is_empty() { Ok(Box::new(self)) } else { assembled(Box::new(self), in_extents) }
    }
}

/// Gives dimensions of one element, whose stride says nothing, the stride of a row-major tensor.
fn straighten(tensor: &mut TensorMeta) {
    if tensor.shape.contains(&0) {
        tensor.strides = row_major(&tensor.shape);
        return;
    }
    for dim in (0..tensor.shape.len()).rev().filter(|&dim| tensor.shape[dim] == 1) {
        tensor.strides[dim] = match (tensor.strides.get(dim + 1), tensor.shape.get(dim + 1)) {
            (Some(stride), Some(size)) => stride * size,
            _ => 1,
        };
    }
}

fn check_distinct(parts: &[Part], out: &mut Collector) {
    let mut owners: HashMap<&str, &Path> = HashMap::new();
    for part in parts {
        for entry in part.tensors.iter().chain(&part.in_extents) {
            if let Some(first) = owners.insert(&entry.key, part.path()) {
                let names = (name_of(first), name_of(part.path()));
                let (message, help) = if first == part.path() {
                    (format!("the tensor is twice in `{}`", names.0), "download or save the file again")
                } else {
                    // Either file may hold tensors that no other has, so that none can be left out.
                    let message = format!("the tensor is in two files, `{}` and `{}`", names.0, names.1);
                    (message, "find out which of the two is meant: an index that names its file decides")
                };
                let diagnostic = Diagnostic::error(FormatCode::DuplicateKey, message).tensor(&entry.key);
                out.push(diagnostic.file(part.path()).help(help));
            }
        }
    }
}

fn merge_metadata(parts: &[Part], out: &mut Collector) -> BTreeMap<String, String> {
    let mut merged: BTreeMap<String, String> = BTreeMap::new();
    for part in parts {
        for (key, value) in &part.metadata {
            let kept = merged.entry(key.clone()).or_insert_with(|| value.clone());
            if kept != value {
                let message = format!("the files' metadata disagree about `{}`", shown(key));
                let diagnostic = Diagnostic::warning(FormatCode::MetadataConflict, message).file(part.path());
                let texts = (shown(kept), shown(value));
                out.push(
                    diagnostic
                        .expected(format!("`{}`, which is kept", texts.0))
                        .found(format!("`{}`", texts.1)),
                );
            }
        }
    }
    merged
}

/// Returns a file's name without its folders, for a message.
fn name_of(path: &Path) -> String {
    shown(&path.file_name().unwrap_or(path.as_os_str()).to_string_lossy())
}

impl ReadAt for PartsReader {
    fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Some(store) = self.stores.get(file) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no file {file}")));
        };
        store.read_exact_at(offset, buffer)
    }
}

impl Reader for PartsReader {
    fn format(&self) -> Format {
        self.format
    }

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn stamps(&self) -> Vec<String> {
        self.files.iter().map(|file| file.stamp()).collect()
    }

    fn unchanged(&self) -> Result<(), Errors> {
        let mut out = Collector::default();
        for file in &self.files {
            if let Err(errors) = file.unchanged() {
                out.extend(errors);
            }
        }
        out.finish(()).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    #[test]
    fn a_stride_that_says_nothing_changes_nothing() {
        let strides = |shape: &[u64], strides: &[u64]| {
            let (shape, strides) = (shape.to_vec(), strides.to_vec());
            let mut tensor = TensorMeta {
                key: "a".into(),
                dtype: Dtype::F32,
                shape,
                strides,
                file: 0,
                offset: 0,
                extents: Vec::new(),
            };
            straighten(&mut tensor);
            tensor.strides
        };
        assert_eq!(strides(&[1, 4], &[999, 1]), [4, 1]);
        assert_eq!(strides(&[4, 1, 1], &[1, 7, 0]), [1, 1, 1]);
        assert_eq!(strides(&[4, 3], &[1, 4]), [1, 4]);
        assert_eq!(strides(&[2, 0], &[5, 5]), crate::catalog::row_major(&[2, 0]));
    }
}
