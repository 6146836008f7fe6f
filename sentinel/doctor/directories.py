"""Places: the folders a run needs, and whether they can be written to and have room."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sentinel.doctor.check_result import Remark, mend, note, well
from sentinel.transport.paths import PlaceError, home, ring_dir, run_dir
from sentinel.transport.ring import CAPACITY, fitting

MIB = 2**20
ROOM = 512 * MIB
"""Bytes that the folder of runs should have free: weeks of one run's history."""

_TRIAL = "sentinel-doctor"
"""A run id of no run, by which the folders are made as a run would make them."""


def places() -> Iterator[Remark]:
    """The folder where runs are kept, and that of the rings."""
    remedy = "set SENTINEL_HOME to a folder of yours, on a disk of this machine, with room"
    yield _tried("state directory", lambda: run_dir(_TRIAL), home(), _state, remedy)
    chosen = os.environ.get("SENTINEL_RUNTIME_DIR") or f"/dev/shm/sentinel-{os.geteuid()}"  # noqa: S108 - only named
    remedy = "in a container, give /dev/shm room (docker run --shm-size=1g), or set "
    remedy += "SENTINEL_RUNTIME_DIR to a folder of yours in memory"
    yield _tried("shared memory", lambda: ring_dir(_TRIAL), Path(chosen), _shared, remedy)


def _tried(
    subject: str,
    make: Callable[[], Path],
    place: Path,
    judge: Callable[[Path], Remark],
    remedy: str,
) -> Remark:
    try:
        made = make()
    except PlaceError as error:
        return mend(subject, "is not safe to use", str(error))
    except OSError as error:
        return mend(subject, f"{place} cannot be made ({error.strerror})", remedy)
    try:
        with tempfile.TemporaryFile(dir=made) as file:
            file.write(b"\0" * 4096)
        return judge(made)
    except OSError as error:
        return mend(subject, f"{place} cannot be written to ({error.strerror})", remedy)
    finally:
        # Left alone if a run by that very name has put something there.
        _remove(made)


def _state(made: Path) -> Remark:
    free = shutil.disk_usage(made).free
    says = f"{home()} can be written to, {_mib(free)} free"
    if free < ROOM:
        remedy = f"make room, or set SENTINEL_HOME to a disk that has {_mib(ROOM)}"
        return mend("state directory", says, remedy)
    return well("state directory", says)


def _shared(made: Path) -> Remark:
    free = shutil.disk_usage(made).free
    says = f"{made.parent} can be written to, {_mib(free)} free"
    fits = fitting(made, sharers=1)
    if not fits:
        remedy = "rings go to the state directory instead, which is slower: give /dev/shm more room"
        return mend("shared memory", f"{says}: too little for a ring", remedy)
    if fits < CAPACITY:
        remedy = f"more room lets the agent be away longer: {_mib(CAPACITY)} for each rank"
        return note("shared memory", f"{says}: rings are smaller than usual", remedy)
    return well("shared memory", says)


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"


def _remove(made: Path) -> None:
    try:
        made.rmdir()
    except OSError:
        return
