"""A training of many nodes that needs no torch: steps with known values, and gates between them.

Takes the path of a plan, as `jobs.Job` writes it.
"""

import json
import os
import sys
from pathlib import Path

from expected_values import loss, number_of, weight
from file_barriers import wait_at

import sentinel


def train(plan, folder, rank):
    for step in range(1, plan["steps"] + 1):
        sentinel.log({"loss": loss(rank, step)}, step=step, weight=weight(rank, step))
        wait_at(plan, folder, rank, step)


if __name__ == "__main__":
    path = Path(sys.argv[-1])
    plan = json.loads(path.read_text())
    sentinel.monitor(run=plan["name"])(train)(plan, path.parent, number_of(os.environ))
