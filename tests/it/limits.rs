//! Limits of the system, and files that ask for endless work: what is done, and what is told.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::kit::{Folder, Run, Tensor, Tensors, mapping, read, read_folder, root, write_raw, xorshift};

/// Runs the binary under a limit of the shell's, such as `ulimit -n 64`.
pub(crate) fn limited(folder: &Folder, limit: &str, args: &[&str]) -> Run {
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
pub(crate) fn transposing() -> String {
    mapping(
        "x",
        json!({ "l": "layers", "e": "width", "f": "height" }),
        json!({ "w": "l e f" }),
        json!({ "s": { "tensors": { "s.{l}": "w: e f" } }, "t": { "tensors": { "t.{l}": "w: f e" } } }),
    )
}

#[test]
fn hundreds_of_shards_and_of_files_beside_them_need_few_open_files() {
    const COUNT: usize = 300;
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
        // A file system that does not tell its room, or tells more, is not filled.
        let run = limited(&folder, "ulimit -f 2048", &args);
        if !run.stderr.contains("File too large") {
            run.fails(&["error[publish/space]", "bytes free", "another disk", "--allow low-space"]);
        }
        args.extend(["--allow", "low-space"]);
        limited(&folder, "ulimit -f 2048", &args).fails(&["File too large"]);
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

/// Layers of one tensor of two elements each, more than 16 bits count.
#[test]
fn more_tensors_than_sixteen_bits_count_are_written_and_read() {
    const COUNT: usize = 66_000;
    let folder = Folder::new();
    folder.put("x.json", transposing());
    let tensor = |number: usize| Tensor::f32(&[1, 2], [number as f32, 0.5]);
    let tensors: Tensors = (0..COUNT).map(|number| (format!("s.{number}"), tensor(number))).collect();
    folder.tensors("in.safetensors", &tensors);
    for name in ["out.pt", "out.npz", "out.msgpack"] {
        let there = ["--mapping", "x.json", "--from", "x/s", "--to", "x/t", "in.safetensors", name];
        folder.run(&there).ok();
        let back =
            ["--mapping", "x.json", "--from", "x/t", "--to", "x/s", name, "back.safetensors", "--force"];
        folder.run(&[&back[..], &["--verify", "none"]].concat()).ok();
        assert!(read(&folder.join("back.safetensors")) == tensors, "{name}");
    }
}

#[test]
fn a_config_without_end_is_read_up_to_a_limit() {
    if cfg!(not(target_os = "linux")) {
        return;
    }
    let folder = Folder::new();
    folder.put("x.json", transposing());
    folder.tensors("in.safetensors", &[("s.0".to_owned(), Tensor::index(&[2, 3], 1))].into());
    let large = std::fs::File::create(folder.join("large.json")).expect("a file");
    large.set_len(3 << 30).expect("a hole");
    let padded = format!("{{ {} }}", " ".repeat(70 << 20));
    folder.put("padded.json", &padded);
    let convert = |config: &str, more: &[&str]| {
        folder.convert("x/s", "x/t", &[&["--mapping", "x.json", "--config", config], more].concat())
    };
    for config in ["/dev/zero", "large.json", "padded.json"] {
        let texts = ["error[config/read]", "at most 67108864 bytes", "--max-config-size"];
        convert(config, &[]).fails(&texts);
        folder.run(&["mapping", "show", "attention/separate", "--config", config]).fails(&texts);
        convert(config, &["--max-config-size", "1KB"]).fails(&["at most 1000 bytes"]);
    }
    folder.run(&["mapping", "check", "/dev/zero"]).fails(&["the most of a mapping file"]);
    convert("padded.json", &["--max-config-size", "100MB"]).ok();
}

#[test]
fn a_chunk_larger_than_its_file_justifies_is_refused_with_the_limit() {
    let source = root().join("tests/data/formats/hdf5/storage.h5");
    let folder = Folder::new();
    let inspect =
        |limit: &str| folder.run(&["inspect", source.to_str().expect("UTF-8"), "--max-chunk-size", limit]);
    let texts = ["error[format/chunk-size]", "at most 10 bytes", "--max-chunk-size 24"];
    inspect("10").fails(&texts);
    folder.run(&["inspect", source.to_str().expect("UTF-8")]).ok();
    inspect("1GB").ok();
}

/// Names of the same hash under rustc-hash 2 (rust-lang/rustc-hash, `src/lib.rs`, `hash_bytes`), whose seeds everybody
/// knows: what is mixed with 0 is 0, whatever it is.
fn colliding(count: usize) -> Vec<String> {
    const SEED: u64 = 0x243f_6a88_85a3_08d3;
    const OTHER: u64 = 0xa409_3822_299f_31d0;
    let mix = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let word = |text: &[u8]| u64::from_le_bytes(text.try_into().expect("eight bytes"));
    let plain = |bytes: [u8; 8]| bytes.iter().all(u8::is_ascii_graphic).then_some(bytes);
    let (first, third) = (0_u64..)
        .find_map(|number| {
            let first = format!("{number:016}");
            let mixed = mix(SEED ^ word(&first.as_bytes()[..8]), OTHER ^ word(&first.as_bytes()[8..]));
            Some((first, String::from_utf8(plain(mixed.to_le_bytes())?.to_vec()).expect("ASCII")))
        })
        .expect("one of some thousands");
    (0..count).map(|number| format!("{first}{:016}{third}{number:08}{:016}.", 0, 0)).collect()
}

#[test]
fn names_that_collide_under_a_known_hash_take_no_longer() {
    const COUNT: usize = 20_000;
    let time = |names: Vec<String>| {
        let folder = Folder::new();
        let header: serde_json::Map<String, Value> = names
            .into_iter()
            .map(|name| (name, json!({ "dtype": "F32", "shape": [0], "data_offsets": [0, 0] })))
            .collect();
        write_raw(&folder.join("in.safetensors"), &Value::Object(header).to_string(), &[]);
        let start = std::time::Instant::now();
        folder.run(&["diff", "in.safetensors", "in.safetensors"]).ok();
        start.elapsed()
    };
    let plain = time((0..COUNT).map(|number| format!("{number:072}.")).collect());
    let hostile = time(colliding(COUNT));
    assert!(hostile < plain * 5 + std::time::Duration::from_secs(2), "{hostile:?} {plain:?}");
}

#[test]
fn long_names_under_two_paths_take_no_square() {
    let folder = Folder::new();
    let templates = ["{*a}.x.{*b}.{l}", "{*a}.x.{*b}.w.{l:02}", "{*a}.x.{*b}.end"];
    let rules: serde_json::Map<String, Value> =
        templates.iter().map(|template| ((*template).to_owned(), "w: e f".into())).collect();
    let long = vec!["x"; 100_000].join(".");
    for name in [format!("{long}.a1"), format!("{long}.w.x1")] {
        folder.tensors("in.safetensors", &[(name, Tensor::index(&[2, 3], 1))].into());
        for (template, rule) in &rules {
            let axes = json!({ "e": "width", "f": "height", "l": "layers" });
            let param = if template.contains("{l") { "l e f" } else { "e f" };
            let layouts =
                json!({ "s": { "tensors": { template: rule } }, "t": { "tensors": { template: "w: f e" } } });
            folder.put("x.json", mapping("x", axes, json!({ "w": param }), layouts));
            let args =
                ["--mapping", "x.json", "--from", "x/s", "--to", "x/t", "in.safetensors", "out.safetensors"];
            // Each of the places where the first path can end with each where the second can: the run would not end.
            let run = limited(&folder, "ulimit -t 60", &args);
            assert!([0, 1].contains(&run.code), "{template}: {}", run.stderr);
            let _ = std::fs::remove_file(folder.join("out.safetensors"));
        }
    }
}

#[cfg(unix)]
#[test]
fn a_second_interrupt_ends_a_run_that_does_not_end() {
    use std::io::Read;
    use std::time::{Duration, Instant};
    let folder = Folder::new();
    let tensors = |base: u64| -> Tensors {
        let name = |number: u64| format!("{}.{number}", "long".repeat(30));
        (0..5000).map(|number| (name(number), Tensor::index(&[1], base + number))).collect()
    };
    folder.tensors("a.safetensors", &tensors(0));
    folder.tensors("b.safetensors", &tensors(1));
    let mut child = Command::new(env!("CARGO_BIN_EXE_qkvconv"))
        .current_dir(folder.path())
        .args(["diff", "--all", "--json", "a.safetensors", "b.safetensors"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    // It says more than a pipe takes, and nobody reads it: it waits for ever.
    let mut output = child.stdout.take().expect("a pipe");
    output.read_exact(&mut [0]).expect("it begins");
    let interrupt = || {
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    };
    interrupt();
    std::thread::sleep(Duration::from_millis(300));
    interrupt();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("is there") {
            break status;
        }
        if start.elapsed() > Duration::from_secs(20) {
            child.kill().expect("ends");
            panic!("it goes on after the second interrupt");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(130));
}

#[cfg(target_os = "linux")]
#[test]
fn without_threads_to_be_had_attention_is_computed_on_the_one_there_is() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let folder = Folder::new();
    let shape = [192, 192];
    let names = ["q_proj", "k_proj", "v_proj", "out_proj"].map(|name| format!("l.0.attn.{name}.weight"));
    let mut next = xorshift();
    let tensors = names.map(|name| {
        let values =
            (0..192 * 192).map(|_| (next() >> 40) as f32 / (1 << 24) as f32 - 0.5).collect::<Vec<_>>();
        (name, Tensor::f32(&shape, values))
    });
    folder.tensors("in.safetensors", &tensors.into());
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("changes");
    let mut command = Command::new("bash");
    command
        .current_dir(folder.path())
        .args(["-c", "ulimit -u 1 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_qkvconv")])
        .args(["--from", "attention/separate", "--to", "attention/per-head", "--axis", "h=12"])
        .args(["in.safetensors", "out.safetensors"])
        .env("RAYON_NUM_THREADS", "4")
        .stdin(Stdio::null());
    // Root may have any number of threads.
    if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        command.uid(65_533).gid(65_533);
    }
    let output = command.output().expect("a shell runs");
    if matches!(output.status.code(), Some(126 | 127)) {
        // That user may not run what was built.
        return;
    }
    let code = output.status.code();
    let run = Run::of(output, code).ok();
    assert!(run.stderr.contains("computed: attention of 1 module"), "{}", run.stderr);
}
