#![doc = include_str!("codes.md")]

use crate::diag::Code;

/// The text of this page.
const TEXT: &str = include_str!("codes.md");

/// What is known of a code of diagnostics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The code.
    pub code: Code,
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
/// use qkvconv::diag::BindCode;
///
/// let explanation = qkvconv::codes::find(BindCode::OpenSize).expect("documented");
/// assert_eq!(explanation.title, "the size of an axis is open");
/// ```
pub fn all() -> impl Iterator<Item = Explanation> {
    TEXT.split("\n### `").skip(1).filter_map(|entry| {
        let (heading, text) = entry.split_once('\n')?;
        let (code, title) = heading.split_once("`: ")?;
        // A heading of a stage may follow.
        let text = text.split("\n## ").next().unwrap_or(text);
        let (about, remedy) = text.split_once("\n*What to do:* ")?;
        Some(Explanation { code: code.parse().ok()?, title, about: about.trim(), remedy: remedy.trim() })
    })
}

/// Returns what is known of a code.
pub fn find(code: impl Into<Code>) -> Option<Explanation> {
    let code = code.into();
    all().find(|explanation| explanation.code == code)
}
