//! What is wrong, in words: names, sizes with where they came from, and what would fit.

use std::collections::{BTreeMap, HashMap};

use indexmap::IndexMap;

use super::attachment::{any_index, own_module};
use super::ids::{AxisId, ModuleId, ParamId};
use super::keys::path_text;
use super::lower::LowerError;
use super::options::{Allow, BindOptions};
use super::pair::Side;
use super::sizes::{Origin, Var};
use super::unknowns::{Fact, Unknowns};
use super::{Binding, Size};
use crate::diag::{BindCode, Collector, Diagnostic, nearest_key};
use crate::mapping::forward::stored_name;
use crate::mapping::key::Captures;
use crate::mapping::role::AxisRole;
use crate::mapping::{Layout, Mapping, Rule, Unmapped};
use crate::span::Span;

/// The source layout's conditions on the config must hold. The target's are about another config, which is not there.
pub(super) fn check_conditions(layout: &Layout, options: &BindOptions, errors: &mut Collector) {
    let facts = options.provenance.of(layout);
    for condition in &layout.when {
        let one = std::slice::from_ref(condition);
        let allowed: Vec<String> = condition.allowed.iter().map(ToString::to_string).collect();
        let error = match facts.hold(one) {
            Some(true) => continue,
            Some(false) => Diagnostic::error(
                BindCode::Condition,
                format!("the config is not that of the source layout `{}`", layout.name),
            )
            .found(facts.words(&condition.key))
            .help("choose the layout that fits the config"),
            None if options.allows(Allow::MissingConfig) => continue,
            None => Diagnostic::error(
                BindCode::Condition,
                format!("the source layout `{}` depends on `{}`", layout.name, condition.key),
            )
            .found("neither a config nor the file itself tells it")
            .help("give it with --config, or say that the condition holds with `--allow missing-config`"),
        };
        errors.push(error.rule(&condition.span).expected(format!(
            "`{}` = {}",
            condition.key,
            allowed.join(" or ")
        )));
    }
}

/// A stored tensor has another number of axes than its rule.
pub(super) fn rank(binding: &Binding<'_>, tensor: usize, rule: usize, module: ModuleId) -> Diagnostic {
    let stored = &binding.catalog.tensors[tensor];
    let rule = &binding.pair.layout(Side::Source).rules[rule];
    Diagnostic::error(BindCode::Rank, "a tensor with another number of axes than its rule")
        .file(&binding.catalog.path)
        .tensor(&stored.key)
        .rule(&rule.expr.span)
        .expected(format!("{}: `{}`", axes(rule.expr.dims.len()), rule.expr))
        .found(format!("{}: {}", axes(stored.shape.len()), shape(&stored.shape)))
        .help(format!(
            "choose the layout that stores it so, or unpack the tensor where it is quantised{}",
            or_leave_module(binding, module)
        ))
}

/// Says how a module that is none of the family's, whatever its names say, passes through.
fn or_leave_module(binding: &Binding<'_>, module: ModuleId) -> String {
    let path = path_text(&binding.keys.modules[module]);
    // A path that is shortened is none.
    if path.is_empty() || path.len() > 150 || binding.pair.mapping.unmapped == Unmapped::Error {
        return String::new();
    }
    format!("; a module of another kind passes through as it is with --modules '!{}'", any_index(&path))
}

fn axes(count: usize) -> String {
    if count == 1 { "1 axis".into() } else { format!("{count} axes") }
}

