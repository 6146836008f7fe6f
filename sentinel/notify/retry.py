"""Retry policy: when a failed delivery is repeated, and when it is given up."""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TYPE_CHECKING

from sentinel.model.finding import Severity

if TYPE_CHECKING:
    from sentinel.notify.http import HttpResponse

MAX_BACKOFF_SECONDS = 300.0
"""Longest delay that is not requested by the receiver."""

MAX_RETRY_AFTER_SECONDS = 3600.0
"""Longest delay that a receiver can request."""

_MAX_AGE_SECONDS = {Severity.CRITICAL.value: 24 * 3600.0}
_DEFAULT_MAX_AGE_SECONDS = 3600.0

_RETRYABLE_STATUSES = frozenset({408, 425, 429})
_CONFIGURATION_ERRORS = ("SSL", "Certificate", "AddressRefused")
"""Parts of the names of error classes that only a change of configuration resolves."""

_MAX_HEADER_CHARS = 64


def max_age_seconds(severity: str) -> float:
    """Age in seconds at which an undelivered notification is given up."""
    return _MAX_AGE_SECONDS.get(severity, _DEFAULT_MAX_AGE_SECONDS)


def is_permanent_failure(response: HttpResponse) -> bool:
    """Whether the receiver rejects the notification for good: 4xx, except timeouts and limits."""
    return 400 <= response.status < 500 and response.status not in _RETRYABLE_STATUSES


def is_payload_too_long(response: HttpResponse) -> bool:
    """Whether the receiver rejects the notification because of its size."""
    return response.status == 413 or (response.status == 400 and "too_long" in response.body)


def retry_delay_seconds(response: HttpResponse, tries: int, uniform_random: float) -> float:
    """Seconds until the next try after `tries` tries; `uniform_random` is in [0, 1).

    Exponential backoff with full jitter, at least the delay that the receiver requests. Errors of
    configuration are retried at the longest interval.
    """
    if any(part in response.error for part in _CONFIGURATION_ERRORS):
        return MAX_BACKOFF_SECONDS
    backoff = uniform_random * min(MAX_BACKOFF_SECONDS, 2.0 ** min(tries, 10))
    if response.retry_after is None:
        return backoff
    return max(backoff, response.retry_after + uniform_random)


def parse_retry_after(header: str | None, now: float) -> float | None:
    """Delay in seconds that a `Retry-After` header requests, or None if it is not valid.

    RFC 9110 allows whole seconds and HTTP dates. Fractions of a second are common and accepted;
    `urllib3.util.Retry` refuses them, and reads a date without a zone as local time.

    >>> parse_retry_after("1.5", now=0), parse_retry_after("Thu, 01 Jan 1970 00:00:09 GMT", now=4)
    (1.5, 5.0)
    >>> parse_retry_after("soon", now=0)
    """
    if header is None or len(header) > _MAX_HEADER_CHARS:
        return None
    delay = _parse_number(header)
    if delay is None:
        retry_time = _parse_date(header)
        delay = None if retry_time is None else max(0.0, retry_time - now)
    return None if delay is None or delay < 0 else min(delay, MAX_RETRY_AFTER_SECONDS)


def _parse_number(header: str) -> float | None:
    try:
        number = float(header)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _parse_date(header: str) -> float | None:
    try:
        date = parsedate_to_datetime(header)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return date.timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
