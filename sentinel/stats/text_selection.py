"""Text choice: which few of many texts are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite


def select_indices(size: int, limit: int, scores: Sequence[float] = ()) -> list[int]:
    """At most `most` of the indices below `size`: evenly spaced, with the first and the last.

    The lowest and the highest of `totals`, of the first texts, are among them.

    >>> choice(9, 3), choice(9, 5, totals=[0.0, 5.0, 1.0, -2.0])
    ([0, 4, 8], [0, 1, 3, 4, 8])
    """
    if size <= limit:
        return list(range(size))
    ends = set(_extreme_indices(scores[:size])[:limit])
    # As many of the others make room as have to.
    spaced = (ends | _evenly_spaced(size, limit - room) for room in range(len(ends) + 1))
    return sorted(next(chosen for chosen in spaced if len(chosen) <= limit))


def _extreme_indices(scores: Sequence[float]) -> list[int]:
    order = [at for at, total in enumerate(scores) if isfinite(total)]
    return [pick(order, key=scores.__getitem__) for pick in (min, max)] if order else []


def _evenly_spaced(size: int, limit: int) -> set[int]:
    return {at * (size - 1) // max(1, limit - 1) for at in range(limit)}
