//! Which model a checkpoint is: what it says of itself, held against the layouts, and `--from auto`.

use serde_json::{Value, json};

use crate::kit::{Folder, Run, Tensors, numbered};

/// Two layers with Llama's names: 4 heads of 6, 2 key/value heads, width 20.
fn llama(prefix: &str) -> Tensors {
    let mut list: Vec<(String, Vec<u64>)> = vec![
        (format!("{prefix}embed_tokens.weight"), vec![11, 20]),
        (format!("{prefix}norm.weight"), vec![20]),
        ("lm_head.weight".into(), vec![11, 20]),
    ];
    for layer in 0..2 {
        let of = |name: &str| format!("{prefix}layers.{layer}.{name}.weight");
        list.extend([
            (of("input_layernorm"), vec![20]),
            (of("post_attention_layernorm"), vec![20]),
            (of("self_attn.q_proj"), vec![24, 20]),
            (of("self_attn.k_proj"), vec![12, 20]),
            (of("self_attn.v_proj"), vec![12, 20]),
            (of("self_attn.o_proj"), vec![20, 24]),
            (of("mlp.gate_proj"), vec![14, 20]),
            (of("mlp.up_proj"), vec![14, 20]),
            (of("mlp.down_proj"), vec![20, 14]),
        ]);
    }
    numbered(&list.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect::<Vec<_>>())
}

fn config(model: &str) -> Value {
    json!({
        "model_type": model, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "hidden_size": 20,
        "tie_word_embeddings": false,
    })
}

fn model(name: &str, tensors: &Tensors, config: &Value) -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.join(name)).expect("a folder");
    folder.tensors(&format!("{name}/model.safetensors"), tensors);
    folder.put(&format!("{name}/config.json"), config.to_string());
    folder
}

fn convert(folder: &Folder, from: &str, to: &str, args: &[&str]) -> Run {
    folder.run(&[&["--from", from, "--to", to], args].concat())
}

fn layout(folder: &Folder, args: &[&str]) -> Value {
    let args = [&["inspect", "--json"], args].concat();
    serde_json::from_str::<Value>(&folder.run(&args).ok().stdout).expect("JSON")["layout"].clone()
}

/// Ernie 4.5 and Helium rotate neighbours under Llama's names, Granite has multipliers, Qwen2 is another layout's: all of
/// them are refused, named or found, and `--trust-layout` overrules it.
#[test]
fn a_model_that_others_list_or_none_is_refused() {
    for (name, said) in [
        ("ernie4_5", "rotary pairs are interleaved"),
        ("helium", "rotary pairs are interleaved"),
        ("granite", "multipliers"),
        ("qwen2", "llama/qwen2"),
    ] {
        let folder = model("m", &llama("model."), &config(name));
        convert(&folder, "llama/hf", "llama/gguf", &["m", "out.gguf"]).fails(&["identity/model", name, said]);
        let trusted = ["--trust-layout", "m", "out.gguf"];
        convert(&folder, "llama/hf", "llama/gguf", &trusted).ok();
    }
    // The same of modules alone, where the order of rotary pairs is all that counts.
    for name in ["ernie4_5", "helium"] {
        let folder = model("m", &llama("model."), &config(name));
        let expected = ["identity/model", "rotary pairs are interleaved"];
        convert(&folder, "attention/llama-hf", "attention/llama-meta", &["m", "out"]).fails(&expected);
    }
    for name in ["ernie4_5", "granite"] {
        let folder = model("m", &llama("model."), &config(name));
        convert(&folder, "auto", "llama/phi3", &["m", "out"]).fails(&["detect/none", name]);
    }
}

/// A finetune may have a type of its own: named layouts take it with a warning. What is found by names and shapes alone
/// does not decide a rotary order.
#[test]
fn a_type_of_its_own_is_taken_with_a_warning() {
    let folder = model("m", &llama("model."), &config("acme_chat"));
    let run = convert(&folder, "llama/hf", "llama/gguf", &["m", "out.gguf"]).ok();
    assert!(
        run.stderr.contains("warning[identity/model]") && run.stderr.contains("acme_chat"),
        "{}",
        run.stderr
    );
    let said = folder.run(&["inspect", "m"]).ok().stdout;
    assert!(said.contains("config.json `model_type` = `acme_chat`, which no layout lists"), "{said}");
    let run = convert(&folder, "auto", "llama/phi3", &["m", "phi3"]).ok();
    assert!(run.stderr.contains("--from auto: llama/hf"), "{}", run.stderr);
    convert(&folder, "auto", "llama/gguf", &["m", "auto.gguf"]).fails(&[
        "detect/unknown-model",
        "acme_chat",
        "--from llama/hf",
    ]);
    // What the model is called decides, and so does what a conversion recorded.
    let folder = model("m", &llama("model."), &config("llama"));
    convert(&folder, "auto", "llama/gguf", &["m", "auto.gguf"]).ok();
    convert(&folder, "auto", "llama/meta", &["auto.gguf", "again.safetensors"]).ok();
}

