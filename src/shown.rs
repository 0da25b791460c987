//! Text of unknown origin made fit for people: names, configs and metadata may hold what drives a terminal.

use std::borrow::Cow;

/// Returns whether a character is not shown as itself: it is a control character, steers the direction of text, or has no
/// glyph, so that a name with it drives a terminal or looks like another name.
///
/// The directional ones are those of Unicode Standard Annex #9, section 2.
pub fn is_unshowable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns a text of unknown origin as people may see it: what is not shown as itself is escaped, line breaks too.
///
/// Everything that goes to a terminal, into Markdown or into SVG passes here; JSON has its own escapes.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// As [`escaped`], for text that has several lines.
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c == '\n')
}

fn escape(text: &str, keeps: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| is_unshowable(c) && !keeps(c)) {
        return Cow::Borrowed(text);
    }
    let mut all = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_unshowable(c) && !keeps(c) {
            true => all.extend(c.escape_default()),
            false => all.push(c),
        }
    }
    Cow::Owned(all)
}

/// Returns a text of unknown origin as Markdown shows it outside of code: nothing in it is markup, a link or HTML.
pub fn markdown(text: &str) -> String {
    let mut all = String::with_capacity(text.len() + 16);
    for c in escaped(text).chars() {
        match c {
            '&' => all.push_str("&amp;"),
            '<' => all.push_str("&lt;"),
            '>' => all.push_str("&gt;"),
            '\\' | '`' | '*' | '[' | ']' | '|' | '~' | '!' => all.extend(['\\', c]),
            _ => all.push(c),
        }
    }
    all
}

/// Returns a text of unknown origin as text in XML, such as SVG.
pub fn xml(text: &str) -> String {
    escaped(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drives_a_terminal_is_escaped() {
        assert!(matches!(escaped("layers.0 — ä"), Cow::Borrowed(_)));
        assert_eq!(escaped("a\u{1b}[2Jb\n\r\u{9b}1m"), "a\\u{1b}[2Jb\\n\\r\\u{9b}1m");
        assert_eq!(escaped("safe\u{202e}txt\u{2066}"), "safe\\u{202e}txt\\u{2066}");
        assert_eq!(escaped_lines("a\nb\u{7}"), "a\nb\\u{7}");
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(markdown("a|b<img>`[x](y)`\u{1b}"), "a\\|b&lt;img&gt;\\`\\[x\\](y)\\`\\\\u{1b}");
        assert_eq!(xml("<a b=\"&\">\u{7}"), "&lt;a b=&quot;&amp;&quot;&gt;\\u{7}");
    }
}
