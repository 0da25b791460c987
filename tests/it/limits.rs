//! Limits of the system, and files that ask for endless work: what is done, and what is told.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::kit::{Folder, Run, Tensor, Tensors, mapping, read_folder, write_raw};

/// Runs the binary under a limit of the shell's, such as `ulimit -n 64`.
fn limited(folder: &Folder, limit: &str, args: &[&str]) -> Run {
    let output = Command::new("sh")
        .current_dir(folder.path())
        .args(["-c", &format!("{limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_qkvconv")])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("a shell runs");
    let code = output.status.code();
    Run::of(output, code)
}

/// One tensor of each layer, which the second layout stores transposed.
fn transposing() -> String {
    mapping(
        "x",
        json!({ "l": "layers", "e": "width", "f": "height" }),
        json!({ "w": "l e f" }),
        json!({ "s": { "tensors": { "s.{l}": "w: e f" } }, "t": { "tensors": { "t.{l}": "w: f e" } } }),
    )
}

#[test]
fn hundreds_of_shards_and_of_files_beside_them_need_few_open_files() {
    const COUNT: usize = 150;
    let folder = Folder::new();
    folder.put("x.json", transposing());
    std::fs::create_dir(folder.join("in")).expect("a folder");
    let mut index = serde_json::Map::new();
    for number in 0..COUNT {
        let (name, file) =
            (format!("s.{number}"), format!("model-{:05}-of-{COUNT:05}.safetensors", number + 1));
        let tensors: Tensors = [(name.clone(), Tensor::index(&[3, 5], number as u64 * 100))].into();
        folder.tensors(&format!("in/{file}"), &tensors);
        index.insert(name, Value::from(file));
        folder.put(&format!("in/tokenizer_{number}.json"), format!("{{ \"number\": {number} }}"));
    }
    folder.put("in/model.safetensors.index.json", json!({ "metadata": {}, "weight_map": index }).to_string());
    let args = ["--mapping", "x.json", "--from", "x/s", "--to", "x/t", "--max-shard-size", "60", "in", "out"];
    limited(&folder, "ulimit -n 64", &args).ok();
    let written = read_folder(&folder.join("out"));
    assert_eq!(written.len(), COUNT);
    for number in 0..COUNT {
        let values = written[&format!("t.{number}")].values();
        let wanted = (0..15).map(|at| (number * 100 + at % 3 * 5 + at / 3) as f32);
        assert!(values.iter().copied().eq(wanted), "{number}: {values:?}");
        let beside = std::fs::read_to_string(folder.join(&format!("out/tokenizer_{number}.json")));
        assert_eq!(beside.expect("carried over"), format!("{{ \"number\": {number} }}"));
    }
    let shards = std::fs::read_dir(folder.join("out")).expect("a folder").flatten();
    let shards = shards.filter(|entry| entry.file_name().to_string_lossy().ends_with(".safetensors"));
    assert_eq!(shards.count(), COUNT);
}

#[test]
fn a_file_that_may_not_grow_so_large_is_an_error() {
    let folder = Folder::new();
    folder.put("x.json", transposing());
    folder.tensors("in.safetensors", &[("s.0".to_owned(), Tensor::index(&[100, 101], 1))].into());
    let args = ["--mapping", "x.json", "--from", "x/s", "--to", "x/t", "in.safetensors", "out.safetensors"];
    limited(&folder, "ulimit -f 8", &args).fails(&["File too large", "ulimit -f"]);
    assert_eq!(folder.names(), ["in.safetensors", "x.json"]);
}

