//! Elements as bits and as numbers.

use std::fmt;

use crate::dtype::Dtype;

/// What the elements of a type can be compared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers that a double holds exactly.
    Float,
    /// Whole numbers.
    Int,
    /// Bits alone: packed and quantised types, block scales and complex numbers.
    Bits,
}

/// Returns what the elements of a type can be compared as.
pub(crate) fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 => Kind::Float,
        Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz => Kind::Float,
        Dtype::Bool | Dtype::U8 | Dtype::I8 | Dtype::U16 | Dtype::I16 => Kind::Int,
        Dtype::U32 | Dtype::I32 | Dtype::U64 | Dtype::I64 => Kind::Int,
        // F4, F6, F8_E8M0, C64 and the quantised types.
        _ => Kind::Bits,
    }
}

/// One element: its type and its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its type.
    pub dtype: Dtype,
    /// Its bits, in the lowest places. An element of a quantised type has none of its own: the first byte of its block
    /// that differs stands for it.
    pub bits: u64,
}

impl Element {
    /// Returns the hexadecimal digits that its bits take.
    pub(crate) fn digits(self) -> usize {
        if self.dtype.is_quantised() { 2 } else { self.dtype.bits().div_ceil(4) as usize }
    }

    /// Takes an element's stored bytes; of a type whose elements share bytes it has none of its own.
    pub(crate) fn stored(dtype: Dtype, bytes: &[u8]) -> Element {
        let mut bits = [0];
        spread(dtype, bytes, &mut bits);
        Element { dtype, bits: bits[0] }
    }

    /// Returns the number that a floating-point element is; `None` for other types and for those whose bits alone are
    /// compared (packed types, F8_E8M0, C64).
    pub fn float(self) -> Option<f64> {
        let mut value = [0.0];
        (kind(self.dtype) == Kind::Float).then(|| {
            floats(self.dtype, &[self.bits], &mut value);
            value[0]
        })
    }

    /// Returns the number that an integer or BOOL is.
    pub fn int(self) -> Option<i128> {
        (kind(self.dtype) == Kind::Int).then(|| int(self.dtype, self.bits))
    }
}

impl fmt::Display for Element {
    /// Writes the number; the bits of a NaN, since they tell it from others, and of what is no number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(value) = self.int() {
            return write!(f, "{value}");
        }
        let width = self.digits();
        match self.float() {
            Some(value) if value.is_nan() => write!(f, "NaN (0x{:0width$x})", self.bits),
            Some(value) if self.dtype == Dtype::F64 => write!(f, "{value:?}"),
            // The shortest text that is exact for the narrower type.
            Some(value) => write!(f, "{:?}", value as f32),
            None => write!(f, "0x{:0width$x}", self.bits),
        }
    }
}

/// Spreads stored elements, one per word. Packed types are taken from the low bits up.
pub(crate) fn spread(dtype: Dtype, bytes: &[u8], out: &mut [u64]) {
    match dtype.bits() {
        4 => {
            for (pair, &byte) in out.chunks_exact_mut(2).zip(bytes) {
                pair.copy_from_slice(&[u64::from(byte & 15), u64::from(byte >> 4)]);
            }
        }
        6 => {
            for (four, bytes) in out.chunks_exact_mut(4).zip(bytes.as_chunks::<3>().0) {
                let group = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
                for (at, word) in four.iter_mut().enumerate() {
                    *word = u64::from(group >> (6 * at) & 63);
                }
            }
        }
        8 => out.iter_mut().zip(bytes).for_each(|(word, &byte)| *word = u64::from(byte)),
        16 => {
            for (word, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from(u16::from_le_bytes(bytes));
            }
        }
        32 => {
            for (word, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from(u32::from_le_bytes(bytes));
            }
        }
        _ => {
            for (word, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(bytes);
            }
        }
    }
}

