//! What conversions cost beside a plain copy of the same file, how much memory they take, and how both grow.
//!
//! `cargo bench` runs everything in small sizes, `QKVCONV_BENCH=full cargo bench` in the sizes of the README;
//! `cargo bench -- jobs memory` runs some of the tables.

// Tables are what it is for.
#![allow(clippy::print_stdout)]

mod checkpoint;
mod measure;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use checkpoint::{Tensor, Weights, encoder, experts, modules, write};
use measure::{Taken, copy, copy_by_two, run};

/// The mapping of the encoder.
const ENCODER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/encoder.json");

/// The sizes of a run.
struct Scale {
    /// Layers of the encoder, 50 MB each as F32.
    layers: u64,
    /// How often everything is measured; the least counts.
    rounds: usize,
    /// Bytes and width of the sparse checkpoints whose conversion's memory is measured.
    memory: &'static [(u64, u64)],
    /// Bytes of those that are nearly one tensor.
    one_tensor: &'static [u64],
    /// Numbers of tensors.
    tensors: &'static [u64],
}

const SMALL: Scale = Scale {
    layers: 4,
    rounds: 3,
    memory: &[(1 << 28, 1024), (1 << 30, 1024)],
    one_tensor: &[1 << 28, 1 << 30],
    tensors: &[6_250, 12_500, 25_000, 50_000],
};
const FULL: Scale = Scale {
    layers: 24,
    rounds: 7,
    memory: &[(1 << 30, 1024), (20 << 30, 4096)],
    one_tensor: &[1 << 30, 8 << 30],
    tensors: &[25_000, 50_000, 100_000, 200_000],
};

/// Makes the tensors of a checkpoint of about so many.
type Make = fn(u64) -> Vec<Tensor>;

