//! Tensors that a layout's readers demand and that no weights hold: they are computed from the source's config and join the
//! source, so that they are planned, written and read back as any other.

use std::io;

use serde_json::Value;

use crate::bind::{BindOptions, Bound};
use crate::catalog::{Catalog, TensorMeta, row_major};
use crate::diag::{Collector, ConfigCode, Diagnostic, Errors};
use crate::dtype::Dtype;
use crate::format::{Format, Reader};
use crate::mapping::key::Captures;
use crate::mapping::select::Selection;
use crate::mapping::{Computed, Values};
use crate::provenance::Facts;
use crate::read::{ReadAt, read_memory};

/// A source with computed tensors in a file of their own.
struct WithComputed {
    inner: Box<dyn Reader>,
    catalog: Catalog,
    /// Which file of the catalog they are.
    file: usize,
    bytes: Vec<u8>,
}

impl ReadAt for WithComputed {
    fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if file != self.file {
            return self.inner.read_exact_at(file, offset, buffer);
        }
        read_memory(&self.bytes, offset, buffer)
    }
}

impl Reader for WithComputed {
    fn format(&self) -> Format {
        self.inner.format()
    }

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn unchanged(&self) -> Result<(), Errors> {
        self.inner.unchanged()
    }

    fn stamps(&self) -> Vec<String> {
        let mut stamps = self.inner.stamps();
        stamps.push(format!("computed {}", blake3::hash(&self.bytes).to_hex()));
        stamps
    }
}

/// Adds to the source what the target computes from the source's config.
///
/// # Errors
/// Returns entries of the config that are missing or do not fit.
pub(super) fn add(
    reader: Box<dyn Reader>,
    selection: &Selection,
    bound: &mut Bound,
    options: &BindOptions,
) -> Result<Box<dyn Reader>, Errors> {
    let (facts, target) = (options.provenance.of(selection.source()), selection.target());
    let mut errors = Collector::default();
    let mut made: Vec<(String, String, Vec<f32>)> = Vec::new();
    for computed in &target.computed {
        let Ok((None, name)) = computed.template.print(&Captures::default()) else { continue };
        let key = format!("{}{name}", options.add_prefix);
        let is_there = bound.kept.iter().any(|(_, kept)| *kept == key);
        if is_there
            || options.drop.as_ref().is_some_and(|globs| globs.is_match(&name))
            || options.only.is_some()
        {
            continue;
        }
        let fault = |error: Diagnostic| error.tensor(&key).rule(&computed.span);
        match values(computed, bound, &facts) {
            Ok(None) => {}
            Ok(Some((entry, values))) => made.push((key, entry, values)),
            Err(error) => errors.push(fault(error)),
        }
    }
    let (made, _) = errors.finish(made)?;
    if made.is_empty() {
        return Ok(reader);
    }
    let inner = reader.catalog();
    let file = inner.files.len();
    let mut tensors = inner.tensors.clone();
    let mut bytes: Vec<u8> = Vec::new();
    for (key, entry, values) in made {
        let shape = vec![values.len() as u64];
        let (strides, offset) = (row_major(&shape), bytes.len() as u64);
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        bound.kept.push((tensors.len(), key));
        bound.computed.insert(tensors.len());
        tensors.push(TensorMeta {
            key: entry,
            dtype: Dtype::F32,
            shape,
            strides,
            file,
            offset,
            extents: Vec::new(),
        });
    }
    let mut files: Vec<_> = inner.files.iter().cloned().zip(inner.file_sizes.iter().copied()).collect();
    files.push((inner.path.clone(), bytes.len() as u64));
    let mut catalog = Catalog::new(inner.path.clone(), files, tensors);
    catalog.metadata.clone_from(&inner.metadata);
    catalog.warnings.clone_from(&inner.warnings);
    catalog.facts.clone_from(&inner.facts);
    Ok(Box::new(WithComputed { inner: reader, catalog, file, bytes }))
}

/// What to do about a config that lacks numbers.
const INCOMPLETE: &str = "complete the config of the model, or name it with --config";

/// What says how the rotary frequencies are scaled.
struct Scaling<'c> {
    facts: Facts<'c>,
    /// The entry's name.
    name: &'static str,
    kind: String,
}

/// Where configs hold it: transformers 5, its models with several kinds of layers, transformers 4 (`type` in the oldest).
const PLACES: [&str; 3] = ["rope_parameters.full_attention", "rope_parameters", "rope_scaling"];

impl<'c> Scaling<'c> {
    fn of(facts: Facts<'c>) -> Option<Scaling<'c>> {
        PLACES.into_iter().find_map(|name| {
            let entry = |key: &str| facts.value(&format!("{name}.{key}"))?.as_str();
            let kind = entry("rope_type").or_else(|| entry("type"))?.to_lowercase();
            Some(Scaling { facts, name, kind })
        })
    }

    /// Returns an entry of it, or of the config around it.
    fn get(&self, key: &str) -> Option<&'c Value> {
        let inner = self.facts.value(&format!("{}.{key}", self.name));
        inner.or_else(|| self.facts.value(key))
    }

