//! A picture of a stored matrix: which part and which head each region holds, as text or as SVG.

use crate::bind::{Block, Content};

/// What a cell of a picture shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// An element of a parameter: its index, and its head where it has one.
    Part {
        /// An index into the parameters.
        param: usize,
        /// The head that it belongs to.
        head: Option<u64>,
        /// Whether it is the second element of a rotary pair.
        second: bool,
    },
    /// Zeros or padding.
    Empty,
}

/// A stored matrix as cells; tensors of more axes are seen as rows of their last axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Rows of cells.
    pub cells: Vec<Vec<Cell>>,
    /// The elements along the rows and the columns.
    pub size: (u64, u64),
}

/// Which coordinates of a parameter matter for a picture: positions among its axes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Axes {
    /// The heads.
    pub head: Option<usize>,
    /// The head size, and the distance of the two elements of a rotary pair along it.
    pub pair: Option<(usize, u64)>,
}

/// Draws a tensor of that shape and these strides (in elements) with at most so many rows and columns of cells; each
/// cell shows the element in its middle.
pub fn draw(
    blocks: &[Block],
    shape: &[u64],
    strides: &[u64],
    axes: &dyn Fn(usize) -> Axes,
    (most_rows, most_columns): (usize, usize),
) -> Picture {
    let (rows, columns) = match shape.split_last() {
        Some((last, before)) if !before.is_empty() => (before.iter().product(), *last),
        Some((last, _)) => (1, *last),
        None => (1, 1),
    };
    let middle = |at: u64, cells: u64, size: u64| (2 * at + 1) * size / (2 * cells.max(1));
    let (high, wide) = (rows.min(most_rows as u64), columns.min(most_columns as u64));
    let cells = (0..high)
        .map(|row| {
            (0..wide)
                .map(|column| {
                    let (r, c) = (middle(row, high, rows), middle(column, wide, columns));
                    cell(blocks, element(shape, strides, r * columns + c), axes)
                })
                .collect()
        })
        .collect();
    Picture { cells, size: (rows, columns) }
}

/// Returns where an element lies, given its number in row-major order.
fn element(shape: &[u64], strides: &[u64], number: u64) -> u64 {
    let mut rest = number;
    let mut place = 0;
    for (size, stride) in shape.iter().zip(strides).rev() {
        place += rest % size.max(&1) * stride;
        rest /= size.max(&1);
    }
    place
}

fn cell(blocks: &[Block], element: u64, axes: &dyn Fn(usize) -> Axes) -> Cell {
    for block in blocks {
        let Some(coordinates) = coordinates(block, element) else { continue };
        let Content::Param(param) = block.content else { return Cell::Empty };
        let wanted = axes(param);
        let head = wanted.head.and_then(|at| coordinates.get(at).copied());
        let second = wanted.pair.is_some_and(|(at, distance)| {
            coordinates.get(at).is_some_and(|value| value / distance.max(1) % 2 == 1)
        });
        return Cell::Part { param, head, second };
    }
    Cell::Empty
}

/// Returns the coordinates of an element of a block; `None` where it lies outside.
fn coordinates(block: &Block, element: u64) -> Option<Vec<u64>> {
    let mut rest = element.checked_sub(block.offset)?;
    let mut values: Vec<u64> = block.coordinates.iter().map(|coordinate| coordinate.base).collect();
    let digits = block.coordinates.iter().enumerate().flat_map(|(at, coordinate)| {
        coordinate.digits.iter().map(move |digit| (digit.stride, digit.count, Some((at, digit.weight))))
    });
    let mut loops: Vec<_> =
        digits.chain(block.repeats.iter().map(|(count, stride)| (*stride, *count, None))).collect();
    loops.sort_by_key(|(stride, ..)| std::cmp::Reverse(*stride));
    for (stride, count, digit) in loops.into_iter().filter(|(stride, count, _)| *stride > 0 && *count > 1) {
        let turn = (rest / stride).min(count - 1);
        rest -= turn * stride;
        if let Some((at, weight)) = digit {
            values[at] += turn * weight;
        }
    }
    (rest == 0).then_some(values)
}

