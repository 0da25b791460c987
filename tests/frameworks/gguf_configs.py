"""Whether the config that a conversion writes for a GGUF file is one that Hugging Face transformers loads and computes with.

    python gguf_configs.py QKVCONV [TYPE ...]

For each type: a tiny random model of transformers, its weights converted into a GGUF layout and written as a GGUF file with the
metadata that llama.cpp's converter gives it (gguf-py), and that one file converted into a folder. transformers must load the folder
without a missing or unexpected entry, and compute the logits of the first model. Needs torch, transformers, gguf and safetensors.
"""
import subprocess, sys, tempfile
import gguf, torch, transformers
from safetensors.torch import load_file

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
ROPE = {"rope_theta": 23000.0, "rope_type": "default"}
COMMON = {"vocab_size": 101, "hidden_size": 60, "intermediate_size": 71, "num_hidden_layers": 3, "num_attention_heads": 6,
          "max_position_embeddings": 77, "bos_token_id": 3, "eos_token_id": 5, "pad_token_id": None}
GROUPED = {**COMMON, "num_key_value_heads": 2, "rms_norm_eps": 3e-4, "rope_parameters": ROPE}


def rotary(config):
    """Of a config its rotary base and scaling, as GGUF has them."""
    told = getattr(config, "rope_parameters", None) or {}
    return told.get("rope_theta"), told


