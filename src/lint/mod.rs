//! Whether a mapping file is right, without any checkpoint: every layout is tried with every other of its family, and with
//! the family's canonical order, on small models that are made of the layouts' own names and shapes.
//!
//! Each pair is bound, planned, proved and executed; every element is compared with a naive reading of the expressions
//! that shares no code with the plan, and attention is computed from both sides as each layout's `forward` says.

pub mod against;
mod canonical;
mod compute;
mod culprits;
mod model;
mod overlap;
mod pairs;
mod picture;
mod roles;
mod setting;
mod sizes;
mod statics;
mod trial;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::bind::AxisSizes;
use crate::diag::{Diagnostic, Errors, Severity};
use crate::mapping::{Layout, read};
use crate::progress::Progress;
use crate::span::Source;

/// Something that is wrong, or odd, with a picture where one helps.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What it is.
    pub diagnostic: Diagnostic,
    /// A stored tensor as a table of indices: in brackets the element, in angles where it should be.
    pub picture: Vec<String>,
}

impl From<Diagnostic> for Finding {
    fn from(diagnostic: Diagnostic) -> Finding {
        Finding { diagnostic, picture: Vec::new() }
    }
}

/// What was checked of a mapping file, and what was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The family.
    pub family: String,
    /// The layouts that the file itself has.
    pub layouts: Vec<String>,
    /// Other layouts with which they were tried: those of the family that the file extends.
    pub others: usize,
    /// Ordered pairs of layouts that were converted, each with itself and the canonical order included.
    pub pairs: usize,
    /// Models that were converted for it: configs, and optional parameters there or not.
    pub models: usize,
    /// The sizes of one of them, by axis.
    pub sizes: AxisSizes,
    /// Attention that was computed and compared, `layout` or `layout kind`.
    pub computed: Vec<String>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
    /// What is wrong or odd.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns whether the file has no error.
    pub fn is_right(&self) -> bool {
        self.findings.iter().all(|finding| finding.diagnostic.severity == Severity::Warning)
    }

    /// Returns the report as JSON, for CI.
    pub fn json(&self) -> Value {
        json!({
            "version": 1,
            "family": self.family,
            "right": self.is_right(),
            "layouts": self.layouts,
            "other_layouts": self.others,
            "pairs": self.pairs,
            "models": self.models,
            "sizes": self.sizes,
            "computed": self.computed,
            "unchecked": self.unchecked,
            "findings": self.findings.iter().map(finding_json).collect::<Vec<_>>(),
        })
    }
}

/// Makes the JSON of a finding: of its diagnostic, with the place in parts, and the picture.
fn finding_json(finding: &Finding) -> Value {
    let place = finding.diagnostic.rule.as_ref().map(|span| {
        let (line, column) = span.line_column();
        json!({ "file": span.source.name, "line": line, "column": column, "text": span.text() })
    });
    let mut value = json!(finding.diagnostic);
    value["place"] = json!(place);
    value["picture"] = json!(finding.picture);
    value
}

/// Checks a mapping file. With `extends`, its layouts are tried with those of the built-in family.
///
/// # Errors
/// Returns what is wrong with the text of the file, and cancellation; all else is part of the report.
pub fn check(source: &Arc<Source>, threads: usize, progress: &dyn Progress) -> Result<Report, Errors> {
    let mapping = read(source)?;
    let own: Vec<&Layout> =
        mapping.layouts.values().filter(|layout| layout.span.source == mapping.source).collect();
    let mut report = Report {
        family: mapping.family.clone(),
        layouts: own.iter().map(|layout| layout.name.clone()).collect(),
        others: mapping.layouts.len() - own.len(),
        ..Report::default()
    };
    let mut found = Vec::new();
    statics::check(&mapping, &own, &mut found);
    report.findings.extend(found.into_iter().map(Finding::from));
    let canonical: BTreeMap<&str, Layout> =
        own.iter().map(|layout| (layout.name.as_str(), canonical::canonical(&mapping, layout))).collect();
    let pairs = pairs::Pairs::new(&mapping, &own, &canonical);
    let results = pairs.run(threads, progress)?;
    pairs.report(&results, &mut report);
    culprits::report(&pairs, &results, &mut report);
    Ok(report)
}

/// Returns whether a place is in the checked file, and not in the built-in one that it extends.
fn is_own(mapping: &crate::mapping::Mapping, span: &crate::span::Span) -> bool {
    span.source == mapping.source
}
