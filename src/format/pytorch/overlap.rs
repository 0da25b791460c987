//! Tensors that share some of their bytes, but are not the same.

use std::path::Path;

use crate::catalog::TensorMeta;
use crate::diag::{Collector, Diagnostic, FormatCode};
use crate::format::shown;

/// How many pairs are reported one by one.
const MOST_REPORTED: usize = 10;

/// How many pairs are compared; a file could hold more than anyone can, and the rest is left without a warning.
const MOST_COMPARED: usize = 1 << 20;

/// Warns of tensors that share some of their bytes. Tensors of one place, type, shape and strides are the same tensor under
/// two names and no fault.
pub(super) fn warn(file: &Path, tensors: &[TensorMeta], out: &mut Collector) {
    let mut extents: Vec<(Extent, &TensorMeta)> =
        tensors.iter().filter_map(|tensor| Some((extent(tensor)?, tensor))).collect();
    extents.sort_by_key(|(extent, tensor)| (tensor.file, extent.start, extent.end));
    let (mut compared, mut found) = (0, 0);
    let mut open: Vec<usize> = Vec::new();
    for (at, (extent, tensor)) in extents.iter().enumerate() {
        open.retain(|&other| {
            let (before, earlier) = &extents[other];
            earlier.file == tensor.file && before.end > extent.start
        });
        if open.iter().any(|&other| is_same(extents[other].1, tensor)) {
            continue;
        }
        for &other in &open {
            let (before, earlier) = &extents[other];
            compared += 1;
            if compared > MOST_COMPARED {
                return;
            }
            if !share(before, extent) {
                continue;
            }
            found += 1;
            if found > MOST_REPORTED {
                return more(file, out);
            }
            let names = (shown(&earlier.key), shown(&tensor.key));
            let message = format!(
                "`{}` and `{}` share some of their elements in the file and are not the same; each gets a copy of its own",
                names.0, names.1
            );
            let diagnostic = Diagnostic::warning(FormatCode::OverlappingViews, message).file(file);
            out.push(diagnostic.tensor(&earlier.key).tensor(&tensor.key));
        }
        open.push(at);
    }
}

fn more(file: &Path, out: &mut Collector) {
    let message = "more tensors share some of their elements in the file without being the same";
    out.push(Diagnostic::warning(FormatCode::OverlappingViews, message).file(file));
}

fn is_same(a: &TensorMeta, b: &TensorMeta) -> bool {
    (a.offset, a.dtype, &a.shape, &a.strides) == (b.offset, b.dtype, &b.shape, &b.strides)
}

/// The bytes of a tensor: where the first and the last lie, and the steps in between.
struct Extent {
    start: u64,
    end: u64,
    /// The stride in bytes and the size of each dimension of more than one element; the bytes of an element are one too.
    steps: Vec<(u64, u64)>,
}

fn extent(tensor: &TensorMeta) -> Option<Extent> {
    let width = tensor.dtype.byte_width()?;
    if tensor.shape.contains(&0) {
        return None;
    }
    let mut steps = vec![(1, width)];
    let mut length = width;
    for (&size, &stride) in
        tensor.shape.iter().zip(&tensor.strides).filter(|(size, stride)| **size > 1 && **stride > 0)
    {
        let stride = stride.checked_mul(width)?;
        length = length.checked_add((size - 1).checked_mul(stride)?)?;
        steps.push((stride, size));
    }
    Some(Extent { start: tensor.offset, end: tensor.offset.checked_add(length)?, steps })
}

/// Returns whether two tensors share a byte, as far as that can be told: for slices of one larger tensor it can, for others
/// it is assumed where one begins before the other ends.
///
/// The strides of both are then those of the larger tensor, and a slice is an interval of positions along each of its
/// dimensions; slices that are apart along one of them share nothing.
fn share(a: &Extent, b: &Extent) -> bool {
    if a.start.max(b.start) >= a.end.min(b.end) {
        return false;
    }
    let mut strides: Vec<u64> = a.steps.iter().chain(&b.steps).map(|step| step.0).collect();
    strides.sort_unstable();
    strides.dedup();
    let sizes: Option<Vec<(i128, i128)>> =
        strides.iter().map(|&stride| Some((size_along(a, stride)?, size_along(b, stride)?))).collect();
    if strides.windows(2).any(|pair| !pair[1].is_multiple_of(pair[0])) {
        return true;
    }
    let Some(sizes) = sizes else { return true };
    let mut tries = MOST_TRIES;
    !are_apart(&strides, &sizes, i128::from(b.start) - i128::from(a.start), false, &mut tries)
}

