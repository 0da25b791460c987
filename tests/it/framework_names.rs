//! Names that frameworks write, read as they are: TensorFlow's attention layers, buffers beside the weights, blocks that
//! have fewer tensors than the others.

use serde_json::{Value, json};

use crate::kit::{self, Folder, Tensor, Tensors, root};

/// Reads the names and shapes of a file in `tests/families` and fills them with numbers of their own.
fn family(name: &str) -> Tensors {
    let text = std::fs::read_to_string(root().join("tests/families").join(name)).expect("readable");
    let tree: Value = serde_json::from_str(&text).expect("JSON");
    let tensors = tree["tensors"].as_object().expect("an object");
    let shapes: Vec<(&String, Vec<u64>)> = tensors
        .iter()
        .map(|(name, tensor)| {
            let shape = tensor["shape"].as_array().expect("a shape");
            (name, shape.iter().map(|size| size.as_u64().expect("a size")).collect())
        })
        .collect();
    kit::numbered(&kit::borrowed(&shapes))
}

/// A TensorFlow 1 checkpoint and Hugging Face's `tf_model.h5` of one BERT: the attention layers are found among all else
/// and become PyTorch's, every other tensor passes as it is, and the way back gives the same file.
#[test]
fn attention_has_the_names_that_tensorflow_writes() {
    let oracles = root().join("tests/oracles");
    let torch = kit::read(&oracles.join("08_hf_bert_to_google_tf1_ckpt/src/model.safetensors"));
    for (layout, source, layer, end) in [
        ("tf", "08_hf_bert_to_google_tf1_ckpt/dst/model.ckpt-3", "bert/encoder/layer_", ""),
        (
            "hf-tf",
            "07_hf_bert_to_tfbert_h5/dst/tf_model.h5",
            "bert/tf_bert_model/bert/encoder/layer_._",
            ":0",
        ),
    ] {
        let torch = match layout {
            "tf" => &torch,
            _ => &kit::read(&oracles.join("07_hf_bert_to_tfbert_h5/src/model.safetensors")),
        };
        let folder = Folder::new();
        let source = oracles.join(source).display().to_string();
        let layout = format!("attention/{layout}");
        let convert = |from: &str, to: &str, source: &str, target: &str| {
            folder.run(&["--from", from, "--to", to, "--axis", "h=3", source, target]).ok()
        };
        convert(&layout, &layout, &source, "as_it_is.safetensors");
        let run = convert(&layout, "attention/bert", &source, "torch.safetensors");
        assert!(run.stderr.contains("16 tensors of 2 modules -> 16 tensors"), "{}", run.stderr);
        assert!(run.stderr.contains("attention of 2 modules agrees"), "{}", run.stderr);
        convert("attention/bert", &layout, "torch.safetensors", "back.safetensors");

        let stored = kit::read(&folder.join("as_it_is.safetensors"));
        let made = kit::read(&folder.join("torch.safetensors"));
        for index in 0..2 {
            for name in ["self.query", "self.key", "self.value", "output.dense"] {
                for part in ["weight", "bias"] {
                    let module = format!("{layer}{index}/attention");
                    let made = &made[&format!("{}.{name}.{part}", module.replace('/', "."))];
                    let wanted = torch.iter().find(|(key, _)| {
                        key.ends_with(&format!("encoder.layer.{index}.attention.{name}.{part}"))
                    });
                    assert_eq!(made, wanted.expect("is there").1, "{layout} {module}.{name}.{part}");
                }
            }
            // The norm behind the attention is no part of it, nor is the feed-forward layer's `output/dense`.
            for name in ["attention/output/LayerNorm/gamma", "output/dense/kernel"] {
                let key = format!("{layer}{index}/{name}{end}");
                assert_eq!(made[&key], stored[&key], "{key}");
            }
        }
        assert_eq!(kit::read(&folder.join("back.safetensors")), stored, "{layout}");
    }
}

