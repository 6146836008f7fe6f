"""One rank of a drill: it logs steps without a model, and fails on commands of its parent.

The argument is the number of the last step, after which it continues.

Standard input has one command per line. `nan` and `kl_blowup` change what is logged, `recover` ends
that. `exception` raises, and `lost_peer` does so as a rank whose peer is gone. `hang` and `wait`
complete no step until the next command. The end of the input ends the training.

The drill runs a copy of this file: stacks do not name code of sentinel.
"""

from __future__ import annotations

import math
import os
import random
import select
import sys

import sentinel

STEP_SECONDS = 0.02


def train(step: int) -> None:
    """Log a step every `STEP_SECONDS` after `step`, until the input ends."""
    rng = random.Random(int(os.environ["RANK"]))  # noqa: S311 - noise
    fault = ""
    while True:
        command = read_command(STEP_SECONDS)
        if command == "hang":
            command = load_batch()
        elif command == "wait":
            command = all_reduce()
        if command == "end":
            return
        if command == "exception":
            raise RuntimeError("drill of `sentinel chaos`: this exception was injected")
        if command == "lost_peer":
            raise ConnectionError("Connection closed by peer")
        fault = command or fault
        step += 1
        noise = rng.uniform(-0.05, 0.05)
        loss = 1.0 + 2.0 * math.exp(-step / 500) + noise
        kl = 0.05 + noise / 10
        sentinel.log(
            {
                "loss": math.nan if fault == "nan" else loss,
                "kl_ref": 20.0 + noise if fault == "kl_blowup" else kl,
                "reward": 0.9 - 0.7 * math.exp(-step / 500) + noise,
                "grad_norm": 1.0 + noise,
                "learning_rate": 1e-5,
            },
            step=step,
        )


def load_batch() -> str:
    """Stands for a data source that does not answer; returns the next command."""
    return sys.stdin.readline().strip() or "end"


def all_reduce() -> str:
    """Stands for a collective that waits for another rank; returns the next command."""
    return sys.stdin.readline().strip() or "end"


def read_command(timeout: float) -> str:
    """The next command; empty if there is none within `timeout` seconds."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout)
    # An empty line is the end of the file: the parent is gone.
    return (sys.stdin.readline().strip() or "end") if ready else ""


if __name__ == "__main__":
    with sentinel.monitor():
        train(int(sys.argv[1]))
