//! Text → [`Expr`].

use std::sync::Arc;

use super::{Dim, DimKind, Expr, Label, Term};
use crate::diag::{Diagnostic, NotationCode};
use crate::span::{Source, Span};

/// Deeper nesting than any real layout's, shallow enough for recursion.
const MAX_DEPTH: usize = 32;

/// A text to parse and where it stands in its source.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// The expression.
    pub text: &'a str,
    /// Where it stands.
    pub span: &'a Span,
    /// Whether the source holds it letter by letter; otherwise the source holds it with the escapes of a JSON string.
    pub verbatim: bool,
}

impl<'a> Text<'a> {
    /// Returns the place of a part, whose bounds are bytes of the text.
    pub(crate) fn at(&self, start: usize, end: usize) -> Span {
        // A text that begins with a prefix from elsewhere is longer than what stands at its place.
        let before = if self.verbatim { self.text.len().saturating_sub(self.span.text().len()) } else { 0 };
        let place = |offset: usize| match self.verbatim {
            true => offset.saturating_sub(before),
            false => escaped_offset(self.span.text(), offset),
        };
        let last = self.span.end;
        let (start, end) = (self.span.start + place(start), self.span.start + place(end));
        Span::new(&self.span.source, start.min(last), end.min(last))
    }

    /// Returns the place of the next character, or of the end.
    pub(crate) fn at_next(&self, start: usize) -> Span {
        let length = self.text.get(start..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
        self.at(start, start + length)
    }
}

/// Returns where a byte of a JSON string's text stands between the quotes: an escape is longer than what it stands for.
fn escaped_offset(raw: &str, wanted: usize) -> usize {
    let (mut at, mut decoded) = (0, 0);
    while decoded < wanted {
        let Some(rest) = raw.get(at..).filter(|rest| !rest.is_empty()) else { break };
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let (length, stands_for) = if rest.starts_with('\\') { escape(rest) } else { (first, first) };
        at += length;
        decoded += stands_for;
    }
    at.min(raw.len())
}

/// Returns the bytes of an escape and of what it stands for.
fn escape(text: &str) -> (usize, usize) {
    if text.as_bytes().get(1) != Some(&b'u') {
        return (2, 1);
    }
    match text.get(2..6).and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
        // The first of two that are one character beyond the basic plane.
        Some(0xD800..0xDC00) => (12, 4),
        Some(code) => (6, char::from_u32(code).map_or(3, char::len_utf8)),
        None => (2, 1),
    }
}

/// Parses an expression that stands alone.
///
/// # Errors
/// As [`parse_expr`].
pub fn parse_str(text: &str) -> Result<Expr, Diagnostic> {
    let source = Arc::new(Source { name: "expression".into(), text: text.into() });
    let span = Span::new(&source, 0, text.len());
    parse_expr(Text { text, span: &span, verbatim: true })
}

/// Parses a tensor's expression.
///
/// # Errors
/// Returns the first thing that is not of the grammar, with its place.
pub fn parse_expr(text: Text<'_>) -> Result<Expr, Diagnostic> {
    let mut parser = Parser { text, at: 0 };
    let term = parser.term(0)?;
    parser.end("a tensor has no `+` outside parentheses; write `(… + …)`")?;
    Ok(Expr { label: term.label, dims: term.dims, span: text.span.clone() })
}

/// Parses an axis definition: a sum without parentheses, `(c f) + u`.
///
/// # Errors
/// As [`parse_expr`].
pub fn parse_sum(text: Text<'_>) -> Result<Vec<Term>, Diagnostic> {
    let mut parser = Parser { text, at: 0 };
    let terms = parser.sum(0)?;
    parser.end("remove it")?;
    Ok(terms)
}

