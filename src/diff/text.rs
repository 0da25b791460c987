//! A report in words, for a person.

use indexmap::IndexMap;

use super::{Comparison, DiffReport, FirstDifference, Lone, MetadataDiff, Stored, TensorDiff, Verdict};
use crate::fold::fold_keys;
use crate::format::shown;

const HEADS: [&str; 9] = [
    "tensor",
    "type",
    "shape",
    "differing",
    "max abs",
    "max rel",
    "max ulp",
    "cosine",
    "first difference, A | B",
];

impl DiffReport {
    /// Returns the report as lines of text, what differs first; `all` names the bit-equal tensors too.
    ///
    /// Names that differ in indices alone are folded where everything else about them is the same.
    pub fn lines(&self, all: bool) -> Vec<String> {
        let mut lines: Vec<String> = ["A", "B"]
            .iter()
            .zip(&self.sides)
            .map(|(name, side)| {
                let left_out = match side.left_out {
                    0 => String::new(),
                    count => format!(", {count} left out"),
                };
                format!("{name}: {} ({}{left_out})", side.path.display(), counted(side.tensors))
            })
            .collect();
        for (name, lone) in ["A", "B"].iter().zip(&self.only) {
            lone_lines(name, lone, &mut lines);
        }
        let (content, headers): (Vec<&TensorDiff>, Vec<&TensorDiff>) =
            self.of(Verdict::Differs).into_iter().partition(|tensor| tensor.comparison.is_some());
        if !headers.is_empty() {
            section(&format!("shape or type differs: {}", counted(headers.len())), &mut lines);
            let pair = |tensor: &TensorDiff| tensor.stored.each_ref().map(stored_text).join(" | ");
            listed(headers.iter().map(|tensor| (pair(tensor), tensor.key.as_str())), &mut lines);
        }
        table("content differs", &content, &mut lines);
        if let Some(tolerance) = self.tolerance {
            let title = format!("within the tolerance of {tolerance:e}");
            table(&title, &self.of(Verdict::Within), &mut lines);
        }
        let equal = self.of(Verdict::BitEqual);
        section(&format!("bit-equal: {}", counted(equal.len())), &mut lines);
        if all {
            let stored = |tensor: &TensorDiff| stored_text(&tensor.stored[0]);
            listed(equal.iter().map(|tensor| (stored(tensor), tensor.key.as_str())), &mut lines);
        }
        metadata_lines(&self.metadata, &mut lines);
        section(self.conclusion(), &mut lines);
        lines
    }

    fn of(&self, verdict: Verdict) -> Vec<&TensorDiff> {
        self.tensors.iter().filter(|tensor| tensor.verdict == verdict).collect()
    }

    fn conclusion(&self) -> &'static str {
        match (self.equal(), self.count(Verdict::Within)) {
            (false, _) => "the checkpoints differ",
            (true, 0) => "all tensors are bit-equal",
            (true, _) => "the checkpoints are equal within the tolerance",
        }
    }
}

fn counted(count: usize) -> String {
    if count == 1 { "1 tensor".to_owned() } else { format!("{count} tensors") }
}

fn stored_text(stored: &Stored) -> String {
    format!("{} {:?}", stored.dtype, stored.shape)
}

fn section(title: &str, lines: &mut Vec<String>) {
    lines.push(String::new());
    lines.push(title.to_owned());
}

fn lone_lines(name: &str, lone: &[Lone], lines: &mut Vec<String>) {
    if !lone.is_empty() {
        section(&format!("only in {name}: {}", counted(lone.len())), lines);
        listed(lone.iter().map(|lone| (stored_text(&lone.stored), lone.key.as_str())), lines);
    }
}

/// Lists names, folded where what is said of them is the same.
fn listed<'a>(items: impl Iterator<Item = (String, &'a str)>, lines: &mut Vec<String>) {
    let mut groups: IndexMap<String, Vec<&str>> = IndexMap::new();
    for (text, key) in items {
        groups.entry(text).or_default().push(key);
    }
    let rows: Vec<[String; 2]> = groups
        .into_iter()
        .flat_map(|(text, keys)| fold_keys(keys).into_iter().map(move |key| [shown(&key), text.clone()]))
        .collect();
    lines.extend(aligned(&rows));
}

