"""CPU, memory and disk measurements of this node, within the limits of its container."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", ""),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_",
    ),
)
"""Limit, usage, statistics and key prefix for each version of control groups. The statistics give
the page cache, which the kernel reclaims before it kills a process."""


@dataclass
class HostReader:
    """Reads CPU and memory. The first read has no CPU share, which is a difference of two reads."""

    cgroup_root: Path = CGROUP_ROOT
    _has_cpu_baseline: bool = False

    def read(self) -> dict[str, float]:
        """`host_cpu` as a share of all processors, `host_memory_used` and `host_memory_total`.

        Memory is in bytes, of the machine or of the container, whichever limit is lower.
        """
        share = psutil.cpu_percent(interval=None) / 100.0
        values = {"host_cpu": share} if self._has_cpu_baseline else {}
        self._has_cpu_baseline = True
        memory = psutil.virtual_memory()
        used, total = float(memory.total - memory.available), float(memory.total)
        for names in _CGROUP_FILES:
            limited = self._container_memory(names)
            if limited is not None and limited[1] < total:
                used, total = limited
        return {**values, "host_memory_used": used, "host_memory_total": total}

    def _container_memory(self, file_names: Sequence[str]) -> tuple[float, float] | None:
        """Used and total bytes of the control group; None if it has no limit or does not exist."""
        try:
            limit, usage, stat = ((self.cgroup_root / name).read_text() for name in file_names[:3])
            counts = dict(line.split() for line in stat.splitlines())
            cached = (
                counts.get(f"{file_names[3]}{kind}_file", "0") for kind in ("inactive", "active")
            )
            return max(0.0, float(usage) - sum(map(float, cached))), float(limit)
        except (OSError, ValueError):
            # A group without a limit has the text "max".
            return None


def free_bytes(directory: Path) -> float:
    """Bytes that this user may still write to the disk of the directory, which need not exist yet.

    Raises OSError if no parent of it exists.
    """
    for existing in (directory, *directory.parents):
        if existing.exists():
            return float(shutil.disk_usage(existing).free)
    raise FileNotFoundError(f"No part of {directory} exists.")
