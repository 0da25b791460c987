//! Changing values on the way: scaled in f64 and rounded once to the target's type.

use half::{bf16, f16};

use super::cast::cast;
use super::losses::Losses;
use crate::dtype::Dtype;

/// What happens to values on the way: `to(from * scale + offset)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Conversion {
    /// The type of the stored values.
    pub(super) from: Dtype,
    /// The type of the values to write.
    pub(super) to: Dtype,
    /// Factor.
    pub(super) scale: f64,
    /// Added after scaling.
    pub(super) offset: f64,
}

impl Conversion {
    /// Converts all values; both slices are aligned and hold equally many.
    ///
    /// # Panics
    /// Panics for types that are not [computable](Dtype::is_computable).
    pub(super) fn convert(&self, from: &[u8], to: &mut [u8]) -> Losses {
        let plain = self.scale == 1.0 && self.offset == 0.0;
        let cast = plain.then(|| cast((self.from, self.to), from, to)).flatten();
        cast.unwrap_or_else(|| self.one_by_one(from, to))
    }

    /// Converts value by value, through f64.
    pub(super) fn one_by_one(&self, from: &[u8], to: &mut [u8]) -> Losses {
        match self.from {
            Dtype::F64 => self.store(bytemuck::cast_slice::<u8, f64>(from).iter().copied(), to),
            Dtype::F32 => self.store(bytemuck::cast_slice::<u8, f32>(from).iter().map(|&x| f64::from(x)), to),
            Dtype::F16 => self.store(bytemuck::cast_slice::<u8, u16>(from).iter().map(|&x| f16_value(x)), to),
            Dtype::BF16 => {
                self.store(bytemuck::cast_slice::<u8, u16>(from).iter().map(|&x| bf16_value(x)), to)
            }
            other => unreachable!("{other} was refused before"),
        }
    }

    fn store(&self, values: impl Iterator<Item = f64>, to: &mut [u8]) -> Losses {
        match self.to {
            Dtype::F64 => self.round(values, bytemuck::cast_slice_mut(to), |x| x, |x| x),
            Dtype::F32 => self.round(values, bytemuck::cast_slice_mut(to), |x| x as f32, f64::from),
            Dtype::F16 => self.round(values, bytemuck::cast_slice_mut(to), f16_bits, f16_value),
            Dtype::BF16 => self.round(values, bytemuck::cast_slice_mut(to), bf16_bits, bf16_value),
            other => unreachable!("{other} was refused before"),
        }
    }

    fn round<T: Copy>(
        &self,
        values: impl Iterator<Item = f64>,
        target: &mut [T],
        round: impl Fn(f64) -> T,
        back: impl Fn(T) -> f64,
    ) -> Losses {
        let mut losses = Losses::default();
        for (slot, value) in target.iter_mut().zip(values) {
            // Adding nothing would still turn -0 into 0.
            let scaled = value * self.scale;
            let exact = if self.offset == 0.0 { scaled } else { scaled + self.offset };
            *slot = round(exact);
            let rounded = back(*slot);
            if rounded.is_infinite() && value.is_finite() {
                losses.overflows += 1;
                losses.largest = losses.largest.max(exact.abs());
            }
            losses.underflows += u64::from(rounded == 0.0 && exact != 0.0);
            // `max` passes over the NaN that infinities and NaNs give.
            losses.error = losses.error.max((rounded - exact).abs());
        }
        losses
    }
}

fn f16_value(bits: u16) -> f64 {
    f64::from(f16::from_bits(bits))
}

fn bf16_value(bits: u16) -> f64 {
    f64::from(bf16::from_bits(bits))
}

/// Rounds to the nearest half, ties to even.
///
/// `half::f16::from_f64` drops the low 32 bits first (half 2.7.1, `binary16/arch.rs`), so that a value just above a
/// tie is rounded as the tie.
pub(crate) fn f16_bits(value: f64) -> u16 {
    narrow(value, 5, 10)
}

/// Rounds to the nearest bfloat16, ties to even.
pub(crate) fn bf16_bits(value: f64) -> u16 {
    narrow(value, 8, 7)
}

