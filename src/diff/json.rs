//! A report as JSON, for programs.

use serde_json::{Value, json};

use super::{Comparison, DiffReport, Element, Lone, Side, Stored, TensorDiff, Verdict};

/// The version of the document's schema.
pub const VERSION: u64 = 1;

impl DiffReport {
    /// Returns the report as a JSON document; `all` lists the bit-equal tensors too, not only their number.
    ///
    /// Numbers that JSON does not have are the texts `inf`, `-inf` and `nan`.
    pub fn json(&self, all: bool) -> Value {
        let listed = |tensor: &&TensorDiff| all || tensor.verdict != Verdict::BitEqual;
        let lone = |at: usize| self.only[at].iter().map(lone).collect::<Vec<_>>();
        json!({
            "version": VERSION,
            "tool": { "name": "qkvconv", "version": env!("CARGO_PKG_VERSION") },
            "equal": self.equal(),
            "tolerance": self.tolerance,
            "a": side(&self.sides[0]),
            "b": side(&self.sides[1]),
            "totals": {
                "only_a": self.only[0].len(),
                "only_b": self.only[1].len(),
                "differs": self.count(Verdict::Differs),
                "within_tolerance": self.count(Verdict::Within),
                "bit_equal": self.count(Verdict::BitEqual),
            },
            "only_a": lone(0),
            "only_b": lone(1),
            "tensors": self.tensors.iter().filter(listed).map(tensor).collect::<Vec<_>>(),
            "metadata": self.metadata.iter()
                .map(|entry| json!({ "key": entry.key, "a": entry.values[0], "b": entry.values[1] }))
                .collect::<Vec<_>>(),
        })
    }
}

fn side(side: &Side) -> Value {
    json!({
        "path": side.path.display().to_string(),
        "tensors": side.tensors,
        "left_out": side.left_out,
        "bytes": side.bytes,
    })
}

fn stored(stored: &Stored) -> Value {
    json!({ "dtype": stored.dtype.name(), "shape": stored.shape })
}

fn lone(lone: &Lone) -> Value {
    json!({ "key": lone.key, "dtype": lone.stored.dtype.name(), "shape": lone.stored.shape })
}

fn tensor(tensor: &TensorDiff) -> Value {
    json!({
        "key": tensor.key,
        "verdict": match tensor.verdict {
            Verdict::BitEqual => "bit_equal",
            Verdict::Within => "within_tolerance",
            Verdict::Differs => "differs",
        },
        "a": stored(&tensor.stored[0]),
        "b": stored(&tensor.stored[1]),
        "comparison": tensor.comparison.as_ref().map(comparison),
    })
}

fn comparison(comparison: &Comparison) -> Value {
    json!({
        "elements": comparison.elements,
        "differing": comparison.differing,
        "bitwise": comparison.bitwise,
        "first": comparison.first.as_ref().map(|first| json!({
            "index": first.index,
            "a": element(first.elements[0]),
            "b": element(first.elements[1]),
        })),
        "numbers": comparison.numbers.as_ref().map(|numbers| json!({
            "max_abs": number(numbers.max_abs),
            "max_abs_at": numbers.max_abs_at,
            "floats": numbers.floats.as_ref().map(|floats| json!({
                "max_rel": number(floats.max_rel),
                "max_ulp": floats.max_ulp,
                "cosine": floats.cosine,
                "nans": { "a": floats.nans[0], "b": floats.nans[1] },
                "infinities": { "a": floats.infinities[0], "b": floats.infinities[1] },
                "unmatched": floats.unmatched,
            })),
        })),
    })
}

fn element(element: Element) -> Value {
    let width = element.digits();
    let int =
        element.int().map(|int| u64::try_from(int).map_or_else(|_| json!(int as i64), |int| json!(int)));
    json!({
        "bits": format!("0x{:0width$x}", element.bits),
        "value": int.or_else(|| element.float().map(number)),
    })
}

fn number(value: f64) -> Value {
    if value.is_finite() {
        json!(value)
    } else if value.is_nan() {
        json!("nan")
    } else {
        json!(if value > 0.0 { "inf" } else { "-inf" })
    }
}
