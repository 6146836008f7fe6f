"""A training of many nodes that needs no torch: steps with known values, and gates between them.

Takes the path of a plan, as `jobs.Job` writes it. At a gate every rank says that it is there and
waits until the gate is opened, so that a test knows what has happened when, on any machine.
"""

import json
import os
import sys
import time
from pathlib import Path

from truth import loss, number_of, weight

import sentinel


def train(plan, folder, rank):
    for step in range(1, plan["steps"] + 1):
        sentinel.log({"loss": loss(rank, step)}, step=step, weight=weight(rank, step))
        if step in plan["gates"]:
            (folder / f"{rank}-at-{step}").touch()
            while not (folder / f"open-{step}").exists():
                time.sleep(0.02)
        time.sleep(plan["every"])


if __name__ == "__main__":
    path = Path(sys.argv[1])
    plan = json.loads(path.read_text())
    sentinel.monitor(run=plan["name"])(train)(plan, path.parent, number_of(os.environ))
