//! Statistics of short tensors, by hand.

use half::{bf16, f16};

use super::*;

fn measure(dtypes: [Dtype; 2], a: &[u8], b: &[u8]) -> (Tally, Sums) {
    let mut tally = Tally::default();
    let sums = Measure::new().unequal(dtypes, 0, [a, b], &mut tally);
    (tally, sums)
}

fn singles(a: &[f32], b: &[f32]) -> (Tally, Sums) {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    measure([Dtype::F32; 2], &bytes(a), &bytes(b))
}

fn doubles(a: &[f64], b: &[f64]) -> (Tally, Sums) {
    let bytes = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    measure([Dtype::F64; 2], &bytes(a), &bytes(b))
}

#[test]
fn one_element() {
    let (tally, sums) = singles(&[1.0, 2.0, -3.0], &[1.0, 2.5, -3.0]);
    let first = Some((1, [u64::from(2.0_f32.to_bits()), u64::from(2.5_f32.to_bits())]));
    let expected = Tally {
        differing: 1,
        first,
        max_abs: 0.5,
        max_abs_at: Some(1),
        max_rel: 0.2,
        max_ulp: 1 << 21,
        ..Tally::default()
    };
    assert_eq!(tally, expected);
    assert_eq!(sums, Sums { product: 15.0, squares: [14.0, 16.25] });
    assert_eq!(sums.cosine(), Some(15.0 / (14.0_f64.sqrt() * 16.25_f64.sqrt())));
}

#[test]
fn steps_are_counted_across_zero() {
    let tiny = f32::from_bits(1);
    assert_eq!(singles(&[tiny], &[-tiny]).0.max_ulp, 2);
    assert_eq!(singles(&[0.0], &[-tiny]).0.max_ulp, 1);
    assert_eq!(singles(&[-1.0], &[-(1.0 + f32::EPSILON)]).0.max_ulp, 1);
    assert_eq!(doubles(&[f64::MAX], &[f64::MIN]).0.max_ulp, 2 * f64::MAX.to_bits());
}

#[test]
fn zeros_of_different_sign_differ_in_bits_alone() {
    let (tally, sums) = singles(&[0.0], &[-0.0]);
    assert_eq!((tally.differing, tally.max_abs, tally.max_abs_at, tally.max_ulp), (1, 0.0, None, 0));
    assert_eq!((tally.max_rel, sums.cosine()), (0.0, None));
}

#[test]
fn nans_have_no_distance() {
    let (tally, _) = singles(&[1.0, f32::NAN, f32::NAN], &[1.0, 5.0, f32::from_bits(0x7fc0_0001)]);
    assert_eq!((tally.differing, tally.nans, tally.unmatched), (2, [2, 1], 1));
    assert_eq!((tally.max_abs, tally.max_ulp, tally.max_rel), (0.0, 0, 0.0));
}

#[test]
fn infinities_are_counted_apart() {
    let (tally, sums) = singles(
        &[f32::INFINITY, f32::INFINITY, f32::INFINITY, 1.0],
        &[f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 2.0],
    );
    assert_eq!((tally.differing, tally.infinities, tally.unmatched), (3, [3, 2], 2));
    assert_eq!((tally.max_abs, tally.max_abs_at), (1.0, Some(3)));
    assert_eq!(tally.max_ulp, 2 * u64::from(f32::INFINITY.to_bits()));
    assert_eq!(sums.cosine(), Some(1.0));
}

#[test]
fn halves() {
    let f = |value: f32| f16::from_f32(value).to_le_bytes();
    let b = |value: f32| bf16::from_f32(value).to_le_bytes();
    let (tally, _) = measure([Dtype::F16; 2], &f(1.0), &f(1.0 + 1.0 / 1024.0));
    assert_eq!((tally.max_ulp, tally.max_abs), (1, 1.0 / 1024.0));
    let (tally, _) = measure([Dtype::BF16; 2], &b(1.0), &b(-1.0));
    assert_eq!((tally.max_ulp, tally.max_abs, tally.max_rel), (2 * 0x3f80, 2.0, 2.0));
    for (dtype, infinity) in [(Dtype::F16, 0x7c00_u16), (Dtype::BF16, 0x7f80)] {
        let [one, two] = [1, 2].map(|payload| (infinity | payload).to_le_bytes());
        let (tally, _) = measure([dtype; 2], &one, &two);
        assert_eq!((tally.differing, tally.nans, tally.unmatched, tally.max_ulp), (1, [1, 1], 0, 0));
    }
}

