//! Mappings inferred from two checkpoints: of every family's models, and of the pairs that two frameworks wrote.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use qkvconv::bind::BindOptions;
use qkvconv::convert::{Conversion, ConvertOptions, Verify};
use qkvconv::diag::Errors;
use qkvconv::exec::Limits;
use qkvconv::exec::publish::{Destination, PublishOptions};
use qkvconv::format::{OpenOptions, open};
use qkvconv::infer::{Inferred, Side, infer};
use qkvconv::mapping::select::select;
use qkvconv::provenance::Provenance;
use qkvconv::span::Source;

use crate::families::{Model, models, write_base};
use crate::kit::{self, Folder, Nobody, Tensor, Tensors, read, two_at_a_time, write};
use crate::stored::{elements, only_file};

/// A checkpoint's tensors: type, shape and bytes by name.
type Contents = BTreeMap<String, (String, Vec<u64>, Vec<u8>)>;

fn contents(path: &Path, root: Option<&str>) -> Contents {
    let options = OpenOptions::default().root(root.map(str::to_owned));
    let reader = open(path, &options).unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
    let read = |tensor: &qkvconv::catalog::TensorMeta| {
        let bytes = elements(&*reader, tensor);
        (tensor.key.clone(), (tensor.dtype.to_string(), tensor.shape.clone(), bytes))
    };
    reader.catalog().tensors.iter().map(read).collect()
}

fn convert(
    (from, to): (&str, &str),
    axes: &[(String, u64)],
    (source, root): (&Path, Option<&str>),
    target: &Path,
    mapping: &[Arc<Source>],
) -> Result<(), Errors> {
    let selection = select(from, to, mapping)?;
    let bind = BindOptions::default().axes(axes.to_vec());
    let open = OpenOptions::default().root(root.map(str::to_owned));
    let options = ConvertOptions::default()
        .open(open)
        .bind(bind)
        .companions(root.is_none() && source.is_dir())
        .trust_layout(true);
    let conversion = Conversion::prepare(&selection, source, &options)?;
    let limits = Limits::default().threads(1);
    let publish = PublishOptions::default().force(true);
    conversion.run(&Destination::Folder(target.to_owned()), publish, Verify::None, &limits, &Nobody)?;
    Ok(())
}

/// A checkpoint, and the container of the weights in it.
type Place<'a> = (&'a Path, Option<&'a str>);

fn side((path, root): Place<'_>, layout: &str) -> Side {
    let open = OpenOptions::default().root(root.map(str::to_owned));
    let provenance = Provenance::read(path, None, [], None).expect("configs");
    let config = provenance.within(None, &[]).config().cloned();
    Side { path: path.to_owned(), open, config, layout: layout.to_owned() }
}

fn inferred(source: Place<'_>, target: Place<'_>) -> Result<Inferred, Errors> {
    let limits = Limits::default().threads(1);
    infer("inferred", &side(source, "source"), &side(target, "target"), &limits, &Nobody)
}

fn mapping(inferred: &Inferred) -> [Arc<Source>; 1] {
    [Arc::new(Source { name: "inferred.json".into(), text: inferred.text.clone() })]
}

/// How a pair went.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// There and back, bit for bit.
    Exact,
    /// There, but not back: the target holds less, or nothing tells a size.
    There(String),
    /// What was not explained.
    Unexplained(String),
    /// An error.
    Failed(String),
    /// A mapping that does not give the target.
    Wrong(String),
}

fn outcome(source: Place<'_>, target: Place<'_>, work: &Path) -> (Outcome, Option<Inferred>) {
    let inferred = match inferred(source, target) {
        Ok(inferred) => inferred,
        Err(errors) => return (Outcome::Failed(errors.to_string()), None),
    };
    if !inferred.unexplained.is_empty() || inferred.text.is_empty() {
        let list = inferred.unexplained.iter().map(|of| format!("{}: {}", of.tensors.join(", "), of.why));
        return (Outcome::Unexplained(list.collect::<Vec<_>>().join("; ")), Some(inferred));
    }
    let outcome = converted(&inferred, (source, target), work);
    (outcome, Some(inferred))
}

