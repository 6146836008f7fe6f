"""Retry policy: when a failed delivery is repeated, and when it is given up."""

from __future__ import annotations

from sentinel.model.finding import Severity
from sentinel.notify.http import HttpResponse

MAX_BACKOFF_SECONDS = 300.0
"""Longest delay that is not requested by the receiver."""


_MAX_AGE_SECONDS = {Severity.CRITICAL.value: 24 * 3600.0}
_DEFAULT_MAX_AGE_SECONDS = 3600.0

_RETRYABLE_STATUSES = frozenset({408, 425, 429})
_CONFIGURATION_ERRORS = ("SSL", "Certificate", "AddressRefused")
"""Parts of the names of error classes that only a change of configuration resolves."""


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
