//! Nothing but the output is written, whatever an option says and whatever lies at the destination.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::kit::{self, Folder, Run, Tensor, Tensors};

fn model() -> Tensors {
    let mut tensors = Tensors::new();
    for (at, part) in ["q_proj", "k_proj", "v_proj", "out_proj"].iter().enumerate() {
        let (shape, width) = if *part == "out_proj" { ([7, 6], 7) } else { ([6, 7], 6) };
        let base = 1000 * at as u64;
        tensors.insert(format!("l.0.attn.{part}.weight"), Tensor::index(&shape, base));
        tensors.insert(format!("l.0.attn.{part}.bias"), Tensor::index(&[width], base + 500));
    }
    tensors
}

const CONVERT: [&str; 6] = ["--from", "attention/separate", "--to", "attention/timm", "--axis", "h=3"];

fn run(folder: &Folder, more: &[&str]) -> Run {
    folder.run(&[&CONVERT[..], more].concat())
}

/// Returns what all files of a folder hold, by their paths; of a link where it leads.
fn held(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        if path.is_symlink() {
            let link = std::fs::read_link(&path).expect("a link");
            all.insert(name, link.into_os_string().into_encoded_bytes());
        } else if path.is_dir() {
            all.insert(format!("{name}/"), Vec::new());
            all.extend(held(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            all.insert(name, std::fs::read(&path).unwrap_or_default());
        }
    }
    all
}

fn source() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.join("src")).expect("a folder");
    folder.tensors("src/model.safetensors", &model());
    folder.put("src/config.json", "{}");
    folder.tensors("in.safetensors", &model());
    folder.put(
        "m.json",
        kit::mapping(
            "toy",
            json!({ "e": "width" }),
            json!({ "w": "e" }),
            json!({
        "a": { "tensors": { "w": "w: e" } }, "b": { "tensors": { "v": "w: e" } } }),
        ),
    );
    folder.put("c.json", "{}");
    folder.put("there.json", "precious");
    folder
}

#[test]
fn a_report_is_written_over_nothing_that_a_run_reads_or_writes() {
    let folder = source();
    std::fs::hard_link(folder.join("in.safetensors"), folder.join("hard.json")).expect("links");
    let before = held(folder.path());
    let convert = |from: &str, report: &str, to: &str, code: &str| {
        let more = ["--mapping", "m.json", "--config", "c.json", "--force", "--report", report, from, to];
        run(&folder, &more).fails(&[code]);
        assert!(held(folder.path()) == before, "{report}");
    };
    for report in ["hard.json", "m.json", "c.json", "src/../m.json"] {
        convert("in.safetensors", report, "out.safetensors", "publish/over-source");
    }
    for report in ["in.safetensors", "out.safetensors", "src/model.safetensors"] {
        convert("in.safetensors", report, "out.safetensors", "publish/name");
    }
    for report in ["src/config.json", "src"] {
        convert("src", report, "out", "publish/over-source");
    }
    convert("src", "out", "out", "publish/twice");
    convert("src", "no/r.json", "out", "publish/no-folder");
    // Names of the output that are known only when all else is.
    std::fs::create_dir(folder.join("out")).expect("a folder");
    let before = held(folder.path());
    run(&folder, &["--force", "--report", "out/config.json", "src", "out"]).fails(&["publish/twice"]);
    assert!(held(folder.path()) == before);
    run(&folder, &["--report", "out/r.json", "src", "out"]).ok();
    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.join("out/r.json")).expect("written")).expect("JSON");
    assert_eq!(report["written"], true);

    // What is there already needs leave, also from a run that fails; then it keeps its mode.
    let bad = ["--only", "nothing", "in.safetensors", "x.safetensors"];
    run(&folder, &[&["--report", "there.json"], &bad[..]].concat()).fails(&["publish/exists", "--force"]);
    assert_eq!(std::fs::read(folder.join("there.json")).expect("is there"), b"precious");
    run(&folder, &[&["--force", "--report", "there.json"], &bad[..]].concat()).fails(&["0 of"]);
    assert!(std::fs::read_to_string(folder.join("there.json")).expect("is there").contains("errors"));
    assert!(!folder.names().iter().any(|name| name.contains("qkvconv")), "{:?}", folder.names());

    // A verification reads both sides.
    run(&folder, &["in.safetensors", "done.safetensors"]).ok();
    let verify = ["verify", "--from", "attention/separate", "--to", "attention/timm", "--axis", "h=3"];
    let verify = |report: &str| {
        let more = ["--force", "--report", report, "in.safetensors", "done.safetensors"];
        folder.run(&[&verify[..], &more].concat())
    };
    verify("done.safetensors").fails(&["publish/name"]);
    verify("hard.json").fails(&["publish/over-source"]);
    verify("v.json").ok();
}

