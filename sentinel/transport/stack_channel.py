"""Channel by which a node's agent asks a rank for its stack: a named pipe, and a file beside it.

The agent writes the number of a request into the pipe, where a thread of the rank sleeps, and reads
the answer with that number from the file. Neither waits for the other. Both are beside the ring.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sentinel.model.rank_stack import MAX_FRAMES, Frame

REQUEST = struct.Struct("@Q")
"""A request: its number, from 1."""
REQUEST_SUFFIX, ANSWER_SUFFIX, NEW_ANSWER_SUFFIX = ".stack-request", ".stack", ".stack-new"
MAX_ANSWER_BYTES = 64 << 10
_MAX_NAME_CHARS = 120
_MAX_PATH_CHARS = 240


class StackAnswer(NamedTuple):
    """The answer to request `number`: the training thread's frames, innermost first.

    `position` changes when the thread moves, even within a line; `has_moved` is whether it did so
    within milliseconds.
    """

    number: int
    frames: tuple[Frame, ...]
    position: int
    has_moved: bool = False


def request_path(ring: Path) -> Path:
    """Path of the pipe of a ring's rank."""
    return ring.with_suffix(REQUEST_SUFFIX)


def answer_path(ring: Path) -> Path:
    """Path of the newest answer of a ring's rank."""
    return ring.with_suffix(ANSWER_SUFFIX)


def send_request(ring: Path, number: int) -> bool:
    """Send a request; whether a thread of the rank listens. Never waits."""
    try:
        descriptor = os.open(
            request_path(ring), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.ENOENT, errno.ELOOP, errno.EACCES, errno.ENOTDIR}:
            return False
        raise
    try:
        # A full pipe holds requests that are not answered yet.
        with suppress(BlockingIOError):
            os.write(descriptor, REQUEST.pack(number))
    finally:
        os.close(descriptor)
    return True


def write_answer(ring: Path, answer: StackAnswer) -> None:
    """Publish an answer, in place of the last one. Raises OSError."""
    frames = [
        (frame.function[:_MAX_NAME_CHARS], frame.file[-_MAX_PATH_CHARS:], frame.line)
        for frame in answer.frames[:MAX_FRAMES]
    ]
    body = json.dumps([answer.number, frames, answer.position, answer.has_moved]).encode()
    temporary = ring.with_suffix(NEW_ANSWER_SUFFIX)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        os.write(descriptor, body)
    finally:
        os.close(descriptor)
    temporary.replace(answer_path(ring))


def read_answer(ring: Path) -> StackAnswer | None:
    """The newest answer; None if there is none, or it cannot be read."""
    try:
        descriptor = os.open(answer_path(ring), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            body = os.read(descriptor, MAX_ANSWER_BYTES)
        finally:
            os.close(descriptor)
        number, frames, position, has_moved = json.loads(body)
        return StackAnswer(int(number), parse_frames(frames), int(position), bool(has_moved))
    except (OSError, ValueError, TypeError):
        return None


def parse_frames(rows: Sequence[Sequence[object]]) -> tuple[Frame, ...]:
    """Frames from rows of function, file and line. Raises ValueError, TypeError."""
    return tuple(Frame(str(name), str(file), int(str(line))) for name, file, line in rows)


def remove_channel(ring: Path) -> None:
    """Remove the files of a ring's rank."""
    for suffix in (REQUEST_SUFFIX, ANSWER_SUFFIX, NEW_ANSWER_SUFFIX):
        ring.with_suffix(suffix).unlink(missing_ok=True)
