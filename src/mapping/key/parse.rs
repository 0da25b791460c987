//! The text of a template as its pieces.

use super::Piece;
use crate::diag::{Diagnostic, MappingCode};
use crate::notation::Text;

/// The most pieces of a template, more than any name has; they are matched one inside the other.
const MOST_PIECES: usize = 100;

/// Parses the part of a template from `start` to `end`.
pub(super) fn pieces(text: &Text<'_>, start: usize, end: usize) -> Result<Vec<Piece>, Diagnostic> {
    let error = |from, to, message: String| {
        Diagnostic::error(MappingCode::Template, message).rule(&text.at(from, to))
    };
    let mut pieces: Vec<Piece> = Vec::new();
    let mut position = start;
    while position < end {
        let rest = &text.text[position..end];
        if let Some(stray) = rest.find(['{', '}']).filter(|&at| rest[at..].starts_with('}') || at == 0) {
            if rest[stray..].starts_with('}') {
                return Err(error(position + stray, position + stray + 1, "this `}` closes nothing".into())
                    .expected("a `{` before it")
                    .found("`}` alone")
                    .help("remove it, or open the capture with `{`"));
            }
        } else {
            let length = rest.find('{').unwrap_or(rest.len());
            pieces.push(Piece::Literal(rest[..length].to_owned()));
            position += length;
            continue;
        }
        let Some(close) = rest.find('}') else {
            return Err(error(position, position + 1, "this `{` is never closed".into())
                .expected("a `}` for it")
                .found("the end of the name")
                .help("close the capture, `{l}`"));
        };
        let piece = capture(&rest[1..close]).map_err(|message| {
            error(position, position + close + 1, message)
                .expected("`{l}`, `{l+4}`, `{l:03}`, `{_l}`, `{l.count}` or `{*m}`")
                .found(format!("`{}`", &rest[..close + 1]))
                .help("`{l}` is an index along the axis l, `+4` what is added to it, `:03` three digits at least, `{_l}` nothing, _1, _2, `{l.count}` the axis's size, `{l.count-1}` the last index, `{*m}` a path")
        })?;
        let number = |piece: &Piece| matches!(piece, Piece::Axis { .. } | Piece::Count { .. });
        if pieces.last().is_some_and(number) && number(&piece)
            || matches!((pieces.last(), &piece), (Some(Piece::Path { .. }), _))
        {
            return Err(error(
                position,
                position + close + 1,
                "two captures without text between them".into(),
            )
            .expected("text behind the first, by which the two are told apart")
            .found(format!("`{}` directly behind another capture", &rest[..close + 1]))
            .help("put the text of the names between them, `{l}.{h}`"));
        }
        pieces.push(piece);
        position += close + 1;
    }
    let count = |is: fn(&Piece) -> bool| pieces.iter().filter(|piece| is(piece)).count();
    if count(|piece| matches!(piece, Piece::Path { .. })) > 2 {
        return Err(error(start, end, "more than two path captures".into())
            .expected("one or two captures of the kind `{*m}`")
            .found(format!("{}", count(|piece| matches!(piece, Piece::Path { .. }))))
            .help("write out the part of the names that is always the same"));
    }
    // Each doubles the ways in which a name can be read.
    if count(|piece| matches!(piece, Piece::Axis { suffix: true, .. })) > 4 {
        return Err(error(start, end, "more than four captures of the kind `{_l}`".into())
            .expected("at most 4")
            .found(format!("{}", count(|piece| matches!(piece, Piece::Axis { suffix: true, .. }))))
            .help("number the others with `{l}`"));
    }
    if pieces.len() > MOST_PIECES {
        return Err(error(start, end, format!("more than {MOST_PIECES} captures and texts between them"))
            .expected(format!("at most {MOST_PIECES}"))
            .found(pieces.len().to_string())
            .help("write out what is always the same"));
    }
    set_separators(&mut pieces).map_err(|(message, beside)| {
        error(start, end, message)
            .expected("a separator such as `.` or `/` beside the path")
            .found(format!("`{beside}`"))
            .help("let the path end at a separator, `{*m}.weight`")
    })?;
    Ok(pieces)
}

fn capture(text: &str) -> Result<Piece, String> {
    if let Some(name) = text.strip_prefix('*') {
        if !crate::notation::is_axis_name(name) {
            return Err(format!("`{{*{name}}}` has no usable name"));
        }
        return Ok(Piece::Path { name: name.into(), separator: '\0' });
    }
    if let Some(name) = text.strip_prefix('_') {
        if !crate::notation::is_axis_name(name) {
            return Err(format!("`{{_{name}}}` names no axis"));
        }
        return Ok(Piece::Axis { name: name.into(), offset: 0, width: 0, suffix: true });
    }
    let (text, width) = match text.split_once(':') {
        Some((name, width)) if width.starts_with('0') && width.len() > 1 => (
            name,
            width
                .parse()
                .ok()
                .filter(|&width: &usize| width <= 18)
                .ok_or("the width is no number up to 18")?,
        ),
        Some((_, width)) => {
            return Err(format!("`:{width}` is no width; `:03` fills up to three digits with zeros"));
        }
        None => (text, 0),
    };
    let (name, sign, offset) = match text.find(['+', '-']) {
        Some(at) => (&text[..at], &text[at..at + 1], &text[at + 1..]),
        None => (text, "+", "0"),
    };
    let digits = offset.bytes().all(|byte| byte.is_ascii_digit());
    let number: u32 = offset
        .parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| format!("the offset `{sign}{offset}` is no whole number"))?;
    let (name, count) = match name.strip_suffix(".count") {
        Some(name) => (name, true),
        None => (name, false),
    };
    if !crate::notation::is_axis_name(name) {
        return Err(format!("`{{{text}}}` names no axis"));
    }
    let name = name.into();
    Ok(match (count, sign) {
        (true, "-") => Piece::Count { name, offset: -i64::from(number), width },
        (true, _) => Piece::Count { name, offset: number.into(), width },
        (false, "-") => {
            return Err("a name's number is the index and what is added to it, never less".into());
        }
        (false, _) => Piece::Axis { name, offset: number.into(), width, suffix: false },
    })
}

/// Finds what separates the segments of each path; where that is no separator, says so with the character.
fn set_separators(pieces: &mut [Piece]) -> Result<(), (String, char)> {
    let literal = |piece: Option<&Piece>, last: bool| match piece {
        Some(Piece::Literal(text)) if last => text.chars().next_back(),
        Some(Piece::Literal(text)) => text.chars().next(),
        _ => None,
    };
    for at in 0..pieces.len() {
        let found = literal(pieces.get(at + 1), false).or_else(|| literal(pieces[..at].last(), true));
        if let Piece::Path { name, separator } = &mut pieces[at] {
            *separator = match found {
                Some(c) if !c.is_alphanumeric() && c != '_' => c,
                // A template of the path alone: the names of the field's checkpoints are dotted.
                None => '.',
                Some(c) => {
                    return Err((
                        format!("the path `{{*{name}}}` stands beside `{c}`, which is no separator"),
                        c,
                    ));
                }
            };
        }
    }
    Ok(())
}
