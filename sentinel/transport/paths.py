"""Places: where the files of a run live.

The run directory keeps what must last: `$SENTINEL_HOME/runs/<run id>`, by default under the user's
state directory. Rings live in shared memory, `$SENTINEL_RUNTIME_DIR` or `/dev/shm/sentinel-<uid>`,
and in the run directory where shared memory is too small.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_RING_NAME = re.compile(r"(\d+)-(\d+)\.ring")
_OWNER_FILE = "host"
_REMOVED_SUFFIX = ".read"
"""Ending of the name of an empty file that stays in the place of a ring that was read."""


class RunIdError(ValueError):
    """An id that no directory may be named by."""


class UnsafeDirectoryError(OSError):
    """A directory is not safe to use: not ours, or others may write to it."""


def home_dir() -> Path:
    """`$SENTINEL_HOME`, else `sentinel` in the user's state directory. Not created."""
    chosen = os.environ.get("SENTINEL_HOME")
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "sentinel"


def run_dir(run_id: str) -> Path:
    """Directory of a run, made if missing. Raises ValueError for a bad id, PlaceError."""
    return _make_private_dir(
        _make_private_dir(_make_dir(home_dir()) / "runs") / validate_run_id(run_id)
    )


def ring_dir(run_id: str) -> Path:
    """Shared-memory directory of a run, made if missing. Raises ValueError, PlaceError."""
    return _make_private_dir(_shared_memory_dir(make=True) / validate_run_id(run_id))


def ring_path(run_id: str, attempt: int, rank: int) -> Path:
    """Where that rank's ring of that attempt lives in shared memory."""
    return ring_dir(run_id) / ring_name(attempt, rank)


def ring_name(attempt: int, rank: int) -> str:
    """File name of a ring."""
    return f"{attempt}-{rank}.ring"


def attempt_from_ring_name(name: str) -> int:
    """The attempt that a ring of that file name is of; -1 for any other file.

    >>> attempt_of("2-15.ring"), attempt_of("agent.lock")
    (2, -1)
    """
    match = _RING_NAME.fullmatch(name)
    return int(match[1]) if match else -1


def list_rings(run_id: str) -> list[Path]:
    """Every ring of a run, by attempt, then rank. Creates nothing."""
    found: list[tuple[int, int, Path]] = []
    for directory in (
        _shared_memory_dir(make=False) / validate_run_id(run_id),
        home_dir() / "runs" / run_id,
    ):
        try:
            names = os.listdir(directory)  # noqa: PTH208 - names alone are wanted
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            match = _RING_NAME.fullmatch(name)
            if match:
                found.append((int(match[1]), int(match[2]), directory / name))
    return [path for _, _, path in sorted(found)]


def list_shared_rings() -> list[Path]:
    """Every ring of this user's in shared memory, of whatever run. Creates nothing."""
    return sorted(_shared_memory_dir(make=False).glob("*/*.ring"))


def mark_ring_removed(run_id: str, ring: Path) -> None:
    """Note that this ring was there, before it is removed: its attempt is not used again."""
    (run_dir(run_id) / f"{ring.name}{_REMOVED_SUFFIX}").touch(mode=0o600)


def removed_ring_names(run_id: str) -> set[str]:
    """File names of the rings of this run that are no more. Creates nothing."""
    return {
        path.name.removesuffix(_REMOVED_SUFFIX)
        for path in (home_dir() / "runs" / run_id).glob(f"*{_REMOVED_SUFFIX}")
    }


def write_owner_host(run_id: str, host: str) -> None:
    """Note which host's run of that id this is. Raises ValueError, OSError."""
    path = run_dir(run_id) / _OWNER_FILE
    if read_owner_host(run_id) != host:
        path.write_text(host)


def read_owner_host(run_id: str) -> str:
    """The host whose run of that id there is; empty where nobody noted it. Creates nothing."""
    try:
        return (home_dir() / "runs" / run_id / _OWNER_FILE).read_text()
    except OSError:
        return ""


def validate_run_id(run_id: str) -> str:
    """The id itself, if it is one. Raises RunIdError.

    >>> checked("demo-3f9a1c")
    'demo-3f9a1c'
    """
    if not _RUN_ID.fullmatch(run_id):
        message = (
            f"Run id {run_id[:160]!r} is not usable: give 1 to 128 of A-Z a-z 0-9 . _ - "
            "that do not begin with a dot."
        )
        raise RunIdError(message)
    return run_id


def _shared_memory_dir(*, make: bool) -> Path:
    chosen = os.environ.get("SENTINEL_RUNTIME_DIR")
    if chosen:
        return _make_dir(Path(chosen)) if make else Path(chosen)
    usual = Path(f"/dev/shm/sentinel-{os.geteuid()}")  # noqa: S108 - owner and mode are checked
    return _make_private_dir(usual) if make else usual


def _make_dir(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _make_private_dir(path: Path) -> Path:
    """Make the directory, and trust it only if nobody else could have put something there."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise UnsafeDirectoryError(f"{path} is not a directory: remove it.") from None
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            message = f"{path} belongs to, or can be written by, another user: remove it."
            raise UnsafeDirectoryError(message) from None
    return path
