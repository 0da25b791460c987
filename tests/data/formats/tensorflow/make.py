"""Makes the TensorFlow checkpoints of this folder, and what TensorFlow itself reads out of each.

    pip install tensorflow-cpu==2.21.0
    python make.py [FOLDER]

saver        TF1 `Saver` (format V2): BERT-like names, Adam slots, `global_step`, many types, partitioned variables
sharded      TF1 `Saver(sharded=True)` on two devices: two data files, a partitioned variable across both
objects      TF2 `tf.train.Checkpoint`: object paths, a Keras model and its optimizer, the object graph as a string
layers       TF2 `tf.train.Checkpoint` of a Keras model alone
saved_model  TF2 SavedModel, whose checkpoint is `variables/variables`
grid         the op `SaveV2` with slices along two and three axes, not in order
big          numbers as a big-endian machine stores them: the bytes are made here, and TensorFlow reads them
"""

import json
import os
import shutil
import struct
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import ml_dtypes
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
HERE = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(__file__))

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint16": "U16", "uint8": "U8",
}


def folder(name):
    path = os.path.join(HERE, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    # Prefixes are relative, so that no path of the machine gets into a file.
    os.chdir(path)
    return path


def truth(name, prefix):
    """Writes what TensorFlow's own reader gives."""
    reader = tf.train.load_checkpoint(prefix)
    tensors = {}
    for key in sorted(reader.get_variable_to_shape_map()):
        dtype = reader.get_variable_to_dtype_map()[key]
        if dtype == tf.string:
            continue
        value = np.ascontiguousarray(reader.get_tensor(key))
        value = value.reshape(reader.get_variable_to_shape_map()[key])
        tensors[key] = value
    header, data = {}, b""
    for key, value in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        end = len(data) + value.nbytes
        header[key] = {"dtype": DTYPES[value.dtype.name], "shape": value.shape, "data_offsets": [len(data), end]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(HERE, f"{name}.expected.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def values(seed, shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def saver():
    folder("saver")
    with tf.Graph().as_default(), v1.Session() as session:
        def variable(name, value, dtype=None):
            return v1.get_variable(name, initializer=tf.constant(value, dtype=dtype), use_resource=False)

        query = "bert/encoder/layer_0/attention/self/query"
        kernel = values(1, (6, 10))
        variable(f"{query}/kernel", kernel)
        variable(f"{query}/kernel/adam_m", kernel * 0.5)
        variable(f"{query}/kernel/adam_v", kernel * kernel)
        variable(f"{query}/bias", values(2, (10,)))
        variable("bert/embeddings/word_embeddings", values(3, (11, 6)))
        variable("global_step", np.int64(3_000_000_007))
        variable("types/bf16", values(4, (3, 5), ml_dtypes.bfloat16))
        variable("types/f16", values(5, (5, 2), np.float16))
        variable("types/f64", values(6, (2, 3), np.float64))
        variable("types/bool", np.array([True, False, True]))
        variable("types/i8", np.arange(-3, 4, dtype=np.int8))
        variable("types/i16", np.arange(-3, 4, dtype=np.int16) * 999)
        variable("types/i32", np.arange(5, dtype=np.int32) * -99_999)
        variable("types/u8", np.arange(250, 255, dtype=np.uint8))
        variable("types/scalar", np.float32(-0.125))
        variable("types/empty", np.zeros((0, 3), np.float32))
        variable("types/text", np.array([b"some", b"words"]))
        for name, shape, axis, pieces in [("rows", (7, 3), 0, 3), ("columns", (3, 7), 1, 2), ("wide", (2, 9, 5), 1, 4)]:
            partitioner = v1.fixed_size_partitioner(pieces, axis=axis)
            whole = values(len(name) * 7, shape)

            def fill(part, dtype, partition_info, whole=whole):
                at = partition_info.var_offset
                return tf.constant(whole[tuple(slice(a, a + n) for a, n in zip(at, part))])

            v1.get_variable(f"parts/{name}", shape, initializer=fill, partitioner=partitioner, use_resource=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, "model.ckpt", global_step=3, write_meta_graph=False)
    truth("saver", "model.ckpt-3")


def sharded():
    folder("sharded")
    config = v1.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        for device in range(2):
            with tf.device(f"/cpu:{device}"):
                for layer in range(2):
                    name = f"model/layer_{layer}/dense_{device}/kernel"
                    v1.get_variable(name, initializer=tf.constant(values(10 * layer + device, (4, 3 + 2 * layer))), use_resource=False)
        whole = values(77, (5, 4))

        def fill(part, dtype, partition_info):
            at = partition_info.var_offset
            return tf.constant(whole[tuple(slice(a, a + n) for a, n in zip(at, part))])

        for axis in range(2):
            # One piece on each device.
            turn = iter(range(2))
            with v1.device(lambda op: f"/cpu:{next(turn, 0) if op.type == 'VariableV2' else 0}"):
                v1.get_variable(f"model/axis_{axis}", (5, 4), initializer=fill, use_resource=False,
                                partitioner=v1.fixed_size_partitioner(2, axis=axis))
        session.run(v1.global_variables_initializer())
        v1.train.Saver(sharded=True).save(session, "model.ckpt", write_meta_graph=False)
    truth("sharded", "model.ckpt")


def network():
    tf.keras.utils.set_random_seed(5)
    tf.keras.backend.clear_session()
    model = tf.keras.Sequential([
        tf.keras.layers.Input((3,)), tf.keras.layers.Dense(5, name="query"), tf.keras.layers.Dense(2, name="output")])
    return model


def objects():
    folder("objects")
    model = network()
    optimizer = tf.keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    gradients = [tf.constant(values(30 + i, v.shape)) for i, v in enumerate(model.trainable_variables)]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    table = tf.Variable(values(50, (4, 3)), name="table")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, table=table)
    checkpoint.save("ckpt")
    truth("objects", "ckpt-1")


def layers():
    folder("layers")
    tf.train.Checkpoint(model=network()).write("model")
    truth("layers", "model")


def saved_model():
    class Module(tf.Module):
        def __init__(self):
            self.kernel = tf.Variable(values(60, (3, 4)), name="kernel")
            self.bias = tf.Variable(values(61, (4,)), name="bias")

    folder("saved_model")
    tf.saved_model.save(Module(), ".")
    shutil.rmtree("assets", ignore_errors=True)
    os.remove("fingerprint.pb")
    truth("saved_model", "variables/variables")


def grid():
    folder("grid")
    two, three = values(40, (130, 6)), values(41, (2, 5, 4), ml_dtypes.bfloat16)
    names, specs, data = [], [], []

    def add(name, whole, *cuts):
        cut = tuple(slice(a, a + n) for a, n in cuts)
        spec = ":".join("-" if (a, n) == (0, size) else f"{a},{n}" for (a, n), size in zip(cuts, whole.shape))
        names.append(name)
        specs.append(f"{' '.join(map(str, whole.shape))} {spec}")
        data.append(np.ascontiguousarray(whole[cut]))

    # Lengths over 63 and 127 take more bytes in a key.
    for rows in [(70, 60), (0, 70)]:
        for columns in [(4, 2), (0, 1), (1, 3)]:
            add("two", two, rows, columns)
    for a in [(1, 1), (0, 1)]:
        for b in [(0, 2), (2, 3)]:
            for c in [(3, 1), (0, 3)]:
                add("three", three, a, b, c)
    names.append("whole")
    specs.append("")
    data.append(values(42, (3,)))
    prefix = "./model"
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=specs, tensors=data)
    truth("grid", prefix)


# A writer of the index, for what TensorFlow does not write on this machine.

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def masked(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, kind, value):
    body = varint(value) if kind == 0 else varint(len(value)) + value if kind == 2 else struct.pack("<I", value)
    return varint(number << 3 | kind) + body


def table(entries):
    out = b""

    def block(entries):
        nonlocal out
        body = b"".join(b"\0" + varint(len(k)) + varint(len(v)) + k + v for k, v in entries)
        body += struct.pack("<II", 0, 1) + b"\0"
        handle = varint(len(out)) + varint(len(body) - 1)
        out += body + struct.pack("<I", masked(body))
        return handle

    data = block(entries)
    meta = block([])
    index = block([(b"~", data)])
    return out + (meta + index).ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def big():
    folder("big")
    kernel = values(70, (5, 4))
    signed = lambda value: bytes([0x80 ^ value & 0xFF])  # of -64 to 63, in a key
    tensors = [
        ("bool", 10, np.array([True, False])), ("f16", 19, values(71, (3, 2), np.float16)),
        ("f32", 1, values(72, (2, 3))), ("i64", 9, np.array([1, -2, 1 << 40])), ("u16", 17, np.array([1, 258], np.uint16)),
    ]
    data, entries = b"", [(b"", field(1, 0, 1) + field(2, 0, 1) + field(3, 2, field(1, 0, 1)))]

    def entry(key, kind, value, more=b""):
        nonlocal data
        raw = value.astype(value.dtype.newbyteorder(">")).tobytes()
        shape = b"".join(field(2, 2, field(1, 0, n)) for n in value.shape)
        proto = field(1, 0, kind) + field(2, 2, shape) + field(4, 0, len(data)) + field(5, 0, len(raw))
        entries.append((key, proto + field(6, 5, masked(raw))))
        data += raw

    slices = b""
    for at, length in [(0, 1), (1, 3)]:
        slices += field(7, 2, field(1, 2, b"") + field(1, 2, field(1, 0, at) + field(2, 0, length)))
        key = b"\0kernel\0\1\1\2" + signed(0) + signed(-1) + signed(at) + signed(length)
        entry(key, 1, np.ascontiguousarray(kernel[:, at:at + length]))
    for name, kind, value in tensors:
        entry(name.encode(), kind, value)
    shape = field(2, 2, field(1, 0, 5)) + field(2, 2, field(1, 0, 4))
    entries.append((b"kernel", field(1, 0, 1) + field(2, 2, shape) + slices))
    entries.sort()
    prefix = "./model"
    open(f"{prefix}.index", "wb").write(table(entries))
    open(f"{prefix}.data-00000-of-00001", "wb").write(data)
    truth("big", prefix)


for make in [saver, sharded, objects, layers, saved_model, grid, big]:
    print(make.__name__)
    make()
