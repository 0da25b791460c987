//! Open safetensors files.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::header::{self, Header, LIMIT};
use crate::catalog::{Catalog, TensorMeta, row_major};
use crate::diag::{Collector, Diagnostic, Errors};
use crate::format::sniff::{self, Content};
use crate::format::{Reader, io_error, shown};

/// A file that stays open, as it was when its header was read.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
    size: u64,
    modified: Option<SystemTime>,
}

/// One file of a checkpoint: open, with its header checked.
#[derive(Debug)]
pub(crate) struct Part {
    file: OpenFile,
    /// Where the data begins, in bytes from the start of the file.
    data_start: u64,
    /// What the header says.
    pub(crate) header: Header,
}

/// A checkpoint of one or more safetensors files.
#[derive(Debug)]
pub(crate) struct SafetensorsReader {
    catalog: Catalog,
    files: Vec<OpenFile>,
}

/// Opens a file and reads its header; what is wrong goes to the collector.
pub(crate) fn open_file(path: &Path, out: &mut Collector) -> Option<Part> {
    match try_open(path, out) {
        Ok(part) => Some(part),
        Err(errors) => {
            out.extend(errors);
            None
        }
    }
}

fn try_open(path: &Path, out: &mut Collector) -> Result<Part, Errors> {
    let (file, metadata) = sniff::open_regular(path)?;
    match sniff::sniff(&sniff::read_head(&file, path)?, path) {
        Content::Safetensors => {}
        Content::Foreign(diagnostic) => return Err((*diagnostic).into()),
        Content::Json => {
            let message = "it is a JSON text, not a safetensors file";
            return Err(Diagnostic::error("format/bad-header", message).file(path).into());
        }
    }
    let size = metadata.len();
    let length = header_length(&file, size, path)?;
    // The length is within the file, so this cannot ask for more than the file itself takes.
    let mut text = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    read_exact_at(&file, 8, &mut text).map_err(|error| io_error(path, "read the header", &error))?;
    let data_start = 8 + length;
    let header = header::parse(&text, size - data_start, path, out);
    let file = OpenFile { path: path.to_owned(), file, size, modified: metadata.modified().ok() };
    Ok(Part { file, data_start, header })
}

/// Reads the header's length in bytes and checks it before anything is allocated.
fn header_length(file: &File, size: u64, path: &Path) -> Result<u64, Errors> {
    let fail =
        |code, message: String| Err(Diagnostic::error(code, message).file(path).help(header::DAMAGED).into());
    if size < 8 {
        let message = format!("the file has {size} bytes: missing {} bytes of the header's length", 8 - size);
        return fail("format/truncated", message);
    }
    let mut length = [0; 8];
    read_exact_at(file, 0, &mut length)
        .map_err(|error| io_error(path, "read the header's length", &error))?;
    let length = u64::from_le_bytes(length);
    if length > LIMIT {
        let message = format!("the header would be {length} bytes long, over the limit of {LIMIT}");
        let diagnostic = Diagnostic::error("format/header-too-large", message).file(path);
        return Err(diagnostic.help("it is probably no safetensors file").into());
    }
    let rest = size - 8;
    if length > rest {
        let message = format!("the header is cut short: missing {} bytes of {length}", length - rest);
        return fail("format/truncated", message);
    }
    Ok(length)
}

/// Makes one checkpoint of files; `source` is what the user named.
pub(crate) fn assemble(
    source: &Path,
    parts: Vec<Part>,
    mut out: Collector,
) -> Result<SafetensorsReader, Errors> {
    check_distinct(&parts, &mut out);
    let metadata = merge_metadata(&parts, &mut out);
    let mut tensors = Vec::new();
    let mut files = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        files.push(part.file);
        tensors.extend(part.header.tensors.into_iter().map(|entry| TensorMeta {
            strides: row_major(&entry.shape),
            key: entry.key,
            dtype: entry.dtype,
            shape: entry.shape,
            file: index,
            offset: part.data_start + entry.begin,
        }));
    }
    let ((), warnings) = out.finish(())?;
    let sizes = files.iter().map(|file| (file.path.clone(), file.size)).collect();
    let mut catalog = Catalog::new(source.to_owned(), sizes, tensors);
    catalog.metadata = metadata;
    catalog.warnings = warnings;
    Ok(SafetensorsReader { catalog, files })
}

fn check_distinct(parts: &[Part], out: &mut Collector) {
    let mut owners: HashMap<&str, &Path> = HashMap::new();
    for part in parts {
        for entry in &part.header.tensors {
            if let Some(first) = owners.insert(&entry.key, &part.file.path) {
                let names = (name_of(first), name_of(&part.file.path));
                let message = format!("the tensor is in two files, `{}` and `{}`", names.0, names.1);
                let diagnostic = Diagnostic::error("format/duplicate-key", message).tensor(&entry.key);
                out.push(diagnostic.file(&part.file.path).help("remove the file that should not be there"));
            }
        }
    }
}