fn converted(inferred: &Inferred, (source, target): (Place<'_>, Place<'_>), work: &Path) -> Outcome {
    let (there, back) = (work.join(".inferred-there"), work.join(".inferred-back"));
    let names = ("inferred/source", "inferred/target");
    let file = mapping(inferred);
    if let Err(errors) = convert(names, &inferred.open[0], source, &there, &file) {
        return Outcome::Wrong(format!("does not convert: {errors}"));
    }
    if contents(&there, None) != contents(target.0, target.1) {
        return Outcome::Wrong("other tensors".into());
    }
    let result = match convert((names.1, names.0), &inferred.open[1], target, &back, &file) {
        Err(errors) => Outcome::There(errors.to_string()),
        Ok(()) if contents(&back, None) == contents(source.0, source.1) => Outcome::Exact,
        Ok(()) if !inferred.unused.is_empty() => Outcome::There("the target holds less".into()),
        Ok(()) => Outcome::Wrong("other tensors on the way back".into()),
    };
    for folder in [there, back] {
        let _ = std::fs::remove_dir_all(folder);
    }
    result
}

/// A model in all its layouts.
struct Everywhere {
    folder: tempfile::TempDir,
    layouts: Vec<String>,
}

impl Everywhere {
    fn new(model: &Model, wanted: &[&str]) -> Everywhere {
        let folder = tempfile::tempdir().expect("a folder");
        let base = folder.path().join(".base");
        write_base(model, &base);
        let axes: Vec<(String, u64)> = model.axes.iter().map(|(axis, size)| (axis.clone(), *size)).collect();
        let name = |layout: &str| format!("{}/{layout}", model.mapping);
        let family = qkvconv::mapping::builtin::family(&model.mapping).expect("a family");
        // Names of files are no part of what is inferred.
        let plain = |layout: &&String| !family.layouts[layout.as_str()].is_file_set();
        let made = |layout: &&String| {
            let names = (name(&model.layout), name(layout));
            convert((&names.0, &names.1), &axes, (&base, None), &folder.path().join(layout), &[]).is_ok()
        };
        let asked = |layout: &&String| wanted.is_empty() || wanted.contains(&layout.as_str());
        let layouts = model.layouts.iter().filter(asked).filter(plain).filter(made).cloned().collect();
        Everywhere { folder, layouts }
    }

    fn path(&self, layout: &str) -> PathBuf {
        self.folder.path().join(layout)
    }
}

/// Infers on all ordered pairs of a model's layouts.
fn sweep(model: &Model) -> Vec<(String, Outcome)> {
    let everywhere = Everywhere::new(model, &[]);
    let mut outcomes = Vec::new();
    for from in &everywhere.layouts {
        for to in everywhere.layouts.iter().filter(|to| *to != from) {
            let (outcome, _) = outcome(
                (&everywhere.path(from), None),
                (&everywhere.path(to), None),
                everywhere.folder.path(),
            );
            outcomes.push((format!("{from} -> {to}"), outcome));
        }
    }
    outcomes
}

/// One model and two of its layouts, for each kind of difference that a mapping can express.
const KINDS: &[(&str, &str, &str)] = &[
    // Thirds, per-head tensors, and a stored axis for each of the heads.
    ("attention.plain", "pytorch-fused", "separate"),
    ("attention.plain", "separate", "ng-video-lecture-head-size"),
    ("attention.plain", "transformer-lens", "nanogpt"),
    // Key/value groups, in one tensor and apart.
    ("falcon.gqa", "new-decoder", "separate"),
    ("llama.gqa", "internlm2", "megatron"),
    // Rotary orders, whole and partial.
    ("llama.gqa", "hf", "meta"),
    ("gptj.neox", "neox", "hf"),
    // Experts, apart and stacked.
    ("mixtral", "hf-v4", "hf-v5"),
    // Layers stacked.
    ("t5", "hf", "t5x-scanned"),
    // Keys that are repeated for every head, and the way back.
    ("gpt2.mqa", "bigcode-mqa", "hf"),
    ("gpt2.mqa", "hf", "bigcode-separate"),
    // Stages of several lengths.
    ("swin.model", "microsoft", "hf"),
];

#[test]
fn each_kind_of_difference_is_inferred() {
    let models: BTreeMap<String, Model> = models().into_iter().collect();
    for &(name, from, to) in KINDS {
        let everywhere = Everywhere::new(&models[name], &[from, to]);
        let work = everywhere.folder.path();
        let (outcome, _) = outcome((&everywhere.path(from), None), (&everywhere.path(to), None), work);
        // GPT-J has one norm where GPT-NeoX has the same one twice.
        let less = Outcome::There("the target holds less".into());
        let expected = if name == "gptj.neox" { less } else { Outcome::Exact };
        assert_eq!(outcome, expected, "{name}: {from} -> {to}");
    }
}

