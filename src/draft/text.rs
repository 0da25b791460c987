//! The text of the draft.

use super::axes::Axes;
use super::names::{Folded, Kind, Piece};
use super::params::Param;
use super::{Draft, Names, Tensor};
use crate::mapping::print::{Section, object, quoted, section};

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
    let rules = object(folded.kinds.iter().enumerate().map(tensor));
    let about_layout = format!("as {} has it", names.source);
    let layout = object(
        [("about", quoted(&about_layout)), ("source", quoted("")), ("tensors", rules)]
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter(),
    );
    let fields = [
        ("format", "1".to_owned()),
        ("family", quoted(&names.family)),
        ("about", quoted(about.trim_end())),
        ("unmapped", quoted("error")),
        ("axes", object(axes.all.iter().map(axis))),
        ("params", object(params.iter().map(param))),
        ("layouts", object(std::iter::once((names.layout.clone(), layout)))),
    ];
    let text = object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
    Draft { text: section(&text, Section::File, 0) + "\n", notes }
}

fn param(param: &Param) -> (String, String) {
    let sparse = match param.sparse.is_empty() {
        true => String::new(),
        false => format!(", \"optional\": true, \"sparse\": {}", quoted(&param.sparse.join(" "))),
    };
    let axes = quoted(&param.axes.join(" "));
    let value = format!("{{\"axes\":{axes}{sparse},\"about\":{}}}", quoted(&param.about));
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