#[test]
fn an_output_that_does_not_fit_is_told_before_it_is_written() {
    if cfg!(not(target_os = "linux")) {
        return;
    }
    // Larger than the disks on which tests run, and a hole in its file.
    const BYTES: u64 = 8 << 40;
    let folder = Folder::new();
    folder.put("x.json", transposing());
    let header = json!({ "s.0": { "dtype": "F32", "shape": [BYTES / 4, 1], "data_offsets": [0, BYTES] } });
    write_raw(&folder.join("in.safetensors"), &header.to_string(), &[]);
    let file = std::fs::File::options().write(true).open(folder.join("in.safetensors")).expect("opens");
    let length = file.metadata().expect("a file").len();
    file.set_len(length + BYTES).expect("a file system with such files");
    for force in [false, true] {
        let mut args = vec!["--mapping", "x.json", "--from", "x/s", "--to", "x/t", "in.safetensors", "out"];
        args.extend(["--verify", "none"]);
        if force {
            args.push("--force");
        }
        folder.run(&args).fails(&["error[publish/space]", "bytes free", "another disk"]);
        assert_eq!(folder.names(), ["in.safetensors", "x.json"]);
    }
}

#[test]
fn a_missing_folder_for_temporary_files_is_named_with_the_way_out() {
    let folder = Folder::new();
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    npy.extend(b"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }");
    npy.resize(127, b' ');
    npy.push(b'\n');
    npy.extend((0..6).flat_map(|number: u8| f32::from(number).to_be_bytes()));
    folder.put("a.npy", &npy);
    let run = limited(&folder, "export TMPDIR=/nowhere/at/all", &["diff", "a.npy", "a.npy"]);
    run.fails(&["/nowhere/at/all", "TMPDIR="]);
    folder.run(&["diff", "a.npy", "a.npy"]).ok();
}

#[test]
fn a_vocabulary_given_as_a_mapping_is_told_in_short() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &[("s.0".to_owned(), Tensor::index(&[2, 3], 1))].into());
    let vocabulary: serde_json::Map<String, Value> =
        (0..20_000).map(|number| (format!("token{number}"), number.into())).collect();
    for text in [
        serde_json::to_string(&vocabulary).expect("JSON"),
        serde_json::to_string_pretty(&vocabulary).expect("JSON"),
    ] {
        folder.put("vocab.json", text);
        let run = folder.convert("x/s", "x/t", &["--mapping", "vocab.json"]);
        let lines = run.stderr.lines().count();
        assert!(lines < 500, "{lines} lines");
        run.fails(&["error[mapping/unknown-field]", "19980 more here"]);
    }
}

#[test]
fn an_index_of_bad_names_alone_is_told_in_short() {
    let folder = Folder::new();
    let names = |name: &dyn Fn(usize) -> String| {
        let map: serde_json::Map<String, Value> =
            (0..5000).map(|number| (format!("w.{number}"), name(number).into())).collect();
        json!({ "metadata": {}, "weight_map": map }).to_string()
    };
    let cases: [(&dyn Fn(usize) -> String, &str); 2] = [
        (&|number| format!("../../x{number}.safetensors"), "error[format/path-escape]"),
        (&|number| format!("m{number}.safetensors"), "error[format/missing-shard]"),
    ];
    for (name, code) in cases {
        folder.put("model.safetensors.index.json", names(name));
        let run = folder.run(&["inspect", "model.safetensors.index.json"]);
        assert!(run.stderr.len() < 20_000, "{} bytes", run.stderr.len());
        run.fails(&[code]);
    }
}

#[test]
fn a_name_of_a_hundred_thousand_segments_is_refused_at_once() {
    let folder = Folder::new();
    let name = vec!["a"; 100_000].join(".");
    folder.tensors("in.safetensors", &[(name, Tensor::index(&[2, 3], 1))].into());
    let text = mapping(
        "x",
        json!({ "e": "width", "f": "height" }),
        json!({ "w": "e f" }),
        json!({ "s": { "tensors": { "{*a}.x.{*b}.w": "w: e f" } }, "t": { "tensors": { "{*a}.y.{*b}.w": "w: e f" } } }),
    );
    folder.put("x.json", text);
    // Without bounds this takes hours: the run would never end.
    let run = limited(
        &folder,
        "ulimit -t 60",
        &["--mapping", "x.json", "--from", "x/s", "--to", "x/t", "in.safetensors", "out.safetensors"],
    );
    assert_eq!(run.code, 1, "{}", run.stderr);
}
