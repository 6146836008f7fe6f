"""Checks of the directories that a run needs: writable, safe and with free space."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.transport.mounts import find_mount
from sentinel.transport.paths import (
    UnsafeDirectoryError,
    foreign_runtime_dir,
    home_dir,
    ring_dir,
    root_warning,
    run_dir,
    runtime_dir,
    shared_memory_room,
)
from sentinel.transport.ring import DEFAULT_CAPACITY_BYTES, fitting_capacity

MIB = 2**20
MIN_FREE_BYTES = 512 * MIB
"""Free bytes that the state directory should have: weeks of one run's history."""

ANSWER_TIMEOUT_SECONDS = 2.0

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
    remedy = "in a container, enlarge /dev/shm (docker run --shm-size=1g), or set "
    remedy += "SENTINEL_RUNTIME_DIR to a directory that you own in memory"
    yield _check_directory(
        "shared memory",
        lambda: ring_dir(_PROBE_RUN_ID),
        runtime_dir(make=False),
        _check_shared_memory,
        remedy,
    )


def _check_directory(
    subject: str,
    create: Callable[[], Path],
    path: Path,
    check: Callable[[Path], CheckResult],
    remedy: str,
) -> CheckResult:
    if find_mount(path).is_remote and not _answers(path):
        message = f"the file server of {path} does not answer within {ANSWER_TIMEOUT_SECONDS:.0f} s"
        return fail(subject, message, remedy)
    try:
        directory = create()
    except UnsafeDirectoryError as error:
        return fail(subject, "not safe to use", str(error))
    except OSError as error:
        return fail(subject, f"{path} cannot be used ({error.strerror})", remedy)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"\0" * 4096)
        if warning := root_warning(path):
            return warn(subject, warning, f"run `chmod go-w {path}`, or `chmod +t {path}`")
        return check(directory)
    except OSError as error:
        return fail(subject, f"{path} is not writable ({error.strerror})", remedy)
    finally:
        # Fails, and is ignored, if a run with this id has files in it.
        _remove_directory(directory)


def _answers(path: Path) -> bool:
    """Whether a file server answers; a thread that waits for one cannot be ended."""
    answered = threading.Event()

    def probe() -> None:
        path.exists()
        answered.set()

    threading.Thread(target=probe, daemon=True).start()
    return answered.wait(ANSWER_TIMEOUT_SECONDS)


def _check_state_directory(directory: Path) -> CheckResult:
    free = shutil.disk_usage(directory).free
    message = f"{home_dir()} is writable, {_format_mib(free)} free"
    mount = find_mount(home_dir())
    if mount.is_remote:
        message += f", on a file server ({mount.type})"
    if free < MIN_FREE_BYTES:
        remedy = "free some space, or set SENTINEL_HOME to a disk with at least "
        remedy += _format_mib(MIN_FREE_BYTES)
        return fail("state directory", message, remedy)
    return ok("state directory", message)


def _check_shared_memory(directory: Path) -> CheckResult:
    free = shutil.disk_usage(directory).free
    message = f"{directory.parent} is writable, {_format_mib(free)} free"
    if foreign := foreign_runtime_dir():
        message += f"; it is used because {foreign} belongs to another user"
        remedy = f"as root, run `rm -r {foreign}`, or set SENTINEL_RUNTIME_DIR to a directory that "
        return warn("shared memory", message, f"{remedy}you own in memory")
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
    if not shared_memory_room(directory):
        remedy = "enlarge /dev/shm; until then a disk that does not respond delays notifications"
        return warn("shared memory", f"{message}: the database is in the state directory", remedy)
    return ok("shared memory", message)


def _format_mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"


def _remove_directory(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return
