//! Comparing two sets of elements that lie anywhere in two files, in bounded memory.

use std::io;

use super::equal::{equal, is_run, whole};
use crate::dtype::Dtype;

/// The most bytes of one side that are compared at once, and half of what is read for them.
const BOX: u64 = 4 << 20;
/// The same where both sides hold rows in the same order: so many stay in the processor's cache between the reading and
/// the comparing.
const ROWS: u64 = 1 << 19;
/// Reads bytes of a file at a place.
pub(super) trait Bytes {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// The offsets of one axis's indices in two tensors, in elements.
pub(super) type Offsets = Vec<(u64, u64)>;

/// A tensor's bytes: where they begin, and the width of an element.
#[derive(Clone, Copy)]
pub(super) struct Stored<'a> {
    pub(super) bytes: &'a dyn Bytes,
    pub(super) start: u64,
    pub(super) dtype: Dtype,
}

/// How two elements must agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Agreement {
    /// The same bits.
    Bits,
    /// `near = far * scale + offset`, rounded to the nearest value of the near type.
    Value { scale: f64, offset: f64 },
}

/// What a comparison found.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) elements: u64,
    pub(super) differing: u64,
    /// The first difference: offsets in elements in the two tensors, and the bits there.
    pub(super) first: Option<(u64, u64, u64, u64)>,
}

impl Outcome {
    pub(super) fn add(&mut self, other: Outcome) {
        self.elements += other.elements;
        self.differing += other.differing;
        if self.first.is_none() {
            self.first = other.first;
        }
    }
}

/// Buffers that are used again.
#[derive(Default)]
pub(super) struct Scratch {
    near: Vec<u64>,
    far: Vec<u64>,
}

/// Compares every combination of the axes' indices.
pub(super) fn compare(
    near: Stored<'_>,
    far: Stored<'_>,
    dims: &[Offsets],
    agreement: Agreement,
    scratch: &mut Scratch,
) -> io::Result<Outcome> {
    let dims: Vec<&[(u64, u64)]> = dims.iter().map(Vec::as_slice).collect();
    let mut outcome = Outcome::default();
    compare_parts(near, far, &dims, agreement, scratch, &mut outcome)?;
    Ok(outcome)
}

/// Compares what fits into the buffers, and anything larger by halves.
fn compare_parts(
    near: Stored<'_>,
    far: Stored<'_>,
    dims: &[&[(u64, u64)]],
    agreement: Agreement,
    scratch: &mut Scratch,
    outcome: &mut Outcome,
) -> io::Result<()> {
    let elements: u64 = dims.iter().map(|dim| dim.len() as u64).product();
    if elements == 0 {
        return Ok(());
    }
    let width = held(near.dtype).max(held(far.dtype));
    // Elements that share bytes are read with all that lies between them.
    let packed = near.dtype.byte_width().is_none() || far.dtype.byte_width().is_none();
    let spread = packed && hull(dims).saturating_mul(width) > 2 * BOX
        || !packed && elements > 1 && footprint(dims).saturating_mul(width) > 2 * BOX;
    let rows = dims.last().is_none_or(|last| ends_like_a_run(last));
    if elements * width > if rows { ROWS } else { BOX } || spread && elements > 1 {
        let axes = dims.iter().enumerate();
        // Rows stay whole; where orders differ, a box of even sides needs the fewest reads on both sides.
        let widest = if spread || rows {
            axes.max_by_key(|(_, dim)| span(dim))
        } else {
            axes.max_by_key(|(_, dim)| dim.len())
        };
        let (at, dim) = widest.unwrap_or((0, &dims[0]));
        let (first, second) = dim.split_at(dim.len() / 2);
        for half in [first, second] {
            let mut dims = dims.to_vec();
            dims[at] = half;
            compare_parts(near, far, &dims, agreement, scratch, outcome)?;
        }
        return Ok(());
    }
    let near_offsets: Vec<Vec<u64>> =
        dims.iter().map(|dim| dim.iter().map(|(near, _)| *near).collect()).collect();
    let far_offsets: Vec<Vec<u64>> =
        dims.iter().map(|dim| dim.iter().map(|(_, far)| *far).collect()).collect();
    let near_places = fetch(near, &near_offsets, &mut scratch.near)?;
    let far_places = fetch(far, &far_offsets, &mut scratch.far)?;
    let last = |places: &[Vec<u64>]| places.last().is_none_or(|places| is_run(places));
    let sides = Sides {
        consecutive: last(&near_places) && last(&far_places),
        near: bytemuck::cast_slice(&scratch.near),
        far: bytemuck::cast_slice(&scratch.far),
        near_dtype: near.dtype,
        far_dtype: far.dtype,
        agreement,
    };
    if sides.are_equal(&near_places, &far_places) {
        outcome.elements += elements;
    } else {
        // In the order of the indices, so that the first difference is the first.
        sides.walk(&near_places, &far_places, dims, 0, (0, 0), (0, 0), outcome);
    }
    Ok(())
}

