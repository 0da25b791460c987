//! Matched lines → a draft of the mapping: names are read again where numbers turn out to be no indices.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::alike;
use super::axes::{self, Rules};
use super::blocks::{self, Side, Solved, Unsolved};
use super::express::{End, Inexpressible, Model};
use super::matching::{Found, Matcher};
use super::write::{self, LayoutText};
use super::{Draft, Parts, Unexplained, names};
use crate::diag::Errors;

/// How often names are read anew.
const READINGS: usize = 32;

/// What the draft is to be called.
pub(super) struct Naming<'a> {
    pub(super) family: &'a str,
    pub(super) layouts: BTreeMap<End, &'a str>,
    pub(super) configs: BTreeMap<End, Value>,
}

/// What was given up, by target group.
type Given = BTreeMap<usize, String>;

/// Drafts a mapping; `without` are target tensors for which no rule is wanted, with the reason.
pub(super) fn draft(
    matcher: &Matcher<'_>,
    naming: &Naming<'_>,
    without: &BTreeMap<String, String>,
) -> Result<Draft, Errors> {
    let mut literal: BTreeMap<End, BTreeSet<String>> =
        [(End::Source, BTreeSet::new()), (End::Target, BTreeSet::new())].into();
    let mut reading = 0;
    loop {
        let side = |end: End| {
            let content = if end == End::Source { &matcher.source } else { &matcher.target };
            let keys: Vec<&str> = content.tensors().iter().map(|tensor| tensor.key.as_str()).collect();
            Side::new(names::read(&keys, &literal[&end]))
        };
        let (source, target) = (side(End::Source), side(End::Target));
        match attempt(matcher, naming, &source, &target, without, reading >= READINGS)? {
            Attempt::Done(draft) => return Ok(*draft),
            Attempt::Again(end, prefixes) => {
                let known = literal.entry(end).or_default();
                known.extend(prefixes);
            }
        }
        reading += 1;
    }
}

enum Attempt {
    Done(Box<Draft>),
    /// Numbers behind these prefixes are no indices.
    Again(End, BTreeSet<String>),
}

fn attempt(
    matcher: &Matcher<'_>,
    naming: &Naming<'_>,
    source: &Side,
    target: &Side,
    without: &BTreeMap<String, String>,
    is_last: bool,
) -> Result<Attempt, Errors> {
    let constant: BTreeSet<usize> = (0..target.groups.len())
        .filter(|group| matcher.target_constant(&target.groups[*group].tensors).is_some())
        .collect();
    let mut found = find(matcher, source, target)?;
    alike::part_twins(matcher, &mut found);
    let mut solved: BTreeMap<usize, Solved> = BTreeMap::new();
    let mut given_up = Given::new();
    // Vectors whose elements were looked up one by one come last: the weights beside them tell their order better.
    let is_single = |group: &usize| target.groups[*group].tensors.iter().any(|at| found[*at].axis.is_none());
    let (single, lines): (Vec<usize>, Vec<usize>) =
        (0..target.groups.len()).filter(|group| !constant.contains(group)).partition(is_single);
    for group in lines.into_iter().chain(single) {
        let tensors = &target.groups[group].tensors;
        let refused = tensors.iter().find_map(|at| without.get(&matcher.target.tensors()[*at].key));
        if let Some(why) = refused {
            given_up.insert(group, why.clone());
            continue;
        }
        let own: Vec<&Found> = tensors.iter().map(|at| &found[*at]).collect();
        if is_single(&group)
            && let Some(beside) = alike::beside(matcher, (source, target), group, &solved)?
        {
            solved.insert(group, beside);
            continue;
        }
        match blocks::solve(matcher, target, source, group, &own)? {
            Ok(blocks) => _ = solved.insert(group, blocks),
            Err(Unsolved { doubtful: (targets, _), .. }) if !targets.is_empty() && !is_last => {
                return Ok(Attempt::Again(End::Target, targets));
            }
            Err(Unsolved { doubtful: (_, sources), .. }) if !sources.is_empty() && !is_last => {
                return Ok(Attempt::Again(End::Source, sources));
            }
            Err(unsolved) => _ = given_up.insert(group, unsolved.why),
        }
    }
    let constants = alike::match_constants(matcher, (source, target), &constant, &solved);
    for group in constant {
        let tensors = &target.groups[group].tensors;
        let refused = tensors.iter().find_map(|at| without.get(&matcher.target.tensors()[*at].key));
        let own: Vec<&Found> = tensors.iter().map(|at| &found[*at]).collect();
        match (refused, constants.solved.get(&group), constants.ambiguous.get(&group)) {
            (Some(why), ..) | (None, None, Some(why)) => _ = given_up.insert(group, why.clone()),
            (None, Some(found), _) => _ = solved.insert(group, found.clone()),
            // Zeros need no source.
            (None, None, None) => match blocks::solve(matcher, target, source, group, &own)? {
                Ok(blocks) => _ = solved.insert(group, blocks),
                Err(unsolved) => _ = given_up.insert(group, unsolved.why),
            },
        }
    }
    let by_name: Vec<String> =
        constants.by_name.iter().map(|group| target.groups[*group].skeleton.replace("{}", "*")).collect();
    let mut notes = Vec::new();
    if !by_name.is_empty() {
        notes.push(format!(
            "matched by name alone, since all their elements are the same: {}",
            by_name.join(", ")
        ));
    }
    loop {
        let shapes =
            (shapes(matcher, source, &solved, End::Source), shapes(matcher, target, &solved, End::Target));
        let mut model = Model::new(&matcher.source, (source, target), shapes, solved.clone());
        model.refine();
        model.fill_gaps();
        model.cut_sums(&naming.configs);
        model.refine();
        model.lend_axes();
        match rules(&model) {
            Ok(rules) => {
                let draft = finish(matcher, naming, &model, &rules, &given_up, &notes);
                match draft {
                    Some(draft) => return Ok(Attempt::Done(Box::new(draft))),
                    None => {
                        given_up.extend(
                            solved.keys().map(|group| (*group, "its axes contradict each other".into())),
                        );
                        solved.clear();
                    }
                }
            }
            Err(failed) => {
                // Numbers that are no indices first: what else is wrong may follow from them.
                let prefix = |of: &Inexpressible| {
                    let side = model.side(of.end);
                    Some(side.names.lists[side.groups[of.group].lists[of.slot?]].prefix.clone())
                };
                let doubtful = failed.iter().filter(|_| !is_last).find(|of| of.slot.is_some());
                if let Some(end) = doubtful.map(|of| of.end) {
                    let prefixes = failed.iter().filter(|of| of.end == end).filter_map(prefix).collect();
                    return Ok(Attempt::Again(end, prefixes));
                }
                let Some(Inexpressible { end, group, why, .. }) = failed.into_iter().next() else { continue };
                let holds = |of: &usize| match end {
                    End::Target => *of == group,
                    End::Source => model
                        .blocks
                        .iter()
                        .any(|block| block.target == Some(*of) && block.source == Some(group)),
                };
                let why = match end {
                    End::Target => why,
                    End::Source => format!("of `{}`, {why}", source.groups[group].skeleton),
                };
                let gone: Vec<usize> = solved.keys().copied().filter(holds).collect();
                for of in gone {
                    solved.remove(&of);
                    given_up.insert(of, why.clone());
                }
            }
        }
    }
}

