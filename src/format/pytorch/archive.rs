//! The zip archive of PyTorch since 1.6: a pickle, and each storage as an entry of its own.
//!
//! Source: pytorch/pytorch, torch/serialization.py (`_save`, `_load`) and caffe2/serialize/inline_container.cc (the names of
//! the entries).

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::sync::Arc;

use super::MOST_PICKLE;
use super::input::{Input, Memory};
use super::pickle;
use super::place::{DAMAGED, Place, Storages};
use super::storage::StorageId;
use super::value::{Heap, Value};
use crate::diag::{Diagnostic, Errors, FormatCode};
use crate::format::shown;
use crate::format::store::{OpenFile, Spool, Store};
use crate::format::zip::read::{Entry, bytes, entries, extract};

/// The most bytes of a pickle that is compressed, which PyTorch never does.
const MOST_COMPRESSED: u64 = 64 << 20;

/// The most bytes of metadata.
const MOST_METADATA: u64 = 16 << 20;

/// The most bytes of an entry that says a word.
const MOST_WORD: u64 = 64;

/// Reads the pickle and finds the storages.
///
/// # Errors
/// Returns what is wrong with the archive (`format/zip`) and with its pickle.
pub(super) fn open(file: &Arc<OpenFile>) -> Result<(Heap, Value, Archive), Errors> {
    let all = entries(file)?;
    let is_pickle = |entry: &&Entry| entry.name == "data.pkl" || entry.name.ends_with("/data.pkl");
    let pickles: Vec<&Entry> = all.iter().filter(is_pickle).collect();
    let [entry] = pickles[..] else {
        let names: Vec<String> =
            pickles.iter().take(5).map(|entry| format!("`{}`", shown(&entry.name))).collect();
        let message = "the archive has more than one pickle of data";
        let diagnostic =
            Diagnostic::error(FormatCode::Zip, message).expected("one data.pkl").found(names.join(", "));
        let diagnostic = diagnostic.file(&file.path);
        return Err(diagnostic.help("do not trust this file: readers disagree about which counts").into());
    };
    let prefix = entry.name.strip_suffix("data.pkl").unwrap_or_default().to_owned();
    let of_file = |diagnostic: Diagnostic| diagnostic.file(&file.path);
    let (heap, value) = pickle::run(&mut input(file, entry)?).map_err(of_file)?;
    let named = |name: &str| all.iter().find(|entry| entry.name.strip_prefix(&*prefix) == Some(name));
    let is_big = match named("byteorder") {
        None => false,
        Some(entry) => match &*content(file, entry, MOST_WORD)? {
            b"little" => false,
            b"big" => true,
            other => {
                let found = format!("`{}`", shown(&String::from_utf8_lossy(other)));
                let diagnostic = Diagnostic::error(FormatCode::Zip, "the archive's byte order is not known");
                let diagnostic = diagnostic.file(&file.path);
                return Err(diagnostic.expected("`little` or `big`").found(found).help(DAMAGED).into());
            }
        },
    };
    let metadata = named(super::write::METADATA_ENTRY).cloned();
    let data = format!("{prefix}data/");
    let mut storages = HashMap::new();
    for entry in all {
        if let Some(key) = entry.name.strip_prefix(&data) {
            storages.insert(key.to_owned(), entry);
        }
    }
    let (spool, begins) = (Spool::new(), HashMap::new());
    let file = Arc::clone(file);
    Ok((heap, value, Archive { file, storages, metadata, is_big, spool, begins, length: 0 }))
}

/// Returns the bytes of the pickle: in place where it is not compressed.
fn input(file: &Arc<OpenFile>, entry: &Entry) -> Result<Input, Diagnostic> {
    let most = if entry.deflated { MOST_COMPRESSED } else { MOST_PICKLE };
    if entry.size > most {
        let message = format!("the archive's pickle has {} bytes, over the limit of {most}", entry.size);
        let help = "load it in Python and save the state dict alone";
        return Err(Diagnostic::error(FormatCode::PickleTooLarge, message).file(&file.path).help(help));
    }
    if entry.deflated {
        let bytes = content(file, entry, most)?;
        let end = bytes.len() as u64;
        return Ok(Input::new(Arc::new(Memory(bytes)), 0, end));
    }
    Ok(Input::new(Arc::clone(file) as Arc<dyn Store>, entry.start, entry.start.saturating_add(entry.size)))
}

/// Returns an entry's bytes, of which there are at most so many.
fn content(file: &Arc<OpenFile>, entry: &Entry, most: u64) -> Result<Vec<u8>, Diagnostic> {
    let mut bytes = Vec::new();
    let result = if entry.size <= most {
        extract(file, entry, &mut bytes)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has {} bytes", entry.size)))
    };
    result.map_err(|error| {
        let message = format!("the archive's entry `{}` cannot be read: {error}", shown(&entry.name));
        Diagnostic::error(FormatCode::Zip, message).file(&file.path).help(DAMAGED)
    })?;
    Ok(bytes)
}