struct Parser<'a> {
    text: Text<'a>,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn error(&self, code: NotationCode, start: usize, end: usize, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, message).rule(&self.text.at(start, end.max(start)))
    }

    fn end(&mut self, help: &str) -> Result<(), Diagnostic> {
        self.skip_space();
        let Some(next) = self.rest().chars().next() else { return Ok(()) };
        let (message, expected, help) = match next {
            ')' => {
                ("this `)` closes nothing".to_owned(), "a `(` before it", "remove it, or open a `(` before")
            }
            '+' => ("a `+` outside parentheses".to_owned(), "the end, or another axis", help),
            other => (format!("unexpected `{other}`"), TOKENS, instead_of(other)),
        };
        let error = self.error(NotationCode::Unexpected, self.at, self.at + next.len_utf8(), message);
        Err(error.expected(expected).found(format!("`{next}`")).help(help))
    }

    fn sum(&mut self, depth: usize) -> Result<Vec<Term>, Diagnostic> {
        let mut terms = vec![self.term(depth)?];
        loop {
            self.skip_space();
            if !self.rest().starts_with('+') {
                return Ok(terms);
            }
            let plus = self.at;
            self.at += 1;
            let term = self.term(depth)?;
            if term.dims.is_empty() || terms.last().is_some_and(|last| last.dims.is_empty()) {
                return Err(self
                    .error(NotationCode::EmptyTerm, plus, plus + 1, "one side of this `+` is empty")
                    .expected("a block on either side")
                    .found(if term.dims.is_empty() { "nothing behind it" } else { "nothing before it" })
                    .help("give each block its axes; a block of one row is `1`"));
            }
            terms.push(term);
        }
    }

    fn term(&mut self, depth: usize) -> Result<Term, Diagnostic> {
        self.skip_space();
        let start = self.at;
        let label = self.label()?;
        let mut dims = Vec::new();
        let mut end = self.at;
        while let Some(dim) = self.dim(depth)? {
            dims.push(dim);
            end = self.at;
        }
        Ok(Term { label, dims, span: self.text.at(start, end) })
    }

    fn label(&mut self) -> Result<Option<Label>, Diagnostic> {
        let length = word_length(self.rest());
        let behind = self.rest()[length..].trim_start();
        if !behind.starts_with(':') {
            return Ok(None);
        }
        if length == 0 {
            return Err(self
                .error(NotationCode::Unexpected, self.at, self.at + 1, "a `:` without a label before it")
                .expected("a parameter's name, or `_` for padding")
                .found("`:`")
                .help("write the parameter's name before it, `q.weight: h d e`"));
        }
        let (start, end) = (self.at, self.at + length);
        let word = self.text.text[start..end].to_owned();
        self.at = self.text.text.len() - behind.len() + 1;
        let param = (word != "_").then_some(word);
        Ok(Some(Label { param, span: self.text.at(start, end) }))
    }

    fn dim(&mut self, depth: usize) -> Result<Option<Dim>, Diagnostic> {
        self.skip_space();
        let start = self.at;
        let Some(next) = self.rest().chars().next() else { return Ok(None) };
        if next == '(' {
            return self.group(depth).map(Some);
        }
        let length = word_length(self.rest());
        if length == 0 {
            return Ok(None);
        }
        let word = self.rest()[..length].to_owned();
        let end = start + length;
        if self.rest()[length..].trim_start().starts_with(':') {
            return Err(self
                .error(
                    NotationCode::LabelPlace,
                    start,
                    end,
                    format!("the label `{word}:` stands behind an axis"),
                )
                .expected("a label first, then the axes of what it names")
                .found(format!("`{word}:` behind `{}`", self.text.text[..start].trim_end()))
                .help("a label stands first, in the tensor or in a block of a sum: `(q: h d + k: g d)`"));
        }
        self.at = end;
        let kind = if word.bytes().all(|byte| byte.is_ascii_digit()) {
            match word.parse() {
                Ok(0) | Err(_) => {
                    return Err(self
                        .error(NotationCode::Size, start, end, format!("`{word}` is no size"))
                        .expected("a whole number from 1 to 18446744073709551615")
                        .found(format!("`{word}`"))
                        .help("a literal size is a whole number from 1"));
                }
                Ok(size) => DimKind::Size(size),
            }
        } else if is_axis_name(&word) {
            DimKind::Axis(word)
        } else {
            return Err(self
                .error(NotationCode::AxisName, start, end, format!("`{word}` is no axis name"))
                .expected("letters, digits and `_`, a letter first")
                .found(format!("`{word}`"))
                .help(match word.starts_with(|c: char| c.is_ascii_digit()) {
                    true => "put a space between a size and a name, `2 f`".to_owned(),
                    false => format!("a parameter's name is a label and ends with `:`, `{word}: …`"),
                }));
        };
        Ok(Some(Dim { kind, span: self.text.at(start, end) }))
    }

    fn group(&mut self, depth: usize) -> Result<Dim, Diagnostic> {
        let start = self.at;
        if depth == MAX_DEPTH {
            return Err(self
                .error(NotationCode::Depth, start, start + 1, "parentheses nested too deeply")
                .expected(format!("at most {MAX_DEPTH} levels"))
                .found(format!("{} levels", MAX_DEPTH + 1))
                .help("define an axis for the inner part"));
        }
        self.at += 1;
        let terms = self.sum(depth + 1)?;
        self.skip_space();
        if !self.rest().starts_with(')') {
            let Some(other) = self.rest().chars().next() else {
                return Err(self
                    .error(NotationCode::Unclosed, start, start + 1, "this `(` is never closed")
                    .expected("a `)` for it")
                    .found("the end of the expression")
                    .help("add a `)` behind the last axis of the block"));
            };
            let end = self.at + other.len_utf8();
            return Err(self
                .error(NotationCode::Unexpected, self.at, end, format!("unexpected `{other}`"))
                .expected("an axis, a whole number, `(`, `+` or `)`")
                .found(format!("`{other}`"))
                .help(instead_of(other)));
        }
        self.at += 1;
        if let [Term { label: None, dims, .. }] = &terms[..]
            && dims.is_empty()
        {
            return Err(self
                .error(NotationCode::EmptyGroup, start, self.at, "`()` holds no axis")
                .expected("axes between the parentheses")
                .found("none")
                .help("a stored axis of size 1 is `1`"));
        }
        Ok(Dim { kind: DimKind::Sum(terms), span: self.text.at(start, self.at) })
    }
}

