//! The seeds of the fuzz targets, and damaged variants of them: whatever a file holds, it opens or is refused with a
//! message.

use std::path::{Path, PathBuf};

use qkvconv::format::{OpenOptions, open};

/// Larger files are not damaged at every place.
const SMALL: usize = 4096;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// Opens a file and reads all that its headers describe.
fn read(path: &Path) {
    let options = OpenOptions { void_as: vec![qkvconv::dtype::Dtype::BF16], ..OpenOptions::default() };
    let reader = match open(path, &options) {
        Ok(reader) => reader,
        Err(errors) => {
            assert!(!errors.diagnostics().is_empty(), "{}", path.display());
            return;
        }
    };
    for tensor in &reader.catalog().tensors {
        let mut buffer = vec![0; tensor.bytes().min(1 << 16) as usize];
        // A damaged file may be shorter than it says only where that shows when its data is decoded.
        let _ = reader.read_exact_at(tensor.file, tensor.offset, &mut buffer);
    }
}

#[test]
fn seeds_open_or_are_refused_whatever_is_damaged() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = Vec::new();
    files(&root.join("fuzz/corpus"), &mut seeds);
    files(&root.join("tests/data/formats"), &mut seeds);
    seeds.retain(|path| !path.extension().is_some_and(|ending| ending == "py" || ending == "md"));
    assert!(seeds.len() > 30, "{} seeds", seeds.len());
    let folder = tempfile::tempdir().expect("a folder");
    for (number, seed) in seeds.iter().enumerate() {
        read(seed);
        let bytes = std::fs::read(seed).expect("readable");
        let path = folder.path().join(seed.file_name().expect("a name"));
        // Every seed is damaged at some places, small ones at more of them.
        let step = if bytes.len() <= SMALL { 7 } else { bytes.len() / 61 };
        for at in (number % step.max(1)..bytes.len()).step_by(step.max(1)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(&path, &damaged).expect("writable");
            read(&path);
            std::fs::write(&path, &bytes[..at]).expect("writable");
            read(&path);
        }
        std::fs::remove_file(&path).expect("removable");
    }
}
