"""A training with `aggregate="collective"`, whose ranks may stop gathering.

Its argument is the path of a plan, as `jobs.Job` writes it. The environment variable
COLLECTIVE_PLAN has constants to set, and the ranks without sentinel.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from expected_values import loss, rank_of, weight
from file_barriers import wait_at_barrier

import sentinel
from sentinel.client.collective import aggregation, readiness, shutdown

MODULES = (aggregation, shutdown, readiness)


def set_constants(constants):
    """Set these constants in the modules that define them."""
    for name, value in constants.items():
        owners = [module for module in MODULES if hasattr(module, name)]
        assert owners, f"no module has {name}"
        for module in owners:
            setattr(module, name, value)


def train(plan, folder, rank):
    dist.init_process_group("gloo")
    for step in range(1, plan["steps"] + 1):
        sentinel.log({"loss": loss(rank, step)}, step=step, weight=weight(rank, step))
        wait_at_barrier(plan, folder, rank, step)
    dist.destroy_process_group()


def monitored(plan, rank, without):
    """The training, monitored unless the rank is one of `without`."""
    if rank in without:
        return train
    return sentinel.monitor(run=plan["name"], aggregate="collective")(train)


if __name__ == "__main__":
    settings = json.loads(os.environ["COLLECTIVE_PLAN"])
    set_constants(settings["constants"])
    path = Path(sys.argv[-1])
    plan, rank = json.loads(path.read_text()), rank_of(os.environ)
    (path.parent / f"pid-{rank}").write_text(str(os.getpid()))
    monitored(plan, rank, settings["without"])(plan, path.parent, rank)
