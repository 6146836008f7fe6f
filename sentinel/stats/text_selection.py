"""Text choice: which few of many texts are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite


def choice(size: int, most: int, totals: Sequence[float] = ()) -> list[int]:
    """At most `most` of the indices below `size`: evenly spaced, with the first and the last.

    The lowest and the highest of `totals`, of the first texts, are among them.

    >>> choice(9, 3), choice(9, 5, totals=[0.0, 5.0, 1.0, -2.0])
    ([0, 4, 8], [0, 1, 3, 4, 8])
    """
    if size <= most:
        return list(range(size))
    ends = set(_ends(totals[:size])[:most])
    # As many of the others make room as have to.
    spaced = (ends | _spaced(size, most - room) for room in range(len(ends) + 1))
    return sorted(next(chosen for chosen in spaced if len(chosen) <= most))


def _ends(totals: Sequence[float]) -> list[int]:
    order = [at for at, total in enumerate(totals) if isfinite(total)]
    return [pick(order, key=totals.__getitem__) for pick in (min, max)] if order else []


def _spaced(size: int, most: int) -> set[int]:
    return {at * (size - 1) // max(1, most - 1) for at in range(most)}
