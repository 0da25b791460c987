//! The whole way: open, match, draft, and check the draft as a conversion.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::Content;
use super::express::End;
use super::matching::Matcher;
use super::solve::{Naming, draft};
use super::{Draft, Inferred, Side};
use crate::bind::BindOptions;
use crate::convert::{Conversion, ConvertOptions, Verify};
use crate::diag::Errors;
use crate::dtype::Dtype;
use crate::exec::Limits;
use crate::format::{Reader, open};
use crate::mapping::select::{Selection, select};
use crate::progress::Progress;
use crate::provenance::Provenance;
use crate::span::Source;

/// How often rules that do not hold are left out.
const RETRIES: usize = 4;

/// Infers a mapping from two checkpoints.
///
/// # Errors
/// Returns what is wrong with the checkpoints and what the system refuses. What could not be explained is part of the
/// result.
pub fn infer(
    family: &str,
    source: &Side,
    target: &Side,
    limits: &Limits,
    progress: &dyn Progress,
) -> Result<Inferred, Errors> {
    let (from, to) = (open(&source.path, &source.open)?, open(&target.path, &target.open)?);
    let matcher = Matcher::new(Content::new(from.as_ref()), Content::new(to.as_ref()))?;
    let naming = Naming {
        family,
        layouts: [(End::Source, source.layout.as_str()), (End::Target, target.layout.as_str())].into(),
        configs: [(End::Source, &source.config), (End::Target, &target.config)]
            .into_iter()
            .filter_map(|(end, config)| Some((end, config.as_ref()?.value.clone())))
            .collect(),
    };
    let mut without = BTreeMap::new();
    let checker = Checker { family, source, target, to: to.as_ref(), limits, progress };
    let mut inferred = Inferred { dtype: cast(from.as_ref(), to.as_ref()), ..Inferred::default() };
    for _ in 0..RETRIES {
        let draft = draft(&matcher, &naming, &without)?;
        let wrong = match checker.check(&draft, &mut inferred) {
            Ok(wrong) => wrong,
            Err(errors) => {
                // What binding refuses is left out, as far as it says which tensors.
                let known: Vec<&String> = draft.unexplained.iter().flat_map(|of| &of.tensors).collect();
                let mut wrong = BTreeMap::new();
                for diagnostic in errors.diagnostics() {
                    for key in diagnostic.tensors.iter().flat_map(|key| blamed(&draft, to.as_ref(), key)) {
                        if !known.contains(&&key) {
                            wrong.insert(key, diagnostic.message.clone());
                        }
                    }
                }
                if wrong.is_empty() {
                    return Err(errors);
                }
                wrong
            }
        };
        inferred.text = draft.text;
        inferred.parts = draft.parts;
        inferred.unexplained = draft.unexplained;
        inferred.unused = draft.unused;
        inferred.notes = draft.notes;
        if wrong.is_empty() {
            return Ok(inferred);
        }
        without.extend(wrong);
    }
    inferred.text.clear();
    Ok(inferred)
}

/// Returns the target tensors whose rules a message about a tensor of either side concerns.
fn blamed(draft: &Draft, target: &dyn Reader, key: &String) -> Vec<String> {
    let users = draft
        .uses
        .iter()
        .filter(|(sources, _)| sources.contains(key))
        .flat_map(|(_, targets)| targets.clone());
    users.chain(target.catalog().find(key).map(|_| key.clone())).collect()
}

/// Returns the type to which floating-point tensors have to be cast, where it is one.
fn cast(source: &dyn Reader, target: &dyn Reader) -> Option<Dtype> {
    let types = |reader: &dyn Reader| {
        let mut types: Vec<Dtype> = reader
            .catalog()
            .tensors
            .iter()
            .map(|tensor| tensor.dtype)
            .filter(|of| of.is_computable())
            .collect();
        types.sort_unstable();
        types.dedup();
        types
    };
    match types(target)[..] {
        [to] if types(source) != [to] => Some(to),
        _ => None,
    }
}

struct Checker<'a> {
    family: &'a str,
    source: &'a Side,
    target: &'a Side,
    to: &'a dyn Reader,
    limits: &'a Limits,
    progress: &'a dyn Progress,
}

impl Checker<'_> {
    /// Checks a draft, and returns the target tensors that are not what it makes of the source.
    fn check(&self, draft: &Draft, inferred: &mut Inferred) -> Result<BTreeMap<String, String>, Errors> {
        let text = Arc::new(Source { name: "inferred mapping".into(), text: draft.text.clone() });
        let name = |side: &Side| format!("{}/{}", self.family, side.layout);
        let there = select(&name(self.source), &name(self.target), &[Arc::clone(&text)])?;
        let (axes, conversion) = self.prepare(&there, self.source, draft, inferred.dtype)?;
        inferred.open[0] = axes;
        let checked = conversion.check(self.to, Verify::Readback, self.limits, self.progress)?;
        inferred.tensors = checked.read_back.tensors;
        inferred.elements = checked.read_back.elements;
        let known: Vec<&String> = draft.unexplained.iter().flat_map(|of| &of.tensors).collect();
        let mut wrong = BTreeMap::new();
        for difference in checked.read_back.differences {
            match difference.target {
                Some(target) if known.contains(&&target) => {}
                Some(target) => {
                    _ = wrong.insert(target, format!("its rule does not hold: {}", difference.what))
                }
                None => {
                    let users = difference.source.iter().flat_map(|key| blamed(draft, self.to, key));
                    wrong.extend(
                        users.map(|key| (key, format!("its rule does not hold: {}", difference.what))),
                    );
                }
            }
        }
        if wrong.is_empty() {
            let back = select(&name(self.target), &name(self.source), &[text])?;
            if let Ok((axes, _)) = self.prepare(&back, self.target, draft, None) {
                inferred.open[1] = axes;
            }
        }
        Ok(wrong)
    }

    /// Prepares a conversion that is told the fewest sizes that it has to be told; returns these too.
    fn prepare<'s>(
        &self,
        selection: &'s Selection,
        side: &Side,
        draft: &Draft,
        dtype: Option<Dtype>,
    ) -> Result<(Vec<(String, u64)>, Conversion<'s>), Errors> {
        let with = |axes: Vec<(String, u64)>| ConvertOptions {
            open: side.open.clone(),
            bind: BindOptions {
                axes,
                provenance: side.config.clone().map(Provenance::from).unwrap_or_default(),
                dtype,
                ..BindOptions::default()
            },
            trust_layout: true,
            ..ConvertOptions::default()
        };
        let fits = |axes: &[(String, u64)]| Conversion::prepare(selection, &side.path, &with(axes.to_vec()));
        if let Ok(conversion) = fits(&[]) {
            return Ok((Vec::new(), conversion));
        }
        let mut axes = draft.sizes.clone();
        let mut conversion = fits(&axes)?;
        let mut at = 0;
        while at < axes.len() {
            let mut fewer = axes.clone();
            fewer.remove(at);
            match fits(&fewer) {
                Ok(fitting) => (axes, conversion) = (fewer, fitting),
                Err(_) => at += 1,
            }
        }
        Ok((axes, conversion))
    }
}
