//! Element types, as opaque bits with a width.

use std::fmt;

macro_rules! dtypes {
    (
        safetensors { $($variant:ident $elements:literal $bytes:literal $name:literal $doc:literal;)* }
        quantised { $($block:ident $block_elements:literal $block_bytes:literal $block_name:literal;)* }
    ) => {
        /// The type of a tensor's elements.
        ///
        /// Two kinds: the types of the safetensors format, by its names (huggingface/safetensors,
        /// `safetensors/src/tensor.rs`), and the quantised blocks of GGUF, by the names of ggml
        /// (ggml-org/ggml, `include/ggml.h`, `enum ggml_type`).
        /// A conversion moves elements as bits; the type matters where values are changed on request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Dtype {
            $(#[doc = $doc] $variant,)*
            $(
                #[doc = concat!("Quantised: ", $block_elements, " elements in ", $block_bytes, " bytes.")]
                $block,
            )*
        }

        impl Dtype {
            /// Every type: those of safetensors, in the order of its specification, and the quantised ones.
            pub const ALL: &[Dtype] = &[$(Dtype::$variant,)* $(Dtype::$block,)*];

            /// The types of the safetensors format, in the order of its specification.
            pub const SAFETENSORS: &[Dtype] = &[$(Dtype::$variant,)*];

            /// Returns the elements and the bytes of the smallest part that can be moved: one element, a few that share
            /// bytes, or a block with its scales.
            pub const fn block(self) -> (u64, u64) {
                match self {
                    $(Dtype::$variant => ($elements, $bytes),)*
                    $(Dtype::$block => ($block_elements, $block_bytes),)*
                }
            }

            /// Returns the type's name, for a type of safetensors that in its header.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Dtype::$variant => $name,)*
                    $(Dtype::$block => $block_name,)*
                }
            }

            /// Returns whether elements are floating-point numbers that are computed with, weighed and cast.
            pub const fn is_computable(self) -> bool {
                matches!(self, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
            }

            /// Returns whether elements stand in blocks that share scales, so that one alone has no bits of its own.
            pub const fn is_quantised(self) -> bool {
                match self {
                    $(Dtype::$variant => false,)*
                    $(Dtype::$block => true,)*
                }
            }
        }
    };
}

// The sizes of the quantised blocks are those of ggml-org/ggml, `src/ggml.c` (`type_traits`) with `src/ggml-common.h`
// (`block_*`, QK_K = 256).
dtypes! {
    safetensors {
        Bool 1 1 "BOOL" "A truth value in one byte.";
        F4 2 1 "F4" "4-bit float, two in a byte (MXFP4).";
        F6E2M3 4 3 "F6_E2M3" "6-bit float, four in three bytes.";
        F6E3M2 4 3 "F6_E3M2" "6-bit float, four in three bytes.";
        U8 1 1 "U8" "Unsigned byte.";
        I8 1 1 "I8" "Signed byte.";
        F8E5M2 1 1 "F8_E5M2" "8-bit float, 5 exponent bits.";
        F8E4M3 1 1 "F8_E4M3" "8-bit float, 4 exponent bits.";
        F8E8M0 1 1 "F8_E8M0" "8-bit power of two, a block scale.";
        F8E4M3Fnuz 1 1 "F8_E4M3FNUZ" "8-bit float without negative zero.";
        F8E5M2Fnuz 1 1 "F8_E5M2FNUZ" "8-bit float without negative zero.";
        I16 1 2 "I16" "Signed 16-bit integer.";
        U16 1 2 "U16" "Unsigned 16-bit integer.";
        F16 1 2 "F16" "IEEE 754 half.";
        BF16 1 2 "BF16" "bfloat16.";
        I32 1 4 "I32" "Signed 32-bit integer.";
        U32 1 4 "U32" "Unsigned 32-bit integer.";
        F32 1 4 "F32" "IEEE 754 single.";
        C64 1 8 "C64" "Two singles, a complex number.";
        F64 1 8 "F64" "IEEE 754 double.";
        I64 1 8 "I64" "Signed 64-bit integer.";
        U64 1 8 "U64" "Unsigned 64-bit integer.";
    }
    quantised {
        Q4_0 32 18 "Q4_0";
        Q4_1 32 20 "Q4_1";
        Q5_0 32 22 "Q5_0";
        Q5_1 32 24 "Q5_1";
        Q8_0 32 34 "Q8_0";
        Q8_1 32 36 "Q8_1";
        Q2K 256 84 "Q2_K";
        Q3K 256 110 "Q3_K";
        Q4K 256 144 "Q4_K";
        Q5K 256 176 "Q5_K";
        Q6K 256 210 "Q6_K";
        Q8K 256 292 "Q8_K";
        Iq2Xxs 256 66 "IQ2_XXS";
        Iq2Xs 256 74 "IQ2_XS";
        Iq3Xxs 256 98 "IQ3_XXS";
        Iq1S 256 50 "IQ1_S";
        Iq4Nl 32 18 "IQ4_NL";
        Iq3S 256 110 "IQ3_S";
        Iq2S 256 82 "IQ2_S";
        Iq4Xs 256 136 "IQ4_XS";
        Iq1M 256 56 "IQ1_M";
        Tq1_0 256 54 "TQ1_0";
        Tq2_0 256 66 "TQ2_0";
        Mxfp4 32 17 "MXFP4";
        Nvfp4 64 36 "NVFP4";
        Q1_0 128 18 "Q1_0";
        Q2_0 64 18 "Q2_0";
    }
}

