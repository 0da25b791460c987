"""Which GGUF layouts take which architectures of llama.cpp, by the tensors that gguf-py says an architecture has.

    python architectures.py        prints the architectures that nothing here speaks of; needs gguf

A layout takes an architecture that has all tensors which the layout demands and none that it has no rule for; whether an
optional tensor is there, and in which order a tensor's rows lie, gguf-py does not say. Every architecture that is taken must be
in the layout's `models`, in another layout's, or in src/mapping/strangers.json.
"""
import json, os, re, sys
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Tables of frequencies, which some files have, and norms of queries and keys, which not all models have.
MAY_LACK = {"rope_freqs", "rope_factors_long", "rope_factors_short", "blk.{bid}.attn_rot_embd", "output",
            "blk.{bid}.attn_q_norm", "blk.{bid}.attn_k_norm", "position_embd"}


def layouts():
    """For each GGUF layout its models, the tensors that it demands, and all that it has rules for."""
    for file in sorted(os.listdir(f"{ROOT}/mappings")):
        tree = json.load(open(f"{ROOT}/mappings/{file}")) if file.endswith(".json") else {}
        for name in tree.get("layouts", {}):
            if "gguf" not in name:
                continue
            chain, at = [], name
            while at:
                chain.insert(0, tree["layouts"][at])
                at = tree["layouts"][at].get("like")
            rules, models = {}, []
            for layout in chain:
                models = layout.get("models", models)
                rules.update(layout.get("tensors", {}))
            demanded, known = set(), set()
            for key, rule in rules.items():
                if rule is None:
                    continue
                base = re.sub(r"\.(weight|bias)$", "", key).replace("{l}", "{bid}")
                known.add(base)
                rule = rule[0] if isinstance(rule, list) else rule
                for param in re.findall(r"([\w.\-]+):", rule if isinstance(rule, str) else rule["is"]):
                    declared = tree["params"].get(param, {})
                    if isinstance(declared, str) or not (declared.get("optional") or declared.get("absent")):
                        demanded.add(base)
            yield tree["family"], name, models, demanded, known


def listed():
    """All that any layout lists."""
    found = set()
    for file in os.listdir(f"{ROOT}/mappings"):
        tree = json.load(open(f"{ROOT}/mappings/{file}")) if file.endswith(".json") else {}
        for layout in tree.get("layouts", {}).values():
            found.update(layout.get("models") or [])
    return found


if __name__ == "__main__":
    strangers = json.load(open(f"{ROOT}/src/mapping/strangers.json"))["models"]
    everywhere, wrong = listed(), []
    for arch, architecture in MODEL_ARCH_NAMES.items():
        has = {TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS.get(arch, [])}
        for family, name, models, demanded, known in layouts():
            if not demanded <= has or has - known - MAY_LACK or architecture in models:
                continue
            if family not in strangers.get(architecture, {}).get("not", []) and architecture not in everywhere:
                wrong.append(f"{architecture}: {family}/{name}")
    print("\n".join(wrong) or "every architecture that a layout takes is listed, or a known stranger")
    sys.exit(bool(wrong))
