"""Which tensors a module family's conversion refuses to leave behind, over tiny models of every type of transformers.

    python sweep.py build OUT [TYPE ...]              makes the models
    python attachments.py OUT QKVCONV [--write]       compares the alarms with attachments.json, or writes it

Each model is dry-run from every layout of a module family that fits it to one layout with another rotary order, one that fuses, and one
that keeps projections apart. An alarm is an error `bind/left-behind`. attachments.json lists each name that raised one, where, and the
reason why it is right; a name that it does not list, or lists without a reason, makes the exit code 1.
"""
import json, os, re, subprocess, sys
import sweep

TABLE = f"{sweep.HERE}/attachments.json"
TARGETS = {"attention": ["llama-meta", "llama-hf", "pytorch-fused", "separate"], "unet-attention": ["diffusers-old", "diffusers"]}
# Why an alarm is right, by what the name ends with.
REASONS = [
    (r"(q|k|query|key)_?(layer_?)?norm(alization)?\.(weight|bias|scale)$|q_a_norm|k_a_norm|norm\.(query|key)_norm",
     "a norm over the elements of each head, whose order the target changes"),
    (r"(q|k|query|key)_(scale|norm)$", "a scale of the elements of each head, whose order the target changes"),
    (r"\.(weight_integer|bias_integer|fc_scaling_factor)$", "the same weight in integers, and their scale, which are not converted with it"),
    (r"per_dim_scale$|self_attn\.scaling$", "a scale of the elements of each head, whose order the target changes"),
    (r"\.bias_[uv]$", "a bias of the queries' elements, whose order the target changes"),
    (r"gru_rel_pos_linear\.(weight|bias)$|emb_rel_[kv]$", "it is multiplied with the elements of a head, whose order the target changes"),
    (r"rel_pos_[hw]$", "a table along the elements of a head, whose order the target changes"),
    (r"\.(q|k|v|qkv|query|key|value)_?(proj)?_?bias$|in_proj_bias$|out_proj\.bias$|dense_bias$", "a bias of a converted projection for which the layout has no rule"),
]


def name_of(key):
    return re.sub(r"\d+|\{[^}]*\}", "*", re.sub(r" \(\d+\)$", "", key))


def alarms(qkvconv, folder):
    """Yields the layouts and the names of each alarm, and whether the run bound without one."""
    for layout in sweep.fitting(folder, qkvconv):
        family, source = layout.split("/")
        for target in [name for name in TARGETS.get(family, []) if name != source]:
            run = subprocess.run([qkvconv, "--from", layout, "--to", f"{family}/{target}", "--dry-run", "--verify", "none", "--quiet",
                                  "--trust-layout", "--allow", "missing", "--allow", "missing-config", "--allow", "index-gap",
                                  folder, "none.safetensors"], capture_output=True, text=True)
            blocks = [part for part in run.stderr.split("error[")[1:] if part.startswith("bind/left-behind")]
            names = [name_of(key) for part in blocks for line in re.findall(r"= tensors?: (.*)", part) for key in line.split(", ")]
            yield f"{layout} -> {target}", names, run.returncode == 0


def main(out, qkvconv, write):
    found, runs, bound, raised = {}, 0, 0, 0
    for kind in sorted(os.listdir(out)):
        for form in sorted(os.listdir(f"{out}/{kind}")) if os.path.isdir(f"{out}/{kind}") else []:
            if not os.path.exists(f"{out}/{kind}/{form}/model.safetensors"):
                continue
            for way, names, whole in alarms(qkvconv, f"{out}/{kind}/{form}"):
                runs, bound, raised = runs + 1, bound + whole, raised + bool(names)
                for name in names:
                    found.setdefault(name, {}).setdefault(way, []).append(kind)
    table = {}
    for name, ways in sorted(found.items()):
        reason = next((reason for pattern, reason in REASONS if re.search(pattern, name)), None)
        table[name] = {"reason": reason, "ways": {way: sorted(set(kinds)) for way, kinds in sorted(ways.items())}}
    print(f"{runs} dry runs, {bound} without an error, {raised} with an alarm of {len(found)} names")
    if write:
        with open(TABLE, "w") as file:
            rows = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items()]
            file.write("{\n" + ",\n".join(rows) + "\n}\n")
    known = json.load(open(TABLE))
    wrong = [f"{name}: {way}: {', '.join(kinds)}" for name, row in table.items() for way, kinds in row["ways"].items()
             if not known.get(name, {}).get("reason") or way not in known[name]["ways"]]
    gone = [name for name in known if name not in table]
    print("\n".join(wrong) or "every alarm is listed with its reason")
    if gone:
        print("no longer raised:", ", ".join(gone))
    return bool(wrong)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], "--write" in sys.argv))
