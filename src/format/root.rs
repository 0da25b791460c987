//! The weights in a file that nests them among other things: a training checkpoint, a state dict of state dicts.

use std::path::Path;

use indexmap::IndexMap;

use super::{OpenOptions, shown};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode, nearest};

/// What containers of weights are called. One of these that stands alone is looked into without being asked for.
const CONTAINERS: &[&str] = &[
    "state_dict",
    "model",
    "module",
    "model_state_dict",
    "model_state",
    "model_weights",
    "net",
    "network",
    "weights",
    "params",
    "params_ema",
    "ema",
    "ema_state_dict",
    "state_dict_ema",
    "generator",
    "discriminator",
    "student",
    "teacher",
];

/// The most names in a message.
const MOST_LISTED: usize = 12;

/// Something at the end of a path through nested containers.
#[derive(Clone, Debug)]
pub(super) struct Leaf<T> {
    /// The names on the way to it.
    pub(super) path: Vec<String>,
    /// The tensor, or what else it is, in words.
    pub(super) content: Content<T>,
}

/// What a leaf holds.
#[derive(Clone, Debug)]
pub(super) enum Content<T> {
    /// A tensor.
    Tensor(T),
    /// Something that is passed over and reported: "a number", "an object of the class argparse.Namespace".
    Other(String),
}

/// Which containers are looked into without being asked for, and where it must be said which holds the weights. The function
/// tells by name and content which tensors beside containers are no weights: a loss, a step.
pub(super) enum Descent<'a, T> {
    /// None: all is the weights.
    Asked,
    /// None; but where a container holds the state of an optimizer, it must be said.
    Trained,
    /// One alone that has a name for such. Tensors beside it make what is around it the weights.
    Alone(&'a dyn Fn(&str, &T) -> bool),
    /// The same; where tensors, or the state of an optimizer, stand beside a container, it must be said.
    Nested(&'a dyn Fn(&str, &T) -> bool),
}

/// Returns whether a container has a name of the state of an optimizer (PyTorch trainers, Flax's TrainState, big_vision).
fn is_optimizer(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(&*name, "opt" | "opt_state" | "optim" | "optimizers" | "optimizer_states")
        || name.split(['_', '.', '-']).any(|word| matches!(word, "optimizer" | "optim"))
}

/// Returns the tensors of the container that holds the weights, each with its key: the names below the container,
/// joined by `separator`.
///
/// What is passed over is reported as one warning.
///
/// # Errors
/// Returns `format/ambiguous-root` where several containers could be meant, and `format/no-root` where the one that is
/// asked for is not there.
pub(super) fn choose<T>(
    file: &Path,
    leaves: Vec<Leaf<T>>,
    separator: &str,
    descent: Descent<'_, T>,
    options: &OpenOptions,
    out: &mut Collector,
) -> Result<Vec<(String, T)>, Errors> {
    let root = match (&options.root, descent) {
        (Some(root), _) => asked(file, &leaves, root)?,
        (None, Descent::Alone(is_aside)) => alone(file, &leaves, is_aside, false)?,
        (None, Descent::Nested(is_aside)) => alone(file, &leaves, is_aside, true)?,
        (None, Descent::Trained) => {
            trained(file, &leaves)?;
            Vec::new()
        }
        (None, Descent::Asked) => Vec::new(),
    };
    let mut chosen = Vec::new();
    let mut skipped: IndexMap<String, (usize, String)> = IndexMap::new();
    for leaf in leaves {
        let inside = leaf.path.starts_with(&root);
        match leaf.content {
            Content::Tensor(tensor) if inside => {
                chosen.push((leaf.path[root.len()..].join(separator), tensor));
            }
            Content::Tensor(_) => note(&mut skipped, outside(&leaf.path, &root), None),
            Content::Other(what) if inside => note(&mut skipped, leaf.path.join(separator), Some(what)),
            Content::Other(what) => note(&mut skipped, outside(&leaf.path, &root), Some(what)),
        }
    }
    report(file, &root.join("."), skipped, out);
    Ok(chosen)
}

/// Returns the name under which something outside the root is reported: the container that is left aside.
fn outside(path: &[String], root: &[String]) -> String {
    let common = path.iter().zip(root).take_while(|(a, b)| a == b).count();
    path[..(common + 1).min(path.len())].join(".")
}

fn note(skipped: &mut IndexMap<String, (usize, String)>, name: String, what: Option<String>) {
    let entry = skipped.entry(name).or_default();
    match what {
        None => entry.0 += 1,
        Some(what) if entry.1.is_empty() => entry.1 = what,
        Some(_) => {}
    }
}

fn report(file: &Path, root: &str, skipped: IndexMap<String, (usize, String)>, out: &mut Collector) {
    if skipped.is_empty() {
        return;
    }
    let mut texts: Vec<String> = skipped
        .iter()
        .take(MOST_LISTED)
        .map(|(name, (tensors, what))| {
            let what = if *tensors > 0 { counted(*tensors) } else { what.clone() };
            format!("`{}` ({what})", shown(name))
        })
        .collect();
    if skipped.len() > MOST_LISTED {
        texts.push(format!("and {} more", skipped.len() - MOST_LISTED));
    }
    let place = if root.is_empty() { String::new() } else { format!(" beside or in `{}`", shown(root)) };
    let message = format!("not read{place}: {}", texts.join(", "));
    let mut diagnostic = Diagnostic::warning(FormatCode::Skipped, message).file(file);
    for name in skipped.into_keys() {
        diagnostic = diagnostic.tensor(name);
    }
    out.push(diagnostic);
}

fn counted(tensors: usize) -> String {
    if tensors == 1 { "1 tensor".to_owned() } else { format!("{tensors} tensors") }
}

/// Returns the containers directly below a path, with the number of tensors in each, and whether tensors lie there
/// directly.
fn below<'a, T>(
    leaves: &'a [Leaf<T>],
    path: &[String],
    is_aside: &dyn Fn(&str, &T) -> bool,
) -> (IndexMap<&'a str, usize>, bool) {
    let mut containers: IndexMap<&str, usize> = IndexMap::new();
    let mut direct = false;
    for leaf in leaves {
        let Content::Tensor(tensor) = &leaf.content else { continue };
        match leaf.path.strip_prefix(path) {
            Some([name]) => direct |= !is_aside(name, tensor),
            Some([name, ..]) => *containers.entry(name).or_default() += 1,
            Some([]) | None => {}
        }
    }
    (containers, direct)
}

