"""Paths of the files of a run, and the lock that marks a running agent.

The run directory holds what must last: `$SENTINEL_HOME/runs/<run id>`, by default below the user's
state directory. Rings are in shared memory, `$SENTINEL_RUNTIME_DIR` or `/dev/shm/sentinel-<uid>`,
or in the run directory where shared memory is too small.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from pathlib import Path

AGENT_LOCK = "agent.lock"
"""File in the run directory that a running agent holds locked."""

_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_RING_NAME = re.compile(r"(\d+)-(\d+)\.ring")
_OWNER_FILE = "owner_host"
_REMOVED_SUFFIX = ".removed"
"""Suffix of the empty file that marks a ring which was read and removed."""


class RunIdError(ValueError):
    """A run id that is not a safe directory name."""


class UnsafeDirectoryError(OSError):
    """A directory that another user owns or may write to."""


def describe_error(error: Exception) -> str:
    """The error as one sentence; for a file or directory, its path and the reason.

    >>> describe_error(PermissionError(13, "Permission denied", "/sys/runs"))
    'cannot use /sys/runs (Permission denied); `sentinel doctor` shows the remedy.'
    """
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"cannot use {error.filename} ({error.strerror}); `sentinel doctor` shows the remedy"
    return text if text.endswith(".") else f"{text}."


def home_dir() -> Path:
    """`$SENTINEL_HOME`, else `sentinel` in the user's state directory. Not created."""
    chosen = os.environ.get("SENTINEL_HOME")
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "sentinel"


def run_dir(run_id: str) -> Path:
    """Directory of a run, created if missing. Raises RunIdError, UnsafeDirectoryError."""
    return _make_private_dir(
        _make_private_dir(_make_dir(home_dir()) / "runs") / validate_run_id(run_id)
    )


def ring_dir(run_id: str) -> Path:
    """Shared-memory directory of a run, created if missing. Raises like `run_dir`."""
    return _make_private_dir(_shared_memory_dir(make=True) / validate_run_id(run_id))


def ring_path(run_id: str, attempt: int, rank: int) -> Path:
    """Path of a rank's ring in shared memory."""
    return ring_dir(run_id) / ring_name(attempt, rank)


def ring_name(attempt: int, rank: int) -> str:
    """File name of a ring."""
    return f"{attempt}-{rank}.ring"


def attempt_from_ring_name(name: str) -> int:
    """The attempt in a ring's file name; -1 for any other file.

    >>> attempt_from_ring_name("2-15.ring"), attempt_from_ring_name("agent.lock")
    (2, -1)
    """
    match = _RING_NAME.fullmatch(name)
    return int(match[1]) if match else -1


def list_rings(run_id: str) -> list[Path]:
    """Every ring of a run, by attempt, then rank. Creates nothing."""
    rings: list[tuple[int, int, Path]] = []
    for directory in (
        _shared_memory_dir(make=False) / validate_run_id(run_id),
        home_dir() / "runs" / run_id,
    ):
        try:
            names = os.listdir(directory)  # noqa: PTH208 - only the names are needed
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            match = _RING_NAME.fullmatch(name)
            if match:
                rings.append((int(match[1]), int(match[2]), directory / name))
    return [path for _, _, path in sorted(rings)]


def list_shared_rings() -> list[Path]:
    """Every ring of this user in shared memory, of all runs. Creates nothing."""
    return sorted(_shared_memory_dir(make=False).glob("*/*.ring"))


def mark_ring_removed(run_id: str, ring: Path) -> None:
    """Record that a ring is about to be removed, so that its attempt number is not reused."""
    (run_dir(run_id) / f"{ring.name}{_REMOVED_SUFFIX}").touch(mode=0o600)


def removed_ring_names(run_id: str) -> set[str]:
    """File names of the run's removed rings. Creates nothing."""
    return {
        path.name.removesuffix(_REMOVED_SUFFIX)
        for path in (home_dir() / "runs" / run_id).glob(f"*{_REMOVED_SUFFIX}")
    }


def write_owner_host(run_id: str, host: str) -> None:
    """Record the host that owns the run id. Raises RunIdError, OSError."""
    path = run_dir(run_id) / _OWNER_FILE
    if read_owner_host(run_id) != host:
        path.write_text(host)


def read_owner_host(run_id: str) -> str:
    """The host that owns the run id; "" if none is recorded. Creates nothing."""
    try:
        return (home_dir() / "runs" / run_id / _OWNER_FILE).read_text()
    except OSError:
        return ""


def is_agent_running(run_directory: Path) -> bool:
    """Whether an agent holds the lock of that run directory. Never waits, creates nothing.

    The kernel releases the lock when its owner exits, however it exits.
    """
    try:
        descriptor = os.open(run_directory / AGENT_LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def validate_run_id(run_id: str) -> str:
    """The id itself, if it is valid. Raises RunIdError.

    >>> validate_run_id("demo-3f9a1c")
    'demo-3f9a1c'
    """
    if not _RUN_ID.fullmatch(run_id):
        message = (
            f"Run id {run_id[:160]!r} is not valid: use 1 to 128 characters of A-Z a-z 0-9 . _ - "
            "that do not begin with a dot."
        )
        raise RunIdError(message)
    return run_id


def _shared_memory_dir(*, make: bool) -> Path:
    chosen = os.environ.get("SENTINEL_RUNTIME_DIR")
    if chosen:
        return _make_dir(Path(chosen)) if make else Path(chosen)
    default = Path(f"/dev/shm/sentinel-{os.geteuid()}")  # noqa: S108 - owner and mode are checked
    return _make_private_dir(default) if make else default


def _make_dir(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _make_private_dir(path: Path) -> Path:
    """Create the directory, or check that no other user can have written to it."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise UnsafeDirectoryError(f"{path} is not a directory: remove it.") from None
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            message = f"{path} belongs to another user or is writable by others: remove it."
            raise UnsafeDirectoryError(message) from None
    return path
