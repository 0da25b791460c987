//! Two layouts of one family, prepared to meet: axis names as numbers, and what stays together on both sides.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::ids::{AxisId, ParamId};
use crate::mapping::{Axis, Layout, Mapping};
use crate::notation::{Dim, DimKind, Expr, Term};

/// Which of the two layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Target,
}

/// An expression's dimension, prepared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    /// Axes that stay neighbours in all of a parameter's tensors on both sides; mostly one.
    Run(Vec<AxisId>),
    /// Size 1.
    One,
    Sum(Vec<Part>),
}

/// A block of a sum.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) label: Label,
    pub(crate) dims: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    /// What the surroundings say.
    None,
    Param(ParamId),
    Padding,
}

/// A rule, prepared.
#[derive(Clone, Debug)]
pub(crate) struct PreparedRule {
    pub(crate) label: Label,
    pub(crate) dims: Vec<Node>,
    /// The parameters that it holds.
    pub(crate) params: Vec<ParamId>,
    /// The axes of its template.
    pub(crate) key_axes: Vec<AxisId>,
}

/// What both layouts together say of a parameter.
#[derive(Clone, Debug, Default)]
pub(crate) struct PreparedParam {
    /// Its axes that every tensor of it on both sides has in its name: each value of them is an instance of its own.
    pub(crate) instance_axes: Vec<AxisId>,
    /// Its other axes in canonical order, those that always stay neighbours in one group.
    pub(crate) coordinates: Vec<Vec<AxisId>>,
}

pub(crate) struct Pair<'a> {
    pub(crate) mapping: &'a Mapping,
    pub(crate) source: &'a Layout,
    pub(crate) target: &'a Layout,
    pub(crate) params: Vec<PreparedParam>,
    pub(crate) source_rules: Vec<PreparedRule>,
    pub(crate) target_rules: Vec<PreparedRule>,
    names: Vec<Arc<str>>,
    fixed: Vec<Option<u64>>,
    ids: HashMap<String, AxisId>,
    per_parameter: Vec<bool>,
    /// Per side and axis: the definition in stored order.
    stored: [Vec<Option<Vec<Part>>>; 2],
    /// Per side and axis: the definition in canonical order.
    canonical: [Vec<Option<Vec<Part>>>; 2],
    /// Per side and axis: whether the layout restates it, or an axis inside it.
    restated: [Vec<bool>; 2],
}

impl<'a> Pair<'a> {
    pub(crate) fn new(mapping: &'a Mapping, source: &'a Layout, target: &'a Layout) -> Pair<'a> {
        let mut pair = Pair {
            mapping,
            source,
            target,
            params: Vec::new(),
            source_rules: Vec::new(),
            target_rules: Vec::new(),
            names: Vec::new(),
            fixed: Vec::new(),
            ids: HashMap::default(),
            per_parameter: Vec::new(),
            stored: [Vec::new(), Vec::new()],
            canonical: [Vec::new(), Vec::new()],
            restated: [Vec::new(), Vec::new()],
        };
        for (name, axis) in mapping.axes.iter().chain(&source.axes).chain(&target.axes) {
            let id = pair.intern(name);
            pair.per_parameter[id] |= axis.per_parameter;
        }
        for (side, layout) in [(0, source), (1, target)] {
            pair.read_axes(side, layout);
        }
        pair.params = vec![PreparedParam::default(); mapping.params.len()];
        pair.source_rules = source.rules.iter().map(|rule| pair.rule(&rule.template, &rule.expr)).collect();
        pair.target_rules = target.rules.iter().map(|rule| pair.rule(&rule.template, &rule.expr)).collect();
        // Parameters that the target alone holds stand where those of both sides do, so these come first.
        let (both, others): (Vec<ParamId>, Vec<ParamId>) = (0..mapping.params.len())
            .map(ParamId::new)
            .partition(|param| [source, target].iter().all(|layout| layout.holds(param.name(mapping))));
        let none = BTreeSet::new();
        both.iter().for_each(|&param| pair.prepare_param(param, &none));
        let of_both = both.iter().map(|&param| &pair.params[param]);
        let mut inside: BTreeSet<AxisId> =
            of_both.clone().flat_map(|param| param.coordinates.concat()).collect();
        let told: BTreeSet<AxisId> = of_both.flat_map(|param| param.instance_axes.clone()).collect();
        inside.retain(|axis| !told.contains(axis));
        for param in others {
            let of = if source.holds(param.name(mapping)) { &none } else { &inside };
            pair.prepare_param(param, of);
        }
        let mut rules = std::mem::take(&mut pair.source_rules);
        rules.iter_mut().for_each(|rule| pair.join_runs(rule));
        pair.source_rules = rules;
        let mut rules = std::mem::take(&mut pair.target_rules);
        rules.iter_mut().for_each(|rule| pair.join_runs(rule));
        pair.target_rules = rules;
        pair
    }

    pub(crate) fn layout(&self, side: Side) -> &'a Layout {
        match side {
            Side::Source => self.source,
            Side::Target => self.target,
        }
    }

