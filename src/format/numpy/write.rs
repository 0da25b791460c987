//! Laying out an archive of arrays.

use std::collections::{BTreeMap, HashSet};

use super::header::MAGIC;
use super::{METADATA, METADATA_ENTRY};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;
use crate::format::layout::{FileLayout, OutputTensor, no_json};
use crate::format::zip::write::{LONGEST_COMMENT, LONGEST_NAME, NewEntry, lay_out as lay_out_archive};

/// The elements begin at a multiple of this in the array (numpy/numpy, `doc/neps/nep-0001-npy-format.rst`).
const ALIGNMENT: usize = 64;

/// The most dimensions of an array (numpy/numpy, `numpy/_core/include/numpy/ndarraytypes.h`, `NPY_MAXDIMS`).
const MOST_DIMENSIONS: usize = 64;

/// Lays out one file: an entry `KEY.npy` for each tensor, stored, its elements at a multiple of 64 bytes. The metadata
/// are the archive's comment, or where they are too long for it an entry that is not an array.
///
/// Refused are types that NumPy does not have (`format/cannot-hold`), more than 64 dimensions, and a name that NumPy
/// would take for that of another array: `a.npy` beside `a`.
pub(in crate::format) fn lay_out(
    tensors: &[OutputTensor<'_>],
    sizes: &[u64],
    metadata: &BTreeMap<String, String>,
    out: &mut Collector,
) -> Result<FileLayout, Errors> {
    let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.key).collect();
    let mut entries = Vec::with_capacity(tensors.len() + 1);
    for (tensor, &hole) in tensors.iter().zip(sizes) {
        let head = header(tensor, &names, out).unwrap_or_default();
        entries.push(NewEntry { name: format!("{}.npy", tensor.key), head, hole });
    }
    let mut comment = Vec::new();
    if !metadata.is_empty() {
        let text = serde_json::to_vec(&BTreeMap::from([(METADATA, metadata)]));
        comment = text.map_err(|error| no_json("the metadata", &error))?;
    }
    if comment.len() > LONGEST_COMMENT {
        let head = std::mem::take(&mut comment);
        entries.push(NewEntry { name: METADATA_ENTRY.to_owned(), head, hole: 0 });
    }
    let archive = lay_out_archive(entries, &comment);
    let offsets = archive.holes.into_iter().take(tensors.len()).collect();
    Ok(FileLayout {
        pieces: archive.pieces,
        size: archive.size,
        checksums: archive.checksums,
        offsets,
        beside: None,
    })
}

/// Returns what stands before an array's elements, or reports why the format cannot hold them.
fn header(tensor: &OutputTensor<'_>, names: &HashSet<&str>, out: &mut Collector) -> Option<Vec<u8>> {
    let mut fail = |message: String, help: &str| {
        out.push(Diagnostic::error(FormatCode::CannotHold, message).tensor(tensor.key).help(help));
    };
    // NumPy looks for the name with its ending first (numpy/numpy, `numpy/lib/_npyio_impl.py`, `NpzFile`).
    if tensor.key.strip_suffix(".npy").is_some_and(|other| names.contains(other)) {
        fail("NumPy would read another array by this name".to_owned(), ANOTHER);
    }
    // A zip reader ends the name there (python/cpython, `Lib/zipfile`).
    if tensor.key.contains('\0') {
        fail("a zip archive cannot hold a name with a NUL character".to_owned(), ANOTHER);
    }
    if tensor.key.len() > LONGEST_NAME - 4 {
        fail(format!("a zip archive has no room for a name of {} bytes", tensor.key.len()), ANOTHER);
    }
    if tensor.shape.len() > MOST_DIMENSIONS {
        fail(format!("NumPy has no arrays of {} dimensions", tensor.shape.len()), ANOTHER);
    }
    let Some(descr) = descr(tensor.dtype) else {
        let help = if tensor.dtype == Dtype::BF16 {
            "convert it with `--dtype f32`, or choose another format"
        } else {
            ANOTHER
        };
        fail(format!("NumPy has no type for {}", tensor.dtype), help);
        return None;
    };
    Some(bytes_of_header(descr, tensor.shape))
}

/// Lays out a file that is one array.
///
/// Refused are types that NumPy does not have and more than 64 dimensions (`format/cannot-hold`).
pub(in crate::format) fn lay_out_array(
    tensor: &OutputTensor<'_>,
    size: u64,
    out: &mut Collector,
) -> Option<FileLayout> {
    let head = header(tensor, &HashSet::new(), out)?;
    let start = head.len() as u64;
    Some(FileLayout {
        pieces: vec![(0, head)],
        size: start + size,
        checksums: Vec::new(),
        offsets: vec![start],
        beside: None,
    })
}