impl Dtype {
    /// Returns the type of that safetensors name.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::SAFETENSORS.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// Returns the width of one element in bits; of a quantised type what an element takes of its block, rounded up.
    /// Sizes of tensors come from [`Dtype::byte_len`].
    pub const fn bits(self) -> u64 {
        let (elements, bytes) = self.block();
        (bytes * 8).div_ceil(elements)
    }

    /// Returns the type after a cast of all floating-point tensors; other types, packed floats and quantised ones stay as
    /// they are.
    pub fn cast_to(self, wanted: Option<Dtype>) -> Dtype {
        match (self, wanted) {
            (Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16, Some(wanted)) => wanted,
            _ => self,
        }
    }

    /// Returns the bytes that `elements` elements take, or `None` where they end inside a block or overflow.
    pub fn byte_len(self, elements: u64) -> Option<u64> {
        let (of_block, bytes) = self.block();
        elements.is_multiple_of(of_block).then(|| (elements / of_block).checked_mul(bytes))?
    }

    /// Returns the bytes of one element, or `None` for a type whose elements share bytes.
    pub const fn byte_width(self) -> Option<u64> {
        match self.block() {
            (1, bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_widths_are_those_of_the_format() {
        for &dtype in Dtype::SAFETENSORS {
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
            let theirs: safetensors::Dtype =
                serde_json::from_str(&format!("{:?}", dtype.name())).expect("a name of the format");
            assert_eq!(theirs.bitsize() as u64, dtype.bits(), "{dtype}");
            let (elements, bytes) = dtype.block();
            assert_eq!(bytes * 8, elements * dtype.bits(), "{dtype}");
        }
    }

    #[test]
    fn quantised_types_are_no_names_of_the_format() {
        let quantised = Dtype::ALL.iter().filter(|dtype| dtype.is_quantised());
        let known: Vec<Option<Dtype>> = quantised.map(|dtype| Dtype::from_name(dtype.name())).collect();
        assert_eq!(known, vec![None; Dtype::ALL.len() - Dtype::SAFETENSORS.len()]);
        assert!(Dtype::SAFETENSORS.iter().all(|dtype| !dtype.is_quantised()));
    }

    #[test]
    fn blocks_are_whole() {
        assert_eq!((Dtype::Q8_0.byte_len(64), Dtype::Q8_0.byte_len(48)), (Some(68), None));
        assert_eq!((Dtype::Q4K.byte_len(512), Dtype::Q8_0.byte_len(u64::MAX / 32 * 32)), (Some(288), None));
        assert_eq!((Dtype::Q8_0.byte_width(), Dtype::F4.byte_width()), (None, None));
        assert_eq!(Dtype::Q8_0.cast_to(Some(Dtype::F32)), Dtype::Q8_0);
    }

    #[test]
    fn elements_that_end_inside_a_byte_have_no_length() {
        assert_eq!(Dtype::F4.byte_len(3), None);
        assert_eq!(Dtype::F4.byte_len(4), Some(2));
        assert_eq!(Dtype::F6E2M3.byte_len(4), Some(3));
        assert_eq!(Dtype::F64.byte_len(u64::MAX), None);
    }
}
