"""Cost of recording the path of the weights, and the error of its distances.

    python benchmarks/trajectory.py [--parameters 10e6] [--records 30] [--seeds 100]

A training of a model with that many parameters, in turn with and without a record after each step:
CPU time of the thread per record, also in ratio to the step before it (with and without an exact
distance to the initial weights); the memory that a record works in, and that snapshots keep.
Beside it, a dense Gaussian projection that is generated anew in blocks for each record, and copies
of the weights, which need no projection but the memory.
Then the error of projected distances between random and structured changes of the weights, over
seeds, beside the standard error that the recorder states.
"""

from __future__ import annotations

import argparse
import statistics
import time
import weakref

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sentinel.insight.trajectory.recorder import TrajectoryRecorder
from sentinel.insight.trajectory.weight_projection import WeightProjection

SIZE = 512
GAUSSIAN_ROWS = 4096
GAUSSIAN_RECORDS = 1


def model_of(parameters: int) -> nn.Module:
    """A stack of square layers of about that many parameters."""
    torch.manual_seed(0)
    layers = 8
    width = int((parameters / layers) ** 0.5)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def step_of(model: nn.Module, batch: torch.Tensor) -> None:
    loss = model(batch).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None


def thread_ms(work) -> float:
    started = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - started) / 1e6


def paired(model: nn.Module, batch: torch.Tensor, record, count: int) -> tuple[list, list]:
    """Milliseconds of `count` steps, and of the record after each."""
    steps, records = [], []
    for number in range(count + 3):
        step_ms = thread_ms(lambda: step_of(model, batch))
        record_ms = thread_ms(lambda number=number: record(number))
        if number >= 3:
            steps.append(step_ms)
            records.append(record_ms)
    return steps, records


def gaussian_record(model: nn.Module) -> list[torch.Tensor]:
    """A dense projection, whose matrix is generated in blocks and not stored."""
    generator = torch.Generator().manual_seed(0)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    total = torch.zeros(SIZE)
    for start in range(0, len(flat), GAUSSIAN_ROWS):
        piece = flat[start : start + GAUSSIAN_ROWS]
        total += piece @ torch.randn(len(piece), SIZE, generator=generator)
    return [total / SIZE**0.5]


class PeakBytes(TorchDispatchMode):
    """The most bytes of tensors that were made inside and are alive at once."""

    def __init__(self, existing: list[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = {each.untyped_storage().data_ptr() for each in existing}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor):
                self._add(each.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place not in self.known:
            self.known.add(place)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._remove, place, size)

    def _remove(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size


def cost_table(parameters: int, count: int) -> Table:
    model = model_of(parameters)
    batch = torch.randn(64, model[0].in_features)
    total = sum(each.numel() for each in model.parameters())
    recorder = TrajectoryRecorder(model, exact=False)
    exact = TrajectoryRecorder(model, exact=True)
    copies: list[torch.Tensor] = []

    def copy(_: int) -> None:
        copies[:] = [each.detach().clone() for each in model.parameters()]

    table = Table(
        "Way", "record, ms", "element, ns", "of a step, %", "snapshot, bytes",
        title=f"{total:,} parameters, one thread, batch of {len(batch)}",
    )  # fmt: skip
    ways = {
        "recorder": (recorder.record, count, (SIZE + 3) * 8),
        "recorder, exact": (exact.record, count, (SIZE + 3) * 8),
        "copy of the weights": (copy, count, total * 4),
        "dense Gaussian": (lambda _: gaussian_record(model), GAUSSIAN_RECORDS, SIZE * 4),
    }
    for name, (record, times, size) in ways.items():
        steps, records = paired(model, batch, record, times)
        middle = statistics.median(records)
        share = statistics.median(r / s for r, s in zip(records, steps, strict=True))
        table.add_row(
            name, f"{middle:.1f}", f"{middle * 1e6 / total:.2f}", f"{share * 100:.1f}", f"{size:,}"
        )
    return table


def memory_table(records: int = 1000) -> Table:
    """What a record works in, its tables included, for models that need not exist for that."""
    small = TrajectoryRecorder(nn.Linear(4, 4))
    for step in range(records):
        small.record(step)
    kept = len(small.steps) * (SIZE + 3) * 8 / 2**20
    title = f"After {records} records: {len(small.steps)} snapshots of {kept:.2f} MiB"
    table = Table("Parameters", "working memory, MiB", title=title)
    piece = torch.zeros(1 << 20)
    for parameters in (10_000_000, 124_000_000, 1_000_000_000, 7_000_000_000):
        projection = WeightProjection({"w": (parameters,)})
        with PeakBytes([piece]) as peak:
            projection.project([("w", 0, piece)])
        table.add_row(f"{parameters:,}", f"{peak.peak / 2**20:.1f}")
    return table


def error_table(seeds: int) -> Table:
    shape = (512, 256)
    kinds = {
        "normal": lambda: torch.randn(shape),
        "signs, as of Adam's first step": lambda: torch.randn(shape).sign(),
        "rank 1, as of LoRA": lambda: torch.randn(512, 1) @ torch.randn(1, 256),
        "one column": lambda: torch.zeros(shape).index_fill_(1, torch.tensor([7]), 1.0),
        "all equal": lambda: torch.ones(shape),
        "two elements": lambda: torch.zeros(shape).view(-1).index_fill_(
            0, torch.tensor([77, 9_000]), 1.0
        ),
    }  # fmt: skip
    stated = WeightProjection({"w": shape}).error
    table = Table(
        "Change", "mean error, %", "standard error, %", "largest, %",
        title=f"Distances by {SIZE} projections, {seeds} seeds; stated: {stated:.2%}",
    )  # fmt: skip
    for name, make in kinds.items():
        torch.manual_seed(0)
        errors = []
        for seed in range(seeds):
            projection = WeightProjection({"w": shape}, seed=seed)
            change = make().reshape(-1)
            projected = projection.project([("w", 0, change)])
            errors.append(float(projected.norm() / change.double().norm()) - 1)
        table.add_row(
            name,
            f"{np.mean(errors) * 100:+.2f}",
            f"{np.std(errors) * 100:.2f}",
            f"{np.abs(errors).max() * 100:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parameters", type=float, default=10e6)
    parser.add_argument("--records", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    console.print(cost_table(int(args.parameters), args.records))
    console.print(memory_table())
    console.print(error_table(args.seeds))


if __name__ == "__main__":
    main()
