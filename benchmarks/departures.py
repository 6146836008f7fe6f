"""How well `sentinel compare` finds where a run departs, and names the change that made it.

    python benchmarks/departures.py [--changes 20] [--twins 20] [--steps 400]

Small networks are trained for real: 4 tasks, each with 5 changes, from the start or later. Of each
pair one run is good and the other has the change, besides another seed, commit and package that do
not matter. The true first step is where 8 runs of each kind, which the comparison does not get,
separate. Twins differ by the seed alone. Every second pair has two own runs with the change; all
have own runs with the other differences.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from departure_trainings import Metrics, Training, run

from sentinel.report.comparison import ComparedRun
from sentinel.report.what_changed import SCHEDULE, what_changed

RATES = {"classes": 0.1, "values": 0.03, "policy": 0.3, "tokens": 0.3}
GOOD, OWN_GOOD, WITNESSES = range(3), range(3, 8), range(8, 16)
"""Seeds: of good runs, of own runs without the change, and of those that set the true step."""
GOOD_RUNS = {"policy": 3}
"""Good runs that are given; one if not named. Runs of one policy differ much by the seed."""
BAD, OWN_BAD = 0, range(1, 3)
WINDOW_SHARE = 0.05
MAX_MISS = 0.1
"""Largest distance from the true step, as a share of the run, that counts as found."""


@dataclass(frozen=True)
class Change:
    """A setting as it is recorded, before and after, and what it does to the training."""

    name: str
    good: Any
    bad: Any
    effect: Mapping[str, Any]
    at_share: float = 0.0


CHANGES = (
    Change("learning_rate", 1e-3, 8e-3, {"rate_factor": 8.0}),
    Change("dataset_fingerprint", "4633ada65c3d", "963d83bbbbc0", {"label_noise": 0.5}, 0.5),
    Change("transformers", "5.23.0", "5.24.0", {"momentum": 0.0, "clip": 0.2}),
    Change("git_commit", "1298c8e" * 5, "77ab01f" * 5, {"data_scale": 0.3}, 0.3),
    Change("per_device_train_batch_size", 64.0, 8.0, {"batch": 8}, 0.15),
)


@dataclass
class PlainReader:
    """A run of the ensemble, as a comparison reads it."""

    metrics: Metrics
    member: int
    given: Mapping[str, Any]

    def signals(self) -> list[dict[str, Any]]:
        return [{"name": name, "label": name, "unit": "", "group": "main"} for name in self.metrics]

    def series(self, names: Any, **_: Any) -> dict[str, Any]:
        return {"series": {name: self._curve(name) for name in names if name in self.metrics}}

    def _curve(self, name: str) -> dict[str, Any]:
        values = self.metrics[name][self.member].tolist()
        finite = [value if np.isfinite(value) else None for value in values]
        steps = range(1, len(values) + 1)
        bad = [at for at, value in zip(steps, finite, strict=True) if value is None]
        return {"x": [*steps], "mean": finite, "bad": bad}

    def cases(self) -> list[dict[str, Any]]:
        return []

    def metadata(self) -> Mapping[str, Any]:
        return self.given


@dataclass(frozen=True)
class Outcome:
    """Of a pair: whether a departure is found, how far it is off, and the rank of its change."""

    task: str
    change: str
    is_found: bool
    miss_share: float
    rank: int


def compared(name: str, metrics: Metrics, member: int, **metadata: Any) -> ComparedRun:
    steps = next(iter(metrics.values())).shape[1]
    return ComparedRun(name, PlainReader(metrics, member, metadata), {"step": steps})


def changed(training: Training, change: Change) -> Training:
    """The training with the change, from the step on at which it begins."""
    effect = dict(change.effect)
    if factor := effect.pop("rate_factor", None):
        effect["rate"] = training.rate * factor
    return replace(training, after=effect, changes_at=int(change.at_share * training.steps))


def smoothed(values: torch.Tensor) -> np.ndarray[Any, Any]:
    """Running means of each run."""
    size = max(3, int(WINDOW_SHARE * values.shape[1]) // 2 * 2 + 1)
    padded = np.pad(values.numpy(), ((0, 0), (size // 2, size // 2)), mode="edge")
    return np.array([np.convolve(row, np.ones(size) / size, mode="valid") for row in padded])


def true_step(good: Metrics, bad: Metrics, changes_at: int) -> tuple[int, str]:
    """The first step, and its signal, from which on the typical bad run is outside all good ones.

    It stays there for 3 % of the run; 0 if there is none. Before `changes_at` nothing differs.
    """
    found = []
    for name in good.keys() - {SCHEDULE}:
        inside = smoothed(good[name][list(WITNESSES)])
        typical = np.median(smoothed(bad[name][-len(WITNESSES) :]), axis=0)
        margin = 1e-6 + 1e-6 * np.abs(inside).max()
        outside = (typical > inside.max(0) + margin) | (typical < inside.min(0) - margin)
        # Means of a window with the change begin to differ before it.
        outside[: max(0, changes_at - int(WINDOW_SHARE * len(outside)))] = False
        needed = max(3, int(0.03 * len(outside)))
        stays = np.convolve(outside, np.ones(needed), mode="valid") == needed
        if stays.any():
            found.append((int(stays.argmax()) + 1, name))
    return min(found, default=(0, ""))


def evaluate_pair(training: Training, change: Change, *, has_own: bool, number: int) -> Outcome:
    """Compare a good run with one that has the change, given some own runs."""
    good = run(training, [1000 * number + seed for seed in range(16)])
    bad = run(changed(training, change), [1000 * number + 500 + seed for seed in range(11)])
    fixed = {"framework": "torch", "width": 32.0, "learning_rate": 1e-3, "torch": "2.9.1"}
    before = {"accelerate": "1.14.0", "dataloader_num_workers": 2.0, change.name: change.good}
    after = {"accelerate": "1.15.0", "dataloader_num_workers": 4.0, change.name: change.bad}
    runs = [
        *(
            compared(f"good-{seed}", good, seed, **fixed | before, seed=float(seed))
            for seed in GOOD[: GOOD_RUNS.get(training.task, 1)]
        ),
        compared("bad", bad, BAD, **fixed | after, seed=-1.0),
    ]
    own = [
        compared(f"own-{seed}", good, seed, **fixed | (after if seed % 2 else before)
                 | {change.name: change.good}, seed=float(seed))
        for seed in OWN_GOOD
    ]  # fmt: skip
    if has_own:
        own += [
            compared(f"own-bad-{seed}", bad, seed, **fixed | before | {change.name: change.bad})
            for seed in OWN_BAD
        ]
    answer = what_changed(runs, own)
    truth, _ = true_step(good, bad, int(change.at_share * training.steps))
    step = answer["departures"][0]["step"] if answer["departures"] else None
    names = [each["name"] for each in answer["differences"]]
    miss = abs(step - truth) / training.steps if step is not None and truth else float("inf")
    rank = names.index(change.name) + 1 if answer["departures"] else 0
    return Outcome(training.task, change.name, step is not None, miss, rank)


def evaluate_twins(training: Training, number: int) -> list[str]:
    """The signals in which a run departs from one of another seed."""
    count = GOOD_RUNS.get(training.task, 1) + 1
    twins = run(training, [90_000 + 10 * number + seed for seed in range(count)])
    runs = [compared(f"run-{seed}", twins, seed, seed=float(seed)) for seed in range(count)]
    return [each["signal"] for each in what_changed(runs)["departures"]]


def trainings(count: int, steps: int) -> Iterator[tuple[int, Training]]:
    tasks = list(RATES)
    for number in range(count):
        task = tasks[number % len(tasks)]
        yield number, Training(task, steps, rate=RATES[task], task_seed=number // len(tasks))


def main() -> None:
    """Evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--twins", type=int, default=20)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    outcomes = []
    for number, training in trainings(arguments.changes, arguments.steps):
        change = CHANGES[(number // len(RATES)) % len(CHANGES)]
        outcome = evaluate_pair(training, change, has_own=number % 2 == 0, number=number)
        print(
            f"{outcome.task:8} {outcome.change:20} off by {outcome.miss_share:6.1%} of the run, "
            f"change ranked {outcome.rank or '-'}"
        )
        outcomes.append(outcome)
    departed = 0
    for number, training in trainings(arguments.twins, arguments.steps):
        signals = evaluate_twins(training, number)
        departed += bool(signals)
        if signals:
            print(f"{training.task:8} {'seed alone':20} departs in {', '.join(signals)}")
    found = sum(each.miss_share <= MAX_MISS for each in outcomes)
    ranked = sum(each.rank == 1 for each in outcomes)
    misses = [each.miss_share for each in outcomes if each.is_found]
    print(
        f"\n{found} of {len(outcomes)} departures within {MAX_MISS:.0%} of the run, median off by "
        f"{statistics.median(misses or [0.0]):.1%}; the change is ranked first in {ranked}.\n"
        f"{departed} of {arguments.twins} pairs that differ by the seed alone depart."
    )


if __name__ == "__main__":
    main()