/// Sets rows in columns, indented.
fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("  {cell:width$}"));
        cells.collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Sets out by how much tensors differ, with a line of notes below those that need one.
fn table(title: &str, tensors: &[&TensorDiff], lines: &mut Vec<String>) {
    if tensors.is_empty() {
        return;
    }
    section(&format!("{title}: {}", counted(tensors.len())), lines);
    // Grouped by everything but the name, exactly: rounded figures could hide that tensors differ differently.
    let mut groups: IndexMap<String, (&TensorDiff, Vec<&str>)> = IndexMap::new();
    for tensor in tensors {
        let everything = format!("{:?} {:?}", tensor.stored, tensor.comparison);
        groups.entry(everything).or_insert((tensor, Vec::new())).1.push(&tensor.key);
    }
    let mut rows = vec![HEADS.map(str::to_owned)];
    let mut notes = vec![String::new()];
    for (tensor, keys) in groups.values() {
        let Some(comparison) = &tensor.comparison else { continue };
        for key in fold_keys(keys.iter().copied()) {
            rows.push(row(shown(&key), tensor, comparison));
            notes.push(note(comparison));
        }
    }
    for (line, note) in aligned(&rows).into_iter().zip(notes) {
        lines.push(line);
        if !note.is_empty() {
            lines.push(format!("      {note}"));
        }
    }
}

fn row(key: String, tensor: &TensorDiff, comparison: &Comparison) -> [String; 9] {
    let none = || "-".to_owned();
    let [a, b] = &tensor.stored;
    let dtype = if a.dtype == b.dtype { a.dtype.to_string() } else { format!("{} | {}", a.dtype, b.dtype) };
    let numbers = comparison.numbers.as_ref();
    let floats = numbers.and_then(|numbers| numbers.floats.as_ref());
    [
        key,
        dtype,
        format!("{:?}", a.shape),
        format!("{} of {}", comparison.differing, comparison.elements),
        numbers.map_or_else(none, |numbers| magnitude(numbers.max_abs)),
        floats.map_or_else(none, |floats| magnitude(floats.max_rel)),
        floats.and_then(|floats| floats.max_ulp).map_or_else(none, |ulp| ulp.to_string()),
        floats.and_then(|floats| floats.cosine).map_or_else(none, cosine),
        comparison.first.as_ref().map_or_else(none, first),
    ]
}

fn magnitude(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.3e}") }
}

/// Writes how far a cosine is from 1 where that would be lost among nines.
fn cosine(value: f64) -> String {
    match 1.0 - value {
        // What is nearer is the rounding of the sums.
        rest if rest < 1e-13 => "> 1 - 1e-13".to_owned(),
        rest if rest < 1e-4 => format!("1 - {rest:.1e}"),
        _ => format!("{value:.6}"),
    }
}

fn first(difference: &FirstDifference) -> String {
    let [a, b] = difference.elements;
    format!("{:?}: {a} | {b}", difference.index)
}

fn note(comparison: &Comparison) -> String {
    let mut notes = Vec::new();
    if !comparison.bitwise {
        notes.push("the types have no bits in common: compared as numbers".to_owned());
    }
    match &comparison.numbers {
        None => notes.push("of this type the bits alone are compared".to_owned()),
        Some(numbers) => {
            if let Some(floats) = &numbers.floats {
                let sides = [("NaN", floats.nans), ("infinite", floats.infinities)];
                for (what, [a, b]) in sides.into_iter().filter(|(_, counts)| *counts != [0, 0]) {
                    notes.push(format!("{what}: {a} | {b}"));
                }
                if floats.unmatched > 0 {
                    let count = floats.unmatched;
                    notes
                        .push(format!("{count} NaN or infinite on one side and something else on the other"));
                }
            }
        }
    }
    notes.join("; ")
}

fn metadata_lines(metadata: &[MetadataDiff], lines: &mut Vec<String>) {
    if metadata.is_empty() {
        return;
    }
    section("note: the metadata differ, which does not count", lines);
    let text = |value: &Option<String>| match value {
        Some(value) => format!("\"{}\"", shown(value)),
        None => "absent".to_owned(),
    };
    let rows: Vec<[String; 2]> = metadata
        .iter()
        .map(|entry| [shown(&entry.key), entry.values.each_ref().map(text).join(" | ")])
        .collect();
    lines.extend(aligned(&rows));
}
