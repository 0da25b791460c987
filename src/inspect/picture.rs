//! A picture of a stored matrix: which part and which head each region holds, as text or as SVG.

use super::seen::Seen;
use crate::mapping::Mapping;

/// What a cell of a picture shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// An element of a parameter, and its head where it has one.
    Part {
        /// The parameter's name.
        param: String,
        /// The head that it belongs to.
        head: Option<u64>,
    },
    /// Zeros or padding.
    Empty,
}

/// A stored matrix as cells; tensors of more axes are seen as rows of their last axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Rows of cells.
    pub cells: Vec<Vec<Cell>>,
}

/// Draws a tensor of that shape with at most so many rows and columns of cells; each cell shows the element in its middle.
pub fn draw(
    mapping: &Mapping,
    seen: &Seen<'_>,
    shape: &[u64],
    (most_rows, most_columns): (usize, usize),
) -> Picture {
    let (rows, columns) = match shape.split_last() {
        Some((last, before)) => (before.iter().product::<u64>().max(1), *last),
        None => (1, 1),
    };
    let middle = |at: u64, cells: u64, size: u64| (2 * at + 1) * size / (2 * cells.max(1));
    let (high, wide) = (rows.min(most_rows as u64), columns.min(most_columns as u64));
    let cell = |row: u64, column: u64| {
        let mut number = middle(row, high, rows) * columns + middle(column, wide, columns);
        let mut indices = vec![0; shape.len()];
        for (index, size) in indices.iter_mut().zip(shape).rev() {
            *index = number % size.max(&1);
            number /= size.max(&1);
        }
        match seen.element(&indices) {
            Some(element) => Cell::Part { head: element.head(mapping), param: element.param },
            None => Cell::Empty,
        }
    };
    Picture { cells: (0..high).map(|row| (0..wide).map(|column| cell(row, column)).collect()).collect() }
}

/// Returns the letter of a parameter in a picture: q, k, v and o as they are, others by their first letter.
pub fn letter(param: &str) -> char {
    let last = param.split('.').rev().find(|part| !matches!(*part, "weight" | "bias")).unwrap_or(param);
    last.chars().next().unwrap_or('?')
}

impl Picture {
    /// Returns the parameters in it, in order of appearance.
    fn params(&self) -> Vec<&str> {
        let mut params: Vec<&str> = Vec::new();
        for cell in self.cells.iter().flatten() {
            if let Cell::Part { param, .. } = cell
                && !params.contains(&param.as_str())
            {
                params.push(param);
            }
        }
        params
    }

    /// Returns the picture as lines: two characters a cell, a letter for the part and a digit for the head (the last one of
    /// its number), so that it can be read without colour; `colour` adds a background for each part.
    pub fn lines(&self, colour: bool) -> Vec<String> {
        let params = self.params();
        let line = |row: &Vec<Cell>| {
            let mut line = String::new();
            for cell in row {
                let Cell::Part { param, head } = cell else {
                    line.push_str("··");
                    continue;
                };
                let part = letter(param);
                let mark = head.map_or(part, |head| char::from_digit((head % 10) as u32, 10).unwrap_or('?'));
                if colour {
                    let at = params.iter().position(|name| name == param).unwrap_or(0);
                    let shade = PALETTE[at % PALETTE.len()][(head.unwrap_or(0) % 2) as usize];
                    line.push_str(&format!("\u{1b}[48;5;{shade};38;5;16m{part}{mark}\u{1b}[0m"));
                } else {
                    line.extend([part, mark]);
                }
            }
            line
        };
        self.cells.iter().map(line).collect()
    }

    /// Returns the picture as an SVG document, one rectangle for each run of equal cells.
    pub fn svg(&self, title: &str) -> String {
        const SIDE: usize = 12;
        let params = self.params();
        let wide = self.cells.first().map_or(0, Vec::len) * SIDE;
        let high = self.cells.len() * SIDE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {wide} {high}\">\n<title>{}</title>\n",
            escaped(title)
        );
        for (y, row) in self.cells.iter().enumerate() {
            let mut x = 0;
            for run in row.chunk_by(|a, b| a == b) {
                let (fill, label) = match &run[0] {
                    Cell::Part { param, head } => {
                        let at = params.iter().position(|name| name == param).unwrap_or(0);
                        let shade = COLOURS[at % COLOURS.len()][(head.unwrap_or(0) % 2) as usize];
                        (
                            shade,
                            format!("{param}{}", head.map_or(String::new(), |head| format!(" head {head}"))),
                        )
                    }
                    Cell::Empty => ("#eeeeee", "zeros".to_owned()),
                };
                svg.push_str(&format!(
                    "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{SIDE}\" fill=\"{fill}\"><title>{}</title></rect>\n",
                    x * SIDE,
                    y * SIDE,
                    run.len() * SIDE,
                    escaped(&label)
                ));
                x += run.len();
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Two shades for each part, of the 256 colours of terminals.
const PALETTE: &[[u8; 2]] = &[[117, 75], [216, 209], [156, 113], [222, 179], [183, 140], [152, 109]];

/// The same as colours of the web.
const COLOURS: &[[&str; 2]] = &[
    ["#87d7ff", "#5fafff"],
    ["#ffaf87", "#ff875f"],
    ["#afff87", "#87d75f"],
    ["#ffd787", "#d7af5f"],
    ["#d7afff", "#af87d7"],
    ["#afd7d7", "#87afaf"],
];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
