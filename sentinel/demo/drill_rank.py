"""One rank of a drill: it logs steps without a model, and fails as its parent says.

Standard input has one command per line. `nan` and `kl_blowup` change what is logged, `recover` ends
that. `exception` raises, and `lost_peer` does so as a rank whose peer is gone. `hang` and `wait`
complete no step until the next command; `end` returns.

The drill runs a copy of this file: stacks do not name code of sentinel.
"""

from __future__ import annotations

import math
import os
import random
import select
import sys
import time

import sentinel

STEP_SECONDS = 0.02


def train() -> None:
    """Log a step every `STEP_SECONDS` until the command `end`."""
    rng = random.Random(int(os.environ["RANK"]))  # noqa: S311 - noise
    fault, step = "", 0
    while True:
        command = _read_command(STEP_SECONDS)
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
    return _read_command(None)


def all_reduce() -> str:
    """Stands for a collective that waits for another rank; returns the next command."""
    return _read_command(None)


def _read_command(timeout: float | None) -> str:
    """The next command; empty if there is none within `timeout` seconds."""
    began = time.monotonic()
    ready, _, _ = select.select([sys.stdin], [], [], timeout)
    if not ready:
        return ""
    command = sys.stdin.readline().strip()
    if timeout is not None:
        time.sleep(max(0.0, timeout - (time.monotonic() - began)))
    # The end of the file: the parent is gone.
    return command or "end"


if __name__ == "__main__":
    with sentinel.monitor():
        train()
