//! PyTorch's types of elements, and the storages that are named after them.

use crate::dtype::Dtype;

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    /// Its name in `torch`.
    pub(super) name: &'static str,
    /// The bytes of one element.
    pub(super) width: u64,
    /// What it is called here, where it can be held.
    pub(super) dtype: Option<Dtype>,
}

impl Element {
    /// Returns the bytes that are swapped together between byte orders: the two parts of a complex number stay in place
    /// (pytorch/pytorch, torch/storage.py, `byteswap`).
    pub(super) fn swapped(self) -> u64 {
        if self.name.contains("complex") { self.width / 2 } else { self.width }
    }
}

/// The storage's name, where it has one of its own (pytorch/pytorch, torch/storage.py, `_dtype_to_storage_type_map`), the
/// names of the type, its width in bytes, and what it is called here.
type Row = (&'static str, &'static [&'static str], u64, Option<Dtype>);

const ROWS: &[Row] = &[
    ("DoubleStorage", &["float64", "double"], 8, Some(Dtype::F64)),
    ("FloatStorage", &["float32", "float"], 4, Some(Dtype::F32)),
    ("HalfStorage", &["float16", "half"], 2, Some(Dtype::F16)),
    ("BFloat16Storage", &["bfloat16"], 2, Some(Dtype::BF16)),
    ("LongStorage", &["int64", "long"], 8, Some(Dtype::I64)),
    ("IntStorage", &["int32", "int"], 4, Some(Dtype::I32)),
    ("ShortStorage", &["int16", "short"], 2, Some(Dtype::I16)),
    ("CharStorage", &["int8"], 1, Some(Dtype::I8)),
    ("ByteStorage", &["uint8"], 1, Some(Dtype::U8)),
    ("BoolStorage", &["bool"], 1, Some(Dtype::Bool)),
    ("ComplexFloatStorage", &["complex64", "cfloat"], 8, Some(Dtype::C64)),
    ("ComplexDoubleStorage", &["complex128", "cdouble"], 16, None),
    ("QInt8Storage", &["qint8"], 1, None),
    ("QUInt8Storage", &["quint8"], 1, None),
    ("QInt32Storage", &["qint32"], 4, None),
    ("QUInt4x2Storage", &["quint4x2"], 1, None),
    ("QUInt2x4Storage", &["quint2x4"], 1, None),
    // Bytes without a type; the tensors on it say what they are.
    ("UntypedStorage", &[], 1, Some(Dtype::U8)),
    // `_new_dtypes` in the same file: these lie in untyped storages.
    ("", &["float8_e4m3fn"], 1, Some(Dtype::F8E4M3)),
    ("", &["float8_e5m2"], 1, Some(Dtype::F8E5M2)),
    ("", &["float8_e4m3fnuz"], 1, Some(Dtype::F8E4M3Fnuz)),
    ("", &["float8_e5m2fnuz"], 1, Some(Dtype::F8E5M2Fnuz)),
    ("", &["float8_e8m0fnu"], 1, Some(Dtype::F8E8M0)),
    ("", &["uint16"], 2, Some(Dtype::U16)),
    ("", &["uint32"], 4, Some(Dtype::U32)),
    ("", &["uint64"], 8, Some(Dtype::U64)),
    ("", &["complex32", "chalf"], 4, None),
    ("", &["bcomplex32"], 4, None),
    ("", &["float4_e2m1fn_x2"], 1, None),
    ("", &["bits8"], 1, None),
    ("", &["bits16"], 2, None),
    ("", &["bits1x8"], 1, None),
    ("", &["bits2x4"], 1, None),
    ("", &["bits4x2"], 1, None),
];

fn element((storage, names, width, dtype): &Row) -> Element {
    Element { name: names.first().unwrap_or(storage), width: *width, dtype: *dtype }
}

/// Returns the type of a storage's elements, and whether it is one of bytes without a type.
pub(super) fn of_storage(name: &str) -> Option<Element> {
    ROWS.iter().find(|row| !name.is_empty() && row.0 == name).map(element)
}

/// Returns the type of that name in `torch`.
pub(super) fn of_dtype(name: &str) -> Option<Element> {
    ROWS.iter().find(|row| row.1.contains(&name)).map(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_those_of_the_types() {
        for row in ROWS {
            let element = element(row);
            if let Some(dtype) = element.dtype {
                assert_eq!(dtype.byte_width(), Some(element.width), "{}", element.name);
            }
        }
        assert_eq!(of_storage("HalfStorage").and_then(|element| element.dtype), Some(Dtype::F16));
        assert_eq!(of_dtype("double").map(|element| element.name), Some("float64"));
        assert_eq!((of_storage(""), of_dtype("")), (None, None));
        assert_eq!(of_storage("ComplexFloatStorage").map(Element::swapped), Some(4));
    }
}
