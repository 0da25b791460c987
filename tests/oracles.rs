//! Pairs of checkpoints that two frameworks were seen to compute equally: a conversion of one must give the other, bit
//! for bit, with its names, types and shapes. `tests/oracles/README.md` says where they come from.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use qkvconv::dtype::Dtype;
use qkvconv::format::{OpenOptions, open};
use safetensors::SafeTensors;

#[path = "it/stored.rs"]
mod stored;

use stored::{elements, only_file};

/// Two folders of `tests/oracles` and the layouts in which they hold one model.
struct Pair {
    name: &'static str,
    family: &'static str,
    from: &'static str,
    to: &'static str,
    /// What the conversion has to be told; `@FILE` is a config in the pair's folder.
    forth: &'static [&'static str],
    /// What the conversion of the target has to be told.
    back: &'static [&'static str],
    /// Axes of which one must be named where the config is left out; empty where nothing asks.
    open: &'static [&'static str],
}

#[rustfmt::skip]
const PAIRS: &[Pair] = &[
    Pair { name: "01_torch_mha_to_separate", family: "attention", from: "pytorch-fused", to: "separate", forth: &[], back: &[], open: &[] },
    Pair { name: "03_torch_mha_to_keras_weights_h5", family: "attention", from: "pytorch-fused", to: "keras", forth: &["--add-prefix", "layers/multi_head_attention/", "--axis", "h=5"], back: &["--strip-prefix", "layers/multi_head_attention"], open: &["h"] },
    Pair { name: "03c_torch_gqa_to_keras_gqa_weights_h5", family: "attention", from: "llama-hf", to: "keras-gqa", forth: &["--add-prefix", "layers/grouped_query_attention/", "--axis", "h=6", "--axis", "g=2"], back: &["--strip-prefix", "layers/grouped_query_attention"], open: &["h"] },
    Pair { name: "04_torch_mha_to_flax_msgpack", family: "attention", from: "pytorch-fused", to: "flax", forth: &["--axis", "h=5"], back: &["--root", "params"], open: &["h"] },
    Pair { name: "05_torch_mha_kdim_vdim_to_separate", family: "attention", from: "pytorch-kdim", to: "separate", forth: &[], back: &[], open: &[] },
    Pair { name: "02_torch_encoder_to_perhead_modules", family: "transformer", from: "torch", to: "per-head", forth: &["--axis", "h=3"], back: &[], open: &["h"] },
    Pair { name: "07_hf_bert_to_tfbert_h5", family: "bert", from: "hf", to: "hf-tf", forth: &["--add-prefix", "bert/tf_bert_model/bert/"], back: &["--strip-prefix", "bert/tf_bert_model/bert"], open: &[] },
    Pair { name: "08_hf_bert_to_google_tf1_ckpt", family: "bert", from: "hf", to: "google-tf1", forth: &[], back: &["--axis", "h=3"], open: &[] },
    Pair { name: "60_hf_xlnet_to_tfxlnet_h5", family: "xlnet", from: "hf", to: "hf-tf", forth: &[], back: &[], open: &[] },
    Pair { name: "61_hf_deberta_to_tfdeberta_h5", family: "deberta", from: "hf", to: "hf-tf", forth: &[], back: &[], open: &["h"] },
    Pair { name: "62_hf_debertav2_to_tfdebertav2_h5", family: "deberta", from: "hf-v2", to: "hf-tf-v2", forth: &[], back: &[], open: &[] },
    Pair { name: "11_hf_bert_to_flaxbert_msgpack", family: "bert", from: "hf", to: "hf-flax", forth: &[], back: &[], open: &[] },
    Pair { name: "12_hf_gpt2_to_nanogpt", family: "gpt2", from: "hf", to: "nanogpt", forth: &["--add-prefix", "_orig_mod."], back: &["--root", "model", "--strip-prefix", "_orig_mod", "--axis", "h=3"], open: &[] },
    Pair { name: "12c_hf_gpt2_to_flaxgpt2_msgpack", family: "gpt2", from: "hf", to: "hf-flax", forth: &[], back: &[], open: &[] },
    Pair { name: "13_hf_gpt2_to_transformerlens", family: "gpt2", from: "hf", to: "transformer-lens", forth: &[], back: &[], open: &["h"] },
    Pair { name: "14_hf_neox_to_transformerlens", family: "gpt-neox", from: "hf", to: "transformer-lens", forth: &[], back: &[], open: &["h"] },
    Pair { name: "15_hf_bloom_to_transformerlens", family: "bloom", from: "hf", to: "transformer-lens", forth: &[], back: &[], open: &["h"] },
    Pair { name: "17_hf_falcon_gqa_to_phi", family: "falcon", from: "new-decoder-one-norm", to: "phi", forth: &[], back: &[], open: &["h"] },
    Pair { name: "17b_hf_falcon40b_to_separate", family: "falcon", from: "new-decoder", to: "separate", forth: &[], back: &["@src/config.json"], open: &["h"] },
    Pair { name: "18_hf_llama_to_meta_llama", family: "llama", from: "hf", to: "meta", forth: &[], back: &[], open: &[] },
    Pair { name: "19_hf_llama_to_gguf", family: "llama", from: "hf", to: "gguf", forth: &[], back: &["--axis", "h=6"], open: &[] },
    Pair { name: "20_hf_llama_to_megatron", family: "llama", from: "hf", to: "megatron", forth: &[], back: &["@src/config.json", "--root", "model"], open: &[] },
    Pair { name: "21_internlm2_to_hf_llama", family: "llama", from: "internlm2", to: "hf", forth: &[], back: &[], open: &[] },
    Pair { name: "22_hf_phi3_to_mistral", family: "llama", from: "phi3", to: "hf", forth: &[], back: &[], open: &[] },
    Pair { name: "24_qwen1_to_hf_qwen2", family: "llama", from: "qwen1", to: "qwen2", forth: &[], back: &[], open: &[] },
    Pair { name: "41_sharded_llama_to_phi3_bf16", family: "llama", from: "hf", to: "phi3", forth: &[], back: &[], open: &[] },
    Pair { name: "50_hf_llama_to_kerashub", family: "llama", from: "hf", to: "keras-hub", forth: &[], back: &[], open: &[] },
    Pair { name: "59_hf_llama_to_litgpt", family: "llama", from: "hf", to: "litgpt", forth: &[], back: &["@src/config.json", "--root", "model"], open: &[] },
    Pair { name: "59b_hf_neox_to_litgpt", family: "gpt-neox", from: "hf", to: "litgpt", forth: &[], back: &["@src/config.json", "--root", "model"], open: &[] },
    Pair { name: "25_openclip_to_hf_clip", family: "clip", from: "openai", to: "hf", forth: &["--strip-prefix", "module", "--root", "state_dict"], back: &["--add-prefix", "module."], open: &[] },
    Pair { name: "26_timm_vit_to_hf_vit_f16", family: "vit", from: "timm", to: "hf", forth: &[], back: &[], open: &[] },
    Pair { name: "27_augreg_npz_to_timm", family: "vit", from: "jax-npz", to: "timm", forth: &[], back: &["--axis", "h=3"], open: &[] },
    Pair { name: "28_timm_beit_to_hf_beit", family: "beit", from: "timm", to: "hf", forth: &["--root", "model"], back: &[], open: &[] },
    Pair { name: "30_facebook_detr_to_hf_detr", family: "detr", from: "facebook", to: "hf", forth: &["--root", "model"], back: &[], open: &[] },
    Pair { name: "31_openai_whisper_to_hf", family: "whisper", from: "openai", to: "hf", forth: &[], back: &[], open: &[] },
    Pair { name: "32_hf_t5_to_flaxt5_msgpack", family: "t5", from: "hf", to: "hf-flax", forth: &[], back: &[], open: &[] },
    Pair { name: "32c_hf_t5_to_t5x", family: "t5", from: "hf", to: "t5x", forth: &[], back: &["--root", "optimizer/target", "--axis", "h=3"], open: &[] },
    Pair { name: "33_sam_encoder_to_hf_sam", family: "sam", from: "meta", to: "hf", forth: &[], back: &[], open: &[] },
    Pair { name: "34_hf_gemma_gqa_to_flax_gemma", family: "gemma", from: "hf", to: "flax-gqa", forth: &[], back: &[], open: &[] },
    Pair { name: "36_hf_codegen_to_gptj_bf16", family: "gptj", from: "codegen", to: "hf", forth: &[], back: &[], open: &[] },
    Pair { name: "38_hf_gptbigcode_mqa_to_gpt2", family: "gpt2", from: "bigcode-mqa", to: "hf", forth: &[], back: &[], open: &[] },
    Pair { name: "39_mixtral_experts_v4_to_v5_fused", family: "mixtral", from: "hf-v4", to: "hf-v5", forth: &[], back: &[], open: &[] },
    Pair { name: "42_bin_nested_strided_tied_bf16", family: "transformer", from: "torch-lm", to: "separate-lm", forth: &["--root", "state_dict", "--strip-prefix", "module", "--axis", "h=3"], back: &["--axis", "h=3", "--add-prefix", "module."], open: &[] },
    Pair { name: "43_hf_neox_partial_rope_to_gptj", family: "gptj", from: "neox", to: "hf", forth: &[], back: &[], open: &["h"] },
    Pair { name: "57_bfl_flux_to_diffusers_bf16", family: "flux", from: "bfl", to: "diffusers", forth: &[], back: &[], open: &[] },
    Pair { name: "58_allenai_olmo_to_hf_olmo", family: "olmo", from: "ai2", to: "hf", forth: &["--axis", "h=6", "--axis", "g=2", "--axis", "d=8"], back: &[], open: &[] },
];

