//! What a cast of all floating-point tensors leaves as it is: types that stand for a value only together with a scale.

use std::collections::HashMap;

use super::keys::Keys;
use super::options::BindOptions;
use crate::catalog::Catalog;
use crate::diag::{BindCode, Collector, Diagnostic};
use crate::dtype::Dtype;

/// What a tensor with the scales of another one is called behind its name: DeepSeek's and transformers' FP8
/// (`weight_scale_inv`), compressed-tensors and ModelOpt (`weight_scale`, `weight_scale_2`), llama.cpp and Meta (`scale`).
const BEHIND: [&str; 4] = ["_scale_inv", "_scale", "_scale_2", "_scales"];
/// The same in the place of its last word.
const INSTEAD: [&str; 3] = ["scale", "scales", "scale_inv"];

/// A weight with a scale beside it is not its values alone: to cast the scale rounds it, and the weight would stay as it
/// is. Without a scale it is told what stays.
pub(super) fn check(catalog: &Catalog, keys: &Keys, options: &BindOptions, errors: &mut Collector) {
    let Some(wanted) = options.dtype else { return };
    let mut taken: Vec<usize> = keys.matched.iter().map(|matched| matched.tensor).collect();
    taken.extend(keys.kept.iter().map(|(tensor, _)| *tensor));
    taken.sort_unstable();
    let mut left: HashMap<Dtype, Vec<String>> = HashMap::default();
    for tensor in taken {
        let stored = &catalog.tensors[tensor];
        if !is_coded(stored.dtype) {
            continue;
        }
        let behind = BEHIND.iter().map(|end| format!("{}{end}", stored.key));
        let stem = stored.key.rsplit_once(['.', '/']).map(|(stem, _)| stem);
        let separator = stem.and_then(|stem| stored.key.get(stem.len()..=stem.len()));
        let instead = stem
            .zip(separator)
            .into_iter()
            .flat_map(|(stem, separator)| INSTEAD.iter().map(move |word| format!("{stem}{separator}{word}")));
        let scale = behind.chain(instead).find(|name| catalog.find(name).is_some());
        let Some(scale) = scale else {
            left.entry(stored.dtype).or_default().push(stored.key.clone());
            continue;
        };
        errors.push(
            Diagnostic::error(
                BindCode::ScaledCast,
                format!("{} weights with scales beside them are not cast", stored.dtype),
            )
            .file(&catalog.path)
            .tensor(&stored.key)
            .expected("weights whose values stand in them alone")
            .found(format!(
                "`{scale}`: the values are products, and --dtype {wanted} would round the scale alone"
            ))
            .help("leave --dtype out, or dequantise the checkpoint first"),
        );
    }
    let mut left: Vec<(Dtype, Vec<String>)> = left.into_iter().collect();
    left.sort_unstable();
    for (dtype, names) in left {
        let mut warning = Diagnostic::warning(
            BindCode::NotCast,
            format!("{dtype} stays as it is: --dtype casts F64, F32, F16 and BF16"),
        )
        .file(&catalog.path);
        warning.tensors = names;
        errors.push(warning);
    }
}

/// Returns whether elements are codes of floating-point values that are not cast.
fn is_coded(dtype: Dtype) -> bool {
    matches!(
        dtype,
        Dtype::F4
            | Dtype::F6E2M3
            | Dtype::F6E3M2
            | Dtype::F8E4M3
            | Dtype::F8E5M2
            | Dtype::F8E4M3Fnuz
            | Dtype::F8E5M2Fnuz
    ) || dtype.is_quantised()
}
