"""Unattended: a run that nobody decorated, from its first sign to the end of the interpreter.

For `sentinel run`, for callbacks, and for frameworks that load us by an entry point. An interpreter
does not tell what it ends by, so that is noted on the way: an error that nobody caught, `sys.exit`,
and in a child of `multiprocessing`, which ends in its own manner, whatever its function raised.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar

from sentinel.client.arguments import Arguments
from sentinel.client.session import enter, leave


class _Own:
    """The session that was begun here, and what ended the interpreter."""

    begun = False
    error: BaseException | None = None
    undo: ClassVar[list[Callable[[], None]]] = []


def begin(arguments: Arguments | None = None) -> None:
    """Watch this process from now on; a second call changes nothing. Never raises."""
    if _Own.begun:
        return
    _Own.begun, _Own.error = True, None
    enter(arguments or Arguments())
    _patch("excepthook", _around_excepthook)
    _patch("exit", _around_exit)
    atexit.register(end)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize  # noqa: PLC0415 - a child of it has loaded it

        Finalize(None, _child_ends, exitpriority=0)


def end(error: BaseException | None = None) -> None:
    """The run is over, by what ended it; a second call changes nothing."""
    if not _Own.begun:
        return
    _Own.begun = False
    atexit.unregister(end)
    while _Own.undo:
        _Own.undo.pop()()
    leave(error or _Own.error)


def _child_ends() -> None:
    """Called while what its function raised, if it did, is on its way out."""
    end(sys.exc_info()[1])


def _patch(name: str, around: Callable[[Any], Any]) -> None:
    before = getattr(sys, name)
    ours = around(before)
    setattr(sys, name, ours)

    def undo() -> None:
        if getattr(sys, name) is ours:
            setattr(sys, name, before)

    _Own.undo.append(undo)


def _around_excepthook(before: Any) -> Any:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        _Own.error = error
        return before(kind, error, trace)

    return hook


def _around_exit(before: Any) -> Any:
    @functools.wraps(before)
    def leaving(status: Any = None, /) -> Any:
        # Elsewhere it ends a thread. Who catches it here and trains on is taken for one that left.
        if threading.current_thread() is threading.main_thread():
            _Own.error = SystemExit(status)
        return before(status)

    return leaving
