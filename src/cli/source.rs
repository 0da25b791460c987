//! What the user says of the source and its layout, turned into what the library takes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use qkvconv::bind::{BindOptions, Config};
use qkvconv::convert::ConvertOptions;
use qkvconv::detect::{Candidate, Detection, only};
use qkvconv::diag::{Collector, Diagnostic, Errors};
use qkvconv::exec::Limits;
use qkvconv::exec::publish::io_error;
use qkvconv::format::{OpenOptions, Reader, files_of, open, open_set};
use qkvconv::identity::Identity;
use qkvconv::mapping::select::{Selection, read_files, select, with_those_for};
use qkvconv::mapping::{Layout, Mapping};
use qkvconv::span::Source;

use super::args::{Allowed, LayoutArgs, MappingFiles, OpenArgs};
use super::ui::Ui;

/// What `--from` says where the layout is to be found out.
const AUTO: &str = "auto";

/// Selects the two layouts that the user names; `--from auto` is the one layout that explains the source.
pub(super) fn select_layouts(ui: &Ui, args: &LayoutArgs, source: &Path) -> Result<Selection, Errors> {
    let files = read_mappings(&args.files)?;
    // clap has made sure that both are there.
    let (from, to) = (args.from.as_deref().unwrap_or_default(), args.to.as_deref().unwrap_or_default());
    if from != AUTO {
        return select(from, to, &files);
    }
    // The target says at least which families can be meant.
    let wanted = |mapping: &Mapping, _: &Layout| match to.split_once('/') {
        Some((family, _)) => mapping.family == family,
        None => mapping.layouts.contains_key(to),
    };
    let options = resolve(args, source, "config.json")?;
    let found = recognise(&read_files(&files)?, &wanted, source, &options)?;
    let found = only(&found.candidates, found.reader.catalog())?.name();
    ui.say(&format!("--from auto: {found}"));
    let to = match to.split_once('/') {
        Some(_) => to.to_owned(),
        None => format!("{}/{to}", found.split('/').next().unwrap_or_default()),
    };
    select(&found, &to, &files)
}

/// A checkpoint, and what it may be.
pub(super) struct Recognised {
    pub(super) reader: Box<dyn Reader>,
    /// The families of which a layout holds any of its names.
    pub(super) mappings: Vec<Mapping>,
    pub(super) candidates: Vec<Candidate>,
}

/// Opens a checkpoint and scores all layouts that are `wanted`; a folder that none explains is tried as a set of files
/// whose names count. `mappings` are those of the user's files.
pub(super) fn recognise(
    mappings: &[Mapping],
    wanted: &dyn Fn(&Mapping, &Layout) -> bool,
    source: &Path,
    options: &ConvertOptions,
) -> Result<Recognised, Errors> {
    let look = |reader: Box<dyn Reader>| -> Result<Recognised, Errors> {
        let catalog = reader.catalog();
        let recorded = Identity::read(&catalog.metadata).filter(|_| !options.trust_layout);
        if let Some(identity) = &recorded {
            let agrees = identity.check_axes(&options.bind.axes);
            agrees.map_err(|errors| errors.in_file("identity/", source))?;
        }
        let detection = Detection::new(catalog);
        let mappings = with_those_for(mappings.to_vec(), detection.names());
        let candidates = detection.candidates(&mappings, wanted, &options.bind, recorded.as_ref());
        Ok(Recognised { reader, mappings, candidates })
    };
    let fits = |found: &Recognised| found.candidates.iter().any(Candidate::fits);
    let opened = open(source, &options.open).and_then(look);
    if !source.is_dir() || opened.as_ref().is_ok_and(fits) {
        return opened;
    }
    let set = files_of(source, &options.open).unwrap_or_default();
    match open_set(source, &set, &options.open).and_then(look) {
        Ok(set) if fits(&set) => Ok(set),
        _ => opened,
    }
}

/// Returns what an execution may use.
pub(super) fn limits(args: &LayoutArgs) -> Limits {
    let default = Limits::default();
    Limits { threads: args.threads.map_or(default.threads, Into::into), ..default }
}

