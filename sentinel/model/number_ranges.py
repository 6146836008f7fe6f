"""Whole numbers as text in ranges, such as rank numbers, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def format_ranges(numbers: Iterable[int]) -> list[str]:
    """The ranges of consecutive numbers, the lowest first; a repeated number is repeated.

    >>> format_ranges({9, 0, 1, 2, 3, 6, 8}), format_ranges([])
    (['0-3', '6', '8-9'], [])
    """
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ["-".join(map(str, ends)) for ends in ranges]


def ranges_text(numbers: Iterable[int]) -> str:
    """The ranges as a text for people.

    >>> ranges_text([0, 2, 3, 4, 7])
    '0, 2-4, 7'
    """
    return ", ".join(format_ranges(numbers))


def parse_ranges(ranges: str) -> Iterator[int]:
    """The numbers of ranges separated by commas. Raises ValueError if the text is anything else.

    >>> [*parse_ranges("0-2,7")]
    [0, 1, 2, 7]
    """
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
