//! Checkpoints to convert, as safetensors files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// A tensor's name and shape.
pub(crate) type Tensor = (String, Vec<u64>);

/// How the weights are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// Numbers near 0.02 of either sign, no two runs of them alike.
    Random,
    /// Zeros that take no place on the disk: the file is a hole behind its header.
    Holes,
}

/// Writes a checkpoint and returns its size in bytes.
pub(crate) fn write(path: &Path, dtype: &str, tensors: &[Tensor], weights: Weights) -> u64 {
    let width = if dtype == "F32" { 4 } else { 2 };
    let mut header = String::from("{");
    let mut end = 0_u64;
    for (at, (name, shape)) in tensors.iter().enumerate() {
        let start = end;
        end += shape.iter().product::<u64>() * width;
        let comma = if at == 0 { "" } else { "," };
        header += &format!(
            r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        );
    }
    header.push('}');
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let file = File::create(path).expect("is made");
    let mut out = BufWriter::with_capacity(1 << 20, &file);
    out.write_all(&(header.len() as u64).to_le_bytes()).expect("writes");
    out.write_all(header.as_bytes()).expect("writes");
    let size = 8 + header.len() as u64 + end;
    if weights == Weights::Random {
        // The exponent is that of 2^-6; for F16 bits 10 to 14 hold it, for BF16 and F32 the upper half bits 7 to 14.
        let (kept, set) = match dtype {
            "F32" => (0x807f_ffff_807f_ffff_u64, 0x3c80_0000_3c80_0000_u64),
            "BF16" => (0x807f_807f_807f_807f, 0x3c80_3c80_3c80_3c80),
            _ => (0x83ff_83ff_83ff_83ff, 0x2400_2400_2400_2400),
        };
        let mut state = 1_u64;
        for _ in 0..end.div_ceil(8) {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            out.write_all(&(state & kept | set).to_le_bytes()).expect("writes");
        }
    }
    out.flush().expect("writes");
    drop(out);
    file.set_len(size).expect("has room");
    file.sync_all().expect("is on the disk");
    size
}

/// Returns the tensors of an encoder with thirds of q, k and v, as the layout `fused` of encoder.json has them; a layer of
/// width 1024 has 50 MB as F32.
pub(crate) fn encoder(layers: u64, width: u64) -> Vec<Tensor> {
    let (e, f) = (width, 4 * width);
    let kinds: [(&str, Vec<u64>); 12] = [
        ("self_attn.in_proj_weight", vec![3 * e, e]),
        ("self_attn.in_proj_bias", vec![3 * e]),
        ("self_attn.out_proj.weight", vec![e, e]),
        ("self_attn.out_proj.bias", vec![e]),
        ("linear1.weight", vec![f, e]),
        ("linear1.bias", vec![f]),
        ("linear2.weight", vec![e, f]),
        ("linear2.bias", vec![e]),
        ("norm1.weight", vec![e]),
        ("norm1.bias", vec![e]),
        ("norm2.weight", vec![e]),
        ("norm2.bias", vec![e]),
    ];
    let layer = |l| kinds.iter().map(move |(name, shape)| (format!("layers.{l}.{name}"), shape.clone()));
    (0..layers).flat_map(layer).collect()
}

/// Returns about that many tensors of a Mixtral with many small experts, as its layout `hf-v4` names them.
pub(crate) fn experts(count: u64) -> Vec<Tensor> {
    let (layers, e, f) = (64, 8, 6);
    let experts = count / layers / 3;
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![10, e])];
    for l in 0..layers {
        let name = |rest: &str| format!("model.layers.{l}.{rest}.weight");
        all.extend([
            (name("input_layernorm"), vec![e]),
            (name("self_attn.q_proj"), vec![12, e]),
            (name("self_attn.k_proj"), vec![4, e]),
            (name("self_attn.v_proj"), vec![4, e]),
            (name("self_attn.o_proj"), vec![e, 12]),
            (name("post_attention_layernorm"), vec![e]),
            (name("block_sparse_moe.gate"), vec![experts, e]),
        ]);
        for x in 0..experts {
            let expert = |rest: &str| name(&format!("block_sparse_moe.experts.{x}.{rest}"));
            all.extend([(expert("w1"), vec![f, e]), (expert("w3"), vec![f, e]), (expert("w2"), vec![e, f])]);
        }
    }
    all.extend([("model.norm.weight".to_owned(), vec![e]), ("lm_head.weight".to_owned(), vec![10, e])]);
    all
}

/// Returns attention modules that make about that many tensors with one for each of 16 heads, as the layout
/// `pytorch-fused` of the family `attention` names them.
pub(crate) fn modules(count: u64) -> Vec<Tensor> {
    let (h, d, e) = (16, 2, 12);
    let each = |m| {
        let name = |rest: &str| format!("tower.{}.block.{}.attn.{rest}", m / 50, m % 50);
        [
            (name("in_proj_weight"), vec![3 * h * d, e]),
            (name("in_proj_bias"), vec![3 * h * d]),
            (name("out_proj.weight"), vec![e, h * d]),
            (name("out_proj.bias"), vec![e]),
        ]
    };
    // q, k, v with a weight and a bias each and the columns of the output, per head; one output bias.
    (0..count / (7 * h + 1)).flat_map(each).collect()
}
