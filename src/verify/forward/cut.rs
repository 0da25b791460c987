//! Cuts of a product in q, k and v.

use candle_core::Tensor;

use super::{ForwardError, Heads};
use crate::mapping::forward::{Part, Slot};

/// Views [tokens, heads * size] as [heads, tokens, size].
pub(super) fn as_heads(flat: &Tensor, size: u64) -> Result<Tensor, ForwardError> {
    let (tokens, width) = flat.dims2()?;
    let size = size as usize;
    if size == 0 || width % size != 0 {
        return Err(ForwardError::Shape(
            "a projection".into(),
            format!("{width} columns are no heads of {size}"),
        ));
    }
    Ok(flat.reshape((tokens, width / size, size))?.transpose(0, 1)?.contiguous()?)
}

/// Cuts [tokens, everything] into its parts: views it as so many equal blocks, each of which holds its share of every
/// part; with `rest` something else is behind these.
pub(super) fn cut_fused(
    flat: &Tensor,
    views: u64,
    order: &[Slot],
    heads: &Heads,
    rest: bool,
) -> Result<[Option<Tensor>; 3], ForwardError> {
    let (tokens, width) = flat.dims2()?;
    let Heads { h, g, d, dv } = *heads;
    let wrong = |wanted: String| ForwardError::Shape("a fused projection".into(), wanted);
    let totals = [h * d, g * d, g * dv];
    let divides = |whole: u64| views > 0 && whole.is_multiple_of(views);
    if !divides(width as u64) || !order.iter().all(|slot| divides(totals[slot.part as usize])) {
        return Err(wrong(format!("{width} columns cannot be cut in {views} views of q, k and v")));
    }
    let size_of = |part: Part| (totals[part as usize] / views) as usize;
    let (views, window) = (views as usize, width / views as usize);
    let taken: usize = order.iter().map(|slot| size_of(slot.part)).sum();
    if taken > window || (taken < window && !rest) {
        return Err(wrong(format!("{width} columns cannot be cut in {views} views of {taken}")));
    }
    let viewed = flat.reshape((tokens, views, window))?;
    let mut start = 0;
    let mut found: [Option<Tensor>; 3] = [None, None, None];
    for &Slot { part, other } in order {
        if !other {
            let piece = viewed.narrow(2, start, size_of(part))?.contiguous()?;
            let flat = piece.reshape((tokens, views * size_of(part)))?;
            found[part as usize] = Some(as_heads(&flat, if part == Part::V { dv } else { d })?);
        }
        start += size_of(part);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    const Q: Slot = Slot { part: Part::Q, other: false };
    const K: Slot = Slot { part: Part::K, other: false };
    const V: Slot = Slot { part: Part::V, other: false };

    fn columns(count: usize) -> Tensor {
        let values: Vec<f64> = (0..count).map(|at| at as f64).collect();
        Tensor::from_vec(values, (1, count), &Device::Cpu).expect("a row")
    }

    /// Returns the columns of each part, head by head.
    fn cut(width: usize, views: u64, order: &[Slot], heads: Heads, rest: bool) -> [Vec<f64>; 3] {
        let found = cut_fused(&columns(width), views, order, &heads, rest).expect("is cut");
        found.map(|part| {
            part.map_or(Vec::new(), |part| part.flatten_all().and_then(|flat| flat.to_vec1()).expect("flat"))
        })
    }

    #[test]
    fn parts_of_views() {
        // Two blocks of two heads each: q of both, v of both, k of both.
        let heads = Heads { h: 4, g: 4, d: 1, dv: 3 };
        let [q, k, v] = cut(20, 2, &[Q, V, K], heads, false);
        assert_eq!(q, [0.0, 1.0, 10.0, 11.0]);
        assert_eq!(k, [8.0, 9.0, 18.0, 19.0]);
        assert_eq!(v[..7], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 12.0]);
        // One view per element: q, k and v side by side.
        let heads = Heads { h: 2, g: 2, d: 3, dv: 3 };
        let [q, k, v] = cut(18, 6, &[Q, K, V], heads, false);
        assert_eq!(q, [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]);
        assert_eq!((k[1], v[5]), (4.0, 17.0));
    }

    #[test]
    fn what_is_not_this_attentions() {
        let heads = Heads { h: 2, g: 1, d: 3, dv: 5 };
        let other = |slot: Slot| Slot { other: true, ..slot };
        let [q, k, v] = cut(23, 1, &[Q, other(Q), other(K), K, V], heads, false);
        assert_eq!(q, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(k, [15.0, 16.0, 17.0]);
        assert_eq!(v, [18.0, 19.0, 20.0, 21.0, 22.0]);
        let [_, k, v] = cut(10, 1, &[K, V], heads, true);
        assert_eq!((&k[..], v[0], v.len()), (&[0.0, 1.0, 2.0][..], 3.0, 5));
        // Without `rest` nothing may be left, and with it nothing may lack.
        assert!(cut_fused(&columns(10), 1, &[K, V], &heads, false).is_err());
        assert!(cut_fused(&columns(7), 1, &[K, V], &heads, true).is_err());
        assert!(cut_fused(&columns(8), 0, &[K, V], &heads, false).is_err());
        assert!(cut_fused(&columns(8), 2, &[K, V], &heads, false).is_err());
    }
}
