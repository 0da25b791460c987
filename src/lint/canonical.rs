//! The family's canonical order as a layout of its own: one tensor for each parameter, its axes as the family declares
//! them. Every layout meets this one too, so that one that is alone in its file meets another.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::mapping::forward::{
    Apply, Cut, Forward, Norm, Part, Product, Projection, Rotary, RotaryStyle, Slot,
};
use crate::mapping::key::Template;
use crate::mapping::role::{AxisRole, ParamRole};
use crate::mapping::{Axis, Layout, Mapping, Rule};
use crate::notation::{DimKind, Text, parse_expr};
use crate::span::{Source, Span};
use crate::verify::naive::Reader;

/// The name by which messages call it.
pub(super) const NAME: &str = "the canonical order";

/// Makes the layout that holds what `layout` holds in canonical order.
pub(super) fn canonical(mapping: &Mapping, layout: &Layout) -> Layout {
    let text = |text: String| {
        let source = Arc::new(Source { name: NAME.to_owned(), text });
        Span::new(&source, 0, source.text.len())
    };
    let held = mapping.params.iter().filter(|(name, _)| layout.holds(name));
    let rule = |(name, param): (&String, &crate::mapping::Param)| {
        let rules = layout.rules.iter().filter(|rule| rule.expr.params().contains(&name.as_str()));
        let mut paths: Vec<&str> = rules.flat_map(|rule| rule.template.paths()).collect();
        paths.sort_unstable();
        paths.dedup();
        let paths: String = paths.iter().map(|path| format!("/{path}:/{{*{path}}}")).collect();
        let (key, expr) = (text(format!("{name}{paths}")), text(format!("{name}: {}", param.axes.join(" "))));
        Some(Rule {
            template: Template::parse(Text { text: &key.source.text, span: &key, verbatim: true }).ok()?,
            expr: parse_expr(Text { text: &expr.source.text, span: &expr, verbatim: true }).ok()?,
            optional: false,
            scale: None,
            offset: None,
            when: Vec::new(),
            needed: None,
        })
    };
    let mut canonical = Layout {
        name: NAME.to_owned(),
        about: String::new(),
        citation: String::new(),
        axes: IndexMap::new(),
        rules: held.filter_map(rule).collect(),
        config: IndexMap::new(),
        settings: IndexMap::new(),
        file: None,
        config_file: None,
        defaults: IndexMap::new(),
        ignore: Vec::new(),
        computed: Vec::new(),
        paths: BTreeMap::new(),
        when: Vec::new(),
        metadata: BTreeMap::new(),
        part: Vec::new(),
        models: Vec::new(),
        forwards: IndexMap::new(),
        span: layout.span.clone(),
    };
    let stated = Stated { mapping, layout, canonical: &canonical };
    let forwards = layout.forwards.iter();
    let forwards = forwards.filter_map(|(kind, forward)| Some((kind.clone(), stated.forward(forward)?)));
    let forwards = forwards.collect();
    canonical.forwards = forwards;
    canonical
}

/// States what a layout's framework computes on the canonical tensors. Which parameters are q, k, v and o is told by
/// their roles alone, so that a layout's expressions are held against its `forward`.
struct Stated<'a> {
    mapping: &'a Mapping,
    layout: &'a Layout,
    canonical: &'a Layout,
}

