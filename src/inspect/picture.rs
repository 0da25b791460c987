//! A picture of a stored matrix: which part and which head each region holds, as text or as SVG.

use std::collections::BTreeMap;

use super::rotary::{Rotary, rotary};
use super::seen::Seen;
use super::words::group_words;
use crate::bind::AxisSizes;
use crate::mapping::Mapping;
use crate::shown::{escaped, is_unshowable, xml};

/// What a cell of a picture shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// An element of a parameter, and its head where it has one.
    Part {
        /// The parameter's name.
        param: String,
        /// The head that it belongs to.
        head: Option<u64>,
        /// The group of query heads that share a key and a value, where there are such groups.
        group: Option<u64>,
    },
    /// Zeros or padding.
    Empty,
}

/// A stored matrix as cells; tensors of more axes are seen as rows of their last axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Rows of cells.
    pub cells: Vec<Vec<Cell>>,
    /// One head of each parameter whose heads rotate.
    pub heads: Vec<(String, Rotary)>,
    /// The letter of each parameter.
    letters: BTreeMap<String, char>,
}

/// Draws a tensor of that shape with at most so many rows and columns of cells; each cell shows the element in its middle.
pub fn draw(seen: &Seen<'_>, shape: &[u64], (most_rows, most_columns): (usize, usize)) -> Picture {
    let mapping = seen.mapping();
    let none = AxisSizes::new();
    let sizes = |param: &str| seen.known_sizes(param).unwrap_or(&none);
    let grouped =
        seen.params().any(|param| group_words(mapping, seen.layout(), seen.expr(), sizes(param)).is_some());
    let (rows, columns) = match shape.split_last() {
        // There is nothing to draw, however long the other axes are.
        Some(_) if shape.contains(&0) => (0, 0),
        Some((last, before)) => (before.iter().product(), *last),
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
            Some(element) => Cell::Part {
                head: seen.head_of(&element),
                group: seen.group_of(&element).filter(|_| grouped),
                param: element.param,
            },
            None => Cell::Empty,
        }
    };
    let heads = seen.params().filter_map(|param| {
        let rotary = rotary(mapping, seen.layout(), param, sizes(param))?;
        Some((param.to_owned(), rotary))
    });
    let heads = heads.collect();
    let letters = seen.params().map(|param| (param.to_owned(), letter(mapping, param))).collect();
    Picture {
        letters,
        cells: (0..high).map(|row| (0..wide).map(|column| cell(row, column)).collect()).collect(),
        heads,
    }
}

