"""One rank of an attempt that runs until its stop file exists."""

import os
import sys
import time
from pathlib import Path

from expected_values import loss

import sentinel


def train(stop, rank):
    step = 0
    while not stop.exists():
        step += 1
        sentinel.log({"loss": loss(rank, step)}, step=step)
        time.sleep(0.05)


if __name__ == "__main__":
    sentinel.monitor(run="elastic")(train)(Path(sys.argv[1]), int(os.environ["RANK"]))
