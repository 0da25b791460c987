//! Whole models of every family, from each layout to each other and back: `tests/families/FAMILY.json` or
//! `FAMILY.NAME.json` lists one model's tensors as a framework names and shapes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use qkvconv::bind::{BindOptions, Config};
use qkvconv::catalog::TensorMeta;
use qkvconv::convert::{Conversion, ConvertOptions, Verify, open_as};
use qkvconv::diag::Errors;
use qkvconv::dtype::Dtype;
use qkvconv::exec::Limits;
use qkvconv::exec::publish::{Destination, PublishOptions};
use qkvconv::format::OpenOptions;
use qkvconv::mapping::select::select;
use serde::Deserialize;

use crate::kit::{Nobody, Tensor, Tensors, width, write};

/// A model of tiny odd sizes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    /// The family.
    mapping: String,
    /// The layout of `tensors`.
    layout: String,
    /// The config beside them.
    config: Option<serde_json::Value>,
    /// Sizes that nothing tells.
    #[serde(default)]
    axes: BTreeMap<String, u64>,
    /// The layouts that the model can be in.
    layouts: Vec<String>,
    tensors: BTreeMap<String, Meta>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    dtype: String,
    shape: Vec<u64>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families")
}

fn models() -> Vec<(String, Model)> {
    let mut models: Vec<(String, Model)> = std::fs::read_dir(folder())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).expect("readable");
            (name.clone(), serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}")))
        })
        .collect();
    models.sort_by(|a, b| a.0.cmp(&b.0));
    models
}

/// Fills the tensors from an xorshift, as floats between 1 and 2 with a sign, in steps so large that adding 1 is exact.
fn filled(model: &Model) -> Tensors {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
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

fn config_in(folder: &Path) -> Option<Config> {
    let names = ["config.json", "params.json"];
    let name = names.iter().find(|name| folder.join(name).is_file())?;
    let text = std::fs::read_to_string(folder.join(name)).expect("readable");
    Some(Config { name: (*name).to_owned(), value: serde_json::from_str(&text).expect("JSON") })
}

/// What a conversion computed: how many attention modules.
fn convert(
    model: &Model,
    (from, to): (&str, &str),
    source: &Path,
    target: &Path,
) -> Result<(u64, String), Errors> {
    let name = |layout: &str| format!("{}/{layout}", model.mapping);
    let selection = select(&name(from), &name(to), &[])?;
    let axes = model.axes.iter().map(|(axis, size)| (axis.clone(), *size)).collect();
    let bind = BindOptions { axes, config: config_in(source), ..BindOptions::default() };
    let options = ConvertOptions { bind, companions: true, ..ConvertOptions::default() };
    let conversion = Conversion::prepare(&selection, source, &options)?;
    let limits = Limits { threads: 1, ..Limits::default() };
    let publish = PublishOptions { force: true, sync: false };
    let destination = Destination::Folder(target.to_owned());
    let done = conversion.run(&destination, publish, Verify::Full, &limits, &Nobody)?;
    done.verdict()?;
    let attention = done.checked.and_then(|checked| checked.attention).unwrap_or_default();
    Ok((attention.modules, format!("{:?}", attention.abstained)))
}

/// Returns everything that a checkpoint holds.
fn contents(model: &Model, layout: &str, path: &Path) -> Vec<(String, Dtype, Vec<u64>, Vec<u8>)> {
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

/// Converts a model everywhere and returns what went wrong.
fn everywhere(model: &Model) -> Vec<String> {
    let work = tempfile::tempdir().expect("a folder");
    let at = |name: &str| work.path().join(name);
    std::fs::create_dir(at(".base")).expect("a folder");
    write(&at(".base/model.safetensors"), &filled(model), &[]);
    if let Some(config) = &model.config {
        std::fs::write(at(".base/config.json"), config.to_string()).expect("writable");
    }
    let mut wrong = Vec::new();
    let mut reached = Vec::new();
    for layout in &model.layouts {
        match convert(model, (&model.layout, layout), &at(".base"), &at(layout)) {
            Ok((modules, abstained)) => {
                reached.push(layout);
                let family = qkvconv::mapping::builtin::family(&model.mapping).expect("a family");
                let kinds = |layout: &str| &family.layouts[layout].forwards;
                let computes = kinds(&model.layout).keys().any(|kind| kinds(layout).contains_key(kind));
                if modules == 0 && computes {
                    wrong.push(format!(
                        "{} -> {layout}: no attention was computed: {abstained}",
                        model.layout
                    ));
                }
            }
            Err(errors) => wrong.push(format!("{} -> {layout}: {errors}", model.layout)),
        }
    }
    for from in &reached {
        // There and back is both directions, so each pair needs to be gone once.
        for to in reached.iter().skip_while(|to| *to != from).skip(1) {
            let way = format!("{from} -> {to}");
            if let Err(errors) = convert(model, (from, to), &at(from), &at(".there")) {
                wrong.push(format!("{way}: {errors}"));
            } else if let Err(errors) = convert(model, (to, from), &at(".there"), &at(".back")) {
                wrong.push(format!("{way} -> {from}: {errors}"));
            } else if contents(model, from, &at(".back")) != contents(model, from, &at(from)) {
                wrong.push(format!("{way} -> {from}: not the same tensors again"));
            }
            for folder in [".there", ".back"] {
                let _ = std::fs::remove_dir_all(at(folder));
            }
        }
    }
    wrong
}

#[test]
fn every_layout_converts_to_every_other_and_back() {
    let models = models();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let wrong = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, model)) =
                    models.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let found = everywhere(model);
                    let texts = found.into_iter().map(|text| format!("{name}: {text}"));
                    wrong.lock().expect("not poisoned").extend(texts);
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("not poisoned");
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