/// ESM-2 as transformers 5 writes it: norms under their first names, frequencies as buffers, one of them under a name
/// with a star, a contact head.
#[test]
fn esm_is_known_with_its_buffers_and_its_contact_head() {
    let folder = Folder::new();
    let mut plain = family("esm.json");
    plain.insert("esm.contact_head.regression.weight".to_owned(), Tensor::index(&[1, 15], 3));
    plain.insert("esm.contact_head.regression.bias".to_owned(), Tensor::index(&[1], 5));
    let mut stored: Tensors = plain
        .iter()
        .map(|(name, tensor)| {
            let renamed = name.replace("LayerNorm.weight", "LayerNorm.gamma");
            (renamed.replace("LayerNorm.bias", "LayerNorm.beta"), tensor.clone())
        })
        .collect();
    for name in ["rotary_embeddings", "encoder.layer.*.attention.self.rotary_embeddings"] {
        stored.insert(format!("esm.{name}.inv_freq"), Tensor::index(&[4], 7));
    }
    stored.insert(
        "esm.encoder.layer.0.attention.self.rotary_embeddings.inv_freq".to_owned(),
        Tensor::index(&[4], 7),
    );
    folder.tensors("plain.safetensors", &plain);
    folder.tensors("in.safetensors", &stored);
    let run = folder.run(&["inspect", "--json", "--axis", "h=5", "in.safetensors"]).ok();
    let found: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(found["layout"], "esm/hf", "{}", run.stdout);
    folder.convert("esm/hf", "esm/fair", &["--axis", "h=5"]).ok();
    folder
        .run(&[
            "--from",
            "esm/hf",
            "--to",
            "esm/fair",
            "--axis",
            "h=5",
            "plain.safetensors",
            "wanted.safetensors",
        ])
        .ok();
    assert_eq!(kit::read(&folder.join("out.safetensors")), kit::read(&folder.join("wanted.safetensors")));
}

/// A model without a head is not the whole one under a prefix: each is told from the other by its names.
#[test]
fn a_model_without_a_head_is_told_from_one_with_a_head() {
    let folder = Folder::new();
    let mut inside = Tensors::new();
    let mut under = Tensors::new();
    for (name, tensor) in family("esm.json") {
        if let Some(base) = name.strip_prefix("esm.") {
            inside.insert(base.to_owned(), tensor.clone());
            under.insert(name, tensor);
        }
    }
    folder.tensors("base.safetensors", &inside);
    folder.tensors("whole.safetensors", &under);
    for (file, wanted) in [("base.safetensors", "esm/hf-base"), ("whole.safetensors", "esm/hf")] {
        let sizes = ["--axis", "h=5", "--axis", "d=8", "--axis", "dv=7"];
        let run = folder.run(&[&["inspect", "--json"][..], &sizes[..], &[file]].concat()).ok();
        let found: Value = serde_json::from_str(&run.stdout).expect("JSON");
        assert_eq!(found["layout"], wanted, "{file}");
    }
}

/// The last block of SD3 reads the text for its keys and values alone, and some blocks have a second attention: a config
/// that counts the blocks does not ask for what they lack.
#[test]
fn sd3_converts_with_its_config_as_without() {
    let folder = Folder::new();
    let stored = family("diffusion.sd3.json");
    folder.tensors("in.safetensors", &stored);
    let to_diffusers = ["--from", "diffusion/sd3", "--to", "diffusion/sd3-diffusers", "--axis", "h=5"];
    folder.run(&[&to_diffusers[..], &["in.safetensors", "made"]].concat()).ok();
    let blocks =
        |name: &String| name.strip_prefix("transformer_blocks.")?.split('.').next()?.parse::<u64>().ok();
    let made = kit::read_folder(&folder.join("made"));
    let count = made.keys().filter_map(blocks).max().expect("blocks") + 1;
    assert_eq!(count, 3);
    let config =
        json!({ "_class_name": "SD3Transformer2DModel", "num_attention_heads": 5, "num_layers": count });
    folder.put("made/config.json", config.to_string());
    let back = ["--from", "diffusion/sd3-diffusers", "--to", "diffusion/sd3", "made", "back.safetensors"];
    let run = folder.run(&back).ok();
    assert!(run.stderr.contains("h = 5  from config.json `num_attention_heads`"), "{}", run.stderr);
    assert_eq!(kit::read(&folder.join("back.safetensors")), stored);

    // A block that is missing altogether is still missed.
    let config = json!({ "_class_name": "SD3Transformer2DModel", "num_attention_heads": 5, "num_layers": 4 });
    folder.put("made/config.json", config.to_string());
    folder
        .run(&[&back[..], &["--force"]].concat())
        .fails(&["bind/index-count", "4 (config.json `num_layers`)"]);
}
