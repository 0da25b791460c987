//! Rules and axes → the text of a mapping file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::Parts;
use super::axes::{Axes, Axis, Rules};
use super::express::{End, Model, Node, Rule, Term};
use crate::mapping::print::{Section, object, quoted, section};

/// What a parameter is, and what it is called.
pub(super) struct Params {
    /// Per block; `None` for padding.
    pub(super) names: Vec<Option<String>>,
    /// Names in the order of the source, with the declaration.
    pub(super) declared: Vec<(String, Value)>,
}

/// Names the parameters and declares them.
pub(super) fn params(model: &Model<'_>, rules: &Rules, axes: &Axes) -> Params {
    let mut names: Vec<Option<String>> = vec![None; model.blocks.len()];
    let mut declared = Vec::new();
    let mut taken = BTreeSet::new();
    for block in 0..model.blocks.len() {
        if model.twin[block] != block {
            names[block] = names[model.twin[block]].clone();
            continue;
        }
        let of = &model.blocks[block];
        if model.is_padding(block) {
            continue;
        }
        let alone =
            |end: End, group: usize| rules.get(&(end, group)).is_some_and(|rule| rule.blocks.len() == 1);
        let skeleton = match (of.source, of.target) {
            (Some(source), Some(target)) if alone(End::Source, source) || !alone(End::Target, target) => {
                &model.source.groups[source].skeleton
            }
            (_, Some(target)) => &model.target.groups[target].skeleton,
            (_, None) => continue,
        };
        let base = param_name(skeleton);
        let name = (1..)
            .map(|number| if number == 1 { base.clone() } else { format!("{base}.{number}") })
            .find(|name| !taken.contains(name));
        let name = name.unwrap_or_default();
        taken.insert(name.clone());
        declared.push((name.clone(), declaration(model, axes, block)));
        names[block] = Some(name);
    }
    Params { names, declared }
}

fn param_name(skeleton: &str) -> String {
    let parts = skeleton.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let name = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name } else { format!("p.{name}") }
}

fn declaration(model: &Model<'_>, axes: &Axes, block: usize) -> Value {
    let of = &model.blocks[block];
    let (end, group) = match (of.source, of.target) {
        (Some(source), _) => (End::Source, source),
        (None, target) => (End::Target, target.unwrap_or_default()),
    };
    let lists = &model.side(end).groups[group].lists;
    let mut names: Vec<String> = Vec::new();
    let mut sparse: Vec<String> = Vec::new();
    for axis in 0..model.shape(end, group).len() {
        if axis < lists.len() && model.is_shared(end, group, axis) {
            let name = axes.list(end, lists[axis]).name.clone();
            let side = model.side(end);
            let indices =
                side.groups[group].tensors.iter().map(|tensor| side.names.names[*tensor].indices[axis]);
            if indices.collect::<BTreeSet<_>>().len() as u64 != side.names.lists[lists[axis]].count {
                sparse.push(name.clone());
            }
            names.push(name);
            continue;
        }
        // What only one side has is a copy.
        let own = |at: &usize| of.source.is_none() || of.digits[*at].target.is_some();
        let mut digits: Vec<(u64, usize)> = (0..of.digits.len())
            .filter(own)
            .filter_map(|at| {
                super::express::place(&of.digits[at], end)
                    .filter(|(on, _)| *on == axis)
                    .map(|(_, step)| (step, at))
            })
            .collect();
        digits.sort_unstable_by_key(|(step, _)| std::cmp::Reverse(*step));
        names.extend(digits.into_iter().map(|(_, at)| axes.digit((block, at)).name.clone()));
    }
    let text = axes.composed(names).join(" ");
    if of.source.is_none() {
        return json!({ "axes": text, "absent": "zeros" });
    }
    if sparse.is_empty() {
        text.into()
    } else {
        json!({ "axes": text, "optional": true, "sparse": sparse.join(" ") })
    }
}

/// Writes a group's template.
pub(super) fn template(model: &Model<'_>, axes: &Axes, end: End, group: usize) -> String {
    let side = model.side(end);
    let group = &side.groups[group];
    let mut text = String::new();
    for (at, part) in group.skeleton.split("{}").enumerate() {
        if let Some(&list) = at.checked_sub(1).and_then(|at| group.lists.get(at)) {
            let (list, name) = (&side.names.lists[list], &axes.list(end, list).name);
            text.push_str(&format!("{{{name}"));
            if list.first > 0 {
                text.push_str(&format!("+{}", list.first));
            }
            if list.width > 0 {
                text.push_str(&format!(":0{}", list.width));
            }
            text.push('}');
        }
        text.push_str(part);
    }
    text
}

