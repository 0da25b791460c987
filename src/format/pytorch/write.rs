//! Laying out a state dict as `torch.save` writes it: a zip archive with a pickle and the bytes of each tensor.
//!
//! The pickle is that of pytorch/pytorch, `torch/_tensor.py` (`_reduce_ex_internal`) and `torch/serialization.py`
//! (`persistent_id`); the archive that of `caffe2/serialize/inline_container.cc`.

use std::collections::BTreeMap;

use crate::catalog::row_major;
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;
use crate::format::layout::{FileLayout, OutputTensor, no_json};
use crate::format::zip::write::{NewEntry, lay_out as lay_out_archive};

/// The entry, beside the pickle, that holds the metadata; PyTorch passes it over.
pub(super) const METADATA_ENTRY: &str = "extra/qkvconv.json";

/// Lays out one file: an `OrderedDict` of tensors, each with a storage of its own at a multiple of 64 bytes, so that
/// `torch.load` also maps the file into memory. The metadata are an entry that `torch.load` does not look at,
/// `archive/extra/qkvconv.json`.
///
/// Refused are types that PyTorch does not have (`format/cannot-hold`).
pub(in crate::format) fn lay_out(
    tensors: &[OutputTensor<'_>],
    sizes: &[u64],
    metadata: &BTreeMap<String, String>,
    out: &mut Collector,
) -> Result<FileLayout, Errors> {
    let mut pickle = Pickle::default();
    pickle.begin();
    for (number, (tensor, &bytes)) in tensors.iter().zip(sizes).enumerate() {
        match element_of(tensor.dtype) {
            Some(element) => pickle.item(tensor, &element, number, bytes),
            None => {
                let message = format!("PyTorch has no type for {}", tensor.dtype);
                let help = "choose another format with `--format`, such as safetensors";
                out.push(Diagnostic::error(FormatCode::CannotHold, message).tensor(tensor.key).help(help));
            }
        }
    }
    let known = |name: &str, head: Vec<u8>| NewEntry { name: format!("archive/{name}"), head, hole: 0 };
    let mut entries = vec![known("data.pkl", pickle.end()), known("byteorder", b"little".to_vec())];
    if !metadata.is_empty() {
        let text = serde_json::to_vec(metadata).map_err(|error| no_json("the metadata", &error))?;
        entries.push(known(METADATA_ENTRY, text));
    }
    let first = entries.len();
    for (number, &hole) in sizes.iter().enumerate() {
        entries.push(NewEntry { hole, ..known(&format!("data/{number}"), Vec::new()) });
    }
    entries.push(known("version", b"3\n".to_vec()));
    let archive = lay_out_archive(entries, b"");
    let offsets = archive.holes.into_iter().skip(first).take(tensors.len()).collect();
    Ok(FileLayout {
        pieces: archive.pieces,
        size: archive.size,
        checksums: archive.checksums,
        offsets,
        beside: None,
    })
}

/// How a pickle names a type.
enum Element {
    /// By the class of its storage.
    Storage(&'static str),
    /// By itself, beside a storage of bytes: types newer than the classes.
    Itself(&'static str),
}

fn element_of(dtype: Dtype) -> Option<Element> {
    Some(match dtype {
        Dtype::Bool => Element::Storage("BoolStorage"),
        Dtype::U8 => Element::Storage("ByteStorage"),
        Dtype::I8 => Element::Storage("CharStorage"),
        Dtype::I16 => Element::Storage("ShortStorage"),
        Dtype::I32 => Element::Storage("IntStorage"),
        Dtype::I64 => Element::Storage("LongStorage"),
        Dtype::F16 => Element::Storage("HalfStorage"),
        Dtype::BF16 => Element::Storage("BFloat16Storage"),
        Dtype::F32 => Element::Storage("FloatStorage"),
        Dtype::F64 => Element::Storage("DoubleStorage"),
        Dtype::C64 => Element::Storage("ComplexFloatStorage"),
        Dtype::U16 => Element::Itself("uint16"),
        Dtype::U32 => Element::Itself("uint32"),
        Dtype::U64 => Element::Itself("uint64"),
        Dtype::F8E5M2 => Element::Itself("float8_e5m2"),
        Dtype::F8E4M3 => Element::Itself("float8_e4m3fn"),
        Dtype::F8E5M2Fnuz => Element::Itself("float8_e5m2fnuz"),
        Dtype::F8E4M3Fnuz => Element::Itself("float8_e4m3fnuz"),
        Dtype::F8E8M0 => Element::Itself("float8_e8m0fnu"),
        // Of packed types PyTorch has pairs of 4-bit floats alone, whose shape is another.
        _ => return None,
    })
}

/// A pickle of protocol 2 (python/cpython, `Lib/pickletools.py`).
#[derive(Default)]
struct Pickle {
    bytes: Vec<u8>,
    /// What stands in the memo: bytes that made it, by their number there.
    memo: Vec<Vec<u8>>,
}

impl Pickle {
    fn begin(&mut self) {
        self.put(b"\x80\x02");
        self.empty_dict();
        self.put(b"(");
    }

    /// Adds a tensor under its name.
    fn item(&mut self, tensor: &OutputTensor<'_>, element: &Element, number: usize, bytes: u64) {
        self.text(tensor.key);
        let (rebuild, storage) = match *element {
            Element::Storage(class) => ("_rebuild_tensor_v2", global("torch", class)),
            Element::Itself(_) => ("_rebuild_tensor_v3", global("torch.storage", "UntypedStorage")),
        };
        self.shared(global("torch._utils", rebuild));
        self.put(b"((");
        self.shared(text("storage"));
        self.shared(storage);
        self.text(&number.to_string());
        self.shared(text("cpu"));
        let width = match element {
            Element::Storage(_) => tensor.dtype.byte_width().unwrap_or(1),
            Element::Itself(_) => 1,
        };
        self.int(bytes / width);
        self.put(b"tQ");
        let (offset, requires_grad) = (0, b"\x89");
        self.int(offset);
        self.ints(tensor.shape);
        self.ints(&row_major(tensor.shape));
        self.put(requires_grad);
        // The hooks.
        self.empty_dict();
        if let Element::Itself(name) = *element {
            self.shared(global("torch", name));
        }
        self.put(b"tR");
    }

    fn end(mut self) -> Vec<u8> {
        self.put(b"u.");
        self.bytes
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn empty_dict(&mut self) {
        self.shared(global("collections", "OrderedDict"));
        self.put(b")R");
    }

    /// Writes what comes up again and again; only the first time in full. There are fewer than 256 of these.
    fn shared(&mut self, bytes: Vec<u8>) {
        let known = self.memo.iter().position(|other| *other == bytes);
        let number = known.unwrap_or(self.memo.len());
        let Ok(number) = u8::try_from(number) else { return self.put(&bytes) };
        match known {
            Some(_) => self.put(&[b'h', number]),
            None => {
                self.put(&bytes);
                self.put(&[b'q', number]);
                self.memo.push(bytes);
            }
        }
    }

    fn text(&mut self, value: &str) {
        self.put(&text(value));
    }

    fn ints(&mut self, values: &[u64]) {
        self.put(b"(");
        values.iter().for_each(|&value| self.int(value));
        self.put(b"t");
    }

    fn int(&mut self, value: u64) {
        if let Ok(byte) = u8::try_from(value) {
            self.put(&[b'K', byte]);
        } else if let Ok(word) = i32::try_from(value) {
            self.put(b"J");
            self.put(&word.to_le_bytes());
        } else {
            // Nine bytes, so that the sign is not among those of the value.
            self.put(b"\x8a\x09");
            self.put(&value.to_le_bytes());
            self.put(&[0]);
        }
    }
}

fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

fn text(value: &str) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    [b"X", &length.to_le_bytes()[..], value.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::store::OpenFile;
    use crate::format::testing::put;
    use crate::format::zip::read::{bytes, entries};

    fn tensor<'a>(key: &'a str, dtype: Dtype, shape: &'a [u64]) -> OutputTensor<'a> {
        OutputTensor { key, dtype, shape }
    }

    fn pickle_of(tensors: &[OutputTensor<'_>], sizes: &[u64]) -> Vec<u8> {
        let mut pickle = Pickle::default();
        pickle.begin();
        for (number, (tensor, &size)) in tensors.iter().zip(sizes).enumerate() {
            pickle.item(tensor, &element_of(tensor.dtype).expect("a type"), number, size);
        }
        pickle.end()
    }

    #[test]
    fn the_pickle_is_written_opcode_by_opcode() {
        let found =
            pickle_of(&[tensor("a", Dtype::F32, &[2, 3]), tensor("b", Dtype::F8E4M3, &[300])], &[24, 300]);
        let expected = [
            &b"\x80\x02ccollections\nOrderedDict\nq\x00)R("[..],
            b"X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\nq\x01((X\x07\0\0\0storageq\x02",
            b"ctorch\nFloatStorage\nq\x03X\x01\0\0\x000X\x03\0\0\0cpuq\x04K\x06tQK\0",
            b"(K\x02K\x03t(K\x03K\x01t\x89h\x00)RtR",
            b"X\x01\0\0\0bctorch._utils\n_rebuild_tensor_v3\nq\x05((h\x02",
            b"ctorch.storage\nUntypedStorage\nq\x06X\x01\0\0\x001h\x04J\x2c\x01\0\0tQK\0",
            b"(J\x2c\x01\0\0t(K\x01t\x89h\x00)Rctorch\nfloat8_e4m3fn\nq\x07tRu.",
        ];
        assert_eq!(found.escape_ascii().to_string(), expected.concat().escape_ascii().to_string());
    }

    #[test]
    fn integers_of_every_length() {
        let put = |value| {
            let mut pickle = Pickle::default();
            pickle.int(value);
            pickle.bytes
        };
        assert_eq!((put(255), put(256)), (b"K\xff".to_vec(), b"J\0\x01\0\0".to_vec()));
        assert_eq!(put(0x7fff_ffff), b"J\xff\xff\xff\x7f");
        assert_eq!(put(0x8000_0000), b"\x8a\x09\0\0\0\x80\0\0\0\0\0");
        assert_eq!(put(u64::MAX), b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0");
    }

    #[test]
    fn each_tensor_has_an_aligned_entry() {
        let tensors =
            [tensor("w", Dtype::BF16, &[3, 5]), tensor("e", Dtype::I64, &[0]), tensor("s", Dtype::F64, &[])];
        let metadata = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        let lay = || {
            let mut out = Collector::default();
            let layout = super::lay_out(&tensors, &[30, 0, 8], &metadata, &mut out).expect("lays out");
            out.finish(layout).expect("no errors").0
        };
        let layout = lay();
        let mut whole = vec![0; layout.size as usize];
        for (at, piece) in &layout.pieces {
            whole[*at as usize..][..piece.len()].copy_from_slice(piece);
        }
        let folder = tempfile::tempdir().expect("folder");
        let file = OpenFile::open(&put(folder.path(), "a", &whole)).expect("opens");
        let found = entries(&file).expect("reads");
        let names: Vec<&str> = found.iter().map(|entry| entry.name.as_str()).collect();
        let data = ["archive/data/0", "archive/data/1", "archive/data/2"];
        assert_eq!(names[..3], ["archive/data.pkl", "archive/byteorder", "archive/extra/qkvconv.json"]);
        assert_eq!((&names[3..6], names[6]), (&data[..], "archive/version"));
        let starts: Vec<u64> = found[3..6].iter().map(|entry| entry.start).collect();
        assert_eq!(layout.offsets, starts);
        assert!(starts.iter().all(|start| start % 64 == 0), "{starts:?}");
        let whole: Vec<Vec<u8>> =
            [0, 1, 2, 6].map(|at| bytes(&file, &found[at], 1000).expect("whole")).into();
        assert_eq!(whole[0], pickle_of(&tensors, &[30, 0, 8]));
        assert_eq!(whole[1..], [b"little".to_vec(), br#"{"a":"1"}"#.to_vec(), b"3\n".to_vec()]);
        let again = lay();
        assert_eq!((layout.pieces, layout.checksums), (again.pieces, again.checksums));
    }

    #[test]
    fn types_that_pytorch_does_not_have_are_refused() {
        for &dtype in Dtype::ALL {
            let mut out = Collector::default();
            let sizes = [dtype.bits()];
            super::lay_out(&[tensor("a", dtype, &[8])], &sizes, &BTreeMap::new(), &mut out)
                .expect("lays out");
            let refused = out.finish(()).err().map(|errors| errors.diagnostics()[0].clone());
            assert_eq!(refused.is_some(), dtype.byte_width().is_none(), "{dtype}");
            if let Some(diagnostic) = refused {
                assert_eq!(
                    (diagnostic.code.as_str(), &diagnostic.tensors[..]),
                    ("format/cannot-hold", &["a".to_owned()][..])
                );
            }
        }
    }
}
