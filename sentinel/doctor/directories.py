"""Places: the folders a run needs, and whether they can be written to and have room."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.transport.paths import UnsafeDirectoryError, home_dir, ring_dir, run_dir
from sentinel.transport.ring import DEFAULT_CAPACITY_BYTES, fitting_capacity

MIB = 2**20
MIN_FREE_BYTES = 512 * MIB
"""Bytes that the folder of runs should have free: weeks of one run's history."""

_PROBE_RUN_ID = "sentinel-doctor"
"""A run id of no run, by which the folders are made as a run would make them."""


def check_directories() -> Iterator[CheckResult]:
    """The folder where runs are kept, and that of the rings."""
    remedy = "set SENTINEL_HOME to a folder of yours, on a disk of this machine, with room"
    yield _check_directory(
        "state directory",
        lambda: run_dir(_PROBE_RUN_ID),
        home_dir(),
        _check_state_directory,
        remedy,
    )
    chosen = os.environ.get("SENTINEL_RUNTIME_DIR") or f"/dev/shm/sentinel-{os.geteuid()}"  # noqa: S108 - only named
    remedy = "in a container, give /dev/shm room (docker run --shm-size=1g), or set "
    remedy += "SENTINEL_RUNTIME_DIR to a folder of yours in memory"
    yield _check_directory(
        "shared memory", lambda: ring_dir(_PROBE_RUN_ID), Path(chosen), _check_shared_memory, remedy
    )


def _check_directory(
    subject: str,
    create: Callable[[], Path],
    path: Path,
    check: Callable[[Path], CheckResult],
    remedy: str,
) -> CheckResult:
    try:
        made = create()
    except UnsafeDirectoryError as error:
        return fail(subject, "is not safe to use", str(error))
    except OSError as error:
        return fail(subject, f"{path} cannot be made ({error.strerror})", remedy)
    try:
        with tempfile.TemporaryFile(dir=made) as file:
            file.write(b"\0" * 4096)
        return check(made)
    except OSError as error:
        return fail(subject, f"{path} cannot be written to ({error.strerror})", remedy)
    finally:
        # Left alone if a run by that very name has put something there.
        _remove_directory(made)


def _check_state_directory(folder: Path) -> CheckResult:
    free = shutil.disk_usage(folder).free
    says = f"{home_dir()} can be written to, {_format_mib(free)} free"
    if free < MIN_FREE_BYTES:
        remedy = f"make room, or set SENTINEL_HOME to a disk that has {_format_mib(MIN_FREE_BYTES)}"
        return fail("state directory", says, remedy)
    return ok("state directory", says)


def _check_shared_memory(folder: Path) -> CheckResult:
    free = shutil.disk_usage(folder).free
    says = f"{folder.parent} can be written to, {_format_mib(free)} free"
    fits = fitting_capacity(folder, ring_count=1)
    if not fits:
        remedy = "rings go to the state directory instead, which is slower: give /dev/shm more room"
        return fail("shared memory", f"{says}: too little for a ring", remedy)
    if fits < DEFAULT_CAPACITY_BYTES:
        remedy = f"more room lets the agent be away longer: {_format_mib(DEFAULT_CAPACITY_BYTES)} for each rank"
        return warn("shared memory", f"{says}: rings are smaller than usual", remedy)
    return ok("shared memory", says)


def _format_mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"


def _remove_directory(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