/// Writes a shape, `[96, 60]`.
pub(super) fn shape(shape: &[u64]) -> String {
    format!("[{}]", shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
}

/// Indices in names that are not 0, 1, 2, ….
pub(super) fn index_gap(
    binding: &Binding<'_>,
    rule: usize,
    module: ModuleId,
    axis: AxisId,
    others: &[(AxisId, u64)],
    indices: &BTreeMap<u64, usize>,
) -> Diagnostic {
    let template = &binding.pair.layout(Side::Source).rules[rule].template;
    let last = indices.last_key_value().map_or(0, |(last, _)| *last);
    let missing = (0..last).filter(|index| !indices.contains_key(index)).take(64).map(|index| {
        let mut indices = others.to_vec();
        indices.push((axis, index));
        name_of(binding, template, module, &indices)
    });
    let mut error = Diagnostic::error(BindCode::IndexGap, "a number is missing in a list of tensors")
        .file(&binding.catalog.path)
        .rule(&template.span)
        .expected(format!("`{}` from 0 to {last}", binding.pair.name(axis)))
        .found(format!("{} of {} numbers", indices.len(), last.saturating_add(1)))
        .help("complete the checkpoint: a shard may be missing; if its model has no such tensor, `--allow index-gap` converts the others");
    error.tensors = missing.collect();
    error
}

fn name_of(
    binding: &Binding<'_>,
    template: &crate::mapping::key::Template,
    module: ModuleId,
    indices: &[(AxisId, u64)],
) -> String {
    let paths = binding.keys.modules[module].clone();
    let mut captures = Captures { paths, ..Captures::default() };
    for axis in template.axes() {
        let id = binding.pair.find(axis);
        let index = indices.iter().find(|(other, _)| Some(*other) == id).map_or(0, |(_, index)| *index);
        captures.indices.push((axis.into(), index));
    }
    captures.indices.sort();
    stored_name(template, &captures).unwrap_or_else(|_| template.to_string())
}

/// A parameter is missing in a module that has others.
pub(super) fn missing(
    binding: &Binding<'_>,
    param: ParamId,
    module: ModuleId,
    values: &[(AxisId, u64)],
) -> Diagnostic {
    let source = binding.pair.layout(Side::Source);
    let name = param.name(binding.pair.mapping);
    let error =
        Diagnostic::error(BindCode::Missing, format!("`{name}` is missing")).file(&binding.catalog.path);
    let rule = source.rules.iter().find(|rule| rule.expr.params().contains(&name));
    let Some(rule) = rule else {
        return error.rule(&source.span).found(format!("the layout `{}` has no tensor for it", source.name));
    };
    missing_of(binding, rule, param, module, values)
}

/// A parameter is missing in the tensor of one rule.
pub(super) fn missing_of(
    binding: &Binding<'_>,
    rule: &Rule,
    param: ParamId,
    module: ModuleId,
    values: &[(AxisId, u64)],
) -> Diagnostic {
    let name = param.name(binding.pair.mapping);
    let mut error =
        Diagnostic::error(BindCode::Missing, format!("`{name}` is missing")).file(&binding.catalog.path);
    let key = name_of(binding, &rule.template, module, values);
    // Looked up once for all layers, which have the same slip in all their names.
    let mut slips = binding.near.borrow_mut();
    let near = slips.entry(param).or_insert_with(|| {
        let known = || binding.keys.kept.iter().map(|(tensor, _)| *tensor);
        // Another form of the weight tells more than a slip.
        let owners = binding.keys.owners(binding.pair);
        let module = own_module(&key).unwrap_or(&key);
        let other_form = known().find_map(|tensor| {
            let name = &binding.keys.names[tensor];
            let attached = owners.of(name).filter(|_| name.starts_with(module))?;
            Some((format!("`{}` is there", any_index(name)), Some(attached.kind)))
        });
        let slip = || {
            let keys = known().map(|tensor| binding.catalog.tensors[tensor].key.as_str());
            Some((format!("the nearest name is `{}`", nearest_key(&key, keys)?), None))
        };
        other_form.or_else(slip)
    });
    error = error.rule(&rule.template.span).expected("a tensor of this name");
    let mut help = format!(
        "complete the checkpoint: a shard may be missing, or its models have another layout{}",
        or_leave_module(binding, module)
    );
    if let Some((found, kind)) = near {
        error = error.found(found.as_str());
        help = kind.map_or(help, |kind| kind.help().to_owned());
    }
    error.tensor(key).help(help)
}

/// The size of an axis is open; `asked` is the axis to give, which tells it. The first of the layouts is read, and has its
/// own names of the config's entries.
pub fn open_size(mapping: &Mapping, layouts: &[&Layout], open: &str, asked: &str) -> Diagnostic {
    let axes = layouts.iter().flat_map(|layout| [layout.axes.get(open), mapping.axes.get(open)]).flatten();
    let about = axes.map(|axis| axis.about.as_str()).find(|about| !about.is_empty());
    let role = || layouts.iter().find_map(|layout| mapping.axis_role(layout, open)).map(AxisRole::name);
    let about = about.or_else(role).map_or(String::new(), |about| format!(" ({about})"));
    let entry = layouts.first().and_then(|layout| layout.config.get(asked));
    Diagnostic::error(BindCode::OpenSize, format!("the size of `{open}` is open{about}"))
        .found("no --axis, no config entry, no record and no shape tells it")
        .help(match entry {
            Some(entry) => {
                let keys = entry.keys.join("` or `");
                format!("give it with --axis {asked}=N, or with --config FILE that has `{keys}`")
            }
            None => format!("give it with --axis {asked}=N"),
        })
}

/// A layout has no tensor for a parameter.
pub(super) fn no_place(layout: &Layout, param: &str) -> Diagnostic {
    let message = format!("the layout `{}` has no tensor for `{param}`", layout.name);
    Diagnostic::error(BindCode::NoPlace, message).rule(&layout.span)
}

/// Says in words where a fact comes from, for all modules alike, so that their errors are one.
pub(super) fn origin_in_any_module(binding: &Binding<'_>, unknowns: &Unknowns<'_>, origin: Origin) -> String {
    match &unknowns.facts[origin as usize] {
        Fact::Shape { tensor, rule, .. } => {
            let template = &binding.pair.layout(Side::Source).rules[*rule].template;
            format!("`{template}` {}", shape(&binding.catalog.tensors[*tensor].shape))
        }
        _ => origin_text(binding, unknowns, origin),
    }
}

/// Says in words where a fact comes from.
fn origin_text(binding: &Binding<'_>, unknowns: &Unknowns<'_>, origin: Origin) -> String {
    let tensors = &binding.catalog.tensors;
    match &unknowns.facts[origin as usize] {
        Fact::Option => "--axis".into(),
        Fact::Config { key } => key.clone(),
        Fact::Recorded => "recorded in the file".into(),
        Fact::Fixed => "fixed by the mapping".into(),
        Fact::Only => "the only value that fits".into(),
        Fact::Rule { span } => format!("rule at {}", span.place()),
        // Without indices, so that the same complaint about every layer is one.
        Fact::Shape { tensor, .. } => {
            format!("`{}` {}", any_index(&tensors[*tensor].key), shape(&tensors[*tensor].shape))
        }
        Fact::Names { tensor } => format!("the names of `{}`", any_index(&tensors[*tensor].key)),
        Fact::Definition { axis } => format!("the definition of `{}`", binding.pair.name(*axis)),
    }
}

pub(super) fn at_origin(
    binding: &Binding<'_>,
    unknowns: &Unknowns<'_>,
    mut error: Diagnostic,
    origin: Origin,
) -> Diagnostic {
    let (tensor, rule) = match &unknowns.facts[origin as usize] {
        Fact::Shape { tensor, rule, .. } => (*tensor, Some(*rule)),
        Fact::Names { tensor } => (*tensor, None),
        _ => return error,
    };
    error = error.tensor(&binding.catalog.tensors[tensor].key);
    let Some(rule) = rule else { return error };
    let span = &binding.pair.layout(Side::Source).rules[rule].expr.span;
    if error.rule.is_none() { error.rule(span) } else { error.related(span, "and here") }
}

/// Writes sizes, as many as a reader takes in.
pub(super) fn list(values: &[u64]) -> String {
    let shown: Vec<String> = values.iter().take(16).map(u64::to_string).collect();
    if values.len() > 16 { format!("{}, …", shown.join(", ")) } else { shown.join(", ") }
}

/// Sizes that stay open, collected over all tensors that need them.
#[derive(Default)]
pub(super) struct Open {
    /// Per axis: an unknown, and for each tensor its key and the rule's place.
    axes: IndexMap<AxisId, (Var, Vec<(String, Span)>)>,
    /// Per open axis: the unknown that is asked for instead.
    told: HashMap<AxisId, Var>,
    overflows: Vec<(String, Span)>,
}

impl Open {
    pub(super) fn add(
        &mut self,
        binding: &Binding<'_>,
        unknowns: &Unknowns<'_>,
        error: LowerError,
        side: Side,
        rule: usize,
        tensor: &str,
    ) {
        let place = (tensor.to_owned(), binding.pair.layout(side).rules[rule].expr.span.clone());
        match error {
            LowerError::Open(var) => {
                // What tells an axis in one module tells it in all.
                let axis = unknowns.axes[var.0 as usize].0;
                let var = *self.told.entry(axis).or_insert_with(|| told_by_config(binding, unknowns, var));
                let axis = unknowns.axes[var.0 as usize].0;
                self.axes.entry(axis).or_insert((var, Vec::new())).1.push(place);
            }
            LowerError::Overflow => self.overflows.push(place),
        }
    }

    pub(super) fn report(self, binding: &Binding<'_>, unknowns: &Unknowns<'_>, errors: &mut Collector) {
        for (axis, (var, places)) in self.axes {
            let name = binding.pair.name(axis);
            let layouts = [binding.pair.layout(Side::Source), binding.pair.layout(Side::Target)];
            let held = binding.held.iter().map(|held| &binding.catalog.tensors[held.tensor]);
            let limit = held.flat_map(|tensor| tensor.shape.iter().copied()).max().unwrap_or(0);
            let candidates = unknowns.solver.candidates(var, limit.min(4096));
            let mut error = open_size(binding.pair.mapping, &layouts, name, name)
                .file(&binding.catalog.path)
                .rule(&places[0].1);
            if !candidates.is_empty() {
                error = error.expected(format!("one of the values that fit: {}", list(&candidates)));
            }
            error.tensors = places.into_iter().map(|(key, _)| key).collect();
            errors.push(error);
        }
        for (key, span) in self.overflows {
            errors.push(
                Diagnostic::error(BindCode::Overflow, "a tensor of more elements than a file can hold")
                    .tensor(key)
                    .rule(&span)
                    .help("correct the sizes given with --axis or the config"),
            );
        }
    }
}

/// Returns an unknown that a config would tell and from which the open one follows: the number of heads rather than
/// the head size.
fn told_by_config(binding: &Binding<'_>, unknowns: &Unknowns<'_>, var: Var) -> Var {
    let config = &binding.pair.layout(Side::Source).config;
    let is_told = |var: Var| config.contains_key(binding.pair.name(unknowns.axes[var.0 as usize].0));
    if is_told(var) {
        return var;
    }
    let related = unknowns.solver.related(var);
    let all = (0..unknowns.axes.len() as u32).map(Var);
    all.filter(|other| related.contains(&unknowns.solver.root(*other)))
        .find(|other| is_told(*other))
        .unwrap_or(var)
}

/// Lists every axis with the values that it has, and where each came from first.
pub(super) fn sizes(binding: &Binding<'_>, unknowns: &Unknowns<'_>) -> Vec<Size> {
    let mut sizes: IndexMap<(AxisId, u64), Size> = IndexMap::new();
    for (number, (axis, _)) in unknowns.axes.iter().enumerate() {
        let var = Var(number as u32);
        let by_rule = unknowns.by_rule.get(&var).copied();
        if let (Some(value), Some(origin)) =
            (unknowns.solver.value(var), by_rule.or(unknowns.solver.origin(var)))
        {
            let name = binding.pair.name(*axis);
            if matches!(unknowns.facts[origin as usize], Fact::Fixed) {
                continue;
            }
            sizes.entry((*axis, value)).or_insert_with(|| Size {
                axis: name.to_owned(),
                value,
                origin: origin_text(binding, unknowns, origin),
            });
        }
    }
    sizes.sort_keys();
    sizes.into_values().collect()
}