    /// Returns where an entry stands, in words.
    fn place(&self, key: &str) -> String {
        self.facts.get(key).map_or_else(|| key.to_owned(), |fact| fact.place())
    }

    fn number(&self, key: &str) -> Result<f64, Diagnostic> {
        let found = self.get(key);
        found.and_then(Value::as_f64).filter(|number| number.is_finite() && *number > 0.0).ok_or_else(|| {
            let error = Diagnostic::error(
                ConfigCode::Rope,
                format!("`{}` of type {} lacks `{key}`", self.name, self.kind),
            );
            error
                .expected("a number above 0")
                .found(found.map_or("no entry".to_owned(), ToString::to_string))
                .help(INCOMPLETE)
        })
    }
}

/// Returns the values of a computed tensor and the config's entry that they follow from; nothing where the config does not
/// ask for it.
fn values(
    computed: &Computed,
    bound: &Bound,
    facts: &Facts<'_>,
) -> Result<Option<(String, Vec<f32>)>, Diagnostic> {
    let Some(scaling) = Scaling::of(*facts) else {
        // Meta's params.json says that frequencies are scaled, and its code by what.
        if computed.values == Values::Llama3 && facts.value("use_scaled_rope") == Some(&Value::Bool(true)) {
            return Err(Diagnostic::error(ConfigCode::Rope, "the rotary frequencies are scaled, and the config does not say how")
                .expected("`rope_scaling` with `factor`, `low_freq_factor`, `high_freq_factor` and `original_max_position_embeddings`")
                .found("`use_scaled_rope`")
                .help("name Hugging Face's config.json of the same model with --config"));
        }
        return Ok(None);
    };
    let list = match (computed.values, scaling.kind.as_str()) {
        (Values::Llama3, "llama3") => None,
        (Values::LongRopeLong, "longrope" | "su") => Some("long_factor"),
        (Values::LongRopeShort, "longrope" | "su") => Some("short_factor"),
        _ => return Ok(None),
    };
    let mut sizes = bound.sizes.iter().filter(|size| size.axis == computed.axis).map(|size| size.value);
    let (Some(pairs), None) = (sizes.next(), sizes.next()) else {
        let message = format!("the size of `{}` is not one", computed.axis);
        return Err(Diagnostic::error(ConfigCode::Rope, message).help("convert layers with one head size"));
    };
    let Some(key) = list else {
        let factors = Llama3 {
            base: scaling.number("rope_theta")?,
            factor: scaling.number("factor")?,
            low: scaling.number("low_freq_factor")?,
            high: scaling.number("high_freq_factor")?,
            length: scaling.number("original_max_position_embeddings")?,
        };
        return Ok(Some((scaling.place(scaling.name), factors.of(pairs))));
    };
    let entry = format!("{}.{key}", scaling.name);
    let numbers = scaling.get(key).and_then(Value::as_array);
    let numbers: Option<Vec<f32>> = numbers
        .and_then(|list| list.iter().map(|number| number.as_f64().map(|number| number as f32)).collect());
    match numbers {
        Some(numbers) if numbers.len() as u64 == pairs => Ok(Some((scaling.place(&entry), numbers))),
        found => Err(Diagnostic::error(ConfigCode::Rope, format!("`{entry}` does not fit the head size"))
            .expected(format!("{pairs} numbers, one for each rotary pair"))
            .found(found.map_or("no list of numbers".to_owned(), |list| format!("{} numbers", list.len())))
            .help(INCOMPLETE)),
    }
}

/// How Llama 3.1 scales rotary frequencies (huggingface/transformers, `src/transformers/modeling_rope_utils.py`,
/// `_compute_llama3_parameters`).
struct Llama3 {
    base: f64,
    factor: f64,
    low: f64,
    high: f64,
    /// Positions that the model was trained on before.
    length: f64,
}

impl Llama3 {
    /// Returns by what the frequency of each pair is divided: 1 for short waves, the factor for long ones, and between
    /// them what leads over.
    fn of(&self, pairs: u64) -> Vec<f32> {
        let one = |pair: u64| {
            let wave = 2.0 * std::f64::consts::PI * self.base.powf(pair as f64 / pairs as f64);
            if wave < self.length / self.high {
                return 1.0;
            }
            if wave > self.length / self.low {
                return self.factor as f32;
            }
            let smooth = (self.length / wave - self.low) / (self.high - self.low);
            (1.0 / ((1.0 - smooth) / self.factor + smooth)) as f32
        };
        (0..pairs).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_that_transformers_computes() {
        let factors = Llama3 { base: 500_000.0, factor: 8.0, low: 1.0, high: 4.0, length: 8192.0 }.of(64);
        // Frequencies without scaling over those of `_compute_llama3_parameters`, transformers 5.24.
        let known = [
            (0, 1.0),
            (28, 1.0),
            (29, 1.207_484),
            (31, 2.026_313),
            (33, 3.684_254),
            (34, 5.257_327),
            (35, 8.0),
            (63, 8.0),
        ];
        for (pair, wanted) in known {
            assert!((factors[pair] - wanted).abs() < 1e-5 * wanted, "{pair}: {} {wanted}", factors[pair]);
        }
    }
}
