"""Makes the PyTorch fixtures of this folder, each with what PyTorch itself loads from it as `*.expected.safetensors`.

Needs torch (made with 2.15, CPU), numpy and safetensors: `python make.py`. The same tensors come out each time; only the
names of the storages in `*.legacy.pt` are addresses in memory, and with them their order differs.
"""

import argparse
import io
import json
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
torch.manual_seed(7)
warnings.filterwarnings("ignore")


def no_source(*_):
    """Keeps PyTorch's own source texts, and where they lie, out of the file of a whole module."""
    raise OSError


torch.serialization.get_source_lines_and_file = no_source


def flat(value, prefix=""):
    """The tensors of nested dictionaries and lists, with their names joined."""
    if isinstance(value, torch.Tensor):
        return {prefix: value.detach().clone(memory_format=torch.contiguous_format)}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else []
    found = {}
    for key, item in items:
        found.update(flat(item, f"{prefix}.{key}" if prefix else str(key)))
    return found


def expect(name, tensors):
    save_file(tensors, HERE / f"{name}.expected.safetensors")


def both(name, content, tensors):
    """Writes the archive and the file before it, and checks that PyTorch reads the same from both."""
    torch.save(content, HERE / f"{name}.pt")
    torch.save(content, HERE / f"{name}.legacy.pt", _use_new_zipfile_serialization=False)
    for file in (f"{name}.pt", f"{name}.legacy.pt"):
        loaded = tensors(torch.load(HERE / file, weights_only=False))
        expected = tensors(content)
        assert loaded.keys() == expected.keys()
        for key, tensor in loaded.items():
            assert tensor.dtype == expected[key].dtype and tensor.shape == expected[key].shape, key
            assert tensor.contiguous().view(-1).view(torch.uint8).equal(expected[key].contiguous().view(-1).view(torch.uint8))
    expect(name, expected)


def training():
    """A checkpoint as training scripts write it."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2, bias=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    content = {
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, betas=(0.9, 0.999), name="run", nested=argparse.Namespace(deep=None)),
        "best": np.float64(3.5),
        "history": np.arange(7, dtype=np.float32),
        "names": {"a", "b"},
        "losses": [0.5, 0.25],
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    both("training", content, lambda content: flat(content["state_dict"]))


def views():
    """Every way in which a tensor lies in a storage, and the types."""
    base = torch.arange(2 * 3 * 5 * 4, dtype=torch.float32).reshape(2, 3, 5, 4)
    flat_buffer = torch.randn(30)
    tied = torch.randn(7, 3)
    content = OrderedDict(
        {
            "contiguous": torch.randn(3, 5),
            "transposed": torch.randn(3, 5).t(),
            "permuted": torch.randn(2, 3, 5).permute(2, 0, 1),
            "channels_last": torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last),
            "sliced": base[1:, ::2, 1:4, 3],
            "stepped": torch.arange(40, dtype=torch.int64)[3::7],
            "expanded": torch.randn(3, 1).expand(3, 4),
            "expanded_all": torch.tensor(2.5).expand(2, 3),
            "one_dim_of_one": torch.randn(4, 1, 6)[:, :, 2:5],
            "flat.a": flat_buffer[:12].view(3, 4),
            "flat.b": flat_buffer[12:].view(2, 9),
            "tied.embed": tied,
            "tied.head": tied,
            "parameter": torch.nn.Parameter(torch.randn(2, 3)),
            "parameter_frozen": torch.nn.Parameter(torch.randn(3, 2), requires_grad=False),
            "parameter_of_view": torch.nn.Parameter(torch.randn(4, 3).t()[1:]),
            "scalar": torch.tensor(1.5),
            "scalar_int": torch.tensor(-9, dtype=torch.int64),
            "scalar_of_many": torch.arange(9.0)[7],
            "empty": torch.empty(0),
            "empty_2d": torch.empty(3, 0, 2),
            "empty_of_many": torch.randn(5, 4)[2:2],
            "empty_strided": torch.empty_strided((0, 5), (7, 9)),
            "f64": torch.randn(2, 3, dtype=torch.float64),
            "f16": torch.randn(3, 2).to(torch.float16),
            "bf16": torch.randn(3, 5).to(torch.bfloat16),
            "bf16_t": torch.randn(3, 5).to(torch.bfloat16).t(),
            "i32": torch.arange(-3, 3, dtype=torch.int32),
            "i16": torch.arange(-3, 3, dtype=torch.int16),
            "i8": torch.arange(-3, 3, dtype=torch.int8),
            "u8": torch.arange(250, 256, dtype=torch.uint8),
            "bool": torch.tensor([[True, False, True], [False, False, True]]).t(),
        }
    )
    both("views", content, flat)


def untyped():
    """The types whose storages have none. PyTorch writes these into the file before the archive too, but cannot read them."""
    content = {
        "e4m3": torch.randn(3, 5).to(torch.float8_e4m3fn).t(),
        "e5m2": torch.randn(3, 5).to(torch.float8_e5m2)[1:],
        "u16": torch.arange(6, dtype=torch.int32).to(torch.uint16).view(2, 3)[:, 1:],
        "u32": torch.arange(6, dtype=torch.int64).to(torch.uint32).view(2, 3).t(),
        "u64": torch.arange(6, dtype=torch.int64).to(torch.uint64)[4:],
    }
    torch.save(content, HERE / "untyped.pt")
    torch.save(content, HERE / "untyped.legacy.pt", _use_new_zipfile_serialization=False)
    expect("untyped", flat(torch.load(HERE / "untyped.pt", weights_only=True)))


def exotic():
    """Types that few frameworks have; the test names their bytes."""
    kinds = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
    content = {str(kind)[6:]: torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.uint8).view(kind).view(2, 3).t() for kind in kinds}
    content["complex64"] = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    torch.save(content, HERE / "exotic.pt")


def refused():
    """Tensors of kinds that are not read; each is named by what is wrong with it."""

    content = {
        "good": torch.ones(2),
        "sparse": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "quantised": torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.quint8),
        "meta": torch.empty(2, device="meta"),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "complex128": torch.ones(2, dtype=torch.complex128),
        "conjugated": torch.tensor([1 + 2j], dtype=torch.complex64).conj(),
        "negated": torch.tensor([3 + 4j], dtype=torch.complex64).conj().imag,
        "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.complex128)),
    }
    torch.save(content, HERE / "refused.pt")


def module():
    """A module saved whole: tied parameters, a buffer that is no part of the state dict, a module in a module."""
    inner = torch.nn.Sequential(OrderedDict(one=torch.nn.Linear(3, 2), two=torch.nn.BatchNorm1d(2, affine=False)))
    model = torch.nn.ModuleDict({"inner": inner, "norm": torch.nn.LayerNorm(3), "head": torch.nn.Linear(3, 2, bias=False)})
    model["head"].weight = inner.one.weight
    model.register_buffer("kept", torch.arange(3))
    model.register_buffer("left_out", torch.arange(4), persistent=False)
    model.register_buffer("absent", None)
    both("module", model, lambda model: flat(model.state_dict()))
    torch.save(model, HERE / "module.protocol1.pt", pickle_protocol=1)


def script():
    """A module as TorchScript saves it, without the code, which is PyTorch's own."""
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)))
    torch.jit.save(model, HERE / "script.tmp")
    expect("script", flat(torch.jit.load(HERE / "script.tmp").state_dict()))
    repack("script.pt", "script.tmp", zipfile.ZIP_STORED, lambda name, data: None if "/code/" in name else data)
    (HERE / "script.tmp").unlink()