/// One of the tables.
type Table = (&'static str, fn(&Bench));

const TABLES: &[Table] = &[
    ("jobs", jobs),
    ("memory", memory),
    ("bytes", bytes),
    ("tensors", tensors),
    ("errors", errors),
    ("commands", commands),
];

/// Where and how much.
struct Bench {
    folder: tempfile::TempDir,
    scale: &'static Scale,
}

fn main() {
    let wanted: Vec<String> = env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_full = env::var("QKVCONV_BENCH").is_ok_and(|size| size == "full");
    let parent = env::var("QKVCONV_BENCH_FOLDER").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").to_owned());
    let folder = tempfile::tempdir_in(parent).expect("a folder");
    let bench = Bench { folder, scale: if is_full { &FULL } else { &SMALL } };
    for (name, table) in TABLES {
        if wanted.is_empty() || wanted.iter().any(|one| one == name) {
            table(&bench);
        }
    }
}

/// A conversion: a name, the types of the weights, `--to`, other arguments, and the most it may take beside the copy.
type Job = (&'static str, &'static str, &'static str, &'static [&'static str], f64);

const NONE: &[&str] = &["--verify", "none"];

const JOBS: &[Job] = &[
    ("rename only", "F32", "renamed", NONE, 1.1),
    ("fused to separate", "F32", "separate", NONE, 1.3),
    ("fused to per head", "F32", "per-head", NONE, 1.3),
    ("every matrix transposed", "F32", "tf", NONE, 1.8),
    ("every matrix transposed", "BF16", "tf", NONE, 2.5),
    ("every matrix transposed", "F16", "tf", NONE, 2.5),
    ("cast to bf16", "F32", "renamed", &["--verify", "none", "--dtype", "bf16"], f64::INFINITY),
    ("rename, read back", "F32", "renamed", &["--verify", "readback"], f64::INFINITY),
    ("per head, read back", "F32", "per-head", &["--verify", "readback"], f64::INFINITY),
    ("transposed, read back", "F32", "tf", &["--verify", "readback"], f64::INFINITY),
    ("rename, verified", "F32", "renamed", &[], f64::INFINITY),
    ("per head, verified", "F32", "per-head", &[], 3.5),
    ("transposed, verified", "F32", "tf", &[], f64::INFINITY),
];

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn checkpoint(&self, name: &str, dtype: &str, tensors: &[Tensor], weights: Weights) -> (PathBuf, u64) {
        let path = self.path(name);
        let size = write(&path, dtype, tensors, weights);
        (path, size)
    }

    /// Converts with two threads; the output is removed again.
    fn convert(&self, from: &str, to: &str, source: &Path, more: &[&str]) -> Taken {
        let out = self.path("out.safetensors");
        let mut arguments = vec!["--from", from, "--to", to, "--threads", "2", "--quiet"];
        arguments.extend(more);
        let (source, out_text) = (source.to_string_lossy(), out.to_string_lossy());
        arguments.extend([&*source, &*out_text]);
        let taken = run(self.folder.path(), &arguments, 0);
        // Before it is on the disk: writing it back would disturb what comes next.
        let _ = fs::remove_file(&out);
        taken
    }

    /// Converts the encoder of encoder.json.
    fn encode(&self, to: &str, source: &Path, more: &[&str]) -> Taken {
        let arguments: Vec<&str> =
            ["--mapping", ENCODER, "--axis", "h=16"].iter().chain(more).copied().collect();
        self.convert("encoder/fused", &format!("encoder/{to}"), source, &arguments)
    }

    /// Measures a plain copy of the source, one by two threads, and the conversion, in turns; returns the least of each.
    fn beside_copies(&self, source: &Path, mut convert: impl FnMut() -> Taken) -> [Taken; 3] {
        let copied_to = self.path("copy");
        let mut all = || {
            let copies = [copy, copy_by_two].map(|copy| {
                let copied = copy(source, &copied_to);
                let _ = fs::remove_file(&copied_to);
                copied
            });
            [copies[0], copies[1], convert()]
        };
        let first = all();
        (1..self.scale.rounds).fold(first, |least, _| {
            let next = all();
            std::array::from_fn(|at| least[at].least(next[at]))
        })
    }
}

fn jobs(bench: &Bench) {
    println!(
        "\n## Conversions beside a plain copy of the source: two threads, warm cache, least of {} turns\n",
        bench.scale.rounds
    );
    println!(
        "| conversion | weights | copy | time | ratio | at most | two threads' copy | ratio | processor: copy | two threads' copy | conversion | anonymous memory |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let mut source: Option<(&str, PathBuf, u64)> = None;
    for &(name, dtype, to, more, most) in JOBS {
        if source.as_ref().is_none_or(|(other, ..)| *other != dtype) {
            let (path, size) = bench.checkpoint(
                "encoder.safetensors",
                dtype,
                &encoder(bench.scale.layers, 1024),
                Weights::Random,
            );
            source = Some((dtype, path, size));
        }
        let Some((_, path, size)) = &source else { continue };
        let [copied, by_two, taken] = bench.beside_copies(path, || bench.encode(to, path, more));
        let ratio = |taken: Duration, copied: Duration| taken.as_secs_f64() / copied.as_secs_f64();
        let most = if most.is_finite() { format!("{most}") } else { String::new() };
        println!(
            "| {name} | {dtype}, {} MB | {} | {} | {:.2} | {most} | {} | {:.2} | {} | {} | {} | {} MiB |",
            size / 1_000_000,
            seconds(copied.wall),
            seconds(taken.wall),
            ratio(taken.wall, copied.wall),
            seconds(by_two.wall),
            ratio(taken.wall, by_two.wall),
            seconds(copied.cpu),
            seconds(by_two.cpu),
            seconds(taken.cpu),
            taken.anonymous >> 20
        );
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn memory(bench: &Bench) {
    println!(
        "\n## Anonymous memory of conversions with default verification, of checkpoints that are holes\n"
    );
    println!("| checkpoint | conversion | time | anonymous memory |");
    println!("|---|---|--:|--:|");
    let print = |what: String, size: u64, to: &str, taken: Taken| {
        let size = size as f64 / f64::from(1 << 30);
        println!(
            "| {size:.1} GiB, {what} | {to} | {} | {} MiB |",
            seconds(taken.wall),
            taken.anonymous >> 20
        );
    };
    for &(bytes, width) in bench.scale.memory {
        let layers = bytes / (48 * width * width);
        let (path, size) =
            bench.checkpoint("holes.safetensors", "F32", &encoder(layers, width), Weights::Holes);
        for to in ["per-head", "tf"] {
            print(format!("{layers} layers of width {width}"), size, to, bench.encode(to, &path, &[]));
        }
    }
    for &bytes in bench.scale.one_tensor {
        let mut one = encoder(1, 1024);
        // All else is small; this is a large vocabulary's, or a stack of experts.
        let rows = bytes / 4096;
        for (name, shape) in &mut one {
            match name.as_str() {
                "layers.0.linear1.weight" => *shape = vec![rows, 1024],
                "layers.0.linear1.bias" => *shape = vec![rows],
                "layers.0.linear2.weight" => *shape = vec![1024, 4],
                _ => {}
            }
        }
        // The two widths of the MLP are one size of the mapping.
        one.retain(|(name, _)| !name.contains("linear2"));
        let (path, size) = bench.checkpoint("holes.safetensors", "F32", &one, Weights::Holes);
        for to in ["separate", "tf"] {
            let taken = bench.encode(to, &path, &["--allow", "missing"]);
            print("nearly all in one tensor".to_owned(), size, to, taken);
        }
    }
}

fn bytes(bench: &Bench) {
    println!("\n## Growth in bytes, fused to per head, least of {} turns\n", bench.scale.rounds);
    println!("| layers | copy | not verified | verified |");
    println!("|--:|--:|--:|--:|");
    for part in [4, 2, 1] {
        let layers = bench.scale.layers / part;
        let (path, _) =
            bench.checkpoint("encoder.safetensors", "F32", &encoder(layers, 1024), Weights::Random);
        let [copied, _, taken] = bench.beside_copies(&path, || bench.encode("per-head", &path, NONE));
        let verified = bench.least(|| bench.encode("per-head", &path, &[]));
        println!(
            "| {layers} | {} | {} | {} |",
            seconds(copied.wall),
            seconds(taken.wall),
            seconds(verified.wall)
        );
    }
}

fn tensors(bench: &Bench) {
    println!("\n## Growth in tensors, least of {} turns\n", bench.scale.rounds);
    let counts = bench.scale.tensors.iter();
    println!("| what |{}", counts.clone().map(|count| format!(" {count} |")).collect::<String>());
    println!("|---|{}", "--:|".repeat(counts.len()));
    let cases: &[(&str, Make, &str, &str)] = &[
        ("experts, one matrix each, to other names", experts, "mixtral/hf-v4", "mixtral/consolidated"),
        ("experts, one matrix each, to stacked", experts, "mixtral/hf-v4", "mixtral/hf-v5"),
        ("modules, fused to per head", modules, "attention/pytorch-fused", "attention/per-head"),
    ];
    for &(name, tensors, from, to) in cases {
        for (what, more) in [
            ("bound, planned, proved", &["--dry-run"][..]),
            ("not verified", NONE),
            ("read back", &["--verify", "readback"]),
            ("verified", &[]),
        ] {
            let of = |&count: &u64| {
                let (path, _) = bench.checkpoint("many.safetensors", "F32", &tensors(count), Weights::Random);
                let more: Vec<&str> = heads(from).iter().chain(more).copied().collect();
                bench.least(|| bench.convert(from, to, &path, &more))
            };
            let row: String =
                counts.clone().map(of).map(|taken| format!(" {} |", seconds(taken.wall))).collect();
            println!("| {name}: {what} |{row}");
        }
    }
}

fn heads(from: &str) -> &'static [&'static str] {
    if from.starts_with("mixtral") { &["--axis", "h=3"] } else { &["--axis", "h=16"] }
}

impl Bench {
    fn least(&self, mut one: impl FnMut() -> Taken) -> Taken {
        let first = one();
        (1..self.scale.rounds).fold(first, |least, _| least.least(one()))
    }
}

fn errors(bench: &Bench) {
    println!("\n## Errors in checkpoints of many tensors, least of {} turns\n", bench.scale.rounds);
    let counts = bench.scale.tensors.iter();
    println!("| what |{}", counts.clone().map(|count| format!(" {count} |")).collect::<String>());
    println!("|---|{}", "--:|".repeat(counts.len()));
    let cases: &[(&str, Make, &str)] = &[
        ("no name matches", no_name, "mixtral/hf-v4"),
        ("half of the names match", half_of_the_names, "mixtral/hf-v4"),
        ("every other expert is missing", gaps, "mixtral/hf-v4"),
        ("each expert twice", twice, "mixtral/hf-v4"),
        ("each shape is wrong", wrong_shapes, "mixtral/hf-v4"),
    ];
    for &(name, tensors, from) in cases {
        let of = |&count: &u64| {
            let (path, _) = bench.checkpoint("many.safetensors", "F32", &tensors(count), Weights::Holes);
            let (path, out) = (path.to_string_lossy(), bench.path("out.safetensors"));
            let out = out.to_string_lossy();
            let arguments =
                ["--from", from, "--to", "mixtral/consolidated", "--axis", "h=3", "--quiet", &*path, &*out];
            bench.least(|| run(bench.folder.path(), &arguments, 1))
        };
        let row: String = counts.clone().map(of).map(|taken| format!(" {} |", seconds(taken.wall))).collect();
        println!("| {name} |{row}");
    }
}

fn no_name(count: u64) -> Vec<Tensor> {
    experts(count).into_iter().map(|(name, shape)| (name.replace("model.", "modell."), shape)).collect()
}

fn half_of_the_names(count: u64) -> Vec<Tensor> {
    let wrong = |(at, (name, shape)): (usize, Tensor)| {
        let name = if at % 2 == 1 { name.replace(".experts.", ".expert.") } else { name };
        (name, shape)
    };
    experts(count).into_iter().enumerate().map(wrong).collect()
}

fn gaps(count: u64) -> Vec<Tensor> {
    let odd = |name: &str| {
        let number =
            name.split(".experts.").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
        number.is_some_and(|number| number % 2 == 1)
    };
    experts(2 * count).into_iter().filter(|(name, _)| !odd(name)).collect()
}

fn twice(count: u64) -> Vec<Tensor> {
    let both = |(name, shape): Tensor| {
        let again = name.replace(".experts.", ".experts.0");
        if again == name { vec![(name, shape)] } else { vec![(again, shape.clone()), (name, shape)] }
    };
    experts(count / 2).into_iter().flat_map(both).collect()
}

fn wrong_shapes(count: u64) -> Vec<Tensor> {
    let longer = |(at, (name, mut shape)): (usize, Tensor)| {
        shape[0] += at as u64 % 5;
        (name, shape)
    };
    experts(count).into_iter().enumerate().map(longer).collect()
}

fn commands(bench: &Bench) {
    println!("\n## Other commands, least of {} turns\n", bench.scale.rounds);
    println!("| command | of | time |");
    println!("|---|---|--:|");
    let print = |command: &str, of: &str, arguments: &[&str], status: i32| {
        let taken = bench.least(|| run(bench.folder.path(), arguments, status));
        println!("| {command} | {of} | {} |", seconds(taken.wall));
    };
    print("`mapping list`", "", &["mapping", "list"], 0);
    print("`mapping show`", "bert/hf", &["mapping", "show", "bert/hf"], 0);
    let (path, size) =
        bench.checkpoint("encoder.safetensors", "F32", &encoder(bench.scale.layers, 1024), Weights::Random);
    let (text, of) = (path.to_string_lossy(), format!("the encoder, {} MB", size / 1_000_000));
    print("`inspect`", &of, &["inspect", &text], 0);
    print("`inspect --evidence`", &of, &["inspect", "--evidence", "--mapping", ENCODER, &text], 0);
    print("`diff`", &format!("{of}, with itself"), &["diff", &text, &text], 0);
    let count = bench.scale.tensors.last().copied().unwrap_or(0);
    for (what, tensors) in [("experts", experts as Make), ("modules", modules)] {
        let (path, _) = bench.checkpoint("many.safetensors", "F32", &tensors(count), Weights::Random);
        let (text, of) = (path.to_string_lossy(), format!("{count} tensors, {what}"));
        print("`inspect`", &of, &["inspect", &text], 0);
        print("`diff`", &of, &["diff", &text, &text], 0);
    }
}
