"""Guard: an error of ours never reaches the trainer, and too many of them switch us off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sentinel.transport.ring_layout import MAX_CLIENT_ERRORS


def on_swallowed_error(error: Exception) -> None:
    """Told of every error that is swallowed. Says nothing; tests replace it by one that raises."""


@dataclass(slots=True)
class ErrorGuard:
    """Counts errors of ours through `count`; `off` once there were too many.

    `strict` raises them instead, for tests. Only `Exception` is ever swallowed: an interrupt, or a
    wish to exit, belongs to the trainer.
    """

    on_error: Callable[[], None]
    strict: bool = False
    own_errors: int = 0
    disabled: bool = False
    swallowed_errors: int = 0
    """Errors that were kept from the trainer, also those that others answer for."""

    def handle_error(self, error: Exception) -> None:
        """To be called where an error of ours was caught."""
        self.count_error(error)
        self.own_errors += 1
        self.disabled = self.disabled or self.own_errors >= MAX_CLIENT_ERRORS

    def count_error(self, error: Exception) -> None:
        """Count an error that somebody else answers for; it switches nothing off here."""
        if self.strict:
            raise error
        self.swallowed_errors += 1
        on_swallowed_error(error)
        self.on_error()
