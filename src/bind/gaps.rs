//! Lists of modules with a number missing: `layers.0`, `layers.1`, `layers.3`; files of a set that are missing.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use indexmap::IndexMap;

use super::keys::Keys;
use super::options::{Allow, BindOptions};
use super::pair::Pair;
use crate::catalog::Catalog;
use crate::diag::{BindCode, Collector, Diagnostic};
use crate::fold::fold_keys;
use crate::mapping::Rule;
use crate::mapping::key::{Captures, Piece};

/// Modules of one list: the path's name, the segments before and behind the index.
type List<'a> = (&'a str, &'a [String], &'a [String]);

/// Reports numbers that are missing inside a list of modules, unless another tensor has that number: a model whose
/// layers differ (attention in every fourth) has no gap.
pub(super) fn check_paths(catalog: &Catalog, keys: &Keys, options: &BindOptions, errors: &mut Collector) {
    if options.allows(Allow::IndexGap) {
        return;
    }
    let mut lists: IndexMap<List<'_>, BTreeSet<u64>> = IndexMap::new();
    for (path, segments) in keys.modules.iter().flatten() {
        for at in 0..segments.len() {
            if let Ok(index) = segments[at].parse() {
                lists.entry((path, &segments[..at], &segments[at + 1..])).or_default().insert(index);
            }
        }
    }
    let mut prefixes: Option<HashSet<Vec<&str>>> = None;
    for ((_, before, behind), indices) in lists {
        let (Some(first), Some(last)) = (indices.first(), indices.last()) else { continue };
        if (last - first) as usize + 1 == indices.len() || last - first > 1_000_000 {
            continue;
        }
        let prefixes = prefixes.get_or_insert_with(|| all_prefixes(catalog));
        let missing: Vec<String> = (*first..=*last)
            .filter(|index| !indices.contains(index))
            .map(|index| index.to_string())
            .filter(|index| {
                let mut path: Vec<&str> = before.iter().map(String::as_str).collect();
                path.push(index);
                !prefixes.contains(&path)
            })
            .collect();
        for index in missing {
            let names: Vec<&str> = before
                .iter()
                .map(String::as_str)
                .chain([index.as_str()])
                .chain(behind.iter().map(String::as_str))
                .collect();
            errors.push(
                Diagnostic::error(
                    BindCode::IndexGap,
                    format!("number {index} is missing in a list of modules"),
                )
                .file(&catalog.path)
                .tensor(names.join("."))
                .expected(format!("numbers {first} to {last}"))
                .found(indices.iter().take(20).map(u64::to_string).collect::<Vec<_>>().join(", "))
                .help("complete the checkpoint: a shard may be missing; if its model has no such module, `--allow index-gap` converts the others"),
            );
        }
    }
}

/// Reports the files of a set that are missing: names with indices along several axes, one file for each combination.
/// Returns whether any is: sizes follow from the files, so that all else would be said of the wrong ones.
pub(super) fn check_files(
    pair: &Pair<'_>,
    catalog: &Catalog,
    keys: &Keys,
    options: &BindOptions,
    errors: &mut Collector,
) -> bool {
    /// More files than any set has.
    const MOST: u64 = 1_000_000;
    if options.allows(Allow::IndexGap) || !pair.source.is_file_set() {
        return false;
    }
    let rules = &pair.source.rules;
    let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
    let mut sets: IndexMap<Vec<Piece>, (usize, HashSet<Vec<u64>>)> = IndexMap::new();
    for matched in &keys.matched {
        let template = &rules[matched.rule].template;
        let Some(pieces) = &template.file else { continue };
        let axes = template.file_axes();
        let indices = || axes.iter().filter_map(|axis| matched.captures.index(axis));
        for (axis, index) in axes.iter().zip(indices()) {
            let size = sizes.entry(axis).or_default();
            *size = index.saturating_add(1).max(*size);
        }
        for (axis, count) in &matched.captures.counts {
            let size = sizes.entry(axis).or_default();
            *size = (*count).max(*size);
        }
        if !sets.contains_key(pieces) {
            sets.insert(pieces.clone(), (matched.rule, HashSet::new()));
        }
        if let Some((_, found)) = sets.get_mut(pieces) {
            found.insert(indices().collect());
        }
    }
    let mut missing: BTreeSet<String> = BTreeSet::new();
    let mut first = None;
    for (pieces, (rule, found)) in &sets {
        let template = &rules[*rule].template;
        let axes = template.file_axes();
        let sparse = |rule: &&Rule| {
            let mut params =
                rule.expr.params().into_iter().filter_map(|param| pair.mapping.params.get(param));
            rule.template.file.as_ref() == Some(pieces)
                && params.any(|param| param.sparse.iter().any(|axis| axes.contains(&axis.as_str())))
        };
        let shape: Vec<u64> = axes.iter().map(|axis| sizes.get(axis).copied().unwrap_or(0)).collect();
        let total = shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
        let total = total.filter(|total| *total <= MOST && *total > found.len() as u64);
        // A path may stand for anything, and a layer may lack what another has.
        if template.has_file_path() || rules.iter().any(|rule| sparse(&rule)) {
            continue;
        }
        for number in 0..total.unwrap_or(0) {
            let mut rest = number;
            let mut indices = vec![0; shape.len()];
            for (index, size) in indices.iter_mut().zip(&shape).rev() {
                *index = rest % size;
                rest /= size;
            }
            if found.contains(&indices) {
                continue;
            }
            let mut captures = Captures::default();
            for (axis, index) in axes.iter().zip(&indices) {
                captures = captures.with(axis, *index);
            }
            captures.counts = sizes.iter().map(|(axis, size)| ((*axis).into(), *size)).collect();
            if let Ok(Some(file)) = template.print_file(&captures) {
                missing.insert(file);
                first = first.or(Some(&template.span));
            }
        }
    }
    let Some(rule) = first else { return false };
    let names: Vec<String> = fold_keys(missing.iter().map(String::as_str));
    let shown = names.iter().take(20).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let sizes: Vec<String> =
        sizes.iter().map(|(axis, size)| format!("`{axis}` from 0 to {}", size.saturating_sub(1))).collect();
    let error = Diagnostic::error(BindCode::IndexGap, format!("files of the set are missing: {shown}"))
        .file(&catalog.path)
        .rule(rule)
        .expected(format!("a file for each of {}", sizes.join(" with each of ")))
        .found(format!("{} of these files hold none of the tensors that the rules name", missing.len()))
        .help(
            "complete the checkpoint; if its model has no such file, `--allow index-gap` converts the others",
        );
    errors.push(error);
    true
}

/// Returns the leading components of all names.
fn all_prefixes(catalog: &Catalog) -> HashSet<Vec<&str>> {
    let mut prefixes = HashSet::default();
    for tensor in &catalog.tensors {
        let components: Vec<&str> = tensor.key.split(['.', '/']).collect();
        // Real names have some ten components; a hostile one may have thousands.
        for length in 1..components.len().min(32) {
            prefixes.insert(components[..length].to_vec());
        }
    }
    prefixes
}
