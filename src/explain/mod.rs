//! Mapping files in words: what a layout stores, what a family names, and what happens between two layouts.
//!
//! Nothing here reads a checkpoint: words and places follow from the expressions, pictures from small sizes of axes or from
//! those that are given.

mod extent;
mod family;
mod forward;
mod layout;
mod order;
mod place;
mod route;

pub use family::family;
pub use layout::{Drawing, layout};
pub use route::Route;

use crate::mapping::arith::Formula;
use crate::mapping::{Axis, Condition};

/// Writes a formula as the mapping file does.
fn formula(formula: &Formula) -> &str {
    formula.span.text().trim_matches('"')
}

/// Tells what must hold of the config; `None` for no condition.
fn condition_words(conditions: &[Condition]) -> Option<String> {
    let one = |condition: &Condition| format!("config `{}` is {}", condition.key, condition.allowed_words());
    let all: Vec<String> = conditions.iter().map(one).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

/// The same as a note behind a line.
fn condition(conditions: &[Condition]) -> String {
    condition_words(conditions).map_or(String::new(), |words| format!(" (where {words})"))
}

/// Tells of an axis: `d = (c f) + u  head size`.
fn axis_line(name: &str, axis: &Axis) -> String {
    let mut line = name.to_owned();
    if let Some(is) = &axis.is {
        let terms: Vec<String> = is.iter().map(ToString::to_string).collect();
        line.push_str(&format!(" = {}", terms.join(" + ")));
    }
    if let Some(size) = axis.size {
        line.push_str(&format!(" = {size}"));
    }
    if !axis.about.is_empty() {
        line.push_str(&format!("  {}", axis.about));
    }
    if axis.per_parameter {
        line.push_str("  (each parameter has its own)");
    }
    line
}
