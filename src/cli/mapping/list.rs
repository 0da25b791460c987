//! `qkvconv mapping list`

use qkvconv::mapping::select::all;

use crate::cli::Exit;
use crate::cli::args::MappingFiles;
use crate::cli::source::read_mappings;
use crate::cli::ui::Ui;

/// Lists all families and layouts.
pub(super) fn run(ui: &Ui, files: &MappingFiles) -> Exit {
    let mappings = match read_mappings(files).and_then(|files| all(&files)) {
        Ok(mappings) => mappings,
        Err(errors) => return ui.fail(&errors),
    };
    for mapping in &mappings {
        let width = mapping.layouts.keys().map(String::len).max().unwrap_or(0) + mapping.family.len() + 1;
        for layout in mapping.layouts.values() {
            let name = format!("{}/{}", mapping.family, layout.name);
            ui.result(&format!("{name:width$}  {}", layout.about));
        }
    }
    Exit::Done
}