fn alone<T>(
    file: &Path,
    leaves: &[Leaf<T>],
    is_aside: &dyn Fn(&str, &T) -> bool,
    asks: bool,
) -> Result<Vec<String>, Errors> {
    let mut root: Vec<String> = Vec::new();
    loop {
        let (containers, direct) = below(leaves, &root, is_aside);
        let named = containers.keys().find(|name| CONTAINERS.contains(name));
        let has_optimizer = asks && containers.len() > 1 && containers.keys().any(|name| is_optimizer(name));
        match named {
            None if !has_optimizer => return Ok(root),
            Some(name) if !direct && containers.len() == 1 => root.push((*name).to_owned()),
            Some(_) if direct && !asks => return Ok(root),
            _ => return Err(ambiguous(file, &root, &containers, direct)),
        }
    }
}

/// Demands to be told where the state of an optimizer stands beside the weights, as in Flax's TrainState (`params`,
/// `opt_state`; google/flax, `flax/training/train_state.py`) and in T5X's (`target`, `state`; google-research/t5x,
/// `t5x/train_state.py`), also inside containers that stand alone.
fn trained<T>(file: &Path, leaves: &[Leaf<T>]) -> Result<(), Errors> {
    let mut root: Vec<String> = Vec::new();
    loop {
        let (containers, direct) = below(leaves, &root, &|_, _| false);
        let has = |name: &str| containers.contains_key(name);
        if containers.len() > 1
            && (containers.keys().any(|name| is_optimizer(name)) || has("target") && has("state"))
        {
            return Err(ambiguous(file, &root, &containers, direct));
        }
        match containers.keys().next() {
            Some(name) if containers.len() == 1 => root.push((*name).to_owned()),
            _ => return Ok(()),
        }
    }
}

