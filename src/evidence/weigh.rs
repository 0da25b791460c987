//! The questions that are put to the weights, module by module.

use std::collections::BTreeMap;

use super::Limits;
use super::arrange::{Heads, Part, Place, Sizes, candidates};
use super::declared::Module;
use super::sample::{self, Matrix, Placed, spread};
use super::score::{self, Context, HeadReading, Others, Rows, Tally, Unfit};
use super::verdict::Question;
use crate::diag::{Diagnostic, Errors, EvidenceCode};
use crate::format::Reader;
use crate::parallel::in_parallel;
use crate::progress::Progress;

/// Asks how the rows of fused tensors are arranged: one question for all modules of the same sizes.
///
/// # Errors
/// Returns what the system refuses, and cancellation.
pub fn weigh(
    reader: &dyn Reader,
    modules: &[Module],
    limits: &Limits,
    progress: &dyn Progress,
) -> Result<Vec<Question>, Errors> {
    let mut kinds: Vec<(&Module, Vec<&Module>)> = Vec::new();
    for module in modules {
        let Some(fused) = &module.fused else { continue };
        let same = |other: &Module| {
            module.heads == other.heads
                && other.fused.as_ref().is_some_and(|other| {
                    other.places == fused.places && other.matrix.columns.len() == fused.matrix.columns.len()
                })
        };
        match kinds.iter_mut().find(|(first, _)| same(first)) {
            Some((_, list)) => list.push(module),
            None => kinds.push((module, vec![module])),
        }
    }
    let mut questions = Vec::new();
    let more = kinds.len().saturating_sub(limits.kinds);
    for (first, list) in kinds.into_iter().take(limits.kinds) {
        let Some(fused) = &first.fused else { continue };
        let (names, maps) = arrangements(fused, first.heads);
        let groupings: Vec<Vec<u8>> = maps.iter().map(|map| score::labels(map)).collect();
        let grouping = |labels| groupings.iter().position(|other| other == labels).unwrap_or(0);
        let names = names.into_iter().zip(groupings.iter().map(grouping)).collect();
        let picked = spread(&list, limits.modules);
        let tallies = in_parallel(picked.len(), limits.threads, progress, &|at| {
            fused_tally(reader, picked[at], &maps, limits)
        })?;
        let (tallies, unfit) = sorted(tallies);
        let sampled = fused.matrix.sampled(limits.elements).columns.len();
        let letters: Vec<&str> = sizes(&fused.places).iter().map(|(part, _)| part.letter()).collect();
        let mut question = Question::new(names, &tallies);
        question.about = format!("the fused {}", letters.join(", "));
        question.tensor = key_of(reader, &fused.matrix);
        question.modules = list.len();
        question.regular = unfit.iter().filter(|unfit| **unfit == Unfit::Regular).count();
        question.sample = (fused.matrix.rows.len(), sampled, fused.matrix.columns.len());
        question.hints.extend(key_bias(reader, &picked, fused)?);
        questions.push(question);
    }
    if let Some(last) = questions.last_mut().filter(|_| more > 0) {
        last.hints.push(format!("modules of {more} other sizes were not weighed"));
    }
    Ok(questions)
}

/// Returns the name of the tensor that a matrix lies in.
fn key_of(reader: &dyn Reader, matrix: &Matrix) -> String {
    reader.catalog().tensors.get(matrix.tensor).map_or_else(String::new, |tensor| tensor.key.clone())
}

/// Returns the parts of a fused tensor with their rows, in the usual order.
fn sizes(places: &[Place]) -> Sizes {
    let count = |part: Part| places.iter().filter(|(other, _)| *other == part).count() as u64;
    Part::FUSED.into_iter().map(|part| (part, count(part))).filter(|(_, rows)| *rows > 0).collect()
}

/// Returns all arrangements that differ, the declared one first, with their names; those that coincide are one.
fn arrangements(fused: &Placed, heads: Option<Heads>) -> (Vec<String>, Vec<Vec<Place>>) {
    let sizes = sizes(&fused.places);
    let mut names = vec![Vec::new()];
    let mut maps = vec![fused.places.clone()];
    for arrangement in candidates(&sizes) {
        let Some(places) = arrangement.places(&sizes) else { continue };
        let name = arrangement.describe(&sizes, heads);
        match maps.iter().position(|other| *other == places) {
            Some(at) => names[at].push(name),
            None => {
                names.push(vec![name]);
                maps.push(places);
            }
        }
    }
    if names[0].is_empty() {
        names[0].push("as declared".to_owned());
    }
    (names.into_iter().map(|names| names.join(" = ")).collect(), maps)
}

