//! Formulas over axis sizes, `1/sqrt(d)` or `e / h`.

use crate::diag::Diagnostic;
use crate::notation::{Text, is_axis_name};
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
            Some(other) => Err(format!("unexpected `{other}`")),
        });
        node.map(|node| Formula { node, span: text.span.clone() }).map_err(|message| {
            let at = parser.at.min(text.text.len());
            let span = if text.verbatim {
                Span::new(
                    &text.span.source,
                    text.span.start + at,
                    text.span.end.min(text.span.start + text.text.len()),
                )
            } else {
                text.span.clone()
            };
            Diagnostic::error("mapping/formula", message)
                .rule(&span)
                .help("a formula has numbers, axis names, + - * /, parentheses and sqrt(…)")
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

    fn sum(&mut self) -> Result<Node, String> {
        let mut left = self.product()?;
        while let Some(operator @ ('+' | '-')) = self.peek() {
            self.at += 1;
            left = Node::Binary(operator, Box::new(left), Box::new(self.product()?));
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Node, String> {
        let mut left = self.factor()?;
        while let Some(operator @ ('*' | '/')) = self.peek() {
            self.at += 1;
            left = Node::Binary(operator, Box::new(left), Box::new(self.factor()?));
        }
        Ok(left)
    }

    fn factor(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > 64 {
            return Err("a formula nested too deeply".into());
        }
        // A long sum is as deep a tree as nested parentheses are.
        self.factors += 1;
        if self.factors > MOST_FACTORS {
            return Err(format!("a formula of more than {MOST_FACTORS} parts"));
        }
        let node = self.factor_inside();
        self.depth -= 1;
        node
    }

    fn factor_inside(&mut self) -> Result<Node, String> {
        match self.peek() {
            Some('-') => {
                self.at += 1;
                Ok(Node::Negative(Box::new(self.factor()?)))
            }
            Some('(') => self.parenthesised(),
            Some(c) if c.is_ascii_digit() || c == '.' => {
                let rest = &self.text[self.at..];
                let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
                let value =
                    rest[..length].parse().map_err(|_| format!("`{}` is no number", &rest[..length]))?;
                self.at += length;
                Ok(Node::Number(value))
            }
            Some(c) if c.is_ascii_alphabetic() => {
                let rest = &self.text[self.at..];
                let length =
                    rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
                let word = &rest[..length];
                self.at += length;
                match word {
                    "sqrt" => Ok(Node::Sqrt(Box::new(self.parenthesised()?))),
                    _ if is_axis_name(word) => Ok(Node::Axis(word.to_owned())),
                    _ => Err(format!("`{word}` is no axis name")),
                }
            }
            Some(other) => Err(format!("unexpected `{other}`")),
            None => Err("the formula ends too early".into()),
        }
    }

    fn parenthesised(&mut self) -> Result<Node, String> {
        if self.peek() != Some('(') {
            return Err("expected `(`".into());
        }
        self.at += 1;
        let node = self.sum()?;
        if self.peek() != Some(')') {
            return Err("expected `)`".into());
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
