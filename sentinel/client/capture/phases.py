"""Phases of a framework outside training steps: recorded when they begin and when they end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sentinel.client.capture.patcher import Patcher


class PhaseRecorder:
    """The active phases. A phase entered within itself, as by a subclass, is recorded once."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._depth: dict[str, int] = {}

    def begin(self, name: str) -> None:
        """Enter the phase."""
        depth = self._depth.get(name, 0)
        self._depth[name] = depth + 1
        if not depth:
            self._patcher.recorder.record_phase(name, "begin")

    def end(self, name: str) -> None:
        """Leave the phase; does nothing if it was never entered."""
        depth = self._depth.get(name, 0)
        if depth:
            self._depth[name] = depth - 1
        if depth == 1:
            self._patcher.recorder.record_phase(name, "end")

    def is_active(self, *names: str) -> bool:
        """Whether one of these phases is active."""
        return any(self._depth.get(name) for name in names)

    def wrapper_for(self, name: str) -> Callable[[Any], Any]:
        """For `Patcher.replace`: each call of the wrapped function is that phase."""

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def phase(*args: Any, **kwargs: Any) -> Any:
                self._patcher.call_safely(self.begin, name)
                try:
                    return original(*args, **kwargs)
                finally:
                    self._patcher.call_safely(self.end, name)

            return phase

        return make
