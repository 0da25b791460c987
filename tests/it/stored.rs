//! Stored tensors as the library's readers give them, element by element through the strides; and where their files are.

use std::path::PathBuf;

use qkvconv::catalog::TensorMeta;
use qkvconv::format::Reader;

/// Returns the bytes of a tensor in the order of its indices, the last one fastest; views may have any strides.
pub(crate) fn elements(reader: &dyn Reader, tensor: &TensorMeta) -> Vec<u8> {
    let width = tensor.dtype.byte_width().expect("whole bytes");
    let mut bytes = vec![0; (tensor.elements() * width) as usize];
    for (number, element) in bytes.chunks_mut(width as usize).enumerate() {
        let (mut rest, mut at) = (number as u64, 0);
        for (size, stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
            at += rest % size * stride;
            rest /= size;
        }
        reader
            .read_exact_at(tensor.file, tensor.offset + at * width, element)
            .unwrap_or_else(|error| panic!("{}: {error}", tensor.key));
    }
    bytes
}

/// Returns what a user hands over of a folder: its one file beside configs, or the folder of a checkpoint of several.
pub(crate) fn only_file(folder: PathBuf) -> PathBuf {
    let entries = std::fs::read_dir(&folder).expect("the checkpoint's folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_none_or(|extension| extension != "json"));
    if files.len() == 1 { files.remove(0) } else { folder }
}
