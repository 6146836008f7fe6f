"""A DDP training that goes on, whatever its world is, until a file `stop` is beside its plan."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from expected_values import loss
from torch.nn.parallel import DistributedDataParallel

import sentinel

KEPT = []
"""A net that dies right behind a collective may hang: torch joins gloo's threads while it holds the
interpreter's lock, for which one of them may still wait to let go of a tensor."""


def train(stop):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Linear(4, 1))
    KEPT.append(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    step = 0
    going = torch.ones(1)
    while going.item():
        step += 1
        out = net(torch.randn(8, 4)).mean()
        (out - out.detach() + loss(rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        going.fill_(not stop.exists())
        dist.broadcast(going, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = Path(sys.argv[-1])
    name = json.loads(path.read_text())["name"]
    sentinel.monitor(run=name)(train)(path.parent / "stop")