def small():
    """What else can be at the top, and other protocols."""
    torch.save([torch.arange(3.0), {"a": torch.arange(4)}], HERE / "list.pt")
    expect("list", {"0": torch.arange(3.0), "1.a": torch.arange(4)})
    torch.save(torch.nn.Parameter(torch.arange(6.0).view(2, 3)), HERE / "bare.pt")
    expect("bare", {"tensor": torch.arange(6.0).view(2, 3)})
    content = {"model": OrderedDict({"a.weight": torch.arange(6.0).view(3, 2).t(), "b": torch.arange(5)}), "step": 2**70}
    for protocol in (1, 3, 4, 5):
        torch.save(content, HERE / f"protocol{protocol}.pt", pickle_protocol=protocol)
        loaded = flat(torch.load(HERE / f"protocol{protocol}.pt", weights_only=False)["model"])
    torch.save(content, HERE / "protocol4.legacy.pt", pickle_protocol=4, _use_new_zipfile_serialization=False)
    expect("protocol", loaded)


def repack(name, source, method, change):
    """Writes the archive again with other entries."""
    with zipfile.ZipFile(HERE / source) as old, zipfile.ZipFile(HERE / name, "w", method) as new:
        for entry in old.infolist():
            data = change(entry.filename, old.read(entry))
            if data is not None:
                info = zipfile.ZipInfo(entry.filename, (2020, 1, 1, 0, 0, 0))
                info.compress_type = method
                new.writestr(info, data)


def repacked():
    """An archive that is compressed, and one of a machine with the other byte order."""
    content = {"f32": torch.arange(15.0).view(3, 5).t(), "bf16": torch.arange(7).to(torch.bfloat16)[2:], "i64": torch.arange(4),
               "bool": torch.tensor([True, False]), "u8": torch.arange(3, dtype=torch.uint8)}
    memory = io.BytesIO()
    torch.save(content, memory)
    (HERE / "plain.tmp").write_bytes(memory.getvalue())
    repack("deflated.pt", "plain.tmp", zipfile.ZIP_DEFLATED, lambda _, data: data)
    widths = {"data/0": 4, "data/1": 2, "data/2": 8, "data/3": 1, "data/4": 1}

    def swap(name, data):
        name = name.split("/", 1)[1]
        if name == "byteorder":
            return b"big"
        if name in widths:
            return np.frombuffer(data, f"V{widths[name]}").view(np.uint8).reshape(-1, widths[name])[:, ::-1].tobytes()
        return data

    repack("big_endian.pt", "plain.tmp", zipfile.ZIP_STORED, swap)
    (HERE / "plain.tmp").unlink()
    for name in ("deflated", "big_endian"):
        expect(name, flat(torch.load(HERE / f"{name}.pt", weights_only=True)))


def sharded():
    """A checkpoint in two files with an index."""
    folder = HERE / "sharded"
    folder.mkdir(exist_ok=True)
    shards = [{"a.weight": torch.randn(3, 2), "b.weight": torch.randn(2, 5).t()}, {"c.bias": torch.randn(4)}]
    weights, total = {}, 0
    for number, shard in enumerate(shards, 1):
        name = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save(shard, folder / name)
        weights |= dict.fromkeys(shard, name)
        total += sum(tensor.numel() * 4 for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")
    expect("sharded", flat({**shards[0], **shards[1]}))


for make in (training, views, untyped, exotic, refused, module, script, small, repacked, sharded):
    make()
