//! What a publication would replace or remove, and what of it is not to be touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::system::{exists, is_same, is_there};
use super::{Destination, Place, Staging, name_in, nested};
use crate::diag::{Collector, Diagnostic, Errors, PublishCode};
use crate::format::names::index_name;
use crate::format::output::OutputLayout;
use crate::format::pieces::is_shard_of;
use crate::format::shards::named_shards;
use crate::format::{FileSet, named_in, shown};

impl Staging {
    /// Refuses to touch what is not to be touched, and finds the older checkpoint of a folder.
    pub(super) fn check_replaced(
        &mut self,
        layout: &OutputLayout,
        sources: &[PathBuf],
        set: Option<&FileSet<'_>>,
        mut out: Collector,
    ) -> Result<(), Errors> {
        if matches!(self.place, Place::New) {
            return Ok(());
        }
        let names = layout.files.iter().map(|file| &file.name);
        let names = names.chain(layout.companions.iter().map(|file| &file.name));
        let names = names.chain(layout.index.iter().map(|index| &index.name));
        let outputs: Vec<PathBuf> = match &self.destination {
            Destination::File(path) => vec![path.clone()],
            Destination::Folder(_) => names.map(|name| self.target_of(name)).collect(),
        };
        if let Destination::Folder(folder) = &self.destination.clone() {
            self.find_old(folder, layout, &outputs);
            if let Some(set) = set.filter(|_| folder.is_dir()) {
                match named_in(folder, set) {
                    Ok(names) => self.add_old_set(names, layout, &outputs),
                    Err(errors) => out.extend(errors),
                }
            }
        }
        let old = self.old_index.iter().chain(&self.old_files).map(|name| self.target_of(name));
        let touched: BTreeSet<PathBuf> =
            outputs.iter().cloned().chain(old).filter(|path| is_there(path)).collect();
        if let Destination::Folder(folder) = &self.destination {
            // What is written through a link would lie elsewhere.
            let names = layout.files.iter().map(|file| &file.name).chain(&self.old_files);
            let ways = names.filter_map(|name| nested::in_the_way(folder, name));
            for path in ways.collect::<BTreeSet<_>>() {
                let message = "a file or a link is in the way: a folder of the output would have this name";
                let diagnostic = Diagnostic::error(PublishCode::Exists, message).file(&path);
                out.push(diagnostic.help("remove it, or write to another folder"));
            }
        }
        for path in &touched {
            if let Some(source) = sources.iter().find(|source| is_same(path, source)) {
                let message = if path == source {
                    "a file that this run reads would be replaced or removed".to_owned()
                } else {
                    format!(
                        "it is `{}`, which this run reads, under another name",
                        shown(&source.to_string_lossy())
                    )
                };
                out.push(over_source(path, message));
            } else if path.is_dir() {
                out.push(Diagnostic::error(PublishCode::Exists, "a folder is in the way").file(path));
            } else if !self.options.force {
                let name = match &self.destination {
                    Destination::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into(),
                    Destination::Folder(folder) => name_in(folder, path),
                };
                let name = shown(&name);
                let message = if outputs.contains(path) {
                    format!("`{name}` exists already")
                } else {
                    format!("`{name}` exists already, of a checkpoint that would mix with the new one")
                };
                out.push(exists(path, message));
            }
        }
        let destination = self.destination.path();
        if let Some(source) = sources.iter().find(|source| source.is_dir() && is_same(destination, source)) {
            out.push(over_source(source, "the destination is the source folder"));
        }
        out.finish(()).map(|_| ())
    }

    /// Adds the files of an older set: with more ranks than the new one has, a reader would join the two.
    fn add_old_set(&mut self, names: Vec<String>, layout: &OutputLayout, outputs: &[PathBuf]) {
        let ending = |name: &str| Path::new(name).extension().map(ToOwned::to_owned);
        let endings: BTreeSet<_> = layout.files.iter().map(|file| ending(&file.name)).collect();
        let known: BTreeSet<&String> = self.old_files.iter().collect();
        let is_old = |name: &String| {
            let is_new = outputs.contains(&self.target_of(name));
            endings.contains(&ending(name)) && !is_new && !known.contains(name)
        };
        let old: Vec<String> = names.into_iter().filter(is_old).collect();
        self.old_files.extend(old);
    }

    /// Finds the older checkpoint of a folder, which beside the new one would make a mix.
    fn find_old(&mut self, folder: &Path, layout: &OutputLayout, outputs: &[PathBuf]) {
        let (format, single) = (layout.format, layout.single_name.as_str());
        let mut old = BTreeSet::from([single.to_owned()]);
        let index = index_name(single);
        if is_there(&folder.join(&index)) {
            // Sound names only, and plain ones: this is about removing files.
            let names = named_shards(&folder.join(&index)).into_iter();
            let ending = Path::new(single).extension();
            old.extend(names.filter(|name| !name.contains('/') && Path::new(name).extension() == ending));
            self.old_index = Some(index);
        }
        if !format.has_index() {
            // Their names alone hold the parts together.
            let single = Path::new(single);
            let part = |text: Option<&std::ffi::OsStr>| {
                text.and_then(|text| text.to_str()).unwrap_or_default().to_owned()
            };
            let (stem, ending) = (part(single.file_stem()), part(single.extension()));
            let names = fs::read_dir(folder).into_iter().flatten().flatten();
            let names = names.filter_map(|entry| entry.file_name().into_string().ok());
            old.extend(names.filter(|name| is_shard_of(name, &stem, &ending)));
        }
        let is_old = |name: &String| {
            let path = folder.join(name);
            is_there(&path) && !outputs.contains(&path)
        };
        self.old_files = old.into_iter().filter(is_old).collect();
    }
}

/// Describes what a run reads and would write over.
fn over_source(path: &Path, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(PublishCode::OverSource, message).file(path).help("write to another folder")
}
