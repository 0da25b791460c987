//! What goes beside the output: configs, vocabularies, the target's own config.

use serde_json::{Value, json};

use crate::kit::{Folder, Tensor, Tensors, mapping, names};

/// A family of two layouts whose frameworks name the sizes otherwise.
fn family() -> String {
    mapping(
        "pair",
        json!({ "h": "heads", "d": "head size", "e": "width", "m": "a share", "s": "a side", "t": "another side" }),
        json!({ "q": "h d e", "m": "m", "s": "s t" }),
        json!({
            "ours": {
                "tensors": { "q": "q: (h d) e", "m": "m: m", "s": "s: s t" },
                "config": { "h": ["heads", "n_head"], "e": "width", "m": { "keys": ["twice"], "is": "value / 2" } },
                "when": { "kind": "ours" }
            },
            "same": { "like": "ours", "tensors": { "q": "q: e h d" }, "when": null },
            "theirs": {
                "tensors": { "Q": "q: e (h d)", "M": "m: m", "S": "s: s t" },
                "config_file": "params.json",
                "config": {
                    "h": "n.heads", "e": "dim", "m": { "keys": ["share"], "is": "value * d" },
                    "s": "side", "t": "side"
                },
                "when": { "style": [null, "theirs"], "old": [null, false] }
            }
        }),
    )
}

fn source(config: &Value) -> Folder {
    let folder = Folder::new();
    folder.put("family.json", family());
    std::fs::create_dir(folder.join("src")).expect("a folder");
    let tensors = Tensors::from([
        ("q".to_owned(), Tensor::index(&[3 * 8, 20], 0)),
        ("m".to_owned(), Tensor::index(&[6], 0)),
        ("s".to_owned(), Tensor::index(&[5, 7], 0)),
    ]);
    folder.tensors("src/model.safetensors", &tensors);
    folder.put("src/config.json", config.to_string());
    for name in
        ["tokenizer.json", "tokenizer.model", "vocab.txt", "generation_config.json", "chat_template.jinja"]
    {
        folder.put(&format!("src/{name}"), format!("the {name}"));
    }
    for name in ["trainer_state.json", "old.safetensors.index.json.bak", ".hidden.json", "modeling.py"] {
        folder.put(&format!("src/{name}"), "not a companion");
    }
    folder
}

fn config() -> Value {
    json!({ "kind": "ours", "heads": 3, "width": 20, "twice": 12, "model_type": "ours", "epsilon": 1e-5 })
}

const CARRIED: [&str; 5] =
    ["chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer.model", "vocab.txt"];

#[test]
fn files_beside_the_source_go_along() {
    let folder = source(&config());
    let run = folder.run(&["--mapping", "family.json", "--from", "ours", "--to", "same", "src", "out"]).ok();
    let mut expected = [&CARRIED[..], &["config.json", "model.safetensors"]].concat();
    expected.sort_unstable();
    assert_eq!(names(&folder.join("out")), expected);
    for name in CARRIED.iter().chain(&["config.json"]) {
        let read = |side: &str| std::fs::read(folder.join(&format!("{side}/{name}"))).expect("readable");
        assert_eq!(read("out"), read("src"), "{name}");
    }
    assert!(run.stderr.contains("config.json still says that it is a `ours`"), "{}", run.stderr);

    // A second run would replace them.
    folder
        .run(&["--mapping", "family.json", "--from", "ours", "--to", "same", "src", "out"])
        .fails(&["out/tokenizer.json", "--force"]);
    // A single file has nothing beside it.
    folder.run(&["--mapping", "family.json", "--from", "ours", "--to", "same", "src", "x.safetensors"]).ok();
    assert!(!folder.names().contains(&"tokenizer.json".to_owned()));
}

