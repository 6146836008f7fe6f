"""Guard: an error of ours never reaches the trainer, and too many of them switch us off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sentinel.transport.ring_layout import ERRORS_BEFORE_OFF


def report(error: Exception) -> None:
    """Told of every error that is swallowed. Says nothing; tests replace it by one that raises."""


@dataclass(slots=True)
class Guard:
    """Counts errors of ours through `count`; `off` once there were too many.

    `strict` raises them instead, for tests. Only `Exception` is ever swallowed: an interrupt, or a
    wish to exit, belongs to the trainer.
    """

    count: Callable[[], None]
    strict: bool = False
    errors: int = 0
    off: bool = False
    swallowed: int = 0
    """Errors that were kept from the trainer, also those that others answer for."""

    def caught(self, error: Exception) -> None:
        """To be called where an error of ours was caught."""
        self.noted(error)
        self.errors += 1
        self.off = self.off or self.errors >= ERRORS_BEFORE_OFF

    def noted(self, error: Exception) -> None:
        """Count an error that somebody else answers for; it switches nothing off here."""
        if self.strict:
            raise error
        self.swallowed += 1
        report(error)
        self.count()