    pub(crate) fn rules(&self, side: Side) -> &[PreparedRule] {
        match side {
            Side::Source => &self.source_rules,
            Side::Target => &self.target_rules,
        }
    }

    /// Returns the names of the captured paths that tell a parameter's modules apart.
    pub(crate) fn paths_of(&self, param: ParamId) -> BTreeSet<&'a str> {
        let sides = [(self.source, &self.source_rules), (self.target, &self.target_rules)];
        let rules = sides.into_iter().flat_map(|(layout, prepared)| layout.rules.iter().zip(prepared));
        let mine = rules.filter(|(_, prepared)| prepared.params.contains(&param));
        mine.flat_map(|(rule, _)| rule.template.paths()).collect()
    }

    pub(crate) fn name(&self, axis: AxisId) -> &str {
        &self.names[axis]
    }

    pub(crate) fn shared_name(&self, axis: AxisId) -> Arc<str> {
        Arc::clone(&self.names[axis])
    }

    /// Returns all axes, in the order of [`Pair::names`].
    pub(crate) fn axes(&self) -> impl ExactSizeIterator<Item = AxisId> + use<> {
        (0..self.names.len()).map(AxisId::new)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    pub(crate) fn find(&self, name: &str) -> Option<AxisId> {
        self.ids.get(name).copied()
    }

    /// Returns the size of an axis that the mapping fixes, or that is a literal.
    pub(crate) fn fixed(&self, axis: AxisId) -> Option<u64> {
        self.fixed[axis]
    }

    pub(crate) fn is_per_parameter(&self, axis: AxisId) -> bool {
        self.per_parameter[axis]
    }

    /// Returns the axes that stay neighbours, wherever several do.
    pub(crate) fn runs(&self) -> Vec<Vec<AxisId>> {
        fn collect<'n>(nodes: impl IntoIterator<Item = &'n Node>, runs: &mut BTreeSet<Vec<AxisId>>) {
            for node in nodes {
                match node {
                    Node::Run(run) if run.len() > 1 => {
                        runs.insert(run.clone());
                    }
                    Node::Run(_) | Node::One => {}
                    Node::Sum(parts) => parts.iter().for_each(|part| collect(&part.dims, runs)),
                }
            }
        }
        let mut runs = BTreeSet::new();
        let rules = self.source_rules.iter().chain(&self.target_rules);
        rules.for_each(|rule| collect(&rule.dims, &mut runs));
        let definitions = self.stored.iter().chain(&self.canonical).flatten().flatten().flatten();
        definitions.for_each(|part| collect(&part.dims, &mut runs));
        runs.into_iter().collect()
    }

    pub(crate) fn stored(&self, side: Side, axis: AxisId) -> Option<&[Part]> {
        self.stored[side as usize][axis].as_deref()
    }

    pub(crate) fn canonical(&self, side: Side, axis: AxisId) -> Option<&[Part]> {
        self.canonical[side as usize][axis].as_deref()
    }

    pub(crate) fn is_restated(&self, side: Side, axis: AxisId) -> bool {
        self.restated[side as usize][axis]
    }

    /// Returns the axes that the two layouts store in different orders: the elements along one move, and no shape shows it.
    pub(crate) fn moved_axes(&self) -> Vec<AxisId> {
        let permuted = |side, axis| match (self.stored(side, axis), self.canonical(side, axis)) {
            (Some(stored), Some(canonical)) => stored != canonical,
            _ => false,
        };
        let moves = |&axis: &AxisId| match (permuted(Side::Source, axis), permuted(Side::Target, axis)) {
            (false, false) => false,
            (true, true) => self.stored(Side::Source, axis) != self.stored(Side::Target, axis),
            _ => true,
        };
        self.axes().filter(moves).collect()
    }

    /// Returns whether `inner` is `outer` or stands in its canonical definition.
    pub(crate) fn contains(&self, side: Side, outer: AxisId, inner: AxisId) -> bool {
        outer == inner
            || self.canonical(side, outer).is_some_and(|parts| {
                axes_of_parts(parts).into_iter().any(|axis| self.contains(side, axis, inner))
            })
    }

    /// Returns the parameter's coordinate that holds the axis.
    pub(crate) fn coordinate(&self, side: Side, param: ParamId, axis: AxisId) -> Option<usize> {
        let groups = &self.params[param].coordinates;
        groups.iter().position(|group| group.iter().any(|&outer| self.contains(side, outer, axis)))
    }

    fn intern(&mut self, name: &str) -> AxisId {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = AxisId::new(self.names.len());
        self.names.push(name.into());
        let declared = [self.mapping.axes.get(name), self.source.axes.get(name), self.target.axes.get(name)];
        let declared = declared.into_iter().flatten().find_map(|axis| axis.size);
        self.fixed.push(name.parse().ok().or(declared));
        self.per_parameter.push(false);
        for side in 0..2 {
            self.stored[side].push(None);
            self.canonical[side].push(None);
            self.restated[side].push(false);
        }
        self.ids.insert(name.to_owned(), id);
        id
    }

    fn read_axes(&mut self, side: usize, layout: &Layout) {
        let mapping = self.mapping;
        let names: Vec<String> = mapping.axes.keys().chain(layout.axes.keys()).cloned().collect();
        for name in &names {
            let id = self.intern(name);
            let family = mapping.axes.get(name).and_then(|axis| axis.is.as_ref());
            let own = layout.axes.get(name).and_then(|axis| axis.is.as_ref());
            let family = family.map(|terms| self.parts(terms));
            let own = own.map(|terms| self.parts(terms));
            self.stored[side][id] = own.clone().or_else(|| family.clone());
            self.canonical[side][id] = match (own, family) {
                // A layout that names the family's own parts in another order restates the stored order alone.
                (Some(own), Some(family)) if same_axes(&own, &family) => Some(family),
                (own, family) => own.or(family),
            };
        }
        for name in &names {
            let id = self.intern(name);
            self.restated[side][id] = self.is_restated_inside(side, layout, name);
        }
    }

    fn is_restated_inside(&self, side: usize, layout: &Layout, name: &str) -> bool {
        let own = layout.axes.get(name).is_some_and(|axis: &Axis| axis.is.is_some());
        let Some(id) = self.find(name) else { return own };
        let inside = self.stored[side][id].as_deref().map(axes_of_parts).unwrap_or_default();
        own || inside.into_iter().any(|axis| self.is_restated_inside(side, layout, self.name(axis)))
    }

    fn rule(&mut self, template: &crate::mapping::key::Template, expr: &Expr) -> PreparedRule {
        let label = match &expr.label {
            None => Label::None,
            Some(label) => self.label(label),
        };
        let params = expr.params().into_iter().filter_map(|name| ParamId::find(self.mapping, name)).collect();
        let key_axes = template.axes().map(|axis| self.intern(axis)).collect();
        PreparedRule { label, dims: self.nodes(&expr.dims), params, key_axes }
    }

    fn label(&self, label: &crate::notation::Label) -> Label {
        // Names were checked when the mapping was read.
        match label.param.as_ref().and_then(|name| ParamId::find(self.mapping, name)) {
            Some(param) => Label::Param(param),
            None => Label::Padding,
        }
    }

    fn parts(&mut self, terms: &[Term]) -> Vec<Part> {
        terms
            .iter()
            .map(|term| {
                let label = term.label.as_ref().map_or(Label::None, |label| self.label(label));
                let mut dims = self.nodes(&term.dims);
                // A unit axis has no dimension of its own here, and would keep its neighbours apart.
                dims.retain(|node| *node != Node::One);
                Part { label, dims }
            })
            .collect()
    }

    fn nodes(&mut self, dims: &[Dim]) -> Vec<Node> {
        dims.iter()
            .map(|dim| match &dim.kind {
                DimKind::Axis(name) => Node::Run(vec![self.intern(name)]),
                DimKind::Size(1) => Node::One,
                DimKind::Size(size) => Node::Run(vec![self.intern(&size.to_string())]),
                DimKind::Sum(terms) => Node::Sum(self.parts(terms)),
            })
            .collect()
    }

    /// Prepares a parameter; along the axes that are `inside` what both sides hold no instances are told apart.
    fn prepare_param(&mut self, param: ParamId, inside: &BTreeSet<AxisId>) {
        let axes: Vec<AxisId> =
            self.mapping.params[param].axes.iter().filter_map(|name| self.ids.get(name).copied()).collect();
        let rules = |rules: &[PreparedRule]| -> Vec<PreparedRule> {
            rules.iter().filter(|rule| rule.params.contains(&param)).cloned().collect()
        };
        let sides = [(Side::Source, rules(&self.source_rules)), (Side::Target, rules(&self.target_rules))];
        let everywhere = |test: &dyn Fn(Side, &PreparedRule) -> bool| {
            sides.iter().all(|(side, rules)| rules.iter().all(|rule| test(*side, rule)))
        };
        let held = sides.iter().any(|(_, rules)| !rules.is_empty());
        let mut prepared = PreparedParam::default();
        for &axis in &axes {
            let instance = held
                && !inside.contains(&axis)
                && everywhere(&|side, rule| rule.key_axes.contains(&axis) && !self.is_restated(side, axis));
            if instance {
                prepared.instance_axes.push(axis);
                continue;
            }
            let joined = prepared.coordinates.last().and_then(|group| group.last()).is_some_and(|&before| {
                everywhere(&|side, rule| self.neighbours(side, rule, param, before, axis))
            });
            match prepared.coordinates.last_mut() {
                Some(group) if joined => group.push(axis),
                _ => prepared.coordinates.push(vec![axis]),
            }
        }
        prepared.instance_axes.sort_unstable();
        self.params[param] = prepared;
    }

    /// Returns whether `second` directly follows `first` in the one place where the rule has either of them.
    fn neighbours(
        &self,
        side: Side,
        rule: &PreparedRule,
        param: ParamId,
        first: AxisId,
        second: AxisId,
    ) -> bool {
        if self.is_restated(side, first) || self.is_restated(side, second) {
            return false;
        }
        if rule.key_axes.iter().any(|&key| [first, second].iter().any(|&axis| self.contains(side, axis, key)))
        {
            return false;
        }
        let mut lists = Vec::new();
        let label = if let [only] = rule.params[..] { Label::Param(only) } else { rule.label };
        lists_of(&rule.dims, label, &mut lists);
        let mine: Vec<&Vec<AxisId>> =
            lists.iter().filter(|(label, _)| *label == Label::Param(param)).map(|(_, list)| list).collect();
        let shared = lists.iter().any(|(label, list)| {
            *label == Label::None && list.iter().any(|&axis| self.touches(side, axis, first, second))
        });
        let places: usize = mine
            .iter()
            .map(|list| list.iter().filter(|&&axis| self.touches(side, axis, first, second)).count())
            .sum();
        let adjacent = mine.iter().any(|list| list.windows(2).any(|pair| pair == [first, second]));
        !shared && places == 2 && adjacent
    }

    fn touches(&self, side: Side, axis: AxisId, first: AxisId, second: AxisId) -> bool {
        [first, second]
            .iter()
            .any(|&other| self.contains(side, other, axis) || self.contains(side, axis, other))
    }

    fn join_runs(&self, rule: &mut PreparedRule) {
        let label = if let [only] = rule.params[..] { Label::Param(only) } else { rule.label };
        // The stored axes of a tensor stay apart: each has a size of its own in the shape.
        for node in &mut rule.dims {
            if let Node::Sum(parts) = node {
                self.join_parts(parts, label);
            }
        }
    }

    fn join_parts(&self, parts: &mut [Part], outer: Label) {
        for part in parts {
            let label = if part.label == Label::None { outer } else { part.label };
            for node in &mut part.dims {
                if let Node::Sum(parts) = node {
                    self.join_parts(parts, label);
                }
            }
            let Label::Param(param) = label else { continue };
            let mut joined: Vec<Node> = Vec::new();
            for node in std::mem::take(&mut part.dims) {
                match (joined.last_mut(), node) {
                    (Some(Node::Run(run)), Node::Run(next)) if self.are_joined(param, run, &next) => {
                        run.extend(next)
                    }
                    (_, node) => joined.push(node),
                }
            }
            part.dims = joined;
        }
    }

    fn are_joined(&self, param: ParamId, run: &[AxisId], next: &[AxisId]) -> bool {
        self.params[param].coordinates.iter().any(|group| {
            group
                .windows(run.len() + next.len())
                .any(|window| window.starts_with(run) && window.ends_with(next))
        })
    }
}

