//! Shapes with zeros and with sizes beyond all memory: read, told and converted, or refused; never a panic, memory or time
//! without end.

use proptest::prelude::*;
use serde_json::json;

use crate::kit::{Folder, width, write_raw};
use crate::limits::{limited, transposing};

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..4,
        1 => prop::sample::select(vec![1 << 20, 1 << 31, 1 << 32, 1 << 40, 1 << 62, u64::MAX]),
    ]
}

fn shape() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        // Of the rank that the mapping converts, and without elements.
        2 => (size(), any::<bool>()).prop_map(|(size, first)| if first { vec![0, size] } else { vec![size, 0] }),
        3 => prop::collection::vec(size(), 0..6),
    ]
}

/// Returns the bytes that a tensor takes; none where it would take more than the tests write.
fn bytes(shape: &[u64], dtype: &str) -> usize {
    let elements = if shape.contains(&0) {
        Some(0)
    } else {
        shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size))
    };
    elements.filter(|&count| count < 10_000).map_or(0, |count| count as usize * width(dtype))
}

/// Runs everything that looks at a checkpoint.
fn run(folder: &Folder, name: &str) {
    let convert = ["--mapping", "x.json", "--from", "x/s", "--to", "x/t", name, "out", "--force"];
    for args in [&["inspect", name][..], &["diff", name, name], &convert] {
        // In seconds of work, and kibibytes of memory.
        let run = limited(folder, "ulimit -t 30 && ulimit -v 3000000", args);
        assert!([0, 1].contains(&run.code), "{args:?}: {}", run.stderr);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_of_a_safetensors_file_comes_to_an_end(
        shapes in prop::collection::vec((shape(), prop::sample::select(vec!["F32", "U8", "BF16", "F64"])), 1..3),
    ) {
        let folder = Folder::new();
        folder.put("x.json", transposing());
        let (mut header, mut end) = (serde_json::Map::new(), 0);
        for (number, (shape, dtype)) in shapes.iter().enumerate() {
            let begin = end;
            end += bytes(shape, dtype);
            header.insert(
                format!("s.{number}"),
                json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, end] }),
            );
        }
        let text = serde_json::Value::Object(header).to_string();
        write_raw(&folder.join("in.safetensors"), &text, &vec![1; end]);
        run(&folder, "in.safetensors");
    }

    #[test]
    fn any_shape_of_an_array_of_numpy_comes_to_an_end(
        shape in shape(),
        (order, big) in (any::<bool>(), any::<bool>()),
    ) {
        let folder = Folder::new();
        folder.put("x.json", transposing());
        let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
        let (order, kind) = (if order { "True" } else { "False" }, if big { ">f4" } else { "<f4" });
        let header = format!("{{'descr': '{kind}', 'fortran_order': {order}, 'shape': ({}), }}\n", sizes.trim_end());
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(vec![1; bytes(&shape, "F32")]);
        folder.put("s.0.npy", &file);
        run(&folder, "s.0.npy");
    }
}
