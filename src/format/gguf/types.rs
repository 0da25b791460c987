//! The types of tensors in a GGUF file.

use crate::dtype::Dtype;

/// The types by their numbers (ggml-org/ggml, `include/ggml.h`, `enum ggml_type`).
const TYPES: &[(u32, Dtype)] = &[
    (0, Dtype::F32),
    (1, Dtype::F16),
    (2, Dtype::Q4_0),
    (3, Dtype::Q4_1),
    (6, Dtype::Q5_0),
    (7, Dtype::Q5_1),
    (8, Dtype::Q8_0),
    (9, Dtype::Q8_1),
    (10, Dtype::Q2K),
    (11, Dtype::Q3K),
    (12, Dtype::Q4K),
    (13, Dtype::Q5K),
    (14, Dtype::Q6K),
    (15, Dtype::Q8K),
    (16, Dtype::Iq2Xxs),
    (17, Dtype::Iq2Xs),
    (18, Dtype::Iq3Xxs),
    (19, Dtype::Iq1S),
    (20, Dtype::Iq4Nl),
    (21, Dtype::Iq3S),
    (22, Dtype::Iq2S),
    (23, Dtype::Iq4Xs),
    (24, Dtype::I8),
    (25, Dtype::I16),
    (26, Dtype::I32),
    (27, Dtype::I64),
    (28, Dtype::F64),
    (29, Dtype::Iq1M),
    (30, Dtype::BF16),
    (34, Dtype::Tq1_0),
    (35, Dtype::Tq2_0),
    (39, Dtype::Mxfp4),
    (40, Dtype::Nvfp4),
    (41, Dtype::Q1_0),
    (42, Dtype::Q2_0),
];

/// Numbers of types that ggml had once and reads no more (the same enumeration).
const REMOVED: &[u32] = &[4, 5, 31, 32, 33, 36, 37, 38];

/// Returns the type of that number, or in words why there is none.
pub(super) fn dtype(number: u32) -> Result<Dtype, String> {
    match TYPES.iter().find(|(other, _)| *other == number) {
        Some((_, dtype)) => Ok(*dtype),
        None if REMOVED.contains(&number) => Err(format!("its type {number} was removed from ggml")),
        None => Err(format!("its type {number} is not known")),
    }
}

/// Returns the number of a type, where GGUF has it.
pub(super) fn number(dtype: Dtype) -> Option<u32> {
    TYPES.iter().find(|(_, other)| *other == dtype).map(|(number, _)| *number)
}

/// Returns the names of the plain types, for a message.
pub(super) fn plain_names() -> String {
    let plain = TYPES.iter().filter(|(_, dtype)| !dtype.is_quantised()).map(|(_, dtype)| dtype.name());
    plain.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quantised_type_has_a_number_and_no_number_stands_twice() {
        for &dtype in Dtype::ALL.iter().filter(|dtype| dtype.is_quantised()) {
            assert!(number(dtype).is_some(), "{dtype}");
        }
        for &(id, of) in TYPES {
            assert_eq!((dtype(id), number(of)), (Ok(of), Some(id)));
            assert!(!REMOVED.contains(&id));
        }
        assert_eq!(number(Dtype::U8), None);
        assert!(dtype(4).is_err_and(|text| text.contains("removed")));
    }
}
