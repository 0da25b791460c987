//! Element types, as opaque bits with a width.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident $bits:literal $name:literal $doc:literal;)*) => {
        /// The type of a tensor's elements.
        ///
        /// The names are those of the safetensors format (huggingface/safetensors, `safetensors/src/tensor.rs`).
        /// A conversion moves elements as bits; the type matters where values are changed on request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Dtype { $(#[doc = $doc] $variant,)* }

        impl Dtype {
            /// Every type, in the order of the format's specification.
            pub const ALL: &[Dtype] = &[$(Dtype::$variant,)*];

            /// Returns the width of one element in bits.
            pub const fn bits(self) -> u64 {
                match self { $(Dtype::$variant => $bits,)* }
            }

            /// Returns the type's name in a safetensors header.
            pub const fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name,)* }
            }
        }
    };
}

dtypes! {
    Bool 8 "BOOL" "A truth value in one byte.";
    F4 4 "F4" "4-bit float, two in a byte (MXFP4).";
    F6E2M3 6 "F6_E2M3" "6-bit float, four in three bytes.";
    F6E3M2 6 "F6_E3M2" "6-bit float, four in three bytes.";
    U8 8 "U8" "Unsigned byte.";
    I8 8 "I8" "Signed byte.";
    F8E5M2 8 "F8_E5M2" "8-bit float, 5 exponent bits.";
    F8E4M3 8 "F8_E4M3" "8-bit float, 4 exponent bits.";
    F8E8M0 8 "F8_E8M0" "8-bit power of two, a block scale.";
    F8E4M3Fnuz 8 "F8_E4M3FNUZ" "8-bit float without negative zero.";
    F8E5M2Fnuz 8 "F8_E5M2FNUZ" "8-bit float without negative zero.";
    I16 16 "I16" "Signed 16-bit integer.";
    U16 16 "U16" "Unsigned 16-bit integer.";
    F16 16 "F16" "IEEE 754 half.";
    BF16 16 "BF16" "bfloat16.";
    I32 32 "I32" "Signed 32-bit integer.";
    U32 32 "U32" "Unsigned 32-bit integer.";
    F32 32 "F32" "IEEE 754 single.";
    C64 64 "C64" "Two singles, a complex number.";
    F64 64 "F64" "IEEE 754 double.";
    I64 64 "I64" "Signed 64-bit integer.";
    U64 64 "U64" "Unsigned 64-bit integer.";
}

impl Dtype {
    /// Returns the type of that safetensors name.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// Returns the type after a cast of all floating-point tensors; other types, and packed floats, stay as they are.
    pub fn cast_to(self, wanted: Option<Dtype>) -> Dtype {
        match (self, wanted) {
            (Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16, Some(wanted)) => wanted,
            _ => self,
        }
    }

    /// Returns the bytes that `elements` elements take, or `None` where they end inside a byte or overflow.
    pub fn byte_len(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Returns the bytes of one element, or `None` for a type of less than a byte.
    pub fn byte_width(self) -> Option<u64> {
        self.bits().is_multiple_of(8).then(|| self.bits() / 8)
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
        for &dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
            let theirs: safetensors::Dtype =
                serde_json::from_str(&format!("{:?}", dtype.name())).expect("a name of the format");
            assert_eq!(theirs.bitsize() as u64, dtype.bits(), "{dtype}");
        }
    }

    #[test]
    fn elements_that_end_inside_a_byte_have_no_length() {
        assert_eq!(Dtype::F4.byte_len(3), None);
        assert_eq!(Dtype::F4.byte_len(4), Some(2));
        assert_eq!(Dtype::F6E2M3.byte_len(4), Some(3));
        assert_eq!(Dtype::F64.byte_len(u64::MAX), None);
    }
}