/// Returns the numbers of floating-point elements.
///
/// # Panics
/// Panics for a type that is not [`Kind::Float`].
pub(crate) fn floats(dtype: Dtype, bits: &[u64], out: &mut [f64]) {
    fn fill(bits: &[u64], out: &mut [f64], value: impl Fn(u64) -> f64) {
        out.iter_mut().zip(bits).for_each(|(out, &bits)| *out = value(bits));
    }
    match dtype {
        Dtype::F64 => fill(bits, out, f64::from_bits),
        Dtype::F32 => fill(bits, out, |bits| f64::from(f32::from_bits(bits as u32))),
        Dtype::F16 => fill(bits, out, |bits| f64::from(half_to_single(bits as u16))),
        Dtype::BF16 => fill(bits, out, |bits| f64::from(f32::from_bits((bits as u32) << 16))),
        Dtype::F8E4M3 => fill(bits, out, |bits| E4M3[usize::from(bits as u8)]),
        Dtype::F8E5M2 => fill(bits, out, |bits| E5M2[usize::from(bits as u8)]),
        Dtype::F8E4M3Fnuz => fill(bits, out, |bits| E4M3_FNUZ[usize::from(bits as u8)]),
        Dtype::F8E5M2Fnuz => fill(bits, out, |bits| E5M2_FNUZ[usize::from(bits as u8)]),
        other => unreachable!("{other} is no float that is compared as a number"),
    }
}

/// Converts without a branch, so that loops over it become vector instructions; `half` converts one at a time.
fn half_to_single(bits: u16) -> f32 {
    // The exponent's bias differs by 112; the product also makes subnormals right.
    const SCALE: f32 = f32::from_bits((112 + 127) << 23);
    let magnitude = u32::from(bits & 0x7fff);
    let finite = (f32::from_bits(magnitude << 13) * SCALE).to_bits();
    let magnitude = if magnitude >= 0x7c00 { finite | 0x7f80_0000 } else { finite };
    f32::from_bits(magnitude | u32::from(bits & 0x8000) << 16)
}

/// Returns the number that an integer or BOOL is.
pub(crate) fn int(dtype: Dtype, bits: u64) -> i128 {
    match dtype {
        Dtype::I8 => i128::from(bits as i8),
        Dtype::I16 => i128::from(bits as i16),
        Dtype::I32 => i128::from(bits as i32),
        Dtype::I64 => i128::from(bits as i64),
        _ => i128::from(bits),
    }
}

/// Maps the bits of a float to whole numbers in the order of the values, neighbours to neighbours and both zeros to 0.
pub(crate) fn rank(dtype: Dtype, bits: u64) -> i64 {
    let sign = 1 << (dtype.bits() - 1);
    let magnitude = (bits & (sign - 1)) as i64;
    if bits & sign == 0 { magnitude } else { -magnitude }
}

static E4M3: [f64; 256] = table(3, 7, Special::Nan);
static E5M2: [f64; 256] = table(2, 15, Special::Ieee);
static E4M3_FNUZ: [f64; 256] = table(3, 8, Special::NegativeZero);
static E5M2_FNUZ: [f64; 256] = table(2, 16, Special::NegativeZero);

/// Which of an 8-bit float's codes are no numbers.
#[derive(Clone, Copy)]
enum Special {
    /// The highest exponent, as IEEE 754 has it.
    Ieee,
    /// The codes of all ones; there are no infinities.
    Nan,
    /// What would be negative zero, a NaN; there are no infinities.
    NegativeZero,
}

/// Makes the values of an 8-bit float (arXiv:2209.05433 for `Ieee` and `Nan`, arXiv:2206.02915 for `NegativeZero`).
const fn table(mantissa_bits: u32, bias: u64, special: Special) -> [f64; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = small(code as u64, mantissa_bits, bias, special);
        code += 1;
    }
    table
}

