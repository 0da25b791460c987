"""Makes the GGUF fixtures of this folder: python make.py

Needs: gguf 0.19.0, numpy 2.4. Everything is seeded; the same versions give the same bytes.

Each `NAME.gguf` is written by `gguf.GGUFWriter`; `NAME.expected.safetensors` holds what `gguf.GGUFReader` reads. It
holds quantised tensors as the bytes of their blocks: U8, the last size counts bytes.
"""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

HERE = Path(__file__).parent
NAMES = {T.F32: "F32", T.F16: "F16", T.F64: "F64", T.I8: "I8", T.I16: "I16", T.I32: "I32", T.I64: "I64", T.BF16: "BF16"}
WIDTHS = {"F32": 4, "F16": 2, "F64": 8, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "BF16": 2, "U8": 1}


def write_expected(name):
    """Writes what the reader finds as a safetensors file, by hand: NumPy knows no bfloat16. Wider types come first."""
    reader = gguf.GGUFReader(HERE / f"{name}.gguf")
    found = []
    for tensor in reader.tensors:
        dtype = NAMES.get(tensor.tensor_type, "U8")
        array = tensor.data
        shape = [int(size) for size in reversed(tensor.shape)] if dtype != "U8" else list(array.shape)
        if reader.endianess == gguf.GGUFEndian.BIG:
            # The reader gives a view of a big-endian type, but bytes for BF16.
            array = array.view(">u2") if tensor.tensor_type == T.BF16 else array
            array = array.astype(array.dtype.newbyteorder("<"))
        found.append((tensor.name, dtype, shape, array.tobytes("C")))
    header, data = {}, b""
    for key, dtype, shape, raw in sorted(found, key=lambda item: -WIDTHS[item[1]]):
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (HERE / f"{name}.expected.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def plain(name, endianess, random):
    """Every plain type, every type of metadata."""
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", "llama", endianess=endianess)
    writer.add_custom_alignment(64)
    writer.add_block_count(2)
    writer.add_key_value("test.u8", 200, gguf.GGUFValueType.UINT8)
    writer.add_key_value("test.i8", -100, gguf.GGUFValueType.INT8)
    writer.add_key_value("test.u16", 60_000, gguf.GGUFValueType.UINT16)
    writer.add_key_value("test.i16", -30_000, gguf.GGUFValueType.INT16)
    writer.add_key_value("test.i32", -2_000_000_000, gguf.GGUFValueType.INT32)
    writer.add_key_value("test.f32", 0.15625, gguf.GGUFValueType.FLOAT32)
    writer.add_key_value("test.bool", True, gguf.GGUFValueType.BOOL)
    writer.add_key_value("test.u64", 2**63 + 1, gguf.GGUFValueType.UINT64)
    writer.add_key_value("test.i64", -(2**62), gguf.GGUFValueType.INT64)
    writer.add_key_value("test.f64", -2.5e-300, gguf.GGUFValueType.FLOAT64)
    writer.add_key_value("qkvconv", 'any text: "ä\n"', gguf.GGUFValueType.STRING)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 2.0])
    writer.add_array("test.nested", [[1, 2, 3], [4, 5]])
    normal = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    writer.add_tensor("blk.0.attn_q.weight", normal(6, 10))
    writer.add_tensor("blk.0.attn_norm.weight", normal(7))
    writer.add_tensor("blk.1.half.weight", normal(2, 3, 5).astype(np.float16))
    writer.add_tensor("blk.1.deep.weight", normal(2, 3, 4, 5).astype(np.float64))
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        values = random.integers(0, 256, 3 * 5 * np.dtype(dtype).itemsize, np.uint8).view(dtype).reshape(5, 3)
        writer.add_tensor(f"{np.dtype(dtype).name}.weight", values)
    # As bytes, the last size counts them.
    half = random.integers(0, 256, (3, 2 * 9), np.uint8)
    if endianess == gguf.GGUFEndian.BIG:
        # The writer swaps the arrays that it is given by their type; bytes it leaves as they are.
        half = half.reshape(3, 9, 2)[:, :, ::-1].reshape(3, 18)
    writer.add_tensor("token_embd.weight", half, raw_dtype=T.BF16)
    if endianess == gguf.GGUFEndian.LITTLE:
        writer.add_tensor("scalar", np.array(2.5, np.float32))
    finish(writer)
    write_expected(name)


def quantised(random):
    writer = gguf.GGUFWriter(HERE / "quantised.gguf", "test")
    writer.add_description("rows of blocks")
    for name, dtype, shape in (
        ("blk.0.attn_q.weight", T.Q8_0, (6, 64)),
        ("blk.0.attn_k.weight", T.Q8_0, (2, 64)),
        ("blk.0.attn_v.weight", T.Q8_0, (2, 64)),
        ("blk.0.attn_output.weight", T.Q4_0, (3, 96)),
    ):
        values = random.standard_normal(shape).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, dtype), raw_dtype=dtype)
    # Types that gguf-py does not make: bytes as they may be.
    for name, dtype, rows, blocks in (
        ("blk.0.ffn_up.weight", T.Q4_K, 5, 2),
        ("blk.0.ffn_down.weight", T.IQ1_M, 3, 1),
        ("blk.0.ffn_gate.weight", T.MXFP4, 3, 3),
        ("blk.0.ffn_norm.weight", T.Q1_0, 1, 1),
    ):
        width = gguf.GGML_QUANT_SIZES[dtype][1]
        writer.add_tensor(name, random.integers(0, 256, (rows, blocks * width), np.uint8), raw_dtype=dtype)
    writer.add_tensor("blk.0.attn_norm.weight", random.standard_normal(64).astype(np.float32))
    finish(writer)
    write_expected("quantised")


def main():
    random = np.random.default_rng(30)
    plain("plain", gguf.GGUFEndian.LITTLE, random)
    plain("big-endian", gguf.GGUFEndian.BIG, random)
    quantised(random)
    # Version 2 differs from 3 in the number alone; gguf-py writes only 3.
    bytes_ = bytearray((HERE / "plain.gguf").read_bytes())
    bytes_[4] = 2
    (HERE / "version2.gguf").write_bytes(bytes_)
    write_expected("version2")


main()
