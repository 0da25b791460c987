//! A layout held against a checkpoint's names and shapes: what each rule matches, and why a name has none.

use std::path::Path;

use serde_json::Value;

use crate::bind::{Allow, BindOptions, Bound, bind};
use crate::catalog::{Catalog, TensorMeta, row_major};
use crate::diag::{BindCode, Collector, Diagnostic, Errors, LintCode};
use crate::dtype::Dtype;
use crate::fold::fold_keys;
use crate::mapping::key::Template;
use crate::mapping::{Layout, Mapping, Needed, Rule, Unmapped};
use crate::notation::{AxisName, for_each_axis};
use crate::span::Span;

/// Errors of binding that the table tells better.
const TOLD: &[BindCode] = &[BindCode::Unmatched, BindCode::Nothing];

/// What a layout makes of a checkpoint's names and shapes.
#[derive(Debug)]
pub struct Coverage {
    /// `family/layout`
    pub layout: String,
    /// Tensors of the checkpoint.
    pub tensors: usize,
    /// Every rule, in the layout's order.
    pub rules: Vec<Covered>,
    /// Names without a rule, folded.
    pub strangers: Vec<Stranger>,
    /// Tensors that the layout ignores.
    pub ignored: usize,
    /// Whether names without a rule pass through: the family describes modules, not whole models.
    pub keeps: bool,
    /// Sizes that nothing tells, each with how to give it.
    pub open: Vec<Diagnostic>,
    /// What else is wrong.
    pub errors: Vec<Diagnostic>,
}

/// What a rule matches.
#[derive(Debug)]
pub struct Covered {
    /// Its template.
    pub template: String,
    /// Where it stands.
    pub span: Span,
    /// Its expression.
    pub expr: String,
    /// How many names it matches.
    pub matched: usize,
    /// The axes that it mentions and their sizes in its first tensor.
    pub sizes: Vec<(String, u64)>,
    /// What it is to the checkpoint.
    pub need: Need,
}

/// Whether a rule has to match anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It does: one of its parameters is required and no other rule found it.
    Required,
    /// It need not, by itself or by its parameters.
    Optional,
    /// Another rule holds its parameters here.
    Alternative,
    /// The config says that it does not count.
    Off,
}

/// Names without a rule.
#[derive(Debug)]
pub struct Stranger {
    /// The names, folded: `layers.{0..31}.q.weight (32)`.
    pub names: String,
    /// The nearest rule's template.
    pub nearest: Option<String>,
    /// Why that one does not match.
    pub why: String,
}

impl Coverage {
    /// Returns the required rules that matched nothing.
    pub fn missing(&self) -> impl Iterator<Item = &Covered> {
        self.rules.iter().filter(|rule| rule.need == Need::Required && rule.matched == 0)
    }

    /// Returns whether the layout explains the checkpoint.
    pub fn fits(&self) -> bool {
        self.missing().next().is_none()
            && self.errors.is_empty()
            && (self.keeps || self.strangers.is_empty())
            && self.rules.iter().any(|rule| rule.matched > 0)
    }

    /// Counts what speaks against the layout, and what for it; the best has the least.
    pub fn rank(&self) -> (bool, bool, usize, std::cmp::Reverse<usize>) {
        let against = self.missing().count() + self.strangers.len() + self.errors.len();
        let matched: usize = self.rules.iter().map(|rule| rule.matched).sum();
        (!self.fits(), matched == 0, against, std::cmp::Reverse(matched))
    }

    /// Returns the coverage as JSON, for CI.
    pub fn json(&self) -> Value {
        let need = |need: Need| match need {
            Need::Required => "required",
            Need::Optional => "optional",
            Need::Alternative => "alternative",
            Need::Off => "off",
        };
        let sizes = |sizes: &[(String, u64)]| -> Value {
            sizes.iter().cloned().collect::<std::collections::BTreeMap<_, _>>().into_iter().collect()
        };
        serde_json::json!({
            "layout": self.layout,
            "fits": self.fits(),
            "tensors": self.tensors,
            "ignored": self.ignored,
            "rules": self.rules.iter().map(|rule| serde_json::json!({
                "template": rule.template, "is": rule.expr, "matched": rule.matched,
                "need": need(rule.need), "sizes": sizes(&rule.sizes),
            })).collect::<Vec<_>>(),
            "without_rule": self.strangers.iter().map(|stranger| serde_json::json!({
                "names": stranger.names, "nearest": stranger.nearest, "why": stranger.why,
            })).collect::<Vec<_>>(),
            "open": self.open.iter().map(|open| open.message.clone()).collect::<Vec<_>>(),
            "errors": self.errors,
        })
    }
}