/// The config of a model with several towers: the text model's entries stand in a part of their own.
#[test]
fn a_part_of_the_config_is_the_text_models() {
    let nested = json!({
        "model_type": "llava", "num_attention_heads": 9, "text_config": config("llama"),
        "vision_config": { "num_attention_heads": 3 },
    });
    let folder = model("m", &llama("model."), &nested);
    let run = convert(&folder, "llama/hf", "llama/gguf", &["m", "out.gguf"]).ok();
    assert!(
        run.stderr.contains("h = 4  from config.json `text_config.num_attention_heads`"),
        "{}",
        run.stderr
    );
}

/// A GGUF file tells its sizes and its architecture itself.
#[test]
fn a_gguf_file_says_what_it_is() {
    let folder = model("m", &llama("model."), &config("llama"));
    convert(&folder, "llama/hf", "llama/gguf", &["m", "plain.gguf"]).ok();
    // Its metadata as llama.cpp writes them, by a template; no record of a conversion.
    let said = |architecture: &str| {
        let text = |key: &str, value: &str| {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            let mut bytes = (key.len() as u64).to_le_bytes().to_vec();
            bytes.extend(key);
            bytes.extend(8_u32.to_le_bytes());
            bytes.extend((value.len() as u64).to_le_bytes());
            bytes.extend(value);
            bytes
        };
        let number = |key: String, value: u32| {
            let mut bytes = (key.len() as u64).to_le_bytes().to_vec();
            bytes.extend(key.as_bytes());
            bytes.extend(4_u32.to_le_bytes());
            bytes.extend(value.to_le_bytes());
            bytes
        };
        let entries = [
            text("general.architecture", architecture),
            number(format!("{architecture}.attention.head_count"), 4),
            number(format!("{architecture}.attention.head_count_kv"), 2),
            number(format!("{architecture}.attention.key_length"), 6),
        ];
        let plain = std::fs::read(folder.join("plain.gguf")).expect("readable");
        let reader = qkvconv::format::open(&folder.join("plain.gguf"), &Default::default()).expect("opens");
        let mut header = b"GGUF".to_vec();
        header.extend(3_u32.to_le_bytes());
        header.extend((reader.catalog().tensors.len() as u64).to_le_bytes());
        header.extend((entries.len() as u64).to_le_bytes());
        header.extend(entries.concat());
        let first = reader.catalog().tensors.iter().map(|tensor| tensor.offset).min().expect("tensors");
        for tensor in &reader.catalog().tensors {
            header.extend((tensor.key.len() as u64).to_le_bytes());
            header.extend(tensor.key.as_bytes());
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|size| header.extend(size.to_le_bytes()));
            header.extend(0_u32.to_le_bytes());
            header.extend((tensor.offset - first).to_le_bytes());
        }
        header.resize(header.len().next_multiple_of(32), 0);
        header.extend(&plain[first as usize..]);
        header
    };
    folder.put("llama.gguf", said("llama"));
    folder.put("qwen2.gguf", said("qwen2"));
    // Nothing beside it says how many heads there are.
    let run = convert(&folder, "auto", "llama/meta", &["llama.gguf", "meta.safetensors"]).ok();
    assert!(run.stderr.contains("h = 4  from llama.gguf `llama.attention.head_count`"), "{}", run.stderr);
    let wrong = convert(&folder, "llama/gguf", "llama/hf", &["qwen2.gguf", "out.safetensors"]);
    let expected = ["identity/model", "qwen2.gguf `general.architecture` = `qwen2`", "llama/gguf-qwen2"];
    wrong.fails(&expected);
    // A config that lies beside it may be another file's.
    folder.put("config.json", config("llama").to_string());
    convert(&folder, "llama/gguf", "llama/hf", &["qwen2.gguf", "out.safetensors"]).fails(&expected);
}

/// A module family's layout that explains a part of what another one explains is not meant.
#[test]
fn what_explains_more_is_meant() {
    let mut list = Vec::new();
    for layer in 0..2 {
        let of = |name: &str| format!("decoder.layers.{layer}.self_attn.{name}");
        list.extend([
            (of("in_proj_weight"), vec![36, 12]),
            (of("in_proj_bias"), vec![36]),
            (of("out_proj.weight"), vec![12, 12]),
            (of("out_proj.bias"), vec![12]),
        ]);
    }
    list.push(("decoder.layers.0.cross_attn.offsets.weight".into(), vec![5, 12]));
    let list: Vec<(&str, &[u64])> =
        list.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    let folder = Folder::new();
    folder.tensors("torch.safetensors", &numbered(&list));
    let found = ["--axis", "h=3", "torch.safetensors", "out.safetensors"];
    let run = convert(&folder, "auto", "attention/separate", &found).ok();
    assert!(run.stderr.contains("--from auto: attention/pytorch-fused"), "{}", run.stderr);
    assert!(run.stderr.contains("8 tensors of 2 modules"), "{}", run.stderr);
    // The layout of another family is told by what reads the file.
    convert(&folder, "bert/hf", "attention/timm", &["torch.safetensors", "timm.safetensors"])
        .fails(&["mapping/families", "--from attention/pytorch-fused (8 of 9 tensors)"]);
}