/// Rounds to a 16-bit float with that many exponent and fraction bits.
fn narrow(value: f64, exponent_bits: u32, fraction_bits: u32) -> u16 {
    const INFINITY: u64 = f64::INFINITY.to_bits();
    let bits = value.to_bits();
    let sign = (bits >> 48) as u16 & 0x8000;
    let magnitude = bits & (u64::MAX >> 1);
    let infinity = ((1_u16 << exponent_bits) - 1) << fraction_bits;
    if magnitude >= INFINITY {
        let payload = (magnitude >> (52 - fraction_bits)) as u16 & ((1 << fraction_bits) - 1);
        let quiet = u16::from(magnitude > INFINITY) << (fraction_bits - 1);
        return sign | infinity | payload | quiet;
    }
    let bias = (1_i64 << (exponent_bits - 1)) - 1;
    let exponent = (magnitude >> 52) as i64 - 1023 + bias;
    let fraction = magnitude & ((1 << 52) - 1);
    // The number as an integer whose low bits are rounded off; a carry moves on into the exponent, as it should.
    let (wide, dropped) = if exponent > 0 {
        ((exponent as u64) << 52 | fraction, 52 - fraction_bits)
    } else {
        (1 << 52 | fraction, (53 - i64::from(fraction_bits) - exponent).min(63) as u32)
    };
    let (kept, half) = (wide >> dropped, 1 << (dropped - 1));
    let rest = wide & ((1 << dropped) - 1);
    let rounded = kept + u64::from(rest > half || rest == half && kept & 1 == 1);
    sign | rounded.min(u64::from(infinity)) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rounds by trying: the nearest of the value's neighbours among all finite halves, in f64, ties to the even one.
    fn nearest(value: f64, back: fn(u16) -> f64, infinity: u16) -> u16 {
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        let value = value.abs();
        let below = (0..infinity).collect::<Vec<_>>().partition_point(|&bits| back(bits) <= value) as u16 - 1;
        let above = below + 1;
        // Infinity stands where the next number would.
        let upper = if above == infinity { 2.0 * back(below) - back(below - 1) } else { back(above) };
        let (down, up) = (value - back(below), upper - value);
        sign | if down < up || down == up && below & 1 == 0 { below } else { above }
    }

    fn check(value: f64) {
        assert_eq!(f16_bits(value), nearest(value, f16_value, 0x7C00), "f16 {value:e}");
        assert_eq!(bf16_bits(value), nearest(value, bf16_value, 0x7F80), "bf16 {value:e}");
    }

    #[test]
    fn every_half_and_every_tie_round_to_even() {
        for bits in 0..0x7C00_u16 {
            let (low, high) = (f64::from(f16::from_bits(bits)), f64::from(f16::from_bits(bits + 1)));
            assert_eq!(f16_bits(low), bits);
            if high.is_finite() {
                let tie = f64::midpoint(low, high);
                assert_eq!(f16_bits(tie), bits + (bits & 1));
                assert_eq!(f16_bits(tie.next_up()), bits + 1);
                assert_eq!(f16_bits(-tie.next_down()), bits | 0x8000);
            }
        }
        for bits in 0..0x7F80_u16 {
            let (low, high) = (f64::from(bf16::from_bits(bits)), f64::from(bf16::from_bits(bits + 1)));
            assert_eq!(bf16_bits(low), bits);
            if high.is_finite() {
                let tie = f64::midpoint(low, high);
                assert_eq!(bf16_bits(tie), bits + (bits & 1));
                assert_eq!(bf16_bits(tie.next_up()), bits + 1);
            }
        }
    }

    #[test]
    fn edges() {
        for value in
            [65504.0, 65519.99, 65520.0, 65520.01, 1e300, 5e-324, 2f64.powi(-25), 2f64.powi(-24), 0.0, 1e-40]
        {
            check(value);
            check(-value);
        }
        assert_eq!(f16_bits(f64::NEG_INFINITY), 0xFC00);
        assert!(f16::from_bits(f16_bits(f64::NAN)).is_nan());
        assert!(bf16::from_bits(bf16_bits(f64::from_bits(0x7FF0_0000_0000_0001))).is_nan());
    }

    #[test]
    fn losses_are_counted() {
        let from = [1.0, 1e6, -2e6, f64::INFINITY, 1e-30, 0.0, -0.0, f64::NAN];
        let mut to = [0_u16; 8];
        let conversion = Conversion { from: Dtype::F64, to: Dtype::F16, scale: 1.0, offset: 0.0 };
        let losses = conversion.convert(bytemuck::cast_slice(&from), bytemuck::cast_slice_mut(&mut to));
        assert_eq!((losses.overflows, losses.largest, losses.underflows), (2, 2e6, 1));
        assert_eq!(to[..7], [0x3C00, 0x7C00, 0xFC00, 0x7C00, 0, 0, 0x8000]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn rounding_takes_the_nearest(value in -1e5_f64..1e5, exponent in -160_i32..5) {
            check(value);
            check(value * 2f64.powi(exponent));
        }
    }
}
