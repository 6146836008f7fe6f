"""Retry: how long to wait after a page was not taken, and when to give it up."""

from __future__ import annotations

from sentinel.model.finding import Severity
from sentinel.notify.http import Answer

LONGEST_BACKOFF = 300.0
"""Seconds; without a wish of the receiver nothing waits longer."""

_PATIENCE = {Severity.CRITICAL.value: 24 * 3600.0}
_USUAL_PATIENCE = 3600.0

_TEMPORARY = frozenset({408, 425, 429})
_SLOW = ("SSL", "Certificate", "AddressRefused")


def patience(severity: str) -> float:
    """Seconds after which a page that nobody took is given up."""
    return _PATIENCE.get(severity, _USUAL_PATIENCE)


def hopeless(answer: Answer) -> bool:
    """Whether the receiver understood the page and will never take it: 4xx, but for "later"."""
    return 400 <= answer.status < 500 and answer.status not in _TEMPORARY


def too_long(answer: Answer) -> bool:
    """Whether the receiver refused the page for its size, so that a shorter one may pass."""
    return answer.status == 413 or (answer.status == 400 and "too_long" in answer.body)


def wait(answer: Answer, tries: int, draw: float) -> float:
    """Seconds until the next try, after `tries` of them; `draw` is a random number in [0, 1).

    Full jitter over an exponential span, so that receivers coming back are not met by everybody at
    once; never less than the receiver asked for. What only a person can mend is asked rarely.
    """
    if any(word in answer.error for word in _SLOW):
        return LONGEST_BACKOFF
    backoff = draw * min(LONGEST_BACKOFF, 2.0 ** min(tries, 10))
    return backoff if answer.retry_after is None else max(backoff, answer.retry_after + draw)
