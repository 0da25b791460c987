//! Reads tensors of a checkpoint as another layout has them, without writing a file.
//!
//! `read_other_layout [SRC FROM TO [KEY]]`: without arguments the keys of head 2 in layer 0 of the repository's model,
//! which stores queries, keys and values in one matrix.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::error::Error;
use std::path::{Path, PathBuf};

use qkvconv::{Conversion, ConvertOptions, Dtype, Limits, select_for};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (source, from, to, key) = match &args[..] {
        [] => (
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/digits"),
            "attention/pytorch-fused",
            "attention/per-head",
            Some("encoder.layers.0.self_attn.heads.2.k_proj.weight"),
        ),
        [source, from, to] => (PathBuf::from(source), from.as_str(), to.as_str(), None),
        [source, from, to, key] => (PathBuf::from(source), from.as_str(), to.as_str(), Some(key.as_str())),
        _ => return Err("usage: read_other_layout [SRC FROM TO [KEY]]".into()),
    };

    let options = ConvertOptions::default();
    let layouts = select_for(from, to, &[], &source, &options)?;
    let conversion = Conversion::prepare(&layouts.selection, &source, &options)?;
    let Some(key) = key else {
        // Names, types and shapes are known from headers.
        for target in &conversion.plan.targets {
            println!("{} {} {:?}", target.key, target.dtype, target.shape);
        }
        return Ok(());
    };

    // Only what the tensor is made of is read.
    let bytes = conversion.tensor(key, &Limits::default(), &())?;
    let target = conversion.plan.targets.iter().find(|target| target.key == key).ok_or("no such tensor")?;
    println!("{key} {} {:?}", target.dtype, target.shape);
    if target.dtype == Dtype::F32 {
        let first: Vec<f32> =
            bytes.chunks_exact(4).take(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        println!("begins with {first:?}");
    }
    Ok(())
}
