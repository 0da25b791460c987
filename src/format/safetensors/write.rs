//! Laying out a safetensors file: its header, and where the data lies.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::header::{LIMIT, METADATA};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::format::layout::{FileLayout, OutputTensor, no_json};

/// Lays out one file. Wider types come first, which aligns every tensor.
///
/// Refused are a tensor named `__metadata__`, quantised types and a header of more than 100,000,000 bytes, which no reader would accept.
pub(in crate::format) fn lay_out(
    tensors: &[OutputTensor<'_>],
    sizes: &[u64],
    metadata: &BTreeMap<String, String>,
    out: &mut Collector,
) -> Result<FileLayout, Errors> {
    lay_out_within(LIMIT, tensors, sizes, metadata, out)
}

/// Does the work of [`lay_out`] for a given limit of a header's length.
fn lay_out_within(
    limit: u64,
    tensors: &[OutputTensor<'_>],
    sizes: &[u64],
    metadata: &BTreeMap<String, String>,
    out: &mut Collector,
) -> Result<FileLayout, Errors> {
    for tensor in tensors.iter().filter(|tensor| tensor.key == METADATA) {
        let message = "no tensor can be named `__metadata__` in safetensors";
        let help =
            "give it another name in the target layout, or put a prefix before all with `--add-prefix`";
        out.push(Diagnostic::error(FormatCode::ReservedName, message).tensor(tensor.key).help(help));
    }
    for tensor in tensors.iter().filter(|tensor| tensor.dtype.is_quantised()) {
        let message = format!("safetensors has no type for the quantised blocks of {}", tensor.dtype);
        let help = "write a GGUF file with `--format gguf`, or dequantise the checkpoint first";
        out.push(Diagnostic::error(FormatCode::CannotHold, message).tensor(tensor.key).help(help));
    }
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&tensor| std::cmp::Reverse(tensors[tensor].dtype.bits()));
    let mut end = 0;
    let mut entries = Vec::with_capacity(order.len());
    let mut offsets = vec![0; tensors.len()];
    for tensor in order {
        let begin = end;
        end += sizes[tensor];
        entries.push((tensors[tensor], [begin, end]));
        offsets[tensor] = begin;
    }
    let header = header_bytes(&HeaderText { metadata, entries: &entries })?;
    let length = header.len() as u64 - 8;
    if length > limit {
        let message = format!("the header would be {length} bytes long, over the limit of {limit}");
        // Half of what would do if all parts of the header were of one size.
        let most = u128::from(end) * u128::from(limit) / u128::from(length) / 2;
        let help = format!("write more files into a folder, with `--max-shard-size {}`", most.max(1));
        out.push(Diagnostic::error(FormatCode::HeaderTooLarge, message).help(help));
    }
    let start = header.len() as u64;
    offsets.iter_mut().for_each(|offset| *offset += start);
    Ok(FileLayout {
        pieces: vec![(0, header)],
        size: start + end,
        checksums: Vec::new(),
        offsets,
        beside: None,
    })
}

/// A header's JSON text. The entries are written in the order of their offsets, the metadata sorted, so that
/// the bytes depend on nothing else; the reference writer keeps the metadata in a `HashMap` and its bytes
/// vary.
struct HeaderText<'a> {
    metadata: &'a BTreeMap<String, String>,
    entries: &'a [(OutputTensor<'a>, [u64; 2])],
}

#[derive(serde::Serialize)]
struct EntryText<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    data_offsets: [u64; 2],
}

impl Serialize for HeaderText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for &(tensor, data_offsets) in self.entries {
            let entry = EntryText { dtype: tensor.dtype.name(), shape: tensor.shape, data_offsets };
            map.serialize_entry(tensor.key, &entry)?;
        }
        map.end()
    }
}

/// Returns the length and the text of a header.
fn header_bytes(text: &HeaderText<'_>) -> Result<Vec<u8>, Errors> {
    let mut bytes = vec![0; 8];
    serde_json::to_writer(&mut bytes, text).map_err(|error| no_json("the header", &error))?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    let length = bytes.len() as u64 - 8;
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    fn tensor<'a>(key: &'a str, dtype: Dtype, shape: &'a [u64]) -> OutputTensor<'a> {
        OutputTensor { key, dtype, shape }
    }

    #[test]
    fn quantised_types_are_refused() {
        let tensors = [tensor("a", Dtype::Q8_0, &[2, 32]), tensor("b", Dtype::F32, &[4])];
        let mut out = Collector::default();
        lay_out(&tensors, &[68, 16], &BTreeMap::new(), &mut out).expect("lays out");
        let errors = out.finish(()).expect_err("refused");
        let diagnostic = &errors.diagnostics()[0];
        assert_eq!(
            (diagnostic.code.as_str(), &diagnostic.tensors[..]),
            ("format/cannot-hold", &["a".to_owned()][..])
        );
    }

    #[test]
    fn a_header_over_the_limit_is_refused_with_advice() {
        let tensors = [tensor("a", Dtype::U8, &[4]), tensor("b", Dtype::U8, &[4])];
        let refused = |tensors: &[OutputTensor<'_>]| {
            let mut out = Collector::default();
            let sizes = vec![4; tensors.len()];
            lay_out_within(60, tensors, &sizes, &BTreeMap::new(), &mut out).expect("lays out");
            out.finish(()).err().map(|errors| errors.diagnostics()[0].clone())
        };
        let diagnostic = refused(&tensors).expect("refused");
        assert_eq!(diagnostic.code, "format/header-too-large");
        assert!(diagnostic.help.expect("has help").contains("--max-shard-size"));
        assert!(refused(&tensors[..1]).is_none());
    }

    #[test]
    fn a_million_and_a_half_tensors_are_too_many_for_one_file() {
        use crate::format::Format;
        use crate::format::output::{OutputOptions, lay_out};
        let keys: Vec<String> = (0..1_500_000)
            .map(|at| format!("layers.{}.mlp.experts.{}.w.weight", at / 1000, at % 1000))
            .collect();
        let shape = [3, 5];
        let tensors: Vec<OutputTensor<'_>> =
            keys.iter().map(|key| tensor(key, Dtype::BF16, &shape)).collect();
        let refused = |max_shard_size| {
            let format = Format::Safetensors;
            let options = OutputOptions { format, name: None, max_shard_size, template: None };
            lay_out(&tensors, &BTreeMap::new(), &options).err()
        };
        let errors = refused(None).expect("refused");
        let [diagnostic] = errors.diagnostics() else { panic!("{errors:?}") };
        assert_eq!(diagnostic.code, "format/header-too-large");
        // The size that is advised is one that does.
        let help = diagnostic.help.as_deref().expect("has help");
        let advised = help.trim_end_matches('`').rsplit(' ').next().expect("a word");
        assert!(refused(Some(advised.parse().expect("a size"))).is_none(), "{help}");
    }
}