/// A tensor's type, shape and bytes, by name.
type Tensors = BTreeMap<String, (Dtype, Vec<u64>, Vec<u8>)>;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles")
}

impl Pair {
    fn named(name: &str) -> &'static Pair {
        PAIRS.iter().find(|pair| pair.name.starts_with(name)).expect("a pair of the table")
    }

    fn path(&self, file: &str) -> PathBuf {
        folder().join(self.name).join(file)
    }

    /// Returns what a caller hands over: the one file, or the folder of a checkpoint of several.
    fn checkpoint(&self, side: &str) -> PathBuf {
        only_file(self.path(side))
    }

    /// Returns the tensors of a side, below the container that the caller names.
    fn tensors(&self, side: &str) -> Tensors {
        let args = if side == "src" { self.forth } else { self.back };
        let root = args.iter().position(|arg| *arg == "--root").map(|at| args[at + 1].to_owned());
        let mut tensors = read(&self.checkpoint(side), root);
        // What a training run keeps beside the weights.
        tensors.retain(|name, _| {
            !name.ends_with("/adam_m") && !name.ends_with("/adam_v") && name != "global_step"
        });
        tensors
    }

    fn command(&self, from: &str, to: &str, source: &Path, target: &Path) -> Command {
        let mut command = Command::cargo_bin("qkvconv").expect("the binary is built");
        command.args(["--from", &format!("{}/{from}", self.family)]);
        command.args(["--to", &format!("{}/{to}", self.family)]);
        command.args([source, target]);
        command
    }

    fn told(&self, mut command: Command, args: &[&str]) -> Command {
        for arg in args {
            match arg.strip_prefix('@') {
                Some(config) => command.arg("--config").arg(self.path(config)),
                None => command.arg(arg),
            };
        }
        command
    }

    fn forth(&self, target: &Path) -> Command {
        self.told(self.command(self.from, self.to, &self.checkpoint("src"), target), self.forth)
    }

    fn back(&self, target: &Path) -> Command {
        self.told(self.command(self.to, self.from, &self.checkpoint("dst"), target), self.back)
    }
}

