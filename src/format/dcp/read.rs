//! From the list to the chunks in the files: each is an archive of its own, which is opened to find where its elements lie.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::json;

use super::metadata::{DAMAGED, Entry, Listed, Metadata, Stored, transforms};
use crate::catalog::{Extent, ExtentContent, TensorMeta, row_major};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::format::part::Part;
use crate::format::pytorch::{item, values};
use crate::format::root::{Content, Descent, Leaf, choose};
use crate::format::safetensors::looks_like;
use crate::format::shards::{check_link, name_problem};
use crate::format::store::{OpenFile, Store};
use crate::format::{Format, OpenOptions, shown};

/// The most chunks: a list could name one of them any number of times.
const MOST_CHUNKS: usize = 1 << 20;

/// How many tensors may be wrong before the rest is not looked at.
const MOST_WRONG: usize = 20;

/// Reads the list and finds the chunks of the tensors that are the weights.
///
/// # Errors
/// Returns what is wrong with the list; what is wrong with single tensors and files goes to the collector.
pub(super) fn read(file: &Arc<OpenFile>, options: &OpenOptions, out: &mut Collector) -> Result<Part, Errors> {
    let (heap, root) = values(file)?;
    let metadata = Metadata::new(&heap, root).map_err(|error| error.file(&file.path))?;
    let leaf = |(name, entry): (&&str, &_)| {
        let content = match entry {
            Entry::Tensor(listed) => Content::Tensor(*listed),
            Entry::Object => Content::Other("a pickled object".to_owned()),
        };
        Leaf { path: metadata.path(name), content }
    };
    let leaves: Vec<Leaf<Listed<'_>>> = metadata.entries.iter().map(leaf).collect();
    let is_number =
        |_: &str, listed: &Listed<'_>| metadata.tensor(listed).is_ok_and(|tensor| tensor.shape.is_empty());
    let chosen = choose(&file.path, leaves, ".", Descent::Nested(&is_number), options, out)?;
    let mut part = Part::of(Format::Dcp, file);
    let (files, chunks) = metadata.files();
    part.facts = Some(json!({ "torch.distributed.checkpoint": {
        "version": metadata.version, "files": files, "chunks": chunks,
    } }));
    let folder = file.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut reader = Reader {
        folder,
        list: &file.path,
        options,
        metadata: &metadata,
        part,
        opened: HashMap::new(),
        items: HashMap::new(),
        missing: IndexMap::new(),
        left: MOST_CHUNKS,
    };
    let mut wrong = 0;
    for (key, listed) in chosen {
        if let Err(errors) = reader.tensor(&key, &listed) {
            wrong += 1;
            for diagnostic in errors.diagnostics() {
                reader.part.refuse(key.clone(), diagnostic.clone(), out);
            }
        }
        if wrong >= MOST_WRONG {
            break;
        }
    }
    for (name, keys) in &reader.missing {
        out.push(missing(&folder.join(name), name, keys));
    }
    Ok(reader.part)
}

/// Says that a file is not there, and what it holds.
fn missing(path: &Path, name: &str, keys: &BTreeMap<String, ()>) -> Diagnostic {
    let message = format!(
        "`{}` of the checkpoint is missing, which holds parts of {} of the tensors",
        shown(name),
        keys.len()
    );
    let diagnostic = Diagnostic::error(FormatCode::MissingShard, message).file(path);
    let diagnostic = keys.keys().fold(diagnostic, |diagnostic, key| diagnostic.tensor(key));
    diagnostic.help("fetch it too: each rank has written files of its own, which belong into one folder")
}

/// A chunk's elements: the index of the store that they lie in among those of the part, and where and how.
#[derive(Clone)]
struct Item {
    store: usize,
    tensor: TensorMeta,
}

struct Reader<'h, 'a> {
    folder: &'a Path,
    list: &'a Path,
    options: &'a OpenOptions,
    metadata: &'a Metadata<'h>,
    part: Part,
    /// The files, each with its index among those of the part; `None` for one that is not there.
    opened: HashMap<&'h str, Option<(usize, usize)>>,
    /// The chunks by their range: one that stands twice is opened once.
    items: HashMap<(usize, u64, u64), Item>,
    /// The tensors with parts in each file that is not there.
    missing: IndexMap<String, BTreeMap<String, ()>>,
    left: usize,
}