/// Finds the lines of all target tensors, and the elements of those whose lines are in no source tensor.
fn find(matcher: &Matcher<'_>, source: &Side, target: &Side) -> Result<Vec<Found>, Errors> {
    let mut found = vec![Found { axis: None, places: Vec::new() }; target.of.len()];
    for group in &target.groups {
        for (at, one) in group.tensors.iter().zip(matcher.find(&group.tensors)) {
            found[*at] = one;
        }
    }
    let is_known = |found: &Found| found.known().0 == found.known().1;
    let claimed: BTreeSet<usize> =
        found.iter().filter(|found| is_known(found)).flat_map(Found::tensors).collect();
    let free: Vec<usize> = (0..source.of.len()).filter(|at| !claimed.contains(at)).collect();
    let all: Vec<usize> = (0..source.of.len()).collect();
    for group in &target.groups {
        if group.tensors.iter().all(|at| is_known(&found[*at])) {
            continue;
        }
        // All of a group in the same way, or their blocks would differ.
        for among in [&free, &all] {
            let mut own = Vec::new();
            for &at in &group.tensors {
                own.extend(matcher.find_elements(at, among)?.map(|found| (at, found)));
            }
            if own.len() == group.tensors.len() && own.iter().all(|(_, found)| is_known(found)) {
                own.into_iter().for_each(|(at, one)| found[at] = one);
                break;
            }
        }
    }
    Ok(found)
}

/// Returns the names of a source and a target group's tensors.
fn uses(
    matcher: &Matcher<'_>,
    model: &Model<'_>,
    source: usize,
    target: usize,
) -> (Vec<String>, Vec<String>) {
    let sources =
        model.source.groups[source].tensors.iter().map(|at| matcher.source.tensors()[*at].key.clone());
    let targets =
        model.target.groups[target].tensors.iter().map(|at| matcher.target.tensors()[*at].key.clone());
    (sources.collect(), targets.collect())
}

