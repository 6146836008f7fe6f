"""What it costs to bring ranks together: CPU time of one step, by the number of ranks.

    python benchmarks/combining.py [--ranks 8 64 1024 16384] [--steps 20]

Every rank says 32 signals in one record a step. Told apart are hearing the records, making them one
record with the spread of each signal, and following each rank for the page and for `/metrics`. All
figures are CPU time of this thread, the least of all steps.
"""

from __future__ import annotations

import argparse
import random
import time
from itertools import pairwise

from engine import EVERY_RUN, OF_POLICY, named
from rich.console import Console
from rich.table import Table

from sentinel.combine import combine
from sentinel.dialect import dialect
from sentinel.outlets.ranks import Ranks
from sentinel.record import Event, Record
from sentinel.said import Said

SIGNALS = 32
ALIKE = frozenset({"grad_norm", "learning_rate", "global_step", "optimizer_steps"})


def records(ranks: int, step: int) -> list[Record]:
    """What each rank says of one step, in numbers of its own but where all must be alike."""
    dice, names = random.Random(step), named([*OF_POLICY, *EVERY_RUN], SIGNALS)
    return [
        Record(
            "run",
            rank,
            step,
            float(step),
            values={name: 1.0 + step if name in ALIKE else dice.gauss(1, 0.1) for name in names},
            beat=step,
        )
        for rank in range(ranks)
    ]


def costs(ranks: int, steps: int) -> list[float]:
    """Milliseconds of hearing, of combining and of following so many ranks for one step."""
    least, followed, spoken = [float("inf")] * 3, Ranks(), dialect({})
    for step in range(steps):
        told, said, looks = records(ranks, step), dict[int, Said](), [time.thread_time_ns()]
        for record in told:
            said.setdefault(record.rank, Said(record)).add(record, spoken)
        looks.append(time.thread_time_ns())
        combine(Event.STEP, said, (), world=ranks)
        looks.append(time.thread_time_ns())
        for record in told:
            followed.hear(record)
        looks.append(time.thread_time_ns())
        spent = [(after - before) / 1e6 for before, after in pairwise(looks)]
        least = [min(pair) for pair in zip(least, spent, strict=True)]
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024, 16384])
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    table = Table("Ranks", "hearing, ms", "combining, ms", "following, ms", "a rank, µs")
    for ranks in args.ranks:
        found = costs(ranks, args.steps if ranks < 4096 else 3)
        cells = (f"{each:.2f}" for each in found)
        table.add_row(str(ranks), *cells, f"{sum(found) / ranks * 1e3:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
