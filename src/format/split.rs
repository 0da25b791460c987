//! Whether the parts that were opened are all that belong together, by what they say themselves.

use super::member::Membership;
use super::part::Part;
use super::{OpenOptions, foreign};
use crate::diag::{Collector, Diagnostic, FormatCode};

/// Checks what the files themselves say of others; `listed` where an index names the files.
pub(super) fn check(parts: &[Part], listed: bool, options: &OpenOptions, out: &mut Collector) {
    if options.allow_incomplete {
        return;
    }
    for part in parts {
        // An index is written only where each file holds whole tensors.
        if let Some(Membership::Slices { displaced }) = part.member
            && (displaced || !listed)
        {
            out.push(foreign::SLICES.error(part.path()));
        }
    }
    check_split(parts, out);
}

/// Checks that the files of a split GGUF are all there.
fn check_split(parts: &[Part], out: &mut Collector) {
    let of = |part: &Part| match part.member {
        Some(Membership::Split(split)) => Some(split),
        _ => None,
    };
    let Some((first, part)) = parts.iter().find_map(|part| Some((of(part)?, part))) else { return };
    let mut numbers: Vec<u64> = parts.iter().filter_map(of).map(|split| split.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let is_whole = numbers.len() == parts.len()
        && numbers.len() as u64 == first.count
        && parts.iter().filter_map(of).all(|split| split.count == first.count && split.number < first.count);
    let fail = |message: String| Diagnostic::error(FormatCode::MissingShard, message).file(part.path());
    if !is_whole {
        let message = format!(
            "it says that it is part {} of {} GGUF files (`split.no`, `split.count`)",
            first.number + 1,
            first.count
        );
        let found: Vec<String> = numbers.iter().map(|number| (number + 1).to_string()).collect();
        let help = "fetch all parts under their own names, `NAME-00001-of-00003.gguf`, and name one of them; to read this file \
                    by itself, give `--allow incomplete`";
        out.push(fail(message).found(format!("{} of {}", found.join(", "), first.count)).help(help));
        return;
    }
    let tensors: usize = parts.iter().map(|part| part.tensors.len()).sum();
    if let Some(stated) = first.tensors
        && stated != tensors as u64
        // What cannot be read is reported already.
        && !out.has_errors()
    {
        let message = format!(
            "its parts hold {tensors} tensors and say that they hold {stated} (`split.tensors.count`)"
        );
        out.push(fail(message).help("fetch all parts again: they are not of one checkpoint"));
    }
}
