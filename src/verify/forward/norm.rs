//! Norms of queries and keys.

use candle_core::{D, Device, Tensor};

use super::ForwardError;
use crate::mapping::forward::{Norm, NormKind};

/// Normalizes [heads, tokens, size] over each head, or over all heads of a token.
pub(super) fn normalized(
    part: &Tensor,
    norm: &Norm,
    factors: Option<Vec<f64>>,
    addends: Option<Vec<f64>>,
) -> Result<Tensor, ForwardError> {
    let (heads, tokens, size) = part.dims3()?;
    let by_token = part.transpose(0, 1)?.contiguous()?;
    let (groups, width) = if norm.together { (1, heads * size) } else { (heads, size) };
    let rows = by_token.reshape((tokens, groups, width))?;
    let rows = match norm.kind {
        NormKind::Layer => rows.broadcast_sub(&rows.mean_keepdim(D::Minus1)?)?,
        NormKind::RootMeanSquare | NormKind::Length => rows,
    };
    let squares = rows.sqr()?.sum_keepdim(D::Minus1)?;
    let divisor = match norm.kind {
        NormKind::Length => squares.sqrt()?.maximum(norm.epsilon)?,
        NormKind::RootMeanSquare | NormKind::Layer => ((squares / width as f64)? + norm.epsilon)?.sqrt()?,
    };
    let mut rows = rows.broadcast_div(&divisor)?.reshape((tokens, heads, size))?;
    // One value per element of a head, or of all heads.
    let per_element = |values: Vec<f64>| -> Result<Tensor, ForwardError> {
        let heads = match values.len() {
            count if count == heads * size => heads,
            count if count == size => 1,
            count => {
                let wanted = format!("a norm of {size} or {} elements is needed, not {count}", heads * size);
                return Err(ForwardError::Shape("a norm".into(), wanted));
            }
        };
        Ok(Tensor::from_vec(values, (1, heads, size), &Device::Cpu)?)
    };
    if let Some(factors) = factors {
        rows = rows.broadcast_mul(&per_element(factors)?)?;
    }
    if let Some(addends) = addends {
        rows = rows.broadcast_add(&per_element(addends)?)?;
    }
    Ok(rows.transpose(0, 1)?.contiguous()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norm(kind: NormKind, together: bool) -> Norm {
        Norm { kind, weight: None, bias: None, epsilon: 0.0, together }
    }

    /// Normalizes two heads of one token, [3, 4, 0] and [0, 0, 12].
    fn run(norm: &Norm, factors: Option<Vec<f64>>, addends: Option<Vec<f64>>) -> Vec<f64> {
        let part =
            Tensor::from_vec(vec![3.0, 4.0, 0.0, 0.0, 0.0, 12.0], (2, 1, 3), &Device::Cpu).expect("heads");
        let rows = normalized(&part, norm, factors, addends).expect("is normalized");
        let values: Vec<f64> = rows.flatten_all().and_then(|flat| flat.to_vec1()).expect("flat");
        values.into_iter().map(|value| (value * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn over_a_head_and_over_all() {
        assert_eq!(run(&norm(NormKind::Length, false), None, None), [0.6, 0.8, 0.0, 0.0, 0.0, 1.0]);
        // The whole is 13 long.
        let all: Vec<f64> =
            [3.0_f64, 4.0, 0.0, 0.0, 0.0, 12.0].map(|x| (x / 13.0 * 1e6).round() / 1e6).into();
        assert_eq!(run(&norm(NormKind::Length, true), None, None), all);
        let root = |x: f64| (x * 1e6).round() / 1e6;
        let mean_square = run(&norm(NormKind::RootMeanSquare, false), None, None);
        assert_eq!(mean_square[..2], [root(0.6 * 3_f64.sqrt()), root(0.8 * 3_f64.sqrt())]);
        let layer = run(&norm(NormKind::Layer, false), None, None);
        assert_eq!(layer[3..], [root(-0.5_f64.sqrt()), root(-0.5_f64.sqrt()), root(2_f64.sqrt())]);
    }

    #[test]
    fn factors_of_a_head_or_of_all() {
        let length = norm(NormKind::Length, false);
        let of_a_head = run(&length, Some(vec![2.0, 1.0, 3.0]), Some(vec![0.0, 0.5, 0.0]));
        assert_eq!(of_a_head, [1.2, 1.3, 0.0, 0.0, 0.5, 3.0]);
        let of_all = run(&length, Some(vec![1.0, 1.0, 1.0, 1.0, 1.0, 7.0]), None);
        assert_eq!(of_all, [0.6, 0.8, 0.0, 0.0, 0.0, 7.0]);
        let part = Tensor::zeros((2, 1, 3), candle_core::DType::F64, &Device::Cpu).expect("heads");
        assert!(normalized(&part, &length, Some(vec![1.0; 4]), None).is_err());
    }
}
