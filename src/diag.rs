//! Diagnostics as data: what is wrong, where, what was expected, what was found and what to do.
//!
//! Nothing here prints. The command line draws diagnostics (`src/cli/ui.rs`); a test compares [`Diagnostic::code`], and
//! [`crate::codes`] documents each code.

use std::fmt;
use std::path::{Path, PathBuf};

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

/// One thing that is wrong with a mapping file, a checkpoint, or the two held against each other.
///
/// ```
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
/// assert_eq!(first.code, "bind/open-size");
/// println!("{}: {}", first.message, first.help.as_deref().unwrap_or_default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// A stable name, `stage/kind`; [`crate::codes`] documents it.
    pub code: &'static str,
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
    pub fn error(code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            code,
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
    pub fn warning(code: &'static str, message: impl Into<String>) -> Diagnostic {
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

/// Everything in lines, as an `unwrap` or a test shows it. Tensors are folded, of many only the first are told.
impl fmt::Debug for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 8;
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity}[{}]: {}", self.code, escaped(&self.message))?;
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

    /// Names a file in the diagnostics of that stage, such as `exec/`, that name none.
    pub fn in_file(mut self, stage: &str, path: &Path) -> Errors {
        for diagnostic in
            self.0.iter_mut().filter(|other| other.code.starts_with(stage) && other.file.is_none())
        {
            diagnostic.file = Some(path.to_owned());
        }
        self
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

/// Longer names, in bytes, are not compared with others.
const LONGEST_NAME: usize = 512;

/// Returns the name of a tensor that differs from `key` in a slip of up to three characters, where there is one.
///
/// Names of tensors are long and alike; what [`nearest`] takes for near would be any other tensor of the module.
pub fn nearest_key<'a>(key: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const MOST: usize = 3;
    // The distance costs the product of the lengths, and a hostile name may be of megabytes.
    let fits = |other: &&str| other.len().abs_diff(key.len()) <= 4 * MOST && other.len() <= LONGEST_NAME;
    let near = known.into_iter().filter(fits).map(|other| (strsim::osa_distance(key, other), other));
    near.filter(|(distance, _)| *distance <= MOST)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

/// Returns the known name nearest to `name`, where one is near enough to be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance costs the product of the lengths, and no name of that length is a slip for another.
    if name.len() > LONGEST_NAME {
        return None;
    }
    let mut best: Option<(f64, &str)> = None;
    for candidate in known.into_iter().filter(|other| other.len() <= LONGEST_NAME) {
        // A name of which more than half is other letters is another name, whatever else it shares.
        let distance = strsim::osa_distance(name, candidate);
        if 2 * distance > name.chars().count().max(candidate.chars().count()) {
            continue;
        }
        // 0.7 is where burn-store's suggestions begin too (tracel-ai/burn, crates/burn-store/src/apply_result.rs).
        let mut score = strsim::jaro_winkler(name, candidate);
        // Of a short word (`kye` for `key`) one slip is most of it.
        if candidate.len() > 2 && distance == 1 {
            score = score.max(0.7);
        }
        if score >= 0.7 && best.is_none_or(|(other, _)| score > other) {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_complaints_about_many_tensors_become_one() {
        let mut collector = Collector::default();
        for layer in 0..3 {
            collector.push(Diagnostic::error("a/b", "it is wrong").tensor(format!("layers.{layer}.w")));
        }
        collector.push(Diagnostic::error("a/b", "it is wrong otherwise").tensor("w"));
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
            let error = Diagnostic::error("a/b", "it is wrong").file("m.safetensors".as_ref());
            let error = error.tensor(format!("layers.{layer}.q")).rule(&Span::new(&source, 4, 7));
            collector.push(error.related(&Span::new(&source, 8, 9), "the other").help("mend\u{1b}it"));
        }
        let errors = collector.finish(()).expect_err("has errors");
        assert_eq!(
            format!("{errors:?}"),
            "error[a/b]: it is wrong\n  file: m.safetensors\n  tensor: layers.{0..199}.q (200)\n  rule: mapping.json:2:1\n  \
             related: mapping.json:3:1, the other\n  help: mend\\u{1b}it"
        );
    }

    #[test]
    fn warnings_alone_do_not_fail() {
        let mut collector = Collector::default();
        collector.push(Diagnostic::warning("a/b", "look"));
        assert_eq!(collector.finish(7).map(|(value, warnings)| (value, warnings.len())), Ok((7, 1)));
    }

    #[test]
    fn a_name_of_a_hostile_length_is_near_to_none() {
        // The distance of two such names would take hours.
        let (long, other) = ("a.".repeat(500_000), "a.".repeat(500_001));
        assert_eq!(nearest(&long, [other.as_str(), "a"]), None);
        assert_eq!(nearest("a.b", [long.as_str(), "a.c"]), Some("a.c"));
    }

    #[test]
    fn the_nearest_name_is_near() {
        assert_eq!(nearest("q.wieght", ["k.weight", "q.weight"]), Some("q.weight"));
        assert_eq!(nearest("zzz", ["k.weight", "q.weight"]), None);
        assert_eq!(nearest("kye", ["query", "key"]), Some("key"));
        assert_eq!(nearest("x", ["a", "h"]), None);
        assert_eq!(nearest("x/b", ["flux/bfl", "whisper/mlx"]), None);
        assert_eq!(
            nearest_key("l.1.k_proj.weight", ["l.1.qkv.weight", "l.1.k_prj.weight"]),
            Some("l.1.k_prj.weight")
        );
        assert_eq!(nearest_key("l.1.v_proj.weight", ["l.1.qkv.weight"]), None);
    }
}
