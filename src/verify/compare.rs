//! Comparing two sets of elements that lie anywhere in two files, in bounded memory.

use std::io;
use std::ops::Range;

use super::agreement::{Agree, Agreement, Visit, Word, with_bits, with_values, with_values_there};
use super::equal::{equal, whole};
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

/// Compares those combinations of the axes' indices that are in a share.
///
/// The boxes into which all are cut are counted by their elements, in the order in which they are compared; those that begin
/// in `share` are compared. Shares that follow each other find together what one share of all finds.
pub(super) fn compare(
    near: Stored<'_>,
    far: Stored<'_>,
    dims: &[Offsets],
    agreement: Agreement,
    share: &Range<u64>,
    scratch: &mut Scratch,
) -> io::Result<Outcome> {
    let dims: Vec<&[(u64, u64)]> = dims.iter().map(Vec::as_slice).collect();
    let mut outcome = Outcome::default();
    compare_parts((near, far), &dims, agreement, (0, share), scratch, &mut outcome)?;
    Ok(outcome)
}

/// Compares what fits into the buffers, and anything larger by halves. `from` is the number of elements before these.
fn compare_parts(
    (near, far): (Stored<'_>, Stored<'_>),
    dims: &[&[(u64, u64)]],
    agreement: Agreement,
    (from, share): (u64, &Range<u64>),
    scratch: &mut Scratch,
    outcome: &mut Outcome,
) -> io::Result<()> {
    let elements: u64 = dims.iter().map(|dim| dim.len() as u64).product();
    if elements == 0 || from >= share.end || from + elements <= share.start {
        return Ok(());
    }
    let width = held(near.dtype).max(held(far.dtype));
    let rows = dims.last().is_none_or(|last| ends_like_a_run(last));
    let large = elements * width > if rows { ROWS } else { BOX };
    // Elements that share bytes are read with all that lies between them.
    let packed = near.dtype.byte_width().is_none() || far.dtype.byte_width().is_none();
    let reach = || if packed { hull(dims) } else { footprint(dims) };
    // Rows stay whole; where orders differ, a box of even sides needs the fewest reads on both sides.
    let by_span = rows && large || elements > 1 && reach().saturating_mul(width) > 2 * BOX;
    if large || by_span {
        let axes = dims.iter().enumerate();
        let widest = if by_span {
            axes.max_by_key(|(_, dim)| span(dim))
        } else {
            axes.max_by_key(|(_, dim)| dim.len())
        };
        let (at, dim) = widest.unwrap_or((0, &dims[0]));
        let (first, second) = dim.split_at(dim.len() / 2);
        let behind = from + elements / dim.len() as u64 * first.len() as u64;
        for (half, from) in [(first, from), (second, behind)] {
            let mut dims = dims.to_vec();
            dims[at] = half;
            compare_parts((near, far), &dims, agreement, (from, share), scratch, outcome)?;
        }
        return Ok(());
    }
    if from < share.start {
        return Ok(());
    }
    let near_offsets: Vec<Vec<u64>> =
        dims.iter().map(|dim| dim.iter().map(|(near, _)| *near).collect()).collect();
    let far_offsets: Vec<Vec<u64>> =
        dims.iter().map(|dim| dim.iter().map(|(_, far)| *far).collect()).collect();
    let near_places = fetch(near, &near_offsets, &mut scratch.near)?;
    let far_places = fetch(far, &far_offsets, &mut scratch.far)?;
    let sides = Sides {
        near: bytemuck::cast_slice(&scratch.near),
        far: bytemuck::cast_slice(&scratch.far),
        near_places: &near_places,
        far_places: &far_places,
        dims,
    };
    let found = match agreement {
        Agreement::Bits => with_bits(held(near.dtype), sides),
        Agreement::Value { scale, offset } => {
            let found = with_values((near.dtype, far.dtype), (scale, offset), sides);
            found.unwrap_or_else(|| sides.unlike(near.dtype, far.dtype))
        }
        Agreement::ValueThere { scale, offset } => {
            let found = with_values_there((near.dtype, far.dtype), (scale, offset), sides);
            found.unwrap_or_else(|| sides.unlike(near.dtype, far.dtype))
        }
    };
    outcome.add(found);
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
#[derive(Clone, Copy)]
struct Sides<'a> {
    near: &'a [u8],
    far: &'a [u8],
    /// The axes' offsets in the buffers.
    near_places: &'a [Vec<u64>],
    far_places: &'a [Vec<u64>],
    /// Their offsets in the tensors.
    dims: &'a [&'a [(u64, u64)]],
}

