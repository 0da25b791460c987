//! The config that is written for the target's framework: sizes and settings in its words, all else as it was.

use serde_json::{Map, Value};

use crate::bind::Bound;
use crate::catalog::Catalog;
use crate::mapping::ConfigEntry;
use crate::mapping::select::Selection;
use crate::mapping::setting::{Origin, Setting};
use crate::provenance::{Document, Facts};

/// A config in the target framework's terms.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenConfig {
    /// Its file's name.
    pub name: String,
    /// The entries that the mapping tells.
    pub told: Vec<String>,
    /// The entries of the source's config of which the mapping knows nothing, and that stay under their names.
    pub kept: Vec<String>,
    /// The target's entries, and those of the source's config, that the mapping cannot tell.
    pub untold: Vec<String>,
    /// What it says of the model, where that is what the source's config says.
    pub(super) model_type: Option<String>,
}

/// Returns whether the source's config tells the target layout's sizes, and so serves it as it is.
pub(super) fn serves(selection: &Selection, bound: &Bound, config: &Document) -> bool {
    let (source, target) = (selection.source(), selection.target());
    if target.config.is_empty() {
        return true;
    }
    let same_file = source.config_file() == target.config_file();
    let guards = target.when.iter().all(|condition| condition.holds(config.get(&condition.key)));
    let sizes = target.config.iter().all(|(axis, entry)| {
        let known = size_of(bound, axis);
        let value = entry.keys.iter().find_map(|key| config.get(key)?.as_f64());
        let told = value.and_then(|value| entry.size(value, &|name| size_of(bound, name)));
        let absent = entry.absent.as_ref().filter(|_| value.is_none());
        let taken = absent.and_then(|absent| absent.eval_size(&|name| size_of(bound, name)));
        // What no side tells is missing in both.
        known.is_none() || told.or(taken) == known
    });
    same_file && guards && sizes
}

/// Returns the size of an axis, where the whole checkpoint has one.
fn size_of(bound: &Bound, axis: &str) -> Option<u64> {
    let mut sizes = bound.sizes.iter().filter(|size| size.axis == axis).map(|size| size.value);
    let first = sizes.next()?;
    sizes.all(|size| size == first).then_some(first)
}

/// The config that is written for the target's framework: from the bound sizes, and from what describes the source.
pub(super) struct Config<'a> {
    pub(super) selection: &'a Selection,
    pub(super) bound: &'a Bound,
    pub(super) facts: Facts<'a>,
    /// What describes the source.
    pub(super) document: &'a Document,
    pub(super) catalog: &'a Catalog,
}

impl<'a> Config<'a> {
    /// Returns the text, and what is told in it.
    pub(super) fn write(&self) -> (Vec<u8>, WrittenConfig) {
        let target = self.selection.target();
        let mut entries = Map::new();
        let (mut told, mut untold) = (Vec::new(), Vec::new());
        for (name, setting) in &target.settings {
            let Some(key) = setting.keys.first() else { continue };
            match self.value(name, setting).filter(|value| setting.usual.as_ref() != Some(value)) {
                Some(value) => {
                    put(&mut entries, key, value);
                    told.push(key.clone());
                }
                None if setting.absent.is_none() && setting.usual.is_none() => {
                    untold.push(format!("`{key}` ({name}) of {}", target.config_file()));
                }
                None => {}
            }
        }
        for (axis, entry) in &target.config {
            let Some(key) = entry.keys.first() else { continue };
            // What the framework takes by itself is not written: some read no such entry.
            let size = self.size(axis);
            let taken = entry.absent.as_ref().and_then(|absent| absent.eval_size(&|name| self.size(name)));
            if size.is_some() && taken == size {
                continue;
            }
            // One entry cannot tell two axes that differ, such as the sides of a patch.
            let agrees = target.config.iter().all(|(other, twin)| {
                twin.keys.first() != Some(key)
                    || self.entry(other, twin).is_none_or(|it| Some(it) == self.entry(axis, entry))
            });
            match self.entry(axis, entry).or_else(|| self.same_entry(axis, key)).filter(|_| agrees) {
                Some(value) => {
                    put(&mut entries, key, value);
                    told.push(key.clone());
                }
                None => untold.push(format!("`{key}` ({axis}) of {}", target.config_file())),
            }
        }
        for condition in &target.when {
            if let Some(value) = condition.allowed.iter().find(|value| !value.is_null()) {
                put(&mut entries, &condition.key, value.clone());
                told.push(condition.key.clone());
            }
        }
        let carried = self.carried();
        if carried.is_none() {
            untold.extend(self.unused().map(|key| format!("`{key}` of {}", self.document.name)));
        }
        // Tensors that say what a config says elsewhere: the scaling of rotary frequencies.
        let computed = &self.selection.source().computed;
        let is_computed = |key: &str| computed.iter().any(|it| it.template.matches("", key).is_some());
        let dropped =
            self.bound.dropped.iter().map(|dropped| self.catalog.tensors[dropped.tensor].key.as_str());
        untold.extend(
            dropped.filter(|key| is_computed(key)).map(|key| format!("what the tensor `{key}` says")),
        );
        let (mut kept, mut model_type) = (Vec::new(), None);
        if let Some(mut all) = carried {
            kept.extend(all.keys().filter(|key| !entries.contains_key(*key)).cloned());
            model_type = all.get("model_type").filter(|_| !entries.contains_key("model_type")).cloned();
            overlay(&mut all, entries);
            entries = all;
        }
        let model_type = model_type.as_ref().and_then(Value::as_str).map(str::to_owned);
        let text = serde_json::to_string_pretty(&Value::Object(entries)).unwrap_or_default() + "\n";
        let name = target.config_file().to_owned();
        (text.into_bytes(), WrittenConfig { name, told, kept, untold, model_type })
    }