/// Returns whether an axis looks like a run on both sides, by its ends.
fn ends_like_a_run(dim: &[(u64, u64)]) -> bool {
    let (Some(first), Some(last)) = (dim.first(), dim.last()) else { return true };
    let length = dim.len() as u64;
    first.0 + length == last.0 + 1 && first.1 + length == last.1 + 1
}

/// Returns the bytes that an element takes in a buffer: its own, one for an element of less than a byte, eight for an
/// element of a quantised block.
fn held(dtype: Dtype) -> u64 {
    dtype.byte_width().unwrap_or(if dtype.is_quantised() { 8 } else { 1 })
}

/// Returns how far an axis reaches in the two tensors, in elements.
fn reaches(dim: &[(u64, u64)]) -> (u64, u64) {
    let first = dim.first().copied().unwrap_or_default();
    let (mut low, mut high) = (first, first);
    for &(near, far) in dim {
        low = (low.0.min(near), low.1.min(far));
        high = (high.0.max(near), high.1.max(far));
    }
    (high.0 - low.0, high.1 - low.1)
}

/// Returns how far an axis reaches in the tensor where it reaches farther, in elements.
fn span(dim: &[(u64, u64)]) -> u64 {
    let (near, far) = reaches(dim);
    near.max(far)
}

/// Returns at least the elements from the first to the last one that the axes reach.
fn hull(dims: &[&[(u64, u64)]]) -> u64 {
    dims.iter().map(|dim| span(dim)).fold(1, u64::saturating_add)
}

/// Returns the elements that [`fetch`] would hold of the side that takes more, gaps included: a view may have them everywhere.
fn footprint(dims: &[&[(u64, u64)]]) -> u64 {
    let elements: u64 = dims.iter().map(|dim| dim.len() as u64).product();
    let reaches: Vec<(u64, u64)> = dims.iter().map(|dim| reaches(dim)).collect();
    let of_side = |side: fn(&(u64, u64)) -> u64| {
        let hull = reaches.iter().map(side).fold(1, u64::saturating_add);
        let rows = dims.iter().zip(&reaches);
        let rows = rows.map(|(dim, reach)| (elements / dim.len() as u64).saturating_mul(side(reach) + 1));
        hull.min(rows.min().unwrap_or(1))
    };
    of_side(|reach| reach.0).max(of_side(|reach| reach.1))
}

