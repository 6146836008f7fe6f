"""A DDP training over gloo, with losses that are known exactly.

Its argument is the path of a plan, as `jobs.Job` writes it.
"""

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from expected_values import loss
from file_barriers import wait_at_barrier
from torch.nn.parallel import DistributedDataParallel

import sentinel

MODELS = []
"""Keeps models alive. Destruction of a model right after a collective may deadlock: torch joins the
threads of gloo while it holds the GIL, which one of them may need to release a tensor."""


def train(plan, folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Linear(4, 1))
    MODELS.append(net)
    rate = 0.01 * float(os.environ.get("RATE_FACTOR", "1"))
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for step in range(1, plan["steps"] + 1):
        out = net(torch.randn(8, 4)).mean()
        # The value is the known number; the gradient is that of the model.
        (out - out.detach() + loss(rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        wait_at_barrier(plan, folder, rank, step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    path = Path(sys.argv[-1])
    plan = json.loads(path.read_text())
    aggregate = os.environ.get("AGGREGATE", "agent")
    monitor = sentinel.monitor(run=plan["name"], aggregate=aggregate)
    monitored = monitor(train) if plan["decorated"] else train
    monitored(plan, path.parent)
    # Else the interpreter examines all objects of torch at its exit, which takes a second.
    gc.freeze()