def metadata(writer, config, arch):
    get = lambda *names: next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)
    heads, width = get("num_attention_heads", "n_head", "n_heads"), get("hidden_size", "n_embd", "d_model")
    writer.add_block_count(get("num_hidden_layers", "n_layer", "n_layers"))
    writer.add_context_length(get("max_position_embeddings", "n_positions", "max_seq_len", "seq_length") or 2048)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(get("intermediate_size", "n_inner", "ffn_hidden_size") or 4 * width)
    writer.add_head_count(heads)
    if get("num_key_value_heads"):
        writer.add_head_count_kv(get("num_key_value_heads"))
    if get("head_dim"):
        writer.add_key_length(get("head_dim")), writer.add_value_length(get("head_dim"))
    if get("rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(get("layer_norm_eps", "layer_norm_epsilon"))
    writer.add_vocab_size(config.vocab_size)
    base, told = rotary(config)
    if base:
        share = told.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int((get("head_dim") or width // heads) * share))
        writer.add_rope_freq_base(base)
        if told.get("rope_type") in ("linear", "yarn"):
            writer.add_rope_scaling_type(gguf.RopeScalingType(told["rope_type"]))
            writer.add_rope_scaling_factor(told["factor"])
            if told["rope_type"] == "yarn":
                writer.add_rope_scaling_orig_ctx_len(told["original_max_position_embeddings"])
    if get("use_parallel_residual") is not None:
        writer.add_parallel_residual(config.use_parallel_residual)
    if get("num_experts_per_tok"):
        writer.add_expert_count(config.num_local_experts), writer.add_expert_used_count(config.num_experts_per_tok)
    if arch == "mpt":
        writer.add_max_alibi_bias(config.attn_config.alibi_bias_max)
    writer.add_tokenizer_model("llama")
    writer.add_bos_token_id(3), writer.add_eos_token_id(5)


def write(path, config, arch, tensors):
    writer = gguf.GGUFWriter(path, arch)
    metadata(writer, config, arch)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()


# Name: transformers' type, its config, GGUF's architecture, the layouts there and back.
CASES = {
    "llama": ("llama", {**GROUPED, "head_dim": 12}, "llama", "llama/hf", "llama/gguf"),
    "llama-tied": ("llama", {**GROUPED, "tie_word_embeddings": True}, "llama", "llama/hf", "llama/gguf"),
    "llama-bias": ("llama", {**GROUPED, "attention_bias": True}, "llama", "llama/hf-bias", "llama/gguf-bias"),
    "llama-linear": ("llama", {**GROUPED, "rope_parameters": {"rope_theta": 9000.0, "rope_type": "linear", "factor": 4.0}},
                     "llama", "llama/hf", "llama/gguf"),
    "llama-yarn": ("llama", {**GROUPED, "rope_parameters": {"rope_theta": 9000.0, "rope_type": "yarn", "factor": 4.0,
                                                           "original_max_position_embeddings": 19}},
                   "llama", "llama/hf", "llama/gguf"),
    "qwen2": ("qwen2", GROUPED, "qwen2", "llama/qwen2", "llama/gguf-qwen2"),
    "qwen3": ("qwen3", {**GROUPED, "head_dim": 14}, "qwen3", "llama/qwen3", "llama/gguf-qwen3"),
    "gemma": ("gemma", {**GROUPED, "head_dim": 12}, "gemma", "gemma/hf", "gemma/gguf"),
    "gpt2": ("gpt2", {"vocab_size": 101, "n_embd": 60, "n_inner": 71, "n_layer": 3, "n_head": 6, "n_positions": 77,
                      "layer_norm_epsilon": 3e-4, "bos_token_id": 3, "eos_token_id": 5}, "gpt2", "gpt2/hf", "gpt2/gguf"),
    "gpt-neox": ("gpt_neox", {**COMMON, "layer_norm_eps": 3e-4, "use_parallel_residual": False,
                              "rope_parameters": {**ROPE, "partial_rotary_factor": 0.4}}, "gptneox", "gpt-neox/hf", "gpt-neox/gguf"),
    "phi": ("phi", {**COMMON, "layer_norm_eps": 3e-4, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.4}},
            "phi2", "phi/hf", "phi/gguf"),
    "falcon": ("falcon", {**COMMON, "layer_norm_epsilon": 3e-4, "rope_parameters": ROPE, "tie_word_embeddings": False, "bias": False,
                          "ffn_hidden_size": 71}, "falcon", "falcon/mqa-7b", "falcon/gguf-one-norm"),
    "bloom": ("bloom", {"vocab_size": 101, "hidden_size": 60, "n_layer": 3, "n_head": 6, "layer_norm_epsilon": 3e-4,
                        "bos_token_id": 3, "eos_token_id": 5}, "bloom", "bloom/hf", "bloom/gguf"),
    "mpt": ("mpt", {"vocab_size": 101, "d_model": 60, "n_layers": 3, "n_heads": 6, "max_seq_len": 77, "layer_norm_epsilon": 3e-4,
                    "attn_config": {"alibi_bias_max": 6}}, "mpt", "mpt/hf", "mpt/gguf"),
    "mixtral": ("mixtral", {**GROUPED, "num_local_experts": 5, "num_experts_per_tok": 3}, "llama", "mixtral/hf-v4", "mixtral/gguf"),
}


def case(qkvconv, work, name):
    kind, options, arch, layout, target = CASES[name]
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **options)
    eager = {"experts_implementation": "eager"} if "num_local_experts" in options else {}
    model = transformers.AutoModelForCausalLM.from_config(config, **eager).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    run = lambda *args: subprocess.run([qkvconv, *map(str, args)], capture_output=True, text=True)
    model.save_pretrained(f"{work}/hf", save_original_format=True)
    done = run("--from", layout, "--to", target, f"{work}/hf", f"{work}/named.safetensors")
    if done.returncode:
        return done.stderr
    write(f"{work}/model.gguf", config, arch, load_file(f"{work}/named.safetensors"))
    done = run("--from", target, "--to", layout, f"{work}/model.gguf", f"{work}/out/")
    if done.returncode:
        return done.stderr
    if "not told" in done.stderr:
        return done.stderr
    try:
        again, info = transformers.AutoModelForCausalLM.from_pretrained(f"{work}/out", output_loading_info=True, dtype=torch.float32, **eager)
    except Exception as error:
        return f"{type(error).__name__} {error}\n{open(f'{work}/out/config.json').read()}"
    left = {kind: sorted(keys) for kind, keys in info.items() if keys}
    ids = torch.arange(3, 40)[None] * 7 % 101
    with torch.no_grad():
        a, b = model(ids).logits, again.eval()(ids).logits
    far = ((a - b).abs().max() / a.abs().max()).item()
    if left or not far < 1e-6:
        return f"{left or ''} logits differ by {far}\n{open(f'{work}/out/config.json').read()}"
    return ""


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wrong = 0
    for name in sys.argv[2:] or CASES:
        with tempfile.TemporaryDirectory() as work:
            why = case(sys.argv[1], work, name)
        print(f"{name}: {why or 'loads whole, equal logits'}", flush=True)
        wrong += bool(why)
    sys.exit(bool(wrong))
