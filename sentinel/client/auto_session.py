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

from sentinel.client.arguments import MonitorArguments
from sentinel.client.session import enter_session, leave_session


class _AutoSession:
    """The session that was begun here, and what ended the interpreter."""

    begun = False
    error: BaseException | None = None
    undo: ClassVar[list[Callable[[], None]]] = []


def begin_auto_session(arguments: MonitorArguments | None = None) -> None:
    """Watch this process from now on; a second call changes nothing. Never raises."""
    if _AutoSession.begun:
        return
    _AutoSession.begun, _AutoSession.error = True, None
    enter_session(arguments or MonitorArguments())
    _patch("excepthook", _wrap_excepthook)
    _patch("exit", _wrap_exit)
    atexit.register(end_auto_session)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize  # noqa: PLC0415 - a child of it has loaded it

        Finalize(None, _on_child_exit, exitpriority=0)


def end_auto_session(error: BaseException | None = None) -> None:
    """The run is over, by what ended it; a second call changes nothing."""
    if not _AutoSession.begun:
        return
    _AutoSession.begun = False
    atexit.unregister(end_auto_session)
    while _AutoSession.undo:
        _AutoSession.undo.pop()()
    leave_session(error or _AutoSession.error)


def _on_child_exit() -> None:
    """Called while what its function raised, if it did, is on its way out."""
    end_auto_session(sys.exc_info()[1])


def _patch(name: str, around: Callable[[Any], Any]) -> None:
    before = getattr(sys, name)
    ours = around(before)
    setattr(sys, name, ours)

    def undo() -> None:
        if getattr(sys, name) is ours:
            setattr(sys, name, before)

    _AutoSession.undo.append(undo)


def _wrap_excepthook(before: Any) -> Any:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        _AutoSession.error = error
        return before(kind, error, trace)

    return hook


def _wrap_exit(before: Any) -> Any:
    @functools.wraps(before)
    def leaving(status: Any = None, /) -> Any:
        # Elsewhere it ends a thread. Who catches it here and trains on is taken for one that left.
        if threading.current_thread() is threading.main_thread():
            _AutoSession.error = SystemExit(status)
        return before(status)

    return leaving
