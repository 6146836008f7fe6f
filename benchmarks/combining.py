"""CPU time of combining one step over ranks, by number of ranks.

    python benchmarks/combining.py [--ranks 8 64 1024 16384] [--steps 20]

Every rank logs 32 signals in one record per step; on one node records are separate, from several
nodes eight ranks share a batch. Measured separately are adding them to a step, combining it into
one record with the spread of each signal, and selecting ranks for the page and `/metrics`. All are
CPU time of this thread, the minimum over all steps.
"""

from __future__ import annotations

import argparse
import random
import time
from itertools import pairwise

from engine import COMMON_SIGNALS, POLICY_SIGNALS, pad_names
from rich.console import Console
from rich.table import Table

from sentinel.aggregate.combine import combine_ranks
from sentinel.aggregate.rank_values import PendingStep
from sentinel.metrics.rank_selection import RankSelection
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordBatch, coalesce
from sentinel.signals.key_map import select_key_map

SIGNALS = 32
RANKS_PER_NODE = 8
SHARED_SIGNALS = frozenset({"grad_norm", "learning_rate", "global_step", "optimizer_steps"})


def records(ranks: int, step: int) -> list[Record]:
    """Each rank's record of one step, with its own values except where all must be equal."""
    rng, names = random.Random(step), pad_names([*POLICY_SIGNALS, *COMMON_SIGNALS], SIGNALS)
    return [
        Record(
            "run",
            rank,
            step,
            float(step),
            values={
                name: 1.0 + step if name in SHARED_SIGNALS else rng.gauss(1, 0.1) for name in names
            },
            step_index=step,
        )
        for rank in range(ranks)
    ]


def step_costs(ranks: int, steps: int) -> dict[str, list[float]]:
    """Milliseconds of adding, combining and selecting that many ranks for one step."""
    minima = {"records": [float("inf")] * 3, "batches": [float("inf")] * 3}
    selection, key_map = RankSelection(), select_key_map({})
    for step in range(steps):
        step_records = records(ranks, step)
        batches = [
            batch
            for at in range(0, ranks, RANKS_PER_NODE)
            for batch in coalesce(step_records[at : at + RANKS_PER_NODE])
        ]
        for kind, entries in (("records", step_records), ("batches", batches)):
            pending, readings = PendingStep(0.0, 0.0), [time.thread_time_ns()]
            for entry in entries:
                pending.add(entry, 0.0, key_map)
            readings.append(time.thread_time_ns())
            combine_ranks(
                Event.STEP,
                pending.tables,
                world_size=ranks,
            )
            readings.append(time.thread_time_ns())
            for entry in entries:
                (selection.update_batch if isinstance(entry, RecordBatch) else selection.update)(
                    entry
                )
            readings.append(time.thread_time_ns())
            durations_ms = [(after - before) / 1e6 for before, after in pairwise(readings)]
            minima[kind] = [min(pair) for pair in zip(minima[kind], durations_ms, strict=True)]
    return minima


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024, 16384])
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    table = Table("Ranks", "as", "adding, ms", "combining, ms", "selecting, ms", "per rank, µs")
    for ranks in args.ranks:
        for kind, figures in step_costs(ranks, args.steps if ranks < 4096 else 3).items():
            cells = (f"{each:.2f}" for each in figures)
            table.add_row(str(ranks), kind, *cells, f"{sum(figures) / ranks * 1e3:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
