"""Compare the digits model with its conversion to the "per-head" layout.

    python classify_per_head.py MODEL PERHEAD

MODEL is model.safetensors as train.py wrote it; PERHEAD is the converted file. The held-out
images go through (a) the torch module loaded from MODEL and (b) a numpy forward pass that reads
PERHEAD alone and computes attention one head at a time. Exit status 0 when every predicted class
agrees and no logit differs by more than 1e-4, otherwise 1.
"""

import json
import pathlib
import sys

# Importing train.py must not leave a __pycache__ folder in the source tree.
sys.dont_write_bytecode = True

import numpy as np
import torch
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file as load_torch

from train import DigitsEncoder, split, tokens

TOLERANCE = 1e-4


class Weights:
    """The tensors of a file, remembering which were read: a tensor nobody reads means that the
    converter left the old layout behind or invented a name, which the logits would not show."""

    def __init__(self, path):
        self.tensors = load_numpy(path)
        self.unread = set(self.tensors)

    def get(self, name, *shape):
        if name not in self.tensors:
            sys.exit(f"error: tensor {name} is missing")
        tensor = self.tensors[name]
        # Checked because numpy would silently broadcast a bias of the wrong length 1.
        if tensor.shape != shape:
            sys.exit(f"error: tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        self.unread.discard(name)
        return tensor


def layer_norm(x, weights, prefix, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    # torch's LayerNorm divides by the biased variance (n, not n - 1).
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(eps))
    width = x.shape[-1]
    return scaled * weights.get(f"{prefix}.weight", width) + weights.get(f"{prefix}.bias", width)


def linear(x, weights, prefix, outputs):
    weight = weights.get(f"{prefix}.weight", outputs, x.shape[-1])
    return x @ weight.T + weights.get(f"{prefix}.bias", outputs)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(x, weights, prefix, heads):
    width = x.shape[-1]
    head_dim = width // heads
    total = np.zeros_like(x)
    for h in range(heads):
        head = f"{prefix}.heads.{h}"
        q = linear(x, weights, f"{head}.q_proj", head_dim)
        k = linear(x, weights, f"{head}.k_proj", head_dim)
        v = linear(x, weights, f"{head}.v_proj", head_dim)
        scores = softmax(q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(head_dim)))
        total += (scores @ v) @ weights.get(f"{head}.out_proj.weight", width, head_dim).T
    # One bias for all heads: it belongs to the sum, so adding it per head would count it twice.
    return total + weights.get(f"{prefix}.out_proj.bias", width)


def per_head_logits(x, weights, config):
    width, eps = config["hidden_size"], config["layer_norm_eps"]
    x = linear(x, weights, "embed", width)
    x = x + weights.get("positions", config["num_tokens"], width)
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layers.{i}"
        y = layer_norm(x, weights, f"{layer}.norm1", eps)
        x = x + attention(y, weights, f"{layer}.self_attn", config["num_attention_heads"])
        y = layer_norm(x, weights, f"{layer}.norm2", eps)
        y = np.maximum(linear(y, weights, f"{layer}.linear1", config["intermediate_size"]), 0)
        x = x + linear(y, weights, f"{layer}.linear2", width)
    x = layer_norm(x.mean(axis=1), weights, "norm", eps)
    return linear(x, weights, "classifier", config["num_labels"])


def torch_logits(x, path, config):
    model = DigitsEncoder(config).eval()
    model.load_state_dict(load_torch(path))
    with torch.no_grad():
        return model(torch.from_numpy(x)).numpy()


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: classify_per_head.py MODEL PERHEAD")
    model_path, per_head_path = sys.argv[1:]
    config = json.loads((pathlib.Path(__file__).parent / "config.json").read_text())
    # The forward pass above is written for these two choices only.
    assert config["norm_first"] and config["hidden_act"] == "relu"

    _, images, _, labels = split()
    x = tokens(images, config)
    weights = Weights(per_head_path)
    original = torch_logits(x, model_path, config)
    converted = per_head_logits(x, weights, config)
    if weights.unread:
        sys.exit(f"error: unexpected tensors: {', '.join(sorted(weights.unread))}")

    classes_a, classes_b = original.argmax(axis=1), converted.argmax(axis=1)
    differing = int((classes_a != classes_b).sum())
    difference = float(np.abs(original - converted).max())
    for name, classes in (("torch module", classes_a), ("per head", classes_b)):
        right = int((classes == labels).sum())
        print(f"{name + ':':14}{right} of {len(labels)} right ({right / len(labels):.4f})")
    print(f"images whose predicted class differs: {differing}")
    print(f"largest absolute logit difference: {difference:.3g}")
    # Written as "not <=" so that a NaN fails.
    if differing or not difference <= TOLERANCE:
        print("FAILED")
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
