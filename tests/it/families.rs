//! Whole models of every family, from each layout to each other and back: `tests/families/FAMILY.json` or
//! `FAMILY.NAME.json` lists one model's tensors as a framework names and shapes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use qkvconv::bind::BindOptions;
use qkvconv::catalog::TensorMeta;
use qkvconv::convert::{Conversion, ConvertOptions, Verify, open_as};
use qkvconv::diag::{Errors, MappingCode};
use qkvconv::dtype::Dtype;
use qkvconv::exec::Limits;
use qkvconv::exec::publish::{Destination, PublishOptions};
use qkvconv::format::OpenOptions;
use qkvconv::mapping::Layout;
use qkvconv::mapping::key::Template;
use qkvconv::mapping::select::select;
use qkvconv::span::Source;
use serde::Deserialize;

use crate::kit::{self, Nobody, Tensor, Tensors, two_at_a_time, width, write, xorshift};

/// A model of tiny odd sizes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    /// The family.
    pub(crate) mapping: String,
    /// The layout of `tensors`.
    pub(crate) layout: String,
    /// The config beside them.
    config: Option<serde_json::Value>,
    /// Sizes that nothing tells.
    #[serde(default)]
    pub(crate) axes: BTreeMap<String, u64>,
    /// The layouts that the model can be in.
    pub(crate) layouts: Vec<String>,
    tensors: BTreeMap<String, Meta>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    dtype: String,
    shape: Vec<u64>,
}

/// Returns the names of the models, in order, and the text of their files.
pub(crate) fn model_files() -> Vec<(String, String)> {
    let folder = kit::root().join("tests/families");
    let mut files: Vec<(String, String)> = std::fs::read_dir(folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("readable"))
        })
        .collect();
    files.sort();
    files
}

pub(crate) fn models() -> Vec<(String, Model)> {
    let read = |(name, text): (String, String)| {
        let model = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, model)
    };
    model_files().into_iter().map(read).collect()
}

/// Fills the tensors from an xorshift, as floats between 1 and 2 with a sign, in steps so large that adding 1 is exact.
fn filled(model: &Model) -> Tensors {
    let mut next = xorshift();
    let mut fill = |meta: &Meta| {
        let count = meta.shape.iter().product::<u64>();
        let bytes = (0..count).flat_map(|_| {
            let random = next();
            match meta.dtype.as_str() {
                "F32" => {
                    f32::from_bits(0x3f80_0000 | (random >> 41) as u32 & !0xf | (random as u32 & 0x8000_0000))
                        .to_le_bytes()
                        .to_vec()
                }
                // Random bits below infinity, so that a forward of them stays finite.
                "F16" | "BF16" => (0x3800_u16 | (random >> 55) as u16 & 0x7f).to_le_bytes().to_vec(),
                other => random.to_le_bytes()[..width(other)].to_vec(),
            }
        });
        Tensor::new(&meta.dtype, &meta.shape, bytes.collect())
    };
    model.tensors.iter().map(|(key, meta)| (key.clone(), fill(meta))).collect()
}

/// The attention modules that a conversion must compute and did not.
type Uncomputed = Vec<String>;

