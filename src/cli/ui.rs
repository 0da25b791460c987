//! What a person sees: results on stdout, everything else on stderr; diagnostics with source lines and carets.

use std::cell::OnceCell;
use std::io::{self, IsTerminal, Write};

use annotate_snippets::{Annotation, AnnotationKind, Element, Group, Level, Origin, Renderer, Snippet};
use qkvconv::diag::{Diagnostic, Errors, ExecCode, Severity};
use qkvconv::shown::{escaped, escaped_lines};
use qkvconv::span::Span;

use super::Exit;
use super::args::Colour;
use super::faults::{Fault, Rest, grouped};

/// A line of a mapping file longer than this is cut around the place that is meant, in characters.
const LONGEST_LINE: usize = 120;

/// The terminal.
pub(crate) struct Ui {
    quiet: bool,
    /// Whether the command has `--report`, which tells everything.
    has_report: bool,
    renderer: Renderer,
    colour: Colour,
    /// Whether the command makes files, so that a failure says that it made none.
    writes: bool,
    /// Why results cannot be written.
    unwritten: OnceCell<io::Error>,
}

impl Ui {
    pub(crate) fn new(colour: Colour) -> Ui {
        let renderer =
            if takes_colour(colour, &io::stderr()) { Renderer::styled() } else { Renderer::plain() };
        let unwritten = OnceCell::new();
        Ui { quiet: false, has_report: false, renderer, colour, writes: false, unwritten }
    }

    /// Sets whether errors alone are told.
    pub(crate) fn quiet(mut self, quiet: bool) -> Ui {
        self.quiet = quiet;
        self
    }

    /// Sets whether the command has `--report`.
    pub(crate) fn has_report(mut self, has_report: bool) -> Ui {
        self.has_report = has_report;
        self
    }

    /// Sets whether the command makes files.
    pub(crate) fn writes(mut self, writes: bool) -> Ui {
        self.writes = writes;
        self
    }

    /// Returns whether progress may be drawn.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// Returns how many columns a drawing of results may have.
    pub(crate) fn width(&self) -> usize {
        // A pipe gets what fits any terminal, where nobody says more.
        let told = || std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let own = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
        own.or_else(told).unwrap_or(80)
    }

    /// Returns how many columns a line of results may have, where a terminal shows them.
    pub(crate) fn line_width(&self) -> Option<usize> {
        io::stdout().is_terminal().then(|| self.width())
    }

    /// Returns whether results may be coloured.
    pub(crate) fn is_coloured(&self) -> bool {
        takes_colour(self.colour, &io::stdout())
    }

    /// Writes a line of results. A reader that went away ends the output quietly; [`Ui::end`] tells of anything else.
    pub(crate) fn result(&self, line: &str) {
        self.wrote(writeln!(io::stdout().lock(), "{}", escaped_lines(line)));
    }

    /// Writes a document for programs, which has escapes of its own: JSON.
    pub(crate) fn document(&self, text: &str) {
        self.wrote(writeln!(io::stdout().lock(), "{text}"));
    }

    /// Writes a line of a drawing, which may be coloured; text of unknown origin in it is escaped already.
    pub(crate) fn drawing(&self, line: &str) {
        self.wrote(writeln!(io::stdout().lock(), "{line}"));
    }

    /// Takes note of how writing results went.
    pub(crate) fn wrote(&self, done: io::Result<()>) {
        if let Err(error) = done {
            // The first one is the cause.
            let _ = self.unwritten.set(error);
        }
    }

