"""Why the home directory cannot be used, and what remedies that."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sentinel.transport.paths import UnsafeDirectoryError, home_dir

_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DirectoryLostError(OSError):
    """The run directory is no longer the one that the agent opened."""


class HomeProblem(NamedTuple):
    """An error of the home directory, with its reason and remedy for people."""

    error: Exception
    reason: str
    remedy: str


def describe_problem(error: Exception, *, is_local: bool = True) -> HomeProblem:
    """The problem that the error shows. Uses the disk, if it is full, unless it is not local."""
    home = home_dir()
    name = str(getattr(error, "sqlite_errorname", None) or "")
    number = getattr(error, "errno", None)
    if name == "SQLITE_FULL" or number in _FULL_ERRORS:
        return _describe_full(error, home, is_local=is_local)
    if name.startswith("SQLITE_READONLY") or number == errno.EROFS:
        return HomeProblem(
            error,
            f"{home} is read-only",
            "Make it writable again, or set SENTINEL_HOME to another directory for the next run.",
        )
    if isinstance(error, DirectoryLostError):
        return HomeProblem(
            error,
            str(error),
            "Do not remove the directory of a live run. It is made again within a minute.",
        )
    if isinstance(error, TimeoutError):
        return HomeProblem(
            error,
            *(
                (
                    f"The disk of {home} does not respond",
                    "Check the disk (`dmesg`), and whether checkpoints are written to it too.",
                )
                if is_local
                else (
                    f"The file server of {home} does not answer",
                    "Check the file server and the mount, or set SENTINEL_HOME to a local disk.",
                )
            ),
        )
    if isinstance(error, UnsafeDirectoryError):
        return HomeProblem(
            error, str(error).rstrip("."), "Run `sentinel doctor`: it names the remedy."
        )
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return HomeProblem(
        error,
        f"{home} cannot be written ({text})",
        "Run `sentinel doctor`, or set SENTINEL_HOME to a directory that you own.",
    )


def _describe_full(error: Exception, home: Path, *, is_local: bool) -> HomeProblem:
    free = "no space"
    with suppress(OSError):
        if is_local:
            # A directory that does not exist yet is on the disk of its parent.
            directory = next(path for path in (home, *home.parents) if path.exists())
            status = os.statvfs(directory)
            if status.f_favail == 0:
                reason = f"The disk of {home} has no free inodes"
                return HomeProblem(error, reason, "Delete files that are not needed.")
            free = f"only {status.f_bavail * status.f_frsize / 2**20:,.1f} MiB"
    return HomeProblem(
        error,
        f"The disk of {home} has {free} free",
        "Free some space there; the run is stored in memory meanwhile, and moves back by itself.",
    )
