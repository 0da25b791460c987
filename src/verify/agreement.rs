//! How two elements must agree: pair by pair, in loops that the compiler makes for each two types.

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::dtype::Dtype;

/// How two elements must agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Agreement {
    /// The same bits.
    Bits,
    /// `near = far * scale + offset`, rounded to the nearest value of the near type.
    Value { scale: f64, offset: f64 },
    /// `far = near * scale + offset`, rounded to the nearest value of the far type: what was rounded is never asked to
    /// give back what it was made of.
    ValueThere { scale: f64, offset: f64 },
}

impl Agreement {
    /// Returns the bits that the side which was rounded should have, where the other side's bits are given; `None` for
    /// types without values.
    pub(super) fn wanted(self, (to, from): (Dtype, Dtype), bits: u64) -> Option<u64> {
        let (scale, offset) = match self {
            Agreement::Bits => return Some(bits),
            Agreement::Value { scale, offset } | Agreement::ValueThere { scale, offset } => (scale, offset),
        };
        let scaled = value(bits, from)? * scale;
        let wanted = if offset == 0.0 { scaled } else { scaled + offset };
        Some(match to {
            Dtype::F64 => wanted.to_bits(),
            Dtype::F32 => u64::from((wanted as f32).to_bits()),
            Dtype::F16 => u64::from(half::f16::from_f64(upper_half(wanted)).to_bits()),
            Dtype::BF16 => u64::from(half::bf16::from_f64(upper_half(wanted)).to_bits()),
            _ => return None,
        })
    }
}

/// Returns the value of an element's bits; `None` for types without values.
pub(super) fn value(bits: u64, dtype: Dtype) -> Option<f64> {
    Some(match dtype {
        Dtype::F64 => F64::value(bits),
        Dtype::F32 => F32::value(bits as u32),
        Dtype::F16 => F16::value(bits as u16),
        Dtype::BF16 => Bf16::value(bits as u16),
        _ => return None,
    })
}

/// An element's bits in a buffer.
pub(super) trait Word: Pod + PartialEq {
    /// Returns them as a number.
    fn bits(self) -> u64;
}

impl Word for u8 {
    fn bits(self) -> u64 {
        self.into()
    }
}

impl Word for u16 {
    fn bits(self) -> u64 {
        self.into()
    }
}

impl Word for u32 {
    fn bits(self) -> u64 {
        self.into()
    }
}

impl Word for u64 {
    fn bits(self) -> u64 {
        self
    }
}

/// Which pairs of elements agree.
pub(super) trait Agree: Copy {
    /// An element of the near side.
    type Near: Word;
    /// An element of the far side.
    type Far: Word;

    /// Returns whether two elements agree.
    fn pair(self, near: Self::Near, far: Self::Far) -> bool;

    /// Returns whether all elements of two runs of one length agree.
    fn runs(self, near: &[Self::Near], far: &[Self::Far]) -> bool {
        near.iter().zip(far).fold(true, |all, (near, far)| all & self.pair(*near, *far))
    }
}

/// Elements of the same bits.
struct SameBits<T>(PhantomData<T>);

/// Returns a number whose upper half alone is rounded as all of it: `half` (2.7.1, `binary16/arch.rs`) does not look at the
/// lower half, and takes what lies close above a tie for one.
fn upper_half(value: f64) -> f64 {
    let bits = value.to_bits();
    let lower = bits & 0xFFFF_FFFF != 0;
    f64::from_bits(bits | u64::from(lower) << 32)
}

impl<T> Clone for SameBits<T> {
    fn clone(&self) -> SameBits<T> {
        *self
    }
}

impl<T> Copy for SameBits<T> {}

impl<T: Word> Agree for SameBits<T> {
    type Near = T;
    type Far = T;

    fn pair(self, near: T, far: T) -> bool {
        near == far
    }

    fn runs(self, near: &[T], far: &[T]) -> bool {
        near == far
    }
}

/// A type that values are computed with.
trait Float {
    type Word: Word;
    /// Half a unit in the last place of the values from 1 to 2.
    const HALF_PLACE: f64;
    /// The smallest normal number: below it, units in the last place get no smaller.
    const LEAST: f64;

    /// Returns the value of an element's bits.
    fn value(word: Self::Word) -> f64;
}

struct F64;
struct F32;
struct F16;
struct Bf16;

impl Float for F64 {
    type Word = u64;
    const HALF_PLACE: f64 = f64::EPSILON / 2.0;
    const LEAST: f64 = f64::MIN_POSITIVE;

    fn value(word: u64) -> f64 {
        f64::from_bits(word)
    }
}

