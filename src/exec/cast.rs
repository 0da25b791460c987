//! Casts between the types of at most 32 bits: loops over slices that the compiler turns into vector instructions.
//!
//! They give what [`Conversion`](super::convert::Conversion) gives value by value, bit by bit: each of these types holds no
//! value that an f32 does not, and no difference of a rounding here is other than an f32 too.

use super::losses::Losses;
use crate::dtype::Dtype;

const INFINITY: u32 = f32::INFINITY.to_bits();
const MAGNITUDE: u32 = u32::MAX >> 1;
const QUIET: u32 = 1 << 22;

/// A type of at most 32 bits.
trait Narrow {
    /// Its bits.
    type Word: bytemuck::Pod;
    /// Whether there are values of an f32 that it does not hold.
    const ROUNDS: bool;

    /// Returns the value of the bits; NaNs are quiet.
    fn widen(word: Self::Word) -> f32;

    /// Rounds to the nearest value, ties to even.
    fn narrow(value: f32) -> Self::Word;
}

struct F32;
struct F16;
struct Bf16;

impl Narrow for F32 {
    type Word = u32;
    const ROUNDS: bool = false;

    fn widen(word: u32) -> f32 {
        f32::from_bits(word)
    }

    fn narrow(value: f32) -> u32 {
        value.to_bits()
    }
}

impl Narrow for F16 {
    type Word = u16;
    const ROUNDS: bool = true;

    fn widen(word: u16) -> f32 {
        // The bits in their places of an f32 are a number 2^112 times too small, subnormal ones too.
        const TIMES: f32 = f32::from_bits((127 + 112) << 23);
        let magnitude = u32::from(word & 0x7FFF) << 13;
        let special = if magnitude >= 0x7C00 << 13 { INFINITY } else { 0 };
        let quiet = if magnitude > 0x7C00 << 13 { QUIET } else { 0 };
        let scaled = (f32::from_bits(magnitude) * TIMES).to_bits();
        f32::from_bits(scaled | special | quiet | u32::from(word & 0x8000) << 16)
    }

    fn narrow(value: f32) -> u16 {
        /// 2^-14 and 2^16: the smallest normal number, and where all would be infinite whatever follows.
        const LEAST: u32 = (127 - 14) << 23;
        const BEYOND: u32 = (127 + 16) << 23;
        const HALF: f32 = 0.5;
        let bits = value.to_bits();
        let magnitude = bits & MAGNITUDE;
        // The exponent counts from 112 higher; half of what is dropped is added, less one bit where the rest is even.
        let odd = magnitude >> 13 & 1;
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xFFF + odd) >> 13;
        // The last place of a half is that of the smallest numbers: the sum rounds there, as the processor rounds.
        let small = (f32::from_bits(magnitude) + HALF).to_bits().wrapping_sub(HALF.to_bits());
        let payload = if magnitude > INFINITY { 0x200 | magnitude >> 13 & 0x3FF } else { 0 };
        let rounded = if magnitude < LEAST { small } else { normal };
        let rounded = if magnitude >= BEYOND { 0x7C00 | payload } else { rounded };
        (bits >> 16 & 0x8000 | rounded) as u16
    }
}

impl Narrow for Bf16 {
    type Word = u16;
    const ROUNDS: bool = true;

    fn widen(word: u16) -> f32 {
        let bits = u32::from(word) << 16;
        f32::from_bits(bits | if bits & MAGNITUDE > INFINITY { QUIET } else { 0 })
    }

    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
        ((if bits & MAGNITUDE > INFINITY { bits | QUIET } else { rounded }) >> 16) as u16
    }
}

/// Casts all values; both slices are aligned and hold equally many. `None`, with the target in any state, for other types,
/// and where finite values became infinite: to tell of these needs more than a loop.
pub(super) fn cast(types: (Dtype, Dtype), from: &[u8], to: &mut [u8]) -> Option<Losses> {
    match types {
        (Dtype::F32, Dtype::BF16) => run::<F32, Bf16>(from, to),
        (Dtype::F32, Dtype::F16) => run::<F32, F16>(from, to),
        (Dtype::BF16, Dtype::F32) => run::<Bf16, F32>(from, to),
        (Dtype::F16, Dtype::F32) => run::<F16, F32>(from, to),
        (Dtype::BF16, Dtype::F16) => run::<Bf16, F16>(from, to),
        (Dtype::F16, Dtype::BF16) => run::<F16, Bf16>(from, to),
        _ => None,
    }
}

