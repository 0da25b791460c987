//! What a user sees of the command line: exit codes, what is printed where, what is left on the disk.

use serde_json::Value;

use crate::kit::{self, Folder, Tensor, Tensors};

/// A model of that many layers with separate projections, and an embedding that no rule holds.
fn model(layers: u64) -> Tensors {
    let mut tensors = Tensors::from([("embed.weight".to_owned(), Tensor::index(&[11, 6], 1))]);
    for layer in 0..layers {
        for (at, part) in ["q_proj", "k_proj", "v_proj", "out_proj"].iter().enumerate() {
            let base = 1000 * (layer * 4 + at as u64 + 1);
            tensors.insert(format!("layers.{layer}.attn.{part}.weight"), Tensor::index(&[6, 6], base));
            tensors.insert(format!("layers.{layer}.attn.{part}.bias"), Tensor::index(&[6], base + 500));
        }
    }
    tensors
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &model(3));
    folder
}

const HEADS: [&str; 2] = ["--axis", "h=3"];

#[test]
fn a_conversion_writes_its_summary_to_stderr_alone() {
    let folder = folder();
    let run = folder.convert("separate", "per-head", &HEADS).ok();
    assert_eq!(run.stdout, "");
    for text in ["separate -> per-head", "h = 3", "proved", "wrote out.safetensors", "1 other tensor passed"]
    {
        assert!(run.stderr.contains(text), "`{text}` is not in {}", run.stderr);
    }
    assert!(!run.stderr.contains('\u{1b}'), "no escapes in a pipe");
    let made = kit::read(&folder.join("out.safetensors"));
    assert_eq!(made["embed.weight"], model(3)["embed.weight"]);
    assert_eq!(made["layers.2.attn.heads.1.q_proj.weight"].shape, [2, 6]);
}

#[test]
fn quiet_prints_nothing_unless_it_fails() {
    let folder = folder();
    let run = folder.convert("separate", "per-head", &["--axis", "h=3", "--quiet"]).ok();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""));
    let run = folder.convert("separate", "per-head", &["--axis", "h=3", "--quiet"]);
    run.fails(&["out.safetensors", "--force"]);
}

#[test]
fn a_wrong_command_line_is_2() {
    let folder = folder();
    for args in [
        &["--to", "per-head", "in.safetensors", "out.safetensors"][..],
        &["--from", "separate", "--to", "per-head", "in.safetensors"],
        &["--from", "separate", "--to", "per-head", "--axis", "h", "in.safetensors", "out.safetensors"],
        &["--from", "separate", "--to", "per-head", "--axis", "h=0", "in.safetensors", "out.safetensors"],
        &["--from", "separate", "--to", "per-head", "--threads", "0", "in.safetensors", "out.safetensors"],
        &["--from", "separate", "--to", "per-head", "--allow", "all", "in.safetensors", "out.safetensors"],
        &["--from", "separate", "--to", "per-head", "--only", "[", "in.safetensors", "out.safetensors"],
        &["--no-such-flag"],
        &["mapping", "frobnicate"],
    ] {
        let run = folder.run(args);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{args:?}: {}", run.stderr);
        assert!(!run.stderr.is_empty(), "{args:?}");
    }
    assert_eq!(folder.names(), ["in.safetensors"]);
}

#[test]
fn help_and_version_are_results() {
    let folder = Folder::new();
    for args in [&["--help"][..], &["--version"], &["mapping", "--help"], &["mapping", "show", "--help"]] {
        let run = folder.run(args).ok();
        assert!(run.stderr.is_empty() && !run.stdout.is_empty(), "{args:?}");
    }
    let help = folder.run(&["--help"]).stdout;
    assert!(help.contains("Example"), "{help}");
}

#[test]
fn a_dry_run_shows_the_plan_and_writes_nothing() {
    let folder = folder();
    let run = folder.convert("separate", "per-head", &["--axis", "h=3", "--dry-run"]).ok();
    assert_eq!(folder.names(), ["in.safetensors"]);
    for text in ["layers.{0..2}.attn.heads.{0..2}.q_proj.weight", "F32 [2, 6]", "embed.weight", "unchanged"] {
        assert!(run.stdout.contains(text), "`{text}` is not in {}", run.stdout);
    }
    assert!(run.stdout.lines().count() < 30, "it is folded: {}", run.stdout);
    assert!(run.stderr.contains("nothing was"), "{}", run.stderr);
    // Also where the destination exists already: nothing would be replaced by looking.
    folder.put("out.safetensors", "old");
    folder.convert("separate", "per-head", &["--axis", "h=3", "--dry-run"]).ok();
    assert_eq!(std::fs::read(folder.join("out.safetensors")).expect("is there"), b"old");
}