const fn small(code: u64, mantissa_bits: u32, bias: u64, special: Special) -> f64 {
    let (negative, rest) = (code >= 0x80, code & 0x7f);
    let (exponent, mantissa) = (rest >> mantissa_bits, rest & ((1 << mantissa_bits) - 1));
    let highest = exponent == (1 << (7 - mantissa_bits)) - 1;
    let magnitude = match special {
        Special::Ieee if highest && mantissa == 0 => f64::INFINITY,
        Special::Ieee if highest => f64::NAN,
        Special::Nan if rest == 0x7f => f64::NAN,
        Special::NegativeZero if code == 0x80 => f64::NAN,
        _ if exponent == 0 => {
            let unit = f64::from_bits((1024 - bias - mantissa_bits as u64) << 52);
            mantissa as f64 * unit
        }
        _ => f64::from_bits((exponent + 1023 - bias) << 52 | mantissa << (52 - mantissa_bits)),
    };
    if negative { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn float(dtype: Dtype, bits: u64) -> f64 {
        Element { dtype, bits }.float().expect("a float")
    }

    #[test]
    fn halves_are_those_of_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (f, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            let (f_own, b_own) = (float(Dtype::F16, bits.into()), float(Dtype::BF16, bits.into()));
            assert!(f.is_nan() && f_own.is_nan() || f.to_f64().to_bits() == f_own.to_bits(), "{bits:#x}");
            assert!(b.is_nan() && b_own.is_nan() || b.to_f64().to_bits() == b_own.to_bits(), "{bits:#x}");
        }
    }

    #[test]
    fn eight_bit_floats_have_the_published_extremes() {
        // type, largest finite code and value, smallest subnormal, one
        let known = [
            (Dtype::F8E4M3, 0x7e, 448.0, -9, 0x38),
            (Dtype::F8E5M2, 0x7b, 57344.0, -16, 0x3c),
            (Dtype::F8E4M3Fnuz, 0x7f, 240.0, -10, 0x40),
            (Dtype::F8E5M2Fnuz, 0x7f, 57344.0, -17, 0x40),
        ];
        for (dtype, code, largest, smallest, one) in known {
            assert_eq!(float(dtype, code), largest, "{dtype}");
            assert_eq!(float(dtype, code | 0x80), -largest, "{dtype}");
            assert_eq!(float(dtype, 1), f64::powi(2.0, smallest), "{dtype}");
            assert_eq!(float(dtype, one), 1.0, "{dtype}");
            assert_eq!(float(dtype, one + 1) - 1.0, if dtype.name().contains("E4") { 0.125 } else { 0.25 });
        }
    }

    #[test]
    fn eight_bit_floats_have_the_published_specials() {
        let nans = |dtype| (0..256).filter(|&code| float(dtype, code).is_nan()).collect::<Vec<u64>>();
        assert_eq!(nans(Dtype::F8E4M3), [0x7f, 0xff]);
        assert_eq!(nans(Dtype::F8E5M2), [0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff]);
        assert_eq!(nans(Dtype::F8E4M3Fnuz), [0x80]);
        assert_eq!(nans(Dtype::F8E5M2Fnuz), [0x80]);
        assert_eq!(float(Dtype::F8E5M2, 0x7c), f64::INFINITY);
        assert_eq!(float(Dtype::F8E5M2, 0xfc), f64::NEG_INFINITY);
        assert_eq!(float(Dtype::F8E4M3, 0x80).to_bits(), (-0.0_f64).to_bits());
    }

    #[test]
    fn ranks_follow_the_values() {
        for dtype in [Dtype::F8E4M3, Dtype::F8E5M2, Dtype::F16, Dtype::BF16] {
            let mut codes: Vec<u64> =
                (0..1 << dtype.bits()).filter(|&code| !float(dtype, code).is_nan()).collect();
            codes.sort_by(|&a, &b| float(dtype, a).total_cmp(&float(dtype, b)));
            for pair in codes.windows(2) {
                let zeros = float(dtype, pair[0]) == float(dtype, pair[1]);
                assert_eq!(
                    rank(dtype, pair[1]) - rank(dtype, pair[0]),
                    i64::from(!zeros),
                    "{dtype} {pair:?}"
                );
            }
        }
        assert_eq!(rank(Dtype::F64, u64::MAX), -i64::MAX);
    }

    #[test]
    fn packed_elements_come_apart() {
        let mut two = [0; 2];
        spread(Dtype::F4, &[0xA5], &mut two);
        assert_eq!(two, [5, 10]);
        let mut four = [0; 4];
        // 1, 3, 33 and 63 from the low bits up.
        spread(Dtype::F6E2M3, &[0b1100_0001, 0b0001_0000, 0b1111_1110], &mut four);
        assert_eq!(four, [1, 3, 33, 63]);
    }

    #[test]
    fn elements_are_written_as_their_type_would() {
        let text = |dtype, bits| Element { dtype, bits }.to_string();
        assert_eq!(text(Dtype::F32, 0.1_f32.to_bits().into()), "0.1");
        assert_eq!(text(Dtype::F64, 0.1_f64.to_bits()), "0.1");
        assert_eq!(text(Dtype::F32, (-0.0_f32).to_bits().into()), "-0.0");
        assert_eq!(text(Dtype::F16, 0x7e01), "NaN (0x7e01)");
        assert_eq!(text(Dtype::I8, 0xff), "-1");
        assert_eq!(text(Dtype::U64, u64::MAX), "18446744073709551615");
        assert_eq!(text(Dtype::F6E3M2, 5), "0x05");
        assert_eq!(text(Dtype::C64, 5), "0x0000000000000005");
    }
}
