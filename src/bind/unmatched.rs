//! What is said of stored tensors that no rule matches: the condition that keeps a rule out, the layout that has such
//! names, the nearest rule.

use std::collections::HashSet;

use indexmap::IndexMap;

use super::Dropped;
use super::attachment::Attached;
use crate::catalog::Catalog;
use crate::diag::{BindCode, Collector, Diagnostic, nearest};
use crate::mapping::key::Template;
use crate::mapping::{Layout, Mapping};
use crate::provenance::Facts;

/// Returns a rule that does not count with this config and has the name of a tensor.
pub(super) fn unheld(layout: &Layout, active: &[bool], names: &[String]) -> Option<usize> {
    (0..layout.rules.len()).filter(|rule| !active[*rule]).find(|&rule| {
        names.iter().any(|name| {
            let (file, key) = layout.split_name(name);
            layout.rules[rule].template.matches(file, key).is_some()
        })
    })
}

/// Says that a rule has the name of a tensor, and does not count with this config.
pub(super) fn condition_of_rule(layout: &Layout, rule: usize, facts: &Facts<'_>) -> Diagnostic {
    let rule = &layout.rules[rule];
    let error =
        Diagnostic::error(BindCode::Condition, "the rule of this name does not count with this config")
            .rule(&rule.template.span);
    let broken = rule.when.iter().find(|one| facts.hold(std::slice::from_ref(one)) == Some(false));
    let Some(broken) = broken else { return error };
    error
        .expected(format!("`{}` is {}", broken.key, broken.allowed_words()))
        .found(facts.words(&broken.key))
        .help("choose the layout that fits the config, or correct the config")
}

/// Says that no tensor has the name of a rule, and what is nearest to the names that there are.
pub(super) fn nothing_matched(
    mapping: &Mapping,
    layout: &Layout,
    catalog: &Catalog,
    (names, unheld): (&[String], Option<usize>),
    facts: &Facts<'_>,
    dropped: &[Dropped],
    errors: &mut Collector,
) {
    if let Some(rule) = unheld {
        errors.push(condition_of_rule(layout, rule, facts).file(&catalog.path));
        return;
    }
    let total = names.len();
    let mut error = Diagnostic::error(BindCode::Nothing, format!("0 of {total} source tensors matched"))
        .file(&catalog.path)
        .rule(&layout.span);
    let taken: Vec<&String> = {
        let gone: HashSet<usize> = dropped.iter().map(|dropped| dropped.tensor).collect();
        names.iter().enumerate().filter(|(tensor, _)| !gone.contains(tensor)).map(|(_, name)| name).collect()
    };
    let counted = mapping.layouts.values().filter(|other| other.name != layout.name).map(|other| {
        let hits = taken.iter().filter(|name| {
            other
                .rules
                .iter()
                .any(|rule| rule.template.file.is_none() && rule.template.matches("", name).is_some())
        });
        (hits.count(), other.name.as_str())
    });
    let mut best: Option<(usize, Vec<&str>)> = None;
    for (hits, name) in counted.filter(|(hits, _)| *hits > 0) {
        match &mut best {
            Some((most, names)) if *most == hits => names.push(name),
            Some((most, _)) if *most > hits => {}
            _ => best = Some((hits, vec![name])),
        }
    }
    if total == 0 {
        error = error.help("the checkpoint is empty; nothing can be converted");
    } else if let Some((hits, names)) = best {
        let names: Vec<String> = names.iter().map(|name| format!("--from {name}")).collect();
        error =
            error.help(format!("{hits} of them have names of another layout: try {}", names.join(" or ")));
    } else if let Some((name, template)) = nearest_pair(layout, &taken) {
        error = error.found(format!("the nearest is `{name}`")).help(format!(
            "it should look like `{template}`; --strip-prefix removes a prefix, `qkvconv mapping list` shows the layouts"
        ));
    } else {
        error = error.help("`qkvconv mapping list` shows the layouts and their names");
    }
    error.tensors = taken.into_iter().cloned().collect();
    errors.push(error);
}

fn nearest_pair<'a>(layout: &'a Layout, names: &[&'a String]) -> Option<(&'a str, String)> {
    names.iter().take(200).find_map(|name| {
        let shapes = layout.rules.iter().map(|rule| (print_as(&rule.template, name), &rule.template));
        let shapes: Vec<(String, &Template)> = shapes.collect();
        let near = nearest(name, shapes.iter().map(|(shape, _)| shape.as_str()))?;
        let (_, template) = shapes.iter().find(|(shape, _)| shape == near)?;
        Some((name.as_str(), template.to_string()))
    })
}

/// Returns the template whose names are nearest to a name.
pub(super) fn nearest_rule<'a>(layout: &'a Layout, name: &str) -> Option<&'a Template> {
    let shapes: IndexMap<String, &Template> =
        layout.rules.iter().map(|rule| (print_as(&rule.template, name), &rule.template)).collect();
    let near = nearest(name, shapes.keys().map(String::as_str))?;
    shapes.get(near).copied()
}

/// A tensor without a rule that belongs to a weight: neither left out nor passed through is it right.
pub(super) fn unmatched_attachment(
    layout: &Layout,
    catalog: &Catalog,
    tensor: usize,
    attached: &Attached,
) -> Diagnostic {
    let kind = attached.kind;
    Diagnostic::error(BindCode::Unmatched, format!("no rule matches {}", kind.words()))
        .file(&catalog.path)
        .tensor(&catalog.tensors[tensor].key)
        .rule(&layout.span)
        .found(format!("it belongs to `{}`", attached.weight_pattern()))
        .help(kind.help())
}

/// Says that a tensor has no rule, and which rule is nearest to its name.
pub(super) fn unmatched_tensor(
    layout: &Layout,
    catalog: &Catalog,
    tensor: usize,
    near: Option<&Template>,
) -> Diagnostic {
    let error = Diagnostic::error(BindCode::Unmatched, "no rule matches this tensor")
        .file(&catalog.path)
        .tensor(&catalog.tensors[tensor].key)
        .rule(&layout.span);
    match near {
        Some(template) => error.help(format!(
            "the nearest rule is `{template}`: correct the name, or choose the layout that has this tensor; --drop leaves out what the model does not need, --allow unmatched passes it through"
        )),
        None => error.help(
            "choose the layout that has it; --drop leaves out what the model does not need, --allow unmatched passes it through",
        ),
    }
}

/// Writes a template with the name's own indices and leading path, for comparing the two.
fn print_as(template: &Template, name: &str) -> String {
    use crate::mapping::key::Piece;
    let fixed: usize = template
        .key
        .iter()
        .map(|piece| match piece {
            Piece::Literal(text) => text.len(),
            Piece::Axis { .. } | Piece::Count { .. } => 1,
            Piece::Path { .. } => 0,
        })
        .sum();
    let mut numbers = name.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
    let mut text = String::new();
    for piece in &template.key {
        match piece {
            Piece::Literal(literal) => text.push_str(literal),
            Piece::Axis { .. } | Piece::Count { .. } => text.push_str(numbers.next().unwrap_or("0")),
            Piece::Path { .. } => {
                let length = name.len().saturating_sub(fixed);
                let end = (0..=length).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
                text.push_str(&name[..end]);
            }
        }
    }
    text
}
