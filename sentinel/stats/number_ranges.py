"""Spans: whole numbers as text, those in a row in short; such as ranks, of which there are many."""

from __future__ import annotations

from collections.abc import Iterable


def format_ranges(numbers: Iterable[int]) -> list[str]:
    """Each stretch of numbers in a row, the lowest first. A number is told as often as it is given.

    >>> spans({9, 0, 1, 2, 3, 6, 8}), spans([])
    (['0-3', '6', '8-9'], [])
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ["-".join(map(str, stretch)) for stretch in found]
