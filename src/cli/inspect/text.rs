//! What a person reads of a checkpoint: a summary that fits a screen and what can be done next, or everything.

use indicatif::HumanBytes;
use qkvconv::claims::Standing;
use qkvconv::detect::{Candidate, apart, nearly_whole};
use qkvconv::inspect::Kind;

use super::{Look, MOST_NAMED};

/// How many kinds of tensors that nothing explains are named.
const MOST_UNEXPLAINED: usize = 12;

/// How many kinds of tensors are told; the JSON has all.
const MOST_KINDS: usize = 400;

/// How many kinds of tensors with heads a summary tells, and how many other layouts it names.
const MOST_IN_SUMMARY: usize = 8;

/// What is told of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// What fits a screen.
    Summary,
    /// Every kind of tensor.
    All,
    /// Every kind of tensor, with pictures of those that hold heads.
    Pictures,
}

impl Look<'_> {
    /// Returns the lines of a report for a person; `source` is what the checkpoint was called.
    pub(super) fn lines(&self, detail: Detail, width: usize, source: &str) -> Vec<String> {
        let dtypes: Vec<String> =
            self.dtypes().iter().map(|(dtype, count)| format!("{count} {dtype}")).collect();
        let mut lines = vec![format!(
            "{}: {}, {} in {} tensors ({})",
            self.catalog.path.display(),
            self.reader.format(),
            HumanBytes(self.bytes()),
            self.catalog.tensors.len(),
            dtypes.join(", ")
        )];
        if self.files() > 1 {
            lines.push(format!("{} files", self.files()));
        }
        lines.extend(self.layout_lines());
        if let Some(modules) = self.modules() {
            lines.push(format!("modules: {}", some_of(&modules)));
        }
        lines.extend(self.size_lines());
        let kinds = self.kinds();
        match detail {
            Detail::Summary => lines.extend(self.summary(&kinds)),
            _ => lines.extend(self.kind_lines(&kinds, detail == Detail::Pictures, width)),
        }
        lines.extend(self.unexplained_lines(detail));
        let ties = self.ties();
        lines.extend(ties.iter().take(MOST_NAMED).map(|group| format!("tied: {}", group.join(" = "))));
        if ties.len() > MOST_NAMED {
            lines.push(format!("tied: … and {} more groups; --json names all", ties.len() - MOST_NAMED));
        }
        if detail == Detail::Summary {
            lines.extend(self.next_lines(source));
        }
        lines
    }

    fn size_lines(&self) -> Vec<String> {
        let (Some(bound), Some((_, mapping, _))) = (self.bound(), self.fit) else { return Vec::new() };
        let line = |size: &qkvconv::bind::Size| {
            let about = mapping.axes.get(&size.axis).map_or("", |axis| &axis.about);
            format!("  {} = {}  {about}, from {}", size.axis, size.value, size.origin)
        };
        std::iter::once("sizes".to_owned()).chain(bound.sizes.iter().map(line)).collect()
    }

    /// Says where heads lie, in a few lines.
    fn summary(&self, kinds: &[Kind]) -> Vec<String> {
        let with_heads: Vec<&Kind> =
            kinds.iter().filter(|kind| kind.parts.iter().any(|part| part.heads.is_some())).collect();
        let mut lines = Vec::new();
        if !with_heads.is_empty() {
            lines.push("heads".to_owned());
        }
        for kind in with_heads.iter().take(MOST_IN_SUMMARY) {
            let first = kind.words().into_iter().next().unwrap_or_default();
            let names = kind.names.first().map_or("", String::as_str);
            lines.push(format!("  {names} {:?}  {first}", kind.shape));
        }
        if kinds.len() > with_heads.len().min(MOST_IN_SUMMARY) {
            lines.push(format!("{} kinds of tensors in all; --all tells each", kinds.len()));
        }
        lines
    }

    fn unexplained_lines(&self, detail: Detail) -> Vec<String> {
        let unexplained = self.unexplained();
        let most = if detail == Detail::Summary { 3 } else { MOST_UNEXPLAINED };
        if unexplained.is_empty() {
            return Vec::new();
        }
        if detail == Detail::Summary {
            let more = match unexplained.len().checked_sub(most) {
                None | Some(0) => String::new(),
                Some(more) => format!(", … and {more} more kinds"),
            };
            let named: Vec<&str> = unexplained.iter().take(most).map(String::as_str).collect();
            return vec![format!("held by no rule: {}{more}", named.join(", "))];
        }
        let mut lines = vec!["held by no rule".to_owned()];
        lines.extend(unexplained.iter().take(most).map(|name| format!("  {name}")));
        if unexplained.len() > most {
            lines.push(format!("  … and {} more kinds", unexplained.len() - most));
        }
        lines
    }

    /// Says what can be done with it: the layouts that it can be converted to, and the command.
    fn next_lines(&self, source: &str) -> Vec<String> {
        let Some((candidate, mapping, layout)) = self.fit.filter(|_| self.bound().is_some()) else {
            return Vec::new();
        };
        let others: Vec<&str> =
            mapping.layouts.keys().map(String::as_str).filter(|name| *name != layout.name).collect();
        let Some(to) = others.first() else { return Vec::new() };
        let named = others.iter().take(MOST_IN_SUMMARY).copied().collect::<Vec<_>>().join(", ");
        let more = match others.len().checked_sub(MOST_IN_SUMMARY) {
            None | Some(0) => String::new(),
            Some(more) => format!(", … and {more} more (`qkvconv mapping list {}/`)", mapping.family),
        };
        let family = &mapping.family;
        vec![
            format!("other layouts of {family}: {named}{more}"),
            format!("  qkvconv --from {} --to {family}/{to} {} out/", candidate.name(), quoted(source)),
        ]
    }

    fn layout_lines(&self) -> Vec<String> {
        let describe = |candidate: &Candidate| {
            let mut text = candidate.name();
            if !candidate.same_as.is_empty() {
                text.push_str(&format!(" (the same here as {})", candidate.same_as.join(", ")));
            }
            if candidate.recorded {
                text.push_str(", as the file records");
            }
            if candidate.bound.is_none() && candidate.fits() {
                text.push_str(&format!("; {}: give it with --axis or --config", candidate.open.join("; ")));
            }
            format!("{text}: {} of {} tensors", candidate.matched, candidate.total)
        };
        let fitting: Vec<&Candidate> = self.candidates.iter().filter(|candidate| candidate.fits()).collect();
        let unknown = fitting.iter().find_map(|candidate| match &candidate.standing {
            Standing::Unknown { model, place } => Some(format!("{place} = `{model}`, which no layout lists")),
            _ => None,
        });
        let mut lines = match (self.fit, &fitting[..]) {
            (Some((candidate, ..)), _) => {
                let mut lines = vec![format!("layout {}", describe(candidate))];
                if let Some((other, rest)) = nearly_whole(self.candidates).filter(|_| !candidate.whole) {
                    let drop: Vec<String> =
                        rest.iter().map(|glob| format!(" --drop {}", quoted(glob))).collect();
                    lines.push(format!("  as a whole model with: --from {}{}", other.name(), drop.concat()));
                }
                lines
            }
            (None, []) => {
                let mut lines = vec!["layout: none that is known".to_owned()];
                for candidate in self.candidates.iter().take(3) {
                    let obstacle = candidate.obstacle.as_deref().unwrap_or_default();
                    lines.push(format!("  nearest {}; {obstacle}", describe(candidate)));
                }
                lines
            }
            (None, several) => {
                let mut lines = vec!["layout: one of these; say which with --from".to_owned()];
                lines.extend(several.iter().map(|candidate| format!("  {}", describe(candidate))));
                lines.extend(apart(several));
                lines
            }
        };
        lines.extend(unknown);
        lines
    }

    fn kind_lines(&self, kinds: &[Kind], pictures: bool, width: usize) -> Vec<String> {
        let mut lines = Vec::new();
        if !kinds.is_empty() {
            lines.push("tensors".to_owned());
        }
        for kind in kinds.iter().take(MOST_KINDS) {
            lines.push(format!("  {}  {} {:?}", some_of(&kind.names), kind.dtype, kind.shape));
            lines.extend(kind.words().into_iter().map(|line| format!("      {line}")));
            let has_picture = pictures && kind.parts.iter().any(|part| part.head.is_some());
            if let Some(example) = kind.example.filter(|_| has_picture) {
                lines.extend(
                    self.drawing(example, width, false).into_iter().map(|line| format!("      {line}")),
                );
            }
        }
        if kinds.len() > MOST_KINDS {
            lines.push(format!("  … and {} more kinds; --json tells all", kinds.len() - MOST_KINDS));
        }
        lines
    }
}

/// Returns a word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Lists names, of very many the first.
fn some_of(names: &[String]) -> String {
    match names.len().checked_sub(MOST_NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{}, … and {more} more; --json names all", names[..MOST_NAMED].join(", ")),
    }
}
