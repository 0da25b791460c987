"""Makes the HDF5 fixtures beside it: `python make.py`.

Needs keras 3, tensorflow, tf_keras, transformers 4, h5py, ml_dtypes and numpy. What a file holds is written beside it as
`*.expected.safetensors`, as h5py reads it; where Keras or transformers wrote the file, they load it too, and their
values must be the same.
"""

import json
import os
import re
import struct
import sys
import zipfile

os.environ.update(KERAS_BACKEND="tensorflow", TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

import h5py
import ml_dtypes
import numpy as np

NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}


def put(name, arrays):
    """Writes the truth about a file."""
    order = sorted(arrays, key=lambda key: -arrays[key].dtype.itemsize)
    header, data = {}, b""
    for key in order:
        array = arrays[key]
        array = array.astype(array.dtype.newbyteorder("<"))
        raw = array.tobytes()
        spans = [len(data), len(data) + len(raw)]
        header[key] = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": spans}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(name + ".expected.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def numbers(file, root="/", skip=()):
    """Returns the arrays of numbers in a file by their paths."""
    found = {}

    def visit(path, item):
        if isinstance(item, h5py.Dataset) and not path.startswith(tuple(skip)):
            if item.attrs.get("dtype") == "bfloat16":
                found[path] = np.array(item).view(ml_dtypes.bfloat16)
            elif item.shape is not None and item.dtype.name in NAMES:
                found[path] = np.array(item[()])

    with h5py.File(file, "r") as opened:
        opened[root].visititems(visit)
    return found


def same(found, loaded, what):
    """Demands that a framework loaded the arrays that are in the file."""
    left = [np.asarray(value) for value in loaded]
    for path, array in found.items():
        at = next((i for i, other in enumerate(left) if other.shape == array.shape and other.tobytes() == array.tobytes()), None)
        if at is None:
            sys.exit(f"{what}: {path} was loaded as something else")
        del left[at]


# Keras 3.

import keras

keras.utils.set_random_seed(7)


def network():
    inputs = keras.Input((5, 6))
    hidden = keras.layers.MultiHeadAttention(2, 3, name="mha")(inputs, inputs)
    return keras.Model(inputs, keras.layers.Dense(7, name="out", dtype="bfloat16")(hidden))


def dense():
    # Names whose order is not the alphabet's.
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(5, name="second")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2, name="first")(hidden), name="dense")


def jumble(model):
    """Gives every weight values of its own: Keras starts biases at 0 and scales at 1."""
    random = np.random.default_rng(11)
    model.set_weights([random.standard_normal(w.shape).astype("float32").astype(w.dtype) for w in model.get_weights()])


model = network()
jumble(model)
model.save_weights("keras3.weights.h5")
other = network()
other.load_weights("keras3.weights.h5")
found = numbers("keras3.weights.h5")
same(found, other.get_weights(), "keras3")
put("keras3.weights.h5", found)

model = dense()
model.compile("sgd", "mse")
jumble(model)
model.train_on_batch(np.ones((1, 3), "float32"), np.ones((1, 2), "float32"))
model.save("raw.keras")
with zipfile.ZipFile("raw.keras") as archive:
    entries = {info.filename: archive.read(info) for info in archive.infolist()}