/// An embedding, a norm and an output layer are no attention module.
#[test]
fn a_family_of_modules_needs_a_whole_module() {
    let folder = Folder::new();
    let general: [(&str, &[u64]); 5] = [
        ("model.embed_tokens.weight", &[97, 48]),
        ("model.norm.weight", &[48]),
        ("lm_head.weight", &[97, 48]),
        ("model.layers.0.mixer.in.weight", &[96, 48]),
        ("model.layers.0.mixer.out.weight", &[48, 96]),
    ];
    folder.tensors("m.safetensors", &numbered(&general));
    convert(&folder, "auto", "chameleon/meta", &["m.safetensors", "out.safetensors"]).fails(&["detect/none"]);
    assert_eq!(layout(&folder, &["m.safetensors"]), Value::Null);
}

/// Prefixes and tensors that are left out count while a layout is looked for, and a few strangers are told with the option
/// that leaves them out.
#[test]
fn options_on_names_count_while_a_layout_is_looked_for() {
    let mut tensors: Tensors =
        llama("model.").into_iter().map(|(name, tensor)| (format!("wrap.{name}"), tensor)).collect();
    let folder = model("m", &tensors, &config("llama"));
    assert_eq!(layout(&folder, &["--strip-prefix", "wrap", "m"]), "llama/hf");
    convert(&folder, "auto", "llama/phi3", &["--strip-prefix", "wrap", "m", "out"]).ok();
    tensors = llama("model.");
    tensors.extend(numbered(&[("score.weight", &[3, 20])]));
    let folder = model("m", &tensors, &config("llama"));
    assert_eq!(layout(&folder, &["m"]), "attention/llama-hf");
    let said = folder.run(&["inspect", "m"]).ok().stdout;
    assert!(said.contains("as a whole model with: --from llama/hf --drop score.weight\n"), "{said}");
    convert(&folder, "auto", "llama/phi3", &["m", "out"]).fails(&["--from llama/hf --drop 'score.weight'"]);
    // What belongs to a weight is not left out on anybody's advice.
    tensors.extend(numbered(&[("model.layers.0.self_attn.q_proj.weight_scale_inv", &[1, 1])]));
    let scaled = model("m", &tensors, &config("llama"));
    let run = convert(&scaled, "auto", "llama/phi3", &["m", "out"]);
    assert!(!run.stderr.contains("--drop"), "{}", run.stderr);
    run.fails(&["detect/none"]);
    assert_eq!(layout(&folder, &["--drop", "score.*", "m"]), "llama/hf");
    convert(&folder, "auto", "llama/phi3", &["--drop", "score.*", "m", "out"]).ok();
}

/// Megatron's files say which order of query_key_value they have, and their arguments how many heads there are.
#[test]
fn a_pickle_says_which_version_it_is() {
    let folder = Folder::new();
    let source = crate::kit::root().join("tests/families/megatron.json");
    let text: Value =
        serde_json::from_str(&std::fs::read_to_string(source).expect("readable")).expect("JSON");
    let shapes: Vec<(String, Vec<u64>)> = text["tensors"]
        .as_object()
        .expect("tensors")
        .iter()
        .map(|(name, meta)| (name.clone(), serde_json::from_value(meta["shape"].clone()).expect("a shape")))
        .collect();
    let shapes: Vec<(&str, &[u64])> =
        shapes.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    folder.tensors("hf.safetensors", &numbered(&shapes));
    folder.put("config.json", text["config"].to_string());
    convert(&folder, "megatron/hf", "megatron/v2", &["hf.safetensors", "v2.safetensors"]).ok();
    folder.put("config.json", "{ \"checkpoint_version\": 2.0, \"args\": { \"num_attention_heads\": 3 } }");
    let wrong = ["--trust-layout", "v2.safetensors", "out.safetensors"];
    convert(&folder, "megatron/v0", "megatron/hf", &wrong)
        .fails(&["bind/condition", "config.json `checkpoint_version` = 2.0"]);
    convert(&folder, "megatron/v2", "megatron/hf", &["v2.safetensors", "out.safetensors"]).ok();
    // What is not told is asked for by name.
    std::fs::remove_file(folder.join("config.json")).expect("removed");
    let untold = ["--trust-layout", "v2.safetensors", "other.safetensors"];
    convert(&folder, "megatron/v0", "megatron/hf", &untold).fails(&["depends on `checkpoint_version`"]);
}
