"""Writes the folders here with torch.distributed.checkpoint, on 2 and 3 gloo processes on the CPU, and what torch itself makes
of each (`dcp_to_torch_save`) as NAME.expected.safetensors.

    python make.py
"""

import os
import shutil
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

HERE = Path(__file__).resolve().parent


class Attention(torch.nn.Module):
    """Four query heads, two kv heads of size 2, width 6; 5 rows do not divide by 2 or 3."""

    def __init__(self):
        super().__init__()
        self.wq = torch.nn.Linear(6, 8, bias=False)
        self.wk = torch.nn.Linear(6, 4, bias=False)
        self.odd = torch.nn.Linear(6, 5, bias=False)


def fsdp(mesh):
    """A model that FSDP2 has sharded, after one step of AdamW, with numbers and texts beside it."""
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([Attention()])
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
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
    for name, world in (("fsdp", 2), ("grid", 3)):
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


if __name__ == "__main__":
    main()