/// What an expression is made of.
const TOKENS: &str = "an axis, a whole number, `(`, or the end";

/// Says what stands in an expression where an author wrote that character.
fn instead_of(character: char) -> &'static str {
    match character {
        '*' | '×' | '·' => "axes that are composed stand side by side, without an operator: `(h d)`",
        ',' | ';' => "axes have spaces between them: `h d e`",
        '[' | ']' => "write `(` and `)` around axes that are composed into one",
        '{' | '}' => "`{…}` stands in names of tensors; an expression has the axis alone, `l`",
        '=' => "what an axis is composed of stands under `axes`: `\"h\": { \"is\": \"g r\" }`",
        ':' => "a label is one word before the `:`, `q.weight: h d e`",
        '/' | '-' => "a part of an axis is an axis of its own, declared under `axes`",
        _ => "an expression has axis names, whole numbers, `(`, `)`, `+` and labels such as `q.weight:`",
    }
}

/// Returns the length of the word at the start: an axis, a number or a label.
fn word_length(text: &str) -> usize {
    text.bytes()
        .take_while(|&byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
        .count()
}

/// Returns whether that can name an axis.
pub(crate) fn is_axis_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! errors {
        ($($name:ident: $text:literal => $code:literal, $range:expr;)*) => {
            $(#[test] fn $name() {
                let error = parse_str($text).expect_err("no expression");
                let span = error.rule.as_ref().expect("has a place");
                assert_eq!((error.code.as_str(), span.start..span.end), ($code, $range));
            })*
        };
    }

    errors! {
        unclosed: "a (b c" => "notation/unclosed", 2..3;
        closes_nothing: "a b)" => "notation/unexpected", 3..4;
        bare_plus: "a + b" => "notation/unexpected", 2..3;
        empty_block: "(q: h + ) e" => "notation/empty-term", 6..7;
        empty_group: "a ()" => "notation/empty-group", 2..4;
        zero: "0 a" => "notation/size", 0..1;
        huge: "99999999999999999999999" => "notation/size", 0..23;
        label_behind: "(h q: d)" => "notation/label-place", 3..4;
        no_label: ": h" => "notation/unexpected", 0..1;
        odd_character: "h * d" => "notation/unexpected", 2..3;
        dotted_axis: "q.weight h" => "notation/axis-name", 0..8;
        underscore_axis: "_x" => "notation/axis-name", 0..2;
    }

    #[test]
    fn escapes_do_not_move_places() {
        for (raw, text, place, under) in [
            (r"h d", "h d", 2..3, "d"),
            (r"\u0068 d", "h d", 2..3, "d"),
            (r"\u0068 d", "h d", 0..1, r"\u0068"),
            (r#"a\"b c"#, "a\"b c", 4..5, "c"),
            (r"\u00e9 c", "é c", 3..4, "c"),
            (r"\ud83d\ude00 c", "😀 c", 5..6, "c"),
            (r"é\tc", "é\tc", 3..4, "c"),
            (r"\u0068", "h", 1..1, ""),
        ] {
            let source = Arc::new(Source { name: "m.json".into(), text: format!("\"{raw}\"") });
            let span = Span::new(&source, 1, raw.len() + 1);
            let found = Text { text, span: &span, verbatim: raw == text }.at(place.start, place.end);
            assert_eq!(found.text(), under, "{raw}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let text = "(".repeat(100_000);
        assert_eq!(parse_str(&text).expect_err("too deep").code, "notation/depth");
    }

    #[test]
    fn the_grammar_of_the_design() {
        for text in [
            "",
            "q.weight: h d e",
            "(q: h d + k: g d + v: g dv) e",
            "e (q: h d + k: g d + v: g dv)",
            "(h (q: d + k: d + v: d)) e",
            "(g (q: r d + k: d + v: d)) e",
            "(b (q: hb d + v: hb d + k: hb d)) e",
            "(tok: v + _: pad) e",
            "((h ((2 f) + u)) + (g ((2 f) + u)) + (g d)) e",
            "1 e (q: h d + k: 1)",
        ] {
            assert_eq!(parse_str(text).expect(text).to_string(), text);
        }
    }
}
