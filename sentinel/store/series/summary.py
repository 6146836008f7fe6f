"""The summary of one signal over some records, in blocks of the history and in series of charts."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, inf, isfinite
from operator import mul
from typing import NamedTuple

NO_RANK = -1
Range = tuple[float, float, int]
"""Lowest and highest value of all ranks, and the rank with it."""
NO_RANGE: Range = (inf, -inf, NO_RANK)


class Summary(NamedTuple):
    """One signal over some records: of `number` finite values mean, minimum and maximum.

    `bad` counts values that are not finite; of a block at most one is known. `low` and `high` are
    over all ranks, `worst` is the rank with the highest value; infinite and `NO_RANK` if there are
    none.
    """

    number: int
    mean: float
    min: float
    max: float
    bad: int = 0
    low: float = inf
    high: float = -inf
    worst: int = NO_RANK


EMPTY = Summary(0, 0.0, inf, -inf)


def summarize(values: Sequence[float], of_ranks: Range = NO_RANGE) -> Summary:
    """The summary of values, whose ranks have that range."""
    number, total = len(values), sum(values)
    if isfinite(total):
        if number == 1:
            return Summary(1, total, total, total, 0, *of_ranks)
        low, high = min(values), max(values)
        return Summary(number, min(max(total / number, low), high), low, high, 0, *of_ranks)
    finite = [value for value in values if isfinite(value)]
    bad = number - len(finite)
    if not finite:
        return Summary(*EMPTY[:4], bad, *of_ranks)
    number, low, high = len(finite), min(finite), max(finite)
    mean = fsum([value / number for value in finite])
    return Summary(number, min(max(mean, low), high), low, high, bad, *of_ranks)


def merge_summaries(summaries: Sequence[Summary]) -> Summary:
    """The summary of all records of at least one summary, oldest first.

    The worst rank is the first one whose value was not finite, else the one with the highest value.
    """
    if len(summaries) == 1:
        return summaries[0]
    numbers, means, mins, maxs, bads, lows, highs, ranks = zip(*summaries, strict=True)
    number, lowest, highest = sum(numbers), min(mins), max(maxs)
    mean, high = 0.0, max(highs)
    if number:
        mean = sum(map(mul, means, numbers)) / number
        if not isfinite(mean):
            mean = fsum([mean * (each / number) for mean, each in zip(means, numbers, strict=True)])
        # Rounding must not take the mean out of the range.
        mean = min(max(mean, lowest), highest)
    bad_ranks = [rank for bad, rank in zip(bads, ranks, strict=True) if bad and rank != NO_RANK]
    worst = bad_ranks[0] if bad_ranks else ranks[highs.index(high)]
    return Summary(number, mean, lowest, highest, sum(bads), min(lows), high, worst)
