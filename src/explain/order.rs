//! What becomes of the order of a parameter's elements between two stored tensors, in words.

use super::place::Place;
use crate::inspect::{dim_names, pair_order};
use crate::mapping::key::Template;
use crate::mapping::{Layout, Mapping};
use crate::notation::{AxisName, Term, for_each_axis};

/// One side: a layout, and where the parameter stands in it.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) layout: &'a Layout,
    pub(super) template: &'a Template,
    pub(super) place: &'a Place,
}

/// A parameter on its way.
pub(super) struct Order<'a> {
    pub(super) mapping: &'a Mapping,
    pub(super) param: &'a str,
    pub(super) source: Side<'a>,
    pub(super) target: Side<'a>,
}

/// The axes of one side, those of the name and those of each stored axis, in parts that both sides share.
struct Axes {
    names: Vec<String>,
    dims: Vec<Vec<String>>,
}

impl Order<'_> {
    /// Tells what changes; a tensor that is moved as a whole and keeps its order is `unchanged`, or `renamed only`.
    pub(super) fn words(&self) -> String {
        let (source, target) = (self.axes(self.source, self.target), self.axes(self.target, self.source));
        let is_own = |axis: &String| self.is_own(axis);
        let mut parts = Vec::new();
        let only = |own: &Axes, other: &Axes| -> Vec<String> {
            own.names.iter().filter(|axis| !other.names.contains(axis) && is_own(axis)).cloned().collect()
        };
        let (joined, cut) = (only(&source, &target), only(&target, &source));
        if !cut.is_empty() {
            parts.push(format!("one tensor for each {}", cut.join(" ")));
        }
        for axis in &joined {
            parts.push(match position(&target, axis) {
                Some((dim, true)) => format!("{axis} stacked along {dim}"),
                Some((dim, false)) => format!("one block for each {axis} along {dim}"),
                None => format!("the tensors of all {axis} together"),
            });
        }
        // The elements of one tensor of each side, without the axes that the other's names tell.
        let rest = |own: &Axes, named: &[String]| -> Vec<Vec<String>> {
            let keep = |axis: &&String| is_own(axis) && !named.contains(axis);
            let dims = own.dims.iter().map(|dim| dim.iter().filter(keep).cloned().collect::<Vec<_>>());
            dims.filter(|dim| !dim.is_empty()).collect()
        };
        let (from, to) = (rest(&source, &cut), rest(&target, &joined));
        let (flat, flat_to) = (from.concat(), to.concat());
        let mirrored: Vec<Vec<String>> = from.iter().rev().cloned().collect();
        let turned = self.restated(&flat);
        if flat == flat_to {
            let whole = self.source.place.is_whole() && self.target.place.is_whole();
            let alike = from == to && parts.is_empty();
            match (turned.is_empty(), whole && alike) {
                (true, true) if self.source.template.to_string() == self.target.template.to_string() => {
                    parts.push("unchanged".to_owned());
                }
                (true, true) => parts.push("renamed only".to_owned()),
                (true, false) => parts.push("unchanged order".to_owned()),
                (false, _) => {}
            }
            if from != to {
                parts.push(format!("shape {} → {}", shape(&from), shape(&to)));
            }
        } else if from.len() > 1 && mirrored == to {
            parts.push("transposed".to_owned());
        } else if turned_round(&from, &to) || turned_round(&to, &from) {
            parts.push(format!("transposed, shape {} → {}", shape(&from), shape(&to)));
        } else {
            let mut sorted = (flat.clone(), flat_to.clone());
            sorted.0.sort();
            sorted.1.sort();
            parts.push(match sorted.0 == sorted.1 {
                true => format!("axes reordered from {} to {}", shape(&from), shape(&to)),
                false => format!("cut anew, from {} to {}", shape(&from), shape(&to)),
            });
        }
        parts.extend(turned);
        let copies = |axes: &Axes| -> Vec<String> {
            let all = axes.names.iter().chain(axes.dims.iter().flatten());
            all.filter(|axis| !is_own(axis) && !self.is_single(axis)).cloned().collect()
        };
        let (stored, wanted) = (copies(&source), copies(&target));
        for axis in &stored {
            parts.push(match wanted.contains(axis) {
                true => format!("the copies for each {axis} must be equal"),
                false => format!("the copies for each {axis} must be equal, one is taken"),
            });
        }
        parts.extend(
            wanted.iter().filter(|axis| !stored.contains(axis)).map(|axis| format!("copied for each {axis}")),
        );
        parts.join(", ")
    }

    fn axes(&self, own: Side<'_>, other: Side<'_>) -> Axes {
        // An axis of copies is a part of a composed one whose other part is the parameter's: `k: h d` where k has g, h = g r.
        let declared =
            self.mapping.params.get(self.param).into_iter().flat_map(|param| param.axes.iter().cloned());
        let mentioned: Vec<String> =
            [own, other].iter().flat_map(|side| mentions(*side)).chain(declared).collect();
        let expand = |axes: Vec<String>| -> Vec<String> {
            axes.into_iter().flat_map(|axis| self.parts(&axis, own, other, &mentioned)).collect()
        };
        let dims = own.place.dims.iter().map(|along| expand(along.axes.clone())).collect();
        Axes { names: expand(own.template.axes().map(str::to_owned).collect()), dims }
    }

    /// Takes a composed axis apart where its parts stand by themselves in one of the two tensors.
    fn parts(&self, axis: &str, own: Side<'_>, other: Side<'_>, mentioned: &[String]) -> Vec<String> {
        let definition = self.definition(axis, own).or_else(|| self.definition(axis, other));
        let Some([term]) = definition else { return vec![axis.to_owned()] };
        let mut inner = Vec::new();
        for_each_axis(&term.dims, &mut |axis, _| inner.push(axis.to_string()));
        let inner: Vec<String> =
            inner.iter().flat_map(|axis| self.parts(axis, own, other, mentioned)).collect();
        match inner.iter().any(|axis| mentioned.contains(axis)) {
            true => inner,
            false => vec![axis.to_owned()],
        }
    }

    /// An axis in a layout's stored order; the family's where the layout says nothing.
    fn definition(&self, axis: &str, side: Side<'_>) -> Option<&[Term]> {
        let find = |layout: &str| self.mapping.layouts.get(layout)?.axes.get(axis)?.is.as_deref();
        find(&side.layout.name).or_else(|| self.mapping.axes.get(axis)?.is.as_deref())
    }

    /// Returns whether an axis is one of the parameter's, or a part of one.
    fn is_own(&self, axis: &str) -> bool {
        let Some(param) = self.mapping.params.get(self.param) else { return true };
        param.axes.iter().any(|own| {
            own == axis
                || axis.starts_with('(')
                || [self.source, self.target].iter().any(|side| self.reaches(own, axis, *side))
        })
    }

    /// Returns whether a layout fixes the axis to one element.
    fn is_single(&self, axis: &str) -> bool {
        let fixed =
            |side: &Side<'_>| self.mapping.axis(side.layout, axis).is_some_and(|axis| axis.size == Some(1));
        [self.source, self.target].iter().any(fixed)
    }

    fn reaches(&self, outer: &str, inner: &str, side: Side<'_>) -> bool {
        outer == inner
            || self.definition(outer, side).into_iter().flatten().any(|term| {
                let mut found = false;
                for_each_axis(&term.dims, &mut |axis, _| {
                    found |= match axis {
                        AxisName::Named(name) => self.reaches(name, inner, side),
                        AxisName::Literal(size) => size.to_string() == inner,
                    };
                });
                found
            })
    }

    /// Tells which of these axes the two layouts hold in other orders.
    fn restated(&self, axes: &[String]) -> Vec<String> {
        let mut words = Vec::new();
        for axis in axes {
            let (from, to) = (self.stored_text(axis, self.source, 0), self.stored_text(axis, self.target, 0));
            let parts = |text: &str| {
                let mut parts: Vec<String> =
                    text.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_owned).collect();
                parts.retain(|part| !part.is_empty());
                parts.sort();
                parts
            };
            // Other parts are another way to cut the axis, in the same order.
            if from == to || parts(&from) != parts(&to) {
                continue;
            }
            let style = |side: Side<'_>| pair_order(self.mapping, side.layout, axis);
            words.push(match (style(self.source), style(self.target)) {
                (Some(a), Some(b)) if a != b => {
                    format!("each head reordered from {} to {} rotary pairs", a.words(), b.words())
                }
                _ => format!("each {axis} reordered from {from} to {to}"),
            });
        }
        words
    }

    /// Writes what an axis is composed of, down to its last parts, in stored order.
    fn stored_text(&self, axis: &str, side: Side<'_>, depth: usize) -> String {
        let Some(terms) = self.definition(axis, side).filter(|_| depth < 8) else { return axis.to_owned() };
        let term = |term: &Term| {
            let mut parts = Vec::new();
            for_each_axis(&term.dims, &mut |axis, _| match axis {
                AxisName::Named(name) => parts.push(self.stored_text(name, side, depth + 1)),
                AxisName::Literal(size) => parts.push(size.to_string()),
            });
            parts.join(" ")
        };
        let texts: Vec<String> = terms.iter().map(term).collect();
        match &texts[..] {
            [one] => one.clone(),
            _ => format!("({})", texts.join(" + ")),
        }
    }
}

