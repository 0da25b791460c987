//! Which elements of a head are rotary pairs, from how its axis is composed or from what the framework computes.

use std::collections::BTreeMap;

use crate::bind::AxisSizes;
use crate::mapping::forward::{Forward, RotaryStyle};
use crate::mapping::role::{AxisRole, ParamRole};
use crate::mapping::{Layout, Mapping};
use crate::notation::{AxisName, Dim, DimKind, Term, for_each_axis};

/// The longest head whose pairs are listed, in elements.
const LONGEST: u64 = 1 << 14;

/// Which elements of a head rotate together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotary {
    /// The axis of a head's elements.
    pub axis: String,
    /// How the pairs lie; `None` for an order that is neither.
    pub style: Option<RotaryStyle>,
    /// For each element of a head, as stored, its pair; `None` for one that does not rotate. Without it the number of
    /// elements that rotate is not known.
    pub pairs: Option<Vec<Option<u64>>>,
}

/// Tells how the heads of a parameter rotate; `None` where they do not, or the mapping says nothing of it.
pub fn rotary(mapping: &Mapping, layout: &Layout, param: &str, sizes: &AxisSizes) -> Option<Rotary> {
    let axes = &mapping.params.get(param)?.axes;
    let forwards = &layout.forwards;
    let by_parts = axes.iter().find(|axis| contains_pair(mapping, layout, axis, 0));
    if let Some(axis) = by_parts {
        // A family may compose the axis for those of its frameworks that rotate, and this one does not.
        if !forwards.is_empty() && forwards.values().all(|forward| forward.rotary.is_none()) {
            return None;
        }
        let pairs = elements(mapping, layout, axis, sizes).map(|all| {
            let mut numbers: BTreeMap<Vec<(String, u64)>, u64> = BTreeMap::new();
            let number = |mut parts: Vec<(String, u64)>| {
                let all = parts.len();
                parts.retain(|(part, _)| !is_pair(mapping, layout, part));
                let next = numbers.len() as u64;
                (parts.len() < all).then(|| *numbers.entry(parts).or_insert(next))
            };
            all.into_iter().map(number).collect::<Vec<_>>()
        });
        let style = match &pairs {
            Some(pairs) => style_of(pairs),
            None => pair_order(mapping, layout, axis),
        };
        return Some(Rotary { axis: axis.clone(), style, pairs });
    }
    // The parts are not named; the framework's own computation tells it of its queries and keys.
    let turns = |axis: &str| {
        let own = |forward: &&Forward| forward.axis("d") == axis && forward.rotary.is_some();
        forwards.values().find(own)
    };
    let axis = axes.iter().find(|axis| turns(axis).is_some())?;
    let turned = [ParamRole::Q, ParamRole::K, ParamRole::QNorm, ParamRole::KNorm];
    if !mapping.roles().param(param).is_some_and(|known| turned.contains(&known.role)) {
        return None;
    }
    let rotary = turns(axis)?.rotary.as_ref()?;
    let known = |name: &str| sizes.get(name).copied();
    let size = known(axis).filter(|size| *size <= LONGEST);
    let turned = match &rotary.dims {
        Some(dims) => dims.eval_size(&known),
        None => size,
    };
    // Pairs of an odd number of elements are no pairs: a size is not what it seems.
    let turned = turned.filter(|turned| turned.is_multiple_of(2));
    let pair = |turned: u64, at: u64| match rotary.style {
        _ if at >= turned => None,
        RotaryStyle::Half => Some(at % (turned / 2).max(1)),
        RotaryStyle::Interleaved => Some(at / 2),
    };
    let pairs = size.zip(turned).map(|(size, turned)| (0..size).map(|at| pair(turned, at)).collect());
    Some(Rotary { axis: axis.clone(), style: Some(rotary.style), pairs })
}

fn is_pair(mapping: &Mapping, layout: &Layout, axis: &str) -> bool {
    mapping.axis(layout, axis).is_some_and(|axis| axis.size == Some(2))
        && mapping.axis_role(layout, axis) == Some(AxisRole::RotaryHalves)
}

fn stored<'a>(mapping: &'a Mapping, layout: &'a Layout, axis: &str) -> Option<&'a [Term]> {
    let own = layout.axes.get(axis).and_then(|axis| axis.is.as_deref());
    own.or_else(|| mapping.axes.get(axis)?.is.as_deref())
}

