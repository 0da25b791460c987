//! The names of a checkpoint, sorted, so that a template is tried on those alone that begin or end as it does.

use super::key::{Piece, Template};

/// Names of tensors, each with its place in the list that was given.
#[derive(Debug)]
pub struct Names<'a> {
    names: Vec<&'a str>,
    /// Places, in order of the names.
    by_start: Vec<usize>,
    /// Places, in order of the names read from their ends.
    by_end: Vec<usize>,
}

impl<'a> Names<'a> {
    /// Sorts the names.
    pub fn new(names: Vec<&'a str>) -> Names<'a> {
        let mut by_start: Vec<usize> = (0..names.len()).collect();
        let mut by_end = by_start.clone();
        by_start.sort_by_key(|&at| names[at]);
        by_end.sort_by(|&a, &b| names[a].bytes().rev().cmp(names[b].bytes().rev()));
        Names { names, by_start, by_end }
    }

    /// Returns the names in the order in which they were given.
    pub fn all(&self) -> &[&'a str] {
        &self.names
    }

    /// Returns the places of all names that the template could match, and perhaps of others; `in_set` where names may
    /// have the form `FILE::KEY`.
    pub(crate) fn near(&self, template: &Template, in_set: bool) -> &[usize] {
        let ends = self.ending(end_of(&template.key));
        if in_set {
            return ends;
        }
        let begins = self.beginning(start_of(&template.key));
        if begins.len() < ends.len() { begins } else { ends }
    }

    fn beginning(&self, text: &str) -> &[usize] {
        let first = self.by_start.partition_point(|&at| self.names[at] < text);
        let rest = &self.by_start[first..];
        &rest[..rest.partition_point(|&at| self.names[at].starts_with(text))]
    }

    fn ending(&self, text: &str) -> &[usize] {
        let first = self.by_end.partition_point(|&at| self.names[at].bytes().rev().lt(text.bytes().rev()));
        let rest = &self.by_end[first..];
        &rest[..rest.partition_point(|&at| self.names[at].ends_with(text))]
    }
}

/// Returns how every name begins that the pieces match.
fn start_of(pieces: &[Piece]) -> &str {
    match pieces {
        // An empty path at the end swallows the separator before it.
        [Piece::Literal(text), Piece::Path { separator, .. }] => {
            text.strip_suffix(*separator).unwrap_or(text)
        }
        [Piece::Literal(text), ..] => text,
        _ => "",
    }
}

/// Returns how every name ends that the pieces match.
fn end_of(pieces: &[Piece]) -> &str {
    match pieces {
        // An empty path swallows the separator behind it.
        [.., Piece::Path { separator, .. }, Piece::Literal(text)] => {
            text.strip_prefix(*separator).unwrap_or(text)
        }
        [.., Piece::Literal(text)] => text,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::notation::Text;
    use crate::span::{Source, Span};

    #[test]
    fn no_name_that_a_template_matches_is_left_out() {
        let names = Names::new(vec![
            "w", "b.w", "a.b.w", "a", "a.0", "a.0.w", "a.10.w", "ab.w", "a.w.b", "x::a.0.w", "x::b.w", "",
            "é.w",
        ]);
        let mut most = 0;
        for text in
            ["{*m}.w", "a.{*m}", "a.{l}.w", "a.{l}", "a", "{*m}.b.{*n}", "{*m}", "x::{*m}.w", "a.{*m}.w"]
        {
            let source = Arc::new(Source { name: "t".into(), text: text.into() });
            let span = Span::new(&source, 0, text.len());
            let template = Template::parse(Text { text, span: &span, verbatim: true }).expect("a template");
            let is_set = template.file.is_some();
            let near = names.near(&template, is_set);
            for (at, name) in names.all().iter().enumerate() {
                let (file, key) = name.split_once("::").filter(|_| is_set).unwrap_or(("", name));
                if template.matches(file, key).is_some() {
                    assert!(near.contains(&at), "{text} and {name}");
                    most = most.max(names.all().len() - near.len());
                }
            }
        }
        assert!(most > 8, "no template leaves out most of the names");
    }
}
