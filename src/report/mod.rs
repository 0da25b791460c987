//! The report of a conversion: as JSON for CI jobs, and as a short Markdown card.
//!
//! Everything but `time` follows from the input alone, so two reports of one conversion can be compared. The JSON's
//! fields, version 1:
//!
//! | field | holds |
//! |---|---|
//! | `version` | the version of these fields |
//! | `tool` | name and version of the program |
//! | `mapping` | family, file and BLAKE3 of the mapping |
//! | `from`, `to` | the layouts |
//! | `modules` | paths of the modules that were `converted`, and of those that were `left` as they are by `--modules`; folded |
//! | `sizes` | per axis: size and where it came from |
//! | `tensors` | per target tensor: key, dtype, shape, the source tensors, whether bits were `moved` or `converted`, its rule |
//! | `dropped` | source tensors left out, with the reason |
//! | `tied` | groups of source tensors that are one and the same |
//! | `companions` | files carried over beside the weights, and the config that was written |
//! | `unused` | source elements that are not copied (ties, repeats, padding), with the reason |
//! | `proof` | tensors proved to be used once and written once |
//! | `requirements` | statements about the weights that were checked |
//! | `verification` | what was read back and computed, with the largest differences, and what the weights say of the source layout (`evidence`; null where the caller vouches for it); null where nothing was checked |
//! | `warnings`, `differences` | diagnostics |
//! | `totals` | counts and bytes |
//! | `written` | whether the output was published |
//! | `rounded` | per tensor that a cast rounded: the largest error, and how many values became zero |
//! | `files` | the output's files |
//! | `time` | seconds, the one field that differs from run to run |
//!
//! The report of a run that fails before there is anything to tell of has `version`, `tool`, `written` (false) and
//! `errors`: diagnostics, each with the names of all its tensors.

mod card;

pub use card::{card, failed_card};

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::convert::{Checked, Conversion};
use crate::diag::{Diagnostic, Errors};
use crate::evidence::{Evidence, Question};
use crate::exec::Rounded;
use crate::fold::fold_keys;
use crate::plan::{Step, ValueOp};
use crate::verify::forward::Differences;

/// The version of the report's schema.
pub const VERSION: u64 = 1;

/// What came of a conversion, as far as it went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome<'a> {
    /// What was checked.
    pub checked: Option<&'a Checked>,
    /// Whether the output was published.
    pub written: bool,
    /// The tensors that a cast rounded.
    pub rounded: &'a [Rounded],
}