/// Returns the letter of a parameter in a picture: q, k, v and o as they are, others by their name's first letter.
pub fn letter(mapping: &Mapping, param: &str) -> char {
    let role = mapping.roles().param(param).map(|known| known.role);
    if let Some(role) = role.filter(|role| role.is_projection()) {
        return role.name().chars().next().unwrap_or('?');
    }
    let last = param.split('.').rev().find(|part| !matches!(*part, "weight" | "bias")).unwrap_or(param);
    last.chars().next().filter(|c| !is_unshowable(*c)).unwrap_or('?')
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
    /// its number), so that it can be read without colour; `colour` adds a background for each part. Where query heads share
    /// keys and values the margin numbers the groups. Behind the matrix one head of each parameter that rotates is drawn, its
    /// elements as the numbers of their rotary pairs.
    pub fn lines(&self, colour: bool) -> Vec<String> {
        let params = self.params();
        let (by_row, by_column) = self.bands();
        let mark = |group: &Option<u64>| group.map_or(' ', digit);
        let mut lines = Vec::new();
        if let Some(groups) = &by_column {
            lines.push(groups.iter().map(|group| format!("{0}{0}", mark(group))).collect());
        }
        let line = |(at, row): (usize, &Vec<Cell>)| {
            let mut line = String::new();
            if let Some(groups) = &by_row {
                line.push_str(&format!("{}│", groups.get(at).map_or(' ', mark)));
            }
            for cell in row {
                let Cell::Part { param, head, .. } = cell else {
                    line.push_str("··");
                    continue;
                };
                let part = self.letters.get(param).copied().unwrap_or('?');
                let mark = head.map_or(part, digit);
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
        lines.extend(self.cells.iter().enumerate().map(line));
        if by_row.is_some() || by_column.is_some() {
            lines.push("(the margin numbers the kv groups)".to_owned());
        }
        for (param, rotary) in &self.heads {
            if let Some(strip) = rotary.strip() {
                lines.push(format!("one head of {}: {strip}", escaped(param)));
            }
        }
        lines
    }

    /// Returns the picture as an SVG document, one rectangle for each run of equal cells.
    pub fn svg(&self, title: &str) -> String {
        let params = self.params();
        let wide = self.cells.first().map_or(0, Vec::len) * SIDE;
        let wide = wide.max(self.heads.iter().map(|(_, rotary)| strip_width(rotary)).max().unwrap_or(0));
        let high = (self.cells.len() + 2 * self.heads.len()) * SIDE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {wide} {high}\">\n<title>{}</title>\n",
            xml(title)
        );
        for (y, row) in self.cells.iter().enumerate() {
            let mut x = 0;
            for run in row.chunk_by(|a, b| a == b) {
                let (fill, label) = match &run[0] {
                    Cell::Part { param, head, group } => {
                        let at = params.iter().position(|name| name == param).unwrap_or(0);
                        let shade = COLOURS[at % COLOURS.len()][(head.unwrap_or(0) % 2) as usize];
                        (
                            shade,
                            format!(
                                "{param}{}{}",
                                head.map_or(String::new(), |head| format!(" head {head}")),
                                group.map_or(String::new(), |group| format!(", kv group {group}"))
                            ),
                        )
                    }
                    Cell::Empty => ("#eeeeee", "zeros".to_owned()),
                };
                svg.push_str(&format!(
                    "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{SIDE}\" fill=\"{fill}\"><title>{}</title></rect>\n",
                    x * SIDE,
                    y * SIDE,
                    run.len() * SIDE,
                    xml(&label)
                ));
                x += run.len();
            }
        }
        self.frames(&mut svg);
        for (at, (param, rotary)) in self.heads.iter().enumerate() {
            let y = (self.cells.len() + 2 * at + 1) * SIDE;
            for (place, pair) in rotary.pairs.iter().flatten().take(LONGEST_STRIP).enumerate() {
                let (fill, what) = match pair {
                    // Neighbouring pairs have hues far apart.
                    Some(pair) => {
                        (format!("hsl({},70%,70%)", pair * 137 % 360), format!("rotary pair {pair}"))
                    }
                    None => ("#eeeeee".to_owned(), "does not rotate".to_owned()),
                };
                let label = xml(&format!("{param}, element {place} of a head: {what}"));
                svg.push_str(&format!(
                    "<rect x=\"{}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"{fill}\"><title>{label}</title></rect>\n",
                    place * SIDE
                ));
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Returns the group of each row, where each has one alone, else that of each column.
    fn bands(&self) -> (Option<Bands>, Option<Bands>) {
        let wide = self.cells.first().map_or(0, Vec::len);
        let some = |bands: &Bands| bands.iter().any(Option::is_some);
        let rows: Option<Bands> = self.cells.iter().map(|row| same_group(row.iter())).collect();
        let rows = rows.filter(some);
        let column = |at: usize| same_group(self.cells.iter().filter_map(move |row| row.get(at)));
        let columns = if rows.is_some() { None } else { (0..wide).map(column).collect::<Option<Bands>>() };
        (rows, columns.filter(some))
    }

    /// Draws a frame round each run of rows, or of columns, of one group.
    fn frames(&self, svg: &mut String) {
        let wide = self.cells.first().map_or(0, Vec::len);
        let (groups, along) = match self.bands() {
            (Some(rows), _) => (rows, true),
            (None, Some(columns)) => (columns, false),
            (None, None) => return,
        };
        let mut start = 0;
        for run in groups.chunk_by(|a, b| a == b) {
            if run[0].is_some() {
                let (x, y, w, h) = match along {
                    true => (0, start, wide, run.len()),
                    false => (start, 0, run.len(), self.cells.len()),
                };
                svg.push_str(&format!(
                    "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#333333\"/>\n",
                    x * SIDE,
                    y * SIDE,
                    w * SIDE,
                    h * SIDE
                ));
            }
            start += run.len();
        }
    }
}

/// The kv group of each row or column.
type Bands = Vec<Option<u64>>;

/// The side of a cell of an SVG picture, in its units.
const SIDE: usize = 12;

/// The most elements of a head that an SVG picture shows.
const LONGEST_STRIP: usize = 256;

fn strip_width(rotary: &Rotary) -> usize {
    rotary.pairs.as_ref().map_or(0, |pairs| pairs.len().min(LONGEST_STRIP)) * SIDE
}

/// Returns the group of all of these cells, where they have one; the outer `None` is for cells of several groups.
fn same_group<'a>(cells: impl Iterator<Item = &'a Cell>) -> Option<Option<u64>> {
    let groups = cells.filter_map(|cell| match cell {
        Cell::Part { group, .. } => Some(*group),
        Cell::Empty => None,
    });
    let mut groups = groups.peekable();
    let first = groups.peek().copied().flatten();
    groups.all(|group| group == first).then_some(first)
}

/// Returns the last digit of a number.
fn digit(number: u64) -> char {
    char::from_digit((number % 10) as u32, 10).unwrap_or('?')
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
