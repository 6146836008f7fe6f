"""Times as text in the format of RFC 3339, as JSON interfaces expect them."""

from __future__ import annotations

from datetime import UTC, datetime


def format_rfc3339(seconds: float) -> str:
    """The time in UTC to the millisecond; empty if it is no time of a calendar.

    >>> format_rfc3339(1_700_000_000.5)
    '2023-11-14T22:13:20.500Z'
    >>> format_rfc3339(float("inf"))
    ''
    """
    try:
        time = datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
