//! Reading a safetensors file's header.

use std::path::Path;
use std::sync::Arc;

use super::header::{self, LIMIT};
use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::format::facts;
use crate::format::member::Membership;
use crate::format::part::Part;
use crate::format::store::{OpenFile, Store};
use crate::format::{Format, io_error};

/// The metadata of torch.distributed.checkpoint: where each tensor of the file begins in the whole one, and the version of
/// that. (pytorch/pytorch, `torch/distributed/checkpoint/_hf_utils.py`)
const SLICES: &str = "DCP_SHARDING_INFO";
const SLICES_VERSION: &str = "DCP_VERSION";

/// Returns whether a slice begins elsewhere than its tensor does; what cannot be read counts as that.
fn displaced(text: &str) -> bool {
    let is_start = |slice: &serde_json::Value| {
        let offsets = slice.get("saved_offsets").and_then(serde_json::Value::as_array);
        offsets.is_some_and(|offsets| offsets.iter().all(|offset| offset.as_u64() == Some(0)))
    };
    let slices = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
    !slices.is_ok_and(|slices| slices.values().all(is_start))
}

/// Reads a file's header; what is wrong inside it goes to the collector.
pub(in crate::format) fn read(file: &Arc<OpenFile>, out: &mut Collector) -> Result<Part, Errors> {
    let length = header_length(file, file.size, &file.path)?;
    // The length is within the file, so this cannot ask for more than the file itself takes.
    let text = file.bytes(8, length)?;
    let data_start = 8 + length;
    let header = header::parse(&text, file.size - data_start, &file.path, out);
    let mut part = Part::of(Format::Safetensors, file);
    let facts = header.metadata.iter().map(|(key, text)| (key.clone(), text.as_str().into()));
    part.facts = facts::of_entries(facts);
    part.metadata = header.metadata;
    part.member = part.metadata.remove(SLICES).map(|text| Membership::Slices { displaced: displaced(&text) });
    if part.member.is_some() {
        part.metadata.remove(SLICES_VERSION);
    }
    for (key, reason) in header.unread {
        part.refuse(key, reason, out);
    }
    part.tensors.extend(header.tensors.into_iter().map(|entry| TensorMeta {
        strides: row_major(&entry.shape),
        key: entry.key,
        dtype: entry.dtype,
        shape: entry.shape,
        file: 0,
        offset: data_start + entry.begin,
        extents: Vec::new(),
    }));
    Ok(part)
}

/// Reads the header's length in bytes and checks it before anything is allocated.
fn header_length(file: &OpenFile, size: u64, path: &Path) -> Result<u64, Errors> {
    let fail =
        |code, message: String| Err(Diagnostic::error(code, message).file(path).help(header::DAMAGED).into());
    if size < 8 {
        let message = format!("the file has {size} bytes: missing {} bytes of the header's length", 8 - size);
        return fail(FormatCode::Truncated, message);
    }
    let mut length = [0; 8];
    file.read_exact_at(0, &mut length).map_err(|error| io_error(path, "read the header's length", &error))?;
    let length = u64::from_le_bytes(length);
    if length > LIMIT {
        let message = format!("the header would be {length} bytes long, over the limit of {LIMIT}");
        let diagnostic = Diagnostic::error(FormatCode::HeaderTooLarge, message).file(path);
        return Err(diagnostic.help("it is probably no safetensors file").into());
    }
    let rest = size - 8;
    if length > rest {
        let message = format!("the header is cut short: missing {} bytes of {length}", length - rest);
        return fail(FormatCode::Truncated, message);
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::io;

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
    fn a_tensor_of_an_unknown_type_stands_in_its_index() {
        let folder = tempfile::tempdir().expect("folder");
        let header = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"NEW7","shape":[5],"data_offsets":[2,4]}}"#;
        put(folder.path(), "s.safetensors", &file_bytes(header, 4));
        let index =
            br#"{"metadata": {"total_size": 4}, "weight_map": {"a": "s.safetensors", "b": "s.safetensors"}}"#;
        put(folder.path(), "model.safetensors.index.json", index);
        let reader = open_plain(folder.path()).expect("opens");
        let catalog = reader.catalog();
        assert_eq!((catalog.tensors.len(), catalog.unread.len(), catalog.unread[0].0.as_str()), (1, 1, "b"));
        let codes: Vec<&str> = catalog.warnings.iter().map(|warning| warning.code.as_str()).collect();
        assert_eq!(codes, ["format/unknown-dtype"]);
    }

    #[test]
    fn a_source_that_changes_is_noticed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = put(folder.path(), "a", &file_bytes(TWO, 3));
        let reader = open_plain(&path).expect("opens");
        assert!(reader.unchanged().is_ok());
        let file = std::fs::File::options().append(true).open(&path).expect("opens");
        file.set_len(1000).expect("grows");
        let errors = reader.unchanged().expect_err("changed");
        assert_eq!(errors.diagnostics()[0].file.as_deref(), Some(path.as_path()));
    }

    #[test]
    fn a_declared_length_is_checked_before_it_is_used() {
        let folder = tempfile::tempdir().expect("folder");
        for (bytes, code) in [
            (u64::MAX.to_le_bytes().to_vec(), "format/unknown"),
            ([&100_000_001_u64.to_le_bytes()[..], b"{"].concat(), "format/header-too-large"),
            ([&100_000_000_u64.to_le_bytes()[..], b"{"].concat(), "format/truncated"),
            (vec![0; 8], "format/unknown"),
            (vec![0; 7], "format/unknown"),
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
        let result = crate::format::open_files(folder.path(), &[a.clone(), b], &Default::default());
        assert_eq!(codes(&result), ["format/duplicate-key", "format/metadata-conflict"]);
        assert!(text(&result).contains("`a` and `b`"));
        assert!(crate::format::open_files(folder.path(), &[a], &Default::default()).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_not_read() {
        assert_eq!(codes(&open_plain(Path::new("/dev/zero"))), ["format/not-a-file"]);
    }
}
