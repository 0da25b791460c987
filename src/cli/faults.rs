//! Faults of a large checkpoint, so that a person can read them: of many of one kind the first are told whole, the
//! others in a line each, and what is beyond that is counted.

use indexmap::IndexMap;
use qkvconv::diag::{Code, Diagnostic};
use qkvconv::shown::escaped;

/// So many faults of one kind at rules of a mapping are told whole, each by itself.
const MOST_OF_A_KIND: usize = 5;
/// As many of other kinds.
const MOST_WITHOUT_RULE: usize = 12;
/// So many faults of one kind are told whole that are no tensor's, each of which is looked for.
const MOST_ALONE: usize = 40;
/// Of more, those at so many places are told whole.
const MOST_PLACES: usize = 3;
/// So many faults at the place of one that is told whole, and as many at other places, are told in a line each.
const MOST_LINES: usize = 8;
/// The most tensors, folded, that one fault lists.
const MOST_TENSORS: usize = 12;
/// As many where a kind has more than [`FEW`] faults.
const MOST_TENSORS_OF_MANY: usize = 4;
/// So many faults of one kind are few.
const FEW: usize = 2;

/// A fault that is told whole, and lines on others like it.
#[derive(Debug)]
pub(super) struct Fault<'a> {
    pub(super) first: &'a Diagnostic,
    /// The names of its tensors, folded, at most as many as a reader takes in.
    pub(super) tensors: Vec<String>,
    /// Whether there are more of them.
    is_cut: bool,
    /// A line on each other one, and on how many there are beyond these.
    pub(super) also: Vec<String>,
}

/// Lines on the faults of one kind at further places.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) code: Code,
    pub(super) title: String,
    pub(super) also: Vec<String>,
}

/// Groups faults of a checkpoint's tensors by kind and by place; others, each of which is looked for, stay alone.
pub(super) fn grouped(diagnostics: &[Diagnostic]) -> (Vec<Fault<'_>>, Vec<Rest>) {
    let mut kinds: IndexMap<_, Vec<&Diagnostic>> = IndexMap::new();
    for diagnostic in diagnostics.iter().filter(|diagnostic| is_of_tensors(diagnostic)) {
        kinds.entry((diagnostic.code, diagnostic.rule.is_some())).or_default().push(diagnostic);
    }
    let (mut faults, mut rest) = (Vec::new(), Vec::new());
    let mut alone: IndexMap<Code, Vec<&Diagnostic>> = IndexMap::new();
    for first in diagnostics {
        let most = if first.rule.is_some() { MOST_OF_A_KIND } else { MOST_WITHOUT_RULE };
        if !is_of_tensors(first) {
            let alike = alone.entry(first.code).or_default();
            alike.push(first);
            if alike.len() <= MOST_ALONE {
                faults.push(Fault::new(first, 1, Vec::new()));
            }
            continue;
        }
        let all = kinds.get_mut(&(first.code, first.rule.is_some()));
        let count = all.as_ref().map_or(0, |all| all.len());
        match all.filter(|all| all.len() > most || all.is_empty()).map(std::mem::take) {
            None => faults.push(Fault::new(first, count, Vec::new())),
            // All of them stand where the first stands.
            Some(all) => rest.extend(by_place(first.code, all, &mut faults)),
        }
    }
    for (code, alike) in alone {
        if let Some(others) = alike.get(MOST_ALONE..).filter(|others| !others.is_empty()) {
            let title = format!("{} more of this kind", others.len());
            rest.push(Rest { code, title, also: lines(others, elsewhere) });
        }
    }
    (faults, rest)
}

fn is_of_tensors(diagnostic: &Diagnostic) -> bool {
    diagnostic.file.is_some() && (diagnostic.rule.is_some() || !diagnostic.tensors.is_empty())
}

