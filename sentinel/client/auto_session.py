"""A session without a decorator, from its start to the end of the interpreter.

Used by `sentinel run`, by callbacks, and by frameworks that load sentinel through an entry point.
An interpreter does not report why it ends, so the reason is recorded as it happens: an uncaught
error, `sys.exit`, or, in a child of `multiprocessing`, the exception of its function.
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
    """Whether a session was started here, and the error that ends the interpreter."""

    active = False
    error: BaseException | None = None
    undo: ClassVar[list[Callable[[], None]]] = []


def begin_auto_session(arguments: MonitorArguments | None = None) -> None:
    """Monitor this process from now on; a second call does nothing. Never raises."""
    if _AutoSession.active:
        return
    _AutoSession.active, _AutoSession.error = True, None
    enter_session(arguments or MonitorArguments())
    _patch("excepthook", _wrap_excepthook)
    _patch("exit", _wrap_exit)
    atexit.register(end_auto_session)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize  # noqa: PLC0415 - loaded already in such a child

        Finalize(None, _on_child_exit, exitpriority=0)


def end_auto_session(error: BaseException | None = None) -> None:
    """End the run, with `error` as its outcome; a second call does nothing."""
    if not _AutoSession.active:
        return
    _AutoSession.active = False
    atexit.unregister(end_auto_session)
    while _AutoSession.undo:
        _AutoSession.undo.pop()()
    leave_session(error or _AutoSession.error)


def _on_child_exit() -> None:
    """Called while an exception of the child's function, if any, propagates."""
    end_auto_session(sys.exc_info()[1])


def _patch(name: str, wrap: Callable[[Any], Any]) -> None:
    original = getattr(sys, name)
    wrapper = wrap(original)
    setattr(sys, name, wrapper)

    def undo() -> None:
        if getattr(sys, name) is wrapper:
            setattr(sys, name, original)

    _AutoSession.undo.append(undo)


def _wrap_excepthook(original: Any) -> Any:
    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> Any:
        _AutoSession.error = error
        return original(kind, error, trace)

    return excepthook


def _wrap_exit(original: Any) -> Any:
    @functools.wraps(original)
    def exit_(status: Any = None, /) -> Any:
        # In another thread it ends that thread only. A SystemExit that is caught counts as an exit.
        if threading.current_thread() is threading.main_thread():
            _AutoSession.error = SystemExit(status)
        return original(status)

    return exit_