/// Reads a checkpoint in any format, element by element through its strides.
fn read(path: &Path, root: Option<String>) -> Tensors {
    let options = OpenOptions::default().root(root);
    let reader = open(path, &options).unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
    let mut tensors = Tensors::new();
    for tensor in &reader.catalog().tensors {
        let bytes = elements(&*reader, tensor);
        tensors.insert(tensor.key.clone(), (tensor.dtype, tensor.shape.clone(), bytes));
    }
    assert!(!tensors.is_empty(), "no tensors in {}", path.display());
    tensors
}

/// Returns what differs, in words; empty where nothing does.
fn differences(found: &Tensors, wanted: &Tensors) -> Vec<String> {
    let missing = wanted.keys().filter(|name| !found.contains_key(*name)).map(|name| format!("no {name}"));
    let extra = found.keys().filter(|name| !wanted.contains_key(*name)).map(|name| format!("extra {name}"));
    let other = wanted.iter().filter_map(|(name, (dtype, shape, bytes))| {
        let (found_dtype, found_shape, found_bytes) = found.get(name)?;
        if (found_dtype, found_shape) != (dtype, shape) {
            return Some(format!("{name}: {found_dtype:?} {found_shape:?}, wanted {dtype:?} {shape:?}"));
        }
        (found_bytes != bytes).then(|| format!("{name}: other bytes"))
    });
    missing.chain(extra).chain(other).collect()
}

