//! The axis notation: text → [`Expr`].
//!
//! An expression lists a stored tensor's axes, slowest first:
//!
//! ```text
//! tensor := [label ":"] dim*                 a scalar has no dim
//! dim    := axis | integer | "(" sum ")"
//! sum    := term ("+" term)*                 concatenation along this stored axis
//! term   := [label ":"] dim*                 composed axis, slowest first
//! label  := parameter name, or "_" for padding
//! ```
//!
//! ```
//! use qkvconv::notation::parse_str;
//! let expr = parse_str("(q.weight: h d + k.weight: g d + v.weight: g dv) e").unwrap();
//! assert_eq!(expr.dims.len(), 2);
//! assert_eq!(expr.to_string(), "(q.weight: h d + k.weight: g d + v.weight: g dv) e");
//! ```

mod parse;
mod print;

pub(crate) use parse::is_axis_name;
pub use parse::{Text, parse_expr, parse_str, parse_sum};

use crate::span::Span;

/// A stored tensor as written: one [`Dim`] per stored axis, slowest first.
#[derive(Clone, Debug)]
pub struct Expr {
    /// The parameter that the whole tensor holds, where it holds one alone.
    pub label: Option<Label>,
    /// The stored axes.
    pub dims: Vec<Dim>,
    /// The whole expression.
    pub span: Span,
}

/// One stored axis.
#[derive(Clone, Debug)]
pub struct Dim {
    /// What it is.
    pub kind: DimKind,
    /// Where it stands.
    pub span: Span,
}

/// What a stored axis is.
#[derive(Clone, Debug)]
pub enum DimKind {
    /// A named axis: `h`.
    Axis(String),
    /// A literal size: `2` in `(f 2)` is the axis of that name, `1` is no axis.
    Size(u64),
    /// Blocks stored one after another, `(q: h d + k: g d)`; with one term a composed axis, `(h d)`.
    Sum(Vec<Term>),
}

/// One block of a concatenation: axes composed into one, slowest first.
#[derive(Clone, Debug)]
pub struct Term {
    /// What the block holds; `None` where the surroundings say it.
    pub label: Option<Label>,
    /// The axes.
    pub dims: Vec<Dim>,
    /// The whole term.
    pub span: Span,
}

/// A parameter's name, or padding.
#[derive(Clone, Debug)]
pub struct Label {
    /// The name; `None` is padding, `_`.
    pub param: Option<String>,
    /// Where it stands.
    pub span: Span,
}

impl Expr {
    /// Calls `visit` for each label, in order.
    pub fn for_each_label<'a>(&'a self, visit: &mut impl FnMut(&'a Label)) {
        if let Some(label) = &self.label {
            visit(label);
        }
        for_each_label(&self.dims, visit);
    }

    /// Returns the names of the parameters that it holds, each once, in order.
    pub fn params(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        self.for_each_label(&mut |label| {
            if let Some(name) = &label.param
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        });
        names
    }
}

/// Calls `visit` for each label inside these dims, in order.
pub(crate) fn for_each_label<'a>(dims: &'a [Dim], visit: &mut impl FnMut(&'a Label)) {
    for dim in dims {
        if let DimKind::Sum(terms) = &dim.kind {
            for term in terms {
                if let Some(label) = &term.label {
                    visit(label);
                }
                for_each_label(&term.dims, visit);
            }
        }
    }
}

/// Calls `visit` for each named axis and each literal above 1, in order.
pub fn for_each_axis<'a>(dims: &'a [Dim], visit: &mut impl FnMut(AxisName<'a>, &'a Span)) {
    for dim in dims {
        match &dim.kind {
            DimKind::Axis(name) => visit(AxisName::Named(name), &dim.span),
            DimKind::Size(1) => {}
            DimKind::Size(size) => visit(AxisName::Literal(*size), &dim.span),
            DimKind::Sum(terms) => terms.iter().for_each(|term| for_each_axis(&term.dims, visit)),
        }
    }
}

/// An axis as mentioned: by name, or by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AxisName<'a> {
    /// `h`
    Named(&'a str),
    /// `2`
    Literal(u64),
}

impl std::fmt::Display for AxisName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AxisName::Named(name) => f.write_str(name),
            AxisName::Literal(size) => write!(f, "{size}"),
        }
    }
}
