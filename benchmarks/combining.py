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

from engine import EVERY_RUN, OF_POLICY, named
from rich.console import Console
from rich.table import Table

from sentinel.aggregate.combine import combine_ranks
from sentinel.aggregate.pending_step import PendingStep
from sentinel.metrics.rank_selection import RankSelection
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordBatch, coalesce
from sentinel.signals.key_map import select_key_map

SIGNALS = 32
NODE = 8
ALIKE = frozenset({"grad_norm", "learning_rate", "global_step", "optimizer_steps"})


def records(ranks: int, step: int) -> list[Record]:
    """Each rank's record of one step, with its own values except where all must be equal."""
    dice, names = random.Random(step), named([*OF_POLICY, *EVERY_RUN], SIGNALS)
    return [
        Record(
            "run",
            rank,
            step,
            float(step),
            values={name: 1.0 + step if name in ALIKE else dice.gauss(1, 0.1) for name in names},
            step_index=step,
        )
        for rank in range(ranks)
    ]


def costs(ranks: int, steps: int) -> dict[str, list[float]]:
    """Milliseconds of adding, combining and selecting that many ranks for one step."""
    least = {"records": [float("inf")] * 3, "batches": [float("inf")] * 3}
    followed, spoken = RankSelection(), select_key_map({})
    for step in range(steps):
        told = records(ranks, step)
        sheets = [sheet for at in range(0, ranks, NODE) for sheet in coalesce(told[at : at + NODE])]
        for way, entries in (("records", told), ("batches", sheets)):
            moment, looks = PendingStep(0.0, 0.0), [time.thread_time_ns()]
            for entry in entries:
                moment.add(entry, 0.0, spoken)
            looks.append(time.thread_time_ns())
            combine_ranks(
                Event.STEP,
                moment.tables,
                world_size=ranks,
            )
            looks.append(time.thread_time_ns())
            for entry in entries:
                (followed.update_batch if isinstance(entry, RecordBatch) else followed.update)(
                    entry
                )
            looks.append(time.thread_time_ns())
            spent = [(after - before) / 1e6 for before, after in pairwise(looks)]
            least[way] = [min(pair) for pair in zip(least[way], spent, strict=True)]
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024, 16384])
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    table = Table("Ranks", "as", "adding, ms", "combining, ms", "selecting, ms", "per rank, µs")
    for ranks in args.ranks:
        for way, found in costs(ranks, args.steps if ranks < 4096 else 3).items():
            cells = (f"{each:.2f}" for each in found)
            table.add_row(str(ranks), way, *cells, f"{sum(found) / ranks * 1e3:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
