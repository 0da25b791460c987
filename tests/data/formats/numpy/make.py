"""Writes the NumPy fixtures of this folder and what they hold.

Needs numpy and ml_dtypes (made with numpy 2.4.6 and ml_dtypes 0.6.0); run it in this folder.
The same versions give the same bytes: the values come from a seeded generator, and the archives are dated 1980-01-01.
`NAME.expected.safetensors` holds the arrays as `np.load` returns them.
"""

import json
import time
import zipfile

import ml_dtypes
import numpy as np

# np.savez dates its entries with the present time.
zipfile.time = type("Fixed", (), {"localtime": lambda *_: time.gmtime(315532800), "time": lambda: 315532800})

rng = np.random.default_rng(11)

NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16", "bfloat16": "BF16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
}


def random(dtype, *shape):
    dtype = np.dtype(dtype)
    raw = rng.integers(0, 256, size=(*shape, dtype.itemsize), dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def expect(name, arrays):
    """Writes a safetensors file, wider types first."""
    header, data = {}, b""
    for key, array in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        little = np.asarray(array).astype(array.dtype.newbyteorder("="), order="C")
        begin, data = len(data), data + little.tobytes()
        offsets = [begin, len(data)]
        header[key] = {"dtype": NAMES[little.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{name}.expected.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def loaded(name):
    with np.load(f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


types = ["u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]
arrays = {f"little.{t}": random("<" + t, 2, 3, 5) for t in types}
arrays |= {f"big.{t}": random(">" + t, 3, 7) for t in types}
arrays |= {f"columns.{t}": np.asfortranarray(random("<" + t, 2, 3, 5)) for t in ("u1", "f2", "f4", "i8")}
arrays |= {f"big columns.{t}": np.asfortranarray(random(">" + t, 5, 3)) for t in ("i2", "f4", "f8")}
arrays |= {
    "truth": rng.integers(0, 2, size=(3, 5)).astype(bool),
    "scalar": np.float32(2.5),
    "count": np.int64(-7),
    "empty": np.zeros((0, 3), "f4"),
    "empty/columns": np.asfortranarray(np.zeros((2, 0, 3), "f8")),
    "params/block_0/kernel": random("f4", 3, 2),
    "größe.日本": random("f4", 4),
    "long": np.arange(3000, dtype="f4").reshape(30, 100),
    "long big columns": np.asfortranarray(np.arange(3000, dtype=">i4").reshape(20, 150)),
}
np.savez("plain.npz", **arrays)
np.savez_compressed("compressed.npz", **arrays)
expect("plain", loaded("plain"))
packed = loaded("compressed")
assert all(packed[key].tobytes() == loaded("plain")[key].tobytes() for key in arrays)

half = {"w": random(ml_dtypes.bfloat16, 3, 5), "columns": np.asfortranarray(random(ml_dtypes.bfloat16, 2, 7))}
low = {"scale": random(ml_dtypes.float8_e4m3fn, 4), "plain": random("f4", 2)}
np.savez("half.npz", **half, **low)
expect("half", half | low)

np.savez(
    "mixed.npz",
    w=arrays["little.f4"],
    names=np.array(["query", "key"]),
    raw=np.array([b"ab", b"c"]),
    when=np.array(["2020-01-01"], dtype="M8[D]"),
    table=np.zeros(2, dtype=[("a", "<f4"), ("größe", "<i8", (2,))]),
    step=np.uint32(9),
)
expect("mixed", {"w": arrays["little.f4"], "step": np.uint32(9)})

np.savez("object.npz", w=arrays["little.f4"], config=np.array({"lr": 0.1}))

np.save("one.npy", np.asfortranarray(np.arange(24, dtype=">f4").reshape(2, 3, 4)))
expect("one", {"one": np.load("one.npy")})
for version in (2, 3):
    with open(f"version{version}.npy", "wb") as file:
        np.lib.format.write_array(file, arrays["little.i4"], version=(version, 0))
    expect(f"version{version}", {f"version{version}": arrays["little.i4"]})
