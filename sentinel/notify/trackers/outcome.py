"""Why a notification could not be recorded at a tracker."""

from __future__ import annotations


class NotRecordedError(Exception):
    """The tracker did not take it; `reason` is a key of the remedies in `sinks/_tracker`.

    If it `is_final`, another try is pointless.
    """

    def __init__(self, reason: str, *, is_final: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.is_final = reason, is_final