fn run<F: Narrow, T: Narrow>(from: &[u8], to: &mut [u8]) -> Option<Losses> {
    let (from, to): (&[F::Word], &mut [T::Word]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    // The largest difference as the bits of an f32: numbers that are not negative are in the order of their bits.
    let (mut largest, mut underflows, mut overflows) = (0_i32, 0_u32, 0_u32);
    for (slot, &word) in to.iter_mut().zip(from) {
        let exact = F::widen(word);
        *slot = T::narrow(exact);
        if T::ROUNDS {
            let rounded = T::widen(*slot);
            let difference = ((rounded - exact).to_bits() & MAGNITUDE).cast_signed();
            // Infinities and NaNs give NaN.
            largest = largest.max(if difference > INFINITY.cast_signed() { 0 } else { difference });
            underflows += u32::from((rounded == 0.0) & (exact != 0.0));
            overflows |= u32::from((rounded.abs() == f32::INFINITY) & (exact.abs() < f32::INFINITY));
        }
    }
    let error = f64::from(f32::from_bits(largest.cast_unsigned()));
    let losses = Losses { underflows: u64::from(underflows), error, ..Losses::default() };
    (overflows == 0).then_some(losses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::buffer::Buffer;
    use crate::exec::convert::Conversion;
    use crate::random::Random;

    const TYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

    /// Casts both ways: the bits and what was lost must be the same.
    fn check(from: Dtype, to: Dtype, values: &[u8]) {
        let (width, narrow) = (from.byte_width().expect("whole") as usize, to.byte_width().expect("whole"));
        let count = values.len() / width;
        let mut aligned = Buffer::new(values.len() as u64);
        aligned.bytes_mut()[..values.len()].copy_from_slice(values);
        let values = &aligned.bytes()[..values.len()];
        let (mut fast, mut plain) = (Buffer::new(count as u64 * narrow), Buffer::new(count as u64 * narrow));
        let length = count * narrow as usize;
        let found = cast((from, to), values, &mut fast.bytes_mut()[..length]);
        let conversion = Conversion { from, to, scale: 1.0, offset: 0.0 };
        let losses = conversion.one_by_one(values, &mut plain.bytes_mut()[..length]);
        if losses.overflows > 0 {
            assert_eq!(found, None, "{from} {to}");
            return;
        }
        assert_eq!(found, Some(losses), "{from} {to}");
        let place = (0..length).find(|&at| fast.bytes()[at] != plain.bytes()[at]);
        assert_eq!(place.map(|at| at / narrow as usize), None, "{from} {to}");
    }

    fn pairs() -> impl Iterator<Item = (Dtype, Dtype)> {
        TYPES.iter().flat_map(|&from| TYPES.iter().map(move |&to| (from, to))).filter(|(from, to)| from != to)
    }

    #[test]
    fn every_half_is_cast_as_value_by_value() {
        for (from, to) in pairs().filter(|(from, _)| *from != Dtype::F32) {
            let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            check(from, to, &all);
            // Each alone too, so that no loss of one hides that of another.
            all.chunks(2).for_each(|one| check(from, to, one));
        }
    }

    #[test]
    fn every_upper_half_of_a_float_is_cast_as_value_by_value() {
        let lower = [0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF];
        for to in [Dtype::F16, Dtype::BF16] {
            for upper in 0..=u16::MAX {
                let values: Vec<u8> =
                    lower.iter().flat_map(|low| (u32::from(upper) << 16 | low).to_le_bytes()).collect();
                check(Dtype::F32, to, &values);
            }
        }
    }

    #[test]
    fn random_floats_are_cast_as_value_by_value() {
        let mut random = Random(11);
        for to in [Dtype::F16, Dtype::BF16] {
            // Any bits; and weights, whose losses are those that a report shows.
            for length in 0..200 {
                let bits: Vec<u8> = (0..length).flat_map(|_| (random.bits() as u32).to_le_bytes()).collect();
                check(Dtype::F32, to, &bits);
            }
            for scale in [1e-9, 1e-6, 0.02, 1.0, 300.0] {
                let values: Vec<u8> =
                    (0..100_003).flat_map(|_| ((random.normal() * scale) as f32).to_le_bytes()).collect();
                check(Dtype::F32, to, &values);
            }
        }
    }

    #[test]
    fn other_types_are_left_to_others() {
        for types in [(Dtype::F64, Dtype::F32), (Dtype::F32, Dtype::F64), (Dtype::F32, Dtype::F32)] {
            assert_eq!(cast(types, &[], &mut []), None);
        }
    }
}
