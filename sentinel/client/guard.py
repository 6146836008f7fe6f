"""Keeps sentinel's own errors from the trainer; too many of them disable the client."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.transport.ring_layout import MAX_CLIENT_ERRORS


def on_swallowed_error(error: Exception) -> None:
    """Called with every swallowed error. Does nothing; tests make it raise."""


@dataclass(slots=True)
class ErrorGuard:
    """Counts internal errors; `disabled` is set after `MAX_CLIENT_ERRORS` of them.

    `strict` raises them instead, for tests. Only `Exception` is swallowed: KeyboardInterrupt and
    SystemExit belong to the trainer, and so does what one of its signal handlers raises. `on_error`
    is called for each swallowed error.
    """

    on_error: Callable[[], None]
    strict: bool = False
    own_errors: int = 0
    disabled: bool = False
    swallowed_errors: int = 0
    """All swallowed errors, including those that do not count towards `disabled`."""

    def handle_error(self, error: Exception) -> None:
        """Count an internal error that was caught; may disable the client."""
        self.count_error(error)
        self.own_errors += 1
        self.disabled = self.disabled or self.own_errors >= MAX_CLIENT_ERRORS

    def count_error(self, error: Exception) -> None:
        """Count an error that does not disable the client, such as one of an integration."""
        if self.strict or is_raised_by_signal_handler(error):
            raise error
        self.swallowed_errors += 1
        on_swallowed_error(error)
        self.on_error()


def is_raised_by_signal_handler(error: Exception) -> bool:
    """Whether a signal handler of the trainer, which interrupted a call, raised the error."""
    handlers = map(signal.getsignal, range(1, signal.NSIG))
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None
