//! What the axes and parameters of a family are: the roles that everything goes by which has to find heads, head sizes,
//! rotary pairs, queries, keys and values.
//!
//! A mapping file gives roles (`"role": "query heads"`). Where it does not, they follow from what is typed in it: a
//! layout's `forward` says which tensors hold q, k, v and the output projection, and which axes are their heads; an axis
//! of heads that is composed of another, `h = g r`, tells its parts. Names and `about` tell nothing.

use indexmap::IndexMap;

use super::forward::{Forward, Slot};
use super::key::Template;
use super::role::{AttentionPart, AxisRole, Known, ParamRole};
use super::{Layout, Mapping};
use crate::notation::{DimKind, Term};

/// The roles of a family's axes and parameters.
#[derive(Clone, Debug, Default)]
pub struct Roles {
    axes: IndexMap<String, AxisRole>,
    params: IndexMap<String, Known>,
    /// The attentions of `forward`, by the parameters that take part in each; of several layouts joined.
    attentions: Vec<Vec<String>>,
    parts: IndexMap<String, AttentionPart>,
}

impl Roles {
    /// Finds the roles of a family.
    pub(super) fn of(mapping: &Mapping) -> Roles {
        let mut roles = Roles::default();
        roles.read_forwards(mapping);
        roles.name_axes(mapping);
        roles.tell_biases(mapping);
        roles.find_parts(mapping);
        roles
    }

    /// Returns the role of an axis of the family.
    pub fn axis(&self, name: &str) -> Option<AxisRole> {
        self.axes.get(name).copied()
    }

    /// Returns what a parameter is.
    pub fn param(&self, name: &str) -> Option<Known> {
        self.params.get(name).copied()
    }

    /// Returns which part of which attention a parameter is; `None` for others, and for a second one of the same kind in one
    /// attention.
    pub fn part(&self, param: &str) -> Option<&AttentionPart> {
        self.parts.get(param)
    }

    /// Returns the bias of a weight of attention.
    pub fn bias_of(&self, weight: &str) -> Option<&str> {
        let own = self.part(weight)?;
        let is_bias =
            |part: &AttentionPart| part.is_bias && part.attention == own.attention && part.role == own.role;
        self.parts.iter().find(|(_, part)| is_bias(part)).map(|(name, _)| name.as_str())
    }

    fn read_forwards(&mut self, mapping: &Mapping) {
        // Told by a tensor of its own, and by the order of the parts of a fused one.
        let mut told: IndexMap<&str, Vec<(ParamRole, bool)>> = IndexMap::new();
        let mut ordered = told.clone();
        let mut sets: Vec<Vec<String>> = Vec::new();
        for layout in mapping.layouts.values() {
            for forward in layout.forwards.values() {
                let mut set = Vec::new();
                for (template, slots, is_bias) in stored_parts(forward) {
                    let params = params_of(layout, template);
                    let single = slots.len() == 1 && params.len() == 1;
                    // Behind its parts a tensor may hold what is not attention's.
                    for (slot, param) in slots.iter().zip(&params).filter(|_| params.len() >= slots.len()) {
                        if let Some(role) = slot {
                            let votes = if single { &mut told } else { &mut ordered };
                            votes.entry(param).or_default().push((*role, is_bias));
                            set.push((*param).to_owned());
                        }
                    }
                }
                sets.push(set);
            }
        }
        self.attentions = joined(sets);
        for (name, param) in &mapping.params {
            let agreed = |votes: &IndexMap<&str, Vec<(ParamRole, bool)>>| {
                let votes = votes.get(name.as_str())?;
                votes.iter().all(|vote| *vote == votes[0]).then_some(votes[0])
            };
            let (alone, fused) = (agreed(&told), agreed(&ordered));
            // Layouts that contradict each other tell nothing.
            let contradicts = alone.is_some() && ordered.contains_key(name.as_str()) && fused != alone;
            let found = match told.contains_key(name.as_str()) {
                true => alone.filter(|_| !contradicts).map(|vote| (vote, true)),
                false => fused.map(|vote| (vote, false)),
            };
            let is_bias = found.is_some_and(|((_, is_bias), _)| is_bias);
            let known = match param.role {
                Some(role) => Some(Known { role, is_bias, is_told: true }),
                None => found.map(|((role, is_bias), is_told)| Known { role, is_bias, is_told }),
            };
            self.params.extend(known.map(|known| (name.clone(), known)));
        }
    }