fn fused_tally(
    reader: &dyn Reader,
    module: &Module,
    maps: &[Vec<Place>],
    limits: &Limits,
) -> Result<Option<Result<Tally, Unfit>>, Errors> {
    let Some(fused) = &module.fused else { return Ok(None) };
    let matrix = fused.matrix.sampled(limits.elements);
    let rows = match Rows::new(numbers(reader, &matrix)?, matrix.columns.len()) {
        Ok(rows) => rows,
        Err(unfit) => return Ok(Some(Err(unfit))),
    };
    let mut others = Others::default();
    if let Some(heads) = module.heads {
        for (part, alone) in &module.parts {
            if fused.places.iter().all(|(other, _)| other != part)
                && let Ok(mut ranks) = ranks(reader, &alone.matrix, limits)?
            {
                score::center(&mut ranks, heads.of(*part));
                others.insert(*part, ranks);
            }
        }
    }
    let context = Context { heads: module.heads, others };
    Ok(Some(Ok(score::arrangements(&rows, &context, maps, limits.seed))))
}

/// Parts what was weighed from what could not be.
fn sorted(all: Vec<Option<Result<Tally, Unfit>>>) -> (Vec<Tally>, Vec<Unfit>) {
    let (mut tallies, mut unfit) = (Vec::new(), Vec::new());
    for one in all.into_iter().flatten() {
        match one {
            Ok(tally) => tallies.push(tally),
            Err(why) => unfit.push(why),
        }
    }
    (tallies, unfit)
}

/// Asks how the heads of single parts are stored: which axis of a square matrix they lie on, and whether they run
/// slowest on it.
///
/// Queries and keys are not asked whether heads run slowest: rotary positions give each place in a head a norm of its
/// own, in every head, which looks the same.
///
/// # Errors
/// Returns what the system refuses, and cancellation.
pub fn orient(
    reader: &dyn Reader,
    modules: &[Module],
    limits: &Limits,
    progress: &dyn Progress,
) -> Result<Vec<Question>, Errors> {
    let mut kinds: BTreeMap<(Part, Heads, usize, bool), Vec<&Module>> = BTreeMap::new();
    for module in modules {
        let Some(heads) = module.heads else { continue };
        for (part, alone) in &module.parts {
            let several = heads.of(*part) > 1 && heads.rows(*part) > heads.of(*part);
            let exchangeable = matches!(part, Part::Value | Part::Output);
            if several && (alone.is_square || exchangeable) {
                let kind = (*part, heads, alone.matrix.columns.len(), alone.is_square);
                kinds.entry(kind).or_default().push(module);
            }
        }
    }
    let mut questions = Vec::new();
    for ((part, heads, columns, is_square), list) in kinds.into_iter().take(4 * limits.kinds) {
        let group = if part == Part::Query || part == Part::Output { "h" } else { "g" };
        let size = if part == Part::Query || part == Part::Key { "d" } else { "dv" };
        let exchangeable = matches!(part, Part::Value | Part::Output);
        let mut readings = vec![(false, false)];
        readings.extend(exchangeable.then_some((false, true)));
        readings.extend(is_square.then_some((true, false)));
        readings.extend((is_square && exchangeable).then_some((true, true)));
        let name = |(transposed, exchanged): &(bool, bool)| {
            let axis = if *exchanged { format!("({size} {group})") } else { format!("({group} {size})") };
            let turned = if *transposed { ", transposed" } else { "" };
            format!("{axis}{turned}")
        };
        let names = readings.iter().map(name).zip(0..).collect();
        let picked = spread(&list, limits.modules);
        let tallies = in_parallel(picked.len(), limits.threads, progress, &|at| {
            heads_tally(reader, picked[at], (part, heads), &readings, limits)
        })?;
        let (tallies, unfit) = sorted(tallies);
        let mut question = Question::new(names, &tallies);
        let first = list.first().and_then(|module| module.parts.get(&part));
        let sampled = first.map_or(0, |alone| alone.matrix.sampled(limits.elements).columns.len());
        question.about = format!("the heads of {}", part.letter());
        question.tensor = first.map_or_else(String::new, |alone| key_of(reader, &alone.matrix));
        question.modules = list.len();
        question.regular = unfit.iter().filter(|unfit| **unfit == Unfit::Regular).count();
        question.sample = (heads.rows(part) as usize, sampled, columns);
        questions.push(question);
    }
    Ok(questions)
}

