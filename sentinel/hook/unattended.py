"""Unattended: a run that nobody decorated, from its first sign to the end of the interpreter.

For `sentinel run`, for callbacks, and for frameworks that load us by an entry point.
"""

from __future__ import annotations

import atexit
import sys
from types import TracebackType
from typing import Any

from sentinel.hook.arguments import Arguments
from sentinel.hook.session import enter, leave


class _Own:
    """The session that was begun here, and what ended the interpreter."""

    begun = False
    error: BaseException | None = None


def begin(arguments: Arguments | None = None) -> None:
    """Watch this process from now on; a second call changes nothing. Never raises."""
    if _Own.begun:
        return
    _Own.begun, _Own.error = True, None
    enter(arguments or Arguments())
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        _Own.error = error
        return before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(end)


def end(error: BaseException | None = None) -> None:
    """The run is over, by what ended it; a second call changes nothing."""
    if not _Own.begun:
        return
    _Own.begun = False
    atexit.unregister(end)
    leave(error or _Own.error)
