//! Types whose elements share bytes: steps counted in elements → steps counted in bytes. A cut inside a block is refused.

use super::{Check, Region, Requirement, Step, TensorPlan};
use crate::catalog::Catalog;
use crate::diag::{Collector, Diagnostic, PlanCode};
use crate::dtype::Dtype;
use crate::span::Span;

/// A move that would take a block apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut;

/// Turns the steps of a target whose elements share bytes into bytes.
pub(super) fn target_in_units(target: &mut TensorPlan) -> Result<(), Cut> {
    let (elements, _) = target.dtype.block();
    // The blocks of a quantised tensor lie along its fastest axis, each inside one row (ggml-org/ggml, `src/gguf.cpp`).
    let row = target.shape.last().copied().unwrap_or(1);
    if target.dtype.is_quantised() && !row.is_multiple_of(elements) {
        return Err(Cut);
    }
    target.steps.iter_mut().try_for_each(|step| step_in_units(step, target.dtype))
}

fn step_in_units(step: &mut Step, dtype: Dtype) -> Result<(), Cut> {
    if dtype.byte_width().is_some() {
        return Ok(());
    }
    match step {
        Step::Zero(region) => region_in_units(region, dtype),
        Step::Copy(copy) => {
            copy.source_offset = in_bytes(copy.source_offset, dtype)?;
            copy.target_offset = in_bytes(copy.target_offset, dtype)?;
            // Elements that are neighbours on both sides move together; a lone one would be cut out of its block.
            let Some((inner, outer)) = copy.loops.split_last_mut() else { return Err(Cut) };
            if (inner.source_step, inner.target_step) != (1, 1) {
                return Err(Cut);
            }
            inner.count = in_bytes(inner.count, dtype)?;
            for l in outer {
                l.source_step = in_bytes(l.source_step, dtype)?;
                l.target_step = in_bytes(l.target_step, dtype)?;
            }
            copy.loops.retain(|l| l.count != 1);
            Ok(())
        }
    }
}

pub(super) fn region_in_units(region: &mut Region, dtype: Dtype) -> Result<(), Cut> {
    if dtype.byte_width().is_some() {
        return Ok(());
    }
    region.offset = in_bytes(region.offset, dtype)?;
    let Some(((count, step), outer)) = region.loops.split_last_mut() else { return Err(Cut) };
    if *step != 1 {
        return Err(Cut);
    }
    *count = in_bytes(*count, dtype)?;
    outer.iter_mut().try_for_each(|(_, step)| in_bytes(*step, dtype).map(|bytes| *step = bytes))?;
    region.loops.retain(|(count, _)| *count != 1);
    Ok(())
}

pub(super) fn check_in_units(requirement: &mut Requirement, catalog: &Catalog, errors: &mut Collector) {
    let (source, failed) = match &mut requirement.check {
        Check::Zero { source, region } => {
            let dtype = catalog.tensors[source.tensor].dtype;
            (*source, region_in_units(region, dtype).is_err())
        }
        Check::Equal { first, second, loops } => {
            let dtype = catalog.tensors[first.0.tensor].dtype;
            (first.0, equal_in_units((&mut first.1, &mut second.1), loops, dtype).is_err())
        }
    };
    if failed {
        let stored = &catalog.tensors[source.tensor];
        errors.push(cut_inside_block(&stored.key, stored.dtype, requirement.rule.as_ref()));
    }
}

/// Elements that are neighbours on both sides are compared together.
fn equal_in_units(
    (first, second): (&mut u64, &mut u64),
    loops: &mut [(u64, u64, u64)],
    dtype: Dtype,
) -> Result<(), Cut> {
    if dtype.byte_width().is_some() {
        return Ok(());
    }
    (*first, *second) = (in_bytes(*first, dtype)?, in_bytes(*second, dtype)?);
    let run = loops.iter().position(|(_, a, b)| (*a, *b) == (1, 1)).ok_or(Cut)?;
    for (at, (count, a, b)) in loops.iter_mut().enumerate() {
        if at == run {
            *count = in_bytes(*count, dtype)?;
        } else {
            (*a, *b) = (in_bytes(*a, dtype)?, in_bytes(*b, dtype)?);
        }
    }
    Ok(())
}

fn in_bytes(elements: u64, dtype: Dtype) -> Result<u64, Cut> {
    dtype.byte_len(elements).ok_or(Cut)
}

