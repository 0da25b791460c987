//! Places in source texts.

use std::sync::Arc;

/// A text that diagnostics point into: a mapping file or a command-line argument.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Where the text came from, as shown to a reader (`mappings/attention.json`).
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// A byte range in one source text, on character boundaries, `start <= end`.
#[derive(Clone, Debug, PartialEq, Eq)]
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