/// Holds a layout against a checkpoint.
pub fn cover(mapping: &Mapping, layout: &Layout, catalog: &Catalog, options: &BindOptions) -> Coverage {
    let facts = options.provenance.of(layout);
    let is_off = |rule: &Rule| facts.hold(&rule.when) == Some(false);
    let off: Vec<bool> = layout.rules.iter().map(is_off).collect();
    let mut matched: Vec<Vec<usize>> = vec![Vec::new(); layout.rules.len()];
    let mut strangers: Vec<(&str, usize)> = Vec::new();
    let mut ignored = 0;
    for (at, tensor) in catalog.tensors.iter().enumerate() {
        let key = tensor.key.as_str();
        let (file, name) = layout.split_name(key);
        let found: Vec<usize> = (0..layout.rules.len())
            .filter(|rule| !off[*rule] && layout.rules[*rule].template.matches(file, name).is_some())
            .collect();
        // Of several, the more special one holds, as in a conversion.
        match found.get(layout.most_special(&found).unwrap_or(0)) {
            Some(rule) => matched[*rule].push(at),
            None if layout.ignore.iter().any(|ignored| ignored.matches(file, name).is_some()) => ignored += 1,
            None => strangers.push((key, at)),
        }
    }
    let mut options = options.clone();
    options.allow.push(Allow::MissingConfig);
    let (bound, errors) = match bind(mapping, layout, layout, catalog, &options) {
        Ok(bound) => (Some(bound), Vec::new()),
        Err(errors) => {
            // What is there tells sizes, whatever is missing.
            options.allow.extend([Allow::Unmatched, Allow::Missing, Allow::IndexGap]);
            let bound = bind(mapping, layout, layout, catalog, &options).ok();
            (bound, errors.diagnostics().to_vec())
        }
    };
    let (open, errors): (Vec<_>, Vec<_>) =
        errors.into_iter().partition(|error| error.code == BindCode::OpenSize);
    let found_elsewhere = |param: &str, own: usize| {
        let others = layout.rules.iter().zip(&matched).enumerate().filter(|(at, _)| *at != own);
        others
            .into_iter()
            .any(|(_, (rule, matched))| !matched.is_empty() && rule.expr.params().contains(&param))
    };
    let covered = |(at, rule): (usize, &Rule)| {
        let is_required = |param: &&str| mapping.params.get(*param).is_some_and(|param| param.is_required());
        let params = rule.expr.params();
        let need = if off[at] {
            Need::Off
        } else if matches!(rule.needed, Some(Needed::Always)) {
            Need::Required
        } else if rule.optional || !params.iter().any(is_required) {
            Need::Optional
        } else if matched[at].is_empty()
            && params.iter().filter(|param| is_required(param)).all(|param| found_elsewhere(param, at))
        {
            Need::Alternative
        } else {
            Need::Required
        };
        Covered {
            template: rule.template.to_string(),
            span: rule.template.span.clone(),
            expr: rule.expr.to_string(),
            matched: matched[at].len(),
            sizes: bound.as_ref().map(|bound| sizes(bound, rule, at)).unwrap_or_default(),
            need,
        }
    };
    // A rule that matches nothing says by itself that its parameters are missing.
    let empty = layout.rules.iter().zip(&matched).filter(|(_, matched)| matched.is_empty());
    let empty: Vec<&Span> = empty.map(|(rule, _)| &rule.template.span).collect();
    let is_told = |error: &Diagnostic| {
        TOLD.iter().any(|code| error.code == *code)
            || error.code == BindCode::Missing && error.rule.as_ref().is_none_or(|span| empty.contains(&span))
    };
    Coverage {
        layout: format!("{}/{}", mapping.family, layout.name),
        tensors: catalog.tensors.len(),
        rules: layout.rules.iter().enumerate().map(covered).collect(),
        strangers: explained(layout, &strangers, catalog),
        ignored,
        keeps: mapping.unmapped == Unmapped::Keep,
        open,
        errors: errors.into_iter().filter(|error| !is_told(error)).collect(),
    }
}

