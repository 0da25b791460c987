//! Model types that look like another family's and are none of it.
//!
//! A checkpoint of Granite has the names and shapes of Llama, and multipliers that no Llama has; nothing in its tensors
//! tells. What a config calls `model_type`, or a GGUF file `general.architecture`, does. `strangers.json` lists those
//! that no layout here is for; `tests/frameworks` has the sweep over a framework's models that it was made from.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

/// A model type whose tensors look like those of a family that is not its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stranger {
    /// The families that name and shape their tensors alike, `family`, or single layouts of them, `family/layout`.
    pub not: Vec<String>,
    /// What it computes otherwise, in words.
    pub why: String,
    /// The repository and file in which that stands.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Strangers {
    #[serde(rename = "about")]
    _about: String,
    models: BTreeMap<String, Stranger>,
}

/// Returns what is known of a model type (`model_type` of a config, `general.architecture` of a GGUF file) that looks
/// like a family, or a layout, which is not its own; `None` for all others. A layout that lists the type in `models`
/// holds it, whatever is known here.
///
/// # Panics
/// Never in a released build: a test reads the list.
pub fn stranger(model: &str) -> Option<&'static Stranger> {
    all().get(model)
}

fn all() -> &'static BTreeMap<String, Stranger> {
    static READ: OnceLock<BTreeMap<String, Stranger>> = OnceLock::new();
    READ.get_or_init(|| match serde_json::from_str::<Strangers>(include_str!("strangers.json")) {
        Ok(strangers) => strangers.models,
        Err(error) => panic!("the built-in list of strangers is wrong: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::builtin;

    #[test]
    fn a_stranger_says_what_it_is_not_and_why() {
        let granite = stranger("granite").expect("is listed");
        assert!(granite.not.iter().any(|family| family == "llama"));
        assert!(granite.why.contains("multipliers"));
        assert!(stranger("llama").is_none() && stranger("").is_none());
    }

    #[test]
    fn a_single_layout_may_be_the_wrong_one() {
        assert_eq!(stranger("codegen").expect("is listed").not, ["attention/phi3"]);
    }

    #[test]
    fn strangers_are_told_from_families_that_there_are() {
        for (model, stranger) in all() {
            assert!(!stranger.not.is_empty() && !stranger.why.is_empty(), "{model}");
            assert!(stranger.source.contains('/') && stranger.source.contains(' '), "{model}");
            for family in &stranger.not {
                if let Some((family, layout)) = family.split_once('/') {
                    let family =
                        builtin::family(family).unwrap_or_else(|| panic!("{model}: no family {family}"));
                    assert!(
                        family.layouts.get(layout).is_some_and(|layout| !layout.models.contains(model)),
                        "{model}"
                    );
                    continue;
                }
                let family = builtin::family(family).unwrap_or_else(|| panic!("{model}: no family {family}"));
                // A layout that lists a stranger of its family would be both right and wrong for it; but GGUF files may
                // hold the same model in the family's order.
                for layout in family.layouts.values().filter(|layout| !layout.name.starts_with("gguf")) {
                    assert!(!layout.models.contains(model), "{model}: {}/{}", family.family, layout.name);
                }
            }
        }
    }
}