impl<'a> Stated<'a> {
    /// Returns `None` where names and axes do not tell.
    fn forward(&self, forward: &'a Forward) -> Option<Forward> {
        let scaled = forward.templates().into_iter().flat_map(|template| self.layout.rules_of(template));
        // A factor in the stored weights belongs to the framework's own scale.
        if scaled.into_iter().any(|(_, rule)| rule.scale.is_some() || rule.offset.is_some())
            || forward.kv_heads.is_some()
            || forward.products.iter().any(|product| product.order.iter().any(|slot| slot.other))
        {
            return None;
        }
        let stacked = self.stacked(forward)?;
        let mut stated = Forward { products: Vec::new(), biases: Vec::new(), stacked, ..forward.clone() };
        let heads = [("h", "d"), ("g", "d"), ("g", "dv")]
            .map(|(heads, size)| [forward.axis(heads), self.head_size(forward, size)]);
        for product in &forward.products {
            for slot in &product.order {
                let [heads, size] = match slot.part {
                    Part::Q => heads[0],
                    Part::K => heads[1],
                    Part::V => heads[2],
                };
                let weight = self.param(&product.projection.weight, slot.part.into())?;
                let apply = match self.inner_axes(&stated, weight)?[..] {
                    [a, b, _] if a == heads && b == size => Apply::Einsum { before: 2, summed: 1 },
                    [_, a, b] if a == heads && b == size => Apply::Einsum { before: 0, summed: 1 },
                    _ => return None,
                };
                stated.products.push(Product {
                    projection: self.projection(weight, apply)?,
                    cut: Cut::Blocks,
                    order: vec![Slot { part: slot.part, other: false }],
                });
            }
        }
        if let Some(out) = &forward.out {
            let weight = self.param(&out.weight, ParamRole::O).filter(|_| !out.mean)?;
            let (heads, size) = (forward.axis("h"), self.head_size(forward, "dv"));
            let apply = match self.inner_axes(&stated, weight)?[..] {
                [_, a, b] if a == heads && b == size => Apply::Einsum { before: 1, summed: 2 },
                [a, b, _] if a == heads && b == size => Apply::Einsum { before: 0, summed: 2 },
                _ => return None,
            };
            let mut projection = self.projection(weight, apply)?;
            // Some families call the bias otherwise than the weight.
            if projection.bias.is_none()
                && let Some([bias]) = out.bias.as_ref().map(|bias| self.params(bias)).as_deref()
            {
                projection.bias = self.template(bias);
            }
            stated.out = Some(projection);
        }
        stated.q_norm = self.norm(&stated, forward.q_norm.as_ref())?;
        stated.k_norm = self.norm(&stated, forward.k_norm.as_ref())?;
        if let Some(rotary) = &forward.rotary {
            stated.rotary =
                Some(Rotary { style: self.style(forward, rotary.style)?, dims: rotary.dims.clone() });
        }
        Some(stated)
    }

    /// Returns what the family calls a head size; families without values of their own size have no `dv`.
    fn head_size<'f>(&self, forward: &'f Forward, size: &'f str) -> &'f str {
        let named = forward.axis(size);
        if self.mapping.axes.contains_key(named) { named } else { forward.axis("d") }
    }

