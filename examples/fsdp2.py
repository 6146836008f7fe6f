"""FSDP2: every rank holds a part of the model; the gradient norm is that of the whole model.

torchrun --nproc-per-node 2 examples/fsdp2.py
"""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sentinel

STEPS = 200


@sentinel.monitor(run="fsdp2", max_steps=STEPS)
def train() -> None:
    """Fit a sine. Without clipping, each rank records the norm of its part at intervals."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(1, STEPS + 1):
        x = torch.rand(64, 1) * 6 - 3
        error = model(x) - x.sin()
        optimizer.zero_grad()
        error.square().mean().backward()
        optimizer.step()
        sentinel.log({"worst_error": error.abs().max()}, step=step)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.barrier()
    # Objects that refer to the process group keep its threads alive until the interpreter exits,
    # and these may abort the process (pytorch/pytorch#179291).
    gc.collect()
    dist.destroy_process_group()
