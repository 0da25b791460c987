//! The conversions that people need, and the layouts that were catalogued: each is tested, or a reason stands beside it.
//!
//! `tests/data/layout_pairs/pairs.tsv` has one line a conversion: source, target, then
//! `covered by FAMILY/LAYOUT -> FAMILY/LAYOUT; REMARK` or `not covered: REASON`. `layouts.tsv` has one line a layout: its
//! name, then the built-in layouts that carry it, or `not carried: REASON`.

use std::collections::{BTreeMap, BTreeSet};

use crate::families::{Model, models};

const PAIRS: &str = include_str!("../data/layout_pairs/pairs.tsv");
const LAYOUTS: &str = include_str!("../data/layout_pairs/layouts.tsv");

/// Where one layout stands among the built-in ones: family and layout.
type Place<'a> = (&'a str, &'a str);

fn place(text: &str) -> Place<'_> {
    text.split_once('/').unwrap_or_else(|| panic!("`{text}` is not FAMILY/LAYOUT"))
}

fn exists((family, layout): Place) -> bool {
    let family = qkvconv::mapping::builtin::family(family);
    family.is_some_and(|family| family.layouts.contains_key(layout))
}

/// A conversion and what stands beside it.
struct Pair<'a> {
    source: &'a str,
    target: &'a str,
    /// The layouts that cover it, or the reason why none do.
    covered: Result<(Place<'a>, Place<'a>), &'a str>,
}

fn pair(line: &str) -> Pair<'_> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [source, target, text] = fields[..] else { panic!("{line}: not three fields") };
    let covered = match (text.strip_prefix("covered by "), text.strip_prefix("not covered: ")) {
        (Some(names), _) => {
            let names = names.split_once("; ").map_or(names, |(names, _)| names);
            let (from, to) = names.split_once(" -> ").unwrap_or_else(|| panic!("{line}: no arrow"));
            Ok((place(from), place(to)))
        }
        (None, Some(reason)) => Err(reason),
        (None, None) => panic!("{line}: neither covered nor not"),
    };
    Pair { source, target, covered }
}

fn pairs() -> Vec<Pair<'static>> {
    PAIRS.lines().map(pair).collect()
}

/// Returns the layouts that carry each catalogued one, or the reason why none do.
fn catalogued() -> Vec<(&'static str, Result<Vec<Place<'static>>, &'static str>)> {
    let line = |line: &'static str| {
        let (id, text) = line.split_once('\t').unwrap_or_else(|| panic!("{line}: not two fields"));
        (
            id,
            text.strip_prefix("not carried: ").map_or_else(|| Ok(text.split(", ").map(place).collect()), Err),
        )
    };
    LAYOUTS.lines().map(line).collect()
}

/// Tells whether `families.rs` converts a model from one layout to the other: from the one in which it is written to every
/// one, itself too, and between any two that differ.
fn converts(model: &Model, family: &str, from: &str, to: &str) -> bool {
    let has = |layout: &str| model.layouts.iter().any(|name| name == layout);
    model.mapping == family && has(from) && has(to) && (from != to || from == model.layout)
}

#[test]
fn every_pair_is_tested_or_has_a_reason() {
    let (pairs, models) = (pairs(), models());
    assert_eq!(pairs.len(), 100);
    let mut wrong = Vec::new();
    for pair in &pairs {
        let said = match pair.covered {
            Err(reason) if reason.len() < 10 => "no reason".to_owned(),
            Err(_) => continue,
            Ok((from, to)) if from.0 != to.0 => "two families".to_owned(),
            Ok((from, to)) if !exists(from) || !exists(to) => format!("no layout {from:?} or {to:?}"),
            Ok((from, to)) if !models.iter().any(|(_, model)| converts(model, from.0, from.1, to.1)) => {
                format!("no model of tests/families goes from {from:?} to {to:?}")
            }
            Ok(_) => continue,
        };
        wrong.push(format!("{} -> {}: {said}", pair.source, pair.target));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let distinct: BTreeSet<_> = pairs.iter().map(|pair| (pair.source, pair.target)).collect();
    assert_eq!(distinct.len(), pairs.len(), "a pair stands twice");
}

#[test]
fn every_catalogued_layout_is_carried_or_has_a_reason() {
    let layouts = catalogued();
    let distinct: BTreeSet<_> = layouts.iter().map(|(id, _)| id).collect();
    assert_eq!((layouts.len(), distinct.len()), (177, 177));
    for (id, carried) in &layouts {
        match carried {
            Ok(places) => {
                let missing: Vec<_> = places.iter().filter(|place| !exists(**place)).collect();
                assert!(missing.is_empty(), "{id}: there is no {missing:?}");
            }
            Err(reason) => assert!(reason.len() >= 9, "{id}: no reason"),
        }
    }
}

/// A pair goes between layouts that carry its two sides. A few pairs name a side that is not in the catalogue.
#[test]
fn pairs_and_layouts_agree() {
    let layouts: BTreeMap<_, _> = catalogued().into_iter().collect();
    let mut outside = BTreeSet::new();
    for pair in pairs() {
        let Ok((from, to)) = pair.covered else { continue };
        for (id, used) in [(pair.source, from), (pair.target, to)] {
            match layouts.get(id) {
                Some(Ok(places)) => assert!(places.contains(&used), "{id}: {used:?} is not among {places:?}"),
                Some(Err(reason)) => panic!("{id} is not carried ({reason}), but {used:?} covers it"),
                None => {
                    outside.insert(id);
                }
            }
        }
    }
    let known = [
        "chameleon_hf",
        "gguf_dbrx",
        "hf_blip2",
        "hf_sam",
        "hf_stable_audio3",
        "hf_swin",
        "hf_v5_moonvit",
        "split_canonical",
        "tabpfn_v2_new",
    ];
    assert!(outside.iter().eq(&known), "{outside:?}");
}
