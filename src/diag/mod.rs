//! Diagnostics as data: what is wrong, where, what was expected, what was found and what to do.
//!
//! Nothing here prints. The command line draws diagnostics (`src/cli/ui.rs`); a test compares [`Diagnostic::code`], and
//! [`crate::codes`] documents each code.

mod code;
mod nearest;

use std::fmt;
use std::path::{Path, PathBuf};

pub use code::*;
pub use nearest::{nearest, nearest_key};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::fold::fold_keys;
use crate::shown::escaped;
use crate::span::Span;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Nothing is written.
    Error,
    /// Worth knowing; the work goes on.
    Warning,
}

impl Severity {
    /// Returns `error` or `warning`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// One thing that is wrong with a mapping file, a checkpoint, or the two held against each other.
///
/// ```
/// use qkvconv::diag::BindCode;
/// use qkvconv::{ConvertOptions, Conversion, select};
///
/// // Nothing tells the number of heads of this file but a config, and here is none.
/// let layouts = select("attention/pytorch-fused", "attention/per-head", &[])?;
/// # let scratch = tempfile::tempdir()?;
/// # let source = scratch.path().join("model.safetensors");
/// # std::fs::copy("tests/data/digits/model.safetensors", &source)?;
/// let failed = Conversion::prepare(&layouts, &source, &ConvertOptions::default());
/// let errors = failed.expect_err("a size is open");
/// let first = &errors.diagnostics()[0];
/// assert_eq!(first.code, BindCode::OpenSize);
/// println!("{}: {}", first.message, first.help.as_deref().unwrap_or_default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about; [`crate::codes`] documents each code.
    pub code: Code,
    /// What is wrong: one lower-case clause without a final period.
    pub message: String,
    /// The checkpoint file or folder.
    pub file: Option<PathBuf>,
    /// The tensors that it concerns, by their names in the checkpoint.
    pub tensors: Vec<String>,
    /// The rule's place in a mapping file.
    pub rule: Option<Span>,
    /// Other places worth seeing, each with a word on why.
    pub related: Vec<(Span, String)>,
    /// What would have been right.
    pub expected: Option<String>,
    /// What was there instead.
    pub found: Option<String>,
    /// What to do.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Starts an error.
    pub fn error(code: impl Into<Code>, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            code: code.into(),
            message: message.into(),
            file: None,
            tensors: Vec::new(),
            rule: None,
            related: Vec::new(),
            expected: None,
            found: None,
            help: None,
        }
    }

    /// Starts a warning.
    pub fn warning(code: impl Into<Code>, message: impl Into<String>) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(code, message) }
    }

    /// Names the checkpoint file.
    pub fn file(mut self, path: &Path) -> Diagnostic {
        self.file = Some(path.to_owned());
        self
    }

    /// Names a tensor.
    pub fn tensor(mut self, key: impl Into<String>) -> Diagnostic {
        self.tensors.push(key.into());
        self
    }

    /// Points at a place in a mapping file.
    pub fn rule(mut self, span: &Span) -> Diagnostic {
        self.rule = Some(span.clone());
        self
    }

    /// Points at a second place.
    pub fn related(mut self, span: &Span, why: impl Into<String>) -> Diagnostic {
        self.related.push((span.clone(), why.into()));
        self
    }

    /// Says what would have been right.
    pub fn expected(mut self, text: impl Into<String>) -> Diagnostic {
        self.expected = Some(text.into());
        self
    }

    /// Says what was there instead.
    pub fn found(mut self, text: impl Into<String>) -> Diagnostic {
        self.found = Some(text.into());
        self
    }

    /// Says what to do.
    pub fn help(mut self, text: impl Into<String>) -> Diagnostic {
        self.help = Some(text.into());
        self
    }

    /// Returns the tensors' names with their indices folded, `layers.{0..31}.q_proj.weight (32)`.
    pub fn folded_tensors(&self) -> Vec<String> {
        fold_keys(self.tensors.iter().map(String::as_str))
    }
}

