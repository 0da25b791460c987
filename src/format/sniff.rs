//! Recognising a file by its content.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::safetensors::header::LIMIT;
use super::store::{OpenFile, Store};
use super::{Format, io_error, tensorflow, zip};
use crate::diag::{Diagnostic, Errors};

/// How many bytes are looked at from the start.
const HEAD: u64 = 1024;

/// What a file is.
#[derive(Debug)]
pub(super) enum Content {
    /// A checkpoint in that format. Safetensors stands also for what nothing is known of; the header's checks say what
    /// is wrong then.
    Checkpoint(Format),
    /// A JSON text, such as the index of a sharded checkpoint.
    Json,
    /// Something else, with what to do about it.
    Foreign(Box<Diagnostic>),
}

/// Returns whether a file is a JSON text; its first bytes tell.
pub(super) fn is_json_file(path: &Path) -> Result<bool, Errors> {
    let file = OpenFile::open(path)?;
    Ok(is_json(&head_of(&file)?))
}

fn head_of(file: &OpenFile) -> Result<Vec<u8>, Errors> {
    file.bytes(0, HEAD.min(file.size))
}

fn is_json(head: &[u8]) -> bool {
    // A byte order mark may stand before the text.
    let text = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head);
    !looks_like_safetensors(head) && text.trim_ascii_start().first() == Some(&b'{') && !head.contains(&0)
}

/// Opens a regular file and returns its size in bytes; anything else could block or never end.
pub(super) fn open_regular(path: &Path) -> Result<(File, std::fs::Metadata), Errors> {
    let fail = |error| io_error(path, "open it", &error);
    if !std::fs::metadata(path).map_err(fail)?.is_file() {
        return Err(Diagnostic::error("format/not-a-file", "it is not a regular file").file(path).into());
    }
    let file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    Ok((file, metadata))
}

/// Tells what a file is.
pub(super) fn sniff(file: &Arc<OpenFile>) -> Result<Content, Errors> {
    let head = head_of(file)?;
    // Safetensors comes first: the length of its header is free, and 640 is also the beginning of a pickle.
    if looks_like_safetensors(&head) {
        return Ok(Content::Checkpoint(Format::Safetensors));
    }
    if is_json(&head) {
        return Ok(Content::Json);
    }
    if let Some((code, message, help)) = foreign(&head, head.trim_ascii_start()) {
        let diagnostic = Diagnostic::error(code, message).file(&file.path).help(help);
        return Ok(Content::Foreign(Box::new(diagnostic)));
    }
    let starts = |magic: &[u8]| head.starts_with(magic);
    let format = if starts(b"PK\x03\x04") || starts(b"PK\x05\x06") {
        return zip_content(file);
    } else if matches!(head[..], [0x80, 2..=5, ..]) {
        Format::PyTorch
    } else if starts(b"GGUF") {
        Format::Gguf
    } else if starts(b"\x89HDF\r\n\x1a\n") {
        Format::Hdf5
    } else if starts(b"\x93NUMPY") {
        Format::Npy
    } else if matches!(head[..], [0x81..=0x8f, 0xa0..=0xbf | 0xd9..=0xdb, ..] | [0xde | 0xdf, ..]) {
        Format::Msgpack
    } else if ends_as_table(file)? || file.path.extension().is_some_and(|ending| ending == "index") {
        // Without its last bytes a table is nothing; a name tells then at least what is damaged.
        Format::TensorFlow
    } else {
        Format::Safetensors
    };
    Ok(Content::Checkpoint(format))
}

/// Tells what a zip archive is by the names of its entries.
fn zip_content(file: &Arc<OpenFile>) -> Result<Content, Errors> {
    let entries = zip::read::entries(file)?;
    let any = |test: &dyn Fn(&str) -> bool| entries.iter().any(|entry| test(&entry.name));
    let format = if any(&|name| name == "data.pkl" || name.ends_with("/data.pkl")) {
        Format::PyTorch
    } else if any(&|name| name.ends_with(".weights.h5")) {
        Format::Keras
    } else if any(&|name| name.ends_with(".npy")) || entries.is_empty() {
        Format::Npz
    } else {
        let message = "it is a zip archive without weights that are known";
        let diagnostic = Diagnostic::error("format/zip", message).file(&file.path);
        let names: Vec<String> = entries.iter().take(5).map(|entry| super::shown(&entry.name)).collect();
        let diagnostic = diagnostic
            .expected(
                "a PyTorch archive (data.pkl), a NumPy archive (*.npy) or a Keras archive (*.weights.h5)",
            )
            .found(names.join(", "))
            .help("unpack it and name the checkpoint inside");
        return Ok(Content::Foreign(Box::new(diagnostic)));
    };
    Ok(Content::Checkpoint(format))
}