#[test]
fn the_targets_config_is_written_from_the_sizes() {
    let folder = source(&config());
    let args =
        ["--mapping", "family.json", "--from", "ours", "--to", "theirs", "src", "out", "--report", "r.json"];
    let run = folder.run(&args).ok();
    let text = std::fs::read_to_string(folder.join("out/params.json")).expect("written");
    let written: Value = serde_json::from_str(&text).expect("JSON");
    // Two sides that differ cannot be one `side`; the share is a multiple of the head size: 6 = 0.75 * 8.
    assert_eq!(
        written,
        json!({ "n": { "heads": 3 }, "dim": 20, "share": 0.75, "style": "theirs", "old": false })
    );
    assert!(!folder.join("out/config.json").exists());
    for said in ["`side` (s)", "`epsilon` of config.json", "`model_type` of config.json"] {
        assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
    }
    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.join("r.json")).expect("written")).expect("JSON");
    assert_eq!(report["companions"]["config"]["name"], "params.json");
    assert_eq!(report["companions"]["carried"].as_array().map(Vec::len), Some(5));

    // And back, from what was written; what the first config said beyond sizes is gone.
    folder.run(&["--mapping", "family.json", "--from", "theirs", "--to", "ours", "out", "back"]).ok();
    let text = std::fs::read_to_string(folder.join("back/config.json")).expect("written");
    let back: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(back, json!({ "heads": 3, "width": 20, "twice": 12, "kind": "ours" }));
    let read = |name: &str| crate::kit::read(&folder.join(name));
    assert_eq!(read("back/model.safetensors"), read("src/model.safetensors"));
}

#[test]
fn the_config_file_is_the_one_of_the_layout() {
    let folder = source(&config());
    folder.run(&["--mapping", "family.json", "--from", "ours", "--to", "theirs", "src", "out"]).ok();
    // Both frameworks' configs in one folder: each layout reads its own.
    folder.put("out/config.json", json!({ "n": { "heads": 4 } }).to_string());
    folder
        .run(&["--mapping", "family.json", "--from", "theirs", "--to", "ours", "out", "back.safetensors"])
        .ok();
}

/// Meta's checkpoints have a params.json: what the mapping tells of it is what the framework itself wrote.
#[test]
fn a_built_in_layout_has_its_frameworks_config() {
    let folder = Folder::new();
    let pair = format!("{}/tests/oracles/18_hf_llama_to_meta_llama", env!("CARGO_MANIFEST_DIR"));
    let run = folder.run(&["--from", "llama/hf", "--to", "llama/meta", &format!("{pair}/src"), "out"]).ok();
    assert_eq!(names(&folder.join("out")), ["consolidated.00.pth", "generation_config.json", "params.json"]);
    let read = |path: &std::path::Path| -> Value {
        serde_json::from_slice(&std::fs::read(path).expect("readable")).expect("JSON")
    };
    let (written, theirs) =
        (read(&folder.join("out/params.json")), read(format!("{pair}/dst/params.json").as_ref()));
    // Of the vocabulary these files often say -1, so it is not read there.
    for key in ["dim", "n_layers", "n_heads", "n_kv_heads"] {
        assert_eq!(written[key], theirs[key], "{key}");
    }
    // Their head size is the width over the heads, and their reader knows no entry for it.
    assert_eq!(written.get("head_dim"), None);
    assert_eq!(written["norm_eps"], theirs["norm_eps"]);
    assert!(run.stderr.contains("`max_position_embeddings` of config.json"), "{}", run.stderr);
    // Which is read on the way back.
    let run = folder.run(&["--from", "llama/meta", "--to", "llama/hf", "out", "back"]).ok();
    assert!(run.stderr.contains("from params.json `n_heads`"), "{}", run.stderr);
    assert_eq!(read(&folder.join("back/config.json"))["num_key_value_heads"], theirs["n_kv_heads"]);
}

/// A file that is named alone has its config beside it; what else lies there may be another model's.
#[test]
fn the_config_of_a_file_that_is_named_alone_goes_along() {
    let folder = source(&config());
    let file = "src/model.safetensors";
    let run = folder.run(&["--mapping", "family.json", "--from", "ours", "--to", "same", file, "out"]).ok();
    assert_eq!(names(&folder.join("out")), ["config.json", "model.safetensors"]);
    let read = |path: &str| std::fs::read(folder.join(path)).expect("readable");
    assert_eq!(read("out/config.json"), read("src/config.json"));
    assert!(run.stderr.contains("carried over unchanged: config.json"), "{}", run.stderr);
    assert!(run.stderr.contains("config.json still says that it is a `ours`"), "{}", run.stderr);

    // A config that the caller names gets the name that the target's framework looks for, and is the one that counts.
    folder.put("mine.json", json!({ "kind": "ours", "heads": 6, "width": 20, "twice": 12 }).to_string());
    let named = ["--mapping", "family.json", "--from", "ours", "--to", "same", "--config", "mine.json"];
    folder.run(&[&named[..], &[file, "mine"]].concat()).ok();
    assert_eq!(names(&folder.join("mine")), ["config.json", "model.safetensors"]);
    assert_eq!(read("mine/config.json"), read("mine.json"));

    // One that does not serve the target is written in its words, and no copy of the first stands beside it.
    folder.run(&["--mapping", "family.json", "--from", "ours", "--to", "theirs", file, "theirs"]).ok();
    assert_eq!(names(&folder.join("theirs")), ["model.safetensors", "params.json"]);

    // Without a config nothing goes along, and a file as output has nothing beside it.
    folder.run(&["--mapping", "family.json", "--from", "ours", "--to", "same", file, "x.safetensors"]).ok();
    assert!(!folder.names().contains(&"config.json".to_owned()));
    std::fs::remove_file(folder.join("src/config.json")).expect("removes");
    let bare = ["--axis", "h=3", "--allow", "missing-config", file, "bare"];
    folder.run(&[&SAME[..], &bare].concat()).ok();
    assert_eq!(names(&folder.join("bare")), ["model.safetensors"]);
}

