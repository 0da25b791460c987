//! The report of a conversion as JSON, for CI jobs.
//!
//! Everything but `time` follows from the input alone, so two reports of one conversion can be compared.

use std::time::Duration;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::convert::{Conversion, Done};
use crate::diag::{Diagnostic, Severity};
use crate::plan::{Step, ValueOp};

/// The version of the report's schema.
pub const VERSION: u64 = 1;

/// Makes the report of a conversion; `done` is `None` for a dry run.
pub fn report(conversion: &Conversion<'_>, done: Option<&Done>, time: Duration) -> Value {
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
                    let key = catalog.tensors[copy.source].key.as_str();
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
    let mut unused: FxHashMap<(&str, &str), u64> = FxHashMap::default();
    for part in &conversion.plan.unused {
        let key = catalog.tensors[part.source].key.as_str();
        *unused.entry((key, part.reason)).or_default() +=
            part.region.loops.iter().map(|(count, _)| count).product::<u64>();
    }
    let mut unused: Vec<_> = unused.into_iter().collect();
    unused.sort();
    json!({
        "version": VERSION,
        "tool": { "name": "qkvconv", "version": env!("CARGO_PKG_VERSION") },
        "mapping": { "family": mapping.family, "file": mapping.source.name, "hash": mapping.hash },
        "from": conversion.selection.source().name,
        "to": conversion.selection.target().name,
        "sizes": conversion.bound.sizes.iter()
            .map(|size| json!({ "axis": size.axis, "size": size.value, "origin": size.origin })).collect::<Vec<_>>(),
        "tensors": tensors,
        "dropped": dropped,
        "unused": unused.iter()
            .map(|((key, reason), units)| json!({ "key": key, "reason": reason, "elements": units })).collect::<Vec<_>>(),
        "proof": { "targets": conversion.proof.targets, "sources": conversion.proof.sources },
        "requirements": conversion.plan.requirements.len(),
        "warnings": conversion.warnings.iter().map(diagnostic).collect::<Vec<_>>(),
        "totals": {
            "source_tensors": catalog.tensors.len(),
            "target_tensors": conversion.plan.targets.len(),
            "passed_through": conversion.bound.kept.len(),
            "bytes": conversion.bytes(),
        },
        "written": done.is_some(),
        "underflows": done.map(|done| done.stats.underflows.clone()).unwrap_or_default(),
        "files": conversion.layout.files.iter().map(|file| json!({ "name": file.name, "bytes": file.size })).collect::<Vec<_>>(),
        "time": { "seconds": time.as_secs_f64() },
    })
}

/// Makes a diagnostic's JSON.
pub fn diagnostic(diagnostic: &Diagnostic) -> Value {
    json!({
        "severity": match diagnostic.severity { Severity::Error => "error", Severity::Warning => "warning" },
        "code": diagnostic.code,
        "message": diagnostic.message,
        "file": diagnostic.file.as_ref().map(|path| path.display().to_string()),
        "tensors": diagnostic.folded_tensors(),
        "rule": diagnostic.rule.as_ref().map(crate::span::Span::place),
        "expected": diagnostic.expected,
        "found": diagnostic.found,
        "help": diagnostic.help,
    })
}