fn report(folder: &Folder, name: &str) -> Value {
    let text = std::fs::read_to_string(folder.join(name)).expect("a report");
    let mut report: Value = serde_json::from_str(&text).expect("JSON");
    assert!(report["time"].is_object(), "{text}");
    report["time"] = Value::Null;
    report
}

#[test]
fn reports_are_the_same_but_for_the_time() {
    let folder = folder();
    let mut reports = Vec::new();
    for threads in ["1", "3", "3"] {
        let args = ["--axis", "h=3", "--force", "--threads", threads, "--report", "report.json"];
        folder.convert("separate", "per-head", &args).ok();
        reports.push(report(&folder, "report.json"));
    }
    assert_eq!(reports[0], reports[1]);
    assert_eq!(reports[1], reports[2]);
    let report = &reports[0];
    assert_eq!(report["from"], "separate");
    assert_eq!(report["totals"]["source_tensors"], 25);
    assert_eq!(report["written"], true);
    let q = report["tensors"].as_array().expect("a list").iter();
    let q =
        q.clone().find(|tensor| tensor["key"] == "layers.1.attn.heads.2.q_proj.weight").expect("is there");
    assert_eq!(q["sources"], serde_json::json!(["layers.1.attn.q_proj.weight"]));
}

#[test]
fn an_existing_destination_is_kept() {
    let folder = folder();
    folder.put("out.safetensors", "precious");
    folder.convert("separate", "per-head", &HEADS).fails(&["out.safetensors", "--force"]);
    assert_eq!(std::fs::read(folder.join("out.safetensors")).expect("is there"), b"precious");
    folder.convert("separate", "per-head", &["--axis", "h=3", "--force"]).ok();
    assert_eq!(kit::read(&folder.join("out.safetensors")).len(), 1 + 3 * 22);
    assert_eq!(folder.names(), ["in.safetensors", "out.safetensors"]);
}

#[test]
fn a_source_is_never_written_to() {
    let folder = folder();
    let old = std::fs::read(folder.join("in.safetensors")).expect("is there");
    std::fs::create_dir(folder.join("sub")).expect("a folder");
    let mut names = vec!["in.safetensors", "./in.safetensors", "sub/../in.safetensors"];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("in.safetensors", folder.join("soft.safetensors")).expect("a link");
        std::fs::hard_link(folder.join("in.safetensors"), folder.join("hard.safetensors")).expect("a link");
        names.extend(["soft.safetensors", "hard.safetensors"]);
    }
    for name in names {
        let args =
            ["--from", "separate", "--to", "per-head", "--axis", "h=3", "--force", "in.safetensors", name];
        folder.run(&args).fails(&["source"]);
        assert_eq!(std::fs::read(folder.join("in.safetensors")).expect("is there"), old, "{name}");
    }
    // A folder whose only checkpoint is the source.
    let inside = Folder::new();
    inside.tensors("model.safetensors", &model(1));
    let old = std::fs::read(inside.join("model.safetensors")).expect("is there");
    inside
        .run(&["--from", "separate", "--to", "timm", "--axis", "h=3", "--force", ".", "."])
        .fails(&["source"]);
    assert_eq!(std::fs::read(inside.join("model.safetensors")).expect("is there"), old);
    assert_eq!(inside.names(), ["model.safetensors"]);
}

#[test]
fn only_and_drop_choose_tensors() {
    let folder = folder();
    let args = [
        "--axis",
        "h=3",
        "--only",
        "layers.1.*",
        "--drop",
        "*.bias",
        "--allow",
        "index-gap",
        "--report",
        "r.json",
    ];
    folder.convert("separate", "timm", &args).ok();
    let made = kit::read(&folder.join("out.safetensors"));
    assert_eq!(made.keys().collect::<Vec<_>>(), ["layers.1.attn.proj.weight", "layers.1.attn.qkv.weight"]);
    let dropped = report(&folder, "r.json")["dropped"].as_array().expect("a list").len();
    assert_eq!(dropped, 25 - 4);
    folder.convert("separate", "timm", &["--only", "nothing.*", "--force"]).fails(&["0 of 25"]);
}

