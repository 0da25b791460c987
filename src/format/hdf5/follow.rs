//! What the links of an HDF5 file lead to: objects of the same file under other names, and those of other files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::links::{Link, Target};
use super::region::Region;
use super::structure::{Structure, structure};
use super::superblock;
use super::walk::Tensor;
use crate::diag::{Diagnostic, Errors, FormatCode};
use crate::format::root::{Content, Leaf};
use crate::format::shards::{check_link, name_problem};
use crate::format::store::{OpenFile, Store};
use crate::format::{OpenOptions, shown};

/// How many links are followed one after the other, in one file and from file to file.
const MOST_HOPS: usize = 32;
const MOST_FILES: usize = 8;

/// The most tensors that links may add; groups that are linked into each other multiply them.
const MOST_ADDED: usize = 1 << 20;

/// The files that external links have led to.
pub(super) struct Others<'a> {
    options: &'a OpenOptions,
    /// How many files lie on the way to the one that is read.
    depth: usize,
    /// What each holds, or why it cannot be read.
    held: HashMap<PathBuf, Result<Vec<Leaf<Tensor>>, Box<Diagnostic>>>,
    /// Those that are open.
    pub(super) files: Vec<(Arc<OpenFile>, Arc<Region>)>,
}

impl Others<'_> {
    pub(super) fn new(options: &OpenOptions) -> Others<'_> {
        Others { options, depth: 0, held: HashMap::new(), files: Vec::new() }
    }

    /// Reads the structures of the file of that path, and of those that its links lead to.
    pub(super) fn structure(&mut self, path: &Path, region: &Arc<Region>) -> Result<Structure, String> {
        let (mut structure, links) = structure(region, self.options)?;
        self.follow(path, &links, &mut structure.leaves)?;
        Ok(structure)
    }

    /// Adds what the links of a file lead to, under the links' names. `path` is that of the file.
    fn follow(&mut self, path: &Path, links: &[Link], leaves: &mut Vec<Leaf<Tensor>>) -> Result<(), String> {
        let targets: HashMap<&[String], &Target> =
            links.iter().map(|link| (link.path.as_slice(), &link.target)).collect();
        let mut added = Vec::new();
        for link in links {
            match self.at(path, &targets, leaves, link) {
                Ok(found) => added.extend(found),
                Err(diagnostic) => {
                    added.push(Leaf { path: link.path.clone(), content: Content::Tensor(Err(diagnostic)) });
                }
            }
            if added.len() > MOST_ADDED {
                return Err(format!("its links lead to more than {MOST_ADDED} datasets"));
            }
        }
        leaves.extend(added);
        Ok(())
    }

    /// Returns what a link leads to: a tensor, or all in a group.
    fn at(
        &mut self,
        file: &Path,
        targets: &HashMap<&[String], &Target>,
        leaves: &[Leaf<Tensor>],
        link: &Link,
    ) -> Result<Vec<Leaf<Tensor>>, Box<Diagnostic>> {
        let mut path = link.path.clone();
        for _ in 0..MOST_HOPS {
            let found = (1..=path.len()).find_map(|length| {
                let start = path.get(..length)?;
                Some((length, *targets.get(start)?))
            });
            let Some((length, target)) = found else {
                let text = shown(&path.join("/"));
                return below(leaves, &path, link).ok_or_else(|| {
                    wrong(format!("it is a link to `/{text}`, and nothing with data is there"), MISSING)
                });
            };
            let behind = path.get(length..).unwrap_or_default().to_vec();
            match target {
                Target::Soft(text) => {
                    let around = if text.starts_with('/') { 0 } else { length - 1 };
                    path.truncate(around);
                    path.extend(components(text));
                    path.extend(behind);
                }
                Target::External(name, object) => {
                    let mut inner: Vec<String> = components(object).collect();
                    inner.extend(behind);
                    let text = format!("`/{}` in the file `{}`", shown(&inner.join("/")), shown(name));
                    let held = self.file(file, name)?;
                    return below(held, &inner, link).ok_or_else(|| {
                        wrong(format!("it is a link to {text}, and nothing with data is there"), MISSING)
                    });
                }
            }
        }
        Err(wrong(
            format!("more than {MOST_HOPS} links follow each other; do they lead to themselves?"),
            MISSING,
        ))
    }

    /// Returns what another file holds.
    fn file(&mut self, from: &Path, name: &str) -> Result<&[Leaf<Tensor>], Box<Diagnostic>> {
        let folder = from.parent().unwrap_or(Path::new(""));
        let path = folder.join(name);
        if !self.held.contains_key(&path) {
            let held = self.open(folder, &path, name);
            self.held.insert(path.clone(), held);
        }
        match self.held.get(&path) {
            Some(Ok(leaves)) => Ok(leaves),
            Some(Err(diagnostic)) => Err(diagnostic.clone()),
            None => Ok(&[]),
        }
    }

    fn open(&mut self, folder: &Path, path: &Path, name: &str) -> Result<Vec<Leaf<Tensor>>, Box<Diagnostic>> {
        let link = format!("it is a link into the file `{}`", shown(name));
        if !self.options.allow_outside_links
            && let Some(problem) = name_problem(name)
        {
            let help = "if you trust the link, give `--allow outside-link`";
            let mut diagnostic = wrong(format!("{link}, whose name {problem}"), help);
            diagnostic.code = FormatCode::PathEscape.into();
            return Err(diagnostic);
        }
        if !path.exists() {
            return Err(wrong(
                format!("{link}, which is not there"),
                "fetch that file too, into the same folder",
            ));
        }
        if self.depth >= MOST_FILES {
            let message = format!("{link}, behind {MOST_FILES} files that are linked one to the other");
            return Err(wrong(message, MISSING));
        }
        let first = |errors: Errors| match errors.diagnostics().first() {
            Some(diagnostic) => Box::new(diagnostic.clone()),
            None => wrong(format!("{link}, which cannot be read"), MISSING),
        };
        check_link(folder, path, name, self.options).map_err(first)?;
        let file = OpenFile::open(path).map_err(first)?;
        if superblock(&file).map_err(first)?.is_none() {
            return Err(wrong(format!("{link}, which is no HDF5 file"), MISSING));
        }
        let region = Region::new(Arc::clone(&file) as Arc<dyn Store>, 0, file.size);
        self.files.push((file, Arc::clone(&region)));
        self.depth += 1;
        let found = self.structure(path, &region);
        self.depth -= 1;
        region.opened();
        found
            .map(|structure| structure.leaves)
            .map_err(|what| wrong(format!("{link}, which cannot be read: {what}"), MISSING))
    }
}

const MISSING: &str = "save the file again with all arrays in it: open it with h5py and copy them";

fn wrong(message: String, help: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(FormatCode::Hdf5Link, message).help(help))
}

/// Returns the parts of a path; `.` is the group itself.
fn components(path: &str) -> impl Iterator<Item = String> + '_ {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned)
}

/// Returns all at a path and below it, under the name of a link; `None` where there is nothing.
fn below(leaves: &[Leaf<Tensor>], path: &[String], link: &Link) -> Option<Vec<Leaf<Tensor>>> {
    let found = leaves.iter().filter_map(|leaf| {
        let inner = leaf.path.strip_prefix(path)?;
        Some(Leaf { path: [&link.path, inner].concat(), content: leaf.content.clone() })
    });
    let found: Vec<Leaf<Tensor>> = found.collect();
    (!found.is_empty()).then_some(found)
}
