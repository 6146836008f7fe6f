"""Host: processors, memory and disks of this node, as far as a container is given them."""

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
"""For each version of control groups: limit, usage, and where it says how much is mere cache,
under which prefix: the kernel gives pages of files back, also of those in use, before it kills."""


@dataclass
class HostReader:
    """Reads processors and memory; the first look gives no processors, which need two moments."""

    cgroup_root: Path = CGROUP_ROOT
    _has_cpu_baseline: bool = False

    def read(self) -> dict[str, float]:
        """`host_cpu` as a share of all processors, `host_memory_used` and `host_memory_total`.

        Memory is what the kernel would end the trainer for: the container's, where that is less.
        """
        share = psutil.cpu_percent(interval=None) / 100.0
        told = {"host_cpu": share} if self._has_cpu_baseline else {}
        self._has_cpu_baseline = True
        memory = psutil.virtual_memory()
        used, total = float(memory.total - memory.available), float(memory.total)
        for names in _CGROUP_FILES:
            limited = self._container_memory(names)
            if limited is not None and limited[1] < total:
                used, total = limited
        return {**told, "host_memory_used": used, "host_memory_total": total}

    def _container_memory(self, file_names: Sequence[str]) -> tuple[float, float] | None:
        try:
            limit, usage, told = ((self.cgroup_root / name).read_text() for name in file_names[:3])
            parts = dict(line.split() for line in told.splitlines())
            pages = (
                parts.get(f"{file_names[3]}{kind}_file", "0") for kind in ("inactive", "active")
            )
            return max(0.0, float(usage) - sum(map(float, pages))), float(limit)
        except (OSError, ValueError):
            # No such control group, or one without a limit ("max").
            return None


def free_bytes(directory: Path) -> float:
    """Bytes that we may still write to the disk that the directory is, or will be, on.

    Raises OSError where there is no such disk.
    """
    for place in (directory, *directory.parents):
        if place.exists():
            return float(shutil.disk_usage(place).free)
    raise FileNotFoundError(f"No part of {directory} exists.")