impl Picture {
    /// Returns the picture as lines: two characters a cell, a letter for the part and a digit for the head (the last one of
    /// its number), so that it can be read without colour; `colour` adds a background for each part.
    pub fn lines(&self, letter: &dyn Fn(usize) -> char, colour: bool) -> Vec<String> {
        self.cells
            .iter()
            .map(|row| {
                let mut line = String::new();
                for cell in row {
                    let text = match cell {
                        Cell::Part { param, head, second } => {
                            let mark = match head {
                                Some(head) => char::from_digit((head % 10) as u32, 10).unwrap_or('?'),
                                None => letter(*param),
                            };
                            let part = letter(*param);
                            let part = if *second { part.to_ascii_uppercase() } else { part };
                            format!("{part}{mark}")
                        }
                        Cell::Empty => "··".to_owned(),
                    };
                    match cell {
                        Cell::Part { param, head, .. } if colour => {
                            let shade = PALETTE[param % PALETTE.len()][(head.unwrap_or(0) % 2) as usize];
                            line.push_str(&format!("\u{1b}[48;5;{shade};38;5;16m{text}\u{1b}[0m"));
                        }
                        _ => line.push_str(&text),
                    }
                }
                line
            })
            .collect()
    }

    /// Returns the picture as an SVG document, one rectangle for each run of equal cells.
    pub fn svg(&self, title: &str, name: &dyn Fn(usize) -> String) -> String {
        const SIDE: usize = 12;
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
                    Cell::Part { param, head, .. } => {
                        let shade = COLOURS[param % COLOURS.len()][(head.unwrap_or(0) % 2) as usize];
                        let head = head.map_or(String::new(), |head| format!(" head {head}"));
                        (shade, format!("{}{head}", name(*param)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::{Coordinate, Digit};

    /// `(h (q: d + k: d)) e` with 2 heads of 2 and a width of 3.
    fn interleaved() -> Vec<Block> {
        let block = |param: usize, offset: u64| Block {
            content: Content::Param(param),
            offset,
            coordinates: [(2, 12), (2, 3), (3, 1)]
                .map(|(count, stride)| Coordinate {
                    base: 0,
                    digits: vec![Digit { weight: 1, count, stride }],
                })
                .to_vec(),
            repeats: Vec::new(),
            is_copy: false,
        };
        vec![block(0, 0), block(1, 6)]
    }

    #[test]
    fn parts_and_heads_are_where_they_lie() {
        let axes = |_| Axes { head: Some(0), pair: None };
        let picture = draw(&interleaved(), &[8, 3], &[3, 1], &axes, (24, 40));
        let letter = |param: usize| ['q', 'k'][param];
        let lines = picture.lines(&letter, false);
        assert_eq!(lines, ["q0q0q0", "q0q0q0", "k0k0k0", "k0k0k0", "q1q1q1", "q1q1q1", "k1k1k1", "k1k1k1"]);
        let small = draw(&interleaved(), &[8, 3], &[3, 1], &axes, (4, 1));
        assert_eq!(small.lines(&letter, false), ["q0", "k0", "q1", "k1"]);
        assert!(picture.lines(&letter, true)[0].contains("\u{1b}[48;5;117"));
        let svg = picture.svg("a<b", &|param| letter(param).to_string());
        assert!(svg.contains("k head 1") && svg.contains("a&lt;b"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 8);
    }

    #[test]
    fn a_transposed_view_is_drawn_as_it_is_seen() {
        let axes = |_| Axes { head: Some(0), pair: Some((1, 1)) };
        let picture = draw(&interleaved(), &[3, 8], &[1, 3], &axes, (24, 40));
        let line = &picture.lines(&|param| ['q', 'k'][param], false)[0];
        assert_eq!(line, "q0Q0k0K0q1Q1k1K1");
    }
}
