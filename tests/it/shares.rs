//! Tensors so large that several threads compare one: they find, and say, what one thread does.

use serde_json::json;

use crate::kit::{Folder, Run, Tensor, Tensors, mapping};

/// Of no power of two, and together more than one share.
const ROWS: u64 = 4099;
const COLUMNS: u64 = 4129;

/// A table of bytes in which neighbours in both directions are unlike.
fn table() -> Tensor {
    let bytes = (0..ROWS * COLUMNS).map(|at| table_at(at / COLUMNS, at % COLUMNS)).collect();
    Tensor::new("U8", &[ROWS, COLUMNS], bytes)
}

fn folder() -> Folder {
    let folder = Folder::new();
    let layouts = json!({
        "rows": { "tensors": { "tok": "tok: v e" } },
        "renamed": { "tensors": { "table": "tok: v e" } },
        "columns": { "tensors": { "table": "tok: e v" } },
        "padded": { "tensors": { "table": "(tok: v + _: pad) e" } },
    });
    let axes = json!({ "v": "vocabulary", "e": "width", "pad": "padding" });
    let text = mapping("f", axes, json!({ "tok": "v e" }), layouts);
    folder.put("m.json", text.replace(r#""unmapped":"error""#, r#""unmapped":"keep""#));
    folder
}

fn put(folder: &Folder, name: &str, tensors: &[(&str, Tensor)]) {
    let all: Tensors = tensors.iter().map(|(key, tensor)| ((*key).to_owned(), tensor.clone())).collect();
    folder.tensors(name, &all);
}

/// Verifies with one thread and with several; what they say must be the same.
fn verify(folder: &Folder, to: &str, more: &[&str]) -> Run {
    let run = |threads: &str| {
        let mut args =
            vec!["verify", "--mapping", "m.json", "--from", "f/rows", "--to", to, "--threads", threads];
        args.extend(more);
        args.extend(["in.safetensors", "out.safetensors"]);
        folder.run(&args)
    };
    let alone = run("1");
    for threads in ["2", "3"] {
        let shared = run(threads);
        assert_eq!((shared.code, &shared.stdout, &shared.stderr), (alone.code, &alone.stdout, &alone.stderr));
    }
    alone
}

fn says(run: &Run, texts: &[&str]) {
    assert_eq!(run.code, 3, "{}", run.stderr);
    for text in texts {
        assert!(run.stderr.contains(text), "`{text}` is not in:\n{}", run.stderr);
    }
}

#[test]
fn a_large_tensor_is_compared_by_several_threads_as_by_one() {
    let folder = folder();
    put(&folder, "in.safetensors", &[("tok", table())]);
    let transposed: Vec<u8> = (0..COLUMNS * ROWS).map(|at| table_at(at % ROWS, at / ROWS)).collect();
    for (to, shape, bytes) in
        [("f/renamed", [ROWS, COLUMNS], table().bytes), ("f/columns", [COLUMNS, ROWS], transposed)]
    {
        let mut target = Tensor::new("U8", &shape, bytes);
        put(&folder, "out.safetensors", &[("table", target.clone())]);
        assert_eq!(verify(&folder, to, &[]).code, 0, "{to}");
        // The last element of the last share.
        let last = target.bytes.len() - 1;
        target.bytes[last] ^= 0x40;
        put(&folder, "out.safetensors", &[("table", target.clone())]);
        let at = format!("the first at v={} e={}", ROWS - 1, COLUMNS - 1);
        says(&verify(&folder, to, &[]), &["elements differ of `tok` (1 elements)", &at]);
        // Elements of each share.
        for at in [5, last / 3, last / 2, last - 9000] {
            target.bytes[at] ^= 0x40;
        }
        put(&folder, "out.safetensors", &[("table", target)]);
        let at = match to {
            "f/renamed" => "the first at v=0 e=5",
            _ => "the first at v=5 e=0",
        };
        says(&verify(&folder, to, &[]), &["elements differ of `tok` (5 elements)", at]);
    }
}

fn table_at(row: u64, column: u64) -> u8 {
    (column * 7 + row * 11) as u8
}

#[test]
fn padding_of_a_large_tensor_is_zeros() {
    let folder = folder();
    let source = table();
    put(&folder, "in.safetensors", &[("tok", source.clone())]);
    let mut bytes = source.bytes;
    bytes.extend(vec![0; 3 * COLUMNS as usize]);
    let mut target = Tensor::new("U8", &[ROWS + 3, COLUMNS], bytes);
    put(&folder, "out.safetensors", &[("table", target.clone())]);
    let more = ["--axis", "pad=3"];
    assert_eq!(verify(&folder, "f/padded", &more).code, 0);
    let length = target.bytes.len();
    target.bytes[length - 1] = 9;
    target.bytes[length - 2 * COLUMNS as usize] = 1;
    put(&folder, "out.safetensors", &[("table", target)]);
    says(&verify(&folder, "f/padded", &more), &["elements that must be zero are not (2 elements)"]);
}

#[test]
fn a_large_tensor_that_passes_through_is_compared_by_several_threads_as_by_one() {
    let folder = folder();
    let small = Tensor::index(&[3, 5], 1);
    let halves: Vec<u8> = table().bytes.iter().flat_map(|&byte| half(byte).to_le_bytes()).collect();
    let wide: Vec<u8> = table().bytes.iter().flat_map(|&byte| f32::from(byte).to_le_bytes()).collect();
    for (from, to, more) in [
        (table(), table(), &[][..]),
        (
            Tensor::new("F32", &[ROWS, COLUMNS], wide),
            Tensor::new("BF16", &[ROWS, COLUMNS], halves),
            &["--dtype", "bf16"][..],
        ),
    ] {
        let cast = !more.is_empty();
        let table = match cast {
            true => Tensor::new("BF16", &[3, 5], (1..16).flat_map(|at| half(at).to_le_bytes()).collect()),
            false => small.clone(),
        };
        put(&folder, "in.safetensors", &[("tok", small.clone()), ("other", from)]);
        put(&folder, "out.safetensors", &[("table", table.clone()), ("other", to.clone())]);
        assert_eq!(verify(&folder, "f/renamed", more).code, 0);
        let mut wrong = to;
        let length = wrong.bytes.len();
        for at in [7, length / 2 + 1, length - 1] {
            wrong.bytes[at] ^= 0x40;
        }
        put(&folder, "out.safetensors", &[("table", table), ("other", wrong)]);
        let what =
            if cast { "elements differ (3" } else { "bytes of a tensor that passes through differ (3" };
        says(&verify(&folder, "f/renamed", more), &[what]);
    }
}

/// Returns the bits of a byte's value as bfloat16, which holds all of them.
fn half(byte: u8) -> u16 {
    (f32::from(byte).to_bits() >> 16) as u16
}
