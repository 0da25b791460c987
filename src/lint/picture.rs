//! A stored tensor as a table of indices, around the element that is wrong.

use super::setting::Setting;
use super::trial::Stored;
use crate::inspect::letter;

/// The most rows and columns.
const ROWS: usize = 10;
const COLUMNS: usize = 8;

/// Draws the tensor as rows of its last axis: each cell is the parameter's letter and the element's index in canonical
/// order, `q1.0.3`. Brackets mark where an element was found, angles where it is expected.
pub(super) fn draw(
    setting: &Setting<'_>,
    stored: &Stored,
    found: usize,
    expected: Option<usize>,
) -> Vec<String> {
    let columns = stored.tensor.shape.last().map_or(1, |size| *size as usize).max(1);
    let rows = stored.places.len() / columns;
    let window = |size: usize, most: usize, marks: [Option<usize>; 2]| {
        let first = marks.iter().flatten().min().copied().unwrap_or(0);
        let start = first.saturating_sub(most / 3).min(size.saturating_sub(most));
        start..(start + most).min(size)
    };
    let (row_window, column_window) = (
        window(rows, ROWS, [Some(found / columns), expected.map(|at| at / columns)]),
        window(columns, COLUMNS, [Some(found % columns), expected.map(|at| at % columns)]),
    );
    let cell = |flat: usize| {
        let text = stored.places.get(flat).and_then(Option::as_ref).map_or("·".to_owned(), |place| {
            let Some((name, param)) = setting.mapping.params.get_index(place.param) else {
                return "·".to_owned();
            };
            let sizes = setting.sizes_of(name);
            let mut rest = place.flat;
            let mut index: Vec<String> = Vec::new();
            for axis in param.axes.iter().rev() {
                let size = sizes.get(axis).copied().unwrap_or(1).max(1);
                index.push((rest % size).to_string());
                rest /= size;
            }
            index.reverse();
            format!("{}{}", letter(setting.mapping, name), index.join("."))
        });
        match flat {
            _ if flat == found => format!("[{text}]"),
            _ if Some(flat) == expected => format!("<{text}>"),
            _ => format!(" {text} "),
        }
    };
    let cells: Vec<Vec<String>> = row_window
        .clone()
        .map(|row| column_window.clone().map(|column| cell(row * columns + column)).collect())
        .collect();
    let width = cells.iter().flatten().map(|cell| cell.chars().count()).max().unwrap_or(1);
    let mut lines = vec![format!("{} {:?}", stored.tensor.key, stored.tensor.shape)];
    if row_window.start > 0 {
        lines.push("  …".to_owned());
    }
    for (row, cells) in row_window.clone().zip(&cells) {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:width$}")).collect();
        let start = if column_window.start > 0 { "… " } else { "" };
        let end = if column_window.end < columns { " …" } else { "" };
        lines.push(format!("  row {row:>3}: {start}{}{end}", cells.join(" ").trim_end()));
    }
    if row_window.end < rows {
        lines.push("  …".to_owned());
    }
    lines
}
