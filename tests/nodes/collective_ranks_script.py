"""A training whose ranks hand their records over by `aggregate="collective"`, and may cease to.

Takes the path of a plan, as `jobs.Job` writes it; `GATHERED` tells what else it is to do.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from expected_values import loss, number_of, weight
from file_barriers import wait_at

import sentinel
from sentinel.client.collective import aggregation, readiness, shutdown

MODULES = (aggregation, shutdown, readiness)


def set_constants(constants):
    """Shorter times than people have, in whatever of ours goes by these names."""
    for name, value in constants.items():
        for module in MODULES:
            if hasattr(module, name):
                setattr(module, name, value)


def train(plan, folder, rank):
    dist.init_process_group("gloo")
    for step in range(1, plan["steps"] + 1):
        sentinel.log({"loss": loss(rank, step)}, step=step, weight=weight(rank, step))
        wait_at(plan, folder, rank, step)


def watched(plan, rank, without):
    """The training, watched, but on ranks that are to be `without` sentinel."""
    if rank in without:
        return train
    return sentinel.monitor(run=plan["name"], aggregate="collective")(train)


if __name__ == "__main__":
    told = json.loads(os.environ["GATHERED"])
    set_constants(told["constants"])
    path = Path(sys.argv[-1])
    plan, rank = json.loads(path.read_text()), number_of(os.environ)
    (path.parent / f"pid-{rank}").write_text(str(os.getpid()))
    watched(plan, rank, told["without"])(plan, path.parent, rank)
