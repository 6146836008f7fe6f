"""A training that really is distributed: DDP over gloo, with losses that are known to the last bit.

Takes the path of a plan, as `jobs.Job` writes it.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from expected_values import loss
from file_barriers import wait_at
from torch.nn.parallel import DistributedDataParallel

import sentinel

KEPT = []
"""A net that dies right behind a collective may hang: torch joins gloo's threads while it holds the
interpreter's lock, for which one of them may still wait to let go of a tensor."""


def train(plan, folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Linear(4, 1))
    KEPT.append(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(1, plan["steps"] + 1):
        out = net(torch.randn(8, 4)).mean()
        # Nothing but the known number, with a gradient of its own.
        (out - out.detach() + loss(rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        wait_at(plan, folder, rank, step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    path = Path(sys.argv[-1])
    plan = json.loads(path.read_text())
    sentinel.monitor(run=plan["name"])(train)(plan, path.parent)
