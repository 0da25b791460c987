//! From what a caller names to the two layouts of a conversion: `--from auto`, and which layouts read a file at all.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::claims::Standing;
use crate::convert::ConvertOptions;
use crate::detect::{Candidate, Detection, Question, names_to_try, only};
use crate::diag::{DetectCode, Diagnostic, Errors, FormatCode, MappingCode, Stage};
use crate::format::{FileSet, Reader, files_of, open, open_set};
use crate::identity::Identity;
use crate::mapping::select::{Selection, read_files, select, with_those_for};
use crate::mapping::{Layout, Mapping};
use crate::provenance::Provenance;
use crate::span::Source;

/// What stands for a layout that is to be found out.
const AUTO: &str = "auto";

/// A checkpoint, and what it may be.
///
/// ```
/// use qkvconv::{ConvertOptions, recognise};
///
/// let source = "tests/data/digits".as_ref();
/// let found = recognise(&[], &|_, _| true, source, &ConvertOptions::default())?;
/// let (candidate, mapping, layout) = found.layout()?;
/// assert_eq!((candidate.coverage().as_str(), mapping.family.as_str()), ("12 of 43 tensors", "attention"));
/// assert_eq!(layout.name, "pytorch-fused");
/// # Ok::<(), qkvconv::Errors>(())
/// ```
pub struct Recognised {
    /// The opened checkpoint.
    pub reader: Box<dyn Reader>,
    /// What it says of itself.
    pub provenance: Provenance,
    /// The families of which a layout holds any of its names.
    pub mappings: Vec<Mapping>,
    /// The layouts that match any of its names, what fits first.
    pub candidates: Vec<Candidate>,
}

impl std::fmt::Debug for Recognised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recognised").field("candidates", &self.candidates).finish_non_exhaustive()
    }
}

impl Recognised {
    /// Returns the one layout that explains the checkpoint, with its family.
    ///
    /// # Errors
    /// Returns `detect/none` where none does, and `detect/several` where several that differ do.
    pub fn layout(&self) -> Result<(&Candidate, &Mapping, &Layout), Errors> {
        let candidate = only(&self.candidates, self.reader.catalog())?;
        let mapping = self.mappings.iter().find(|mapping| mapping.family == candidate.family);
        let found =
            mapping.and_then(|mapping| Some((candidate, mapping, mapping.layouts.get(&candidate.layout)?)));
        found.ok_or_else(|| {
            let message = format!("no mapping has the layout `{}`", candidate.name());
            Diagnostic::error(MappingCode::UnknownLayout, message).into()
        })
    }
}

/// Two layouts, and what the first was found to be.
#[derive(Debug)]
pub struct Selected {
    /// The layouts.
    pub selection: Selection,
    /// The source's layout where it was found out, as `family/layout`.
    pub found: Option<String>,
}

/// Opens a checkpoint and scores all layouts that are `wanted`; a folder that none explains is tried as a set of files
/// whose names count. `mappings` are those of the user's files.
///
/// # Errors
/// Returns what is wrong with the checkpoint's headers or config, and sizes that contradict what it records.
pub fn recognise(
    mappings: &[Mapping],
    wanted: &dyn Fn(&Mapping, &Layout) -> bool,
    source: &Path,
    options: &ConvertOptions,
) -> Result<Recognised, Errors> {
    let look = |reader: Box<dyn Reader>, in_set: bool| -> Result<Recognised, Errors> {
        let wanted =
            |mapping: &Mapping, layout: &Layout| (!in_set || layout.is_file_set()) && wanted(mapping, layout);
        let catalog = reader.catalog();
        let recorded = Identity::read(&catalog.metadata).filter(|_| !options.trust_layout);
        if let Some(identity) = &recorded {
            let agrees = identity.check_axes(&options.bind.axes);
            agrees.map_err(|errors| errors.in_file(Stage::Identity, source))?;
        }
        let names = names_to_try(catalog, &options.bind);
        let detection = Detection::new(catalog, &names);
        let mappings = with_those_for(mappings.to_vec(), detection.names());
        let config_files =
            mappings.iter().flat_map(|mapping| mapping.layouts.values()).map(Layout::config_file);
        let provenance = options.provenance(source, config_files, catalog)?;
        let bind = crate::bind::BindOptions { provenance, ..options.bind.clone() };
        let candidates = detection.candidates(&Question {
            mappings: &mappings,
            wanted: &wanted,
            options: &bind,
            recorded: recorded.as_ref(),
            trust_layout: options.trust_layout,
        });
        Ok(Recognised { reader, provenance: bind.provenance, mappings, candidates })
    };
    let fits = |found: &Recognised| found.candidates.iter().any(Candidate::fits);
    let opened = open(source, &options.open).and_then(|reader| look(reader, false));
    // A checkpoint that is not whole, or of a format that is not read, is no set of files either.
    let is_set = |errors: &Errors| {
        let codes = [
            FormatCode::AmbiguousFolder,
            FormatCode::DuplicateKey,
            FormatCode::NoCheckpoint,
            FormatCode::RankFolders,
        ];
        errors.diagnostics().iter().all(|error| codes.iter().any(|code| error.code == *code))
    };
    let is_refused = opened.as_ref().is_err_and(|errors| !is_set(errors));
    if !source.is_dir() || is_refused || opened.as_ref().is_ok_and(fits) {
        return opened;
    }
    let layouts = || mappings.iter().flat_map(|mapping| mapping.layouts.values());
    let is_named = |name: &str| layouts().any(|layout| layout.names_file(name));
    let mut tried: Vec<Vec<String>> = Vec::new();
    let mut refused = None;
    for depths in depths_to_try(layouts(), opened.is_err()) {
        let files = files_of(source, &FileSet { depths: &depths, is_named: &is_named }, &options.open);
        let Ok(files) = files else { continue };
        let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
        if tried.contains(&names) {
            continue;
        }
        tried.push(names);
        match open_set(source, &files, &options.open).and_then(|reader| look(reader, true)) {
            Ok(set) if fits(&set) => return Ok(set),
            Ok(_) => {}
            // Files in folders are of a set or of nothing, so what is wrong with them is what is to be told.
            Err(errors) if !depths.contains(&0) => refused = refused.or(Some(errors)),
            Err(_) => {}
        }
    }
    refused.map_or(opened, Err)
}

