"""The commit of the repository that holds a path, and a digest of its uncommitted changes.

The commit is read from the files of the repository, so that git need not be installed. `git diff`
finds the changes; it runs for a bounded time, writes nothing to the repository and fetches nothing.
Formats: gitrepository-layout(5) and gitglossary(7), "gitfile" and "symref".
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Event as Flag
from typing import IO, NamedTuple

UNKNOWN, NO_CHANGES = "unknown", "none"
MAX_DIFF_SECONDS = 10.0
"""Time after which `git diff` is ended, in a repository that is too large or does not answer."""

_MAX_FILE_CHARACTERS = 4096
_MAX_PACKED_REFS_BYTES = 64 << 20
_MAX_SYMBOLIC_REFS = 5
_DIGEST_CHARACTERS = 12
_CHUNK_BYTES = 1 << 16
_POLL_MILLISECONDS, _EXIT_SECONDS = 100, 1.0
_LOWEST_PRIORITY = 19
_OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_DIFF = (
    # Neither the user's settings nor a program that they name change the text. The index would be
    # written after a file is only touched, also without optional locks.
    "-c", "core.fsmonitor=false", "-c", "core.quotePath=true", "-c", "diff.autoRefreshIndex=false",
    "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--binary",
    "--full-index", "--unified=3", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/",
    "--ignore-submodules=dirty",
)  # fmt: skip
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class Repository(NamedTuple):
    """A working tree and its directories of git: its own, and that of all its working trees."""

    root: Path
    directory: Path
    common: Path


def find_repository(path: Path) -> Repository | None:
    """The repository whose working tree contains `path`; None if there is none. Raises OSError."""
    for root in (path, *path.parents):
        marker = root / ".git"
        if marker.is_dir():
            return Repository(root, marker, marker)
        if marker.is_file():
            # A submodule, or one of several working trees.
            _, _, target = _read(marker).partition("gitdir:")
            directory = root / target.strip()
            shared = directory / "commondir"
            common = directory / _read(shared) if shared.is_file() else directory
            return Repository(root, directory, common)
    return None


def commit_of(repository: Repository) -> str:
    """The object id of the commit that is checked out, or `UNKNOWN`. Raises OSError."""
    text = _read(repository.directory / "HEAD")
    for _ in range(_MAX_SYMBOLIC_REFS):
        if _OBJECT_ID.fullmatch(text):
            return text
        name = text.removeprefix("ref:").strip()
        if name == text or ".." in name:
            break
        places = (repository.directory / name, repository.common / name)
        loose = next((place for place in places if place.is_file()), None)
        text = _packed_ref(repository.common, name) if loose is None else _read(loose)
    return UNKNOWN


def changes_of(
    repository: Repository, stopping: Flag, max_seconds: float = MAX_DIFF_SECONDS
) -> str:
    """A digest of how tracked files differ from the commit; `NO_CHANGES`, or `UNKNOWN`.

    Unknown without git, if git refuses the repository, if it is not done in `max_seconds`, or if
    `stopping` is set before. Files that git does not track do not count.
    """
    # Most agents read one repository, once.
    import subprocess  # noqa: PLC0415

    environ = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.Popen(  # noqa: S603 - a fixed command
            ["git", "-C", str(repository.root), *_DIFF],  # noqa: S607 - the user's git
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environ, **_ENVIRONMENT},
            start_new_session=True,
        )
    except OSError:
        return UNKNOWN
    assert process.stdout is not None
    with process.stdout as output:
        with suppress(OSError):
            os.setpriority(os.PRIO_PGRP, process.pid, _LOWEST_PRIORITY)
        digest = _digest(output, stopping, time.monotonic() + max_seconds)
    if digest is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    try:
        status = process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        # A disk keeps it from the end, for which nothing waits.
        process.returncode = status = -signal.SIGKILL
    return UNKNOWN if status or digest is None else digest


def _digest(output: IO[bytes], stopping: Flag, deadline: float) -> str | None:
    """Digest of the bytes up to the end, `NO_CHANGES` if there are none; None at the deadline."""
    poll, digest, size = select.poll(), sha256(), 0
    poll.register(output, select.POLLIN)
    while time.monotonic() < deadline and not stopping.is_set():
        if not poll.poll(_POLL_MILLISECONDS):
            continue
        chunk = os.read(output.fileno(), _CHUNK_BYTES)
        if not chunk:
            return digest.hexdigest()[:_DIGEST_CHARACTERS] if size else NO_CHANGES
        digest.update(chunk)
        size += len(chunk)
    return None


def _packed_ref(common: Path, name: str) -> str:
    path = common / "packed-refs"
    if not path.is_file() or path.stat().st_size > _MAX_PACKED_REFS_BYTES:
        return ""
    with path.open(errors="replace") as lines:
        return next((line[: -len(name) - 2] for line in lines if line.endswith(f" {name}\n")), "")


def _read(path: Path) -> str:
    with path.open(errors="replace") as file:
        return file.read(_MAX_FILE_CHARACTERS).strip()
