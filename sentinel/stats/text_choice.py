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
    order = [at for at, total in enumerate(totals[:size]) if isfinite(total)]
    ends = {min(order, key=totals.__getitem__), max(order, key=totals.__getitem__)} if order else {}
    kept = sorted(ends)[:most]
    left = most - len(kept)
    return sorted({*kept, *(at * (size - 1) // max(1, left - 1) for at in range(left))})