impl Float for F32 {
    type Word = u32;
    const HALF_PLACE: f64 = f32::EPSILON as f64 / 2.0;
    const LEAST: f64 = f32::MIN_POSITIVE as f64;

    fn value(word: u32) -> f64 {
        f32::from_bits(word).into()
    }
}

impl Float for F16 {
    type Word = u16;
    const HALF_PLACE: f64 = 1.0 / (1 << 11) as f64;
    const LEAST: f64 = 1.0 / (1 << 14) as f64;

    /// The bits in their places of an f32, whose exponent counts from 112 lower; infinities and NaNs are filled up.
    fn value(word: u16) -> f64 {
        const LIFT: f32 = f32::from_bits((127 + 112) << 23);
        let magnitude = u32::from(word & 0x7FFF) << 13;
        let special = if word & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
        let lifted = (f32::from_bits(magnitude) * LIFT).to_bits() | special;
        f32::from_bits(lifted | u32::from(word & 0x8000) << 16).into()
    }
}

impl Float for Bf16 {
    type Word = u16;
    const HALF_PLACE: f64 = 1.0 / (1 << 8) as f64;
    const LEAST: f64 = f32::MIN_POSITIVE as f64;

    fn value(word: u16) -> f64 {
        f32::from_bits(u32::from(word) << 16).into()
    }
}

/// A near element is the nearest value of its type to what the far one says.
struct Nearest<N, F> {
    scale: f64,
    offset: f64,
    types: PhantomData<(N, F)>,
}

impl<N, F> Clone for Nearest<N, F> {
    fn clone(&self) -> Nearest<N, F> {
        *self
    }
}

impl<N, F> Copy for Nearest<N, F> {}

impl<N: Float, F: Float> Agree for Nearest<N, F> {
    type Near = N::Word;
    type Far = F::Word;

    fn pair(self, near: N::Word, far: F::Word) -> bool {
        const EXPONENT: u64 = f64::INFINITY.to_bits();
        let here = N::value(near);
        let scaled = F::value(far) * self.scale;
        // A sum with +0 would turn -0 around.
        let wanted = if self.offset == 0.0 { scaled } else { scaled + self.offset };
        let power = f64::from_bits(wanted.to_bits() & EXPONENT);
        let power = if power > N::LEAST { power } else { N::LEAST };
        // Half a unit in the last place: the nearest value of the near type, ties either way; and the error of
        // computing in f64 itself.
        let slack = power * N::HALF_PLACE + (scaled.abs() + self.offset.abs()) * (f64::EPSILON * 2.0);
        // Infinity is as far from everything as its slack is wide.
        let near_by = (wanted.abs() < f64::INFINITY) & ((here - wanted).abs() <= slack);
        let like_zeros = ((here.to_bits() ^ wanted.to_bits()) >> 63 == 0) | (here != 0.0) | (wanted != 0.0);
        (here.is_nan() & wanted.is_nan()) | (like_zeros & ((here == wanted) | near_by))
    }
}

/// The same seen from the other side.
#[derive(Clone, Copy)]
struct Turned<A>(A);

impl<A: Agree> Agree for Turned<A> {
    type Near = A::Far;
    type Far = A::Near;

    fn pair(self, near: A::Far, far: A::Near) -> bool {
        self.0.pair(far, near)
    }
}

/// A visit with the two sides exchanged.
struct FromThere<V>(V);

impl<V: Visit> Visit for FromThere<V> {
    type Found = V::Found;

    fn visit<A: Agree>(self, agree: A) -> V::Found {
        self.0.visit(Turned(agree))
    }
}

/// What is done with two buffers once it is known how their elements agree.
pub(super) trait Visit {
    type Found;

    /// Does it.
    fn visit<A: Agree>(self, agree: A) -> Self::Found;
}

/// Does what is to be done with elements of `width` bytes in the buffers that must be the same.
pub(super) fn with_bits<V: Visit>(width: u64, visit: V) -> V::Found {
    match width {
        1 => visit.visit(SameBits::<u8>(PhantomData)),
        2 => visit.visit(SameBits::<u16>(PhantomData)),
        4 => visit.visit(SameBits::<u32>(PhantomData)),
        _ => visit.visit(SameBits::<u64>(PhantomData)),
    }
}

