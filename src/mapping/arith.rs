//! Formulas over axis sizes, `1/sqrt(d)` or `e / h`.

use crate::diag::{Diagnostic, MappingCode};
use crate::notation::Text;
use crate::span::Span;

/// A parsed formula.
#[derive(Clone, Debug)]
pub struct Formula {
    node: Node,
    /// Where it stands.
    pub span: Span,
}

#[derive(Clone, Debug)]
enum Node {
    Number(f64),
    Axis(String),
    Sqrt(Box<Node>),
    Negative(Box<Node>),
    Binary(char, Box<Node>, Box<Node>),
}

impl Formula {
    /// Parses a formula of numbers, axis names, `+ - * /`, parentheses and `sqrt(…)`.
    ///
    /// # Errors
    /// Returns the first thing that is not of the grammar, with its place.
    pub fn parse(text: Text<'_>) -> Result<Formula, Diagnostic> {
        let mut parser = Parser { text: text.text, at: 0, depth: 0, factors: 0 };
        let node = parser.sum().and_then(|node| match parser.peek() {
            None => Ok(node),
            Some(other) => Err(Wrong::unexpected(other, "an operator `+ - * /`, or the end")),
        });
        node.map(|node| Formula { node, span: text.span.clone() }).map_err(|wrong| {
            let span = match wrong.length {
                0 => text.at_next(parser.at),
                length => text.at(parser.at.saturating_sub(length), parser.at),
            };
            Diagnostic::error(MappingCode::Formula, wrong.message)
                .rule(&span)
                .expected(wrong.expected)
                .found(wrong.found)
                .help(wrong.help)
        })
    }

    /// Makes a formula of a number.
    pub fn number(value: f64, span: &Span) -> Formula {
        Formula { node: Node::Number(value), span: span.clone() }
    }

    /// Puts a number in for a name.
    pub fn with(mut self, name: &str, number: f64) -> Formula {
        put_in(&mut self.node, name, number);
        self
    }

    /// Returns the axis, where the formula is one axis and nothing else.
    pub fn as_axis(&self) -> Option<&str> {
        match &self.node {
            Node::Axis(name) => Some(name),
            _ => None,
        }
    }

    /// Returns the axes that it names.
    pub fn axes(&self) -> Vec<&str> {
        let mut names = Vec::new();
        collect(&self.node, &mut names);
        names
    }

    /// Computes the value, or returns `None` where an axis has no size.
    pub fn eval(&self, size: &impl Fn(&str) -> Option<u64>) -> Option<f64> {
        eval(&self.node, size)
    }

    /// Computes a size, or returns `None` where an axis has none or the value is no whole number.
    pub fn eval_size(&self, size: &impl Fn(&str) -> Option<u64>) -> Option<u64> {
        let value = self.eval(size)?;
        // 2^53: every whole number below is exact in f64.
        (value.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&value)).then_some(value as u64)
    }
}

fn collect<'a>(node: &'a Node, names: &mut Vec<&'a str>) {
    match node {
        Node::Number(_) => {}
        Node::Axis(name) => names.push(name),
        Node::Sqrt(inner) | Node::Negative(inner) => collect(inner, names),
        Node::Binary(_, left, right) => {
            collect(left, names);
            collect(right, names);
        }
    }
}

fn put_in(node: &mut Node, name: &str, number: f64) {
    match node {
        Node::Number(_) => {}
        Node::Axis(axis) if axis == name => *node = Node::Number(number),
        Node::Axis(_) => {}
        Node::Sqrt(inner) | Node::Negative(inner) => put_in(inner, name, number),
        Node::Binary(_, left, right) => {
            put_in(left, name, number);
            put_in(right, name, number);
        }
    }
}

fn eval(node: &Node, size: &impl Fn(&str) -> Option<u64>) -> Option<f64> {
    Some(match node {
        Node::Number(value) => *value,
        Node::Axis(name) => size(name)? as f64,
        Node::Sqrt(inner) => eval(inner, size)?.sqrt(),
        Node::Negative(inner) => -eval(inner, size)?,
        Node::Binary(operator, left, right) => {
            let (left, right) = (eval(left, size)?, eval(right, size)?);
            match operator {
                '+' => left + right,
                '-' => left - right,
                '*' => left * right,
                _ => left / right,
            }
        }
    })
}

/// The most numbers, names, signs and parentheses of a formula.
const MOST_FACTORS: usize = 1000;

/// What is not of the grammar.
struct Wrong {
    message: String,
    expected: String,
    found: String,
    help: &'static str,
    /// How many bytes before the parser's place it stands; 0 where it is the next character.
    length: usize,
}

impl Wrong {
    fn new(message: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Wrong {
        let help = "a formula has numbers, axis names, + - * /, parentheses and sqrt(…)";
        Wrong { message: message.into(), expected: expected.into(), found: found.into(), help, length: 0 }
    }

    fn help(self, help: &'static str) -> Wrong {
        Wrong { help, ..self }
    }

    fn unexpected(character: char, expected: &str) -> Wrong {
        let wrong = Wrong::new(format!("unexpected `{character}`"), expected, format!("`{character}`"));
        match character {
            '^' => wrong.help("a formula has no powers; write the product, `d * d`"),
            '×' | '·' => wrong.help("write `*` for a product"),
            '÷' | '%' | ':' => wrong.help("write `/` for a quotient; a size must divide without a rest"),
            ')' => wrong.help("remove it, or open a `(` before"),
            '(' => wrong.help("write `*` between two factors, `2 * (h + g)`; the one function is `sqrt(…)`"),
            ',' => wrong.help("write numbers with a point, `0.5`"),
            c if c.is_ascii_alphanumeric() => wrong.help("write an operator between the two, `2 * d`"),
            _ => wrong,
        }
    }
}

/// What a formula can begin with.
const FACTOR: &str = "a number, an axis name, `-`, `(` or `sqrt(`";

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    factors: usize,
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<char> {
        self.at += self.text[self.at..].len() - self.text[self.at..].trim_start().len();
        self.text[self.at..].chars().next()
    }

