"""Preloads `faulty_libc.c`: the clock, the disk and the locks of real processes fail on request."""

from __future__ import annotations

import errno
import mmap
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

_NAMES = (
    "clock_offset", "clock_stopped_at", "sync_failures", "sync_error", "writes_before",
    "write_failures", "write_error", "is_short", "lock_error", "failed",
)  # fmt: skip
"""The numbers of the mapped file, in the order of `faulty_libc.c`; times in nanoseconds."""
ALWAYS = -1
"""A number of failures that is never used up."""


class FaultyLibc:
    """The faults of the processes that have `environ`.

    Disk and lock faults concern files whose path contains `path`. Skips the test without a
    compiler.
    """

    def __init__(self, folder: Path, path: str = "") -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("a C compiler is needed for a library that is preloaded")
        folder.mkdir(parents=True, exist_ok=True)
        library, control = folder / "faulty_libc.so", folder / "control"
        source = Path(__file__).with_suffix(".c")
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        control.write_bytes(bytes(mmap.PAGESIZE))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.environ = {
            "LD_PRELOAD": str(library),
            "FAULTY_CONTROL": str(control),
            "FAULTY_PATH": path,
        }

    def get(self, name: str) -> int:
        """That number."""
        return int(struct.unpack_from("=q", self._map, 8 * _NAMES.index(name))[0])

    def set(self, **numbers: int) -> None:
        """Set these numbers, in this order."""
        for name, number in numbers.items():
            struct.pack_into("=q", self._map, 8 * _NAMES.index(name), number)

    def move_clock(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self.set(clock_offset=self.get("clock_offset") + int(seconds * 1e9))

    def stop_clock(self) -> None:
        """Let the clock stand still."""
        self.set(clock_stopped_at=time.time_ns() + self.get("clock_offset"))

    def start_clock(self) -> None:
        """Let the clock go on at the right time."""
        self.set(clock_stopped_at=0)

    def fail_writes(self, error: int = errno.ENOSPC, count: int = ALWAYS, after: int = 0) -> None:
        """Fail that many writes, after so many that succeed."""
        self.set(write_error=error, is_short=0, writes_before=after, write_failures=count)

    def shorten_writes(self, count: int) -> None:
        """Write half of what is given, that many times."""
        self.set(is_short=1, writes_before=0, write_failures=count)

    def fail_syncs(self, error: int = errno.EIO, count: int = 1) -> None:
        """Fail that many calls of fsync and fdatasync."""
        self.set(sync_error=error, sync_failures=count)

    def heal_disk(self) -> None:
        """Let every call work again."""
        self.set(write_failures=0, sync_failures=0, writes_before=0, is_short=0, lock_error=0)