/// As every JSON of the tool has it: `severity`, `code`, `message`, `file`, `tensors` (folded), `rule` (its place),
/// `expected`, `found` and `help`; null where there is none.
impl Serialize for Diagnostic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Diagnostic", 9)?;
        fields.serialize_field("severity", self.severity.as_str())?;
        fields.serialize_field("code", &self.code)?;
        fields.serialize_field("message", &self.message)?;
        // A path need not be text.
        fields.serialize_field("file", &self.file.as_ref().map(|path| path.display().to_string()))?;
        fields.serialize_field("tensors", &self.folded_tensors())?;
        fields.serialize_field("rule", &self.rule.as_ref().map(Span::place))?;
        fields.serialize_field("expected", &self.expected)?;
        fields.serialize_field("found", &self.found)?;
        fields.serialize_field("help", &self.help)?;
        fields.end()
    }
}

/// Everything in lines, as an `unwrap` or a test shows it. Tensors are folded, of many only the first are told.
impl fmt::Debug for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 8;
        write!(f, "{}[{}]: {}", self.severity.as_str(), self.code, escaped(&self.message))?;
        let mut line = |name: &str, text: &str| write!(f, "\n  {name}: {}", escaped(text));
        if let Some(file) = &self.file {
            line("file", &file.display().to_string())?;
        }
        let tensors = self.folded_tensors();
        tensors.iter().take(MOST).try_for_each(|key| line("tensor", key))?;
        if tensors.len() > MOST {
            line("tensor", &format!("… and {} more kinds of names", tensors.len() - MOST))?;
        }
        if let Some(rule) = &self.rule {
            line("rule", &rule.place())?;
        }
        for (span, why) in &self.related {
            line("related", &format!("{}, {why}", span.place()))?;
        }
        for (name, text) in [("expected", &self.expected), ("found", &self.found), ("help", &self.help)] {
            text.iter().try_for_each(|text| line(name, text))?;
        }
        Ok(())
    }
}

/// One or more diagnostics; at least one is an error.
#[derive(Clone, PartialEq, Eq)]
pub struct Errors(Vec<Diagnostic>);

impl Errors {
    /// Returns the diagnostics, those that differ in nothing but the tensor merged into one.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.0
    }
}

impl Errors {
    /// Puts the diagnostics in the order of their places, as one reads a file; those without a place come first.
    pub fn by_place(mut self) -> Errors {
        self.0.sort_by_key(|diagnostic| {
            diagnostic.rule.as_ref().map(|span| (span.source.name.clone(), span.start))
        });
        self
    }

    /// Adds a diagnostic.
    pub(crate) fn and(mut self, diagnostic: Diagnostic) -> Errors {
        self.0.push(diagnostic);
        self
    }

    /// Adds a way out to the first diagnostic.
    pub(crate) fn helped(mut self, help: &str) -> Errors {
        if let Some(first) = self.0.first_mut() {
            first.help = Some(match first.help.take() {
                Some(first) => format!("{first}; {help}"),
                None => help.to_owned(),
            });
        }
        self
    }

    /// Names a file in the diagnostics of that stage that name none.
    pub(crate) fn in_file(self, stage: Stage, path: &Path) -> Errors {
        self.named(path, |code| code.stage() == stage)
    }

    /// Names the output in failures to write it that name no file.
    pub(crate) fn written_to(self, path: &Path) -> Errors {
        self.named(path, |code| code == ExecCode::Write)
    }

    /// Gives all diagnostics that code, as where a command's own stands for those of what it uses.
    pub(crate) fn with_code(mut self, code: impl Into<Code>) -> Errors {
        let code = code.into();
        self.0.iter_mut().for_each(|diagnostic| diagnostic.code = code);
        self
    }

    fn named(mut self, path: &Path, is_of: impl Fn(Code) -> bool) -> Errors {
        for diagnostic in self.0.iter_mut().filter(|other| is_of(other.code) && other.file.is_none()) {
            diagnostic.file = Some(path.to_owned());
        }
        self
    }

    /// Returns whether a diagnostic has that code.
    pub fn has(&self, code: impl Into<Code>) -> bool {
        let code = code.into();
        self.0.iter().any(|diagnostic| diagnostic.code == code)
    }

    /// Returns what a run that ends with these has come to: what was cancelled says nothing of what it would have found,
    /// and where all is a matter of usage nothing was looked at.
    pub fn class(&self) -> Class {
        let mut classes = self.0.iter().map(|diagnostic| diagnostic.code.class());
        let any = |class: Class| self.0.iter().any(|diagnostic| diagnostic.code.class() == class);
        if any(Class::Cancelled) {
            Class::Cancelled
        } else if any(Class::Differs) {
            Class::Differs
        } else if classes.all(|class| class == Class::Usage) {
            Class::Usage
        } else {
            Class::Failed
        }
    }
}

