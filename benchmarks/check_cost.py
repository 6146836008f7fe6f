"""Cost of the checks of the training: their share of the processor time of a step.

    python benchmarks/check_cost.py [--width 192] [--steps 200] [--trainings 5] [--instructions]

Trains a small model, a step of which takes about 10 ms of one core, and measures the processor time
of the training thread inside the checks: of the first 20 steps that they observe, and of the later
ones. The very first step, in which PyTorch imports and allocates, is left out. Shares are medians
over trainings, each in a process of its own. `--instructions` counts the user instructions of the
same training with `monitor()` and `monitor(checks=False)` instead, under valgrind, one after the
other: with `--steps 100` eight minutes of a core. Counts do not depend on the load of the machine.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import thread_time
from typing import Any

import torch
from instructions import count_between_markers, start_counting
from page_tables import rows
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

import sentinel
from sentinel.client.checks.training_checks import FIRST_STEPS, TrainingChecks

CALLED = (
    "before_backward", "after_backward", "before_step", "after_step", "on_batch", "on_schedule",
    "begin",
)  # fmt: skip
"""What the loop calls of the checks."""


class Timer:
    """The processor time of this thread inside the checks, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in CALLED:
            setattr(TrainingChecks, name, self._timed(getattr(TrainingChecks, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += thread_time() - began

        return timed


def train(width: int, steps: int, *, checks: bool, is_counted: bool) -> None:
    """Train, with a marker before each part; prints its milliseconds of a step, and the checks'."""
    timer = None if is_counted else Timer()
    folder = tempfile.mkdtemp()
    os.environ |= {"SENTINEL_HOME": folder, "SENTINEL_RUNTIME_DIR": folder}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        *(
            layer
            for _ in range(4)
            for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1))
        ),
        nn.Linear(width, 10),
    )
    optimizer, marks = AdamW(model.parameters()), []
    batch_size = 64
    data = TensorDataset(torch.randn(batch_size * (1 + FIRST_STEPS + steps), width))
    with sentinel.monitor(agent=False, checks=checks):
        for step, (inputs,) in enumerate(DataLoader(data, batch_size)):
            if is_counted and step == 1:
                start_counting()
            if step in (1, 1 + FIRST_STEPS):
                marks.append((thread_time(), timer.seconds if timer else 0.0))
                os.getppid()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
            optimizer.step()
        os.getppid()
        marks.append((thread_time(), timer.seconds if timer else 0.0))
    parts = [
        [1e3 * (after - before) / count for before, after in zip(*pair, strict=True)]
        for *pair, count in zip(marks, marks[1:], (FIRST_STEPS, steps), strict=False)
    ]
    print(json.dumps(parts), flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def measured_times(arguments: list[str], trainings: int) -> list[list[str]]:
    """Milliseconds of a step, those inside the checks and their share, by part."""
    found = []
    for _ in range(trainings):
        done = subprocess.run(
            [sys.executable, __file__, *arguments], capture_output=True, text=True, check=True
        )
        found.append(json.loads(done.stdout))
    body = []
    for part in zip(*found, strict=True):
        whole, inside = (statistics.median(each) for each in zip(*part, strict=True))
        share = statistics.median(inside / (whole - inside) for whole, inside in part)
        body.append([f"{whole:.1f} ms", f"{1e3 * inside:.0f} µs", f"{share:.2%}"])
    return body


def counted_instructions(arguments: list[str], steps: int) -> list[list[str]]:
    """Instructions of a step, those that the checks add and their share, by part."""

    def count(*options: str) -> list[int]:
        return count_between_markers(__file__, *arguments, "--counted", *options, is_late=True)

    checked, unchecked = count(), count("--no-checks")
    return [
        [f"{whole / count:,.0f}", f"{(whole - alone) / count:,.0f}", f"{whole / alone - 1:.2%}"]
        for whole, alone, count in zip(checked, unchecked, (FIRST_STEPS, steps), strict=False)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--steps", type=int, default=200, help="those after the first 20")
    parser.add_argument("--trainings", type=int, default=5)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--child", action="store_true", help="train once")
    parser.add_argument("--no-checks", action="store_true", help="with --child")
    parser.add_argument("--counted", action="store_true", help="with --child, under valgrind")
    args = parser.parse_args()
    if args.child:
        train(args.width, args.steps, checks=not args.no_checks, is_counted=args.counted)
    arguments = ["--child", "--width", str(args.width), "--steps", str(args.steps)]
    parts = (
        counted_instructions(arguments, args.steps)
        if args.instructions
        else measured_times(arguments, args.trainings)
    )
    titles = f"2 to {1 + FIRST_STEPS}", f"{2 + FIRST_STEPS} to {1 + FIRST_STEPS + args.steps}"
    body = [[title, *cells] for title, cells in zip(titles, parts, strict=True)]
    print(rows(["steps", "a step", "of it the checks", "beside the rest"], body))


if __name__ == "__main__":
    main()
