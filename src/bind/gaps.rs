//! Lists of modules with a number missing: `layers.0`, `layers.1`, `layers.3`.

use std::collections::{BTreeSet, HashSet};

use indexmap::IndexMap;

use super::keys::Keys;
use super::options::{Allow, BindOptions};
use crate::catalog::Catalog;
use crate::diag::{Collector, Diagnostic};

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
                    "bind/index-gap",
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
