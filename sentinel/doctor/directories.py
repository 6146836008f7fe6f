"""Checks of the directories that a run needs: writable, safe and with free space."""

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
"""Free bytes that the state directory should have: weeks of one run's history."""

_PROBE_RUN_ID = "sentinel-doctor"
"""Id of no run, used to create the directories as a run does."""


def check_directories() -> Iterator[CheckResult]:
    """Checks the state directory and the directory of the shared-memory rings."""
    remedy = "set SENTINEL_HOME to a directory that you own, on a local disk with free space"
    yield _check_directory(
        "state directory",
        lambda: run_dir(_PROBE_RUN_ID),
        home_dir(),
        _check_state_directory,
        remedy,
    )
    chosen = os.environ.get("SENTINEL_RUNTIME_DIR") or f"/dev/shm/sentinel-{os.geteuid()}"  # noqa: S108 - only its name
    remedy = "in a container, enlarge /dev/shm (docker run --shm-size=1g), or set "
    remedy += "SENTINEL_RUNTIME_DIR to a directory that you own in memory"
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
        directory = create()
    except UnsafeDirectoryError as error:
        return fail(subject, "not safe to use", str(error))
    except OSError as error:
        return fail(subject, f"{path} cannot be used ({error.strerror})", remedy)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"\0" * 4096)
        return check(directory)
    except OSError as error:
        return fail(subject, f"{path} is not writable ({error.strerror})", remedy)
    finally:
        # Fails, and is ignored, if a run with this id has files in it.
        _remove_directory(directory)


def _check_state_directory(directory: Path) -> CheckResult:
    free = shutil.disk_usage(directory).free
    message = f"{home_dir()} is writable, {_format_mib(free)} free"
    if free < MIN_FREE_BYTES:
        remedy = "free some space, or set SENTINEL_HOME to a disk with at least "
        remedy += _format_mib(MIN_FREE_BYTES)
        return fail("state directory", message, remedy)
    return ok("state directory", message)


def _check_shared_memory(directory: Path) -> CheckResult:
    free = shutil.disk_usage(directory).free
    message = f"{directory.parent} is writable, {_format_mib(free)} free"
    capacity = fitting_capacity(directory, ring_count=1)
    if not capacity:
        remedy = "enlarge /dev/shm; until then rings are in the state directory, which is slower"
        return fail("shared memory", f"{message}: too little for a ring", remedy)
    if capacity < DEFAULT_CAPACITY_BYTES:
        remedy = (
            f"provide {_format_mib(DEFAULT_CAPACITY_BYTES)} per rank, so that more records are "
        )
        remedy += "buffered while the agent restarts"
        return warn("shared memory", f"{message}: rings are smaller than the default", remedy)
    return ok("shared memory", message)


def _format_mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"


def _remove_directory(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return
