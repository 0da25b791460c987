#![doc = include_str!("codes.md")]

use crate::diag::nearest;

/// The text of this page.
const TEXT: &str = include_str!("codes.md");

/// What is known of a code of diagnostics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The code, `stage/kind`, as [`crate::Diagnostic::code`] has it.
    pub code: &'static str,
    /// What is wrong, in a few words.
    pub title: &'static str,
    /// When it happens and why it matters.
    pub about: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// Returns what is known of every code, in alphabetical order.
///
/// ```
/// let explanation = qkvconv::codes::find("bind/open-size").expect("a known code");
/// assert_eq!(explanation.title, "the size of an axis is open");
/// assert_eq!(qkvconv::codes::nearest_code("bind/opensize"), Some("bind/open-size"));
/// ```
pub fn all() -> impl Iterator<Item = Explanation> {
    TEXT.split("\n### `").skip(1).filter_map(|entry| {
        let (heading, text) = entry.split_once('\n')?;
        let (code, title) = heading.split_once("`: ")?;
        // A heading of a stage may follow.
        let text = text.split("\n## ").next().unwrap_or(text);
        let (about, remedy) = text.split_once("\n*What to do:* ")?;
        Some(Explanation { code, title, about: about.trim(), remedy: remedy.trim() })
    })
}

/// Returns what is known of a code.
pub fn find(code: &str) -> Option<Explanation> {
    all().find(|explanation| explanation.code == code)
}

/// Returns the known code that an unknown one is nearest to: its own name in another stage, or a slip of the pen.
pub fn nearest_code(code: &str) -> Option<&'static str> {
    let kind = code.rsplit('/').next().unwrap_or(code);
    let same_kind =
        || all().map(|one| one.code).find(|one| one.split_once('/').is_some_and(|(_, its)| its == kind));
    nearest(code, all().map(|one| one.code)).or_else(same_kind)
}
