//! The documents for programs.
//!
//! The JSON's fields are stable; version 1, where later versions may add fields:
//!
//! | field | holds |
//! |---|---|
//! | `version` | the version of these fields |
//! | `path`, `format`, `files` | what was opened: its path, the format of its files, how many they are |
//! | `tensors`, `bytes` | how many tensors, and what they take in bytes |
//! | `dtypes` | per type of elements the number of tensors |
//! | `layout` | `family/layout`; null where none, or not one alone, explains the checkpoint |
//! | `candidates` | up to 20 layouts: `layout`, whether it `fits`, whether the file `recorded` it, tensors `matched`, layouts that are the `same_as` it here, the `obstacle` in words, what it is `told_by` beside names and shapes, the sizes that are `open` |
//! | `modules` | the paths of a family of single modules, folded; null for whole models |
//! | `sizes` | per axis: `axis`, `size`, and its `origin` in words; null without a layout |
//! | `kinds` | tensors of one rule and shape: `names` with indices folded, `count`, `dtype`, `shape`, `dims` (per stored axis `name` and what it `holds` in words), `groups` in words or null, `parts` |
//! | `unexplained` | names that no rule holds, folded |
//! | `tied` | groups of names that are one and the same place |
//!
//! Of a part: `param`; how many `heads`, or null; `rotary`, null or its `axis`, its `style` (`half`, `interleaved`, `other`)
//! and its `pairs`: for each element of a head as stored the number of its pair, null for one that does not rotate (all null
//! where a size is open).
//!
//! With `--tensor` the document is that tensor's: `version`, `layout`, `tensor`, `dtype`, `shape`, `dims` and `groups` as
//! above, and `parts`, each with `places`: per head its `head` and its `runs`. With `--head` too it is a list, for each layout
//! of the family: `layout`, `tensor`, `part`, `head`, `ranges` in words, `runs`. Runs are, per stored axis, a list of
//! `[first, behind the last, step]`.

use qkvconv::detect::Candidate;
use qkvconv::inspect::{Kind, Part, runs};
use qkvconv::mapping::forward::RotaryStyle;
use serde_json::{Value, json};

use super::Look;

impl Look<'_> {
    /// Returns the document of the checkpoint.
    pub(super) fn json(&self) -> Value {
        let candidate = |candidate: &Candidate| {
            json!({
                "layout": candidate.name(), "fits": candidate.fits(), "recorded": candidate.recorded,
                "matched": candidate.matched, "same_as": candidate.same_as, "obstacle": candidate.obstacle,
                "told_by": candidate.told_by, "open": candidate.open,
            })
        };
        json!({
            "version": 1,
            "path": self.catalog.path.display().to_string(),
            "format": self.reader.format().name(),
            "files": self.files(),
            "tensors": self.catalog.tensors.len(),
            "bytes": self.bytes(),
            "dtypes": self.dtypes().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "layout": self.fit.map(|(candidate, ..)| candidate.name()),
            "candidates": self.candidates.iter().take(20).map(candidate).collect::<Vec<_>>(),
            "modules": self.modules(),
            "sizes": self.bound().map(|bound| {
                bound.sizes.iter().map(|size| json!({ "axis": size.axis, "size": size.value, "origin": size.origin }))
                    .collect::<Vec<_>>()
            }),
            "kinds": self.kinds().iter().map(kind_json).collect::<Vec<_>>(),
            "unexplained": self.unexplained(),
            "unread": self.catalog.unread.iter().map(|(name, reason)| {
                let mut value = json!(reason);
                value["name"] = json!(name);
                value
            }).collect::<Vec<_>>(),
            "tied": self.ties(),
        })
    }
}

/// Returns what is told of a kind of tensors.
pub(super) fn kind_json(kind: &Kind) -> Value {
    json!({
        "names": kind.names, "count": kind.count, "dtype": kind.dtype.name(), "shape": kind.shape,
        "dims": kind.dims.iter().map(|(name, words)| json!({ "name": name, "holds": words })).collect::<Vec<_>>(),
        "groups": kind.groups,
        "parts": kind.parts.iter().map(part_json).collect::<Vec<_>>(),
    })
}

fn part_json(part: &Part) -> Value {
    json!({
        "param": part.param, "heads": part.heads,
        "rotary": part.rotary.as_ref().map(|rotary| {
            json!({
                "axis": rotary.axis,
                "style": match rotary.style {
                    Some(RotaryStyle::Half) => "half",
                    Some(RotaryStyle::Interleaved) => "interleaved",
                    None => "other",
                },
                "pairs": rotary.pairs,
            })
        }),
    })
}

/// Returns indices along each stored axis as runs: first, behind the last, step.
pub(super) fn runs_json(place: &[Vec<u64>]) -> Value {
    let along = |indices: &Vec<u64>| json!(runs(indices));
    place.iter().map(along).collect()
}