/// Returns whether one side is a matrix and the other its transpose with composed axes apart: `(h d) e` and `e h d`.
fn turned_round(matrix: &[Vec<String>], other: &[Vec<String>]) -> bool {
    let [rows, columns] = matrix else { return false };
    [columns.as_slice(), rows.as_slice()].concat() == other.concat()
}

/// Lists the axes that stand in a tensor's name and shape.
fn mentions(side: Side<'_>) -> Vec<String> {
    let dims = side.place.dims.iter().flat_map(|along| along.axes.iter().cloned());
    side.template.axes().map(str::to_owned).chain(dims).collect()
}

/// Returns the stored axis in which an axis stands, and whether it stands there alone.
fn position(axes: &Axes, axis: &str) -> Option<(String, bool)> {
    let at = axes.dims.iter().position(|dim| dim.iter().any(|name| name == axis))?;
    let name = dim_names(axes.dims.len()).into_iter().nth(at)?;
    Some((name, axes.dims[at].len() == 1))
}

/// Writes stored axes, composed ones in parentheses.
fn shape(dims: &[Vec<String>]) -> String {
    let dim = |axes: &Vec<String>| match &axes[..] {
        [one] => one.clone(),
        several => format!("({})", several.join(" ")),
    };
    format!("[{}]", dims.iter().map(dim).collect::<Vec<_>>().join(", "))
}
