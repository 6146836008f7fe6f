"""The memory control group of a process: its limit, and kills by the out-of-memory killer.

Version 2 counts them in `memory.events`, version 1 in `memory.oom_control` (Linux 4.13 or newer).
The count of a group includes kills for want of memory of the whole machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

CGROUP_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 1 << 60
"""Limits above this are those of version 1 for none."""


class MemoryCgroup(NamedTuple):
    """One group by its directories, its own first, up to the mount point."""

    directories: tuple[Path, ...]

    @staticmethod
    def of_process(pid: int, root: Path = CGROUP_ROOT, proc: Path = Path("/proc")) -> MemoryCgroup:
        """The group of a process; one without directories if it is gone or has none."""
        lines = read_kernel_text(proc / str(pid) / "cgroup").splitlines()
        return MemoryCgroup(tuple(_directories(lines, root)))

    def oom_kills(self) -> int:
        """Number of processes that the out-of-memory killer has ended; 0 if it is not known."""
        for directory in self.directories[:1]:
            for name in ("memory.events", "memory.oom_control"):
                for line in read_kernel_text(directory / name).splitlines():
                    key, _, count = line.partition(" ")
                    if key == "oom_kill" and count.strip().isdecimal():
                        return int(count)
        return 0

    def limit_bytes(self) -> int | None:
        """The least memory limit of the group and those above it; None without one."""
        texts = (
            read_kernel_text(directory / name)
            for directory in self.directories
            for name in ("memory.max", "memory.limit_in_bytes")
        )
        limits = [int(text) for text in texts if text.isdecimal()]
        return min((each for each in limits if each < _UNLIMITED_BYTES), default=None)


def _directories(lines: Iterable[str], root: Path) -> Iterator[Path]:
    """From lines `number:controllers:path`, of which version 2 has one without controllers."""
    paths = {tuple(line.split(":", 2)[1].split(",")): line.split(":", 2)[2] for line in lines}
    v1 = next((path for names, path in paths.items() if "memory" in names), None)
    path = paths.get(("",)) if v1 is None else v1
    if path is None:
        return
    mount = root if v1 is None else root / "memory"
    # A container may mount its own group only, under a path of the host.
    directory = mount / path.lstrip("/")
    directory = directory if directory.is_dir() else mount
    while directory.is_relative_to(mount):
        yield directory
        directory = directory.parent


def read_kernel_text(path: Path) -> str:
    """The text of a file below `/proc` or `/sys`; empty if it cannot be read."""
    try:
        return path.read_text().rstrip("\n")
    except (OSError, ValueError):
        return ""
