//! The modules that frameworks put around others, whose names stand in the names of tensors and say nothing of the model.

use std::collections::{HashMap, HashSet};

/// Names that wrappers give the module inside, and no model does: FullyShardedDataParallel's (pytorch/pytorch,
/// `torch/distributed/fsdp/_common_utils.py`; `_fpw_module` in its first versions and in facebookresearch/fairscale),
/// checkpointing's (`torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py`), the compiler's
/// (`torch/_dynamo/eval_frame.py`) and that of Lightning Fabric (Lightning-AI/pytorch-lightning, `fabric/wrappers.py`).
const WRAPPERS: &[&str] =
    &["_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module", "_orig_mod", "_forward_module"];

/// The name that DistributedDataParallel and DataParallel give the module inside (pytorch/pytorch,
/// `torch/nn/parallel/distributed.py`); models have modules of that name too.
const MODULE: &str = "module";

/// The names of tensors without wrappers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwrapped {
    /// The names, in the order of the tensors.
    pub names: Vec<String>,
    /// Each wrapper that was taken out, and out of how many names.
    pub taken: Vec<(&'static str, usize)>,
}

impl Unwrapped {
    /// Returns the wrappers that were taken out.
    pub fn wrappers(&self) -> Vec<&'static str> {
        self.taken.iter().map(|(wrapper, _)| *wrapper).collect()
    }

    /// Returns a prefix as it is after wrappers were taken out; empty where it was nothing else.
    pub fn prefix(&self, prefix: &str) -> String {
        let is_taken = |part: &str| self.taken.iter().any(|(wrapper, _)| *wrapper == part);
        let parts = prefix.split(['.', '/']).filter(|part| !is_taken(part));
        parts.collect::<Vec<_>>().join(".")
    }
}

/// Takes wrappers out of names; nothing where there are none, or where two tensors would have one name.
///
/// `module` is taken out where all names begin with it, and inside names where it is sure to be a wrapper: it is all that
/// the module around it has, and has several parts itself, nested ones among them.
pub(super) fn unwrap(keys: &[&str]) -> Option<Unwrapped> {
    // The name of a file of a set is no part of the tensor's.
    let bare: Vec<&str> =
        keys.iter().map(|key| key.split_once("::").map_or(*key, |(_, name)| name)).collect();
    let is_candidate = |name: &str| name.split('.').any(|part| part == MODULE || WRAPPERS.contains(&part));
    if !bare.iter().any(|name| is_candidate(name)) {
        return None;
    }
    let plain: Vec<Vec<&str>> = bare
        .iter()
        .map(|name| {
            let mut parts: Vec<&str> = name.split('.').collect();
            let last = parts.pop();
            parts.retain(|part| !WRAPPERS.contains(part));
            parts.extend(last);
            parts
        })
        .collect();
    let leading = leading(&plain);
    let inner: HashSet<&[&str]> = wrapped(&plain, leading);
    let without = |inner: &HashSet<&[&str]>| -> Vec<String> {
        let names = plain.iter().zip(keys).zip(&bare).map(|((parts, key), bare)| {
            let kept = (leading..parts.len())
                .filter(|&at| !(parts[at] == MODULE && at + 1 < parts.len() && inner.contains(&parts[..at])));
            let name = kept.map(|at| parts[at]).collect::<Vec<_>>().join(".");
            // What stood before the name stays.
            format!("{}{name}", &key[..key.len() - bare.len()])
        });
        names.collect()
    };
    let mut names = without(&inner);
    if !are_distinct(&names) {
        names = without(&HashSet::default());
    }
    if !are_distinct(&names) || names.iter().zip(keys).all(|(name, key)| name == key) {
        return None;
    }
    let count = |name: &str, part: &str| name.split('.').filter(|other| *other == part).count();
    let taken = WRAPPERS.iter().chain([&MODULE]).filter_map(|&wrapper| {
        let fewer = |(name, bare): &(&String, &&str)| {
            let name = name.split_once("::").map_or(name.as_str(), |(_, name)| name);
            count(name, wrapper) < count(bare, wrapper)
        };
        let count = names.iter().zip(&bare).filter(fewer).count();
        (count > 0).then_some((wrapper, count))
    });
    let taken = taken.collect();
    Some(Unwrapped { names, taken })
}

