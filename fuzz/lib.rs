//! What the fuzz targets share: bytes as a checkpoint, opened and read to the end.

use std::path::Path;

use qkvconv::format::{OpenOptions, open};

/// The most bytes that are read of one tensor; more would test the disk, not the reader.
const MOST: u64 = 1 << 20;

/// Opens the bytes as a file of that name and reads what its catalog describes.
pub fn read(name: &str, bytes: &[u8]) {
    with_folder(|folder| {
        let path = folder.join(name);
        if std::fs::write(&path, bytes).is_ok() {
            read_path(&path);
        }
    });
}

/// Calls `use_it` with a fresh folder.
pub fn with_folder(use_it: impl FnOnce(&Path)) {
    if let Ok(folder) = tempfile::tempdir() {
        use_it(folder.path());
    }
}

/// Opens a checkpoint and reads the beginning and the end of each tensor.
pub fn read_path(path: &Path) {
    let Ok(reader) = open(path, &OpenOptions::default()) else { return };
    for tensor in reader.catalog().tensors.iter().take(64) {
        let Some(width) = tensor.dtype.byte_width() else { continue };
        if tensor.elements() == 0 {
            continue;
        }
        let reach: u64 = tensor.shape.iter().zip(&tensor.strides).map(|(size, stride)| (size - 1) * stride).sum();
        let length = ((reach + 1) * width).min(MOST);
        let mut buffer = vec![0; length as usize];
        let _ = reader.read_exact_at(tensor.file, tensor.offset, &mut buffer);
        let last = tensor.offset + reach * width;
        let _ = reader.read_exact_at(tensor.file, last, &mut buffer[..width as usize]);
    }
}
