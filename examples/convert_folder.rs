//! Converts a checkpoint folder into another layout.
//!
//! `convert_folder [SRC DST [FROM TO]]`: without arguments the repository's model is converted to one tensor per head, in
//! a temporary folder.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use qkvconv::{
    Conversion, ConvertOptions, Destination, Limits, Progress, PublishOptions, Verify, select_for,
};

/// Counts bytes; a program with a window would draw them, and could stop the work.
#[derive(Default)]
struct Count(AtomicU64);

impl Progress for Count {
    fn advance(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let scratch = tempfile::tempdir()?;
    let (source, target) = match &args[..] {
        [] => (digits(), scratch.path().join("per-head")),
        [source, target, ..] => (source.into(), target.into()),
        _ => return Err("usage: convert_folder [SRC DST [FROM TO]]".into()),
    };
    let from = args.get(2).map_or("auto", String::as_str);
    let to = args.get(3).map_or("attention/per-head", String::as_str);

    // A folder gets shards of 5 GB with an index, and the configs and tokenizers that lie beside the source.
    let destination = Destination::resolve(&target);
    let options = ConvertOptions::default().for_destination(&destination)?;
    let layouts = select_for(from, to, &[], &source, &options)?;
    if let Some(found) = &layouts.found {
        println!("the source is {found}");
    }

    // Headers alone: everything that is wrong is known before the first byte is written.
    let conversion = Conversion::prepare(&layouts.selection, &source, &options)?;
    for size in &conversion.bound.sizes {
        println!("{} = {} from {}", size.axis, size.value, size.origin);
    }
    println!("{} tensors become {}", conversion.proof.sources, conversion.proof.targets);

    let count = Count::default();
    let publish = PublishOptions::default();
    let done = conversion.run(&destination, publish, Verify::Full, &Limits::default(), &count)?;
    // What differs was not published.
    done.verdict()?;
    let names = done.files.iter().filter_map(|path| path.file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    println!("wrote {} ({} bytes moved and read back)", names.join(", "), count.0.load(Ordering::Relaxed));
    Ok(())
}

/// A transformer encoder of three layers in this repository.
fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/digits")
}
