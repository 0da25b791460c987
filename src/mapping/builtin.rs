//! The mapping files that are compiled into the library.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Mapping;
use super::key::Template;
use super::names::Names;
use super::nest::is_prefix;
use super::read::read_built_in;
use crate::notation::Text;
use crate::parallel::in_parallel;
use crate::span::{Source, Span};

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../mappings/", $name, ".json")))),*]
    };
}

/// Name and text of each file in `mappings/`.
#[rustfmt::skip]
const FILES: &[(&str, &str)] = files! {
    "albert"
    "attention"
    "attention-pool"
    "bark"
    "bart"
    "beit"
    "bert"
    "blip-vision"
    "bloom"
    "chameleon"
    "chatglm"
    "clip"
    "dbrx"
    "deberta"
    "deepseek"
    "detr"
    "diffusion"
    "distilbert"
    "esm"
    "eva02"
    "falcon"
    "flux"
    "gemma"
    "gpt-neox"
    "gpt2"
    "gptj"
    "llama"
    "megatron"
    "mixtral"
    "mobilebert"
    "moonvit"
    "mpt"
    "musicgen"
    "olmo"
    "olmo2"
    "opt"
    "phi"
    "qwen-vl-vision"
    "roformer"
    "sam"
    "siglip"
    "stable-audio-3"
    "swin"
    "swinv2"
    "t5"
    "tabpfn"
    "tft"
    "transformer"
    "unet-attention"
    "vae"
    "vit"
    "wav2vec2"
    "whisper"
    "xlnet"
};

/// Files are read by as many threads at the most: all of them take a few hundredths of a second.
const MOST_THREADS: usize = 4;

/// Returns the names of the built-in families.
pub fn names() -> impl Iterator<Item = &'static str> + Clone {
    FILES.iter().map(|(name, _)| *name)
}

/// Returns the text of a built-in family's file.
pub(super) fn source(name: &str) -> Option<Arc<Source>> {
    let (name, text) = FILES.iter().find(|(file, _)| *file == name)?;
    Some(Arc::new(Source { name: format!("mappings/{name}.json"), text: (*text).to_owned() }))
}

/// The families that were read, each once.
static READ: [OnceLock<Mapping>; FILES.len()] = [const { OnceLock::new() }; FILES.len()];

/// Returns a built-in family; it is read when it is first asked for.
///
/// # Panics
/// Never in a released build: a test reads every built-in file.
pub fn family(name: &str) -> Option<Mapping> {
    let at = FILES.iter().position(|(file, _)| *file == name)?;
    let source = source(name)?;
    let mapping = READ[at].get_or_init(|| match read_built_in(&source) {
        Ok(mapping) => mapping,
        Err(errors) => panic!("the built-in {name} is wrong: {errors}"),
    });
    Some(mapping.clone())
}

/// Returns the built-in families that are wanted, in order. They are read by several threads.
pub(super) fn families(wanted: &(dyn Fn(&str) -> bool + Sync)) -> Vec<Mapping> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let one = |at: usize| Ok(Some(FILES[at].0).filter(|name| wanted(name)).and_then(family));
    match in_parallel(FILES.len(), threads, &(), &one) {
        Ok(read) => read.into_iter().flatten().collect(),
        Err(errors) => unreachable!("nothing fails and nobody stops it: {errors}"),
    }
}

/// As much of a file as tells the names of its tensors.
#[derive(Deserialize)]
struct Skimmed<'a> {
    #[serde(borrow)]
    layouts: BTreeMap<Cow<'a, str>, SkimmedLayout<'a>>,
    /// `keep` in a family of modules.
    #[serde(borrow, default)]
    unmapped: Option<Cow<'a, str>>,
}