#[test]
fn an_output_is_written_over_no_mapping_and_no_config() {
    let folder = source();
    std::fs::create_dir(folder.join("out")).expect("a folder");
    folder.put("out/config.json", r#"{"num_attention_heads": 3}"#);
    let before = held(folder.path());
    let args = ["--config", "out/config.json", "--force", "src", "out"];
    run(&folder, &args).fails(&["publish/over-source", "out/config.json"]);
    std::fs::copy(folder.join("m.json"), folder.join("out/model.safetensors")).expect("copies");
    let args = ["--mapping", "out/model.safetensors", "--force", "src", "out"];
    run(&folder, &args).fails(&["publish/over-source", "out/model.safetensors"]);
    std::fs::remove_file(folder.join("out/model.safetensors")).expect("removes");
    assert!(held(folder.path()) == before);
}

/// Every config beside a checkpoint is read, also those that a layout of the checkpoint's framework does not need.
#[test]
fn no_config_beside_a_checkpoint_is_written_over() {
    let folder = Folder::new();
    let layouts = json!({
        "a": { "config_file": "hparams.json", "tensors": { "w": "w: e" } },
        "b": { "config_file": "hparams.json", "tensors": { "v": "w: e" } },
    });
    folder.put("toy.json", kit::mapping("toy", json!({ "e": "width" }), json!({ "w": "e" }), layouts));
    for (sub, name) in [("src", "w"), ("dst", "v")] {
        std::fs::create_dir(folder.join(sub)).expect("a folder");
        let tensor = Tensor::index(&[5], 0);
        folder.tensors(&format!("{sub}/x.safetensors"), &Tensors::from([(name.to_owned(), tensor)]));
        for config in ["config.json", "params.json", "hparams.json"] {
            folder.put(&format!("{sub}/{config}"), "{}");
        }
    }
    folder.put("named.json", "{}");
    let before = held(folder.path());
    let layouts = ["--mapping", "toy.json", "--from", "toy/a", "--to", "toy/b", "--force"];
    let both = ["src/x.safetensors", "dst/x.safetensors"];
    let is_refused = |args: &[&[&str]]| {
        folder.run(&args.concat()).fails(&["publish/over-source"]);
        assert!(held(folder.path()) == before, "{args:?}");
    };
    for config in ["src/config.json", "src/params.json", "src/hparams.json"] {
        let report = ["--report", config];
        is_refused(&[&layouts, &report, &[both[0], "out.safetensors"]]);
        is_refused(&[&layouts, &report, &["--dry-run", both[0], "out.safetensors"]]);
        is_refused(&[&["verify"], &layouts, &report, &both]);
        let inspect = ["inspect", "--mapping", "toy.json", "--from", "toy/a", "--tensor", "w", "--force"];
        is_refused(&[&inspect, &["--svg", config], &both[..1]]);
    }
    is_refused(&[&["verify"], &layouts, &["--report", "dst/hparams.json"], &both]);
    for config in ["src/config.json", "src/params.json", "dst/config.json"] {
        is_refused(&[&["mapping", "infer", "--into", config], &both]);
    }
    is_refused(&[&["mapping", "infer", "--into", "named.json", "--to-config", "named.json"], &both]);
    // Where another config is named, those beside the source are not read.
    let named = ["--config", "named.json", "--report", "src/params.json", both[0], "out.safetensors"];
    folder.run(&[&layouts[..], &named].concat()).ok();
}

#[cfg(unix)]
#[test]
fn links_and_devices_are_never_written() {
    let folder = source();
    std::os::unix::fs::symlink("there.json", folder.join("link.json")).expect("a link");
    std::os::unix::fs::symlink("nowhere.json", folder.join("dangling.json")).expect("a link");
    let before = held(folder.path());
    let q = "l.0.attn.q_proj.weight";
    for path in ["link.json", "dangling.json", "/dev/null"] {
        run(&folder, &["--force", "--report", path, "in.safetensors", "out.safetensors"])
            .fails(&["publish/not-a-file"]);
        let inspect = ["inspect", "--from", "attention/separate", "--axis", "h=3", "--tensor", q, "--force"];
        for option in [&["--svg", path][..], &["--head", "0", "--save", path]] {
            folder.run(&[&inspect[..], option, &["in.safetensors"]].concat()).fails(&["publish/not-a-file"]);
        }
        folder
            .run(&["mapping", "new", "--from", "in.safetensors", "--output", path])
            .fails(&["publish/not-a-file"]);
        folder
            .run(&["mapping", "infer", "in.safetensors", "src", "--output", path])
            .fails(&["publish/not-a-file"]);
    }
    let inspect = ["inspect", "--from", "attention/separate", "--axis", "h=3", "--tensor", q, "--force"];
    for path in ["in.safetensors", "src/../in.safetensors"] {
        folder
            .run(&[&inspect[..], &["--svg", path, "in.safetensors"]].concat())
            .fails(&["publish/over-source"]);
    }
    let twice = ["--svg", "a.npy", "--head", "0", "--save", "a.npy", "in.safetensors"];
    folder.run(&[&inspect[..], &twice].concat()).fails(&["publish/twice"]);
    folder
        .run(&["mapping", "infer", "in.safetensors", "src", "--into", "src/config.json"])
        .fails(&["publish/over-source"]);
    assert!(held(folder.path()) == before);
}

/// What a repository that was cloned may hold.
#[cfg(unix)]
#[test]
fn a_planted_work_folder_moves_and_removes_nothing() {
    use std::os::unix::fs::symlink;
    let plain = r#"{"replaced":["precious"],"placed":[],"exchanged":null}"#;
    let moved = r#"{"replaced":[],"placed":["key"],"exchanged":null}"#;
    let noted = r#"{"of":{"place":[1,2],"made":3},"holds":{"replaced":["precious"],"placed":["key"],"exchanged":null,"stamps":[]}}"#;
    for inside in [false, true] {
        for (record, lock) in [(plain, Some("")), (moved, None), (noted, Some(r#"{"place":[1,2],"made":3}"#))]
        {
            for linked in [None, Some("new"), Some("old"), Some("lock")] {
                let folder = Folder::new();
                for name in ["out", "secret"] {
                    std::fs::create_dir(folder.join(name)).expect("a folder");
                }
                folder.tensors("in.safetensors", &model());
                folder.put("secret/key", "secret");
                folder.put("out/precious", "precious");
                let work = if inside { "out/.out.qkvconv-work" } else { ".out.qkvconv-work" };
                std::fs::create_dir(folder.join(work)).expect("a folder");
                folder.put(&format!("{work}/publication.json"), record);
                for name in ["new", "old"].into_iter().filter(|name| linked != Some(name)) {
                    std::fs::create_dir(folder.join(&format!("{work}/{name}"))).expect("a folder");
                    folder.put(&format!("{work}/{name}/key"), "planted");
                }
                if let Some(lock) = lock.filter(|_| linked != Some("lock")) {
                    folder.put(&format!("{work}/lock"), lock);
                }
                if let Some(name) = linked {
                    let target = if name == "lock" { "secret/key" } else { "secret" };
                    symlink(folder.join(target), folder.join(&format!("{work}/{name}"))).expect("a link");
                }
                let before = held(folder.path());
                for more in
                    [&["in.safetensors", "out"][..], &["--force", "--resume", "in.safetensors", "out"]]
                {
                    let run = run(&folder, more);
                    run.fails(&["publish/foreign", ".out.qkvconv-work"]);
                    let place = format!("{inside} {record} {linked:?}");
                    let mut after = held(folder.path());
                    // An empty lock may have been made in it.
                    if lock.is_none() && linked != Some("lock") {
                        after.remove(&format!("{work}/lock"));
                    }
                    assert!(after == before, "{place}: {after:?}");
                }
            }
        }
    }
    // The folder itself, or that of a file, may be a link.
    let folder = Folder::new();
    folder.tensors("in.safetensors", &model());
    std::fs::create_dir(folder.join("secret")).expect("a folder");
    folder.put("secret/key", "secret");
    symlink("secret", folder.join(".out.safetensors.qkvconv-work")).expect("a link");
    symlink("secret", folder.join(".r.json.qkvconv-work")).expect("a link");
    let before = held(folder.path());
    run(&folder, &["in.safetensors", "out.safetensors"]).fails(&["publish/foreign"]);
    run(&folder, &["--report", "r.json", "in.safetensors", "o.safetensors"]).fails(&["publish/foreign"]);
    assert!(held(folder.path()) == before);
}

#[cfg(unix)]
#[test]
fn a_replaced_file_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt;
    let folder = source();
    std::fs::create_dir(folder.join("out")).expect("a folder");
    folder.put("out/config.json", "old");
    folder.put("out/model.safetensors", "old");
    folder.put("out.safetensors", "old");
    folder.put("r.json", "old");
    let files = ["out/config.json", "out/model.safetensors", "out.safetensors", "r.json"];
    for file in files {
        std::fs::set_permissions(folder.join(file), std::fs::Permissions::from_mode(0o640)).expect("changes");
    }
    run(&folder, &["--force", "--report", "r.json", "src", "out"]).ok();
    run(&folder, &["--force", "src", "out.safetensors"]).ok();
    for file in files {
        let mode = std::fs::metadata(folder.join(file)).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "{file}");
        assert_ne!(std::fs::read(folder.join(file)).expect("reads"), b"old", "{file}");
    }
}

#[test]
fn names_do_not_drive_a_terminal_or_a_report() {
    const HOSTILE: &str = "a\u{1b}]0;title\u{7}\u{9b}31m\u{202e}b|<img src=x>`x`\n\r";
    let folder = Folder::new();
    let mut tensors = model();
    tensors.insert(format!("x.{HOSTILE}.weight"), Tensor::index(&[5], 1));
    tensors.insert(format!("l.1.attn.{HOSTILE}.q_proj.weight"), Tensor::index(&[6, 7], 1));
    folder.tensors("in.safetensors", &tensors);
    let is_clean = |text: &str| {
        !text.chars().any(|c| c != '\n' && (c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)))
    };
    let mut shown = 0;
    for args in [
        &["inspect", "in.safetensors"][..],
        &["inspect", "--from", "attention/separate", "--axis", "h=3", "in.safetensors"],
        &["diff", "--all", "in.safetensors", "in.safetensors"],
        &[
            "--from",
            "attention/separate",
            "--to",
            "attention/timm",
            "--axis",
            "h=3",
            "--report",
            "r.md",
            "in.safetensors",
            "out.safetensors",
        ],
        &[
            "--from",
            "attention/separate",
            "--to",
            "attention/timm",
            "--dry-run",
            "--report",
            "s.md",
            "in.safetensors",
            "out.safetensors",
        ],
        &["--from", HOSTILE, "--to", HOSTILE, "in.safetensors", HOSTILE],
        &["mapping", "check", HOSTILE],
    ] {
        let run = folder.run(args);
        assert!(is_clean(&run.stdout) && is_clean(&run.stderr), "{args:?}: {run:?}");
        shown += usize::from(run.stdout.contains("\\u{1b}") || run.stderr.contains("\\u{1b}"));
    }
    assert!(shown >= 4, "{shown}");
    for card in ["r.md", "s.md"].iter().filter(|card| folder.join(card).exists()) {
        let text = std::fs::read_to_string(folder.join(card)).expect("a card");
        assert!(is_clean(&text) && !text.contains("<img"), "{text}");
    }
    folder.tensors("plain.safetensors", &model());
    let run = run(&folder, &["plain.safetensors", "o\u{1b}[2J.safetensors"]);
    run.fails(&["publish/name", "\\u{1b}"]);
    assert!(folder.names().iter().all(|name| is_clean(name)));
}

/// Shapes with zeros and with factors beyond any memory: a file of such tensors holds no bytes at all.
#[test]
fn shapes_without_elements_are_read_converted_and_compared() {
    let huge: [u64; 6] = [0, 3, 12, 1 << 20, 1 << 33, 3 << 40];
    let folder = Folder::new();
    let mut shapes: Vec<Vec<u64>> = Vec::new();
    for one in huge {
        shapes.extend([vec![0, one], vec![one, 0]]);
    }
    let convert = ["--from", "attention/pytorch-fused", "--to", "attention/separate", "--axis", "h=3"];
    for (at, shape) in shapes.iter().enumerate() {
        let header =
            json!({ "attn.in_proj_weight": { "dtype": "F32", "shape": shape, "data_offsets": [0, 0] } });
        kit::write_raw(&folder.join("in.safetensors"), &header.to_string(), &[]);
        let out = format!("{at}.safetensors");
        let with = |more: &[&'static str]| -> Vec<&str> {
            [more, &convert[..2], &convert[4..], &["in.safetensors"]].concat()
        };
        let started = std::time::Instant::now();
        for args in [
            vec!["inspect", "in.safetensors"],
            with(&["inspect"]),
            with(&["inspect", "--evidence"]),
            with(&["inspect", "--picture"]),
            with(&["inspect", "--tensor", "attn.in_proj_weight"]),
            with(&["inspect", "--tensor", "attn.in_proj_weight", "--head", "0", "--part", "q"]),
            [&convert[..], &["in.safetensors", &out]].concat(),
            vec!["diff", "in.safetensors", "in.safetensors"],
        ] {
            let run = folder.run(&args);
            assert!([0, 1].contains(&run.code), "{shape:?} {args:?}: {run:?}");
        }
        // A loop over what is not there would take hours.
        assert!(started.elapsed().as_secs() < 60, "{shape:?}");
    }
    assert!(folder.join("2.safetensors").exists(), "[0, 3] is a tensor of three heads without rows");
}