# The configuration names objects by their addresses.
ids = {}
number = lambda match: b'"shared_object_id": %d' % ids.setdefault(match[1], len(ids))
entries["config.json"] = re.sub(rb'"shared_object_id": (\d+)', number, entries["config.json"])
for name, method in [("model.keras", zipfile.ZIP_STORED), ("packed.keras", zipfile.ZIP_DEFLATED)]:
    # Packed again, as Keras does it but without the time of day.
    entries["metadata.json"] = b'{"keras_version": "3.15.1", "date_saved": "2020-01-01@00:00:00"}'
    with zipfile.ZipFile(name, "w") as archive:
        for entry, data in entries.items():
            info = zipfile.ZipInfo(entry, (1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            archive.writestr(info, data)
    loaded = keras.models.load_model(name)
    with open("raw.h5", "wb") as file:
        file.write(entries["model.weights.h5"])
    found = numbers("raw.h5", skip=["optimizer"])
    same(found, loaded.get_weights(), name)
    put(name, found)
os.remove("raw.keras")
os.remove("raw.h5")

# The old form: a whole model with its optimizer by Keras 3, and weights alone by transformers.

model.save("legacy.h5")
found = numbers("legacy.h5", root="model_weights")
same(found, keras.models.load_model("legacy.h5", compile=False).get_weights(), "legacy.h5")
put("legacy.h5", found)

from transformers import BertConfig, TFBertModel

keras.utils.set_random_seed(7)
config = BertConfig(
    vocab_size=13, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=10,
    max_position_embeddings=9, type_vocab_size=3,
)
model = TFBertModel(config, add_pooling_layer=False)
model.build_in_name_scope()
jumble(model)
os.makedirs("bert", exist_ok=True)
model.save_pretrained("bert")
other = TFBertModel.from_pretrained("bert", add_pooling_layer=False)
os.rename("bert/tf_model.h5", "tf_model.h5")
os.remove("bert/config.json")
os.rmdir("bert")
found = numbers("tf_model.h5")
same(found, [weight.numpy() for weight in other.weights], "tf_model.h5")
put("tf_model.h5", found)

# Every storage, by h5py, in its old structures and its new ones.

random = np.random.default_rng(5)


def floats(*shape, dtype="<f4"):
    return random.standard_normal(shape).astype(dtype)


def create(name, libver):
    """Opens a new file whose groups do not hold the time of day."""
    properties = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    properties.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_libver_bounds(*(getattr(h5py.h5f, f"LIBVER_{bound}") for bound in libver))
    return h5py.File(h5py.h5f.create(name.encode(), h5py.h5f.ACC_TRUNC, properties, access))


def group(file, name):
    properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    properties.set_obj_track_times(False)
    h5py.h5g.create(file.id, name.encode(), gcpl=properties)


def compact(file, name, data):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    properties.set_obj_track_times(False)
    space = h5py.h5s.create_simple(data.shape)
    item = h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(data.dtype), space, properties)
    item.write(space, space, data)


OLD, NEW = ("EARLIEST", "LATEST"), ("LATEST", "LATEST")

for name, libver in [("storage.h5", OLD), ("latest.h5", NEW)]:
    with create(name, libver) as file:
        for inner in ["plain", "big", "odd", "chunks", "other"]:
            group(file, inner)
        file.attrs["qkvconv"] = '{"layout":"a/b"}'
        file.attrs["format"] = np.bytes_("tf")
        file.attrs["number"] = 3
        file.create_dataset("plain/f32", data=floats(3, 5))
        file.create_dataset("plain/f64", data=floats(2, 3, dtype="<f8"))
        file.create_dataset("plain/f16", data=floats(5, 2, dtype="<f2"))
        file.create_dataset("plain/bool", data=np.array([[True, False, True]]))
        item = file.create_dataset("plain/bf16", data=floats(3, 2).astype(ml_dtypes.bfloat16))
        item.attrs["dtype"] = "bfloat16"
        for dtype in [">f2", ">f4", ">f8", ">i2", ">u8"]:
            file.create_dataset(f"big/{dtype[1:]}", data=(floats(4, 3) * 50).astype(dtype))
        file.create_dataset("odd/scalar", data=np.float32(2.5))
        file.create_dataset("odd/big_scalar", data=np.array(2.5, ">f8"))
        file.create_dataset("odd/empty", data=floats(0, 3))
        file.create_dataset("odd/unwritten", shape=(3, 2), dtype="<f4")
        file.create_dataset("odd/filled", shape=(2, 3), dtype="<f4", fillvalue=1.5)
        compact(file, "odd/compact", floats(4, 2))
        compact(file, "odd/compact_big", floats(2, 3, dtype=">f4"))
        file["odd/linked"] = file["plain/f32"]
        file.create_dataset("chunks/gzip", data=floats(7, 5), chunks=(3, 2), compression="gzip", shuffle=True)
        file.create_dataset("chunks/lzf", data=np.arange(60, dtype="<i4").reshape(12, 5), chunks=(4, 5), compression="lzf")
        holes = file.create_dataset("chunks/holes", shape=(6, 4), dtype="<f4", chunks=(2, 2), fillvalue=-1.0)
        holes[3, 2:] = [7.0, 8.0]
        if libver == NEW:
            group(file, "ints")
            for dtype in ["i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"]:
                file.create_dataset(f"ints/{np.dtype(dtype).name}", data=np.arange(200, 206).astype(dtype).reshape(2, 3))
            file.create_dataset("chunks/plain", data=floats(7, 5), chunks=(3, 2))
            file.create_dataset("chunks/extensible", data=floats(5, 2), chunks=(2, 2), maxshape=(None, 2))
            file.create_dataset("chunks/one", data=floats(3, 4), chunks=(3, 4))
            file.create_dataset("chunks/checked", data=floats(4, 6), chunks=(2, 6), fletcher32=True)
            file.create_dataset("chunks/big", data=floats(5, 3, dtype=">f4"), chunks=(2, 2), compression="gzip")
        file.create_dataset("other/text", data="text")
        file.create_dataset("other/records", data=np.zeros(2, [("a", "<f4"), ("b", "<i4")]))
        file.create_dataset("other/null", data=h5py.Empty("<f4"))
    # A dataset with two names is visited once.
    put(name, numbers(name) | {"plain/f32": numbers(name)["odd/linked"]})

with h5py.File("complex.h5", "w") as file:
    file["little"] = np.array([1 + 2j, 3 - 4j], "<c8")
    file["big"] = np.array([1 + 2j, 3 - 4j], ">c8")

with h5py.File("opaque.h5", "w") as file:
    file.create_dataset("bf16", data=np.array([1, -2.5], ml_dtypes.bfloat16).view("V2"))
    file.create_dataset("f8", data=np.array([[1, 0.5, -2]], ml_dtypes.float8_e4m3fn).view("V1"))

# What cannot be read, with the reason.

with h5py.File("external.h5", "w") as file:
    file.create_dataset("w", shape=(2, 2), dtype="<f4", external=[("w.raw", 0, 16)])

with create("virtual.h5", OLD) as file:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    row, all = h5py.h5s.create_simple((2, 3)), h5py.h5s.create_simple((3,))
    row.select_hyperslab((0, 0), (1, 3))
    properties.set_virtual(row, b"other.h5", b"a", all)
    properties.set_obj_track_times(False)
    h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((2, 3)), properties)

