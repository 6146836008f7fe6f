"""Phases: what a framework does besides training steps, told when it begins and when it ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.model.record import Event


class PhaseRecorder:
    """The phases under way; one entered within itself, as by a subclass, is told once."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._depth: dict[str, int] = {}

    def begin(self, name: str) -> None:
        """The phase is entered."""
        depth = self._depth.get(name, 0)
        self._depth[name] = depth + 1
        if not depth:
            self._record_edge(name, "begin")

    def end(self, name: str) -> None:
        """The phase is left; nothing if it was never entered."""
        depth = self._depth.get(name, 0)
        if depth:
            self._depth[name] = depth - 1
        if depth == 1:
            self._record_edge(name, "end")

    def is_active(self, *names: str) -> bool:
        """Whether one of these phases is."""
        return any(self._depth.get(name) for name in names)

    def wrapper_for(self, name: str) -> Callable[[Any], Any]:
        """For `Tap.replace`: a call of theirs is that phase, however it ends."""

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

    def _record_edge(self, name: str, edge: str) -> None:
        self._patcher.recorder.record_event(Event.PHASE, None, {"name": name, "edge": edge})