impl<'h> Reader<'h, '_> {
    fn tensor(&mut self, key: &str, listed: &Listed<'h>) -> Result<(), Errors> {
        let tensor = self.metadata.tensor(listed)?;
        let chunks = self.metadata.chunks(&tensor)?;
        self.left = self.left.checked_sub(chunks.len()).ok_or_else(|| {
            let message = format!("the checkpoint's tensors have more than {MOST_CHUNKS} chunks");
            Diagnostic::error(FormatCode::BadHeader, message).help(DAMAGED)
        })?;
        let (key, dtype, shape) = (key.to_owned(), tensor.dtype, tensor.shape);
        if shape.contains(&0) {
            let strides = row_major(&shape);
            let (file, offset, extents) = (0, 0, Vec::new());
            self.part.tensors.push(TensorMeta { key, dtype, shape, strides, file, offset, extents });
            return Ok(());
        }
        if chunks.is_empty() {
            let message = "the list of the checkpoint names no part of the tensor";
            return Err(Diagnostic::error(FormatCode::BadHeader, message).help(DAMAGED).into());
        }
        let (mut extents, mut is_whole) = (Vec::with_capacity(chunks.len()), true);
        for (offsets, lengths) in chunks {
            let Some(stored) = self.metadata.stored(listed.name, &offsets) else {
                let message = "the list of the checkpoint does not say where a part of the tensor is stored";
                let found = format!("the part of the sizes {lengths:?} at {offsets:?}");
                return Err(Diagnostic::error(FormatCode::BadHeader, message)
                    .found(found)
                    .help(DAMAGED)
                    .into());
            };
            let Some(item) = self.item(&key, &stored)? else {
                self.missing.entry(stored.file.to_owned()).or_default().insert(key.clone(), ());
                is_whole = false;
                continue;
            };
            if (item.tensor.dtype, &item.tensor.shape) != (dtype, &lengths) {
                let message = format!(
                    "what is stored in `{}` at byte {} is not the part of the tensor that the list says",
                    shown(stored.file),
                    stored.offset
                );
                let found = format!("{} {:?}", item.tensor.dtype, item.tensor.shape);
                let expected = format!("{dtype} {lengths:?}");
                let diagnostic = Diagnostic::error(FormatCode::BadTensor, message).expected(expected);
                return Err(diagnostic
                    .found(found)
                    .help(DAMAGED)
                    .file(&self.folder.join(stored.file))
                    .into());
            }
            let content = ExtentContent::Stored { file: item.store, offset: item.tensor.offset };
            extents.push(Extent { offsets, lengths, strides: item.tensor.strides, content });
        }
        if !is_whole {
            return Ok(());
        }
        // A tensor in one piece needs nobody to put it together.
        match &extents[..] {
            [Extent { lengths, strides, content: ExtentContent::Stored { file, offset }, .. }]
                if *lengths == shape =>
            {
                let (strides, file, offset, extents) = (strides.clone(), *file, *offset, Vec::new());
                self.part.tensors.push(TensorMeta { key, dtype, shape, strides, file, offset, extents });
            }
            _ => self.part.in_extents.push(TensorMeta::in_extents(key, dtype, shape, extents)),
        }
        Ok(())
    }

    /// Opens a chunk; `None` where its file is not there.
    fn item(&mut self, key: &str, stored: &Stored<'h>) -> Result<Option<Item>, Errors> {
        let Some((file, store)) = self.file(stored.file)? else { return Ok(None) };
        let of_file = Arc::clone(&self.part.files[file]);
        let damaged = |code: FormatCode, message: String| {
            Errors::from(Diagnostic::error(code, message).file(&of_file.path).help(DAMAGED))
        };
        if !stored.transforms.is_empty() {
            let message = format!(
                "a part of it went through {} when it was saved, which is not read",
                transforms(self.metadata, stored)
            );
            let help = "load it with torch.distributed.checkpoint and save it without extensions";
            return Err(Diagnostic::error(FormatCode::UnsupportedTensor, message).help(help).into());
        }
        let range = (file, stored.offset, stored.length);
        if let Some(item) = self.items.get(&range) {
            return Ok(Some(item.clone()));
        }
        let Some(part) = of_file.part(stored.offset, stored.length) else {
            let message = format!(
                "the file has {} bytes, and a part of the tensor has {} bytes at {}",
                of_file.size, stored.length, stored.offset
            );
            return Err(damaged(FormatCode::Truncated, message));
        };
        if part.bytes(0, part.size.min(2))? != b"PK" {
            if looks_like(&of_file.bytes(0, of_file.size.min(1024))?) {
                let message = "its parts are stored as safetensors (`SerializationFormat.SAFETENSORS`), which is not read here";
                let help = "save it with `SerializationFormat.TORCH_SAVE`, the default, or load it with \
                            torch.distributed.checkpoint and save it as one file";
                return Err(Diagnostic::error(FormatCode::NotRead, message)
                    .file(&of_file.path)
                    .help(help)
                    .into());
            }
            let message = format!("what is stored at byte {} is no archive of `torch.save`", stored.offset);
            return Err(damaged(FormatCode::BadStorage, message));
        }
        let (mut tensor, spool) = item(&part, key)?;
        let store = match spool.filter(|_| tensor.file != 0) {
            Some(spool) => {
                self.part.stores.push((file, spool));
                self.part.stores.len() - 1
            }
            None => {
                tensor.offset += stored.offset;
                store
            }
        };
        let item = Item { store, tensor };
        self.items.insert(range, item.clone());
        Ok(Some(item))
    }

    /// Opens a file that the list names and returns its index among the files and among the stores of the part.
    fn file(&mut self, name: &'h str) -> Result<Option<(usize, usize)>, Errors> {
        if let Some(known) = self.opened.get(name) {
            return Ok(*known);
        }
        if let Some(problem) = name_problem(name) {
            let message =
                format!("the list of the checkpoint names the file `{}`, which {problem}", shown(name));
            let diagnostic = Diagnostic::error(FormatCode::PathEscape, message).file(self.list);
            let diagnostic = diagnostic.expected("a file below the list's folder");
            return Err(diagnostic.help("do not trust this checkpoint").into());
        }
        let path = self.folder.join(name);
        let opened = if path.exists() {
            check_link(self.folder, &path, name, self.options)?;
            let file = OpenFile::open(&path)?;
            self.part.files.push(Arc::clone(&file));
            let index = self.part.files.len() - 1;
            self.part.stores.push((index, file as Arc<dyn Store>));
            Some((index, self.part.stores.len() - 1))
        } else {
            None
        };
        self.opened.insert(name, opened);
        Ok(opened)
    }
}