/// The storages of an archive.
#[derive(Debug)]
pub(super) struct Archive {
    file: Arc<OpenFile>,
    storages: HashMap<String, Entry>,
    /// What this program writes beside the pickle.
    metadata: Option<Entry>,
    is_big: bool,
    spool: Spool,
    /// Where a storage that was swapped in groups of so many bytes begins in the spool.
    begins: HashMap<(String, u64), u64>,
    /// The bytes of the spool.
    length: u64,
}

/// The store of what does not lie in the file as it is.
const SPOOL: usize = 1;

impl Archive {
    /// Returns the metadata that this program wrote; none where they are another's.
    pub(super) fn metadata(&self) -> Result<BTreeMap<String, String>, Errors> {
        let Some(entry) = &self.metadata else { return Ok(BTreeMap::new()) };
        let text = bytes(&self.file, entry, MOST_METADATA)?;
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }
}

impl Storages for Archive {
    fn take_store(&mut self) -> Option<Arc<dyn Store>> {
        let spool = std::mem::replace(&mut self.spool, Spool::new());
        (!spool.is_empty()).then(|| Arc::new(spool) as Arc<dyn Store>)
    }

    fn find(&mut self, id: &StorageId, swapped: u64) -> Result<Place, Diagnostic> {
        let bad = |message: String| Diagnostic::error(FormatCode::BadStorage, message).help(DAMAGED);
        let Some(entry) = self.storages.get(&id.key) else {
            return Err(bad(format!("its storage `{}` is not in the archive", shown(&id.key))));
        };
        if id.count.checked_mul(id.element.width) != Some(entry.size) {
            let message = format!("its storage `{}` has another size than the pickle says", shown(&id.key));
            let expected = format!("{} elements of {} bytes", id.count, id.element.width);
            return Err(bad(message).expected(expected).found(format!("{} bytes", entry.size)));
        }
        if let Some(method) = &entry.unread {
            let message = format!("its storage is compressed with {method}, which is not read");
            let help = "load it in Python and save it again";
            return Err(Diagnostic::error(FormatCode::UnsupportedTensor, message).help(help));
        }
        let swapped = if self.is_big { swapped } else { 1 };
        if !entry.deflated && swapped == 1 {
            return Ok(Place { store: 0, start: entry.start });
        }
        let key = (id.key.clone(), swapped);
        if let Some(&start) = self.begins.get(&key) {
            return Ok(Place { store: SPOOL, start });
        }
        let length = self.length.checked_add(entry.size).filter(|&length| i64::try_from(length).is_ok());
        self.length = length
            .ok_or_else(|| bad("the archive's storages have more bytes than can be counted".to_owned()))?;
        let (file, entry) = (Arc::clone(&self.file), entry.clone());
        let width = usize::try_from(swapped).unwrap_or(1);
        let decode = move |to: &mut dyn Write| {
            let mut swapper = Swapper::new(to, width);
            extract(&file, &entry, &mut swapper)?;
            swapper.end()
        };
        let start =
            self.spool.push(self.storages.get(&id.key).map_or(0, |entry| entry.size), Box::new(decode));
        self.begins.insert(key, start);
        Ok(Place { store: SPOOL, start })
    }
}

/// Turns the bytes of each group around on the way.
pub(super) struct Swapper<'a> {
    to: &'a mut dyn Write,
    width: usize,
    rest: Vec<u8>,
}

impl<'a> Swapper<'a> {
    /// Makes one for groups of `width` bytes; of 1 all is passed on as it is.
    pub(super) fn new(to: &'a mut dyn Write, width: usize) -> Swapper<'a> {
        Swapper { to, width, rest: Vec::new() }
    }

    /// Writes what is left.
    pub(super) fn end(self) -> io::Result<()> {
        // A storage may end inside an element that no tensor has.
        self.to.write_all(&self.rest)
    }
}

impl Write for Swapper<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.width <= 1 {
            return self.to.write(bytes);
        }
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.len() - self.rest.len() % self.width;
        self.rest[..whole].chunks_mut(self.width).for_each(<[u8]>::reverse);
        self.to.write_all(&self.rest[..whole])?;
        self.rest.drain(..whole);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_turned_around_however_they_come() {
        let mut bytes = Vec::new();
        let mut swapper = Swapper::new(&mut bytes, 4);
        for piece in [&[0, 1, 2][..], &[3], &[4, 5, 6, 7, 8], &[9]] {
            swapper.write_all(piece).expect("writes");
        }
        swapper.end().expect("ends");
        assert_eq!(bytes, [3, 2, 1, 0, 7, 6, 5, 4, 8, 9]);
    }
}