/// Runs a conversion and returns what differs from the other framework's checkpoint.
fn compare(mut command: Command, output: &Path, wanted: &Tensors) -> Vec<String> {
    let run = command.output().expect("the binary runs");
    if !run.status.success() {
        return vec![String::from_utf8_lossy(&run.stderr).into_owned()];
    }
    differences(&read(output, None), wanted)
}

/// Runs a check for each pair and reports all that fail.
fn for_each_pair(check: impl Fn(&Pair, &Path) -> Vec<String>) {
    let mut failed = Vec::new();
    for pair in PAIRS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let wrong = check(pair, &folder.path().join("out.safetensors"));
        if !wrong.is_empty() {
            failed.push(format!("{}:\n  {}", pair.name, wrong.join("\n  ")));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_conversion_gives_what_the_other_framework_stores() {
    for_each_pair(|pair, output| compare(pair.forth(output), output, &pair.tensors("dst")));
}

#[test]
fn the_way_back_gives_the_source() {
    for_each_pair(|pair, output| compare(pair.back(output), output, &pair.tensors("src")));
}

#[test]
fn the_own_output_goes_back_without_a_config() {
    // What a run records in the file stands for the config that the output lacks.
    for name in ["13", "21", "36", "43"] {
        let pair = Pair::named(name);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (there, back) = (folder.path().join("there.safetensors"), folder.path().join("back.safetensors"));
        let mut forth = pair.forth(&there);
        assert_eq!(run(&mut forth), "", "{name}");
        let command = pair.command(pair.to, pair.from, &there, &back);
        assert_eq!(compare(command, &back, &pair.tensors("src")), [""; 0], "{name}");
    }
}

/// Runs a conversion; returns what it said where it failed.
fn run(command: &mut Command) -> String {
    let run = command.output().expect("the binary runs");
    if run.status.success() { String::new() } else { String::from_utf8_lossy(&run.stderr).into_owned() }
}

/// Counts the target tensors of a plan: the lines that are not indented, `name (2)  F32 [48]` standing for two.
fn shown_tensors(plan: &str) -> usize {
    let lines = plan.lines().filter(|line| !line.starts_with(' ') && line.contains("  "));
    let names = lines.filter_map(|line| line.split("  ").next());
    let count = |name: &str| name.strip_suffix(')')?.rsplit_once('(')?.1.parse().ok();
    names.map(|name| count(name).unwrap_or(1)).sum()
}

#[test]
fn a_dry_run_shows_every_target_tensor_and_writes_nothing() {
    for_each_pair(|pair, output| {
        let run = pair.forth(output).arg("--dry-run").output().expect("the binary runs");
        let shown = String::from_utf8_lossy(&run.stdout).into_owned();
        let mut wrong = Vec::new();
        if !run.status.success() {
            wrong.push(String::from_utf8_lossy(&run.stderr).into_owned());
        }
        if output.exists() {
            wrong.push("something was written".to_owned());
        }
        let (shown, wanted) = (shown_tensors(&shown), pair.tensors("dst").len());
        if shown != wanted {
            wrong.push(format!("{shown} target tensors are shown, wanted {wanted}"));
        }
        wrong
    });
}

#[test]
fn an_open_size_is_named_where_the_config_is_left_out() {
    for_each_pair(|pair, output| {
        let source = pair.checkpoint("src");
        if source.is_dir() || pair.open.is_empty() {
            return Vec::new();
        }
        let bare = output.with_file_name("bare.safetensors");
        fs::copy(&source, &bare).expect("a copy");
        let mut command = pair.command(pair.from, pair.to, &bare, output);
        let run = command.args(["--allow", "missing-config"]).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        let named = pair.open.iter().all(|axis| said.contains(&format!("the size of `{axis}` is open")));
        if run.status.code() == Some(1) && named && !output.exists() { Vec::new() } else { vec![said] }
    });
}

#[test]
fn a_rotary_size_is_never_assumed() {
    let pair = Pair::named("43");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (bare, output) = (folder.path().join("bare.safetensors"), folder.path().join("out.safetensors"));
    fs::copy(pair.checkpoint("src"), &bare).expect("a copy");
    let mut command = pair.command(pair.from, pair.to, &bare, &output);
    let run = command.args(["--allow", "missing-config", "--axis", "h=3"]).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("the size of `rot` is open"), "{said}");
    let mut command = pair.command(pair.from, pair.to, &bare, &output);
    command.args(["--allow", "missing-config", "--axis", "h=3", "--axis", "rot=8"]);
    assert_eq!(compare(command, &output, &pair.tensors("dst")), [""; 0]);
}

/// Runs a conversion with an entry of a pair's config changed; returns what it said where it failed.
fn with_config(command: &mut Command, config: &Path, change: impl Fn(&mut serde_json::Value)) -> String {
    let text = fs::read_to_string(config).expect("a config");
    let mut value = serde_json::from_str(&text).expect("JSON");
    change(&mut value);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let changed = folder.path().join("config.json");
    fs::write(&changed, value.to_string()).expect("a config");
    run(command.arg("--config").arg(changed))
}

#[test]
fn a_config_that_the_shapes_contradict_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = folder.path().join("out.safetensors");
    // Qwen's `intermediate_size` is twice the width, so the width itself is wrong.
    let pair = Pair::named("24");
    let config = self::folder().join(pair.name).join("src/config.json");
    let said = with_config(&mut pair.forth(&output), &config, |value| {
        value["intermediate_size"] = 56.into();
    });
    assert!(said.contains("`f` = 28 (config.json `intermediate_size`)"), "{said}");
    // Falcon rotates whole heads: a Phi that rotates half of each has no place there.
    let pair = Pair::named("17_");
    let config = self::folder().join(pair.name).join("dst/config.json");
    let said = with_config(&mut pair.back(&output), &config, |value| {
        value["rope_parameters"]["partial_rotary_factor"] = 0.5.into();
    });
    assert!(said.contains("partial_rotary_factor"), "{said}");
    assert!(!output.exists());
}