fn merge_metadata(parts: &[Part], out: &mut Collector) -> BTreeMap<String, String> {
    let mut merged: BTreeMap<String, String> = BTreeMap::new();
    for part in parts {
        for (key, value) in &part.header.metadata {
            let kept = merged.entry(key.clone()).or_insert_with(|| value.clone());
            if kept != value {
                let message = format!("the files' metadata disagree about `{}`", shown(key));
                let diagnostic =
                    Diagnostic::warning("format/metadata-conflict", message).file(&part.file.path);
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

impl Reader for SafetensorsReader {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Some(open) = self.files.get(file) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no file {file}")));
        };
        read_exact_at(&open.file, offset, buffer)
    }

    fn unchanged(&self) -> Result<(), Errors> {
        let mut out = Collector::default();
        for open in &self.files {
            // The handle, not the path: a file that was replaced is still read whole through its handle.
            match open.file.metadata() {
                Ok(now) if now.len() == open.size && now.modified().ok() == open.modified => {}
                Ok(now) => {
                    let message = format!(
                        "the file changed while it was read: it had {} bytes, now {}, or another time of change",
                        open.size,
                        now.len()
                    );
                    let help = "run again when nothing writes to it";
                    out.push(Diagnostic::error("format/changed", message).file(&open.path).help(help));
                }
                Err(error) => out.push(io_error(&open.path, "look at it again", &error)),
            }
        }
        out.finish(()).map(|_| ())
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !buffer.is_empty() {
        match file.seek_read(buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                offset += count as u64;
                buffer = &mut buffer[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::*;

    const TWO: &str = r#"{"__metadata__":{"a":"1"},"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"v":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#;

    #[test]
    fn tensors_are_read_where_they_lie() {
        let folder = tempfile::tempdir().expect("folder");
        let mut bytes = file_bytes(TWO, 0);
        bytes.extend_from_slice(&[7, 8, 9]);
        let reader = open_plain(&put(folder.path(), "odd.name", &bytes)).expect("opens");
        let catalog = reader.catalog();
        let keys: Vec<&str> = catalog.tensors.iter().map(|tensor| tensor.key.as_str()).collect();
        assert_eq!((keys, catalog.metadata["a"].as_str()), (vec!["v", "w"], "1"));
        assert_eq!(catalog.file_sizes, [bytes.len() as u64]);
        let mut buffer = [0; 2];
        reader.read_exact_at(0, catalog.tensors[1].offset, &mut buffer).expect("reads");
        assert_eq!(buffer, [8, 9]);
        let short = reader.read_exact_at(0, catalog.tensors[1].offset + 1, &mut buffer);
        assert_eq!(short.map_err(|error| error.kind()), Err(io::ErrorKind::UnexpectedEof));
        let other = reader.read_exact_at(1, 0, &mut buffer);
        assert_eq!(other.map_err(|error| error.kind()), Err(io::ErrorKind::InvalidInput));
    }

    #[test]
    fn a_source_that_changes_is_noticed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = put(folder.path(), "a", &file_bytes(TWO, 3));
        let reader = open_plain(&path).expect("opens");
        assert!(reader.unchanged().is_ok());
        let file = File::options().append(true).open(&path).expect("opens");
        file.set_len(1000).expect("grows");
        let errors = reader.unchanged().expect_err("changed");
        assert_eq!(errors.diagnostics()[0].file.as_deref(), Some(path.as_path()));
    }

    #[test]
    fn a_declared_length_is_checked_before_it_is_used() {
        let folder = tempfile::tempdir().expect("folder");
        for (bytes, code) in [
            (u64::MAX.to_le_bytes().to_vec(), "format/header-too-large"),
            ([&100_000_001_u64.to_le_bytes()[..], b"{"].concat(), "format/header-too-large"),
            ([&100_000_000_u64.to_le_bytes()[..], b"{"].concat(), "format/truncated"),
            (vec![0; 8], "format/bad-header"),
            (vec![0; 7], "format/truncated"),
        ] {
            assert_eq!(codes(&open_plain(&put(folder.path(), "a", &bytes))), [code], "{bytes:?}");
        }
    }

    #[test]
    fn files_without_an_index_open_as_one() {
        let folder = tempfile::tempdir().expect("folder");
        let a = put(folder.path(), "a", &file_bytes(TWO, 3));
        let b =
            put(folder.path(), "b", &file_bytes(&TWO.replace("\"1\"", "\"2\"").replace("\"w\"", "\"x\""), 3));
        let result = crate::format::open_files(folder.path(), &[a.clone(), b]);
        assert_eq!(codes(&result), ["format/duplicate-key", "format/metadata-conflict"]);
        assert!(text(&result).contains("`a` and `b`"));
        assert!(crate::format::open_files(folder.path(), &[a]).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_not_read() {
        assert_eq!(codes(&open_plain(Path::new("/dev/zero"))), ["format/not-a-file"]);
    }
}
