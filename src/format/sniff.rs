//! Recognising a file by its first bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::io_error;
use super::safetensors::header::LIMIT;
use crate::diag::{Diagnostic, Errors};

/// How many bytes are looked at.
const HEAD: u64 = 1024;

/// What a file is.
#[derive(Debug)]
pub(super) enum Content {
    /// A safetensors file, or nothing known; the header's checks say what is wrong then.
    Safetensors,
    /// A JSON text, such as the index of a sharded checkpoint.
    Json,
    /// Something else, with what to do about it.
    Foreign(Box<Diagnostic>),
}

/// Returns whether a file is a JSON text.
pub(super) fn is_json_file(path: &Path) -> Result<bool, Errors> {
    let (file, _) = open_regular(path)?;
    Ok(matches!(sniff(&read_head(&file, path)?, path), Content::Json))
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

/// Reads the bytes that [`sniff`] wants, from where the file stands.
pub(super) fn read_head(file: &File, path: &Path) -> Result<Vec<u8>, Errors> {
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head).map_err(|error| io_error(path, "read it", &error))?;
    Ok(head)
}

/// Tells what a file is from its first bytes.
pub(super) fn sniff(head: &[u8], path: &Path) -> Content {
    // Safetensors comes first: the length of its header is free, and 640 is also the beginning of a pickle.
    if looks_like_safetensors(head) {
        return Content::Safetensors;
    }
    let text = head.trim_ascii_start();
    if text.first() == Some(&b'{') && !head.contains(&0) {
        return Content::Json;
    }
    match foreign(head, text) {
        Some((code, message, help)) => {
            Content::Foreign(Box::new(Diagnostic::error(code, message).file(path).help(help)))
        }
        None => Content::Safetensors,
    }
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
    } else if starts(b"PK\x03\x04") && first_zip_entry(head).is_some_and(|name| name.ends_with(b".npy")) {
        (
            "format/npz",
            "NumPy archives (npz) are not read yet".to_owned(),
            "save it with `safetensors.numpy.save_file`",
        )
    } else if starts(b"PK\x03\x04") || matches!(head, [0x80, 2..=5, ..]) {
        (
            "format/pytorch",
            "PyTorch pickles are not read yet".to_owned(),
            "save it with `safetensors.torch.save_file`",
        )
    } else if starts(b"GGUF") {
        let help = "convert from the checkpoint that the GGUF file was made of";
        ("format/gguf", "GGUF files are not read".to_owned(), help)
    } else if starts(b"\x89HDF\r\n\x1a\n") {
        (
            "format/hdf5",
            "HDF5 files are not read yet".to_owned(),
            "save the weights with `safetensors.numpy.save_file`",
        )
    } else if starts(b"\x93NUMPY") {
        let help = "save its array under its name with `safetensors.numpy.save_file`";
        ("format/npy", "NumPy arrays (npy) are not read: they have no names".to_owned(), help)
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

/// Returns the name of a zip archive's first entry.
fn first_zip_entry(head: &[u8]) -> Option<&[u8]> {
    // The local file header is 30 bytes long, with the name's length in bytes 26 and 27.
    let length = u16::from_le_bytes([*head.get(26)?, *head.get(27)?]);
    head.get(30..30 + usize::from(length))
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;

    #[test]
    fn foreign_files_are_named_whatever_their_ending() {
        let folder = tempfile::tempdir().expect("folder");
        let zip = |name: &str| {
            let mut bytes = b"PK\x03\x04".to_vec();
            bytes.resize(30, 0);
            bytes[26] = name.len() as u8;
            [&bytes, name.as_bytes(), &[0; 20]].concat()
        };
        let pointer =
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n".to_vec();
        for (bytes, code) in [
            (pointer.clone(), "format/git-lfs"),
            (b"PK\x03\x04...".to_vec(), "format/pytorch"),
            (zip("archive/data.pkl"), "format/pytorch"),
            (zip("a.npy"), "format/npz"),
            (b"\x80\x02...".to_vec(), "format/pytorch"),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(), "format/pytorch"),
            (b"GGUF\x03\0\0\0".to_vec(), "format/gguf"),
            (b"\x89HDF\r\n\x1a\n\0".to_vec(), "format/hdf5"),
            (b"\x93NUMPY\x01\0".to_vec(), "format/npy"),
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
    fn a_header_of_640_bytes_is_not_a_pickle() {
        let folder = tempfile::tempdir().expect("folder");
        for length in [640, 0x7b] {
            let header = format!("{{{:1$}", "}", length - 1);
            let path = put(folder.path(), "a.bin", &file_bytes(&header, 0));
            assert!(open_plain(&path).is_ok(), "{length}");
        }
    }
}