/// Returns the shape of a tensor of each group: the one in which its blocks were found, its indices first.
fn shapes(matcher: &Matcher<'_>, side: &Side, solved: &BTreeMap<usize, Solved>, end: End) -> Vec<Vec<u64>> {
    let blocks: Vec<_> = solved.values().flat_map(|solved| &solved.blocks).collect();
    let of = |group: usize| -> Vec<u64> {
        let own = &side.groups[group];
        let counts = own.lists.iter().map(|list| side.names.lists[*list].count);
        let content = if end == End::Source { &matcher.source } else { &matcher.target };
        // Where tensors of one name have several shapes, the blocks tell which one they were found in.
        let block = blocks.iter().find(|block| match end {
            End::Source => block.source == Some(group),
            End::Target => block.target == Some(group),
        });
        let exact = block
            .and_then(|block| block.tensors)
            .map(|(target, source)| if end == End::Source { source } else { target });
        let tensor = exact.unwrap_or(own.tensors[0]);
        counts.chain(content.tensors()[tensor].shape.iter().copied()).collect()
    };
    (0..side.groups.len()).map(of).collect()
}

/// Expresses all groups of both sides.
fn rules(model: &Model<'_>) -> Result<Rules, Vec<Inexpressible>> {
    let mut rules = Rules::new();
    let mut failed = Vec::new();
    for end in [End::Source, End::Target] {
        for group in model.groups(end) {
            match model.rule(end, group) {
                Ok(rule) => _ = rules.insert((end, group), rule),
                Err(other) => failed.push(other),
            }
        }
    }
    if failed.is_empty() { Ok(rules) } else { Err(failed) }
}

fn finish(
    matcher: &Matcher<'_>,
    naming: &Naming<'_>,
    model: &Model<'_>,
    rules: &Rules,
    given_up: &Given,
    notes: &[String],
) -> Option<Draft> {
    let axes = axes::name(model, rules, &naming.configs)?;
    let params = write::params(model, rules, &axes);
    let mut used: BTreeSet<String> = BTreeSet::new();
    let mut layouts = Vec::new();
    let mut unused = Vec::new();
    for end in [End::Source, End::Target] {
        let mut layout = LayoutText {
            name: naming.layouts[&end].to_owned(),
            tensors: Vec::new(),
            config: BTreeMap::new(),
            ignore: Vec::new(),
        };
        for (group, of) in model.side(end).groups.iter().enumerate() {
            let template = write::template(model, &axes, end, group);
            used.extend(of.lists.iter().map(|list| axes.list(end, *list).name.clone()));
            match rules.get(&(end, group)) {
                Some(rule) => layout.tensors.push((template, write::expression(rule, &axes, &params))),
                None => {
                    if end == End::Source {
                        unused.extend(of.tensors.iter().map(|at| matcher.source.tensors()[*at].key.clone()));
                    }
                    layout.ignore.push(template);
                }
            }
        }
        layouts.push(layout);
    }
    for (block, of) in model.blocks.iter().enumerate() {
        used.extend((0..of.digits.len()).map(|digit| axes.digit((block, digit)).name.clone()));
    }
    used.extend(axes.axes.iter().filter(|axis| axis.is.is_some()).map(|axis| axis.name.clone()));
    let declared: Vec<&axes::Axis> = axes.axes.iter().filter(|axis| used.contains(&axis.name)).collect();
    for (end, layout) in [End::Source, End::Target].into_iter().zip(&mut layouts) {
        let entries =
            declared.iter().filter_map(|axis| Some((axis.name.clone(), axis.config.get(&end)?.clone())));
        layout.config = entries.collect();
    }
    let mut sizes: Vec<(String, u64)> = declared
        .iter()
        .filter(|axis| !axis.per_parameter && axis.size.is_none() && axis.is.is_none())
        .filter_map(|axis| Some((axis.name.clone(), axis.here?)))
        .collect();
    sizes.sort();
    sizes.dedup();
    let unexplained = given_up.iter().map(|(group, why)| Unexplained {
        tensors: model.target.groups[*group]
            .tensors
            .iter()
            .map(|at| matcher.target.tensors()[*at].key.clone())
            .collect(),
        why: why.clone(),
    });
    let about =
        format!("Inferred from {} and {}.", naming.layouts[&End::Source], naming.layouts[&End::Target]);
    let parts = Parts {
        axes: write::axis_entries(&declared),
        params: params.declared.iter().map(|(name, value)| (name.clone(), value.to_string())).collect(),
        layouts: layouts
            .iter()
            .map(|layout| super::LayoutText { name: layout.name.clone(), text: layout.text(4) })
            .collect(),
    };
    Some(Draft {
        text: write::file(naming.family, &about, &parts),
        parts,
        sizes,
        unexplained: unexplained.collect(),
        unused,
        notes: notes.to_vec(),
        uses: model
            .blocks
            .iter()
            .filter_map(|block| Some(uses(matcher, model, block.source?, block.target?)))
            .collect(),
    })
}
