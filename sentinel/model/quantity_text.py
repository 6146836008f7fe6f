"""Numbers, durations and times as text for people."""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite, isnan

_MAX_DIGITS = 17
_MAX_PLAIN = 1e12


def format_number(value: float, digits: int = 4) -> str:
    """The number with that many digits, without an exponent where it has a usual size.

    >>> [format_number(x) for x in (149.0, 3.74238, 0.00223909, 1234567.8, float("nan"))]
    ['149', '3.742', '0.002239', '1,234,568', 'NaN']
    """
    if not isfinite(value):
        return "NaN" if isnan(value) else ("infinity" if value > 0 else "-infinity")
    # With 2 digits, 99.7 is rounded to 100.
    if abs(value) < _MAX_PLAIN and (value == int(value) or abs(value) >= 10**digits - 0.5):
        return f"{round(value):,}"
    return f"{value:.{digits}g}"


def distinct_texts(*values: float, digits: int = 3, percent: bool = False) -> tuple[str, ...]:
    """The numbers with as many digits as it takes to show each two that differ as different.

    `percent` shows shares as percentages.

    >>> distinct_texts(0.1412, 0.1414)
    ('0.1412', '0.1414')
    >>> distinct_texts(0.5, 0.75, percent=True)
    ('50%', '75%')
    """
    scaled = [100.0 * value if percent else value for value in values]
    texts: list[str] = []
    for count in range(digits, _MAX_DIGITS + 1):
        texts = [_plain(value, count) for value in scaled]
        if len(set(texts)) == len(set(map(str, scaled))):
            break
    if percent:
        return tuple(f"{text}%" for text in texts)
    return tuple(texts)


def format_bytes(count: float, digits: int = 4) -> str:
    """A number of bytes with its unit.

    >>> [format_bytes(each, digits=3) for each in (3.5 * 2**30, 1_000_000.0, 999.7 * 2**20, 0.0)]
    ['3.5 GiB', '977 KiB', '1,000 MiB', '0 bytes']
    """
    for unit, size in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(count) >= size:
            return f"{format_number(count / size, digits)} {unit}"
    return f"{format_number(count, digits)} bytes"


def format_duration(seconds: float, parts: int = 2) -> str:
    """A duration in its two largest units, or rounded to the largest.

    >>> [format_duration(x) for x in (0.2, 41.0, 192.0, 7500.0, 200_000.0)]
    ['1 s', '41 s', '3 min 12 s', '2 h 5 min', '2 d 7 h']
    >>> format_duration(238.0, parts=1)
    '4 min'
    """
    total = max(1, round(seconds)) if isfinite(seconds) else 1
    for name, size, smaller, smaller_size in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if total >= size:
            if parts == 1:
                return f"{round(total / size)} {name}"
            rest = total % size // smaller_size
            return f"{total // size} {name} {rest} {smaller}" if rest else f"{total // size} {name}"
    return f"{total} s"


def format_time(seconds: float) -> str:
    """A time in UTC to the second; empty if it is no time of a calendar.

    >>> format_time(1_700_000_000.0)
    '2023-11-14 22:13:20 UTC'
    """
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def _plain(value: float, digits: int) -> str:
    """The number with that many digits; whole numbers of a usual size are not rounded."""
    if isfinite(value) and value == int(value) and abs(value) < _MAX_PLAIN:
        return f"{int(value)}"
    return f"{value:.{digits}g}"