/// Describes a move that would take apart a block of the tensor.
pub(super) fn cut_inside_block(key: &str, dtype: Dtype, rule: Option<&Span>) -> Diagnostic {
    let (elements, bytes) = dtype.block();
    let message =
        format!("the conversion would cut through blocks of {elements} elements of the type {dtype}");
    let help = if dtype.is_quantised() {
        "convert the model before it is quantised"
    } else {
        "unpack the tensor first, and convert that"
    };
    let error = Diagnostic::error(PlanCode::CutBlock, message)
        .tensor(key)
        .expected(format!(
            "cuts and moves of whole blocks along the fastest axis: {elements} elements, {bytes} bytes"
        ))
        .help(help);
    match rule {
        Some(rule) => error.rule(rule),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Loop, StridedCopy, ValueOp};
    use super::*;

    fn target(dtype: Dtype, shape: &[u64], offsets: (u64, u64), loops: &[(u64, u64, u64)]) -> TensorPlan {
        let loops =
            loops.iter().map(|&(count, source_step, target_step)| Loop { count, source_step, target_step });
        let copy = StridedCopy {
            source: crate::catalog::ExtentId::whole(0),
            source_offset: offsets.0,
            target_offset: offsets.1,
            loops: loops.collect(),
            value: ValueOp::Bits,
            again: false,
        };
        let (key, module) = ("a".to_owned(), String::new());
        TensorPlan { key, dtype, shape: shape.to_vec(), module, steps: vec![Step::Copy(copy)], rule: None }
    }

    /// The source's and the target's offset, and the loops.
    type Moved = (u64, u64, Vec<(u64, u64, u64)>);

    fn in_units(mut plan: TensorPlan) -> Option<Moved> {
        target_in_units(&mut plan).ok()?;
        match &plan.steps[0] {
            Step::Copy(copy) => {
                let loops = copy.loops.iter().map(|l| (l.count, l.source_step, l.target_step));
                Some((copy.source_offset, copy.target_offset, loops.collect()))
            }
            Step::Zero(_) => None,
        }
    }

    #[test]
    fn whole_blocks_move() {
        let rows = target(Dtype::Q8_0, &[10, 64], (128, 64), &[(3, 128, 64), (64, 1, 1)]);
        assert_eq!(in_units(rows), Some((136, 68, vec![(3, 136, 68), (68, 1, 1)])));
        let halves = target(Dtype::Q4K, &[2, 256], (256, 0), &[(2, 512, 256), (256, 1, 1)]);
        assert_eq!(in_units(halves), Some((144, 0, vec![(2, 288, 144), (144, 1, 1)])));
        let plain = target(Dtype::F32, &[3, 2], (0, 0), &[(3, 1, 2), (2, 3, 1)]);
        assert_eq!(in_units(plain), Some((0, 0, vec![(3, 1, 2), (2, 3, 1)])));
        let packed = target(Dtype::F4, &[6], (2, 4), &[(6, 1, 1)]);
        assert_eq!(in_units(packed), Some((1, 2, vec![(3, 1, 1)])));
    }

    #[test]
    fn cuts_and_transposes_inside_blocks_are_refused() {
        for plan in [
            // A transpose.
            target(Dtype::Q8_0, &[32, 64], (0, 0), &[(32, 1, 64), (64, 32, 1)]),
            // Half a block, at the beginning and as a whole.
            target(Dtype::Q8_0, &[1, 32], (16, 0), &[(32, 1, 1)]),
            target(Dtype::Q8_0, &[1, 32], (0, 16), &[(32, 1, 1)]),
            target(Dtype::Q8_0, &[4, 32], (0, 0), &[(4, 64, 32), (16, 1, 1)]),
            target(Dtype::Q8_0, &[4, 32], (0, 0), &[(4, 48, 32), (32, 1, 1)]),
            target(Dtype::Q8_0, &[4, 32], (0, 0), &[]),
            // The same bytes in other rows, which blocks would reach over.
            target(Dtype::Q8_0, &[8, 16], (0, 0), &[(128, 1, 1)]),
            target(Dtype::Q4K, &[8, 32], (0, 0), &[(256, 1, 1)]),
            target(Dtype::F6E2M3, &[6], (0, 0), &[(6, 1, 1)]),
        ] {
            assert_eq!(in_units(plan.clone()), None, "{plan:?}");
        }
        let text = format!("{:?}", cut_inside_block("w", Dtype::Q4K, None));
        assert!(
            text.contains("256 elements") && text.contains("Q4_K") && text.contains("144 bytes"),
            "{text}"
        );
    }

    #[test]
    fn equal_blocks_are_compared_whole() {
        let equal = |at: (u64, u64), loops: &[(u64, u64, u64)]| {
            let (mut at, mut loops) = (at, loops.to_vec());
            equal_in_units((&mut at.0, &mut at.1), &mut loops, Dtype::Q8_0).map(|()| (at, loops))
        };
        // Rows of 96 against rows of 64: two blocks of each.
        assert_eq!(equal((32, 0), &[(4, 96, 64), (64, 1, 1)]), Ok(((34, 0), vec![(4, 102, 68), (68, 1, 1)])));
        assert_eq!(equal((16, 0), &[(4, 96, 64), (32, 1, 1)]), Err(Cut));
        assert_eq!(equal((0, 0), &[(32, 1, 1), (4, 48, 64)]), Err(Cut));
        assert_eq!(equal((0, 0), &[(4, 96, 64)]), Err(Cut));
    }
}
