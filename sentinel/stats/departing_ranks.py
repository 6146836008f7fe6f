"""Which ranks depart from the others in a heat map of ranks and columns of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MIN_RANKS = 3
MIN_SHARE = 0.2
"""Least distance from the median of all ranks, as a share of it."""
MIN_DEVIATIONS = 6.0
"""Least distance in standard deviations, which are estimated by the median absolute deviation."""
MIN_COLUMNS = 2
"""Columns in which a rank has to depart, unless fewer have values."""
_SIGMAS_PER_MAD = 1.4826


@dataclass(frozen=True, slots=True)
class DepartingRank:
    """A rank, the first and the number of the columns in which it departs, and values there.

    `value` is that of the rank in the last of them, and `others` the median of all ranks.
    """

    rank: int
    first_column: int
    columns: int
    value: float
    others: float


def departing_ranks(
    ranks: Sequence[int], rows: Sequence[Sequence[float | None]]
) -> list[DepartingRank]:
    """The ranks that depart, those first that do so in most columns.

    `rows` has the value of each column for each rank, None where it has none.

    >>> rows = [[1.0, 1.0, 1.1], [1.1, 1.0, 1.0], [1.0, 1.1, 1.0], [1.0, 3.0, 3.2]]
    >>> departing_ranks([0, 1, 2, 3], rows)
    [DepartingRank(rank=3, first_column=1, columns=2, value=3.2, others=1.05)]
    """
    found: dict[int, DepartingRank] = {}
    counted = 0
    for column, values in enumerate(zip(*rows, strict=True)):
        known = [value for value in values if value is not None]
        if len(known) < MIN_RANKS:
            continue
        counted += 1
        middle = median(known)
        spread = _SIGMAS_PER_MAD * median(abs(value - middle) for value in known)
        limit = max(MIN_SHARE * abs(middle), MIN_DEVIATIONS * spread)
        for rank, value in zip(ranks, values, strict=True):
            if value is not None and abs(value - middle) > limit:
                former = found.get(rank)
                first, count = (former.first_column, former.columns) if former else (column, 0)
                found[rank] = DepartingRank(rank, first, count + 1, value, middle)
    needed = min(MIN_COLUMNS, counted)
    departing = [each for each in found.values() if each.columns >= needed]
    return sorted(departing, key=lambda each: (-each.columns, each.rank))
