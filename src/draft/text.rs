//! The text of the draft: JSON as the built-in files have it, one line a tensor, values in a column.

use serde_json::json;

use super::axes::Axes;
use super::names::{Folded, Kind, Piece};
use super::params::Param;
use super::{Draft, Names, Tensor};

/// Writes the mapping file and what is to be said of it.
pub(super) fn text(
    tensors: &[Tensor],
    names: &Names,
    folded: &Folded,
    axes: &Axes,
    params: &[Param],
) -> Draft {
    let notes = notes(tensors, folded, axes, params);
    let about = format!(
        "Drafted by `qkvconv mapping new` from {}: {} tensors of {} kinds. First say what the axes mean and give them \
         better names, and split those that hold heads, as `about` of the parameters suggests. Then write the other \
         layout of the same parameters under `layouts`. {}",
        names.source,
        tensors.len(),
        folded.kinds.len(),
        notes.join(" ")
    );
    let axis = |axis: &super::axes::Axis| (axis.name.clone(), quoted(&axis.about));
    let tensor = |(at, kind): (usize, &Kind)| {
        let dims = axes.dims[at].iter().map(|dim| dim.map_or("1", |axis| axes.all[axis].name.as_str()));
        let dims: Vec<&str> = dims.collect();
        let is = format!("{}: {}", params[at].name, dims.join(" "));
        (template(kind, folded, axes), quoted(is.trim_end()))
    };
    let mut lines = vec!["{".to_owned(), "  \"format\": 1,".to_owned()];
    lines.push(format!("  \"family\": {},", quoted(&names.family)));
    lines.push(format!("  \"about\": {},", quoted(about.trim_end())));
    lines.push("  \"unmapped\": \"error\",".into());
    lines.extend(object("  ", "axes", axes.all.iter().map(axis).collect()));
    lines.extend(object("  ", "params", params.iter().map(param).collect()));
    lines.push("  \"layouts\": {".into());
    lines.push(format!("    {}: {{", quoted(&names.layout)));
    lines.push(format!("      \"about\": {},", quoted(&format!("as {} has it", names.source))));
    lines.push("      \"source\": \"\",".into());
    let mut rules = object("      ", "tensors", folded.kinds.iter().enumerate().map(tensor).collect());
    rules.last_mut().map(String::pop);
    lines.extend(rules);
    lines.extend(["    }", "  }", "}"].map(str::to_owned));
    Draft { text: lines.join("\n") + "\n", notes }
}

fn quoted(text: &str) -> String {
    json!(text).to_string()
}

/// Writes an object of one line an entry, with a comma behind it.
fn object(indent: &str, name: &str, entries: Vec<(String, String)>) -> Vec<String> {
    let names: Vec<String> = entries.iter().map(|(name, _)| format!("{}:", quoted(name))).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let count = entries.len();
    let line = |(at, (name, (_, value))): (usize, (String, (String, String)))| {
        let gap = " ".repeat(width - name.chars().count());
        format!("{indent}  {name}{gap} {value}{}", if at + 1 < count { "," } else { "" })
    };
    let mut lines = vec![format!("{indent}{}: {{", quoted(name))];
    lines.extend(names.into_iter().zip(entries).enumerate().map(line));
    lines.push(format!("{indent}}},"));
    lines
}

fn param(param: &Param) -> (String, String) {
    let sparse = match param.sparse.is_empty() {
        true => String::new(),
        false => format!(", \"optional\": true, \"sparse\": {}", quoted(&param.sparse.join(" "))),
    };
    let axes = quoted(&param.axes.join(" "));
    let value = format!("{{ \"axes\": {axes}{sparse}, \"about\": {} }}", quoted(&param.about));
    (param.name.clone(), value)
}

fn template(kind: &Kind, folded: &Folded, axes: &Axes) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Index(list) => {
            let (first, width) = (folded.lists[*list].first, folded.lists[*list].width);
            let offset = if first > 0 { format!("+{first}") } else { String::new() };
            let width = if width > 0 { format!(":0{width}") } else { String::new() };
            format!("{{{}{offset}{width}}}", axes.all[*list].name)
        }
    };
    kind.pieces.iter().map(piece).collect()
}

/// Says what is uneven, and what was left to the reader.
fn notes(tensors: &[Tensor], folded: &Folded, axes: &Axes, params: &[Param]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |wanted: Vec<&Param>, text: &str| {
        let names: Vec<&str> = wanted.iter().map(|param| param.name.as_str()).collect();
        match names[..] {
            [] => {}
            [one] => notes.push(format!("{one}: {text}.")),
            [one, ..] => notes.push(format!("{one} and {} more: {text}.", names.len() - 1)),
        }
    };
    note(
        params.iter().filter(|param| !param.sparse.is_empty()).collect(),
        "not every layer has it, so it is `sparse`",
    );
    note(
        axes.varying.iter().filter_map(|at| params.get(*at)).collect(),
        "its sizes differ from layer to layer, so no layout can stack these layers in one tensor",
    );
    note(
        params.iter().filter(|param| param.suggests).collect(),
        "the name speaks of attention; heads are not cut, see `about`",
    );
    let empty = folded
        .kinds
        .iter()
        .zip(params)
        .filter(|(kind, _)| kind.members.iter().any(|(tensor, _)| tensors[*tensor].shape.contains(&0)));
    note(empty.map(|(_, param)| param).collect(), "it has no elements");
    notes
}