/// As much of a layout as tells the names of its tensors.
#[derive(Deserialize)]
struct SkimmedLayout<'a> {
    #[serde(default)]
    tensors: SkimmedNames,
    #[serde(borrow, default)]
    like: Option<Cow<'a, str>>,
    /// What the names that are taken over lose.
    #[serde(borrow, default)]
    strip: Option<Cow<'a, str>>,
    /// What they gain then.
    #[serde(borrow, default)]
    add: Option<Cow<'a, str>>,
    /// A text, a list of them, null to take over none, and `false` where the field is not there.
    #[serde(default = "not_there")]
    models: serde_json::Value,
}

/// The names of a layout's tensors, whole.
#[derive(Default)]
struct SkimmedNames(Vec<String>);

impl<'de> Deserialize<'de> for SkimmedNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SkimmedNames, D::Error> {
        deserializer.deserialize_map(NamesVisitor)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = SkimmedNames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rules by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SkimmedNames, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if is_prefix(&name) {
                let inner = map.next_value::<Option<SkimmedNames>>()?.unwrap_or_default();
                names.extend(inner.0.iter().map(|rest| format!("{name}{rest}")));
            } else {
                map.next_value::<IgnoredAny>()?;
                names.push(name.into_owned());
            }
        }
        Ok(SkimmedNames(names))
    }
}

fn not_there() -> serde_json::Value {
    serde_json::Value::Bool(false)
}

impl SkimmedLayout<'_> {
    /// Returns the names that no other layout's text holds: the layout's own, and where those that it takes over are
    /// renamed, these too. Some may be null.
    fn new_names(&self, layouts: &BTreeMap<Cow<'_, str>, SkimmedLayout<'_>>) -> Vec<String> {
        match (&self.strip, &self.add) {
            (None, None) => self.tensors.0.clone(),
            _ => self.all_names(layouts, layouts.len()),
        }
    }

    /// Returns the layout's own names and those that it takes over; `most` is how many layouts can be like one another.
    fn all_names(&self, layouts: &BTreeMap<Cow<'_, str>, SkimmedLayout<'_>>, most: usize) -> Vec<String> {
        let mut names = self.tensors.0.clone();
        let parent = self.like.as_ref().and_then(|like| layouts.get(like.as_ref()));
        if let (Some(parent), Some(most)) = (parent, most.checked_sub(1)) {
            let (strip, add) = (self.strip.as_deref().unwrap_or(""), self.add.as_deref().unwrap_or(""));
            let taken = parent.all_names(layouts, most);
            names.extend(taken.iter().filter_map(|name| Some(format!("{add}{}", name.strip_prefix(strip)?))));
        }
        names
    }

    /// Returns whether the layout lists a model, itself or as another one that it is like.
    fn lists(&self, model: &str, layouts: &BTreeMap<Cow<'_, str>, SkimmedLayout<'_>>) -> bool {
        // A layout that is like itself is no built-in file's.
        let mut layout = self;
        for _ in 0..layouts.len() {
            match (&layout.models, &layout.like) {
                (serde_json::Value::Bool(_), Some(like)) => match layouts.get(like.as_ref()) {
                    Some(parent) => layout = parent,
                    None => return false,
                },
                (serde_json::Value::String(name), _) => return name == model,
                (serde_json::Value::Array(names), _) => return names.iter().any(|name| name == model),
                _ => return false,
            }
        }
        false
    }
}

/// Returns the built-in layouts, as `family/layout`, that list a model among theirs, those of whole models first. The
/// files are skimmed, not read.
pub fn listing(model: &str) -> Vec<String> {
    let quoted = format!("\"{model}\"");
    let (mut found, mut modules) = (Vec::new(), Vec::new());
    // Most files do not hold the name at all.
    for (family, text) in FILES.iter().filter(|(_, text)| text.contains(&quoted)) {
        let Ok(skimmed) = serde_json::from_str::<Skimmed<'_>>(text) else { continue };
        let listing = skimmed.layouts.iter().filter(|(_, layout)| layout.lists(model, &skimmed.layouts));
        let names = listing.map(|(name, _)| format!("{family}/{name}"));
        let is_modules = skimmed.unmapped.as_deref() == Some("keep");
        (if is_modules { &mut modules } else { &mut found }).extend(names);
    }
    found.append(&mut modules);
    found
}