/// Sizes of a small model, no two alike.
#[derive(Clone, Copy)]
struct Sizes {
    layers: u64,
    groups: u64,
    /// Query heads of a group.
    each: u64,
    width: u64,
    head: u64,
    inner: u64,
    words: u64,
}

/// Fills a tensor with the values of a function of the index.
fn filled(shape: &[u64], value: impl Fn(&[u64]) -> u64) -> Tensor {
    let count = shape.iter().product::<u64>();
    let at = |place: u64| {
        let mut rest = place;
        let mut index = vec![0; shape.len()];
        for dim in (0..shape.len()).rev() {
            index[dim] = rest % shape[dim];
            rest /= shape[dim];
        }
        value(&index) as f32
    };
    Tensor::f32(shape, (0..count).map(at))
}

/// Makes one model in two layouts by hand: query, key and value in groups, interleaved rotary rows, gate and up in one
/// tensor; and each apart, half-split, transposed, the layers' norms stacked.
fn by_hand(of: Sizes) -> (Tensors, Tensors) {
    let Sizes { layers, groups, each, width, head, inner, words } = of;
    let (mut source, mut target) = (Tensors::new(), Tensors::new());
    // Every parameter has values of its own: a number for it above the index.
    let part = |number: u64, layer: u64| (number * layers + layer) << 12;
    let turned = |at: u64| at % 2 * (head / 2) + at / 2;
    for layer in 0..layers {
        let name = |rest: &str| format!("blocks.{layer}.{rest}");
        let rows = groups * (each + 2) * head;
        // The parameter's value at a head (all query heads, then the key heads, then the value heads) and a place in it.
        let value = |at: u64, row: u64, column: u64| part(0, layer) + (at * head + row) * width + column;
        let fused = filled(&[rows, width], |index| {
            let (group, of_group) = (index[0] / ((each + 2) * head), index[0] % ((each + 2) * head));
            let (member, row) = (of_group / head, of_group % head);
            match member {
                member if member < each => value(group * each + member, turned(row), index[1]),
                member if member == each => value(groups * each + group, turned(row), index[1]),
                _ => value(groups * (each + 1) + group, row, index[1]),
            }
        });
        source.insert(name("attn.qkv.weight"), fused);
        for (key, first, count) in
            [("q", 0, groups * each), ("k", groups * each, groups), ("v", groups * (each + 1), groups)]
        {
            let apart = filled(&[width, count, head], |index| value(first + index[1], index[2], index[0]));
            target.insert(format!("layers/{layer}/attention/{key}/kernel"), apart);
        }
        let out = |row: u64, column: u64| part(1, layer) + row * groups * each * head + column;
        source.insert(
            name("attn.out.weight"),
            filled(&[width, groups * each * head], |index| out(index[0], index[1])),
        );
        target.insert(
            format!("layers/{layer}/attention/o/kernel"),
            filled(&[groups * each, head, width], |index| out(index[2], index[0] * head + index[1])),
        );
        let up = |half: u64, row: u64, column: u64| part(2, layer) + (half * inner + row) * width + column;
        source.insert(
            name("mlp.w13"),
            filled(&[2 * inner, width], |index| up(index[0] / inner, index[0] % inner, index[1])),
        );
        for (half, key) in [(0, "gate"), (1, "up")] {
            target.insert(
                format!("layers/{layer}/mlp/{key}/kernel"),
                filled(&[width, inner], |index| up(half, index[1], index[0])),
            );
        }
        source.insert(name("norm.weight"), filled(&[width], |index| part(3, layer) + index[0]));
    }
    target.insert("layers/norm/scale".into(), filled(&[layers, width], |index| part(3, index[0]) + index[1]));
    let embedded = |row: u64, column: u64| part(4, 0) + row * width + column;
    source.insert("embed.weight".into(), filled(&[words, width], |index| embedded(index[0], index[1])));
    // The target's vocabulary is padded by one row.
    target.insert(
        "embed/embedding".into(),
        filled(&[words + 1, width], |index| if index[0] < words { embedded(index[0], index[1]) } else { 0 }),
    );
    (source, target)
}

const SMALL: Sizes = Sizes { layers: 3, groups: 2, each: 3, width: 14, head: 6, inner: 10, words: 11 };
const OTHER: Sizes = Sizes { layers: 4, groups: 3, each: 2, width: 10, head: 8, inner: 9, words: 13 };