    /// Names the axes that the file gives no role, as far as `forward` and definitions tell.
    fn name_axes(&mut self, mapping: &Mapping) {
        let given = mapping.axes.iter().filter_map(|(name, axis)| Some((name.clone(), axis.role?)));
        self.axes = given.collect();
        let names = [
            ("h", AxisRole::QueryHeads, &[ParamRole::Q, ParamRole::O][..]),
            ("g", AxisRole::KvHeads, &[ParamRole::K, ParamRole::V]),
            ("d", AxisRole::HeadSize, &[ParamRole::Q, ParamRole::K]),
            ("dv", AxisRole::ValueHeadSize, &[ParamRole::V, ParamRole::O]),
        ];
        for layout in mapping.layouts.values() {
            for forward in layout.forwards.values() {
                let mine: Vec<&str> = stored_parts(forward)
                    .into_iter()
                    .flat_map(|(template, ..)| params_of(layout, template))
                    .collect();
                for (own, role, holders) in names {
                    let axis = forward.axis(own);
                    let holds = |param: &&str| {
                        let is_holder = self.param(param).is_none_or(|known| holders.contains(&known.role));
                        is_holder
                            && mapping
                                .params
                                .get(*param)
                                .is_some_and(|param| param.axes.iter().any(|name| name == axis))
                    };
                    if mine.iter().any(holds) {
                        self.axes.entry(axis.to_owned()).or_insert(role);
                    }
                }
            }
        }
        for (name, axis) in &mapping.axes {
            let Some((first, second)) = axis.is.as_deref().and_then(two_factors) else { continue };
            let is_grouped = self.axis(name) == Some(AxisRole::QueryHeads)
                || (self.axis(name).is_none() && self.stand_for_groups(mapping, name, first));
            if is_grouped {
                self.axes.entry(name.clone()).or_insert(AxisRole::QueryHeads);
                self.axes.entry(first.to_owned()).or_insert(AxisRole::KvHeads);
                if self.axis(first) == Some(AxisRole::KvHeads) {
                    self.axes.entry(second.to_owned()).or_insert(AxisRole::QueriesPerKvHead);
                }
            }
        }
    }

    /// Returns whether a composed axis and its first part are query heads and key/value heads: of two parameters, whose
    /// axes are the same otherwise, one has the whole where the other has the part, `h d e` and `g d e`. The axis behind
    /// them is the head size then.
    fn stand_for_groups(&mut self, mapping: &Mapping, whole: &str, part: &str) -> bool {
        let mut size = None;
        for many in mapping.params.values() {
            let Some(at) = many.axes.iter().position(|axis| axis == whole) else { continue };
            let is_fewer = |few: &super::Param| {
                let same = |(place, (a, b)): (usize, (&String, &String))| match place == at {
                    true => b == part,
                    false => a == b,
                };
                few.axes.len() == many.axes.len() && many.axes.iter().zip(&few.axes).enumerate().all(same)
            };
            if mapping.params.values().any(is_fewer) {
                size = size.or_else(|| many.axes.get(at + 1).cloned());
            }
        }
        let Some(size) = size else { return false };
        self.axes.entry(size).or_insert(AxisRole::HeadSize);
        true
    }

    /// Tells weights from biases where no `forward` does: behind its head size a weight of q, k or v has another axis, and
    /// the bias of an output projection has no head size.
    fn tell_biases(&mut self, mapping: &Mapping) {
        let (axes, attentions) = (&self.axes, &self.attentions);
        let is_size = |axis: &String| axes.get(axis).is_some_and(|role| role.is_head_size());
        for (name, known) in &mut self.params {
            let Some(param) = mapping.params.get(name) else { continue };
            if attentions.iter().flatten().any(|other| other == name) {
                continue;
            }
            let size = param.axes.iter().rposition(is_size);
            known.is_bias = match known.role {
                ParamRole::O => size.is_none(),
                ParamRole::Q | ParamRole::K | ParamRole::V => {
                    size.is_some_and(|at| at + 1 == param.axes.len())
                }
                _ => false,
            };
        }
    }
}