#[test]
fn prefixes_are_stripped_and_added() {
    let folder = Folder::new();
    let wrapped = model(2).into_iter().map(|(key, tensor)| (format!("module.{key}"), tensor)).collect();
    folder.tensors("in.safetensors", &wrapped);
    let args = ["--axis", "h=3", "--strip-prefix", "module", "--add-prefix", "model.net."];
    folder.convert("separate", "timm", &args).ok();
    let made = kit::read(&folder.join("out.safetensors"));
    assert!(made.keys().all(|key| key.starts_with("model.net.")), "{:?}", made.keys());
    assert!(
        made.contains_key("model.net.layers.1.attn.qkv.weight")
            && made.contains_key("model.net.embed.weight")
    );
}

#[test]
fn shards_stay_below_their_size() {
    let folder = folder();
    let args = ["--from", "separate", "--to", "per-head", "--axis", "h=3", "--max-shard-size", "600B"];
    folder.run(&[&args[..], &["in.safetensors", "out"]].concat()).ok();
    let index = std::fs::read_to_string(folder.join("out/model.safetensors.index.json")).expect("an index");
    let index: Value = serde_json::from_str(&index).expect("JSON");
    let whole = {
        folder.convert("separate", "per-head", &HEADS).ok();
        kit::read(&folder.join("out.safetensors"))
    };
    let mut names: Vec<String> = Vec::new();
    let mut total = 0;
    for entry in std::fs::read_dir(folder.join("out")).expect("a folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        if !name.ends_with(".safetensors") {
            continue;
        }
        let tensors = kit::read(&folder.join("out").join(&name));
        let bytes: usize = tensors.values().map(|tensor| tensor.bytes.len()).sum();
        assert!(bytes <= 600, "{name}: {bytes}");
        total += bytes;
        for (key, tensor) in tensors {
            assert_eq!(index["weight_map"][&key], name.as_str());
            assert_eq!(tensor, whole[&key]);
        }
        names.push(name);
    }
    assert!(names.len() > 2, "{names:?}");
    assert_eq!(index["weight_map"].as_object().expect("a map").len(), whole.len());
    assert_eq!(index["metadata"]["total_size"], total);
    // The shards are a source again, by folder and by index.
    for source in ["out", "out/model.safetensors.index.json"] {
        folder.run(&["--from", "per-head", "--to", "separate", "--force", source, "back.safetensors"]).ok();
        assert_eq!(kit::read(&folder.join("back.safetensors")), model(3));
    }
    folder
        .run(&[&args[..], &["in.safetensors", "one.safetensors"]].concat())
        .fails(&["single", "--max-shard-size"]);
    assert!(!folder.names().contains(&"one.safetensors".to_owned()));
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let folder = Folder::new();
    folder.tensors("in.safetensors", &model(9));
    let mut files = Vec::new();
    for threads in ["1", "2", "7"] {
        folder
            .convert(
                "separate",
                "megatron",
                &["--axis", "h=3", "--axis", "g=3", "--threads", threads, "--force"],
            )
            .ok();
        files.push(std::fs::read(folder.join("out.safetensors")).expect("is there"));
    }
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_recorded_layout_is_believed_until_told_otherwise() {
    let folder = folder();
    folder.convert("separate", "pytorch-fused", &HEADS).ok();
    // The sizes are recorded too: no --axis.
    folder.run(&["--from", "pytorch-fused", "--to", "separate", "out.safetensors", "back.safetensors"]).ok();
    assert_eq!(kit::read(&folder.join("back.safetensors")), model(3));
    let wrong =
        ["--from", "separate", "--to", "timm", "--axis", "h=3", "out.safetensors", "wrong.safetensors"];
    folder.run(&wrong).fails(&["attention/pytorch-fused", "--trust-layout"]);
    // The caller's word counts where it is given; that nothing matches is another matter.
    let trusted = folder.run(&[&wrong[..], &["--trust-layout"]].concat());
    assert!(!trusted.stderr.contains("--trust-layout"), "{}", trusted.stderr);
    let llama = [
        "--from",
        "llama-hf",
        "--to",
        "timm",
        "--axis",
        "h=3",
        "--axis",
        "g=3",
        "--trust-layout",
        "back.safetensors",
        "x.safetensors",
    ];
    folder.run(&llama).ok();
}