/// Reads all elements at sums of the axes' offsets; returns the axes' offsets in the buffer.
fn fetch(stored: Stored<'_>, dims: &[Vec<u64>], buffer: &mut Vec<u64>) -> io::Result<Vec<Vec<u64>>> {
    let low: Vec<u64> = dims.iter().map(|dim| dim.iter().copied().min().unwrap_or(0)).collect();
    let spans: Vec<u64> =
        dims.iter().zip(&low).map(|(dim, low)| dim.iter().copied().max().unwrap_or(0) - low + 1).collect();
    let hull: u64 = spans.iter().map(|span| span - 1).sum::<u64>() + 1;
    let start: u64 = low.iter().sum();
    let elements: u64 = dims.iter().map(|dim| dim.len() as u64).product();
    let Some(width) = stored.dtype.byte_width() else {
        unpack(stored, start, hull, buffer)?;
        return Ok(dims.iter().zip(&low).map(|(dim, low)| dim.iter().map(|at| at - low).collect()).collect());
    };
    // Up to this much more than is needed, one read costs less than many.
    if hull <= elements.saturating_mul(4).max(1 << 13) && hull.saturating_mul(width) <= 2 * BOX {
        let length = (hull * width) as usize;
        let bytes = room(buffer, length);
        stored.bytes.read(stored.start + start * width, bytes)?;
        return Ok(dims.iter().zip(&low).map(|(dim, low)| dim.iter().map(|at| at - low).collect()).collect());
    }
    // The axis along which a read brings the most that is needed.
    let waste = |at: &usize| spans[*at] as f64 / dims[*at].len() as f64 - dims[*at].len() as f64 * 1e-9;
    let fast = (0..dims.len()).min_by(|a, b| waste(a).total_cmp(&waste(b))).unwrap_or(0);
    let run = spans[fast];
    let mut strides = vec![run; dims.len()];
    let mut rows = 1_u64;
    for at in (0..dims.len()).rev().filter(|at| *at != fast) {
        strides[at] = run * rows;
        rows *= dims[at].len() as u64;
    }
    let bytes = room(buffer, (rows * run * width) as usize);
    let mut counter = vec![0_usize; dims.len()];
    for row in 0..rows {
        let offset: u64 =
            (0..dims.len()).map(|at| if at == fast { low[at] } else { dims[at][counter[at]] }).sum();
        let place = (row * run * width) as usize;
        stored
            .bytes
            .read(stored.start + offset * width, &mut bytes[place..place + (run * width) as usize])?;
        for at in (0..dims.len()).rev().filter(|at| *at != fast) {
            counter[at] += 1;
            if counter[at] < dims[at].len() {
                break;
            }
            counter[at] = 0;
        }
    }
    let places = dims.iter().enumerate().map(|(at, dim)| {
        if at == fast {
            dim.iter().map(|offset| offset - low[at]).collect()
        } else {
            (0..dim.len() as u64).map(|position| position * strides[at]).collect()
        }
    });
    Ok(places.collect())
}

/// Reads elements that share bytes, each into a place of its own in the buffer.
fn unpack(stored: Stored<'_>, start: u64, count: u64, buffer: &mut Vec<u64>) -> io::Result<()> {
    if stored.dtype.is_quantised() {
        return unpack_blocks(stored, start, count, buffer);
    }
    let bits = stored.dtype.bits();
    let first = start * bits / 8;
    let mut packed = vec![0; ((start + count) * bits).div_ceil(8) as usize - first as usize];
    stored.bytes.read(stored.start + first, &mut packed)?;
    let bytes = room(buffer, count as usize);
    for (at, byte) in bytes.iter_mut().enumerate() {
        let bit = (start + at as u64) * bits - first * 8;
        let place = (bit / 8) as usize;
        let pair = u16::from(packed[place]) | u16::from(packed.get(place + 1).copied().unwrap_or(0)) << 8;
        *byte = (pair >> (bit % 8)) as u8 & ((1 << bits) - 1);
    }
    Ok(())
}

/// Reads elements of quantised blocks, each as a word: its share of the block's bits, its place in the block and a digest
/// of the whole block. So all bits of equal blocks are compared, and elements are equal only at equal places of blocks
/// that are equal as a whole.
fn unpack_blocks(stored: Stored<'_>, start: u64, count: u64, buffer: &mut Vec<u64>) -> io::Result<()> {
    let (elements, bytes) = stored.dtype.block();
    let first = start / elements;
    let blocks = (start + count).div_ceil(elements) - first;
    let mut packed = vec![0; (blocks * bytes) as usize];
    stored.bytes.read(stored.start + first * bytes, &mut packed)?;
    buffer.clear();
    buffer.reserve(count as usize);
    for (number, block) in packed.chunks(bytes as usize).enumerate() {
        // FNV-1a: nobody who makes a file gains by making blocks collide, since their bits are compared too.
        let digest = block.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let begin = (first + number as u64) * elements;
        for place in start.max(begin) - begin..(start + count).min(begin + elements) - begin {
            let bit = |place: u64| place * bytes * 8 / elements;
            let share = (bit(place)..bit(place + 1))
                .fold(0, |share, bit| share << 1 | u64::from(block[(bit / 8) as usize] >> (bit % 8) & 1));
            buffer.push(digest << 24 | place << 16 | share);
        }
    }
    Ok(())
}