/// How many ways to place two slices in a larger tensor are tried.
const MOST_TRIES: usize = 64;

/// Returns whether two slices of one tensor are apart along a dimension; `sizes` are how many positions both have along
/// the dimensions of `strides`, the smallest first, and `distance` is from the first byte of one to that of the other.
fn are_apart(
    strides: &[u64],
    sizes: &[(i128, i128)],
    distance: i128,
    already: bool,
    tries: &mut usize,
) -> bool {
    let ([stride, above @ ..], [(a, b), wider @ ..]) = (strides, sizes) else { return already };
    let Some(left) = tries.checked_sub(1) else { return false };
    *tries = left;
    // What is left of the distance is a multiple of the stride.
    let stride = i128::from(*stride);
    let steps = distance / stride;
    let Some(next) = above.first() else { return already || steps >= *a || steps + b <= 0 };
    let room = i128::from(*next) / stride;
    let forward = steps.rem_euclid(room);
    [forward, forward - room].into_iter().any(|step| {
        // Both slices have to fit into the dimension, wherever in it they begin.
        let fits = (*a).max(step + b) - step.min(0) <= room;
        let already = already || step >= *a || step + b <= 0;
        fits && are_apart(above, wider, distance - step * stride, already, tries)
    })
}

/// Returns how many positions a tensor has along the dimension of that stride, or `None` where two have it.
fn size_along(extent: &Extent, stride: u64) -> Option<i128> {
    let mut sizes = extent.steps.iter().filter(|step| step.0 == stride).map(|step| i128::from(step.1));
    let size = sizes.next().unwrap_or(1);
    sizes.next().is_none().then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn view(offset: u64, shape: &[u64], strides: &[u64]) -> Extent {
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        extent(&TensorMeta {
            key: "a".into(),
            dtype: Dtype::F32,
            shape,
            strides,
            file: 0,
            offset: offset * 4,
            extents: Vec::new(),
        })
        .expect("has elements")
    }

    /// Counts instead.
    fn truth(a: (u64, &[u64], &[u64]), b: (u64, &[u64], &[u64])) -> bool {
        let places = |(offset, shape, strides): (u64, &[u64], &[u64])| -> std::collections::HashSet<u64> {
            let mut places = vec![offset];
            for (size, stride) in shape.iter().zip(strides) {
                places =
                    places.iter().flat_map(|place| (0..*size).map(move |at| place + at * stride)).collect();
            }
            places.into_iter().collect()
        };
        !places(a).is_disjoint(&places(b))
    }

    #[test]
    fn slices_of_one_tensor_share_what_they_share() {
        type View = (u64, &'static [u64], &'static [u64]);
        // Of a tensor [6, 5, 4].
        let views: &[View] = &[
            (0, &[6, 5, 4], &[20, 4, 1]),
            (0, &[6, 2, 4], &[20, 4, 1]),
            (8, &[6, 3, 4], &[20, 4, 1]),
            (2, &[6, 5, 2], &[20, 4, 1]),
            (0, &[6, 5, 2], &[20, 4, 1]),
            (40, &[2, 5, 4], &[20, 4, 1]),
            (0, &[4], &[1]),
            (4, &[2, 6], &[4, 20]),
            (119, &[1], &[7]),
            (3, &[6], &[20]),
        ];
        for &a in views {
            for &b in views {
                let found = share(&view(a.0, a.1, a.2), &view(b.0, b.1, b.2));
                assert_eq!(found, truth(a, b), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn what_is_said_to_be_apart_is_apart() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut apart = 0;
        for _ in 0..20_000 {
            let mut one = || {
                let shape = [random(4) + 1, random(4) + 1, random(3) + 1];
                let strides = [random(5) * 6, random(4) * 2, random(3)];
                (random(12), shape, strides)
            };
            let (a, b) = (one(), one());
            if !share(&view(a.0, &a.1, &a.2), &view(b.0, &b.1, &b.2)) {
                apart += 1;
                assert!(!truth((a.0, &a.1, &a.2), (b.0, &b.1, &b.2)), "{a:?} {b:?}");
            }
        }
        assert!(apart > 1000, "{apart}");
    }

    #[test]
    fn what_cannot_be_told_is_taken_for_shared() {
        assert!(share(&view(0, &[3, 3], &[2, 1]), &view(1, &[2], &[3])));
        assert!(!share(&view(0, &[3], &[1]), &view(3, &[3], &[1])));
    }
}