/// Lists the runs of plain axes with the label around them; axes of the top level stand in lists of their own, since
/// each has a dimension of its own.
fn lists_of(dims: &[Node], label: Label, lists: &mut Vec<(Label, Vec<AxisId>)>) {
    for node in dims {
        match node {
            Node::Run(run) => lists.push((label, run.clone())),
            Node::One => {}
            Node::Sum(parts) => parts.iter().for_each(|part| lists_of_part(part, label, lists)),
        }
    }
}

fn lists_of_part(part: &Part, outer: Label, lists: &mut Vec<(Label, Vec<AxisId>)>) {
    let label = if part.label == Label::None { outer } else { part.label };
    let mut list = Vec::new();
    for node in &part.dims {
        match node {
            Node::Run(run) => list.extend(run),
            Node::One => {}
            Node::Sum(parts) => {
                lists.push((label, std::mem::take(&mut list)));
                parts.iter().for_each(|part| lists_of_part(part, label, lists));
            }
        }
    }
    lists.push((label, list));
}

/// Returns the axes that stand in a definition.
pub(crate) fn axes_of_parts(parts: &[Part]) -> Vec<AxisId> {
    let mut axes = Vec::new();
    for node in parts.iter().flat_map(|part| &part.dims) {
        match node {
            Node::Run(run) => axes.extend(run),
            Node::One => {}
            Node::Sum(parts) => axes.extend(axes_of_parts(parts)),
        }
    }
    axes
}

fn same_axes(first: &[Part], second: &[Part]) -> bool {
    let sorted = |parts| {
        let mut axes = axes_of_parts(parts);
        axes.sort_unstable();
        axes
    };
    sorted(first) == sorted(second)
}