const SAME: [&str; 6] = ["--mapping", "family.json", "--from", "ours", "--to", "same"];

#[cfg(unix)]
#[test]
fn links_and_odd_files_are_not_carried_over() {
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::symlink;
    let folder = source(&config());
    folder.put("secret.txt", "secret");
    // What stays in the folder is no harm, nor is what nobody can open.
    symlink("vocab.txt", folder.join("src/merges.txt")).expect("a link");
    symlink("nowhere", folder.join("src/gone.txt")).expect("a link");
    symlink("/dev/zero", folder.join("src/zero.jinja")).expect("a link");
    let run = |more: &[&str]| folder.run(&[&SAME[..], more].concat());
    run(&["src", "out"]).fails(&["format/path-escape", "zero.jinja", "--allow outside-link"]);
    let told = run(&["--allow", "outside-link", "src", "dev"]).ok().stderr;
    assert!(told.contains("convert/companion") && told.contains("no regular file"), "{told}");
    assert!(!names(&folder.join("dev")).contains(&"zero.jinja".to_owned()));
    std::fs::remove_file(folder.join("src/zero.jinja")).expect("removes");
    symlink("../secret.txt", folder.join("src/key.txt")).expect("a link");
    run(&["src", "out"]).fails(&["format/path-escape", "key.txt"]);
    assert!(!folder.join("out").exists());
    run(&["--allow", "outside-link", "src", "link"]).ok();
    assert_eq!(std::fs::read(folder.join("link/key.txt")).expect("carried"), b"secret");
    std::fs::remove_file(folder.join("src/key.txt")).expect("removes");

    let odd = std::ffi::OsString::from_vec(b"caf\xe9.json".to_vec());
    std::fs::write(folder.join("src").join(odd), "{}").expect("writes");
    let told = run(&["--max-companion-size", "20", "src", "out"]).ok().stderr;
    for text in ["not UTF-8", "generation_config.json", "more than 20", "--max-companion-size 26"] {
        assert!(told.contains(text), "{text}: {told}");
    }
    let made = names(&folder.join("out"));
    assert!(made.contains(&"merges.txt".to_owned()) && !made.contains(&"generation_config.json".to_owned()));
    assert!(!folder.join("out/merges.txt").is_symlink());
}

/// A snapshot in the cache of huggingface_hub is made of links to `blobs/`.
#[cfg(unix)]
#[test]
fn a_snapshot_of_the_hub_is_carried_over() {
    use std::os::unix::fs::symlink;
    let folder = source(&config());
    let hash = "0123456789abcdef0123456789abcdef01234567";
    for name in ["hub/blobs", "hub/snapshots/main"] {
        std::fs::create_dir_all(folder.join(name)).expect("a folder");
    }
    std::fs::copy(folder.join("src/model.safetensors"), folder.join("hub/snapshots/main/model.safetensors"))
        .expect("copies");
    folder.put(&format!("hub/blobs/{hash}"), "tokens");
    let link = folder.join("hub/snapshots/main/tokenizer.json");
    symlink(format!("../../blobs/{hash}"), &link).expect("a link");
    let args = ["--axis", "h=3", "--allow", "missing-config", "hub/snapshots/main", "out"];
    let run = |out: &str| folder.run(&[&SAME[..], &args[..5], &[out]].concat());
    run("out").ok();
    assert_eq!(std::fs::read(folder.join("out/tokenizer.json")).expect("carried"), b"tokens");
    // Nothing else in the repository's folder is content.
    folder.put("hub/blobs/key", "secret");
    std::fs::remove_file(&link).expect("removes");
    symlink("../../blobs/key", &link).expect("a link");
    run("other").fails(&["format/path-escape"]);
}
