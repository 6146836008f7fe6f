"""What suspends a process: a stop signal, a debugger, or the freezer of its control group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sentinel.live.memory_cgroup import CGROUP_ROOT, read_kernel_text
from sentinel.transport.process import Process

_SUSPENDED_STATES = {"T": "signal", "t": "debugger"}
_FROZEN_STATES = frozenset({"D", "S"})
"""States of a process in a frozen group, of version 1 and of version 2 of control groups."""
_FROZEN_MARKS = ("FROZEN", "FREEZING", "frozen 1")


def suspended_by(process: Process, root: Path = CGROUP_ROOT, proc: Path = Path("/proc")) -> str:
    """What suspends it: signal, debugger or freezer; empty if nothing does, or it is not known."""
    state = process.state()
    if state in _FROZEN_STATES:
        return "freezer" if _is_frozen(proc / str(process.pid) / "cgroup", root) else ""
    return _SUSPENDED_STATES.get(state, "")


def _is_frozen(groups: Path, root: Path) -> bool:
    lines = read_kernel_text(groups).splitlines()
    texts = (read_kernel_text(path) for line in lines for path in _state_files(line, root))
    return any(mark in text for text in texts for mark in _FROZEN_MARKS)


def _state_files(line: str, root: Path) -> Iterator[Path]:
    """Files that state whether a group is frozen, from its line `number:controllers:path`."""
    _, controllers, path = line.split(":", 2)
    if "freezer" in controllers.split(","):
        yield root / "freezer" / path.lstrip("/") / "freezer.state"
    elif not controllers:
        # Beside version 1, version 2 is mounted below.
        for mount in (root, root / "unified"):
            yield mount / path.lstrip("/") / "cgroup.events"
