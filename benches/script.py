"""The script that people write by hand: load all, rearrange, save all. It makes an encoder of its own, runs each job in a
process of its own, and prints the time and the most resident memory beside a plain copy of the file.

    python benches/script.py [layers]        # needs torch and safetensors; 24 layers are 1.2 GB
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

HEADS, WIDTH, MLP = 16, 1024, 4096


def encoder(layers):
    import torch

    shapes = {
        "self_attn.in_proj_weight": (3 * WIDTH, WIDTH),
        "self_attn.in_proj_bias": (3 * WIDTH,),
        "self_attn.out_proj.weight": (WIDTH, WIDTH),
        "self_attn.out_proj.bias": (WIDTH,),
        "linear1.weight": (MLP, WIDTH),
        "linear1.bias": (MLP,),
        "linear2.weight": (WIDTH, MLP),
        "linear2.bias": (WIDTH,),
        "norm1.weight": (WIDTH,),
        "norm1.bias": (WIDTH,),
        "norm2.weight": (WIDTH,),
        "norm2.bias": (WIDTH,),
    }
    return {f"layers.{layer}.{name}": torch.randn(shape) * 0.02 for layer in range(layers) for name, shape in shapes.items()}


def rename(state):
    return {name.replace("layers.", "blocks."): tensor for name, tensor in state.items()}


def split(state, parts):
    """Thirds of q, k and v as tensors of their own, each again in `parts`, one for each head or one for all."""
    out = {}
    for name, tensor in state.items():
        if "in_proj" not in name:
            out[name] = tensor
            continue
        for letter, third in zip("qkv", tensor.chunk(3)):
            for part, rows in enumerate(third.chunk(parts)):
                out[name.replace("in_proj", f"{letter}.{part}")] = rows.contiguous()
    return out


def transpose(state):
    return {name: tensor.t().contiguous() if tensor.dim() == 2 else tensor for name, tensor in split(state, 1).items()}


JOBS = {
    "rename only": rename,
    "fused to separate": lambda state: split(state, 1),
    "fused to per head": lambda state: split(state, HEADS),
    "every matrix transposed": transpose,
}


def run(job, source, target):
    import torch
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(2)
    start = time.perf_counter()
    save_file(JOBS[job](load_file(source)), target)
    print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main(layers):
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "source"), os.path.join(folder, "target")
        save_file(encoder(layers), source)
        print("| conversion | cp | script | ratio | without its imports | ratio | resident memory |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for job in JOBS:
            copies, wholes, runs, memory = [], [], [], 0
            for _ in range(3):
                start = time.perf_counter()
                shutil.copyfile(source, target)
                copies.append(time.perf_counter() - start)
                os.remove(target)
                start = time.perf_counter()
                said = subprocess.run([sys.executable, __file__, job, source, target], check=True, capture_output=True)
                wholes.append(time.perf_counter() - start)
                os.remove(target)
                took, resident = said.stdout.split()
                runs.append(float(took))
                memory = max(memory, int(resident))
            copied = min(copies)
            times = " | ".join(f"{min(all):.2f} s | {min(all) / copied:.1f}" for all in (wholes, runs))
            print(f"| {job} | {copied:.2f} s | {times} | {memory >> 10} MiB |")


if len(sys.argv) == 4:
    run(*sys.argv[1:])
else:
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 24)