/// Returns a header of version 1.0.
fn bytes_of_header(descr: &str, shape: &[u64]) -> Vec<u8> {
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if sizes.len() == 1 { "," } else { "" };
    let text =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}", sizes.join(", "));
    // Magic, version and the length, and a line feed at the end.
    let length = (10 + text.len() + 1).next_multiple_of(ALIGNMENT) - 10;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&[1, 0]);
    // 64 sizes of 20 digits are far from the limit of two bytes.
    bytes.extend_from_slice(&u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(10 + length - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// What to do about a tensor that the format cannot hold.
const ANOTHER: &str = "choose another format with `--format`, such as safetensors";

/// Returns what NumPy calls a type, little-endian.
fn descr(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::Bool => "|b1",
        Dtype::U8 => "|u1",
        Dtype::I8 => "|i1",
        Dtype::U16 => "<u2",
        Dtype::I16 => "<i2",
        Dtype::F16 => "<f2",
        Dtype::U32 => "<u4",
        Dtype::I32 => "<i4",
        Dtype::F32 => "<f4",
        Dtype::U64 => "<u8",
        Dtype::I64 => "<i8",
        Dtype::F64 => "<f8",
        Dtype::C64 => "<c8",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Reader;
    use crate::format::testing::*;

    fn laid_out(
        tensors: &[OutputTensor<'_>],
        metadata: &BTreeMap<String, String>,
    ) -> Result<FileLayout, Errors> {
        let width =
            |tensor: &OutputTensor<'_>| tensor.dtype.byte_len(tensor.shape.iter().product()).expect("a size");
        let sizes: Vec<u64> = tensors.iter().map(width).collect();
        let mut out = Collector::default();
        let layout = super::lay_out(tensors, &sizes, metadata, &mut out)?;
        out.finish(layout).map(|(layout, _)| layout)
    }

    fn reopened(layout: &FileLayout) -> Box<dyn Reader> {
        let mut whole = vec![0; layout.size as usize];
        for (at, piece) in &layout.pieces {
            whole[*at as usize..][..piece.len()].copy_from_slice(piece);
        }
        let folder = tempfile::tempdir().expect("folder");
        open_plain(&put(folder.path(), "a.npz", &whole)).expect("opens")
    }

    #[test]
    fn every_type_that_is_written_is_read_as_the_same() {
        let shapes: [&[u64]; 5] = [&[], &[3], &[0, 3], &[2, 3], &[2, 1, 3, 5, 7]];
        let mut refused = Vec::new();
        for &dtype in Dtype::ALL {
            if descr(dtype).is_none() {
                refused.push(dtype.name());
                continue;
            }
            for shape in shapes {
                let tensors =
                    [OutputTensor { key: "a/b.c", dtype, shape }, OutputTensor { key: "x", dtype, shape }];
                let layout = laid_out(&tensors, &BTreeMap::new()).expect("lays out");
                let reader = reopened(&layout);
                for (found, (made, offset)) in
                    reader.catalog().tensors.iter().zip(tensors.iter().zip(&layout.offsets))
                {
                    assert_eq!((found.key.as_str(), found.dtype, &found.shape[..]), (made.key, dtype, shape));
                    assert_eq!((found.offset, offset % 64), (*offset, 0));
                }
            }
        }
        let names = [
            "F4",
            "F6_E2M3",
            "F6_E3M2",
            "F8_E5M2",
            "F8_E4M3",
            "F8_E8M0",
            "F8_E4M3FNUZ",
            "F8_E5M2FNUZ",
            "BF16",
        ];
        let quantised = Dtype::ALL.iter().filter(|dtype| dtype.is_quantised()).map(|dtype| dtype.name());
        assert_eq!(refused, names.into_iter().chain(quantised).collect::<Vec<_>>());
    }

    #[test]
    fn what_numpy_cannot_hold_is_refused_with_advice() {
        let fails = |tensors: &[OutputTensor<'_>]| {
            let errors = laid_out(tensors, &BTreeMap::new()).err().expect("refused");
            let [diagnostic] = errors.diagnostics() else { panic!("one error") };
            assert_eq!(diagnostic.code, "format/cannot-hold");
            (diagnostic.tensors.clone(), diagnostic.help.clone().expect("has help"))
        };
        let (u8, f8, bf16) = (Dtype::U8, Dtype::F8E4M3, Dtype::BF16);
        let one = |key, dtype| OutputTensor { key, dtype, shape: &[4] };
        let (tensors, help) = fails(&[one("a", bf16), one("b", u8)]);
        assert!(tensors == ["a"] && help.contains("--dtype f32"), "{help}");
        let (_, help) = fails(&[one("a", f8)]);
        assert!(!help.contains("--dtype"), "{help}");
        assert_eq!(fails(&[one("a.npy", u8), one("a", u8)]).0, ["a.npy"]);
        assert!(laid_out(&[one("a.npy", u8), one("b", u8)], &BTreeMap::new()).is_ok());
        fails(&[one("a\0b", u8)]);
        let long = "k".repeat(65532);
        fails(&[one(&long, u8)]);
        assert!(laid_out(&[one(&long[1..], u8)], &BTreeMap::new()).is_ok());
        fails(&[OutputTensor { key: "a", dtype: u8, shape: &[1; 65] }]);
        let layout = laid_out(&[OutputTensor { key: "a", dtype: u8, shape: &[1; 64] }], &BTreeMap::new());
        assert_eq!(reopened(&layout.expect("lays out")).catalog().tensors[0].shape, [1; 64]);
    }

    #[test]
    fn metadata_come_back_however_long_they_are() {
        for length in [1, 60_000, 70_000] {
            let metadata = BTreeMap::from([("a \"b\"".to_owned(), "ä".repeat(length / 2 + 1))]);
            let tensor = OutputTensor { key: "w", dtype: Dtype::F32, shape: &[2, 3] };
            let layout = laid_out(&[tensor], &metadata).expect("lays out");
            let reader = reopened(&layout);
            let catalog = reader.catalog();
            assert_eq!((&catalog.metadata, catalog.tensors.len(), catalog.warnings.len()), (&metadata, 1, 0));
            let again = laid_out(&[tensor], &metadata).expect("lays out");
            assert_eq!((layout.pieces, layout.checksums), (again.pieces, again.checksums));
        }
    }
}
