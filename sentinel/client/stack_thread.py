"""Answers the agent's requests for the stack of the training thread: the client's only thread.

The daemon thread sleeps in a read of a named pipe, which needs no GIL, and runs only for a
request. An answer holds functions, files and lines, never locals or arguments.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import sleep
from types import BuiltinFunctionType, FrameType

from sentinel.model.rank_stack import MAX_FRAMES, Frame
from sentinel.transport.stack_channel import (
    REQUEST,
    StackAnswer,
    remove_channel,
    request_path,
    write_answer,
)

THREAD_NAME = "sentinel-stacks"
LATER_POSITIONS, POSITION_INTERVAL_SECONDS = 4, 0.002
"""Positions that are compared with the first, to see whether the thread moves."""
_STOP_NUMBER = 0
_OWN_FOLDER = f"{Path(__file__).resolve().parents[1]}{os.sep}"


def _has_native_threads() -> bool:
    """Whether a thread is one of the system.

    gevent and eventlet replace them by coroutines: a read that waits would stop the whole process.
    """
    return isinstance(_thread.start_new_thread, BuiltinFunctionType)


class StackThread:
    """Answers requests for the rank of a ring, until `close`.

    `training_thread` returns the id of the thread that trains, or None if it is not known.
    """

    def __init__(self, ring: Path, training_thread: Callable[[], int | None]) -> None:
        self._ring, self._training_thread = ring, training_thread
        self._descriptor = -1

    def open(self) -> None:
        """Create the pipe and start the thread; without a pipe there are no stacks."""
        if not _has_native_threads():
            return
        path = request_path(self._ring)
        try:
            os.mkfifo(path, 0o600)
            # Open for writing too: a read of a pipe without a writer would return at once.
            self._descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            threading.Thread(target=self._answer_requests, name=THREAD_NAME, daemon=True).start()
        except (OSError, RuntimeError):
            self.abandon()

    def close(self) -> None:
        """End the thread; does not wait for it."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.write(self._descriptor, REQUEST.pack(_STOP_NUMBER))

    def abandon(self) -> None:
        """Release the pipe in a forked child, which has no such thread."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _answer_requests(self) -> None:
        # An error ends the thread: the agent reads what the kernel knows of the process instead.
        with suppress(Exception):
            while True:
                (number,) = REQUEST.unpack(os.read(self._descriptor, REQUEST.size))
                if number == _STOP_NUMBER:
                    break
                write_answer(self._ring, self._capture(number))
        self.abandon()
        with suppress(OSError):
            remove_channel(self._ring)

    def _capture(self, number: int) -> StackAnswer:
        shown: list[Frame] = []
        frame, position = self._training_frame(), 0
        while frame is not None:
            code = frame.f_code
            position = hash((position, id(code), frame.f_lasti))
            if len(shown) < MAX_FRAMES and not code.co_filename.startswith(_OWN_FOLDER):
                shown.append(Frame(code.co_qualname, code.co_filename, frame.f_lineno or 0))
            frame = frame.f_back
        positions = {position, *(self._later_position() for _ in range(LATER_POSITIONS))}
        return StackAnswer(number, tuple(shown), position, has_moved=len(positions) > 1)

    def _later_position(self) -> int:
        sleep(POSITION_INTERVAL_SECONDS)
        frame, position = self._training_frame(), 0
        while frame is not None:
            position = hash((position, id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        return position

    def _training_frame(self) -> FrameType | None:
        thread = self._training_thread() or threading.main_thread().ident
        return sys._current_frames().get(thread or 0)  # noqa: SLF001 - there is no other way