impl From<Diagnostic> for Errors {
    fn from(diagnostic: Diagnostic) -> Errors {
        Errors(vec![diagnostic])
    }
}

impl fmt::Debug for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, diagnostic) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { "\n" };
            write!(f, "{separator}{diagnostic:?}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, diagnostic) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { "; " };
            write!(f, "{separator}{}", diagnostic.message)?;
            for key in diagnostic.folded_tensors() {
                write!(f, ", {key}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// Collects diagnostics while a stage works, so that all of them are shown together.
#[derive(Debug, Default)]
pub struct Collector {
    diagnostics: Vec<Diagnostic>,
}

impl Collector {
    /// Adds one.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Adds all of another stage's.
    pub fn extend(&mut self, errors: Errors) {
        self.diagnostics.extend(errors.0);
    }

    /// Returns whether an error was collected.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// Ends a stage: `value` and the warnings, or all diagnostics where one is an error.
    ///
    /// # Errors
    /// Returns everything that was collected where any of it is an error.
    pub fn finish<T>(self, value: T) -> Result<(T, Vec<Diagnostic>), Errors> {
        let failed = self.has_errors();
        let merged = merge(self.diagnostics);
        if failed { Err(Errors(merged)) } else { Ok((value, merged)) }
    }
}

/// Merges diagnostics that differ in the tensor alone, in order of first appearance.
fn merge(diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut merged: Vec<Diagnostic> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for mut diagnostic in diagnostics {
        let tensors = std::mem::take(&mut diagnostic.tensors);
        let rule = diagnostic.rule.as_ref().map(|span| (span.source.name.clone(), span.start));
        let key = (
            diagnostic.code,
            diagnostic.message.clone(),
            diagnostic.file.clone(),
            rule,
            diagnostic.expected.clone(),
            diagnostic.found.clone(),
            diagnostic.help.clone(),
        );
        let place = *places.entry(key).or_insert(merged.len());
        if place == merged.len() {
            merged.push(diagnostic);
        }
        for key in tensors {
            if merged[place].tensors.last() != Some(&key) {
                merged[place].tensors.push(key);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_complaints_about_many_tensors_become_one() {
        let mut collector = Collector::default();
        for layer in 0..3 {
            collector.push(
                Diagnostic::error(DataCode::Unequal, "it is wrong").tensor(format!("layers.{layer}.w")),
            );
        }
        collector.push(Diagnostic::error(DataCode::Unequal, "it is wrong otherwise").tensor("w"));
        let errors = collector.finish(()).expect_err("has errors");
        assert_eq!(errors.diagnostics().len(), 2);
        assert_eq!(errors.diagnostics()[0].folded_tensors(), ["layers.{0..2}.w (3)"]);
    }

    #[test]
    fn what_an_unwrap_shows_can_be_read() {
        let text = "{ }\n".repeat(20_000);
        let source = std::sync::Arc::new(crate::span::Source { name: "mapping.json".into(), text });
        let mut collector = Collector::default();
        for layer in 0..200 {
            let error = Diagnostic::error(DataCode::Unequal, "it is wrong").file("m.safetensors".as_ref());
            let error = error.tensor(format!("layers.{layer}.q")).rule(&Span::new(&source, 4, 7));
            collector.push(error.related(&Span::new(&source, 8, 9), "the other").help("mend\u{1b}it"));
        }
        let errors = collector.finish(()).expect_err("has errors");
        assert_eq!(
            format!("{errors:?}"),
            "error[data/unequal]: it is wrong\n  file: m.safetensors\n  tensor: layers.{0..199}.q (200)\n  rule: mapping.json:2:1\n  \
             related: mapping.json:3:1, the other\n  help: mend\\u{1b}it"
        );
    }

    #[test]
    fn warnings_alone_do_not_fail() {
        let mut collector = Collector::default();
        collector.push(Diagnostic::warning(DataCode::Unequal, "look"));
        assert_eq!(collector.finish(7).map(|(value, warnings)| (value, warnings.len())), Ok((7, 1)));
    }
}