impl Visit for Sides<'_> {
    type Found = Outcome;

    fn visit<A: Agree>(self, agree: A) -> Outcome {
        let sides: (&[A::Near], &[A::Far]) = (whole(self.near), whole(self.far));
        if equal(agree, sides, self.near_places, self.far_places) {
            return Outcome { elements: self.elements(), ..Outcome::default() };
        }
        // In the order of the indices, so that the first difference is the first.
        let mut outcome = Outcome::default();
        self.walk(agree, sides, 0, (0, 0), (0, 0), &mut outcome);
        outcome
    }
}

impl Sides<'_> {
    fn elements(&self) -> u64 {
        self.dims.iter().map(|dim| dim.len() as u64).product()
    }

    /// `places` are the sums so far in the buffers, `offsets` those in the tensors.
    fn walk<A: Agree>(
        &self,
        agree: A,
        (near, far): (&[A::Near], &[A::Far]),
        at: usize,
        places: (u64, u64),
        offsets: (u64, u64),
        outcome: &mut Outcome,
    ) {
        let Some(dim) = self.dims.get(at) else {
            let (a, b) = (near[places.0 as usize], far[places.1 as usize]);
            outcome.elements += 1;
            if !agree.pair(a, b) {
                outcome.differing += 1;
                outcome.first.get_or_insert((offsets.0, offsets.1, a.bits(), b.bits()));
            }
            return;
        };
        for (offset, place) in dim.iter().zip(self.near_places[at].iter().zip(&self.far_places[at])) {
            let places = (places.0 + place.0, places.1 + place.1);
            let offsets = (offsets.0 + offset.0, offsets.1 + offset.1);
            self.walk(agree, (near, far), at + 1, places, offsets, outcome);
        }
    }

    /// Elements of types that have no values to compare: none agrees.
    fn unlike(&self, near: Dtype, far: Dtype) -> Outcome {
        let first = |places: &[Vec<u64>], bytes: &[u8], dtype: Dtype| {
            let place: u64 = places.iter().filter_map(|places| places.first()).sum();
            let width = held(dtype) as usize;
            bytes[place as usize * width..][..width]
                .iter()
                .rev()
                .fold(0, |bits, byte| bits << 8 | u64::from(*byte))
        };
        let offsets = self.dims.iter().filter_map(|dim| dim.first());
        let offsets = offsets.fold((0, 0), |sum, dim| (sum.0 + dim.0, sum.1 + dim.1));
        let bits = (first(self.near_places, self.near, near), first(self.far_places, self.far, far));
        let elements = self.elements();
        let first = Some((offsets.0, offsets.1, bits.0, bits.1));
        Outcome { elements, differing: elements, first }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One share of all.
    const ALL: Range<u64> = 0..u64::MAX;

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
            compare(a, b, &dims, Agreement::Bits, &ALL, scratch).expect("in memory")
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
                compare(near, far, &dims, Agreement::Bits, &ALL, &mut Scratch::default()).expect("in memory")
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
        let outcome = compare(a, b, &dims, agreement, &ALL, &mut Scratch::default()).expect("in memory");
        assert_eq!(outcome.differing, 0);
        let next = words([1.5_f32.to_bits(), 2.5_f32.to_bits() + 1, f32::NAN.to_bits()].into_iter());
        let off = Stored { bytes: &next, start: 0, dtype: Dtype::F32 };
        let outcome = compare(off, b, &dims, agreement, &ALL, &mut Scratch::default()).expect("in memory");
        assert_eq!(outcome.differing, 1);
        let agreement = Agreement::Value { scale: 1.0, offset: 1.001 };
        let outcome = compare(a, b, &dims, agreement, &ALL, &mut Scratch::default()).expect("in memory");
        assert_eq!(outcome.differing, 2);
    }

    /// Bytes of which no two neighbours are alike.
    fn blocks(bytes: u64) -> Memory {
        Memory((0..bytes).map(|at| (at * 151 % 241) as u8).collect())
    }

    fn compare_rows(dtype: Dtype, near: &Memory, far: &Memory, dims: &[Offsets]) -> Outcome {
        let a = Stored { bytes: near, start: 0, dtype };
        let b = Stored { bytes: far, start: 0, dtype };
        compare(a, b, dims, Agreement::Bits, &ALL, &mut Scratch::default()).expect("in memory")
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
        let found = compare(stored, stored, &dims, Agreement::Bits, &ALL, &mut Scratch::default())
            .expect("in memory");
        assert_eq!((found.elements, found.differing), (64 * 4096, 0));
        assert!(side.0.get() as u64 <= BOX, "{}", side.0.get());
    }

    /// The near side's axes in another order on the far side, of sizes that fit no block; and where elements are changed.
    #[derive(Debug)]
    struct Case {
        shape: [u64; 3],
        order: [usize; 3],
        types: (Dtype, Dtype),
        changed: Vec<u64>,
        cuts: Vec<u64>,
    }

    fn cases() -> impl Strategy<Value = Case> {
        let sizes = (1_u64..6, 1_u64..700, 1_u64..700).prop_map(|(a, b, c)| [a, b, c]).prop_shuffle();
        let types = prop::sample::select(vec![
            (Dtype::U8, Dtype::U8),
            (Dtype::BF16, Dtype::BF16),
            (Dtype::F32, Dtype::F32),
            (Dtype::F64, Dtype::F64),
            (Dtype::BF16, Dtype::F32),
            (Dtype::F32, Dtype::F16),
        ]);
        let places = || prop::collection::vec(0.0..1.0, 0..4);
        (sizes, Just([0, 1, 2]).prop_shuffle(), types, places(), places(), any::<bool>()).prop_map(
            |(shape, order, types, changed, cuts, last)| {
                let count = shape.iter().product::<u64>();
                let at = |part: &f64| (count as f64 * part) as u64;
                let mut changed: Vec<u64> = changed.iter().map(at).collect();
                changed.extend(last.then_some(count - 1));
                changed.sort_unstable();
                changed.dedup();
                let mut cuts: Vec<u64> = cuts.iter().map(at).collect();
                cuts.sort_unstable();
                Case { shape, order, types, changed, cuts }
            },
        )
    }

    /// Returns a whole number below 128 as a type holds it.
    fn stored(number: u64, dtype: Dtype) -> Vec<u8> {
        match dtype {
            Dtype::U8 => vec![number as u8],
            Dtype::F16 => half::f16::from_f64(number as f64).to_le_bytes().into(),
            Dtype::BF16 => half::bf16::from_f64(number as f64).to_le_bytes().into(),
            Dtype::F32 => (number as f32).to_le_bytes().into(),
            _ => (number as f64).to_le_bytes().into(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// What differs is what was changed, in any orders and types; and shares find together what one finds.
        #[test]
        fn shares_find_what_was_changed(case in cases()) {
            let Case { shape, order, types, changed, cuts } = case;
            let mut far_strides = [0; 3];
            let mut stride = 1;
            for &axis in order.iter().rev() {
                far_strides[axis] = stride;
                stride *= shape[axis];
            }
            let near_strides = [shape[1] * shape[2], shape[2], 1];
            let number = |at: u64| at * 89 % 127;
            let count = shape.iter().product::<u64>();
            let far_place = |at: u64| -> u64 {
                (0..3).map(|axis| at / near_strides[axis] % shape[axis] * far_strides[axis]).sum()
            };
            let mut near = Vec::new();
            let mut far = vec![Vec::new(); count as usize];
            for at in 0..count {
                let is_changed = changed.binary_search(&at).is_ok();
                near.extend(stored(number(at) + u64::from(is_changed), types.0));
                far[far_place(at) as usize] = stored(number(at), types.1);
            }
            let (near, far) = (Memory(near), Memory(far.concat()));
            let dims: Vec<Offsets> = (0..3)
                .map(|axis| (0..shape[axis]).map(|i| (i * near_strides[axis], i * far_strides[axis])).collect())
                .collect();
            let agreement = match types.0 == types.1 {
                true => Agreement::Bits,
                false => Agreement::Value { scale: 1.0, offset: 0.0 },
            };
            let mut scratch = Scratch::default();
            let mut run = |share: Range<u64>| {
                let near = Stored { bytes: &near, start: 0, dtype: types.0 };
                let far = Stored { bytes: &far, start: 0, dtype: types.1 };
                compare(near, far, &dims, agreement, &share, &mut scratch).expect("in memory")
            };
            let whole = run(ALL);
            prop_assert_eq!((whole.elements, whole.differing), (count, changed.len() as u64));
            if let Some((a, b, here, there)) = whole.first {
                prop_assert!(changed.binary_search(&a).is_ok() && b == far_place(a) && (here != there || types.0 != types.1));
            }
            let ends: Vec<u64> = [0].into_iter().chain(cuts).chain([u64::MAX]).collect();
            let mut joined = Outcome::default();
            ends.windows(2).for_each(|ends| joined.add(run(ends[0]..ends[1])));
            prop_assert_eq!(
                (joined.elements, joined.differing, joined.first),
                (whole.elements, whole.differing, whole.first)
            );
        }
    }
}
