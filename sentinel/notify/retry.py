"""Retry: how long to wait after a page was not taken, and when to give it up."""

from __future__ import annotations

from sentinel.model.finding import Severity
from sentinel.notify.http import HttpResponse

MAX_BACKOFF_SECONDS = 300.0
"""Seconds; without a wish of the receiver nothing waits longer."""

_MAX_AGE_SECONDS = {Severity.CRITICAL.value: 24 * 3600.0}
_DEFAULT_MAX_AGE_SECONDS = 3600.0

_RETRYABLE_STATUSES = frozenset({408, 425, 429})
_CONFIGURATION_ERRORS = ("SSL", "Certificate", "AddressRefused")


def max_age_seconds(severity: str) -> float:
    """Seconds after which a page that nobody took is given up."""
    return _MAX_AGE_SECONDS.get(severity, _DEFAULT_MAX_AGE_SECONDS)


def is_permanent_failure(response: HttpResponse) -> bool:
    """Whether the receiver understood the page and will never take it: 4xx, but for "later"."""
    return 400 <= response.status < 500 and response.status not in _RETRYABLE_STATUSES


def is_payload_too_long(response: HttpResponse) -> bool:
    """Whether the receiver refused the page for its size, so that a shorter one may pass."""
    return response.status == 413 or (response.status == 400 and "too_long" in response.body)


def retry_delay_seconds(response: HttpResponse, tries: int, uniform_random: float) -> float:
    """Seconds until the next try, after `tries` of them; `draw` is a random number in [0, 1).

    Full jitter over an exponential span, so that receivers coming back are not met by everybody at
    once; never less than the receiver asked for. What only a person can mend is asked rarely.
    """
    if any(word in response.error for word in _CONFIGURATION_ERRORS):
        return MAX_BACKOFF_SECONDS
    backoff = uniform_random * min(MAX_BACKOFF_SECONDS, 2.0 ** min(tries, 10))
    return (
        backoff
        if response.retry_after is None
        else max(backoff, response.retry_after + uniform_random)
    )