    /// Ends the run: results that could not be written are a failure, whatever else was found.
    pub(crate) fn end(&self, exit: Exit) -> Exit {
        self.wrote(io::stdout().lock().flush());
        match self.unwritten.get() {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                let error = Diagnostic::error(ExecCode::Write, format!("cannot write the result: {error}"))
                    .file(std::path::Path::new("standard output"))
                    .help("make room where the output goes, or send it elsewhere");
                self.draw(&error, &[], &[]);
                Exit::Failed
            }
            _ => exit,
        }
    }

    /// Writes a line of what was done, unless quiet.
    pub(crate) fn say(&self, line: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{}", escaped_lines(line));
        }
    }

    /// Writes all diagnostics of a failure; many of one kind are told in short.
    pub(crate) fn fail(&self, errors: &Errors) -> Exit {
        let is_shortened = self.diagnostics(errors.diagnostics());
        let count =
            errors.diagnostics().iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count();
        let counted = if count == 1 { "1 error".to_owned() } else { format!("{count} errors") };
        let exit = Exit::from(errors.class());
        let end = match exit {
            Exit::Differs => "; the two checkpoints do not agree",
            _ if self.writes => "; nothing was written",
            _ => "",
        };
        let more = match self.has_report && is_shortened {
            true => "; --report FILE tells each with all its tensors",
            false => "",
        };
        let _ = writeln!(io::stderr().lock(), "qkvconv: {counted}{end}{more}");
        exit
    }

    /// Writes warnings, unless quiet.
    pub(crate) fn warn(&self, warnings: &[Diagnostic]) {
        if !self.quiet {
            let _ = self.diagnostics(warnings);
        }
    }

    /// Writes diagnostics; returns whether anything of them is left out.
    fn diagnostics(&self, diagnostics: &[Diagnostic]) -> bool {
        let (faults, rest) = grouped(diagnostics);
        for fault in &faults {
            self.draw(fault.first, &fault.tensors, &fault.also);
        }
        let is_shortened = !rest.is_empty() || faults.iter().any(Fault::is_shortened);
        for Rest { code, title, also } in rest {
            let severity = diagnostics.iter().find(|one| one.code == code).map(|one| one.severity);
            let rest = match severity {
                Some(Severity::Warning) => Diagnostic::warning(code, title),
                _ => Diagnostic::error(code, title),
            };
            self.draw(&rest, &[], &also);
        }
        is_shortened
    }

    fn draw(&self, diagnostic: &Diagnostic, tensors: &[String], also: &[String]) {
        let text = self.renderer.render(&[group(diagnostic, tensors, also)]);
        let has_excerpt = diagnostic.rule.is_some() || !diagnostic.related.is_empty();
        let _ = writeln!(io::stderr().lock(), "{}\n", but_colours(&tidied(&text, has_excerpt)));
    }
}

/// Escapes what is not shown as itself, but for the colours of the renderer; texts are escaped before it sees them.
fn but_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut all = escaped_lines(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let colour = part.strip_prefix('[').and_then(|part| part.split_once('m'));
        let is_colour = |(digits, _): &(&str, &str)| digits.bytes().all(|b| b.is_ascii_digit() || b == b';');
        let is_colour = colour.as_ref().is_some_and(is_colour);
        all.push_str(if is_colour { "\u{1b}" } else { "\\u{1b}" });
        all.push_str(&escaped_lines(part));
    }
    all
}

/// Takes out the lines that set an excerpt apart from nothing: above a part of a long line, and where there is none.
fn tidied(text: &str, has_excerpt: bool) -> String {
    // Colours are escapes that end with `m`.
    let bare = |line: &str| -> String {
        line.split('\u{1b}').map(|part| part.split_once('m').map_or(part, |(_, behind)| behind)).collect()
    };
    let is_empty = |line: &str| {
        let line = if line.contains('\u{1b}') { bare(line) } else { line.to_owned() };
        line.trim() == ":::" || (!has_excerpt && line.trim() == "|")
    };
    text.lines().filter(|line| !is_empty(line)).collect::<Vec<_>>().join("\n")
}

/// Returns whether what is written there may be coloured. (no-color.org; bixense.com/clicolors)
fn takes_colour(colour: Colour, stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    match colour {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) => false,
        Colour::Auto if is_set("CLICOLOR_FORCE") => true,
        Colour::Auto => stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
    }
}

