//! `qkvconv mapping list [WORD]`

use clap::Args;
use qkvconv::diag::{Diagnostic, UsageCode};
use qkvconv::mapping::select::all;
use qkvconv::mapping::{Layout, Mapping};
use serde_json::json;

use crate::cli::Exit;
use crate::cli::args::MappingFiles;
use crate::cli::source::read_mappings;
use crate::cli::ui::Ui;

/// What is listed.
#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    /// A word that the names of what is listed hold: of a family, of a layout or of a model type.
    #[arg(value_name = "WORD")]
    word: Option<String>,

    #[command(flatten)]
    files: MappingFiles,

    /// Print a JSON list of objects with `family`, `layout`, `about` and `models`.
    #[arg(long)]
    json: bool,
}

/// Lists families and layouts.
pub(super) fn run(ui: &Ui, args: &ListArgs) -> Exit {
    let mappings = match read_mappings(&args.files).and_then(|files| all(&files)) {
        Ok(mappings) => mappings,
        Err(errors) => return ui.fail(&errors),
    };
    let word = args.word.as_deref().unwrap_or_default().to_lowercase();
    let wanted = |mapping: &Mapping, layout: &Layout| {
        let mut names = vec![format!("{}/{}", mapping.family, layout.name)];
        names.extend(layout.models.iter().cloned());
        names.iter().any(|name| name.to_lowercase().contains(&word))
    };
    let listed: Vec<(&Mapping, Vec<&Layout>)> = mappings
        .iter()
        .map(|mapping| (mapping, mapping.layouts.values().filter(|layout| wanted(mapping, layout)).collect()))
        .filter(|(_, layouts): &(_, Vec<_>)| !layouts.is_empty())
        .collect();
    if listed.is_empty() {
        let message = format!(
            "no layout and no model type has `{}` in its name",
            args.word.as_deref().unwrap_or_default()
        );
        let error = Diagnostic::error(UsageCode::Name, message);
        return ui.fail(&error.help("`qkvconv mapping list` lists all").into());
    }
    if args.json {
        let entry = |mapping: &Mapping, layout: &Layout| json!({ "family": mapping.family, "layout": layout.name, "about": layout.about, "models": layout.models });
        let all =
            listed.iter().flat_map(|(mapping, layouts)| layouts.iter().map(|layout| entry(mapping, layout)));
        ui.document(&format!("{:#}", all.collect::<serde_json::Value>()));
        return Exit::Done;
    }
    let width = ui.line_width().unwrap_or(usize::MAX);
    for (mapping, layouts) in listed {
        ui.result(&cut(&format!("{}: {}", mapping.family, mapping.about), width));
        let widest = layouts.iter().map(|layout| layout.name.chars().count()).max().unwrap_or(0);
        let widest = widest + mapping.family.chars().count() + 1;
        for layout in layouts {
            let name = format!("{}/{}", mapping.family, layout.name);
            ui.result(&cut(&format!("  {name:widest$}  {}", layout.about), width));
        }
    }
    Exit::Done
}

/// Cuts a line so that it fits.
fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}