/// Returns so many bytes of a buffer, whatever they hold.
fn room(buffer: &mut Vec<u64>, bytes: usize) -> &mut [u8] {
    if buffer.len() * 8 < bytes {
        buffer.resize(bytes.div_ceil(8), 0);
    }
    &mut bytemuck::cast_slice_mut(buffer)[..bytes]
}

/// The two buffers of a box.
struct Sides<'a> {
    /// Whether the last axis's elements are neighbours in both buffers.
    consecutive: bool,
    near: &'a [u8],
    far: &'a [u8],
    near_dtype: Dtype,
    far_dtype: Dtype,
    agreement: Agreement,
}

impl Sides<'_> {
    /// Returns whether all elements have the same bits; only tried where that is what is asked for.
    fn are_equal(&self, near: &[Vec<u64>], far: &[Vec<u64>]) -> bool {
        if self.agreement != Agreement::Bits {
            return false;
        }
        match held(self.near_dtype) {
            1 => equal::<u8>((self.near, self.far), near, far),
            2 => equal::<u16>((self.near, self.far), near, far),
            4 => equal::<u32>((self.near, self.far), near, far),
            _ => equal::<u64>((self.near, self.far), near, far),
        }
    }

    /// `places` are the sums so far in the buffers, `offsets` those in the tensors.
    #[allow(clippy::too_many_arguments)]
    fn walk(
        &self,
        near: &[Vec<u64>],
        far: &[Vec<u64>],
        dims: &[&[(u64, u64)]],
        at: usize,
        places: (u64, u64),
        offsets: (u64, u64),
        outcome: &mut Outcome,
    ) {
        if at + 1 < dims.len() {
            for position in 0..dims[at].len() {
                let places = (places.0 + near[at][position], places.1 + far[at][position]);
                let offsets = (offsets.0 + dims[at][position].0, offsets.1 + dims[at][position].1);
                self.walk(near, far, dims, at + 1, places, offsets, outcome);
            }
            return;
        }
        let whole: (&[u64], &[u64], &[(u64, u64)]) = match dims.last() {
            Some(last) => (&near[at], &far[at], last),
            None => (&[0], &[0], &[(0, 0)]),
        };
        self.row(whole, places, offsets, outcome);
    }

    fn row(
        &self,
        (near, far, dim): (&[u64], &[u64], &[(u64, u64)]),
        places: (u64, u64),
        offsets: (u64, u64),
        outcome: &mut Outcome,
    ) {
        outcome.elements += dim.len() as u64;
        if self.agreement == Agreement::Bits {
            let width = held(self.near_dtype) as usize;
            let run = |place: u64, at: &[u64]| {
                let start = (place + at[0]) as usize * width;
                start..start + dim.len() * width
            };
            if self.consecutive && self.near[run(places.0, near)] == self.far[run(places.1, far)] {
                return;
            }
            let differing = match width {
                1 => differing::<u8>(self.near, self.far, near, far, places),
                2 => differing::<u16>(self.near, self.far, near, far, places),
                4 => differing::<u32>(self.near, self.far, near, far, places),
                _ => differing::<u64>(self.near, self.far, near, far, places),
            };
            if differing == 0 {
                return;
            }
        }
        for position in 0..dim.len() {
            let a = bits(self.near, places.0 + near[position], self.near_dtype);
            let b = bits(self.far, places.1 + far[position], self.far_dtype);
            if !self.agree(a, b) {
                outcome.differing += 1;
                let place = (offsets.0 + dim[position].0, offsets.1 + dim[position].1);
                outcome.first.get_or_insert((place.0, place.1, a, b));
            }
        }
    }

    fn agree(&self, near: u64, far: u64) -> bool {
        match self.agreement {
            Agreement::Bits => near == far,
            Agreement::Value { scale, offset } => {
                let (Some(here), Some(there)) = (value(near, self.near_dtype), value(far, self.far_dtype))
                else {
                    return false;
                };
                // A sum with +0 would turn -0 around.
                let wanted = if offset == 0.0 { there * scale } else { there * scale + offset };
                if here == 0.0 && wanted == 0.0 {
                    return here.is_sign_negative() == wanted.is_sign_negative();
                }
                if here.is_nan() || wanted.is_nan() {
                    return here.is_nan() && wanted.is_nan();
                }
                // Half a unit in the last place: the nearest value of the near type, ties either way; and the error
                // of computing in f64 itself.
                let computed = (f64::abs(there * scale) + offset.abs()) * 2_f64.powi(-51);
                here == wanted
                    || (here - wanted).abs() <= last_place(wanted, self.near_dtype) / 2.0 + computed
            }
        }
    }
}