impl Roles {
    fn find_parts(&mut self, mapping: &Mapping) {
        let of_forward =
            |param: &str| self.attentions.iter().position(|all| all.iter().any(|name| name == param));
        // What no `forward` names belongs to those in the same place of the family.
        let mut places: IndexMap<&str, usize> = IndexMap::new();
        let projections: Vec<(&str, Known)> = self
            .params
            .iter()
            .filter(|(_, known)| known.role.is_projection())
            .map(|(name, known)| (name.as_str(), *known))
            .collect();
        for (name, _) in &projections {
            if let Some(attention) = of_forward(name) {
                places.entry(place(name)).or_insert(attention);
            }
        }
        let mut next = self.attentions.len();
        let mut found: IndexMap<(usize, ParamRole, bool), &str> = IndexMap::new();
        for (name, known) in &projections {
            let attention = of_forward(name).unwrap_or_else(|| {
                *places.entry(place(name)).or_insert_with(|| {
                    next += 1;
                    next
                })
            });
            found.entry((attention, known.role, known.is_bias)).or_insert(name);
        }
        let axes = |attention: usize| {
            let axis = |roles: [ParamRole; 2], wanted: fn(AxisRole) -> bool| {
                let params = roles.iter().filter_map(|role| found.get(&(attention, *role, false)));
                let mut axes = params.flat_map(|param| &mapping.params[*param].axes);
                axes.find(|axis| self.axis(axis).is_some_and(wanted)).cloned()
            };
            let heads = axis([ParamRole::Q, ParamRole::O], AxisRole::is_heads);
            let few = axis([ParamRole::K, ParamRole::V], AxisRole::is_heads);
            let size = axis([ParamRole::Q, ParamRole::K], AxisRole::is_head_size);
            let values = axis([ParamRole::V, ParamRole::O], AxisRole::is_head_size);
            let (heads, size) = (heads.or_else(|| few.clone())?, size.or_else(|| values.clone())?);
            Some([heads.clone(), few.unwrap_or(heads), size.clone(), values.unwrap_or(size)])
        };
        let part = |(&(attention, role, is_bias), name): (&(usize, ParamRole, bool), &&str)| {
            ((*name).to_owned(), AttentionPart { role, is_bias, attention, axes: axes(attention) })
        };
        let parts = found.iter().map(part).collect();
        self.parts = parts;
    }
}

/// Returns where in the family a parameter is: its name without its last word, and without `weight` or `bias` behind that.
fn place(name: &str) -> &str {
    let stem = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".bias")).unwrap_or(name);
    stem.rsplit_once('.').map_or("", |(place, _)| place)
}

/// A stored tensor of attention: what it is called, what its parts are in their order (`None` for one that another
/// attention reads), and whether it is a bias.
type StoredPart<'f> = (&'f Template, Vec<Option<ParamRole>>, bool);

/// Lists the tensors that `forward` names.
fn stored_parts(forward: &Forward) -> Vec<StoredPart<'_>> {
    let part = |slot: &Slot| (!slot.other).then(|| slot.part.into());
    let mut all: Vec<StoredPart<'_>> = Vec::new();
    for product in &forward.products {
        let slots: Vec<Option<ParamRole>> = product.order.iter().map(part).collect();
        let bias = product.projection.bias.as_ref().map(|bias| (bias, slots.clone(), true));
        all.push((&product.projection.weight, slots, false));
        all.extend(bias);
    }
    all.extend(forward.biases.iter().map(|bias| (&bias.tensor, bias.order.iter().map(part).collect(), true)));
    if let Some(out) = &forward.out {
        all.push((&out.weight, vec![Some(ParamRole::O)], false));
        all.extend(out.bias.as_ref().map(|bias| (bias, vec![Some(ParamRole::O)], true)));
    }
    for (norm, role) in [(&forward.q_norm, ParamRole::QNorm), (&forward.k_norm, ParamRole::KNorm)] {
        let Some(norm) = norm else { continue };
        all.extend(norm.weight.as_ref().map(|weight| (weight, vec![Some(role)], false)));
        all.extend(norm.bias.as_ref().map(|bias| (bias, vec![Some(role)], true)));
    }
    all
}

/// Returns the parameters that a stored tensor holds, in the order of its expression.
fn params_of<'l>(layout: &'l Layout, template: &Template) -> Vec<&'l str> {
    let mut params: Vec<&str> = Vec::new();
    for (_, rule) in layout.rules_of(template) {
        for param in rule.expr.params() {
            if !params.contains(&param) {
                params.push(param);
            }
        }
    }
    params
}

/// Returns the two axes that a definition multiplies, `g r`.
fn two_factors(terms: &[Term]) -> Option<(&str, &str)> {
    let [term] = terms else { return None };
    match &term.dims[..] {
        [first, second] => match (&first.kind, &second.kind) {
            (DimKind::Axis(first), DimKind::Axis(second)) => Some((first, second)),
            _ => None,
        },
        _ => None,
    }
}

