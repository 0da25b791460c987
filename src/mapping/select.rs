//! Layout names, `family/layout` or bare, → the mapping and its two layouts.

use std::sync::Arc;

use super::names::Names;
use super::{Layout, Mapping, builtin, read};
use crate::diag::{Collector, Diagnostic, Errors, MappingCode, nearest};
use crate::span::Source;

/// A mapping and the two layouts between which to convert.
///
/// ```
/// let selection = qkvconv::select("llama/hf", "llama/meta", &[])?;
/// assert_eq!((selection.mapping().family.as_str(), selection.target().name.as_str()), ("llama", "meta"));
/// # Ok::<(), qkvconv::Errors>(())
/// ```
#[derive(Debug)]
pub struct Selection {
    mapping: Mapping,
    source: usize,
    target: usize,
}

impl Selection {
    /// Returns the mapping.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the layout of the source.
    pub fn source(&self) -> &Layout {
        &self.mapping.layouts[self.source]
    }

    /// Returns the layout of the target.
    pub fn target(&self) -> &Layout {
        &self.mapping.layouts[self.target]
    }
}

/// Returns all mappings: the given files first, then the built-in ones that no given file extends.
///
/// # Errors
/// Returns what is wrong with any of the files.
pub fn all(files: &[Arc<Source>]) -> Result<Vec<Mapping>, Errors> {
    Ok(with_built_in(read_files(files)?, |_| true))
}

/// Returns the mappings of the given files.
///
/// # Errors
/// Returns what is wrong with any of the files.
pub fn read_files(files: &[Arc<Source>]) -> Result<Vec<Mapping>, Errors> {
    let mut errors = Collector::default();
    let mut mappings: Vec<Mapping> = Vec::new();
    for file in files {
        match read(file) {
            Ok(mapping) => mappings.push(mapping),
            Err(other) => errors.extend(other),
        }
    }
    errors.finish(mappings).map(|(mappings, _)| mappings)
}

/// Adds to the mappings of files the built-in ones that none of them extends and that have a layout for any of the names.
pub fn with_those_for(mappings: Vec<Mapping>, names: &Names<'_>) -> Vec<Mapping> {
    with_built_in(mappings, |family| builtin::may_hold(family, names))
}

/// Adds the built-in families that are wanted and that no mapping extends.
fn with_built_in(mut mappings: Vec<Mapping>, wanted: impl Fn(&str) -> bool + Sync) -> Vec<Mapping> {
    let is_new = |name: &str| !mappings.iter().any(|mapping| mapping.family == name);
    let built_in = builtin::families(&|name| is_new(name) && wanted(name));
    mappings.extend(built_in);
    mappings
}

/// Selects the layouts of those names.
///
/// # Errors
/// Returns a name that no layout has, that several families have, or two layouts of different families.
pub fn select(from: &str, to: &str, files: &[Arc<Source>]) -> Result<Selection, Errors> {
    // A family that both name need not be looked for in all the others.
    let families = [from, to].map(|name| name.split_once('/').map(|(family, _)| family));
    let family = families[0].filter(|_| families[0] == families[1]);
    let mut mappings = read_files(files)?;
    let has_it = |family: &&str| {
        builtin::names().any(|name| name == *family)
            || mappings.iter().any(|mapping| mapping.family == *family)
    };
    let family = family.filter(has_it);
    mappings = with_built_in(mappings, |name| family.is_none_or(|family| family == name));
    let mut errors = Collector::default();
    let sources = find(&mappings, from, "--from", &mut errors);
    let targets = find(&mappings, to, "--to", &mut errors);
    errors.finish(())?;
    let pairs: Vec<(usize, usize, usize)> = sources
        .iter()
        .flat_map(|source| {
            targets.iter().filter(|target| target.0 == source.0).map(|t| (source.0, source.1, t.1))
        })
        .collect();
    match pairs[..] {
        [(mapping, source, target)] => {
            Ok(Selection { mapping: mappings.swap_remove(mapping), source, target })
        }
        [] => {
            let families = |found: &[(usize, usize)]| {
                found.iter().map(|(at, _)| mappings[*at].family.as_str()).collect::<Vec<_>>().join(", ")
            };
            Err(Diagnostic::error(
                MappingCode::Families,
                format!("`{from}` and `{to}` are layouts of different families"),
            )
            .expected("two layouts of one family: they share the parameters that a conversion meets in")
            .found(format!("{} and {}", families(&sources), families(&targets)))
            .help("`qkvconv mapping list` shows the families")
            .into())
        }
        _ => Err(Diagnostic::error(
            MappingCode::AmbiguousName,
            format!("several families have `{from}` and `{to}`"),
        )
        .expected("family/layout")
        .found(pairs.iter().map(|(at, ..)| mappings[*at].family.clone()).collect::<Vec<_>>().join(", "))
        .help(format!("write `{}/{from}`", mappings[pairs[0].0].family))
        .into()),
    }
}

/// Returns (mapping, layout) of each layout of that name.
fn find(mappings: &[Mapping], name: &str, option: &str, errors: &mut Collector) -> Vec<(usize, usize)> {
    let (family, layout) = match name.split_once('/') {
        Some((family, layout)) => (Some(family), layout),
        None => (None, name),
    };
    let found: Vec<(usize, usize)> = mappings
        .iter()
        .enumerate()
        .filter(|(_, mapping)| family.is_none_or(|family| mapping.family == family))
        .filter_map(|(at, mapping)| Some((at, mapping.layouts.get_index_of(layout)?)))
        .collect();
    if found.is_empty() {
        let known: Vec<String> = mappings
            .iter()
            .flat_map(|mapping| {
                mapping
                    .layouts
                    .keys()
                    .flat_map(|layout| [layout.clone(), format!("{}/{layout}", mapping.family)])
            })
            .collect();
        let error = Diagnostic::error(MappingCode::UnknownLayout, format!("{option} {name}: no such layout"));
        errors.push(match nearest(name, known.iter().map(String::as_str)) {
            Some(near) => error.help(format!("did you mean `{near}`? `qkvconv mapping list` shows all")),
            None => error.help("`qkvconv mapping list` shows all layouts"),
        });
    }
    found
}
