//! The one layout that a checkpoint has, or in words why there is none or several.

use super::Candidate;
use crate::catalog::Catalog;
use crate::claims::Standing;
use crate::diag::{DetectCode, Diagnostic, Errors};
use crate::mapping::Layout;

/// Returns the one layout that a checkpoint has.
///
/// # Errors
/// Returns `detect/none` where nothing fits, and `detect/several` with what would tell them apart.
pub fn only<'a>(candidates: &'a [Candidate], catalog: &Catalog) -> Result<&'a Candidate, Errors> {
    let fitting: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.fits()).collect();
    match fitting[..] {
        [one] => Ok(one),
        [first, ..] if first.recorded => Ok(first),
        [] => Err(none(candidates, catalog).into()),
        _ => {
            let names: Vec<String> =
                fitting.iter().map(|it| format!("{} ({})", it.name(), it.coverage())).collect();
            let message = "several layouts explain the checkpoint, and nothing in it tells them apart";
            let diagnostic = Diagnostic::error(DetectCode::Several, message).file(&catalog.path);
            let diagnostic = diagnostic.found(names.join(", ")).help(format!(
                "{}; say which with --from, as in --from {}",
                apart(&fitting).join("; "),
                fitting[0].name()
            ));
            Err(diagnostic.into())
        }
    }
}

/// Returns a whole model's layout that explains all but a few kinds of tensors, with their patterns; one that lists the
/// model that the checkpoint names before others.
pub fn nearly_whole(candidates: &[Candidate]) -> Option<(&Candidate, Vec<String>)> {
    let nearly = candidates.iter().filter_map(|it| Some((it, it.all_but_few()?)));
    nearly.min_by_key(|(it, _)| (it.standing != Standing::Listed, it.total - it.matched))
}

/// Says that no layout fits, which come nearest, and what is in their way.
fn none(candidates: &[Candidate], catalog: &Catalog) -> Diagnostic {
    const NEAREST: usize = 3;
    let diagnostic =
        Diagnostic::error(DetectCode::None, "no known layout explains the checkpoint").file(&catalog.path);
    let nearest: Vec<String> = candidates
        .iter()
        .take(NEAREST)
        .map(|candidate| {
            let obstacle = candidate.obstacle.as_deref().unwrap_or_default();
            format!("{} ({}; {obstacle})", candidate.name(), candidate.coverage())
        })
        .collect();
    let diagnostic = match nearest.is_empty() {
        true => diagnostic.found("no rule of these layouts matches a name"),
        false => diagnostic.found(format!("nearest: {}", nearest.join("; "))),
    };
    match nearly_whole(candidates) {
        Some((candidate, rest)) => {
            let globs: Vec<String> = rest.iter().map(|glob| format!("--drop '{glob}'")).collect();
            diagnostic.help(format!(
                "if these tensors are no part of the model that you want: --from {} {}",
                candidate.name(),
                globs.join(" ")
            ))
        }
        None => diagnostic
            .help("name the layout with --from, or write a mapping file for it (`qkvconv mapping new`)"),
    }
}

/// Returns what would tell fitting layouts apart, in words: at least one line.
pub fn apart(fitting: &[&Candidate]) -> Vec<String> {
    let mut lines = Vec::new();
    for candidate in fitting {
        let own = |text: &&String| !fitting.iter().all(|other| other.told_by.contains(*text));
        let told: Vec<&str> = candidate.told_by.iter().filter(own).map(String::as_str).collect();
        if !told.is_empty() {
            lines.push(format!("{} is told by {}", candidate.name(), told.join(" and ")));
        }
    }
    let bare: Vec<String> = fitting
        .iter()
        .filter(|candidate| candidate.told_by.is_empty())
        .map(|candidate| format!("`qkvconv inspect --evidence --from {}`", candidate.name()))
        .collect();
    if lines.len() < 2 && !bare.is_empty() {
        lines.push(format!(
            "they name and shape all tensors alike; trained weights may tell: compare {}",
            bare.join(" and ")
        ));
    }
    if lines.is_empty() {
        lines.push("no config tells them apart".to_owned());
    }
    lines
}

/// Returns what tells a layout beside names and shapes.
pub(super) fn told_by(layout: &Layout) -> Vec<String> {
    let mut told = Vec::new();
    if !layout.models.is_empty() {
        let models: Vec<String> = layout.models.iter().map(|name| format!("`{name}`")).collect();
        told.push(format!("a config whose `model_type` is {}", models.join(" or ")));
    }
    for condition in &layout.when {
        told.push(format!("a config whose `{}` is {}", condition.key, condition.allowed_words()));
    }
    told
}
