"""Runs `py-spy dump`, the optional extra `stacks`, for a process that does not answer by itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from sentinel.model.rank_stack import Frame
from sentinel.transport.stack_channel import parse_frames

DEADLINE_SECONDS = 10.0
MAX_OUTPUT_BYTES = 4 << 20


class PySpy:
    """One dump of the main thread of a process; its memory is read, and it is not stopped.

    `frames` are innermost first, and empty without `py-spy` or the permission to read the process.
    """

    def __init__(self, pid: int, now: float) -> None:
        self.frames: tuple[Frame, ...] = ()
        self.has_ended = False
        self._pid, self._deadline = pid, now + DEADLINE_SECONDS
        self._child: subprocess.Popen[bytes] | None = None
        program = _find_program()
        if program is None:
            self.has_ended = True
            return
        # A file, since a full pipe would block the program.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        with suppress(OSError):
            self._child = subprocess.Popen(  # noqa: S603 - the pid is a number
                [program, "dump", "--nonblocking", "--json", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
            )

    def poll(self, now: float) -> tuple[Frame, ...]:
        """The frames, as soon as they are known; never waits."""
        if self.has_ended:
            return self.frames
        if self._child is None or now > self._deadline:
            self.close()
        elif self._child.poll() is not None:
            self._output.seek(0)
            self.frames = main_thread_frames(self._output.read(MAX_OUTPUT_BYTES), self._pid)
            self.close()
        return self.frames

    def close(self) -> None:
        """End the program if it still runs."""
        if self.has_ended:
            return
        self.has_ended = True
        if self._child is not None:
            self._child.kill()
            # A reader of a process that waits for a disk may wait too, even when killed.
            Thread(target=self._child.wait, name="sentinel-py-spy", daemon=True).start()
        self._output.close()


def main_thread_frames(output: bytes, pid: int) -> tuple[Frame, ...]:
    """The frames of the main thread in the output of `py-spy dump --json`; empty without any."""
    try:
        threads: list[dict[str, Any]] = json.loads(output)
        main = next(each for each in threads if each.get("os_thread_id") == pid)
        rows = [(row["name"], row["filename"], row["line"]) for row in main["frames"]]
        return parse_frames(rows)
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration):
        return ()


def _find_program() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")