fn heads_tally(
    reader: &dyn Reader,
    module: &Module,
    (part, heads): (Part, Heads),
    asked: &[(bool, bool)],
    limits: &Limits,
) -> Result<Option<Result<Tally, Unfit>>, Errors> {
    let Some(alone) = module.parts.get(&part) else { return Ok(None) };
    let partner = match module.parts.get(&Part::Value).filter(|_| part == Part::Output) {
        Some(values) => ranks(reader, &values.matrix, limits)?.ok(),
        None => None,
    };
    let mut readings = Vec::new();
    // Those of one axis stand next to each other, and are read once.
    for same in asked.chunk_by(|a, b| a.0 == b.0) {
        let matrix = if same[0].0 { alone.matrix.transposed() } else { alone.matrix.clone() };
        let ranks = match ranks(reader, &matrix, limits)? {
            Ok(ranks) => ranks,
            Err(unfit) => return Ok(Some(Err(unfit))),
        };
        readings.extend(same.iter().map(|&(_, exchanged)| HeadReading { ranks: ranks.clone(), exchanged }));
    }
    Ok(Some(Ok(score::heads(&readings, part, heads, partner.as_deref(), limits.seed))))
}

/// Returns the ranks of a matrix's row norms, or why they say nothing.
fn ranks(reader: &dyn Reader, matrix: &Matrix, limits: &Limits) -> Result<Result<Vec<f64>, Unfit>, Errors> {
    let matrix = matrix.sampled(limits.elements);
    let columns = matrix.columns.len();
    Ok(Rows::new(numbers(reader, &matrix)?, columns).map(|rows| rows.ranks().to_vec()))
}

fn numbers(reader: &dyn Reader, matrix: &Matrix) -> Result<Vec<f32>, Errors> {
    sample::read(reader, matrix).map_err(|error| {
        let catalog = reader.catalog();
        let diagnostic =
            Diagnostic::error(EvidenceCode::Read, format!("cannot read a tensor to weigh it: {error}"))
                .file(&catalog.path);
        match catalog.tensors.get(matrix.tensor) {
            Some(tensor) => diagnostic.tensor(&tensor.key).into(),
            None => diagnostic.into(),
        }
    })
}

/// Says which part of the fused bias is next to nothing, as that of k is in many models: softmax does not see it, so
/// that training leaves it at zero. Only a hint: in others it is the largest.
fn key_bias(reader: &dyn Reader, modules: &[&Module], fused: &Placed) -> Result<Option<String>, Errors> {
    const NEAR_ZERO: f64 = 0.05;
    let mut sums: BTreeMap<Part, f64> = BTreeMap::new();
    for module in modules {
        let Some(bias) = &module.bias else { continue };
        if bias.places != fused.places {
            return Ok(None);
        }
        let values = numbers(reader, &bias.matrix)?;
        for (part, value) in bias.places.iter().map(|(part, _)| *part).zip(&values) {
            *sums.entry(part).or_default() += f64::from(*value).powi(2);
        }
    }
    let mean = |part: Part| {
        let rows = fused.places.iter().filter(|(other, _)| *other == part).count();
        sums.get(&part).map(|sum| (sum / rows.max(1) as f64).sqrt()).filter(|mean| mean.is_finite())
    };
    let means: Vec<(Part, f64)> =
        Part::FUSED.into_iter().filter_map(|part| mean(part).map(|mean| (part, mean))).collect();
    let smallest = means.iter().min_by(|(_, first), (_, second)| first.total_cmp(second));
    let Some(&(part, least)) = smallest.filter(|_| means.len() == 3) else { return Ok(None) };
    let is_alone = means.iter().all(|(other, mean)| *other == part || least < NEAR_ZERO * mean);
    Ok(is_alone.then(|| match part {
        Part::Key => "the bias of k is next to nothing, as training leaves it".to_owned(),
        other => format!(
            "the bias of what is declared {} is next to nothing, as training leaves that of k",
            other.letter()
        ),
    }))
}