fn config(of: Sizes) -> String {
    format!(
        r#"{{ "num_attention_heads": {}, "num_kv_heads": {}, "hidden_size": {} }}"#,
        of.groups * of.each,
        of.groups,
        of.width
    )
}

/// Writes both layouts of a model.
fn put(folder: &Folder, name: &str, of: Sizes) {
    let (source, target) = by_hand(of);
    for (side, tensors) in [("src", source), ("dst", target)] {
        let at = folder.path().join(format!("{name}-{side}"));
        std::fs::create_dir(&at).expect("a folder");
        write(&at.join("model.safetensors"), &tensors, &[]);
        std::fs::write(at.join("config.json"), config(of)).expect("writable");
    }
}

#[test]
fn a_mapping_holds_for_models_of_other_sizes() {
    let folder = Folder::new();
    put(&folder, "small", SMALL);
    put(&folder, "other", OTHER);
    let run = folder.run(&["mapping", "infer", "small-src", "small-dst", "--output", "mine.json"]).ok();
    let again = folder.run(&["mapping", "infer", "small-src", "small-dst", "--output", "mine.json"]);
    again.fails(&["mine.json", "--into"]);
    assert!(run.stderr.contains("agree with the source"), "{}", run.stderr);
    let text = std::fs::read_to_string(folder.path().join("mine.json")).expect("written");
    for expected in ["\"family\": \"mine\"", "\"h\": [\"num_attention_heads\"]", "\"is\": \"g "] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    for name in ["small", "other"] {
        for (from, to) in [("src", "dst"), ("dst", "src")] {
            let layout = |side: &str| if side == "src" { "mine/source" } else { "mine/target" };
            let (at, out) = (format!("{name}-{from}"), format!("{name}-{to}.out.safetensors"));
            folder
                .run(&["--mapping", "mine.json", "--from", layout(from), "--to", layout(to), &at, &out])
                .ok();
            let wanted = read(&folder.path().join(format!("{name}-{to}/model.safetensors")));
            assert!(read(&folder.path().join(out)) == wanted, "{name}: {from} -> {to}");
        }
    }
}

#[test]
fn what_is_not_in_the_source_is_said_and_not_invented() {
    let folder = Folder::new();
    let (source, mut target) = by_hand(SMALL);
    // One row of a weight is another.
    let spoilt = target.get_mut("layers/1/mlp/gate/kernel").expect("a tensor");
    spoilt.bytes[..4].copy_from_slice(&0.5_f32.to_le_bytes());
    target.insert("step".into(), Tensor::f32(&[1], [7.5]));
    write(&folder.path().join("src.safetensors"), &source, &[]);
    write(&folder.path().join("dst.safetensors"), &target, &[]);
    let run =
        folder.run(&["mapping", "infer", "src.safetensors", "dst.safetensors", "--output", "mine.json"]);
    assert_eq!(run.code, 3, "{}", run.stderr);
    for expected in ["layers/{0..2}/mlp/gate/kernel (3): ", "% of its rows were found", "not explained: step"]
    {
        assert!(run.stderr.contains(expected), "{expected}: {}", run.stderr);
    }
    let text = std::fs::read_to_string(folder.path().join("mine.json")).expect("written");
    assert!(
        text.contains("\"ignore\": [\"layers/{l}/mlp/gate/kernel\", \"layers/{l}/mlp/up/kernel\", \"step\"]"),
        "{text}"
    );
}