/// Joins sets that have a member in common.
fn joined(sets: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    for mut set in sets {
        all.retain_mut(|other| {
            let meets = other.iter().any(|name| set.contains(name));
            if meets {
                set.append(other);
            }
            !meets
        });
        set.sort_unstable();
        set.dedup();
        all.push(set);
    }
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::read;
    use super::*;
    use crate::span::Source;

    fn roles(axes: &str, params: &str, layouts: &str) -> Mapping {
        let text = format!(
            r#"{{"format": 1, "family": "f", "axes": {{{axes}}}, "params": {{{params}}}, "layouts": {{{layouts}}}}}"#
        );
        read(&Arc::new(Source { name: "f.json".into(), text })).unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// Letters and texts that say something else on purpose.
    const AXES: &str = r#""x": "q", "y": "head size", "z": "heads""#;

    #[test]
    fn forward_tells_parts_and_axes() {
        let params = r#""v": "x y z", "k": "x y z", "q": "x y z", "w": "x y""#;
        let apart = r#""apart": { "tensors": { "Q": "v: (x y) z", "K": "k: (x y) z", "V": "q: (x y) z", "B": "w: (x y)" },
            "forward": { "source": "s", "axes": { "h": "x", "g": "x", "d": "y", "dv": "y" },
                "q": { "weight": "Q", "bias": "B", "apply": "linear" }, "k": { "weight": "K", "apply": "linear" },
                "v": { "weight": "V", "apply": "linear" } } }"#;
        let mapping = roles(AXES, params, apart);
        let told = |role, is_bias| Some(Known { role, is_bias, is_told: true });
        assert_eq!(mapping.roles().param("v"), told(ParamRole::Q, false));
        assert_eq!(mapping.roles().param("w"), told(ParamRole::Q, true));
        assert_eq!(mapping.roles().param("k"), told(ParamRole::K, false));
        assert_eq!(mapping.roles().param("q"), told(ParamRole::V, false));
        assert_eq!((mapping.head_axis("v"), mapping.head_size_axis("v")), (Some("x"), Some("y")));
        let part = mapping.roles().part("w").expect("is a part");
        assert_eq!(part.axes, Some(["x", "x", "y", "y"].map(str::to_owned)));
        assert_eq!(mapping.roles().part("v").map(|part| part.attention), Some(part.attention));
    }

    #[test]
    fn the_order_of_a_fused_tensor_is_not_told() {
        let params = r#""a": "x y z", "b": "x y z", "c": "x y z""#;
        let fused = |name: &str, order: &str| {
            format!(
                r#""{name}": {{ "tensors": {{ "W": "(a: x y + b: x y + c: x y) z" }}, "forward": {{ "source": "s",
                    "axes": {{ "h": "x", "g": "x", "d": "y", "dv": "y" }},
                    "qkv": {{ "weight": "W", "apply": "linear", "cut": "blocks", "order": "{order}" }} }} }}"#
            )
        };
        let mapping = roles(AXES, params, &fused("one", "q k v"));
        let known = Known { role: ParamRole::Q, is_bias: false, is_told: false };
        assert_eq!(mapping.roles().param("a"), Some(known));
        // Two that contradict each other tell nothing of what they disagree on.
        let mapping = roles(AXES, params, &[fused("one", "q k v"), fused("two", "k q v")].join(", "));
        assert_eq!(mapping.roles().param("a"), None);
        assert_eq!(mapping.roles().param("c").map(|known| known.role), Some(ParamRole::V));
    }

    #[test]
    fn groups_tell_their_axes() {
        let axes = r#""h": { "is": "g r" }, "g": "", "r": "", "d": "", "e": "", "f": { "is": "t u" }, "t": "", "u": """#;
        let params = r#""q": "h d e", "k": "g d e", "up": "f e""#;
        let layouts = r#""one": { "tensors": { "q": "q: (h d) e", "k": "k: (g d) e", "up": "up: f e" } }"#;
        let mapping = roles(axes, params, layouts);
        let role = |name: &str| mapping.roles().axis(name);
        assert_eq!((role("h"), role("g")), (Some(AxisRole::QueryHeads), Some(AxisRole::KvHeads)));
        assert_eq!((role("r"), role("d")), (Some(AxisRole::QueriesPerKvHead), Some(AxisRole::HeadSize)));
        assert_eq!((role("e"), role("f"), role("t")), (None, None, None));
        assert_eq!((mapping.head_axis("k"), mapping.group_axis("h")), (Some("g"), Some("g")));
        assert_eq!(mapping.head_axis("up"), None);
    }
}
