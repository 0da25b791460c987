//! Signs that need a closer look at a file: its structure, or the fields of the message that it is.

use super::sample::{Field, Sample};

/// Whether nothing is in it.
pub(super) fn is_empty(sample: &Sample<'_>) -> bool {
    sample.head.is_empty()
}

/// A version of 32 bits, the length of a text in 16 bits, and the text, which ends in a zero byte.
pub(super) fn is_ctranslate2(sample: &Sample<'_>) -> bool {
    let Some((version, rest)) = sample.head.split_first_chunk::<4>() else { return false };
    let Some((length, rest)) = rest.split_first_chunk::<2>() else { return false };
    let name = rest.get(..usize::from(u16::from_le_bytes(*length)));
    u32::from_le_bytes(*version) < 100 && name.is_some_and(|name| name.ends_with(b"Spec\0"))
}

/// The description of a network, or the weights beside one.
pub(super) fn is_openvino(sample: &Sample<'_>) -> bool {
    let is_network = |head: &[u8]| {
        head.trim_ascii_start().starts_with(b"<?xml") && head.windows(5).any(|part| part == b"<net ")
    };
    is_network(sample.head) || sample.beside("xml").is_some_and(|head| is_network(&head))
}

/// Whether the fields are of these numbers alone.
fn within(fields: &[Field], numbers: std::ops::RangeInclusive<u64>) -> bool {
    fields.iter().all(|field| numbers.contains(&field.number))
}

fn has(fields: &[Field], number: u64, wire: u8) -> bool {
    fields.contains(&Field { number, wire })
}

/// `ir_version`, `graph` and `opset_import`.
pub(super) fn is_onnx(fields: &[Field]) -> bool {
    within(fields, 1..=26) && has(fields, 1, 0) && has(fields, 7, 2) && has(fields, 8, 2)
}

/// `specificationVersion`, `description`, and a model of some type, whose numbers begin at 200.
pub(super) fn is_core_ml(fields: &[Field]) -> bool {
    let is_type = |field: &Field| field.wire == 2 && (200..=3000).contains(&field.number);
    has(fields, 1, 0) && has(fields, 2, 2) && fields.iter().any(is_type)
}

/// `saved_model_schema_version` and `meta_graphs`.
pub(super) fn is_saved_model(fields: &[Field]) -> bool {
    within(fields, 1..=2) && has(fields, 1, 0) && has(fields, 2, 2)
}

/// `meta_info_def`, `graph_def` and `saver_def`.
pub(super) fn is_meta_graph(fields: &[Field]) -> bool {
    within(fields, 1..=7) && has(fields, 1, 2) && has(fields, 2, 2) && has(fields, 3, 2)
}

/// `node`s, and `versions` or a `library`.
pub(super) fn is_graph(fields: &[Field]) -> bool {
    within(fields, 1..=5) && has(fields, 1, 2) && (has(fields, 4, 2) || has(fields, 2, 2))
}
