"""The combined record of one step, built from the values of each rank."""

from __future__ import annotations

from collections.abc import Sequence

from sentinel.aggregate.combine import combine_ranks
from sentinel.aggregate.rank_values import merge_record
from sentinel.model.record import Event, Record
from sentinel.signals.key_map import select_key_map


def combine_step(step: int, **by_rank: Sequence[float]) -> Record:
    """The run's record of a step: `combine_step(3, loss=[2.0, 2.1], grad_norm=[1.0, 1.0])`.

    A shorter row leaves out the last ranks.
    """
    count = max(map(len, by_rank.values()))
    tables = []
    for rank in range(count):
        values = {name: row[rank] for name, row in by_rank.items() if rank < len(row)}
        record = Record("run", rank, step, float(step), values=values, step_index=step)
        tables.append(merge_record(record, select_key_map({})))
    return combine_ranks(Event.STEP, tables, world_size=count)
