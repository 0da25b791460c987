//! Checks that two checkpoints hold the same weights in two layouts.
//!
//! `verify_two [SRC DST FROM TO]`: without arguments the repository's model is converted, the result is verified, one
//! value of it is changed, and that is found.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::error::Error;
use std::path::Path;

use qkvconv::{
    Conversion, ConvertOptions, Destination, Limits, PublishOptions, Selection, Verification, Verify,
    VerifyOptions, open, select,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [source, target, from, to] = &args[..] {
        return Ok(verify(&select(from, to, &[])?, source.as_ref(), target.as_ref())?);
    }
    if !args.is_empty() {
        return Err("usage: verify_two [SRC DST FROM TO]".into());
    }

    let scratch = tempfile::tempdir()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/digits");
    let target = scratch.path().join("separate.safetensors");
    let layouts = select("attention/pytorch-fused", "attention/separate", &[])?;
    convert(&layouts, &source, &target)?;
    verify(&layouts, &source, &target)?;

    // The lowest bit of one element of a key matrix.
    let reader = open(&target, &Default::default())?;
    let key = "encoder.layers.1.self_attn.k_proj.weight";
    let at = reader.catalog().find(key).ok_or("the output has separate keys")?;
    let offset = usize::try_from(reader.catalog().tensors[at].offset)?;
    let mut bytes = std::fs::read(&target)?;
    bytes[offset] ^= 1;
    std::fs::write(&target, bytes)?;
    match verify(&layouts, &source, &target) {
        Ok(()) => Err("the changed value was not found".into()),
        Err(errors) => {
            // Errors are data, and their `Debug` is made for people.
            println!("with one bit of {key} changed:\n{errors:?}");
            Ok(())
        }
    }
}

fn convert(layouts: &Selection, source: &Path, target: &Path) -> Result<(), qkvconv::Errors> {
    let destination = Destination::resolve(target);
    let options = ConvertOptions::default().for_destination(&destination)?;
    let conversion = Conversion::prepare(layouts, source, &options)?;
    let (limits, publish) = (Limits::default(), PublishOptions::default());
    conversion.run(&destination, publish, Verify::None, &limits, &())?.verdict()
}

fn verify(layouts: &Selection, source: &Path, target: &Path) -> Result<(), qkvconv::Errors> {
    let verification = Verification::prepare(layouts, source, target, &VerifyOptions::default())?;
    let checked = verification.run(&Limits::default(), &())?;
    checked.verdict()?;
    println!("{} elements of {} tensors agree", checked.read_back.elements, checked.read_back.tensors);
    if let Some(attention) = &checked.attention {
        println!("attention of {} modules agrees", attention.modules);
    }
    Ok(())
}