/// Adds the faults of one kind at the first places; returns lines on those at others.
fn by_place<'d>(code: Code, all: Vec<&'d Diagnostic>, faults: &mut Vec<Fault<'d>>) -> Option<Rest> {
    let count = all.len();
    let mut places: IndexMap<_, Vec<&Diagnostic>> = IndexMap::new();
    for diagnostic in all {
        let rule = diagnostic.rule.as_ref().map(|span| (&span.source.name, span.start));
        places.entry((&diagnostic.file, rule)).or_default().push(diagnostic);
    }
    let mut others = Vec::new();
    for (at, all) in places.into_values().enumerate() {
        match &all[..] {
            [first, also @ ..] if at < MOST_PLACES => {
                faults.push(Fault::new(first, count, lines(also, |other| beside(first, other))));
            }
            _ => others.extend(all),
        }
    }
    let title = format!("{} more of this kind at other places", others.len());
    (!others.is_empty()).then(|| Rest { code, title, also: lines(&others, elsewhere) })
}

/// Makes a line of each, and one of how many there are beyond the most.
fn lines(all: &[&Diagnostic], line: impl Fn(&Diagnostic) -> String) -> Vec<String> {
    let (told, counted) = all.split_at(all.len().min(MOST_LINES));
    let mut lines: Vec<String> = told.iter().map(|diagnostic| line(diagnostic)).collect();
    if !counted.is_empty() {
        let tensors: usize = counted.iter().map(|diagnostic| diagnostic.tensors.len()).sum();
        lines.push(match tensors {
            0 => format!("… and {} more", counted.len()),
            _ => format!("… and {} more, {tensors} tensors", counted.len()),
        });
    }
    lines
}

/// Tells a fault at the place of another one by what differs.
fn beside(first: &Diagnostic, other: &Diagnostic) -> String {
    let tensors = tensors_in_a_line(other);
    if other.message != first.message {
        return joined([Some(other.message.clone()), tensors]);
    }
    let differs = |own: &Option<String>, its: &Option<String>| own.clone().filter(|_| own != its);
    let found = differs(&other.found, &first.found).map(|found| format!("found {found}"));
    joined([tensors, found, differs(&other.help, &first.help)])
}

/// Tells a fault at a place of its own.
fn elsewhere(other: &Diagnostic) -> String {
    let place = other.rule.as_ref().map(qkvconv::span::Span::place);
    joined([Some(other.message.clone()), tensors_in_a_line(other), place])
}

fn joined(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn tensors_in_a_line(diagnostic: &Diagnostic) -> Option<String> {
    let folded = diagnostic.folded_tensors();
    let first = shortened(folded.first()?);
    Some(match folded.len() {
        1 => first,
        _ => format!("{first} and others, {} tensors", diagnostic.tensors.len()),
    })
}

impl Fault<'_> {
    /// Returns whether anything of it, or of others like it, is left out.
    pub(super) fn is_shortened(&self) -> bool {
        self.is_cut || !self.also.is_empty()
    }

    /// Makes a fault of a kind of which there are so many.
    fn new(first: &Diagnostic, count: usize, also: Vec<String>) -> Fault<'_> {
        let most = if count <= FEW { MOST_TENSORS } else { MOST_TENSORS_OF_MANY };
        let folded = first.folded_tensors();
        let is_cut = folded.len() > most;
        let mut tensors: Vec<String> = folded.iter().take(most).map(|name| shortened(name)).collect();
        if is_cut {
            let (more, all) = (folded.len() - most, first.tensors.len());
            tensors.push(format!("… and {more} more; {all} tensors in all"));
        }
        Fault { first, tensors, is_cut, also }
    }
}

/// A tensor's name longer than this is shortened in messages.
const LONGEST_NAME: usize = 160;

/// Makes a name of a hostile length or with control characters fit for a terminal.
fn shortened(name: &str) -> String {
    let escaped = escaped(name).into_owned();
    let length = escaped.chars().count();
    if length <= LONGEST_NAME {
        return escaped;
    }
    let half = LONGEST_NAME / 2;
    let head: String = escaped.chars().take(half).collect();
    let tail: String = escaped.chars().skip(length - half).collect();
    format!("{head}…{tail} ({length} characters)")
}