/// Reads the mapping files that the user names.
pub(super) fn read_mappings(files: &MappingFiles) -> Result<Vec<Arc<Source>>, Errors> {
    let mut errors = Collector::default();
    let mut sources = Vec::new();
    for path in &files.mappings {
        match std::fs::read_to_string(path) {
            Ok(text) => sources.push(Arc::new(Source { name: path.display().to_string(), text })),
            Err(error) => errors.push(io_error(path, "read the mapping", &error)),
        }
    }
    errors.finish(sources).map(|(sources, _)| sources)
}

/// Turns what the user typed into what the library takes.
pub(super) fn resolve(args: &LayoutArgs, source: &Path, config_file: &str) -> Result<ConvertOptions, Errors> {
    let mut errors = Collector::default();
    let only = globs("--only", &args.only, &mut errors);
    let drop = globs("--drop", &args.drop, &mut errors);
    let config = config(args.config.as_deref(), source, config_file, &mut errors);
    let allow = args.allow.iter().filter_map(|allowed| match allowed {
        Allowed::Bind(allow) => Some(*allow),
        Allowed::OutsideLink => None,
    });
    let bind = BindOptions {
        axes: args.axes.clone(),
        config,
        recorded: Vec::new(),
        only,
        drop,
        strip_prefix: args.strip_prefix.clone(),
        add_prefix: args.add_prefix.clone(),
        tied: args.tied.into(),
        allow: allow.collect(),
        dtype: args.dtype.map(Into::into),
    };
    let outside_links = args.allow.contains(&Allowed::OutsideLink);
    let open = open_options(&args.open, outside_links);
    let options = ConvertOptions {
        open,
        bind,
        trust_layout: args.trust_layout,
        inputs: inputs(args, source, config_file),
        ..ConvertOptions::default()
    };
    errors.finish(options).map(|(options, _)| options)
}

/// Turns what the user typed about opening into what the library takes.
pub(super) fn open_options(args: &OpenArgs, allow_outside_links: bool) -> OpenOptions {
    let void_as = args.void_as.iter().copied().map(Into::into).collect();
    OpenOptions { allow_outside_links, root: args.root.clone(), void_as }
}

pub(super) fn globs(option: &str, patterns: &[String], errors: &mut Collector) -> Option<GlobSet> {
    if patterns.is_empty() {
        return None;
    }
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        match GlobBuilder::new(pattern).literal_separator(false).build() {
            Ok(glob) => {
                set.add(glob);
            }
            Err(error) => errors.push(
                Diagnostic::error("usage/glob", format!("{option} {pattern}: {}", error.kind()))
                    .help("`*` stands for any text, `?` for one character, `[ab]` for one of several, `{a,b}` for either"),
            ),
        }
    }
    set.build().map_err(|error| errors.push(Diagnostic::error("usage/glob", error.to_string()))).ok()
}

/// Reads the config that the user names, or the one beside the source: under the name that the layout's framework gives
/// it, else under a usual one.
pub(super) fn config(
    named: Option<&Path>,
    source: &Path,
    config_file: &str,
    errors: &mut Collector,
) -> Option<Config> {
    let path = config_path(named, source, config_file)?;
    match read_config(&path) {
        Ok(config) => Some(config),
        Err(error) => {
            errors.push(error);
            None
        }
    }
}

/// Returns where the config lies, as [`config`] reads it.
fn config_path(named: Option<&Path>, source: &Path, config_file: &str) -> Option<PathBuf> {
    let folder = if source.is_dir() { source } else { source.parent()? };
    let names = [config_file, "config.json", "params.json"];
    let beside = || names.iter().map(|name| folder.join(name)).find(|path| path.is_file());
    named.map(Path::to_owned).or_else(beside)
}

/// Returns what a run of these layouts reads beside the source.
pub(super) fn inputs(args: &LayoutArgs, source: &Path, config_file: &str) -> Vec<PathBuf> {
    let config = config_path(args.config.as_deref(), source, config_file);
    args.files.mappings.iter().cloned().chain(config).collect()
}

fn read_config(path: &PathBuf) -> Result<Config, Diagnostic> {
    let text = std::fs::read_to_string(path).map_err(|error| io_error(path, "read the config", &error))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
        Diagnostic::error("config/json", "the config is not JSON")
            .file(path)
            .found(error.to_string())
            .help("correct it, or name another with --config")
    })?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Config { name, value })
}