/// Makes the report of a conversion, or of a dry run, or of a check of what anything else made.
pub fn report(conversion: &Conversion<'_>, outcome: Outcome<'_>, time: Duration) -> Value {
    let catalog = conversion.reader.catalog();
    let mapping = conversion.selection.mapping();
    let place_of = |span: &crate::span::Span| span.place();
    let tensors: Vec<Value> = conversion
        .plan
        .targets
        .iter()
        .map(|target| {
            let mut sources: Vec<&str> = Vec::new();
            let mut exact = true;
            for step in &target.steps {
                if let Step::Copy(copy) = step {
                    exact &= copy.value == ValueOp::Bits;
                    let key = catalog.tensors[copy.source.tensor].key.as_str();
                    if !sources.contains(&key) {
                        sources.push(key);
                    }
                }
            }
            json!({
                "key": target.key,
                "dtype": target.dtype.name(),
                "shape": target.shape,
                "sources": sources,
                "bits": if exact { "moved" } else { "converted" },
                "rule": target.rule.as_ref().map(place_of),
            })
        })
        .collect();
    let dropped: Vec<Value> = conversion
        .bound
        .dropped
        .iter()
        .map(|dropped| json!({ "key": catalog.tensors[dropped.tensor].key, "reason": dropped.reason.text() }))
        .collect();
    let mut unused: HashMap<(&str, &str), u64> = HashMap::default();
    for part in &conversion.plan.unused {
        let stored = &catalog.tensors[part.source.tensor];
        let units = part.region.loops.iter().map(|(count, _)| count).product::<u64>();
        // Units are bytes where elements share them.
        let (elements, bytes) = stored.dtype.block();
        *unused.entry((stored.key.as_str(), part.reason)).or_default() +=
            if elements == 1 { units } else { units / bytes * elements };
    }
    let mut unused: Vec<_> = unused.into_iter().collect();
    unused.sort();
    json!({
        "version": VERSION,
        "tool": tool(),
        "mapping": { "family": mapping.family, "file": mapping.source.name, "hash": mapping.hash },
        "from": conversion.selection.source().name,
        "to": conversion.selection.target().name,
        "modules": {
            "converted": fold_keys(conversion.bound.converted_modules()),
            "left": fold_keys(conversion.bound.left.iter().map(String::as_str)),
        },
        "sizes": conversion.bound.sizes.iter()
            .map(|size| json!({ "axis": size.axis, "size": size.value, "origin": size.origin })).collect::<Vec<_>>(),
        "tensors": tensors,
        "dropped": dropped,
        "tied": catalog.ties().iter().map(|group| {
            group.iter().map(|&tensor| catalog.tensors[tensor].key.as_str()).collect::<Vec<_>>()
        }).collect::<Vec<_>>(),
        "companions": {
            "carried": conversion.companions.carried,
            "config": conversion.companions.config.as_ref().map(|config| {
                json!({ "name": config.name, "told": config.told, "kept": config.kept, "untold": config.untold })
            }),
        },
        "unused": unused.iter()
            .map(|((key, reason), elements)| json!({ "key": key, "reason": reason, "elements": elements })).collect::<Vec<_>>(),
        "proof": { "targets": conversion.proof.targets, "sources": conversion.proof.sources },
        "requirements": conversion.plan.requirements.len(),
        "warnings": conversion.warnings,
        "totals": {
            "source_tensors": catalog.tensors.len(),
            "target_tensors": conversion.plan.targets.len(),
            "passed_through": conversion.bound.kept.len(),
            "bytes": conversion.bytes(),
        },
        "verification": outcome.checked.map(verification),
        "differences": outcome.checked.map(Checked::differences).unwrap_or_default(),
        "written": outcome.written,
        "rounded": outcome.rounded.iter().map(|tensor| {
            json!({ "key": tensor.key, "largest_error": tensor.error, "became_zero": tensor.underflows })
        }).collect::<Vec<_>>(),
        "files": conversion.layout.files.iter().map(|file| json!({ "name": file.name, "bytes": file.size })).collect::<Vec<_>>(),
        "time": { "seconds": time.as_secs_f64() },
    })
}

/// Makes the report of a run that failed.
pub fn failed(errors: &Errors) -> Value {
    let whole = |error: &Diagnostic| {
        let mut value = json!(error);
        value["tensors"] = json!(error.tensors);
        value
    };
    json!({
        "version": VERSION,
        "tool": tool(),
        "written": false,
        "errors": errors.diagnostics().iter().map(whole).collect::<Vec<_>>(),
    })
}

fn tool() -> Value {
    json!({ "name": "qkvconv", "version": env!("CARGO_PKG_VERSION") })
}

fn verification(checked: &Checked) -> Value {
    let figures = |found: &Differences| {
        let mut parts: serde_json::Map<String, Value> =
            found.parts().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        parts.insert("absolute".into(), json!(found.absolute));
        Value::Object(parts)
    };
    let read_back = &checked.read_back;
    json!({
        "agrees": checked.verdict().is_ok(),
        "read_back": {
            "tensors": read_back.tensors,
            "elements": read_back.elements,
            "differing_tensors": read_back.differences.len(),
        },
        "attention": checked.attention.as_ref().map(|attention| json!({
            "modules": attention.modules,
            "files": figures(&attention.files),
            "random_modules": attention.random_modules,
            "random": figures(&attention.random),
            "tolerance": attention.tolerance,
            "random_tolerance": attention.random_tolerance,
            "not_computed": attention.abstained.iter()
                .map(|(why, modules)| json!({ "why": why, "modules": modules })).collect::<Vec<_>>(),
        })),
        "evidence": checked.evidence.as_ref().map(evidence),
    })
}

/// Makes the JSON of what the weights say of a layout: `verdict` in words, and per question what it is about, the first
/// tensor, how many modules were weighed, the declared arrangement and the one that explains them best, with its lead in nats.
pub fn evidence(evidence: &Evidence) -> Value {
    let question = |question: &Question| {
        let name = |at: usize| question.candidates.get(at).map(|candidate| candidate.name.as_str());
        json!({
            "about": question.about,
            "tensor": question.tensor,
            "weighed": question.weighed,
            "declared": name(question.declared),
            "best": name(0),
            "margin": question.margin(),
            "deviation": question.deviation(),
        })
    };
    json!({
        "verdict": evidence.verdict(),
        "questions": evidence.questions.iter().map(question).collect::<Vec<_>>(),
        "left_out": evidence.left_out,
        "skipped": evidence.skipped.len(),
    })
}
