"""Steps of several ranks brought together, as the agent does it, from what each of them says."""

from __future__ import annotations

from collections.abc import Sequence

from sentinel.aggregate.rank_values import RankValues
from sentinel.aggregate.reduce import combine_ranks
from sentinel.model.record import Event, Record


def together(step: int, **by_rank: Sequence[float]) -> Record:
    """The run's record of one step: `together(3, loss=[2.0, 2.1], grad_norm=[1.0, 1.0])`."""
    count = len(next(iter(by_rank.values())))
    said = {}
    for rank in range(count):
        values = {name: row[rank] for name, row in by_rank.items()}
        record = Record("run", rank, step, float(step), values=values, step_index=step)
        said[rank] = RankValues(record)
        said[rank].add(record)
    return combine_ranks(Event.STEP, said, (), world_size=count)
