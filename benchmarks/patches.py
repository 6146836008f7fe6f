"""Cost of the PyTorch patches per step: a training loop with and without the monitor.

    python benchmarks/patches.py [--pairs 15] [--steps 300]

One step is a batch from a `DataLoader`, a forward and a backward pass of a tiny model, clipping and
an optimizer step: there is little computation, so that any addition shows. Blocks of steps are
timed alternately with and without `sentinel.monitor` (no agent), and compared in pairs: the median
difference in microseconds per step, and the median ratio, each with its middle half. Times are CPU
time of the training thread. `parts` is the same with one patch left out at a time. Prints Markdown
and writes results/patches.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

import sentinel
from sentinel.client import session

HERE = Path(__file__).parent


class Bench:
    """A loop whose steps cost almost nothing."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(16, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.data = torch.utils.data.TensorDataset(torch.randn(4096, 16))

    def block(self, steps: int) -> float:
        """Microseconds of CPU time per step."""
        loader = iter(torch.utils.data.DataLoader(self.data, batch_size=4))
        for _ in range(20):
            self.step(loader)
        began = time.thread_time_ns()
        for _ in range(steps):
            self.step(loader)
        return (time.thread_time_ns() - began) / steps / 1e3

    def step(self, loader: Iterator[Any]) -> None:
        (x,) = next(loader)
        self.optimizer.zero_grad()
        self.net(x).pow(2).mean().backward()
        clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()


@contextmanager
def monitored_run(without: str = "") -> Iterator[None]:
    """A run without agent, with all patches but one."""
    every = session.integration_names

    def left() -> dict[str, Any]:
        return {name: patch for name, patch in every().items() if name != without}

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ |= {"SENTINEL_HOME": folder, "SENTINEL_RUNTIME_DIR": folder}
        session.integration_names = left
        try:
            with sentinel.monitor(agent=False):
                yield
        finally:
            session.integration_names = every


def compared(bench: Bench, pairs: int, steps: int, without: str = "") -> dict[str, Any]:
    """Blocks with and without sentinel, in pairs of random order."""
    added, ratios = [], []
    for turn in range(pairs):
        times = {}
        for is_monitored in random.Random(turn).sample([True, False], 2):
            with monitored_run(without) if is_monitored else nullcontext():
                times[is_monitored] = bench.block(steps)
        added.append(times[True] - times[False])
        ratios.append(times[True] / times[False])
    return {
        "added, us": statistics.median(added),
        "added, middle half": _middle(added),
        "ratio": statistics.median(ratios),
        "ratio, middle half": _middle(ratios),
    }


def _middle(values: list[float]) -> list[float]:
    ordered, quarter = sorted(values), len(values) // 4
    return [ordered[quarter], ordered[-1 - quarter]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench()
    bench.block(args.steps)
    plain = statistics.median(bench.block(args.steps) for _ in range(5))
    results = {
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "step without sentinel, us": plain,
        "all patches": compared(bench, args.pairs, args.steps),
        "without the data loader's": compared(bench, args.pairs, args.steps, "data_loader"),
    }
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "patches.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"A step of {plain:.0f} us of CPU time, without sentinel\n")
    print("| | added, us (middle half) | ratio (middle half) |\n|---|---|---|")
    for what in ("all patches", "without the data loader's"):
        row = results[what]
        low, high = row["added, middle half"]
        least, most = row["ratio, middle half"]
        print(
            f"| {what} | {row['added, us']:.1f} ({low:.1f} to {high:.1f}) "
            f"| {row['ratio']:.3f} ({least:.3f} to {most:.3f}) |"
        )


if __name__ == "__main__":
    main()
