"""Which layouts take which models of Hugging Face transformers: tiny random models of every type, inspected one by one.

    python sweep.py build OUT [TYPE ...]        makes OUT/TYPE/CLASS-FORM/{model.safetensors,config.json}
    python sweep.py inspect OUT QKVCONV         writes sweep.json beside this script and prints what is missing

README.md says what the result is for.
"""
import json, os, re, shutil, signal, struct, subprocess, sys, tempfile
from collections import defaultdict

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

# Small sizes by the names that configs give them; a config gets those that it has.
SIZES = {
    "vocab_size": 97, "hidden_size": 48, "d_model": 48, "n_embd": 48, "dim": 48, "emb_dim": 48, "embed_dim": 48, "embedding_size": 40,
    "model_dim": 48, "intermediate_size": 80, "d_ff": 80, "ffn_dim": 80, "n_inner": 80, "d_inner": 80, "ffn_hidden_size": 80,
    "hidden_dim": 80, "encoder_ffn_dim": 80, "decoder_ffn_dim": 72, "num_hidden_layers": 4, "num_layers": 4, "n_layer": 4,
    "n_layers": 4, "encoder_layers": 3, "decoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 6, "n_head": 6,
    "n_heads": 6, "num_heads": 6, "encoder_attention_heads": 6, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "num_kv_heads": 2, "head_dim": 8, "d_kv": 8, "d_head": 8, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64,
    "max_source_positions": 60, "max_target_positions": 50, "num_mel_bins": 16, "num_experts": 5, "num_local_experts": 5,
    "n_routed_experts": 5, "moe_num_experts": 5, "n_shared_experts": 1, "num_shared_experts": 1, "moe_num_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "num_experts_per_token": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40, "shared_intermediate_size": 40, "decoder_sparse_step": 1, "first_k_dense_replace": 1,
    "moe_layer_start_index": 1, "n_group": 1, "topk_group": 1, "patch_size": 4, "image_size": 16, "projection_dim": 40,
    "max_seq_len": 64, "max_2d_position_embeddings": 64, "sliding_window": 16, "attention_window": 8, "type_vocab_size": 2,
    "conv_dim": [16, 16, 16, 16, 16, 16, 16], "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
    "intermediate_dim": 80, "mlp_dim": 80, "vision_width": 48, "entity_emb_size": 24, "entity_vocab_size": 31,
    "num_buckets": 32, "kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10,
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 97, "lru_width": 48, "state_size": 8, "codebook_size": 32,
}
KEEP = {"num_buckets"}
VARIANTS = [
    {}, {"num_key_value_heads": 6, "num_kv_heads": 6}, {"head_dim": None}, {"head_dim": None, "num_key_value_heads": 6},
    {"conv_dim": None}, {"patch_size": None, "image_size": None}, {"embedding_size": None},
    {"num_layers": None, "num_hidden_layers": None, "n_layers": None},
    {name: None for name in SIZES if name not in (
        "vocab_size", "hidden_size", "d_model", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
]
LIMIT = 90_000_000  # parameters

# What a type needs besides, or its small sizes would contradict each other.
NEEDS = {
    "codegen": {"n_head": 8, "n_embd": 64, "rotary_dim": 4}, "gptj": {"rotary_dim": 4},
    "mobilebert": {"num_attention_heads": 4, "true_hidden_size": 48, "intra_bottleneck_size": 48},
    "detr": {"decoder_ffn_dim": 80, "decoder_attention_heads": 6},
}

# Types whose tensors hang on flags: one model more for each.
FLAGS = {
    "falcon": [{"new_decoder_architecture": True, "num_kv_heads": 2},
               {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
               {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
               {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}, {"multi_query": False},
               {"parallel_attn": False}, {"alibi": True}],
    "gpt_bigcode": [{"multi_query": False}, {"multi_query": True}],
    "gpt_neox": [{"use_parallel_residual": False}, {"attention_bias": False}],
    "llama": [{"attention_bias": True}, {"attention_bias": True, "mlp_bias": True}, {"mlp_bias": True}, {"tie_word_embeddings": True}],
    "bart": [{"tie_word_embeddings": False}],
    "opt": [{"do_layer_norm_before": False}, {"word_embed_proj_dim": 24}, {"enable_bias": False},
            {"layer_norm_elementwise_affine": False}],
    "mpt": [{"no_bias": False}], "olmo": [{"attention_bias": True}], "olmo2": [{"attention_bias": True}],
    "phi": [{"qk_layernorm": True}], "phi3": [{"partial_rotary_factor": 0.5}], "granite": [{"attention_bias": True}],
    "cohere": [{"use_qk_norm": True}], "stablelm": [{"use_qkv_bias": True}, {"use_parallel_residual": True}, {"qk_layernorm": True}],
    "esm": [{"position_embedding_type": "rotary"}, {"position_embedding_type": "absolute"},
            {"position_embedding_type": "rotary", "emb_layer_norm_before": True}, {"token_dropout": True}],
    "wav2vec2": [{"do_stable_layer_norm": True, "feat_extract_norm": "layer"}, {"feat_extract_norm": "layer"}],
    "hubert": [{"do_stable_layer_norm": True, "feat_extract_norm": "layer"}],
    "deberta": [{"pos_att_type": ["c2p", "p2c"], "relative_attention": True}],
    "deberta-v2": [{"pos_att_type": ["c2p", "p2c"], "relative_attention": True, "share_att_key": True},
                   {"pos_att_type": ["c2p", "p2c"], "relative_attention": True}, {"conv_kernel_size": 3}],
    "t5": [{"feed_forward_proj": "gated-gelu", "is_gated_act": True, "tie_word_embeddings": False}],
    "dinov2": [{"use_swiglu_ffn": True}], "dinov2_with_registers": [{"use_swiglu_ffn": True}],
    "beit": [{"use_relative_position_bias": True}, {"use_shared_relative_position_bias": True}, {"use_absolute_position_embeddings": True}],
    "gemma": [{"attention_bias": True}], "qwen3": [{"attention_bias": True}], "mixtral": [{"tie_word_embeddings": True}],
    "smollm3": [{"attention_bias": True}], "helium": [{"attention_bias": True}], "nemotron": [{"attention_bias": True}],
    "deepseek_v3": [{"q_lora_rank": None}], "deepseek_v2": [{"q_lora_rank": None}], "roformer": [{"rotary_value": True}],
}


def classes():
    """For each model type the classes that are built: bare models, and those with the usual heads."""
    from transformers.models.auto import modeling_auto as auto
    mappings = ["MODEL_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
                "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
                "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
                "MODEL_FOR_CTC_MAPPING_NAMES", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
                "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
                "MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES", "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES",
                "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"]
    found = defaultdict(dict)
    for mapping in mappings:
        for name, cls in getattr(auto, mapping, {}).items():
            for one in [cls] if isinstance(cls, str) else cls:
                found[name][one] = True
    return {name: list(of) for name, of in sorted(found.items())}


def shrink(tree, attribute_map, variant, depth=0):
    """Puts small sizes into a config as a dict; a value that is None in the variant keeps what the type has."""
    sizes = {**SIZES, **variant}
    for key in list(tree):
        value = tree[key]
        if isinstance(value, int) and (key.endswith("_token_id") or key.endswith("_token_index")) and value > 9:
            tree[key] = len(key) % 9
        if key in ("layer_types", "mlp_layer_types", "per_layer_config") and isinstance(value, (list, dict)):
            del tree[key]  # as many as layers
            continue
        if isinstance(value, dict) and (key.endswith("_config") or key in ("encoder", "decoder")) and depth < 3:
            shrink(value, {}, variant, depth + 1)
        known = key if key in sizes else next((k for k, v in attribute_map.items() if v == key and k in sizes), None)
        if known is None or key in KEEP or sizes[known] is None:
            continue
        if isinstance(value, list) and not isinstance(sizes[known], list):
            continue
        tree[key] = sizes[known]


def config_of(name, variant, flags):
    from transformers import CONFIG_MAPPING
    kind = CONFIG_MAPPING[name]
    whole = kind()
    tree = whole.to_dict()
    shrink(tree, getattr(kind, "attribute_map", {}) or {}, variant)
    tree.update({**NEEDS.get(name, {}), **flags})
    tree.pop("model_type", None), tree.pop("transformers_version", None)
    return kind.from_dict(tree)


def strip_data(path):
    """Keeps a safetensors file's header; the data become a hole of the same length."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(8)
        head += file.read(struct.unpack("<Q", head)[0])
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)


def late(*_):
    raise TimeoutError("takes too long")


def build(out, wanted):
    import torch, transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    signal.signal(signal.SIGALRM, late)
    torch.set_num_threads(1)
    skipped = {}
    for name, names in classes().items():
        if wanted and name not in wanted:
            continue
        asked = [(cls, "", {}) for cls in names]
        asked += [(cls, f"-{at}", flags) for at, flags in enumerate(FLAGS.get(name, [])) for cls in names[:2]]
        for cls, suffix, flags in asked:
            why = "no class"
            base = f"{out}/{name}/{cls}{suffix}"
            if os.path.exists(f"{base}-orig/model.safetensors"):
                continue
            for variant in VARIANTS:
                signal.alarm(60)
                try:
                    kind = getattr(transformers, cls)
                    config = config_of(name, variant, flags)
                    with torch.device("meta"):
                        count = sum(p.numel() for p in kind(config).parameters())
                    if count > LIMIT:
                        why = f"{count} parameters"
                        continue
                    model = kind(config)
                    for form, flag in (("orig", True), ("v5", False)):
                        folder = f"{base}-{form}"
                        model.save_pretrained(folder, save_original_format=flag)
                        strip_data(f"{folder}/model.safetensors")
                    headers = []
                    for form in ("orig", "v5"):
                        with open(f"{base}-{form}/model.safetensors", "rb") as file:
                            headers.append(file.read(struct.unpack("<Q", file.read(8))[0]))
                    if headers[0] == headers[1]:
                        shutil.rmtree(f"{base}-v5")
                    why = ""
                    break
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # another variant may do
                    why = f"{type(error).__name__} {str(error)[:120]}"
                    for form in ("orig", "v5"):
                        shutil.rmtree(f"{base}-{form}", ignore_errors=True)
                finally:
                    signal.alarm(0)
            if why:
                skipped[f"{name}/{cls}{suffix}"] = why
        json.dump(skipped, open(f"{out}/skipped.json", "w"), indent=1)
    print(len(skipped), "skipped")


def mappings():
    """The built-in families: for each layout its models, and whether the family describes whole models."""
    layouts = {}
    for file in sorted(os.listdir(f"{ROOT}/mappings")):
        tree = json.load(open(f"{ROOT}/mappings/{file}")) if file.endswith(".json") else {}
        for name, layout in tree.get("layouts", {}).items():
            base = layout
            while base and "models" not in base:
                base = tree["layouts"].get(base.get("like"))
            whole = tree.get("unmapped", "error") == "error"
            layouts[f"{tree['family']}/{name}"] = {"models": (base or {}).get("models") or [], "whole": whole}
    return layouts


def fitting(folder, qkvconv):
    """The layouts that fit by names, shapes and the config's sizes and flags, were the model's type not told."""
    config = json.load(open(f"{folder}/config.json"))
    config.pop("model_type", None)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        run = subprocess.run([qkvconv, "inspect", "--json", "--config", file.name, f"{folder}/model.safetensors"],
                             capture_output=True, text=True)
    found = json.loads(run.stdout)
    fits = [one for one in found.get("candidates", []) if one["fits"]]
    family = lambda one: one["layout"].split("/")[0]
    names = [one["layout"] for one in fits] + [f"{family(one)}/{twin}" for one in fits for twin in one["same_as"]]
    if found.get("layout"):
        names.append(found["layout"])
    return sorted(set(names))


def inspect(out, qkvconv):
    layouts = mappings()
    strangers = json.load(open(f"{ROOT}/src/mapping/strangers.json"))["models"]
    table, wrong = {}, []
    for name in sorted(os.listdir(out)):
        if not os.path.isdir(f"{out}/{name}"):
            continue
        fits = defaultdict(list)
        for form in sorted(os.listdir(f"{out}/{name}")):
            for layout in fitting(f"{out}/{name}/{form}", qkvconv):
                fits[layout].append(form)
        told = strangers.get(name, {}).get("not", [])
        for layout, forms in sorted(fits.items()):
            if layouts[layout]["whole"]:
                listed = name in layouts[layout]["models"]
                stranger = layout in told or layout.split("/")[0] in told
                elsewhere = any(name in one["models"] for one in layouts.values())
                verdict = ("listed" if listed else "stranger" if stranger else "listed elsewhere"
                           if elsewhere else "no models" if not layouts[layout]["models"] else "unknown")
                table.setdefault(name, {})[layout] = {"verdict": verdict, "forms": forms}
                if verdict == "unknown" or (verdict == "no models" and not elsewhere and name not in strangers) or listed and stranger:
                    wrong.append(f"{name}: {layout} {verdict} ({', '.join(forms)})")
            else:
                row = table.setdefault(name, {})
                row.setdefault("not" if layout in told else "modules", []).append(layout)
    return table, wrong


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        os.makedirs(sys.argv[2], exist_ok=True)
        build(sys.argv[2], sys.argv[3:])
    elif sys.argv[1:2] == ["inspect"]:
        table, wrong = inspect(sys.argv[2], sys.argv[3])
        with open(f"{HERE}/sweep.json", "w") as file:
            rows = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items()]
            file.write("{\n" + ",\n".join(rows) + "\n}\n")
        print("\n".join(wrong) or "every layout that fits lists the type, or the type is a known stranger")
        sys.exit(bool(wrong))
    else:
        sys.exit(__doc__)
