//! The part of a template before `::`: the file, or the set of files, that its tensors lie in.

use super::{Captures, Piece, Template, matches, print};

impl Template {
    /// Returns whether it names tensors of that file.
    pub(crate) fn names_file(&self, file: &str) -> bool {
        let Some(pieces) = &self.file else { return false };
        let named = |file: &str| matches(pieces, file, Captures::default()).is_some();
        named(file) || file.rsplit_once('.').is_some_and(|(stem, _)| named(stem))
    }

    /// Returns the axes that its file's name enumerates.
    pub(crate) fn file_axes(&self) -> Vec<&str> {
        let names = self.file.iter().flatten().filter_map(|piece| match piece {
            Piece::Axis { name, .. } => Some(&**name),
            _ => None,
        });
        names.collect()
    }

    /// Returns whether its file's name captures a path.
    pub(crate) fn has_file_path(&self) -> bool {
        self.file.iter().flatten().any(|piece| matches!(piece, Piece::Path { .. }))
    }

    /// Makes the file's name alone, as [`Template::print`].
    pub(crate) fn print_file(&self, captures: &Captures) -> Result<Option<String>, String> {
        self.file.as_ref().map(|pieces| print(pieces, captures)).transpose()
    }

    /// Returns in how many folders, one inside the other, its file may lie.
    pub(crate) fn file_depths(&self) -> std::ops::RangeInclusive<usize> {
        /// The most folders that a captured path is looked for in.
        const CAPTURED: usize = 3;
        let pieces = self.file.as_deref().unwrap_or_default();
        let literal = |piece: &Piece| match piece {
            Piece::Literal(text) => text.matches('/').count(),
            _ => 0,
        };
        let fixed = pieces.iter().map(literal).sum::<usize>();
        let is_path = |piece: &&Piece| matches!(piece, Piece::Path { separator: '/', .. });
        match pieces.iter().filter(is_path).count() {
            0 => fixed..=fixed,
            // An empty path swallows its separator.
            paths => fixed.saturating_sub(paths)..=fixed + CAPTURED,
        }
    }
}

/// Returns why a pattern can be no path of a file below a folder, if so.
pub(super) fn file_problem(pieces: &[Piece]) -> Option<&'static str> {
    let mut path = String::new();
    for piece in pieces {
        match piece {
            Piece::Literal(text) => path.push_str(text),
            // Nothing for the first index.
            Piece::Axis { suffix: true, .. } => {}
            // Any text that no name of a part is.
            Piece::Axis { .. } | Piece::Count { .. } | Piece::Path { .. } => path.push_str("00"),
        }
    }
    let drive = path.as_bytes();
    if path.is_empty() {
        Some("is empty")
    } else if path.starts_with('/') {
        Some("is absolute")
    } else if drive.len() > 1 && drive[0].is_ascii_alphabetic() && drive[1] == b':' {
        Some("begins with a drive letter")
    } else if path.contains('\\') {
        Some("has a backslash")
    } else if path.chars().any(char::is_control) {
        Some("has control characters")
    } else if path.split('/').any(str::is_empty) {
        Some("has a part that is or can be empty")
    } else if path.split('/').any(|part| matches!(part, "." | "..")) {
        Some("has a part `.` or `..`")
    } else {
        None
    }
}