/// Returns whether an axis is composed of the two elements of a pair and more.
fn contains_pair(mapping: &Mapping, layout: &Layout, axis: &str, depth: usize) -> bool {
    let Some(terms) = stored(mapping, layout, axis) else { return false };
    let mut found = false;
    for term in terms {
        for_each_axis(&term.dims, &mut |inner, _| {
            let AxisName::Named(inner) = inner else { return };
            found |= is_pair(mapping, layout, inner)
                || (depth < 8 && contains_pair(mapping, layout, inner, depth + 1));
        });
    }
    found
}

/// An element by the values of the parts of its axis.
type Parts = Vec<(String, u64)>;

/// Lists an axis's elements in stored order; `None` where a size is open or the axis is too long for it.
fn elements(mapping: &Mapping, layout: &Layout, axis: &str, sizes: &AxisSizes) -> Option<Vec<Parts>> {
    match stored(mapping, layout, axis) {
        None => {
            let size = *sizes.get(axis)?;
            (size <= LONGEST).then(|| (0..size).map(|at| vec![(axis.to_owned(), at)]).collect())
        }
        Some(terms) => of_terms(mapping, layout, terms, sizes),
    }
}

fn of_terms(mapping: &Mapping, layout: &Layout, terms: &[Term], sizes: &AxisSizes) -> Option<Vec<Parts>> {
    let mut all = Vec::new();
    for term in terms {
        let mut rows: Vec<Parts> = vec![Vec::new()];
        for dim in &term.dims {
            let inner = of_dim(mapping, layout, dim, sizes)?;
            if rows.len() as u64 * inner.len() as u64 > LONGEST {
                return None;
            }
            rows = rows
                .iter()
                .flat_map(|row| inner.iter().map(move |parts| [row.as_slice(), parts.as_slice()].concat()))
                .collect();
        }
        all.extend(rows);
    }
    // The order of the parts is the layout's; a pair is one of equal parts.
    all.iter_mut().for_each(|parts| parts.sort());
    Some(all)
}

fn of_dim(mapping: &Mapping, layout: &Layout, dim: &Dim, sizes: &AxisSizes) -> Option<Vec<Parts>> {
    match &dim.kind {
        DimKind::Axis(name) => elements(mapping, layout, name, sizes),
        DimKind::Size(size) => {
            (*size <= LONGEST).then(|| (0..*size).map(|at| vec![(size.to_string(), at)]).collect())
        }
        DimKind::Sum(terms) => of_terms(mapping, layout, terms, sizes),
    }
}

/// Returns how pairs lie.
fn style_of(pairs: &[Option<u64>]) -> Option<RotaryStyle> {
    let mut places: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, pair) in pairs.iter().enumerate() {
        if let Some(pair) = pair {
            places.entry(*pair).or_default().push(at);
        }
    }
    let apart = |distance: usize| {
        places.values().all(|places| matches!(places[..], [first, second] if second - first == distance))
    };
    match places.len() {
        0 => None,
        // One pair is split as it is interleaved.
        count if apart(count) => Some(RotaryStyle::Half),
        _ if apart(1) => Some(RotaryStyle::Interleaved),
        _ => None,
    }
}

/// Returns how the pairs of an axis lie in a layout, whatever its size: by what stands before and behind the two elements of
/// a pair. `None` for an axis without pairs, or of another order.
pub fn pair_order(mapping: &Mapping, layout: &Layout, axis: &str) -> Option<RotaryStyle> {
    let mut names = Vec::new();
    flatten(mapping, layout, axis, &mut names, 0);
    let at = names.iter().position(|(name, _)| is_pair(mapping, layout, name))?;
    let same = |other: Option<&(String, usize)>| other.is_some_and(|(_, term)| *term == names[at].1);
    match (same(at.checked_sub(1).and_then(|before| names.get(before))), same(names.get(at + 1))) {
        (false, _) => Some(RotaryStyle::Half),
        (true, false) => Some(RotaryStyle::Interleaved),
        (true, true) => None,
    }
}

/// Lists the parts of an axis in stored order, each with the number of the term that it stands in.
fn flatten(mapping: &Mapping, layout: &Layout, axis: &str, names: &mut Vec<(String, usize)>, term: usize) {
    let Some(terms) = stored(mapping, layout, axis).filter(|_| names.len() < 64) else {
        names.push((axis.to_owned(), term));
        return;
    };
    for (at, inner) in terms.iter().enumerate() {
        for_each_axis(&inner.dims, &mut |name, _| {
            if let AxisName::Named(name) = name {
                flatten(mapping, layout, name, names, term * 16 + at + 1);
            }
        });
    }
}

