//! Texts that are read into memory as a whole: configs and mapping files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Why a text was not read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The system refused it, or it is not UTF-8.
    Io(io::Error),
    /// It has more bytes than are read; how many, where that is known: a device or a pipe does not tell.
    TooLarge(Option<u64>),
}

/// Reads a text of at most so many bytes, whatever the path names: a device may have no end. The byte order mark that some
/// editors put before a text is no part of it.
pub(crate) fn read(path: &Path, largest: u64) -> Result<String, Unread> {
    let file = File::open(path).map_err(Unread::Io)?;
    let size = file.metadata().map_err(Unread::Io)?.len();
    if size > largest {
        return Err(Unread::TooLarge(Some(size)));
    }
    let mut bytes = Vec::new();
    file.take(largest.saturating_add(1)).read_to_end(&mut bytes).map_err(Unread::Io)?;
    if bytes.len() as u64 > largest {
        return Err(Unread::TooLarge(None));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|_| Unread::Io(io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8")))?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_up_to_the_limit() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a");
        std::fs::write(&path, "\u{feff}{}").expect("writes");
        assert_eq!(read(&path, 5).expect("reads"), "{}");
        assert!(matches!(read(&path, 4), Err(Unread::TooLarge(Some(5)))));
        std::fs::write(&path, [0xff]).expect("writes");
        assert!(
            matches!(read(&path, 5), Err(Unread::Io(error)) if error.kind() == io::ErrorKind::InvalidData)
        );
        assert!(matches!(read(&folder.path().join("b"), 5), Err(Unread::Io(_))));
    }

    #[cfg(unix)]
    #[test]
    fn a_device_without_end_is_read_up_to_the_limit() {
        assert!(matches!(read(Path::new("/dev/zero"), 1000), Err(Unread::TooLarge(None))));
    }
}
