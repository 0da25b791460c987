//! What is no JSON: each mistake in words, and the text mended so that the rest of the file is read as well.
//!
//! Mending changes bytes in place, so that every place found afterwards is one of the file.

use std::sync::Arc;

use jsonc_parser::common::Range;
use jsonc_parser::errors::ParseErrorKind as Wrong;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use crate::diag::{Collector, Diagnostic, MappingCode};
use crate::span::{Source, Span};

/// What some editors put before a text; JSON has none.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// The most mistakes of one file that are mended.
const MOST: usize = 64;

/// Strict JSON but for names without quotes and strings in single quotes, which are errors once the rest is read.
pub(super) const RULES: ParseOptions = ParseOptions {
    allow_comments: false,
    allow_loose_object_property_names: true,
    allow_trailing_commas: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: true,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Returns the text with what was mended, of the same length, or nothing where a mistake cannot be mended.
pub(super) fn mended(source: &Arc<Source>, errors: &mut Collector) -> Option<String> {
    let mut text = source.text.clone();
    for _ in 0..MOST {
        let Err(error) = parse_to_ast(&text, &CollectOptions::default(), &RULES) else { return Some(text) };
        errors.push(explain(source, error.kind(), error.range()));
        text = mend(&text, error.kind(), error.range())?;
    }
    None
}

/// Puts the least in place of what is wrong.
fn mend(text: &str, wrong: &Wrong, at: Range) -> Option<String> {
    let found = text.get(at.start..at.end)?;
    let (start, instead) = match wrong {
        _ if text.starts_with(BYTE_ORDER_MARK) => (0, " ".repeat(BYTE_ORDER_MARK.len_utf8())),
        Wrong::TrailingCommasNotAllowed | Wrong::CommentsNotAllowed => (at.start, " ".repeat(found.len())),
        Wrong::UnexpectedTokenInObject | Wrong::UnexpectedComma if found == "," => (at.start, " ".into()),
        _ if is_word(found) => (at.start, found.to_lowercase().replace("none", "null")),
        Wrong::ExpectedComma if text.as_bytes().get(at.start)?.is_ascii_whitespace() => {
            (at.start, ",".into())
        }
        _ => return None,
    };
    let end = start + instead.len();
    let mended = format!("{}{instead}{}", &text[..start], text.get(end..)?);
    (mended != text).then_some(mended)
}

fn is_word(found: &str) -> bool {
    !found.is_empty() && found.bytes().all(|byte| byte.is_ascii_alphabetic())
}

fn explain(source: &Arc<Source>, wrong: &Wrong, at: Range) -> Diagnostic {
    let last = source.text.len();
    // A place may stand within a character that is no token.
    let boundary =
        |at: usize| (0..=at.min(last)).rev().find(|&at| source.text.is_char_boundary(at)).unwrap_or(0);
    let start = boundary(at.start);
    let end = boundary(at.end).max(start);
    let found = source.text.get(start..end).unwrap_or_default();
    let rest = source.text.get(start..).unwrap_or_default();
    let next = rest.chars().next();
    let seen = match (found.chars().count(), next) {
        (1..=24, _) => format!("`{found}`"),
        (_, Some(next)) => format!("`{next}`"),
        _ => "the end of the file".into(),
    };
    let opening = next.map_or(0, char::len_utf8);
    let behind_quote = source.text.get(..start).is_some_and(|before| before.ends_with('"'));
    let (message, end, expected, found, help) = match wrong {
        _ if start == 0 && next == Some(BYTE_ORDER_MARK) => (
            "a byte order mark before the JSON",
            opening,
            "`{`",
            "the character U+FEFF, which is not seen".into(),
            "save the file as UTF-8 without a byte order mark",
        ),
        Wrong::TrailingCommasNotAllowed => {
            ("a `,` behind the last entry", end, "a `}` or `]`, or another entry", seen, "remove the `,`")
        }
        Wrong::CommentsNotAllowed => {
            ("a comment", end, "JSON, which has none", seen, "remove it, or write it as the text of `about`")
        }
        Wrong::ExpectedComma => {
            let behind = rest.trim_start().chars().next();
            let behind = behind.map_or_else(|| "nothing".to_owned(), |next| format!("`{next}`"));
            ("a `,` is missing between two entries", end, "a `,`", behind, "put a `,` here")
        }
        Wrong::ExpectedColonAfterObjectKey => {
            ("a `:` is missing behind a name", end, "a `:` and a value", seen, "write `\"name\": value`")
        }
        Wrong::ExpectedObjectValue => {
            ("a value is missing behind `:`", end, "a value", "the end of the file".into(), "write the value")
        }
        Wrong::UnterminatedObject => (
            "this `{` is never closed",
            start + opening,
            "a `}` for it",
            "the end of the file".into(),
            "add a `}`; where lines are indented, the first line that is indented wrongly is where it belongs",
        ),
        Wrong::UnterminatedArray => (
            "this `[` is never closed",
            start + opening,
            "a `]` for it",
            "the end of the file".into(),
            "add a `]`",
        ),
        Wrong::String(_) => (
            "a string is never closed, or has an unknown escape",
            start + opening,
            "a `\"` at its end, and only escapes such as `\\\"`, `\\\\`, `\\n` and `\\u00e9`",
            seen,
            "close the string, and write a backslash as `\\\\`",
        ),
        _ if is_word(found) && behind_quote => (
            "a text ends before this word",
            end,
            "a `,`, a `:` or the end of an object behind a text",
            seen,
            "close the text of the line before with `\"`; inside a text a quote is `\\\"`",
        ),
        _ if is_word(found) => (
            "a word without quotes",
            end,
            "a text in `\"`, a number, `true`, `false`, `null`, an object or a list",
            seen,
            "put a text in quotes; JSON writes `true`, `false` and `null` in small letters",
        ),
        Wrong::UnexpectedCloseBrace | Wrong::UnexpectedCloseBracket => {
            ("this closes nothing, or too early", end, "a value", seen, "write the value, or remove it")
        }
        Wrong::UnexpectedComma => {
            ("an entry is missing", end, "a value", seen, "remove the `,`, or write the value before it")
        }
        Wrong::UnexpectedTokenInObject => (
            "an entry is missing",
            end,
            "a name in quotes, or `}`",
            seen,
            "remove it, or write the entry before it",
        ),
        Wrong::MultipleRootJsonValues => (
            "something stands behind the end of the object",
            start + opening,
            "the end of the file",
            seen,
            "remove it, or remove a `}` that closes the object too early",
        ),
        Wrong::NestingDepthExceeded => (
            "objects or lists nested too deeply",
            start + opening,
            "at most 512 levels",
            seen,
            "take levels out",
        ),
        _ => (
            "this is not JSON",
            end,
            "JSON, an object `{ … }`",
            seen,
            "write names and texts in `\"`, and numbers as `12` or `1e-6`",
        ),
    };
    let error =
        Diagnostic::error(MappingCode::Json, message).rule(&Span::new(source, start, end.clamp(start, last)));
    error.expected(expected).found(found).help(help)
}
