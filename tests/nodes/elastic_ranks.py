"""A DDP training of any world size that runs until a file `stop` exists beside its plan."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from expected_values import loss
from torch.nn.parallel import DistributedDataParallel

import sentinel

MODELS = []
"""Keeps models alive. Destruction of a model right after a collective may deadlock: torch joins the
threads of gloo while it holds the GIL, which one of them may need to release a tensor."""


def train(stop):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Linear(4, 1))
    MODELS.append(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    step = 0
    is_running = torch.ones(1)
    while is_running.item():
        step += 1
        out = net(torch.randn(8, 4)).mean()
        (out - out.detach() + loss(rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        is_running.fill_(not stop.exists())
        dist.broadcast(is_running, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = Path(sys.argv[-1])
    plan = json.loads(path.read_text())
    monitored = sentinel.monitor(run=plan["name"])(train) if plan["decorated"] else train
    monitored(path.parent / "stop")