fn ambiguous(file: &Path, root: &[String], containers: &IndexMap<&str, usize>, direct: bool) -> Errors {
    let message = "several containers hold tensors, and it is not said which of them are the weights";
    let mut texts: Vec<String> = containers
        .iter()
        .take(MOST_LISTED)
        .map(|(name, count)| format!("`{}` ({})", shown(name), counted(*count)))
        .collect();
    if containers.len() > texts.len() {
        texts.push(format!("and {} more", containers.len() - texts.len()));
    }
    if direct {
        texts.push("tensors beside them".to_owned());
    }
    let usual = containers.keys().find(|name| CONTAINERS.contains(name) || **name == "target");
    let likely = usual.or_else(|| containers.keys().find(|name| !is_optimizer(name)));
    let example: Vec<&str> = root.iter().map(String::as_str).chain(likely.copied()).collect();
    let help = format!(
        "say which with `--root`, as in `--root {}`; `--root /` takes all of them",
        shown(&example.join("."))
    );
    Diagnostic::error(FormatCode::AmbiguousRoot, message).file(file).found(texts.join(", ")).help(help).into()
}

/// Returns the path of the container that is asked for: names joined by `.` or `/`, where a name may itself have dots; `/`
/// alone is the top.
fn asked<T>(file: &Path, leaves: &[Leaf<T>], root: &str) -> Result<Vec<String>, Errors> {
    let wanted = root.trim_matches(['.', '/']).replace('/', ".");
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let tensors = leaves.iter().filter(|leaf| matches!(leaf.content, Content::Tensor(_)));
    let mut known: Vec<String> = Vec::new();
    for leaf in tensors {
        let mut text = String::new();
        for (depth, name) in leaf.path[..leaf.path.len().saturating_sub(1)].iter().enumerate() {
            if depth > 0 {
                text.push('.');
            }
            text.push_str(&name.replace('/', "."));
            if text == wanted {
                return Ok(leaf.path[..=depth].to_vec());
            }
            if known.last() != Some(&text) && depth < 2 && known.len() < 1000 {
                known.push(text.clone());
            }
        }
    }
    known.sort();
    known.dedup();
    let message = format!("there is no container `{}` with tensors in it", shown(root));
    let diagnostic = Diagnostic::error(FormatCode::NoRoot, message).file(file);
    let names: Vec<String> = known.iter().take(20).map(|name| format!("`{}`", shown(name))).collect();
    let found = if names.is_empty() { "no containers".to_owned() } else { names.join(", ") };
    let diagnostic = diagnostic.found(found);
    Err(match nearest(&wanted, known.iter().map(String::as_str)) {
        Some(name) => diagnostic.help(format!("did you mean `--root {name}`?")),
        None => diagnostic.help("leave out `--root`, or name one of these"),
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tensor; whether it is a number.
    fn tensor(path: &str) -> Leaf<bool> {
        let is_number = path.ends_with("loss");
        Leaf { path: path.split('|').map(str::to_owned).collect(), content: Content::Tensor(is_number) }
    }

    fn other(path: &str) -> Leaf<bool> {
        let path = path.split('|').map(str::to_owned).collect();
        Leaf { path, content: Content::Other("a number".to_owned()) }
    }

    fn keys(leaves: Vec<Leaf<bool>>, root: Option<&str>) -> Result<(Vec<String>, Vec<String>), Errors> {
        let mut out = Collector::default();
        let options = OpenOptions { root: root.map(str::to_owned), ..OpenOptions::default() };
        let chosen = choose(
            Path::new("a.pt"),
            leaves,
            ".",
            Descent::Nested(&|_, is_number| *is_number),
            &options,
            &mut out,
        )?;
        let ((), warnings) = out.finish(())?;
        let skipped = warnings.into_iter().flat_map(|warning| warning.tensors).collect();
        Ok((chosen.into_iter().map(|(key, _)| key).collect(), skipped))
    }

    #[test]
    fn a_container_that_stands_alone_is_the_root() {
        let (found, skipped) =
            keys(vec![other("epoch"), tensor("state_dict|a.w"), tensor("state_dict|b.w")], None)
                .expect("chosen");
        assert_eq!((found, skipped), (vec!["a.w".into(), "b.w".into()], vec!["epoch".to_owned()]));
        let (found, _) = keys(vec![tensor("state_dict|model|w")], None).expect("chosen");
        assert_eq!(found, ["w"]);
        let (found, _) =
            keys(vec![tensor("model|encoder|w"), tensor("model|decoder|w")], None).expect("chosen");
        assert_eq!(found, ["encoder.w", "decoder.w"]);
    }

    #[test]
    fn the_top_is_the_root_without_containers_of_weights() {
        let (found, _) = keys(vec![tensor("w"), tensor("encoder|w")], None).expect("chosen");
        assert_eq!(found, ["w", "encoder.w"]);
        let (found, _) = keys(vec![tensor("encoder|w"), tensor("decoder|w")], None).expect("chosen");
        assert_eq!(found, ["encoder.w", "decoder.w"]);
        // The file of an optimizer alone.
        let (found, _) = keys(vec![tensor("state|0|exp_avg"), other("param_groups")], None).expect("chosen");
        assert_eq!(found, ["state.0.exp_avg"]);
    }

    #[test]
    fn what_lies_beside_a_container_does_not_turn_the_question_off() {
        for leaves in [
            vec![tensor("w"), tensor("model|w")],
            vec![tensor("state_dict|w"), tensor("optimizer|state|0|exp_avg"), tensor("rng_states")],
            vec![tensor("my weights|w"), tensor("encoder_optimizer|m")],
        ] {
            let text = format!("{:?}", keys(leaves.clone(), None).expect_err("ambiguous").diagnostics());
            assert!(text.contains("ambiguous-root") && text.contains("--root"), "{text}");
            assert_eq!(keys(leaves.clone(), Some("/")).expect("all").0.len(), leaves.len());
        }
    }

    #[test]
    fn the_state_of_an_optimizer_beside_nested_weights_is_a_question() {
        let ask = |paths: &[&str]| {
            let leaves = paths.iter().map(|path| tensor(path)).collect();
            choose(
                Path::new("a"),
                leaves,
                "/",
                Descent::Trained,
                &OpenOptions::default(),
                &mut Collector::default(),
            )
        };
        for (paths, example) in [
            (&["params|model|w", "opt_state|0|mu|model|w", "step"][..], "--root params"),
            (&["target|w", "state|param_states|w"], "--root target"),
            (&["optimizer|target|w", "optimizer|state|step"], "--root optimizer.target"),
        ] {
            let text = format!("{:?}", ask(paths).expect_err("ambiguous").diagnostics());
            assert!(text.contains(example), "{text}");
        }
        for paths in [&["params|model|w", "params|head|w"][..], &["model|w", "lm_head|kernel"], &["w"]] {
            assert_eq!(ask(paths).expect("all").len(), paths.len());
        }
    }

    #[test]
    fn a_number_beside_a_container_does_not_make_the_top_the_root() {
        let (found, skipped) = keys(vec![tensor("best_loss"), tensor("model|w")], None).expect("chosen");
        assert_eq!((found, skipped), (vec!["w".to_owned()], vec!["best_loss".to_owned()]));
        let (found, _) = keys(vec![tensor("loss"), tensor("a|w")], None).expect("chosen");
        assert_eq!(found, ["loss", "a.w"]);
    }

    #[test]
    fn several_containers_are_a_question() {
        let leaves = vec![other("args"), tensor("model|w"), tensor("optimizer|state|0|exp_avg")];
        let errors = keys(leaves.clone(), None).expect_err("ambiguous");
        let text = format!("{:?}", errors.diagnostics());
        assert!(
            text.contains("ambiguous-root") && text.contains("`model`") && text.contains("`optimizer`"),
            "{text}"
        );
        let (found, skipped) = keys(leaves.clone(), Some("model")).expect("chosen");
        assert_eq!((found, skipped), (vec!["w".to_owned()], vec!["args".into(), "optimizer".into()]));
        let (found, _) = keys(leaves.clone(), Some("optimizer/state")).expect("chosen");
        assert_eq!(found, ["0.exp_avg"]);
        let text = format!("{:?}", keys(leaves, Some("modl")).expect_err("not there"));
        assert!(text.contains("--root model"), "{text}");
    }

    #[test]
    fn names_with_dots_are_found_whole() {
        let (found, _) = keys(vec![tensor("a.b|c|w"), tensor("d|w")], Some("a.b.c")).expect("chosen");
        assert_eq!(found, ["w"]);
    }
}