#[test]
fn mappings_are_listed_and_shown() {
    let folder = Folder::new();
    let list = folder.run(&["mapping", "list"]).ok();
    assert!(list.stderr.is_empty());
    for layout in ["attention/pytorch-fused", "attention/per-head", "attention/llama-meta"] {
        assert!(list.stdout.contains(layout), "{}", list.stdout);
    }
    let show = folder.run(&["mapping", "show", "attention/megatron"]).ok();
    for text in
        ["{*m}.linear_qkv.weight", "(g (q.weight: r d + k.weight: d + v.weight: dv)) e", "num_query_groups"]
    {
        assert!(show.stdout.contains(text), "`{text}` is not in {}", show.stdout);
    }
    // A bare name shows each layout of that name.
    let bare = folder.run(&["mapping", "show", "megatron"]).ok().stdout;
    assert!(bare.contains(&show.stdout) && bare.contains("llama/megatron"), "{bare}");
    let family = folder.run(&["mapping", "show", "attention"]).ok();
    assert!(family.stdout.contains("k.bias: g d") && family.stdout.contains("per-head"), "{}", family.stdout);
    folder.run(&["mapping", "show", "megatrn"]).fails(&["megatrn", "did you mean", "megatron"]);
}

#[test]
fn an_unknown_layout_suggests_the_nearest() {
    let folder = folder();
    folder.convert("pytorch-fusd", "per-head", &HEADS).fails(&["pytorch-fusd", "pytorch-fused"]);
    folder.convert("separate", "attention/perhead", &HEADS).fails(&["perhead", "per-head"]);
    // Both at once.
    folder.convert("sepaate", "perhead", &HEADS).fails(&["sepaate", "perhead", "2 errors"]);
    assert_eq!(folder.names(), ["in.safetensors"]);
}

#[test]
fn a_config_beside_the_source_is_read() {
    let folder = folder();
    folder.put("config.json", r#"{"num_attention_heads": 3}"#);
    let run = folder.convert("separate", "per-head", &[]).ok();
    assert!(run.stderr.contains("config.json `num_attention_heads`"), "{}", run.stderr);
    folder.put("other.json", r#"{"num_attention_heads": 2}"#);
    folder.convert("separate", "per-head", &["--config", "other.json", "--force"]).ok();
    assert_eq!(
        kit::read(&folder.join("out.safetensors"))["layers.0.attn.heads.1.q_proj.weight"].shape,
        [3, 6]
    );
    folder.convert("separate", "per-head", &["--axis", "h=2", "--force"]).fails(&["--axis", "config.json"]);
    folder.put("config.json", "{");
    folder.convert("separate", "per-head", &["--axis", "h=2", "--force"]).fails(&["config.json", "JSON"]);
}

#[test]
fn a_folder_is_made_where_it_is_missing() {
    let folder = folder();
    let args = ["--from", "separate", "--to", "per-head", "--axis", "h=3", "in.safetensors", "new"];
    folder.run(&args).ok();
    assert_eq!(kit::read_folder(&folder.join("new")).len(), 67);
    let args = ["--from", "separate", "--to", "per-head", "--axis", "h=3", "in.safetensors", "no/such/new"];
    folder.run(&args).fails(&["no/such"]);
    let args =
        ["--from", "separate", "--to", "per-head", "--axis", "h=3", "in.safetensors", "in.safetensors/x"];
    folder.run(&args).fails(&["in.safetensors"]);
    assert_eq!(folder.names(), ["in.safetensors", "new"]);
}

#[test]
fn the_first_steps_are_told_without_arguments() {
    let folder = Folder::new();
    let none: [&str; 0] = [];
    let run = folder.run(&none);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.lines().count()), (2, "", 3), "{}", run.stderr);
    for command in ["qkvconv inspect", "qkvconv --from auto", "qkvconv mapping list"] {
        assert!(run.stderr.contains(command), "{}", run.stderr);
    }
}

