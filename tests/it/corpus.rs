//! The seeds of the fuzz targets, and damaged variants of them, through what the targets do: whatever the input is, it is
//! read or refused with a message.

use std::path::{Path, PathBuf};

use crate::kit::root;

#[expect(unreachable_pub, dead_code, reason = "it is the library of the fuzz targets")]
#[path = "../../fuzz/lib.rs"]
mod targets;

/// Larger seeds are not damaged at every place.
const SMALL: usize = 4096;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// Returns the files in a folder, in order, so that damage is the same in each run.
fn seeds(folder: &Path) -> Vec<PathBuf> {
    let mut seeds = Vec::new();
    files(folder, &mut seeds);
    seeds.retain(|path| !path.extension().is_some_and(|ending| ending == "py" || ending == "md"));
    seeds.sort();
    seeds
}

/// Calls `run` with each seed as it is, with bits flipped, and cut off.
fn each(seeds: &[PathBuf], run: impl Fn(&[u8])) {
    each_at(seeds, 7, run);
}

/// As [`each`]; small seeds are damaged at every `step` bytes.
fn each_at(seeds: &[PathBuf], step: usize, run: impl Fn(&[u8])) {
    for (number, seed) in seeds.iter().enumerate() {
        let bytes = std::fs::read(seed).expect("readable");
        run(&bytes);
        // Every seed is damaged at some places, small ones at more of them.
        let step = if bytes.len() <= SMALL { step } else { bytes.len() / 61 };
        for at in (number % step.max(1)..bytes.len()).step_by(step.max(1)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            run(&damaged);
            run(&bytes[..at]);
        }
    }
}

/// Runs a target on its seeds.
fn corpus(target: &str, run: impl Fn(&[u8])) {
    let seeds = seeds(&root().join("fuzz/corpus").join(target));
    assert!(!seeds.is_empty(), "{target}");
    each(&seeds, run);
}

/// Calls a target that takes text.
fn text(run: impl Fn(&str)) -> impl Fn(&[u8]) {
    move |bytes| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            run(text);
        }
    }
}

#[test]
fn seeds_of_readers_open_or_are_refused_whatever_is_damaged() {
    for (target, name) in [
        ("safetensors", "a.safetensors"),
        ("pytorch", "a.pt"),
        ("numpy", "a.npz"),
        ("hdf5", "a.h5"),
        ("msgpack", "a.msgpack"),
        ("gguf", "a.gguf"),
        ("zip", "a.zip"),
        ("index", "model.safetensors.index.json"),
    ] {
        corpus(target, |bytes| targets::read_only(name, bytes));
        for seed in seeds(&root().join("fuzz/corpus").join(target)) {
            targets::read(name, &std::fs::read(seed).expect("readable"));
        }
    }
    corpus("tensorflow", targets::tensorflow);
    corpus("dcp", targets::dcp);
}

#[test]
fn files_of_other_libraries_open_or_are_refused_whatever_is_damaged() {
    let mut seeds = seeds(&root().join("tests/data/formats"));
    assert!(seeds.len() > 30, "{} seeds", seeds.len());
    // Some need the files beside them.
    seeds.iter().for_each(|seed| targets::read_path(seed));
    // What was expected of them is all safetensors, which has seeds of its own.
    seeds.retain(|seed| !seed.to_string_lossy().ends_with(".expected.safetensors"));
    each(&seeds, |bytes| targets::read_only("a", bytes));
}

#[test]
fn seeds_of_mappings_are_read_or_refused_whatever_is_damaged() {
    corpus("mapping", text(targets::mapping));
    corpus("template", text(targets::template));
}

#[test]
fn seeds_of_catalogues_bind_or_are_refused_whatever_is_damaged() {
    corpus("bind", |bytes| {
        let _ = targets::bind(bytes);
    });
}

#[test]
fn seeds_of_catalogues_are_inspected_or_refused_whatever_is_damaged() {
    corpus("inspect", |bytes| {
        let _ = targets::described(bytes);
    });
    // Some of them are what one layout explains.
    let found = seeds(&root().join("fuzz/corpus/inspect")).into_iter();
    let found = found.filter(|seed| targets::described(&std::fs::read(seed).expect("readable")));
    assert!(found.count() > 2);
}

#[test]
fn whatever_lies_at_a_destination_a_run_changes_nothing_else() {
    // A run or two at each place: fewer places than a reader gets.
    let seeds = seeds(&root().join("fuzz/corpus").join("publish"));
    assert!(seeds.len() > 10, "{seeds:?}");
    each_at(&seeds, 41, |bytes| targets::publish(bytes, None));
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn whatever_lies_at_a_destination_a_killed_run_changes_nothing_else() {
    use std::cell::Cell;
    let (runs, killed) = (Cell::new(0), Cell::new(0));
    let kill = |job: &targets::Job, at: u8| {
        let mut args = ["--from", "attention/separate", "--to", "attention/timm", "--axis", "h=2"]
            .map(std::ffi::OsString::from)
            .to_vec();
        args.extend(["--threads", "1", "--verify", "readback"].map(Into::into));
        args.extend(job.force.then(|| "--force".into()));
        args.extend(job.resume.then(|| "--resume".into()));
        if job.shards {
            args.extend(["--max-shard-size".into(), targets::Job::SHARD.to_string().into()]);
        }
        args.extend([job.source.clone().into(), job.destination.clone().into()]);
        let code = crate::interrupt::killed_at(&args, at.into());
        runs.set(runs.get() + 1);
        killed.set(killed.get() + i32::from(code == crate::interrupt::KILLED));
        code == 0
    };
    for (number, seed) in seeds(&root().join("fuzz/corpus/publish")).iter().enumerate() {
        let mut bytes = std::fs::read(seed).expect("readable");
        let own = bytes[1];
        // Other calls for each seed, so that together they are most of a run's.
        for at in (number as u8 % 11 + 1..160).step_by(11).chain([own.max(1)]) {
            bytes[1] = at;
            targets::publish(&bytes, Some(&kill));
        }
    }
    assert!(killed.get() > 50 && killed.get() < runs.get(), "{} of {}", killed.get(), runs.get());
}

#[test]
fn a_shape_with_a_zero_makes_no_endless_output() {
    let seed = std::fs::read(root().join("fuzz/corpus/bind/endless-heads")).expect("readable");
    let codes = targets::bind(&seed);
    assert!(codes.iter().any(|code| code == "bind/too-many"), "{codes:?}");
    // Most of the families' own catalogues bind.
    let bound =
        (0..54).flat_map(|family| (0..3).map(move |to| targets::bind(&[family, 0, to, 0x0f, b'*', b'1'])));
    let bound = bound.filter(Vec::is_empty).count();
    assert!(bound > 20, "{bound}");
}

#[test]
fn every_target_has_seeds_and_is_run_here() {
    let names = |folder: &str| {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(root().join("fuzz").join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            found.push(path.file_stem().expect("a name").to_string_lossy().into_owned());
        }
        found.sort();
        found
    };
    let targets = names("fuzz_targets");
    assert_eq!(names("corpus"), targets);
    let here = include_str!("corpus.rs");
    for target in targets {
        assert!(here.contains(&format!("(\"{target}\"")), "{target}");
    }
}
