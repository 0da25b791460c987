"""Whether what a conversion writes is whole for the real loader: no missing, no unexpected entry, and the first model's values.

    python needed.py QKVCONV [FAMILY ...]

For every type of transformers that a whole family's layout lists: tiny random models (bare, and with the usual heads), tied and not,
converted into every layout of the family and back, and loaded by the class that saved them. A refusal is right where the other layout
has no place for a tensor; it is printed, and so is every model that loads with something missing, which makes the exit code 1.
Needs torch (CPU), transformers and safetensors.
"""
import json, os, shutil, subprocess, sys, tempfile
from collections import Counter

import torch, transformers
from safetensors import safe_open
import sweep

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
HEADS = ("ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "ForCTC", "ForPreTraining", "LMHeadModel", "MTModel", "Model")


def families():
    """For each whole family its layouts, and which transformers' types each lists."""
    for file in sorted(os.listdir(f"{sweep.ROOT}/mappings")):
        tree = json.load(open(f"{sweep.ROOT}/mappings/{file}")) if file.endswith(".json") else {}
        if tree.get("unmapped", "error") != "error" or "layouts" not in tree:
            continue
        models = {}
        for name, layout in tree["layouts"].items():
            while layout and "models" not in layout:
                layout = tree["layouts"].get(layout.get("like"))
            models[name] = (layout or {}).get("models") or []
        yield tree["family"], models


def models(kind):
    """The tiny models of a type, tied and not: the class's name, its config, the model."""
    found = sweep.classes().get(kind, [])
    for cls in [name for name in found if name.endswith(HEADS)][:4]:
        seen = set()
        for flags in [{"tie_word_embeddings": tied, **more} for more in [{}] + sweep.FLAGS.get(kind, []) for tied in (True, False)]:
            for variant in sweep.VARIANTS:
                try:
                    config = sweep.config_of(kind, variant, flags)
                    torch.manual_seed(5)
                    model = getattr(transformers, cls)(config).float().eval()
                except Exception:
                    continue
                shape = json.dumps([(name, list(value.shape)) for name, value in model.state_dict().items()] + [config.tie_word_embeddings])
                if sum(value.numel() for value in model.parameters()) < 4_000_000 and shape not in seen:
                    seen.add(shape)
                    with torch.no_grad():
                        # A table that is not trained (sinusoids) keeps the class's own values.
                        for value in model.parameters():
                            if value.requires_grad:
                                value.copy_(torch.randn_like(value) * 0.1)
                    model.tie_weights()
                    yield cls, flags, model
                break


def same(family, name, first, second):
    """Whether two values agree: bit by bit, but for Gemma's norms, which other layouts store with 1 added and so rounded."""
    if family == "gemma" and "norm" in name:
        return torch.allclose(first, second, rtol=0, atol=2**-23)
    return torch.equal(first, second)


def main(qkvconv, wanted):
    wrong, refused, whole = [], Counter(), Counter()
    for family, listed in families():
        if wanted and family not in wanted:
            continue
        mapping = f"{sweep.ROOT}/mappings/{next(f for f in os.listdir(f'{sweep.ROOT}/mappings') if f == family + '.json')}"
        def run(source, target, into, out, config):
            return subprocess.run([qkvconv, "--mapping", mapping, "--from", f"{family}/{source}", "--to", f"{family}/{target}", "--quiet",
                                   "--force", "--verify", "readback", "--config", config, into, out], capture_output=True, text=True)
        for kind in sorted({one for names in listed.values() for one in names}):
            own = [name for name, names in listed.items() if kind in names]
            for cls, flags, model in models(kind):
                with tempfile.TemporaryDirectory() as work:
                    model.save_pretrained(f"{work}/hf", save_original_format=True)
                    config = f"{work}/hf/config.json"
                    title = f"{family} {kind} {cls} {'tied' if model.config.tie_word_embeddings else 'untied'}"
                    base = next((name for name in own if not run(name, name, f"{work}/hf", f"{work}/same.safetensors", config).returncode), None)
                    if base is None:
                        refused[f"{title}: no layout of the family"] += 1
                        continue
                    for layout in [name for name in listed if not listed[name] or kind in listed[name]]:
                        shutil.rmtree(f"{work}/out", ignore_errors=True)
                        shutil.rmtree(f"{work}/there", ignore_errors=True)
                        there = run(base, layout, f"{work}/hf", f"{work}/there/", config)
                        if there.returncode:
                            message = next((line for line in there.stderr.splitlines() if line.startswith("error[")), there.stderr[:200])
                            refused[f"{title}: {base} -> {layout}: {message}"] += 1
                            continue
                        # With the config that was written for the other framework, else with the first one.
                        written = next((f"{work}/there/{name}" for name in ("config.json", "params.json") if os.path.exists(f"{work}/there/{name}")), config)
                        back = run(layout, base, f"{work}/there", f"{work}/out/", written)
                        if back.returncode:
                            back = run(layout, base, f"{work}/there", f"{work}/out/", config)
                        if back.returncode:
                            message = next((line for line in back.stderr.splitlines() if line.startswith("error[")), back.stderr[:200])
                            refused[f"{title}: {layout} -> {base}: {message}"] += 1
                            continue
                        shutil.copy(config, f"{work}/out/config.json")
                        try:
                            again, info = type(model).from_pretrained(f"{work}/out", output_loading_info=True, dtype=torch.float32)
                        except Exception as error:
                            wrong.append(f"{title}: {base} -> {layout} -> {base}: {type(error).__name__} {str(error)[:200]}")
                            continue
                        values = again.state_dict()
                        # A buffer or a table that the class computes itself is no part of the weights; its values are compared all the same.
                        made = {name for name, value in again.named_buffers() if torch.equal(value, values.get(name, value))}
                        made |= {name for name, value in model.named_parameters() if not value.requires_grad}
                        # Nor are zeros that it does not read: biases that another layout demands.
                        with safe_open(f"{work}/out/model.safetensors", "pt") as file:
                            made |= {name for name in info["unexpected_keys"] if name in file.keys() and not file.get_tensor(name).any()}
                        left = {what: sorted(set(map(str, keys)) - made) for what, keys in info.items() if set(map(str, keys)) - made}
                        differ = [name for name, value in model.state_dict().items() if name not in values or not same(family, name, values[name], value)]
                        if left or differ:
                            wrong.append(f"{title}: {base} -> {layout} -> {base}: {left} differ {differ[:4]}")
                        else:
                            whole[family] += 1
        print(f"{family}: {whole[family]} conversions load whole", flush=True)
        for line in [line for line in wrong if line.startswith(family + " ")]:
            print("  WRONG", line, flush=True)
        for line in [line for line in refused if line.startswith(family + " ")]:
            print("  refused", line, flush=True)
    return bool(wrong)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