/// Converts, verifies and returns what was not computed although both layouts say how.
fn convert(
    model: &Model,
    (from, to): (&str, &str),
    source: &Path,
    target: &Path,
    mapping: &[Arc<Source>],
) -> Result<Uncomputed, Errors> {
    let name = |layout: &str| format!("{}/{layout}", model.mapping);
    let selection = select(&name(from), &name(to), mapping)?;
    let (family, ends) = (selection.mapping(), [selection.source(), selection.target()]);
    let is_known = |axis: &String| {
        family.axes.contains_key(axis) || ends.iter().any(|layout| layout.axes.contains_key(axis))
    };
    let axes = model.axes.iter().filter(|(axis, _)| is_known(axis));
    let bind = BindOptions::default().axes(axes.map(|(axis, size)| (axis.clone(), *size)));
    let options = ConvertOptions::default().bind(bind).companions(true);
    let conversion = Conversion::prepare(&selection, source, &options)?;
    let limits = Limits::default().threads(1);
    let publish = PublishOptions::default().force(true);
    let destination = Destination::Folder(target.to_owned());
    let done = conversion.run(&destination, publish, Verify::Full, &limits, &Nobody)?;
    done.verdict()?;
    let attention = done.checked.and_then(|checked| checked.attention).unwrap_or_default();
    let (a, b) = (&selection.source().forwards, &selection.target().forwards);
    let shared = a.iter().filter(|(kind, _)| b.contains_key(*kind));
    // A model may lack a kind altogether.
    let keys = keys_in(selection.source(), source);
    let present = shared.filter(|(_, forward)| {
        let named =
            |template: &Template| keys.iter().any(|(file, key)| template.matches(file, key).is_some());
        forward.templates().into_iter().any(named)
    });
    let without = present.filter(|(kind, _)| !attention.kinds.contains_key(*kind));
    Ok(without
        .map(|(kind, _)| format!("no attention `{kind}` was computed: {:?}", attention.abstained))
        .collect())
}

/// Returns the names of a checkpoint's tensors, file and key.
fn keys_in(layout: &Layout, path: &Path) -> Vec<(String, String)> {
    let reader = open_as(layout, path, &OpenOptions::default()).expect("opens");
    let split = |tensor: &TensorMeta| match tensor.key.split_once("::") {
        Some((file, key)) => (file.to_owned(), key.to_owned()),
        None => (String::new(), tensor.key.clone()),
    };
    reader.catalog().tensors.iter().map(split).collect()
}

/// Returns everything that a checkpoint holds.
fn contents(model: &Model, layout: &str, path: &Path) -> Vec<Content> {
    let family = qkvconv::mapping::builtin::family(&model.mapping).expect("a family");
    let layout = &family.layouts[layout];
    let reader = open_as(layout, path, &OpenOptions::default()).expect("opens");
    let read = |tensor: &TensorMeta| {
        let mut bytes = vec![0; tensor.bytes() as usize];
        reader.read_exact_at(tensor.file, tensor.offset, &mut bytes).expect("reads");
        (tensor.key.clone(), tensor.dtype, tensor.shape.clone(), bytes)
    };
    let mut all: Vec<_> = reader.catalog().tensors.iter().map(read).collect();
    all.sort();
    all
}

/// A tensor: its name, type, shape and bytes.
type Content = (String, Dtype, Vec<u64>, Vec<u8>);

/// Returns whether a checkpoint that went there and back is the one that it was: the same tensors, and beside them at most
/// copies of one of them, of a layer that is tied here and stored on its own there.
fn is_again(back: &[Content], first: &[Content]) -> bool {
    let (same, more): (Vec<_>, Vec<_>) = back.iter().partition(|content| first.contains(content));
    let is_copy = |(name, dtype, shape, bytes): &Content| {
        let holds = |other: &Content| (&other.1, &other.2, &other.3) == (dtype, shape, bytes);
        first.iter().all(|other| other.0 != *name) && first.iter().any(holds)
    };
    same.len() == first.len() && more.into_iter().all(is_copy)
}

/// Writes a model's own checkpoint.
pub(crate) fn write_base(model: &Model, folder: &Path) {
    std::fs::create_dir(folder).expect("a folder");
    write(&folder.join("model.safetensors"), &filled(model), &[]);
    if let Some(config) = &model.config {
        std::fs::write(folder.join("config.json"), config.to_string()).expect("writable");
    }
}

