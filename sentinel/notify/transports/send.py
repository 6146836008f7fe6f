"""Sends a delivery of any kind by its transport."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from sentinel.model.delivery import AppriseCall, Delivery, HttpRequest, Mail, Response
from sentinel.notify.transports.errors import PostponedError

DEADLINE_SECONDS = 15.0
"""Seconds from the call to the complete response, including name resolution."""

SLOW_DEADLINE_SECONDS = 60.0
"""The same for a program, and for apprise, which takes seconds to start."""


def load_transports() -> None:
    """Import the transports, which takes long; without a sink, nothing is sent.

    An agent calls it at its start: before its first delivery, the installation may be replaced.
    """
    import_module("sentinel.notify.transports.http")
    import_module("sentinel.notify.transports.mail")
    import_module("sentinel.notify.transports.apprise")


def send(
    delivery: Delivery,
    *,
    deadline: float | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Response:
    """Send once and return the outcome, within `deadline` seconds. Never raises a network error.

    `is_wanted` is asked immediately before anything is sent; if not, the error is PostponedError.
    """
    # Loaded on use, see `load_transports`.
    from sentinel.notify.transports import apprise, http, mail, process  # noqa: PLC0415

    fast, slow = deadline or DEADLINE_SECONDS, deadline or SLOW_DEADLINE_SECONDS
    if isinstance(delivery, HttpRequest):
        return http.send(delivery, deadline=fast, is_wanted=is_wanted)
    if isinstance(delivery, Mail):
        return mail.send(delivery, deadline=fast, is_wanted=is_wanted)
    if not is_wanted():
        return Response(error=PostponedError.__name__)
    if isinstance(delivery, AppriseCall):
        return apprise.send(delivery, deadline=slow)
    return process.send(delivery, deadline=slow)
