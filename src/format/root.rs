//! The weights in a file that nests them among other things: a training checkpoint, a state dict of state dicts.

use std::path::Path;

use indexmap::IndexMap;

use super::{OpenOptions, shown};
use crate::diag::{Collector, Diagnostic, Errors, nearest};

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

/// Whether a container that stands alone is looked into.
pub(super) enum Descent<'a, T> {
    /// Only with `--root`.
    Asked,
    /// Also where there is exactly one that has a name for such. Tensors beside it make what is around it the weights, but
    /// for single numbers, which the function tells: a loss, a step.
    Alone(&'a dyn Fn(&T) -> bool),
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
        (None, Descent::Alone(is_number)) => alone(file, &leaves, is_number)?,
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
    const MOST: usize = 12;
    let mut texts: Vec<String> = skipped
        .iter()
        .take(MOST)
        .map(|(name, (tensors, what))| {
            let what = if *tensors > 0 { counted(*tensors) } else { what.clone() };
            format!("`{}` ({what})", shown(name))
        })
        .collect();
    if skipped.len() > MOST {
        texts.push(format!("and {} more", skipped.len() - MOST));
    }
    let place = if root.is_empty() { String::new() } else { format!(" beside or in `{}`", shown(root)) };
    let message = format!("not read{place}: {}", texts.join(", "));
    let mut diagnostic = Diagnostic::warning("format/skipped", message).file(file);
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
    is_number: &dyn Fn(&T) -> bool,
) -> (IndexMap<&'a str, usize>, bool) {
    let mut containers: IndexMap<&str, usize> = IndexMap::new();
    let mut direct = false;
    for leaf in leaves {
        let Content::Tensor(tensor) = &leaf.content else { continue };
        match leaf.path.strip_prefix(path) {
            Some([_]) => direct |= !is_number(tensor),
            Some([name, ..]) => *containers.entry(name).or_default() += 1,
            Some([]) | None => {}
        }
    }
    (containers, direct)
}

fn alone<T>(file: &Path, leaves: &[Leaf<T>], is_number: &dyn Fn(&T) -> bool) -> Result<Vec<String>, Errors> {
    let mut root: Vec<String> = Vec::new();
    loop {
        let (containers, direct) = below(leaves, &root, is_number);
        let named: Vec<&str> = containers.keys().copied().filter(|name| CONTAINERS.contains(name)).collect();
        match named[..] {
            [name] if !direct && containers.len() == 1 => root.push(name.to_owned()),
            [] => return Ok(root),
            _ if direct => return Ok(root),
            _ => {
                let message =
                    "several containers hold tensors, and it is not said which of them are the weights";
                let texts: Vec<String> = containers
                    .iter()
                    .map(|(name, count)| format!("`{}` ({})", shown(name), counted(*count)))
                    .collect();
                let named = root.iter().cloned().chain([named[0].to_owned()]).collect::<Vec<_>>().join(".");
                let diagnostic = Diagnostic::error("format/ambiguous-root", message).file(file);
                let diagnostic = diagnostic.found(texts.join(", "));
                return Err(diagnostic
                    .help(format!("say which with `--root`, as in `--root {named}`"))
                    .into());
            }
        }
    }
}

/// Returns the path of the container that is asked for: names joined by `.` or `/`, where a name may itself have dots.
fn asked<T>(file: &Path, leaves: &[Leaf<T>], root: &str) -> Result<Vec<String>, Errors> {
    let wanted = root.trim_matches(['.', '/']).replace('/', ".");
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
    let diagnostic = Diagnostic::error("format/no-root", message).file(file);
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
            Descent::Alone(&|is_number| *is_number),
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
    fn tensors_at_the_top_make_the_top_the_root() {
        let (found, _) = keys(vec![tensor("w"), tensor("model|w")], None).expect("chosen");
        assert_eq!(found, ["w", "model.w"]);
        let (found, _) = keys(vec![tensor("encoder|w")], None).expect("chosen");
        assert_eq!(found, ["encoder.w"]);
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