fn group<'d>(diagnostic: &'d Diagnostic, tensors: &[String], also: &[String]) -> Group<'d> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = level
        .primary_title(escaped(&diagnostic.message).into_owned())
        .id(diagnostic.code.as_str())
        .elements(places(diagnostic));
    let mut note = |name: &'static str, text: String| {
        let message = Level::NOTE.with_name(name).message(escaped_lines(&text).into_owned());
        group = std::mem::replace(&mut group, Group::with_level(Level::NOTE)).element(message);
    };
    if let Some(path) = &diagnostic.file {
        note("file", path.display().to_string());
    }
    for name in tensors {
        note("tensor", name.clone());
    }
    for (name, text) in
        [("expected", &diagnostic.expected), ("found", &diagnostic.found), ("help", &diagnostic.help)]
    {
        if let Some(text) = text {
            note(name, text.clone());
        }
    }
    for line in also {
        note("also", line.clone());
    }
    group
}

/// Draws the places: those in one text together, but for those in long lines, of which each has an excerpt of its own.
fn places(diagnostic: &Diagnostic) -> Vec<Element<'_>> {
    let mut all: Vec<(&Span, AnnotationKind, &str)> = Vec::new();
    all.extend(diagnostic.rule.iter().map(|span| (span, AnnotationKind::Primary, "")));
    all.extend(diagnostic.related.iter().map(|(span, why)| (span, AnnotationKind::Context, why.as_str())));
    let mut snippets: Vec<(&Span, Snippet<'_, Annotation<'_>>)> = Vec::new();
    let mut excerpts: Vec<Element<'_>> = Vec::new();
    for (span, kind, why) in all {
        let label = (!why.is_empty()).then_some(why);
        if let Some(excerpt) = Excerpt::of(span) {
            let (line, column) = span.line_column();
            let origin = Origin::path(span.source.name.as_str()).line(line).char_column(column);
            let annotation = kind.span(excerpt.start..excerpt.end).label(label);
            let snippet = Snippet::source(excerpt.text).line_start(line).annotation(annotation);
            excerpts.extend([Element::from(origin), Element::from(snippet)]);
            continue;
        }
        let annotation = kind.span(span.start..span.end).label(label);
        match snippets.iter_mut().find(|(other, _)| other.source == span.source) {
            Some((_, snippet)) => *snippet = snippet.clone().annotation(annotation),
            None => {
                let snippet = Snippet::source(span.source.text.as_str()).path(span.source.name.as_str());
                snippets.push((span, snippet.annotation(annotation)));
            }
        }
    }
    let whole = snippets.into_iter().map(|(_, snippet)| Element::from(snippet));
    if diagnostic.rule.as_ref().is_some_and(|span| Excerpt::of(span).is_none()) {
        whole.chain(excerpts).collect()
    } else {
        excerpts.into_iter().chain(whole).collect()
    }
}

/// A part of a long line, around a place in it.
struct Excerpt {
    text: String,
    /// Where the place begins in it, in bytes.
    start: usize,
    /// Where it ends.
    end: usize,
}

impl Excerpt {
    /// Cuts the line around the place, where it is too long to be shown whole.
    fn of(span: &Span) -> Option<Excerpt> {
        let text = &span.source.text;
        let line_start = text.get(..span.start)?.rfind('\n').map_or(0, |at| at + 1);
        let line_end = text.get(span.start..)?.find('\n').map_or(text.len(), |at| span.start + at);
        if text.get(line_start..line_end)?.chars().count() <= LONGEST_LINE {
            return None;
        }
        let shown = |text: &str, count: usize| text.chars().take(count).map(char::len_utf8).sum::<usize>();
        let end = span.end.min(line_end);
        let end = span.start + shown(text.get(span.start..end)?, LONGEST_LINE / 2);
        let before = text.get(line_start..span.start)?;
        let kept: usize = before.chars().rev().take(LONGEST_LINE / 3).map(char::len_utf8).sum();
        let from = span.start - kept;
        let to = end + shown(text.get(end..line_end)?, LONGEST_LINE / 3);
        let head = if from > line_start { "…" } else { "" };
        let tail = if to < line_end { "…" } else { "" };
        let moved = |at: usize| at - from + head.len();
        let text = format!("{head}{}{tail}", text.get(from..to)?);
        Some(Excerpt { text, start: moved(span.start), end: moved(end) })
    }
}
