//! [`Expr`] → text, the inverse of parsing.

use std::fmt;

use super::{Dim, DimKind, Expr, Label, Term};

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        labelled(f, self.label.as_ref(), &self.dims)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        labelled(f, self.label.as_ref(), &self.dims)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.param.as_deref().unwrap_or("_"))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            DimKind::Axis(name) => f.write_str(name),
            DimKind::Size(size) => write!(f, "{size}"),
            DimKind::Sum(terms) => {
                for (position, term) in terms.iter().enumerate() {
                    write!(f, "{}{term}", if position == 0 { "(" } else { " + " })?;
                }
                f.write_str(")")
            }
        }
    }
}

fn labelled(f: &mut fmt::Formatter<'_>, label: Option<&Label>, dims: &[Dim]) -> fmt::Result {
    let mut first = true;
    if let Some(label) = label {
        write!(f, "{label}:")?;
        first = false;
    }
    for dim in dims {
        write!(f, "{}{dim}", if first { "" } else { " " })?;
        first = false;
    }
    Ok(())
}
