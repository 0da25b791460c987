"""Makes the Flax msgpack fixtures of this folder: python make.py

Needs: flax 0.12.8, jax 0.10.2, ml_dtypes 0.5, numpy 2.4. Everything is seeded; the same versions give the same bytes.

Each `NAME.msgpack` is written by `flax.serialization`; `NAME.expected.safetensors` holds what
`flax.serialization.msgpack_restore` gives back, with `/` between the names.
"""

import json
import struct
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import serialization

HERE = Path(__file__).parent
NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32",
    "float64": "F64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def leaves(tree, path=()):
    """Yields the arrays and NumPy scalars of nested dicts and lists."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from leaves(value, (*path, name))
    elif isinstance(tree, list):
        for at, value in enumerate(tree):
            yield from leaves(value, (*path, str(at)))
    elif isinstance(tree, (np.ndarray, np.generic)):
        yield "/".join(path), np.asarray(tree)


def write_expected(path, arrays):
    """Writes a safetensors file by hand: NumPy's own writer knows no bfloat16. Wider types come first."""
    header, data = {}, b""
    for name, array in sorted(arrays, key=lambda item: -item[1].dtype.itemsize):
        raw = array.tobytes("C")
        entry = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape)}
        header[name] = {**entry, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make(name, tree, keep=lambda key: True):
    encoded = serialization.msgpack_serialize(tree)
    (HERE / f"{name}.msgpack").write_bytes(encoded)
    restored = serialization.msgpack_restore(encoded)
    arrays = [(key, array) for key, array in leaves(restored) if keep(key)]
    write_expected(HERE / f"{name}.expected.safetensors", arrays)


def normal(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


def main():
    random = np.random.default_rng(20)

    # A model's parameters, as Flax and the Flax models of Hugging Face write them.
    params = {
        "transformer": {
            "h": {
                str(layer): {
                    "attn": {"kernel": normal(random, 6, 3, 2), "bias": normal(random, 3, 2)},
                    "ln": {"scale": normal(random, 6)},
                }
                for layer in (0, 1, 10)
            },
            "wte": {"embedding": jnp.asarray(normal(random, 11, 6), jnp.bfloat16)},
        }
    }
    make("params", params)

    # Every type, scalars, sizes on both sides of each length that msgpack writes, and what is no array.
    types = [np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]
    types += [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
    every = {
        np.dtype(dtype).name: np.frombuffer(
            random.integers(0, 2 if dtype is np.bool_ else 256, 15 * np.dtype(dtype).itemsize, np.uint8).tobytes(),
            dtype,
        ).reshape(5, 3)
        for dtype in types
    }
    make(
        "types",
        {
            "types": every,
            "scalar": np.float32(1.5),
            "rank0": np.array(-7, np.int16),
            "empty": np.zeros((3, 0, 2), np.float32),
            "lengths": {str(n): np.arange(n, dtype=np.uint8) for n in (1, 3, 5, 13, 229, 230, 231, 237, 255, 256)},
            "long": np.arange(33_000, dtype=np.uint16).astype(np.uint8),
            "list": [np.arange(3, dtype=np.int32), {"deeper": normal(random, 2, 1)}, 5, "text"],
            "step": 1234,
            "rate": 0.5,
            "nothing": None,
            "words": ["a", "b"],
            "complex": 1 + 2j,
            "name": "model",
            "negative": -3,
            "flag": True,
            "nested": {"empty": {}},
        },
    )

    # A training state as T5X writes it: the weights beside the optimizer's.
    target = {"decoder": {"layers_0": {"query": {"kernel": normal(random, 4, 6)}}}}
    states = {"decoder": {"layers_0": {"query": {"kernel": {"v": normal(random, 4), "m": np.zeros((1,), np.float32)}}}}}
    state = {"version": 3, "optimizer": {"target": target, "state": {"step": np.int32(7), "param_states": states}}}
    encoded = serialization.msgpack_serialize(state)
    (HERE / "t5x.msgpack").write_bytes(encoded)
    restored = serialization.msgpack_restore(encoded)
    write_expected(HERE / "t5x.expected.safetensors", list(leaves(restored["optimizer"]["target"])))

    # Arrays above a size are cut; the size is made small here.
    serialization.MAX_CHUNK_SIZE = 64
    chunked = {
        "big": normal(random, 7, 5),
        "small": normal(random, 2, 3),
        "deep": {"half": jnp.asarray(normal(random, 3, 19), jnp.bfloat16)},
    }
    make("chunked", chunked)


main()
