"""Patches the functions of one framework for an integration, and undoes the patches.

Frameworks are patched at class level, during a run only. A function that a version of the framework
lacks is reported by name; the others are patched. After `MAX_ERRORS_PER_INTEGRATION` errors an
integration is switched off and reported; the other integrations, and training, continue.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event
from sentinel.transport.ring_layout import WORD_ERRORS

MAX_ERRORS_PER_INTEGRATION = 3

_Change = tuple[Any, str, Any, Any]


class Patcher:
    """The argument of an integration's `attach`. `undo` reverts every change made through it."""

    def __init__(self, name: str, recorder: Recorder, loop: TrainingLoop) -> None:
        self.name, self.recorder, self.loop = name, recorder, loop
        self._guard = recorder.try_lock.guard
        self.missing: list[str] = []
        self.errors = 0
        self.disabled = False
        self._changes: list[_Change] = []
        self._cleanups: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name`, if it exists, by `make(original)`.

        Static methods, class methods and properties are not replaced: `make` wraps plain functions.
        """
        original = vars(owner).get(name)
        if original is None or isinstance(original, staticmethod | classmethod | property):
            self.add_missing(f"{owner.__name__}.{name}")
            return
        patched = make(original)
        setattr(owner, name, patched)
        self._changes.append((owner, name, original, patched))

    def wrap(
        self,
        owner: Any,
        name: str,
        before: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
    ) -> None:
        """Call `before(*args)` before, and `after(result, *args)` after, the function `owner.name`.

        Both receive the keyword arguments too. Their results are ignored.
        """

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def observed(*args: Any, **kwargs: Any) -> Any:
                if before is not None:
                    self.call_safely(functools.partial(before, **kwargs), *args)
                result = original(*args, **kwargs)
                if after is not None:
                    self.call_safely(functools.partial(after, **kwargs), result, *args)
                return result

            return observed

        self.replace(owner, name, make)

    def add_cleanup(self, undo: Callable[[], None]) -> None:
        """Call `undo` when the patches are undone."""
        self._cleanups.append(undo)

    def call_safely(self, body: Callable[..., Any], *args: Any) -> Any:
        """Run a part of the integration, and return its result.

        An error in it is counted and not raised; the result is None then.
        """
        if self.disabled or self._guard.disabled:
            return None
        try:
            return body(*args)
        except Exception as error:
            try:
                function = getattr(body, "func", body)
                self.handle_error(error, getattr(function, "__name__", "patch"))
            except (RecursionError, MemoryError):
                self.recorder.ring.words[WORD_ERRORS] += 1
            return None

    def add_missing(self, name: str) -> None:
        """Note a function that this version of the framework does not have."""
        self.missing.append(name)

    def handle_error(self, error: Exception, where: str) -> None:
        """Count an error of the integration; after too many it is switched off."""
        self._guard.count_error(error)
        self.errors += 1
        if self.errors >= MAX_ERRORS_PER_INTEGRATION and not self.disabled:
            self.disabled = True
            self.report_state(f"off: {type(error).__name__} in {where}")

    def attach(self, integration: Callable[[Patcher], None]) -> None:
        """Attach the integration and report its state."""
        try:
            integration(self)
        except Exception as error:
            self.disable(error, "attach")
            return
        without = f", without {', '.join(self.missing)}" if self.missing else ""
        self.report_state(f"on{without}")

    def disable(self, error: Exception, where: str) -> None:
        """Switch the integration off, undo its patches and report that."""
        self.disabled = True
        self.undo()
        self._guard.count_error(error)
        self.report_state(f"off: {type(error).__name__} in {where}")

    def report_state(self, state: str) -> None:
        """Report the state of the integration to the agent."""
        self.recorder.record_event(Event.METADATA, None, {f"patch/{self.name}": state})

    def undo(self) -> None:
        """Undo all patches, except where other code has patched the function since."""
        while self._changes:
            owner, name, original, patched = self._changes.pop()
            if vars(owner).get(name) is patched:
                setattr(owner, name, original)
        while self._cleanups:
            self._cleanups.pop()()


def exclude_from_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the function out of graphs that torch.compile traces, but not the functions it calls."""
    torch = sys.modules["torch"]
    excluded: Callable[..., Any] = torch.compiler.disable(function, recursive=False)
    return excluded


def exclude_with_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the function, and the functions it calls, out of graphs that torch.compile traces.

    PyTorch's own wrapper costs thousands of instructions, so it is used only in compiled code.
    """
    torch = sys.modules["torch"]
    excluded: Callable[..., Any] = torch.compiler.disable(function)
    # `disable` loads these; not every version has both functions.
    frames = sys.modules["torch._C._dynamo.eval_frame"]
    get_compiler = getattr(frames, "get_eval_frame_callback", None)
    skip_code = getattr(sys.modules["torch._dynamo.eval_frame"], "skip_code", None)
    if get_compiler is None or skip_code is None:
        return excluded

    # Without keyword arguments, for which each call would make a dictionary.
    def call(*args: Any) -> Any:
        return function(*args) if get_compiler() is None else excluded(*args)

    skip_code(call.__code__)
    vars(call)["_torchdynamo_disable"] = True
    return call