/// Writes a group's expression.
pub(super) fn expression(rule: &Rule, axes: &Axes, params: &Params) -> String {
    let dims: Vec<String> = rule.axes.iter().map(|nodes| dim(nodes, axes, params)).collect();
    let dims = dims.join(" ");
    match &rule.blocks[..] {
        [block] => {
            format!("{}: {dims}", params.names[*block].as_deref().unwrap_or("_")).trim_end().to_owned()
        }
        _ => dims,
    }
}

fn dim(nodes: &[Node], axes: &Axes, params: &Params) -> String {
    match nodes {
        [] => "1".into(),
        [node] => inner(node, axes, params),
        nodes => match &composed(nodes, axes, params)[..] {
            [one] => one.clone(),
            names => format!("({})", names.join(" ")),
        },
    }
}

fn composed(nodes: &[Node], axes: &Axes, params: &Params) -> Vec<String> {
    axes.composed(nodes.iter().map(|node| inner(node, axes, params)).collect())
}

fn inner(node: &Node, axes: &Axes, params: &Params) -> String {
    match node {
        Node::Digit(all) => all.first().map(|digit| axes.digit(*digit).name.clone()).unwrap_or_default(),
        Node::Sum(terms) => {
            let terms: Vec<String> = terms.iter().map(|of| term(of, axes, params)).collect();
            format!("({})", terms.join(" + "))
        }
    }
}

fn term(term: &Term, axes: &Axes, params: &Params) -> String {
    let nodes = composed(&term.nodes, axes, params);
    let nodes = if nodes.is_empty() { "1".to_owned() } else { nodes.join(" ") };
    match term.block {
        Some(block) => format!("{}: {nodes}", params.names[block].as_deref().unwrap_or("_")),
        None => nodes,
    }
}

/// What a layout's text is made of.
pub(super) struct LayoutText {
    pub(super) name: String,
    pub(super) tensors: Vec<(String, String)>,
    pub(super) config: BTreeMap<String, String>,
    pub(super) ignore: Vec<String>,
}

impl LayoutText {
    /// Returns the text of the layout's object, indented by that many spaces.
    pub(super) fn text(&self, indent: usize) -> String {
        let rules = self.tensors.iter().map(|(template, is)| (template.clone(), quoted(is)));
        let mut fields = vec![("about".to_owned(), quoted("")), ("tensors".to_owned(), object(rules))];
        if !self.config.is_empty() {
            let entries = self.config.iter().map(|(axis, key)| (axis.clone(), json!([key]).to_string()));
            fields.push(("config".to_owned(), object(entries)));
        }
        if !self.ignore.is_empty() {
            fields.push(("ignore".to_owned(), json!(self.ignore).to_string()));
        }
        section(&object(fields.into_iter()), Section::Layout, indent)
    }
}

/// Writes the declarations of axes, by name.
pub(super) fn axis_entries(axes: &[&Axis]) -> Vec<(String, String)> {
    let mut entries: BTreeMap<String, String> = BTreeMap::new();
    for axis in axes {
        let mut fields = Map::new();
        if let Some((outer, inner)) = &axis.is {
            fields.insert("is".into(), format!("{outer} {inner}").into());
        }
        if axis.per_parameter {
            fields.insert("per".into(), "parameter".into());
        }
        if let Some(size) = axis.size {
            fields.insert("size".into(), size.into());
        }
        if let Some(role) = axis.role {
            fields.insert("role".into(), role.name().into());
        }
        let text = if fields.is_empty() {
            quoted("")
        } else {
            section(&Value::Object(fields).to_string(), Section::Field, 0)
        };
        entries.insert(axis.name.clone(), text);
    }
    entries.into_iter().collect()
}

/// Writes a whole mapping file.
pub(super) fn file(family: &str, about: &str, parts: &Parts) -> String {
    let layouts = parts.layouts.iter().map(|layout| (layout.name.clone(), layout.text.clone()));
    let fields = [
        ("format", "1".to_owned()),
        ("family", quoted(family)),
        ("about", quoted(about)),
        ("axes", object(parts.axes.iter().cloned())),
        ("params", object(parts.params.iter().cloned())),
        ("layouts", object(layouts)),
    ];
    let text = object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
    section(&text, Section::File, 0) + "\n"
}
