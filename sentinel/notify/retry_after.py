"""Retry-After: the header by which a receiver asks for silence, as receivers really write it."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite

MAX_RETRY_AFTER_SECONDS = 3600.0
"""Seconds; a receiver that asks for more is asked again after an hour."""

_MAX_HEADER_CHARS = 64


def parse_retry_after(header: str | None, now: float) -> float | None:
    """Seconds of silence asked for, at most `CAP`; None where the header says nothing usable.

    RFC 9110 knows whole seconds and HTTP dates; fractions are common and are understood too.

    >>> seconds("1.5", now=0), seconds("Thu, 01 Jan 1970 00:00:09 GMT", now=4)
    (1.5, 5.0)
    >>> seconds("soon", now=0)
    """
    if header is None or len(header) > _MAX_HEADER_CHARS:
        return None
    wait = _parse_number(header)
    if wait is None:
        moment = _parse_date(header)
        wait = None if moment is None else max(0.0, moment - now)
    return None if wait is None or wait < 0 else min(wait, MAX_RETRY_AFTER_SECONDS)


def _parse_number(header: str) -> float | None:
    try:
        number = float(header)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _parse_date(header: str) -> float | None:
    try:
        moment = parsedate_to_datetime(header)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
