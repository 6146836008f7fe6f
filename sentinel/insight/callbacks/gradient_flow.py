"""Gradient flow of a training that a callback monitors, if nothing does yet."""

from __future__ import annotations

import difflib
from typing import Any

from sentinel.client.arguments import SettingsError
from sentinel.client.capture import gradient_flow
from sentinel.integrations.callbacks.owned_session import OwnedSession

_NAME = "every"


class FlowSession(OwnedSession):
    """A session with gradient flow every `every` steps; None adapts the stride to the cost.

    Raises SettingsError if it is no number of steps, or if one of the settings is a misspelt
    `every`, unknown or invalid.
    """

    def __init__(self, every: int | None, settings: dict[str, Any]) -> None:
        for each in settings:
            if difflib.get_close_matches(each, [_NAME], cutoff=0.7):
                raise SettingsError(f"unknown argument {each!r}: did you mean {_NAME!r}?")
        if every is not None and (not isinstance(every, int) or every < 1):
            raise SettingsError(f"every is {every!r}: give a number of steps, or None.")
        super().__init__({**settings, "insight": gradient_flow.NAME})
        self._every = every

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy, which has started no session and ends none."""
        return super().__getstate__() | {"_every": self._every}

    def measure(self, model: Any) -> None:
        """Start the session, if none is running, and the measurement of the gradients."""
        self.begin()
        gradient_flow.enable(model, every=self._every)
