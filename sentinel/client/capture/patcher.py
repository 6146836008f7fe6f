"""Tap: one integration's way into a run, and what it changed in its framework.

Frameworks are patched at class level, for the time of a run only. What a version of a framework
lacks is noted by name, and what is there is tapped. A tap that fails switches itself off, after
`ERRORS_BEFORE_OFF` errors, and says so; the other taps, and training, go on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event

MAX_ERRORS_PER_INTEGRATION = 3

_Change = tuple[Any, str, Any, Any]


class Patcher:
    """What an integration's `attach` is given. Whatever it does here is undone by `undo`."""

    def __init__(self, name: str, recorder: Recorder, loop: TrainingLoop) -> None:
        self.name, self.recorder, self.loop = name, recorder, loop
        self.missing: list[str] = []
        self.errors = 0
        self.disabled = False
        self._changes: list[_Change] = []
        self._cleanups: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to what `make` builds around the original, if it is there.

        What is no plain function is left alone: `make` knows nothing of how it is bound.
        """
        original = vars(owner).get(name)
        if original is None or isinstance(original, staticmethod | classmethod | property):
            self.add_missing(f"{owner.__name__}.{name}")
            return
        ours = make(original)
        setattr(owner, name, ours)
        self._changes.append((owner, name, original, ours))

    def wrap(
        self,
        owner: Any,
        name: str,
        before: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
    ) -> None:
        """Have a function or method of theirs seen: `before(*args)`, then `after(result, *args)`.

        Both are given the keyword arguments, too. What they return is of no consequence.
        """

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def watched(*args: Any, **kwargs: Any) -> Any:
                if before is not None:
                    self.call_safely(before, *args, **kwargs)
                result = original(*args, **kwargs)
                if after is not None:
                    self.call_safely(after, result, *args, **kwargs)
                return result

            return watched

        self.replace(owner, name, make)

    def add_cleanup(self, undo: Callable[[], None]) -> None:
        """Something else to be undone."""
        self._cleanups.append(undo)

    def call_safely(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Run a part of the tap; what goes wrong in it is ours alone."""
        if self.disabled or self.recorder.try_lock.guard.disabled:
            return
        try:
            body(*args, **kwargs)
        except Exception as error:
            self.handle_error(error, getattr(body, "__name__", "tap"))

    def add_missing(self, name: str) -> None:
        """The framework, in this version, does not have that."""
        self.missing.append(name)

    def handle_error(self, error: Exception, where: str) -> None:
        """Count an error of ours; one too many, and the tap is off."""
        self.recorder.try_lock.guard.count_error(error)
        self.errors += 1
        if self.errors >= MAX_ERRORS_PER_INTEGRATION and not self.disabled:
            self.disabled = True
            self.report_state(f"off: {type(error).__name__} in {where}")

    def attach(self, integration: Callable[[Patcher], None]) -> None:
        """Put the integration's taps in, and say how far that went."""
        try:
            integration(self)
        except Exception as error:
            self.disable(error, "attach")
            return
        without = f", without {', '.join(self.missing)}" if self.missing else ""
        self.report_state(f"on{without}")

    def disable(self, error: Exception, where: str) -> None:
        """Nothing comes of this tap: put back what it changed, and say so."""
        self.disabled = True
        self.undo()
        self.recorder.try_lock.guard.count_error(error)
        self.report_state(f"off: {type(error).__name__} in {where}")

    def report_state(self, state: str) -> None:
        """Let the agent know how this tap is."""
        self.recorder.record_event(Event.METADATA, None, {f"tap/{self.name}": state})

    def undo(self) -> None:
        """Put everything back, except where somebody has patched over us since."""
        while self._changes:
            owner, name, original, ours = self._changes.pop()
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        while self._cleanups:
            self._cleanups.pop()()


def exclude_from_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Kept out of graphs that torch.compile traces; what it calls is compiled as ever."""
    torch = sys.modules["torch"]
    kept: Callable[..., Any] = torch.compiler.disable(function, recursive=False)
    return kept
