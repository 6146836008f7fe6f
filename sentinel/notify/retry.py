"""Retry policy: when a failed delivery is repeated, and when it is given up."""

from __future__ import annotations

from sentinel.model.delivery import Rejection, Response
from sentinel.model.finding import Severity

MAX_BACKOFF_SECONDS = 300.0
"""Longest delay that is not requested by the receiver."""


_MAX_AGE_SECONDS = {Severity.CRITICAL.value: 24 * 3600.0}
_DEFAULT_MAX_AGE_SECONDS = 3600.0

_RETRYABLE_STATUSES = frozenset({407, 408, 425, 429})
"""407 is the answer of a proxy, not of the receiver."""
_PERMANENT_ERRORS = frozenset(
    {"FileNotFoundError", "PermissionError", "AppriseNotInstalled", "AppriseUrlError"}
)
_UNANSWERED_STATUSES = frozenset({408, 502, 504})
_UNSENT_ERRORS = _PERMANENT_ERRORS | {
    "AddressRefusedError",
    "ConnectionRefusedError",
    "SSLCertVerificationError",
    "SSLError",
    "gaierror",
}


def max_age_seconds(severity: str) -> float:
    """Age in seconds at which an undelivered notification is given up."""
    return _MAX_AGE_SECONDS.get(severity, _DEFAULT_MAX_AGE_SECONDS)


def rejection(response: Response) -> Rejection:
    """Why the receiver did not accept a delivery.

    HTTP: 413 is too long; 4xx is permanent, except timeouts and limits. SMTP: 552 is too long, 5xx
    is permanent (RFC 5321). A program is tried again, unless it cannot be started.
    """
    status = response.status
    if response.error:
        is_permanent = response.error in _PERMANENT_ERRORS
    elif response.protocol == "HTTP":
        if status == 413 or (status == 400 and "too_long" in response.body):
            return Rejection.TOO_LONG
        is_permanent = 400 <= status < 500 and status not in _RETRYABLE_STATUSES
    else:
        if response.protocol == "SMTP" and status == 552:
            return Rejection.TOO_LONG
        is_permanent = response.protocol == "SMTP" and 500 <= status < 600
    return Rejection.PERMANENT if is_permanent else Rejection.TEMPORARY


def is_answered(response: Response) -> bool:
    """Whether the receiver certainly did not accept what it did not confirm.

    Without an answer, or if a gateway waited in vain for one, it may have.
    """
    if response.error:
        return not response.is_sent or response.error in _UNSENT_ERRORS
    return response.status not in _UNANSWERED_STATUSES


def retry_delay_seconds(response: Response, tries: int, uniform_random: float) -> float:
    """Seconds until the next try after `tries` tries; `uniform_random` is in [0, 1).

    Exponential backoff with full jitter, at least the delay that the receiver requests.
    """
    backoff = uniform_random * min(MAX_BACKOFF_SECONDS, 2.0 ** min(tries, 10))
    if response.retry_after is None:
        return backoff
    return max(backoff, response.retry_after + uniform_random)