/// Returns the sizes of the axes that a rule mentions, in its first tensor.
fn sizes(bound: &Bound, rule: &Rule, at: usize) -> Vec<(String, u64)> {
    let Some(source) = bound.sources.iter().find(|source| source.reading.rule == at) else {
        return Vec::new();
    };
    let mut names: Vec<&str> = rule.template.axes().collect();
    for_each_axis(&rule.expr.dims, &mut |axis, _| {
        if let AxisName::Named(name) = axis
            && !names.contains(&name)
        {
            names.push(name);
        }
    });
    // An axis of names alone is as long as its numbers go.
    let named = |name: &str| {
        let tensors = bound.sources.iter().filter(|source| source.reading.rule == at);
        let last = tensors.filter_map(|source| source.reading.captures.index(name)).max();
        last.map(|last| last.saturating_add(1))
    };
    let size = |name: &str| {
        let solved = source.reading.sizes.iter().find_map(|(_, sizes)| sizes.get(name).copied());
        solved.or_else(|| named(name))
    };
    names.into_iter().filter_map(|name| Some((name.to_owned(), size(name)?))).collect()
}

fn explained(layout: &Layout, strangers: &[(&str, usize)], catalog: &Catalog) -> Vec<Stranger> {
    let mut groups: Vec<(Vec<&str>, Option<String>, String)> = Vec::new();
    for (key, tensor) in strangers {
        let (nearest, why) = nearest(layout, key, &catalog.tensors[*tensor]);
        let pattern = crate::fold::pattern(key);
        let same = |group: &&mut (Vec<&str>, Option<String>, String)| {
            group.1 == nearest && group.0.first().is_some_and(|first| crate::fold::pattern(first) == pattern)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.0.push(key),
            None => groups.push((vec![key], nearest, why)),
        }
    }
    let stranger = |(names, nearest, why): (Vec<&str>, Option<String>, String)| Stranger {
        names: fold_keys(names).join(", "),
        nearest,
        why,
    };
    groups.into_iter().map(stranger).collect()
}

/// Returns the rule whose name is most like a tensor's, and what keeps the two apart.
fn nearest(layout: &Layout, key: &str, tensor: &TensorMeta) -> (Option<String>, String) {
    let words = split(key);
    let scored = layout.rules.iter().map(|rule| {
        let wanted = template_words(&rule.template);
        let front = words.iter().zip(&wanted).take_while(|(word, wanted)| fits(word, wanted)).count();
        let most = words.len().min(wanted.len()) - front.min(words.len().min(wanted.len()));
        let back = words.iter().rev().zip(wanted.iter().rev()).take(most);
        let back = back.take_while(|(word, wanted)| fits(word, wanted)).count();
        // Of rules that are as near, the one with as many axes.
        let rank = usize::from(rule.expr.dims.len() == tensor.shape.len());
        // A path takes anything, and is no likeness.
        let paths = wanted.iter().filter(|word| word.starts_with("{*")).count();
        let likeness = 2 * (front + back) + rank;
        (likeness.saturating_sub(paths), front, back, wanted, rule)
    });
    let Some((likeness, front, back, wanted, rule)) = scored.max_by_key(|(likeness, ..)| *likeness) else {
        return (None, "the layout has no rules".to_owned());
    };
    if likeness < 3 {
        return (None, "no rule has a name like it".to_owned());
    }
    let (mut here, there) = (&words[front..words.len() - back], &wanted[front..wanted.len() - back]);
    // A path before it takes all but as many words as the rule has.
    if front > 0 && wanted[front - 1].starts_with("{*") && !there.is_empty() {
        here = &here[here.len().saturating_sub(there.len())..];
    }
    let (here, there) = (here.join("."), there.join("."));
    let mut why = match (here.is_empty(), there.is_empty()) {
        (true, true) => "a number in it is written otherwise".to_owned(),
        (true, false) if there.starts_with('{') => format!("the index `{there}` is missing"),
        (true, false) => format!("`{there}` is missing"),
        (false, true) => format!("`{here}` is too much"),
        (false, false) if there.starts_with('{') => {
            format!("`{here}` stands where the rule has the index `{there}`")
        }
        (false, false) => format!("`{here}` stands where the rule has `{there}`"),
    };
    let (rank, axes) = (tensor.shape.len(), rule.expr.dims.len());
    if rank != axes {
        why.push_str(&format!("; it has {rank} axes {:?}, the rule {axes}: `{}`", tensor.shape, rule.expr));
    }
    (Some(rule.template.to_string()), why)
}