    /// Returns the weight of that role in a stored tensor, where there is one alone. What only the order of the parts in
    /// an expression tells is not taken: it is what is to be checked.
    fn param(&self, template: &Template, role: ParamRole) -> Option<&'a str> {
        let roles = self.mapping.roles();
        let is_weight = |param: &&str| {
            roles.param(param).is_some_and(|known| known.is_told && known.role == role && !known.is_bias)
        };
        let mut found = self.params(template).into_iter().filter(is_weight);
        found.next().filter(|_| found.next().is_none())
    }

    fn params(&self, template: &Template) -> Vec<&'a str> {
        let rules = self.layout.rules_of(template).into_iter();
        let mut params: Vec<&str> = rules.flat_map(|(_, rule)| rule.expr.params()).collect();
        params.sort_unstable();
        params.dedup();
        params
    }

    fn template(&self, param: &str) -> Option<Template> {
        let rule = self.canonical.rules.iter().find(|rule| rule.expr.params().contains(&param))?;
        Some(rule.template.clone())
    }

    /// Returns the axes that tell modules apart in canonical tensors, each with its place when those before it are gone.
    fn stacked(&self, forward: &Forward) -> Option<Vec<(String, usize)>> {
        let modules = forward.module_axes();
        let first = forward.products.first()?;
        let params = self.params(&first.projection.weight);
        let axes = &self.mapping.params.get(*params.first()?)?.axes;
        let mut stacked = Vec::new();
        for axis in axes.iter().filter(|axis| modules.contains(&axis.as_str())) {
            let behind = axes.iter().position(|other| other == axis)?.checked_sub(stacked.len())?;
            stacked.push((axis.clone(), behind));
        }
        Some(stacked)
    }

    /// Returns a parameter's axes without the stacked ones, which must stand where they stand in all.
    fn inner_axes(&self, stated: &Forward, param: &str) -> Option<Vec<&'a str>> {
        let mut axes: Vec<&str> = self.mapping.params.get(param)?.axes.iter().map(String::as_str).collect();
        for (axis, at) in &stated.stacked {
            (axes.get(*at) == Some(&axis.as_str())).then(|| axes.remove(*at))?;
        }
        Some(axes)
    }

    fn projection(&self, weight: &str, apply: Apply) -> Option<Projection> {
        let bias = self.mapping.roles().bias_of(weight);
        Some(Projection {
            weight: self.template(weight)?,
            bias: bias.and_then(|bias| self.template(bias)),
            apply,
            each: None,
            rest: false,
            mean: false,
        })
    }

    /// The outer `None` where it cannot be told.
    fn norm(&self, stated: &Forward, norm: Option<&Norm>) -> Option<Option<Norm>> {
        let Some(norm) = norm else { return Some(None) };
        let mut canonical = norm.clone();
        for part in [&mut canonical.weight, &mut canonical.bias] {
            let Some(template) = part else { continue };
            let [param] = self.params(template)[..] else { return None };
            if self.inner_axes(stated, param)?.len() != 1 {
                return None;
            }
            *template = self.template(param)?;
        }
        Some(Some(canonical))
    }

    /// Returns which elements of a head are a pair in canonical order: as in the layout, unless that restates the axis.
    fn style(&self, forward: &'a Forward, own: RotaryStyle) -> Option<RotaryStyle> {
        let axis = forward.axis("d");
        let reader = Reader { mapping: self.mapping, layout: self.layout };
        let restated = |(name, own): (&String, &Axis)| own.is.is_some() && reader.reaches(axis, name);
        if !self.layout.axes.iter().any(restated) {
            return Some(own);
        }
        self.pairs(axis, &mut Vec::new())
    }

    /// Returns where an axis of size 2 stands in the first part of a definition: first for halves, last for neighbours.
    fn pairs(&self, axis: &'a str, seen: &mut Vec<&'a str>) -> Option<RotaryStyle> {
        if seen.contains(&axis) {
            return None;
        }
        seen.push(axis);
        let term = self.mapping.axes.get(axis)?.is.as_ref()?.first()?;
        let mut dims: Vec<&DimKind> = term.dims.iter().map(|dim| &dim.kind).collect();
        while let [DimKind::Sum(terms)] = dims[..] {
            dims = terms.first()?.dims.iter().map(|dim| &dim.kind).collect();
        }
        if let [DimKind::Axis(inner)] = dims[..] {
            return self.pairs(inner, seen);
        }
        let role = |name: &String| self.mapping.roles().axis(name);
        let is_named = self.mapping.axes.keys().any(|name| role(name) == Some(AxisRole::RotaryHalves));
        let is_pair = |dim: &&DimKind| match dim {
            DimKind::Axis(name) if is_named => role(name) == Some(AxisRole::RotaryHalves),
            DimKind::Axis(name) => self.mapping.axes.get(name).is_some_and(|axis| axis.size == Some(2)),
            DimKind::Size(size) => !is_named && *size == 2,
            DimKind::Sum(_) => false,
        };
        match (dims.first().is_some_and(is_pair), dims.last().is_some_and(is_pair)) {
            (true, false) => Some(RotaryStyle::Half),
            (false, true) => Some(RotaryStyle::Interleaved),
            _ => None,
        }
    }
}
