//! Which of several layouts that fit is meant.

use super::Candidate;
use crate::bind::{Bound, InstanceId};
use crate::claims::Standing;
use crate::mapping::Mapping;
use crate::mapping::key::Template;

/// Of the families of single modules, those that fit and explain fewer tensors than another no longer fit.
pub(super) fn prefer_most(candidates: &mut [Candidate], tensors: &[usize]) {
    for candidate in candidates.iter_mut() {
        // Names of modules that lack their anchors were taken, and are not held.
        if let Some(bound) = &candidate.bound {
            let held: std::collections::HashSet<usize> = bound.sources.iter().map(|it| it.tensor).collect();
            candidate.taken = tensors.iter().map(|tensor| held.contains(tensor)).collect();
            candidate.held = held.len();
        }
    }
    let fitting = candidates.iter().filter(|it| it.fits() && !it.whole);
    let Some(best) = fitting.max_by_key(|it| (it.recorded, it.held)) else { return };
    let (name, most, recorded) = (best.name(), best.held, best.recorded);
    for candidate in candidates.iter_mut().filter(|it| it.fits() && !it.whole) {
        if candidate.held < most && !(candidate.recorded && recorded) {
            let tensors = if candidate.held == 1 { "tensor" } else { "tensors" };
            let message = format!("it explains {} {tensors}, `{name}` {most}", candidate.held);
            candidate.obstacle = Some(message);
        }
    }
}

/// Of a family's fitting layouts that hold the same tensors, one whose templates are all more special than another's
/// is the one that is meant, as of two rules that match one name: `model.norm.weight` before `{*m}.norm.weight`.
pub(super) fn prefer_special(candidates: &mut [Candidate], mapping: &Mapping) {
    let templates = |candidate: &Candidate| -> Option<Vec<(usize, &Template)>> {
        let layout = mapping.layouts.get(&candidate.layout)?;
        let sources = candidate.bound.as_deref().filter(|_| candidate.fits())?.sources.iter();
        let mut all: Vec<_> =
            sources.map(|it| (it.tensor, &layout.rules[it.reading.rule].template)).collect();
        all.sort_by_key(|(tensor, _)| *tensor);
        Some(all)
    };
    let all: Vec<Option<Vec<(usize, &Template)>>> = candidates.iter().map(templates).collect();
    let within = |a: &[(usize, &Template)], b: &[(usize, &Template)]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && a.1.is_within(b.1))
    };
    let mut general = Vec::new();
    for (at, own) in all.iter().enumerate() {
        let Some(own) = own else { continue };
        let special = all.iter().enumerate().find(|(other, it)| {
            let strictly = |it: &Vec<(usize, &Template)>| within(it, own) && !within(own, it);
            *other != at && it.as_ref().is_some_and(strictly)
        });
        if let Some((other, _)) = special {
            general.push((at, candidates[other].name()));
        }
    }
    for (at, special) in general {
        if !candidates[at].recorded {
            candidates[at].obstacle = Some(format!("`{special}` names the same tensors more closely"));
        }
    }
}

/// Where a fitting layout lists the model that the checkpoint names, those that do not list it no longer fit.
pub(super) fn prefer_listed(candidates: &mut [Candidate]) {
    let listed = |candidate: &Candidate| candidate.standing == Standing::Listed;
    let Some(best) = candidates.iter().find(|it| it.fits() && listed(it)).map(Candidate::name) else {
        return;
    };
    for candidate in candidates.iter_mut().filter(|it| it.fits() && !listed(it) && !it.recorded) {
        candidate.obstacle = Some(format!("`{best}` lists the model that the checkpoint names"));
    }
}

/// Makes one candidate of the fitting layouts of a family that hold the same in the same places.
pub(super) fn unite(candidates: impl Iterator<Item = Candidate>) -> Vec<Candidate> {
    let mut kept: Vec<Candidate> = Vec::new();
    for mut candidate in candidates {
        let twin = kept.iter_mut().find(|other| other.fits() && candidate.fits() && same(other, &candidate));
        match twin {
            Some(twin) if candidate.recorded && !twin.recorded => {
                candidate.same_as = std::mem::take(&mut twin.same_as);
                candidate.same_as.push(twin.layout.clone());
                *twin = candidate;
            }
            Some(twin) => twin.same_as.push(candidate.layout),
            None => kept.push(candidate),
        }
    }
    kept
}

fn same(a: &Candidate, b: &Candidate) -> bool {
    let (Some(a), Some(b)) = (&a.bound, &b.bound) else { return false };
    let instance = |bound: &Bound, at: InstanceId| {
        let info = &bound.instances[at];
        (info.param, bound.modules[info.module].clone())
    };
    a.sources.len() == b.sources.len()
        && a.sources.iter().zip(&b.sources).all(|(x, y)| {
            x.tensor == y.tensor
                && x.affine == y.affine
                && x.blocks == y.blocks
                && x.instances.len() == y.instances.len()
                && x.instances.iter().zip(&y.instances).all(|(i, j)| instance(a, i.1) == instance(b, j.1))
        })
}