fn split(key: &str) -> Vec<String> {
    key.split(['.', '/', ':']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Returns a template's words; an index stands as it is written, `{l}`.
fn template_words(template: &Template) -> Vec<String> {
    split(&template.to_string())
}

/// Returns whether a word of a name is what a template has at its place.
fn fits(word: &str, wanted: &str) -> bool {
    if wanted.starts_with("{*") {
        return true;
    }
    let (Some(start), Some(end)) = (wanted.find('{'), wanted.rfind('}')) else { return word == wanted };
    let inner = word.strip_prefix(&wanted[..start]).and_then(|word| word.strip_suffix(&wanted[end + 1..]));
    inner.is_some_and(|inner| !inner.is_empty() && inner.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Reads names and shapes from JSON: `{"NAME": {"dtype": "F32", "shape": [2, 3]}}`, as a safetensors header has them, or
/// `{"NAME": [2, 3]}`. Returns them, and how many bytes of data a safetensors header promises.
///
/// # Errors
/// Returns everything that is not of this form.
pub fn listed(path: &Path, text: &[u8]) -> Result<(Catalog, u64), Errors> {
    let fail = |message: String| {
        Diagnostic::error(LintCode::List, message)
            .file(path)
            .expected("{\"NAME\": {\"dtype\": \"F32\", \"shape\": [2, 3]}} or {\"NAME\": [2, 3]}")
    };
    let value: Value =
        serde_json::from_slice(text).map_err(|error| fail(format!("it is not JSON: {error}")))?;
    let Value::Object(entries) = value else { return Err(fail("it is no JSON object".to_owned()).into()) };
    let mut errors = Collector::default();
    let mut tensors = Vec::new();
    let mut bytes = 0;
    for (key, entry) in entries.into_iter().filter(|(key, _)| key != "__metadata__") {
        let shape = entry.get("shape").unwrap_or(&entry);
        let shape: Option<Vec<u64>> =
            shape.as_array().and_then(|sizes| sizes.iter().map(Value::as_u64).collect());
        let dtype = entry.get("dtype").map_or(Some(Dtype::F32), |name| Dtype::from_name(name.as_str()?));
        let fits = |shape: &Vec<u64>| {
            shape.iter().try_fold(8_u64, |product, size| product.checked_mul((*size).max(1)))
        };
        match (shape.filter(|shape| fits(shape).is_some()), dtype) {
            (Some(shape), Some(dtype)) => {
                let end = entry.get("data_offsets").and_then(|offsets| offsets.get(1)?.as_u64());
                bytes = bytes.max(end.unwrap_or(0));
                let strides = row_major(&shape);
                tensors.push(TensorMeta {
                    key,
                    dtype,
                    shape,
                    strides,
                    file: 0,
                    offset: tensors.len() as u64,
                    extents: Vec::new(),
                });
            }
            (None, _) => errors.push(fail("an entry has no shape of whole numbers".to_owned()).tensor(key)),
            (_, None) => errors.push(fail("an entry has a type that is not known".to_owned()).tensor(key)),
        }
    }
    let catalog = Catalog::new(path.to_owned(), vec![(path.to_owned(), 0)], tensors);
    errors.finish((catalog, bytes)).map(|(listed, _)| listed)
}