#[test]
fn a_bias_that_the_target_lacks_must_be_zeros() {
    let pair = Pair::named("14");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (changed, output) =
        (folder.path().join("changed.safetensors"), folder.path().join("out.safetensors"));
    let mut bytes = fs::read(pair.checkpoint("dst")).expect("a checkpoint");
    let (header, metadata) = SafeTensors::read_metadata(&bytes).expect("a safetensors file");
    let (begin, _) = metadata.info("unembed.b_U").expect("the bias").data_offsets;
    bytes[8 + header + begin..][..4].copy_from_slice(&1_f32.to_le_bytes());
    fs::write(&changed, bytes).expect("a checkpoint");
    let said = run(&mut pair.command(pair.to, pair.from, &changed, &output));
    assert!(said.contains("unembed.b_U"), "{said}");
    assert!(!output.exists());
}

/// A plausible misreading of a pair's source: a replacement in its mapping file.
struct Misreading {
    pair: &'static str,
    right: &'static str,
    wrong: &'static str,
    /// Tensors that must come out otherwise.
    spoilt: &'static str,
}

const MISREADINGS: &[Misreading] = &[
    // Per head read as thirds.
    Misreading {
        pair: "14",
        right: "(h (q.weight: d + k.weight: d + v.weight: dv)) e",
        wrong: "(q.weight: h d + k.weight: h d + v.weight: h dv) e",
        spoilt: "attn.W_",
    },
    Misreading {
        pair: "15",
        right: "(h (q.weight: d + k.weight: d + v.weight: dv)) e",
        wrong: "(q.weight: h d + k.weight: h d + v.weight: h dv) e",
        spoilt: "attn.W_",
    },
    // Thirds read per head.
    Misreading {
        pair: "13",
        right: "e (q.weight: h d + k.weight: h d + v.weight: h dv)",
        wrong: "e (h (q.weight: d + k.weight: d + v.weight: dv))",
        spoilt: "attn.W_",
    },
    // A square matrix read transposed.
    Misreading { pair: "13", right: "o.weight: (h dv) e", wrong: "o.weight: e (h dv)", spoilt: "attn.W_O" },
    // Per group read flat.
    Misreading {
        pair: "21",
        right: "(g (q.weight: r d + k.weight: d + v.weight: dv)) e",
        wrong: "(q.weight: h d + k.weight: g d + v.weight: g dv) e",
        spoilt: "_proj.weight",
    },
    // Up before gate.
    Misreading {
        pair: "22",
        right: "(gate.weight: f + up.weight: f) e",
        wrong: "(up.weight: f + gate.weight: f) e",
        spoilt: "_proj.weight",
    },
    // CodeGen's order q, v, k read as q, k, v.
    Misreading {
        pair: "36",
        right: "(b (q.weight: hb r d + v.weight: hb dv + k.weight: hb d)) e",
        wrong: "(b (q.weight: hb r d + k.weight: hb d + v.weight: hb dv)) e",
        spoilt: "_proj.weight",
    },
    // Interleaved rotary pairs read as half-split.
    Misreading {
        pair: "43",
        right: r#""axes": { "rot": "f2 c" }"#,
        wrong: r#""axes": { "rot": "c f2" }"#,
        spoilt: "attn.",
    },
    // Shift and scale in one order on both sides.
    Misreading {
        pair: "57",
        right: "(out.scale.weight: e + out.shift.weight: e) ei",
        wrong: "(out.shift.weight: e + out.scale.weight: e) ei",
        spoilt: "norm_out.linear.weight",
    },
];

#[test]
fn a_misread_layout_gives_other_tensors() {
    for misreading in MISREADINGS {
        let pair = Pair::named(misreading.pair);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mapping, output) = (folder.path().join("wrong.json"), folder.path().join("out.safetensors"));
        let mappings = Path::new(env!("CARGO_MANIFEST_DIR")).join("mappings");
        let text =
            fs::read_to_string(mappings.join(format!("{}.json", pair.family))).expect("the mapping file");
        assert!(text.contains(misreading.right), "{}: {} is gone", pair.name, misreading.right);
        fs::write(&mapping, text.replace(misreading.right, misreading.wrong)).expect("a mapping file");
        let mut command = pair.forth(&output);
        command.arg("--mapping").arg(&mapping);
        // What its own `forward` sees at once is for the readings that come after it.
        command.args(["--verify", "readback"]);
        let wrong = compare(command, &output, &pair.tensors("dst"));
        assert!(!wrong.is_empty(), "{}: `{}` gives the same tensors", pair.name, misreading.wrong);
        let bytes = |line: &String| line.contains(misreading.spoilt) && line.ends_with(": other bytes");
        assert!(wrong.iter().all(bytes), "{}: {}", pair.name, wrong.join("\n"));
    }
}
