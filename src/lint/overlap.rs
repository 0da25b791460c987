//! A name that two templates both match.

use std::collections::{HashSet, VecDeque};

use crate::mapping::key::{Piece, Template};

/// A template cut so small that two can be walked side by side.
#[derive(Clone, Copy)]
enum Token<'t> {
    Char(char),
    /// Digits that stand as they are.
    Digits(&'t str),
    Number {
        offset: i64,
        width: usize,
    },
    /// `{_l}`
    Suffix,
    Path {
        separator: char,
    },
}

/// What a step adds to the name.
#[derive(Clone, PartialEq)]
enum Unit {
    Char(char),
    Digits(String),
}

/// Where the walk stands in each template, and whether the path there has taken anything.
type State = [(usize, bool); 2];

/// Returns a name that both templates match, `FILE::KEY` where they name files; `None` where none was found.
pub(super) fn common_name(first: &Template, second: &Template) -> Option<String> {
    let file = match (&first.file, &second.file) {
        (None, None) => None,
        (Some(a), Some(b)) => Some(common(a, b)?),
        _ => return None,
    };
    let key = common(&first.key, &second.key)?;
    let text = file.as_deref().unwrap_or_default();
    let both = first.matches(text, &key).is_some() && second.matches(text, &key).is_some();
    both.then(|| file.as_ref().map_or(key.clone(), |file| format!("{file}::{key}")))
}

fn common(first: &[Piece], second: &[Piece]) -> Option<String> {
    // Most templates end in unlike words.
    if let (Some(Piece::Literal(a)), Some(Piece::Literal(b))) = (first.last(), second.last())
        && !a.ends_with(b.as_str())
        && !b.ends_with(a.as_str())
    {
        return None;
    }
    let tokens = [tokens(first), tokens(second)];
    let mut queue: VecDeque<(State, String)> = VecDeque::from([([(0, false); 2], String::new())]);
    let mut seen: HashSet<State> = HashSet::new();
    while let Some((state, text)) = queue.pop_front() {
        if !seen.insert(state) {
            continue;
        }
        if (0..2).all(|side| state[side].0 == tokens[side].len()) {
            return Some(text);
        }
        for side in 0..2 {
            for next in without_text(&tokens[side], state[side]) {
                let mut moved = state;
                moved[side] = next;
                queue.push_back((moved, text.clone()));
            }
        }
        for unit in units(&tokens, state) {
            let taken = [0, 1].map(|side| take(&tokens[side], state[side], &unit));
            if let [Some(a), Some(b)] = taken {
                let added = match &unit {
                    Unit::Char(c) => c.to_string(),
                    Unit::Digits(digits) => digits.clone(),
                };
                queue.push_back(([a, b], format!("{text}{added}")));
            }
        }
    }
    None
}

fn tokens(pieces: &[Piece]) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Literal(text) => {
                let mut rest = text.as_str();
                while let Some(first) = rest.chars().next() {
                    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                    let length = if digits > 0 { digits } else { first.len_utf8() };
                    let (token, behind) = rest.split_at(length);
                    tokens.push(if digits > 0 { Token::Digits(token) } else { Token::Char(first) });
                    rest = behind;
                }
            }
            Piece::Axis { suffix: true, .. } => tokens.push(Token::Suffix),
            Piece::Axis { offset, width, .. } => {
                let offset = i64::try_from(*offset).unwrap_or(i64::MAX);
                tokens.push(Token::Number { offset, width: *width });
            }
            Piece::Count { offset, width, .. } => {
                tokens.push(Token::Number { offset: *offset, width: *width });
            }
            Piece::Path { separator, .. } => tokens.push(Token::Path { separator: *separator }),
        }
    }
    tokens
}

/// Returns where a template may stand without anything more of the name.
fn without_text(tokens: &[Token<'_>], (at, taken): (usize, bool)) -> Vec<(usize, bool)> {
    match tokens.get(at) {
        Some(Token::Path { .. }) if taken => vec![(at + 1, false)],
        // An empty path swallows its separator.
        Some(Token::Path { separator }) => match tokens.get(at + 1) {
            Some(Token::Char(next)) if next == separator => vec![(at + 2, false)],
            _ => Vec::new(),
        },
        Some(Token::Suffix) => vec![(at + 1, false)],
        _ => Vec::new(),
    }
}

/// Returns what the name could go on with.
fn units(tokens: &[Vec<Token<'_>>; 2], state: State) -> Vec<Unit> {
    let mut units = Vec::new();
    for side in 0..2 {
        match tokens[side].get(state[side].0) {
            Some(Token::Char(c)) => units.push(Unit::Char(*c)),
            Some(Token::Digits(digits)) => units.push(Unit::Digits((*digits).to_owned())),
            Some(Token::Number { offset, width }) => {
                let number = offset.saturating_add(1).max(0);
                units.push(Unit::Digits(format!("{number:0width$}", width = *width)));
            }
            Some(Token::Path { .. }) => units.push(Unit::Char('x')),
            Some(Token::Suffix) | None => {}
        }
    }
    units
}

fn take(tokens: &[Token<'_>], (at, _): (usize, bool), unit: &Unit) -> Option<(usize, bool)> {
    let next = (at + 1, false);
    match (tokens.get(at)?, unit) {
        (Token::Char(c), Unit::Char(unit)) => (c == unit).then_some(next),
        (Token::Digits(digits), Unit::Digits(unit)) => (digits == unit).then_some(next),
        (Token::Number { offset, width }, Unit::Digits(unit)) => {
            let canonical =
                unit.len() == *width || unit == "0" || (unit.len() > *width && !unit.starts_with('0'));
            let value: u64 = unit.parse().ok()?;
            (canonical && value >= u64::try_from(*offset).unwrap_or(0)).then_some(next)
        }
        (Token::Path { .. }, _) => Some((at, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::notation::Text;
    use crate::span::{Source, Span};

    fn common(a: &str, b: &str) -> Option<String> {
        let template = |text: &str| {
            let source = Arc::new(Source { name: "t".into(), text: text.into() });
            let span = Span::new(&source, 0, text.len());
            Template::parse(Text { text, span: &span, verbatim: true }).expect("a template")
        };
        common_name(&template(a), &template(b))
    }

    #[test]
    fn names_that_both_match() {
        assert_eq!(common("a.{*m}.w", "{*m}.b.w").as_deref(), Some("a.b.w"));
        assert_eq!(common("a.{*m}.norm.w", "{*n}.b.w"), None);
        assert_eq!(common("a.{l}.w", "a.3.w").as_deref(), Some("a.3.w"));
        assert_eq!(common("a.{l+4}.w", "a.3.w"), None);
        assert_eq!(common("a.{l:02}.w", "a.{k}.w"), None);
        assert_eq!(common("a.{l}.w", "a.{l}.b"), None);
        assert_eq!(common("{*m}.w", "w").as_deref(), Some("w"));
        assert_eq!(common("f{t}::a.{l}.w", "f2::a.0.w").as_deref(), Some("f2::a.0.w"));
        assert_eq!(common("f{t}::a.w", "a.w"), None);
    }
}
