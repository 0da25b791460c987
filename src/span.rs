//! Places in source texts.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::text::{self, Unread};

/// The largest text that is read, in bytes; the largest mapping files have some hundred thousand.
const LARGEST: u64 = 64 << 20;

/// A text that diagnostics point into: a mapping file or a command-line argument.
#[derive(PartialEq, Eq)]
pub struct Source {
    /// Where the text came from, as shown to a reader (`mappings/attention.json`).
    pub name: String,
    /// The whole text.
    pub text: String,
}

impl Source {
    /// Reads a text file; the byte order mark that some editors put before a text is no part of it.
    ///
    /// # Errors
    /// Returns what the system reports, and [`io::ErrorKind::InvalidData`] for what is not UTF-8 or has more than 64 MiB.
    pub fn read(path: &Path) -> io::Result<Arc<Source>> {
        let text = text::read(path, LARGEST).map_err(|unread| match unread {
            Unread::Io(error) => error,
            Unread::TooLarge(_) => {
                let message = format!("it has more than {LARGEST} bytes, the most of a mapping file");
                io::Error::new(io::ErrorKind::InvalidData, message)
            }
        })?;
        Ok(Arc::new(Source { name: path.display().to_string(), text }))
    }
}

// A mapping file has tens of thousands of characters, and every span refers to one.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.name, self.text.len())
    }
}

/// A byte range in one source text, on character boundaries, `start <= end`.
#[derive(Clone, PartialEq, Eq)]
pub struct Span {
    /// The text.
    pub source: Arc<Source>,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// Makes a span; the range must lie within the text.
    pub fn new(source: &Arc<Source>, start: usize, end: usize) -> Span {
        debug_assert!(start <= end && end <= source.text.len());
        Span { source: Arc::clone(source), start, end }
    }

    /// Returns the line and the column of the first character, both from 1; columns count characters.
    pub fn line_column(&self) -> (usize, usize) {
        let before = &self.source.text[..self.start];
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (line, before[line_start..].chars().count() + 1)
    }

    /// Returns `name:line:column`.
    pub fn place(&self) -> String {
        let (line, column) = self.line_column();
        format!("{}:{line}:{column}", self.source.name)
    }

    /// Returns the text under the span.
    pub fn text(&self) -> &str {
        &self.source.text[self.start..self.end]
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.place(), self.end - self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        let source = Arc::new(Source { name: "a.json".into(), text: "x\näö q".into() });
        let at = source.text.find('q').expect("in the text");
        let span = Span::new(&source, at, at + 1);
        assert_eq!((span.line_column(), span.place().as_str(), span.text()), ((2, 4), "a.json:2:4", "q"));
    }
}
