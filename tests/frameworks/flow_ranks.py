"""Runs on every rank: FSDP2 with clipping, whose layers are measured and stored by an agent.

Rank 0 writes the norms of one model with the batches of all ranks to `$OUT/norms.json`.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import sentinel
from sentinel.client.capture import gradient_flow

gradient_flow.WARM_UP_STRIDE = 1
STEPS, CLIP = 6, 0.01
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def loss_of(model, step, rank):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
    return (model(x) - x.sum(1, keepdim=True)).pow(2).mean()


def sharded():
    model = net()
    fully_shard(model[0])
    return fully_shard(model)


@sentinel.monitor(run="flow", insight="gradient_flow")
def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss_of(model, step, RANK).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()


def expected():
    model, norms = net(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        (sum(loss_of(model, step, rank) for rank in range(WORLD)) / WORLD).backward()
        norms[step] = [
            float(torch.nn.utils.get_total_norm([p.grad for p in model[at].parameters()]))
            for at in (0, 2)
        ]
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return norms


dist.init_process_group("gloo")
train(sharded())
if RANK == 0:
    Path(os.environ["OUT"], "norms.json").write_text(json.dumps(expected()))
dist.barrier()
dist.destroy_process_group()