fn differing<T: bytemuck::Pod + PartialEq>(
    near: &[u8],
    far: &[u8],
    near_places: &[u64],
    far_places: &[u64],
    places: (u64, u64),
) -> usize {
    let (near, far): (&[T], &[T]) = (whole(near), whole(far));
    let (near, far) = (&near[places.0 as usize..], &far[places.1 as usize..]);
    near_places.iter().zip(far_places).filter(|(a, b)| near[**a as usize] != far[**b as usize]).count()
}

/// Returns an element's bits.
fn bits(bytes: &[u8], place: u64, dtype: Dtype) -> u64 {
    let width = held(dtype) as usize;
    let start = place as usize * width;
    bytes[start..start + width].iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

/// Returns an element's value, for the types that can be converted.
pub(super) fn value(bits: u64, dtype: Dtype) -> Option<f64> {
    Some(match dtype {
        Dtype::F64 => f64::from_bits(bits),
        Dtype::F32 => f32::from_bits(bits as u32).into(),
        Dtype::F16 => half::f16::from_bits(bits as u16).into(),
        Dtype::BF16 => half::bf16::from_bits(bits as u16).into(),
        _ => return None,
    })
}

/// Returns the size of a unit in the last place at a value, in a type.
fn last_place(value: f64, dtype: Dtype) -> f64 {
    let (digits, least) = match dtype {
        Dtype::F16 => (10, -14),
        Dtype::BF16 => (7, -126),
        Dtype::F32 => (23, -126),
        _ => (52, -1022),
    };
    let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    2_f64.powi(exponent.max(least) - digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Memory(Vec<u8>);

    impl Bytes for Memory {
        fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            let start = offset as usize;
            let from = self.0.get(start..start + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(from);
            Ok(())
        }
    }

    fn words(values: impl Iterator<Item = u32>) -> Memory {
        Memory(values.flat_map(u32::to_le_bytes).collect())
    }

    #[test]
    fn a_large_transpose_is_compared_in_boxes_and_one_wrong_element_is_found() {
        let (rows, columns) = (1500_u64, 2100_u64);
        let near = words((0..rows * columns).map(|at| at as u32));
        let mut far = words((0..rows * columns).map(|at| (at % rows * columns + at / rows) as u32));
        let dims: Vec<Offsets> = vec![
            (0..rows).map(|i| (i * columns, i)).collect(),
            (0..columns).map(|j| (j, j * rows)).collect(),
        ];
        let mut scratch = Scratch::default();
        let run = |far: &Memory, scratch: &mut Scratch| {
            let a = Stored { bytes: &near, start: 0, dtype: Dtype::F32 };
            let b = Stored { bytes: far, start: 0, dtype: Dtype::F32 };
            compare(a, b, &dims, Agreement::Bits, scratch).expect("in memory")
        };
        let good = run(&far, &mut scratch);
        assert_eq!((good.elements, good.differing), (rows * columns, 0));
        let place = (1003 * rows + 777) as usize * 4;
        far.0[place] ^= 1;
        let bad = run(&far, &mut scratch);
        let bits = bad.first.expect("a difference");
        assert_eq!((bad.differing, bits.0, bits.1), (1, 777 * columns + 1003, 1003 * rows + 777));
    }

    /// Rows in the same order, rows whose ends alone look like a run, and orders in which no axis is a run on both sides.
    #[test]
    fn one_wrong_element_is_found_whatever_the_order() {
        let (a, b, c) = (70_u64, 41, 90);
        let plain = |i: u64, j: u64, k: u64| (i * b + j) * c + k;
        // Two elements of the middle of each row change places.
        let swapped = |k: u64| if k == 40 || k == 41 { 81 - k } else { k };
        let orders: [&dyn Fn(u64, u64, u64) -> u64; 5] = [
            &plain,
            &|i, j, k| plain(i, j, swapped(k)),
            &|i, j, k| (k * a + i) * b + j,
            &|i, j, k| (j * c + k) * a + i,
            &|i, j, k| (i * c + k) * b + j,
        ];
        for order in orders {
            let near = words((0..(a * b * c) as u32).map(|at| at * 7));
            let mut elements = vec![0; (a * b * c) as usize];
            for (i, j, k) in (0..a).flat_map(|i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k)))) {
                elements[order(i, j, k) as usize] = plain(i, j, k) as u32 * 7;
            }
            let dims: Vec<Offsets> = vec![
                (0..a).map(|i| (plain(i, 0, 0), order(i, 0, 0) - order(0, 0, 0))).collect(),
                (0..b).map(|j| (plain(0, j, 0), order(0, j, 0) - order(0, 0, 0))).collect(),
                (0..c).map(|k| (k, order(0, 0, k))).collect(),
            ];
            let run = |elements: &[u32]| {
                let far = words(elements.iter().copied());
                let near = Stored { bytes: &near, start: 0, dtype: Dtype::F32 };
                let far = Stored { bytes: &far, start: 0, dtype: Dtype::F32 };
                compare(near, far, &dims, Agreement::Bits, &mut Scratch::default()).expect("in memory")
            };
            let good = run(&elements);
            assert_eq!((good.elements, good.differing), (a * b * c, 0));
            for (i, j, k) in [(0, 0, 0), (a - 1, b - 1, c - 1), (33, 17, 40), (64, 40, 1)] {
                elements[order(i, j, k) as usize] ^= 1 << 30;
                let bad = run(&elements);
                let first = bad.first.map(|first| (first.0, first.1));
                assert_eq!((bad.differing, first), (1, Some((plain(i, j, k), order(i, j, k)))));
                elements[order(i, j, k) as usize] ^= 1 << 30;
            }
        }
    }

    #[test]
    fn values_are_the_nearest_of_their_type() {
        let near = words([1.5_f32.to_bits(), 2.5_f32.to_bits(), f32::NAN.to_bits()].into_iter());
        let far = words([0.5_f32.to_bits(), 1.5_f32.to_bits(), f32::NAN.to_bits()].into_iter());
        let dims = [(0..3).map(|at| (at, at)).collect::<Offsets>()];
        let a = Stored { bytes: &near, start: 0, dtype: Dtype::F32 };
        let b = Stored { bytes: &far, start: 0, dtype: Dtype::F32 };
        let agreement = Agreement::Value { scale: 1.0, offset: 1.0 };
        let outcome = compare(a, b, &dims, agreement, &mut Scratch::default()).expect("in memory");
        assert_eq!(outcome.differing, 0);
        let next = words([1.5_f32.to_bits(), 2.5_f32.to_bits() + 1, f32::NAN.to_bits()].into_iter());
        let off = Stored { bytes: &next, start: 0, dtype: Dtype::F32 };
        let outcome = compare(off, b, &dims, agreement, &mut Scratch::default()).expect("in memory");
        assert_eq!(outcome.differing, 1);
        let agreement = Agreement::Value { scale: 1.0, offset: 1.001 };
        let outcome = compare(a, b, &dims, agreement, &mut Scratch::default()).expect("in memory");
        assert_eq!(outcome.differing, 2);
    }

    /// Bytes of which no two neighbours are alike.
    fn blocks(bytes: u64) -> Memory {
        Memory((0..bytes).map(|at| (at * 151 % 241) as u8).collect())
    }

    fn compare_rows(dtype: Dtype, near: &Memory, far: &Memory, dims: &[Offsets]) -> Outcome {
        let a = Stored { bytes: near, start: 0, dtype };
        let b = Stored { bytes: far, start: 0, dtype };
        compare(a, b, dims, Agreement::Bits, &mut Scratch::default()).expect("in memory")
    }

    #[test]
    fn every_bit_of_a_quantised_block_counts() {
        for &dtype in Dtype::ALL.iter().filter(|dtype| dtype.is_quantised()) {
            let (elements, bytes) = dtype.block();
            let near = blocks(3 * bytes);
            // The rows in another order.
            let order = [2, 0, 1];
            let far = Memory(
                order
                    .iter()
                    .flat_map(|row| &near.0[(row * bytes) as usize..][..bytes as usize])
                    .copied()
                    .collect(),
            );
            let dims = vec![
                order.iter().enumerate().map(|(at, row)| (row * elements, at as u64 * elements)).collect(),
                (0..elements).map(|at| (at, at)).collect(),
            ];
            let good = compare_rows(dtype, &near, &far, &dims);
            assert_eq!((good.elements, good.differing), (3 * elements, 0), "{dtype}");
            for bit in 0..bytes * 8 {
                let mut wrong = Memory(far.0.clone());
                wrong.0[(bytes + bit / 8) as usize] ^= 1 << (bit % 8);
                let bad = compare_rows(dtype, &near, &wrong, &dims);
                // All elements depend on the block that differs, and no others.
                assert_eq!(
                    (bad.differing, bad.first.map(|first| first.1 / elements)),
                    (elements, Some(1)),
                    "{dtype}"
                );
            }
        }
    }

    #[test]
    fn elements_at_other_places_of_blocks_differ() {
        let same = Memory([7; 34].repeat(2));
        let shifted: Vec<Offsets> = vec![(0..32).map(|at| (at, at + 16)).collect()];
        assert_eq!(compare_rows(Dtype::Q8_0, &same, &same, &shifted).differing, 32);
        let moved: Vec<Offsets> = vec![(0..32).map(|at| (at, at + 32)).collect()];
        assert_eq!(compare_rows(Dtype::Q8_0, &same, &same, &moved).differing, 0);
    }

    #[test]
    fn far_rows_of_blocks_are_read_in_bounded_memory() {
        struct Counted(std::cell::Cell<usize>);
        impl Bytes for Counted {
            fn read(&self, _: u64, buffer: &mut [u8]) -> io::Result<()> {
                self.0.set(self.0.get().max(buffer.len()));
                buffer.fill(3);
                Ok(())
            }
        }
        // 64 rows of 4096 elements, each 4096 rows from the next: a gigabyte of blocks from the first to the last.
        let side = Counted(std::cell::Cell::new(0));
        let dims: Vec<Offsets> = vec![
            (0..64).map(|row| (row * 4096 * 4096, row * 4096)).collect(),
            (0..4096).map(|at| (at, at)).collect(),
        ];
        let stored = Stored { bytes: &side, start: 0, dtype: Dtype::Q8_0 };
        let found =
            compare(stored, stored, &dims, Agreement::Bits, &mut Scratch::default()).expect("in memory");
        assert_eq!((found.elements, found.differing), (64 * 4096, 0));
        assert!(side.0.get() as u64 <= BOX, "{}", side.0.get());
    }
}