    /// Returns the source's config without the entries that the target's framework has words of its own for; nothing where
    /// that framework reads a file of another name, whose readers need not take entries that they do not know
    /// (meta-llama/llama, `llama/generation.py`: `ModelArgs(**params)`).
    fn carried(&self) -> Option<Map<String, Value>> {
        let (source, target) = (self.selection.source(), self.selection.target());
        if !self.document.is_file() || self.document.name != target.config_file() {
            return None;
        }
        let sizes = source.config.iter().filter(|(axis, _)| target.config.contains_key(*axis));
        let settings = source.settings.iter().filter(|(name, _)| target.settings.contains_key(*name));
        let known = sizes.flat_map(|(_, entry)| &entry.keys).chain(settings.flat_map(|(_, it)| &it.keys));
        let known = known.chain(source.when.iter().map(|condition| &condition.key));
        // What the target's framework reads is told anew or not at all: under that name the source may mean something else.
        let read = target.config.values().flat_map(|entry| &entry.keys);
        let read = read.chain(target.settings.values().flat_map(|setting| &setting.keys));
        let mut all = self.document.value.as_object()?.clone();
        for key in known {
            if let Some(fact) = self.facts.get(key) {
                remove(&mut all, fact.path());
            }
        }
        read.for_each(|key| remove(&mut all, key));
        Some(all)
    }

    /// Returns the size of an axis: as it was found, or as the source's layout or the family fixes it.
    fn size(&self, axis: &str) -> Option<u64> {
        let (source, mapping) = (self.selection.source(), self.selection.mapping());
        let own = source.axes.get(axis).and_then(|axis| axis.size);
        let fixed = || own.or_else(|| mapping.axes.get(axis).and_then(|axis| axis.size));
        size_of(self.bound, axis).or_else(fixed)
    }

    /// Returns what the source's config says under a key, where both sides mean the same axis by it.
    fn same_entry(&self, axis: &str, key: &String) -> Option<Value> {
        let own = self.selection.source().config.get(axis)?;
        own.keys.contains(key).then(|| self.facts.value(key).cloned()).flatten()
    }

    /// Returns what an entry for a size says.
    fn entry(&self, axis: &str, entry: &ConfigEntry) -> Option<Value> {
        entry.value_for(self.size(axis)?, &|name| self.size(name)).and_then(number)
    }

