//! Where a weight of `forward` stands where the entry does not say it: in the layout's own tensor of the parameter.
//!
//! The label of a rule alone would let a mistake in it pass, since `forward` is what the expressions are held against. So
//! the tensor's name must say the same part; where it does not, the place is written out from the framework's source.

use super::Rule;
use super::key::Template;
use crate::diag::{Collector, Diagnostic, MappingCode};
use crate::span::Span;

/// The parameters of one attention.
pub(super) struct Own<'a> {
    /// The layout's rules.
    pub(super) rules: &'a [Rule],
    /// What the names of its parameters begin with, `enc.` of `enc.q.weight`.
    pub(super) prefix: String,
    /// Whether the biases of q, k and v are written as `bias` of the attention, and belong to no product.
    pub(super) has_biases: bool,
}

/// The parts, and the words by which names of tensors tell them.
const WORDS: &[(&str, &[&str])] = &[
    ("q", &["q", "query", "queries", "wq"]),
    ("k", &["k", "key", "keys", "wk"]),
    ("v", &["v", "value", "values", "wv"]),
];

impl Own<'_> {
    /// Returns the tensor that holds the weights of these parts: `q`, or `q`, `k` and `v`. Without one it is an error at
    /// `span`.
    pub(super) fn weight(&self, parts: &[&str], span: &Span, errors: &mut Collector) -> Option<Template> {
        self.one(parts, &[".weight", ""], true, span, errors)
    }

    /// Returns the tensor that holds their biases, if the layout has any.
    pub(super) fn bias(&self, parts: &[&str], span: &Span, errors: &mut Collector) -> Option<Template> {
        if self.has_biases && parts.iter().all(|part| WORDS.iter().any(|(known, _)| known == part)) {
            return None;
        }
        self.one(parts, &[".bias"], false, span, errors)
    }

    fn holds(&self, rule: &Rule, part: &str, endings: &[&str]) -> bool {
        let names =
            |param: &&str| endings.iter().any(|ending| **param == format!("{}{part}{ending}", self.prefix));
        rule.expr.params().iter().any(names)
    }

    fn one(
        &self,
        parts: &[&str],
        endings: &[&str],
        needed: bool,
        span: &Span,
        errors: &mut Collector,
    ) -> Option<Template> {
        let mut found: Vec<&Rule> = Vec::new();
        for rule in self.rules.iter().filter(|rule| parts.iter().any(|part| self.holds(rule, part, endings)))
        {
            // Alternatives are one tensor.
            if found.iter().all(|other| other.template.to_string() != rule.template.to_string()) {
                found.push(rule);
            }
        }
        let ending = if endings.contains(&".bias") { ".bias" } else { ".weight" };
        let params: Vec<String> =
            parts.iter().map(|part| format!("`{}{part}{ending}`", self.prefix)).collect();
        let fail = |found: String, help: String| {
            let message = format!("nothing tells which tensor holds {}", params.join(", "));
            let error = Diagnostic::error(MappingCode::Forward, message).rule(span);
            error.expected("one tensor of the layout that holds them all").found(found).help(help)
        };
        let what = if ending == ".bias" { "bias" } else { "weight" };
        let [rule] = found[..] else {
            if needed || !found.is_empty() {
                let names: Vec<String> = found.iter().map(|rule| format!("`{}`", rule.template)).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                errors.push(fail(
                    names,
                    format!("write `{what}` with the name of the tensor, or `params`, with what the names of the attention's parameters begin with"),
                ));
            }
            return None;
        };
        if !parts.iter().all(|part| self.holds(rule, part, endings)) {
            errors.push(fail(
                format!("`{}`, which holds a part of them", rule.template),
                format!("write `{what}` with the names of the tensors"),
            ));
            return None;
        }
        let said = said(&rule.template);
        let agrees = match parts {
            ["o"] => said.is_empty(),
            [part] if part.len() == 1 => said == [*part],
            [part] => part.split('_').next().is_some_and(|part| said == [part]),
            _ => true,
        };
        if !agrees {
            errors.push(fail(
                format!("`{}`, whose name does not say so", rule.template),
                format!("write `{what}` with the name that the framework's source gives it: `forward` is what the rules are held against"),
            ));
            return None;
        }
        Some(rule.template.clone())
    }
}

/// Returns the parts of which the name of a tensor speaks.
fn said(template: &Template) -> Vec<&'static str> {
    let text = template.to_string().to_lowercase();
    let outside = text.split('{').flat_map(|piece| piece.rsplit('}').next());
    let words: Vec<&str> =
        outside.flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric())).collect();
    let is_said = |(_, known): &&(&str, &[&str])| known.iter().any(|word| words.contains(word));
    WORDS.iter().filter(is_said).map(|(part, _)| *part).collect()
}