/// Returns how often `module` stands at the beginning of all names.
fn leading(names: &[Vec<&str>]) -> usize {
    let of =
        |parts: &Vec<&str>| parts.iter().take(parts.len() - 1).take_while(|part| **part == MODULE).count();
    names.iter().map(of).min().unwrap_or(0)
}

/// Returns the paths of the modules that are nothing but a wrapper around one called `module`.
fn wrapped<'k>(names: &'k [Vec<&'k str>], leading: usize) -> HashSet<&'k [&'k str]> {
    /// What is known of what stands below a path.
    #[derive(Default)]
    struct Below<'k> {
        /// Something else than `module`.
        other: bool,
        parts: HashSet<&'k str>,
        nested: bool,
    }
    let mut paths: HashMap<&[&str], Below<'_>> = HashMap::default();
    for parts in names {
        for at in leading + 1..parts.len().saturating_sub(1) {
            if parts[at] == MODULE {
                let below = paths.entry(&parts[..at]).or_default();
                below.parts.insert(parts[at + 1]);
                below.nested |= parts.len() > at + 2;
            }
        }
    }
    for parts in names {
        for at in leading + 1..parts.len() {
            if let Some(below) = paths.get_mut(&parts[..at]) {
                below.other |= parts[at] != MODULE || at + 1 == parts.len();
            }
        }
    }
    let sure = paths.into_iter().filter(|(_, below)| !below.other && below.nested && below.parts.len() > 1);
    sure.map(|(path, _)| path).collect()
}

fn are_distinct(names: &[String]) -> bool {
    let mut seen = HashSet::new();
    names.iter().all(|name| !name.is_empty() && seen.insert(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(keys: &[&str]) -> Option<Vec<String>> {
        unwrap(keys).map(|unwrapped| unwrapped.names)
    }

    #[test]
    fn wrappers_are_taken_out_wherever_they_stand() {
        let keys = [
            "_orig_mod._fsdp_wrapped_module.layers.0._checkpoint_wrapped_module.q.weight",
            "_orig_mod._fsdp_wrapped_module.norm.weight",
        ];
        let unwrapped = unwrap(&keys).expect("has wrappers");
        assert_eq!(unwrapped.names, ["layers.0.q.weight", "norm.weight"]);
        let taken = [("_fsdp_wrapped_module", 2), ("_checkpoint_wrapped_module", 1), ("_orig_mod", 2)];
        assert_eq!(unwrapped.taken, taken);
        assert_eq!(unwrapped.prefix("_orig_mod.model."), "model.");
        assert_eq!(names(&["layers.0.q.weight"]), None);
        assert_eq!(
            names(&["rank0.pt::module.q", "rank1.pt::module.q"]),
            Some(vec!["rank0.pt::q".into(), "rank1.pt::q".into()])
        );
    }

    #[test]
    fn a_module_of_that_name_is_taken_out_where_it_is_a_wrapper() {
        assert_eq!(names(&["module.module.a.w", "module.module.b"]), Some(vec!["a.w".into(), "b".into()]));
        // Not all begin so.
        assert_eq!(names(&["module.a.w", "b.w"]), None);
        let inner = ["encoder.module.layers.0.w", "encoder.module.norm.w", "head.w"];
        assert_eq!(
            names(&inner),
            Some(vec!["encoder.layers.0.w".into(), "encoder.norm.w".into(), "head.w".into()])
        );
        // It has a neighbour, or is a module of tensors alone.
        assert_eq!(names(&["e.module.l.w", "e.module.n.w", "e.scale"]), None);
        assert_eq!(names(&["act.module.weight", "act.module.bias", "w"]), None);
        // A tensor of that name is none.
        assert_eq!(names(&["module", "module.w"]), None);
    }

    #[test]
    fn names_stay_where_two_would_become_one() {
        assert_eq!(names(&["a._orig_mod.w", "a.w"]), None);
        let keys = ["_orig_mod.e.module.l.w", "_orig_mod.e.module.n.w", "_orig_mod.e.l.w"];
        assert_eq!(names(&keys).expect("the outer one")[0], "e.module.l.w");
    }
}