/// Returns in how many folders the files of a set are looked for: as the layouts have them, then in the folder itself, and
/// in those inside it where nothing is in it.
fn depths_to_try<'l>(
    layouts: impl Iterator<Item = &'l Layout>,
    is_empty: bool,
) -> impl Iterator<Item = BTreeSet<usize>> {
    let own: BTreeSet<BTreeSet<usize>> =
        layouts.filter(|layout| layout.is_file_set()).map(Layout::file_depths).collect();
    let usual = [[0].into(), [1].into()].into_iter().take(if is_empty { 2 } else { 1 });
    own.into_iter().chain(usual)
}

/// Selects the two layouts that a caller names; `auto` as the first is the one layout that explains the source.
///
/// # Errors
/// Returns a name that no layout has, layouts of different families (with the layout of the target's family that reads
/// the source, if one does), and what [`recognise`] and [`only`] say. A source that names no model, or one that nothing
/// lists, is not taken for one whose rotary order the target stores otherwise: `detect/unknown-model`.
pub fn select_for(
    from: &str,
    to: &str,
    files: &[Arc<Source>],
    source: &Path,
    options: &ConvertOptions,
) -> Result<Selected, Errors> {
    if from != AUTO {
        let selected = select(from, to, files);
        return match selected {
            Ok(selection) => Ok(Selected { selection, found: None }),
            Err(errors) => Err(with_a_way(errors, to, files, source, options)),
        };
    }
    // The target says at least which families can be meant.
    let wanted = |mapping: &Mapping, _: &Layout| match to.split_once('/') {
        Some((family, _)) => mapping.family == family,
        None => mapping.layouts.contains_key(to),
    };
    let own = read_files(files)?;
    let found = recognise(&own, &wanted, source, options)?;
    let catalog = found.reader.catalog();
    let candidate = match only(&found.candidates, catalog) {
        Ok(candidate) => candidate,
        Err(errors) if found.candidates.iter().any(Candidate::fits) => return Err(errors),
        Err(errors) => return Err(with_what_it_is(errors, &own, source, options)),
    };
    let name = candidate.name();
    let to = match to.split_once('/') {
        Some(_) => to.to_owned(),
        None => format!("{}/{to}", candidate.family),
    };
    let selection = select(&name, &to, files)?;
    if candidate.standing != Standing::Listed && !candidate.recorded && !options.trust_layout {
        let axes = selection.mapping().reordered(selection.source(), selection.target());
        if !axes.is_empty() {
            let told = match &candidate.standing {
                Standing::Unknown { model, place } => format!("{place} = `{model}`, which no layout lists"),
                _ => "nothing says which model it is".to_owned(),
            };
            let axes: Vec<String> = axes.iter().map(|axis| format!("`{axis}`")).collect();
            let message = format!(
                "`{name}` fits, but only the model tells the stored order of {}, which `{to}` has otherwise",
                axes.join(", ")
            );
            let error = Diagnostic::error(DetectCode::UnknownModel, message).file(&catalog.path).found(told);
            return Err(error.help(format!("if the model computes as `{name}` says: --from {name}")).into());
        }
    }
    Ok(Selected { selection, found: Some(name) })
}

/// Adds to an error about families which layout of the target's family reads the source.
fn with_a_way(
    errors: Errors,
    to: &str,
    files: &[Arc<Source>],
    source: &Path,
    options: &ConvertOptions,
) -> Errors {
    let families = errors.has(MappingCode::Families);
    let (Some((family, _)), Ok(own)) = (to.split_once('/'), read_files(files)) else { return errors };
    if !families {
        return errors;
    }
    let wanted = |mapping: &Mapping, _: &Layout| mapping.family == family;
    let Ok(found) = recognise(&own, &wanted, source, options) else { return errors };
    let fitting = found.candidates.iter().filter(|candidate| candidate.fits());
    let ways: Vec<String> = fitting.map(|it| format!("--from {} ({})", it.name(), it.coverage())).collect();
    if ways.is_empty() {
        return errors;
    }
    errors.helped(&format!("of `{family}`, this reads the source: {}", ways.join(", ")))
}

/// Adds to an error of a family that does not explain the source what the source is among all families.
fn with_what_it_is(errors: Errors, own: &[Mapping], source: &Path, options: &ConvertOptions) -> Errors {
    let Ok(found) = recognise(own, &|_, _| true, source, options) else { return errors };
    let fitting: Vec<String> =
        found.candidates.iter().filter(|candidate| candidate.fits()).map(Candidate::name).collect();
    if fitting.is_empty() {
        return only(&found.candidates, found.reader.catalog()).err().unwrap_or(errors);
    }
    let names = fitting.join(", ");
    errors.helped(&format!("the source is {names}, which converts to the layouts of its own family"))
}
