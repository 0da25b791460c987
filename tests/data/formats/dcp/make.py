"""Writes the folders here with torch.distributed.checkpoint, on 2 and 3 gloo processes on the CPU, and what torch itself makes
of each (`dcp_to_torch_save`) as NAME.expected.safetensors.

    python make.py
"""

import os
import pickle
import shutil
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

HERE = Path(__file__).resolve().parent


class Attention(torch.nn.Module):
    """Four query heads and two kv heads of size 2, width 5, which no number of ranks divides."""

    def __init__(self):
        super().__init__()
        for name, rows, columns in (("wq", 8, 5), ("wk", 4, 5), ("wv", 4, 5), ("wo", 5, 8)):
            setattr(self, name, torch.nn.Linear(columns, rows, bias=False))


def fsdp(mesh):
    """A model that FSDP2 has sharded, after one step of SGD, with numbers and texts beside it."""
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.ModuleDict({"attention": Attention()})])
    fully_shard(model, mesh=mesh)
    # With one moment of each parameter.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state, "step": 7, "run": "a"}, checkpoint_id="fsdp")


def grid(mesh):
    """Tensors cut along each dimension, replicated, of other types, empty, a number, tied, and a rank without rows."""
    torch.manual_seed(1)
    make = lambda tensor, *placements: distribute_tensor(tensor, mesh, list(placements))
    tied = make(torch.randn(4, 3), Shard(0))
    tensors = {
        "a.rows": make(torch.randn(7, 4), Shard(0)),
        "a.columns": make(torch.randn(4, 7), Shard(1)),
        "a.bf16": make(torch.randn(5, 3).bfloat16(), Shard(0)),
        "a.replicated": make(torch.randn(3, 2), Replicate()),
        "a.short": make(torch.arange(1, 3), Shard(0)),
        "a.middle": make(torch.randn(2, 5, 3).half(), Shard(1)),
        "a.tied": tied,
        "b.tied": tied,
        "a.plain": torch.arange(6).reshape(2, 3).t(),
        "a.number": torch.tensor(2.5),
        "a.empty": torch.zeros(0, 3),
    }
    dcp.save(tensors, checkpoint_id="grid")


def one(mesh):
    """A tensor and a pickled object, of one rank: small, for fuzzing."""
    dcp.save({"w": torch.arange(6.0).reshape(2, 3), "n": 3}, checkpoint_id="one")


def edited(name, tensors, edit):
    """A folder of one process whose list is changed as torch itself would not write it."""
    shutil.rmtree(HERE / name, ignore_errors=True)
    os.chdir(HERE)
    dcp.save(tensors, checkpoint_id=name, no_dist=True)
    path = HERE / name / ".metadata"
    listed = pickle.loads(path.read_bytes())
    edit(listed)
    path.write_bytes(pickle.dumps(listed, protocol=4))


def overlapping(listed):
    """`wq` in two chunks that share row 4."""
    name = "layers.0.attention.wq.weight"
    chunks = []
    for part, first, rows in (("first", 0, 5), ("second", 4, 4)):
        del listed.state_dict_metadata[part]
        del listed.planner_data[part]
        place = listed.storage_data.pop(MetadataIndex(part, [0, 0]))
        listed.storage_data[MetadataIndex(name, [first, 0])] = place
        chunks.append(ChunkStorageMetadata(torch.Size([first, 0]), torch.Size([rows, 5])))
    properties = TensorProperties(dtype=torch.float32)
    listed.state_dict_metadata[name] = TensorStorageMetadata(properties, torch.Size([8, 5]), chunks)
    listed.planner_data[name] = (name,)


def transformed(listed):
    """A chunk that went through a compression."""
    for place in listed.storage_data.values():
        place.transform_descriptors = ["stream.zstd"]


def faulty():
    rows = torch.arange(40.0).reshape(8, 5)
    first, second = rows[:5].clone(), rows[4:].clone()
    second[0, 0] = 99
    tensors = {f"layers.0.attention.{name}.weight": torch.randn(shape) for name, shape in
               (("wk", (4, 5)), ("wv", (4, 5)), ("wo", (5, 8)))}
    edited("overlap", {**tensors, "first": first, "second": second}, overlapping)
    save_file({**tensors, "layers.0.attention.wq.weight": rows}, HERE / "overlap.expected.safetensors")
    (HERE / "overlap.expected.safetensors").chmod(0o644)
    edited("transformed", {"w": torch.ones(2, 3)}, transformed)
    shutil.rmtree(HERE / "as_safetensors", ignore_errors=True)
    writer = FileSystemWriter("as_safetensors", serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save({"w": torch.ones(2, 3)}, storage_writer=writer, no_dist=True)


def run(rank, world, name, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    # The list keeps the name of the folder as it was given.
    os.chdir(HERE)
    globals()[name](init_device_mesh("cpu", (world,)))
    dist.destroy_process_group()


def flat(value, names=()):
    if isinstance(value, torch.Tensor):
        return {".".join(names): value.contiguous().clone()}
    if isinstance(value, dict):
        return {key: t for name, inner in value.items() for key, t in flat(inner, (*names, str(name))).items()}
    return {}


def main():
    for name, world in (("fsdp", 2), ("grid", 3), ("one", 1)):
        shutil.rmtree(HERE / name, ignore_errors=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.spawn(run, args=(world, name, port), nprocs=world)
        dcp_to_torch_save(HERE / name, HERE / "joined.tmp")
        joined = torch.load(HERE / "joined.tmp", weights_only=False)
        (HERE / "joined.tmp").unlink()
        save_file(flat(joined), HERE / f"{name}.expected.safetensors")
        (HERE / f"{name}.expected.safetensors").chmod(0o644)
    torch.manual_seed(2)
    faulty()
    # A seed of the fuzz target: how long the list is, the list, and the one file.
    listed = (HERE / "one/.metadata").read_bytes()
    seed = len(listed).to_bytes(2, "little") + listed + (HERE / "one/__0_0.distcp").read_bytes()
    corpus = HERE.parents[3] / "fuzz/corpus/dcp"
    corpus.mkdir(exist_ok=True)
    (corpus / "one").write_bytes(seed)
    shutil.rmtree(HERE / "one")
    (HERE / "one.expected.safetensors").unlink()


if __name__ == "__main__":
    main()