/// The same with elements whose values must be `near = far * scale + offset`; `None` for types without values.
pub(super) fn with_values<V: Visit>(
    (near, far): (Dtype, Dtype),
    (scale, offset): (f64, f64),
    visit: V,
) -> Option<V::Found> {
    match near {
        Dtype::F64 => with_near::<F64, V>(far, scale, offset, visit),
        Dtype::F32 => with_near::<F32, V>(far, scale, offset, visit),
        Dtype::F16 => with_near::<F16, V>(far, scale, offset, visit),
        Dtype::BF16 => with_near::<Bf16, V>(far, scale, offset, visit),
        _ => None,
    }
}

/// The same with elements whose values must be `far = near * scale + offset`.
pub(super) fn with_values_there<V: Visit>(
    (near, far): (Dtype, Dtype),
    of: (f64, f64),
    visit: V,
) -> Option<V::Found> {
    with_values((far, near), of, FromThere(visit))
}

fn with_near<N: Float, V: Visit>(far: Dtype, scale: f64, offset: f64, visit: V) -> Option<V::Found> {
    Some(match far {
        Dtype::F64 => visit.visit(Nearest::<N, F64> { scale, offset, types: PhantomData }),
        Dtype::F32 => visit.visit(Nearest::<N, F32> { scale, offset, types: PhantomData }),
        Dtype::F16 => visit.visit(Nearest::<N, F16> { scale, offset, types: PhantomData }),
        Dtype::BF16 => visit.visit(Nearest::<N, Bf16> { scale, offset, types: PhantomData }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// As the definition says it, one pair at a time.
    fn plainly(here: f64, there: f64, near: Dtype, scale: f64, offset: f64) -> bool {
        let wanted = if offset == 0.0 { there * scale } else { there * scale + offset };
        if here.is_nan() || wanted.is_nan() {
            return here.is_nan() && wanted.is_nan();
        }
        if here == 0.0 && wanted == 0.0 {
            return here.is_sign_negative() == wanted.is_sign_negative();
        }
        if here.is_infinite() || wanted.is_infinite() {
            return here == wanted;
        }
        let (digits, least) = match near {
            Dtype::F16 => (10, -14),
            Dtype::BF16 => (7, -126),
            Dtype::F32 => (23, -126),
            _ => (52, -1022),
        };
        let exponent = ((wanted.to_bits() >> 52) & 0x7FF) as i32 - 1023;
        let half = 2_f64.powi(exponent.max(least) - digits) / 2.0;
        (here - wanted).abs() <= half + ((there * scale).abs() + offset.abs()) * 2_f64.powi(-51)
    }

    fn plain_value(bits: u64, dtype: Dtype) -> f64 {
        match dtype {
            Dtype::F64 => f64::from_bits(bits),
            Dtype::F32 => f32::from_bits(bits as u32).into(),
            Dtype::F16 => half::f16::from_bits(bits as u16).into(),
            _ => half::bf16::from_bits(bits as u16).into(),
        }
    }

    /// All pairs of a list, one at a time and as runs of one.
    struct Pairs<'a>(&'a [(u64, u64)]);

    impl Visit for Pairs<'_> {
        type Found = Vec<bool>;

        fn visit<A: Agree>(self, agree: A) -> Vec<bool> {
            fn word<T: Word>(bits: u64) -> T {
                bytemuck::pod_read_unaligned(&bits.to_le_bytes()[..size_of::<T>()])
            }
            let one = |&(near, far): &(u64, u64)| {
                let found = agree.pair(word(near), word(far));
                assert_eq!(agree.runs(&[word(near)], &[word(far)]), found);
                found
            };
            self.0.iter().map(one).collect()
        }
    }

    fn check(near: Dtype, far: Dtype, (scale, offset): (f64, f64), pairs: &[(u64, u64)]) {
        let found = with_values((near, far), (scale, offset), Pairs(pairs)).expect("floats");
        for (&(a, b), found) in pairs.iter().zip(found) {
            let wanted = plainly(plain_value(a, near), plain_value(b, far), near, scale, offset);
            assert_eq!(found, wanted, "{near} {a:#x} {far} {b:#x} {scale} {offset}");
        }
    }

    #[test]
    fn every_half_agrees_with_the_value_that_it_has_and_no_neighbour() {
        for near in [Dtype::F16, Dtype::BF16] {
            for (far, offset) in [(Dtype::F32, 0.0), (Dtype::F64, 0.0), (Dtype::F32, 0.25)] {
                let exact = |bits: u64| match far {
                    Dtype::F64 => plain_value(bits, near).to_bits(),
                    _ => u64::from((plain_value(bits, near) as f32).to_bits()),
                };
                let around = |bits: u64| [bits.saturating_sub(1), bits, (bits + 1).min(0xFFFF)];
                let pairs: Vec<(u64, u64)> =
                    (0..=0xFFFF_u64).flat_map(|bits| around(bits).map(|near| (near, exact(bits)))).collect();
                check(near, far, (1.0, offset), &pairs);
            }
        }
    }

    #[test]
    fn random_and_special_values_agree_as_defined() {
        let mut random = Random(7);
        let types = [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16];
        let stored = |value: f64, dtype: Dtype| match dtype {
            Dtype::F64 => value.to_bits(),
            Dtype::F32 => u64::from((value as f32).to_bits()),
            Dtype::F16 => u64::from(half::f16::from_f64(value).to_bits()),
            _ => u64::from(half::bf16::from_f64(value).to_bits()),
        };
        let mut values: Vec<f64> = vec![
            0.0,
            -0.0,
            1.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            5e-324,
            1e-310,
            1e-45,
            -1e-40,
            6e-8,
            6e-5,
            65504.0,
            65519.0,
            65520.0,
            1e5,
            3.4e38,
            1e39,
            -1e300,
        ];
        values.extend((0..1000).map(|_| random.normal() * 10_f64.powf(8.0 * random.normal())));
        for near in types {
            for far in types {
                for (scale, offset) in [(1.0, 0.0), (0.3, 0.0), (1.0, 1.0), (-2.0, 1e-7)] {
                    let mut pairs = Vec::new();
                    for &there in &values {
                        let far_bits = stored(there, far);
                        let wanted = plain_value(far_bits, far) * scale + offset;
                        let near_bits = stored(wanted, near);
                        let width = near.byte_width().expect("a float") * 8;
                        for step in [-1_i64, 0, 1] {
                            let bits = near_bits.wrapping_add_signed(step) & (u64::MAX >> (64 - width));
                            pairs.push((bits, far_bits));
                        }
                        pairs.extend(
                            [0.0, -0.0, f64::INFINITY, f64::NAN, -1.5].map(|x| (stored(x, near), far_bits)),
                        );
                    }
                    check(near, far, (scale, offset), &pairs);
                }
            }
        }
    }

    #[test]
    fn only_infinity_agrees_with_infinity() {
        let infinite = f32::INFINITY.to_bits().into();
        let pairs = [(0x7F80, infinite), (0xFF80, infinite), (0x3F80, infinite), (0x7F7F, infinite)];
        let found = with_values((Dtype::BF16, Dtype::F32), (1.0, 0.0), Pairs(&pairs));
        assert_eq!(found, Some(vec![true, false, false, false]));
    }

    #[test]
    fn what_was_rounded_is_compared_with_what_it_was_made_of() {
        let mut random = Random(11);
        let values: Vec<f32> = (0..1000).map(|_| random.normal() as f32).collect();
        let rounded =
            |value: f32| u64::from(half::bf16::from_f64(upper_half(f64::from(value) + 1.0)).to_bits());
        let mut pairs: Vec<(u64, u64)> =
            values.iter().map(|&value| (u64::from(value.to_bits()), rounded(value))).collect();
        let types = (Dtype::F32, Dtype::BF16);
        let found = with_values_there(types, (1.0, 1.0), Pairs(&pairs)).expect("floats");
        assert!(found.iter().all(|agrees| *agrees));
        // The other way round most of the values are lost.
        let back = with_values(types, (1.0, -1.0), Pairs(&pairs)).expect("floats");
        assert!(back.iter().filter(|agrees| **agrees).count() < 100);
        pairs.iter_mut().for_each(|(_, far)| *far += 1);
        let wrong = with_values_there(types, (1.0, 1.0), Pairs(&pairs)).expect("floats");
        // What lies on a tie may be rounded either way.
        assert!(wrong.iter().filter(|agrees| **agrees).count() < 5);
    }

    #[test]
    fn the_wanted_bits_are_shifted_and_rounded() {
        let value = Agreement::Value { scale: 2.0, offset: 1.0 };
        let third = u64::from((1.0_f32 / 3.0).to_bits());
        let wanted = value.wanted((Dtype::BF16, Dtype::F32), third);
        assert_eq!(wanted, Some(half::bf16::from_f32(5.0 / 3.0).to_bits().into()));
        assert_eq!(value.wanted((Dtype::I8, Dtype::F32), third), None);
        assert_eq!(Agreement::Bits.wanted((Dtype::I8, Dtype::I8), 7), Some(7));
    }

    #[test]
    fn types_without_values_are_told() {
        assert_eq!(with_values((Dtype::I32, Dtype::F32), (1.0, 0.0), Pairs(&[])), None);
        assert_eq!(with_values((Dtype::F32, Dtype::U8), (1.0, 0.0), Pairs(&[])), None);
    }
}
