//! What the user says of the source and its layout, turned into what the library takes.

use std::path::Path;
use std::sync::Arc;

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use qkvconv::bind::{BindOptions, Modules};
use qkvconv::convert::ConvertOptions;
use qkvconv::diag::{Collector, Diagnostic, Errors, UsageCode};
use qkvconv::exec::Limits;
use qkvconv::exec::publish::io_error;
use qkvconv::format::OpenOptions;
use qkvconv::mapping::select::Selection;
use qkvconv::recognise::{Selected, select_for};
use qkvconv::span::Source;

use super::args::{Allowed, LayoutArgs, MappingFiles, OpenAllow, OpenArgs};
use super::ui::Ui;

/// Selects the two layouts that the user names; `--from auto` is the one layout that explains the source.
pub(super) fn select_layouts(ui: &Ui, args: &LayoutArgs, source: &Path) -> Result<Selection, Errors> {
    let files = read_mappings(&args.files)?;
    // clap has made sure that both are there.
    let (from, to) = (args.from.as_deref().unwrap_or_default(), args.to.as_deref().unwrap_or_default());
    let Selected { selection, found } = select_for(from, to, &files, source, &resolve(args)?)?;
    if let Some(found) = found {
        ui.say(&format!("--from auto: {found}"));
    }
    Ok(selection)
}

/// Returns what an execution may use.
pub(super) fn limits(args: &LayoutArgs) -> Limits {
    let default = Limits::default();
    default.threads(args.threads.map_or(default.threads, Into::into))
}

/// Reads the mapping files that the user names.
pub(super) fn read_mappings(files: &MappingFiles) -> Result<Vec<Arc<Source>>, Errors> {
    let mut errors = Collector::default();
    let mut sources = Vec::new();
    for path in &files.mappings {
        match read_mapping(path) {
            Ok(source) => sources.push(source),
            Err(failed) => errors.extend(failed),
        }
    }
    errors.finish(sources).map(|(sources, _)| sources)
}

/// Reads one mapping file.
pub(super) fn read_mapping(path: &Path) -> Result<Arc<Source>, Errors> {
    Source::read(path).map_err(|error| io_error(path, "read the mapping", &error).into())
}

/// Turns what the user typed into what the library takes.
pub(super) fn resolve(args: &LayoutArgs) -> Result<ConvertOptions, Errors> {
    let mut errors = Collector::default();
    let only = globs("--only", &args.only, &mut errors);
    let drop = globs("--drop", &args.drop, &mut errors);
    let mut modules = Modules::default();
    for text in &args.modules {
        let pattern = text.strip_prefix('!').unwrap_or(text);
        glob("--modules", pattern, &mut errors).iter().for_each(|glob| modules.add(text, glob));
    }
    let allow = args.allow.iter().filter_map(|allowed| match allowed {
        Allowed::Bind(allow) => Some(*allow),
        Allowed::Open(_) | Allowed::LowSpace => None,
    });
    let bind = BindOptions::default()
        .axes(args.axes.clone())
        .only(only)
        .drop(drop)
        .modules(modules)
        .strip_prefix(args.strip_prefix.clone())
        .add_prefix(args.add_prefix.clone())
        .tied(args.tied.into())
        .allow(allow)
        .dtype(args.dtype.map(Into::into));
    let allowed = args.allow.iter().filter_map(|allowed| match allowed {
        Allowed::Open(allow) => Some(*allow),
        Allowed::Bind(_) | Allowed::LowSpace => None,
    });
    let open = open_options(&args.open, &allowed.collect::<Vec<_>>());
    let options = ConvertOptions::default()
        .open(open)
        .bind(bind)
        .config(args.config.clone())
        .trust_layout(args.trust_layout)
        .inputs(args.files.mappings.clone());
    errors.finish(options).map(|(options, _)| options)
}

/// Turns what the user typed about opening into what the library takes.
pub(super) fn open_options(args: &OpenArgs, allow: &[OpenAllow]) -> OpenOptions {
    OpenOptions::default()
        .allow_outside_links(allow.contains(&OpenAllow::OutsideLink))
        .root(args.root.clone())
        .void_as(args.void_as.iter().copied().map(Into::into))
        .allow_incomplete(allow.contains(&OpenAllow::Incomplete))
        .max_config(args.max_config_size)
        .max_chunk(args.max_chunk_size)
}

pub(super) fn globs(option: &str, patterns: &[String], errors: &mut Collector) -> Option<GlobSet> {
    if patterns.is_empty() {
        return None;
    }
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        if let Some(glob) = glob(option, pattern, errors) {
            set.add(glob);
        }
    }
    set.build().map_err(|error| errors.push(Diagnostic::error(UsageCode::Glob, error.to_string()))).ok()
}

fn glob(option: &str, pattern: &str, errors: &mut Collector) -> Option<Glob> {
    let built = GlobBuilder::new(pattern).literal_separator(false).build();
    let error = |error: globset::Error| {
        Diagnostic::error(UsageCode::Glob, format!("{option} {pattern}: {}", error.kind())).help(
            "`*` stands for any text, `?` for one character, `[ab]` for one of several, `{a,b}` for either",
        )
    };
    built.map_err(|failed| errors.push(error(failed))).ok()
}