#[test]
fn different_floats_are_compared_as_numbers() {
    let a: Vec<u8> = [1.0_f32, 0.1, f32::NAN, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let b: Vec<u8> =
        [1.0, 0.1, f32::NAN, 3.0].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    let (tally, _) = measure([Dtype::F32, Dtype::BF16], &a, &b);
    assert_eq!((tally.differing, tally.nans, tally.unmatched, tally.max_ulp), (1, [1, 1], 0, 0));
    assert_eq!(tally.first.map(|(at, _)| at), Some(1));
    assert_eq!(tally.max_abs, (f64::from(0.1_f32) - bf16::from_f32(0.1).to_f64()).abs());
}

#[test]
fn eight_bit_floats_are_numbers_too() {
    let (tally, sums) = measure([Dtype::F8E4M3; 2], &[0x38, 0x7f], &[0x39, 0x7f]);
    assert_eq!((tally.max_abs, tally.max_ulp, tally.nans), (0.125, 1, [1, 1]));
    assert_eq!(sums.cosine(), Some(1.0));
}

#[test]
fn whole_numbers() {
    let bytes = |values: [i64; 2]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let (tally, _) = measure([Dtype::I64; 2], &bytes([-5, i64::MIN]), &bytes([-7, i64::MAX]));
    assert_eq!((tally.differing, tally.max_abs, tally.max_abs_at), (2, u64::MAX as f64, Some(1)));
    let (tally, _) = measure([Dtype::Bool; 2], &[0, 1], &[1, 1]);
    assert_eq!((tally.differing, tally.max_abs), (1, 1.0));
    let (tally, _) = measure([Dtype::I8, Dtype::U8], &[0xff, 1], &[0xff, 1]);
    assert_eq!((tally.differing, tally.max_abs), (1, 256.0));
}

#[test]
fn packed_elements_are_counted_one_by_one() {
    let (tally, _) = measure([Dtype::F4; 2], &[0x21, 0x43], &[0x21, 0x53]);
    assert_eq!((tally.differing, tally.first), (1, Some((3, [4, 5]))));
    let (tally, _) = measure([Dtype::F6E3M2; 2], &[0, 0, 0], &[0, 0xff, 0]);
    assert_eq!((tally.differing, tally.first.map(|(at, _)| at)), (2, Some(1)));
}

#[test]
fn doubles_near_the_end_of_their_range() {
    let (tally, sums) = doubles(&[1.5e308, 1.0], &[-1.5e308, 1.0]);
    assert_eq!((tally.max_abs, tally.max_abs_at, tally.max_rel), (f64::INFINITY, Some(0), 2.0));
    assert_eq!(sums.cosine(), None);
}

#[test]
fn pieces_merge_to_the_whole_in_any_order() {
    let values = |seed: u32| -> Vec<f32> {
        (0..5000_u32)
            .map(|at| match at.wrapping_mul(2_654_435_761).wrapping_add(seed * (at % 7)) >> 12 {
                0..20 => f32::NAN,
                20..40 => f32::INFINITY,
                other => other as f32 - 5e5,
            })
            .collect()
    };
    let bytes = |values: Vec<f32>| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let (a, b) = (bytes(values(1)), bytes(values(2)));
    let (whole, whole_sums) = measure([Dtype::F32; 2], &a, &b);
    let piece = |from: usize, to: usize| {
        let mut tally = Tally::default();
        let sides = [&a[4 * from..4 * to], &b[4 * from..4 * to]];
        let sums = Measure::new().unequal([Dtype::F32; 2], from as u64, sides, &mut tally);
        (tally, sums)
    };
    let (mut merged, second) = piece(1024, 5000);
    let (first, mut sums) = piece(0, 1024);
    merged.add(&first);
    sums.add(&second);
    assert_eq!(merged, whole);
    assert!((sums.product - whole_sums.product).abs() <= 1e-12 * whole_sums.product.abs());
}

#[test]
fn equal_elements_are_measured_alike_on_either_way() {
    let values: Vec<u8> = (0..2000).flat_map(|at| (at as f32 * 0.37).to_le_bytes()).collect();
    let mut other = values.clone();
    other[0] ^= 1;
    let (_, sums) = measure([Dtype::F32; 2], &values, &other);
    let mut tally = Tally::default();
    let alone = Measure::new().equal(Dtype::F32, &values, &mut tally);
    assert_eq!(tally, Tally::default());
    assert!((sums.product - alone.product).abs() <= 1e-15 * alone.product);
}

#[test]
fn quantised_blocks_differ_as_a_whole() {
    let a: Vec<u8> = (0..34 * 20).map(|at| (at % 251) as u8).collect();
    let mut b = a.clone();
    b[34 * 3 + 5] ^= 0x10;
    b[34 * 18] ^= 1;
    let mut tally = Tally::default();
    let sums = Measure::new().unequal([Dtype::Q8_0; 2], 64, [&a, &b], &mut tally);
    assert_eq!((sums, tally.differing), (Sums::default(), 64));
    let at = u64::from(a[34 * 3 + 5]);
    assert_eq!(tally.first, Some((64 + 3 * 32, [at, at ^ 0x10])));
}