impl Rotary {
    /// Tells it in words.
    pub fn words(&self) -> String {
        let Some(pairs) = &self.pairs else {
            let style = self.style.map_or("of an order of their own", RotaryStyle::words);
            return format!("rotary pairs {style}; how many elements of a head rotate is not known");
        };
        let turned = pairs.iter().flatten().count();
        let first = pairs.iter().position(Option::is_some).unwrap_or(0);
        let from = if first > 0 { format!(", counted from element {first}") } else { String::new() };
        let mut text = match self.style {
            Some(RotaryStyle::Half) => {
                format!("rotary pairs half-split: element i of a head rotates with i + {}{from}", turned / 2)
            }
            Some(RotaryStyle::Interleaved) => {
                format!("rotary pairs interleaved: elements 2i and 2i + 1 of a head rotate together{from}")
            }
            None if turned == 0 => return "no element of a head rotates".to_owned(),
            None => "rotary pairs of an order of their own".to_owned(),
        };
        match pairs.len() - turned {
            0 => {}
            still if first + turned == pairs.len() => {
                text.push_str(&format!("; the first {still} of {} do not rotate", pairs.len()));
            }
            still => text.push_str(&format!("; the last {still} of {} do not rotate", pairs.len())),
        }
        text
    }

    /// Draws one head: for each element the number of its pair, `·` for one that does not rotate; a bar stands where the
    /// numbers begin anew, and the middle of long runs is left out.
    pub fn strip(&self) -> Option<String> {
        const WHOLE: usize = 24;
        const ENDS: (usize, usize) = (4, 2);
        let pairs = self.pairs.as_ref()?;
        let anew = |a: &Option<u64>, b: &Option<u64>| match (a, b) {
            (Some(a), Some(b)) => a <= b,
            (a, b) => a.is_some() == b.is_some(),
        };
        let runs = pairs.chunk_by(anew).map(|run| {
            let mark = |pair: &Option<u64>| pair.map_or("·".to_owned(), |pair| pair.to_string());
            if run[0].is_none() && run.len() > ENDS.0 {
                return format!("· × {}", run.len());
            }
            if pairs.len() <= WHOLE || run.len() <= ENDS.0 + ENDS.1 {
                return run.iter().map(mark).collect::<Vec<_>>().join(" ");
            }
            let (head, tail) = (&run[..ENDS.0], &run[run.len() - ENDS.1..]);
            let join = |part: &[Option<u64>]| part.iter().map(mark).collect::<Vec<_>>().join(" ");
            format!("{} … {}", join(head), join(tail))
        });
        Some(runs.collect::<Vec<_>>().join(" | "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[Option<u64>]) -> Rotary {
        Rotary { axis: "d".into(), style: style_of(pairs), pairs: Some(pairs.to_vec()) }
    }

    #[test]
    fn pairs_are_told_and_drawn() {
        let half: Vec<Option<u64>> = (0..6).map(|at| Some(at % 3)).chain([None; 2]).collect();
        assert_eq!(
            of(&half).words(),
            "rotary pairs half-split: element i of a head rotates with i + 3; the last 2 of 8 do not rotate"
        );
        assert_eq!(of(&half).strip().as_deref(), Some("0 1 2 | 0 1 2 | · ·"));
        let woven: Vec<Option<u64>> = (0..6).map(|at| Some(at / 2)).collect();
        assert_eq!(
            of(&woven).words(),
            "rotary pairs interleaved: elements 2i and 2i + 1 of a head rotate together"
        );
        assert_eq!(of(&woven).strip().as_deref(), Some("0 0 1 1 2 2"));
        let long: Vec<Option<u64>> = (0..64).map(|at| Some(at % 32)).chain([None; 96]).collect();
        let drawn = "0 1 2 3 … 30 31 | 0 1 2 3 … 30 31 | · × 96";
        assert_eq!(of(&long).strip().as_deref(), Some(drawn));
        let mixed = [Some(0), Some(1), Some(1), Some(0)];
        assert_eq!(of(&mixed).words(), "rotary pairs of an order of their own");
    }
}
