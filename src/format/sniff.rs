//! Recognising a file by its content.

use std::path::Path;
use std::sync::Arc;

use super::spec::Probe;
use super::store::OpenFile;
use super::{Format, OpenOptions, foreign, safetensors, zip};
use crate::diag::{Diagnostic, Errors, FormatCode};

/// How many bytes are looked at from the start.
const HEAD: u64 = 1024;

/// What a file is.
#[derive(Debug)]
pub(super) enum Content {
    /// A checkpoint in that format.
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
    !safetensors::looks_like(head) && text.trim_ascii_start().first() == Some(&b'{') && !head.contains(&0)
}

/// Tells what a file is.
///
/// # Errors
/// Returns what the system refuses, and what is wrong with the directory of an archive.
pub(super) fn sniff(file: &Arc<OpenFile>, options: &OpenOptions) -> Result<Content, Errors> {
    let head = head_of(file)?;
    let plain = Probe { file, head: &head, entries: None };
    // Safetensors comes first: the length of its header is free, and 640 is also the beginning of a pickle.
    if (Format::Safetensors.spec().is_it)(&plain)? {
        return Ok(Content::Checkpoint(Format::Safetensors));
    }
    if is_json(&head) {
        return Ok(Content::Json);
    }
    if let Some(diagnostic) = foreign::of_file(file, &head, options)? {
        return Ok(Content::Foreign(Box::new(diagnostic)));
    }
    let is_archive = plain.starts(b"PK\x03\x04") || plain.starts(b"PK\x05\x06");
    let entries = if is_archive { Some(zip::read::entries(file)?) } else { None };
    let probe = Probe { entries: entries.as_deref(), ..plain };
    if let Some(entries) = &entries {
        let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
        if let Some(diagnostic) = foreign::of_archive(&file.path, &names) {
            return Ok(Content::Foreign(Box::new(diagnostic)));
        }
    }
    for format in Format::ALL {
        if (format.spec().is_it)(&probe)? {
            return Ok(Content::Checkpoint(*format));
        }
    }
    if let Some(entries) = &entries {
        return Ok(Content::Foreign(Box::new(unknown_archive(&file.path, entries))));
    }
    if let Some(diagnostic) = foreign::of_unknown(file, &head) {
        return Ok(Content::Foreign(Box::new(diagnostic)));
    }
    match Format::ALL.iter().find(|format| (format.spec().may_be)(&probe)) {
        Some(format) => Ok(Content::Checkpoint(*format)),
        None => Ok(Content::Foreign(Box::new(foreign::unknown(&file.path, &head)))),
    }
}

fn unknown_archive(path: &Path, entries: &[zip::read::Entry]) -> Diagnostic {
    let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    Diagnostic::error(FormatCode::Zip, "it is a zip archive without weights that are known")
        .file(path)
        .expected("a PyTorch archive (data.pkl), a NumPy archive (*.npy) or a Keras archive (*.weights.h5)")
        .found(foreign::listed(&names))
        .help("unpack it and name the checkpoint inside")
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
            (b"<!DOCTYPE html>".to_vec(), "format/html"),
            (b"\n <HTML lang=en>".to_vec(), "format/html"),
            (Vec::new(), "format/empty"),
            (b"{}".to_vec(), "format/bad-index"),
            (b"abc".to_vec(), "format/truncated"),
            (b"abcdefghijkl".to_vec(), "format/unknown"),
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
        let table = [&[0; 40][..], &crate::format::tensorflow::TABLE_MAGIC].concat();
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
            let found = sniff(&file, &OpenOptions::default()).expect("is told");
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
