//! Types of less than a byte: steps counted in elements → steps counted in bytes. A cut inside a byte is refused.

use super::{Check, Region, Requirement, Step};
use crate::catalog::Catalog;
use crate::diag::{Collector, Diagnostic};
use crate::dtype::Dtype;
use crate::span::Span;

/// Turns the steps of a type of less than a byte into bytes; the error is the type's width in bits.
pub(super) fn step_in_units(step: &mut Step, dtype: Dtype) -> Result<(), u64> {
    let bits = dtype.bits();
    if bits.is_multiple_of(8) {
        return Ok(());
    }
    match step {
        Step::Zero(region) => region_in_units(region, bits),
        Step::Copy(copy) => {
            copy.source_offset = in_bytes(copy.source_offset, bits)?;
            copy.target_offset = in_bytes(copy.target_offset, bits)?;
            // Elements that are neighbours on both sides move together; a lone one would be cut out of its byte.
            let Some((inner, outer)) = copy.loops.split_last_mut() else { return Err(bits) };
            if (inner.source_step, inner.target_step) != (1, 1) {
                return Err(bits);
            }
            inner.count = in_bytes(inner.count, bits)?;
            for l in outer {
                l.source_step = in_bytes(l.source_step, bits)?;
                l.target_step = in_bytes(l.target_step, bits)?;
            }
            copy.loops.retain(|l| l.count != 1);
            Ok(())
        }
    }
}

pub(super) fn region_in_units(region: &mut Region, bits: u64) -> Result<(), u64> {
    if bits.is_multiple_of(8) {
        return Ok(());
    }
    region.offset = in_bytes(region.offset, bits)?;
    let Some(((count, step), outer)) = region.loops.split_last_mut() else { return Err(bits) };
    if *step != 1 {
        return Err(bits);
    }
    *count = in_bytes(*count, bits)?;
    outer.iter_mut().try_for_each(|(_, step)| in_bytes(*step, bits).map(|bytes| *step = bytes))?;
    region.loops.retain(|(count, _)| *count != 1);
    Ok(())
}

pub(super) fn check_in_units(requirement: &mut Requirement, catalog: &Catalog, errors: &mut Collector) {
    let (source, failed) = match &mut requirement.check {
        Check::Zero { source, region } => {
            let bits = catalog.tensors[*source].dtype.bits();
            (*source, region_in_units(region, bits).is_err())
        }
        Check::Equal { first, .. } => (first.0, !catalog.tensors[first.0].dtype.bits().is_multiple_of(8)),
    };
    if failed {
        let stored = &catalog.tensors[source];
        errors.push(cut_inside_byte(&stored.key, stored.dtype.bits(), requirement.rule.as_ref()));
    }
}

fn in_bytes(elements: u64, bits: u64) -> Result<u64, u64> {
    let total = elements * bits;
    if total.is_multiple_of(8) { Ok(total / 8) } else { Err(bits) }
}

pub(super) fn cut_inside_byte(key: &str, bits: u64, rule: Option<&Span>) -> Diagnostic {
    let error =
        Diagnostic::error("plan/cut-block", "the conversion would cut through a byte of packed elements")
            .tensor(key)
            .expected(format!(
                "cuts and moves of whole bytes: {} elements of {bits} bits at least",
                8 / gcd(8, bits)
            ))
            .help("unpack the tensor first, or leave it out with --drop");
    match rule {
        Some(rule) => error.rule(rule),
        None => error,
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
