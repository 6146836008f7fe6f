"""A DDP training over gloo that takes the actions that are requested. A save is a collective.

Its argument is the path of a plan, as `jobs.Job` writes it. From step NAN_STEP of the environment
on its loss is NaN. It ends early once the file `finish` exists. Each rank writes the steps at which
it saved, and the last one, to `acted-RANK.json`.
"""

import gc
import json
import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sentinel

NAN_STEP = float(os.environ.get("NAN_STEP", "inf"))
MODELS = []
"""Keeps models alive, see `ddp_ranks`."""


def train(plan, folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = DistributedDataParallel(torch.nn.Linear(4, 1))
    MODELS.append(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    saves = []
    for step in range(1, plan["steps"] + 1):
        loss = net(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sentinel.log({"loss": math.nan if step >= NAN_STEP else 1 / step}, step)
        requested = sentinel.requested()
        if "checkpoint" in requested:
            dist.barrier()
            saves.append(step)
        is_finished = torch.tensor((folder / "finish").exists(), dtype=torch.int)
        dist.broadcast(is_finished, 0)
        if "stop" in requested or is_finished:
            break
        time.sleep(plan["step_seconds"])
    (folder / f"acted-{rank}.json").write_text(json.dumps([saves, step]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    path = Path(sys.argv[-1])
    plan = json.loads(path.read_text())
    sentinel.monitor(run=plan["name"])(train)(plan, path.parent)
    gc.freeze()