    /// Returns the value of a setting of the target.
    fn value(&self, name: &str, setting: &Setting) -> Option<Value> {
        match &setting.origin {
            Origin::Fixed(value) => Some(value.clone()),
            Origin::Size(axis) => self.size(axis).map(Value::from),
            Origin::Holds(param) => Some(self.holds(param).into()),
            Origin::Lacks(param) => Some((!self.holds(param)).into()),
            Origin::Carried => {
                let source = self.selection.source().settings.get(name)?;
                let told = self.facts.first(&source.keys).map(|fact| fact.value.clone());
                let usual = |value: &Value| source.usual.as_ref() == Some(value);
                let value = told.or_else(|| source.absent.clone());
                let value = value.filter(|value| !value.is_null() && !usual(value))?;
                // GGUF has one type of numbers for all entries of a kind; a framework that takes a whole one refuses 8.0.
                let wants_whole = setting.absent.as_ref().is_some_and(Value::is_i64);
                Some(if wants_whole { value.as_f64().and_then(number).unwrap_or(value) } else { value })
            }
        }
    }

    /// Returns whether the output has a tensor for a parameter.
    fn holds(&self, param: &str) -> bool {
        let rules = &self.selection.target().rules;
        let of = |rule: usize| rules.get(rule).is_some_and(|rule| rule.expr.params().contains(&param));
        self.bound.targets.iter().any(|target| of(target.reading.rule))
    }

    /// Returns the entries of the source's description that neither its layout nor the target's reads.
    ///
    /// Of GGUF's metadata those under the architecture's name alone are the model's own: the others describe the file and
    /// the vocabulary. A pickle's settings describe a training run.
    fn unused(&self) -> impl Iterator<Item = &'a str> {
        let (source, target) = (self.selection.source(), self.selection.target());
        let (document, facts, bound) = (self.document, self.facts, self.bound);
        let own = document.architecture().map(|name| format!("{name}."));
        let is_model = move |key: &str| match &own {
            Some(prefix) => key.starts_with(prefix.as_str()),
            None => document.is_file(),
        };
        let root = |key: &'a str| key.split('.').next().unwrap_or(key);
        let covers =
            move |keys: &'a [String], key: &str| keys.iter().any(|known| known == key || root(known) == key);
        let says_nothing = move |setting: &Setting| {
            let value = facts.first(&setting.keys).map(|fact| fact.value);
            let size = match &setting.origin {
                Origin::Size(axis) => size_of(bound, axis).map(Value::from),
                _ => None,
            };
            value.is_none() || value == setting.usual.as_ref() || value == size.as_ref()
        };
        let used = move |key: &str| {
            source.config.values().any(|entry| covers(&entry.keys, key))
                || source.when.iter().any(|condition| covers(std::slice::from_ref(&condition.key), key))
                || {
                    let mut covering =
                        source.settings.iter().filter(|(_, setting)| covers(&setting.keys, key)).peekable();
                    let told = |(name, setting): (&String, &Setting)| {
                        target.settings.contains_key(name) || says_nothing(setting)
                    };
                    covering.peek().is_some() && covering.all(told)
                }
        };
        let keys = document.value.as_object().into_iter().flat_map(|object| object.keys());
        keys.map(String::as_str).filter(move |key| is_model(key) && !used(key))
    }
}

/// Removes the entry under a key whose dots reach into nested objects, and objects that are empty by that.
fn remove(entries: &mut Map<String, Value>, key: &str) {
    if entries.remove(key).is_some() {
        return;
    }
    let Some((first, rest)) = key.split_once('.') else { return };
    if let Some(Value::Object(nested)) = entries.get_mut(first) {
        remove(nested, rest);
        if nested.is_empty() {
            entries.remove(first);
        }
    }
}

/// Puts entries over others, nested objects entry by entry.
fn overlay(below: &mut Map<String, Value>, above: Map<String, Value>) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => overlay(below, above),
            (_, value) => drop(below.insert(key, value)),
        }
    }
}

/// Puts a value under a key whose dots reach into nested objects.
fn put(entries: &mut Map<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            entries.insert(key.to_owned(), value);
        }
        Some((first, rest)) => {
            let nested = entries.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(nested) = nested {
                put(nested, rest, value);
            }
        }
    }
}

/// Returns a number as JSON, whole where it is whole.
fn number(value: f64) -> Option<Value> {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Some((value as i64).into());
    }
    serde_json::Number::from_f64(value).map(Value::Number)
}