/// Converts a model everywhere and returns what went wrong.
fn everywhere(model: &Model) -> Vec<String> {
    let work = tempfile::tempdir().expect("a folder");
    let at = |name: &str| work.path().join(name);
    write_base(model, &at(".base"));
    let mut wrong = Vec::new();
    let mut reached = Vec::new();
    for layout in &model.layouts {
        match convert(model, (&model.layout, layout), &at(".base"), &at(layout), &[]) {
            Ok(uncomputed) => {
                reached.push(layout);
                wrong.extend(uncomputed.iter().map(|what| format!("{} -> {layout}: {what}", model.layout)));
            }
            Err(errors) => wrong.push(format!("{} -> {layout}: {errors}", model.layout)),
        }
    }
    for from in &reached {
        // There and back is both directions, so each pair needs to be gone once.
        for to in reached.iter().skip_while(|to| *to != from).skip(1) {
            let way = format!("{from} -> {to}");
            match convert(model, (from, to), &at(from), &at(".there"), &[]) {
                Err(errors) => wrong.push(format!("{way}: {errors}")),
                Ok(uncomputed) => {
                    wrong.extend(uncomputed.iter().map(|what| format!("{way}: {what}")));
                    if let Err(errors) = convert(model, (to, from), &at(".there"), &at(".back"), &[]) {
                        wrong.push(format!("{way} -> {from}: {errors}"));
                    } else if !is_again(
                        &contents(model, from, &at(".back")),
                        &contents(model, from, &at(from)),
                    ) {
                        wrong.push(format!("{way} -> {from}: not the same tensors again"));
                    }
                }
            }
            for folder in [".there", ".back"] {
                let _ = std::fs::remove_dir_all(at(folder));
            }
        }
    }
    wrong
}

/// Runs something on every model, two at a time, and returns what went wrong.
fn on_every_model(run: &(dyn Fn(&Model) -> Vec<String> + Sync)) -> Vec<String> {
    let wrong = Mutex::new(Vec::new());
    two_at_a_time(models(), &|(name, model)| {
        let texts = run(&model).into_iter().map(|text| format!("{name}: {text}"));
        wrong.lock().expect("not poisoned").extend(texts);
    });
    wrong.into_inner().expect("not poisoned")
}