#[test]
fn constants_are_matched_by_what_stands_beside_them_or_not_at_all() {
    let folder = Folder::new();
    let random = |number: u64, shape: &[u64]| {
        filled(shape, |index| (number << 10) + index[0] * 31 + index.get(1).copied().unwrap_or(0))
    };
    let ones = |count: u64| Tensor::f32(&[count], (0..count).map(|_| 1.0));
    let zeros = |count: u64| Tensor::f32(&[count], (0..count).map(|_| 0.0));
    let mut source = Tensors::new();
    let mut target = Tensors::new();
    for (number, part) in [(1, "q"), (2, "k")] {
        source.insert(format!("{part}.weight"), random(number, &[6, 5]));
        source.insert(format!("{part}.bias"), zeros(6));
    }
    let fused = |index: &[u64]| (((1 + index[0] / 6) << 10) + index[0] % 6 * 31) + index[1];
    target.insert("attn.in.weight".into(), filled(&[12, 5], fused));
    target.insert("attn.in.bias".into(), zeros(12));
    source.insert("norm_before.weight".into(), ones(5));
    source.insert("norm_after.weight".into(), ones(5));
    write(&folder.path().join("src.safetensors"), &source, &[]);
    for (names, code) in
        [(["before.norm.weight", "after.norm.weight"], 0), (["ln_x.weight", "ln_y.weight"], 3)]
    {
        let mut target = target.clone();
        names.iter().for_each(|name| _ = target.insert((*name).to_owned(), ones(5)));
        write(&folder.path().join("dst.safetensors"), &target, &[]);
        let run = folder.run(&["mapping", "infer", "src.safetensors", "dst.safetensors"]);
        assert_eq!(run.code, code, "{}", run.stderr);
        assert!(
            run.stdout.contains(r#""attn.in.bias":"#) && run.stdout.contains("(q.bias: n + k.bias: n)"),
            "{}",
            run.stdout
        );
        let said = if code == 0 { "matched by name alone" } else { "ambiguous" };
        assert!(run.stderr.contains(said), "{}", run.stderr);
    }
}

#[test]
fn a_cast_is_told() {
    let folder = Folder::new();
    let (source, target) = by_hand(SMALL);
    let half = |tensor: &Tensor| {
        let bytes = tensor.values().into_iter().flat_map(|value| half::bf16::from_f32(value).to_le_bytes());
        Tensor::new("BF16", &tensor.shape, bytes.collect())
    };
    // Values that differ after rounding too.
    let spread = |tensor: &Tensor| {
        Tensor::f32(&tensor.shape, tensor.values().into_iter().map(|value| (value + 1.0).sqrt().sin()))
    };
    let source: Tensors = source.iter().map(|(key, tensor)| (key.clone(), spread(tensor))).collect();
    let target: Tensors = target
        .iter()
        .filter(|(key, _)| *key != "embed/embedding")
        .map(|(key, tensor)| (key.clone(), half(&spread(tensor))))
        .collect();
    write(&folder.path().join("src.safetensors"), &source, &[]);
    write(&folder.path().join("dst.safetensors"), &target, &[]);
    let run =
        folder.run(&["mapping", "infer", "src.safetensors", "dst.safetensors", "--output", "mine.json"]).ok();
    assert!(run.stderr.contains("--dtype bf16"), "{}", run.stderr);
    assert!(run.stderr.contains("not in the target, ignored: embed.weight"), "{}", run.stderr);
}

/// Pairs that two frameworks wrote (tests/oracles), with the containers of the weights in them.
#[rustfmt::skip]
const ORACLES: &[(&str, Option<&str>, Option<&str>)] = &[
    ("01_torch_mha_to_separate", None, None),
    ("02_torch_encoder_to_perhead_modules", None, None),
    ("15_hf_bloom_to_transformerlens", None, None),
    ("17_hf_falcon_gqa_to_phi", None, None),
    ("18_hf_llama_to_meta_llama", None, None),
    ("26_timm_vit_to_hf_vit_f16", None, None),
    ("32_hf_t5_to_flaxt5_msgpack", None, None),
    ("36_hf_codegen_to_gptj_bf16", None, None),
    ("39_mixtral_experts_v4_to_v5_fused", None, None),
    ("57_bfl_flux_to_diffusers_bf16", None, None),
    // The others take longer; the sweep has them too.
    ("03_torch_mha_to_keras_weights_h5", None, None),
    ("03c_torch_gqa_to_keras_gqa_weights_h5", None, None),
    ("04_torch_mha_to_flax_msgpack", None, Some("params")),
    ("05_torch_mha_kdim_vdim_to_separate", None, None),
    ("07_hf_bert_to_tfbert_h5", None, None),
    ("08_hf_bert_to_google_tf1_ckpt", None, None),
    ("11_hf_bert_to_flaxbert_msgpack", None, None),
    ("12_hf_gpt2_to_nanogpt", None, Some("model")),
    ("12c_hf_gpt2_to_flaxgpt2_msgpack", None, None),
    ("13_hf_gpt2_to_transformerlens", None, None),
    ("14_hf_neox_to_transformerlens", None, None),
    ("17b_hf_falcon40b_to_separate", None, None),
    ("19_hf_llama_to_gguf", None, None),
    ("20_hf_llama_to_megatron", None, Some("model")),
    ("21_internlm2_to_hf_llama", None, None),
    ("22_hf_phi3_to_mistral", None, None),
    ("24_qwen1_to_hf_qwen2", None, None),
    ("25_openclip_to_hf_clip", Some("state_dict"), None),
    ("27_augreg_npz_to_timm", None, None),
    ("28_timm_beit_to_hf_beit", Some("model"), None),
    ("30_facebook_detr_to_hf_detr", Some("model"), None),
    ("31_openai_whisper_to_hf", None, None),
    ("32c_hf_t5_to_t5x", None, Some("optimizer/target")),
    ("33_sam_encoder_to_hf_sam", None, None),
    ("34_hf_gemma_gqa_to_flax_gemma", None, None),
    ("38_hf_gptbigcode_mqa_to_gpt2", None, None),
    ("41_sharded_llama_to_phi3_bf16", None, None),
    ("42_bin_nested_strided_tied_bf16", Some("state_dict"), None),
    ("43_hf_neox_partial_rope_to_gptj", None, None),
    ("50_hf_llama_to_kerashub", None, None),
    ("58_allenai_olmo_to_hf_olmo", None, None),
    ("59_hf_llama_to_litgpt", None, Some("model")),
    ("59b_hf_neox_to_litgpt", None, Some("model")),
];

/// How many of [`ORACLES`] every run infers.
const USUAL: usize = 10;

/// Returns what a user hands over of an oracle's side.
fn checkpoint(name: &str, side: &str) -> PathBuf {
    only_file(kit::root().join("tests/oracles").join(name).join(side))
}

#[test]
fn what_two_frameworks_wrote_is_inferred() {
    let work = tempfile::tempdir().expect("a folder");
    let all = std::env::var("QKVCONV_INFER_SWEEP").is_ok_and(|wanted| wanted == "oracles" || wanted == "all");
    let mut wrong = Vec::new();
    for &(name, from, to) in ORACLES.iter().take(if all { ORACLES.len() } else { USUAL }) {
        let (source, target) = (checkpoint(name, "src"), checkpoint(name, "dst"));
        let (outcome, _) = outcome((&source, from), (&target, to), work.path());
        if all {
            println!("{name}: {outcome:?}");
        }
        // The optimiser's state, beside the weights, is no weights.
        let known = name.starts_with("08") && matches!(outcome, Outcome::Unexplained(_));
        if !known && !matches!(outcome, Outcome::Exact | Outcome::There(_)) {
            wrong.push(format!("{name}: {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn layouts_are_added_to_a_file() {
    let folder = Folder::new();
    put(&folder, "small", SMALL);
    let text = "{\n  \"format\": 1,\n  \"family\":   \"mine\",\n  \"about\": \"kept\",\n  \"axes\": {},\n  \"params\": {},\n  \"layouts\": {}\n}\n";
    std::fs::write(folder.path().join("mine.json"), text).expect("writable");
    let into =
        ["mapping", "infer", "small-src", "small-dst", "--into", "mine.json", "--source-layout", "trainer"];
    folder.run(&into).ok();
    let merged = std::fs::read_to_string(folder.path().join("mine.json")).expect("readable");
    assert!(merged.contains("\"family\":   \"mine\"") && merged.contains("\n    \"trainer\": {"), "{merged}");
    folder
        .run(&["--mapping", "mine.json", "--from", "mine/trainer", "--to", "mine/target", "small-src", "out"])
        .ok();
    folder.run(&into).fails(&["infer/into", "already"]);
}

/// All pairs of all models, or of those whose names begin as `QKVCONV_INFER_SWEEP` says; `all` for all.
#[test]
fn every_pair_of_layouts_is_inferred() {
    let wanted = std::env::var("QKVCONV_INFER_SWEEP").unwrap_or_default();
    if wanted.is_empty() {
        return;
    }
    let models: Vec<(String, Model)> = models()
        .into_iter()
        .filter(|(name, _)| wanted == "all" || wanted.split(',').any(|wanted| name.starts_with(wanted)))
        .collect();
    let results = Mutex::new(Vec::new());
    two_at_a_time(models, &|(name, model)| {
        for (pair, outcome) in sweep(&model) {
            println!("{name}: {pair}: {outcome:?}");
            results.lock().expect("not poisoned").push(outcome);
        }
    });
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in results.into_inner().expect("not poisoned") {
        let kind = match outcome {
            Outcome::Exact => "exact",
            Outcome::There(_) => "there",
            Outcome::Unexplained(_) => "unexplained",
            Outcome::Failed(_) => "failed",
            Outcome::Wrong(_) => "wrong",
        };
        *counts.entry(kind).or_default() += 1;
    }
    println!("{counts:?}");
    assert_eq!(counts.get("wrong"), None);
}