fn ends_as_table(file: &OpenFile) -> Result<bool, Errors> {
    let Some(start) = file.size.checked_sub(8) else { return Ok(false) };
    let mut end = [0; 8];
    file.read_exact_at(start, &mut end).map_err(|error| io_error(&file.path, "read it", &error))?;
    Ok(end == tensorflow::TABLE_MAGIC)
}

fn looks_like_safetensors(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<8>() else { return false };
    rest.first() == Some(&b'{') && u64::from_le_bytes(*length) <= LIMIT
}

/// Returns the code, the message and the help for a file of another kind.
fn foreign(head: &[u8], text: &[u8]) -> Option<(&'static str, String, &'static str)> {
    let starts = |magic: &[u8]| head.starts_with(magic);
    let lower = text[..text.len().min(16)].to_ascii_lowercase();
    let (code, message, help) = if head.is_empty() {
        ("format/empty", "the file is empty".to_owned(), "download or save it again")
    } else if starts(b"version https://git-lfs") {
        let size = lfs_size(head).map_or(String::new(), |size| format!("; the real file has {size} bytes"));
        let message = format!("it is a Git LFS pointer, not the file itself{size}");
        ("format/git-lfs", message, "run `git lfs pull` in the repository to fetch the file")
    } else if lower.starts_with(b"<!doctype") || lower.starts_with(b"<html") {
        let help = "download the file itself: the link leads to a page about it, or wants a login";
        ("format/html", "it is an HTML page, not a checkpoint".to_owned(), help)
    } else if head.get(257..262) == Some(b"ustar") {
        let help = "load it with PyTorch and save it again: `torch.save(torch.load(FILE), FILE)`";
        ("format/tar", "it is a tar archive, as PyTorch wrote before version 0.1.10".to_owned(), help)
    } else {
        return None;
    };
    Some((code, message, help))
}

/// Returns the `size` line of a Git LFS pointer.
fn lfs_size(head: &[u8]) -> Option<u64> {
    let text = str::from_utf8(head).ok()?;
    text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn foreign_files_are_named_whatever_their_ending() {
        let folder = tempfile::tempdir().expect("folder");
        let pointer =
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n".to_vec();
        for (bytes, code) in [
            (pointer.clone(), "format/git-lfs"),
            (b"PK\x03\x04...".to_vec(), "format/zip"),
            ([&[b'x'; 257][..], b"ustar", &[0; 300]].concat(), "format/tar"),
            (b"<!DOCTYPE html>".to_vec(), "format/html"),
            (b"\n <HTML lang=en>".to_vec(), "format/html"),
            (Vec::new(), "format/empty"),
            (b"{}".to_vec(), "format/bad-index"),
            (b"abc".to_vec(), "format/truncated"),
            (b"abcdefghijkl".to_vec(), "format/header-too-large"),
        ] {
            let path = put(folder.path(), "model.safetensors", &bytes);
            assert_eq!(codes(&open_plain(&path)), [code], "{bytes:?}");
        }
        let path = put(folder.path(), "model.safetensors", &pointer);
        let text = text(&open_plain(&path));
        assert!(text.contains("Git LFS pointer") && text.contains("4976698672"), "{text}");
    }

    #[test]
    fn formats_are_told_by_content_whatever_the_ending() {
        let folder = tempfile::tempdir().expect("folder");
        let table = [&[0; 40][..], &tensorflow::TABLE_MAGIC].concat();
        for (bytes, format) in [
            (&b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."[..], Format::PyTorch),
            (b"GGUF\x03\0\0\0", Format::Gguf),
            (b"\x89HDF\r\n\x1a\n\0", Format::Hdf5),
            (b"\x93NUMPY\x01\0", Format::Npy),
            (b"\x82\xa6params\x80", Format::Msgpack),
            (&table, Format::TensorFlow),
            (b"\x0b\0\0\0\0\0\0\0{", Format::Safetensors),
        ] {
            let file = OpenFile::open(&put(folder.path(), "model.safetensors", bytes)).expect("opens");
            let found = sniff(&file).expect("is told");
            assert!(matches!(found, Content::Checkpoint(told) if told == format), "{format}: {found:?}");
        }
    }

    #[test]
    fn a_header_of_640_bytes_is_not_a_pickle() {
        let folder = tempfile::tempdir().expect("folder");
        for length in [640, 0x7b] {
            let header = format!("{{{:1$}", "}", length - 1);
            let path = put(folder.path(), "a.bin", &file_bytes(&header, 0));
            assert!(open_plain(&path).is_ok(), "{length}");
        }
    }
}