#[test]
fn every_layout_converts_to_every_other_and_back() {
    let wrong = on_every_model(&everywhere);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every layout of every built-in family is in one of the models.
#[test]
fn every_layout_has_a_model() {
    let models = models();
    let mut missing = Vec::new();
    for family in qkvconv::mapping::builtin::names().filter(|name| *name != "attention") {
        let mapping = qkvconv::mapping::builtin::family(family).expect("a family");
        for layout in mapping.layouts.keys() {
            let has = |model: &Model| model.mapping == family && model.layouts.contains(layout);
            if !models.iter().any(|(_, model)| has(model)) {
                missing.push(format!("{family}/{layout}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Attention that no layout of a family says `forward` for: the family, how the names of its parameters begin, and why.
const UNSAID: &[(&str, &str, &str)] = &[
    (
        "deepseek",
        "q.",
        "latent attention: keys and values come from a product of two, and share their rotated part",
    ),
    ("detr", "map.", "the mask head's attention has no values and no output"),
    ("sam", "decoder.", "the decoder's heads are no axes of the family: no layout reorders them"),
    ("sam", "final.", "likewise"),
];

/// Of pipeline stages no attention is computed: no other layout tells modules by the stage and the place in it.
fn is_in_stages(layout: &Layout) -> bool {
    layout.axes.contains_key("l") && layout.is_file_set()
}

/// Every q, k and v of every layout takes part in a `forward` entry of it, or stands in the list.
#[test]
fn every_attention_says_how_it_computes() {
    let mut silent = Vec::new();
    let mut unused: Vec<_> = UNSAID.iter().map(|(family, start, _)| (*family, *start)).collect();
    for family in qkvconv::mapping::builtin::names() {
        let mapping = qkvconv::mapping::builtin::family(family).expect("a family");
        for layout in mapping.layouts.values() {
            if is_in_stages(layout) {
                continue;
            }
            let templates = layout.forwards.values().flat_map(|forward| forward.templates());
            let said: Vec<String> = templates.map(ToString::to_string).collect();
            for rule in layout.rules.iter().filter(|rule| !said.contains(&rule.template.to_string())) {
                for param in rule.expr.params().into_iter().filter(|param| is_attention(param)) {
                    let known = |entry: &(&str, &str)| entry.0 == family && param.starts_with(entry.1);
                    if UNSAID.iter().any(|(family, start, _)| known(&(family, start))) {
                        unused.retain(|entry| !known(entry));
                    } else {
                        silent.push(format!("{family}/{}: {param}", layout.name));
                    }
                }
            }
        }
    }
    assert!(silent.is_empty(), "without a forward entry: {silent:#?}");
    assert!(unused.is_empty(), "they have one: {unused:?}");
}

/// Returns whether a parameter is the weight of q, k or v, by its name.
fn is_attention(param: &str) -> bool {
    let mut parts = param.rsplit('.');
    parts.next() == Some("weight") && matches!(parts.next(), Some("q" | "k" | "v"))
}

/// Puts one parameter in the other's place in an expression, with its own axes; the same the other way round.
fn exchanged(text: &str, (a, b): (&str, &str), axes: &dyn Fn(&str) -> Vec<String>) -> String {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut result = String::new();
    let mut renamed: Vec<(String, String)> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c: char| is_name(c) != is_name(first)).unwrap_or(rest.len());
        let (token, behind) = rest.split_at(length);
        let other = [(a, b), (b, a)].into_iter().find(|(from, _)| *from == token).map(|(_, to)| to);
        if is_name(first) && behind.starts_with(':') {
            result.push_str(other.unwrap_or(token));
            let pairs = other.map(|other| axes(token).into_iter().zip(axes(other)).collect());
            renamed = pairs.unwrap_or_default();
        } else {
            let new = renamed.iter().find(|(from, _)| from == token).map(|(_, to)| to.as_str());
            result.push_str(new.unwrap_or(token));
        }
        rest = behind;
    }
    result
}

/// Exchanges two parameters in all rules of a layout that hold one of them; `None` where it has none.
fn swapped(family: &serde_json::Value, layout: &str, pair: (&str, &str)) -> Option<serde_json::Value> {
    let axes = |param: &str| -> Vec<String> {
        let entry = &family["params"][param];
        let text = entry.as_str().or_else(|| entry["axes"].as_str()).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    };
    let mut mutant = family.clone();
    let mut found = serde_json::Map::new();
    let mut at = Some(layout.to_owned());
    let mut seen = Vec::new();
    // What the names lose and gain on their way to the layout, the last first.
    let mut prefixes: Vec<(&str, &str)> = Vec::new();
    while let Some(name) = at {
        let entry = &family["layouts"][&name];
        for (stored, rule) in entry["tensors"].as_object().into_iter().flatten() {
            let key = &prefixes.iter().rev().fold(stored.clone(), |key, (strip, add)| {
                match key.strip_prefix(strip) {
                    Some(rest) => format!("{add}{rest}"),
                    None => key,
                }
            });
            let text = rule.as_str().or_else(|| rule["is"].as_str()).unwrap_or_default();
            let new = exchanged(text, pair, &axes);
            if !seen.contains(key) && new != text {
                let mut rule = rule.clone();
                match rule.get_mut("is") {
                    Some(is) => *is = new.into(),
                    None => rule = new.into(),
                }
                found.insert(key.clone(), rule);
            }
            seen.push(key.clone());
        }
        prefixes
            .push((entry["strip"].as_str().unwrap_or_default(), entry["add"].as_str().unwrap_or_default()));
        at = entry["like"].as_str().map(str::to_owned);
    }
    if found.is_empty() {
        return None;
    }
    let tensors =
        mutant["layouts"][layout].as_object_mut()?.entry("tensors").or_insert_with(|| serde_json::json!({}));
    tensors.as_object_mut()?.extend(found);
    Some(mutant)
}

/// Returns whether a layout is another one, or is like it.
fn takes_over(family: &serde_json::Value, layout: &str, other: &str) -> bool {
    let like = || family["layouts"][layout]["like"].as_str();
    layout == other || like().is_some_and(|like| takes_over(family, like, other))
}

/// Converts with two parameters exchanged in the target's expressions, and returns what verified all the same; counts
/// those that the attention of both files gave away.
fn with_swaps(model: &Model, computed: &AtomicUsize) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("mappings/{}.json", model.mapping));
    let text = std::fs::read_to_string(path).expect("readable");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    crate::kit::with_whole_names(&mut json);
    let family = qkvconv::mapping::builtin::family(&model.mapping).expect("a family");
    let work = tempfile::tempdir().expect("a folder");
    let (base, target) = (work.path().join("base"), work.path().join("target"));
    write_base(model, &base);
    let own = &family.layouts[&model.layout];
    let keys = keys_in(own, &base);
    let held = |param: &str| {
        let mut rules = own.rules.iter().filter(|rule| rule.expr.params().contains(&param));
        rules.any(|rule| keys.iter().any(|(file, key)| rule.template.matches(file, key).is_some()))
    };
    let said = |param: &&str| {
        let mut unsaid = UNSAID.iter().filter(|(family, ..)| *family == model.mapping);
        !unsaid.any(|(_, start, _)| param.starts_with(start))
    };
    let weights = family.params.keys().map(String::as_str).filter(|param| is_attention(param));
    let starts: Vec<&str> = weights
        .filter(|param| held(param))
        .filter(said)
        .filter_map(|param| param.strip_suffix("q.weight"))
        .collect();
    // A layout that the source takes over cannot be changed alone.
    let taken = |layout: &str| takes_over(&json, &model.layout, layout);
    let is_tried = |layout: &&String| !taken(layout) && !is_in_stages(&family.layouts[*layout]);
    let mut survivors = Vec::new();
    for layout in model.layouts.iter().filter(is_tried) {
        for start in &starts {
            for (a, b) in [
                ("q.weight", "k.weight"),
                ("k.weight", "v.weight"),
                ("q.bias", "v.bias"),
                ("q.bias", "k.bias"),
            ] {
                let (a, b) = (format!("{start}{a}"), format!("{start}{b}"));
                let there = held(&a) && held(&b) && family.layouts[layout].holds(&a);
                let Some(mutant) = there.then(|| swapped(&json, layout, (&a, &b))).flatten() else {
                    continue;
                };
                let file = Arc::new(Source { name: "mutant.json".into(), text: mutant.to_string() });
                match convert(model, (&model.layout, layout), &base, &target, &[file]) {
                    Ok(_) => survivors.push(format!("{layout}: {a} and {b} swapped")),
                    Err(errors) if errors.to_string().contains("attention computed from") => {
                        computed.fetch_add(1, Ordering::Relaxed);
                    }
                    // A weight that `forward` takes from its own place lies in a tensor of another name.
                    Err(errors) if errors.has(MappingCode::Forward) => {
                        computed.fetch_add(1, Ordering::Relaxed);
                    }
                    // No plan can be made of it.
                    Err(_) => {}
                }
                let _ = std::fs::remove_dir_all(&target);
            }
        }
    }
    survivors
}

/// A wrong expression is caught: whatever is swapped in the target's mapping, the target's own `forward` contradicts it.
#[test]
fn swapped_parameters_do_not_verify() {
    let computed = AtomicUsize::new(0);
    let survivors = on_every_model(&|model| with_swaps(model, &computed));
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
    // Most are refused by `forward`, or by the attention that both files compute, not for want of a plan.
    let computed = computed.into_inner();
    assert!(computed > 300, "{computed}");
}
