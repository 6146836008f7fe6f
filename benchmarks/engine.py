"""CPU time of the engine per step, by detector and in total.

    python benchmarks/engine.py [--steps 3000]

Healthy runs of 25 signals, one of reinforcement learning and one of supervised training, go through
each detector alone and through all together; an engine without detectors is measured as well and
subtracted from each detector's figure. All figures are CPU time of this thread: medians per step.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import cos, exp, pi
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from sentinel.config.plugins import load_classes
from sentinel.model.finding import Detector
from sentinel.model.record import WHOLE_RUN, Record, Spread
from sentinel.pipeline.engine import Engine

COMMON_SIGNALS = [
    "loss",
    "grad_norm",
    "learning_rate",
    "step_time",
    "global_step",
    "optimizer_steps",
    "data_wait",
    "tokens",
    "gpu_utilisation",
]
POLICY_SIGNALS = [
    "reward",
    "reward_std",
    "frac_zero_std",
    "kl_ref",
    "entropy",
    "clip_fraction",
    "completion_length",
    "truncated_fraction",
    "explained_variance",
    "value_loss",
    "kl_mismatch",
]
SHARED_SIGNALS = frozenset({"grad_norm", "learning_rate", "global_step", "optimizer_steps"})
"""Signals with the same value on every rank."""
SIGNALS = 25
LOG_SIGNALS = 20
CHUNK_RECORDS = 20
"""Records between two readings of the clock."""
WARMUP_RECORDS = 600
"""Records not counted: windows are not full yet, and detectors do not evaluate young runs.

At most half of the records of a run.
"""


def healthy_series(names: Sequence[str], length: int, seed: int) -> dict[str, list[float]]:
    """A healthy course of each signal with noise; an unknown name is plain noise."""
    rng = random.Random(seed)
    courses: dict[str, Callable[[float], float]] = {
        "loss": lambda progress: 0.5 + 2 * (1 + 30 * progress) ** -0.5,
        "reward": lambda progress: 2 / (1 + exp(6 - 14 * progress)),
        "kl_ref": lambda progress: 0.002 + 0.05 * progress,
        "learning_rate": lambda progress: 1e-6 * (0.55 + 0.45 * cos(pi * progress)),
        "entropy": lambda progress: 0.4 + 0.8 * exp(-5 * progress),
        "completion_length": lambda progress: 400 + 200 * progress,
        "frac_zero_std": lambda _: 0.2,
        "clip_fraction": lambda _: 0.02,
        "truncated_fraction": lambda _: 0.05,
        "explained_variance": lambda _: 0.6,
        "kl_mismatch": lambda _: 0.003,
        "gpu_utilisation": lambda _: 0.8,
        "data_wait": lambda _: 0.02,
        "tokens": lambda _: 65536.0,
    }
    exact = {"learning_rate", "tokens"}
    values: dict[str, list[float]] = {}
    for name in names:
        course = courses.get(name, lambda _: 1.0)
        noise = 0.0 if name in exact else 0.1
        values[name] = [course(at / length) * (1 + rng.gauss(0, noise)) for at in range(length)]
    for counter in {"global_step", "optimizer_steps"} & values.keys():
        values[counter] = [float(at + 1) for at in range(length)]
    return values


def pad_names(names: Sequence[str], count: int) -> list[str]:
    """That many names; the last ones are unknown signals."""
    return [*names, *(f"signal_{at}" for at in range(count - len(names)))]


def records(rows: Sequence[dict[str, float]], first: int) -> list[Record]:
    """Records of a run of eight ranks, one of which is always slightly slower."""
    rng = random.Random(first)
    result = []
    for step, row in enumerate(rows, start=first):
        spread = {
            name: Spread(
                8, x, x - deviation, x + deviation, 8 * x, deviation / 2, rng.randrange(8), 7
            )
            for name, x in row.items()
            for deviation in (0.0 if name in SHARED_SIGNALS else abs(0.03 * x),)
        }
        values = dict(row)
        result.append(Record("run", WHOLE_RUN, step, float(step), values=values, spread=spread))
    return result


def microseconds_per_record(
    factories: Mapping[str, Callable[[], Detector]], rows: Sequence[dict[str, float]]
) -> float:
    """CPU time per record of an engine with these detectors, once windows are full."""
    engine, costs = Engine(factories), []
    for at in range(0, len(rows), CHUNK_RECORDS):
        # Created just before they are processed, as in production.
        chunk = records(rows[at : at + CHUNK_RECORDS], at + 1)
        began = time.thread_time_ns()
        for record in chunk:
            engine.process(record)
        costs.append((time.thread_time_ns() - began) / 1e3 / len(chunk))
    if engine.incident_book.open_incidents:
        raise SystemExit(
            f"Incidents in a healthy run: {sorted(map(str, engine.incident_book.open_incidents))}"
        )
    return median(costs[min(WARMUP_RECORDS, len(rows) // 2) // CHUNK_RECORDS :])


def detector_costs(names: Sequence[str], steps: int) -> Iterator[tuple[str, float]]:
    """Cost of each detector beyond the engine itself, and of all together."""
    columns = healthy_series(pad_names(names, SIGNALS), steps, 1)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    factories = load_classes("detectors")
    empty = microseconds_per_record({}, rows)
    for name, factory in factories.items():
        yield name, microseconds_per_record({name: factory}, rows) - empty
    yield "none", empty
    yield "together", microseconds_per_record(factories, rows)


def write_log(path: Path, lines: int) -> None:
    """A JSON log of a healthy run with 20 signals per line."""
    names = [
        name
        for name in (*POLICY_SIGNALS, *COMMON_SIGNALS)
        if name not in {"tokens", "optimizer_steps"}
    ]
    columns = healthy_series(pad_names(names, LOG_SIGNALS), lines, 2)
    with path.open("w") as file:
        for row in zip(*columns.values(), strict=True):
            print(json.dumps(dict(zip(columns, row, strict=True))), file=file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    runs = {"RL": (*POLICY_SIGNALS, *COMMON_SIGNALS), "SFT": COMMON_SIGNALS}
    figures = {kind: dict(detector_costs(names, args.steps)) for kind, names in runs.items()}
    table = Table("Detector", *(f"{kind}, µs per step" for kind in runs))
    for name in sorted(figures["RL"], key=lambda name: -max(figures[kind][name] for kind in runs)):
        table.add_row(name, *(f"{figures[kind][name]:.1f}" for kind in runs))
    Console().print(table)


if __name__ == "__main__":
    main()
