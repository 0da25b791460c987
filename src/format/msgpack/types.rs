//! The types of arrays, by the names that NumPy and ml_dtypes give them.

use crate::dtype::Dtype;

/// Names as `numpy.dtype.name` has them; those of bfloat16 and float8 are jax-ml/ml_dtypes' (`README.md`).
const TYPES: &[(&str, Dtype)] = &[
    ("bool", Dtype::Bool),
    ("uint8", Dtype::U8),
    ("int8", Dtype::I8),
    ("uint16", Dtype::U16),
    ("int16", Dtype::I16),
    ("uint32", Dtype::U32),
    ("int32", Dtype::I32),
    ("uint64", Dtype::U64),
    ("int64", Dtype::I64),
    ("float16", Dtype::F16),
    ("bfloat16", Dtype::BF16),
    ("float32", Dtype::F32),
    ("float64", Dtype::F64),
    ("complex64", Dtype::C64),
    ("float8_e4m3fn", Dtype::F8E4M3),
    ("float8_e5m2", Dtype::F8E5M2),
    ("float8_e4m3fnuz", Dtype::F8E4M3Fnuz),
    ("float8_e5m2fnuz", Dtype::F8E5M2Fnuz),
    ("float8_e8m0fnu", Dtype::F8E8M0),
];

/// Returns the type of that name.
pub(super) fn dtype(name: &str) -> Option<Dtype> {
    TYPES.iter().find(|(other, _)| *other == name).map(|(_, dtype)| *dtype)
}

/// Returns the name of a type, where there is one. Packed types have none: NumPy gives each element a byte of its own.
pub(super) fn name(dtype: Dtype) -> Option<&'static str> {
    TYPES.iter().find(|(_, other)| *other == dtype).map(|(name, _)| *name)
}

/// Returns all names, for a message.
pub(super) fn names() -> String {
    TYPES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_whose_elements_have_their_own_bytes_has_one_name() {
        for &of in Dtype::ALL {
            assert_eq!(name(of).and_then(dtype), of.byte_width().map(|_| of), "{of}");
        }
    }
}