    fn sum(&mut self) -> Result<Node, Wrong> {
        let mut left = self.product()?;
        while let Some(operator @ ('+' | '-')) = self.peek() {
            self.at += 1;
            left = Node::Binary(operator, Box::new(left), Box::new(self.product()?));
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Node, Wrong> {
        let mut left = self.factor()?;
        while let Some(operator @ ('*' | '/')) = self.peek() {
            self.at += 1;
            left = Node::Binary(operator, Box::new(left), Box::new(self.factor()?));
        }
        Ok(left)
    }

    fn factor(&mut self) -> Result<Node, Wrong> {
        self.depth += 1;
        if self.depth > 64 {
            let wrong = Wrong::new("a formula nested too deeply", "at most 64 levels", "more");
            return Err(wrong.help("take parentheses out"));
        }
        // A long sum is as deep a tree as nested parentheses are.
        self.factors += 1;
        if self.factors > MOST_FACTORS {
            let message = format!("a formula of more than {MOST_FACTORS} parts");
            return Err(
                Wrong::new(message, format!("at most {MOST_FACTORS}"), "more").help("write a shorter one")
            );
        }
        let node = self.factor_inside();
        self.depth -= 1;
        node
    }

    fn factor_inside(&mut self) -> Result<Node, Wrong> {
        match self.peek() {
            Some('-') => {
                self.at += 1;
                Ok(Node::Negative(Box::new(self.factor()?)))
            }
            Some('(') => self.parenthesised("a formula in parentheses"),
            Some(c) if c.is_ascii_digit() || c == '.' => {
                let rest = &self.text[self.at..];
                let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
                let word = &rest[..length];
                self.at += length;
                let value = word.parse().map_err(|_| Wrong {
                    length,
                    ..Wrong::new(
                        format!("`{word}` is no number"),
                        "a number such as `2` or `0.5`",
                        format!("`{word}`"),
                    )
                    .help("write one point at most")
                })?;
                Ok(Node::Number(value))
            }
            Some(c) if c.is_ascii_alphabetic() => {
                let rest = &self.text[self.at..];
                let length =
                    rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
                let word = &rest[..length];
                self.at += length;
                match word {
                    "sqrt" => Ok(Node::Sqrt(Box::new(self.parenthesised("`(` behind `sqrt`")?))),
                    // A word that begins with a letter is a name.
                    _ => Ok(Node::Axis(word.to_owned())),
                }
            }
            Some(other) => Err(Wrong::unexpected(other, FACTOR)),
            None => Err(Wrong::new("the formula ends too early", FACTOR, "the end")),
        }
    }

    fn parenthesised(&mut self, wanted: &str) -> Result<Node, Wrong> {
        let found =
            |next: Option<char>| next.map_or_else(|| "the end".to_owned(), |next| format!("`{next}`"));
        let next = self.peek();
        if next != Some('(') {
            return Err(Wrong::new("`sqrt` needs parentheses", wanted, found(next)).help("write `sqrt(d)`"));
        }
        self.at += 1;
        let node = self.sum()?;
        let next = self.peek();
        if next != Some(')') {
            return Err(match next {
                Some(next) => Wrong::unexpected(next, "an operator `+ - * /`, or `)`"),
                None => {
                    Wrong::new("a `(` is never closed", "an operator, or `)`", "the end").help("add a `)`")
                }
            });
        }
        self.at += 1;
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::span::Source;

    fn formula(text: &str) -> Result<Formula, Diagnostic> {
        let source = Arc::new(Source { name: "f".into(), text: text.into() });
        Formula::parse(Text { text, span: &Span::new(&source, 0, text.len()), verbatim: true })
    }

    #[test]
    fn values() {
        let size = |name: &str| (name == "d").then_some(16);
        for (text, value) in [("1/sqrt(d)", 0.25), ("2 + 3*d - 1", 49.0), ("-(d - 20) / 2", 2.0), (".5", 0.5)]
        {
            assert_eq!(formula(text).expect(text).eval(&size), Some(value), "{text}");
        }
        assert_eq!(formula("d/3").expect("parses").eval_size(&size), None);
        assert_eq!(formula("value * d").expect("parses").with("value", 0.25).eval_size(&size), Some(4));
        assert_eq!(formula("x").expect("parses").eval(&size), None);
    }

    #[test]
    fn errors() {
        for text in [
            "",
            "1 +",
            "(d",
            "d)",
            "sqrt d",
            "1..2",
            "d ^ 2",
            &"(".repeat(10_000),
            &("1+".repeat(100_000) + "1"),
        ] {
            assert_eq!(formula(text).expect_err(text).code, "mapping/formula");
        }
    }
}
