"""Cost of the PyTorch patches per step: a training loop with and without the monitor.

    python benchmarks/patches.py [--pairs 15] [--steps 300]

One step is a batch from a `DataLoader`, a forward and a backward pass of a tiny model, clipping and
an optimizer step: there is little computation, so that any addition shows. Blocks of steps are
timed alternately with and without `sentinel.monitor` (no agent), and compared in pairs: the median
difference in microseconds per step, and the median ratio, each with its middle half. Times are CPU
time of the training thread. The same is done with the data loader's patch left out. Prints Markdown
and writes results/patches.json. comparison.py counts the instructions of the same step.
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
from instructions import count_between_markers
from torch.nn.utils import clip_grad_norm_

import sentinel
from sentinel.client import session
from sentinel.client.session import CurrentSession

FOLDER = Path(__file__).parent
COUNTED_WARM_UP_STEPS = 100


class Bench:
    """A loop whose steps cost almost nothing."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(16, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.data = torch.utils.data.TensorDataset(torch.randn(4096, 16))

    def time_block(self, steps: int) -> float:
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
def monitored_run(excluded: str = "") -> Iterator[None]:
    """A run without agent, with all patches but one."""
    all_integrations = session.integration_names

    def remaining_integrations() -> list[str]:
        return [name for name in all_integrations() if name != excluded]

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ |= {"SENTINEL_HOME": folder, "SENTINEL_RUNTIME_DIR": folder}
        session.integration_names = remaining_integrations
        try:
            with sentinel.monitor(agent=False, strict=True):
                yield
                counted = CurrentSession.recorder.clock.optimizer_steps
            assert counted, "The patches recorded no step."
        finally:
            session.integration_names = all_integrations


def compare_blocks(bench: Bench, pairs: int, steps: int, excluded: str = "") -> dict[str, Any]:
    """Blocks with and without sentinel, in pairs of random order."""
    added, ratios = [], []
    for index in range(pairs):
        times = {}
        for is_monitored in random.Random(index).sample([True, False], 2):
            with monitored_run(excluded) if is_monitored else nullcontext():
                times[is_monitored] = bench.time_block(steps)
        added.append(times[True] - times[False])
        ratios.append(times[True] / times[False])
    return {
        "added, us": statistics.median(added),
        "added, middle half": _middle_half(added),
        "ratio": statistics.median(ratios),
        "ratio, middle half": _middle_half(ratios),
    }


def run_counted_steps(steps: int) -> None:
    """Steps without and with the monitor, with a marker before and after those counted."""
    bench = Bench()
    for context in (nullcontext(), monitored_run()):
        with context:
            loader = iter(torch.utils.data.DataLoader(bench.data, batch_size=4))
            for count in (COUNTED_WARM_UP_STEPS, steps):
                os.getppid()
                for _ in range(count):
                    bench.step(loader)
            os.getppid()
    os._exit(0)


def step_instructions(steps: int) -> tuple[float, float]:
    """User instructions of a step without and with the monitor."""
    _, without, _, _, monitored, *_ = count_between_markers(
        __file__, "--child", "--steps", str(steps)
    )
    return without / steps, monitored / steps


def _middle_half(values: list[float]) -> list[float]:
    ordered, quarter = sorted(values), len(values) // 4
    return [ordered[quarter], ordered[-1 - quarter]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        run_counted_steps(args.steps)
    torch.set_num_threads(1)
    bench = Bench()
    bench.time_block(args.steps)
    unmonitored_us = statistics.median(bench.time_block(args.steps) for _ in range(5))
    results = {
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "step without sentinel, us": unmonitored_us,
        "all patches": compare_blocks(bench, args.pairs, args.steps),
        "without the data loader's": compare_blocks(bench, args.pairs, args.steps, "data_loader"),
    }
    (FOLDER / "results").mkdir(exist_ok=True)
    (FOLDER / "results" / "patches.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"A step of {unmonitored_us:.0f} us of CPU time, without sentinel\n")
    print("| | added, us (middle half) | ratio (middle half) |\n|---|---|---|")
    for label in ("all patches", "without the data loader's"):
        row = results[label]
        low_us, high_us = row["added, middle half"]
        low_ratio, high_ratio = row["ratio, middle half"]
        print(
            f"| {label} | {row['added, us']:.1f} ({low_us:.1f} to {high_us:.1f}) "
            f"| {row['ratio']:.3f} ({low_ratio:.3f} to {high_ratio:.3f}) |"
        )


if __name__ == "__main__":
    main()