/// Returns whether any layout of a built-in family may hold one of the names. The file is skimmed, not read: of most
/// families a checkpoint has no name.
pub(super) fn may_hold(name: &str, names: &Names<'_>) -> bool {
    let Some((_, text)) = FILES.iter().find(|(file, _)| *file == name) else { return false };
    // What cannot be skimmed is told by reading it.
    let Ok(skimmed) = serde_json::from_str::<Skimmed<'_>>(text) else { return true };
    let mut templates = skimmed.layouts.values().flat_map(|layout| layout.new_names(&skimmed.layouts));
    templates.any(|template| matches_any(&template, names))
}

/// Returns whether a template matches one of the names, whether or not they are `FILE::KEY`.
fn matches_any(text: &str, names: &Names<'_>) -> bool {
    let source = Arc::new(Source { name: String::new(), text: text.to_owned() });
    let span = Span::new(&source, 0, text.len());
    let Ok(template) = Template::parse(Text { text, span: &span, verbatim: true }) else { return true };
    names.near(&template, true).iter().any(|&at| {
        let name = names.all()[at];
        let split = name.split_once("::");
        template.matches("", name).is_some()
            || split.is_some_and(|(file, key)| template.matches(file, key).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::key::{Captures, Paths};

    #[test]
    fn every_built_in_file_is_right() {
        for name in names() {
            let source = source(name).expect("is there");
            crate::mapping::read(&source).unwrap_or_else(|errors| panic!("{name}: {errors}"));
            assert_eq!(family(name).expect("is there").family, name);
        }
    }

    #[test]
    fn skimmed_models_are_those_that_are_read() {
        let all = families(&|_| true);
        let layouts =
            || all.iter().flat_map(|mapping| mapping.layouts.values().map(move |layout| (mapping, layout)));
        let models: std::collections::BTreeSet<&str> =
            layouts().flat_map(|(_, layout)| layout.models.iter().map(String::as_str)).collect();
        assert!(models.contains("llama") && models.contains("gpt2"));
        for model in models {
            let mut read: Vec<String> = layouts()
                .filter(|(_, layout)| layout.models.iter().any(|name| name == model))
                .map(|(mapping, layout)| format!("{}/{}", mapping.family, layout.name))
                .collect();
            let mut skimmed = listing(model);
            read.sort();
            skimmed.sort();
            assert_eq!(skimmed, read, "{model}");
        }
        assert_eq!(listing("no such model"), [] as [&str; 0]);
    }

    #[test]
    fn a_family_is_skimmed_for_every_name_that_it_holds() {
        let all = families(&|_| true);
        assert!(all.iter().map(|mapping| mapping.family.as_str()).eq(names()));
        for mapping in &all {
            for layout in mapping.layouts.values() {
                // What `like` takes over stands in another layout's text.
                let captures = |template: &Template| {
                    let mut paths: Paths =
                        template.paths().map(|path| (path.into(), ["m".to_owned()].into())).collect();
                    paths.sort();
                    let mut indices: Vec<(Arc<str>, u64)> =
                        template.axes().map(|axis| (axis.into(), 1)).collect();
                    indices.sort();
                    let counts = template.counts().map(|axis| (axis.into(), 2)).collect();
                    Captures { paths, indices, counts }
                };
                for rule in &layout.rules {
                    let (file, key) = rule.template.print(&captures(&rule.template)).expect("prints");
                    let name = file.map_or(key.clone(), |file| format!("{file}::{key}"));
                    let held = may_hold(&mapping.family, &Names::new(vec!["no.such.name", &name]));
                    assert!(held, "{} {name}", mapping.family);
                }
            }
        }
        let none = Names::new(vec!["no.such/name"]);
        let holding: Vec<&str> = names().filter(|name| may_hold(name, &none)).collect();
        assert_eq!(holding, [] as [&str; 0]);
    }
}