with create("nbit.h5", OLD) as file:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((2, 2))
    properties.set_obj_track_times(False)
    properties.set_filter(h5py.h5z.FILTER_NBIT)
    space = h5py.h5s.create_simple((2, 2))
    h5py.h5d.create(file.id, b"w", h5py.h5t.IEEE_F32LE, space, properties)

with create("two_unlimited.h5", NEW) as file:
    file.create_dataset("w", data=floats(3, 3), chunks=(2, 2), maxshape=(None, None))

with h5py.File("circle.h5", "w") as file:
    group = file.create_group("a")
    group["w"] = floats(2)
    group["a"] = group

# Links: soft and external ones, a group with so many that a heap holds them, and what leads nowhere. `links_other.h5` is
# what the external ones lead to.


def link_tree(file, other):
    file["attn/q/kernel"] = floats(3, 5)
    file["attn/q/bias"] = floats(5)
    file["tied"] = h5py.SoftLink("/attn/q/kernel")
    file["attn/copy"] = h5py.SoftLink("q")
    file["twice"] = h5py.SoftLink("attn/copy/bias")
    file["more"] = h5py.ExternalLink(other, "/w")
    file["attn/far"] = h5py.ExternalLink(other, "group")
    for number in range(40):
        file[f"many/layer_with_a_rather_long_name_{number:02}"] = h5py.SoftLink("/attn/q/bias")


def truth(name):
    """Returns the arrays that a file has under all names, as h5py follows them."""
    with h5py.File(name, "r") as file:
        def inside(group, path):
            for key in group:
                item = group[key]
                yield from inside(item, path + [key]) if isinstance(item, h5py.Group) else [("/".join(path + [key]), item[()])]
        return dict(inside(file, []))


with create("links_other.h5", NEW) as file:
    file["w"] = floats(4, 2)
    file["group/a"] = floats(2)
    file["group/b"] = h5py.SoftLink("/w")
with create("links_latest.h5", NEW) as file:
    link_tree(file, "links_other.h5")
put("links_latest.h5", truth("links_latest.h5"))

with h5py.File("links.h5", "w") as file:
    file["attn/q/kernel"] = floats(3, 5)
    file["attn/q/bias"] = floats(5)
    file["attn/copy"] = h5py.SoftLink("q")
    file["attn/k"] = h5py.SoftLink("/attn/q/kernel")
    for number in range(30):
        file[f"m/x{number:02}"] = h5py.SoftLink("/attn/q/bias")
put("links.h5", truth("links.h5"))

with h5py.File("links_nowhere.h5", "w") as file:
    file["w"] = floats(2)
    file["soft"] = h5py.SoftLink("/none")
    file["circle"] = h5py.SoftLink("circle")
    file["file"] = h5py.ExternalLink("none.h5", "/w")
    file["object"] = h5py.ExternalLink("links_other.h5", "/none")
    file["outside"] = h5py.ExternalLink("../hdf5/links_other.h5", "/w")

for size in (512, 4096):
    with h5py.File(f"userblock_{size}.h5", "w", userblock_size=size) as file:
        file["a/w"] = floats(3, 5)
        file.create_dataset("chunked", data=floats(7, 5), chunks=(3, 2), compression="gzip")
    with open(f"userblock_{size}.h5", "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file")
    put(f"userblock_{size}.h5", truth(f"userblock_{size}.h5"))
