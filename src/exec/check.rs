//! What a requirement found in the weights.

use crate::catalog::{Catalog, ExtentId};
use crate::diag::{DataCode, Diagnostic};
use crate::dtype::Dtype;
use crate::element::Element;
use crate::plan::{Check, Loop, Requirement, unit};

use super::jobs::check_loops;

/// How a range of a requirement's elements fails.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unmet {
    /// The first element that fails, by its number in the requirement's order.
    pub(super) first: u64,
    /// How many fail.
    pub(super) count: u64,
    /// The bits of the first, from the first source and from the second.
    pub(super) values: (u64, u64),
}

/// Compares elements of `width` bytes; with no second side, each must be zero apart from `ignored` bits.
pub(super) fn compare(
    first: &[u8],
    second: Option<&[u8]>,
    width: usize,
    ignored: u64,
    start: u64,
) -> Option<Unmet> {
    if second.is_some_and(|second| first == second) {
        return None;
    }
    let mut unmet: Option<Unmet> = None;
    for (at, bytes) in first.chunks_exact(width).enumerate() {
        let value = bits(bytes);
        let wanted = second.map_or(0, |second| bits(&second[at * width..(at + 1) * width]));
        if (value ^ wanted) & !ignored != 0 {
            let found =
                unmet.get_or_insert(Unmet { first: start + at as u64, count: 0, values: (value, wanted) });
            found.count += 1;
        }
    }
    unmet
}

fn bits(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Returns the bits that differ between the zeros of a type: the sign.
pub(super) fn zero_signs(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::F64 => 1 << 63,
        Dtype::F32 => 1 << 31,
        Dtype::F16 | Dtype::BF16 => 1 << 15,
        Dtype::F8E4M3 | Dtype::F8E5M2 => 1 << 7,
        Dtype::C64 => 1 << 63 | 1 << 31,
        // Two in a byte.
        Dtype::F4 => 0x88,
        // The others have one zero, or cannot be told apart byte by byte.
        _ => 0,
    }
}

/// Describes a requirement that does not hold.
pub(super) fn diagnostic(requirement: &Requirement, unmet: &Unmet, catalog: &Catalog) -> Diagnostic {
    let differ = |total: u64| format!("{} of {total}", unmet.count);
    let mut diagnostic = match &requirement.check {
        Check::Equal { first, second, loops } => {
            let total = loops.iter().map(|l| l.0).product();
            let (a, b) = (&catalog.tensors[first.0.tensor], &catalog.tensors[second.0.tensor]);
            let a_at = place(catalog, *first, &check_loops(loops.iter().map(|l| (l.0, l.1))), unmet.first);
            let b_at = place(catalog, *second, &check_loops(loops.iter().map(|l| (l.0, l.2))), unmet.first);
            Diagnostic::error(DataCode::Unequal, requirement.meaning).tensor(&a.key).tensor(&b.key).found(
                format!(
                    "{a_at} is {}, {b_at} is {}; {} elements differ",
                    show(a.dtype, unmet.values.0),
                    show(b.dtype, unmet.values.1),
                    differ(total)
                ),
            )
        }
        Check::Zero { source, region } => {
            let total = region.loops.iter().map(|l| l.0).product();
            let meta = &catalog.tensors[source.tensor];
            let at = place(
                catalog,
                (*source, region.offset),
                &check_loops(region.loops.iter().copied()),
                unmet.first,
            );
            Diagnostic::error(DataCode::Nonzero, requirement.meaning).tensor(&meta.key).found(format!(
                "{at} is {}; {} elements are not zero",
                show(meta.dtype, unmet.values.0),
                differ(total)
            ))
        }
    };
    if !requirement.help.is_empty() {
        diagnostic = diagnostic.help(&requirement.help);
    }
    match &requirement.rule {
        Some(rule) => diagnostic.rule(rule),
        None => diagnostic,
    }
}

/// Describes two sides whose elements have not even the same width.
pub(super) fn unlike(requirement: &Requirement, catalog: &Catalog) -> Option<Diagnostic> {
    let Check::Equal { first, second, .. } = &requirement.check else { return None };
    let (a, b) = (&catalog.tensors[first.0.tensor], &catalog.tensors[second.0.tensor]);
    let diagnostic = Diagnostic::error(DataCode::Unequal, requirement.meaning).tensor(&a.key).tensor(&b.key);
    (a.dtype != b.dtype).then(|| diagnostic.found(format!("elements of type {} and {}", a.dtype, b.dtype)))
}

/// Returns the index of an element in its tensor's shape, `[3, 0, 17]`.
fn place(catalog: &Catalog, (id, offset): (ExtentId, u64), loops: &[Loop], element: u64) -> String {
    let mut unit_offset = offset;
    for l in loops {
        unit_offset += element / l.target_step % l.count * l.source_step;
    }
    // A unit of a type whose elements share bytes is a byte: the first element of its block stands for it.
    let (elements, bytes) = catalog.tensors[id.tensor].dtype.block();
    let element = if elements == 1 { unit_offset } else { unit_offset / bytes * elements };
    format!("{:?}", catalog.index_at(id, element))
}

/// Returns a value as its bits, and as a number where it is a float.
fn show(dtype: Dtype, bits: u64) -> String {
    let width = 2 * unit(dtype) as usize;
    match (Element { dtype, bits }).float().filter(|_| dtype.is_computable()) {
        Some(number) => format!("0x{bits:0width$x} ({number:?})"),
        None => format!("0x{bits:0width$x}"),
    }
}
