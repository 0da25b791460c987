//! Tells where each head of a checkpoint lies.
//!
//! `inspect_heads [SRC]`: without an argument of the repository's model.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::error::Error;
use std::path::{Path, PathBuf};

use qkvconv::inspect::{Seen, ranges};
use qkvconv::{ConvertOptions, recognise};

fn main() -> Result<(), Box<dyn Error>> {
    let source = match std::env::args().nth(1) {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/digits"),
    };

    // Every layout of every family is held against names, shapes and the config.
    let found = recognise(&[], &|_, _| true, &source, &ConvertOptions::default())?;
    let catalog = found.reader.catalog();
    let (candidate, mapping, layout) = found.layout()?;
    println!("{}: {}", candidate.name(), candidate.coverage());
    let bound = candidate.bound.as_ref().ok_or_else(|| format!("open: {}", candidate.open.join("; ")))?;

    for source in &bound.sources {
        let tensor = &catalog.tensors[source.tensor];
        // Each tensor is seen element by element, through the expression of its rule.
        let seen = Seen::new(mapping, layout, bound, &source.reading);
        for param in seen.params() {
            let heads = mapping.head_axis(param).and_then(|axis| seen.known_sizes(param)?.get(axis).copied());
            for head in 0..heads.unwrap_or(0) {
                let Some(place) = seen.head(&tensor.shape, param, head) else { continue };
                let place: Vec<String> =
                    place.iter().map(|indices| format!("[{}]", ranges(indices))).collect();
                println!("{} {param} head {head}: {}", tensor.key, place.join(" "));
            }
        }
    }
    Ok(())
}