#[test]
fn a_command_that_is_nearly_one_is_told() {
    let folder = folder();
    for (word, meant) in [("inspct", "inspect"), ("verfy", "verify"), ("maping", "mapping")] {
        folder.run(&[word, "in.safetensors"]).wrong_usage(&[&format!("did you mean `qkvconv {meant}`?")]);
    }
    // A file is no command, whatever its name.
    folder.tensors("inspect.safetensors", &model(1));
    let run = folder.run(&["inspect.safetensors", "out"]);
    assert!(run.code == 2 && !run.stderr.contains("did you mean"), "{}", run.stderr);
}

#[test]
fn help_is_short_and_long() {
    let folder = Folder::new();
    let (short, long) = (folder.run(&["-h"]).ok().stdout, folder.run(&["--help"]).ok().stdout);
    assert!(
        short.lines().count() <= 64 && !short.contains("Example: --") && !short.contains("--void-as"),
        "{short}"
    );
    assert!(long.contains("--void-as") && long.contains("Example: --from pytorch-fused"), "{long}");
    // Each thing that may be allowed is explained.
    assert!(long.contains("- left-behind:") && long.contains("- low-space:"), "{long}");
}

#[test]
fn layouts_are_listed_by_a_word() {
    let folder = Folder::new();
    let all = folder.run(&["mapping", "list"]).ok().stdout;
    let some = folder.run(&["mapping", "list", "QWEN3"]).ok().stdout;
    assert!(some.contains("llama/qwen3") && !some.contains("bert/"), "{some}");
    assert!(all.contains("bert/hf ") && all.lines().count() > 5 * some.lines().count(), "{all}");
    let json: Value =
        serde_json::from_str(&folder.run(&["mapping", "list", "--json", "qwen3"]).ok().stdout).expect("JSON");
    let entry =
        json.as_array().and_then(|all| all.iter().find(|one| one["layout"] == "qwen3")).expect("listed");
    assert!(
        entry["family"] == "llama" && entry["models"].as_array().is_some_and(|all| !all.is_empty()),
        "{entry}"
    );
    folder.run(&["mapping", "list", "no such"]).wrong_usage(&["usage/name", "no such"]);
}

#[test]
fn completions_and_manual_are_made_of_the_command_line() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = folder.run(&["completions", shell]).ok().stdout;
        assert!(script.contains("max-shard-size"), "{shell}");
        // PowerShell's completions know no values.
        assert!(shell == "powershell" || script.contains("attention/pytorch-fused"), "{shell}");
    }
    folder.run(&["man", "man/one"]).ok();
    let pages = kit::names(&folder.join("man/one"));
    assert!(
        pages.contains(&"qkvconv.1".to_owned()) && pages.contains(&"qkvconv-mapping-check.1".to_owned()),
        "{pages:?}"
    );
}

#[test]
fn colours_are_where_they_are_wanted() {
    let folder = Folder::new();
    let coloured = |args: &[&str], variables: &[(&str, &str)]| {
        folder.run_with(args, variables).stderr.contains('\u{1b}')
    };
    let missing = ["inspect", "missing.safetensors"];
    assert!(!coloured(&missing, &[]), "a pipe");
    assert!(coloured(&[&missing[..], &["--color", "always"]].concat(), &[]));
    assert!(coloured(&missing, &[("CLICOLOR_FORCE", "1")]));
    assert!(coloured(&missing, &[("QKVCONV_COLOR", "always")]));
    assert!(!coloured(&missing, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    assert!(!coloured(&[&missing[..], &["--color", "never"]].concat(), &[("CLICOLOR_FORCE", "1")]));
}

#[test]
fn what_only_looks_does_not_say_that_nothing_was_written() {
    let folder = Folder::new();
    let looked =
        folder.run(&["inspect", "some-owner/some-model"]).fails(&["hf download some-owner/some-model"]);
    assert!(looked.stderr.ends_with("qkvconv: 1 error\n"), "{}", looked.stderr);
    let converted = folder.run(&["--from", "llama/hf", "--to", "llama/meta", "missing", "out"]);
    assert!(converted.stderr.ends_with("qkvconv: 1 error; nothing was written\n"), "{}", converted.stderr);
}
