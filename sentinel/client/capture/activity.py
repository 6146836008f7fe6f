"""Signs of life outside steps: evaluations, saves, loads and fetched batches.

They are published in the ring's header, where an agent distinguishes a pause from a hang; no record
is written. `Module.eval()` of a model in training begins an evaluation, the next backward pass ends
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sentinel.transport.ring import RingWriter

EVALUATION = "evaluation"


class ActivityPublisher:
    """What a rank does outside steps. Methods may be called from any thread and never raise."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self._active: list[str] = []
        self.current = ""
        """The activity that began last and has not ended: one of `ACTIVITIES` of the ring."""

    def count(self) -> None:
        """Count a sign of life."""
        try:
            self._ring.count_activity()
        except ValueError:
            # The ring was closed while another thread fetched a batch. `suppress` costs more.
            return

    def begin(self, activity: str) -> None:
        """Begin an activity."""
        self._active.append(activity)
        self._publish()

    def end(self, activity: str) -> None:
        """End it; does nothing if it was not begun."""
        with suppress(ValueError):
            self._active.remove(activity)
            self._publish()

    def on_eval(self, module: Any) -> None:
        """Called before `Module.eval()`: an evaluation begins if the module was being trained.

        A reference or reward model is in evaluation mode already, or has nothing to train.
        """
        is_trained = module.training and any(p.requires_grad for p in module.parameters())
        if is_trained and EVALUATION not in self._active:
            self.begin(EVALUATION)

    def wrapper_for(self, activity: str) -> Callable[[Any], Any]:
        """For `Patcher.replace`: each call of the wrapped function is that activity."""

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def active(*args: Any, **kwargs: Any) -> Any:
                self.begin(activity)
                try:
                    return original(*args, **kwargs)
                finally:
                    self.end(activity)

            return active

        return make

    def _publish(self) -> None:
        # Another thread may end an activity meanwhile.
        *_, self.current = ("", *self._active)
        with suppress(ValueError):
            self._ring.set_activity(self.current)
